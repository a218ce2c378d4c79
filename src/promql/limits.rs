//! Limits of a query: samples, series, and time.

use std::sync::Arc;

/// What a query may cost.
#[derive(Clone)]
pub struct QueryLimits {
    /// The most steps of a range.
    pub steps_max: usize,
    /// The most series that one selector may choose.
    pub series_max: usize,
    /// The most samples that may be read.
    pub samples_max: usize,
    /// The most values that any part of a query may have, all series and steps together.
    pub values_max: usize,
    /// Whether the caller has had enough; asked often.
    pub enough: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self {
            // As Prometheus has it: a point a second for three hours, a point a minute for a week.
            steps_max: 11_000,
            // A fleet of 10,000 hosts, each with a few of one name.
            series_max: 50_000,
            // As Prometheus has it.
            samples_max: 50_000_000,
            // 80 MB, of which a deep query holds a few at a time.
            values_max: 10_000_000,
            enough: Arc::new(|| false),
        }
    }
}

impl std::fmt::Debug for QueryLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { steps_max, series_max, samples_max, values_max, enough: _ } = self;
        f.debug_struct("Limits")
            .field("steps_max", steps_max)
            .field("series_max", series_max)
            .field("samples_max", samples_max)
            .field("values_max", values_max)
            .finish_non_exhaustive()
    }
}
