//! Performs the steps at a path.
//!
//! **Invariant: a reader finds the old content or the new one.** A file is written beside and renamed. Only if the kernel says that
//! the name is busy, because a file is mounted there, it is written in place.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, OwnedFd},
};

use muster_rules::files::plan::{Attributes, Content, EntryState, Step};
use muster_topics::{diagnostic::Diagnostic, name::Digest};
use rustix::{
    fs::{
        AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fallocate, fchmod, fchown, fgetxattr,
        flistxattr, fsetxattr, fstat, mkdirat, openat, renameat, symlinkat, unlinkat,
    },
    io::Errno,
};

use super::{
    confine::Place,
    examine::{PIECE_BYTES, open_file, open_folder},
};

/// The longest extended attribute, as Linux has it.
const XATTR_MAX_BYTES: usize = 64 * 1024;

/// Extended attributes that a new content keeps: labels, access lists and what users have set. Capabilities belong to the content.
const XATTRS_KEPT: [&str; 4] = ["security.selinux", "security.SMACK64", "system.posix_acl_access", "user."];

/// Opens a content.
pub(super) type ContentOpener<'a> = dyn Fn(&Digest) -> io::Result<io::Take<File>> + 'a;

/// Keeps a copy of a content.
pub(super) type ContentKeeper<'a> = dyn Fn(&File) -> io::Result<()> + 'a;

/// How the steps of a run are performed.
pub(super) struct Writer<'a> {
    pub(super) open: &'a ContentOpener<'a>,
    /// Keeps the present content of a file that is written in place.
    pub(super) keep: &'a ContentKeeper<'a>,
    /// Whether each file is synced by itself; otherwise the caller syncs the file systems at the end.
    pub(super) syncs_each: bool,
}

impl Writer<'_> {
    /// Performs one step, after which the place is as the target says.
    pub(super) fn perform(&self, step: Step, place: &Place, target: &EntryState) -> io::Result<()> {
        match (step, &target.content) {
            (Step::Keep, _) => Ok(()),
            (Step::Write, Content::File(sha256)) => self.write(place, sha256, target.attributes),
            (Step::Link, Content::Link(to)) => self.link(place, to, target.attributes),
            (Step::MakeDirectory, _) => self.make_folder(place, target.attributes),
            (Step::SetAttributes, content) => set_attributes(place, content, target.attributes),
            (Step::RemoveFile, _) => Ok(unlinkat(&place.folder, &*place.name, AtFlags::empty())?),
            (Step::RemoveDirectory, _) => Ok(unlinkat(&place.folder, &*place.name, AtFlags::REMOVEDIR)?),
            (Step::Write | Step::Link, _) => Err(io::Error::other("there is no content for it")),
        }?;
        if self.syncs_each && step != Step::Keep { sync_folder(place) } else { Ok(()) }
    }

    fn write(&self, place: &Place, sha256: &Digest, attributes: Attributes) -> io::Result<()> {
        let source = (self.open)(sha256)?;
        let beside = beside(place);
        remove_leftover(place)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&place.folder, &*beside, flags, Mode::RUSR | Mode::WUSR)?);
        let written = self.write_beside(place, &file, source, (sha256, attributes));
        let replaced = written.and_then(|()| Ok(renameat(&place.folder, &*beside, &place.folder, &*place.name)?));
        match replaced {
            Ok(()) => Ok(()),
            Err(error) => {
                let _ = unlinkat(&place.folder, &*beside, AtFlags::empty());
                match error.raw_os_error() {
                    // Something is mounted there, which nothing says beforehand.
                    Some(code) if code == Errno::BUSY.raw_os_error() => self.write_in_place(place, sha256, attributes),
                    _ => Err(error),
                }
            }
        }
    }

    fn write_beside(
        &self,
        place: &Place,
        file: &File,
        source: io::Take<File>,
        (sha256, attributes): (&Digest, Attributes),
    ) -> io::Result<()> {
        copy(source, file, sha256)?;
        // The owner first, because a change of it takes permissions away.
        own(file, attributes)?;
        if let Ok(old) = open_file(place) {
            keep_xattrs(&old, file);
        }
        fchmod(file, Mode::from_raw_mode(attributes.mode))?;
        if self.syncs_each { file.sync_all() } else { Ok(()) }
    }

    /// Writes over the content of a file, of which a copy is kept. Its room is reserved first, so that a full disk changes
    /// nothing.
    fn write_in_place(&self, place: &Place, sha256: &Digest, attributes: Attributes) -> io::Result<()> {
        (self.keep)(&open_file(place)?)?;
        let source = (self.open)(sha256)?;
        let (before_bytes, size_bytes) = (place.stat()?.map_or(0, |stat| stat.st_size.unsigned_abs()), source.limit());
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = File::from(openat(&place.folder, &*place.name, flags, Mode::empty())?);
        if size_bytes > before_bytes {
            match fallocate(&file, FallocateFlags::empty(), 0, size_bytes) {
                // Some file systems cannot.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => {
                    let _ = file.set_len(before_bytes);
                    return Err(errno.into());
                }
            }
        }
        file.rewind()?;
        copy(source, &file, sha256)?;
        file.set_len(size_bytes)?;
        own(&file, attributes)?;
        fchmod(&file, Mode::from_raw_mode(attributes.mode))?;
        file.sync_all()
    }

    fn link(&self, place: &Place, to: &str, attributes: Attributes) -> io::Result<()> {
        let beside = beside(place);
        remove_leftover(place)?;
        symlinkat(to, &place.folder, &*beside)?;
        let owned = own_at(place, beside.as_ref(), attributes);
        let replaced = owned.and_then(|()| Ok(renameat(&place.folder, &*beside, &place.folder, &*place.name)?));
        if replaced.is_err() {
            let _ = unlinkat(&place.folder, &*beside, AtFlags::empty());
        }
        replaced
    }

    fn make_folder(&self, place: &Place, attributes: Attributes) -> io::Result<()> {
        mkdirat(&place.folder, &*place.name, Mode::RWXU)?;
        let made = open_folder(place)?;
        own(&made, attributes)?;
        Ok(fchmod(&made, Mode::from_raw_mode(attributes.mode))?)
    }
}

