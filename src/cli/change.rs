//! Verbs that change units: confirmation where much is at stake, then one result for each unit.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use futures_util::{StreamExt, stream};
use muster_api::{Command, CommandHost, CompareUnit, FieldDifference, HostUnit, NewCommand, NewTarget, Unit};
use muster_base::failure::{Failure, FailureKind};
use muster_rules::start_order;
use muster_topics::count::counted;
use muster_topics::{
    command::{UnitSet, UnitWish, Verb as Asked},
    diagnostic::Diagnostic,
    name::{CommandId, HostId, LabelValue, Name, UnitName},
    outcome::{AppliedUnit, Status},
    process::{Cores, Limits},
    signal::Signal,
    unit::{Hold, Run, Spec},
    verb_table::UnitVerbRow,
};
use serde::Serialize;

use super::{
    command_follower, print,
    rollback::millis,
    session::CliSession,
    target::NounVerb,
    unit_lookup::units,
    unit_targets::{UnitTargets, candidates, pick},
    wait,
};
use muster_api::host_names::HostNames;

pub(super) use super::command_report::no_answer;
pub use super::command_report::report;

/// Which units a verb changes, and how long to wait for it.
#[derive(Args, Clone, Debug)]
pub struct UnitChange {
    /// Which units
    #[command(flatten)]
    pub which: UnitTargets,
    /// Do not ask first
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub(super) wait: WaitOptions,
}

/// How long to wait, and how long the command waits.
#[derive(Args, Clone, Copy, Debug)]
pub struct WaitOptions {
    /// Do not wait: end as soon as the console has stored it
    #[arg(long, conflicts_with = "wait_offline")]
    pub no_wait: bool,
    /// Wait so long until it is done
    #[arg(long, default_value = "2m", value_name = "TIME")]
    pub timeout: humantime::Duration,
    /// Wait for offline hosts too
    ///
    /// Without it they are named, and do it when they are online again.
    #[arg(long)]
    pub wait_offline: bool,
    /// Give up on a host that is offline for so long
    ///
    /// At most 7 days, which is also the default.
    #[arg(long, value_name = "TIME")]
    pub expires: Option<humantime::Duration>,
}

impl WaitOptions {
    /// The time until the command expires, if it was given.
    #[must_use]
    pub(super) fn expires_in_ms(&self) -> Option<u64> {
        self.expires.map(millis)
    }
}

/// The result of a verb for one of its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeProgress {
    /// The change is complete.
    Done,
    /// The console has stored the command, and nobody waited for more.
    Stored(CommandId),
    /// Its host is offline, and will make the change when it is back.
    Waits(CommandId),
}

impl ChangeProgress {
    /// The failure of a verb with one target.
    ///
    /// # Errors
    /// If the change is not complete, although it was waited for.
    pub(super) fn verdict(self) -> Result<(), Failure> {
        match self {
            Self::Done | Self::Stored(_) => Ok(()),
            Self::Waits(_) => Err(Failure::silent(FailureKind::Failed)),
        }
    }

    fn command(self) -> Option<CommandId> {
        match self {
            Self::Done => None,
            Self::Stored(command) | Self::Waits(command) => Some(command),
        }
    }
}

/// An operation on units.
#[derive(Clone, Debug)]
pub enum UnitAction {
    /// What needs nothing but the unit.
    Plain(fn(UnitName) -> Asked),
    /// Stop it, and also send its process a signal at once.
    Stop(Option<Signal>),
    /// Hold it, with a reason.
    Hold(Option<String>),
    /// Stop and hold it.
    Retire(Option<String>),
    /// Change its labels.
    Label(BTreeMap<Name, Option<LabelValue>>),
    /// Send its process a signal.
    Signal(Signal),
    /// Change its limits.
    Quota(LimitOptions),
}

/// Limits to change: `None` keeps a limit, `Some(None)` removes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitOptions {
    /// Memory, in bytes.
    pub memory_bytes: Option<Option<u64>>,
    /// Processor time.
    pub cpu: Option<Option<Cores>>,
    /// Processes and threads.
    pub pids: Option<Option<u32>>,
    /// Disk space for what a container writes, in bytes.
    pub disk_bytes: Option<Option<u64>>,
}

