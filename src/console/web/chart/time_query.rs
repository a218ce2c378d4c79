//! The query parameters of a chart's time range.

use muster_base::clock::now_ms;
use serde::Deserialize;

use super::range::{ChartSpan, TimeRange};

/// The requested time.
#[derive(Debug, Deserialize)]
pub(in super::super::super) struct TimeQuery {
    #[serde(default)]
    pub(super) range: TimeRange,
    /// A part of it, in seconds since the Unix epoch.
    pub(super) from: Option<f64>,
    pub(super) to: Option<f64>,
}

impl TimeQuery {
    pub(super) fn span(&self) -> ChartSpan {
        ChartSpan::of(self.range, self.from.zip(self.to), now_ms())
    }
}
