//! A consistent view of the store: points and summaries of a series from `head`, chunks and rollups, as if they were in one
//! place.
//!
//! A view is a transaction, during which sealing cannot move a point.
//!
//! # Error bounds of summaries
//!
//! A summary covers all points in its five minutes or hour, whose bounds are whole ones of UTC. So over a range with such
//! bounds summaries equal points: count, least, greatest, first, last and increase exactly, the
//! sum but for its rounding (a relative error of 2^-52 for each point). Over any other range they equal points
//! over the range widened to whole summaries, by less than one at each end; count and sum of
//! non-negative values are then not less than the true ones, the greatest value is not less and the least is not greater.
//! Data older than the retention of a resolution is taken from the next coarser one.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use futures_util::TryStreamExt;
use muster_topics::Millis;
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction};

use super::{
    blobs::{self, BlobRow, BlobTable, UnreadableBlobs},
    chunk,
    downsample::ThinPoint,
    head,
    key::{self, DAY_HOURS, HOUR_MS, Hour, SLICE_MS, SeriesId, Slice},
    maintenance::{RetentionBounds, kept},
    rollup_blob::{self, FIVE_MS, FIVES, Resolution, SPAN_HOURS},
    sealed::{self, SealedRange},
};
use muster_promql::StretchSummary;

/// Number of slices in three hours: usually all rows of `head` are in fewer.
const SLICES_FEW: i64 = 36;

/// Number of five minutes in a day.
const FIVES_OF_DAY: usize = FIVES as usize * DAY_HOURS as usize;

/// The summary of a series in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewBucket {
    /// Its start.
    pub start_ms: Millis,
    /// Its length.
    pub width_ms: Millis,
    /// The summary of its points; there is at least one.
    pub summary: StretchSummary,
}

/// A consistent view of the store.
pub(crate) struct StoreView {
    tx: Transaction<'static, Sqlite>,
    kept: RetentionBounds,
    /// The first and last hour with chunks.
    chunks: Option<(Hour, Hour)>,
    /// The first and last day that is sealed as a whole.
    days: Option<(u32, u32)>,
    /// The first and last slice with rows in `head`.
    head: Option<(Slice, Slice)>,
    /// All of these slices, after they were first needed.
    slices: Option<Vec<Slice>>,
    /// Pieces that could not be decoded.
    pub(crate) faults: UnreadableBlobs,
    /// Number of rows that were read: the cost of a query on any machine.
    pub(crate) rows: usize,
}

impl StoreView {
    /// Opens a view.
    pub(crate) async fn new(readers: &SqlitePool) -> Result<Self, sqlx::Error> {
        let mut tx = readers.begin().await?;
        let kept = kept(&mut tx).await?;
        let [chunks, days, head] = bounds(&mut tx).await?;
        let chunks = both(chunks, |key| Some(key::ChunkKey::from_sql(key)?.hour));
        let days = both(days, |key| Some(key::of_day(key)?.0));
        let head = both(head, |key| Some(key::PointKey::from_sql(key).slice()));
        Ok(Self { tx, kept, chunks, days, head, slices: None, faults: UnreadableBlobs::new(), rows: 0 })
    }

    /// The range of times in which points may exist; `None` if there are no points.
    pub(crate) fn extent(&self) -> Option<RangeInclusive<Millis>> {
        let head = self.head.map(|(first, last)| (first.start_ms(), last.start_ms() + SLICE_MS - 1));
        let chunks = self.chunks.map(|(first, last)| (first.start_ms(), *last.times().end()));
        let day_ms = |day: u32| Hour(day * DAY_HOURS).start_ms();
        let days = self.days.map(|(first, last)| (day_ms(first), day_ms(last + 1) - 1));
        let first = head.iter().chain(&chunks).chain(&days).map(|(first, _)| *first).min();
        let last = head.iter().chain(&chunks).chain(&days).map(|(_, last)| *last).max();
        first.zip(last).map(|(first, last)| first.max(self.kept.raw_ms)..=last)
    }