impl LimitOptions {
    /// The limits after the change.
    fn of(self, limits: Limits) -> Limits {
        Limits {
            memory_bytes: self.memory_bytes.unwrap_or(limits.memory_bytes),
            cpu: self.cpu.unwrap_or(limits.cpu),
            pids: self.pids.unwrap_or(limits.pids),
        }
    }
}

impl UnitAction {
    /// What it does, in a question to the user.
    fn words(&self, verb: NounVerb) -> String {
        match self {
            Self::Signal(signal) => format!("send {signal} to"),
            Self::Quota(_) => "change the limits of".to_owned(),
            _ if verb.word == "rm" => "remove".to_owned(),
            _ => verb.word.to_owned(),
        }
    }

    /// Refuses an option that a unit's kind does not have.
    fn check(&self, picked: &[&Unit]) -> Result<(), Failure> {
        let Self::Quota(LimitOptions { disk_bytes: Some(_), .. }) = self else { return Ok(()) };
        match picked.iter().find(|unit| unit.desired.spec.container().is_none()) {
            Some(other) => {
                let message = format!("{} is a {}, whose disk is not limited", other.unit, other.desired.spec.kind());
                Err(Failure::new(FailureKind::Usage, message).hint("--disk is for containers"))
            }
            None => Ok(()),
        }
    }

    fn asks(&self, there: &Unit) -> Asked {
        let unit = there.unit.clone();
        match self {
            Self::Quota(quota) => {
                // The spec as it is shown has no secrets: the host keeps them.
                let mut spec = Spec::clone(&there.desired.spec);
                if let Some(program) = spec.program_mut() {
                    program.limits = quota.of(program.limits);
                }
                if let (Spec::Container(container), Some(disk_bytes)) = (&mut spec, quota.disk_bytes) {
                    container.disk_bytes = disk_bytes;
                }
                Asked::UnitApply { unit, spec: Box::new(spec), run: None }
            }
            Self::Plain(verb) => verb(unit),
            Self::Stop(_) => Asked::UnitStop { unit },
            Self::Hold(reason) => Asked::UnitHold { unit, note: reason.clone() },
            Self::Retire(reason) => Asked::UnitRetire { unit, note: reason.clone() },
            Self::Label(labels) => Asked::UnitLabel { unit, labels: labels.clone() },
            Self::Signal(signal) => Asked::UnitSignal { unit, signal: *signal },
        }
    }
}

/// The result for one unit.
#[derive(Debug, Serialize)]
struct ChangeResult<'a> {
    host: HostId,
    hostname: &'a str,
    unit: &'a UnitName,
    /// Whether the change is complete.
    done: bool,
    /// Whether its host is offline, and will make the change when it is back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    /// The command that makes the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<CommandId>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> ChangeResult<'a> {
    fn new(
        (host, hostname, unit): (HostId, &'a str, &'a UnitName),
        result: &'a Result<ChangeProgress, Failure>,
    ) -> Self {
        Self {
            host,
            hostname,
            unit,
            done: matches!(result, Ok(ChangeProgress::Done)),
            waits: matches!(result, Ok(ChangeProgress::Waits(_))),
            command: result.as_ref().ok().and_then(|progress| progress.command()),
            error: result.as_ref().err().and_then(|failure| failure.cause()),
        }
    }
}

/// Changes the units that a verb is for.
///
/// # Errors
/// If there are no such units, if the user does not confirm, or if a change fails.
pub async fn change(
    session: &CliSession,
    verb: NounVerb,
    which: UnitChange,
    action: UnitAction,
) -> Result<(), Failure> {
    let all = candidates(session, &which.which).await?;
    let picked = pick(&all, &which.which, verb)?;
    action.check(&picked)?;
    let asks_first = UnitVerbRow::find(verb.word).is_some_and(|row| row.interrupts);
    if picked.len() > 1 && asks_first && !which.yes {
        let question = format!("{} {} {}s", action.words(verb), picked.len(), verb.noun.word());
        ask_first(&question, picked.iter().copied())?;
    }
    // Each host has its own sequence, and none waits for another.
    let hosts = waves(&action, picked).into_iter();
    let each_host = hosts.map(|waves| change_host(session, waves, &action, which.wait));
    let results = stream::iter(each_host).buffered(HOSTS).collect::<Vec<_>>().await;
    let results = results.into_iter().flatten().collect();
    conclude(session, results)
}

