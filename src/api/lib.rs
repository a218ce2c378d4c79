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
    desired::UnitOwner,
    diagnostic::Diagnostic,
    heartbeat::HostState,
    name::{CommandId, ConfigId, Digest, HostId, Name, UnitName, Version},
    outcome::{self, Data, Outcome, Stream},
    presence::{Capability, PresenceState},
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
pub mod authority;
mod backup;
mod change;
mod clock;
mod deployment;
pub mod host_names;
mod installation;
mod label;
mod list;
mod plan;
pub mod problem_codes;
mod rollout;
mod secret;
mod store;
pub mod summary;
mod unit;
pub mod upgrade;

pub use alert::{Alert, AlertRule, AlertSilence, AlertStanding, NewAlertRule, NewAlertSilence};
pub use apply::{Applied, AppliedUnit, Apply, ApplyAction, ApplyDocument, CompareUnit};
pub use backup::{BACKUP_BYTES_HEADER, Backup, BackupFailure, BackupKind, BackupPart, Backups};
pub use change::{Change, ChangeKind, ChangeListing};
pub use clock::{ConfirmClock, ConsoleClock};
pub use deployment::{
    AppliedDeployment, AppliedDeployments, ApplyDeployments, CompareVersions, ConfirmAction, ConfirmDocuments,
    ConfirmedDocuments, Cordon, CordonHosts, CordonInfo, Deployment, DeploymentDetail, DeploymentDifferences,
    DeploymentEvent, DeploymentHost, DeploymentUnitChange, DeploymentVersionDetail, DeploymentVersionInfo, HostCordon,
    InstancePlace, LeavingUnit, NamedHost, NewVar, PlacementObstacleCount, RemoveDeployment, RemovedDeployment,
    RollBack, SYNC_FINDINGS_MAX, SyncFinding, SyncFindingKind, SyncReport, SyncRun, UnconfirmedDeployment,
    UnconfirmedHost, UnconfirmedLabels, UnitChange, UnitOnHosts, UnitPlacement, Var, VarLayer, VarName,
};
pub use installation::{BackupStatus, Installation, UNFINISHED_MAX};
pub use label::{HostLabel, LabelHosts, LabelOrigin, LabelledHost};
pub use list::{AlertSort, HostListing, HostSort, UnitListing, UnitSort};
pub use muster_topics::join::Problem;
pub use plan::{NewPlan, Plan, PlanFailure, PlanGroup, PlannedDeployment};

pub use muster_rules::host_plan::{DeploymentPlan, FilePlan, UnitAction, UnitPlan};
pub use muster_rules::rollout::state::{HostOutcome, RolloutPhase};
pub use muster_rules::{cost::ChangeCost, deployment_state::DeploymentState, spec_comparison::FieldDifference};
pub use rollout::{
    CancelRollout, ROLLOUT_HOSTS_MAX, ROLLOUT_STEPS_MAX, ROLLOUT_WAIT_HOSTS_MAX, ReleaseHost, Rollout, RolloutDetail,
    RolloutEvent, RolloutHost, RolloutHostQuery, RolloutHosts, RolloutStep, RolloutVerb, RolloutVersion, RolloutWait,
    RolloutWaitKind, RolloutWave, RolloutWaveState,
};
pub use secret::{
    KeyRotation, NewSecret, Secret, SecretConfig, SecretDetail, SecretSet, SecretUser, SecretVersion,
    SecretVersionState,
};
pub use store::{MetricQuarantine, MetricStore, MetricStoreError};

/// `GET /api/v1/status`: an overview of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The console's version.
    pub version: String,
    /// Whether the console is connected to its broker.
    pub broker_connected: bool,
    /// Number of hosts that have joined.
    pub hosts: u64,
    /// Number of hosts that are online.
    pub hosts_online: u64,
    /// Number of hosts whose presence is unknown because the console is not connected to its broker.
    #[serde(default)]
    pub hosts_unknown: u64,
    /// The address of the broker for hosts.
    pub broker_url: String,
    /// The address of the console for hosts.
    pub console_url: String,
}

/// The response header that describes a problem of the console itself, for people; left out if there is none.
pub const NOTICE_HEADER: &str = "x-muster-notice";

/// `POST /api/v1/login`: exchanges a one-time sign-in code for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The code from a sign-in link.
    pub code: String,
}

/// The result of [`Login`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedIn {
    /// The operator.
    pub operator: Name,
    /// The token for `Authorization: Bearer …`.
    pub token: String,
}

/// An item of `GET /api/v1/sign-ins`; `DELETE /api/v1/sign-ins/{id}` ends it at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignIn {
    /// Its id.
    pub id: Name,
    /// The kind of client.
    pub kind: SignInKind,
    /// The operator.
    pub operator: Name,
    /// When it began.
    pub created_ms: Millis,
    /// When it expires.
    pub expires_ms: Millis,
    /// When it was last used, to within an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_ms: Option<Millis>,
}

