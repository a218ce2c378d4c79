//! Functions of the samples in a window of time: `rate`, `avg_over_time` and their kind.

use super::source::SampleStretch;
use crate::{over_time_summaries, query_range::Millis, source::TimedValue};

/// The samples of one series in a window, oldest first; never empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleWindow<'a> {
    /// Summaries of the time before the samples, where samples are not available or not needed.
    pub(crate) stretches: &'a [SampleStretch],
    pub(crate) samples: &'a [TimedValue],
    /// Start of the window.
    pub(crate) start_ms: Millis,
    /// End of the window.
    pub(crate) end_ms: Millis,
    /// The step to which the window belongs.
    pub(crate) now_ms: Millis,
}

impl SampleWindow<'_> {
    /// The newest value; that of a stretch gets the time of its end.
    pub(crate) fn last(&self) -> Option<TimedValue> {
        self.samples
            .last()
            .copied()
            .or_else(|| self.stretches.last().map(|last| (last.end_ms() - 1, last.summary.last)))
    }
}

/// The functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverTimeFunction {
    Rate,
    Increase,
    Delta,
    InstantRate,
    InstantDelta,
    Derivative,
    PredictLinear,
    Changes,
    Resets,
    Average,
    Minimum,
    Maximum,
    Sum,
    Count,
    Last,
    Deviation,
    Variance,
    Quantile,
    Present,
}

impl OverTimeFunction {
    const NAMES: [(&'static str, Self); 19] = [
        ("rate", Self::Rate),
        ("increase", Self::Increase),
        ("delta", Self::Delta),
        ("irate", Self::InstantRate),
        ("idelta", Self::InstantDelta),
        ("deriv", Self::Derivative),
        ("predict_linear", Self::PredictLinear),
        ("changes", Self::Changes),
        ("resets", Self::Resets),
        ("avg_over_time", Self::Average),
        ("min_over_time", Self::Minimum),
        ("max_over_time", Self::Maximum),
        ("sum_over_time", Self::Sum),
        ("count_over_time", Self::Count),
        ("last_over_time", Self::Last),
        ("stddev_over_time", Self::Deviation),
        ("stdvar_over_time", Self::Variance),
        ("quantile_over_time", Self::Quantile),
        ("present_over_time", Self::Present),
    ];

    /// The function with this name in queries.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(one, _)| *one == name).map(|(_, function)| function)
    }

    /// Its name in queries.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    /// Whether it can also be computed from summaries; `over_time_summaries` describes the possible error.
    pub(crate) fn of_summaries(self) -> bool {
        matches!(
            self,
            Self::Rate
                | Self::Increase
                | Self::Delta
                | Self::Average
                | Self::Minimum
                | Self::Maximum
                | Self::Sum
                | Self::Count
                | Self::Last
                | Self::Present
        )
    }

    /// Whether the result keeps the name of the series.
    pub(crate) fn keeps_name(self) -> bool {
        self == Self::Last
    }

    /// The result, if the window has enough samples.
    pub(crate) fn apply(self, window: &SampleWindow<'_>, parameter: f64) -> Option<f64> {
        if !window.stretches.is_empty() {
            return over_time_summaries::apply(self, window);
        }
        let samples = window.samples;
        let (&(_, first), &(_, last)) = (samples.first()?, samples.last()?);
        match self {
            Self::Rate => extrapolated(window, true, true),
            Self::Increase => extrapolated(window, true, false),
            Self::Delta => extrapolated(window, false, false),
            Self::InstantRate => last_two(samples, true),
            Self::InstantDelta => last_two(samples, false),
            Self::Derivative => line(samples, samples.first()?.0).map(|(slope, _)| slope),
            Self::PredictLinear => line(samples, window.now_ms).map(|(slope, base)| slope * parameter + base),
            Self::Changes => Some(count_pairs(samples, |a, b| a != b && !(a.is_nan() && b.is_nan()))),
            Self::Resets => Some(count_pairs(samples, |a, b| b < a)),
            Self::Average => Some(average(values(samples))),
            Self::Minimum => {
                Some(values(samples).fold(first, |least, v| if v < least || least.is_nan() { v } else { least }))
            }
            Self::Maximum => {
                Some(values(samples).fold(first, |most, v| if v > most || most.is_nan() { v } else { most }))
            }
            Self::Sum => Some(sum(values(samples))),
            Self::Count => Some(samples.len() as f64),
            Self::Last => Some(last),
            Self::Deviation => Some(variance(samples).sqrt()),
            Self::Variance => Some(variance(samples)),
            Self::Quantile => Some(quantile(parameter, values(samples).collect())),
            Self::Present => Some(1.0),
        }
    }
}

fn values(samples: &[TimedValue]) -> impl Iterator<Item = f64> {
    samples.iter().map(|(_, value)| *value)
}

fn seconds(ms: Millis) -> f64 {
    ms as f64 / 1000.0
}

fn count_pairs(samples: &[TimedValue], counts: impl Fn(f64, f64) -> bool) -> f64 {
    samples.windows(2).filter(|pair| matches!(pair, [(_, a), (_, b)] if counts(*a, *b))).count() as f64
}

