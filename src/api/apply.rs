//! Types of `POST /api/v1/apply`, and of what compares one unit.

use muster_rules::{cost::ChangeCost, spec_comparison::FieldDifference};
use muster_topics::{
    name::{CommandId, HostId, UnitName},
    select::HostSelect,
    unit::{Run, Spec},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `POST /api/v1/apply`: makes units as described in documents. If any document is invalid, nothing is changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The documents.
    pub documents: Vec<ApplyDocument>,
    /// The hosts, by id or hostname, of units whose documents name none; default: the only host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The expression that `hosts` were picked by, if they were: of these, one that it picks by what the host says of itself gets no unit
    /// with secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked_by: Option<HostSelect>,
    /// Only report what would change. Online hosts are asked whether the changes are possible.
    #[serde(default)]
    pub dry_run: bool,
    /// How long the changes may wait for hosts that are offline; ten minutes if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// A document and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyDocument {
    /// Its source, such as `shop.yaml`; errors begin with it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// A unit, as returned by `GET /api/v1/hosts/{host}/units/{realm}/{name}/document`; or a list of units under
    /// `units`, with `hosts` for those that name none.
    pub content: Value,
}

/// `POST /api/v1/hosts/{host}/units/{realm}/{name}/differences`: how an existing unit differs from a given spec. Only
/// the console can compare values of its environment, because reports do not contain them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompareUnit {
    /// The spec to compare with.
    pub spec: Box<Spec>,
    /// Whether it would run; unchanged if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// The result of [`Apply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The result for each unit on each host.
    pub units: Vec<AppliedUnit>,
    /// The names of hosts that are offline or did not answer: what only they can check, such as whether a port is free,
    /// is checked when they are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

/// The result for one unit on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedUnit {
    /// The host.
    pub host: HostId,
    /// The host's name.
    pub hostname: String,
    /// The unit.
    pub unit: UnitName,
    /// The change.
    pub action: ApplyAction,
    /// The effect on its process.
    pub cost: ChangeCost,
    /// The changed fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<FieldDifference>,
    /// The command that makes the change; `null` if nothing changes, or in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandId>,
}

/// The change of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApplyAction {
    /// The unit is created.
    Create,
    /// The unit is changed.
    Change,
    /// The unit is already as described.
    Unchanged,
}

impl ApplyAction {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Unchanged => "unchanged",
        }
    }
}
