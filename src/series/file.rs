//! The store's file: opens it, and sets a damaged one aside.
//!
//! **Invariant: a store is never silently emptied.** One that SQLite cannot read is renamed, with its
//! companions, and reported in the log and in [`super::SeriesStore::set_aside`], and only then a new one is created.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use muster_sqlite::{
    form::{self, OtherForm},
    schema,
};
use muster_topics::Millis;
use sqlx::{
    ConnectOptions, Connection, SqliteConnection, SqlitePool,
    migrate::Migrator,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqlitePoolOptions},
};

use super::error::SeriesError;

/// A store up to this size is checked completely when it is opened, which takes about a tenth of a second. A larger one
/// is only checked if damage was found while it was in use.
const CHECKED_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Mode of files that only their owner may read.
const PRIVATE_MODE: u32 = 0o600;
/// Number of connections for queries: enough for the processors of a small machine.
const READERS: u32 = 2;

/// Cache of each of these, 1 MiB, for inner pages. Other pages are seldom read again before they change.
const READER_CACHE: &str = "-1024";

/// Number of rows that may be buffered between SQLite's thread and the caller: those of one hour of points, so that the
/// threads seldom wait for each other.
const ROWS_AHEAD: usize = 512;

/// The migrations of the tables.
pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// An open store: the connection that writes, and those for queries.
pub(super) struct OpenStore {
    pub(super) writer: SqliteConnection,
    pub(super) readers: SqlitePool,
    pub(super) set_aside: Option<PathBuf>,
}

/// Opens the store; creates it if there is none, or none that can be read.
pub(super) async fn open(path: &Path, now_ms: Millis) -> Result<OpenStore, SeriesError> {
    let (writer, set_aside) = match open_writer(path).await {
        Ok(writer) => (writer, None),
        Err(error) if is_damage(&error) => {
            let aside =
                set_aside(path, now_ms).map_err(|source| SeriesError::SetAside { path: path.to_owned(), source })?;
            tracing::error!(
                store = %path.display(), aside = %aside.display(), %error,
                consequence = "a new one is created",
                hint = "earlier measurements are in the old one, which `sqlite3 … .recover` \
                    may read; check this machine's disk",
                "the time-series store is damaged and was set aside",
            );
            (open_writer(path).await?, Some(aside))
        }
        Err(error) => return Err(error),
    };
    forget_damage(path);
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        // Their caches are bounded. A connection that is replaced every half an hour would fill a new one, in memory
        // that the allocator does not return.
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_with(options(path).read_only(true).pragma("cache_size", READER_CACHE))
        .await?;
    Ok(OpenStore { writer, readers, set_aside })
}

async fn open_writer(path: &Path) -> Result<SqliteConnection, SeriesError> {
    let to_check = suspicion(path).exists() || fs::metadata(path).is_ok_and(|file| file.len() <= CHECKED_MAX_BYTES);
    // So that the file can shrink.
    form::prepare(path, SqliteAutoVacuum::Incremental, other_form).await?;
    let mut writer = options(path).connect().await?;
    match prepare(&mut writer, to_check).await {
        Ok(()) => Ok(writer),
        Err(error) => {
            // A connection that closes deletes the write-ahead log by name, so this must be over before a new store
            // uses that name. Its error adds nothing to `error`.
            let _ = writer.close().await;
            Err(error)
        }
    }
}

/// Runs the first statements. (As options of the connection, their failure would drop it instead of closing it.)
async fn prepare(writer: &mut SqliteConnection, to_check: bool) -> Result<(), SeriesError> {
    for pragma in [
        "PRAGMA journal_mode = WAL",
        // An agent deletes what was acknowledged, so it must survive a power failure: each commit syncs the write-ahead
        // log. With NORMAL only a checkpoint would. Group commit needs one sync for many batches.
        "PRAGMA synchronous = FULL",
        // 64 MiB: the log shrinks to this size after a burst.
        "PRAGMA journal_size_limit = 67108864",
        // 4 MiB: inner pages, and those that hosts have just written to.
        "PRAGMA cache_size = -4096",
        // A statement of many rows keeps copies of the pages that it changes, for a rollback. The points of a host are
        // on as many pages as it has series, so the copies would go to a temporary file each time.
        "PRAGMA temp_store = MEMORY",
    ] {
        sqlx::query(pragma).execute(&mut *writer).await?;
    }
    if to_check {
        let found: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&mut *writer).await?;
        if found != "ok" {
            return Err(SeriesError::Damaged(found));
        }
    }
    Ok(schema::migrate(&MIGRATIONS, writer).await?)
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(path).row_buffer_size(ROWS_AHEAD).disable_statement_logging()
}

fn other_form(path: &Path) -> OtherForm {
    OtherForm::in_folder(path, path.parent().unwrap_or(Path::new(".")), "start again")
}

/// Whether the file itself is damaged, so that a retry cannot help.
fn is_damage(error: &SeriesError) -> bool {
    match error {
        SeriesError::Damaged(_) => true,
        SeriesError::Sql(error) => schema::is_damage(error),
        SeriesError::Migrate(error) => schema::is_damage_to_migrate(error),
        _ => false,
    }
}

/// Records that the next start must check the whole file.
pub(super) fn remember_damage(path: &Path) {
    tracing::error!(
        store = %path.display(),
        hint = "restart the console; it sets the file aside and creates a new one",
        "the time-series store is damaged",
    );
    let noted = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE_MODE).open(suspicion(path));
    if let Err(error) = noted.and_then(|_| sync_folder(path)) {
        tracing::warn!(store = %path.display(), %error, "the damage could not be recorded for the next start");
    }
}

fn forget_damage(path: &Path) {
    // If this fails, the next start checks once more.
    let _ = fs::remove_file(suspicion(path));
}

fn suspicion(path: &Path) -> PathBuf {
    with_suffix(path, ".suspect")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Renames the files of the store. The write-ahead log comes first: a new store would read it as its own.
fn set_aside(path: &Path, now_ms: Millis) -> io::Result<PathBuf> {
    let aside = with_suffix(path, &format!(".damaged-{now_ms}"));
    for suffix in ["-wal", "-shm"] {
        match fs::rename(with_suffix(path, suffix), with_suffix(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, &aside)?;
    sync_folder(path)?;
    Ok(aside)
}

/// Syncs the folder of `path`, so that renames and new files survive a power failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
