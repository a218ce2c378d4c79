//! Makes a revision ready in the agent's own folder: artifacts are fetched, users resolved, templates rendered, trees unpacked, and
//! validators run.

use std::{collections::BTreeMap, sync::Arc};

use muster_rules::{
    files::plan::{Attributes, Content, WantedEntry},
    plan::Failure,
    render::{self, RenderFault, RenderValues},
};
use muster_topics::{
    diagnostic::Diagnostic,
    files::{FileEntry, FilesSpec},
    name::{Digest, UnitName},
    task::TaskAction,
    unit::{Desired, Spec},
};
use zeroize::Zeroizing;

use super::{
    staged::{self, StagedEntry, StagedRevision},
    state::FilesState,
    tree::{self, TreeEntry},
    validate, write,
};
use crate::{
    store::StoreError,
    unit::{
        failure::{blocking, from_artifact, may_heal, never},
        kind::ProgressReporter,
        task_log::TaskEnd,
    },
};

/// Secrets of a unit, by name.
type SecretValues = BTreeMap<String, Zeroizing<String>>;

impl FilesState {
    /// Makes a revision ready, and checks it. Nothing outside of the agent's folder is changed.
    pub(super) async fn stage(
        self: &Arc<Self>,
        unit: &UnitName,
        desired: &Desired,
        tell: &ProgressReporter<'_>,
    ) -> Result<StagedRevision, Failure> {
        if let Some(staged) = self.ready(unit, &desired.revision) {
            return Ok(staged);
        }
        let templates = of_files(&desired.spec)?.files.values().filter(|entry| entry.template.is_some()).count();
        let make = self.make(unit, desired, tell);
        let staged = match templates {
            0 => make.await?,
            _ => {
                let about = format!("{templates} template{}", if templates == 1 { "" } else { "s" });
                self.as_task(unit, &desired.revision, (TaskAction::Render, about), make).await?
            }
        };
        let validators = staged.entries.values().filter(|entry| !entry.validate.is_empty()).count();
        if validators > 0 {
            let about = format!("{validators} file{}", if validators == 1 { "" } else { "s" });
            let validate = self.validate_all(unit, &staged);
            self.as_task(unit, &desired.revision, (TaskAction::Validate, about), validate).await?;
        }
        Ok(staged)
    }

    /// Fetches what a revision needs, and renders it. It is not checked.
    pub(super) async fn make(
        self: &Arc<Self>,
        unit: &UnitName,
        desired: &Desired,
        tell: &ProgressReporter<'_>,
    ) -> Result<StagedRevision, Failure> {
        let spec = of_files(&desired.spec)?.clone();
        for artifact in desired.spec.artifacts() {
            self.artifacts.fetch_telling(artifact, tell).await.map_err(from_artifact)?;
        }
        let secrets = self.secrets.fetch(unit, &spec.common.secrets).await?;
        let secrets = secrets.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let (state, revision) = (self.clone(), desired.revision.clone());
        blocking(move || state.stage_all(&revision, &spec, &secrets)).await
    }

    /// Does something that changes nothing outside of the agent's folder, as a task.
    async fn as_task<T>(
        &self,
        unit: &UnitName,
        revision: &Digest,
        (action, about): (TaskAction, String),
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let failed = |error: StoreError| may_heal(Diagnostic::of(&error));
        let task = self.tasks.begin(unit, revision, action, about).await.map_err(failed)?;
        let done = work.await;
        let end = match &done {
            Ok(_) => Ok(TaskEnd { is_changed: false, message: None }),
            Err(failure) => Err(failure.error.clone()),
        };
        task.end(end).await.map_err(failed)?;
        done
    }

