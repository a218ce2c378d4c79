//! `muster command`: the ledger of commands.

use clap::Subcommand;
use muster_api::{Command, CommandHost, CommandState, HostProgress};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::count::counted;
use muster_topics::{Millis, command::Target};

use super::{command_follower, command_report::report, command_verdict, print, session::CliSession};
use muster_api::host_names::tell_apart;

pub use super::command_cancel::cancel;
use super::command_cancel::not_gone_out;

/// Verbs on commands.
#[derive(Subcommand, Clone, Debug)]
pub enum CommandVerb {
    /// List commands, newest first
    Ls {
        /// Show so many at most
        #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
        limit: u32,
        /// Host, by id or hostname
        #[arg(long)]
        host: Option<String>,
    },
    /// Show a command, and how it ended on each host
    Show {
        /// Id, or the beginning of it
        id: String,
    },
    /// Cancel a command
    ///
    /// A program that runs is ended, a log is no longer followed, and a host that the command has not reached yet
    /// refuses it.
    Cancel {
        /// Id, or the beginning of it
        id: String,
    },
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: CommandVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        CommandVerb::Ls { limit, host } => {
            let mut query = vec![("limit", limit.to_string())];
            query.extend(host.map(|host| ("host", host)));
            let commands: Vec<Command> = session.client.get("commands", &query).await?;
            let now_ms = clock::now_ms();
            let row = |command: &Command| {
                vec![
                    command.id.to_string(),
                    print::age(command.issued_ms, now_ms),
                    command.operator.to_string(),
                    states(command, now_ms),
                    command.verb.sentence(),
                ]
            };
            let empty = "no commands yet; try `muster exec -- uname -a`";
            session.printer.list(&commands, &["ID", "AGE", "OPERATOR", "STATE", "WHAT"], row, empty)?;
            print::say_if_limited(commands.len(), limit);
            Ok(())
        }
        CommandVerb::Cancel { id } => {
            let command: Command = session.client.get(&format!("commands/{id}"), &[]).await?;
            let cancel = cancel(session, &command).await?;
            let cancel = not_gone_out(session, cancel).await?;
            let hosts = command_follower::follow_there(session, &cancel).await?;
            let (away, done): (Vec<_>, Vec<_>) =
                hosts.into_iter().partition(|host| host.state() == CommandState::Waiting);
            if !done.is_empty() {
                report(&cancel, &done)?;
            }
            if away.is_empty() { Ok(()) } else { Err(Failure::silent(FailureKind::Failed)) }
        }
        CommandVerb::Show { id } => {
            let command: Command = session.client.get(&format!("commands/{id}"), &[]).await?;
            let now_ms = clock::now_ms();
            session.printer.one(&command, || {
                let mut lines = vec![
                    ("id", command.id.to_string()),
                    ("what", command.verb.sentence()),
                    ("for", describe_target(&command)),
                    ("operator", command.operator.to_string()),
                    ("made", print::age(command.issued_ms, now_ms)),
                    ("expires", print::age(command.expires_ms, now_ms)),
                ];
                let hosts = tell_apart(command.hosts.clone());
                lines.extend(hosts.iter().map(|host| ("host", format!("{} {}", host.hostname, state(host, now_ms)))));
                lines
            })
        }
    }
}

/// The target of a command, as text.
fn describe_target(command: &Command) -> String {
    match &command.target {
        None | Some(Target::Hosts(_)) => format!("{} by name", counted(command.hosts.len(), "host")),
        Some(Target::All) => "all hosts".to_owned(),
        Some(Target::Group(label)) => format!("hosts with the label {label}"),
        Some(Target::Select(select)) => format!("hosts that match {select}"),
    }
}

fn states(command: &Command, now_ms: Millis) -> String {
    let away = command.hosts.iter().filter(|host| host.away_since_ms().is_some()).count();
    let until = format!("expires {}", print::age(command.expires_ms, now_ms));
    match &command.hosts[..] {
        [host] if away == 1 => format!("{}; {until}", state(host, now_ms)),
        [host] => state(host, now_ms),
        hosts => {
            let done = hosts.iter().filter(|host| host.state() == CommandState::Done).count();
            let away = if away == 0 { String::new() } else { format!("; waits for {away} that are away, {until}") };
            format!("{done} of {} done{away}", hosts.len())
        }
    }
}

fn state(host: &CommandHost, now_ms: Millis) -> String {
    match &host.progress {
        HostProgress::Waiting { away_since_ms: Some(since_ms), .. } => {
            format!("waiting for the host, away since {}", print::age(*since_ms, now_ms))
        }
        HostProgress::Waiting { reason: Some(reason), .. } => format!("waiting for the host: {reason}"),
        HostProgress::Waiting { .. } => "waiting for the host".to_owned(),
        HostProgress::Accepted => "queued on the host".to_owned(),
        HostProgress::Running => "running".to_owned(),
        HostProgress::Done { outcome } => command_verdict::status(&outcome.value.status).cause,
        HostProgress::Missing => "missing: it expired without an answer".to_owned(),
    }
}
