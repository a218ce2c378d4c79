//! Chunks: the points of a series in an hour, or in a part of it if they are very dense, as one blob. Pure.
//!
//! A chunk has a checksum, its encoding, the number of its points, their times, and their values.
//! Equidistant times, which most are, take the first one and the distance.

use super::{
    downsample::ThinPoint,
    key::{HOUR_MS, Hour, SLOTS},
    numbers::{self, DecodeError},
};

/// Largest number of points in a chunk: twice what a series that is measured every second has in an hour. It is more
/// than one slot of an hour can hold, so splitting always helps.
pub(crate) const POINTS_MAX: usize = 8_192;

/// The encodings of times.
const REGULAR: u8 = 0;
const IRREGULAR: u8 = 1;

/// Encodes a chunk, without its checksum. There is at least one point, and they are sorted by time.
pub(crate) fn encode(hour: Hour, samples: &[ThinPoint]) -> Vec<u8> {
    let times: Vec<i64> = samples.iter().map(|sample| sample.0 - hour.start_ms()).collect();
    let values: Vec<f64> = samples.iter().map(|sample| sample.1).collect();
    let mut body = Vec::with_capacity(64);
    let step = times.get(1).map_or(0, |second| second - times[0]);
    let regular = times.is_sorted_by(|one, next| next - one == step);
    body.push(if regular { REGULAR } else { IRREGULAR });
    numbers::put_varint(&mut body, samples.len() as u64);
    if regular {
        numbers::put_varint(&mut body, times.first().copied().unwrap_or_default().unsigned_abs());
        numbers::put_varint(&mut body, step.unsigned_abs());
    } else {
        numbers::put_wholes(&mut body, &times);
    }
    numbers::put(&mut body, &values);
    body
}

/// Decodes a chunk into points, sorted by time. They are exactly what was written, or an error is returned.
pub(crate) fn decode(key: i64, hour: Hour, bytes: &[u8]) -> Result<Vec<ThinPoint>, DecodeError> {
    let mut body = numbers::checked(bytes, key)?;
    let kind = numbers::take_byte(&mut body)?;
    let count = usize::try_from(numbers::take_varint(&mut body)?).unwrap_or(usize::MAX);
    if count > POINTS_MAX {
        return Err(DecodeError::Content("too many points"));
    }
    let times = match kind {
        REGULAR => {
            let first = i64::try_from(numbers::take_varint(&mut body)?).unwrap_or(HOUR_MS);
            let step = i64::try_from(numbers::take_varint(&mut body)?).unwrap_or(HOUR_MS);
            (0_i64..).take(count).map(|index| first.saturating_add(step.saturating_mul(index))).collect()
        }
        IRREGULAR => numbers::take_wholes(&mut body, count)?,
        _ => return Err(DecodeError::Content("a chunk of no known kind")),
    };
    if times.iter().any(|time| !(0..HOUR_MS).contains(time)) {
        return Err(DecodeError::Content("a time outside its hour"));
    }
    let values = numbers::take(&mut body, count)?;
    Ok(times.into_iter().map(|time| hour.start_ms() + time).zip(values).collect())
}

/// Splits the points between two slots of an hour into chunks that are small enough; returns the start of each.
pub(crate) fn divide(hour: Hour, first: u16, end: u16, samples: &[ThinPoint]) -> Vec<(u16, &[ThinPoint])> {
    if samples.is_empty() {
        return Vec::new();
    }
    if samples.len() <= POINTS_MAX || end - first <= 1 {
        return vec![(first, samples)];
    }
    let middle = u16::midpoint(first, end);
    let cut = samples.partition_point(|sample| hour.slot(sample.0) < middle);
    let (one, other) = samples.split_at(cut);
    let mut parts = divide(hour, first, middle, one);
    parts.extend(divide(hour, middle, end, other));
    parts
}

/// The points of a whole hour as chunks: start and body of each.
pub(crate) fn encode_hour(hour: Hour, samples: &[ThinPoint]) -> Vec<(u16, Vec<u8>)> {
    divide(hour, 0, SLOTS, samples).into_iter().map(|(slot, samples)| (slot, encode(hour, samples))).collect()
}

