//! Every topic of the contract as a type that formats and parses, and the filters that the parties
//! subscribe to. The addresses, and what else is to be known of each topic, stand in one table ([`TopicKind::row`]).

mod table;

use std::{
    fmt::{self, Display as _},
    str::FromStr,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::table::is_parameter;
pub use self::table::{HostReads, Payload, TopicKind, TopicRow};
use crate::{
    name::{HostId, Name, NameError, UnitName},
    role::Role,
    slot::Slot,
};

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
    /// The slot is not that of the host.
    #[error("host {host} is of slot {}, and its topic names slot {found}", host.slot())]
    Slot {
        /// The host.
        host: HostId,
        /// The slot in the topic.
        found: Slot,
    },
}

/// A topic, below the prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `s/<slot>/h/<host>/…`: of one host, below its slot.
    Host(HostId, HostTopic),
    /// `s/<slot>/cmd/all`: a command for every host of the slot.
    CommandAll(Slot),
    /// `s/<slot>/cmd/group/<label>`: a command for the hosts of the slot with a label of this name.
    CommandGroup(Slot, Name),
    /// `console/<id>/presence`: whether a console is online.
    ConsolePresence(Name),
}

/// Hosts that read one message together: it is published once for each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// Every host.
    All,
    /// The hosts with a label of this name.
    Group(Name),
}

impl Broadcast {
    /// Returns the topic of its readers of this slot.
    #[must_use]
    pub fn topic(&self, slot: Slot) -> Topic {
        match self {
            Self::All => Topic::CommandAll(slot),
            Self::Group(label) => Topic::CommandGroup(slot, label.clone()),
        }
    }
}

/// What follows `s/<slot>/h/<host>/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostTopic {
    /// Online, offline or stopped; also the last will.
    Presence,
    /// The host's state, or its changes since the last heartbeat.
    Heartbeat,
    /// `unit/<realm>/<unit>`: observed state of one unit.
    Unit(UnitName),
    /// `alert/<id>`: one active alert.
    Alert(Name),
    /// A batch of measurements.
    Metric,
    /// An event.
    Event,
    /// Answers to commands.
    Outcome,
    /// The question "may I roll this out now?"
    Admission,
    /// The console's answer to that.
    AdmissionAnswer,
    /// `stream/<stream>`: frames of a stream, from the host.
    Stream(Name),
    /// `stream/<stream>/input`: frames of a stream, to the host.
    StreamInput(Name),
    /// Signed desired state of the central units.
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
    /// Returns its row of the table.
    #[must_use]
    pub fn row(&self) -> TopicRow {
        self.kind().row()
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> TopicKind {
        match self {
            Self::Host(_, topic) => topic.kind(),
            Self::CommandAll(_) => TopicKind::CommandAll,
            Self::CommandGroup(..) => TopicKind::CommandGroup,
            Self::ConsolePresence(_) => TopicKind::ConsolePresence,
        }
    }

    /// Creates the topic of this kind, with the values of its address's parameters.
    fn new(kind: TopicKind, values: &[(&str, &str)]) -> Result<Self, TopicError> {
        let value = |name: &str| values.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| *value);
        let unit = || format!("{}/{}", value("{realm}"), value("{unit}")).parse::<UnitName>();
        let topic = match kind {
            TopicKind::Presence => HostTopic::Presence,
            TopicKind::Heartbeat => HostTopic::Heartbeat,
            TopicKind::Unit => HostTopic::Unit(unit()?),
            TopicKind::Alert => HostTopic::Alert(value("{alert}").parse()?),
            TopicKind::Metric => HostTopic::Metric,
            TopicKind::Event => HostTopic::Event,
            TopicKind::Outcome => HostTopic::Outcome,
            TopicKind::Admission => HostTopic::Admission,
            TopicKind::AdmissionAnswer => HostTopic::AdmissionAnswer,
            TopicKind::Stream => HostTopic::Stream(value("{stream}").parse()?),
            TopicKind::StreamInput => HostTopic::StreamInput(value("{stream}").parse()?),
            TopicKind::Desired => HostTopic::Desired,
            TopicKind::Command => HostTopic::Command,
            TopicKind::Ack => HostTopic::Ack,
            TopicKind::CommandAll => return Ok(Self::CommandAll(value("{slot}").parse()?)),
            TopicKind::CommandGroup => {
                return Ok(Self::CommandGroup(value("{slot}").parse()?, value("{label}").parse()?));
            }
            TopicKind::ConsolePresence => return Ok(Self::ConsolePresence(value("{console}").parse()?)),
        };
        let (host, found): (HostId, Slot) = (value("{host}").parse()?, value("{slot}").parse()?);
        if found == host.slot() { Ok(Self::Host(host, topic)) } else { Err(TopicError::Slot { host, found }) }
    }

    /// Writes its value of a parameter of its address.
    fn write_value(&self, parameter: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (parameter, self) {
            ("{slot}", Self::Host(host, _)) => host.slot().fmt(f),
            ("{slot}", Self::CommandAll(slot) | Self::CommandGroup(slot, _)) => slot.fmt(f),
            ("{host}", Self::Host(host, _)) => host.fmt(f),
            ("{realm}", Self::Host(_, HostTopic::Unit(unit))) => unit.realm().fmt(f),
            ("{unit}", Self::Host(_, HostTopic::Unit(unit))) => unit.name().fmt(f),
            ("{stream}", Self::Host(_, HostTopic::Stream(id) | HostTopic::StreamInput(id))) => id.fmt(f),
            ("{alert}", Self::Host(_, HostTopic::Alert(id))) => id.fmt(f),
            ("{label}", Self::CommandGroup(_, label)) => label.fmt(f),
            ("{console}", Self::ConsolePresence(id)) => id.fmt(f),
            // A test formats a topic of each row.
            _ => Err(fmt::Error),
        }
    }

    /// Returns the host of this topic.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        match self {
            Self::Host(host, _) => Some(*host),
            Self::CommandAll(_) | Self::CommandGroup(..) | Self::ConsolePresence(_) => None,
        }
    }
}

