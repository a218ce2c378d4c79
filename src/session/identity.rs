//! The identity with which an agent connects, and what it sends as soon as a connection is up.

use muster_topics::{
    Millis, PROTOCOL, V1,
    name::{HostId, Name},
    presence::{Capability, Presence, PresenceState},
    topic::{Filter, HostTopic, Topic},
};
use uuid::Uuid;

/// How this agent identifies itself to the broker.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The host.
    pub host: HostId,
    /// Random at each start.
    pub instance: Uuid,
    /// The epoch of this run of the agent.
    pub epoch: u64,
    /// MQTT's keep-alive, in seconds.
    pub keep_alive_s: u16,
    /// What it can do.
    pub capabilities: Vec<Capability>,
}

impl ClientIdentity {
    /// Returns the presence of one session of this agent.
    #[must_use]
    pub fn presence(&self, session: u64, state: PresenceState, since_ms: Millis) -> Presence {
        Presence {
            v: V1,
            state,
            instance: self.instance,
            epoch: self.epoch,
            session,
            protocol: PROTOCOL,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: self.capabilities.clone(),
            since_ms,
        }
    }

    /// Returns one of this host's topics.
    #[must_use]
    pub fn topic(&self, topic: HostTopic) -> Topic {
        Topic::Host(self.host, topic)
    }

    /// The payload of the last will of a session that begins at `since_ms`.
    #[must_use]
    pub fn last_will(&self, session: u64, since_ms: Millis) -> Vec<u8> {
        json(&self.presence(session, PresenceState::Offline, since_ms))
    }

    /// What a new connection sends first, in this order, so that retained messages come before its own: its
    /// subscriptions, as a member of `groups`, and its presence (retained).
    #[must_use]
    pub fn greeting(&self, session: u64, since_ms: Millis, groups: &[Name]) -> (Vec<Filter>, Vec<u8>) {
        let presence = self.presence(session, PresenceState::Online, since_ms);
        (Filter::of_agent(self.host, groups), json(&presence))
    }
}

/// Serialises a payload. It consists of strings and numbers with string keys, so this cannot fail.
pub(crate) fn json<T: serde::Serialize>(payload: &T) -> Vec<u8> {
    serde_json::to_vec(payload).unwrap_or_default()
}
