//! A second copy of units' desired state: a file for each unit beside the store, from which a damaged store is
//! restored.
//!
//! The units' task writes a unit's file before it acts on it. A change in the last moment before a loss may be in neither;
//! the unit's process, if it has one, is still found by its shim.
//!
//! **Invariant: what the store lost ends no unit, and what was restored starts no removed one.** A unit of an older
//! store that has no file here is held until an operator decides.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use muster_base::{
    files,
    form::{self, FORM, OtherForm},
};
use muster_rules::{
    mark::{CopyFate, StoreLoss, checksum, fate, is_of_another_time, sealed, unsealed},
    realm::Realms,
};
use muster_topics::{
    Millis,
    name::{Name, UnitName},
    realm::Realm,
    unit::{Hold, HoldReason},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sqlx::SqliteConnection;

use super::{error::StoreError, other_form, port_lease, realm, unit, verified};

pub use super::desired_copy::IntentCopy;

/// The file of all realms; no unit's file has this name, because it lies in a folder of its realm.
const REALMS: &str = "realms.json";

/// The folder, beside the store.
const FOLDER: &str = "intent";

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct CopyFile<T> {
    /// [`FORM`].
    form: u16,
    copy: T,
}

/// Checks that no other build has written a copy in the agent's folder. What cannot be read is left to who reads it.
///
/// # Errors
/// If one has.
pub(crate) fn check_form(folder: &Path) -> Result<(), OtherForm> {
    let folder = folder.join(FOLDER);
    let of_units = copy_paths(&folder).unwrap_or_default();
    for path in of_units.into_iter().chain([folder.join(REALMS)]) {
        let is_other = |bytes: Vec<u8>| unsealed(&bytes).is_some_and(|text| form::is_other_json(text.as_bytes()));
        if fs::read(&path).is_ok_and(is_other) {
            let of = other_form(&folder);
            return Err(OtherForm { path, ..of });
        }
    }
    Ok(())
}

/// The files of units' copies.
fn copy_paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for realm in fs::read_dir(folder)? {
        let realm = realm?;
        if realm.file_type()?.is_dir() {
            for file in fs::read_dir(realm.path())? {
                paths.push(file?.path());
            }
        }
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    Ok(paths)
}

/// The folder with the second copies.
#[derive(Debug)]
pub struct IntentFolder {
    folder: PathBuf,
    /// The checksums of the existing files.
    written: Mutex<BTreeMap<PathBuf, i64>>,
}

impl IntentFolder {
    /// The folder beside a store.
    pub(super) fn beside(store: &Path) -> Self {
        let folder = store.parent().unwrap_or(Path::new(".")).join(FOLDER);
        Self { folder, written: Mutex::default() }
    }

    fn path(&self, unit: &UnitName) -> PathBuf {
        self.folder.join(unit.realm().as_str()).join(format!("{}.json", unit.name()))
    }

    /// Writes a unit's file, unless it is up to date.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn keep(self: &Arc<Self>, copy: &IntentCopy) -> io::Result<()> {
        self.write(self.path(&copy.unit), copy).await
    }

    /// Writes the file of all realms, unless it is up to date.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn keep_realms(self: &Arc<Self>, realms: &Realms) -> io::Result<()> {
        let realms: Vec<&Realm> = realms.iter().collect();
        self.write(self.folder.join(REALMS), realms).await
    }

    async fn write(self: &Arc<Self>, path: PathBuf, copy: impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(&CopyFile { form: FORM, copy })?;
        let sum = checksum(text.as_bytes());
        if self.written.lock().unwrap_or_else(PoisonError::into_inner).get(&path) == Some(&sum) {
            return Ok(());
        }
        let to = path.clone();
        let write = move || {
            // Specs contain environments, which may be secret.
            let folder = to.parent().unwrap_or(Path::new("."));
            files::make_folder(folder, files::PRIVATE_FOLDER)?;
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            files::clear_places(folder, files::RoleFile::File, &[&name])?;
            files::write_atomically(&to, sealed(&text).as_bytes(), files::SECRET_MODE)
        };
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(path, sum);
        Ok(())
    }

    /// Removes the file of a removed unit.
    pub fn forget(&self, unit: &UnitName) {
        let path = self.path(unit);
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%unit, %error, "the second copy of a unit's desired state cannot be removed");
            }
            _ => {
                // The realm's folder is removed with its last unit.
                let _ = path.parent().map(fs::remove_dir);
            }
        }
    }

    /// Reads a file; a damaged one is logged and gives `None`.
    fn read<T: DeserializeOwned>(&self, path: &Path) -> Option<T> {
        let bytes = fs::read(path).ok()?;
        let content =
            unsealed(&bytes).and_then(|text| Some((checksum(text.as_bytes()), serde_json::from_str(text).ok()?)));
        let Some((sum, CopyFile { copy, .. })) = content else {
            tracing::error!(file = %path.display(), "the second copy of a unit's desired state is damaged, and not used");
            return None;
        };
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), sum);
        Some(copy)
    }

    fn copies(&self) -> io::Result<Vec<IntentCopy>> {
        let copies = copy_paths(&self.folder)?;
        let own = |path: PathBuf| self.read::<IntentCopy>(&path).filter(|copy| self.path(&copy.unit) == path);
        Ok(copies.into_iter().filter_map(own).collect())
    }

    fn realms(&self) -> Vec<Realm> {
        self.read(&self.folder.join(REALMS)).unwrap_or_default()
    }

    /// Restores desired state that a store has lost from the copies, in the caller's transaction.
    ///
    /// # Errors
    /// If the database fails.
    pub(super) async fn restore(
        &self,
        tx: &mut SqliteConnection,
        loss: Option<StoreLoss>,
        now_ms: Millis,
    ) -> Result<(), StoreError> {
        let copies = match self.copies() {
            Ok(copies) => copies,
            // There are none yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                tracing::error!(folder = %self.folder.display(), %error, "the second copy of the units' desired state cannot be read");
                return Ok(());
            }
        };
        let stored = unit::all(tx).await?;
        for realm in self.realms() {
            // One that does not fit any more has its defaults until the console sends it again.
            if let Err(refusal) = realm::take_in(tx, &[realm]).await? {
                tracing::warn!(
                    reason = refusal.diagnostic.cause,
                    hint = refusal.diagnostic.hint,
                    "a realm cannot be restored"
                );
            }
        }
        for copy in &copies {
            let row = stored.units.iter().find(|row| row.name == copy.unit);
            let is_unreadable = stored.unreadable.iter().any(|name| name == copy.unit.as_str());
            let generation = row.map(|row| row.desired.generation).or(is_unreadable.then_some(0));
            match fate(generation, copy.desired.generation, loss) {
                CopyFate::Keep => {}
                CopyFate::Forget => self.forget(&copy.unit),
                CopyFate::Restore => {
                    tracing::warn!(unit = %copy.unit, "its desired state is restored to the agent's store");
                    unit::restore(tx, copy, &copy.kept(now_ms)).await?;
                    port_lease::restore(tx, &copy.leases).await?;
                    verified::keep(tx, &copy.unit, &copy.kept(now_ms)).await?;
                }
            }
        }
        if is_of_another_time(loss) {
            for row in &stored.units {
                if !copies.iter().any(|copy| copy.unit == row.name) {
                    hold(tx, &row.name, now_ms).await?;
                }
            }
        }
        unit::raise_generation(tx).await
    }
}

/// Holds a unit that may not be wanted any more.
async fn hold(tx: &mut SqliteConnection, unit: &UnitName, now_ms: Millis) -> Result<(), StoreError> {
    tracing::warn!(%unit, "the restored store has the unit, which was removed since; it is held");
    let by: Name = "agent".parse().unwrap_or_else(|_| Name::default_realm());
    let note = "the agent's store was set back to a time at which this unit existed: keep it with `muster unit unhold`, or \
                remove it with `muster unit retire` and `muster unit rm`";
    let hold = Hold { reason: HoldReason::Operator, since_ms: now_ms, by: Some(by), note: Some(note.to_owned()) };
    unit::hold(tx, unit, &hold).await
}