/// Number of hosts that are handled at a time, each over its own connections.
const HOSTS: usize = 64;

/// Changes the units of one host, wave after wave. An offline host gets all waves at once, and keeps their order.
async fn change_host<'a>(
    session: &CliSession,
    waves: Vec<Vec<&'a Unit>>,
    action: &UnitAction,
    waiting: WaitOptions,
) -> Vec<(&'a Unit, Result<ChangeProgress, Failure>)> {
    let mut results = Vec::new();
    for wave in waves {
        let wanted = wave.into_iter().map(|unit| (unit, action.asks(unit))).collect();
        let beside = if let UnitAction::Stop(signal) = action { *signal } else { None };
        results.extend(each(session, wanted, beside, waiting).await);
    }
    if let UnitAction::Quota(_) = action {
        for (unit, _) in results.iter().filter(|(_, result)| matches!(result, Ok(ChangeProgress::Done))) {
            tell_how(session, unit).await;
        }
    }
    results
}

/// Reports whether the process continued, because some limits can only be changed by a restart.
async fn tell_how(session: &CliSession, before: &Unit) {
    let Unit { host, unit, hostname, .. } = before;
    // It could be read a moment ago; if that fails now, nothing is reported.
    let Ok(now) = session.client.get::<Unit>(&format!("hosts/{host}/units/{unit}"), &[]).await else { return };
    match (before.observed.instance().pid, now.observed.instance().pid) {
        (Some(old), Some(new)) if old == new => print::say(format_args!("{unit} on {hostname}: changed in place")),
        (Some(_), Some(_)) => print::say(format_args!("{unit} on {hostname}: it was restarted for that")),
        _ => {}
    }
}

/// The order on each host: when units are stopped, dependent units come first, and higher priorities before lower ones.
/// (The order of starts is decided by the host.)
fn waves<'a>(action: &UnitAction, picked: Vec<&'a Unit>) -> Vec<Vec<Vec<&'a Unit>>> {
    let mut hosts: BTreeMap<HostId, Vec<&'a Unit>> = BTreeMap::new();
    for unit in picked {
        hosts.entry(unit.host).or_default().push(unit);
    }
    let in_order = |units: Vec<&'a Unit>| {
        if !matches!(action, UnitAction::Stop(_) | UnitAction::Retire(_)) {
            return vec![units];
        }
        let specs = units.iter().map(|unit| (&unit.unit, &*unit.desired.spec)).collect();
        let waves = start_order::stop_waves(&specs).into_iter();
        waves.map(|wave| units.iter().copied().filter(|unit| wave.contains(&&unit.unit)).collect()).collect()
    };
    hosts.into_values().map(in_order).collect()
}

/// Changes each of some units, and reports the results.
///
/// # Errors
/// If a change fails.
pub async fn change_each(
    session: &CliSession,
    wanted: Vec<(&Unit, Asked)>,
    waiting: WaitOptions,
) -> Result<(), Failure> {
    let results = each(session, wanted, None, waiting).await;
    conclude(session, results)
}

