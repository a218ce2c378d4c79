//! Containers: a kind of unit, implemented once on top of a container runtime ([`runtime`]).
//!
//! A container is called `muster.<realm>.<name>` (names have no dots), and carries the labels `muster.host` and
//! `muster.unit`. **Invariant: a container without this host's labels is never touched**, whatever its name, unless a unit has
//! adopted it.
//!
//! A container that has ended is started again with everything that it has written; it is recreated when
//! its spec changes (the label `muster.made`). What the agent needs to know of it while the runtime is unavailable
//! is in `<data>/containers/<realm>/<name>/started.json`, written before the start.
//!
//! Modules, in reading order: `runtime` (the trait), `place` (that file), `adopted` (containers that others have created), `instance` (a running one),
//! `find_first_process` (the way into it), `probe` (probes inside), `list` (all containers of the host), `podman` (Podman and Docker), `lxc` (LXC).

mod adopted;
mod find_first_process;
mod instance;
pub(crate) mod list;
mod lxc;
mod place;
mod podman;
mod probe;
mod runtime;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::crash;
use muster_topics::{
    canonical,
    command::LogView,
    container::{self, ContainerSpec, Image, Network},
    diagnostic::Diagnostic,
    effective::Effective,
    name::{Digest, UnitName},
    process::Limits,
    unit::{Desired, Spec},
};
use tokio::sync::Mutex;

pub use self::list::{OtherContainer, OtherContainers, UnitContainers};
use muster_rules::{
    plan::{Failure, ProbeRequest, Slot},
    port_lease::EndpointWiring,
    render,
};

use self::{
    instance::ContainerInstance,
    lxc::Lxc,
    place::{ContainerStartRecord, UnitFolder},
    podman::Podman,
    runtime::{ContainerPhase, ContainerRuntime, Recipe, RuntimeState},
};
use super::{
    failure::{from_artifact, may_heal, never},
    folders,
    given_secrets::SecretSource,
    kind::{
        AdoptedUnit, FollowFrom, Instance, InstanceEvent, ProgressReporter, Signaller, StartError, StartOrder,
        UnitKind, UnitTrace,
    },
    log,
    turns::Turns,
};
use crate::{artifact::Artifacts, config::ContainersConfig, shim::Shims};

/// The labels of containers that an agent has created.
const HOST_LABEL: &str = "muster.host";
const UNIT_LABEL: &str = "muster.unit";
const MADE_LABEL: &str = "muster.made";

/// The containers of this host.
pub(super) struct Containers {
    folder: PathBuf,
    secrets: SecretSource,
    artifacts: Artifacts,
    shims: Shims,
    runtimes: Vec<Arc<dyn ContainerRuntime>>,
    /// Held while a container is adopted.
    taking: Mutex<()>,
}

impl Containers {
    pub(super) fn new(
        data_dir: &Path,
        secrets: SecretSource,
        (artifacts, shims, turns): (Artifacts, Shims, Turns),
        config: &ContainersConfig,
    ) -> io::Result<Self> {
        let podman = Podman::new(&config.podman_socket, turns)?;
        let folder = data_dir.join("containers");
        let lxc = Lxc::new(config.lxc_dir.clone().unwrap_or_else(|| data_dir.join("lxc")), shims.clone());
        Ok(Self {
            folder,
            secrets,
            artifacts,
            shims,
            runtimes: vec![Arc::new(podman), Arc::new(lxc)],
            taking: Mutex::default(),
        })
    }

    fn place(&self, unit: &UnitName) -> UnitFolder {
        UnitFolder(self.folder.join(unit.realm().as_str()).join(unit.name().as_str()))
    }

    fn runtime(&self, which: container::Runtime) -> Result<Arc<dyn ContainerRuntime>, Failure> {
        let found = self.runtimes.iter().find(|runtime| runtime.which() == which).cloned();
        found.ok_or_else(|| never(format!("unsupported: this host's agent does not know the runtime {which}")))
    }

    fn is_ours(&self, unit: &UnitName, state: &RuntimeState) -> bool {
        let has = |label: &str, value: &str| state.labels.get(label).is_some_and(|found| found == value);
        has(HOST_LABEL, &self.secrets.host().to_string()) && has(UNIT_LABEL, unit.as_str())
    }

