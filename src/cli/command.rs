//! `muster command`: the ledger of commands.

use std::time::{Duration, Instant};

use clap::Subcommand;
use muster_topics::{
    Millis,
    command::{TARGET_HOSTS_MAX, Target, Verb as Asked},
    name::UnitName,
};

use super::{Session, change::report, exec, hostname::tell_apart, print};
use crate::{
    api::{Command, CommandHost, CommandState, NewCommand, NewTarget},
    clock,
    failure::{Failure, Kind},
};

/// Verbs on commands.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// List commands, newest first
    #[command(alias = "list")]
    Ls {
        /// How many
        #[arg(short = 'n', long, default_value_t = 20)]
        limit: u32,
        /// Only those of one host, by id or hostname
        #[arg(long)]
        host: Option<String>,
    },
    /// Show one command, and what became of it on each host
    Show {
        /// Its id, or as much of it as no other one has
        id: String,
    },
    /// Bring a command to its end: a program is ended, a log followed no more, and a host that it has not reached yet
    /// refuses it
    Cancel {
        /// Its id, or as much of it as no other one has
        id: String,
    },
}

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    match verb {
        Verb::Ls { limit, host } => {
            let mut query = vec![("limit", limit.to_string())];
            query.extend(host.map(|host| ("host", host)));
            let commands: Vec<Command> = session.client.get("commands", &query).await?;
            let now_ms = clock::now_ms();
            let row = |command: &Command| {
                vec![
                    command.id.to_string(),
                    print::age(command.issued_ms, now_ms),
                    command.operator.to_string(),
                    states(command, now_ms),
                    asked(&command.verb),
                ]
            };
            let empty = "no commands yet; try `muster exec -- uname -a`";
            session.printer.list(&commands, &["ID", "AGE", "OPERATOR", "STATE", "WHAT"], row, empty)?;
            print::say_if_limited(commands.len(), limit);
            Ok(())
        }
        Verb::Cancel { id } => {
            let command: Command = session.client.get(&format!("commands/{id}"), &[]).await?;
            let cancel = cancel(session, &command).await?;
            let cancel = not_gone_out(session, cancel).await?;
            let hosts = exec::follow_there(session, &cancel).await?;
            let (away, done): (Vec<_>, Vec<_>) =
                hosts.into_iter().partition(|host| host.state == CommandState::Waiting);
            if !done.is_empty() {
                report(&cancel, &done)?;
            }
            if away.is_empty() { Ok(()) } else { Err(Failure::silent(Kind::Failed)) }
        }
        Verb::Show { id } => {
            let command: Command = session.client.get(&format!("commands/{id}"), &[]).await?;
            let now_ms = clock::now_ms();
            session.printer.one(&command, || {
                let mut lines = vec![
                    ("id", command.id.to_string()),
                    ("what", asked(&command.verb)),
                    ("for", meant(&command)),
                    ("operator", command.operator.to_string()),
                    ("made", print::age(command.issued_ms, now_ms)),
                    ("expires", print::age(command.expires_ms, now_ms)),
                ];
                let hosts = tell_apart(command.hosts.clone());
                lines.extend(hosts.iter().map(|host| ("host", format!("{} {}", host.hostname, state(host, now_ms)))));
                lines
            })
        }
    }
}

/// Whom a command was meant for, in words.
fn meant(command: &Command) -> String {
    match &command.target {
        None | Some(Target::Hosts(_)) => match command.hosts.len() {
            1 => "1 host by name".to_owned(),
            several => format!("{several} hosts by name"),
        },
        Some(Target::All) => "all hosts".to_owned(),
        Some(Target::Group(label)) => format!("hosts with the label {label}"),
        Some(Target::Select(select)) => format!("hosts that are picked by {select}"),
    }
}

