//! Units: keeps each as its desired state says.
//!
//! One task owns all units of the host ([`task`]). It has one loop and one event type: desired state has
//! changed, a unit has reported something, time has passed. Each event goes to the pure
//! [`muster_rules::plan::PlannedUnit`], which returns the next steps. A step is stored, published and
//! then begun on a task of its own, which reports back over a bounded channel. So no unit waits
//! for another, and the loop waits for nothing but the store.
//!
//! ```text
//! verb → store::unit::edit ─ desired_changed() ─┐
//! process, download, folder ─── report ─────────┼→ observe → plan → store, watch → step
//! 30 s, jittered, and WaitUntil ─── tick ───────┘
//! ```
//!
//! The store is read again by a tick as well, if anything was committed to it meanwhile ([`crate::store::Store::commits`]).
//!
//! Modules, in reading order: [`kind`] (the trait of a kind), [`task`] (the loop), [`entry`] (a unit in it), [`start_order`] (the order of
//! starts), [`step`] (runs the steps and watches an instance while it lives), [`health`] (probes) and [`probe`] (tries one), [`yuno`] (processes) with its [`log`], [`container`],
//! [`inside`] (the way into a container), [`files`] and [`packages`] (of the host), [`turns`] (what is changed one after the other), [`folders`], [`failure`] and [`drift`] (what kinds have in common), [`given_secrets`] (where secrets come in)
//! and [`masked`] (the border where they would go out).
//!
//! **Invariant: a unit's processes outlive this task.** When it ends it closes its connections and touches nothing.
//!
//! **Invariant: nothing is started before everything that an earlier agent started was looked up**, so there is
//! never a second copy. Units that have traces on the host but no row in the store are looked up
//! too, stopped and removed; an unreadable row counts as a row.
//!
//! **Invariant: losing the store ends no unit.** Traces older than the store are left alone, because the store
//! says nothing about them. If such a unit is applied again, its running process is adopted.
//!
//! **Invariant: an action is stored before it begins** (the phase `starting` before the start).
//!
//! **Invariant: a unit has at most one slow step at a time**, and each has a deadline.
//!
//! # Adding a kind
//!
//! 1. `topics`: a variant of `Spec` with its fields, which of them make a revision, and its name in
//!    `Spec::kind`. What all kinds have is read through `Spec`'s own methods (`topics/src/common.rs`); the compiler points to the few
//!    matches on `Spec` that are left: in `rules::edit` (validation), in `rules::plan` (its policy), in
//!    `rules::document` (how people write it) and where one is shown.
//! 2. Here: a module with an implementation of [`kind::UnitKind`], listed in [`Kinds::open`]. The rest (when to
//!    do what, what to store and what to report) is generic.
//!
//! The planner's steps also fit kinds without a process. For packages and files `install` renders and downloads, `start`
//! applies (the instance reports no process, and reports an end once somebody
//! changed what was applied, so that drift is repaired with the same back-off as a crash), and `stop` reverts
//! it. Kinds that need permission before a change (conflicts, admission) add further holds: the
//! planner keeps a unit as it is while it is held.

mod container;
mod content_watch;
mod drift;
mod entry;
mod failure;
mod files;
pub(crate) mod first_process;
mod folders;
mod given_secrets;
mod health;
mod inside;
pub(crate) mod kind;
mod kinds;
pub(crate) mod log;
mod masked;
mod owed;
mod owners;
mod packages;
mod probe;
mod start_order;
mod step;
mod task;
mod task_log;
#[cfg(test)]
mod tests;
mod together;
mod turns;
mod yuno;

