//! The tasks of units: what each does, and what it says.
//!
//! A task's log is in memory while it runs, where readers find it, and is stored now and then and at its end.
//!
//! **Invariant: no secret that a unit was given is in a log, a message or a description of its tasks.**

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use muster_base::clock::now_ms;
use muster_rules::mask::Cut;
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    task::{OwedReport, TASK_LOG_MAX_BYTES, TaskAction, TaskLogText, TaskRecord, TaskState},
};
use tokio::sync::watch;

use super::{
    super::store::{
        Store, StoreError,
        owed::OwedAction,
        task::{StoredTaskLog, UNIT_TASKS_MAX},
    },
    given_secrets::GivenSecrets,
    owed,
};

/// How often the log of a running task is stored, if it has grown: what is lost if the agent is killed.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// The most bytes of a task's message and description.
const MESSAGE_MAX_BYTES: usize = 2 * 1024;

/// What changes of units owe, by unit.
pub(super) type OwedReports = Arc<BTreeMap<UnitName, Vec<OwedReport>>>;

/// The tasks of units. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct TaskLog {
    store: Store,
    running: Arc<Mutex<BTreeMap<u64, Arc<LiveLog>>>>,
    owed: watch::Sender<OwedReports>,
    ended: watch::Sender<()>,
    given: GivenSecrets,
}

/// The log of a running task.
#[derive(Debug)]
struct LiveLog {
    number: u64,
    text: Mutex<LogText>,
}

/// The last part of a log.
#[derive(Debug, Default)]
struct LogText {
    text: String,
    /// The bytes that were dropped before.
    begin: u64,
    /// Where the stored part ends.
    kept: u64,
}

impl LogText {
    fn end(&self) -> u64 {
        self.begin + self.text.len() as u64
    }

