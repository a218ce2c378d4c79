//! Where the agent keeps its own state: in its data folder, or in memory as long as nothing can be written there.
//!
//! A disk is full, has no free inodes, or was made read-only after an error. The agent then copies its state (store, mark,
//! identity, second copies of desired state) into a folder in memory and works with that: it reads its intent, and keeps
//! units running. Programs of units that are started meanwhile have the files of their shims there, too
//! ([`ShimFolders`]). Programs, configs and working directories of units are only read where they are.
//!
//! What has to outlive the host is not taken in meanwhile: commands are refused, documents wait. Once the disk can be written again
//! the agent starts anew ([`watch`]) and puts its state back ([`StateFolder::open`]). A host that is started again before
//! goes on from what is on its disk.
//!
//! **Invariant: state in memory is put back only over the state that it was copied from.** [`Origin`] says which that was.

use muster_topics::diagnostic::Diagnostic;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_base::{
    files::{self, PRIVATE_FOLDER, SECRET_MODE, make_folder},
    folders,
    mount::remove_folder,
};
use muster_sqlite::{
    index_file,
    room::{self, Reserve},
};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use sqlx::{ConnectOptions, Connection, sqlite::SqliteConnectOptions};
use tokio::sync::{Notify, watch};

use super::{error::AgentError, join, shim_folders::ShimFolders};

/// The store in a state folder.
pub(super) const STORE: &str = "agent.db";
/// The files of the state, beside the store. Each is replaced as a whole.
const FILES: [&str; 6] = ["agent.mark", "host", "identity.json", "instances", "sealing.key", "token.sha256"];
/// The folder of second copies of desired state.
const INTENT: &str = "intent";
/// What of the store is copied.
const STORE_FILES: [&str; 2] = [STORE, "agent.db-wal"];
/// Says in a state folder in memory from which one it was copied.
const ORIGIN: &str = "origin";

/// What a start may write: the shim's program, the log's index, and what earlier runs left to be stored.
const START_BYTES: u64 = 1 << 20;
/// What has to be free before the agent goes back to the disk, so that it does not leave it at once.
const BACK_BYTES: u64 = 4 << 20;
/// How many files have to be free before that: those of a start, and some of programs.
const BACK_FILES: u64 = 32;
/// How often it is examined whether the disk can be written. Mending a disk takes a person longer.
const CHECK: Duration = Duration::from_secs(5);
/// What is written to find out: about as many files as a start makes, and a little into each.
const PROBE: &str = ".probe";
const PROBE_FILES: usize = 8;
const PROBE_BYTES: usize = 512;

/// Where the agent's state is.
#[derive(Clone, Debug)]
pub(crate) struct StateFolder {
    data: PathBuf,
    path: PathBuf,
    memory: Option<PathBuf>,
    unwritable: Option<Arc<Diagnostic>>,
}

impl StateFolder {
    /// Finds out whether a locked data folder can be written, unless it is known that it cannot; copies the state into memory, or
    /// puts it back from there.
    ///
    /// # Errors
    /// If nothing can be written, and there is no state to copy or no memory to copy it to.
    pub(super) async fn open(data: &Path, reserve: &Reserve, known: Option<io::ErrorKind>) -> Result<Self, AgentError> {
        let memory = memory_of(data);
        let kept = memory.as_ref().map(|memory| memory.join("state")).filter(|state| state.is_dir());
        let reason = match (known, write_probe(data, reserve.ensure_bytes(START_BYTES))) {
            (Some(known), _) => Some(known.into()),
            (None, Err(reason)) => Some(reason),
            (None, Ok(())) => match &kept {
                Some(kept) => match put_back(kept, data).await {
                    Err(error) if room::is_missing_for(&error) => Some(error),
                    Err(error) => {
                        tracing::error!(
                            %error, state = %kept.display(),
                            consequence = "the agent continues from what is on the disk; what it refused in the meantime is not recorded",
                            "the agent's state in memory cannot be written back",
                        );
                        None
                    }
                    Ok(()) => None,
                },
                None => None,
            },
        };
        let failed = |source| AgentError::Folder { path: data.to_owned(), source };
        let Some(reason) = reason else {
            if let Some(kept) = kept {
                remove_folder(&kept).map_err(failed)?;
            }
            return Ok(Self { data: data.to_owned(), path: data.to_owned(), memory, unwritable: None });
        };
        // A host that has not joined has nothing to keep running.
        let Some(memory) = memory.filter(|_| data.join(STORE).is_file()) else { return Err(failed(reason)) };
        let state = memory.join("state");
        let in_memory = |source| AgentError::Folder { path: state.clone(), source };
        if !Origin::is_of(&state, data) {
            copy_state(data, &state).map_err(in_memory)?;
        }
        let unwritable = format!("cannot write to {}: {reason}", data.display());
        let unwritable = Diagnostic::new(unwritable).or_hint(room::hint(&reason));
        tracing::error!(
            state = %state.display(),
            consequence = "units keep running from what was read; commands are refused, and desired changes wait",
            hint = unwritable.hint,
            "{}", unwritable.cause,
        );
        Ok(Self { data: data.to_owned(), path: state, memory: Some(memory), unwritable: Some(unwritable.into()) })
    }

