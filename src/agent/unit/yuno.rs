//! Yunos: processes, each under a shim.
//!
//! The folder of a unit is `<data>/units/<realm>/<name>/`, and in it:
//!
//! - `run/`: the shim's own folder, with its state and the log
//! - `started.json`: which revision was started there, written before the start
//! - `rev/<revision>/`: the configs of a revision, merged into `config.json`, and each as `<id>.json`
//! - `rev/<revision>/wired/config.json`: the merged config with endpoints and connectors, for a unit that has any
//! - `config`: a link to the revision's folder, for a unit that may be reloaded
//! - `probe/<which>/`: the folder of the shim of a probe's command
//! - `work/`: the working directory and home; it survives revisions and restarts
//!
//! A second instance, while one revision replaces another, has its own files beside those of the first,
//! with `.2` in the name ([`place`]): `run.2/`, `started.2.json`, `config.2` and `probe.2/`, and a cgroup of its own.
//!
//! A process finds its own name in `MUSTER_UNIT` and `MUSTER_REALM`, and the path of its merged config in
//! `MUSTER_CONFIG`; `{config}` in an argument is replaced by that path. With a channel of JSON lines there are
//! `MUSTER_SOCKET`, `MUSTER_TOKEN` and, if it has a watchdog, `MUSTER_WATCHDOG_MS` as well. Its ports and its connectors
//! are in variables, in that config and in arguments, too ([`EndpointWiring`]).

mod channel;
mod content;
mod inside;
mod instance;
mod launch;
mod materials;
mod place;
mod probe;
mod reload;
mod signal_number;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_shim::cgroup::Cgroup;
use muster_topics::{
    canonical,
    channel::{Complaint, ToldStats},
    command::LogView,
    diagnostic::Diagnostic,
    effective::Effective,
    manifest::Manifest,
    name::{Digest, Name, UnitName},
    reload::Reload,
    unit::{ArtifactRef, ConfigRef, Desired, Spec, YunoSpec},
};
use serde_json::Value;
use zeroize::Zeroizing;

pub(super) use self::signal_number::signal_number;
use muster_base::{
    crash,
    files::{PASSABLE_FOLDER, make_folder},
};
use muster_rules::{
    config,
    content_check::ContentReport,
    plan::{Failure, InstanceEnd, ProbeRequest, Slot},
    port_lease::EndpointWiring,
    render::{self, RenderFault},
    schema,
};

use self::{
    channel::ChannelRegistry,
    instance::{YunoInstance, ends_with_host, from_ended},
    launch::{LaunchRequest, find_user},
    materials::Materials,
    place::{InstanceFolder, StartRecord},
};
use super::{
    container::Containers,
    failure::{blocking, from_artifact, from_shim, may_heal, never},
    folders,
    given_secrets::{SecretSource, texts_of},
    kind::{
        AdoptedUnit, ContentOrder, FollowFrom, Instance, InstanceEvent, InstanceRequest, ProgressReporter, Signaller,
        StartError, StartOrder, UnitKind, UnitTrace,
    },
    log,
};
use crate::{
    artifact::Artifacts,
    cgroup::{CgroupTree, UnitCgroup},
    kept_data,
    shim::{self, ShimError, Shims},
};

#[cfg(test)]
pub(super) mod tests;

/// Secrets of a unit, by name.
type SecretValues = BTreeMap<Name, Zeroizing<String>>;

/// The configs of a revision, and the secrets that are kept for its start.
type MadeConfigs = (Vec<(ConfigRef, Value)>, BTreeMap<String, String>);

/// The yunos of this host.
pub(super) struct Yunos {
    folder: PathBuf,
    artifacts: Artifacts,
    shims: Shims,
    tree: CgroupTree,
    switchboard: ChannelRegistry,
    secrets: SecretSource,
    /// The containers, for yunos that run in one.
    containers: Arc<Containers>,
}

impl Yunos {
    pub(super) fn new(
        data_dir: &Path,
        secrets: SecretSource,
        artifacts: Artifacts,
        shims: Shims,
        containers: Arc<Containers>,
    ) -> io::Result<Self> {
        let folder = data_dir.join(kept_data::UNITS);
        // A yuno of another user has its configuration and its working directory below.
        make_folder(&folder, PASSABLE_FOLDER)?;
        let (tree, switchboard) = (CgroupTree::detect(data_dir), ChannelRegistry::default());
        Ok(Self { folder, artifacts, shims, tree, switchboard, secrets, containers })
    }

