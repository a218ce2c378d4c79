//! `muster host cordon`, `uncordon` and `drain`: whether hosts carry deployments.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use muster_api::{Cordon, CordonHosts, Host, HostCordon, LeavingUnit, NewTarget, host_names::HostNames};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::count::counted;
use muster_topics::name::HostId;
use tokio::time::Instant;

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
    /// Do not wait: end as soon as the console has stored it
    #[arg(long)]
    no_wait: bool,
    /// Wait so long until it is done
    ///
    /// The hosts that are online remove their units.
    #[arg(long, default_value = "5m", value_name = "TIME", conflicts_with = "no_wait")]
    timeout: humantime::Duration,
}

/// Cordons hosts, opens them again, or lists those that are not open, if no host is named.
///
/// # Errors
/// If there are no such hosts.
pub async fn run(args: CordonArgs, cordon: Cordon, session: &CliSession) -> Result<(), Failure> {
    match args.hosts.others.target(&args.hosts.hosts) {
        Some(target) => {
            let hosts = set(session, target, cordon).await?;
            session.printer.data(&hosts)
        }
        None if cordon == Cordon::Cordoned => list(session, &session.client.get::<Vec<_>>("host-cordons", &[]).await?),
        None => Err(nobody()),
    }
}

/// Has hosts remove the units of their deployments, and waits for those that are online.
///
/// # Errors
/// If there are no such hosts, if the user does not confirm, or if units are left in the end.
pub async fn drain(args: DrainArgs, session: &CliSession) -> Result<(), Failure> {
    let DrainArgs { hosts, yes, no_wait, timeout } = args;
    let target = hosts.others.target(&hosts.hosts).ok_or_else(nobody)?;
    let which = match &target {
        NewTarget::Hosts(hosts) => hosts.join(", "),
        NewTarget::All => "all hosts".to_owned(),
        NewTarget::Group(label) => format!("the hosts with the label {label}"),
        NewTarget::Select(select) => format!("the hosts that {select} selects"),
    };
    if let NewTarget::Hosts(hosts) = &target
        && !yes
    {
        // There is nothing to confirm about a host that does not exist.
        for host in hosts {
            session.client.get::<Host>(&format!("hosts/{host}"), &[]).await?;
        }
    }
    let what = format!("remove the units of all deployments from {which}");
    if !yes && !print::confirm(&format!("{what}?")) {
        return Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation")).hint("pass --yes"));
    }
    let mut hosts = set(session, target, Cordon::Drained).await?;
    if no_wait {
        return session.printer.data(&hosts);
    }
    let until = Instant::now() + timeout.into();
    let meant: BTreeSet<HostId> = hosts.iter().map(|host| host.host).collect();
    while hosts.iter().any(is_awaited) && Instant::now() < until {
        tokio::time::sleep(POLL).await;
        let mut present: Vec<HostCordon> = session.client.get("host-cordons", &[]).await?;
        present.retain(|host| meant.contains(&host.host));
        tell_gone(&hosts, &present);
        hosts = present;
    }
    session.printer.data(&hosts)?;
    verdict(&hosts)
}

/// Interval of questions. The console answers from memory, and a person is waiting.
const POLL: Duration = Duration::from_millis(500);

/// Whether a host may be expected to remove something now. One that is away does it when it is back.
fn is_awaited(host: &HostCordon) -> bool {
    host.is_online && host.leaving.iter().any(|leaving| !leaving.is_kept)
}

/// Tells which units have gone since `before`.
fn tell_gone(before: &[HostCordon], present: &[HostCordon]) {
    let names = HostNames::new(before.iter().map(|host| (host.host, host.hostname.as_str())));
    for host in before {
        let name = names.show(host.host, &host.hostname);
        let Some(now) = present.iter().find(|now| now.host == host.host) else {
            print::say(format_args!("{name}: carries deployments again"));
            continue;
        };
        let is_there = |unit: &LeavingUnit| now.leaving.iter().any(|leaving| leaving.unit == unit.unit);
        let gone: Vec<String> =
            host.leaving.iter().filter(|unit| !is_there(unit)).map(|unit| unit.unit.to_string()).collect();
        if !gone.is_empty() {
            print::say(format_args!("{name}: {} removed, {}", gone.join(", "), left(now.leaving.len())));
        }
    }
}

fn left(units: usize) -> String {
    match units {
        0 => "nothing is left".to_owned(),
        left => format!("{} left", counted(left, "unit")),
    }
}

