//! `muster deployment`: units on all hosts that a target selects, in versions.
//!
//! `change` (apply, rollback, rm), `follow` (progress on hosts), `confirm` (after a restore).

pub(crate) mod change;
mod confirm;
pub(crate) mod follow;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use muster_api::{
    Change, Deployment, DeploymentDetail, DeploymentDifferences, DeploymentHost, DeploymentState, DeploymentUnitChange,
    DeploymentVersionDetail, DeploymentVersionInfo, NamedHost, SyncFinding, SyncReport, UnitOnHosts,
    host_names::HostNames,
};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentUnit, UnitOwner},
    name::UnitName,
};

use self::follow::{FollowGoal, states};
use super::{
    apply::shown,
    command_follower::named,
    host_target::HostOptions,
    print::{self, PrintFormat},
    session::CliSession,
    yaml,
};

/// Verbs on deployments.
#[derive(Subcommand, Clone, Debug)]
pub enum DeploymentVerb {
    /// Create and change deployments as documents say
    ///
    /// Deployments that the documents do not name stay as they are.
    Apply(change::ApplyDeploymentArgs),
    /// List deployments, and how far they are on their hosts
    Ls,
    /// Show a deployment: its units, and its hosts with their states
    Show(ShowDeployment),
    /// Print a deployment as a document for `muster deployment apply`
    Export {
        /// REALM/NAME
        deployment: DeploymentName,
        /// Number of a version [default: the present one]
        #[arg(long, value_name = "NUMBER")]
        version: Option<u32>,
    },
    /// List the versions of a deployment
    History {
        /// REALM/NAME
        deployment: DeploymentName,
    },
    /// Show how two versions of a deployment differ
    Diff {
        /// REALM/NAME
        deployment: DeploymentName,
        /// Number of one version [default: the one before the other]
        from: Option<u32>,
        /// Number of the other version [default: the present one]
        to: Option<u32>,
    },
    /// List who has changed deployments, cordons and variables
    ///
    /// `muster command ls` lists what was ordered of hosts.
    Changes {
        /// REALM/NAME [default: all, with cordons and variables]
        deployment: Option<DeploymentName>,
        /// Show so many at most
        #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Go back to an earlier version of a deployment
    ///
    /// That is a new version, with the content of the earlier one.
    Rollback(change::RollBackArgs),
    /// Remove a deployment, and its units from their hosts
    Rm(change::RemoveDeploymentArgs),
    /// Follow a deployment until all its hosts are done
    ///
    /// Hosts that are away are waited for as well.
    Watch(WatchDeployment),
    /// Have a deployment take over units that verbs made
    ///
    /// The unit becomes what the deployment says, and is changed there from then on.
    Adopt(AdoptUnits),
    /// Confirm hosts whose documents this console did not make
    Confirm(confirm::ConfirmArgs),
    /// Show what the last comparison of hosts with their documents found
    Sync,
    /// Print the JSON Schema of a deployment's document
    Schema,
}

/// The deployment that is shown.
#[derive(Args, Clone, Debug)]
pub struct ShowDeployment {
    /// REALM/NAME
    deployment: DeploymentName,
    /// State of the hosts [default: all]; repeatable
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<DeploymentState>,
}

/// The deployment that is followed.
#[derive(Args, Clone, Debug)]
pub struct WatchDeployment {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Wait so long until it is done [default: until it is]
    #[arg(long, value_name = "TIME")]
    timeout: Option<humantime::Duration>,
}

/// The units that a deployment takes over.
#[derive(Args, Clone, Debug)]
pub struct AdoptUnits {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Unit, REALM/NAME
    unit: UnitName,
    #[command(flatten)]
    hosts: HostOptions,
}

fn parse_state(text: &str) -> Result<DeploymentState, String> {
    DeploymentState::ALL.into_iter().find(|state| state.word() == text).ok_or_else(|| {
        let known: Vec<&str> = DeploymentState::ALL.iter().map(|state| state.word()).collect();
        format!("unknown state; use one of {}", known.join(", "))
    })
}

/// The path of a deployment in the API.
fn path(deployment: &DeploymentName) -> String {
    format!("deployments/{deployment}")
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: DeploymentVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        DeploymentVerb::Apply(args) => change::apply(args, session).await,
        DeploymentVerb::Ls => list(session).await,
        DeploymentVerb::Show(wanted) => show(session, wanted).await,
        DeploymentVerb::Export { deployment, version } => export(session, &deployment, version).await,
        DeploymentVerb::History { deployment } => history(session, &deployment).await,
        DeploymentVerb::Changes { deployment, limit } => changes(session, deployment, limit).await,
        DeploymentVerb::Diff { deployment, from, to } => diff(session, &deployment, (from, to)).await,
        DeploymentVerb::Rollback(args) => change::roll_back(args, session).await,
        DeploymentVerb::Rm(args) => change::remove(args, session).await,
        DeploymentVerb::Watch(wanted) => watch(session, wanted).await,
        DeploymentVerb::Adopt(wanted) => adopt(session, wanted).await,
        DeploymentVerb::Confirm(args) => confirm::run(args, session).await,
        DeploymentVerb::Sync => sync(session).await,
        DeploymentVerb::Schema => schema(session.printer.format),
    }
}

