//! `histogram_quantile`: a quantile of observations that were counted in buckets.

/// The number of observations up to a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistogramBucket {
    pub(crate) bound: f64,
    pub(crate) count: f64,
}

/// The value below which a share of the observations lies, if they are evenly distributed within each bucket.
pub(crate) fn quantile(share: f64, mut buckets: Vec<HistogramBucket>) -> f64 {
    if share.is_nan() {
        return f64::NAN;
    }
    if share < 0.0 {
        return f64::NEG_INFINITY;
    }
    if share > 1.0 {
        return f64::INFINITY;
    }
    buckets.sort_by(|a, b| a.bound.partial_cmp(&b.bound).unwrap_or(std::cmp::Ordering::Equal));
    if buckets.last().is_none_or(|last| last.bound != f64::INFINITY) {
        return f64::NAN;
    }
    let buckets = rising(buckets);
    let [.., before_last, last] = buckets.as_slice() else { return f64::NAN };
    if last.count == 0.0 {
        return f64::NAN;
    }
    let rank = share * last.count;
    let found = search(buckets.len() - 1, |index| buckets.get(index).is_some_and(|bucket| bucket.count >= rank));
    let Some(bucket) = buckets.get(found).filter(|_| found < buckets.len() - 1) else { return before_last.bound };
    let below = found.checked_sub(1).and_then(|index| buckets.get(index));
    match below {
        None if bucket.bound <= 0.0 => bucket.bound,
        None => bucket.bound * (rank / bucket.count),
        Some(below) => {
            let share = (rank - below.count) / (bucket.count - below.count);
            below.bound + (bucket.bound - below.bound) * share
        }
    }
}

/// Merges buckets with equal bounds, and makes the counts ascend, because scraped and summed counts are not exact.
fn rising(buckets: Vec<HistogramBucket>) -> Vec<HistogramBucket> {
    let mut rising: Vec<HistogramBucket> = Vec::with_capacity(buckets.len());
    for bucket in buckets {
        match rising.last_mut() {
            Some(last) if last.bound == bucket.bound => last.count += bucket.count,
            _ => rising.push(bucket),
        }
    }
    let mut most = rising.first().map_or(0.0, |bucket| bucket.count);
    for bucket in &mut rising {
        if bucket.count > most {
            most = bucket.count;
        } else if bucket.count < most {
            bucket.count = most;
        }
    }
    rising
}

/// The first index in `0..end` for which `such` holds, by binary search.
fn search(end: usize, such: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low.midpoint(high);
        if such(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
