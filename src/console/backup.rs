//! Backups: one encrypted file with all that a console is, written while it runs.
//!
//! The ledger is copied first, in one read transaction (`VACUUM INTO`), which no writer waits for; then the files are read
//! beside which the console goes on. `authority/` is read after the ledger, and its keys must not have changed meanwhile:
//! so a key that the ledger needs is in the backup. The register is newer than the copy of the ledger, which is as if
//! the ledger were older, and is merged.
//!
//! A backup is streamed to an operator, or written to the folder for backups by [`schedule`].
//!
//! **Invariant: the console keeps no key that opens its backups**, and encrypts to those of its configuration alone:
//! whoever may only use the API gets nothing out of it.

pub(super) mod schedule;

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use bytes::Bytes;
use muster_api::{Backup, BackupFailure, BackupKind, BackupPart, Backups};
use muster_backup::{
    BackupError,
    archive::{self, BackupWriter, Manifest, Part},
    key::PublicKey,
};
use muster_base::{
    clock::{now_ms, rfc3339_ms},
    files,
    form::FORM,
    mount,
};
use muster_sqlite::room;
use muster_topics::{diagnostic::Diagnostic, name::Name};
use nix::sys::statvfs::statvfs;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::{
    content,
    error::Error,
    operator,
    page_change::PageChange,
    start::STORE,
    state::{Console, ConsoleState},
    store,
};

/// The folder for copies of databases, in the console's folder.
pub(super) const WORK: &str = "backup.tmp";
/// The store of measurements.
const SERIES: &str = "series.db";
/// Room that stays free beside the copies of databases.
const ROOM_BYTES: u64 = 64 << 20;
/// The largest file of the authority's folder: the register of a hundred thousand hosts.
const AUTHORITY_FILE_MAX_BYTES: u64 = 64 << 20;
/// How often the authority's folder is read, until its keys have not changed while the ledger was copied.
const TRIES: usize = 5;
/// How many pieces of a backup wait for a reader: each has 64 KiB.
const PIECES: usize = 8;
/// How long a copy waits for a lock of the database.
const BUSY: Duration = Duration::from_secs(30);
/// The number of backups that are listed and remembered.
const LISTED: u32 = 100;

/// The state of backups.
#[derive(Debug, Default)]
pub(super) struct BackupState {
    /// Held while one is made.
    running: Arc<tokio::sync::Mutex<()>>,
    /// The last failure, unless a backup has succeeded since.
    failed: Mutex<Option<BackupFailure>>,
}

impl BackupState {
    fn note(&self, failed: Option<BackupFailure>) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }

    pub(super) fn failed(&self) -> Option<BackupFailure> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is to be in a backup, beside what always is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BackupChoice {
    pub(super) artifacts: bool,
    pub(super) series: bool,
}

/// A backup on its way to an operator.
#[derive(Debug)]
pub(super) struct BackupStream {
    /// The name for its file.
    pub(super) name: String,
    /// The bytes of all that is in it.
    pub(super) bytes: u64,
    pub(super) pieces: mpsc::Receiver<io::Result<Bytes>>,
}

impl Console {
    /// Returns how backups are made, and the last ones.
    pub async fn backups(&self) -> Result<Backups, Error> {
        let config = self.shared.current();
        let folder = config.backup_folder();
        let mut backups = store::backup::list(self.shared.store.read(), LISTED).await?;
        for backup in &mut backups {
            let path = folder.join(&backup.name);
            backup.path = (backup.kind == BackupKind::Scheduled && path.is_file()).then(|| path.display().to_string());
        }
        Ok(Backups {
            recipients: config.backup.recipients.iter().map(PublicKey::to_string).collect(),
            every_hours: config.backup.every_hours,
            keep: config.backup.keep,
            dir: folder.display().to_string(),
            last_ms: backups.first().map(|backup| backup.taken_ms),
            failed: self.shared.backups.failed(),
            backups,
        })
    }

