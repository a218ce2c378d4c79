//! A message from a host, and its acknowledgement to the broker.

use muster_topics::topic::Topic;
use rumqttc::Publish;
use tokio::sync::mpsc;

use super::link::QueueRoom;

/// A message from a host, with its acknowledgement.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) topic: Topic,
    pub(super) payload: Vec<u8>,
    /// Whether it was retained by the broker, and not just published.
    pub(super) retained: bool,
    pub(super) receipt: MessageReceipt,
    /// Its place in the queue, as long as it is there.
    pub(super) room: Option<QueueRoom>,
}

/// Acknowledges an MQTT message on the connection on which it arrived. If it is dropped, the message stays
/// unacknowledged.
#[derive(Debug)]
pub(super) struct MessageReceipt(pub(super) Option<(mpsc::Sender<Publish>, Publish)>);

impl MessageReceipt {
    /// Creates one for a message that needs no acknowledgement.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Acknowledges the message, because it is stored or useless.
    pub(super) fn acknowledge(self) {
        if let Some((acks, publish)) = self.0 {
            // Closed: the connection has ended. It cannot be full, see ACKS.
            let _ = acks.try_send(publish);
        }
    }
}
