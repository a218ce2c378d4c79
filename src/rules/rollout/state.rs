//! What is known of a rollout.

use std::{collections::BTreeMap, sync::Arc};

use muster_topics::{Millis, ack::Numbered, admission::ChangeOutcome, name::HostId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::Share;

/// How a rollout goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RolloutPhase {
    /// Hosts are admitted, or are waited for.
    Running,
    /// A wave has succeeded; the next one begins at this time.
    Soaking {
        /// When.
        until_ms: Millis,
    },
    /// A wave has succeeded; an operator must approve the next one.
    Approval,
    /// No further host begins until an operator resumes.
    Paused {
        /// Since when.
        since_ms: Millis,
        /// Why, for people.
        reason: String,
    },
    /// Every host has an outcome, and no more have failed than may.
    Completed,
    /// An operator has ended it; hosts that had begun go on.
    Cancelled,
    /// It was ended by a version that goes back.
    RolledBack {
        /// The version that goes back.
        by: u32,
    },
    /// It was ended by a later version.
    Superseded {
        /// The later version.
        by: u32,
    },
    /// Every host has an outcome, and none is verified.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

impl RolloutPhase {
    /// Whether it has ended.
    #[must_use]
    pub fn is_end(&self) -> bool {
        !matches!(self, Self::Running | Self::Soaking { .. } | Self::Approval | Self::Paused { .. })
    }

    /// The word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Soaking { .. } => "soaking",
            Self::Approval => "approval",
            Self::Paused { .. } => "paused",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::RolledBack { .. } => "rolled_back",
            Self::Superseded { .. } => "superseded",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The terminal outcome of a version of a deployment on a host. Some are replaced by a later one
/// ([`is_replaced_by`](Self::is_replaced_by)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostOutcome {
    /// Its units are as desired, and the console has stored its word of that.
    Verified,
    /// It has failed, and is back at what it was.
    RolledBack,
    /// It has failed, and is not back at what it was.
    Failed,
    /// It was granted a permit, and nothing was heard of its end for too long.
    Lost,
    /// It has refused the version.
    Refused,
    /// It lacks what the version needs, or has no document of this console.
    Cannot,
    /// It has not asked in time: it was away.
    Missing,
    /// It has asked, and the rollout has ended before it was admitted.
    Skipped,
    /// A later version has replaced it before it had ended.
    Superseded,
    /// The host, or the deployment, was removed, or the deployment selects it no more.
    Removed,
}

impl HostOutcome {
    /// All outcomes, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Failed,
        Self::Lost,
        Self::RolledBack,
        Self::Refused,
        Self::Cannot,
        Self::Missing,
        Self::Skipped,
        Self::Superseded,
        Self::Removed,
        Self::Verified,
    ];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Cannot => "cannot",
            Self::Missing => "missing",
            Self::Skipped => "skipped",
            Self::Superseded => "superseded",
            Self::Removed => "removed",
        }
    }

    /// Whether a later one takes its place, without a new permit: that of a host that was not heard of, or has changed
    /// nothing; and a host that is well after all is always news.
    #[must_use]
    pub fn is_replaced_by(self, later: Self) -> bool {
        use HostOutcome::{Cannot, Lost, Missing, Refused, Removed, Skipped, Verified};
        matches!(self, Missing | Skipped | Lost | Refused | Cannot | Removed) || later == Verified
    }

    /// Whether it counts as a failure of its wave.
    #[must_use]
    pub fn is_failure(self) -> bool {
        matches!(self, Self::RolledBack | Self::Failed | Self::Lost | Self::Refused)
    }
}

/// The rollout of the newest version of a deployment. A later version's state is made from it
/// ([`succeed`](Self::succeed)), so one state knows of every host of the deployment that may be changing.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutState {
    /// The version.
    pub version: u32,
    /// The last version before it whose rollout completed; hosts that come while this one is in its first waves get that.
    pub fallback: Option<u32>,
    /// Whether it is rolled back to an earlier version: without waves, approvals, soak, windows and check.
    pub is_rollback: bool,
    /// How it goes.
    pub phase: RolloutPhase,
    /// The sizes of its waves but the last one.
    pub waves: Vec<Share>,
    /// The present wave, from 1.
    pub wave: u32,
    /// When that began; time in which the rollout was paused is left out.
    pub wave_began_ms: Millis,
    /// When all its hosts had ended.
    pub wave_ended_ms: Option<Millis>,
    /// The last wave that an operator has approved.
    pub approved: u32,
    /// How many failures of the present wave, and refusals, an operator has accepted by resuming.
    pub accepted: AcceptedFailures,
    /// What is known of the check of the present wave.
    pub check: CheckStatus,
    /// Since when a console has watched without a break. Not stored: a console that starts sets it.
    pub watched_since_ms: Millis,
    /// Its hosts.
    pub hosts: BTreeMap<HostId, HostProgress>,
}

/// Failures that an operator has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedFailures {
    /// Of the present wave.
    pub wave: u32,
    /// Refusals without a permit, of the whole rollout.
    pub refusals: u32,
}

/// What is known of the check of the present wave. Only `Passed` is worth storing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckStatus {
    /// Nothing: it is to be made.
    #[default]
    Open,
    /// It is being made.
    Asked {
        /// Since when.
        at_ms: Millis,
        /// When it was made first in this wave.
        first_ms: Millis,
    },
    /// It gave no result.
    Unknown {
        /// When.
        at_ms: Millis,
        /// When it was made first in this wave.
        first_ms: Millis,
        /// Why, for people.
        message: String,
    },
    /// The changed hosts are no worse than the rest, or an operator has resumed in spite of it.
    Passed,
    /// The changed hosts are worse.
    Worse {
        /// By how much, for people.
        message: String,
    },
}

