//! The content of a unit's file: a copy of its desired state.

use std::sync::Arc;

use muster_rules::{
    plan::{RestoredUnit, Slot, VerifiedRevision},
    port_lease::PortLease,
};
use muster_topics::{
    Millis,
    name::UnitName,
    unit::{Desired, Hold, Observed, RolledBack},
};
use serde::{Deserialize, Serialize};

/// What a file says of a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntentCopy {
    /// The unit.
    pub unit: UnitName,
    /// What it should be.
    pub desired: Desired,
    /// Why it is not, on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<PortLease>,
    /// Where its instance has what is its own.
    #[serde(default)]
    pub slot: Slot,
    /// What it may go back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Arc<VerifiedRevision>>,
    /// Whether it went back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

impl IntentCopy {
    /// What there is to be known of a unit that is wanted like this, and is known to be like that.
    #[must_use]
    pub fn new(
        unit: &UnitName,
        desired: &Desired,
        hold: Option<&Hold>,
        kept: &RestoredUnit,
        leases: &[PortLease],
    ) -> Self {
        Self {
            unit: unit.clone(),
            desired: desired.clone(),
            hold: hold.cloned(),
            leases: leases.iter().filter(|lease| lease.unit == *unit).cloned().collect(),
            slot: kept.slot,
            verified: kept.verified.clone(),
            rolled_back: kept.observed.rolled_back.clone(),
        }
    }

    /// What it is restored from.
    pub(super) fn kept(&self, now_ms: Millis) -> RestoredUnit {
        let observed = Observed { rolled_back: self.rolled_back.clone(), ..Observed::absent(now_ms) };
        RestoredUnit { slot: self.slot, verified: self.verified.clone(), ..RestoredUnit::new(observed) }
    }
}
