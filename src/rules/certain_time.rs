//! The time that has certainly come: by it what is over ends, or is removed for good.
//!
//! A clock may be set to a wrong time, and what a wrong clock has ended or removed stays so when it is put right. So what is final
//! asks for the time that has certainly come: the clock, but no later than a time that was confirmed plus what has passed
//! since, which the machine counts whatever its clock shows. While the clock is further ahead, nothing ends early; what is over
//! ends later, by as much as nobody knows has passed, until hosts agree with the clock or an operator confirms it.
//!
//! **Invariant: no reading of the clock alone moves the certain time ahead** by more than [`SLACK_MS`] and a hundredth of the
//! time that has passed.

use muster_topics::Millis;

use super::time::{BUILD_MS, SLACK_MS};

/// The share of the time that has passed by which the clock may be ahead of it: a bad clock loses a thousandth.
const DRIFT_SHARE: Millis = 100;

/// A time that was confirmed, and how much has passed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertainTime {
    /// The confirmed time.
    pub confirmed_ms: Millis,
    /// What has passed since, at least.
    pub passed_ms: Millis,
}

impl CertainTime {
    /// A time that is confirmed now.
    #[must_use]
    pub fn confirmed(clock_ms: Millis) -> Self {
        Self { confirmed_ms: clock_ms.max(BUILD_MS), passed_ms: 0 }
    }

    /// The same, later.
    #[must_use]
    pub fn after(self, passed_ms: Millis) -> Self {
        Self { passed_ms: self.passed_ms.saturating_add(passed_ms.max(0)), ..self }
    }

    /// The confirmed time and what has passed since: if that was right, the time has come whatever the clock shows.
    #[must_use]
    pub fn known_ms(self) -> Millis {
        self.confirmed_ms.saturating_add(self.passed_ms)
    }

    /// Returns the latest time that may have come.
    fn bound_ms(self) -> Millis {
        let drift_ms = SLACK_MS.saturating_add(self.passed_ms / DRIFT_SHARE);
        self.known_ms().saturating_add(drift_ms)
    }

    /// Returns the time that has certainly come, given the clock.
    #[must_use]
    pub fn at(self, clock_ms: Millis) -> Millis {
        clock_ms.min(self.bound_ms())
    }

    /// By how much the clock is ahead of it; 0 if the clock can be right.
    #[must_use]
    pub fn ahead_ms(self, clock_ms: Millis) -> Millis {
        clock_ms.saturating_sub(self.at(clock_ms))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Millis = BUILD_MS + 400 * DAY;
    const HOUR: Millis = 3_600_000;
    const DAY: Millis = 24 * HOUR;

    #[test]
    fn clock_that_is_set_moves_nothing_until_it_is_confirmed() {
        let time = CertainTime::confirmed(NOW).after(HOUR);
        let late_ms = NOW + HOUR + SLACK_MS + HOUR / DRIFT_SHARE;
        for (clock_ms, wanted_ms) in [
            (NOW + HOUR, NOW + HOUR),
            // Drift.
            (NOW + HOUR + SLACK_MS, NOW + HOUR + SLACK_MS),
            (NOW + 2 * HOUR, late_ms),
            (NOW + 31 * DAY, late_ms),
            (NOW + 400 * DAY, late_ms),
            (Millis::MAX, late_ms),
            // A clock that is behind ends nothing early.
            (NOW - 31 * DAY, NOW - 31 * DAY),
            (0, 0),
        ] {
            assert_eq!(time.at(clock_ms), wanted_ms, "{}", clock_ms - NOW);
            assert_eq!((time.ahead_ms(clock_ms), time.known_ms()), (clock_ms - wanted_ms, NOW + HOUR));
        }
        assert_eq!(CertainTime::confirmed(NOW + 31 * DAY).at(NOW + 31 * DAY), NOW + 31 * DAY);
        assert_eq!(CertainTime::confirmed(NOW - DAY).at(NOW - DAY), NOW - DAY, "confirmed back");
        // A clock that was never set confirms nothing of before the build.
        assert_eq!(CertainTime::confirmed(5_000).confirmed_ms, BUILD_MS);
    }

    proptest! {
        #[test]
        fn certain_time_is_never_later_than_clock_or_what_has_passed(clocks: Vec<i64>, passed in 0..400 * DAY) {
            let time = CertainTime::confirmed(NOW).after(passed);
            for clock_ms in clocks {
                let at_ms = time.at(clock_ms);
                prop_assert!(at_ms <= clock_ms && at_ms <= NOW + passed + SLACK_MS + passed / DRIFT_SHARE);
            }
        }
    }
}
