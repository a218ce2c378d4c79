//! The lines that a yuno and its agent exchange on the yuno's channel, if its spec has `"channel": "lines"`.
//! `topics/CHANNEL.md` specifies their order and their effects.
//!
//! Each line is a JSON object with exactly one key, of at most [`LINE_MAX_BYTES`]. Readers ignore unknown
//! fields.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Millis, diagnostic::Diagnostic};

/// The longest line, in both directions: as much as a message on the bus.
pub const LINE_MAX_BYTES: usize = 64 * 1024;

/// The version of this protocol.
pub const PROTOCOL: u32 = 1;

/// A line of a yuno.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FromYuno {
    /// The first line of a connection: authentication, and the yuno's abilities.
    Hello(Hello),
    /// It is up.
    Ready(Nothing),
    /// Its status, in a line for people.
    Status(String),
    /// It is alive: to be sent more often than the watchdog's time.
    Alive(Nothing),
    /// The answer to a request.
    Answer(Answer),
    /// Its statistics, unsolicited.
    Stats(BTreeMap<String, Value>),
}

/// The first line of a yuno.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    /// The value of `MUSTER_TOKEN`.
    pub token: String,
    /// The version of the protocol: 1.
    pub protocol: u32,
    /// What it can be asked for.
    #[serde(default)]
    pub can: Vec<Ability>,
    /// Whether it is up already; the same as sending `ready` next.
    #[serde(default)]
    pub ready: bool,
}

/// Something that a yuno can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// To play, and to pause.
    Play,
    /// Commands of its own.
    Command,
    /// Its statistics.
    Stats,
    /// To read its configuration again.
    Reload,
    /// To accept a configuration in a line.
    Config,
}

impl Ability {
    /// Returns the ability of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Play, Self::Command, Self::Stats, Self::Reload, Self::Config]
            .into_iter()
            .find(|ability| ability.name() == name)
    }

    /// Returns its name as in the JSON form.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Play => "play",
            Self::Command => "command",
            Self::Stats => "stats",
            Self::Reload => "reload",
            Self::Config => "config",
        }
    }
}

/// An empty object, which may get fields later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nothing {}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The id of the request.
    pub id: String,
    /// The result.
    #[serde(flatten)]
    pub result: Answered,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    /// It was done. The value is up to the yuno, and may be null.
    Ok(Value),
    /// It was not done.
    Error(Complaint),
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Complaint {
    /// The reason, for programs.
    pub code: String,
    /// The reason, for people.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

/// A line for a yuno.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToYuno {
    /// The answer to a hello.
    Welcome(Welcome),
    /// Start to play.
    Play(Request),
    /// Stop playing.
    Pause(Request),
    /// Run a command of its own.
    Command(Command),
    /// Send its statistics.
    Stats(Request),
    /// Read its configuration again.
    Reload(Request),
    /// Accept this configuration.
    Config(Config),
    /// The connection ends after this line.
    Refused(Refused),
}

/// What a yuno is told after authentication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Welcome {
    /// The unit's name.
    pub unit: String,
    /// The host's name.
    pub host: String,
    /// Its realm.
    pub realm: String,
    /// Whether it should play.
    pub playing: bool,
    /// The path of its configuration, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// A request without parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The id that its answer repeats.
    pub id: String,
}

/// A command of a yuno's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// The id that its answer repeats.
    pub id: String,
    /// The command's name.
    pub name: String,
    /// Its arguments.
    pub args: Map<String, Value>,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The id that its answer repeats.
    pub id: String,
    /// The whole configuration.
    pub config: Value,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// The reason, for people.
    pub why: String,
}

/// The last unsolicited statistics of a yuno, as its host reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToldStats {
    /// When it sent them, by the host's clock.
    pub at_ms: Millis,
    /// The values.
    pub values: BTreeMap<String, Value>,
    /// Whether there were more than fit into a report.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub and_more: bool,
}

/// The most bytes of names and values of a yuno's statistics in its report: what fits a screen, and a sixteenth of a
/// message.
pub const TOLD_STATS_MAX_BYTES: usize = 4_096;

impl ToldStats {
    /// Keeps as many as there is room for, by name.
    #[must_use]
    pub fn new(at_ms: Millis, values: BTreeMap<String, Value>) -> Self {
        let (mut room, mut told) = (TOLD_STATS_MAX_BYTES, Self { at_ms, values: BTreeMap::new(), and_more: false });
        for (name, value) in values {
            let needs = name.len() + value.to_string().len();
            match room.checked_sub(needs) {
                Some(left) => {
                    room = left;
                    told.values.insert(name, value);
                }
                None => told.and_more = true,
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check<T>(line: &T, json: Value)
    where
        T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_value(line).unwrap(), json);
        assert_eq!(serde_json::from_value::<T>(json).unwrap(), *line);
    }

    #[test]
    fn channel_lines_parse_and_print() {
        let hello = Hello { token: "t".into(), protocol: PROTOCOL, can: vec![Ability::Play], ready: false };
        check(
            &FromYuno::Hello(hello),
            json!({"hello": {"token": "t", "protocol": 1, "can": ["play"], "ready": false}}),
        );
        check(&FromYuno::Ready(Nothing {}), json!({"ready": {}}));
        check(&FromYuno::Status("well".into()), json!({"status": "well"}));
        let answer = |result| FromYuno::Answer(Answer { id: "1".into(), result });
        check(&answer(Answered::Ok(Value::Null)), json!({"answer": {"id": "1", "ok": null}}));
        let complaint = Complaint { code: "busy".into(), diagnostic: "later".into() };
        check(
            &answer(Answered::Error(complaint)),
            json!({"answer": {"id": "1", "error": {"code": "busy", "message": "later"}}}),
        );
        check(&ToYuno::Play(Request { id: "1".into() }), json!({"play": {"id": "1"}}));
        let command = Command { id: "1".into(), name: "level".into(), args: Map::new() };
        check(&ToYuno::Command(command), json!({"command": {"id": "1", "name": "level", "args": {}}}));
        for bad in
            [r#"{"answer":{"id":"1"}}"#, r#"{"answer":{"ok":1}}"#, r#"{"sing":{}}"#, r#"{"ready":{},"alive":{}}"#]
        {
            assert!(serde_json::from_str::<FromYuno>(bad).is_err(), "{bad}");
        }
        assert_eq!(Ability::named("stats"), Some(Ability::Stats));
        assert_eq!(Ability::named("sing"), None);
    }

    #[test]
    fn long_status_is_truncated() {
        let values = |count: usize| (0..count).map(|number| (format!("n{number:04}"), Value::from(number))).collect();
        let few = ToldStats::new(1, values(3));
        assert_eq!((few.values.len(), few.and_more), (3, false));
        let many = ToldStats::new(1, values(2_000));
        assert!(many.and_more && (100..2_000).contains(&many.values.len()), "{}", many.values.len());
    }
}
