//! The queue of one session: filled by the exchange, emptied by the client's connection.
//!
//! The policy for a client that does not keep up, in this order:
//! 1. Queues are bounded, in bytes: per session, for all sessions of one identity, and in total. Beyond
//!    either of the last two a session has only [`SURE_BYTES`] for itself.
//! 2. When there is no room, a message of QoS 0 is dropped, and counted.
//! 3. A message of QoS 1 displaces queued ones of QoS 0.
//! 4. If that does not help either, the session ends: its queue is dropped, and the client is disconnected
//!    with a reason. It returns to an empty session and knows that it missed something.
//!
//! A session and its identity are charged for each message as if it existed for them alone, because they subscribed to it. The
//! total is charged for real memory: a message in a thousand queues once ([`PooledMessage`]), and each entry.
//! Messages that a connection has taken but not sent still count, and so do those that may have to be sent again.
//!
//! **Invariant: no message of QoS 1 is ever skipped**: a mailbox that could not take one takes no other until it is
//! dropped.
//!
//! **Invariant: nobody waits for a mailbox.** Adding a message takes a short lock and never blocks on a client.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

use crate::message::{BrokerMessage, QoS};

/// What may wait for every session, however much waits for others: a burst of a few dozen commands.
const SURE_BYTES: usize = 32 * 1024;

/// What a waiting message costs besides its own bytes: its slot in the queue, and the allocation's overhead.
const PARCEL_BYTES: usize = 80;

/// A count of bytes, with its limit.
#[derive(Debug)]
struct ByteBudget {
    used: AtomicUsize,
    max: usize,
}

impl ByteBudget {
    fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.used() >= self.max
    }

    /// Changes the count from `before` to `after`.
    fn change(&self, before: usize, after: usize) {
        if after > before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

/// What waits for all sessions together: each message once, and its slots.
#[derive(Debug)]
pub(crate) struct MessagePool(ByteBudget);

impl MessagePool {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self(ByteBudget::new(max)))
    }

    /// Returns the used bytes.
    pub(crate) fn used(&self) -> usize {
        self.0.used()
    }
}

/// What all sessions of one identity have together: waiting messages, and subscriptions.
#[derive(Debug)]
pub(crate) struct IdentityBacklog {
    queued: ByteBudget,
    subscriptions: ByteBudget,
    pool: Arc<MessagePool>,
}

/// A subscription's place in its identity's limit, released on drop.
#[derive(Debug)]
pub(crate) struct SubscriptionPlace(Arc<IdentityBacklog>);

impl Drop for SubscriptionPlace {
    fn drop(&mut self) {
        self.0.subscriptions.change(1, 0);
    }
}

impl IdentityBacklog {
    pub(crate) fn new(max_bytes: usize, subscriptions_max: usize, pool: Arc<MessagePool>) -> Arc<Self> {
        Arc::new(Self { queued: ByteBudget::new(max_bytes), subscriptions: ByteBudget::new(subscriptions_max), pool })
    }

    /// Returns a place for one more subscription, if there is one.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Option<SubscriptionPlace> {
        if self.subscriptions.is_full() {
            return None;
        }
        self.subscriptions.change(0, 1);
        Some(SubscriptionPlace(Arc::clone(self)))
    }

    /// Returns the used bytes.
    pub(crate) fn used(&self) -> usize {
        self.queued.used()
    }

    fn is_full(&self) -> bool {
        self.queued.is_full() || self.pool.0.is_full()
    }
}

/// A message that waits in any number of queues: it counts in the pool until the last has released it.
#[derive(Debug)]
pub(crate) struct PooledMessage {
    message: BrokerMessage,
    pool: Arc<MessagePool>,
}

impl PooledMessage {
    pub(crate) fn new(message: BrokerMessage, pool: &Arc<MessagePool>) -> Arc<Self> {
        pool.0.change(0, message.len());
        Arc::new(Self { message, pool: Arc::clone(pool) })
    }
}

