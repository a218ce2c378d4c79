//! `muster metric`: measurements.

use std::collections::BTreeMap;

use clap::Subcommand;
use muster_topics::Millis;
use serde::Deserialize;

use super::{Session, print};
use crate::{
    api::{Series, SeriesAnswer},
    clock,
    failure::{Failure, Kind},
};

/// Verbs on measurements.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Show the value of an expression (PromQL): now, or over a range
    #[command(after_help = "Examples:\n  muster metric query muster_host_cpu_busy_ratio\n  \
                            muster metric query 'topk(3, muster_unit_memory_resident_bytes)'\n  \
                            muster metric query 'avg by (hostname) (muster_host_cpu_busy_ratio)' --range 1h --step 5m\n  \
                            muster metric query 'muster_host_load_1m[10m]' --csv")]
    Query {
        /// Series, with label matchers in braces if wanted, and what is to be made of them
        expression: String,
        /// Show its values from this long ago until now, not only the present one
        #[arg(long, visible_alias = "since", value_name = "TIME")]
        range: Option<humantime::Duration>,
        /// From one value of a range to the next; a sixtieth of the range if left out, and at least 10s
        #[arg(long, value_name = "TIME", requires = "range")]
        step: Option<humantime::Duration>,
        /// Print lines of comma-separated values: time, series, value
        #[arg(long)]
        csv: bool,
    },
}

/// How many values a range has if no step is given: as many as a terminal has lines.
const STEPS: Millis = 60;
/// The least step that is chosen for a range: as often as hosts measure.
const STEP_MIN_MS: Millis = 10_000;

/// The data of an answer, as Prometheus's API has it.
#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Scalar((f64, String)),
    String((f64, String)),
    Vector(Vec<One>),
    Matrix(Vec<Many>),
}

#[derive(Deserialize)]
struct One {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

#[derive(Deserialize)]
struct Many {
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    let Verb::Query { expression, range, step, csv } = verb;
    let now_ms = clock::now_ms();
    let mut form = vec![("query", expression)];
    let path = match range {
        None => {
            form.push(("time", seconds(now_ms)));
            "query"
        }
        Some(range) => {
            let range_ms = millis(range);
            let step_ms = step.map_or_else(|| (range_ms / STEPS).max(STEP_MIN_MS), millis);
            form.push(("start", seconds(now_ms.saturating_sub(range_ms).max(0))));
            form.push(("end", seconds(now_ms)));
            form.push(("step", seconds(step_ms)));
            "query_range"
        }
    };
    let data: Data = session.client.prometheus(path, &form).await?;
    if let Data::String((_, text)) = data {
        return print::write_out(&format!("{text}\n"));
    }
    let answer = SeriesAnswer { series: series(data)? };
    if csv {
        return print::write_out(&lines(&answer.series));
    }
    if session.printer.format != print::Format::Table {
        return session.printer.one(&answer, Vec::new);
    }
    let rows: Vec<Vec<String>> = answer
        .series
        .iter()
        .flat_map(|series| {
            let name = name(series);
            series.points.iter().map(move |(at_ms, value)| {
                vec![name.clone(), value.to_string(), print::time(*at_ms), print::age(*at_ms, now_ms)]
            })
        })
        .collect();
    session.printer.list(&rows, &["SERIES", "VALUE", "TIME", "AGE"], Clone::clone, "no series has a value")
}

fn millis(duration: humantime::Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// A time in seconds, to the millisecond.
fn seconds(ms: Millis) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// What was answered, whatever its kind, as series with points.
fn series(data: Data) -> Result<Vec<Series>, Failure> {
    let many = match data {
        Data::Scalar(value) | Data::String(value) => vec![Many { metric: BTreeMap::new(), values: vec![value] }],
        Data::Vector(ones) => {
            ones.into_iter().map(|one| Many { metric: one.metric, values: vec![one.value] }).collect()
        }
        Data::Matrix(many) => many,
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
        Failure::new(Kind::Failed, format!("the console's answer is not understood: {value:?} is no number"))
    })?;
    let at_ms = (at * 1000.0).round() as Millis;
    Ok((at_ms, value))
}

/// A series as its selector; on a terminal, who has a host's name needs no id beside it.
fn name(series: &Series) -> String {
    let labels: Vec<String> = series
        .labels
        .iter()
        .filter(|(label, _)| *label != "host" || !series.labels.contains_key("hostname"))
        .map(|(label, value)| format!("{label}={value:?}"))
        .collect();
    format!("{}{{{}}}", series.name, labels.join(","))
}

/// Lines of comma-separated values (RFC 4180).
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
        let read = |json: &str| series(serde_json::from_str::<Data>(json).unwrap());
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
}
