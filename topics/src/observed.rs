//! The observed state of a unit: its phase, what is known of its instance, and how its revisions have fared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis,
    channel::Ability,
    container::{ContainerSpec, Image},
    diagnostic::Diagnostic,
    endpoint::{Connector, Endpoint},
    name::Digest,
    observed_form::ObservedForm,
    signal::Signal,
    task::OwedReport,
    unit::Spec,
};

/// The phase of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is not on this host yet.
    Absent,
    /// Its artifact or configs are being downloaded.
    Installing,
    /// It is installed, and not running.
    Stopped,
    /// It was started, and is not up yet.
    Starting,
    /// It is up.
    Running,
    /// It is up, and has confirmed that it plays.
    Playing,
    /// It was asked to end.
    Stopping,
    /// It ended unexpectedly, and will be restarted.
    Backoff,
    /// It needs intervention; `error` has the reason.
    Failed,
}

/// The observed state of a unit. Its JSON form is flat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ObservedForm", into = "ObservedForm")]
pub struct Observed {
    /// The generation of desired state that it belongs to.
    pub generation: u64,
    /// The revision that is installed or runs.
    pub revision: Option<Digest>,
    /// The content of that revision, for people; no decision depends on it.
    pub content: Option<Content>,
    /// What it is doing.
    pub state: ObservedState,
    /// Since when it is in that phase.
    pub since_ms: Millis,
    /// How its last process ended.
    pub last_end: Option<ProcessEnd>,
    /// The last lines of its log when it ended; none once it is up again, or rests.
    pub last_lines: Option<String>,
    /// The progress of a download, updated now and then. Another revision is downloaded while one runs.
    pub progress: Option<Progress>,
    /// Where it listens.
    pub endpoints: Vec<Endpoint>,
    /// How it reaches the endpoints that it requires.
    pub connectors: Vec<Connector>,
    /// How often it was restarted automatically since it last was up for five minutes.
    pub attempts: u32,
    /// The last error.
    pub error: Option<Diagnostic>,
    /// How its revision has fared.
    pub trial: TrialReport,
    /// Its second process, while one revision replaces another without interruption.
    pub beside: Option<Beside>,
    /// What its last changes still owe, such as a restart: at most
    /// [`OWED_REPORTED_MAX`](crate::task::OWED_REPORTED_MAX) actions, the oldest first.
    pub owed: Vec<OwedReport>,
}

/// What a unit is doing: its [phase](Phase), with what only a unit in that phase has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedState {
    /// See [`Phase::Absent`].
    Absent,
    /// See [`Phase::Installing`].
    Installing,
    /// See [`Phase::Stopped`].
    Stopped,
    /// See [`Phase::Starting`]; the report is empty while nothing has come of the start yet.
    Starting(InstanceReport),
    /// See [`Phase::Running`].
    Running(InstanceReport),
    /// See [`Phase::Playing`].
    Playing(InstanceReport),
    /// See [`Phase::Stopping`]; the report is empty if only a [second process](Observed::beside) is left.
    Stopping(InstanceReport),
    /// See [`Phase::Backoff`].
    Backoff {
        /// When it will be restarted, or installed.
        retry_ms: Millis,
    },
    /// See [`Phase::Failed`]; the report is empty unless something of it runs on.
    Failed(InstanceReport),
}

/// What is known of the instance of a unit that is in effect: a process, or files or packages that are kept as they should
/// be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceReport {
    /// Its process id, for people; no signal is ever sent to this number. Files and packages have none.
    pub pid: Option<i32>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Its own status text.
    pub status: Option<String>,
    /// Why, by its probes, it has not come up yet, or, once it is up, is not ready.
    pub unready: Option<Diagnostic>,
    /// What it can be asked for on its channel.
    pub can: Vec<Ability>,
    /// Features of its spec that this host cannot provide, so that it runs without: each with the reason.
    pub unsupported: Vec<Diagnostic>,
    /// What others have changed of what it was made from, and is not put right: each with what is known of it.
    pub drift: Vec<Diagnostic>,
}

/// How the revision of a unit has fared: whether it was verified, and if not, what becomes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrialReport {
    /// No revision was verified yet.
    #[default]
    Unverified,
    /// The last verified revision, to which a later failure rolls back.
    Verified(Digest),
    /// Its revision is not verified yet, and would be rolled back if it failed.
    OnTrial {
        /// The revision that it would be rolled back to.
        verified: Digest,
    },
    /// It was rolled back to the last verified revision, until its desired state is changed.
    RolledBack(RolledBack),
}

