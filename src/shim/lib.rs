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
//! - [`proc`]: identifies boots and processes
//! - [`times`]: when each part of a log was written
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
pub mod proc;
pub mod sealed;
pub mod times;

use serde::{Deserialize, Serialize};

pub use attributes::ProcessAttributes;
use cgroup::Cgroup;
pub use inside::ContainerNamespaces;

/// Version of this protocol and of the files.
pub const VERSION: u32 = 1;

/// What a process is called that waits to be a program's next one. It has the shim's command line.
pub const NEXT: &str = "muster-next";

/// The longest line of a program's channel, either way: what one message on the bus may have, so that nothing that fits
/// there has to be cut here.
pub const SAID_MAX_BYTES: usize = 64 * 1024;

/// The longest line either side accepts: one of a channel as a text, where each quote takes two bytes, and what is
/// around it. A [`ProgramState`] stays below 2 KiB.
pub const LINE_MAX_BYTES: usize = 2 * SAID_MAX_BYTES + 4 * 1024;

/// The version of the protocol that a program speaks on its channel, as its hello has to say.
pub const CHANNEL_PROTOCOL: u32 = 1;

/// The variable of a program's environment that names the socket of its channel.
pub const SOCKET_VARIABLE: &str = "MUSTER_SOCKET";

/// The variable that has the token with which a process proves that it is the one that was started.
pub const TOKEN_VARIABLE: &str = "MUSTER_TOKEN";

/// What a shim shall run, written to `launch.json` before it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Version of this protocol: 1.
    pub v: u32,
    /// The program, as an absolute path, and its arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: String,
    /// The user to become; the shim's own if there is none.
    pub user: Option<ResolvedUser>,
    /// Further attributes of its process.
    #[serde(default)]
    pub attributes: ProcessAttributes,
    /// The cgroup that it shall be in, which is there, and empty; the shim removes it when it is over.
    #[serde(default, skip_serializing_if = "Cgroup::is_none")]
    pub cgroup: Cgroup,
    /// The container that it shall run in, in which its user, folder and program are then; the host if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<ContainerNamespaces>,
    /// What to do with its output.
    pub output: OutputMode,
    /// How the program says that it is up, and alive; if it has no such way there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyKind>,
    /// How its main process is found, if it goes to the background; otherwise that is the process that is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forking: Option<ForkingMode>,
    /// How often to start it again by itself.
    pub restart: RestartLimits,
    /// After this it is ended, as by [`ShimRequest::Stop`].
    pub timeout_ms: Option<u64>,
    /// The signal that asks it to end.
    pub stop_signal: i32,
    /// How long it may take to end before its whole group is killed.
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

/// How a program speaks with its shim: by systemd's notify protocol, or by JSON lines. Its environment has to name the
/// socket, in `NOTIFY_SOCKET` or [`SOCKET_VARIABLE`], which the agent sees to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyKind {
    /// The abstract name of the socket, without the `@` before it.
    pub name: String,
    /// How long it may take to say that it is up. If it does not it is asked to end, and has failed.
    pub start_timeout_ms: u64,
    /// How long it may be silent after that. If it is longer it is aborted, and has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_ms: Option<u64>,
    /// What it is told when it has said hello, if it speaks JSON lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<ChannelWelcome>,
}

/// A program that goes to the background: the process that is started ends with exit code 0 once the program is up, and one
/// of those that it leaves is the main one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkingMode {
    /// The file in which the program writes the number of its main process, as an absolute path. Without one the main process
    /// is the oldest of those that are left. What the file names counts only if it belongs to the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<String>,
    /// How long it may take to come up. If it does not it is asked to end, and has failed.
    pub start_timeout_ms: u64,
}

/// What a program is told once it has proved itself on its channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelWelcome {
    /// The unit that it is.
    pub unit: String,
    /// The host that it runs on.
    pub host: String,
    /// The unit's realm.
    pub realm: String,
    /// Whether it shall play. [`ShimRequest::Playing`] changes this.
    pub playing: bool,
    /// Where its configuration is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// A secret that only a process itself knows, its shim, and the agent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelToken(pub String);

