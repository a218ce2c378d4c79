//! Metric messages that the console has not acknowledged, ready to be published.
//!
//! A message keeps the epoch and number that it was created with, so messages of earlier starts of the agent wait
//! beside those of this one, and are acknowledged like them.
//!
//! **Invariant: a message is deleted only because a signed `ack` names it, or because the buffer is full or it is too
//! old**; then the oldest go first.

use std::time::Duration;

use muster_topics::{Millis, ack::Numbered};

use super::{Store, columns::to_json, error::StoreError};

/// The limits of waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Bytes, including the overhead of a row.
    pub max_bytes: u64,
    /// Age.
    pub max_age: Duration,
}

/// Stores messages, all or none.
///
/// # Errors
/// If the database fails.
pub async fn insert(store: &Store, messages: &[(Numbered, Vec<u8>)], now_ms: Millis) -> Result<(), StoreError> {
    let mut tx = store.begin_metrics().await?;
    for (id, payload) in messages {
        let (epoch, seq) = key(*id);
        sqlx::query!(
            "INSERT INTO metric_batch (epoch, seq, payload, created_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            epoch,
            seq,
            payload,
            now_ms
        )
        .execute(&mut *tx)
        .await?;
    }
    super::commit(tx, "keep metrics").await
}

/// Returns waiting messages, newest first: after a long time offline the console shows the present at once, and the
/// past is filled in later.
///
/// # Errors
/// If the database fails.
pub async fn pending(store: &Store, limit: usize) -> Result<Vec<(Numbered, Vec<u8>)>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows =
        sqlx::query!("SELECT epoch, seq, payload FROM metric_batch ORDER BY epoch DESC, seq DESC LIMIT ?", limit)
            .fetch_all(&store.pool)
            .await?;
    let number = |n: i64| u64::try_from(n).unwrap_or_default();
    Ok(rows.into_iter().map(|row| (Numbered { epoch: number(row.epoch), seq: number(row.seq) }, row.payload)).collect())
}

/// Returns the largest sequence number of an epoch that waits; 0 if there is none.
///
/// # Errors
/// If the database fails.
pub async fn last_seq(store: &Store, epoch: u64) -> Result<u64, StoreError> {
    let (epoch, _) = key(Numbered { epoch, seq: 0 });
    let last = sqlx::query_scalar!(r#"SELECT MAX(seq) AS "seq: i64" FROM metric_batch WHERE epoch = ?"#, epoch)
        .fetch_one(&store.pool)
        .await?;
    Ok(last.and_then(|seq| u64::try_from(seq).ok()).unwrap_or_default())
}

/// Removes messages that the console has stored. A missing one is no error: it was acknowledged twice.
///
/// # Errors
/// If the database fails.
pub async fn delete(store: &Store, ids: &[Numbered]) -> Result<(), StoreError> {
    let keys = to_json("numbers of messages", &ids.iter().copied().map(key).collect::<Vec<_>>())?;
    let mut tx = store.begin_metrics().await?;
    sqlx::query!(
        "DELETE FROM metric_batch WHERE (epoch, seq) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))",
        keys
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "forget metrics").await
}

/// Removes messages that are too old, and the oldest beyond the limit; returns their number.
///
/// It reads all waiting messages, so it is not called with every insertion.
///
/// # Errors
/// If the database fails.
pub async fn trim(store: &Store, limits: BacklogLimits, now_ms: Millis) -> Result<u64, StoreError> {
    let max_bytes = i64::try_from(limits.max_bytes).unwrap_or(i64::MAX);
    let first_ms = now_ms.saturating_sub(Millis::try_from(limits.max_age.as_millis()).unwrap_or(Millis::MAX));
    let mut tx = store.begin_metrics().await?;
    // 24 bytes: key, time and the row's header.
    let done = sqlx::query!(
        "DELETE FROM metric_batch WHERE created_ms < ? OR (epoch, seq) IN (
             SELECT epoch, seq FROM (
                 SELECT epoch, seq, SUM(LENGTH(payload) + 24) OVER (ORDER BY epoch DESC, seq DESC) AS newer_bytes
                 FROM metric_batch
             ) WHERE newer_bytes > ?
         )",
        first_ms,
        max_bytes
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "trim metrics").await?;
    Ok(done.rows_affected())
}

