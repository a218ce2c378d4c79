//! Runs commands (`exec`), each under a shim, so that it survives the agent.
//!
//! The journal records that a command runs before [`Executor::run`] is called, which creates a folder for the
//! command and launches it there. So after a restart of the agent each command that the
//! journal has as running either has a folder that records how it ended, or was not started, or
//! its fate is unknown. [`Executor::resume`] finds out which, and starts nothing.
//!
//! Modules, in reading order: [`admit`] (run now or wait), [`prepare`] (the exact program to run), [`inside`]
//! (the container it runs in), [`launch`] (folder, limits, start), [`exec_follower`] (reports output and
//! end), [`batch`] (several programs, one after the other), [`piece`] (splits output between characters).
//!
//! Each command is also kept in a file beside its folder ([`started_record`]), so that an agent that lost its journal knows what runs.
//!
//! **Invariant: a command is launched at most once**: only [`Executor::run`] launches, and only in a
//! folder that it has just created.

mod admit;
mod batch;
pub(crate) mod event;
mod exec_follower;
pub(crate) mod inside;
mod launch;
mod piece;
pub(crate) mod prepare;
mod prepared_program;
pub(crate) mod program_path;
mod started_record;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_rules::CommandRefusal;
use muster_topics::{
    command::{Batch, Command, Exec},
    name::CommandId,
    outcome::Status,
    process::Limits,
};
use tokio::{sync::mpsc, task::spawn_blocking};

pub use self::admit::{AdmittedCommand, QueuePermit, QueueResult, RunningPermit};
pub(super) use self::prepare::{launch as daemon_launch, launch as program_launch};
use self::{
    admit::ExecutionLimits,
    batch::{BatchOutput, BatchRunner},
    exec_follower::ExecFollower,
    launch::{LaunchResult, Launcher},
};
use super::{
    cancel_tokens::CancelTokens,
    cgroup::CgroupTree,
    config::ExecConfig,
    log_follower::FollowRequest,
    shim::{AdoptedShim, Shims},
    unit::{Units, first_process::FirstProcess},
};

/// Runs commands. Clones share their state.
#[derive(Clone, Debug)]
pub struct Executor {
    data_dir: Arc<Path>,
    launcher: Launcher,
    places: ExecutionLimits,
    events: mpsc::Sender<ExecEvent>,
    /// Running programs and followed logs.
    cancels: CancelTokens,
    follows: CancelTokens,
}

impl Executor {
    /// Creates an executor with its commands' files in `<data_dir>/exec`, the configured number of concurrent programs,
    /// and `events`.
    #[must_use]
    pub fn new(data_dir: PathBuf, shims: Shims, config: &ExecConfig, events: mpsc::Sender<ExecEvent>) -> Self {
        let places = ExecutionLimits::new(config.parallel_max, config.queue_max);
        let tree = CgroupTree::detect(&data_dir).of_commands();
        let launcher = Launcher { shims, limits: config.limits, tree: Arc::new(tree), units: None };
        let (cancels, follows) = (CancelTokens::default(), CancelTokens::default());
        Self { data_dir: data_dir.into(), launcher, places, events, cancels, follows }
    }

    /// Lets it run commands in the containers among these units.
    #[must_use]
    pub fn with_containers(mut self, units: Units) -> Self {
        self.launcher.units = Some(units);
        self
    }

    /// The agent's folder.
    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The limits of each program.
    pub(super) fn limits(&self) -> Limits {
        self.launcher.limits
    }

    /// Returns the first process of the container that a command runs in, if it does.
    ///
    /// # Errors
    /// If the container cannot be entered now.
    pub(super) async fn first_process(&self, exec: &Exec) -> Result<Option<FirstProcess>, CommandRefusal> {
        self.launcher.first_process(exec).await
    }

