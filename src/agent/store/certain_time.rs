//! The time that has certainly come, by which the agent removes what is over ([`CertainClock`]). A console whose clock agrees with
//! the host's confirms it.

use muster_base::{
    certain_clock::{CertainClock, StoredTime},
    clock::{self, Uptime},
};
use muster_rules::time::SLACK_MS;
use muster_topics::Millis;
use sqlx::SqlitePool;

use super::{Store, error::StoreError};

/// Continues with what the store has. A new store believes the clock; one that has lost it goes by what the console has signed.
pub(super) async fn open(pool: &SqlitePool) -> Result<CertainClock, StoreError> {
    let rows =
        sqlx::query!("SELECT key, value FROM meta WHERE key IN ('certain_ms', 'uptime_ms', 'boot', 'signed_ms')")
            .fetch_all(pool)
            .await?;
    let value = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.value);
    let uptime = value("boot").zip(value("uptime_ms")).map(|(boot, ms)| Uptime { boot, ms });
    let stored: Option<StoredTime> = value("certain_ms").map(|certain_ms| (certain_ms, uptime));
    let otherwise_ms = value("signed_ms").filter(|signed_ms| *signed_ms > 0).unwrap_or_else(clock::now_ms);
    Ok(CertainClock::continued(stored, otherwise_ms))
}

impl Store {
    /// The time that has certainly come.
    #[must_use]
    pub fn certain_ms(&self) -> Millis {
        self.time.now()
    }

    /// Records what time the console has just said that it is. Two clocks that agree confirm each other.
    pub fn console_time(&self, issued_ms: Millis, clock_ms: Millis) {
        if issued_ms.abs_diff(clock_ms) <= SLACK_MS.unsigned_abs() {
            self.time.confirm(issued_ms.min(clock_ms));
        }
    }

    /// Goes on with the certain time, and stores how far it is, now and then.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn keep_time(&self) -> Result<(), StoreError> {
        let Some((certain_ms, uptime)) = self.time.take_due() else { return Ok(()) };
        // Which start of the machine it was is unknown: none is the same.
        let Uptime { boot, ms } = uptime.unwrap_or(Uptime { boot: -1, ms: 0 });
        let stored = async {
            let mut tx = self.begin().await?;
            sqlx::query!(
                "INSERT INTO meta (key, value) VALUES ('certain_ms', ?), ('uptime_ms', ?), ('boot', ?)
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                certain_ms,
                ms,
                boot
            )
            .execute(&mut *tx)
            .await?;
            super::commit(tx, "keep time").await
        };
        let stored = stored.await;
        if stored.is_err() {
            self.time.not_stored();
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_base::clock::pretended;

    use super::*;
    use crate::store::metric::{self, BacklogLimits};

    const DAY: Millis = 86_400_000;

    #[tokio::test]
    async fn clock_that_is_ahead_removes_nothing_until_the_console_agrees() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let mut store = Store::open(&path).await.unwrap();
        let limits = BacklogLimits { max_bytes: 1 << 20, max_age: Duration::from_secs(7 * 24 * 3600) };
        let insert = "INSERT INTO metric_batch (epoch, seq, payload, created_ms) VALUES (1, 1, x'00', ?)";
        sqlx::query(insert).bind(clock::now_ms()).execute(&store.pool).await.unwrap();
        for ahead_ms in [31 * DAY, 400 * DAY] {
            pretended::set_ahead(ahead_ms);
            assert_eq!(metric::trim(&store, limits, store.certain_ms()).await.unwrap(), 0, "{ahead_ms}");
            // A console whose clock is another one confirms nothing.
            store.console_time(clock::now_ms() - ahead_ms, clock::now_ms());
            store.keep_time().await.unwrap();
            store.close().await;
            store = Store::open(&path).await.unwrap();
            assert_eq!(metric::trim(&store, limits, store.certain_ms()).await.unwrap(), 0, "{ahead_ms}");
        }
        store.console_time(clock::now_ms(), clock::now_ms());
        assert_eq!(metric::trim(&store, limits, store.certain_ms()).await.unwrap(), 1);
        pretended::set_ahead(0);
    }
}
