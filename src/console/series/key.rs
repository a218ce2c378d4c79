//! Keys of points: a series' number and a time, packed into one integer.
//!
//! SQLite finds an integer key faster than any other, and keeps rows in the order of their keys. So
//! the points of one series lie side by side, and an hour of them is one range. Sealed hours will be
//! kept under the same kind of key, that of their first millisecond.

use std::ops::RangeInclusive;

use muster_topics::Millis;

/// Bits of the time, in milliseconds: enough for 69 years.
const TIME_BITS: u32 = 41;
/// The first time that has a key: 2020-01-01, before the first agent was built.
pub(super) const TIME_FIRST_MS: Millis = 1_577_836_800_000;
/// The last time that has a key, in 2089.
pub(super) const TIME_LAST_MS: Millis = TIME_FIRST_MS + (1 << TIME_BITS) - 1;
/// The largest number of a series: what the 22 bits beside the time and the sign hold.
pub(super) const ID_MAX: u32 = (1 << (63 - TIME_BITS)) - 1;

/// A series' number, from 1 to [`ID_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SeriesId(u32);

impl SeriesId {
    /// A number that came out of the store.
    pub(super) fn new(id: i64) -> Option<Self> {
        u32::try_from(id).ok().filter(|id| (1..=ID_MAX).contains(id)).map(Self)
    }

    /// For the store.
    pub(super) fn to_sql(self) -> i64 {
        i64::from(self.0)
    }
}

/// Where a point lies: a series and a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(i64);

impl Key {
    /// The key of a point. Times without a key take the nearest that has one.
    pub(super) fn new(series: SeriesId, at_ms: Millis) -> Self {
        let time = at_ms.clamp(TIME_FIRST_MS, TIME_LAST_MS) - TIME_FIRST_MS;
        Self(series.to_sql() << TIME_BITS | time)
    }

    /// A key that came out of the store.
    pub(super) fn from_sql(key: i64) -> Self {
        Self(key)
    }

    /// For the store.
    pub(super) fn to_sql(self) -> i64 {
        self.0
    }

    /// The time.
    pub(super) fn at_ms(self) -> Millis {
        (self.0 & ((1 << TIME_BITS) - 1)) + TIME_FIRST_MS
    }
}

/// The keys of a series from one time to another, both included; none of them can belong to another series.
pub(super) fn stretch(series: SeriesId, times: RangeInclusive<Millis>) -> (i64, i64) {
    (Key::new(series, *times.start()).to_sql(), Key::new(series, *times.end()).to_sql())
}

/// Whether any of these times has a key.
pub(super) fn overlaps(times: &RangeInclusive<Millis>) -> bool {
    *times.start() <= TIME_LAST_MS && *times.end() >= TIME_FIRST_MS
}

/// Whether points of this time can be kept.
pub(super) fn has_key(at_ms: Millis) -> bool {
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
        fn keys_sort_by_series_and_time(
            a in 1..=i64::from(ID_MAX), b in 1..=i64::from(ID_MAX),
            s in TIME_FIRST_MS..=TIME_LAST_MS, t in TIME_FIRST_MS..=TIME_LAST_MS,
        ) {
            let (first, second) = (Key::new(SeriesId::new(a).unwrap(), s), Key::new(SeriesId::new(b).unwrap(), t));
            prop_assert_eq!(first.cmp(&second), (a, s).cmp(&(b, t)));
            prop_assert_eq!(Key::from_sql(first.to_sql()).at_ms(), s);
            prop_assert!(first.to_sql() > 0);
        }

        #[test]
        fn a_stretch_stays_within_its_series(id in 1..i64::from(ID_MAX), s in any::<i64>(), t in any::<i64>()) {
            let (first, last) = stretch(SeriesId::new(id).unwrap(), s..=t);
            let next = Key::new(SeriesId::new(id + 1).unwrap(), TIME_FIRST_MS).to_sql();
            prop_assert!(first < next && last < next);
            prop_assert!(first >> TIME_BITS == id && last >> TIME_BITS == id);
        }
    }
}
