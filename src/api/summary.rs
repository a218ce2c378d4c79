//! What a command has come to on all its hosts together, in the words that the command line and the pages share.

use std::collections::{BTreeMap, HashSet};

use muster_topics::{
    name::HostId,
    outcome::{RefusalCode, Status},
};

use crate::{CommandHost, CommandState};

/// The result of a command on one host, as counted. Results that need attention come after successful ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It succeeded.
    Ok,
    /// It is not finished: the host has it, or may still get it.
    Open,
    /// It ran and failed.
    Failed,
    /// It reached its time limit.
    TimedOut,
    /// It was cancelled.
    Cancelled,
    /// The host refused it.
    Refused,
    /// Its outcome is unknown.
    Lost,
    /// It expired without an answer.
    Missing,
    /// The host was no longer selected, and did nothing.
    NotSelected,
}

impl Class {
    /// The class of a host's progress.
    #[must_use]
    pub fn of(host: &CommandHost) -> Self {
        Self::of_state(host.state(), host.status())
    }

    /// The class of a state and a status.
    #[must_use]
    pub fn of_state(state: CommandState, status: Option<&Status>) -> Self {
        match (status, state) {
            (Some(status), _) => Self::of_status(status),
            (None, CommandState::Missing) => Self::Missing,
            (None, _) => Self::Open,
        }
    }

    fn of_status(status: &Status) -> Self {
        match status {
            status if status.is_success() => Self::Ok,
            Status::TimedOut => Self::TimedOut,
            Status::Cancelled => Self::Cancelled,
            Status::Refused { code: RefusalCode::NotSelected, .. } => Self::NotSelected,
            Status::Refused { .. } => Self::Refused,
            Status::Lost => Self::Lost,
            // The step that stopped a batch decides.
            Status::Batch { steps } => steps
                .iter()
                .find(|step| !step.status.is_success())
                .map_or(Self::Failed, |step| Self::of_status(&step.status)),
            Status::Exited(_)
            | Status::Applied { .. }
            | Status::AppliedSet { .. }
            | Status::Completed
            | Status::Failed(_) => Self::Failed,
        }
    }

    /// The words behind a number or before names.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Open => "not done yet",
            Self::Failed => "failed",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Lost => "lost",
            Self::Missing => "missing",
            Self::NotSelected => "no longer selected",
        }
    }
}

/// The number and the names of hosts in each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary(BTreeMap<Class, Vec<String>>);

impl Summary {
    /// For all hosts of a command. Hosts with the same name are distinguished by their ids.
    #[must_use]
    pub fn of(hosts: &[CommandHost]) -> Self {
        Self::of_each(hosts.iter().map(|host| (host.host, host.hostname.as_str(), Class::of(host))))
    }

    /// The same, from ids, names and classes.
    #[must_use]
    pub fn of_each<'a>(hosts: impl Iterator<Item = (HostId, &'a str, Class)> + Clone) -> Self {
        let (mut seen, mut twins) = (HashSet::new(), HashSet::new());
        for (_, hostname, _) in hosts.clone() {
            if !seen.insert(hostname) {
                twins.insert(hostname);
            }
        }
        let mut classes: BTreeMap<Class, Vec<String>> = BTreeMap::new();
        for (host, hostname, class) in hosts {
            let name = match twins.contains(hostname) {
                true => format!("{hostname} ({host})"),
                false => hostname.to_owned(),
            };
            classes.entry(class).or_default().push(name);
        }
        classes.values_mut().for_each(|names| names.sort());
        Self(classes)
    }

    /// `12 hosts: 10 ok, 1 failed, 1 missing`.
    #[must_use]
    pub fn counts(&self) -> String {
        let all: usize = self.0.values().map(Vec::len).sum();
        let ok = self.0.get(&Class::Ok).map_or(0, Vec::len);
        let others = self.others().map(|(class, names)| format!(", {} {}", names.len(), class.words()));
        format!("{all} host{}: {ok} ok{}", if all == 1 { "" } else { "s" }, others.collect::<String>())
    }

    /// The classes that need attention, with the names of their hosts.
    pub fn others(&self) -> impl Iterator<Item = (Class, &[String])> {
        self.0.iter().filter(|(class, _)| **class != Class::Ok).map(|(class, names)| (*class, names.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        outcome::{Outcome, Output, StepOutcome},
        unit::Exit,
    };

    use super::*;
    use crate::{HostProgress, Received};

    fn host(id: u128, hostname: &str, progress: HostProgress) -> CommandHost {
        CommandHost { host: HostId(uuid::Uuid::from_u128(id)), hostname: hostname.to_owned(), progress }
    }

    fn done(status: Status) -> HostProgress {
        let (stdout, stderr) = (Output::default(), Output::default());
        let value = Outcome { status, started_ms: None, finished_ms: 0, stdout, stderr };
        HostProgress::Done { outcome: Received { at_ms: 0, value } }
    }

    #[test]
    fn every_host_is_counted_once_and_named() {
        use HostProgress::{Missing, Running};
        let exited = |code| done(Status::exited(Exit::Code(code)));
        let refused = |code| done(Status::Refused { code, diagnostic: <_>::default() });
        let batch = |status| done(Status::Batch { steps: vec![StepOutcome::of(status, 0)] });
        let hosts = [
            host(1, "a", exited(0)),
            host(2, "b", batch(Status::Completed)),
            host(3, "c", exited(7)),
            host(4, "d", done(Status::TimedOut)),
            host(5, "e", batch(Status::TimedOut)),
            host(6, "f", refused(RefusalCode::Denied)),
            host(7, "g", refused(RefusalCode::NotSelected)),
            host(8, "twin", Missing),
            host(9, "twin", Missing),
            host(10, "h", HostProgress::Waiting { away_since_ms: None, reason: None }),
            host(11, "i", Running),
        ];
        let summary = Summary::of(&hosts);
        assert_eq!(
            summary.counts(),
            "11 hosts: 2 ok, 2 not done yet, 1 failed, 2 timed out, 1 refused, 2 missing, 1 no longer selected"
        );
        let named: Vec<String> =
            summary.others().map(|(class, names)| format!("{}: {}", class.words(), names.join(", "))).collect();
        assert_eq!(
            named,
            [
                "not done yet: h, i",
                "failed: c",
                "timed out: d, e",
                "refused: f",
                "missing: twin (00000000-0000-0000-0000-000000000008), twin (00000000-0000-0000-0000-000000000009)",
                "no longer selected: g",
            ]
        );
        assert_eq!(Summary::of(&hosts[..1]).counts(), "1 host: 1 ok");
    }
}
