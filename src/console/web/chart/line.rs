//! Turns measurements into the lines of a chart. Pure.
//!
//! A series is folded into the steps of the chart, from points or from summaries; a step has one
//! value: the mean, or the growth of a counter per second.

use muster_series::{StretchSummary, ViewBucket};
use muster_topics::Millis;
use serde::Serialize;

use super::range::ChartSpan;

/// A line is interrupted if nothing arrived for this many of its usual steps, and for longer than five minutes:
/// unchanged values are repeated every four.
const GAP_STEPS: Millis = 6;
const GAP_MIN_MS: Millis = 300_000;

/// The values of a series in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepRange {
    /// The step's number, counted from 1970.
    pub(super) step: Millis,
    /// The times of its first and last value.
    pub(super) first_ms: Millis,
    pub(super) last_ms: Millis,
    pub(super) summary: StretchSummary,
}

/// Combines summaries and later points into steps.
pub(super) fn fold(span: &ChartSpan, buckets: &[ViewBucket], points: &[(Millis, f64)]) -> Vec<StepRange> {
    let of_buckets = buckets.iter().map(|bucket| StepRange {
        step: span.step_of(bucket.start_ms),
        first_ms: bucket.start_ms,
        // A step that is not over ends now.
        last_ms: (bucket.start_ms + bucket.width_ms - 1).min(span.end_ms),
        summary: bucket.summary,
    });
    let finite = points.iter().filter(|(_, value)| value.is_finite());
    let of_points = finite.map(|(at_ms, value)| StepRange {
        step: span.step_of(*at_ms),
        first_ms: *at_ms,
        last_ms: *at_ms,
        summary: StretchSummary::of(*value),
    });
    let mut groups: Vec<StepRange> = Vec::new();
    for next in of_buckets.chain(of_points) {
        match groups.last_mut() {
            Some(last) if last.step == next.step => {
                *last = StepRange { first_ms: last.first_ms, summary: last.summary.join(next.summary), ..next };
            }
            _ => groups.push(next),
        }
    }
    groups
}

/// Returns a counter's rate per second, with the step in which it was seen. Where the counter fell it was reset.
pub(super) fn rates(groups: &[StepRange]) -> Vec<(Millis, f64)> {
    let rate = |pair: &[StepRange]| {
        let (before, now) = (pair[0], pair[1]);
        let grown = before.summary.join(now.summary).increase() - before.summary.increase();
        let took_ms = now.last_ms - before.last_ms;
        (took_ms > 0).then(|| (now.step, grown * 1000.0 / took_ms as f64))
    };
    // For the first step only the growth within it is known.
    let first = groups.first().filter(|one| one.last_ms > one.first_ms && one.summary.count > 1);
    let first = first.map(|one| (one.step, one.summary.increase() * 1000.0 / (one.last_ms - one.first_ms) as f64));
    first.into_iter().chain(groups.windows(2).filter_map(rate)).collect()
}

/// Places values at the steps of a chart: `None` where the line is interrupted.
pub(super) fn placed(span: &ChartSpan, values: &[(Millis, f64)]) -> Vec<Option<f64>> {
    let (first, count) = span.steps();
    let gap = gap(span, values);
    let mut line = vec![None; count];
    let mut put = |from: Millis, to: Millis, value: f64| {
        for step in from.max(first)..to {
            if let Some(place) = usize::try_from(step - first).ok().and_then(|place| line.get_mut(place)) {
                *place = Some(value);
            }
        }
    };
    for pair in values.windows(2) {
        let ((step, value), (next, _)) = (pair[0], pair[1]);
        // Between two values that are near, the first holds until the next.
        put(step, if next - step <= gap { next } else { step + 1 }, value);
    }
    if let Some((step, value)) = values.last() {
        put(*step, step + 1, *value);
    }
    line
}

