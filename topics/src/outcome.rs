//! Outcomes of commands. Each command has exactly one terminal answer from each host: its outcome.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Millis, V1,
    channel::Complaint,
    diagnostic::Diagnostic,
    name::{CommandId, Digest, UnitName},
    unit::{Exit, Hold, ProcessEnd},
};

/// The most output in one message, before encoding: in base64, and with everything around it, two of these (stdout and
/// stderr in an outcome) stay below [`crate::PAYLOAD_MAX_BYTES`].
pub const CHUNK_MAX_BYTES: usize = 16 * 1024;

/// Payload of `s/<slot>/h/<host>/outcome`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this payload.
    pub v: V1,
    /// The command.
    pub command: CommandId,
    /// The number of the message among those about one command that are kept until they are acknowledged, from 1; a
    /// repetition keeps its number. The others (`accepted`, `running`, `busy`) have number 0.
    pub seq: u64,
    /// When it was made, by the agent's clock.
    pub at_ms: Millis,
    /// The content.
    #[serde(flatten)]
    pub content: Content,
}

/// The content of a message about a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// It is in the journal, and waits. Sent only for a command that takes more than a second.
    Accepted,
    /// It runs. Sent only for a command that takes more than a second.
    Running,
    /// The host runs and queues as many commands as it may. Nothing of the command is kept, and it may come again until
    /// shortly before its expiry ([`crate::command::BUSY_FINAL_MS`]), when it is refused for good.
    Busy,
    /// More output.
    Output {
        /// The stream.
        stream: Stream,
        /// The offset of this piece in the stream.
        offset_bytes: u64,
        /// The piece.
        data: Data,
    },
    /// The command has ended.
    Done {
        /// The outcome.
        outcome: Outcome,
    },
}

/// An output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Bytes: as text if they are text, otherwise in base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Base64(String),
}

impl Data {
    /// Encodes bytes as text, unless JSON's escapes would make it longer than base64. So [`CHUNK_MAX_BYTES`] holds for
    /// a stream of zeros, too.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self::shorter(bytes, |byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..0x20 => 6,
            _ => 1,
        })
    }

    /// Encodes bytes for a signed body, which is itself a JSON string: there each escape is escaped again.
    #[must_use]
    pub fn signed(bytes: &[u8]) -> Self {
        Self::shorter(bytes, |byte| match byte {
            b'"' | b'\\' => 4,
            b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 3,
            0..0x20 => 7,
            _ => 1,
        })
    }

    fn shorter(bytes: &[u8], escaped: impl Fn(&u8) -> usize) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.iter().map(&escaped).sum::<usize>() <= bytes.len().div_ceil(3) * 4 => {
                Self::Text(text.to_owned())
            }
            _ => Self::Base64(BASE64.encode(bytes)),
        }
    }

    /// Decodes the bytes.
    ///
    /// # Errors
    /// If the base64 is invalid.
    pub fn to_bytes(&self) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().to_vec()),
            Self::Base64(text) => BASE64.decode(text),
        }
    }
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Its status.
    #[serde(flatten)]
    pub status: Status,
    /// When the execution began, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<Millis>,
    /// When it ended.
    pub finished_ms: Millis,
    /// The kept part of standard output.
    #[serde(default, skip_serializing_if = "Output::is_empty")]
    pub stdout: Output,
    /// The kept part of standard error.
    #[serde(default, skip_serializing_if = "Output::is_empty")]
    pub stderr: Output,
}

/// One stream's output: what was sent before, and the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// How much was sent in messages of their own, with offsets from 0 to this.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// The output after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Data>,
    /// How much was dropped beyond the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
}

impl Output {
    /// Whether there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A unit of a set whose desired state was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedUnit {
    /// The unit.
    pub unit: UnitName,
    /// The present generation.
    pub generation: u64,
    /// Why the unit will not converge for now, without its note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Box<Hold>>,
}

/// The status of a finished command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Status {
    /// A program ran and ended.
    Exited(ProcessEnd),
    /// A program timed out and was stopped.
    TimedOut,
    /// It was cancelled: a program was stopped, or not started.
    Cancelled,
    /// Programs ran one after the other, the last of them to its end.
    Batch {
        /// The result of each. Steps that did not begin, because an earlier one failed, are left out.
        steps: Vec<StepOutcome>,
    },
    /// A unit's desired state was changed; done when its observed state reaches this generation.
    Applied {
        /// The generation.
        generation: u64,
        /// The present revision.
        revision: Digest,
        /// Why the unit will not converge for now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<Box<Hold>>,
    },
    /// The desired state of several units was changed together; done when each has reached its generation.
    AppliedSet {
        /// The result for each.
        units: Vec<AppliedUnit>,
    },
    /// It was done (for example, a question was answered, or a unit removed).
    Completed,
    /// It was refused.
    Refused {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason, for people.
        #[serde(flatten)]
        diagnostic: Diagnostic,
    },
    /// It began and failed; with the reason, for people.
    Failed(Diagnostic),
    /// It began, and its result cannot be known. It is never repeated.
    Lost,
}

