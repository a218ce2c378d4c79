//! Cgroups: finds where on this host the agent may create them, and creates one for each unit.
//!
//! A unit's cgroup is `<base>/muster-<agent>/<realm>/<unit>`, in the unified hierarchy (v2) and, for controllers missing
//! there, in those of v1. A second instance has a cgroup of its own, `<unit>.2`, with the same limits (a unit's
//! name has no dot). `<agent>` is derived from the data folder and tells the agents of one host apart. The base is
//!
//! - in a v1 hierarchy: the agent's own cgroup;
//! - in the unified hierarchy: the parent of the agent's cgroup, because a cgroup that delegates controllers may
//!   hold no processes, and a service manager could not start the agent in it again. An agent in the
//!   root of the hierarchy that it sees (as in a container) creates its cgroups there, and moves to a sibling if it must.
//!
//! A command with limits runs in `muster-<agent>-exec/default/<command>`, in the same places; a command in a container runs in
//! `muster-exec-<command>` below the container's own cgroup ([`inside_container`]).
//!
//! If a limit is not available (the agent is not root, nothing was delegated to it, the controller does not exist), the unit
//! runs without it, and the reason is reported.
//!
//! **Invariant: only the agent creates its units' cgroups**, and they contain nothing but the unit. So
//! removing one may kill all processes in it.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use muster_rules::plan::Slot;
use muster_shim::cgroup::{AGENT_PREFIX, Cgroup};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    process::Limits,
};

mod change;
mod inside_container;
mod places;

pub(super) use self::{
    change::change_limits,
    places::{CgroupFolders, Hierarchies},
};

/// An instance of a unit.
type InstanceKey<'a> = (&'a UnitName, Slot);

/// The period of CPU quotas: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// How often to retry creating a unit's cgroup when its parent folders are removed at the same time, with the last
/// other unit in them.
const MAKE_TRIES: u32 = 5;
/// Controllers that also measure; processor time is measured without any.
const COUNTING: [&str; 3] = ["memory", "pids", "io"];
/// The cgroup to which the agent moves when it is in the way.
const ASIDE: &str = "agent";

/// The place where cgroups are created. Whether that is allowed is known only once it is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupTree {
    /// The folder of all units, below the base: `muster-<agent>`.
    name: String,
    unified: Option<UnifiedHierarchy>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
    freezer: Option<PathBuf>,
}

/// The unified hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnifiedHierarchy {
    base: PathBuf,
    /// Whether the base is the agent's own cgroup, because it sees none above.
    is_own: bool,
}

/// The cgroup of a unit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnitCgroup {
    pub(super) cgroup: Cgroup,
    /// Features that were requested and are not available, each with the reason.
    pub(super) missing: Vec<Diagnostic>,
}

impl CgroupTree {
    /// Detects where cgroups can be created, for an agent with this data folder.
    pub(super) fn detect(data_dir: &Path) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let agent = Digest::of(data_dir.as_os_str().as_encoded_bytes());
        Self::parse(agent.short(), &read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
    }

    /// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
    fn parse(agent: &str, mounts: &str, own: &str) -> Self {
        let mounts: Vec<CgroupMount> = mounts.lines().filter_map(CgroupMount::parse).collect();
        let own: Vec<(&str, &str)> = own.lines().filter_map(own_cgroup).collect();
        let folder = |controller: &str| {
            let is_it = |names: &str| names.split(',').any(|name| name == controller);
            let (_, path) = own.iter().find(|(names, _)| is_it(names))?;
            let mut of_it = mounts.iter().filter(|mount| is_it(&mount.controllers));
            of_it.find_map(|mount| Some((mount.point.clone(), mount.folder(path)?)))
        };
        let beside = |(point, folder): (PathBuf, PathBuf)| match folder.parent() {
            Some(above) if folder != point => UnifiedHierarchy { base: above.to_owned(), is_own: false },
            _ => UnifiedHierarchy { base: folder, is_own: true },
        };
        Self {
            name: format!("{AGENT_PREFIX}{agent}"),
            unified: folder("").map(beside),
            memory: folder("memory").map(|(_, folder)| folder),
            cpu: folder("cpu").map(|(_, folder)| folder),
            pids: folder("pids").map(|(_, folder)| folder),
            freezer: folder("freezer").map(|(_, folder)| folder),
        }
    }