use kinds::Kinds;
use muster_session::unit_state::UnitStates;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_base::clock::now_ms;
use muster_bus::sealing::HostKey;
use muster_rules::{
    CommandRefusal, edit,
    host_plan::FilePlan,
    packages::change::PackageChange,
    plan::{Failure, Slot},
};
use muster_topics::{
    channel::{Complaint, ToldStats},
    command::LogView,
    diagnostic::Diagnostic,
    name::{Digest, HostId, UnitName},
    outcome::{RefusalCode, UnitAnswer},
    signal::Signal,
    task::UnitTasks,
    unit::{Channel, Desired, Spec},
};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::container::{OtherContainer, OtherContainers, UnitContainers};
pub(super) use self::kind::InstanceRequest;
use self::{
    content_watch::ContentWatch,
    kind::{HostChanges, UnitKind, complaint},
    owed::OwedWorker,
    start_order::UnconfirmedPlaces,
    task::{REQUESTS_MAX, SignalRequest, UnitsTask},
    task_log::TaskLog,
};
pub(crate) use self::{kind::FollowFrom, log::LogPart};
use super::{
    artifact::Artifacts,
    config::{ContainersConfig, FilesConfig, PackagesConfig},
    metric::reconcile_time::ReconcileTime,
    shim::Shims,
    store::{Store, StoreError, deployment::RehearsedUnit},
};

/// Units cannot be supervised.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum UnitsError {
    /// Their desired state is unreadable.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// The folders of units cannot be used.
    #[error("the folders of units in {data_dir} cannot be used: {source}")]
    Folder {
        /// The agent's data folder.
        data_dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The longest answer of units, all together: as the longest log.
pub(super) const ANSWER_MAX_BYTES: usize = 1024 * 1024;

/// How long it may take to find out what one unit changes: lists of packages are fetched, and others at work waited for.
const PLAN_UNIT_MAX: Duration = Duration::from_secs(120);

/// What is reserved in an answer for each unit: its name, and an error in place of its own answer.
const COMPLAINT_BYTES: usize = 400;

/// Commands that may wait for answers of units at once. Each is a sleeping task.
const QUESTIONS_MAX: usize = 64;

/// Returns an answer, if there is room for it.
fn bounded(answer: Result<Value, Complaint>, left_bytes: &mut usize) -> UnitAnswer {
    let answer = match answer {
        Ok(value) => UnitAnswer::Ok(value),
        Err(why) => UnitAnswer::Error(why),
    };
    let len_bytes = serde_json::to_string(&answer).map_or(usize::MAX, |text| text.len());
    match left_bytes.checked_sub(len_bytes) {
        Some(left) => {
            *left_bytes = left;
            answer
        }
        None => UnitAnswer::Error(complaint(
            "too_large",
            Diagnostic::new(format_args!("its answer has {len_bytes} bytes, which is too long"))
                .with_hint("ask fewer units at once"),
        )),
    }
}

/// The task that supervises units. Clones share it.
#[derive(Clone)]
pub struct Units {
    changed: Arc<Notify>,
    look: Arc<Notify>,
    look_at_content: Arc<Notify>,
    requests: mpsc::Sender<SignalRequest>,
    states: watch::Receiver<UnitStates>,
    looked_up: watch::Receiver<bool>,
    reconciled: watch::Receiver<Option<ReconcileTime>>,
    unconfirmed: watch::Sender<UnconfirmedPlaces>,
    kinds: Kinds,
    questions: Arc<Semaphore>,
    containers: watch::Receiver<UnitContainers>,
    others: watch::Receiver<OtherContainers>,
}

impl std::fmt::Debug for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Units").field("states", &self.states).finish_non_exhaustive()
    }
}

impl Units {
    /// Reads all units from the store, and starts to look up their processes and to supervise them. When `shutdown` is
    /// cancelled the task ends and leaves every yuno running.
    ///
    /// # Errors
    /// If the store is unreadable or the folders of units cannot be created.
    pub async fn start(
        store: Store,
        (host, key): (HostId, HostKey),
        shims: Shims,
        artifacts: Artifacts,
        data_dir: PathBuf,
        config: (&ContainersConfig, &FilesConfig, &PackagesConfig),
        shutdown: CancellationToken,
    ) -> Result<Self, UnitsError> {
        let tasks = TaskLog::open(store.clone()).await?;
        let (shims_of_owed, owed_folder) = (shims.clone(), data_dir.join("owed"));
        let kinds = Kinds::open(&data_dir, (host, key), shims, artifacts, config, (store.clone(), tasks))
            .map_err(|source| UnitsError::Folder { data_dir, source })?;
        let units = Self::keep(store.clone(), kinds, shutdown.clone()).await?;
        let tasks = units.kinds.tasks.clone();
        let worker = OwedWorker { store, units: units.clone(), tasks, shims: shims_of_owed, folder: owed_folder };
        tokio::spawn(shutdown.run_until_cancelled_owned(owed::keep(worker)));
        Ok(units)
    }