/// Prints the schema, which needs no console: JSON, unless YAML is asked for.
///
/// # Errors
/// If writing to standard output fails.
pub fn schema(format: PrintFormat) -> Result<(), Failure> {
    let schema = muster_rules::deployment::schema();
    let format = if format == PrintFormat::Table { PrintFormat::Json } else { format };
    print::Printer::new(format).one(&schema, Vec::new)
}

async fn list(session: &CliSession) -> Result<(), Failure> {
    let deployments: Vec<Deployment> = session.client.get("deployments", &[]).await?;
    let now_ms = clock::now_ms();
    let row = |one: &Deployment| {
        vec![
            one.deployment.to_string(),
            one.version.number.to_string(),
            one.units.to_string(),
            one.hosts_total().to_string(),
            states(&one.hosts),
            print::age(one.version.applied_ms, now_ms),
            one.version.operator.to_string(),
        ]
    };
    let header = ["DEPLOYMENT", "VERSION", "UNITS", "HOSTS", "STATES", "CHANGED", "BY"];
    let empty = "no deployments; `muster deployment apply --help` describes one";
    session.printer.list(&deployments, &header, row, empty)
}

async fn detail(session: &CliSession, deployment: &DeploymentName) -> Result<DeploymentDetail, Failure> {
    session.client.get(&path(deployment), &[]).await
}

/// `4, applied 5 min ago by anna`.
fn version_words(version: &DeploymentVersionInfo, now_ms: Millis) -> String {
    let as_ = version.repeats.map(|number| format!(", as version {number}")).unwrap_or_default();
    let age = print::age(version.applied_ms, now_ms);
    format!("{}{as_}, applied {age} by {} ({})", version.number, version.operator, version.digest.short())
}

async fn show(session: &CliSession, wanted: ShowDeployment) -> Result<(), Failure> {
    let mut detail = detail(session, &wanted.deployment).await?;
    detail.on_hosts.retain(|host| wanted.state.is_empty() || wanted.state.contains(&host.state));
    // Those that need somebody stand first.
    detail.on_hosts.sort_by(|a, b| (a.state, &a.hostname, a.host).cmp(&(b.state, &b.hostname, b.host)));
    let now_ms = clock::now_ms();
    session.printer.one(&detail, || {
        let of = &detail.deployment;
        let mut lines = vec![
            ("deployment", of.deployment.to_string()),
            ("version", version_words(&of.version, now_ms)),
            ("target", of.select.to_string()),
            ("hosts", states(&of.hosts)),
        ];
        lines.extend(detail.content.iter().map(|unit| ("unit", unit_words(unit))));
        lines.extend(detail.placement.iter().map(|one| ("placement", format!("{}: {}", one.unit, one.words()))));
        lines
    })?;
    if session.printer.is_for_programs() {
        return Ok(());
    }
    let names = names(&detail.on_hosts);
    let row = |host: &DeploymentHost| {
        vec![
            names.show(host.host, &host.hostname),
            host.state.word().to_owned(),
            host.version.to_string(),
            host.wanted.map_or_else(|| "none".to_owned(), |number| number.to_string()),
            host.away_since_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default(),
            names_of_instances(host),
            host.reason.as_ref().map(|why| format!("{why:#}")).unwrap_or_default(),
        ]
    };
    let empty = match wanted.state.is_empty() {
        true => "no host is selected by its target; `muster host label` gives hosts labels",
        false => "no host is in this state",
    };
    print::write_out("\n")?;
    let header = ["HOST", "STATE", "HAS", "WANTED", "AWAY SINCE", "INSTANCES", "WHY"];
    session.printer.list(&detail.on_hosts, &header, row, empty)
}

/// The most instances that a row names.
const INSTANCES_NAMED_MAX: usize = 5;

fn names_of_instances(host: &DeploymentHost) -> String {
    let first: Vec<&str> = host.instances.iter().take(INSTANCES_NAMED_MAX).map(UnitName::as_str).collect();
    let more = host.instances.len() - first.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", first.join(" "))
}

fn names(hosts: &[DeploymentHost]) -> HostNames<'_> {
    HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())))
}

