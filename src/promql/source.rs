//! Where samples come from.

use std::ops::RangeInclusive;

use crate::{Labels, Matchers, Millis};

/// A value and when it was measured.
pub type Sample = (Millis, f64);

/// Why samples could not be had. One that holds an [`Error`](crate::Error) is taken for it.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

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
        into: &mut Vec<Sample>,
    ) -> Result<(), SourceError>;
}