/// Stands for the report of an instance where there is none.
static NO_INSTANCE: InstanceReport = InstanceReport {
    pid: None,
    frozen: false,
    status: None,
    unready: None,
    can: Vec::new(),
    unsupported: Vec::new(),
    drift: Vec::new(),
};

impl Observed {
    /// Returns the state of a unit that does not exist yet.
    #[must_use]
    pub fn absent(at_ms: Millis) -> Self {
        Self {
            generation: 0,
            revision: None,
            content: None,
            state: ObservedState::Absent,
            since_ms: at_ms,
            last_end: None,
            last_lines: None,
            progress: None,
            endpoints: Vec::new(),
            connectors: Vec::new(),
            attempts: 0,
            error: None,
            trial: TrialReport::Unverified,
            beside: None,
            owed: Vec::new(),
        }
    }

    /// Returns its phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// Returns what is known of its instance; nothing if it has none.
    #[must_use]
    pub fn instance(&self) -> &InstanceReport {
        self.state.instance().unwrap_or(&NO_INSTANCE)
    }

    /// Returns when it will be restarted, if that is what it waits for.
    #[must_use]
    pub fn retry_ms(&self) -> Option<Millis> {
        if let ObservedState::Backoff { retry_ms } = self.state { Some(retry_ms) } else { None }
    }

    /// Returns how its last process ended, without details.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.last_end.map(|end| end.exit)
    }

    /// Returns the rollback, while it is rolled back.
    #[must_use]
    pub fn rolled_back(&self) -> Option<&RolledBack> {
        self.trial.rolled_back()
    }
}

impl ObservedState {
    /// Returns its phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self {
            Self::Absent => Phase::Absent,
            Self::Installing => Phase::Installing,
            Self::Stopped => Phase::Stopped,
            Self::Starting(_) => Phase::Starting,
            Self::Running(_) => Phase::Running,
            Self::Playing(_) => Phase::Playing,
            Self::Stopping(_) => Phase::Stopping,
            Self::Backoff { .. } => Phase::Backoff,
            Self::Failed(_) => Phase::Failed,
        }
    }

    /// Returns what is known of the instance, in a phase that has one.
    #[must_use]
    pub fn instance(&self) -> Option<&InstanceReport> {
        match self {
            Self::Starting(instance)
            | Self::Running(instance)
            | Self::Playing(instance)
            | Self::Stopping(instance)
            | Self::Failed(instance) => Some(instance),
            Self::Absent | Self::Installing | Self::Stopped | Self::Backoff { .. } => None,
        }
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn instance_mut(&mut self) -> Option<&mut InstanceReport> {
        match self {
            Self::Starting(instance)
            | Self::Running(instance)
            | Self::Playing(instance)
            | Self::Stopping(instance)
            | Self::Failed(instance) => Some(instance),
            Self::Absent | Self::Installing | Self::Stopped | Self::Backoff { .. } => None,
        }
    }
}

impl From<Phase> for ObservedState {
    /// Returns the state of a unit of which only the phase is known; a restart is due.
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Absent => Self::Absent,
            Phase::Installing => Self::Installing,
            Phase::Stopped => Self::Stopped,
            Phase::Starting => Self::Starting(InstanceReport::default()),
            Phase::Running => Self::Running(InstanceReport::default()),
            Phase::Playing => Self::Playing(InstanceReport::default()),
            Phase::Stopping => Self::Stopping(InstanceReport::default()),
            Phase::Backoff => Self::Backoff { retry_ms: 0 },
            Phase::Failed => Self::Failed(InstanceReport::default()),
        }
    }
}

impl TrialReport {
    /// Returns the last verified revision.
    #[must_use]
    pub fn verified(&self) -> Option<&Digest> {
        match self {
            Self::Unverified => None,
            Self::Verified(verified) | Self::OnTrial { verified } => Some(verified),
            Self::RolledBack(back) => Some(&back.to),
        }
    }

    /// Whether its revision would be rolled back if it failed.
    #[must_use]
    pub fn is_on(&self) -> bool {
        matches!(self, Self::OnTrial { .. })
    }

    /// Returns the rollback, if there was one.
    #[must_use]
    pub fn rolled_back(&self) -> Option<&RolledBack> {
        if let Self::RolledBack(back) = self { Some(back) } else { None }
    }
}

