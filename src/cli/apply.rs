//! `muster unit apply`: applies documents to units. The console decides what that means; this module
//! shows the changes, and follows them to their end.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use futures_util::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use muster_api::{
    Applied, AppliedUnit, Apply as Asked, ApplyAction, ApplyDocument, ChangeCost, Command, CommandEvent, CommandHost,
};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;
use muster_topics::{
    name::{CommandId, UnitName},
    outcome::Status,
    select::HostSelect,
};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    change::{ReachedUnit, WaitOptions, applied},
    command_follower,
    command_report::{no_answer, report},
    document_file,
    interruption::Interruption,
    print,
    session::CliSession,
    target,
};
use muster_api::host_names::HostNames;

/// Number of commands that are followed at a time, each over its own connection.
const FOLLOWED: usize = 16;

/// Make units what documents say: create what is missing, change what differs, leave the rest alone.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "A document is a unit: `unit` (REALM/NAME) and `artifact` (ROLE@VERSION), and as wanted \
                    `hosts`, `run` (stopped, running or playing), `configs` (ID@VERSION) and whatever else a \
                    spec has; or a list of them under `units`. A file is YAML or JSON and may have several \
                    documents. What is left out has its default; without `run` it stays unchanged. Nothing is \
                    changed if anything is wrong, such as a host that has no room for a unit or has given its \
                    port to another: online hosts are asked before, also by --dry-run, and each does all of it \
                    or nothing.")]
pub struct ApplyArgs {
    /// Files of documents, or folders of such; `-` is standard input
    ///
    /// Of a folder, all files are read whose names end with .yaml, .yml or .json.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Host for units whose document names none; repeatable
    ///
    /// By id or hostname [default: the context's, or the only one].
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Hosts for units whose document names none
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields. For units with secrets it has to require a label that the
    /// console gives its hosts (`muster host label`).
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "hosts")]
    pub select: Option<HostSelect>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask first
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

/// The result for a unit.
#[derive(Debug, Serialize)]
pub(super) struct UnitResult<'a> {
    #[serde(flatten)]
    unit: &'a AppliedUnit,
    done: bool,
    /// Whether its host is offline, and will make the change when it is back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs the verb.
///
/// # Errors
/// If a document is invalid, if the user does not confirm, or if a change fails.
pub async fn run(apply: ApplyArgs, session: &CliSession) -> Result<(), Failure> {
    let documents = document_file::read_all(&apply.files, "unit")?;
    let plan = UnitPlan::make(session, documents, (&apply.hosts, apply.select.as_ref()), apply.wait).await?;
    if apply.dry_run {
        return session.printer.table(&plan.units(), &HEADER, plan.rows());
    }
    plan.tell();
    plan.interruption().confirm(apply.yes)?;
    let applied = plan.carry_out(session, apply.wait).await?;
    session.printer.data(&applied.results())?;
    print::say(applied.summary());
    applied.verdict()
}

/// Documents of units, and what applying them would change.
pub(super) struct UnitPlan {
    asked: Asked,
    planned: Applied,
}

impl UnitPlan {
    /// Asks the console what the documents would change; nothing is changed. Units whose documents name no hosts are for
    /// those that are named here, or that are selected.
    ///
    /// # Errors
    /// If a document is invalid.
    pub(super) async fn make(
        session: &CliSession,
        documents: Vec<ApplyDocument>,
        (hosts, select): (&[String], Option<&HostSelect>),
        wait: WaitOptions,
    ) -> Result<Self, Failure> {
        let hosts = match select {
            Some(select) => target::picked(session, select).await?,
            None if hosts.is_empty() => session.context.host.iter().map(ToString::to_string).collect(),
            None => hosts.to_vec(),
        };
        let expires_in_ms = wait.expires_in_ms();
        let asked = Asked { documents, hosts, picked_by: select.cloned(), dry_run: true, expires_in_ms };
        let planned: Applied = session.client.post("apply", &asked).await?;
        if !planned.unchecked.is_empty() {
            print::say(format_args!(
                "away, or without an answer: {}; what only they can know, such as whether a port is free, they find out when they \
                 are back",
                planned.unchecked.join(", ")
            ));
        }
        Ok(Self { asked, planned })
    }

