//! Outcomes of commands. Each command has exactly one terminal answer from each host: its outcome.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Millis, V1,
    channel::Complaint,
    name::{CommandId, Digest, UnitName},
    unit::{Exit, Hold, ProcessEnd},
};

/// The most output in one message, before encoding: in base64, and with everything around it, two
/// of these (stdout and stderr inside an outcome) stay below [`crate::PAYLOAD_MAX_BYTES`].
pub const CHUNK_MAX_BYTES: usize = 16 * 1024;

/// Payload of `h/<host>/outcome`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this payload.
    pub v: V1,
    /// The command that this answers.
    pub command: CommandId,
    /// Numbers the messages about one command that are kept until they are acknowledged, from 1; a
    /// repetition keeps its number. The others (`accepted`, `running`, `busy`) have number 0.
    pub seq: u64,
    /// When it was made, by the agent's clock.
    pub at_ms: Millis,
    /// The answer.
    #[serde(flatten)]
    pub content: Content,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// It is in the journal, and waits. Told only of a command that takes more than a second.
    Accepted,
    /// It runs. Told only of a command that takes more than a second.
    Running,
    /// The host runs and queues as much as it may. It is as if the command had not come: nothing of it is kept, and it may
    /// come again until shortly before its expiry ([`crate::command::BUSY_FINAL_MS`]), when it is refused for good.
    Busy,
    /// More output.
    Output {
        /// Which of its streams.
        stream: Stream,
        /// Where in the stream this piece begins.
        offset_bytes: u64,
        /// The piece.
        data: Data,
    },
    /// It is over: the terminal answer.
    Done {
        /// How.
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

/// Bytes: as text where they are text, in base64 otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Base64(String),
}

impl Data {
    /// Wraps bytes in the form that suits them: text, unless JSON's escapes would make it longer
    /// than base64 is. So [`CHUNK_MAX_BYTES`] holds for a stream of zeros, too.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self::shorter(bytes, |byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..0x20 => 6,
            _ => 1,
        })
    }

    /// The same inside of a signed body, which is itself a text in JSON: there each escape is escaped once more.
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

    /// The bytes.
    ///
    /// # Errors
    /// If the base64 is none.
    pub fn to_bytes(&self) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().to_vec()),
            Self::Base64(text) => BASE64.decode(text),
        }
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// How.
    #[serde(flatten)]
    pub status: Status,
    /// When the work began, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<Millis>,
    /// When it was over.
    pub finished_ms: Millis,
    /// Standard output, all of it that was kept.
    #[serde(default, skip_serializing_if = "Output::is_empty")]
    pub stdout: Output,
    /// Standard error, all of it that was kept.
    #[serde(default, skip_serializing_if = "Output::is_empty")]
    pub stderr: Output,
}

/// One stream's output, whole: what of it was sent before, and the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// How much of it went in messages of their own, with offsets from 0 to this.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// What comes after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Data>,
    /// How much was dropped because it was over the limit.
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
    /// The generation that is desired now.
    pub generation: u64,
    /// Why the unit will not come to it for now, without its note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Box<Hold>>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Status {
    /// A program ran and ended.
    Exited(ProcessEnd),
    /// A program ran out of time and was ended.
    TimedOut,
    /// Somebody cancelled it: a program was ended, or not begun.
    Cancelled,
    /// Programs ran one after the other, the last of them to its end.
    Batch {
        /// What became of each. Those that were not begun, because one before did not succeed, are not here.
        steps: Vec<StepOutcome>,
    },
    /// Desired state was changed; done when observed state reaches this generation.
    Applied {
        /// The generation.
        generation: u64,
        /// The revision that is desired now.
        revision: Digest,
        /// Why the unit will not come to it for now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<Box<Hold>>,
    },
    /// Desired state of several units was changed together; done when each has reached its generation.
    AppliedSet {
        /// What became of each.
        units: Vec<AppliedUnit>,
    },
    /// It was done (a question answered, a unit forgotten).
    Completed,
    /// It was not even begun.
    Refused {
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        message: String,
    },
    /// It was begun and could not be done.
    Failed {
        /// Why, for people.
        message: String,
    },
    /// It was begun, and what became of it cannot be known. It is never run again.
    Lost,
}

impl Status {
    /// A program ended in this way, and no more is known of that.
    #[must_use]
    pub fn exited(exit: Exit) -> Self {
        Self::Exited(exit.into())
    }

    /// Whether it did what was asked.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self {
            Self::Exited(end) => end.exit.is_success(),
            Self::Batch { steps } => steps.iter().all(|step| step.status.is_success()),
            Self::Applied { .. } | Self::AppliedSet { .. } | Self::Completed => true,
            Self::TimedOut | Self::Cancelled | Self::Refused { .. } | Self::Failed { .. } | Self::Lost => false,
        }
    }
}

/// What became of one step of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepOutcome {
    /// How it ended; never a batch.
    #[serde(flatten)]
    pub status: Status,
    /// When it began, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<Millis>,
    /// When it was over.
    pub finished_ms: Millis,
    /// How much of the batch's standard output is this step's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stdout_bytes: u64,
    /// How much of its standard error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_bytes: u64,
    /// How much of its standard output was dropped because it was over the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stdout_dropped_bytes: u64,
    /// How much of its standard error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_dropped_bytes: u64,
}

impl StepOutcome {
    /// A step that has printed nothing.
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

/// Why a command was not even begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// Its expiry has passed.
    Expired,
    /// It was issued before this agent's store existed.
    Replayed,
    /// The agent's store went back or was lost since it was issued, so nothing shows whether it was done.
    SetBack,
    /// It is dated in the future, or lives longer than a command may.
    Invalid,
    /// The agent's own policy forbids it.
    Denied,
    /// It is for other hosts, and came to this one.
    WrongHost,
    /// It is for the hosts of a group or of a select expression, and this one is none of them now. Told only of a
    /// command that came on the host's own topic: of a broadcast that is not for it a host says nothing.
    NotSelected,
    /// There is no such unit, or none of what it names otherwise.
    NotFound,
    /// There is no such user to run as.
    UnknownUser,
    /// There is no such program.
    NoSuchFile,
    /// There is such a file, and it cannot be executed.
    NotExecutable,
    /// There is no such folder to work in, or it cannot be entered.
    NoSuchFolder,
    /// It contradicts what is (such as forgetting a unit that runs).
    Conflict,
    /// As many commands run as may run at once.
    Busy,
    /// This unit cannot do that.
    Unsupported,
    /// No port of the realm is free.
    PortsExhausted,
    /// Its host was revoked before it had answered: said by the console, and replaced by the host's own outcome should that
    /// ever come.
    Revoked,
    /// It had not gone out when a later command made it void. Hosts never say this: the console does, of what it kept
    /// for a host that was away.
    Superseded,
}

/// What one unit has answered to a command that was passed on to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnitAnswer {
    /// Its answer.
    Ok(Value),
    /// Why there is none. The codes `unit_unreachable`, `unsupported`, `deadline`, `not_found`, `busy`, `invalid` and
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