    /// Makes a backup, and returns its bytes as they are made.
    pub(super) async fn stream_backup(&self, operator: &Name, choice: BackupChoice) -> Result<BackupStream, Error> {
        self.shared.check_operator(operator).await?;
        let copy = FolderCopy::make(&self.shared, choice).await?;
        let (sender, pieces) = mpsc::channel(PIECES);
        let (name, bytes) = (copy.name(), copy.manifest.bytes());
        let (shared, operator) = (Arc::clone(&self.shared), operator.clone());
        let made = tokio::task::spawn_blocking(move || {
            let out = PieceWriter { sender: sender.clone(), bytes: 0 };
            let written = copy.write(out);
            if let Err(error) = &written {
                // An error on the way can only be shown by closing the connection.
                let _ = sender.blocking_send(Err(io::Error::other(format!("{:#}", error.diagnostic()))));
            }
            written.map(|(out, copy)| (out.bytes, copy))
        });
        tokio::spawn(async move {
            match made.await {
                Ok(Ok((bytes, copy))) => remember(&shared, copy, bytes, BackupKind::Requested, Some(operator)).await,
                Ok(Err(error)) => {
                    let Diagnostic { cause, hint, .. } = error.diagnostic();
                    tracing::error!(error = cause, hint, %operator, "a requested backup failed");
                }
                Err(error) => tracing::error!(%error, "a requested backup failed"),
            }
        });
        Ok(BackupStream { name, bytes, pieces })
    }
}

/// Remembers a backup that is complete.
async fn remember(shared: &ConsoleState, copy: CopyFacts, bytes: u64, kind: BackupKind, operator: Option<Name>) {
    let CopyFacts { name, manifest, hosts } = copy;
    let Ok(id) = operator::new_id() else { return };
    let part = |Part { name, files, bytes }: Part| BackupPart { name, files, bytes };
    let backup = Backup {
        id,
        kind,
        name,
        path: None,
        operator,
        taken_ms: manifest.taken_ms,
        finished_ms: now_ms(),
        bytes,
        hosts,
        parts: manifest.parts.into_iter().map(part).collect(),
    };
    tracing::info!(
        backup = backup.name,
        bytes,
        hosts,
        operator = backup.operator.as_ref().map(Name::as_str),
        "a backup was made"
    );
    shared.backups.note(None);
    let stored = async {
        store::backup::add(shared.store.write(), &backup).await?;
        store::backup::sweep(shared.store.write(), LISTED).await
    };
    if let Err(error) = stored.await {
        tracing::error!(%error, hint = error.hint(), "a backup that was made cannot be recorded");
    }
    shared.changed(PageChange::Alert(None));
}

/// Where the content of a file comes from.
#[derive(Debug, PartialEq)]
enum Content {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// A file that will be in a backup.
#[derive(Debug, PartialEq)]
struct PlannedFile {
    name: String,
    bytes: u64,
    content: Content,
}

/// Removes copies of databases when a backup is over.
#[derive(Debug)]
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn make(folder: &Path) -> io::Result<Self> {
        let path = folder.join(WORK);
        remove_folder(&path)?;
        files::make_folder(&path, files::PRIVATE_FOLDER)?;
        Ok(Self(path))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = remove_folder(&self.0) {
            tracing::error!(%error, path = %self.0.display(), "a copy of the store cannot be removed");
        }
    }
}

/// Removes what a backup that was interrupted has left.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    match mount::remove_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    }
}

/// What is known of a backup beside its content.
#[derive(Debug)]
struct CopyFacts {
    name: String,
    manifest: Manifest,
    hosts: u64,
}

/// A consistent copy of a console's folder: databases and small files are copied, artifacts are immutable.
#[derive(Debug)]
struct FolderCopy {
    manifest: Manifest,
    hosts: u64,
    files: Vec<PlannedFile>,
    recipients: Vec<PublicKey>,
    _work: WorkFolder,
    _running: OwnedMutexGuard<()>,
}

