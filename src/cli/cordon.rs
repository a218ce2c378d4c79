//! `muster host cordon`, `uncordon` and `drain`: whether hosts carry deployments.

use clap::Args;
use muster_api::{Cordon, CordonHosts, HostCordon, NewTarget, host_names::HostNames};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};

use super::{host_target::HostWords, print, session::CliSession};

/// Hosts that are cordoned or opened.
#[derive(Args, Clone, Debug)]
pub struct CordonArgs {
    #[command(flatten)]
    hosts: HostWords,
}

/// Hosts that are drained.
#[derive(Args, Clone, Debug)]
pub struct DrainArgs {
    #[command(flatten)]
    hosts: HostWords,
    /// Do not ask first
    #[arg(short, long)]
    yes: bool,
}

/// Cordons hosts, opens them again, or lists those that are not open, if no host is named.
///
/// # Errors
/// If there are no such hosts.
pub async fn run(args: CordonArgs, cordon: Cordon, session: &CliSession) -> Result<(), Failure> {
    match args.hosts.others.target(&args.hosts.hosts) {
        Some(target) => set(session, target, cordon).await,
        None if cordon == Cordon::Cordoned => list(session, &session.client.get::<Vec<_>>("host-cordons", &[]).await?),
        None => Err(nobody()),
    }
}

/// Has hosts remove the units of their deployments.
///
/// # Errors
/// If there are no such hosts, or if the user does not confirm.
pub async fn drain(args: DrainArgs, session: &CliSession) -> Result<(), Failure> {
    let DrainArgs { hosts, yes } = args;
    let target = hosts.others.target(&hosts.hosts).ok_or_else(nobody)?;
    let which = match &target {
        NewTarget::Hosts(hosts) => hosts.join(", "),
        NewTarget::All => "all hosts".to_owned(),
        NewTarget::Group(label) => format!("the hosts with the label {label}"),
        NewTarget::Select(select) => format!("the hosts that {select} selects"),
    };
    let what = format!("remove the units of all deployments from {which}");
    if !yes && !print::confirm(&format!("{what}?")) {
        return Err(Failure::new(FailureKind::Usage, format!("to {what} needs a yes")).hint("say --yes"));
    }
    set(session, target, Cordon::Drained).await
}

fn nobody() -> Failure {
    Failure::new(FailureKind::Usage, "no host is named")
        .hint("name hosts, or say --select EXPRESSION or --all; `muster host cordon` lists those that are not open")
}

async fn set(session: &CliSession, target: NewTarget, cordon: Cordon) -> Result<(), Failure> {
    let hosts: Vec<HostCordon> = session.client.post("host-cordons", &CordonHosts { target, cordon }).await?;
    session.printer.data(&hosts)?;
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    for host in hosts.iter().take(TOLD_MAX) {
        let name = names.show(host.host, &host.hostname);
        print::say(format_args!("{name}: {}, {}", host.cordon.word(), carries(host.deployments)));
    }
    if let Some(more @ 1..) = hosts.len().checked_sub(TOLD_MAX) {
        print::say(format_args!("and {more} more hosts"));
    }
    Ok(())
}

/// Number of hosts that are reported one by one: one screen.
const TOLD_MAX: usize = 20;

fn carries(deployments: u64) -> String {
    match deployments {
        0 => "carries no deployment".to_owned(),
        1 => "carries 1 deployment".to_owned(),
        many => format!("carries {many} deployments"),
    }
}

fn list(session: &CliSession, hosts: &[HostCordon]) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    let row = |host: &HostCordon| {
        vec![
            names.show(host.host, &host.hostname),
            host.cordon.word().to_owned(),
            host.deployments.to_string(),
            host.set_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default(),
            host.operator.as_ref().map(ToString::to_string).unwrap_or_default(),
        ]
    };
    let empty = "every host carries the deployments that select it; `muster host cordon HOST` keeps new ones from one";
    session.printer.list(hosts, &["HOST", "STATE", "DEPLOYMENTS", "SET", "BY"], row, empty)
}
