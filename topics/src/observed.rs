//! The observed state of a unit: its phase, what is known of its instance, and how its revisions have fared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis,
    channel::Ability,
    container::{ContainerSpec, Image},
    endpoint::{Connector, Endpoint},
    name::Digest,
    signal::Signal,
    task::OwedReport,
    unit::Spec,
};

/// The phase of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// It ended by itself, and will be restarted.
    Backoff,
    /// It needs intervention; `error` has the reason.
    Failed,
}

/// The observed state of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observed {
    /// The generation of desired state that it belongs to.
    pub generation: u64,
    /// The revision that is installed or runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Digest>,
    /// The content of that revision, for people; no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Its phase.
    pub phase: Phase,
    /// Since when.
    pub since_ms: Millis,
    /// Its process id, for people; no signal is ever sent to this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// How its last process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Whether its last process left a core file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
    /// Whether its last process, or a child, was killed for lack of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// The last lines of its log when it ended, in phases `backoff` and `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lines: Option<String>,
    /// Whether it is frozen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// Its own status text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Why, by its probes, it has not come up yet, or, once it is up, is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unready: Option<String>,
    /// The progress of its download, updated now and then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What it can be asked for on its channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub can: Vec<Ability>,
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// How it reaches the endpoints that it requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connectors: Vec<Connector>,
    /// Features of its spec that this host cannot provide, so that it runs without: each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// What others have changed of what it was made from, and is not put right: each with what is known of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// How often it was restarted automatically since it last was up for five minutes.
    pub attempts: u32,
    /// When it will be restarted, in phase `backoff`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<Millis>,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last verified revision, to which a later failure rolls back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Digest>,
    /// Whether its revision is not verified yet, and would be rolled back if it failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_trial: bool,
    /// The rollback to the last verified revision, which lasts until the desired state is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// Its second process, while one revision replaces another without interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// What its last changes still owe, such as a restart: at most
    /// [`OWED_REPORTED_MAX`](crate::task::OWED_REPORTED_MAX) actions, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owed: Vec<OwedReport>,
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
        let does = if self.leaving { "ends" } else { "comes up, and takes over then" };
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
    pub error: String,
    /// When.
    pub at_ms: Millis,
    /// The last lines of its log when it ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lines: Option<String>,
}

impl std::fmt::Display for RolledBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { revision, to, error, .. } = self;
        write!(f, "went back to revision {} from {}: {error}", to.short(), revision.short())
    }
}

impl Observed {
    /// Returns how its last process ended, with details.
    #[must_use]
    pub fn last_end(&self) -> Option<ProcessEnd> {
        let of = |exit| ProcessEnd { exit, oom_killed: self.oom_killed, core_dumped: self.core_dumped };
        self.exit.map(of)
    }

    /// Returns the state of a unit that does not exist yet.
    #[must_use]
    pub fn absent(at_ms: Millis) -> Self {
        Self {
            generation: 0,
            revision: None,
            content: None,
            phase: Phase::Absent,
            since_ms: at_ms,
            pid: None,
            exit: None,
            core_dumped: false,
            oom_killed: false,
            last_lines: None,
            frozen: false,
            status: None,
            unready: None,
            progress: None,
            can: Vec::new(),
            endpoints: Vec::new(),
            connectors: Vec::new(),
            missing: Vec::new(),
            changed: Vec::new(),
            attempts: 0,
            retry_ms: None,
            error: None,
            verified: None,
            on_trial: false,
            rolled_back: None,
            beside: None,
            owed: Vec::new(),
        }
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
