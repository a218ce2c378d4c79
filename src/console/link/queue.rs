//! The queues that the link fills, bounded by number and by size.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_topics::name::HostId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Inbound;
use crate::host_share::{ShareKind, ShareLevel, ShareUse};

/// Messages that wait for ingest, and as many for the recorder: what ten thousand hosts answer at once, so that the
/// broker need not keep them. Mosquitto by default keeps a thousand messages and drops further ones.
pub(super) const INBOUND: usize = 16_384;
/// Their most bytes together, in KiB: enough for all of them at the usual 500 bytes, and a thousand of the longest.
const INBOUND_MAX_KIB: usize = 64 * 1024;
/// The most KiB of one host's measurements that wait: sixteen of the longest batches. An agent sends a few, and the next ones
/// when these are acknowledged.
const HOST_MAX_KIB: usize = 1024;
/// The time in whose mean a host sends no more than it may for each second.
const RATE_OVER: Duration = Duration::from_secs(60);
/// With more hosts than this, those that have made up for what they sent are forgotten.
const RATES_PRUNED: usize = 1_024;

/// The place of a message in a queue, which is free again when it is dropped.
#[derive(Debug)]
pub(in super::super) struct QueueRoom {
    kib: OwnedSemaphorePermit,
    /// Of whose share it is.
    share: Option<(Arc<HostRoom>, HostId)>,
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
    shares: Arc<HostRoom>,
    rates: HostRates,
    dropped: Arc<AtomicU64>,
    told: ShareUses,
}

/// What hosts have nearly all of, or more, for the recorder: how much at most, and how often they wanted more.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct ShareUses(Arc<Mutex<HashMap<HostId, (ShareUse, u64)>>>);

impl ShareUses {
    /// Takes all.
    pub(in super::super) fn take(&self) -> HashMap<HostId, (ShareUse, u64)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, host: HostId, share: ShareUse) {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (most, exceeded) = uses.entry(host).or_insert((share, 0));
        most.used = most.used.max(share.used);
        *exceeded += u64::from(share.level() == ShareLevel::Exceeded);
    }
}

impl MeasurementQueue {
    /// Creates it. `host_bytes_s` is what one host may send, `dropped` counts what finds no room, and `told` has who comes near.
    pub(super) fn new(host_bytes_s: u64, dropped: Arc<AtomicU64>, told: ShareUses) -> (Self, mpsc::Receiver<Inbound>) {
        let (queue, receiver) = LinkQueue::new();
        (Self { queue, shares: Arc::default(), rates: HostRates::new(host_bytes_s), dropped, told }, receiver)
    }

    /// Adds a message of a host, if there is room; `None` once the queue is closed.
    pub(super) fn offer(&mut self, host: HostId, mut message: Inbound) -> Option<()> {
        let share = self.rates.send(host, message.payload.len() as u64, Instant::now());
        if share.level() > ShareLevel::Ample {
            self.told.add(host, share);
        }
        let room = (share.level() < ShareLevel::Exceeded).then(|| self.room(host, &message.payload)).flatten();
        let Some(room) = room else {
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

/// What each host has sent lately.
struct HostRates {
    bytes_s: u64,
    /// How much is not yet made up for, and as of when. Who has made up for everything needs no entry.
    sent: HashMap<HostId, (u64, Instant)>,
    /// With so many of them it is worth a look who has.
    prune_at: usize,
}

impl HostRates {
    fn new(bytes_s: u64) -> Self {
        Self { bytes_s: bytes_s.max(1), sent: HashMap::new(), prune_at: RATES_PRUNED }
    }

    /// What is left of this after some time: the host may send so much for each second.
    fn rest(&self, (sent, at): (u64, Instant), now: Instant) -> u64 {
        let passed_ms = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        sent.saturating_sub(self.bytes_s.saturating_mul(passed_ms) / 1_000)
    }

    /// Notes that a host sends so much, unless it is more than it may. One message alone is never more.
    fn send(&mut self, host: HostId, bytes: u64, now: Instant) -> ShareUse {
        let most = self.bytes_s.saturating_mul(RATE_OVER.as_secs());
        let rest = self.sent.get(&host).map_or(0, |sent| self.rest(*sent, now));
        let used = rest.saturating_add(bytes.min(most));
        let share = ShareUse { kind: ShareKind::Measurements, used, most };
        if share.level() == ShareLevel::Exceeded {
            return share;
        }
        if self.sent.len() >= self.prune_at {
            let mut sent = std::mem::take(&mut self.sent);
            sent.retain(|_, one| self.rest(*one, now) > 0);
            self.prune_at = (2 * sent.len()).max(RATES_PRUNED);
            self.sent = sent;
        }
        self.sent.insert(host, (used, now));
        share
    }
}

/// How many KiB of each host wait; hosts of which nothing waits have no entry.
#[derive(Debug, Default)]
struct HostRoom(Mutex<HashMap<HostId, usize>>);

impl HostRoom {
    /// Takes so much of a host's room; false if that is more than is left.
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
        let (mut queue, mut receiver) = MeasurementQueue::new(1 << 20, Arc::clone(&dropped), ShareUses::default());
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
        let (mut queue, receiver) = MeasurementQueue::new(1 << 20, Arc::clone(&dropped), ShareUses::default());
        for _ in 0..INBOUND + 5 {
            let host = HostId::random();
            queue.offer(host, batch(host, 1)).unwrap();
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 5);
        drop(receiver);
        let host = HostId::random();
        assert!(queue.offer(host, batch(host, 1)).is_none());
    }

    #[test]
    fn host_that_sends_more_than_it_may_is_cut_and_others_are_not() {
        let (mut rates, begin) = (HostRates::new(1_000), Instant::now());
        let (loud, quiet) = (HostId::random(), HostId::random());
        let level = |rates: &mut HostRates, host, bytes, after_s| {
            rates.send(host, bytes, begin + Duration::from_secs(after_s)).level()
        };
        // A minute's worth at once, of which nine tenths are near the end.
        assert_eq!(level(&mut rates, loud, 40_000, 0), ShareLevel::Ample);
        assert_eq!(level(&mut rates, loud, 15_000, 0), ShareLevel::Near);
        assert_eq!(level(&mut rates, loud, 10_000, 0), ShareLevel::Exceeded);
        assert_eq!(level(&mut rates, quiet, 10_000, 0), ShareLevel::Ample);
        // What was refused counts for nothing, and a second makes up for a second's worth.
        assert_eq!(level(&mut rates, loud, 6_000, 1), ShareLevel::Near);
        assert_eq!(level(&mut rates, loud, 1_000, 1), ShareLevel::Exceeded);
        assert_eq!(level(&mut rates, loud, 1_000, 61), ShareLevel::Ample);
        assert_eq!(level(&mut rates, quiet, u64::MAX, 3_600), ShareLevel::Near, "one message alone is never more");
    }

    #[test]
    fn hosts_that_have_made_up_for_what_they_sent_are_forgotten() {
        let (mut rates, begin) = (HostRates::new(1_000), Instant::now());
        for _ in 0..3 * RATES_PRUNED {
            rates.send(HostId::random(), 500, begin);
        }
        assert_eq!(rates.sent.len(), 3 * RATES_PRUNED);
        for second in 0..2 * RATES_PRUNED as u64 {
            rates.send(HostId::random(), 500, begin + Duration::from_secs(second + 1));
        }
        assert!(rates.sent.len() <= RATES_PRUNED, "{}", rates.sent.len());
    }
}
