//! Days: the points of a series in a day, as one blob. Pure.
//!
//! A header has what all hours share: how many points each has, the times if they are equidistant, and how values
//! are packed, which takes as much space as some hundred points. Pages follow, which can be read alone: an hour, or as many as
//! have two thousand points together. A page takes twenty bytes for itself; so many points decode in some microseconds.
//!
//! **Invariant: the header and each page have checksums of their own**, so that damage costs a page, unless it is in the header.

use std::ops::Range;

use super::{
    downsample::ThinPoint,
    key::{DAY_HOURS, HOUR_MS, Hour},
    numbers::{self, DecodeError, PageInput, PagedColumn, PagedTimes},
    rice,
};

/// Largest number of points in a day: twice what a series that is measured every second has.
pub(crate) const POINTS_MAX: usize = 2 * 24 * 3600;
/// The version of the format.
const VERSION: u8 = 1;
/// The least number of points in a page, if the day has so many: six hours of a series that is measured every ten seconds.
const PAGE_POINTS: usize = 2_000;

/// The points of an hour.
pub(crate) type HourPoints = (Hour, Vec<ThinPoint>);

/// Encodes a day, with its checksums. The hours are of that day, sorted, as are the points of each; none is empty. `None` if
/// there are too many points.
pub(crate) fn encode(key: i64, day: u32, hours: &[HourPoints]) -> Option<Vec<u8>> {
    encode_in_pages(key, day, hours, PAGE_POINTS)
}

/// As [`encode`], with this least number of points in a page.
fn encode_in_pages(key: i64, day: u32, hours: &[HourPoints], least: usize) -> Option<Vec<u8>> {
    let counts: Vec<usize> = hours.iter().map(|(_, samples)| samples.len()).collect();
    if !(1..=POINTS_MAX).contains(&counts.iter().sum()) {
        return None;
    }
    let start_ms = Hour(day * DAY_HOURS).start_ms();
    let samples = || hours.iter().flat_map(|(_, samples)| samples);
    let times: Vec<i64> = samples().map(|sample| sample.0 - start_ms).collect();
    let values: Vec<f64> = samples().map(|sample| sample.1).collect();
    let mut header = vec![VERSION];
    let present = hours.iter().fold(0_u64, |present, (hour, _)| present | 1 << (hour.0 % DAY_HOURS));
    numbers::put_varint(&mut header, present);
    put_sizes(&mut header, &counts);
    numbers::put_varint(&mut header, least as u64);
    let paged = in_pages(&counts, least);
    let counts: Vec<usize> = paged.iter().map(|hours| counts[hours.clone()].iter().sum()).collect();
    let mut pages = vec![Vec::new(); paged.len()];
    PagedTimes::put(&mut header, &mut pages, &times, &counts)?;
    PagedColumn::put(&mut header, &mut pages, &values, &counts)?;
    put_sizes(&mut header, &pages.iter().map(Vec::len).collect::<Vec<_>>());
    let mut bytes = Vec::with_capacity(header.len() + pages.iter().map(|page| 4 + page.len()).sum::<usize>() + 8);
    numbers::put_varint(&mut bytes, header.len() as u64);
    bytes.extend(numbers::sealed(&header, key));
    for (of, page) in paged.iter().zip(&pages) {
        if !page.is_empty() {
            bytes.extend(numbers::sealed(page, page_key(key, hours[of.start].0)));
        }
    }
    Some(bytes)
}

/// Divides consecutive hours with these numbers of points into pages, so that each has the least number, if all together have it.
fn in_pages(counts: &[usize], least: usize) -> Vec<Range<usize>> {
    let mut left = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
    let (mut pages, mut start, mut points) = (Vec::new(), 0, 0);
    for (count, end) in counts.iter().zip(1..) {
        points += count;
        left -= count;
        if (points >= least && left >= least) || end == counts.len() {
            pages.push(start..end);
            (start, points) = (end, 0);
        }
    }
    pages
}

/// The key of a page's checksum: a page in the place of another is detected.
fn page_key(key: i64, hour: Hour) -> i64 {
    key | i64::from(hour.0 % DAY_HOURS + 1)
}

/// A page: its hours, as indices into those that have points, the index of its first point in the day, the number of its
/// points, where its bytes with their checksum begin, and their number.
struct DayPage {
    hours: Range<usize>,
    first: usize,
    count: usize,
    start: usize,
    length: usize,
}

