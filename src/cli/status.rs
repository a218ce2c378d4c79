//! `muster status`: the installation at a glance. Each line names the verb that shows more.

use clap::Args;
use muster_api::{Deployment, Installation, Rollout, RolloutPhase};
use muster_base::{clock, failure::Failure};
use muster_topics::{Millis, alert::Severity, unit::Phase};
use serde::Serialize;

use super::{print, rollout, session::CliSession, wait};

/// Show the installation at a glance.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {}

/// The document for programs: with the context that was asked.
#[derive(Serialize)]
struct StatusDocument<'a> {
    context: &'a str,
    operator: &'a str,
    #[serde(flatten)]
    installation: &'a Installation,
}

/// A line: what it is about, how it is, and the verb that shows more.
type StatusLine = (&'static str, String, &'static str);

/// Runs the verb. What is wrong in the installation is said, and is no failure of the verb.
///
/// # Errors
/// If the console cannot be reached.
pub async fn run(_: StatusArgs, session: &CliSession) -> Result<(), Failure> {
    let found: Installation = session.client.get("installation", &[]).await?;
    let context = session.context_name.as_str();
    let operator = session.context.operator.as_str();
    let document = StatusDocument { context, operator, installation: &found };
    let console = format!("{context}: {}, as {operator}", session.context.url);
    let rows = [("context", console, "muster context ls")].into_iter().chain(lines(&found, clock::now_ms()));
    let row = |(about, state, verb): StatusLine| vec![about.to_owned(), state, verb.to_owned()];
    session.printer.table(&document, &["WHAT", "NOW", "MORE"], rows.map(row))
}

fn lines(found: &Installation, now_ms: Millis) -> Vec<StatusLine> {
    let status = &found.status;
    let broker = if status.broker_connected { "connected to its broker" } else { "NOT connected to its broker" };
    vec![
        ("console", format!("version {}, {broker}", status.version), "muster doctor"),
        ("hosts join", format!("at {}, broker {}", status.console_url, status.broker_url), "muster token create"),
        ("hosts", hosts(found), "muster host ls --sort presence"),
        ("units", units(found), "muster ps"),
        ("deployments", deployments(found), "muster deployment ls"),
        ("rollouts", rollouts(found, now_ms), "muster rollout ls"),
        ("alerts", alerts(found), "muster alert ls"),
        ("backup", backup(found, now_ms), "muster backup ls"),
        ("clock", clock_words(found), "muster clock show"),
    ]
}

