//! Rollups: summaries of a series by five minutes or by the hour, many in one blob. Pure.

use std::collections::BTreeMap;

use muster_topics::Millis;

use super::{
    key::{self, DAY_HOURS, HOUR_MS, Hour, SeriesId},
    numbers::{self, DecodeError},
    rice::{self, ColumnsReader},
};
use muster_promql::StretchSummary;

/// Five minutes.
pub(crate) const FIVE_MS: Millis = 300_000;
/// Five minutes in an hour.
pub(crate) const FIVES: u16 = 12;
/// Hours in one blob: sixteen days, as many numbers as an hour of points every ten seconds.
pub(crate) const SPAN_HOURS: u32 = 16 * DAY_HOURS;
/// Largest number of summaries in one blob.
const BUCKETS_MAX: usize = SPAN_HOURS as usize;

/// Summaries by their index in a span of time.
pub(crate) type SummarySpan = BTreeMap<u16, StretchSummary>;

/// Resolution of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// Raw points.
    Raw,
    /// Summaries of five minutes.
    FiveMinutes,
    /// Summaries of an hour.
    Hour,
}

impl Resolution {
    /// The coarsest resolution that has at least one summary in each step.
    #[must_use]
    pub fn for_step(step_ms: Millis) -> Self {
        match step_ms {
            HOUR_MS.. => Self::Hour,
            FIVE_MS.. => Self::FiveMinutes,
            _ => Self::Raw,
        }
    }

    /// The length of a summary; `None` for points.
    #[must_use]
    pub fn width_ms(self) -> Option<Millis> {
        match self {
            Self::Raw => None,
            Self::FiveMinutes => Some(FIVE_MS),
            Self::Hour => Some(HOUR_MS),
        }
    }
}

/// The key of the sixteen days that contain an hour.
pub(crate) fn hourly_key(series: SeriesId, hour: Hour) -> i64 {
    key::series_first(series, hour.0 / SPAN_HOURS)
}

/// The indices of an hour's five-minute summaries in its day.
pub(crate) fn fives_of(hour: Hour) -> std::ops::Range<u16> {
    let first = u16::try_from(hour.0 % DAY_HOURS).unwrap_or_default() * FIVES;
    first..first + FIVES
}

/// The index of an hour in its sixteen days.
pub(crate) fn place_of(hour: Hour) -> u16 {
    u16::try_from(hour.0 % SPAN_HOURS).unwrap_or_default()
}

/// Five-minute summaries of an hour's points, which are sorted by time, by their index in the day.
pub(crate) fn by_fives(hour: Hour, samples: &[(Millis, f64)]) -> SummarySpan {
    let first = fives_of(hour).start;
    let mut span = SummarySpan::new();
    for (at_ms, value) in samples {
        let place = first + u16::try_from((at_ms - hour.start_ms()) / FIVE_MS).unwrap_or_default();
        let summary = StretchSummary::of(*value);
        span.entry(place).and_modify(|before| *before = before.join(summary)).or_insert(summary);
    }
    span
}

/// The encodings of a column: equal to the first values, equal to the last ones, or its own.
const AS_FIRST: u8 = 0;
const AS_LAST: u8 = 1;
const ITSELF: u8 = 2;

/// What a blob of related integers begins with, in place of a number of runs: no span has so many.
const RELATED: u64 = 1_000;
/// Columns of related integers.
const COLUMNS: usize = 7;

/// Encodes a blob, without its checksum.
pub(crate) fn encode(span: &SummarySpan) -> Vec<u8> {
    let mut body = Vec::with_capacity(128);
    let counts: Vec<i64> = span.values().map(|summary| summary.count.cast_signed()).collect();
    if let Some((scale, wholes)) = wholes(span) {
        numbers::put_varint(&mut body, RELATED);
        put_places(&mut body, span);
        body.push(scale);
        std::iter::once(&counts)
            .chain(&related(&wholes, &counts))
            .for_each(|column| rice::put_apart(&mut body, column));
        return body;
    }
    put_places(&mut body, span);
    numbers::put_wholes(&mut body, &counts);
    let column = |of: fn(&StretchSummary) -> f64| span.values().map(of).collect::<Vec<f64>>();
    let (first, last) = (column(|summary| summary.first), column(|summary| summary.last));
    numbers::put(&mut body, &first);
    put_column(&mut body, &last, &first, None);
    for column in [
        column(|summary| summary.min),
        column(|summary| summary.max),
        column(|summary| tidy(summary.sum, summary.count)),
        column(|summary| tidy(summary.resets, summary.count)),
    ] {
        put_column(&mut body, &column, &first, Some(&last));
    }
    body
}

