//! Settings: how long measurements are kept, and how much memory the store uses.

use std::time::Duration;

/// What can be chosen about the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// How long points are kept as they came.
    pub raw: Duration,
    /// How long summaries of five minutes are kept; not shorter than points.
    pub five_minutes: Duration,
    /// How long summaries of an hour are kept; not shorter than those of five minutes.
    pub hours: Duration,
    /// How large the store may get, as far as deleting points older than a day helps: the oldest go first.
    pub size_max_bytes: u64,
}

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for StoreSettings {
    /// Points for two weeks, five minutes for a quarter, hours for two years: for a thousand hosts with twenty series each,
    /// every ten seconds, about 4, 5 and 15 GB.
    fn default() -> Self {
        Self { raw: DAY * 14, five_minutes: DAY * 90, hours: DAY * 730, size_max_bytes: 32 << 30 }
    }
}

impl StoreSettings {
    /// Nothing coarse is deleted before what is finer.
    pub(super) fn five_minutes(&self) -> Duration {
        self.five_minutes.max(self.raw)
    }

    pub(super) fn hours(&self) -> Duration {
        self.hours.max(self.five_minutes())
    }
}
