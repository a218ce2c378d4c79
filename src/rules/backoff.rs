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

/// How often a process that ended unexpectedly is restarted immediately. The shim does that, without the agent.
pub const IMMEDIATE_RESTARTS: u32 = 3;

/// The delays after the immediate restarts.
const RESTART: ExponentialGrowth = ExponentialGrowth { first_ms: 30_000, max_ms: 16 * 60_000 };

/// After this many consecutive restarts a unit is held as `broken`. The delays before add up to a little over two days:
/// longer than an outage of a dependency should last, and short enough that a unit that never works stops filling its
/// log.
pub const RESTARTS_MAX: u32 = 200;

/// The longest of all delays before a unit is tried again.
pub const RETRY_MAX_MS: Millis = RESTART.max_ms;

/// A process that was up for this long gets all its restarts again.
pub const GOOD_AFTER_MS: Millis = 5 * 60_000;

/// Returns the delay before the next restart of a process that was restarted `attempts` times since it last was up for
/// five minutes; `None` if it has used up its restarts.
#[must_use]
pub fn process_delay(attempts: u32) -> Option<Duration> {
    if attempts >= RESTARTS_MAX {
        return None;
    }
    let Some(doublings) = attempts.checked_sub(IMMEDIATE_RESTARTS) else { return Some(Duration::ZERO) };
    Some(Duration::from_millis(RESTART.bound_ms(doublings).unsigned_abs()))
}

/// The delays before a container is restarted. It takes longer to start than a process, and failures are more often its
/// runtime's, so there is no immediate restart and only a few attempts.
const CONTAINER_S: [u64; 5] = [5, 10, 20, 40, 60];

/// The delays before a state of the host is established again, after it could not be, or others have changed it too often.
const CONVERGENCE: ExponentialGrowth = ExponentialGrowth { first_ms: 5_000, max_ms: 15 * 60_000 };

/// The most attempts in a row: half a day, in which somebody makes room on a disk.
const CONVERGENCES_MAX: u32 = 50;

/// Whether a stored time has come by now that was no more than `longest_ms` ahead when it was stored. One that is further ahead
/// was stored by a clock that was set back since: it has come.
#[must_use]
pub fn has_come(at_ms: Millis, now_ms: Millis, longest_ms: Millis) -> bool {
    !(1..=longest_ms).contains(&at_ms.saturating_sub(now_ms))
}

/// How often and with which delays a unit is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPatience {
    /// As a process: [`process_delay`].
    Process,
    /// As a container: five attempts, after 5, 10, 20, 40 and 60 s.
    Container,
    /// As a state of the host, such as files: after 5 s, and then twice as long each time up to a quarter of an hour.
    Convergence,
}

impl RestartPatience {
    /// Returns the delay before the next restart after `attempts` restarts; `None` if they are used up.
    #[must_use]
    pub fn delay(self, attempts: u32) -> Option<Duration> {
        match self {
            Self::Process => process_delay(attempts),
            Self::Container => {
                let index = usize::try_from(attempts).unwrap_or(usize::MAX);
                CONTAINER_S.get(index).copied().map(Duration::from_secs)
            }
            Self::Convergence => {
                let bound = CONVERGENCE.bound_ms(attempts).unsigned_abs();
                (attempts < CONVERGENCES_MAX).then(|| Duration::from_millis(bound))
            }
        }
    }

    /// The number of immediate restarts.
    #[must_use]
    pub fn immediate(self) -> u32 {
        match self {
            Self::Process => IMMEDIATE_RESTARTS,
            Self::Container | Self::Convergence => 0,
        }
    }
}

/// Exponential growth up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentialGrowth {
    /// The first delay.
    pub first_ms: Millis,
    /// The maximum.
    pub max_ms: Millis,
}

/// Attempts to reach the broker or the console. At most a minute: ten thousand hosts then make 330 attempts a second on
/// average, a third of the TLS handshakes that one core can do.
pub const RECONNECT: ExponentialGrowth = ExponentialGrowth { first_ms: 1_000, max_ms: 60_000 };

impl ExponentialGrowth {
    /// The delay after this many attempts, without jitter.
    #[must_use]
    pub fn bound_ms(self, attempts: u32) -> Millis {
        // 2^30 times any first delay here exceeds the maximum.
        self.first_ms.saturating_mul(1 << attempts.min(30)).min(self.max_ms)
    }

    /// Full jitter: a delay between zero and the bound, so that parties that failed at the same moment come back evenly
    /// spread. `random` is uniform in `0..1` and clamped to it.
    #[must_use]
    pub fn full_jitter_ms(self, attempts: u32, random: f64) -> Millis {
        share(self.bound_ms(attempts), random)
    }

    /// A delay within a quarter of the bound, for what should not happen much too early.
    #[must_use]
    pub fn jittered_ms(self, attempts: u32, random: f64) -> Millis {
        jittered(self.bound_ms(attempts), random)
    }
}

/// A period within a quarter of its nominal length, so that hosts that start together drift apart.
#[must_use]
pub fn jittered(period_ms: Millis, random: f64) -> Millis {
    period_ms - period_ms / 4 + share(period_ms / 2, random)
}

/// Returns a random part of `whole_ms`.
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
    fn stored_time_comes_also_after_the_clock_was_set() {
        const HOUR: Millis = 3_600_000;
        let (longest_ms, now) = (240_000, 1_000 * 24 * HOUR);
        for set_by in [HOUR, 31 * 24 * HOUR, 400 * 24 * HOUR] {
            // It was stored by a clock that was ahead, or behind, and is right now.
            assert!(has_come(now + set_by + 120_000, now, longest_ms));
            assert!(has_come(now - set_by + 120_000, now, longest_ms));
        }
        assert!(has_come(now, now, longest_ms) && has_come(now - 1, now, longest_ms));
        assert!(!has_come(now + 1, now, longest_ms) && !has_come(now + longest_ms, now, longest_ms));
    }

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
            // One more than the bound, for the rounding of two divisions.
            prop_assert!(near >= bound - bound / 4 && near <= bound + bound / 4 + 1);
        }

        #[test]
        fn waits_never_get_shorter(attempts in 0..RESTARTS_MAX - 1) {
            prop_assert!(process_delay(attempts) <= process_delay(attempts + 1));
        }
    }
}
