//! The table `head`: points until their hour is sealed.
//!
//! Its keys begin with five minutes ([`Slice`]), so the points of a series lie in as many places as there are slices. A query first
//! finds the slices that have any points: mostly those of the last hour, and a few of hosts that have returned.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::Arc,
};

use futures_util::TryStreamExt;
use muster_topics::Millis;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{
    blobs::{self, list},
    chunk,
    downsample::ThinPoint,
    key::{Hour, PointKey, SLICE_MS, SLICE_STRIDE, SeriesId, Slice},
};

/// Rows per statement, largest first. A statement costs about as much as twenty rows.
const ROWS: [usize; 4] = [256, 128, 64, 16];
/// If at most this many rows are missing, a statement is filled with copies instead of being followed by a smaller one.
const FILLED_MAX: usize = 32;
/// Largest number of rows that are sealed at once: two full chunks, some ten milliseconds of work.
const SEALED_MAX: usize = 2 * chunk::POINTS_MAX;
/// Number of series that are sealed at once: measured every ten seconds, each has 360 points in an hour.
const SEALED_SERIES: i64 = 32;

/// Prepared statements for these numbers of rows.
#[derive(Debug)]
pub(crate) struct InsertStatements([(usize, Arc<str>); ROWS.len()]);

impl InsertStatements {
    pub(crate) fn new() -> Self {
        Self(ROWS.map(|rows| (rows, insert_statement(rows))))
    }

    /// The statement for the next rows of this many: the largest that is full, or one that is nearly full with the
    /// rest.
    fn next(&self, rows: usize) -> &(usize, Arc<str>) {
        let [first, rest @ ..] = &self.0;
        let least = rest.last().unwrap_or(first).0;
        let fits = |statement: &&(usize, Arc<str>)| statement.0 <= (rows + FILLED_MAX).max(least);
        self.0.iter().find(fits).unwrap_or(first)
    }

    /// Inserts rows; existing ones keep their value or get the new one, as the statement says. A statement that is not
    /// full is filled with copies of its last row, which change nothing, so that a few prepared statements are enough.
    pub(crate) async fn insert(
        &self,
        tx: &mut SqliteConnection,
        rows: &mut Vec<(PointKey, f64)>,
    ) -> Result<(), sqlx::Error> {
        // In the order of the file; of equal keys the last counts, here as in the table.
        rows.sort_by_key(|(key, _)| *key);
        let mut rest = &rows[..];
        while let Some(last) = rest.last() {
            let (size, statement) = self.next(rest.len());
            let (now, later) = rest.split_at(rest.len().min(*size));
            let filling = std::iter::repeat_n(now.last().unwrap_or(last), size - now.len());
            let mut query = sqlx::query(AssertSqlSafe(statement.clone()));
            for (key, value) in now.iter().chain(filling) {
                query = query.bind(key.to_sql()).bind(*value);
            }
            query.execute(&mut *tx).await?;
            rest = later;
        }
        rows.clear();
        Ok(())
    }
}

fn insert_statement(rows: usize) -> Arc<str> {
    format!(
        "INSERT INTO head (key, value) VALUES {}
         ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value IS NOT excluded.value",
        blobs::pairs(rows)
    )
    .into()
}

/// Slices with points of any series, with one search for each.
pub(crate) async fn slices(
    connection: &mut SqliteConnection,
    times: RangeInclusive<Millis>,
) -> Result<Vec<Slice>, sqlx::Error> {
    let numbers: Vec<i64> = sqlx::query_scalar(
        "WITH RECURSIVE slice(number) AS (
             SELECT (SELECT key / $3 FROM head WHERE key BETWEEN $1 AND $2 ORDER BY key LIMIT 1)
             UNION ALL
             SELECT (SELECT head.key / $3 FROM head WHERE head.key BETWEEN (slice.number + 1) * $3 AND $2
                     ORDER BY head.key LIMIT 1)
             FROM slice WHERE slice.number IS NOT NULL
         ) SELECT number FROM slice WHERE number IS NOT NULL",
    )
    .bind(Slice::of(*times.start()).keys().0)
    .bind(Slice::of(*times.end()).keys().1)
    .bind(SLICE_STRIDE)
    .fetch_all(connection)
    .await?;
    Ok(numbers.into_iter().map(Slice).collect())
}

