//! `muster deployment apply`, `rollback` and `rm`: each shows what it changes, asks if that interrupts much, and follows it.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_api::{
    AppliedDeployment, AppliedDeployments, ApplyAction, ApplyDeployments, ApplyDocument, ChangeCost, DeploymentDetail,
    DeploymentHost, DeploymentState, NamedHost, RemovedDeployment, RollBack, Rollout, UnitChange, UnitPlacement,
};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;
use muster_topics::{desired::DeploymentName, name::Digest};
use serde::Serialize;

use super::{
    follow::{FollowGoal, FollowOptions, FollowedHosts, TIMEOUT, follow},
    path, unit_rows,
};
use crate::{
    apply::shown,
    command_follower::named,
    document_file,
    interruption::Interruption,
    print,
    rollout::{
        self,
        follow::{FollowedRollout, RolloutGoal},
    },
    session::CliSession,
};

/// Make deployments what documents say.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A document is a deployment: `deployment` (REALM/NAME), `target` and `units`. The target selects \
                    hosts, those that join later, too: `target: {select: 'label.role=till'}`; `host=*` selects \
                    all. Each unit has a `name`, and what a unit's own document has (`muster unit apply --help`) but \
                    `hosts`. With `count: 3` it has three instances, which the console places on hosts of the target; \
                    `placement: {spread: LABEL, max_per_host: 1}` says how. A file is YAML or JSON and may have several documents. Nothing is changed if anything is \
                    wrong, and all that is wrong is reported at once.\n\n\
                    A document that differs from the present one is a new version, which every host of the target \
                    gets at once, and a host that is away when it is back. A unit that is no longer in it is removed from its hosts, when the policy of each host allows that. The verb ends when all online \
                    hosts have verified it, with exit code 1 if one of them has not.\n\n\
                    With `rollout`, hosts change a few at a time, and the verb follows that to its end: `rollout: {}` is \
                    one host first, then a tenth, then the rest; `muster rollout` steers it. It ends with exit code 1 if \
                    the rollout fails, or is paused."
)]
pub struct ApplyDeploymentArgs {
    /// Files of documents, or folders of such; `-` is standard input
    ///
    /// Of a folder, all files are read whose names end with .yaml, .yml or .json.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show what would be done, and do nothing
    ///
    /// It is shown field by field and host by host.
    #[arg(long)]
    dry_run: bool,
    /// Let deployments take over units that were made by verbs
    ///
    /// Without it, such a deployment is refused.
    #[arg(long)]
    adopt: bool,
    /// Change only what this plan has shown
    ///
    /// `muster plan` makes it, and prints its digest. A host that would change something else by then does not begin:
    /// `muster rollout show` says so. Needs a `rollout` in the document.
    #[arg(long, value_name = "DIGEST")]
    plan: Option<Digest>,
    /// Do not ask first
    ///
    /// It is asked before several processes are stopped or restarted.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    wait: FollowOptions,
}

/// Make a version of a deployment that has the content of an earlier one.
#[derive(Args, Clone, Debug)]
pub struct RollBackArgs {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Number of the version [default: the one before the present one]
    #[arg(long, value_name = "NUMBER")]
    to: Option<u32>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask first
    ///
    /// It is asked before several processes are stopped or restarted.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    wait: FollowOptions,
}

/// Remove a deployment, and its units from their hosts.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "Each host stops the units, and removes them when its own policy allows it: one at a time and a \
                    quarter of its units in a day by default. `muster deployment show` shows which wait; `muster unit rm` \
                    does not wait. Units whose hosts are away are removed when these are back."
)]
pub struct RemoveDeploymentArgs {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Remove the data of its units, too
    #[arg(long)]
    purge: bool,
    /// Leave its units as they are on their hosts
    ///
    /// They go on as orphans, until there is a deployment of this name with them again, or `muster unit detach` leaves
    /// them to verbs.
    #[arg(long, conflicts_with = "purge")]
    keep: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask first
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    wait: FollowOptions,
}

