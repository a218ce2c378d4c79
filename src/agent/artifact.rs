//! Downloads artifacts and configs from the console, verifies them and stores each once.
//!
//! An artifact is identified by the SHA-256 of its bytes and stored in `<data>/artifacts/<sha256>`, read-only and
//! executable. The download goes to a partial file beside it, is hashed on the way, compared, synced and renamed, so a
//! file with that name always has that content. A partial file is kept for the next attempt, also after a restart of the
//! agent, which then requests the rest (`Range`, `If-Range`). It is deleted after a day without an attempt.
//!
//! Modules: [`error`], `receive` (network to disk), `pace` (rate limit).
//!
//! One call is one attempt. The planner decides whether and when to retry ([`ArtifactError::may_heal`]).
//!
//! **Invariant: nothing is installed that was not hashed**, and no more is written than the size that
//! was announced.
//!
//! **Invariant: one digest is downloaded once**, however many units wait for it.
//!
//! To save memory, the HTTP client exists only during a download.

mod error;
mod pace;
mod receive;

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use muster_topics::{
    name::Digest,
    unit::{ArtifactRef, ConfigRef, Progress},
};
use reqwest::{
    StatusCode, Url,
    header::{CONTENT_RANGE, IF_RANGE, RANGE},
};
use tokio::sync::{OwnedMutexGuard, Semaphore, mpsc, watch};

pub use self::error::ArtifactError;
use muster_base::files::{PASSABLE_FOLDER, make_folder};
use muster_net::http;

use self::{
    error::{transport, write_error},
    pace::TransferPace,
    receive::PartialArtifact,
};
use super::join::MemberIdentity;

#[cfg(test)]
mod tests;

/// The longest silence of a server in the middle of something.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often it is told how far a transfer is: each time is a message, and a person looks no more often.
const PROGRESS: Duration = Duration::from_secs(2);

/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The largest configuration: it is held in memory while it is checked.
pub const CONFIG_MAX_BYTES: usize = 1024 * 1024;

/// Transfers at once. More would only share the same line, and each has its buffers.
const TRANSFERS_MAX: usize = 3;

/// Chunks between the network and the disk: enough for the one to go on while the other works. A chunk is
/// what TLS delivers at once, at most 16 KiB.
const CHUNKS_MAX: usize = 16;

/// How long an artifact stays after the last unit that needs it is gone: to go back to yesterday's version
/// should be quick.
const UNUSED_KEPT: Duration = Duration::from_secs(24 * 3600);

/// What is read at a time of an artifact that is looked at.
const PIECE_BYTES: usize = 64 * 1024;

const PARTIAL_SUFFIX: &str = ".part";

/// Installs a program of this agent's own making below `data_dir`, as if it had been fetched, and says what it is known
/// by there.
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

/// The SHA-256 of a file.
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

/// All artifacts of this host; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Artifacts {
    shared: Arc<ArtifactState>,
}

struct ArtifactState {
    folder: PathBuf,
    identity: watch::Receiver<Arc<MemberIdentity>>,
    /// How each file was when its content was last seen to be what its name says.
    whole: Mutex<HashMap<Digest, FileStamp>>,
    /// One for each digest that somebody is waiting for.
    flights: Mutex<HashMap<Digest, Weak<ArtifactFetch>>>,
    transfers: Semaphore,
    pace: TransferPace,
}

/// What changes when a file is written to, replaced or touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size_bytes: u64,
    changed: (i64, i64),
}

impl FileStamp {
    fn of(found: &fs::Metadata) -> Self {
        Self { inode: found.ino(), size_bytes: found.len(), changed: (found.ctime(), found.ctime_nsec()) }
    }
}

/// An artifact that is being fetched.
#[derive(Default)]
struct ArtifactFetch {
    /// One fetches it; the others wait.
    alone: Arc<tokio::sync::Mutex<()>>,
    done_bytes: Arc<AtomicU64>,
}

