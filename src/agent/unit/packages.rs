//! Packages of the host: a kind of unit without a process, on top of a package manager ([`manager`]).
//!
//! `install` checks what would be done, refuses what is not allowed, and downloads; `start` does it. An instance lives while the packages
//! are as described.
//!
//! **Invariant: on a host there is one transaction at a time**, whatever units there are ([`Host::turn`]), and it goes on if the agent
//! ends ([`transaction`]).
//!
//! **Invariant: what is not allowed is not tried.** The package manager's simulation is judged before anything is changed.
//!
//! Modules, in reading order: [`manager`] (the trait), [`apt`], [`program`] (runs programs that change nothing), [`transaction`] (runs those
//! that do), [`lock`] (who else is at work), [`host`] (what all units share), [`goal`] (what a unit wants changed), [`archive`] (files of
//! packages, for rollbacks), [`sources`] (repositories of units among the host's), [`logins`] (their logins), [`traces`] (what else units leave), [`work`] (the steps), [`instance`].

mod apt;
mod archive;
mod goal;
mod host;
mod instance;
mod lock;
mod logins;
mod manager;
mod program;
mod sources;
#[cfg(test)]
mod tests;
mod traces;
mod transaction;
mod work;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::files::{PRIVATE_FOLDER, make_folder};
use muster_rules::plan::{Failure, ShimReport, Slot};
use muster_topics::{
    name::{Digest, UnitName},
    packages::PackagesSpec,
    unit::{Desired, Spec},
};

use self::{apt::Apt, host::Host, instance::PackagesInstance};
use super::{
    failure::{may_heal, never},
    folders,
    given_secrets::SecretSource,
    kind::{
        AdoptedUnit, HostChanges, Instance, ProgressReporter, StartError, StartOrder, StepDeadlines, UnitKind,
        UnitTrace,
    },
    owners::Owners,
    task_log::TaskLog,
    turns::Turns,
};
use crate::{config::PackagesConfig, shim::Shims, store::Store};

/// The folder of the root in which files of packages are kept, for rollbacks.
const ARCHIVES: &str = "/var/lib/muster-packages/archives";

/// The folder of the root in which the agent keeps what it needs there.
const FOLDER: &str = "/var/lib/muster-packages";

/// A step waits up to an hour for other programs, and a distribution's upgrade on a slow disk takes as long.
const STEP_MAX: Duration = Duration::from_secs(4 * 3600);

/// The packages of this host.
pub(super) struct Packages {
    host: Arc<Host>,
    /// A folder for each unit that was begun.
    units: PathBuf,
}

impl Packages {
    pub(super) fn new(
        data_dir: &Path,
        shims: (Shims, SecretSource),
        config: &PackagesConfig,
        kept: (Store, TaskLog, Owners, Turns),
    ) -> io::Result<Self> {
        let folder = data_dir.join("packages");
        let host = Host::new(Box::new(Apt), &config.root_dir, kept, shims, &folder);
        Ok(Self { host: Arc::new(host), units: folder.join("units") })
    }

    fn folder(&self, unit: &UnitName) -> PathBuf {
        self.units.join(unit.realm().as_str()).join(unit.name().as_str())
    }

    async fn start(&self, unit: &UnitName, order: &StartOrder) -> Result<PackagesInstance, Failure> {
        let spec = packages(&order.desired.spec)?;
        let folder = self.folder(unit);
        make_folder(&folder, PRIVATE_FOLDER)
            .map_err(|error| may_heal(format!("the unit's folder cannot create {}: {error}", folder.display())))?;
        self.host.apply(unit, &order.desired.revision, spec, order.keep.as_ref()).await?;
        Ok(PackagesInstance::new(self.host.clone(), unit, &order.desired.revision, spec.clone()))
    }

    async fn adopt(&self, unit: &UnitName, slot: Slot) -> Result<AdoptedUnit, Failure> {
        if slot == Slot::Second {
            return Ok(AdoptedUnit::Nothing);
        }
        self.host.tidy_up_after_crash(unit).await?;
        let runs = self.host.store.package_runs(unit).await.map_err(|error| may_heal(error.to_string()))?;
        let Some(last) = runs.into_iter().next_back().filter(|run| run.is_done) else {
            return Ok(AdoptedUnit::Nothing);
        };
        let told = ShimReport { ready: true, ..ShimReport::default() };
        let instance = Box::new(PackagesInstance::new(self.host.clone(), unit, &last.revision, last.spec));
        Ok(AdoptedUnit::Alive { revision: last.revision, told, instance })
    }

    async fn remove(&self, unit: &UnitName) -> Result<(), Failure> {
        self.host.remove(unit).await?;
        let folder = self.folder(unit);
        folders::remove(&folder)
            .map_err(|error| may_heal(format!("the unit's folder {} cannot be removed: {error}", folder.display())))
    }
}

fn packages(spec: &Spec) -> Result<&PackagesSpec, Failure> {
    match spec {
        Spec::Packages(spec) => Ok(spec),
        Spec::Yuno(_) | Spec::Container(_) | Spec::Files(_) => {
            Err(never(format!("a {} is not a unit of packages", spec.kind())))
        }
    }
}

impl UnitKind for Packages {
    fn name(&self) -> &'static str {
        "packages"
    }

    fn deadlines(&self) -> StepDeadlines {
        StepDeadlines { install: STEP_MAX, start: STEP_MAX, remove: STEP_MAX }
    }

    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        folders::traces(&self.units)
    }

    fn kept_secrets(&self, _: &UnitName) -> Vec<String> {
        self.host.kept_passwords()
    }

    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>> {
        self.adopt(unit, slot).boxed()
    }

    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        _: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.host.prepare(unit, &desired.revision, packages(&desired.spec)?, keep).await }.boxed()
    }

    fn prepare<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        _: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.host.prepare(unit, &desired.revision, packages(&desired.spec)?, keep).await }.boxed()
    }

    fn changes<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: Option<&'a Desired>,
        keep: Option<&'a Digest>,
    ) -> BoxFuture<'a, Result<HostChanges, Failure>> {
        async move {
            let packages = match desired {
                Some(desired) => self.host.changes(unit, &desired.revision, packages(&desired.spec)?, keep).await?,
                None => self.host.changes_of_removal(unit).await?,
            };
            Ok(HostChanges { files: Vec::new(), packages })
        }
        .boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        async move { Ok(Box::new(self.start(unit, start).await?) as Box<dyn Instance>) }.boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        self.remove(unit).boxed()
    }

    fn sweep(&self, _: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        self.host.sweep_archive(folders::traces(&self.units)).boxed()
    }
}
