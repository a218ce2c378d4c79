//! Randomness, for jitter: drawn here, so that the rules can take it as a parameter.

use ring::rand::{SecureRandom, SystemRandom};

/// A number in `0..1`; the middle if the system has no randomness to give, which jitter survives.
pub(super) fn random() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_lie_between_nothing_and_one_and_differ() {
        let numbers: Vec<_> = (0..100).map(|_| super::random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.5) && numbers.iter().any(|number| *number > 0.5));
    }
}
