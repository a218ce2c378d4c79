//! Init process for a container without `--init`. The first process of a pid namespace becomes the
//! parent of every orphan and has to reap it, or zombies pile up.
//!
//! An agent starts shims that detach themselves, and each would leave a zombie. The process that does the agent's work must not
//! reap orphans, because it would also reap its own children before their exit codes are read. So the first process
//! only reaps, forwards signals to its one child, which does the work, and ends as that child ends.

use std::{env, io, os::unix::process::CommandExt, process::Command};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, getpid},
};

/// Signals that are passed on to the child.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// If this is the first process of a PID namespace, acts as its init, with this program as the child that does the
/// work, and returns the exit code once that has ended. Returns `None` if this process is to do the work itself.
///
/// # Errors
/// If signals cannot be blocked or the child cannot be started.
pub fn run_if_first() -> io::Result<Option<u8>> {
    let mut signals = SigSet::empty();
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).for_each(|signal| signals.add(signal));
    if getpid() != Pid::from_raw(1) {
        // A process inherits blocked signals from its parent, and the first process has blocked these.
        signals.thread_unblock()?;
        return Ok(None);
    }
    // From here on signals wait until they are read.
    signals.thread_block()?;
    let mut arguments = env::args_os();
    let mut command = Command::new(env::current_exe()?);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let child = command.args(arguments).spawn()?;
    let child = Pid::from_raw(child.id().cast_signed());
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(status) = take_ends_in(child)? {
                    return Ok(Some(code(status)));
                }
            }
            // If it has just ended, the next signal is SIGCHLD.
            signal => _ = kill(child, signal),
        }
    }
}

/// Reaps all ended children; returns how the child ended, if it did.
fn take_ends_in(child: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        // Each is identified before it is reaped, because the child's full status is needed.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let ended = match waitid(Id::All, flags) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(status) => status.pid(),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let Some(ended) = ended else { return Ok(None) };
        let status = waitpid(ended, Some(WaitPidFlag::WNOHANG))?;
        if ended == child {
            return Ok(Some(status));
        }
    }
}

/// Returns the exit code for a child's status, as shells do.
fn code(status: WaitStatus) -> u8 {
    let code = match status {
        WaitStatus::Exited(_, code) => code,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as i32,
        _ => 1,
    };
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_other_than_first_does_not_fork() {
        assert_eq!(run_if_first().unwrap(), None);
    }

    #[test]
    fn exit_code_is_the_childs() {
        for (status, wanted) in [
            (WaitStatus::Exited(Pid::from_raw(7), 0), 0),
            (WaitStatus::Exited(Pid::from_raw(7), 3), 3),
            (WaitStatus::Signaled(Pid::from_raw(7), Signal::SIGKILL, false), 137),
        ] {
            assert_eq!(code(status), wanted, "{status:?}");
        }
    }
}
