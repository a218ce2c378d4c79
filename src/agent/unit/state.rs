//! The state of a unit, for those who publish it.

use std::{collections::BTreeMap, sync::Arc};

use muster_rules::plan::Slot;
use muster_topics::{
    name::UnitName,
    snapshot::Pins,
    unit::{Desired, Hold, Observed, Spec},
};

/// One unit, as it should be and as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// What it should be; what it should have been last, of one that is forgotten and not yet removed.
    pub desired: Desired,
    /// What it has gone back to, if it has.
    pub spec: Option<Arc<Spec>>,
    /// What it is.
    pub observed: Observed,
    /// Why it is, on purpose, not converging.
    pub hold: Option<Hold>,
    /// What snapshots need of it beyond what it should be.
    pub pins: Pins,
    /// Where the instance that it is known by has what is its own.
    pub slot: Slot,
    /// The process that runs now, for metrics: process id and start time in clock ticks since boot.
    pub process: Option<(i32, u64)>,
}

impl UnitState {
    /// What it runs as, or would.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        self.spec.as_deref().unwrap_or(&self.desired.spec)
    }
}

/// All units of this host.
pub type UnitStates = Arc<BTreeMap<UnitName, UnitState>>;
