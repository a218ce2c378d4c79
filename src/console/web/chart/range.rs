//! The time range of charts, and its steps.

use maud::{Markup, html};
use muster_topics::Millis;
use serde::Deserialize;

const SECOND_MS: Millis = 1_000;
const MINUTE_MS: Millis = 60 * SECOND_MS;
const HOUR_MS: Millis = 60 * MINUTE_MS;
const DAY_MS: Millis = 24 * HOUR_MS;

/// The most steps: about one for two columns of a wide screen's chart, and the days of a year.
pub(super) const STEPS_MAX: Millis = 366;
/// Lengths of steps that people are used to. From five minutes on each consists of whole summaries of the store.
const STEPS_MS: [Millis; 14] = [
    10 * SECOND_MS,
    30 * SECOND_MS,
    MINUTE_MS,
    2 * MINUTE_MS,
    5 * MINUTE_MS,
    10 * MINUTE_MS,
    20 * MINUTE_MS,
    30 * MINUTE_MS,
    HOUR_MS,
    2 * HOUR_MS,
    3 * HOUR_MS,
    6 * HOUR_MS,
    12 * HOUR_MS,
    DAY_MS,
];
/// The shortest span: a few samples.
const LENGTH_MIN_MS: Millis = MINUTE_MS;

/// How far back charts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(in crate::web) enum TimeRange {
    #[serde(rename = "15m")]
    QuarterHour,
    #[default]
    #[serde(rename = "1h")]
    Hour,
    #[serde(rename = "6h")]
    SixHours,
    #[serde(rename = "24h")]
    Day,
    #[serde(rename = "7d")]
    Week,
    #[serde(rename = "30d")]
    Month,
    #[serde(rename = "90d")]
    Quarter,
    #[serde(rename = "1y")]
    Year,
}

impl TimeRange {
    pub(super) const ALL: [Self; 8] =
        [Self::QuarterHour, Self::Hour, Self::SixHours, Self::Day, Self::Week, Self::Month, Self::Quarter, Self::Year];

    /// Returns its name.
    pub(in crate::web) fn word(self) -> &'static str {
        match self {
            Self::QuarterHour => "15m",
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
            Self::Week => "7d",
            Self::Month => "30d",
            Self::Quarter => "90d",
            Self::Year => "1y",
        }
    }

    fn length_ms(self) -> Millis {
        match self {
            Self::QuarterHour => 15 * MINUTE_MS,
            Self::Hour => HOUR_MS,
            Self::SixHours => 6 * HOUR_MS,
            Self::Day => DAY_MS,
            Self::Week => 7 * DAY_MS,
            Self::Month => 30 * DAY_MS,
            Self::Quarter => 90 * DAY_MS,
            Self::Year => 365 * DAY_MS,
        }
    }

    /// Returns links to the same page with each range.
    pub(in crate::web) fn links(self, url: &str) -> Markup {
        let joint = if url.contains('?') { '&' } else { '?' };
        html! {
            nav.ranges aria-label="Range of the charts" {
                @for range in Self::ALL {
                    a href={ (url) (joint) "range=" (range.word()) } aria-current=[(range == self).then_some("true")] { (range.word()) } " "
                }
            }
        }
    }
}

/// The span of a chart, and its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChartSpan {
    pub(super) start_ms: Millis,
    pub(super) end_ms: Millis,
    pub(super) step_ms: Millis,
}