/// First, last, least, greatest, sum and resets of a summary, as integers of one scale.
type Wholes = [i64; 6];

/// The summaries of a span as integers with a scale; `None` if a number has too many decimals.
fn wholes(span: &SummarySpan) -> Option<(u8, Vec<Wholes>)> {
    let numbers: Vec<f64> = span
        .values()
        .flat_map(|one| {
            let (sum, resets) = (tidy(one.sum, one.count), tidy(one.resets, one.count));
            [one.first, one.last, one.min, one.max, sum, resets]
        })
        .collect();
    let (scale, wholes) = numbers::wholes(&numbers)?;
    Some((scale, wholes.as_chunks().0.to_vec()))
}

/// Columns of what each number is more than what others let expect: the first value follows the last of the summary before, the
/// extremes lie near first and last, the sum near that of values in the middle of the extremes or on a straight line, and resets near a
/// multiple of the mean, which is the number of falls.
fn related(wholes: &[Wholes], counts: &[i64]) -> [Vec<i64>; COLUMNS] {
    let mut columns: [Vec<i64>; COLUMNS] = Default::default();
    let mut before = 0;
    for ([first, last, min, max, sum, resets], count) in wholes.iter().copied().zip(counts) {
        let falls = falls(sum, resets, *count);
        let row = [
            first - before,
            last - first,
            first.min(last) - min,
            max - first.max(last),
            sum.wrapping_sub(line(min, max, *count)),
            falls,
            resets.wrapping_sub(falls.wrapping_mul(mean(sum, *count))),
        ];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        before = last;
    }
    columns
}

/// The inverse of [`related`], of one summary; `before` is the last value of the one before.
#[inline]
fn unrelated(before: &mut i64, count: i64, columns: [i64; COLUMNS]) -> Wholes {
    let [first, last, min, max, sum, falls, resets] = columns;
    let first = before.wrapping_add(first);
    let last = first.wrapping_add(last);
    *before = last;
    let (min, max) = (first.min(last).wrapping_sub(min), first.max(last).wrapping_add(max));
    let sum = sum.wrapping_add(line(min, max, count));
    // A division takes longer than all the rest.
    let expected = if falls == 0 { 0 } else { falls.wrapping_mul(mean(sum, count)) };
    [first, last, min, max, sum, resets.wrapping_add(expected)]
}

/// The mean of so many values; never 0.
fn mean(sum: i64, count: i64) -> i64 {
    let mean = sum.checked_div_euclid(count).unwrap_or(sum);
    if mean == 0 { 1 } else { mean }
}

/// How many values resets are likely the sum of.
fn falls(sum: i64, resets: i64, count: i64) -> i64 {
    let mean = mean(sum, count);
    let falls = resets.wrapping_add(mean / 2).wrapping_div(mean);
    // Others come from values that differ much, which have no mean.
    if (0..count).contains(&falls) { falls } else { 0 }
}

/// The sum of values on a straight line, or in the middle of two.
fn line(first: i64, last: i64, count: i64) -> i64 {
    first.wrapping_add(last).wrapping_mul(count).div_euclid(2)
}

/// The summary of integers of a scale.
#[inline]
fn summary(scale: f64, count: i64, wholes: Wholes) -> StretchSummary {
    let [first, last, min, max, sum, resets] = wholes.map(|whole| numbers::from_whole(whole, scale));
    StretchSummary { count: count.cast_unsigned(), min, max, sum, first, last, resets }
}

/// Decodes a blob.
pub(crate) fn decode(key: i64, bytes: &[u8]) -> Result<SummarySpan, DecodeError> {
    let mut span = SummarySpan::new();
    decode_each(key, bytes, |place, summary| _ = span.insert(place, summary))?;
    Ok(span)
}

/// Decodes a blob into summaries with their index, sorted. After an error, what came before it is not valid.
pub(crate) fn decode_each(key: i64, bytes: &[u8], found: impl FnMut(u16, StretchSummary)) -> Result<(), DecodeError> {
    let mut body = numbers::checked(bytes, key)?;
    let input = &mut body;
    let mut rest = *input;
    match numbers::take_varint(&mut rest)? {
        RELATED => scaled(rest, found),
        _ => unscaled(input, found),
    }
}

