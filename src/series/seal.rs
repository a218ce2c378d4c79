//! Seals an hour: moves its points from `head` into chunks, some series at a time.
//!
//! The hour may already have chunks: late points are merged, a point that
//! exists changes nothing, and of two values at one time the later write wins. A day that is sealed as a whole is taken apart
//! first, and put together again when it is rolled up the next time.
//!
//! The caller does it in a transaction, so a point is always in one place: `head` or a chunk.

use std::collections::BTreeMap;

use muster_topics::Millis;
use sqlx::SqliteConnection;

use super::{
    blobs::{self, BlobTable, UnreadableBlobs},
    chunk,
    downsample::ThinPoint,
    head,
    key::{self, ChunkKey, Hour, SLOTS, SeriesId},
    rollup_blob,
};
use muster_promql::StretchSummary;

/// A part of an hour: its start and end, whether it has a chunk, and its new points.
struct HourPart {
    first: u16,
    end: u16,
    stored: bool,
    came: Vec<ThinPoint>,
}

/// Seals new points of an hour, for some series starting at an id. Returns the id at which to continue, or `None` if
/// there are no more.
pub(crate) async fn seal(
    tx: &mut SqliteConnection,
    hour: Hour,
    from: i64,
    now_ms: Millis,
) -> Result<Option<i64>, sqlx::Error> {
    let Some(mut came) = head::of_hour(tx, hour, from).await? else { return Ok(None) };
    put(tx, hour, std::mem::take(&mut came.points), now_ms).await?;
    head::delete(tx, &came).await?;
    Ok(Some(came.next()))
}

/// Merges new points of an hour into its chunks, for all these series together: a statement costs as much as many rows.
async fn put(
    tx: &mut SqliteConnection,
    hour: Hour,
    came: BTreeMap<SeriesId, Vec<ThinPoint>>,
    now_ms: Millis,
) -> Result<(), sqlx::Error> {
    blobs::take_days_apart(tx, hour.day(), came.keys().copied(), now_ms).await?;
    let mut stored = stored(tx, hour, &came).await?;
    let (mut chunks, mut summaries, mut several) = (Vec::with_capacity(came.len()), Vec::new(), Vec::new());
    for (series, came) in came {
        let starts = stored.remove(&series).unwrap_or_default();
        let (mut changed, mut whole) = (false, None);
        for part in parts(hour, &starts, came) {
            let alone = (part.first, part.end) == (0, SLOTS);
            if let Some(merged) = seal_part(tx, series, hour, part, &mut chunks, now_ms).await? {
                changed = true;
                whole = alone.then(|| StretchSummary::over(merged.iter().map(|sample| sample.1))).flatten();
            }
        }
        match whole {
            Some(summary) => summaries.push((series, summary)),
            None if changed => several.push(series),
            None => {}
        }
    }
    blobs::put(tx, BlobTable::Chunk, &chunks).await?;
    for series in several {
        summaries.extend(summarise(tx, series, hour, now_ms).await?.map(|summary| (series, summary)));
    }
    // Such a row also says that the hour must be rolled up.
    let body = |(series, summary)| (key::series_first(series, hour.0), rollup_blob::encode(&[(0, summary)].into()));
    blobs::put(tx, BlobTable::Summary, &summaries.into_iter().map(body).collect::<Vec<_>>()).await
}

/// The starts of the chunks of an hour, for some series.
async fn stored(
    tx: &mut SqliteConnection,
    hour: Hour,
    of: &BTreeMap<SeriesId, Vec<ThinPoint>>,
) -> Result<BTreeMap<SeriesId, Vec<u16>>, sqlx::Error> {
    let mut stored: BTreeMap<SeriesId, Vec<u16>> = BTreeMap::new();
    let (Some((first, _)), Some((last, _))) = (of.first_key_value(), of.last_key_value()) else { return Ok(stored) };
    let keys: Vec<i64> = sqlx::query_scalar("SELECT key FROM chunk WHERE key BETWEEN $1 AND $2 ORDER BY key")
        .bind(key::chunks_of(*first, hour).0)
        .bind(key::chunks_of(*last, hour).1)
        .fetch_all(tx)
        .await?;
    for key in keys.into_iter().filter_map(ChunkKey::from_sql) {
        stored.entry(key.series).or_default().push(key.slot);
    }
    Ok(stored)
}

/// Assigns points to chunks: to the last one that begins before the point.
fn parts(hour: Hour, starts: &[u16], came: Vec<ThinPoint>) -> Vec<HourPart> {
    let mut parts: Vec<HourPart> = Vec::new();
    for sample in came {
        let slot = hour.slot(sample.0);
        if let Some(part) = parts.last_mut().filter(|part| slot < part.end) {
            part.came.push(sample);
            continue;
        }
        let before = starts.partition_point(|start| *start <= slot);
        let stored = before.checked_sub(1).map(|index| starts[index]);
        let end = starts.get(before).copied().unwrap_or(SLOTS);
        parts.push(HourPart { first: stored.unwrap_or(0), end, stored: stored.is_some(), came: vec![sample] });
    }
    parts
}

/// Merges new points into one part of an hour. Returns the points that it has then, also in `chunks`; `None` if nothing
/// changes.
async fn seal_part(
    tx: &mut SqliteConnection,
    series: SeriesId,
    hour: Hour,
    part: HourPart,
    chunks: &mut Vec<(i64, Vec<u8>)>,
    now_ms: Millis,
) -> Result<Option<Vec<ThinPoint>>, sqlx::Error> {
    let key = ChunkKey { hour, series, slot: part.first }.to_sql();
    let mut merged = part.came;
    if part.stored {
        let mut before = Vec::new();
        for (key, data) in blobs::range(tx, BlobTable::Chunk, (key, key)).await? {
            match chunk::decode(key, hour, &data) {
                Ok(samples) => before = samples,
                Err(fault) => blobs::set_aside(tx, vec![(BlobTable::Chunk, key, fault)], now_ms).await?,
            }
        }
        let count = before.len();
        merged = chunk::merge(before.clone(), merged);
        if merged.len() == count && same(&merged, &before) {
            return Ok(None);
        }
    }
    let divided = chunk::divide(hour, part.first, part.end, &merged);
    if part.stored && divided.iter().all(|(slot, _)| *slot != part.first) {
        blobs::delete(tx, BlobTable::Chunk, (key, key)).await?;
    }
    chunks.extend(
        divided
            .into_iter()
            .map(|(slot, samples)| (ChunkKey { hour, series, slot }.to_sql(), chunk::encode(hour, samples))),
    );
    Ok(Some(merged))
}

fn same(one: &[ThinPoint], other: &[ThinPoint]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.0 == other.0 && one.1.to_bits() == other.1.to_bits())
}

/// The summary of an hour with several chunks.
async fn summarise(
    tx: &mut SqliteConnection,
    series: SeriesId,
    hour: Hour,
    now_ms: Millis,
) -> Result<Option<StretchSummary>, sqlx::Error> {
    let mut faults = UnreadableBlobs::new();
    let found = blobs::points(tx, series, hour.0..hour.0 + 1, &mut faults).await?;
    blobs::set_aside(tx, faults, now_ms).await?;
    Ok(found.first().and_then(|(_, samples)| StretchSummary::over(samples.iter().map(|sample| sample.1))))
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
