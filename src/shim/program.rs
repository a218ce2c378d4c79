//! The program's processes: starts one, signals it, and kills its descendants.
//!
//! **Invariant: a signal goes only to a process that cannot have become another one.** A child that is
//! not reaped yet keeps its id, and only this process, which has one thread, can reap it; so does
//! the group that it leads. Anything else is signalled through a pidfd that was verified by start time
//! while its id could not have been reused.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    time::{SystemTime, UNIX_EPOCH},
};

use muster_shim::{
    CaptureResult, Launch, MainProcessId, OutputMode, StartStep, files,
    process_identity::{self, Stat},
    sealed,
};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    unistd::{ForkResult, SysconfVar, getpid, pipe2, sysconf},
};

use crate::{child, sys};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;

/// Why a program could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpawnError {
    pub(crate) step: StartStep,
    pub(crate) which: Option<u8>,
    pub(crate) errno: i32,
}

impl From<io::Error> for SpawnError {
    fn from(error: io::Error) -> Self {
        Self { step: StartStep::Prepare, which: None, errno: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
    }
}

impl From<Errno> for SpawnError {
    fn from(errno: Errno) -> Self {
        Self { step: StartStep::Prepare, which: None, errno: errno as i32 }
    }
}

/// Standard input, output and error of a program.
pub(crate) type Stdio = [File; 3];

/// A running main process.
#[derive(Debug)]
pub(crate) struct MainProcess {
    main: MainProcessId,
    adopted: Option<AdoptedProcess>,
}

/// A main process that is not a child of this shim: another shim started it.
#[derive(Debug)]
struct AdoptedProcess {
    process: OwnedFd,
    /// Its descendants when they were last read.
    others: Vec<OwnedFd>,
}

/// A forked child that waits for permission to execute its program, and ends if the shim ends.
#[derive(Debug)]
pub(crate) struct PendingChild {
    main: MainProcessId,
    leave: File,
    failure: File,
}

/// Replaces the empty standard input by the file that the launch brought, if there is one.
#[inline(never)]
fn with_stdin(launch: &Launch, [nothing, stdout, stderr]: Stdio) -> io::Result<Stdio> {
    let stdin = match launch.output {
        OutputMode::Capture(CaptureResult { stdin: true, .. }) if launch.inside.is_some() => {
            sealed::copy(c"stdin", &mut File::open(files::STDIN)?)?
        }
        OutputMode::Capture(CaptureResult { stdin: true, .. }) => File::open(files::STDIN)?,
        _ => nothing,
    };
    Ok([stdin, stdout, stderr])
}

impl PendingChild {
    /// Forks a child for a program, with its own channel token in the environment.
    pub(crate) fn fork(launch: &Launch, token: Option<&str>, stdio: Stdio) -> Result<Self, SpawnError> {
        let prepared = child::PreparedChild::new(launch, token)?;
        let stdio = with_stdin(launch, stdio)?;
        let (leave_theirs, leave) = pipe2(OFlag::O_CLOEXEC)?;
        let (failure, failure_theirs) = pipe2(OFlag::O_CLOEXEC)?;
        let (born, born_theirs) = prepared.is_inside().then(|| pipe2(OFlag::O_CLOEXEC)).transpose()?.unzip();
        match sys::fork_process()? {
            ForkResult::Child => {
                // If the child held this end open, it would never see the shim close its own.
                drop(leave);
                prepared.run(File::from(leave_theirs), File::from(failure_theirs), born_theirs.map(File::from), &stdio)
            }
            ForkResult::Parent { child } => {
                let (leave, failure) = (File::from(leave), File::from(failure));
                drop((born_theirs, failure_theirs));
                match born {
                    Some(born) => Self::forked_inside(child.as_raw(), File::from(born), leave, failure),
                    None => Self::of(child.as_raw(), leave, failure),
                }
            }
        }
    }

    fn of(pid: i32, leave: File, failure: File) -> Result<Self, SpawnError> {
        let stat = process_identity::stat(pid).ok_or(SpawnError::from(Errno::ESRCH))?;
        let main = MainProcessId { pid, start_ticks: stat.start_ticks, started_ms: now_ms() };
        Ok(Self { main, leave, failure })
    }

