//! The living processes of a program: its main process, all descendants, and its cgroup if it has one.

use std::{
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::Path,
    thread::sleep,
    time::Duration,
};

use muster_shim::{MainProcessId, NEXT, cgroup::Cgroup, process_identity};
use nix::{fcntl::OFlag, unistd::getpid};

use crate::{
    program::{self, MainProcess},
    program_start::NextProcess,
    sys::{self, ReapedChild},
};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// How often to check whether a cgroup is frozen, before its processes are killed anyway. Freezing takes less than a
/// millisecond, unless a process is blocked in the kernel.
const FROZEN_TRIES: u32 = 20;
const FROZEN_TRY: Duration = Duration::from_millis(1);
/// How often to search for processes that were forked just before their parent was stopped. In each round fewer
/// processes can fork.
const SUSPEND_TRIES: u32 = 20;

/// Longest chain of parents: far longer than in real programs. It ends the search if the chain changes while it is
/// read.
const ANCESTORS_MAX: usize = 256;

/// Longest PID file that is read: the longest number, spaces, and what some programs append.
const PID_FILE_MAX_BYTES: u64 = 64;

/// All processes of a program.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    program: Option<MainProcess>,
    /// Processes that an adopted main process left behind.
    others: Vec<OwnedFd>,
    cgroup: Cgroup,
    /// The process that waits to become the next main process. It does not count as a process of the program.
    pub(crate) next: Option<NextProcess>,
    /// Number of processes that were killed for lack of memory before this main process started.
    oom_kills_before: u64,
}

impl ProcessTree {
    /// An empty tree, in a cgroup that the agent created.
    pub(crate) fn new(cgroup: Cgroup) -> Self {
        Self { program: None, others: Vec::new(), oom_kills_before: cgroup.oom_kills(), cgroup, next: None }
    }

