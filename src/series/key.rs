//! Keys: a series' number and a time, packed into one integer. SQLite finds an integer key faster than any
//! other, and keeps rows in the order of their keys.
//!
//! - of a point ([`PointKey`]): five minutes ([`Slice`]), then series, then the time within. Current points lie close together
//!   at the end of `head`, so that few pages change with each commit, and a series is in few places.
//! - of a chunk ([`ChunkKey`]): hour, then series, then the part of the hour. Sealing appends to the table, whose pages
//!   are therefore full, and deleting the oldest frees whole pages.
//! - of a piece of a day ([`day_key`]): day, then series, then the piece, for the same reasons
//! - of an hour's summary and of a span of hours ([`series_first`]): series, then time

use std::ops::{Range, RangeInclusive};

use muster_topics::Millis;

/// Number of bits of the time in milliseconds: enough for 69 years.
const TIME_BITS: u32 = 41;
/// Number of bits of a series id: what remains beside time and sign.
const SERIES_BITS: u32 = 63 - TIME_BITS;
/// First time that has a key: 2020-01-01, before the first agent existed.
pub(crate) const TIME_FIRST_MS: Millis = 1_577_836_800_000;
/// Last time that has a key, in 2089: the end of an hour.
pub(crate) const TIME_LAST_MS: Millis = TIME_FIRST_MS + (1 << TIME_BITS) / HOUR_MS * HOUR_MS - 1;
/// Largest series id: it has 22 bits.
pub(crate) const ID_MAX: u32 = (1 << SERIES_BITS) - 1;

/// The id of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesId(u32);

impl SeriesId {
    /// An id from the store.
    pub(crate) fn new(id: i64) -> Option<Self> {
        u32::try_from(id).ok().filter(|id| (1..=ID_MAX).contains(id)).map(Self)
    }

    /// As an integer for the store.
    pub(crate) fn to_sql(self) -> i64 {
        i64::from(self.0)
    }
}

/// Length of a slice, in milliseconds. With a longer one, the points that a host sends at a time are spread over more
/// pages; with a shorter one, those of a series in an hour. An hour is a whole number of slices.
pub(crate) const SLICE_MS: Millis = 300_000;
/// Distance between two slices, in keys of points.
pub(crate) const SLICE_STRIDE: i64 = SLICE_MS << SERIES_BITS;

/// A slice: five minutes, counted since 2020-01-01 UTC, in which the points of all series are stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slice(pub(crate) i64);

impl Slice {
    /// The slice of a time; times without a key count as the nearest one that has a key.
    pub(crate) fn of(at_ms: Millis) -> Self {
        Self((at_ms.clamp(TIME_FIRST_MS, TIME_LAST_MS) - TIME_FIRST_MS) / SLICE_MS)
    }

    /// The first key of a series in the slice; the last one is less than [`SLICE_MS`] later.
    pub(crate) fn first(self, series: SeriesId) -> i64 {
        self.0 * SLICE_STRIDE + series.to_sql() * SLICE_MS
    }

    /// The first and last key of all series in the slice.
    pub(crate) fn keys(self) -> (i64, i64) {
        (self.0 * SLICE_STRIDE, self.0 * SLICE_STRIDE + (SLICE_STRIDE - 1))
    }

    /// Its first millisecond.
    pub(crate) fn start_ms(self) -> Millis {
        TIME_FIRST_MS + self.0 * SLICE_MS
    }

    /// The hour that contains it.
    pub(crate) fn hour(self) -> Hour {
        Hour::of(self.start_ms())
    }
}

/// The key of a point: a time and a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PointKey(i64);

impl PointKey {
    /// The key of a point; times without a key count as the nearest one that has a key.
    pub(crate) fn new(series: SeriesId, at_ms: Millis) -> Self {
        let slice = Slice::of(at_ms);
        let since = at_ms.clamp(TIME_FIRST_MS, TIME_LAST_MS) - TIME_FIRST_MS;
        Self(slice.first(series) + since % SLICE_MS)
    }

    /// A key from the store.
    pub(crate) fn from_sql(key: i64) -> Self {
        Self(key)
    }

    /// As an integer for the store.
    pub(crate) fn to_sql(self) -> i64 {
        self.0
    }

    /// The slice.
    pub(crate) fn slice(self) -> Slice {
        Slice(self.0 / SLICE_STRIDE)
    }

    /// The series.
    pub(crate) fn series(self) -> Option<SeriesId> {
        SeriesId::new(self.0 % SLICE_STRIDE / SLICE_MS)
    }

