//! Effects of a batch, performed after its commit.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use muster_guard::{LineKind, log_peer};
use muster_topics::{
    Millis, V1,
    admission::AdmissionReport,
    command::Refresh,
    command_keys::KnownKeys,
    desired::DesiredReport,
    diagnostic::Diagnostic,
    name::{CommandId, HostId},
    numbered::Numbers,
    presence::Capability,
    topic::{HostTopic, Topic},
};

use super::owed_acks::HostAcks;
use crate::{
    dispatch,
    host_share::{self, ShareKind, ShareLevel, ShareUse},
    numbered,
    page_change::PageChange,
    state::ConsoleState,
};

/// How often at most a host is asked for a full report because it sends what cannot be applied.
const REFRESH_EVERY_MS: Millis = 10_000;
/// The most hosts that are remembered for that; beyond it all are forgotten.
const REFRESHES_MAX: usize = 100_000;

/// Log lines about hosts that are asked for their full state.
const REFRESHED: LineKind = LineKind::new("hosts that are asked for their state", 60).burst(3);

/// Log lines about hosts that speak of too many deployments.
const CROWDED: LineKind = LineKind::new("hosts with too many deployments", 60).burst(3);

/// What follows the commit of a batch.
#[derive(Debug, Default)]
pub struct Effects {
    /// The acknowledgements for hosts.
    pub acks: BTreeMap<HostId, HostAcks>,
    /// Hosts whose full state is needed.
    pub refresh: BTreeSet<HostId>,
    /// Hosts that came online (true) or went offline, in this order.
    pub presences: Vec<(HostId, bool)>,
    /// Hosts that have shown that they are online: by their presence, unless it was retained, or by a heartbeat of the
    /// present instance.
    pub shown: BTreeSet<HostId>,
    /// Hosts that confirmed a command.
    pub answered: Vec<(CommandId, HostId)>,
    /// Hosts that finished a command.
    pub settled: Vec<(CommandId, HostId)>,
    /// Hosts that are too busy for a command.
    pub busy: Vec<(CommandId, HostId)>,
    /// The numbers of documents, and the keys, that hosts reported.
    pub numbers: BTreeMap<HostId, (Numbers, KnownKeys)>,
    /// What hosts reported of their documents.
    pub desired: BTreeMap<HostId, DesiredReport>,
    /// What hosts say that they can do.
    pub capabilities: BTreeMap<HostId, Vec<Capability>>,
    /// What hosts have said of rollouts. It is stored with what is decided of it, and answered then.
    pub admissions: Vec<(HostId, AdmissionReport)>,
    /// Hosts whose output was stored.
    pub printed: BTreeSet<HostId>,
    /// Hosts' clocks in new heartbeats.
    pub clocks: Vec<(HostId, Millis)>,
    /// Hosts that have nearly all that one may have, or want more: how much at most, and how often they
    /// wanted more.
    pub shares: BTreeMap<(HostId, ShareKind), (ShareUse, u64)>,
    /// Changes for pages.
    pub changes: Vec<PageChange>,
}

impl Effects {
    /// Returns the acknowledgements for `host`, to be extended.
    pub fn acks(&mut self, host: HostId) -> &mut HostAcks {
        self.acks.entry(host).or_default()
    }

    /// Adds those of a later message.
    pub fn extend(&mut self, more: Self) {
        for (host, acks) in more.acks {
            self.acks(host).extend(acks);
        }
        self.refresh.extend(more.refresh);
        self.presences.extend(more.presences);
        self.shown.extend(more.shown);
        self.answered.extend(more.answered);
        self.settled.extend(more.settled);
        self.busy.extend(more.busy);
        self.numbers.extend(more.numbers);
        self.desired.extend(more.desired);
        self.capabilities.extend(more.capabilities);
        self.admissions.extend(more.admissions);
        self.printed.extend(more.printed);
        self.clocks.extend(more.clocks);
        for ((host, _), (share, count)) in more.shares {
            self.add_share(host, share, count);
        }
        self.changes.extend(more.changes);
    }

    /// Notes what a host has of a share, if that is nearly all or more.
    pub fn note_share(&mut self, host: HostId, share: ShareUse) {
        if share.level() > ShareLevel::Ample {
            self.add_share(host, share, u64::from(share.level() == ShareLevel::Exceeded));
        }
    }

    fn add_share(&mut self, host: HostId, share: ShareUse, exceeded: u64) {
        let (most, times) = self.shares.entry((host, share.kind)).or_insert((share, 0));
        most.used = most.used.max(share.used);
        *times += exceeded;
    }

