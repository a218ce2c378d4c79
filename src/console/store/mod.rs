//! The console's store: SQLite.
//!
//! Modules, one for each subject: [`host`] (members and their reports), [`host_selection`] (selects hosts), [`unit_list`] (units of all
//! hosts), [`issued`]
//! (certificates by hand, and all revoked ones), [`token`] (join tokens), [`command`] (the ledger), [`command_status`] (progress of
//! commands), [`content`] (labels of artifacts, configs), [`operator`]
//! (people and their secrets), [`realm`], [`alert`], [`backup`] (those that were made), [`address`] (of the fleet), [`removed`] (removed hosts), [`change`] (of deployments, cordons and variables), [`secret`], [`register`] (what no one else could restore). Each
//! consists of functions over a connection, so that the caller decides what
//! belongs in one transaction.
//!
//! **Invariant: statements are checked when the console is compiled**, against the tables that its migrations make
//! (`tests/prepare`). One that cannot be, because its text is built, says why, and no text in it is from outside. A list
//! is one parameter, read by `json_each`. Many rows of several columns are parameters each: read from JSON, they take
//! twice as long, and seven times if one is a host's state.
//!
//! **Invariant: one connection writes.** SQLite has one writer at a time; queueing for that
//! connection, rather than for its lock, is what keeps a busy store from failing.
//!
//! **Invariant: committed data survives a power cut** (`synchronous = FULL`): hosts delete what
//! the console acknowledges.

pub mod address;
pub mod alert;
pub mod backup;
pub mod change;
mod columns;
pub mod command;
pub mod command_key;
pub mod command_status;
pub mod content;
pub mod deployment;
pub mod desired;
mod error;
pub mod given;
pub mod host;
pub mod host_selection;
pub mod ids;
pub mod issued;
pub mod label;
pub mod operator;
pub mod realm;
pub mod register;
pub mod removed;
pub mod rollout;
pub mod secret;
pub mod task_end;
pub mod token;
pub mod unit_list;
pub mod var;

use columns::unsigned;

pub use error::{StoreError, StoreResult};

use std::{path::Path, time::Duration};

use muster_base::{certain_clock::StoredTime, clock::Uptime, form::OtherForm};
use muster_sqlite::{
    form, index_file, one_writer,
    room::{self, Reserve, ReserveSize},
    rows::ROWS_AHEAD,
    schema,
};
use muster_topics::Millis;
use sqlx::{
    AssertSqlSafe, Sqlite, SqlitePool, Transaction,
    migrate::Migrator,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

/// Concurrent reading connections: pages and API calls, none of which takes long.
const READERS: u32 = 4;
/// The cache of each reading connection, 1 MiB. The kernel's cache has the file anyway; every connection's cache fills
/// slowly, and makes the console's memory grow for hours.
const CACHE: &str = "-1024";
/// The cache of the writing connection, 4 MiB: the rows of a command to ten thousand hosts. A larger transaction's
/// changes are written to the disk, and read and written again before it ends.
const WRITER_CACHE: &str = "-4096";
/// How many pages of changes the write-ahead log collects before a checkpoint: 16 MiB, the changes of a command to ten
/// thousand hosts from its first outcome to its last. Each page is copied once, however often it has changed.
const CHECKPOINT_PAGES: &str = "4000";
/// The size to which the write-ahead log shrinks after a checkpoint: what it usually has.
const JOURNAL_MAX_BYTES: &str = "67108864";
/// Free pages that are kept for the next writes: 4 MiB.
const FREE_PAGES_MIN: i64 = 1_000;
/// Free pages that are returned in one step, so that others may write in between: 8 MiB.
const FREE_PAGES_AT_ONCE: i64 = 2_000;
/// How long a request waits for a connection before it fails.
const ACQUIRE: Duration = Duration::from_secs(30);

/// A store up to this size is read whole when it is opened, in about a tenth of a second. In a larger one damage shows
/// when it is read.
const CHECKED_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The number of newest commands and alerts that are checked when a store is opened: what pages and lists begin with,
/// and more.
const ROWS_CHECKED: u32 = 200;

static MIGRATOR: Migrator = sqlx::migrate!("store/migrations/sqlite");

/// The store. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    reader: SqlitePool,
    writer: SqlitePool,
    reserve: Option<Reserve>,
}

