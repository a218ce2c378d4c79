//! How far a command's hosts have come, in counts and host by host.

use std::collections::BTreeMap;

use muster_api::{
    CommandHost, CommandState,
    summary::{Class, Summary},
};
use muster_topics::name::HostId;

use super::view::bits::{self, Tone};
use crate::store::command_status::HostCommandStatus;

/// A command's hosts in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCounts {
    /// How many there are.
    pub(in crate::web) hosts: u64,
    /// The name of the first one.
    pub(in crate::web) first: Option<String>,
    /// How many have come how far; what needs an eye is first.
    pub(in crate::web) kinds: BTreeMap<(Tone, String), u64>,
}

impl HostCounts {
    /// Of a command's hosts.
    pub(in crate::web) fn of(lines: &[CommandHost]) -> Self {
        let first = lines.first().map(|line| line.hostname.clone());
        Self::counted(first, lines.iter().map(|line| (bits::progress(line), 1)))
    }

    pub(super) fn counted(first: Option<String>, counts: impl Iterator<Item = ((Tone, String), u64)>) -> Self {
        let mut tally = Self { first, ..Self::default() };
        for (kind, count) in counts {
            tally.hosts += count;
            *tally.kinds.entry(kind).or_default() += count;
        }
        tally
    }
}

/// How far a command has come, host by host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandProgress {
    /// In short.
    pub(in crate::web) tally: HostCounts,
    /// Whether something may still come.
    pub(in crate::web) open: bool,
    /// Once nothing is waited for any more: how many hosts there are of each class, and which did not do it.
    pub(in crate::web) summary: Summary,
    /// All hosts: what needs an eye comes first, and within that they are sorted by name.
    pub(in crate::web) hosts: Vec<HostId>,
}

impl CommandProgress {
    /// Of hosts that are sorted by name.
    pub(in crate::web) fn of(standings: &[HostCommandStatus]) -> Self {
        let progress: Vec<(Tone, String)> =
            standings.iter().map(|one| bits::progress_of(one.state, one.status.as_deref())).collect();
        let mut order: Vec<usize> = (0..standings.len()).collect();
        order.sort_by_key(|index| progress[*index].0);
        let first = standings.first().map(|one| one.hostname.clone());
        let class = |one: &HostCommandStatus| Class::of_state(one.state, one.status.as_deref());
        Self {
            open: standings.iter().any(|one| !matches!(one.state, CommandState::Done | CommandState::Missing)),
            summary: Summary::of_each(standings.iter().map(|one| (one.host, one.hostname.as_str(), class(one)))),
            hosts: order.into_iter().map(|index| standings[index].host).collect(),
            tally: HostCounts::counted(first, progress.into_iter().map(|kind| (kind, 1))),
        }
    }
}
