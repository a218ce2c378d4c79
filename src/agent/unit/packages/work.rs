//! The steps of a unit of packages: what is checked and downloaded before, what is done, and what is undone when the unit goes.

use std::{collections::VecDeque, fs, time::Duration};

use muster_base::{
    clock::now_ms,
    crash,
    files::{PUBLIC_MODE, write_atomically},
    mount::remove_folder,
};
use muster_rules::{
    packages::{
        change::{PackageChange, listed},
        installed::InstalledPackages,
        target::{self, PackageTarget},
    },
    plan::Failure,
};
use muster_topics::count::counted;
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    packages::PackagesSpec,
    task::TaskAction,
};

use super::{
    FOLDER,
    goal::{Goal, folded},
    host::Host,
    manager::{Job, Program, SourceFolders},
    transaction::RunNote,
};
use crate::{
    store::{
        StoreError,
        packages::{PackageRun, PackageTrace},
    },
    unit::{
        failure::{may_heal, never},
        task_log::{RunningTask, TaskEnd},
        turns::ResourceClass,
    },
};

/// A simulation reads the lists of all repositories: seconds on a slow disk.
pub(super) const SIMULATE_MAX: Duration = Duration::from_secs(300);
/// The lists of a distribution are some ten megabytes.
const REFRESH_MAX: Duration = Duration::from_secs(900);
const DOWNLOAD_MAX: Duration = Duration::from_secs(3600);

/// After this time lists are fetched again before anything is installed.
const REFRESHED_MAX: Duration = Duration::from_secs(3600);

/// A unit's revision, as its steps need it.
#[derive(Clone, Copy)]
struct Of<'a> {
    unit: &'a UnitName,
    revision: &'a Digest,
    spec: &'a PackagesSpec,
}

/// What is to be done, and what that would change.
struct Decision {
    goal: Goal,
    job: Job,
    changes: Vec<PackageChange>,
}

fn stored<T>(result: Result<T, StoreError>) -> Result<T, Failure> {
    result.map_err(|error| may_heal(Diagnostic::of(&error)))
}

impl Host {
    /// Checks what a revision would change, and downloads what it needs.
    pub(super) async fn prepare(
        &self,
        unit: &UnitName,
        revision: &Digest,
        spec: &PackagesSpec,
        keep: Option<&Digest>,
    ) -> Result<(), Failure> {
        self.check(spec)?;
        let of = Of { unit, revision, spec };
        let _turn = self.turns.take(ResourceClass::Packages).await;
        self.come_to_rest(of).await?;
        let staged = self.stage_sources(unit, spec).await?;
        let goal = self.goal(of, keep).await?;
        if goal.targets.is_empty() {
            return Ok(());
        }
        self.wait_for_others(unit, revision).await?;
        let about = format!("{} of the revision", counted(goal.targets.len(), "package"));
        let task = self.begin(unit, revision, TaskAction::Validate, about).await?;
        let checked = self.check_and_download(of, goal, staged.folders.as_ref(), &task).await;
        let end = checked.as_ref().map(|message| TaskEnd { is_changed: false, message: Some(message.clone()) });
        self.end(task, end.map_err(|failure| failure.error.clone())).await?;
        checked.map(drop)
    }

    async fn check_and_download(
        &self,
        of: Of<'_>,
        goal: Goal,
        staged: Option<&SourceFolders>,
        task: &RunningTask,
    ) -> Result<String, Failure> {
        self.make_archive()?;
        let tell = |line: &str| task.line(line);
        let Decision { job, changes, .. } = self.decide_with_lists(of, goal, staged, &tell).await?;
        for change in &changes {
            task.line(&format!("would {change}"));
        }
        if changes.iter().any(|change| !change.is_removal()) {
            let said = self.run(&self.adapter.download(&job), DOWNLOAD_MAX, &tell).await?;
            if !said.is_ok {
                let fault = self.adapter.explain(&said.all());
                return Err(Failure { error: fault.diagnostic, may_heal: fault.may_heal });
            }
        }
        self.keep_files(&changes, task).await?;
        Ok(if changes.is_empty() { "nothing to change".to_owned() } else { format!("would {}", listed(&changes)) })
    }