    /// What would become of each unit.
    pub(super) fn units(&self) -> &[AppliedUnit] {
        &self.planned.units
    }

    /// The rows of a table with [`HEADER`].
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        rows(&self.planned.units)
    }

    /// Shows what it would change.
    pub(super) fn tell(&self) {
        print::say(print::table(&HEADER, self.rows()).trim_end());
    }

    /// The processes that it would stop or restart.
    pub(super) fn interruption(&self) -> Interruption {
        interruption(&self.planned.units)
    }

    /// Changes the units, and follows each to its end.
    ///
    /// # Errors
    /// If the console refuses it, or cannot be reached. What fails on a host is in the result.
    pub(super) async fn carry_out(self, session: &CliSession, wait: WaitOptions) -> Result<AppliedUnits, Failure> {
        let asked = Asked { dry_run: false, ..self.asked };
        let Applied { units, .. } = session.client.post("apply", &asked).await?;
        let (failures, away) = follow_all(session, &units, wait).await?;
        Ok(AppliedUnits { units, failures, away, no_wait: wait.no_wait })
    }
}

/// The header of what would change.
pub(super) const HEADER: [&str; 6] = ["HOST", "UNIT", "ACTION", "COST", "FIELD", "CHANGE"];

/// One row for each changed field; only the first row of a unit names it.
fn rows(units: &[AppliedUnit]) -> impl Iterator<Item = Vec<String>> {
    let names = HostNames::new(units.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    units.iter().flat_map(move |unit| {
        let cost = if unit.action == ApplyAction::Unchanged { "" } else { unit.cost.words() };
        let host = names.show(unit.host, &unit.hostname);
        let first = [host.as_str(), unit.unit.as_str(), unit.action.word(), cost].map(str::to_owned).to_vec();
        let blank = vec![String::new(); first.len()];
        let changes = unit.differences.iter().map(|one| {
            let change = match (&one.from, &one.to) {
                (None, to) => shown(to.as_ref()),
                (from, to) => format!("{} → {}", shown(from.as_ref()), shown(to.as_ref())),
            };
            [one.field.clone(), change]
        });
        let changes: Vec<[String; 2]> = changes.collect();
        let lines = changes.len().max(1);
        (0..lines).map(move |line| {
            let names = if line == 0 { &first } else { &blank };
            let change = changes.get(line).cloned().unwrap_or_default();
            names.iter().cloned().chain(change).collect()
        })
    })
}

/// A value in a change.
pub(super) fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn interruption(units: &[AppliedUnit]) -> Interruption {
    let interrupted: Vec<&AppliedUnit> =
        units.iter().filter(|unit| matches!(unit.cost, ChangeCost::Restart | ChangeCost::Stop)).collect();
    let hosts = HostNames::new(interrupted.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    let host = |unit: &AppliedUnit| hosts.show(unit.host, &unit.hostname);
    let names =
        interrupted.iter().map(|unit| format!("\n  {} on {}: {}", unit.unit, host(unit), unit.cost.words())).collect();
    Interruption { processes: interrupted.len() as u64, names }
}

/// The index of a unit in the result, and why it failed.
type FailedUnit = BTreeMap<usize, Failure>;

/// An answer of a host to a command.
struct HostResult {
    command: Arc<Command>,
    line: CommandHost,
}

/// Length of the queue of answers to all followed commands.
const ANSWERS: usize = 64;

/// Reports the units whose hosts are offline, if these are not waited for.
async fn tell_away(
    session: &CliSession,
    units: &[AppliedUnit],
    left: &BTreeSet<usize>,
    waiting: WaitOptions,
) -> Result<BTreeSet<usize>, Failure> {
    let mut away = BTreeSet::new();
    let places = || units.iter().enumerate().filter(|(place, _)| left.contains(place));
    let commands: BTreeSet<CommandId> = places().filter_map(|(_, unit)| unit.command).collect();
    for id in commands.into_iter().filter(|_| !waiting.wait_offline) {
        let command: Command = session.client.get(&format!("commands/{id}"), &[]).await?;
        let is_away = |unit: &AppliedUnit| {
            let line = command.hosts.iter().find(|line| line.host == unit.host);
            unit.command == Some(id) && line.is_some_and(|line| line.away_since_ms().is_some())
        };
        let before = away.len();
        away.extend(places().filter(|(_, unit)| is_away(unit)).map(|(place, _)| place));
        if away.len() > before {
            print::say(format_args!("{}; {}", command_follower::waits(&command), command_follower::look(&command)));
        }
    }
    Ok(away)
}

/// Follows every command until each of its units is as desired; hosts are independent of each other, so none waits for
/// another. Returns what failed, and what waits for offline hosts.
async fn follow_all(
    session: &CliSession,
    units: &[AppliedUnit],
    waiting: WaitOptions,
) -> Result<(FailedUnit, BTreeSet<usize>), Failure> {
    let mut left: BTreeSet<usize> = BTreeSet::new();
    for (place, unit) in units.iter().enumerate() {
        match unit.command {
            Some(_) => {
                left.insert(place);
            }
            None => print::say(format_args!("{} on {}: unchanged", unit.unit, unit.hostname)),
        }
    }
    let mut away = tell_away(session, units, &left, waiting).await?;
    left.retain(|place| !away.contains(place));
    if waiting.no_wait {
        return Ok((FailedUnit::new(), away));
    }
    let limit: Duration = waiting.timeout.into();
    let commands: BTreeSet<CommandId> =
        left.iter().filter_map(|place| units.get(*place).and_then(|unit| unit.command)).collect();
    let (tell, mut told) = mpsc::channel(ANSWERS);
    let listen = |command| listen(session, command, limit, tell.clone());
    let mut listeners = stream::iter(commands.into_iter().map(listen).collect::<Vec<_>>()).buffer_unordered(FOLLOWED);
    let (mut waits, mut failures, mut is_over) = (FuturesUnordered::new(), FailedUnit::new(), false);
    // The remaining hosts are online: nobody waits for the others.
    while !(left.is_empty() && waits.is_empty()) {
        tokio::select! {
            // Safe to cancel: unread events stay in the streams and the channel.
            result = listeners.next(), if !is_over => match result {
                Some(result) => result?,
                None => {
                    is_over = true;
                    told.close();
                }
            },
            Some(answer) = told.recv() => {
                for (place, done) in settled(units, &mut left, &answer) {
                    waits.push(finish(session, answer.command.clone(), answer.line.clone(), place, done, waiting));
                }
            }
            Some((place, result)) = waits.next() => {
                failures.extend(result.err().map(|failure: Failure| (place, failure)));
            }
            // A host whose connection has just broken may be back soon, or may be offline.
            () = tokio::time::sleep(command_follower::SILENCE), if !(left.is_empty() || is_over) => {
                let gone = tell_away(session, units, &left, waiting).await?;
                left.retain(|place| !gone.contains(place));
                away.extend(gone);
            }
            else => break,
        }
    }
    failures.extend(left.into_iter().map(|place| {
        let id = units.get(place).and_then(|unit| unit.command).map(|id| id.to_string()).unwrap_or_default();
        (place, no_answer(&id, limit))
    }));
    Ok((failures, away))
}

/// The units that an answer finishes, each with its desired state if that was changed; they are removed from `left`. A
/// part of a set finishes none, and the last part all of them.
fn settled(
    units: &[AppliedUnit],
    left: &mut BTreeSet<usize>,
    HostResult { command, line }: &HostResult,
) -> Vec<(usize, Option<ReachedUnit>)> {
    let Some(status) = line.status() else { return Vec::new() };
    let is_there = |place: usize| units.get(place).filter(|unit| unit.host == line.host);
    let found: Vec<(usize, Option<ReachedUnit>)> = match status {
        Status::AppliedSet { units: done } => {
            let done_as = |name: &UnitName| done.iter().find(|one| one.unit == *name).map(ReachedUnit::of);
            let of = |place: &usize| Some((*place, Some(done_as(&is_there(*place)?.unit)?)));
            left.iter().filter_map(of).collect()
        }
        Status::Completed => Vec::new(),
        _ => {
            let is_of = |place: &&usize| is_there(**place).is_some_and(|unit| unit.command == Some(command.id));
            left.iter().filter(is_of).map(|place| (*place, ReachedUnit::applied(command, status))).collect()
        }
    };
    left.retain(|place| found.iter().all(|(settled, _)| settled != place));
    found
}

/// Passes on each answer to a command as it arrives.
async fn listen(
    session: &CliSession,
    command: CommandId,
    limit: Duration,
    tell: mpsc::Sender<HostResult>,
) -> Result<(), Failure> {
    let command: Arc<Command> = Arc::new(session.client.get(&format!("commands/{command}"), &[]).await?);
    let mut events = session.client.events(&format!("commands/{}/events", command.id)).await?;
    let heard = async {
        loop {
            match events.next().await? {
                Some(CommandEvent::Host(line)) if line.outcome().is_some() => {
                    // The receiver lives as long as this task.
                    let _ = tell.send(HostResult { command: command.clone(), line }).await;
                }
                Some(CommandEvent::Host(_) | CommandEvent::Output { .. }) => {}
                Some(CommandEvent::End) | None => return Ok(()),
            }
        }
    };
    // Hosts without an answer by then are reported as such.
    tokio::time::timeout(limit, heard).await.unwrap_or(Ok(()))
}

async fn finish(
    session: &CliSession,
    command: Arc<Command>,
    line: CommandHost,
    place: usize,
    done: Option<ReachedUnit>,
    waiting: WaitOptions,
) -> (usize, Result<(), Failure>) {
    let result = async {
        report(&command, std::slice::from_ref(&line))?;
        match done {
            Some(done) => applied(session, &line, &command.verb, &done, waiting).await,
            None => Ok(()),
        }
    };
    (place, result.await)
}

/// Units that were changed, and what became of them.
pub(super) struct AppliedUnits {
    units: Vec<AppliedUnit>,
    failures: FailedUnit,
    /// Those that wait for hosts that are away.
    away: BTreeSet<usize>,
    no_wait: bool,
}

impl AppliedUnits {
    /// The result of each unit, for programs.
    pub(super) fn results(&self) -> Vec<UnitResult<'_>> {
        let mut results = Vec::new();
        for (place, unit) in self.units.iter().enumerate() {
            let error = self.failures.get(&place).map(|failure| failure.cause().unwrap_or_default().to_owned());
            let waits = self.away.contains(&place);
            let done = error.is_none() && !waits && !(self.no_wait && unit.command.is_some());
            results.push(UnitResult { unit, done, waits, error });
        }
        results
    }

    /// `3 units: 1 created, 1 changed, 1 unchanged; 1 failed`.
    pub(super) fn summary(&self) -> String {
        let Self { units, failures, away, .. } = self;
        let count = |action: ApplyAction| units.iter().filter(|unit| unit.action == action).count();
        format!(
            "{}: {} created, {} changed, {} unchanged{}{}",
            counted(units.len(), "unit"),
            count(ApplyAction::Create),
            count(ApplyAction::Change),
            count(ApplyAction::Unchanged),
            if failures.is_empty() { String::new() } else { format!("; {} failed", failures.len()) },
            if away.is_empty() {
                String::new()
            } else {
                format!("; {} of them wait for hosts that are away", away.len())
            },
        )
    }

    /// Whether a unit failed.
    pub(super) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The failure of the verb, if there is one; several are reported.
    ///
    /// # Errors
    /// If a unit failed, or waits for its host.
    pub(super) fn verdict(self) -> Result<(), Failure> {
        let Self { failures, away, no_wait, .. } = self;
        let kinds: BTreeSet<u8> = failures.values().map(|failure| failure.kind.code()).collect();
        let first = failures.values().next().map(|failure| failure.kind);
        if failures.len() == 1 {
            return failures.into_values().next().map_or(Ok(()), Err);
        }
        for failure in failures.into_values() {
            print::say_failure(&failure);
        }
        match first {
            None if away.is_empty() || no_wait => Ok(()),
            None => Err(Failure::silent(FailureKind::Failed)),
            Some(kind) if kinds.len() == 1 => Err(Failure::silent(kind)),
            Some(_) => Err(Failure::silent(FailureKind::Failed)),
        }
    }
}
