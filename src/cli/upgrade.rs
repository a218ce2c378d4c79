//! `muster unit upgrade`: upgrades units to newer artifacts, configs and secrets, with what changes shown before anything is
//! changed.

use clap::Args;
use muster_api::{
    Artifact, ChangeCost, Config, Secret, Unit,
    upgrade::{self, Offer, Step, Upgrade},
};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    command::Verb as Asked,
    name::{HostId, UnitName},
};
use serde::Serialize;

use super::{
    artifact,
    change::{WaitOptions, ask_first, change_each},
    config, print,
    session::CliSession,
    target::Noun,
    unit_lookup,
    unit_targets::{AnyUnits, UnitTargets, candidates, pick},
};
use muster_api::host_names::HostNames;

/// Bring units to the newest artifact of their role and the newest version of their configs and secrets.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "The newest is the one with the highest number by semantic versioning; where a version is not a number, such as a hash, it is the one that was added last. A pre-release (1.3.0-rc.1) is \
                    only taken if it is named, or if there is no release. A version older than the present one \
                    is only taken with --force."
)]
pub struct UpgradeArgs {
    /// Which units
    #[command(flatten)]
    pub which: AnyUnits,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Artifact for units of its role: ROLE@VERSION or a SHA-256
    ///
    /// [default: the newest]
    #[arg(long, value_name = "ROLE@VERSION")]
    pub artifact: Option<String>,
    /// Config for units that have it: ID@VERSION; repeatable
    ///
    /// [default: the newest]
    #[arg(long = "config", value_name = "ID@VERSION")]
    pub configs: Vec<String>,
    /// Allow a downgrade to what is named
    #[arg(long)]
    pub force: bool,
    /// Do not ask first
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

/// The upgrade of one unit.
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
pub async fn run(wanted: UpgradeArgs, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    let which = UnitTargets::from(wanted.which);
    let all = candidates(session, &which).await?;
    let picked = pick(&all, &which, noun.verb("upgrade"))?;
    let offer = offer(session, wanted.artifact.as_deref(), &wanted.configs, wanted.force).await?;
    let plans: Vec<(&Unit, UnitUpgrade)> =
        picked.into_iter().filter_map(|unit| Some((unit, plan(unit, &offer)?))).collect();
    let shown: Vec<UnitUpgrade> = plans.iter().map(|(_, plan)| plan.clone()).collect();
    if wanted.dry_run || shown.is_empty() {
        return show(session, &shown);
    }
    carry_out(session, plans, wanted.yes, wanted.wait).await
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
        ask_first(&format!("upgrade {} units", plans.len()), plans.iter().map(|(unit, _)| *unit))?;
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

/// The upgrade of a unit, if there is one.
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
