//! Running commands (`exec`), each under a shim, so that it survives the agent.
//!
//! The journal says that a command runs before [`Executor::run`] is called; that makes a folder of the
//! command's own and launches it in there. So after a restart of the agent each command that the
//! journal has as running either has a folder that tells what became of it, or was not begun, and
//! nobody can know which; [`Executor::resume`] finds out, and starts nothing.
//!
//! Modules, in reading order: [`prepare`] (what exactly to run), [`follow`] (telling what it prints and
//! how it ends), [`piece`] (cutting output between characters).
//!
//! **Invariant: a command is launched at most once**: only [`Executor::run`] launches, and only in a
//! folder that it has just made.

mod follow;
mod piece;
mod prepare;

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use muster_topics::{
    Millis,
    command::Exec,
    name::CommandId,
    outcome::{RefusalCode, Status, Stream},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::spawn_blocking,
};

use self::follow::Follower;
pub(super) use self::prepare::{SEARCH_PATH, find_program};
use super::{
    follow::{Cancels, Wanted},
    shim::{Adopted, ShimError, Shims},
    unit::Units,
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
        /// `Exited`, `TimedOut`, `Failed` or `Lost`.
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
    folder: Arc<Path>,
    shims: Shims,
    places: Arc<Semaphore>,
    parallel_max: usize,
    events: mpsc::Sender<ExecEvent>,
    /// Programs that run, and logs that are followed.
    cancels: Cancels,
    follows: Cancels,
}

impl Executor {
    /// An executor that keeps its commands' files in `folder`, runs at most `parallel_max` at once, and tells `events`.
    #[must_use]
    pub fn new(folder: PathBuf, shims: Shims, parallel_max: usize, events: mpsc::Sender<ExecEvent>) -> Self {
        let places = Arc::new(Semaphore::new(parallel_max.min(Semaphore::MAX_PERMITS)));
        let (cancels, follows) = (Cancels::default(), Cancels::default());
        Self { folder: folder.into(), shims, places, parallel_max, events, cancels, follows }
    }