    /// The same tree for commands: its names cannot be those of units.
    pub(super) fn of_commands(&self) -> Self {
        Self { name: format!("{}-exec", self.name), ..self.clone() }
    }

    /// Creates the cgroup of a unit that does not run, with its limits.
    ///
    /// # Errors
    /// If something still runs in it.
    pub(super) fn prepare(&self, seat: InstanceKey<'_>, limits: &Limits) -> io::Result<UnitCgroup> {
        let settings = settings(limits);
        let mut made = UnitCgroup::default();
        made.cgroup.unified = self.unified.as_ref().and_then(|unified| {
            let controllers = settings.iter().map(|setting| setting.controller).collect();
            let made = unified.make(&self.name, seat, &controllers).ok()?;
            unified.count(&self.name, seat);
            Some(made)
        });
        for setting in &settings {
            if let Err(why) = self.set(&mut made.cgroup, seat, setting) {
                made.missing.push(why.within(format_args!("the limit of {}", setting.controller)));
            }
        }
        if made.cgroup.unified.is_none() {
            made.cgroup.freezer = self.freezer.as_ref().and_then(|base| self.make(base, seat).ok());
        }
        if made.cgroup.is_empty() {
            return Ok(made);
        }
        // Remains of an earlier launch that could not be removed. The next attempt finds it empty.
        let _ = made.cgroup.kill();
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "processes of an earlier start are still in the unit's cgroup"))
    }

    /// Removes the cgroup of a unit that does not run any more.
    pub(super) fn remove(&self, seat: InstanceKey<'_>) {
        let unified = self.unified.as_ref().map(|unified| &unified.base);
        let bases = [unified, self.memory.as_ref(), self.cpu.as_ref(), self.pids.as_ref(), self.freezer.as_ref()];
        for base in bases.into_iter().flatten() {
            let [.., leaf] = folders(base, &self.name, seat);
            only(leaf).remove();
        }
    }

    /// Sets a limit in the unified hierarchy, or else in that of v1.
    fn set(&self, cgroup: &mut Cgroup, seat: InstanceKey<'_>, setting: &LimitSetting) -> Result<(), Diagnostic> {
        if let Some(folder) = &cgroup.unified
            && has_controller(folder, setting.controller)
        {
            return write_all(folder, setting.v2()).map_err(Diagnostic::new);
        }
        let (base, place) = match setting.controller {
            "memory" => (&self.memory, &mut cgroup.memory),
            "cpu" => (&self.cpu, &mut cgroup.cpu),
            _ => (&self.pids, &mut cgroup.pids),
        };
        let Some(base) = base else {
            return Err(match &self.unified {
                Some(unified) => unified.why_not(setting.controller),
                None => format!("this host has no cgroups with a {} controller", setting.controller).into(),
            });
        };
        let failed = |error: io::Error| Diagnostic::new(format_args!("{}: {error}", base.display()));
        let folder = self.make(base, seat).map_err(failed)?;
        let written = write_all(&folder, setting.v1()).map_err(failed);
        if written.is_err() {
            only(folder).remove();
        } else {
            *place = Some(folder);
        }
        written
    }

    /// Creates the folder of a unit in a v1 hierarchy.
    fn make(&self, base: &Path, seat: InstanceKey<'_>) -> io::Result<PathBuf> {
        let [all, realm, leaf] = folders(base, &self.name, seat);
        make_leaf([&all, &realm], &leaf, |_| ())?;
        Ok(leaf)
    }
}

impl UnifiedHierarchy {
    /// Creates the folder of a unit, with as many of the controllers as available.
    fn make(&self, name: &str, seat: InstanceKey<'_>, controllers: &BTreeSet<&str>) -> io::Result<PathBuf> {
        let [all, realm, leaf] = folders(&self.base, name, seat);
        self.hand_on(&self.base, controllers);
        make_leaf([&all, &realm], &leaf, |folder| self.hand_on(folder, controllers))?;
        Ok(leaf)
    }

