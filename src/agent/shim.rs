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
    fmt,
    fs::{self, File},
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
    crash,
    files::{PRIVATE_FOLDER, RoleFile, clear_places, make_folder, take_lock, write_atomically},
};
use muster_shim::{
    LINE_MAX_BYTES, Launch, ProcessExit, ProgramEnd, ProgramState, ShimEvent, ShimRequest, StartReport, StartStep,
    files::{self, StateFile},
    process_identity, sealed,
};
use muster_sqlite::room::{self, Reserve};
use muster_topics::{
    capability::Capability,
    diagnostic::Diagnostic,
    name::Digest,
    unit::{self, ProcessEnd},
};
use tokio::{
    io::Interest,
    net::UnixStream,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use super::shim_folders::ShimFolders;

/// The shim's program, which the build script built.
static PROGRAM: &[u8] = include_bytes!(env!("MUSTER_SHIM_PROGRAM"));

/// The agent's user alone may read and execute it.
const PROGRAM_MODE: u32 = 0o500;
/// How long an existing shim may take to answer. It is busy for microseconds, unless the disk is slow.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much may be queued for a shim: two of the longest lines. It reads at once, unless it was stopped.
const UNSENT_MAX_BYTES: usize = LINE_MAX_BYTES;
/// How often to retry what a process that is just being started prevents: a second altogether.
const TRIES: u32 = 50;
/// How soon to look again at a folder in which a shim is starting or ending.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// An error with a shim.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The program could not be started; nothing runs.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The step that failed.
        step: StartStep,
        /// The file or folder concerned: the program, or its working directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The program could not be put into its cgroup; nothing runs.
    #[error("cannot move {program} into its cgroup: {source}")]
    Cgroup {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// A file or socket of the shim failed.
    #[error("the shim in {folder}: {source}")]
    Io {
        /// The shim's folder.
        folder: String,
        /// The cause.
        source: io::Error,
    },
}

impl miette::Diagnostic for ShimError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let Self::Io { source, .. } = self else { return None };
        let hint = match files::is_of_another_build(source) {
            true => Some(files::OTHER_BUILD_HINT.to_owned()),
            false => room::hint(source).or_else(|| Diagnostic::of_error(source).hint),
        };
        hint.map(|hint| Box::new(hint) as Box<dyn fmt::Display>)
    }
}

/// Starts and finds shims.
#[derive(Clone, Debug)]
pub struct Shims {
    program: ShimProgram,
    folders: ShimFolders,
    reserve: Option<Reserve>,
}

/// The shim's program, as it is started.
#[derive(Clone, Debug)]
enum ShimProgram {
    /// A file in the data folder.
    Installed(Arc<Path>),
    /// A copy in memory: nothing can be written there.
    InMemory(Arc<File>),
}

impl ShimProgram {
    fn path(&self) -> PathBuf {
        match self {
            Self::Installed(path) => path.to_path_buf(),
            Self::InMemory(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
        }
    }

    /// Installs it again if somebody has removed it while the agent runs.
    fn restore(&self) -> io::Result<()> {
        let Self::Installed(path) = self else { return Ok(()) };
        if is_installed(path) {
            return Ok(());
        }
        tracing::warn!(program = %path.display(), "the shim's program is missing and is installed again");
        install_program(path)
    }
}

/// What became of a shim that was started in a folder.
#[derive(Debug)]
pub enum AdoptedShim {
    /// None was ever started.
    Nothing,
    /// It is alive, and its program runs or will run.
    Alive(ShimHandle),
    /// Its program ended, as the shim recorded before it ended, too. (`Exit::Unknown` if it was killed and could not.)
    Ended(ProgramEnd),
}

/// A connection to a live shim. Dropping this does not end the shim.
#[derive(Debug)]
pub struct ShimHandle {
    folder: PathBuf,
    stream: UnixStream,
    received: Vec<u8>,
    /// Requests that the shim has not read yet.
    unsent: Vec<u8>,
    /// Events that were read while the shim was looked for.
    events: VecDeque<ShimEvent>,
}

impl Shims {
    /// Installs the shim's program, which is part of this one, in `data_dir`. Its name has its hash, so programs of
    /// other versions stay beside it as long as their shims run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn install(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.canonicalize()?.join(format!("shim-{}", Digest::of(PROGRAM).short()));
        if !is_installed(&path) || fs::read(&path).ok().is_none_or(|present| present != PROGRAM) {
            install_program(&path)?;
        }
        Ok(Self {
            program: ShimProgram::Installed(path.into()),
            folders: ShimFolders::on_disk(data_dir),
            reserve: None,
        })
    }