/// The reserve for a full disk: the write-ahead log at its largest, 16 MiB, and as much again for the database, the
/// register and the revocation list. A command to a host takes some ten KiB.
const RESERVE: ReserveSize = ReserveSize { total_bytes: 32 << 20, piece_bytes: 1 << 20 };
/// What opening may write: the logs' indexes, the register, the revocation list, and changes of a migration.
const START_BYTES: u64 = 2 << 20;

/// Where the index of the write-ahead log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// In a file that other processes use, too (`muster console revoke`), which takes disk space.
    Shared,
    /// In this process's memory; other processes cannot use the store meanwhile.
    Own,
}

impl Store {
    /// Opens the store in `path`, creates it if needed, and migrates it.
    ///
    /// # Errors
    /// If the file cannot be used, is of a newer version, or was written by another build.
    pub async fn open(path: &Path) -> StoreResult<Self> {
        match Self::open_with(path, Index::Shared).await {
            // Existing data can be read without any free space.
            Err(error) if error.is_full() => {
                room::open_without_index(|| Self::open_with(path, Index::Own), StoreError::is_full).await
            }
            other => other,
        }
        .map_err(|error| error.of_store(path))
    }

    /// Opens the store in the console's folder, with a reserve that makes room for writes on a full disk.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_in(folder: &Path) -> StoreResult<Self> {
        let path = folder.join("console.db");
        muster_base::form::check_store(&path, other_form)?;
        let reserve = Reserve::open(folder, RESERVE);
        if !reserve.ensure_bytes(START_BYTES) {
            tracing::error!(
                folder = %folder.display(),
                consequence = "the store can be read, but not changed",
                hint = room::HINT,
                "the disk is full, and its reserve is used up"
            );
        }
        Ok(Self { reserve: Some(reserve), ..Self::open(&path).await? })
    }

    async fn open_with(path: &Path, index: Index) -> StoreResult<Self> {
        // Free pages can be returned to the file system.
        form::prepare(path, SqliteAutoVacuum::Incremental, other_form).await?;
        let options = SqliteConnectOptions::new().filename(path);
        let (options, _index) = match index {
            Index::Shared => (options, Some(index_file::prepare(path).await.map_err(sqlx::Error::Io)?)),
            Index::Own => (options.vfs("unix-excl"), None),
        };
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .pragma("cache_size", CACHE)
            .row_buffer_size(ROWS_AHEAD)
            .busy_timeout(Duration::from_secs(10));
        let writing = options
            .clone()
            .pragma("journal_size_limit", JOURNAL_MAX_BYTES)
            .pragma("cache_size", WRITER_CACHE)
            // Otherwise statement journals, with each changed page, would be written to a file. Sorting for indexes
            // is in memory, too: a migration that indexes a large table needs memory for it.
            .pragma("temp_store", "MEMORY")
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES);
        let writing = match index {
            // It is so already. Setting it is a write: where there is no room for one, none is tried.
            Index::Shared => writing.auto_vacuum(SqliteAutoVacuum::Incremental),
            Index::Own => writing,
        };
        let writer = one_writer::pool().acquire_timeout(ACQUIRE).connect_with(writing).await?;
        let is_checked = std::fs::metadata(path).is_ok_and(|file| file.len() <= CHECKED_MAX_BYTES);
        if is_checked {
            // With the indexes: a flipped bit in a key shows there.
            let found: String = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(&writer).await?;
            if found != "ok" {
                return Err(StoreError::Damaged(found));
            }
        }
        schema::migrate(&MIGRATOR, &mut *writer.acquire().await?).await?;
        let reader = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(ACQUIRE)
            // Their caches fill once, as those of the time-series store.
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_with(options.read_only(true))
            .await?;
        if is_checked {
            check_rows(&reader).await?;
        }
        Ok(Self { reader, writer, reserve: None })
    }

    /// The pool for reading statements.
    #[must_use]
    pub fn read(&self) -> &SqlitePool {
        &self.reader
    }

    /// The pool for a single writing statement.
    #[must_use]
    pub fn write(&self) -> &SqlitePool {
        self.make_room();
        &self.writer
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// If no transaction can be begun.
    pub async fn begin(&self) -> StoreResult<Transaction<'static, Sqlite>> {
        self.make_room();
        // Locked from the start: a transaction that reads first would fail, and not wait, if `muster console revoke`
        // wrote in between.
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Returns free pages to the file system; returns their bytes.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn give_back(&self) -> StoreResult<u64> {
        let page_bytes: i64 = sqlx::query_scalar("PRAGMA page_size").fetch_one(&self.writer).await?;
        let free = async || -> StoreResult<i64> {
            Ok(sqlx::query_scalar("PRAGMA freelist_count").fetch_one(&self.writer).await?)
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

    /// The reserve of disk space.
    #[must_use]
    pub fn reserve(&self) -> Option<&Reserve> {
        self.reserve.as_ref()
    }

    /// Whether the disk is full, so that optional writes have to wait.
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.reserve.as_ref().is_some_and(Reserve::is_short)
    }

    /// Makes room for this many bytes beside the store, as far as the reserve allows.
    pub(super) fn make_room_for(&self, bytes: u64) {
        if let Some(reserve) = &self.reserve {
            reserve.ensure_bytes(bytes);
        }
    }

    /// Makes room for a write, as far as the reserve allows; without room, the write fails.
    fn make_room(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.ensure();
        }
    }

    /// Increments the epoch of the console, and returns it. On a full disk it is not stored.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn next_epoch(&self) -> StoreResult<u64> {
        self.make_room();
        let counted = sqlx::query_scalar!(
            "INSERT INTO meta (key, value) VALUES ('epoch', 1)
             ON CONFLICT (key) DO UPDATE SET value = meta.value + 1 RETURNING value"
        )
        .fetch_one(&self.writer)
        .await;
        let epoch = match counted {
            Ok(epoch) => epoch,
            Err(error) if room::is_missing(&error) => {
                let last = sqlx::query_scalar!("SELECT coalesce(max(value), 0) FROM meta WHERE key = 'epoch'");
                last.fetch_one(&self.reader).await? + 1
            }
            Err(error) => return Err(error.into()),
        };
        unsigned("epoch", epoch)
    }

    /// Returns the latest signed time that was stored.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn signed_ms(&self) -> StoreResult<Millis> {
        let latest_ms = sqlx::query_scalar!("SELECT coalesce(max(value), 0) FROM meta WHERE key = 'signed_ms'")
            .fetch_one(&self.reader)
            .await?;
        Ok(latest_ms)
    }

    /// Stores the latest signed time.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn set_signed_ms(&self, latest_ms: Millis) -> StoreResult<()> {
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ('signed_ms', $1)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            latest_ms
        )
        .execute(self.write())
        .await?;
        Ok(())
    }

    /// Stores a signed time in a transaction, if it is later than all before.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn note_signed_ms(db: &mut sqlx::SqliteConnection, signed_ms: Millis) -> StoreResult<()> {
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ('signed_ms', $1)
             ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
            signed_ms
        )
        .execute(db)
        .await?;
        Ok(())
    }

    /// Returns the time that had certainly come, and how long the machine had run then.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn certain_time(&self) -> StoreResult<Option<StoredTime>> {
        let rows = sqlx::query!("SELECT key, value FROM meta WHERE key IN ('certain_ms', 'uptime_ms', 'boot')")
            .fetch_all(&self.reader)
            .await?;
        let value = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.value);
        let uptime = value("boot").zip(value("uptime_ms")).map(|(boot, ms)| Uptime { boot, ms });
        Ok(value("certain_ms").map(|certain_ms| (certain_ms, uptime)))
    }

    /// Stores the time that has certainly come, and how long the machine has run now.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn set_certain_time(&self, certain_ms: Millis, uptime: Option<Uptime>) -> StoreResult<()> {
        // Which start it was is unknown: none is the same.
        let Uptime { boot, ms } = uptime.unwrap_or(Uptime { boot: -1, ms: 0 });
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ('certain_ms', $1), ('uptime_ms', $2), ('boot', $3)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            certain_ms,
            ms,
            boot
        )
        .execute(self.write())
        .await?;
        Ok(())
    }

    /// Closes all connections, after what is under way.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }
}

