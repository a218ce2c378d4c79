//! Hosts, and expressions that select them.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{Fact, Field, SELECT_MAX_BYTES, Select, Subject, Unit};
use crate::{
    heartbeat::{Facts, HostState},
    name::{HostId, Name},
};

/// A selector of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSelect(pub(super) Select);

impl HostSelect {
    /// Whether it matches a host.
    #[must_use]
    pub fn picks(&self, host: &Host<'_>) -> bool {
        self.0.picks(host)
    }

    /// Whether it refers to hosts' units. If not, [`Host::units`] is not used.
    #[must_use]
    pub fn asks_units(&self) -> bool {
        self.0.asks_units()
    }

    /// Whether only hosts with certain labels, or of certain ids, can match, whatever they report beside their labels.
    #[must_use]
    pub fn requires_label(&self) -> bool {
        self.0.without_labels() == Some(false)
    }
}

/// A host, as selectors see it.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its id.
    pub host: HostId,
    /// Its hostname.
    pub hostname: &'a str,
    /// The version of its agent; empty if unknown.
    pub agent_version: &'a str,
    /// Its facts, if known.
    pub facts: Option<&'a Facts>,
    /// Its labels.
    pub labels: &'a BTreeMap<Name, String>,
    /// Its realms.
    pub realms: &'a [Name],
    /// Its units.
    pub units: &'a [Unit<'a>],
}

impl<'a> Host<'a> {
    /// Creates it from a host's reported state. Its units come separately, because the state has only their summaries.
    #[must_use]
    pub fn of(host: HostId, state: &'a HostState, units: &'a [Unit<'a>]) -> Self {
        Self {
            host,
            hostname: &state.hostname,
            agent_version: &state.agent_version,
            facts: Some(&state.facts),
            labels: &state.labels,
            realms: &state.realms,
            units,
        }
    }
}

impl Subject for Host<'_> {
    fn values(&self, field: &Field) -> Vec<Cow<'_, str>> {
        match field {
            Field::Host => vec![self.host.to_string().into(), self.hostname.into()],
            Field::Realm => self.realms.iter().map(|realm| realm.as_str().into()).collect(),
            Field::Label(name) => self.labels.get(name).map(|value| value.as_str().into()).into_iter().collect(),
            Field::Fact(Fact::AgentVersion) if self.agent_version.is_empty() => Vec::new(),
            Field::Fact(Fact::AgentVersion) => vec![self.agent_version.into()],
            Field::Fact(fact) => self.facts.map(|facts| value(facts, *fact)).into_iter().collect(),
            Field::Id
            | Field::Name
            | Field::Role
            | Field::Version
            | Field::WantedVersion
            | Field::Kind
            | Field::Phase => Vec::new(),
        }
    }

    fn has_unit(&self, wanted: &Select) -> bool {
        self.units.iter().any(|unit| wanted.picks(unit))
    }
}

fn value(facts: &Facts, fact: Fact) -> Cow<'_, str> {
    match fact {
        Fact::Os => facts.os.as_str().into(),
        Fact::Kernel => facts.kernel.as_str().into(),
        Fact::Arch => facts.arch.as_str().into(),
        Fact::Cpus => facts.cpus.to_string().into(),
        Fact::CpuModel => facts.cpu_model.as_str().into(),
        Fact::MemoryBytes => facts.memory_bytes.to_string().into(),
        // It is not a fact of the machine.
        Fact::AgentVersion => "".into(),
    }
}

impl fmt::Display for HostSelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for HostSelect {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostSelect {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for HostSelect {
    fn schema_name() -> Cow<'static, str> {
        "HostSelect".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": SELECT_MAX_BYTES,
            "description": "An expression that picks hosts: fields host (id or hostname), realm, label.NAME and fact.os, \
                            fact.kernel, fact.arch, fact.cpus, fact.cpu_model, fact.memory_bytes, fact.agent_version; \
                            = and != with * and ? in values, < <= > >= for numbers (8G is 8 x 2^30) and versions; \
                            unit(EXPRESSION) for hosts that have a unit which the expression picks (fields host, id, \
                            realm, name, role, version, wanted.version, kind, phase and label.NAME), unit.FIELD=VALUE for unit(FIELD=VALUE) \
                            and unit=REALM/NAME for unit(id=REALM/NAME); and, or, not, parentheses.",
            "examples": ["label.site=north and fact.memory_bytes>=8G and unit(role=web and phase=failed)"]
        })
    }
}
