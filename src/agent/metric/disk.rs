//! File systems: chooses which mounts are measured, and measures how full each is.
//!
//! **Invariant: each file system is measured separately.** One that hangs (a lost network mount, a stopped FUSE server) shows as
//! unresponsive, and affects no other. The list comes from `/proc/self/mountinfo`, which never
//! asks a file system.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{blocking_timeout::BlockingProbes, filesystem::FileSystemSpace, procfs::ProcReader};

/// The most file systems that are reported; a host with more has them from something that creates them by the dozen.
const DISKS_MAX: usize = 32;
/// `/proc/self/mountinfo` has some 100 bytes for each mount; hosts with many containers have thousands.
const MOUNTS_MAX_BYTES: usize = 1024 * 1024;
/// The most mounts of one file system that are tried: a folder is needed, and bind mounts of single files may come
/// first.
const MOUNTS_TRIED: usize = 8;
/// File systems without a block device that can fill up all the same: network file systems, and ZFS, whose pools have
/// names. File systems in user space, `fuse` and `fuse.…`, are handled separately.
const WITHOUT_DEVICE: [&str; 9] = ["9p", "ceph", "cifs", "lustre", "nfs", "nfs4", "smb3", "virtiofs", "zfs"];
/// User-space file systems that only show other data. Others show images (`squashfuse`), which no name tells: see
/// [`ImageFilter`].
const VIEWS: [&str; 3] = ["fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse"];

/// One file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskUsage {
    /// Its mount point.
    pub(super) mount: String,
    /// Its usage; `None` if it did not respond in time.
    pub(super) space: Option<FileSystemSpace>,
}

/// A writable file system with its mount points, the shortest first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileSystem {
    /// Its device number, `major:minor`.
    device: String,
    mounts: Vec<String>,
    /// Whether a program of user space keeps it.
    is_fuse: bool,
}

/// Leaves out images that a program of user space shows, mounted for writing though nobody can write to them: not one block or inode of
/// them is free, nor ever was. A real one that is as full was seen with room before, or is the root.
#[derive(Debug, Default)]
struct ImageFilter {
    /// The devices that had room since the agent has started.
    had_room: BTreeSet<String>,
}

impl ImageFilter {
    /// Whether a file system is measured.
    fn keeps(&mut self, one: &FileSystem, (mount, space): (&str, &FileSystemSpace)) -> bool {
        if !space.is_exhausted {
            self.had_room.insert(one.device.clone());
            return true;
        }
        !one.is_fuse || mount == "/" || self.had_room.contains(&one.device)
    }

    /// Forgets file systems that are there no more.
    fn retain(&mut self, present: &[FileSystem]) {
        self.had_room.retain(|device| present.iter().any(|one| one.device == *device));
    }
}

/// Measures all file systems repeatedly.
#[derive(Debug)]
pub(super) struct DiskSampler {
    looks: BlockingProbes<Option<(String, FileSystemSpace)>>,
    images: ImageFilter,
    reader: ProcReader,
}

impl DiskSampler {
    /// Creates it before the first measurement.
    pub(super) fn new() -> Self {
        let (images, reader) = (ImageFilter::default(), ProcReader::default());
        Self { looks: BlockingProbes::at("a file system"), images, reader }
    }

    /// Measures all file systems, in the order of their mount points.
    pub(super) async fn measure(&mut self) -> Vec<DiskUsage> {
        let mountinfo = self.reader.read("/proc/self/mountinfo", MOUNTS_MAX_BYTES).unwrap_or_default();
        let mut found = file_systems(mountinfo);
        found.truncate(DISKS_MAX);
        let questions = found.iter().map(|FileSystem { device, mounts, .. }| {
            let mounts = mounts.clone();
            (device.clone(), move || measure(mounts))
        });
        let answers = self.looks.take(questions.collect()).await;
        self.images.retain(&found);
        let disks = found.into_iter().filter_map(|one| match answers.get(&one.device).and_then(Option::as_ref) {
            Some(answer) => answer
                .clone()
                .filter(|(mount, space)| self.images.keeps(&one, (mount, space)))
                .map(|(mount, space)| DiskUsage { mount, space: Some(space) }),
            None => one.mounts.into_iter().next().map(|mount| DiskUsage { mount, space: None }),
        });
        let mut disks: Vec<_> = disks.collect();
        disks.sort_by(|a, b| a.mount.cmp(&b.mount));
        disks
    }
}

