//! The thread that writes retained messages to their folder, and its queue.
//!
//! ```text
//! Retained (the exchange) ── queue, bounded in bytes ──▶ thread ──▶ retained.journal
//!                         ◀── alarm: call `Retained::tend` ──
//! ```
//!
//! **Invariant: retaining a message never waits for the disk.** If the queue is full, or the disk is, the message is
//! kept in memory all the same; it is counted, logged once, and the file is not updated. Once the thread has caught up,
//! or a pause is over, it raises the alarm, and the whole memory is written to a new file, which heals either.
//!
//! **Invariant: the file is valid at every moment.** A partial write is truncated, and nothing is
//! appended behind it; a new file takes the old one's name only when all of it is on the disk.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    folder::{self, OpenJournal},
    journal::{HEAD_BYTES, HEADER_BYTES, JournalRecord},
    memory::RetainedMemory,
};
use crate::error::BrokerError;

/// What may wait for the disk: a quarter of what may be retained, and a second's worth of a fleet that comes back.
pub(super) const QUEUE_MAX_BYTES: usize = 16 * 1024 * 1024;

/// The approximate overhead of a record in the queue.
const QUEUED_BYTES: usize = 64;

/// The size of a write.
const BATCH_BYTES: usize = 256 * 1024;

/// How long a record may be in the kernel only. A power failure loses at most this; parties publish their retained
/// messages again when they connect.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The least dead bytes for a compaction.
const DEAD_MIN_BYTES: u64 = 1024 * 1024;

/// The pause before another rewrite after a failure: doubled each time, up to the longer.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The state that both sides share.
#[derive(Debug, Default)]
pub(super) struct JournalState {
    queued_bytes: AtomicUsize,
    /// Set by the sender: records did not fit in the queue, and the file lacks them.
    is_behind: AtomicBool,
    /// Set by the thread: the file takes no records until it is rewritten.
    is_broken: AtomicBool,
    /// Whether no rewrite is wanted now: one is under way, or a pause.
    is_held: AtomicBool,
    file_bytes: AtomicU64,
    errors: AtomicU64,
    missed: AtomicU64,
    rewrites: AtomicU64,
    /// Notified when [`super::RetainedStore::tend`] has something to do.
    alarm: Arc<Notify>,
}

impl JournalState {
    fn lacks_something(&self) -> bool {
        self.is_behind.load(Ordering::Acquire) || self.is_broken.load(Ordering::Acquire)
    }
}

enum JournalOrder {
    Append(JournalRecord),
    /// All records, for a new file.
    Rewrite {
        all: Vec<JournalRecord>,
        /// Whether the old file lacks something.
        heals: bool,
    },
    /// The state has changed.
    Look,
}

/// The sender's side.
#[derive(Debug)]
pub(super) struct JournalHandle {
    orders: Sender<JournalOrder>,
    state: Arc<JournalState>,
    thread: JoinHandle<()>,
    queue_max_bytes: usize,
}

impl JournalHandle {
    /// Locks the folder, fills `memory` from the journal, and starts the thread.
    pub(super) fn open(
        folder: &Path,
        queue_max_bytes: usize,
        memory: &mut RetainedMemory,
        now_ms: u64,
    ) -> Result<Self, BrokerError> {
        let lock = folder::take(folder)?;
        let mut writer = JournalThread::open(folder, lock, memory, now_ms)?;
        let state = Arc::clone(&writer.state);
        let (orders, queue) = mpsc::channel();
        let thread =
            thread::Builder::new().name("retained".to_owned()).spawn(move || writer.run(&queue)).map_err(|source| {
                BrokerError::Store { folder: folder.to_owned(), trying: "start the thread that writes to", source }
            })?;
        Ok(Self { orders, state, thread, queue_max_bytes })
    }

    /// Queues a record, if there is room for it.
    pub(super) fn append(&self, record: JournalRecord) {
        let state = &self.state;
        let cost = record.len() + QUEUED_BYTES;
        if state.is_behind.load(Ordering::Acquire) {
            state.missed.fetch_add(1, Ordering::Relaxed);
        } else if state.queued_bytes.load(Ordering::Acquire) + cost > self.queue_max_bytes {
            state.missed.fetch_add(1, Ordering::Relaxed);
            state.is_behind.store(true, Ordering::Release);
            tracing::warn!(
                "retained messages arrive faster than the disk can write them; they are kept in memory, and written later"
            );
            self.send(JournalOrder::Look);
        } else {
            state.queued_bytes.fetch_add(cost, Ordering::AcqRel);
            self.send(JournalOrder::Append(record));
        }
    }