    /// The earliest time with any data of a series whose points begin at a given time.
    pub(crate) fn oldest_ms(&self, points_from_ms: Millis) -> Millis {
        // Until something is deleted, every summary has points.
        if self.kept.raw_ms > key::TIME_FIRST_MS { self.kept.hourly_ms } else { points_from_ms }
    }

    /// The points of a series, sorted by time.
    pub(crate) async fn points(
        &mut self,
        series: SeriesId,
        times: RangeInclusive<Millis>,
    ) -> Result<Vec<ThinPoint>, sqlx::Error> {
        Ok(self.points_of(&[series], times).await?.pop().unwrap_or_default())
    }

    /// The points of some series, of each sorted by time.
    pub(crate) async fn points_of(
        &mut self,
        series: &[SeriesId],
        times: RangeInclusive<Millis>,
    ) -> Result<Vec<Vec<ThinPoint>>, sqlx::Error> {
        let times = (*times.start()).max(self.kept.raw_ms)..=*times.end();
        if !key::overlaps(&times) || times.is_empty() {
            return Ok(vec![Vec::new(); series.len()]);
        }
        let hours = key::hours(&times);
        let within = |first: u32, end: u32| hours.start.max(first)..hours.end.min(end);
        let range = SealedRange {
            times: times.clone(),
            of_days: self.days.map_or(0..0, |(first, last)| within(first * DAY_HOURS, (last + 1) * DAY_HOURS)),
            of_chunks: self.chunks.map_or(0..0, |(first, last)| within(first.0, last.0 + 1)),
        };
        let sealed = sealed::points(&mut self.tx, series, range).await?;
        self.faults.extend(sealed.faults);
        self.rows += sealed.rows;
        let came = self.came(series, &times).await?;
        Ok(sealed.points.into_iter().zip(came).map(|(sealed, came)| chunk::merge(sealed, came)).collect())
    }

    /// The points of some series that are not sealed, of each sorted by time.
    async fn came(
        &mut self,
        series: &[SeriesId],
        times: &RangeInclusive<Millis>,
    ) -> Result<Vec<Vec<ThinPoint>>, sqlx::Error> {
        let none = || Ok(vec![Vec::new(); series.len()]);
        let Some((first, last)) = self.head else { return none() };
        if Slice::of(*times.end()) < first || last < Slice::of(*times.start()) {
            return none();
        }
        let slices = match self.slices.take() {
            Some(slices) => slices,
            // Searching some empty slices costs less than finding out which are empty.
            None if last.0 - first.0 < SLICES_FEW => (first.0..=last.0).map(Slice).collect(),
            None => head::slices(&mut self.tx, key::TIME_FIRST_MS..=key::TIME_LAST_MS).await?,
        };
        let slices = self.slices.insert(slices);
        let mut came = head::points(&mut self.tx, series, head::within(slices, times)).await?;
        for points in &mut came {
            self.rows += points.len();
            points.retain(|sample| times.contains(&sample.0));
        }
        Ok(came)
    }

    /// As [`Self::buckets_of`], of one series.
    pub(crate) async fn buckets(
        &mut self,
        series: SeriesId,
        times: RangeInclusive<Millis>,
        resolution: Resolution,
    ) -> Result<Vec<ViewBucket>, sqlx::Error> {
        Ok(self.buckets_of(&[series], times, resolution).await?.pop().unwrap_or_default())
    }