impl Status {
    /// Returns the status of a program that ended in this way.
    #[must_use]
    pub fn exited(exit: Exit) -> Self {
        Self::Exited(exit.into())
    }

    /// Whether it succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self {
            Self::Exited(end) => end.exit.is_success(),
            Self::Batch { steps } => steps.iter().all(|step| step.status.is_success()),
            Self::Applied { .. } | Self::AppliedSet { .. } | Self::Completed => true,
            Self::TimedOut | Self::Cancelled | Self::Refused { .. } | Self::Failed(_) | Self::Lost => false,
        }
    }
}

/// The result of one step of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepOutcome {
    /// Its status; never a batch.
    #[serde(flatten)]
    pub status: Status,
    /// When it began, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<Millis>,
    /// When it ended.
    pub finished_ms: Millis,
    /// The length of this step's part of the standard output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stdout_bytes: u64,
    /// The length of this step's part of the standard error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_bytes: u64,
    /// How much of its standard output was dropped beyond the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stdout_dropped_bytes: u64,
    /// How much of its standard error was dropped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_dropped_bytes: u64,
}

impl StepOutcome {
    /// Creates the result of a step without output.
    #[must_use]
    pub fn of(status: Status, finished_ms: Millis) -> Self {
        Self {
            status,
            started_ms: None,
            finished_ms,
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_dropped_bytes: 0,
            stderr_dropped_bytes: 0,
        }
    }
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// It has expired.
    Expired,
    /// It was issued before this agent's store existed.
    Replayed,
    /// The agent's store went back or was lost since it was issued, so whether it was done is unknown.
    SetBack,
    /// It is dated in the future, or lives longer than a command may.
    Invalid,
    /// The host's local policy forbids it.
    Denied,
    /// It is for other hosts, and was sent to this one.
    WrongHost,
    /// It is for a group or a selector that does not include this host now. Used only for a command on the host's own
    /// topic: a broadcast that does not include a host is not answered.
    NotSelected,
    /// There is no such unit, or other thing that it names.
    NotFound,
    /// There is no such user.
    UnknownUser,
    /// There is no such program.
    NoSuchFile,
    /// The file exists, but is not executable.
    NotExecutable,
    /// The working directory does not exist, or cannot be entered.
    NoSuchFolder,
    /// It contradicts the present state (such as removing a running unit).
    Conflict,
    /// As many commands run as may run at once.
    Busy,
    /// This unit does not support it.
    Unsupported,
    /// No port of the realm is free.
    PortsExhausted,
    /// Its host was revoked before it had answered. The console sets this, and replaces it by the host's own outcome
    /// should that ever arrive.
    Revoked,
    /// Nothing can be written on the host's disk, so nothing that has to be remembered is begun there.
    Unwritable,
    /// A later command made it void before it was sent. Only the console sets this, for commands that it kept for an
    /// offline host.
    Superseded,
}

/// The answer of one unit to a command that was sent to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnitAnswer {
    /// Its answer.
    Ok(Value),
    /// The error. The codes `unit_unreachable`, `unsupported`, `deadline`, `not_found`, `busy`, `invalid` and
    /// `too_large` are the agent's; any other is the unit's own.
    Error(Complaint),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], text: bool) {
        let data = Data::new(bytes);
        assert_eq!(matches!(data, Data::Text(_)), text, "{data:?}");
        assert_eq!(data.to_bytes().unwrap(), bytes);
        let json = serde_json::to_vec(&data).unwrap();
        assert!(json.len() <= bytes.len().div_ceil(3) * 4 + 20, "{} bytes became {}", bytes.len(), json.len());
    }

    #[test]
    fn in_a_signed_body_escapes_count_twice() {
        for (bytes, text) in [
            (&b"a plain text, of words"[..], true),
            (b"\"quoted\" and \"quoted\"", false),
            (&[b'\n'; 100], false),
            (b"\xff", false),
        ] {
            let data = Data::signed(bytes);
            assert_eq!(matches!(data, Data::Text(_)), text, "{data:?}");
            assert_eq!(data.to_bytes().unwrap(), bytes);
            let twice = serde_json::to_string(&serde_json::to_string(&data).unwrap()).unwrap();
            assert!(twice.len() <= bytes.len().div_ceil(3) * 4 + 30, "{twice}");
        }
    }

    #[test]
    fn data_is_written_as_text_if_shorter() {
        check(b"", true);
        check("hello, w\u{f6}rld\n".as_bytes(), true);
        check(b"\xff\xfe", false);
        check(&[0; CHUNK_MAX_BYTES], false);
        check(&[b'\n'; CHUNK_MAX_BYTES], false);
        check(&[b'a'; CHUNK_MAX_BYTES], true);
        check(b"one line\nanother\n", true);
    }
}
