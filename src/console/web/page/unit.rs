//! One unit: showing it, and what can be ordered there.

use axum::{extract::State, response::Response};
use muster_topics::{
    command::Verb,
    name::{CommandId, HostId, Name, UnitName},
};
use serde::Deserialize;

use crate::{
    api::{Command, NewCommand, NewTarget},
    console::{
        Console, Error,
        web::{
            answer,
            chart::{self, Range},
            extract::{Params, Segments},
            guard::{Fields, Session},
            view::{
                command::Shown,
                unit::{LINES, LINES_MAX, UnitView, url},
            },
        },
    },
};

/// What of it.
#[derive(Debug, Deserialize)]
pub(in crate::console::web) struct Asked {
    #[serde(default)]
    range: Range,
    /// What was just ordered here.
    asked: Option<CommandId>,
    part: Option<String>,
}

/// The page.
pub(in crate::console::web) async fn show(
    State(console): State<Console>,
    session: Session,
    Segments((host, realm, name)): Segments<(HostId, Name, Name)>,
    Params(asked): Params<Asked>,
) -> Response {
    let view = view(&console, host, &UnitName::new(&realm, &name), &asked).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

async fn view(console: &Console, host: HostId, name: &UnitName, asked: &Asked) -> Result<UnitView, Error> {
    let unit = console.unit(host, name).await?;
    let asked_for = match asked.asked {
        Some(id) => Some(console.command(id).await?).filter(|command| concerns(command, host, name)),
        None => None,
    };
    let log = match &asked_for {
        Some(Command { id, verb: Verb::UnitLogs { .. }, .. }) => Some(Shown::of(&console.output(*id, host).await?.0)),
        _ => None,
    };
    let latest = chart::latest(console, host, Some(name)).await?;
    Ok(UnitView { unit, asked: asked_for, log, latest, range: asked.range })
}

/// Whether a command is about this unit on this host.
fn concerns(command: &Command, host: HostId, name: &UnitName) -> bool {
    command.verb.unit() == Some(name) && command.hosts.iter().any(|line| line.host == host)
}

/// Orders something of the unit, and leads back to its page, which follows how far it has come.
pub(in crate::console::web) async fn act(
    State(console): State<Console>,
    session: Session,
    Segments((host, realm, name, action)): Segments<(HostId, Name, Name, String)>,
    fields: Fields,
) -> Response {
    let unit = UnitName::new(&realm, &name);
    let answer = async {
        let verb = verb(&action, unit.clone(), &fields)?;
        // A unit that is not there is a 404 now rather than a refusal later.
        console.unit(host, &unit).await?;
        let target = NewTarget::Hosts(vec![host.to_string()]);
        let command = console.submit(&session.operator, NewCommand { target, expires_in_ms: None, verb }).await?;
        Ok(answer::see(&format!("{}?asked={}", url(host, &unit), command.id)))
    };
    answer::or_problem(&session, answer.await)
}

fn verb(action: &str, unit: UnitName, fields: &Fields) -> Result<Verb, Error> {
    match action {
        "start" => Ok(Verb::UnitRun { unit }),
        "stop" => Ok(Verb::UnitStop { unit }),
        "restart" => Ok(Verb::UnitRestart { unit }),
        "hold" => {
            Ok(Verb::UnitHold { unit, note: Some(fields.one("note").to_owned()).filter(|note| !note.is_empty()) })
        }
        "unhold" => Ok(Verb::UnitUnhold { unit }),
        "freeze" => Ok(Verb::UnitFreeze { unit }),
        "thaw" => Ok(Verb::UnitThaw { unit }),
        "logs" => {
            let lines = fields.one("lines").parse().unwrap_or(LINES).clamp(1, LINES_MAX);
            Ok(Verb::UnitLogs { unit, lines })
        }
        _ => Err(Error::not_found("unknown_action", "this cannot be done with a unit")),
    }
}
