//! Writes files atomically, so that a crash leaves the old content or the new, with the right permissions. Reads files that people
//! have written.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use muster_topics::diagnostic::Diagnostic;
use nix::{errno::Errno, libc::O_NOFOLLOW};

use crate::clock;

/// Mode of files that only their owner may read: keys, stores, tokens.
pub const SECRET_MODE: u32 = 0o600;
/// Mode of files that everybody may read.
pub const PUBLIC_MODE: u32 = 0o644;
/// Mode of a folder that only its owner may enter.
pub const PRIVATE_FOLDER: u32 = 0o700;
/// Mode of a folder that others may pass through but not list.
pub const PASSABLE_FOLDER: u32 = 0o711;

/// Creates a folder and its missing parents with this mode. An existing folder is not changed.
///
/// # Errors
/// If it cannot be created.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match make_one(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).ok_or(error)?;
            make_folder(above, mode)?;
            make_one(path, mode)
        }
        made => made,
    }
}

/// Creates a folder in an existing one.
fn make_one(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            // The umask may have removed permissions that the folder needs. On mounts without modes this has no effect.
            let made = fs::metadata(path)?.permissions().mode();
            if made & mode != mode {
                let _ = fs::set_permissions(path, Permissions::from_mode(made | mode));
            }
            Ok(())
        }
    }
}

/// Mode of a folder that contains files of workloads. As root, workloads may run as other users, who must be able to
/// pass through it; secrets inside have modes of their own.
#[must_use]
pub fn workloads_folder() -> u32 {
    if nix::unistd::geteuid().is_root() { PASSABLE_FOLDER } else { PRIVATE_FOLDER }
}

/// Replaces the content of `path` atomically: writes a new file beside it, syncs it, renames it to `path`, and syncs
/// the folder.
///
/// # Errors
/// If a step fails; `path` is then unchanged.
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace_file(path, mode, |file| file.write_all(content).and_then(|()| file.sync_all()))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// As [`write_atomically`], but without syncs, for files that need not survive a crash of the machine.
///
/// # Errors
/// If a step fails; `path` is then unchanged.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace_file(path, mode, |file| file.write_all(content))
}

/// How often, and how far apart, a new file that somebody else writes is tried: 30 seconds altogether, which a slow disk may
/// take to sync. Whoever has it after that is no writer.
const NEW_FILE_TRIES: u32 = 3_000;
const NEW_FILE_PAUSE: Duration = Duration::from_millis(10);

/// Opens an empty file that this caller alone writes: a console and a verb that works on its folder would write the same new
/// file, and one would rename it away from under the other. The lock is that of the new file, not of the folder: whoever may
/// list a folder can lock it, for as long as they like.
fn open_new(path: &Path, mode: u32) -> io::Result<File> {
    for _ in 0..NEW_FILE_TRIES {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(SECRET_MODE).custom_flags(O_NOFOLLOW);
        let file = match options.open(path) {
            Ok(file) => file,
            // A link, or a file of another user.
            Err(_) => {
                let _ = fs::remove_file(path);
                options.create_new(true).open(path)?
            }
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                thread::sleep(NEW_FILE_PAUSE);
                continue;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Another writer may have renamed it meanwhile.
        let ours = file.metadata()?;
        if fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino())) {
            file.set_len(0)?;
            set_mode(&file, mode)?;
            return Ok(file);
        }
    }
    let _ = fs::remove_file(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(SECRET_MODE).open(path)?;
    set_mode(&file, mode)?;
    Ok(file)
}

/// Gives a file exactly this mode, which the umask may have changed.
fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    let found = file.metadata()?.permissions().mode() & 0o7777;
    if found == mode { Ok(()) } else { file.set_permissions(Permissions::from_mode(mode)) }
}