    /// Sends an order. The thread ends only after this side.
    fn send(&self, order: JournalOrder) {
        if self.orders.send(order).is_err() {
            self.state.is_broken.store(true, Ordering::Release);
        }
    }

    /// Whether more of the file is dead than alive: `live` messages have `live_bytes` bytes.
    pub(super) fn wants_compaction(&self, live: usize, live_bytes: usize) -> bool {
        let live_bytes = (HEADER_BYTES + live * HEAD_BYTES + live_bytes) as u64;
        let dead_bytes = self.state.file_bytes.load(Ordering::Acquire).saturating_sub(live_bytes);
        dead_bytes > live_bytes.max(DEAD_MIN_BYTES) && !self.state.is_held.load(Ordering::Acquire)
    }

    /// Whether the file lacks something, and a rewrite may be tried.
    pub(super) fn wants_healing(&self) -> bool {
        self.state.lacks_something() && !self.state.is_held.load(Ordering::Acquire)
    }

    /// Requests a rewrite with these records.
    pub(super) fn rewrite(&self, all: Vec<JournalRecord>) {
        self.state.is_held.store(true, Ordering::Release);
        let heals = self.state.lacks_something();
        // Later records are behind this in the queue.
        self.state.is_behind.store(false, Ordering::Release);
        self.send(JournalOrder::Rewrite { all, heals });
    }

    /// Writes what waits, and everything if something is missing; returns when it is on the disk.
    pub(super) fn close(self, all: impl FnOnce() -> Vec<JournalRecord>) {
        if self.state.lacks_something() {
            self.rewrite(all());
        }
        drop(self.orders);
        if self.thread.join().is_err() {
            tracing::error!("the thread that writes retained messages died");
        }
    }

    pub(super) fn alarm(&self) -> Arc<Notify> {
        Arc::clone(&self.state.alarm)
    }

    pub(super) fn figures(&self) -> JournalFigures {
        let state = &self.state;
        JournalFigures {
            file_bytes: state.file_bytes.load(Ordering::Relaxed),
            queued_bytes: state.queued_bytes.load(Ordering::Relaxed) as u64,
            errors: state.errors.load(Ordering::Relaxed),
            missed: state.missed.load(Ordering::Relaxed),
            rewrites: state.rewrites.load(Ordering::Relaxed),
            is_whole: !state.lacks_something(),
        }
    }
}

/// Figures of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalFigures {
    pub(crate) file_bytes: u64,
    /// Bytes that wait to be written.
    pub(crate) queued_bytes: u64,
    /// Failed writes.
    pub(crate) errors: u64,
    /// Changes that were not written when they came.
    pub(crate) missed: u64,
    /// Rewrites.
    pub(crate) rewrites: u64,
    /// Whether it has everything, or will have once the queue is empty.
    pub(crate) is_whole: bool,
}

/// The thread's side.
struct JournalThread {
    folder: PathBuf,
    file: File,
    salt: u64,
    /// Records that are written next.
    batch: Vec<u8>,
    state: Arc<JournalState>,
    /// When the oldest unsynced record is to be synced.
    sync_at: Option<Instant>,
    /// When the pause after a failure ends.
    hold_until: Option<Instant>,
    pause: Duration,
    /// Whether the other side was notified that the file lacks something, and has not answered yet.
    has_alarmed: bool,
    /// The file's length when the other side was last asked whether it is too long.
    looked_at_bytes: u64,
    /// Released when the thread has ended.
    _lock: File,
}

impl JournalThread {
    fn open(folder: &Path, lock: File, memory: &mut RetainedMemory, now_ms: u64) -> Result<Self, BrokerError> {
        let OpenJournal { file, salt, bytes } = folder::open(folder, memory, now_ms)?;
        let state = Arc::new(JournalState::default());
        state.file_bytes.store(bytes, Ordering::Release);
        Ok(Self {
            folder: folder.to_owned(),
            file,
            salt,
            batch: Vec::new(),
            state,
            sync_at: None,
            hold_until: None,
            pause: PAUSE_MIN,
            has_alarmed: false,
            looked_at_bytes: 0,
            _lock: lock,
        })
    }

