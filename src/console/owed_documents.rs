//! Which hosts are owed a document, when each is sent again, and which generation each has confirmed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_topics::{Millis, name::HostId};
use tokio::sync::Notify;

use super::store::alert::Generations;

/// A host that does not take what it is told (an older agent) is told the same no more often than this, for as long as it is connected;
/// one that says earlier that it has something else is told again then. Who comes anew is told at once, for what it was told before may
/// have been lost with the agent's last life; and so is who was told of something earlier.
const TELL_EVERY_MS: Millis = 60_000;

/// Hosts that are remembered for that; beyond it the memory begins anew.
const TOLD_MAX: usize = 100_000;

/// Which generation of one kind of document hosts should have, and who is to be told.
#[derive(Debug)]
pub(super) struct DocumentSync {
    pub(super) generations: Mutex<Generations>,
    pub(super) owed: Mutex<OwedDocuments>,
    pub(super) more: Notify,
}

#[derive(Debug, Default)]
pub(super) struct OwedDocuments {
    /// Hosts that are to be told, and the generation that they say they have, if it is newer than it should be.
    pub(super) hosts: BTreeMap<HostId, u64>,
    /// What each was last told since it came.
    pub(super) told: HashMap<HostId, SentDocument>,
    /// Hosts that were told too short a time ago, and the generation as above.
    pub(super) later: BTreeMap<HostId, u64>,
}

/// What a host was last told, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentDocument {
    pub(super) generation: u64,
    pub(super) at_ms: Millis,
}

impl OwedDocuments {
    /// How long it is until a host may be told this.
    pub(super) fn wait_ms(&self, host: HostId, wanted: u64, now: Millis) -> Millis {
        let told = self.told.get(&host).filter(|told| told.generation == wanted);
        // A clock that was set back must not silence us for as long as it was ahead.
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

    /// This is the part of one host's generation, or of all.
    pub(super) fn set_generation(&self, host: Option<HostId>, generation: u64) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        match host {
            Some(host) => drop(generations.hosts.insert(host, generation)),
            None => generations.all = generation,
        }
    }

    /// A host has come: it may not have heard what it was told before.
    pub(super) fn came(&self, host: HostId) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).told.remove(&host);
    }

    /// A host is a member no more.
    pub(super) fn forget(&self, host: HostId) {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).hosts.remove(&host);
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        owed.hosts.remove(&host);
        owed.told.remove(&host);
        owed.later.remove(&host);
    }

    /// A host has said which generation it has.
    pub(super) fn heard(&self, host: HostId, has: Option<u64>, now: Millis) {
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
        // Whoever waits for one that is told later need not be woken for the next.
        if is_late || is_first {
            self.more.notify_one();
        }
    }

    /// These are to be told, whenever they last were.
    pub(super) fn owe(&self, hosts: Vec<HostId>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        for host in hosts {
            owed.hosts.entry(host).or_default();
        }
        self.more.notify_one();
    }

    /// Those that are to be told now, and how long it is until there are more.
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

    /// What became of telling a host that was taken: this generation went out, or nothing, for there is no connection.
    pub(super) fn told(&self, host: HostId, sent: Option<u64>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generation) = sent {
            // Unless it has come anew meanwhile.
            owed.told.entry(host).and_modify(|told| told.generation = generation);
        } else {
            owed.told.remove(&host);
        }
    }

    /// A host that was taken could not be told, through no fault of the connection: it is tried again as if it had been told.
    pub(super) fn failed(&self, host: HostId, ahead: u64) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).later.entry(host).or_insert(ahead);
        self.more.notify_one();
    }
}
