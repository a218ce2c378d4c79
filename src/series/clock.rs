//! The wall clock, read in one place.

use std::time::{SystemTime, UNIX_EPOCH};

use muster_topics::Millis;

/// The current time in milliseconds since the Unix epoch; 0 if the clock is set before it.
pub(crate) fn now_ms() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX)
}
