//! Time-series stores elsewhere.

use muster_topics::{Millis, name::Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An item of `GET /api/v1/metric-stores`: an external time-series store, and how it is fed. Counters start with the
/// console.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricStore {
    /// Its name in the configuration.
    pub name: Name,
    /// Its kind.
    pub kind: String,
    /// Its address.
    pub url: String,
    /// Whether the last attempt failed.
    pub failing: bool,
    /// Number of lines that wait to be sent.
    pub waiting_lines: u64,
    /// Their size on disk.
    pub waiting_bytes: u64,
    /// Largest size of the queue.
    pub queue_max_bytes: u64,
    /// Number of lines that it has accepted.
    pub sent_lines: u64,
    /// Number of requests that failed temporarily and were repeated.
    pub retries: u64,
    /// Number of lines that it refused, which were set aside.
    pub refused_lines: u64,
    /// Number of lines that were dropped because the queue was full, or that were lost with the disk.
    pub dropped_lines: u64,
    /// The lines that were set aside.
    pub quarantine: MetricQuarantine,
    /// When it last accepted lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_ms: Option<Millis>,
    /// The last error, even if it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<MetricStoreError>,
}

/// Lines that a store refused, the part that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricQuarantine {
    /// The folder on the console's machine.
    pub folder: String,
    /// Number of files.
    pub files: u64,
    /// Number of lines.
    pub lines: u64,
    /// Their size.
    pub bytes: u64,
}

/// An error of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricStoreError {
    /// When it happened.
    pub at_ms: Millis,
    /// The message.
    pub message: String,
}
