//! Artifacts and configurations: getting them from the console, checked, once.
//!
//! An artifact is known by the SHA-256 of its bytes and lies in `<data>/artifacts/<sha256>`, read-only and
//! executable. It is written to a partial file beside, hashed on the way, compared, synced and renamed; so a
//! file that has that name has that content. What an interrupted transfer has brought is kept for the next
//! try of the same life of the agent, which asks the server for the rest (`Range`).
//!
//! One call is one try: what to do about a failure, and when, is the planner's to say
//! ([`ArtifactError::may_heal`]).
//!
//! **Invariant: nothing is installed that was not hashed**, and nothing more is written than the size that
//! was announced.
//!
//! **Invariant: one digest is fetched once**, however many units wait for it.
//!
//! The agent's memory is dear, so there is no HTTP client unless something is being fetched.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use muster_topics::{
    name::Digest,
    unit::{ArtifactRef, ConfigRef},
};
use reqwest::{
    StatusCode, Url,
    header::{CONTENT_RANGE, RANGE},
};
use ring::digest::{Context, SHA256};
use tokio::sync::{Semaphore, mpsc, watch};

use super::join::Identity;
use crate::files::sync_folder;

#[cfg(test)]
#[cfg(feature = "console")]
mod tests;

/// The longest silence of a server in the middle of something.
const SILENCE_MAX: Duration = Duration::from_secs(30);

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

/// Readable and executable by all, writable by nobody.
const INSTALLED_MODE: u32 = 0o555;

const PARTIAL_SUFFIX: &str = ".part";

/// Why something could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The connection failed, or the server sent less than it should.
    #[error("{what} cannot be fetched from the console: {source}")]
    Transport {
        /// What was to be fetched.
        what: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server had another answer than the content.
    #[error("{what} cannot be fetched: the console answers {status}{}", hint(*.status))]
    Status {
        /// What was to be fetched.
        what: String,
        /// The answer.
        status: StatusCode,
    },
    /// What came has not the SHA-256 that it should have.
    #[error(
        "{what} is not what it should be: its SHA-256 is {found}. It was not installed. hint: add it to the console again"
    )]
    WrongHash {
        /// What was to be fetched.
        what: String,
        /// What came.
        found: Digest,
        /// Whether a part of it came from an earlier transfer, so that a whole one may do better.
        resumed: bool,
    },
    /// What came is longer than it should be.
    #[error(
        "{what} is not what it should be: it is longer than its {size_bytes} bytes. It was not installed. hint: add it to the console again"
    )]
    TooLong {
        /// What was to be fetched.
        what: String,
        /// How long it should be.
        size_bytes: u64,
    },
    /// It could not be written down.
    #[error("{what} cannot be written to {path}: {source}{}", disk_hint(.source))]
    Write {
        /// What was fetched.
        what: String,
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The agent's own certificate or the console's address cannot be used.
    #[error("the console cannot be asked for anything: {0}")]
    Client(Box<dyn std::error::Error + Send + Sync>),
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => ". hint: it is not there (any more); add it to the console",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ". hint: is this host still a member of the fleet?",
        _ => "",
    }
}

fn disk_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ". hint: make room on this host's disk",
        _ => "",
    }
}

impl ArtifactError {
    /// Whether the same try may do better later, without anybody's help.
    #[must_use]
    pub fn may_heal(&self) -> bool {
        match self {
            // A full disk may have room again, whoever sees to it.
            Self::Transport { .. } | Self::Write { .. } | Self::Client(_) => true,
            Self::Status { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            Self::WrongHash { resumed, .. } => *resumed,
            Self::TooLong { .. } => false,
        }
    }
}

/// All artifacts of this host; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Artifacts {
    shared: Arc<Shared>,
}

