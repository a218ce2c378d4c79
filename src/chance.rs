//! Randomness, drawn here, so that the rules can take it as a parameter.

use ring::rand::{SecureRandom, SystemRandom};

/// The system has no randomness to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no randomness")]
pub struct NoRandomness;

/// Random bytes, for secrets.
///
/// # Errors
/// If the system has none to give.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map(|()| bytes).map_err(|_| NoRandomness)
}

/// A number in `0..1`, for jitter; the middle if the system has no randomness to give, which jitter survives.
#[must_use]
pub fn random() -> f64 {
    bytes().map_or(0.5, |bytes| f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0))
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
