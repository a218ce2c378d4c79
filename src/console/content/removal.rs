//! Removes unused content: one artifact or config by its labels, or all artifacts that no unit refers to.

use std::{collections::BTreeSet, fs, io};

use muster_api::{Artifact, Collected};
use muster_base::clock::now_ms;
use muster_topics::{
    name::{ConfigId, Digest, Name, Version},
    unit::{ArtifactRef, ConfigRef},
};

use super::{
    disk,
    holder::{ContentHolder, holders, refuse_held},
};
use crate::{
    error::Error,
    state::{Console, ContentFolder},
    store::{
        StoreError,
        content::{self, ArtifactFilter, LabelKind, RemovedLabel},
    },
};

impl Console {
    /// Removes an artifact's label, and its content if it has no other label.
    pub async fn remove_artifact(&self, operator: &Name, role: &Name, version: &Version) -> Result<(), Error> {
        let shared = &self.shared;
        let _content = shared.content.lock.lock().await;
        let filter = ArtifactFilter { sha256: None, role: Some(role.clone()), version: Some(version.clone()) };
        let Some(artifact) = content::artifacts(shared.store.read(), &filter).await?.pop() else {
            return Err(Error::not_found("unknown_artifact", format!("there is no artifact {role}@{version}"))
                .hint("`muster artifact ls`, or GET /api/v1/artifacts, lists them"));
        };
        let filter = ArtifactFilter { sha256: Some(artifact.sha256.clone()), ..ArtifactFilter::default() };
        let is_last = content::artifacts(shared.store.read(), &filter).await?.len() == 1;
        let is_it = |held: &ArtifactRef| {
            held.sha256 == artifact.sha256 && (is_last || (&held.role, &held.version) == (role, version))
        };
        let needs = |holder: &ContentHolder| holder.and_more || holder.artifacts.iter().any(is_it);
        let held: Vec<String> = holders(shared).await?.into_iter().filter(needs).map(|holder| holder.who).collect();
        refuse_held(&format!("artifact {role}@{version}"), &held)?;
        self.forget(operator, &artifact).await?;
        if is_last {
            self.delete_blob(&artifact.sha256)?;
        }
        Ok(())
    }

    /// Removes a config.
    pub async fn remove_config(&self, operator: &Name, id: &ConfigId, version: &Version) -> Result<(), Error> {
        let shared = &self.shared;
        let _content = shared.content.lock.lock().await;
        let config = self.config(id, version).await?;
        let is_it = |config: &ConfigRef| (&config.id, &config.version) == (id, version);
        let needs = |holder: &ContentHolder| holder.and_more || holder.configs.iter().any(is_it);
        let held: Vec<String> = holders(shared).await?.into_iter().filter(needs).map(|holder| holder.who).collect();
        refuse_held(&format!("config {id}@{version}"), &held)?;
        let label =
            RemovedLabel { kind: LabelKind::Config, name: id.as_str(), version, sha256: &config.sha256, operator };
        self.remove_label(&label).await?;
        shared.note_whole(&config.sha256);
        tracing::info!(config = %format_args!("{id}@{version}"), %operator, "a config was removed");
        Ok(())
    }

    /// Removes every artifact that is not needed; with `dry_run` only lists them.
    pub async fn collect_artifacts(&self, operator: &Name, dry_run: bool) -> Result<Collected, Error> {
        let shared = &self.shared;
        let _content = shared.content.lock.lock().await;
        let holders = holders(shared).await?;
        let unclear: Vec<String> =
            holders.iter().filter(|holder| holder.and_more).map(|holder| holder.who.clone()).collect();
        refuse_held("what else there is", &unclear)?;
        let held: BTreeSet<&Digest> =
            holders.iter().flat_map(|holder| &holder.artifacts).map(|artifact| &artifact.sha256).collect();
        let all = content::artifacts(shared.store.read(), &ArtifactFilter::default()).await?;
        let (kept, artifacts): (Vec<Artifact>, Vec<Artifact>) =
            all.into_iter().partition(|artifact| held.contains(&artifact.sha256));
        let kept: BTreeSet<Digest> = kept.into_iter().map(|artifact| artifact.sha256).collect();
        let mut freed_bytes = 0;
        if !dry_run {
            for artifact in &artifacts {
                self.forget(operator, artifact).await?;
            }
        }
        for (sha256, size_bytes) in blobs(&shared.content).map_err(|error| disk("listing the artifacts", &error))? {
            if !kept.contains(&sha256) {
                freed_bytes += size_bytes;
                if !dry_run {
                    self.delete_blob(&sha256)?;
                }
            }
        }
        if !dry_run {
            content::forget_manifests(shared.store.write()).await?;
        }
        Ok(Collected { artifacts, freed_bytes })
    }

    async fn forget(&self, operator: &Name, artifact: &Artifact) -> Result<(), Error> {
        let Artifact { role, version, sha256, .. } = artifact;
        let label = RemovedLabel { kind: LabelKind::Artifact, name: role.as_str(), version, sha256, operator };
        self.remove_label(&label).await?;
        tracing::info!(artifact = sha256.short(), %role, %version, %operator, "an artifact was removed");
        Ok(())
    }

    async fn remove_label(&self, label: &RemovedLabel<'_>) -> Result<(), Error> {
        let mut transaction = self.shared.store.begin().await?;
        content::remove_label(&mut transaction, label, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        Ok(())
    }

    fn delete_blob(&self, sha256: &Digest) -> Result<(), Error> {
        match fs::remove_file(super::artifact_path(&self.shared.content, sha256)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("removing the artifact", &error)),
            _ => {
                self.shared.note_whole(sha256);
                Ok(())
            }
        }
    }
}

/// Returns all blobs, including those of uploads that were refused in the end.
fn blobs(content: &ContentFolder) -> io::Result<Vec<(Digest, u64)>> {
    let mut blobs = Vec::new();
    for entry in fs::read_dir(&content.folder)? {
        let entry = entry?;
        if let Some(Ok(sha256)) = entry.file_name().to_str().map(str::parse::<Digest>) {
            blobs.push((sha256, entry.metadata()?.len()));
        }
    }
    Ok(blobs)
}
