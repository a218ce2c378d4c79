//! The summary of a stretch of points: count, least, greatest, sum, first, last and increase. Pure. The time-series store
//! keeps these, and queries are answered from them.
//!
//! Adjacent stretches can be joined into one, wherever they were cut
//! (but for the rounding of sums).

/// The summary of a series' points in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StretchSummary {
    /// Number of points.
    pub count: u64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Sum of all values.
    pub sum: f64,
    /// The value of the earliest point.
    pub first: f64,
    /// The value of the latest point.
    pub last: f64,
    /// The sum of a counter's values before each reset. Stored instead of the increase, because it is 0 for most
    /// counters and causes no rounding errors.
    pub resets: f64,
}

impl StretchSummary {
    /// The summary of one point.
    #[must_use]
    pub fn of(value: f64) -> Self {
        Self { count: 1, min: value, max: value, sum: value, first: value, last: value, resets: 0.0 }
    }

    /// The summary of values in order of time; `None` if there are none.
    pub fn over(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        values.into_iter().map(Self::of).reduce(Self::join)
    }

    /// The summary of this stretch and a later one.
    #[must_use]
    pub fn join(self, later: Self) -> Self {
        let reset = if later.first < self.last { self.last } else { 0.0 };
        Self {
            count: self.count.saturating_add(later.count),
            min: self.min.min(later.min),
            max: self.max.max(later.max),
            sum: self.sum + later.sum,
            first: self.first,
            last: later.last,
            resets: self.resets + reset + later.resets,
        }
    }

    /// The mean value.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub fn average(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// The increase of a counter from the first point to the last; when it fell, it was reset to 0.
    #[must_use]
    pub fn increase(&self) -> f64 {
        self.last - self.first + self.resets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counter_reset_counts_as_increase() {
        let summary = StretchSummary::over([5.0, 8.0, 2.0, 4.0, 1.0]).unwrap();
        assert_eq!(summary.increase(), 3.0 + 2.0 + 2.0 + 1.0);
        assert_eq!((summary.count, summary.min, summary.max, summary.sum), (5, 1.0, 8.0, 20.0));
        assert_eq!((summary.first, summary.last, summary.average()), (5.0, 1.0, 4.0));
        assert_eq!(StretchSummary::over([]), None);
    }

    proptest! {
        #[test]
        fn joined_summaries_equal_the_whole(
            values in proptest::collection::vec(-1_000_i32..1_000, 2..50), cut in 1..49_usize,
        ) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let (one, other) = values.split_at(cut.min(values.len() - 1));
            let of = |values: &[f64]| StretchSummary::over(values.iter().copied()).unwrap();
            prop_assert_eq!(of(one).join(of(other)), of(&values));
        }
    }
}
