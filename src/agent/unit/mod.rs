//! Units: keeping each as it should be.
//!
//! One task owns all units of the host ([`task`]). It has one loop and one `Event`: desired state has
//! changed, something has become of a unit, time has passed. Whatever happens is told to the pure
//! [`crate::rules::plan::Unit`], which says what to do next. What it says is written down, published and
//! then begun, each step on a task of its own that reports back over a bounded channel; so no unit waits
//! for another, and the loop waits for nothing but the store.
//!
//! ```text
//! verb → store::unit::edit ─ desired_changed() ─┐
//! process, download, folder ─── report ─────────┼→ Unit::observe → Unit::plan → store, watch → step
//! 30 s, jittered, and WaitUntil ─── tick ───────┘
//! ```
//!
//! Modules, in reading order: [`kind`] (what a kind has to be able to do), [`task`] (the loop), [`entry`] (what it has of a unit), [`turn`] (in which
//! order they start), [`step`] (the steps, and what hears from an instance while it lives), [`health`] (the probes) and [`probe`] (trying one), [`yuno`] (the first kind) with its [`log`], [`container`] (the second),
//! [`inside`] (the way into one of them), [`folders`] and [`failure`] (what kinds have in common).
//!
//! **Invariant: a unit's processes outlive this task.** When it ends it drops its connections and touches nothing.
//!
//! **Invariant: nothing is started before what an earlier life started was looked up**, so there is
//! never a second copy. Units of which there are traces on the host but no row in the store are looked up
//! too, stopped and removed; a row that cannot be read counts as a row.
//!
//! **Invariant: a store that was lost ends no unit.** Traces that are older than the store are left alone: it
//! says nothing of them. Applied again, such a unit is found again as it runs.
//!
//! **Invariant: what is about to be done is written down first** (the phase `starting` before the start).
//!
//! **Invariant: there is one slow step at a time per unit**, and each has a deadline.
//!
//! # How a further kind comes in
//!
//! 1. `topics`: a variant of `Spec` with its fields, those of them that make a revision, and its name in
//!    `Spec::kind`. What all kinds have is read through `Spec`'s own methods (`topics/src/common.rs`); the compiler points to the few
//!    matches on `Spec` that are left: in `rules::edit` (what is checked), in `rules::plan` (its `Policy`), in
//!    `rules::document` (how people write it down) and where one is shown.
//! 2. Here: a module with an implementation of [`kind::Kind`], listed in [`Kinds::open`]. Everything else, which
//!    is when to do what, what to write down and what to tell, is there.
//!
//! The planner's words fit what has no process as well. For packages and files `install` renders and fetches, `start`
//! puts into effect (and the instance reports no process, but one that "ended" once it finds that somebody
//! changed what it had put there, so that drift is mended with the same waits as a crash), and `stop` takes
//! it back. What asks others for leave before a change (conflicts, admission) comes as further holds: the
//! planner keeps what is while it is held.

mod container;
mod entry;
mod failure;
mod folders;
mod health;
mod inside;
mod kind;
mod log;
mod probe;
mod step;
mod task;
#[cfg(test)]
mod tests;
mod turn;
mod yuno;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_topics::{
    channel::{Complaint, ToldStats},
    command::LogView,
    name::{HostId, UnitName},
    outcome::{RefusalCode, UnitAnswer},
    signal::Signal,
    snapshot::Pins,
    unit::{Channel, Desired, Hold, Observed, Spec},
};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::container::{Listed, Other, Others};
pub(super) use self::kind::Ask;
use self::{
    container::Containers,
    kind::{Kind, complaint},
    task::{REQUESTS_MAX, Request, Task},
    yuno::Yunos,
};
pub(in crate::agent) use self::{inside::FirstProcess, kind::LogFrom, log::Part};
use super::{
    artifact::Artifacts,
    config::ContainersConfig,
    metric::Reconciled,
    shim::Shims,
    store::{Store, StoreError},
};
use crate::rules::{Refusal, edit, plan::Slot};

/// One unit, as it should be and as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// What it should be; what it should have been last, of one that is forgotten and not yet removed.
    pub desired: Desired,
    /// What it has gone back to, if it has.
    pub spec: Option<Arc<Spec>>,
    /// What it is.
    pub observed: Observed,
    /// Why it is, on purpose, not converging.
    pub hold: Option<Hold>,
    /// What snapshots need of it beyond what it should be.
    pub pins: Pins,
    /// Where the instance that it is known by has what is its own.
    pub slot: Slot,
    /// The process that runs now, for metrics: process id and start time in clock ticks since boot.
    pub process: Option<(i32, u64)>,
}

impl UnitState {
    /// What it runs as, or would.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        self.spec.as_deref().unwrap_or(&self.desired.spec)
    }
}

/// All units of this host.
pub type UnitStates = Arc<BTreeMap<UnitName, UnitState>>;

