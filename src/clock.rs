//! The wall clock and chance, each read in one place.

use std::time::{SystemTime, UNIX_EPOCH};

use muster_topics::Millis;

/// Now, in milliseconds since the Unix epoch; 0 for a clock that stands before it.
#[must_use]
pub fn now_ms() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX)
}

/// A random number, evenly from 0 to 1, for jitter.
#[must_use]
pub fn random() -> f64 {
    // 53 of a version 4 UUID's random bits: what the mantissa of an f64 holds.
    let bits = uuid::Uuid::new_v4().as_u128() & ((1 << 53) - 1);
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_numbers_are_within_range_and_differ() {
        let numbers: Vec<f64> = (0..100).map(|_| super::random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.5) && numbers.iter().any(|number| *number >= 0.5));
    }
}
