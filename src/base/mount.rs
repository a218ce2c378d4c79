//! Mount points. A folder on which another is mounted is another world, also if both are of one file system (a bind mount):
//! what is below it is not its own.
//!
//! **Invariant: [`remove_folder`] removes nothing that is mounted.** It looks at everything before it removes anything.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use muster_topics::diagnostic::Diagnostic;
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, openat, statx, unlinkat},
    io::Errno,
};

/// How deep a folder may be that is removed. Each level takes two file descriptors and a part of the stack.
const DEPTH_MAX: usize = 256;

/// The most that is read of what the kernel says of an open file: some lines.
const FDINFO_MAX_BYTES: u64 = 4_096;

/// The mount in which a file lies. A mount point lies in what is mounted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId(u64);

impl MountId {
    /// Finds that of an open file or folder.
    ///
    /// # Errors
    /// If the kernel does not say it.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        match ask(&file, c"", AtFlags::EMPTY_PATH)? {
            Some(id) => Ok(id),
            None => Self::of_fdinfo(&file),
        }
    }

    /// Finds that of a name in a folder. A link is not followed.
    ///
    /// # Errors
    /// If nothing is there, or the kernel does not say it.
    pub fn at(folder: impl AsFd, name: &CStr) -> io::Result<Self> {
        match ask(&folder, name, AtFlags::SYMLINK_NOFOLLOW)? {
            Some(id) => Ok(id),
            None => Self::of_fdinfo(openat(&folder, name, LOOK, Mode::empty())?),
        }
    }

    /// Finds that of a path. A link is not followed.
    ///
    /// # Errors
    /// If nothing is there, or the kernel does not say it.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Self::at(CWD, &CString::new(path.as_os_str().as_bytes())?)
    }

    /// Asks a kernel before Linux 5.8.
    fn of_fdinfo(file: impl AsFd) -> io::Result<Self> {
        let mut text = String::new();
        let fdinfo = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
        File::open(fdinfo)?.take(FDINFO_MAX_BYTES).read_to_string(&mut text)?;
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        id.map(Self).ok_or_else(|| io::Error::other("this kernel does not list its mounts"))
    }
}

