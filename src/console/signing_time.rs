//! Dates for what the console signs.
//!
//! Agents take the latest signed date as a lower bound of the time (`rules::time`), and refuse what expired
//! before it. An agent steps back once the console acknowledges a heartbeat with an earlier date, if it says so (the capability
//! `fresh_time`); others do not, so that a console whose clock was ahead and is set back would sign commands that they refuse.
//! **Invariant: what is signed for an agent that does not step back is not dated earlier than what was signed before**, unless
//! that date was too far ahead for it to believe.
//!
//! Everything else is dated with the present time: the clock's, or the hosts' consensus while the clock is known to be wrong
//! (`rules::clock`). Until hosts have been compared with a clock that was set back, either may be wrong, and commands
//! for all hosts are dated no earlier than before. Messages that are repeated every few seconds do not follow a clock that was just set
//! ahead, until hosts have been compared with it.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use muster_base::clock_steps::ClockSteps;
use muster_rules::time::{AHEAD_MAX_MS, SLACK_MS};
use muster_topics::Millis;

/// The signed time; see the module. Callers pass times of the console's clock.
#[derive(Debug)]
pub(super) struct SigningTime {
    /// The latest signed time.
    latest: AtomicI64,
    /// The latest signed time that hosts have confirmed to be harmless.
    settled: AtomicI64,
    /// The latest signed time of messages of which agents accept one for each time.
    single: AtomicI64,
    /// The correction of the clock.
    correction: AtomicI64,
    /// Whether hosts agree with the corrected clock.
    confirmed: AtomicBool,
    /// The clock when it was last found right or unopposed.
    trusted: Mutex<ClockSteps>,
}

impl SigningTime {
    /// Creates it with the latest signed time of earlier runs of the console.
    pub(super) fn new(latest_ms: Millis, now: Millis) -> Self {
        Self {
            latest: AtomicI64::new(latest_ms),
            settled: AtomicI64::new(0),
            single: AtomicI64::new(0),
            correction: AtomicI64::new(0),
            confirmed: AtomicBool::new(false),
            trusted: Mutex::new(ClockSteps::new(now)),
        }
    }

    /// The latest signed time.
    pub(super) fn latest_ms(&self) -> Millis {
        self.latest.load(Ordering::Relaxed)
    }

    /// By how much signed times are ahead, if hosts may rely on them.
    pub(super) fn ahead_ms(&self, now: Millis) -> Millis {
        let latest_ms = self.latest_ms();
        if latest_ms <= self.settled.load(Ordering::Relaxed) {
            return 0;
        }
        let ahead_ms = latest_ms.saturating_sub(self.corrected(now));
        if ahead_ms > SLACK_MS { ahead_ms } else { 0 }
    }

    /// Records that no host relies on a signed time in the future.
    pub(super) fn settle(&self) {
        self.settled.store(self.latest_ms(), Ordering::Relaxed);
    }

    /// Sets the correction of the clock, and whether hosts agree with the result.
    pub(super) fn correct_by(&self, ms: Millis, is_confirmed: bool) {
        self.correction.store(ms, Ordering::Relaxed);
        self.confirmed.store(is_confirmed, Ordering::Relaxed);
    }

    /// Whether hosts agree with the corrected clock, and it was not set back since.
    pub(super) fn is_confirmed(&self, now: Millis) -> bool {
        let expected_ms = self.trusted().expected_ms();
        self.confirmed.load(Ordering::Relaxed) && self.corrected(now) >= expected_ms.saturating_sub(SLACK_MS)
    }

    /// Records that the present clock is not contradicted.
    pub(super) fn trust(&self, now: Millis) {
        *self.trusted() = ClockSteps::new(self.corrected(now));
    }

    /// Returns the time to sign with now.
    pub(super) fn ms(&self, now: Millis) -> Millis {
        self.note(self.corrected(now))
    }

    /// Returns the time to sign with for agents that do not step back, or before hosts agree with the clock.
    pub(super) fn bound_ms(&self, now: Millis) -> Millis {
        let now = self.corrected(now);
        self.note(match self.latest_ms() {
            latest_ms if latest_ms.saturating_sub(now) > AHEAD_MAX_MS => now,
            latest_ms => latest_ms.max(now),
        })
    }

