//! The time by which messages expire.

use std::{
    sync::OnceLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// What the clock showed once, and when that was.
#[derive(Clone, Copy)]
struct ClockReading {
    unix_ms: u64,
    at: Instant,
}

impl ClockReading {
    /// Reads the clock. One before 1970 counts as 1970.
    fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX), at: Instant::now() }
    }

    /// What the clock shows then, if it is not set.
    fn unix_ms(self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.at).as_millis();
        self.unix_ms.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// Milliseconds of Unix time, as the clock showed it when this process began, with what has passed since: a clock that is set
/// meanwhile ends no message.
pub(crate) fn unix_ms() -> u64 {
    static BEGAN: OnceLock<ClockReading> = OnceLock::new();
    BEGAN.get_or_init(ClockReading::new).unix_ms(Instant::now())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_goes_on_from_the_first_reading_of_the_clock() {
        let began = ClockReading { unix_ms: 7_000, at: Instant::now() };
        assert_eq!(began.unix_ms(began.at + Duration::from_secs(3)), 10_000);
        assert_eq!(began.unix_ms(began.at), 7_000);
        let first = unix_ms();
        assert!(first > 1_700_000_000_000 && unix_ms() >= first);
    }
}
