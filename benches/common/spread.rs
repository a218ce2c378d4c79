//! How values lie.

/// Values in ascending order.
pub(crate) struct Spread<T>(Vec<T>);

impl<T: Copy + PartialOrd> Spread<T> {
    /// From at least one value, none of them NaN.
    pub(crate) fn of(values: impl IntoIterator<Item = T>) -> Self {
        let mut values: Vec<T> = values.into_iter().collect();
        values.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        Self(values)
    }

    pub(crate) fn least(&self) -> T {
        self.0[0]
    }

    /// The median; of two, the larger.
    pub(crate) fn median(&self) -> T {
        self.0[self.0.len() / 2]
    }

    /// The value that this percentage of the values does not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> T {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    pub(crate) fn most(&self) -> T {
        self.0[self.0.len() - 1]
    }
}

impl Spread<f64> {
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }
}
