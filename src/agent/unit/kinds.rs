//! The kinds of units that this host can keep.

use std::{io, sync::Arc};

use muster_bus::sealing::HostKey;
use muster_topics::{name::HostId, unit::Spec};

use super::super::{
    artifact::Artifacts,
    config::{ContainersConfig, FilesConfig, PackagesConfig},
    shim::Shims,
    store::Store,
};
use super::{
    container::Containers, files::Files, given_secrets::SecretSource, kind::UnitKind, masked::MaskedKind,
    owners::Owners, packages::Packages, task_log::TaskLog, turns::Turns, yuno::Yunos,
};

/// All kinds of units.
#[derive(Clone)]
pub(super) struct Kinds {
    pub(super) all: Arc<[Arc<dyn UnitKind>]>,
    /// The containers, of which some are not units.
    pub(super) containers: Option<Arc<Containers>>,
    /// What they do.
    pub(super) tasks: TaskLog,
    /// Which unit has what, so that none removes what is another's.
    pub(super) owners: Owners,
}

impl Kinds {
    pub(super) fn open(
        data_dir: &std::path::Path,
        (host, key): (HostId, HostKey),
        shims: Shims,
        artifacts: Artifacts,
        (containers, files, packages): (&ContainersConfig, &FilesConfig, &PackagesConfig),
        (store, tasks): (Store, TaskLog),
    ) -> io::Result<Self> {
        let turns = Turns::default();
        let context = (artifacts.clone(), shims.clone(), turns.clone());
        let given = tasks.given().clone();
        let secrets = SecretSource::new((host, key), artifacts.clone(), given.clone());
        let containers = Arc::new(Containers::new(data_dir, secrets.clone(), context, containers)?);
        let owners = Owners::default();
        let kept = (store, tasks.clone(), owners.clone(), turns);
        let files = Files::new(data_dir, secrets.clone(), artifacts.clone(), files, kept.clone())?;
        let packages = Packages::new(data_dir, (shims.clone(), secrets.clone()), packages, kept)?;
        let yunos = Yunos::new(data_dir, secrets, artifacts, shims, containers.clone())?;
        // Yunos come last: they remove artifacts after all other kinds have marked what they need.
        let all: [Arc<dyn UnitKind>; 4] = [containers.clone(), Arc::new(files), Arc::new(packages), Arc::new(yunos)];
        let all = all.map(|kind| Arc::new(MaskedKind::new(kind, given.clone())) as Arc<dyn UnitKind>);
        Ok(Self { all: Arc::new(all), containers: Some(containers), tasks, owners })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<dyn UnitKind>> {
        self.all.iter()
    }

    /// Returns the kind of a spec.
    pub(super) fn of(&self, spec: &Spec) -> Option<&Arc<dyn UnitKind>> {
        self.iter().find(|kind| kind.name() == spec.kind())
    }
}