    /// Admits a new command, to run or to wait. From here on it can be cancelled.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn admit(&self, id: CommandId) -> Result<AdmittedCommand, CommandRefusal> {
        self.places.admit(id, &self.cancels)
    }

    /// Returns the place in the queue of a command that waited before the agent was started.
    #[must_use]
    pub fn admit_again(&self, id: CommandId) -> QueuePermit {
        self.places.waiting(id, &self.cancels)
    }

    /// Waits for a command's turn, for `limit` at most.
    pub async fn wait(&self, queued: QueuePermit, limit: Duration) -> QueueResult {
        self.places.wait(queued, limit).await
    }

    /// Starts a command. Events follow, the last of them `Ended`; if the host itself fails (for example, its disk is
    /// full) that is the only one, with `Failed`.
    ///
    /// A name without a slash is searched for in `/usr/local/sbin`, `/usr/local/bin`, `/usr/sbin`, `/usr/bin`, `/sbin`
    /// and `/bin`; this is also the command's `PATH`, unless it sets its own. It also gets `HOME`, `USER` and `LOGNAME`
    /// of its user, and `LANG=C.UTF-8`.
    ///
    /// # Errors
    /// If it cannot be started: no such program, user or folder. No event follows then.
    pub async fn run(&self, id: CommandId, exec: &Exec, place: RunningPermit) -> Result<(), CommandRefusal> {
        if place.entered.cancelled().is_cancelled() {
            self.end(id, Status::Cancelled).await;
            return Ok(());
        }
        let folder = self.folder_of(id);
        match self.launcher.begin(&folder, &id.to_string(), exec).await? {
            LaunchResult::Runs(found) => {
                self.follow(ExecFollower::new(id, folder, exec, SentBytes::default()), Some(found), place);
            }
            LaunchResult::Over(status) => self.end(id, status).await,
        }
        Ok(())
    }

    /// Runs several programs one after the other, from the start or from where an earlier run of the agent was. Events
    /// follow from `sent` on, the last of them `Ended`.
    pub fn run_batch(&self, id: CommandId, batch: Batch, place: RunningPermit) {
        self.follow_batch(id, batch, None, place);
    }

    /// Resumes a batch that an earlier run of the agent began, or was about to.
    pub fn resume_batch(&self, id: CommandId, batch: Batch, sent: SentBytes) {
        self.follow_batch(id, batch, Some(sent), self.places.taken(id, &self.cancels));
    }

    fn follow_batch(&self, id: CommandId, batch: Batch, again: Option<SentBytes>, place: RunningPermit) {
        let runner = BatchRunner {
            id,
            folder: self.folder_of(id),
            launcher: self.launcher.clone(),
            cancelled: place.entered.cancelled(),
            told: BatchOutput::new(id, self.events.clone(), again.unwrap_or_default()),
        };
        tokio::spawn(async move {
            runner.run(&batch, again.is_some()).await;
            drop(place);
        });
    }

    /// Resumes a command that an earlier run of the agent started, or was about to. Events follow from `sent` on; one
    /// whose result cannot be known ends as `Lost`.
    pub async fn resume(&self, id: CommandId, exec: &Exec, sent: SentBytes) {
        let place = self.places.taken(id, &self.cancels);
        self.follow(ExecFollower::new(id, self.folder_of(id), exec, sent), None, place);
    }

    /// Cancels a command: a program is asked to end and soon killed, a waiting one does not begin, a log is not
    /// followed any more.
    pub fn cancel(&self, id: CommandId) {
        self.cancels.cancel(id);
        self.follows.cancel(id);
    }

    /// Follows a unit's log; see [`log_follower::run`](super::log_follower::run).
    ///
    /// # Errors
    /// If there is no such log, or too many are followed already. No event follows then.
    pub(super) async fn follow_log(&self, wanted: FollowRequest, units: Units) -> Result<(), CommandRefusal> {
        super::log_follower::run(wanted, units, self.follows.clone(), self.events.clone()).await
    }

    /// Writes a note of a command that is about to be started, beside its folder.
    pub(super) async fn note(&self, id: CommandId, body: String) {
        started_record::write(self.data_dir.join("exec"), id, body).await;
    }

    /// Removes the note of a command that was not started.
    pub(super) async fn unnote(&self, id: CommandId) {
        started_record::remove(&self.data_dir.join("exec"), id).await;
    }

    /// Returns the commands that were started and whose outcomes may not be stored, each with its JSON.
    pub(super) async fn noted(&self) -> Vec<(Command, String)> {
        started_record::all(self.data_dir.join("exec")).await
    }

    /// Deletes the files of a command whose outcome is stored. The note is last: an agent that is killed meanwhile finds it.
    pub async fn forget(&self, id: CommandId) {
        self.launcher.remove(&self.folder_of(id), &id.to_string()).await;
        started_record::remove(&self.data_dir.join("exec"), id).await;
    }

    /// Deletes what an earlier run of the agent has left of commands that are over: their folders have arguments and
    /// environments. `unfinished` are those that are not over.
    pub(super) async fn sweep(&self, unfinished: &BTreeSet<CommandId>) {
        let exec = self.data_dir.join("exec");
        let folders = move || {
            let entries = fs::read_dir(exec).into_iter().flatten().flatten();
            let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<CommandId>().ok());
            ids.collect::<Vec<_>>()
        };
        for id in spawn_blocking(folders).await.unwrap_or_default() {
            let folder = self.folder_of(id);
            // The program of a command that a store has lost may run.
            if !unfinished.contains(&id) && self.launcher.shims.is_over(&folder).await {
                tracing::info!(command.id = %id, "leftovers of a finished command are deleted");
                self.launcher.remove(&folder, &id.to_string()).await;
            }
        }
    }

    fn folder_of(&self, id: CommandId) -> PathBuf {
        self.data_dir.join("exec").join(id.to_string())
    }

    /// Follows a command in a task of its own.
    fn follow(&self, follower: ExecFollower, found: Option<AdoptedShim>, place: RunningPermit) {
        let (shims, events) = (self.launcher.shims.clone(), self.events.clone());
        tokio::spawn(async move {
            follower.run(&shims, found, &events, place.entered.cancelled()).await;
            drop(place);
        });
    }

    /// Reports the end of a command that never ran, or whose result is unknown.
    async fn end(&self, id: CommandId, status: Status) {
        let rest = (Vec::new(), Vec::new());
        let ended = ExecEvent::Ended { id, status, started_ms: None, rest, dropped_bytes: (0, 0) };
        // The receiver has ended only if the agent is about to end.
        let _ = self.events.send(ended).await;
    }
}

#[cfg(test)]
mod tests;

pub use event::{ExecEvent, SentBytes};