/// The result for a deployment.
#[derive(Debug, Serialize)]
pub(crate) struct DeploymentResult<'a, T> {
    #[serde(flatten)]
    change: &'a T,
    /// Whether all hosts that are online have it.
    done: bool,
    /// The number of hosts in each state, if it was waited for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    states: BTreeMap<DeploymentState, u64>,
    /// Hosts that are not as desired yet, if it was waited for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<&'a DeploymentHost>,
    /// Its rollout, if it has one and was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<&'a Rollout>,
}

/// The most deployments that are followed at a time, each over its own connection.
const FOLLOWED: usize = 16;

/// Applies documents.
///
/// # Errors
/// If a document is invalid, if the user does not confirm, or if an online host does not get there.
pub(super) async fn apply(args: ApplyDeploymentArgs, session: &CliSession) -> Result<(), Failure> {
    let documents = document_file::read_all(&args.files, "deployment")?;
    let plan = DeploymentPlan::make(session, documents, args.adopt, args.plan).await?;
    if args.dry_run {
        return session.printer.table(&plan.deployments(), &HEADER, plan.rows());
    }
    plan.tell();
    plan.interruption().confirm(args.yes)?;
    let changed = plan.carry_out(session, args.wait).await?;
    session.printer.data(&changed.results())?;
    changed.verdict()
}

/// Documents of deployments, and what applying them would change.
pub(crate) struct DeploymentPlan {
    asked: ApplyDeployments,
    planned: Vec<AppliedDeployment>,
}

impl DeploymentPlan {
    /// Asks the console what the documents would change; nothing is changed.
    ///
    /// # Errors
    /// If a document is invalid.
    pub(crate) async fn make(
        session: &CliSession,
        documents: Vec<ApplyDocument>,
        adopt: bool,
        plan: Option<Digest>,
    ) -> Result<Self, Failure> {
        let asked = ApplyDeployments { documents, dry_run: true, adopt, plan };
        let AppliedDeployments { deployments: planned } = session.client.post("deployments", &asked).await?;
        tell_notes(&planned);
        Ok(Self { asked, planned })
    }

    /// What would become of each deployment.
    pub(crate) fn deployments(&self) -> &[AppliedDeployment] {
        &self.planned
    }

    /// The rows of a table with [`HEADER`].
    pub(crate) fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        rows(&self.planned)
    }

    /// Shows what it would change.
    pub(crate) fn tell(&self) {
        print::say(print::table(&HEADER, self.rows()).trim_end());
    }

    /// The processes that it would stop or restart.
    pub(crate) fn interruption(&self) -> Interruption {
        interruption(&self.planned)
    }

    /// Changes the deployments, and follows them to their ends.
    ///
    /// # Errors
    /// If the console refuses it, or cannot be reached. What fails on a host is in the result.
    pub(crate) async fn carry_out(
        self,
        session: &CliSession,
        wait: FollowOptions,
    ) -> Result<ChangedDeployments, Failure> {
        let asked = ApplyDeployments { dry_run: false, ..self.asked };
        let AppliedDeployments { deployments } = session.client.post("deployments", &asked).await?;
        ChangedDeployments::follow(session, deployments, wait).await
    }
}

/// Goes back to an earlier version.
///
/// # Errors
/// As [`apply`].
pub(super) async fn roll_back(args: RollBackArgs, session: &CliSession) -> Result<(), Failure> {
    let to = format!("{}/rollback", path(&args.deployment));
    let planned: AppliedDeployment = session.client.post(&to, &RollBack { to: args.to, dry_run: true }).await?;
    let planned = [planned];
    tell_notes(&planned);
    if args.dry_run {
        return session.printer.table(&planned[0], &HEADER, rows(&planned));
    }
    print::say(print::table(&HEADER, rows(&planned)).trim_end());
    interruption(&planned).confirm(args.yes)?;
    let done: AppliedDeployment = session.client.post(&to, &RollBack { to: args.to, dry_run: false }).await?;
    let changed = ChangedDeployments::follow(session, vec![done], args.wait).await?;
    session.printer.data(&changed.results())?;
    changed.verdict()
}

