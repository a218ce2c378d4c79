//! How full file systems are; and, looked at along with them, how warm the machine is.

use std::{collections::BTreeMap, path::Path};

use sysinfo::{DiskRefreshKind, Disks};

use super::heat;

/// The most file systems that are told of; a host with more has them from something that makes them by the dozen.
const DISKS_MAX: usize = 32;
/// File systems that live in memory or inside others.
const UNREAL: [&str; 9] =
    ["aufs", "binfmt_misc", "debugfs", "efivarfs", "fuse.lxcfs", "nsfs", "ramfs", "tracefs", "fuse.portal"];

/// One file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) mount: String,
    pub(super) total_bytes: u64,
    /// All but what is left for ordinary programs.
    pub(super) used_bytes: u64,
    /// How many files there can be, and how many there are; nothing where that has no limit.
    pub(super) inodes: Option<(u64, u64)>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) disks: Vec<Disk>,
    /// The warmest sensor, if there is any.
    pub(super) celsius: Option<f64>,
}

/// How full file systems are now.
pub(super) fn look() -> Found {
    Found { disks: list(), celsius: heat::warmest() }
}

/// All real file systems, each once, under the shortest of its mounts.
fn list() -> Vec<Disk> {
    let Ok(disks) = Disks::new_with_refreshed_list_specifics(DiskRefreshKind::nothing().with_storage()) else {
        return Vec::new();
    };
    let mut found: BTreeMap<String, Disk> = BTreeMap::new();
    for disk in &*disks {
        let file_system = disk.file_system().to_string_lossy();
        // In a container the root is an overlay, and the only one that is its own.
        let real =
            !UNREAL.contains(&&*file_system) && (file_system != "overlay" || disk.mount_point() == Path::new("/"));
        // A single file can be a mount as well.
        if !real || disk.total_space() == 0 || !disk.mount_point().is_dir() {
            continue;
        }
        let mount = disk.mount_point().to_string_lossy().into_owned();
        let device = disk.name().to_string_lossy().into_owned();
        let used_bytes = disk.total_space().saturating_sub(disk.available_space());
        let disk = Disk { mount, total_bytes: disk.total_space(), used_bytes, inodes: None };
        match found.get(&device) {
            Some(other) if other.mount.len() <= disk.mount.len() => {}
            _ => drop(found.insert(device, disk)),
        }
    }
    let mut disks: Vec<_> = found.into_values().collect();
    disks.sort_by(|a, b| a.mount.cmp(&b.mount));
    disks.truncate(DISKS_MAX);
    for disk in &mut disks {
        disk.inodes = inodes(&disk.mount);
    }
    disks
}

fn inodes(mount: &str) -> Option<(u64, u64)> {
    let about = nix::sys::statvfs::statvfs(mount).ok()?;
    let (all, free) = (about.files(), about.files_free());
    (all > 0).then(|| (all, all.saturating_sub(free)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disks_of_this_machine_are_plausible() {
        let disks = list();
        let root = disks.iter().find(|disk| disk.mount == "/").expect("the root");
        assert!(root.total_bytes > 1 << 20 && root.used_bytes > 0 && root.used_bytes <= root.total_bytes, "{root:?}");
        assert!(root.inodes.is_none_or(|(all, used)| 0 < used && used <= all), "{root:?}");
        assert!(disks.iter().all(|disk| !disk.mount.starts_with("/proc") && !disk.mount.starts_with("/dev")));
    }
}
