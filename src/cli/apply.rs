//! `muster unit apply`: units become what documents say. What that means is decided by the console; here files are
//! read, what would change is shown, and what does is followed to its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use futures_util::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use muster_topics::{name::CommandId, select::HostSelect};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use super::{
    Session,
    change::{Waiting, applied, no_answer, report},
    print, target,
};
use crate::{
    api::{Applied, AppliedUnit, Apply as Asked, ApplyAction, ApplyDocument, Command, CommandEvent, CommandHost, Cost},
    failure::{Failure, Kind},
};

/// The largest file: what the console takes of all of them together.
const FILE_MAX_BYTES: u64 = 2 * 1024 * 1024;

/// How many commands are followed at a time, each over a connection of its own.
const FOLLOWED: usize = 16;

/// Make units what documents say: create what is missing, change what differs, leave the rest alone.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  muster unit apply shop.yaml --dry-run\n  muster unit export | muster unit apply - \n  \
                        muster unit apply till.yaml --select 'label.site=north'\n\nA document is a unit: `unit` \
                        (REALM/NAME) and `artifact` (ROLE@VERSION), and as wanted `hosts`, `run` (stopped, running or \
                        playing), `configs` (ID@VERSION) and whatever else a spec has; or a list of them under `units`. \
                        A file is YAML or JSON and may have several documents. What is left out has its default; \
                        without `run` it stays as it is. Nothing is changed if anything is wrong. Exit codes: 0 all is \
                        as it was said, 1 something could not be done, 2 a document is wrong."
)]
pub struct Apply {
    /// Files of documents; - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The host of units whose document names none, by id or hostname; may be given several times
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// The hosts of units whose document names none: those that this picks, as for `muster exec`
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "hosts")]
    pub select: Option<HostSelect>,
    /// Only show what would change, and what that would cost
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask before more than one process is stopped or started anew
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    wait: Waiting,
}

/// What became of a unit.
#[derive(Debug, Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    unit: &'a AppliedUnit,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Does it.
///
/// # Errors
/// If a document is wrong, nobody says yes, or something cannot be done.
pub async fn run(apply: Apply, session: &Session) -> Result<(), Failure> {
    let hosts = match &apply.select {
        Some(select) => target::picked(session, select).await?,
        None if apply.hosts.is_empty() => session.context.host.iter().map(ToString::to_string).collect(),
        None => apply.hosts.clone(),
    };
    let documents = read_all(&apply.files)?;
    let mut asked = Asked { documents, hosts, dry_run: true, expires_in_ms: None };
    let planned: Applied = session.client.post("apply", &asked).await?;
    if apply.dry_run {
        return show(session, &planned.units);
    }
    print::say(print::table(&HEADER, rows(&planned.units)).trim_end());
    ask_first(&planned.units, apply.yes)?;
    asked.dry_run = false;
    let Applied { units } = session.client.post("apply", &asked).await?;
    let failures = follow_all(session, &units, apply.wait).await?;
    conclude(session, &units, failures)
}

/// Reads every document of every file.
fn read_all(files: &[PathBuf]) -> Result<Vec<ApplyDocument>, Failure> {
    let (mut documents, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        let name = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
        match read_file(file).and_then(|text| parse(&text)) {
            Ok(found) => {
                let several = found.len() > 1;
                documents.extend(found.into_iter().enumerate().map(|(index, content)| {
                    let source = if several { format!("{name}, document {}", index + 1) } else { name.clone() };
                    ApplyDocument { source, content }
                }));
            }
            Err(message) => wrong.push(format!("{name}: {message}")),
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::new(Kind::Usage, wrong.join("\n")));
    }
    if documents.is_empty() {
        return Err(
            Failure::new(Kind::Usage, "there is no document").hint("`muster unit apply --help` says what one is")
        );
    }
    Ok(documents)
}