/// Removes a deployment.
///
/// # Errors
/// If the user does not confirm, or if an online host does not remove it.
pub(super) async fn remove(args: RemoveDeploymentArgs, session: &CliSession) -> Result<(), Failure> {
    let name = &args.deployment;
    let query = |dry_run: bool| {
        [("purge", args.purge), ("keep", args.keep), ("dry_run", dry_run)].map(|(key, value)| (key, value.to_string()))
    };
    let planned: RemovedDeployment = session.client.delete(&path(name), &query(true)).await?;
    if args.dry_run {
        return session.printer.one(&planned, || removal_lines(&planned));
    }
    let (units, hosts) = (planned.units.len(), planned.hosts.len());
    let what = match (args.keep, args.purge) {
        (true, _) => format!("remove {name}, and keep {} on {} running", units_(units), hosts_(hosts)),
        (false, true) => format!("stop and remove {} on {}, with their data", units_(units), hosts_(hosts)),
        (false, false) => format!("stop and remove {} on {}", units_(units), hosts_(hosts)),
    };
    if !args.yes && hosts > 0 && !print::confirm(&format!("{what}?")) {
        return Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation")).hint("pass --yes"));
    }
    let removed: RemovedDeployment = session.client.delete(&path(name), &query(false)).await?;
    let (units, hosts_left) = (units_(removed.units.len()), hosts_(removed.hosts.len()));
    print::say(match args.keep {
        true => format!("{name} is removed; {units} on {hosts_left} without an owner: orphans"),
        false => format!("{name} is being removed, with {units} on {hosts_left}"),
    });
    let followed = match args.wait.no_wait || args.keep || hosts == 0 {
        true => None,
        false => follow_removal(session, name, args.wait).await?,
    };
    if let Some(followed) = &followed {
        followed.tell();
    }
    session.printer.data(&[result(&removed, followed.as_ref(), args.wait)])?;
    if !args.wait.no_wait && followed.as_ref().is_none_or(|followed| followed.counts().is_empty()) {
        print::say(format_args!("{name} is removed"));
    }
    followed.map_or(Ok(()), |followed| followed.verdict())
}