impl FolderCopy {
    async fn make(shared: &ConsoleState, choice: BackupChoice) -> Result<Self, Error> {
        let config = shared.current();
        let folder = config.data_dir.clone();
        let recipients = config.backup.recipients.clone();
        if recipients.is_empty() {
            return Err(Error::of(StatusCode::CONFLICT, "no_recipients", &BackupError::NoRecipient));
        }
        let running = Arc::clone(&shared.backups.running).try_lock_owned().map_err(|_| {
            Error::conflict("backup_running", "another backup is being made")
                .hint("wait until it has finished: `muster backup ls`")
        })?;
        check_room_for_copies(&folder, choice)?;
        let work = WorkFolder::make(&folder).map_err(|error| content::disk("copying the store", &error))?;
        let mut copied = None;
        for _ in 0..TRIES {
            let before = read_authority(&folder)?;
            let store = copy_database(&folder.join(STORE), &work.0.join(STORE)).await?;
            let taken_ms = now_ms();
            let after = read_authority(&folder)?;
            if is_same_authority(&before, &after) {
                copied = Some((store, taken_ms, after));
                break;
            }
            fs::remove_file(work.0.join(STORE)).map_err(|error| content::disk("copying the store", &error))?;
        }
        let (store_file, taken_ms, authority) = copied.ok_or_else(|| {
            Error::conflict("backup_running", "the authority's keys changed during the backup")
                .hint("try again after their rotation")
        })?;
        let mut parts: Vec<(&str, Vec<PlannedFile>)> = vec![("authority", authority), ("store", vec![store_file])];
        let text = toml::to_string(&*config).unwrap_or_default().into_bytes();
        let configuration =
            PlannedFile { name: "console.toml".to_owned(), bytes: text.len() as u64, content: Content::Bytes(text) };
        parts.push(("configuration", vec![configuration]));
        if choice.artifacts {
            let found =
                artifacts(&shared.content.folder).map_err(|error| content::disk("reading artifacts", &error))?;
            parts.push(("artifacts", found));
        }
        if choice.series && folder.join(SERIES).is_file() {
            parts.push(("series", vec![copy_database(&folder.join(SERIES), &work.0.join(SERIES)).await?]));
        }
        let manifest = Manifest {
            format: archive::FORMAT,
            form: FORM,
            muster: env!("CARGO_PKG_VERSION").to_owned(),
            fleet: shared.authority.fingerprint(),
            console: config.id.to_string(),
            taken_ms,
            parts: parts.iter().map(|(name, files)| part(name, files)).collect(),
        };
        let hosts = store::host::count(shared.store.read()).await?.0;
        let files = parts.into_iter().flat_map(|(_, files)| files).collect();
        Ok(Self { manifest, hosts, files, recipients, _work: work, _running: running })
    }

    /// The name for its file: the beginning of the fleet's fingerprint, and the time.
    fn name(&self) -> String {
        let at: String = rfc3339_ms(self.manifest.taken_ms).chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        // Without milliseconds: 20261127T101500Z.
        let at = at.get(..15).unwrap_or(&at);
        format!("muster-{}-{at}Z{}", self.manifest.fleet.short(), archive::SUFFIX)
    }

    /// Writes the backup.
    fn write<W: Write>(self, out: W) -> Result<(W, CopyFacts), BackupError> {
        let mut writer = BackupWriter::new(out, &self.recipients, &self.manifest)?;
        for PlannedFile { name, bytes, content } in &self.files {
            match content {
                Content::Bytes(content) => writer.add(name, *bytes, content.as_slice())?,
                Content::File(path) => {
                    match File::open(path) {
                        Ok(file) => writer.add(name, *bytes, file)?,
                        // An artifact that nothing needs was removed meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::NotFound && name.starts_with("artifacts/") => {}
                        Err(error) => return Err(BackupError::file(path)(error)),
                    }
                }
            }
        }
        let (out, _) = writer.finish()?;
        let name = self.name();
        Ok((out, CopyFacts { name, manifest: self.manifest, hosts: self.hosts }))
    }
}

