//! `muster yuno upgrade`: newer artifacts and configs for yunos that there are, planned and shown before anything
//! is done.

use std::{cmp::Ordering, collections::BTreeMap};

use clap::Args;
use muster_topics::{
    command::Verb as Asked,
    name::{ConfigId, HostId, Name, UnitName, Version},
    select::Select,
    unit::{ArtifactRef, ConfigRef, Spec},
};
use serde::Serialize;

use super::{
    Session, artifact,
    change::{Change, Waiting, ask_first, change_each, pick},
    config, print,
    target::UnitRef,
    unit::units,
};
use crate::{
    api::{Artifact, Config, Cost, Unit},
    failure::{Failure, Kind},
    rules::cost::cost,
};

/// Bring yunos to the newest artifact of their role and the newest version of their configs.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  muster yuno upgrade --plan\n  muster yuno upgrade default/server\n  \
                        muster yuno upgrade --select 'role=server and label.wave=1' --artifact server@2.1.0 --yes\n\n\
                        Versions are ordered as semantic versioning has it, and by their numbers where they follow no \
                        such rule. What is older than what a yuno has is only taken with --force.")]
pub struct Upgrade {
    /// REALM/NAME or HOST:REALM/NAME; without any, every yuno there is
    pub units: Vec<UnitRef>,
    /// Those that this picks, such as 'realm=prod and role=web'
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "units")]
    pub select: Option<Select>,
    /// The host, by id or hostname; may be given several times
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// On every host that has such a unit
    #[arg(long, conflicts_with = "select")]
    pub all: bool,
    /// Only show what would be done
    #[arg(long)]
    pub plan: bool,
    /// This one, for yunos of its role, rather than the newest: ROLE@VERSION or a SHA-256
    #[arg(long, value_name = "ROLE@VERSION")]
    pub artifact: Option<String>,
    /// This one, for yunos that have such a config, rather than the newest: ID@VERSION; may be given several times
    #[arg(long = "config", value_name = "ID@VERSION")]
    pub configs: Vec<String>,
    /// Take what is named even where a yuno has a newer one
    #[arg(long)]
    pub force: bool,
    /// Do not ask before more than one yuno is changed
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    wait: Waiting,
}

/// What there is to upgrade to.
struct Offer {
    artifacts: BTreeMap<Name, Artifact>,
    configs: BTreeMap<ConfigId, Config>,
    force: bool,
}

/// What changes of one yuno.
#[derive(Clone, Debug, Serialize)]
struct Plan {
    host: HostId,
    hostname: String,
    unit: UnitName,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    configs: Vec<Step>,
    /// What that costs its process.
    cost: Cost,
    #[serde(skip)]
    asks: Option<Asked>,
}

/// From one version to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Step {
    what: String,
    from: Version,
    to: Version,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} → {}", self.what, self.from, self.to)
    }
}

/// Does it.
///
/// # Errors
/// If it cannot be planned, nobody says yes, or it cannot be done with one of them.
pub async fn run(upgrade: Upgrade, session: &Session) -> Result<(), Failure> {
    let all = units(session, None).await?;
    let everything = upgrade.units.is_empty() && upgrade.select.is_none();
    let which = Change {
        units: upgrade.units,
        select: upgrade.select,
        hosts: upgrade.hosts,
        all: upgrade.all || everything,
        yes: upgrade.yes,
        wait: upgrade.wait,
    };
    let picked = pick(session, &all, &which)?;
    let offer = offer(session, upgrade.artifact.as_deref(), &upgrade.configs, upgrade.force).await?;
    let plans: Vec<(&Unit, Plan)> = picked.into_iter().filter_map(|unit| Some((unit, plan(unit, &offer)?))).collect();
    let shown: Vec<Plan> = plans.iter().map(|(_, plan)| plan.clone()).collect();
    if upgrade.plan || shown.is_empty() {
        return show(session, &shown);
    }
    show_table(&shown);
    if plans.len() > 1 && !which.yes {
        ask_first(&format!("upgrade {} yunos", plans.len()), plans.iter().map(|(unit, _)| *unit))?;
    }
    let wanted = plans.into_iter().filter_map(|(unit, plan)| Some((unit, plan.asks?))).collect();
    change_each(session, wanted, which.wait).await
}

const HEADER: [&str; 5] = ["HOST", "UNIT", "ARTIFACT", "CONFIG", "COST"];

fn row(plan: &Plan) -> Vec<String> {
    let configs: Vec<String> = plan.configs.iter().map(Step::to_string).collect();
    let artifact = plan.artifact.as_ref().map(Step::to_string).unwrap_or_default();
    vec![plan.hostname.clone(), plan.unit.to_string(), artifact, configs.join(", "), plan.cost.words().to_owned()]
}

fn show(session: &Session, plans: &[Plan]) -> Result<(), Failure> {
    session.printer.list(plans, &HEADER, row, "there is nothing newer than what is there")
}

/// For people who see it done: what is done then is the data.
fn show_table(plans: &[Plan]) {
    print::say(print::table(&HEADER, plans.iter().map(row)).trim_end());
}

