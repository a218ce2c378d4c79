//! Presence: whether a host or a console is online, retained, and corrected by the last will.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Millis, V1};

/// Payload of `h/<host>/presence`.
///
/// An agent registers the `offline` one as its last will before it connects, publishes `online`
/// when it is connected, and `stopped` before it ends in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Presence {
    /// Version of this payload.
    pub v: V1,
    /// Whether the agent is there.
    pub state: PresenceState,
    /// Random at each start of an agent: tells a twin (a cloned disk) from the host itself.
    pub instance: Uuid,
    /// One life of an agent: grows with each start, so that an old message shows as old.
    pub epoch: u64,
    /// One connection within the epoch, from 1: an old last will names an earlier session.
    pub session: u64,
    /// The agent's version.
    pub agent_version: String,
    /// What this agent can do, beyond version 1 of the protocol.
    pub capabilities: Vec<Capability>,
    /// When this state began, by the agent's clock; of a last will, when the session began.
    pub since_ms: Millis,
}

impl Presence {
    /// The order in which a host's presences came to be: a later session supersedes an earlier one,
    /// and within one session its end supersedes its beginning.
    #[must_use]
    pub fn order(&self) -> (u64, u64, bool) {
        (self.epoch, self.session, self.state != PresenceState::Online)
    }
}

/// Whether an agent is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PresenceState {
    /// Connected.
    Online,
    /// Its connection broke: the last will speaks.
    Offline,
    /// It ended in order.
    Stopped,
}

/// Something that not every agent can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Runs commands.
    Exec,
    /// Manages yunos.
    Yuno,
    /// Takes its console's word that it is earlier than what was signed before, if that word is known to be fresh: it acknowledges a
    /// heartbeat that was made a moment ago.
    FreshTime,
    /// A capability of a newer agent, unknown to this reader.
    #[serde(other)]
    Other,
}

/// Payload of `console/<id>/presence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsolePresence {
    /// Version of this payload.
    pub v: V1,
    /// Whether the console is there.
    pub state: PresenceState,
    /// One life of a console.
    pub epoch: u64,
    /// When this state began, by the console's clock.
    pub since_ms: Millis,
}
