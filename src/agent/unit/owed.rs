//! Does what changes of units owe: reloads or restarts units, and runs programs.
//!
//! One task does it, in the order in which it became owed, once the unit whose change wants it is up. Each attempt is a task of that
//! unit ([`super::task_log`]), with what the program has said. A program has a shim of its own, so that it survives the agent; an agent
//! that finds it running waits for its end, and one that finds it ended takes over how.
//!
//! **Invariant: an action is forgotten only after it was done**, was given up visibly, or its change was rolled back.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_base::{chance, clock::now_ms, crash, mount::remove_folder};
use muster_rules::{
    CommandRefusal,
    backoff::{ExponentialGrowth, has_come},
    mask::Cut,
};
use muster_session::unit_state::{UnitState, UnitStates};
use muster_shim::{Launch, OutputMode, ProcessExit, ProgramEnd, ShimEvent, ShimRequest};
use muster_topics::{
    Millis,
    command::{Exec, LogView, Verb},
    diagnostic::Diagnostic,
    files::ChangeAction,
    name::UnitName,
    reload::Reload,
    task::{OWED_REPORTED_MAX, OWED_TEXT_MAX_CHARS, OwedReport, TASK_LOG_MAX_BYTES, TaskAction},
    unit::{Phase, Run, Spec},
};
use nix::sys::signal::Signal;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    super::{
        execute::program_launch,
        shim::{AdoptedShim, ShimHandle, Shims, process_end},
        store::{
            self, Store, StoreError, deployment,
            owed::OwedAction,
            unit::{ChangeContext, edit},
        },
    },
    InstanceRequest, Units, log,
    task_log::{RunningTask, TaskEnd, TaskLog},
};

/// How long a program may run.
const RUN_MAX_MS: u64 = 10 * 60_000;

/// How much longer its shim may take to say how it ended.
const RUN_SLACK: Duration = Duration::from_secs(30);

/// How long a unit may take to confirm that it has read its files again.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The delays before an action that could not be done is tried again: what it needs may be coming up.
const AGAIN: ExponentialGrowth = ExponentialGrowth { first_ms: 2_000, max_ms: 120_000 };

/// The longest delay before it is tried again, with what is random of it.
const AGAIN_MAX_MS: Millis = 2 * AGAIN.max_ms;

/// How often an action is tried: for about five minutes. Then an operator has to look.
const ATTEMPTS_MAX: u32 = 8;

/// How often it is looked for actions that are due, while any are to be done and no unit changes.
const LOOK: Duration = Duration::from_secs(5);

/// How often what a program has written is read.
const READ: Duration = Duration::from_millis(300);

/// How much of a program's output is kept in its folder, twice at most.
const LOG_BYTES: u64 = 256 * 1024;

/// Does what changes owe, and reports it, as long as it is polled. Dropping it is safe: what was not done is still owed.
pub(super) async fn keep(worker: OwedWorker) {
    tokio::join!(work(&worker), report(&worker));
}

/// Reports what changes owe, also while an action is done.
async fn report(worker: &OwedWorker) {
    let mut looks = worker.looks();
    loop {
        let is_open = worker.tasks.report_owed().await.unwrap_or_else(|error| {
            tracing::debug!(%error, hint = Diagnostic::of(&error).hint, "pending actions after changes of units cannot be read");
            true
        });
        if looks.next(is_open).await.is_break() {
            return;
        }
    }
}

async fn work(worker: &OwedWorker) {
    let mut looks = worker.looks();
    worker.remove_old_folders().await;
    loop {
        let is_open = worker.do_all().await.unwrap_or_else(|error| {
            tracing::error!(%error, hint = Diagnostic::of(&error).hint, "pending actions after changes of units cannot be read or written");
            true
        });
        if looks.next(is_open).await.is_break() {
            return;
        }
    }
}

/// When what is owed is looked at.
struct Looks {
    states: watch::Receiver<UnitStates>,
    added: watch::Receiver<()>,
}

