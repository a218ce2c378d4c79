//! Which hosts are owed a document, when each is sent again, and which generation each has confirmed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_topics::{Millis, name::HostId};
use tokio::sync::Notify;

use super::store::alert::Generations;

/// The least time between two sends of the same generation to a connected host that does not confirm it (an older
/// agent). A host that reconnects is sent it at once, because its agent may have been restarted before it stored it; so
/// is a host that was sent an earlier generation.
const TELL_EVERY_MS: Millis = 60_000;

/// The most hosts that are remembered for that; beyond it all are forgotten.
const TOLD_MAX: usize = 100_000;

/// Which generation of one kind of document hosts should have, and which hosts it has to be sent to.
#[derive(Debug)]
pub(super) struct DocumentSync {
    pub(super) generations: Mutex<Generations>,
    pub(super) owed: Mutex<OwedDocuments>,
    pub(super) more: Notify,
}

#[derive(Debug, Default)]
pub(super) struct OwedDocuments {
    /// Hosts to send to, with the generation that they report, if it is newer than it should be.
    pub(super) hosts: BTreeMap<HostId, u64>,
    /// What each was sent last since it came online.
    pub(super) told: HashMap<HostId, SentDocument>,
    /// Hosts that were sent something too recently, with the generation as above.
    pub(super) later: BTreeMap<HostId, u64>,
}

/// What a host was sent last, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentDocument {
    pub(super) generation: u64,
    pub(super) at_ms: Millis,
}

impl OwedDocuments {
    /// Returns how long until a host may be sent this.
    pub(super) fn wait_ms(&self, host: HostId, wanted: u64, now: Millis) -> Millis {
        let told = self.told.get(&host).filter(|told| told.generation == wanted);
        // After a clock was set back, sends must not be blocked for that long.
        let since = told.map(|told| now - told.at_ms).filter(|since| *since >= 0);
        since.map_or(0, |since| (TELL_EVERY_MS - since).max(0))
    }
}

impl DocumentSync {
    pub(super) fn new(generations: Generations) -> Self {
        Self { generations: Mutex::new(generations), owed: Mutex::default(), more: Notify::new() }
    }

    pub(super) fn of(&self, host: HostId) -> u64 {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).of(host)
    }

    /// Sets a part of the generation: one host's, or that of all.
    pub(super) fn set_generation(&self, host: Option<HostId>, generation: u64) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        match host {
            Some(host) => drop(generations.hosts.insert(host, generation)),
            None => generations.all = generation,
        }
    }

    /// Handles that a host came online: it may not have received earlier messages.
    pub(super) fn host_connected(&self, host: HostId) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).told.remove(&host);
    }

    /// Handles the removal of a host.
    pub(super) fn forget(&self, host: HostId) {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).hosts.remove(&host);
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        owed.hosts.remove(&host);
        owed.told.remove(&host);
        owed.later.remove(&host);
    }

    /// Handles a host's report of its generation.
    pub(super) fn confirm(&self, host: HostId, has: Option<u64>, now: Millis) {
        let (has, wanted) = (has.unwrap_or_default(), self.of(host));
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if has == wanted {
            owed.later.remove(&host);
            return;
        }
        let ahead = if has > wanted { has } else { 0 };
        let (is_late, is_first) = (owed.wait_ms(host, wanted, now) == 0, owed.later.is_empty());
        if is_late {
            owed.hosts.insert(host, ahead)
        } else {
            owed.later.insert(host, ahead)
        };
        // A task that waits for a later host need not be woken for the next one.
        if is_late || is_first {
            self.more.notify_one();
        }
    }

    /// Marks hosts to be sent to, whenever they were sent something last.
    pub(super) fn mark_owed(&self, hosts: Vec<HostId>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        for host in hosts {
            owed.hosts.entry(host).or_default();
        }
        self.more.notify_one();
    }

    /// Takes the hosts that are due; returns also how long until more are.
    pub(super) fn take(&self, now: Millis) -> (BTreeMap<HostId, u64>, Option<Duration>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut hosts, later) = (std::mem::take(&mut owed.hosts), std::mem::take(&mut owed.later));
        let mut wait_ms: Option<Millis> = None;
        for (host, ahead) in later {
            match owed.wait_ms(host, self.of(host), now) {
                0 => drop(hosts.entry(host).or_insert(ahead)),
                more_ms => {
                    wait_ms = Some(wait_ms.map_or(more_ms, |least_ms| least_ms.min(more_ms)));
                    owed.later.insert(host, ahead);
                }
            }
        }
        if owed.told.len() >= TOLD_MAX {
            owed.told.clear();
        }
        owed.told.extend(hosts.keys().map(|host| (*host, SentDocument { generation: self.of(*host), at_ms: now })));
        (hosts, wait_ms.map(|wait_ms| Duration::from_millis(wait_ms.unsigned_abs())))
    }

    /// Records the result for a host that was taken: this generation was sent, or nothing, without a connection.
    pub(super) fn record_sent(&self, host: HostId, sent: Option<u64>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generation) = sent {
            // Unless it has come online again meanwhile.
            owed.told.entry(host).and_modify(|told| told.generation = generation);
        } else {
            owed.told.remove(&host);
        }
    }

    /// Handles a failure that was not the connection's: the host is tried again as if it had been sent something.
    pub(super) fn failed(&self, host: HostId, ahead: u64) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).later.entry(host).or_insert(ahead);
        self.more.notify_one();
    }
}
