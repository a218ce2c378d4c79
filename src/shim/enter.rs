//! Enters a container.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
};

use muster_shim::{ContainerNamespaces, StartStep, process_identity};
use nix::{
    errno::Errno,
    libc,
    sys::prctl,
    unistd::{chroot, fchdir},
};

use crate::{program::SpawnError, sys};

/// The namespaces, by their names below `/proc/<pid>/ns`. A process without its own mount namespace (the first) is not
/// in a container.
const NAMESPACES: [(&str, i32); 8] = [
    ("mnt", libc::CLONE_NEWNS),
    ("user", libc::CLONE_NEWUSER),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    // Not defined by all C libraries.
    ("time", 0x80),
];

/// A container, and what is needed to enter it. It holds nothing of the host.
#[derive(Debug)]
pub(crate) struct ContainerEntry {
    process: OwnedFd,
    root: File,
    /// Its namespaces that differ from the shim's.
    namespaces: i32,
    /// The files through which a process enters its cgroups.
    pub(crate) cgroups: Vec<File>,
}

impl ContainerEntry {
    /// Opens the container of the given process.
    pub(crate) fn open(inside: &ContainerNamespaces) -> Result<Self, SpawnError> {
        let found = |stat: &process_identity::Stat| stat.start_ticks == inside.start_ticks && !stat.is_dead();
        let is_meant = || process_identity::stat(inside.pid).as_ref().is_some_and(found);
        let of_it = |what: &str| format!("/proc/{}/{what}", inside.pid);
        let process = sys::pidfd_open(inside.pid).map_err(at_enter)?;
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(of_it("root"));
        let namespaces = namespaces(&of_it("ns"));
        // If the process still has this number and start time, the handle and everything that was read belong to it.
        if !is_meant() {
            return Err(failure(Errno::ESRCH));
        }
        let door = |folder: &std::path::PathBuf| OpenOptions::new().write(true).open(folder.join("cgroup.procs"));
        let cgroups = inside.cgroups.iter().map(door).collect::<io::Result<_>>().map_err(at(StartStep::Cgroup))?;
        Ok(Self { process, root: root.map_err(at_enter)?, namespaces: namespaces?, cgroups })
    }

    /// The descriptors that must stay open until it is entered.
    pub(crate) fn descriptors(&self) -> [i32; 2] {
        [self.process.as_raw_fd(), self.root.as_raw_fd()]
    }

    /// Enters it: processes that are forked from now on are in the container.
    pub(crate) fn enter(&self) -> Result<(), SpawnError> {
        // Processes inside must not inspect this one before it executes the program.
        prctl::set_dumpable(false).map_err(failure)?;
        sys::join_namespaces(&self.process, self.namespaces).map_err(failure)?;
        // Joining the mount namespace usually changes the root too, but a process may have another root.
        fchdir(&self.root).map_err(failure)?;
        chroot(".").map_err(failure)
    }
}

/// The namespaces of a process that differ from the shim's.
fn namespaces(folder: &str) -> Result<i32, SpawnError> {
    let mut differ = 0;
    for (name, flag) in NAMESPACES {
        let (theirs, ours) = (fs::metadata(format!("{folder}/{name}")), fs::metadata(format!("/proc/self/ns/{name}")));
        let (theirs, ours) = match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => (theirs, ours),
            // This kernel does not support it.
            (_, Err(_)) => continue,
            (Err(error), Ok(_)) => return Err(at_enter(error)),
        };
        if (theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()) {
            differ |= flag;
        }
    }
    // A process with the host's mounts is not in a container; the program would run on the host.
    if differ & libc::CLONE_NEWNS == 0 { Err(failure(Errno::EXDEV)) } else { Ok(differ) }
}

/// Reports the number of the process that was forked inside.
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
