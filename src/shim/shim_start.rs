//! Starts of a shim: with a program to start, or with one that another shim has left.

use std::{fs::File, io, os::unix::net::UnixListener, time::Instant};

use muster_shim::{
    MainProcessId, PROTOCOL, ProcessExit, ProgramState,
    files::{self, StateFile},
    process_identity,
};
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

use crate::{
    life::{LifeInput, ProgramLife},
    lines::ChannelListener,
    notify::NotifySocket,
    output::ProgramOutput,
    program::{self, MainProcess, SpawnError},
    program_processes::ProcessTree,
    supervise::{ProgramSocket, SIGKILL, StateRecord, Supervisor, Telling, ended, folder},
};

impl Supervisor {
    /// Starts the program that `launch.json` describes.
    pub(crate) fn launch(lock: File) -> Result<Self, SpawnError> {
        let launch = files::read_launch(folder())?;
        if launch.protocol != PROTOCOL {
            return Err(Errno::EPROTO.into());
        }
        let state = ProgramState::new(process_identity::boot_id()?);
        let outputs = ProgramOutput::create(&launch)?;
        let mut shim = Self::new(ProgramLife::new(launch, 0, 0, false), state, outputs, lock)?;
        let started = shim.listen_to_program().map_err(SpawnError::from).and_then(|()| shim.start());
        match started {
            Ok(()) => Ok(shim),
            Err(failure) => {
                shim.body.remove();
                let _ = files::clear(folder());
                Err(failure)
            }
        }
    }

    /// Takes over from a shim that was killed.
    pub(crate) fn adopt(lock: File) -> Result<Self, SpawnError> {
        let launch = files::read_launch(folder())?;
        let StateFile::State(state) = files::read_state(folder())? else { return Err(Errno::ENOENT.into()) };
        if state.over || state.boot_id != boot_id() {
            return Err(Errno::ESRCH.into());
        }
        let _ = std::fs::remove_file(files::SOCKET);
        let outputs = ProgramOutput::open(&launch, state.dropped_bytes)?;
        let main = state.main.clone();
        let up_for_ms = main.as_ref().map(program::up_for_ms).transpose()?;
        let life = ProgramLife::new(launch, state.restarts, up_for_ms.unwrap_or_default(), state.notified.ready);
        let program = main.as_ref().map(MainProcess::adopt).transpose()?.flatten();
        let mut shim = Self::new(life, state, outputs, lock)?;
        // If another process uses that name now, the program cannot send messages, but it continues to run.
        let _ = shim.listen_to_program();
        // The program will reconnect.
        shim.hang_up();
        match (program, main) {
            (Some(program), _) => {
                shim.body.live(program);
                shim.want_next();
                shim.read_pid_file();
                if shim.state.frozen {
                    // The earlier shim may have been killed after it recorded the freeze and before it performed it.
                    shim.body.freeze();
                    shim.life.on(LifeInput::Frozen, 0);
                }
            }
            (None, main) => shim.end_adopted(main),
        }
        Ok(shim)
    }

    /// The main process to adopt is gone; ends what may be left of the program.
    fn end_adopted(&mut self, main: Option<MainProcessId>) {
        // Nobody saw how it ended, so it is not known whether it should be started again.
        self.life.on(LifeInput::Stop { signal: SIGKILL, grace_ms: 0 }, 0);
        match (main, &self.state.last) {
            (None, Some(last)) => self.feed(LifeInput::MainEnded(last.exit)),
            (main, _) => self.main_ended(ended(ProcessExit::Unknown, main.map(|main| main.started_ms))),
        }
        self.settle();
    }

    fn listen_to_program(&mut self) -> io::Result<()> {
        match &self.life.launch().notify {
            Some(muster_shim::NotifyKind { name, lines: None, .. }) => {
                self.socket = ProgramSocket::Notify { socket: NotifySocket::open(name)?, has_complained: false };
            }
            Some(muster_shim::NotifyKind { name, lines: Some(_), .. }) => {
                self.socket = ProgramSocket::Lines(ChannelListener::open(name)?);
            }
            None => {}
        }
        Ok(())
    }

    fn new(life: ProgramLife, state: ProgramState, outputs: ProgramOutput, lock: File) -> Result<Self, SpawnError> {
        let mut watched = SigSet::empty();
        watched.add(Signal::SIGCHLD);
        watched.add(Signal::SIGTERM);
        watched.thread_block()?;
        Ok(Self {
            state,
            record: StateRecord::Current,
            telling: Telling::Done,
            body: ProcessTree::new(life.launch().cgroup.clone()),
            life,
            outputs,
            signals: SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
            entrance: Some((listen()?, lock)),
            agent: None,
            began: Instant::now(),
            quit: false,
            asked_to_stop: false,
            socket: ProgramSocket::None,
            next_at_ms: None,
            look_at_ms: None,
            shrunk_at: None,
        })
    }
}

fn boot_id() -> String {
    process_identity::boot_id().unwrap_or_default()
}

fn listen() -> io::Result<UnixListener> {
    // Bound relative to the current folder, because a socket's path may have at most 108 bytes.
    let listener = UnixListener::bind(files::SOCKET)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
