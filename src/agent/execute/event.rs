//! Events that the executor sends about a running command.

use muster_topics::{
    Millis,
    name::CommandId,
    outcome::{Status, Stream},
};

/// How much of each stream has been sent already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBytes {
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
