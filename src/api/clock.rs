//! The console's clock.

use muster_topics::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /api/v1/clock`: the console's clock, and the time that has certainly come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleClock {
    /// The clock.
    pub clock_ms: Millis,
    /// By how much it is ahead of the time that has certainly come, by which something ends, expires or is removed for good; 0 if
    /// the clock is confirmed.
    pub ahead_ms: Millis,
}

/// `POST /api/v1/clock`: confirms that the console's clock is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmClock {
    /// What the clock showed when somebody looked: if it was set since, nothing is confirmed.
    pub clock_ms: Millis,
}
