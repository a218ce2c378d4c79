//! Restores a backup into a console's folder: all of it is written to a folder beside, checked, and put in place by one
//! rename. So a restore that fails or is killed leaves the folder as it was, and can be repeated.
//!
//! The folder beside, `NAME.restoring`, is empty or has a file `restore.unfinished`, which is the first that appears in it and the last
//! that goes. A folder that is replaced changes names with it in one step (`RENAME_EXCHANGE`), then gets the name `NAME.replaced-TIME`, and the file is
//! removed at the end. From which of both has that file the next run knows how far the last one came.
//!
//! **Invariant: what was in the folder is never deleted.**
//!
//! **Invariant: the same command finishes what was interrupted at any instant**, also one that had only its answer left.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use muster_base::{
    crash,
    files::{self, PRIVATE_FOLDER, PUBLIC_MODE, SECRET_MODE},
    mount::{MountId, remove_folder},
};
use muster_topics::{Millis, name::Digest};
use nix::sys::statvfs::statvfs;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{
    BackupError,
    archive::{self, FileSink, Manifest, Sums},
    key::PrivateKey,
    restored_mark::{self, RestoredMark},
};

/// The console's lock on its folder.
const LOCK: &str = "lock";
const AUTHORITY: &str = "authority";
const ARTIFACTS: &str = "artifacts";
/// The size of pieces in which files are read and written.
const PIECE_BYTES: usize = 256 * 1024;
/// The largest register of a folder that is replaced: that of a hundred thousand hosts.
const REGISTER_MAX_BYTES: u64 = 64 << 20;
/// The longest root certificate.
const CERTIFICATE_MAX_BYTES: u64 = 64 << 10;

/// What to restore.
#[derive(Clone, Copy, Debug)]
pub struct RestoreRequest<'a> {
    /// The file of the backup.
    pub file: &'a Path,
    /// Keys of which one opens it.
    pub keys: &'a [PrivateKey],
    /// The folder of the console.
    pub folder: &'a Path,
    /// Whether a folder that has data may be replaced.
    pub replace: bool,
    /// The present time.
    pub now: Millis,
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The backup.
    pub manifest: Manifest,
    /// Its files; `None` if an earlier run had restored them all.
    pub sums: Option<Sums>,
    /// Whether an earlier run of the same restore was interrupted, and is finished now.
    pub was_interrupted: bool,
    /// Where the folder is now that was replaced.
    pub aside: Option<PathBuf>,
    /// Whether it had a register of revocations, which the console merges at its start.
    pub merges_register: bool,
}

/// A restore of the same backup that an earlier run began.
struct EarlierRestore {
    /// Where the folder is now that was replaced.
    aside: Option<PathBuf>,
    /// Whether it was interrupted, and is finished now.
    was_interrupted: bool,
}

/// Restores a backup. `progress` is told how many bytes of the file were read, and how many it has.
///
/// # Errors
/// If the backup cannot be used, or the folder cannot; the folder is then as it was.
pub fn restore(wanted: &RestoreRequest<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Restored, BackupError> {
    let places = Places::of(wanted.folder)?;
    let manifest = manifest_of(wanted.file, wanted.keys)?;
    if let Some(EarlierRestore { aside, was_interrupted }) = places.finish_earlier(&manifest, wanted)? {
        let merges_register = restored_mark::replaced_register(&places.folder).exists();
        return Ok(Restored { manifest, sums: None, was_interrupted, aside, merges_register });
    }
    let _held = places.lock_folder(wanted.replace)?;
    let _staging = places.make_staging(&manifest)?;
    let filled = places.fill(wanted, progress);
    let (manifest, sums, merges_register) = match filled {
        Ok(filled) => filled,
        Err(error) => {
            let _ = places.remove_staging();
            return Err(error);
        }
    };
    let aside = places.put_in_place(wanted.now)?;
    Ok(Restored { manifest, sums: Some(sums), was_interrupted: false, aside, merges_register })
}

/// Reads the manifest of a backup alone.
///
/// # Errors
/// If the file cannot be opened, is no backup, or none of the keys opens it.
pub fn manifest_of(file: &Path, keys: &[PrivateKey]) -> Result<Manifest, BackupError> {
    struct First(Option<Manifest>);
    impl FileSink for First {
        fn begin(&mut self, manifest: &Manifest) -> Result<(), BackupError> {
            self.0 = Some(manifest.clone());
            Ok(())
        }

        fn file(&mut self, _: &str, _: &mut dyn Read) -> Result<(), BackupError> {
            Err(BackupError::Read(io::ErrorKind::Interrupted.into()))
        }
    }
    let mut first = First(None);
    let read = archive::read(open(file)?, keys, &mut first);
    match (first.0, read) {
        (Some(manifest), _) => Ok(manifest),
        (None, Err(error)) => Err(error),
        (None, Ok((manifest, _))) => Ok(manifest),
    }
}

/// Reads a whole backup, and checks it.
///
/// # Errors
/// If it cannot be read, is cut or damaged, or none of the keys opens it.
pub fn verify(
    file: &Path,
    keys: &[PrivateKey],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Manifest, Sums), BackupError> {
    archive::read(CountingReader::new(file, progress)?, keys, &mut archive::Check)
}

fn open(path: &Path) -> Result<BufReader<File>, BackupError> {
    let file = File::open(path).map_err(BackupError::file(path))?;
    if !file.metadata().map_err(BackupError::file(path))?.is_file() {
        return Err(BackupError::NotABackup("it is not a regular file"));
    }
    Ok(BufReader::with_capacity(PIECE_BYTES, file))
}

struct CountingReader<'a> {
    file: BufReader<File>,
    progress: &'a mut dyn FnMut(u64, u64),
    bytes: u64,
    all_bytes: u64,
}

