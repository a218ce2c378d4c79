//! What the console remembers: SQLite, with statements that PostgreSQL would take too.
//!
//! Modules, one for each subject: [`host`] (who joined, what they say), [`pick`] (which of them are meant), [`issued`]
//! (certificates by hand, and all that are revoked), [`token`] (one-time passwords), [`command`] (the ledger), [`course`] (how far commands have come), [`content`] (artifacts' labels, configs), [`operator`]
//! (people and their secrets), [`realm`], [`alert`], [`removed`] (hosts that are gone for good), [`register`] (what of all this nobody else could tell again). Each is functions over a connection, so that the caller decides what
//! belongs in one transaction.
//!
//! **Invariant: one connection writes.** SQLite has one writer at a time; queueing for that
//! connection, rather than for its lock, is what keeps a busy store from failing.
//!
//! **Invariant: what is committed survives a power cut** (`synchronous = FULL`): hosts forget what
//! the console acknowledges.

pub mod alert;
pub mod command;
pub mod content;
pub mod course;
pub mod host;
pub mod issued;
pub mod operator;
pub mod pick;
pub mod realm;
pub mod register;
pub mod removed;
pub mod token;

use std::{fmt::Display, path::Path, str::FromStr, time::Duration};

use muster_topics::Millis;
use sqlx::{
    AssertSqlSafe, Sqlite, SqlitePool, Transaction,
    migrate::Migrator,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{one_writer, rows::ROWS_AHEAD};

/// Connections that read at the same time: pages and API calls, none of which takes long.
const READERS: u32 = 4;
/// What each connection that reads keeps of the file in memory, 1 MiB. The machine has all of it in its own cache; every connection's fills
/// by and by, however seldom it is used, and that is memory which a console grows by for hours.
const CACHE: &str = "-1024";
/// The same of the one that writes, 4 MiB: the rows of a command to ten thousand hosts. What a transaction changes beyond that is
/// written to the disk, read and written again before it ends.
const WRITER_CACHE: &str = "-4096";
/// How many pages of changes are gathered in a file of their own before they are copied to their places: 16 MiB, what a command to
/// ten thousand hosts changes between its first answer and its last. Each page is copied once, however often it has changed.
const CHECKPOINT_PAGES: &str = "4000";
/// What is left of the file of changes once they are in their places: what it usually has.
const JOURNAL_MAX_BYTES: &str = "67108864";
/// Free pages that stay, for what is written next: 4 MiB.
const FREE_PAGES_MIN: i64 = 1_000;
/// Free pages that are given back in one go, so that others may write in between: 8 MiB.
const FREE_PAGES_AT_ONCE: i64 = 2_000;
/// How long a request waits for a connection before it fails.
const ACQUIRE: Duration = Duration::from_secs(30);

static MIGRATOR: Migrator = sqlx::migrate!("src/console/store/migrations/sqlite");

/// A statement or a migration failed, or a row is not what this version writes.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A statement failed.
    #[error("the console's store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the console's store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A stored value cannot be read.
    #[error("the console's store has a {what} that cannot be read: {problem}")]
    Row {
        /// What was being read.
        what: &'static str,
        /// Why it cannot be.
        problem: String,
    },
}

impl StoreError {
    /// Whether there is no room for more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // The low byte of SQLite's extended code: 13 is SQLITE_FULL.
        let code = |error: &dyn sqlx::error::DatabaseError| error.code().and_then(|code| code.parse::<u32>().ok());
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if code(&**error).is_some_and(|code| code & 0xff == 13))
    }

    /// Whether the same statement may well succeed later (a full disk, a busy file), as opposed to
    /// one that the tables' own rules refuse.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        use sqlx::{Error, error::ErrorKind};
        match self {
            Self::Sql(Error::Database(error)) => matches!(error.kind(), ErrorKind::Other),
            Self::Sql(Error::Io(_) | Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed) => true,
            Self::Sql(_) | Self::Migrate(_) | Self::Row { .. } => false,
        }
    }
}

/// Shorthand of this module.
pub type Result<T> = std::result::Result<T, StoreError>;

/// The store; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Store {
    reader: SqlitePool,
    writer: SqlitePool,
}

