//! Limits of a query: samples, series, and time.

use std::sync::Arc;

/// Limits of the cost of a query.
#[derive(Clone)]
pub struct QueryLimits {
    /// Largest number of steps of a range.
    pub steps_max: usize,
    /// Largest number of series that one selector may choose.
    pub series_max: usize,
    /// Largest number of samples that may be read.
    pub samples_max: usize,
    /// Largest number of values of any part of a query, over all series and steps.
    pub values_max: usize,
    /// Whether the caller has cancelled the query; called often.
    pub enough: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self {
            // As in Prometheus: one point a second for three hours, one a minute for a week.
            steps_max: 11_000,
            // A fleet of 10,000 hosts with a few series of a name each.
            series_max: 50_000,
            // As in Prometheus.
            samples_max: 50_000_000,
            // 80 MB; a nested query holds a few of these at a time.
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
