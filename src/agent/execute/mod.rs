//! Running commands (`exec`), each under a shim, so that it survives the agent.
//!
//! The journal says that a command runs before [`Executor::run`] is called; that makes a folder of the
//! command's own and launches it in there. So after a restart of the agent each command that the
//! journal has as running either has a folder that tells what became of it, or was not begun, and
//! nobody can know which; [`Executor::resume`] finds out, and starts nothing.
//!
//! Modules, in reading order: [`admit`] (which run now, and which wait), [`prepare`] (what exactly to run), [`inside`]
//! (what a container has for that), [`launch`] (its folder, its limits, its start), [`follow`] (telling what it prints and
//! how it ends), [`batch`] (several programs, one after the other), [`piece`] (cutting output between characters).
//!
//! Beside that folder lies the command itself for as long ([`note`]), so that a journal that was lost knows again what runs.
//!
//! **Invariant: a command is launched at most once**: only [`Executor::run`] launches, and only in a
//! folder that it has just made.

mod admit;
mod batch;
mod follow;
mod inside;
mod launch;
mod note;
mod piece;
mod prepare;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_topics::{
    Millis,
    command::{Batch, Command, Exec},
    name::CommandId,
    outcome::{Status, Stream},
    process::Limits,
};
use tokio::sync::mpsc;

pub use self::admit::{Admitted, Place, Queued, Turn};
use self::{
    admit::Places,
    batch::{Runner, Told},
    follow::Follower,
    launch::{Begun, Launcher},
};
pub(super) use self::{
    inside::Container,
    prepare::{SEARCH_PATH, find_program, launch as daemon_launch},
};
use super::{
    cgroup::Tree,
    config::ExecConfig,
    follow::{Cancels, Wanted},
    shim::{Adopted, Shims},
    unit::{FirstProcess, Units},
};
use crate::rules::Refusal;

/// How much of each stream has been sent already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Of standard output.
    pub stdout_bytes: u64,
    /// Of standard error.
    pub stderr_bytes: u64,
}

/// What a running command tells; `Ended` is the last.
#[derive(Clone, Debug)]
pub enum ExecEvent {
    /// More output, at most [`muster_topics::outcome::CHUNK_MAX_BYTES`], in order per stream.
    Output {
        /// The command.
        id: CommandId,
        /// Which of its streams.
        stream: Stream,
        /// Where in the stream this begins.
        offset_bytes: u64,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// It is over.
    Ended {
        /// The command.
        id: CommandId,
        /// `Exited`, `TimedOut`, `Cancelled`, `Failed` or `Lost`.
        status: Status,
        /// When it began, if it did.
        started_ms: Option<Millis>,
        /// What is left of stdout and stderr after the `Output` events, each at most `CHUNK_MAX_BYTES`.
        rest: (Vec<u8>, Vec<u8>),
        /// What was dropped of stdout and of stderr.
        dropped_bytes: (u64, u64),
    },
}

/// Runs commands; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Executor {
    data_dir: Arc<Path>,
    launcher: Launcher,
    places: Places,
    events: mpsc::Sender<ExecEvent>,
    /// Programs that run, and logs that are followed.
    cancels: Cancels,
    follows: Cancels,
}

impl Executor {
    /// An executor that keeps its commands' files in `<data_dir>/exec`, runs as many at once as it is told, and tells
    /// `events`.
    #[must_use]
    pub fn new(data_dir: PathBuf, shims: Shims, config: &ExecConfig, events: mpsc::Sender<ExecEvent>) -> Self {
        let places = Places::new(config.parallel_max, config.queue_max);
        let tree = Tree::detect(&data_dir).of_commands();
        let launcher = Launcher { shims, limits: config.limits, tree: Arc::new(tree), units: None };
        let (cancels, follows) = (Cancels::default(), Cancels::default());
        Self { data_dir: data_dir.into(), launcher, places, events, cancels, follows }
    }

    /// The same, which also runs commands in the containers among these units.
    #[must_use]
    pub fn with_containers(mut self, units: Units) -> Self {
        self.launcher.units = Some(units);
        self
    }

    /// The agent's folder.
    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What each program may use at most.
    pub(super) fn limits(&self) -> Limits {
        self.launcher.limits
    }

    /// The first process of the container that a command is to run in, if it is.
    ///
    /// # Errors
    /// If that cannot be entered now.
    pub(super) async fn first_process(&self, exec: &Exec) -> Result<Option<FirstProcess>, Refusal> {
        self.launcher.first_process(exec).await
    }

    /// A place for a command that has just come, to run in or to wait in. From here on it can be cancelled.
    ///
    /// # Errors
    /// If as many run and wait as may.
    pub fn admit(&self, id: CommandId) -> Result<Admitted, Refusal> {
        self.places.admit(id, &self.cancels)
    }

    /// The place of one that waited before the agent was started.
    #[must_use]
    pub fn admit_again(&self, id: CommandId) -> Queued {
        self.places.waiting(id, &self.cancels)
    }

