//! The shim's loop: waits for events, asks [`ProgramLife`] for actions, and performs them.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::{fd::AsFd, unix::net::UnixListener},
    path::Path,
    time::{Duration, Instant},
};

use muster_shim::{
    Notified, ProcessExit, ProgramEnd, ProgramState, ShimRequest, StartReport,
    files::{self, StateFile},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{signal::Signal, signalfd::SignalFd},
};

use crate::{
    agent_connection::{AgentPeer, PeerGone},
    life::{LifeInput, LifeStep, ProgramLife},
    lines::ChannelListener,
    notify::{NotifyMessage, NotifySocket},
    output::ProgramOutput,
    program::{MainProcess, now_ms},
    program_processes::ProcessTree,
    sys::{self, ReapedChild},
};

pub(crate) const SIGKILL: i32 = 9;
/// Largest number of the program's messages that are read before other work gets a turn: twice the default length of a
/// socket's queue.
const MESSAGES_MAX: u32 = 20;
/// Delay of status messages, so that not each of many is sent.
const STATUS_PAUSE_MS: u64 = 250;
/// Interval at which recording the end is repeated if it fails, for example because the disk is full.
const RECORD_AGAIN_MS: u64 = 1_000;
/// Interval at which memory is released before sleeping. It costs some microseconds, and the same again after waking
/// up, which would be too much for each line of a busy log.
const SHRINK_EVERY: Duration = Duration::from_secs(10);
/// Interval at which the PID file of a program that goes to the background is read.
const LOOK_AGAIN_MS: u64 = 50;
/// A shell's exit codes for a program that is not found, and for one that cannot be executed.
const CODE_NOT_FOUND: i32 = 127;
const CODE_NOT_EXECUTABLE: i32 = 126;

/// A running shim. Its folder is the working directory.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) life: ProgramLife,
    pub(crate) state: ProgramState,
    /// How `state.json` compares with the state.
    pub(crate) record: StateRecord,
    /// How what the agent was sent compares with the state.
    pub(crate) telling: Telling,
    pub(crate) body: ProcessTree,
    pub(crate) outputs: ProgramOutput,
    pub(crate) signals: SignalFd,
    /// The socket for agents, with the lock that is held while a program may be started here; neither once the end is
    /// recorded.
    pub(crate) entrance: Option<(UnixListener, File)>,
    pub(crate) agent: Option<AgentPeer>,
    pub(crate) began: Instant,
    /// The shim was asked to end itself.
    pub(crate) quit: bool,
    /// The agent has asked for the end of the program.
    pub(crate) asked_to_stop: bool,
    /// When memory was last released.
    pub(crate) shrunk_at: Option<Instant>,
    /// Where the program sends its messages.
    pub(crate) socket: ProgramSocket,
    /// When the program's next process is prepared.
    pub(crate) next_at_ms: Option<u64>,
    /// When the PID file is read next.
    pub(crate) look_at_ms: Option<u64>,
}

/// How `state.json` compares with the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateRecord {
    /// It says the same.
    Current,
    /// It differs.
    Outdated,
    /// It says that the program is over; or its folder was removed, and with it every possible reader.
    Closed,
}

/// How what the agent was sent compares with the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// It says the same.
    Done,
    /// It differs in something that is not urgent, and is sent at this time.
    At(u64),
    /// It differs.
    Due,
}

/// Where the program sends its messages.
#[derive(Debug)]
pub(crate) enum ProgramSocket {
    /// Nowhere.
    None,
    /// Its notify socket.
    Notify {
        socket: NotifySocket,
        /// A warning about ignored messages was written to the program's log.
        has_complained: bool,
    },
    /// Its channel of JSON lines.
    Lines(ChannelListener),
}

impl ProgramSocket {
    fn notify(&self) -> Option<&NotifySocket> {
        if let Self::Notify { socket, .. } = self { Some(socket) } else { None }
    }

    fn lines(&self) -> Option<&ChannelListener> {
        if let Self::Lines(lines) = self { Some(lines) } else { None }
    }

    pub(crate) fn lines_mut(&mut self) -> Option<&mut ChannelListener> {
        if let Self::Lines(lines) = self { Some(lines) } else { None }
    }
}

/// The result of poll.
#[derive(Debug, Default)]
struct PollReady {
    signals: bool,
    main_ended: bool,
    connecting: bool,
    agent: bool,
    speaking: bool,
    lines: bool,
}

