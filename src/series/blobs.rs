//! The tables of blobs: reads and writes them, and sets damaged ones aside.
//!
//! **Invariant: a damaged blob is never deleted.** It is moved to the table `damaged`, with its reason, and
//! logged; everything else stays readable.

use std::sync::Arc;

use futures_util::{TryStreamExt, stream::BoxStream};
use muster_topics::Millis;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{
    chunk,
    day::{self, DayReader, HourPoints},
    downsample::ThinPoint,
    key::{self, CHUNK_STRIDE, ChunkKey, Hour, SeriesId},
    numbers::{self, DecodeError},
    pieces::{self, LastPage},
    rollup_blob::{self, SummarySpan},
};

/// Largest number of damaged blobs that are kept: enough to see what happened, and to try to recover the latest. Blobs
/// have a few hundred bytes each.
const DAMAGED_MAX: i64 = 10_000;
/// Rows per statement.
pub(crate) const ROWS: usize = 16;

/// A table of blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BlobTable {
    Chunk,
    Day,
    Summary,
    Five,
    Hourly,
}

impl BlobTable {
    /// The name of the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Day => "day",
            Self::Summary => "summary",
            Self::Five => "five",
            Self::Hourly => "hourly",
        }
    }

    /// Whether a blob is in several rows.
    fn has_pieces(self) -> bool {
        matches!(self, Self::Day | Self::Five)
    }

    /// The series and the time of a key, for messages.
    fn describe(self, key: i64) -> (Option<i64>, Millis) {
        let (series, hour) = match self {
            Self::Chunk => ChunkKey::from_sql(key).map_or((None, 0), |key| (Some(key.series), key.hour.0)),
            Self::Day | Self::Five => {
                key::of_day(key).map_or((None, 0), |(day, series)| (Some(series), day.saturating_mul(key::DAY_HOURS)))
            }
            Self::Summary => key::of_series_first(key),
            Self::Hourly => {
                let (series, span) = key::of_series_first(key);
                (series, span.saturating_mul(rollup_blob::SPAN_HOURS))
            }
        };
        (series.map(SeriesId::to_sql), Hour(hour).start_ms())
    }

    /// Whether a blob can be decoded.
    fn check(self, key: i64, data: &[u8]) -> Result<(), DecodeError> {
        match self {
            Self::Chunk => {
                let hour = ChunkKey::from_sql(key).ok_or(DecodeError::Content("its key"))?.hour;
                chunk::decode(key, hour, data).map(drop)
            }
            Self::Day => {
                let (day, _) = key::of_day(key).ok_or(DecodeError::Content("its key"))?;
                DayReader::new(key, day, data.to_vec())?
                    .read(0..u32::MAX)
                    .into_iter()
                    .try_for_each(|hour| hour.map(drop))
            }
            _ => rollup_blob::decode(key, data).map(drop),
        }
    }
}

/// Blobs that could not be decoded.
pub(crate) type UnreadableBlobs = Vec<(BlobTable, i64, DecodeError)>;

/// The key of a row, and its blob.
pub(crate) type BlobRow = (i64, Vec<u8>);

/// Reads all blobs in a range of keys.
pub(crate) async fn range(
    connection: &mut SqliteConnection,
    table: BlobTable,
    (first, last): (i64, i64),
) -> Result<Vec<(i64, Vec<u8>)>, sqlx::Error> {
    let statement = match table {
        BlobTable::Chunk => "SELECT key, data FROM chunk WHERE key BETWEEN $1 AND $2 ORDER BY key",
        BlobTable::Day => "SELECT key, data FROM day WHERE key BETWEEN $1 AND $2 ORDER BY key",
        BlobTable::Summary => "SELECT key, data FROM summary WHERE key BETWEEN $1 AND $2 ORDER BY key",
        BlobTable::Five => "SELECT key, data FROM five WHERE key BETWEEN $1 AND $2 ORDER BY key",
        BlobTable::Hourly => "SELECT key, data FROM hourly WHERE key BETWEEN $1 AND $2 ORDER BY key",
    };
    sqlx::query_as(statement).bind(first).bind(last).fetch_all(connection).await
}