/// Units cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// What they should be cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folders for what they are made of cannot be used.
    #[error("the folders of units in {data_dir} cannot be used: {source}")]
    Folder {
        /// The agent's data folder.
        data_dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The longest answer of units, all together: what the longest log may be.
pub(super) const ANSWER_MAX_BYTES: usize = 1024 * 1024;

/// What is kept free in an answer for each unit: its name, and why its own answer is not there.
const COMPLAINT_BYTES: usize = 400;

/// Commands that may wait for answers of units at once. Each is a task that sleeps.
const QUESTIONS_MAX: usize = 64;

/// An answer, if there is room for it.
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
            format!("it has answered {len_bytes} bytes, which is more than there is room for. hint: ask fewer at once"),
        )),
    }
}

/// All kinds that there are.
#[derive(Clone)]
struct Kinds {
    all: Arc<[Arc<dyn Kind>]>,
    /// One of them, which knows of more than units.
    containers: Option<Arc<Containers>>,
}

impl Kinds {
    fn open(
        data_dir: &std::path::Path,
        host: HostId,
        shims: Shims,
        artifacts: Artifacts,
        containers: &ContainersConfig,
    ) -> io::Result<Self> {
        let containers = Arc::new(Containers::new(data_dir, host, artifacts.clone(), shims.clone(), containers)?);
        let yunos = Yunos::new(data_dir, host, artifacts, shims, containers.clone())?;
        // Yunos come last: when they give back artifacts, all others have said what they need.
        Ok(Self { all: Arc::new([containers.clone(), Arc::new(yunos)]), containers: Some(containers) })
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<dyn Kind>> {
        self.all.iter()
    }

    /// The kind of a spec.
    fn of(&self, spec: &Spec) -> Option<&Arc<dyn Kind>> {
        self.iter().find(|kind| kind.name() == spec.kind())
    }
}

/// The task that keeps units; a handle that can be cloned.
#[derive(Clone)]
pub struct Units {
    changed: Arc<Notify>,
    look: Arc<Notify>,
    requests: mpsc::Sender<Request>,
    states: watch::Receiver<UnitStates>,
    looked_up: watch::Receiver<bool>,
    reconciled: watch::Receiver<Option<Reconciled>>,
    kinds: Kinds,
    questions: Arc<Semaphore>,
    containers: watch::Receiver<Listed>,
    others: watch::Receiver<Others>,
}

impl std::fmt::Debug for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Units").field("states", &self.states).finish_non_exhaustive()
    }
}

impl Units {
    /// Reads all units from the store, and begins to find their processes again and to keep them.
    /// When `shutdown` is cancelled the task ends and leaves every yuno running.
    ///
    /// # Errors
    /// If the store cannot be read or the folders of units cannot be made.
    pub async fn start(
        store: Store,
        host: HostId,
        shims: Shims,
        artifacts: Artifacts,
        (data_dir, containers): (PathBuf, &ContainersConfig),
        shutdown: CancellationToken,
    ) -> Result<Self, UnitsError> {
        let kinds = Kinds::open(&data_dir, host, shims, artifacts, containers)
            .map_err(|source| UnitsError::Folder { data_dir, source })?;
        Self::keep(store, kinds, shutdown).await
    }

    async fn keep(store: Store, kinds: Kinds, shutdown: CancellationToken) -> Result<Self, UnitsError> {
        let (changed, look) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (publish, states) = watch::channel(UnitStates::default());
        let (requests, asked) = mpsc::channel(REQUESTS_MAX);
        let mut task = Task::new(store, kinds.clone(), [changed.clone(), look.clone()], asked, publish);
        // Before anybody hears of units there are those that the store knows.
        task.load().await?;
        let (looked_up, reconciled) = (task.looked_up(), task.reconciled());
        tokio::spawn(shutdown.clone().run_until_cancelled_owned(task.run()));
        let (list, containers) = watch::channel(Listed::default());
        let (list_others, others) = watch::channel(Others::default());
        if let Some(all) = kinds.containers.clone() {
            tokio::spawn(shutdown.run_until_cancelled_owned(all.keep_list(list, list_others, states.clone())));
        }
        let questions = Arc::new(Semaphore::new(QUESTIONS_MAX));
        Ok(Self { changed, look, requests, states, looked_up, reconciled, kinds, questions, containers, others })
    }

    /// Tells the task that desired state in the store has changed.
    pub fn desired_changed(&self) {
        self.changed.notify_one();
    }

