//! Follows a command until every host has answered: prints output as it arrives, and names the hosts that it waits for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_api::{Command, CommandEvent, CommandHost, CommandState, Unit};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::name::HostId;

use super::command_output::{LogOwner, OutputForm, StreamPrinter};
use super::{print, session::CliSession};
use muster_api::host_names::tell_apart;

/// Prints a command's output as it arrives, until every host has an outcome or is missing.
///
/// # Errors
/// If the console cannot be reached.
pub async fn follow(session: &CliSession, command: &Command) -> Result<Vec<CommandHost>, Failure> {
    follow_into(session, command, &mut StreamPrinter::new(&command.hosts), false).await
}

/// As [`follow`], but without waiting for offline hosts: those that were offline when the command was given, or for
/// more than a moment since.
///
/// # Errors
/// As [`follow`].
pub async fn follow_there(session: &CliSession, command: &Command) -> Result<Vec<CommandHost>, Failure> {
    follow_into(session, command, &mut StreamPrinter::new(&command.hosts), true).await
}

/// As [`follow`], for a command whose output is the log of a unit; `name` is printed before each line, if there are
/// several.
///
/// # Errors
/// As [`follow`].
pub async fn follow_log(
    session: &CliSession,
    command: &Command,
    unit: &Unit,
    name: Option<&str>,
) -> Result<Vec<CommandHost>, Failure> {
    let mut output = StreamPrinter::new(&command.hosts);
    if let Some(name) = name {
        output.names = command.hosts.iter().map(|host| (host.host, format!("{name} | "))).collect();
    }
    if session.printer.is_for_programs() {
        let of = LogOwner { host: unit.host, hostname: unit.hostname.clone(), unit: unit.unit.clone() };
        output.form = OutputForm::Log(session.printer, of);
    }
    follow_into(session, command, &mut output, false).await
}

/// Collects the standard output of a command on one host until the host has an outcome.
///
/// # Errors
/// As [`follow`].
pub async fn collect(session: &CliSession, command: &Command) -> Result<(Vec<CommandHost>, Vec<u8>), Failure> {
    let mut output = StreamPrinter { form: OutputForm::Kept(Vec::new()), ..StreamPrinter::new(&command.hosts) };
    let hosts = follow_into(session, command, &mut output, false).await?;
    let OutputForm::Kept(kept) = output.form else { return Ok((hosts, Vec::new())) };
    Ok((hosts, kept))
}