impl Store {
    /// Opens the store in `path`, makes it if there is none, and brings its tables up to date.
    ///
    /// # Errors
    /// If the file cannot be used, or comes from a newer version.
    pub async fn open(path: &Path) -> Result<Self> {
        crate::files::make_private(path).map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .pragma("cache_size", CACHE)
            .row_buffer_size(ROWS_AHEAD)
            .busy_timeout(Duration::from_secs(10));
        let writing = options
            .clone()
            // Pages that are free can be given back to the disk.
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .pragma("journal_size_limit", JOURNAL_MAX_BYTES)
            .pragma("cache_size", WRITER_CACHE)
            // What a statement may have to take back is otherwise written to a file, each page that it changes. So is what an index
            // sorts: a migration that makes one of a large table needs the memory for it.
            .pragma("temp_store", "MEMORY")
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES);
        let writer = one_writer::pool().acquire_timeout(ACQUIRE).connect_with(writing).await?;
        MIGRATOR.run(&writer).await?;
        make_shrinkable(&writer).await?;
        let reader = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(ACQUIRE)
            // Their caches fill once, as those of the time-series store.
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self { reader, writer })
    }

    /// For statements that only read.
    #[must_use]
    pub fn read(&self) -> &SqlitePool {
        &self.reader
    }

    /// For one statement that writes.
    #[must_use]
    pub fn write(&self) -> &SqlitePool {
        &self.writer
    }

    /// For several statements that take effect together.
    ///
    /// # Errors
    /// If no transaction can be begun.
    pub async fn begin(&self) -> Result<Transaction<'static, Sqlite>> {
        // Locked from the start: one that reads first would fail, not wait, if `muster console revoke`
        // wrote in between.
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Gives space of what was forgotten back to the disk. Gives how many bytes.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn give_back(&self) -> Result<u64> {
        let (page_bytes,): (i64,) = sqlx::query_as("PRAGMA page_size").fetch_one(&self.writer).await?;
        let free = async || -> Result<i64> {
            let (free,): (i64,) = sqlx::query_as("PRAGMA freelist_count").fetch_one(&self.writer).await?;
            Ok(free)
        };
        let begun = free().await?;
        let mut left = begun;
        while left > FREE_PAGES_MIN {
            let count = (left - FREE_PAGES_MIN).min(FREE_PAGES_AT_ONCE);
            sqlx::query(AssertSqlSafe(format!("PRAGMA incremental_vacuum({count})"))).execute(&self.writer).await?;
            let now = free().await?;
            if now >= left {
                break;
            }
            left = now;
        }
        unsigned("size", begun.saturating_sub(left).saturating_mul(page_bytes))
    }

    /// Counts this life of the console, and gives its number.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn next_epoch(&self) -> Result<u64> {
        let (epoch,): (i64,) = sqlx::query_as(
            "INSERT INTO meta (key, value) VALUES ('epoch', 1)
             ON CONFLICT (key) DO UPDATE SET value = meta.value + 1 RETURNING value",
        )
        .fetch_one(&self.writer)
        .await?;
        unsigned("epoch", epoch)
    }

    /// The latest date that was signed, as far as it was remembered.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn signed_ms(&self) -> Result<Millis> {
        let (latest_ms,): (i64,) = sqlx::query_as(
            "SELECT coalesce(max(at_ms), 0) FROM (
               SELECT issued_ms AS at_ms FROM command UNION ALL SELECT value FROM meta WHERE key = 'signed_ms'
             ) AS dates",
        )
        .fetch_one(&self.reader)
        .await?;
        Ok(latest_ms)
    }

    /// Remembers the latest date that was signed.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn set_signed_ms(&self, latest_ms: Millis) -> Result<()> {
        sqlx::query(
            "INSERT INTO meta (key, value) VALUES ('signed_ms', $1) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        )
        .bind(latest_ms)
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    /// Closes all connections; what is under way is waited for.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }
}

/// Lets the file of an older version shrink from now on. It is written anew for that, once, which takes as much space again; without that
/// it stays as it is, and its free pages are used again.
async fn make_shrinkable(writer: &SqlitePool) -> Result<()> {
    let (mode,): (i64,) = sqlx::query_as("PRAGMA auto_vacuum").fetch_one(writer).await?;
    if mode != 0 {
        return Ok(());
    }
    tracing::info!("the console's store is written anew, so that it can give space back");
    let mut connection = writer.acquire().await?;
    sqlx::query("PRAGMA auto_vacuum = INCREMENTAL").execute(&mut *connection).await?;
    if let Err(error) = sqlx::query("VACUUM").execute(&mut *connection).await {
        tracing::warn!(%error, "the console's store could not be written anew: it does not shrink. hint: as much space as it takes has to be free");
    }
    Ok(())
}

