//! Reports how a command ended, host by host.

use std::time::Duration;

use muster_api::{Command, CommandHost};
use muster_base::failure::{Failure, FailureKind};

use super::command_verdict;

/// The failure of a host that did not answer.
pub(super) fn no_answer(command: &str, limit: Duration) -> Failure {
    let away = format!("there is no answer after {}", humantime::format_duration(limit));
    Failure::new(FailureKind::Failed, away).hint(format!(
        "the command still waits for the host (`muster host ls` shows whether it is online); `muster command show {command}` shows its outcome"
    ))
}

/// Returns the first host's complaint as a failure, if there is one.
///
/// # Errors
/// The complaint.
pub fn report(command: &Command, hosts: &[CommandHost]) -> Result<(), Failure> {
    let verdict = command_verdict::verdict(hosts, false);
    let complaint = hosts.iter().find_map(|host| Some((host, command_verdict::complaint(host)?)));
    match (verdict, complaint) {
        (Err(failure), Some((host, words))) => {
            let mut diagnostic = words.within(&host.hostname);
            let hint = diagnostic.hint.unwrap_or_else(|| "`muster command show` shows more".to_owned());
            diagnostic.hint = Some(hint.replace("command show`", &format!("command show {}`", command.id)));
            Err(Failure { kind: failure.kind, diagnostic: Some(diagnostic) })
        }
        (verdict, _) => verdict,
    }
}
