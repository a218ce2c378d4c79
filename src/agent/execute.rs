//! Running commands (`exec`), each under a shim, so that it survives the agent.

use std::path::PathBuf;

use muster_topics::{
    Millis,
    command::Exec,
    name::CommandId,
    outcome::{Status, Stream},
};
use tokio::sync::mpsc;

use super::shim::Shims;
pub use crate::rules::Refusal;

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
pub struct Executor {}

impl Executor {
    /// An executor that keeps its commands' files in `folder`, runs at most `parallel_max` at once, and tells `events`.
    #[must_use]
    pub fn new(_folder: PathBuf, _shims: Shims, _parallel_max: usize, _events: mpsc::Sender<ExecEvent>) -> Self {
        unimplemented!()
    }

    /// Starts a command. Events follow, the last of them `Ended`.
    ///
    /// # Errors
    /// If it cannot be started: busy, no such program, user or folder. No event follows then.
    pub async fn run(&self, _id: CommandId, _exec: &Exec) -> Result<(), Refusal> {
        unimplemented!()
    }

    /// Takes up a command that an earlier life of the agent started, or was about to. Events follow
    /// from `sent` on; one whose fate cannot be known ends as `Lost`.
    pub async fn resume(&self, _id: CommandId, _exec: &Exec, _sent: Sent) {
        unimplemented!()
    }

    /// Deletes the files of a command whose outcome is stored.
    pub async fn forget(&self, _id: CommandId) {
        unimplemented!()
    }
}
