//! Newer artifacts and configs for yunos that there are: what there is to have, and what a unit would get of it.
//!
//! Versions are ordered as semantic versioning has it, and by their numbers where they follow no such rule; what is
//! older than what a unit has is only taken by force.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use muster_topics::{
    command::Verb,
    name::{ConfigId, Name, UnitName, Version},
    unit::{ArtifactRef, ConfigRef, Desired},
};
use serde::Serialize;

use super::cost::{Cost, cost};
use crate::api::{Artifact, Config};

/// What there is to upgrade to: one artifact of a role, one version of a config.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Artifacts, by role.
    pub artifacts: BTreeMap<Name, Artifact>,
    /// Configs.
    pub configs: BTreeMap<ConfigId, Config>,
    /// It is taken even where it is older.
    pub force: bool,
}

impl Offer {
    /// The newest of all.
    #[must_use]
    pub fn newest(artifacts: Vec<Artifact>, configs: Vec<Config>) -> Self {
        let mut offer = Self::default();
        for found in artifacts {
            let newer =
                |known: &Artifact| age((&found.version, found.added_ms), (&known.version, known.added_ms)).is_gt();
            if offer.artifacts.get(&found.role).is_none_or(newer) {
                offer.artifacts.insert(found.role.clone(), found);
            }
        }
        for found in configs {
            if offer.configs.get(&found.id).is_none_or(|known| found.version.age_order(&known.version).is_gt()) {
                offer.configs.insert(found.id.clone(), found);
            }
        }
        offer
    }
}

fn age(left: (&Version, i64), right: (&Version, i64)) -> Ordering {
    left.0.age_order(right.0).then(left.1.cmp(&right.1))
}

/// From one version to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Of what: a role, or the id of a config.
    pub what: String,
    /// What it has.
    pub from: Version,
    /// What it gets.
    pub to: Version,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} → {}", self.what, self.from, self.to)
    }
}

/// What a unit gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Upgrade {
    /// Another artifact.
    pub artifact: Option<Step>,
    /// Other configs.
    pub configs: Vec<Step>,
    /// What that costs its process.
    pub cost: Cost,
    /// What asks for it.
    pub verb: Verb,
}

/// What a unit would get of an offer, if anything.
#[must_use]
pub fn upgrade(unit: &UnitName, desired: &Desired, offer: &Offer) -> Option<Upgrade> {
    let spec = &desired.spec;
    let goes = |from: &Version, to: &Version| offer.force || to.age_order(from).is_gt();
    let has = spec.artifact();
    let artifact = has.and_then(|has| {
        let found = offer.artifacts.get(&has.role)?;
        let is_newer = found.sha256 != has.sha256 && goes(&has.version, &found.version);
        is_newer.then_some((has, found))
    });
    let configs: Vec<(&ConfigRef, &Config)> = spec
        .configs()
        .iter()
        .filter_map(|has| Some((has, offer.configs.get(&has.id)?)))
        .filter(|(has, found)| has.sha256 != found.sha256 && goes(&has.version, &found.version))
        .collect();
    if artifact.is_none() && configs.is_empty() {
        return None;
    }
    let step = |what: String, from: &Version, to: &Version| Step { what, from: from.clone(), to: to.clone() };
    let steps = configs.iter().map(|(has, found)| step(has.id.to_string(), &has.version, &found.version)).collect();
    let wanted = artifact.map(|(_, found)| artifact_ref(found));
    let configs: Vec<ConfigRef> = configs.iter().map(|(_, found)| config_ref(found)).collect();
    let mut after = spec.clone();
    if let (Some(place), Some(wanted)) = (after.artifact_mut(), &wanted) {
        place.clone_from(wanted);
    }
    for place in after.configs_mut() {
        if let Some(config) = configs.iter().find(|config| config.id == place.id) {
            place.clone_from(config);
        }
    }
    let (unit, from) = (unit.clone(), desired.revision.clone());
    Some(Upgrade {
        artifact: artifact.map(|(has, found)| step(found.role.to_string(), &has.version, &found.version)),
        configs: steps,
        cost: cost((&desired.spec, desired.run), (&after, desired.run)),
        verb: Verb::UnitUpgrade { unit, from, artifact: wanted, configs },
    })
}

fn artifact_ref(found: &Artifact) -> ArtifactRef {
    let Artifact { sha256, size_bytes, role, version, manifest, .. } = found.clone();
    ArtifactRef { sha256, size_bytes, role, version, manifest }
}

fn config_ref(found: &Config) -> ConfigRef {
    let Config { id, version, sha256, .. } = found.clone();
    ConfigRef { id, version, sha256 }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        name::Digest,
        unit::{Run, Spec, YunoSpec},
    };

    use super::*;

    fn artifact(version: &str) -> Artifact {
        Artifact {
            sha256: Digest::of(version.as_bytes()),
            size_bytes: 1,
            role: "web".parse().unwrap(),
            version: version.parse().unwrap(),
            added_ms: 0,
            manifest: None,
        }
    }

    #[track_caller]
    fn check(has: &str, offered: &[&str], force: bool, planned: Option<&str>) {
        let spec = Spec::Yuno(YunoSpec::new(artifact_ref(&artifact(has))));
        let desired = Desired { generation: 1, revision: Digest::of(b"r"), spec, run: Run::Running, frozen: false };
        let offer = Offer::newest(offered.iter().map(|version| artifact(version)).collect(), Vec::new());
        let plan = upgrade(&"default/web".parse().unwrap(), &desired, &Offer { force, ..offer });
        let step = plan.as_ref().and_then(|plan| plan.artifact.as_ref()).map(ToString::to_string);
        assert_eq!(step.as_deref(), planned, "{has}, {offered:?}");
        assert!(plan.is_none_or(|plan| plan.cost == Cost::Restart));
    }

    #[test]
    fn forward_only_unless_forced() {
        check("1.2.0", &["1.2.0", "1.10.0", "1.9.0"], false, Some("web 1.2.0 → 1.10.0"));
        check("1.10.0", &["1.2.0"], false, None);
        check("1.10.0", &["1.2.0"], true, Some("web 1.10.0 → 1.2.0"));
        check("1.10.0", &["1.10.0"], true, None);
    }
}
