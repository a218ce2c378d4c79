//! Sealing: the points of a series that came for an hour go from `head` into that hour's chunk.
//!
//! It makes no difference whether the hour has a chunk already: late points are merged with what is there, a point that
//! is there already changes nothing, and of two values at one time the one that was written last counts.
//!
//! Whoever calls does it in a transaction, in which points are always in one place: `head` or a chunk.

use muster_topics::Millis;
use sqlx::SqliteConnection;

use super::{
    Summary,
    blobs::{self, Faults, Table},
    chunk,
    key::{self, ChunkKey, Hour, Key, SLOTS, SeriesId},
    span,
    thin::Sample,
};

/// The most rows that are sealed at once: two full chunks, some ten milliseconds' work.
const ROWS_MAX: usize = 2 * chunk::POINTS_MAX;

/// Part of an hour: where it begins and ends, whether it has a chunk, and what came for it.
struct Part {
    first: u16,
    end: u16,
    stored: bool,
    came: Vec<Sample>,
}

/// Reads rows of `head`.
pub(crate) async fn head(
    connection: &mut SqliteConnection,
    series: SeriesId,
    times: std::ops::RangeInclusive<Millis>,
    rows_max: usize,
) -> Result<Vec<Sample>, sqlx::Error> {
    let (first, last) = key::stretch(series, times);
    let rows: Vec<(i64, f64)> =
        sqlx::query_as("SELECT key, value FROM head WHERE key BETWEEN $1 AND $2 ORDER BY key LIMIT $3")
            .bind(first)
            .bind(last)
            .bind(i64::try_from(rows_max).unwrap_or(i64::MAX))
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(|(key, value)| (Key::from_sql(key).at_ms(), value)).collect())
}

/// Seals what came for an hour, or the earliest of it where that is very much. Gives how many rows that were.
pub(crate) async fn seal(
    tx: &mut SqliteConnection,
    series: SeriesId,
    hour: Hour,
    now_ms: Millis,
) -> Result<usize, sqlx::Error> {
    let came = head(tx, series, hour.times(), ROWS_MAX).await?;
    let (Some(first), Some(last)) = (came.first(), came.last()) else { return Ok(0) };
    let (count, stretch) = (came.len(), key::stretch(series, first.0..=last.0));
    let starts: Vec<i64> = sqlx::query_scalar("SELECT key FROM chunk WHERE key BETWEEN $1 AND $2 ORDER BY key")
        .bind(key::chunks_of(series, hour).0)
        .bind(key::chunks_of(series, hour).1)
        .fetch_all(&mut *tx)
        .await?;
    let starts: Vec<u16> = starts.into_iter().filter_map(ChunkKey::from_sql).map(|key| key.slot).collect();
    let mut changed = false;
    let mut whole = None;
    for part in parts(hour, &starts, came) {
        let alone = (part.first, part.end) == (0, SLOTS);
        if let Some(merged) = seal_part(tx, series, hour, part, now_ms).await? {
            changed = true;
            whole = alone.then(|| Summary::over(merged.iter().map(|sample| sample.1))).flatten();
        }
    }
    if changed {
        let summary = match whole {
            Some(summary) => Some(summary),
            None => summarise(tx, series, hour, now_ms).await?,
        };
        if let Some(summary) = summary {
            put_summary(tx, series, hour, summary).await?;
        }
    }
    sqlx::query("DELETE FROM head WHERE key BETWEEN $1 AND $2").bind(stretch.0).bind(stretch.1).execute(tx).await?;
    Ok(count)
}

/// Which chunk each point belongs into: the last that begins before it, up to the next.
fn parts(hour: Hour, starts: &[u16], came: Vec<Sample>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for sample in came {
        let slot = hour.slot(sample.0);
        if let Some(part) = parts.last_mut().filter(|part| slot < part.end) {
            part.came.push(sample);
            continue;
        }
        let before = starts.partition_point(|start| *start <= slot);
        let stored = before.checked_sub(1).map(|index| starts[index]);
        let end = starts.get(before).copied().unwrap_or(SLOTS);
        parts.push(Part { first: stored.unwrap_or(0), end, stored: stored.is_some(), came: vec![sample] });
    }
    parts
}