/// As [`change_each`]; in addition, each unit whose host is online is sent a signal, if there is one.
async fn each<'a>(
    session: &CliSession,
    wanted: Vec<(&'a Unit, Asked)>,
    beside: Option<Signal>,
    waiting: WaitOptions,
) -> Vec<(&'a Unit, Result<ChangeProgress, Failure>)> {
    // All commands are sent before any is waited for.
    let mut submitted = Vec::new();
    for (unit, asked) in wanted {
        let command = submit_change(session, unit, asked, waiting.expires_in_ms()).await;
        if let (Ok(command), Some(signal)) = (&command, beside)
            && command.hosts.iter().all(|host| host.away_since_ms().is_none())
        {
            let asked = Asked::UnitSignal { unit: unit.unit.clone(), signal };
            // A process that has ended meanwhile gets no signal, which is not a failure; the unit's state is awaited
            // below.
            if let Err(Failure { diagnostic: Some(Diagnostic { cause: why, .. }), .. }) =
                submit(session, vec![unit.host.to_string()], asked, None).await
            {
                print::say(format_args!("{} is sent no {signal}: {why}", unit.unit));
            }
        }
        submitted.push((unit, command));
    }
    let settled = submitted.into_iter().map(async |(unit, command)| match command {
        Ok(command) => (unit, settle(session, &command, waiting).await),
        Err(failure) => (unit, Err(failure)),
    });
    stream::iter(settled).buffered(HOSTS).collect().await
}

