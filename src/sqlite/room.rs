//! Room on the disk: recognises the errors of a full disk, and keeps a reserve for that case.
//!
//! Mending a full disk needs some room: a command that removes something has to be stored before it is
//! done. So agent and console each keep a file of zeros beside their store ([`Reserve`]), and release a piece of it whenever a
//! necessary write would find no room. It is refilled, piece by piece, once there is room.
//!
//! **Invariant: only necessary writes draw on the reserve.** Measurements, uploads and the like wait until it is full again.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use muster_base::files::SECRET_MODE;
pub use muster_base::unwritable::{HINT, READ_ONLY_HINT, hint, hint_or, is_missing_for};
use nix::{
    fcntl::posix_fallocate,
    sys::statvfs::{FsFlags, Statvfs, statvfs},
};
use sqlx::migrate::MigrateError;

/// File name of the reserve.
const FILE: &str = "reserve";
/// The reserve takes at most this fraction of a file system: one eighth.
const SHARE: u64 = 8;
/// Number of pieces that must be free before one is added again, so that it is not released at the next write.
const FREE_PIECES: u64 = 4;

/// Whether an SQLite error code means that nothing can be written: the disk is full, or mounted read-only. Some of these codes
/// can also mean a broken disk; the message mentions both.
///
/// - 8 READONLY: a connection that was made since the file system is read-only.
/// - 13 FULL: a page could not be written.
/// - 10 IOERR, by operation: 778 WRITE (also an exceeded quota), 1034 FSYNC and 1290 DIR_FSYNC (some file systems, such
///   as NFS, only find out then), 1546 TRUNCATE (a log gets its size), 4618 SHMOPEN, 4874 SHMSIZE and 5386 SHMMAP (the
///   index of the write-ahead log).
#[must_use]
fn means_no_room(code: u32) -> bool {
    matches!(code & 0xff, 8 | 13) || matches!(code, 778 | 1034 | 1290 | 1546 | 4618 | 4874 | 5386)
}

/// How often, and with which pause, a store is opened again on a full disk: two seconds at most.
const OPENINGS: u32 = 40;
const OPENING_PAUSE: Duration = Duration::from_millis(50);

/// Opens a store without a file for the index of its log, after opening it with one failed on a full disk.
///
/// The connections of the first try end in threads of their own. As long as one is open, SQLite has all connections of
/// this process use its file, and the disk still counts as full: so a try that fails for that is repeated.
///
/// # Errors
/// As `open`.
pub async fn open_without_index<T, E, O: Future<Output = Result<T, E>>>(
    open: impl Fn() -> O,
    is_full: fn(&E) -> bool,
) -> Result<T, E> {
    for _ in 1..OPENINGS {
        match open().await {
            Err(error) if is_full(&error) => tokio::time::sleep(OPENING_PAUSE).await,
            other => return other,
        }
    }
    open().await
}

/// Whether a statement failed because the disk is full.
#[must_use]
pub fn is_missing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            error.code().and_then(|code| code.parse::<u32>().ok()).is_some_and(means_no_room)
        }
        sqlx::Error::Io(error) => is_missing_for(error),
        sqlx::Error::Migrate(error) => is_missing_to_migrate(error),
        _ => false,
    }
}

/// Whether a migration failed because the disk is full.
#[must_use]
pub fn is_missing_to_migrate(error: &MigrateError) -> bool {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => is_missing(error),
        _ => false,
    }
}

/// What can be written on a file system, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// What is free for everybody.
    pub free_bytes: u64,
    /// Its size.
    pub total_bytes: u64,
    /// How many files can be made; nothing where that has no limit of its own.
    pub free_files: Option<u64>,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
}

/// The space on the file system of a folder; nothing if it cannot be asked.
#[must_use]
pub fn space(folder: &Path) -> Option<DiskSpace> {
    let about: Statvfs = statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(wide(about.fragment_size()));
    Some(DiskSpace {
        free_bytes: bytes(wide(about.blocks_available())),
        total_bytes: bytes(wide(about.blocks())),
        free_files: (wide(about.files()) > 0).then(|| wide(about.files_available())),
        is_read_only: about.flags().contains(FsFlags::ST_RDONLY),
    })
}

