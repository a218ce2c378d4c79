//! Tests of the limits of a query, and of refusals.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use muster_promql::{
    Error, Labels, Matchers, Millis, NAME, ParsedQuery, QueryLimits, QueryRange, Source, SourceError, TimedValue,
    selector,
};
use proptest::prelude::*;

/// A hundred series `m{n="…"}` with a sample every second of a hundred.
struct Hundred {
    /// How many samples were read.
    read: AtomicUsize,
}

impl Hundred {
    fn new() -> Self {
        Self { read: AtomicUsize::new(0) }
    }
}

impl Source for Hundred {
    fn select(
        &self,
        matchers: &Matchers,
        _: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError> {
        let all = (0..100).map(|n| ([(NAME, "m"), ("n", &n.to_string())].into_iter().collect::<Labels>(), n));
        Ok(all.filter(|(labels, _)| matchers.accept(|name| labels.get(name))).take(series_max).collect())
    }

    fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        samples_max: usize,
        into: &mut Vec<TimedValue>,
    ) -> Result<(), SourceError> {
        if series == 99 {
            return Err("the disk is on fire".into());
        }
        let samples = (0..100).map(|second| (second * 1000, 1.0)).filter(|(at_ms, _)| times.contains(at_ms));
        into.extend(samples.take(samples_max + 1));
        self.read.fetch_add(into.len(), Ordering::Relaxed);
        Ok(())
    }
}

fn ask(query: &str, limits: &QueryLimits) -> Result<usize, Error> {
    let range = QueryRange { start_ms: 0, end_ms: 100_000, step_ms: 1_000 };
    Ok(ParsedQuery::parse(query)?.range(&Hundred::new(), range, limits)?.len())
}

/// A query that adds so many vectors, from the right to the left.
fn nested(count: usize) -> String {
    (1..count).fold("m{n!=\"99\"}".to_owned(), |inner, _| format!("m{{n!=\"99\"}} + ({inner})"))
}

#[test]
fn nested_replacements_are_cut_short() {
    let mut query = "m{n=\"1\"}".to_owned();
    for _ in 0..4 {
        query = format!("label_replace({query}, \"n\", \"{}\", \"n\", \"(.*)\")", "$1".repeat(1_000));
    }
    let error = ask(&query, &QueryLimits::default()).unwrap_err();
    assert!(error.to_string().contains("longer than 16384 bytes"), "{error}");
    // What a label is joined from may be as long as one may be.
    assert_eq!(
        ask("label_join(m{n=\"1\"}, \"x\", \"/\", \"n\", \"n\", \"absent\")", &QueryLimits::default()).unwrap(),
        1
    );
    assert_eq!(ask(&nested(4), &QueryLimits { values_max: 10_000, ..QueryLimits::default() }).unwrap(), 99);
}

#[test]
fn each_limit_is_kept_and_named() {
    let some = "m{n!=\"99\"}";
    assert_eq!(ask(some, &QueryLimits::default()).unwrap(), 99);
    for (limits, query, words) in [
        (QueryLimits { series_max: 98, ..QueryLimits::default() }, some, "more than 98 series"),
        (QueryLimits { samples_max: 9_000, ..QueryLimits::default() }, some, "more than 9000 samples"),
        (QueryLimits { values_max: 9_000, ..QueryLimits::default() }, some, "more than 9000 values"),
        (
            QueryLimits { values_max: 5_000, ..QueryLimits::default() },
            "count by (n) (m{n!=\"99\"})",
            "more than 5000 values",
        ),
        (
            QueryLimits { values_max: 5_000, ..QueryLimits::default() },
            "max_over_time(vector(1)[1d:1s])",
            "more than 5000 values",
        ),
        // Each sum of two holds its left side while its right side is evaluated.
        (
            QueryLimits { values_max: 10_000, ..QueryLimits::default() },
            nested(5).as_str(),
            "parts of the query have more than 40000",
        ),
        // Each part fits, and together they do not.
        (
            QueryLimits { values_max: 15_000, ..QueryLimits::default() },
            "m{n!=\"99\"} or label_replace(m{n!=\"99\"}, \"x\", \"y\", \"\", \"\")",
            "more than 15000 values",
        ),
        // Every series has one value of its own at each step.
        (
            QueryLimits { values_max: 10_000, ..QueryLimits::default() },
            "count_values(\"v\", timestamp(m{n=\"1\"}))",
            "more than 10000 values",
        ),
        (
            QueryLimits { label_max_bytes: 19, ..QueryLimits::default() },
            "label_replace(m{n=\"10\"}, \"x\", \"$1$1$1$1$1$1$1$1$1$1\", \"n\", \"(.*)\")",
            "value of the label x that is longer than 19 bytes",
        ),
        (
            QueryLimits { label_max_bytes: 11, ..QueryLimits::default() },
            "label_join(m{n=\"10\"}, \"x\", \"--------\", \"n\", \"n\")",
            "value of the label x that is longer than 11 bytes",
        ),
        (
            QueryLimits { labels_max_bytes: 20_000, ..QueryLimits::default() },
            "label_replace(m{n!=\"99\"}, \"x\", \"a long new value\", \"n\", \".*\")",
            "labels of a part of the query have more than 20000 bytes",
        ),
        (
            QueryLimits { labels_max_bytes: 14_000, ..QueryLimits::default() },
            "m{n!=\"99\"} * on () group_left (x) label_replace(m{n=\"1\"}, \"x\", \"a long new value\", \"n\", \".*\")",
            "labels of a part of the query have more than 14000 bytes",
        ),
    ] {
        let error = ask(query, &limits).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }) && error.to_string().contains(words), "{query}: {error}");
        assert!(miette::Diagnostic::help(&error).is_some(), "{error}");
    }
    let error = ask("m", &QueryLimits { steps_max: 99, ..QueryLimits::default() }).unwrap_err();
    assert!(error.to_string().contains("maximum resolution of 99 points"), "{error}");
    let error = ask("m", &QueryLimits { enough: Arc::new(|| true), ..QueryLimits::default() }).unwrap_err();
    assert!(matches!(error, Error::Enough), "{error}");
    let error = ask("m", &QueryLimits::default()).unwrap_err();
    assert!(matches!(error, Error::Source(_)) && error.to_string().contains("on fire"), "{error}");
}

