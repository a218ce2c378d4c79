//! Results of queries: points of a series, and columns of summaries.

use std::collections::BTreeMap;

use muster_topics::Millis;

/// A series and some of its points.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesPoints {
    /// Its name, such as `muster_host_cpu_busy_ratio`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Times and values, oldest first.
    pub points: Vec<(Millis, f64)>,
}

/// Many points of one series, to be stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeriesColumn {
    /// The series' name.
    pub name: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Times and values.
    pub samples: Vec<(Millis, f64)>,
}

/// A damaged piece of the store that was moved away.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct DamagedPiece {
    /// Its table: `chunk`, `day`, `summary`, `five` or `hourly`.
    pub place: String,
    /// Its key there.
    pub key: i64,
    /// When it was found.
    pub found_ms: Millis,
    /// What is wrong with it.
    pub reason: String,
}
