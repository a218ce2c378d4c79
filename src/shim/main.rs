//! The shim: one small process between the agent and each program that it runs, the program's parent
//! and subreaper. It keeps the exit status, the output and the connection to the program while there is
//! no agent, and restarts the program within a budget.
//!
//! One thread, and one loop that sleeps until an event: nothing wakes an idle shim.
//!
//! Modules, in reading order:
//!
//! - [`supervise`]: the loop, which reads events and performs actions; [`shim_start`]: the way up to there
//! - [`life`]: chooses the actions, as a plain function of state and time
//! - [`program_processes`]: the living processes of a program; [`program`]: starts and signals them; [`child`]: one about to execute the program;
//!   [`enter`]: enters a container; [`program_start`]: a process kept ready; [`sys`]: the system calls that have no
//!   safe form elsewhere
//! - [`output`]: from FIFOs into files; [`log`]: a rotated one
//! - [`agent_connection`]: the agent's connection; [`notify`] and [`lines`]: the program's; [`line`]: classifies one of its
//!   lines; [`channel`]: handles them
//!
//! Usage: `muster-shim FOLDER [--adopt]`, as the `muster_shim` library says.

mod agent_connection;
mod channel;
mod child;
mod enter;
mod life;
mod line;
mod lines;
mod log;
mod notify;
mod output;
mod program;
mod program_processes;
mod program_start;
mod shim_start;
mod supervise;
#[expect(
    unsafe_code,
    reason = "fork, waitid, pidfds, namespaces, capabilities and dispositions of signals have no safe form; each use says why it is sound"
)]
mod sys;

use std::{
    env,
    ffi::OsStr,
    fs::File,
    io::{self, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::ExitCode,
};

use muster_shim::StartReport;
use nix::{
    sys::{
        prctl,
        stat::{Mode, umask},
    },
    unistd::{ForkResult, close, dup2_stderr, dup2_stdin, dup2_stdout, setsid},
};

use crate::{agent_connection::AgentPeer, program::SpawnError, supervise::Supervisor};

/// SIGHUP, SIGINT, SIGQUIT and SIGPIPE: they come from terminals, or from a write that returns an error anyway.
const IGNORED: [i32; 4] = [1, 2, 3, 13];

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let (folder, adopt) = match arguments.as_slice() {
        [folder] => (folder, false),
        [folder, flag] if flag == "--adopt" => (folder, true),
        _ => {
            let _ =
                writeln!(io::stderr(), "usage: muster-shim FOLDER [--adopt]\nThe muster agent starts this program.");
            return ExitCode::from(2);
        }
    };
    let Ok((connection, lock)) = detach() else { return ExitCode::FAILURE };
    let Ok(mut agent) = AgentPeer::new(connection) else { return ExitCode::FAILURE };
    match begin(folder, adopt, lock) {
        Ok(shim) => {
            shim.run(agent);
            ExitCode::SUCCESS
        }
        Err(SpawnError { step, which, errno }) => {
            let _ = agent.report(&StartReport::Failed { step, which, errno });
            ExitCode::FAILURE
        }
    }
}

/// Starts the program, or takes over one.
//
// Not inlined: what stands in the frames of `main` and of the loop stays in memory, of this process and of each that it forks.
#[inline(never)]
fn begin(folder: &OsStr, adopt: bool, lock: File) -> Result<Box<Supervisor>, SpawnError> {
    env::set_current_dir(folder)?;
    let shim = if adopt { Supervisor::adopt(lock) } else { Supervisor::launch(lock) };
    shim.map(Box::new)
}

/// Detaches from the agent, except for the connection and the lock, which are passed as standard input and output.
#[inline(never)]
fn detach() -> io::Result<(UnixStream, File)> {
    close_inherited()?;
    let connection: OwnedFd = clone(io::stdin())?;
    let lock: OwnedFd = clone(io::stdout())?;
    // The agent waits for the parent, and has no child to reap later.
    if let ForkResult::Parent { .. } = sys::fork_process()? {
        sys::exit_now(0);
    }
    setsid()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    // Files of this process are for the agent's user alone; a program gets the usual umask.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    IGNORED.into_iter().for_each(sys::ignore_signal);
    prctl::set_child_subreaper(true)?;
    Ok((connection.into(), lock.into()))
}

fn clone(stream: impl std::os::fd::AsFd) -> io::Result<OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}

/// Closes descriptors that were inherited by mistake: otherwise they would stay open as long as the program runs.
fn close_inherited() -> io::Result<()> {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // One of them is the folder that was just read.
        let _ = close(fd);
    }
    Ok(())
}
