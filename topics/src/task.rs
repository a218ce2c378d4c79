//! Tasks: the steps by which a host changes to a revision of a unit, and the resources that they are about.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis,
    container::Runtime,
    diagnostic::Diagnostic,
    endpoint::Protocol,
    name::{Digest, Name, UnitName},
    unit::Spec,
};

/// Something of a host that only one unit may own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// A package. Two units may want the same one, unless they want different versions.
    Package {
        /// Its name.
        name: String,
        /// The version; empty if it should not be there, `None` for any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// A repository of packages. Two units may want the same one, unless they want different keys.
    Repository {
        /// Its address.
        url: String,
        /// The suite.
        suite: String,
        /// The digest of the key that signs it.
        key: Digest,
    },
    /// A login to a repository. Two units of a realm may want the same one, unless they want different users or passwords.
    Login {
        /// The repository's address.
        url: String,
        /// The user.
        user: String,
        /// The secret of the unit's realm that is the password.
        secret: Name,
    },
    /// An absolute path.
    Path(String),
    /// A fixed port of the host.
    Port {
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
    /// A container that exists without the agent.
    Container {
        /// Its runtime.
        runtime: Runtime,
        /// Its name.
        name: String,
    },
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Package { name, version: None } => write!(f, "package {name}"),
            Self::Package { name, version: Some(version) } if version.is_empty() => {
                write!(f, "absence of package {name}")
            }
            Self::Package { name, version: Some(version) } => write!(f, "package {name}={version}"),
            Self::Repository { url, suite, key } => {
                write!(f, "repository {url} {suite} with the key {}", key.short())
            }
            Self::Login { url, user, secret } => {
                write!(f, "login to {url} as {user} with the secret {secret} as password")
            }
            Self::Path(path) => write!(f, "path {path}"),
            Self::Port { protocol, port } => write!(f, "port {port}/{}", protocol.as_str()),
            Self::Container { runtime, name } => write!(f, "container {name} of {runtime}"),
        }
    }
}

impl Spec {
    /// Returns the resources that it owns. Ports that its host chooses are not among them.
    #[must_use]
    pub fn resources(&self) -> Vec<Resource> {
        let ports = self
            .provides()
            .iter()
            .filter_map(|provided| Some(Resource::Port { protocol: provided.protocol, port: provided.port? }));
        match self {
            Self::Yuno(_) => ports.collect(),
            Self::Container(spec) => {
                let existing = spec.image.existing();
                let existing =
                    existing.map(|name| Resource::Container { runtime: spec.runtime, name: name.to_owned() });
                ports.chain(existing).collect()
            }
            Self::Files(spec) => spec.resources().collect(),
            Self::Packages(spec) => spec.resources().collect(),
        }
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskAction {
    /// Renders templates.
    Render,
    /// Checks before anything changes.
    Validate,
    /// Installs, upgrades or downgrades packages.
    Install,
    /// Removes packages.
    Uninstall,
    /// Repairs an interrupted run of the package manager.
    Repair,
    /// Waits for a lock that another program has.
    Wait,
    /// Writes files.
    Write,
    /// Removes files, or puts back what was there before.
    Remove,
    /// Reloads, restarts or runs what a change wants.
    Notify,
}

impl TaskAction {
    /// Returns its name as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Render => "render",
            Self::Validate => "validate",
            Self::Install => "install",
            Self::Uninstall => "uninstall",
            Self::Repair => "repair",
            Self::Wait => "wait",
            Self::Write => "write",
            Self::Remove => "remove",
            Self::Notify => "notify",
        }
    }
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It runs.
    Running,
    /// It has succeeded, and has changed something.
    Changed,
    /// It has succeeded, and there was nothing to change.
    Unchanged,
    /// It has failed.
    Failed,
    /// The agent ended while it ran.
    Interrupted,
}

impl TaskState {
    /// Returns its name as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The most bytes of a task's log that are kept: its last ones.
pub const TASK_LOG_MAX_BYTES: usize = 64 * 1024;

/// The answer to [`crate::command::Verb::UnitTasks`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitTasks {
    /// The tasks that the host still has, the newest first.
    pub tasks: Vec<TaskRecord>,
    /// What changes of the unit owe, for people: `restart shop/till is pending`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owed: Vec<String>,
    /// The log of the task that was asked for, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<TaskLogText>,
}

/// The most actions of a unit that are reported as owed, the oldest first.
pub const OWED_REPORTED_MAX: usize = 8;

/// The most characters of each text of such an action.
pub const OWED_TEXT_MAX_CHARS: usize = 300;

/// An action that a change of a unit still owes, such as a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwedReport {
    /// What is to be done, for people: `restart shop/till`.
    pub action: String,
    /// Since when.
    pub since_ms: Millis,
    /// How often it has failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Why it could not be done the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Diagnostic>,
    /// When it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_ms: Option<Millis>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl std::fmt::Display for OwedReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { action, attempts, error, failed_ms, .. } = self;
        f.write_str(action)?;
        let times = if *attempts == 1 { "attempt" } else { "attempts" };
        match failed_ms {
            Some(_) => write!(f, ", given up after {attempts} {times}")?,
            None if *attempts > 0 => write!(f, ", retried after {attempts} {times}")?,
            None => f.write_str(", pending")?,
        }
        match error {
            Some(error) => write!(f, ": {error:#}"),
            None => Ok(()),
        }
    }
}

/// A part of a task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskLogText {
    /// The text, of at most [`TASK_LOG_MAX_BYTES`].
    pub text: String,
    /// Where it ends, to ask for what follows.
    pub end: u64,
    /// Whether nothing follows.
    pub is_over: bool,
}

/// A task of a unit, as its host keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRecord {
    /// Its number, which grows with each task of this host.
    pub number: u64,
    /// The unit.
    pub unit: UnitName,
    /// The revision that the host changed to, or away from.
    pub revision: Digest,
    /// What it does.
    pub action: TaskAction,
    /// What it is about, for people: `3 files below /etc/till`.
    pub about: String,
    /// How far it is.
    pub state: TaskState,
    /// When it began.
    pub began_ms: Millis,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<Millis>,
    /// Why it has failed, or what it has changed.
    #[serde(flatten)]
    pub diagnostic: Option<Diagnostic>,
}
