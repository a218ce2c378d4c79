//! Time-series stores elsewhere.

use muster_topics::{Millis, name::Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An item of `GET /api/v1/metric-stores`: a time-series store elsewhere, and how it is fed. Counts are since the console started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricStore {
    /// What it is called here.
    pub name: Name,
    /// What it is.
    pub kind: String,
    /// Where it is reached.
    pub url: String,
    /// Whether the last attempt failed.
    pub failing: bool,
    /// Lines that wait for it.
    pub waiting_lines: u64,
    /// What they take on disk.
    pub waiting_bytes: u64,
    /// How much may wait.
    pub queue_max_bytes: u64,
    /// Lines that it took.
    pub sent_lines: u64,
    /// Requests that failed in a way that may pass, and were to be sent again.
    pub retries: u64,
    /// Lines that it refused, and that were set aside.
    pub refused_lines: u64,
    /// Lines that made place for newer ones because the queue was full, or that its disk has lost.
    pub dropped_lines: u64,
    /// What is set aside.
    pub quarantine: MetricQuarantine,
    /// When it last took something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_ms: Option<Millis>,
    /// What went wrong last, whether it has passed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<MetricStoreError>,
}

/// What a store refused, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricQuarantine {
    /// Where, on the console's machine.
    pub folder: String,
    /// Files.
    pub files: u64,
    /// The lines in them.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Something that went wrong with a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricStoreError {
    /// When.
    pub at_ms: Millis,
    /// What.
    pub message: String,
}
