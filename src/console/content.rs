//! Artifacts and configs: what hosts fetch.
//!
//! **Invariant: a file in the folder `artifacts` whose name is a hash is whole and has that hash.** It
//! is written beside, synced, and renamed.
//!
//! **Invariant: neither an artifact's nor a config's content ever changes under its labels.**

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::http::StatusCode;
use futures_util::{Stream, StreamExt};
use muster_topics::{
    canonical,
    name::{Digest, Name, Version},
    unit::{ArtifactRef, ConfigRef},
};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    Console, Error, Shared,
    store::content::{self, ArtifactFilter},
};
use crate::{
    api::{Artifact, Config, NewConfig},
    clock::now_ms,
    files::{PRIVATE_FOLDER, make_folder, sync_folder},
};

/// How long an upload may bring nothing.
const IDLE: Duration = Duration::from_secs(60);
/// The largest config. Hosts read it whole, and it lies in the store.
const CONFIG_MAX_BYTES: usize = 512 * 1024;
const UPLOAD_PREFIX: &str = ".upload-";

/// Makes the folder for artifacts, and removes what an interrupted upload left.
pub(super) fn prepare_folder(folder: &Path) -> io::Result<()> {
    make_folder(folder, PRIVATE_FOLDER)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UPLOAD_PREFIX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Where the blob of this hash lies, if it is there.
pub(super) fn artifact_path(shared: &Shared, sha256: &Digest) -> PathBuf {
    shared.artifacts.join(sha256.as_str())
}

/// Whether an artifact is here as a unit's spec has it.
pub(super) async fn check_artifact(shared: &Shared, wanted: &ArtifactRef) -> Result<(), Error> {
    let filter = ArtifactFilter { sha256: Some(wanted.sha256.clone()), ..ArtifactFilter::default() };
    let known = content::artifacts(shared.store.read(), &filter).await?;
    let what = format!("artifact {} {} ({})", wanted.role, wanted.version, wanted.sha256.short());
    if known.is_empty() {
        return Err(
            Error::not_found("unknown_artifact", format!("{what} is not here")).hint("`muster artifact add` brings it")
        );
    }
    let same = |one: &Artifact| {
        one.role == wanted.role && one.version == wanted.version && one.size_bytes == wanted.size_bytes
    };
    if !known.iter().any(same) {
        return Err(Error::conflict("wrong_artifact", format!("{what} is here with another role, version or size"))
            .hint("`muster artifact ls` shows what is here"));
    }
    Ok(())
}

/// Whether a config is here as a unit's spec has it.
pub(super) async fn check_config(shared: &Shared, wanted: &ConfigRef) -> Result<(), Error> {
    let what = format!("config {}@{}", wanted.id, wanted.version);
    match content::config(shared.store.read(), &wanted.id, &wanted.version).await? {
        None => {
            Err(Error::not_found("unknown_config", format!("{what} is not here")).hint("`muster config add` brings it"))
        }
        Some(config) if config.sha256 != wanted.sha256 => {
            Err(Error::conflict("wrong_config", format!("{what} is here with another content"))
                .hint("`muster config ls` shows what is here"))
        }
        Some(_) => Ok(()),
    }
}

fn disk(what: &'static str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "disk_full",
            format!("{what} failed: the console's disk is full"),
        )
        .hint("make room, and try again"),
        _ => Error::internal(what, error),
    }
}

/// A blob on its way to the disk; dropped before [`Upload::finish`], it leaves nothing.
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

    /// Makes the blob last under its hash.
    async fn finish(mut self, folder: &Path) -> io::Result<(Digest, u64)> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        let sha256 = Digest::from_ring(self.hash.finish());
        let to = folder.join(sha256.as_str());
        let (path, folder) = (self.path, folder.to_owned());
        let renamed = tokio::task::spawn_blocking(move || {
            path.persist(to).map_err(|error| error.error)?;
            sync_folder(&folder)
        });
        renamed.await.map_err(io::Error::other)??;
        Ok((sha256, self.size_bytes))
    }
}