/// The kind of client that is signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignInKind {
    /// A browser.
    Browser,
    /// A command line, or another program.
    Program,
}

/// A host: an item of `GET /api/v1/hosts`, and the result of `GET /api/v1/hosts/{host}`, where `{host}` is an id or a
/// unique hostname.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// Its hostname.
    pub hostname: String,
    /// Its agent's presence; `null` if it has never connected.
    pub presence: Option<HostPresence>,
    /// The state that it last reported, and when that arrived.
    pub state: Option<Received<HostState>>,
    /// When it joined.
    pub joined_ms: Millis,
    /// When its certificate expires; 0 if it is revoked.
    pub certificate_expires_ms: Millis,
    /// Its labels, by name: those of its own configuration, as last reported, and those of the console, which take
    /// precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<HostLabel>,
    /// Whether it gets no new deployments, or none at all; left out for a host that is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<CordonInfo>,
}

impl Host {
    /// Whether it is revoked, so that it gets no commands.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.certificate_expires_ms == 0
    }
}

/// Whether a host is connected, as far as the console knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostConnection {
    /// It is connected.
    Online,
    /// It lost its connection without a goodbye.
    Offline,
    /// Its agent was stopped.
    Stopped,
    /// Not known, because the console is not connected to its broker.
    Unknown,
}

impl HostConnection {
    /// The word for it.
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

/// The presence of a host's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostPresence {
    /// Whether it is connected.
    pub state: HostConnection,
    /// The epoch of the agent's instance.
    pub epoch: u64,
    /// Since when, by the console's clock.
    pub since_ms: Millis,
    /// The agent's version.
    pub agent_version: String,
    /// What the agent can do on its host, as it says; `null` as long as it has not said so.
    pub capabilities: Option<Vec<Capability>>,
}

impl HostPresence {
    /// What the agent can do on its host, for people.
    #[must_use]
    pub fn abilities(&self) -> String {
        match &self.capabilities {
            Some(listed) => listed.iter().filter_map(|one| one.word()).collect::<Vec<_>>().join(", "),
            None => "not known yet".to_owned(),
        }
    }
}

/// A value and when it arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Received<T> {
    /// When it arrived, by the console's clock.
    pub at_ms: Millis,
    /// The value.
    pub value: T,
}

/// `POST /api/v1/tokens`: creates a one-time token with which a host joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// How long it is good; an hour if left out.
    #[serde(default)]
    pub for_s: Option<u64>,
    /// An existing host, by id or by a unique hostname: only this host may join with the token, with a new key. For a
    /// host that was revoked, or has lost its data folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace: Option<String>,
}

/// `POST /api/v1/token-batches`: creates many one-time tokens. The result is a list of [`CreatedToken`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTokens {
    /// Number of tokens, at most [`TOKENS_MAX`].
    pub count: u32,
    /// How long each is good; an hour if left out.
    #[serde(default)]
    pub for_s: Option<u64>,
}

/// Largest number of tokens of one request: about 250 KB, and a tenth of a second of work for the store.
pub const TOKENS_MAX: u32 = 1_000;

/// The result of [`NewToken`]: the token itself is never shown again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CreatedToken {
    /// Its id in lists.
    pub id: Name,
    /// The token, for `muster agent --join …`.
    pub token: String,
    /// When it expires.
    pub expires_ms: Millis,
    /// The complete command for the other machine.
    #[serde(default)]
    pub command: String,
    /// Why another machine cannot use it, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<Diagnostic>,
}

/// An item of `GET /api/v1/tokens`; `DELETE /api/v1/tokens/{id}` revokes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Its id.
    pub id: Name,
    /// The operator who created it.
    pub operator: Name,
    /// When it was created.
    pub created_ms: Millis,
    /// When it expires.
    pub expires_ms: Millis,
    /// When and by which host it was used.
    pub used: Option<(Millis, HostId)>,
    /// The only host that may use it, if it is for an existing host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<HostId>,
}

/// `POST /api/v1/commands`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommand {
    /// The hosts that it is for.
    pub target: NewTarget,
    /// How long it may wait for a host before it expires. Default: ten minutes for programs and questions, seven days
    /// for changes of units, realms and snapshots.
    #[serde(default)]
    pub expires_in_ms: Option<u64>,
    /// The operation.
    pub verb: Verb,
    /// The unit whose reported spec was copied into the verb. What it names is sent only if the console gave it to that host: a host
    /// may report anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_from: Option<HostUnit>,
}

/// A unit of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostUnit {
    /// The host.
    pub host: HostId,
    /// The unit.
    pub unit: UnitName,
}

