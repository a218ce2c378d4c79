//! `muster apply`: documents of units and of deployments in one call. What each is, is told by what is in it; how it is
//! applied, by [`apply`](super::apply) and [`deployment`](super::deployment).

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::Args;
use muster_api::{AppliedDeployment, AppliedUnit, ApplyDocument};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{name::Digest, select::HostSelect};
use serde::Serialize;
use serde_json::Value;

use super::{
    apply::{self, AppliedUnits, UnitPlan},
    change::WaitOptions,
    deployment::{
        change::{self, ChangedDeployments, DeploymentPlan},
        follow::FollowOptions,
    },
    document_file, print,
    session::CliSession,
};

/// Make units and deployments what documents say
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A document with `deployment` is one of a deployment, any other one is of units (`unit`, or \
                    `units` with a list); `muster unit apply --help` and `muster deployment apply --help` say what \
                    else is in them. Files may have both. All of them are checked before anything is changed; then \
                    units come first, or deployments if units of documents need them."
)]
pub struct ApplyAnyArgs {
    /// Files of documents, or folders of such; `-` is standard input
    ///
    /// Of a folder, all files are read whose names end with .yaml, .yml or .json.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Host for units whose document names none; repeatable
    ///
    /// By id or hostname.
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Hosts for units whose document names none
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "hosts")]
    select: Option<HostSelect>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Let deployments take over units that were made by verbs
    #[arg(long)]
    adopt: bool,
    /// Change only what this plan has shown
    ///
    /// `muster plan` makes it, and prints its digest.
    #[arg(long, value_name = "DIGEST")]
    plan: Option<Digest>,
    /// Do not ask first
    #[arg(short, long)]
    yes: bool,
    /// Do not wait: end as soon as the console has stored it
    #[arg(long, conflicts_with = "wait_offline")]
    no_wait: bool,
    /// Wait so long until it is done [default: 2m, and 5m for deployments]
    ///
    /// A rollout is followed until it has ended, if no time is given.
    #[arg(long, value_name = "TIME")]
    timeout: Option<humantime::Duration>,
    /// Wait for offline hosts too
    #[arg(long)]
    wait_offline: bool,
    /// Give up on a host that is offline for so long
    ///
    /// At most 7 days, which is also the default.
    #[arg(long, value_name = "TIME")]
    expires: Option<humantime::Duration>,
}

/// How long units are waited for, as `muster unit apply` does.
const UNIT_TIMEOUT: Duration = Duration::from_secs(120);

impl ApplyAnyArgs {
    fn wait_for_units(&self) -> WaitOptions {
        WaitOptions {
            no_wait: self.no_wait,
            timeout: self.timeout.unwrap_or_else(|| UNIT_TIMEOUT.into()),
            wait_offline: self.wait_offline,
            expires: self.expires,
        }
    }

    fn wait_for_deployments(&self) -> FollowOptions {
        FollowOptions { no_wait: self.no_wait, timeout: self.timeout, wait_offline: self.wait_offline }
    }

