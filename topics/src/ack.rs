//! Acknowledgements: what the console has stored, so that an agent may delete it from its outbox.
//! A broker's own acknowledgement does not mean that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis, V1,
    alert::AlertAck,
    envelope::{Body, Kind},
    event::TaskAck,
    name::{CommandId, HostId},
};

/// A signed body on `s/<slot>/h/<host>/ack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ack {
    /// Version of this payload.
    pub v: V1,
    /// The host whose messages were stored. It is under the signature, so an acknowledgement cannot be replayed to
    /// another host.
    pub host: HostId,
    /// When the console made it.
    pub issued_ms: Millis,
    /// Stored messages about commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<ReportAck>,
    /// The newest heartbeat that was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Numbered>,
    /// Stored metric batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Numbered>,
    /// Stored messages about alerts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<AlertAck>,
    /// Stored ends of tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskAck>,
    /// The answer to a heartbeat with the whole state: an agent takes no command before its first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lives: Option<HostLives>,
}

/// The most lives of a host that the console remembers: see [`HostLives`].
pub const LIVES_MAX: usize = 16;

/// Which lives of a host the console has heard of: a host whose disk does not know the later ones has an older copy of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostLives {
    /// The epoch of the heartbeat that this answers, so that an earlier answer cannot be repeated.
    pub asked_by: u64,
    /// The epochs of those lives of which a heartbeat was stored, the last one first; at most [`LIVES_MAX`].
    pub heard: Vec<u64>,
}

impl Body for Ack {
    const KIND: Kind = Kind::Ack;
}

/// The number of one message about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportAck {
    /// The command.
    pub command: CommandId,
    /// The message's number.
    pub seq: u64,
}

/// The number of a message within one epoch of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Numbered {
    /// The epoch.
    pub epoch: u64,
    /// The number.
    pub seq: u64,
}
