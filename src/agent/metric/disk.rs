//! How full file systems are; and, asked along with them, how warm the machine is.
//!
//! **Invariant: a file system that does not answer holds up only this.** Asking one may take for ever (a lost
//! network mount, a broken disk), so a short-lived thread asks, and as long as it has not come back
//! there is no second one and no value.

use std::{collections::BTreeMap, path::Path, time::Duration};

use sysinfo::{DiskRefreshKind, Disks};
use tokio::sync::oneshot;

use super::heat;

/// How long a sample waits for the answer; usually it takes less than a thousandth of that.
const PATIENCE: Duration = Duration::from_millis(200);
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

/// Asks, and remembers whether there is an answer to come.
#[derive(Debug, Default)]
pub(super) struct DiskWatch {
    asked: Option<oneshot::Receiver<Found>>,
}

impl DiskWatch {
    /// How full file systems are now; nothing if one of them does not answer.
    pub(super) async fn measure(&mut self) -> Found {
        let mut answer = match self.asked.take() {
            Some(mut asked) => match asked.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.asked = Some(asked);
                    return Found::default();
                }
                // It came too late, and is old by now.
                _ => ask(),
            },
            None => ask(),
        };
        if let Ok(found) = tokio::time::timeout(PATIENCE, &mut answer).await {
            found.unwrap_or_default()
        } else {
            tracing::warn!("a file system does not answer. hint: look for mounts that hang, with `df`");
            self.asked = Some(answer);
            Found::default()
        }
    }
}

fn ask() -> oneshot::Receiver<Found> {
    let (answer, asked) = oneshot::channel();
    let list = move || {
        // Nobody waits any more if the agent ends.
        let _ = answer.send(Found { disks: list(), celsius: heat::warmest() });
    };
    // The smallest stack that is sure to do: paths of mounts lie on the heap.
    let thread = std::thread::Builder::new().name("disks".to_owned()).stack_size(128 * 1024).spawn(list);
    if let Err(error) = thread {
        tracing::warn!(%error, "no thread to look at the disks");
    }
    asked
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

    #[tokio::test]
    async fn the_disks_of_this_machine_are_plausible() {
        let mut watch = DiskWatch::default();
        let Found { disks, .. } = watch.measure().await;
        let root = disks.iter().find(|disk| disk.mount == "/").expect("the root");
        assert!(root.total_bytes > 1 << 20 && root.used_bytes > 0 && root.used_bytes <= root.total_bytes, "{root:?}");
        assert!(root.inodes.is_none_or(|(all, used)| 0 < used && used <= all), "{root:?}");
        assert!(disks.iter().all(|disk| !disk.mount.starts_with("/proc") && !disk.mount.starts_with("/dev")));
    }

    #[tokio::test]
    async fn a_disk_that_hangs_is_asked_once() {
        let (late, asked) = oneshot::channel();
        let mut watch = DiskWatch { asked: Some(asked) };
        for _ in 0..3 {
            assert_eq!(watch.measure().await, Found::default(), "the first question is still open");
        }
        let old = Disk { mount: "old".into(), total_bytes: 1, used_bytes: 1, inodes: None };
        late.send(Found { disks: vec![old], celsius: None }).unwrap();
        let Found { disks, .. } = watch.measure().await;
        assert!(disks.iter().all(|disk| disk.mount != "old") && !disks.is_empty(), "{disks:?}");
    }
}
