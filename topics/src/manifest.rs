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

/// What an artifact is, what it needs, and how it likes to be run. Everything may be left out; what a unit's spec
/// says itself counts more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Manifest {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Name>,
    /// Which one of the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// A line for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How it speaks with its agent.
    #[serde(skip_serializing_if = "Channel::is_none")]
    pub channel: Channel,
    /// Arguments, where a unit has none of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Ports that it listens on, each under the name of what it offers there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub provides: BTreeMap<Name, Port>,
    /// What it needs of other units, by the names under which these offer it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<Name, Need>,
    /// A JSON Schema that the merged config of each of its units must meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_schema: Option<Value>,
}

/// A port that a program listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Port {
    /// The one that it likes; any free one will do where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What is spoken there, such as `http`; for people and for those who connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Something that a program needs of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Need {
    /// It can do without.
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