/// Follows a removal; once all of it is gone, there is no such deployment any more.
async fn follow_removal(
    session: &CliSession,
    name: &DeploymentName,
    wait: FollowOptions,
) -> Result<Option<FollowedHosts>, Failure> {
    match follow_as(session, name, wait).await {
        Ok(followed) => Ok(Some(followed)),
        Err(failure) if failure.kind == FailureKind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn follow_as(session: &CliSession, name: &DeploymentName, wait: FollowOptions) -> Result<FollowedHosts, Failure> {
    let goal = if wait.wait_offline { FollowGoal::All } else { FollowGoal::Online };
    follow(session, name, goal, Some(wait.timeout.map_or(TIMEOUT, Into::into)), |_| Ok(())).await
}

fn units_(count: usize) -> String {
    counted(count, "unit")
}

fn hosts_(count: usize) -> String {
    counted(count, "host")
}

fn removal_lines(removed: &RemovedDeployment) -> Vec<(&'static str, String)> {
    let units = removed.units.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    vec![
        ("deployment", removed.deployment.to_string()),
        ("units", units),
        ("hosts", format!("{}: {}", removed.hosts.len(), host_names(&removed.hosts))),
    ]
}

fn host_names(hosts: &[NamedHost]) -> String {
    named(&hosts.iter().map(|host| host.hostname.clone()).collect::<Vec<_>>())
}

/// What was changed, as followed: host by host, or as a rollout.
enum Followed {
    Hosts(FollowedHosts),
    Rollout(Box<FollowedRollout>),
}

impl Followed {
    fn tell(&self) {
        match self {
            Self::Hosts(hosts) => hosts.tell(),
            Self::Rollout(rollout) => rollout.tell(),
        }
    }

    fn verdict(&self) -> Result<(), Failure> {
        match self {
            Self::Hosts(hosts) => hosts.verdict(),
            Self::Rollout(rollout) => rollout.verdict(),
        }
    }
}

async fn follow_change(
    session: &CliSession,
    changed: &AppliedDeployment,
    wait: FollowOptions,
) -> Result<Followed, Failure> {
    if !changed.is_rolled_out {
        return Ok(Followed::Hosts(follow_as(session, &changed.deployment, wait).await?));
    }
    let goal = RolloutGoal { version: Some(changed.version), waits_for_away: wait.wait_offline };
    let limit = wait.timeout.map(Into::into);
    let followed = rollout::follow::follow(session, &changed.deployment, goal, limit, |_| Ok(())).await?;
    Ok(Followed::Rollout(Box::new(followed)))
}

/// Deployments that were changed, and what became of them.
pub(crate) struct ChangedDeployments {
    changed: Vec<AppliedDeployment>,
    followed: Vec<Option<Followed>>,
    /// Instances that have no place.
    unplaced: Vec<Failure>,
    wait: FollowOptions,
}

impl ChangedDeployments {
    /// Follows what was changed to its end, if it is to be waited for.
    async fn follow(
        session: &CliSession,
        changed: Vec<AppliedDeployment>,
        wait: FollowOptions,
    ) -> Result<Self, Failure> {
        for one in &changed {
            let version = format!("{} has version {}", one.deployment, one.version);
            match one.action {
                ApplyAction::Unchanged => print::say(format_args!("{version}, unchanged")),
                ApplyAction::Create | ApplyAction::Change => {
                    print::say(format_args!(
                        "{version}, on {}",
                        hosts_(usize::try_from(one.hosts).unwrap_or(usize::MAX))
                    ));
                }
            }
        }
        let followed: Vec<Option<Followed>> = if wait.no_wait {
            changed.iter().map(|_| None).collect()
        } else {
            let each = changed.iter().map(async |one| follow_change(session, one, wait).await.map(Some));
            stream::iter(each.collect::<Vec<_>>()).buffered(FOLLOWED).try_collect().await?
        };
        followed.iter().flatten().for_each(Followed::tell);
        let mut unplaced_instances = Vec::new();
        for one in changed.iter().filter(|one| one.placement.iter().any(UnitPlacement::has_waiting)) {
            match wait.no_wait {
                true => tell_waiting(&one.placement),
                false => unplaced_instances.extend(unplaced(session, &one.deployment).await?),
            }
        }
        Ok(Self { changed, followed, unplaced: unplaced_instances, wait })
    }

    /// The result of each deployment, for programs.
    pub(crate) fn results(&self) -> Vec<DeploymentResult<'_, AppliedDeployment>> {
        let Self { changed, followed, wait, .. } = self;
        let results = changed.iter().zip(followed).map(|(one, followed)| match followed {
            Some(Followed::Rollout(followed)) => DeploymentResult {
                change: one,
                done: followed.verdict().is_ok(),
                states: BTreeMap::new(),
                left: Vec::new(),
                rollout: followed.last(),
            },
            Some(Followed::Hosts(followed)) => result(one, Some(followed), *wait),
            None => result(one, None, *wait),
        });
        results.collect()
    }

    /// `2 deployments: 1 created, 0 changed, 1 unchanged; 1 failed`.
    pub(crate) fn summary(&self) -> String {
        let count = |action: ApplyAction| self.changed.iter().filter(|one| one.action == action).count();
        let failed = self.failures().len();
        format!(
            "{}: {} created, {} changed, {} unchanged{}",
            if self.changed.len() == 1 {
                "1 deployment".to_owned()
            } else {
                format!("{} deployments", self.changed.len())
            },
            count(ApplyAction::Create),
            count(ApplyAction::Change),
            count(ApplyAction::Unchanged),
            if failed == 0 { String::new() } else { format!("; {failed} failed") },
        )
    }

    /// What failed of those that were followed.
    fn failures(&self) -> Vec<Failure> {
        self.followed.iter().flatten().filter_map(|one| one.verdict().err()).collect()
    }

    /// Whether a deployment has not got there, on a host or at all.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failures().is_empty() || !self.unplaced.is_empty()
    }

    /// The failure of the verb, if there is one; several are reported.
    ///
    /// # Errors
    /// If a host failed, or if an instance has no place.
    pub(crate) fn verdict(self) -> Result<(), Failure> {
        let mut failures = self.failures();
        failures.extend(self.unplaced);
        match failures.len() {
            0 => Ok(()),
            1 => failures.pop().map_or(Ok(()), Err),
            _ => {
                failures.iter().for_each(print::say_failure);
                Err(Failure::silent(FailureKind::Failed))
            }
        }
    }
}