    /// The folder with the state.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Why nothing can be written in the data folder, if that is so.
    pub(super) fn unwritable(&self) -> Option<&Arc<Diagnostic>> {
        self.unwritable.as_ref()
    }

    /// The folders of shims.
    pub(super) fn shim_folders(&self) -> ShimFolders {
        ShimFolders::new(&self.data, self.memory.as_deref(), self.unwritable.is_some())
    }
}

/// Returns once the agent has to start anew: nothing can be written any more, or again. `suspicion` is notified when a
/// write has failed.
pub(super) async fn watch(folder: StateFolder, reserve: Reserve, suspicion: Arc<Notify>, wanted: watch::Sender<bool>) {
    loop {
        let is_suspected = tokio::time::timeout(CHECK, suspicion.notified()).await.is_ok();
        let (folder, reserve) = (folder.clone(), reserve.clone());
        let look = move || match folder.unwritable {
            Some(_) => has_room(&folder.data) && write_probe(&folder.data, reserve.ensure()).is_ok(),
            None => {
                let is_bad = is_suspected || reserve.is_spent() || !takes_files(&folder.data);
                is_bad && write_probe(&folder.data, reserve.ensure()).is_err()
            }
        };
        if tokio::task::spawn_blocking(look).await.unwrap_or(false) {
            tracing::warn!("the agent restarts: its folder became writable, or is no longer writable");
            wanted.send_replace(true);
            return;
        }
    }
}

/// Whether the file system says that it can be written, and has some room.
fn has_room(folder: &Path) -> bool {
    takes_files(folder) && room::space(folder).is_some_and(|found| found.free_bytes >= BACK_BYTES)
}

/// Whether the file system says that files can be made.
fn takes_files(folder: &Path) -> bool {
    room::space(folder)
        .is_some_and(|found| !found.is_read_only && found.free_files.is_none_or(|files| files >= BACK_FILES))
}

