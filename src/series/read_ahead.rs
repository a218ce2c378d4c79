//! Reads series one after another for a caller, but some at a time from the store, which costs much less.

use std::collections::VecDeque;

use muster_topics::Millis;

use super::{Resolution, SeriesError, SeriesId, SeriesStore, ViewBucket};

/// Number of points or summaries that are read at a time, if a series has fewer: 2 MB of points.
const VALUES: usize = 125_000;
/// The largest number of series that are read at a time.
const SERIES_MAX: usize = 256;
/// The distance of points in most series, which is assumed until some are read.
const USUAL_MS: Millis = 10_000;

/// Reads points and summaries of series in a known order.
#[derive(Debug, Default)]
pub struct ReadAhead {
    order: Vec<SeriesId>,
    points: Ahead<(Millis, f64)>,
    buckets: Ahead<ViewBucket>,
}

impl ReadAhead {
    /// For series that will be read in this order, in the same range each. Others, and other ranges, are read one by one.
    #[must_use]
    pub fn new(order: Vec<SeriesId>) -> Self {
        Self { order, ..Self::default() }
    }

    /// The points of a series, as [`SeriesStore::points`].
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn points(
        &mut self,
        store: &SeriesStore,
        series: SeriesId,
        times: (Millis, Millis),
    ) -> Result<Vec<(Millis, f64)>, SeriesError> {
        let range = (times, Resolution::Raw);
        if let Some(found) = self.points.take(series, range) {
            return Ok(found);
        }
        let wanted = self.points.wanted(&self.order, series, values(times, USUAL_MS));
        let found = store.points(&wanted, times).await?;
        Ok(self.points.put(range, wanted, found))
    }

    /// The summaries of a series, as [`SeriesStore::buckets`].
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn buckets(
        &mut self,
        store: &SeriesStore,
        series: SeriesId,
        times: (Millis, Millis),
        resolution: Resolution,
    ) -> Result<Vec<ViewBucket>, SeriesError> {
        let range = (times, resolution);
        if let Some(found) = self.buckets.take(series, range) {
            return Ok(found);
        }
        let width_ms = resolution.width_ms().unwrap_or(USUAL_MS);
        let wanted = self.buckets.wanted(&self.order, series, values(times, width_ms));
        let found = store.buckets(&wanted, times, resolution).await?;
        Ok(self.buckets.put(range, wanted, found))
    }
}

/// How many values a range has.
fn values((start_ms, end_ms): (Millis, Millis), width_ms: Millis) -> usize {
    usize::try_from(end_ms.saturating_sub(start_ms) / width_ms).unwrap_or(0)
}

/// What was read of a range and is not yet taken, for series in their order.
#[derive(Debug)]
struct Ahead<T> {
    range: ((Millis, Millis), Resolution),
    ready: VecDeque<(SeriesId, Vec<T>)>,
    /// Where the first series that was not read is in the order.
    next: usize,
    /// The largest number of values of one series that was read the last time.
    usual: Option<usize>,
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self { range: ((0, 0), Resolution::Raw), ready: VecDeque::new(), next: 0, usual: None }
    }
}

impl<T> Ahead<T> {
    /// The values of a series, if they are the next that was read.
    fn take(&mut self, series: SeriesId, range: ((Millis, Millis), Resolution)) -> Option<Vec<T>> {
        let is_next = self.range == range && self.ready.front().is_some_and(|(next, _)| *next == series);
        if is_next { self.ready.pop_front().map(|(_, values)| values) } else { None }
    }

    /// The series to read, of which this is the first. Each is assumed to have this many values until some were read.
    fn wanted(&mut self, order: &[SeriesId], series: SeriesId, assumed: usize) -> Vec<SeriesId> {
        let is_next = order.get(self.next) == Some(&series);
        let at = if is_next { Some(self.next) } else { order.iter().position(|one| *one == series) };
        let Some(at) = at else { return vec![series] };
        let count = (VALUES / self.usual.unwrap_or(assumed).max(1)).clamp(1, SERIES_MAX);
        let wanted: Vec<SeriesId> = order.iter().skip(at).take(count).copied().collect();
        self.next = at + wanted.len();
        wanted
    }

    /// Keeps what was read, but for the values of the first series.
    fn put(&mut self, range: ((Millis, Millis), Resolution), wanted: Vec<SeriesId>, found: Vec<Vec<T>>) -> Vec<T> {
        self.range = range;
        self.usual = found.iter().map(Vec::len).max();
        self.ready = wanted.into_iter().zip(found).collect();
        self.ready.pop_front().map(|(_, values)| values).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_in_groups_of_bounded_size() {
        let order: Vec<SeriesId> = (1..=600).filter_map(SeriesId::new).collect();
        let range = ((0, 1_000), Resolution::Raw);
        let read = |values: usize, assumed: usize| {
            let (mut ahead, mut groups) = (Ahead::default(), Vec::new());
            for series in &order {
                let found = ahead.take(*series, range).unwrap_or_else(|| {
                    let wanted = ahead.wanted(&order, *series, assumed);
                    groups.push(wanted.len());
                    let found = wanted.iter().map(|series| vec![*series; values]).collect();
                    ahead.put(range, wanted, found)
                });
                assert_eq!(found, vec![*series; values]);
            }
            groups
        };
        assert_eq!(read(1, 0), [256, 256, 88]);
        assert_eq!(read(1_000, 12_500), [[10, 125, 125, 125, 125].as_slice(), &[90]].concat());
        assert_eq!(read(1_000, VALUES * 2)[..2], [1, 125]);
        assert_eq!(read(VALUES, VALUES), [1; 600]);
    }

    #[test]
    fn another_range_or_series_is_not_taken_for_what_was_read() {
        let ids: Vec<SeriesId> = (1..=3).filter_map(SeriesId::new).collect();
        let mut ahead: Ahead<u8> = Ahead::default();
        let (range, other) = (((0, 9), Resolution::Raw), ((0, 8), Resolution::Raw));
        assert_eq!(ahead.wanted(&ids[..2], ids[2], 1), [ids[2]], "one that was not announced");
        let wanted = ahead.wanted(&ids, ids[0], 1);
        assert_eq!(ahead.put(range, wanted, vec![vec![1], vec![2], vec![3]]), [1]);
        assert_eq!(ahead.take(ids[1], other), None);
        assert_eq!(ahead.take(ids[2], range), None);
        assert_eq!(ahead.take(ids[1], range), Some(vec![2]));
        assert_eq!(ahead.wanted(&ids, ids[1], 1), [ids[1], ids[2]], "again, from there on");
    }
}
