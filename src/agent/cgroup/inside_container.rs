//! Places a command that runs inside a container: into the container's cgroups, so that the container's
//! limits apply, and in one hierarchy into a child cgroup of its own, by which all its processes are found and killed.
//!
//! **Invariant: nothing is changed in a cgroup that is not our own.** If a limit of the command itself would need that,
//! as in v2, the limit is not available.

use std::{
    io,
    path::{Path, PathBuf},
};

use muster_shim::cgroup::Cgroup;
use muster_topics::{diagnostic::Diagnostic, process::Limits};

use super::{
    has_controller, make_if_missing, only, own_cgroup,
    places::{Hierarchies, of_other},
    settings, write_all,
};

/// The unified hierarchy (v2), which has no controller names.
const UNIFIED: &str = "";

/// The hierarchies in which a program gets a cgroup of its own, in order of preference: for an immediate kill, or else
/// for a freeze before it, or else just to find its processes.
const FINDING: [&str; 5] = [UNIFIED, "freezer", "pids", "memory", "cpu"];

/// The cgroups that were created for a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InsideContainer {
    /// The cgroup of the program alone.
    pub(crate) cgroup: Cgroup,
    /// Cgroups of the container itself that the program joins in other hierarchies.
    pub(crate) others: Vec<PathBuf>,
}

/// A hierarchy in which a container is.
#[derive(Debug, PartialEq, Eq)]
struct HierarchyFolder {
    controllers: String,
    /// The cgroup of its first process.
    folder: PathBuf,
    /// The cgroup that its runtime created for the whole container, if known.
    whole: Option<PathBuf>,
    /// Whether the agent is in it, too.
    is_ours: bool,
}

impl Hierarchies {
    /// Creates a cgroup of this name beside a container's first process, from its `/proc/<pid>/cgroup`.
    ///
    /// # Errors
    /// With the reason. Nothing remains then.
    pub(crate) fn make_inside_container(
        &self,
        cgroups: &str,
        name: &str,
        limits: &Limits,
    ) -> Result<InsideContainer, Diagnostic> {
        let container_folders = self.container_folders(cgroups);
        let mut made = InsideContainer::default();
        let result = make(&container_folders, name, limits, &mut made);
        if result.is_err() {
            made.cgroup.remove();
        }
        result.map(|()| made)
    }

    fn container_folders(&self, cgroups: &str) -> Vec<HierarchyFolder> {
        let hierarchy_folder = |(controllers, path): (&str, &str)| {
            let is_it = |names: &str| names.split(',').any(|name| controllers.split(',').any(|other| name == other));
            let (_, agents) = self.own.lines().filter_map(own_cgroup).find(|(names, _)| *names == controllers)?;
            let folder =
                |path: &str| self.mounts.iter().filter(|mount| is_it(&mount.controllers)).find_map(|m| m.folder(path));
            Some(HierarchyFolder {
                controllers: controllers.to_owned(),
                folder: folder(path)?,
                whole: of_other(path, agents).and_then(folder),
                is_ours: path == agents,
            })
        };
        cgroups.lines().filter_map(own_cgroup).filter_map(hierarchy_folder).collect()
    }
}

fn make(
    container_folders: &[HierarchyFolder],
    name: &str,
    limits: &Limits,
    made: &mut InsideContainer,
) -> Result<(), Diagnostic> {
    for setting in settings(limits) {
        let controller = setting.controller;
        let failed = |error: io::Error| format!("the limit of {controller}: {error}");
        if let Some(folder) = place_in(container_folders, controller, name, &mut made.cgroup).map_err(failed)? {
            write_all(&folder, setting.v1()).map_err(failed)?;
            continue;
        }
        match place_in(container_folders, UNIFIED, name, &mut made.cgroup).map_err(failed)? {
            Some(folder) if has_controller(&folder, controller) => {
                write_all(&folder, setting.v2()).map_err(failed)?;
            }
            _ => {
                return Err(Diagnostic::new(format_args!(
                    "the limit of {controller}: the container does not delegate it"
                ))
                .with_hint("the container's own limits hold in any case"));
            }
        }
    }
    let can_find = |cgroup: &Cgroup| cgroup.unified.is_some() || cgroup.freezer.is_some();
    let mut why = None;
    for controller in FINDING.into_iter().filter(|_| !can_find(&made.cgroup)).collect::<Vec<_>>() {
        match place_in(container_folders, controller, name, &mut made.cgroup) {
            Ok(Some(_)) => break,
            Ok(None) => {}
            Err(error) => why = Some(error),
        }
    }
    if made.cgroup.is_none() {
        let why = why.map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!("its cgroups are not writable, so leftover processes cannot be found{why}").into());
    }
    let own: Vec<&Path> = made.cgroup.folders().filter_map(Path::parent).collect();
    let is_other =
        |one: &&HierarchyFolder| !one.is_ours && one.whole.as_deref().is_none_or(|whole| !own.contains(&whole));
    made.others = container_folders.iter().filter(is_other).map(|one| one.folder.clone()).collect();
    Ok(())
}