/// The hint of an error of a store that cannot be written. (The first statement that fails on a disk that has become
/// read-only has the same code as one without room.)
pub const STORE_HINT: &str = "free space on that disk, or mount it writable (`df -h` shows how full it is, `df -i` how many files it has, `dmesg` \
     whether it was made read-only after an error)";

/// What an operator can do about an error of a statement, if nothing can be written.
#[must_use]
pub fn hint_of_store(error: &sqlx::Error) -> Option<String> {
    is_missing(error).then(|| format!("this machine's disk is full or read-only: {STORE_HINT}"))
}

/// Size of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveSize {
    /// Total size, if the file system is large enough.
    pub total_bytes: u64,
    /// Size of the piece that is released at a time. Half of it must be free for a write.
    pub piece_bytes: u64,
}

/// Disk space that is kept in reserve; see the module. Clones share one reserve.
#[derive(Clone, Debug)]
pub struct Reserve(Arc<ReserveState>);

#[derive(Debug)]
struct ReserveState {
    folder: PathBuf,
    path: PathBuf,
    wanted: ReserveSize,
    is_short: AtomicBool,
}

/// The current state of a reserve and its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReserveLevel {
    kept_bytes: u64,
    free_bytes: u64,
    disk_bytes: u64,
}

/// The size of the reserve on a file system of this size: whole pieces, at least one.
fn total_bytes(size: ReserveSize, disk_bytes: u64) -> u64 {
    let most = size.total_bytes.min(disk_bytes / SHARE);
    (most - most % size.piece_bytes.max(1)).max(size.piece_bytes)
}

/// The size to which the reserve may grow now.
fn grown(size: ReserveSize, level: ReserveLevel) -> u64 {
    let spare_bytes = level.free_bytes.saturating_sub((FREE_PIECES - 1) * size.piece_bytes);
    let pieces = spare_bytes / size.piece_bytes.max(1);
    let most = level.kept_bytes.saturating_add(pieces.saturating_mul(size.piece_bytes));
    most.min(total_bytes(size, level.disk_bytes)).max(level.kept_bytes)
}

/// Converts a count of the system, whose type is smaller on some machines.
fn wide(count: impl Into<u64>) -> u64 {
    count.into()
}

impl Reserve {
    /// Opens the reserve of an existing folder, and grows it as far as there is space.
    #[must_use]
    pub fn open(folder: &Path, wanted: ReserveSize) -> Self {
        let inner = ReserveState {
            folder: folder.to_owned(),
            path: folder.join(FILE),
            wanted,
            is_short: AtomicBool::new(false),
        };
        let reserve = Self(Arc::new(inner));
        reserve.refill();
        reserve
    }