    /// Summaries of series that overlap a range, in order of time; coarser ones where they have been deleted.
    pub(crate) async fn buckets_of(
        &mut self,
        series: &[SeriesId],
        times: RangeInclusive<Millis>,
        resolution: Resolution,
    ) -> Result<Vec<Vec<ViewBucket>>, sqlx::Error> {
        let mut found = vec![Vec::new(); series.len()];
        let times = (*times.start()).max(self.kept.hourly_ms)..=*times.end();
        if !key::overlaps(&times) || times.is_empty() {
            return Ok(found);
        }
        let fine_ms = match resolution {
            Resolution::Hour => Millis::MAX,
            Resolution::FiveMinutes | Resolution::Raw => self.kept.five_ms,
        };
        if *times.start() < fine_ms {
            let coarse = *times.start()..=(*times.end()).min(fine_ms.saturating_sub(1));
            for (series, buckets) in series.iter().zip(&mut found) {
                let hourly = self.hourly(*series, &coarse).await?.into_iter();
                buckets.extend(hourly.map(|(hour, summary)| ViewBucket {
                    start_ms: hour.start_ms(),
                    width_ms: HOUR_MS,
                    summary,
                }));
            }
        }
        if *times.end() >= fine_ms {
            let fine = (*times.start()).max(fine_ms)..=*times.end();
            self.fives(series, &fine, &mut found).await?;
        }
        for buckets in &mut found {
            let outside = |bucket: &ViewBucket| {
                bucket.start_ms + bucket.width_ms <= *times.start() || bucket.start_ms > *times.end()
            };
            // They are sorted.
            if buckets.first().is_some_and(outside) || buckets.last().is_some_and(outside) {
                buckets.retain(|bucket| !outside(bucket));
            }
        }
        Ok(found)
    }

    /// Hours of a range in which series have points that are not sealed.
    async fn fresh(
        &mut self,
        series: &[SeriesId],
        times: &RangeInclusive<Millis>,
    ) -> Result<Vec<BTreeSet<Hour>>, sqlx::Error> {
        let hours = key::hours(times);
        let whole = Hour(hours.start).start_ms()..=*Hour(hours.end - 1).times().end();
        let came = self.came(series, &whole).await?;
        let of = |points: Vec<ThinPoint>| points.into_iter().map(|sample| Hour::of(sample.0)).collect();
        Ok(came.into_iter().map(of).collect())
    }

    /// Hourly summaries: from the roll-ups, from newly sealed hours, and from points that are not sealed.
    async fn hourly(
        &mut self,
        series: SeriesId,
        times: &RangeInclusive<Millis>,
    ) -> Result<BTreeMap<Hour, StretchSummary>, sqlx::Error> {
        let hours = key::hours(times);
        let mut found = BTreeMap::new();
        let spans =
            (rollup_blob::hourly_key(series, Hour(hours.start)), rollup_blob::hourly_key(series, Hour(hours.end - 1)));
        for (key, span) in self.spans(BlobTable::Hourly, spans).await? {
            let first = key::of_series_first(key).1 * SPAN_HOURS;
            found.extend(span.into_iter().map(|(place, summary)| (Hour(first + u32::from(place)), summary)));
        }
        let stretch = (key::series_first(series, hours.start), key::series_first(series, hours.end - 1));
        for (key, span) in self.spans(BlobTable::Summary, stretch).await? {
            let hour = Hour(key::of_series_first(key).1);
            found.extend(span.into_values().reduce(StretchSummary::join).map(|summary| (hour, summary)));
        }
        for hour in self.fresh(&[series], times).await?.pop().unwrap_or_default() {
            let points = self.points(series, hour.times()).await?;
            found
                .extend(StretchSummary::over(points.into_iter().map(|sample| sample.1)).map(|summary| (hour, summary)));
        }
        found.retain(|hour, _| hours.contains(&hour.0));
        Ok(found)
    }

