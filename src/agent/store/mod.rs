//! The agent's store: SQLite, one writer, every query checked when the agent is compiled.
//!
//! Modules, in reading order: [`journal`] and [`outbox`] (commands and their answers), [`unit`]
//! (what units should be), [`metric`] (measurements that wait for the console).
//!
//! The queries are checked against `.sqlx/`, which `tests/prepare` writes anew from the migrations.

pub mod journal;
pub mod metric;
pub mod outbox;
pub mod unit;

use std::path::Path;

use sqlx::{
    Sqlite, SqlitePool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

/// Something went wrong with the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A statement failed.
    #[error("the agent's store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the agent's store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// What is stored cannot be read back.
    #[error("the agent's store holds a {what} that cannot be read: {source}")]
    Content {
        /// What.
        what: &'static str,
        /// Why not.
        source: serde_json::Error,
    },
}

/// The agent's store. Clones share one connection, so that there is one writer and no lock to wait for.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens the store in `path`, and makes it if there is none.
    ///
    /// # Errors
    /// If it cannot be opened or brought up to date.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // What is acknowledged must survive a power cut.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // The agent's budget is small, and so are its tables: 512 KiB of pages is plenty.
            .pragma("cache_size", "-512");
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        sqlx::migrate!("src/agent/store/migrations").run(&pool).await?;
        Ok(Self { pool })
    }

    /// Begins a transaction. There is one connection: end it before the next is asked for.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        Ok(self.pool.begin().await?)
    }
}