    /// Whether a part of the reserve was released and could not be restored: the disk is full.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.is_short.load(Ordering::Relaxed)
    }

    /// Whether nothing is left of it, and there is no room for a write.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.level().is_some_and(|level| level.kept_bytes == 0 && level.free_bytes < self.0.wanted.piece_bytes / 2)
    }

    /// Whether the file system is read-only. After an error of the disk some say so only to those who open a file.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let opened = OpenOptions::new().write(true).open(&self.0.path);
        opened.is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
            || space(&self.0.folder).is_some_and(|found| found.is_read_only)
    }

    /// The folder that the reserve belongs to.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Makes sure that there is space for a write, by releasing parts of the reserve if necessary. Returns `false` if
    /// there is none and the reserve is used up.
    pub fn ensure(&self) -> bool {
        self.ensure_bytes(self.0.wanted.piece_bytes / 2)
    }

    /// As [`Self::ensure`], for this many bytes.
    pub fn ensure_bytes(&self, bytes: u64) -> bool {
        let Some(level) = self.level() else { return true };
        if level.free_bytes >= bytes {
            return true;
        }
        loop {
            // Tried by writing: blocks that are reserved for root are not counted as free, but root can use them.
            if self.has_room(bytes) {
                return true;
            }
            if !self.release() {
                return false;
            }
        }
    }

    /// Releases one piece. Returns `false` if there is none left.
    pub fn release(&self) -> bool {
        let kept_bytes = self.kept_bytes();
        if kept_bytes == 0 {
            self.set_short(true);
            return false;
        }
        let left_bytes = kept_bytes.saturating_sub(self.0.wanted.piece_bytes);
        let released = OpenOptions::new().write(true).open(&self.0.path).and_then(|file| {
            file.set_len(left_bytes)?;
            // A journaling file system only reuses released blocks after its journal is committed.
            file.sync_all()
        });
        match released {
            Ok(()) => {
                self.set_short(true);
                tracing::warn!(file = %self.0.path.display(), left_bytes, "a part of the disk's reserve was freed");
                true
            }
            Err(error) => {
                tracing::error!(%error, file = %self.0.path.display(), "the disk's reserve cannot be freed");
                false
            }
        }
    }

    /// Restores the reserve as far as there is space.
    pub fn refill(&self) {
        let Some(level) = self.level() else { return };
        let (total, wanted) = (total_bytes(self.0.wanted, level.disk_bytes), grown(self.0.wanted, level));
        if wanted <= level.kept_bytes {
            self.set_short(level.kept_bytes < total);
            return;
        }
        match self.resize(level.kept_bytes, wanted) {
            Ok(()) => self.set_short(wanted < total),
            Err(error) if is_missing_for(&error) => self.set_short(true),
            // Some file systems cannot allocate space for a file.
            Err(error) => tracing::debug!(%error, file = %self.0.path.display(), "this disk has no reserve"),
        }
    }

    /// Logs changes of the state.
    fn set_short(&self, is_short: bool) {
        if self.0.is_short.swap(is_short, Ordering::Relaxed) == is_short {
            return;
        }
        let folder = self.0.folder.display();
        if is_short {
            tracing::error!(
                %folder,
                consequence = "only necessary writes are made, from the disk's reserve",
                hint = HINT,
                "the disk is full",
            );
        } else {
            tracing::info!(%folder, "the disk has room again, and its reserve is whole");
        }
    }

    /// Whether this many bytes could be written now, by growing the reserve for a moment.
    fn has_room(&self, bytes: u64) -> bool {
        let kept_bytes = self.kept_bytes();
        let tried = self.resize(kept_bytes, kept_bytes.saturating_add(bytes));
        let back = match &tried {
            // A partial allocation is released, too.
            Ok(()) | Err(_) => {
                OpenOptions::new().write(true).open(&self.0.path).and_then(|file| file.set_len(kept_bytes))
            }
        };
        if let Err(error) = back {
            tracing::debug!(%error, file = %self.0.path.display(), "the disk's reserve");
        }
        // If the file system cannot tell, assume that there is space: the write itself will fail if not.
        tried.as_ref().map_or_else(|error| !is_missing_for(error), |()| true)
    }

    fn resize(&self, from_bytes: u64, to_bytes: u64) -> io::Result<()> {
        let file = self.file()?;
        let number = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
        let grown = posix_fallocate(&file, number(from_bytes)?, number(to_bytes.saturating_sub(from_bytes))?);
        if let Err(errno) = grown {
            let _ = file.set_len(from_bytes);
            return Err(errno.into());
        }
        Ok(())
    }

    fn file(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(SECRET_MODE).open(&self.0.path)
    }

    fn kept_bytes(&self) -> u64 {
        fs::metadata(&self.0.path).map_or(0, |file| file.len())
    }

    fn level(&self) -> Option<ReserveLevel> {
        let DiskSpace { free_bytes, total_bytes, .. } = space(&self.0.folder)?;
        Some(ReserveLevel { kept_bytes: self.kept_bytes(), free_bytes, disk_bytes: total_bytes })
    }
}