/// How far a host is in a rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostProgress {
    /// The value of its label that the budget groups by.
    pub group: Option<Arc<str>>,
    /// Whether it is connected. Not stored.
    pub is_online: bool,
    /// Whether it came to the deployment after this rollout had begun.
    pub is_late: bool,
    /// The number of its last message that counted.
    pub heard: Option<Numbered>,
    /// Its last question, while it is neither answered by a permit nor taken back. Not stored: it is repeated.
    pub asks: Option<Question>,
    /// When it first asked for this version.
    pub asked_ms: Option<Millis>,
    /// Its last permit, until it is known that it was not used, or how it ended.
    pub permit: Option<Permit>,
    /// The number of its last permit, of any version.
    pub permits: u64,
    /// The wave in which it was admitted, if it has a permit of this version or ended with one.
    pub wave: Option<u32>,
    /// How often it has failed with this version.
    pub failures: u32,
    /// The last end that it has said, until it asks: it repeats that until it is answered.
    pub ended: Option<HostEnd>,
    /// What became of this version on it, once it has ended.
    pub verdict: Option<HostVerdict>,
    /// Whether it was changed, by this version or an earlier one, and is not verified since.
    pub is_unavailable: bool,
    /// What the authority says of it. Not stored.
    pub authority: AuthorityWord,
}

/// What became of a version on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostVerdict {
    /// This, and that is the last word.
    Final(HostOutcome),
    /// It has failed, and may try again.
    Retry {
        /// How it has failed.
        outcome: HostOutcome,
        /// When it may.
        at_ms: Millis,
    },
}

impl HostVerdict {
    /// Creates it from an outcome, and when the host may try again.
    #[must_use]
    pub fn new(outcome: HostOutcome, retry_ms: Option<Millis>) -> Self {
        retry_ms.map_or(Self::Final(outcome), |at_ms| Self::Retry { outcome, at_ms })
    }

    /// The outcome, the last word or not.
    #[must_use]
    pub fn outcome(self) -> HostOutcome {
        match self {
            Self::Final(outcome) | Self::Retry { outcome, .. } => outcome,
        }
    }
}

impl HostProgress {
    /// Its outcome with this version, the last word or not.
    #[must_use]
    pub fn outcome(&self) -> Option<HostOutcome> {
        self.verdict.map(HostVerdict::outcome)
    }

    /// When it may try again.
    #[must_use]
    pub fn retry_ms(&self) -> Option<Millis> {
        if let Some(HostVerdict::Retry { at_ms, .. }) = self.verdict { Some(at_ms) } else { None }
    }

    /// Its outcome with this version, if it is the last word.
    #[must_use]
    pub fn terminal(&self) -> Option<HostOutcome> {
        if let Some(HostVerdict::Final(outcome)) = self.verdict { Some(outcome) } else { None }
    }

    /// Whether it has a permit, and is not given up for lost.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.permit.is_some_and(|permit| !permit.is_lost)
    }
}

/// The end of a version on a host, as the host says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEnd {
    /// The version.
    pub version: u32,
    /// The permit with which it began, if it needed one.
    pub permit: Option<u64>,
    /// What became of it.
    pub outcome: ChangeOutcome,
}

impl From<ChangeOutcome> for HostOutcome {
    fn from(outcome: ChangeOutcome) -> Self {
        match outcome {
            ChangeOutcome::Verified => Self::Verified,
            ChangeOutcome::RolledBack => Self::RolledBack,
            ChangeOutcome::Failed => Self::Failed,
            ChangeOutcome::Refused => Self::Refused,
        }
    }
}

/// A question of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The message that an answer names.
    pub number: Numbered,
    /// The version that it asks for: the rollout's, or the fallback's.
    pub version: u32,
    /// When the first of its kind was received.
    pub since_ms: Millis,
    /// When the last one was received.
    pub heard_ms: Millis,
}

/// A permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// Its number: each permit of a host has a greater one.
    pub number: u64,
    /// The version that the host may begin with.
    pub version: u32,
    /// The question that it was granted to.
    pub to: Numbered,
    /// When it was granted.
    pub granted_ms: Millis,
    /// Whether the host has said that it has begun.
    pub has_begun: bool,
    /// Whether its host was silent for too long.
    pub is_lost: bool,
    /// Whether the host was unavailable before.
    pub was_unavailable: bool,
    /// The permit of an earlier version that it replaces: the host may be in the middle of that until it begins with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<ReplacedPermit>,
}

/// A permit that a later one has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedPermit {
    /// Its number.
    pub number: u64,
    /// Its version.
    pub version: u32,
    /// Whether the host was unavailable before it.
    pub was_unavailable: bool,
}

/// What the authority says of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthorityWord {
    /// Nothing.
    #[default]
    None,
    /// It was asked.
    Asked {
        /// When.
        at_ms: Millis,
    },
    /// It admits the host.
    Admits {
        /// When.
        at_ms: Millis,
    },
    /// It does not, or has not answered.
    Refuses {
        /// When.
        at_ms: Millis,
        /// Why, for people.
        reason: Arc<str>,
    },
}
