//! `muster metric`: measurements.

use clap::{Subcommand, ValueEnum};
use muster_topics::Millis;

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
    /// Write out everything that was measured, for another database or a spreadsheet
    #[command(after_help = "Examples:\n  muster metric export muster_host_cpu_busy_ratio --from 7d > cpu.lines\n  \
                            muster metric export '{hostname=\"web1\"}' --from 2026-01-01 --to '2026-01-31 12:00:00' --format csv\n\n\
                            Lines are InfluxDB's line protocol with times in milliseconds; VictoriaMetrics makes the same names of \
                            them. What is older than single values are kept is not in it.")]
    Export {
        /// A series' name, with label matchers in braces if wanted
        selector: String,
        /// From then on: a time (UTC), or so long ago; everything if left out
        #[arg(long, value_name = "TIME", value_parser = moment)]
        from: Option<Moment>,
        /// Up to then: a time (UTC), or so long ago; now if left out
        #[arg(long, value_name = "TIME", value_parser = moment)]
        to: Option<Moment>,
        /// How it is written
        #[arg(long, value_enum, default_value_t = Text::Lines)]
        format: Text,
    },
}

/// How measurements are written out.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Line protocol
    Lines,
    /// series,time_ms,value
    Csv,
}

impl Text {
    /// As the API calls it.
    fn word(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Csv => "csv",
        }
    }
}

/// A time, or how long ago it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Since the Unix epoch.
    At(Millis),
    /// Before now.
    Ago(Millis),
}

impl Moment {
    fn ms(self, now_ms: Millis) -> Millis {
        match self {
            Self::At(at_ms) => at_ms,
            Self::Ago(ago_ms) => now_ms.saturating_sub(ago_ms).max(0),
        }
    }
}

/// Reads a time: `2026-01-31`, `2026-01-31 12:00:00`, `2026-01-31T12:00:00Z`, or `7d`.
fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(Moment::Ago(Millis::try_from(ago.as_millis()).unwrap_or(Millis::MAX)));
    }
    let whole = if text.len() == "2026-01-31".len() { format!("{text} 00:00:00") } else { text.to_owned() };
    let time = humantime::parse_rfc3339_weak(&whole)
        .map_err(|_| "such as 7d, 2026-01-31 or '2026-01-31 12:00:00' is wanted".to_owned())?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|_| "it is before 1970".to_owned())?;
    Ok(Moment::At(Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX)))
}

/// The most points of one series that are asked for.
const POINTS_MAX: usize = 10_000;

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let (selector, since) = match verb {
        Verb::Query { selector, since } => (selector, since),
        Verb::Export { selector, from, to, format } => {
            let range = (from.map_or(0, |from| from.ms(now_ms)), to.map_or(now_ms, |to| to.ms(now_ms)));
            return export(session, selector, range, format).await;
        }
    };
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

/// Copies what the console writes out to standard output.
async fn export(session: &Session, selector: String, range: (Millis, Millis), format: Text) -> Result<(), Failure> {
    let query = [
        ("selector", selector),
        ("start_ms", range.0.to_string()),
        ("end_ms", range.1.to_string()),
        ("format", format.word().to_owned()),
    ];
    session.client.stream("series/export", &query, print::write_bytes).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_or_how_long_ago() {
        for (text, moment_ms) in [
            ("7d", Moment::Ago(7 * 24 * 3_600_000)),
            ("1h 30m", Moment::Ago(5_400_000)),
            ("2026-01-31", Moment::At(1_769_817_600_000)),
            ("2026-01-31 12:00:00", Moment::At(1_769_860_800_000)),
            ("2026-01-31T12:00:00.5Z", Moment::At(1_769_860_800_500)),
        ] {
            assert_eq!(moment(text), Ok(moment_ms), "{text}");
        }
        for text in ["", "yesterday", "2026-13-01", "1960-01-01", "2026-01-3é"] {
            assert!(moment(text).is_err(), "{text}");
        }
        assert_eq!((Moment::Ago(5).ms(7), Moment::Ago(9).ms(7), Moment::At(3).ms(7)), (2, 0, 3));
    }
}
