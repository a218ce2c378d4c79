//! What waits for one session: put in by the exchange, taken out by the client's connection.
//!
//! The policy for a client that does not keep up, in this order:
//! 1. What waits is bounded, in bytes: per session, for all sessions of one identity, and for everybody together. Beyond
//!    either of the last two a session has only [`SURE_BYTES`] for itself.
//! 2. When there is no room, a message of QoS 0 is dropped, and counted.
//! 3. A message of QoS 1 drives out what waits with QoS 0.
//! 4. If that does not help either, the session is over: everything that waits is let go, and the client is disconnected
//!    with a reason. It comes back to an empty session and knows that it missed something.
//!
//! A session and its identity are charged for each message as if nobody else had it: it is what they asked for. Everybody
//! together is charged for what is really held: a message that waits in a thousand places once ([`Lot`]), and each place.
//! What a connection has taken and not sent yet still waits, and so does what is to be sent again if it is not acknowledged.
//!
//! **Invariant: no message of QoS 1 is ever skipped**: a mailbox that could not take one takes no other until it is
//! thrown away.
//!
//! **Invariant: nobody waits for a mailbox.** Putting a message in takes a short lock and never blocks on a client.

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

use crate::message::{Message, QoS};

/// What every session may have waiting, however much waits for others: a burst of a few dozen commands.
const SURE_BYTES: usize = 32 * 1024;

/// What a waiting message costs besides its own bytes: its place in the queue, and the allocation's own record.
const PARCEL_BYTES: usize = 80;

/// A count of bytes, and how many there may be.
#[derive(Debug)]
struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.used() >= self.max
    }

    /// Counts `after` bytes where there were `before`.
    fn change(&self, before: usize, after: usize) {
        if after > before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

/// What waits for everybody together: each message once, and its places.
#[derive(Debug)]
pub(crate) struct Pool(Budget);

impl Pool {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self(Budget::new(max)))
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.0.used()
    }
}

/// What all sessions of one identity have together: what waits for them, and subscriptions.
#[derive(Debug)]
pub(crate) struct Account {
    queued: Budget,
    subscriptions: Budget,
    pool: Arc<Pool>,
}

/// A subscription's place among those of its identity, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct SubscriptionPlace(Arc<Account>);

impl Drop for SubscriptionPlace {
    fn drop(&mut self) {
        self.0.subscriptions.change(1, 0);
    }
}

impl Account {
    pub(crate) fn new(max_bytes: usize, subscriptions_max: usize, pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { queued: Budget::new(max_bytes), subscriptions: Budget::new(subscriptions_max), pool })
    }

    /// A place for one more subscription, if there is one.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Option<SubscriptionPlace> {
        if self.subscriptions.is_full() {
            return None;
        }
        self.subscriptions.change(0, 1);
        Some(SubscriptionPlace(Arc::clone(self)))
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.queued.used()
    }

    fn is_full(&self) -> bool {
        self.queued.is_full() || self.pool.0.is_full()
    }
}

/// A message that waits, in as many places as it may be: the pool is charged for it until the last has let it go.
#[derive(Debug)]
pub(crate) struct Lot {
    message: Message,
    pool: Arc<Pool>,
}

impl Lot {
    pub(crate) fn new(message: Message, pool: &Arc<Pool>) -> Arc<Self> {
        pool.0.change(0, message.len());
        Arc::new(Self { message, pool: Arc::clone(pool) })
    }
}

impl Deref for Lot {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        self.pool.0.change(self.message.len(), 0);
    }
}

/// A message on its way to one client.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) message: Arc<Lot>,
    /// The lower of publisher's and subscription's.
    pub(crate) qos: QoS,
    /// The retain flag that the client sees.
    pub(crate) retain: bool,
    pub(crate) subscription_id: Option<NonZeroU32>,
}

impl Parcel {
    pub(crate) fn cost(&self) -> usize {
        self.message.len() + PARCEL_BYTES
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It waits.
    Taken,
    /// It waits, and so many of QoS 0 made room for it.
    Instead(u64),
    /// It was of QoS 0, and there was no room, or nobody who is connected.
    Dropped,
    /// There was no room: this session is over.
    Overflow,
    /// The session was over already.
    Over,
}

/// What waits for one session.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    max_bytes: usize,
    account: Arc<Account>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Queue {
    parcels: VecDeque<Parcel>,
    bytes: usize,
    /// What was taken last, until something is taken again: its bytes and places.
    taken: (usize, usize),
    /// Bytes of what was sent and is kept until it is acknowledged.
    owed: usize,
    /// What the identity is charged in bytes, and the pool in places.
    charged: (usize, usize),
    /// Whether a client is there to take them.
    attached: bool,
    over: bool,
}

impl Mailbox {
    pub(crate) fn new(max_bytes: usize, account: Arc<Account>) -> Arc<Self> {
        let queue = Queue { attached: true, ..Queue::default() };
        Arc::new(Self { queue: Mutex::new(queue), max_bytes, account, waker: AtomicWaker::new() })
    }

