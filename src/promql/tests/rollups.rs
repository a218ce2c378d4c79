//! Compares summaries with samples: each function over the same series, once from samples and once from stretches, within
//! the error bounds of the module `over_time_summaries`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{cell::Cell, collections::BTreeMap, ops::RangeInclusive};

use muster_promql::{
    Error, Hints, Labels, Matchers, Millis, NAME, ParsedQuery, QueryLimits, QueryRange, SampleStretch, Source,
    SourceError, StretchSummary, TimedValue,
};
use proptest::prelude::*;

const MINUTE_MS: Millis = 60_000;
const FIVE_MS: Millis = 5 * MINUTE_MS;
const HOUR_MS: Millis = 60 * MINUTE_MS;
/// A whole day of UTC.
const BASE_MS: Millis = 1_704_067_200_000;

/// One series, of which there are samples from a time on, and stretches before it.
struct One {
    samples: Vec<TimedValue>,
    samples_from: Millis,
    width_ms: Millis,
    read: Cell<usize>,
}

impl One {
    fn new(samples: &[TimedValue], samples_from: Millis, width_ms: Millis) -> Self {
        Self { samples: samples.to_vec(), samples_from, width_ms, read: Cell::new(0) }
    }

    fn note(&self, rows: usize) {
        self.read.set(self.read.get() + rows);
    }
}

impl Source for One {
    fn select(&self, _: &Matchers, _: RangeInclusive<Millis>, _: usize) -> Result<Vec<(Labels, u64)>, SourceError> {
        Ok(vec![([(NAME, "m")].into_iter().collect(), 0)])
    }

    fn read(
        &self,
        _: u64,
        times: RangeInclusive<Millis>,
        _: usize,
        into: &mut Vec<TimedValue>,
    ) -> Result<(), SourceError> {
        assert!(*times.start() >= self.samples_from, "samples that are not there any more");
        into.extend(self.samples.iter().filter(|(at_ms, _)| times.contains(at_ms)));
        self.note(into.len());
        Ok(())
    }

    fn samples_from(&self, hints: &Hints, _: &RangeInclusive<Millis>) -> Result<Millis, SourceError> {
        if !hints.summaries && self.samples_from > Millis::MIN {
            return Err(Error::execution(format!("{} needs samples", hints.function)).into());
        }
        Ok(self.samples_from)
    }

    fn stretches(
        &self,
        _: u64,
        times: RangeInclusive<Millis>,
        _: &Hints,
        _: usize,
        into: &mut Vec<SampleStretch>,
    ) -> Result<(), SourceError> {
        let of = |at_ms: Millis| at_ms.div_euclid(self.width_ms) * self.width_ms;
        let mut parts: BTreeMap<Millis, Vec<f64>> = BTreeMap::new();
        for (at_ms, value) in &self.samples {
            parts.entry(of(*at_ms)).or_default().push(*value);
        }
        let meets = |start_ms: Millis| start_ms <= *times.end() && start_ms + self.width_ms > *times.start();
        into.extend(parts.iter().filter(|(start_ms, _)| meets(**start_ms)).map(|(start_ms, values)| SampleStretch {
            start_ms: *start_ms,
            width_ms: self.width_ms,
            summary: StretchSummary::over(values.iter().copied()).unwrap(),
        }));
        self.note(into.len());
        Ok(())
    }
}

fn increase(values: &[f64]) -> f64 {
    values.windows(2).map(|pair| if pair[1] < pair[0] { pair[1] } else { pair[1] - pair[0] }).sum()
}

fn ask(source: &One, query: &str, range: QueryRange) -> Result<BTreeMap<Millis, f64>, Error> {
    let series = ParsedQuery::parse(query)?.range(source, range, &QueryLimits::default())?;
    Ok(series.into_iter().flat_map(|(_, samples)| samples).collect())
}

/// Samples about every ten seconds, some of which are missing.
fn samples(values: &[f64], jitter: &[i16], missing: &[bool]) -> Vec<TimedValue> {
    let each = values.iter().zip(jitter).zip(missing).zip(0..);
    each.filter(|((_, missing), _)| !**missing)
        .map(|(((value, jitter), _), index)| (BASE_MS + index * 10_000 + Millis::from(*jitter), *value))
        .collect()
}

