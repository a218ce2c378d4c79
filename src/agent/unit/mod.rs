//! Units: keeping each as it should be.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use muster_topics::{
    name::UnitName,
    unit::{Desired, Hold, Observed},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    execute::Refusal,
    join::Identity,
    shim::Shims,
    store::{Store, StoreError},
};

/// One unit, as it should be and as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// What it should be.
    pub desired: Desired,
    /// What it is.
    pub observed: Observed,
    /// Why it is, on purpose, not converging.
    pub hold: Option<Hold>,
    /// The process that runs now, for metrics: process id and start time in clock ticks since boot.
    pub process: Option<(i32, u64)>,
}

/// All units of this host.
pub type UnitStates = Arc<BTreeMap<UnitName, UnitState>>;

/// The task that keeps units; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Units {}

impl Units {
    /// Reads all units from the store, finds their processes again, and begins to keep them.
    /// When `shutdown` is cancelled the task ends and leaves every yuno running.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn start(
        _store: Store,
        _shims: Shims,
        _identity: watch::Receiver<Arc<Identity>>,
        _data_dir: PathBuf,
        _shutdown: CancellationToken,
    ) -> Result<Self, StoreError> {
        unimplemented!()
    }

    /// Tells the task that desired state in the store has changed.
    pub fn desired_changed(&self) {
        unimplemented!()
    }

    /// All units, now and on each change.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<UnitStates> {
        unimplemented!()
    }

    /// The last lines of a unit's log.
    ///
    /// # Errors
    /// If there is no such unit.
    pub async fn logs(&self, _unit: &UnitName, _lines: u32) -> Result<Vec<u8>, Refusal> {
        unimplemented!()
    }
}