/// The hosts of a new command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NewTarget {
    /// These hosts, each by id or by a unique hostname.
    Hosts(Vec<String>),
    /// Every host that has joined.
    All,
    /// All hosts with a label of this name, whatever its value.
    Group(Name),
    /// All hosts that this expression selects. The console decides whose outcome is expected from what it knows of the
    /// hosts; each host then decides for itself.
    Select(HostSelect),
}

/// A command in the ledger: the result of [`NewCommand`], an item of `GET /api/v1/commands` (newest first; `?limit=`
/// and `?host=`), and the result of `GET /api/v1/commands/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// Its id.
    pub id: CommandId,
    /// The operator who issued it.
    pub operator: Name,
    /// When it was issued.
    pub issued_ms: Millis,
    /// When it expires.
    pub expires_ms: Millis,
    /// The operation.
    pub verb: Verb,
    /// Its target, if that was not a list of hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The progress on each host. For a group or an expression: the hosts that were expected to be selected, and those
    /// that answered as selected.
    pub hosts: Vec<CommandHost>,
    /// In the answer to a new command: units that the console has not given to their hosts. They are changed without their configs and
    /// secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<HostUnit>,
}

/// The progress of a command on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandHost {
    /// The host.
    pub host: HostId,
    /// The host's name.
    pub hostname: String,
    /// How far the command is there.
    #[serde(flatten)]
    pub progress: HostProgress,
}

impl CommandHost {
    /// The state of the command on the host.
    #[must_use]
    pub fn state(&self) -> CommandState {
        match self.progress {
            HostProgress::Waiting { .. } => CommandState::Waiting,
            HostProgress::Accepted => CommandState::Accepted,
            HostProgress::Running => CommandState::Running,
            HostProgress::Done { .. } => CommandState::Done,
            HostProgress::Missing => CommandState::Missing,
        }
    }

    /// The terminal answer, if there is one.
    #[must_use]
    pub fn outcome(&self) -> Option<&Received<Outcome>> {
        match &self.progress {
            HostProgress::Done { outcome } => Some(outcome),
            _ => None,
        }
    }

    /// How the command ended, if it did.
    #[must_use]
    pub fn status(&self) -> Option<&outcome::Status> {
        self.outcome().map(|outcome| &outcome.value.status)
    }

    /// Since when the host that the command waits for has been offline.
    #[must_use]
    pub fn away_since_ms(&self) -> Option<Millis> {
        match self.progress {
            HostProgress::Waiting { away_since_ms, .. } => away_since_ms,
            _ => None,
        }
    }

    /// Why the command may have to wait, as the host reports it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match &self.progress {
            HostProgress::Waiting { reason, .. } => reason.as_deref(),
            _ => None,
        }
    }

    /// Whether nothing more is expected of the host.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state().is_over()
    }
}

/// How far a command is on one host, with what is known in that state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HostProgress {
    /// It is sent until it expires; the host has not answered yet.
    Waiting {
        /// Since when the host has been offline, as far as known. For a host that has never connected: since it joined.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        away_since_ms: Option<Millis>,
        /// A problem that the host reports and that may be why the command waits: its agent's disk is full.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The agent has accepted it, and it is not finished.
    Accepted,
    /// It runs.
    Running,
    /// It has an outcome.
    Done {
        /// The terminal answer, with the part of the output that it contains.
        outcome: Received<Outcome>,
    },
    /// It expired without an answer. A late outcome replaces this state.
    Missing,
}

/// The state of a command on one host, by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// It is sent until it expires; the host has not answered yet.
    Waiting,
    /// The agent has accepted it, and it is not finished.
    Accepted,
    /// It runs.
    Running,
    /// It has an outcome.
    Done,
    /// It expired without an answer. A late outcome replaces this state.
    Missing,
}

impl CommandState {
    /// Whether nothing more is expected of the host.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Missing)
    }
}

/// An event of `GET /api/v1/commands/{id}/events` (server-sent events, from the beginning; the last one is `end`, when
/// no host is left to wait for).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CommandEvent {
    /// A change on a host.
    Host(CommandHost),
    /// A piece of output.
    Output {
        /// The host.
        host: HostId,
        /// The stream.
        stream: Stream,
        /// The position of the piece in the stream.
        offset_bytes: u64,
        /// The piece.
        data: Data,
    },
    /// Every host has an outcome, or is missing.
    End,
}

