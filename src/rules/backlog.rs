//! Decides which batches of measurements are sent, and when: new ones at once, the backlog newest first and one by one.
//!
//! A host that was away returns with up to a week of batches, often together with the rest of its fleet. Current batches
//! go first, and cost the console no more than usual. The backlog follows: one batch
//! in flight at a time, the next after the acknowledgement and not before a gap. So a busy console
//! is sent less.
//!
//! **Invariant: every batch is sent eventually**, as long as those before it are acknowledged, and repeated until it
//! is acknowledged itself.

use muster_topics::{Millis, ack::Numbered};

use super::{backoff::jittered, outbox_retry::OutboxRetry};

/// The time between two batches that have waited. A host makes a batch every thirty seconds, so the backlog of an hour
/// is sent in two minutes, that of a week in six hours. Ten thousand hosts that reconnect send at most 10,000 batches,
/// 400,000 values, a second: a fifth of what the console's store takes.
pub const GAP_MS: Millis = 1_000;

/// The most unacknowledged batches, of which at most one is an old one. New ones only reach this if the console
/// acknowledges none for minutes.
const UNDER_WAY_MAX: usize = 8;

/// Which batches are unacknowledged, and which may be sent next.
#[derive(Clone, Debug)]
pub struct OutboxBacklog {
    under_way: OutboxRetry<Numbered>,
    gap_ms: Millis,
    /// The newest batch when the connection began; all later ones are new. `None` until that is known.
    new_from: Option<Numbered>,
    /// When the next old batch may be sent.
    old_ms: Millis,
    /// Whether the store may have new batches.
    new_behind: bool,
    /// Whether the store has older batches that are not being sent.
    old_behind: bool,
    /// Whether the store has more batches than were read.
    more_behind: bool,
}

impl OutboxBacklog {
    /// Creates it with this time between two batches that have waited.
    #[must_use]
    pub fn new(gap_ms: Millis) -> Self {
        Self {
            under_way: OutboxRetry::new(UNDER_WAY_MAX),
            gap_ms,
            new_from: None,
            old_ms: Millis::MIN,
            new_behind: true,
            old_behind: false,
            more_behind: false,
        }
    }

    /// Handles a new connection: unacknowledged batches may be lost and wait like the rest. The newest is sent at once.
    pub fn connected(&mut self) {
        self.new_from = None;
        self.repeat();
    }

    /// Sends unacknowledged batches again, because the console asked for it.
    pub fn repeat(&mut self) {
        self.under_way = OutboxRetry::new(UNDER_WAY_MAX);
        self.new_behind = true;
    }

    /// Handles a new batch in the store.
    pub fn stored(&mut self) {
        self.new_behind = true;
    }

    /// Handles an acknowledgement.
    pub fn acknowledged(&mut self, id: &Numbered) {
        // Now there is room for batches that were not read.
        self.new_behind |= self.under_way.remove(id) && self.more_behind;
    }