/// Returns how many steps two values may be apart in a line.
fn gap(span: &ChartSpan, values: &[(Millis, f64)]) -> Millis {
    let mut apart: Vec<Millis> = values.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    apart.sort_unstable();
    let usual = apart.get(apart.len() / 2).copied().unwrap_or(0);
    // The usual distance exceeds a step only if values are rarer than steps.
    let many = if usual > 1 { usual * GAP_STEPS } else { 1 };
    many.max(GAP_MIN_MS / span.step_ms)
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ChartLine {
    pub(super) label: String,
    /// One value for each step.
    pub(super) values: Vec<Option<f64>>,
    /// The minimum and maximum of each step, if steps have many values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) low: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) high: Vec<Option<f64>>,
}

impl ChartLine {
    /// Returns the line of means, with minimum and maximum if wanted.
    pub(super) fn means(span: &ChartSpan, label: String, groups: &[StepRange], around: bool) -> Self {
        let of = |value: fn(&StretchSummary) -> f64| {
            placed(span, &groups.iter().map(|group| (group.step, value(&group.summary))).collect::<Vec<_>>())
        };
        let many = around && groups.iter().any(|group| group.summary.min < group.summary.max);
        let (low, high) = if many { (of(|one| one.min), of(|one| one.max)) } else { Default::default() };
        Self { label, values: of(StretchSummary::average), low, high }
    }

    /// Returns the line of the last value of each step.
    pub(super) fn newest(span: &ChartSpan, label: String, groups: &[StepRange]) -> Self {
        let values: Vec<_> = groups.iter().map(|group| (group.step, group.summary.last)).collect();
        Self { label, values: placed(span, &values), ..Self::default() }
    }

    /// Returns the line of a counter's rate.
    pub(super) fn rate(span: &ChartSpan, label: String, groups: &[StepRange]) -> Self {
        Self { label, values: placed(span, &rates(groups)), ..Self::default() }
    }

    /// Returns the line of ratios to another series; to the last known value where that has none.
    pub(super) fn share(span: &ChartSpan, label: String, part: &[StepRange], whole: &[StepRange]) -> Option<Self> {
        let last = whole.last()?.summary.average();
        let at: std::collections::BTreeMap<Millis, f64> =
            whole.iter().map(|group| (group.step, group.summary.average())).collect();
        let share = |group: &StepRange| {
            let whole = at.get(&group.step).copied().unwrap_or(last);
            (whole > 0.0).then(|| (group.step, group.summary.average() / whole))
        };
        Some(Self {
            label,
            values: placed(span, &part.iter().filter_map(share).collect::<Vec<_>>()),
            ..Self::default()
        })
    }

    /// Returns its maximum, if it has values.
    pub(super) fn peak(&self) -> Option<f64> {
        self.values.iter().flatten().copied().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: ChartSpan = ChartSpan { start_ms: 0, end_ms: 100_000, step_ms: 10_000 };

    fn points(points: &[(Millis, f64)]) -> Vec<StepRange> {
        fold(&SPAN, &[], points)
    }

    #[test]
    fn points_and_summaries_fall_into_steps() {
        let groups = points(&[(1_000, 1.0), (9_999, 3.0), (10_000, 5.0), (35_000, f64::NAN), (35_001, 7.0)]);
        let found: Vec<_> = groups.iter().map(|group| (group.step, group.last_ms, group.summary.average())).collect();
        assert_eq!(found, [(0, 9_999, 2.0), (1, 10_000, 5.0), (3, 35_001, 7.0)]);
        let bucket = |start_ms, values: &[f64]| ViewBucket {
            start_ms,
            width_ms: 5_000,
            summary: StretchSummary::over(values.iter().copied()).unwrap(),
        };
        let both = fold(&SPAN, &[bucket(0, &[1.0, 2.0]), bucket(5_000, &[9.0])], &[(10_000, 4.0)]);
        assert_eq!(both.len(), 2);
        assert_eq!((both[0].summary.average(), both[0].summary.max, both[0].last_ms), (4.0, 9.0, 9_999));
    }

    #[test]
    fn counter_becomes_a_rate_with_resets() {
        let groups = points(&[(0, 100.0), (10_000, 1_100.0), (20_000, 50.0), (30_000, 550.0)]);
        assert_eq!(rates(&groups), [(1, 100.0), (2, 5.0), (3, 50.0)]);
        assert_eq!(rates(&groups[..1]), []);
        // Two points in one step, and none in the next, are as steady as one in each.
        let uneven = points(&[(0, 0.0), (10_001, 10.0), (19_999, 20.0), (30_000, 30.0)]);
        assert!(rates(&uneven).iter().all(|(_, rate)| (rate - 1.0).abs() < 0.01), "{:?}", rates(&uneven));
        // A counter's consecutive summaries: the growth between them counts, and nothing twice.
        let bucket = |hour: Millis| ViewBucket {
            start_ms: hour * 10_000,
            width_ms: 10_000,
            summary: StretchSummary::over((0..10).map(|n| (hour * 10 + n) as f64)).unwrap(),
        };
        let steady = fold(&SPAN, &[bucket(0), bucket(1), bucket(2)], &[]);
        assert_eq!(rates(&steady)[1..], [(1, 1.0), (2, 1.0)]);
        assert!((rates(&steady)[0].1 - 0.9).abs() < 1e-3, "nine seconds' growth in ten");
    }

    #[test]
    fn line_has_gap_where_host_was_silent() {
        let line = |steps: &[Millis]| {
            let values: Vec<_> = steps.iter().map(|step| (*step, 1.0)).collect();
            let span = ChartSpan { end_ms: 500_000, ..SPAN };
            placed(&span, &values).iter().map(|value| if value.is_some() { 'x' } else { '.' }).collect::<String>()
        };
        let drawn = |filled: &[usize]| {
            let piece = |(index, count): (usize, &usize)| if index % 2 == 0 { "x" } else { "." }.repeat(*count);
            filled.iter().enumerate().map(piece).collect::<String>()
        };
        assert_eq!(line(&[0, 1, 2, 4, 5]), drawn(&[6, 45]), "one that is late");
        assert_eq!(line(&[0, 1, 2, 26]), drawn(&[27, 24]), "what has not changed for four minutes");
        assert_eq!(line(&[0, 1, 2, 40, 41, 42]), drawn(&[3, 37, 3, 8]));
        assert_eq!(line(&[0, 3, 6, 9, 12]), drawn(&[13, 38]), "rarer than steps");
        assert_eq!(line(&[]), drawn(&[0, 51]));
        assert_eq!(line(&[-3, 1]), drawn(&[2, 49]), "what begins before is there");
        let day = ChartSpan { start_ms: 0, end_ms: 10 * 300_000, step_ms: 300_000 };
        let values = placed(&day, &[(0, 1.0), (1, 1.0), (2, 1.0), (4, 1.0)]);
        assert_eq!(values[2..5], [Some(1.0), None, Some(1.0)], "five minutes without a word are a pause");
    }

    #[test]
    fn shares_are_relative_to_their_total() {
        let (used, total) =
            (points(&[(0, 50.0), (10_000, 50.0), (20_000, 60.0)]), points(&[(0, 100.0), (10_000, 200.0)]));
        let line = ChartLine::share(&SPAN, "/".to_owned(), &used, &total).unwrap();
        assert_eq!(line.values[..4], [Some(0.5), Some(0.25), Some(0.3), None]);
        assert_eq!(ChartLine::share(&SPAN, "/".to_owned(), &used, &[]), None);
        let nothing = points(&[(0, 0.0)]);
        assert_eq!(
            ChartLine::share(&SPAN, "swap".to_owned(), &nothing, &nothing).unwrap().peak(),
            None,
            "no share of nothing"
        );
    }

    #[test]
    fn growing_count_takes_its_newest_value() {
        let growing = points(&[(0, 1.0), (5_000, 18.0), (9_999, 202.0), (10_000, 202.0)]);
        assert_eq!(ChartLine::newest(&SPAN, "hosts".to_owned(), &growing).values[..2], [Some(202.0), Some(202.0)]);
    }

    #[test]
    fn extremes_around_a_mean_are_kept() {
        let groups = points(&[(0, 1.0), (5_000, 3.0)]);
        let line = ChartLine::means(&SPAN, "busy".to_owned(), &groups, true);
        assert_eq!((line.values[0], line.low[0], line.high[0]), (Some(2.0), Some(1.0), Some(3.0)));
        assert!(ChartLine::means(&SPAN, "busy".to_owned(), &groups, false).low.is_empty());
        assert!(ChartLine::means(&SPAN, "busy".to_owned(), &points(&[(0, 1.0)]), true).low.is_empty());
    }
}
