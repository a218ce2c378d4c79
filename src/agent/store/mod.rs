//! The agent's store: SQLite, one writer, every query checked at compile time.
//!
//! Modules, in reading order: [`journal`] and [`outbox`] (commands and their outcomes), [`mod@unit`]
//! (desired state; [`port_lease`]: ports; [`realm`]; [`snapshot`]; `verified`: the revisions to roll back to),
//! [`document`] (the host's document; [`deployment`]: applies it; [`owner`]: its units; [`removal`]: units that are to go), [`metric`]
//! (unacknowledged measurements), [`alert`] and [`label`] (documents of the console), [`task`] and [`owed`] (what changes of units did,
//! and what is still to be done after them), `files_journal` and [`packages`] (what units have done to files and packages).
//!
//! The queries are checked against `.sqlx/`, which `tests/prepare` generates from the migrations.
//!
//! **Invariant: a store is never emptied silently, and never goes back silently.** A damaged one is renamed and kept,
//! and a mark beside it shows how far it had come (`mark`). It is restored from second copies
//! (`desired_copies`: desired state); each row has a checksum (`row_checksum`).

pub mod admission;
pub mod alert;
mod certain_time;
mod columns;
pub mod deployment;
pub mod desired_copies;
pub mod desired_copy;
pub mod document;
mod error;
pub(crate) mod files_journal;
pub mod journal;
pub mod label;
mod mark;
pub mod metric;
pub mod outbox;
pub mod owed;
pub(super) mod owner;
pub mod packages;
pub mod port_lease;
pub mod realm;
pub mod removal;
mod row_checksum;
pub mod snapshot;
pub mod task;
pub mod unit;
pub mod unit_set;
mod verified;

use std::{
    io,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use muster_base::{certain_clock::CertainClock, chance, crash, files, form::OtherForm};
use muster_rules::{
    mark::{self as rule, FoundStore, HighWaterMark, StoreLoss},
    presence,
};
use muster_sqlite::{form, index_file, one_writer, room::Reserve, schema};
use muster_topics::{Millis, ack::LIVES_MAX, diagnostic::Diagnostic};
use sqlx::{
    ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool, Transaction,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::sync::{Notify, watch};

use self::{desired_copies::IntentFolder, mark::MarkFile};

/// The agent's store. Clones share one connection, so there is one writer and no lock contention.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
    mark: Option<Arc<MarkFile>>,
    intent: Arc<IntentFolder>,
    reserve: Option<Reserve>,
    /// Why it is in memory, if it is.
    unwritable: Option<Arc<Diagnostic>>,
    /// Notified when a write has failed.
    suspicion: Arc<Notify>,
    /// Notified when more is owed after changes of units.
    owed_added: watch::Sender<()>,
    /// The number of commits, without those of measurements alone.
    commits: Arc<AtomicU64>,
    /// The time by which something ends, or is removed, for good.
    time: Arc<CertainClock>,
}

/// Notifies that a write may have failed, unless it is taken back.
#[derive(Debug)]
struct WriteSuspicion(Option<Arc<Notify>>);

impl Drop for WriteSuspicion {
    fn drop(&mut self) {
        if let Some(suspicion) = &self.0 {
            suspicion.notify_one();
        }
    }
}

/// A transaction. Dropping it rolls it back.
#[derive(Debug)]
pub struct Tx {
    inner: Transaction<'static, Sqlite>,
    mark: Option<Arc<MarkFile>>,
    suspicion: WriteSuspicion,
    /// Counts its commit; `None` if it writes measurements alone.
    commits: Option<Arc<AtomicU64>>,
}

impl Deref for Tx {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.inner
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.inner
    }
}