/// An encoded day, of which hours can be read.
pub(crate) struct DayReader {
    key: i64,
    start_ms: i64,
    times: PagedTimes,
    values: PagedColumn,
    /// The hours that have points, and the number of these.
    hours: Vec<(Hour, usize)>,
    pages: Vec<DayPage>,
    /// The day's bytes, and padding.
    bytes: Vec<u8>,
    /// The number of the day's bytes.
    length: usize,
    /// What was last decoded: its memory is used again.
    decoded: (Vec<i64>, Vec<f64>),
}

impl DayReader {
    /// Reads the header.
    pub(crate) fn new(key: i64, day: u32, mut bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let mut rest = &bytes[..];
        let length = usize::try_from(numbers::take_varint(&mut rest)?).unwrap_or(usize::MAX);
        let (header, rest) = rest.split_at_checked(length.saturating_add(4)).ok_or(DecodeError::Checksum)?;
        let mut header = numbers::checked(header, key)?;
        if numbers::take_byte(&mut header)? != VERSION {
            return Err(DecodeError::Content("a day of no known version"));
        }
        let sizes = |header: &mut &[u8], count: usize| {
            let sizes = rice::take(header, count)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
            sizes.map_err(|_| DecodeError::Content("a negative size"))
        };
        let present = numbers::take_varint(&mut header)?;
        let hours = (0..DAY_HOURS).filter(|hour| present >> hour & 1 == 1).map(|hour| Hour(day * DAY_HOURS + hour));
        let counts = sizes(&mut header, hours.clone().count())?;
        if counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count)) > POINTS_MAX {
            return Err(DecodeError::Content("too many points"));
        }
        let least = usize::try_from(numbers::take_varint(&mut header)?).unwrap_or(usize::MAX);
        let times = PagedTimes::take(&mut header)?;
        let values = PagedColumn::take(&mut header)?;
        let paged = in_pages(&counts, least);
        let lengths = sizes(&mut header, paged.len())?;
        let (mut pages, mut first) = (Vec::with_capacity(paged.len()), 0);
        let mut start = bytes.len() - rest.len();
        for (hours, length) in paged.into_iter().zip(lengths) {
            let count = counts.get(hours.clone()).unwrap_or_default().iter().sum();
            let length = if length == 0 { 0 } else { length.saturating_add(4) };
            pages.push(DayPage { hours, first, count, start, length });
            first += count;
            start = start.saturating_add(length);
        }
        let hours = hours.zip(counts).collect();
        let length = bytes.len();
        bytes.resize(length + numbers::PAGE_PADDING, 0);
        let start_ms = Hour(day * DAY_HOURS).start_ms();
        Ok(Self { key, start_ms, times, values, hours, pages, bytes, length, decoded: Default::default() })
    }

    /// The hours that have points.
    #[cfg(test)]
    pub(crate) fn hours(&self) -> impl Iterator<Item = Hour> {
        self.hours.iter().map(|(hour, _)| *hour)
    }

    /// The points of some hours, each sorted by time: exactly those that were written, or an error for each page that
    /// cannot be decoded.
    pub(crate) fn read(&mut self, hours: Range<u32>) -> Vec<Result<HourPoints, DecodeError>> {
        let mut found = Vec::new();
        for index in self.pages_of(&hours) {
            match self.page(index) {
                Ok(page) => found
                    .extend(self.points_of(&page, &hours).map(|(hour, points)| Ok((hour, points.collect::<Vec<_>>())))),
                Err(fault) => found.push(Err(fault)),
            }
        }
        found
    }

    /// Appends the points of some hours, sorted by time, without those of pages that cannot be decoded; returns the errors
    /// of these.
    pub(crate) fn append_to(&mut self, hours: Range<u32>, samples: &mut Vec<ThinPoint>) -> Vec<DecodeError> {
        let mut faults = Vec::new();
        samples.reserve(self.hours.iter().filter(|(hour, _)| hours.contains(&hour.0)).map(|(_, count)| count).sum());
        for index in self.pages_of(&hours) {
            match self.page(index) {
                Ok(page) => self.points_of(&page, &hours).for_each(|(_, points)| samples.extend(points)),
                Err(fault) => faults.push(fault),
            }
        }
        faults
    }

    /// The pages that have any of these hours; they are sorted.
    fn pages_of(&self, hours: &Range<u32>) -> Range<usize> {
        let place = |hour: u32| self.hours.partition_point(|(of, _)| of.0 < hour);
        let (start, end) = (place(hours.start), place(hours.end));
        if start >= end {
            return 0..0;
        }
        let page = |place: usize| self.pages.partition_point(|page| page.hours.end <= place);
        page(start)..page(end - 1) + 1
    }

    /// Decodes a page, and returns its hours.
    fn page(&mut self, index: usize) -> Result<Range<usize>, DecodeError> {
        let Self { key, start_ms, times, values, hours, pages, bytes, length, decoded } = self;
        let page = pages.get(index).ok_or(DecodeError::Content("a page that it does not have"))?;
        let end = page.start.checked_add(page.length).filter(|end| end <= length).ok_or(DecodeError::Checksum)?;
        let of = hours.get(page.hours.clone()).unwrap_or_default();
        let first = of.first().map_or(Hour(0), |(hour, _)| *hour);
        let body = match bytes.get(page.start..end) {
            None => return Err(DecodeError::Checksum),
            Some([]) => end,
            Some(bytes) => end - numbers::checked(bytes, page_key(*key, first))?.len(),
        };
        let mut input = PageInput::new(bytes.get(body..).unwrap_or_default(), end - body);
        times.page(&mut input, page.first, page.count, &mut decoded.0)?;
        values.page(&mut input, page.count, &mut decoded.1)?;
        let mut rest = &decoded.0[..];
        for (hour, count) in of {
            let of_hour = hour.start_ms() - *start_ms..hour.start_ms() - *start_ms + HOUR_MS;
            let (times, after) = rest.split_at_checked(*count).unwrap_or_default();
            if times.iter().any(|time| !of_hour.contains(time)) {
                return Err(DecodeError::Content("a time outside its hour"));
            }
            rest = after;
        }
        Ok(page.hours.clone())
    }

    /// Those of the hours of the page that was last decoded that are wanted, and the points of each.
    fn points_of(
        &self,
        page: &Range<usize>,
        wanted: &Range<u32>,
    ) -> impl Iterator<Item = (Hour, impl Iterator<Item = ThinPoint> + use<'_>)> + use<'_> {
        let wanted = wanted.clone();
        let mut end = 0;
        let hours = self.hours.get(page.clone()).unwrap_or_default().iter().map(move |(hour, count)| {
            let of = end..end + count;
            end = of.end;
            (*hour, of)
        });
        hours.filter(move |(hour, _)| wanted.contains(&hour.0)).map(|(hour, of)| {
            let times = self.decoded.0.get(of.clone()).unwrap_or_default();
            let values = self.decoded.1.get(of).unwrap_or_default();
            (hour, times.iter().map(|time| self.start_ms + time).zip(values.iter().copied()))
        })
    }
}