impl Deref for PooledMessage {
    type Target = BrokerMessage;

    fn deref(&self) -> &BrokerMessage {
        &self.message
    }
}

impl Drop for PooledMessage {
    fn drop(&mut self) {
        self.pool.0.change(self.message.len(), 0);
    }
}

/// A message on its way to one client.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) message: Arc<PooledMessage>,
    /// The lower of publisher's and subscription's.
    pub(crate) qos: QoS,
    /// The retain flag for the client.
    pub(crate) retain: bool,
    pub(crate) subscription_id: Option<NonZeroU32>,
}

impl Parcel {
    pub(crate) fn cost(&self) -> usize {
        self.message.len() + PARCEL_BYTES
    }
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    /// It waits.
    Taken,
    /// It waits, and this many of QoS 0 were dropped for it.
    Instead(u64),
    /// It was of QoS 0 and was dropped: there was no room, or no connected client.
    Dropped,
    /// There was no room: this session ends.
    Overflow,
    /// The session had ended already.
    Over,
}

/// The queue of one session.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Mutex<ParcelQueue>,
    max_bytes: usize,
    account: Arc<IdentityBacklog>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct ParcelQueue {
    parcels: VecDeque<Parcel>,
    bytes: usize,
    /// Bytes and slots of what was taken last, until something is taken again.
    taken: (usize, usize),
    /// Bytes of unacknowledged messages that are kept.
    owed: usize,
    /// The bytes counted for the identity, and the slots in the pool.
    charged: (usize, usize),
    /// Whether a client is connected.
    attached: bool,
    over: bool,
}

impl Mailbox {
    pub(crate) fn new(max_bytes: usize, account: Arc<IdentityBacklog>) -> Arc<Self> {
        let queue = ParcelQueue { attached: true, ..ParcelQueue::default() };
        Arc::new(Self { queue: Mutex::new(queue), max_bytes, account, waker: AtomicWaker::new() })
    }

    /// The backlog of the session's identity.
    pub(crate) fn account(&self) -> &Arc<IdentityBacklog> {
        &self.account
    }

    fn queue(&self) -> MutexGuard<'_, ParcelQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most bytes that may wait now; as many may be unacknowledged.
    pub(crate) fn max_bytes(&self) -> usize {
        if self.account.is_full() { self.max_bytes.min(SURE_BYTES) } else { self.max_bytes }
    }

    /// Sets the bytes of unacknowledged messages that are kept.
    pub(crate) fn owe(&self, bytes: usize) {
        let mut queue = self.queue();
        queue.owed = bytes;
        self.settle(&mut queue);
    }

    /// Adds a message, or applies the overflow policy.
    pub(crate) fn put(&self, parcel: Parcel) -> PutOutcome {
        let max_bytes = self.max_bytes();
        let mut queue = self.queue();
        let was_empty = queue.parcels.is_empty();
        let put = queue.put(parcel, max_bytes);
        self.settle(&mut queue);
        drop(queue);
        if put == PutOutcome::Overflow || (was_empty && put == PutOutcome::Taken) {
            self.waker.wake();
        }
        put
    }

    /// Adds a few retained messages that the session itself has requested, after it has sent the ones before.
    pub(crate) fn put_retained(&self, parcels: impl Iterator<Item = Parcel>) {
        let mut queue = self.queue();
        if !queue.over {
            for parcel in parcels {
                queue.bytes += parcel.cost();
                queue.parcels.push_back(parcel);
            }
            self.settle(&mut queue);
            self.waker.wake();
        }
    }

