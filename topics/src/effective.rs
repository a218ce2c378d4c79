//! The effective configuration: what a unit's process reads, as it is on its host now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    name::{Digest, UnitName},
    unit::ConfigRef,
};

/// Answer to [`crate::command::Verb::UnitConfig`], as its output: what was read from the host's disk, with secrets masked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effective {
    /// The unit.
    pub unit: UnitName,
    /// The revision that it was made for: the one that runs, or else the one that is installed.
    pub revision: Digest,
    /// The file that `MUSTER_CONFIG` names.
    pub path: String,
    /// What it was merged from, in this order.
    pub configs: Vec<ConfigRef>,
    /// Files that are not as the agent wrote them: somebody has changed or removed them since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// The merged config; nothing if the file is gone, or is no JSON any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
}
