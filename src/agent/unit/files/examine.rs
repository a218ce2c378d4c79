//! Finds out what is at a path. The hash of a file is kept as long as the file is unchanged.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use muster_base::clock::now_ms;
use muster_rules::files::plan::{Attributes, Content, EntryState, FoundEntry};
use muster_topics::name::Digest;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};

use super::confine::Place;

/// What is read of a file at once.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// A file that was changed within this time may be changed again without a new time of change.
const SETTLED_MS: i64 = 1_500;

/// What changes when a file is written, replaced or touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: i64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(found: &Stat) -> Self {
        Self {
            device: found.st_dev,
            inode: found.st_ino,
            size_bytes: found.st_size,
            changed: (found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or_default()),
        }
    }

    fn is_settled(&self) -> bool {
        now_ms().saturating_sub(self.changed.0.saturating_mul(1_000)) > SETTLED_MS
    }
}

/// The hashes of files that were read.
#[derive(Debug, Default)]
pub(super) struct Hashes(Mutex<HashMap<PathBuf, (Stamp, Digest)>>);

impl Hashes {
    /// Forgets files that are not described any more.
    pub(super) fn retain(&self, is_needed: impl Fn(&PathBuf) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|path, _| is_needed(path));
    }

    fn of_file(&self, place: &Place) -> io::Result<Digest> {
        let path = place.folder_path.join(&place.name);
        let file = open_file(place)?;
        let before = Stamp::of(&fstat(&file)?);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
        if let Some((stamp, digest)) = known
            && stamp == before
        {
            return Ok(digest);
        }
        let digest = digest_of(&file)?;
        if Stamp::of(&fstat(&file)?) == before && before.is_settled() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path, (before, digest.clone()));
        }
        Ok(digest)
    }

    /// Returns what is at a place.
    ///
    /// # Errors
    /// If it cannot be read, or is neither file, folder nor link.
    pub(super) fn found(&self, place: &Place) -> io::Result<FoundEntry> {
        let Some(stat) = place.stat()? else { return Ok(nothing()) };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let content = match kind {
            FileType::RegularFile => Content::File(self.of_file(place)?),
            FileType::Directory => Content::Directory,
            FileType::Symlink => {
                let to = readlinkat(&place.folder, &*place.name, Vec::new())?;
                Content::Link(to.into_string().map_err(|_| io::Error::other("it is a link whose target is not UTF-8"))?)
            }
            FileType::Fifo => return Err(io::Error::other("it is a named pipe")),
            FileType::Socket => return Err(io::Error::other("it is a socket")),
            _ => return Err(io::Error::other("it is a device")),
        };
        let is_full = kind == FileType::Directory && is_full(place)?;
        let mode = if kind == FileType::Symlink { 0 } else { stat.st_mode & 0o7777 };
        let attributes = Attributes { uid: stat.st_uid, gid: stat.st_gid, mode };
        let has_other_names = kind == FileType::RegularFile && stat.st_nlink > 1;
        Ok(FoundEntry { state: EntryState { content, attributes }, is_full, has_other_names })
    }
}

/// What is found where nothing is.
pub(super) fn nothing() -> FoundEntry {
    FoundEntry { state: EntryState::absent(), is_full: false, has_other_names: false }
}

/// Opens a plain file for reading. A pipe or device that takes its place meanwhile blocks nothing.
pub(super) fn open_file(place: &Place) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&place.folder, &*place.name, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        _ => Err(io::Error::other("it is no longer a regular file")),
    }
}

/// Opens a folder for reading.
pub(super) fn open_folder(place: &Place) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(&place.folder, &*place.name, flags, Mode::empty())?)
}

fn is_full(place: &Place) -> io::Result<bool> {
    Ok(!names(place, 1)?.is_empty())
}

/// Returns names in a folder, at most so many.
pub(super) fn names(place: &Place, max: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(open_folder(place)?)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if names.len() == max {
            break;
        }
        names.push(name.to_str().map_err(|_| io::Error::other("it has a name that is not UTF-8"))?.to_owned());
    }
    Ok(names)
}

/// Computes the hash of a file's content.
pub(super) fn digest_of(mut from: impl Read) -> io::Result<Digest> {
    let (mut hash, mut piece) = (ring::digest::Context::new(&ring::digest::SHA256), vec![0; PIECE_BYTES]);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(Digest::from_ring(hash.finish())),
            Ok(length) => hash.update(piece.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