/// Fails if drained hosts have units left, and names them.
fn verdict(hosts: &[HostCordon]) -> Result<(), Failure> {
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    let leaving: Vec<&HostCordon> = hosts.iter().filter(|host| !host.leaving.is_empty()).collect();
    if leaving.is_empty() {
        return Ok(());
    }
    let line = |host: &&HostCordon| {
        let name = names.show(host.host, &host.hostname);
        let away = if host.is_online { "" } else { " is away and" };
        let unit = |leaving: &LeavingUnit| match leaving.is_kept {
            true => format!("{} (kept until an operator removes it)", leaving.unit),
            false => leaving.unit.to_string(),
        };
        let units: Vec<String> = host.leaving.iter().map(unit).collect();
        format!("\n  {name}{away} has {}", units.join(", "))
    };
    let list: String = leaving.iter().take(TOLD_MAX).map(line).collect();
    let more = leaving.len().checked_sub(TOLD_MAX).filter(|more| *more > 0);
    let more = more.map(|more| format!("\n  and {more} more")).unwrap_or_default();
    let message = format!("{} of {} have units left:{list}{more}", leaving.len(), counted(hosts.len(), "host"));
    let hint = match leaving.iter().flat_map(|host| &host.leaving).find(|unit| unit.is_kept) {
        Some(kept) => format!(
            "a hold or a snapshot keeps a unit: `muster unit show {}` shows which; `muster unit rm` removes it",
            kept.unit
        ),
        None => "it continues; `muster host cordon` lists what is left".to_owned(),
    };
    Err(Failure::new(FailureKind::Failed, message).hint(hint))
}

fn nobody() -> Failure {
    Failure::new(FailureKind::Usage, "no host is named")
        .hint("name hosts, or pass --select EXPRESSION or --all; `muster host cordon` lists those that are not open")
}

/// Sets it, and tells what the hosts have.
async fn set(session: &CliSession, target: NewTarget, cordon: Cordon) -> Result<Vec<HostCordon>, Failure> {
    let hosts: Vec<HostCordon> = session.client.post("host-cordons", &CordonHosts { target, cordon }).await?;
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    for host in hosts.iter().take(TOLD_MAX) {
        let name = names.show(host.host, &host.hostname);
        print::say(format_args!("{name}: {}", carries(host)));
    }
    if let Some(more @ 1..) = hosts.len().checked_sub(TOLD_MAX) {
        print::say(format_args!("and {more} more hosts"));
    }
    Ok(hosts)
}

/// Number of hosts that are reported one by one: one screen.
const TOLD_MAX: usize = 20;

/// Whether a host is open, what it carries, and what it has yet to remove.
fn carries(host: &HostCordon) -> String {
    let carried = match host.deployments {
        0 => "carries no deployment".to_owned(),
        1 => "carries 1 deployment".to_owned(),
        many => format!("carries {}", counted(many, "deployment")),
    };
    format!("{}, {carried}", host.cordon.words(host.leaving.len() as u64))
}

fn list(session: &CliSession, hosts: &[HostCordon]) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    let row = |host: &HostCordon| {
        vec![
            names.show(host.host, &host.hostname),
            host.cordon.word().to_owned(),
            host.deployments.to_string(),
            host.leaving.len().to_string(),
            host.set_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default(),
            host.operator.as_ref().map(ToString::to_string).unwrap_or_default(),
        ]
    };
    let empty = "every host carries the deployments that select it; `muster host cordon HOST` keeps new ones from one";
    session.printer.list(hosts, &["HOST", "STATE", "DEPLOYMENTS", "LEAVING", "SET", "BY"], row, empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(is_online: bool, leaving: &[(&str, bool)]) -> HostCordon {
        HostCordon {
            host: HostId(uuid::Uuid::from_u128(7)),
            hostname: "till-7".to_owned(),
            cordon: Cordon::Drained,
            deployments: 0,
            is_online,
            leaving: leaving
                .iter()
                .map(|(unit, is_kept)| LeavingUnit { unit: unit.parse().unwrap(), is_kept: *is_kept })
                .collect(),
            operator: None,
            set_ms: None,
        }
    }

    #[test]
    fn hosts_that_can_remove_something_are_waited_for() {
        assert!(is_awaited(&host(true, &[("shop/a", true), ("shop/b", false)])));
        for done in [host(true, &[]), host(true, &[("shop/a", true)]), host(false, &[("shop/a", false)])] {
            assert!(!is_awaited(&done), "{done:?}");
        }
    }

    #[test]
    fn verdict_names_what_is_left_and_what_keeps_it() {
        verdict(&[host(true, &[]), host(false, &[])]).unwrap();
        let away = verdict(&[host(true, &[]), host(false, &[("shop/a", false), ("shop/b", false)])]).unwrap_err();
        let told = away.cause().unwrap();
        assert!(told.starts_with("1 of 2 hosts have units left:") && told.ends_with(" is away and has shop/a, shop/b"));
        let kept = verdict(&[host(true, &[("shop/a", true)])]).unwrap_err();
        assert!(kept.cause().unwrap().ends_with("shop/a (kept until an operator removes it)"));
        assert!(kept.given_hint().unwrap().contains("muster unit show shop/a"));
    }
}
