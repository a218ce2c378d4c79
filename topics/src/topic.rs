//! Every topic of the contract as a type that formats and parses, and the filters that the parties
//! subscribe to.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{HostId, Name, NameError, UnitName};

/// The prefix of every topic, `muster` by default: one or more [`Name`]s joined by `/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", inline)]
pub struct Prefix(String);

impl Prefix {
    /// Returns the prefix as text, without a trailing slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the full name of `topic` under this prefix.
    #[must_use]
    pub fn topic(&self, topic: &Topic) -> String {
        format!("{}/{topic}", self.0)
    }

    /// Returns the full form of `filter` under this prefix.
    #[must_use]
    pub fn filter(&self, filter: &Filter) -> String {
        format!("{}/{filter}", self.0)
    }

    /// Returns what follows the prefix, or `None` if `full` is not below it.
    #[must_use]
    pub fn strip<'a>(&self, full: &'a str) -> Option<&'a str> {
        full.strip_prefix(self.0.as_str())?.strip_prefix('/')
    }

    /// Parses a full topic name.
    ///
    /// # Errors
    /// If it is not below this prefix, or no topic of the contract.
    pub fn parse(&self, full: &str) -> Result<Topic, TopicError> {
        self.strip(full).ok_or_else(|| TopicError::Prefix { topic: full.chars().take(200).collect() })?.parse()
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("muster".to_owned())
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl TryFrom<String> for Prefix {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl FromStr for Prefix {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        for level in text.split('/') {
            level.parse::<Name>()?;
        }
        Ok(Self(text.to_owned()))
    }
}

/// Why a text is no topic of the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// It is outside the configured prefix.
    #[error("topic {topic:?} is not below the prefix")]
    Prefix {
        /// The topic, cut to 200 characters.
        topic: String,
    },
    /// No topic of the contract has this form.
    #[error("topic {topic:?} is not one of muster's")]
    Unknown {
        /// The topic, cut to 200 characters.
        topic: String,
    },
    /// A level is no valid id or name.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// A topic, below the prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `h/<host>/…`: of one host.
    Host(HostId, HostTopic),
    /// `cmd/all`: a command for every host.
    CommandAll,
    /// `cmd/group/<label>`: a command for the hosts with a label of this name.
    CommandGroup(Name),
    /// `console/<id>/presence`: whether a console is online.
    ConsolePresence(Name),
}

/// What follows `h/<host>/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostTopic {
    /// Online, offline or stopped; retained, and the agent's last will.
    Presence,
    /// The host's state, or its changes since the last heartbeat.
    Heartbeat,
    /// `unit/<realm>/<unit>`: observed state of one unit; retained.
    Unit(UnitName),
    /// `alert/<id>`: one active alert; retained until cleared.
    Alert(Name),
    /// A batch of measurements.
    Metric,
    /// An event.
    Event,
    /// `log/<realm>/<unit>`: log lines, on request.
    Log(UnitName),
    /// Answers to commands.
    Outcome,
    /// The question "may I roll this out now?"
    Admission,
    /// The console's answer to that.
    AdmissionAnswer,
    /// Signed desired state of the central units; retained.
    Desired,
    /// A signed command for this host.
    Command,
    /// What the console has stored, so that it leaves the outbox.
    Ack,
}

/// The quality of service of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// QoS 0: delivered at most once.
    AtMostOnce,
    /// QoS 1: delivered at least once, with an acknowledgement.
    AtLeastOnce,
}

impl Topic {
    /// Returns the quality of service at which messages are published here.
    ///
    /// Lost answers, acknowledgements and broadcasts are repeated by a protocol above MQTT. A broker's own
    /// acknowledgement would promise nothing that counts, and costs ten thousand packets for each of the three when ten
    /// thousand hosts are sent a command and answer (`topics/decisions/0023`, 0045 and 0048). Other topics are repeated
    /// by nobody, or may have other readers, with stored sessions.
    #[must_use]
    pub fn qos(&self) -> Qos {
        match self {
            Self::Host(_, HostTopic::Outcome | HostTopic::Ack) | Self::CommandAll | Self::CommandGroup(_) => {
                Qos::AtMostOnce
            }
            Self::Host(..) | Self::ConsolePresence(_) => Qos::AtLeastOnce,
        }
    }

