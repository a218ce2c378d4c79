//! Content that is missing or is not what was stored, as it was found when it was read. An operator is told of it until it was added
//! again.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use muster_api::Artifact;
use muster_base::clock::now_ms;
use muster_topics::{diagnostic::Diagnostic, name::Digest};

use super::artifact_path;
use crate::{
    error::Error,
    list::first_names,
    notice::NoticeKind,
    page_change::PageChange,
    state::{Console, ConsoleState},
    store::{
        StoreError, StoreResult,
        content::{ArtifactFilter, artifacts},
    },
};

/// The most that an alert names.
const NAMED_MAX: usize = 5;

/// What changes when a file is written, replaced or touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    inode: u64,
    size_bytes: u64,
    changed: (i64, i64),
}

impl FileStamp {
    pub(super) fn of(found: &fs::Metadata) -> Self {
        Self { inode: found.ino(), size_bytes: found.len(), changed: (found.ctime(), found.ctime_nsec()) }
    }
}

/// What was found to be damaged: with its name, and its file if it has one. There is no more of it than of content.
#[derive(Debug, Default)]
pub(crate) struct DamagedContent(Mutex<BTreeMap<Digest, (String, Option<FileStamp>)>>);

impl DamagedContent {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<Digest, (String, Option<FileStamp>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this very file was found to be damaged.
    pub(super) fn has(&self, sha256: &Digest, stamp: FileStamp) -> bool {
        self.locked().get(sha256).is_some_and(|(_, damaged)| *damaged == Some(stamp))
    }

    fn message(&self) -> Option<Diagnostic> {
        let all = self.locked();
        let names: Vec<&str> = all.values().map(|(what, _)| what.as_str()).collect();
        let named = first_names(&names, NAMED_MAX);
        let message = Diagnostic::new(format!("content is missing or damaged and is not sent to hosts: {named}"))
            .with_hint(
                "create it again with `muster artifact create` or `muster config create`, and check the disk of the console",
            );
        (!names.is_empty()).then_some(message)
    }
}

/// Returns the name of an artifact for an operator.
pub(super) fn artifact_words(sha256: &Digest, label: Option<&Artifact>) -> String {
    match label {
        Some(Artifact { role, version, .. }) => format!("artifact {role}@{version}"),
        None => format!("artifact {}", sha256.short()),
    }
}

impl ConsoleState {
    /// Notes that content is damaged, or missing.
    pub(super) fn note_damaged(&self, sha256: &Digest, what: String, stamp: Option<FileStamp>) {
        tracing::error!(
            %sha256,
            consequence = "it is not sent to hosts",
            hint = "create it again, and check the disk of the console",
            "{what} is missing or damaged"
        );
        self.content.damaged.locked().insert(sha256.clone(), (what, stamp));
        self.tell_damaged_content();
    }

    /// Notes that content is what was stored, or is not needed any more.
    pub(super) fn note_whole(&self, sha256: &Digest) {
        if self.content.damaged.locked().remove(sha256).is_some() {
            self.tell_damaged_content();
        }
    }

    /// Notes a config or a manifest that was found to be damaged when it was read.
    pub(super) fn note_altered<T>(&self, read: StoreResult<T>) -> StoreResult<T> {
        read.inspect_err(|error| {
            if let StoreError::Altered { what, sha256 } = error {
                self.note_damaged(sha256, what.clone(), None);
            }
        })
    }

    fn tell_damaged_content(&self) {
        match self.content.damaged.message() {
            Some(message) => drop(self.notices.raise(NoticeKind::ContentDamaged, message, now_ms())),
            None => drop(self.notices.clear(NoticeKind::ContentDamaged)),
        }
        self.changed(PageChange::Alert(None));
    }
}

impl Console {
    /// Notes artifacts that are not there, or have another size, when the console starts. Whether they have their hash shows when they
    /// are read.
    pub(crate) async fn look_for_artifacts(&self) -> Result<(), Error> {
        let shared = &self.shared;
        for artifact in artifacts(shared.store.read(), &ArtifactFilter::default()).await? {
            let found = fs::metadata(artifact_path(&shared.content, &artifact.sha256)).ok();
            if found.as_ref().is_none_or(|found| found.len() != artifact.size_bytes) {
                let stamp = found.as_ref().map(FileStamp::of);
                shared.note_damaged(&artifact.sha256, artifact_words(&artifact.sha256, Some(&artifact)), stamp);
            }
        }
        Ok(())
    }
}
