//! Labels of hosts.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    Millis,
    name::{HostId, LabelValue, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NewTarget;

/// `POST /api/v1/host-labels`: sets and removes labels of all selected hosts, or of none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelHosts {
    /// The hosts.
    pub target: NewTarget,
    /// Labels to set. They take precedence over labels of the same name in the hosts' own configurations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<Name, LabelValue>,
    /// Console labels to remove. A label of the same name in a host's own configuration becomes effective again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove: BTreeSet<Name>,
    /// Replace a different existing value; without this, such a change is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// The labels of one host: an item of the result of [`LabelHosts`], and the result of `GET
/// /api/v1/hosts/{host}/labels`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabelledHost {
    /// The host.
    pub host: HostId,
    /// The host's name.
    pub hostname: String,
    /// Its labels, by name.
    pub labels: Vec<HostLabel>,
    /// Whether the host has confirmed them.
    pub confirmed: bool,
    /// Since when the host has been offline; `null` if it is online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_since_ms: Option<Millis>,
}

/// A label of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostLabel {
    /// Its name.
    pub name: Name,
    /// Its value.
    pub value: String,
    /// Where it was set.
    pub origin: LabelOrigin,
    /// The value in the host's own configuration, if this label replaces one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hides: Option<String>,
    /// The operator who set it, if it was set on the console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Name>,
    /// When it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_ms: Option<Millis>,
}

/// Where a label was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LabelOrigin {
    /// In the configuration of the host's agent.
    Agent,
    /// By an operator on the console.
    Console,
}

impl LabelOrigin {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Console => "console",
        }
    }
}