impl Supervisor {
    /// Runs until the program is over, and until its output is drained.
    pub(crate) fn run(mut self: Box<Self>, agent: AgentPeer) {
        self.agent = Some(agent);
        let report = if self.life.is_over() { StartReport::Over } else { StartReport::Started };
        self.tell(|agent, shim| agent.report(&report).and_then(|()| agent.state(&shim.state)));
        self.telling = Telling::Done;
        while !self.is_done() {
            let ready = self.wait();
            if ready.speaking {
                // Before its end is handled: these may be its last messages.
                self.hear();
            }
            if ready.lines {
                self.handle_lines();
            }
            if ready.signals {
                self.take_signals();
            }
            if ready.main_ended {
                self.adopted_ended();
            }
            if ready.agent {
                self.serve();
            }
            if ready.connecting {
                self.accept();
            }
            self.outputs.pump();
            self.feed(LifeInput::Tick);
            if matches!(self.telling, Telling::At(at_ms) if at_ms <= self.now_ms()) {
                self.telling = Telling::Due;
            }
            if self.next_at_ms.is_some_and(|at_ms| at_ms <= self.now_ms()) {
                self.prepare_next();
            }
            if self.look_at_ms.is_some_and(|at_ms| at_ms <= self.now_ms()) {
                self.read_pid_file();
            }
            if self.life.is_draining() && self.outputs.ended() {
                self.feed(LifeInput::OutputEnded);
            }
            self.settle();
        }
    }

    /// Whether nothing is left to do: the end is recorded, and no process writes output.
    fn is_done(&self) -> bool {
        self.is_closed() && (self.outputs.ended() || !self.life.is_command() || self.quit)
    }

    fn is_closed(&self) -> bool {
        self.record == StateRecord::Closed
    }

    /// Notes a change of the state, which is to be recorded and sent.
    pub(crate) fn changed(&mut self) {
        (self.record, self.telling) = (StateRecord::Outdated, Telling::Due);
    }

