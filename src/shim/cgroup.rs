//! A program's cgroup: its limits, and all its processes.
//!
//! The agent creates the cgroup and writes its limits, because it knows where on this host that is allowed; a
//! child enters it before it executes the program. From then on every process that the program forks is in it too, even if it
//! leaves its parents.
//!
//! A host has the unified hierarchy (v2), or one hierarchy for each controller (v1), or both. So a cgroup is one folder or several,
//! and every operation is done in all of them.
//!
//! **Invariant: a cgroup belongs to one program.** Every process in it may be killed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Greatest depth of cgroups that a program may create in its own; known programs use at most two levels. Deeper ones
/// are only killed by the kernel's own means (v2).
const DEPTH_MAX: u32 = 8;

/// Prefix of the folders in which agents create the cgroups of their realms, which contain those of units.
pub const AGENT_PREFIX: &str = "muster-";

/// The folders of a cgroup, created by the agent. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// In the unified hierarchy (v2): kills and freezes, and applies limits without a hierarchy of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unified: Option<PathBuf>,
    /// In the v1 hierarchy of memory limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<PathBuf>,
    /// In the v1 hierarchy of processor limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<PathBuf>,
    /// In the v1 hierarchy of process limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<PathBuf>,
    /// In the v1 hierarchy of freezing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezer: Option<PathBuf>,
}

impl Cgroup {
    /// Whether it has no folders.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.folders().next().is_none()
    }

    /// All folders.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        [&self.unified, &self.memory, &self.cpu, &self.pids, &self.freezer].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Opens the files through which a process enters the cgroup, by writing `0` to each.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn doors(&self) -> io::Result<Vec<File>> {
        self.folders().map(|folder| OpenOptions::new().write(true).open(folder.join("cgroup.procs"))).collect()
    }

    /// The processes in it and below. Some may have ended already.
    #[must_use]
    pub fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for folder in self.folders() {
            each(folder, DEPTH_MAX, &mut |folder| pids.extend(pids_of(folder)));
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The processes directly in it, without those in cgroups below, where the agent's probes run.
    #[must_use]
    pub fn own_members(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.folders().flat_map(pids_of).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether no process is in it. Zombies do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members().is_empty()
    }

    /// Whether the number of its processes is limited.
    #[must_use]
    pub fn limits_processes(&self) -> bool {
        let max = |folder: &PathBuf| fs::read_to_string(folder.join("pids.max")).ok();
        [&self.unified, &self.pids].into_iter().flatten().filter_map(max).any(|max| max.trim_end() != "max")
    }

    /// Makes the kernel kill all its processes. Returns `false` if that is not supported (it needs v2 and Linux 5.14).
    #[must_use]
    pub fn kill(&self) -> bool {
        self.unified.as_ref().is_some_and(|folder| write(&folder.join("cgroup.kill"), "1").is_ok())
    }

    /// Freezes or thaws it. Returns `false` if that is not supported.
    #[must_use]
    pub fn set_frozen(&self, frozen: bool) -> bool {
        let by = |folder: &Option<PathBuf>, file: &str, words: [&str; 2]| {
            folder.as_ref().is_some_and(|folder| write(&folder.join(file), words[usize::from(frozen)]).is_ok())
        };
        by(&self.unified, "cgroup.freeze", ["0", "1"]) || by(&self.freezer, "freezer.state", ["THAWED", "FROZEN"])
    }

    /// Whether all its processes are frozen, which takes the kernel a moment.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let says = |folder: &Option<PathBuf>, file: &str, line: &str| {
            let read = |folder: &PathBuf| fs::read_to_string(folder.join(file)).unwrap_or_default();
            folder.as_ref().is_some_and(|folder| read(folder).lines().any(|found| found == line))
        };
        says(&self.unified, "cgroup.events", "frozen 1") || says(&self.freezer, "freezer.state", "FROZEN")
    }

    /// Number of its processes that the kernel killed because its memory was used up.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let count = |folder: &Option<PathBuf>, file: &str| {
            let text = fs::read_to_string(folder.as_ref()?.join(file)).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok())
        };
        let (unified, memory) = (count(&self.unified, "memory.events"), count(&self.memory, "memory.oom_control"));
        unified.unwrap_or(0).saturating_add(memory.unwrap_or(0))
    }

    /// Removes it with its limits and all cgroups below it, and the cgroups of its realm and agent if they are empty.
    /// Cgroups that contain processes stay.
    pub fn remove(&self) {
        for folder in self.folders() {
            each(folder, DEPTH_MAX, &mut |folder| {
                // A missing folder is fine, and one in use is reported by `members`.
                let _ = fs::remove_dir(folder);
            });
            if let Some((realm, agent)) = folder.parent().and_then(|realm| Some((realm, realm.parent()?)))
                && agent.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(AGENT_PREFIX.as_bytes()))
            {
                let _ = fs::remove_dir(realm).and_then(|()| fs::remove_dir(agent));
            }
        }
    }
}

/// The processes in a cgroup.
fn pids_of(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0).collect()
}

/// Calls a function for each cgroup below a folder, and then for the folder itself.
fn each(folder: &Path, depth: u32, done: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            each(&entry.path(), depth - 1, done);
        }
    }
    done(folder);
}

/// Writes to a file of the kernel, if it exists.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_cgroup_is_ignored() {
        let none = Cgroup::default();
        assert!(none.is_none() && none.is_empty() && none.doors().unwrap().is_empty());
        assert!(!none.kill() && !none.set_frozen(true) && !none.is_frozen());
        assert_eq!(none.oom_kills(), 0);
        none.remove();
        assert_eq!(serde_json::to_string(&none).unwrap(), "{}");
    }

    #[test]
    fn oom_kills_are_counted() {
        for (file, content, count) in [
            ("memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n", 2),
            ("memory.events", "low 0\n", 0),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
            ("memory.oom_control", "oom_kill many\n", 0),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(file), content).unwrap();
            let path = Some(folder.path().to_owned());
            let cgroup = match file {
                "memory.events" => Cgroup { unified: path, ..Cgroup::default() },
                _ => Cgroup { memory: path, ..Cgroup::default() },
            };
            assert_eq!(cgroup.oom_kills(), count, "{content}");
        }
    }

    #[test]
    fn members_of_all_levels_are_listed_once() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(a.path().join("further")).unwrap();
        fs::write(a.path().join("cgroup.procs"), "12\n7\n0\n").unwrap();
        fs::write(a.path().join("further/cgroup.procs"), "9\n").unwrap();
        fs::write(b.path().join("cgroup.procs"), "7\n\n-3\n").unwrap();
        let cgroup = Cgroup { unified: Some(a.path().into()), memory: Some(b.path().into()), ..Cgroup::default() };
        assert_eq!(cgroup.members(), [7, 9, 12]);
        assert_eq!(cgroup.own_members(), [7, 12]);
    }
}