fn tell_waiting(placement: &[UnitPlacement]) {
    for unit in placement.iter().filter(|unit| unit.has_waiting()) {
        print::say(format_args!("{}: {}", unit.unit, unit.words()));
    }
}

/// Says which instances have no place after all.
async fn unplaced(session: &CliSession, name: &DeploymentName) -> Result<Option<Failure>, Failure> {
    let DeploymentDetail { placement, .. } = super::detail(session, name).await?;
    let waiting: Vec<String> = placement
        .iter()
        .filter(|unit| unit.has_waiting())
        .map(|unit| format!("\n  {}: {}", unit.unit, unit.words()))
        .collect();
    Ok((!waiting.is_empty()).then(|| {
        let message = format!("instances of {name} cannot be placed:{}", waiting.concat());
        let hint = "they are placed as soon as a host has room for them; `muster deployment show` shows which wait";
        Failure::new(FailureKind::Failed, message).hint(hint)
    }))
}

fn result<'a, T>(change: &'a T, followed: Option<&'a FollowedHosts>, wait: FollowOptions) -> DeploymentResult<'a, T> {
    let done = !wait.no_wait && followed.is_none_or(|followed| followed.verdict().is_ok());
    let states = followed.map(FollowedHosts::counts).unwrap_or_default();
    let left = followed.map(FollowedHosts::left).unwrap_or_default();
    DeploymentResult { change, done, states, left, rollout: None }
}

fn tell_notes(planned: &[AppliedDeployment]) {
    for (one, note) in planned.iter().flat_map(|one| one.notes.iter().map(move |note| (one, note))) {
        print::say(format_args!("{}: {note}", one.deployment));
    }
}

/// The header of what would change.
pub(crate) const HEADER: [&str; 6] = ["DEPLOYMENT", "UNIT", "ACTION", "COST", "FIELD", "CHANGE"];

/// The most instances of a unit whose places are shown.
const PLACES_NAMED_MAX: usize = 50;

/// A row for each deployment, each unit, each changed field, and the hosts that come and go.
fn rows(planned: &[AppliedDeployment]) -> impl Iterator<Item = Vec<String>> {
    planned.iter().flat_map(|one| {
        let row = |field: &str, change: String| -> Vec<String> {
            let mut row = vec![String::new(); 4];
            row.extend([field.to_owned(), change]);
            row
        };
        let mut rows = vec![row("version", one.version.to_string())];
        rows[0][0] = one.deployment.to_string();
        rows[0][2] = one.action.word().to_owned();
        rows.extend(one.select.iter().map(|select| {
            let from = select.from.as_ref().map(|from| format!("{} → ", shown(Some(from)))).unwrap_or_default();
            row("target.select", format!("{from}{}", shown(select.to.as_ref())))
        }));
        rows.push(row("hosts", one.hosts.to_string()));
        if one.action != ApplyAction::Create {
            let groups = [("new hosts", &one.gains), ("hosts that lose it", &one.loses)];
            let groups = groups.into_iter().filter(|(_, hosts)| !hosts.is_empty());
            rows.extend(groups.map(|(what, hosts)| row(what, format!("{}: {}", hosts.len(), host_names(hosts)))));
        }
        rows.extend(unit_rows(&one.units).map(|unit| [vec![String::new()], unit].concat()));
        for unit in &one.placement {
            rows.push(row("placement", format!("{}: {}", unit.unit, unit.words())));
            rows.extend(unit.new.iter().take(PLACES_NAMED_MAX).map(|one| row("place", one.words())));
            if let Some(more) = unit.new.len().checked_sub(PLACES_NAMED_MAX).filter(|more| *more > 0) {
                rows.push(row("place", format!("{more} more; `-o json` has all")));
            }
        }
        rows
    })
}

