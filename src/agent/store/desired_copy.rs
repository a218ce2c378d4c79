//! The content of a unit's file: a copy of its desired state.

use std::sync::Arc;

use muster_rules::{
    plan::{RestoredUnit, Slot, VerifiedRevision},
    port_lease::PortLease,
};
use muster_topics::{
    Millis,
    desired::UnitOwner,
    name::UnitName,
    unit::{Desired, Hold, Observed, RolledBack, TrialReport},
};
use serde::{Deserialize, Serialize};

/// The second copy of a unit's desired state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntentCopy {
    /// The unit.
    pub unit: UnitName,
    /// Its desired state.
    pub desired: Desired,
    /// Why it does not converge, on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The deployment that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UnitOwner>,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<PortLease>,
    /// The slot of its instance.
    #[serde(default)]
    pub slot: Slot,
    /// The revision that it can be rolled back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Arc<VerifiedRevision>>,
    /// Whether it was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

impl IntentCopy {
    /// Creates the copy of a unit with this desired and observed state.
    #[must_use]
    pub fn new(
        unit: &UnitName,
        desired: &Desired,
        (hold, owner): (Option<&Hold>, Option<&UnitOwner>),
        kept: &RestoredUnit,
        leases: &[PortLease],
    ) -> Self {
        Self {
            unit: unit.clone(),
            desired: desired.clone(),
            hold: hold.cloned(),
            owner: owner.cloned(),
            leases: leases.iter().filter(|lease| lease.unit == *unit).cloned().collect(),
            slot: kept.slot,
            verified: kept.verified.clone(),
            rolled_back: kept.observed.rolled_back().cloned(),
        }
    }

    /// Returns the state from which the unit is restored.
    pub(super) fn kept(&self, now_ms: Millis) -> RestoredUnit {
        let trial = self.rolled_back.clone().map_or(TrialReport::Unverified, TrialReport::RolledBack);
        let observed = Observed { trial, ..Observed::absent(now_ms) };
        RestoredUnit { slot: self.slot, verified: self.verified.clone(), ..RestoredUnit::new(observed) }
    }
}