/// Decodes related columns of integers of one scale, which are read side by side.
fn scaled(mut input: &[u8], mut found: impl FnMut(u16, StretchSummary)) -> Result<(), DecodeError> {
    let places = take_places(&mut input)?;
    let scale = numbers::scale(numbers::take_byte(&mut input)?)?;
    let mut columns = ColumnsReader::<{ 1 + COLUMNS }>::new(input)?;
    let mut before = 0;
    for place in places {
        let [count, values @ ..] = columns.next();
        found(place, summary(scale, count, unrelated(&mut before, count, values)));
    }
    columns.finish()
}

/// Decodes columns of numbers that are no integers of one scale.
fn unscaled(input: &mut &[u8], mut found: impl FnMut(u16, StretchSummary)) -> Result<(), DecodeError> {
    let places = take_places(input)?;
    let count = places.len();
    let counts = numbers::take_wholes(input, count)?;
    let first = numbers::take(input, count)?;
    let last = take_column(input, &first, None)?;
    let mut column = || take_column(input, &first, Some(&last));
    let (min, max, sum, resets) = (column()?, column()?, column()?, column()?);
    for (i, place) in places.into_iter().enumerate() {
        let summary = StretchSummary {
            count: counts[i].cast_unsigned(),
            min: min[i],
            max: max[i],
            sum: sum[i],
            first: first[i],
            last: last[i],
            resets: resets[i],
        };
        found(place, summary);
    }
    Ok(())
}

/// Encodes indices as runs: the length of the gap before each, and its own length.
fn put_places(body: &mut Vec<u8>, span: &SummarySpan) {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for place in span.keys() {
        match runs.last_mut() {
            Some((first, length)) if *first + *length == *place => *length += 1,
            _ => runs.push((*place, 1)),
        }
    }
    numbers::put_varint(body, runs.len() as u64);
    let mut end = 0;
    for (first, length) in runs {
        numbers::put_varint(body, u64::from(first - end));
        numbers::put_varint(body, u64::from(length));
        end = first + length;
    }
}

fn take_places(input: &mut &[u8]) -> Result<Vec<u16>, DecodeError> {
    let mut places = Vec::new();
    let mut end = 0_u64;
    for _ in 0..numbers::take_varint(input)? {
        let first = end.saturating_add(numbers::take_varint(input)?);
        end = first.saturating_add(numbers::take_varint(input)?);
        if end > BUCKETS_MAX as u64 {
            return Err(DecodeError::Content("a place outside its stretch"));
        }
        places.extend((first..end).filter_map(|place| u16::try_from(place).ok()));
    }
    Ok(places)
}

fn put_column(body: &mut Vec<u8>, column: &[f64], first: &[f64], last: Option<&[f64]>) {
    if same(column, first) {
        body.push(AS_FIRST);
    } else if last.is_some_and(|last| same(column, last)) {
        body.push(AS_LAST);
    } else {
        body.push(ITSELF);
        numbers::put(body, column);
    }
}

fn take_column(input: &mut &[u8], first: &[f64], last: Option<&[f64]>) -> Result<Vec<f64>, DecodeError> {
    match (numbers::take_byte(input)?, last) {
        (AS_FIRST, _) => Ok(first.to_vec()),
        (AS_LAST, Some(last)) => Ok(last.to_vec()),
        (ITSELF, _) => numbers::take(input, first.len()),
        _ => Err(DecodeError::Content("a column of no known kind")),
    }
}

fn same(one: &[f64], other: &[f64]) -> bool {
    one.iter().map(|value| value.to_bits()).eq(other.iter().map(|value| value.to_bits()))
}