/// Merges what came into one part of an hour. Gives what is there then, or nothing if that is as before.
async fn seal_part(
    tx: &mut SqliteConnection,
    series: SeriesId,
    hour: Hour,
    part: Part,
    now_ms: Millis,
) -> Result<Option<Vec<Sample>>, sqlx::Error> {
    let key = ChunkKey { hour, series, slot: part.first }.to_sql();
    let mut merged = part.came;
    if part.stored {
        let mut before = Vec::new();
        for (key, data) in blobs::range(tx, Table::Chunk, (key, key)).await? {
            match chunk::decode(key, hour, &data) {
                Ok(samples) => before = samples,
                Err(fault) => blobs::set_aside(tx, vec![(Table::Chunk, key, fault)], now_ms).await?,
            }
        }
        let count = before.len();
        merged = chunk::merge(before.clone(), merged);
        if merged.len() == count && same(&merged, &before) {
            return Ok(None);
        }
    }
    let chunks: Vec<(i64, Vec<u8>)> = chunk::divide(hour, part.first, part.end, &merged)
        .into_iter()
        .map(|(slot, samples)| (ChunkKey { hour, series, slot }.to_sql(), chunk::encode(hour, samples)))
        .collect();
    if part.stored && chunks.iter().all(|(other, _)| *other != key) {
        blobs::delete(tx, Table::Chunk, (key, key)).await?;
    }
    blobs::put(tx, Table::Chunk, &chunks).await?;
    Ok(Some(merged))
}

fn same(one: &[Sample], other: &[Sample]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.0 == other.0 && one.1.to_bits() == other.1.to_bits())
}

/// What an hour of several chunks comes to.
async fn summarise(
    tx: &mut SqliteConnection,
    series: SeriesId,
    hour: Hour,
    now_ms: Millis,
) -> Result<Option<Summary>, sqlx::Error> {
    let mut faults = Faults::new();
    let found = blobs::points(tx, series, hour.0..hour.0 + 1, &mut faults).await?;
    blobs::set_aside(tx, faults, now_ms).await?;
    Ok(found.first().and_then(|(_, samples)| Summary::over(samples.iter().map(|sample| sample.1))))
}

/// Keeps what an hour comes to, and so, too, that it has to be rolled up.
async fn put_summary(
    tx: &mut SqliteConnection,
    series: SeriesId,
    hour: Hour,
    summary: Summary,
) -> Result<(), sqlx::Error> {
    let body = span::encode(&[(0, summary)].into());
    blobs::put(tx, Table::Summary, &[(key::series_first(series, hour.0), body)]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_find_their_part() {
        let hour = Hour(100);
        let at = |slot: i64| hour.start_ms() + slot * key::HOUR_MS / i64::from(SLOTS) + 1;
        let check = |starts: &[u16], slots: &[i64], wanted: &[(u16, u16, bool, usize)]| {
            let came = slots.iter().map(|slot| (at(*slot), 0.0)).collect();
            let found: Vec<_> =
                parts(hour, starts, came).iter().map(|p| (p.first, p.end, p.stored, p.came.len())).collect();
            assert_eq!(found, wanted, "{starts:?} {slots:?}");
        };
        check(&[], &[3, 500], &[(0, 512, false, 2)]);
        check(&[0], &[3, 500], &[(0, 512, true, 2)]);
        check(&[256], &[3, 4, 500], &[(0, 256, false, 2), (256, 512, true, 1)]);
        check(&[0, 128, 256], &[127, 128, 255, 511], &[(0, 128, true, 1), (128, 256, true, 2), (256, 512, true, 1)]);
    }
}
