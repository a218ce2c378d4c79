//! Stores the instances of the agent that have used this store in this place: a file with a line for each, newest first.
//! [`muster_rules::presence`] tells an earlier instance from a clone by them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use muster_base::files;
use muster_rules::presence::{self, StoreLife};
use uuid::Uuid;

use super::{error::AgentError, facts};

/// This instance of the agent, and earlier ones.
#[derive(Debug)]
pub(super) struct InstanceHistory {
    path: PathBuf,
    place: String,
    instance: Uuid,
    former: Vec<StoreLife>,
}

impl InstanceHistory {
    /// Starts an instance, which is recorded in `state` before it publishes anything. Its place is `data`.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(super) fn begin(state: &Path, data: &Path) -> Result<Self, AgentError> {
        let path = state.join("instances");
        let failed = |source| AgentError::Folder { path: path.clone(), source };
        let text = match fs::read(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            // A damaged line is treated as missing.
            text => String::from_utf8_lossy(&text.unwrap_or_default()).into_owned(),
        };
        let place = place(data).map_err(failed)?;
        let former = presence::former(&text, &place);
        let instance = Uuid::new_v4();
        let lives = Self { path: path.clone(), place, instance, former };
        lives.write(StoreLife { instance, is_newcomer: true }).map_err(failed)?;
        Ok(lives)
    }

    /// The id of this instance.
    pub(super) fn instance(&self) -> Uuid {
        self.instance
    }

    /// Earlier instances, newest first.
    pub(super) fn former(&self) -> &[StoreLife] {
        &self.former
    }

    /// Records that this instance works.
    pub(super) fn works(&self) {
        if let Err(error) = self.write(StoreLife { instance: self.instance, is_newcomer: false }) {
            tracing::warn!(%error, file = %self.path.display(), "cannot record that this agent is in charge of the host");
        }
    }

    /// Replaces the file, with this instance as it is now. It is not synced: after a crash of the machine there is
    /// nothing to remember, because its next boot is another place.
    fn write(&self, own: StoreLife) -> io::Result<()> {
        let text = presence::lines(std::iter::once(&own).chain(&self.former), &self.place);
        files::replace(&self.path, text.as_bytes(), files::SECRET_MODE)
    }
}

/// Identifies the place of an agent: its data folder, since this boot. A copy of the folder is another place, and so is a
/// copy of the whole disk, which only works on a machine that was booted with it.
fn place(folder: &Path) -> io::Result<String> {
    let found = fs::metadata(folder)?;
    Ok(format!("{} {}:{}", facts::boot_id(), found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use muster_rules::presence::FORMER_MAX;

    use super::*;

    #[test]
    fn earlier_instances_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let mut earlier = Vec::new();
        for _ in 0..FORMER_MAX + 3 {
            let lives = InstanceHistory::begin(folder.path(), folder.path()).unwrap();
            let newest: Vec<_> = earlier.iter().rev().take(FORMER_MAX).copied().collect();
            assert_eq!(lives.former(), newest);
            earlier.push(StoreLife { instance: lives.instance(), is_newcomer: true });
        }
    }

    #[test]
    fn damaged_file_counts_as_empty() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("instances"), [0xff, 0xfe, b'\n', 0x80]).unwrap();
        let lives = InstanceHistory::begin(folder.path(), folder.path()).unwrap();
        assert_eq!(lives.former(), []);
    }

    #[test]
    fn newcomer_is_marked_until_it_works() {
        let folder = tempfile::tempdir().unwrap();
        let first = InstanceHistory::begin(folder.path(), folder.path()).unwrap();
        first.works();
        let second = InstanceHistory::begin(folder.path(), folder.path()).unwrap();
        assert_eq!(second.former(), [StoreLife { instance: first.instance(), is_newcomer: false }]);
        let third = InstanceHistory::begin(folder.path(), folder.path()).unwrap();
        assert_eq!(third.former().iter().map(|life| life.is_newcomer).collect::<Vec<_>>(), [true, false]);
    }
}