/// How many processes are stopped or restarted, and why.
fn interruption(planned: &[AppliedDeployment]) -> Interruption {
    let (mut count, mut names) = (0, String::new());
    for one in planned {
        let stays = one.hosts.saturating_sub(one.gains.len() as u64);
        for unit in &one.units {
            let why = match (unit.change, unit.cost) {
                (UnitChange::Remove, _) => "removed",
                (UnitChange::Change, Some(cost @ (ChangeCost::Restart | ChangeCost::Stop))) => cost.words(),
                _ => continue,
            };
            if stays > 0 {
                count += stays;
                names.push_str(&format!("\n  {} on {}: {why}", unit.unit, hosts_(usize::try_from(stays).unwrap_or(0))));
            }
        }
        if !one.loses.is_empty() {
            let (units, hosts) = (one.units.iter().filter(|unit| unit.change != UnitChange::Create), one.loses.len());
            count += units.count() as u64 * hosts as u64;
            names.push_str(&format!(
                "\n  {} is removed from {}: {}",
                one.deployment,
                hosts_(hosts),
                host_names(&one.loses)
            ));
        }
    }
    Interruption { processes: count, names }
}

#[cfg(test)]
mod tests {
    use muster_api::{DeploymentUnitChange, FieldDifference};
    use muster_topics::name::HostId;

    use super::*;

    fn planned(hosts: u64, loses: usize, units: Vec<(UnitChange, Option<ChangeCost>)>) -> AppliedDeployment {
        let named = |digit: usize| NamedHost { host: HostId::random(), hostname: format!("till-{digit}") };
        let unit = |(digit, (change, cost)): (usize, (UnitChange, Option<ChangeCost>))| DeploymentUnitChange {
            unit: format!("shop/u{digit}").parse().unwrap(),
            change,
            cost,
            differences: match change {
                UnitChange::Change => {
                    vec![FieldDifference { field: "args".to_owned(), from: None, to: Some("x".into()) }]
                }
                _ => vec![],
            },
        };
        AppliedDeployment {
            deployment: "shop/till".parse().unwrap(),
            action: ApplyAction::Change,
            version: 3,
            select: None,
            units: units.into_iter().enumerate().map(unit).collect(),
            hosts,
            gains: vec![named(9)],
            loses: (0..loses).map(named).collect(),
            placement: vec![],
            notes: vec![],
            is_rolled_out: false,
        }
    }

    #[test]
    fn interrupted_processes_are_counted_over_hosts() {
        use UnitChange::{Change, Create, Remove, Unchanged};
        for (hosts, loses, units, wanted) in [
            (4, 0, vec![(Change, Some(ChangeCost::Restart))], 3),
            (4, 0, vec![(Change, Some(ChangeCost::Reload)), (Create, None), (Unchanged, None)], 0),
            (4, 0, vec![(Change, Some(ChangeCost::Stop)), (Remove, None)], 6),
            (1, 0, vec![(Change, Some(ChangeCost::Restart))], 0),
            (1, 2, vec![(Unchanged, None), (Create, None)], 2),
        ] {
            assert_eq!(interruption(&[planned(hosts, loses, units.clone())]).processes, wanted, "{units:?}");
        }
        let two = planned(3, 0, vec![(Change, Some(ChangeCost::Restart))]);
        let failure = interruption(&[two]).confirm(false).unwrap_err();
        assert_eq!(
            failure.cause(),
            Some("to interrupt 2 processes needs confirmation:\n  shop/u0 on 2 hosts: restart")
        );
    }

    #[test]
    fn plan_is_shown_by_unit_and_field() {
        let planned = planned(2, 1, vec![(UnitChange::Change, Some(ChangeCost::Restart)), (UnitChange::Remove, None)]);
        let table = print::table(&HEADER, rows(&[planned]));
        assert_eq!(
            table,
            "DEPLOYMENT  UNIT     ACTION  COST     FIELD               CHANGE\n\
             shop/till            change           version             3\n\
             \x20                                     hosts               2\n\
             \x20                                     new hosts           1: till-9\n\
             \x20                                     hosts that lose it  1: till-0\n\
             \x20           shop/u0  change  restart  args                x\n\
             \x20           shop/u1  remove\n"
        );
    }
}
