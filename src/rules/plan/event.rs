//! Observations: what the shell reports to the planner.

use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::Digest,
    probe::Which,
    unit::{Desired, Exit, Hold, ProcessEnd, Progress},
};

use super::{PlanStep, PlayConnection, PlayFailure, ProcessId};
use crate::{
    conflict::ConflictVerdict, content_check::ContentReport, port_lease::EndpointWiring, probe::ProbeVerdict,
    start_order::StartGate,
};

/// An event that the shell has observed.
#[derive(Clone, Debug, PartialEq)]
pub enum UnitEvent {
    /// The desired state changed.
    Desired(Option<Box<Desired>>, Option<Hold>),
    /// The ports and connections changed, and what the unit has to wait for.
    Wired(EndpointWiring, Option<String>),
    /// A step has begun.
    Began(PlanStep),
    /// The result of a lookup.
    Found(FoundInstance),
    /// A lookup failed.
    NotLookedUp {
        /// The reason.
        error: Diagnostic,
    },
    /// Progress of the installation of a revision.
    Progress(Digest, Progress),
    /// A revision is completely installed.
    Installed(Digest),
    /// A revision could not be installed.
    NotInstalled {
        /// The revision.
        revision: Digest,
        /// The reason.
        failure: Failure,
        /// A random number from 0 to 1, to spread the attempts of many hosts.
        random: f64,
    },
    /// The start succeeded.
    Started,
    /// The start failed.
    NotStarted(Failure),
    /// Whether the start succeeded is unknown.
    StartUnknown,
    /// The running instance now has this revision.
    Reloaded(Digest),
    /// The running instance cannot be changed to this revision without a restart.
    NotReloaded(Digest),
    /// The running instance has read something that changed, and must be restarted.
    Outdated,
    /// What was found of the content that the running instance was started from.
    ContentChecked(ContentReport),
    /// A report about the instance.
    Told(ShimReport),
    /// The instance could not be reached, for example to be stopped.
    Unheard {
        /// The reason.
        error: Diagnostic,
    },
    /// The instance has ended for good.
    Ended(InstanceEnd),
    /// The instance's answer to [`PlanStep::Play`].
    Played {
        /// The number of the request.
        ask: u32,
        /// Whether it confirmed.
        answer: Result<(), PlayFailure>,
    },
    /// The result of a probe of a process.
    Probed {
        /// The process.
        process: ProcessId,
        /// The probe.
        which: Which,
        /// The result.
        verdict: ProbeVerdict,
    },
    /// Everything has been removed.
    Removed,
    /// The removal failed.
    NotRemoved {
        /// The reason.
        error: Diagnostic,
    },
    /// An event of the second instance.
    Second(Box<UnitEvent>),
    /// Whether other units allow the start has changed.
    Gate(StartGate),
    /// What becomes of it because of units that want the same; `None` if there is no conflict (any more).
    Conflict(Option<ConflictVerdict>),
    /// Another unit of its deployment's version has failed, so that it is rolled back with that; with the reason.
    GroupFailed(Diagnostic),
    /// It is new in a version of its deployment that has gone back, and stays, for this reason.
    GroupStays(Option<Diagnostic>),
    /// Whether its revision has to wait for other units of its deployment's version before it counts as verified.
    GroupWaits(bool),
    /// The clock was set by so much. What is waited for comes as much later or earlier by it, and so as it would have.
    ClockSet(Millis),
    /// Time has passed.
    Tick,
}

/// What a lookup found of an earlier run of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is examined once and taken apart")]
pub enum FoundInstance {
    /// Nothing was ever started.
    Nothing,
    /// An instance of this revision is in effect.
    Alive(Digest, ShimReport),
    /// An instance has ended.
    Ended(InstanceEnd),
}

/// The state of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShimReport {
    /// Its process; `None` while it is being restarted, and for kinds without processes.
    pub process: Option<ProcessId>,
    /// How often the shim has restarted it.
    pub restarts: u32,
    /// How its last process ended, if one did.
    pub last: Option<InstanceExit>,
    /// Whether it has reported that it is up, if it is one that does.
    pub ready: bool,
    /// Its own status text.
    pub status: Option<String>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Its connection to the agent.
    pub connection: Option<PlayConnection>,
    /// Features that its host could not provide ([`muster_topics::unit::InstanceReport::unsupported`]).
    pub unsupported: Vec<Diagnostic>,
    /// What others have changed ([`muster_topics::unit::InstanceReport::drift`]), if its instance is what finds that out.
    pub drift: Option<Vec<Diagnostic>>,
    /// The ports and connections that it was started with.
    pub wiring: EndpointWiring,
}

/// The end of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEnd {
    /// See [`ShimReport::restarts`]; it may include restarts that were not reported before.
    pub restarts: u32,
    /// How its last process ended.
    pub last: InstanceExit,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceExit {
    /// Its exit status or signal.
    pub exit: Exit,
    /// When it was started, if known.
    pub started_ms: Option<Millis>,
    /// When it ended.
    pub at_ms: Millis,
    /// Whether it left a core file.
    pub core_dumped: bool,
    /// Whether the kernel killed it for lack of memory.
    pub oom_killed: bool,
    /// Whether it was stopped because it did not report in time that it is up, or alive.
    pub silent: bool,
    /// Whether the report that was missing is that it is up, within its start timeout.
    pub start_timed_out: bool,
    /// Whether it ended successfully soon after its start and left processes behind, which were stopped: a program that
    /// goes to the background.
    pub left_some: bool,
    /// Whether it ended because the host went down.
    pub with_host: bool,
    /// The last lines of its log.
    pub last_lines: Option<String>,
    /// Why it has ended, for an instance without a process.
    pub why: Option<Diagnostic>,
}

impl InstanceExit {
    /// Creates an end of which nothing more is known.
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
            why: None,
        }
    }

    /// Describes why an instance ended unexpectedly.
    pub(super) fn by_itself(&self) -> Diagnostic {
        self.why.clone().unwrap_or_else(|| self.diagnostic().within("ended unexpectedly"))
    }

    /// Describes how it ended, with what can be done about it.
    pub(super) fn diagnostic(&self) -> Diagnostic {
        Diagnostic::new(self).or_hint(self.left_some.then_some(LEFT_SOME_HINT))
    }
}

/// The hint for a program that goes to the background without being configured for it.
const LEFT_SOME_HINT: &str = "run it in the foreground; if it cannot, set that it forks into the \
                              background (--forking, `process: {forking: {}}`)";

impl std::fmt::Display for InstanceExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { exit, oom_killed, core_dumped, .. } = *self;
        let silent = match (self.start_timed_out, self.silent) {
            (true, _) => ", because it was not up within its start timeout",
            (false, true) => ", because its watchdog was not answered",
            (false, false) => "",
        };
        let left = if self.left_some {
            ", while processes that it had started were still running, which were ended too"
        } else {
            ""
        };
        write!(f, "{}{silent}{left}", ProcessEnd { exit, oom_killed, core_dumped })
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason, for people.
    pub error: Diagnostic,
    /// Whether the step may succeed later without intervention.
    pub may_heal: bool,
}
