//! `muster yuno upgrade`: upgrades yunos to newer artifacts and configs, with a plan that is shown before anything
//! is changed.

use clap::Args;
use muster_api::{
    Artifact, ChangeCost, Config, Secret, Unit,
    upgrade::{self, Offer, Step, Upgrade},
};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    command::Verb as Asked,
    name::{HostId, UnitName},
    select::Select,
};
use serde::Serialize;

use super::{
    artifact,
    change::{UnitChange, WaitOptions, ask_first, candidates, change_each, pick},
    config, print,
    session::CliSession,
    target::{Noun, UnitRef},
    unit_lookup,
};
use muster_api::host_names::HostNames;

/// Bring yunos to the newest artifact of their role and the newest version of their configs and secrets.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "The newest is the one with the highest number by semantic versioning; where a version is not a number, such as a hash, it is the one that was added last. A pre-release (1.3.0-rc.1) is \
                    only taken if it is named, or if there is no release. A version older than the present one \
                    is only taken with --force."
)]
pub struct UpgradeArgs {
    /// Units: REALM/NAME or HOST:REALM/NAME [default: all]
    pub units: Vec<UnitRef>,
    /// Units that this selects, such as 'realm=prod and role=web'
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "units")]
    pub select: Option<Select>,
    /// Host, by id or hostname; repeatable
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Every host that has such a unit
    #[arg(long, conflicts_with = "select")]
    pub all: bool,
    /// Show what would be done
    #[arg(long)]
    pub plan: bool,
    /// Artifact for yunos of its role: ROLE@VERSION or a SHA-256
    ///
    /// [default: the newest]
    #[arg(long, value_name = "ROLE@VERSION")]
    pub artifact: Option<String>,
    /// Config for yunos that have it: ID@VERSION; repeatable
    ///
    /// [default: the newest]
    #[arg(long = "config", value_name = "ID@VERSION")]
    pub configs: Vec<String>,
    /// Allow a downgrade to what is named
    #[arg(long)]
    pub force: bool,
    /// Do not ask before several yunos are changed
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

/// The upgrade of one yuno.
#[derive(Clone, Debug, Serialize)]
struct UnitUpgrade {
    host: HostId,
    hostname: String,
    unit: UnitName,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    configs: Vec<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<Step>,
    /// The effect on its process.
    cost: ChangeCost,
    #[serde(skip)]
    asks: Option<Asked>,
}

/// Runs the verb.
///
/// # Errors
/// If it cannot be planned, if the user does not confirm, or if a change fails.
pub async fn run(wanted: UpgradeArgs, session: &CliSession) -> Result<(), Failure> {
    let everything = wanted.units.is_empty() && wanted.select.is_none();
    let which = UnitChange {
        units: wanted.units,
        select: wanted.select,
        hosts: wanted.hosts,
        all: wanted.all || everything,
        yes: wanted.yes,
        wait: wanted.wait,
    };
    let all = candidates(session, &which).await?;
    let picked = pick(session, &all, &which, Noun::Yuno)?;
    let offer = offer(session, wanted.artifact.as_deref(), &wanted.configs, wanted.force).await?;
    let plans: Vec<(&Unit, UnitUpgrade)> =
        picked.into_iter().filter_map(|unit| Some((unit, plan(unit, &offer)?))).collect();
    let shown: Vec<UnitUpgrade> = plans.iter().map(|(_, plan)| plan.clone()).collect();
    if wanted.plan || shown.is_empty() {
        return show(session, &shown);
    }
    carry_out(session, plans, which.yes, which.wait).await
}

/// Brings units to the newest version of a secret, after a plan was shown.
///
/// # Errors
/// As [`run`].
pub(super) async fn with_secret(
    session: &CliSession,
    secret: &Secret,
    yes: bool,
    wait: WaitOptions,
) -> Result<(), Failure> {
    let offer = Offer::default().with_secrets([secret.newest()]);
    let units = unit_lookup::units(session, None).await?;
    let plans: Vec<(&Unit, UnitUpgrade)> = units.iter().filter_map(|unit| Some((unit, plan(unit, &offer)?))).collect();
    if plans.is_empty() {
        return Ok(());
    }
    carry_out(session, plans, yes, wait).await
}