#[cfg(test)]
mod tests {
    use muster_test_support::disk::Disk;

    use super::*;

    #[tokio::test]
    async fn store_is_opened_again_while_another_connection_has_its_index() {
        // Full twice; then it is open, or has another error.
        for wanted in [Ok("store"), Err("damaged")] {
            let tries = std::cell::Cell::new(0);
            let open = || {
                tries.set(tries.get() + 1);
                std::future::ready(if tries.get() < 3 { Err("full") } else { wanted })
            };
            assert_eq!(open_without_index(open, |error| *error == "full").await, wanted);
            assert_eq!(tries.get(), 3);
        }
    }

    #[test]
    fn what_must_be_written_has_room_on_a_full_disk() {
        let disk = Disk::new(8);
        let size = ReserveSize { total_bytes: MIB, piece_bytes: MIB / 8 };
        let reserve = Reserve::open(disk.path(), size);
        disk.fill();
        let write = |name: &str| fs::write(disk.path().join(name), [1; 16 * 1024]);
        let error = write("refused").unwrap_err();
        assert!(is_missing_for(&error) && hint(&error).unwrap().contains("disk is full"), "{error}");
        assert!(!reserve.is_short(), "nothing has asked for it");
        for part in 0..8 {
            assert!(reserve.ensure() && reserve.is_short(), "{part}");
            write(&format!("part-{part}")).unwrap();
            disk.fill();
        }
        assert!(!reserve.ensure() && reserve.is_spent(), "there is an end to it");
        disk.empty();
        reserve.refill();
        assert!(!reserve.is_short() && reserve.ensure());
        assert_eq!(reserve.kept_bytes(), MIB);
    }

    const MIB: u64 = 1024 * 1024;
    const SIZE: ReserveSize = ReserveSize { total_bytes: 8 * MIB, piece_bytes: MIB };

    #[test]
    fn every_code_that_means_no_room_is_known() {
        for code in [8, 8 | 6 << 8, 13, 13 | 1 << 8, 778, 1034, 1290, 1546, 4618, 4874, 5386] {
            assert!(means_no_room(code), "{code}");
        }
        // OK, ERROR, BUSY, CORRUPT, IOERR_READ, NOTADB.
        for code in [0, 1, 5, 11, 266, 26] {
            assert!(!means_no_room(code), "{code}");
        }
    }

    #[test]
    fn a_small_disk_keeps_a_small_reserve() {
        for (disk, wanted) in [(1024, 8), (64, 8), (32, 4), (4, 1), (0, 1)] {
            assert_eq!(total_bytes(SIZE, disk * MIB), wanted * MIB, "{disk} MiB");
        }
    }

    #[test]
    fn the_reserve_grows_by_pieces_that_leave_room() {
        for (kept, free, wanted) in [(0, 100, 8), (0, 3, 0), (0, 4, 1), (3, 6, 6), (3, 3, 3), (8, 100, 8), (9, 0, 9)] {
            let level = ReserveLevel { kept_bytes: kept * MIB, free_bytes: free * MIB, disk_bytes: 1024 * MIB };
            assert_eq!(grown(SIZE, level), wanted * MIB, "{kept} and {free}");
        }
    }

    #[test]
    fn a_reserve_is_given_back_piece_by_piece() {
        let folder = tempfile::tempdir().unwrap();
        let size = ReserveSize { total_bytes: 4 * 4096, piece_bytes: 4096 };
        let reserve = Reserve::open(folder.path(), size);
        assert!(!reserve.is_short() && reserve.ensure());
        assert_eq!(reserve.kept_bytes(), 4 * 4096);
        assert!(reserve.release() && reserve.is_short());
        assert_eq!(reserve.kept_bytes(), 3 * 4096);
        while reserve.release() {}
        assert_eq!(reserve.kept_bytes(), 0);
        reserve.refill();
        assert!(!reserve.is_short());
        assert_eq!(reserve.kept_bytes(), 4 * 4096);
    }
}
