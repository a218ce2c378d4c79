//! Root file systems: one folder for each digest, unpacked once, from which any number of containers are created.
//!
//! `tar` unpacks them (gzip, xz and zstd as far as it supports them), in a process of its own, to save the agent's memory. It refuses
//! paths that go up (`..`), takes absolute ones as relative, and follows no link that it has unpacked itself out of the folder.
//! Devices are left out: a container has a `/dev` of its own, and may create none. Whiteout files (`.wh.…`, in a layer of an
//! image) are unpacked as ordinary files: a layer is not a root file system.
//!
//! **Invariant: a folder named after a digest is complete**: it is unpacked under another name, synced and renamed.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use muster_base::{
    files::{PRIVATE_FOLDER, make_folder, sync_folder},
    mount::remove_folder,
};
use muster_rules::plan::Failure;
use muster_topics::{diagnostic::Diagnostic, name::Digest};
use tempfile::TempDir;

use super::tool;
use crate::unit::{
    failure::{blocking, may_heal, never},
    folders,
};

const IMAGES: &str = ".images";
const ROOT: &str = "rootfs";
/// The prefix of images that are being unpacked.
const NEW_PREFIX: &str = ".new-";

/// Messages of `tar` when the disk is full.
const DISK_IS_FULL: [&str; 2] = ["No space left on device", "Wrote only"];

/// The timeout of unpacking: generous, for slow disks. (10 GB at 10 MB/s take 17 minutes.)
const UNPACK_MAX: Duration = Duration::from_secs(3_600);

/// How long an image is kept after the last unit that needs it was removed, as an artifact is; also how long an
/// interrupted one is.
pub(super) const UNUSED_KEPT: Duration = Duration::from_secs(24 * 3_600);

/// Mount points that LXC needs.
const NEEDED: [&str; 3] = ["dev", "proc", "sys"];

fn images(path: &Path) -> PathBuf {
    path.join(IMAGES)
}

/// The root file system of a digest.
pub(super) fn root(path: &Path, sha256: &Digest) -> PathBuf {
    images(path).join(sha256.as_str()).join(ROOT)
}

/// Whether it is unpacked.
pub(super) fn is_there(path: &Path, sha256: &Digest) -> bool {
    root(path, sha256).is_dir()
}

/// Unpacks it.
pub(super) async fn bring(path: &Path, sha256: &Digest, file: &Path) -> Result<(), Failure> {
    let images = images(path);
    let failed = |error: io::Error| may_heal(format!("{} cannot be used: {error}", images.display()));
    make_folder(&images, PRIVATE_FOLDER).map_err(failed)?;
    let beside = tempfile::Builder::new().prefix(NEW_PREFIX).tempdir_in(&images).map_err(failed)?;
    let root = beside.path().join(ROOT);
    fs::create_dir(&root)
        .and_then(|()| fs::set_permissions(&root, fs::Permissions::from_mode(0o755)))
        .map_err(failed)?;
    unpack(file, &root).await?;
    let at = images.join(sha256.as_str());
    blocking(move || {
        let left_out = prepare(&root).map_err(|error| may_heal(format!("the root file system: {error}")))?;
        if left_out > 0 {
            tracing::info!(left_out, "devices in a root file system are left out");
        }
        keep(beside, &at).map_err(|error| may_heal(format!("cannot create {}: {error}", at.display())))
    })
    .await
}

async fn unpack(file: &Path, root: &Path) -> Result<(), Failure> {
    let version = tool::run("tar", &["--version".as_ref()], UNPACK_MAX).await?;
    if !version.stdout.contains("GNU tar") {
        return Err(never("unpacking a root file system needs GNU tar, which this host does not have"));
    }
    let options = [
        "--extract",
        "--numeric-owner",
        "--same-owner",
        "--preserve-permissions",
        "--delay-directory-restore",
        // Including file capabilities; other attributes depend on the file system.
        "--xattrs",
        "--xattrs-include=security.capability",
        "--warning=no-timestamp",
        "--warning=no-unknown-keyword",
        "--file",
    ];
    let mut args: Vec<&OsStr> = options.map(OsStr::new).to_vec();
    args.extend([file.as_os_str(), OsStr::new("--directory"), root.as_os_str()]);
    let ran = tool::run("tar", &args, UNPACK_MAX).await?;
    if ran.ok {
        return Ok(());
    }
    let why = ran.why_but("Removing leading");
    // Somebody may free disk space.
    if ran.says(&DISK_IS_FULL) {
        return Err(may_heal(
            Diagnostic::new(format_args!("the disk is too full for the root file system: {why}"))
                .with_hint("free space on it"),
        ));
    }
    Err(never(format!("it is not a valid root file system: {why}")))
}