impl Looks {
    /// Waits until a look may find something else: when a unit has changed or more is owed, and while something is to be
    /// done, from time to time. Breaks if the units have ended.
    async fn next(&mut self, is_open: bool) -> ControlFlow<()> {
        tokio::select! {
            // Cancel-safe: a change that was not seen is seen by the next look.
            changed = self.states.changed() => if changed.is_err() { return ControlFlow::Break(()) },
            changed = self.added.changed() => if changed.is_err() { return ControlFlow::Break(()) },
            () = sleep(LOOK), if is_open => {}
        }
        self.states.borrow_and_update();
        self.added.borrow_and_update();
        ControlFlow::Continue(())
    }
}

/// What the task needs.
#[derive(Clone)]
pub(super) struct OwedWorker {
    pub(super) store: Store,
    pub(super) units: Units,
    pub(super) tasks: TaskLog,
    pub(super) shims: Shims,
    /// The folder with a folder for each program that runs.
    pub(super) folder: PathBuf,
}

/// What became of an attempt.
enum Attempt {
    /// It is done; with a message.
    Done(TaskEnd),
    /// It is done, and the store knows it already.
    Stored(TaskEnd),
}

impl OwedWorker {
    fn looks(&self) -> Looks {
        Looks { states: self.units.states(), added: self.store.owed_added() }
    }

    /// Does all that is due; returns whether any of it may have to be tried again.
    async fn do_all(&self) -> Result<bool, StoreError> {
        let owed = self.store.owed().await?;
        if owed.is_empty() {
            return Ok(false);
        }
        let states = self.units.states().borrow().clone();
        let back: Vec<u64> = owed.iter().filter(|one| was_rolled_back(one, &states)).map(|one| one.number).collect();
        if !back.is_empty() {
            self.store.owed_done(&back).await?;
        }
        let is_left = |one: &&OwedAction| one.is_open() && !back.contains(&one.number);
        let mut actions: BTreeMap<u64, Vec<&OwedAction>> = BTreeMap::new();
        let is_due = |one: &&OwedAction| is_up(&one.unit, &states) && !goes_back(&one.action, &states);
        for one in owed.iter().filter(is_left).filter(is_due) {
            // The same action is done once.
            let same = actions.values_mut().find(|same| same[0].action == one.action);
            match same {
                Some(same) => same.push(one),
                None => _ = actions.insert(one.number, vec![one]),
            }
        }
        for same in actions.values() {
            if same.iter().any(|one| has_come(one.due_ms, now_ms(), AGAIN_MAX_MS)) {
                self.attempt(same).await?;
            }
        }
        Ok(owed.iter().any(OwedAction::is_open))
    }

    /// Tries an action that is owed by these.
    async fn attempt(&self, same: &[&OwedAction]) -> Result<(), StoreError> {
        let one = same[0];
        let numbers: Vec<u64> = same.iter().map(|one| one.number).collect();
        let task = self.tasks.begin(&one.unit, &one.revision, TaskAction::Notify, one.action.to_string()).await?;
        crash::point("owed action", "before it is done");
        let outcome = match &one.action {
            ChangeAction::Reload(unit) => self.reload(unit, same).await?,
            ChangeAction::Restart(unit) => self.restart(unit, same).await?,
            ChangeAction::Run(argv) => self.run(one, argv, &task).await.map(Attempt::Done),
        };
        crash::point("owed action", "after it was done");
        let end = match outcome {
            Ok(Attempt::Done(end)) => {
                self.store.owed_done(&numbers).await?;
                Ok(end)
            }
            Ok(Attempt::Stored(end)) => Ok(end),
            Err(why) => {
                let attempts = same.iter().map(|one| one.attempts).max().unwrap_or_default();
                let is_last = attempts + 1 >= ATTEMPTS_MAX;
                let due_ms = (!is_last).then(|| now_ms() + AGAIN.jittered_ms(attempts, chance::random()));
                tracing::warn!(
                    unit = %one.unit, action = %one.action, error = why.cause, hint = why.hint, is_last,
                    "an action after a change failed"
                );
                self.store.owed_not_done(&numbers, &why, due_ms, now_ms()).await?;
                Err(why)
            }
        };
        self.remove_folder(one);
        task.end(end).await?;
        self.tasks.report_owed().await.map(drop)
    }