    /// Returns the host of this topic.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        match self {
            Self::Host(host, _) => Some(*host),
            Self::CommandAll | Self::CommandGroup(_) | Self::ConsolePresence(_) => None,
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host, topic) => write!(f, "h/{host}/{topic}"),
            Self::CommandAll => f.write_str("cmd/all"),
            Self::CommandGroup(label) => write!(f, "cmd/group/{label}"),
            Self::ConsolePresence(id) => write!(f, "console/{id}/presence"),
        }
    }
}

impl fmt::Display for HostTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Presence => f.write_str("presence"),
            Self::Heartbeat => f.write_str("heartbeat"),
            Self::Unit(unit) => write!(f, "unit/{unit}"),
            Self::Alert(id) => write!(f, "alert/{id}"),
            Self::Metric => f.write_str("metric"),
            Self::Event => f.write_str("event"),
            Self::Log(unit) => write!(f, "log/{unit}"),
            Self::Outcome => f.write_str("outcome"),
            Self::Admission => f.write_str("admission"),
            Self::AdmissionAnswer => f.write_str("admission/answer"),
            Self::Desired => f.write_str("desired"),
            Self::Command => f.write_str("cmd"),
            Self::Ack => f.write_str("ack"),
        }
    }
}

impl FromStr for Topic {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        let levels: Vec<&str> = text.splitn(6, '/').collect();
        Ok(match levels[..] {
            ["h", host, ref rest @ ..] => Self::Host(host.parse()?, host_topic(text, rest)?),
            ["cmd", "all"] => Self::CommandAll,
            ["cmd", "group", label] => Self::CommandGroup(label.parse()?),
            ["console", id, "presence"] => Self::ConsolePresence(id.parse()?),
            _ => return Err(unknown(text)),
        })
    }
}

fn host_topic(text: &str, levels: &[&str]) -> Result<HostTopic, TopicError> {
    let unit = |realm: &str, name: &str| format!("{realm}/{name}").parse::<UnitName>();
    Ok(match levels[..] {
        ["presence"] => HostTopic::Presence,
        ["heartbeat"] => HostTopic::Heartbeat,
        ["unit", realm, name] => HostTopic::Unit(unit(realm, name)?),
        ["alert", id] => HostTopic::Alert(id.parse()?),
        ["metric"] => HostTopic::Metric,
        ["event"] => HostTopic::Event,
        ["log", realm, name] => HostTopic::Log(unit(realm, name)?),
        ["outcome"] => HostTopic::Outcome,
        ["admission"] => HostTopic::Admission,
        ["admission", "answer"] => HostTopic::AdmissionAnswer,
        ["desired"] => HostTopic::Desired,
        ["cmd"] => HostTopic::Command,
        ["ack"] => HostTopic::Ack,
        _ => return Err(unknown(text)),
    })
}

fn unknown(text: &str) -> TopicError {
    TopicError::Unknown { topic: text.chars().take(200).collect() }
}

/// A subscription, below the prefix: a topic, or one of the console's wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Exactly one topic.
    Topic(Topic),
    /// `h/+/<kind>`: one kind of topic, of every host.
    EveryHost(HostTopicKind),
}

/// The kinds of topics that a console reads from every host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostTopicKind {
    /// [`HostTopic::Presence`]
    Presence,
    /// [`HostTopic::Heartbeat`]
    Heartbeat,
    /// [`HostTopic::Unit`]
    Unit,
    /// [`HostTopic::Metric`]
    Metric,
    /// [`HostTopic::Outcome`]
    Outcome,
    /// [`HostTopic::Alert`]
    Alert,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => topic.fmt(f),
            Self::EveryHost(kind) => f.write_str(match kind {
                HostTopicKind::Presence => "h/+/presence",
                HostTopicKind::Heartbeat => "h/+/heartbeat",
                HostTopicKind::Unit => "h/+/unit/+/+",
                HostTopicKind::Metric => "h/+/metric",
                HostTopicKind::Outcome => "h/+/outcome",
                HostTopicKind::Alert => "h/+/alert/+",
            }),
        }
    }
}