fn part(name: &str, files: &[PlannedFile]) -> Part {
    let bytes = files.iter().map(|file| file.bytes).sum();
    Part { name: name.to_owned(), files: files.len() as u64, bytes }
}

/// Refuses if the disk has no room for the copies of databases.
fn check_room_for_copies(folder: &Path, choice: BackupChoice) -> Result<(), Error> {
    let size = |name: &str| fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    let needed = size(STORE) + if choice.series { size(SERIES) } else { 0 } + ROOM_BYTES;
    let Ok(found) = statvfs(folder) else { return Ok(()) };
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (muster_topics::size::print(needed), muster_topics::size::print(free));
    let message =
        format!("a backup copies the console's databases first, for which {needed} are needed, and {free} are free");
    Err(Error::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message).hint(format!(
        "of the console's folder {}: {}",
        folder.display(),
        room::HINT
    )))
}

/// Copies a database as it is at one time. Who writes to it meanwhile does not wait.
async fn copy_database(from: &Path, to: &Path) -> Result<PlannedFile, Error> {
    let failed = |error: sqlx::Error| match room::is_missing(&error) {
        true => Error::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", format!("the disk is full: {error}"))
            .hint(room::HINT),
        false => Error::internal("copying a database", &error),
    };
    files::make_private(to).map_err(|error| content::disk("copying a database", &error))?;
    let options = SqliteConnectOptions::new().filename(from).read_only(true).busy_timeout(BUSY);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(failed)?;
    // Unchecked: it concerns the file, and no table.
    let copied = sqlx::query("VACUUM INTO $1").bind(to.display().to_string()).execute(&mut connection).await;
    let _ = connection.close().await;
    copied.map_err(failed)?;
    let bytes = fs::metadata(to).map_err(|error| content::disk("copying a database", &error))?.len();
    let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(PlannedFile { name, bytes, content: Content::File(to.to_owned()) })
}

/// Reads every file of the authority's folder, and of the folders in it.
fn read_authority(folder: &Path) -> Result<Vec<PlannedFile>, Error> {
    let mut found = Vec::new();
    let authority = folder.join("authority");
    read_folder(&authority, "authority", &mut found)
        .map_err(|error| Error::internal("reading the authority's folder", &error))?;
    found.sort_by(|one: &PlannedFile, other| one.name.cmp(&other.name));
    Ok(found)
}

fn read_folder(folder: &Path, prefix: &str, found: &mut Vec<PlannedFile>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        // Files that are being written, and the lock.
        if name.starts_with('.') || name == "lock" || name.contains(".damaged-") {
            continue;
        }
        let name = format!("{prefix}/{name}");
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() {
            // The archive has names of three parts; this ends a loop of links.
            if name.matches('/').count() > 3 {
                return Err(io::Error::other(format!("{} is too deep for a backup", path.display())));
            }
            read_folder(&path, &name, found)?;
        } else if metadata.len() > AUTHORITY_FILE_MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{} is too long", path.display())));
        } else if metadata.is_file() {
            let content = fs::read(&path)?;
            found.push(PlannedFile { name, bytes: content.len() as u64, content: Content::Bytes(content) });
        }
    }
    Ok(())
}

/// Whether the keys are the same. The register and its mark change all the time.
fn is_same_authority(before: &[PlannedFile], after: &[PlannedFile]) -> bool {
    let is_key = |file: &&PlannedFile| !matches!(&*file.name, "authority/register.json" | "authority/mark.json");
    before.iter().filter(is_key).eq(after.iter().filter(is_key))
}

