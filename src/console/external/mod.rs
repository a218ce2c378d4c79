//! External stores: time-series databases elsewhere that get every measurement, beside the embedded store.
//!
//! Modules, in reading order: [`lines`] (points as line protocol, in pieces of one request), [`record`] (a piece on disk),
//! [`queue`] (the backlog of a store), [`quarantine`] (what it refused), [`remote`] (the servers behind one trait, and what their
//! answers mean), [`send`] (the task that feeds one store).
//!
//! The recorder appends points to the queue of every store while it commits them to the embedded one, and acknowledges them after
//! both. Each store has a queue, a quarantine and a task that sends the backlog, one request at a time, with growing delays after
//! failures. So a store that is down affects no other.
//!
//! **Invariant: points are synced in the queue of every store before they are acknowledged to a host**, so killing the console loses none.
//!
//! **Invariant: a record leaves a queue only if its store took it, it is in quarantine, or it is counted as dropped.**

mod error;
mod lines;
mod quarantine;
mod queue;
mod record;
mod remote;
mod remote_error;
mod send;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_topics::{Millis, metric::Point, name::Name};
use tokio::sync::Notify;

pub(super) use self::send::run;
use muster_base::clock::now_ms;

use self::{
    quarantine::Quarantine,
    queue::{DiskQueue, QueueSize},
    record::QueueRecord,
    remote_error::{Remote, SendError},
};
use super::config::{Config, MetricStoreConfig};

/// How many bytes of rejected measurements are kept before the oldest are removed: some sixty requests of the largest size,
/// enough to see what is wrong.
const QUARANTINE_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The smallest limit of a queue: sixteen of the largest requests.
const QUEUE_MIN_BYTES: u64 = 16 * 1024 * 1024;

/// Points could not be appended to a queue.
#[derive(Debug, thiserror::Error)]
#[error("the queue of the store {store}: {source}")]
pub(super) struct QueueError {
    store: Name,
    source: io::Error,
}

/// All external stores.
#[derive(Debug, Default)]
pub(super) struct ExternalStores {
    stores: Vec<Arc<ExternalStore>>,
}

/// One external store.
#[derive(Debug)]
pub(super) struct ExternalStore {
    name: Name,
    kind: &'static str,
    url: String,
    queue_max_bytes: u64,
    quarantine_folder: PathBuf,
    remote: Box<dyn Remote>,
    queue: Mutex<DiskQueue>,
    quarantine: Mutex<Quarantine>,
    told: Mutex<ReportedErrors>,
    /// Notified when something was appended.
    more: Notify,
}

/// Errors of a store since the console started.
#[derive(Clone, Debug, Default)]
struct ReportedErrors {
    sent_lines: u64,
    retries: u64,
    refused_lines: u64,
    sent_ms: Option<Millis>,
    /// Whether the last attempt failed.
    failing: bool,
    /// Whether lines were dropped since the queue was last empty, and that was logged.
    dropping: bool,
    error: Option<(Millis, String)>,
}

/// Locks state that no panic leaves inconsistent.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns everything that is wrong with the configured stores. It reads the files that they name, and opens nothing.
pub(super) fn problems(config: &Config) -> Vec<ExternalError> {
    let mut names = BTreeSet::new();
    let of = |one| [check_name(&mut names, one).err(), check_queue(one).err(), remote::open(one).err()];
    config.metric_stores.iter().flat_map(of).flatten().collect()
}

fn check_name(names: &mut BTreeSet<String>, config: &MetricStoreConfig) -> Result<(), ExternalError> {
    if names.insert(config.name.as_str().to_owned()) {
        return Ok(());
    }
    let hint = "a name of its own for each; its queue is kept under it";
    Err(ExternalError::new(config, "name", "two stores have this name".to_owned(), hint))
}

fn check_queue(config: &MetricStoreConfig) -> Result<(), ExternalError> {
    if config.queue_max_bytes >= QUEUE_MIN_BYTES {
        return Ok(());
    }
    let reason = format!("{} bytes are too few", config.queue_max_bytes);
    Err(ExternalError::new(config, "queue_max_bytes", reason, &format!("at least {QUEUE_MIN_BYTES}")))
}

impl ExternalStores {
    /// Opens the queues of all configured stores.
    ///
    /// # Errors
    /// If a store cannot be used; the first such.
    pub(super) fn open(config: &Config) -> Result<Self, ExternalError> {
        let folder = config.data_dir.join("external");
        let mut names = BTreeSet::new();
        let mut stores = Vec::new();
        for one in &config.metric_stores {
            check_name(&mut names, one)?;
            stores.push(Arc::new(ExternalStore::open(one, &folder.join(one.name.as_str()))?));
        }
        for left in others(&folder, &names) {
            tracing::warn!(
                folder = %left.display(),
                hint = "remove the folder unless the store is configured again",
                "a store that is no longer configured has left its queue",
            );
        }
        Ok(Self { stores })
    }