/// Appends the numbers of points of hours, or of bytes of pages: few, of which most are alike.
fn put_sizes(header: &mut Vec<u8>, sizes: &[usize]) {
    rice::put(header, &sizes.iter().map(|size| size.cast_signed() as i64).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: u32 = 2_500;
    const KEY: i64 = 7 << 9;

    fn at(ms: i64) -> i64 {
        Hour(DAY * DAY_HOURS).start_ms() + ms
    }

    fn by_hours(samples: &[ThinPoint]) -> Vec<HourPoints> {
        let hours = samples.chunk_by(|one, next| Hour::of(one.0) == Hour::of(next.0));
        hours.map(|hour| (Hour::of(hour[0].0), hour.to_vec())).collect()
    }

    fn bits(hours: &[HourPoints]) -> Vec<(Hour, Vec<(i64, u64)>)> {
        let points = |samples: &[ThinPoint]| samples.iter().map(|(at_ms, value)| (*at_ms, value.to_bits())).collect();
        hours.iter().map(|(hour, samples)| (*hour, points(samples))).collect()
    }

    fn whole(samples: &[ThinPoint]) -> Vec<u8> {
        let hours = by_hours(samples);
        let bytes = encode(KEY, DAY, &hours).unwrap();
        assert_same(&hours, &bytes);
        assert_same(&hours, &encode_in_pages(KEY, DAY, &hours, 60).unwrap());
        bytes
    }

    fn assert_same(hours: &[HourPoints], bytes: &[u8]) {
        let mut reader = DayReader::new(KEY, DAY, bytes.to_vec()).unwrap();
        assert_eq!(reader.hours().collect::<Vec<_>>(), hours.iter().map(|(hour, _)| *hour).collect::<Vec<_>>());
        let read: Vec<_> = reader.read(0..u32::MAX).into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(bits(&read), bits(hours));
        let mut all = Vec::new();
        assert_eq!(reader.append_to(0..u32::MAX, &mut all), []);
        assert_eq!(bits(&by_hours(&all)), bits(hours));
        // Each alone, the last first.
        for (hour, samples) in hours.iter().rev() {
            let one: Vec<_> = reader.read(hour.0..hour.0 + 1).into_iter().collect::<Result<_, _>>().unwrap();
            assert_eq!(bits(&one), bits(&[(*hour, samples.clone())]));
            let mut alone = Vec::new();
            assert_eq!(reader.append_to(hour.0..hour.0 + 1, &mut alone), []);
            assert_eq!(bits(&by_hours(&alone)), bits(&one));
        }
        assert_eq!(reader.read(DAY * DAY_HOURS + 24..u32::MAX).len() + reader.read(0..DAY * DAY_HOURS).len(), 0);
        assert!(
            matches!(DayReader::new(KEY + 512, DAY, bytes.to_vec()), Err(DecodeError::Checksum)),
            "under another key"
        );
    }

    #[test]
    fn usual_days_are_small() {
        let day = |value: fn(i64) -> f64| (0..8_640).map(|i| (at(i * 10_000 + 1_234), value(i))).collect::<Vec<_>>();
        for (what, samples, bytes_max) in [
            ("constant", day(|_| 0.1), 40),
            ("even counter", day(|i| 17.0 + i as f64 * 1_460.0), 180),
            ("counter", day(|i| 17.0 + (i * 20 + i * i * 7_919 % 20) as f64 * 1_460.0), 6_500),
            ("percents", day(|i| (i * i * 7_919 % 100) as f64 / 100.0), 8_500),
        ] {
            let bytes = whole(&samples).len();
            assert!(bytes <= bytes_max, "{what}: {bytes}");
        }
    }

    #[test]
    fn pages_have_enough_points() {
        for (counts, least, ends) in [
            (&[360; 24][..], 2_000, &[6, 12, 18, 24][..]),
            (&[60; 24], 2_000, &[24]),
            (&[3_600, 1, 1, 3_600, 1], 2_000, &[1, 5]),
            (&[1, 1, 1], 0, &[1, 2, 3]),
            (&[5], usize::MAX, &[1]),
            (&[], 1, &[]),
        ] {
            let pages = in_pages(counts, least);
            assert_eq!(pages.iter().map(|page| page.end).collect::<Vec<_>>(), ends, "{counts:?}");
            assert!(pages.is_sorted_by(|one, next| one.end == next.start), "{pages:?}");
        }
    }

    #[test]
    fn extremes_come_back() {
        for values in [
            vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0],
            vec![f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, 0.1 + 0.2],
            vec![9_007_199_254_740_991.0, -9_007_199_254_740_991.0],
            vec![12.34, 12.35, -0.01],
            vec![f64::from_bits(0x7ff0_0000_0000_0002), 1.0],
        ] {
            for (count, step) in [(1, 1), (5, 1), (50, 1_700_000), (400, 200_003)] {
                let samples: Vec<_> = (0..count).map(|i| (at(i * step), values[i as usize % values.len()])).collect();
                whole(&samples);
            }
        }
        assert_eq!(encode(KEY, DAY, &[]), None);
    }

    #[test]
    fn damage_costs_a_page() {
        let samples: Vec<ThinPoint> =
            (0..2_400).map(|i| (at(i * 36_000 + i * i % 7), (i * 17 % 23) as f64 / 3.0)).collect();
        let good = encode_in_pages(KEY, DAY, &by_hours(&samples), 150).unwrap();
        assert_same(&by_hours(&samples), &good);
        let header = usize::from(good[0]).min(127);
        let (mut lost_all, mut lost_one) = (0, 0);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match DayReader::new(KEY, DAY, bad) {
                Err(_) => lost_all += 1,
                Ok(mut reader) => {
                    let faults = reader.read(0..u32::MAX).iter().filter(|hour| hour.is_err()).count();
                    assert_eq!(faults, 1, "bit {bit}");
                    lost_one += 1;
                }
            }
        }
        assert!(lost_one > lost_all * 5, "{lost_one} and {lost_all}, the header begins with {header}");
        for length in 0..good.len() {
            let whole = DayReader::new(KEY, DAY, good[..length].to_vec())
                .map(|mut day| day.read(0..u32::MAX).iter().all(Result::is_ok));
            assert!(!matches!(whole, Ok(true)), "{length} bytes");
        }
    }

    #[test]
    fn content_that_makes_no_sense_is_an_error() {
        let samples: Vec<ThinPoint> = (0..300).map(|i| (at(i * 280_000 + i * i % 7), (i * 17 % 23) as f64)).collect();
        let good = encode_in_pages(KEY, DAY, &by_hours(&samples), 100).unwrap();
        let length = usize::from(good[0]);
        assert!((20..128).contains(&length), "{length}");
        let (header, pages) = (&good[5..5 + length], &good[5 + length..]);
        let with = |header: &[u8]| {
            let mut bytes = Vec::new();
            numbers::put_varint(&mut bytes, header.len() as u64);
            bytes.extend(numbers::sealed(header, KEY));
            bytes.extend(pages);
            bytes
        };
        assert_eq!(with(header), good);
        let mut found = 0;
        for bit in 0..length * 8 {
            let mut bad = header.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            // The checksum is right, so it is other points or an error, but no panic.
            match DayReader::new(KEY, DAY, with(&bad)) {
                Ok(mut day) => found += usize::from(day.read(0..u32::MAX).iter().any(Result::is_err)),
                Err(fault) => found += usize::from(matches!(fault, DecodeError::Content(_))),
            }
        }
        assert!(found > length, "{found} of {length} bytes");
        let one_hour_late: Vec<HourPoints> = by_hours(&samples)
            .into_iter()
            .map(|(hour, samples)| (Hour((hour.0 + 1).min(DAY * 24 + 23)), samples))
            .collect();
        let mut day = DayReader::new(KEY, DAY, encode(KEY, DAY, &one_hour_late[..20]).unwrap()).unwrap();
        assert_eq!(day.read(0..u32::MAX), [Err(DecodeError::Content("a time outside its hour"))]);
        let mut other = header.to_vec();
        other[0] = 3;
        let fault = DayReader::new(KEY, DAY, with(&other)).err();
        assert_eq!(fault, Some(DecodeError::Content("a day of no known version")));
    }

    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<f64>(),
            any::<i32>().prop_map(f64::from),
            (any::<i32>(), 0..6_i32).prop_map(|(whole, scale)| f64::from(whole) / 10_f64.powi(scale)),
            Just(f64::NAN),
            Just(-0.0),
            Just(12.34),
        ]
    }

    proptest! {
        #[test]
        fn days_come_back(
            times in proptest::collection::btree_set(0..24 * HOUR_MS, 1..200),
            even in proptest::option::of(1..700_000_i64),
            values in prop_oneof![
                proptest::collection::vec(number(), 1..200),
                proptest::collection::vec((-999..999_i32).prop_map(|whole| f64::from(whole) / 100.0), 1..200),
                number().prop_map(|value| vec![value]),
            ],
        ) {
            let times: Vec<i64> = match even {
                Some(step) => (0..).map(|i| i * step).take_while(|at| *at < 24 * HOUR_MS).take(200).collect(),
                None => times.into_iter().collect(),
            };
            let samples: Vec<ThinPoint> = times.into_iter().map(at).zip(values.into_iter().cycle()).collect();
            whole(&samples);
        }

        #[test]
        fn nothing_panics(header in proptest::collection::vec(any::<u8>(), 0..100), rest in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = Vec::new();
            numbers::put_varint(&mut bytes, header.len() as u64);
            bytes.extend(numbers::sealed(&header, KEY));
            bytes.extend(numbers::sealed(&rest, page_key(KEY, Hour(DAY * DAY_HOURS))));
            for bytes in [bytes, header] {
                if let Ok(mut day) = DayReader::new(KEY, DAY, bytes) {
                    let _ = day.read(0..u32::MAX);
                }
            }
        }
    }
}