/// `12: 3 failed, 9 running`, without what there is none of.
fn counted(total: u64, parts: impl IntoIterator<Item = (u64, &'static str)>) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if parts.is_empty() { total.to_string() } else { format!("{total}: {}", parts.join(", ")) }
}

fn hosts(found: &Installation) -> String {
    let status = &found.status;
    let parts = [
        (found.hosts_away, "away"),
        (found.hosts_revoked, "revoked"),
        (found.hosts_never, "never online"),
        (status.hosts_unknown, "unknown"),
        (status.hosts_online, "online"),
    ];
    if status.hosts == 0 { "none".to_owned() } else { counted(status.hosts, parts) }
}

/// The phases, failures first.
const PHASES: [Phase; 9] = [
    Phase::Failed,
    Phase::Backoff,
    Phase::Absent,
    Phase::Installing,
    Phase::Starting,
    Phase::Stopping,
    Phase::Stopped,
    Phase::Running,
    Phase::Playing,
];

fn units(found: &Installation) -> String {
    let total: u64 = found.units.values().sum();
    if total == 0 {
        return "none".to_owned();
    }
    let parts = PHASES.into_iter().map(|phase| (found.units.get(&phase).copied().unwrap_or(0), wait::phase(phase)));
    let troubled = match found.units_troubled {
        0 => String::new(),
        1 => "; 1 needs attention".to_owned(),
        several => format!("; {several} need attention"),
    };
    format!("{}{troubled}", counted(total, parts))
}

/// What is not done, one in a line of its own, and how many more there are.
fn unfinished(total: String, lines: Vec<String>, count: u64) -> String {
    let more = count.saturating_sub(lines.len() as u64);
    let more = (more > 0).then(|| format!("and {more} more"));
    [total].into_iter().chain(lines).chain(more).collect::<Vec<_>>().join("\n")
}

fn deployments(found: &Installation) -> String {
    let total = match (found.deployments, found.deployments_unfinished) {
        (0, _) => "none".to_owned(),
        (all, 0) => format!("{all}, done on all hosts"),
        (all, open) => format!("{all}: {open} not done"),
    };
    let line = |one: &Deployment| {
        let states: Vec<String> = one.hosts.iter().map(|(state, count)| format!("{count} {}", state.word())).collect();
        format!("{} version {}: {}", one.deployment, one.version.number, states.join(", "))
    };
    unfinished(total, found.unfinished_deployments.iter().map(line).collect(), found.deployments_unfinished)
}

fn rollouts(found: &Installation, now_ms: Millis) -> String {
    let total = match found.rollouts_unfinished {
        0 => "none under way".to_owned(),
        count => {
            let failed = |one: &&Rollout| matches!(one.phase, RolloutPhase::Failed { .. });
            match found.unfinished_rollouts.iter().filter(failed).count() {
                0 => format!("{count} under way"),
                failed => format!("{count}, of which {failed} failed"),
            }
        }
    };
    let line = |one: &Rollout| {
        let phase = rollout::words::phase(&one.phase, now_ms);
        format!("{} version {}: {phase}, {} of {} hosts", one.deployment, one.version, one.ended(), one.hosts)
    };
    unfinished(total, found.unfinished_rollouts.iter().map(line).collect(), found.rollouts_unfinished)
}

fn alerts(found: &Installation) -> String {
    let severities = [Severity::Critical, Severity::Warning, Severity::Info];
    let total = found.alerts.values().sum();
    let parts = severities.map(|severity| (found.alerts.get(&severity).copied().unwrap_or(0), severity.as_str()));
    if total == 0 { "none".to_owned() } else { counted(total, parts) }
}

fn backup(found: &Installation, now_ms: Millis) -> String {
    let backup = &found.backup;
    let last = match backup.last_ms {
        Some(at_ms) => format!("the last one was taken {}", print::age(at_ms, now_ms)),
        None if !backup.is_possible => "none, and no key for one".to_owned(),
        None => "none yet".to_owned(),
    };
    match &backup.failed {
        Some(failed) => {
            let age = print::age(failed.at_ms, now_ms);
            format!("failed {age}: {:#}\n{last}", failed.diagnostic)
        }
        None => last,
    }
}

fn clock_words(found: &Installation) -> String {
    match found.clock.ahead_ms {
        0 => "confirmed".to_owned(),
        ahead_ms => format!("{} ahead of the time that has certainly passed", print::span(ahead_ms / 1_000)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn installation(changes: serde_json::Value) -> Installation {
        let mut whole = json!({
            "version": "1.0.0", "broker_connected": true, "hosts": 0, "hosts_online": 0, "hosts_unknown": 0,
            "broker_url": "mqtts://192.0.2.1:8883", "console_url": "https://192.0.2.1:7443",
            "hosts_away": 0, "hosts_never": 0, "hosts_revoked": 0, "units": {}, "units_troubled": 0,
            "deployments": 0, "deployments_unfinished": 0, "unfinished_deployments": [],
            "rollouts_unfinished": 0, "unfinished_rollouts": [], "alerts": {},
            "backup": {"is_possible": false, "every_hours": 0},
            "clock": {"clock_ms": 0, "ahead_ms": 0},
        });
        for (key, value) in changes.as_object().unwrap() {
            whole[key] = value.clone();
        }
        serde_json::from_value(whole).unwrap()
    }

    #[track_caller]
    fn check(changes: serde_json::Value, about: &str, wanted: &str) {
        let lines = lines(&installation(changes), 100_000_000);
        let line = lines.iter().find(|(line, ..)| *line == about).unwrap();
        assert_eq!(line.1, wanted);
    }

    #[test]
    fn empty_installation_says_none() {
        for about in ["hosts", "units", "deployments", "alerts"] {
            check(json!({}), about, "none");
        }
        check(json!({}), "rollouts", "none under way");
        check(json!({}), "backup", "none, and no key for one");
        check(json!({}), "clock", "confirmed");
    }

    #[test]
    fn what_is_wrong_stands_first() {
        check(
            json!({"hosts": 9, "hosts_online": 5, "hosts_away": 3, "hosts_revoked": 1}),
            "hosts",
            "9: 3 away, 1 revoked, 5 online",
        );
        check(
            json!({"units": {"running": 7, "failed": 2, "stopped": 1}, "units_troubled": 2}),
            "units",
            "10: 2 failed, 1 stopped, 7 running; 2 need attention",
        );
        check(json!({"alerts": {"warning": 4, "critical": 1}}), "alerts", "5: 1 critical, 4 warning");
        check(
            json!({"backup": {"is_possible": true, "every_hours": 24, "last_ms": 0,
                "failed": {"at_ms": 99_000_000, "message": "no space"}}}),
            "backup",
            "failed 16 min 40 s ago: no space\nthe last one was taken 1 d 3 h ago",
        );
        check(
            json!({"clock": {"clock_ms": 0, "ahead_ms": 7_200_000}}),
            "clock",
            "2 h ahead of the time that has certainly passed",
        );
    }

    #[test]
    fn what_is_not_done_is_named_and_the_rest_counted() {
        let rollout = Rollout {
            deployment: "shop/till".parse().unwrap(),
            version: 3,
            is_rollback: false,
            phase: RolloutPhase::Paused { since_ms: 1, reason: "by anna".to_owned() },
            wave: 1,
            waves: 3,
            hosts: 40,
            outcomes: [(muster_api::HostOutcome::Verified, 1)].into(),
            in_flight: 0,
            unavailable: 0,
            begun_ms: 0,
            ended_ms: None,
        };
        check(
            json!({"rollouts_unfinished": 3, "unfinished_rollouts": [rollout]}),
            "rollouts",
            "3 under way\nshop/till version 3: paused: by anna, 1 of 40 hosts\nand 2 more",
        );
        check(json!({"deployments": 2}), "deployments", "2, done on all hosts");
    }
}
