//! Decides how long to wait before the next connection.

use muster_rules::backoff::{ExponentialGrowth, RECONNECT};
use muster_topics::Millis;

/// A connection that lasted this long was good: the delays start over.
const GOOD_MS: Millis = 30_000;

/// How long a twin that has withdrawn waits before it connects again.
const WITHDRAWN: ExponentialGrowth = ExponentialGrowth { first_ms: 300_000, max_ms: 300_000 };

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// It broke, or was never established.
    Broken,
    /// The agent ended it.
    Disconnected,
    /// Another agent of this host works.
    Withdrawn,
}

/// The delays between connections.
#[derive(Clone, Debug, Default)]
pub struct ReconnectSchedule {
    attempts: u32,
}

impl ReconnectSchedule {
    /// The number of attempts that failed in a row.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Forgets earlier failures, because the next attempt is made with another identity.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Returns how long to wait after a connection. `up_ms` is how long it lasted; `None` if it was not established.
    pub fn wait_ms(&mut self, end: ConnectionEnd, up_ms: Option<Millis>, random: f64) -> Millis {
        if up_ms.is_some_and(|up_ms| up_ms >= GOOD_MS) {
            self.attempts = 0;
        }
        match end {
            ConnectionEnd::Withdrawn => WITHDRAWN.jittered_ms(0, random),
            ConnectionEnd::Disconnected => RECONNECT.full_jitter_ms(0, random),
            ConnectionEnd::Broken => {
                let wait_ms = RECONNECT.full_jitter_ms(self.attempts, random);
                self.attempts = self.attempts.saturating_add(1);
                wait_ms
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_a_good_connection() {
        let mut schedule = ReconnectSchedule::default();
        let mut waits = |up_ms| schedule.wait_ms(ConnectionEnd::Broken, up_ms, 0.99);
        let (first, second) = (waits(None), waits(Some(1)));
        assert!(second > first, "{first} {second}");
        assert_eq!(waits(Some(GOOD_MS)), first);
    }

    #[test]
    fn withdrawn_agent_stays_away_for_minutes() {
        let wait_ms = ReconnectSchedule::default().wait_ms(ConnectionEnd::Withdrawn, Some(1), 0.0);
        assert!(wait_ms >= 60_000, "{wait_ms}");
    }
}