/// The content of a revision, by names for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Content {
    /// The artifact as ROLE@VERSION, the name of a container's image, or how many files or packages there are.
    pub artifact: String,
    /// Each config as ID@VERSION.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<String>,
}

impl Content {
    /// Returns the content of a spec.
    #[must_use]
    pub fn of(spec: &Spec) -> Self {
        let artifact = match (spec.artifact(), spec) {
            (Some(artifact), _) => format!("{}@{}", artifact.role, artifact.version),
            (None, Spec::Container(ContainerSpec { image: Image::Name(name) | Image::Existing(name), .. })) => {
                name.clone()
            }
            (None, Spec::Files(spec)) => counted(spec.files.len(), "file"),
            (None, Spec::Packages(spec)) => counted(spec.present.len() + spec.absent.len(), "package"),
            (None, _) => String::new(),
        };
        let configs = spec.configs().iter().map(|config| format!("{}@{}", config.id, config.version)).collect();
        Self { artifact, configs }
    }

    /// Returns the version: that of the artifact, or the tag of the image; the whole name of an image without a tag.
    #[must_use]
    pub fn version(&self) -> &str {
        let name = self.artifact.as_str();
        let after = |mark| name.rsplit_once(mark).map(|(_, version): (&str, &str)| version);
        after('@').or_else(|| after(':').filter(|tag| !tag.contains('/'))).unwrap_or(name)
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The second process of a unit, beside the one that the rest of its report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Beside {
    /// Its revision.
    pub revision: Digest,
    /// Its process id, for people; no signal is ever sent to this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Whether it is to end: it was replaced, or is not needed any more. Otherwise it takes over once it is up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// When it appeared.
    pub since_ms: Millis,
}

impl std::fmt::Display for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let does = if self.leaving { "ends" } else { "starts, and takes over when it is up" };
        let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        write!(f, "revision {}{pid} {does}", self.revision.short())
    }
}

/// A rollback of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolledBack {
    /// The generation that was rolled back.
    pub generation: u64,
    /// The revision that failed.
    pub revision: Digest,
    /// The revision that it was rolled back to.
    pub to: Digest,
    /// The reason.
    pub error: Diagnostic,
    /// When.
    pub at_ms: Millis,
    /// The last lines of its log when it ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lines: Option<String>,
}

impl RolledBack {
    /// Says that it went back, and why; `subject` is the unit, with a blank behind it, or nothing.
    #[must_use]
    pub fn diagnostic(&self, subject: impl std::fmt::Display) -> Diagnostic {
        let Self { revision, to, error, .. } = self;
        let what = format!("{subject}rolled back to revision {} from {}", to.short(), revision.short());
        error.clone().within(what)
    }
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// The bytes transferred.
    pub done_bytes: u64,
    /// The total.
    pub total_bytes: u64,
}

impl Progress {
    /// Returns it in percent, rounded down.
    #[must_use]
    pub fn percent(self) -> u64 {
        let percent = u128::from(self.done_bytes) * 100 / u128::from(self.total_bytes.max(1));
        u64::try_from(percent).unwrap_or(100).min(100)
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this exit code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It ended unobserved.
    Unknown,
}

impl Exit {
    /// Whether it is exit code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match Signal::from_number(*number) {
                Some(signal) => write!(f, "signal {number} ({signal})"),
                None => write!(f, "signal {number}"),
            },
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// How a process ended, with details. Its text form is used everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessEnd {
    /// The exit.
    pub exit: Exit,
    /// Whether it, or a child, was killed for lack of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// Whether it left a core file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
}

impl From<Exit> for ProcessEnd {
    fn from(exit: Exit) -> Self {
        Self { exit, oom_killed: false, core_dumped: false }
    }
}

impl std::fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = if self.oom_killed { ", out of memory" } else { "" };
        let core = if self.core_dumped { ", core dumped" } else { "" };
        write!(f, "{}{memory}{core}", self.exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_printed_with_all_details() {
        let end = |exit, oom_killed, core_dumped| ProcessEnd { exit, oom_killed, core_dumped }.to_string();
        assert_eq!(end(Exit::Code(3), false, false), "exit code 3");
        assert_eq!(end(Exit::Signal(9), true, false), "signal 9 (SIGKILL), out of memory");
        assert_eq!(end(Exit::Signal(11), false, true), "signal 11 (SIGSEGV), core dumped");
        assert_eq!(end(Exit::Code(137), true, true), "exit code 137, out of memory, core dumped");
        assert_eq!(end(Exit::Signal(99), false, false), "signal 99");
    }
}
