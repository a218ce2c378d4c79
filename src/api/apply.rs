//! Types of `POST /api/v1/apply`, and of what compares one unit.

use muster_rules::{compare::FieldDifference, cost::ChangeCost};
use muster_topics::{
    name::{CommandId, HostId, UnitName},
    unit::{Run, Spec},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `POST /api/v1/apply`: units are to be what documents say. Nothing is changed if there is anything wrong with any of
/// the documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// What the units should be.
    pub documents: Vec<ApplyDocument>,
    /// The hosts, by id or hostname, of units whose document names none. Without any it is the only host there is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Only tell what it would change. Hosts that are there are asked whether it could be.
    #[serde(default)]
    pub dry_run: bool,
    /// How long the changes may wait for hosts that are away; ten minutes if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// One document, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyDocument {
    /// Where it comes from, such as `shop.yaml`: complaints begin with it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// A unit, as `GET /api/v1/hosts/{host}/units/{realm}/{name}/document` gives one; or a list of them under `units`,
    /// beside `hosts` for those that name none.
    pub content: Value,
}

/// `POST /api/v1/hosts/{host}/units/{realm}/{name}/differences`: how a unit that is there differs from what it would be. The
/// console alone can tell whether values of its environment do, for a report does not have them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompareUnit {
    /// What it would be.
    pub spec: Box<Spec>,
    /// Whether it would run; as it does if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// The answer to [`Apply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// What becomes of each unit, host by host.
    pub units: Vec<AppliedUnit>,
    /// The names of hosts that are away, or did not answer: what only they can know, such as whether a port is free, they find out
    /// when they are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

/// What becomes of one unit on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedUnit {
    /// The host.
    pub host: HostId,
    /// The name that it gives itself.
    pub hostname: String,
    /// The unit.
    pub unit: UnitName,
    /// What becomes of it.
    pub action: ApplyAction,
    /// What that costs its process.
    pub cost: ChangeCost,
    /// What changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<FieldDifference>,
    /// The command that does it; nothing if there is nothing to do, or it is not to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandId>,
}

/// What becomes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApplyAction {
    /// There is none of this name yet.
    Create,
    /// It becomes something else.
    Change,
    /// It is so already.
    Unchanged,
}

impl ApplyAction {
    /// In a word, for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Unchanged => "unchanged",
        }
    }
}