impl std::fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// What there is to know of a program's channel of JSON lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelInfo {
    /// What the process that runs now proves itself with.
    pub token: ChannelToken,
    /// Whether it shall play, as its next welcome says.
    pub playing: bool,
    /// How many connections of this process have proved themselves.
    pub connections: u64,
    /// The one that there is, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<PeerConnected>,
}

/// A connection that has proved itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerConnected {
    /// Whether its welcome said that it shall play.
    pub playing: bool,
    /// What it has said that it can.
    pub can: Vec<String>,
}

/// What a program has said of itself since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notified {
    /// It is up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// It reads its configuration again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reloading: bool,
    /// It is about to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// What it does, in a line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

impl Notified {
    /// Whether it has said nothing yet.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// What to do with a program's output, and so what kind of program it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// Both streams into one log, rotated, to which a later launch in the same folder appends.
    ///
    /// The program is a service: the signal that asks it to end goes to its main process alone, and
    /// whatever the main process leaves behind when it ends is killed, so that the next one does not
    /// meet it.
    Log {
        /// When to begin a new file.
        max_bytes: u64,
        /// How many old files to keep.
        keep: u32,
        /// When to begin a new file even if this one is not full: at the first line that comes when
        /// it is so old. Never, if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_age_ms: Option<u64>,
    },
    /// Each stream into a file of its own; what is over the limit is dropped and counted.
    ///
    /// The program is a command: the signal that asks it to end goes to its whole process group, and
    /// what it leaves behind has the grace as well. If it ends by itself, what it started in the
    /// background stays, as after `ssh`, and the shim stays with it for as long as that holds the
    /// output, only to drain it.
    Capture(CaptureResult),
}

/// What becomes of a command's streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureResult {
    /// The most of each stream.
    pub max_bytes: u64,
    /// The most of standard error, if that is not the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_max_bytes: Option<u64>,
    /// Nobody wants its standard output: it goes to `/dev/null`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_stdout: bool,
    /// Nobody wants its standard error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_stderr: bool,
    /// It reads the file [`files::STDIN`], which the agent has put there, rather than nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
}

impl CaptureResult {
    /// Both streams, up to a limit.
    #[must_use]
    pub fn of(max_bytes: u64) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// The most of standard output, and of standard error; nothing for one that nobody wants.
    #[must_use]
    pub fn limits_bytes(&self) -> [Option<u64>; 2] {
        let stderr = self.stderr_max_bytes.unwrap_or(self.max_bytes);
        [(!self.drop_stdout).then_some(self.max_bytes), (!self.drop_stderr).then_some(stderr)]
    }
}

/// How often a shim may start its program again at once. What is beyond that the agent decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartLimits {
    /// When at all.
    pub on: RestartOn,
    /// How often.
    pub budget: u32,
    /// A program that was up this long has its whole budget again.
    pub reset_after_ms: u64,
}

/// When to start a program again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartOn {
    /// Never.
    Never,
    /// When it did not end with exit code 0.
    Failure,
    /// However it ended.
    Always,
}

/// What an agent may ask of a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimRequest {
    /// End the program: the signal, the grace, then SIGKILL for everything that descends from it. It is
    /// not started again.
    Stop {
        /// The first signal.
        signal: i32,
        /// How long to wait after it.
        grace_ms: u64,
    },
    /// Send a signal to the program.
    Signal {
        /// Which.
        signal: i32,
    },
    /// Suspend the program and everything that descends from it, until it is thawed or stopped.
    Freeze,
    /// Let it go on.
    Thaw,
    /// Say a line to the program on its channel. If that is not possible the answer is [`ShimEvent::Unreachable`].
    Say {
        /// Names this request in that answer.
        id: String,
        /// The line, without its end, of at most [`SAID_MAX_BYTES`].
        line: String,
    },
    /// From now on the program's welcome says whether it shall play.
    Playing {
        /// Whether it shall.
        playing: bool,
    },
}

