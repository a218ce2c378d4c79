//! Retained messages: in memory, and on disk across restarts.
//!
//! The broker is never the database: every party publishes its retained topics again when it connects. The disk serves
//! everybody else, and the time until they have.
//!
//! Modules, in reading order:
//!
//! - `memory`, `tree`: the messages, their limits and expiry; look-up by filter
//! - `journal`: the file format
//! - `folder`: the files, and their lock
//! - `disk`: the thread that writes, and its queue
//!
//! **Invariant: a topic's retained message is the last accepted one with the retain flag, or none.** A message that does not
//! fit is refused, its publisher is told, and the old value stays.
//!
//! **Invariant: nobody fills the store for others.** A topic belongs to the identity that alone may publish there
//! ([`muster_topics::role::owner`]); each identity has a quota, and a host has a small minimum in any case.

mod disk;
mod folder;
mod journal;
mod memory;
mod outcome;
mod tree;

use std::{path::Path, sync::Arc};

use muster_topics::{role::Identity, topic::Prefix};
use tokio::sync::Notify;

pub(crate) use self::disk::JournalFigures;
use self::{
    disk::{JournalHandle, QUEUE_MAX_BYTES},
    journal::JournalRecord,
    memory::RetainedMemory,
};
use crate::{error::BrokerError, identity::Serial, limits::BrokerLimits, message::BrokerMessage};

/// The retained messages.
#[derive(Debug)]
pub(crate) struct RetainedStore {
    memory: RetainedMemory,
    /// `None`: they end with the process.
    disk: Option<JournalHandle>,
    /// Exists without a disk, too, so that it can be awaited.
    alarm: Arc<Notify>,
}

impl RetainedStore {
    /// Opens `folder`, and locks it until [`Self::close`]. Without a folder, messages do not outlive the process.
    /// Blocks as long as the disk does.
    pub(crate) fn open(
        folder: Option<&Path>,
        prefix: Prefix,
        limits: &BrokerLimits,
        now_ms: u64,
    ) -> Result<Self, BrokerError> {
        Self::with_queue(folder, prefix, limits, now_ms, QUEUE_MAX_BYTES)
    }

    fn with_queue(
        folder: Option<&Path>,
        prefix: Prefix,
        limits: &BrokerLimits,
        now_ms: u64,
        queue_max_bytes: usize,
    ) -> Result<Self, BrokerError> {
        let mut memory = RetainedMemory::new(prefix, limits);
        let disk =
            folder.map(|folder| JournalHandle::open(folder, queue_max_bytes, &mut memory, now_ms)).transpose()?;
        let alarm = disk.as_ref().map(JournalHandle::alarm).unwrap_or_default();
        Ok(Self { memory, disk, alarm })
    }

    /// Retains a message whose retain flag is set, or clears its topic if it is empty. Never waits for the disk.
    pub(crate) fn keep(&mut self, message: &BrokerMessage, now_ms: u64) -> RetainOutcome {
        self.memory.sweep(now_ms);
        let change = self.memory.keep(message);
        if let Some(disk) = &self.disk
            && change.is_new
        {
            disk.append(match change.kept {
                RetainOutcome::Yes => JournalRecord::Kept(message.clone()),
                // A refused message changes nothing.
                RetainOutcome::Cleared | RetainOutcome::Full => {
                    JournalRecord::Cleared(message.as_bytes().slice_ref(message.topic().as_bytes()))
                }
            });
            self.compact();
        }
        change.kept
    }

    /// Returns messages that have not expired and whose topics match `filter`, from after `after` on: until they have
    /// `max_bytes`, or `steps` nodes were visited. Returns also the topic after which to continue, if there are more,
    /// and leaves the unused number in `steps`.
    pub(crate) fn some(
        &self,
        filter: &str,
        after: Option<&str>,
        steps: &mut usize,
        max_bytes: usize,
        now_ms: u64,
    ) -> (Vec<BrokerMessage>, Option<String>) {
        self.memory.some(filter, after, steps, max_bytes, now_ms)
    }

    /// Records the certificate of an identity, if it can retain messages.
    pub(crate) fn shown(&mut self, identity: &Identity, serial: Serial) {
        if identity.owned().next().is_some()
            && self.memory.shown(identity.clone(), serial)
            && let Some(disk) = &self.disk
        {
            disk.append(JournalRecord::Shown(identity.clone(), serial));
        }
    }

    /// Returns an empty message for each topic of identities whose last certificate is revoked.
    pub(crate) fn removals(&self, is_revoked: impl Fn(&Identity, &Serial) -> bool) -> Vec<BrokerMessage> {
        self.memory.removals(is_revoked)
    }

    /// Returns the most bytes of one host.
    pub(crate) fn most(&self) -> usize {
        self.memory.most()
    }

    /// Returns the number of messages, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        self.memory.size()
    }

    /// Returns how many have expired.
    pub(crate) fn expired(&self) -> u64 {
        self.memory.expired()
    }

    /// Returns the figures of the file, if there is one.
    pub(crate) fn figures(&self) -> Option<JournalFigures> {
        self.disk.as_ref().map(JournalHandle::figures)
    }

    /// Notified when [`Self::tend`] has something to do.
    pub(crate) fn alarm(&self) -> Arc<Notify> {
        Arc::clone(&self.alarm)
    }

    /// Removes expired messages, and rewrites the file if it lacks something or is too long. It is to be called at each
    /// notification, and at any other time.
    pub(crate) fn tend(&mut self, now_ms: u64) {
        self.memory.sweep(now_ms);
        match &self.disk {
            Some(disk) if disk.wants_healing() => disk.rewrite(self.memory.records()),
            _ => self.compact(),
        }
    }

    fn compact(&self) {
        let (live, live_bytes) = self.memory.size();
        if let Some(disk) = &self.disk
            && disk.wants_compaction(live, live_bytes)
        {
            disk.rewrite(self.memory.records());
        }
    }

    /// Returns when everything is on the disk and the folder is unlocked; nothing is written any more. Blocks as long
    /// as that takes.
    pub(crate) fn close(&mut self) {
        if let Some(disk) = self.disk.take() {
            disk.close(|| self.memory.records());
        }
    }
}

#[cfg(test)]
mod tests;

pub(crate) use outcome::RetainOutcome;