/// The change of the value, extrapolated to the ends of the window if the samples nearly reach them; otherwise by half
/// the distance between two samples, because the series may have begun or ended there. A counter is never extrapolated
/// below 0.
fn extrapolated(window: &SampleWindow<'_>, counter: bool, per_second: bool) -> Option<f64> {
    let [(first_ms, first), .., (last_ms, last)] = window.samples else { return None };
    let mut change = last - first;
    if counter {
        let mut before = 0.0;
        for value in values(window.samples) {
            if value < before {
                change += before;
            }
            before = value;
        }
    }
    let mut to_start = seconds(first_ms - window.start_ms);
    let to_end = seconds(window.end_ms - last_ms);
    let sampled = seconds(last_ms - first_ms);
    let distance = sampled / (window.samples.len() - 1) as f64;
    if counter && change > 0.0 && *first >= 0.0 {
        to_start = to_start.min(sampled * (first / change));
    }
    // Ten per cent of tolerance, because samples are not perfectly regular.
    let near = distance * 1.1;
    let extended = sampled
        + if to_start < near { to_start } else { distance / 2.0 }
        + if to_end < near { to_end } else { distance / 2.0 };
    let mut factor = extended / sampled;
    if per_second {
        factor /= seconds(window.end_ms - window.start_ms);
    }
    Some(change * factor)
}

/// The change between the last two samples.
fn last_two(samples: &[TimedValue], rate: bool) -> Option<f64> {
    let [.., (before_ms, before), (last_ms, last)] = samples else { return None };
    if before_ms == last_ms {
        return None;
    }
    // A counter that fell was reset to 0.
    let change = if rate && last < before { *last } else { last - before };
    Some(if rate { change / seconds(last_ms - before_ms) } else { change })
}

/// A sum and its rounding error (Kahan's method with Neumaier's improvement).
#[derive(Clone, Copy, Default)]
struct KahanSum {
    sum: f64,
    lost: f64,
}

impl KahanSum {
    fn add(&mut self, value: f64) {
        let next = self.sum + value;
        self.lost += if self.sum.abs() >= value.abs() { (self.sum - next) + value } else { (value - next) + self.sum };
        self.sum = next;
    }

    fn total(self) -> f64 {
        self.sum + self.lost
    }
}

fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut sum = KahanSum::default();
    values.for_each(|value| sum.add(value));
    if sum.sum.is_infinite() { sum.sum } else { sum.total() }
}

/// Divides before summing, so that large values do not overflow.
fn average(values: impl Iterator<Item = f64>) -> f64 {
    let mut mean = KahanSum::default();
    let mut count = 0.0;
    for value in values {
        count += 1.0;
        // An infinite average stays infinite, unless the opposite infinity or NaN follows.
        if mean.sum.is_infinite() && (value.is_finite() || value.is_infinite() && (mean.sum > 0.0) == (value > 0.0)) {
            continue;
        }
        mean.add(value / count - mean.sum / count);
    }
    if mean.sum.is_infinite() { mean.sum } else { mean.total() }
}

fn variance(samples: &[TimedValue]) -> f64 {
    let (mut mean, mut squares) = (KahanSum::default(), KahanSum::default());
    let mut count = 0.0;
    for value in values(samples) {
        count += 1.0;
        let delta = value - mean.total();
        mean.add(delta / count);
        squares.add(delta * (value - mean.total()));
    }
    squares.total() / count
}

/// Linear regression of the samples: the slope per second, and the value at a time.
fn line(samples: &[TimedValue], at_ms: Millis) -> Option<(f64, f64)> {
    let [(_, first), _, ..] = samples else { return None };
    if values(samples).all(|value| value == *first) {
        return Some(if first.is_infinite() { (f64::NAN, f64::NAN) } else { (0.0, *first) });
    }
    let (mut x_sum, mut y_sum, mut xy_sum, mut xx_sum) = <(KahanSum, KahanSum, KahanSum, KahanSum)>::default();
    let mut count = 0.0;
    for (t, y) in samples {
        count += 1.0;
        let x = seconds(t - at_ms);
        x_sum.add(x);
        y_sum.add(*y);
        xy_sum.add(x * y);
        xx_sum.add(x * x);
    }
    let (x, y, xy, xx) = (x_sum.total(), y_sum.total(), xy_sum.total(), xx_sum.total());
    let slope = (xy - x * y / count) / (xx - x * x / count);
    Some((slope, y / count - slope * x / count))
}

/// The quantile of the values, with linear interpolation.
pub(crate) fn quantile(share: f64, mut values: Vec<f64>) -> f64 {
    if values.is_empty() || share.is_nan() {
        return f64::NAN;
    }
    if share < 0.0 {
        return f64::NEG_INFINITY;
    }
    if share > 1.0 {
        return f64::INFINITY;
    }
    // NaN sorts first.
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan())));
    let rank = share * (values.len() - 1) as f64;
    let weight = rank - rank.floor();
    let lower = rank.floor() as usize;
    let upper = (lower + 1).min(values.len() - 1);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    at(lower) * (1.0 - weight) + at(upper) * weight
}