    /// Waits for the turn of a command, at most so long.
    pub async fn wait(&self, queued: Queued, limit: Duration) -> Turn {
        self.places.wait(queued, limit).await
    }

    /// Starts a command. Events follow, the last of them `Ended`; where the host itself failed (a full
    /// disk, say) that is the only one, with `Failed`.
    ///
    /// A name without a slash is looked for in `/usr/local/sbin`, `/usr/local/bin`, `/usr/sbin`,
    /// `/usr/bin`, `/sbin` and `/bin`; that is also the `PATH` that a command gets, unless it brings its
    /// own. Beside that it gets `HOME`, `USER` and `LOGNAME` of its user, and `LANG=C.UTF-8`.
    ///
    /// # Errors
    /// If it cannot be started: no such program, user or folder. No event follows then.
    pub async fn run(&self, id: CommandId, exec: &Exec, place: Place) -> Result<(), Refusal> {
        if place.entered.cancelled().is_cancelled() {
            self.end(id, Status::Cancelled).await;
            return Ok(());
        }
        let folder = self.folder_of(id);
        match self.launcher.begin(&folder, &id.to_string(), exec).await? {
            Begun::Runs(found) => self.follow(Follower::new(id, folder, exec, Sent::default()), Some(found), place),
            Begun::Over(status) => self.end(id, status).await,
        }
        Ok(())
    }

    /// Runs several programs, one after the other, from the start or from where an earlier life of the agent was.
    /// Events follow from `sent` on, the last of them `Ended`.
    pub fn run_batch(&self, id: CommandId, batch: Batch, place: Place) {
        self.follow_batch(id, batch, None, place);
    }

    /// Takes up a batch that an earlier life of the agent began, or was about to.
    pub fn resume_batch(&self, id: CommandId, batch: Batch, sent: Sent) {
        self.follow_batch(id, batch, Some(sent), self.places.taken(id, &self.cancels));
    }

    fn follow_batch(&self, id: CommandId, batch: Batch, again: Option<Sent>, place: Place) {
        let runner = Runner {
            id,
            folder: self.folder_of(id),
            launcher: self.launcher.clone(),
            cancelled: place.entered.cancelled(),
            told: Told::new(id, self.events.clone(), again.unwrap_or_default()),
        };
        tokio::spawn(async move {
            runner.run(&batch, again.is_some()).await;
            drop(place);
        });
    }

    /// Takes up a command that an earlier life of the agent started, or was about to. Events follow
    /// from `sent` on; one whose fate cannot be known ends as `Lost`.
    pub async fn resume(&self, id: CommandId, exec: &Exec, sent: Sent) {
        let place = self.places.taken(id, &self.cancels);
        self.follow(Follower::new(id, self.folder_of(id), exec, sent), None, place);
    }

    /// Brings a command to its end: a program is asked to end and soon killed, one that waits does not begin, a log is
    /// followed no more.
    pub fn cancel(&self, id: CommandId) {
        self.cancels.cancel(id);
        self.follows.cancel(id);
    }

    /// Follows a unit's log; see [`follow::run`](super::follow::run).
    ///
    /// # Errors
    /// If there is no such log, or too many are followed already. No event follows then.
    pub(super) async fn follow_log(&self, wanted: Wanted, units: Units) -> Result<(), Refusal> {
        super::follow::run(wanted, units, self.follows.clone(), self.events.clone()).await
    }

    /// Writes down a command that is about to be started, beside its folder.
    pub(super) async fn note(&self, id: CommandId, body: String) {
        note::write(self.data_dir.join("exec"), id, body).await;
    }

    /// A command was not started after all.
    pub(super) async fn unnote(&self, id: CommandId) {
        note::remove(&self.data_dir.join("exec"), id).await;
    }

    /// The commands that were started, and whose outcome may not be stored: each with its text.
    pub(super) async fn noted(&self) -> Vec<(Command, String)> {
        note::all(self.data_dir.join("exec")).await
    }

    /// Deletes the files of a command whose outcome is stored.
    pub async fn forget(&self, id: CommandId) {
        note::remove(&self.data_dir.join("exec"), id).await;
        self.launcher.remove(&self.folder_of(id), &id.to_string()).await;
    }

    fn folder_of(&self, id: CommandId) -> PathBuf {
        self.data_dir.join("exec").join(id.to_string())
    }

    /// Tells of a command from here on, in a task of its own.
    fn follow(&self, follower: Follower, found: Option<Adopted>, place: Place) {
        let (shims, events) = (self.launcher.shims.clone(), self.events.clone());
        tokio::spawn(async move {
            follower.run(&shims, found, &events, place.entered.cancelled()).await;
            drop(place);
        });
    }

    /// Tells the end of a command that never ran, or nobody knows.
    async fn end(&self, id: CommandId, status: Status) {
        let rest = (Vec::new(), Vec::new());
        let ended = ExecEvent::Ended { id, status, started_ms: None, rest, dropped_bytes: (0, 0) };
        // Nobody listens any more only if the agent is about to end.
        let _ = self.events.send(ended).await;
    }
}

#[cfg(test)]
mod tests;