impl Tx {
    /// Rolls the transaction back.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn rollback(mut self) -> Result<(), StoreError> {
        self.inner.rollback().await?;
        self.suspicion.0 = None;
        Ok(())
    }

    /// Commits the transaction, with the checksums of all rows that it has changed. The mark follows before the caller
    /// can act on it. (If the mark went first, a crash in between would look like a store that went back.)
    ///
    /// # Errors
    /// If the database fails.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        let Some(commits) = self.commits.take() else {
            self.inner.commit().await?;
            self.suspicion.0 = None;
            return Ok(());
        };
        row_checksum::seal(&mut self.inner).await?;
        let reached = match &self.mark {
            Some(_) => Some(reached(&mut self.inner).await?),
            None => None,
        };
        let committed = self.inner.commit().await;
        // Also if it failed: whether it counts is only known to who reads.
        commits.fetch_add(1, Ordering::Relaxed);
        committed?;
        if let (Some(mark), Some(reached)) = (&self.mark, reached)
            && let Err(error) = mark.follow(reached).await
        {
            // The commit counts: the mark protects against a second fault, and follows with the next step.
            tracing::error!(
                %error,
                hint = "is the agent's folder writable?",
                "the mark of the agent's store cannot be written",
            );
            return Ok(());
        }
        self.suspicion.0 = None;
        Ok(())
    }
}

/// How far the clock of another life of this host may have been ahead: ten years.
const EPOCH_AHEAD_MAX_MS: Millis = 3_653 * 86_400_000;

/// What a store knows when the agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLife {
    /// The epoch of this run of the agent.
    pub epoch: u64,
    /// When the store was created: whether a command issued earlier is new cannot be known.
    pub created_ms: Millis,
    /// The latest signed time.
    pub signed_ms: Millis,
    /// The time of a loss, if there was one: whether a command issued before, and not in the journal, is new cannot be
    /// known.
    pub lost_ms: Option<Millis>,
    /// When a loss was last noticed.
    pub noticed_ms: Option<Millis>,
    /// The epoch of the previous run; 0 if this is the first.
    pub last_epoch: u64,
    /// The latest epoch of the console that was accepted; 0 if none was.
    pub console_epoch: u64,
}