    /// Has the task look at all units now, as it does by itself every now and then.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// The numbers that units have told last of their own accord.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<UnitName, ToldStats> {
        let states = self.states.borrow();
        let stats = self.kinds.iter().flat_map(|kind| kind.stats());
        let is_known_by = |(unit, slot): &(UnitName, Slot)| states.get(unit).is_some_and(|state| state.slot == *slot);
        stats.filter(|(of, _)| is_known_by(of)).map(|((unit, _), told)| (unit, told)).collect()
    }

    /// All containers of the host, units or not, as they were when they were last listed.
    #[must_use]
    pub fn containers(&self) -> watch::Receiver<Listed> {
        self.containers.clone()
    }

    /// Those of them that run and are no units.
    #[must_use]
    pub fn other_containers(&self) -> Others {
        self.others.borrow().clone()
    }

    /// All units, now and on each change.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<UnitStates> {
        self.states.clone()
    }

    /// When all units were last looked at, and how long that took.
    #[must_use]
    pub fn reconciled(&self) -> watch::Receiver<Option<Reconciled>> {
        self.reconciled.clone()
    }

    /// Waits until everything that an earlier life of the agent may have left running has been looked up. What
    /// could not be is tried again by itself, and not waited for.
    pub async fn looked_up(&self) {
        // The task is gone only when the agent goes.
        let _ = self.looked_up.clone().wait_for(|looked_up| *looked_up).await;
    }

    /// Sends a signal to a unit's main process, through what keeps it: never to a number.
    ///
    /// # Errors
    /// If there is no such unit, it has no process, or it is not certain that the signal got there.
    pub async fn signal(&self, unit: &UnitName, signal: Signal) -> Result<(), Refusal> {
        let ended = || Refusal::new(RefusalCode::Conflict, format!("{unit} ended before it could get {signal}"));
        let (answer, answered) = oneshot::channel();
        let request = Request { unit: unit.clone(), signal, answer };
        self.requests.send(request).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }

    /// Asks units for something, all at once, and waits for each for at most `limit`. The answer is a JSON object
    /// with a [`UnitAnswer`] for each, of at most [`ANSWER_MAX_BYTES`].
    ///
    /// # Errors
    /// If too much is being asked already.
    pub(super) async fn ask(&self, units: &[UnitName], ask: &Ask, limit: Duration) -> Result<Vec<u8>, Refusal> {
        let Ok(_place) = self.questions.try_acquire() else {
            let message = format!("{QUESTIONS_MAX} commands wait for answers of units already, as many as may at once");
            return Err(Refusal::new(RefusalCode::Busy, message));
        };
        let units: BTreeSet<&UnitName> = units.iter().collect();
        let mut left_bytes = ANSWER_MAX_BYTES.saturating_sub(units.len() * COMPLAINT_BYTES);
        let mut asked: FuturesUnordered<_> =
            units.into_iter().map(|unit| async move { (unit, self.ask_one(unit, ask.clone(), limit).await) }).collect();
        let mut answers = BTreeMap::new();
        while let Some((unit, answer)) = asked.next().await {
            answers.insert(unit, bounded(answer, &mut left_bytes));
        }
        serde_json::to_vec(&answers).map_err(|error| Refusal::new(RefusalCode::Invalid, error.to_string()))
    }

    async fn ask_one(&self, unit: &UnitName, ask: Ask, limit: Duration) -> Result<Value, Complaint> {
        let known = self.states.borrow().get(unit).map(|state| (state.spec().clone(), state.slot));
        let Some((spec, slot)) = known else { return Err(complaint("not_found", edit::unknown(unit).message)) };
        match &spec {
            Spec::Yuno(spec) if spec.channel != Channel::Lines => {
                return Err(complaint("unsupported", "its channel is not `lines`, so it cannot be asked"));
            }
            Spec::Yuno(_) | Spec::Container(_) => {}
        }
        match self.kinds.of(&spec) {
            Some(kind) => kind.ask(unit, slot, ask, limit).await,
            None => Err(complaint("unsupported", "this agent cannot keep units of this kind")),
        }
    }

    /// A view of what is in a unit's log from here on, and where that ends; nothing if there is no more yet.
    ///
    /// # Errors
    /// If there is no such unit, or its log cannot be read.
    pub(in crate::agent) async fn log(&self, unit: &UnitName, from: LogFrom, view: LogView) -> Result<Part, Refusal> {
        self.kind(unit)?.log(unit, from, view).await.map_err(|error| unreadable(unit, &error))
    }

    fn kind(&self, unit: &UnitName) -> Result<Arc<dyn Kind>, Refusal> {
        let kind = self.states.borrow().get(unit).and_then(|state| self.kinds.of(&state.desired.spec).cloned());
        kind.ok_or_else(|| edit::unknown(unit))
    }

    /// What a unit reads as its configuration, as it lies on this host: an [`Effective`](muster_topics::effective::Effective)
    /// in JSON.
    ///
    /// # Errors
    /// If there is no such unit, or it has no configuration yet.
    pub async fn effective(&self, unit: &UnitName) -> Result<Vec<u8>, Refusal> {
        let state = self.states.borrow().get(unit).cloned().ok_or_else(|| edit::unknown(unit))?;
        let kind = self.kinds.of(&state.desired.spec).cloned().ok_or_else(|| edit::unknown(unit))?;
        let effective = kind.effective(unit, state.slot, &state.desired.revision).await;
        effective.and_then(|effective| Ok(serde_json::to_vec(&effective)?)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Refusal::new(RefusalCode::NotFound, format!("{unit} has no configs on this host (yet)"))
            }
            _ => Refusal::new(RefusalCode::NotFound, format!("the config of {unit} cannot be read: {error}")),
        })
    }
}

fn unreadable(unit: &UnitName, error: &io::Error) -> Refusal {
    Refusal::new(RefusalCode::NotFound, format!("the log of {unit} cannot be read: {error}"))
}