fn unit_words(unit: &DeploymentUnit) -> String {
    let content = muster_topics::unit::Content::of(&unit.spec);
    let configs: String = content.configs.iter().map(|config| format!(" {config}")).collect();
    let run = if unit.run.is_running() { "" } else { ", stopped" };
    format!("{}: {}{configs}{run}", unit.unit, content.artifact)
}

/// Prints the document of a version.
async fn export(session: &CliSession, deployment: &DeploymentName, version: Option<u32>) -> Result<(), Failure> {
    let document = match version {
        None => detail(session, deployment).await?.document,
        Some(number) => {
            let path = format!("{}/versions/{number}", path(deployment));
            session.client.get::<DeploymentVersionDetail>(&path, &[]).await?.document
        }
    };
    match session.printer.format {
        PrintFormat::Json => session.printer.one(&document, Vec::new),
        PrintFormat::Table | PrintFormat::Yaml => print::write_out(&yaml::document(&document)?),
    }
}

async fn history(session: &CliSession, deployment: &DeploymentName) -> Result<(), Failure> {
    let versions: Vec<DeploymentVersionInfo> =
        session.client.get(&format!("{}/history", path(deployment)), &[]).await?;
    let now_ms = clock::now_ms();
    let row = |one: &DeploymentVersionInfo| {
        vec![
            one.number.to_string(),
            print::age(one.applied_ms, now_ms),
            one.operator.to_string(),
            one.digest.short().to_owned(),
            one.repeats.map(|number| format!("as version {number}")).unwrap_or_default(),
        ]
    };
    session.printer.list(&versions, &["VERSION", "APPLIED", "BY", "DIGEST", "CONTENT"], row, "")
}

async fn changes(session: &CliSession, deployment: Option<DeploymentName>, limit: u32) -> Result<(), Failure> {
    let mut query = vec![("limit", limit.to_string())];
    query.extend(deployment.map(|deployment| ("subject", deployment.to_string())));
    let changes: Vec<Change> = session.client.get("changes", &query).await?;
    let now_ms = clock::now_ms();
    let row = |one: &Change| {
        vec![
            print::age(one.at_ms, now_ms),
            one.operator.to_string(),
            one.kind.words().to_owned(),
            one.subject.clone(),
            one.detail.clone(),
        ]
    };
    session.printer.list(&changes, &["WHEN", "BY", "CHANGE", "OF", "DETAIL"], row, "nothing was changed so far")?;
    print::say_if_limited(changes.len(), limit);
    Ok(())
}

async fn diff(
    session: &CliSession,
    deployment: &DeploymentName,
    (from, to): (Option<u32>, Option<u32>),
) -> Result<(), Failure> {
    let query: Vec<_> =
        [("from", from), ("to", to)].into_iter().filter_map(|(key, number)| Some((key, number?.to_string()))).collect();
    let found: DeploymentDifferences = session.client.get(&format!("{}/differences", path(deployment)), &query).await?;
    let select = found.select.iter().map(|select| {
        let change = format!("{} → {}", shown(select.from.as_ref()), shown(select.to.as_ref()));
        vec![String::new(), String::new(), String::new(), "target.select".to_owned(), change]
    });
    let changed: Vec<DeploymentUnitChange> =
        found.units.iter().filter(|unit| unit.change != muster_api::UnitChange::Unchanged).cloned().collect();
    if !session.printer.is_for_programs() {
        let of = if found.from == 0 { "nothing".to_owned() } else { format!("version {}", found.from) };
        print::say(format_args!("from {of} to version {}", found.to));
        if changed.is_empty() && found.select.is_none() {
            print::say("they do not differ");
            return Ok(());
        }
    }
    session.printer.table(&found, &["UNIT", "ACTION", "COST", "FIELD", "CHANGE"], select.chain(unit_rows(&changed)))
}

/// One row for each changed field of each unit; only the first row of a unit names it.
fn unit_rows(units: &[DeploymentUnitChange]) -> impl Iterator<Item = Vec<String>> {
    units.iter().flat_map(|unit| {
        let cost = unit.cost.filter(|_| unit.change == muster_api::UnitChange::Change).map_or("", |cost| cost.words());
        let first = [unit.unit.as_str(), unit.change.word(), cost].map(str::to_owned).to_vec();
        let blank = vec![String::new(); first.len()];
        let changes: Vec<[String; 2]> = unit
            .differences
            .iter()
            .map(|one| {
                let change = match (&one.from, &one.to) {
                    (None, to) => shown(to.as_ref()),
                    (from, to) => format!("{} → {}", shown(from.as_ref()), shown(to.as_ref())),
                };
                [one.field.clone(), change]
            })
            .collect();
        (0..changes.len().max(1)).map(move |line| {
            let names = if line == 0 { &first } else { &blank };
            names.iter().cloned().chain(changes.get(line).cloned().unwrap_or_default()).collect()
        })
    })
}

