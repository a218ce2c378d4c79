//! Deleting what is too old, in small steps.
//!
//! Once an hour the series are gone through, some at a time, and of each a bounded number of points
//! is deleted in one short transaction, so that batches never wait long behind it. A series whose last
//! point has gone is deleted as well. What "too old" is counts from the newest point that came since
//! the start, not from the clock alone: a console whose clock jumps ahead must not lose everything. SQLite takes the freed pages for new points: the file stops
//! growing, it does not shrink. (Sealed chunks will make this the deletion of a few blobs.)

use std::{collections::HashSet, time::Duration};

use muster_topics::Millis;
use sqlx::{Connection, SqliteConnection};

use super::key::{self, SeriesId, TIME_FIRST_MS, TIME_LAST_MS};

/// Between two rounds: what is kept too long is kept an hour too long at most.
const ROUND: Duration = Duration::from_secs(3600);
/// Between two steps of a round: with [`POINTS_MAX`] that is room for 50,000 points a second, more than come in.
const STEP: Duration = Duration::from_millis(100);
/// After the start, when there is more urgent work.
const FIRST: Duration = Duration::from_secs(60);
/// Series that one step looks at.
const SERIES_MAX: i64 = 64;
/// Points that one step deletes, some milliseconds' work.
const POINTS_MAX: u64 = 5_000;

/// How far a round has come.
#[derive(Debug)]
pub(super) struct Sweep {
    retention_ms: Millis,
    /// The number of the last series that is done with in this round.
    done: i64,
    /// Whether the series after that one had more old points than one step deletes.
    unfinished: bool,
    pause: Duration,
}

impl Sweep {
    /// Before the first round.
    pub(super) fn new(retention: Duration) -> Self {
        let retention_ms = Millis::try_from(retention.as_millis()).unwrap_or(Millis::MAX);
        Self { retention_ms, done: 0, unfinished: false, pause: FIRST }
    }

    /// How long to wait before the next step.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// Does one step, in one transaction; gives the series that are gone.
    pub(super) async fn step(
        &mut self,
        connection: &mut SqliteConnection,
        now_ms: Millis,
    ) -> Result<HashSet<SeriesId>, sqlx::Error> {
        // Whatever goes wrong, the next try comes with the next round.
        let (done, unfinished) = (std::mem::take(&mut self.done), std::mem::take(&mut self.unfinished));
        self.pause = ROUND;

        let last_ms = now_ms.saturating_sub(self.retention_ms).saturating_sub(1);
        if last_ms < TIME_FIRST_MS {
            return Ok(HashSet::new());
        }
        let mut tx = connection.begin().await?;
        let series: Vec<i64> = sqlx::query_scalar("SELECT id FROM series WHERE id > $1 ORDER BY id LIMIT $2")
            .bind(done)
            .bind(SERIES_MAX)
            .fetch_all(&mut *tx)
            .await?;
        let (mut gone, mut room, mut reached) = (HashSet::new(), POINTS_MAX, done);
        for (index, id) in series.iter().copied().filter_map(SeriesId::new).enumerate() {
            let deleted = delete_points(&mut tx, id, last_ms, room).await?;
            room -= deleted.min(room);
            if room == 0 {
                break;
            }
            let resumed = index == 0 && unfinished;
            if (deleted > 0 || resumed) && delete_if_empty(&mut tx, id).await? {
                gone.insert(id);
            }
            reached = id.to_sql();
        }
        tx.commit().await?;
        self.unfinished = room == 0;
        if self.unfinished || i64::try_from(series.len()).unwrap_or(i64::MAX) == SERIES_MAX {
            self.done = reached;
            self.pause = STEP;
        }
        Ok(gone)
    }
}

async fn delete_points(
    tx: &mut SqliteConnection,
    series: SeriesId,
    last_ms: Millis,
    points_max: u64,
) -> Result<u64, sqlx::Error> {
    let (first, last) = key::stretch(series, TIME_FIRST_MS..=last_ms);
    let done = sqlx::query(
        "DELETE FROM head WHERE key IN (SELECT key FROM head WHERE key BETWEEN $1 AND $2 ORDER BY key LIMIT $3)",
    )
    .bind(first)
    .bind(last)
    .bind(i64::try_from(points_max).unwrap_or(i64::MAX))
    .execute(tx)
    .await?;
    Ok(done.rows_affected())
}

async fn delete_if_empty(tx: &mut SqliteConnection, series: SeriesId) -> Result<bool, sqlx::Error> {
    let (first, last) = key::stretch(series, TIME_FIRST_MS..=TIME_LAST_MS);
    let left: Option<i64> = sqlx::query_scalar("SELECT key FROM head WHERE key BETWEEN $1 AND $2 LIMIT 1")
        .bind(first)
        .bind(last)
        .fetch_optional(&mut *tx)
        .await?;
    if left.is_some() {
        return Ok(false);
    }
    let labels: Option<(String, String)> = sqlx::query_as("SELECT name, labels FROM series WHERE id = $1")
        .bind(series.to_sql())
        .fetch_optional(&mut *tx)
        .await?;
    if let Some((name, labels)) = labels {
        // By the whole key, one label at a time: there is no index that begins with the series.
        sqlx::query(
            "DELETE FROM label WHERE (name, value, series) IN
             (SELECT $1, $2, $3 UNION ALL SELECT key, value, $3 FROM json_each($4))",
        )
        .bind(super::batch::NAME_LABEL)
        .bind(name)
        .bind(series.to_sql())
        .bind(labels)
        .execute(&mut *tx)
        .await?;
    }
    sqlx::query("DELETE FROM series WHERE id = $1").bind(series.to_sql()).execute(tx).await?;
    Ok(true)
}
