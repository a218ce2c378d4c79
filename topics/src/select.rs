//! Selectors: expressions that pick units, as `realm=prod and role=web and not label.tier=gold`, or hosts, as
//! `label.site=north and fact.memory_bytes>=8G and unit(role=web and phase=failed)`.
//!
//! ```text
//! select = both { "or" both }
//! both   = not { "and" not }
//! not    = "not" not | "(" select ")" | test
//! test   = field "=" value | field "!=" value | field order value | "label." NAME
//! order  = "<" | "<=" | ">" | ">="
//! value  = letters, digits and . _ - + / : @ * ?   or anything in "double quotes", with \" and \\
//! ```
//!
//! What a field can be depends on what is picked:
//!
//! ```text
//! field of a unit = "host" | "id" | "realm" | "name" | "role" | "version" | "wanted.version" | "kind" | "phase" | "label." NAME
//! field of a host = "host" | "realm" | "label." NAME | "fact." fact
//! fact            = "os" | "kernel" | "arch" | "cpus" | "cpu_model" | "memory_bytes" | "agent_version"
//! test of a host  = as above | "unit(" select of a unit ")"
//!                 | "unit" ( "=" | "!=" ) value | "unit." test of a unit
//! ```
//!
//! In a value `*` stands for any text and `?` for one character: `version=1.*`. `host` is a host's id or its
//! hostname, `realm` each of those that a host carries, or a unit's own; `label` is the host's or the unit's own;
//! `id` is a unit's full name (`realm/name`). `a!=b` is `not a=b`; a label alone asks whether there is one.
//!
//! `fact.cpus` and `fact.memory_bytes` are numbers, and so are labels where they are compared: `8G` is 8 × 2³⁰, and a
//! label that is no number is neither more nor less than any. `version` is that of what a unit runs, or has installed: of one that went
//! back it is the earlier one, and of one of which there is nothing yet the one that is wanted; `wanted.version` is always that.
//! Both, `fact.kernel` and `fact.agent_version` are
//! compared as versions, number by number: `1.10` is more than `1.9`, and what stands behind the numbers does not
//! count. Other fields are text, which is not compared.
//!
//! `unit(…)` picks hosts that have a unit which what stands inside picks: all of it holds for one and the same unit.
//! `unit.phase=failed` is short for `unit(phase=failed)`, and `unit=shop/till` for `unit(id=shop/till)`; with `!=`
//! they are the opposite, as everywhere: no unit of the host is so.
//!
//! **Invariant: what was parsed prints as a text that parses to the same.**
//!
//! Modules: `host` (hosts), `parse` (the grammar), `value` (what values are like).

mod host;
mod parse;
mod value;

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use self::{
    host::{Host, HostSelect},
    parse::SelectError,
};
use crate::{
    name::{HostId, Name, UnitName},
    unit::{ArtifactRef, Content, Phase, Spec},
};

/// The longest selector, in bytes: more than anybody types, and a small part of a message.
pub const SELECT_MAX_BYTES: usize = 1_000;

/// How deep parentheses, `not` and `unit(…)` may be nested: deeper than anybody reads, and less than a stack can hold.
const DEPTH_MAX: usize = 32;

/// A selector of units; within a [`HostSelect`], of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Either matches.
    Or(Box<Self>, Box<Self>),
    /// Both match.
    And(Box<Self>, Box<Self>),
    /// It does not match.
    Not(Box<Self>),
    /// A field has a value like this.
    Is(Field, String),
    /// A field has no value like this.
    IsNot(Field, String),
    /// A field has a value that is less or more than this.
    Compares(Field, Order, String),
    /// There is a label of this name.
    Has(Name),
    /// The host has a unit that this matches.
    Unit(Box<Self>),
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// The id and the hostname of a host, or of a unit's host.
    Host,
    /// A unit's full name.
    Id,
    /// A unit's realm, or the realms of a host.
    Realm,
    /// A unit's name within the realm.
    Name,
    /// The role of a unit's artifact.
    Role,
    /// The version that a unit runs, or has installed.
    Version,
    /// The version in a unit's spec.
    WantedVersion,
    /// A unit's kind.
    Kind,
    /// A unit's phase.
    Phase,
    /// A label.
    Label(Name),
    /// A property of a host's machine.
    Fact(Fact),
}