impl Store {
    /// Opens the store in `path`, and creates it if needed.
    ///
    /// # Errors
    /// If it cannot be opened or migrated, or was written by another build.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_here(path).await.map_err(|error| error.of_store(path))
    }

    async fn open_here(path: &Path) -> Result<Self, StoreError> {
        check(path).await?;
        let _index = index_file::prepare(path).await.map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            // What is acknowledged must survive a power failure.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // The agent's memory budget is small, and so are its tables: 512 KiB of pages suffice.
            .pragma("cache_size", "-512");
        let pool = one_writer::pool().connect_with(options).await?;
        if let Err(error) = migrate(&pool).await {
            pool.close().await;
            return Err(error);
        }
        let intent = Arc::new(IntentFolder::beside(path));
        let (owed_added, commits) = (watch::Sender::new(()), Arc::default());
        let time = Arc::new(certain_time::open(&pool).await?);
        let suspicion = Arc::default();
        Ok(Self { pool, mark: None, intent, reserve: None, unwritable: None, suspicion, owed_added, commits, time })
    }

    /// Sets a reserve, which makes room for writes on a full disk.
    #[must_use]
    pub fn with_reserve(self, reserve: Reserve) -> Self {
        Self { reserve: Some(reserve), ..self }
    }

    /// Marks it as one in memory, for this reason.
    #[must_use]
    pub fn in_memory(self, reason: Arc<Diagnostic>) -> Self {
        Self { unwritable: Some(reason), ..self }
    }

    /// Why nothing lasts that is written to it, if it is in memory.
    #[must_use]
    pub fn unwritable(&self) -> Option<&Diagnostic> {
        self.unwritable.as_deref()
    }

    /// Notified when a write has failed.
    #[must_use]
    pub fn suspicion(&self) -> Arc<Notify> {
        Arc::clone(&self.suspicion)
    }

    /// Whether the disk is full, so that optional writes have to wait.
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.unwritable.is_some() || self.reserve.as_ref().is_some_and(Reserve::is_short)
    }

    /// Opens the store in `path` and compares it with its mark; a damaged store is first set aside, and a new one
    /// created. Losses are logged, and restored from second copies. `is_member` is whether this agent has worked here
    /// before.
    ///
    /// # Errors
    /// As [`Store::open`], except for damage.
    pub async fn open_or_replace(path: &Path, is_member: bool, now_ms: Millis) -> Result<Self, StoreError> {
        muster_base::form::check_store(path, other_form)?;
        let mark = MarkFile::open(path).map_err(|source| StoreError::Mark { path: path.to_owned(), source })?;
        let is_there = std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
        let (opened, is_damaged, damage) = match Self::open_verified(path, now_ms).await {
            Ok((store, damage)) => (store, false, damage),
            Err(error) if error.is_damage() => {
                let aside = set_aside(path, now_ms);
                let aside = aside.map_err(|source| StoreError::SetAside { path: path.to_owned(), source })?;
                tracing::error!(
                    store = %path.display(), aside = %aside.display(), %error,
                    consequence = "a new one is created",
                    hint = "check this host's disk",
                    "the store is damaged and was set aside",
                );
                (Self::open(path).await?, true, row_checksum::Damage::default())
            }
            Err(error) => return Err(error),
        };
        let store = Self { mark: Some(mark.clone()), ..opened };
        let mut tx = store.begin().await?;
        let found = match (is_damaged, is_there) {
            (true, _) => FoundStore::Damaged,
            (false, false) => FoundStore::Nothing,
            (false, true) => FoundStore::Store(reached(&mut tx).await?),
        };
        let loss = rule::loss(mark.get(), found, is_member);
        let loss = loss.or_else(|| (damage.rows > 0).then_some(StoreLoss::Rows { rows: damage.rows }));
        let before = mark.get().unwrap_or_default();
        if let Some(loss) = loss {
            // Damaged rows of other tables have lost no commands.
            let loses_commands = !matches!(loss, StoreLoss::Rows { .. }) || damage.is_of_commands;
            let lost_ms = if loses_commands { rule::lost_ms(loss, mark.get(), found, now_ms) } else { 0 };
            note_loss(&mut tx, before, lost_ms, now_ms).await?;
            tracing::error!(
                store = %path.display(), lost_ms,
                consequence = "commands issued before that are not in its journal are refused from now on, because \
                    nothing shows whether they were run",
                hint = "check whether a backup was restored or a file was deleted; otherwise check this host's disk",
                "the agent's store has lost something: {loss}",
            );
        }
        name_store(&mut tx, chance::random()).await?;
        store.intent.restore(&mut tx, loss, now_ms).await?;
        commit(tx, "open store").await?;
        Ok(store)
    }

    /// Opens a store, verifies the checksums of all rows, and sets damaged ones aside.
    async fn open_verified(path: &Path, now_ms: Millis) -> Result<(Self, row_checksum::Damage), StoreError> {
        let store = Self::open(path).await?;
        let verified = async {
            let mut tx = store.begin().await?;
            let damage = row_checksum::verify(&mut tx, now_ms).await?;
            commit(tx, "set damaged rows aside").await?;
            Ok(damage)
        };
        match verified.await {
            Ok(damage) => Ok((store, damage)),
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    /// Releases a piece of the reserve; returns false if there is none.
    #[must_use]
    pub fn release_reserve(&self) -> bool {
        self.reserve.as_ref().is_some_and(Reserve::release)
    }

    /// Makes room on a full disk for what is written next, out of the reserve.
    pub fn make_room(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.ensure();
        }
    }

    /// Begins a transaction. There is one connection: end it before the next.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn begin(&self) -> Result<Tx, StoreError> {
        self.make_room();
        self.transaction(self.mark.clone(), Some(self.commits.clone())).await
    }

    async fn transaction(
        &self,
        mark: Option<Arc<MarkFile>>,
        commits: Option<Arc<AtomicU64>>,
    ) -> Result<Tx, StoreError> {
        let suspicion = WriteSuspicion(Some(Arc::clone(&self.suspicion)));
        Ok(Tx { inner: self.pool.begin().await?, mark, suspicion, commits })
    }

    /// Begins a transaction that writes measurements alone: they have no checksums, and nothing else depends on them.
    ///
    /// # Errors
    /// If the database fails.
    async fn begin_metrics(&self) -> Result<Tx, StoreError> {
        self.make_room();
        self.transaction(None, None).await
    }

    /// The number of commits of this process, without those of measurements: as long as it stays the same, so does everything else in
    /// the store.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// The folder with second copies of desired state.
    #[must_use]
    pub fn intent(&self) -> &Arc<IntentFolder> {
        &self.intent
    }

    /// Begins a new run of the agent, with an epoch later than all before.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn begin_life(&self, now_ms: Millis) -> Result<AgentLife, StoreError> {
        let mut tx = self.begin().await?;
        let last = sqlx::query_scalar!("SELECT value FROM meta WHERE key = 'epoch'").fetch_optional(&mut *tx).await?;
        let marked = self.mark.as_ref().and_then(|mark| mark.get()).map(|mark| mark.epoch);
        let last = last.max(marked);
        let epoch = presence::epoch(now_ms, last, chance::random());
        sqlx::query!("INSERT INTO meta (key, value) VALUES ('created_ms', ?) ON CONFLICT DO NOTHING", now_ms)
            .execute(&mut *tx)
            .await?;
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ('epoch', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            epoch
        )
        .execute(&mut *tx)
        .await?;
        if let Some(last) = last.filter(|last| *last > 0) {
            // If the mark knows a later life than the store, the store's loss was noticed, and covers all until then.
            sqlx::query!("DELETE FROM life WHERE NOT EXISTS (SELECT 1 FROM life WHERE epoch = ?)", last)
                .execute(&mut *tx)
                .await?;
            note_life(&mut tx, last).await?;
        }
        note_life(&mut tx, epoch).await?;
        let rows = sqlx::query!("SELECT key, value FROM meta").fetch_all(&mut *tx).await?;
        commit(tx, "begin life").await?;
        let value = |key| rows.iter().find(|row| row.key == key).map(|row| row.value);
        Ok(AgentLife {
            epoch: from_sql(value("epoch").unwrap_or_default()),
            created_ms: value("created_ms").unwrap_or_default(),
            signed_ms: value("signed_ms").unwrap_or_default(),
            lost_ms: value("lost_ms"),
            noticed_ms: value("noticed_ms"),
            last_epoch: from_sql(last.unwrap_or_default()),
            console_epoch: from_sql(value("console_epoch").unwrap_or_default()),
        })
    }

    /// Returns the epochs of the last lives, this one among them.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn lives(&self) -> Result<Vec<u64>, StoreError> {
        let lives = sqlx::query_scalar!("SELECT epoch FROM life ORDER BY epoch DESC");
        Ok(lives.fetch_all(&self.pool).await?.into_iter().map(from_sql).collect())
    }

    /// Records that the store is older than what this host has done, because its whole disk was restored: it did not know of
    /// the life with this epoch.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn note_older_disk(&self, epoch: u64, lost_ms: Millis, now_ms: Millis) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let epoch = to_sql(epoch);
        note_life(&mut tx, epoch).await?;
        // The next life is later than that one: the console takes nothing of an earlier one. A number that no clock shows is
        // somebody's invention.
        if epoch < now_ms.saturating_add(EPOCH_AHEAD_MAX_MS) {
            sqlx::query!("UPDATE meta SET value = ? WHERE key = 'epoch' AND value < ?", epoch, epoch)
                .execute(&mut *tx)
                .await?;
        }
        note_loss(&mut tx, HighWaterMark::default(), lost_ms, now_ms).await?;
        commit(tx, "note older disk").await
    }

    /// Records the latest epoch of the console that was accepted.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_console_epoch(&self, epoch: u64) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let epoch = to_sql(epoch);
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ('console_epoch', ?)
             ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
            epoch
        )
        .execute(&mut *tx)
        .await?;
        commit(tx, "set console epoch").await
    }

    /// Sets back the latest signed time and the creation time, because the console's clock was ahead.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn put_time_back(&self, signed_ms: Millis, created_ms: Millis) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ('signed_ms', ?), ('created_ms', ?)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            signed_ms,
            created_ms
        )
        .execute(&mut *tx)
        .await?;
        commit(tx, "put time back").await
    }

    /// Returns since when this store is complete: since it was created, or since its last loss was noticed. 0 if no
    /// agent has run with it.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn complete_since_ms(&self) -> Result<Millis, StoreError> {
        let rows = sqlx::query!("SELECT key, value FROM meta WHERE key IN ('created_ms', 'noticed_ms')");
        Ok(rows.fetch_all(&self.pool).await?.iter().map(|row| row.value).max().unwrap_or_default())
    }

    /// Closes the store: the write-ahead log is merged into the file.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// The error of a store, or of another file of the agent, that another build has written.
