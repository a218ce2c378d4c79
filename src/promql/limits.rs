//! Limits of a query: samples, series, memory, and time.

use std::sync::Arc;

/// How many times the values of one part a query may hold: an operator holds its left side while its right side, which may be
/// one too, is evaluated.
pub(crate) const PARTS_MAX: usize = 4;

/// Limits of the cost of a query.
#[derive(Clone)]
pub struct QueryLimits {
    /// Largest number of steps of a range.
    pub steps_max: usize,
    /// Largest number of series that one selector may choose.
    pub series_max: usize,
    /// Largest number of samples that may be read.
    pub samples_max: usize,
    /// Largest number of values of any part of a query, over all series and steps. All parts that a query holds at a time have
    /// at most [`PARTS_MAX`] times as many.
    pub values_max: usize,
    /// Longest value of a label that a query makes.
    pub label_max_bytes: usize,
    /// Largest size of the labels of any part of a query.
    pub labels_max_bytes: usize,
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
            // 80 MB.
            values_max: 10_000_000,
            // As long as the longest query.
            label_max_bytes: 16 * 1024,
            // Twenty labels for each of the most series.
            labels_max_bytes: 128 * 1024 * 1024,
            enough: Arc::new(|| false),
        }
    }
}

impl std::fmt::Debug for QueryLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { steps_max, series_max, samples_max, values_max, label_max_bytes, labels_max_bytes, enough: _ } =
            self;
        f.debug_struct("Limits")
            .field("steps_max", steps_max)
            .field("series_max", series_max)
            .field("samples_max", samples_max)
            .field("values_max", values_max)
            .field("label_max_bytes", label_max_bytes)
            .field("labels_max_bytes", labels_max_bytes)
            .finish_non_exhaustive()
    }
}