/// Reads a span of summaries; empty if there is none, or if it cannot be decoded.
pub(crate) async fn span(
    connection: &mut SqliteConnection,
    table: BlobTable,
    key: i64,
    faults: &mut UnreadableBlobs,
) -> Result<SummarySpan, sqlx::Error> {
    let mut span = SummarySpan::new();
    for (key, data) in range(connection, table, (key, key)).await? {
        match rollup_blob::decode(key, &data) {
            Ok(found) => span = found,
            Err(fault) => faults.push((table, key, fault)),
        }
    }
    Ok(span)
}

/// Reads the points of a series in consecutive hours, by hour, sorted by time.
pub(crate) async fn points(
    connection: &mut SqliteConnection,
    series: SeriesId,
    hours: std::ops::Range<u32>,
    faults: &mut UnreadableBlobs,
) -> Result<Vec<(Hour, Vec<ThinPoint>)>, sqlx::Error> {
    let mut found: Vec<(Hour, Vec<ThinPoint>)> = Vec::new();
    if hours.is_empty() {
        return Ok(found);
    }
    // Each step of the recursion is one search by key, because keys begin with the hour.
    let mut rows = sqlx::query_as(
        "WITH RECURSIVE hour(first) AS (SELECT $1 UNION ALL SELECT first + $3 FROM hour WHERE first + $3 <= $2)
         SELECT chunk.key, chunk.data FROM hour CROSS JOIN chunk ON chunk.key BETWEEN hour.first AND hour.first + $4",
    )
    .bind(key::chunks_of(series, Hour(hours.start)).0)
    .bind(key::chunks_of(series, Hour(hours.end - 1)).0)
    .bind(CHUNK_STRIDE)
    .bind(i64::from(key::SLOTS - 1))
    .fetch(connection);
    while let Some((key, data)) = rows.try_next().await? {
        let (key, data): (i64, Vec<u8>) = (key, data);
        let Some(hour) = ChunkKey::from_sql(key).map(|key| key.hour) else { continue };
        match chunk::decode(key, hour, &data) {
            Ok(samples) => match found.last_mut() {
                Some((last, before)) if *last == hour => before.extend(samples),
                _ => found.push((hour, samples)),
            },
            Err(fault) => faults.push((BlobTable::Chunk, key, fault)),
        }
    }
    Ok(found)
}

/// Reads blobs in ranges of keys that begin at the given ones and have the same length, in the order of these.
pub(crate) fn ranges(
    connection: &mut SqliteConnection,
    table: BlobTable,
    firsts: impl Iterator<Item = i64>,
    length: i64,
) -> BoxStream<'_, Result<BlobRow, sqlx::Error>> {
    let name = table.name();
    let statement = format!(
        "SELECT {name}.key, {name}.data
         FROM json_each($1) AS first CROSS JOIN {name} ON {name}.key BETWEEN first.value AND first.value + $2 - 1"
    );
    sqlx::query_as(AssertSqlSafe(statement)).bind(list(firsts)).bind(length).fetch(connection)
}

/// Joins the pieces of a day, with room for what a [`DayReader`] adds.
pub(crate) fn join(pieces: &[BlobRow]) -> Vec<u8> {
    let length: usize = pieces.iter().map(|(_, piece)| piece.len()).sum();
    let mut bytes = Vec::with_capacity(length + numbers::PAGE_PADDING);
    pieces.iter().for_each(|(_, piece)| bytes.extend(piece));
    bytes
}

/// Reads the pieces of a blob, joined; the first has this key.
async fn joined(connection: &mut SqliteConnection, table: BlobTable, key: i64) -> Result<Option<BlobRow>, sqlx::Error> {
    let pieces = range(connection, table, (key, key::day_last(key))).await?;
    Ok((!pieces.is_empty()).then(|| (key, join(&pieces))))
}

/// Reads the five-minute summaries of a series' day, as [`span`].
pub(crate) async fn fives(
    connection: &mut SqliteConnection,
    series: SeriesId,
    day: u32,
    faults: &mut UnreadableBlobs,
) -> Result<SummarySpan, sqlx::Error> {
    let Some((key, bytes)) = joined(connection, BlobTable::Five, key::day_key(series, day)).await? else {
        return Ok(SummarySpan::new());
    };
    Ok(rollup_blob::decode(key, &bytes).unwrap_or_else(|fault| {
        faults.push((BlobTable::Five, key, fault));
        SummarySpan::new()
    }))
}

