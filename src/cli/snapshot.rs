//! `muster snapshot`: saves the desired state of a host's units under a name, compares it, and goes back to it.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Subcommand};
use muster_api::{Command, CommandEvent, CommandHost, Host, NewCommand, NewTarget};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::count::counted;
use muster_topics::{
    command::Verb as Asked,
    name::Name,
    outcome::{Data, Stream},
    snapshot::{Difference, Snapshot, SnapshotDiff, Snapshots, UnitDiff},
    unit::Run,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{change, command_follower, command_report, host_lookup, print, session::CliSession, wait};
use muster_api::host_names::HostNames;

/// Verbs on snapshots.
#[derive(Subcommand, Clone, Debug)]
#[command(
    after_long_help = "A snapshot keeps, on its host, what every unit there should be: spec, and whether it runs. \
                    Activating one changes all units that differ at once; only processes whose revision differs \
                    are replaced. Deactivating undoes that."
)]
pub enum SnapshotVerb {
    /// Create a snapshot of the desired state of a host's units
    Create {
        /// Which one
        #[command(flatten)]
        named: NamedSnapshot,
        /// How long to wait
        #[command(flatten)]
        wait: change::WaitOptions,
    },
    /// List the snapshots of hosts
    Ls(HostChoice),
    /// Show how the units differ from a snapshot
    Diff(NamedSnapshot),
    /// Bring the units back to a snapshot
    Activate {
        /// Which one
        #[command(flatten)]
        named: NamedSnapshot,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// How long to wait
        #[command(flatten)]
        wait: change::WaitOptions,
    },
    /// Undo the activation of a snapshot
    ///
    /// Units that were changed since then stay as they are.
    Deactivate {
        /// Which one
        #[command(flatten)]
        named: NamedSnapshot,
        /// How long to wait
        #[command(flatten)]
        wait: change::WaitOptions,
    },
    /// Remove a snapshot that is not active
    Rm {
        /// Which one
        #[command(flatten)]
        named: NamedSnapshot,
        /// How long to wait
        #[command(flatten)]
        wait: change::WaitOptions,
    },
}

/// Which hosts.
#[derive(Args, Clone, Debug)]
pub struct HostChoice {
    /// Host, by id or hostname; repeatable
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Every host
    #[arg(long, conflicts_with = "hosts")]
    all: bool,
}

/// Which snapshot, on which hosts.
#[derive(Args, Clone, Debug)]
pub struct NamedSnapshot {
    /// Name of the snapshot
    snapshot: Name,
    #[command(flatten)]
    at: HostChoice,
}

/// The answer of one host.
#[derive(Clone, Debug, Serialize)]
struct HostAnswer<T: Serialize> {
    host: muster_topics::name::HostId,
    hostname: String,
    #[serde(flatten)]
    answer: T,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: SnapshotVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        SnapshotVerb::Create { named: NamedSnapshot { snapshot, at }, wait } => {
            let asked = Asked::SnapshotCreate { snapshot: snapshot.clone() };
            order(session, &at, (asked, wait), &format!("snapshot {snapshot} is created")).await
        }
        SnapshotVerb::Ls(at) => list(session, &at).await,
        SnapshotVerb::Diff(NamedSnapshot { snapshot, at }) => {
            let (diffs, verdict) = each(session, &at, Asked::SnapshotDiff { snapshot }, None).await?;
            print_diffs(session, &diffs)?;
            verdict
        }
        SnapshotVerb::Activate { named: NamedSnapshot { snapshot, at }, dry_run: true, .. } => {
            let (diffs, verdict): (Vec<HostAnswer<SnapshotDiff>>, _) =
                each(session, &at, Asked::SnapshotDiff { snapshot }, None).await?;
            print_diffs(session, &diffs)?;
            for HostAnswer { hostname, answer, .. } in &diffs {
                print::say(format_args!("{hostname}: {}", forecast(answer)));
            }
            verdict
        }
        SnapshotVerb::Activate { named: NamedSnapshot { snapshot, at }, wait, .. } => {
            switch(session, &at, Asked::SnapshotActivate { snapshot }, wait).await
        }
        SnapshotVerb::Deactivate { named: NamedSnapshot { snapshot, at }, wait } => {
            switch(session, &at, Asked::SnapshotDeactivate { snapshot }, wait).await
        }
        SnapshotVerb::Rm { named: NamedSnapshot { snapshot, at }, wait } => {
            let asked = Asked::SnapshotRm { snapshot: snapshot.clone() };
            order(session, &at, (asked, wait), &format!("snapshot {snapshot} is removed")).await
        }
    }
}

