//! Presence: whether a host or a console is online, retained, and corrected by the last will.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Millis, V1};

/// Payload of `s/<slot>/h/<host>/presence`.
///
/// An agent registers the `offline` one as its last will before it connects, publishes `online` when it is connected,
/// and `stopped` before it exits in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Presence {
    /// Version of this payload.
    pub v: V1,
    /// Whether the agent is online.
    pub state: PresenceState,
    /// A random id of this start of the agent, which distinguishes a twin (a cloned disk) from the host itself.
    pub instance: Uuid,
    /// The epoch of the agent, which grows with each start, so that old messages are recognised.
    pub epoch: u64,
    /// The number of the connection within the epoch, from 1: an old last will has an earlier one.
    pub session: u64,
    /// The protocol that the agent speaks: see [`PROTOCOL`](crate::PROTOCOL). A console that does not know it reads
    /// of the host.
    pub protocol: u32,
    /// The agent's version, for people.
    pub agent_version: String,
    /// What this build of the agent, on this host, can do.
    pub capabilities: Vec<Capability>,
    /// When this state began, by the agent's clock; for a last will, when the session began.
    pub since_ms: Millis,
}

impl Presence {
    /// Returns the presence's place in the order of a host's presences: a later session supersedes an earlier one, and
    /// within one session its end supersedes its beginning.
    #[must_use]
    pub fn order(&self) -> (u64, u64, bool) {
        (self.epoch, self.session, self.state != PresenceState::Online)
    }
}

/// The state of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PresenceState {
    /// Connected.
    Online,
    /// Its connection broke: this is its last will.
    Offline,
    /// It exited in order.
    Stopped,
}

/// What an agent can do, by its build and by what its host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Runs programs on the host, on command.
    Exec,
    /// Manages units of kind `yuno`.
    Yuno,
    /// Manages units of kind `container`, in the runtimes that it names.
    Container,
    /// Manages units of kind `packages`.
    Packages,
    /// Manages units of kind `files`.
    Files,
    /// Has the container runtime [`Podman`](crate::container::Runtime::Podman).
    Podman,
    /// Has the container runtime [`Lxc`](crate::container::Runtime::Lxc).
    Lxc,
    /// It sets its time back when its console confirms an earlier time than was signed before, if that message is known
    /// to be fresh: it acknowledges a heartbeat that was just made.
    FreshTime,
    /// A capability of another build, unknown to this reader.
    #[serde(other)]
    Other,
}

impl Capability {
    /// Returns the word for it on the wire; nothing for one that this build does not know.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        Some(match self {
            Self::Exec => "exec",
            Self::Yuno => "yuno",
            Self::Container => "container",
            Self::Packages => "packages",
            Self::Files => "files",
            Self::Podman => "podman",
            Self::Lxc => "lxc",
            Self::FreshTime => "fresh_time",
            Self::Other => return None,
        })
    }
}

/// The part of a presence by which its reader knows whether it understands the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct PresenceProtocol {
    /// See [`Presence::protocol`].
    pub protocol: u32,
}

/// Payload of `console/<id>/presence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsolePresence {
    /// Version of this payload.
    pub v: V1,
    /// Whether the console is online.
    pub state: PresenceState,
    /// The protocol that the console speaks: see [`PROTOCOL`](crate::PROTOCOL).
    pub protocol: u32,
    /// The epoch of the console.
    pub epoch: u64,
    /// When this state began, by the console's clock.
    pub since_ms: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_has_one_word() {
        use Capability::{Container, Exec, Files, FreshTime, Lxc, Other, Packages, Podman, Yuno};
        for one in [Exec, Yuno, Container, Packages, Files, Podman, Lxc, FreshTime] {
            assert_eq!(serde_json::to_value(one).unwrap().as_str(), one.word());
        }
        assert_eq!(serde_json::from_str::<Capability>("\"levitate\"").unwrap(), Other);
        assert_eq!(Other.word(), None);
    }
}
