//! The times at which a query is evaluated.

/// A time in milliseconds since 1970.
pub type Millis = i64;

/// How long a value is found after it was measured, as Prometheus has it.
pub const LOOKBACK_MS: Millis = 300_000;

/// The step of a subquery that names none: Prometheus's default interval of evaluation.
pub const SUBQUERY_STEP_MS: Millis = 60_000;

/// The steps of a range: from `start_ms` by `step_ms` to at most `end_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRange {
    /// The first step.
    pub start_ms: Millis,
    /// Where it ends.
    pub end_ms: Millis,
    /// From one step to the next.
    pub step_ms: Millis,
}
