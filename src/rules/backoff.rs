//! How long to wait before something is tried again, and when to give up.
//!
//! Two policies: [`full_jitter`] for what many hosts do at once against one server (reconnecting,
//! fetching), and [`process_delay`] for a process that ends by itself, which bothers nobody but its host.
//!
//! **Invariant: every wait is bounded**, and none ever shrinks to a busy loop: the immediate restarts
//! are counted.

use std::time::Duration;

use muster_topics::Millis;

/// How often a process that ended by itself is started again at once. Its shim does this by itself,
/// so that the agent is not needed for it.
pub const IMMEDIATE_RESTARTS: u32 = 3;

/// The first wait after the immediate restarts.
const FIRST_DELAY: Duration = Duration::from_secs(30);

/// The longest wait between two restarts.
const DELAY_MAX: Duration = Duration::from_secs(16 * 60);

/// After this many restarts in a row a unit is held as `broken`. The waits before that add up to a
/// little over two days: longer than an outage of whatever the process needs should last, and short
/// enough that a unit which can never work stops to fill its log.
pub const RESTARTS_MAX: u32 = 200;

/// A process that stayed up this long has all its restarts before it again.
pub const GOOD_AFTER_MS: Millis = 5 * 60_000;

/// How long to wait before a process is started again that has been so `attempts` times already
/// since it last was up for five minutes. Nothing: it has had all its chances.
#[must_use]
pub fn process_delay(attempts: u32) -> Option<Duration> {
    if attempts >= RESTARTS_MAX {
        return None;
    }
    let Some(doublings) = attempts.checked_sub(IMMEDIATE_RESTARTS) else { return Some(Duration::ZERO) };
    Some(exponential(doublings, FIRST_DELAY, DELAY_MAX))
}

/// A random wait between nothing and `base` × 2^`attempt`, at most `max`. Parties that failed at the
/// same moment come back evenly spread, whatever they have in common.
///
/// `random` is drawn evenly from 0 to 1; what is outside of that counts as the nearer end.
#[must_use]
pub fn full_jitter(attempt: u32, base: Duration, max: Duration, random: f64) -> Duration {
    let random = if random.is_nan() { 1.0 } else { random.clamp(0.0, 1.0) };
    exponential(attempt, base, max).mul_f64(random)
}

fn exponential(doublings: u32, base: Duration, max: Duration) -> Duration {
    // From 2^31 on, any base that is worth waiting for is over any sensible maximum.
    base.saturating_mul(1 << doublings.min(31)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_process_is_started_again_at_once_then_ever_later_then_not() {
        for (attempts, seconds) in
            [(0, 0), (1, 0), (2, 0), (3, 30), (4, 60), (5, 120), (7, 480), (8, 960), (9, 960), (199, 960)]
        {
            assert_eq!(process_delay(attempts), Some(Duration::from_secs(seconds)), "after {attempts} attempts");
        }
        assert_eq!(process_delay(RESTARTS_MAX), None);
        assert_eq!(process_delay(u32::MAX), None);
    }

    #[test]
    fn giving_up_takes_a_little_over_two_days() {
        let total: Duration = (0..).map_while(process_delay).sum();
        let hours = total.as_secs() / 3600;
        assert!((48..56).contains(&hours), "{hours} hours");
    }

    #[test]
    fn jitter_spreads_over_a_doubling_range() {
        let (base, max) = (Duration::from_secs(1), Duration::from_secs(60));
        for (attempt, random, millis) in
            [(0, 0.0, 0), (0, 1.0, 1_000), (3, 0.5, 4_000), (3, 1.0, 8_000), (6, 1.0, 60_000), (u32::MAX, 0.25, 15_000)]
        {
            assert_eq!(full_jitter(attempt, base, max, random), Duration::from_millis(millis), "{attempt}, {random}");
        }
    }

    proptest! {
        #[test]
        fn jitter_never_exceeds_its_maximum_nor_panics(
            attempt: u32, base_ms in 0u64..u64::MAX / 2, max_ms in 0u64..1_000_000_000, random: f64
        ) {
            let max = Duration::from_millis(max_ms);
            prop_assert!(full_jitter(attempt, Duration::from_millis(base_ms), max, random) <= max);
        }

        #[test]
        fn waits_never_get_shorter(attempts in 0..RESTARTS_MAX - 1) {
            prop_assert!(process_delay(attempts) <= process_delay(attempts + 1));
        }
    }
}