/// `leaves`: hosts that are offline are not waited for.
pub(super) async fn follow_into(
    session: &CliSession,
    command: &Command,
    output: &mut StreamPrinter,
    leaves: bool,
) -> Result<Vec<CommandHost>, Failure> {
    let goes_on = |failure: Failure| match failure.kind {
        FailureKind::Unreachable => {
            failure.hint(format!("the command continues; `muster command show {}` shows its outcome", command.id))
        }
        _ => failure,
    };
    let mut events = session.client.events(&format!("commands/{}/events", command.id)).await.map_err(goes_on)?;
    let mut hosts: BTreeMap<HostId, CommandHost> = command.hosts.iter().map(|host| (host.host, host.clone())).collect();
    let away = |host: &CommandHost| host.away_since_ms().is_some();
    let mut awaited: BTreeSet<HostId> =
        command.hosts.iter().filter(|host| !(leaves && away(host))).map(|host| host.host).collect();
    let mut told = command.hosts.iter().any(away);
    if told {
        print::say(waits(command));
    }
    loop {
        if leaves && awaited.is_empty() {
            output.end()?;
            // Hosts that are not waited for are named as well.
            hosts.values().filter(|host| !host.is_over()).try_for_each(|host| output.conclude(host))?;
            return Ok(hosts.into_values().collect());
        }
        let next = tokio::time::timeout(SILENCE, events.next()).await;
        let event = match next {
            Ok(event) => event.map_err(goes_on)?,
            // Safe to cancel: unread events stay in the stream.
            Err(_) => {
                let waits_for = |host: &HostId| {
                    hosts.get(host).is_some_and(|host| host.state() == CommandState::Waiting && !away(host))
                };
                if leaves && awaited.iter().any(waits_for) {
                    let now: Command =
                        session.client.get(&format!("commands/{}", command.id), &[]).await.map_err(goes_on)?;
                    let gone: Vec<CommandHost> =
                        now.hosts.iter().filter(|host| away(host) && awaited.contains(&host.host)).cloned().collect();
                    if !gone.is_empty() {
                        told = true;
                        for host in &gone {
                            awaited.remove(&host.host);
                            hosts.insert(host.host, host.clone());
                        }
                        print::say(waits(&Command { hosts: gone, ..now }));
                        continue;
                    }
                }
                if !std::mem::replace(&mut told, true) {
                    // The console knows the reason as of now.
                    let now = session.client.get::<Command>(&format!("commands/{}", command.id), &[]).await;
                    tell_waiting(command, now.map_or_else(|_| hosts.values().cloned().collect(), |now| now.hosts));
                }
                continue;
            }
        };
        let Some(event) = event else { break };
        match event {
            CommandEvent::Output { host, stream, offset_bytes, data } => {
                output.take(host, stream, offset_bytes, data.to_bytes().unwrap_or_default())?;
            }
            CommandEvent::Host(host) => {
                output.meet(&host);
                if let Some(received) = host.outcome() {
                    output.rest(host.host, &received.value)?;
                }
                if host.is_over() {
                    output.conclude(&host)?;
                    awaited.remove(&host.host);
                }
                hosts.insert(host.host, host);
            }
            CommandEvent::End => {
                output.end()?;
                return Ok(hosts.into_values().collect());
            }
        }
    }
    Err(goes_on(Failure::new(FailureKind::Unreachable, "the console ended the connection")))
}

/// After this time without events, the user is told which hosts are waited for.
pub(super) const SILENCE: Duration = Duration::from_secs(3);

/// Largest number of hostnames in one line.
pub(super) const NAMED_MAX: usize = 5;

/// Which hosts of a command are offline, and what that means.
#[must_use]
pub fn waits(command: &Command) -> String {
    let now_ms = muster_base::clock::now_ms();
    let away: Vec<String> = tell_apart(command.hosts.clone())
        .iter()
        .filter_map(|host| Some(format!("{} (since {})", host.hostname, print::age(host.away_since_ms()?, now_ms))))
        .collect();
    let (what, is) = (command.verb.sentence(), if away.len() == 1 { "is" } else { "are" });
    let until = print::age(command.expires_ms, now_ms);
    format!("{} {is} away: {what} waits for that host to be back, and expires {until}", named(&away))
}

/// How to look at a command later.
#[must_use]
pub fn look(command: &Command) -> String {
    format!("`muster command show {}` shows its outcome", command.id)
}

/// The first few of some names.
pub(super) fn named(names: &[String]) -> String {
    let more = if names.len() > NAMED_MAX { format!(" and {} more", names.len() - NAMED_MAX) } else { String::new() };
    format!("{}{more}", names[..names.len().min(NAMED_MAX)].join(", "))
}

pub(super) fn tell_waiting(command: &Command, mut hosts: Vec<CommandHost>) {
    hosts.retain(|host| host.state() == CommandState::Waiting);
    let hosts = tell_apart(hosts);
    if hosts.is_empty() {
        return;
    }
    let waiting: Vec<String> = hosts.iter().map(|host| host.hostname.clone()).collect();
    let named = named(&waiting);
    let until = print::age(command.expires_ms, muster_base::clock::now_ms());
    print::say(format_args!("waiting for {named}; the command expires {until} (Ctrl-C leaves it to wait)"));
    let reasons = hosts.iter().filter_map(|host| Some((&host.hostname, host.reason()?)));
    for (hostname, reason) in reasons.take(NAMED_MAX) {
        print::say(format_args!("{hostname}: {reason}"));
    }
}