impl<'a> CountingReader<'a> {
    fn new(path: &Path, progress: &'a mut dyn FnMut(u64, u64)) -> Result<Self, BackupError> {
        let file = open(path)?;
        let all_bytes = file.get_ref().metadata().map_err(BackupError::file(path))?.len();
        Ok(Self { file, progress, bytes: 0, all_bytes })
    }
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes += count as u64;
        (self.progress)(self.bytes, self.all_bytes);
        Ok(count)
    }
}

/// The folder, and the folders beside it.
struct Places {
    folder: PathBuf,
    parent: PathBuf,
    staging: PathBuf,
}

impl Places {
    fn of(folder: &Path) -> Result<Self, BackupError> {
        let target = |problem| BackupError::Target { path: folder.to_owned(), problem };
        // A link is followed: what it leads to is replaced.
        let absolute = match fs::canonicalize(folder) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let absolute = std::path::absolute(folder).map_err(BackupError::file(folder))?;
                let name = absolute.file_name().ok_or_else(|| target("it has no name"))?.to_owned();
                let parent = absolute.parent().ok_or_else(|| target("it has no parent folder"))?;
                files::make_folder(parent, PRIVATE_FOLDER).map_err(BackupError::file(parent))?;
                fs::canonicalize(parent).map_err(BackupError::file(parent))?.join(name)
            }
            Err(source) => return Err(BackupError::file(folder)(source)),
        };
        let name = absolute.file_name().ok_or_else(|| target("it has no name"))?.to_owned();
        let parent = absolute.parent().ok_or_else(|| target("it has no parent folder"))?.to_owned();
        if absolute.exists() {
            if !absolute.is_dir() {
                return Err(target("it is not a folder"));
            }
            let mount = |path: &Path| MountId::of_path(path).map_err(BackupError::file(path));
            if mount(&absolute)? != mount(&parent)? {
                return Err(BackupError::Mount { path: absolute });
            }
        }
        let staging = parent.join(with_suffix(&name, ".restoring"));
        Ok(Self { folder: absolute, parent, staging })
    }

    fn sync(&self) -> Result<(), BackupError> {
        files::sync_folder(&self.parent).map_err(BackupError::file(&self.parent))
    }

    /// Finishes a restore of the same backup that was interrupted after it had put the folder in place. Another backup
    /// is then restored as into any other folder. A folder that may not be replaced, and that no console was started with since the same
    /// backup was restored into it, is as it is wanted.
    fn finish_earlier(
        &self,
        manifest: &Manifest,
        wanted: &RestoreRequest<'_>,
    ) -> Result<Option<EarlierRestore>, BackupError> {
        let is_unfinished = restored_mark::is_unfinished(&self.folder);
        if !is_unfinished && wanted.replace {
            return Ok(None);
        }
        let is_same = RestoredMark::read(&self.folder, 0)
            .map_err(BackupError::file(&self.folder))?
            .is_some_and(|mark| mark.fleet == manifest.fleet && mark.taken_ms == manifest.taken_ms);
        let aside = if is_unfinished { self.finish(wanted.now)? } else { None };
        Ok(is_same.then_some(EarlierRestore { aside, was_interrupted: is_unfinished }))
    }

    /// Gives the folder that was replaced its name, and marks the restore as finished.
    fn finish(&self, now: Millis) -> Result<Option<PathBuf>, BackupError> {
        let mut aside = None;
        if self.staging.exists() && !restored_mark::is_unfinished(&self.staging) {
            aside = Some(self.set_aside(now)?);
        }
        crash::point("restore", "after the replaced folder is set aside");
        let unfinished = restored_mark::unfinished(&self.folder);
        fs::remove_file(&unfinished).map_err(BackupError::file(&unfinished))?;
        files::sync_folder(&self.folder).map_err(BackupError::file(&self.folder))?;
        Ok(aside)
    }

    fn set_aside(&self, now: Millis) -> Result<PathBuf, BackupError> {
        let name = self.folder.file_name().unwrap_or_default();
        let mut at = now;
        let aside = loop {
            let aside = self.parent.join(with_suffix(name, &format!(".replaced-{at}")));
            if aside.symlink_metadata().is_err() {
                break aside;
            }
            at += 1;
        };
        fs::rename(&self.staging, &aside).map_err(BackupError::file(&aside))?;
        self.sync()?;
        Ok(aside)
    }

    /// Makes sure that no console works with the folder, and that it may be replaced.
    fn lock_folder(&self, replace: bool) -> Result<Option<File>, BackupError> {
        let lock_path = self.folder.join(LOCK);
        let at = BackupError::file(lock_path.clone());
        let held = match lock_path
            .try_exists()
            .and_then(|is_there| is_there.then(|| files::take_lock(&lock_path)).transpose())
        {
            Ok(Some(None)) => return Err(BackupError::InUse { path: self.folder.clone() }),
            Ok(held) => held.flatten(),
            Err(error) => return Err(at(error)),
        };
        if !replace && !is_empty(&self.folder)? {
            return Err(BackupError::NotEmpty { path: self.folder.clone() });
        }
        Ok(held)
    }

    /// Makes the folder beside, empty, and locks it against another restore.
    fn make_staging(&self, manifest: &Manifest) -> Result<File, BackupError> {
        let at = |path: &Path| BackupError::file(path.to_owned());
        let lock_path = self.staging.join(LOCK);
        if self.staging.symlink_metadata().is_ok() {
            let is_ours = restored_mark::is_unfinished(&self.staging) || is_empty(&self.staging)?;
            if !is_ours {
                return Err(BackupError::Target {
                    path: self.folder.clone(),
                    problem: "the folder beside it whose name ends with .restoring was not made by a restore",
                });
            }
            // Another restore that is at work holds the lock of its folder.
            if lock_path.exists() && matches!(files::take_lock(&lock_path), Ok(None)) {
                return Err(BackupError::Busy { path: self.folder.clone() });
            }
            self.clear_staging()?;
        } else {
            DirBuilder::new().mode(PRIVATE_FOLDER).create(&self.staging).map_err(at(&self.staging))?;
            self.sync()?;
        }
        let unfinished = restored_mark::unfinished(&self.staging);
        let text = format!("a restore of the backup of {} is not finished\n", manifest.taken_ms);
        // Written in place: that it is there says all, and nothing else may be there before it.
        let marked = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(SECRET_MODE)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| files::sync_folder(&self.staging));
        marked.map_err(at(&unfinished))?;
        let lock = files::take_lock(&lock_path).map_err(at(&lock_path))?;
        let lock = lock.ok_or_else(|| BackupError::Busy { path: self.folder.clone() })?;
        crash::point("restore", "after the folder beside is made");
        Ok(lock)
    }

    /// Removes what an interrupted restore has left, the file that says so last.
    fn clear_staging(&self) -> Result<(), BackupError> {
        let entries = fs::read_dir(&self.staging).map_err(BackupError::file(&self.staging))?;
        let unfinished = restored_mark::unfinished(&self.staging);
        for entry in entries {
            let path = entry.map_err(BackupError::file(&self.staging))?.path();
            if path == unfinished {
                continue;
            }
            let removed = if path.is_dir() { remove_folder(&path) } else { fs::remove_file(&path) };
            removed.map_err(BackupError::file(&path))?;
        }
        Ok(())
    }

    /// Removes the folder beside of a restore that has failed, the file that says whose it is last.
    fn remove_staging(&self) -> Result<(), BackupError> {
        self.clear_staging()?;
        remove_folder(&self.staging).map_err(BackupError::file(&self.staging))
    }

    /// Writes everything to the folder beside.
    fn fill(
        &self,
        wanted: &RestoreRequest<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Manifest, Sums, bool), BackupError> {
        let mut sink = FolderSink { folder: &self.staging, folders: BTreeSet::new() };
        let (manifest, sums) = archive::read(CountingReader::new(wanted.file, progress)?, wanted.keys, &mut sink)?;
        crash::point("restore", "after all files");
        let has = |path: &str| sums.files.iter().any(|file| file.path == path);
        if !has("console.db") || !sums.files.iter().any(|file| file.path.starts_with("authority/")) {
            return Err(BackupError::Damaged("it lacks the authority or the store".to_owned()));
        }
        let restored = fleets(&self.staging)?;
        if !restored.contains(&manifest.fleet) {
            return Err(BackupError::Damaged("its root certificate does not match its fleet".to_owned()));
        }
        let present = fleets(&self.folder)?;
        if let Some(found) = present.first()
            && present.is_disjoint(&restored)
        {
            let (backup, found) = (manifest.fleet.to_string(), found.to_string());
            return Err(BackupError::OtherFleet { path: self.folder.clone(), backup, found });
        }
        let merges_register = self.keep_of_replaced()?;
        let RestoreRequest { now, .. } = *wanted;
        RestoredMark { fleet: manifest.fleet.clone(), taken_ms: manifest.taken_ms, restored_ms: now }
            .write(&self.staging)?;
        self.give_to_owner()?;
        files::sync_folder(&self.staging).map_err(BackupError::file(&self.staging))?;
        crash::point("restore", "before it is put in place");
        Ok((manifest, sums, merges_register))
    }

    /// Copies what the folder that is replaced knows and nobody else does: revocations, and numbers that never go back.
    /// Artifacts, whose names are their hashes, are linked.
    fn keep_of_replaced(&self) -> Result<bool, BackupError> {
        let copy = |from: &str, to: PathBuf| -> Result<bool, BackupError> {
            let path = self.folder.join(AUTHORITY).join(from);
            match read_limited(&path, REGISTER_MAX_BYTES) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(source) => Err(BackupError::file(path)(source)),
                Ok(bytes) => {
                    files::write_atomically(&to, &bytes, SECRET_MODE).map_err(BackupError::file(to))?;
                    Ok(true)
                }
            }
        };
        // An earlier restore may have left its own there, if no console was started since.
        let left = restored_mark::replaced_register(&self.folder);
        if left.exists() {
            let to = restored_mark::replaced_register(&self.staging);
            fs::copy(&left, &to).map_err(BackupError::file(&to))?;
            let mark = restored_mark::replaced_mark(&self.folder);
            if mark.exists() {
                let to = restored_mark::replaced_mark(&self.staging);
                fs::copy(&mark, &to).map_err(BackupError::file(&to))?;
            }
            return Ok(true);
        }
        let has_register = copy("register.json", restored_mark::replaced_register(&self.staging))?;
        copy("mark.json", restored_mark::replaced_mark(&self.staging))?;
        let Ok(entries) = fs::read_dir(self.folder.join(ARTIFACTS)) else { return Ok(has_register) };
        let folder = self.staging.join(ARTIFACTS);
        files::make_folder(&folder, PRIVATE_FOLDER).map_err(BackupError::file(&folder))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with('.') {
                // One that is there already is the same; one that cannot be linked is as if it were in no backup.
                let _ = fs::hard_link(entry.path(), folder.join(name));
            }
        }
        Ok(has_register)
    }

    /// As root, gives everything to the owner of the folder that is replaced.
    fn give_to_owner(&self) -> Result<(), BackupError> {
        let Ok(owner) = fs::metadata(&self.folder) else { return Ok(()) };
        if !nix::unistd::geteuid().is_root() || owner.uid() == 0 {
            return Ok(());
        }
        let mut folders = vec![self.staging.clone()];
        while let Some(folder) = folders.pop() {
            let give = |path: &Path| {
                File::open(path)
                    .and_then(|file| fchown(file, Some(owner.uid()), Some(owner.gid())))
                    .map_err(BackupError::file(path))
            };
            give(&folder)?;
            for entry in fs::read_dir(&folder).map_err(BackupError::file(&folder))? {
                let path = entry.map_err(BackupError::file(&folder))?.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    give(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Puts the folder beside in the place of the folder.
    fn put_in_place(&self, now: Millis) -> Result<Option<PathBuf>, BackupError> {
        if is_empty(&self.folder)? {
            // An empty folder may be replaced by another one.
            fs::rename(&self.staging, &self.folder).map_err(BackupError::file(&self.folder))?;
        } else {
            renameat_with(CWD, &self.staging, CWD, &self.folder, RenameFlags::EXCHANGE)
                .map_err(|error| BackupError::file(&self.folder)(error.into()))?;
        }
        self.sync()?;
        crash::point("restore", "after it is put in place");
        self.finish(now)
    }
}

fn with_suffix(name: &std::ffi::OsStr, suffix: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(suffix);
    name
}

/// Whether there is no such folder, or nothing in it.
fn is_empty(folder: &Path) -> Result<bool, BackupError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(BackupError::file(folder)(source)),
        Ok(mut entries) => Ok(entries.next().is_none()),
    }
}

fn read_limited(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long")),
        false => Ok(bytes),
    }
}

