//! Cancels a command, and waits a moment for the outcome.

use std::time::{Duration, Instant};

use muster_api::{Command, CommandHost, CommandState, NewCommand, NewTarget};
use muster_base::failure::Failure;
use muster_topics::command::{TARGET_HOSTS_MAX, Verb as Asked};

use super::session::CliSession;

/// Cancels a command on all its hosts.
///
/// # Errors
/// If the console refuses it.
pub async fn cancel(session: &CliSession, command: &Command) -> Result<Command, Failure> {
    let ids =
        |hosts: &mut dyn Iterator<Item = &CommandHost>| hosts.map(|host| host.host.to_string()).collect::<Vec<_>>();
    // A revoked host has its outcome, and gets no commands.
    let open = ids(&mut command.hosts.iter().filter(|host| host.state() != CommandState::Done));
    let hosts = if open.is_empty() { ids(&mut command.hosts.iter()) } else { open };
    let target = match hosts.len() {
        ..=TARGET_HOSTS_MAX => NewTarget::Hosts(hosts),
        _ => NewTarget::All,
    };
    let wanted =
        NewCommand { target, expires_in_ms: None, verb: Asked::Cancel { command: command.id }, copied_from: None };
    session.client.post("commands", &wanted).await
}

/// Longest time for the console to end what has not been sent.
pub(super) const WITHDRAWN: Duration = Duration::from_secs(2);

/// A cancellation, after the console has done its own part: what has not been sent to an offline host ends at once; the
/// rest depends on the host.
pub(super) async fn not_gone_out(session: &CliSession, mut cancel: Command) -> Result<Command, Failure> {
    let until = Instant::now() + WITHDRAWN;
    while cancel.hosts.iter().any(|host| host.away_since_ms().is_some()) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel = session.client.get(&format!("commands/{}", cancel.id), &[]).await?;
    }
    Ok(cancel)
}
