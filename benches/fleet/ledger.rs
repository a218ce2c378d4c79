//! The console's store, read beside it: what is there is what counts as stored.

use std::path::Path;

use anyhow::Result;
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::runtime::{Builder, Runtime};

pub(crate) struct Ledger {
    runtime: Runtime,
    pool: SqlitePool,
}

impl Ledger {
    pub(crate) fn open(console: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let options = SqliteConnectOptions::new().filename(console.join("console.db")).read_only(true);
        let pool = runtime.block_on(SqlitePoolOptions::new().max_connections(1).connect_with(options))?;
        Ok(Self { runtime, pool })
    }

    fn count(&self, sql: &'static str, bound: i64) -> Result<u64> {
        let (count,): (i64,) = self.runtime.block_on(sqlx::query_as(sql).bind(bound).fetch_one(&self.pool))?;
        Ok(u64::try_from(count)?)
    }

    /// Number of hosts that are online since this time.
    pub(crate) fn online(&self, since_ms: i64) -> Result<u64> {
        self.count("SELECT count(*) FROM presence WHERE state = 'online' AND since_ms >= $1", since_ms)
    }

    /// Number of hosts that are online and have sent a heartbeat since this time.
    pub(crate) fn in_sync(&self, since_ms: i64) -> Result<u64> {
        self.count(
            "SELECT count(*) FROM heartbeat JOIN presence ON presence.host = heartbeat.host
             WHERE heartbeat.at_ms >= $1 AND presence.state = 'online'",
            since_ms,
        )
    }

    /// Number of hosts that have reported something since this time.
    pub(crate) fn heard_since(&self, since_ms: i64) -> Result<u64> {
        self.count("SELECT count(*) FROM heartbeat WHERE at_ms >= $1", since_ms)
    }

    /// Number of hosts that report the document that they should have, made since this time.
    pub(crate) fn documents_since(&self, since_ms: i64) -> Result<u64> {
        self.count(
            "SELECT count(*) FROM heartbeat JOIN host_document USING (host)
             WHERE made_ms >= $1 AND state ->> '$.desired.digest' = digest",
            since_ms,
        )
    }

    /// Number of rollouts that have begun since this time.
    pub(crate) fn rollouts(&self, since_ms: i64) -> Result<u64> {
        self.count("SELECT count(*) FROM rollout WHERE begun_ms >= $1", since_ms)
    }

    /// Number of those that have ended.
    pub(crate) fn ended_rollouts(&self, since_ms: i64) -> Result<u64> {
        self.count("SELECT count(*) FROM rollout WHERE begun_ms >= $1 AND ended_ms IS NOT NULL", since_ms)
    }

    /// Number of hosts that are verified in rollouts that have begun since this time.
    pub(crate) fn verified(&self, since_ms: i64) -> Result<u64> {
        self.count(
            "SELECT count(*) FROM rollout_host JOIN rollout USING (deployment, version)
             WHERE begun_ms >= $1 AND outcome = 'verified'",
            since_ms,
        )
    }

    /// Number of commands.
    pub(crate) fn commands(&self) -> Result<u64> {
        self.count("SELECT count(*) FROM command WHERE issued_ms >= $1", 0)
    }

    /// Whether any outcome is missing. Called every few milliseconds during a measurement, so it does not count them.
    pub(crate) fn is_any_open(&self) -> Result<bool> {
        let sql = "SELECT EXISTS (
            SELECT 1 FROM command_host WHERE state IN ('waiting', 'accepted', 'running')) WHERE $1 = 0";
        Ok(self.count(sql, 0)? == 1)
    }

    /// Number of missing outcomes.
    pub(crate) fn open_outcomes(&self) -> Result<u64> {
        self.count("SELECT count(*) FROM command_host WHERE state IN ('waiting', 'accepted', 'running') AND $1 = 0", 0)
    }

    /// Number of outcomes of the newest command.
    pub(crate) fn outcomes(&self) -> Result<u64> {
        self.count(
            "SELECT count(*) FROM command_host WHERE command = (SELECT max(id) FROM command) AND state = 'done' AND $1 = 0",
            0,
        )
    }
}