    /// Has a unit read its files again, as its spec says.
    async fn reload(&self, unit: &UnitName, same: &[&OwedAction]) -> Result<Result<Attempt, Diagnostic>, StoreError> {
        let Some(state) = self.state(unit) else { return Ok(Err(missing(unit))) };
        if !is_running(&state) {
            return Ok(Ok(Attempt::Done(unchanged("it is not running, and reads its files when it starts"))));
        }
        let spec = match state.spec() {
            Spec::Yuno(spec) => spec.clone(),
            other => {
                let kind = other.kind();
                return Ok(Err(Diagnostic::new(format_args!(
                    "{unit} is of the kind {kind}, which cannot be reloaded"
                ))
                .with_hint("restart it")));
            }
        };
        let told = match spec.reload {
            Reload::Restart => return self.restart(unit, same).await,
            Reload::Signal => self.units.signal(unit, spec.reload_signal).await.map_err(|refusal| refusal.diagnostic),
            Reload::Channel => {
                let answer = self.units.ask_one(unit, InstanceRequest::Reload, ANSWER_MAX).await;
                answer.map(drop).map_err(|complaint| complaint.diagnostic.within(complaint.code))
            }
        };
        Ok(told.map(|()| Attempt::Done(changed(format!("{unit} reloads its files")))))
    }

    /// Restarts a unit: the new desired state, and that this is done, are one transaction.
    async fn restart(&self, unit: &UnitName, same: &[&OwedAction]) -> Result<Result<Attempt, Diagnostic>, StoreError> {
        let Some(state) = self.state(unit) else { return Ok(Err(missing(unit))) };
        if state.desired.run == Run::Stopped {
            return Ok(Ok(Attempt::Done(unchanged("it should not run, so it is not restarted"))));
        }
        if state.observed.rolled_back().is_some() {
            return Ok(restarted_when_rolled_back(unit, &state, same));
        }
        let operator = deployment::actor();
        let asker = ChangeContext { operator: &operator, now_ms: now_ms(), key: None, is_document: true, values: None };
        let mut tx = self.store.begin().await?;
        let edited = edit(&mut tx, unit, &Verb::UnitRestart { unit: unit.clone() }, asker).await?;
        if let Err(CommandRefusal { diagnostic, .. }) = edited {
            return Ok(Err(diagnostic));
        }
        let numbers: Vec<u64> = same.iter().map(|one| one.number).collect();
        store::owed::remove(&mut tx, &numbers).await?;
        store::commit(tx, "owed restart").await?;
        self.units.desired_changed();
        Ok(Ok(Attempt::Stored(changed(format!("{unit} is restarted")))))
    }

