//! Newer artifacts, configs and secrets for yunos that there are: what there is to have, and what a unit would get of it.
//!
//! Versions are ordered by their numbers, as semantic versioning has it, and by the time at which they were added where one of
//! them is no number, such as a hash ([`version_order::age`]); what is older than what a unit has is only taken by force.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use muster_rules::cost::{ChangeCost, cost};
use muster_topics::{
    command::Verb,
    name::{ConfigId, Name, UnitName, Version},
    secret::SecretRef,
    unit::{ArtifactRef, ConfigRef, Desired},
    version_order,
};
use serde::Serialize;

use super::{Artifact, Config};

/// Available upgrades: one artifact for each role, one version for each config.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Artifacts, by role.
    artifacts: BTreeMap<Name, Artifact>,
    /// Configs.
    configs: BTreeMap<ConfigId, Config>,
    /// The newest version of each secret, by realm and name.
    secrets: BTreeMap<(Name, Name), u32>,
    /// Whether older versions are allowed.
    force: bool,
    /// When each version of each role was created.
    artifacts_created: BTreeMap<(Name, Version), i64>,
    /// When each version of each config was created.
    configs_created: BTreeMap<(ConfigId, Version), i64>,
}

impl Offer {
    /// The newest artifacts and configs.
    #[must_use]
    pub fn newest(artifacts: Vec<Artifact>, configs: Vec<Config>) -> Self {
        let mut offer = Self::named(Vec::new(), Vec::new(), (&artifacts, &configs), false);
        let roles: BTreeSet<&Name> = artifacts.iter().map(|one| &one.role).collect();
        let newest_of = |role: &Name| {
            let same = artifacts.iter().filter(|one| one.role == *role);
            version_order::newest(same, |one| (&one.version, one.created_ms)).cloned()
        };
        offer.artifacts = roles.into_iter().filter_map(|role| Some((role.clone(), newest_of(role)?))).collect();
        let ids: BTreeSet<&ConfigId> = configs.iter().map(|one| &one.id).collect();
        let newest_of = |id: &ConfigId| {
            let same = configs.iter().filter(|one| one.id == *id);
            version_order::newest(same, |one| (&one.version, one.created_ms)).cloned()
        };
        offer.configs = ids.into_iter().filter_map(|id| Some((id.clone(), newest_of(id)?))).collect();
        offer
    }

    /// The named artifacts and configs; with `force` also if they are older.
    #[must_use]
    pub fn named(
        artifacts: Vec<Artifact>,
        configs: Vec<Config>,
        (all_artifacts, all_configs): (&[Artifact], &[Config]),
        force: bool,
    ) -> Self {
        let added = |one: &Artifact| ((one.role.clone(), one.version.clone()), one.created_ms);
        let config_created = |one: &Config| ((one.id.clone(), one.version.clone()), one.created_ms);
        Self {
            artifacts: artifacts.into_iter().map(|one| (one.role.clone(), one)).collect(),
            configs: configs.into_iter().map(|one| (one.id.clone(), one)).collect(),
            secrets: BTreeMap::new(),
            force,
            artifacts_created: all_artifacts.iter().map(added).collect(),
            configs_created: all_configs.iter().map(config_created).collect(),
        }
    }

    /// The same with the newest version of each secret and its realm, which a unit always gets.
    #[must_use]
    pub fn with_secrets(mut self, newest: impl IntoIterator<Item = (Name, SecretRef)>) -> Self {
        self.secrets = newest.into_iter().map(|(realm, one)| ((realm, one.name), one.version)).collect();
        self
    }

    fn takes_artifact(&self, has: &ArtifactRef, found: &Artifact) -> bool {
        let created_ms = self.artifacts_created.get(&(has.role.clone(), has.version.clone()));
        self.force || is_newer((&found.version, found.created_ms), (&has.version, created_ms.copied()))
    }