    /// Adds a line. Half of the text goes at once, so that not every line moves it.
    fn push(&mut self, line: &str) {
        let line = cut(line, TASK_LOG_MAX_BYTES / 2);
        if self.text.len() + line.len() + 1 > TASK_LOG_MAX_BYTES {
            let from = self.text.len() / 2;
            let from =
                self.text.as_bytes()[from..].iter().position(|byte| *byte == b'\n').map_or(from, |at| from + at + 1);
            let from = (from..=self.text.len()).find(|at| self.text.is_char_boundary(*at)).unwrap_or(self.text.len());
            self.text.drain(..from);
            self.begin += from as u64;
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn stored(&self) -> StoredTaskLog {
        StoredTaskLog { text: self.text.clone(), begin: self.begin }
    }
}

/// Returns the beginning of a text, of at most this many bytes.
fn cut(text: &str, max_bytes: usize) -> &str {
    if text.len() <= max_bytes {
        return text;
    }
    let end = (0..=max_bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    &text[..end]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a task has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskEnd {
    pub(super) is_changed: bool,
    pub(super) message: Option<String>,
}

impl TaskLog {
    /// Opens the tasks in a store. Those of an earlier run of the agent that have not ended are marked as interrupted.
    pub(super) async fn open(store: Store) -> Result<Self, StoreError> {
        store.interrupt_tasks(now_ms()).await?;
        let owed = watch::Sender::new(Arc::new(owed::reports(store.owed().await?)));
        let (running, given) = (Arc::default(), GivenSecrets::default());
        Ok(Self { store, running, owed, ended: watch::Sender::new(()), given })
    }

    /// The secrets that units were given, none of which is in a log.
    pub(super) fn given(&self) -> &GivenSecrets {
        &self.given
    }

    /// Stores that a task begins.
    pub(super) async fn begin(
        &self,
        unit: &UnitName,
        revision: &Digest,
        action: TaskAction,
        about: String,
    ) -> Result<RunningTask, StoreError> {
        let about = self.given.mask(unit).text(&about, Cut::NONE);
        let number = self.store.begin_task(unit, revision, action, cut(&about, MESSAGE_MAX_BYTES), now_ms()).await?;
        let live = Arc::new(LiveLog { number, text: Mutex::default() });
        lock(&self.running).insert(number, live.clone());
        tokio::spawn(keep(self.store.clone(), Arc::downgrade(&live)));
        Ok(RunningTask { tasks: self.clone(), unit: unit.clone(), live, is_ended: false })
    }

    /// Returns the tasks of a unit, the newest first.
    pub(super) async fn of(&self, unit: &UnitName) -> Result<Vec<TaskRecord>, StoreError> {
        let mut tasks = self.store.tasks(Some(unit)).await?;
        // There are more if the console was not told of them yet.
        tasks.truncate(usize::try_from(UNIT_TASKS_MAX).unwrap_or(usize::MAX));
        Ok(tasks)
    }

    /// Returns what changes of units owe.
    pub(super) async fn owed(&self) -> Result<Vec<OwedAction>, StoreError> {
        self.store.owed().await
    }

    /// Notified when a task has ended; at first of those of earlier runs of the agent.
    pub(super) fn ended(&self) -> watch::Receiver<()> {
        let mut ended = self.ended.subscribe();
        ended.mark_changed();
        ended
    }

    /// What changes of units owe, as it was last found.
    pub(super) fn reported_owed(&self) -> watch::Receiver<OwedReports> {
        self.owed.subscribe()
    }

    /// Finds out what changes of units owe, and returns whether any of it is not given up.
    pub(super) async fn report_owed(&self) -> Result<bool, StoreError> {
        let owed = self.owed().await?;
        let is_open = owed.iter().any(OwedAction::is_open);
        let found = owed::reports(owed);
        self.owed.send_if_modified(|before| {
            let is_new = **before != found;
            if is_new {
                *before = Arc::new(found);
            }
            is_new
        });
        Ok(is_open)
    }

    /// Returns the log of a unit's task from a position on; `None` if there is no such task.
    pub(super) async fn log(&self, unit: &UnitName, number: u64, from: u64) -> Result<Option<TaskLogText>, StoreError> {
        // First the live one: a task that ends in between is then found in the store.
        let live = lock(&self.running).get(&number).cloned();
        let Some(stored) = self.store.task_log(unit, number).await? else { return Ok(None) };
        let log = live.as_ref().map_or(stored, |live| lock(&live.text).stored());
        let skip = usize::try_from(from.saturating_sub(log.begin)).unwrap_or(usize::MAX);
        let text = log.text.get(skip.min(log.text.len())..).unwrap_or_default().to_owned();
        Ok(Some(TaskLogText { text, end: log.begin + log.text.len() as u64, is_over: live.is_none() }))
    }
}

/// Stores the log of a task now and then, while it runs.
async fn keep(store: Store, live: Weak<LiveLog>) {
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        let Some(live) = live.upgrade() else { return };
        let stored = {
            let text = lock(&live.text);
            (text.end() > text.kept).then(|| text.stored())
        };
        let Some(stored) = stored else { continue };
        match store.keep_task_log(live.number, &stored).await {
            Ok(()) => lock(&live.text).kept = stored.begin + stored.text.len() as u64,
            Err(error) => {
                tracing::warn!(%error, hint = Diagnostic::of(&error).hint, task = live.number, "the log of a task cannot be stored yet");
            }
        }
    }
}

/// A task that runs. If it is dropped before its end, it is interrupted.
#[derive(Debug)]
pub(super) struct RunningTask {
    tasks: TaskLog,
    unit: UnitName,
    live: Arc<LiveLog>,
    is_ended: bool,
}

impl RunningTask {
    /// Adds a line to its log. Never waits; what is too much drops the oldest.
    pub(super) fn line(&self, text: &str) {
        self.piece(text.as_bytes(), Cut::NONE);
    }

    /// Adds a piece of what a program says, of which lines may have been cut. Never waits.
    pub(super) fn piece(&self, text: &[u8], cut: Cut) {
        let text = self.tasks.given.mask(&self.unit).bytes(text, cut);
        let text = String::from_utf8_lossy(&text);
        let mut log = lock(&self.live.text);
        for line in text.lines() {
            log.push(line);
        }
    }

    /// Stores how it has ended; the error is why it has failed.
    pub(super) async fn end(mut self, end: Result<TaskEnd, Diagnostic>) -> Result<(), StoreError> {
        let (state, mut told) = match end {
            Ok(TaskEnd { is_changed: true, message }) => (TaskState::Changed, message.map(Diagnostic::new)),
            Ok(TaskEnd { is_changed: false, message }) => (TaskState::Unchanged, message.map(Diagnostic::new)),
            Err(why) => (TaskState::Failed, Some(why)),
        };
        let stored = lock(&self.live.text).stored();
        let mask = self.tasks.given.mask(&self.unit);
        told.iter_mut().for_each(|told| mask.mask_diagnostic(told, Cut::NONE));
        let told = told.map(|told| told.map(|text| cut(&text, MESSAGE_MAX_BYTES).to_owned()));
        self.tasks.store.end_task(self.live.number, state, told.as_ref(), &stored, now_ms()).await?;
        self.is_ended = true;
        self.tasks.ended.send_replace(());
        Ok(())
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        lock(&self.tasks.running).remove(&self.live.number);
        // Without a runtime the agent has ended, and its next run marks the task.
        if self.is_ended {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, live) = (self.tasks.store.clone(), self.live.clone());
        runtime.spawn(async move {
            let stored = lock(&live.text).stored();
            let ended = store.end_task(live.number, TaskState::Interrupted, None, &stored, now_ms());
            if let Err(error) = ended.await {
                tracing::warn!(%error, hint = Diagnostic::of(&error).hint, task = live.number, "the interruption of a task cannot be stored");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::task::{HOST_TASKS_MAX, TASK_LOGS_MAX};
    use muster_topics::event::TaskAck;

    fn unit() -> UnitName {
        "default/till".parse().unwrap()
    }

    async fn open(folder: &tempfile::TempDir) -> TaskLog {
        TaskLog::open(Store::open(&folder.path().join("agent.db")).await.unwrap()).await.unwrap()
    }

    async fn begin(tasks: &TaskLog) -> RunningTask {
        tasks.begin(&unit(), &Digest::of(b"a"), TaskAction::Write, "3 files".to_owned()).await.unwrap()
    }

    async fn states(tasks: &TaskLog) -> Vec<(TaskState, Option<String>)> {
        tasks
            .of(&unit())
            .await
            .unwrap()
            .into_iter()
            .map(|task| (task.state, task.diagnostic.map(|told| told.cause)))
            .collect()
    }

    #[tokio::test]
    async fn task_is_read_while_it_runs_and_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = open(&folder).await;
        let task = begin(&tasks).await;
        let number = tasks.of(&unit()).await.unwrap()[0].number;
        assert_eq!(states(&tasks).await, [(TaskState::Running, None)]);
        task.line("one\ntwo");
        let part = tasks.log(&unit(), number, 0).await.unwrap().unwrap();
        assert_eq!((part.text.as_str(), part.is_over), ("one\ntwo\n", false));
        task.line("three");
        task.end(Ok(TaskEnd { is_changed: true, message: Some("wrote 3".to_owned()) })).await.unwrap();
        let rest = tasks.log(&unit(), number, part.end).await.unwrap().unwrap();
        assert_eq!((rest.text.as_str(), rest.is_over), ("three\n", true));
        assert_eq!(states(&tasks).await, [(TaskState::Changed, Some("wrote 3".to_owned()))]);
        let failed = begin(&tasks).await;
        failed.end(Err("no room".into())).await.unwrap();
        assert_eq!(states(&tasks).await[0], (TaskState::Failed, Some("no room".to_owned())));
        let other = "default/other".parse().unwrap();
        assert_eq!(tasks.log(&other, number, 0).await.unwrap(), None);
    }

    #[tokio::test]
    async fn secret_is_in_no_log_message_or_description() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = open(&folder).await;
        tasks.given().add(&unit(), ["hunter2-hunter2"]);
        let about = "with hunter2-hunter2".to_owned();
        let task = tasks.begin(&unit(), &Digest::of(b"a"), TaskAction::Notify, about).await.unwrap();
        task.line("pw=hunter2-hunter2, of a line");
        // A value in two pieces.
        task.piece(b"pw=hunter2-", Cut::BOTH);
        task.piece(b"hunter2\n", Cut::BOTH);
        task.end(Err("it says hunter2-hunter2".into())).await.unwrap();
        let record = tasks.of(&unit()).await.unwrap().remove(0);
        assert_eq!(
            (record.about.as_str(), record.diagnostic.as_ref().map(|told| told.cause.as_str())),
            ("with ***", Some("it says ***"))
        );
        let log = tasks.log(&unit(), record.number, 0).await.unwrap().unwrap();
        assert_eq!(log.text, "pw=***, of a line\npw=***\n***\n");
    }

    #[tokio::test]
    async fn lost_task_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = open(&folder).await;
        drop(begin(&tasks).await);
        while states(&tasks).await[0].0 != TaskState::Interrupted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::mem::forget(begin(&tasks).await);
        assert_eq!(states(&tasks).await[0].0, TaskState::Running);
        tasks.store.close().await;
        // The agent's next run.
        assert_eq!(states(&open(&folder).await).await[0].0, TaskState::Interrupted);
    }

    #[tokio::test]
    async fn ends_wait_until_they_are_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = open(&folder).await;
        let of = |is_changed| Ok(TaskEnd { is_changed, message: None });
        begin(&tasks).await.end(of(false)).await.unwrap();
        begin(&tasks).await.end(of(true)).await.unwrap();
        begin(&tasks).await.end(Err("no room".into())).await.unwrap();
        std::mem::forget(begin(&tasks).await);
        tasks.store.close().await;
        // The agent's next run.
        let tasks = open(&folder).await;
        assert!(tasks.ended().has_changed().unwrap());
        let waiting = async || tasks.store.task_ends(9).await.unwrap();
        let ends = waiting().await;
        let states: Vec<_> = ends.iter().map(|task| task.state).collect();
        assert_eq!(states, [TaskState::Changed, TaskState::Failed, TaskState::Interrupted]);
        assert!(ends.iter().all(TaskRecord::is_event));
        // What is of another store's task acknowledges nothing.
        let other = TaskAck { began_ms: 1, ..ends[0].key() };
        tasks.store.acknowledge_task_ends(&[other, ends[1].key()]).await.unwrap();
        assert_eq!(waiting().await, [ends[0].clone(), ends[2].clone()]);
        // They stay beyond the limit of their unit, and go beyond that of the host.
        for _ in 0..UNIT_TASKS_MAX + 3 {
            begin(&tasks).await.end(of(false)).await.unwrap();
        }
        assert_eq!(waiting().await.len(), 2);
        for number in 0..HOST_TASKS_MAX {
            let unit = format!("default/u{}", number / 20).parse().unwrap();
            let task = tasks.begin(&unit, &Digest::of(b"a"), TaskAction::Write, String::new()).await.unwrap();
            task.end(of(false)).await.unwrap();
        }
        assert_eq!(waiting().await, []);
    }

    #[tokio::test]
    async fn tasks_and_logs_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = open(&folder).await;
        let first = begin(&tasks).await;
        let number = tasks.of(&unit()).await.unwrap()[0].number;
        let line = "é".repeat(500);
        for _ in 0..200 {
            first.line(&line);
        }
        first.line("last");
        let part = tasks.log(&unit(), number, 0).await.unwrap().unwrap();
        assert!(part.text.len() <= TASK_LOG_MAX_BYTES && part.text.ends_with("\nlast\n"));
        assert_eq!(part.end, 200 * 1001 + 5);
        first.end(Ok(TaskEnd { is_changed: false, message: None })).await.unwrap();
        for _ in 0..UNIT_TASKS_MAX + 3 {
            begin(&tasks).await.end(Err("".into())).await.unwrap();
        }
        assert_eq!(tasks.of(&unit()).await.unwrap().len(), usize::try_from(UNIT_TASKS_MAX).unwrap());
        assert_eq!(tasks.log(&unit(), number, 0).await.unwrap(), None);
        for number in 0..TASK_LOGS_MAX + 2 {
            let unit = format!("default/u{}", number / 20).parse().unwrap();
            let task = tasks.begin(&unit, &Digest::of(b"a"), TaskAction::Write, String::new()).await.unwrap();
            task.line("x");
            task.end(Err("".into())).await.unwrap();
        }
        let unit = "default/u0".parse().unwrap();
        let oldest = tasks.of(&unit).await.unwrap().last().unwrap().number;
        assert_eq!(tasks.log(&unit, oldest, 0).await.unwrap().unwrap().text, "");
    }
}