    /// Runs a program, or waits for the one that an earlier run of the agent has started.
    async fn run(&self, one: &OwedAction, argv: &[String], task: &RunningTask) -> Result<TaskEnd, Diagnostic> {
        let folder = self.folder_of(one);
        let adopted = self.shims.adopt(&folder).await.map_err(|error| Diagnostic::of(&error))?;
        let ended = match adopted {
            AdoptedShim::Ended(end) => Some(end),
            AdoptedShim::Alive(mut shim) => self.follow(&mut shim, &folder, task).await,
            AdoptedShim::Nothing => {
                let exec = Exec::new(argv.to_vec(), RUN_MAX_MS);
                let launch = program_launch(&exec).map_err(|refusal| refusal.diagnostic)?;
                let launch = Launch {
                    output: OutputMode::Log { max_bytes: LOG_BYTES, keep: 1, max_age_ms: None },
                    timeout_ms: Some(RUN_MAX_MS),
                    ..launch
                };
                let mut shim = self.shims.launch(&folder, &launch).await.map_err(|error| Diagnostic::of(&error))?;
                self.follow(&mut shim, &folder, task).await
            }
        };
        let ended = ended.ok_or("how it ended is unknown")?;
        match ended.exit {
            _ if ended.timed_out => {
                Err(format!("it did not end within {} s and was killed", RUN_MAX_MS / 1_000).into())
            }
            ProcessExit::Code(0) => Ok(changed("it has ended with code 0".to_owned())),
            ProcessExit::Code(_) | ProcessExit::Signal(_) => Err(Diagnostic::new(process_end(&ended))),
            ProcessExit::Unknown => Err("how it ended is unknown".into()),
        }
    }

    /// Waits for the end of a program, and adds what it writes to the task.
    async fn follow(&self, shim: &mut ShimHandle, folder: &Path, task: &RunningTask) -> Option<ProgramEnd> {
        let mut reader = OutputReader { folder: folder.to_owned(), place: None };
        let mut ticks = interval(READ);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let limit = Duration::from_millis(RUN_MAX_MS) + RUN_SLACK;
        let ended = timeout(limit, async {
            loop {
                tokio::select! {
                    // A shim's events are read by a buffer that outlives this: cancel-safe.
                    event = shim.next() => match event? {
                        ShimEvent::State(state) if state.over => return state.last,
                        _ => {}
                    },
                    _ = ticks.tick() => reader.read(task).await,
                }
            }
        })
        .await;
        reader.read(task).await;
        match ended {
            Ok(ended) => ended,
            Err(_) => {
                let kill = ShimRequest::Stop { signal: Signal::SIGKILL as i32, grace_ms: 0 };
                let _ = shim.send(&kill).await;
                None
            }
        }
    }

    fn state(&self, unit: &UnitName) -> Option<Arc<UnitState>> {
        self.units.states().borrow().get(unit).cloned()
    }

    /// The folder of an attempt. Another attempt has another, so that how it ended is its own.
    fn folder_of(&self, one: &OwedAction) -> PathBuf {
        self.folder.join(format!("{}-{}", one.number, one.attempts))
    }

    fn remove_folder(&self, one: &OwedAction) {
        if let Err(error) = remove_folder(&self.folder_of(one)) {
            tracing::warn!(%error, unit = %one.unit, "the folder of a finished program cannot be removed");
        }
    }

    /// Removes folders of programs whose action is not owed any more. One that still runs keeps its own.
    async fn remove_old_folders(&self) {
        let Ok(owed) = self.store.owed().await else { return };
        let Ok(folders) = fs::read_dir(&self.folder) else { return };
        for folder in folders.filter_map(Result::ok).map(|entry| entry.path()) {
            let is_owed = owed.iter().any(|one| self.folder_of(one) == folder);
            if !is_owed && !matches!(self.shims.adopt(&folder).await, Ok(AdoptedShim::Alive(_)) | Err(_)) {
                let _ = remove_folder(&folder);
            }
        }
    }
}

/// Reads what a program writes.
struct OutputReader {
    folder: PathBuf,
    place: Option<log::LogPosition>,
}

impl OutputReader {
    async fn read(&mut self, task: &RunningTask) {
        let (folder, place) = (self.folder.clone(), self.place);
        let read = move || match place {
            None => log::tail_to(&[folder], u32::MAX, &LogView::default(), TASK_LOG_MAX_BYTES as u64),
            Some(place) => log::since(&[folder], place, false, TASK_LOG_MAX_BYTES as u64),
        };
        if let Ok(Ok(part)) = tokio::task::spawn_blocking(read).await {
            let is_open = |place: &log::LogPosition| place.is_open();
            let cut = Cut { start: self.place.as_ref().is_some_and(is_open), end: is_open(&part.place) };
            task.piece(&part.text, cut);
            self.place = Some(part.place);
        }
    }
}

