//! Limits what a container may write: a file system of its own, in a file of that size. All that it writes over its image
//! goes there.
//!
//! | name | what |
//! |---|---|
//! | `disk` | the file, which is sparse |
//! | `room` | where it is mounted, in the container's own mount namespace: invisible on the host |
//!
//! LXC mounts it before it opens the root file system (`lxc.hook.pre-mount`), and the kernel removes mount and loop
//! device with the last process inside. **Invariant: LXC passes that line to a shell, so it contains
//! nothing but paths of the agent's own, without characters that a shell interprets.**

use muster_topics::diagnostic::Diagnostic;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use muster_base::{files, mount::remove_folder};
use muster_rules::plan::Failure;

use super::tool::{self, WORK_MAX};
use crate::unit::failure::{may_heal, never};

const DISK: &str = "disk";
const ROOM: &str = "room";
const MKFS: &str = "mkfs.ext4";

/// Why containers below a folder cannot have a disk limit, if they cannot.
pub(super) fn cannot(path: &Path) -> Option<Diagnostic> {
    let why: Diagnostic = if !is_plain(path) {
        odd(path).into()
    } else if !Path::new("/dev/loop-control").exists() {
        "this host has no loop devices".into()
    } else {
        let program = [MKFS, "mount"].into_iter().find(|program| tool::find(program).is_none())?;
        tool::missing(program).error
    };
    Some(why.within("disk_bytes"))
}

pub(super) fn is_plain(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(byte))
}

fn odd(path: &Path) -> String {
    format!("the folder {} has characters that a shell would interpret", path.display())
}

/// Where changes of a container are written, once its file system is mounted.
pub(super) fn upper(folder: &Path, name: &str) -> PathBuf {
    folder.join(ROOM).join(name)
}

/// Returns the hook that mounts it.
pub(super) fn mount(folder: &Path) -> Result<String, Failure> {
    let program = tool::find("mount").ok_or_else(|| tool::missing("mount"))?;
    if !is_plain(folder) {
        return Err(never(format!("unsupported by lxc: disk_bytes: {}", odd(folder))));
    }
    let (disk, room) = (folder.join(DISK), folder.join(ROOM));
    Ok(format!("{} -t ext4 -o loop,nodev,noatime {} {}", program.display(), disk.display(), room.display()))
}

/// Creates one in a container's folder, with its mount point.
pub(super) async fn make(folder: &Path, bytes: u64) -> Result<(), Failure> {
    let failed = |why: String| may_heal(format!("cannot create a file system of {bytes} bytes: {why}"));
    let (disk, room) = (folder.join(DISK), folder.join(ROOM));
    let create = || {
        let file = File::options().write(true).create(true).truncate(true).mode(files::SECRET_MODE).open(&disk)?;
        file.set_len(bytes)
    };
    create().map_err(|error| failed(error.to_string()))?;
    let options = ["-q", "-F", "-m", "0", "-d"].map(OsStr::new);
    let args: Vec<&OsStr> = options.into_iter().chain([room.as_os_str(), disk.as_os_str()]).collect();
    let ran = tool::run(MKFS, &args, WORK_MAX).await?;
    if !ran.ok {
        return Err(failed(ran.why()));
    }
    let empty = || {
        remove_folder(&room)?;
        fs::create_dir(&room)
    };
    empty().map_err(|error: io::Error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_hook_contains_only_safe_paths() {
        let line = mount(Path::new("/var/lib/muster/lxc/muster.default.shop_1-2")).unwrap();
        assert!(
            line.ends_with("/muster.default.shop_1-2/disk /var/lib/muster/lxc/muster.default.shop_1-2/room"),
            "{line}"
        );
        for path in ["/a b", "/a;b", "/$(id)", "/a'b", "/a\nb", "/ä", "/a*"] {
            assert!(mount(Path::new(path)).unwrap_err().error.cause.contains("a shell would interpret"), "{path}");
            assert!(cannot(Path::new(path)).unwrap().cause.starts_with("disk_bytes: the folder"), "{path}");
        }
    }

    #[tokio::test]
    async fn disk_has_its_size_and_initial_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(upper(folder.path(), "delta")).unwrap();
        make(folder.path(), 8 << 20).await.unwrap();
        assert_eq!(fs::metadata(folder.path().join(DISK)).unwrap().len(), 8 << 20);
        assert!(folder.path().join(ROOM).read_dir().unwrap().next().is_none());
        let failure = make(folder.path(), 1 << 53).await.unwrap_err();
        assert!(failure.error.cause.contains("cannot create"), "{}", failure.error);
    }
}
