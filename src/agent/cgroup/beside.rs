//! Where what runs in a container beside its first process goes: into the container's cgroups, so that the container's
//! limits hold, and in one of them into a cgroup of its own below, by which everything of it is found and killed.
//!
//! **Invariant: nothing is changed in a cgroup that is not our own.** Where a limit of the program's own would need that,
//! as v2 needs it, there is no such limit.

use std::{
    io,
    path::{Path, PathBuf},
};

use muster_shim::cgroup::Cgroup;
use muster_topics::process::Limits;

use super::{Hierarchies, has_controller, make_if_missing, only, own_cgroup, places::of_other, settings, write_all};

/// What has no controllers by name: v2.
const UNIFIED: &str = "";

/// In which hierarchies a program gets a cgroup of its own, in this order: for a kill at once, or else a freeze before it,
/// or else just to be found.
const FINDING: [&str; 5] = [UNIFIED, "freezer", "pids", "memory", "cpu"];

/// A place that was made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Beside {
    /// What is the program's alone.
    pub(in crate::agent) cgroup: Cgroup,
    /// What it is in as well, where the container itself is.
    pub(in crate::agent) others: Vec<PathBuf>,
}

/// One hierarchy in which a container is.
#[derive(Debug, PartialEq, Eq)]
struct Seat {
    controllers: String,
    /// Where its first process is.
    folder: PathBuf,
    /// What its runtime has made for all of it, if that can be told.
    whole: Option<PathBuf>,
    /// We are there ourselves.
    is_ours: bool,
}

impl Hierarchies {
    /// Makes a place of this name beside a container's first process, from its `/proc/<pid>/cgroup`.
    ///
    /// # Errors
    /// Why that cannot be, in words. Nothing is left then.
    pub(in crate::agent) fn make_beside(&self, cgroups: &str, name: &str, limits: &Limits) -> Result<Beside, String> {
        let seats = self.seats(cgroups);
        let mut made = Beside::default();
        let result = make(&seats, name, limits, &mut made);
        if result.is_err() {
            made.cgroup.remove();
        }
        result.map(|()| made)
    }

    fn seats(&self, cgroups: &str) -> Vec<Seat> {
        let seat = |(controllers, path): (&str, &str)| {
            let is_it = |names: &str| names.split(',').any(|name| controllers.split(',').any(|other| name == other));
            let (_, agents) = self.own.lines().filter_map(own_cgroup).find(|(names, _)| *names == controllers)?;
            let folder =
                |path: &str| self.mounts.iter().filter(|mount| is_it(&mount.controllers)).find_map(|m| m.folder(path));
            Some(Seat {
                controllers: controllers.to_owned(),
                folder: folder(path)?,
                whole: of_other(path, agents).and_then(folder),
                is_ours: path == agents,
            })
        };
        cgroups.lines().filter_map(own_cgroup).filter_map(seat).collect()
    }
}

fn make(seats: &[Seat], name: &str, limits: &Limits, made: &mut Beside) -> Result<(), String> {
    for setting in settings(limits) {
        let controller = setting.controller;
        let failed = |error: io::Error| format!("the limit of {controller}: {error}");
        if let Some(folder) = place_in(seats, controller, name, &mut made.cgroup).map_err(failed)? {
            write_all(&folder, setting.v1()).map_err(failed)?;
            continue;
        }
        match place_in(seats, UNIFIED, name, &mut made.cgroup).map_err(failed)? {
            Some(folder) if has_controller(&folder, controller) => {
                write_all(&folder, setting.v2()).map_err(failed)?;
            }
            _ => {
                return Err(format!(
                    "the limit of {controller}: its container hands that on to nothing below it. hint: the container's own \
                     limits hold in any case"
                ));
            }
        }
    }
    let can_find = |cgroup: &Cgroup| cgroup.unified.is_some() || cgroup.freezer.is_some();
    let mut why = None;
    for controller in FINDING.into_iter().filter(|_| !can_find(&made.cgroup)).collect::<Vec<_>>() {
        match place_in(seats, controller, name, &mut made.cgroup) {
            Ok(Some(_)) => break,
            Ok(None) => {}
            Err(error) => why = Some(error),
        }
    }
    if made.cgroup.is_none() {
        let why = why.map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!(
            "nothing of its own can be made in its cgroups, so nobody could tell what is left inside{why}"
        ));
    }
    let own: Vec<&Path> = made.cgroup.folders().filter_map(Path::parent).collect();
    let is_other = |seat: &&Seat| !seat.is_ours && seat.whole.as_deref().is_none_or(|whole| !own.contains(&whole));
    made.others = seats.iter().filter(is_other).map(|seat| seat.folder.clone()).collect();
    Ok(())
}

