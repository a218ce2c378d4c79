//! Rollouts: how a version of a deployment reaches its hosts.
//!
//! A deployment whose document has a `rollout` has one rollout for each version. The present one is that of the present
//! version; earlier ones have ended.
//!
//! | Route | Takes | Gives |
//! |---|---|---|
//! | `GET /api/v1/rollouts` | | list of [`Rollout`]: the last one of each deployment |
//! | `GET /api/v1/rollouts/{realm}/{name}?version=` | [`RolloutVersion`] as the query | [`RolloutDetail`] |
//! | `GET /api/v1/rollouts/{realm}/{name}/history` | | list of [`Rollout`], newest first |
//! | `GET /api/v1/rollouts/{realm}/{name}/hosts?version=&outcome=&waits=&wave=&after=&limit=` | [`RolloutHostQuery`] as the query | [`RolloutHosts`] |
//! | `GET /api/v1/rollouts/{realm}/{name}/events` | | server-sent [`RolloutEvent`]s, until `end` |
//! | `POST /api/v1/rollouts/{realm}/{name}/pause` | [`RolloutVersion`] | [`Rollout`] |
//! | `POST /api/v1/rollouts/{realm}/{name}/resume` | [`RolloutVersion`] | [`Rollout`] |
//! | `POST /api/v1/rollouts/{realm}/{name}/promote` | [`RolloutVersion`] | [`Rollout`] |
//! | `POST /api/v1/rollouts/{realm}/{name}/retry` | [`RolloutVersion`] | [`Rollout`] |
//! | `POST /api/v1/rollouts/{realm}/{name}/cancel` | [`CancelRollout`] | [`Rollout`] |
//! | `POST /api/v1/rollouts/{realm}/{name}/release` | [`ReleaseHost`] | [`RolloutHost`] |

use std::collections::BTreeMap;

use muster_rules::rollout::state::{HostOutcome, RolloutPhase};
use muster_topics::{
    Millis,
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::{HostId, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::NamedHost;

/// The most hosts of one page of [`RolloutHosts`].
pub const ROLLOUT_HOSTS_MAX: u32 = 1_000;

/// The most hosts that a [`RolloutWait`] names.
pub const ROLLOUT_WAIT_HOSTS_MAX: usize = 10;

/// The most steps that a [`RolloutDetail`] has.
pub const ROLLOUT_STEPS_MAX: usize = 100;

/// A rollout of one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rollout {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version.
    pub version: u32,
    /// Whether it is rolled back to the content of an earlier version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rollback: bool,
    /// How it goes.
    pub phase: RolloutPhase,
    /// The present wave, from 1.
    pub wave: u32,
    /// The number of waves.
    pub waves: u32,
    /// The number of its hosts.
    pub hosts: u64,
    /// How many of them have ended with each outcome; outcomes without hosts are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outcomes: BTreeMap<HostOutcome, u64>,
    /// How many hosts change now.
    pub in_flight: u64,
    /// How many hosts were changed, by this version or an earlier one, and are not verified since.
    pub unavailable: u64,
    /// When it began.
    pub begun_ms: Millis,
    /// When it ended; `null` until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<Millis>,
}

impl Rollout {
    /// Returns the number of hosts that have an outcome.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Returns the number of hosts that have none yet.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.hosts.saturating_sub(self.ended())
    }
}

/// `GET /api/v1/rollouts/{realm}/{name}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutDetail {
    /// The rollout.
    #[serde(flatten)]
    pub rollout: Rollout,
    /// Its policy, with all that was left out.
    pub policy: Map<String, Value>,
    /// Its waves, in their order.
    pub on_waves: Vec<RolloutWave>,
    /// Why hosts have not ended: each host is counted once, the largest group comes first.
    pub waits: Vec<RolloutWait>,
    /// When the rollout ends for hosts that were away all the time; `null` before the last wave has begun, while it is
    /// paused, and after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<Millis>,
    /// The version that a rollback goes back to; `null` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_back_to: Option<u32>,
    /// What an operator may do now.
    pub verbs: Vec<RolloutVerb>,
    /// What has happened, newest first, at most [`ROLLOUT_STEPS_MAX`].
    pub steps: Vec<RolloutStep>,
}

/// A wave of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutWave {
    /// Its number, from 1.
    pub number: u32,
    /// How far it is.
    pub state: RolloutWaveState,
    /// How many hosts it admits; `null` for the last wave, which admits all that are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How many hosts were admitted in it.
    pub admitted: u64,
    /// How many of these change now.
    pub in_flight: u64,
    /// How many of these have ended with each outcome.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outcomes: BTreeMap<HostOutcome, u64>,
}

/// How far a wave is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutWaveState {
    /// Its turn has not come.
    Waiting,
    /// It admits hosts, or these change, or it soaks.
    Present,
    /// It has ended.
    Ended,
}

impl RolloutWaveState {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Present => "present",
            Self::Ended => "ended",
        }
    }
}

