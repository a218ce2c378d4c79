//! Back-off: how long to wait before a retry, and when to give up.
//!
//! Two policies: an [`ExponentialGrowth`] with full jitter where many hosts address one server
//! (reconnecting, downloading), and [`process_delay`] for a process that ends by itself, which affects
//! only its host.
//!
//! **Invariant: every wait is bounded**, and none ever shrinks to a busy loop: immediate restarts
//! are counted.

use std::time::Duration;

use muster_topics::Millis;

/// How often a process that ended by itself is started again at once. Its shim does this by itself,
/// so that the agent is not needed for it.
pub const IMMEDIATE_RESTARTS: u32 = 3;

/// The waits after the immediate restarts.
const RESTART: ExponentialGrowth = ExponentialGrowth { first_ms: 30_000, max_ms: 16 * 60_000 };

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
    Some(Duration::from_millis(RESTART.bound_ms(doublings).unsigned_abs()))
}

/// The waits before a container is started again: it takes longer to come up than a process, and what it lacks is more
/// often its runtime's to mend than its own, so that the first try is not at once, and the last soon.
const CONTAINER_S: [u64; 5] = [5, 10, 20, 40, 60];

/// How patient somebody is with a unit that ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPatience {
    /// With a process: [`process_delay`].
    Process,
    /// With a container: five attempts, after 5, 10, 20, 40 and 60 s.
    Container,
}

impl RestartPatience {
    /// How long to wait before it is started again that has been so `attempts` times already; nothing if it has had all
    /// its chances.
    #[must_use]
    pub fn delay(self, attempts: u32) -> Option<Duration> {
        match self {
            Self::Process => process_delay(attempts),
            Self::Container => {
                let index = usize::try_from(attempts).unwrap_or(usize::MAX);
                CONTAINER_S.get(index).copied().map(Duration::from_secs)
            }
        }
    }

    /// How often it is started again at once.
    #[must_use]
    pub fn immediate(self) -> u32 {
        match self {
            Self::Process => IMMEDIATE_RESTARTS,
            Self::Container => 0,
        }
    }
}

/// Exponential growth up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentialGrowth {
    /// The first wait.
    pub first_ms: Millis,
    /// The longest.
    pub max_ms: Millis,
}

/// Attempts to reach the broker or the console. A minute at the most: a fleet of ten thousand then
/// tries 330 times a second on average, a third of what one core can shake hands with.
pub const RECONNECT: ExponentialGrowth = ExponentialGrowth { first_ms: 1_000, max_ms: 60_000 };

impl ExponentialGrowth {
    /// The wait after so many attempts, without any chance in it.
    #[must_use]
    pub fn bound_ms(self, attempts: u32) -> Millis {
        // 2^30 times anything here is beyond the limit already.
        self.first_ms.saturating_mul(1 << attempts.min(30)).min(self.max_ms)
    }

    /// Full jitter, for what many do at once: anything from nothing to the bound, so that parties
    /// which failed at the same moment come back evenly spread, whatever they have in common.
    /// `random` is drawn evenly from `0..1`; what is outside of that counts as the nearer end.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn process_restarts_at_once_then_later_then_never() {
        for (attempts, seconds) in
            [(0, 0), (1, 0), (2, 0), (3, 30), (4, 60), (5, 120), (7, 480), (8, 960), (9, 960), (199, 960)]
        {
            assert_eq!(process_delay(attempts), Some(Duration::from_secs(seconds)), "after {attempts} attempts");
        }
        assert_eq!(process_delay(RESTARTS_MAX), None);
        assert_eq!(process_delay(u32::MAX), None);
    }

    #[test]
    fn container_is_restarted_five_times() {
        let waits: Vec<u64> =
            (0..).map_while(|attempts| RestartPatience::Container.delay(attempts)).map(|wait| wait.as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 60]);
        assert_eq!(RestartPatience::Container.delay(u32::MAX), None);
        assert_eq!(RestartPatience::Process.delay(3), process_delay(3));
    }

    #[test]
    fn giving_up_takes_a_little_over_two_days() {
        let total: Duration = (0..).map_while(process_delay).sum();
        let hours = total.as_secs() / 3600;
        assert!((48..56).contains(&hours), "{hours} hours");
    }

    #[test]
    fn waits_double_up_to_the_limit_then_stay() {
        let growth = ExponentialGrowth { first_ms: 5_000, max_ms: 300_000 };
        let waits: Vec<_> = (0..8).map(|attempts| growth.bound_ms(attempts) / 1000).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(growth.bound_ms(u32::MAX), growth.max_ms);
    }

    #[test]
    fn jitter_spreads_over_a_doubling_range() {
        for (attempts, random, millis) in
            [(0, 0.0, 0), (0, 1.0, 1_000), (3, 0.5, 4_000), (3, 1.0, 8_000), (6, 1.0, 60_000), (u32::MAX, 0.25, 15_000)]
        {
            assert_eq!(RECONNECT.full_jitter_ms(attempts, random), millis, "{attempts}, {random}");
        }
    }

    proptest! {
        #[test]
        fn jitter_stays_in_its_bounds(
            attempts: u32, first_ms in 0..Millis::MAX, max_ms in 0..1_000_000_000_000i64, random: f64
        ) {
            let growth = ExponentialGrowth { first_ms, max_ms };
            let bound = growth.bound_ms(attempts);
            prop_assert!((0..=bound).contains(&growth.full_jitter_ms(attempts, random)));
            let near = growth.jittered_ms(attempts, random);
            // One more for what the two divisions round away.
            prop_assert!(near >= bound - bound / 4 && near <= bound + bound / 4 + 1);
        }

        #[test]
        fn waits_never_get_shorter(attempts in 0..RESTARTS_MAX - 1) {
            prop_assert!(process_delay(attempts) <= process_delay(attempts + 1));
        }
    }
}
