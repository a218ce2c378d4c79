//! The protocol between agent and shim: JSON lines over a Unix socket, and the files in the shim's
//! folder. It is versioned, because a new agent drives the shims that an old one started.
//!
//! A shim is started as `muster-shim FOLDER [--adopt]`, with one end of a socket pair as its standard
//! input and the locked file [`files::LOCK`] as its standard output. On that first connection it sends
//! one [`StartReport`], then [`ShimEvent`]s; on each later one, made through [`files::SOCKET`], events only.
//! The first event on any connection is the whole [`ProgramState`]. There is one connection at a time: the
//! newest replaces the one before it.
//!
//! Modules, in reading order:
//!
//! - this one: the messages between the two
//! - [`attributes`]: attributes of a process beside its arguments
//! - [`cgroup`]: its limits, and all its processes
//! - [`inside`]: the container in which it runs
//! - [`files`]: the files in a shim's folder, and the promise that `state.json` keeps
//! - [`process_identity`]: identifies boots and processes
//! - [`log_times`]: when each part of a log was written
//!
//! **Invariant: no program runs that is not recorded.** A forked child executes its program only after
//! its process id and start time are in `state.json`; if the shim dies before that, the child ends
//! without having run anything.
//!
//! **Invariant: an end is recorded before it is reported**, in a file that is complete at every
//! moment; a last exit status is also on the disk by then.
//!
//! **Invariant: there is at most one shim in a folder.** Its lock is taken by the agent before the
//! shim is started, and held by the shim as long as it may start a program.

pub mod attributes;
pub mod cgroup;
pub mod files;
pub mod inside;
pub mod log_times;
pub mod process_identity;
pub mod sealed;

use serde::{Deserialize, Serialize};

pub use attributes::ProcessAttributes;
use cgroup::Cgroup;
pub use inside::ContainerNamespaces;

/// The number of this protocol and of the files.
pub const PROTOCOL: u32 = 1;

/// Name of the process that waits to become the next main process. It has the shim's command line.
pub const NEXT: &str = "muster-next";

/// Longest line of a program's channel in either direction: as long as a message on the bus may be, so that nothing
/// that fits there is cut here.
pub const SAID_MAX_BYTES: usize = 64 * 1024;

/// Longest line between shim and agent: a channel's line as a JSON string, in which each quote takes two bytes, with
/// its envelope. A [`ProgramState`] is shorter than 2 KiB.
pub const LINE_MAX_BYTES: usize = 2 * SAID_MAX_BYTES + 4 * 1024;

/// The version of the channel's protocol that a program's hello must name.
pub const CHANNEL_PROTOCOL: u32 = 1;

/// The environment variable that names the channel's socket.
pub const SOCKET_VARIABLE: &str = "MUSTER_SOCKET";

/// The environment variable with the token that identifies the started process.
pub const TOKEN_VARIABLE: &str = "MUSTER_TOKEN";

/// The program that a shim runs; in `launch.json`, which is written before the shim starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The program, as an absolute path, and its arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: String,
    /// The user to run as; default: the shim's own.
    pub user: Option<ResolvedUser>,
    /// Other attributes of the process.
    #[serde(default)]
    pub attributes: ProcessAttributes,
    /// The cgroup to run in: an existing, empty one, which the shim removes at the end.
    #[serde(default, skip_serializing_if = "Cgroup::is_none")]
    pub cgroup: Cgroup,
    /// The container to run in, to which user, folder and program then refer; default: the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<ContainerNamespaces>,
    /// How to handle its output.
    pub output: OutputMode,
    /// How the program reports readiness and liveness, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyKind>,
    /// How the main process is found, if the program goes to the background; otherwise it is the started process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forking: Option<ForkingMode>,
    /// How often the shim restarts it without asking the agent.
    pub restart: RestartLimits,
    /// After this time it is ended, as by [`ShimRequest::Stop`].
    pub timeout_ms: Option<u64>,
    /// The signal that asks it to end.
    pub stop_signal: i32,
    /// Time between that signal and SIGKILL to the whole group.
    pub grace_ms: u64,
}

/// A user, resolved by the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedUser {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// How a program communicates with its shim: by systemd's notify protocol, or by JSON lines. The agent puts the socket
/// into its environment, as `NOTIFY_SOCKET` or [`SOCKET_VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyKind {
    /// The abstract name of the socket, without the leading `@`.
    pub name: String,
    /// Longest time until it is ready. After that it is asked to end and counts as failed.
    pub start_timeout_ms: u64,
    /// Longest time between signs of life after that. After that it is aborted and counts as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_ms: Option<u64>,
    /// The welcome that answers its hello, if it uses JSON lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<ChannelWelcome>,
}

