//! The dates of what the console signs.
//!
//! Agents take the latest date that was signed for the time that it is, at least (`rules::time`), and refuse what expired
//! before that. So a console whose clock was ahead and is set back would sign what no agent does any more, until the clock
//! has made up for it. **Invariant: what is signed later is not dated earlier**, unless agents cannot have believed
//! the earlier date, which was too far ahead.

use std::sync::atomic::{AtomicI64, Ordering};

use muster_topics::Millis;

use crate::rules::time::AHEAD_MAX_MS;

/// The latest date that was signed.
#[derive(Debug)]
pub(super) struct Dated(AtomicI64);

impl Dated {
    /// With what earlier lives of the console have signed.
    pub(super) fn new(latest_ms: Millis) -> Self {
        Self(AtomicI64::new(latest_ms))
    }

    /// The latest date that was signed.
    pub(super) fn latest_ms(&self) -> Millis {
        self.0.load(Ordering::Relaxed)
    }

    /// The date of what is signed now.
    pub(super) fn ms(&self, now: Millis) -> Millis {
        self.at(now, 0)
    }

    /// The same for a message of which agents take only one of each date.
    pub(super) fn another_ms(&self, now: Millis) -> Millis {
        self.at(now, 1)
    }

    fn at(&self, now: Millis, step_ms: Millis) -> Millis {
        let next = |latest: Millis| match latest.saturating_sub(now) {
            ahead if ahead > AHEAD_MAX_MS => now,
            _ => now.max(latest.saturating_add(step_ms)),
        };
        let latest = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| Some(next(latest)));
        // It never fails, for there is always a next one.
        latest.map_or(now, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_go_forward_as_long_as_anybody_believed_them() {
        let dated = Dated::new(1_000);
        assert_eq!((dated.ms(5_000), dated.ms(5_000), dated.another_ms(5_000)), (5_000, 5_000, 5_001));
        // The clock is set back by a little, and by too much.
        assert_eq!((dated.ms(100), dated.another_ms(100), dated.latest_ms()), (5_001, 5_002, 5_002));
        assert_eq!(dated.ms(3 * AHEAD_MAX_MS), 3 * AHEAD_MAX_MS);
        assert_eq!((dated.ms(7_000), dated.another_ms(6_999)), (7_000, 7_001));
    }
}