    async fn install(
        &self,
        unit: &UnitName,
        desired: &Desired,
        keep: Option<&Digest>,
        tell: &ProgressReporter<'_>,
    ) -> Result<(), Failure> {
        let spec = container(&desired.spec)?;
        let runtime = self.runtime(spec.runtime)?;
        if let Some(what) = runtime.cannot(spec).or_else(|| probe::cannot(spec)) {
            return Err(never(what.within(format_args!("unsupported by {}", spec.runtime))));
        }
        if let Image::Existing(wanted) = &spec.image {
            return self.take(unit, desired, wanted, &*runtime).await;
        }
        self.keep_secrets(unit, desired, keep).await?;
        self.bring_image(spec, &*runtime, tell).await
    }

    /// Keeps the secrets of a revision, and those of the one that it may go back to.
    async fn keep_secrets(&self, unit: &UnitName, desired: &Desired, keep: Option<&Digest>) -> Result<(), Failure> {
        let spec = container(&desired.spec)?;
        let place = self.place(unit);
        let mut kept = place.secrets()?;
        let is_kept = spec.common.secrets.is_empty() || kept.contains_key(&desired.revision);
        let before = kept.len();
        let needed = [Some(&desired.revision), keep];
        kept.retain(|revision, _| needed.contains(&Some(revision)));
        if !is_kept {
            kept.insert(desired.revision.clone(), self.secrets(unit, spec).await?);
        }
        if is_kept && kept.len() == before { Ok(()) } else { place.keep_secrets(&kept) }
    }

