//! Looks at files, file systems and the kernel.

use std::{
    env, fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::facts::{Cgroups, DiskFacts, TimeZone};

/// The process that holds a lock on a file (`flock`), by what the kernel lists.
#[must_use]
pub fn lock_holder(path: &Path) -> Option<i32> {
    let found = fs::metadata(path).ok()?;
    let (device, inode) = (found.dev(), found.ino());
    let wanted = format!("{:02x}:{:02x}:{inode}", nix::libc::major(device), nix::libc::minor(device));
    // `1: FLOCK ADVISORY WRITE 4711 fd:01:123 0 EOF`
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let holder = locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else { return None };
        (file == wanted).then(|| pid.parse().ok()).flatten()
    });
    holder.filter(|pid| *pid > 0)
}

/// How many open files a process may have.
#[must_use]
pub fn open_files_limit(pid: i32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// A number of the C library's, whose size depends on the processor.
fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}

/// The file system of a folder, or of the nearest folder above it that is there.
#[must_use]
pub fn disk(folder: &Path) -> DiskFacts {
    let there = folder.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"));
    let mut found = DiskFacts { folder: folder.to_owned(), ..DiskFacts::default() };
    match statvfs(there) {
        Ok(stat) => {
            found.total_bytes = wide(stat.blocks()) * wide(stat.fragment_size());
            found.free_bytes = wide(stat.blocks_available()) * wide(stat.fragment_size());
            found.total_inodes = wide(stat.files());
            found.free_inodes = wide(stat.files_available());
            found.is_read_only = stat.flags().contains(FsFlags::ST_RDONLY);
        }
        Err(error) => found.error = Some(error.to_string()),
    }
    found
}

/// The mode of a file, if it is there.
#[must_use]
pub fn mode(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.permissions().mode())
}

/// The control groups of this process.
#[must_use]
pub fn cgroups() -> Cgroups {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let has = |kind: &str| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    if has("cgroup") {
        return Cgroups::V1;
    }
    match fs::read_to_string("/sys/fs/cgroup/cgroup.controllers") {
        Ok(controllers) => Cgroups::V2(controllers.split_whitespace().map(str::to_owned).collect()),
        Err(_) => Cgroups::Missing,
    }
}

/// The time zone of this process.
#[must_use]
pub fn time_zone() -> TimeZone {
    let zones = Path::new("/usr/share/zoneinfo");
    let named = |name: &str| match zones.join(name).is_file() {
        true => TimeZone::Named(name.to_owned()),
        false => TimeZone::Unknown(name.to_owned()),
    };
    if let Some(zone) = env::var_os("TZ") {
        let zone = zone.to_string_lossy();
        return match zone.trim_start_matches(':') {
            "" | "UTC" | "UTC0" => TimeZone::Named("UTC".to_owned()),
            name => named(name),
        };
    }
    match fs::read_link("/etc/localtime") {
        Ok(target) => {
            let target = target.to_string_lossy();
            let name = target.rsplit_once("zoneinfo/").map_or(&*target, |(_, name)| name);
            if Path::new("/etc/localtime").exists() {
                TimeZone::Named(name.to_owned())
            } else {
                TimeZone::Unknown(name.to_owned())
            }
        }
        Err(_) => match fs::read_to_string("/etc/timezone") {
            Ok(name) if !name.trim().is_empty() => TimeZone::Named(name.trim().to_owned()),
            _ => TimeZone::Unset,
        },
    }
}

/// The text of a file; nothing if it is not there.
///
/// # Errors
/// If it cannot be read.
pub fn text(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The folders of several, each file system once.
#[must_use]
pub fn one_for_each_disk(folders: &[PathBuf]) -> Vec<PathBuf> {
    let device = |folder: &Path| {
        let there = folder.ancestors().find(|above| above.is_dir())?;
        fs::metadata(there).ok().map(|found| found.dev())
    };
    let mut seen = Vec::new();
    let mut kept = Vec::new();
    for folder in folders {
        let device = device(folder);
        if device.is_none() || !seen.contains(&device) {
            seen.push(device);
            kept.push(folder.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_of_a_lock_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = fs::File::create(&path).unwrap();
        assert_eq!(lock_holder(&path), None);
        file.try_lock().unwrap();
        assert_eq!(lock_holder(&path), Some(std::process::id().cast_signed()));
        assert_eq!(lock_holder(&folder.path().join("missing")), None);
    }

    #[test]
    fn disk_of_a_missing_folder_is_that_above() {
        let found = disk(Path::new("/no/such/folder"));
        assert!(found.total_bytes > 0 && found.error.is_none(), "{found:?}");
        let folders = [PathBuf::from("/no/such"), PathBuf::from("/no/other")];
        assert_eq!(one_for_each_disk(&folders), folders[..1]);
    }

    #[test]
    fn limit_of_open_files_is_read() {
        assert!(open_files_limit(std::process::id().cast_signed()).is_some_and(|limit| limit > 0));
    }
}
