//! What a restore leaves for the console: a file that says that its store is older than it was, and what the folder that
//! was replaced knew of revocations. A register and a store that go back together do not show it otherwise.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_base::files::{self, SECRET_MODE};
use muster_rules::checked;
use muster_topics::{Millis, name::Digest};
use serde::{Deserialize, Serialize};

use crate::BackupError;

/// The file in the console's folder.
const FILE: &str = "restored.json";
/// The register of the folder that was replaced.
const REPLACED_REGISTER: &str = "replaced-register.json";
/// Its mark.
const REPLACED_MARK: &str = "replaced-mark.json";
/// The file of a folder that a restore has not finished.
const UNFINISHED: &str = "restore.unfinished";

/// A store that was restored, at its first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoredMark {
    /// The fleet: SHA-256 of its root certificate.
    pub fleet: Digest,
    /// When the backup was taken.
    pub taken_ms: Millis,
    /// When it was restored.
    pub restored_ms: Millis,
}

impl RestoredMark {
    /// Reads the mark of a console's folder. One that is damaged says nothing but that there is one: the times are those
    /// of a backup of now.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(folder: &Path, now: Millis) -> io::Result<Option<Self>> {
        match fs::read(folder.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(bytes) => {
                let lost = Self { fleet: Digest::of(b""), taken_ms: now, restored_ms: now };
                Ok(Some(checked::from_bytes(&bytes).unwrap_or(lost)))
            }
        }
    }

    /// Writes the mark into a console's folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), BackupError> {
        let path = folder.join(FILE);
        let text = checked::to_text(self).map_err(|error| BackupError::file(&path)(error.into()))?;
        files::write_atomically(&path, text.as_bytes(), SECRET_MODE).map_err(BackupError::file(path))
    }

    /// Removes the mark and what lies beside it, after the console has merged all.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove(folder: &Path) -> io::Result<()> {
        // The mark is last: it is what a start that was interrupted begins with.
        for name in [REPLACED_REGISTER, REPLACED_MARK, FILE] {
            match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        files::sync_folder(folder)
    }
}

/// The register of the folder that was replaced.
#[must_use]
pub fn replaced_register(folder: &Path) -> PathBuf {
    folder.join(REPLACED_REGISTER)
}

/// The mark of the folder that was replaced.
#[must_use]
pub fn replaced_mark(folder: &Path) -> PathBuf {
    folder.join(REPLACED_MARK)
}

/// Whether a restore of this folder was interrupted.
#[must_use]
pub fn is_unfinished(folder: &Path) -> bool {
    folder.join(UNFINISHED).exists()
}

pub(crate) fn unfinished(folder: &Path) -> PathBuf {
    folder.join(UNFINISHED)
}
