//! Synthetic data of every series that dashboards use.

use std::fmt::Write;

use muster_topics::{
    catalogue::{Field, FieldKind, MEASUREMENTS, Measure, Measurement, MetricGroup, Writing},
    metric::Point,
};

/// As often as hosts measure.
pub(super) const STEP_MS: i64 = 10_000;
/// How long ago the last value was measured: VictoriaMetrics does not show what came within half a minute.
pub(super) const END_AGO_MS: i64 = 60_000;
/// How much there is: an hour.
const STEPS: i64 = 360;
/// The names of the hosts.
pub(super) const HOSTS: [&str; 3] = ["shop-1", "shop-2", "shop-3"];

/// The values of a tag.
fn values(tag: &str) -> &'static [&'static str] {
    match tag {
        "hostname" => &HOSTS,
        "realm" => &["default"],
        "unit" => &["till", "web"],
        "kind" => &["yuno"],
        "container" => &["old-web", "db"],
        "runtime" => &["podman"],
        "core" => &["0", "1"],
        "resource" => &["cpu", "memory", "io"],
        "mount" => &["/", "/data"],
        "device" => &["sda"],
        "interface" => &["eth0"],
        "queue" => &["commands", "outbox", "metrics", "alerts"],
        "rule" => &["disk", "memory"],
        "severity" => &["info", "warning", "critical"],
        "subject" => &["host"],
        "state" => &["online", "offline", "never"],
        "store" => &["victoria"],
        "instance" => &["console"],
        "phase" => &["running", "paused", "completed"],
        "outcome" => &["none", "verified", "failed"],
        other => panic!("no values are made up for the tag {other}"),
    }
}

/// All combinations of a measurement's tags. A host's id goes with its name.
fn combinations(measurement: &Measurement) -> Vec<Vec<(&'static str, String)>> {
    let mut all: Vec<Vec<(&'static str, String)>> = vec![Vec::new()];
    for tag in measurement.labels.iter().filter(|tag| **tag != "host") {
        let with = |one: &Vec<(&'static str, String)>, value: &str| {
            let mut longer = one.clone();
            longer.push((*tag, value.to_owned()));
            if *tag == "hostname" {
                longer.push(("host", format!("id-of-{value}")));
            }
            longer
        };
        all = all.iter().flat_map(|one| values(tag).iter().map(|value| with(one, value)).collect::<Vec<_>>()).collect();
    }
    all
}

fn value(field: &Field, series: i64, step: i64) -> f64 {
    let (name, wave) = (field.name, ((step + 7 * series) % 60) as f64 / 60.0);
    match (field.kind, field.unit) {
        (_, Measure::Flag) => f64::from(u8::from(series % 3 != 0)),
        (FieldKind::Counter, Measure::Seconds) => (step + series) as f64 * 3.0,
        (FieldKind::Counter, _) => (step + series) as f64 * 1000.0,
        (_, Measure::Ratio) => 0.1 + 0.8 * wave,
        _ if name.starts_with("total") || name == "inodes" || name.starts_with("limit") => 1e9,
        _ if name.contains("bytes") || name.contains("inodes") => 1e8 + 8e8 * wave,
        _ => 1.0 + (series % 5) as f64 + wave,
    }
}

/// A field that a program might tell by itself.
const TOLD: &[Field] = &[Field {
    name: "queue_depth",
    kind: FieldKind::Gauge,
    unit: Measure::Number,
    writing: Writing::Changed(MetricGroup::Stats),
    about: "What waits.",
}];

/// The fields of a measurement.
fn fields(measurement: &Measurement) -> &'static [Field] {
    if measurement.fields.is_empty() { TOLD } else { measurement.fields }
}

/// All points, each field as often as agents write it.
pub(super) fn points(now_ms: i64) -> Vec<Point> {
    let end_ms = (now_ms - END_AGO_MS) / STEP_MS * STEP_MS;
    let mut points = Vec::new();
    for one in MEASUREMENTS {
        for (series, tags) in (1_i64..).zip(combinations(one)) {
            let tags: Vec<(&str, &str)> = tags.iter().map(|(name, value)| (*name, value.as_str())).collect();
            for step in 0..=STEPS {
                let point = Point::new(one.name, &tags, end_ms - (STEPS - step) * STEP_MS);
                let is_due =
                    |field: &&Field| (step + series) % (i64::from(field.writing.every_s()) * 1000 / STEP_MS) == 0;
                let due = fields(one).iter().filter(is_due);
                let point = due.fold(point, |point, field| point.field(field.name, value(field, series, step)));
                if !point.fields.is_empty() {
                    points.push(point);
                }
            }
        }
    }
    points
}

/// Points in InfluxDB's line protocol, with times in milliseconds. Nothing in them needs to be escaped.
pub(super) fn lines(points: &[Point]) -> String {
    let mut text = String::new();
    for point in points {
        text.push_str(&point.measurement);
        for (name, value) in &point.tags {
            write!(text, ",{name}={value}").unwrap();
        }
        let fields: Vec<String> = point.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(text, " {} {}", fields.join(","), point.at_ms).unwrap();
    }
    text
}

/// Points as Prometheus's text format, each series by itself.
pub(super) fn open_metrics(points: &[Point]) -> String {
    let mut lines: Vec<(String, i64, f64)> = Vec::new();
    for point in points {
        let labels: Vec<String> = point.tags.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        for (field, value) in &point.fields {
            lines.push((format!("{}_{field}{{{}}}", point.measurement, labels.join(",")), point.at_ms, *value));
        }
    }
    lines.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let mut text = String::new();
    for (series, at_ms, value) in lines {
        writeln!(text, "{series} {value} {}", at_ms / 1000).unwrap();
    }
    text.push_str("# EOF\n");
    text
}