    /// As [`Self::install`], where shims may have their files in memory; then nothing is written in `data_dir`.
    ///
    /// # Errors
    /// If the program cannot be written, or copied into memory.
    pub fn install_in(data_dir: &Path, folders: ShimFolders) -> io::Result<Self> {
        if !folders.is_in_memory() {
            return Ok(Self { folders, ..Self::install(data_dir)? });
        }
        let copy = sealed::copy(c"muster-shim", &mut &*PROGRAM)?;
        Ok(Self { program: ShimProgram::InMemory(Arc::new(copy)), folders, reserve: None })
    }

    /// Where shims have their files.
    #[must_use]
    pub fn folders(&self) -> &ShimFolders {
        &self.folders
    }

    /// Sets a reserve, which makes room for programs' files on a full disk.
    #[must_use]
    pub fn with_reserve(self, reserve: Reserve) -> Self {
        Self { reserve: Some(reserve), ..self }
    }

    /// Makes room for the files of a program, as far as the reserve allows.
    pub async fn make_room(&self) {
        let Some(reserve) = self.reserve.clone() else { return };
        // If that fails, the writer reports the full disk.
        let _ = blocking(move || Ok(reserve.ensure())).await;
    }

    /// Starts a program under a new shim, which keeps its files in `folder`; that is created if needed.
    ///
    /// Not cancel-safe: a program whose launch was cancelled may run; [`Shims::adopt`] finds out.
    ///
    /// # Errors
    /// If the shim or its program cannot be started; nothing remains of either then. After [`ShimError::Io`] only
    /// [`Shims::adopt`] can tell that, because the shim may have been killed.
    pub async fn launch(&self, folder: &Path, launch: &Launch) -> Result<ShimHandle, ShimError> {
        let (program, at, wanted) = (self.program.clone(), folder.to_owned(), launch.clone());
        let prepare_and_spawn = move || {
            make_folder(&at, PRIVATE_FOLDER)?;
            let lock = wait_for_lock(&at)?.ok_or_else(|| taken("another shim is running"))?;
            if let StateFile::State(state) = files::read_state(&at)?
                && is_alive(&state)
            {
                return Err(taken("an earlier program there is still running"));
            }
            crash::point("launch", "before files");
            files::begin(&at)?;
            files::write_launch(&at, &wanted)?;
            crash::point("launch", "before spawn");
            program.restore()?;
            let sealed = wanted.inside.is_some().then(|| sealed::copy(c"muster-shim", &mut &*PROGRAM)).transpose()?;
            let path = sealed.map(|copy| ShimProgram::InMemory(Arc::new(copy)));
            let spawned = spawn(&path.unwrap_or(program).path(), &at, false, lock);
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

    /// Connects to the shim that was launched in `folder`. One that was killed is replaced.
    ///
    /// # Errors
    /// If its files cannot be read, or a shim that should exist does not answer.
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
            // No shim listens: not yet, not any more, or there never was one. A holder of the lock is about to
            // listen.
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

    /// Whether neither a shim nor a program is alive in `folder`, or in a folder in it. Nothing is started or ended.
    pub async fn is_over(&self, folder: &Path) -> bool {
        let at = folder.to_owned();
        let look = move || {
            let inner = fs::read_dir(&at)?.collect::<io::Result<Vec<_>>>()?;
            let inner = inner.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir());
            for folder in std::iter::once(at).chain(inner) {
                let is_held = take_lock_if_there(&folder)?.is_none();
                let runs = |state| is_alive(state) || has_left_something(&folder, state);
                if is_held || matches!(&files::read_state(&folder)?, StateFile::State(state) if runs(state)) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        blocking(look).await.unwrap_or(false)
    }

    /// Finds out what became of a program whose shim does not exist any more.
    async fn adopt_recorded(&self, folder: &Path, lock: File) -> io::Result<AdoptedShim> {
        let state = match files::read_state(folder) {
            Ok(StateFile::Nothing) => return Ok(AdoptedShim::Nothing),
            Ok(StateFile::Damaged) => return Ok(AdoptedShim::Ended(unknown(None))),
            Ok(StateFile::State(state)) => state,
            Err(error) if error.kind() == io::ErrorKind::InvalidData && has_left_nothing(folder) => {
                tracing::error!(
                    folder = %folder.display(), %error,
                    consequence = "its program is gone, and how it ended is unknown",
                    hint = "check this host's disk",
                    "what a shim has recorded is damaged",
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
        let replace = move || {
            program.restore()?;
            spawn(&program.path(), &at, true, lock)
        };
        let stream = blocking(replace).await?;
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

/// Whether the shim's program lies there, as far as its size and mode tell.
fn is_installed(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_file() && found.len() == PROGRAM.len() as u64 && found.permissions().mode() & 0o7777 == PROGRAM_MODE
    })
}

fn install_program(path: &Path) -> io::Result<()> {
    let (folder, name) = (path.parent().unwrap_or(Path::new(".")), path.file_name().unwrap_or_default());
    clear_places(folder, RoleFile::File, &[&name.to_string_lossy()])?;
    write_atomically(path, PROGRAM, PROGRAM_MODE)
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

    /// Connects to the shim in `folder` and verifies that it is one; `None` if no process listens.
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
            // A socket's path may have 108 bytes at most, and the folder's may be longer.
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

    /// Returns the shim's next event; `None` once it has ended. The first is its whole state. Cancel-safe.
    ///
    /// If the events end before a state that is `over`, [`Shims::adopt`] finds out what happened.
    pub async fn next(&mut self) -> Option<ShimEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            // Cancel-safe: a line is removed from the buffer only when it is complete, and then returned.
            let line = self.line().await.ok()??;
            match serde_json::from_slice(&line) {
                Ok(event) => return Some(event),
                Err(error) => {
                    tracing::debug!(folder = %self.folder.display(), %error, "a shim sent an unknown message");
                }
            }
        }
    }

    /// Sends a request to the shim; the answer is a [`ShimEvent`]. Cancel-safe: unsent bytes are sent by
    /// [`ShimHandle::next`].
    ///
    /// # Errors
    /// If the shim has ended, or does not read.
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

    /// Queues a request without waiting for the shim to read it.
    ///
    /// # Errors
    /// As above.
    pub fn queue(&mut self, request: &ShimRequest) -> Result<(), ShimError> {
        let failed = |source| io_error(&self.folder, source);
        if self.unsent.len() > UNSENT_MAX_BYTES {
            return Err(failed(io::Error::new(io::ErrorKind::WouldBlock, "it does not read")));
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
        // The memory of a long line is released.
        self.unsent = Vec::new();
        Ok(())
    }

    /// Reads how the start went: the first line from a new shim. The time that takes depends on the file system of the
    /// program.
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

    /// Reads the next line; `None` at the end. Cancel-safe.
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
            // Cancel-safe: readiness persists, and reading and writing do not wait.
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

/// Starts a shim, which inherits the lock; it has detached itself when this returns.
fn spawn(program: &Path, folder: &Path, adopt: bool, lock: File) -> io::Result<StdUnixStream> {
    let (ours, theirs) = StdUnixStream::pair()?;
    let mut command = Command::new(program);
    command.arg(folder.canonicalize()?).args(adopt.then_some("--adopt")).env_clear().current_dir(folder);
    command.stdin(OwnedFd::from(theirs)).stdout(lock).stderr(Stdio::null());
    let status = start(&mut command).and_then(|mut child| child.wait()).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            Diagnostic::new(format_args!("{}: {error}", program.display()))
                .with_hint("the data folder must not be mounted noexec")
                .into_error(),
        ),
        _ => error,
    })?;
    if status.success() {
        Ok(ours)
    } else {
        Err(io::Error::other(format!("the shim could not detach itself: {status}")))
    }
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

/// Takes the lock of a folder; `None` if a shim holds it.
fn lock_folder(folder: &Path) -> io::Result<Option<File>> {
    take_lock(&folder.join(files::LOCK))
}

/// Takes the lock even if it is held for a moment: a process that another thread is starting has all open files of this
/// one until it executes its program.
fn wait_for_lock(folder: &Path) -> io::Result<Option<File>> {
    for _ in 0..TRIES {
        if let Some(lock) = lock_folder(folder)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    lock_folder(folder)
}

/// The same for a folder without a lock file: `Some(None)`.
fn take_lock_if_there(folder: &Path) -> io::Result<Option<Option<File>>> {
    if folder.join(files::LOCK).try_exists()? { Ok(lock_folder(folder)?.map(Some)) } else { Ok(Some(None)) }
}

/// Whether the program of a state runs now.
fn is_alive(state: &ProgramState) -> bool {
    let this_boot = process_identity::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
    this_boot && !state.over && state.main.as_ref().is_some_and(process_identity::is_alive)
}

/// Whether processes remain in the cgroup of a program whose main process has ended. Only a shim can end them.
fn has_left_something(folder: &Path, state: &ProgramState) -> bool {
    let this_boot = process_identity::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
    this_boot && !state.over && files::read_launch(folder).is_ok_and(|launch| !launch.cgroup.is_empty())
}

/// Whether it is certain, without its state, that no process of a program remains: it had a cgroup, and that is empty.
fn has_left_nothing(folder: &Path) -> bool {
    files::read_launch(folder).is_ok_and(|launch| !launch.cgroup.is_none() && launch.cgroup.is_empty())
}

/// How a program ended that does not run any more and whose shim has ended.
fn last_of(state: ProgramState) -> ProgramEnd {
    match (state.main, state.last) {
        (None, Some(last)) => last,
        (main, _) => unknown(main.map(|main| main.started_ms)),
    }
}

/// Converts the end of a process into the wire's form.
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

/// Runs work that may wait for the disk, or for the start of a process.
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
