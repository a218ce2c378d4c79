//! Finds the cgroups that measure a unit: those of its main process, if no other process
//! is in them.
//!
//! If the agent could not create a cgroup for a unit, its process shares one with others. Its figures say nothing about the
//! unit, so no folder is returned.

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_shim::cgroup::AGENT_PREFIX;
use muster_topics::name::UnitName;

use super::{CgroupMount, own_cgroup};

/// The cgroup hierarchies of this host.
#[derive(Debug)]
pub(crate) struct Hierarchies {
    pub(super) mounts: Vec<CgroupMount>,
    /// The content of `/proc/self/cgroup`.
    pub(super) own: String,
}

/// The cgroup folders of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupFolders {
    /// In the unified hierarchy.
    pub(crate) unified: Option<PathBuf>,
    /// In v1 hierarchies.
    pub(crate) cpu: Option<PathBuf>,
    pub(crate) cpuacct: Option<PathBuf>,
    pub(crate) memory: Option<PathBuf>,
    pub(crate) pids: Option<PathBuf>,
    pub(crate) blkio: Option<PathBuf>,
}

impl Hierarchies {
    /// Detects those of this host, which do not change while it runs.
    pub(crate) fn detect() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/mountinfo"), read("/proc/self/cgroup"))
    }

    pub(crate) fn parse(mounts: &str, own: String) -> Self {
        Self { mounts: mounts.lines().filter_map(CgroupMount::parse).collect(), own }
    }

    /// Returns the cgroup folder of a process in the hierarchy of a controller (the unified one has none), from its
    /// `/proc/<pid>/cgroup`.
    pub(crate) fn folder(&self, controller: &str, cgroups: &str) -> Option<PathBuf> {
        let is_it = |names: &str| names.split(',').any(|name| name == controller);
        let (_, path) = cgroups.lines().filter_map(own_cgroup).find(|(names, _)| is_it(names))?;
        self.mounts.iter().filter(|mount| is_it(&mount.controllers)).find_map(|mount| mount.folder(path))
    }

    /// Returns where the hierarchy of a controller (the unified one has none) is mounted, if it is mounted as a whole.
    pub(crate) fn root(&self, controller: &str) -> Option<PathBuf> {
        let has_it = |mount: &&CgroupMount| mount.controllers.split(',').any(|name| name == controller);
        let is_whole = |mount: &&CgroupMount| mount.root == Path::new("/");
        self.mounts.iter().filter(has_it).find(is_whole).map(|mount| mount.point.clone())
    }

    /// Returns the folders of a yuno, or of a container if `yuno` is `None`, from `/proc/<pid>/cgroup` of its main
    /// process.
    pub(crate) fn places(&self, yuno: Option<&UnitName>, cgroups: &str) -> CgroupFolders {
        let cgroups: Vec<(&str, &str)> = cgroups.lines().filter_map(own_cgroup).collect();
        let folder = |controller: &str| {
            let is_it = |names: &str| names.split(',').any(|name| name == controller);
            let (_, path) = cgroups.iter().find(|(names, _)| is_it(names))?;
            let (_, agents) = self.own.lines().filter_map(own_cgroup).find(|(names, _)| is_it(names))?;
            let path = match yuno {
                Some(unit) => of_yuno(unit, path)?,
                None => of_other(path, agents)?,
            };
            let mut of_it = self.mounts.iter().filter(|mount| is_it(&mount.controllers));
            of_it.find_map(|mount| mount.folder(path))
        };
        CgroupFolders {
            unified: folder(""),
            cpu: folder("cpu"),
            cpuacct: folder("cpuacct"),
            memory: folder("memory"),
            pids: folder("pids"),
            blkio: folder("blkio"),
        }
    }
}

/// Returns the part of a path that is the cgroup that an agent has created for this yuno; the yuno may have created
/// some below it.
fn of_yuno<'a>(unit: &UnitName, path: &'a str) -> Option<&'a str> {
    let (realm, name) = (unit.realm(), unit.name());
    let words: Vec<&str> = path.split('/').collect();
    // A daemon in a container is below the container's cgroup.
    if name.as_str().starts_with("exec-")
        && let Some(at) = words.iter().position(|word| word.strip_prefix(AGENT_PREFIX) == Some(name.as_str()))
    {
        return path.get(..length(&words[..=at]));
    }
    let at = words.windows(3).position(|words| {
        let is_named = words[2].strip_suffix(".2").unwrap_or(words[2]) == name.as_str();
        words[0].starts_with(AGENT_PREFIX) && words[1] == realm.as_str() && is_named
    })?;
    path.get(..length(&words[..at + 3]))
}