/// A fact of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Name and version of the distribution.
    Os,
    /// Release of the kernel.
    Kernel,
    /// Architecture.
    Arch,
    /// Logical processors.
    Cpus,
    /// The processor's model.
    CpuModel,
    /// Physical memory.
    MemoryBytes,
    /// The agent's version.
    AgentVersion,
}

impl Fact {
    /// All facts.
    const ALL: [Self; 7] =
        [Self::Os, Self::Kernel, Self::Arch, Self::Cpus, Self::CpuModel, Self::MemoryBytes, Self::AgentVersion];

    /// Returns its name, as in a heartbeat.
    fn name(self) -> &'static str {
        match self {
            Self::Os => "os",
            Self::Kernel => "kernel",
            Self::Arch => "arch",
            Self::Cpus => "cpus",
            Self::CpuModel => "cpu_model",
            Self::MemoryBytes => "memory_bytes",
            Self::AgentVersion => "agent_version",
        }
    }
}

/// What a selector is evaluated on.
trait Subject {
    /// Returns the values of a field; some have several, or none.
    fn values(&self, field: &Field) -> Vec<Cow<'_, str>>;

    /// Whether it has a unit that this matches.
    fn has_unit(&self, wanted: &Select) -> bool;
}

impl Select {
    /// Whether it matches a unit.
    #[must_use]
    pub fn picks_unit(&self, unit: &Unit<'_>) -> bool {
        self.picks(unit)
    }

    fn picks(&self, of: &dyn Subject) -> bool {
        let has = |field: &Field, wanted: &String| of.values(field).iter().any(|found| value::is(field, wanted, found));
        match self {
            Self::Or(left, right) => left.picks(of) || right.picks(of),
            Self::And(left, right) => left.picks(of) && right.picks(of),
            Self::Not(inner) => !inner.picks(of),
            Self::Is(field, wanted) => has(field, wanted),
            Self::IsNot(field, wanted) => !has(field, wanted),
            Self::Compares(field, order, wanted) => {
                of.values(field).iter().any(|found| value::compares(field, *order, wanted, found))
            }
            Self::Has(label) => !of.values(&Field::Label(label.clone())).is_empty(),
            Self::Unit(wanted) => of.has_unit(wanted),
        }
    }

    /// Whether it matches a host without any label, of whose hostname, facts, realms and units nothing is known; `None` if
    /// that depends on these.
    fn without_labels(&self) -> Option<bool> {
        // No id is like a name without wildcards, but for the one that it spells out.
        let is_exact = |wanted: &String| !wanted.contains(['*', '?']);
        match self {
            Self::Or(left, right) => match (left.without_labels(), right.without_labels()) {
                (Some(false), Some(false)) => Some(false),
                (Some(true), _) | (_, Some(true)) => Some(true),
                _ => None,
            },
            Self::And(left, right) => match (left.without_labels(), right.without_labels()) {
                (Some(true), Some(true)) => Some(true),
                (Some(false), _) | (_, Some(false)) => Some(false),
                _ => None,
            },
            Self::Not(inner) => inner.without_labels().map(|matches| !matches),
            Self::Is(Field::Label(_), _) | Self::Compares(Field::Label(_), ..) | Self::Has(_) => Some(false),
            Self::IsNot(Field::Label(_), _) => Some(true),
            Self::Is(Field::Host, wanted) => is_exact(wanted).then_some(false),
            Self::IsNot(Field::Host, wanted) => is_exact(wanted).then_some(true),
            Self::Is(..) | Self::IsNot(..) | Self::Compares(..) | Self::Unit(_) => None,
        }
    }

    /// Whether it refers to units of hosts.
    fn asks_units(&self) -> bool {
        match self {
            Self::Or(left, right) | Self::And(left, right) => left.asks_units() || right.asks_units(),
            Self::Not(inner) => inner.asks_units(),
            Self::Is(..) | Self::IsNot(..) | Self::Compares(..) | Self::Has(_) => false,
            Self::Unit(_) => true,
        }
    }
}