/// The fleets whose root certificates a console's folder has: several, while one replaces the other.
fn fleets(folder: &Path) -> Result<BTreeSet<Digest>, BackupError> {
    let mut fleets = BTreeSet::new();
    let authority = folder.join(AUTHORITY);
    let entries = match fs::read_dir(&authority) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(fleets);
        }
        Err(source) => return Err(BackupError::file(authority)(source)),
        Ok(entries) => entries,
    };
    for entry in entries {
        let path = entry.map_err(BackupError::file(&authority))?.path();
        if path.extension().is_some_and(|extension| extension == "pem")
            && let Ok(bytes) = read_limited(&path, CERTIFICATE_MAX_BYTES)
        {
            fleets.extend(certificates(&String::from_utf8_lossy(&bytes)));
        }
    }
    Ok(fleets)
}

/// The fingerprints of the certificates in a text (PEM).
fn certificates(pem: &str) -> Vec<Digest> {
    let parts = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    let bodies = parts.filter_map(|part| part.split_once("-----END CERTIFICATE-----").map(|(body, _)| body));
    let decoded =
        bodies.map(|body| body.split_whitespace().collect::<String>()).filter_map(|body| BASE64.decode(body).ok());
    decoded.map(|der| Digest::of(&der)).collect()
}

/// Writes files into a folder.
struct FolderSink<'a> {
    folder: &'a Path,
    folders: BTreeSet<PathBuf>,
}