    /// Whether a process may wait in the cgroup to become the next main process: there is a cgroup, its limits allow
    /// one more process, and this kernel lists children.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        !self.cgroup.is_none() && !self.cgroup.limits_processes() && process_identity::children().is_some()
    }

    /// The process that waits to become the next main process.
    fn waiting(&self) -> Option<i32> {
        self.next.as_ref().map(NextProcess::pid)
    }

    /// Called before the main process runs.
    pub(crate) fn begin(&mut self) {
        self.oom_kills_before = self.cgroup.oom_kills();
    }

    /// Called when the main process runs.
    pub(crate) fn live(&mut self, program: MainProcess) {
        self.program = Some(program);
    }

    /// Called when the main process has ended. Returns whether the kernel killed a process of the program for lack of
    /// memory.
    pub(crate) fn main_ended(&mut self) -> bool {
        self.others = self.program.take().map(MainProcess::into_others).unwrap_or_default();
        self.cgroup.oom_kills() > self.oom_kills_before
    }

    /// The main process, if it is a child of the shim, which reaps it.
    pub(crate) fn child(&self) -> Option<&MainProcessId> {
        self.program.as_ref().filter(|program| program.pidfd().is_none()).map(MainProcess::main)
    }

    /// The main process, if it is not a child of the shim.
    pub(crate) fn adopted(&self) -> Option<(&MainProcessId, &OwnedFd)> {
        self.program.as_ref().and_then(|program| Some((program.main(), program.pidfd()?)))
    }

    /// Sends a signal to the main process. Returns `false` if there is none or if sending fails.
    pub(crate) fn signal(&self, signal: i32) -> bool {
        self.program.as_ref().is_some_and(|program| program.signal(signal))
    }

    /// Asks the program to end.
    pub(crate) fn ask(&mut self, signal: i32, group: bool) {
        if let Some(program) = &mut self.program {
            program.ask(signal, group);
        }
    }

    /// Kills all processes.
    pub(crate) fn kill(&mut self) {
        // The kernel's kill would also kill the waiting process.
        if self.next.is_some() || !self.cgroup.kill() {
            self.kill_members();
        }
        if let Some(program) = &mut self.program {
            program.signal_group(SIGKILL);
        }
        program::kill_others(&mut self.others);
        if self.has_children() {
            program::kill_children(self.waiting());
        }
    }

    /// Kills the processes of the cgroup one by one. While it is frozen, none can escape by forking.
    fn kill_members(&self) {
        if self.members().is_empty() {
            return;
        }
        if self.cgroup.set_frozen(true) {
            for _ in 0..FROZEN_TRIES {
                if self.cgroup.is_frozen() {
                    break;
                }
                sleep(FROZEN_TRY);
            }
        }
        let found: Vec<(i32, OwnedFd)> =
            self.members().into_iter().filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?))).collect();
        // A number that is still listed is a process in the cgroup: either the one of the handle, or a later one; in
        // that case the handle's process has ended and the signal reaches nobody.
        let still = self.members();
        for (_, process) in found.iter().filter(|(pid, _)| still.contains(pid)) {
            let _ = sys::pidfd_kill(process, SIGKILL);
        }
        let _ = self.cgroup.set_frozen(false);
    }

    /// Whether no process is left.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.others.retain(|other| sys::pidfd_kill(other, 0).is_ok());
        self.others.is_empty() && !self.has_children() && self.members().is_empty()
    }

    /// The processes in the cgroup.
    fn members(&self) -> Vec<i32> {
        let mut members = self.cgroup.members();
        members.retain(|pid| Some(*pid) != self.waiting());
        members
    }

    /// Whether the shim has other children than the waiting process.
    fn has_children(&self) -> bool {
        match self.waiting() {
            None => !matches!(sys::peek(), Ok(ReapedChild::NoChildren)),
            Some(waiting) => {
                process_identity::children().is_none_or(|children| children.into_iter().any(|pid| pid != waiting))
            }
        }
    }

    /// The remaining processes beside the one that has ended, oldest first: children of the shim, which it reaps, or
    /// else the processes of the cgroup. The process that waits to be the next main process, or is about to be
    /// dismissed, is not included.
    fn left(&self, ended: i32) -> Vec<i32> {
        let own = getpid().as_raw();
        let alive = |pid: i32| {
            let stat = process_identity::stat(pid).filter(|stat| !stat.is_dead() && pid != ended)?;
            process_identity::name(pid).is_none_or(|name| name != NEXT).then_some((stat.start_ticks, pid, stat.ppid))
        };
        let mut left: Vec<_> = process_identity::pids().unwrap_or_default().into_iter().filter_map(alive).collect();
        left.retain(|(_, _, parent)| *parent == own);
        if left.is_empty() {
            left = self.cgroup.own_members().into_iter().filter_map(alive).collect();
        }
        left.sort_unstable();
        left.into_iter().map(|(_, pid, _)| pid).collect()
    }

    /// Whether processes remain beside the one that has ended.
    pub(crate) fn has_left(&self, ended: i32) -> bool {
        !self.left(ended).is_empty()
    }

    /// The oldest remaining process beside the one that has ended.
    pub(crate) fn oldest_left(&self, ended: i32) -> Option<MainProcess> {
        self.left(ended).into_iter().find_map(MainProcess::of)
    }

    /// The process that a PID file names, if it exists and belongs to the program.
    pub(crate) fn named(&self, pid_file: &str) -> Option<MainProcess> {
        let pid = read_pid(Path::new(pid_file)).filter(|pid| Some(*pid) != self.waiting())?;
        // The handle is opened first, so that the check is about the same process.
        let program = MainProcess::of(pid)?;
        (pid != getpid().as_raw() && self.is_part(pid)).then_some(program)
    }

    /// Suspends all processes until they are thawed.
    pub(crate) fn freeze(&mut self) {
        if self.cgroup.set_frozen(true) {
            return;
        }
        let mut suspended = Vec::new();
        for _ in 0..SUSPEND_TRIES {
            let mut family = self.family();
            family.retain(|(pid, _)| !suspended.contains(pid));
            if family.is_empty() {
                return;
            }
            for (pid, process) in family {
                let _ = sys::pidfd_kill(&process, SIGSTOP);
                suspended.push(pid);
            }
        }
    }

    /// Resumes all processes.
    pub(crate) fn thaw(&mut self) {
        if self.cgroup.set_frozen(false) {
            return;
        }
        for (_, process) in self.family() {
            let _ = sys::pidfd_kill(&process, SIGCONT);
        }
    }

    /// The main process and all known descendants.
    fn family(&self) -> Vec<(i32, OwnedFd)> {
        match self.adopted() {
            Some((main, _)) => {
                let alive = || sys::pidfd_open(main.pid).ok().filter(|_| process_identity::is_alive(main));
                let mut family = program::descendants(main.pid, main.pid);
                family.extend(alive().map(|process| (main.pid, process)));
                family
            }
            // The shim is the subreaper of all of them; its only other child is the waiting process.
            None => {
                let mut family = program::descendants(getpid().as_raw(), 0);
                family.retain(|(pid, _)| Some(*pid) != self.waiting());
                family
            }
        }
    }

    /// Whether a process belongs to the program now.
    pub(crate) fn is_part(&self, pid: i32) -> bool {
        let Some(program) = &self.program else { return false };
        let (main, own) = (program.main().pid, getpid().as_raw());
        let mut ancestors =
            std::iter::successors(Some(pid), |pid| Some(process_identity::stat(*pid)?.ppid).filter(|pid| *pid > 1));
        pid == main
            || ancestors.by_ref().take(ANCESTORS_MAX).skip(1).any(|ancestor| [main, own].contains(&ancestor))
            || process_identity::stat(pid).is_some_and(|stat| stat.session == main)
            || self.cgroup.members().contains(&pid)
    }

    /// Removes the cgroup.
    pub(crate) fn remove(&self) {
        self.cgroup.remove();
    }
}

/// The number in a PID file. The program controls this file, so it can be anything, even a pipe without a writer.
fn read_pid(path: &Path) -> Option<i32> {
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(PID_FILE_MAX_BYTES).read_to_end(&mut text).ok()?;
    let first = std::str::from_utf8(&text).ok()?.split_ascii_whitespace().next()?;
    first.parse().ok().filter(|pid| *pid > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_id_file_is_parsed_strictly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        assert_eq!(read_pid(&path), None);
        for (content, pid) in [
            ("12\n", Some(12)),
            ("  12  \nmore", Some(12)),
            ("12", Some(12)),
            ("1", None),
            ("0", None),
            ("-5", None),
            ("", None),
            ("x12", None),
            ("99999999999999", None),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read_pid(&path), pid, "{content:?}");
        }
        assert_eq!(read_pid(folder.path()), None);
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_pid(&path), None, "nobody waits for who writes to a pipe");
    }
}
