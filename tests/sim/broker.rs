//! A model of what muster expects of a broker: MQTT 3.1.1, QoS 1, clean sessions, retained messages, last wills.
//!
//! And no more: it may drop what a busy subscriber should get, bring it twice, late or out of order, start again with nothing
//! retained, and keep what is retained from wildcards. What it does keep, for the claim of a host depends on it: a host
//! gets what comes on its own presence topic, in the order in which the broker took it. (Every broker that the end-to-end
//! tests start does: one client that reads one topic is not busy.)

use std::collections::BTreeMap;

use muster_topics::topic::{Filter, Topic};
use uuid::Uuid;

use super::wire::{ConnId, Message, matches};

#[derive(Debug, Default)]
pub(super) struct Broker {
    pub(super) is_up: bool,
    pub(super) sessions: BTreeMap<ConnId, Session>,
    pub(super) retained: BTreeMap<String, Message>,
    /// It does not bring what is retained to who subscribes to a wildcard, as RabbitMQ.
    pub(super) keeps_from_wildcards: bool,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Uuid,
    pub(super) filters: Vec<Filter>,
    pub(super) will: Option<Message>,
}

impl Broker {
    /// A client is there; gives the connection that it had before.
    pub(super) fn connect(&mut self, conn: ConnId, client: Uuid, will: Option<Message>) -> Option<ConnId> {
        let old = self.sessions.iter().find(|(_, session)| session.client == client).map(|(old, _)| *old);
        self.sessions.insert(conn, Session { client, filters: Vec::new(), will });
        old
    }

    /// Retained messages for a new subscription.
    pub(super) fn subscribe(&mut self, conn: ConnId, filters: Vec<Filter>) -> Vec<Message> {
        let Some(session) = self.sessions.get_mut(&conn) else { return Vec::new() };
        let brings = |filter: &Filter| matches!(filter, Filter::Topic(_)) || !self.keeps_from_wildcards;
        let wanted: Vec<_> = filters.iter().filter(|filter| brings(filter)).cloned().collect();
        session.filters.extend(filters);
        let retained = self.retained.values();
        retained
            .filter(|message| wanted.iter().any(|filter| matches(filter, &message.topic)))
            .map(|message| Message { retained: true, ..message.clone() })
            .collect()
    }

    /// Takes a message; gives who reads it.
    pub(super) fn publish(&mut self, message: &Message, retain: bool) -> Vec<ConnId> {
        if retain && message.body.is_empty() {
            self.retained.remove(&message.topic.to_string());
        } else if retain {
            self.retained.insert(message.topic.to_string(), message.clone());
        }
        let reads = |session: &Session| session.filters.iter().any(|filter| matches(filter, &message.topic));
        self.sessions.iter().filter(|(_, session)| reads(session)).map(|(conn, _)| *conn).collect()
    }

    /// What is retained on a topic.
    pub(super) fn retained(&self, topic: &Topic) -> Option<&Message> {
        self.retained.get(&topic.to_string())
    }

    /// All connections break; wills are spoken by nobody.
    pub(super) fn crash(&mut self, forgets: bool) -> Vec<ConnId> {
        self.is_up = false;
        if forgets {
            self.retained.clear();
        }
        std::mem::take(&mut self.sessions).into_keys().collect()
    }
}
