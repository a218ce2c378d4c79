//! The documents in `topics/schema/`: a JSON Schema for each payload, and an AsyncAPI 3 document
//! that says which topic carries which. They are generated from the types of this crate by
//! `cargo run -p muster-topics --bin topics-schema`, and a test holds them true.

use std::collections::BTreeMap;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    ack::Ack,
    alert::{Alert, AlertRules},
    channel::{FromYuno, ToYuno},
    command::{Command, Refresh},
    effective::Effective,
    envelope::Envelope,
    heartbeat::Heartbeat,
    join::{JoinRequest, Membership, Problem, RenewRequest},
    label::HostLabels,
    manifest::Manifest,
    name::UnitName,
    outcome::{Report, UnitAnswer},
    presence::{ConsolePresence, Presence},
    role::{Action, Role, TABLE},
    sealed::SealingKeyNotice,
    snapshot::{SnapshotDiff, Snapshots},
    topic::{Qos, Topic, TopicError},
    unit::UnitReport,
};

/// A channel of the AsyncAPI document.
struct Channel {
    /// Its key in the document.
    id: &'static str,
    /// The topic below the prefix, with parameters in braces.
    address: &'static str,
    /// The payload's schema file, where it is JSON.
    payload: Option<&'static str>,
    retained: bool,
    about: &'static str,
}

impl Channel {
    /// Returns a topic of this channel, of some host.
    fn topic(&self) -> Result<Topic, TopicError> {
        self.address
            .replace("{host}", "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52")
            .replace("{realm}", "default")
            .replace("{unit}", "hello")
            .replace("{label}", "site")
            .replace("{console}", "main")
            .replace("{alert}", "disk")
            .parse()
    }

    /// Returns the quality of service at which messages are published here; `None` if this is no topic.
    fn qos(&self) -> Option<u8> {
        self.topic().ok().map(|topic| match topic.qos() {
            Qos::AtMostOnce => 0,
            Qos::AtLeastOnce => 1,
        })
    }
}

/// The channels in use. Topics of [`crate::topic`] that are not listed are reserved: their names and permissions are
/// fixed, their payloads are not.
const CHANNELS: &[Channel] = &[
    Channel {
        id: "presence",
        address: "h/{host}/presence",
        payload: Some("Presence"),
        retained: true,
        about: "Whether the agent is there; also its last will.",
    },
    Channel {
        id: "heartbeat",
        address: "h/{host}/heartbeat",
        payload: Some("Heartbeat"),
        retained: false,
        about: "The host's state: whole on connect and on request, then what has changed. Repeated until acknowledged.",
    },
    Channel {
        id: "unit",
        address: "h/{host}/unit/{realm}/{unit}",
        payload: Some("UnitReport"),
        retained: true,
        about: "Desired and observed state of one unit, on change; an empty payload once the unit is gone.",
    },
    Channel {
        id: "alert",
        address: "h/{host}/alert/{alert}",
        payload: Some("Alert"),
        retained: true,
        about: "One alert: retained while it holds, then `cleared` until that is acknowledged, then an empty payload.",
    },
    Channel {
        id: "metric",
        address: "h/{host}/metric",
        payload: None,
        retained: false,
        about: "A batch of measurements in InfluxDB line protocol, times in milliseconds, by default packed with zlib and the dictionary \
                `metric-dictionary-1.txt`. \
                The first line is a comment, `# v=1 epoch=… seq=…`, and behind it tags of all lines that do not have them. \
                A packed batch leaves `host` to its topic. Repeated until acknowledged.",
    },
    Channel {
        id: "outcome",
        address: "h/{host}/outcome",
        payload: Some("Report"),
        retained: false,
        about: "Answers to commands. Output and the terminal answer are repeated until acknowledged.",
    },
    Channel {
        id: "command",
        address: "h/{host}/cmd",
        payload: Some("Envelope"),
        retained: false,
        about: "A signed Command, Refresh, AlertRules or HostLabels for one host. A command is repeated until there is an outcome, \
                rules and labels until a heartbeat says that the host has them.",
    },
    Channel {
        id: "commandAll",
        address: "cmd/all",
        payload: Some("Envelope"),
        retained: false,
        about: "A signed Command or Refresh for every host, or a Command for those that its select expression picks: \
                each host decides by its own state, and says nothing if it is none of them.",
    },
    Channel {
        id: "commandGroup",
        address: "cmd/group/{label}",
        payload: Some("Envelope"),
        retained: false,
        about: "A signed Command for the hosts that carry a label of this name, whatever its value; these subscribe to it.",
    },
    Channel {
        id: "ack",
        address: "h/{host}/ack",
        payload: Some("Envelope"),
        retained: false,
        about: "A signed Ack: what the console has safely stored.",
    },
    Channel {
        id: "consolePresence",
        address: "console/{console}/presence",
        payload: Some("ConsolePresence"),
        retained: true,
        about: "Whether a console is there; also its last will.",
    },
];