pub(super) fn read_file(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|open| open.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(format!("it has more than {FILE_MAX_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text (UTF-8)".to_owned())
}

/// The documents in a text: JSON, or YAML with `---` between them. One that is empty is none.
pub(super) fn parse(text: &str) -> Result<Vec<Value>, String> {
    // This type takes no key twice, whichever form it comes in.
    let mut documents: Vec<serde_norway::Value> = Vec::new();
    // Nearly all JSON is YAML, but its errors are better told by its own reader.
    if text.trim_start().starts_with('{') && !text.contains("\n---") {
        for document in serde_json::Deserializer::from_str(text).into_iter() {
            documents.push(document.map_err(|error| error.to_string())?);
        }
    } else {
        for document in serde_norway::Deserializer::from_str(text) {
            documents.push(serde_norway::Value::deserialize(document).map_err(|error| error.to_string())?);
        }
    }
    let documents = documents.into_iter().filter(|document| !document.is_null());
    documents.map(|document| serde_json::to_value(document).map_err(|error| error.to_string())).collect()
}

const HEADER: [&str; 6] = ["HOST", "UNIT", "ACTION", "COST", "FIELD", "CHANGE"];

/// A line for each field that changes, the first with the unit before it.
fn rows(units: &[AppliedUnit]) -> impl Iterator<Item = Vec<String>> {
    units.iter().flat_map(|unit| {
        let cost = if unit.action == ApplyAction::Unchanged { "" } else { unit.cost.words() };
        let first = [&unit.hostname, unit.unit.as_str(), unit.action.word(), cost].map(str::to_owned).to_vec();
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

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn show(session: &Session, units: &[AppliedUnit]) -> Result<(), Failure> {
    session.printer.table(&units, &HEADER, rows(units))
}

/// What interrupts more than one process needs a yes.
fn ask_first(units: &[AppliedUnit], yes: bool) -> Result<(), Failure> {
    let interrupted: Vec<&AppliedUnit> =
        units.iter().filter(|unit| matches!(unit.cost, Cost::Restart | Cost::Stop)).collect();
    if yes || interrupted.len() < 2 {
        return Ok(());
    }
    let names: String = interrupted
        .iter()
        .map(|unit| format!("\n  {} on {}: {}", unit.unit, unit.hostname, unit.cost.words()))
        .collect();
    let what = format!("interrupt {} processes", interrupted.len());
    if print::confirm(&format!("{what}?{names}\n")) {
        return Ok(());
    }
    Err(Failure::new(Kind::Usage, format!("to {what} needs a yes:{names}")).hint("say --yes"))
}

/// Which unit of the answer, and why it failed.
type Failures = BTreeMap<usize, Failure>;

/// Follows every command until each of its units is what it should be.
async fn follow_all(session: &Session, units: &[AppliedUnit], waiting: Waiting) -> Result<Failures, Failure> {
    let mut commands: BTreeMap<CommandId, Vec<usize>> = BTreeMap::new();
    for (place, unit) in units.iter().enumerate() {
        match unit.command {
            Some(command) => commands.entry(command).or_default().push(place),
            None => print::say(format_args!("{} on {}: unchanged", unit.unit, unit.hostname)),
        }
    }
    let followed = commands.into_iter().map(|(command, places)| follow(session, command, units, places, waiting));
    let mut failures = Failures::new();
    let mut results = stream::iter(followed).buffer_unordered(FOLLOWED);
    while let Some(found) = results.next().await {
        failures.extend(found?);
    }
    Ok(failures)
}

/// Follows one command: on each host by itself, so that one that is away keeps no other waiting.
async fn follow(
    session: &Session,
    command: CommandId,
    units: &[AppliedUnit],
    places: Vec<usize>,
    waiting: Waiting,
) -> Result<Failures, Failure> {
    let limit: Duration = waiting.timeout.into();
    let command: Command = session.client.get(&format!("commands/{command}"), &[]).await?;
    let mut events = session.client.events(&format!("commands/{}/events", command.id)).await?;
    let mut left: BTreeSet<usize> = places.into_iter().collect();
    let (mut waits, mut failures) = (FuturesUnordered::new(), Failures::new());
    let deadline = tokio::time::sleep(limit);
    tokio::pin!(deadline);
    let mut is_over = false;
    while !(is_over && waits.is_empty()) {
        tokio::select! {
            // Cancel-safe: what has come of an event stays with the stream.
            event = events.next(), if !is_over => match event? {
                Some(CommandEvent::Host(line)) if line.outcome.is_some() => {
                    let place = left.iter().copied().find(|place| units[*place].host == line.host);
                    if let Some(place) = place.filter(|place| left.remove(place)) {
                        waits.push(finish(session, &command, line, place, waiting));
                    }
                }
                Some(CommandEvent::Host(_) | CommandEvent::Output { .. }) => {}
                Some(CommandEvent::End) | None => is_over = true,
            },
            Some((place, result)) = waits.next() => failures.extend(result.err().map(|failure| (place, failure))),
            () = &mut deadline, if !is_over => is_over = true,
        }
    }
    failures.extend(left.into_iter().map(|place| (place, no_answer(&command, limit))));
    Ok(failures)
}

async fn finish(
    session: &Session,
    command: &Command,
    line: CommandHost,
    place: usize,
    waiting: Waiting,
) -> (usize, Result<(), Failure>) {
    let done = async {
        report(command, std::slice::from_ref(&line))?;
        match &line.outcome {
            Some(outcome) => applied(session, &line, &command.verb, &outcome.value.status, waiting).await,
            None => Ok(()),
        }
    };
    (place, done.await)
}

fn conclude(session: &Session, units: &[AppliedUnit], failures: Failures) -> Result<(), Failure> {
    let error = |place: &usize| failures.get(place).map(|failure| failure.message.clone().unwrap_or_default());
    let done = units.iter().enumerate().map(|(place, unit)| {
        let error = error(&place);
        Done { unit, done: error.is_none(), error }
    });
    session.printer.data(&done.collect::<Vec<_>>())?;
    let count = |action: ApplyAction| units.iter().filter(|unit| unit.action == action).count();
    print::say(format_args!(
        "{} units: {} created, {} changed, {} unchanged{}",
        units.len(),
        count(ApplyAction::Create),
        count(ApplyAction::Change),
        count(ApplyAction::Unchanged),
        if failures.is_empty() { String::new() } else { format!("; {} failed", failures.len()) },
    ));
    let kinds: BTreeSet<u8> = failures.values().map(|failure| failure.kind.code()).collect();
    let first = failures.values().next().map(|failure| failure.kind);
    if failures.len() == 1 {
        return failures.into_values().next().map_or(Ok(()), Err);
    }
    for failure in failures.into_values() {
        if let Some(message) = failure.message {
            print::say(format_args!("error: {message}"));
        }
    }
    match first {
        None => Ok(()),
        Some(kind) if kinds.len() == 1 => Err(Failure::silent(kind)),
        Some(_) => Err(Failure::silent(Kind::Failed)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_in_yaml_and_json() {
        for (text, wanted) in [
            ("", vec![]),
            ("# nothing\n", vec![]),
            ("unit: a/b\nenv: {A: '1'}\n", vec![json!({"unit": "a/b", "env": {"A": "1"}})]),
            ("---\na: 1\n---\nb: 2\n---\n", vec![json!({"a": 1}), json!({"b": 2})]),
            ("{\"a\": 1}", vec![json!({"a": 1})]),
            ("{\"a\": 1}\n{\"b\": 2}", vec![json!({"a": 1}), json!({"b": 2})]),
            ("{a: 1}\n---\n{b: 2}\n", vec![json!({"a": 1}), json!({"b": 2})]),
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
        for (text, words) in
            [("a: 1\na: 2\n", "duplicate"), ("a: [1\n", "line"), ("{\"a\": 1,}", "line 1"), ("? [a]\n: 1\n", "key")]
        {
            let message = parse(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