/// Writes files in a folder and removes them. That is an error, too, if the folder has no room for more.
fn write_probe(folder: &Path, has_room: bool) -> Result<(), io::Error> {
    let paths: Vec<PathBuf> = (0..PROBE_FILES).map(|number| folder.join(format!("{PROBE}-{number}"))).collect();
    let write = |path: &PathBuf| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(SECRET_MODE).open(path)?;
        file.write_all(&[0x55; PROBE_BYTES]).map(|()| file)
    };
    let files: io::Result<Vec<File>> = paths.iter().map(write).collect();
    let written = files.and_then(|files| files.last().map_or(Ok(()), File::sync_all));
    for path in &paths {
        let _ = fs::remove_file(path);
    }
    match written {
        Ok(()) if has_room => Ok(()),
        Ok(()) => Err(io::ErrorKind::StorageFull.into()),
        // Other errors are met, and reported, where something is written.
        Err(error) if !room::is_missing_for(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Which state a copy was made from: the files of a store, with what changes when one is written.
struct Origin;

impl Origin {
    fn text(data: &Path) -> String {
        let line = |name: &&str| match fs::metadata(data.join(name)) {
            Ok(found) => {
                format!("{name} {} {} {}.{:09}\n", found.ino(), found.len(), found.mtime(), found.mtime_nsec())
            }
            Err(_) => format!("{name} -\n"),
        };
        STORE_FILES.iter().chain(&["agent.mark"]).map(line).collect()
    }

    fn is_of(state: &Path, data: &Path) -> bool {
        fs::read_to_string(state.join(ORIGIN)).is_ok_and(|origin| origin == Self::text(data))
    }
}

/// Copies the state of a data folder.
fn copy_state(data: &Path, state: &Path) -> io::Result<()> {
    let fresh = state.with_extension("new");
    for old in [state, &fresh] {
        if old.exists() {
            remove_folder(old)?;
        }
    }
    make_folder(&fresh, PRIVATE_FOLDER)?;
    for name in STORE_FILES.iter().chain(&FILES) {
        copy_file(&data.join(name), &fresh.join(name))?;
    }
    for (from, to) in intent_files(data, &fresh)? {
        make_folder(to.parent().unwrap_or(&fresh), PRIVATE_FOLDER)?;
        copy_file(&from, &to)?;
    }
    files::write_atomically(&fresh.join(ORIGIN), Origin::text(data).as_bytes(), SECRET_MODE)?;
    fs::rename(fresh, state)
}

/// Copies a file, if it is there and can be read.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let copied = File::open(from).and_then(|mut source| {
        let mut target = OpenOptions::new().write(true).create_new(true).mode(SECRET_MODE).open(to)?;
        io::copy(&mut source, &mut target)
    });
    match copied {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if files::is_unreadable(&error) => {
            tracing::error!(file = %from.display(), %error, consequence = "the agent continues without it", "a file cannot be read");
            match fs::remove_file(to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        }
        copied => copied.map(drop),
    }
}

/// The files of second copies in a folder, and their places in another.
fn intent_files(from: &Path, to: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(INTENT)];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(from.join(&folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let below = folder.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => folders.push(below),
                false => found.push((from.join(&below), to.join(&below))),
            }
        }
    }
    Ok(found)
}

/// Puts state from memory back into the data folder that it was copied from. State of another one is left where it is.
async fn put_back(state: &Path, data: &Path) -> io::Result<()> {
    if !Origin::is_of(state, data) {
        tracing::warn!(
            state = %state.display(),
            consequence = "the state is dropped",
            "the state in memory does not match the state on the disk",
        );
        return Ok(());
    }
    // Each log goes into its store, so that no log lies beside another store than its own.
    for folder in [state, data] {
        merge_log(&folder.join(STORE)).await?;
    }
    let (state, data) = (state.to_owned(), data.to_owned());
    let put = move || {
        for suffix in ["-wal", "-shm"] {
            let path = data.join(format!("{STORE}{suffix}"));
            match fs::metadata(&path) {
                Ok(log) if suffix == "-wal" && log.len() > 0 => return Err(io::Error::other("the store is in use")),
                Ok(_) => fs::remove_file(&path)?,
                Err(_) => {}
            }
        }
        // The mark follows the store, as with a commit.
        for name in [STORE].iter().chain(&FILES) {
            put_file(&state.join(name), &data.join(name))?;
        }
        for (from, to) in intent_files(&state, &data)? {
            make_folder(to.parent().unwrap_or(&data), PRIVATE_FOLDER)?;
            put_file(&from, &to)?;
        }
        tracing::info!(data = %data.display(), "the agent's state is on the disk again");
        Ok(())
    };
    tokio::task::spawn_blocking(put).await.map_err(io::Error::other)?
}