/// A program that goes to the background: the started process exits with code 0 when the program is ready, and one of
/// the remaining processes is the main one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkingMode {
    /// The PID file of the main process, as an absolute path; default: the oldest remaining process is the main one.
    /// The process in the file must belong to the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<String>,
    /// Longest time until it is ready. After that it is asked to end and counts as failed.
    pub start_timeout_ms: u64,
}

/// The channel's welcome message, after the hello was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelWelcome {
    /// The unit's id.
    pub unit: String,
    /// The host on which it runs.
    pub host: String,
    /// The unit's realm.
    pub realm: String,
    /// Whether it should play. [`ShimRequest::Playing`] changes this.
    pub playing: bool,
    /// The path of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// A secret that only a process, its shim and the agent know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelToken(pub String);

impl std::fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// The state of a program's channel of JSON lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelInfo {
    /// The token of the current process.
    pub token: ChannelToken,
    /// Whether the next welcome says that it should play.
    pub playing: bool,
    /// Number of accepted connections of the current process.
    pub connections: u64,
    /// The current connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<PeerConnected>,
}

/// An accepted connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerConnected {
    /// Whether its welcome said that it should play.
    pub playing: bool,
    /// The requests that it supports.
    pub can: Vec<String>,
}

/// What a program has reported since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notified {
    /// It is ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// It is reading its configuration again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reloading: bool,
    /// It is about to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// What it is doing, in one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

impl Notified {
    /// Whether it has reported nothing yet.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// How to handle a program's output, which also says what kind of program it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// Both streams go to one log with rotation. A later launch in the same folder appends to it.
    ///
    /// The program is a service: the stop signal goes to its main process alone, and processes that remain when the
    /// main process ends are killed, so that they do not disturb the next one.
    Log {
        /// The size at which a new file is begun.
        max_bytes: u64,
        /// Number of old files to keep.
        keep: u32,
        /// The age at which a new file is begun, at the next line; default: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_age_ms: Option<u64>,
    },
    /// Each stream goes to its own file; output beyond the limit is counted and dropped.
    ///
    /// The program is a command: the stop signal goes to its process group, and remaining processes get the grace time
    /// as well. If it ends by itself, its background processes stay, as with `ssh`; the shim then stays only to drain
    /// the output, as long as it is open.
    Capture(CaptureResult),
}

/// How to handle the streams of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureResult {
    /// Limit of each stream.
    pub max_bytes: u64,
    /// Limit of standard error, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_max_bytes: Option<u64>,
    /// Standard output goes to `/dev/null`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_stdout: bool,
    /// Standard error goes to `/dev/null`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_stderr: bool,
    /// Standard input is the file [`files::STDIN`], which the agent has written, instead of nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
}

impl CaptureResult {
    /// Captures both streams, up to a limit.
    #[must_use]
    pub fn of(max_bytes: u64) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// The limits of standard output and standard error; `None` for a dropped stream.
    #[must_use]
    pub fn limits_bytes(&self) -> [Option<u64>; 2] {
        let stderr = self.stderr_max_bytes.unwrap_or(self.max_bytes);
        [(!self.drop_stdout).then_some(self.max_bytes), (!self.drop_stderr).then_some(stderr)]
    }
}

/// How often a shim restarts its program at once. Any further restart is decided by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartLimits {
    /// When it restarts.
    pub on: RestartOn,
    /// Number of restarts.
    pub budget: u32,
    /// After running for this long, the program has its full budget again.
    pub reset_after_ms: u64,
}

/// When to restart a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartOn {
    /// Never.
    Never,
    /// After any other end than exit code 0.
    Failure,
    /// After any end.
    Always,
}

/// Requests of an agent to a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimRequest {
    /// End the program: the signal, the grace time, then SIGKILL to all its processes. It is not restarted.
    Stop {
        /// The first signal.
        signal: i32,
        /// Time between the signal and SIGKILL.
        grace_ms: u64,
    },
    /// Send a signal to the program.
    Signal {
        /// The signal.
        signal: i32,
    },
    /// Suspend all processes of the program, until it is thawed or stopped.
    Freeze,
    /// Resume it.
    Thaw,
    /// Send a line to the program on its channel. If that fails, the shim sends [`ShimEvent::Unreachable`].
    Say {
        /// Identifies this request in that event.
        id: String,
        /// The line, without its line ending, of at most [`SAID_MAX_BYTES`].
        line: String,
    },
    /// Sets what the next welcome says about playing.
    Playing {
        /// Whether it should play.
        playing: bool,
    },
}

