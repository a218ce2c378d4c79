//! Downloads artifacts, configs and sealed secrets from the console, verifies them and stores each once.
//!
//! An artifact is identified by the SHA-256 of its bytes and stored in `<data>/artifacts/<sha256>`, read-only and
//! executable. The download goes to a partial file beside it, is hashed on the way, compared, synced and renamed, so a
//! file with that name always has that content. A partial file is kept for the next attempt, also after a restart of the
//! agent, which then requests the rest (`Range`, `If-Range`). It is deleted after a day without an attempt.
//!
//! Modules: [`error`], `receive` (network to disk), `rate_limit` (rate limit), `installed` (comparing what is installed with
//! its digests).
//!
//! One call is one attempt. The planner decides when to retry; each failure may pass ([`error`]).
//!
//! **Invariant: nothing is installed that was not hashed**, and no more is written than the size that
//! was announced.
//!
//! **Invariant: one digest is downloaded once**, however many units wait for it.
//!
//! To save memory, the HTTP client exists only during a download.

mod error;
mod installed;
mod rate_limit;
mod receive;

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use muster_rules::content_check::FileIdentity;
use muster_topics::{
    diagnostic::Diagnostic,
    join::Problem,
    name::{Digest, Name},
    secret::{SealedSecret, SecretRef},
    unit::{ArtifactRef, ConfigRef, Progress},
};
use reqwest::{
    StatusCode, Url,
    header::{CONTENT_RANGE, IF_RANGE, RANGE},
};
use tokio::sync::{OwnedMutexGuard, Semaphore, mpsc, watch};

pub use self::error::ArtifactError;
pub(crate) use self::installed::{FileContent, InstalledFiles, seen, uptime_ms};
use muster_base::{
    files::{PASSABLE_FOLDER, make_folder},
    mount::remove_folder,
};
use muster_net::http;

use self::{
    error::{transport, write_error},
    rate_limit::TransferPace,
    receive::PartialArtifact,
};
use super::join::MemberIdentity;

#[cfg(test)]
mod tests;

/// The longest time without data during a transfer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often the progress of a transfer is reported: each report is a message, and nobody looks more often.
const PROGRESS: Duration = Duration::from_secs(2);

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The largest config: it is held in memory while it is checked.
pub const CONFIG_MAX_BYTES: usize = 1024 * 1024;

/// Concurrent transfers. More would share the same bandwidth, and each has its buffers.
const TRANSFERS_MAX: usize = 3;

/// Chunks between network and disk: enough to keep both busy. A chunk is a TLS record, at most 16 KiB.
const CHUNKS_MAX: usize = 16;

/// How long an artifact is kept after the last unit that needs it was removed: a rollback to yesterday's version should
/// be quick.
const UNUSED_KEPT: Duration = Duration::from_secs(24 * 3600);

/// The read size when an artifact is verified.
const PIECE_BYTES: usize = 64 * 1024;

const PARTIAL_SUFFIX: &str = ".part";

/// Installs a program that this agent made itself below `data_dir`, as if it had been fetched, and returns its
/// reference.
///
/// # Errors
/// If it cannot be written.
pub fn install(data_dir: &Path, content: &[u8]) -> io::Result<ArtifactRef> {
    let folder = data_dir.join("artifacts");
    make_folder(&folder, PASSABLE_FOLDER)?;
    let sha256 = Digest::of(content);
    muster_base::files::write_atomically(&folder.join(sha256.as_str()), content, receive::INSTALLED_MODE)?;
    let (role, version) = ("transient".parse(), "1".parse());
    let (Ok(role), Ok(version)) = (role, version) else { return Err(io::ErrorKind::InvalidInput.into()) };
    Ok(ArtifactRef { sha256, size_bytes: content.len() as u64, role, version, manifest: None })
}

/// Reads a document that is held in memory, of at most `max_bytes`.
async fn read_whole(what: &str, mut response: reqwest::Response, max_bytes: usize) -> Result<Vec<u8>, ArtifactError> {
    let mut content = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(transport(what))? {
        if content.len() + chunk.len() > max_bytes {
            return Err(ArtifactError::TooLong { what: what.to_owned(), size_bytes: max_bytes as u64 });
        }
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}

/// Computes the SHA-256 of a file.
fn digest_of(path: &Path) -> io::Result<Digest> {
    let (mut file, mut hash) = (File::open(path)?, ring::digest::Context::new(&ring::digest::SHA256));
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(Digest::from_ring(hash.finish())),
            length => hash.update(piece.get(..length).unwrap_or_default()),
        }
    }
}

/// All artifacts of this host. Clones share them.
#[derive(Clone, Debug)]
pub struct Artifacts {
    shared: Arc<ArtifactState>,
}