impl ChartSpan {
    /// Returns a range up to now, or a selected part (in seconds since 1970).
    pub(super) fn of(range: TimeRange, part: Option<(f64, f64)>, now_ms: Millis) -> Self {
        let ms = |seconds: f64| ((seconds * 1000.0) as Millis).clamp(0, now_ms);
        let (start_ms, end_ms) = match part.filter(|(from, to)| from.is_finite() && to.is_finite() && from < to) {
            // The span has a least length.
            Some((from, to)) => (ms(from).min(ms(to) - LENGTH_MIN_MS), ms(to)),
            None => (now_ms - range.length_ms(), now_ms),
        };
        let fits = |step_ms: &&Millis| (end_ms - start_ms) / **step_ms <= STEPS_MAX;
        let longest = STEPS_MS[STEPS_MS.len() - 1];
        let step_ms = STEPS_MS.iter().find(fits).copied();
        // Several days, if even days are too short.
        let step_ms = step_ms.unwrap_or_else(|| ((end_ms - start_ms) / STEPS_MAX / longest + 1) * longest);
        Self { start_ms, end_ms, step_ms }
    }

    /// Returns the same with steps that are at least this long.
    pub(super) fn no_finer_than(self, least_ms: Millis) -> Self {
        let step_ms = STEPS_MS.iter().copied().find(|step_ms| *step_ms >= least_ms).unwrap_or(least_ms);
        Self { step_ms: step_ms.max(self.step_ms), ..self }
    }

    /// Returns the number of the step of a time, counted from 1970.
    pub(super) fn step_of(&self, at_ms: Millis) -> Millis {
        at_ms.div_euclid(self.step_ms)
    }

    /// Returns the first step that begins within it or before, and the number of steps.
    pub(super) fn steps(&self) -> (Millis, usize) {
        let first = self.step_of(self.start_ms);
        (first, usize::try_from(self.step_of(self.end_ms) - first + 1).unwrap_or(0))
    }
}

pub(super) fn seconds(ms: Millis) -> f64 {
    ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: Millis = 1_700_000_000_000;

    #[test]
    fn each_range_has_visible_steps() {
        for (range, step_ms) in [
            (TimeRange::QuarterHour, 10 * SECOND_MS),
            (TimeRange::Hour, 10 * SECOND_MS),
            (TimeRange::SixHours, MINUTE_MS),
            (TimeRange::Day, 5 * MINUTE_MS),
            (TimeRange::Week, 30 * MINUTE_MS),
            (TimeRange::Month, 2 * HOUR_MS),
            (TimeRange::Quarter, 6 * HOUR_MS),
            (TimeRange::Year, DAY_MS),
        ] {
            let span = ChartSpan::of(range, None, NOW_MS);
            assert_eq!(span.step_ms, step_ms, "{range:?}");
            assert!(span.steps().1 <= STEPS_MAX as usize + 2, "{range:?}");
            assert_eq!((span.end_ms, span.start_ms), (NOW_MS, NOW_MS - range.length_ms()));
        }
    }

    #[test]
    fn any_part_of_time_is_valid() {
        let of = |from: f64, to: f64| ChartSpan::of(TimeRange::Hour, Some((from, to)), NOW_MS);
        let hour = ChartSpan::of(TimeRange::Hour, None, NOW_MS);
        let day = of(1_600_000_000.0, 1_600_086_400.0);
        assert_eq!((day.start_ms, day.end_ms, day.step_ms), (1_600_000_000_000, 1_600_086_400_000, 5 * MINUTE_MS));
        assert_eq!(of(1_600_000_000.0, 1_600_000_000.5).step_ms, 10 * SECOND_MS);
        for odd in [(5.0, 5.0), (9.0, 5.0), (f64::NAN, 5.0), (5.0, f64::INFINITY)] {
            assert_eq!(of(odd.0, odd.1), hour, "{odd:?}");
        }
        for odd in [(-1e300, 1e300), (1e300, 2e300), (-5.0, -4.0), (0.0, 1e12)] {
            let span = of(odd.0, odd.1);
            assert!(span.start_ms < span.end_ms && span.end_ms <= NOW_MS && span.steps().1 < 400, "{odd:?}: {span:?}");
        }
        assert_eq!(day.no_finer_than(HOUR_MS).step_ms, HOUR_MS);
        assert_eq!(day.no_finer_than(MINUTE_MS).step_ms, day.step_ms);
    }
}
