//! The index of a store's write-ahead log, the file `-shm`, which SQLite maps into memory.
//!
//! SQLite empties that file when it opens a store, and lengthens it by writing one byte into each 4 KiB. Where the blocks of
//! the file system are smaller than that, holes remain; where written blocks are never written in place (btrfs), every
//! change needs a new one. A store into such memory on a full disk ends the process with SIGBUS.
//!
//! So the file is written here before SQLite opens the store ([`prepare`]): whole, with zeros, which SQLite takes for an
//! index that has to be built. Until it has opened it, a lock keeps SQLite from emptying it: the read lock with which SQLite shows
//! that the file is in use.
//!
//! **Invariant: this process never closes such a file while SQLite may have it open**, for that would drop SQLite's own
//! locks on it. It is kept open until its name is gone.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_base::files::SECRET_MODE;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl, posix_fallocate},
    libc,
};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// The size of the prepared file: 32 KiB for each 16 MiB of log, so a log of 128 MiB. The logs of all stores are shorter
/// unless one transaction alone writes more.
pub const INDEX_BYTES: usize = 8 * 32 * 1024;

/// The byte that SQLite locks to show that the index is in use: `UNIX_SHM_DMS`, after the header and eight locks.
const IN_USE_BYTE: libc::off_t = 128;

/// How often, and with which pause, the lock is tried again while another process just opens or closes the store.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// The prepared files of this process.
static PREPARED: Mutex<Vec<Arc<File>>> = Mutex::new(Vec::new());

/// A prepared index. It has to be kept until SQLite has read from the store, and not longer.
#[derive(Debug)]
pub struct PreparedIndex(Option<Arc<File>>);

impl Drop for PreparedIndex {
    fn drop(&mut self) {
        // SQLite has its own lock now, and would not merge the log on closing while another process seemed to use the index.
        if let Some(file) = &self.0 {
            let _ = lock(file, libc::F_UNLCK);
        }
    }
}

/// Writes the index of the store in `path`, which is about to be opened, so that all of it has its place on the disk. One
/// that is in use stays as it is.
///
/// # Errors
/// If it cannot be written, above all because the disk is full.
pub async fn prepare(path: &Path) -> io::Result<PreparedIndex> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || prepare_now(&path)).await.map_err(io::Error::other)?
}

/// Gives back the room of indexes that SQLite has removed, as it does when a store is closed.
pub fn release_removed() {
    PREPARED.lock().unwrap_or_else(PoisonError::into_inner).retain(has_name);
}

/// Whether a file was not removed.
fn has_name(file: &Arc<File>) -> bool {
    file.metadata().is_ok_and(|found| found.nlink() > 0)
}

fn prepare_now(path: &Path) -> io::Result<PreparedIndex> {
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    prepared.retain(has_name);
    let index = index_path(path);
    let found = fs::symlink_metadata(&index).map(|found| (found.dev(), found.ino())).ok();
    let is_same = |file: &&Arc<File>| file.metadata().ok().map(|one| (one.dev(), one.ino())) == found;
    if is_mapped(&index) {
        // It is open here, whatever became of its locks.
        return Ok(PreparedIndex(None));
    }
    let known = found.and_then(|_| prepared.iter().find(is_same).cloned());
    let file = match known {
        Some(file) => file,
        None => {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(SECRET_MODE)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&index)?;
            let file = Arc::new(file);
            // Also if writing it fails: an open file is never closed here.
            prepared.push(Arc::clone(&file));
            file
        }
    };
    let index = PreparedIndex(Some(Arc::clone(&file)));
    write(&file, path)?;
    Ok(index)
}

fn write(file: &File, store: &Path) -> io::Result<()> {
    if !is_ours(file)? {
        // What was not written of it yet gets its place.
        return Ok(posix_fallocate(file, 0, libc::off_t::try_from(INDEX_BYTES).map_err(io::Error::other)?)?);
    }
    file.set_len(0)?;
    if let Ok(store) = fs::metadata(store) {
        // As SQLite does it: root may open the store of another user.
        let _ = fchown(file, Some(store.uid()), Some(store.gid()));
    }
    // Where this is not known, blocks are written in place anyway.
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
    // From the beginning: the same open file may have been written before.
    let written = file.write_all_at(&vec![0; INDEX_BYTES], 0).and_then(|()| file.sync_all());
    if written.is_err() {
        // No half of it may be mapped.
        let _ = file.set_len(0);
    }
    lock(file, libc::F_RDLCK)?;
    written
}

/// Whether this process has mapped a file.
fn is_mapped(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else { return false };
    // Address, permissions, offset, device, inode, path; one that was deleted says so after its path.
    let end = format!(" {}", path.display());
    fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.lines().any(|line| line.ends_with(&end)))
}