/// Opens something to look at, whatever it is.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Returns nothing if the kernel is too old.
fn ask(folder: impl AsFd, name: &CStr, flags: AtFlags) -> io::Result<Option<MountId>> {
    match statx(folder, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID) {
        Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Ok(Some(MountId(found.stx_mnt_id))),
        Ok(_) | Err(Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a folder with its content, if it is there. If it is a link, that is removed.
///
/// # Errors
/// If it is no folder, or cannot be removed; and if something is mounted there or below it: then nothing is removed.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let folder = match openat(CWD, &name, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) if path.is_symlink() => return std::fs::remove_file(path),
        opened => opened?,
    };
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mount = MountId::of(openat(CWD, above, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)?;
    let removal = Removal { mount };
    removal.go_through((&folder, path), 0, false)?;
    removal.go_through((&folder, path), 0, true)?;
    match unlinkat(CWD, &name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The removal of a folder that lies in this mount.
struct Removal {
    mount: MountId,
}

impl Removal {
    /// Looks at everything in a folder, or removes it. Others may remove things meanwhile.
    fn go_through(&self, (folder, path): (&OwnedFd, &Path), depth: usize, removes: bool) -> io::Result<()> {
        self.check(MountId::of(folder)?, path)?;
        if depth > DEPTH_MAX {
            let text = format!("{} is more than {DEPTH_MAX} folders deep", path.display());
            return Err(io::Error::other(Diagnostic::new(text).with_hint("remove it by hand").into_error()));
        }
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let inner = || -> PathBuf { path.join(std::ffi::OsStr::from_bytes(name.to_bytes())) };
            let mount = match MountId::at(folder, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            self.check(mount, &inner())?;
            // Some file systems do not say the type with the name.
            let is_folder = match entry.file_type() {
                FileType::Directory | FileType::Unknown => match openat(folder, name, FOLDER, Mode::empty()) {
                    Ok(opened) => Some(opened),
                    Err(Errno::NOENT) => continue,
                    Err(Errno::NOTDIR | Errno::LOOP) => None,
                    Err(errno) => return Err(errno.into()),
                },
                _ => None,
            };
            if let Some(opened) = &is_folder {
                self.go_through((opened, &inner()), depth + 1, removes)?;
            }
            if removes {
                let flags = if is_folder.is_some() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                match unlinkat(folder, name, flags) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }

    fn check(&self, found: MountId, path: &Path) -> io::Result<()> {
        if found == self.mount {
            return Ok(());
        }
        let text = format!("{} is a mount point, so nothing is removed", path.display());
        let told = Diagnostic::new(text).with_hint("unmount it");
        Err(io::Error::new(io::ErrorKind::ResourceBusy, told.into_error()))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, process::Command};

    use super::*;

    #[test]
    fn folder_goes_with_its_content_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("gone/deep/er")).unwrap();
        fs::create_dir(at("stays")).unwrap();
        for name in ["gone/file", "gone/deep/file", "stays/file"] {
            fs::write(at(name), name).unwrap();
        }
        symlink(at("stays"), at("gone/deep/link")).unwrap();
        symlink("stays", at("link")).unwrap();
        remove_folder(&at("gone")).unwrap();
        remove_folder(&at("link")).unwrap();
        remove_folder(&at("never")).unwrap();
        assert!(remove_folder(&at("stays/file")).is_err(), "it is not a folder");
        let deep = at(&format!("deep{}", "/x".repeat(DEPTH_MAX + 1)));
        fs::create_dir_all(deep).unwrap();
        let told = Diagnostic::of_error(&remove_folder(&at("deep")).unwrap_err());
        assert!(told.cause.ends_with("folders deep") && told.hint.is_some(), "{told}");
        remove_folder(&at("deep/x")).unwrap();
        remove_folder(&at("deep")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(at("stays/file")).unwrap(), "stays/file");
    }

    #[test]
    fn old_and_new_kernels_say_the_same_mount() {
        let root = File::open("/").unwrap();
        assert_eq!(MountId::of(&root).unwrap(), MountId::of_fdinfo(&root).unwrap());
        assert_eq!(MountId::at(&root, c"proc").unwrap(), MountId::of_path(Path::new("/proc")).unwrap());
        assert_ne!(MountId::of(&root).unwrap(), MountId::at(&root, c"proc").unwrap());
        assert_eq!(MountId::at(&root, c"no-such-name").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nothing_is_removed_if_a_folder_or_file_of_the_same_file_system_is_mounted_in_it() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        for (mounted, inner) in [("data", "unit/deep/data"), ("data/file", "unit/deep/file"), ("data", "unit")] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::create_dir_all(at("data")).unwrap();
            fs::create_dir_all(at("unit/deep/data")).unwrap();
            fs::write(at("data/file"), "precious").unwrap();
            for name in ["unit/a", "unit/deep/file"] {
                fs::write(at(name), name).unwrap();
            }
            let mount = |argv: &[&str]| Command::new(argv[0]).args(&argv[1..]).status().unwrap().success();
            let (from, to) = (at(mounted), at(inner));
            if !mount(&["mount", "--bind", from.to_str().unwrap(), to.to_str().unwrap()]) {
                return;
            }
            let removed = remove_folder(&at("unit"));
            let unmounted = mount(&["umount", to.to_str().unwrap()]);
            assert_eq!(fs::read_to_string(at("data/file")).unwrap(), "precious", "{inner}");
            assert!(unmounted);
            let told = Diagnostic::of_error(&removed.unwrap_err());
            let is_named = told.cause.contains(&format!("{} is a mount point", to.display()));
            assert!(is_named && told.hint.is_some(), "{told}");
            assert!(at("unit/a").exists() && at("unit/deep/file").exists(), "nothing is removed: {inner}");
            remove_folder(&at("unit")).unwrap();
            assert!(!at("unit").exists() && at("data/file").exists());
        }
    }
}
