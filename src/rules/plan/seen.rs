//! Observations: what the shell reports to the planner.

use muster_topics::{
    Millis,
    name::Digest,
    probe::Which,
    unit::{Desired, Exit, Hold, ProcessEnd, Progress},
};

use super::{PlanStep, PlayConnection, PlayFailure, ProcessId};
use crate::{order::StartGate, port_lease::EndpointWiring, probe::ProbeVerdict};

/// Something that the shell has seen.
#[derive(Clone, Debug, PartialEq)]
pub enum UnitEvent {
    /// What is desired now.
    Desired(Option<Box<Desired>>, Option<Hold>),
    /// What it is wired to now, and what it has to wait for.
    Wired(EndpointWiring, Option<String>),
    /// A step has begun.
    Began(PlanStep),
    /// What was looked up.
    Found(FoundInstance),
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
    Told(ShimReport),
    /// What runs could not be asked for something, such as to end.
    Unheard {
        /// Why not.
        error: String,
    },
    /// The instance has ended, for good.
    Ended(InstanceEnd),
    /// What the instance has answered to [`PlanStep::Play`].
    Played {
        /// Which question.
        ask: u32,
        /// Whether it does so now.
        answer: Result<(), PlayFailure>,
    },
    /// What a probe of a process has come to.
    Probed {
        /// Which process.
        process: ProcessId,
        /// Which probe.
        which: Which,
        /// What it has come to.
        verdict: ProbeVerdict,
    },
    /// Everything has been removed.
    Removed,
    /// Not everything could be removed.
    NotRemoved {
        /// Why.
        error: String,
    },
    /// Any of what is seen of an instance, of the one beside.
    Second(Box<UnitEvent>),
    /// What others have it wait for.
    Gate(StartGate),
    /// Time has passed.
    Tick,
}

/// What was found of an earlier life of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundInstance {
    /// Nothing was ever started.
    Nothing,
    /// Something of this revision is in effect.
    Alive(Digest, ShimReport),
    /// Something was, and has ended.
    Ended(InstanceEnd),
}

/// What has become of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShimReport {
    /// Its process, unless it is just being started again.
    pub process: Option<ProcessId>,
    /// How often it was started again by itself, without the agent.
    pub restarts: u32,
    /// How its last process ended, if one did.
    pub last: Option<InstanceExit>,
    /// It has said that it is up, if it is one that says so.
    pub ready: bool,
    /// What it says that it does.
    pub status: Option<String>,
    /// It is suspended.
    pub frozen: bool,
    /// How it can be asked things now.
    pub connection: Option<PlayConnection>,
    /// Features that it has to do without ([`muster_topics::unit::Observed::missing`]).
    pub missing: Vec<String>,
    /// What it was started with.
    pub wiring: EndpointWiring,
}

/// The end of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEnd {
    /// See [`ShimReport::restarts`]; some of these may not have been told before.
    pub restarts: u32,
    /// How its last process ended.
    pub last: InstanceExit,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceExit {
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

impl InstanceExit {
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

impl std::fmt::Display for InstanceExit {
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