    /// Five-minute summaries: from the roll-ups, and where these are missing, from points.
    async fn fives(
        &mut self,
        series: &[SeriesId],
        times: &RangeInclusive<Millis>,
        found: &mut [Vec<ViewBucket>],
    ) -> Result<(), sqlx::Error> {
        let hours = key::hours(times);
        // An empty range, if there are no days.
        let (first, last) = five_bounds(&mut self.tx).await?.unwrap_or((1, 0));
        let days = Hour(hours.start).day().max(first)..Hour(hours.end - 1).day().min(last) + 1;
        let places: BTreeMap<SeriesId, usize> = series.iter().copied().zip(0..).collect();
        for group in sealed::groups(&mut self.tx, BlobTable::Five, series, days, decode_fives).await? {
            self.keep_fives(group, &places, found);
        }
        let firsts = series.iter().map(|series| key::series_first(*series, hours.start));
        let rows: Vec<_> =
            blobs::ranges(&mut self.tx, BlobTable::Summary, firsts, Millis::from(hours.end - hours.start))
                .try_collect()
                .await?;
        self.rows += rows.len();
        let mut behind: BTreeMap<SeriesId, BTreeSet<Hour>> = BTreeMap::new();
        for (key, _) in rows {
            let (of, hour) = key::of_series_first(key);
            of.map(|of| behind.entry(of).or_default().insert(Hour(hour)));
        }
        // One reading for all series of which the same hours are missing: usually today's of all.
        let mut alike: BTreeMap<BTreeSet<Hour>, Vec<SeriesId>> = BTreeMap::new();
        for (series, mut hours) in series.iter().zip(self.fresh(series, times).await?) {
            hours.append(&mut behind.remove(series).unwrap_or_default());
            if !hours.is_empty() {
                alike.entry(hours).or_default().push(*series);
            }
        }
        // Days come in order.
        let sorted = alike.is_empty();
        for (hours, series) in alike {
            for run in runs(&hours) {
                let whole = Hour(run.start).start_ms()..=*Hour(run.end - 1).times().end();
                let points = self.points_of(&series, whole).await?;
                for (series, points) in series.iter().zip(points) {
                    if let Some(buckets) = places.get(series).and_then(|place| found.get_mut(*place)) {
                        replace_fives(buckets, &points);
                    }
                }
            }
        }
        if !sorted {
            found.iter_mut().for_each(|buckets| buckets.sort_by_key(|bucket| bucket.start_ms));
        }
        Ok(())
    }

    fn keep_fives(&mut self, fives: DecodedFives, places: &BTreeMap<SeriesId, usize>, found: &mut [Vec<ViewBucket>]) {
        for (series, buckets) in fives.buckets {
            if let Some(before) = places.get(&series).and_then(|place| found.get_mut(*place)) {
                match before.is_empty() {
                    true => *before = buckets,
                    false => before.extend(buckets),
                }
            }
        }
        self.faults.extend(fives.faults);
        self.rows += fives.rows;
    }

    async fn spans(
        &mut self,
        table: BlobTable,
        keys: (i64, i64),
    ) -> Result<Vec<(i64, rollup_blob::SummarySpan)>, sqlx::Error> {
        let rows = blobs::range(&mut self.tx, table, keys).await?;
        self.rows += rows.len();
        let mut spans = Vec::with_capacity(rows.len());
        for (key, data) in rows {
            match rollup_blob::decode(key, &data) {
                Ok(span) => spans.push((key, span)),
                Err(fault) => self.faults.push((table, key, fault)),
            }
        }
        Ok(spans)
    }
}

/// The summary of five minutes of a day.
fn five(day: u32, place: u16, summary: StretchSummary) -> ViewBucket {
    let start_ms = Hour(day * DAY_HOURS).start_ms() + Millis::from(place) * FIVE_MS;
    ViewBucket { start_ms, width_ms: FIVE_MS, summary }
}

/// Replaces the summaries of hours by those of points.
fn replace_fives(buckets: &mut Vec<ViewBucket>, points: &[ThinPoint]) {
    for samples in points.chunk_by(|one, next| Hour::of(one.0) == Hour::of(next.0)) {
        let hour = samples.first().map_or(Hour(0), |first| Hour::of(first.0));
        buckets.retain(|bucket| bucket.width_ms != FIVE_MS || !hour.times().contains(&bucket.start_ms));
        let span = rollup_blob::by_fives(hour, samples);
        buckets.extend(span.into_iter().map(|(place, summary)| five(hour.day(), place, summary)));
    }
}

/// Five-minute summaries of some series, and what could not be decoded.
struct DecodedFives {
    buckets: Vec<(SeriesId, Vec<ViewBucket>)>,
    faults: UnreadableBlobs,
    rows: usize,
}