/// Replaces the five-minute summaries of a series' day.
pub(crate) async fn put_fives(
    connection: &mut SqliteConnection,
    series: SeriesId,
    day: u32,
    span: &SummarySpan,
    last_page: &mut LastPage,
) -> Result<(), sqlx::Error> {
    let key = key::day_key(series, day);
    delete(connection, BlobTable::Five, (key, key::day_last(key))).await?;
    let bytes = numbers::sealed(&rollup_blob::encode(span), key);
    pieces::put(connection, BlobTable::Five, key, &bytes, last_page).await
}

/// Replaces the chunks of a series' day by one blob. It stays as it is if that would be too large.
pub(crate) async fn put_day(
    connection: &mut SqliteConnection,
    series: SeriesId,
    day: u32,
    hours: &[HourPoints],
    last_page: &mut LastPage,
) -> Result<(), sqlx::Error> {
    let key = key::day_key(series, day);
    let Some(bytes) = day::encode(key, day, hours) else { return Ok(()) };
    pieces::put(connection, BlobTable::Day, key, &bytes, last_page).await?;
    for (hour, _) in hours {
        delete(connection, BlobTable::Chunk, key::chunks_of(series, *hour)).await?;
    }
    Ok(())
}

/// Takes a day apart into the chunks of its hours, so that points can be merged into these. Hours that cannot be decoded are
/// left out.
async fn take_apart(connection: &mut SqliteConnection, key: i64, bytes: &[u8]) -> Result<(), sqlx::Error> {
    let Some((day, series)) = key::of_day(key) else { return Ok(()) };
    let mut chunks = Vec::new();
    if let Ok(mut reader) = DayReader::new(key, day, bytes.to_vec()) {
        for (hour, samples) in reader.read(0..u32::MAX).into_iter().flatten() {
            let parts = chunk::encode_hour(hour, &samples).into_iter();
            chunks.extend(parts.map(|(slot, body)| (ChunkKey { hour, series, slot }.to_sql(), body)));
        }
    }
    delete(connection, BlobTable::Day, (key, key::day_last(key))).await?;
    put(connection, BlobTable::Chunk, &chunks).await
}

/// Takes apart those of some series' days that are sealed as a whole.
pub(crate) async fn take_days_apart(
    connection: &mut SqliteConnection,
    day: u32,
    series: impl Iterator<Item = SeriesId>,
    now_ms: Millis,
) -> Result<(), sqlx::Error> {
    let first: Option<i64> = sqlx::query_scalar("SELECT key FROM day WHERE key BETWEEN $1 AND $2 LIMIT 1")
        .bind(key::days_from(day))
        .bind(key::days_from(day + 1) - 1)
        .fetch_optional(&mut *connection)
        .await?;
    // The usual case: the day is not over yet.
    if first.is_none() {
        return Ok(());
    }
    for series in series {
        let Some((key, bytes)) = joined(connection, BlobTable::Day, key::day_key(series, day)).await? else { continue };
        if BlobTable::Day.check(key, &bytes).is_ok() {
            take_apart(connection, key, &bytes).await?;
        } else {
            set_aside(connection, vec![(BlobTable::Day, key, DecodeError::Checksum)], now_ms).await?;
        }
    }
    Ok(())
}

/// Which of the given hours of series have chunks, or are in a day, as indices into the list.
pub(crate) async fn meets(
    connection: &mut SqliteConnection,
    hours: &[(SeriesId, Hour)],
) -> Result<Vec<usize>, sqlx::Error> {
    let firsts = hours.iter().map(|(series, hour)| key::chunks_of(*series, *hour).0);
    let found: Vec<i64> = sqlx::query_scalar(
        "SELECT hour.key FROM json_each($1) AS hour
         WHERE EXISTS (SELECT 1 FROM chunk WHERE chunk.key BETWEEN hour.value AND hour.value + $2)
         UNION ALL
         SELECT whole.key FROM json_each($3) AS whole WHERE EXISTS (SELECT 1 FROM day WHERE day.key = whole.value)",
    )
    .bind(list(firsts))
    .bind(i64::from(key::SLOTS) - 1)
    .bind(list(hours.iter().map(|(series, hour)| key::day_key(*series, hour.day()))))
    .fetch_all(connection)
    .await?;
    Ok(found.into_iter().filter_map(|place| usize::try_from(place).ok()).collect())
}