    /// Returns the waiting bytes.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queue().bytes
    }

    /// Updates the counts of identity and pool.
    fn settle(&self, queue: &mut ParcelQueue) {
        let (taken_bytes, taken_places) = queue.taken;
        let now = (queue.bytes + taken_bytes + queue.owed, queue.parcels.len() + taken_places);
        let before = std::mem::replace(&mut queue.charged, now);
        self.account.queued.change(before.0, now.0);
        self.account.pool.0.change(before.1 * PARCEL_BYTES, now.1 * PARCEL_BYTES);
    }

    /// Moves everything that waits to `to`, which must be empty: what was taken before has been sent.
    pub(crate) fn take(&self, to: &mut VecDeque<Parcel>) {
        let mut queue = self.queue();
        std::mem::swap(&mut queue.parcels, to);
        queue.taken = (std::mem::take(&mut queue.bytes), to.len());
        self.settle(&mut queue);
    }

    /// Ready when something waits, or the session has ended (then true).
    pub(crate) fn poll_something(&self, context: &mut Context<'_>) -> Poll<bool> {
        self.waker.register(context.waker());
        let queue = self.queue();
        if queue.over {
            Poll::Ready(true)
        } else if queue.parcels.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(false)
        }
    }

    /// Whether the session has ended for lack of room.
    pub(crate) fn is_over(&self) -> bool {
        self.queue().over
    }

    /// Handles a disconnect: `rest`, which was not sent, waits again before later messages. Until a client is attached
    /// again, only messages of QoS 1 are accepted.
    pub(crate) fn detach(&self, mut rest: VecDeque<Parcel>) {
        let mut queue = self.queue();
        queue.attached = false;
        rest.append(&mut queue.parcels);
        rest.retain(|parcel| parcel.qos == QoS::AtLeastOnce);
        queue.bytes = rest.iter().map(Parcel::cost).sum();
        queue.parcels = rest;
        queue.taken = (0, 0);
        if queue.over {
            queue.clear();
        }
        self.settle(&mut queue);
    }

    /// Handles a new connection of the client.
    pub(crate) fn attach(&self) {
        self.queue().attached = true;
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let (bytes, places) = self.queue().charged;
        self.account.queued.change(bytes, 0);
        self.account.pool.0.change(places * PARCEL_BYTES, 0);
    }
}

impl ParcelQueue {
    fn clear(&mut self) {
        self.parcels = VecDeque::new();
        self.bytes = 0;
    }

