//! The one task that writes: commits batches, and does the maintenance.
//!
//! Batches of many hosts come through one queue, and all queued ones are committed together, so that the
//! cost of a sync is shared and falls, batch by batch, as load grows.
//!
//! **Invariant: a batch is answered after its commit.** Its sender may then delete it.
//!
//! **Invariant: series are created and deleted here alone**, so the numbers that this task caches are right.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use muster_sqlite::schema;
use muster_topics::Millis;
use sqlx::{Connection, SqliteConnection};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    batch::{NAME_LABEL, SealedRun, SeriesIdentity, WriteBatch},
    blobs::{self, BlobTable, UnreadableBlobs},
    clock,
    error::SeriesError,
    file,
    head::{self, InsertStatements},
    key::{self, ChunkKey, Hour, ID_MAX, PointKey, SeriesId},
    maintenance::{self, Upkeep},
    settings::StoreSettings,
    share::{ShareCounts, ShareNotices},
    transaction,
};

/// Length of the queue: a thousand hosts send sixty-four batches in two seconds. If it is full, the console's ingest
/// waits, and agents keep their batches.
pub(super) const QUEUE_MAX: usize = 64;
/// Number of values in one commit: a tenth of a second of work, so that later requests do not wait longer.
const GROUP_MAX: usize = 1 << 16;
/// Largest number of series. Ten thousand hosts with fifty each are half of it; each takes 40 bytes of memory.
const SERIES_MAX: usize = 1_000_000;
/// A request to the writer.
pub(super) enum WriterRequest {
    /// Commit this, then answer.
    Append(WriteBatch, oneshot::Sender<Result<(), sqlx::Error>>),
    /// Check these again, and move them away.
    Damaged(UnreadableBlobs),
    /// Do all pending upkeep now, then answer.
    Settle(oneshot::Sender<()>),
    /// Commit pending points, close the file, then answer.
    Stop(oneshot::Sender<()>),
}

/// Batches, and who waits for them.
type BatchWaiters = Vec<(WriteBatch, oneshot::Sender<Result<(), sqlx::Error>>)>;

/// The state of the writer's task.
pub(super) struct WriterTask {
    path: PathBuf,
    connection: SqliteConnection,
    /// Series ids by fingerprint; at most [`SERIES_MAX`], because there are no more.
    known: HashMap<u128, SeriesId>,
    hashers: [RandomState; 2],
    count: usize,
    shares: ShareCounts,
    last_id: i64,
    inserts: InsertStatements,
    /// The latest time of a point since the start.
    newest_ms: Option<Millis>,
    /// The latest time that is taken for the present one.
    time_max_ms: Arc<AtomicI64>,
    upkeep: Upkeep,
}

impl WriterTask {
    /// Takes over the connection.
    pub(super) async fn new(
        path: PathBuf,
        mut connection: SqliteConnection,
        settings: &StoreSettings,
        time_max_ms: Arc<AtomicI64>,
        notices: ShareNotices,
    ) -> Result<Self, SeriesError> {
        let (count, last_id) = census(&mut connection).await?;
        let kept = maintenance::kept(&mut connection).await?;
        Ok(Self {
            path,
            connection,
            known: HashMap::new(),
            hashers: [RandomState::new(), RandomState::new()],
            count,
            shares: ShareCounts::new(settings.share.clone(), notices),
            last_id,
            inserts: InsertStatements::new(),
            newest_ms: None,
            time_max_ms,
            upkeep: Upkeep::new(settings, kept),
        })
    }

