//! Finds out by how much the wall clock was set, by comparison with the time that has passed.

use std::time::Instant;

use muster_rules::time::SLACK_MS;
use muster_topics::Millis;

/// By how much a clock was set, compared with the elapsed time.
#[derive(Clone, Copy, Debug)]
pub struct ClockSteps {
    at: Instant,
    clock_ms: Millis,
}

impl ClockSteps {
    /// Starts from now.
    #[must_use]
    pub fn new(now: Millis) -> Self {
        Self { at: Instant::now(), clock_ms: now }
    }

    /// What the clock would show if it had not been set.
    #[must_use]
    pub fn expected_ms(&self) -> Millis {
        self.clock_ms.saturating_add(Millis::try_from(self.at.elapsed().as_millis()).unwrap_or(Millis::MAX))
    }

    /// Returns by how much the clock was set since the last call; 0 if it only drifted. A machine that slept looks the
    /// same.
    pub fn take(&mut self, now: Millis) -> Millis {
        let by_ms = now.saturating_sub(self.expected_ms());
        *self = Self::new(now);
        if by_ms.unsigned_abs() > SLACK_MS.unsigned_abs() { by_ms } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Millis = 3_600_000;

    #[test]
    fn drifting_clock_is_not_a_jump() {
        let mut steps = ClockSteps::new(HOUR);
        assert_eq!(steps.take(HOUR + SLACK_MS / 2), 0);
        let by_ms = steps.take(3 * HOUR);
        assert!((HOUR..=2 * HOUR).contains(&by_ms), "{by_ms}");
        assert!(steps.take(HOUR) < -HOUR);
    }
}
