//! How a shim begins: with a program that is to be started, or with one that another shim has left.

use std::{fs::File, io, os::unix::net::UnixListener, time::Instant};

use muster_shim::{
    Exit, Main, State, VERSION,
    files::{self, Found},
    proc,
};
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

use crate::{
    body::Body,
    life::{Input, Life},
    lines::Lines,
    notify::Notify,
    output::Outputs,
    program::{self, Failure, Program},
    supervise::{SIGKILL, Shim, ended, folder},
};

impl Shim {
    /// Starts the program that `launch.json` names.
    pub(crate) fn launch(lock: File) -> Result<Self, Failure> {
        let launch = files::read_launch(folder())?;
        if launch.v != VERSION {
            return Err(Errno::EPROTO.into());
        }
        let state = State::new(proc::boot_id()?);
        let outputs = Outputs::create(&launch)?;
        let mut shim = Self::new(Life::new(launch, 0, 0, false), state, outputs, lock)?;
        let started = shim.listen_to_program().map_err(Failure::from).and_then(|()| shim.start());
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
    pub(crate) fn adopt(lock: File) -> Result<Self, Failure> {
        let launch = files::read_launch(folder())?;
        let Found::State(state) = files::read_state(folder())? else { return Err(Errno::ENOENT.into()) };
        if state.over || state.boot_id != boot_id() {
            return Err(Errno::ESRCH.into());
        }
        let _ = std::fs::remove_file(files::SOCKET);
        let outputs = Outputs::open(&launch, state.dropped_bytes)?;
        let main = state.main.clone();
        let up_for_ms = main.as_ref().map(program::up_for_ms).transpose()?;
        let life = Life::new(launch, state.restarts, up_for_ms.unwrap_or_default(), state.notified.ready);
        let program = main.as_ref().map(Program::adopt).transpose()?.flatten();
        let mut shim = Self::new(life, state, outputs, lock)?;
        // If somebody has taken its name meanwhile, the program is not heard, and lives.
        let _ = shim.listen_to_program();
        // It will connect anew.
        shim.hang_up();
        match (program, main) {
            (Some(program), _) => {
                shim.body.live(program);
                shim.want_next();
                shim.look_for_main();
                if shim.state.frozen {
                    // The shim before may have been killed when it had said so and not yet done so.
                    shim.body.freeze();
                    shim.life.on(Input::Frozen, 0);
                }
            }
            (None, main) => shim.end_adopted(main),
        }
        Ok(shim)
    }

    /// There is no main process to adopt, but perhaps something is left of it.
    fn end_adopted(&mut self, main: Option<Main>) {
        // Nobody saw it end, so nobody may say that starting it again is what was wanted.
        self.life.on(Input::Stop { signal: SIGKILL, grace_ms: 0 }, 0);
        match (main, &self.state.last) {
            (None, Some(last)) => self.feed(Input::MainEnded(last.exit)),
            (main, _) => self.main_ended(ended(Exit::Unknown, main.map(|main| main.started_ms))),
        }
        self.settle();
    }

    fn listen_to_program(&mut self) -> io::Result<()> {
        match &self.life.launch().notify {
            Some(muster_shim::Notify { name, lines: None, .. }) => self.notify = Some(Notify::open(name)?),
            Some(muster_shim::Notify { name, lines: Some(_), .. }) => self.lines = Some(Lines::open(name)?),
            None => {}
        }
        Ok(())
    }

    fn new(life: Life, state: State, outputs: Outputs, lock: File) -> Result<Self, Failure> {
        let mut watched = SigSet::empty();
        watched.add(Signal::SIGCHLD);
        watched.add(Signal::SIGTERM);
        watched.thread_block()?;
        Ok(Self {
            state,
            unrecorded: false,
            untold: false,
            closed: false,
            body: Body::new(life.launch().cgroup.clone()),
            life,
            outputs,
            signals: SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
            listener: Some(listen()?),
            agent: None,
            began: Instant::now(),
            lock: Some(lock),
            quit: false,
            asked_to_stop: false,
            notify: None,
            lines: None,
            complained: false,
            tell_at_ms: None,
            next_at_ms: None,
            look_at_ms: None,
            shrunk_at: None,
        })
    }
}

fn boot_id() -> String {
    proc::boot_id().unwrap_or_default()
}

fn listen() -> io::Result<UnixListener> {
    // Bound from within its folder, for a socket's path may have no more than 108 bytes.
    let listener = UnixListener::bind(files::SOCKET)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