/// Hosts that have not ended for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutWait {
    /// What they wait for.
    pub kind: RolloutWaitKind,
    /// Why, for people.
    pub reason: Diagnostic,
    /// How many they are.
    pub hosts: u64,
    /// The first of them by name, at most [`ROLLOUT_WAIT_HOSTS_MAX`].
    pub first: Vec<NamedHost>,
}

/// What a host waits for that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutWaitKind {
    /// Nothing: it changes its units.
    Changing,
    /// It is offline.
    Away,
    /// It has not stored its document yet.
    Pending,
    /// It downloads and checks what its units need.
    Preparing,
    /// Its own policy, or a window in its own time zone.
    Policy,
    /// An operator: what it would change is not what the plan showed.
    PlanChanged,
    /// An operator has to resume the rollout.
    Paused,
    /// An operator has to approve the next wave.
    Approval,
    /// The wave before has ended, and the next one begins later.
    Soak,
    /// The hosts before it, of this wave.
    Wave,
    /// A window in which hosts may begin.
    Window,
    /// Hosts of its group that are unavailable.
    Budget,
    /// Hosts that change at the same time.
    InFlight,
    /// It has failed, and tries again later.
    Retry,
    /// Somebody else who is asked, too.
    Authority,
    /// A measurement of hosts that have changed.
    Check,
    /// The host's next question, or an answer that is on its way.
    Answer,
    /// Hosts that an earlier version has broken, which go first.
    Repairs,
    /// Nothing: the rollout has ended.
    Ended,
}

impl RolloutWaitKind {
    /// The words that are shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Changing => "changing",
            Self::Away => "away",
            Self::Pending => "pending",
            Self::Preparing => "preparing",
            Self::Policy => "host's policy",
            Self::PlanChanged => "plan changed",
            Self::Paused => "paused",
            Self::Approval => "approval",
            Self::Soak => "soak",
            Self::Wave => "wave",
            Self::Window => "window",
            Self::Budget => "budget",
            Self::InFlight => "in flight",
            Self::Retry => "retry",
            Self::Authority => "authority",
            Self::Check => "check",
            Self::Answer => "answer",
            Self::Repairs => "repairs",
            Self::Ended => "ended",
        }
    }
}

/// What an operator may do with a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutVerb {
    /// No further host begins.
    Pause,
    /// Hosts begin again.
    Resume,
    /// The next wave begins.
    Promote,
    /// Hosts that have failed try again.
    Retry,
    /// It ends, and hosts keep what they have.
    Cancel,
    /// It ends, and hosts go back to an earlier version.
    CancelWithRollback,
}

impl RolloutVerb {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Promote => "promote",
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::CancelWithRollback => "cancel --rollback",
        }
    }
}

/// What has happened to a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutStep {
    /// When.
    pub at_ms: Millis,
    /// Who did it; `null` for the console itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Name>,
    /// What it was, for people.
    pub text: String,
}

/// `GET /api/v1/rollouts/{realm}/{name}/hosts?version=…&outcome=…&waits=…&wave=…&after=…&limit=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutHostQuery {
    /// The number of the version; the last one that has a rollout if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Only hosts with this outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<HostOutcome>,
    /// Only hosts that have not ended and wait for this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<RolloutWaitKind>,
    /// Only hosts that were admitted in this wave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<u32>,
    /// The number of hosts to leave out, which earlier pages had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
    /// The most hosts, up to [`ROLLOUT_HOSTS_MAX`], which is also what holds without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A page of the hosts of a rollout, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutHosts {
    /// The version.
    pub version: u32,
    /// How many there are on all pages.
    pub total: u64,
    /// Those of this page.
    pub hosts: Vec<RolloutHost>,
}

/// A host of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutHost {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// The wave in which it was admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<u32>,
    /// Its group, if there is a budget for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its outcome; `null` if it has none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<HostOutcome>,
    /// What it waits for; `null` if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<RolloutWaitKind>,
    /// Why it waits, or what the host has said of its outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Diagnostic>,
    /// Whether anything on the host is different from before; `null` if the host has not said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    /// Whether it counts as unavailable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unavailable: bool,
    /// How often it has failed.
    #[serde(default)]
    pub failures: u32,
    /// When it was admitted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_ms: Option<Millis>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<Millis>,
}

/// Names the version that is meant: `POST …/pause`, `…/resume`, `…/promote` and `…/retry` are refused if that is not the
/// present one. Without it the present one is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutVersion {
    /// The number of the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// `POST /api/v1/rollouts/{realm}/{name}/cancel`: ends a rollout. Hosts that change now finish, and no further one
/// begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRollout {
    /// The number of the version; it is refused if that is not the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Have hosts go back: to the last version whose rollout completed, or else to the version before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
}

/// `POST /api/v1/rollouts/{realm}/{name}/release`: counts a host as available again that failed or was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseHost {
    /// The host, by id or unique hostname.
    pub host: String,
}

/// An event of `GET /api/v1/rollouts/{realm}/{name}/events`: the present rollout, and again after each change, at most
/// twice a second. When a new version has taken its place, the next event is of that. The last one is `end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RolloutEvent {
    /// The rollout.
    Rollout(Box<RolloutDetail>),
    /// The rollout has ended, or the deployment is removed.
    End,
}
