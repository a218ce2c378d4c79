//! Receives uploads of artifacts.

use std::{io, path::Path, time::Duration};

use axum::http::StatusCode;
use futures_util::{Stream, StreamExt};
use muster_api::{Artifact, Labels};
use muster_base::{
    clock::now_ms,
    files::{self, RoleFile, sync_folder},
};
use muster_topics::name::{Digest, Name, Version};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{UPLOAD_PREFIX, check_room, disk, next_version};
use crate::{
    error::Error,
    state::Console,
    store::content::{self, ArtifactFilter, LabelKind},
};

/// How long an upload may be idle.
const IDLE: Duration = Duration::from_secs(60);

/// A blob being written; dropping it before [`Upload::finish`] removes it.
struct Upload {
    file: tokio::fs::File,
    path: tempfile::TempPath,
    hash: ring::digest::Context,
    size_bytes: u64,
}

impl Upload {
    fn begin(folder: &Path) -> io::Result<Self> {
        let (file, path) = tempfile::Builder::new().prefix(UPLOAD_PREFIX).tempfile_in(folder)?.into_parts();
        let hash = ring::digest::Context::new(&ring::digest::SHA256);
        Ok(Self { file: tokio::fs::File::from_std(file), path, hash, size_bytes: 0 })
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.size_bytes += bytes.len() as u64;
        self.file.write_all(bytes).await
    }

    /// Writes the rest. The blob is complete then, but has no final name yet.
    async fn finish(mut self) -> io::Result<Blob> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        Ok(Blob { path: self.path, sha256: Digest::from_ring(self.hash.finish()), size_bytes: self.size_bytes })
    }
}

/// A complete blob without its final name; dropping it removes it.
struct Blob {
    path: tempfile::TempPath,
    sha256: Digest,
    size_bytes: u64,
}

impl Blob {
    /// Syncs it and gives it its name, the hash.
    async fn keep(self, folder: &Path) -> io::Result<()> {
        let to = folder.join(self.sha256.as_str());
        let (path, folder) = (self.path, folder.to_owned());
        let name = self.sha256.clone();
        let renamed = tokio::task::spawn_blocking(move || {
            files::clear_places(&folder, RoleFile::File, &[name.as_str()])?;
            path.persist(to).map_err(|error| error.error)?;
            sync_folder(&folder)
        });
        renamed.await.map_err(io::Error::other)?
    }
}

impl Console {
    /// Creates an artifact from a stream. Creating the same one again changes nothing.
    pub async fn add_artifact<B, E>(
        &self,
        operator: &Name,
        labels: Labels,
        body: impl Stream<Item = Result<B, E>> + Unpin,
    ) -> Result<Artifact, Error>
    where
        B: AsRef<[u8]>,
        E: std::fmt::Display,
    {
        let shared = &self.shared;
        check_room(&shared.store)?;
        if let Some(manifest) = &labels.manifest {
            self.manifest(manifest).await?;
        }
        let blob = self.receive(body).await?;
        let Labels { role, version, manifest } = labels;
        let artifact = Artifact {
            sha256: blob.sha256.clone(),
            size_bytes: blob.size_bytes,
            role,
            version,
            manifest,
            created_ms: now_ms(),
        };
        let _content = shared.content.lock.lock().await;
        self.check_label(&artifact).await?;
        blob.keep(&shared.content.folder).await.map_err(|error| disk("storing the artifact", &error))?;
        let stored = content::add_artifact(shared.store.write(), &artifact, operator).await?;
        shared.note_whole(&stored.sha256);
        tracing::info!(artifact = stored.sha256.short(), role = %stored.role, version = %stored.version, %operator, size_bytes = stored.size_bytes, "an artifact was added");
        Ok(stored)
    }

    /// Writes a blob to disk.
    async fn receive<B, E>(&self, mut body: impl Stream<Item = Result<B, E>> + Unpin) -> Result<Blob, Error>
    where
        B: AsRef<[u8]>,
        E: std::fmt::Display,
    {
        let max_bytes = self.shared.current().artifact_max_bytes;
        let what = "storing the artifact";
        let mut upload = Upload::begin(&self.shared.content.folder).map_err(|error| disk(what, &error))?;
        loop {
            let piece = match timeout(IDLE, body.next()).await {
                Ok(None) => break,
                Ok(Some(Ok(piece))) => piece,
                Ok(Some(Err(error))) => {
                    return Err(Error::invalid("incomplete", format!("the artifact is incomplete: {error}"))
                        .hint("send it again"));
                }
                Err(_) => {
                    let message = format!("no data of the artifact arrived for {} s", IDLE.as_secs());
                    return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "incomplete", message).hint("send it again"));
                }
            };
            if upload.size_bytes + piece.as_ref().len() as u64 > max_bytes {
                let message = format!("the artifact has more than {max_bytes} bytes");
                return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
                    .hint("`artifact_max_bytes` in the console's configuration sets the limit"));
            }
            // The upload itself may fill the disk.
            check_room(&self.shared.store)?;
            upload.write(piece.as_ref()).await.map_err(|error| disk(what, &error))?;
        }
        if upload.size_bytes == 0 {
            return Err(Error::invalid("empty", "the artifact is empty"));
        }
        upload.finish().await.map_err(|error| disk(what, &error))
    }

    /// Checks that an artifact may have its role and version: a label that was used once always means the same content.
    async fn check_label(&self, artifact: &Artifact) -> Result<(), Error> {
        let db = self.shared.store.read();
        let Artifact { role, version, sha256, manifest, .. } = artifact;
        let filter = ArtifactFilter { sha256: None, role: Some(role.clone()), version: Some(version.clone()) };
        let stored = content::artifacts(db, &filter).await?.pop();
        let other = match &stored {
            Some(stored) if stored.sha256 != *sha256 => {
                Some(format!("exists with other content ({})", stored.sha256.short()))
            }
            Some(stored) if stored.manifest != *manifest => Some("exists with another manifest".to_owned()),
            Some(_) => None,
            None => {
                let removed = content::removed_label(db, LabelKind::Artifact, role.as_str(), version).await?;
                removed
                    .filter(|removed| removed != sha256)
                    .map(|removed| format!("had other content ({}), which was removed", removed.short()))
            }
        };
        let Some(other) = other else { return Ok(()) };
        let versions = content::versions(db, LabelKind::Artifact, role.as_str()).await?;
        let next = next_version(version.as_str(), &versions);
        Err(Error::conflict("version_taken", format!("{role} {version} {other}"))
            .hint(format!("give the new content a new version, such as {next}")))
    }

    /// Returns artifacts, by role, newest first.
    pub async fn artifacts(&self, role: Option<Name>, version: Option<Version>) -> Result<Vec<Artifact>, Error> {
        let filter = ArtifactFilter { sha256: None, role, version };
        Ok(content::artifacts(self.shared.store.read(), &filter).await?)
    }

    /// Returns one artifact, under its newest label if it has several.
    pub async fn artifact(&self, sha256: &Digest) -> Result<Artifact, Error> {
        let filter = ArtifactFilter { sha256: Some(sha256.clone()), ..ArtifactFilter::default() };
        let found = content::artifacts(self.shared.store.read(), &filter).await?;
        found
            .into_iter()
            .max_by_key(|artifact| artifact.created_ms)
            .ok_or_else(|| Error::not_found("unknown_artifact", format!("there is no artifact {sha256}")))
    }
}