/// What activating would do, on one line.
fn forecast(diff: &SnapshotDiff) -> String {
    let count = |is: fn(&Difference) -> bool| diff.units.iter().filter(|unit| is(&unit.difference)).count();
    let changes = count(|difference| matches!(difference, Difference::Changed { .. } | Difference::Missing));
    let restarts = count(|difference| matches!(difference, Difference::Changed { restarts: true, .. }));
    format!("{} would change, {restarts} of them with another revision; nothing was done", counted(changes, "unit"))
}

/// The ids of the selected hosts.
async fn hosts(session: &CliSession, at: &HostChoice) -> Result<Vec<String>, Failure> {
    if at.all {
        let all: Vec<Host> = session.client.get("hosts", &[]).await?;
        return Ok(all.iter().filter(|host| !host.is_revoked()).map(|host| host.id.to_string()).collect());
    }
    if at.hosts.is_empty() { Ok(vec![host_lookup::one(session, None).await?]) } else { Ok(at.hosts.clone()) }
}

/// The hosts' answers, and the failure for offline hosts that were not waited for.
type SnapshotAnswers<T> = (Vec<T>, Result<(), Failure>);

/// Asks each host with its own command, because each answer is a document. `wait` applies to changes; questions are
/// only sent to online hosts.
async fn ask(
    session: &CliSession,
    at: &HostChoice,
    verb: &Asked,
    wait: Option<change::WaitOptions>,
) -> Result<SnapshotAnswers<(CommandHost, Vec<u8>)>, Failure> {
    let mut commands = Vec::new();
    for host in hosts(session, at).await? {
        let target = NewTarget::Hosts(vec![host]);
        let expires_in_ms = wait.and_then(|wait| wait.expires_in_ms());
        let wanted = NewCommand { target, expires_in_ms, verb: verb.clone(), copied_from: None };
        let command: Command = session.client.post("commands", &wanted).await?;
        commands.push(command);
    }
    let (no_wait, wait_offline) = wait.map_or((false, false), |wait| (wait.no_wait, wait.wait_offline));
    let (mut answers, mut verdict) = (Vec::new(), Ok(()));
    for command in commands {
        let is_away = command.hosts.iter().any(|host| host.away_since_ms().is_some());
        if is_away && !wait_offline {
            print::say(format_args!("{}; {}", command_follower::waits(&command), command_follower::look(&command)));
            verdict = Err(Failure::silent(FailureKind::Failed));
            continue;
        }
        if no_wait {
            print::say(format_args!("{}: ordered; {}", verb.sentence(), command_follower::look(&command)));
            continue;
        }
        let answer = gather(session, &command, !wait_offline).await?;
        command_report::report(&command, std::slice::from_ref(&answer.0))?;
        answers.push(answer);
    }
    Ok((answers, if no_wait { Ok(()) } else { verdict }))
}

async fn each<T: Serialize + DeserializeOwned>(
    session: &CliSession,
    at: &HostChoice,
    verb: Asked,
    wait: Option<change::WaitOptions>,
) -> Result<SnapshotAnswers<HostAnswer<T>>, Failure> {
    let (answers, verdict) = ask(session, at, &verb, wait).await?;
    let answer = |(host, output): (CommandHost, Vec<u8>)| {
        let answer = serde_json::from_slice(&output).map_err(|error| {
            Failure::new(FailureKind::Failed, format!("the answer of {} is not valid: {error}", host.hostname))
        })?;
        Ok(HostAnswer { host: host.host, hostname: host.hostname, answer })
    };
    let answers = answers.into_iter().map(answer).collect::<Result<_, Failure>>()?;
    Ok((answers, verdict))
}

