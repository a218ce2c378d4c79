//! Receives one artifact from the network and writes it to the disk.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use muster_base::files::sync_folder;
use muster_topics::{name::Digest, unit::ArtifactRef};
use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;

use super::error::{ArtifactError, transport, write_error};

/// Readable and executable by all, writable by nobody.
pub(super) const INSTALLED_MODE: u32 = 0o555;

/// An artifact on its way to the disk.
pub(super) struct PartialArtifact {
    pub(super) what: String,
    pub(super) artifact: ArtifactRef,
    pub(super) partial: PathBuf,
    pub(super) path: PathBuf,
    /// How much of it an earlier transfer has brought; what comes now is the rest.
    pub(super) begun_bytes: u64,
    /// How much of it is there, for whoever wants to know how far it is.
    pub(super) done_bytes: Arc<AtomicU64>,
}

impl PartialArtifact {
    /// Writes and hashes what comes, and installs it if it is right. Runs on a thread of its own, for all
    /// of this takes long where disks are slow.
    pub(super) fn write<B: AsRef<[u8]>>(
        self,
        mut queue: mpsc::Receiver<Result<B, reqwest::Error>>,
    ) -> Result<(), ArtifactError> {
        let write = |error| write_error(&self.what, &self.partial)(error);
        let mut hash = Context::new(&SHA256);
        let mut file = self.open(&mut hash).map_err(write)?;
        let mut len_bytes = self.begun_bytes;
        while let Some(chunk) = queue.blocking_recv() {
            let chunk = chunk.map_err(transport(&self.what))?;
            let chunk = chunk.as_ref();
            len_bytes += chunk.len() as u64;
            if len_bytes > self.artifact.size_bytes {
                self.discard();
                return Err(ArtifactError::TooLong { what: self.what, size_bytes: self.artifact.size_bytes });
            }
            hash.update(chunk);
            if let Err(error) = file.write_all(chunk) {
                // A full disk is the last to keep a half of something on.
                self.discard();
                return Err(write(error));
            }
            self.done_bytes.store(len_bytes, Ordering::Relaxed);
        }
        if len_bytes < self.artifact.size_bytes {
            let source = format!("the transfer ended after {len_bytes} of {} bytes", self.artifact.size_bytes).into();
            return Err(ArtifactError::Transport { what: self.what, source });
        }
        let found = Digest::from_ring(hash.finish());
        if found != self.artifact.sha256 {
            self.discard();
            return Err(ArtifactError::WrongHash { what: self.what, found });
        }
        self.install(file).inspect_err(|_| self.discard()).map_err(write)
    }

    /// The partial file, at the end of what is there already, which has been hashed.
    fn open(&self, hash: &mut Context) -> io::Result<File> {
        if self.begun_bytes == 0 {
            self.discard();
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.partial)?;
        let mut begun = (&mut file).take(self.begun_bytes);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match begun.read(&mut buffer)? {
                0 => return Ok(file),
                count => hash.update(&buffer[..count]),
            }
        }
    }

    fn install(&self, file: File) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(INSTALLED_MODE))?;
        file.sync_all()?;
        // Closed before it is executed: a file that is open for writing is busy.
        drop(file);
        fs::rename(&self.partial, &self.path)?;
        sync_folder(self.path.parent().unwrap_or(Path::new(".")))
    }

    fn discard(&self) {
        let _ = fs::remove_file(&self.partial);
    }
}
