//! Randomness, drawn here, so that the rules can take it as a parameter.

use ring::rand::{SecureRandom, SystemRandom};

/// The operating system provides no randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system provides no randomness")]
pub struct NoRandomness;

/// Random bytes, for secrets.
///
/// # Errors
/// If the operating system provides none.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map(|()| bytes).map_err(|_| NoRandomness)
}

/// A random number in `0..1`, for jitter; 0.5 if the system provides no randomness, which is acceptable for jitter.
#[must_use]
pub fn random() -> f64 {
    #[cfg(feature = "pretended")]
    if let Some(random) = pretended::random() {
        return random;
    }
    bytes().map_or(0.5, |bytes| f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0))
}

/// A replacement for randomness in simulations: the same seed gives the same numbers.
#[cfg(feature = "pretended")]
pub mod pretended {
    use std::cell::Cell;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Makes random numbers on this thread follow from `seed`; `None` restores real randomness.
    pub fn set(seed: Option<u64>) {
        STATE.set(seed);
    }

    /// The next 64 bits (SplitMix64), if this thread has a seed.
    pub fn bits() -> Option<u64> {
        let state = STATE.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(Some(state));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }

    pub(super) fn random() -> Option<f64> {
        bits().map(|bits| f64::from((bits >> 32) as u32) / (f64::from(u32::MAX) + 1.0))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_numbers_are_in_unit_interval_and_differ() {
        let numbers: Vec<_> = (0..100).map(|_| super::random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.5) && numbers.iter().any(|number| *number > 0.5));
    }
}