    fn place(&self, unit: &UnitName, slot: Slot) -> InstanceFolder {
        let folder = self.folder.join(unit.realm().as_str()).join(unit.name().as_str());
        InstanceFolder { folder, slot, shims: self.shims.folders().clone() }
    }

    async fn install(
        &self,
        unit: &UnitName,
        desired: &Desired,
        keep: Option<&Digest>,
        tell: &ProgressReporter<'_>,
    ) -> Result<(), Failure> {
        let spec = of_yuno(&desired.spec)?;
        // What a revision needs does not depend on the slot.
        let place = self.place(unit, Slot::First);
        self.artifacts.fetch_telling(&spec.artifact, tell).await.map_err(from_artifact)?;
        let data_dir = self.folder.parent().unwrap_or(&self.folder);
        kept_data::restore(data_dir, unit).map_err(|error| place.failure("given its data back", &error))?;
        let made = self.make_configs(unit, spec, &place.materials(&desired.revision)).await?;
        let made = made.as_ref().map(|(configs, kept)| (&configs[..], kept));
        place.prepare(&desired.revision, keep, made)
    }

    /// Makes the configs of a revision, with the secrets that are kept for its start, unless they are there as they should be.
    async fn make_configs(
        &self,
        unit: &UnitName,
        spec: &YunoSpec,
        materials: &Materials,
    ) -> Result<Option<MadeConfigs>, Failure> {
        let at_start = render::unit::secrets_at_start(spec).map_err(from_render)?;
        if materials.are_there(&spec.configs, &at_start) {
            return Ok(None);
        }
        let configs = self.configs(spec).await?;
        let secrets = self.secrets.fetch(unit, &spec.common.secrets).await?;
        let configs = rendered(spec, &secrets, with_secrets(&secrets, configs)?)?;
        self.check(unit, spec, &configs).await?;
        let kept = kept_for_start(&secrets, &at_start)?;
        let without_left = |(config, document)| (config, render::config::without_left(spec, document));
        Ok(Some((configs.into_iter().map(without_left).collect(), kept)))
    }

    async fn prepare(
        &self,
        unit: &UnitName,
        desired: &Desired,
        keep: Option<&Digest>,
        is_there: bool,
    ) -> Result<(), Failure> {
        let spec = of_yuno(&desired.spec)?;
        self.artifacts.fetch(&spec.artifact).await.map_err(from_artifact)?;
        // No unit needs it yet.
        let kept = self.artifacts.keep([&spec.artifact.sha256].into_iter(), SystemTime::now());
        kept.map_err(|error| may_heal(format!("an artifact cannot be kept: {error}")))?;
        if is_there {
            return self.install(unit, desired, keep, &|_| ()).await;
        }
        // The folder of a unit that is not there would count as what is left of one.
        let configs = self.configs(spec).await?;
        let secrets = self.secrets.fetch(unit, &spec.common.secrets).await?;
        kept_for_start(&secrets, &render::unit::secrets_at_start(spec).map_err(from_render)?)?;
        self.check(unit, spec, &rendered(spec, &secrets, with_secrets(&secrets, configs)?)?).await
    }

    /// Checks the merged config against the artifact's manifest. (The console has done so, too, but it may be an older
    /// one.)
    async fn check(&self, unit: &UnitName, spec: &YunoSpec, configs: &[(ConfigRef, Value)]) -> Result<(), Failure> {
        // A secret may stand in a config itself, and what is wrong is quoted.
        for (_, document) in configs {
            let inline = config::secrets(document);
            self.secrets.given().add(unit, inline.iter().flat_map(|(_, secret)| texts_of(secret)));
        }
        let Some(manifest) = self.artifacts.manifest(&spec.artifact).await.map_err(from_artifact)? else {
            return Ok(());
        };
        let ArtifactRef { role, version, .. } = &spec.artifact;
        let manifest: Manifest = serde_json::from_slice(&manifest)
            .map_err(|error| never(format!("the manifest of artifact {role}@{version} is not valid: {error}")))?;
        let Some(schema) = manifest.config_schema else { return Ok(()) };
        let merged = config::merge(configs.iter().map(|(_, document)| document.clone()));
        let complaints = schema::check(&schema, &merged);
        if complaints.is_empty() {
            return Ok(());
        }
        let place = format!("the merged config does not match the schema of {role}@{version}");
        Err(never(Diagnostic::all(complaints).unwrap_or_default().within(place)))
    }

