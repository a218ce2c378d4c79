//! Labels of hosts.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    Millis,
    name::{HostId, LabelValue, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NewTarget;

/// `POST /api/v1/host-labels`: gives hosts labels and takes labels back, of all hosts that are meant or of none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelHosts {
    /// Which hosts.
    pub target: NewTarget,
    /// Labels that they carry from now on. They stand before those of the same name of the hosts' own configurations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<Name, LabelValue>,
    /// Labels that were given here and are taken back. One of the same name of a host's own configuration shows again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove: BTreeSet<Name>,
    /// Change a label that a host carries with another value; without it that is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
}

/// The labels of one host: an item of the answer to [`LabelHosts`], and the whole of `GET /api/v1/hosts/{host}/labels`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabelledHost {
    /// The host.
    pub host: HostId,
    /// The name that it gives itself.
    pub hostname: String,
    /// Its labels, by name.
    pub labels: Vec<HostLabel>,
    /// Whether the host has said that it has these.
    pub confirmed: bool,
    /// Since when the host has been away; nothing if it is there.
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
    /// Where it comes from.
    pub origin: LabelOrigin,
    /// The value of the host's own configuration, which this one stands before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hides: Option<String>,
    /// Who gave it, if an operator did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Name>,
    /// And when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_ms: Option<Millis>,
}

/// Where a label of a host comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LabelOrigin {
    /// The configuration of the host's own agent.
    Agent,
    /// An operator, on the console.
    Console,
}

impl LabelOrigin {
    /// It in a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Console => "console",
        }
    }
}