    /// Enables controllers for a folder's children. Failures are reported where the controllers are needed.
    fn hand_on(&self, folder: &Path, controllers: &BTreeSet<&str>) {
        for controller in controllers {
            if !has_word(&folder.join("cgroup.subtree_control"), controller) && has_controller(folder, controller) {
                let busy = hand_on(folder, controller).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
                if busy && self.is_own && folder == self.base {
                    // The agent's own processes may be the obstacle.
                    let _ = self.move_aside().and_then(|()| hand_on(folder, controller));
                }
            }
        }
    }

    /// Makes the kernel measure what it would not without a limit. A refusal is not worth moving the agent.
    fn count(&self, name: &str, seat: InstanceKey<'_>) {
        let [all, realm, _] = folders(&self.base, name, seat);
        for folder in [&self.base, &all, &realm] {
            for controller in COUNTING {
                if !has_word(&folder.join("cgroup.subtree_control"), controller) && has_controller(folder, controller) {
                    let _ = hand_on(folder, controller);
                }
            }
        }
    }

    fn move_aside(&self) -> io::Result<()> {
        let aside = self.base.join(ASIDE);
        make_if_missing(&aside)?;
        write(&aside.join("cgroup.procs"), &std::process::id().to_string())
    }

    /// Why a controller is not available in a unit's cgroup.
    fn why_not(&self, controller: &str) -> Diagnostic {
        let base = self.base.display();
        if !has_controller(&self.base, controller) {
            return Diagnostic::new(format_args!("{base} has no {controller} controller"))
                .with_hint("the service unit of the agent needs Delegate=yes");
        }
        match hand_on(&self.base, controller) {
            Err(error) => format!("{base} does not delegate the {controller} controller: {error}").into(),
            Ok(()) => format!("cannot create cgroups in {base}").into(),
        }
    }
}

fn hand_on(folder: &Path, controller: &str) -> io::Result<()> {
    write(&folder.join("cgroup.subtree_control"), &format!("+{controller}"))
}

fn has_controller(folder: &Path, controller: &str) -> bool {
    has_word(&folder.join("cgroup.controllers"), controller)
}

fn has_word(path: &Path, word: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.split_ascii_whitespace().any(|found| found == word))
}

/// The folders of all units, of a realm, and of a unit.
fn folders(base: &Path, name: &str, (unit, slot): InstanceKey<'_>) -> [PathBuf; 3] {
    let all = base.join(name);
    let realm = all.join(unit.realm().as_str());
    let leaf = realm.join(match slot {
        Slot::First => unit.name().to_string(),
        Slot::Second => format!("{}.2", unit.name()),
    });
    [all, realm, leaf]
}

/// Creates folders; the last one is recreated, so that no earlier setting remains.
fn make_leaf(above: [&Path; 2], leaf: &Path, made: impl Fn(&Path)) -> io::Result<()> {
    let make = || {
        only(leaf.to_owned()).remove();
        for folder in above {
            make_if_missing(folder)?;
            made(folder);
        }
        make_if_missing(leaf)
    };
    for _ in 0..MAKE_TRIES {
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && above[0].parent().is_some_and(Path::exists) => {}
            made => return made,
        }
    }
    make()
}

/// A folder as a cgroup of any hierarchy, to be removed.
fn only(folder: PathBuf) -> Cgroup {
    Cgroup { unified: Some(folder), ..Cgroup::default() }
}

fn make_if_missing(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// A limit to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitSetting {
    controller: &'static str,
    value: u64,
}