/// Merges two lists by time; for equal times the later list counts.
pub(crate) fn merge(mut earlier: Vec<ThinPoint>, later: Vec<ThinPoint>) -> Vec<ThinPoint> {
    if later.is_empty() {
        return earlier;
    }
    if earlier.is_empty() {
        return later;
    }
    if earlier.last().is_none_or(|last| later.first().is_none_or(|first| last.0 < first.0)) {
        earlier.extend(later);
        return earlier;
    }
    let mut merged = Vec::with_capacity(earlier.len() + later.len());
    let mut earlier = earlier.into_iter().peekable();
    for sample in later {
        while let Some(before) = earlier.next_if(|before| before.0 < sample.0) {
            merged.push(before);
        }
        earlier.next_if(|same| same.0 == sample.0);
        merged.push(sample);
    }
    merged.extend(earlier);
    merged
}

/// Sorts points, given in the order in which they were written; for equal times the last one counts.
pub(crate) fn settle(samples: &mut Vec<ThinPoint>) {
    if samples.is_sorted_by(|one, next| one.0 < next.0) {
        return;
    }
    samples.sort_by_key(|sample| sample.0);
    // The first of a run of equal times is kept, with the value of the last.
    samples.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = next.1;
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    const HOUR: Hour = Hour(60_000);

    fn whole(samples: &[ThinPoint]) -> usize {
        let body = encode(HOUR, samples);
        let bytes = numbers::sealed(&body, 7);
        assert_eq!(decode(7, HOUR, &bytes).unwrap(), samples);
        assert_eq!(decode(8, HOUR, &bytes), Err(DecodeError::Checksum), "under another key");
        bytes.len()
    }

    #[test]
    fn an_hour_is_small() {
        let at = |i: i64| HOUR.start_ms() + i * 10_000 + 1_234;
        let counter: Vec<ThinPoint> = (0..360).map(|i| (at(i), i as f64 * 512.0)).collect();
        assert!(whole(&counter) <= 60, "{}", whole(&counter));
        let shaky: Vec<ThinPoint> = (0..360).map(|i| (at(i) + i * i % 7, (i * 31 % 10) as f64)).collect();
        assert!(whole(&shaky) <= 360 * 7 / 5, "{}", whole(&shaky));
        assert_eq!(whole(&[(HOUR.start_ms(), 1.0)]), 4 + 1 + 1 + 1 + 1 + 1 + 8);
        whole(&[(HOUR.start_ms(), 0.5), (HOUR.start_ms() + HOUR_MS - 1, f64::MAX)]);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let samples: Vec<ThinPoint> = (0..100).map(|i| (HOUR.start_ms() + i * i, (i * 17 % 23) as f64 / 3.0)).collect();
        let good = numbers::sealed(&encode(HOUR, &samples), 7);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(7, HOUR, &bad), Err(DecodeError::Checksum), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(decode(7, HOUR, &good[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_dense_hour_is_divided() {
        let samples: Vec<ThinPoint> = (0..HOUR_MS / 2).map(|i| (HOUR.start_ms() + i, 1.0)).collect();
        let parts = divide(HOUR, 0, SLOTS, &samples);
        assert!(parts.len() >= samples.len() / POINTS_MAX);
        assert!(parts.iter().all(|(slot, part)| part.len() <= POINTS_MAX && HOUR.slot(part[0].0) >= *slot));
        assert_eq!(parts.concat_samples(), samples);
        assert_eq!(encode_hour(HOUR, &samples[..10]).len(), 1);
    }

    trait Concat {
        fn concat_samples(&self) -> Vec<ThinPoint>;
    }
    impl Concat for Vec<(u16, &[ThinPoint])> {
        fn concat_samples(&self) -> Vec<ThinPoint> {
            self.iter().flat_map(|(_, part)| part.iter().copied()).collect()
        }
    }

    fn some() -> impl Strategy<Value = Vec<ThinPoint>> {
        proptest::collection::vec((0..40_i64, -5..5_i32), 0..60)
            .prop_map(|all| all.into_iter().map(|(at, value)| (HOUR.start_ms() + at, f64::from(value))).collect())
    }

    proptest! {
        #[test]
        fn the_last_writer_counts(earlier in some(), later in some()) {
            let wanted: BTreeMap<_, _> = earlier.iter().chain(&later).copied().collect();
            let (mut one, mut other) = (earlier, later);
            settle(&mut one);
            settle(&mut other);
            let merged = merge(one, other);
            prop_assert_eq!(&merged, &wanted.into_iter().collect::<Vec<_>>());
            if !merged.is_empty() {
                whole(&merged);
            }
        }

        #[test]
        fn nothing_panics(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(7, HOUR, &numbers::sealed(&body, 7));
            let _ = decode(7, HOUR, &body);
        }
    }
}
