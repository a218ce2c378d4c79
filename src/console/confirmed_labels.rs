//! Tracks which labels each host has confirmed.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use muster_topics::{Millis, name::HostId};

use super::owed_documents::DocumentSync;

/// Which labels hosts should have, and which they have.
#[derive(Debug)]
pub(super) struct Labels {
    pub(super) tellings: DocumentSync,
    /// The generation that each host said last that it has, of those that have or should have any.
    pub(super) has: Mutex<HashMap<HostId, u64>>,
}

impl Labels {
    pub(super) fn new(tellings: DocumentSync, has: HashMap<HostId, u64>) -> Self {
        Self { tellings, has: Mutex::new(has) }
    }

    /// A host has said which generation it has.
    pub(super) fn heard(&self, host: HostId, has: Option<u64>, now: Millis) {
        let mut known = self.has.lock().unwrap_or_else(PoisonError::into_inner);
        match has {
            Some(has) => drop(known.insert(host, has)),
            None => drop(known.remove(&host)),
        }
        drop(known);
        self.tellings.heard(host, has, now);
    }

    pub(super) fn has(&self, host: HostId) -> u64 {
        self.has.lock().unwrap_or_else(PoisonError::into_inner).get(&host).copied().unwrap_or_default()
    }

    /// Whether a host is known to have what it should.
    pub(super) fn is_confirmed(&self, host: HostId) -> bool {
        self.has(host) == self.tellings.of(host)
    }

    /// A host is a member no more.
    pub(super) fn forget(&self, host: HostId) {
        self.has.lock().unwrap_or_else(PoisonError::into_inner).remove(&host);
        self.tellings.forget(host);
    }
}
