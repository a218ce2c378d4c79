//! `muster yuno command` and `muster yuno stats`: ask one or many yunos on their channels, with one
//! result for all.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::Args;
use futures_util::future::join_all;
use muster_api::{Command, CommandEvent, CommandHost, NewCommand, NewTarget};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    canonical,
    channel::Complaint,
    command::{Forward, Verb},
    diagnostic::Diagnostic,
    name::{HostId, UnitName},
    outcome::{Status, Stream, UnitAnswer},
};
use serde_json::{Map, Value};

use super::{
    command_verdict, environment,
    session::CliSession,
    target::{self, Noun, NounVerb, UnitRef},
    unit_lookup,
};
use muster_api::host_names::HostNames;

/// Additional time for the answer to arrive, after the time limit of the yunos.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// Shortest time that is allowed for a command to reach its host.
const EXPIRES_MIN_MS: u64 = 1_000;

/// Where to ask, and for how long.
#[derive(Args, Clone, Debug)]
pub struct AskOptions {
    /// Host, by id or hostname; repeatable
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Every host that has such a unit
    #[arg(long)]
    pub all: bool,
    /// Wait so long for the answers
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub timeout: humantime::Duration,
}

/// Pass a command of its own on to a yuno, or to several.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A word with a / before the command's name is a unit. Values of K=V are texts; --json gives \
                    any others."
)]
pub struct AskArgs {
    /// Units, the command's name, and its arguments
    ///
    /// A unit is REALM/NAME or HOST:REALM/NAME.
    #[arg(required = true, num_args = 2.., value_names = ["UNIT", "NAME", "K=V"])]
    pub words: Vec<String>,
    /// Arguments as a JSON object
    #[arg(long, value_name = "ARGS")]
    pub json: Option<String>,
    /// Where, and for how long
    #[command(flatten)]
    pub whom: AskOptions,
}

/// Ask a yuno, or several, for numbers about itself.
#[derive(Args, Clone, Debug)]
pub struct StatsArgs {
    /// REALM/NAME or HOST:REALM/NAME
    #[arg(required = true)]
    pub units: Vec<UnitRef>,
    /// Where, and for how long
    #[command(flatten)]
    pub whom: AskOptions,
}

/// A question, parsed from the command line.
#[derive(Debug, PartialEq)]
struct Question {
    units: Vec<UnitRef>,
    name: String,
    args: Map<String, Value>,
}

fn take_apart(words: &[String], json: Option<&str>) -> Result<Question, Failure> {
    let wrong =
        |message: String| Failure::new(FailureKind::Usage, message).hint("`muster yuno command --help` has examples");
    let split = words.iter().position(|word| !word.contains('/'));
    let Some((units, [name, variables @ ..])) = split.map(|at| words.split_at(at)) else {
        return Err(wrong("there is no name of a command after the units".to_owned()));
    };
    if units.is_empty() {
        return Err(wrong(format!("{name:?} is not a unit: expected REALM/NAME or HOST:REALM/NAME")));
    }
    let units = units.iter().map(|word| word.parse().map_err(|why: String| wrong(format!("{word:?}: {why}"))));
    let mut args = match json {
        None => Map::new(),
        Some(text) => match canonical::parse_value(text.as_bytes()) {
            Ok(Value::Object(args)) => args,
            Ok(_) => return Err(wrong("--json: expected an object".to_owned())),
            Err(error) => return Err(wrong(format!("--json: {error}"))),
        },
    };
    for word in variables {
        let (name, value) = environment::parse_variable(word).map_err(|why| wrong(format!("{word:?}: {why}")))?;
        args.insert(name, value.into());
    }
    Ok(Question { units: units.collect::<Result<_, _>>()?, name: name.clone(), args })
}

/// Sends a command to yunos.
///
/// # Errors
/// If it cannot be sent, or if a yuno did not perform it.
pub async fn command(session: &CliSession, ask: AskArgs) -> Result<(), Failure> {
    let Question { units, name, args } = take_apart(&ask.words, ask.json.as_deref())?;
    let verb =
        |units, timeout_ms| Verb::UnitCommand(Forward { units, name: name.clone(), args: args.clone(), timeout_ms });
    forward(session, Noun::Yuno.verb("command"), &units, &ask.whom, verb).await
}