/// Asks for confirmation before an operation on several units.
///
/// # Errors
/// If the answer is no, or if there is no terminal.
pub fn ask_first<'a>(what: &str, units: impl Iterator<Item = &'a Unit>) -> Result<(), Failure> {
    let units: Vec<&Unit> = units.collect();
    let hosts = HostNames::new(units.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    let name = |unit: &&Unit| format!("\n  {} on {}", unit.unit, hosts.show(unit.host, &unit.hostname));
    let names: String = units.iter().map(name).collect();
    if print::confirm(&format!("{what}?{names}\n")) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation:{names}")).hint("pass --yes"))
}

/// Reports the result for each unit, and the overall result.
fn conclude(session: &CliSession, results: Vec<(&Unit, Result<ChangeProgress, Failure>)>) -> Result<(), Failure> {
    let done = results.iter().map(|(unit, result)| ChangeResult::new((unit.host, &unit.hostname, &unit.unit), result));
    session.printer.data(&done.collect::<Vec<_>>())?;
    let total = results.len();
    let count = |wanted: fn(&ChangeProgress) -> bool| {
        results.iter().filter(|(_, result)| result.as_ref().is_ok_and(wanted)).count()
    };
    let (waiting, stored) =
        (count(|one| matches!(one, ChangeProgress::Waits(_))), count(|one| matches!(one, ChangeProgress::Stored(_))));
    let failures: Vec<Failure> = results.into_iter().filter_map(|(_, result)| result.err()).collect();
    let waits = || if waiting == 0 { Ok(()) } else { Err(Failure::silent(FailureKind::Failed)) };
    if total <= 1 {
        return failures.into_iter().next().map_or_else(waits, Err);
    }
    let failed = failures.len();
    let kind = match failures.first() {
        Some(first) if failed == total && failures.iter().all(|failure| failure.kind == first.kind) => first.kind,
        _ => FailureKind::Failed,
    };
    for failure in failures {
        print::say_failure(&failure);
    }
    let some = |count: usize, words: &str| if count == 0 { String::new() } else { format!(", {count} {words}") };
    print::say(format_args!(
        "{}: {} done, {failed} failed{}{}",
        counted(total, "unit"),
        total - failed - waiting - stored,
        some(waiting, "waiting for hosts that are away"),
        some(stored, "ordered"),
    ));
    if failed == 0 { waits() } else { Err(Failure::silent(kind)) }
}

/// Submits a command to hosts.
///
/// # Errors
/// If the console refuses it.
pub async fn submit(
    session: &CliSession,
    hosts: Vec<String>,
    verb: Asked,
    expires_in_ms: Option<u64>,
) -> Result<Command, Failure> {
    send(session, NewCommand { target: NewTarget::Hosts(hosts), expires_in_ms, verb, copied_from: None }).await
}

/// Submits a change of a unit, which may have been made from the spec that its host reports.
async fn submit_change(
    session: &CliSession,
    unit: &Unit,
    verb: Asked,
    expires_in_ms: Option<u64>,
) -> Result<Command, Failure> {
    let there = HostUnit { host: unit.host, unit: unit.unit.clone() };
    let copied_from = matches!(verb, Asked::UnitApply { .. }).then_some(there);
    let target = NewTarget::Hosts(vec![unit.host.to_string()]);
    send(session, NewCommand { target, expires_in_ms, verb, copied_from }).await
}

async fn send(session: &CliSession, wanted: NewCommand) -> Result<Command, Failure> {
    let command: Command = session.client.post("commands", &wanted).await?;
    for HostUnit { host, unit } in &command.withheld {
        let name = command.hosts.iter().find(|line| line.host == *host).map_or("its host", |line| &line.hostname);
        let cause = format!(
            "{unit} on {name}: changed without its configs and secrets, because the console has not given it to {name}"
        );
        print::say(
            Diagnostic::new(cause)
                .with_hint("apply a document that names the host (`muster unit apply`): the console then sends them"),
        );
    }
    Ok(command)
}

/// Creates a unit; with `replace`, an existing one is changed. `copied_from` is the unit whose spec it is.
///
/// # Errors
/// If the unit exists, or if it does not become as desired.
pub async fn make(
    session: &CliSession,
    (host, unit): (String, UnitName),
    (spec, run): (Spec, Option<Run>),
    replace: bool,
    waiting: WaitOptions,
    copied_from: Option<HostUnit>,
) -> Result<(), Failure> {
    let there = units(session, Some(host.clone())).await?.into_iter().find(|there| there.unit == unit);
    let differences = match &there {
        Some(there) => Some(differences(session, there, &spec, run).await?),
        None => None,
    };
    let name = unit.clone();
    let verb = match (&there, differences) {
        (Some(there), Some(differences)) if !replace && !differences.is_empty() => {
            return Err(exists(there, &differences));
        }
        // It is already as described, which changes nothing, or it may be replaced.
        (Some(_), _) => Asked::UnitApply { unit, spec: Box::new(spec), run },
        // Another operator may be creating it at this moment.
        (None, _) if !replace => {
            let units = vec![UnitWish { unit, spec: Box::new(spec), run, new: true }];
            Asked::UnitsApply(UnitSet { units, check: false, part: None })
        }
        (None, _) => Asked::UnitApply { unit, spec: Box::new(spec), run },
    };
    let (target, expires_in_ms) = (NewTarget::Hosts(vec![host]), waiting.expires_in_ms());
    let command = send(session, NewCommand { target, expires_in_ms, verb, copied_from }).await?;
    let result = settle(session, &command, waiting).await;
    let done = command.hosts.iter().map(|host| ChangeResult::new((host.host, &host.hostname, &name), &result));
    session.printer.data(&done.collect::<Vec<_>>())?;
    result?.verdict()
}

/// How a unit differs from a spec. Only the console can compare values of its environment.
async fn differences(
    session: &CliSession,
    there: &Unit,
    spec: &Spec,
    run: Option<Run>,
) -> Result<Vec<FieldDifference>, Failure> {
    let Unit { host, unit, .. } = there;
    let wanted = CompareUnit { spec: Box::new(spec.clone()), run };
    session.client.post(&format!("hosts/{host}/units/{unit}/differences"), &wanted).await
}

fn exists(there: &Unit, differences: &[FieldDifference]) -> Failure {
    let lines: String = differences.iter().map(|one| format!("\n  {one}")).collect();
    let Unit { unit, hostname, .. } = there;
    Failure::new(FailureKind::Refused, format!("{unit} exists on {hostname} and differs:{lines}")).hint(
        "--replace makes it that, with the defaults of all that is not said; `muster unit apply` does so with a document, `muster unit label`, `muster unit upgrade` and `muster unit quota` change one thing and leave the rest",
    )
}

/// Waits for a command's outcomes, and then until each unit is as desired; for units of offline hosts only if
/// requested.
///
/// # Errors
/// If it was refused, or if the units do not become as desired in time.
pub async fn settle(session: &CliSession, command: &Command, waiting: WaitOptions) -> Result<ChangeProgress, Failure> {
    let limit: Duration = waiting.timeout.into();
    let away = command.hosts.iter().all(|host| host.away_since_ms().is_some());
    if away && !waiting.wait_offline {
        print::say(command_follower::waits(command));
    }
    if waiting.no_wait {
        if !away {
            let on = match &command.hosts[..] {
                [host] => format!(" on {}", host.hostname),
                _ => String::new(),
            };
            print::say(format_args!("{}{on}: ordered; {}", command.verb.sentence(), command_follower::look(command)));
        }
        return Ok(ChangeProgress::Stored(command.id));
    }
    if away && !waiting.wait_offline {
        return Ok(ChangeProgress::Waits(command.id));
    }
    // The command itself is valid for longer: for an offline host it waits until it expires.
    let followed = async {
        match waiting.wait_offline {
            true => command_follower::follow(session, command).await,
            false => command_follower::follow_there(session, command).await,
        }
    };
    let Ok(hosts) = tokio::time::timeout(limit, followed).await else {
        return Err(no_answer(&command.id.to_string(), limit));
    };
    let hosts = hosts?;
    // They were offline when the command was given, and still are.
    if !waiting.wait_offline && hosts.iter().all(|host| host.away_since_ms().is_some()) {
        return Ok(ChangeProgress::Waits(command.id));
    }
    report(command, &hosts)?;
    for host in &hosts {
        let status = host.status();
        match (&command.verb, status) {
            (Asked::UnitRm { unit }, Some(Status::Completed)) => {
                wait::until_gone(session, host.host, unit, limit).await?;
                print::say(format_args!("{unit} on {}: removed", host.hostname));
            }
            (Asked::UnitSignal { unit, signal }, Some(Status::Completed)) => {
                print::say(format_args!("{unit} on {}: it got {signal}", host.hostname));
            }
            (verb, Some(status @ (Status::Applied { .. } | Status::AppliedSet { .. }))) => {
                for done in ReachedUnit::all(command, status) {
                    applied(session, host, verb, &done, waiting).await?;
                }
            }
            _ => {}
        }
    }
    Ok(ChangeProgress::Done)
}

/// The desired state of a unit after a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReachedUnit {
    unit: UnitName,
    generation: u64,
    hold: Option<Hold>,
}