/// The name under which the next content of a place is written.
fn beside(place: &Place) -> String {
    let digest = Digest::of(place.name.as_encoded_bytes());
    format!(".muster-{}", digest.as_str().get(..16).unwrap_or_default())
}

/// Removes what a run that was interrupted has written beside a place.
pub(super) fn remove_leftover(place: &Place) -> io::Result<()> {
    match unlinkat(&place.folder, &*beside(place), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies a content, whose hash is compared.
fn copy(mut from: impl Read, mut to: &File, sha256: &Digest) -> io::Result<()> {
    let (mut hash, mut piece) = (ring::digest::Context::new(&ring::digest::SHA256), vec![0; PIECE_BYTES]);
    loop {
        let length = match from.read(&mut piece) {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let read = piece.get(..length).unwrap_or_default();
        hash.update(read);
        to.write_all(read)?;
    }
    match Digest::from_ring(hash.finish()) == *sha256 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            Diagnostic::new("its content in the agent's folder is damaged and is created again")
                .with_hint("check this host's disk")
                .into_error(),
        )),
    }
}

fn set_attributes(place: &Place, content: &Content, attributes: Attributes) -> io::Result<()> {
    let opened: OwnedFd = match content {
        Content::Link(_) => return own_at(place, place.name.as_ref(), attributes),
        Content::Directory => open_folder(place)?,
        _ => open_file(place)?.into(),
    };
    let found = fstat(&opened)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink > 1 {
        return Err(io::Error::other("it has another hard link since, and attributes belong to all of them"));
    }
    own(&opened, attributes)?;
    Ok(fchmod(&opened, Mode::from_raw_mode(attributes.mode))?)
}

/// Sets owner and group, if they differ: only root may.
fn own(of: impl AsFd, attributes: Attributes) -> io::Result<()> {
    let found = fstat(&of)?;
    if (found.st_uid, found.st_gid) == (attributes.uid, attributes.gid) {
        return Ok(());
    }
    Ok(fchown(of, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)))?)
}

fn own_at(place: &Place, name: &std::ffi::OsStr, attributes: Attributes) -> io::Result<()> {
    let found = rustix::fs::statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (found.st_uid, found.st_gid) == (attributes.uid, attributes.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    Ok(chownat(&place.folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Copies extended attributes to a new content, as far as its file system has them.
fn keep_xattrs(old: &File, new: &File) {
    let mut names = vec![0; XATTR_MAX_BYTES];
    let Ok(length) = flistxattr(old, &mut names[..]) else { return };
    let names = names.get(..length).unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let is_kept = XATTRS_KEPT.iter().any(|kept| name.starts_with(kept.as_bytes()));
        let mut value = vec![0; XATTR_MAX_BYTES];
        if let (true, Ok(length)) = (is_kept, fgetxattr(old, name, &mut value[..])) {
            let value = value.get(..length).unwrap_or_default();
            if let Err(error) = fsetxattr(new, name, value, rustix::fs::XattrFlags::empty()) {
                let name = String::from_utf8_lossy(name);
                tracing::debug!(%name, %error, "an extended attribute cannot be preserved");
            }
        }
    }
}

fn sync_folder(place: &Place) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::fsync(openat(&place.folder, ".", flags, Mode::empty())?)?)
}

/// Syncs the whole file system of a place.
pub(super) fn sync_file_system(place: &Place) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::syncfs(openat(&place.folder, ".", flags, Mode::empty())?)?)
}

/// Describes an error of the system, with what to do about it.
pub(super) fn words(error: &io::Error) -> Diagnostic {
    let hint = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "free space on its file system",
        Some(Errno::ROFS) => "its file system is read-only; remount it, or use a path on another one",
        Some(Errno::ACCESS | Errno::PERM) => {
            "the agent has no permission; run it as root, or check whether the file is immutable (`lsattr`)"
        }
        Some(Errno::BUSY) => "it is a mount point; unmount it",
        _ => return Diagnostic::of_error(error),
    };
    Diagnostic::new(error).with_hint(hint)
}
