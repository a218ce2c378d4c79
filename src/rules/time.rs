//! What time it is, for a host whose clock may be wrong: the latest of its clock, of the moment
//! that this program was built, and of the latest signed time that it has seen. So a host without a
//! clock battery still refuses what has expired.

use muster_topics::Millis;

use crate::fault::planted;

/// When this program was built, as its packager says (`SOURCE_DATE_EPOCH`); otherwise a time before
/// its first release.
pub const BUILD_MS: Millis = match option_env!("SOURCE_DATE_EPOCH") {
    Some(text) => parse_seconds(text.as_bytes()) * 1000,
    None => FIRST_MS,
};

/// 2026-01-01.
const FIRST_MS: Millis = 1_767_225_600_000;

/// How far ahead of everything known a signed time may be. A day lets a host work whose clock is
/// off by a time zone, and bounds what a console with a wrong clock can do: what it signs moves the
/// host's time ahead, and would let all that is signed later by a right clock seem expired.
pub const AHEAD_MAX_MS: Millis = 24 * 3_600_000;

const fn parse_seconds(digits: &[u8]) -> Millis {
    let (mut value, mut at) = (0, 0);
    while at < digits.len() {
        assert!(digits[at].is_ascii_digit(), "SOURCE_DATE_EPOCH must be a number of seconds");
        value = value * 10 + (digits[at] - b'0') as Millis;
        at += 1;
    }
    value
}

/// How old what a host says may be: agents keep measurements for a week, unless they are told to keep them for longer.
const BEHIND_MAX_MS: Millis = 31 * 24 * 3_600_000;

/// Whether a time that a host's clock showed can be true of something that was received then.
#[must_use]
pub fn can_be_true(host_ms: Millis, received_ms: Millis) -> bool {
    (received_ms.saturating_sub(BEHIND_MAX_MS)..=received_ms.saturating_add(AHEAD_MAX_MS)).contains(&host_ms)
}

/// What is known of the time beside the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTime {
    signed_ms: Millis,
}

impl KnownTime {
    /// With the latest signed time that earlier lives of the agent saw, 0 if none did.
    #[must_use]
    pub fn new(signed_ms: Millis) -> Self {
        Self { signed_ms }
    }

    /// The latest signed time that was seen.
    #[must_use]
    pub fn signed_ms(self) -> Millis {
        self.signed_ms
    }

    /// What time it is, given what the clock shows.
    #[must_use]
    pub fn now_ms(self, clock_ms: Millis) -> Millis {
        if planted!(TrustClock) {
            return clock_ms;
        }
        clock_ms.max(BUILD_MS).max(self.signed_ms)
    }

    /// Whether a signed time may be true. A clock that stands before the build was never set, and is
    /// no witness against it.
    #[must_use]
    pub fn believes(self, issued_ms: Millis, clock_ms: Millis) -> bool {
        clock_ms < BUILD_MS || issued_ms <= self.now_ms(clock_ms).saturating_add(AHEAD_MAX_MS)
    }

    /// Takes note of a signed time, if it may be true.
    pub fn saw(&mut self, issued_ms: Millis, clock_ms: Millis) {
        if self.believes(issued_ms, clock_ms) {
            self.signed_ms = self.signed_ms.max(issued_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNSET: Millis = 5_000;
    const DAY: Millis = 24 * 3_600_000;

    #[test]
    fn the_latest_witness_counts() {
        assert_eq!(KnownTime::new(0).now_ms(UNSET), BUILD_MS);
        assert_eq!(KnownTime::new(BUILD_MS + 5).now_ms(UNSET), BUILD_MS + 5);
        assert_eq!(KnownTime::new(BUILD_MS + 5).now_ms(BUILD_MS + 9), BUILD_MS + 9);
    }

    #[test]
    fn a_host_whose_clock_was_never_set_learns_the_time() {
        let mut time = KnownTime::new(0);
        time.saw(BUILD_MS + 400 * DAY, UNSET);
        assert_eq!(time.now_ms(UNSET), BUILD_MS + 400 * DAY);
    }

    #[test]
    fn a_console_far_in_the_future_does_not_move_a_set_clock() {
        let clock_ms = BUILD_MS + DAY;
        let mut time = KnownTime::new(0);
        time.saw(clock_ms + AHEAD_MAX_MS + 1, clock_ms);
        assert_eq!(time.now_ms(clock_ms), clock_ms);
        time.saw(clock_ms + AHEAD_MAX_MS, clock_ms);
        assert_eq!(time.now_ms(clock_ms), clock_ms + AHEAD_MAX_MS);
    }

    #[test]
    fn a_time_that_cannot_be_true_is_known_by_when_it_was_received() {
        let now_ms = BUILD_MS + 400 * DAY;
        for (host_ms, can_be) in [
            (now_ms, true),
            (now_ms - 7 * DAY, true),
            (now_ms + DAY, true),
            (now_ms + DAY + 1, false),
            (now_ms - 32 * DAY, false),
            (UNSET, false),
            (Millis::MAX, false),
        ] {
            assert_eq!(can_be_true(host_ms, now_ms), can_be, "{host_ms}");
        }
    }

    #[test]
    fn the_build_is_read_from_digits() {
        assert_eq!(parse_seconds(b"1767225600") * 1000, FIRST_MS);
    }

    proptest! {
        #[test]
        fn time_never_goes_back(clocks in proptest::collection::vec((any::<i64>(), any::<i64>()), 1..20)) {
            let mut time = KnownTime::new(0);
            let mut signed_ms = 0;
            for (clock_ms, issued_ms) in clocks {
                time.saw(issued_ms, clock_ms);
                prop_assert!(time.signed_ms() >= signed_ms);
                prop_assert!(time.now_ms(clock_ms) >= clock_ms);
                signed_ms = time.signed_ms();
            }
        }
    }
}
