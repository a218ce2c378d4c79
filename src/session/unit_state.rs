//! The state of a unit, for those who publish it.

use std::{collections::BTreeMap, sync::Arc};

use muster_rules::plan::Slot;
use muster_topics::{
    desired::UnitOwner,
    name::UnitName,
    snapshot::Pins,
    unit::{Desired, Hold, Observed, Spec},
};

/// The desired and observed state of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// Its desired state; the last one, if it is being removed.
    pub desired: Desired,
    /// The spec that it was rolled back to, if it was.
    pub spec: Option<Arc<Spec>>,
    /// Its observed state.
    pub observed: Observed,
    /// Why it does not converge, on purpose.
    pub hold: Option<Hold>,
    /// The deployment that it belongs to, if a verb has not made it.
    pub owner: Option<UnitOwner>,
    /// What snapshots need of it beyond its desired state.
    pub pins: Pins,
    /// The slot of its main instance.
    pub slot: Slot,
    /// The process that runs now, for metrics: process id and start time in clock ticks since boot.
    pub process: Option<(i32, u64)>,
}

impl UnitState {
    /// The spec that it runs as, or would.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        self.spec.as_deref().unwrap_or(&self.desired.spec)
    }
}

/// All units of this host. A change of one shares the others with what was there before.
pub type UnitStates = Arc<BTreeMap<UnitName, Arc<UnitState>>>;