/// The result of starting a shim: the first line that it sends, to the agent that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartReport {
    /// The program runs; events follow.
    Started,
    /// The program to adopt has ended meanwhile. One event with `over` follows.
    Over,
    /// Nothing runs, and the attempt has left nothing behind.
    Failed {
        /// The step that failed.
        step: StartStep,
        /// Which of several: the index of a limit in the launch's rlimits, or the number of a capability.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        which: Option<u8>,
        /// The system's error number.
        errno: i32,
    },
}

/// The steps of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStep {
    /// Preparing the shim: its folder, files and socket.
    Prepare,
    /// Entering its cgroup.
    Cgroup,
    /// Entering the container.
    Enter,
    /// Setting its nice value.
    Nice,
    /// Setting a resource limit.
    Rlimit,
    /// Dropping capabilities, or keeping one.
    Capabilities,
    /// Becoming the program's user.
    User,
    /// Disabling privileges gained by execution.
    NoNewPrivs,
    /// Entering the program's working directory.
    Cwd,
    /// Executing the program.
    Exec,
}

/// Events that a shim sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimEvent {
    /// The state of the program: once at the start, and after each change.
    State(ProgramState),
    /// The file of a captured stream has grown.
    Output {
        /// Whether it is standard error.
        stderr: bool,
        /// Its current length.
        len_bytes: u64,
    },
    /// The result of a [`ShimRequest::Signal`].
    Signalled {
        /// The signal.
        signal: i32,
        /// Whether the main process got it.
        delivered: bool,
    },
    /// The program sent a line for the agent on its channel. If the agent reads too slowly, some lines are dropped.
    Said {
        /// The line, without its line ending.
        line: String,
    },
    /// A line could not be sent: there is no connection, or it is full.
    Unreachable {
        /// The id of the request.
        id: String,
    },
}

/// The state of a program; also the content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramState {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The boot to which this state belongs.
    pub boot_id: String,
    /// The running main process.
    pub main: Option<MainProcessId>,
    /// Number of restarts by the shim.
    pub restarts: u32,
    /// How the last process ended, if one did.
    pub last: Option<ProgramEnd>,
    /// There will be no further process, and the shim ends. Always together with `last`.
    pub over: bool,
    /// Bytes of stdout and of stderr that were dropped because of the limit.
    pub dropped_bytes: (u64, u64),
    /// It is suspended, or about to be suspended or resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// What the program has reported.
    #[serde(default, skip_serializing_if = "Notified::is_nothing")]
    pub notified: Notified,
    /// Its channel, if it uses JSON lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Box<ChannelInfo>>,
}

/// A running process, identified so that a later one with the same number differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot, from `/proc/<pid>/stat`.
    pub start_ticks: u64,
    /// When it started.
    pub started_ms: i64,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// The exit.
    pub exit: ProcessExit,
    /// When it started, if known.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub at_ms: i64,
    /// It was ended because of its time limit.
    pub timed_out: bool,
    /// It left a core dump, or the host's handler took it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
    /// The kernel killed it or one of its processes because the memory of its cgroup was used up. Not known without a
    /// memory limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// It was ended because it did not report in time that it is ready or alive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// It did not report readiness within its start timeout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_timed_out: bool,
    /// The agent asked for its end by [`ShimRequest::Stop`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// It exited with code 0 soon after its start and left processes behind: this is how a program behaves that goes to
    /// the background but was not launched as one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_some: bool,
}

impl ProgramEnd {
    /// An end without further details.
    #[must_use]
    pub fn new(exit: ProcessExit, started_ms: Option<i64>, at_ms: i64) -> Self {
        Self {
            exit,
            started_ms,
            at_ms,
            timed_out: false,
            core_dumped: false,
            oom_killed: false,
            silent: false,
            start_timed_out: false,
            stopped: false,
            left_some: false,
        }
    }
}

impl ProgramState {
    /// A program of this boot that has not started yet.
    #[must_use]
    pub fn new(boot_id: String) -> Self {
        Self {
            protocol: PROTOCOL,
            boot_id,
            main: None,
            restarts: 0,
            last: None,
            over: false,
            dropped_bytes: (0, 0),
            frozen: false,
            notified: Notified::default(),
            channel: None,
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessExit {
    /// It returned this exit code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It ended while no shim was there to see how.
    Unknown,
}