impl Console {
    /// Takes an artifact in, as its bytes come. The same one again changes nothing.
    pub async fn add_artifact<B, E>(
        &self,
        operator: &Name,
        role: Name,
        version: Version,
        mut body: impl Stream<Item = Result<B, E>> + Unpin,
    ) -> Result<Artifact, Error>
    where
        B: AsRef<[u8]>,
        E: std::fmt::Display,
    {
        let shared = &self.shared;
        let max_bytes = shared.config.artifact_max_bytes;
        let what = "storing the artifact";
        let mut upload = Upload::begin(&shared.artifacts).map_err(|error| disk(what, &error))?;
        loop {
            let piece = match timeout(IDLE, body.next()).await {
                Ok(None) => break,
                Ok(Some(Ok(piece))) => piece,
                Ok(Some(Err(error))) => {
                    return Err(Error::invalid("incomplete", format!("the artifact did not come whole: {error}"))
                        .hint("send it again"));
                }
                Err(_) => {
                    let message = format!("nothing of the artifact came for {} s", IDLE.as_secs());
                    return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "incomplete", message).hint("send it again"));
                }
            };
            if upload.size_bytes + piece.as_ref().len() as u64 > max_bytes {
                let message = format!("the artifact has more than {max_bytes} bytes");
                return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
                    .hint("`artifact_max_bytes` in the console's configuration sets the limit"));
            }
            upload.write(piece.as_ref()).await.map_err(|error| disk(what, &error))?;
        }
        if upload.size_bytes == 0 {
            return Err(Error::invalid("empty", "the artifact is empty"));
        }
        let (sha256, size_bytes) = upload.finish(&shared.artifacts).await.map_err(|error| disk(what, &error))?;
        let artifact = Artifact { sha256, size_bytes, role, version, added_ms: now_ms() };
        let stored = content::add_artifact(shared.store.write(), &artifact, operator).await?;
        if stored.sha256 != artifact.sha256 {
            let Artifact { role, version, .. } = &artifact;
            return Err(Error::conflict(
                "version_taken",
                format!("{role} {version} is there already, with other content ({})", stored.sha256.short()),
            )
            .hint("give the new content a new version"));
        }
        tracing::info!(artifact = stored.sha256.short(), role = %stored.role, version = %stored.version, %operator, size_bytes, "an artifact is here");
        Ok(stored)
    }

    /// Artifacts, by role, newest first.
    pub async fn artifacts(&self, role: Option<Name>, version: Option<Version>) -> Result<Vec<Artifact>, Error> {
        let filter = ArtifactFilter { sha256: None, role, version };
        Ok(content::artifacts(self.shared.store.read(), &filter).await?)
    }

    /// One artifact; under its newest labels, if it has several.
    pub async fn artifact(&self, sha256: &Digest) -> Result<Artifact, Error> {
        let filter = ArtifactFilter { sha256: Some(sha256.clone()), ..ArtifactFilter::default() };
        let found = content::artifacts(self.shared.store.read(), &filter).await?;
        found
            .into_iter()
            .max_by_key(|artifact| artifact.added_ms)
            .ok_or_else(|| Error::not_found("unknown_artifact", format!("there is no artifact {sha256}")))
    }

    /// Takes a config in. The same one again changes nothing.
    pub async fn add_config(&self, operator: &Name, new: NewConfig) -> Result<Config, Error> {
        let shared = &self.shared;
        if new.content.len() > CONFIG_MAX_BYTES {
            let message = format!("the config has {} bytes, and {CONFIG_MAX_BYTES} are allowed", new.content.len());
            return Err(
                Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("an artifact can be larger")
            );
        }
        let bad = |error: canonical::CanonicalError| Error::invalid("bad_config", error.to_string());
        let document = canonical::parse(new.content.as_bytes()).map_err(bad)?;
        let bytes = canonical::to_bytes(&document).map_err(bad)?;
        let sha256 = Digest::of(&bytes);
        let content = String::from_utf8(bytes).map_err(|error| Error::internal("making canonical JSON", &error))?;
        let NewConfig { id, version, .. } = new;
        let config = content::NewConfig { id, version, sha256, content };
        content::add_config(shared.store.write(), &config, operator, now_ms()).await?;
        let stored = self.config(&config.id, &config.version).await?;
        if stored.sha256 != config.sha256 {
            let versions = content::config_versions(shared.store.read(), &config.id).await?;
            let next = next_version(config.version.as_str(), &versions);
            return Err(Error::conflict(
                "version_taken",
                format!("config {}@{} is there already, with other content", config.id, config.version),
            )
            .hint(format!("add it as {}@{next}", config.id)));
        }
        Ok(stored)
    }

    /// All configs, without their content.
    pub async fn configs(&self) -> Result<Vec<Config>, Error> {
        Ok(content::configs(self.shared.store.read()).await?)
    }

    /// One config, with its content.
    pub async fn config(&self, id: &muster_topics::name::ConfigId, version: &Version) -> Result<Config, Error> {
        let found = content::config(self.shared.store.read(), id, version).await?;
        found.ok_or_else(|| Error::not_found("unknown_config", format!("there is no config {id}@{version}")))
    }
}

/// A version that is not taken, after one that is: its last number is counted up.
fn next_version(version: &str, taken: &[String]) -> String {
    let digits = version.len() - version.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = version.split_at(digits);
    // Without a number at its end, or with one beyond all measure, it gets one.
    let (stem, number) = match number.parse::<u64>() {
        Ok(number) => (stem.to_owned(), number),
        Err(_) => (format!("{version}-"), 1),
    };
    let free = (1..=taken.len() as u64 + 1)
        .map(|step| format!("{stem}{}", number.saturating_add(step)))
        .find(|candidate| !taken.contains(candidate));
    free.unwrap_or_else(|| format!("{version}-2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_version_is_one_that_is_free() {
        for (version, taken, wanted) in [
            ("1", &["1"][..], "2"),
            ("1.2.9", &["1.2.9"], "1.2.10"),
            ("1", &["1", "2", "3"], "4"),
            ("2024-01-01", &["2024-01-01"], "2024-01-2"),
            ("beta", &["beta"], "beta-2"),
            ("beta", &["beta", "beta-2"], "beta-3"),
            ("99999999999999999999", &["99999999999999999999"], "99999999999999999999-2"),
        ] {
            let taken: Vec<_> = taken.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(next_version(version, &taken), wanted);
            assert!(wanted.parse::<Version>().is_ok());
        }
    }

    #[test]
    fn what_an_interrupted_upload_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join(Digest::of(b"x").as_str());
        fs::write(&kept, b"x").unwrap();
        fs::write(dir.path().join(".upload-abc"), b"half").unwrap();
        prepare_folder(dir.path()).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [kept]);
    }
}