/// A unit, as selectors see it.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// Its host.
    pub host: HostId,
    /// The host's name.
    pub hostname: &'a str,
    /// Its name.
    pub name: &'a UnitName,
    /// Its spec.
    pub spec: &'a Spec,
    /// Its phase.
    pub phase: Phase,
    /// What it runs, or has installed, if that is reported.
    pub content: Option<&'a Content>,
}

impl Subject for Unit<'_> {
    fn values(&self, field: &Field) -> Vec<Cow<'_, str>> {
        let spec = self.spec;
        let artifact = spec.artifact();
        match field {
            Field::Host => vec![self.host.to_string().into(), self.hostname.into()],
            Field::Id => vec![self.name.as_str().into()],
            Field::Realm => vec![self.name.realm().as_str().to_owned().into()],
            Field::Name => vec![self.name.name().as_str().to_owned().into()],
            Field::Role => artifact.map(|artifact| artifact.role.as_str().into()).into_iter().collect(),
            Field::Version => {
                // A unit without an artifact has no version; its image has a name.
                let version = |artifact: &'_ ArtifactRef| match self.content {
                    Some(content) => content.version().to_owned().into(),
                    None => artifact.version.as_str().to_owned().into(),
                };
                artifact.map(version).into_iter().collect()
            }
            Field::WantedVersion => artifact.map(|artifact| artifact.version.as_str().into()).into_iter().collect(),
            Field::Kind => vec![spec.kind().into()],
            Field::Phase => vec![word(self.phase).into()],
            Field::Label(name) => {
                spec.common().labels.get(name).map(|value| value.as_str().into()).into_iter().collect()
            }
            Field::Fact(_) => Vec::new(),
        }
    }

    /// Units have no units.
    fn has_unit(&self, _: &Select) -> bool {
        false
    }
}

/// Returns a phase as in the JSON form.
fn word(phase: Phase) -> String {
    let json = serde_json::to_value(phase).unwrap_or_default();
    json.as_str().unwrap_or_default().to_owned()
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Id => "id",
            Self::Realm => "realm",
            Self::Name => "name",
            Self::Role => "role",
            Self::Version => "version",
            Self::WantedVersion => "wanted.version",
            Self::Kind => "kind",
            Self::Phase => "phase",
            Self::Label(name) => return write!(f, "label.{name}"),
            Self::Fact(fact) => return write!(f, "fact.{}", fact.name()),
        })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::AtLeast => ">=",
        })
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = |f: &mut fmt::Formatter<'_>, of: &Self, bare: bool| {
            if bare { write!(f, "{of}") } else { write!(f, "({of})") }
        };
        match self {
            Self::Or(left, right) => {
                write!(f, "{left} or ")?;
                inner(f, right, !matches!(**right, Self::Or(..)))
            }
            Self::And(left, right) => {
                inner(f, left, !matches!(**left, Self::Or(..)))?;
                f.write_str(" and ")?;
                inner(f, right, !matches!(**right, Self::Or(..) | Self::And(..)))
            }
            Self::Not(of) => {
                f.write_str("not ")?;
                inner(f, of, !matches!(**of, Self::Or(..) | Self::And(..)))
            }
            Self::Is(field, value) => write!(f, "{field}={}", quoted(value)),
            Self::IsNot(field, value) => write!(f, "{field}!={}", quoted(value)),
            Self::Compares(field, order, value) => write!(f, "{field}{order}{}", quoted(value)),
            Self::Has(label) => write!(f, "label.{label}"),
            Self::Unit(of) => write!(f, "unit({of})"),
        }
    }
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._-+/:@*?".contains(letter)
}

fn quoted(value: &str) -> Cow<'_, str> {
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.into();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")).into()
}

impl Serialize for Select {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Select {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Select {
    fn schema_name() -> Cow<'static, str> {
        "Select".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": SELECT_MAX_BYTES,
            "description": "An expression that picks units: fields host, id, realm, name, role, version (what runs), \
                            wanted.version, kind, phase and label.NAME, = and != with * and ? in values, < <= > >= for versions and labels that are \
                            numbers, and, or, not, parentheses.",
            "examples": ["realm=prod and role=web and not label.tier=gold and version=1.*"]
        })
    }
}

#[cfg(test)]
mod tests;
