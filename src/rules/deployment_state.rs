//! How far a deployment is on a host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a deployment is on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentState {
    /// The host has failed: a unit does not start, or was rolled back.
    Failed,
    /// The host has refused the document or the deployment, and changed nothing.
    Refused,
    /// Another deployment claims a unit of the same name on this host, and keeps it.
    Conflict,
    /// The host has a document that this console did not make: an operator has to confirm it.
    Unconfirmed,
    /// The host's agent knows no deployments.
    Cannot,
    /// An operator's hold keeps a unit from changing.
    Held,
    /// The host is away, and is not where it should be.
    Away,
    /// The host has not stored the document yet.
    Pending,
    /// The host changes its units.
    Changing,
    /// The host removes its units.
    Removing,
    /// The host has units of it that are neither desired nor to go; they go on.
    Orphan,
    /// All its units are as desired.
    Verified,
}

impl DeploymentState {
    /// All states, in the order in which they are shown.
    pub const ALL: [Self; 12] = [
        Self::Failed,
        Self::Refused,
        Self::Conflict,
        Self::Unconfirmed,
        Self::Cannot,
        Self::Held,
        Self::Away,
        Self::Pending,
        Self::Changing,
        Self::Removing,
        Self::Orphan,
        Self::Verified,
    ];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
            Self::Unconfirmed => "unconfirmed",
            Self::Cannot => "cannot",
            Self::Held => "held",
            Self::Away => "away",
            Self::Pending => "pending",
            Self::Changing => "changing",
            Self::Removing => "removing",
            Self::Orphan => "orphan",
            Self::Verified => "verified",
        }
    }

    /// Whether something is still expected to happen by itself.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Away | Self::Pending | Self::Changing | Self::Removing)
    }
}
