//! The embedded time-series store. (Being written.)

use std::path::Path;

use muster_topics::{Millis, metric::Point};

use crate::api;

/// Something went wrong with the time-series store.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The selector is not one.
    #[error("selector: {0}")]
    Selector(String),
    /// A statement failed.
    #[error("the time-series store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the time-series store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

/// The store; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct SeriesStore {}

#[expect(clippy::unused_async, reason = "signatures for parts that are written at the same time")]
impl SeriesStore {
    /// Opens the store in `path`, and makes it if there is none.
    pub async fn open(_path: &Path) -> Result<Self, SeriesError> {
        unimplemented!()
    }
    /// Stores points; when this returns they are committed. Storing one twice changes nothing.
    pub async fn append(&self, _points: &[Point]) -> Result<(), SeriesError> {
        unimplemented!()
    }
    /// Measurements that a selector such as `muster_host_cpu_busy_ratio{host="…"}` chooses, thinned to at most
    /// `points_max` each; without a range the last value of each within five minutes.
    pub async fn query(
        &self,
        _selector: &str,
        _range: Option<(Millis, Millis)>,
        _points_max: usize,
    ) -> Result<Vec<api::Series>, SeriesError> {
        unimplemented!()
    }
}