    async fn keep(store: Store, kinds: Kinds, shutdown: CancellationToken) -> Result<Self, UnitsError> {
        let (changed, look) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (publish, states) = watch::channel(UnitStates::default());
        let (requests, asked) = mpsc::channel(REQUESTS_MAX);
        let mut task = UnitsTask::new(store, kinds.clone(), [changed.clone(), look.clone()], asked, publish);
        // The states are complete before the first reader sees them.
        task.load().await?;
        let (looked_up, reconciled, unconfirmed) = (task.looked_up(), task.reconciled(), task.unconfirmed());
        let look_at_content = Arc::new(Notify::new());
        let watch = ContentWatch {
            kinds: kinds.clone(),
            states: states.clone(),
            reports: task.reports(),
            look: look_at_content.clone(),
        };
        tokio::spawn(shutdown.clone().run_until_cancelled_owned(watch.run()));
        tokio::spawn(shutdown.clone().run_until_cancelled_owned(task.run()));
        let (list, containers) = watch::channel(UnitContainers::default());
        let (list_others, others) = watch::channel(OtherContainers::default());
        if let Some(all) = kinds.containers.clone() {
            tokio::spawn(shutdown.run_until_cancelled_owned(all.keep_list(list, list_others, states.clone())));
        }
        let questions = Arc::new(Semaphore::new(QUESTIONS_MAX));
        Ok(Self {
            changed,
            look,
            look_at_content,
            requests,
            states,
            looked_up,
            reconciled,
            unconfirmed,
            kinds,
            questions,
            containers,
            others,
        })
    }