    /// Returns the documents of all configs.
    async fn configs(&self, spec: &YunoSpec) -> Result<Vec<(ConfigRef, Value)>, Failure> {
        let mut configs = Vec::new();
        for config in &spec.configs {
            let content = self.artifacts.config(config).await.map_err(from_artifact)?;
            let document = canonical::parse(&content).map_err(|error| Failure {
                error: format!("config {}@{}: {error}", config.id, config.version).into(),
                may_heal: false,
            })?;
            configs.push((config.clone(), document));
        }
        Ok(configs)
    }

    async fn start(&self, unit: &UnitName, start: &StartOrder) -> Result<YunoInstance, StartError> {
        let StartOrder { slot, desired, keep, wiring, attempts, beside } = start;
        let spec = of_yuno(&desired.spec)?;
        let place = self.place(unit, *slot);
        self.shims.make_room().await;
        // Everything is there almost always; but it may have been removed by hand.
        self.install(unit, desired, keep.as_ref(), &|_| ()).await?;
        if place.run().is_dir()
            && let shim::AdoptedShim::Alive(_) = self.shims.adopt(&place.run()).await.map_err(from_shim)?
        {
            return Err(StartError::Unknown);
        }
        place.make_run()?;
        self.end_probes(unit, *slot).await;
        if *beside {
            log::begin_anew(&place.run(), spec.log.keep).map_err(|error| place.failure("prepared", &error))?;
        }
        let config = place.wire(&desired.revision, spec, wiring)?;
        let secrets = place.materials(&desired.revision).secrets_at_start();
        let rendered = render::unit::process(spec, wiring, &|name| secrets.get(name).cloned()).map_err(from_render)?;
        let inside = inside::launch(&self.containers, unit, spec).await?;
        // A user inside a container is not one of the host.
        let user = if inside.is_some() { None } else { find_user(spec)? };
        if let Some(user) = &user {
            place.give_to(&desired.revision, user)?;
        }
        if !spec.reload.is_restart() {
            place.lead_to(&desired.revision)?;
        }
        // It may have changed since it was installed.
        let program = self.artifacts.fetch(&spec.artifact).await.map_err(from_artifact)?;
        let made = match &inside {
            // Its cgroup is among its container's.
            Some(_) => UnitCgroup::default(),
            None => {
                self.tree.prepare((unit, *slot), &spec.program.limits).map_err(|error| may_heal(error.to_string()))?
            }
        };
        let found = |path: PathBuf| match spec.reload {
            Reload::Restart => path,
            Reload::Signal | Reload::Channel => place.behind_link(&desired.revision, &path),
        };
        let config = config.map(found);
        // The name in the welcome of yunos.
        let host = self.secrets.host().to_string();
        let (host, config) = (host.as_str(), config.as_deref());
        let wanted = LaunchRequest {
            unit,
            host,
            desired,
            spec,
            place: &place,
            config,
            wiring,
            rendered: &rendered,
            program: &program,
            user,
            inside: inside.as_ref(),
            attempts: *attempts,
        };
        let launched = self.launch(wanted.clone(), made).await;
        let Err(LaunchError::Cgroup(error)) = launched else { return launched.map_err(LaunchError::into_not_started) };
        if inside.is_some() {
            return Err(LaunchError::Cgroup(error).into_not_started());
        }
        // It was created and then became unusable; the yuno runs without it rather than not at all.
        self.tree.remove((unit, *slot));
        let missing = vec![format!("a cgroup, and with it all limits: {error}").into()];
        self.launch(wanted, UnitCgroup { cgroup: Cgroup::default(), missing })
            .await
            .map_err(LaunchError::into_not_started)
    }

    /// Launches a unit that has no instance.
    async fn launch(
        &self,
        wanted: LaunchRequest<'_>,
        UnitCgroup { cgroup, missing }: UnitCgroup,
    ) -> Result<YunoInstance, LaunchError> {
        let LaunchRequest { unit, desired, spec, place, wiring, .. } = wanted;
        let started = StartRecord {
            revision: desired.revision.clone(),
            bare: desired.spec.revision().ok(),
            artifact: spec.artifact.sha256.clone(),
            missing: missing.clone(),
            frame: desired.spec.frame().ok(),
            limits: spec.program.limits,
            reads: None,
            watched: reload::watched(spec),
            wiring: wiring.clone(),
        };
        crash::point("start", "before its revision is noted");
        place.write_started(&started)?;
        let run = place.run();
        let launch = launch::launch(wanted, cgroup);
        let line = || self.switchboard.open(unit, place.slot);
        let alive = |shim| YunoInstance {
            shim,
            run: run.clone(),
            missing: missing.clone(),
            wiring: wiring.clone(),
            line: line(),
            news: VecDeque::new(),
        };
        match self.shims.launch(&run, &launch).await {
            Ok(shim) => Ok(alive(shim)),
            Err(ShimError::Cgroup { source, .. }) => Err(LaunchError::Cgroup(source)),
            Err(error @ ShimError::Start { .. }) => Err(from_shim(error).into()),
            // Whether a program was started is uncertain; if not, waiting is right.
            Err(error) => match self.shims.adopt(&run).await {
                Ok(shim::AdoptedShim::Alive(shim)) => Ok(alive(shim)),
                Ok(shim::AdoptedShim::Nothing | shim::AdoptedShim::Ended(_)) => Err(from_shim(error).into()),
                Err(_) => Err(LaunchError::Other(StartError::Unknown)),
            },
        }
    }