/// What is between two times, the second not included.
fn part(samples: &[TimedValue], from_ms: Millis, before_ms: Millis) -> Vec<f64> {
    samples.iter().filter(|(at_ms, _)| (from_ms..before_ms).contains(at_ms)).map(|(_, value)| *value).collect()
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn spread(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { greatest(values) - least(values) }
}

/// A window and its answer's samples: what the documented bounds are made of.
struct Case {
    /// What the window has, and what it is answered with.
    of_window: Vec<f64>,
    of_answer: Vec<f64>,
    of_both: Vec<f64>,
    /// What lies in the stretches of both ends, with the sample before each where a change reaches into it.
    at_start: Vec<f64>,
    at_end: Vec<f64>,
    /// Of the window over that of the answer.
    factor: f64,
}

impl Case {
    fn new(samples: &[TimedValue], (start_ms, end_ms): (Millis, Millis), width_ms: Millis) -> Self {
        let floor = |at_ms: Millis| at_ms.div_euclid(width_ms) * width_ms;
        let before = |at_ms: Millis| samples.iter().rfind(|(time, _)| *time < at_ms).map(|(_, value)| *value);
        let after = |at_ms: Millis| samples.iter().find(|(time, _)| *time >= at_ms).map(|(_, value)| *value);
        let (from_ms, to_ms) = (floor(start_ms), floor(end_ms));
        let at_start = part(samples, from_ms, start_ms).into_iter().chain(after(start_ms)).collect();
        let at_end = before(to_ms).into_iter().chain(part(samples, to_ms, end_ms + 1)).collect();
        let factor = (end_ms - start_ms) as f64 / (to_ms - from_ms) as f64;
        let (of_window, of_answer) = (part(samples, start_ms, end_ms + 1), part(samples, from_ms, to_ms));
        Self { of_window, of_answer, of_both: part(samples, start_ms, to_ms), at_start, at_end, factor }
    }

    /// By how much a function's answer may be wrong.
    fn bound(&self, function: &str, answer: f64) -> f64 {
        let all: Vec<f64> = self.of_window.iter().chain(&self.of_answer).copied().collect();
        let ends: Vec<f64> = self.at_start.iter().chain(&self.at_end).copied().collect();
        let sizes = |values: &[f64]| values.iter().map(|value| value.abs()).sum::<f64>();
        let of_factor = answer.abs() * (1.0 - 1.0 / self.factor).abs();
        // How far the first and the last sample are from the ends is known to the distance of two alone.
        let fewer = self.of_window.len().min(self.of_answer.len()) as f64;
        let extrapolation = |change: f64| change.abs() * 2.2 / (fewer - 1.0);
        match function {
            "max_over_time" | "min_over_time" if self.of_both.is_empty() => spread(&all),
            "max_over_time" => (greatest(&ends) - greatest(&self.of_both)).max(0.0),
            "min_over_time" => (least(&self.of_both) - least(&ends)).max(0.0),
            "avg_over_time" => spread(&all),
            "sum_over_time" => sizes(&self.at_start) + sizes(&self.at_end) + of_factor,
            "count_over_time" => (self.at_start.len() + self.at_end.len()) as f64 + of_factor,
            "increase" => {
                let ends = increase(&self.at_start) + increase(&self.at_end);
                let whole = increase(&self.of_window).max(increase(&self.of_answer));
                ends * (1.0 + 2.2 / (fewer - 1.0)) + extrapolation(whole) * self.factor.max(1.0) + of_factor
            }
            "delta" => {
                let ends = spread(&self.at_start) + spread(&self.at_end);
                let change = |values: &[f64]| (values[values.len() - 1] - values[0]).abs();
                let whole = change(&self.of_window).max(change(&self.of_answer));
                ends * (1.0 + 2.2 / (fewer - 1.0)) + extrapolation(whole) * self.factor.max(1.0) + of_factor
            }
            _ => unreachable!("{function}"),
        }
    }
}

/// Asks both ways at many steps, and compares.
fn compare(
    samples: &[TimedValue],
    width_ms: Millis,
    window_ms: Millis,
    step_ms: Millis,
) -> Result<usize, TestCaseError> {
    let last_ms = samples.last().map_or(BASE_MS, |last| last.0);
    // Behind the first whole stretch, and before the end: what has just begun, or ended, is extrapolated otherwise.
    let range = QueryRange { start_ms: BASE_MS + window_ms + width_ms, end_ms: last_ms, step_ms };
    let (exact, rolled) = (One::new(samples, Millis::MIN, width_ms), One::new(samples, Millis::MAX, width_ms));
    let mut compared = 0;
    for function in
        ["min_over_time", "max_over_time", "avg_over_time", "sum_over_time", "count_over_time", "increase", "delta"]
    {
        let query = format!("{function}(m[{window_ms}ms])");
        let wanted = ask(&exact, &query, range).unwrap();
        let found = ask(&rolled, &query, range).unwrap();
        for (at_ms, wanted) in &wanted {
            let case = Case::new(samples, (at_ms - window_ms, *at_ms), width_ms);
            if case.of_window.len() < 2 || case.of_answer.len() < 2 {
                continue;
            }
            let Some(found) = found.get(at_ms) else {
                return Err(TestCaseError::fail(format!("{function} at {at_ms}: nothing, wanted {wanted}")));
            };
            let bound = case.bound(function, *found);
            let rounding = 1e-9 * (1.0 + wanted.abs() + found.abs() + bound);
            prop_assert!(
                (found - wanted).abs() <= bound + rounding,
                "{}[{}] at {}: {} instead of {}, bound {}",
                function,
                window_ms,
                at_ms,
                found,
                wanted,
                bound
            );
            compared += 1;
        }
        if function == "increase" {
            let rates = ask(&rolled, &format!("rate(m[{window_ms}ms])"), range).unwrap();
            for (at_ms, increase) in &found {
                let rate = increase / (window_ms as f64 / 1000.0);
                prop_assert!((rates[at_ms] - rate).abs() <= 1e-12 * rate.abs(), "a rate is an increase per second");
            }
        }
    }
    // The newest value: a true one, of the last whole stretch.
    let found = ask(&rolled, "m", range).unwrap();
    for (at_ms, value) in &found {
        let end_ms = at_ms.div_euclid(width_ms) * width_ms;
        let stretch = part(samples, end_ms - width_ms, end_ms);
        prop_assert_eq!(stretch.last(), Some(value), "at {}", at_ms);
        compared += 1;
    }
    Ok(compared)
}

fn series() -> impl Strategy<Value = Vec<TimedValue>> {
    let length = 6 * 360;
    let gauge = proptest::collection::vec(0.0..100.0_f64, length);
    // A counter, which begins anew now and then.
    let counter = proptest::collection::vec((0_u8..100, any::<u16>()), length).prop_map(|steps| {
        let mut value = 0.0;
        let next = |(grown, dice): (u8, u16)| {
            value = if dice < 200 { 0.0 } else { value + f64::from(grown) };
            value
        };
        steps.into_iter().map(next).collect::<Vec<f64>>()
    });
    let jitter = proptest::collection::vec(-900_i16..900, length);
    let missing = proptest::collection::vec(proptest::bool::weighted(0.03), length);
    (prop_oneof![gauge, counter], jitter, missing)
        .prop_map(|(values, jitter, missing)| samples(&values, &jitter, &missing))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn summaries_differ_from_samples_by_no_more_than_is_said(
        samples in series(),
        width in prop_oneof![Just(FIVE_MS), Just(HOUR_MS)],
        // Multiples of the width, and others.
        windows in 1..4_i64, odd in prop_oneof![Just(0_i64), 1..50_i64],
        step in 1..40_i64,
    ) {
        let window_ms = width * windows + odd * MINUTE_MS.min(width / 5);
        let compared = compare(&samples, width, window_ms, step * MINUTE_MS)?;
        prop_assert!(compared > 0);
    }
}

#[test]
fn a_steady_series_is_answered_as_if_it_had_samples() {
    let steady: Vec<TimedValue> = (0..6 * 360).map(|n| (BASE_MS + n * 10_000, n as f64 * 70.0)).collect();
    let source = One::new(&steady, Millis::MAX, HOUR_MS);
    let range = QueryRange { start_ms: BASE_MS + 4 * HOUR_MS, end_ms: BASE_MS + 4 * HOUR_MS, step_ms: 1 };
    let value = |query: &str| ask(&source, query, range).unwrap().into_values().next().unwrap();
    for (query, wanted) in [
        ("rate(m[2h])", 7.0),
        ("increase(m[2h])", 7.0 * 7200.0),
        ("delta(m[2h])", 7.0 * 7200.0),
        ("count_over_time(m[2h])", 720.0),
        ("count_over_time(m[30m])", 180.0),
        ("rate(m[30m])", 7.0),
        ("avg_over_time(m[2h])", (720.0 + 1439.0) / 2.0 * 70.0),
        ("max_over_time(m[2h])", 1439.0 * 70.0),
        ("min_over_time(m[2h])", 720.0 * 70.0),
        ("last_over_time(m[2h])", 1439.0 * 70.0),
        ("m", 1439.0 * 70.0),
        ("present_over_time(m[2h])", 1.0),
        ("sum(rate(m[2h]))", 7.0),
        ("max_over_time(rate(m[1h])[2h:30m])", 7.0),
    ] {
        let found = value(query);
        assert!((found - wanted).abs() <= 1e-9 * wanted, "{query}: {found} instead of {wanted}");
    }
    assert!(ask(&source, "absent_over_time(m[1h])", range).unwrap().is_empty());
}

#[test]
fn windows_have_samples_beside_stretches() {
    let steady: Vec<TimedValue> = (0..6 * 360).map(|n| (BASE_MS + n * 10_000, n as f64 * 70.0)).collect();
    let from_ms = BASE_MS + 3 * HOUR_MS;
    let (mixed, exact) = (One::new(&steady, from_ms, HOUR_MS), One::new(&steady, Millis::MIN, HOUR_MS));
    for step_ms in [10 * MINUTE_MS, HOUR_MS + 10 * MINUTE_MS] {
        let range = QueryRange { start_ms: BASE_MS + 2 * HOUR_MS, end_ms: BASE_MS + 5 * HOUR_MS, step_ms };
        for function in ["rate", "max_over_time", "count_over_time"] {
            let query = format!("{function}(m[30m])");
            let (wanted, found) = (ask(&exact, &query, range).unwrap(), ask(&mixed, &query, range).unwrap());
            assert_eq!(wanted.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{query}: no gap between");
            for (at_ms, wanted) in wanted.iter().filter(|(at_ms, _)| **at_ms >= from_ms + 30 * MINUTE_MS) {
                assert_eq!(found[at_ms], *wanted, "{query} at {at_ms}: samples alone are exact");
            }
            if function == "rate" {
                assert!(found.values().all(|rate| (rate - 7.0).abs() < 0.02), "{found:?}");
            }
        }
    }
}

#[test]
fn functions_that_need_samples_are_refused_by_name() {
    let source = One::new(&[(BASE_MS, 1.0)], Millis::MAX, HOUR_MS);
    let range = QueryRange { start_ms: BASE_MS, end_ms: BASE_MS + HOUR_MS, step_ms: MINUTE_MS };
    for (query, name) in [
        ("quantile_over_time(0.5, m[1h])", "quantile_over_time"),
        ("stddev_over_time(m[1h])", "stddev_over_time"),
        ("stdvar_over_time(m[1h])", "stdvar_over_time"),
        ("deriv(m[1h])", "deriv"),
        ("predict_linear(m[1h], 5)", "predict_linear"),
        ("irate(m[1h])", "irate"),
        ("idelta(m[1h])", "idelta"),
        ("changes(m[1h])", "changes"),
        ("resets(m[1h])", "resets"),
        ("timestamp(m)", "timestamp"),
    ] {
        let error = ask(&source, query, range).unwrap_err().to_string();
        assert_eq!(error, format!("{name} needs samples"), "{query}");
    }
    let error = ParsedQuery::parse("m[1h]")
        .unwrap()
        .instant(&source, BASE_MS, &QueryLimits::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("a range of samples"), "{error}");
}

#[test]
fn late_series_has_no_earlier_increase() {
    // From half past on.
    let late: Vec<TimedValue> = (180..720).map(|n| (BASE_MS + n * 10_000, n as f64)).collect();
    let source = One::new(&late, Millis::MAX, HOUR_MS);
    let at = |ms| QueryRange { start_ms: BASE_MS + ms, end_ms: BASE_MS + ms, step_ms: 1 };
    assert!(ask(&source, "m", at(30 * MINUTE_MS)).unwrap().is_empty(), "its first stretch is not over");
    assert!(ask(&source, "m", at(3 * HOUR_MS)).unwrap().is_empty(), "it ended an hour ago");
    let grown = ask(&source, "increase(m[4h])", at(2 * HOUR_MS)).unwrap().into_values().next().unwrap();
    // Of what it is answered with, a sample more at each end at most.
    assert!((539.0..=541.2).contains(&grown), "{grown}");
}