/// Figures of the store itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFigures {
    /// Messages about commands that wait for the console.
    pub outbox: u64,
    /// Metric messages that wait for the console.
    pub metrics: u64,
    /// The size of the store's file.
    pub size_bytes: u64,
}

/// Returns the figures of the store.
///
/// # Errors
/// If the database fails.
pub async fn figures(store: &Store) -> Result<StoreFigures, StoreError> {
    let row = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM outbox) AS "outbox!: i64", (SELECT count(*) FROM metric_batch) AS "metrics!: i64",
                  page_count * page_size AS "size_bytes!: i64" FROM pragma_page_count(), pragma_page_size()"#
    )
    .fetch_one(&store.pool)
    .await?;
    let number = |n: i64| u64::try_from(n).unwrap_or_default();
    Ok(StoreFigures { outbox: number(row.outbox), metrics: number(row.metrics), size_bytes: number(row.size_bytes) })
}

/// Converts to SQLite's signed integers. A larger number from outside names no message.
fn key(id: Numbered) -> (i64, i64) {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    (number(id.epoch), number(id.seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const NOW: Millis = 1_800_000_000_000;

    fn id(epoch: u64, seq: u64) -> Numbered {
        Numbered { epoch, seq }
    }

    async fn fill(store: &Store, ids: &[(u64, u64)], bytes: usize, now_ms: Millis) {
        let messages: Vec<_> = ids.iter().map(|(epoch, seq)| (id(*epoch, *seq), vec![*seq as u8; bytes])).collect();
        insert(store, &messages, now_ms).await.unwrap();
    }

    async fn waiting(store: &Store) -> Vec<(u64, u64)> {
        pending(store, 100).await.unwrap().iter().map(|(id, _)| (id.epoch, id.seq)).collect()
    }

    #[tokio::test]
    async fn batches_are_kept_until_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let store = Store::open(&path).await.unwrap();
        fill(&store, &[(1, 1), (1, 2), (1, 3)], 10, NOW).await;
        drop(store);

        let store = Store::open(&path).await.unwrap();
        fill(&store, &[(2, 1), (2, 1)], 20, NOW).await;
        assert_eq!(waiting(&store).await, [(2, 1), (1, 3), (1, 2), (1, 1)], "the newest first");
        assert_eq!(pending(&store, 2).await.unwrap(), [(id(2, 1), vec![1; 20]), (id(1, 3), vec![3; 10])]);
        delete(&store, &[id(1, 2), id(1, 9), id(u64::MAX, u64::MAX)]).await.unwrap();
        delete(&store, &[id(1, 2)]).await.unwrap();
        assert_eq!(waiting(&store).await, [(2, 1), (1, 3), (1, 1)]);
        let StoreFigures { outbox, metrics, size_bytes } = figures(&store).await.unwrap();
        assert_eq!((outbox, metrics), (0, 3));
        assert!(size_bytes >= 4096);
        for (epoch, seq) in [(1, 3), (2, 1), (3, 0), (u64::MAX, 0)] {
            assert_eq!(last_seq(&store, epoch).await.unwrap(), seq, "{epoch}");
        }
    }

    #[tokio::test]
    async fn full_buffer_drops_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        fill(&store, &[(1, 1), (1, 2)], 976, NOW - 2 * 24 * 3_600_000).await;
        fill(&store, &[(1, 3), (2, 1), (2, 2)], 976, NOW).await;
        for (max_bytes, max_age, deleted, left) in [
            (5_000, 3 * DAY, 0, &[(2, 2), (2, 1), (1, 3), (1, 2), (1, 1)][..]),
            (4_999, 3 * DAY, 1, &[(2, 2), (2, 1), (1, 3), (1, 2)]),
            (1 << 20, DAY, 1, &[(2, 2), (2, 1), (1, 3)]),
            (2_000, DAY, 1, &[(2, 2), (2, 1)]),
            (1, Duration::MAX, 2, &[]),
        ] {
            let limits = BacklogLimits { max_bytes, max_age };
            assert_eq!(trim(&store, limits, NOW).await.unwrap(), deleted, "{limits:?}");
            assert_eq!(waiting(&store).await, left, "{limits:?}");
        }
    }
}
