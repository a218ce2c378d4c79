//! The embedded time-series store: points of all hosts in an SQLite file of their own.
//!
//! A batch of points becomes rows of one table, `head`, keyed by time and series, so that writing a point
//! twice changes nothing. Once an hour is over, its points are sealed: those of each series become one compressed
//! blob in the table `chunk`, some hundred bytes instead of some thousand. Once a day is over it is rolled up, into
//! summaries of five minutes and of an hour each, which are kept longer than points, and the chunks of a series become one
//! blob in the table `day`, which is smaller again. One task writes; queries run beside it, over all of these as if they were one.
//!
//! Modules, in reading order:
//!
//! - `key`: a series' number and a time as one integer
//! - [`summary`](StretchSummary), `numbers`, `rice`, `chunk`, `day`, `rollup_blob`: summaries of points; compact encodings of points
//!   and summaries, each blob with its checksum; pure
//! - `batch`: incoming points, validated and sorted into series; pure
//! - `writer`: the task that commits batches, many at once, and its queue; `transaction`: its transactions
//! - `maintenance`: maintenance by that task, in small steps: `seal`, `rollup`, and deleting old data (`retention`)
//! - `head`: the table of new points; `blobs`: the tables of blobs, and damaged ones; `pieces`: long blobs as rows that fill pages
//! - `selector`: selects series; pure
//! - `downsample`: reduces points without hiding peaks; pure
//! - `sealed`: reads days and chunks of many series; `view`: a consistent view of the store, and the error bounds of summaries;
//!   `reader`: answers queries; `read_ahead`: reads series one after another; `export`: text
//! - `file`: opens the file, and sets a damaged one aside
//!
//! **Invariant: what [`SeriesStore::append`] acknowledged is committed**, and survives a power cut. Because of that
//! the console lets agents delete it.
//!
//! **Invariant: nothing that a host sends is refused repeatedly.** A point that can never be stored is counted and left out.
//!
//! **Of two values of a series at one time, the later write wins**, wherever the first is by then.

mod batch;
mod blobs;
mod chunk;
mod clock;
mod day;
mod downsample;
mod error;
mod export;
mod file;
mod head;
mod key;
mod maintenance;
mod numbers;
mod pieces;
mod points;
mod read_ahead;
mod reader;
mod retention;
mod rice;
mod rollup;
mod rollup_blob;
mod seal;
mod sealed;
mod selector;
mod settings;
mod share;
mod transaction;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use settings::{SeriesShare, StoreSettings};
pub use share::ShareNotice;

pub use points::{DamagedPiece, SeriesColumn, SeriesPoints};

pub use error::SeriesError;

