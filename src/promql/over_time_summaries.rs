//! Functions of windows computed from summaries; pure.
//!
//! # Error bounds
//!
//! Let a window reach from `s` to `e`, and let stretches be `w` long. It is answered with the stretches that end behind `s`
//! and not behind `e`: with the samples from `⌊s⌋` to before `⌊e⌋`, both the next whole `w` before. So both ends lie up to `w`
//! earlier; `S` is what the window has, `R` what it is answered with, and they differ in samples of the two stretches alone in
//! which the ends lie: `A` (that of `s`) and `B` (that of `e`). A window that has the end of no stretch is answered with the
//! last one before its end, if `e` is less than `w` behind it. Then, but for rounding:
//!
//! | function | answer | differs from the true one by at most |
//! |---|---|---|
//! | the value itself, `last_over_time` | the last value of `R` | nothing: it is a true one, of up to `w` earlier than the newest |
//! | `min_over_time`, `max_over_time` | least and greatest of `R` | how far the values in `A` and `B` exceed what both `S` and `R` have |
//! | `avg_over_time` | mean of `R` | the spread of all values in `S` and `R` |
//! | `sum_over_time`, `count_over_time` | of `R`, times the length of the window over that of `R` | the sum over `A` and `B` (of absolute values), and what the factor adds |
//! | `increase`, `rate` | increase over `R`, stretched to the window's length | the increases within `A` and `B` and into them, and 2.2/(n-1) of the whole, where `n` is the smaller number of samples |
//! | `delta` | last less first value of `R`, stretched likewise | the spread of `A` and that of `B`, and 2.2/(n-1) of the whole |
//! | `present_over_time`, `absent_over_time` | whether `R` has a sample | nothing, for up to `w` |
//!
//! The factor is 1 if the window's length is a multiple of `w`. The 2.2/(n-1) are Prometheus's own extrapolation, which
//! depends on where the first and the last sample lie, to within a tenth more than the distance of two. Samples that a window
//! has besides stretches are used as they are, which makes its end exact.
//!
//! All other functions (`quantile_over_time`, `stddev_over_time`, `stdvar_over_time`, `deriv`, `predict_linear`, `irate`,
//! `idelta`, `changes`, `resets`, `timestamp`, and a range vector itself) need samples; see [`OverTimeFunction::of_summaries`].

use super::{
    source::{SampleStretch, TimedValue},
    summary::StretchSummary,
};
use crate::{
    over_time::{OverTimeFunction, SampleWindow},
    query_range::Millis,
};

/// Samples are not perfectly regular: up to ten per cent more than their distance still counts as near.
const NEAR: f64 = 1.1;

impl SampleStretch {
    /// The summary of some samples.
    pub(crate) fn over(samples: &[TimedValue]) -> Option<Self> {
        let (first, last) = (samples.first()?.0, samples.last()?.0);
        let summary = StretchSummary::over(samples.iter().map(|sample| sample.1))?;
        Some(Self { start_ms: first, width_ms: last - first, summary })
    }

    /// Joins this summary and a later one.
    fn join(self, later: &Self) -> Self {
        let (start_ms, width_ms) = (self.start_ms, later.end_ms() - self.start_ms);
        Self { start_ms, width_ms, summary: self.summary.join(later.summary) }
    }
}

/// The result of a function over a window with stretches, if the window has enough data.
pub(crate) fn apply(function: OverTimeFunction, window: &SampleWindow<'_>) -> Option<f64> {
    let stretches = window.stretches.iter().copied();
    let whole = stretches.chain(SampleStretch::over(window.samples)).reduce(|one, next| one.join(&next))?;
    let reach = StretchReach::of(window, &whole)?;
    let summary = whole.summary;
    Some(match function {
        OverTimeFunction::Average => summary.average(),
        OverTimeFunction::Minimum => summary.min,
        OverTimeFunction::Maximum => summary.max,
        OverTimeFunction::Sum => summary.sum * reach.factor(),
        OverTimeFunction::Count => summary.count as f64 * reach.factor(),
        OverTimeFunction::Last => summary.last,
        OverTimeFunction::Present => 1.0,
        OverTimeFunction::Increase => reach.extrapolated(&summary, true)?,
        OverTimeFunction::Rate => reach.extrapolated(&summary, true)? / seconds(reach.window_ms),
        OverTimeFunction::Delta => reach.extrapolated(&summary, false)?,
        _ => return None,
    })
}

/// The range that the data covers, in relation to the window.
struct StretchReach {
    /// Length of the requested window.
    window_ms: Millis,
    /// Start of the window, aligned to stretches.
    start_ms: Millis,
    end_ms: Millis,
    /// Start of the data.
    from_ms: Millis,
    to_ms: Millis,
    /// Whether `to_ms` is the time of a sample, and not only the end of a stretch.
    exact_end: bool,
}

impl StretchReach {
    fn of(window: &SampleWindow<'_>, whole: &SampleStretch) -> Option<Self> {
        let (first, last) = (window.stretches.first()?, window.stretches.last()?);
        let floor =
            |at_ms: Millis, stretch: &SampleStretch| at_ms.div_euclid(stretch.width_ms.max(1)) * stretch.width_ms;
        let exact_end = !window.samples.is_empty();
        Some(Self {
            window_ms: window.end_ms - window.start_ms,
            start_ms: floor(window.start_ms, first).min(first.start_ms),
            end_ms: if exact_end { window.end_ms } else { floor(window.end_ms, last).max(last.end_ms()) },
            from_ms: whole.start_ms,
            to_ms: whole.end_ms(),
            exact_end,
        })
    }

    /// Ratio of the window's length to that of the data.
    fn factor(&self) -> f64 {
        seconds(self.window_ms) / seconds(self.end_ms - self.start_ms)
    }

    /// The change of the value, extrapolated as in Prometheus; samples are assumed to be evenly distributed within a
    /// stretch.
    fn extrapolated(&self, whole: &StretchSummary, counter: bool) -> Option<f64> {
        if whole.count < 2 {
            return None;
        }
        let count = whole.count as f64;
        // The first sample is assumed half a distance after the start of its stretch, the last half a distance before
        // its end.
        let distance = seconds(self.to_ms - self.from_ms) / if self.exact_end { count - 0.5 } else { count };
        let sampled = distance * (count - 1.0);
        let change = if counter { whole.increase() } else { whole.last - whole.first };
        let mut to_start = seconds(self.from_ms - self.start_ms) + distance / 2.0;
        let to_end = seconds(self.end_ms - self.to_ms) + if self.exact_end { 0.0 } else { distance / 2.0 };
        if counter && change > 0.0 && whole.first >= 0.0 {
            to_start = to_start.min(sampled * (whole.first / change));
        }
        let extended = |gap: f64| if gap < distance * NEAR { gap } else { distance / 2.0 };
        Some(change * (sampled + extended(to_start) + extended(to_end)) / sampled * self.factor())
    }
}

fn seconds(ms: Millis) -> f64 {
    ms as f64 / 1000.0
}
