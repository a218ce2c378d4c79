//! The embedded time-series store: points of all hosts in an SQLite file of their own.
//!
//! A batch of points becomes rows of one table, `head`, keyed by time and series, so that writing a point
//! twice changes nothing. Once an hour is over, the points of a series in it are sealed: they become one compressed
//! blob in the table `chunk`, some hundred bytes in the place of some thousand. Once a day is over it is rolled up, into
//! summaries of five minutes and of an hour each, which are kept longer than points. One task writes; queries are answered
//! beside it, from all of these as if they were one.
//!
//! Modules, in reading order:
//!
//! - `key`: a series' number and a time as one integer
//! - [`summary`](Summary), `numbers`, `chunk`, `span`: what a stretch of points comes to; points and summaries as
//!   few bytes, each blob with its checksum; pure
//! - `batch`: points that came in, checked and sorted into series; pure
//! - `writer`: the task that commits batches, many at once, and its queue; `change`: its transactions
//! - `upkeep`: what that task does beside, in small steps: `seal`, `rollup`, and deleting what is too old (`sweep`)
//! - `head`: the table of points as they came; `blobs`: the tables of blobs, and setting aside what is damaged
//! - `selector`: which series are meant; pure
//! - `thin`: fewer points without hiding peaks; pure
//! - `view`: a look at the store, and what summaries may be wrong by; `reader`: answering queries; `export`: text
//! - `file`: opening the file, and what happens to a damaged one
//!
//! **Invariant: what [`SeriesStore::append`] acknowledged is committed**, and outlives a power cut. On the strength of that
//! the console lets agents forget.
//!
//! **Invariant: nothing that a host sends is refused twice.** What can never be kept is counted and left out.
//!
//! **Of two values of a series at one time, the one that was written last counts**, wherever the first is by then.

mod batch;
mod blobs;
mod change;
mod chunk;
mod clock;
mod export;
mod file;
mod head;
mod key;
mod numbers;
mod reader;
mod rollup;
mod seal;
mod selector;
mod span;
mod sweep;
mod thin;
mod upkeep;
mod view;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_topics::{Millis, metric::Point};
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::sync::{mpsc, oneshot};

use self::{
    batch::Batch,
    blobs::Faults,
    view::View,
    writer::{Request, Writer},
};
pub use self::{
    export::Format,
    key::SeriesId,
    reader::Chosen,
    selector::{Selector, SelectorError},
    span::Resolution,
    view::Bucket,
};
pub use muster_promql::Summary;

/// How long whoever feeds the store lets a batch wait for others, to append them together: of a thousand hosts eight come
/// meanwhile. Somebody who looks at a chart does not see it.
pub const GATHER: Duration = Duration::from_millis(250);
/// The most batches that are gathered. One has about 60 values.
pub const GATHERED_MAX: usize = 128;

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
    /// The store could not be opened when its owner started.
    #[error("the time-series store is left out: {0}")]
    LeftOut(Arc<str>),
}

/// One series, and points of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name, such as `muster_host_cpu_busy_ratio`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Times and values, oldest first.
    pub points: Vec<(Millis, f64)>,
}

/// Many points of one series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// The series' name.
    pub name: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Times and values.
    pub samples: Vec<(Millis, f64)>,
}

/// A piece of the store that could not be read and was set aside.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Damaged {
    /// Its table: `chunk`, `summary`, `five` or `hourly`.
    pub place: String,
    /// Its key there.
    pub key: i64,
    /// When it was found.
    pub found_ms: Millis,
    /// What is wrong with it.
    pub reason: String,
}

/// What can be chosen about the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long points are kept as they came.
    pub raw: Duration,
    /// How long summaries of five minutes are kept; not shorter than points.
    pub five_minutes: Duration,
    /// How long summaries of an hour are kept; not shorter than those of five minutes.
    pub hours: Duration,
    /// How large the store may get, as far as deleting points older than a day helps: the oldest go first.
    pub size_max_bytes: u64,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for Settings {
    /// Points for two weeks, five minutes for a quarter, hours for two years: for a thousand hosts with twenty series each,
    /// every ten seconds, about 4, 5 and 15 GB.
    fn default() -> Self {
        Self { raw: DAY * 14, five_minutes: DAY * 90, hours: DAY * 730, size_max_bytes: 32 << 30 }
    }
}