/// The error of a store of the console that another build has written.
pub(crate) fn other_form(path: &Path) -> OtherForm {
    let again = "start again: hosts join with new tokens";
    OtherForm::in_folder(path, path.parent().unwrap_or(Path::new(".")), again)
}

/// Reads the content of tables as later readers will: SQLite does not detect a flipped bit in a text, and one
/// unreadable row would break every list that contains it. Hashes are verified.
async fn check_rows(db: &SqlitePool) -> StoreResult<()> {
    let newest = alert::Which { history: true, limit: ROWS_CHECKED, ..Default::default() };
    readable("hosts", host::list(db, None).await)?;
    readable("units", host::for_each_unit(db, None, None, &mut |_| ()).await)?;
    readable("alerts", alert::list(db, newest, 0).await)?;
    readable("rules of alerts", alert::rules(db).await)?;
    readable("silences", alert::silences(db, 0).await)?;
    readable("open commands", command::open(db).await)?;
    let newest = command::Which::Newest { host: None, limit: ROWS_CHECKED };
    readable("commands", command::list(db, newest).await)?;
    readable("sign-ins", operator::list(db, 0).await)?;
    readable("tokens", token::list(db).await)?;
    readable("certificates", issued::list(db, 0).await)?;
    readable("realms", realm::all(db).await)?;
    readable("register", register::read(db).await)?;
    readable("facts", host::check_facts(db).await)?;
    readable("artifacts", content::artifacts(db, &content::ArtifactFilter::default()).await)?;
    readable("configs", content::configs(db).await)?;
    readable("hashes", content::check_hashes(db).await)
}

