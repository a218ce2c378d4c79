//! Decides when an unacknowledged message is repeated.

use std::collections::BTreeMap;

use muster_fault::planted;
use muster_topics::Millis;

use super::backoff::ExponentialGrowth;

/// The delays before unacknowledged messages are sent again. The console repeats commands from 5 s on, too.
pub const REPEAT: ExponentialGrowth = ExponentialGrowth { first_ms: 5_000, max_ms: 300_000 };

/// Messages that were sent and not acknowledged, each with its own growing delay. It is bounded: what does not fit
/// stays in its store, and is added when there is room.
#[derive(Clone, Debug)]
pub struct OutboxRetry<K> {
    items: BTreeMap<K, RetryItem>,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct RetryItem {
    attempts: u32,
    due_ms: Millis,
}

impl<K: Ord + Copy> OutboxRetry<K> {
    /// Creates it with room for `capacity` messages.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { items: BTreeMap::new(), capacity }
    }

    /// Its capacity.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The smallest key.
    #[must_use]
    pub fn first(&self) -> Option<K> {
        self.items.keys().next().copied()
    }

    /// Whether a message is in it.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.items.contains_key(key)
    }

    /// Whether there is room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.items.len() < self.capacity
    }

    /// Adds a message that is due now; one that is in already keeps its delay. Returns false if there is no room.
    pub fn add(&mut self, key: K, now_ms: Millis) -> bool {
        let fits = self.has_room() || self.items.contains_key(&key);
        if fits {
            self.items.entry(key).or_insert(RetryItem { attempts: 0, due_ms: now_ms });
        }
        fits
    }

    /// Makes a message due now, as if it had never been sent. Returns false if there is no room.
    pub fn hasten(&mut self, key: K, now_ms: Millis) -> bool {
        self.items.remove(&key);
        self.add(key, now_ms)
    }

    /// Removes a message. Returns whether it was in.
    pub fn remove(&mut self, key: &K) -> bool {
        self.items.remove(key).is_some()
    }

    /// Makes all messages due now, for a new connection.
    pub fn reset(&mut self, now_ms: Millis) {
        for item in self.items.values_mut() {
            *item = RetryItem { attempts: 0, due_ms: now_ms };
        }
    }

    /// Returns the messages that are due.
    #[must_use]
    pub fn due(&self, now_ms: Millis) -> Vec<K> {
        self.items.iter().filter(|(_, item)| item.due_ms <= now_ms).map(|(key, _)| *key).collect()
    }

    /// Returns the first message that is due.
    #[must_use]
    pub fn next_due(&self, now_ms: Millis) -> Option<K> {
        self.items.iter().find(|(_, item)| item.due_ms <= now_ms).map(|(key, _)| *key)
    }

    /// Handles that a message was sent, perhaps again.
    pub fn record_sent(&mut self, key: &K, now_ms: Millis, random: f64) {
        if let Some(item) = self.items.get_mut(key) {
            item.due_ms = now_ms + REPEAT.jittered_ms(item.attempts, random);
            item.attempts = item.attempts.saturating_add(1);
            if planted!(SayOnce) {
                item.due_ms = Millis::MAX;
            }
        }
    }

    /// When the next message is due.
    #[must_use]
    pub fn next_ms(&self) -> Option<Millis> {
        self.items.values().map(|item| item.due_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn message_is_repeated_until_removed() {
        let mut resend = OutboxRetry::new(2);
        assert!(resend.add('a', 0) && resend.add('b', 0) && !resend.add('c', 0));
        assert_eq!(resend.due(0), ['a', 'b']);
        resend.record_sent(&'a', 0, 0.5);
        resend.record_sent(&'b', 0, 0.5);
        assert_eq!((resend.due(4_999), resend.next_ms()), (vec![], Some(5_000)));
        resend.record_sent(&'a', 5_000, 0.5);
        assert_eq!(resend.due(5_000), ['b']);
        assert!(resend.remove(&'b') && !resend.remove(&'b'));
        assert_eq!(resend.next_ms(), Some(15_000));
        // It is in already and keeps its delay.
        assert!(resend.add('a', 6_000) && resend.due(6_000).is_empty());
        resend.reset(6_000);
        assert_eq!(resend.due(6_000), ['a']);
    }

    proptest! {
        #[test]
        fn added_message_is_never_dropped(steps in proptest::collection::vec((0u8..20, 0u8..3), 0..60)) {
            let mut resend = OutboxRetry::new(8);
            let mut model = std::collections::BTreeSet::new();
            for (now, (key, what)) in steps.into_iter().enumerate() {
                let now = now as Millis * 1000;
                match what {
                    0 => { if resend.add(key, now) { model.insert(key); } else { prop_assert!(model.len() >= 8); } }
                    1 => { prop_assert_eq!(resend.remove(&key), model.remove(&key)); }
                    _ => for due in resend.due(now) { resend.record_sent(&due, now, 0.3); },
                }
                prop_assert_eq!(resend.due(Millis::MAX), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
