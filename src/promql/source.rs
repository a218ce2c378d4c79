//! The trait of a source of samples.

use std::ops::RangeInclusive;

use super::{labels::Labels, matcher_list::Matchers, summary::StretchSummary};
use crate::query_range::Millis;

/// A value and its time.
pub type TimedValue = (Millis, f64);

/// Why samples could not be read. If it contains an [`Error`](crate::Error), that one is returned.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Longest [`SampleStretch`]: one hour.
pub const STRETCH_MAX_MS: Millis = 3_600_000;

/// What samples are needed for, so that a source can choose the resolution (Prometheus's `SelectHints`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// The distance between two steps; `None` for a single time.
    pub step_ms: Option<Millis>,
    /// The length of each step's window; `None` if the newest value is needed.
    pub window_ms: Option<Millis>,
    /// The function that receives the samples.
    pub function: &'static str,
    /// Whether the function can also use summaries.
    pub summaries: bool,
}

/// The summary of a series' samples in a stretch of time: `start_ms <= time < start_ms + width_ms`. `start_ms` is a
/// multiple of `width_ms`, which is at most [`STRETCH_MAX_MS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleStretch {
    /// Its start.
    pub start_ms: Millis,
    /// Its length.
    pub width_ms: Millis,
    /// The summary of at least one sample.
    pub summary: StretchSummary,
}

impl SampleStretch {
    /// Its end.
    #[must_use]
    pub fn end_ms(&self) -> Millis {
        self.start_ms.saturating_add(self.width_ms)
    }
}

/// A source of series. It may block: a query runs on a thread that may wait.
pub trait Source {
    /// The series that match and may have samples in this time range, both ends included: their labels, with the name,
    /// and an id for [`Self::read`]. No two have the same labels. The source may stop after `series_max`.
    ///
    /// # Errors
    /// If this cannot be determined.
    fn select(
        &self,
        matchers: &Matchers,
        times: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError>;

    /// Announces that the query will read these series, in this order, each once in the same ranges, so that a source can
    /// read several at a time. It may still end early.
    fn announce(&self, _series: &[u64]) {}

    /// Appends the samples of a series in this time range, both ends included, sorted by time, with distinct times. If
    /// there are more than `samples_max`, it may stop after `samples_max + 1`.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        samples_max: usize,
        into: &mut Vec<TimedValue>,
    ) -> Result<(), SourceError>;

    /// The time from which samples are to be read; earlier times are read by [`Self::stretches`]. Called once for each
    /// selector. It must be the end of a stretch. A source without summaries uses the default.
    ///
    /// # Errors
    /// If this cannot be determined, or if samples are needed that no longer exist.
    fn samples_from(&self, _hints: &Hints, _times: &RangeInclusive<Millis>) -> Result<Millis, SourceError> {
        Ok(Millis::MIN)
    }

    /// Appends the stretches of a series that overlap this time range, sorted by time, without duplicates. If there are
    /// more than `stretches_max`, it may stop after `stretches_max + 1`.
    ///
    /// # Errors
    /// If they cannot be read.
    fn stretches(
        &self,
        _series: u64,
        _times: RangeInclusive<Millis>,
        _hints: &Hints,
        _stretches_max: usize,
        _into: &mut Vec<SampleStretch>,
    ) -> Result<(), SourceError> {
        Ok(())
    }
}