    /// Sleeps until an event or the next deadline.
    fn wait(&mut self) -> PollReady {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.signals.as_fd())];
        let main = self.body.adopted().map(|(_, process)| readable(process.as_fd()));
        let listener = self.entrance.as_ref().map(|(listener, _)| readable(listener.as_fd()));
        let agent = self.agent.as_ref().map(|agent| {
            let writable = if agent.has_unsent() { PollFlags::POLLOUT } else { PollFlags::empty() };
            PollFd::new(agent.fd(), PollFlags::POLLIN | writable)
        });
        let notify = self.socket.notify().map(|notify| readable(notify.fd()));
        // Four fixed positions, which are checked again below, then the channel's, then the output's.
        let places = [main, listener, agent, notify];
        fds.extend(places.iter().flatten().cloned());
        let before = fds.len();
        fds.extend(self.socket.lines().into_iter().flat_map(ChannelListener::watched));
        let of_lines = fds.len() - before;
        fds.extend(self.outputs.watched().map(readable));
        let timeout = self.timeout();
        if timeout.is_none() && self.shrunk_at.is_none_or(|at| at.elapsed() >= SHRINK_EVERY) {
            self.shrunk_at = Some(Instant::now());
            sys::shrink();
        }
        if poll(&mut fds, timeout).is_err() {
            // Interrupted by a signal: the next poll reports the same events.
            return PollReady::default();
        }
        let mut found = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let signals = found.next().unwrap_or(false);
        let [main_ended, connecting, agent, speaking] =
            places.map(|place| place.is_some() && found.next().unwrap_or(false));
        let lines = found.take(of_lines).any(|ready| ready);
        PollReady { signals, main_ended, connecting, agent, speaking, lines }
    }

    fn timeout(&self) -> PollTimeout {
        let record_again = self.life.is_over() && !self.is_closed();
        let wake_at_ms = self.life.wake_at_ms();
        let tell_at_ms = if let Telling::At(at_ms) = self.telling { Some(at_ms) } else { None };
        let wake_at_ms = [wake_at_ms, tell_at_ms, self.next_at_ms, self.look_at_ms].into_iter().flatten().min();
        let wait_ms = match wake_at_ms {
            Some(at_ms) => Some(at_ms.saturating_sub(self.now_ms())),
            None => record_again.then_some(RECORD_AGAIN_MS),
        };
        wait_ms.map_or(PollTimeout::NONE, |ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX))
    }

    /// Milliseconds since the shim began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn take_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == Signal::SIGTERM as u32 {
                self.quit = true;
                let launch = self.life.launch();
                self.feed(LifeInput::Stop { signal: launch.stop_signal, grace_ms: launch.grace_ms });
            }
        }
        self.reap();
    }

    /// Reaps all children that have ended; one of them may be the main process.
    fn reap(&mut self) {
        while let Ok(ReapedChild::Ended { pid, exit, core_dumped }) = sys::peek() {
            let main = self.body.child().filter(|main| main.pid == pid).map(|main| main.started_ms);
            // As long as it is not reaped, its number and that of its group are not reused.
            let successor = main.and_then(|_| self.successor(pid, exit));
            let left_some = main.is_some() && self.life.looks_like_fork(exit, self.now_ms()) && self.body.has_left(pid);
            if main.is_some() && successor.is_none() && !self.life.is_command() {
                let _ = sys::kill(-pid, SIGKILL);
            }
            if sys::reap(pid).is_err() {
                return;
            }
            self.reaped_next(pid);
            match successor {
                Some(program) => self.hand_over(program),
                None if main.is_some() => self.main_ended(ProgramEnd { core_dumped, left_some, ..ended(exit, main) }),
                None => {}
            }
        }
        self.check_remaining();
    }

    fn adopted_ended(&mut self) {
        let Some((pid, started_ms)) = self.body.adopted().map(|(main, _)| (main.pid, main.started_ms)) else { return };
        match self.successor(pid, ProcessExit::Unknown) {
            Some(program) => self.hand_over(program),
            None => self.main_ended(ended(ProcessExit::Unknown, Some(started_ms))),
        }
    }

    /// The process that becomes the main one after the main one has ended, if the program goes to the background: the
    /// one in the PID file, at any time, or during the start the oldest that remains.
    fn successor(&self, ended: i32, exit: ProcessExit) -> Option<MainProcess> {
        if !self.life.may_fork() {
            return None;
        }
        let named = self.pid_file().and_then(|path| self.body.named(path));
        let is_fork = self.life.is_fork(exit, self.now_ms());
        named.or_else(|| self.body.oldest_left(ended).filter(|_| is_fork))
    }

    fn pid_file(&self) -> Option<&str> {
        self.life.launch().forking.as_ref()?.pid_file.as_deref()
    }

    /// Makes another process the main one; unless a PID file is expected, the program is then ready. This is recorded
    /// first, so that a later shim finds it.
    fn hand_over(&mut self, program: MainProcess) {
        let main = program.main().clone();
        let is_up = self.pid_file().is_none_or(|path| self.body.named(path).is_some_and(|named| named.is_same(&main)));
        self.state.main = Some(main);
        self.state.notified.ready |= is_up;
        self.body.live(program);
        self.changed();
        let _ = self.write_record(false);
        self.feed(LifeInput::Forked);
        if is_up {
            self.feed(LifeInput::Ready);
        }
        self.look_at_ms = (!self.life.is_ready()).then(|| self.now_ms() + LOOK_AGAIN_MS);
    }

    /// Reads the PID file, if the program has written it by now.
    pub(crate) fn read_pid_file(&mut self) {
        self.look_at_ms = None;
        if !self.life.may_fork() || self.life.is_ready() {
            return;
        }
        let Some(path) = self.pid_file() else { return };
        match self.body.named(path) {
            Some(program) => self.hand_over(program),
            None => self.look_at_ms = Some(self.now_ms() + LOOK_AGAIN_MS),
        }
    }

    /// The main process has ended, with what is known about its end.
    pub(crate) fn main_ended(&mut self, seen: ProgramEnd) {
        let some_killed = self.body.main_ended();
        self.thaw();
        self.hang_up();
        self.look_at_ms = None;
        self.state.notified = Notified::default();
        self.state.main = None;
        let exit = seen.exit;
        self.state.last = Some(ProgramEnd {
            timed_out: self.life.timed_out(),
            silent: self.life.was_silent(),
            start_timed_out: self.life.was_late_to_start(),
            stopped: self.asked_to_stop,
            // A program that exits normally has survived the loss of a process.
            oom_killed: some_killed && exit != ProcessExit::Code(0),
            ..seen
        });
        self.changed();
        self.feed(LifeInput::MainEnded(exit));
    }

    /// Passes an input to the state machine, and performs all its steps.
    pub(crate) fn feed(&mut self, input: LifeInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for step in self.life.on(input, self.now_ms()) {
                inputs.extend(self.perform(step));
            }
        }
        if !self.life.starts_again() {
            self.dismiss_next();
        }
    }

    fn perform(&mut self, step: LifeStep) -> Option<LifeInput> {
        match step {
            LifeStep::Ask { signal, group } => {
                self.thaw();
                self.body.ask(signal, group);
                None
            }
            LifeStep::KillAll => {
                self.thaw();
                self.body.kill();
                None
            }
            LifeStep::LookWhatIsLeft => self.body.is_gone().then_some(LifeInput::NoneLeft),
            LifeStep::Start => self.start_again(),
            LifeStep::Drain => {
                // The waiting process also has the output open.
                self.dismiss_next();
                self.outputs.drain();
                self.outputs.ended().then_some(LifeInput::OutputEnded)
            }
            LifeStep::Finish => {
                self.finish();
                None
            }
        }
    }

    fn check_remaining(&mut self) {
        if self.life.is_clearing() && self.body.is_gone() {
            self.feed(LifeInput::NoneLeft);
        }
    }

    /// Starts the program again. If that fails, its end is reported with the exit code of a shell.
    fn start_again(&mut self) -> Option<LifeInput> {
        self.state.restarts += 1;
        let failure = self.start().err()?;
        let code = if failure.errno == Errno::ENOENT as i32 { CODE_NOT_FOUND } else { CODE_NOT_EXECUTABLE };
        let program = self.life.launch().argv.first().cloned().unwrap_or_default();
        let why = Errno::from_raw(failure.errno).desc();
        self.outputs.note(&format!("cannot restart {program} ({:?}): {why}", failure.step));
        let exit = ProcessExit::Code(code);
        self.state.last = Some(ProgramEnd::new(exit, None, now_ms()));
        self.changed();
        Some(LifeInput::MainEnded(exit))
    }

    /// The program is over: first the output is synced, then the end is recorded, then it is reported.
    fn finish(&mut self) {
        // Output that could not be written has been counted; other errors cannot be handled.
        let _ = self.outputs.sync();
        self.body.remove();
        self.state.over = true;
        self.changed();
        if !self.outputs.ended() {
            self.outputs.discard();
        }
    }

    /// Records changes of the state, then reports them.
    pub(crate) fn settle(&mut self) {
        if self.life.is_over() && !self.is_closed() {
            // While the end cannot be recorded the shim stays and reports it to every agent that connects; unless its
            // folder was removed.
            match self.write_record(true) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                Ok(()) | Err(_) => self.record = StateRecord::Closed,
            }
        } else if self.record == StateRecord::Outdated {
            // If this fails, a later reader sees from the old record that the main process is gone.
            let _ = self.write_record(false);
        }
        if self.is_closed()
            && let Some(entrance) = self.entrance.take()
        {
            // Before the report, after which the agent may launch the next program in this folder, whose socket must
            // not be removed.
            let _ = std::fs::remove_file(files::SOCKET);
            drop(entrance);
        }
        if self.telling == Telling::Due {
            self.telling = Telling::Done;
            self.tell(|agent, shim| agent.state(&shim.state));
        }
        self.tell(|agent, shim| agent.lens_bytes(shim.outputs.lens_bytes()));
        if self.is_closed() {
            self.agent = None;
        }
    }

    pub(crate) fn write_record(&mut self, durable: bool) -> io::Result<()> {
        self.state.dropped_bytes = self.outputs.dropped_bytes();
        files::write_state(folder(), &self.state, durable)?;
        self.record = StateRecord::Current;
        Ok(())
    }

    fn accept(&mut self) {
        if let Some(Ok((stream, _))) = self.entrance.as_ref().map(|(listener, _)| listener.accept())
            && let Some(agent) = AgentPeer::accept(stream)
        {
            self.state.dropped_bytes = self.outputs.dropped_bytes();
            self.agent = Some(agent);
            self.mend();
            self.tell(|agent, shim| agent.state(&shim.state));
        }
    }

    /// Repairs files that were damaged after they were written: if this shim is killed, only they say that a program
    /// runs.
    fn mend(&mut self) {
        // If this fails, the files stay as they were.
        let _ = files::mend(folder(), self.life.launch(), &self.state.boot_id);
        let recorded = files::read_state(folder());
        if !matches!(recorded, Ok(StateFile::State(recorded)) if recorded == self.state) {
            self.record = StateRecord::Outdated;
        }
    }

    #[inline(never)]
    fn serve(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        match agent.flush().and_then(|()| agent.receive()) {
            Ok(requests) => requests.into_iter().for_each(|request| self.answer(request)),
            Err(PeerGone) => self.agent = None,
        }
    }

    fn answer(&mut self, request: ShimRequest) {
        match request {
            ShimRequest::Stop { signal, .. } | ShimRequest::Signal { signal }
                if !(1..=sys::signal_max()).contains(&signal) => {}
            ShimRequest::Stop { signal, grace_ms } => {
                self.asked_to_stop = true;
                self.feed(LifeInput::Stop { signal, grace_ms });
            }
            ShimRequest::Signal { signal } => {
                let delivered = self.body.signal(signal);
                self.tell(|agent, _| agent.signalled(signal, delivered));
            }
            ShimRequest::Freeze => self.freeze(),
            ShimRequest::Thaw => self.thaw(),
            ShimRequest::Say { id, line } => self.say(&id, &line),
            ShimRequest::Playing { playing } => self.set_playing(playing),
        }
    }

    /// Reads the messages of the program.
    #[inline(never)]
    fn hear(&mut self) {
        for _ in 0..MESSAGES_MAX {
            let Some((sender, words)) = self.socket.notify().and_then(NotifySocket::receive) else { return };
            if self.body.is_part(sender) {
                words.into_iter().for_each(|word| self.handle_message(word));
            }
        }
    }

    pub(crate) fn handle_message(&mut self, word: NotifyMessage) {
        let before = self.state.notified.clone();
        let notified = &mut self.state.notified;
        let input = match word {
            NotifyMessage::Ready => {
                (notified.ready, notified.reloading) = (true, false);
                Some(LifeInput::Ready)
            }
            NotifyMessage::Alive => Some(LifeInput::Alive),
            NotifyMessage::Unwell => Some(LifeInput::Unwell),
            NotifyMessage::Reloading => {
                notified.reloading = true;
                None
            }
            NotifyMessage::Stopping => {
                notified.stopping = true;
                None
            }
            NotifyMessage::Status(status) => {
                notified.status = (!status.is_empty()).then_some(status);
                None
            }
            NotifyMessage::MainPid => {
                if let ProgramSocket::Notify { has_complained, .. } = &mut self.socket
                    && !std::mem::replace(has_complained, true)
                {
                    self.outputs.note("MAINPID is ignored: the main process is the one that was started");
                }
                None
            }
        };
        if before.status != self.state.notified.status {
            // A program may change its status often, and people do not read that fast.
            if self.telling == Telling::Done {
                self.telling = Telling::At(self.now_ms() + STATUS_PAUSE_MS);
            }
        }
        if (Notified { status: None, ..before }) != (Notified { status: None, ..self.state.notified.clone() }) {
            self.changed();
        }
        if let Some(input) = input {
            self.feed(input);
        }
    }

    /// Suspends the program. This is recorded first, so that a later shim never finds a frozen program without knowing
    /// it.
    fn freeze(&mut self) {
        if !self.life.is_up() || self.state.frozen {
            return;
        }
        self.state.frozen = true;
        if self.write_record(false).is_err() {
            self.state.frozen = false;
            return;
        }
        self.body.freeze();
        self.life.on(LifeInput::Frozen, self.now_ms());
        self.telling = Telling::Due;
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.state.frozen) {
            self.body.thaw();
            self.life.on(LifeInput::Thawed, self.now_ms());
            self.want_next();
            self.changed();
        }
    }

    /// Sends something to the agent, if one is connected.
    pub(crate) fn tell(&mut self, say: impl FnOnce(&mut AgentPeer, &Self) -> Result<(), PeerGone>) {
        if let Some(mut agent) = self.agent.take() {
            self.agent = say(&mut agent, self).is_ok().then_some(agent);
        }
    }
}

/// An end of the main process at this moment.
pub(crate) fn ended(exit: ProcessExit, started_ms: Option<i64>) -> ProgramEnd {
    ProgramEnd::new(exit, started_ms, now_ms())
}

/// The shim's folder.
pub(crate) fn folder() -> &'static Path {
    Path::new(".")
}