struct Shared {
    folder: PathBuf,
    identity: watch::Receiver<Arc<Identity>>,
    /// One lock per digest that somebody is waiting for.
    flights: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    transfers: Semaphore,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The identity has the host's key in it.
        f.debug_struct("Artifacts").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Artifacts {
    /// The artifacts in `<data_dir>/artifacts`. What transfers of an earlier life left there is deleted.
    ///
    /// # Errors
    /// If the folder cannot be made or read.
    pub fn open(data_dir: &Path, identity: watch::Receiver<Arc<Identity>>) -> io::Result<Self> {
        let folder = data_dir.join("artifacts");
        // Yunos may run as other users, who must get at their program; they need not see what else there is.
        fs::DirBuilder::new().recursive(true).mode(0o711).create(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().ends_with(PARTIAL_SUFFIX.as_bytes()) {
                fs::remove_file(entry.path())?;
            }
        }
        let (flights, transfers) = (Mutex::default(), Semaphore::new(TRANSFERS_MAX));
        Ok(Self { shared: Arc::new(Shared { folder, identity, flights, transfers }) })
    }

    /// Where an artifact is, once it is installed.
    #[must_use]
    pub fn path(&self, sha256: &Digest) -> PathBuf {
        self.shared.folder.join(sha256.as_str())
    }

    /// Has an artifact installed, and says where. One that is there already is not fetched again.
    ///
    /// # Errors
    /// If it cannot be fetched, is not what it should be, or cannot be written. Nothing is installed then.
    pub async fn fetch(&self, artifact: &ArtifactRef) -> Result<PathBuf, ArtifactError> {
        let path = self.path(&artifact.sha256);
        if path.exists() {
            return Ok(path);
        }
        let flight = self.flight(&artifact.sha256);
        let _alone = flight.lock().await;
        if !path.exists() {
            let _permit = self.shared.transfers.acquire().await.map_err(|error| ArtifactError::Client(error.into()))?;
            self.transfer(artifact, &path).await?;
        }
        Ok(path)
    }

    /// Fetches a configuration: the canonical JSON that has its digest.
    ///
    /// # Errors
    /// If it cannot be fetched or is not what it should be.
    pub async fn config(&self, config: &ConfigRef) -> Result<Vec<u8>, ArtifactError> {
        let what = format!("config {}@{}", config.id, config.version);
        let mut response = self.get(&what, "configs", &config.sha256, 0).await?;
        let mut content = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport(&what))? {
            if content.len() + chunk.len() > CONFIG_MAX_BYTES {
                return Err(ArtifactError::TooLong { what, size_bytes: CONFIG_MAX_BYTES as u64 });
            }
            content.extend_from_slice(&chunk);
        }
        let found = Digest::of(&content);
        if found == config.sha256 { Ok(content) } else { Err(ArtifactError::WrongHash { what, found, resumed: false }) }
    }