impl Settings {
    /// Nothing coarse is deleted before what is finer.
    fn five_minutes(&self) -> Duration {
        self.five_minutes.max(self.raw)
    }

    fn hours(&self) -> Duration {
        self.hours.max(self.five_minutes())
    }
}

/// Times of points that are taken, as far as the clock knows.
fn accepted() -> RangeInclusive<Millis> {
    Millis::MIN..=clock::now_ms().saturating_add(AHEAD_MAX_MS)
}

/// The store; a handle that can be cloned. Once the last one is dropped what was appended is still
/// committed, and the file closed.
#[derive(Clone, Debug)]
pub struct SeriesStore {
    requests: mpsc::Sender<Request>,
    readers: SqlitePool,
    path: Arc<Path>,
    set_aside: Option<Arc<Path>>,
    /// Why it cannot be used.
    left_out: Option<Arc<str>>,
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
        Ok(Self { requests, readers: opened.readers, path: path.into(), set_aside, left_out: None })
    }

    /// What stands in for a store that cannot be opened: whatever is asked of it is answered with
    /// [`SeriesError::LeftOut`], and its file is not touched.
    #[must_use]
    pub fn left_out(path: &Path, reason: &str) -> Self {
        let (requests, _) = mpsc::channel(1);
        let readers = SqlitePoolOptions::new().connect_lazy_with(SqliteConnectOptions::new());
        Self { requests, readers, path: path.into(), set_aside: None, left_out: Some(reason.into()) }
    }

    /// Why it cannot be used, if it is left out.
    #[must_use]
    pub fn why_left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    /// The connections that answer queries.
    fn readers(&self) -> Result<&SqlitePool, SeriesError> {
        match &self.left_out {
            Some(reason) => Err(SeriesError::LeftOut(Arc::clone(reason))),
            None => Ok(&self.readers),
        }
    }

    /// Where a damaged store was moved to when this one was opened.
    #[must_use]
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Stores points; when this returns they are committed. Storing one twice changes nothing; of two values of a series
    /// at one time the last counts. Points that can never be kept (far in the future, before 2020, older than what has been
    /// deleted, with unfit names) are left out and logged. If this is cancelled, they may or may not have been stored.
    ///
    /// # Errors
    /// If they could not be committed; none of them has to be there then. It is never the points' fault, so the same
    /// points can be appended later, and must not be acknowledged before.
    pub async fn append(&self, points: &[Point]) -> Result<(), SeriesError> {
        let batch = Batch::new(points, &accepted());
        if batch.untimely + batch.unfit > 0 {
            tracing::warn!(
                untimely = batch.untimely, unfit = batch.unfit, first = ?points.first(),
                "measurements were left out. hint: untimely ones come from a host whose clock is wrong"
            );
        }
        self.commit(batch).await
    }

    /// The same for many points of each series, such as an import or what a bridge has kept: those of an hour are sealed
    /// at once. A series may be there once.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn append_columns(&self, columns: Vec<Column>) -> Result<(), SeriesError> {
        let batch = tokio::task::spawn_blocking(move || Batch::of_columns(columns, &accepted()));
        let batch = batch.await.map_err(|error| SeriesError::Sql(sqlx::Error::Io(io::Error::other(error))))?;
        if batch.untimely + batch.unfit > 0 {
            tracing::warn!(untimely = batch.untimely, unfit = batch.unfit, "measurements were left out");
        }
        self.commit(batch).await
    }

    async fn commit(&self, batch: Batch) -> Result<(), SeriesError> {
        self.readers()?;
        if batch.len() == 0 {
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
    ) -> Result<Vec<Series>, SeriesError> {
        let answer = reader::query(self.readers()?, selector, range, points_max, clock::now_ms()).await;
        self.noted(answer)
    }

    /// The series that a selector means, at most so many, sorted by name and labels.
    ///
    /// # Errors
    /// If there are more, or if the store cannot be read.
    pub async fn select(&self, selector: Selector, series_max: usize) -> Result<Vec<Chosen>, SeriesError> {
        let chosen = reader::within_deadline(reader::choose(self.readers()?, selector, series_max)).await;
        self.noted(chosen.map(|chosen| (chosen, Faults::new())))
    }

    /// Points of some series from one time to another, both included: for each of them in its turn, sorted by time.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn points(
        &self,
        series: &[SeriesId],
        (start_ms, end_ms): (Millis, Millis),
    ) -> Result<Vec<Vec<(Millis, f64)>>, SeriesError> {
        let readers = self.readers()?;
        let read = reader::within_deadline(async {
            let mut view = View::new(readers).await?;
            let mut found = Vec::with_capacity(series.len());
            for series in series {
                found.push(view.points(*series, start_ms..=end_ms).await?);
            }
            Ok((found, view.faults))
        });
        self.noted(read.await)
    }

    /// Summaries of some series whose five minutes or hours meet a range: for each of them in its turn, in the order of
    /// time. Where a resolution is kept no longer they are coarser. [`Resolution::for_step`] chooses one; for
    /// [`Resolution::Raw`] there are none, and five minutes are given. The module `view` says what they may be wrong by: over
    /// ranges of whole five minutes or hours, nothing.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn buckets(
        &self,
        series: &[SeriesId],
        (start_ms, end_ms): (Millis, Millis),
        resolution: Resolution,
    ) -> Result<Vec<Vec<Bucket>>, SeriesError> {
        let readers = self.readers()?;
        let read = reader::within_deadline(async {
            let mut view = View::new(readers).await?;
            let mut found = Vec::with_capacity(series.len());
            for series in series {
                found.push(view.buckets(*series, start_ms..=end_ms, resolution).await?);
            }
            Ok((found, view.faults))
        });
        self.noted(read.await)
    }

    /// From when on points are kept as they came: the beginning of an hour. Nothing as long as none was ever deleted.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn points_from(&self) -> Result<Option<Millis>, SeriesError> {
        reader::points_from(self.readers()?).await
    }

    /// How many series there are.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn count(&self) -> Result<u64, SeriesError> {
        let (count,): (i64,) = sqlx::query_as("SELECT count(*) FROM series").fetch_one(self.readers()?).await?;
        Ok(count.unsigned_abs())
    }

    /// Names of labels that some series has, sorted; `__name__` is one.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn label_names(&self) -> Result<Vec<String>, SeriesError> {
        reader::label_names(self.readers()?).await
    }

    /// Values that a label has, sorted; `__name__` stands for the names of series.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn label_values(&self, name: &str) -> Result<Vec<String>, SeriesError> {
        reader::label_values(self.readers()?, name).await
    }

    /// Writes out points that a selector chooses, from one time to another, both included. The text comes piece by piece,
    /// each whole lines, as fast as it is taken.
    ///
    /// # Errors
    /// If the selector is not one, if it asks for too much, or if the store cannot be read.
    pub async fn export(
        &self,
        selector: &str,
        range: (Millis, Millis),
        format: Format,
    ) -> Result<mpsc::Receiver<Result<String, SeriesError>>, SeriesError> {
        let selector = Selector::parse(selector)?;
        let requests = self.requests.clone();
        let damaged = move |faults| drop(requests.try_send(Request::Damaged(faults)));
        export::export(self.readers()?.clone(), selector, range, format, damaged).await
    }

    /// What was damaged and has been set aside, newest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn damaged(&self) -> Result<Vec<Damaged>, SeriesError> {
        let rows = sqlx::query_as("SELECT place, key, found_ms, reason FROM damaged ORDER BY id DESC");
        Ok(rows.fetch_all(self.readers()?).await?)
    }

    /// Seals, rolls up and deletes now what would be by and by. For whoever wants to measure, or to copy the file.
    pub async fn settle(&self) {
        let (reply, answer) = oneshot::channel();
        // If nobody takes the request or answers it, the writer has ended.
        if self.requests.send(Request::Settle(reply)).await.is_ok() {
            let _ = answer.await;
        }
    }

    /// Sees to it that damage is dealt with: a piece is set aside, a file at the next start.
    fn noted<T>(&self, answer: Result<(T, Faults), SeriesError>) -> Result<T, SeriesError> {
        if let Err(SeriesError::Sql(error)) = &answer
            && file::is_corrupt(error)
        {
            file::remember_damage(&self.path);
        }
        let (answer, faults) = answer?;
        if !faults.is_empty() {
            // If there is no room now, whoever reads it next finds it again.
            let _ = self.requests.try_send(Request::Damaged(faults));
        }
        Ok(answer)
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
