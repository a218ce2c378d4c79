//! `muster ps`: what runs on which host, failures first.

use std::collections::BTreeMap;

use clap::Args;
use muster_api::{Unit, host_names::HostNames};
use muster_base::{clock, failure::Failure};
use muster_topics::{Millis, name::HostId, select::Select, size, unit::Phase};
use serde::Serialize;

use super::{metric, print, session::CliSession, unit};

/// Show what runs on which host, failures first
#[derive(Args, Clone, Debug)]
pub struct PsArgs {
    /// Host, by id or hostname
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Show units that this selects, such as 'realm=prod'
    ///
    /// `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION")]
    select: Option<Select>,
    /// Show so many at most
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u32>,
}

/// A unit, and what it uses.
#[derive(Serialize)]
struct RunningUnit<'a> {
    host: HostId,
    hostname: &'a str,
    unit: &'a str,
    kind: &'a str,
    phase: Phase,
    since_ms: Millis,
    /// Of all processors of its host; left out if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ratio: Option<f64>,
    /// Left out if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<f64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

/// A metric by host and unit.
type UnitValues = BTreeMap<(String, String), f64>;

/// Runs the verb.
///
/// # Errors
/// If the console cannot be reached, or refuses the selection.
pub async fn run(wanted: PsArgs, session: &CliSession) -> Result<(), Failure> {
    let query: Vec<_> = [
        wanted.host.map(|host| ("host", host)),
        wanted.select.map(|select| ("select", select.to_string())),
        Some(("sort", "phase".to_owned())),
        wanted.limit.map(|limit| ("limit", limit.to_string())),
    ]
    .into_iter()
    .flatten()
    .collect();
    let units: Vec<Unit> = session.client.get("units", &query).await?;
    let now_ms = clock::now_ms();
    let (cpu, memory) = tokio::join!(
        values(session, "muster_unit_cpu_busy_ratio", &units, now_ms),
        values(session, "muster_unit_memory_resident_bytes", &units, now_ms),
    );
    // What runs is known without what it uses.
    if let Some(failure) = [cpu.as_ref(), memory.as_ref()].into_iter().find_map(Result::err) {
        print::say(format_args!("what they use is not known: {}", failure.cause().unwrap_or_default()));
    }
    let (cpu, memory) = (cpu.unwrap_or_default(), memory.unwrap_or_default());
    let running: Vec<RunningUnit<'_>> = units.iter().map(|unit| running(unit, &cpu, &memory)).collect();
    let names = HostNames::new(units.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    let row = |(unit, shown): &(&Unit, RunningUnit<'_>)| {
        vec![
            names.show(unit.host, &unit.hostname),
            shown.unit.to_owned(),
            shown.kind.to_owned(),
            unit::doing(unit),
            print::age(shown.since_ms, now_ms),
            shown.cpu_ratio.map(|share| format!("{:.1}%", share * 100.0)).unwrap_or_default(),
            // A process has far less than what a float represents exactly.
            shown.memory_bytes.map(|bytes| size::print(bytes.max(0.0).round() as u64)).unwrap_or_default(),
            shown.why.clone(),
        ]
    };
    let empty = "nothing is kept running; `muster apply --help` and `muster unit --help` tell how to";
    if session.printer.is_for_programs() {
        return session.printer.data(&running);
    }
    let rows: Vec<_> = units.iter().zip(running).collect();
    let header = ["HOST", "UNIT", "KIND", "PHASE", "SINCE", "CPU", "MEMORY", "WHY"];
    session.printer.table_of(&rows, &header, row, empty)?;
    if let Some(limit) = wanted.limit {
        print::say_if_limited(units.len(), limit);
    }
    Ok(())
}

/// The latest values of a metric of units: of one host if all are there, so that a large fleet is not read for it.
async fn values(session: &CliSession, metric: &str, units: &[Unit], now_ms: Millis) -> Result<UnitValues, Failure> {
    let Some(first) = units.first() else { return Ok(UnitValues::new()) };
    let expression = match units.iter().all(|unit| unit.host == first.host) {
        true => format!("{metric}{{host=\"{}\"}}", first.host),
        false => metric.to_owned(),
    };
    let series = metric::instant(session, &expression, now_ms).await?;
    let value = |one: &muster_api::Series| {
        let label = |name: &str| one.labels.get(name).cloned().unwrap_or_default();
        let unit = format!("{}/{}", label("realm"), label("unit"));
        Some(((label("host"), unit), one.points.last()?.1)).filter(|(_, value)| value.is_finite())
    };
    Ok(series.iter().filter_map(value).collect())
}

fn running<'a>(unit: &'a Unit, cpu: &UnitValues, memory: &UnitValues) -> RunningUnit<'a> {
    let key = (unit.host.to_string(), unit.unit.to_string());
    let is_fine = matches!(unit.observed.phase(), Phase::Running | Phase::Playing);
    // What ran earlier uses nothing now, and why it ended is said of what does not run.
    let used = |values: &UnitValues| values.get(&key).copied().filter(|_| is_fine);
    RunningUnit {
        host: unit.host,
        hostname: &unit.hostname,
        unit: unit.unit.as_str(),
        kind: unit.desired.spec.kind(),
        phase: unit.observed.phase(),
        since_ms: unit.observed.since_ms,
        cpu_ratio: used(cpu),
        memory_bytes: used(memory),
        why: if is_fine && unit.hold.is_none() { String::new() } else { unit::trouble(unit) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::tests::unit;

    #[test]
    fn use_of_what_runs_no_more_is_left_out() {
        let mut one = unit("1.0.0");
        let key = (one.host.to_string(), "default/web".to_owned());
        let values: UnitValues = [(key, 0.5)].into();
        one.observed.state = Phase::Running.into();
        assert_eq!(running(&one, &values, &UnitValues::new()).cpu_ratio, Some(0.5));
        assert_eq!(running(&one, &UnitValues::new(), &values).memory_bytes, Some(0.5));
        one.observed.state = Phase::Stopped.into();
        assert_eq!(running(&one, &values, &values).cpu_ratio, None);
    }
}
