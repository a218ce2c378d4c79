//! The documents in `topics/schema/`: a JSON Schema for each payload, and an AsyncAPI 3 document
//! that says which topic carries which. They are generated from the types of this crate by
//! `cargo run -p muster-topics --bin topics-schema`, and a test holds them true.

use std::collections::BTreeMap;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    ack::Ack,
    admission::{AdmissionAnswer, AdmissionReport},
    alert::Alert,
    channel::{FromYuno, ToYuno},
    command::{Command, Refresh},
    desired::{DesiredBody, DesiredHead, DocumentRequest, HandedIn},
    effective::Effective,
    envelope::Envelope,
    event::HostEvent,
    heartbeat::Heartbeat,
    join::{JoinRequest, Membership, Problem, RenewRequest},
    manifest::Manifest,
    name::UnitName,
    numbered::NumberedDocument,
    outcome::{Report, UnitAnswer},
    presence::{ConsolePresence, Presence},
    role::{Action, Role, Rule, rules},
    sealed::SealingKeyNotice,
    snapshot::{SnapshotDiff, Snapshots},
    topic::{Payload, Qos, TopicKind, TopicRow},
    unit::UnitReport,
};

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
        schema::<HostEvent>("HostEvent"),
        schema::<NumberedDocument>("NumberedDocument"),
        schema::<DesiredHead>("DesiredHead"),
        schema::<DesiredBody>("DesiredBody"),
        schema::<DocumentRequest>("DocumentRequest"),
        schema::<HandedIn>("HandedIn"),
        schema::<AdmissionReport>("AdmissionReport"),
        schema::<AdmissionAnswer>("AdmissionAnswer"),
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
    // Reserved topics have names and permissions, and no channel.
    for row in TopicKind::ALL.map(TopicKind::row).iter().filter(|row| row.payload != Payload::Reserved) {
        channels.insert(row.id.to_owned(), channel(row));
        let qos = match row.qos {
            Qos::AtMostOnce => 0,
            Qos::AtLeastOnce => 1,
        };
        operations.insert(
            format!("receive{}{}", row.id[..1].to_uppercase(), &row.id[1..]),
            json!({
                "action": "receive",
                "channel": { "$ref": format!("#/channels/{}", row.id) },
                "bindings": { "mqtt": { "qos": qos, "retain": row.retained } },
            }),
        );
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "muster",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0" },
            "description": "The messages of agents and consoles over MQTT 3.1.1. \
                            Topics have a configurable prefix, `muster` unless changed. The bindings name the \
                            quality at which each is published.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "x-permissions": permissions(),
    })
}

fn channel(row: &TopicRow) -> Value {
    let parameters: Map<_, _> = row
        .address
        .split('/')
        .filter_map(|level| level.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| (name.to_owned(), json!({})))
        .collect();
    let message = match row.payload {
        Payload::Json(schema) => json!({ "payload": { "$ref": format!("{schema}.json") } }),
        Payload::Lines | Payload::Reserved => json!({ "contentType": "text/plain", "payload": { "type": "string" } }),
    };
    let mut document = json!({
        "address": format!("muster/{}", row.address),
        "description": row.about,
        "messages": { row.id: message },
    });
    if !parameters.is_empty() {
        document["parameters"] = Value::Object(parameters);
    }
    document
}

fn permissions() -> Value {
    let line = |rule: &Rule| {
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
    rules().iter().map(line).collect()
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
    fn every_payload_has_its_schema() {
        let documents = documents();
        for row in TopicKind::ALL.map(TopicKind::row) {
            if let Payload::Json(schema) = row.payload {
                assert!(documents.iter().any(|(name, _)| *name == format!("{schema}.json")), "{schema}");
            }
        }
    }
}