    /// The process that was forked inside a container; it is a child of the shim as well.
    fn forked_inside(went: i32, mut born: File, leave: File, mut failure: File) -> Result<Self, SpawnError> {
        let mut pid = [0; 4];
        let told = born.read_exact(&mut pid);
        if told.is_ok() {
            let _ = sys::reap(went);
            return Self::of(i32::from_ne_bytes(pid), leave, failure);
        }
        // It has reported an error, or was killed. If it has forked already, that process ends without permission.
        drop(leave);
        let mut answer = Vec::new();
        let _ = failure.read_to_end(&mut answer);
        let _ = sys::reap(went);
        let killed = SpawnError { step: StartStep::Enter, which: None, errno: Errno::ECHILD as i32 };
        Err(answer.first_chunk().map_or(killed, |answer| child::failure(*answer)))
    }

    /// The process, which will execute the program.
    pub(crate) fn main(&self) -> &MainProcessId {
        &self.main
    }

    /// Permits it to execute its program.
    pub(crate) fn go(mut self) -> Result<MainProcess, SpawnError> {
        let mut answer = Vec::new();
        let allowed = self.leave.write_all(b"!");
        // Also if permission could not be given: it may have failed before.
        let told = self.failure.read_to_end(&mut answer);
        let failure = match (allowed.and(told), answer.first_chunk()) {
            (Ok(_), None) => return Ok(MainProcess { main: self.main, adopted: None }),
            (_, Some(answer)) => child::failure(*answer),
            (Err(error), None) => error.into(),
        };
        self.abandon();
        Err(failure)
    }

    /// Ends it before it has executed its program.
    pub(crate) fn abandon(self) {
        drop(self.leave);
        let _ = sys::reap(self.main.pid);
    }

    /// Ends it; the general reaping of children reaps it.
    pub(crate) fn dismiss(self) {
        let _ = sys::kill(self.main.pid, SIGKILL);
    }

    /// Sets the start time, immediately before the program runs.
    pub(crate) fn begin(&mut self) {
        self.main.started_ms = now_ms();
    }
}

impl MainProcess {
    /// Takes over a program that another shim started; `None` if it has ended.
    pub(crate) fn adopt(main: &MainProcessId) -> io::Result<Option<Self>> {
        let process = match sys::pidfd_open(main.pid) {
            Ok(process) => process,
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => return Ok(None),
            Err(error) => return Err(error),
        };
        // If the recorded process is alive now, it had its number when the handle was opened, so the handle refers to
        // it.
        if !process_identity::is_alive(main) {
            return Ok(None);
        }
        let mut program = Self { main: main.clone(), adopted: Some(AdoptedProcess { process, others: Vec::new() }) };
        program.record_descendants();
        Ok(Some(program))
    }

    /// Another process of the program as its main one; `None` if it has ended. Only a child can be reaped; of another
    /// process only the end is noticed.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let process = sys::pidfd_open(pid).ok()?;
        let stat = process_identity::stat(pid).filter(|stat| !stat.is_dead())?;
        let main = MainProcessId { pid, start_ticks: stat.start_ticks, started_ms: now_ms() };
        if stat.ppid == getpid().as_raw() {
            return Some(Self { main, adopted: None });
        }
        // Either the handle refers to the process that was read, or that process is gone and the signal fails.
        sys::pidfd_kill(&process, 0).ok()?;
        let mut program = Self { main, adopted: Some(AdoptedProcess { process, others: Vec::new() }) };
        program.record_descendants();
        Some(program)
    }

    /// The main process.
    pub(crate) fn main(&self) -> &MainProcessId {
        &self.main
    }

    /// Whether it is this process.
    pub(crate) fn is_same(&self, main: &MainProcessId) -> bool {
        (self.main.pid, self.main.start_ticks) == (main.pid, main.start_ticks)
    }

    /// The descriptor to poll for the end of a main process that is not a child.
    pub(crate) fn pidfd(&self) -> Option<&OwnedFd> {
        self.adopted.as_ref().map(|adopted| &adopted.process)
    }

    /// Sends a signal to the main process. Returns `false` if it has just ended.
    pub(crate) fn signal(&self, signal: i32) -> bool {
        let sent = match &self.adopted {
            None => sys::kill(self.main.pid, signal),
            Some(adopted) => sys::pidfd_kill(&adopted.process, signal),
        };
        sent.is_ok()
    }