/// Creates the program's own cgroup in the hierarchy of a controller, unless there is one; does nothing where the
/// container has none.
fn place_in(
    container_folders: &[HierarchyFolder],
    controller: &str,
    name: &str,
    cgroup: &mut Cgroup,
) -> io::Result<Option<PathBuf>> {
    let place = match controller {
        UNIFIED => &mut cgroup.unified,
        "memory" => &mut cgroup.memory,
        "cpu" => &mut cgroup.cpu,
        "pids" => &mut cgroup.pids,
        _ => &mut cgroup.freezer,
    };
    let is_there = |one: &&HierarchyFolder| one.controllers.split(',').any(|name| name == controller);
    let whole = container_folders.iter().filter(is_there).find_map(|one| one.whole.as_ref());
    if let (None, Some(whole)) = (&place, whole) {
        let folder = whole.join(name);
        // Settings of an earlier one must not remain.
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

    /// Folders that stand for hierarchies in which a container has cgroups.
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
    fn command_joins_all_v1_cgroups_of_its_container() {
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
        let made = hierarchies.make_inside_container(cgroups, "muster-exec-1", &Limits::default()).unwrap();
        assert_eq!(made.cgroup, Cgroup { freezer: Some(folder("freezer/pod/c1/muster-exec-1")), ..Cgroup::default() });
        assert_eq!(made.others, ["cpu/pod/c1", "memory/pod/c1", "devices/pod/c1"].map(folder));
        assert!(folder("freezer/pod/c1/muster-exec-1").is_dir());
        made.cgroup.remove();
        // A limit needs a kernel file, which does not exist here; nothing remains after the failure.
        let error = hierarchies
            .make_inside_container(cgroups, "muster-exec-1", &limits(r#"{"memory_bytes":1000000}"#))
            .unwrap_err();
        assert!(error.cause.starts_with("the limit of memory: "), "{error}");
        assert!(!folder("memory/pod/c1/muster-exec-1").exists());
        let error = hierarchies.make_inside_container(cgroups, "muster-exec-1", &limits(r#"{"pids":5}"#)).unwrap_err();
        assert!(error.cause.contains("does not delegate it"), "{error}");
    }

    #[test]
    fn command_has_own_cgroup_in_unified_hierarchy() {
        let at = tempfile::tempdir().unwrap();
        let hierarchies = hierarchies(at.path(), &[("v2", "")]);
        for cgroups in ["0::/pod/c1\n", "0::/pod/c1/init.scope\n"] {
            let made = hierarchies.make_inside_container(cgroups, "muster-exec-1", &Limits::default()).unwrap();
            let own = Some(at.path().join("v2/pod/c1/muster-exec-1"));
            assert_eq!(
                made,
                InsideContainer { cgroup: Cgroup { unified: own, ..Cgroup::default() }, others: Vec::new() }
            );
            made.cgroup.remove();
        }
        // Without a cgroup of its own, the container's processes could not be found.
        for cgroups in ["0::/\n", "0::/agent\n", ""] {
            let error = hierarchies.make_inside_container(cgroups, "muster-exec-1", &Limits::default()).unwrap_err();
            assert!(error.cause.contains("leftover processes cannot be found"), "{error}");
        }
    }
}