async fn carry_out(
    session: &CliSession,
    plans: Vec<(&Unit, UnitUpgrade)>,
    yes: bool,
    wait: WaitOptions,
) -> Result<(), Failure> {
    show_table(&plans.iter().map(|(_, plan)| plan.clone()).collect::<Vec<_>>());
    if plans.len() > 1 && !yes {
        ask_first(&format!("upgrade {} yunos", plans.len()), plans.iter().map(|(unit, _)| *unit))?;
    }
    let wanted = plans.into_iter().filter_map(|(unit, plan)| Some((unit, plan.asks?))).collect();
    change_each(session, wanted, wait).await
}

const HEADER: [&str; 5] = ["HOST", "UNIT", "ARTIFACT", "CONFIG AND SECRETS", "COST"];

fn row(plan: &UnitUpgrade, names: &HostNames<'_>) -> Vec<String> {
    let configs: Vec<String> = plan.configs.iter().chain(&plan.secrets).map(Step::to_string).collect();
    let artifact = plan.artifact.as_ref().map(Step::to_string).unwrap_or_default();
    vec![
        names.show(plan.host, &plan.hostname),
        plan.unit.to_string(),
        artifact,
        configs.join(", "),
        plan.cost.words().to_owned(),
    ]
}

fn show(session: &CliSession, plans: &[UnitUpgrade]) -> Result<(), Failure> {
    let names = HostNames::new(plans.iter().map(|plan| (plan.host, plan.hostname.as_str())));
    session.printer.list(plans, &HEADER, |plan| row(plan, &names), "there is nothing newer")
}

/// Shows the plan to people before it is carried out; the data for programs are its results.
fn show_table(plans: &[UnitUpgrade]) {
    let names = HostNames::new(plans.iter().map(|plan| (plan.host, plan.hostname.as_str())));
    print::say(print::table(&HEADER, plans.iter().map(|plan| row(plan, &names))).trim_end());
}

/// The newest versions, or the named ones.
async fn offer(session: &CliSession, named: Option<&str>, configs: &[String], force: bool) -> Result<Offer, Failure> {
    if named.is_none() && configs.is_empty() && force {
        let nothing = Failure::new(FailureKind::Usage, "--force needs a named artifact or config");
        return Err(nothing.hint("pass --artifact ROLE@VERSION or --config ID@VERSION"));
    }
    let all: (Vec<Artifact>, Vec<Config>) =
        (session.client.get("artifacts", &[]).await?, session.client.get("configs", &[]).await?);
    let secrets: Vec<Secret> = session.client.get("secrets", &[]).await?;
    // If something is named, only that is upgraded, with the secrets of its units.
    if named.is_none() && configs.is_empty() {
        return Ok(Offer::newest(all.0, all.1).with_secrets(secrets.iter().map(Secret::newest)));
    }
    let (mut of_roles, mut of_ids) = (Vec::new(), Vec::new());
    if let Some(named) = named {
        of_roles.push(artifact::find(session, named).await?);
    }
    for named in configs {
        of_ids.push(config::find(session, named).await?);
    }
    Ok(Offer::named(of_roles, of_ids, (&all.0, &all.1), force).with_secrets(secrets.iter().map(Secret::newest)))
}

/// The upgrade of a yuno, if there is one.
fn plan(unit: &Unit, offer: &Offer) -> Option<UnitUpgrade> {
    let Upgrade { artifact, configs, secrets, cost, verb } = upgrade::upgrade(&unit.unit, &unit.desired, offer)?;
    let (host, hostname, unit) = (unit.host, unit.hostname.clone(), unit.unit.clone());
    Some(UnitUpgrade { host, hostname, unit, artifact, configs, secrets, cost, asks: Some(verb) })
}

#[cfg(test)]
pub(super) mod tests {
    use muster_topics::{
        name::Digest,
        snapshot::Pins,
        unit::{ArtifactRef, Desired, Observed, Run, Spec, YunoSpec},
    };

    use super::*;

    /// A unit with this version of an artifact.
    pub(crate) fn unit(version: &str) -> Unit {
        let spec = Spec::Yuno(YunoSpec::new(ArtifactRef {
            sha256: Digest::of(version.as_bytes()),
            size_bytes: 1,
            role: "web".parse().unwrap(),
            version: version.parse().unwrap(),
            manifest: None,
        }));
        Unit {
            host: HostId(uuid::Uuid::nil()),
            hostname: "anna".to_owned(),
            unit: "default/web".parse().unwrap(),
            desired: Desired {
                generation: 1,
                revision: Digest::of(b"r"),
                spec: spec.into(),
                run: Run::Running,
                frozen: false,
            },
            observed: Observed::absent(0),
            hold: None,
            owner: None,
            pins: Pins::default(),
            stats: None,
            at_ms: 0,
        }
    }
}
