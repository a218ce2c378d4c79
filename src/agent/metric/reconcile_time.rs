//! How long the last rounds of the units' task took.

use std::time::Duration;

use tokio::time::Instant;

/// When all units were last reconciled, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileTime {
    /// When it ended.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
}
