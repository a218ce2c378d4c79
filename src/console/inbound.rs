//! A message from a host, and its acknowledgement to the broker.

use muster_topics::topic::Topic;
use rumqttc::Publish;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// A message from a host, and how to say that it is safe.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) topic: Topic,
    pub(super) payload: Vec<u8>,
    /// The broker had kept it: nobody has said it just now.
    pub(super) retained: bool,
    pub(super) receipt: MessageReceipt,
    /// Its place in the queue.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// Acknowledges one MQTT message on the connection that it came by. Dropped without a word, the
/// message stays unacknowledged.
#[derive(Debug)]
pub(super) struct MessageReceipt(pub(super) Option<(mpsc::Sender<Publish>, Publish)>);

impl MessageReceipt {
    /// Of a message that nobody waits for.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// The message is safe, or of no use to anybody.
    pub(super) fn acknowledge(self) {
        if let Some((acks, publish)) = self.0 {
            // Closed: the connection is gone. Full cannot be, see ACKS.
            let _ = acks.try_send(publish);
        }
    }
}
