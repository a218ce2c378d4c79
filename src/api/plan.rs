//! Plans: what documents of deployments would change, as each host has found it out.
//!
//! | Route | Takes | Gives |
//! |---|---|---|
//! | `POST /api/v1/plans` | [`NewPlan`] | [`Plan`], which goes on |
//! | `GET /api/v1/plans/{id}` | | [`Plan`] |

use muster_rules::host_plan::DeploymentPlan;
use muster_topics::{
    Millis,
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::{Digest, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AppliedDeployment, ApplyDocument, NamedHost};

/// `POST /api/v1/plans`: has the hosts of deployments find out what documents would change there, and changes nothing. If any
/// document has a fault, all faults are reported, and no host is asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPlan {
    /// The documents, one deployment in each.
    pub documents: Vec<ApplyDocument>,
    /// Plan as if units of the same names were taken over that were made by verbs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
    /// How long hosts may take: 60 seconds by default, at most ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What documents would change. It is kept for a day; the newest 16 are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Its id.
    pub id: String,
    /// Who has asked for it.
    pub operator: Name,
    /// When.
    pub made_ms: Millis,
    /// Whether all hosts have answered that will.
    pub done: bool,
    /// The digest of all of it, for `apply`; once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Why it could not be made, if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many hosts were asked.
    pub asked: u64,
    /// How many of these have answered.
    pub answered: u64,
    /// The deployments, in the order of their documents.
    pub deployments: Vec<PlannedDeployment>,
}

/// What a document would change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedDeployment {
    /// What an apply would make of it, as the console sees it.
    pub change: AppliedDeployment,
    /// Hosts that have answered alike, the largest group first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<PlanGroup>,
    /// Hosts that are away, with what the console believes from their last reports: it knows no files and no packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<PlanGroup>,
    /// Hosts that are connected, and have not reported their state yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<NamedHost>,
    /// Hosts that have not answered in time, or with an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<PlanFailure>,
}

/// Hosts with the same plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanGroup {
    /// The plan. Of the groups beyond the first hundred, and of those of which a host has changed meanwhile, it has no units,
    /// but their number.
    pub plan: DeploymentPlan,
    /// The hosts, by name.
    pub hosts: Vec<NamedHost>,
}

/// A host that has made no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanFailure {
    /// The host.
    #[serde(flatten)]
    pub host: NamedHost,
    /// Why.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

impl Plan {
    /// Returns the deployment of this name.
    #[must_use]
    pub fn deployment(&self, name: &DeploymentName) -> Option<&PlannedDeployment> {
        self.deployments.iter().find(|one| one.change.deployment == *name)
    }
}