impl HostTopic {
    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> TopicKind {
        match self {
            Self::Presence => TopicKind::Presence,
            Self::Heartbeat => TopicKind::Heartbeat,
            Self::Unit(_) => TopicKind::Unit,
            Self::Alert(_) => TopicKind::Alert,
            Self::Metric => TopicKind::Metric,
            Self::Event => TopicKind::Event,
            Self::Outcome => TopicKind::Outcome,
            Self::Admission => TopicKind::Admission,
            Self::AdmissionAnswer => TopicKind::AdmissionAnswer,
            Self::Stream(_) => TopicKind::Stream,
            Self::StreamInput(_) => TopicKind::StreamInput,
            Self::Desired => TopicKind::Desired,
            Self::Command => TopicKind::Command,
            Self::Ack => TopicKind::Ack,
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(self.row().address, f, |parameter, f| self.write_value(parameter, f))
    }
}

/// Writes an address, each parameter by `value`.
fn write_address(
    address: &str,
    f: &mut fmt::Formatter<'_>,
    value: impl Fn(&str, &mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    for (index, level) in address.split('/').enumerate() {
        if index > 0 {
            f.write_str("/")?;
        }
        if is_parameter(level) {
            value(level, f)?;
        } else {
            f.write_str(level)?;
        }
    }
    Ok(())
}

impl FromStr for Topic {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        let Some(kind) = TopicKind::ALL.into_iter().find(|kind| kind.row().fits(text)) else {
            return Err(TopicError::Unknown { topic: text.chars().take(200).collect() });
        };
        Self::new(kind, &kind.row().values(text))
    }
}

/// A subscription, below the prefix: a topic, or one of the console's wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Exactly one topic.
    Topic(Topic),
    /// One kind of topic, of every host.
    EveryHost(TopicKind),
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => topic.fmt(f),
            Self::EveryHost(kind) => write_address(kind.row().address, f, |_, f| f.write_str("+")),
        }
    }
}

