//! How far a command's hosts have come, in counts and host by host.

use std::collections::BTreeMap;

use muster_api::{
    CommandHost,
    summary::{Class, Summary},
};
use muster_topics::name::HostId;

use super::view::elements::{self, Tone};
use crate::store::command_status::HostCommandStatus;

/// The counts of a command's hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCounts {
    /// The number of hosts.
    pub(in crate::web) hosts: u64,
    /// The name of the host, if it is one alone.
    pub(in crate::web) only: Option<String>,
    /// The number of hosts by state; those that need attention first.
    pub(in crate::web) kinds: BTreeMap<(Tone, String), u64>,
}

impl HostCounts {
    /// Counts a command's hosts.
    pub(in crate::web) fn of(lines: &[CommandHost]) -> Self {
        let counts = Self::counted(lines.iter().map(|line| (elements::progress(line), 1)));
        let only = if let [line] = lines { Some(line.hostname.clone()) } else { None };
        Self { only, ..counts }
    }

    pub(super) fn counted(counts: impl Iterator<Item = ((Tone, String), u64)>) -> Self {
        let mut tally = Self::default();
        for (kind, count) in counts {
            tally.hosts += count;
            *tally.kinds.entry(kind).or_default() += count;
        }
        tally
    }
}

/// The progress of a command, host by host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandProgress {
    /// The counts.
    pub(in crate::web) tally: HostCounts,
    /// Whether something may still change.
    pub(in crate::web) open: bool,
    /// Once it is finished: the number of hosts of each class, and the names of those that did not do it.
    pub(in crate::web) summary: Summary,
    /// All hosts: those that need attention first, then by name.
    pub(in crate::web) hosts: Vec<HostId>,
}

impl CommandProgress {
    /// Creates it from hosts that are sorted by name.
    pub(in crate::web) fn of(standings: &[HostCommandStatus]) -> Self {
        let progress: Vec<(Tone, String)> =
            standings.iter().map(|one| elements::progress_of(one.state, one.status.as_deref())).collect();
        let mut order: Vec<usize> = (0..standings.len()).collect();
        order.sort_by_key(|index| progress[*index].0);
        let only = if let [one] = standings { Some(one.hostname.clone()) } else { None };
        let class = |one: &HostCommandStatus| Class::of_state(one.state, one.status.as_deref());
        Self {
            open: standings.iter().any(|one| !one.state.is_over()),
            summary: Summary::of_each(standings.iter().map(|one| (one.host, one.hostname.as_str(), class(one)))),
            hosts: order.into_iter().map(|index| standings[index].host).collect(),
            tally: HostCounts { only, ..HostCounts::counted(progress.into_iter().map(|kind| (kind, 1))) },
        }
    }
}