/// Removes device files and creates LXC's mount points; returns how many devices there were.
fn prepare(root: &Path) -> io::Result<usize> {
    let mut left_out = 0;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Links are not followed.
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_block_device() || kind.is_char_device() {
                fs::remove_file(entry.path())?;
                left_out += 1;
            }
        }
    }
    for name in NEEDED {
        match fs::create_dir(root.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(left_out)
}

/// Syncs what was unpacked, and renames it to its final name.
fn keep(beside: TempDir, at: &Path) -> io::Result<()> {
    nix::unistd::syncfs(File::open(beside.path())?)?;
    match fs::rename(beside.path(), at) {
        // Another task was faster.
        Err(_) if at.is_dir() => return Ok(()),
        renamed => renamed?,
    }
    // It was renamed, so there is nothing to remove.
    drop(beside.keep());
    at.parent().map_or(Ok(()), sync_folder)
}

/// Removes images that were not needed for a day, and interrupted ones.
pub(super) fn sweep(path: &Path, needed: &BTreeSet<Digest>) -> io::Result<()> {
    let images = images(path);
    let now = SystemTime::now();
    for name in folders::names(&images)? {
        let at = images.join(&name);
        if name.parse().is_ok_and(|sha256| needed.contains(&sha256)) {
            File::open(&at)?.set_modified(now)?;
        } else if now.duration_since(fs::metadata(&at)?.modified()?).unwrap_or_default() > UNUSED_KEPT {
            tracing::info!(image = name, "an unused root file system is deleted");
            remove_folder(&at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn digest() -> Digest {
        Digest::of(b"image")
    }

    /// Creates a tarball with GNU tar, which accepts any name.
    fn tarball(folder: &Path, args: &[&str]) -> PathBuf {
        let file = folder.join("image.tar");
        let packed =
            std::process::Command::new("tar").current_dir(folder).arg("-P").arg("-cf").arg(&file).args(args).status();
        assert!(packed.unwrap().success());
        file
    }

    #[tokio::test]
    async fn a_root_file_system_is_unpacked_whole() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("bin")).unwrap();
        fs::write(tree.join("bin/program"), "x").unwrap();
        fs::set_permissions(tree.join("bin/program"), fs::Permissions::from_mode(0o4755)).unwrap();
        symlink("/etc/passwd", tree.join("link")).unwrap();
        let file = tarball(folder.path(), &["--gzip", "-C", "tree", "."]);
        let path = folder.path().join("lxc");
        assert!(!is_there(&path, &digest()));
        bring(&path, &digest(), &file).await.unwrap();
        assert!(is_there(&path, &digest()));
        let root = root(&path, &digest());
        assert_eq!(fs::metadata(root.join("bin/program")).unwrap().permissions().mode() & 0o7777, 0o4755);
        assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert!(NEEDED.iter().all(|name| root.join(name).is_dir()));
        // Again, as if requested twice at once; and nothing else remains.
        bring(&path, &digest(), &file).await.unwrap();
        assert_eq!(folders::names(&images(&path)).unwrap(), [digest().to_string()]);
        // It is kept while it is needed, and for a day after that.
        let long_ago = SystemTime::now() - UNUSED_KEPT * 2;
        let age = || File::open(images(&path).join(digest().as_str())).unwrap().set_modified(long_ago).unwrap();
        age();
        sweep(&path, &[digest()].into()).unwrap();
        sweep(&path, &BTreeSet::new()).unwrap();
        assert!(is_there(&path, &digest()));
        age();
        sweep(&path, &BTreeSet::new()).unwrap();
        assert!(!is_there(&path, &digest()));
    }

    #[tokio::test]
    async fn paths_outside_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, path) = (folder.path().join("in"), folder.path().join("lxc"));
        fs::create_dir(&inside).unwrap();
        fs::write(folder.path().join("secret"), "mine").unwrap();
        fs::write(inside.join("file"), "x").unwrap();
        // A name that leads out of the folder.
        let file = tarball(folder.path(), &["in/../secret"]);
        let failure = bring(&path, &digest(), &file).await.unwrap_err();
        assert!(failure.error.cause.contains("Member name contains '..'") && !failure.may_heal, "{}", failure.error);
        // A link that leads out, and a file through that link.
        fs::write(inside.join("owned"), "y").unwrap();
        symlink(folder.path(), folder.path().join("way")).unwrap();
        let file = tarball(folder.path(), &["way", "--transform", "s,^in,way,", "in/owned"]);
        let unpacked = bring(&path, &digest(), &file).await;
        assert!(unpacked.is_err(), "a file went through a link");
        assert!(!folder.path().join("owned").exists());
        // A file that is not a tarball.
        let failure = bring(&path, &digest(), &inside.join("file")).await.unwrap_err();
        assert!(!failure.may_heal, "{}", failure.error);
        assert!(!is_there(&path, &digest()));
        assert_eq!(folders::names(&images(&path)).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn devices_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/file"), "x").unwrap();
        symlink("/dev", folder.path().join("link")).unwrap();
        let node = folder.path().join("deep/null");
        let made = nix::sys::stat::mknod(
            &node,
            nix::sys::stat::SFlag::S_IFCHR,
            nix::sys::stat::Mode::S_IRWXU,
            nix::sys::stat::makedev(1, 3),
        );
        // Without the right to create devices none was unpacked either.
        let count = usize::from(made.is_ok());
        assert_eq!(prepare(folder.path()).unwrap(), count);
        assert!(!node.exists() && folder.path().join("deep/file").exists() && Path::new("/dev/null").exists());
    }
}