    /// The stores.
    pub(super) fn stores(&self) -> &[Arc<ExternalStore>] {
        &self.stores
    }

    /// Appends points to every queue. When this returns they survive a power failure.
    ///
    /// # Errors
    /// If a queue cannot be written. Others may have the points, and will send them.
    pub(super) async fn append(&self, points: &Arc<[Point]>) -> Result<(), QueueError> {
        let Some(first) = self.stores.first() else { return Ok(()) };
        let own = Arc::clone(points);
        let records = tokio::task::spawn_blocking(move || records(&own, now_ms())).await;
        let failed = |store: &ExternalStore, source| QueueError { store: store.name.clone(), source };
        let records: Arc<[QueueRecord]> = records.map_err(|error| failed(first, io::Error::other(error)))?.into();
        if records.is_empty() {
            return Ok(());
        }
        let written = self.stores.iter().map(|store| {
            let (to, records) = (Arc::clone(store), Arc::clone(&records));
            (store, tokio::task::spawn_blocking(move || to.append(&records)))
        });
        // All appends are started before the first is awaited.
        let mut outcome = Ok(());
        for (store, task) in written.collect::<Vec<_>>() {
            if let Err(source) = task.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
                outcome = Err(failed(store, source));
            }
        }
        outcome
    }

    /// Returns the state of all stores.
    pub(super) fn status(&self) -> Vec<muster_api::MetricStore> {
        self.stores.iter().map(|store| store.status()).collect()
    }
}

/// Returns folders of stores that are not configured any more.
fn others(folder: &Path, names: &BTreeSet<String>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_none_or(|name| !names.contains(name)))
        .map(|e| e.path())
        .collect()
}

fn records(points: &[Point], now: Millis) -> Vec<QueueRecord> {
    let (pieces, left_out) = lines::encode(points, now);
    if left_out > 0 {
        tracing::warn!(left_out, "measurements are not sent to external stores: the time-series store is left out");
    }
    pieces.iter().filter_map(QueueRecord::of).collect()
}

impl ExternalStore {
    fn open(config: &MetricStoreConfig, folder: &Path) -> Result<Self, ExternalError> {
        check_queue(config)?;
        let remote = remote::open(config)?;
        let failed = |source| ExternalError::Folder { store: config.name.clone(), path: folder.to_owned(), source };
        let quarantine_folder = folder.join("quarantine");
        let queue = DiskQueue::open(folder, config.queue_max_bytes).map_err(failed)?;
        let quarantine = Quarantine::open(&quarantine_folder, QUARANTINE_MAX_BYTES).map_err(failed)?;
        Ok(Self {
            name: config.name.clone(),
            kind: config.kind.as_str(),
            url: config.url.clone(),
            queue_max_bytes: config.queue_max_bytes,
            quarantine_folder,
            remote,
            queue: Mutex::new(queue),
            quarantine: Mutex::new(quarantine),
            told: Mutex::default(),
            more: Notify::new(),
        })
    }

    fn append(&self, records: &[QueueRecord]) -> io::Result<()> {
        let before = self.waiting();
        let appended = locked(&self.queue).append(records);
        let after = self.waiting();
        let mut told = locked(&self.told);
        if before.lines == 0 {
            told.dropping = false;
        }
        if after.dropped > before.dropped && !told.dropping {
            told.dropping = true;
            tracing::error!(
                store = %self.name, queue_max_bytes = self.queue_max_bytes,
                consequence = "its oldest measurements are dropped for new ones and do not reach the store",
                hint = "`muster metric export` exports them",
                "the queue of an external store is full",
            );
        }
        drop(told);
        self.more.notify_one();
        appended
    }

    fn waiting(&self) -> QueueSize {
        locked(&self.queue).waiting()
    }

    fn status(&self) -> muster_api::MetricStore {
        let (waiting, held, told) = (self.waiting(), locked(&self.quarantine).held(), locked(&self.told).clone());
        muster_api::MetricStore {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            url: self.url.clone(),
            failing: told.failing,
            waiting_lines: waiting.lines,
            waiting_bytes: waiting.bytes,
            queue_max_bytes: self.queue_max_bytes,
            sent_lines: told.sent_lines,
            retries: told.retries,
            refused_lines: told.refused_lines,
            dropped_lines: waiting.dropped,
            quarantine: muster_api::MetricQuarantine {
                folder: self.quarantine_folder.display().to_string(),
                files: held.files,
                lines: held.lines,
                bytes: held.bytes,
            },
            sent_ms: told.sent_ms,
            last_error: told.error.map(|(at_ms, message)| muster_api::MetricStoreError { at_ms, message }),
        }
    }

    /// Records a failed request; returns whether it is to be logged.
    fn note(&self, failed: &SendError) -> bool {
        let mut told = locked(&self.told);
        told.error = Some((now_ms(), failed.to_string()));
        !std::mem::replace(&mut told.failing, true)
    }
}

#[cfg(test)]
mod tests;

pub use error::ExternalError;