    fn stage_all(
        &self,
        revision: &Digest,
        spec: &FilesSpec,
        secrets: &SecretValues,
    ) -> Result<StagedRevision, Failure> {
        let mut staged = staged::begin(revision, spec);
        staged.secrets = secrets.values().map(|value| value.to_string()).collect::<Vec<_>>().into();
        let values = RenderValues::of_chosen(&spec.values);
        for (path, entry) in &spec.files {
            // What a host lacks may appear.
            let failed = |why: Diagnostic| may_heal(why.within(path));
            let (content, is_secret) = self.content(path, entry, (&values, secrets))?;
            let wanted = staged::wanted(entry, content, is_secret).map_err(failed)?;
            if let (Some(directory), Some(artifact)) = (&entry.directory, &entry.artifact) {
                let tree = tree::unpack(&self.artifacts.path(&artifact.sha256), &self.blobs).map_err(|error| {
                    let place = format!("{path}: the artifact {}@{}", artifact.role, artifact.version);
                    Failure { error: error.why.within(place), may_heal: error.may_heal }
                })?;
                for (inner, one) in tree.entries {
                    let inner_path = format!("{path}/{inner}");
                    // What the spec says of a path itself counts.
                    if !spec.files.contains_key(&inner_path) {
                        let wanted = of_tree(&wanted, one, directory.recurse);
                        let packed = match &wanted.content {
                            Content::File(sha256) => tree.packed.get(sha256).cloned(),
                            _ => None,
                        };
                        let (is_secret, validate, directory) = (false, Vec::new(), None);
                        let entry = StagedEntry { wanted, is_secret, validate, directory, packed };
                        staged.entries.insert(inner_path, entry);
                    }
                }
            }
            let (validate, directory) = (entry.validate.clone(), entry.directory.clone());
            let entry = StagedEntry { wanted, is_secret, validate, directory, packed: None };
            staged.entries.insert(path.clone(), entry);
        }
        self.blobs.sync().map_err(|error| may_heal(error.to_string()))?;
        Ok(staged)
    }

    /// Returns what an entry wants at its path, and whether it has a secret.
    fn content(
        &self,
        path: &str,
        entry: &FileEntry,
        (values, secrets): (&RenderValues, &SecretValues),
    ) -> Result<(Content, bool), Failure> {
        let FileEntry { text, template, artifact, directory, link, .. } = entry;
        let keep = |text: &str| {
            let kept = self.blobs.put(text.as_bytes(), u64::MAX);
            let (sha256, _) = kept.map_err(|error| may_heal(write::words(&error).within(path)))?;
            Ok(Content::File(sha256))
        };
        if let Some(text) = text {
            return Ok((keep(text)?, false));
        }
        if let Some(template) = template {
            let name = format!("files.{path}");
            // What a template names is part of the unit, so it cannot be rendered later either.
            let wrong = |fault: RenderFault| never(Diagnostic::of(&fault));
            let is_secret = !render::names(&name, template).map_err(wrong)?.secrets.is_empty();
            let value = |secret: &str| secrets.get(secret).map(|value| value.to_string());
            let text = Zeroizing::new(render::render(&name, template, values, &value).map_err(wrong)?);
            return Ok((keep(&text)?, is_secret));
        }
        Ok(match (directory, artifact, link) {
            (Some(_), ..) => (Content::Directory, false),
            (None, Some(artifact), _) => (Content::File(artifact.sha256.clone()), false),
            (None, None, Some(link)) => (Content::Link(link.clone()), false),
            (None, None, None) => (Content::Absent, false),
        })
    }

    async fn validate_all(&self, unit: &UnitName, staged: &StagedRevision) -> Result<(), Failure> {
        let mask = self.secrets.given().mask(unit);
        for (path, entry) in staged.entries.iter().filter(|(_, entry)| !entry.validate.is_empty()) {
            let Content::File(sha256) = &entry.wanted.content else { continue };
            let content = match self.blobs.has(sha256) {
                true => self.blobs.path(sha256),
                false => self.artifacts.path(sha256),
            };
            let (folder, named) = (self.folder.join("checked"), path.clone());
            let laid_out = blocking(move || {
                validate::lay_out(&content, &folder, &named)
                    .map_err(|error| may_heal(write::words(&error).within(&named)))
            });
            let (_folder, file) = laid_out.await?;
            validate::validate(&entry.validate, &file, &mask)
                .await
                .map_err(|failure| Failure { error: failure.error.within(path), ..failure })?;
        }
        Ok(())
    }
}

/// What is wanted of something in a tree: what its tarball says, and with `recurse` what its folder says.
fn of_tree(folder: &WantedEntry, one: TreeEntry, recurse: bool) -> WantedEntry {
    let mode = match (&one.content, folder.mode.filter(|_| recurse)) {
        (Content::File(_), Some(mode)) if one.mode & 0o111 == 0 => mode & !0o111,
        (_, Some(mode)) => mode,
        (_, None) => one.mode,
    };
    let of_new = Attributes { mode, ..folder.of_new };
    let (uid, gid) = if recurse { (folder.uid, folder.gid) } else { (None, None) };
    WantedEntry { content: one.content, uid, gid, mode: Some(mode), of_new }
}

/// Returns the fields of files. Other specs belong to other kinds.
fn of_files(spec: &Spec) -> Result<&FilesSpec, Failure> {
    match spec {
        Spec::Files(spec) => Ok(spec),
        other => Err(never(format!("a unit of the kind {} has no files", other.kind()))),
    }
}