    /// Starts a command. Events follow, the last of them `Ended`; where the host itself failed (a full
    /// disk, say) that is the only one, with `Failed`.
    ///
    /// A name without a slash is looked for in `/usr/local/sbin`, `/usr/local/bin`, `/usr/sbin`,
    /// `/usr/bin`, `/sbin` and `/bin`; that is also the `PATH` that a command gets, unless it brings its
    /// own. Beside that it gets `HOME`, `USER` and `LOGNAME` of its user, and `LANG=C.UTF-8`.
    ///
    /// # Errors
    /// If it cannot be started: busy, no such program, user or folder. No event follows then.
    pub async fn run(&self, id: CommandId, exec: &Exec) -> Result<(), Refusal> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let message = format!("{} commands run already, as many as may at once", self.parallel_max);
            return Err(Refusal::new(RefusalCode::Busy, message));
        };
        let folder = self.folder_of(id);
        let (wanted, at) = (exec.clone(), folder.clone());
        // Who a user is may be asked of a directory far away.
        let prepared = spawn_blocking(move || {
            let launch = prepare::launch(&wanted)?;
            Ok((launch, make_folder(&at)))
        });
        let (launch, made) = match prepared.await {
            Ok(prepared) => prepared?,
            Err(error) => return self.end(id, failed(&error)).await,
        };
        match made {
            Ok(true) => {}
            Ok(false) => return Err(Refusal::new(RefusalCode::Conflict, "this command was begun before")),
            Err(error) => return self.end(id, failed(&format!("{}: {error}", folder.display()))).await,
        }
        match self.shims.launch(&folder, &launch).await {
            Ok(shim) => {
                self.follow(Follower::new(id, folder, Sent::default()), Some(Adopted::Alive(shim)), Some(place));
            }
            Err(ShimError::Start { program, source, .. } | ShimError::Cgroup { program, source }) => {
                self.forget(id).await;
                return Err(refusal(exec, &program, &source));
            }
            Err(error @ ShimError::Io { .. }) => return self.find_out(id, folder, &error, place).await,
        }
        Ok(())
    }

    /// Takes up a command that an earlier life of the agent started, or was about to. Events follow
    /// from `sent` on; one whose fate cannot be known ends as `Lost`.
    pub async fn resume(&self, id: CommandId, _exec: &Exec, sent: Sent) {
        // It runs whether there is a place or not; but while it does, it takes one.
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        self.follow(Follower::new(id, self.folder_of(id), sent), None, place);
    }

    /// Brings a command to its end: a program is asked to end and soon killed, a log is followed no more.
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

    /// Deletes the files of a command whose outcome is stored.
    pub async fn forget(&self, id: CommandId) {
        let folder = self.folder_of(id);
        match tokio::fs::remove_dir_all(&folder).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(command.id = %id, %error, "cannot delete {}", folder.display());
            }
            _ => {}
        }
    }

    fn folder_of(&self, id: CommandId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    /// Tells of a command from here on, in a task of its own.
    fn follow(&self, follower: Follower, found: Option<Adopted>, place: Option<OwnedSemaphorePermit>) {
        let (shims, events, cancels, id) =
            (self.shims.clone(), self.events.clone(), self.cancels.clone(), follower.id());
        // As many as there are places, and those that an earlier life has started.
        let cancelled = cancels.enter(id, usize::MAX).unwrap_or_default();
        tokio::spawn(async move {
            follower.run(&shims, found, &events, cancelled).await;
            cancels.leave(id);
            drop(place);
        });
    }

    /// A launch went wrong so that it is not certain that nothing was started.
    async fn find_out(
        &self,
        id: CommandId,
        folder: PathBuf,
        error: &ShimError,
        place: OwnedSemaphorePermit,
    ) -> Result<(), Refusal> {
        match self.shims.adopt(&folder).await {
            Ok(Adopted::Nothing) => {
                self.forget(id).await;
                self.end(id, failed(error)).await
            }
            Ok(found) => {
                self.follow(Follower::new(id, folder, Sent::default()), Some(found), Some(place));
                Ok(())
            }
            Err(_) => self.end(id, Status::Lost).await,
        }
    }

    /// Tells the end of a command that never ran, or nobody knows.
    async fn end(&self, id: CommandId, status: Status) -> Result<(), Refusal> {
        let rest = (Vec::new(), Vec::new());
        let ended = ExecEvent::Ended { id, status, started_ms: None, rest, dropped_bytes: (0, 0) };
        // Nobody listens any more only if the agent is about to end.
        let _ = self.events.send(ended).await;
        Ok(())
    }
}

/// Makes the folder of a command, and tells whether it is new.
fn make_folder(folder: &Path) -> io::Result<bool> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    if let Some(parent) = folder.parent() {
        builder.recursive(true).create(parent)?;
    }
    match builder.recursive(false).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

fn failed(why: &dyn std::fmt::Display) -> Status {
    Status::Failed { message: why.to_string() }
}

/// Why a program was not started, in words of the command.
fn refusal(exec: &Exec, program: &str, source: &io::Error) -> Refusal {
    let asked = exec.argv.first().map_or(program, String::as_str);
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Refusal::new(RefusalCode::NotFound, format!("{asked}: {source}"))
        }
        // The system's own answer is about the program; others name the user or folder that they are about.
        io::ErrorKind::PermissionDenied if source.raw_os_error().is_some() => Refusal::new(
            RefusalCode::NotFound,
            format!("{asked} cannot be run: {source}\nhint: is it executable, for the user that is to run it?"),
        ),
        io::ErrorKind::PermissionDenied => Refusal::new(
            RefusalCode::Denied,
            format!("{asked} cannot be run: {source}\nhint: only an agent that runs as root can become another user"),
        ),
        _ => Refusal::new(RefusalCode::Invalid, format!("{asked} cannot be run: {source}")),
    }
}

#[cfg(test)]
mod tests;