    /// Fetches the secrets of a unit.
    async fn secrets(&self, unit: &UnitName, spec: &ContainerSpec) -> Result<BTreeMap<String, String>, Failure> {
        let values = self.secrets.fetch(unit, &spec.common.secrets).await?;
        Ok(values.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    /// Renders the templates of a spec, for a start.
    fn rendered(
        &self,
        unit: &UnitName,
        desired: &Desired,
        wiring: &EndpointWiring,
        runtime: &dyn ContainerRuntime,
    ) -> Result<ContainerSpec, Failure> {
        let secrets = self.place(unit).secrets()?.remove(&desired.revision).unwrap_or_default();
        // What templates name is part of the unit: a fault stays.
        let spec = render::unit::container(container(&desired.spec)?, wiring, &|name| secrets.get(name).cloned())
            .map_err(|fault| never(Diagnostic::of(&fault)))?;
        match runtime.cannot(&spec) {
            Some(what) => Err(never(what.within(format_args!("unsupported by {}", spec.runtime)))),
            None => Ok(spec),
        }
    }

    /// Downloads what the revision needs, and checks that the runtime can have it.
    async fn prepare(&self, unit: &UnitName, desired: &Desired) -> Result<(), Failure> {
        let spec = container(&desired.spec)?;
        let runtime = self.runtime(spec.runtime)?;
        if let Some(what) = runtime.cannot(spec).or_else(|| probe::cannot(spec)) {
            return Err(never(what.within(format_args!("unsupported by {}", spec.runtime))));
        }
        if let Image::Existing(_) = &spec.image {
            return Ok(());
        }
        // The folder of a unit that is not there would count as what is left of one.
        self.secrets(unit, spec).await?;
        self.bring_image(spec, &*runtime, &|_| ()).await?;
        // No unit needs it yet.
        let needed = spec.image.artifact().map(|artifact| &artifact.sha256);
        self.artifacts
            .keep(needed.into_iter(), SystemTime::now())
            .map_err(|error| may_heal(Diagnostic::of_error(&error)))
    }

    async fn bring_image(
        &self,
        spec: &ContainerSpec,
        runtime: &dyn ContainerRuntime,
        tell: &ProgressReporter<'_>,
    ) -> Result<(), Failure> {
        if runtime.has_image(&spec.image).await? {
            return Ok(());
        }
        let file = match spec.image.artifact() {
            Some(artifact) => Some(self.artifacts.fetch_telling(artifact, tell).await.map_err(from_artifact)?),
            None => None,
        };
        runtime.bring_image(&spec.image, file.as_deref()).await
    }

    async fn start(&self, unit: &UnitName, start: &StartOrder) -> Result<ContainerInstance, StartError> {
        let StartOrder { desired, wiring, .. } = start;
        // The image is there almost always; but it may have been removed by hand.
        self.install(unit, desired, start.keep.as_ref(), &|_| ()).await?;
        let spec = container(&desired.spec)?;
        let runtime = self.runtime(spec.runtime)?;
        mounts_are_there(spec)?;
        self.end_probes(unit).await;
        if let Image::Existing(wanted) = &spec.image {
            return self.start_adopted(unit, start, wanted, runtime).await;
        }
        let (name, frame) = (name(unit), frame(&desired.spec)?);
        let rendered = self.rendered(unit, desired, wiring, &*runtime)?;
        let recipe = self.recipe(unit, &rendered, wiring, &frame)?;
        let found = runtime.inspect(&name).await?;
        let made = match found {
            None => false,
            Some(state) if !self.is_ours(unit, &state) => return Err(self.taken(&name, spec.runtime).into()),
            Some(state) if is_alive(state.phase) => return Err(StartError::Unknown),
            Some(state) => {
                let is_same = state.labels.get(MADE_LABEL) == recipe.labels.get(MADE_LABEL);
                // A container that only seems alive has to be removed, and one whose limits have changed, too.
                let rests = matches!(state.phase, ContainerPhase::Made | ContainerPhase::Ended { .. });
                let before = self.place(unit).started()?;
                let goes_on = match before.filter(|_| is_same && rests) {
                    Some(before) if before.limits == spec.program.limits => true,
                    Some(before) if limited(before.limits) == limited(spec.program.limits) => {
                        runtime.limit(&name, spec.program.limits).await.unwrap_or(false)
                    }
                    _ => false,
                };
                if !goes_on {
                    runtime.remove(&name).await?;
                }
                goes_on
            }
        };
        if !made {
            runtime.create(&name, &recipe).await?;
        }
        crash::point("start", "before its revision is noted");
        self.note(unit, desired, wiring, frame)?;
        runtime.start(&name).await?;
        // If its runtime does not answer now, whether it runs is unknown.
        ContainerInstance::of(runtime, name, wiring.clone()).await.map_err(|_| StartError::Unknown)
    }

    /// Records what is in effect from now on.
    fn note(&self, unit: &UnitName, desired: &Desired, wiring: &EndpointWiring, frame: Digest) -> Result<(), Failure> {
        let spec = container(&desired.spec)?;
        self.place(unit).write(&ContainerStartRecord {
            revision: desired.revision.clone(),
            runtime: spec.runtime,
            frame,
            limits: spec.program.limits,
            wiring: wiring.clone(),
            missing: None,
            boot_id: muster_shim::process_identity::boot_id().unwrap_or_default(),
        })
    }

    fn taken(&self, name: &str, runtime: container::Runtime) -> Failure {
        never(
            Diagnostic::new(format_args!(
                "{runtime} has a container {name} that this host's agent did not create; it is left unchanged"
            ))
            .with_hint("rename or remove it"),
        )
    }

    fn recipe(
        &self,
        unit: &UnitName,
        spec: &ContainerSpec,
        wiring: &EndpointWiring,
        frame: &Digest,
    ) -> Result<Recipe, Failure> {
        let fill = |words: &[String]| words.iter().map(|word| wiring.fill(word, None)).collect::<Vec<_>>();
        let inside = |port: u16, name| spec.ports.get(name).copied().unwrap_or(port);
        let published = match spec.network {
            Network::Bridge => wiring.endpoints.iter().map(|end| (end.clone(), inside(end.port, &end.name))).collect(),
            Network::Host | Network::None => Vec::new(),
        };
        let made = canonical::digest(&(frame, wiring)).map_err(|error| never(error.to_string()))?;
        let labels = [
            (HOST_LABEL, self.secrets.host().to_string()),
            (UNIT_LABEL, unit.to_string()),
            (MADE_LABEL, made.to_string()),
        ];
        Ok(Recipe {
            image: spec.image.clone(),
            entry: spec.entry.as_deref().map(fill),
            args: fill(&spec.program.args),
            env: environment(unit, spec, wiring),
            user: spec.program.user.clone(),
            cwd: spec.program.cwd.clone(),
            mounts: spec.mounts.clone(),
            network: spec.network,
            limits: spec.program.limits,
            disk_bytes: spec.disk_bytes,
            rlimits: spec.rlimits.clone(),
            published,
            labels: labels.map(|(name, value)| (name.to_owned(), value)).into(),
        })
    }

    async fn adopt(&self, unit: &UnitName, slot: Slot) -> Result<AdoptedUnit, Failure> {
        // There is one container of a unit at a time.
        if slot == Slot::Second {
            return Ok(AdoptedUnit::Nothing);
        }
        let Some(started) = self.place(unit).started()? else { return Ok(AdoptedUnit::Nothing) };
        let runtime = self.runtime(started.runtime)?;
        let (name, Some(_)) = self.find(unit, &*runtime).await? else {
            // It was removed or replaced by somebody else, which a start will report.
            return Ok(AdoptedUnit::Ended(instance::unseen()));
        };
        let container = ContainerInstance::of(runtime, name, started.wiring.clone()).await?;
        let mut container = container.without(started.missing.clone());
        match container.first() {
            Some(InstanceEvent::Told(told)) => {
                Ok(AdoptedUnit::Alive { revision: started.revision, told, instance: Box::new(container) })
            }
            Some(InstanceEvent::Ended(mut over)) => {
                // A container that ended because its host went down has not failed.
                over.last.with_host =
                    muster_shim::process_identity::boot_id().is_ok_and(|boot_id| boot_id != started.boot_id);
                Ok(AdoptedUnit::Ended(over))
            }
            None => Err(may_heal("its state cannot be read")),
        }
    }

    /// Changes what can be changed while it runs: the values of limits that it already has.
    async fn reload(&self, unit: &UnitName, desired: &Desired) -> Result<bool, Failure> {
        let spec = container(&desired.spec)?;
        let Some(started) = self.place(unit).started()? else { return Ok(false) };
        let (name, was_adopted) = self.place(unit).adopted()?.map_or((name(unit), false), |adopted| (adopted.id, true));
        // An adopted container is not recreated, and may have had limits before.
        let same_limits = was_adopted || limited(started.limits) == limited(spec.program.limits);
        if started.frame != frame(&desired.spec)? || started.runtime != spec.runtime || !same_limits {
            return Ok(false);
        }
        let runtime = self.runtime(spec.runtime)?;
        if !spec.program.limits.is_none() && !runtime.limit(&name, spec.program.limits).await? {
            return Ok(false);
        }
        let limits = spec.program.limits;
        self.place(unit)
            .write(&ContainerStartRecord { revision: desired.revision.clone(), limits, ..started })
            .map(|()| true)
    }

    async fn remove(&self, unit: &UnitName) -> Result<(), Failure> {
        self.end_probes(unit).await;
        let place = self.place(unit);
        // An adopted container is released.
        if let (Some(started), None) = (place.started()?, place.adopted()?) {
            let runtime = self.runtime(started.runtime)?;
            if let (name, Some(_)) = self.find(unit, &*runtime).await? {
                runtime.remove(&name).await?;
            }
        }
        place.remove()
    }

    async fn read_log(
        &self,
        unit: &UnitName,
        from: runtime::RuntimeLogFrom,
        view: LogView,
    ) -> io::Result<log::LogPart> {
        let other = |failure: Failure| io::Error::other(failure.error.into_error());
        let Some(started) = self.place(unit).started().map_err(other)? else { return Ok(log::LogPart::default()) };
        let runtime = self.runtime(started.runtime).map_err(other)?;
        match self.find(unit, &*runtime).await.map_err(other)? {
            (name, Some(_)) => runtime.log(&name, from, view).await.map_err(other),
            (_, None) => Ok(log::LogPart::default()),
        }
    }
}

/// Returns the name of a unit's container.
fn name(unit: &UnitName) -> String {
    format!("muster.{}.{}", unit.realm(), unit.name())
}

fn container(spec: &Spec) -> Result<&ContainerSpec, Failure> {
    match spec {
        Spec::Container(spec) => Ok(spec),
        Spec::Yuno(_) | Spec::Files(_) | Spec::Packages(_) => {
            Err(never(format!("a {} is not a container", spec.kind())))
        }
    }
}

fn frame(spec: &Spec) -> Result<Digest, Failure> {
    spec.frame().map_err(|error| never(error.to_string()))
}

/// The variables that a container gets in addition to its image's.
fn environment(unit: &UnitName, spec: &ContainerSpec, wiring: &EndpointWiring) -> BTreeMap<String, String> {
    let mut env = spec.program.env.clone();
    env.insert("MUSTER_UNIT".to_owned(), unit.to_string());
    env.insert("MUSTER_REALM".to_owned(), unit.realm().to_string());
    env.extend(wiring.variables());
    env
}

/// Which limits are set.
fn limited(limits: Limits) -> [bool; 3] {
    [limits.memory_bytes.is_some(), limits.cpu.is_some(), limits.pids.is_some()]
}

/// Whether it really runs, and not only by its runtime's record.
fn is_alive(phase: ContainerPhase) -> bool {
    let ContainerPhase::Runs { pid, .. } = phase else { return false };
    muster_shim::process_identity::stat(pid).is_some_and(|stat| !stat.is_dead())
}

/// Checks that mounted paths exist: a runtime may create a missing one as an empty folder.
fn mounts_are_there(spec: &ContainerSpec) -> Result<(), Failure> {
    match spec.mounts.iter().find_map(|mount| Some((mount, fs::metadata(&mount.host).err()?))) {
        Some((mount, error)) => Err(may_heal(format!("{} cannot be mounted as {}: {error}", mount.host, mount.inside))),
        None => Ok(()),
    }
}

impl UnitKind for Containers {
    fn name(&self) -> &'static str {
        "container"
    }

    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        folders::traces(&self.folder)
    }