#[test]
fn aggregation_keeps_no_samples() {
    // 99 series at 101 steps would be too many values; one group is not.
    let limits = QueryLimits { values_max: 500, ..QueryLimits::default() };
    assert_eq!(ask("sum(rate(m{n!=\"99\"}[10s]))", &limits).unwrap(), 1);
}

#[test]
fn samples_between_windows_are_not_read() {
    let source = Hundred::new();
    let range = QueryRange { start_ms: 50_000, end_ms: 50_000_000, step_ms: 5_000_000 };
    let query = ParsedQuery::parse("count_over_time(m{n=\"1\"}[10s])").unwrap();
    let answer = query.range(&source, range, &QueryLimits::default()).unwrap();
    assert_eq!(answer[0].1, [(50_000, 11.0)]);
    assert_eq!(source.read.load(Ordering::Relaxed), 11);
}

#[test]
fn unsupported_functions_are_refused_by_name() {
    for (query, name) in [
        ("holt_winters(m[5m], 0.5, 0.5)", "holt_winters"),
        ("histogram_count(m)", "histogram_count"),
        ("no_such_function(m)", "no_such_function"),
        ("limitk(1, m)", "limitk"),
        ("m{n=\"1\" or n=\"2\"}", "or"),
    ] {
        let error = ParsedQuery::parse(query).unwrap_err().to_string();
        assert!(error.contains(name), "{query}: {error}");
    }
}

#[test]
fn deep_or_long_query_is_refused() {
    for query in [
        format!("{}m{}", "(".repeat(8_000), ")".repeat(8_000)),
        "-".repeat(10_000) + "m",
        "1+".repeat(7_000) + "1",
        "abs(".repeat(200) + "m" + &")".repeat(200),
        "m or ".repeat(3_000) + "m",
        "m[1s:1s]".repeat(2_000),
        format!("m{{n=~\"{}\"}}", "(".repeat(9_000)),
        format!("m{{n=~\"{}\"}}", "(a{100}){100}"),
        format!("m{{{}}}", "n=\"1\",".repeat(40)),
        "m".repeat(20_000),
    ] {
        assert!(ParsedQuery::parse(&query).is_err(), "{}", &query[..40]);
    }
    // What people write is far from that.
    let long: Vec<String> = (0..60).map(|n| format!("m{{n=\"{n}\"}}")).collect();
    assert!(ParsedQuery::parse(&long.join(" or ")).is_ok());
}

#[test]
fn plain_selectors_are_told_from_queries() {
    assert_eq!(selector("m{n=\"1\",o=~\"a|b\"}").unwrap().to_string(), r#"{__name__="m",n="1",o=~"a|b"}"#);
    for query in ["m[5m]", "m offset 5m", "m @ 5", "sum(m)", "1", "{}", ""] {
        assert!(selector(query).is_err(), "{query}");
    }
}

proptest! {
    #[test]
    fn nothing_panics(text in any::<String>(), likely in r#"[a-cmn{}=!~,"'`\\. é(|)*+?\[\]u0-9:@#^%-]{0,40}"#) {
        for text in [
            text,
            format!("m{{n=~`{likely}`}}"),
            format!("m{{n=\"{likely}"),
            format!("m{{n=\"{likely}\"}}"),
            format!("label_replace(m, \"n\", \"{likely}\", \"n\", \"(.*)\")"),
            format!("m[{likely}]"),
            format!("m offset {likely}"),
            format!("m @ {likely}"),
            format!("sum by ({likely}) (m{{n!=\"99\"}})"),
            likely,
        ] {
            if let Ok(query) = ParsedQuery::parse(&text) {
                let _ = query.instant(&Hundred::new(), 50_000, &QueryLimits::default());
            }
        }
    }

    #[test]
    fn no_time_is_too_far(start_ms in any::<i64>(), length in any::<i64>(), step_ms in any::<i64>()) {
        let query = ParsedQuery::parse("sum(rate(m[5m] offset -1h)) + max_over_time(avg(m @ 1e12)[10m:1m])").unwrap();
        let limits = QueryLimits::default();
        let _ = query.range(&Hundred::new(), QueryRange { start_ms, end_ms: start_ms.saturating_add(length), step_ms }, &limits);
        let _ = query.instant(&Hundred::new(), start_ms, &limits);
    }
}
