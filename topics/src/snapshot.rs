//! Snapshots: the desired state of a host's units under a name, to compare with and to go back to. These are the
//! answers to the verbs about them, each a JSON document as the command's output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis,
    name::{Name, UnitName},
    secret::SecretRef,
    unit::{ArtifactRef, ConfigRef, Run, Spec},
};

/// What the snapshots of a host need of a unit beyond its present spec, as part of its report, so that it is not
/// removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pins {
    /// Artifacts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactRef>,
    /// Configs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<ConfigRef>,
    /// Secrets of the unit's realm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRef>,
    /// Whether there is more, which is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub and_more: bool,
}

/// The most artifacts, configs and secrets that a unit's report lists of its snapshots: with some 250 bytes for each, a quarter
/// of a message. More changes between snapshots are hardly ever restored.
pub const PINS_MAX: usize = 64;

impl Pins {
    /// Returns what of `specs` is not part of the spec `now`.
    #[must_use]
    pub fn of<'a>(specs: impl IntoIterator<Item = &'a Spec>, now: &Spec) -> Self {
        let mut pins = Self::default();
        let label = |artifact: &ArtifactRef| (artifact.sha256.clone(), artifact.role.clone(), artifact.version.clone());
        for spec in specs {
            for artifact in spec.artifacts() {
                // These identify what a unit needs of an artifact.
                let artifact = ArtifactRef { manifest: None, ..artifact.clone() };
                let is_needed_now = now.artifacts().into_iter().any(|now| label(now) == label(&artifact));
                if !is_needed_now && !pins.artifacts.contains(&artifact) && pins.has_room() {
                    pins.artifacts.push(artifact);
                }
            }
            for config in spec.configs() {
                if !now.configs().contains(config) && !pins.configs.contains(config) && pins.has_room() {
                    pins.configs.push(config.clone());
                }
            }
            for secret in &spec.common().secrets {
                if !now.common().secrets.contains(secret) && !pins.secrets.contains(secret) && pins.has_room() {
                    pins.secrets.push(secret.clone());
                }
            }
        }
        pins
    }

    /// Whether there is room for one more; records it if there is not.
    fn has_room(&mut self) -> bool {
        self.and_more |= self.artifacts.len() + self.configs.len() + self.secrets.len() >= PINS_MAX;
        !self.and_more
    }

    /// Describes what they need.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let artifacts = self.artifacts.iter().map(|artifact| format!("{}@{}", artifact.role, artifact.version));
        let configs = self.configs.iter().map(|config| format!("{}@{}", config.id, config.version));
        let secrets = self.secrets.iter().map(|secret| format!("secret {secret}"));
        artifacts.chain(configs).chain(secrets).chain(self.and_more.then(|| "and more".to_owned())).collect()
    }

    /// Whether they need nothing more than the unit itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The answer to [`crate::command::Verb::SnapshotLs`]: the snapshots of the host, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshots {
    /// The snapshots.
    pub snapshots: Vec<Snapshot>,
}

/// A snapshot, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Its name.
    pub name: Name,
    /// The operator who created it.
    pub by: Name,
    /// When it was created, by the host's clock.
    pub created_ms: Millis,
    /// Since when it is active, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_ms: Option<Millis>,
    /// Its units.
    pub units: Vec<UnitName>,
}

/// The answer to [`crate::command::Verb::SnapshotDiff`], and to [`crate::command::Verb::SnapshotActivate`] and
/// [`crate::command::Verb::SnapshotDeactivate`], as what they change: unit by unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotDiff {
    /// The snapshot.
    pub snapshot: Name,
    /// Every unit of the host or the snapshot, by name.
    pub units: Vec<UnitDiff>,
}

/// How one unit differs from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitDiff {
    /// The unit.
    pub unit: UnitName,
    /// The difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// The generation after the difference was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// The kind of difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub enum Difference {
    /// Not at all.
    Same,
    /// Its desired state has changed.
    Changed {
        /// The fields of its spec that differ; their values may be secret.
        fields: Vec<String>,
        /// Whether it should run, if that differs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Run>,
        /// Whether its revision differs: its process is replaced.
        restarts: bool,
    },
    /// It is in the snapshot, and not on the host.
    Missing,
    /// It is on the host, and not in the snapshot, which does not affect it.
    Extra,
    /// It was changed since the snapshot was activated, and keeps that change.
    Later,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{name::Digest, unit::YunoSpec};

    fn spec(version: &str, configs: &[&str]) -> Spec {
        let artifact = ArtifactRef {
            sha256: Digest::of(version.as_bytes()),
            size_bytes: 1,
            role: "web".parse().unwrap(),
            version: version.parse().unwrap(),
            manifest: None,
        };
        let config = |version: &&str| ConfigRef {
            id: "web".parse().unwrap(),
            version: version.parse().unwrap(),
            sha256: Digest::of(version.as_bytes()),
        };
        Spec::Yuno(YunoSpec { configs: configs.iter().map(config).collect(), ..YunoSpec::new(artifact) })
    }

    #[test]
    fn own_needs_are_not_repeated() {
        let now = spec("2", &["1", "2"]);
        assert!(Pins::of([&now, &spec("2", &["1"])], &now).is_empty());
        let pins = Pins::of([&spec("1", &["1", "3"]), &spec("1", &["3"]), &now], &now);
        let versions: Vec<&str> = pins.artifacts.iter().map(|artifact| artifact.version.as_str()).collect();
        let configs: Vec<&str> = pins.configs.iter().map(|config| config.version.as_str()).collect();
        assert_eq!((versions, configs, pins.and_more), (vec!["1"], vec!["3"], false));
    }

    #[test]
    fn long_answer_is_truncated_with_a_mark() {
        let specs: Vec<Spec> = (0..=PINS_MAX).map(|number| spec(&format!("1.{number}"), &[])).collect();
        let pins = Pins::of(&specs[1..], &specs[0]);
        assert_eq!((pins.artifacts.len(), pins.and_more), (PINS_MAX, false));
        let pins = Pins::of(&specs, &spec("2", &[]));
        assert_eq!((pins.artifacts.len(), pins.and_more), (PINS_MAX, true));
    }
}