/// Measures a file system at the first of its mount points that is a folder.
fn measure(mounts: Vec<String>) -> Option<(String, FileSystemSpace)> {
    let mount = mounts.into_iter().find(|mount| Path::new(mount).is_dir())?;
    let space = FileSystemSpace::of(Path::new(&mount))?;
    Some((mount, space))
}

/// Parses the file systems that can fill up from `/proc/self/mountinfo` (see proc_pid_mountinfo(5)), the one with the
/// shortest path first. Read-only ones cannot fill up: images are made to fit.
fn file_systems(mountinfo: &str) -> Vec<FileSystem> {
    // A later mount at the same place hides the earlier one.
    let visible: BTreeMap<String, MountLine<'_>> = mountinfo.lines().filter_map(MountLine::parse).collect();
    let mut found: BTreeMap<String, (Vec<String>, bool)> = BTreeMap::new();
    for (path, mount) in visible {
        if mount.is_disk(&path) && !mount.is_read_only {
            let (mounts, is_fuse) = found.entry(mount.device.to_owned()).or_default();
            mounts.push(path);
            *is_fuse |= mount.is_fuse();
        }
    }
    let mut found: Vec<_> = found
        .into_iter()
        .map(|(device, (mut mounts, is_fuse))| {
            mounts.sort_by_key(|mount| (mount.len(), mount.clone()));
            mounts.truncate(MOUNTS_TRIED);
            FileSystem { device, mounts, is_fuse }
        })
        .collect();
    found.sort_by_key(|one| one.mounts.first().map(|mount| (mount.len(), mount.clone())));
    found
}

/// One line of `mountinfo`, without its path.
#[derive(Debug)]
struct MountLine<'a> {
    device: &'a str,
    kind: &'a str,
    /// The mount's source.
    source: &'a str,
    /// Whether the file system itself is read-only, and not only this mount of it.
    is_read_only: bool,
}

impl<'a> MountLine<'a> {
    fn parse(line: &'a str) -> Option<(String, Self)> {
        let (about_mount, about_file_system) = line.split_once(" - ")?;
        let mut fields = about_mount.split(' ');
        let (device, path) = (fields.nth(2)?, fields.nth(1)?);
        let mut fields = about_file_system.split(' ');
        let (kind, source, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_read_only = options.split(',').any(|option| option == "ro");
        Some((unescape(path), Self { device, kind, source, is_read_only }))
    }

    /// Whether its usage concerns a disk, or a share of one. File systems in memory (`tmpfs`) or of the kernel (`proc`)
    /// have no device: their major number is 0, and their source is a word.
    fn is_disk(&self, path: &str) -> bool {
        let has_device = !self.device.starts_with("0:") || self.source.starts_with("/dev/");
        match self.kind {
            // In a container the root is an overlay, the only one of its own.
            "overlay" => path == "/",
            kind if self.is_fuse() => !VIEWS.contains(&kind),
            kind => has_device || WITHOUT_DEVICE.contains(&kind),
        }
    }

    /// Whether a program of user space keeps it. (`fuseblk` has a device, and fills up as any other.)
    fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }
}

