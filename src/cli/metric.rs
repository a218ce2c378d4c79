//! `muster metric`: measurements.

use std::collections::BTreeMap;

use clap::Subcommand;
use muster_api::{MetricStore, Series, SeriesAnswer};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{Millis, name::HostId};
use serde::{Deserialize, Serialize};

use super::{options::TimeRange, print, session::CliSession};
use muster_api::host_names::HostNames;

/// Verbs on measurements.
#[derive(Subcommand, Clone, Debug)]
pub enum MetricVerb {
    /// Evaluate a PromQL expression, now or over a range
    Query {
        /// PromQL expression
        expression: String,
        /// The range; without it, the values of now
        #[command(flatten)]
        range: TimeRange,
        /// Time between values of a range, at least 10s
        ///
        /// [default: a sixtieth of the range]
        #[arg(long, value_name = "TIME", requires = "since")]
        step: Option<humantime::Duration>,
        /// Print comma-separated values
        #[arg(long)]
        csv: bool,
    },
    /// List metrics, with their kind and unit
    #[command(after_long_help = "A counter only grows; ask for its rate: `muster metric query 'rate(NAME[5m])'`.")]
    Ls {
        /// Show those whose name contains this
        part: Option<String>,
    },
    /// Export samples for a database or a spreadsheet
    #[command(
        after_long_help = "Lines are InfluxDB's line protocol with times in milliseconds; VictoriaMetrics makes the \
                    same names of them. Values older than the retention of single samples are not exported."
    )]
    Export {
        /// Name of a series, and label matchers in braces if wanted
        selector: String,
        /// The range; all samples without it
        #[command(flatten)]
        range: TimeRange,
        /// Print comma-separated values
        #[arg(long)]
        csv: bool,
    },
    /// Show external time-series stores, and their state
    #[command(
        after_long_help = "`metric_stores` in the console's configuration has the list. Counts are lines of line \
                    protocol, since the console started. What a store refused is in its quarantine, a folder on \
                    the console's machine; each file there says why."
    )]
    Stores,
}

/// Default number of values in a range: as many as a terminal has lines.
const STEPS: Millis = 60;
/// Smallest default step: the interval at which hosts measure.
const STEP_MIN_MS: Millis = 10_000;

/// The data of a Prometheus API response.
#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum PrometheusData {
    Scalar((f64, String)),
    String((f64, String)),
    Vector(Vec<InstantSeries>),
    Matrix(Vec<RangeSeries>),
}

#[derive(Deserialize)]
struct InstantSeries {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

#[derive(Deserialize)]
struct RangeSeries {
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: MetricVerb, session: &CliSession) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let (expression, range, step, csv) = match verb {
        MetricVerb::Query { expression, range, step, csv } => (expression, range, step, csv),
        MetricVerb::Export { selector, range, csv } => {
            return export(session, selector, (range.since_ms(now_ms).unwrap_or(0), range.until_ms(now_ms)), csv).await;
        }
        MetricVerb::Ls { part } => return list(session, part.as_deref()).await,
        MetricVerb::Stores => return stores(session).await,
    };
    if csv {
        text_alone(session, "--csv")?;
    }
    let mut form = vec![("query", expression)];
    let until_ms = range.until_ms(now_ms);
    let path = match range.since_ms(now_ms) {
        None => {
            form.push(("time", seconds(until_ms)));
            "query"
        }
        Some(since_ms) => {
            let step_ms = step.map_or_else(|| (until_ms.saturating_sub(since_ms) / STEPS).max(STEP_MIN_MS), millis);
            form.push(("start", seconds(since_ms)));
            form.push(("end", seconds(until_ms)));
            form.push(("step", seconds(step_ms)));
            "query_range"
        }
    };
    let data: PrometheusData = session.client.prometheus(path, &form).await?;
    if let PrometheusData::String((_, text)) = data {
        return session.printer.line(&text, &text);
    }
    let answer = SeriesAnswer { series: series(data)? };
    if csv {
        return print::write_out(&lines(&answer.series));
    }
    if session.printer.is_for_programs() {
        return session.printer.one(&answer, Vec::new);
    }
    let hosts = answer.series.iter().filter_map(|series| {
        let id: HostId = series.labels.get("host")?.parse().ok()?;
        Some((id, series.labels.get("hostname")?.as_str()))
    });
    let names = HostNames::new(hosts);
    let rows: Vec<Vec<String>> = answer
        .series
        .iter()
        .flat_map(|series| {
            let name = name(series, &names);
            series.points.iter().map(move |(at_ms, value)| {
                vec![name.clone(), value.to_string(), session.printer.time(*at_ms), print::age(*at_ms, now_ms)]
            })
        })
        .collect();
    session.printer.list(&rows, &["SERIES", "VALUE", "TIME", "AGE"], Clone::clone, "no series has a value")
}

