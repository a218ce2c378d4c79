//! Rate limit: one for all downloads of the host.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How much may come at once after a rest. Less would wait after each chunk, which timers are too coarse for.
const BURST: Duration = Duration::from_millis(250);

/// A pace.
#[derive(Debug)]
pub(super) struct TransferPace {
    bytes_per_s: Option<u64>,
    /// When everything that was let through would have come at exactly that pace.
    even: Mutex<Option<Instant>>,
}

impl TransferPace {
    pub(super) fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, even: Mutex::default() }
    }

    /// Waits until so many bytes more are within the pace. Cancel-safe: who gives up has had his share.
    pub(super) async fn wait_for(&self, bytes: usize) {
        let now = Instant::now();
        if let Some(until) = self.until(bytes, now) {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Until when to wait, if at all.
    fn until(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s?.max(1) as f64);
        let mut even = self.even.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = now.checked_sub(BURST).unwrap_or(now);
        let next = even.map_or(rested, |even| even.max(rested)) + takes;
        *even = Some(next);
        Some(next).filter(|next| *next > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_applies_to_all_downloads_together() {
        let pace = TransferPace::new(Some(1_000_000));
        let began = Instant::now() + BURST;
        // Each of two goes on when it may.
        let mut now = [began, began];
        for _ in 0..100 {
            let next = usize::from(now[1] < now[0]);
            now[next] = pace.until(16_384, now[next]).unwrap_or(now[next]);
        }
        let took_s = (now[0].max(now[1]) - began).as_secs_f64();
        let even_s = 100.0 * 16_384.0 / 1_000_000.0 - BURST.as_secs_f64();
        assert!((took_s - even_s).abs() < 0.001, "{took_s} s instead of {even_s} s");
        // A rest earns no more than a burst.
        let later = now[0].max(now[1]) + Duration::from_secs(3600);
        assert_eq!(pace.until(250_000, later), None);
        assert_eq!(pace.until(1_000_000, later), Some(later + Duration::from_secs(1)));
    }

    #[test]
    fn no_rate_limit_means_no_wait() {
        assert_eq!(TransferPace::new(None).until(usize::MAX, Instant::now()), None);
    }
}
