//! The queues that the link fills, bounded by number and by size.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use muster_topics::name::HostId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Inbound;

/// Messages that wait for ingest, and as many for the recorder: what ten thousand hosts answer at once, so that the
/// broker need not keep them. Mosquitto by default keeps a thousand messages and drops further ones.
pub(super) const INBOUND: usize = 16_384;
/// Their most bytes together, in KiB: enough for all of them at the usual 500 bytes, and a thousand of the longest.
const INBOUND_MAX_KIB: usize = 64 * 1024;
/// The most KiB of one host's measurements that wait: sixteen of the longest batches. An agent sends a few, and the next ones
/// when these are acknowledged.
const HOST_MAX_KIB: usize = 1024;

/// The place of a message in a queue, which is free again when it is dropped.
#[derive(Debug)]
pub(in super::super) struct QueueRoom {
    kib: OwnedSemaphorePermit,
    /// Of whose share it is.
    share: Option<(Arc<HostShares>, HostId)>,
}

impl Drop for QueueRoom {
    fn drop(&mut self) {
        if let Some((shares, host)) = &self.share {
            shares.give_back(*host, self.kib.num_permits());
        }
    }
}

fn kib(payload: &[u8]) -> u32 {
    u32::try_from(payload.len().div_ceil(1024)).unwrap_or(u32::MAX)
}

/// The sending end of a queue.
pub(super) struct LinkQueue {
    messages: mpsc::Sender<Inbound>,
    kib: Arc<Semaphore>,
}

impl LinkQueue {
    pub(super) fn new() -> (Self, mpsc::Receiver<Inbound>) {
        let (messages, receiver) = mpsc::channel(INBOUND);
        (Self { messages, kib: Arc::new(Semaphore::new(INBOUND_MAX_KIB)) }, receiver)
    }

    /// Adds a message as soon as there is room; `None` once the queue is closed.
    pub(super) async fn add(&self, mut message: Inbound) -> Option<()> {
        let kib = Arc::clone(&self.kib).acquire_many_owned(kib(&message.payload)).await.ok()?;
        message.room = Some(QueueRoom { kib, share: None });
        self.messages.send(message).await.ok()
    }
}

/// The sending end of the recorder's queue, which never waits: what finds no room is dropped, and its host sends it again. So
/// no flood of measurements holds back what comes on the same connection, and that of one host leaves room for the others.
pub(super) struct MeasurementQueue {
    queue: LinkQueue,
    shares: Arc<HostShares>,
    dropped: Arc<AtomicU64>,
}

impl MeasurementQueue {
    /// Creates it; `dropped` counts what finds no room.
    pub(super) fn new(dropped: Arc<AtomicU64>) -> (Self, mpsc::Receiver<Inbound>) {
        let (queue, receiver) = LinkQueue::new();
        (Self { queue, shares: Arc::default(), dropped }, receiver)
    }

    /// Adds a message of a host, if there is room; `None` once the queue is closed.
    pub(super) fn offer(&self, host: HostId, mut message: Inbound) -> Option<()> {
        let Some(room) = self.room(host, &message.payload) else {
            self.drop(message);
            return Some(());
        };
        message.room = Some(room);
        match self.queue.messages.try_send(message) {
            Ok(()) => Some(()),
            Err(mpsc::error::TrySendError::Full(message)) => {
                self.drop(message);
                Some(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => None,
        }
    }

    fn room(&self, host: HostId, payload: &[u8]) -> Option<QueueRoom> {
        let kib = Arc::clone(&self.queue.kib).try_acquire_many_owned(kib(payload)).ok()?;
        let is_free = self.shares.take(host, kib.num_permits());
        is_free.then(|| QueueRoom { kib, share: Some((Arc::clone(&self.shares), host)) })
    }

    fn drop(&self, message: Inbound) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        message.receipt.acknowledge();
    }
}

/// How many KiB of each host wait; hosts of which nothing waits have no entry.
#[derive(Debug, Default)]
struct HostShares(Mutex<HashMap<HostId, usize>>);

impl HostShares {
    /// Takes so much of a host's share; false if that is more than is left.
    fn take(&self, host: HostId, kib: usize) -> bool {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = shares.get(&host).copied().unwrap_or_default();
        // One message alone has room, whatever it is.
        let is_free = used == 0 || used + kib <= HOST_MAX_KIB;
        if is_free {
            shares.insert(host, used + kib);
        }
        is_free
    }

    fn give_back(&self, host: HostId, kib: usize) {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match shares.get_mut(&host) {
            Some(used) if *used > kib => *used -= kib,
            _ => drop(shares.remove(&host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::topic::{HostTopic, Topic};

    use super::*;
    use crate::link::MessageReceipt;

    fn batch(host: HostId, bytes: usize) -> Inbound {
        Inbound {
            topic: Topic::Host(host, HostTopic::Metric),
            payload: vec![0; bytes],
            retained: false,
            receipt: MessageReceipt::none(),
            room: None,
        }
    }

    #[tokio::test]
    async fn flood_of_one_host_is_dropped_and_leaves_room_for_others() {
        let dropped = Arc::new(AtomicU64::default());
        let (queue, mut receiver) = MeasurementQueue::new(Arc::clone(&dropped));
        let (loud, quiet) = (HostId::random(), HostId::random());
        for _ in 0..1_000 {
            queue.offer(loud, batch(loud, 60_000)).unwrap();
        }
        queue.offer(quiet, batch(quiet, 60_000)).unwrap();
        let mut waiting = Vec::new();
        while let Ok(message) = receiver.try_recv() {
            waiting.push(message);
        }
        let of = |host| waiting.iter().filter(|message| message.topic.host() == Some(host)).count();
        assert_eq!((of(loud), of(quiet), dropped.load(Ordering::Relaxed)), (17, 1, 983));
        // What was taken from the queue and is still worked on counts as well.
        queue.offer(loud, batch(loud, 60_000)).unwrap();
        assert!(receiver.try_recv().is_err());
        drop(waiting);
        queue.offer(loud, batch(loud, 60_000)).unwrap();
        assert!(receiver.try_recv().is_ok());
        assert_eq!(queue.shares.0.lock().unwrap().len(), 0, "nothing of anybody waits");
    }

    #[tokio::test]
    async fn queue_that_is_full_drops_and_one_that_is_closed_says_so() {
        let dropped = Arc::new(AtomicU64::default());
        let (queue, receiver) = MeasurementQueue::new(Arc::clone(&dropped));
        for _ in 0..INBOUND + 5 {
            let host = HostId::random();
            queue.offer(host, batch(host, 1)).unwrap();
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 5);
        drop(receiver);
        let host = HostId::random();
        assert!(queue.offer(host, batch(host, 1)).is_none());
    }
}