    /// The time.
    pub(crate) fn at_ms(self) -> Millis {
        self.slice().start_ms() + self.0 % SLICE_MS
    }
}

/// Length of an hour in milliseconds: the unit of sealing.
pub(crate) const HOUR_MS: Millis = 3_600_000;
/// Hours of a day.
pub(crate) const DAY_HOURS: u32 = 24;
/// Number of slots of an hour at which a chunk can begin. A slot has at most 7,032 points, because times are whole
/// milliseconds.
pub(crate) const SLOTS: u16 = 512;
const SLOT_BITS: u32 = 9;
/// Number of bits of an hour: enough for all times with keys.
const HOUR_BITS: u32 = 20;

/// An hour, counted since 2020-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hour(pub(crate) u32);

impl Hour {
    /// The hour of a time; times without a key count as the nearest one that has a key.
    pub(crate) fn of(at_ms: Millis) -> Self {
        let since = at_ms.clamp(TIME_FIRST_MS, TIME_LAST_MS) - TIME_FIRST_MS;
        Self(u32::try_from(since / HOUR_MS).unwrap_or(u32::MAX >> (u32::BITS - HOUR_BITS)))
    }

    /// Its first millisecond.
    pub(crate) fn start_ms(self) -> Millis {
        TIME_FIRST_MS + Millis::from(self.0) * HOUR_MS
    }

    /// Its first and its last millisecond.
    pub(crate) fn times(self) -> RangeInclusive<Millis> {
        self.start_ms()..=self.start_ms() + HOUR_MS - 1
    }

    /// Its day, counted since 2020-01-01 UTC.
    pub(crate) fn day(self) -> u32 {
        self.0 / DAY_HOURS
    }

    /// The slot of a time.
    pub(crate) fn slot(self, at_ms: Millis) -> u16 {
        let within = (at_ms - self.start_ms()).clamp(0, HOUR_MS - 1);
        u16::try_from(within * Millis::from(SLOTS) / HOUR_MS).unwrap_or(SLOTS - 1)
    }
}

/// The key of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkKey {
    pub(crate) hour: Hour,
    pub(crate) series: SeriesId,
    /// The first slot of the chunk; it extends to the next chunk of the hour.
    pub(crate) slot: u16,
}

impl ChunkKey {
    /// As an integer for the store.
    pub(crate) fn to_sql(self) -> i64 {
        i64::from(self.hour.0) << (SERIES_BITS + SLOT_BITS) | self.series.to_sql() << SLOT_BITS | i64::from(self.slot)
    }

    /// A key from the store.
    pub(crate) fn from_sql(key: i64) -> Option<Self> {
        let hour = Hour(u32::try_from(key >> (SERIES_BITS + SLOT_BITS)).ok()?);
        let series = SeriesId::new(key >> SLOT_BITS & i64::from(ID_MAX))?;
        let slot = u16::try_from(key & i64::from(SLOTS - 1)).ok()?;
        Some(Self { hour, series, slot })
    }
}

/// The first and last possible key of the chunks of a series' hour.
pub(crate) fn chunks_of(series: SeriesId, hour: Hour) -> (i64, i64) {
    let key = |slot| ChunkKey { hour, series, slot }.to_sql();
    (key(0), key(SLOTS - 1))
}

/// The first possible key of a chunk in an hour; the distance between hours is constant.
pub(crate) fn chunks_from(hour: Hour) -> i64 {
    i64::from(hour.0) << (SERIES_BITS + SLOT_BITS)
}

/// The key of the first piece of a series' day, packed as that of a chunk. The day's blob has this key.
pub(crate) fn day_key(series: SeriesId, day: u32) -> i64 {
    chunks_of(series, Hour(day)).0
}

/// The last possible key of a piece of a day, whose first one is given.
pub(crate) fn day_last(key: i64) -> i64 {
    key | i64::from(SLOTS - 1)
}

/// The day and the series of a piece.
pub(crate) fn of_day(key: i64) -> Option<(u32, SeriesId)> {
    ChunkKey::from_sql(key).map(|key| (key.hour.0, key.series))
}

/// The first possible key of a day.
pub(crate) fn days_from(day: u32) -> i64 {
    chunks_from(Hour(day))
}

/// Distance between two series, in keys of stretches that are ordered by series.
pub(crate) const HOUR_STRIDE: i64 = 1 << HOUR_BITS;

/// Distance between the chunks of a series in consecutive hours.
pub(crate) const CHUNK_STRIDE: i64 = 1 << (SERIES_BITS + SLOT_BITS);

