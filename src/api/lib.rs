//! The types of the console's REST API, shared by its two ends: the console that serves them (and
//! draws its pages from them), and the command line that reads them.
//!
//! Times are milliseconds since the Unix epoch. An answer that is not a success is a
//! [`Problem`] with an HTTP status that fits.

use std::{collections::BTreeMap, net::IpAddr};

use muster_topics::{
    Millis,
    channel::ToldStats,
    command::{Target, Verb},
    heartbeat::HostState,
    name::{CommandId, ConfigId, Digest, HostId, Name, UnitName, Version},
    outcome::{Data, Outcome, Stream},
    presence::PresenceState,
    realm::PortRange,
    select::HostSelect,
    snapshot::Pins,
    unit::{ArtifactRef, Desired, Hold, Observed},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod alert;
mod apply;
pub mod host_names;
mod label;
mod list;
mod store;
pub mod summary;
mod unit;
pub mod upgrade;

pub use alert::{Alert, AlertRule, AlertSilence, AlertStanding, NewAlertRule, NewAlertSilence};
pub use apply::{Applied, AppliedUnit, Apply, ApplyAction, ApplyDocument, CompareUnit};
pub use label::{HostLabel, LabelHosts, LabelOrigin, LabelledHost};
pub use list::{AlertSort, HostListing, HostSort, UnitListing, UnitSort};
pub use muster_topics::join::Problem;

pub use muster_rules::{compare::FieldDifference, cost::ChangeCost};
pub use store::{MetricQuarantine, MetricStore, MetricStoreError};

/// `GET /api/v1/status`: the installation at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The console's version.
    pub version: String,
    /// Whether the console is connected to its broker.
    pub broker_connected: bool,
    /// Hosts that ever joined.
    pub hosts: u64,
    /// Hosts that are online.
    pub hosts_online: u64,
    /// Hosts of which nobody knows whether they are: the console has no connection to the broker.
    #[serde(default)]
    pub hosts_unknown: u64,
    /// Where hosts connect to the broker.
    pub broker_url: String,
    /// Where hosts reach the console.
    pub console_url: String,
}

/// The header of every answer that says, for people, what is wrong with the console itself; it is left out if nothing is.
pub const NOTICE_HEADER: &str = "x-muster-notice";

/// `POST /api/v1/login`: a one-time sign-in code becomes a lasting token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The code of a sign-in link.
    pub code: String,
}

/// The answer to [`Login`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedIn {
    /// Who is signed in.
    pub operator: Name,
    /// Goes into `Authorization: Bearer …`.
    pub token: String,
}

/// An item of `GET /api/v1/sign-ins`; `DELETE /api/v1/sign-ins/{id}` ends one at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignIn {
    /// Names it.
    pub id: Name,
    /// Who is signed in by it.
    pub kind: SignInKind,
    /// As whom.
    pub operator: Name,
    /// Since when.
    pub created_ms: Millis,
    /// Until when.
    pub expires_ms: Millis,
    /// When it was last used, give or take an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_ms: Option<Millis>,
}

/// Who is signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignInKind {
    /// A browser.
    Browser,
    /// A command line, or another program with a token.
    Program,
}

/// A host: an item of `GET /api/v1/hosts`, and the whole of `GET /api/v1/hosts/{host}`, where
/// `{host}` is an id or a hostname that only one host has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// The name that it gives itself.
    pub hostname: String,
    /// Whether its agent is there; nothing if it joined and never connected.
    pub presence: Option<HostPresence>,
    /// What it said of itself, and when that came.
    pub state: Option<Received<HostState>>,
    /// When it joined.
    pub joined_ms: Millis,
    /// When its certificate ends; 0 if it was revoked.
    pub certificate_expires_ms: Millis,
    /// Its labels, by name: those of its own configuration as it said them last, and before them those that operators gave it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<HostLabel>,
}

/// Whether a host is there, as far as the console can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostConnection {
    /// It is.
    Online,
    /// It is not, and did not say so.
    Offline,
    /// Its agent was stopped.
    Stopped,
    /// The console has no connection to the broker, and hears of nobody.
    Unknown,
}

impl HostConnection {
    /// It in a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Offline => "offline",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

impl From<PresenceState> for HostConnection {
    fn from(state: PresenceState) -> Self {
        match state {
            PresenceState::Online => Self::Online,
            PresenceState::Offline => Self::Offline,
            PresenceState::Stopped => Self::Stopped,
        }
    }
}

/// Whether a host's agent is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostPresence {
    /// Whether it is.
    pub state: HostConnection,
    /// The life of the agent that said so.
    pub epoch: u64,
    /// Since when, by the console's clock.
    pub since_ms: Millis,
    /// The agent's version.
    pub agent_version: String,
}

/// A value with its age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Received<T> {
    /// When it came, by the console's clock.
    pub at_ms: Millis,
    /// What came.
    pub value: T,
}