/// Decodes a path: the kernel writes space, tab, line break and backslash as three octal digits.
pub(super) fn unescape(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_disks_are_found_once_each() {
        let mountinfo = "\
            22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
            23 22 0:21 / /proc rw - proc proc rw\n\
            24 22 8:2 / /data rw - xfs /dev/sdb1 rw\n\
            25 22 8:1 /srv /chroot/srv ro,relatime - ext4 /dev/sda1 rw\n\
            26 22 7:0 / /snap/core ro - squashfs /dev/loop0 ro\n\
            27 22 7:1 / /image ro - erofs /dev/loop1 ro,user_xattr\n\
            28 22 0:45 / /var/lib/containers/merged rw - overlay overlay rw\n\
            29 22 0:46 / /mnt/my\\040share rw - fuse.sshfs host:/ rw,user_id=0\n\
            30 22 0:47 / /run rw - tmpfs tmpfs rw\n\
            34 22 0:50 /@home /home rw - btrfs /dev/sdc1 rw,subvol=/@home\n\
            36 22 0:52 / /mnt/bind rw - fuse /srv rw\n\
            35 22 0:51 / /lxcfs rw - fuse.lxcfs lxcfs rw\n\
            31 22 0:48 / /auto rw - autofs systemd-1 rw\n\
            32 22 0:49 / /auto rw - nfs4 server:/ rw\n\
            33 22 8:5 /file /etc/hosts rw - ext4 /dev/sda5 rw\n\
            cut off 8:6";
        let found: Vec<_> = file_systems(mountinfo).into_iter().map(|one| (one.device, one.mounts)).collect();
        let found: Vec<_> =
            found.iter().map(|(device, mounts)| (&**device, mounts.iter().map(|m| &**m).collect::<Vec<_>>())).collect();
        assert_eq!(
            found,
            [
                ("8:1", vec!["/", "/chroot/srv"]),
                ("0:49", vec!["/auto"]),
                ("8:2", vec!["/data"]),
                ("0:50", vec!["/home"]),
                ("0:52", vec!["/mnt/bind"]),
                ("8:5", vec!["/etc/hosts"]),
                ("0:46", vec!["/mnt/my share"]),
            ]
        );
        let in_container = "1 0 0:40 / / rw - overlay overlay rw,lowerdir=a\n2 1 0:41 / /run/a rw - overlay overlay rw";
        assert_eq!(file_systems(in_container).len(), 1);
        // A file is not a folder, so nothing is measured there.
        assert_eq!(measure(vec!["/proc/self/status".to_owned()]), None);
    }

    #[test]
    fn image_that_never_had_room_is_not_measured() {
        let mountinfo = "1 0 0:46 / /image rw - fuse.squashfuse squashfuse rw,user_id=0\n\
                         2 0 0:47 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw\n\
                         3 0 8:1 / /data rw - xfs /dev/sda1 rw";
        let found = file_systems(mountinfo);
        let space =
            |is_exhausted| FileSystemSpace { total_bytes: 1, used_bytes: 1, inodes: Some((1, 1)), is_exhausted };
        let mut images = ImageFilter::default();
        let mut kept = |is_exhausted| -> Vec<&str> {
            let keeps = |one: &&FileSystem| images.keeps(one, (&one.mounts[0], &space(is_exhausted)));
            found.iter().filter(keeps).map(|one| &*one.mounts[0]).collect()
        };
        assert_eq!(kept(true), ["/", "/data"], "disks that are full when the agent starts are full");
        assert_eq!(kept(false), ["/", "/data", "/image"]);
        assert_eq!(kept(true), ["/", "/data", "/image"], "it had room");
        images.retain(&[]);
        assert_eq!(images.had_room.len(), 0);
    }

    #[tokio::test]
    async fn the_disks_of_this_machine_are_plausible() {
        let disks = DiskSampler::new().measure().await;
        let root = disks.iter().find(|disk| disk.mount == "/").and_then(|disk| disk.space).expect("the root");
        assert!(root.total_bytes > 1 << 20 && root.used_bytes > 0 && root.used_bytes <= root.total_bytes, "{root:?}");
        assert!(root.inodes.is_none_or(|(all, used)| 0 < used && used <= all), "{root:?}");
        assert!(disks.iter().all(|disk| !disk.mount.starts_with("/proc") && !disk.mount.starts_with("/dev")));
    }
}
