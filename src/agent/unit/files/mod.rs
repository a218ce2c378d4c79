//! Files: a kind of unit without a process. It is started when its files are as described, and runs while they are kept so.
//!
//! `install` makes everything ready in the agent's own folder: users are resolved, templates rendered, trees unpacked, and validators run.
//! `start` looks at every path, stores in the journal ([`crate::store::files`]) what it is about to make and what was there before, makes
//! it, and stores that, with what the change owes. The instance watches, and puts right what others change; if they change it again and
//! again it ends, so that the planner waits longer each time. `stop` leaves everything as it is; `remove` puts back what was there before.
//!
//! `<data>/files/blobs/` has contents by hash, `<data>/files/units/<realm>/<name>/` the revisions that a unit may need.
//!
//! Modules, in reading order: `state` (what units share), `staged` (a revision, ready) and `stage` (makes it), [`blobs`] and [`tree`] (contents), [`validate`], [`confine`] (the way to a
//! path), [`examine`] (what is there), [`walk`] (what is in a folder), [`survey`] (what is to be done), [`write`] (one step), [`apply`] (all of them), [`changes`] (what they would change), [`watch`].
//!
//! The decisions are in [`muster_rules::files`].

mod apply;
mod blobs;
mod changes;
mod confine;
mod examine;
mod stage;
mod staged;
mod state;
mod survey;
#[cfg(test)]
mod tests;
mod tree;
mod validate;
mod walk;
mod watch;
mod write;

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::{
    clock::now_ms,
    files::{PRIVATE_FOLDER, make_folder},
};
use muster_rules::{
    files::plan::{Content, EntryState},
    plan::{Failure, Slot},
};
use muster_topics::{
    name::{Digest, UnitName},
    unit::{ArtifactRef, Desired},
};

use self::{blobs::Blobs, confine::Confinement, examine::Hashes, state::FilesState, watch::FilesInstance};
use super::{
    failure::{blocking, may_heal},
    folders,
    given_secrets::SecretSource,
    kind::{
        AdoptedUnit, HostChanges, Instance, ProgressReporter, StartError, StartOrder, StepDeadlines, UnitKind,
        UnitTrace,
    },
    owners::Owners,
    task_log::TaskLog,
    turns::Turns,
};
use crate::{
    artifact::Artifacts,
    config::FilesConfig,
    store::{Store, files_journal as journal},
};

/// How long it may take to write everything, or to put it back: ten thousand files, or some gigabytes, on a slow disk.
const APPLY_MAX: Duration = Duration::from_secs(1_800);

/// The units of files of this host.
pub(super) struct Files(Arc<FilesState>);

impl Files {
    pub(super) fn new(
        data_dir: &Path,
        secrets: SecretSource,
        artifacts: Artifacts,
        config: &FilesConfig,
        (store, tasks, owners, turns): (Store, TaskLog, Owners, Turns),
    ) -> io::Result<Self> {
        let folder = data_dir.join("files");
        make_folder(&folder, PRIVATE_FOLDER)?;
        let blobs = Blobs::open(folder.join("blobs"))?;
        let confinement = Confinement::new(data_dir, config.dirs.as_deref());
        let (hashes, locks) = (Hashes::default(), Mutex::default());
        Ok(Self(Arc::new(FilesState {
            store,
            tasks,
            owners,
            secrets,
            artifacts,
            blobs,
            folder,
            confinement,
            hashes,
            locks,
            turns,
        })))
    }
}

impl FilesState {
    async fn install(
        self: &Arc<Self>,
        unit: &UnitName,
        desired: &Desired,
        keep: Option<&Digest>,
        tell: &ProgressReporter<'_>,
    ) -> Result<(), Failure> {
        let staged = self.stage(unit, desired, tell).await?;
        let applied = journal::applied(&self.store, unit).await.map_err(|error| may_heal(error.to_string()))?;
        let kept: Vec<Digest> =
            [Some(desired.revision.clone()), keep.cloned(), applied.map(|applied| applied.revision)]
                .into_iter()
                .flatten()
                .collect();
        let revisions = self.revisions(unit);
        blocking(move || {
            let kept: Vec<&Digest> = kept.iter().collect();
            revisions
                .write(&staged)
                .and_then(|()| revisions.retain(&kept))
                .map_err(|error| may_heal(write::words(&error)))
        })
        .await
    }

    async fn prepare(self: &Arc<Self>, unit: &UnitName, desired: &Desired, is_there: bool) -> Result<(), Failure> {
        let staged = self.stage(unit, desired, &|_| ()).await?;
        let needed = desired.spec.artifacts();
        let kept = self.artifacts.keep(needed.iter().map(|artifact| &artifact.sha256), SystemTime::now());
        kept.map_err(|error| may_heal(error.to_string()))?;
        if !is_there {
            return Ok(());
        }
        let revisions = self.revisions(unit);
        blocking(move || revisions.write(&staged).map_err(|error| may_heal(write::words(&error)))).await
    }

