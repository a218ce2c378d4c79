//! What operators have changed of deployments, cordons and variables.
//!
//! | Route | Takes | Gives |
//! |---|---|---|
//! | `GET /api/v1/changes?subject=&limit=` | [`ChangeListing`] as the query | list of [`Change`], newest first |

use muster_topics::{Millis, name::Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /api/v1/changes`: which changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeListing {
    /// Those of this subject only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Largest number of changes; 100 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// What an operator has changed: an item of `GET /api/v1/changes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// When.
    pub at_ms: Millis,
    /// Who.
    pub operator: Name,
    /// What.
    pub kind: ChangeKind,
    /// The deployment, the variable with its layer, or the hosts.
    pub subject: String,
    /// More of it, for people.
    pub detail: String,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// A deployment got a version.
    DeploymentApplied,
    /// A deployment got a version with the content of an earlier one.
    DeploymentRolledBack,
    /// A deployment was removed.
    DeploymentRemoved,
    /// A deployment took over a unit that a verb had made.
    UnitAdopted,
    /// A unit of a deployment was left to verbs.
    UnitDetached,
    /// Hosts with documents that the console did not make were confirmed.
    DocumentsConfirmed,
    /// Hosts get no new deployments.
    HostsCordoned,
    /// Hosts carry no deployments.
    HostsDrained,
    /// Hosts carry deployments again.
    HostsOpened,
    /// A variable was set.
    VarSet,
    /// A variable was removed.
    VarRemoved,
    /// The console's clock was confirmed to be right.
    ClockConfirmed,
}

impl ChangeKind {
    /// What it is, for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::DeploymentApplied => "deployment applied",
            Self::DeploymentRolledBack => "deployment rolled back",
            Self::DeploymentRemoved => "deployment removed",
            Self::UnitAdopted => "unit adopted",
            Self::UnitDetached => "unit detached",
            Self::DocumentsConfirmed => "documents confirmed",
            Self::HostsCordoned => "hosts cordoned",
            Self::HostsDrained => "hosts drained",
            Self::HostsOpened => "hosts uncordoned",
            Self::VarSet => "variable set",
            Self::VarRemoved => "variable removed",
            Self::ClockConfirmed => "clock confirmed",
        }
    }
}