/// What was asked for, in words.
#[must_use]
pub fn asked(verb: &Asked) -> String {
    match verb {
        Asked::Exec(exec) => {
            let inside = exec.container.as_ref().map(|unit| format!("--container {unit} ")).unwrap_or_default();
            match &exec.shell {
                Some(line) => format!("exec {inside}--shell {}", crate::argv::join(std::slice::from_ref(line))),
                None => format!("exec {inside}{}", exec.argv.join(" ")),
            }
        }
        Asked::Batch(batch) => format!("batch of {} steps", batch.steps.len()),
        Asked::UnitApply { unit, .. } => format!("apply {unit}"),
        Asked::UnitsApply(set) => {
            let units = set.units.iter().map(|wish| wish.unit.clone()).collect::<Vec<_>>();
            format!("{} {}", if set.check { "check" } else { "apply" }, several(&units))
        }
        Asked::UnitRun { unit } => format!("run {unit}"),
        Asked::UnitStop { unit } => format!("stop {unit}"),
        Asked::UnitRestart { unit } => format!("restart {unit}"),
        Asked::UnitHold { unit, .. } => format!("hold {unit}"),
        Asked::UnitUnhold { unit } => format!("unhold {unit}"),
        Asked::UnitRetire { unit, .. } => format!("retire {unit}"),
        Asked::UnitLabel { unit, .. } => format!("label {unit}"),
        Asked::UnitUpgrade { unit, .. } => format!("upgrade {unit}"),
        Asked::UnitFreeze { unit } => format!("freeze {unit}"),
        Asked::UnitThaw { unit } => format!("thaw {unit}"),
        Asked::UnitSignal { unit, signal } => format!("send {signal} to {unit}"),
        Asked::UnitRm { unit } => format!("remove {unit}"),
        Asked::UnitFollow { unit, .. } => format!("follow the log of {unit}"),
        Asked::Cancel { command } => format!("cancel {command}"),
        Asked::UnitLogs { unit, lines, .. } => format!("last {lines} log lines of {unit}"),
        Asked::RealmSet { realm } => format!("set realm {realm}"),
        Asked::RealmRm { realm } => format!("forget realm {realm}"),
        Asked::SnapshotTake { snapshot } => format!("take snapshot {snapshot}"),
        Asked::SnapshotLs => "list snapshots".to_owned(),
        Asked::SnapshotDiff { snapshot } => format!("compare with snapshot {snapshot}"),
        Asked::SnapshotActivate { snapshot } => format!("activate snapshot {snapshot}"),
        Asked::SnapshotDeactivate { snapshot } => format!("deactivate snapshot {snapshot}"),
        Asked::SnapshotRm { snapshot } => format!("remove snapshot {snapshot}"),
        Asked::UnitConfig { unit } => format!("effective config of {unit}"),
        Asked::UnitPlay { unit, run } => format!("{}play {unit}", if *run { "run and " } else { "" }),
        Asked::UnitPause { unit } => format!("pause {unit}"),
        Asked::UnitCommand(forward) => format!("{:?} to {}", forward.name, several(&forward.units)),
        Asked::UnitStats { units, .. } => format!("stats of {}", several(units)),
    }
}

fn several(units: &[UnitName]) -> String {
    match units {
        [unit] => unit.to_string(),
        units => format!("{} units", units.len()),
    }
}

/// Asks every host of a command to bring it to its end.
///
/// # Errors
/// If the console does not take it.
pub async fn cancel(session: &Session, command: &Command) -> Result<Command, Failure> {
    let ids =
        |hosts: &mut dyn Iterator<Item = &CommandHost>| hosts.map(|host| host.host.to_string()).collect::<Vec<_>>();
    // A host that was revoked has its outcome, and is given no commands.
    let open = ids(&mut command.hosts.iter().filter(|host| host.state != CommandState::Done));
    let hosts = if open.is_empty() { ids(&mut command.hosts.iter()) } else { open };
    let target = match hosts.len() {
        ..=TARGET_HOSTS_MAX => NewTarget::Hosts(hosts),
        _ => NewTarget::All,
    };
    let wanted = NewCommand { target, expires_in_ms: None, verb: Asked::Cancel { command: command.id } };
    session.client.post("commands", &wanted).await
}

/// How long the console may take to end what has not gone out.
const WITHDRAWN: Duration = Duration::from_secs(2);

/// A cancellation, once the console has done what it can do of it by itself: what has not gone out to a host that is away
/// ends at once, and the rest is that host's.
async fn not_gone_out(session: &Session, mut cancel: Command) -> Result<Command, Failure> {
    let until = Instant::now() + WITHDRAWN;
    while cancel.hosts.iter().any(|host| host.away_since_ms.is_some()) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel = session.client.get(&format!("commands/{}", cancel.id), &[]).await?;
    }
    Ok(cancel)
}

fn states(command: &Command, now_ms: Millis) -> String {
    let away = command.hosts.iter().filter(|host| host.away_since_ms.is_some()).count();
    let until = format!("expires {}", print::age(command.expires_ms, now_ms));
    match &command.hosts[..] {
        [host] if away == 1 => format!("{}; {until}", state(host, now_ms)),
        [host] => state(host, now_ms),
        hosts => {
            let done = hosts.iter().filter(|host| host.state == CommandState::Done).count();
            let away = if away == 0 { String::new() } else { format!("; waits for {away} that are away, {until}") };
            format!("{done} of {} done{away}", hosts.len())
        }
    }
}

fn state(host: &CommandHost, now_ms: Millis) -> String {
    match (&host.outcome, host.state) {
        (Some(outcome), _) => exec::status(&outcome.value.status),
        (None, CommandState::Waiting) => match (host.away_since_ms, &host.reason) {
            (Some(since_ms), _) => format!("waiting for the host, away since {}", print::age(since_ms, now_ms)),
            (None, Some(reason)) => format!("waiting for the host, which tells: {reason}"),
            (None, None) => "waiting for the host".to_owned(),
        },
        (None, CommandState::Accepted) => "queued on the host".to_owned(),
        (None, CommandState::Running) => "running".to_owned(),
        (None, CommandState::Done | CommandState::Missing) => "missing: it expired without an answer".to_owned(),
    }
}
