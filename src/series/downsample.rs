//! Reduces the points of a series without hiding its peaks.
//!
//! Points are taken in the order of time and folded into buckets of equal width; a bucket keeps its
//! least and its greatest point, so that a peak of one sample stays visible. The width
//! is the smallest power of two milliseconds with which everything fits, found on the way: whenever there
//! are too many buckets, neighbours are merged. So nothing is lost as long as everything fits, whatever
//! the requested range, memory is bounded by the answer, and buckets do not move while a
//! range does, so that a chart does not flicker. The last point is always kept, because people read it.

use muster_topics::Millis;

/// A time and a value.
pub(crate) type ThinPoint = (Millis, f64);

/// Smallest number of points that a series can be reduced to: smallest, largest and last of one bucket, and one more.
pub(crate) const THIN_MIN: usize = 4;

/// The smallest and the largest point of a stretch of time.
#[derive(Clone, Copy, Debug)]
struct ThinBucket {
    least: ThinPoint,
    greatest: ThinPoint,
}

impl ThinBucket {
    fn of(sample: ThinPoint) -> Self {
        Self { least: sample, greatest: sample }
    }

    /// Merges a later bucket; of equal values the first stays.
    fn fold(&mut self, later: Self) {
        if later.least.1 < self.least.1 {
            self.least = later.least;
        }
        if later.greatest.1 > self.greatest.1 {
            self.greatest = later.greatest;
        }
    }

    fn samples(self) -> impl Iterator<Item = ThinPoint> {
        let (first, second) =
            if self.least.0 <= self.greatest.0 { (self.least, self.greatest) } else { (self.greatest, self.least) };
        std::iter::once(first).chain((second.0 != first.0).then_some(second))
    }

    fn len(self) -> usize {
        if self.least.0 == self.greatest.0 { 1 } else { 2 }
    }
}

/// Reduces points, given in order of time, to at most a given number.
#[derive(Debug)]
pub(crate) struct Thinner {
    samples_max: usize,
    width_ms: Millis,
    buckets: Vec<ThinBucket>,
    /// Number of points in `buckets`.
    kept: usize,
    last: Option<ThinPoint>,
}

impl Thinner {
    /// At most `samples_max` points, but at least [`THIN_MIN`].
    pub(crate) fn new(samples_max: usize) -> Self {
        Self { samples_max: samples_max.max(THIN_MIN), width_ms: 1, buckets: Vec::new(), kept: 0, last: None }
    }

    /// Adds the next point.
    pub(crate) fn push(&mut self, sample: ThinPoint) {
        self.last = Some(sample);
        let bucket = ThinBucket::of(sample);
        match self.buckets.last_mut() {
            Some(last) if same(last, &bucket, self.width_ms) => {
                self.kept -= last.len();
                last.fold(bucket);
                self.kept += last.len();
            }
            _ => {
                self.buckets.push(bucket);
                self.kept += 1;
            }
        }
        // One place stays free for the last point, unless all points fit unchanged.
        let room = if self.width_ms == 1 { self.samples_max } else { self.samples_max - 1 };
        if self.kept > room {
            self.widen();
        }
    }

    /// The remaining points, oldest first.
    pub(crate) fn finish(self) -> Vec<ThinPoint> {
        let mut samples: Vec<_> = self.buckets.iter().flat_map(|bucket| bucket.samples()).collect();
        if let Some(last) = self.last
            && samples.last().is_none_or(|sample| sample.0 < last.0)
        {
            samples.push(last);
        }
        samples
    }

    /// Doubles the width until there is room for the last point. This ends: a bucket that is wider than the range of
    /// keys is the only one, and [`THIN_MIN`] leaves room for its two points.
    fn widen(&mut self) {
        while self.kept > self.samples_max - 1 {
            let Some(width_ms) = self.width_ms.checked_mul(2) else { return };
            self.width_ms = width_ms;
            let mut merged: Vec<ThinBucket> = Vec::with_capacity(self.buckets.len());
            for bucket in self.buckets.drain(..) {
                match merged.last_mut() {
                    Some(last) if same(last, &bucket, width_ms) => last.fold(bucket),
                    _ => merged.push(bucket),
                }
            }
            self.kept = merged.iter().map(|bucket| bucket.len()).sum();
            self.buckets = merged;
        }
    }
}

/// Whether two buckets belong to one of this width.
fn same(a: &ThinBucket, b: &ThinBucket, width_ms: Millis) -> bool {
    a.least.0.div_euclid(width_ms) == b.least.0.div_euclid(width_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn thin(samples: &[ThinPoint], samples_max: usize) -> Vec<ThinPoint> {
        let mut thinner = Thinner::new(samples_max);
        samples.iter().for_each(|sample| thinner.push(*sample));
        thinner.finish()
    }

    #[test]
    fn a_peak_of_one_sample_stays() {
        let mut samples: Vec<ThinPoint> = (0..100_000).map(|i| (i * 10_000, 0.5)).collect();
        samples[33_333].1 = 1.0;
        samples[66_666].1 = 0.0;
        let thinned = thin(&samples, 100);
        assert!(thinned.contains(&samples[33_333]) && thinned.contains(&samples[66_666]));
        assert_eq!(thinned.last(), samples.last());
        assert!(thinned.len() <= 100 && thinned.len() > 40, "{}", thinned.len());
    }

    #[test]
    fn what_fits_is_left_alone_though_it_is_crowded() {
        let samples: Vec<ThinPoint> = (0..100).map(|i| (i * 3, f64::from(i as i32 % 7))).collect();
        assert_eq!(thin(&samples, 100), samples);
        assert!(thin(&samples, 99).len() <= 99);
        assert_eq!(thin(&[], 4), []);
    }

    proptest! {
        #[test]
        fn bounds_hold(
            samples in proptest::collection::btree_map(0..=super::super::key::TIME_LAST_MS, -1e9..1e9, 1..300),
            samples_max in 0..300_usize,
        ) {
            let samples: Vec<ThinPoint> = samples.into_iter().collect();
            let thinned = thin(&samples, samples_max);
            prop_assert!(thinned.len() <= samples_max.max(THIN_MIN));
            prop_assert!(thinned.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(thinned.iter().all(|sample| samples.contains(sample)));
            prop_assert_eq!(thinned.last(), samples.last());
            for pick in [f64::min, f64::max] {
                let of = |samples: &[ThinPoint]| samples.iter().map(|sample| sample.1).reduce(pick);
                prop_assert_eq!(of(&thinned), of(&samples));
            }
            if samples.len() <= samples_max {
                prop_assert_eq!(thinned, samples);
            }
        }
    }
}