/// Sends a command to one host, and collects its output until the end. `leaves`: a host that turns out to be offline is
/// not waited for.
async fn gather(session: &CliSession, command: &Command, leaves: bool) -> Result<(CommandHost, Vec<u8>), Failure> {
    let mut events = session.client.events(&format!("commands/{}/events", command.id)).await?;
    let (mut pieces, mut last) = (BTreeMap::new(), command.hosts.first().cloned());
    loop {
        let Ok(event) = tokio::time::timeout(command_follower::SILENCE, events.next()).await else {
            let now: Command = session.client.get(&format!("commands/{}", command.id), &[]).await?;
            if leaves && now.hosts.iter().all(|host| host.away_since_ms().is_some()) {
                print::say(format_args!("{}; {}", command_follower::waits(&now), command_follower::look(&now)));
                last = now.hosts.into_iter().next();
                break;
            }
            continue;
        };
        let Some(event) = event? else { break };
        match event {
            CommandEvent::Output { stream: Stream::Stdout, offset_bytes, data, .. } => {
                pieces.insert(offset_bytes, data.to_bytes().unwrap_or_default());
            }
            CommandEvent::Output { .. } => {}
            CommandEvent::Host(host) => last = Some(host),
            CommandEvent::End => break,
        }
    }
    let host = last.ok_or_else(|| Failure::new(FailureKind::Failed, "the command has no host"))?;
    let mut output: Vec<u8> = pieces.into_values().flatten().collect();
    let rest = host.outcome().and_then(|outcome| outcome.value.stdout.rest.as_ref());
    output.extend(rest.and_then(|rest: &Data| rest.to_bytes().ok()).unwrap_or_default());
    Ok((host, output))
}

async fn order(
    session: &CliSession,
    at: &HostChoice,
    (verb, wait): (Asked, change::WaitOptions),
    done: &str,
) -> Result<(), Failure> {
    let (answers, verdict) = ask(session, at, &verb, Some(wait)).await?;
    for (host, _) in answers {
        print::say(format_args!("{}: {done}", host.hostname));
    }
    verdict
}

/// The active snapshots of one host, of all, or of the only one, each with its host's id.
///
/// # Errors
/// If they cannot be read.
pub(super) async fn active(
    session: &CliSession,
    host: Option<&str>,
    all: bool,
) -> Result<Vec<(String, String)>, Failure> {
    let at = HostChoice { hosts: host.map(str::to_owned).into_iter().collect(), all };
    let (answers, verdict): (Vec<HostAnswer<Snapshots>>, _) = each(session, &at, Asked::SnapshotLs, None).await?;
    verdict?;
    let of_host = |HostAnswer { host, answer, .. }: &HostAnswer<Snapshots>| {
        let is_active = |snapshot: &&Snapshot| snapshot.active_ms.is_some();
        let named = |snapshot: &Snapshot| (host.to_string(), snapshot.name.to_string());
        answer.snapshots.iter().filter(is_active).map(named).collect::<Vec<_>>()
    };
    Ok(answers.iter().flat_map(of_host).collect())
}