/// A unit on a host: an item of `GET /api/v1/units` (`?host=`), and the result of `GET
/// /api/v1/hosts/{host}/units/{realm}/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unit {
    /// The host.
    pub host: HostId,
    /// The host's name.
    pub hostname: String,
    /// The unit.
    pub unit: UnitName,
    /// Its desired state.
    pub desired: Desired,
    /// Its observed state.
    pub observed: Observed,
    /// Why it is intentionally not reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The deployment that it belongs to; `null` for a unit that was made by a verb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UnitOwner>,
    /// Versions that snapshots on its host need in addition to the desired state; they are not removed.
    #[serde(default, skip_serializing_if = "Pins::is_empty")]
    pub pins: Pins,
    /// The last statistics that it sent without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<ToldStats>,
    /// When this arrived, by the console's clock.
    pub at_ms: Millis,
}

/// Labels of a new artifact: `POST /api/v1/artifacts?role=…&version=…&manifest=…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    /// Its role.
    pub role: Name,
    /// Its version.
    pub version: Version,
    /// Its manifest, which must have been added before.
    #[serde(default)]
    pub manifest: Option<Digest>,
}

/// The result of `POST /api/v1/manifests`, which stores a manifest. `GET /api/v1/manifests/{sha256}` returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredManifest {
    /// SHA-256 of its canonical JSON.
    pub sha256: Digest,
}

/// `POST /api/v1/artifacts/gc`: removes all artifacts that no unit needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Collect {
    /// Only report what would be removed.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of [`Collect`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collected {
    /// The removed artifacts, or those that would be removed.
    pub artifacts: Vec<Artifact>,
    /// The freed space on the console's disk.
    pub freed_bytes: u64,
}

/// `POST /api/v1/realms`: creates a realm.
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

/// `POST /api/v1/realms/{realm}`: replaces a realm's fields. A field that is left out is inherited from the parent, or
/// has the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RealmFields {
    /// The realm from which it inherits fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Name>,
    /// The address of its global endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<IpAddr>,
    /// The port range of its endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Whether its units must not be started.
    #[serde(default)]
    pub disabled: bool,
    /// Only change it if it still has this generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_generation: Option<u64>,
}

/// A realm: an item of `GET /api/v1/realms`, and the result of `GET /api/v1/realms/{realm}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Realm {
    /// Its own fields, in the form that is sent to hosts.
    #[serde(flatten)]
    pub realm: muster_topics::realm::Realm,
    /// Its effective fields, with those of its parents.
    pub comes_to: RealmComesTo,
    /// Number of units in it.
    pub units: u64,
}

/// The effective fields of a realm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RealmComesTo {
    /// The address of its global endpoints.
    pub bind: IpAddr,
    /// The port range of its endpoints.
    pub ports: PortRange,
    /// The disabled realm, if this one or a parent is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_by: Option<Name>,
}

/// The result of [`NewRealm`] and [`RealmFields`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RealmChanged {
    /// The realm.
    pub realm: Realm,
    /// The command that informs all hosts; `null` if there are no hosts, or if nothing has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandId>,
}

/// The result of `DELETE /api/v1/realms/{realm}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RealmRemoved {
    /// The command that informs all hosts; `null` if there are no hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandId>,
}

/// An artifact: the result of `POST /api/v1/artifacts` (the body is the blob), an item of `GET /api/v1/artifacts`
/// (`?role=&version=`), and the result of `GET /api/v1/artifacts/{sha256}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// The hash that identifies it.
    pub sha256: Digest,
    /// Its length.
    pub size_bytes: u64,
    /// Its role.
    pub role: Name,
    /// Its version.
    pub version: Version,
    /// The SHA-256 of its manifest's canonical JSON, if it has a manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Digest>,
    /// When it was created.
    pub created_ms: Millis,
}

impl From<Artifact> for ArtifactRef {
    fn from(artifact: Artifact) -> Self {
        let Artifact { sha256, size_bytes, role, version, manifest, created_ms: _ } = artifact;
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
    /// The document, as text. It is parsed strictly: duplicate keys are an error.
    pub content: String,
}

/// A config: the result of [`NewConfig`], an item of `GET /api/v1/configs`, and, with its content, the result of `GET
/// /api/v1/configs/{id}/{version}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// Its id.
    pub id: ConfigId,
    /// Its version.
    pub version: Version,
    /// SHA-256 of its canonical JSON.
    pub sha256: Digest,
    /// When it was created.
    pub created_ms: Millis,
    /// The document, with secrets masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
}

/// An item of `GET /api/v1/configs/{id}/{version}/diff?to=…`: a difference between two configs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDifference {
    /// The position, as a JSON pointer.
    pub pointer: String,
    /// The value in the first config, with secrets masked; `null` if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// The value in the other config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

/// `GET /api/v1/series?selector=…&start_ms=…&end_ms=…&points=…`: measurements in a time range. Without start and end:
/// the last value of each series within five minutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesAnswer {
    /// The selected series, sorted by name and labels.
    pub series: Vec<Series>,
}

/// A series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Its name, such as `muster_host_cpu_busy_ratio`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Times and values, oldest first.
    pub points: Vec<(Millis, f64)>,
}