/// Writes a new file and renames it to `path`.
fn replace_file(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| io::Error::other("expected a file name"))?;
    let beside = folder.join(format!(".{}.new", name.to_string_lossy()));
    let mut file = open_new(&beside, mode)?;
    let written = write(&mut file).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Takes a lock for as long as the returned file lives, however the process ends; `None` if somebody has it.
///
/// **Invariant: only the owner can open a lock file.** Whoever can open one can take the lock.
///
/// # Errors
/// If the file cannot be created or locked, or belongs to another user.
pub fn take_lock(path: &Path) -> io::Result<Option<File>> {
    let file = match open_private(path) {
        // A file system that is read-only now has the file of an earlier run.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path)?,
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes a lock as [`take_lock`], and waits until nobody else has it.
///
/// # Errors
/// As [`take_lock`].
pub fn wait_for_lock(path: &Path) -> io::Result<File> {
    let file = open_private(path)?;
    file.lock()?;
    Ok(file)
}

/// Creates a file with a mode that only lets its owner read it, or sets that mode if the file exists. Needed for
/// stores: SQLite creates files that everybody can read, and gives its additional files the mode of the store.
///
/// # Errors
/// If it cannot be created, or belongs to another user.
pub fn make_private(path: &Path) -> io::Result<()> {
    open_private(path).map(drop).map_err(|error| of_file(path, error))
}

/// An error with its file.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
struct FileError {
    path: String,
    source: io::Error,
}

/// Adds the file to an error of the operating system.
fn of_file(path: &Path, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), FileError { path: path.display().to_string(), source })
}

/// Opens a file that only its owner can open, and creates it if it is missing.
fn open_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(SECRET_MODE).open(path)?;
    set_mode(&file, SECRET_MODE)?;
    Ok(file)
}

/// The kind of an entry in a role's own folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleFile {
    /// A file.
    File,
    /// A file that its role reads, and makes anew if it is missing. One that cannot be read is of no use to it.
    RenewedFile,
    /// A folder.
    Folder,
}

impl RoleFile {
    /// What is wrong with the entry at a path; `None` if it can be used, or is missing.
    fn fault(self, path: &Path) -> Option<String> {
        // A symbolic link is followed: an administrator may have put it there.
        match (self, fs::metadata(path)) {
            (Self::Folder, Ok(found)) if !found.is_dir() => Some("the path is a file instead of a folder".to_owned()),
            (Self::File | Self::RenewedFile, Ok(found)) if found.is_dir() => {
                Some("the path is a folder instead of a file".to_owned())
            }
            (Self::RenewedFile, _) => {
                let read = patiently(|| File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink())));
                read.err().filter(is_unreadable).map(|error| format!("a file cannot be read: {error}"))
            }
            _ => None,
        }
    }
}

/// How often, and how far apart, a file is read that gives an error: a bus that was reset gives some.
const READ_TRIES: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(200);

/// Reads a file of a role's own, several times if it cannot be read ([`is_unreadable`]).
///
/// # Errors
/// If it cannot be read in the end.
pub fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    patiently(|| fs::read(path))
}

/// Does something that reads, several times if that cannot be read.
fn patiently<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..READ_TRIES {
        match read() {
            Err(error) if is_unreadable(&error) => thread::sleep(READ_PAUSE),
            done => return done,
        }
    }
    read()
}

/// Whether an error says that a file, or the disk below it, cannot be read, rather than that this process may not or has no
/// means to: it will not be different for the next one.
#[must_use]
pub fn is_unreadable(error: &io::Error) -> bool {
    use Errno::{EBADMSG, EILSEQ, EIO, ELOOP, ENODATA, ENODEV, ENXIO, EREMOTEIO, ESTALE, EUCLEAN};
    let with_file = || error.get_ref()?.downcast_ref::<FileError>()?.source.raw_os_error();
    error.raw_os_error().or_else(with_file).is_some_and(|code| {
        [EBADMSG, EILSEQ, EIO, ELOOP, ENODATA, ENODEV, ENXIO, EREMOTEIO, ESTALE, EUCLEAN]
            .contains(&Errno::from_raw(code))
    })
}