    async fn start(self: &Arc<Self>, unit: &UnitName, start: &StartOrder) -> Result<FilesInstance, StartError> {
        let desired = &start.desired;
        // It is there almost always; but it may have been removed by hand.
        if self.ready(unit, &desired.revision).is_none() {
            self.install(unit, desired, start.keep.as_ref(), &|_| ()).await?;
        }
        let Some(staged) = self.ready(unit, &desired.revision).map(Arc::new) else {
            return Err(may_heal("its prepared files no longer exist").into());
        };
        for left in self.apply_alone(unit, &staged).await?.left {
            tracing::warn!(%unit, hint = left.hint, "{}", left.cause);
        }
        Ok(FilesInstance::begin(self.clone(), unit.clone(), staged, now_ms()))
    }

    async fn adopt(self: &Arc<Self>, unit: &UnitName, slot: Slot) -> Result<AdoptedUnit, Failure> {
        // There is one state of a host's files.
        if slot == Slot::Second {
            return Ok(AdoptedUnit::Nothing);
        }
        let _lock = self.lock(unit).await;
        let applied = journal::applied(&self.store, unit).await.map_err(|error| may_heal(error.to_string()))?;
        let applied = applied.filter(|applied| applied.is_kept);
        let staged = applied.and_then(|applied| self.ready(unit, &applied.revision));
        // Without it, another start finds out what is to be done.
        let Some(staged) = staged.map(Arc::new) else { return Ok(AdoptedUnit::Nothing) };
        let (revision, started_ms) = (staged.revision.clone(), now_ms());
        let instance = FilesInstance::begin(self.clone(), unit.clone(), staged, started_ms);
        let told = watch::report(Vec::new());
        Ok(AdoptedUnit::Alive { revision, told, instance: Box::new(instance) })
    }

    async fn remove(self: &Arc<Self>, unit: &UnitName) -> Result<(), Failure> {
        for left in self.give_back_alone(unit).await?.left {
            tracing::warn!(%unit, hint = left.hint, "{}", left.cause);
        }
        let revisions = self.revisions(unit);
        blocking(move || {
            folders::remove(&revisions.0)
                .map_err(|error| may_heal(format!("{} cannot be removed: {error}", revisions.0.display())))
        })
        .await
    }

    async fn sweep(&self, desired: Vec<Desired>) -> io::Result<()> {
        let now = SystemTime::now();
        let artifacts: Vec<&ArtifactRef> = desired.iter().flat_map(|desired| desired.spec.artifacts()).collect();
        self.artifacts.keep(artifacts.iter().map(|artifact| &artifact.sha256), now)?;
        let mut needed = BTreeSet::new();
        for original in journal::originals(&self.store).await.map_err(io::Error::other)? {
            let original: EntryState = serde_json::from_str(&original)?;
            if let Content::File(sha256) = original.content {
                needed.insert(sha256);
            }
        }
        let mut paths = BTreeSet::new();
        for UnitTrace { unit, .. } in folders::traces(&self.units())? {
            let revisions = self.revisions(&unit);
            for revision in revisions.all()? {
                // If one cannot be read, what it needs is unknown.
                let staged = revisions
                    .read(&revision)
                    .ok_or_else(|| io::Error::other(format!("{unit}: a revision is unreadable")))?;
                needed.extend(staged.blobs().into_iter().cloned());
                paths.extend(staged.entries.into_keys());
            }
        }
        self.hashes.retain(|path| path.to_str().is_some_and(|path| paths.contains(path)));
        self.blobs.sweep(&needed, now)
    }
}

impl UnitKind for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        folders::traces(&self.0.units())
    }

    fn deadlines(&self) -> StepDeadlines {
        StepDeadlines { start: APPLY_MAX, remove: APPLY_MAX, ..StepDeadlines::default() }
    }

    fn kept_secrets(&self, unit: &UnitName) -> Vec<String> {
        self.0.revisions(unit).secrets()
    }

    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>> {
        self.0.adopt(unit, slot).boxed()
    }

    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        tell: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.0.install(unit, desired, keep, tell).boxed()
    }

    fn prepare<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        _: Option<&'a Digest>,
        is_there: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.0.prepare(unit, desired, is_there).boxed()
    }

    fn changes<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: Option<&'a Desired>,
        _: Option<&'a Digest>,
    ) -> BoxFuture<'a, Result<HostChanges, Failure>> {
        async move { Ok(HostChanges { files: self.0.changes(unit, desired).await?, packages: Vec::new() }) }.boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        let start = self.0.start(unit, start);
        async { start.await.map(|files| Box::new(files) as Box<dyn Instance>) }.boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        self.0.remove(unit).boxed()
    }

    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        self.0.sweep(desired).boxed()
    }
}