/// Locks the index for writing; false if somebody uses it.
fn is_ours(file: &File) -> io::Result<bool> {
    for _ in 0..TRIES {
        match lock(file, libc::F_WRLCK) {
            Ok(()) => return Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) if lock(file, libc::F_RDLCK).is_ok() => return Ok(false),
            // It is being opened.
            Err(Errno::EAGAIN | Errno::EACCES) => std::thread::sleep(PAUSE),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Takes a lock of this open file, which SQLite's own locks (of the process) respect.
fn lock(file: &File, kind: libc::c_int) -> nix::Result<()> {
    let narrow = |number: libc::c_int| libc::c_short::try_from(number).map_err(|_| Errno::EINVAL);
    let lock = libc::flock {
        l_type: narrow(kind)?,
        l_whence: narrow(libc::SEEK_SET)?,
        l_start: IN_USE_BYTE,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
}

fn index_path(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push("-shm");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use muster_test_support::disk::Disk;
    use sqlx::{ConnectOptions, Connection, SqliteConnection, sqlite::SqliteConnectOptions};

    use super::*;

    async fn connect(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
        let _index = prepare(path).await.map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let mut connection = options.journal_mode(sqlx::sqlite::SqliteJournalMode::Wal).connect().await?;
        sqlx::query("SELECT count(*) FROM sqlite_schema").execute(&mut connection).await?;
        Ok(connection)
    }

    async fn count(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("SELECT count(*) FROM line").fetch_one(connection).await
    }

    /// A store with a log that was left by a killed process.
    async fn left_store(folder: &Path) -> (Vec<u8>, Vec<u8>) {
        let path = folder.join("left.db");
        let mut connection = connect(&path).await.unwrap();
        sqlx::query("CREATE TABLE line (text TEXT)").execute(&mut connection).await.unwrap();
        for _ in 0..50 {
            sqlx::query("INSERT INTO line VALUES (hex(randomblob(500)))").execute(&mut connection).await.unwrap();
        }
        (fs::read(&path).unwrap(), fs::read(path.with_extension("db-wal")).unwrap())
    }

    #[tokio::test]
    async fn full_disk_with_small_blocks_is_an_error_and_no_signal() {
        let scratch = tempfile::tempdir().unwrap();
        let (store, log) = left_store(scratch.path()).await;
        // Blocks of 1 KiB: one byte in each 4 KiB leaves holes.
        let disk = Disk::ext4(16, &["-b", "1024"]);
        let mut outcomes = Vec::new();
        for left_kib in [2, 6, 9, 11, 14, 18, 40, 300] {
            let path = disk.path().join(format!("{left_kib}.db"));
            fs::write(&path, &store).unwrap();
            fs::write(path.with_extension("db-wal"), &log).unwrap();
            disk.fill_but(left_kib * 1024);
            match connect(&path).await {
                Ok(mut connection) => {
                    outcomes.push(count(&mut connection).await.unwrap() == 50);
                    // Until the disk is full in the midst of it.
                    disk.fill();
                    let insert = "INSERT INTO line VALUES (hex(randomblob(500)))";
                    while sqlx::query(insert).execute(&mut connection).await.is_ok() {}
                    connection.close().await.unwrap();
                }
                Err(error) => {
                    assert!(crate::room::is_missing(&error), "{left_kib}: {error}");
                    outcomes.push(false);
                }
            }
            disk.empty();
        }
        assert_eq!(outcomes, [false, false, false, false, false, false, false, true]);
    }

    #[tokio::test]
    async fn room_of_a_removed_index_is_given_back() {
        let disk = Disk::ext4(16, &[]);
        let path = disk.path().join("a.db");
        let connection = connect(&path).await.unwrap();
        connection.close().await.unwrap();
        assert!(!index_path(&path).exists());
        release_removed();
        disk.fill();
        let error = connect(&disk.path().join("b.db")).await.unwrap_err();
        assert!(crate::room::is_missing(&error), "{error}");
        // What could not be written is kept no longer than its name.
        fs::remove_file(index_path(&disk.path().join("b.db"))).unwrap();
        release_removed();
        let is_of_disk = |file: &Arc<File>| file.metadata().unwrap().dev() == fs::metadata(disk.path()).unwrap().dev();
        assert!(!PREPARED.lock().unwrap().iter().any(is_of_disk));
    }

    #[tokio::test]
    async fn index_that_is_prepared_again_has_no_holes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        for _ in 0..3 {
            drop(prepare(&path).await.unwrap());
            let found = fs::metadata(index_path(&path)).unwrap();
            assert!(found.len() == INDEX_BYTES as u64 && found.blocks() * 512 >= found.len(), "{found:?}");
        }
    }

    #[tokio::test]
    async fn index_is_written_once_and_shared_with_other_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut first = connect(&path).await.unwrap();
        sqlx::query("CREATE TABLE line (text TEXT)").execute(&mut first).await.unwrap();
        let index = fs::metadata(index_path(&path)).unwrap();
        assert_eq!(index.len(), INDEX_BYTES as u64);
        // A second connection of this process finds the same one, with what is in it.
        let mut second = connect(&path).await.unwrap();
        sqlx::query("INSERT INTO line VALUES ('one')").execute(&mut first).await.unwrap();
        assert_eq!(count(&mut second).await.unwrap(), 1);
        // Also if this process has dropped its locks, as it does by closing the file anywhere.
        drop(File::open(index_path(&path)).unwrap());
        let mut third = connect(&path).await.unwrap();
        assert_eq!(count(&mut third).await.unwrap() + count(&mut second).await.unwrap(), 2);
        third.close().await.unwrap();
        assert_eq!(fs::metadata(index_path(&path)).unwrap().ino(), index.ino());
        // Another process reads and writes beside it.
        let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
                      c.execute(\"INSERT INTO line VALUES ('two')\"); c.commit()";
        let run = std::process::Command::new("python3").args(["-c", script]).arg(&path).status().unwrap();
        assert!(run.success());
        assert_eq!(count(&mut second).await.unwrap(), 2);
        sqlx::query("INSERT INTO line VALUES ('three')").execute(&mut first).await.unwrap();
        first.close().await.unwrap();
        assert_eq!(count(&mut second).await.unwrap(), 3);
        second.close().await.unwrap();
        // SQLite has removed it; the next is a new one.
        assert!(!index_path(&path).exists());
        let mut again = connect(&path).await.unwrap();
        assert_eq!(count(&mut again).await.unwrap(), 3);
        again.close().await.unwrap();
    }
}