/// The points of some series in some slices, which are sorted, as are the points of each.
pub(crate) async fn points(
    connection: &mut SqliteConnection,
    series: &[SeriesId],
    slices: &[Slice],
) -> Result<Vec<Vec<ThinPoint>>, sqlx::Error> {
    let mut found = vec![Vec::new(); series.len()];
    if slices.is_empty() {
        return Ok(found);
    }
    let places: HashMap<SeriesId, usize> = series.iter().copied().zip(0..).collect();
    // In the order of the file.
    let mut rows = sqlx::query_as(
        "SELECT head.key, head.value FROM json_each($1) AS slice CROSS JOIN json_each($2) AS series CROSS JOIN head
             ON head.key BETWEEN slice.value + series.value AND slice.value + series.value + $3",
    )
    .bind(list(slices.iter().map(|slice| slice.keys().0)))
    .bind(list(series.iter().map(|series| series.to_sql() * SLICE_MS)))
    .bind(SLICE_MS - 1)
    .fetch(connection);
    while let Some((key, value)) = rows.try_next().await? {
        let key = PointKey::from_sql(key);
        let place = key.series().and_then(|series| places.get(&series));
        if let Some(points) = place.and_then(|place| found.get_mut(*place)) {
            points.push((key.at_ms(), value));
        }
    }
    Ok(found)
}

/// Which of the given hours of series have points, as indices into the list.
pub(crate) async fn meets(
    connection: &mut SqliteConnection,
    hours: &[(SeriesId, Hour)],
) -> Result<Vec<usize>, sqlx::Error> {
    let of = |(_, hour): &(SeriesId, Hour)| *hour;
    let (Some(first), Some(last)) = (hours.iter().map(of).min(), hours.iter().map(of).max()) else {
        return Ok(Vec::new());
    };
    let slices = slices(connection, first.start_ms()..=*last.times().end()).await?;
    let (mut places, mut firsts) = (Vec::new(), Vec::new());
    for (place, (series, hour)) in hours.iter().enumerate() {
        for slice in within(&slices, &hour.times()) {
            places.push(place);
            firsts.push(slice.first(*series));
        }
    }
    // Usually there are none, when whole hours arrive at once.
    if firsts.is_empty() {
        return Ok(Vec::new());
    }
    let found: Vec<i64> = sqlx::query_scalar(
        "SELECT first.key FROM json_each($1) AS first
         WHERE EXISTS (SELECT 1 FROM head WHERE head.key BETWEEN first.value AND first.value + $2)",
    )
    .bind(list(firsts.into_iter()))
    .bind(SLICE_MS - 1)
    .fetch_all(connection)
    .await?;
    Ok(found.into_iter().filter_map(|index| places.get(usize::try_from(index).ok()?).copied()).collect())
}

/// The slices that overlap a range of time.
pub(crate) fn within<'a>(slices: &'a [Slice], times: &RangeInclusive<Millis>) -> &'a [Slice] {
    let (first, last) = (Slice::of(*times.start()), Slice::of(*times.end()));
    let start = slices.partition_point(|slice| *slice < first);
    let end = slices.partition_point(|slice| *slice <= last);
    slices.get(start..end).unwrap_or_default()
}

/// New points of some series in one hour.
#[derive(Debug)]
pub(crate) struct HourArrivals {
    /// By series, sorted by time.
    pub(crate) points: BTreeMap<SeriesId, Vec<ThinPoint>>,
    /// The first series id that was read.
    first: SeriesId,
    /// The slices of the points.
    slices: Vec<Slice>,
    /// The last point that was read, if there may be more.
    cut: Option<PointKey>,
}

impl HourArrivals {
    /// The series id at which to continue.
    pub(crate) fn next(&self) -> i64 {
        self.first.to_sql() + if self.cut.is_some() { 0 } else { SEALED_SERIES }
    }
}

/// The distance in keys between the first series that are sealed together and the next; shorter at the end of a slice.
fn sealed_stride(first: SeriesId) -> i64 {
    (SEALED_SERIES * SLICE_MS).min(SLICE_STRIDE - first.to_sql() * SLICE_MS)
}

/// The first hour with points, starting at `from`.
pub(crate) async fn first_hour(tx: &mut SqliteConnection, from: Hour) -> Result<Option<Hour>, sqlx::Error> {
    let key: Option<i64> = sqlx::query_scalar("SELECT key FROM head WHERE key >= $1 ORDER BY key LIMIT 1")
        .bind(Slice::of(from.start_ms()).keys().0)
        .fetch_optional(tx)
        .await?;
    Ok(key.map(|key| PointKey::from_sql(key).slice().hour()))
}

