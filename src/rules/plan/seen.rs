//! What the shell tells the planner that it has seen.

use muster_topics::{
    Millis,
    name::Digest,
    probe::Which,
    unit::{Desired, Exit, Hold, ProcessEnd, Progress},
};

use super::{Connection, NotPlayed, Process, Step};
use crate::rules::{lease::Wiring, order::Gate, probe::Verdict};

/// Something that the shell has seen.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// What is desired now.
    Desired(Option<Box<Desired>>, Option<Hold>),
    /// What it is wired to now, and what it has to wait for.
    Wired(Wiring, Option<String>),
    /// A step has begun.
    Began(Step),
    /// What was looked up.
    Found(Found),
    /// Looking up failed.
    NotLookedUp {
        /// Why.
        error: String,
    },
    /// This much of what a revision needs is there.
    Progress(Digest, Progress),
    /// Everything for a revision is there.
    Installed(Digest),
    /// A revision could not be installed.
    NotInstalled {
        /// Which.
        revision: Digest,
        /// Why not.
        failure: Failure,
        /// A random number from 0 to 1, to spread what many hosts try again.
        random: f64,
    },
    /// What was being started is in effect.
    Started,
    /// What was being started is not in effect.
    NotStarted(Failure),
    /// It is not known whether what was being started is in effect.
    StartUnknown,
    /// What runs is of this revision now.
    Reloaded(Digest),
    /// What runs cannot be brought to this revision: it needs a new process.
    NotReloaded(Digest),
    /// What runs has read something outside that has changed, and needs a new process.
    Outdated,
    /// What has become of the instance.
    Told(Told),
    /// What runs could not be asked for something, such as to end.
    Unheard {
        /// Why not.
        error: String,
    },
    /// The instance has ended, for good.
    Ended(Over),
    /// What the instance has answered to [`Step::Play`].
    Played {
        /// Which question.
        ask: u32,
        /// Whether it does so now.
        answer: Result<(), NotPlayed>,
    },
    /// What a probe of a process has come to.
    Probed {
        /// Which process.
        process: Process,
        /// Which probe.
        which: Which,
        /// What it has come to.
        verdict: Verdict,
    },
    /// Everything has been removed.
    Removed,
    /// Not everything could be removed.
    NotRemoved {
        /// Why.
        error: String,
    },
    /// Any of what is seen of an instance, of the one beside.
    Beside(Box<Seen>),
    /// What others have it wait for.
    Gate(Gate),
    /// Time has passed.
    Tick,
}

/// What was found of an earlier life of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing was ever started.
    Nothing,
    /// Something of this revision is in effect.
    Alive(Digest, Told),
    /// Something was, and has ended.
    Ended(Over),
}

/// What has become of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Its process, unless it is just being started again.
    pub process: Option<Process>,
    /// How often it was started again by itself, without the agent.
    pub restarts: u32,
    /// How its last process ended, if one did.
    pub last: Option<Ended>,
    /// It has said that it is up, if it is one that says so.
    pub ready: bool,
    /// What it says that it does.
    pub status: Option<String>,
    /// It is suspended.
    pub frozen: bool,
    /// How it can be asked things now.
    pub connection: Option<Connection>,
    /// What it has to do without, as [`Observed::missing`] has it.
    pub missing: Vec<String>,
    /// What it was started with.
    pub wiring: Wiring,
}

/// The end of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// See [`Told::restarts`]; some of these may not have been told before.
    pub restarts: u32,
    /// How its last process ended.
    pub last: Ended,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub exit: Exit,
    /// When it was started, if that is known.
    pub started_ms: Option<Millis>,
    /// When it ended.
    pub at_ms: Millis,
    /// It left a core file.
    pub core_dumped: bool,
    /// It had used up its memory.
    pub oom_killed: bool,
    /// It was ended because it had not said in time that it is up, or alive.
    pub silent: bool,
    /// What it had not said is that it is up, within its start timeout.
    pub start_timed_out: bool,
    /// It ended well soon after its start, and what it had started still ran, and was ended: it goes to the background.
    pub left_some: bool,
    /// It ended with the host, which has been restarted since.
    pub with_host: bool,
    /// The last lines of its log.
    pub last_lines: Option<String>,
}

impl Ended {
    /// An end of which nothing more is known.
    #[must_use]
    pub fn new(exit: Exit, started_ms: Option<Millis>, at_ms: Millis) -> Self {
        Self {
            exit,
            started_ms,
            at_ms,
            core_dumped: false,
            oom_killed: false,
            silent: false,
            start_timed_out: false,
            left_some: false,
            with_host: false,
            last_lines: None,
        }
    }
}

/// What is said of a program that goes to the background and is not kept as one.
const LEFT_SOME: &str = ", while what it had started still ran, which was ended as well. hint: have it stay in the foreground; \
                         if it cannot, say that it goes to the background (--forking, `process: {forking: {}}`)";

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { exit, oom_killed, core_dumped, .. } = *self;
        let silent = match (self.start_timed_out, self.silent) {
            (true, _) => ", after it did not say within its start timeout that it is up",
            (false, true) => ", after it was silent for too long",
            (false, false) => "",
        };
        let left = if self.left_some { LEFT_SOME } else { "" };
        write!(f, "{}{silent}{left}", ProcessEnd { exit, oom_killed, core_dumped })
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why, for people.
    pub error: String,
    /// Whether the same step may do better later, without anybody's help.
    pub may_heal: bool,
}