pub(super) fn other_form(path: &Path) -> OtherForm {
    let again = "join again, with a token of `muster token create --replace HOST`";
    OtherForm::in_folder(path, path.parent().unwrap_or(Path::new(".")), again)
}

/// Commits a transaction. All commits of the agent are made here, so that tests can kill it before and after each.
///
/// # Errors
/// If the database fails.
pub(super) async fn commit(tx: Tx, what: &'static str) -> Result<(), StoreError> {
    crash::point(what, "before commit");
    tx.commit().await?;
    crash::point(what, "after commit");
    Ok(())
}

/// Ends a savepoint. What is written since then lasts if the transaction around it is committed.
///
/// # Errors
/// If the database fails.
async fn release(savepoint: Transaction<'_, Sqlite>) -> Result<(), StoreError> {
    Ok(savepoint.commit().await?)
}

/// Returns how far the store has advanced.
async fn reached(connection: &mut SqliteConnection) -> Result<HighWaterMark, StoreError> {
    let rows = sqlx::query!("SELECT key, value FROM meta").fetch_all(connection).await?;
    let value = |key| rows.iter().find(|row| row.key == key).map_or(0, |row| row.value);
    Ok(HighWaterMark {
        store: value("store"),
        steps: value("steps"),
        issued_ms: value("issued_ms"),
        epoch: value("epoch"),
    })
}

