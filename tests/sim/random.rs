//! Chance, the same for the same seed. The product draws from the same numbers ([`chance::random`]).

use muster_base::chance::pretended;

/// A number below `bound`.
pub(super) fn below(bound: u64) -> u64 {
    pretended::bits().unwrap_or_default() % bound.max(1)
}

/// A number from `low` to `high`.
pub(super) fn between(low: i64, high: i64) -> i64 {
    low + i64::try_from(below(high.abs_diff(low) + 1)).unwrap_or_default()
}

/// True in so many of a thousand cases.
pub(super) fn permille(share: u64) -> bool {
    below(1000) < share
}

/// One of these.
pub(super) fn pick<T: Copy>(from: &[T]) -> T {
    from[usize::try_from(below(from.len() as u64)).unwrap_or_default()]
}

/// A UUID.
pub(super) fn uuid() -> uuid::Uuid {
    uuid::Uuid::from_u64_pair(pretended::bits().unwrap_or_default(), pretended::bits().unwrap_or_default())
}
