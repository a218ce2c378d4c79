//! `muster metric`: measurements.

use clap::Subcommand;

use super::{Session, print};
use crate::{
    api::{Series, SeriesAnswer},
    clock,
    failure::Failure,
};

/// Verbs on measurements.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Show the series that a selector chooses: their last values, or all since a while ago
    #[command(after_help = "Examples:\n  muster metric query muster_host_cpu_busy_ratio\n  \
                            muster metric query 'muster_unit_memory_resident_bytes{unit=\"hello\"}' --since 1h -o json")]
    Query {
        /// A series' name, with label matchers in braces if wanted
        selector: String,
        /// Show what was measured since this long ago, not only the last values
        #[arg(long, value_name = "TIME")]
        since: Option<humantime::Duration>,
    },
}

/// The most points of one series that are asked for.
const POINTS_MAX: usize = 10_000;

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    let Verb::Query { selector, since } = verb;
    let now_ms = clock::now_ms();
    let mut query = vec![("selector", selector), ("points", POINTS_MAX.to_string())];
    if let Some(since) = since {
        let since_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        query.push(("start_ms", now_ms.saturating_sub(since_ms).max(0).to_string()));
        query.push(("end_ms", now_ms.to_string()));
    }
    let answer: SeriesAnswer = session.client.get("series", &query).await?;
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
    session.printer.list(
        &rows,
        &["SERIES", "VALUE", "TIME", "AGE"],
        Clone::clone,
        "nothing was measured under this name",
    )
}

/// A series as its selector.
fn name(series: &Series) -> String {
    let labels: Vec<String> = series
        .labels
        .iter()
        .filter(|(label, _)| *label != "host")
        .map(|(label, value)| format!("{label}={value:?}"))
        .collect();
    format!("{}{{{}}}", series.name, labels.join(","))
}