/// The new points of an hour, for some series starting at an id; if there are very many, the earliest.
pub(crate) async fn of_hour(
    tx: &mut SqliteConnection,
    hour: Hour,
    from: i64,
) -> Result<Option<HourArrivals>, sqlx::Error> {
    let slices = slices(tx, hour.times()).await?;
    let offset: Option<i64> = sqlx::query_scalar(
        "SELECT MIN((SELECT head.key - first.value FROM head WHERE head.key BETWEEN first.value + $2 AND first.value + $3
                     ORDER BY head.key LIMIT 1))
         FROM json_each($1) AS first",
    )
    .bind(list(slices.iter().map(|slice| slice.keys().0)))
    .bind(from * SLICE_MS)
    .bind(SLICE_STRIDE - 1)
    .fetch_one(&mut *tx)
    .await?;
    let Some(first) = offset.and_then(|offset| SeriesId::new(offset / SLICE_MS)) else { return Ok(None) };
    let rows: Vec<(i64, f64)> = sqlx::query_as(
        "SELECT head.key, head.value
         FROM json_each($1) AS first CROSS JOIN head ON head.key BETWEEN first.value AND first.value + $2 LIMIT $3",
    )
    .bind(list(slices.iter().map(|slice| slice.first(first))))
    .bind(sealed_stride(first) - 1)
    .bind(i64::try_from(SEALED_MAX).unwrap_or(i64::MAX))
    .fetch_all(tx)
    .await?;
    let cut = rows.last().filter(|_| rows.len() >= SEALED_MAX).map(|(key, _)| PointKey::from_sql(*key));
    let mut points: BTreeMap<SeriesId, Vec<ThinPoint>> = BTreeMap::new();
    for (key, value) in rows {
        let key = PointKey::from_sql(key);
        if let Some(series) = key.series() {
            points.entry(series).or_default().push((key.at_ms(), value));
        }
    }
    Ok(Some(HourArrivals { points, first, slices, cut }))
}

/// Deletes points after they were sealed, in the same transaction in which they were read.
pub(crate) async fn delete(tx: &mut SqliteConnection, came: &HourArrivals) -> Result<(), sqlx::Error> {
    for slice in &came.slices {
        let first = slice.first(came.first);
        let last = first + sealed_stride(came.first) - 1;
        let last = came.cut.map_or(last, |cut| last.min(cut.to_sql()));
        if first <= last {
            sqlx::query("DELETE FROM head WHERE key BETWEEN $1 AND $2")
                .bind(first)
                .bind(last)
                .execute(&mut *tx)
                .await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ID_MAX;

    #[test]
    fn rows_go_in_few_statements_that_are_nearly_full() {
        let statements = InsertStatements::new();
        let plan = |mut rows: usize| {
            let mut plan = Vec::new();
            while rows > 0 {
                let size = statements.next(rows).0;
                plan.push(size);
                rows -= rows.min(size);
            }
            plan
        };
        for (rows, wanted) in [
            (1, &[16][..]),
            (17, &[16, 16]),
            (40, &[64]),
            (60, &[64]),
            (64, &[64]),
            (100, &[128]),
            (120, &[128]),
            (180, &[128, 64]),
            (240, &[256]),
            (600, &[256, 256, 64, 16, 16]),
        ] {
            assert_eq!(plan(rows), wanted, "{rows}");
        }
    }

    #[test]
    fn the_last_series_of_a_slice_are_sealed_without_the_first_of_the_next() {
        let stride = |number| sealed_stride(SeriesId::new(number).unwrap());
        let last = i64::from(ID_MAX);
        assert_eq!(
            [1, last - SEALED_SERIES + 1, last].map(stride),
            [SEALED_SERIES * SLICE_MS, SEALED_SERIES * SLICE_MS, SLICE_MS]
        );
    }

    #[test]
    fn slices_of_a_range_are_found() {
        let at = |slice: i64| crate::key::TIME_FIRST_MS + slice * SLICE_MS;
        let slices = [3, 4, 7].map(Slice);
        for (times, wanted) in [
            (at(0)..=at(3) - 1, &[][..]),
            (at(0)..=at(3), &slices[..1]),
            (at(4) + SLICE_MS - 1..=at(7), &slices[1..]),
            (at(5)..=at(7) - 1, &[]),
            (Millis::MIN..=Millis::MAX, &slices),
            (at(8)..=at(2), &[]),
        ] {
            assert_eq!(within(&slices, &times), wanted, "{times:?}");
        }
    }
}