    /// Decides with lists of repositories that are fetched again if they are old, or something is missing.
    async fn decide_with_lists(
        &self,
        of: Of<'_>,
        goal: Goal,
        staged: Option<&SourceFolders>,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Decision, Failure> {
        let sources = self.sources_mark(staged);
        let was_fresh = self.was_refreshed(&sources, REFRESHED_MAX);
        let mut refreshed = if was_fresh { Ok(()) } else { self.refresh(of, staged, &sources, tell).await? };
        let decided = match self.decide(of, goal.clone(), staged).await {
            // What is missing may have come since.
            Err(failure) if was_fresh => {
                tell(&format!("{:#}", failure.error));
                refreshed = self.refresh(of, staged, &sources, tell).await?;
                self.decide(of, goal, staged).await
            }
            decided => decided,
        };
        // Lists that could not be fetched matter only if something is missing.
        decided.map_err(|failure| match refreshed {
            Ok(()) => failure,
            Err(why) => may_heal(failure.error.and(why.within("the repositories could not be read"))),
        })
    }

    /// Returns what a revision would change, by the package manager's simulation; nothing is downloaded but lists.
    pub(super) async fn changes(
        &self,
        unit: &UnitName,
        revision: &Digest,
        spec: &PackagesSpec,
        keep: Option<&Digest>,
    ) -> Result<Vec<PackageChange>, Failure> {
        self.check(spec)?;
        let of = Of { unit, revision, spec };
        let _turn = self.turns.take(ResourceClass::Packages).await;
        let staged = self.stage_sources(unit, spec).await?;
        let goal = self.goal(of, keep).await?;
        if goal.targets.is_empty() {
            return Ok(Vec::new());
        }
        self.make_archive()?;
        Ok(sorted(self.decide_with_lists(of, goal, staged.folders.as_ref(), &|_| ()).await?.changes))
    }

    /// Returns what would be removed if a unit went.
    pub(super) async fn changes_of_removal(&self, unit: &UnitName) -> Result<Vec<PackageChange>, Failure> {
        let runs = stored(self.store.package_runs(unit).await)?;
        let Some(last) = runs.last() else { return Ok(Vec::new()) };
        self.check(&last.spec)?;
        let _turn = self.turns.take(ResourceClass::Packages).await;
        let others = self.owners.packages_of_others(unit);
        let leaving = Goal::leaving(&runs, &self.installed().await?, &others);
        let names = self.free_to_go(last.spec.purge, leaving, &|_| ()).await?;
        match names.is_empty() {
            true => Ok(Vec::new()),
            false => Ok(sorted(self.simulate(&removal(last.spec.purge, &names)).await?)),
        }
    }

    /// Brings the packages to a revision.
    pub(super) async fn apply(
        &self,
        unit: &UnitName,
        revision: &Digest,
        spec: &PackagesSpec,
        keep: Option<&Digest>,
    ) -> Result<(), Failure> {
        self.check(spec)?;
        let of = Of { unit, revision, spec };
        let _turn = self.turns.take(ResourceClass::Packages).await;
        self.come_to_rest(of).await?;
        self.fold(unit, keep).await?;
        let staged = self.stage_sources(unit, spec).await?;
        self.write_repositories(unit, &staged.files, &staged.logins).await?;
        self.make_archive()?;
        let goal = self.goal(of, keep).await?;
        let undone = goal.undone.clone();
        if goal.targets.is_empty() {
            stored(self.store.begin_package_run(unit, revision, spec, &[]).await)?;
        } else {
            self.wait_for_others(unit, revision).await?;
            self.change(of, goal).await?;
        }
        self.set_holds(of).await?;
        let found = self.found(spec).await?;
        if !found.drift.is_empty() {
            return Err(may_heal(format!("the package manager succeeded, but {}", found.drift.join(", "))));
        }
        let runs = stored(self.store.package_runs(unit).await)?;
        let (undone, mut kept): (Vec<PackageRun>, Vec<PackageRun>) =
            runs.into_iter().partition(|run| undone.contains(&run.number));
        let Some(mut last) = kept.pop() else { return Err(may_heal("the record of the changes is missing")) };
        // What an interrupted attempt has changed counts as well.
        while let Some(before) = kept.pop().filter(|run| !run.is_done && run.revision == *revision) {
            last.changes = folded(&[before, last.clone()]);
        }
        let owed = last.owes();
        // What was undone, and the undoing of it, leave nothing.
        let changes = folded(&undone.iter().chain([&last]).cloned().collect::<Vec<_>>());
        last.changes = changes;
        stored(self.store.end_package_run(unit, &last, (&undone, &owed), now_ms()).await)
    }

    /// Makes the changes of a goal.
    async fn change(&self, of: Of<'_>, goal: Goal) -> Result<(), Failure> {
        let sources = self.sources_mark(None);
        let decided = match self.decide(of, goal.clone(), None).await {
            // Somebody else may have fetched lists without the unit's repositories since.
            Err(_) => {
                let _ = self.refresh(of, None, &sources, &|_| ()).await?;
                self.decide(of, goal, None).await
            }
            decided => decided,
        };
        let Decision { job, changes, goal } = decided?;
        stored(self.store.begin_package_run(of.unit, of.revision, of.spec, &changes).await)?;
        if changes.is_empty() {
            return Ok(());
        }
        let is_removal = changes.iter().all(PackageChange::is_removal);
        let action = if is_removal { TaskAction::Uninstall } else { TaskAction::Install };
        let back = if goal.is_back { "back: " } else { "" };
        let task = self.begin(of.unit, of.revision, action, format!("{back}{}", listed(&changes))).await?;
        let done = self.do_job(of, &job, &changes, action, &task).await;
        let end = done.as_ref().map(|()| TaskEnd { is_changed: true, message: Some(listed(&changes)) });
        self.end(task, end.map_err(|failure| failure.error.clone())).await?;
        done
    }

    async fn do_job(
        &self,
        of: Of<'_>,
        job: &Job,
        changes: &[PackageChange],
        action: TaskAction,
        task: &RunningTask,
    ) -> Result<(), Failure> {
        self.keep_files(changes, task).await?;
        if of.spec.no_start {
            self.forbid_services(of.unit, task).await?;
        }
        crash::point("packages", "before they change");
        let done = self.run_all(of, &self.adapter.apply(job), action, &listed(changes), task).await;
        crash::point("packages", "after they changed");
        self.allow_services(of.unit).await?;
        done
    }

    /// Runs programs that change packages, until one fails.
    async fn run_all(
        &self,
        of: Of<'_>,
        programs: &[Program],
        action: TaskAction,
        about: &str,
        task: &RunningTask,
    ) -> Result<(), Failure> {
        let note = RunNote { unit: of.unit.clone(), revision: of.revision.clone(), action, about: about.to_owned() };
        for program in programs {
            task.line(&format!("$ {}", program.0.join(" ")));
            let tell = |line: &str| task.line(line);
            let end = self.transactions.run(&self.root, &*self.adapter, program, &note, &tell).await?;
            if !end.is_ok() {
                // What apt refuses now it has refused for what somebody else has done meanwhile.
                return Err(may_heal(self.adapter.explain(&end.tail).diagnostic));
            }
        }
        Ok(())
    }

    /// Sees what was begun before to its end, and repairs what was interrupted.
    async fn come_to_rest(&self, of: Of<'_>) -> Result<(), Failure> {
        self.follow_left().await?;
        self.allow_services(of.unit).await?;
        let broken = |installed: &InstalledPackages| {
            let names = installed.broken().map(|(name, _)| name.to_owned());
            names.filter(|name| !name.contains(':')).collect::<Vec<_>>()
        };
        let before = broken(&self.installed().await?);
        if before.is_empty() && !self.was_interrupted() {
            return Ok(());
        }
        self.wait_for_others(of.unit, of.revision).await?;
        let about = match before.is_empty() {
            true => "an interrupted run of the package manager".to_owned(),
            false => format!("packages that are not configured: {}", before.join(", ")),
        };
        let task = self.begin(of.unit, of.revision, TaskAction::Repair, about.clone()).await?;
        let mut end = Ok(());
        let mut programs: VecDeque<Program> = self.adapter.repair().into();
        let mut has_unpacked = false;
        while let Some(program) = programs.pop_front() {
            end = self.run_all(of, &[program], TaskAction::Repair, &about, &task).await;
            let installed = self.installed().await?;
            let left = broken(&installed);
            if left.is_empty() && !self.was_interrupted() {
                end = Ok(());
                break;
            }
            let half = left.into_iter().filter(|name| installed.get(name).is_some_and(|there| there.needs_unpacking));
            let half: Vec<String> = half.collect();
            // The package manager itself takes such a package for installed.
            if programs.is_empty() && !half.is_empty() && !std::mem::replace(&mut has_unpacked, true) {
                programs.push_back(self.adapter.unpack_again(&half));
            }
        }
        // A package that cannot be configured may be just what the unit replaces.
        let end = end.map(|()| TaskEnd { is_changed: true, message: None }).map_err(|failure| failure.error);
        self.end(task, end).await
    }

    /// Follows a run that was begun before the agent was started, or by a step that was given up.
    async fn follow_left(&self) -> Result<(), Failure> {
        let Some(RunNote { unit, revision, action, about }) = self.transactions.left() else { return Ok(()) };
        let task = self.begin(&unit, &revision, action, format!("{about} (interrupted)")).await?;
        let tell = |line: &str| task.line(line);
        let end = match self.transactions.follow_left(&tell).await? {
            None => Ok(TaskEnd { is_changed: false, message: Some("it did not begin".to_owned()) }),
            Some(end) if end.is_ok() => Ok(TaskEnd { is_changed: true, message: Some(about) }),
            Some(end) => Err(self.adapter.explain(&end.tail).diagnostic),
        };
        self.end(task, end).await
    }

    /// Undoes what is for the time of a run alone, if that has ended.
    pub(super) async fn tidy_up_after_crash(&self, unit: &UnitName) -> Result<(), Failure> {
        if self.transactions.is_under_way().await { Ok(()) } else { self.allow_services(unit).await }
    }

    async fn goal(&self, of: Of<'_>, keep: Option<&Digest>) -> Result<Goal, Failure> {
        let runs = stored(self.store.package_runs(of.unit).await)?;
        let (installed, others) = (self.installed().await?, self.owners.packages_of_others(of.unit));
        Ok(Goal::of((of.revision, of.spec), keep, &runs, &installed, &others))
    }

    /// Makes one run of those that led to the verified revision.
    async fn fold(&self, unit: &UnitName, keep: Option<&Digest>) -> Result<(), Failure> {
        let runs = stored(self.store.package_runs(unit).await)?;
        let is_verified = |run: &PackageRun| run.is_done && Some(&run.revision) == keep;
        let Some(last) = runs.iter().rposition(is_verified).filter(|last| *last > 0) else { return Ok(()) };
        let before: Vec<u64> = runs[..last].iter().map(|run| run.number).collect();
        stored(self.store.fold_package_runs(runs[last].number, &before, &folded(&runs[..=last])).await)
    }

    /// Has the package manager say what it would do for a goal, and refuses what is not allowed.
    async fn decide(&self, of: Of<'_>, goal: Goal, staged: Option<&SourceFolders>) -> Result<Decision, Failure> {
        let removable: Vec<String> = of.spec.absent.iter().chain(&goal.removable).cloned().collect();
        let permission = goal.permission(of.spec, &removable);
        let file = |target: &PackageTarget| match target {
            PackageTarget::Version(name, version) if goal.is_back => {
                Some((name.clone(), self.kept_file(name, version)?))
            }
            _ => None,
        };
        let mut job = Job {
            targets: goal.targets.clone(),
            files: goal.targets.iter().filter_map(file).collect(),
            purge: of.spec.purge,
            sources: staged.cloned(),
            ..Job::default()
        };
        let changes = self.simulate(&job).await?;
        let installed = self.installed().await?;
        permission.check(&changes, &installed).map_err(never)?;
        job.may_downgrade = permission.downgrade;
        job.may_remove = changes.iter().any(PackageChange::is_removal);
        job.may_change_held = changes.iter().any(|change| installed.is_held(&change.name));
        Ok(Decision { goal, job, changes })
    }

    async fn simulate(&self, job: &Job) -> Result<Vec<PackageChange>, Failure> {
        let said = self.run(&self.adapter.simulate(job), SIMULATE_MAX, &|_| ()).await?;
        if said.is_ok {
            return Ok(self.adapter.read_changes(&said.stdout));
        }
        let fault = self.adapter.explain(&said.all());
        Err(Failure { error: fault.diagnostic, may_heal: fault.may_heal })
    }

    /// Whether lists of these sources were fetched by an agent in this time.
    fn was_refreshed(&self, sources: &str, within: Duration) -> bool {
        let stamp = self.root.path(FOLDER).join("refreshed");
        let is_same = fs::read_to_string(&stamp).is_ok_and(|text| text == sources);
        let age = fs::metadata(&stamp).and_then(|about| about.modified()).map(|at| at.elapsed());
        is_same && age.is_ok_and(|age| age.is_ok_and(|age| age < within))
    }

    /// Fetches lists. A repository of the unit that cannot be read is an error; others are the inner one.
    async fn refresh(
        &self,
        of: Of<'_>,
        staged: Option<&SourceFolders>,
        sources: &str,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Result<(), Diagnostic>, Failure> {
        let said = self.run(&self.adapter.refresh(staged), REFRESH_MAX, tell).await?;
        let all = said.all();
        let faults: String =
            all.lines().filter(|line| line.starts_with("E:") || line.starts_with("W:")).collect::<Vec<_>>().join("\n");
        let is_units =
            of.spec.repositories.values().any(|repository| faults.contains(repository.url.trim_end_matches('/')));
        if is_units {
            return Err(may_heal(self.adapter.explain(&all).diagnostic));
        }
        if !said.is_ok {
            return Ok(Err(self.adapter.explain(&all).diagnostic));
        }
        let stamp = self.root.path(FOLDER).join("refreshed");
        write_atomically(&stamp, sources.as_bytes(), PUBLIC_MODE)
            .map_err(|error| may_heal(format!("{} cannot be written: {error}", stamp.display())))?;
        Ok(Ok(()))
    }

    /// Sets the holds of a revision, and removes those that an earlier one has set.
    async fn set_holds(&self, of: Of<'_>) -> Result<(), Failure> {
        let installed = self.installed().await?;
        let wanted = of.spec.hold.iter().filter(|name| installed.version(name).is_some());
        let new: Vec<String> = wanted.filter(|name| !installed.is_held(name)).cloned().collect();
        for name in &new {
            self.add_trace(of.unit, &PackageTrace::Hold(name.clone())).await?;
        }
        self.hold(&new, true).await?;
        let old = self.holds(of.unit).await?.into_iter().filter(|name| !of.spec.hold.contains(name));
        self.remove_holds(of.unit, old.collect()).await
    }

    async fn remove_holds(&self, unit: &UnitName, names: Vec<String>) -> Result<(), Failure> {
        let installed = self.installed().await?;
        let held: Vec<String> = names.iter().filter(|name| installed.is_held(name)).cloned().collect();
        self.hold(&held, false).await?;
        for name in names {
            self.forget_trace(unit, &PackageTrace::Hold(name)).await?;
        }
        Ok(())
    }

    async fn hold(&self, names: &[String], is_held: bool) -> Result<(), Failure> {
        if names.is_empty() {
            return Ok(());
        }
        let said = self.query(&self.adapter.hold(names, is_held)).await?;
        if said.is_ok {
            return Ok(());
        }
        Err(may_heal(self.adapter.explain(&said.all()).diagnostic.within("holds cannot be changed")))
    }

    /// Undoes everything that a unit has done.
    pub(super) async fn remove(&self, unit: &UnitName) -> Result<(), Failure> {
        let runs = stored(self.store.package_runs(unit).await)?;
        let traces = stored(self.store.package_traces(unit).await)?;
        let Some(last) = runs.last() else {
            if !traces.is_empty() {
                self.remove_files(unit).await?;
            }
            return stored(self.store.forget_packages(unit).await);
        };
        let of = Of { unit, revision: &last.revision, spec: &last.spec };
        self.check(of.spec)?;
        let _turn = self.turns.take(ResourceClass::Packages).await;
        self.come_to_rest(of).await?;
        self.wait_for_others(unit, of.revision).await?;
        self.remove_holds(unit, self.holds(unit).await?).await?;
        self.uninstall(of, &runs).await?;
        self.remove_files(unit).await?;
        let staged = self.root.path(&format!("{FOLDER}/staged/{}.{}", unit.realm(), unit.name()));
        remove_folder(&staged).map_err(|error| {
            may_heal(Diagnostic::of_error(&error).within(format_args!("{} cannot be removed", staged.display())))
        })?;
        stored(self.store.forget_packages(unit).await)
    }

    /// Removes the packages that a unit has brought, as far as nobody else needs them.
    async fn uninstall(&self, of: Of<'_>, runs: &[PackageRun]) -> Result<(), Failure> {
        let others = self.owners.packages_of_others(of.unit);
        let leaving = Goal::leaving(runs, &self.installed().await?, &others);
        if leaving.is_empty() {
            return Ok(());
        }
        let task =
            self.begin(of.unit, of.revision, TaskAction::Uninstall, format!("remove {}", leaving.join(", "))).await?;
        let done = self.uninstall_these(of, leaving, &task).await;
        let end = done.as_ref().map(|gone| TaskEnd { is_changed: !gone.is_empty(), message: Some(gone.clone()) });
        self.end(task, end.map_err(|failure| failure.error.clone())).await?;
        done.map(drop)
    }

    async fn uninstall_these(&self, of: Of<'_>, leaving: Vec<String>, task: &RunningTask) -> Result<String, Failure> {
        let names = self.free_to_go(of.spec.purge, leaving, &|line| task.line(line)).await?;
        if names.is_empty() {
            return Ok(String::new());
        }
        let job = removal(of.spec.purge, &names);
        let changes = self.simulate(&job).await?;
        self.run_all(of, &self.adapter.apply(&job), TaskAction::Uninstall, &listed(&changes), task).await?;
        let left = target::drift(&PackagesSpec { absent: names, ..PackagesSpec::new() }, &self.installed().await?);
        if left.is_empty() { Ok(listed(&changes)) } else { Err(may_heal(left.join(", "))) }
    }

    /// Returns those of some packages that no other one needs.
    async fn free_to_go(
        &self,
        purge: bool,
        leaving: Vec<String>,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Vec<String>, Failure> {
        let needed_by = |changes: &[PackageChange], names: &[String]| {
            let others = changes.iter().filter(|change| change.is_removal() && !names.contains(&change.name));
            others.map(|change| change.name.clone()).collect::<Vec<_>>()
        };
        // Usually nobody else needs any of them; otherwise they are tried one by one.
        if leaving.is_empty() || needed_by(&self.simulate(&removal(purge, &leaving)).await?, &leaving).is_empty() {
            return Ok(leaving);
        }
        let mut free = Vec::new();
        for name in leaving {
            free.push(name);
            let needed = needed_by(&self.simulate(&removal(purge, &free)).await?, &free);
            if !needed.is_empty() {
                let stays = free.pop().unwrap_or_default();
                tell(&format!("{stays} is kept: {} needs it", needed.join(", ")));
            }
        }
        Ok(free)
    }
}

/// The job of removing packages.
fn removal(purge: bool, names: &[String]) -> Job {
    let targets = names.iter().cloned().map(PackageTarget::Absent).collect();
    Job { targets, may_remove: true, purge, ..Job::default() }
}

fn sorted(mut changes: Vec<PackageChange>) -> Vec<PackageChange> {
    changes.sort_by(|one, other| one.name.cmp(&other.name));
    changes
}