    /// Runs until it is told to stop, or until all handles are dropped and everything is committed.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<WriterRequest>) {
        let mut stopping = None;
        let mut upkeep_at = Instant::now() + self.upkeep.pause();
        loop {
            // Both arms are cancel-safe: `recv` takes nothing until it is ready, and a sleep has no effect.
            let request = tokio::select! {
                request = requests.recv() => request,
                () = tokio::time::sleep_until(upkeep_at), if stopping.is_none() => {
                    upkeep_at = Instant::now() + self.step_upkeep().await;
                    continue;
                }
            };
            let Some(first) = request else { break };
            if let Some(asked) = self.serve(first, &mut requests).await {
                // Requests that were queued before the channel was closed are still received, and then `None`.
                requests.close();
                stopping = Some(asked);
            }
        }
        if let Err(error) = self.connection.close().await {
            tracing::warn!(store = %self.path.display(), %error, "closing the time-series store");
        }
        if let Some(asked) = stopping {
            let _ = asked.send(());
        }
    }

    /// Takes all waiting requests and commits them together. Returns who asked to stop.
    async fn serve(
        &mut self,
        first: WriterRequest,
        requests: &mut mpsc::Receiver<WriterRequest>,
    ) -> Option<oneshot::Sender<()>> {
        let (mut group, mut stopping, mut next) = (BatchWaiters::new(), None, Some(first));
        let (mut waiting, mut faults, mut settling) = (0, UnreadableBlobs::new(), Vec::new());
        while let Some(request) = next {
            match request {
                WriterRequest::Append(batch, reply) => {
                    waiting += batch.len();
                    group.push((batch, reply));
                }
                WriterRequest::Damaged(found) => faults.extend(found),
                WriterRequest::Settle(reply) => settling.push(reply),
                WriterRequest::Stop(reply) => stopping = Some(reply),
            }
            next = if waiting < GROUP_MAX { requests.try_recv().ok() } else { None };
        }
        if !group.is_empty() {
            self.answer(group).await;
        }
        if !faults.is_empty() {
            self.set_aside(faults).await;
        }
        for reply in settling {
            self.settle().await;
            let _ = reply.send(());
        }
        stopping
    }

    /// Commits batches, and answers their senders.
    async fn answer(&mut self, group: BatchWaiters) {
        let count = self.count;
        let mut result = self.commit(&group).await;
        if let Err(error) = &result {
            // Series that were not committed must not be remembered.
            self.known.clear();
            self.shares.forget();
            self.count = count;
            tracing::error!(store = %self.path.display(), %error, batches = group.len(), "a commit of measurements failed");
            self.note_damage(error);
        }
        for (_, reply) in group {
            let copy = result.as_ref().copied().map_err(copied);
            // The sender may have given up.
            let _ = reply.send(std::mem::replace(&mut result, copy));
        }
    }

    async fn commit(&mut self, group: &BatchWaiters) -> Result<(), sqlx::Error> {
        transaction::begin(&mut self.connection).await?;
        let written = self.write(group).await;
        if let Some((oldest_ms, newest_ms)) = transaction::end(&mut self.connection, written).await? {
            self.newest_ms = self.newest_ms.max(Some(newest_ms));
            self.upkeep.note(oldest_ms, group.iter().any(|(batch, _)| !batch.runs.is_empty()));
        }
        Ok(())
    }

    /// Writes points within a transaction; returns the earliest and latest time.
    async fn write(&mut self, group: &BatchWaiters) -> Result<Option<(Millis, Millis)>, sqlx::Error> {
        let from_ms = self.upkeep.taken_from_ms();
        let mut rows = Vec::with_capacity(group.iter().map(|(batch, _)| batch.samples.len()).sum());
        let tx = &mut self.connection;
        let mut series = SeriesNumbers {
            known: &mut self.known,
            hashers: &self.hashers,
            count: &mut self.count,
            shares: &mut self.shares,
            last_id: &mut self.last_id,
            refused: 0,
        };
        let (mut times, mut late) = (None, 0);
        for (batch, _) in group {
            let mut ids = Vec::with_capacity(batch.series.len());
            for identity in &batch.series {
                ids.push(series.number(tx, identity).await?);
            }
            for sample in &batch.samples {
                let Some(series) = ids.get(sample.series).copied().flatten() else { continue };
                if sample.at_ms < from_ms {
                    late += 1;
                    continue;
                }
                times = widened(times, sample.at_ms);
                rows.push((PointKey::new(series, sample.at_ms), sample.value));
            }
            let runs: Vec<(SeriesId, &SealedRun)> = batch
                .runs
                .iter()
                .filter_map(|run| Some(((*ids.get(run.series)?)?, run)))
                .filter(|(_, run)| run.hour.start_ms() >= from_ms)
                .collect();
            if batch.runs.is_empty() {
                continue;
            }
            late += batch
                .runs
                .iter()
                .filter(|run| run.hour.start_ms() < from_ms)
                .map(|run| run.samples.len())
                .sum::<usize>();
            for (_, run) in &runs {
                times = run
                    .samples
                    .first()
                    .into_iter()
                    .chain(run.samples.last())
                    .map(|sample| sample.0)
                    .fold(times, widened);
            }
            // In the order of arrival: rows of an hour count more than its chunk, so rows are written first only if
            // they arrived first.
            self.inserts.insert(tx, &mut rows).await?;
            put_runs(tx, &runs, &mut rows).await?;
        }
        if series.refused > 0 {
            tracing::warn!(
                series = series.refused,
                consequence = "new series are not stored",
                hint = "shorten the retention",
                "there are {SERIES_MAX} series, the maximum",
            );
        }
        if late > 0 {
            tracing::warn!(points = late, from_ms, "measurements were left out: they are older than the retention");
        }
        self.inserts.insert(tx, &mut rows).await?;
        Ok(times)
    }

    /// The current time, according to points, clock and the console.
    fn now_ms(&self) -> Millis {
        let time_max_ms = self.time_max_ms.load(Ordering::Relaxed);
        self.newest_ms.map_or(0, |newest_ms| newest_ms.min(clock::now_ms()).min(time_max_ms))
    }

    /// Does one step of upkeep; returns the wait before the next.
    async fn step_upkeep(&mut self) -> std::time::Duration {
        let now_ms = self.now_ms();
        match self.upkeep.step(&mut self.connection, now_ms).await {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                self.known.retain(|_, id| !gone.contains(id));
                self.shares.forget();
                self.count = self.count.saturating_sub(gone.len());
            }
            Err(error) => {
                tracing::warn!(store = %self.path.display(), %error, "measurements could not be sealed, rolled up or deleted");
                self.note_damage(&error);
            }
        }
        self.upkeep.pause()
    }

    /// Finishes the current round, and does a complete one.
    async fn settle(&mut self) {
        while !self.upkeep.rests() {
            self.step_upkeep().await;
        }
        self.step_upkeep().await;
        while !self.upkeep.rests() {
            self.step_upkeep().await;
        }
    }

    /// Moves away pieces that a reader has found to be damaged.
    async fn set_aside(&mut self, faults: UnreadableBlobs) {
        let connection = &mut self.connection;
        let moved = async {
            transaction::begin(connection).await?;
            let moved = blobs::set_aside(connection, faults, clock::now_ms()).await;
            transaction::end(connection, moved).await
        };
        if let Err(error) = moved.await {
            tracing::warn!(store = %self.path.display(), %error, "damaged measurements could not be set aside");
            self.note_damage(&error);
        }
    }

    fn note_damage(&self, error: &sqlx::Error) {
        if schema::is_damage(error) {
            file::remember_damage(&self.path);
        }
    }
}