impl FileSink for FolderSink<'_> {
    fn begin(&mut self, manifest: &Manifest) -> Result<(), BackupError> {
        let Ok(found) = statvfs(self.folder) else { return Ok(()) };
        let free = found.blocks_available().saturating_mul(found.fragment_size());
        if manifest.bytes() > free {
            let source = io::Error::new(
                io::ErrorKind::StorageFull,
                format!("it needs {} bytes, and the disk has {free}", manifest.bytes()),
            );
            return Err(BackupError::file(self.folder)(source));
        }
        Ok(())
    }

    fn file(&mut self, path: &str, content: &mut dyn Read) -> Result<(), BackupError> {
        let to = self.folder.join(path);
        if let Some(parent) = to.parent().filter(|parent| *parent != self.folder)
            && self.folders.insert(parent.to_owned())
        {
            files::make_folder(parent, PRIVATE_FOLDER).map_err(BackupError::file(parent))?;
        }
        let mode = if path.ends_with(".pem") { PUBLIC_MODE } else { SECRET_MODE };
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&to);
        let mut file = file.map_err(BackupError::file(&to))?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = content.read(&mut piece).map_err(BackupError::reading)?;
            if count == 0 {
                break;
            }
            file.write_all(piece.get(..count).unwrap_or_default()).map_err(BackupError::file(&to))?;
        }
        file.sync_all().map_err(BackupError::file(&to))?;
        if let Some(parent) = to.parent() {
            files::sync_folder(parent).map_err(BackupError::file(parent))?;
        }
        crash::point("restore", "after a file");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