/// Makes a step: its effects follow only once the mark includes it. `issued_ms` is when its command was issued.
///
/// # Errors
/// If the database fails.
pub(super) async fn step(tx: &mut SqliteConnection, issued_ms: Millis) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO meta (key, value) VALUES ('steps', 1), ('issued_ms', ?)
         ON CONFLICT (key) DO UPDATE SET
             value = CASE key WHEN 'steps' THEN value + 1 ELSE max(value, excluded.value) END",
        issued_ms
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Records that there was a life with this epoch, and forgets those that are long over.
async fn note_life(tx: &mut SqliteConnection, epoch: i64) -> Result<(), StoreError> {
    let kept = LIVES_MAX as i64;
    sqlx::query!("INSERT INTO life (epoch) VALUES (?) ON CONFLICT DO NOTHING", epoch).execute(&mut *tx).await?;
    sqlx::query!("DELETE FROM life WHERE epoch NOT IN (SELECT epoch FROM life ORDER BY epoch DESC LIMIT ?)", kept)
        .execute(tx)
        .await?;
    Ok(())
}

/// Records a loss, in a step beyond all that the mark knows.
async fn note_loss(
    tx: &mut SqliteConnection,
    mark: HighWaterMark,
    lost_ms: Millis,
    now_ms: Millis,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO meta (key, value) VALUES ('steps', ?), ('issued_ms', ?), ('lost_ms', ?)
         ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
        mark.steps,
        mark.issued_ms,
        lost_ms
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "INSERT INTO meta (key, value) VALUES ('noticed_ms', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        now_ms
    )
    .execute(&mut *tx)
    .await?;
    if lost_ms > 0 {
        // A store that replaces a lost one accepts commands issued since the loss, even before this moment.
        sqlx::query!("INSERT INTO meta (key, value) VALUES ('created_ms', ?) ON CONFLICT DO NOTHING", lost_ms)
            .execute(&mut *tx)
            .await?;
    }
    // What waited in the queue may have begun in what is lost.
    sqlx::query!("UPDATE journal SET queued = 0 WHERE queued = 1").execute(&mut *tx).await?;
    step(tx, 0).await
}

/// Gives a new store its random id; `share` is random, from 0 to 1.
async fn name_store(tx: &mut SqliteConnection, share: f64) -> Result<(), StoreError> {
    // As many values as a float can distinguish, so that no two stores of a host are alike.
    let name = 1 + (share * 9_007_199_254_740_992.0) as i64;
    sqlx::query!("INSERT INTO meta (key, value) VALUES ('store', ?) ON CONFLICT DO NOTHING", name).execute(tx).await?;
    Ok(())
}

/// Brings the tables up to date.
async fn migrate(pool: &SqlitePool) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await?;
    Ok(schema::migrate(&sqlx::migrate!("store/migrations"), &mut connection).await?)
}