/// Asks for statistics.
///
/// # Errors
/// If that fails, or if a yuno did not answer.
pub async fn stats(session: &CliSession, stats: StatsArgs) -> Result<(), Failure> {
    let verb = |units, timeout_ms| Verb::UnitStats { units, timeout_ms };
    forward(session, Noun::Yuno.verb("stats"), &stats.units, &stats.whom, verb).await
}

/// The answers of one host, by unit.
type HostAnswers = BTreeMap<UnitName, UnitAnswer>;

async fn forward(
    session: &CliSession,
    verb_of: NounVerb,
    wanted: &[UnitRef],
    whom: &AskOptions,
    verb: impl Fn(Vec<UnitName>, u64) -> Verb,
) -> Result<(), Failure> {
    let all = unit_lookup::named(session, wanted.iter().map(|wanted| &wanted.unit)).await?;
    let mut picked: BTreeMap<HostId, (String, BTreeSet<UnitName>)> = BTreeMap::new();
    let mut found = Vec::new();
    for wanted in wanted {
        for unit in target::pick(&all, wanted, &whom.hosts, whom.all)? {
            verb_of.check([unit])?;
            found.push((wanted, unit));
            let host = picked.entry(unit.host).or_insert_with(|| (unit.hostname.clone(), BTreeSet::new()));
            host.1.insert(unit.unit.clone());
        }
    }
    // Answers of several hosts have their names.
    if picked.len() == 1 {
        found.into_iter().for_each(|(wanted, unit)| target::say_host(wanted, &whom.hosts, unit));
    }
    let timeout_ms = u64::try_from(whom.timeout.as_millis()).unwrap_or(u64::MAX);
    let asked = picked.iter().map(|(host, (_, units))| {
        let verb = verb(units.iter().cloned().collect(), timeout_ms);
        ask_host(session, *host, units, verb, timeout_ms)
    });
    let several = picked.len() > 1;
    let names = HostNames::new(picked.iter().map(|(host, (hostname, _))| (*host, hostname.as_str())));
    let mut answers = BTreeMap::new();
    for (answer, (host, (hostname, _))) in join_all(asked).await.into_iter().zip(&picked) {
        for (unit, answer) in answer? {
            // If two hosts have the same name, one answer would overwrite the other.
            let name = if several { format!("{}:{unit}", names.show(*host, hostname)) } else { unit.to_string() };
            answers.insert(name, answer);
        }
    }
    session.printer.table(
        &answers,
        &["UNIT", "ANSWER"],
        answers.iter().map(|(name, answer)| vec![name.clone(), words(answer)]),
    )?;
    let is_good = |answer: &UnitAnswer| matches!(answer, UnitAnswer::Ok(_));
    if answers.values().all(is_good) { Ok(()) } else { Err(Failure::silent(FailureKind::Failed)) }
}

fn words(answer: &UnitAnswer) -> String {
    match answer {
        UnitAnswer::Ok(Value::Null) => "done".to_owned(),
        UnitAnswer::Ok(Value::String(text)) => text.clone(),
        UnitAnswer::Ok(value) => value.to_string(),
        UnitAnswer::Error(Complaint { code, diagnostic }) => format!("{code}: {diagnostic:#}"),
    }
}

