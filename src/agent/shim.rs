//! The agent's end of the shim: launches one, finds it again, and talks to it.
//!
//! **Invariant: there is never a second copy of a program.** A launch holds the lock of its folder from
//! before the shim is started until the shim ends, and is refused while a program of an earlier launch
//! is alive; a shim that was killed is replaced by one that adopts the running program.
//!
//! The agent is the shim's parent only for a moment: its child forks at once and exits, and is
//! waited for. So there is nothing to reap later, and no signal to handle.

use std::{
    collections::VecDeque,
    fs::{self, File, TryLockError},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use muster_base::{
    clock::now_ms,
    files::{PRIVATE_FOLDER, RoleFile, clear_places, make_folder, write_atomically},
};
use muster_shim::{
    LINE_MAX_BYTES, Launch, ProcessExit, ProgramEnd, ProgramState, ShimEvent, ShimRequest, StartReport, StartStep,
    files::{self, StateFile},
    proc, sealed,
};
use muster_sqlite::room::{self, Reserve};
use muster_topics::{
    capability::Capability,
    name::Digest,
    unit::{self, ProcessEnd},
};
use tokio::{
    io::Interest,
    net::UnixStream,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use crate::crash;

/// The shim's program, which the build script built.
static PROGRAM: &[u8] = include_bytes!(env!("MUSTER_SHIM_PROGRAM"));

/// Read and executed by the agent's user alone.
const PROGRAM_MODE: u32 = 0o500;
/// How long a shim that is there may take to say what it knows. It is busy for microseconds, unless
/// the disk is.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much may wait for a shim to take it: two of the longest lines. It takes them at once, unless it was stopped.
const UNSENT_MAX_BYTES: usize = LINE_MAX_BYTES;
/// How often to try what is prevented for a moment by a process that is just being started: a second
/// altogether.
const TRIES: u32 = 50;
/// How soon to look again at a folder in which a shim is just starting or ending.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Something went wrong with a shim.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The program could not be started; nothing runs.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// The program that was asked for.
        program: String,
        /// What was being done.
        step: StartStep,
        /// The file or folder that this was about: the program, or where it works.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The program could not be put into its cgroup; nothing runs.
    #[error("{program} cannot be put into its cgroup: {source}")]
    Cgroup {
        /// The program that was asked for.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// A file or socket of the shim failed.
    #[error("the shim in {folder}: {source}{}", room::advice(source))]
    Io {
        /// The shim's folder.
        folder: String,
        /// Why.
        source: io::Error,
    },
}

/// Starts and finds shims.
#[derive(Clone, Debug)]
pub struct Shims {
    program: Arc<Path>,
    reserve: Option<Reserve>,
}

/// What became of a shim that was started in a folder.
#[derive(Debug)]
pub enum AdoptedShim {
    /// None ever was.
    Nothing,
    /// It is alive, and so is or will be its program.
    Alive(ShimHandle),
    /// Its program ended, as it recorded before it ended too. (`Exit::Unknown` if it was killed and could not.)
    Ended(ProgramEnd),
}

/// A live shim. Dropping this leaves it alone.
#[derive(Debug)]
pub struct ShimHandle {
    folder: PathBuf,
    stream: UnixStream,
    received: Vec<u8>,
    /// What the shim has not taken yet.
    unsent: Vec<u8>,
    /// What was read while the shim was looked for.
    events: VecDeque<ShimEvent>,
}

impl Shims {
    /// Puts the shim's program, which is part of this one, into `data_dir`. Its name has its hash, so
    /// programs of other versions stay beside it for as long as their shims run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn install(data_dir: &Path) -> io::Result<Self> {
        let data_dir = data_dir.canonicalize()?;
        let path = data_dir.join(format!("shim-{}", Digest::of(PROGRAM).short()));
        let installed = fs::read(&path).is_ok_and(|content| content == PROGRAM)
            && fs::metadata(&path)?.permissions().mode() & 0o7777 == PROGRAM_MODE;
        if !installed {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            clear_places(&data_dir, RoleFile::File, &[&name])?;
            write_atomically(&path, PROGRAM, PROGRAM_MODE)?;
        }
        Ok(Self { program: path.into(), reserve: None })
    }

    /// With a reserve, from which programs' files take their room on a full disk.
    #[must_use]
    pub fn with_reserve(self, reserve: Reserve) -> Self {
        Self { reserve: Some(reserve), ..self }
    }

    /// Sees to it that there is room for the files of a program, as far as the reserve goes.
    pub async fn make_room(&self) {
        let Some(reserve) = self.reserve.clone() else { return };
        // If that fails there is none, which whoever writes will say.
        let _ = blocking(move || Ok(reserve.ensure())).await;
    }

    /// Starts a program under a new shim, which keeps its files in `folder`, which is made if it is not there.
    ///
    /// Not cancel-safe: a program whose launch was cancelled may run; [`Shims::adopt`] finds out.
    ///
    /// # Errors
    /// If the shim or its program cannot be started; nothing is left of either then. After
    /// [`ShimError::Io`] ask [`Shims::adopt`] if that is certain, for the shim may have been killed.
    pub async fn launch(&self, folder: &Path, launch: &Launch) -> Result<ShimHandle, ShimError> {
        let (program, at, wanted) = (self.program.clone(), folder.to_owned(), launch.clone());
        let prepare_and_spawn = move || {
            make_folder(&at, PRIVATE_FOLDER)?;
            let lock = wait_for_lock(&at)?.ok_or_else(|| taken("another shim is there"))?;
            if let StateFile::State(state) = files::read_state(&at)?
                && is_alive(&state)
            {
                return Err(taken("what was launched there before still runs"));
            }
            crash::point("launch", "before files");
            files::begin(&at)?;
            files::write_launch(&at, &wanted)?;
            crash::point("launch", "before spawn");
            let sealed = wanted.inside.is_some().then(|| sealed::copy(c"muster-shim", &mut &*PROGRAM)).transpose()?;
            let path = sealed.as_ref().map(|copy| PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd())));
            let spawned = spawn(path.as_deref().unwrap_or(&program), &at, false, lock);
            crash::point("launch", "after spawn");
            spawned
        };
        let failed = |source| io_error(folder, source);
        self.make_room().await;
        let stream = blocking(prepare_and_spawn).await.map_err(failed)?;
        let mut shim = ShimHandle::new(folder, stream).map_err(failed)?;
        match shim.report().await.map_err(failed)? {
            StartReport::Started | StartReport::Over => {
                crash::point("launch", "before it is told");
                Ok(shim)
            }
            StartReport::Failed { step: StartStep::Prepare, errno, .. } => {
                Err(failed(io::Error::from_raw_os_error(errno)))
            }
            StartReport::Failed { step, which, errno } => Err(start_error(launch, step, which, errno)),
        }
    }

    /// Finds the shim that was launched in `folder` again. One that was killed is replaced.
    ///
    /// # Errors
    /// If its files cannot be read, or a shim that should be there does not answer.
    pub async fn adopt(&self, folder: &Path) -> Result<AdoptedShim, ShimError> {
        let failed = |source| io_error(folder, source);
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            if let Some((shim, state)) = ShimHandle::connect(folder).await.map_err(failed)? {
                return Ok(match state {
                    ProgramState { over: true, last: Some(last), .. } => AdoptedShim::Ended(last),
                    _ => AdoptedShim::Alive(shim),
                });
            }
            // Nobody listens: not yet, not any more, or never. Who holds the lock is about to tell.
            let at = folder.to_owned();
            let Some(lock) = blocking(move || take_lock_if_there(&at)).await.map_err(failed)? else {
                if Instant::now() >= deadline {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
                sleep(LOOK_AGAIN).await;
                continue;
            };
            let Some(lock) = lock else { return Ok(AdoptedShim::Nothing) };
            return self.adopt_recorded(folder, lock).await.map_err(failed);
        }
    }

    /// Finds out what became of a program whose shim is not there.
    async fn adopt_recorded(&self, folder: &Path, lock: File) -> io::Result<AdoptedShim> {
        let state = match files::read_state(folder) {
            Ok(StateFile::Nothing) => return Ok(AdoptedShim::Nothing),
            Ok(StateFile::Damaged) => return Ok(AdoptedShim::Ended(unknown(None))),
            Ok(StateFile::State(state)) => state,
            Err(error) if error.kind() == io::ErrorKind::InvalidData && has_left_nothing(folder) => {
                tracing::error!(
                    folder = %folder.display(), %error,
                    "what a shim has recorded is damaged; nothing is left of its program, and how that ended is not known. hint: \
                     check this host's disk"
                );
                return Ok(AdoptedShim::Ended(unknown(None)));
            }
            Err(error) => return Err(error),
        };
        if !is_alive(&state) && !has_left_something(folder, &state) {
            return Ok(AdoptedShim::Ended(last_of(state)));
        }
        let (program, at) = (self.program.clone(), folder.to_owned());
        self.make_room().await;
        crash::point("adopt", "before spawn");
        let stream = blocking(move || spawn(&program, &at, true, lock)).await?;
        crash::point("adopt", "after spawn");
        let mut shim = ShimHandle::new(folder, stream)?;
        match shim.report().await? {
            StartReport::Started => Ok(AdoptedShim::Alive(shim)),
            StartReport::Over => {
                Ok(AdoptedShim::Ended(shim.first_state().await?.last.unwrap_or_else(|| unknown(None))))
            }
            StartReport::Failed { errno, .. } => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl ShimHandle {
    fn new(folder: &Path, stream: StdUnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        Ok(Self {
            folder: folder.to_owned(),
            stream,
            received: Vec::new(),
            unsent: Vec::new(),
            events: VecDeque::new(),
        })
    }

    /// Connects to the shim in `folder`, and knows that it is one; nothing if nobody is there.
    async fn connect(folder: &Path) -> io::Result<Option<(Self, ProgramState)>> {
        let gone = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            )
        };
        let connected = async {
            // A socket's path may have no more than 108 bytes, and the folder's may be longer.
            let here = File::open(folder)?;
            let path = format!("/proc/self/fd/{}/{}", here.as_raw_fd(), files::SOCKET);
            let stream = UnixStream::connect(path).await?;
            let (received, unsent, events) = Default::default();
            let mut shim = Self { folder: folder.to_owned(), stream, received, unsent, events };
            let state = shim.first_state().await?;
            shim.events.push_back(ShimEvent::State(state.clone()));
            Ok((shim, state))
        };
        match connected.await {
            Ok(found) => Ok(Some(found)),
            Err(error) if gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next thing that the shim tells; nothing once it is gone. The first is its whole state. Cancel-safe.
    ///
    /// If nothing comes before a state that is `over`, ask [`Shims::adopt`] what happened.
    pub async fn next(&mut self) -> Option<ShimEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            // Cancel-safe: a line is taken out of the buffer only when it is whole, and then returned.
            let line = self.line().await.ok()??;
            match serde_json::from_slice(&line) {
                Ok(event) => return Some(event),
                Err(error) => tracing::debug!(folder = %self.folder.display(), %error, "a shim told something unknown"),
            }
        }
    }

    /// Asks the shim for something; the answer is an [`ShimEvent`]. Cancel-safe: what was not sent by then goes out with
    /// [`ShimHandle::next`].
    ///
    /// # Errors
    /// If the shim is gone, or takes nothing.
    pub async fn send(&mut self, request: &ShimRequest) -> Result<(), ShimError> {
        self.queue(request)?;
        while !self.unsent.is_empty() {
            let sent = match self.stream.writable().await {
                Ok(()) => self.flush(),
                Err(error) => Err(error),
            };
            sent.map_err(|source| io_error(&self.folder, source))?;
        }
        Ok(())
    }

    /// The same, and does not wait for the shim to take it.
    ///
    /// # Errors
    /// As above.
    pub fn queue(&mut self, request: &ShimRequest) -> Result<(), ShimError> {
        let failed = |source| io_error(&self.folder, source);
        if self.unsent.len() > UNSENT_MAX_BYTES {
            return Err(failed(io::Error::new(io::ErrorKind::WouldBlock, "it takes nothing")));
        }
        serde_json::to_writer(&mut self.unsent, request).map_err(|error| failed(error.into()))?;
        self.unsent.push(b'\n');
        self.flush().map_err(|source| io_error(&self.folder, source))
    }

    /// Sends what can be sent at once.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.try_write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // What was there to hold a long line is given back.
        self.unsent = Vec::new();
        Ok(())
    }

    /// How its start went: the first line from a shim that was just started. How long that takes is
    /// the file system's business, in which the program lies.
    async fn report(&mut self) -> io::Result<StartReport> {
        let line = self.line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(serde_json::from_slice(&line)?)
    }

    async fn first_state(&mut self) -> io::Result<ProgramState> {
        match timeout(ANSWER_MAX, self.next()).await? {
            Some(ShimEvent::State(state)) => Ok(state),
            Some(
                ShimEvent::Output { .. }
                | ShimEvent::Signalled { .. }
                | ShimEvent::Said { .. }
                | ShimEvent::Unreachable { .. },
            ) => Err(io::ErrorKind::InvalidData.into()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The next line; nothing at the end. Cancel-safe.
    async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.pop();
                if self.received.is_empty() {
                    self.received = Vec::new();
                }
                return Ok(Some(line));
            }
            if self.received.len() > LINE_MAX_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let unsent =
                if self.unsent.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
            // Cancel-safe: what is ready stays so, and is then read or written without a wait.
            let ready = self.stream.ready(unsent).await?;
            if ready.is_writable() {
                self.flush()?;
            }
            if ready.is_readable() {
                match self.stream.try_read_buf(&mut self.received) {
                    Ok(0) => return Ok(None),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Starts a shim; it has detached itself when this returns. It inherits the lock.
fn spawn(program: &Path, folder: &Path, adopt: bool, lock: File) -> io::Result<StdUnixStream> {
    let (ours, theirs) = StdUnixStream::pair()?;
    let mut command = Command::new(program);
    command.arg(folder.canonicalize()?).args(adopt.then_some("--adopt")).env_clear().current_dir(folder);
    command.stdin(OwnedFd::from(theirs)).stdout(lock).stderr(Stdio::null());
    let status = start(&mut command).and_then(|mut child| child.wait()).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!("{}: {error}\nhint: the data folder must not be mounted noexec", program.display()),
        ),
        _ => error,
    })?;
    if status.success() { Ok(ours) } else { Err(io::Error::other(format!("it could not detach itself: {status}"))) }
}

/// Starts a process from a file that was written a moment ago, perhaps: a process that another thread
/// was starting meanwhile has it open for writing, until it executes its program.
fn start(command: &mut Command) -> io::Result<Child> {
    for _ in 0..TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::sleep(LOOK_AGAIN),
            started => return started,
        }
    }
    command.spawn()
}

