//! Deletes the oldest hours of series, and series without data.

use std::collections::HashSet;

use muster_topics::Millis;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{
    batch::NAME_LABEL,
    blobs::{BlobTable, list},
    head,
    key::{self, HOUR_STRIDE, Hour, SLICE_MS, SeriesId, TIME_FIRST_MS, TIME_LAST_MS},
    rollup_blob::SPAN_HOURS,
};

/// Number of series in one step, some milliseconds of work.
const SERIES_MAX: i64 = 256;

/// The result of a step.
pub(crate) struct SweepResult {
    /// The last series that was examined; `None` if there are no more.
    pub(crate) done: Option<i64>,
    /// Series that were deleted.
    pub(crate) gone: HashSet<SeriesId>,
}

/// Continues after a series: deletes hourly summaries before a time, and series without any data.
pub(crate) async fn sweep(tx: &mut SqliteConnection, done: i64, hourly_ms: Millis) -> Result<SweepResult, sqlx::Error> {
    let mut slices = head::slices(tx, TIME_FIRST_MS..=TIME_LAST_MS).await?;
    // A series that is still measured has points in the latest slice.
    slices.reverse();
    let rows: Vec<(i64, bool)> = sqlx::query_as(
        "SELECT id, CASE
             WHEN EXISTS (SELECT 1 FROM summary WHERE key BETWEEN id * $3 AND id * $3 + $3 - 1) THEN 0
             WHEN EXISTS (SELECT 1 FROM hourly WHERE key BETWEEN id * $3 + $4 AND id * $3 + $3 - 1) THEN 0
             WHEN EXISTS (SELECT 1 FROM json_each($5) AS slice CROSS JOIN head
                          ON head.key BETWEEN slice.value + series.id * $6 AND slice.value + series.id * $6 + $6 - 1) THEN 0
             ELSE 1 END
         FROM series WHERE id > $1 ORDER BY id LIMIT $2",
    )
    .bind(done)
    .bind(SERIES_MAX)
    .bind(HOUR_STRIDE)
    .bind(i64::from(Hour::of(hourly_ms).0 / SPAN_HOURS))
    .bind(list(slices.iter().map(|slice| slice.keys().0)))
    .bind(SLICE_MS)
    .fetch_all(&mut *tx)
    .await?;
    let Some(last) = rows.last().map(|row| row.0) else { return Ok(SweepResult { done: None, gone: HashSet::new() }) };
    sqlx::query(
        "DELETE FROM hourly WHERE key IN (
             SELECT hourly.key FROM series CROSS JOIN hourly
                 ON hourly.key BETWEEN series.id * $3 AND series.id * $3 + $4 - 1
             WHERE series.id > $1 AND series.id <= $2)",
    )
    .bind(done)
    .bind(last)
    .bind(HOUR_STRIDE)
    .bind(i64::from(Hour::of(hourly_ms).0 / SPAN_HOURS))
    .execute(&mut *tx)
    .await?;
    let mut gone = HashSet::new();
    for series in rows.iter().filter(|row| row.1).filter_map(|row| SeriesId::new(row.0)) {
        if !has_points(tx, series).await? {
            delete(tx, series).await?;
            gone.insert(series);
        }
    }
    let more = i64::try_from(rows.len()).is_ok_and(|count| count >= SERIES_MAX);
    Ok(SweepResult { done: more.then_some(last), gone })
}

/// Whether a series without summaries still has points, which can happen after a blob was damaged.
async fn has_points(tx: &mut SqliteConnection, series: SeriesId) -> Result<bool, sqlx::Error> {
    Ok(has_rows(tx, BlobTable::Chunk, series).await? || has_rows(tx, BlobTable::Day, series).await?)
}

/// Whether there are hours or days of a series in a table, whose keys are alike.
async fn has_rows(tx: &mut SqliteConnection, table: BlobTable, series: SeriesId) -> Result<bool, sqlx::Error> {
    let name = table.name();
    let bounds: (Option<i64>, Option<i64>) =
        sqlx::query_as(AssertSqlSafe(format!("SELECT (SELECT MIN(key) FROM {name}), (SELECT MAX(key) FROM {name})")))
            .fetch_one(&mut *tx)
            .await?;
    let hour = |key: Option<i64>| key.and_then(key::ChunkKey::from_sql).map(|key| key.hour);
    let (Some(first), Some(last)) = (hour(bounds.0), hour(bounds.1)) else { return Ok(false) };
    let found: Option<i64> = sqlx::query_scalar(AssertSqlSafe(format!(
        "WITH RECURSIVE hour(first) AS (SELECT $1 UNION ALL SELECT first + $3 FROM hour WHERE first + $3 <= $2)
         SELECT {name}.key FROM hour CROSS JOIN {name} ON {name}.key BETWEEN hour.first AND hour.first + $4 LIMIT 1"
    )))
    .bind(key::chunks_of(series, first).0)
    .bind(key::chunks_of(series, last).0)
    .bind(key::CHUNK_STRIDE)
    .bind(i64::from(key::SLOTS - 1))
    .fetch_optional(tx)
    .await?;
    Ok(found.is_some())
}

async fn delete(tx: &mut SqliteConnection, series: SeriesId) -> Result<(), sqlx::Error> {
    let labels: Option<(String, String)> = sqlx::query_as("SELECT name, labels FROM series WHERE id = $1")
        .bind(series.to_sql())
        .fetch_optional(&mut *tx)
        .await?;
    if let Some((name, labels)) = labels {
        // By the complete key, one label at a time, because no index begins with the series.
        sqlx::query(
            "DELETE FROM label WHERE (name, value, series) IN
             (SELECT $1, $2, $3 UNION ALL SELECT key, value, $3 FROM json_each($4))",
        )
        .bind(NAME_LABEL)
        .bind(name)
        .bind(series.to_sql())
        .bind(labels)
        .execute(&mut *tx)
        .await?;
    }
    sqlx::query("DELETE FROM series WHERE id = $1").bind(series.to_sql()).execute(tx).await?;
    Ok(())
}
