//! Reads the sealed points of series, from days and from chunks.
//!
//! One statement each reads those of all series, and so it is for five-minute summaries. Decoding takes most of the time, so while the rows arrive, groups of them
//! are decoded on other threads, and here as long as these are busy.

use std::{
    collections::HashMap,
    io,
    ops::{Range, RangeInclusive},
    sync::LazyLock,
    thread,
};

use futures_util::TryStreamExt;
use muster_topics::Millis;
use sqlx::SqliteConnection;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    blobs::{self, BlobRow, BlobTable, UnreadableBlobs},
    chunk,
    day::DayReader,
    downsample::ThinPoint,
    key::{self, ChunkKey, DAY_HOURS, Hour, SeriesId},
};

/// The size of a group of blobs: it takes half a millisecond to decode, much longer than waking a thread.
const GROUP_BYTES: usize = 16 * 1024;
/// The most other threads that one question uses, if there are as many processors.
const HELPERS_MAX: usize = 3;
/// Their number. It is found once: that reads several files, which takes as long as reading a series.
static HELPERS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(0, |cores| cores.get() - 1).min(HELPERS_MAX));

/// What is to be read.
#[derive(Clone, Debug)]
pub(crate) struct SealedRange {
    /// The times.
    pub(crate) times: RangeInclusive<Millis>,
    /// The hours of these that may be in days.
    pub(crate) of_days: Range<u32>,
    /// The hours of these that may be in chunks.
    pub(crate) of_chunks: Range<u32>,
}

/// What was read of some series.
#[derive(Default)]
pub(crate) struct SealedPoints {
    /// The points of each, sorted by time.
    pub(crate) points: Vec<Vec<ThinPoint>>,
    /// Blobs that could not be decoded.
    pub(crate) faults: UnreadableBlobs,
    /// Number of days and chunks that were read.
    pub(crate) rows: usize,
}

/// Reads the points of some series.
pub(crate) async fn points(
    connection: &mut SqliteConnection,
    series: &[SeriesId],
    range: SealedRange,
) -> Result<SealedPoints, sqlx::Error> {
    let SealedRange { times, of_days, of_chunks } = range;
    let mut found = SealedPoints { points: vec![Vec::new(); series.len()], ..SealedPoints::default() };
    read(connection, BlobTable::Day, series, of_days, &mut found).await?;
    read(connection, BlobTable::Chunk, series, of_chunks, &mut found).await?;
    for points in &mut found.points {
        let outside = |sample: &ThinPoint| !times.contains(&sample.0);
        if points.first().is_some_and(outside) || points.last().is_some_and(outside) {
            points.retain(|sample| !outside(sample));
        }
    }
    Ok(found)
}

/// Reads what a table has of consecutive hours, and merges it into what was found.
async fn read(
    connection: &mut SqliteConnection,
    table: BlobTable,
    series: &[SeriesId],
    hours: Range<u32>,
    found: &mut SealedPoints,
) -> Result<(), sqlx::Error> {
    if hours.is_empty() {
        return Ok(());
    }
    let stretches = match table {
        BlobTable::Day => hours.start / DAY_HOURS..hours.end.div_ceil(DAY_HOURS),
        _ => hours.clone(),
    };
    let places: HashMap<SeriesId, usize> = series.iter().copied().zip(0..).collect();
    let groups = groups(connection, table, series, stretches, move |rows| decode(table, rows, &hours)).await?;
    for group in groups {
        for (series, points) in group.points {
            if let Some(before) = places.get(&series).and_then(|place| found.points.get_mut(*place)) {
                *before = chunk::merge(std::mem::take(before), points);
            }
        }
        found.faults.extend(group.faults);
        found.rows += group.rows;
    }
    Ok(())
}

