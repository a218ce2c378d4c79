//! Messages of the session on their way to the connection.

use std::collections::VecDeque;

use muster_session::{interface::Input, publisher::Publication};
use muster_topics::{Millis, envelope::PublicKey, name::HostId, topic::Topic};

use super::{AckToken, ConnectionHandle, LinkEvent, OUTGOING};

/// The delay before messages that the connection did not take are handed over again.
pub const RETRY_MS: Millis = 20;

/// A message for the connection.
#[derive(Debug)]
pub enum OutgoingMessage {
    /// Publish this.
    Publish(Publication),
    /// Acknowledge a message to the broker.
    Acknowledge(AckToken),
    /// End the connection in order: the last will is not published.
    Disconnect,
}

/// The connection, and the messages that it has not taken yet: of at most one round of the session.
#[derive(Debug)]
pub struct OutgoingQueue {
    host: HostId,
    connection: Option<ConnectionHandle>,
    unsent: VecDeque<OutgoingMessage>,
}

impl OutgoingQueue {
    /// Creates it without a connection.
    #[must_use]
    pub fn new(host: HostId) -> Self {
        Self { host, connection: None, unsent: VecDeque::new() }
    }

    /// Handles an event of the link, and returns it as the session takes it; `keys` are those that the console may sign
    /// with. What an earlier connection did not take is dropped; the session publishes it again.
    pub fn observe<W>(&mut self, event: LinkEvent, keys: &[PublicKey]) -> Input<AckToken, W> {
        match event {
            LinkEvent::Up(connection) => {
                let (session, since_ms) = (connection.session, connection.since_ms);
                self.disconnected();
                self.connection = Some(connection);
                Input::Connected { session, since_ms }
            }
            LinkEvent::Down => {
                self.disconnected();
                Input::Disconnected
            }
            LinkEvent::Message(message) => message.into_input(keys),
        }
    }

    /// Handles the end of the connection.
    pub fn disconnected(&mut self) {
        self.connection = None;
        self.unsent.clear();
    }

    /// Ends the connection in order, after what waits.
    pub fn disconnect(&mut self) {
        self.push(OutgoingMessage::Disconnect);
        self.send();
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends what waits; returns how many messages there is room for now.
    pub fn room(&mut self) -> usize {
        self.send();
        if self.unsent.is_empty() { OUTGOING } else { 0 }
    }

    /// Adds a message.
    pub fn push(&mut self, message: OutgoingMessage) {
        if self.is_connected() {
            self.unsent.push_back(message);
        }
    }

    /// Hands messages to the connection, as many as it takes.
    pub fn send(&mut self) {
        let Some(connection) = &self.connection else { return };
        while let Some(message) = self.unsent.pop_front() {
            let is_taken = match &message {
                OutgoingMessage::Publish(Publication { topic, retain, payload }) => {
                    connection.publish(&Topic::Host(self.host, topic.clone()), *retain, payload.clone())
                }
                OutgoingMessage::Acknowledge(receipt) => connection.acknowledge(receipt),
                OutgoingMessage::Disconnect => connection.disconnect(),
            };
            if !is_taken {
                return self.unsent.push_front(message);
            }
        }
    }

    /// When to call [`Self::send`] again.
    #[must_use]
    pub fn next_ms(&self, now_ms: Millis) -> Option<Millis> {
        (!self.unsent.is_empty()).then_some(now_ms + RETRY_MS)
    }
}