/// Has SQLite read every page, so that damage shows now and not later; the file is created if needed. The store is
/// small: this takes a few milliseconds.
///
/// This uses a connection of its own, closed before anything else happens: a closing connection deletes the write-ahead
/// log by name, which a new store may have reused by then. (Pragmas of the store's own connection would meet the damage
/// first, and leak that connection.)
async fn check(path: &Path) -> Result<(), StoreError> {
    form::prepare(path, SqliteAutoVacuum::None, other_form).await?;
    let _index = index_file::prepare(path).await.map_err(sqlx::Error::Io)?;
    let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
    let found = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(&mut connection).await;
    let closed = connection.close().await;
    let found: String = found?;
    closed?;
    if found == "ok" { Ok(()) } else { Err(StoreError::Damaged(found)) }
}

/// Stores the latest signed time, in the caller's transaction.
///
/// # Errors
/// If the database fails.
pub async fn remember_signed_time(tx: &mut sqlx::SqliteConnection, signed_ms: Millis) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO meta (key, value) VALUES ('signed_ms', ?)
         ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
        signed_ms
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Renames the store's files with their companions, without which the main file is incomplete.
fn set_aside(path: &Path, now_ms: Millis) -> io::Result<PathBuf> {
    let with = |path: &Path, suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = with(path, &format!(".damaged-{now_ms}"));
    for suffix in ["-wal", "-shm"] {
        match std::fs::rename(with(path, suffix), with(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, &aside)?;
    files::sync_folder(path.parent().unwrap_or(Path::new(".")))?;
    Ok(aside)
}

#[cfg(test)]
mod loss_tests;

use columns::{from_sql, to_sql};

pub use error::StoreError;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_start_is_a_new_instance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let store = Store::open(&path).await.unwrap();
        let first = store.begin_life(5_000_000).await.unwrap();
        assert_eq!(
            first,
            AgentLife {
                epoch: 5_000_000,
                created_ms: 5_000_000,
                signed_ms: 0,
                lost_ms: None,
                noticed_ms: None,
                last_epoch: 0,
                console_epoch: 0
            }
        );
        let mut tx = store.begin().await.unwrap();
        remember_signed_time(&mut tx, 77).await.unwrap();
        remember_signed_time(&mut tx, 66).await.unwrap();
        tx.commit().await.unwrap();
        store.set_console_epoch(3).await.unwrap();
        store.set_console_epoch(2).await.unwrap();
        // Dropped without being closed, as in a crash.
        drop(store);
        let store = Store::open(&path).await.unwrap();
        let second = store.begin_life(9_000_000).await.unwrap();
        let wanted = AgentLife { signed_ms: 77, epoch: 9_000_000, last_epoch: 5_000_000, console_epoch: 3, ..first };
        assert_eq!(second, wanted);
        let third = store.begin_life(8_000_000).await.unwrap().epoch;
        assert!((9_000_001..=9_001_000).contains(&third), "the clock was set back: {third}");
        // The time is set back, and stays so.
        store.put_time_back(55, 4_000_000).await.unwrap();
        drop(store);
        let back = Store::open(&path).await.unwrap().begin_life(9_500_000).await.unwrap();
        assert_eq!((back.signed_ms, back.created_ms), (55, 4_000_000));
    }

    #[tokio::test]
    async fn lives_are_known_and_so_is_one_that_the_disk_had_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        store.begin_life(5_000_000).await.unwrap();
        store.begin_life(7_000_000).await.unwrap();
        assert_eq!(store.lives().await.unwrap(), [7_000_000, 5_000_000]);
        // That life had a clock that was ahead: what begins after it is later all the same.
        store.note_older_disk(9_000_000, 8_000_000, 8_000_000).await.unwrap();
        let next = store.begin_life(8_000_000).await.unwrap();
        assert!(next.epoch > 9_000_000 && next.last_epoch == 9_000_000, "{next:?}");
        assert_eq!(store.lives().await.unwrap(), [next.epoch, 9_000_000, 7_000_000, 5_000_000]);
        store.note_older_disk(1 << 53, 8_000_000, 8_000_000).await.unwrap();
        assert!(store.begin_life(8_000_000).await.unwrap().epoch < 10_000_000);
        for minute in 1..=20 {
            store.begin_life(10_000_000 + minute * 60_000).await.unwrap();
        }
        let lives = store.lives().await.unwrap();
        assert_eq!((lives.len(), lives[1], lives[15]), (LIVES_MAX, 11_200_000, 10_360_000));
    }

    #[tokio::test]
    async fn full_disk_uses_the_reserve() {
        let disk = muster_test_support::disk::Disk::new(16);
        let path = disk.path().join("agent.db");
        let size = muster_sqlite::room::ReserveSize { total_bytes: 1 << 20, piece_bytes: 128 << 10 };
        let reserve = Reserve::open(disk.path(), size);
        let store = Store::open(&path).await.unwrap();
        store.begin_life(5_000_000).await.unwrap();
        store.close().await;
        disk.fill();
        // Without the reserve everything can be read, and nothing written.
        let store = Store::open(&path).await.unwrap();
        assert_eq!(journal::count(&store).await.unwrap(), 0);
        let error = store.begin_life(6_000_000).await.unwrap_err();
        assert!(error.is_full() && error.to_string().contains("disk is full"), "{error}");
        store.close().await;
        // With it commands are accepted.
        assert!(reserve.ensure_bytes(256 << 10));
        let store = Store::open(&path).await.unwrap().with_reserve(reserve);
        assert_eq!(store.begin_life(7_000_000).await.unwrap().epoch, 7_000_000);
        assert!(store.is_short_of_room());
        for signed_ms in 0..50 {
            let mut tx = store.begin().await.unwrap();
            remember_signed_time(&mut tx, signed_ms).await.unwrap();
            tx.commit().await.unwrap();
        }
        store.close().await;
    }

    #[tokio::test]
    async fn damaged_store_is_set_aside() {
        for damage in ["header", "page"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("agent.db");
            let store = Store::open(&path).await.unwrap();
            store.begin_life(1_000).await.unwrap();
            store.close().await;
            let mut bytes = std::fs::read(&path).unwrap();
            match damage {
                "header" => bytes[..100].fill(0x55),
                // The pages after the schema's.
                _ => bytes[4096..].fill(0x55),
            }
            std::fs::write(&path, &bytes).unwrap();

            assert!(Store::open(&path).await.unwrap_err().is_damage(), "{damage}");
            let store = Store::open_or_replace(&path, false, 4_200).await.unwrap();
            assert_eq!(store.begin_life(9_000_000).await.unwrap().epoch, 9_000_000, "{damage}");
            assert_eq!(std::fs::read(folder.path().join("agent.db.damaged-4200")).unwrap(), bytes, "{damage}");
        }
    }

    #[tokio::test]
    async fn unusable_store_error_has_path_reason_and_hint() {
        for (broken, meaning) in [("folder", "is a folder"), ("newer", "newer version of muster")] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("agent.db");
            if broken == "folder" {
                std::fs::create_dir(&path).unwrap();
            } else {
                let store = Store::open(&path).await.unwrap();
                let newer = "INSERT INTO _sqlx_migrations VALUES (9999, 'later', 0, 1, x'00', 0)";
                sqlx::query(newer).execute(&store.pool).await.unwrap();
                store.close().await;
            }
            let error = Diagnostic::of(&Store::open_or_replace(&path, true, 0).await.unwrap_err());
            let cause = &error.cause;
            let whole = cause.contains(path.to_str().unwrap()) && cause.contains(meaning) && error.hint.is_some();
            assert!(whole && path.exists(), "{broken}: {error}");
        }
    }

    #[tokio::test]
    async fn store_of_another_build_is_refused_and_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let mut connection =
            SqliteConnectOptions::new().filename(&path).create_if_missing(true).connect().await.unwrap();
        sqlx::raw_sql("CREATE TABLE unit (name TEXT) STRICT;").execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = Store::open_or_replace(&path, true, 4_200).await.unwrap_err();
        assert!(matches!(error, StoreError::OtherForm(_)) && Diagnostic::of(&error).hint.is_some(), "{error}");
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["agent.db"]);
        assert!(std::fs::read(&path).unwrap() == before);
    }

    #[tokio::test]
    async fn errors_other_than_damage_are_returned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none").join("agent.db");
        assert!(Store::open_or_replace(&path, false, 0).await.is_err());
        assert!(!folder.path().join("none").exists());
    }
}