/// The value of an expression at one time.
///
/// # Errors
/// If the console cannot be reached, or if the expression is invalid.
pub(super) async fn instant(session: &CliSession, expression: &str, at_ms: Millis) -> Result<Vec<Series>, Failure> {
    let form = [("query", expression.to_owned()), ("time", seconds(at_ms))];
    series(session.client.prometheus("query", &form).await?)
}

/// A metric in a list.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct MetricLine {
    name: String,
    kind: String,
    unit: String,
}

/// Lists the metrics.
async fn list(session: &CliSession, part: Option<&str>) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct MetricMetadata {
        #[serde(rename = "type")]
        kind: String,
        unit: String,
    }
    let all: BTreeMap<String, Vec<MetricMetadata>> = session.client.prometheus("metadata", &[]).await?;
    let metrics: Vec<MetricLine> = all
        .into_iter()
        .filter(|(name, _)| part.is_none_or(|part| name.contains(part)))
        .filter_map(|(name, about)| {
            let MetricMetadata { kind, unit } = about.into_iter().next()?;
            Some(MetricLine { name, kind, unit })
        })
        .collect();
    let row = |metric: &MetricLine| vec![metric.name.clone(), metric.kind.clone(), metric.unit.clone()];
    session.printer.list(&metrics, &["NAME", "KIND", "UNIT"], row, "no metric has such a name")
}

/// Shows the external stores.
async fn stores(session: &CliSession) -> Result<(), Failure> {
    const HEADERS: [&str; 8] = ["STORE", "KIND", "STATE", "WAITING", "SENT", "RETRIED", "SET ASIDE", "LAST ERROR"];
    let stores: Vec<MetricStore> = session.client.get("metric-stores", &[]).await?;
    let now_ms = clock::now_ms();
    session.printer.list(&stores, &HEADERS, |store| row(store, now_ms), "no store elsewhere is configured")
}

fn row(store: &MetricStore, now_ms: Millis) -> Vec<String> {
    let state = match (store.failing, store.sent_ms) {
        (true, _) => "failing".to_owned(),
        (false, Some(at_ms)) => format!("fed {}", print::age(at_ms, now_ms)),
        (false, None) => "not fed yet".to_owned(),
    };
    let waiting = match store.dropped_lines {
        0 => format!("{} ({})", store.waiting_lines, muster_topics::size::print(store.waiting_bytes)),
        dropped => {
            format!("{} ({}), {dropped} dropped", store.waiting_lines, muster_topics::size::print(store.waiting_bytes))
        }
    };
    let error = store.last_error.as_ref();
    vec![
        store.name.to_string(),
        store.kind.clone(),
        state,
        waiting,
        store.sent_lines.to_string(),
        store.retries.to_string(),
        format!("{} ({} files kept)", store.refused_lines, store.quarantine.files),
        error.map_or_else(String::new, |error| format!("{}: {}", print::age(error.at_ms, now_ms), error.message)),
    ]
}

/// Refuses `--output` beside an option that selects its own format.
fn text_alone(session: &CliSession, option: &str) -> Result<(), Failure> {
    if !session.printer.is_for_programs() {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, format!("{option} is a form of its own, and --output asks for another"))
        .hint("say one of them"))
}

/// Copies the console's export to standard output.
async fn export(session: &CliSession, selector: String, range: (Millis, Millis), csv: bool) -> Result<(), Failure> {
    text_alone(session, "what `muster metric export` writes")?;
    let query = [
        ("selector", selector),
        ("start_ms", range.0.to_string()),
        ("end_ms", range.1.to_string()),
        ("format", if csv { "csv" } else { "lines" }.to_owned()),
    ];
    session.client.stream("series/export", &query, print::write_bytes).await
}

