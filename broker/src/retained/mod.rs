//! Retained messages: in memory, and on disk across restarts.
//!
//! The broker is never the database: every party publishes its retained topics again when it connects. The disk is there
//! for everybody else, and for the time until they have.
//!
//! Modules, in reading order:
//!
//! - `memory`, `tree`: what is kept, its limits and its end; found by filter
//! - `journal`: the file's layout
//! - `folder`: the files, and who holds them
//! - `disk`: the thread that writes, and the way to it
//!
//! **Invariant: a topic's retained message is the last that was published with the flag, or none.** What does not fit is
//! forgotten, old value included: an old truth is worse than none.

mod disk;
mod folder;
mod journal;
mod memory;
mod tree;

use std::{path::Path, sync::Arc};

use tokio::sync::Notify;

pub(crate) use self::disk::Figures;
use self::{
    disk::{Disk, QUEUE_MAX_BYTES},
    journal::Record,
    memory::Memory,
};
use crate::{StartError, limits::Limits, message::Message};

/// What became of a message that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// It was empty: the topic has no retained message any more.
    Cleared,
    /// A limit is reached.
    Full,
}

/// The retained messages.
#[derive(Debug)]
pub(crate) struct Retained {
    memory: Memory,
    /// None: they end with the process.
    disk: Option<Disk>,
    /// Of a disk that there is not, too: so that it can be waited for.
    alarm: Arc<Notify>,
}

impl Retained {
    /// Reads what there is in `folder`, and holds the folder until [`Self::close`]. Without one, nothing outlives the
    /// process. Blocks, as far as the disk does.
    pub(crate) fn open(folder: Option<&Path>, limits: &Limits, now_ms: u64) -> Result<Self, StartError> {
        Self::with_queue(folder, limits, now_ms, QUEUE_MAX_BYTES)
    }

    fn with_queue(
        folder: Option<&Path>,
        limits: &Limits,
        now_ms: u64,
        queue_max_bytes: usize,
    ) -> Result<Self, StartError> {
        let mut memory = Memory::new(limits);
        let disk = folder.map(|folder| Disk::open(folder, queue_max_bytes, &mut memory, now_ms)).transpose()?;
        let alarm = disk.as_ref().map(Disk::alarm).unwrap_or_default();
        Ok(Self { memory, disk, alarm })
    }

    /// Keeps a message whose retain flag is set, or clears its topic if it is empty. Never waits for the disk.
    pub(crate) fn keep(&mut self, message: &Message, now_ms: u64) -> Kept {
        self.memory.sweep(now_ms);
        let change = self.memory.keep(message);
        if let Some(disk) = &self.disk
            && change.is_new
        {
            disk.append(match change.kept {
                Kept::Yes => Record::Kept(message.clone()),
                Kept::Cleared | Kept::Full => Record::Cleared(message.as_bytes().slice_ref(message.topic().as_bytes())),
            });
            self.compact();
        }
        change.kept
    }

    /// Every message that has not expired and whose topic matches `filter`, in no order.
    pub(crate) fn matching(&self, filter: &str, now_ms: u64) -> Vec<Message> {
        self.memory.matching(filter, now_ms)
    }

    /// How many messages there are, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        self.memory.size()
    }

    /// How many were there until they expired.
    pub(crate) fn expired(&self) -> u64 {
        self.memory.expired()
    }

    /// About the file, if there is one.
    pub(crate) fn figures(&self) -> Option<Figures> {
        self.disk.as_ref().map(Disk::figures)
    }

    /// Sounds when [`Self::tend`] has something to do.
    pub(crate) fn alarm(&self) -> Arc<Notify> {
        Arc::clone(&self.alarm)
    }

    /// Takes out what has expired, and has the file written anew if it lacks something or has become too long. To be
    /// called at each alarm, and at other times as often as one likes.
    pub(crate) fn tend(&mut self, now_ms: u64) {
        self.memory.sweep(now_ms);
        match &self.disk {
            Some(disk) if disk.wants_healing() => disk.rewrite(self.memory.all()),
            _ => self.compact(),
        }
    }

    fn compact(&self) {
        let (live, live_bytes) = self.memory.size();
        if let Some(disk) = &self.disk
            && disk.wants_compaction(live, live_bytes)
        {
            disk.rewrite(self.memory.all());
        }
    }

    /// Returns when everything is on the disk and the folder is free; from now on nothing is written any more. Blocks
    /// as long as that takes.
    pub(crate) fn close(&mut self) {
        if let Some(disk) = self.disk.take() {
            disk.close(|| self.memory.all());
        }
    }
}

#[cfg(test)]
mod tests;