    /// Runs until the other side has ended.
    fn run(&mut self, queue: &Receiver<JournalOrder>) {
        loop {
            let order = match self.next_timer() {
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => queue.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match order {
                Ok(order) => self.take(order, queue),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.sync();
                    return;
                }
            }
            self.timers();
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        [self.sync_at, self.hold_until].into_iter().flatten().min()
    }

    fn timers(&mut self) {
        let now = Instant::now();
        if self.sync_at.is_some_and(|at| at <= now) {
            self.sync();
        }
        if self.hold_until.is_some_and(|at| at <= now) {
            self.hold_until = None;
            self.has_alarmed = true;
            self.state.is_held.store(false, Ordering::Release);
            self.state.alarm.notify_one();
        }
        let is_free = !self.has_alarmed && !self.state.is_held.load(Ordering::Acquire);
        if is_free && self.state.lacks_something() {
            // A pause: what cannot be written at this rate should not be retried at this rate.
            self.hold(self.pause);
        }
    }

    fn hold(&mut self, pause: Duration) {
        self.state.is_held.store(true, Ordering::Release);
        self.hold_until = Some(Instant::now() + pause);
    }

    /// Takes an order and those waiting behind it.
    fn take(&mut self, first: JournalOrder, queue: &Receiver<JournalOrder>) {
        let mut next = Some(first);
        while let Some(order) = next {
            match order {
                JournalOrder::Append(record) => self.add(&record),
                JournalOrder::Rewrite { all, heals } => self.rewrite(&all, heals),
                JournalOrder::Look => {}
            }
            if self.batch.len() >= BATCH_BYTES {
                self.write();
            }
            next = queue.try_recv().ok();
        }
        self.write();
        let bytes = self.state.file_bytes.load(Ordering::Acquire);
        if bytes > self.looked_at_bytes + DEAD_MIN_BYTES {
            self.looked_at_bytes = bytes;
            self.state.alarm.notify_one();
        }
    }

    fn add(&mut self, record: &JournalRecord) {
        self.state.queued_bytes.fetch_sub(record.len() + QUEUED_BYTES, Ordering::AcqRel);
        if self.state.is_broken.load(Ordering::Acquire) {
            self.state.missed.fetch_add(1, Ordering::Relaxed);
        } else {
            record.write(self.salt, &mut self.batch);
        }
    }

    fn write(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let written = self.file.write_all(&self.batch);
        let length = self.batch.len() as u64;
        self.batch.clear();
        self.batch.shrink_to(BATCH_BYTES * 2);
        match written {
            Ok(()) => {
                self.state.file_bytes.fetch_add(length, Ordering::AcqRel);
                self.sync_at.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
            }
            Err(error) => {
                // If even this fails, the next start truncates the file.
                let _ = self.file.set_len(self.state.file_bytes.load(Ordering::Acquire));
                self.breaks(&error);
            }
        }
    }

    fn sync(&mut self) {
        self.write();
        if self.sync_at.take().is_none() {
            return;
        }
        // After a failed sync the disk's content is unknown, and a second sync proves nothing about the first.
        if let Err(error) = self.file.sync_data() {
            self.breaks(&error);
        }
    }

    /// Marks the file as unusable until it is rewritten.
    fn breaks(&mut self, error: &io::Error) {
        self.state.errors.fetch_add(1, Ordering::Relaxed);
        self.sync_at = None;
        if !self.state.is_broken.swap(true, Ordering::AcqRel) {
            tracing::error!(
                folder = %self.folder.display(),
                %error,
                consequence = "they are kept in memory, and written as soon as that is possible",
                hint = "free space on that disk",
                "retained messages cannot be written",
            );
        }
    }

    fn rewrite(&mut self, all: &[JournalRecord], heals: bool) {
        self.has_alarmed = false;
        let error = match folder::write_new(&self.folder, all) {
            Ok(OpenJournal { file, salt, bytes }) => {
                // Records that wait for the old file are in the new one.
                self.batch.clear();
                (self.file, self.salt, self.sync_at) = (file, salt, None);
                self.looked_at_bytes = bytes;
                self.state.file_bytes.store(bytes, Ordering::Release);
                self.state.rewrites.fetch_add(1, Ordering::Relaxed);
                if self.state.is_broken.swap(false, Ordering::AcqRel) {
                    tracing::info!(folder = %self.folder.display(), "retained messages are written again");
                }
                match folder::sync(&self.folder) {
                    Ok(()) => {
                        (self.pause, self.hold_until) = (PAUSE_MIN, None);
                        self.state.is_held.store(false, Ordering::Release);
                        return;
                    }
                    Err(error) => error,
                }
            }
            // The old file remains in use: it is only longer than necessary.
            Err(error) if !heals && !self.state.is_broken.load(Ordering::Acquire) => {
                self.state.errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(folder = %self.folder.display(), %error, "the journal of retained messages cannot be compacted");
                self.hold(PAUSE_MAX);
                return;
            }
            Err(error) => error,
        };
        self.breaks(&error);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.hold(self.pause);
    }
}
