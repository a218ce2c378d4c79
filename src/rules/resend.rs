//! When to say something again that nobody has acknowledged, and when to connect again.

use std::collections::BTreeMap;

use muster_topics::Millis;

/// Exponential growth up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The first wait.
    pub first_ms: Millis,
    /// The longest.
    pub max_ms: Millis,
}

/// Repetitions of what was not acknowledged. The console repeats commands from 5 s on, too.
pub const REPEAT: Growth = Growth { first_ms: 5_000, max_ms: 300_000 };

/// Attempts to reach the broker or the console. A minute at the most: a fleet of ten thousand then
/// tries 330 times a second on average, a third of what one core can shake hands with.
pub const RECONNECT: Growth = Growth { first_ms: 1_000, max_ms: 60_000 };

impl Growth {
    /// The wait after so many attempts, without any chance in it.
    #[must_use]
    pub fn bound_ms(self, attempts: u32) -> Millis {
        // 2^30 times anything here is beyond the limit already.
        self.first_ms.saturating_mul(1 << attempts.min(30)).min(self.max_ms)
    }

    /// Full jitter, for what many do at once: anything from nothing to the bound. `random` is in `0..1`.
    #[must_use]
    pub fn full_jitter_ms(self, attempts: u32, random: f64) -> Millis {
        share(self.bound_ms(attempts), random)
    }

    /// A little jitter, for what should not come much too early: within a quarter of the bound.
    #[must_use]
    pub fn jittered_ms(self, attempts: u32, random: f64) -> Millis {
        jittered(self.bound_ms(attempts), random)
    }
}

/// A period within a quarter around its nominal length, so that hosts that start together drift apart.
#[must_use]
pub fn jittered(period_ms: Millis, random: f64) -> Millis {
    period_ms - period_ms / 4 + share(period_ms / 2, random)
}

/// A random part of `whole_ms`.
#[must_use]
pub fn share(whole_ms: Millis, random: f64) -> Millis {
    // Times here are far below 2^52, and random below 1.
    (whole_ms as f64 * random.clamp(0.0, 1.0)) as Millis
}

/// What was said and not acknowledged yet, each item with its own growing wait. Bounded: what does
/// not fit waits where it came from, and is taken in when something leaves.
#[derive(Clone, Debug)]
pub struct Resend<K> {
    items: BTreeMap<K, Item>,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    attempts: u32,
    due_ms: Millis,
}

impl<K: Ord + Copy> Resend<K> {
    /// With room for `capacity` items.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { items: BTreeMap::new(), capacity }
    }

    /// How many items it takes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether there is room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.items.len() < self.capacity
    }

    /// Takes in an item that is due now; one that is in already keeps its wait. False if there is no room.
    pub fn add(&mut self, key: K, now_ms: Millis) -> bool {
        let fits = self.has_room() || self.items.contains_key(&key);
        if fits {
            self.items.entry(key).or_insert(Item { attempts: 0, due_ms: now_ms });
        }
        fits
    }

    /// Makes an item due now, as if it had never been said. False if there is no room.
    pub fn hasten(&mut self, key: K, now_ms: Millis) -> bool {
        self.items.remove(&key);
        self.add(key, now_ms)
    }

    /// Forgets an item. True if it was in.
    pub fn remove(&mut self, key: &K) -> bool {
        self.items.remove(key).is_some()
    }

    /// Makes everything due now: the link is new.
    pub fn reset(&mut self, now_ms: Millis) {
        for item in self.items.values_mut() {
            *item = Item { attempts: 0, due_ms: now_ms };
        }
    }

    /// What is due.
    #[must_use]
    pub fn due(&self, now_ms: Millis) -> Vec<K> {
        self.items.iter().filter(|(_, item)| item.due_ms <= now_ms).map(|(key, _)| *key).collect()
    }

    /// An item was said (again).
    pub fn said(&mut self, key: &K, now_ms: Millis, random: f64) {
        if let Some(item) = self.items.get_mut(key) {
            item.due_ms = now_ms + REPEAT.jittered_ms(item.attempts, random);
            item.attempts = item.attempts.saturating_add(1);
        }
    }

    /// When something is due next.
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
    fn waits_double_up_to_the_limit() {
        let waits: Vec<_> = (0..8).map(|attempts| REPEAT.bound_ms(attempts) / 1000).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(REPEAT.bound_ms(u32::MAX), REPEAT.max_ms);
    }

    #[test]
    fn an_item_is_repeated_until_it_is_removed() {
        let mut resend = Resend::new(2);
        assert!(resend.add('a', 0) && resend.add('b', 0) && !resend.add('c', 0));
        assert_eq!(resend.due(0), ['a', 'b']);
        resend.said(&'a', 0, 0.5);
        resend.said(&'b', 0, 0.5);
        assert_eq!((resend.due(4_999), resend.next_ms()), (vec![], Some(5_000)));
        resend.said(&'a', 5_000, 0.5);
        assert_eq!(resend.due(5_000), ['b']);
        assert!(resend.remove(&'b') && !resend.remove(&'b'));
        assert_eq!(resend.next_ms(), Some(15_000));
        // In already: its wait stays.
        assert!(resend.add('a', 6_000) && resend.due(6_000).is_empty());
        resend.reset(6_000);
        assert_eq!(resend.due(6_000), ['a']);
    }

    proptest! {
        #[test]
        fn jitter_stays_in_its_bounds(attempts in 0u32..100, random in 0.0f64..1.0) {
            for growth in [REPEAT, RECONNECT] {
                let bound = growth.bound_ms(attempts);
                prop_assert!((0..=bound).contains(&growth.full_jitter_ms(attempts, random)));
                let near = growth.jittered_ms(attempts, random);
                prop_assert!(near >= bound - bound / 4 && near <= bound + bound / 4);
            }
        }

        #[test]
        fn nothing_that_was_added_is_forgotten(steps in proptest::collection::vec((0u8..20, 0u8..3), 0..60)) {
            let mut resend = Resend::new(8);
            let mut model = std::collections::BTreeSet::new();
            for (now, (key, what)) in steps.into_iter().enumerate() {
                let now = now as Millis * 1000;
                match what {
                    0 => { if resend.add(key, now) { model.insert(key); } else { prop_assert!(model.len() >= 8); } }
                    1 => { prop_assert_eq!(resend.remove(&key), model.remove(&key)); }
                    _ => for due in resend.due(now) { resend.said(&due, now, 0.3); },
                }
                prop_assert_eq!(resend.due(Millis::MAX), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
