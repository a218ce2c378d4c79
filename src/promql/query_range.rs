//! The times at which a query is evaluated.

/// A time in milliseconds since 1970.
pub type Millis = i64;

/// How long a value counts after it was measured, as in Prometheus.
pub const LOOKBACK_MS: Millis = 300_000;

/// Default step of a subquery: Prometheus's default evaluation interval.
pub const SUBQUERY_STEP_MS: Millis = 60_000;

/// The steps of a range: from `start_ms` in steps of `step_ms` up to `end_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRange {
    /// The first step.
    pub start_ms: Millis,
    /// The end.
    pub end_ms: Millis,
    /// The distance between two steps.
    pub step_ms: Millis,
}
