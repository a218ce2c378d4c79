//! The manifest of an artifact: its description by its author, in a file beside it. muster never runs an artifact
//! to learn about it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    name::{Name, Version},
    unit::Channel,
};

/// The largest manifest, in its canonical form: an agent reads it whole before it installs the artifact.
pub const MANIFEST_MAX_BYTES: usize = 256 * 1024;

/// The description of an artifact by its author: what it is, what it requires, and how to run it. Everything is
/// optional; a unit's spec wins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Manifest {
    /// Its role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Name>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// A line for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How it communicates with its agent.
    #[serde(skip_serializing_if = "Channel::is_none")]
    pub channel: Channel,
    /// The arguments, for units without arguments of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Ports that it listens on, by the name of their endpoint.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub provides: BTreeMap<Name, Port>,
    /// Endpoints that it requires of other units, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<Name, Need>,
    /// A JSON Schema for the merged config of its units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_schema: Option<Value>,
}

/// A port that a program listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Port {
    /// The preferred port; any free one by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The protocol, such as `http`; for people and for clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// An endpoint that a program requires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Need {
    /// Whether it runs without it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_are_optional_and_unknown_ones_refused() {
        assert_eq!(serde_json::from_str::<Manifest>("{}").unwrap(), Manifest::default());
        assert_eq!(serde_json::to_string(&Manifest::default()).unwrap(), "{}");
        let whole = r#"{"role":"till","version":"1.2","description":"The till","channel":"notify","args":["-c","{config}"],"provides":{"web":{"port":8080,"protocol":"http"},"admin":{}},"requires":{"db":{},"cache":{"optional":true}},"config_schema":{"type":"object"}}"#;
        let manifest: Manifest = serde_json::from_str(whole).unwrap();
        assert!(manifest.requires[&"cache".parse().unwrap()].optional);
        let again: Manifest = serde_json::from_str(&serde_json::to_string(&manifest).unwrap()).unwrap();
        assert_eq!(again, manifest);
        for wrong in [r#"{"roles":"a"}"#, r#"{"role":"A"}"#, r#"{"provides":{"web":{"port":70000}}}"#, "7"] {
            assert!(serde_json::from_str::<Manifest>(wrong).is_err(), "{wrong}");
        }
    }
}
