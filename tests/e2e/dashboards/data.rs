//! Synthetic data of every series that dashboards use.

use std::fmt::Write;

use muster_dashboards::series::{FieldKind, MEASUREMENTS, Measurement, every_s};
use muster_topics::metric::Point;

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
        other => panic!("no values are made up for the tag {other}"),
    }
}

/// All combinations of a measurement's tags. A host's id goes with its name.
fn combinations(measurement: &Measurement) -> Vec<Vec<(&'static str, String)>> {
    let mut all: Vec<Vec<(&'static str, String)>> = vec![Vec::new()];
    for tag in measurement.tags.iter().filter(|tag| **tag != "host") {
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

fn value(field: &str, kind: FieldKind, series: i64, step: i64) -> f64 {
    let wave = ((step + 7 * series) % 60) as f64 / 60.0;
    match kind {
        FieldKind::Flag => f64::from(u8::from(series % 3 != 0)),
        FieldKind::Counter if field.ends_with("seconds_total") => (step + series) as f64 * 3.0,
        FieldKind::Counter => (step + series) as f64 * 1000.0,
        FieldKind::Gauge if field.ends_with("ratio") => 0.1 + 0.8 * wave,
        FieldKind::Gauge if field.starts_with("total") || field == "inodes" || field.starts_with("limit") => 1e9,
        FieldKind::Gauge if field.contains("bytes") || field.contains("inodes") => 1e8 + 8e8 * wave,
        FieldKind::Gauge => 1.0 + (series % 5) as f64 + wave,
    }
}

/// The fields of a measurement; of what programs tell by themselves, one that a program might.
fn fields(measurement: &Measurement) -> &'static [(&'static str, FieldKind)] {
    if measurement.fields.is_empty() { &[("queue_depth", FieldKind::Gauge)] } else { measurement.fields }
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
                    |field: &str| (step + series) % (i64::from(every_s(one.name, field)) * 1000 / STEP_MS) == 0;
                let due = fields(one).iter().filter(|(field, _)| is_due(field));
                let point =
                    due.fold(point, |point, (field, kind)| point.field(field, value(field, *kind, series, step)));
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