/// Asks the units of one host. An error of the host counts as the answer of each unit.
async fn ask_host(
    session: &CliSession,
    host: HostId,
    units: &BTreeSet<UnitName>,
    verb: Verb,
    timeout_ms: u64,
) -> Result<HostAnswers, Failure> {
    let target = NewTarget::Hosts(vec![host.to_string()]);
    let wanted = NewCommand { target, expires_in_ms: Some(timeout_ms.max(EXPIRES_MIN_MS)), verb, copied_from: None };
    let command: Command = session.client.post("commands", &wanted).await?;
    let limit = Duration::from_millis(timeout_ms).saturating_add(ON_ITS_WAY);
    let nobody = |code: &str, diagnostic: Diagnostic| {
        let answer = UnitAnswer::Error(Complaint { code: code.to_owned(), diagnostic });
        Ok(units.iter().map(|unit| (unit.clone(), answer.clone())).collect())
    };
    let Ok(gathered) = tokio::time::timeout(limit, gather(session, &command)).await else {
        return nobody("unit_unreachable", "its host does not answer".into());
    };
    let (line, output) = gathered?;
    match line.status() {
        Some(Status::Completed) => match serde_json::from_slice(&output) {
            Ok(answers) => Ok(answers),
            Err(error) => nobody("invalid", format!("its host's answer is not valid: {error}").into()),
        },
        None => nobody("unit_unreachable", "its host has not answered in time".into()),
        Some(Status::Refused { code, diagnostic }) => {
            let code = serde_json::to_value(code).ok().and_then(|code| Some(code.as_str()?.to_owned()));
            nobody(code.as_deref().unwrap_or("refused"), diagnostic.clone())
        }
        Some(status) => nobody("lost", command_verdict::status(status)),
    }
}

/// Waits for the outcome of the only host, and collects its output.
async fn gather(session: &CliSession, command: &Command) -> Result<(CommandHost, Vec<u8>), Failure> {
    let gone = || Failure::new(FailureKind::Unreachable, "the console ended the connection");
    let mut events = session.client.events(&format!("commands/{}/events", command.id)).await?;
    let mut pieces: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut line = command.hosts.first().cloned().ok_or_else(gone)?;
    loop {
        match events.next().await?.ok_or_else(gone)? {
            CommandEvent::Output { stream: Stream::Stdout, offset_bytes, data, .. } => {
                pieces.insert(offset_bytes, data.to_bytes().unwrap_or_default());
            }
            CommandEvent::Output { .. } => {}
            CommandEvent::Host(host) => line = host,
            CommandEvent::End => break,
        }
    }
    if let Some(received) = line.outcome()
        && let Some(rest) = &received.value.stdout.rest
    {
        pieces.insert(received.value.stdout.sent_bytes, rest.to_bytes().unwrap_or_default());
    }
    Ok((line, pieces.into_values().flatten().collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(words: &[&str], json: Option<&str>, wanted: Option<(&[&str], &str, Value)>) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let found = take_apart(&words, json).ok();
        let wanted = wanted.map(|(units, name, args)| Question {
            units: units.iter().map(|unit| unit.parse().unwrap()).collect(),
            name: name.to_owned(),
            args: args.as_object().unwrap().clone(),
        });
        assert_eq!(found, wanted, "{words:?}");
    }

    #[test]
    fn question_lines_parse() {
        check(&["a/b", "level"], None, Some((&["a/b"], "level", json!({}))));
        check(&["a/b", "h:a/c", "set", "to=a/b=c"], None, Some((&["a/b", "h:a/c"], "set", json!({"to": "a/b=c"}))));
        check(&["a/b", "set", "x=1"], Some(r#"{"y":[2]}"#), Some((&["a/b"], "set", json!({"x": "1", "y": [2]}))));
        check(&["a/b", "c/d"], None, None);
        check(&["level", "x=1"], None, None);
        check(&["a/b/c", "level"], None, None);
        check(&["a/b", "level", "loud"], None, None);
        check(&["a/b", "level"], Some("[1]"), None);
        check(&["a/b", "level"], Some("{"), None);
    }

    #[test]
    fn answers_are_formatted() {
        let error = UnitAnswer::Error(Complaint { code: "deadline".into(), diagnostic: "late".into() });
        assert_eq!(words(&error), "deadline: late");
        assert_eq!(words(&UnitAnswer::Ok(Value::Null)), "done");
        assert_eq!(words(&UnitAnswer::Ok(json!({"a": 1}))), r#"{"a":1}"#);
    }
}