struct ArtifactState {
    folder: PathBuf,
    identity: watch::Receiver<Arc<MemberIdentity>>,
    /// The files whose content was compared with their digests.
    installed: Arc<InstalledFiles>,
    /// One for each digest that is being fetched.
    flights: Mutex<HashMap<Digest, Weak<ArtifactFetch>>>,
    transfers: Semaphore,
    pace: TransferPace,
}

/// A fetch that is under way.
#[derive(Default)]
struct ArtifactFetch {
    /// Held by the caller that fetches; others wait for it.
    alone: Arc<tokio::sync::Mutex<()>>,
    done_bytes: Arc<AtomicU64>,
}

impl std::fmt::Debug for ArtifactState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The identity contains the host's key.
        f.debug_struct("Artifacts").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Artifacts {
    /// Opens the artifacts in `<data_dir>/artifacts`; `rate` limits the downloads in bytes a second.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(
        data_dir: &Path,
        identity: watch::Receiver<Arc<MemberIdentity>>,
        rate_bytes_per_s: Option<u64>,
    ) -> io::Result<Self> {
        let folder = data_dir.join("artifacts");
        // Yunos may run as other users, who need access to their program, but not a list of others.
        make_folder(&folder, PASSABLE_FOLDER)?;
        let (installed, flights, transfers) = (Arc::default(), Mutex::default(), Semaphore::new(TRANSFERS_MAX));
        let pace = TransferPace::new(rate_bytes_per_s);
        Ok(Self { shared: Arc::new(ArtifactState { folder, identity, installed, flights, transfers, pace }) })
    }

    /// The path of an installed artifact.
    #[must_use]
    pub fn path(&self, sha256: &Digest) -> PathBuf {
        self.shared.folder.join(sha256.as_str())
    }

    /// Installs an artifact and returns its path. One that is there and intact is not fetched again.
    ///
    /// # Errors
    /// If it cannot be fetched, has the wrong content, or cannot be written. Nothing is installed then.
    pub async fn fetch(&self, artifact: &ArtifactRef) -> Result<PathBuf, ArtifactError> {
        let path = self.path(&artifact.sha256);
        if self.shared.installed.is_unchanged(&path) {
            return Ok(path);
        }
        let flight = self.flight(&artifact.sha256);
        let alone = Arc::clone(&flight.alone).lock_owned().await;
        if !self.is_whole(artifact, &path).await? {
            let _permit = self.shared.transfers.acquire().await.map_err(|error| ArtifactError::Client(error.into()))?;
            self.transfer(artifact, &path, &flight.done_bytes, alone).await?;
        }
        Ok(path)
    }

    /// Compares an installed artifact with the disk: by its identity, and by its digest where that is due.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn check(&self, artifact: &ArtifactRef) -> io::Result<FileContent> {
        self.shared.installed.check(&self.path(&artifact.sha256), &artifact.sha256).await
    }

    /// The files whose content was compared with their digests.
    pub(crate) fn installed(&self) -> &Arc<InstalledFiles> {
        &self.shared.installed
    }

    /// Whether the file exists with the content that its name promises. A file with other content is removed: the disk
    /// is damaged, and running it would be dangerous.
    async fn is_whole(&self, artifact: &ArtifactRef, path: &Path) -> Result<bool, ArtifactError> {
        if self.shared.installed.is_unchanged(path) {
            return Ok(true);
        }
        let what = format!("artifact {}@{}", artifact.role, artifact.version);
        let (at, wanted) = (path.to_owned(), artifact.clone());
        let looked = tokio::task::spawn_blocking(move || -> io::Result<Option<FileIdentity>> {
            let Ok(found) = fs::metadata(&at) else { return Ok(None) };
            let is_whole = found.is_file() && found.len() == wanted.size_bytes && digest_of(&at)? == wanted.sha256;
            if is_whole {
                return Ok(Some(installed::identity_of(&found)));
            }
            tracing::error!(
                file = %at.display(),
                consequence = "the artifact is removed and fetched again",
                hint = "check this host's disk",
                "an artifact that was installed is damaged",
            );
            if found.is_dir() { remove_folder(&at) } else { fs::remove_file(&at) }?;
            Ok(None)
        });
        let looked = looked.await.map_err(io::Error::other).and_then(|looked| looked);
        let identity = looked.map_err(write_error(&what, path))?;
        match identity {
            Some(identity) => self.shared.installed.add(path, identity),
            None => self.shared.installed.forget(path),
        }
        Ok(identity.is_some())
    }

    /// As [`Self::fetch`], with reports of the progress.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub async fn fetch_telling(
        &self,
        artifact: &ArtifactRef,
        tell: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PathBuf, ArtifactError> {
        let fetched = self.fetch(artifact);
        tokio::pin!(fetched);
        loop {
            if let Ok(fetched) = tokio::time::timeout(PROGRESS, &mut fetched).await {
                return fetched;
            }
            if let Some(done_bytes) = self.done_bytes(&artifact.sha256) {
                tell(Progress { done_bytes, total_bytes: artifact.size_bytes });
            }
        }
    }

    /// The number of bytes fetched so far, while an artifact is being fetched.
    #[must_use]
    pub fn done_bytes(&self, sha256: &Digest) -> Option<u64> {
        let flights = self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner);
        Some(flights.get(sha256)?.upgrade()?.done_bytes.load(Ordering::Relaxed))
    }

    /// Fetches a config: the canonical JSON with this digest.
    ///
    /// # Errors
    /// If it cannot be fetched or has the wrong content.
    pub async fn config(&self, config: &ConfigRef) -> Result<Vec<u8>, ArtifactError> {
        let what = format!("config {}@{}", config.id, config.version);
        self.document(what, "configs", &config.sha256).await
    }

    /// Fetches an artifact's manifest, if it has one: canonical JSON, too.
    ///
    /// # Errors
    /// As [`Self::config`].
    pub async fn manifest(&self, artifact: &ArtifactRef) -> Result<Option<Vec<u8>>, ArtifactError> {
        let Some(sha256) = &artifact.manifest else { return Ok(None) };
        let what = format!("the manifest of artifact {}@{}", artifact.role, artifact.version);
        self.document(what, "manifests", sha256).await.map(Some)
    }

    /// Fetches a version of a secret, sealed to this host.
    ///
    /// # Errors
    /// If it cannot be fetched, or is no such document.
    pub async fn secret(&self, realm: &Name, secret: &SecretRef) -> Result<SealedSecret, ArtifactError> {
        let what = format!("secret {realm}/{secret}");
        let path = format!("secrets/{realm}/{}/{}", secret.name, secret.version);
        let content = read_whole(&what, self.get(&what, &path, None).await?, CONFIG_MAX_BYTES).await?;
        serde_json::from_slice(&content)
            .map_err(|error| ArtifactError::Transport { what: what.clone(), source: error.into() })
    }

    async fn document(&self, what: String, kind: &str, sha256: &Digest) -> Result<Vec<u8>, ArtifactError> {
        let content =
            read_whole(&what, self.get(&what, &format!("{kind}/{sha256}"), None).await?, CONFIG_MAX_BYTES).await?;
        let found = Digest::of(&content);
        if found == *sha256 { Ok(content) } else { Err(ArtifactError::WrongHash { what, found }) }
    }

    /// Deletes artifacts that no unit has needed for a day, and partial downloads that were not continued.
    ///
    /// # Errors
    /// If the folder cannot be read or a file cannot be deleted.
    pub fn sweep(&self, needed: &BTreeSet<Digest>, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(&self.shared.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let is_partial = name.ends_with(PARTIAL_SUFFIX);
            let Ok(digest) = name.trim_end_matches(PARTIAL_SUFFIX).parse::<Digest>() else { continue };
            if !is_partial && needed.contains(&digest) {
                // Its time of last use, so that it is kept for another day.
                self.shared.installed.set_modified(&entry.path(), now)?;
                continue;
            }
            if now.duration_since(entry.metadata()?.modified()?).unwrap_or_default() > UNUSED_KEPT {
                tracing::info!(artifact = digest.short(), is_partial, "an unused artifact is deleted");
                fs::remove_file(entry.path())?;
            }
        }
        self.shared.installed.forget_missing();
        Ok(())
    }

    /// Marks artifacts as needed, so that [`Self::sweep`] keeps them for another day.
    ///
    /// # Errors
    /// If a file's time cannot be set.
    pub fn keep<'a>(&self, needed: impl Iterator<Item = &'a Digest>, now: SystemTime) -> io::Result<()> {
        for sha256 in needed {
            match self.shared.installed.set_modified(&self.path(sha256), now) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn flight(&self, sha256: &Digest) -> Arc<ArtifactFetch> {
        let mut flights = self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if let Some(flight) = flights.get(sha256).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::<ArtifactFetch>::default();
        flights.insert(sha256.clone(), Arc::downgrade(&flight));
        flight
    }

    /// Requests content from the console; of what its hash names, from an offset on.
    async fn get(
        &self,
        what: &str,
        path: &str,
        from: Option<(&Digest, u64)>,
    ) -> Result<reqwest::Response, ArtifactError> {
        let identity = self.shared.identity.borrow().clone();
        let tls = identity.tls().map_err(|error| ArtifactError::Client(error.into()))?;
        let client = http::direct(tls)
            .https_only(true)
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .build()
            .map_err(|error| ArtifactError::Client(error.into()))?;
        let bases = identity.console_urls();
        let mut sent = None;
        for base in bases {
            let url = Url::parse(&format!("{}/v1/{path}", base.trim_end_matches('/')));
            let mut request = client.get(url.map_err(|error| ArtifactError::Client(error.into()))?);
            if let Some((sha256, offset_bytes)) = from.filter(|(_, offset_bytes)| *offset_bytes > 0) {
                // The name is the hash, so the content cannot have changed.
                request =
                    request.header(RANGE, format!("bytes={offset_bytes}-")).header(IF_RANGE, format!("\"{sha256}\""));
            }
            match request.send().await {
                // What the usual address says is what an operator wants to know.
                Err(error) if error.is_connect() => drop(sent.get_or_insert(Err(error))),
                answered => {
                    sent = Some(answered);
                    break;
                }
            }
        }
        let Some(sent) = sent else {
            return Err(ArtifactError::Client("the address of the console is unknown".into()));
        };
        let response = sent.map_err(transport(what))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        Err(ArtifactError::Status { what: what.to_owned(), status, said: problem(what, response).await })
    }

    async fn transfer(
        &self,
        artifact: &ArtifactRef,
        path: &Path,
        done_bytes: &Arc<AtomicU64>,
        alone: OwnedMutexGuard<()>,
    ) -> Result<(), ArtifactError> {
        let what = format!("artifact {}@{}", artifact.role, artifact.version);
        let partial = path.with_extension(&PARTIAL_SUFFIX[1..]);
        let begun_bytes = fs::metadata(&partial).map_or(0, |metadata| metadata.len());
        let (chunks, queue) = mpsc::channel(CHUNKS_MAX);
        let receiving = PartialArtifact {
            what: what.clone(),
            artifact: artifact.clone(),
            partial: partial.clone(),
            path: path.to_owned(),
            begun_bytes,
            done_bytes: Arc::clone(done_bytes),
        };
        if begun_bytes == artifact.size_bytes && begun_bytes > 0 {
            // An earlier agent fetched all of it and ended before it was installed: only its hash is to be checked.
            drop(chunks);
            return write(receiving, queue, alone).await;
        }
        let from = format!("artifacts/{}", artifact.sha256);
        let response = match self.get(&what, &from, Some((&artifact.sha256, begun_bytes))).await {
            // The partial file is as long as the whole, or longer: it cannot be right.
            Err(ArtifactError::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) if begun_bytes > 0 => {
                fs::remove_file(&partial).map_err(write_error(&what, &partial))?;
                self.get(&what, &from, None).await?
            }
            other => other?,
        };
        let begun_bytes = if continues_at(&response, begun_bytes) { begun_bytes } else { 0 };
        let writer = write(PartialArtifact { begun_bytes, ..receiving }, queue, alone);
        let feed = self.feed(response, chunks);
        // The writer's result decides.
        tokio::join!(feed, writer).1
    }

    /// Passes received chunks to the writer, within the rate limit.
    async fn feed(&self, mut response: reqwest::Response, chunks: mpsc::Sender<Result<Bytes, reqwest::Error>>) {
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    self.shared.pace.wait_for(chunk.len()).await;
                    if chunks.send(Ok(chunk)).await.is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // The writer keeps what it has, and returns the error.
                    let _ = chunks.send(Err(error)).await;
                    break;
                }
            }
        }
    }
}

/// Runs a writer on its own thread. If this future is dropped, the writer writes what it was given and ends; only then
/// may another begin.
async fn write(
    receiving: PartialArtifact,
    queue: mpsc::Receiver<Result<Bytes, reqwest::Error>>,
    alone: OwnedMutexGuard<()>,
) -> Result<(), ArtifactError> {
    let writer = tokio::task::spawn_blocking(move || {
        let _alone = alone;
        receiving.write(queue)
    });
    writer.await.map_err(|error| ArtifactError::Client(error.into()))?
}

/// The most that is read of an answer that is no content.
const PROBLEM_MAX_BYTES: usize = 8 * 1024;

/// The console's own words in an answer that is no content, if it has such.
async fn problem(what: &str, response: reqwest::Response) -> Option<Diagnostic> {
    let answer = read_whole(what, response, PROBLEM_MAX_BYTES).await.ok()?;
    serde_json::from_slice(&answer).ok().map(|Problem { diagnostic, .. }| diagnostic)
}

/// Whether a response continues from the offset.
fn continues_at(response: &reqwest::Response, offset_bytes: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {offset_bytes}-")))
}