    async fn adopt(&self, unit: &UnitName, slot: Slot) -> Result<AdoptedUnit, Failure> {
        let place = self.place(unit, slot);
        if !place.run().exists() {
            return Ok(AdoptedUnit::Nothing);
        }
        match self.shims.adopt(&place.run()).await.map_err(from_shim)? {
            shim::AdoptedShim::Nothing => Ok(AdoptedUnit::Nothing),
            shim::AdoptedShim::Ended(ended) => {
                let mut last = from_ended(&ended, &place.run());
                last.with_host = place.is_of_earlier_boot() && ends_with_host(last.exit);
                Ok(AdoptedUnit::Ended(InstanceEnd { restarts: place.restarts(), last }))
            }
            shim::AdoptedShim::Alive(shim) => {
                // An unknown revision differs from any desired one, and will be replaced.
                let unknown = || (Digest::of(b""), Vec::new(), EndpointWiring::default());
                let started = place.started();
                if let Ok(started) = &started
                    && let Err(failure) = place.heal_started(started)
                {
                    tracing::warn!(%unit, error = failure.error.cause, hint = failure.error.hint, "the record of a unit's start has no second copy");
                }
                let (revision, missing, wiring) =
                    started.map_or_else(|_| unknown(), |started| (started.revision, started.missing, started.wiring));
                let line = self.switchboard.open(unit, slot);
                let mut yuno = YunoInstance { shim, run: place.run(), missing, wiring, line, news: VecDeque::new() };
                match yuno.next_event().await {
                    Some(InstanceEvent::Told(told)) => {
                        Ok(AdoptedUnit::Alive { revision, told, instance: Box::new(yuno) })
                    }
                    Some(InstanceEvent::Ended(over)) => Ok(AdoptedUnit::Ended(over)),
                    None => Err(may_heal("its shim has ended")),
                }
            }
        }
    }

    /// Marks what is installed for units, or was started and may be restarted by its shim; removes the rest.
    fn sweep(&self, desired: &[Desired]) -> io::Result<()> {
        let mut needed: BTreeSet<Digest> = BTreeSet::new();
        for Desired { spec, .. } in desired {
            needed.extend(spec.artifact().map(|artifact| artifact.sha256.clone()));
        }
        for UnitTrace { unit, .. } in self.traces()? {
            let places = Slot::ALL.map(|slot| self.place(&unit, slot));
            let may_start = places.iter().filter(|place| !place.is_over());
            needed.extend(may_start.filter_map(|place| Some(place.started().ok()?.artifact)));
        }
        self.artifacts.sweep(&needed, SystemTime::now())
    }
}

/// Returns a yuno's own fields. Other specs belong to other kinds.
fn of_yuno(spec: &Spec) -> Result<&YunoSpec, Failure> {
    let never = || Failure { error: format!("a {} is not a yuno", spec.kind()).into(), may_heal: false };
    spec.yuno().ok_or_else(never)
}

