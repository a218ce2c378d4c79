//! Rolls up: summaries of a series' hours go into its day by five minutes and its sixteen days by the hour.
//!
//! Only hours that were sealed since the last rollup are read; `summary` has a row of each. All others
//! stay as they are, also when their points have been deleted.
//!
//! The chunks of a day that is over become one blob then, of which a point takes half the space.

use muster_topics::Millis;
use sqlx::SqliteConnection;

use super::{
    blobs::{self, BlobTable, UnreadableBlobs},
    key::{self, DAY_HOURS, Hour, SeriesId},
    pieces::LastPage,
    rollup_blob,
};
use muster_promql::StretchSummary;

/// The last pages of the tables that roll-ups append to.
#[derive(Debug, Default)]
pub(crate) struct LastPages {
    day: LastPage,
    fives: LastPage,
}

/// Rolls up the new hours of a series' day, and if it is over, seals it as a whole. Returns how many hours were new.
pub(crate) async fn roll(
    tx: &mut SqliteConnection,
    series: SeriesId,
    day: u32,
    over: bool,
    now_ms: Millis,
    last: &mut LastPages,
) -> Result<usize, sqlx::Error> {
    let hours = day * DAY_HOURS..(day + 1) * DAY_HOURS;
    let stretch = (key::series_first(series, hours.start), key::series_first(series, hours.end - 1));
    let rows = blobs::range(tx, BlobTable::Summary, stretch).await?;
    let (Some(first), Some(latest)) = (rows.first(), rows.last()) else { return Ok(0) };
    let hours = if over { hours } else { key::of_series_first(first.0).1..key::of_series_first(latest.0).1 + 1 };
    let mut faults = UnreadableBlobs::new();
    let points = blobs::points(tx, series, hours, &mut faults).await?;
    let hourly_key = rollup_blob::hourly_key(series, Hour(day * DAY_HOURS));
    let mut fives = blobs::fives(tx, series, day, &mut faults).await?;
    let mut hourly = blobs::span(tx, BlobTable::Hourly, hourly_key, &mut faults).await?;
    for (key, data) in &rows {
        let hour = Hour(key::of_series_first(*key).1);
        let mut summary = match rollup_blob::decode(*key, data) {
            Ok(span) => span.into_values().reduce(StretchSummary::join),
            Err(fault) => {
                faults.push((BlobTable::Summary, *key, fault));
                None
            }
        };
        // Points are the better source; without them the earlier summary stays.
        if let Some((_, samples)) = points.iter().find(|(of, _)| *of == hour) {
            fives.retain(|place, _| !rollup_blob::fives_of(hour).contains(place));
            fives.extend(rollup_blob::by_fives(hour, samples));
            if !faults.iter().any(|(table, key, _)| is_of(*table, *key, hour)) {
                summary = StretchSummary::over(samples.iter().map(|sample| sample.1)).or(summary);
            }
        }
        hourly.extend(summary.map(|summary| (rollup_blob::place_of(hour), summary)));
    }
    blobs::set_aside(tx, faults, now_ms).await?;
    if !fives.is_empty() {
        blobs::put_fives(tx, series, day, &fives, &mut last.fives).await?;
    }
    if !hourly.is_empty() {
        blobs::put(tx, BlobTable::Hourly, &[(hourly_key, rollup_blob::encode(&hourly))]).await?;
    }
    blobs::delete(tx, BlobTable::Summary, stretch).await?;
    if over {
        blobs::put_day(tx, series, day, &points, &mut last.day).await?;
    }
    Ok(rows.len())
}

/// Whether this is a chunk of the hour.
fn is_of(table: BlobTable, key: i64, hour: Hour) -> bool {
    table == BlobTable::Chunk && key::ChunkKey::from_sql(key).is_some_and(|key| key.hour == hour)
}
