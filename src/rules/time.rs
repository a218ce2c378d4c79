//! The time of a host whose clock may be wrong: the latest of its clock, of the build
//! date of this program, and of the latest signed date that it has received. So a host without a
//! clock battery still refuses expired commands.
//!
//! A console whose clock was ahead has signed dates in the future. A later message with an earlier date proves
//! nothing, because whoever owns the broker can replay old messages. An acknowledgement of a heartbeat
//! does: it was made after that heartbeat. So a host goes back to the date of such an acknowledgement ([`KnownTime::observe_fresh`]), and until
//! it has received one it does not answer commands that have expired by signed dates alone ([`KnownTime::is_sure`]).

use muster_fault::planted;
use muster_topics::Millis;

/// When this program was built, as its packager set it (`SOURCE_DATE_EPOCH`); otherwise a time before its first
/// release.
pub const BUILD_MS: Millis = match option_env!("SOURCE_DATE_EPOCH") {
    Some(text) => parse_seconds(text.as_bytes()) * 1000,
    None => FIRST_MS,
};

/// 2026-01-01.
const FIRST_MS: Millis = 1_767_225_600_000;

/// How far ahead of all known times a signed time may be. A day lets a host work whose clock is off by a time zone, and
/// limits the damage of a console with a wrong clock: its signed times move the host's time ahead, and commands signed
/// later by a right clock would appear expired.
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

/// How old a host's report may be: agents keep measurements for a week, or longer if configured.
const BEHIND_MAX_MS: Millis = 31 * 24 * 3_600_000;

/// Whether a host's time is plausible for a message received at `received_ms`.
#[must_use]
pub fn can_be_true(host_ms: Millis, received_ms: Millis) -> bool {
    (received_ms.saturating_sub(BEHIND_MAX_MS)..=received_ms.saturating_add(AHEAD_MAX_MS)).contains(&host_ms)
}

/// How far a signed time may be ahead of the console's latest confirmed time without doubt: clocks are corrected by
/// seconds now and then, and acknowledgements take time to arrive.
pub const SLACK_MS: Millis = 60_000;

/// How old a heartbeat may be whose acknowledgement confirms the console's time: a hostile broker can delay one for
/// that long, and the host's time is behind by as much.
pub const FRESH_MS: Millis = 60_000;

/// How often a confirmation of the console's time is requested, until it arrives.
const ASK_MS: Millis = 10_000;

/// What is known of the time apart from the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTime {
    signed_ms: Millis,
    way_back: Option<ReturnToTime>,
}

/// How a host recovers from a signed time that was ahead. Its own times are monotonic, in milliseconds since the agent
/// started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReturnToTime {
    /// Now.
    life_ms: Millis,
    /// The console's latest confirmed time, and when it arrived.
    fresh: Option<(Millis, Millis)>,
    /// When a confirmation was last requested.
    asked_ms: Option<Millis>,
}

impl KnownTime {
    /// Creates it with the latest signed time of earlier runs of the agent; 0 if there is none. It never goes back.
    #[must_use]
    pub fn new(signed_ms: Millis) -> Self {
        Self { signed_ms, way_back: None }
    }

    /// Allows the host to go back to an earlier time.
    #[must_use]
    pub fn with_way_back(self) -> Self {
        Self { way_back: Some(ReturnToTime::default()), ..self }
    }

    /// Sets the time since the agent started.
    #[must_use]
    pub fn at(self, life_ms: Millis) -> Self {
        Self { way_back: self.way_back.map(|back| ReturnToTime { life_ms, ..back }), ..self }
    }

    /// Whether the signed time agrees with the console's latest confirmed time.
    #[must_use]
    pub fn is_sure(self) -> bool {
        let Some(back) = self.way_back else { return true };
        back.fresh.is_some_and(|(issued_ms, at_ms)| self.signed_ms <= issued_ms + (back.life_ms - at_ms) + SLACK_MS)
    }

    /// Whether to request a confirmation of the console's time now: signed times are ahead of the clock, and
    /// unconfirmed. If so, the request is recorded.
    pub fn ask(&mut self, clock_ms: Millis) -> bool {
        let is_doubtful = !self.is_sure() && self.signed_ms > Self::by_clock_ms(clock_ms).saturating_add(SLACK_MS);
        let Some(back) = self.way_back.as_mut().filter(|_| is_doubtful) else { return false };
        let may = back.asked_ms.is_none_or(|asked_ms| back.life_ms - asked_ms >= ASK_MS);
        if may {
            back.asked_ms = Some(back.life_ms);
        }
        may
    }

    /// Handles the console's confirmed time. Returns by how much the signed time was ahead, if it was set back. It is
    /// set back by at most `kept_ms`, the time for which commands are remembered after their expiry: then commands that
    /// were forgotten by the time that was ahead have expired by the right one, too.
    pub fn observe_fresh(&mut self, issued_ms: Millis, clock_ms: Millis, kept_ms: Millis) -> Option<Millis> {
        if !self.believes(issued_ms, clock_ms) {
            return None;
        }
        let back = self.way_back.as_mut()?;
        back.fresh = Some((issued_ms, back.life_ms));
        let ahead_ms = self.signed_ms - issued_ms;
        if ahead_ms <= SLACK_MS {
            self.signed_ms = self.signed_ms.max(issued_ms);
            return None;
        }
        if ahead_ms > kept_ms {
            return None;
        }
        self.signed_ms = issued_ms;
        Some(ahead_ms)
    }