/// The key of a stretch of time, ordered by series first.
pub(crate) fn series_first(series: SeriesId, stretch: u32) -> i64 {
    series.to_sql() << HOUR_BITS | i64::from(stretch)
}

/// The series and the stretch of such a key.
pub(crate) fn of_series_first(key: i64) -> (Option<SeriesId>, u32) {
    let stretch = u32::try_from(key & ((1 << HOUR_BITS) - 1)).unwrap_or_default();
    (SeriesId::new(key >> HOUR_BITS), stretch)
}

/// Splits a range of times into hours, up to the end of the last one.
pub(crate) fn hours(times: &RangeInclusive<Millis>) -> Range<u32> {
    Hour::of(*times.start()).0..Hour::of(*times.end()).0 + 1
}

/// Whether the range contains a time with a key.
pub(crate) fn overlaps(times: &RangeInclusive<Millis>) -> bool {
    *times.start() <= TIME_LAST_MS && *times.end() >= TIME_FIRST_MS
}

/// Whether points of this time can be stored.
pub(crate) fn has_key(at_ms: Millis) -> bool {
    (TIME_FIRST_MS..=TIME_LAST_MS).contains(&at_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_bounded() {
        for (id, good) in [(-1, false), (0, false), (1, true), (4_194_303, true), (4_194_304, false), (i64::MAX, false)]
        {
            assert_eq!(SeriesId::new(id).is_some(), good, "{id}");
        }
    }

    proptest! {
        #[test]
        fn points_sort_by_slice_series_and_time(
            a in 1..=i64::from(ID_MAX), b in 1..=i64::from(ID_MAX),
            s in TIME_FIRST_MS..=TIME_LAST_MS, t in TIME_FIRST_MS..=TIME_LAST_MS, near in 0..SLICE_MS,
        ) {
            let series = |id| SeriesId::new(id).unwrap();
            for t in [t, TIME_LAST_MS.min(s + near)] {
                let (first, second) = (PointKey::new(series(a), s), PointKey::new(series(b), t));
                prop_assert_eq!(first.cmp(&second), (Slice::of(s), a, s).cmp(&(Slice::of(t), b, t)));
            }
            let key = PointKey::new(series(a), s);
            prop_assert_eq!((key.slice(), key.series(), key.at_ms()), (Slice::of(s), Some(series(a)), s));
            prop_assert!((0..SLICE_MS).contains(&(key.to_sql() - key.slice().first(series(a)))));
            let (first, last) = key.slice().keys();
            prop_assert!((first..=last).contains(&key.to_sql()) && first >= 0);
            prop_assert!(Hour::of(s) == key.slice().hour());
        }

        #[test]
        fn chunks_sort_by_hour_series_and_part(
            a in 1..=i64::from(ID_MAX), s in TIME_FIRST_MS..=TIME_LAST_MS, b in 1..=i64::from(ID_MAX),
            t in TIME_FIRST_MS..=TIME_LAST_MS,
        ) {
            let key = |id, at_ms| {
                let hour = Hour::of(at_ms);
                ChunkKey { hour, series: SeriesId::new(id).unwrap(), slot: hour.slot(at_ms) }
            };
            let (one, other) = (key(a, s), key(b, t));
            prop_assert_eq!(one.cmp(&other), one.to_sql().cmp(&other.to_sql()));
            prop_assert_eq!(ChunkKey::from_sql(one.to_sql()), Some(one));
            prop_assert!(one.hour.times().contains(&s) && one.slot < SLOTS);
            let (first, last) = chunks_of(one.series, one.hour);
            prop_assert!((first..=last).contains(&one.to_sql()));
            let next = chunks_of(one.series, Hour(one.hour.0 + 1)).0;
            prop_assert_eq!(next - first, CHUNK_STRIDE);
            prop_assert!(chunks_from(one.hour) <= first && chunks_from(Hour(one.hour.0 + 1)) > last);
            let key = series_first(one.series, one.hour.0);
            prop_assert_eq!(of_series_first(key), (Some(one.series), one.hour.0));
        }
    }

    #[test]
    fn the_last_key_is_the_last_number() {
        let key = PointKey::new(SeriesId(ID_MAX), Millis::MAX);
        assert_eq!((key.at_ms(), key.slice().keys().1), (TIME_LAST_MS, key.to_sql()));
        assert_eq!(HOUR_MS % SLICE_MS, 0, "an hour has whole slices");
    }
}
