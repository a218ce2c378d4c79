//! `muster plan`: what documents would change, as each host has found it out.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use muster_api::{DeploymentPlan, NewPlan, Plan, PlanGroup, PlannedDeployment, UnitAction, UnitPlan};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;

use super::{command_follower::named, document_file, print, session::CliSession};

/// Show what documents of deployments would change on each host, and change nothing.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "Each host of the target compares the document with what is really there: unit by unit, field by field, \
                       with differences of files, packages with their versions, and what is restarted. Hosts that answer \
                       alike are one group. Of hosts that are away, the console says what it believes; it knows neither \
                       their files nor their packages.\n\n\
                       The last line is the digest of the plan. `muster deployment apply FILE --plan DIGEST` applies just \
                       that: a host that would change something else by then does not begin, and says so. The deployment \
                       needs a `rollout` for that. Hosts that were away, or whose agents make no plans, are not compared.\n\n\
                       Secrets show as ***. Validators of files are not run. Lists of packages may be fetched, but no \
                       packages. A plan is kept for a day."
)]
pub struct PlanArgs {
    /// Files of documents, or folders of such; `-` is standard input
    ///
    /// Of a folder, all files are read whose names end with .yaml, .yml or .json.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Let deployments take over units that were made by verbs
    #[arg(long)]
    adopt: bool,
    /// Wait so long until it is done
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: humantime::Duration,
}

/// How often it is asked how far a plan is.
const POLL: Duration = Duration::from_millis(300);

/// Makes a plan.
///
/// # Errors
/// If a document is invalid, or the plan cannot be made.
pub async fn run(args: PlanArgs, session: &CliSession) -> Result<(), Failure> {
    let documents = document_file::read_all(&args.files, "deployment")?;
    let wait_ms = u64::try_from(args.timeout.as_millis()).unwrap_or(u64::MAX);
    let wanted = NewPlan { documents, adopt: args.adopt, wait_ms: Some(wait_ms) };
    let mut plan: Plan = session.client.post("plans", &wanted).await?;
    let path = format!("plans/{}", plan.id);
    let mut told = None;
    while !plan.done {
        tokio::time::sleep(POLL).await;
        plan = session.client.get(&path, &[]).await?;
        if plan.asked > 0 && told != Some(plan.answered) && !session.printer.is_for_programs() {
            told = Some(plan.answered);
            print::say(format_args!("{} of {} answered", plan.answered, hosts(plan.asked)));
        }
    }
    if let Some(error) = &plan.error {
        return Err(Failure::new(FailureKind::Failed, format!("the plan cannot be made: {error}")));
    }
    session.printer.line(&plan, text(&plan).trim_end())
}

fn hosts(count: u64) -> String {
    counted(count, "host")
}

/// Returns a plan, for people.
fn text(plan: &Plan) -> String {
    let mut text = String::new();
    for one in &plan.deployments {
        text.push_str(&deployment(one));
    }
    if let Some(digest) = &plan.digest {
        text.push_str(&format!("\nplan {digest}\n"));
    }
    text
}

fn deployment(one: &PlannedDeployment) -> String {
    let mut text = format!("{}, version {}: {}\n", one.change.deployment, one.change.version, summary(one));
    for unit in &one.change.placement {
        text.push_str(&format!("  {}: {}\n", unit.unit, unit.words()));
        for place in &unit.new {
            text.push_str(&format!("    {}\n", place.words()));
        }
    }
    for group in &one.groups {
        text.push_str(&format!("\n{}\n", head(group, "alike")));
        text.push_str(&units(&group.plan));
    }
    for group in &one.away {
        text.push_str(&format!("\n{} (a guess, by their last reports)\n", head(group, "away")));
        text.push_str(&units(&group.plan));
    }
    if !one.unheard.is_empty() {
        let names: Vec<String> = one.unheard.iter().map(|host| host.hostname.clone()).collect();
        text.push_str(&format!("\n{} not asked (no report yet): {}\n", hosts(names.len() as u64), named(&names)));
    }
    for failure in &one.failed {
        text.push_str(&format!(
            "\n{}: no plan: {}\n",
            failure.host.hostname,
            line(&format!("{:#}", failure.diagnostic))
        ));
    }
    text
}