async fn list(session: &CliSession, at: &HostChoice) -> Result<(), Failure> {
    let (answers, verdict): (Vec<HostAnswer<Snapshots>>, _) = each(session, at, Asked::SnapshotLs, None).await?;
    let flat = |answer: HostAnswer<Snapshots>| {
        let HostAnswer { host, hostname, answer } = answer;
        answer.snapshots.into_iter().map(move |answer| HostAnswer { host, hostname: hostname.clone(), answer })
    };
    let snapshots: Vec<HostAnswer<Snapshot>> = answers.into_iter().flat_map(flat).collect();
    let now_ms = clock::now_ms();
    let names = HostNames::new(snapshots.iter().map(|one| (one.host, one.hostname.as_str())));
    let row = |snapshot: &HostAnswer<Snapshot>| {
        let Snapshot { name, by, created_ms, active_ms, units } = &snapshot.answer;
        let active = active_ms.map(|at_ms| format!("active, {}", print::age(at_ms, now_ms)));
        vec![
            names.show(snapshot.host, &snapshot.hostname),
            name.to_string(),
            units.len().to_string(),
            format!("{} by {by}", print::age(*created_ms, now_ms)),
            active.unwrap_or_default(),
        ]
    };
    let header = ["HOST", "SNAPSHOT", "UNITS", "CREATED", "STATE"];
    session.printer.list(&snapshots, &header, row, "no snapshots; `muster snapshot create NAME` creates one")?;
    verdict
}

fn print_diffs(session: &CliSession, diffs: &[HostAnswer<SnapshotDiff>]) -> Result<(), Failure> {
    let flat = |diff: &HostAnswer<SnapshotDiff>| {
        let (host, hostname) = (diff.host, diff.hostname.clone());
        let of = move |unit: &UnitDiff| HostAnswer { host, hostname: hostname.clone(), answer: unit.clone() };
        diff.answer.units.iter().map(of).collect::<Vec<_>>()
    };
    let units: Vec<HostAnswer<UnitDiff>> = diffs.iter().flat_map(flat).collect();
    let names = HostNames::new(units.iter().map(|one| (one.host, one.hostname.as_str())));
    let row = |unit: &HostAnswer<UnitDiff>| {
        let (word, more) = words(&unit.answer.difference);
        vec![names.show(unit.host, &unit.hostname), unit.answer.unit.to_string(), word.to_owned(), more]
    };
    session.printer.list(&units, &["HOST", "UNIT", "IS", "HOW"], row, "no units")
}

fn words(difference: &Difference) -> (&'static str, String) {
    match difference {
        Difference::Same => ("same", String::new()),
        Difference::Missing => ("missing", "it is in the snapshot alone".to_owned()),
        Difference::Extra => ("extra", "it is not in the snapshot, and stays unchanged".to_owned()),
        Difference::Later => ("later", "something else was desired of it since, and that stays".to_owned()),
        Difference::Changed { fields, run, restarts } => {
            let mut more = fields.clone();
            more.extend(run.map(|run| if run == Run::Running { "should run" } else { "should be stopped" }.to_owned()));
            let restarts = if *restarts { "; another revision" } else { "" };
            ("changed", format!("{}{restarts}", more.join(", ")))
        }
    }
}

/// Activates or deactivates a snapshot, and waits until each unit is as desired.
async fn switch(
    session: &CliSession,
    at: &HostChoice,
    verb: Asked,
    waiting: change::WaitOptions,
) -> Result<(), Failure> {
    let limit: Duration = waiting.timeout.into();
    let (done, verdict): (Vec<HostAnswer<SnapshotDiff>>, _) = each(session, at, verb, Some(waiting)).await?;
    for HostAnswer { host, hostname, answer } in &done {
        let changed: Vec<(&UnitDiff, u64)> =
            answer.units.iter().filter_map(|unit| Some((unit, unit.generation?))).collect();
        print::say(format_args!("{hostname}: changed {}", counted(changed.len(), "unit")));
        for later in answer.units.iter().filter(|unit| unit.difference == Difference::Later) {
            print::say(format_args!("{hostname}: {} stays, because its desired state was changed since", later.unit));
        }
        for (unit, generation) in changed {
            wait::until_reached(session, *host, &unit.unit, (generation, wait::WaitGoal::Proven), limit).await?;
        }
    }
    if session.printer.is_for_programs() {
        print_diffs(session, &done)?;
    }
    verdict
}