/// Writes blobs, and replaces those with the same keys.
pub(crate) async fn put(
    connection: &mut SqliteConnection,
    table: BlobTable,
    bodies: &[(i64, Vec<u8>)],
) -> Result<(), sqlx::Error> {
    for some in bodies.chunks(ROWS) {
        let rows = if some.len() == ROWS { ROWS } else { 1 };
        for few in some.chunks(rows) {
            let mut query = sqlx::query(AssertSqlSafe(put_statement(table, rows)));
            for (key, body) in few {
                query = query.bind(*key).bind(numbers::sealed(body, *key));
            }
            query.execute(&mut *connection).await?;
        }
    }
    Ok(())
}

fn put_statement(table: BlobTable, rows: usize) -> Arc<str> {
    format!("INSERT OR REPLACE INTO {} (key, data) VALUES {}", table.name(), pairs(rows)).into()
}

/// Parameters for this many rows of two columns. They are anonymous: SQLite treats `$1` as a name, and compares each
/// parameter's name with all earlier ones, which takes as long as writing the rows.
pub(crate) fn pairs(rows: usize) -> String {
    vec!["(?, ?)"; rows].join(", ")
}

/// Numbers as one parameter for `json_each`.
pub(crate) fn list(numbers: impl Iterator<Item = i64>) -> String {
    serde_json::Value::from_iter(numbers).to_string()
}

/// Deletes a range of keys.
pub(crate) async fn delete(
    connection: &mut SqliteConnection,
    table: BlobTable,
    (first, last): (i64, i64),
) -> Result<u64, sqlx::Error> {
    let statement = match table {
        BlobTable::Chunk => "DELETE FROM chunk WHERE key BETWEEN $1 AND $2",
        BlobTable::Day => "DELETE FROM day WHERE key BETWEEN $1 AND $2",
        BlobTable::Summary => "DELETE FROM summary WHERE key BETWEEN $1 AND $2",
        BlobTable::Five => "DELETE FROM five WHERE key BETWEEN $1 AND $2",
        BlobTable::Hourly => "DELETE FROM hourly WHERE key BETWEEN $1 AND $2",
    };
    Ok(sqlx::query(statement).bind(first).bind(last).execute(connection).await?.rows_affected())
}

/// Moves damaged blobs to their own table, if they have not changed meanwhile.
pub(crate) async fn set_aside(
    connection: &mut SqliteConnection,
    faults: UnreadableBlobs,
    now_ms: Millis,
) -> Result<(), sqlx::Error> {
    for (table, key, _) in faults {
        let found = if table.has_pieces() {
            joined(connection, table, key).await?.into_iter().collect()
        } else {
            range(connection, table, (key, key)).await?
        };
        for (key, data) in found {
            let Err(fault) = table.check(key, &data) else { continue };
            let (series, from_ms) = table.describe(key);
            tracing::error!(
                place = table.name(), key, series, from_ms, bytes = data.len(), reason = %fault,
                consequence = "the rest is unchanged",
                hint = "check this machine's disk and memory",
                "a damaged part of the time-series store was moved to its table `damaged`",
            );
            sqlx::query("INSERT INTO damaged (place, key, found_ms, reason, data) VALUES ($1, $2, $3, $4, $5)")
                .bind(table.name())
                .bind(key)
                .bind(now_ms)
                .bind(fault.to_string())
                .bind(&data)
                .execute(&mut *connection)
                .await?;
            if table == BlobTable::Day {
                // What is sound goes on as chunks.
                take_apart(connection, key, &data).await?;
            } else {
                delete(connection, table, (key, if table.has_pieces() { key::day_last(key) } else { key })).await?;
            }
        }
        sqlx::query("DELETE FROM damaged WHERE id <= (SELECT MAX(id) FROM damaged) - $1")
            .bind(DAMAGED_MAX)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}
