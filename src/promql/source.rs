//! The trait of a source of samples.

use std::ops::RangeInclusive;

use super::{labels::Labels, matcher_list::Matchers, summary::StretchSummary};
use crate::query_range::Millis;

/// A value and when it was measured.
pub type TimedValue = (Millis, f64);

/// Why samples could not be had. One that holds an [`Error`](crate::Error) is taken for it.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// How long a [`SampleStretch`] may be at most: an hour.
pub const STRETCH_MAX_MS: Millis = 3_600_000;

/// What samples are wanted for, by which a source chooses how finely it answers (Prometheus's `SelectHints`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// From one step to the next; nothing if one time alone is asked for.
    pub step_ms: Option<Millis>,
    /// How long the window of each step is; nothing if the newest value is wanted.
    pub window_ms: Option<Millis>,
    /// The function that the samples go to.
    pub function: &'static str,
    /// Whether what it gives is known of summaries, too.
    pub summaries: bool,
}

/// What the samples of a series come to in a stretch of time: `start_ms <= time < start_ms + width_ms`. `start_ms` is a
/// multiple of `width_ms`, which is at most [`STRETCH_MAX_MS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleStretch {
    /// When it begins.
    pub start_ms: Millis,
    /// How long it is.
    pub width_ms: Millis,
    /// What they come to; there is at least one.
    pub summary: StretchSummary,
}

impl SampleStretch {
    /// When it is over.
    #[must_use]
    pub fn end_ms(&self) -> Millis {
        self.start_ms.saturating_add(self.width_ms)
    }
}

/// Something that has series. It may block: a query runs on a thread that may wait.
pub trait Source {
    /// The series that satisfy all matchers and may have samples in these times, both ends included: their labels, with
    /// the name among them, and a number by which [`Self::read`] finds each. No two have the same labels. More than
    /// `series_max` need not be given.
    ///
    /// # Errors
    /// If it cannot be told.
    fn select(
        &self,
        matchers: &Matchers,
        times: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError>;

    /// Appends the samples of a series in these times, both ends included, oldest first, no two of one time. If there
    /// are more than `samples_max`, it may stop behind that many and one.
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

    /// From when on samples are to be read; what is before that is asked of [`Self::stretches`]. Asked once for each
    /// selector. It is the end of a stretch. A source that has samples alone has nothing to say.
    ///
    /// # Errors
    /// If it cannot be told, or if samples are needed where there are none any more.
    fn samples_from(&self, _hints: &Hints, _times: &RangeInclusive<Millis>) -> Result<Millis, SourceError> {
        Ok(Millis::MIN)
    }

    /// Appends the stretches of a series that meet these times, oldest first, none of them twice. If there are more than
    /// `stretches_max`, it may stop behind that many and one.
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
