//! Events that the executor sends about a running command.

use muster_topics::{
    Millis,
    name::CommandId,
    outcome::{Status, Stream},
};

/// How much of each stream was sent before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBytes {
    /// Of standard output.
    pub stdout_bytes: u64,
    /// Of standard error.
    pub stderr_bytes: u64,
}

/// An event of a running command; `Ended` is the last.
#[derive(Clone, Debug)]
pub enum ExecEvent {
    /// More output, at most [`muster_topics::outcome::CHUNK_MAX_BYTES`], in order per stream.
    Output {
        /// The command.
        id: CommandId,
        /// The stream.
        stream: Stream,
        /// Its offset in the stream.
        offset_bytes: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The command has ended.
    Ended {
        /// The command.
        id: CommandId,
        /// `Exited`, `TimedOut`, `Cancelled`, `Failed` or `Lost`.
        status: Status,
        /// When it began, if it did.
        started_ms: Option<Millis>,
        /// The output after the `Output` events, of stdout and stderr, each at most `CHUNK_MAX_BYTES`.
        rest: (Vec<u8>, Vec<u8>),
        /// How much was dropped of stdout and of stderr.
        dropped_bytes: (u64, u64),
    },
}
