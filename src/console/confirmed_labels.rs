//! Tracks which labels each host has confirmed.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use muster_topics::{Millis, name::HostId};

use super::owed_documents::DocumentSync;

/// Which labels hosts should have, and which they have confirmed.
#[derive(Debug)]
pub(super) struct Labels {
    pub(super) tellings: DocumentSync,
    /// The generation that each host reported last, for hosts that have labels.
    pub(super) has: Mutex<HashMap<HostId, u64>>,
}

impl Labels {
    pub(super) fn new(tellings: DocumentSync, has: HashMap<HostId, u64>) -> Self {
        Self { tellings, has: Mutex::new(has) }
    }

    /// Handles a host's report of its generation. Nothing is owed to a host that has newer labels: see [`Self::newer`].
    pub(super) fn confirm(&self, host: HostId, has: Option<u64>, now: Millis) {
        // No console makes a larger one.
        let has = has.filter(|has| i64::try_from(*has).is_ok());
        let mut known = self.has.lock().unwrap_or_else(PoisonError::into_inner);
        match has {
            Some(has) => drop(known.insert(host, has)),
            None => drop(known.remove(&host)),
        }
        drop(known);
        if self.newer(host).is_none() {
            self.tellings.confirm(host, has, now);
        }
    }

    /// Returns the generation that a host has, if it is newer than the console's: this console's store was lost, or is
    /// older, and what the host has is better than what the console would send it.
    pub(super) fn newer(&self, host: HostId) -> Option<u64> {
        Some(self.has(host)).filter(|has| *has > self.tellings.of(host))
    }

    pub(super) fn has(&self, host: HostId) -> u64 {
        self.has.lock().unwrap_or_else(PoisonError::into_inner).get(&host).copied().unwrap_or_default()
    }

    /// Whether a host has confirmed the present labels.
    pub(super) fn is_confirmed(&self, host: HostId) -> bool {
        self.has(host) == self.tellings.of(host)
    }

    /// Handles the removal of a host.
    pub(super) fn forget(&self, host: HostId) {
        self.has.lock().unwrap_or_else(PoisonError::into_inner).remove(&host);
        self.tellings.forget(host);
    }
}
