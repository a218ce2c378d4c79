//! `muster deployment confirm`: goes on with hosts whose documents or labels this console did not make.

use std::collections::BTreeMap;

use clap::Args;
use muster_api::{
    ConfirmAction, ConfirmDocuments, ConfirmedDocuments, NewTarget, UnconfirmedDeployment, UnconfirmedHost,
    UnconfirmedLabels, host_names::HostNames,
};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;
use muster_topics::name::{LabelValue, Name};

use crate::{command_follower::named, host_target::HostWords, print, session::CliSession};

/// Confirm hosts that have a document or labels which this console did not make.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "After its store was lost or restored from a backup, a console meets hosts with documents, or \
                    labels of a console, that it does not know. It sends these hosts nothing until they are confirmed: \
                    they keep running unchanged. By default it takes from hosts the deployments, versions and labels that \
                    it lacks; --replace has hosts take what the console has. Labels are taken from the message that \
                    the console had signed: what a host says of itself does not count. In both cases, units of deployments that the console does not have \
                    for a host keep running there as orphans."
)]
pub struct ConfirmArgs {
    #[command(flatten)]
    hosts: HostWords,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace what is there
    ///
    /// Hosts take what the console has.
    #[arg(long)]
    replace: bool,
    /// Do not ask first
    #[arg(short, long)]
    yes: bool,
}

const HEADER: [&str; 6] = ["HOST", "DOCUMENT", "WHAT", "ON HOST", "ON CONSOLE", "ACTION"];

/// Runs the verb.
///
/// # Errors
/// If the user does not confirm, or if versions of hosts contradict those of the console.
pub(super) async fn run(args: ConfirmArgs, session: &CliSession) -> Result<(), Failure> {
    let target = match args.hosts.others.target(&args.hosts.hosts) {
        Some(target) => target,
        None if args.dry_run => NewTarget::All,
        None => {
            return Err(Failure::new(FailureKind::Usage, "no host is named").hint(
                "name hosts, or pass --select EXPRESSION or --all; `muster deployment confirm --dry-run` shows all that wait",
            ));
        }
    };
    let mut asked = ConfirmDocuments { target, dry_run: true, replace: args.replace };
    let planned: ConfirmedDocuments = session.client.post("deployments/confirm", &asked).await?;
    tell_waiting(&planned);
    if planned.hosts.is_empty() {
        print::say("none of these hosts waits for confirmation");
        return session.printer.data(&[planned]);
    }
    if args.dry_run {
        return session.printer.table(&planned, &HEADER, rows(&planned.hosts));
    }
    print::say(print::table(&HEADER, rows(&planned.hosts)).trim_end());
    let what = format!("confirm {}", counted(planned.hosts.len(), "host"));
    if !args.yes && !print::confirm(&format!("{what}?")) {
        return Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation")).hint("pass --yes"));
    }
    asked.dry_run = false;
    let done: ConfirmedDocuments = session.client.post("deployments/confirm", &asked).await?;
    print::say(format_args!("confirmed {}", counted(done.hosts.len(), "host")));
    session.printer.data(&[done])
}

fn tell_waiting(planned: &ConfirmedDocuments) {
    if !planned.waiting.is_empty() {
        let names: Vec<String> = planned.waiting.iter().map(|host| host.hostname.clone()).collect();
        print::say(format_args!(
            "not sent yet, and so not confirmed: the documents or labels of {}; these hosts are away, or were just asked",
            named(&names)
        ));
    }
}

/// One row for the labels and for each deployment of each host; only the first row of a host names it.
fn rows(hosts: &[UnconfirmedHost]) -> impl Iterator<Item = Vec<String>> {
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    hosts.iter().flat_map(move |host| {
        let first = [names.show(host.host, &host.hostname), host.mark.to_string()];
        let version = |number: Option<u32>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let row = |one: &UnconfirmedDeployment| {
            let words = [one.deployment.to_string(), version(one.host_version), version(one.console_version)];
            [&words[..], &[action(one.action).to_owned()]].concat()
        };
        let of_labels = |one: &UnconfirmedLabels| {
            let of_host = one.host.as_ref().map_or_else(|| "not sent".to_owned(), labels);
            ["labels", &of_host, &labels(&one.console), action(one.action)].map(str::to_owned).to_vec()
        };
        let rows: Vec<Vec<String>> =
            host.labels.iter().map(of_labels).chain(host.deployments.iter().map(row)).collect();
        let lines = rows.len().max(1);
        (0..lines).map(move |line| {
            let names = if line == 0 { first.clone() } else { Default::default() };
            names.into_iter().chain(rows.get(line).cloned().unwrap_or_default()).collect()
        })
    })
}

fn labels(labels: &BTreeMap<Name, LabelValue>) -> String {
    if labels.is_empty() {
        return "none".to_owned();
    }
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn action(action: ConfirmAction) -> &'static str {
    match action {
        ConfirmAction::Same => "same on both",
        ConfirmAction::Rebuild => "console takes the host's",
        ConfirmAction::Replace => "host gets the console's",
        ConfirmAction::Add => "host gets it",
        ConfirmAction::Orphan => "keeps running as an orphan",
        ConfirmAction::Conflict => "conflict: same version, other content",
        ConfirmAction::Remove => "host removes it",
    }
}