/// Calls an unreadable row damage, and says among which rows it is: a checked query knows only its column's number.
fn readable<T>(rows: &str, read: StoreResult<T>) -> StoreResult<()> {
    match read {
        Err(error) if error.is_damage() || error.is_of_row() => Err(StoreError::Damaged(format!("{rows}: {error}"))),
        read => read.map(drop),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_topics::diagnostic::Diagnostic;

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
    async fn full_disk_leaves_no_open_transaction() {
        let (_dir, store) = temporary().await;
        // No more space than is used.
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
    async fn deleted_space_is_returned() {
        let (dir, store) = temporary().await;
        fill(&store).await;
        let before = size(&dir, &store).await;
        let given = store.give_back().await.unwrap();
        let after = size(&dir, &store).await;
        assert!(before > 12_000_000 && given > 7_000_000 && after + given <= before, "{before} {given} {after}");
        assert_eq!(store.give_back().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn full_disk_uses_the_reserve() {
        let disk = muster_test_support::disk::Disk::new(48);
        let store = Store::open_in(disk.path()).await.unwrap();
        assert_eq!(store.next_epoch().await.unwrap(), 1);
        store.close().await;
        disk.fill();
        let store = Store::open_in(disk.path()).await.unwrap();
        assert_eq!(store.next_epoch().await.unwrap(), 2);
        assert!(store.is_short_of_room());
        for at_ms in 0..50 {
            store.set_signed_ms(at_ms).await.unwrap();
        }
        store.close().await;
        // Without a reserve, existing data can be read.
        std::fs::remove_file(disk.path().join("reserve")).unwrap();
        disk.fill();
        let store = Store::open_in(disk.path()).await.unwrap();
        assert_eq!(store.signed_ms().await.unwrap(), 49);
        assert_eq!(store.next_epoch().await.unwrap(), 3, "though it cannot be remembered");
        let error = store.set_signed_ms(50).await.unwrap_err();
        assert!(error.is_full() && error.to_string().contains("disk is full"), "{error}");
        store.close().await;
    }

    #[tokio::test]
    async fn unusable_store_error_has_path_reason_and_hint() {
        for (broken, meaning) in [
            ("folder", "is a folder"),
            ("newer", "newer version"),
            ("page", "is damaged"),
            ("header", "is damaged"),
            ("table", "is damaged: the console's store is damaged: the table presence is missing"),
        ] {
            let (dir, store) = temporary().await;
            let path = dir.path().join("console.db");
            if broken == "newer" {
                let newer = "INSERT INTO _sqlx_migrations VALUES (9999, 'later', 0, 1, x'00', 0)";
                sqlx::query(newer).execute(store.write()).await.unwrap();
            }
            if broken == "table" {
                sqlx::query("DROP TABLE presence").execute(store.write()).await.unwrap();
            }
            store.close().await;
            let mut bytes = std::fs::read(&path).unwrap();
            match broken {
                "folder" => {
                    std::fs::remove_file(&path).unwrap();
                    std::fs::create_dir(&path).unwrap();
                }
                "page" => bytes[4096..].fill(0x55),
                "header" => bytes[..100].fill(0x55),
                _ => {}
            }
            if matches!(broken, "page" | "header") {
                std::fs::write(&path, &bytes).unwrap();
            }
            let Diagnostic { cause, hint, .. } = Diagnostic::of(&Store::open(&path).await.unwrap_err());
            let whole = cause.contains(path.to_str().unwrap()) && cause.contains(meaning) && hint.is_some();
            assert!(whole, "{broken}: {cause}");
        }
    }

    #[tokio::test]
    async fn damaged_record_of_migrations_loses_nothing() {
        for statement in [
            "UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 5",
            "UPDATE _sqlx_migrations SET version = version + 65536 WHERE version = 5",
            "DELETE FROM _sqlx_migrations WHERE version < 7",
            "DROP TABLE _sqlx_migrations",
        ] {
            let (dir, store) = temporary().await;
            assert_eq!(store.next_epoch().await.unwrap(), 1);
            sqlx::query(statement).execute(store.write()).await.unwrap();
            store.close().await;
            let store = Store::open(&dir.path().join("console.db")).await.unwrap();
            assert_eq!(store.next_epoch().await.unwrap(), 2, "{statement}");
        }
    }

    #[tokio::test]
    async fn unreadable_row_is_damage() {
        for (statement, words) in [
            ("UPDATE host SET facts = replace(facts, '{', '[')", "facts"),
            (
                "INSERT INTO alert VALUES ('h', 'cpu', 1, 'raised', 'cpu', 1, 1, 1, NULL, '{\"severity\"', 1)",
                "alerts: ",
            ),
            ("UPDATE host SET hostname = CAST(x'ff' AS TEXT)", "hosts: "),
            ("UPDATE manifest SET content = replace(content, '1', '3')", "manifest"),
        ] {
            let fixture = crate::testing::Fixture::new().await;
            fixture.member("h").await;
            let from = &fixture.shared().store;
            let name: muster_topics::name::Name = "admin".parse().unwrap();
            let sha256 = muster_topics::name::Digest::of(b"{\"a\":1}");
            content::add_manifest(from.write(), &sha256, "{\"a\":1}", &name, 1).await.unwrap();
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("console.db");
            sqlx::query("VACUUM INTO $1").bind(path.to_str().unwrap()).execute(from.write()).await.unwrap();
            let store = Store::open(&path).await.unwrap();
            let done = sqlx::query(statement).execute(store.write()).await.unwrap();
            assert_eq!(done.rows_affected(), 1, "{statement}");
            store.close().await;
            let Diagnostic { cause, hint, .. } = Diagnostic::of(&Store::open(&path).await.unwrap_err());
            for words in ["console.db", "is damaged", words] {
                assert!(cause.contains(words), "{statement}: {words} is not in {cause}");
            }
            assert!(hint.is_some(), "{statement}");
        }
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
    async fn constraint_violation_is_permanent() {
        let (_dir, store) = temporary().await;
        let refused = sqlx::query("INSERT INTO presence VALUES ($1, 'online', 1, 1, '', 1, 0)")
            .bind("nobody")
            .execute(store.write())
            .await
            .unwrap_err();
        assert!(!StoreError::from(refused).is_passing());
        assert!(StoreError::from(sqlx::Error::PoolTimedOut).is_passing());
    }
}
