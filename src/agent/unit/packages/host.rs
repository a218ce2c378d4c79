//! What all units of packages share on a host: its package manager, and whose turn it is.

use std::{fs, path::Path, time::Duration};

use muster_rules::{
    packages::{installed::InstalledPackages, split, target},
    plan::Failure,
};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    packages::{PackageManager, PackagesSpec},
    task::TaskAction,
    unit::Spec,
};
use nix::unistd;
use tokio::time::Instant;

use super::{
    lock::{self, LockHolder},
    manager::{PackageAdapter, Program},
    program::{self, ProgramOutput, Root},
    transaction::Transactions,
};
use crate::{
    execute::program_path::SEARCH_PATH,
    shim::Shims,
    store::Store,
    unit::{
        failure::{may_heal, never},
        given_secrets::SecretSource,
        owners::Owners,
        task_log::{RunningTask, TaskEnd, TaskLog},
        turns::Turns,
    },
};

/// A list of packages takes a second on a slow disk.
const QUERY_MAX: Duration = Duration::from_secs(60);

/// How long to wait for other programs that change packages: an upgrade by hand takes no longer.
const LOCK_MAX: Duration = Duration::from_secs(3600);
const LOCK_EVERY: Duration = Duration::from_millis(500);

/// The packages of a host.
pub(super) struct Host {
    pub(super) adapter: Box<dyn PackageAdapter>,
    pub(super) root: Root,
    pub(super) store: Store,
    pub(super) tasks: TaskLog,
    /// Which packages are another unit's, too.
    pub(super) owners: Owners,
    pub(super) transactions: Transactions,
    /// Whoever changes packages has the turn.
    pub(super) turns: Turns,
    /// Where passwords come from.
    pub(super) secrets: SecretSource,
}

/// How a unit's packages differ from its spec.
pub(super) struct PackageDrift {
    /// What is not as its spec says.
    pub(super) drift: Vec<String>,
    /// Files that were left beside configuration files.
    pub(super) leftovers: Vec<String>,
}

impl Host {
    pub(super) fn new(
        adapter: Box<dyn PackageAdapter>,
        root: &Path,
        (store, tasks, owners, turns): (Store, TaskLog, Owners, Turns),
        (shims, secrets): (Shims, SecretSource),
        folder: &Path,
    ) -> Self {
        let (root, transactions) = (Root::new(root), Transactions::new(shims, folder));
        Self { adapter, root, store, tasks, owners, transactions, turns, secrets }
    }

    /// Checks that this host can do at all what a spec says.
    pub(super) fn check(&self, spec: &PackagesSpec) -> Result<(), Failure> {
        let (own, wanted) = (self.adapter.which(), spec.manager.unwrap_or(self.adapter.which()));
        if wanted != own {
            return Err(never(format!(
                "unsupported: this host's agent knows the package manager {}, not {}",
                PackageManager::as_str(own),
                wanted.as_str()
            )));
        }
        let program = self.adapter.program();
        let is_there = SEARCH_PATH.split(':').any(|folder| self.root.path(&format!("{folder}/{program}")).is_file());
        if !is_there {
            return Err(never(format!("unsupported: {program} is not installed on this host")));
        }
        if !unistd::geteuid().is_root() {
            return Err(never("to change packages, the agent must run as root"));
        }
        Ok(())
    }

    /// Runs a program that changes nothing that is in effect.
    pub(super) async fn query(&self, program: &Program) -> Result<ProgramOutput, Failure> {
        self.run(program, QUERY_MAX, &|_| ()).await
    }