    /// Whether instances wait until the console has confirmed that they are still placed here.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.borrow().is_empty()
    }

    /// Has these instances start: the stored document is the present one.
    pub(crate) fn confirm_places(&self) {
        self.unconfirmed.send_replace(UnconfirmedPlaces::new());
        self.look.notify_one();
    }

    /// Notifies the task that the desired state in the store has changed.
    pub fn desired_changed(&self) {
        self.changed.notify_one();
    }

    /// Downloads and checks what a unit needs of a version that is not desired yet, without touching what runs.
    ///
    /// # Errors
    /// If something is missing, or wrong.
    pub(crate) async fn prepare(&self, one: &RehearsedUnit) -> Result<(), Failure> {
        let Some(kind) = self.kinds.of(&one.desired.spec) else {
            return Err(failure::never(format!(
                "this agent cannot keep units of the kind {}",
                one.desired.spec.kind()
            )));
        };
        step::prepare(&**kind, one).await
    }

    /// Returns what a unit would change of the host, beside a process of its own; without a desired state, what its removal
    /// would. Nothing is changed.
    ///
    /// # Errors
    /// If that cannot be found out, or the unit cannot be so.
    pub(crate) async fn changes(
        &self,
        unit: &UnitName,
        spec: &Spec,
        desired: Option<&Desired>,
        keep: Option<&Digest>,
    ) -> Result<(Vec<FilePlan>, Vec<PackageChange>), Failure> {
        let Some(kind) = self.kinds.of(spec) else {
            return Err(failure::never(format!("this agent cannot keep units of the kind {}", spec.kind())));
        };
        let limit = PLAN_UNIT_MAX;
        let changes = tokio::time::timeout(limit, kind.changes(unit, desired, keep)).await;
        let late = || failure::may_heal(format!("computing the changes took longer than {} s", limit.as_secs()));
        let HostChanges { files, packages } = changes.unwrap_or_else(|_| Err(late()))?;
        Ok((files, packages))
    }

    /// Has the task examine all units now, as it does regularly.
    pub fn look(&self) {
        self.look.notify_one();
        self.look_at_content.notify_one();
    }

    /// The statistics that units have reported last.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<UnitName, ToldStats> {
        let states = self.states.borrow();
        let stats = self.kinds.iter().flat_map(|kind| kind.stats());
        let is_known_by = |(unit, slot): &(UnitName, Slot)| states.get(unit).is_some_and(|state| state.slot == *slot);
        stats.filter(|(of, _)| is_known_by(of)).map(|((unit, _), told)| (unit, told)).collect()
    }

    /// All containers of the host, as of the last list.
    #[must_use]
    pub fn containers(&self) -> watch::Receiver<UnitContainers> {
        self.containers.clone()
    }

    /// Running containers that are not units.
    #[must_use]
    pub fn other_containers(&self) -> OtherContainers {
        self.others.borrow().clone()
    }

    /// All units, now and on each change.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<UnitStates> {
        self.states.clone()
    }

    /// Notified when a task of a unit has ended; at first of those of earlier runs of the agent.
    #[must_use]
    pub fn task_ends(&self) -> watch::Receiver<()> {
        self.kinds.tasks.ended()
    }

    /// When all units were last reconciled, and how long that took.
    #[must_use]
    pub fn reconciled(&self) -> watch::Receiver<Option<ReconcileTime>> {
        self.reconciled.clone()
    }

    /// Waits until everything that an earlier run of the agent may have left running has been looked up. Failed lookups
    /// are repeated, and not waited for.
    pub async fn looked_up(&self) {
        // The task ends only when the agent does.
        let _ = self.looked_up.clone().wait_for(|looked_up| *looked_up).await;
    }

    /// Sends a signal to a unit's main process, through its shim or runtime: never to a number.
    ///
    /// # Errors
    /// If there is no such unit, it has no process, or it is not certain that the signal was delivered.
    pub async fn signal(&self, unit: &UnitName, signal: Signal) -> Result<(), CommandRefusal> {
        let ended = || CommandRefusal::new(RefusalCode::Conflict, format!("{unit} ended before {signal} was sent"));
        let (answer, answered) = oneshot::channel();
        let request = SignalRequest { unit: unit.clone(), signal, answer };
        self.requests.send(request).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }

    /// Sends a request to units, all at once, and waits for each for at most `limit`. The answer is a JSON object with
    /// a [`UnitAnswer`] for each, of at most [`ANSWER_MAX_BYTES`].
    ///
    /// # Errors
    /// If too many requests are under way.
    pub(super) async fn ask(
        &self,
        units: &[UnitName],
        ask: &InstanceRequest,
        limit: Duration,
    ) -> Result<Vec<u8>, CommandRefusal> {
        let Ok(_place) = self.questions.try_acquire() else {
            let message = format!("{QUESTIONS_MAX} commands are waiting for answers of units, the maximum");
            return Err(CommandRefusal::new(RefusalCode::Busy, message));
        };
        let units: BTreeSet<&UnitName> = units.iter().collect();
        let mut left_bytes = ANSWER_MAX_BYTES.saturating_sub(units.len() * COMPLAINT_BYTES);
        let mut asked: FuturesUnordered<_> =
            units.into_iter().map(|unit| async move { (unit, self.ask_one(unit, ask.clone(), limit).await) }).collect();
        let mut answers = BTreeMap::new();
        while let Some((unit, answer)) = asked.next().await {
            answers.insert(unit, bounded(answer, &mut left_bytes));
        }
        serde_json::to_vec(&answers).map_err(|error| CommandRefusal::new(RefusalCode::Invalid, error.to_string()))
    }

    async fn ask_one(&self, unit: &UnitName, ask: InstanceRequest, limit: Duration) -> Result<Value, Complaint> {
        let known = self.states.borrow().get(unit).map(|state| (state.spec().clone(), state.slot));
        let Some((spec, slot)) = known else { return Err(complaint("not_found", edit::unknown(unit).diagnostic)) };
        match &spec {
            Spec::Yuno(spec) if spec.channel != Channel::Lines => {
                return Err(complaint("unsupported", "its channel is not `lines`, so it takes no commands"));
            }
            Spec::Yuno(_) | Spec::Container(_) | Spec::Files(_) | Spec::Packages(_) => {}
        }
        match self.kinds.of(&spec) {
            Some(kind) => kind.ask(unit, slot, ask, limit).await,
            None => Err(complaint("unsupported", "this agent cannot keep units of this kind")),
        }
    }

    /// Returns a view of a unit's log from a position on, and where that ends; `None` if there is nothing new yet.
    ///
    /// # Errors
    /// If there is no such unit, or its log is unreadable.
    pub(crate) async fn log(
        &self,
        unit: &UnitName,
        from: FollowFrom,
        view: LogView,
    ) -> Result<LogPart, CommandRefusal> {
        self.kind(unit)?.log(unit, from, view).await.map_err(|error| unreadable(unit, &error))
    }

    /// Returns the tasks of a unit, also of one that is gone, with the log of one from a position on: a [`UnitTasks`] in JSON.
    ///
    /// # Errors
    /// If there is no such unit and it has left no task, there is no such task, or the store fails.
    pub async fn tasks(&self, unit: &UnitName, log: Option<u64>, from: u64) -> Result<Vec<u8>, CommandRefusal> {
        let failed = |error: StoreError| {
            CommandRefusal::new(RefusalCode::Conflict, format!("the tasks of {unit} cannot be read: {error}"))
        };
        let tasks = self.kinds.tasks.of(unit).await.map_err(failed)?;
        if tasks.is_empty() && !self.states.borrow().contains_key(unit) {
            return Err(edit::unknown(unit));
        }
        let log = match log {
            None => None,
            Some(number) => match self.kinds.tasks.log(unit, number, from).await.map_err(failed)? {
                Some(part) => Some(part),
                None => {
                    let message = Diagnostic::new(format_args!("{unit} has no task {number}, or it was dropped"))
                        .with_hint(format_args!("`muster unit tasks {unit}` lists its tasks"));
                    return Err(CommandRefusal::new(RefusalCode::NotFound, message));
                }
            },
        };
        let owed = self.kinds.tasks.owed().await.map_err(failed)?;
        let owed = owed.iter().filter(|one| one.unit == *unit).map(|one| owed::told(one, now_ms())).collect();
        serde_json::to_vec(&UnitTasks { tasks, owed, log })
            .map_err(|error| CommandRefusal::new(RefusalCode::Invalid, error.to_string()))
    }

    fn kind(&self, unit: &UnitName) -> Result<Arc<dyn UnitKind>, CommandRefusal> {
        let kind = self.states.borrow().get(unit).and_then(|state| self.kinds.of(&state.desired.spec).cloned());
        kind.ok_or_else(|| edit::unknown(unit))
    }

    /// Returns the configuration that a unit reads, as stored on this host: an
    /// [`Effective`](muster_topics::effective::Effective) in JSON.
    ///
    /// # Errors
    /// If there is no such unit, or it has no configuration yet.
    pub async fn effective(&self, unit: &UnitName) -> Result<Vec<u8>, CommandRefusal> {
        let state = self.states.borrow().get(unit).cloned().ok_or_else(|| edit::unknown(unit))?;
        let kind = self.kinds.of(&state.desired.spec).cloned().ok_or_else(|| edit::unknown(unit))?;
        let effective = kind.effective(unit, state.slot, &state.desired.revision).await;
        effective.and_then(|effective| Ok(serde_json::to_vec(&effective)?)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                CommandRefusal::new(RefusalCode::NotFound, format!("{unit} has no configs on this host yet"))
            }
            _ => CommandRefusal::new(RefusalCode::NotFound, format!("the config of {unit} cannot be read: {error}")),
        })
    }
}

fn unreadable(unit: &UnitName, error: &io::Error) -> CommandRefusal {
    CommandRefusal::new(RefusalCode::NotFound, format!("the log of {unit} cannot be read: {error}"))
}