    fn takes_config(&self, has: &ConfigRef, found: &Config) -> bool {
        let created_ms = self.configs_created.get(&(has.id.clone(), has.version.clone()));
        self.force || is_newer((&found.version, found.created_ms), (&has.version, created_ms.copied()))
    }
}

/// Whether an available version is newer than the current one, for which the time of adding may be unknown.
#[must_use]
pub fn is_newer(found: (&Version, i64), (has, created_ms): (&Version, Option<i64>)) -> bool {
    match created_ms {
        Some(created_ms) => version_order::age(found, (has, created_ms)).is_gt(),
        None => found.0.tells_age() && has.tells_age() && found.0.age_order(has).is_gt(),
    }
}

/// A change from one version to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The role, or the id of the config.
    pub what: String,
    /// The current version.
    pub from: Version,
    /// The new version.
    pub to: Version,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} → {}", self.what, self.from, self.to)
    }
}

/// The upgrade of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Upgrade {
    /// The new artifact.
    pub artifact: Option<Step>,
    /// The new configs.
    pub configs: Vec<Step>,
    /// The newer secrets.
    pub secrets: Vec<Step>,
    /// The effect on its process.
    pub cost: ChangeCost,
    /// The command for it.
    pub verb: Verb,
}

/// The upgrade of a unit, if there is one.
#[must_use]
pub fn upgrade(unit: &UnitName, desired: &Desired, offer: &Offer) -> Option<Upgrade> {
    let spec = &desired.spec;
    let has = spec.artifact();
    let artifact = has.and_then(|has| {
        let found = offer.artifacts.get(&has.role)?;
        let is_newer = found.sha256 != has.sha256 && offer.takes_artifact(has, found);
        is_newer.then_some((has, found))
    });
    let configs: Vec<(&ConfigRef, &Config)> = spec
        .configs()
        .iter()
        .filter_map(|has| Some((has, offer.configs.get(&has.id)?)))
        .filter(|(has, found)| has.sha256 != found.sha256 && offer.takes_config(has, found))
        .collect();
    let mut secrets = spec.common().secrets.to_vec();
    let mut newer_secrets = Vec::new();
    for secret in &mut secrets {
        let newest = offer.secrets.get(&(unit.realm(), secret.name.clone())).copied();
        if let Some(newest) = newest.filter(|newest| *newest > secret.version) {
            let versions = [secret.version, newest].map(|version| version.to_string().parse().ok());
            if let [Some(from), Some(to)] = versions {
                newer_secrets.push(Step { what: format!("secret {}", secret.name), from, to });
            }
            secret.version = newest;
        }
    }
    if artifact.is_none() && configs.is_empty() && newer_secrets.is_empty() {
        return None;
    }
    let step = |what: String, from: &Version, to: &Version| Step { what, from: from.clone(), to: to.clone() };
    let steps = configs.iter().map(|(has, found)| step(has.id.to_string(), &has.version, &found.version)).collect();
    let wanted = artifact.map(|(_, found)| artifact_ref(found));
    let configs: Vec<ConfigRef> = configs.iter().map(|(_, found)| config_ref(found)).collect();
    let mut after = spec.as_ref().clone();
    if let (Some(place), Some(wanted)) = (after.artifact_mut(), &wanted) {
        place.clone_from(wanted);
    }
    for place in after.configs_mut() {
        if let Some(config) = configs.iter().find(|config| config.id == place.id) {
            place.clone_from(config);
        }
    }
    after.common_mut().secrets = secrets;
    let (unit, from) = (unit.clone(), desired.revision.clone());
    Some(Upgrade {
        artifact: artifact.map(|(has, found)| step(found.role.to_string(), &has.version, &found.version)),
        configs: steps,
        secrets: newer_secrets,
        cost: cost((&desired.spec, desired.run), (&after, desired.run)),
        verb: Verb::UnitUpgrade { unit, from, artifact: wanted, configs, secrets: None, config_templates: None },
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
        added(version, 0)
    }

    fn added(version: &str, created_ms: i64) -> Artifact {
        Artifact {
            sha256: Digest::of(version.as_bytes()),
            size_bytes: 1,
            role: "web".parse().unwrap(),
            version: version.parse().unwrap(),
            created_ms,
            manifest: None,
        }
    }

    #[track_caller]
    fn check(has: &str, offered: &[&str], force: bool, planned: Option<&str>) {
        let spec = Spec::Yuno(YunoSpec::new(artifact_ref(&artifact(has))));
        let desired =
            Desired { generation: 1, revision: Digest::of(b"r"), spec: spec.into(), run: Run::Running, frozen: false };
        let offered: Vec<Artifact> = offered.iter().zip(1..).map(|(version, at_ms)| added(version, at_ms)).collect();
        let offer = match (force, &offered[..]) {
            (true, [one]) => Offer::named(vec![one.clone()], Vec::new(), (&offered, &[]), true),
            _ => Offer::newest(offered.clone(), Vec::new()),
        };
        let plan = upgrade(&"default/web".parse().unwrap(), &desired, &offer);
        let step = plan.as_ref().and_then(|plan| plan.artifact.as_ref()).map(ToString::to_string);
        assert_eq!(step.as_deref(), planned, "{has}, {offered:?}");
        assert!(plan.is_none_or(|plan| plan.cost == ChangeCost::Restart));
    }

    #[test]
    fn forward_only_unless_forced() {
        check("1.2.0", &["1.2.0", "1.10.0", "1.9.0"], false, Some("web 1.2.0 → 1.10.0"));
        check("1.10.0", &["1.2.0"], false, None);
        check("1.10.0", &["1.2.0"], true, Some("web 1.10.0 → 1.2.0"));
        check("1.10.0", &["1.10.0"], true, None);
    }

    #[test]
    fn newer_secrets_of_its_realm_are_an_upgrade() {
        let secret =
            |realm: &str, version| (realm.parse().unwrap(), SecretRef { name: "db".parse().unwrap(), version });
        let mut yuno = YunoSpec::new(artifact_ref(&artifact("1")));
        yuno.common.secrets = vec![SecretRef { name: "db".parse().unwrap(), version: 2 }];
        let spec = Spec::Yuno(yuno);
        let desired =
            Desired { generation: 1, revision: Digest::of(b"r"), spec: spec.into(), run: Run::Running, frozen: false };
        let planned = |secrets: Vec<(Name, SecretRef)>| {
            let plan = upgrade(&"prod/web".parse().unwrap(), &desired, &Offer::default().with_secrets(secrets))?;
            Some((plan.secrets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "), plan.cost))
        };
        assert_eq!(planned(vec![secret("prod", 2), secret("default", 3)]), None);
        assert_eq!(planned(vec![secret("prod", 3)]), Some(("secret db 2 → 3".to_owned(), ChangeCost::Restart)));
    }

    #[test]
    fn hashes_go_by_time_and_release_candidates_are_asked_for() {
        check("9f3c21a", &["9f3c21a", "0a1b2c3"], false, Some("web 9f3c21a → 0a1b2c3"));
        check("9f3c21a", &["ffffff1", "9f3c21a"], false, None);
        check("1.2.0", &["1.2.0", "9f3c21a"], false, Some("web 1.2.0 → 9f3c21a"));
        // The time at which this version was created is unknown.
        check("9f3c21a", &["ffffff1"], false, None);
        check("1.2.0", &["1.2.0", "1.3.0-rc.1"], false, None);
        check("1.2.0", &["1.3.0-rc.1"], true, Some("web 1.2.0 → 1.3.0-rc.1"));
        check("1.3.0-rc.1", &["1.2.0", "1.3.0-rc.1"], false, None);
        check("1.3.0-rc.1", &["1.3.0-rc.1", "1.3.0"], false, Some("web 1.3.0-rc.1 → 1.3.0"));
    }
}
