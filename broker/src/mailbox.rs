//! What waits for one session: put in by the exchange, taken out by the client's connection.
//!
//! The policy for a client that does not keep up, in this order:
//! 1. What waits is bounded, in bytes, per session; and all sessions together have a bound, beyond which each has only
//!    [`SURE_BYTES`] for itself.
//! 2. When there is no room, a message of QoS 0 is dropped, and counted.
//! 3. A message of QoS 1 drives out what waits with QoS 0.
//! 4. If that does not help either, the session is over: everything that waits is let go, and the client is disconnected
//!    with a reason. It comes back to an empty session and knows that it missed something.
//!
//! **Invariant: no message of QoS 1 is ever skipped**: a mailbox that could not take one takes no other until it is
//! thrown away.
//!
//! **Invariant: nobody waits for a mailbox.** Putting a message in takes a short lock and never blocks on a client.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
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

/// A message on its way to one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) message: Message,
    /// The lower of publisher's and subscription's.
    pub(crate) qos: QoS,
    /// The retain flag that the client sees.
    pub(crate) retain: bool,
    pub(crate) subscription_id: Option<NonZeroU32>,
}

impl Parcel {
    fn cost(&self) -> usize {
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

/// Bytes that wait for all sessions together.
#[derive(Debug)]
pub(crate) struct Pool {
    used: AtomicUsize,
    max: usize,
}

impl Pool {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.used() >= self.max
    }
}

/// What waits for one session.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    max_bytes: usize,
    pool: Arc<Pool>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Queue {
    parcels: VecDeque<Parcel>,
    bytes: usize,
    /// Whether a client is there to take them.
    attached: bool,
    over: bool,
}

impl Mailbox {
    pub(crate) fn new(max_bytes: usize, pool: Arc<Pool>) -> Arc<Self> {
        let queue = Queue { attached: true, ..Queue::default() };
        Arc::new(Self { queue: Mutex::new(queue), max_bytes, pool, waker: AtomicWaker::new() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in, or does what the policy says.
    pub(crate) fn put(&self, parcel: Parcel) -> Put {
        let max_bytes = if self.pool.is_full() { self.max_bytes.min(SURE_BYTES) } else { self.max_bytes };
        let mut queue = self.queue();
        let (before, was_empty) = (queue.bytes, queue.parcels.is_empty());
        let put = queue.put(parcel, max_bytes);
        self.account(before, queue.bytes);
        drop(queue);
        if put == Put::Overflow || (was_empty && put == Put::Taken) {
            self.waker.wake();
        }
        put
    }

    /// Puts the retained messages of a new subscription in. They are shared with the store that has a limit of its own,
    /// and asked for, so they count for no limit here.
    pub(crate) fn put_retained(&self, parcels: impl Iterator<Item = Parcel>) {
        let mut queue = self.queue();
        if !queue.over {
            let before = queue.bytes;
            for parcel in parcels {
                queue.bytes += parcel.cost();
                queue.parcels.push_back(parcel);
            }
            self.account(before, queue.bytes);
            self.waker.wake();
        }
    }

    fn account(&self, before: usize, after: usize) {
        if after >= before {
            self.pool.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.pool.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Moves everything that waits to `to`, which must be empty.
    pub(crate) fn take(&self, to: &mut VecDeque<Parcel>) {
        let mut queue = self.queue();
        std::mem::swap(&mut queue.parcels, to);
        self.account(queue.bytes, 0);
        queue.bytes = 0;
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
        rest.retain(|parcel| parcel.qos == QoS::AtLeastOnce);
        let mut queue = self.queue();
        let before = queue.bytes;
        queue.attached = false;
        rest.append(&mut queue.parcels);
        rest.retain(|parcel| parcel.qos == QoS::AtLeastOnce);
        queue.bytes = rest.iter().map(Parcel::cost).sum();
        queue.parcels = rest;
        if queue.over {
            queue.clear();
        }
        self.account(before, queue.bytes);
    }

    /// A client is there again.
    pub(crate) fn attach(&self) {
        self.queue().attached = true;
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let bytes = self.queue().bytes;
        self.account(bytes, 0);
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
        Parcel { message: Message::plain("a", text, false), qos, retain: false, subscription_id: None }
    }

    fn cost() -> usize {
        parcel("x", QoS::AtLeastOnce).cost()
    }

    fn mailbox(max: usize) -> (Arc<Mailbox>, Arc<Pool>) {
        let pool = Pool::new(usize::MAX);
        (Mailbox::new(max * cost(), Arc::clone(&pool)), pool)
    }

    fn texts(mailbox: &Mailbox) -> Vec<String> {
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        taken.iter().map(|parcel| String::from_utf8(parcel.message.payload().to_vec()).unwrap()).collect()
    }

    fn poll(mailbox: &Mailbox) -> Poll<bool> {
        mailbox.poll_something(&mut Context::from_waker(&noop_waker()))
    }

    #[test]
    fn what_is_dropped_is_of_quality_0_and_then_the_session_is_over() {
        use QoS::{AtLeastOnce, AtMostOnce};
        let (mailbox, pool) = mailbox(3);
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
        assert_eq!(pool.used(), 0);
        for (text, expected) in
            [("a", Put::Taken), ("b", Put::Taken), ("c", Put::Taken), ("d", Put::Overflow), ("e", Put::Over)]
        {
            assert_eq!(mailbox.put(parcel(text, AtLeastOnce)), expected, "{text}");
        }
        assert_eq!((poll(&mailbox), mailbox.is_over(), pool.used()), (Poll::Ready(true), true, 0));
        assert!(texts(&mailbox).is_empty());
    }

    #[test]
    fn who_is_away_keeps_what_is_acknowledged() {
        use QoS::{AtLeastOnce, AtMostOnce};
        let (mailbox, pool) = mailbox(9);
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
        assert_eq!(pool.used(), 3 * cost());
        mailbox.attach();
        mailbox.put(parcel("8", AtMostOnce));
        assert_eq!(texts(&mailbox), ["3", "4", "7", "8"]);
        mailbox.put(parcel("9", AtLeastOnce));
        drop(mailbox);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn when_all_have_too_much_each_has_a_little() {
        let pool = Pool::new(1);
        let greedy = Mailbox::new(usize::MAX, Arc::clone(&pool));
        let large = "x".repeat(SURE_BYTES);
        assert_eq!(greedy.put(parcel(&large, QoS::AtLeastOnce)), Put::Taken);
        assert_eq!(greedy.put(parcel("x", QoS::AtLeastOnce)), Put::Overflow);
        let other = Mailbox::new(usize::MAX, Arc::clone(&pool));
        pool.used.store(100, Ordering::Relaxed);
        // Even a message that is larger than that, if it is the only one.
        assert_eq!(other.put(parcel(&large, QoS::AtLeastOnce)), Put::Taken);
        assert_eq!(other.put(parcel("x", QoS::AtMostOnce)), Put::Dropped);
        assert_eq!(other.put(parcel("x", QoS::AtLeastOnce)), Put::Overflow);
    }

    proptest! {
        /// Whatever comes, bytes are counted exactly, and what is taken is in order with no QoS 1 missing.
        #[test]
        fn order_and_count(steps in proptest::collection::vec(proptest::option::of(any::<bool>()), 0..60)) {
            let (mailbox, pool) = mailbox(5);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(sure) => {
                        let qos = if sure { QoS::AtLeastOnce } else { QoS::AtMostOnce };
                        let put = mailbox.put(parcel(&((number % 10).to_string()), qos));
                        if put == Put::Overflow {
                            prop_assert_eq!(pool.used(), 0);
                            return Ok(());
                        }
                        if sure {
                            sent.push((number % 10).to_string());
                        }
                    }
                    None => {
                        let mut taken = VecDeque::new();
                        prop_assert!(pool.used() <= 5 * cost());
                        mailbox.take(&mut taken);
                        prop_assert_eq!(pool.used(), 0);
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
