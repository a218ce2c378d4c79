//! Cgroups for tests, created as the agent creates them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use muster_shim::cgroup::Cgroup;

use crate::rig::kill_if_there;

/// A cgroup of a test's own, removed with it.
pub(crate) struct Leaf {
    pub(crate) cgroup: Cgroup,
}

/// Which hierarchies to use, of those that there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The unified one and those of v1.
    All,
    /// Those of v1.
    V1,
    /// Those of v1, and nothing that can freeze.
    V1NoFreezer,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::All, Kind::V1, Kind::V1NoFreezer];

impl Leaf {
    /// Nothing if none can be made here.
    pub(crate) fn make(kind: Kind) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("muster-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let made = |base: Option<PathBuf>| {
            let folder = base?.join(&name);
            fs::create_dir(&folder).ok().map(|()| folder)
        };
        let cgroup = Cgroup {
            unified: made(own_folder("").filter(|_| kind == Kind::All)),
            memory: made(own_folder("memory")),
            cpu: made(own_folder("cpu")),
            pids: made(own_folder("pids")),
            freezer: made(own_folder("freezer").filter(|_| kind != Kind::V1NoFreezer)),
        };
        let leaf = Self { cgroup };
        // Whoever may make the folder may still not be allowed to move a process there.
        let usable = !leaf.cgroup.is_none() && leaf.cgroup.doors().is_ok();
        if !usable {
            println!("no cgroup of kind {kind:?} can be made here");
        }
        usable.then_some(leaf)
    }

    /// One with a limit, which a file of v1 and one of v2 are called; nothing if there is no such limit here.
    pub(crate) fn with_limit(v1: (&Option<PathBuf>, &str), v2: (&Option<PathBuf>, &str), value: &str) -> bool {
        let written = |(folder, file): (&Option<PathBuf>, &str)| {
            folder.as_ref().is_some_and(|folder| fs::write(folder.join(file), value).is_ok())
        };
        written(v1) || written(v2)
    }

    pub(crate) fn limit_memory(&self, bytes: u64) -> bool {
        let Cgroup { memory, unified, .. } = &self.cgroup;
        let limited = Self::with_limit((memory, "memory.limit_in_bytes"), (unified, "memory.max"), &bytes.to_string());
        // Or else it would be in the swap.
        Self::with_limit((memory, "memory.memsw.limit_in_bytes"), (&None, ""), &bytes.to_string());
        Self::with_limit((&None, ""), (unified, "memory.swap.max"), "0");
        limited
    }

    pub(crate) fn limit_pids(&self, count: u32) -> bool {
        Self::with_limit((&self.cgroup.pids, "pids.max"), (&self.cgroup.unified, "pids.max"), &count.to_string())
    }

    pub(crate) fn exists(&self) -> bool {
        self.cgroup.folders().any(Path::exists)
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if self.exists() {
            // Of a test that failed: what is in it is the test's.
            let deadline = Instant::now() + Duration::from_secs(5);
            while self.exists() && Instant::now() < deadline {
                self.cgroup.members().into_iter().for_each(kill_if_there);
                let _ = self.cgroup.set_frozen(false);
                self.cgroup.remove();
            }
        }
    }
}

/// Where this process may make cgroups in the hierarchy of a controller of v1, or in the unified one.
fn own_folder(controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let wanted = match *fields.get(2)? {
            "cgroup2" => controller.is_empty(),
            "cgroup" => fields.get(3)?.split(',').any(|option| option == controller),
            _ => false,
        };
        wanted.then(|| PathBuf::from(fields[1]))
    })?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next()?;
        names.split(',').any(|name| name == controller).then(|| fields.next().unwrap_or("/").to_owned())
    })?;
    Some(mount.join(path.trim_start_matches('/')))
}