/// Takes the lock of a folder; nothing if a shim holds it.
fn take_lock(folder: &Path) -> io::Result<Option<File>> {
    let lock = File::options().create(true).truncate(false).write(true).open(folder.join(files::LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the lock even if something holds it for a moment still: a process that another thread is just
/// starting has all files of this one, until it executes its program.
fn wait_for_lock(folder: &Path) -> io::Result<Option<File>> {
    for _ in 0..TRIES {
        if let Some(lock) = take_lock(folder)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    take_lock(folder)
}

/// The same, of a folder in which there may never have been one: `Some(None)`.
fn take_lock_if_there(folder: &Path) -> io::Result<Option<Option<File>>> {
    if folder.join(files::LOCK).try_exists()? { Ok(take_lock(folder)?.map(Some)) } else { Ok(Some(None)) }
}

/// Whether the program that a state tells of runs now.
fn is_alive(state: &ProgramState) -> bool {
    let this_boot = proc::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
    this_boot && !state.over && state.main.as_ref().is_some_and(proc::is_alive)
}

/// Whether something is left in the cgroup of a program whose main process is gone. It takes a shim to clear that.
fn has_left_something(folder: &Path, state: &ProgramState) -> bool {
    let this_boot = proc::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
    this_boot && !state.over && files::read_launch(folder).is_ok_and(|launch| !launch.cgroup.is_empty())
}

/// Whether it is certain, without its state, that nothing is left of a program: it had a cgroup, and that is empty.
fn has_left_nothing(folder: &Path) -> bool {
    files::read_launch(folder).is_ok_and(|launch| !launch.cgroup.is_none() && launch.cgroup.is_empty())
}

/// How a program ended that does not run any more and whose shim is gone.
fn last_of(state: ProgramState) -> ProgramEnd {
    match (state.main, state.last) {
        (None, Some(last)) => last,
        (main, _) => unknown(main.map(|main| main.started_ms)),
    }
}

/// How a process ended, in the words of the bus.
#[must_use]
pub fn process_end(ended: &ProgramEnd) -> ProcessEnd {
    let exit = match ended.exit {
        ProcessExit::Code(code) => unit::Exit::Code(code),
        ProcessExit::Signal(signal) => unit::Exit::Signal(signal),
        ProcessExit::Unknown => unit::Exit::Unknown,
    };
    ProcessEnd { exit, oom_killed: ended.oom_killed, core_dumped: ended.core_dumped }
}

fn unknown(started_ms: Option<i64>) -> ProgramEnd {
    ProgramEnd::new(ProcessExit::Unknown, started_ms, now_ms())
}

/// Work that may wait for the disk, or for a process to be started.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

fn taken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, why)
}

fn io_error(folder: &Path, source: io::Error) -> ShimError {
    ShimError::Io { folder: folder.display().to_string(), source }
}

fn start_error(launch: &Launch, step: StartStep, which: Option<u8>, errno: i32) -> ShimError {
    let source = io::Error::from_raw_os_error(errno);
    let program = launch.argv.first().cloned().unwrap_or_default();
    let what = match step {
        StartStep::Cgroup => return ShimError::Cgroup { program, source },
        StartStep::Prepare | StartStep::Exec => None,
        StartStep::Enter => Some("going into its container".to_owned()),
        StartStep::Nice => Some(format!("nice value {}", launch.attributes.nice.unwrap_or_default())),
        StartStep::Rlimit => {
            let limit = which.and_then(|place| launch.attributes.rlimits.get(usize::from(place)));
            let name = limit.map(|limit| format!("{:?}", limit.resource).to_lowercase());
            Some(format!("limit {}", name.unwrap_or_default()))
        }
        StartStep::Capabilities => Some(match which {
            Some(number) => format!("capability {}", Capability::name_of(number)),
            None => "capabilities".to_owned(),
        }),
        StartStep::User => Some("becoming its user".to_owned()),
        StartStep::NoNewPrivs => Some("no_new_privs".to_owned()),
        StartStep::Cwd => Some(format!("working directory {}", launch.cwd)),
    };
    let source = match what {
        Some(what) => io::Error::new(source.kind(), format!("{what}: {source}")),
        None => source,
    };
    let path = PathBuf::from(if matches!(step, StartStep::Cwd) { &launch.cwd } else { &program });
    ShimError::Start { program, step, path, source }
}

#[cfg(test)]
pub(crate) mod tests;
