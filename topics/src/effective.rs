//! The effective configuration: what a unit's process reads, as it is on its host now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    name::{Digest, UnitName},
    unit::ConfigRef,
};

/// The answer to [`crate::command::Verb::UnitConfig`], as its output: what was read from the host's disk, with secrets
/// masked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effective {
    /// The unit.
    pub unit: UnitName,
    /// The revision of the configuration: the running one, or else the installed one.
    pub revision: Digest,
    /// The file that `MUSTER_CONFIG` names.
    pub path: String,
    /// The configs that were merged, in this order.
    pub configs: Vec<ConfigRef>,
    /// Files that differ from what the agent wrote: they were changed or removed since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// The merged config; null if the file is missing, or invalid JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
}