/// `POST /api/v1/tokens`: a one-time password for a host that shall join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// How long it may be used; an hour if left out.
    #[serde(default)]
    pub ttl_s: Option<u64>,
    /// A host that is there already, by id or by a hostname that only one has: it alone may join with the token, and with another key
    /// than its own, such as one that was revoked, or has lost its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// `POST /api/v1/token-batches`: many one-time passwords at once, for many hosts. The answer is a list of [`CreatedToken`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTokens {
    /// How many, at most [`TOKENS_MAX`].
    pub count: u32,
    /// How long each may be used; an hour if left out.
    #[serde(default)]
    pub ttl_s: Option<u64>,
}

/// The most one-time passwords that one request makes: some 250 KB, and a tenth of a second of the store.
pub const TOKENS_MAX: u32 = 1_000;

/// The answer to [`NewToken`]: the only time that the token itself can be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CreatedToken {
    /// Names it in listings.
    pub id: Name,
    /// What the host is given (`muster agent --join …`).
    pub token: String,
    /// When it ends.
    pub expires_ms: Millis,
    /// The whole command for the other machine.
    #[serde(default)]
    pub command: String,
    /// Why another machine cannot use it, and what to do about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// An item of `GET /api/v1/tokens`; `DELETE /api/v1/tokens/{id}` revokes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Names it.
    pub id: Name,
    /// Who made it.
    pub operator: Name,
    /// When it was made.
    pub created_ms: Millis,
    /// When it ends.
    pub expires_ms: Millis,
    /// When it was used, and by which host.
    pub used: Option<(Millis, HostId)>,
    /// The host that it is for alone, if it is for one that was there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<HostId>,
}

/// `POST /api/v1/commands`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommand {
    /// Whom it is for.
    pub target: NewTarget,
    /// How long it may wait for a host before it is refused. If left out, programs and questions wait for ten minutes, and
    /// what is wanted of units, realms and snapshots for seven days.
    #[serde(default)]
    pub expires_in_ms: Option<u64>,
    /// What to do.
    pub verb: Verb,
}

/// Whom a new command is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NewTarget {
    /// These hosts, each by id or by a hostname that only one host has.
    Hosts(Vec<String>),
    /// Every host that has joined.
    All,
    /// Those that carry a label of this name, whatever its value.
    Group(Name),
    /// Those that this picks. Whom the command is waited for is decided by what the console knows of the hosts; each
    /// host then decides for itself.
    Select(HostSelect),
}

/// A command in the ledger: the answer to [`NewCommand`], an item of `GET /api/v1/commands`
/// (newest first; `?limit=` and `?host=`), and the whole of `GET /api/v1/commands/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// Its id.
    pub id: CommandId,
    /// Who wants it.
    pub operator: Name,
    /// When it was made.
    pub issued_ms: Millis,
    /// After this it is refused.
    pub expires_ms: Millis,
    /// What to do.
    pub verb: Verb,
    /// Whom it was meant for, where that was no list of hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// What became of it, host by host. Of a group and of a select expression there are those that were expected to
    /// be meant, and those that have answered as they did.
    pub hosts: Vec<CommandHost>,
}

/// What became of a command on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandHost {
    /// The host.
    pub host: HostId,
    /// The name that it gives itself.
    pub hostname: String,
    /// How far it has come.
    pub state: CommandState,
    /// The terminal answer, with the part of the output that came with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Received<Outcome>>,
    /// Since when the host has been away, as far as is known, if the command waits for it. Of one that never connected it
    /// is when it joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_since_ms: Option<Millis>,
    /// What the host tells of that may be why the command waits for it: that its agent's disk is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a command has come on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// It goes out as long as it has not expired, and nothing has come back.
    Waiting,
    /// The agent has it, and it takes its time.
    Accepted,
    /// It runs.
    Running,
    /// There is an outcome.
    Done,
    /// It expired without an answer. A late outcome still replaces this.
    Missing,
}

/// An event of `GET /api/v1/commands/{id}/events` (server-sent events, from the beginning, ending
/// with `end` once no host is left to wait for).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CommandEvent {
    /// A host has come further.
    Host(CommandHost),
    /// A piece of output.
    Output {
        /// The host that it comes from.
        host: HostId,
        /// Which of its streams.
        stream: Stream,
        /// Where in the stream the piece begins.
        offset_bytes: u64,
        /// The piece.
        data: Data,
    },
    /// Every host has its outcome, or is missing.
    End,
}

/// A unit on a host: an item of `GET /api/v1/units` (`?host=`), and the whole of
/// `GET /api/v1/hosts/{host}/units/{realm}/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unit {
    /// The host.
    pub host: HostId,
    /// The name that it gives itself.
    pub hostname: String,
    /// The unit.
    pub unit: UnitName,
    /// What it should be.
    pub desired: Desired,
    /// What it is.
    pub observed: Observed,
    /// Why it is, on purpose, not converging.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What snapshots on its host need of it beyond what it should be; this is not removed either.
    #[serde(default, skip_serializing_if = "Pins::is_empty")]
    pub pins: Pins,
    /// The numbers that it told last of its own accord.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<ToldStats>,
    /// When this came, by the console's clock.
    pub at_ms: Millis,
}