    /// Returns the earliest possible time by the clock alone.
    #[must_use]
    pub fn by_clock_ms(clock_ms: Millis) -> Millis {
        clock_ms.max(BUILD_MS)
    }

    /// The latest signed time.
    #[must_use]
    pub fn signed_ms(self) -> Millis {
        self.signed_ms
    }

    /// Returns the current time, given the clock.
    #[must_use]
    pub fn now_ms(self, clock_ms: Millis) -> Millis {
        if planted!(TrustClock) {
            return clock_ms;
        }
        Self::by_clock_ms(clock_ms).max(self.signed_ms)
    }

    /// Whether a signed time is plausible. A clock from before the build was never set, and is no evidence against it.
    #[must_use]
    pub fn believes(self, issued_ms: Millis, clock_ms: Millis) -> bool {
        clock_ms < BUILD_MS || issued_ms <= self.now_ms(clock_ms).saturating_add(AHEAD_MAX_MS)
    }

    /// Records a signed time, if it is plausible.
    pub fn observe(&mut self, issued_ms: Millis, clock_ms: Millis) {
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
    fn known_time_is_the_latest_witness() {
        assert_eq!(KnownTime::new(0).now_ms(UNSET), BUILD_MS);
        assert_eq!(KnownTime::new(BUILD_MS + 5).now_ms(UNSET), BUILD_MS + 5);
        assert_eq!(KnownTime::new(BUILD_MS + 5).now_ms(BUILD_MS + 9), BUILD_MS + 9);
    }

    #[test]
    fn unset_clock_follows_signed_time() {
        let mut time = KnownTime::new(0);
        time.observe(BUILD_MS + 400 * DAY, UNSET);
        assert_eq!(time.now_ms(UNSET), BUILD_MS + 400 * DAY);
    }

    #[test]
    fn date_far_ahead_does_not_move_set_clock() {
        let clock_ms = BUILD_MS + DAY;
        let mut time = KnownTime::new(0);
        time.observe(clock_ms + AHEAD_MAX_MS + 1, clock_ms);
        assert_eq!(time.now_ms(clock_ms), clock_ms);
        time.observe(clock_ms + AHEAD_MAX_MS, clock_ms);
        assert_eq!(time.now_ms(clock_ms), clock_ms + AHEAD_MAX_MS);
    }

    #[test]
    fn fresh_acknowledgement_takes_time_back() {
        let clock_ms = BUILD_MS + 10 * DAY;
        let mut time = KnownTime::new(clock_ms + DAY).with_way_back().at(1_000);
        assert!(!time.is_sure(), "nobody has said so in this life");
        assert!(time.ask(clock_ms) && !time.ask(clock_ms), "it is asked for now and then");
        assert!(time.at(1_000 + ASK_MS).ask(clock_ms));
        // The latest possible time of a console whose clock is still ahead.
        assert_eq!((time.observe_fresh(clock_ms + DAY, clock_ms, DAY), time.is_sure()), (None, true));
        assert!(!time.ask(clock_ms));
        // The clock was corrected.
        let mut time = time.at(5_000);
        assert_eq!(time.observe_fresh(clock_ms, clock_ms, DAY - 1), None, "what it has forgotten has not expired");
        assert_eq!((time.signed_ms(), time.is_sure()), (clock_ms + DAY, false));
        assert_eq!(time.observe_fresh(clock_ms, clock_ms, DAY), Some(DAY));
        assert_eq!((time.signed_ms(), time.is_sure()), (clock_ms, true));
        // An old message that arrives again moves the time ahead, and is not a confirmation.
        time.observe(clock_ms + DAY / 2, clock_ms);
        assert!(!time.is_sure());
        // Time passes.
        let mut time = KnownTime::new(0).with_way_back().at(1_000);
        assert_eq!(time.observe_fresh(clock_ms, UNSET, DAY), None);
        time.observe(clock_ms + DAY, UNSET);
        assert_eq!([1_000, 1_000 + DAY].map(|life_ms| time.at(life_ms).is_sure()), [false, true]);
        // A host that cannot go back never does.
        let mut time = KnownTime::new(clock_ms + DAY);
        assert_eq!(
            (time.observe_fresh(clock_ms, clock_ms, DAY), time.is_sure(), time.ask(clock_ms)),
            (None, true, false)
        );
    }

    #[test]
    fn fresh_acknowledgement_a_day_ahead_is_ignored() {
        let clock_ms = BUILD_MS + 10 * DAY;
        let mut time = KnownTime::new(clock_ms).with_way_back().at(1_000);
        assert_eq!(time.observe_fresh(clock_ms + AHEAD_MAX_MS + 1, clock_ms, DAY), None);
        assert_eq!((time.signed_ms(), time.is_sure()), (clock_ms, false));
    }

    #[test]
    fn impossible_time_is_dated_by_receipt() {
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
    fn build_date_parses_from_digits() {
        assert_eq!(parse_seconds(b"1767225600") * 1000, FIRST_MS);
    }

    proptest! {
        #[test]
        fn time_never_goes_back(clocks in proptest::collection::vec((any::<i64>(), any::<i64>()), 1..20)) {
            let mut time = KnownTime::new(0);
            let mut signed_ms = 0;
            for (clock_ms, issued_ms) in clocks {
                time.observe(issued_ms, clock_ms);
                prop_assert!(time.signed_ms() >= signed_ms);
                prop_assert!(time.now_ms(clock_ms) >= clock_ms);
                signed_ms = time.signed_ms();
            }
        }
    }
}