use std::{
    io,
    ops::RangeInclusive,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use muster_sqlite::schema;
use muster_topics::{Millis, diagnostic::Diagnostic, metric::Point};
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::sync::{mpsc, oneshot};

use self::{
    batch::WriteBatch,
    blobs::UnreadableBlobs,
    share::ShareNotices,
    view::StoreView,
    writer::{WriterRequest, WriterTask},
};
pub use self::{
    export::LineFormat,
    key::SeriesId,
    read_ahead::ReadAhead,
    reader::ChosenSeries,
    rollup_blob::Resolution,
    selector::{SelectorError, SeriesSelector},
    view::ViewBucket,
};
pub use muster_promql::StretchSummary;

/// How long a writer may hold a batch to append it together with others: from a thousand hosts, eight arrive meanwhile.
/// The delay is not visible in a chart.
pub const GATHER: Duration = Duration::from_millis(250);
/// Largest number of batches that are gathered. One has about 60 values.
pub const GATHERED_MAX: usize = 128;

/// How far a host's clock may be ahead before its points are dropped, because retention could never delete them. A
/// console whose own clock is behind by more has no valid certificates, so it receives nothing.
const AHEAD_MAX_MS: Millis = 24 * 3600 * 1000;

/// The range of times in which points are accepted.
fn accepted() -> RangeInclusive<Millis> {
    Millis::MIN..=clock::now_ms().saturating_add(AHEAD_MAX_MS)
}

/// A handle of the store, which can be cloned. When the last one is dropped, pending points are still committed, and
/// the file is closed.
#[derive(Clone, Debug)]
pub struct SeriesStore {
    requests: mpsc::Sender<WriterRequest>,
    readers: SqlitePool,
    shares: ShareNotices,
    path: Arc<Path>,
    set_aside: Option<Arc<Path>>,
    /// The latest time that is taken for the present one.
    time_max_ms: Arc<AtomicI64>,
    /// Why it cannot be used.
    left_out: Option<Arc<Diagnostic>>,
}

impl SeriesStore {
    /// Opens the store in `path`; creates it if there is none. A damaged one is renamed first.
    ///
    /// # Errors
    /// If it cannot be opened or migrated.
    pub async fn open(path: &Path) -> Result<Self, SeriesError> {
        Self::open_with(path, &StoreSettings::default()).await
    }

    /// Opens the store with given settings.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(path: &Path, settings: &StoreSettings) -> Result<Self, SeriesError> {
        let opened = file::open(path, clock::now_ms()).await?;
        let (time_max_ms, shares) = (Arc::new(AtomicI64::new(Millis::MAX)), ShareNotices::default());
        let writer =
            WriterTask::new(path.to_owned(), opened.writer, settings, Arc::clone(&time_max_ms), shares.clone()).await?;
        let (requests, queue) = mpsc::channel(writer::QUEUE_MAX);
        tokio::spawn(writer.run(queue));
        let set_aside = opened.set_aside.map(Arc::from);
        Ok(Self {
            requests,
            readers: opened.readers,
            shares,
            path: path.into(),
            set_aside,
            time_max_ms,
            left_out: None,
        })
    }

    /// A replacement for a store that cannot be opened: all operations return [`SeriesError::LeftOut`], and the file is
    /// not changed.
    #[must_use]
    pub fn left_out(path: &Path, reason: Diagnostic) -> Self {
        let (requests, _) = mpsc::channel(1);
        let readers = SqlitePoolOptions::new().connect_lazy_with(SqliteConnectOptions::new());
        let (time_max_ms, shares) = (Arc::new(AtomicI64::new(Millis::MAX)), ShareNotices::default());
        let (path, left_out) = (path.into(), Some(Arc::new(reason)));
        Self { requests, readers, shares, path, set_aside: None, time_max_ms, left_out }
    }

    /// Sets the latest time that is taken for the present one, whatever clock and points say: nothing is too old by a later
    /// one, and nothing is sealed or deleted by it.
    pub fn set_time_max(&self, ms: Millis) {
        self.time_max_ms.store(ms, Ordering::Relaxed);
    }

    /// Why it cannot be used, if it is a replacement.
    #[must_use]
    pub fn why_left_out(&self) -> Option<&Diagnostic> {
        self.left_out.as_deref()
    }

    /// Takes what was noticed of [`StoreSettings::share`] since it was taken last: a value of the label that has come near
    /// its share, and again once it has all of it.
    #[must_use]
    pub fn take_share_notices(&self) -> Vec<ShareNotice> {
        self.shares.take()
    }

    /// How many series were not made since the start because of their share; one that comes again counts again.
    #[must_use]
    pub fn series_refused(&self) -> u64 {
        self.shares.refused()
    }

    /// The connections for queries.
    fn readers(&self) -> Result<&SqlitePool, SeriesError> {
        match &self.left_out {
            Some(why) => Err(SeriesError::LeftOut { reason: why.cause.clone(), hint: why.hint.clone() }),
            None => Ok(&self.readers),
        }
    }

    /// The new path of a damaged store that was renamed when this one was opened.
    #[must_use]
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Stores points; when this returns they are committed. Storing a point twice changes nothing; of two values of a
    /// series at the same time the last counts. Points that cannot be stored (far in the future, before 2020, older
    /// than deleted ones, with invalid names) are dropped and logged. If this is cancelled, the points may or may not
    /// have been stored.
    ///
    /// # Errors
    /// If they could not be committed; any number of them may be missing then. The cause is never the points, so the
    /// same points can be appended later, and must not be acknowledged before.
    pub async fn append(&self, points: &[Point]) -> Result<(), SeriesError> {
        let batch = WriteBatch::new(points, &accepted());
        if batch.untimely + batch.unfit > 0 {
            tracing::warn!(
                untimely = batch.untimely, unfit = batch.unfit, first = ?points.first(),
                hint = "measurements out of order come from a host with a wrong clock",
                "measurements were left out",
            );
        }
        self.commit(batch).await
    }

    /// As [`Self::append`], for many points of each series, such as an import: the points of an hour are sealed at
    /// once. Each series may occur once.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn append_columns(&self, columns: Vec<SeriesColumn>) -> Result<(), SeriesError> {
        let batch = tokio::task::spawn_blocking(move || WriteBatch::of_columns(columns, &accepted()));
        let batch = batch.await.map_err(|error| SeriesError::Sql(sqlx::Error::Io(io::Error::other(error))))?;
        if batch.untimely + batch.unfit > 0 {
            tracing::warn!(untimely = batch.untimely, unfit = batch.unfit, "measurements were left out");
        }
        self.commit(batch).await
    }

    async fn commit(&self, batch: WriteBatch) -> Result<(), SeriesError> {
        self.readers()?;
        if batch.len() == 0 {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.requests.send(WriterRequest::Append(batch, reply)).await.map_err(|_| SeriesError::Stopped)?;
        answer.await.map_err(|_| SeriesError::Stopped)?.map_err(SeriesError::Sql)
    }

    /// Measurements that match a selector such as `muster_host_cpu_busy_ratio{host="…"}`, reduced to at most
    /// `points_max` per series; without a range, the last value of each series within five minutes.
    ///
    /// # Errors
    /// If the selector is invalid, if a limit is exceeded, or if the store cannot be read.
    pub async fn query(
        &self,
        selector: &str,
        range: Option<(Millis, Millis)>,
        points_max: usize,
    ) -> Result<Vec<SeriesPoints>, SeriesError> {
        let answer = reader::query(self.readers()?, selector, range, points_max, clock::now_ms()).await;
        self.noted(answer)
    }

    /// The series that match a selector, at most this many, sorted by name and labels.
    ///
    /// # Errors
    /// If there are more, or if the store cannot be read.
    pub async fn select(&self, selector: SeriesSelector, series_max: usize) -> Result<Vec<ChosenSeries>, SeriesError> {
        let chosen = reader::within_deadline(reader::choose(self.readers()?, selector, series_max)).await;
        self.noted(chosen.map(|chosen| (chosen, UnreadableBlobs::new())))
    }

    /// The points of some series, each once, in a time range, both ends included: of one series after another, sorted by
    /// time.
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
            let mut view = StoreView::new(readers).await?;
            let found = view.points_of(series, start_ms..=end_ms).await?;
            Ok((found, view.faults))
        });
        self.noted(read.await)
    }

    /// Summaries of some series, each once, whose five minutes or hours overlap a range: of one series after another, in order of
    /// time. Where a resolution has been deleted, they are coarser. [`Resolution::for_step`] chooses one;
    /// [`Resolution::Raw`] has no summaries, and returns those of five minutes. The module `view` describes their
    /// error: over ranges of whole five minutes or hours there is none.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn buckets(
        &self,
        series: &[SeriesId],
        (start_ms, end_ms): (Millis, Millis),
        resolution: Resolution,
    ) -> Result<Vec<Vec<ViewBucket>>, SeriesError> {
        let readers = self.readers()?;
        let read = reader::within_deadline(async {
            let mut view = StoreView::new(readers).await?;
            let found = view.buckets_of(series, start_ms..=end_ms, resolution).await?;
            Ok((found, view.faults))
        });
        self.noted(read.await)
    }

    /// The time from which raw points are kept: the beginning of an hour. `None` if none has been deleted yet.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn points_from(&self) -> Result<Option<Millis>, SeriesError> {
        reader::points_from(self.readers()?).await
    }

    /// Number of series.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn count(&self) -> Result<u64, SeriesError> {
        let (count,): (i64,) = sqlx::query_as("SELECT count(*) FROM series").fetch_one(self.readers()?).await?;
        Ok(count.unsigned_abs())
    }

    /// The names of all labels, sorted, including `__name__`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn label_names(&self) -> Result<Vec<String>, SeriesError> {
        reader::label_names(self.readers()?).await
    }

    /// The values of a label, sorted; those of `__name__` are the names of series.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn label_values(&self, name: &str) -> Result<Vec<String>, SeriesError> {
        reader::label_values(self.readers()?, name).await
    }

    /// Exports the points that match a selector in a time range, both ends included. The text is streamed in pieces of
    /// whole lines, as fast as it is read.
    ///
    /// # Errors
    /// If the selector is invalid, if a limit is exceeded, or if the store cannot be read.
    pub async fn export(
        &self,
        selector: &str,
        range: (Millis, Millis),
        format: LineFormat,
    ) -> Result<mpsc::Receiver<Result<String, SeriesError>>, SeriesError> {
        let selector = SeriesSelector::parse(selector)?;
        let requests = self.requests.clone();
        let damaged = move |faults| drop(requests.try_send(WriterRequest::Damaged(faults)));
        export::export(self.readers()?.clone(), selector, range, format, damaged).await
    }

    /// Damaged pieces that were moved away, newest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn damaged(&self) -> Result<Vec<DamagedPiece>, SeriesError> {
        let rows = sqlx::query_as("SELECT place, key, found_ms, reason FROM damaged ORDER BY id DESC");
        Ok(rows.fetch_all(self.readers()?).await?)
    }

    /// Seals, rolls up and deletes now, instead of in the next rounds. For measurements, and before the file is copied.
    pub async fn settle(&self) {
        let (reply, answer) = oneshot::channel();
        // If the request cannot be sent or is not answered, the writer has ended.
        if self.requests.send(WriterRequest::Settle(reply)).await.is_ok() {
            let _ = answer.await;
        }
    }

    /// Reports damage that a reader has found: a piece is moved away, the whole file is checked at the next start.
    fn noted<T>(&self, answer: Result<(T, UnreadableBlobs), SeriesError>) -> Result<T, SeriesError> {
        if let Err(SeriesError::Sql(error)) = &answer
            && schema::is_damage(error)
        {
            file::remember_damage(&self.path);
        }
        let (answer, faults) = answer?;
        if !faults.is_empty() {
            // If the queue is full, the next reader reports it again.
            let _ = self.requests.try_send(WriterRequest::Damaged(faults));
        }
        Ok(answer)
    }

    /// Commits pending points and closes the file; later appends return [`SeriesError::Stopped`].
    pub async fn stop(&self) {
        self.readers.close().await;
        let (reply, answer) = oneshot::channel();
        // If the request cannot be sent or is not answered, the writer has ended before.
        if self.requests.send(WriterRequest::Stop(reply)).await.is_ok() {
            let _ = answer.await;
        }
    }
}
