//! A cache of command progress, kept until a command changes.

use super::command_progress::{CommandProgress, HostCounts};
use crate::page_change::PageChange;
use muster_topics::name::CommandId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A cached command: how often it has changed since it was first read, and what was read, if that is still valid.
#[derive(Debug)]
pub(super) struct CachedCommand<T> {
    changes: u64,
    found: Option<Arc<T>>,
}

/// The most commands that are cached with counts only: several lists of the newest ones. Each takes some hundred bytes.
const TALLIES_MAX: usize = 500;

/// The most commands that are cached host by host: those on open pages. Each takes 16 bytes for each host, and the
/// names of hosts that did not do it.
const COURSES_MAX: usize = 16;

/// A cache of commands.
#[derive(Debug)]
pub(super) struct LedgerCache<T> {
    max: usize,
    kept: Mutex<HashMap<CommandId, CachedCommand<T>>>,
}

impl<T> LedgerCache<T> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, kept: Mutex::default() }
    }

    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<CommandId, CachedCommand<T>>> {
        // A panic while it was locked left at worst a command that has to be read again.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changed(&self, id: CommandId) {
        if let Some(kept) = self.all().get_mut(&id) {
            kept.changes += 1;
            kept.found = None;
        }
    }

    /// Returns what is cached of a command; or, for a reader, how often it has changed.
    pub(super) fn find(&self, id: CommandId) -> Result<Arc<T>, u64> {
        let mut all = self.all();
        if all.len() >= self.max && !all.contains_key(&id) {
            all.clear();
        }
        let kept = all.entry(id).or_insert(CachedCommand { changes: 0, found: None });
        kept.found.clone().ok_or(kept.changes)
    }

    /// Caches what was read, unless it has changed since.
    pub(super) fn keep(&self, id: CommandId, changes: u64, found: &Arc<T>) {
        if let Some(kept) = self.all().get_mut(&id).filter(|kept| kept.changes == changes) {
            kept.found = Some(Arc::clone(found));
        }
    }
}

/// The caches.
#[derive(Debug)]
pub(crate) struct Tallies {
    pub(super) short: LedgerCache<HostCounts>,
    pub(super) whole: LedgerCache<CommandProgress>,
}

impl Default for Tallies {
    fn default() -> Self {
        Self { short: LedgerCache::new(TALLIES_MAX), whole: LedgerCache::new(COURSES_MAX) }
    }
}

impl Tallies {
    /// Drops what was read of a command that has changed.
    pub(crate) fn changed(&self, change: &PageChange) {
        if let PageChange::Command(id) = change {
            self.short.changed(*id);
            self.whole.changed(*id);
        }
    }
}
