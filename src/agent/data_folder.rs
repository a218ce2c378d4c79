//! The agent's data folder: made, locked, and with its store open.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use muster_base::{
    clock,
    files::{self, RoleFile},
    form::{self, OtherForm},
};
use muster_rules::time::KnownTime;
use muster_sqlite::room::{Reserve, ReserveSize};
use muster_topics::{Millis, name::HostId};

use super::{
    error::AgentError,
    join,
    state_folder::{self, StateFolder},
    store::{self, Store},
};

/// The reserve for commands on a full disk: the store's write-ahead log at its largest, 4 MiB, and as much again for
/// the store, outcomes and files of programs. A command takes some ten KiB.
const RESERVE: ReserveSize = ReserveSize { total_bytes: 8 << 20, piece_bytes: 256 << 10 };

/// An opened data folder.
pub(super) struct DataFolder {
    pub(super) folder: PathBuf,
    pub(super) lock: File,
    pub(super) reserve: Reserve,
    pub(super) state: StateFolder,
    pub(super) store: Store,
    pub(super) host: HostId,
    /// Whether this host has joined a fleet before.
    pub(super) is_member: bool,
    pub(super) now_ms: Millis,
}

impl DataFolder {
    /// Opens a data folder. If it is known why nothing can be written there, the store is opened in memory.
    ///
    /// # Errors
    /// If it cannot be used, or another agent uses it.
    pub(super) async fn open(folder: &Path, unwritable: Option<io::ErrorKind>) -> Result<Self, AgentError> {
        check_form(folder)?;
        make_folder(folder)?;
        let lock = lock(folder)?;
        let reserve = Reserve::open(folder, RESERVE);
        let state = StateFolder::open(folder, &reserve, unwritable).await?;
        clear_places(state.path())?;
        let host = join::host_id(state.path())?;
        let now_ms = KnownTime::new(0).now_ms(clock::now_ms());
        let is_member = join::load(state.path())?.is_some();
        let store = Store::open_or_replace(&state.path().join(state_folder::STORE), is_member, now_ms).await?;
        let store = match state.unwritable() {
            None => store.with_reserve(reserve.clone()),
            Some(reason) => store.in_memory(Arc::clone(reason)),
        };
        Ok(Self { folder: folder.to_owned(), lock, reserve, state, store, host, is_member, now_ms })
    }
}

/// Checks that no other build has written what is in a data folder, and changes nothing.
///
/// # Errors
/// If one has.
pub fn check_form(folder: &Path) -> Result<(), OtherForm> {
    form::check_store(&folder.join(state_folder::STORE), store::other_form)?;
    join::check_form(folder)?;
    store::desired_copies::check_form(folder)
}

/// Creates the agent's folder, for its owner alone. Under root, units may run as other users, with programs and folders
/// below it: then others may pass through, but not list it.
fn make_folder(folder: &Path) -> Result<(), AgentError> {
    let failed = |source| AgentError::Folder { path: folder.to_owned(), source };
    let mode = files::workloads_folder();
    files::make_folder(folder, mode).map_err(failed)?;
    let present = fs::metadata(folder).map_err(failed)?.permissions().mode() & 0o7777;
    if present == mode { Ok(()) } else { fs::set_permissions(folder, fs::Permissions::from_mode(mode)).map_err(failed) }
}

/// Makes sure that the agent's own files and folders can be created, read and written, because nobody is on site to repair
/// them. (Of the identity there is no other: it is left to a person. What is in the reserve nobody reads.)
fn clear_places(folder: &Path) -> Result<(), AgentError> {
    const RENEWED: [&str; 9] = [
        "agent.db",
        "agent.db-wal",
        "agent.db-shm",
        "agent.mark",
        "host",
        "instances",
        "intent/realms.json",
        "sealing.key",
        "token.sha256",
    ];
    const FOLDERS: [&str; 5] = ["artifacts", "exec", "intent", "kept", "units"];
    files::clear_places(folder, RoleFile::Folder, &FOLDERS)
        .and_then(|()| files::clear_places(folder, RoleFile::RenewedFile, &RENEWED))
        .and_then(|()| files::clear_places(folder, RoleFile::File, &["identity.json", "reserve"]))
        .map_err(|source| AgentError::Folder { path: folder.to_owned(), source })
}

/// Locks the folder: one agent per folder. The lock ends with the process, however it ends; the file stays.
pub(super) fn lock(folder: &Path) -> Result<File, AgentError> {
    let path = folder.join("lock");
    files::clear_places(folder, RoleFile::File, &["lock"])
        .map_err(|source| AgentError::Folder { path: path.clone(), source })?;
    let lock = files::take_lock(&path).map_err(|source| AgentError::Folder { path, source })?;
    lock.ok_or_else(|| AgentError::Busy { path: folder.to_owned() })
}

#[cfg(test)]
mod tests {
    use muster_topics::diagnostic::Diagnostic;

    use super::*;

    #[test]
    fn second_agent_on_a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        make_folder(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, files::workloads_folder());
        let first = lock(&folder).unwrap();
        let second = lock(&folder).unwrap_err();
        assert!(matches!(second, AgentError::Busy { .. }) && Diagnostic::of(&second).hint.is_some(), "{second}");
        assert_eq!(fs::metadata(folder.join("lock")).unwrap().permissions().mode() & 0o7777, files::SECRET_MODE);
        drop(first);
        lock(&folder).unwrap();
    }
}
