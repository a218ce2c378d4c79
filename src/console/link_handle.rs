//! The handle with which other parts of the console publish.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use muster_topics::{Millis, topic::Topic};
use tokio::sync::{mpsc, watch};

use super::link::ShareUses;

/// A message to publish.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) topic: Topic,
    pub(super) payload: Vec<u8>,
    pub(super) retain: bool,
}

/// Publishes through the link. Clones share it.
#[derive(Clone)]
pub(super) struct LinkHandle {
    pub(super) outbound: mpsc::Sender<Outbound>,
    pub(super) connected: watch::Receiver<bool>,
    /// When the last connection ended, or the console started without one.
    pub(super) lost_ms: Arc<AtomicI64>,
    /// Whether the last attempt failed because a certificate was refused for its validity time.
    pub(super) refused: Arc<AtomicBool>,
    /// How many batches of measurements have found no room since the start.
    pub(super) dropped: Arc<AtomicU64>,
    /// Who sends nearly as many measurements as one host may, or more.
    pub(super) shares: ShareUses,
}

impl fmt::Debug for LinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkHandle").field("connected", &self.is_connected()).finish_non_exhaustive()
    }
}

impl LinkHandle {
    /// Whether there is a connection to the broker.
    pub(super) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Since when there is no connection to the broker; `None` if there is one.
    pub(super) fn lost_ms(&self) -> Option<Millis> {
        (!self.is_connected()).then(|| self.lost_ms.load(Ordering::Relaxed))
    }

    /// Whether there is no connection because no certificate is valid at this time.
    pub(super) fn is_refused_for_time(&self) -> bool {
        !self.is_connected() && self.refused.load(Ordering::Relaxed)
    }

    /// Queues a message. It may be lost with the connection, or for lack of room: the caller repeats it until it is
    /// answered.
    pub(super) fn publish(&self, topic: Topic, payload: Vec<u8>) -> bool {
        let retain = topic.row().retained;
        let sent = self.is_connected() && self.outbound.try_send(Outbound { topic, payload, retain }).is_ok();
        if !sent {
            tracing::debug!("a message to the broker is dropped; it will be repeated");
        }
        sent
    }

    /// Queues a message once there is room; returns false if there is no connection.
    pub(super) async fn publish_in_turn(&self, topic: Topic, payload: Vec<u8>) -> bool {
        let retain = topic.row().retained;
        self.queue(Outbound { topic, payload, retain }).await
    }

    /// Does the same with a message that the broker does not retain, whatever else is on its topic.
    pub(super) async fn publish_unretained(&self, topic: Topic, payload: Vec<u8>) -> bool {
        self.queue(Outbound { topic, payload, retain: false }).await
    }

    async fn queue(&self, message: Outbound) -> bool {
        // An error means that the link has ended, because the console stops.
        self.is_connected() && self.outbound.send(message).await.is_ok()
    }
}