    fn kept_secrets(&self, unit: &UnitName) -> Vec<String> {
        let kept = self.place(unit).secrets().unwrap_or_default();
        kept.into_values().flat_map(BTreeMap::into_values).collect()
    }

    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>> {
        self.adopt(unit, slot).boxed()
    }

    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        tell: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.install(unit, desired, keep, tell).boxed()
    }

    fn prepare<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        _: Option<&'a Digest>,
        _: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.prepare(unit, desired).boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        let start = self.start(unit, start);
        async { start.await.map(|container| Box::new(container) as Box<dyn Instance>) }.boxed()
    }

    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Slot,
        desired: &'a Desired,
        _: Option<&'a Digest>,
        _: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        self.reload(unit, desired).boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        self.remove(unit).boxed()
    }

    fn probe<'a>(&'a self, unit: &'a UnitName, probing: &'a ProbeRequest) -> BoxFuture<'a, Result<(), Diagnostic>> {
        self.try_probe(unit, probing).boxed()
    }

    fn log<'a>(
        &'a self,
        unit: &'a UnitName,
        from: FollowFrom,
        view: LogView,
    ) -> BoxFuture<'a, io::Result<log::LogPart>> {
        let from = match from {
            FollowFrom::Last(lines) => runtime::RuntimeLogFrom::Last(lines),
            FollowFrom::Place(place) => runtime::RuntimeLogFrom::After(place),
        };
        self.read_log(unit, from, view).boxed()
    }

    fn effective<'a>(&'a self, _: &'a UnitName, _: Slot, _: &'a Digest) -> BoxFuture<'a, io::Result<Effective>> {
        // It has no configs.
        async { Err(io::Error::from(io::ErrorKind::NotFound)) }.boxed()
    }

    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        let needed: BTreeSet<_> =
            desired.iter().filter_map(|desired| Some(desired.spec.artifact()?.sha256.clone())).collect();
        async move {
            for runtime in self.runtimes.iter().filter(|runtime| runtime.is_there()) {
                if let Err(failure) = runtime.sweep(&needed).await {
                    tracing::debug!(
                        error = failure.error.cause,
                        hint = failure.error.hint,
                        "unused images cannot be removed"
                    );
                }
            }
            // Other kinds remove artifacts that were not needed for a day.
            self.artifacts.keep(needed.iter(), SystemTime::now())
        }
        .boxed()
    }
}