/// Whether a unit's change is in effect: it runs, rests as it should, or is gone.
fn is_up(unit: &UnitName, states: &UnitStates) -> bool {
    let Some(state) = states.get(unit) else { return true };
    match state.observed.phase() {
        Phase::Running | Phase::Playing => true,
        Phase::Stopped | Phase::Absent => !state.desired.run.is_running(),
        _ => false,
    }
}

fn is_running(state: &UnitState) -> bool {
    matches!(state.observed.phase(), Phase::Running | Phase::Playing)
}

/// Whether the change that wants an action was rolled back.
fn was_rolled_back(one: &OwedAction, states: &UnitStates) -> bool {
    let back = states.get(&one.unit).and_then(|state| state.observed.rolled_back());
    back.is_some_and(|back| back.revision == one.revision)
}

/// Whether an action is about a unit that was rolled back and has not come up again: it is done once that has.
fn goes_back(action: &ChangeAction, states: &UnitStates) -> bool {
    let ChangeAction::Restart(unit) = action else { return false };
    let state = states.get(unit).filter(|state| state.desired.run.is_running());
    state.is_some_and(|state| state.observed.rolled_back().is_some() && !is_running(state))
}

/// What becomes of a restart of a unit that was rolled back. Another desired state would end its rollback, and try the revision that has
/// failed; units that go back together are started anew by that.
fn restarted_when_rolled_back(unit: &UnitName, state: &UnitState, same: &[&OwedAction]) -> Result<Attempt, Diagnostic> {
    let has_started_since = same.iter().all(|one| state.observed.since_ms >= one.since_ms);
    match is_running(state) && has_started_since {
        true => Ok(Attempt::Done(unchanged("it was rolled back and has started since the change"))),
        false => Err(Diagnostic::new(format_args!(
            "{unit} was rolled back, and a restart would try its failed revision again"
        ))
        .with_hint("apply a revision of it that works")),
    }
}

fn missing(unit: &UnitName) -> Diagnostic {
    format!("there is no unit {unit} on this host yet").into()
}

fn changed(message: String) -> TaskEnd {
    TaskEnd { is_changed: true, message: Some(message) }
}

fn unchanged(message: &str) -> TaskEnd {
    TaskEnd { is_changed: false, message: Some(message.to_owned()) }
}

/// What is owed, for reports of units: a few actions of each, and nothing that changes by itself.
#[must_use]
pub(super) fn reports(owed: Vec<OwedAction>) -> BTreeMap<UnitName, Vec<OwedReport>> {
    let cut = |text: String| text.chars().take(OWED_TEXT_MAX_CHARS).collect::<String>();
    let mut reports: BTreeMap<UnitName, Vec<OwedReport>> = BTreeMap::new();
    for OwedAction { unit, action, since_ms, attempts, error, failed_ms, .. } in owed {
        let of_unit = reports.entry(unit).or_default();
        if of_unit.len() < OWED_REPORTED_MAX {
            let (action, error) = (cut(action.to_string()), error.map(|error| error.map(cut)));
            of_unit.push(OwedReport { action, since_ms, attempts, error, failed_ms });
        }
    }
    reports
}

/// When an action is tried again, for reports.
#[must_use]
pub(super) fn told(one: &OwedAction, now_ms: Millis) -> String {
    let OwedAction { action, error, failed_ms, due_ms, attempts, .. } = one;
    match (error, failed_ms) {
        (Some(error), Some(_)) => format!("{action} was given up after {attempts} attempts: {error:#}"),
        (Some(error), None) => {
            format!("{action} is retried in {} s: {error:#}", due_ms.saturating_sub(now_ms).max(0) / 1_000)
        }
        (None, _) => format!("{action} is pending"),
    }
}
