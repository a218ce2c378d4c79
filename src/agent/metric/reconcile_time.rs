//! How long the last rounds of the units' task took.

use std::time::Duration;

use tokio::time::Instant;

/// When all units were last looked at, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileTime {
    /// The end of it.
    pub at: Instant,
    /// From its beginning.
    pub took: Duration,
}
