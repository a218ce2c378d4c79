//! Installed files whose content was compared with their digests: what is known of each, and the comparison, within a rate.

use std::{
    collections::HashMap,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use muster_base::clock::Uptime;
use muster_rules::content_check::{ComparedFile, DIGEST_BYTES_PER_S, FileCheck, FileIdentity, next_check};
use muster_topics::{Millis, name::Digest};

use super::rate_limit::TransferPace;

/// What is read at once: each piece is a hand-over to a thread, and at the rate there are sixteen in a second.
const PIECE_BYTES: usize = 256 * 1024;

/// How long the machine has run; 0 where the kernel does not tell.
pub(crate) fn uptime_ms() -> Millis {
    Uptime::now().map_or(0, |uptime| uptime.ms)
}

pub(super) fn identity_of(found: &Metadata) -> FileIdentity {
    FileIdentity {
        device: found.dev(),
        inode: found.ino(),
        size_bytes: found.len(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    }
}

/// Returns the identity of a plain file; `None` if there is none.
pub(crate) fn seen(path: &Path) -> Option<FileIdentity> {
    fs::metadata(path).ok().filter(Metadata::is_file).map(|found| identity_of(&found))
}

/// What was found of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileContent {
    /// It is as it should be.
    Whole,
    /// It is missing, or its content is another.
    Changed {
        /// When it was last seen as it should be.
        whole_ms: Option<Millis>,
    },
    /// It changed while it was read, so that a later look says more.
    Unsettled,
}

/// What is known of installed files.
pub(crate) struct InstalledFiles {
    known: Mutex<HashMap<PathBuf, ComparedFile>>,
    pace: TransferPace,
}

impl Default for InstalledFiles {
    fn default() -> Self {
        Self { known: Mutex::default(), pace: TransferPace::new(Some(DIGEST_BYTES_PER_S)) }
    }
}

impl InstalledFiles {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<PathBuf, ComparedFile>) -> T) -> T {
        work(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a file's identity is as it was when its content was compared.
    pub(super) fn is_unchanged(&self, path: &Path) -> bool {
        seen(path).is_some_and(|seen| {
            self.with(|known| known.get(path).is_some_and(|known| known.is_whole && known.identity == seen))
        })
    }

    /// Notes that a file with this identity has the content that it should have.
    pub(crate) fn add(&self, path: &Path, identity: FileIdentity) {
        let now_ms = uptime_ms();
        let compared = ComparedFile { identity, digested_ms: now_ms, is_whole: true, whole_ms: Some(now_ms) };
        self.with(|known| known.insert(path.to_owned(), compared));
    }

    /// Forgets a file.
    pub(super) fn forget(&self, path: &Path) {
        self.with(|known| known.remove(path));
    }

    /// Forgets files that are gone.
    pub(super) fn forget_missing(&self) {
        self.with(|known| known.retain(|path, _| path.exists()));
    }

    /// When a file was last seen as it should be.
    pub(crate) fn whole_ms(&self, path: &Path) -> Option<Millis> {
        self.with(|known| known.get(path).and_then(|known| known.whole_ms))
    }

    /// Returns what to do about a file now. One that needs nothing is noted as seen.
    pub(crate) fn next_check(&self, path: &Path, now_ms: Millis) -> FileCheck {
        let seen = seen(path);
        self.with(|known| {
            let known = known.get_mut(path);
            let check = next_check(known.as_deref(), seen.as_ref(), now_ms);
            if let (FileCheck::Unchanged, Some(known)) = (check, known) {
                known.whole_ms = Some(now_ms);
            }
            check
        })
    }

    /// Waits until so much may be read.
    pub(crate) async fn wait_for(&self, bytes: usize) {
        self.pace.wait_for(bytes).await;
    }

    /// Compares a file with its digest, as far as that is due.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) async fn check(&self, path: &Path, digest: &Digest) -> io::Result<FileContent> {
        let whole_ms = self.whole_ms(path);
        match self.next_check(path, uptime_ms()) {
            FileCheck::Unchanged => Ok(FileContent::Whole),
            FileCheck::Changed => Ok(FileContent::Changed { whole_ms }),
            FileCheck::Digest => {
                let before = seen(path);
                let found = self.digest(path).await?;
                match before.filter(|before| seen(path) == Some(*before)) {
                    None => Ok(FileContent::Unsettled),
                    Some(identity) if found != *digest => {
                        let compared = ComparedFile { identity, digested_ms: uptime_ms(), is_whole: false, whole_ms };
                        self.with(|known| known.insert(path.to_owned(), compared));
                        Ok(FileContent::Changed { whole_ms })
                    }
                    Some(identity) => {
                        self.add(path, identity);
                        Ok(FileContent::Whole)
                    }
                }
            }
        }
    }

    /// Computes the digest of a file, within the rate.
    async fn digest(&self, path: &Path) -> io::Result<Digest> {
        let (mut file, mut hash) = (File::open(path)?, ring::digest::Context::new(&ring::digest::SHA256));
        loop {
            self.wait_for(PIECE_BYTES).await;
            let read = move || {
                let mut piece = Vec::with_capacity(PIECE_BYTES);
                (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
                hash.update(&piece);
                io::Result::Ok((file, hash, piece.len()))
            };
            let length;
            (file, hash, length) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
            if length < PIECE_BYTES {
                return Ok(Digest::from_ring(hash.finish()));
            }
        }
    }

    /// Sets the time of a file, which changes its identity and not its content.
    pub(super) fn set_modified(&self, path: &Path, at: SystemTime) -> io::Result<()> {
        let file = File::open(path)?;
        let before = identity_of(&file.metadata()?);
        file.set_modified(at)?;
        let after = identity_of(&file.metadata()?);
        self.with(|known| {
            if let Some(known) = known.get_mut(path).filter(|known| known.identity == before) {
                known.identity = after;
            }
        });
        Ok(())
    }
}