/// Replaces a file by one that differs.
fn put_file(from: &Path, to: &Path) -> io::Result<()> {
    let content = match fs::read(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    if fs::read(to).is_ok_and(|present| present == content) {
        return Ok(());
    }
    files::write_atomically(to, &content, SECRET_MODE)
}

/// Merges the log of a store that nobody has open.
async fn merge_log(store: &Path) -> io::Result<()> {
    let _index = index_file::prepare(store).await?;
    let merged = async {
        let mut connection = SqliteConnectOptions::new().filename(store).connect().await?;
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await?;
        connection.close().await
    };
    merged.await.map_err(|error: sqlx::Error| match error {
        error if room::is_missing(&error) => io::Error::new(io::ErrorKind::StorageFull, error),
        error => io::Error::other(error),
    })
}

/// The folder in memory of a data folder, which need not be there: of this agent's user, in the first place that is in
/// memory. It is named after the host and the data folder itself, by whatever path that is reached. A disk that is mounted
/// again has the same inodes, and may be another device.
fn memory_of(data: &Path) -> Option<PathBuf> {
    let found = fs::metadata(data).ok()?;
    // A host without one has nothing to keep.
    let host = join::known_host_id(data).ok()??;
    let is_root = nix::unistd::geteuid().is_root();
    let places = [is_root.then(|| PathBuf::from("/run")), folders::runtime(), Some(PathBuf::from("/dev/shm"))];
    let is_memory = |place: &PathBuf| statfs(place).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    let place = places.into_iter().flatten().find(is_memory)?;
    let memory = place.join(format!("muster-agent-{host}-{}", found.ino()));
    // Everybody may write in /dev/shm.
    let is_own = |found: fs::Metadata| {
        found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o077 == 0
    };
    fs::symlink_metadata(&memory).map_or(true, is_own).then_some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    /// Begins a life of an agent in a folder; its epoch.
    async fn live(folder: &Path, now_ms: i64) -> u64 {
        let store = Store::open_or_replace(&folder.join(STORE), true, now_ms).await.unwrap();
        let epoch = store.begin_life(now_ms).await.unwrap().epoch;
        store.close().await;
        epoch
    }

    async fn lives(folder: &Path) -> Vec<u64> {
        let store = Store::open(&folder.join(STORE)).await.unwrap();
        let lives = store.lives().await.unwrap();
        store.close().await;
        lives
    }

    #[tokio::test]
    async fn state_is_put_back_only_over_what_it_was_copied_from() {
        for is_changed in [false, true] {
            let (data, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (data, state) = (data.path(), memory.path().join("state"));
            fs::create_dir_all(data.join("intent/default")).unwrap();
            fs::write(data.join("intent/default/a.json"), "a").unwrap();
            fs::write(data.join("identity.json"), "before").unwrap();
            let first = live(data, 1_000_000).await;
            copy_state(data, &state).unwrap();
            assert!(Origin::is_of(&state, data));
            let second = live(&state, 2_000_000).await;
            assert_eq!(lives(&state).await, [second, first]);
            fs::write(state.join("identity.json"), "renewed").unwrap();
            fs::write(state.join("intent/default/a.json"), "b").unwrap();
            let other = if is_changed { Some(live(data, 3_000_000).await) } else { None };
            put_back(&state, data).await.unwrap();
            let wanted = [other.unwrap_or(second), first];
            assert_eq!(lives(data).await, wanted, "changed: {is_changed}");
            let text = |name: &str| fs::read_to_string(data.join(name)).unwrap();
            let wanted = if is_changed { ("before", "a") } else { ("renewed", "b") };
            assert_eq!((&text("identity.json")[..], &text("intent/default/a.json")[..]), wanted);
        }
    }

    #[test]
    fn folder_that_takes_nothing_is_told_from_one_that_does() {
        use muster_sqlite::room::ReserveSize;
        let disk = muster_test_support::disk::Disk::ext4(16, &["-N", "64"]);
        let reserve = Reserve::open(disk.path(), ReserveSize { total_bytes: 1 << 20, piece_bytes: 128 << 10 });
        let check = |wanted: Option<io::ErrorKind>| {
            let found = write_probe(disk.path(), reserve.ensure());
            assert_eq!(found.err().map(|error| error.kind()), wanted);
        };
        check(None);
        disk.fill();
        // That is what the reserve is for.
        check(None);
        while reserve.release() {}
        disk.fill();
        assert!(reserve.is_spent());
        check(Some(io::ErrorKind::StorageFull));
        disk.empty();
        assert!(has_room(disk.path()));
        disk.fill_files();
        assert!(!takes_files(disk.path()));
        check(Some(io::ErrorKind::StorageFull));
        disk.empty();
        check(None);
        disk.abort();
        check(Some(io::ErrorKind::ReadOnlyFilesystem));
    }
}