impl HostTopicKind {
    /// Whether a host repeats what it publishes here until the console has acknowledged it. Then losses in a broker do
    /// no harm, and a console need not subscribe with QoS 1, which costs a broker more and makes some of them drop
    /// messages when many hosts publish at once (see `topics/decisions/0023`).
    #[must_use]
    pub fn is_repeated(self) -> bool {
        match self {
            Self::Heartbeat | Self::Metric | Self::Outcome | Self::Alert => true,
            Self::Presence | Self::Unit => false,
        }
    }
}

impl Filter {
    /// Returns the subscriptions of an agent whose host has these labels.
    #[must_use]
    pub fn of_agent<'a>(host: HostId, labels: impl IntoIterator<Item = &'a Name>) -> Vec<Self> {
        let own = [HostTopic::Presence, HostTopic::Command, HostTopic::Ack];
        let own = own.into_iter().map(|topic| Topic::Host(host, topic));
        let groups = labels.into_iter().cloned().map(Topic::CommandGroup);
        own.chain([Topic::CommandAll]).chain(groups).map(Self::Topic).collect()
    }

    /// Returns the subscriptions of a console. They are few and stable: some brokers keep a log for each.
    #[must_use]
    pub fn of_console() -> Vec<Self> {
        use HostTopicKind::{Alert, Heartbeat, Metric, Outcome, Presence, Unit};
        [Presence, Heartbeat, Unit, Outcome, Metric, Alert].into_iter().map(Self::EveryHost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Name> {
        "[a-z0-9][a-z0-9_-]{0,62}".prop_map(|text| text.parse().unwrap())
    }

    fn unit() -> impl Strategy<Value = UnitName> {
        (name(), name()).prop_map(|(realm, name)| UnitName::new(&realm, &name))
    }

    fn host_topics() -> impl Strategy<Value = HostTopic> {
        prop_oneof![
            Just(HostTopic::Presence),
            Just(HostTopic::Heartbeat),
            unit().prop_map(HostTopic::Unit),
            name().prop_map(HostTopic::Alert),
            Just(HostTopic::Metric),
            Just(HostTopic::Event),
            unit().prop_map(HostTopic::Log),
            Just(HostTopic::Outcome),
            Just(HostTopic::Admission),
            Just(HostTopic::AdmissionAnswer),
            Just(HostTopic::Desired),
            Just(HostTopic::Command),
            Just(HostTopic::Ack),
        ]
    }

    fn topics() -> impl Strategy<Value = Topic> {
        prop_oneof![
            (any::<u128>(), host_topics())
                .prop_map(|(id, topic)| Topic::Host(HostId(uuid::Uuid::from_u128(id)), topic)),
            Just(Topic::CommandAll),
            name().prop_map(Topic::CommandGroup),
            name().prop_map(Topic::ConsolePresence),
        ]
    }

    proptest! {
        #[test]
        fn formatted_topic_parses_to_the_same(topic in topics(), prefix in "[a-z]{1,5}(/[a-z]{1,5}){0,2}") {
            let prefix: Prefix = prefix.parse().unwrap();
            prop_assert_eq!(prefix.parse(&prefix.topic(&topic)), Ok(topic));
        }

        #[test]
        fn parsed_topic_formats_to_the_same(text in "(h|cmd|console|muster)?/?[a-z0-9#+/$.é-]{0,60}") {
            if let Ok(topic) = text.parse::<Topic>() {
                prop_assert_eq!(topic.to_string(), text);
            }
        }
    }

    #[test]
    fn foreign_topics_are_refused() {
        let host = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
        let prefix = Prefix::default();
        for text in [
            "muster",
            "muster/",
            "musterx/cmd/all",
            "muster/cmd/all/",
            "muster/cmd//all",
            &format!("muster/h/{host}"),
            &format!("muster/h/{host}/"),
            &format!("muster/h/{host}/unit/a/b/c"),
            &format!("muster/h/{host}/unit/../b"),
            &format!("muster/h/{}/presence", host.to_uppercase()),
            "muster/h/+/presence",
        ] {
            assert!(prefix.parse(text).is_err(), "{text} should be refused");
        }
    }
}