    /// Deletes what no unit has needed for a day.
    ///
    /// # Errors
    /// If the folder cannot be read or a file not deleted.
    pub fn sweep(&self, needed: &BTreeSet<Digest>, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(&self.shared.folder)? {
            let entry = entry?;
            let digest = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok());
            let Some(digest) = digest else { continue };
            if needed.contains(&digest) {
                // The time of its last use, so that it stays for a while after that.
                File::open(entry.path())?.set_modified(now)?;
                continue;
            }
            if now.duration_since(entry.metadata()?.modified()?).unwrap_or_default() > UNUSED_KEPT {
                tracing::info!(artifact = digest.short(), "an artifact that no unit needs is deleted");
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn flight(&self, sha256: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut flights = self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if let Some(flight) = flights.get(sha256).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::default();
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
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .build()
            .map_err(|error| ArtifactError::Client(error.into()))?;
        let base = identity.membership.console_url.trim_end_matches('/');
        let url = Url::parse(&format!("{base}/v1/{kind}/{sha256}"));
        let mut request = client.get(url.map_err(|error| ArtifactError::Client(error.into()))?);
        if offset_bytes > 0 {
            request = request.header(RANGE, format!("bytes={offset_bytes}-"));
        }
        let response = request.send().await.map_err(transport(what))?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(ArtifactError::Status { what: what.to_owned(), status }) }
    }

    async fn transfer(&self, artifact: &ArtifactRef, path: &Path) -> Result<(), ArtifactError> {
        let what = format!("artifact {}@{}", artifact.role, artifact.version);
        let partial = path.with_extension(&PARTIAL_SUFFIX[1..]);
        let begun_bytes = fs::metadata(&partial).map_or(0, |metadata| metadata.len());
        let mut response = match self.get(&what, "artifacts", &artifact.sha256, begun_bytes).await {
            // What is there is as long as the whole, or longer: it cannot be right.
            Err(ArtifactError::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) if begun_bytes > 0 => {
                fs::remove_file(&partial).map_err(write_error(&what, &partial))?;
                self.get(&what, "artifacts", &artifact.sha256, 0).await?
            }
            other => other?,
        };
        let begun_bytes = if continues_at(&response, begun_bytes) { begun_bytes } else { 0 };
        let (chunks, queue) = mpsc::channel(CHUNKS_MAX);
        let receiving = Receiving { what, artifact: artifact.clone(), partial, path: path.to_owned(), begun_bytes };
        let writer = tokio::task::spawn_blocking(move || receiving.write(queue));
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
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
        drop(chunks);
        writer.await.map_err(|error| ArtifactError::Client(error.into()))?
    }
}

/// Whether an answer is the rest of something, from where it was left.
fn continues_at(response: &reqwest::Response, offset_bytes: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {offset_bytes}-")))
}

/// An artifact on its way to the disk.
struct Receiving {
    what: String,
    artifact: ArtifactRef,
    partial: PathBuf,
    path: PathBuf,
    /// How much of it an earlier transfer has brought; what comes now is the rest.
    begun_bytes: u64,
}

impl Receiving {
    /// Writes and hashes what comes, and installs it if it is right. Runs on a thread of its own, for all
    /// of this takes long where disks are slow.
    fn write<B: AsRef<[u8]>>(self, mut queue: mpsc::Receiver<Result<B, reqwest::Error>>) -> Result<(), ArtifactError> {
        let write = |error| write_error(&self.what, &self.partial)(error);
        let mut hash = Context::new(&SHA256);
        let mut file = self.open(&mut hash).map_err(write)?;
        let mut len_bytes = self.begun_bytes;
        while let Some(chunk) = queue.blocking_recv() {
            let chunk = chunk.map_err(transport(&self.what))?;
            let chunk = chunk.as_ref();
            len_bytes += chunk.len() as u64;
            if len_bytes > self.artifact.size_bytes {
                self.discard();
                return Err(ArtifactError::TooLong { what: self.what, size_bytes: self.artifact.size_bytes });
            }
            hash.update(chunk);
            if let Err(error) = file.write_all(chunk) {
                // A full disk is the last to keep a half of something on.
                self.discard();
                return Err(write(error));
            }
        }
        if len_bytes < self.artifact.size_bytes {
            let source = format!("it ended after {len_bytes} of {} bytes", self.artifact.size_bytes).into();
            return Err(ArtifactError::Transport { what: self.what, source });
        }
        let found = Digest::from_ring(hash.finish());
        if found != self.artifact.sha256 {
            self.discard();
            return Err(ArtifactError::WrongHash { what: self.what, found, resumed: self.begun_bytes > 0 });
        }
        self.install(file).inspect_err(|_| self.discard()).map_err(write)
    }

    /// The partial file, at the end of what is there already, which has been hashed.
    fn open(&self, hash: &mut Context) -> io::Result<File> {
        if self.begun_bytes == 0 {
            self.discard();
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.partial)?;
        let mut begun = (&mut file).take(self.begun_bytes);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match begun.read(&mut buffer)? {
                0 => return Ok(file),
                count => hash.update(&buffer[..count]),
            }
        }
    }

    fn install(&self, file: File) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(INSTALLED_MODE))?;
        file.sync_all()?;
        // Closed before it is executed: a file that is open for writing is busy.
        drop(file);
        fs::rename(&self.partial, &self.path)?;
        sync_folder(self.path.parent().unwrap_or(Path::new(".")))
    }

    fn discard(&self) {
        let _ = fs::remove_file(&self.partial);
    }
}

fn transport(what: &str) -> impl Fn(reqwest::Error) -> ArtifactError {
    let what = what.to_owned();
    move |error| {
        // reqwest's own words name the address and leave the reason to their sources.
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        ArtifactError::Transport { what: what.clone(), source: text.into() }
    }
}

fn write_error(what: &str, path: &Path) -> impl Fn(io::Error) -> ArtifactError {
    let (what, path) = (what.to_owned(), path.to_owned());
    move |source| ArtifactError::Write { what: what.clone(), path: path.clone(), source }
}
