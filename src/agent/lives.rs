//! The lives that this agent's store has had in this place, which [`crate::rules::presence`] judges by: in a file of a line
//! each, newest first.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{AgentError, facts};
use crate::{
    files,
    rules::presence::{self, Life},
};

/// Earlier lives that are remembered. Of more than these, one would have to be the last that a broker heard of.
const FORMER_MAX: usize = 16;

/// This life, and earlier ones.
#[derive(Debug)]
pub(super) struct Lives {
    path: PathBuf,
    place: String,
    instance: Uuid,
    former: Vec<Life>,
}

impl Lives {
    /// Begins a life, which is remembered before anybody hears of it.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(super) fn begin(folder: &Path) -> Result<Self, AgentError> {
        let path = folder.join("instances");
        let failed = |source| AgentError::Folder { path: path.clone(), source };
        let text = match fs::read(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            // A line that is damaged is as one that is not there.
            text => String::from_utf8_lossy(&text.unwrap_or_default()).into_owned(),
        };
        let place = place(folder).map_err(failed)?;
        let mut former = presence::former(&text, &place);
        former.truncate(FORMER_MAX);
        let instance = Uuid::new_v4();
        let lives = Self { path: path.clone(), place, instance, former };
        lives.write(Life { instance, is_newcomer: true }).map_err(failed)?;
        Ok(lives)
    }

    /// By what this life is known.
    pub(super) fn instance(&self) -> Uuid {
        self.instance
    }

    /// Earlier ones, newest first.
    pub(super) fn former(&self) -> &[Life] {
        &self.former
    }

    /// This life works from now on, which is remembered.
    pub(super) fn works(&self) {
        if let Err(error) = self.write(Life { instance: self.instance, is_newcomer: false }) {
            tracing::warn!(%error, file = %self.path.display(), "it is not remembered that this agent works");
        }
    }

    /// Replaces the file, with this life as it is now. Nothing is synced: of what a machine forgets when it crashes there is
    /// nothing left to be known, for its next start is another place.
    fn write(&self, own: Life) -> io::Result<()> {
        let text = presence::lines(std::iter::once(&own).chain(&self.former), &self.place);
        files::replace(&self.path, text.as_bytes(), files::SECRET_MODE)
    }
}

/// Where an agent lives: in this folder, since this start of the machine. A copy of the folder is another place, and so is
/// a copy of the whole disk, which can only be used by a machine that was started with it.
fn place(folder: &Path) -> io::Result<String> {
    let found = fs::metadata(folder)?;
    Ok(format!("{} {}:{}", facts::boot_id(), found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_lives_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let mut earlier = Vec::new();
        for _ in 0..FORMER_MAX + 3 {
            let lives = Lives::begin(folder.path()).unwrap();
            let newest: Vec<_> = earlier.iter().rev().take(FORMER_MAX).copied().collect();
            assert_eq!(lives.former(), newest);
            earlier.push(Life { instance: lives.instance(), is_newcomer: true });
        }
    }

    #[test]
    fn damaged_file_is_as_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("instances"), [0xff, 0xfe, b'\n', 0x80]).unwrap();
        let lives = Lives::begin(folder.path()).unwrap();
        assert_eq!(lives.former(), []);
    }

    #[test]
    fn a_newcomer_is_known_as_such_until_it_works() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lives::begin(folder.path()).unwrap();
        first.works();
        let second = Lives::begin(folder.path()).unwrap();
        assert_eq!(second.former(), [Life { instance: first.instance(), is_newcomer: false }]);
        let third = Lives::begin(folder.path()).unwrap();
        assert_eq!(third.former().iter().map(|life| life.is_newcomer).collect::<Vec<_>>(), [true, false]);
    }
}