/// Makes the program's own cgroup in the hierarchy of a controller, unless there is one; nothing where the container has
/// none either.
fn place_in(seats: &[Seat], controller: &str, name: &str, cgroup: &mut Cgroup) -> io::Result<Option<PathBuf>> {
    let place = match controller {
        UNIFIED => &mut cgroup.unified,
        "memory" => &mut cgroup.memory,
        "cpu" => &mut cgroup.cpu,
        "pids" => &mut cgroup.pids,
        _ => &mut cgroup.freezer,
    };
    let is_there = |seat: &&Seat| seat.controllers.split(',').any(|name| name == controller);
    let whole = seats.iter().filter(is_there).find_map(|seat| seat.whole.as_ref());
    if let (None, Some(whole)) = (&place, whole) {
        let folder = whole.join(name);
        // Nothing of an earlier one is in force.
        only(folder.clone()).remove();
        make_if_missing(&folder)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
        *place = Some(folder);
    }
    Ok(place.clone())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Hierarchies that are folders, in which a container has cgroups.
    fn hierarchies(at: &Path, mounted: &[(&str, &str)]) -> Hierarchies {
        let line = |(folder, options): &(&str, &str)| {
            let kind = if options.is_empty() {
                "cgroup2 cgroup2 rw".to_owned()
            } else {
                format!("cgroup cgroup rw,{options}")
            };
            fs::create_dir_all(at.join(folder).join("pod/c1")).unwrap();
            format!("32 31 0:29 / {}/{folder} rw,relatime - {kind}\n", at.display())
        };
        let mounts: String = mounted.iter().map(line).collect();
        let own = mounted.iter().map(|(_, options)| format!("1:{options}:/agent\n")).collect();
        Hierarchies::parse(&mounts, own)
    }

    fn limits(json: &str) -> Limits {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn with_hierarchies_of_v1_it_is_in_all_that_its_container_is_in() {
        let at = tempfile::tempdir().unwrap();
        let all = [
            ("cpu", "cpu,cpuacct"),
            ("memory", "memory"),
            ("devices", "devices"),
            ("freezer", "freezer"),
            ("sys", "name=systemd"),
        ];
        let hierarchies = hierarchies(at.path(), &all);
        let cgroups =
            "5:cpu,cpuacct:/pod/c1\n4:memory:/pod/c1\n3:devices:/pod/c1\n2:freezer:/pod/c1\n1:name=systemd:/agent\n";
        let folder = |path: &str| at.path().join(path);
        let made = hierarchies.make_beside(cgroups, "muster-exec-1", &Limits::default()).unwrap();
        assert_eq!(made.cgroup, Cgroup { freezer: Some(folder("freezer/pod/c1/muster-exec-1")), ..Cgroup::default() });
        assert_eq!(made.others, ["cpu/pod/c1", "memory/pod/c1", "devices/pod/c1"].map(folder));
        assert!(folder("freezer/pod/c1/muster-exec-1").is_dir());
        made.cgroup.remove();
        // A limit needs a file of the kernel's, which is not here; and nothing is left of what cannot be.
        let error =
            hierarchies.make_beside(cgroups, "muster-exec-1", &limits(r#"{"memory_bytes":1000000}"#)).unwrap_err();
        assert!(error.starts_with("the limit of memory: "), "{error}");
        assert!(!folder("memory/pod/c1/muster-exec-1").exists());
        let error = hierarchies.make_beside(cgroups, "muster-exec-1", &limits(r#"{"pids":5}"#)).unwrap_err();
        assert!(error.contains("hands that on to nothing below it"), "{error}");
    }

    #[test]
    fn with_the_unified_hierarchy_its_own_cgroup_is_all() {
        let at = tempfile::tempdir().unwrap();
        let hierarchies = hierarchies(at.path(), &[("v2", "")]);
        for cgroups in ["0::/pod/c1\n", "0::/pod/c1/init.scope\n"] {
            let made = hierarchies.make_beside(cgroups, "muster-exec-1", &Limits::default()).unwrap();
            let own = Some(at.path().join("v2/pod/c1/muster-exec-1"));
            assert_eq!(made, Beside { cgroup: Cgroup { unified: own, ..Cgroup::default() }, others: Vec::new() });
            made.cgroup.remove();
        }
        // Who has none of its own has nothing in which anything could be found.
        for cgroups in ["0::/\n", "0::/agent\n", ""] {
            let error = hierarchies.make_beside(cgroups, "muster-exec-1", &Limits::default()).unwrap_err();
            assert!(error.contains("nobody could tell"), "{error}");
        }
    }
}
