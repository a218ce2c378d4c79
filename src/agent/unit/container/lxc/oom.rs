//! Detects that a process of a container was killed for lack of memory. LXC does not report it and removes the container's cgroup
//! at its end. But LXC runs hooks on the host, whether or not an agent runs: one before the container's
//! program starts, which records its cgroups, and one before they are removed, which saves their counters.
//!
//! **Invariant: a hook never fails**, because LXC would not start a container whose hook fails.

use std::{fs, io, path::Path};

use super::disk::is_plain;
use crate::cgroup::Hierarchies;

/// The file with the container's cgroups, as in `/proc/PID/cgroup`.
const CGROUPS: &str = "cgroups";
/// The file with their counters at its end.
const COUNTED: &str = "counted";

/// The most that is kept of a container's counters: a few lines for each of a dozen hierarchies.
const COUNTED_MAX_BYTES: u64 = 64 * 1024;

/// Returns the hooks by their keys; none if a path has characters that are special to a shell, or there are no
/// counters.
pub(super) fn hooks(folder: &Path, hierarchies: &Hierarchies) -> Vec<(&'static str, String)> {
    let root = |controller: &str| hierarchies.root(controller).filter(|root| is_plain(root));
    let files = [("", "memory.events"), ("memory", "memory.oom_control")];
    let counts: Vec<String> = files
        .into_iter()
        .filter_map(|(controller, file)| Some(format!("\"{}$path/{file}\"", root(controller)?.display())))
        .collect();
    if counts.is_empty() || !is_plain(folder) {
        return Vec::new();
    }
    let (cgroups, counted) = (folder.join(CGROUPS), folder.join(COUNTED));
    let [cgroups, counted] = [&cgroups, &counted].map(|path| path.display());
    let counts = counts.join(" ");
    vec![
        ("lxc.hook.start-host", format!("sh -c 'cat /proc/$LXC_PID/cgroup 2> /dev/null > {cgroups}; exit 0'")),
        (
            "lxc.hook.stop",
            format!(
                "sh -c 'while IFS=: read -r number names path; do cat {counts}; done 2> /dev/null < {cgroups} > {counted}; exit 0'"
            ),
        ),
    ]
}

/// Removes the files of the last run.
pub(super) fn forget(folder: &Path) -> io::Result<()> {
    for name in [CGROUPS, COUNTED] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a process was killed for lack of memory in the last run, as far as recorded.
pub(super) fn has_killed(folder: &Path) -> bool {
    let path = folder.join(COUNTED);
    let is_small = fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= COUNTED_MAX_BYTES);
    is_small && fs::read_to_string(&path).is_ok_and(|text| counts_kills(&text))
}

/// Whether a file of counters, of v1 or v2, counts any kill.
fn counts_kills(text: &str) -> bool {
    let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok();
    text.lines().filter_map(count).any(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          31 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn hooks_save_cgroups_and_counters() {
        let hierarchies = Hierarchies::parse(MOUNTS, String::new());
        let hooks = hooks(Path::new("/var/lib/muster/lxc/muster.default.shop"), &hierarchies);
        let [(start, note), (stop, keep)] = hooks.as_slice() else { panic!("{hooks:?}") };
        assert_eq!((*start, *stop), ("lxc.hook.start-host", "lxc.hook.stop"));
        assert!(
            note.contains("> /var/lib/muster/lxc/muster.default.shop/cgroups") && note.ends_with("exit 0'"),
            "{note}"
        );
        for file in ["/sys/fs/cgroup/memory$path/memory.oom_control", "/sys/fs/cgroup/unified$path/memory.events"] {
            assert!(keep.contains(file), "{keep}");
        }
        for odd in ["/a b", "/a'b", "/$(id)"] {
            assert!(super::hooks(Path::new(odd), &hierarchies).is_empty(), "{odd}");
        }
        assert!(super::hooks(Path::new("/a"), &Hierarchies::parse("", String::new())).is_empty());
    }

    #[test]
    fn kills_are_counted_in_either_kind() {
        for (text, killed) in [
            ("low 0\noom 3\noom_kill 2\noom_group_kill 0\n", true),
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", true),
            ("oom_kill_disable 1\nunder_oom 1\noom_kill 0\n", false),
            ("oom_kill 0\noom_kill 1\n", true),
            ("", false),
        ] {
            assert_eq!(counts_kills(text), killed, "{text:?}");
        }
    }
}