impl Filter {
    /// Returns the subscriptions of an agent whose host has these labels.
    #[must_use]
    pub fn of_agent<'a>(host: HostId, labels: impl IntoIterator<Item = &'a Name>) -> Vec<Self> {
        let (slot, host, labels) =
            (host.slot().to_string(), host.to_string(), labels.into_iter().map(Name::as_str).collect::<Vec<_>>());
        let read = TopicKind::ALL.into_iter().filter(|kind| kind.row().hosts == HostReads::Subscribe);
        let topics = |kind: TopicKind| {
            // A topic of labels is one for each; others are read once.
            let each = if kind.row().has("{label}") { labels.as_slice() } else { &[""] };
            each.iter()
                .map(|label| Topic::new(kind, &[("{slot}", &slot), ("{host}", &host), ("{label}", label)]))
                .collect::<Vec<_>>()
        };
        // Ids and names parse again.
        read.flat_map(topics).filter_map(Result::ok).map(Self::Topic).collect()
    }

    /// Returns the subscriptions of a console. They are few and stable: some brokers keep a log for each.
    #[must_use]
    pub fn of_console() -> Vec<Self> {
        let is_read = |kind: &TopicKind| {
            let row = kind.row();
            row.publisher == Role::Host && row.payload != Payload::Reserved
        };
        TopicKind::ALL.into_iter().filter(is_read).map(Self::EveryHost).collect()
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
            Just(HostTopic::Outcome),
            Just(HostTopic::Admission),
            Just(HostTopic::AdmissionAnswer),
            name().prop_map(HostTopic::Stream),
            name().prop_map(HostTopic::StreamInput),
            Just(HostTopic::Desired),
            Just(HostTopic::Command),
            Just(HostTopic::Ack),
        ]
    }

    fn topics() -> impl Strategy<Value = Topic> {
        prop_oneof![
            (any::<u128>(), host_topics())
                .prop_map(|(id, topic)| Topic::Host(HostId(uuid::Uuid::from_u128(id)), topic)),
            any::<u8>().prop_map(|slot| Topic::CommandAll(Slot(slot))),
            (any::<u8>(), name()).prop_map(|(slot, label)| Topic::CommandGroup(Slot(slot), label)),
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
        fn parsed_topic_formats_to_the_same(text in "(s/[0-9a-f]{2}/h|s/[0-9a-f]{2}/cmd|console|muster)?/?[a-z0-9#+/$.é-]{0,60}") {
            if let Ok(topic) = text.parse::<Topic>() {
                prop_assert_eq!(topic.to_string(), text);
            }
        }
    }

    #[test]
    fn every_row_has_its_topic() {
        let host = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
        for kind in TopicKind::ALL {
            let row = kind.row();
            let values = [
                ("{slot}", "00"),
                ("{host}", host),
                ("{realm}", "default"),
                ("{unit}", "hello"),
                ("{label}", "site"),
                ("{console}", "main"),
                ("{alert}", "disk"),
                ("{stream}", "shell-1"),
            ];
            let text = values.iter().fold(row.address.to_owned(), |text, (name, value)| text.replace(name, value));
            let topic: Topic = text.parse().unwrap();
            assert_eq!((topic.kind(), topic.to_string()), (kind, text));
        }
    }

    #[test]
    fn subscriptions_are_made_from_the_table() {
        let text = |filters: Vec<Filter>| filters.iter().map(ToString::to_string).collect::<Vec<_>>();
        let host = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
        let own = |topic| format!("s/00/h/{host}/{topic}");
        assert_eq!(
            text(Filter::of_agent(host.parse().unwrap(), &["site".parse().unwrap()])),
            [
                own("presence"),
                own("desired"),
                own("cmd"),
                own("ack"),
                own("admission/answer"),
                "s/00/cmd/all".to_owned(),
                "s/00/cmd/group/site".to_owned()
            ]
        );
        assert_eq!(
            text(Filter::of_console()),
            [
                "s/+/h/+/presence",
                "s/+/h/+/heartbeat",
                "s/+/h/+/unit/+/+",
                "s/+/h/+/alert/+",
                "s/+/h/+/metric",
                "s/+/h/+/event",
                "s/+/h/+/outcome",
                "s/+/h/+/admission"
            ]
        );
    }

    #[test]
    fn host_below_another_slot_is_refused_by_name() {
        let refused = "s/01/h/0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52/presence".parse::<Topic>().unwrap_err();
        let wanted = "host 0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52 is of slot 00, and its topic names slot 01";
        assert_eq!(refused.to_string(), wanted);
    }

    #[test]
    fn foreign_topics_are_refused() {
        let host = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
        let prefix = Prefix::default();
        for text in [
            "muster",
            "muster/",
            "muster/cmd/all",
            "musterx/s/00/cmd/all",
            "muster/s/00/cmd/all/",
            "muster/s/00/cmd//all",
            "muster/s/0/cmd/all",
            "muster/s/0G/cmd/all",
            &format!("muster/s/00/h/{host}"),
            &format!("muster/s/00/h/{host}/"),
            &format!("muster/s/00/h/{host}/unit/a/b/c"),
            &format!("muster/s/00/h/{host}/unit/../b"),
            &format!("muster/s/00/h/{}/presence", host.to_uppercase()),
            &format!("muster/h/{host}/presence"),
            "muster/s/00/h/+/presence",
        ] {
            assert!(prefix.parse(text).is_err(), "{text} should be refused");
        }
    }
}