/// Makes sure that entries of a role's own folder can be used: one that cannot, such as a folder in place of a file, is
/// renamed, with an error in the log. The role then behaves as if the entry were missing.
///
/// # Errors
/// If an entry cannot be renamed.
pub fn clear_places(folder: &Path, kind: RoleFile, names: &[&str]) -> io::Result<()> {
    for name in names {
        let path = folder.join(name);
        let Some(fault) = kind.fault(&path) else { continue };
        let aside = set_aside(&path).map_err(|error| of_file(&path, error))?;
        tracing::error!(
            path = %path.display(), aside = %aside.display(),
            consequence = "it is set aside",
            hint = "find out what it is, and check the disk; if it is not needed, delete it",
            "{fault}",
        );
    }
    Ok(())
}

/// Renames an entry to an unused name beside it, which is returned.
///
/// # Errors
/// If it cannot be renamed.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut at_ms = clock::now_ms();
    let aside = loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{at_ms}"));
        let aside = PathBuf::from(name);
        if aside.symlink_metadata().is_err() {
            break aside;
        }
        at_ms += 1;
    };
    fs::rename(path, &aside)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))?;
    Ok(aside)
}

/// Syncs a folder, so that renames and new files in it survive a power failure.
///
/// # Errors
/// If the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Reads a file that a user provides: a document, a configuration, a secret. See [`text`].
///
/// # Errors
/// If it cannot be read, or is not UTF-8 text.
pub fn read_text(path: &Path) -> io::Result<String> {
    fs::read(path).and_then(text)
}