/// How the start of a shim went: the first line that it writes, to the agent that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartReport {
    /// The program runs; events follow.
    Started,
    /// It was to adopt a program that has ended meanwhile. One event follows, with `over`.
    Over,
    /// Nothing runs, and nothing is left of the attempt.
    Failed {
        /// What was being done.
        step: StartStep,
        /// Which one of several: the place of a limit among the rlimits of the launch, or the number
        /// of a capability.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        which: Option<u8>,
        /// Why it failed, as an error number of the system.
        errno: i32,
    },
}

/// What a shim was doing when its start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStep {
    /// Preparing itself: its folder, files and socket.
    Prepare,
    /// Entering its cgroup.
    Cgroup,
    /// Going into its container.
    Enter,
    /// Setting its nice value.
    Nice,
    /// Setting one of its limits.
    Rlimit,
    /// Dropping capabilities, or keeping one.
    Capabilities,
    /// Becoming the program's user.
    User,
    /// Having it gain nothing by executing a file.
    NoNewPrivs,
    /// Entering the program's working directory.
    Cwd,
    /// Executing the program.
    Exec,
}

/// What a shim tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimEvent {
    /// What has become of the program: at first, and on each change.
    State(ProgramState),
    /// A captured stream's file has grown to this length.
    Output {
        /// Standard error rather than standard output.
        stderr: bool,
        /// How long the file is now.
        len_bytes: u64,
    },
    /// What has become of a [`ShimRequest::Signal`]. (Shims of before do not say so.)
    Signalled {
        /// Which signal.
        signal: i32,
        /// Whether the main process has got it: there was one, and the system took it.
        delivered: bool,
    },
    /// The program has said a line on its channel that is not the shim's business. Of those that an agent does not
    /// take fast enough some are not told.
    Said {
        /// The line, without its end.
        line: String,
    },
    /// A line could not be said: there is no connection, or it takes no more.
    Unreachable {
        /// Which.
        id: String,
    },
}

/// What has become of a program; also the content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramState {
    /// Version of this protocol: 1.
    pub v: u32,
    /// The boot that all of this belongs to.
    pub boot_id: String,
    /// The process that runs now.
    pub main: Option<MainProcessId>,
    /// How often it was started again by the shim.
    pub restarts: u32,
    /// How the last process ended, if one did.
    pub last: Option<ProgramEnd>,
    /// It is over: there will be no further process, and the shim ends. Always with `last`.
    pub over: bool,
    /// What was dropped of stdout and of stderr because it was over the limit.
    pub dropped_bytes: (u64, u64),
    /// It is suspended. (One that is just about to be, or just not any more, says so too.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// What it has said of itself.
    #[serde(default, skip_serializing_if = "Notified::is_nothing")]
    pub notified: Notified,
    /// Its channel, if it is one of JSON lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Box<ChannelInfo>>,
}

/// A running process, by everything that tells it from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot, from `/proc/<pid>/stat`.
    pub start_ticks: u64,
    /// When it was started.
    pub started_ms: i64,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// How.
    pub exit: ProcessExit,
    /// When it was started, if that is known.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub at_ms: i64,
    /// It was ended because its time had run out.
    pub timed_out: bool,
    /// It left a core file, or the host's handler of such has taken it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
    /// The kernel has killed it, or something of it, because it had used up the memory of its cgroup.
    /// Without a limit for its memory nobody can tell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// It was ended because it had not said in time that it is up, or alive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// What it had not said is that it is up, within its start timeout. (Shims of before do not tell.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_timed_out: bool,
    /// The agent had asked for its end, by [`ShimRequest::Stop`]. (Shims of before do not say so.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// It ended with exit code 0 soon after its start, and what it had started still ran: as of a program that goes to the
    /// background, and was not launched as one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_some: bool,
}

impl ProgramEnd {
    /// An end of which nothing more is known.
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
    /// A program of this boot that has not been started yet.
    #[must_use]
    pub fn new(boot_id: String) -> Self {
        Self {
            v: VERSION,
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
    /// It ended while no shim could see how.
    Unknown,
}