/// The earliest and latest time, extended by one more.
fn widened(times: Option<(Millis, Millis)>, at_ms: Millis) -> Option<(Millis, Millis)> {
    Some(times.map_or((at_ms, at_ms), |(oldest_ms, newest_ms)| (oldest_ms.min(at_ms), newest_ms.max(at_ms))))
}

/// A copy of an error for other senders: errors cannot be cloned, so only the first sender gets the original.
fn copied(error: &sqlx::Error) -> sqlx::Error {
    sqlx::Error::Io(io::Error::other(error.to_string()))
}

/// Number of series, and the largest id.
async fn census(connection: &mut SqliteConnection) -> Result<(usize, i64), SeriesError> {
    let (count, last_id): (i64, i64) =
        sqlx::query_as("SELECT COUNT(*), COALESCE(MAX(id), 0) FROM series").fetch_one(connection).await?;
    Ok((usize::try_from(count).unwrap_or_default(), last_id))
}

/// Finds and assigns series ids within a transaction.
struct SeriesNumbers<'a> {
    known: &'a mut HashMap<u128, SeriesId>,
    hashers: &'a [RandomState; 2],
    count: &'a mut usize,
    shares: &'a mut ShareCounts,
    last_id: &'a mut i64,
    /// Those for which the store has no place.
    refused: usize,
}

