//! The kinds of units that this host can keep.

use std::{io, sync::Arc};

use muster_bus::sealing::HostKey;
use muster_topics::{name::HostId, unit::Spec};

use super::super::{artifact::Artifacts, config::ContainersConfig, shim::Shims};
use super::{container::Containers, kind::UnitKind, yuno::Yunos};

/// All kinds of units.
#[derive(Clone)]
pub(super) struct Kinds {
    pub(super) all: Arc<[Arc<dyn UnitKind>]>,
    /// The containers, of which some are not units.
    pub(super) containers: Option<Arc<Containers>>,
}

impl Kinds {
    pub(super) fn open(
        data_dir: &std::path::Path,
        (host, key): (HostId, HostKey),
        shims: Shims,
        artifacts: Artifacts,
        containers: &ContainersConfig,
    ) -> io::Result<Self> {
        let containers = Arc::new(Containers::new(data_dir, host, artifacts.clone(), shims.clone(), containers)?);
        let yunos = Yunos::new(data_dir, (host, key), artifacts, shims, containers.clone())?;
        // Yunos come last: they remove artifacts after all other kinds have marked what they need.
        Ok(Self { all: Arc::new([containers.clone(), Arc::new(yunos)]), containers: Some(containers) })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<dyn UnitKind>> {
        self.all.iter()
    }

    /// Returns the kind of a spec.
    pub(super) fn of(&self, spec: &Spec) -> Option<&Arc<dyn UnitKind>> {
        self.iter().find(|kind| kind.name() == spec.kind())
    }
}
