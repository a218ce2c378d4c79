//! The one task that writes: commits batches, and deletes what is too old.
//!
//! Batches of many hosts come through one queue, and whatever waits is committed together, so that the
//! cost of a sync is shared and falls, batch by batch, as load grows.
//!
//! **Invariant: a batch is answered after its commit.** Who was told so may forget it.
//!
//! **Invariant: series are made and deleted here alone**, so the numbers that this task remembers are true.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    path::PathBuf,
    sync::Arc,
};

use muster_topics::Millis;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    SeriesError, Settings,
    batch::{Batch, Identity, NAME_LABEL},
    file,
    key::{ID_MAX, Key, SeriesId},
    retention::Sweep,
};
use crate::clock;

/// Requests that may wait: sixty-four batches are what a thousand hosts send in two seconds. Beyond that the
/// console's ingest waits, and behind it the agents' batches, which they keep.
pub(super) const QUEUE_MAX: usize = 64;
/// Values in one commit: a tenth of a second's work, so that nobody waits longer for it.
const GROUP_MAX: usize = 1 << 16;
/// The most series. Ten thousand hosts with fifty each are half of it; remembering one takes 40 bytes.
const SERIES_MAX: usize = 1_000_000;
/// Rows per statement. A statement costs about as much as twenty rows, so small batches take the small one.
const ROWS: [usize; 2] = [128, 16];

/// What the writer is asked.
pub(super) enum Request {
    /// Commit this, then answer.
    Append(Batch, oneshot::Sender<Result<(), sqlx::Error>>),
    /// Commit what waits, close the file, then answer.
    Stop(oneshot::Sender<()>),
}

/// Who waits for which batch.
type Group = Vec<(Batch, oneshot::Sender<Result<(), sqlx::Error>>)>;

/// The task's own state.
pub(super) struct Writer {
    path: PathBuf,
    connection: SqliteConnection,
    /// Numbers of series, by fingerprint; at most [`SERIES_MAX`], for there are no more.
    known: HashMap<u128, SeriesId>,
    hashers: [RandomState; 2],
    count: usize,
    last_id: i64,
    inserts: [(usize, Arc<str>); 2],
    /// The latest time of a point that came since the start.
    newest_ms: Option<Millis>,
    sweep: Sweep,
}

impl Writer {
    /// Takes over the connection.
    pub(super) async fn new(
        path: PathBuf,
        mut connection: SqliteConnection,
        settings: &Settings,
    ) -> Result<Self, SeriesError> {
        let (count, last_id) = census(&mut connection).await?;
        Ok(Self {
            path,
            connection,
            known: HashMap::new(),
            hashers: [RandomState::new(), RandomState::new()],
            count,
            last_id,
            inserts: ROWS.map(|rows| (rows, insert_statement(rows))),
            newest_ms: None,
            sweep: Sweep::new(settings.retention),
        })
    }