/// Decodes a text that a user provides, from any operating system: UTF-8 with or without a byte order mark, with lines
/// that end in a line feed, optionally preceded by a carriage return.
///
/// # Errors
/// If it is not UTF-8.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    let wrong = |why: Diagnostic| io::Error::new(io::ErrorKind::InvalidData, why.into_error());
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(wrong(Diagnostic::new("it is UTF-16").with_hint("save it as UTF-8")));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not text in UTF-8".into()))?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    Ok(if text.contains("\r\n") { text.replace("\r\n", "\n") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_with_their_mode() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        make_folder(&below, PASSABLE_FOLDER).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&below), mode(below.parent().unwrap())), (PASSABLE_FOLDER, PASSABLE_FOLDER));
        // An existing folder is not changed.
        make_folder(&below, 0o777).unwrap();
        assert_eq!(mode(&below), PASSABLE_FOLDER);
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(make_folder(&folder.path().join("file"), PRIVATE_FOLDER).is_err());
        assert!(make_folder(&folder.path().join("file/c"), PRIVATE_FOLDER).is_err());
    }

    #[test]
    fn file_that_several_replace_at_once_is_always_that_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("register");
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..200 {
                        replace(path, &[writer; 5_000], SECRET_MODE).unwrap();
                        let content = fs::read(path).unwrap();
                        assert!(content.len() == 5_000 && content.iter().all(|byte| *byte == content[0]));
                    }
                });
            }
        });
    }

    #[test]
    fn lock_is_the_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        let first = take_lock(&path).unwrap();
        assert!(first.is_some() && take_lock(&path).unwrap().is_none());
        assert_eq!(mode(), SECRET_MODE);
        drop(first);
        for earlier in [0o666, 0o644, 0o200] {
            fs::set_permissions(&path, Permissions::from_mode(earlier)).unwrap();
            assert!(take_lock(&path).unwrap().is_some());
            assert_eq!(mode(), SECRET_MODE);
        }
    }

    #[test]
    fn file_is_replaced_while_somebody_has_the_lock_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = File::open(folder.path()).unwrap();
        theirs.lock().unwrap();
        let (path, (done, replaced)) = (folder.path().join("file"), std::sync::mpsc::channel());
        let writer = path.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                write_atomically(&writer, b"text", PUBLIC_MODE).unwrap();
                // So have they that of the file before.
                done.send(File::open(&writer).map(|file| file.lock().map(|()| file)).unwrap().unwrap()).unwrap();
            }
        });
        let _locked: Vec<File> =
            (0..2).map(|_| replaced.recv_timeout(Duration::from_secs(20)).expect("it waits for the lock")).collect();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, PUBLIC_MODE);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn link_in_place_of_the_new_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("theirs"), "kept").unwrap();
        std::os::unix::fs::symlink(at("theirs"), at(".file.new")).unwrap();
        write_atomically(&at("file"), b"text", SECRET_MODE).unwrap();
        assert_eq!(
            (fs::read(at("theirs")).unwrap(), fs::read(at("file")).unwrap()),
            (b"kept".to_vec(), b"text".to_vec())
        );
        // What a writer left that was killed.
        fs::write(at(".file.new"), "left over, and longer").unwrap();
        write_atomically(&at("file"), b"new", SECRET_MODE).unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert_eq!(fs::metadata(at("file")).unwrap().permissions().mode() & 0o7777, SECRET_MODE);
    }

    #[test]
    fn folder_in_place_of_a_file_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("store")).unwrap();
        fs::write(at("store").join("inside"), "x").unwrap();
        fs::write(at("whole"), "y").unwrap();
        fs::write(at("units"), "z").unwrap();
        fs::create_dir(at("linked")).unwrap();
        fs::write(at("linked/file"), "linked").unwrap();
        std::os::unix::fs::symlink(at("linked/file"), at("link")).unwrap();
        clear_places(folder.path(), RoleFile::File, &["store", "whole", "link", "missing"]).unwrap();
        clear_places(folder.path(), RoleFile::Folder, &["units", "linked"]).unwrap();
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> =
            names.map(|name| name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()).collect();
        names.sort();
        assert_eq!(names, ["link", "linked", "store.damaged-", "units.damaged-", "whole"]);
        write_atomically(&at("store"), b"new", SECRET_MODE).unwrap();
        assert_eq!(fs::read(at("link")).unwrap(), b"linked");
    }

    #[test]
    fn file_that_cannot_be_read_is_set_aside_where_it_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // At the first address of a process there is nothing: each read is an error of input. A link to itself cannot be opened.
        std::os::unix::fs::symlink("/proc/self/mem", at("bad")).unwrap();
        std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
        fs::write(at("whole"), "y").unwrap();
        let names = ["bad", "loop", "whole", "missing"];
        clear_places(folder.path(), RoleFile::File, &names).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(is_unreadable(&make_private(&at("loop")).unwrap_err()));
        clear_places(folder.path(), RoleFile::RenewedFile, &names).unwrap();
        let is_there = |name: &str| at(name).symlink_metadata().is_ok();
        assert_eq!(names.map(is_there), [false, false, true, false]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "what was set aside is kept");
    }

    #[test]
    fn byte_order_marks_and_line_ends_are_normalised() {
        for (bytes, wanted) in [
            (&b"a\nb\n"[..], "a\nb\n"),
            (b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "a: 1\nb: 2\n"),
            (b"\xef\xbb\xbf", ""),
            (b"", ""),
            // A carriage return without a line feed is part of the text, and so is a mark that is not at the beginning.
            (b"a\rb \xef\xbb\xbf", "a\rb \u{feff}"),
        ] {
            assert_eq!(text(bytes.to_vec()).unwrap(), wanted, "{bytes:?}");
        }
        for (bytes, words) in [(&b"\xff\xfea\0"[..], "UTF-16"), (b"\xfe\xff\0a", "UTF-16"), (b"a\xff", "UTF-8")] {
            let error = text(bytes.to_vec()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, b"\xef\xbb\xbfsecret\r\n").unwrap();
        assert_eq!(read_text(&path).unwrap().trim(), "secret");
    }
}
