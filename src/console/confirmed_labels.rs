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
    /// The generation that each host reported last, for hosts that have or should have labels.
    pub(super) has: Mutex<HashMap<HostId, u64>>,
}

impl Labels {
    pub(super) fn new(tellings: DocumentSync, has: HashMap<HostId, u64>) -> Self {
        Self { tellings, has: Mutex::new(has) }
    }

    /// Handles a host's report of its generation.
    pub(super) fn confirm(&self, host: HostId, has: Option<u64>, now: Millis) {
        let mut known = self.has.lock().unwrap_or_else(PoisonError::into_inner);
        match has {
            Some(has) => drop(known.insert(host, has)),
            None => drop(known.remove(&host)),
        }
        drop(known);
        self.tellings.confirm(host, has, now);
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