/// Lists the artifacts.
fn artifacts(folder: &Path) -> io::Result<Vec<PlannedFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_file() && name.parse::<muster_topics::name::Digest>().is_ok() {
            let name = format!("artifacts/{name}");
            found.push(PlannedFile { name, bytes: metadata.len(), content: Content::File(entry.path()) });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Passes on what is written to it in pieces.
struct PieceWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    bytes: u64,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the receiver is closed");
        self.sender.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use muster_backup::{archive::FileSink, key::PrivateKey};

    use super::*;
    use crate::testing::{Fixture, admin};

    #[derive(Default)]
    struct Names(Vec<String>);

    impl FileSink for Names {
        fn begin(&mut self, _: &Manifest) -> Result<(), BackupError> {
            Ok(())
        }

        fn file(&mut self, path: &str, content: &mut dyn Read) -> Result<(), BackupError> {
            self.0.push(path.to_owned());
            io::copy(content, &mut io::sink()).unwrap();
            Ok(())
        }
    }

    async fn fixture(key: &PrivateKey) -> Fixture {
        let fixture = Fixture::new().await;
        let mut config = super::super::config::Config::clone(&fixture.shared().current());
        config.backup.recipients = vec![key.public()];
        fixture.running.reload(config).unwrap();
        fixture
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn backup_has_all_of_the_authority_and_what_was_asked_for() {
        let key = PrivateKey::generate().unwrap();
        let fixture = fixture(&key).await;
        fixture.member("h").await;
        let folder = fixture.dir.path().join("console");
        // A key that somebody else keeps there.
        fs::write(folder.join("authority/other.key"), "x").unwrap();
        fs::create_dir(folder.join("authority/former")).unwrap();
        fs::write(folder.join("authority/former/one.key"), "x").unwrap();
        let sha256 = muster_topics::name::Digest::of(b"program");
        fs::write(folder.join("artifacts").join(sha256.as_str()), "program").unwrap();
        for choice in [BackupChoice::default(), BackupChoice { artifacts: true, series: true }] {
            let mut stream = fixture.console.stream_backup(&admin(), choice).await.unwrap();
            assert!(stream.name.ends_with("Z.tar.age"), "{}", stream.name);
            let second = fixture.console.stream_backup(&admin(), choice).await;
            assert_eq!(second.unwrap_err().problem.code, "backup_running");
            let mut bytes = Vec::new();
            while let Some(piece) = stream.pieces.recv().await {
                bytes.extend_from_slice(&piece.unwrap());
            }
            let mut names = Names::default();
            let (manifest, _) = archive::read(bytes.as_slice(), std::slice::from_ref(&key), &mut names).unwrap();
            assert_eq!(manifest.fleet, fixture.shared().authority.fingerprint());
            let always = ["authority.key", "signing.key", "other.key", "former/one.key"];
            for name in always.map(|name| format!("authority/{name}")).into_iter().chain(["console.db".to_owned()]) {
                assert!(names.0.contains(&name), "{name} is not in {:?}", names.0);
            }
            for name in ["series.db".to_owned(), format!("artifacts/{sha256}")] {
                assert_eq!(names.0.contains(&name), choice.series, "{name}");
            }
            assert!(!names.0.iter().any(|name| name.contains("lock")));
            // It is remembered once the reader has it.
            for _ in 0..100 {
                if !folder.join(WORK).exists() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(!folder.join(WORK).exists(), "no copy stays");
        }
        let listed = fixture.console.backups().await.unwrap();
        assert!(!listed.backups.is_empty() && listed.backups.iter().all(|backup| backup.hosts == 1), "{listed:?}");
    }

    #[tokio::test]
    async fn backup_without_a_public_key_is_refused() {
        let fixture = Fixture::new().await;
        let refused = fixture.console.stream_backup(&admin(), BackupChoice::default()).await.unwrap_err();
        assert_eq!((refused.status, refused.problem.code.as_str()), (409, "no_recipients"));
        assert!(refused.problem.diagnostic.hint.unwrap().contains("muster backup create-key"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn reader_that_leaves_ends_the_backup() {
        let key = PrivateKey::generate().unwrap();
        let fixture = fixture(&key).await;
        drop(fixture.console.stream_backup(&admin(), BackupChoice::default()).await.unwrap());
        for _ in 0..100 {
            if fixture.shared().backups.running.try_lock().is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(fixture.shared().backups.running.try_lock().is_ok());
    }
}
