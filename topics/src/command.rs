//! Commands: signed, expiring requests with an id.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Millis, V1,
    asker::Asker,
    envelope::{Body, Kind},
    name::{CommandId, HostId, Name, UnitName},
    realm::Realm,
    sealed::Sealed,
    select::{self, HostSelect},
    topic::Broadcast,
    unit::{Run, Spec},
};

pub use crate::exec::{BATCH_MAX, Batch, Exec, Keep, STDIN_MAX_BYTES, output_max_bytes};
pub use crate::verb::Verb;

/// The most output of a stream that is kept for one command on one host.
pub const OUTPUT_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The longest time between a command's issue and its expiry: seven days.
pub const LIFETIME_MAX_MS: Millis = 7 * 24 * 3_600_000;

/// In the last seconds before its expiry a command that the host is too busy for is refused for good. Earlier the host
/// answers `busy` and keeps nothing, and the command may come again.
pub const BUSY_FINAL_MS: Millis = 10_000;

/// The most hosts in one command; `all` and groups reach more. A thousand ids take 39 KB of the 64 KiB of a message.
pub const TARGET_HOSTS_MAX: usize = 1_000;

/// A signed body on the topics of commands: of one host, of all and of groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Version of this payload.
    pub v: V1,
    /// Identifies the command, so that a repetition is recognised.
    pub id: CommandId,
    /// The hosts that it is for.
    pub target: Target,
    /// When the console made it.
    pub issued_ms: Millis,
    /// When it expires: afterwards it is refused.
    pub expires_ms: Millis,
    /// Who asked for it.
    pub asked_by: Asker,
    /// The definitions of the verb's realm and its parents, parents first, so that a host that does not have them yet
    /// gets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub realms: Vec<Realm>,
    /// What to do. [`sealed`](Self::sealed) values are replaced by masks.
    pub verb: Verb,
    /// The values of the verb that only its hosts may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
}

impl Body for Command {
    const KIND: Kind = Kind::Command;
}

/// The target of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// These hosts, at most [`TARGET_HOSTS_MAX`].
    Hosts(Vec<HostId>),
    /// Every host of the fleet.
    All,
    /// The hosts with a label of this name, whatever its value. It is published on the topics of groups.
    Group(Name),
    /// The hosts that a selector matches; each decides by its own state when the command arrives. It is published on
    /// the topics of all hosts.
    Select(HostSelect),
}

impl Target {
    /// Whether the target includes a host in its present state.
    #[must_use]
    pub fn includes(&self, host: &select::Host<'_>) -> bool {
        match self {
            Self::Hosts(hosts) => hosts.contains(&host.host),
            Self::All => true,
            Self::Group(label) => host.labels.contains_key(label),
            Self::Select(select) => select.picks(host),
        }
    }

    /// Returns the topics on which it is published for many hosts at once; `None` if it is published to each host.
    #[must_use]
    pub fn broadcast(&self) -> Option<Broadcast> {
        match self {
            Self::Hosts(_) => None,
            Self::All | Self::Select(_) => Some(Broadcast::All),
            Self::Group(label) => Some(Broadcast::Group(label.clone())),
        }
    }
}

/// The most units that one command is sent to on a host: as many as a host may have.
pub const FORWARD_UNITS_MAX: usize = crate::unit::UNITS_MAX;

/// The longest name of a yuno's own command.
pub const FORWARD_NAME_MAX_BYTES: usize = 200;

/// The longest timeout of a yuno's own command: an hour.
pub const FORWARD_TIMEOUT_MAX_MS: u64 = 3_600_000;

/// A command of yunos' own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// The units, at most [`FORWARD_UNITS_MAX`].
    pub units: Vec<UnitName>,
    /// The command's name, which the yuno defines.
    pub name: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
    /// How long each may take to answer.
    pub timeout_ms: u64,
}

/// Desired state of several units, to be applied to all or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitSet {
    /// The units, each once.
    pub units: Vec<UnitWish>,
    /// Whether to check only, and change nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// The part of a larger set that this is; without it, it is the whole set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<SetPart>,
}

/// The desired state of one unit of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitWish {
    /// The unit.
    pub unit: UnitName,
    /// Its spec.
    pub spec: Box<Spec>,
    /// Whether it should run, as with [`Verb::UnitApply`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// Whether it must not exist yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new: bool,
}

/// A part of a set that is too large for one message. The host stores parts until it has all of them, in any order: all
/// but the last one to arrive are answered with `completed`, and that one with the result of the whole set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPart {
    /// The id of the set.
    pub set: CommandId,
    /// The part's number, from 1.
    pub number: u32,
    /// The number of parts, at most [`SET_PARTS_MAX`].
    pub of: u32,
}

/// The most parts of a set: as many as a host may have units, each as large as a message.
pub const SET_PARTS_MAX: u32 = 256;

/// Which part of a log is read, and its format. A line's time is when its host received it from the program; lines from
/// before times were recorded have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogView {
    /// Leave out earlier lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Millis>,
    /// Leave out later lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<Millis>,
    /// Put each line's time before it, as `2026-01-31T12:00:00.000Z`, or `-` if it is unknown, and a blank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub times: bool,
}

impl LogView {
    /// Whether it is the whole log, unchanged.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a line of this time is part of it; a line without a time only if the view has no beginning.
    #[must_use]
    pub fn has(&self, at_ms: Option<Millis>) -> bool {
        match at_ms {
            None => self.since_ms.is_none(),
            Some(at_ms) => {
                self.since_ms.is_none_or(|since_ms| at_ms >= since_ms)
                    && self.until_ms.is_none_or(|until_ms| at_ms <= until_ms)
            }
        }
    }
}

/// The most lines of a log that can be requested at once.
pub const LOG_LINES_MAX: u32 = 10_000;

/// The longest time to follow a log: an hour. To follow longer, ask again.
pub const FOLLOW_MAX_MS: u64 = 3_600_000;

/// A signed body on `s/<slot>/h/<host>/cmd` and `cmd/all`: a request to send a full heartbeat, publish the retained state again,
/// and send the outbox. It has no id and no outcome, because it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    /// Version of this payload.
    pub v: V1,
    /// When the console made it.
    pub issued_ms: Millis,
    /// The agent answers after a random part of this time, so that a fleet does not answer at once.
    pub within_ms: u64,
}

impl Body for Refresh {
    const KIND: Kind = Kind::Refresh;
}
