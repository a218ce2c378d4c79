//! The folder of retained messages: its lock, and its files.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{
    journal::{self, HEADER_BYTES, JournalFile, JournalRecord},
    memory::RetainedMemory,
};
use crate::error::BrokerError;

const JOURNAL: &str = "retained.journal";
/// A new journal, until it is complete.
const NEW: &str = "retained.journal.new";
const LOCK: &str = "lock";

/// How often, and how far apart, the lock is tried: a broker of this process may just be closing its file.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The size of a write to a new file.
const BUFFER_BYTES: usize = 256 * 1024;

/// A journal to append to.
pub(super) struct OpenJournal {
    pub(super) file: File,
    pub(super) salt: u64,
    /// Its length.
    pub(super) bytes: u64,
}

/// Creates the folder if needed, and locks it as long as the returned file lives.
pub(super) fn take(folder: &Path) -> Result<File, BrokerError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|source| BrokerError::Store { folder: folder.to_owned(), trying: "make", source })?;
    clear_places(folder).map_err(|source| BrokerError::Store {
        folder: folder.to_owned(),
        trying: "set aside what is in",
        source,
    })?;
    let failed = |source| BrokerError::Store { folder: folder.to_owned(), trying: "lock", source };
    let file = options().create(true).truncate(false).write(true).open(folder.join(LOCK)).map_err(failed)?;
    for _ in 1..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BrokerError::StoreHeld { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Moves folders aside that are in the place of files. Retained messages are published again by their parties.
fn clear_places(folder: &Path) -> io::Result<()> {
    for name in [JOURNAL, NEW, LOCK] {
        let path = folder.join(name);
        if path.is_dir() {
            move_aside(&path, "the path is a folder instead of a file")?;
        }
    }
    Ok(())
}

/// Moves what cannot be used out of the way.
fn move_aside(path: &Path, fault: &str) -> io::Result<()> {
    let aside = free_place(path)?;
    fs::rename(path, &aside)?;
    tracing::error!(
        path = %path.display(), aside = %aside.display(),
        consequence = "it is set aside; hosts and consoles publish their retained messages again",
        hint = "find out what it is, and check the disk; if it is not needed, delete it",
        "{fault}",
    );
    Ok(())
}

/// The options of private files: reports of hosts and units are not for other users of this machine.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Reads the journal into `memory`, or creates one.
pub(super) fn open(folder: &Path, memory: &mut RetainedMemory, now_ms: u64) -> Result<OpenJournal, BrokerError> {
    if let Some(opened) = continue_old(folder, memory, now_ms)? {
        return Ok(opened);
    }
    let new = write_new(folder, &memory.records()).and_then(|new| sync(folder).map(|()| new));
    new.map_err(|source| BrokerError::Store { folder: folder.to_owned(), trying: "write to", source })
}

/// Reads an existing journal into `memory`. `None`: a new one is to be written.
fn continue_old(folder: &Path, memory: &mut RetainedMemory, now_ms: u64) -> Result<Option<OpenJournal>, BrokerError> {
    let failed = |trying, source| BrokerError::Store { folder: folder.to_owned(), trying, source };
    let path = folder.join(JOURNAL);
    let opened = options().read(true).write(true).open(&path);
    let read = opened.and_then(|file| journal::read(&file, |record| memory.replay(record)).map(|found| (file, found)));
    let (mut file, found) = match read {
        Ok(read) => read,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => return Ok(None),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                return Err(failed("open the journal in", error));
            }
            _ => {
                let moved = move_aside(&path, &format!("the journal of retained messages cannot be read: {error}"));
                return moved.map(|()| None).map_err(|source| failed("set aside what is in", source));
            }
        },
    };
    memory.sweep(now_ms);
    let refused = memory.trim();
    if refused > 0 {
        tracing::warn!(
            path = %path.display(),
            refused,
            consequence = "they were dropped",
            hint = "retained_max, retained_host_max, and their bytes",
            "retained messages in the journal are beyond the limits",
        );
    }
    match found {
        JournalFile::Sound { salt, end, torn } => {
            if torn > 0 {
                tracing::warn!(path = %path.display(), bytes = torn, "the incomplete last record of the journal was cut off");
            }
            if refused > 0 {
                return Ok(None);
            }
            let cut = file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)));
            cut.map_err(|error| failed("continue the journal in", error))?;
            Ok(Some(OpenJournal { file, salt, bytes: end }))
        }
        JournalFile::Unfinished => {
            tracing::warn!(path = %path.display(), "the journal has no header; it is written again");
            Ok(None)
        }
        JournalFile::Damaged { at, lost } => {
            let aside = set_aside(&path).map_err(|error| failed("set a damaged journal aside in", error))?;
            tracing::error!(
                path = %path.display(),
                aside = %aside.display(),
                at,
                lost_bytes = lost,
                consequence = "what could be read is kept, and the file stays under another name",
                hint = "every client publishes its own messages again, so the file can be deleted",
                "the journal of retained messages is damaged",
            );
            Ok(None)
        }
        JournalFile::Version(version) => Err(BrokerError::StoreVersion { path, version }),
    }
}

/// Writes a journal of these records in place of the existing one. [`sync`] makes that durable.
pub(super) fn write_new(folder: &Path, all: &[JournalRecord]) -> io::Result<OpenJournal> {
    let path = folder.join(NEW);
    let written = (|| {
        let file = options().create(true).truncate(true).write(true).open(&path)?;
        let salt = journal::new_salt();
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        out.write_all(&journal::header(salt))?;
        let (mut encoded, mut bytes) = (Vec::new(), HEADER_BYTES);
        for record in all {
            encoded.clear();
            record.write(salt, &mut encoded);
            out.write_all(&encoded)?;
            bytes += encoded.len();
        }
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&path, folder.join(JOURNAL))?;
        Ok(OpenJournal { file, salt, bytes: bytes as u64 })
    })();
    if written.is_err() {
        // It takes space that the old one may need.
        let _ = fs::remove_file(&path);
    }
    written
}

/// Syncs the folder.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Gives a file a second name, which it keeps when a new one takes the first.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = free_place(path)?;
    // Some file systems have no hard links.
    fs::hard_link(path, &aside).or_else(|_| fs::copy(path, &aside).map(drop))?;
    Ok(aside)
}

/// Returns the first free name for what is set aside. The folder is locked, or about to be: nobody else takes it.
fn free_place(path: &Path) -> io::Result<PathBuf> {
    let place = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        PathBuf::from(name)
    };
    let is_free = |aside: &PathBuf| aside.symlink_metadata().is_err();
    (1..=u32::MAX).map(place).find(is_free).ok_or_else(|| io::ErrorKind::AlreadyExists.into())
}