/// The newest of all, or what was named.
async fn offer(session: &Session, named: Option<&str>, configs: &[String], force: bool) -> Result<Offer, Failure> {
    let mut offer = Offer { artifacts: BTreeMap::new(), configs: BTreeMap::new(), force };
    if let Some(named) = named {
        let found = artifact::find(session, named).await?;
        offer.artifacts.insert(found.role.clone(), found);
    }
    for named in configs {
        let found = config::find(session, named).await?;
        offer.configs.insert(found.id.clone(), found);
    }
    // Who names something means that, and nothing else.
    if !offer.artifacts.is_empty() || !offer.configs.is_empty() {
        return Ok(offer);
    }
    if force {
        let nothing = Failure::new(Kind::Usage, "--force takes what is named, and nothing is named");
        return Err(nothing.hint("say --artifact ROLE@VERSION or --config ID@VERSION"));
    }
    let artifacts: Vec<Artifact> = session.client.get("artifacts", &[]).await?;
    for found in artifacts {
        let newer = |known: &Artifact| age((&found.version, found.added_ms), (&known.version, known.added_ms)).is_gt();
        if offer.artifacts.get(&found.role).is_none_or(newer) {
            offer.artifacts.insert(found.role.clone(), found);
        }
    }
    let configs: Vec<Config> = session.client.get("configs", &[]).await?;
    for found in configs {
        if offer.configs.get(&found.id).is_none_or(|known| found.version.age_order(&known.version).is_gt()) {
            offer.configs.insert(found.id.clone(), found);
        }
    }
    Ok(offer)
}

fn age(left: (&Version, i64), right: (&Version, i64)) -> Ordering {
    left.0.age_order(right.0).then(left.1.cmp(&right.1))
}

/// What changes of a yuno, if anything does.
fn plan(unit: &Unit, offer: &Offer) -> Option<Plan> {
    let Spec::Yuno(spec) = &unit.desired.spec;
    let goes = |from: &Version, to: &Version| offer.force || to.age_order(from).is_gt();
    let artifact = offer
        .artifacts
        .get(&spec.artifact.role)
        .filter(|found| found.sha256 != spec.artifact.sha256 && goes(&spec.artifact.version, &found.version));
    let configs: Vec<(&ConfigRef, &Config)> = spec
        .configs
        .iter()
        .filter_map(|has| Some((has, offer.configs.get(&has.id)?)))
        .filter(|(has, found)| has.sha256 != found.sha256 && goes(&has.version, &found.version))
        .collect();
    if artifact.is_none() && configs.is_empty() {
        return None;
    }
    let step = |what: String, from: &Version, to: &Version| Step { what, from: from.clone(), to: to.clone() };
    let steps = configs.iter().map(|(has, found)| step(has.id.to_string(), &has.version, &found.version)).collect();
    let wanted = artifact.map(artifact_ref);
    let configs: Vec<ConfigRef> = configs.iter().map(|(_, found)| config_ref(found)).collect();
    let mut after = spec.clone();
    after.artifact = wanted.clone().unwrap_or(after.artifact);
    for place in &mut after.configs {
        if let Some(config) = configs.iter().find(|config| config.id == place.id) {
            place.clone_from(config);
        }
    }
    let run = unit.desired.run;
    Some(Plan {
        host: unit.host,
        hostname: unit.hostname.clone(),
        unit: unit.unit.clone(),
        artifact: artifact.map(|found| step(found.role.to_string(), &spec.artifact.version, &found.version)),
        configs: steps,
        cost: cost((&unit.desired.spec, run), (&Spec::Yuno(after), run)),
        asks: Some(Asked::UnitUpgrade {
            unit: unit.unit.clone(),
            from: unit.desired.revision.clone(),
            artifact: wanted,
            configs,
        }),
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
        unit::{Desired, Observed, Run, YunoSpec},
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

    fn unit(version: &str) -> Unit {
        let Artifact { sha256, size_bytes, role, version, .. } = artifact(version);
        let spec = Spec::Yuno(YunoSpec::new(ArtifactRef { sha256, size_bytes, role, version, manifest: None }));
        Unit {
            host: HostId(uuid::Uuid::nil()),
            hostname: "anna".to_owned(),
            unit: "default/web".parse().unwrap(),
            desired: Desired { generation: 1, revision: Digest::of(b"r"), spec, run: Run::Running, frozen: false },
            observed: Observed::absent(0),
            hold: None,
            pins: muster_topics::snapshot::Pins::default(),
            at_ms: 0,
        }
    }

    #[track_caller]
    fn check(has: &str, offered: &str, force: bool, planned: Option<&str>) {
        let offer =
            Offer { artifacts: [("web".parse().unwrap(), artifact(offered))].into(), configs: BTreeMap::new(), force };
        let plan = plan(&unit(has), &offer).and_then(|plan| plan.artifact).map(|step| step.to_string());
        assert_eq!(plan.as_deref(), planned, "{has}, {offered}");
    }

    #[test]
    fn forward_only_unless_forced() {
        check("1.2.0", "1.10.0", false, Some("web 1.2.0 → 1.10.0"));
        check("1.10.0", "1.2.0", false, None);
        check("1.10.0", "1.2.0", true, Some("web 1.10.0 → 1.2.0"));
        check("1.10.0", "1.10.0", true, None);
    }
}