/// A file to write, which may be missing if it is optional.
type CgroupFile = (&'static str, String, bool);

/// Each limit with its controller.
fn values(limits: &Limits) -> [(&'static str, Option<u64>); 3] {
    let cpu = limits.cpu.map(|cores| u64::from(cores.millis()) * CPU_PERIOD_US / 1_000);
    [("memory", limits.memory_bytes), ("cpu", cpu), ("pids", limits.pids.map(u64::from))]
}

/// Returns the settings for limits.
fn settings(limits: &Limits) -> Vec<LimitSetting> {
    values(limits)
        .into_iter()
        .filter_map(|(controller, value)| Some(LimitSetting { controller, value: value? }))
        .collect()
}

impl LimitSetting {
    fn v1(self) -> Vec<CgroupFile> {
        let value = self.value.to_string();
        match self.controller {
            "memory" => vec![
                ("memory.limit_in_bytes", value.clone(), false),
                // With swap; the file does not exist in a kernel that does not account swap.
                ("memory.memsw.limit_in_bytes", value, true),
            ],
            "cpu" => {
                vec![("cpu.cfs_period_us", CPU_PERIOD_US.to_string(), false), ("cpu.cfs_quota_us", value, false)]
            }
            _ => vec![("pids.max", value, false)],
        }
    }

    fn v2(self) -> Vec<CgroupFile> {
        let value = self.value.to_string();
        match self.controller {
            "memory" => vec![("memory.max", value, false), ("memory.swap.max", "0".to_owned(), true)],
            "cpu" => vec![("cpu.max", format!("{value} {CPU_PERIOD_US}"), false)],
            _ => vec![("pids.max", value, false)],
        }
    }
}

/// A limit file of a cgroup that another program creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitFile {
    /// Whether it is in the unified hierarchy.
    pub(super) unified: bool,
    pub(super) name: &'static str,
    pub(super) value: String,
    /// Whether some kernels lack it.
    pub(super) optional: bool,
}

/// Returns the limit files on this host: those of v1 for controllers that are mounted there, of the unified hierarchy
/// for all others.
pub(super) fn limit_files(limits: &Limits) -> Vec<LimitFile> {
    limit_files_of(limits, &fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
}

fn limit_files_of(limits: &Limits, own: &str) -> Vec<LimitFile> {
    let of = |setting: LimitSetting| {
        let is_it = |names: &str| names.split(',').any(|name| name == setting.controller);
        let unified = !own.lines().filter_map(own_cgroup).any(|(names, _)| is_it(names));
        let entries = if unified { setting.v2() } else { setting.v1() };
        entries.into_iter().map(move |(name, value, optional)| LimitFile { unified, name, value, optional })
    };
    settings(limits).into_iter().flat_map(of).collect()
}

impl LimitFile {
    /// Whether cgroups of this host have this file.
    pub(super) fn is_there(&self) -> bool {
        let hierarchies = Hierarchies::detect();
        let controller = self.name.split('.').next().unwrap_or_default();
        if !self.unified {
            // If the root has it, all have it.
            let root = hierarchies.folder(controller, &format!("1:{controller}:/"));
            return root.is_some_and(|root| root.join(self.name).exists());
        }
        // The root itself has no limits, and so lacks these files.
        let below = hierarchies.folder("", "0::/").and_then(|root| fs::read_dir(root).ok());
        below.into_iter().flatten().flatten().any(|entry| entry.path().join(self.name).exists())
    }
}

fn write_all(folder: &Path, entries: Vec<CgroupFile>) -> io::Result<()> {
    for (file, text, optional) in entries {
        match write(&folder.join(file), &text) {
            Err(error) if optional && error.kind() == io::ErrorKind::NotFound => {}
            written => written.map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?,
        }
    }
    Ok(())
}

/// Writes to an existing file of the kernel.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    /// Its controllers, separated by commas; empty for the unified one.
    controllers: String,
    /// The part of it that is visible here.
    root: PathBuf,
    /// The mount point.
    point: PathBuf,
}

impl CgroupMount {
    /// `ID PARENT DEVICE ROOT POINT OPTIONS [FIELD]… - TYPE SOURCE SUPER-OPTIONS`
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
        let mut after = after.split(' ');
        let controllers = match after.next()? {
            "cgroup2" => String::new(),
            // The list includes options such as `rw`, which are not names of controllers.
            "cgroup" => after.nth(1)?.to_owned(),
            _ => return None,
        };
        Some(Self { controllers, root: root.into(), point: point.into() })
    }

    /// The folder of a cgroup of this hierarchy, if it is visible here.
    fn folder(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        // A cgroup above the root of the namespace: `/../..`.
        let is_outside = below.components().any(|part| part == std::path::Component::ParentDir);
        (!is_outside).then(|| self.point.join(below))
    }
}

/// `NUMBER:CONTROLLERS:PATH`
fn own_cgroup(line: &str) -> Option<(&str, &str)> {
    line.split_once(':')?.1.split_once(':')
}

/// Decodes spaces and the like, which are written as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after.first_chunk::<3>().filter(|_| *first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
