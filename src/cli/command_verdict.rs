//! The verdict on a command: failures in words and numbers, and the exit code.

use muster_api::{
    CommandHost, CommandState,
    summary::{Class, Summary},
};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::count::counted;
use muster_topics::{
    diagnostic::Diagnostic,
    outcome::Status,
    unit::{Exit, ProcessEnd},
};

use crate::print;

/// Reports what was not successful, and for several hosts the number and names of each class.
pub(super) fn summarise(hosts: &[CommandHost]) {
    for host in hosts {
        if let Some(words) = complaint(host) {
            print::say(words.within(&host.hostname));
        }
    }
    if hosts.len() > 1 {
        let summary = Summary::of(hosts);
        print::say(summary.counts());
        for (class, names) in summary.others() {
            print::say(format_args!("  {}: {}", class.words(), names.join(", ")));
        }
    }
}

pub(super) fn is_success(host: &CommandHost) -> bool {
    Class::of(host) == Class::Ok
}

/// Why a command was not successful on a host.
#[must_use]
pub fn complaint(host: &CommandHost) -> Option<Diagnostic> {
    let Some(received) = host.outcome() else {
        if host.state() == CommandState::Waiting {
            return Some("not done yet; it gets the command when it is back".into());
        }
        return Some("no answer before the command expired".into());
    };
    if Class::of(host) == Class::NotSelected {
        return Some("no longer selected: it has changed since the command was issued, and did nothing".into());
    }
    let outcome = &received.value;
    let cut: Vec<String> = [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)]
        .into_iter()
        .filter(|(_, output)| output.dropped_bytes > 0)
        .map(|(word, output)| {
            format!("{word} was cut: {} more were dropped", muster_topics::size::print(output.dropped_bytes))
        })
        .collect();
    let is_program = matches!(
        outcome.status,
        Status::Exited { .. } | Status::TimedOut | Status::Batch { .. } | Status::Cancelled | Status::Lost
    );
    let more = if is_program { " (--output-max and --stderr-max say how much is kept)" } else { "" };
    let cut = (!cut.is_empty()).then(|| cut.join("; ") + more);
    let status = (!outcome.status.is_success()).then(|| status(&outcome.status));
    match (status, cut) {
        (Some(status), Some(cut)) => Some(status.and(cut)),
        (status, cut) => status.or(cut.map(Diagnostic::from)),
    }
}

/// The end of a command, as text.
#[must_use]
pub fn status(status: &Status) -> Diagnostic {
    let text = match status {
        Status::Exited(ProcessEnd { exit: Exit::Unknown, .. }) => "ended, and how is unknown".to_owned(),
        Status::Exited(end) => format!("ended with {end}"),
        Status::TimedOut => "timed out and was ended".to_owned(),
        Status::Batch { steps } => match (1..).zip(steps).find(|(_, step)| !step.status.is_success()) {
            Some((number, step)) => return self::status(&step.status).within(format_args!("step {number}")),
            None => format!("{} done", counted(steps.len(), "step")),
        },
        Status::Cancelled => "cancelled".to_owned(),
        Status::Applied { generation, .. } => format!("generation {generation} is desired"),
        Status::AppliedSet { units } => format!("the desired state of {} was changed", counted(units.len(), "unit")),
        Status::Completed => "done".to_owned(),
        Status::Refused { diagnostic, .. } => return diagnostic.clone().within("refused"),
        Status::Failed(diagnostic) => return diagnostic.clone().within("failed"),
        Status::Lost => "lost: its outcome is unknown; it is not run again".to_owned(),
    };
    Diagnostic::new(text)
}

/// The failure that follows from the outcomes, if any.
///
/// # Errors
/// If not every host was successful.
pub fn verdict(hosts: &[CommandHost], passthrough: bool) -> Result<(), Failure> {
    if let ([host], true) = (hosts, passthrough) {
        match host.status() {
            Some(Status::Exited(ProcessEnd { exit: Exit::Code(0), .. })) => return Ok(()),
            Some(Status::Exited(ProcessEnd { exit: Exit::Code(code), .. })) => {
                return Err(Failure::silent(FailureKind::Code(u8::try_from(*code).unwrap_or(1))));
            }
            // As in a shell.
            Some(Status::Exited(ProcessEnd { exit: Exit::Signal(signal), .. })) => {
                return Err(Failure::silent(FailureKind::Code(u8::try_from(128 + signal).unwrap_or(1))));
            }
            _ => {}
        }
    }
    let is_refused = |host: &CommandHost| matches!(host.status(), Some(Status::Refused { .. }));
    // A host that is no longer selected has done what was requested: nothing.
    let mut meant = hosts.iter().filter(|host| Class::of(host) != Class::NotSelected).peekable();
    if meant.peek().is_none() {
        return Err(Failure::not_found("no host is selected any longer").consequence("nothing was done anywhere"));
    }
    if meant.clone().all(is_success) {
        return Ok(());
    }
    Err(Failure::silent(if meant.all(is_refused) { FailureKind::Refused } else { FailureKind::Failed }))
}

#[cfg(test)]
mod tests {
    use muster_api::{HostProgress, Received};
    use muster_topics::{
        name::HostId,
        outcome::{Outcome, Output, RefusalCode},
    };

    use super::*;

    fn host(id: u128, status: Option<Status>) -> CommandHost {
        let outcome = status.map(|status| Outcome {
            status,
            started_ms: None,
            finished_ms: 0,
            stdout: Output::default(),
            stderr: Output::default(),
        });
        CommandHost {
            host: HostId(uuid::Uuid::from_u128(id)),
            hostname: format!("host-{id}"),
            progress: match outcome {
                Some(value) => HostProgress::Done { outcome: Received { at_ms: 0, value } },
                None => HostProgress::Missing,
            },
        }
    }

    #[track_caller]
    fn check(statuses: Vec<Option<Status>>, passthrough: bool, code: u8) {
        let hosts: Vec<_> = statuses.into_iter().zip(1..).map(|(status, id)| host(id, status)).collect();
        assert_eq!(verdict(&hosts, passthrough).err().map_or(0, |failure| failure.kind.code()), code);
    }

    #[test]
    fn outcomes_map_to_exit_codes() {
        let exited = |code| Some(Status::exited(Exit::Code(code)));
        let refused = |code| Some(Status::Refused { code, diagnostic: <_>::default() });
        check(vec![exited(0), exited(0)], false, 0);
        check(vec![exited(0), exited(7)], false, 1);
        check(vec![exited(7)], true, 7);
        check(vec![Some(Status::exited(Exit::Signal(9)))], true, 137);
        check(vec![Some(Status::TimedOut)], true, 1);
        check(vec![refused(RefusalCode::Denied)], false, 3);
        check(vec![refused(RefusalCode::NotFound)], false, 3);
        check(vec![refused(RefusalCode::NotFound), exited(7)], false, 1);
        check(vec![exited(0), None], false, 1);
        check(vec![exited(0), refused(RefusalCode::NotSelected)], false, 0);
        check(vec![exited(7), refused(RefusalCode::NotSelected)], false, 1);
        check(vec![refused(RefusalCode::Denied), refused(RefusalCode::NotSelected)], false, 3);
        check(vec![refused(RefusalCode::NotSelected)], false, 3);
    }
}