async fn watch(session: &CliSession, wanted: WatchDeployment) -> Result<(), Failure> {
    let lines = session.printer.in_lines();
    let limit = wanted.timeout.map(Into::into);
    let followed =
        follow::follow(session, &wanted.deployment, FollowGoal::All, limit, |event| lines.item(event)).await?;
    followed.tell();
    followed.verdict()
}

async fn adopt(session: &CliSession, wanted: AdoptUnits) -> Result<(), Failure> {
    let target = wanted.hosts.others.target_or_only(session, &wanted.hosts.hosts).await?;
    let asked = UnitOnHosts { unit: wanted.unit, target };
    let changed: Vec<NamedHost> = session.client.post(&format!("{}/adopt", path(&wanted.deployment)), &asked).await?;
    session.printer.data(&changed)?;
    print::say(format_args!("{} takes over {} on {}", wanted.deployment, asked.unit, hosts(&changed)));
    Ok(())
}

/// `2 hosts: till-7, till-8`.
fn hosts(hosts: &[NamedHost]) -> String {
    let names: Vec<String> = hosts.iter().map(|host| host.hostname.clone()).collect();
    match names.as_slice() {
        [] => "no host, where it was so already".to_owned(),
        [one] => one.clone(),
        several => format!("{} hosts: {}", several.len(), named(several)),
    }
}

/// `shop/till, version 4`: what a unit belongs to.
pub(super) fn owner(owner: &UnitOwner) -> String {
    let of = format!("{}, version {}", owner.deployment, owner.version);
    if owner.orphan {
        return format!("{of}; an orphan: its host's document neither has nor removes it");
    }
    of
}

/// Leaves units of deployments to verbs.
///
/// # Errors
/// If a unit does not belong to a deployment, or if the console refuses it.
pub async fn detach(session: &CliSession, units: &[&muster_api::Unit]) -> Result<(), Failure> {
    if let Some(unit) = units.iter().find(|unit| unit.owner.is_none()) {
        let message = format!("{} on {} belongs to no deployment", unit.unit, unit.hostname);
        return Err(Failure::new(FailureKind::Refused, message)
            .hint("`muster unit apply` and `muster unit create yuno` change it"));
    }
    let mut groups: BTreeMap<(DeploymentName, UnitName), Vec<String>> = BTreeMap::new();
    for unit in units {
        let Some(owner) = &unit.owner else { continue };
        groups.entry((owner.deployment.clone(), unit.unit.clone())).or_default().push(unit.host.to_string());
    }
    let mut changed = Vec::new();
    for ((deployment, unit), on) in groups {
        let asked = UnitOnHosts { unit, target: muster_api::NewTarget::Hosts(on) };
        let done: Vec<NamedHost> = session.client.post(&format!("{}/detach", path(&deployment)), &asked).await?;
        print::say(format_args!("{} leaves {} to verbs on {}", deployment, asked.unit, hosts(&done)));
        changed.extend(done);
    }
    session.printer.data(&changed)
}

async fn sync(session: &CliSession) -> Result<(), Failure> {
    let report: SyncReport = session.client.get("deployments/sync", &[]).await?;
    let now_ms = clock::now_ms();
    session.printer.one(&report, || {
        let every = print::span(i64::try_from(report.interval_ms / 1_000).unwrap_or(i64::MAX));
        let Some(run) = &report.last else {
            return vec![("every", every), ("last run", "none has ended yet".to_owned())];
        };
        let counts: Vec<String> = run.counts.iter().map(|(kind, count)| format!("{count} {}", kind.word())).collect();
        vec![
            ("every", every),
            ("last run", format!("{}, took {} ms", print::age(run.begun_ms, now_ms), run.took_ms)),
            ("hosts", format!("{}, of which {} have what they should have", run.hosts, run.alike)),
            ("incomplete", run.incomplete.clone().unwrap_or_default()),
            ("found", if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") }),
        ]
    })?;
    let findings = report.last.as_ref().map(|run| run.findings.as_slice()).unwrap_or_default();
    if session.printer.is_for_programs() || findings.is_empty() {
        return Ok(());
    }
    let names = HostNames::new(findings.iter().map(|one| (one.host, one.hostname.as_str())));
    let row =
        |one: &SyncFinding| vec![names.show(one.host, &one.hostname), one.kind.word().to_owned(), one.detail.clone()];
    print::write_out("\n")?;
    session.printer.list(findings, &["HOST", "FOUND", "DETAIL"], row, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_known_by_their_words() {
        for state in DeploymentState::ALL {
            assert_eq!(parse_state(state.word()), Ok(state));
        }
        assert!(parse_state("verifed").unwrap_err().contains("verified"));
    }
}