    /// Runs until it is told to stop or nobody is left who could ask, and everything is committed.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut stopping = None;
        let mut sweep_at = Instant::now() + self.sweep.pause();
        loop {
            // Both arms are cancel-safe: `recv` takes nothing until it is ready, and a sleep has no effect.
            let request = tokio::select! {
                request = requests.recv() => request,
                () = tokio::time::sleep_until(sweep_at), if stopping.is_none() => {
                    sweep_at = Instant::now() + self.sweep_once().await;
                    continue;
                }
            };
            let Some(first) = request else { break };
            if let Some(asked) = self.serve(first, &mut requests).await {
                // What was queued before the channel closed is still handed out, and then `None`.
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

    /// Takes what waits behind the first request, and commits it together. Gives who asked to stop.
    async fn serve(&mut self, first: Request, requests: &mut mpsc::Receiver<Request>) -> Option<oneshot::Sender<()>> {
        let (mut group, mut stopping, mut next) = (Group::new(), None, Some(first));
        let mut waiting = 0;
        while let Some(request) = next {
            match request {
                Request::Append(batch, reply) => {
                    waiting += batch.samples.len();
                    group.push((batch, reply));
                }
                Request::Stop(reply) => stopping = Some(reply),
            }
            next = if waiting < GROUP_MAX { requests.try_recv().ok() } else { None };
        }
        let count = self.count;
        let mut result = self.commit(&group).await;
        if let Err(error) = &result {
            // Series that were never committed must not be remembered.
            self.known.clear();
            self.count = count;
            tracing::error!(store = %self.path.display(), %error, batches = group.len(), "a commit of measurements failed");
            self.note_damage(error);
        }
        for (_, reply) in group {
            let copy = result.as_ref().copied().map_err(copied);
            // Whoever gave up waiting is not told.
            let _ = reply.send(std::mem::replace(&mut result, copy));
        }
        stopping
    }

    async fn commit(&mut self, group: &Group) -> Result<(), sqlx::Error> {
        let mut rows = Vec::with_capacity(group.iter().map(|(batch, _)| batch.samples.len()).sum());
        let mut tx = self.connection.begin_with("BEGIN IMMEDIATE").await?;
        let mut series = Numbers {
            known: &mut self.known,
            hashers: &self.hashers,
            count: &mut self.count,
            last_id: &mut self.last_id,
            refused: 0,
        };
        for (batch, _) in group {
            let mut ids = Vec::with_capacity(batch.series.len());
            for identity in &batch.series {
                ids.push(series.number(&mut tx, identity).await?);
            }
            rows.extend(batch.samples.iter().filter_map(|sample| {
                let series = (*ids.get(sample.series)?)?;
                Some((Key::new(series, sample.at_ms).to_sql(), sample.value))
            }));
        }
        if series.refused > 0 {
            tracing::warn!(
                series = series.refused,
                "no new series: there are {SERIES_MAX}. hint: shorten the retention"
            );
        }
        // Neighbours in the file one after the other; of a point that comes twice the first counts, here as there.
        rows.sort_by_key(|(key, _)| *key);
        insert(&mut tx, &self.inserts, &rows).await?;
        tx.commit().await?;
        let newest_ms = group.iter().flat_map(|(batch, _)| &batch.samples).map(|sample| sample.at_ms).max();
        self.newest_ms = self.newest_ms.max(newest_ms);
        Ok(())
    }

    /// One step of deleting what is too old; how long to wait before the next.
    async fn sweep_once(&mut self) -> std::time::Duration {
        let now_ms = self.newest_ms.map_or(0, |newest_ms| newest_ms.min(clock::now_ms()));
        match self.sweep.step(&mut self.connection, now_ms).await {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                self.known.retain(|_, id| !gone.contains(id));
                self.count = self.count.saturating_sub(gone.len());
            }
            Err(error) => {
                tracing::warn!(store = %self.path.display(), %error, "old measurements could not be deleted");
                self.note_damage(&error);
            }
        }
        self.sweep.pause()
    }

    fn note_damage(&self, error: &sqlx::Error) {
        if file::is_corrupt(error) {
            file::remember_damage(&self.path);
        }
    }
}

/// The same for the next who waits: errors cannot be cloned, so all but the first have the words only.
fn copied(error: &sqlx::Error) -> sqlx::Error {
    sqlx::Error::Io(io::Error::other(error.to_string()))
}

/// How many series there are, and the largest number.
async fn census(connection: &mut SqliteConnection) -> Result<(usize, i64), SeriesError> {
    let (count, last_id): (i64, i64) =
        sqlx::query_as("SELECT COUNT(*), COALESCE(MAX(id), 0) FROM series").fetch_one(connection).await?;
    Ok((usize::try_from(count).unwrap_or_default(), last_id))
}

/// Finds and makes the numbers of series, within a transaction.
struct Numbers<'a> {
    known: &'a mut HashMap<u128, SeriesId>,
    hashers: &'a [RandomState; 2],
    count: &'a mut usize,
    last_id: &'a mut i64,
    refused: usize,
}

impl Numbers<'_> {
    /// The number of a series; none if there are too many.
    async fn number(
        &mut self,
        tx: &mut SqliteConnection,
        identity: &Identity,
    ) -> Result<Option<SeriesId>, sqlx::Error> {
        // Two keyed hashes of 64 bits: hosts choose labels, but without the keys nobody finds two that collide.
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
        match id {
            Some(id) => drop(self.known.insert(fingerprint, id)),
            None => self.refused += 1,
        }
        Ok(id)
    }

    async fn make(&mut self, tx: &mut SqliteConnection, identity: &Identity) -> Result<Option<SeriesId>, sqlx::Error> {
        if *self.count >= SERIES_MAX {
            return Ok(None);
        }
        let Some(id) = self.free(tx).await? else { return Ok(None) };
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

    /// A number that no series has. Those of deleted ones come up again once the largest was given out;
    /// a series is deleted after its last point, so none is left under its number.
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

fn insert_statement(rows: usize) -> Arc<str> {
    let values: Vec<_> = (0..rows).map(|row| format!("(${}, ${})", 2 * row + 1, 2 * row + 2)).collect();
    format!("INSERT INTO head (key, value) VALUES {} ON CONFLICT DO NOTHING", values.join(", ")).into()
}

/// Inserts rows, of which those that are there already stay as they are. A statement that is not full is filled up
/// with its last row, which changes nothing: so two statements, prepared once, are enough.
async fn insert(
    tx: &mut SqliteConnection,
    statements: &[(usize, Arc<str>); 2],
    mut rows: &[(i64, f64)],
) -> Result<(), sqlx::Error> {
    let [large, small] = statements;
    while let Some(last) = rows.last() {
        let (size, statement) = if rows.len() >= large.0 { large } else { small };
        let (now, later) = rows.split_at(rows.len().min(*size));
        let filling = std::iter::repeat_n(now.last().unwrap_or(last), size - now.len());
        let mut query = sqlx::query(AssertSqlSafe(statement.clone()));
        for (key, value) in now.iter().chain(filling) {
            query = query.bind(*key).bind(*value);
        }
        query.execute(&mut *tx).await?;
        rows = later;
    }
    Ok(())
}