impl ReachedUnit {
    pub(super) fn of(one: &AppliedUnit) -> Self {
        Self { unit: one.unit.clone(), generation: one.generation, hold: one.hold.as_deref().cloned() }
    }

    /// From the result of a command for one unit.
    pub(super) fn applied(command: &Command, status: &Status) -> Option<Self> {
        let Status::Applied { generation, hold, .. } = status else { return None };
        let unit = command.verb.units().first().copied()?.clone();
        Some(Self { unit, generation: *generation, hold: hold.as_deref().cloned() })
    }

    fn all(command: &Command, status: &Status) -> Vec<Self> {
        match status {
            Status::AppliedSet { units } => units.iter().map(Self::of).collect(),
            other => Self::applied(command, other).into_iter().collect(),
        }
    }
}

/// Desired state was changed: reports what prevents reconciliation, and waits.
///
/// # Errors
/// If the unit does not become as desired in time.
pub(super) async fn applied(
    session: &CliSession,
    host: &CommandHost,
    verb: &Asked,
    ReachedUnit { unit, generation, hold }: &ReachedUnit,
    waiting: WaitOptions,
) -> Result<(), Failure> {
    let holds = matches!(verb, Asked::UnitHold { .. } | Asked::UnitRetire { .. });
    if let Some(hold) = hold.as_ref().filter(|_| !holds) {
        print::say(format_args!("{unit} on {}: its desired state is changed; it stays held: {hold}", host.hostname));
    }
    let leaves_it = matches!(verb, Asked::UnitHold { .. } | Asked::UnitLabel { .. });
    let changes_it = matches!(verb, Asked::UnitApply { .. } | Asked::UnitsApply(_) | Asked::UnitUpgrade { .. });
    let goal = match (leaves_it, changes_it) {
        (true, _) => wait::WaitGoal::Seen,
        (false, true) => wait::WaitGoal::Proven,
        (false, false) => wait::WaitGoal::Reached,
    };
    wait::until_reached(session, host.host, unit, (*generation, goal), waiting.timeout.into()).await
}