    /// Refuses options that fit no document.
    fn check(&self, sorted: &SortedDocuments) -> Result<(), Failure> {
        let of_units = [
            ("--host", !self.hosts.is_empty()),
            ("--select", self.select.is_some()),
            ("--expires", self.expires.is_some()),
        ];
        let of_deployments = [("--adopt", self.adopt), ("--plan", self.plan.is_some())];
        let refuse = |option: &str, what: &str, hint: &str| {
            let message = format!("{option} is for documents of {what}, and none of these is one");
            Err(Failure::new(FailureKind::Usage, message).hint(hint))
        };
        let given = |options: &[(&'static str, bool)]| options.iter().find(|(_, given)| *given).map(|(name, _)| *name);
        match (given(&of_units), given(&of_deployments)) {
            (Some(option), _) if sorted.units.is_empty() => {
                refuse(option, "units", "leave it out; the document of a deployment says which hosts: `target`")
            }
            (_, Some(option)) if sorted.deployments.is_empty() => {
                refuse(option, "deployments", "leave it out; `muster deployment apply --help` says what one is")
            }
            _ => Ok(()),
        }
    }
}

/// Documents by what they are of.
#[derive(Debug, Default)]
struct SortedDocuments {
    units: Vec<ApplyDocument>,
    deployments: Vec<ApplyDocument>,
}

impl SortedDocuments {
    /// Tells documents apart.
    ///
    /// # Errors
    /// If one is neither, with all that are wrong.
    fn of(documents: Vec<ApplyDocument>) -> Result<Self, Failure> {
        let (mut sorted, mut wrong) = (Self::default(), Vec::new());
        for document in documents {
            let has = |key: &str| document.content.get(key).is_some();
            if has("deployment") {
                sorted.deployments.push(document);
            } else if has("unit") || has("units") {
                sorted.units.push(document);
            } else {
                wrong.push(document.source);
            }
        }
        if wrong.is_empty() {
            return Ok(sorted);
        }
        let lines: Vec<String> =
            wrong.iter().map(|source| format!("{source}: neither a unit nor a deployment")).collect();
        Err(Failure::new(FailureKind::Usage, lines.join("\n"))
            .hint("a document of units has `unit` or `units`, one of a deployment has `deployment`"))
    }

    /// Whether units of documents need units of deployments, so that these come first; not if they need each other.
    fn deployments_come_first(&self) -> bool {
        let (units, deployments) = (Needs::of(&self.units), Needs::of(&self.deployments));
        units.on(&deployments) && !deployments.on(&units)
    }
}

/// The units that documents have, and those that these need.
#[derive(Debug, Default)]
struct Needs {
    has: BTreeSet<String>,
    needs: BTreeSet<String>,
}

impl Needs {
    fn of(documents: &[ApplyDocument]) -> Self {
        let mut found = Self::default();
        for ApplyDocument { content, .. } in documents {
            let realm = content.get("deployment").and_then(Value::as_str).and_then(|name| name.split_once('/'));
            let listed = content.get("units").and_then(Value::as_array).into_iter().flatten();
            for unit in listed.chain([content]) {
                let text = |key: &str| unit.get(key).and_then(Value::as_str);
                found.has.extend(text("unit").map(str::to_owned));
                found.has.extend(realm.zip(text("name")).map(|((realm, _), name)| format!("{realm}/{name}")));
                let list = |key: &str| unit.get(key).and_then(Value::as_array).into_iter().flatten();
                let needed = list("after").chain(list("requires")).filter_map(Value::as_str);
                let from = list("needs").filter_map(|need| need.get("from")?.as_str());
                found.needs.extend(needed.chain(from).map(str::to_owned));
            }
        }
        found
    }

    fn on(&self, other: &Self) -> bool {
        !self.needs.is_disjoint(&other.has)
    }
}

/// What would change, for programs.
#[derive(Serialize)]
struct PlannedChanges<'a> {
    units: &'a [AppliedUnit],
    deployments: &'a [AppliedDeployment],
}

/// What was changed, for programs.
#[derive(Serialize)]
struct DoneChanges<'a> {
    units: Vec<apply::UnitResult<'a>>,
    deployments: Vec<change::DeploymentResult<'a, AppliedDeployment>>,
}

/// Runs the verb.
///
/// # Errors
/// If a document or an option is invalid, if the user does not confirm, or if a change fails.
pub async fn run(args: ApplyAnyArgs, session: &CliSession) -> Result<(), Failure> {
    let sorted = SortedDocuments::of(document_file::read_all(&args.files, "unit")?)?;
    args.check(&sorted)?;
    let deployments_come_first = sorted.deployments_come_first();
    let SortedDocuments { units, deployments } = sorted;
    let units = match units.is_empty() {
        true => None,
        false => {
            let target = (args.hosts.as_slice(), args.select.as_ref());
            Some(UnitPlan::make(session, units, target, args.wait_for_units()).await?)
        }
    };
    let deployments = match deployments.is_empty() {
        true => None,
        false => Some(DeploymentPlan::make(session, deployments, args.adopt, args.plan.clone()).await?),
    };
    if args.dry_run {
        return show(session, units.as_ref(), deployments.as_ref());
    }
    units.iter().for_each(UnitPlan::tell);
    deployments.iter().for_each(DeploymentPlan::tell);
    let of_units = units.as_ref().map(UnitPlan::interruption).unwrap_or_default();
    of_units.and(deployments.as_ref().map(DeploymentPlan::interruption).unwrap_or_default()).confirm(args.yes)?;
    let done = carry_out(&args, session, (units, deployments), deployments_come_first).await?;
    done.conclude(session)
}

/// Shows what would change.
fn show(session: &CliSession, units: Option<&UnitPlan>, deployments: Option<&DeploymentPlan>) -> Result<(), Failure> {
    if session.printer.is_for_programs() {
        let units = units.map(UnitPlan::units).unwrap_or_default();
        let deployments = deployments.map(DeploymentPlan::deployments).unwrap_or_default();
        return session.printer.one(&PlannedChanges { units, deployments }, Vec::new);
    }
    if let Some(units) = units {
        session.printer.table(&(), &apply::HEADER, units.rows())?;
    }
    if units.is_some() && deployments.is_some() {
        print::write_out("\n")?;
    }
    match deployments {
        Some(deployments) => session.printer.table(&(), &change::HEADER, deployments.rows()),
        None => Ok(()),
    }
}

/// What was done of each kind.
#[derive(Default)]
struct AppliedDocuments {
    units: Option<AppliedUnits>,
    deployments: Option<ChangedDeployments>,
    /// What was not begun, because what it may need has failed.
    left_out: Option<&'static str>,
}