fn millis(duration: humantime::Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// A time in seconds, with milliseconds.
fn seconds(ms: Millis) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// A result of any kind, as series with points.
fn series(data: PrometheusData) -> Result<Vec<Series>, Failure> {
    let many = match data {
        PrometheusData::Scalar(value) | PrometheusData::String(value) => {
            vec![RangeSeries { metric: BTreeMap::new(), values: vec![value] }]
        }
        PrometheusData::Vector(ones) => {
            ones.into_iter().map(|one| RangeSeries { metric: one.metric, values: vec![one.value] }).collect()
        }
        PrometheusData::Matrix(many) => many,
    };
    many.into_iter()
        .map(|mut one| {
            let name = one.metric.remove("__name__").unwrap_or_default();
            let points = one.values.iter().map(point).collect::<Result<_, _>>()?;
            Ok(Series { name, labels: one.metric, points })
        })
        .collect()
}

fn point((at, value): &(f64, String)) -> Result<(Millis, f64), Failure> {
    let value = value.parse().map_err(|_| {
        Failure::new(FailureKind::Failed, format!("the console's answer is not valid: {value:?} is not a number"))
    })?;
    let at_ms = (at * 1000.0).round() as Millis;
    Ok((at_ms, value))
}

/// A series as a selector; for people, without the host's id if the hostname is unique.
fn name(series: &Series, names: &HostNames<'_>) -> String {
    let is_named = series.labels.get("hostname").is_some_and(|hostname| names.is_unique(hostname));
    let labels: Vec<String> = series
        .labels
        .iter()
        .filter(|(label, _)| *label != "host" || !is_named)
        .map(|(label, value)| format!("{label}={value:?}"))
        .collect();
    format!("{}{{{}}}", series.name, labels.join(","))
}

/// Comma-separated values (RFC 4180).
fn lines(series: &[Series]) -> String {
    let mut lines = "time,series,value\n".to_owned();
    for one in series {
        let labels: Vec<String> = one.labels.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
        let name = format!("{}{{{}}}", one.name, labels.join(",")).replace('"', "\"\"");
        for (at_ms, value) in &one.points {
            lines.push_str(&format!("{},\"{name}\",{value}\n", print::time(*at_ms)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_series() {
        let read = |json: &str| series(serde_json::from_str::<PrometheusData>(json).unwrap());
        let vector = r#"{"resultType":"vector","result":[{"metric":{"__name__":"m","a":"1"},"value":[1.5,"2.5"]}]}"#;
        let found = read(vector).unwrap();
        assert_eq!((found[0].name.as_str(), &found[0].points), ("m", &vec![(1_500, 2.5)]));
        assert_eq!(lines(&found), "time,series,value\n1970-01-01T00:00:01Z,\"m{a=\"\"1\"\"}\",2.5\n");
        let matrix = r#"{"resultType":"matrix","result":[{"metric":{},"values":[[1,"NaN"],[2,"+Inf"]]}]}"#;
        let found = read(matrix).unwrap();
        assert!(found[0].points[0].1.is_nan() && found[0].points[1].1.is_infinite());
        assert_eq!(read(r#"{"resultType":"scalar","result":[1,"7"]}"#).unwrap()[0].points, [(1_000, 7.0)]);
        assert!(read(r#"{"resultType":"scalar","result":[1,"seven"]}"#).is_err());
    }

    #[test]
    fn series_of_hosts_with_one_name_show_their_ids() {
        let series = |host: HostId| Series {
            name: "m".to_owned(),
            labels: [("host".to_owned(), host.to_string()), ("hostname".to_owned(), "till".to_owned())].into(),
            points: Vec::new(),
        };
        let (one, twin) = (HostId::random(), HostId::random());
        let alone = HostNames::new([(one, "till")]);
        assert_eq!(name(&series(one), &alone), "m{hostname=\"till\"}");
        let both = HostNames::new([(one, "till"), (twin, "till")]);
        assert_eq!(name(&series(twin), &both), format!("m{{host=\"{twin}\",hostname=\"till\"}}"));
    }

    #[test]
    fn external_store_is_one_row() {
        let mut store: MetricStore = serde_json::from_value(serde_json::json!({
            "name": "far", "kind": "influxdb1", "url": "http://h", "failing": false, "waiting_lines": 7, "waiting_bytes": 1_500,
            "queue_max_bytes": 1 << 30, "sent_lines": 90, "retries": 2, "refused_lines": 5, "dropped_lines": 0,
            "quarantine": { "folder": "/q", "files": 1, "lines": 5, "bytes": 99 },
        }))
        .unwrap();
        assert_eq!(
            row(&store, 0),
            ["far", "influxdb1", "not fed yet", "7 (1.5 KiB)", "90", "2", "5 (1 files kept)", ""]
        );
        (store.sent_ms, store.dropped_lines) = (Some(0), 3);
        assert_eq!(row(&store, 2_000)[2..4], ["fed 2 s ago", "7 (1.5 KiB), 3 dropped"]);
        store.failing = true;
        store.last_error = Some(muster_api::MetricStoreError { at_ms: 0, message: "no".to_owned() });
        assert_eq!((row(&store, 60_000)[2].as_str(), row(&store, 60_000)[7].as_str()), ("failing", "1 min ago: no"));
    }
}