    /// Of the identity whose session it is.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may wait now, in bytes; and as much may be owed.
    pub(crate) fn max_bytes(&self) -> usize {
        if self.account.is_full() { self.max_bytes.min(SURE_BYTES) } else { self.max_bytes }
    }

    /// Takes note of how many bytes of what was sent are kept until it is acknowledged.
    pub(crate) fn owe(&self, bytes: usize) {
        let mut queue = self.queue();
        queue.owed = bytes;
        self.settle(&mut queue);
    }

    /// Puts a message in, or does what the policy says.
    pub(crate) fn put(&self, parcel: Parcel) -> Put {
        let max_bytes = self.max_bytes();
        let mut queue = self.queue();
        let was_empty = queue.parcels.is_empty();
        let put = queue.put(parcel, max_bytes);
        self.settle(&mut queue);
        drop(queue);
        if put == Put::Overflow || (was_empty && put == Put::Taken) {
            self.waker.wake();
        }
        put
    }

    /// Puts in what the session itself has asked for: a few retained messages, once it has sent the ones before.
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

    /// What waits, in bytes.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queue().bytes
    }

    /// Brings what is charged up to date.
    fn settle(&self, queue: &mut Queue) {
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

    /// Ready when something waits, or the session is over (then true).
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

    /// Whether the session is over for want of room.
    pub(crate) fn is_over(&self) -> bool {
        self.queue().over
    }

    /// The client has gone, and `rest` is what it did not get: that waits here again, before what has come since. Until
    /// somebody is attached again, only messages of QoS 1 are taken.
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

    /// A client is there again.
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

impl Queue {
    fn clear(&mut self) {
        self.parcels = VecDeque::new();
        self.bytes = 0;
    }

    fn put(&mut self, parcel: Parcel, max_bytes: usize) -> Put {
        let cost = parcel.cost();
        if self.over {
            return Put::Over;
        }
        let fits = |queue: &Self| queue.bytes + cost <= max_bytes;
        if parcel.qos == QoS::AtMostOnce && !(self.attached && fits(self)) {
            return Put::Dropped;
        }
        let mut driven_out = 0;
        if !fits(self) {
            let before = self.parcels.len();
            self.parcels.retain(|waiting| waiting.qos == QoS::AtLeastOnce);
            self.bytes = self.parcels.iter().map(Parcel::cost).sum();
            driven_out = (before - self.parcels.len()) as u64;
            // A single message may be larger than what is left for everybody, but not a queue of them.
            if !fits(self) && !self.parcels.is_empty() {
                self.clear();
                self.over = true;
                return Put::Overflow;
            }
        }
        self.bytes += cost;
        self.parcels.push_back(parcel);
        if driven_out == 0 { Put::Taken } else { Put::Instead(driven_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::task::noop_waker;
    use proptest::prelude::*;

    fn parcel(text: &str, qos: QoS) -> Parcel {
        lot(text, qos, &Pool::new(usize::MAX))
    }

    /// One that is charged to a pool.
    fn lot(text: &str, qos: QoS, pool: &Arc<Pool>) -> Parcel {
        let message = Lot::new(Message::plain("a", text, false), pool);
        Parcel { message, qos, retain: false, subscription_id: None }
    }

    fn cost() -> usize {
        parcel("x", QoS::AtLeastOnce).cost()
    }

    fn mailbox(max: usize) -> (Arc<Mailbox>, Arc<Account>) {
        let account = Account::new(usize::MAX, 2, Pool::new(usize::MAX));
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
    fn what_is_dropped_is_of_quality_0_and_then_the_session_is_over() {
        use QoS::{AtLeastOnce, AtMostOnce};
        let (mailbox, account) = mailbox(3);
        assert_eq!(poll(&mailbox), Poll::Pending);
        for (text, qos, expected) in [
            ("a", AtMostOnce, Put::Taken),
            ("b", AtLeastOnce, Put::Taken),
            ("c", AtMostOnce, Put::Taken),
            ("d", AtMostOnce, Put::Dropped),
            ("e", AtLeastOnce, Put::Instead(2)),
            ("f", AtMostOnce, Put::Taken),
        ] {
            assert_eq!(mailbox.put(parcel(text, qos)), expected, "{text}");
        }
        assert_eq!(poll(&mailbox), Poll::Ready(false));
        assert_eq!(texts(&mailbox), ["b", "e", "f"]);
        assert_eq!(account.used(), 0);
        for (text, expected) in
            [("a", Put::Taken), ("b", Put::Taken), ("c", Put::Taken), ("d", Put::Overflow), ("e", Put::Over)]
        {
            assert_eq!(mailbox.put(parcel(text, AtLeastOnce)), expected, "{text}");
        }
        assert_eq!((poll(&mailbox), mailbox.is_over(), account.used()), (Poll::Ready(true), true, 0));
        assert!(texts(&mailbox).is_empty());
    }

    #[test]
    fn who_is_away_keeps_what_is_acknowledged() {
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
        assert_eq!(mailbox.put(parcel("6", AtMostOnce)), Put::Dropped);
        assert_eq!(mailbox.put(parcel("7", AtLeastOnce)), Put::Taken);
        assert_eq!(account.used(), 3 * cost());
        mailbox.attach();
        mailbox.put(parcel("8", AtMostOnce));
        assert_eq!(texts(&mailbox), ["3", "4", "7", "8"]);
        mailbox.put(parcel("9", AtLeastOnce));
        drop(mailbox);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn when_all_or_one_identity_have_too_much_each_session_has_a_little() {
        for (all, own) in [(1, usize::MAX), (usize::MAX, 1)] {
            let pool = Pool::new(all);
            let account = Account::new(own, 2, Arc::clone(&pool));
            let greedy = Mailbox::new(usize::MAX, Arc::clone(&account));
            let large = "x".repeat(SURE_BYTES);
            assert_eq!(greedy.put(lot(&large, QoS::AtLeastOnce, &pool)), Put::Taken);
            let other = Mailbox::new(usize::MAX, Arc::clone(&account));
            // Even a message that is larger than that, if it is the only one.
            assert_eq!(other.put(lot(&large, QoS::AtLeastOnce, &pool)), Put::Taken);
            assert_eq!(other.put(lot("x", QoS::AtMostOnce, &pool)), Put::Dropped);
            // Another identity is not asked to pay for what this one has too much.
            let stranger = Mailbox::new(usize::MAX, Account::new(usize::MAX, 2, Arc::clone(&pool)));
            assert_eq!(stranger.put(lot(&large, QoS::AtLeastOnce, &pool)), Put::Taken);
            let put = stranger.put(lot("x", QoS::AtLeastOnce, &pool));
            assert_eq!(put, if own == 1 { Put::Taken } else { Put::Overflow });
            assert_eq!(greedy.put(lot("x", QoS::AtLeastOnce, &pool)), Put::Overflow);
            assert_eq!(other.put(lot("x", QoS::AtLeastOnce, &pool)), Put::Overflow);
        }
    }

    #[test]
    fn a_message_that_waits_in_many_places_is_counted_once_until_the_last_lets_go() {
        let pool = Pool::new(usize::MAX);
        let parcel = lot(&"x".repeat(100_000), QoS::AtLeastOnce, &pool);
        let length = parcel.message.len();
        let accounts: Vec<_> = (0..10).map(|_| Account::new(usize::MAX, 2, Arc::clone(&pool))).collect();
        let mailboxes: Vec<_> = accounts.iter().map(|account| Mailbox::new(usize::MAX, Arc::clone(account))).collect();
        for mailbox in &mailboxes {
            assert_eq!(mailbox.put(parcel.clone()), Put::Taken);
        }
        drop(parcel);
        assert_eq!(pool.used(), length + 10 * PARCEL_BYTES);
        assert!(accounts.iter().all(|account| account.used() == length + PARCEL_BYTES));
        let mut taken = VecDeque::new();
        mailboxes[0].take(&mut taken);
        // What is taken and not sent still waits.
        assert_eq!((pool.used(), accounts[0].used()), (length + 10 * PARCEL_BYTES, length + PARCEL_BYTES));
        drop(mailboxes);
        assert_eq!(pool.used(), length);
        drop(taken);
        assert!(pool.used() == 0 && accounts.iter().all(|account| account.used() == 0));
    }

    #[test]
    fn subscriptions_of_an_identity_are_limited_and_places_are_given_back() {
        let (_, account) = mailbox(1);
        let (first, second) = (account.subscribe(), account.subscribe());
        assert!(first.is_some() && second.is_some() && account.subscribe().is_none());
        drop(first);
        assert!(account.subscribe().is_some() && account.subscribe().is_some());
    }

    proptest! {
        /// Whatever comes, bytes are counted exactly, and what is taken is in order with no QoS 1 missing.
        #[test]
        fn order_and_count(steps in proptest::collection::vec(proptest::option::of(any::<bool>()), 0..60)) {
            let (mailbox, account) = mailbox(5);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(sure) => {
                        let qos = if sure { QoS::AtLeastOnce } else { QoS::AtMostOnce };
                        let put = mailbox.put(parcel(&((number % 10).to_string()), qos));
                        if put == Put::Overflow {
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
