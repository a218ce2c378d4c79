//! Enters a container.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
};

use muster_shim::{ContainerNamespaces, StartStep, proc};
use nix::{
    errno::Errno,
    libc,
    sys::prctl,
    unistd::{chroot, fchdir},
};

use crate::{program::SpawnError, sys};

/// The namespaces that there may be, by their names below `/proc/<pid>/ns`. Without the first there is no container.
const NAMESPACES: [(&str, i32); 8] = [
    ("mnt", libc::CLONE_NEWNS),
    ("user", libc::CLONE_NEWUSER),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    // Not in every C library's headers.
    ("time", 0x80),
];

/// A container, and what it takes to go in. Nothing in here is the host's.
#[derive(Debug)]
pub(crate) struct ContainerEntry {
    process: OwnedFd,
    root: File,
    /// Those of its namespaces that are not ours.
    namespaces: i32,
    /// Folders of cgroups are entered by these.
    pub(crate) cgroups: Vec<File>,
}

impl ContainerEntry {
    /// Finds the container that is meant.
    pub(crate) fn open(inside: &ContainerNamespaces) -> Result<Self, SpawnError> {
        let found = |stat: &proc::Stat| stat.start_ticks == inside.start_ticks && !stat.is_dead();
        let is_meant = || proc::stat(inside.pid).as_ref().is_some_and(found);
        let of_it = |what: &str| format!("/proc/{}/{what}", inside.pid);
        let process = sys::pidfd_open(inside.pid).map_err(at_enter)?;
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(of_it("root"));
        let namespaces = namespaces(&of_it("ns"));
        // Who has had this number since before the handle was made is whom the handle means, and all that was read.
        if !is_meant() {
            return Err(failure(Errno::ESRCH));
        }
        let door = |folder: &std::path::PathBuf| OpenOptions::new().write(true).open(folder.join("cgroup.procs"));
        let cgroups = inside.cgroups.iter().map(door).collect::<io::Result<_>>().map_err(at(StartStep::Cgroup))?;
        Ok(Self { process, root: root.map_err(at_enter)?, namespaces: namespaces?, cgroups })
    }

    /// The descriptors that have to stay open for it.
    pub(crate) fn descriptors(&self) -> [i32; 2] {
        [self.process.as_raw_fd(), self.root.as_raw_fd()]
    }

    /// Goes in: what this process forks from here on is in the container.
    pub(crate) fn enter(&self) -> Result<(), SpawnError> {
        // Nobody in there can look into what is not the program yet.
        prctl::set_dumpable(false).map_err(failure)?;
        sys::join_namespaces(&self.process, self.namespaces).map_err(failure)?;
        // Mostly that has done it; but the root of a process need not be that of its mounts.
        fchdir(&self.root).map_err(failure)?;
        chroot(".").map_err(failure)
    }
}

/// Those of a process's namespaces that are not ours.
fn namespaces(folder: &str) -> Result<i32, SpawnError> {
    let mut differ = 0;
    for (name, flag) in NAMESPACES {
        let (theirs, ours) = (fs::metadata(format!("{folder}/{name}")), fs::metadata(format!("/proc/self/ns/{name}")));
        let (theirs, ours) = match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => (theirs, ours),
            // A kernel that does not know it.
            (_, Err(_)) => continue,
            (Err(error), Ok(_)) => return Err(at_enter(error)),
        };
        if (theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()) {
            differ |= flag;
        }
    }
    // What has the host's mounts is no container, and what ran there would run on the host.
    if differ & libc::CLONE_NEWNS == 0 { Err(failure(Errno::EXDEV)) } else { Ok(differ) }
}

/// Tells the number of the process that was forked inside.
pub(crate) fn tell(mut to: &File, pid: i32) -> io::Result<()> {
    to.write_all(&pid.to_ne_bytes())
}

fn failure(errno: Errno) -> SpawnError {
    SpawnError { step: StartStep::Enter, which: None, errno: errno as i32 }
}

fn at_enter(error: io::Error) -> SpawnError {
    at(StartStep::Enter)(error)
}

fn at(step: StartStep) -> impl Fn(io::Error) -> SpawnError {
    move |error| SpawnError { step, which: None, errno: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
}