/// Rounds a sum to four decimals: the sum of numbers with few decimals has few decimals, and the rest is rounding
/// error, which takes space. The difference is smaller than the possible error of the sum.
#[expect(clippy::cast_precision_loss, reason = "only its size matters")]
fn tidy(sum: f64, count: u64) -> f64 {
    const SCALE: f64 = 10_000.0;
    let rounded = (sum * SCALE).round() / SCALE;
    if (rounded - sum).abs() <= sum.abs() * f64::EPSILON * count as f64 { rounded } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(span: &SummarySpan) -> usize {
        let bytes = numbers::sealed(&encode(span), 7);
        let read = decode(7, &bytes).unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), span.keys().collect::<Vec<_>>());
        for (one, other) in read.values().zip(span.values()) {
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
            assert!(near(one.sum, other.sum) && near(one.resets, other.resets), "{one:?} {other:?}");
            assert_eq!(StretchSummary { sum: other.sum, resets: other.resets, ..*one }, *other);
        }
        assert_eq!(decode(8, &bytes), Err(DecodeError::Checksum));
        bytes.len()
    }

    #[test]
    fn a_day_is_small() {
        let day = |value: fn(u32) -> f64| -> SummarySpan {
            (0..288_u16)
                .map(|five| (five, StretchSummary::over((0..30).map(|i| value(u32::from(five) * 30 + i))).unwrap()))
                .collect()
        };
        for (what, span, bytes_max) in [
            ("constant", day(|_| 4.0), 100),
            ("counter", day(|i| f64::from(i) * 512.0), 100),
            ("percents", day(|i| f64::from(i * i % 7919 % 100) / 100.0), 2_300),
        ] {
            let bytes = whole(&span);
            assert!(bytes <= bytes_max, "{what}: {bytes}");
        }
        whole(&SummarySpan::new());
        whole(&SummarySpan::from([(383, StretchSummary::of(-0.5))]));
    }

    #[test]
    fn content_that_makes_no_sense_is_named() {
        let summary = |five: u16| StretchSummary::over((0..30).map(|i| f64::from(five % 17 * i % 7))).unwrap();
        let good = encode(&(0..288).map(|five| (five, summary(five))).collect());
        let read = |body: &[u8]| decode(7, &numbers::sealed(body, 7));
        assert_eq!(read(&good).unwrap().len(), 288);
        for cut in 0..good.len() {
            assert!(matches!(read(&good[..cut]), Err(DecodeError::Content(_))), "{cut} of {}", good.len());
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // Other numbers, or an error.
            let _ = read(&bad);
        }
        // Of columns with fewer numbers than places, more would be read than there is.
        let mut short = Vec::new();
        numbers::put_varint(&mut short, RELATED);
        put_places(&mut short, &(0..100).map(|five| (five, summary(five))).collect());
        short.push(0);
        (0..=COLUMNS).for_each(|_| rice::put_apart(&mut short, &[1, 2, 9]));
        assert_eq!(read(&short), Err(DecodeError::Content("a column that ends elsewhere")));
    }

    #[test]
    fn steps_get_the_coarsest_that_is_fine_enough() {
        for (step_ms, resolution) in [
            (0, Resolution::Raw),
            (FIVE_MS - 1, Resolution::Raw),
            (FIVE_MS, Resolution::FiveMinutes),
            (HOUR_MS - 1, Resolution::FiveMinutes),
            (HOUR_MS, Resolution::Hour),
            (Millis::MAX, Resolution::Hour),
        ] {
            assert_eq!(Resolution::for_step(step_ms), resolution, "{step_ms}");
        }
    }

    #[test]
    fn points_fall_into_their_five_minutes() {
        let hour = Hour(24 * 100 + 5);
        let at = |ms| hour.start_ms() + ms;
        let span = by_fives(hour, &[(at(0), 1.0), (at(FIVE_MS - 1), 2.0), (at(FIVE_MS), 3.0), (at(HOUR_MS - 1), 4.0)]);
        assert_eq!(span.keys().copied().collect::<Vec<_>>(), [60, 61, 71]);
        assert_eq!(span[&60], StretchSummary::of(1.0).join(StretchSummary::of(2.0)));
        assert_eq!(fives_of(hour), 60..72);
    }

    proptest! {
        #[test]
        fn spans_come_back(
            places in proptest::collection::btree_set(0..384_u16, 0..50),
            values in prop_oneof![
                proptest::collection::vec(-1e6..1e6, 150),
                proptest::collection::vec((-9_000..9_000_i32).prop_map(|whole| f64::from(whole) / 100.0), 150),
                proptest::collection::vec((0..90_i32).prop_map(f64::from), 150),
                proptest::collection::vec((-9..9_i64).prop_map(|far| (far << 49) as f64), 150),
            ],
        ) {
            let mut values = values.chunks(3);
            let span: SummarySpan = places
                .into_iter()
                .map(|place| (place, StretchSummary::over(values.next().unwrap().iter().copied()).unwrap()))
                .collect();
            whole(&span);
        }

        #[test]
        fn nothing_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(7, &numbers::sealed(&body, 7));
        }
    }
}
