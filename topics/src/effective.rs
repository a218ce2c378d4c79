//! The effective configuration: what a unit's process reads, as it is on its host now.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    name::{Digest, UnitName},
    unit::ConfigRef,
};

/// The most bytes of templates that a host renders at once: they have to fit into a command.
pub const RENDER_MAX_BYTES: usize = 32 * 1024;

/// The answer to [`crate::command::Verb::Render`], as its output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenderedTexts {
    /// What was rendered of each template, by the template's name, with secrets masked.
    pub texts: BTreeMap<String, String>,
}

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