    /// Returns the events for dispatch, in this order: a host that came online and finished in one batch is sent
    /// nothing again.
    pub fn take_events(&mut self) -> impl Iterator<Item = dispatch::DispatchEvent> + use<> {
        let (settled, answered) = (std::mem::take(&mut self.settled), std::mem::take(&mut self.answered));
        let settled = settled.into_iter().map(|(command, host)| dispatch::DispatchEvent::Settled(command, host));
        let answered = answered.into_iter().map(|(command, host)| dispatch::DispatchEvent::Answered(command, host));
        let busy = std::mem::take(&mut self.busy).into_iter();
        let busy = busy.map(|(command, host)| dispatch::DispatchEvent::Busy(command, host));
        let presences = std::mem::take(&mut self.presences).into_iter();
        let presences = presences.map(|(host, online)| dispatch::DispatchEvent::Presence(host, online));
        let shown = std::mem::take(&mut self.shown);
        let shown = (!shown.is_empty()).then_some(dispatch::DispatchEvent::Shown(shown));
        settled.chain(answered).chain(busy).chain(presences).chain(shown)
    }

    /// Performs all effects.
    pub(crate) async fn perform(mut self, shared: &ConsoleState, refreshes: &mut RefreshRequests, now: Millis) {
        for (host, capabilities) in std::mem::take(&mut self.capabilities) {
            shared.hosts.desired.set_capabilities(host, capabilities);
        }
        for (host, _) in self.presences.iter().filter(|(_, is_there)| *is_there) {
            shared.hosts.host_connected(*host);
            shared.hosts.desired.host_connected(*host);
        }
        for (host, is_online) in &self.presences {
            shared.hosts.rollouts.presence(*host, *is_online);
        }
        for (host, report) in std::mem::take(&mut self.admissions) {
            if !shared.hosts.rollouts.heard(host, report) {
                log_peer!(WARN, host, CROWDED, host.id = %host, "a host reports more deployments than a host may have");
            }
        }
        for (host, at_ms) in std::mem::take(&mut self.clocks) {
            shared.hosts.clocks.note(host, at_ms, now);
        }
        for ((host, _), (share, count)) in std::mem::take(&mut self.shares) {
            host_share::tell(shared, host, &share, count, now).await;
        }
        let events = self.take_events();
        shared.hosts.owed_acks.add(self.acks);
        for (host, (numbers, keys)) in self.numbers {
            numbered::confirm(shared, host, &numbers, &keys, now);
        }
        for (host, report) in self.desired {
            let newer_labels = shared.hosts.labels.newer(host);
            shared.hosts.desired.heard(host, report, newer_labels, now);
        }
        let of_units: BTreeSet<HostId> = self
            .changes
            .iter()
            .filter_map(|change| match change {
                PageChange::Unit(host, _) => Some(*host),
                _ => None,
            })
            .collect();
        if !of_units.is_empty() {
            shared.hosts.desired.units_changed(of_units);
        }
        for host in self.refresh {
            if refreshes.may_ask(host, now) {
                log_peer!(INFO, host, REFRESHED, host.id = %host, "a host is asked for its whole state");
                let refresh = Refresh { v: V1, issued_ms: shared.hosts.signing_time.another_ms(now), within_ms: 0 };
                match shared.authority.keys().signer.sign(host.slot(), &refresh).await {
                    Ok(bytes) => drop(shared.hosts.link.publish(Topic::Host(host, HostTopic::Command), bytes)),
                    Err(error) => {
                        let hint = Diagnostic::of(&error).hint;
                        tracing::error!(host.id = %host, %error, hint, "a message cannot be signed");
                    }
                }
            }
        }
        for event in events {
            let _ = shared.commands.dispatch.send(event).await;
        }
        let mut told = HashSet::new();
        for change in self.changes {
            if told.insert(change.clone()) {
                shared.changed(change);
            }
        }
    }
}

/// When each host was last asked for its full state.
#[derive(Debug, Default)]
pub struct RefreshRequests(HashMap<HostId, Millis>);

impl RefreshRequests {
    /// Whether a host may be asked again; if so, the request is recorded.
    pub fn may_ask(&mut self, host: HostId, now: Millis) -> bool {
        if self.0.len() >= REFRESHES_MAX {
            self.0.clear();
        }
        let last = self.0.get(&host);
        // After a clock was set back, requests must not be blocked for that long.
        let may = last.is_none_or(|last| now < *last || now - last >= REFRESH_EVERY_MS);
        if may {
            self.0.insert(host, now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refresh_requests_are_limited() {
        let mut refreshes = RefreshRequests::default();
        let (a, b) = (HostId::random(), HostId::random());
        let asked = [(a, 0), (a, 5_000), (b, 5_000), (a, 10_000), (a, 10_001), (a, 3_000)];
        assert_eq!(asked.map(|(host, now)| refreshes.may_ask(host, now)), [true, false, true, true, false, true]);
    }
}