/// The length of these path components joined by slashes.
fn length(words: &[&str]) -> usize {
    words.iter().map(|word| word.len() + 1).sum::<usize>().saturating_sub(1)
}

/// Returns the cgroup that another program has created for a unit, such as a container runtime: not the root, nor the
/// agent's own. A service manager in a container has a cgroup of its own below the container's.
pub(super) fn of_other<'a>(path: &'a str, agents: &str) -> Option<&'a str> {
    let path = path.strip_suffix("/init.scope").unwrap_or(path);
    let is_above = path == agents || agents.strip_prefix(path).is_some_and(|below| below.starts_with('/'));
    (!path.is_empty() && path != "/" && !is_above).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    fn places(mounts: &str, own: &str, kind: &str, cgroups: &str) -> CgroupFolders {
        let yuno = (kind == "yuno").then(|| "shop/till".parse().unwrap());
        Hierarchies::parse(mounts, own.to_owned()).places(yuno.as_ref(), cgroups)
    }

    #[test]
    fn only_a_yunos_own_cgroups_are_measured() {
        let folder = |text: &str| Some(PathBuf::from(text));
        let own = "0::/system.slice/muster.service\n";
        let leaf = "/system.slice/muster-0a1b/shop/till";
        let unified = CgroupFolders { unified: folder(&format!("/sys/fs/cgroup{leaf}")), ..CgroupFolders::default() };
        assert_eq!(places(V2, own, "yuno", &format!("0::{leaf}\n")), unified);
        // The yuno may have created cgroups of its own.
        assert_eq!(places(V2, own, "yuno", &format!("0::{leaf}/workers/1\n")), unified);
        let exec = "default/exec-1".parse().unwrap();
        let stays =
            Hierarchies::parse(V2, own.to_owned()).places(Some(&exec), "0::/pod/libpod-1/muster-exec-1/further\n");
        assert_eq!(stays.unified, folder("/sys/fs/cgroup/pod/libpod-1/muster-exec-1"));
        let second = places(V2, own, "yuno", &format!("0::{leaf}.2\n"));
        assert_eq!(second.unified, folder(&format!("/sys/fs/cgroup{leaf}.2")));
        for other in ["/", "/system.slice/muster.service", "/system.slice/muster-0a1b/shop/till2", "/shop/till"] {
            assert_eq!(places(V2, own, "yuno", &format!("0::{other}\n")), CgroupFolders::default(), "{other}");
        }
        // In v1 it has cgroups of its own in some hierarchies, and shares cgroups in others.
        let own = "8:memory:/a.service\n5:pids:/a.service\n4:cpu,cpuacct:/a.service\n0::/a.service\n";
        let cgroups = "8:memory:/a.service/muster-0a1b/shop/till\n5:pids:/a.service\n4:cpu,cpuacct:/a.service\n\
                       0::/muster-0a1b/shop/till\n";
        let wanted = CgroupFolders {
            unified: folder("/sys/fs/cgroup/unified/muster-0a1b/shop/till"),
            memory: folder("/sys/fs/cgroup/memory/a.service/muster-0a1b/shop/till"),
            ..CgroupFolders::default()
        };
        assert_eq!(places(V1, own, "yuno", cgroups), wanted);
    }

    #[test]
    fn containers_have_cgroups_of_their_runtime() {
        let own = "0::/system.slice/muster.service\n";
        for (path, wanted) in [
            ("/lxc.payload.web", Some("/sys/fs/cgroup/lxc.payload.web")),
            ("/lxc.payload.web/init.scope", Some("/sys/fs/cgroup/lxc.payload.web")),
            ("/machine.slice/libpod-1.scope", Some("/sys/fs/cgroup/machine.slice/libpod-1.scope")),
            ("/", None),
            ("/init.scope", None),
            ("/system.slice", None),
            ("/system.slice/muster.service", None),
        ] {
            let found = places(V2, own, "container", &format!("0::{path}\n"));
            assert_eq!(found.unified, wanted.map(PathBuf::from), "{path}");
        }
        assert_eq!(places("", "", "container", "nonsense"), CgroupFolders::default());
    }
}
