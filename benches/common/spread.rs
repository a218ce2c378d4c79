//! How values lie.

/// Values, the least first.
pub(crate) struct Spread<T>(Vec<T>);

impl<T: Copy + PartialOrd> Spread<T> {
    /// Of one value or more, each of which is a number.
    pub(crate) fn of(values: impl IntoIterator<Item = T>) -> Self {
        let mut values: Vec<T> = values.into_iter().collect();
        values.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        Self(values)
    }

    pub(crate) fn least(&self) -> T {
        self.0[0]
    }

    /// The middle one; of two, the greater.
    pub(crate) fn median(&self) -> T {
        self.0[self.0.len() / 2]
    }

    /// What so many of a hundred do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> T {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    pub(crate) fn most(&self) -> T {
        self.0[self.0.len() - 1]
    }
}