/// Decodes days of five-minute summaries, of which each may be in several rows.
fn decode_fives(rows: &[BlobRow]) -> DecodedFives {
    let of = key::of_day;
    let mut decoded = DecodedFives { buckets: Vec::new(), faults: UnreadableBlobs::new(), rows: 0 };
    for pieces in rows.chunk_by(|one, next| of(one.0) == of(next.0)) {
        let Some((key, (day, series))) = pieces.first().and_then(|(key, _)| Some((*key, of(*key)?))) else { continue };
        decoded.rows += 1;
        if decoded.buckets.last().is_none_or(|(last, _)| *last != series) {
            decoded.buckets.push((series, Vec::with_capacity(FIVES_OF_DAY)));
        }
        let Some((_, buckets)) = decoded.buckets.last_mut() else { continue };
        let before = buckets.len();
        let keep = |place, summary| buckets.push(five(day, place, summary));
        if let Err(fault) = rollup_blob::decode_each(key, &blobs::join(pieces), keep) {
            buckets.truncate(before);
            // The key of the whole blob, also if its first piece is missing.
            decoded.faults.push((BlobTable::Five, key, fault));
        }
    }
    decoded
}

/// The first and last day with five-minute summaries.
async fn five_bounds(connection: &mut SqliteConnection) -> Result<Option<(u32, u32)>, sqlx::Error> {
    let keys: (Option<i64>, Option<i64>) =
        sqlx::query_as("SELECT (SELECT MIN(key) FROM five), (SELECT MAX(key) FROM five)").fetch_one(connection).await?;
    Ok(both(keys, |key| Some(key::of_day(key)?.0)))
}

/// The first and last key of chunks, of days and of `head`.
async fn bounds(connection: &mut SqliteConnection) -> Result<[(Option<i64>, Option<i64>); 3], sqlx::Error> {
    let rows: Vec<(Option<i64>, Option<i64>)> = sqlx::query_as(
        "SELECT (SELECT MIN(key) FROM chunk), (SELECT MAX(key) FROM chunk)
         UNION ALL SELECT (SELECT MIN(key) FROM day), (SELECT MAX(key) FROM day)
         UNION ALL SELECT (SELECT MIN(key) FROM head), (SELECT MAX(key) FROM head)",
    )
    .fetch_all(connection)
    .await?;
    let row = |place: usize| rows.get(place).copied().unwrap_or_default();
    Ok([row(0), row(1), row(2)])
}

/// Both keys, read in the same way.
fn both<T>(keys: (Option<i64>, Option<i64>), read: fn(i64) -> Option<T>) -> Option<(T, T)> {
    keys.0.and_then(read).zip(keys.1.and_then(read))
}

/// Groups of consecutive hours.
fn runs(hours: &BTreeSet<Hour>) -> Vec<std::ops::Range<u32>> {
    let mut runs: Vec<std::ops::Range<u32>> = Vec::new();
    for hour in hours {
        match runs.last_mut() {
            Some(run) if run.end == hour.0 => run.end += 1,
            _ => runs.push(hour.0..hour.0 + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers;

    #[test]
    fn nothing_of_a_damaged_day_is_kept() {
        let series = SeriesId::new(3).unwrap();
        let span = (0..288).map(|five| (five, StretchSummary::of(f64::from(u32::from(five) * 7_919 % 101)))).collect();
        let good = rollup_blob::encode(&span);
        // A code is longer than what was written, which is noticed at the end.
        let flipped = (0..good.len() * 8).map(|bit| {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            bad
        });
        let late = |bad: &Vec<u8>| {
            let mut count = 0;
            rollup_blob::decode_each(7, &numbers::sealed(bad, 7), |_, _| count += 1).is_err() && count > 0
        };
        let bad = flipped.into_iter().find(late).unwrap();
        let bodies = [&good, &bad, &good];
        let rows: Vec<BlobRow> = bodies
            .iter()
            .zip(100..)
            .map(|(body, day)| (key::day_key(series, day), numbers::sealed(body, key::day_key(series, day))))
            .collect();
        let decoded = decode_fives(&rows);
        assert_eq!(decoded.faults.iter().map(|fault| fault.1).collect::<Vec<_>>(), [rows[1].0]);
        let days: Vec<u32> = decoded.buckets[0].1.iter().map(|bucket| Hour::of(bucket.start_ms).day()).collect();
        assert_eq!((decoded.buckets.len(), days), (1, [[100; 288], [102; 288]].concat()));
    }
}