/// Labels of a new artifact: `POST /api/v1/artifacts?role=…&version=…&manifest=…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    /// What it is for.
    pub role: Name,
    /// Which one of the role.
    pub version: Version,
    /// Its manifest, which was added before.
    #[serde(default)]
    pub manifest: Option<Digest>,
}

/// The answer to `POST /api/v1/manifests`, which takes a manifest. `GET /api/v1/manifests/{sha256}` gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredManifest {
    /// SHA-256 of its canonical JSON.
    pub sha256: Digest,
}

/// `POST /api/v1/artifacts/gc`: removes every artifact that no unit needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Collect {
    /// Only say which.
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer to [`Collect`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collected {
    /// What was removed, or would be.
    pub artifacts: Vec<Artifact>,
    /// What that frees on the console's disk.
    pub freed_bytes: u64,
}

/// `POST /api/v1/realms`: a realm that is not there yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRealm {
    /// Its name.
    pub name: Name,
    /// See [`RealmFields::parent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Name>,
    /// See [`RealmFields::bind`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<IpAddr>,
    /// See [`RealmFields::ports`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// See [`RealmFields::disabled`].
    #[serde(default)]
    pub disabled: bool,
}

/// `POST /api/v1/realms/{realm}`: what a realm is from now on. What is left out it has from its parent, or else from
/// what holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RealmFields {
    /// The realm that it has from what it leaves open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Name>,
    /// Where its global endpoints listen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<IpAddr>,
    /// The ports of its endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Its units are not started.
    #[serde(default)]
    pub disabled: bool,
    /// Only if this is still its generation: for whoever has looked at it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_generation: Option<u64>,
}

/// A realm: an item of `GET /api/v1/realms`, and the whole of `GET /api/v1/realms/{realm}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Realm {
    /// What it says itself, as hosts are told.
    #[serde(flatten)]
    pub realm: muster_topics::realm::Realm,
    /// What it comes to, with its parents.
    pub comes_to: RealmComesTo,
    /// How many units hosts have in it.
    pub units: u64,
}

/// What a realm comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RealmComesTo {
    /// Where its global endpoints listen.
    pub bind: IpAddr,
    /// The ports of its endpoints.
    pub ports: PortRange,
    /// The realm that is disabled, be it this one or a parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_by: Option<Name>,
}

/// The answer to [`NewRealm`] and [`RealmFields`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RealmChanged {
    /// What it is now.
    pub realm: Realm,
    /// The command that tells all hosts; nothing if there is none, or nothing has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandId>,
}

/// The answer to `DELETE /api/v1/realms/{realm}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RealmRemoved {
    /// The command that tells all hosts; nothing if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandId>,
}

/// An artifact: the answer to `POST /api/v1/artifacts` (the body is the blob), an
/// item of `GET /api/v1/artifacts` (`?role=&version=`), and the whole of `GET /api/v1/artifacts/{sha256}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// What identifies it.
    pub sha256: Digest,
    /// Its length.
    pub size_bytes: u64,
    /// What it is for.
    pub role: Name,
    /// Which one of the role.
    pub version: Version,
    /// Its manifest, by the SHA-256 of its canonical JSON, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Digest>,
    /// When it was added.
    pub added_ms: Millis,
}

impl From<Artifact> for ArtifactRef {
    fn from(artifact: Artifact) -> Self {
        let Artifact { sha256, size_bytes, role, version, manifest, added_ms: _ } = artifact;
        Self { sha256, size_bytes, role, version, manifest }
    }
}

/// `POST /api/v1/configs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConfig {
    /// Its id.
    pub id: ConfigId,
    /// Its version.
    pub version: Version,
    /// The document, as text: it is parsed strictly (no duplicate keys).
    pub content: String,
}

/// A config: the answer to [`NewConfig`], an item of `GET /api/v1/configs`, and, with its content,
/// the whole of `GET /api/v1/configs/{id}/{version}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// Its id.
    pub id: ConfigId,
    /// Its version.
    pub version: Version,
    /// SHA-256 of its canonical JSON.
    pub sha256: Digest,
    /// When it was added.
    pub added_ms: Millis,
    /// The document, with secrets masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
}

/// An item of `GET /api/v1/configs/{id}/{version}/diff?to=…`: one place in which two configs differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDifference {
    /// Where: a JSON pointer.
    pub pointer: String,
    /// What stands there in the one; secrets masked, nothing if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// What stands there in the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

/// `GET /api/v1/series?selector=…&start_ms=…&end_ms=…&points=…`: measurements over time.
/// With neither start nor end: the last value of each series within five minutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesAnswer {
    /// What the selector chose, sorted by name and labels.
    pub series: Vec<Series>,
}

/// One series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Its name, such as `muster_host_cpu_busy_ratio`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Times and values, oldest first.
    pub points: Vec<(Millis, f64)>,
}
