//! Compares both answers.

use std::collections::BTreeMap;

use muster_promql::{Instant, Labels, Millis, TimedValue};
use serde_json::Value;

use crate::grammar::When;

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Refused(String),
    Text(String),
    Scalar(f64),
    Vector(Vec<(Labels, f64)>),
    Matrix(Vec<(Labels, Vec<TimedValue>)>),
}

pub(crate) enum Verdict {
    Same,
    BothRefuse,
    /// Of series with equal values another one was taken.
    Tie,
    Different(String),
}

pub(crate) fn of_instant(instant: Instant, _: Millis) -> Answer {
    match instant {
        Instant::Scalar(value) => Answer::Scalar(value),
        Instant::Text(text) => Answer::Text(text),
        Instant::Vector(vector) => Answer::Vector(vector),
        Instant::Matrix(matrix) => Answer::Matrix(matrix),
    }
}

/// What the body of an answer says.
pub(crate) fn of_json(json: &Value) -> Answer {
    if json["status"] != "success" {
        return Answer::Refused(format!("{}: {}", json["errorType"], json["error"]));
    }
    let result = &json["data"]["result"];
    let each = || result.as_array().unwrap().iter();
    match json["data"]["resultType"].as_str().unwrap() {
        "scalar" => Answer::Scalar(sample(result).1),
        "string" => Answer::Text(result[1].as_str().unwrap().to_owned()),
        "vector" => Answer::Vector(each().map(|one| (labels(&one["metric"]), sample(&one["value"]).1)).collect()),
        "matrix" => {
            let samples = |one: &Value| one["values"].as_array().unwrap().iter().map(sample).collect();
            Answer::Matrix(each().map(|one| (labels(&one["metric"]), samples(one))).collect())
        }
        other => panic!("{other}"),
    }
}

fn labels(json: &Value) -> Labels {
    json.as_object().unwrap().iter().map(|(name, value)| (name, value.as_str().unwrap())).collect()
}

fn sample(json: &Value) -> TimedValue {
    let seconds = json[0].as_f64().unwrap();
    ((seconds * 1000.0).round() as Millis, json[1].as_str().unwrap().parse().unwrap())
}

/// Whether two numbers are the same but for rounding.
fn near(a: f64, b: f64) -> bool {
    a.is_nan() && b.is_nan() || a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) || (a - b).abs() < 1e-12
}

type Series = BTreeMap<Labels, Vec<TimedValue>>;

pub(crate) fn compare(query: &str, when: When, theirs: &Answer, ours: &Answer) -> Verdict {
    let different = |what: &str| Verdict::Different(format!("{what}\n  theirs: {theirs:?}\n  ours:   {ours:?}"));
    match (theirs, ours) {
        (Answer::Refused(a), Answer::Refused(b)) if !a.is_empty() && !b.is_empty() => Verdict::BothRefuse,
        (Answer::Text(a), Answer::Text(b)) if a == b => Verdict::Same,
        (Answer::Scalar(a), Answer::Scalar(b)) if near(*a, *b) => Verdict::Same,
        (Answer::Vector(a), Answer::Vector(b)) => {
            if is_ordered(query) && !a.iter().zip(b).all(|((_, a), (_, b))| near(*a, *b)) {
                return different("another order");
            }
            let at_ms = if let When::At(at_ms) = when { at_ms } else { 0 };
            let series = |vector: &[(Labels, f64)]| -> Series {
                vector.iter().map(|(labels, value)| (labels.clone(), vec![(at_ms, *value)])).collect()
            };
            compare_series(query, &series(a), &series(b)).unwrap_or_else(|| different("other values"))
        }
        (Answer::Matrix(a), Answer::Matrix(b)) => {
            let in_order = |matrix: &[(Labels, Vec<TimedValue>)]| matrix.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if matches!(when, When::Range(_)) && (!in_order(a) || !in_order(b)) {
                return different("another order");
            }
            let series = |matrix: &[(Labels, Vec<TimedValue>)]| -> Series { matrix.iter().cloned().collect() };
            compare_series(query, &series(a), &series(b)).unwrap_or_else(|| different("other values"))
        }
        _ => different("another kind"),
    }
}

/// Whether the order of a vector means something.
fn is_ordered(query: &str) -> bool {
    let sorts = ["sort(", "sort_desc(", "topk(", "bottomk("];
    sorts.iter().any(|sort| query.starts_with(sort)) && query.ends_with(')')
}

fn compare_series(query: &str, theirs: &Series, ours: &Series) -> Option<Verdict> {
    let same = theirs.len() == ours.len()
        && theirs.iter().zip(ours).all(|((their_labels, a), (our_labels, b))| {
            their_labels == our_labels
                && a.len() == b.len()
                && a.iter().zip(b).all(|((a_ms, a), (b_ms, b))| a_ms == b_ms && near(*a, *b))
        });
    if same {
        return Some(Verdict::Same);
    }
    let chooses = query.contains("topk") || query.contains("bottomk");
    (chooses && by_time(theirs) == by_time(ours)).then_some(Verdict::Tie)
}

/// All values of each time, sorted and rounded.
fn by_time(series: &Series) -> BTreeMap<Millis, Vec<String>> {
    let mut times: BTreeMap<Millis, Vec<String>> = BTreeMap::new();
    for (at_ms, value) in series.values().flatten() {
        times.entry(*at_ms).or_default().push(format!("{value:.8e}"));
    }
    times.values_mut().for_each(|values| values.sort());
    times
}