async fn carry_out(
    args: &ApplyAnyArgs,
    session: &CliSession,
    (mut units, mut deployments): (Option<UnitPlan>, Option<DeploymentPlan>),
    deployments_come_first: bool,
) -> Result<AppliedDocuments, Failure> {
    let mut done = AppliedDocuments::default();
    for is_deployments in [deployments_come_first, !deployments_come_first] {
        if is_deployments && let Some(plan) = deployments.take() {
            if done.units.as_ref().is_some_and(AppliedUnits::has_failed) {
                done.left_out = Some("deployments");
            } else {
                done.deployments = Some(plan.carry_out(session, args.wait_for_deployments()).await?);
            }
        }
        if !is_deployments && let Some(plan) = units.take() {
            if done.deployments.as_ref().is_some_and(ChangedDeployments::has_failed) {
                done.left_out = Some("units");
            } else {
                done.units = Some(plan.carry_out(session, args.wait_for_units()).await?);
            }
        }
    }
    Ok(done)
}

impl AppliedDocuments {
    /// Prints the results and one summary.
    fn conclude(self, session: &CliSession) -> Result<(), Failure> {
        let Self { units, deployments, left_out } = self;
        if session.printer.is_for_programs() {
            let results = DoneChanges {
                units: units.as_ref().map(AppliedUnits::results).unwrap_or_default(),
                deployments: deployments.as_ref().map(ChangedDeployments::results).unwrap_or_default(),
            };
            session.printer.one(&results, Vec::new)?;
        }
        let summaries: Vec<String> = [
            units.as_ref().map(AppliedUnits::summary),
            deployments.as_ref().map(ChangedDeployments::summary),
            left_out.map(|what| format!("{what} were not begun, because of what failed")),
        ]
        .into_iter()
        .flatten()
        .collect();
        print::say(summaries.join("\n"));
        let verdicts = [units.map(AppliedUnits::verdict), deployments.map(ChangedDeployments::verdict)];
        let mut failures: Vec<Failure> = verdicts.into_iter().flatten().filter_map(Result::err).collect();
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ApplyAnyArgs,
    }

    fn documents(contents: &[Value]) -> Vec<ApplyDocument> {
        let document = |content: &Value| ApplyDocument { source: "file".to_owned(), content: content.clone() };
        contents.iter().map(document).collect()
    }

    fn unit(name: &str, after: &[&str]) -> Value {
        json!({"unit": name, "artifact": "a@1", "after": after})
    }

    fn deployment(name: &str, unit: &str, requires: &[&str]) -> Value {
        json!({"deployment": name, "units": [{"name": unit, "requires": requires}]})
    }

    #[test]
    fn documents_are_told_apart_by_what_is_in_them() {
        let list = json!({"units": [unit("a/x", &[])]});
        let sorted = SortedDocuments::of(documents(&[unit("a/b", &[]), deployment("a/d", "u", &[]), list])).unwrap();
        assert_eq!((sorted.units.len(), sorted.deployments.len()), (2, 1));
        let failure = SortedDocuments::of(documents(&[json!({"name": "x"}), json!(7)])).unwrap_err();
        assert_eq!(failure.cause().unwrap().lines().count(), 2);
        assert!(failure.cause().unwrap().starts_with("file: neither a unit nor a deployment"));
    }

    #[test]
    fn what_is_needed_comes_first() {
        for (unit_needs, deployment_needs, wanted) in [
            (&[][..], &[][..], false),
            (&["shop/db"], &[], true),
            (&[], &["shop/till"], false),
            (&["shop/db"], &["shop/till"], false),
            (&["shop/other"], &[], false),
        ] {
            let all = [unit("shop/till", unit_needs), deployment("shop/all", "db", deployment_needs)];
            let sorted = SortedDocuments::of(documents(&all)).unwrap();
            assert_eq!(sorted.deployments_come_first(), wanted, "{unit_needs:?} {deployment_needs:?}");
        }
        let connector = json!({"unit": "shop/till", "needs": [{"name": "sql", "from": "shop/db"}]});
        let sorted = SortedDocuments::of(documents(&[connector, deployment("shop/all", "db", &[])])).unwrap();
        assert!(sorted.deployments_come_first());
    }

    #[test]
    fn option_that_fits_no_document_is_refused_by_name() {
        let (units, deployments) = (documents(&[unit("a/b", &[])]), documents(&[deployment("a/d", "u", &[])]));
        for (line, documents, wanted) in [
            ("apply f --host h", &units, None),
            ("apply f --adopt", &deployments, None),
            ("apply f --host h", &deployments, Some("--host is for documents of units")),
            ("apply f --select label.a=b", &deployments, Some("--select is for documents of units")),
            ("apply f --expires 1d", &deployments, Some("--expires is for documents of units")),
            ("apply f --adopt", &units, Some("--adopt is for documents of deployments")),
        ] {
            let args = Line::try_parse_from(line.split(' ')).unwrap().args;
            let refused = args.check(&SortedDocuments::of(documents.clone()).unwrap()).err();
            let cause = refused.as_ref().and_then(Failure::cause);
            assert_eq!(cause.is_some(), wanted.is_some(), "{line}: {cause:?}");
            assert!(cause.unwrap_or_default().starts_with(wanted.unwrap_or_default()), "{line}: {cause:?}");
        }
        let both = [units, deployments].concat();
        let args = Line::try_parse_from("apply f --host h --adopt".split(' ')).unwrap().args;
        assert!(args.check(&SortedDocuments::of(both).unwrap()).is_ok());
    }
}