    /// How many waiting batches [`OutboxBacklog::choose`] needs to see, newest first.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.under_way.capacity()
    }

    /// Whether the store should be read now.
    #[must_use]
    pub fn wants(&self, now_ms: Millis) -> bool {
        self.new_behind || self.next_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    /// When the next batch is due.
    #[must_use]
    pub fn next_ms(&self) -> Option<Millis> {
        let next_old = (self.old_behind && !self.is_old_under_way()).then_some(self.old_ms);
        [self.under_way.next_ms(), next_old].into_iter().flatten().min()
    }

    /// Returns which batches to send now, in this order: `waiting` are the first [`OutboxBacklog::limit`], newest
    /// first.
    pub fn choose(&mut self, waiting: &[Numbered], now_ms: Millis) -> Vec<Numbered> {
        // It was dropped because the buffer was full, or so many newer ones arrived that it has to wait again.
        for id in self.under_way.due(Millis::MAX) {
            if !waiting.contains(&id) {
                self.under_way.remove(&id);
            }
        }
        let new_from = *match waiting.first() {
            Some(newest) => self.new_from.get_or_insert(*newest),
            None => return self.nothing_waits(),
        };
        let mut add = |id: &Numbered| self.under_way.add(*id, now_ms);
        let (new, old): (Vec<&Numbered>, Vec<&Numbered>) = waiting.iter().partition(|id| **id >= new_from);
        let all_new = new.into_iter().all(&mut add);
        let may_go = now_ms >= self.old_ms && !self.is_old_under_way();
        let all_old = match old.as_slice() {
            [next, rest @ ..] if may_go => self.under_way.add(**next, now_ms) && rest.is_empty(),
            rest => rest.iter().all(|id| self.under_way.contains(id)),
        };
        (self.new_behind, self.old_behind) = (!all_new, !all_old);
        self.more_behind = waiting.len() >= self.limit();
        let due = self.under_way.due(now_ms);
        waiting.iter().filter(|id| due.contains(id)).copied().collect()
    }

    fn nothing_waits(&mut self) -> Vec<Numbered> {
        (self.new_behind, self.old_behind, self.more_behind) = (false, false, false);
        Vec::new()
    }

    /// Handles that a batch was sent.
    pub fn record_sent(&mut self, id: &Numbered, now_ms: Millis, random: f64) {
        self.under_way.record_sent(id, now_ms, random);
        if self.is_old(id) {
            self.old_ms = now_ms + jittered(self.gap_ms, random);
        }
    }

    fn is_old(&self, id: &Numbered) -> bool {
        self.new_from.is_some_and(|new_from| *id < new_from)
    }

    fn is_old_under_way(&self) -> bool {
        self.under_way.first().is_some_and(|id| self.is_old(&id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(seq: u64) -> Numbered {
        Numbered { epoch: 1 + seq / 1_000, seq }
    }

    /// A host with its store, and a console that acknowledges some of the batches.
    struct World {
        backlog: OutboxBacklog,
        /// Oldest first.
        store: Vec<Numbered>,
        now_ms: Millis,
        /// Which batch was sent when.
        said: Vec<(Numbered, Millis)>,
    }

    impl World {
        fn new(waiting: u64) -> Self {
            let store = (1..=waiting).map(id).collect();
            Self { backlog: OutboxBacklog::new(GAP_MS), store, now_ms: 0, said: Vec::new() }
        }

        fn pump(&mut self) {
            if !self.backlog.wants(self.now_ms) {
                return;
            }
            let waiting: Vec<_> = self.store.iter().rev().take(self.backlog.limit()).copied().collect();
            for id in self.backlog.choose(&waiting, self.now_ms) {
                self.backlog.record_sent(&id, self.now_ms, 0.5);
                self.said.push((id, self.now_ms));
            }
        }

        fn store(&mut self, id: Numbered) {
            self.store.push(id);
            self.backlog.stored();
            self.pump();
        }

        fn acknowledge(&mut self, id: Numbered) {
            self.store.retain(|waiting| *waiting != id);
            self.backlog.acknowledged(&id);
            self.pump();
        }

        /// Advances the time to the next due action, but not beyond `until_ms`.
        fn pass(&mut self, until_ms: Millis) {
            while let Some(next_ms) = self.backlog.next_ms().filter(|next_ms| *next_ms <= until_ms) {
                self.now_ms = next_ms.max(self.now_ms);
                self.pump();
            }
            self.now_ms = until_ms;
        }

        fn seqs(&self) -> Vec<(u64, Millis)> {
            self.said.iter().map(|(id, at_ms)| (id.seq, *at_ms)).collect()
        }
    }

    #[test]
    fn newest_batch_goes_first_and_backlog_one_by_one() {
        let mut world = World::new(5);
        world.pump();
        assert_eq!(world.seqs(), [(5, 0), (4, 0)], "what is so now, and the first of the past");
        world.acknowledge(id(5));
        world.acknowledge(id(4));
        world.pass(999);
        assert_eq!(world.said.len(), 2, "not within the gap");
        world.pass(1_000);
        // Without an acknowledgement no further old batch is sent; new ones do not wait for it.
        world.pass(4_000);
        world.store(id(6));
        assert_eq!(world.seqs()[2..], [(3, 1_000), (6, 4_000)]);
        world.acknowledge(id(6));
        world.pass(5_999);
        assert_eq!(world.said.len(), 4);
        world.pass(6_000);
        assert_eq!(world.seqs()[4], (3, 6_000), "said again");
        world.acknowledge(id(3));
        world.pass(7_000);
        world.acknowledge(id(2));
        world.pass(9_000);
        assert_eq!(world.seqs()[5..], [(2, 7_000), (1, 8_000)]);
        world.acknowledge(id(1));
        assert_eq!((world.backlog.next_ms(), world.store.len()), (None, 0));
    }

    #[test]
    fn unsent_batch_joins_the_backlog_after_reconnect() {
        let mut world = World::new(0);
        world.pump();
        for seq in 1..=3 {
            world.store(id(seq));
        }
        assert_eq!(world.seqs(), [(1, 0), (2, 0), (3, 0)]);
        world.backlog.connected();
        world.pump();
        assert_eq!(world.seqs()[3..], [(3, 0), (2, 0)]);
        // On a request to repeat, unacknowledged batches are sent again.
        world.backlog.repeat();
        world.pump();
        assert_eq!(world.seqs()[5..], [(3, 0)], "the past keeps its pace");
    }

    #[test]
    fn newest_batch_is_repeated_without_acknowledgements() {
        let mut world = World::new(20);
        world.pump();
        for seq in 21..=60 {
            world.pass(world.now_ms + 30_000);
            world.store(id(seq));
        }
        let last: Vec<_> = world.backlog.under_way.due(Millis::MAX).into_iter().map(|id| id.seq).collect();
        assert_eq!(last, (53..=60).collect::<Vec<_>>());
        assert!(world.said.len() < 400, "{}: with growing waits", world.said.len());
    }

    proptest! {
        #[test]
        fn every_batch_arrives_and_backlog_is_paced(
            waiting in 0u64..40,
            steps in proptest::collection::vec((0u8..8, 0i64..3_000), 0..80),
        ) {
            let mut world = World::new(waiting);
            let mut seq = waiting;
            world.pump();
            for (what, pass_ms) in steps {
                match what {
                    0 => { seq += 1; world.store(id(seq)); }
                    1 => { world.backlog.connected(); world.pump(); }
                    2 => { world.backlog.repeat(); world.pump(); }
                    3..6 => if let Some((last, _)) = world.said.last().copied() { world.acknowledge(last) },
                    _ => world.pass(world.now_ms + pass_ms),
                }
            }
            // A console that acknowledges everything receives everything in the end.
            for _ in 0..4_000 {
                if world.store.is_empty() {
                    break;
                }
                world.pass(world.now_ms + 1_000);
                for (id, _) in std::mem::take(&mut world.said) {
                    world.acknowledge(id);
                }
            }
            prop_assert_eq!(&world.store, &[]);
        }

        #[test]
        fn backlog_batches_keep_their_gap(waiting in 2u64..60) {
            let mut world = World::new(waiting);
            world.pump();
            while !world.store.is_empty() {
                let said: Vec<_> = world.store.iter().filter(|id| world.said.iter().any(|(said, _)| said == *id)).copied().collect();
                for id in said {
                    world.acknowledge(id);
                }
                world.pass(world.now_ms + 10);
            }
            let seqs = world.seqs();
            let order: Vec<_> = seqs.iter().map(|(seq, _)| *seq).collect();
            prop_assert_eq!(order, (1..=waiting).rev().collect::<Vec<_>>(), "each once, the newest first");
            for pair in seqs[1..].windows(2) {
                prop_assert!(pair[1].1 - pair[0].1 >= GAP_MS, "{:?}", pair);
            }
        }
    }
}
