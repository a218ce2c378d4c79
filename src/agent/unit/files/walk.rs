//! Looks through a folder that a unit describes as a whole.
//!
//! **Invariant: it stays in its own mount and file system.** What is mounted in the folder, a bind mount of the same file
//! system as well, belongs to somebody else.

use muster_topics::diagnostic::Diagnostic;
use std::{collections::BTreeSet, ffi::CString, path::Path};

use muster_base::mount::MountId;
use rustix::fs::{AtFlags, FileType, fstat, statat};

use super::{
    confine::{Confinement, NoWay},
    examine::{names, open_folder},
    write::words,
};

/// The most files and folders in a folder that is looked through.
pub(super) const WALK_MAX: usize = 100_000;

/// How deep folders are looked through.
const DEPTH_MAX: usize = 64;

/// Something in the folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WalkedPath {
    pub(super) path: String,
    /// The mount in which it lies: the folder's.
    pub(super) mount: MountId,
    /// Whether it is a folder with a mount point somewhere in it, so that it cannot go.
    pub(super) holds_mount: bool,
}

/// Returns everything in a folder, without mount points and what is below those.
///
/// # Errors
/// If it cannot be looked through, or it is unknown what is mounted in it; with the reason, for people.
pub(super) fn walk(confinement: &Confinement, path: &str) -> Result<Vec<WalkedPath>, Diagnostic> {
    let (mut all, mut left) = (Vec::new(), vec![(path.to_owned(), 0)]);
    let (mut own, mut holders) = (None, BTreeSet::new());
    while let Some((folder, depth)) = left.pop() {
        let place = match confinement.open(Path::new(&folder)) {
            Ok(place) => place,
            Err(NoWay::Missing(_)) => continue,
            Err(NoWay::Barred(why)) => return Err(why),
            Err(NoWay::Io(error)) => return Err(words(&error)),
        };
        let Some(stat) = place.stat().map_err(|error| words(&error))? else { continue };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            continue;
        }
        if depth > DEPTH_MAX {
            return Err(format!("{folder} is more than {DEPTH_MAX} folders deep").into());
        }
        let opened = open_folder(&place).map_err(|error| words(&error))?;
        let unknown = |path: &str, error: &std::io::Error| format!("cannot find the mounts at {path}: {error}");
        let found = (MountId::of(&opened).map_err(|error| unknown(&folder, &error))?, device(&opened)?);
        let (mount, device) = *own.get_or_insert(found);
        if found != (mount, device) {
            // Somebody has just mounted something there.
            hold(&mut holders, path, &folder);
            continue;
        }
        for name in names(&place, WALK_MAX).map_err(|error| words(&error))? {
            let inner = format!("{folder}/{name}");
            let Ok(stat) = statat(&opened, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let named = CString::new(name).map_err(|error| error.to_string())?;
            let lies_in = match MountId::at(&opened, &named) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                found => found.map_err(|error| unknown(&inner, &error))?,
            };
            if (lies_in, stat.st_dev) != (mount, device) {
                hold(&mut holders, path, &inner);
                continue;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push((inner.clone(), depth + 1));
            }
            all.push((inner, mount));
        }
        if all.len() > WALK_MAX {
            return Err(format!("it has more than {WALK_MAX} files and folders").into());
        }
    }
    let walked = |(path, mount)| WalkedPath { holds_mount: holders.contains(&path), path, mount };
    Ok(all.into_iter().map(walked).collect())
}

fn device(opened: &std::os::fd::OwnedFd) -> Result<u64, Diagnostic> {
    fstat(opened).map(|stat| stat.st_dev).map_err(|errno| words(&errno.into()))
}

/// Notes a mount point and the folders between it and the one that is looked through.
fn hold(holders: &mut BTreeSet<String>, top: &str, mount_point: &str) {
    let mut at = mount_point;
    while at.len() > top.len() && holders.insert(at.to_owned()) {
        at = at.rsplit_once('/').map_or("", |(above, _)| above);
    }
}
