//! Rate limit of the clients of one identity.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A token bucket of bytes. It holds one second's worth, so that a burst passes at full speed and only a lasting flood
/// is slowed down.
#[derive(Debug)]
pub(crate) struct BytePace {
    /// 0 is no limit.
    bytes_per_second: u64,
    state: Mutex<PaceState>,
}

#[derive(Debug)]
struct PaceState {
    /// Bytes read above what the rate allows, as of `at`.
    excess: u64,
    at: Instant,
}

impl BytePace {
    pub(crate) fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self { bytes_per_second, state: Mutex::new(PaceState { excess: 0, at: now }) }
    }

    /// Records bytes that were read; if that was too fast, returns for how long to stop reading.
    pub(crate) fn pause(&self, bytes: usize, now: Instant) -> Option<Duration> {
        if self.bytes_per_second == 0 {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.at);
        let allowed = u128::from(self.bytes_per_second) * passed.as_nanos() / 1_000_000_000;
        state.excess = state.excess.saturating_sub(u64::try_from(allowed).unwrap_or(u64::MAX));
        // A fraction of a byte is lost with each call, and each call is for many.
        state.at = now.max(state.at);
        state.excess += bytes as u64;
        let over = state.excess.checked_sub(self.bytes_per_second).filter(|over| *over > 0)?;
        Some(Duration::from_micros(over.saturating_mul(1_000_000) / self.bytes_per_second + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_is_slowed_down() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let pace = BytePace::new(1000, start);
        assert_eq!(pace.pause(1000, at(0)), None);
        let ms = |pause: Option<Duration>| pause.map(|pause| pause.as_millis());
        assert_eq!(ms(pace.pause(500, at(0))), Some(500));
        assert_eq!(ms(pace.pause(100, at(500))), Some(100));
        assert_eq!(pace.pause(100, at(1000)), None);
        assert_eq!(pace.pause(1000, at(9000)), None);
        // Time that stands still, or goes back, adds nothing.
        assert_eq!(ms(pace.pause(1000, at(8000))), Some(1000));
    }

    #[test]
    fn zero_means_no_limit() {
        let pace = BytePace::new(0, Instant::now());
        assert_eq!(pace.pause(usize::MAX, Instant::now()), None);
    }

    #[test]
    fn rate_equals_its_setting() {
        let start = Instant::now();
        let pace = BytePace::new(10_000, start);
        let (mut now, mut sent) = (start, 0_u64);
        while now < start + Duration::from_secs(20) {
            sent += 700;
            if let Some(pause) = pace.pause(700, now) {
                now += pause;
            }
        }
        assert!((205_000..=220_000).contains(&sent), "{sent} bytes in 20 s, of 10,000 a second and a burst of as much");
    }
}
