//! The page of one unit, and its actions.

use std::collections::BTreeMap;

use axum::{extract::State, response::Response};
use muster_api::{
    Command, NewCommand, NewTarget, Unit, UnitOnHosts,
    upgrade::{Offer, Upgrade, upgrade},
};
use muster_topics::{
    command::{LogView, Verb},
    name::{CommandId, HostId, LabelValue, Name, NameError, UnitName},
    signal::SignalError,
    task::UnitTasks,
    verb_table::VerbClass,
};
use serde::Deserialize;

use super::super::chart::range::TimeRange;
use crate::{
    error::Error,
    state::Console,
    web::{
        answer, chart,
        extract::{PageParams, PageSegments},
        guard::FormFields,
        session::WebSession,
        view::{
            command::ShownOutput,
            commands,
            manage::words,
            unit::{LINES, LINES_MAX, UnitView, url},
            unit_tasks::ShownTasks,
        },
    },
};

/// How long a question about tasks waits for its host.
const TASKS_EXPIRE_MS: u64 = 60_000;

/// The requested part.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct UnitPageQuery {
    #[serde(default)]
    range: TimeRange,
    /// A command that was just submitted here.
    asked: Option<CommandId>,
    /// The same question of before, for an answer while the host is asked again.
    before: Option<CommandId>,
    part: Option<String>,
}

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((host, realm, name)): PageSegments<(HostId, Name, Name)>,
    PageParams(asked): PageParams<UnitPageQuery>,
) -> Response {
    let view = view(&console, host, &UnitName::new(&realm, &name), &asked).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

async fn view(console: &Console, host: HostId, name: &UnitName, asked: &UnitPageQuery) -> Result<UnitView, Error> {
    let unit = console.unit(host, name).await?;
    let asked_for = match asked.asked {
        Some(id) => Some(console.command(id).await?).filter(|command| concerns(command, host, name)),
        None => None,
    };
    let log = match &asked_for {
        Some(Command { id, verb: Verb::UnitLogs { .. }, .. }) => {
            let (lines, words) = console.output(*id, host).await?;
            Some((ShownOutput::of(&lines), String::from_utf8_lossy(&words).into_owned()))
        }
        _ => None,
    };
    let tasks = shown_tasks(console, host, name, asked_for.as_ref(), asked.before).await?;
    let latest = chart::latest(console, host, Some(name)).await?;
    let newer = newer(console, &unit).await?;
    let claim = console.unit_claim(host, name);
    let before = asked.before;
    Ok(UnitView { unit, claim, asked: asked_for, before, log, tasks, latest, range: asked.range, newer })
}

/// Returns what a host has answered about the tasks of a unit, if it was asked: the last time, or as long as that is
/// open, the time before.
async fn shown_tasks(
    console: &Console,
    host: HostId,
    name: &UnitName,
    asked: Option<&Command>,
    before: Option<CommandId>,
) -> Result<ShownTasks, Error> {
    let is_of_tasks = |command: &&Command| matches!(command.verb, Verb::UnitTasks { .. });
    let Some(asked) = asked.filter(is_of_tasks) else { return Ok(ShownTasks::default()) };
    let mut answer = tasks_of(console, asked, host).await?;
    if let (None, Some(before), true) = (&answer, before, asked.hosts.iter().any(|line| !line.is_over())) {
        let before = console.command(before).await?;
        if is_of_tasks(&&before) && concerns(&before, host, name) {
            answer = tasks_of(console, &before, host).await?;
        }
    }
    Ok(ShownTasks { asked: Some(asked.clone()), answer })
}

async fn tasks_of(console: &Console, asked: &Command, host: HostId) -> Result<Option<UnitTasks>, Error> {
    let (answer, _) = console.output(asked.id, host).await?;
    // Before the end it is a part, which cannot be read.
    Ok(serde_json::from_slice(&answer).ok())
}

/// Returns newer content that a unit could get.
async fn newer(console: &Console, unit: &Unit) -> Result<Option<Upgrade>, Error> {
    let offer = Offer::newest(console.artifacts(None, None).await?, console.configs().await?);
    let offer = offer.with_secrets(console.secret_versions().await?);
    Ok(upgrade(&unit.unit, &unit.desired, &offer))
}

/// Whether a command concerns this unit on this host.
fn concerns(command: &Command, host: HostId, name: &UnitName) -> bool {
    command.verb.units().into_iter().chain(command.verb.containers()).any(|unit| unit == name)
        && command.hosts.iter().any(|line| line.host == host)
}

/// Submits a command for the unit, and redirects to its page, which shows the progress.
pub(in crate::web) async fn act(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((host, realm, name, action)): PageSegments<(HostId, Name, Name, String)>,
    fields: FormFields,
) -> Response {
    let unit = UnitName::new(&realm, &name);
    let answer = async {
        // A missing unit is a 404 now rather than a refusal later.
        let there = console.unit(host, &unit).await?;
        if let "adopt" | "detach" = action.as_str() {
            attach(&console, &session, &there, action == "adopt").await?;
            return Ok(answer::see(&url(host, &unit)));
        }
        let verb = match action.as_str() {
            "upgrade" => ordered(newer(&console, &there).await?, fields.one("to"))?,
            _ => verb(&action, unit.clone(), &fields)?,
        };
        let target = NewTarget::Hosts(vec![host.to_string()]);
        // Who looks at tasks waits for the answer.
        let expires_in_ms = matches!(verb, Verb::UnitTasks { .. }).then_some(TASKS_EXPIRE_MS);
        let command =
            console.submit(&session.operator, NewCommand { target, expires_in_ms, verb, copied_from: None }).await?;
        if let Some(there) = command.withheld.first() {
            let error = console.not_given(there).await?;
            return Err(error.consequence("it gets only its new artifact"));
        }
        // A removed unit will soon have no page.
        Ok(match command.verb {
            Verb::UnitRm { .. } => answer::see(&commands::url(command.id)),
            Verb::UnitTasks { .. } => {
                let before = fields.one("before").parse::<CommandId>();
                let before = before.map(|before| format!("&before={before}")).unwrap_or_default();
                answer::see(&format!("{}?asked={}{before}#tasks", url(host, &unit), command.id))
            }
            _ => answer::see(&format!("{}?asked={}", url(host, &unit), command.id)),
        })
    };
    answer::or_problem(&session, answer.await)
}

/// Has the deployment of a unit take it over, or leaves it to verbs.
async fn attach(console: &Console, session: &WebSession, unit: &Unit, attach: bool) -> Result<(), Error> {
    let claimed = console.unit_claim(unit.host, &unit.unit).deployment;
    let owner = unit.owner.as_ref().map(|owner| owner.deployment.clone());
    let deployment = if attach { claimed } else { owner.or(claimed) };
    let deployment = deployment.ok_or_else(|| {
        Error::conflict("changed_meanwhile", "this unit is no longer in a deployment")
            .hint("load the unit's page again")
    })?;
    let wanted = UnitOnHosts { unit: unit.unit.clone(), target: NewTarget::Hosts(vec![unit.host.to_string()]) };
    console.set_unit_attached(&session.operator, &deployment, wanted, attach).await?;
    Ok(())
}

/// Returns the upgrade, if it still is what was shown.
fn ordered(newer: Option<Upgrade>, shown: &str) -> Result<Verb, Error> {
    match newer {
        Some(upgrade) if words(&upgrade) == shown => Ok(upgrade.verb),
        _ => Err(Error::conflict("changed_meanwhile", "the available upgrade has changed since the page was loaded")
            .hint("reload the unit's page, then upgrade")),
    }
}

/// Returns one label of a form: its name, and its change.
fn label(fields: &FormFields, value: Option<&str>) -> Result<BTreeMap<Name, Option<LabelValue>>, Error> {
    let wrong = |what: &str, error: NameError| {
        Error::invalid("bad_label", format!("the label's {what}: {error}")).hint("such as tier and gold")
    };
    let name = fields.one("name").parse().map_err(|error| wrong("name", error))?;
    let value = value.map(str::parse).transpose().map_err(|error| wrong("value", error))?;
    Ok([(name, value)].into())
}

fn note(fields: &FormFields) -> Option<String> {
    Some(fields.one("note").to_owned()).filter(|note| !note.is_empty())
}

fn verb(action: &str, unit: UnitName, fields: &FormFields) -> Result<Verb, Error> {
    match action {
        "start" => Ok(Verb::UnitRun { unit }),
        "hold" => Ok(Verb::UnitHold { unit, note: note(fields) }),
        "retire" => Ok(Verb::UnitRetire { unit, note: note(fields) }),
        "remove" => Ok(Verb::UnitRm { unit }),
        "label" => Ok(Verb::UnitLabel { unit, labels: label(fields, Some(fields.one("value")))? }),
        "unlabel" => Ok(Verb::UnitLabel { unit, labels: label(fields, None)? }),
        "signal" => {
            let signal = fields.one("signal").parse();
            let signal = signal.map_err(|error: SignalError| Error::invalid("bad_signal", error.to_string()))?;
            Ok(Verb::UnitSignal { unit, signal })
        }
        "logs" => {
            let lines = fields.one("lines").parse().unwrap_or(LINES).clamp(1, LINES_MAX);
            Ok(Verb::UnitLogs { unit, lines, view: LogView { times: true, ..LogView::default() } })
        }
        "tasks" => Ok(Verb::UnitTasks { unit, log: fields.one("log").parse().ok(), from: 0 }),
        // The others are the verbs' own words.
        word => Verb::of_unit(word, &unit)
            .filter(|verb| verb.class() == VerbClass::Unit)
            .ok_or_else(|| Error::not_found("unknown_action", "units have no such action")),
    }
}
