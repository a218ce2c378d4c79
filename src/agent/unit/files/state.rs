//! What the units of files of a host share.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use muster_topics::name::{Digest, UnitName};
use tokio::sync::OwnedMutexGuard;

use super::{
    blobs::Blobs,
    confine::Confinement,
    examine::Hashes,
    staged::{Revisions, StagedRevision},
};
use crate::{
    artifact::Artifacts,
    store::Store,
    unit::{given_secrets::SecretSource, owners::Owners, task_log::TaskLog, turns::Turns},
};

/// What the units of files of a host share.
pub(super) struct FilesState {
    pub(super) store: Store,
    pub(super) tasks: TaskLog,
    pub(super) owners: Owners,
    pub(super) secrets: SecretSource,
    pub(super) artifacts: Artifacts,
    pub(super) blobs: Blobs,
    pub(super) folder: PathBuf,
    pub(super) confinement: Confinement,
    pub(super) hashes: Hashes,
    pub(super) locks: Mutex<BTreeMap<UnitName, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) turns: Turns,
}

impl FilesState {
    /// Waits until nothing else is done for a unit.
    pub(super) async fn lock(&self, unit: &UnitName) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(unit.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }

    pub(super) fn units(&self) -> PathBuf {
        self.folder.join("units")
    }

    pub(super) fn revisions(&self, unit: &UnitName) -> Revisions {
        Revisions::of(&self.units(), unit)
    }

    /// Returns a revision that is ready, if all its contents are still there.
    pub(super) fn ready(&self, unit: &UnitName, revision: &Digest) -> Option<StagedRevision> {
        let staged = self.revisions(unit).read(revision)?;
        let has = |sha256: &Digest| self.blobs.has(sha256) || self.artifacts.path(sha256).is_file();
        let is_whole = staged.blobs().into_iter().all(has);
        is_whole.then_some(staged)
    }
}