/// Reads the blobs of series in consecutive hours or days, and decodes them in groups, each of whole series.
pub(crate) async fn groups<T: Send + 'static>(
    connection: &mut SqliteConnection,
    table: BlobTable,
    series: &[SeriesId],
    stretches: Range<u32>,
    decode: impl Fn(&[BlobRow]) -> T + Clone + Send + 'static,
) -> Result<Vec<T>, sqlx::Error> {
    let mut groups: Vec<Group<T>> = Vec::new();
    let (mut rows, mut bytes): (Vec<BlobRow>, usize) = (Vec::new(), 0);
    // Keys of these tables begin with the hour or the day, and are alike.
    let keys = series.iter().flat_map(|series| stretches.clone().map(|first| key::chunks_of(*series, Hour(first)).0));
    let mut stream = blobs::ranges(connection, table, keys, i64::from(key::SLOTS));
    while let Some(row) = stream.try_next().await? {
        let of = |row: &BlobRow| key::of_day(row.0).map(|(_, series)| series);
        if bytes >= GROUP_BYTES && rows.last().is_some_and(|last| of(last) != of(&row)) {
            let rows = std::mem::take(&mut rows);
            bytes = 0;
            groups.push(if groups.iter().filter(|group| group.is_busy()).count() < *HELPERS {
                let decode = decode.clone();
                Group::There(spawn_blocking(move || decode(&rows)))
            } else {
                Group::Here(decode(&rows))
            });
        }
        bytes += row.1.len();
        rows.push(row);
    }
    groups.push(Group::Here(decode(&rows)));
    let mut decoded = Vec::with_capacity(groups.len());
    for group in groups {
        decoded.push(match group {
            Group::Here(done) => done,
            Group::There(running) => running.await.map_err(|error| sqlx::Error::Io(io::Error::other(error)))?,
        });
    }
    Ok(decoded)
}

/// Rows that are decoded together: those of some series.
enum Group<T> {
    Here(T),
    There(JoinHandle<T>),
}

impl<T> Group<T> {
    fn is_busy(&self) -> bool {
        matches!(self, Self::There(running) if !running.is_finished())
    }
}

/// The points of some series.
#[derive(Default)]
struct DecodedGroup {
    points: Vec<(SeriesId, Vec<ThinPoint>)>,
    faults: UnreadableBlobs,
    rows: usize,
}

/// Decodes rows, which are sorted by series and time, as far as they are in a range of hours.
fn decode(table: BlobTable, rows: &[BlobRow], hours: &Range<u32>) -> DecodedGroup {
    let mut group = DecodedGroup::default();
    for rows in rows.chunk_by(|one, next| key::day_last(one.0) == key::day_last(next.0)) {
        let Some(key) = rows.first().and_then(|(key, _)| ChunkKey::from_sql(*key)) else { continue };
        let before = group.points.last().map(|(series, _)| *series);
        if before != Some(key.series) {
            group.points.push((key.series, Vec::new()));
        }
        let Some((_, points)) = group.points.last_mut() else { continue };
        if table == BlobTable::Day {
            decode_day(rows, hours, points, &mut group.faults);
            group.rows += 1;
            continue;
        }
        for (of, data) in rows {
            match chunk::decode(*of, key.hour, data) {
                Ok(samples) => points.extend(samples),
                Err(fault) => group.faults.push((table, *of, fault)),
            }
            group.rows += 1;
        }
    }
    group
}

/// Decodes the pieces of a day.
fn decode_day(pieces: &[BlobRow], hours: &Range<u32>, points: &mut Vec<ThinPoint>, faults: &mut UnreadableBlobs) {
    let Some((day, series)) = pieces.first().and_then(|(key, _)| key::of_day(*key)) else { return };
    let key = key::day_key(series, day);
    let found = match DayReader::new(key, day, blobs::join(pieces)) {
        Ok(mut reader) => reader.append_to(hours.clone(), points),
        Err(fault) => vec![fault],
    };
    faults.extend(found.into_iter().map(|fault| (BlobTable::Day, key, fault)));
}