impl UnitKind for Yunos {
    fn name(&self) -> &'static str {
        "yuno"
    }

    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        folders::traces(&self.folder)
    }

    fn kept_secrets(&self, unit: &UnitName) -> Vec<String> {
        self.place(unit, Slot::First).kept_secrets()
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
        keep: Option<&'a Digest>,
        is_there: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.prepare(unit, desired, keep, is_there).boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        let start = self.start(unit, start);
        async { start.await.map(|yuno| Box::new(yuno) as Box<dyn Instance>) }.boxed()
    }

    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        self.reload_unit((unit, slot), desired, keep, signal).boxed()
    }

    fn has_watched_files(&self, desired: &Desired) -> bool {
        desired.spec.yuno().is_some_and(|spec| !spec.on_change.is_empty())
    }

    fn check_watched_files<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        self.look_at_files((unit, slot), desired, signal).boxed()
    }

    fn check_content<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        order: &'a ContentOrder,
    ) -> BoxFuture<'a, Result<Option<ContentReport>, Failure>> {
        self.check_content_of((unit, slot), order).boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        self.switchboard.close(unit);
        async move {
            for slot in Slot::ALL {
                self.end_probes(unit, slot).await;
            }
            let places = Slot::ALL.map(|slot| self.place(unit, slot));
            let (tree, unit) = (self.tree.clone(), unit.clone());
            let remove = move || {
                for place in &places {
                    // Where it was started, which need not be where it would be now.
                    place.cgroup().remove();
                    tree.remove((&unit, place.slot));
                    place.remove_from_memory()?;
                }
                places[0].remove()
            };
            blocking(remove).await
        }
        .boxed()
    }

    fn ask<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        ask: InstanceRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Complaint>> {
        self.switchboard.ask(unit, slot, ask, limit).boxed()
    }

    fn stats(&self) -> BTreeMap<(UnitName, Slot), ToldStats> {
        self.switchboard.stats()
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
        let folders = Slot::ALL.map(|slot| self.place(unit, slot).run());
        let read = move || match from {
            FollowFrom::Last(lines) => log::tail_to(&folders, lines, &view, log::TAIL_MAX_BYTES),
            FollowFrom::Place(place) => log::since(&folders, place, view.times, log::TAIL_MAX_BYTES),
        };
        async move { tokio::task::spawn_blocking(read).await.map_err(io::Error::other)? }.boxed()
    }

    fn effective<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        revision: &'a Digest,
    ) -> BoxFuture<'a, io::Result<Effective>> {
        let (place, unit, desired) = (self.place(unit, slot), unit.clone(), revision.clone());
        async move {
            let read = move || {
                let revision = place.started().map_or(desired, |started| started.reads.unwrap_or(started.revision));
                place.materials(&revision).effective(&unit)
            };
            tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
        }
        .boxed()
    }

    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        // A few hundred names at most, once an hour: not worth a thread.
        async move { self.sweep(&desired) }.boxed()
    }
}

/// Returns the secrets to keep for what is rendered when a unit is started.
fn kept_for_start(secrets: &SecretValues, named: &BTreeSet<String>) -> Result<BTreeMap<String, String>, Failure> {
    let value = |name: &String| {
        let value = secrets.iter().find(|(known, _)| known.as_str() == name).map(|(_, value)| value.as_str());
        let value = value.ok_or_else(|| Failure {
            error: Diagnostic::new(format_args!("a template names the secret {name}, which was not sent to the unit"))
                .with_hint("apply the unit again"),
            may_heal: false,
        })?;
        Ok((name.clone(), value.to_owned()))
    };
    named.iter().map(value).collect()
}

/// Puts the values of secrets where configs name them.
fn with_secrets(secrets: &SecretValues, configs: Vec<(ConfigRef, Value)>) -> Result<Vec<(ConfigRef, Value)>, Failure> {
    let reveal = |(config, document): (ConfigRef, Value)| match config::with_values(&document, secrets) {
        Ok(document) => Ok((config, document)),
        Err(name) => Err(Failure {
            error: Diagnostic::new(format_args!(
                "config {}@{} names the secret {name}, which was not sent to the unit",
                config.id, config.version
            ))
            .with_hint("apply the unit again"),
            may_heal: false,
        }),
    };
    configs.into_iter().map(reveal).collect()
}

/// Renders the templates in configs, but for those that name endpoints.
fn rendered(
    spec: &YunoSpec,
    secrets: &SecretValues,
    configs: Vec<(ConfigRef, Value)>,
) -> Result<Vec<(ConfigRef, Value)>, Failure> {
    let value = |name: &str| secrets.get(&name.parse::<Name>().ok()?).map(|value| value.to_string());
    let render = |(config, document): (ConfigRef, Value)| {
        let document = render::config::rendered(spec, &config, &document, &value).map_err(from_render)?;
        Ok((config, document))
    };
    configs.into_iter().map(render).collect()
}

/// A template that cannot be rendered stays so: what it names is part of the unit.
fn from_render(fault: RenderFault) -> Failure {
    never(Diagnostic::of(&fault))
}

/// Why a launched unit does not run.
enum LaunchError {
    /// It could not enter its cgroup.
    Cgroup(io::Error),
    /// Another reason.
    Other(StartError),
}

impl LaunchError {
    fn into_not_started(self) -> StartError {
        match self {
            Self::Cgroup(error) => may_heal(error.to_string()).into(),
            Self::Other(other) => other,
        }
    }
}

impl From<Failure> for LaunchError {
    fn from(failure: Failure) -> Self {
        Self::Other(failure.into())
    }
}
