//! The embedded time-series store, in its first form: points of all hosts in an SQLite file of their own.
//!
//! A batch of points becomes rows of one table, keyed by series and time, so that writing a point
//! twice changes nothing and an hour of one series is one range of keys. One task writes; queries are
//! answered beside it.
//!
//! Modules, in reading order:
//!
//! - `key`: a series' number and a time as one integer
//! - `batch`: points that came in, checked and sorted into series; pure
//! - `writer`: the task that commits batches, many at once, and its queue
//! - `retention`: deleting what is too old
//! - `selector`: which series are meant; pure
//! - `thin`: fewer points without hiding peaks; pure
//! - `reader`: answering queries
//! - `lookup`: which series there are, and points of one: what the query language asks for
//! - `file`: opening the file, and what happens to a damaged one
//!
//! **Invariant: what [`SeriesStore::append`] acknowledged is committed**, and outlives a power cut. On the strength of that
//! the console lets agents forget.
//!
//! **Invariant: nothing that a host sends is refused twice.** What can never be kept is counted and left out.
//!
//! # What comes later, and where
//!
//! The table `head` takes 20 bytes a point. Sealed hours (a second table under the same kind of key,
//! one compressed blob and its summary each, and rollups of them) will be written by the `writer`'s
//! task in the place of `retention`'s steps, from rows of `head` that it then deletes; a late point
//! stays in `head` until its hour is sealed again. `reader` alone reads points, through one function that gives a
//! series' points in the order of time: it will read sealed hours first and `head` over them, and take
//! rollups where `thin` would fold more than a bucket's worth. Nothing outside this folder knows of either.

mod batch;
mod file;
mod key;
mod lookup;
mod reader;
mod retention;
mod selector;
mod thin;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_topics::{Millis, metric::Point};
use sqlx::SqlitePool;
use tokio::sync::{mpsc, oneshot};

pub use self::lookup::Found;
pub use self::selector::{SelectorError, quoted};
use self::{
    batch::Batch,
    writer::{Request, Writer},
};
use crate::{api, clock};

/// How far ahead a host's clock may be before its points are left out. Retention could never delete them otherwise. A
/// console whose own clock is behind by more has no valid certificates, so nothing reaches it.
const AHEAD_MAX_MS: Millis = 24 * 3600 * 1000;

/// Something went wrong with the time-series store.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The selector is not one.
    #[error("selector: {0}")]
    Selector(#[from] SelectorError),
    /// The range ends before it starts.
    #[error("the range ends at {end_ms}, before it starts at {start_ms}")]
    Range {
        /// Start.
        start_ms: Millis,
        /// End.
        end_ms: Millis,
    },
    /// The selector chooses too much.
    #[error("the selector chooses more than {series_max} series. hint: name a host, as in {{hostname=\"…\"}}")]
    TooMany {
        /// The limit.
        series_max: usize,
    },
    /// The answer took too long.
    #[error("no answer within {0:?}. hint: ask for a shorter range or fewer series")]
    Deadline(Duration),
    /// A statement failed.
    #[error("the time-series store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the time-series store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// SQLite found the file itself to be wrong.
    #[error("the time-series store is damaged: {0}")]
    Damaged(String),
    /// A damaged store could not be moved out of the way.
    #[error("the damaged time-series store {path} cannot be set aside: {source}")]
    SetAside {
        /// The store's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The store has been stopped.
    #[error("the time-series store has been stopped")]
    Stopped,
}

/// What can be chosen about the store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long points are kept.
    pub retention: Duration,
}

impl Default for Settings {
    /// Thirty days, which for one host are about a hundred megabytes.
    fn default() -> Self {
        Self { retention: Duration::from_secs(30 * 24 * 3600) }
    }
}

/// The store; a handle that can be cloned. Once the last one is dropped what was appended is still
/// committed, and the file closed.
#[derive(Clone, Debug)]
pub struct SeriesStore {
    requests: mpsc::Sender<Request>,
    readers: SqlitePool,
    path: Arc<Path>,
    set_aside: Option<Arc<Path>>,
}

impl SeriesStore {
    /// Opens the store in `path`, and makes it if there is none. A damaged one is set aside first.
    ///
    /// # Errors
    /// If it cannot be opened or brought up to date.
    pub async fn open(path: &Path) -> Result<Self, SeriesError> {
        Self::open_with(path, &Settings::default()).await
    }

    /// Opens the store with other settings.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(path: &Path, settings: &Settings) -> Result<Self, SeriesError> {
        let opened = file::open(path, clock::now_ms()).await?;
        let writer = Writer::new(path.to_owned(), opened.writer, settings).await?;
        let (requests, queue) = mpsc::channel(writer::QUEUE_MAX);
        tokio::spawn(writer.run(queue));
        let set_aside = opened.set_aside.map(Arc::from);
        Ok(Self { requests, readers: opened.readers, path: path.into(), set_aside })
    }

    /// Where a damaged store was moved to when this one was opened.
    #[must_use]
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Stores points; when this returns they are committed. Storing one twice changes nothing: of two values of a series
    /// at one time the first stays. Points that can never be kept (far in the future, before 2020, with unfit names) are
    /// left out and logged. If this is cancelled, they may or may not have been stored.
    ///
    /// # Errors
    /// If they could not be committed; none of them has to be there then. It is never the points' fault, so the same
    /// points can be appended later, and must not be acknowledged before.
    pub async fn append(&self, points: &[Point]) -> Result<(), SeriesError> {
        let batch = Batch::new(points, &(Millis::MIN..=clock::now_ms().saturating_add(AHEAD_MAX_MS)));
        if batch.untimely + batch.unfit > 0 {
            tracing::warn!(
                untimely = batch.untimely, unfit = batch.unfit, first = ?points.first(),
                "measurements were left out. hint: untimely ones come from a host whose clock is wrong"
            );
        }
        if batch.samples.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Append(batch, reply)).await.map_err(|_| SeriesError::Stopped)?;
        answer.await.map_err(|_| SeriesError::Stopped)?.map_err(SeriesError::Sql)
    }

    /// Measurements that a selector such as `muster_host_cpu_busy_ratio{host="…"}` chooses, thinned to at most
    /// `points_max` each; without a range the last value of each within five minutes.
    ///
    /// # Errors
    /// If the selector is not one, if it asks for too much, or if the store cannot be read.
    pub async fn query(
        &self,
        selector: &str,
        range: Option<(Millis, Millis)>,
        points_max: usize,
    ) -> Result<Vec<api::Series>, SeriesError> {
        let answer = reader::query(&self.readers, selector, range, points_max, clock::now_ms()).await;
        if let Err(SeriesError::Sql(error)) = &answer
            && file::is_corrupt(error)
        {
            file::remember_damage(&self.path);
        }
        answer
    }

    /// Commits what waits and closes the file; later appends are answered with [`SeriesError::Stopped`].
    pub async fn stop(&self) {
        self.readers.close().await;
        let (reply, answer) = oneshot::channel();
        // If nobody takes the request or answers it, the writer has ended before.
        if self.requests.send(Request::Stop(reply)).await.is_ok() {
            let _ = answer.await;
        }
    }
}