    fn put(&mut self, parcel: Parcel, max_bytes: usize) -> PutOutcome {
        let cost = parcel.cost();
        if self.over {
            return PutOutcome::Over;
        }
        let fits = |queue: &Self| queue.bytes + cost <= max_bytes;
        if parcel.qos == QoS::AtMostOnce && !(self.attached && fits(self)) {
            return PutOutcome::Dropped;
        }
        let mut driven_out = 0;
        if !fits(self) {
            let before = self.parcels.len();
            self.parcels.retain(|waiting| waiting.qos == QoS::AtLeastOnce);
            self.bytes = self.parcels.iter().map(Parcel::cost).sum();
            driven_out = (before - self.parcels.len()) as u64;
            // A single message may exceed what is left for everybody, but not a queue of them.
            if !fits(self) && !self.parcels.is_empty() {
                self.clear();
                self.over = true;
                return PutOutcome::Overflow;
            }
        }
        self.bytes += cost;
        self.parcels.push_back(parcel);
        if driven_out == 0 { PutOutcome::Taken } else { PutOutcome::Instead(driven_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::task::noop_waker;
    use proptest::prelude::*;

    fn parcel(text: &str, qos: QoS) -> Parcel {
        lot(text, qos, &MessagePool::new(usize::MAX))
    }

    /// A message that is counted in a pool.
    fn lot(text: &str, qos: QoS, pool: &Arc<MessagePool>) -> Parcel {
        let message = PooledMessage::new(BrokerMessage::plain("a", text, false), pool);
        Parcel { message, qos, retain: false, subscription_id: None }
    }

    fn cost() -> usize {
        parcel("x", QoS::AtLeastOnce).cost()
    }

    fn mailbox(max: usize) -> (Arc<Mailbox>, Arc<IdentityBacklog>) {
        let account = IdentityBacklog::new(usize::MAX, 2, MessagePool::new(usize::MAX));
        (Mailbox::new(max * cost(), Arc::clone(&account)), account)
    }

    fn texts(mailbox: &Mailbox) -> Vec<String> {
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        mailbox.take(&mut VecDeque::new());
        taken.iter().map(|parcel| String::from_utf8(parcel.message.payload().to_vec()).unwrap()).collect()
    }

    fn poll(mailbox: &Mailbox) -> Poll<bool> {
        mailbox.poll_something(&mut Context::from_waker(&noop_waker()))
    }

    #[test]
    fn full_mailbox_drops_qos_0_then_ends_the_session() {
        use QoS::{AtLeastOnce, AtMostOnce};
        let (mailbox, account) = mailbox(3);
        assert_eq!(poll(&mailbox), Poll::Pending);
        for (text, qos, expected) in [
            ("a", AtMostOnce, PutOutcome::Taken),
            ("b", AtLeastOnce, PutOutcome::Taken),
            ("c", AtMostOnce, PutOutcome::Taken),
            ("d", AtMostOnce, PutOutcome::Dropped),
            ("e", AtLeastOnce, PutOutcome::Instead(2)),
            ("f", AtMostOnce, PutOutcome::Taken),
        ] {
            assert_eq!(mailbox.put(parcel(text, qos)), expected, "{text}");
        }
        assert_eq!(poll(&mailbox), Poll::Ready(false));
        assert_eq!(texts(&mailbox), ["b", "e", "f"]);
        assert_eq!(account.used(), 0);
        for (text, expected) in [
            ("a", PutOutcome::Taken),
            ("b", PutOutcome::Taken),
            ("c", PutOutcome::Taken),
            ("d", PutOutcome::Overflow),
            ("e", PutOutcome::Over),
        ] {
            assert_eq!(mailbox.put(parcel(text, AtLeastOnce)), expected, "{text}");
        }
        assert_eq!((poll(&mailbox), mailbox.is_over(), account.used()), (Poll::Ready(true), true, 0));
        assert!(texts(&mailbox).is_empty());
    }

    #[test]
    fn offline_session_keeps_qos_1_messages() {
        use QoS::{AtLeastOnce, AtMostOnce};
        let (mailbox, account) = mailbox(9);
        for (text, qos) in [("1", AtLeastOnce), ("2", AtMostOnce), ("3", AtLeastOnce)] {
            mailbox.put(parcel(text, qos));
        }
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        taken.pop_front();
        mailbox.put(parcel("4", AtLeastOnce));
        mailbox.put(parcel("5", AtMostOnce));
        mailbox.detach(taken);
        assert_eq!(mailbox.put(parcel("6", AtMostOnce)), PutOutcome::Dropped);
        assert_eq!(mailbox.put(parcel("7", AtLeastOnce)), PutOutcome::Taken);
        assert_eq!(account.used(), 3 * cost());
        mailbox.attach();
        mailbox.put(parcel("8", AtMostOnce));
        assert_eq!(texts(&mailbox), ["3", "4", "7", "8"]);
        mailbox.put(parcel("9", AtLeastOnce));
        drop(mailbox);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn sessions_keep_a_minimum_beyond_shared_limits() {
        for (all, own) in [(1, usize::MAX), (usize::MAX, 1)] {
            let pool = MessagePool::new(all);
            let account = IdentityBacklog::new(own, 2, Arc::clone(&pool));
            let greedy = Mailbox::new(usize::MAX, Arc::clone(&account));
            let large = "x".repeat(SURE_BYTES);
            assert_eq!(greedy.put(lot(&large, QoS::AtLeastOnce, &pool)), PutOutcome::Taken);
            let other = Mailbox::new(usize::MAX, Arc::clone(&account));
            // Even a larger message, if it is the only one.
            assert_eq!(other.put(lot(&large, QoS::AtLeastOnce, &pool)), PutOutcome::Taken);
            assert_eq!(other.put(lot("x", QoS::AtMostOnce, &pool)), PutOutcome::Dropped);
            // Another identity is not affected by this one's excess.
            let stranger = Mailbox::new(usize::MAX, IdentityBacklog::new(usize::MAX, 2, Arc::clone(&pool)));
            assert_eq!(stranger.put(lot(&large, QoS::AtLeastOnce, &pool)), PutOutcome::Taken);
            let put = stranger.put(lot("x", QoS::AtLeastOnce, &pool));
            assert_eq!(put, if own == 1 { PutOutcome::Taken } else { PutOutcome::Overflow });
            assert_eq!(greedy.put(lot("x", QoS::AtLeastOnce, &pool)), PutOutcome::Overflow);
            assert_eq!(other.put(lot("x", QoS::AtLeastOnce, &pool)), PutOutcome::Overflow);
        }
    }

    #[test]
    fn shared_message_is_charged_once() {
        let pool = MessagePool::new(usize::MAX);
        let parcel = lot(&"x".repeat(100_000), QoS::AtLeastOnce, &pool);
        let length = parcel.message.len();
        let accounts: Vec<_> = (0..10).map(|_| IdentityBacklog::new(usize::MAX, 2, Arc::clone(&pool))).collect();
        let mailboxes: Vec<_> = accounts.iter().map(|account| Mailbox::new(usize::MAX, Arc::clone(account))).collect();
        for mailbox in &mailboxes {
            assert_eq!(mailbox.put(parcel.clone()), PutOutcome::Taken);
        }
        drop(parcel);
        assert_eq!(pool.used(), length + 10 * PARCEL_BYTES);
        assert!(accounts.iter().all(|account| account.used() == length + PARCEL_BYTES));
        let mut taken = VecDeque::new();
        mailboxes[0].take(&mut taken);
        // What is taken and not sent still counts as waiting.
        assert_eq!((pool.used(), accounts[0].used()), (length + 10 * PARCEL_BYTES, length + PARCEL_BYTES));
        drop(mailboxes);
        assert_eq!(pool.used(), length);
        drop(taken);
        assert!(pool.used() == 0 && accounts.iter().all(|account| account.used() == 0));
    }

    #[test]
    fn subscriptions_of_an_identity_are_limited() {
        let (_, account) = mailbox(1);
        let (first, second) = (account.subscribe(), account.subscribe());
        assert!(first.is_some() && second.is_some() && account.subscribe().is_none());
        drop(first);
        assert!(account.subscribe().is_some() && account.subscribe().is_some());
    }

    proptest! {
        /// Whatever arrives, bytes are counted exactly, and what is taken is in order with no QoS 1 missing.
        #[test]
        fn order_and_count(steps in proptest::collection::vec(proptest::option::of(any::<bool>()), 0..60)) {
            let (mailbox, account) = mailbox(5);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(sure) => {
                        let qos = if sure { QoS::AtLeastOnce } else { QoS::AtMostOnce };
                        let put = mailbox.put(parcel(&((number % 10).to_string()), qos));
                        if put == PutOutcome::Overflow {
                            mailbox.take(&mut VecDeque::new());
                            prop_assert_eq!(account.used(), 0);
                            return Ok(());
                        }
                        if sure {
                            sent.push((number % 10).to_string());
                        }
                    }
                    None => {
                        let mut taken = VecDeque::new();
                        // As much again was taken the time before.
                        prop_assert!(account.used() <= 10 * cost());
                        mailbox.take(&mut taken);
                        prop_assert_eq!(account.used(), taken.len() * cost());
                        let sure = taken.iter().filter(|parcel| parcel.qos == QoS::AtLeastOnce);
                        got.extend(sure.map(|parcel| String::from_utf8(parcel.message.payload().to_vec()).unwrap()));
                    }
                }
            }
            let mut taken = VecDeque::new();
            mailbox.take(&mut taken);
            let sure = taken.iter().filter(|parcel| parcel.qos == QoS::AtLeastOnce);
            got.extend(sure.map(|parcel| String::from_utf8(parcel.message.payload().to_vec()).unwrap()));
            prop_assert_eq!(got, sent);
        }
    }
}
