//! What was found about an installation: the input of every check.

use std::path::PathBuf;

use muster_topics::{Millis, diagnostic::Diagnostic};

use crate::setup::{ListenerSetup, Part, ServerSetup};

/// Everything that was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// This machine's clock.
    pub now_ms: Millis,
    /// The version of this program.
    pub version: String,
    /// The machine.
    pub host: HostFacts,
    /// The roles that are installed here.
    pub parts: Vec<(Part, PartFacts)>,
}

/// What was found about the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFacts {
    /// Its control groups.
    pub cgroups: Cgroups,
    /// Its time zone.
    pub time_zone: TimeZone,
}

/// Control groups of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cgroups {
    /// Version 2, with these controllers.
    V2(Vec<String>),
    /// Version 1, possibly with an empty tree of version 2 beside it.
    V1,
    /// None are mounted.
    #[default]
    Missing,
}

/// The time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TimeZone {
    /// It has this name.
    Named(String),
    /// None is set, so it is UTC.
    #[default]
    Unset,
    /// A zone is named that this machine has no file for.
    Unknown(String),
}

/// What was found about one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartFacts {
    /// The file of its configuration, if it has one.
    pub config: Option<PathBuf>,
    /// Why its configuration or identity cannot be used.
    pub trouble: Option<Diagnostic>,
    /// What has to be done before it can work.
    pub missing: Option<Diagnostic>,
    /// How it is started.
    pub start: String,
    /// Whether it runs; unknown of what keeps no lock.
    pub process: Option<ProcessState>,
    /// Where it listens.
    pub listeners: Vec<(ListenerSetup, ListenerState)>,
    /// Servers that it connects to.
    pub servers: Vec<ServerFacts>,
    /// Its certificates.
    pub certificates: Vec<CertificateFacts>,
    /// Its revocation list, and by when each list of that has to be replaced, or why it cannot be read.
    pub revoked: Option<(PathBuf, Result<Vec<Millis>, String>)>,
    /// File systems of its folders.
    pub disks: Vec<DiskFacts>,
    /// Its stores.
    pub stores: Vec<(PathBuf, StoreState)>,
    /// Files with secrets, with their modes.
    pub private: Vec<(PathBuf, u32)>,
    /// What the broker lets it do.
    pub broker: Option<BrokerFacts>,
    /// What a running agent says.
    pub agent: Option<Result<AgentFacts, String>>,
    /// What answers at the socket of containers.
    pub podman: Option<PodmanFacts>,
    /// What the consoles say of themselves that this user's command line is signed in to.
    pub consoles: Vec<ConsoleFacts>,
    /// How many open files it may have, how many it needs, and for what.
    pub open_files: Option<(u64, u64, &'static str)>,
}

/// Whether a role runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// As this process.
    Runs(i32),
    /// It does not.
    Stopped,
}

/// What is at an address on which a role listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerState {
    /// Something answers.
    Answers,
    /// Nothing does, and it can be listened on.
    Free,
    /// Nothing does, and it cannot be listened on.
    Unusable(String),
}

/// A server, as it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerFacts {
    /// What was looked for.
    pub setup: ServerSetup,
    /// What was found.
    pub reach: Reach,
}

/// How far a connection came.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// The URL cannot be used.
    Invalid,
    /// The name has no address.
    Unresolved(String),
    /// There is no connection.
    Refused(String),
    /// There is a connection, but no TLS on it.
    NoTls(String),
    /// It answers.
    Answers(ServerAnswer),
}

/// What a server showed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerAnswer {
    /// Its certificate, and why it would be refused, if TLS is used.
    pub certificate: Option<(CertificateFacts, Option<String>)>,
    /// By how much its clock is ahead of this machine's, if it told the time.
    pub ahead_ms: Option<Millis>,
    /// What it said about its readiness, if it is a console: the status and the text.
    pub ready: Option<(u16, String)>,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// What it is.
    pub what: String,
    /// Where it is from.
    pub place: String,
    /// What makes a new one.
    pub remedy: String,
    /// Its content, or why that cannot be read.
    pub content: Result<CertificateContent, String>,
}

/// What a certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateContent {
    /// Whose it is.
    pub common_name: String,
    /// The names and addresses that it is for.
    pub names: Vec<String>,
    /// From when it is valid.
    pub begins_ms: Millis,
    /// Until when it is valid.
    pub ends_ms: Millis,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// The folder that is on it.
    pub folder: PathBuf,
    /// Its size.
    pub total_bytes: u64,
    /// What is free for this user.
    pub free_bytes: u64,
    /// Its inodes; 0 if it has no fixed number.
    pub total_inodes: u64,
    /// Free ones.
    pub free_inodes: u64,
    /// Whether it is mounted for reading alone.
    pub is_read_only: bool,
    /// Why it could not be looked at.
    pub error: Option<String>,
}

/// A store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// It is whole.
    Whole,
    /// It is not there.
    Missing,
    /// It is damaged.
    Damaged(String),
    /// It was written by another build.
    OtherForm,
    /// It could not be checked.
    Unchecked(String),
}

/// What the broker lets a host do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerFacts {
    /// It does not let it in.
    Refused(String),
    /// It lets it in.
    Connected {
        /// Subscriptions of an agent that it refuses.
        refused: Vec<String>,
        /// Whether it lets this host read what other hosts publish.
        reads_others: bool,
        /// Whether it passes on what this host publishes; unknown of a host whose agent runs, or never ran.
        publishes: Option<bool>,
    },
}

/// What a running agent says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// Its version.
    pub version: String,
    /// Whether it is connected, as the only agent of its host.
    pub is_connected: bool,
    /// The protocol of the console, if it is later than the agent's.
    pub later_protocol: Option<u64>,
}

/// What a console says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleFacts {
    /// Its name in the context file.
    pub name: String,
    /// Its active alerts about itself and about what hosts want of it, or why they are not known.
    pub alerts: Result<Vec<ConsoleAlertFacts>, String>,
}

/// An alert that the console itself has raised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleAlertFacts {
    /// The rule.
    pub rule: String,
    /// The host that it is about, if it is about one.
    pub hostname: Option<String>,
    /// What it says.
    pub told: Diagnostic,
}

/// What answers at the socket of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodmanFacts {
    /// There is no socket.
    Missing(PathBuf),
    /// It answers.
    Answers,
    /// It does not.
    Silent(PathBuf, String),
}