/// Returns every generated document: file name and content.
#[must_use]
pub fn documents() -> Vec<(String, String)> {
    let schemas = [
        schema::<Presence>("Presence"),
        schema::<ConsolePresence>("ConsolePresence"),
        schema::<Heartbeat>("Heartbeat"),
        schema::<UnitReport>("UnitReport"),
        schema::<Report>("Report"),
        schema::<Envelope>("Envelope"),
        schema::<Command>("Command"),
        schema::<Refresh>("Refresh"),
        schema::<Ack>("Ack"),
        schema::<Alert>("Alert"),
        schema::<AlertRules>("AlertRules"),
        schema::<HostLabels>("HostLabels"),
        schema::<Effective>("Effective"),
        schema::<Manifest>("Manifest"),
        schema::<Snapshots>("Snapshots"),
        schema::<SnapshotDiff>("SnapshotDiff"),
        schema::<JoinRequest>("JoinRequest"),
        schema::<SealingKeyNotice>("SealingKeyNotice"),
        schema::<RenewRequest>("RenewRequest"),
        schema::<Membership>("Membership"),
        schema::<Problem>("Problem"),
        schema::<FromYuno>("ChannelFromYuno"),
        schema::<ToYuno>("ChannelToYuno"),
        schema::<BTreeMap<UnitName, UnitAnswer>>("UnitAnswers"),
    ];
    schemas
        .into_iter()
        .map(|(name, schema)| (format!("{name}.json"), schema))
        .chain([("asyncapi.json".to_owned(), asyncapi())])
        .map(|(name, document)| (name, format!("{document:#}\n")))
        .collect()
}

fn schema<T: JsonSchema>(name: &str) -> (String, Value) {
    let generator = SchemaSettings::draft2020_12().into_generator();
    (name.to_owned(), generator.into_root_schema_for::<T>().to_value())
}

fn asyncapi() -> Value {
    let mut channels = Map::new();
    let mut operations = Map::new();
    for channel in CHANNELS {
        channels.insert(channel.id.to_owned(), channel_document(channel));
        operations.insert(
            format!("receive{}{}", channel.id[..1].to_uppercase(), &channel.id[1..]),
            json!({
                "action": "receive",
                "channel": { "$ref": format!("#/channels/{}", channel.id) },
                "bindings": { "mqtt": { "qos": channel.qos(), "retain": channel.retained } },
            }),
        );
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "muster",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0" },
            "description": "What agents and consoles say to each other over MQTT 3.1.1. Topics stand below a \
                            configurable prefix, `muster` unless changed. The bindings name the \
                            quality at which each is published.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "x-permissions": permissions(),
    })
}

fn channel_document(channel: &Channel) -> Value {
    let parameters: Map<_, _> = channel
        .address
        .split('/')
        .filter_map(|level| level.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| (name.to_owned(), json!({})))
        .collect();
    let message = match channel.payload {
        Some(payload) => json!({ "payload": { "$ref": format!("{payload}.json") } }),
        None => json!({ "contentType": "text/plain", "payload": { "type": "string" } }),
    };
    let mut document = json!({
        "address": format!("muster/{}", channel.address),
        "description": channel.about,
        "messages": { channel.id: message },
    });
    if !parameters.is_empty() {
        document["parameters"] = Value::Object(parameters);
    }
    document
}

fn permissions() -> Value {
    let line = |rule: &crate::role::Rule| {
        json!({
            "role": match rule.role {
                Role::Host => "host",
                Role::Console => "console",
                Role::Operator => "operator",
                Role::Observer => "observer",
            },
            "action": match rule.action {
                Action::Publish => "publish",
                Action::Subscribe => "subscribe",
            },
            "pattern": rule.pattern,
        })
    };
    TABLE.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_documents_are_current() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schema");
        for (name, document) in documents() {
            let committed = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
            assert!(
                committed == document,
                "topics/schema/{name} is not what the types say; run `cargo run -p muster-topics --bin topics-schema`"
            );
        }
    }

    #[test]
    fn every_channel_is_a_topic() {
        for channel in CHANNELS {
            assert!(channel.topic().is_ok(), "{}", channel.address);
        }
    }
}