    /// Returns the time for messages that are sent every few seconds. It does not follow a clock that was set forward
    /// until that is trusted.
    pub(super) fn careful_ms(&self, now: Millis) -> Millis {
        let (now, expected_ms) = (self.corrected(now), self.trusted().expected_ms());
        self.note(if now > expected_ms.saturating_add(SLACK_MS) { expected_ms } else { now })
    }

    /// Returns the same for a message of which agents accept one for each time.
    pub(super) fn another_ms(&self, now: Millis) -> Millis {
        let wanted_ms = self.careful_ms(now);
        let next = |last_ms: Millis| match (0..SLACK_MS).contains(&last_ms.saturating_sub(wanted_ms)) {
            true => last_ms + 1,
            false => wanted_ms,
        };
        let last = self.single.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last_ms| Some(next(last_ms)));
        // It never fails, because there is always a next value.
        self.note(last.map_or(wanted_ms, next))
    }

    fn corrected(&self, now: Millis) -> Millis {
        now.saturating_add(self.correction.load(Ordering::Relaxed))
    }

    fn note(&self, date_ms: Millis) -> Millis {
        let later = |latest_ms: Millis| match latest_ms.saturating_sub(date_ms) {
            // No agent has believed it.
            ahead_ms if ahead_ms > AHEAD_MAX_MS => date_ms,
            _ => latest_ms.max(date_ms),
        };
        let _ = self.latest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest_ms| Some(later(latest_ms)));
        date_ms
    }

    fn trusted(&self) -> MutexGuard<'_, ClockSteps> {
        // A panic is impossible while it is locked.
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Millis = 3_600_000;

    #[test]
    fn dates_for_agents_that_do_not_step_back_never_go_back() {
        let dated = SigningTime::new(1_000, 50 * HOUR);
        assert_eq!(
            (dated.ms(50 * HOUR), dated.bound_ms(50 * HOUR), dated.ahead_ms(50 * HOUR)),
            (50 * HOUR, 50 * HOUR, 0)
        );
        // The clock was ahead, and is corrected.
        dated.ms(60 * HOUR);
        assert_eq!((dated.ms(51 * HOUR), dated.bound_ms(51 * HOUR)), (51 * HOUR, 60 * HOUR));
        assert_eq!((dated.latest_ms(), dated.ahead_ms(51 * HOUR)), (60 * HOUR, 9 * HOUR));
        dated.settle();
        assert_eq!(dated.ahead_ms(51 * HOUR), 0);
        // No agent has believed this.
        dated.ms(51 * HOUR + AHEAD_MAX_MS + 1);
        assert_eq!(dated.bound_ms(51 * HOUR), 51 * HOUR);
    }

    #[test]
    fn wrong_clock_is_corrected() {
        let dated = SigningTime::new(0, 50 * HOUR);
        dated.correct_by(-24 * HOUR, true);
        assert_eq!(
            (dated.ms(74 * HOUR), dated.careful_ms(74 * HOUR), dated.latest_ms()),
            (50 * HOUR, 50 * HOUR, 50 * HOUR)
        );
    }

    #[test]
    fn repeated_messages_ignore_untrusted_clock() {
        let dated = SigningTime::new(0, 50 * HOUR);
        let careful_ms = dated.careful_ms(74 * HOUR);
        assert!((50 * HOUR..51 * HOUR).contains(&careful_ms), "{careful_ms}");
        assert_eq!(dated.careful_ms(40 * HOUR), 40 * HOUR, "back it is followed at once");
        dated.correct_by(0, true);
        assert_eq!([50 * HOUR, 40 * HOUR].map(|now| dated.is_confirmed(now)), [true, false], "for it was set back");
        dated.trust(74 * HOUR);
        assert_eq!(dated.careful_ms(74 * HOUR), 74 * HOUR);
        let singles = [0; 3].map(|_| dated.another_ms(74 * HOUR));
        assert_eq!(singles, [74 * HOUR, 74 * HOUR + 1, 74 * HOUR + 2]);
        assert_eq!(dated.another_ms(73 * HOUR), 73 * HOUR);
    }
}