    pub(super) async fn run(
        &self,
        program: &Program,
        limit: Duration,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<ProgramOutput, Failure> {
        program::run(&self.root, &*self.adapter, program, None, limit, tell).await
    }

    pub(super) async fn installed(&self) -> Result<InstalledPackages, Failure> {
        let said = self.query(&self.adapter.list()).await?;
        // Where there is no package at all, there is none to show.
        let is_none = said.stdout.is_empty() && said.stderr.contains("no packages found");
        if !(said.is_ok || is_none) {
            let fault = self.adapter.explain(&said.all()).diagnostic;
            return Err(may_heal(fault.within("the packages cannot be listed")));
        }
        Ok(self.adapter.read_list(&said.stdout))
    }

    /// Looks at a unit's packages.
    pub(super) async fn found(&self, spec: &PackagesSpec) -> Result<PackageDrift, Failure> {
        let installed = self.installed().await?;
        let drift = target::drift(spec, &installed);
        let names = spec.present.iter().map(|package| split(package).0);
        let names: Vec<String> =
            names.filter(|name| installed.version(name).is_some()).map(ToOwned::to_owned).collect();
        let leftovers = match names.is_empty() {
            true => Vec::new(),
            false => {
                let said = self.query(&self.adapter.configs(&names)).await?;
                let paths = self.adapter.read_leftovers(&said.stdout);
                paths.into_iter().filter(|path| self.root.path(path).exists()).collect()
            }
        };
        Ok(PackageDrift { drift, leftovers })
    }

    /// Returns who else changes packages.
    pub(super) fn lock_holder(&self) -> Option<LockHolder> {
        let holder = |path: &&str| lock::holder(&self.root.path(path)).ok().flatten();
        self.adapter.locks().iter().find_map(holder)
    }

    /// Waits until nobody else changes packages, in a task that says who does.
    pub(super) async fn wait_for_others(&self, unit: &UnitName, revision: &Digest) -> Result<(), Failure> {
        let Some(mut holder) = self.lock_holder() else { return Ok(()) };
        let task =
            self.begin(unit, revision, TaskAction::Wait, "other programs that change packages".to_owned()).await?;
        task.line(&format!("{holder} changes packages"));
        let since = Instant::now();
        loop {
            tokio::time::sleep(LOCK_EVERY).await;
            match self.lock_holder() {
                None => break,
                Some(now) if now != holder => {
                    task.line(&format!("{now} changes packages"));
                    holder = now;
                }
                Some(_) => {}
            }
            if since.elapsed() > LOCK_MAX {
                let why = Diagnostic::new(format_args!(
                    "{holder} has been changing packages for {} min",
                    LOCK_MAX.as_secs() / 60
                ))
                .with_hint("check whether it waits for input");
                self.end(task, Err(why.clone())).await?;
                return Err(may_heal(why));
            }
        }
        let message = format!("waited {} s", since.elapsed().as_secs());
        self.end(task, Ok(TaskEnd { is_changed: false, message: Some(message) })).await
    }

    pub(super) async fn begin(
        &self,
        unit: &UnitName,
        revision: &Digest,
        action: TaskAction,
        about: String,
    ) -> Result<RunningTask, Failure> {
        self.tasks.begin(unit, revision, action, about).await.map_err(|error| may_heal(Diagnostic::of(&error)))
    }

    pub(super) async fn end(&self, task: RunningTask, end: Result<TaskEnd, Diagnostic>) -> Result<(), Failure> {
        task.end(end).await.map_err(|error| may_heal(Diagnostic::of(&error)))
    }

    /// Whether a run of the package manager was interrupted.
    pub(super) fn was_interrupted(&self) -> bool {
        let Some(folder) = self.adapter.interrupted() else { return false };
        fs::read_dir(self.root.path(folder)).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The spec of a unit that is desired now, if it is of this revision.
    pub(super) async fn desired(&self, unit: &UnitName, revision: &Digest) -> Option<PackagesSpec> {
        let stored = self.store.units().await.ok()?;
        let row = stored.units.into_iter().find(|row| row.name == *unit && row.desired.revision == *revision)?;
        if let Spec::Packages(spec) = &*row.desired.spec { Some(spec.clone()) } else { None }
    }
}