/// Reads a stored text as what it is the text of.
fn parsed<T: FromStr<Err: Display>>(what: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| StoreError::Row { what, problem: error.to_string() })
}

/// Reads a stored JSON document.
fn json<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// Writes a JSON document.
fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// The text of an enum that is written as a JSON string.
fn word<T: serde::Serialize>(what: &'static str, value: &T) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Ok(text),
        other => Err(StoreError::Row { what, problem: format!("{other:?} is not a word") }),
    }
}

/// Reads an enum that is written as a JSON string.
fn from_word<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

fn unsigned(what: &'static str, value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// A number of another party as the store keeps it. What is too large for it stands last.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) async fn temporary() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("console.db")).await.unwrap();
        (dir, store)
    }

    #[tokio::test]
    async fn epochs_grow_over_restarts() {
        let (dir, store) = temporary().await;
        assert_eq!(store.next_epoch().await.unwrap(), 1);
        store.close().await;
        let store = Store::open(&dir.path().join("console.db")).await.unwrap();
        assert_eq!(store.next_epoch().await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_disk_that_was_full_leaves_nothing_behind() {
        let (_dir, store) = temporary().await;
        // No more room than is taken.
        sqlx::query("PRAGMA max_page_count = 1").execute(store.write()).await.unwrap();
        let mut transaction = store.begin().await.unwrap();
        let large = "INSERT INTO meta (key, value) VALUES (hex(zeroblob(1000000)), 1)";
        let error = StoreError::from(sqlx::query(large).execute(&mut *transaction).await.unwrap_err());
        assert!(error.is_full() && error.is_passing(), "{error}");
        drop(transaction);
        let mut transaction = store.begin().await.unwrap();
        sqlx::query("INSERT INTO meta (key, value) VALUES ('a', 1)").execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        let (value,): (i64,) =
            sqlx::query_as("SELECT value FROM meta WHERE key = 'a'").fetch_one(store.read()).await.unwrap();
        assert_eq!(value, 1);
    }

    async fn fill(store: &Store) {
        let large = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 64)
                     INSERT INTO meta (key, value) SELECT n || hex(zeroblob(100000)), 1 FROM n";
        sqlx::query(large).execute(store.write()).await.unwrap();
        sqlx::query("DELETE FROM meta WHERE length(key) > 100").execute(store.write()).await.unwrap();
    }

    async fn size(dir: &tempfile::TempDir, store: &Store) -> u64 {
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(store.write()).await.unwrap();
        std::fs::metadata(dir.path().join("console.db")).unwrap().len()
    }

    #[tokio::test]
    async fn space_of_what_is_forgotten_is_given_back() {
        let (dir, store) = temporary().await;
        fill(&store).await;
        let before = size(&dir, &store).await;
        let given = store.give_back().await.unwrap();
        let after = size(&dir, &store).await;
        assert!(before > 12_000_000 && given > 7_000_000 && after + given <= before, "{before} {given} {after}");
        assert_eq!(store.give_back().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn store_of_an_older_version_shrinks_from_its_next_start_on() {
        let (dir, store) = temporary().await;
        sqlx::query("PRAGMA auto_vacuum = NONE").execute(store.write()).await.unwrap();
        sqlx::query("VACUUM").execute(store.write()).await.unwrap();
        fill(&store).await;
        assert_eq!(store.give_back().await.unwrap(), 0, "it cannot yet");
        store.close().await;
        let store = Store::open(&dir.path().join("console.db")).await.unwrap();
        assert!(size(&dir, &store).await < 2_000_000);
        fill(&store).await;
        assert!(store.give_back().await.unwrap() > 7_000_000);
    }

    #[tokio::test]
    async fn every_table_is_strict() {
        let (_dir, store) = temporary().await;
        let loose: Vec<(String,)> =
            sqlx::query_as("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%STRICT' AND name NOT LIKE 'sqlite%' AND name NOT LIKE '_sqlx%'")
                .fetch_all(store.read())
                .await
                .unwrap();
        assert_eq!(loose, []);
    }

    #[tokio::test]
    async fn what_a_rule_refuses_is_not_passing() {
        let (_dir, store) = temporary().await;
        let refused = sqlx::query("INSERT INTO presence VALUES ($1, 'online', 1, 1, '', 1)")
            .bind("nobody")
            .execute(store.write())
            .await
            .unwrap_err();
        assert!(!StoreError::from(refused).is_passing());
        assert!(StoreError::from(sqlx::Error::PoolTimedOut).is_passing());
    }
}