impl std::fmt::Debug for ArtifactState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The identity has the host's key in it.
        f.debug_struct("Artifacts").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Artifacts {
    /// The artifacts in `<data_dir>/artifacts`, fetched at no more than so many bytes a second, if that is said.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn open(
        data_dir: &Path,
        identity: watch::Receiver<Arc<MemberIdentity>>,
        rate_bytes_per_s: Option<u64>,
    ) -> io::Result<Self> {
        let folder = data_dir.join("artifacts");
        // Yunos may run as other users, who must get at their program; they need not see what else there is.
        make_folder(&folder, PASSABLE_FOLDER)?;
        let (whole, flights, transfers) = (Mutex::default(), Mutex::default(), Semaphore::new(TRANSFERS_MAX));
        let pace = TransferPace::new(rate_bytes_per_s);
        Ok(Self { shared: Arc::new(ArtifactState { folder, identity, whole, flights, transfers, pace }) })
    }

    /// Where an artifact is, once it is installed.
    #[must_use]
    pub fn path(&self, sha256: &Digest) -> PathBuf {
        self.shared.folder.join(sha256.as_str())
    }

    /// Has an artifact installed, and says where. One that is there already, and whole, is not fetched again.
    ///
    /// # Errors
    /// If it cannot be fetched, is not what it should be, or cannot be written. Nothing is installed then.
    pub async fn fetch(&self, artifact: &ArtifactRef) -> Result<PathBuf, ArtifactError> {
        let path = self.path(&artifact.sha256);
        if self.is_known_to_be_whole(artifact, &path) {
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

    /// Whether the file is as it was when its content was looked at.
    fn is_known_to_be_whole(&self, artifact: &ArtifactRef, path: &Path) -> bool {
        let whole = self.shared.whole.lock().unwrap_or_else(PoisonError::into_inner);
        fs::metadata(path).is_ok_and(|found| whole.get(&artifact.sha256) == Some(&FileStamp::of(&found)))
    }

    /// Whether the file is there, with the content that its name says. One that has another is removed: a disk forgets, and
    /// nobody wants to run what it has made up.
    async fn is_whole(&self, artifact: &ArtifactRef, path: &Path) -> Result<bool, ArtifactError> {
        if self.is_known_to_be_whole(artifact, path) {
            return Ok(true);
        }
        let what = format!("artifact {}@{}", artifact.role, artifact.version);
        let (at, wanted) = (path.to_owned(), artifact.clone());
        let looked = tokio::task::spawn_blocking(move || -> io::Result<Option<FileStamp>> {
            let Ok(found) = fs::metadata(&at) else { return Ok(None) };
            let is_whole = found.is_file() && found.len() == wanted.size_bytes && digest_of(&at)? == wanted.sha256;
            if is_whole {
                return Ok(Some(FileStamp::of(&found)));
            }
            tracing::error!(
                file = %at.display(), "an artifact that was installed is damaged; it is removed, and fetched again. hint: check this host's disk"
            );
            if found.is_dir() { fs::remove_dir_all(&at) } else { fs::remove_file(&at) }?;
            Ok(None)
        });
        let looked = looked.await.map_err(io::Error::other).and_then(|looked| looked);
        let stamp = looked.map_err(write_error(&what, path))?;
        let mut whole = self.shared.whole.lock().unwrap_or_else(PoisonError::into_inner);
        whole.remove(&artifact.sha256);
        whole.extend(stamp.map(|stamp| (artifact.sha256.clone(), stamp)));
        Ok(stamp.is_some())
    }

    /// As [`Self::fetch`], and tells now and then how far that is.
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

    /// How many bytes of an artifact are there, while somebody fetches it.
    #[must_use]
    pub fn done_bytes(&self, sha256: &Digest) -> Option<u64> {
        let flights = self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner);
        Some(flights.get(sha256)?.upgrade()?.done_bytes.load(Ordering::Relaxed))
    }

    /// Fetches a configuration: the canonical JSON that has its digest.
    ///
    /// # Errors
    /// If it cannot be fetched or is not what it should be.
    pub async fn config(&self, config: &ConfigRef) -> Result<Vec<u8>, ArtifactError> {
        let what = format!("config {}@{}", config.id, config.version);
        self.document(what, "configs", &config.sha256).await
    }

    /// Fetches an artifact's manifest, if it has one: canonical JSON as well.
    ///
    /// # Errors
    /// As [`Self::config`].
    pub async fn manifest(&self, artifact: &ArtifactRef) -> Result<Option<Vec<u8>>, ArtifactError> {
        let Some(sha256) = &artifact.manifest else { return Ok(None) };
        let what = format!("the manifest of artifact {}@{}", artifact.role, artifact.version);
        self.document(what, "manifests", sha256).await.map(Some)
    }

    async fn document(&self, what: String, kind: &str, sha256: &Digest) -> Result<Vec<u8>, ArtifactError> {
        let mut response = self.get(&what, kind, sha256, 0).await?;
        let mut content = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport(&what))? {
            if content.len() + chunk.len() > CONFIG_MAX_BYTES {
                return Err(ArtifactError::TooLong { what, size_bytes: CONFIG_MAX_BYTES as u64 });
            }
            content.extend_from_slice(&chunk);
        }
        let found = Digest::of(&content);
        if found == *sha256 { Ok(content) } else { Err(ArtifactError::WrongHash { what, found, resumed: false }) }
    }

    /// Deletes what no unit has needed for a day, and what has come of one that nobody has asked for since.
    ///
    /// # Errors
    /// If the folder cannot be read or a file not deleted.
    pub fn sweep(&self, needed: &BTreeSet<Digest>, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(&self.shared.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let is_partial = name.ends_with(PARTIAL_SUFFIX);
            let Ok(digest) = name.trim_end_matches(PARTIAL_SUFFIX).parse::<Digest>() else { continue };
            if !is_partial && needed.contains(&digest) {
                // The time of its last use, so that it stays for a while after that.
                File::open(entry.path())?.set_modified(now)?;
                continue;
            }
            if now.duration_since(entry.metadata()?.modified()?).unwrap_or_default() > UNUSED_KEPT {
                tracing::info!(artifact = digest.short(), is_partial, "an artifact that no unit needs is deleted");
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Notes that these are needed, so that [`Self::sweep`] leaves them for another day.
    ///
    /// # Errors
    /// If a file cannot be touched.
    pub fn keep<'a>(&self, needed: impl Iterator<Item = &'a Digest>, now: SystemTime) -> io::Result<()> {
        for sha256 in needed {
            match File::open(self.path(sha256)).and_then(|file| file.set_modified(now)) {
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

    /// Asks the console for something, from an offset on.
    async fn get(
        &self,
        what: &str,
        kind: &str,
        sha256: &Digest,
        offset_bytes: u64,
    ) -> Result<reqwest::Response, ArtifactError> {
        let identity = self.shared.identity.borrow().clone();
        let tls = identity.tls().map_err(|error| ArtifactError::Client(error.into()))?;
        let client = http::direct(tls)
            .https_only(true)
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .build()
            .map_err(|error| ArtifactError::Client(error.into()))?;
        let base = identity.membership.console_url.trim_end_matches('/');
        let url = Url::parse(&format!("{base}/v1/{kind}/{sha256}"));
        let mut request = client.get(url.map_err(|error| ArtifactError::Client(error.into()))?);
        if offset_bytes > 0 {
            // Only if it is what it was: its name is its hash.
            request = request.header(RANGE, format!("bytes={offset_bytes}-")).header(IF_RANGE, format!("\"{sha256}\""));
        }
        let response = request.send().await.map_err(transport(what))?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(ArtifactError::Status { what: what.to_owned(), status }) }
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
            // An earlier life ended before it could be installed: it only has to be hashed.
            drop(chunks);
            return write(receiving, queue, alone).await;
        }
        let response = match self.get(&what, "artifacts", &artifact.sha256, begun_bytes).await {
            // What is there is as long as the whole, or longer: it cannot be right.
            Err(ArtifactError::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) if begun_bytes > 0 => {
                fs::remove_file(&partial).map_err(write_error(&what, &partial))?;
                self.get(&what, "artifacts", &artifact.sha256, 0).await?
            }
            other => other?,
        };
        let begun_bytes = if continues_at(&response, begun_bytes) { begun_bytes } else { 0 };
        let writer = write(PartialArtifact { begun_bytes, ..receiving }, queue, alone);
        let feed = self.feed(response, chunks);
        // What the writer has to say comes last, and counts.
        tokio::join!(feed, writer).1
    }

    /// Gives a writer what comes, no faster than is allowed.
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
                    // The writer keeps what it has, and gives the reason back.
                    let _ = chunks.send(Err(error)).await;
                    break;
                }
            }
        }
    }
}

/// Runs a writer on a thread of its own. To drop this leaves it to write what it has been given, and to end; only
/// then may another begin.
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

/// Whether an answer is the rest of something, from where it was left.
fn continues_at(response: &reqwest::Response, offset_bytes: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {offset_bytes}-")))
}
