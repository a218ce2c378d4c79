//! What a process has to do that is the first of its process-id namespace, as in a container without `--init`: it is the
//! parent of every process whose own parent has ended, and has to take their ends in, or they stay as zombies.
//!
//! An agent starts shims that detach themselves, so each would leave one. Who does the work must not be the one that takes
//! ends in: it would take those of its own children before they are asked for. So the first process does nothing but that,
//! and the work is done by its one child, which gets the signals that it gets, and whose end is its own.

use std::{env, io, os::unix::process::CommandExt, process::Command};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, getpid},
};

/// Signals that are meant for whoever does the work.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// If this is the first process of a namespace, does what such a one has to, with this program as the child that does the
/// work; gives the exit code once that has ended. Nothing if this process is to do the work itself.
///
/// # Errors
/// If signals cannot be blocked or the child cannot be started.
pub fn run_if_first() -> io::Result<Option<u8>> {
    let mut signals = SigSet::empty();
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).for_each(|signal| signals.add(signal));
    if getpid() != Pid::from_raw(1) {
        // A process begins with what its parent has blocked, and the first process has blocked these.
        signals.thread_unblock()?;
        return Ok(None);
    }
    // What comes from here on waits until it is asked for.
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
            // It may have ended at this moment, which the next signal says.
            signal => _ = kill(child, signal),
        }
    }
}

/// Takes in every end that there is; how the child ended, if it did.
fn take_ends_in(child: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        // Which it is is looked at before it is taken, for of the child the whole status is wanted.
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

/// The exit code that says how a child ended, as shells have it.
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
    fn a_process_that_is_not_the_first_does_the_work_itself() {
        assert_eq!(run_if_first().unwrap(), None);
    }

    #[test]
    fn the_exit_code_is_that_of_the_child_or_says_which_signal_ended_it() {
        for (status, wanted) in [
            (WaitStatus::Exited(Pid::from_raw(7), 0), 0),
            (WaitStatus::Exited(Pid::from_raw(7), 3), 3),
            (WaitStatus::Signaled(Pid::from_raw(7), Signal::SIGKILL, false), 137),
        ] {
            assert_eq!(code(status), wanted, "{status:?}");
        }
    }
}