/// How many hosts are alike, and how many not.
fn summary(one: &PlannedDeployment) -> String {
    let mut parts = Vec::new();
    let (first, others) = match one.groups.split_first() {
        Some((first, others)) => (first.hosts.len(), others.iter().map(|group| group.hosts.len()).sum()),
        None => (0, 0),
    };
    if first > 0 {
        parts.push(format!("{} alike", hosts(first as u64)));
    }
    if others > 0 {
        parts.push(format!("{others} differ"));
    }
    let away: usize = one.away.iter().map(|group| group.hosts.len()).sum();
    for (count, word) in [(away, "away"), (one.unheard.len(), "not heard yet"), (one.failed.len(), "without an answer")]
    {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    if parts.is_empty() { "no hosts".to_owned() } else { parts.join(", ") }
}

fn head(group: &PlanGroup, word: &str) -> String {
    let names: Vec<String> = group.hosts.iter().map(|host| host.hostname.clone()).collect();
    match names.len() {
        1 if word == "alike" => format!("1 host: {}", named(&names)),
        count => format!("{} {word}: {}", hosts(count as u64), named(&names)),
    }
}

fn units(plan: &DeploymentPlan) -> String {
    if let Some(why) = &plan.refused {
        return format!("  refused: {}\n", line(&format!("{why:#}")));
    }
    if !plan.is_change() {
        return "  nothing changes\n".to_owned();
    }
    let mut text = String::new();
    if plan.units.is_empty() {
        let counts: Vec<String> =
            plan.counts.iter().map(|(action, count)| format!("{count} {}", action.words())).collect();
        text.push_str(&format!("  {} (not shown)\n", counts.join(", ")));
    }
    for unit in plan.units.iter().filter(|unit| unit.action.is_change()) {
        text.push_str(&unit_text(unit));
    }
    let same = plan.counts.get(&UnitAction::Unchanged).copied().unwrap_or(0);
    if same > 0 {
        text.push_str(&format!("  {same} unchanged\n"));
    }
    if plan.is_cut {
        text.push_str("  … it is long, and a part of it is left out\n");
    }
    text
}

fn unit_text(unit: &UnitPlan) -> String {
    let mut text = format!("  {}: {}", unit.unit, unit.action.words());
    if let Some(why) = &unit.reason {
        text.push_str(&format!(": {}", line(&format!("{why:#}"))));
    }
    text.push('\n');
    for field in &unit.fields {
        text.push_str(&format!("    {}\n", line(&field.to_string())));
    }
    for package in &unit.packages {
        text.push_str(&format!("    {}\n", line(&package.to_string())));
    }
    for file in &unit.files {
        text.push_str(&format!("    {}: {}\n", line(&file.path), line(&file.sentence())));
        for one in file.diff.iter().flat_map(|diff| diff.lines()) {
            text.push_str(&format!("      {}\n", line(one)));
        }
    }
    text
}

/// One line of a text of a host.
fn line(text: &str) -> String {
    text.replace('\n', "⏎")
}

#[cfg(test)]
mod tests {
    use muster_api::{AppliedDeployment, ApplyAction, NamedHost};
    use muster_topics::{diagnostic::Diagnostic, name::HostId};

    use super::*;

    fn group(hosts: &[&str], units: Vec<UnitPlan>) -> PlanGroup {
        let named = |name: &&str| NamedHost { host: HostId::random(), hostname: (*name).to_owned() };
        PlanGroup {
            plan: DeploymentPlan::of("shop/till".parse().unwrap(), units),
            hosts: hosts.iter().map(named).collect(),
        }
    }

    #[test]
    fn groups_are_told_with_what_differs() {
        let change = AppliedDeployment {
            deployment: "shop/till".parse().unwrap(),
            action: ApplyAction::Change,
            version: 2,
            select: None,
            units: vec![],
            hosts: 4,
            is_rolled_out: false,
            gains: vec![],
            loses: vec![],
            placement: vec![],
            notes: vec![],
        };
        let restart = UnitPlan::new("shop/till".parse().unwrap(), UnitAction::Restart);
        let same = UnitPlan::new("shop/base".parse().unwrap(), UnitAction::Unchanged);
        let refused = UnitPlan {
            reason: Some(Diagnostic::new("this host has no user till")),
            ..UnitPlan::new("shop/till".parse().unwrap(), UnitAction::Refuse)
        };
        let one = PlannedDeployment {
            change,
            groups: vec![group(&["a", "b"], vec![restart.clone(), same]), group(&["c"], vec![refused])],
            away: vec![group(&["d"], vec![restart])],
            unheard: vec![],
            failed: vec![],
        };
        assert_eq!(
            deployment(&one),
            "shop/till, version 2: 2 hosts alike, 1 differ, 1 away\n\n\
             2 hosts alike: a, b\n  shop/till: restart\n  1 unchanged\n\n\
             1 host: c\n  shop/till: refuse: this host has no user till\n\n\
             1 host away: d (a guess, by their last reports)\n  shop/till: restart\n"
        );
    }
}
