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

/// How deep a program may have made further cgroups in its own. None that muster has seen makes more than
/// two levels; what lies deeper is still killed by the kernel's own means (v2).
const DEPTH_MAX: u32 = 8;

/// How the folders begin in which agents have those of their realms, and these those of their units.
pub const AGENT_PREFIX: &str = "muster-";

/// The folders of a cgroup, all of which the agent has made. The default is none at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// In the unified hierarchy (v2), where it kills and freezes, and limits what has no hierarchy of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unified: Option<PathBuf>,
    /// In the hierarchy of v1 that limits memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<PathBuf>,
    /// In the hierarchy of v1 that limits time of processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<PathBuf>,
    /// In the hierarchy of v1 that limits processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<PathBuf>,
    /// In the hierarchy of v1 that freezes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezer: Option<PathBuf>,
}

impl Cgroup {
    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.folders().next().is_none()
    }

    /// All its folders.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        [&self.unified, &self.memory, &self.cpu, &self.pids, &self.freezer].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Files that a process enters the cgroup by, by writing `0` to each.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn doors(&self) -> io::Result<Vec<File>> {
        self.folders().map(|folder| OpenOptions::new().write(true).open(folder.join("cgroup.procs"))).collect()
    }

    /// The processes in it, as numbers that may have ended by now.
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

    /// The processes in it itself, and not in cgroups below it, which the agent's probes have.
    #[must_use]
    pub fn own_members(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.folders().flat_map(pids_of).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether no process is in it. One that has ended, and only its parent does not know yet, is not.
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

    /// Has the kernel kill everything in it, and says whether it has (it needs v2 and Linux 5.14).
    #[must_use]
    pub fn kill(&self) -> bool {
        self.unified.as_ref().is_some_and(|folder| write(&folder.join("cgroup.kill"), "1").is_ok())
    }

    /// Freezes or thaws everything in it, and says whether it can.
    #[must_use]
    pub fn set_frozen(&self, frozen: bool) -> bool {
        let by = |folder: &Option<PathBuf>, file: &str, words: [&str; 2]| {
            folder.as_ref().is_some_and(|folder| write(&folder.join(file), words[usize::from(frozen)]).is_ok())
        };
        by(&self.unified, "cgroup.freeze", ["0", "1"]) || by(&self.freezer, "freezer.state", ["THAWED", "FROZEN"])
    }

    /// Whether everything in it has come to be frozen, which takes the kernel a moment.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let says = |folder: &Option<PathBuf>, file: &str, line: &str| {
            let read = |folder: &PathBuf| fs::read_to_string(folder.join(file)).unwrap_or_default();
            folder.as_ref().is_some_and(|folder| read(folder).lines().any(|found| found == line))
        };
        says(&self.unified, "cgroup.events", "frozen 1") || says(&self.freezer, "freezer.state", "FROZEN")
    }

    /// How many of its processes the kernel has killed because they used up its memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let count = |folder: &Option<PathBuf>, file: &str| {
            let text = fs::read_to_string(folder.as_ref()?.join(file)).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok())
        };
        let (unified, memory) = (count(&self.unified, "memory.events"), count(&self.memory, "memory.oom_control"));
        unified.unwrap_or(0).saturating_add(memory.unwrap_or(0))
    }

    /// Removes it, with its limits, and whatever cgroups the program has made in it; and those of its realm
    /// and its agent if nothing else is in them. What still has a process stays.
    pub fn remove(&self) {
        for folder in self.folders() {
            each(folder, DEPTH_MAX, &mut |folder| {
                // One that is not there is removed already; one that is in use is found by `members`.
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

/// Does something with each cgroup below a folder, and then with that.
fn each(folder: &Path, depth: u32, done: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            each(&entry.path(), depth - 1, done);
        }
    }
    done(folder);
}

/// Writes to a file of the kernel's, which is there or is not.
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