    /// Sends a signal to the main process and its group, or to all known descendants of an adopted one.
    pub(crate) fn signal_group(&mut self, signal: i32) {
        self.record_descendants();
        // The main process leads its group, unless it has gone to the background: then no group has that number.
        let _ = match &self.adopted {
            None => sys::kill(-self.main.pid, signal),
            Some(adopted) => {
                adopted.others.iter().for_each(|other| drop(sys::pidfd_kill(other, signal)));
                sys::pidfd_kill(&adopted.process, signal)
            }
        };
    }

    /// Asks the program to end, and resumes it if it is suspended, because it could not react otherwise.
    pub(crate) fn ask(&mut self, signal: i32, group: bool) {
        if group {
            self.signal_group(signal);
            self.signal_group(SIGCONT);
        } else {
            self.record_descendants();
            self.signal(signal);
            self.signal(SIGCONT);
        }
    }

    /// Records the descendants of an adopted main process while it is alive: later they cannot be found.
    fn record_descendants(&mut self) {
        if let Some(adopted) = &mut self.adopted
            && process_identity::is_alive(&self.main)
        {
            let (pid, others) = (self.main.pid, &mut adopted.others);
            *others = descendants(pid, pid).into_iter().map(|(_, process)| process).collect();
        }
    }

    /// The processes that an adopted main process left behind.
    pub(crate) fn into_others(self) -> Vec<OwnedFd> {
        self.adopted.map(|adopted| adopted.others).unwrap_or_default()
    }
}

/// Kills the shim's children, except `spared`: because the shim is the subreaper, all orphaned descendants of the
/// program become its children, and are killed in the next round.
pub(crate) fn kill_children(spared: Option<i32>) {
    let own = getpid().as_raw();
    for pid in process_identity::pids().unwrap_or_default() {
        if Some(pid) != spared && process_identity::stat(pid).is_some_and(|stat| stat.ppid == own) {
            let _ = sys::kill(pid, SIGKILL);
        }
    }
}

/// Kills processes, and keeps the handles of those that still exist.
pub(crate) fn kill_others(others: &mut Vec<OwnedFd>) {
    others.retain(|other| sys::pidfd_kill(other, SIGKILL).is_ok());
}

/// Handles of all descendants of a living process, and of the processes in a session, by process id.
pub(crate) fn descendants(ancestor: i32, session: i32) -> Vec<(i32, OwnedFd)> {
    let all: Vec<(i32, Stat)> = process_identity::pids()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, process_identity::stat(pid)?)))
        .collect();
    let parent = |pid: i32| all.iter().find(|(other, _)| *other == pid).map_or(0, |(_, stat)| stat.ppid);
    let descends = |pid: i32| {
        let mut ancestors = std::iter::successors(Some(pid), |pid| Some(parent(*pid)).filter(|pid| *pid > 1));
        // A chain is never longer than the number of processes, even if it changes while it is read.
        ancestors.by_ref().take(all.len()).any(|pid| pid == ancestor)
    };
    all.iter()
        .filter(|(pid, stat)| *pid != ancestor && (descends(*pid) || stat.session == session && session > 0))
        .filter_map(|(pid, stat)| {
            let handle = sys::pidfd_open(*pid).ok()?;
            process_identity::stat(*pid)
                .is_some_and(|now| now.start_ticks == stat.start_ticks)
                .then_some((*pid, handle))
        })
        .collect()
}

/// How long a process has been running.
pub(crate) fn up_for_ms(main: &MainProcessId) -> io::Result<u64> {
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK)?.and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(100);
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    let (seconds, hundredths) = uptime
        .split_ascii_whitespace()
        .next()
        .and_then(|number| number.split_once('.'))
        .and_then(|(seconds, hundredths)| Some((seconds.parse::<u64>().ok()?, hundredths.parse::<u64>().ok()?)))
        .ok_or_else(|| io::Error::other("/proc/uptime has an unknown form"))?;
    let started_ms = main.start_ticks.saturating_mul(1_000) / ticks_per_second.max(1);
    Ok((seconds * 1_000 + hundredths * 10).saturating_sub(started_ms))
}

/// The current time, in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}
