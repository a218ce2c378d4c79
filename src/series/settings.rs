//! Settings: how long measurements are kept, and how much memory the store uses.

use std::time::Duration;

/// Settings of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// How long raw points are kept.
    pub raw: Duration,
    /// How long five-minute summaries are kept; at least as long as points.
    pub five_minutes: Duration,
    /// How long hourly summaries are kept; at least as long as those of five minutes.
    pub hours: Duration,
    /// Largest size of the store, as far as it can be reached by deleting points that are older than a day, oldest
    /// first.
    pub size_max_bytes: u64,
    /// How many series one value of a label may have; without it, there is no such limit.
    pub share: Option<SeriesShare>,
}

/// The most series that one value of a label may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesShare {
    /// The label.
    pub label: String,
    /// How many.
    pub series_max: usize,
}

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for StoreSettings {
    /// Points for two weeks, five-minute summaries for a quarter, hourly ones for two years: for a thousand hosts with
    /// twenty series each, measured every ten seconds, about 1, 2.5 and 3 GB. (Of the bench's series, a day takes 3.9 kB of
    /// points, 1.4 kB of five minutes and 0.2 kB of hours.)
    fn default() -> Self {
        Self { raw: DAY * 14, five_minutes: DAY * 90, hours: DAY * 730, size_max_bytes: 32 << 30, share: None }
    }
}

impl StoreSettings {
    /// The effective retention: coarse data is never deleted before finer data.
    pub(super) fn five_minutes(&self) -> Duration {
        self.five_minutes.max(self.raw)
    }

    pub(super) fn hours(&self) -> Duration {
        self.hours.max(self.five_minutes())
    }
}
