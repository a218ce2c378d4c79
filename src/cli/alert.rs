//! `muster alert`: alerts of hosts, and their history.

use clap::{Args, Subcommand};
use muster_api::{Alert, AlertSort, AlertStanding, Host, host_names::HostNames};
use muster_base::{clock, failure::Failure};
use muster_topics::{
    Millis,
    name::{HostId, Name},
    select::HostSelect,
};

use super::{print, session::CliSession};

/// Verbs on alerts.
#[derive(Subcommand, Clone, Debug)]
pub enum AlertVerb {
    /// List active alerts
    Ls {
        /// Which ones
        #[command(flatten)]
        which: AlertFilterOptions,
        /// Show so many at most [default: 1000]
        #[arg(short = 'n', long, value_name = "N")]
        limit: Option<u32>,
    },
    /// List active and past alerts, newest first
    History {
        /// Which ones
        #[command(flatten)]
        which: AlertFilterOptions,
        /// Show so many at most
        #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
        limit: u32,
    },
}

/// Which alerts.
#[derive(Args, Clone, Debug)]
pub struct AlertFilterOptions {
    /// Host, by id or hostname
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Hosts that this selects
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "host")]
    select: Option<HostSelect>,
    /// Rule of the alerts
    #[arg(long, value_name = "RULE")]
    rule: Option<Name>,
    /// Order of the list
    ///
    /// `since` shows the newest alerts first, `severity` the worst.
    #[arg(long, value_name = "ORDER", default_value = "since", value_parser = AlertSort::WORDS)]
    sort: String,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: AlertVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        AlertVerb::Ls { which, limit } => list(session, "alerts", which, limit).await,
        AlertVerb::History { which, limit } => list(session, "alerts/history", which, Some(limit)).await,
    }
}

/// Largest number of alerts that the console lists at once.
const ALERTS_MAX: usize = 1_000;

async fn list(session: &CliSession, path: &str, which: AlertFilterOptions, limit: Option<u32>) -> Result<(), Failure> {
    let query: Vec<(&str, String)> = [
        which.host.map(|host| ("host", host)),
        which.select.map(|select| ("select", select.to_string())),
        which.rule.map(|rule| ("rule", rule.to_string())),
        Some(("sort", which.sort)),
        Some(("limit", limit.map_or_else(|| ALERTS_MAX.to_string(), |limit| limit.to_string()))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let alerts: Vec<Alert> = session.client.get(path, &query).await?;
    let now_ms = clock::now_ms();
    let names = HostNames::new(alerts.iter().map(|one| (one.host, one.hostname.as_str())));
    let row = |one: &Alert| {
        vec![
            one.alert.severity.as_str().to_owned(),
            names.show(one.host, &one.hostname),
            one.alert.rule.to_string(),
            print::age(one.begun_ms(), now_ms),
            standing(one, now_ms),
            format!("{:#}", one.alert.diagnostic),
        ]
    };
    let header = ["SEVERITY", "HOST", "RULE", "SINCE", "STATE", "WHAT"];
    session.printer.list(&alerts, &header, row, "no alerts")?;
    match limit {
        Some(limit) => print::say_if_limited(alerts.len(), limit),
        None if alerts.len() >= ALERTS_MAX => {
            print::say(format_args!("{ALERTS_MAX} are listed, the maximum; --host and --rule select others"));
        }
        None => {}
    }
    Ok(())
}

fn standing(one: &Alert, now_ms: Millis) -> String {
    let ended = one.ended_ms.map(|ended_ms| print::age(ended_ms, now_ms)).unwrap_or_default();
    match (one.standing, &one.silence) {
        (AlertStanding::Raised, None) => "active".to_owned(),
        (AlertStanding::Raised, Some(silence)) => format!("silenced: {}", silence.reason),
        (AlertStanding::Cleared, _) => format!("cleared {ended}"),
        (AlertStanding::Gone, _) => format!("over {ended}"),
    }
}

/// All hosts, if an item of the list applies to a single one.
pub(super) async fn hosts_of(
    session: &CliSession,
    mut of: impl Iterator<Item = Option<HostId>>,
) -> Result<Vec<Host>, Failure> {
    if of.any(|host| host.is_some()) { session.client.get("hosts", &[]).await } else { Ok(Vec::new()) }
}

/// The hosts that something applies to: all, or one by its name. A removed host is only known by its id.
pub(super) fn whom(hosts: &[Host], names: &HostNames<'_>, host: Option<HostId>) -> String {
    let Some(id) = host else { return "all".to_owned() };
    hosts.iter().find(|host| host.id == id).map_or_else(|| id.to_string(), |host| names.show(id, &host.hostname))
}