impl SeriesNumbers<'_> {
    /// The id of a series; `None` if there are too many.
    async fn number(
        &mut self,
        tx: &mut SqliteConnection,
        identity: &SeriesIdentity,
    ) -> Result<Option<SeriesId>, sqlx::Error> {
        // Two keyed hashes of 64 bits each: hosts choose labels, but without the keys they cannot cause collisions.
        let [a, b] = self.hashers;
        let fingerprint = u128::from(a.hash_one(identity)) << 64 | u128::from(b.hash_one(identity));
        if let Some(id) = self.known.get(&fingerprint) {
            return Ok(Some(*id));
        }
        let found: Option<i64> = sqlx::query_scalar("SELECT id FROM series WHERE name = $1 AND labels = $2")
            .bind(&identity.name)
            .bind(&identity.labels)
            .fetch_optional(&mut *tx)
            .await?;
        let id = match found {
            Some(id) => SeriesId::new(id),
            None => self.make(tx, identity).await?,
        };
        if let Some(id) = id {
            self.known.insert(fingerprint, id);
        }
        Ok(id)
    }

    async fn make(
        &mut self,
        tx: &mut SqliteConnection,
        identity: &SeriesIdentity,
    ) -> Result<Option<SeriesId>, sqlx::Error> {
        if *self.count >= SERIES_MAX {
            self.refused += 1;
            return Ok(None);
        }
        if !self.shares.take(tx, &identity.labels).await? {
            return Ok(None);
        }
        let Some(id) = self.free(tx).await? else {
            self.refused += 1;
            return Ok(None);
        };
        sqlx::query("INSERT INTO series (id, name, labels) VALUES ($1, $2, $3)")
            .bind(id.to_sql())
            .bind(&identity.name)
            .bind(&identity.labels)
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "INSERT INTO label (name, value, series) SELECT $1, $2, $3 UNION ALL SELECT key, value, $3 FROM json_each($4)",
        )
        .bind(NAME_LABEL)
        .bind(&identity.name)
        .bind(id.to_sql())
        .bind(&identity.labels)
        .execute(tx)
        .await?;
        *self.count += 1;
        Ok(Some(id))
    }

    /// An unused id. Those of deleted series are reused after the largest was assigned; a series is deleted after its
    /// last point, so no point is left with its id.
    async fn free(&mut self, tx: &mut SqliteConnection) -> Result<Option<SeriesId>, sqlx::Error> {
        if *self.last_id < i64::from(ID_MAX) {
            *self.last_id += 1;
            return Ok(SeriesId::new(*self.last_id));
        }
        let gap: Option<i64> = sqlx::query_scalar(
            "SELECT MIN(free) FROM (SELECT 1 AS free UNION ALL SELECT id + 1 FROM series)
             WHERE free NOT IN (SELECT id FROM series)",
        )
        .fetch_one(tx)
        .await?;
        Ok(gap.and_then(SeriesId::new))
    }
}

/// Writes chunks for hours that have no points yet; the points of other hours become rows, which are merged later.
async fn put_runs(
    tx: &mut SqliteConnection,
    runs: &[(SeriesId, &SealedRun)],
    rows: &mut Vec<(PointKey, f64)>,
) -> Result<(), sqlx::Error> {
    let hours: Vec<(SeriesId, Hour)> = runs.iter().map(|(series, run)| (*series, run.hour)).collect();
    let mut taken = vec![false; runs.len()];
    for place in blobs::meets(tx, &hours).await?.into_iter().chain(head::meets(tx, &hours).await?) {
        if let Some(taken) = taken.get_mut(place) {
            *taken = true;
        }
    }
    let (mut chunks, mut summaries) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
    let mut seen = HashSet::with_capacity(runs.len());
    for ((series, run), taken) in runs.iter().zip(taken) {
        if taken || !seen.insert((*series, run.hour)) {
            rows.extend(run.samples.iter().map(|(at_ms, value)| (PointKey::new(*series, *at_ms), *value)));
            continue;
        }
        for (slot, body) in &run.chunks {
            chunks.push((ChunkKey { hour: run.hour, series: *series, slot: *slot }.to_sql(), body.clone()));
        }
        summaries.push((key::series_first(*series, run.hour.0), run.summary.clone()));
    }
    // In the order of the file.
    chunks.sort_by_key(|(key, _)| *key);
    summaries.sort_by_key(|(key, _)| *key);
    blobs::put(tx, BlobTable::Chunk, &chunks).await?;
    blobs::put(tx, BlobTable::Summary, &summaries).await
}
