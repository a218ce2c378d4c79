//! Messages about commands that the console has not acknowledged.
//!
//! **Invariant: a row is deleted only when a signed `ack` names it.** MQTT's acknowledgement
//! means nothing here: brokers drop messages for a slow subscriber.

use muster_topics::{Millis, ack::ReportAck, name::CommandId};
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_sql, to_sql},
    error::StoreError,
    remember_signed_time,
};

/// Inserts a message, in the transaction of its cause. An existing one is unchanged.
pub(super) async fn insert(tx: &mut SqliteConnection, key: ReportAck, payload: &[u8]) -> Result<(), StoreError> {
    let (command, seq) = (key.command.to_string(), to_sql(key.seq));
    sqlx::query!(
        "INSERT INTO outbox (command, seq, payload) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        command,
        seq,
        payload
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Returns the first messages in the order of their commands' ids, which is that of their creation.
///
/// # Errors
/// If the database fails.
pub async fn first(store: &Store, limit: usize) -> Result<Vec<ReportAck>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = sqlx::query!("SELECT command, seq FROM outbox ORDER BY command, seq LIMIT ?", limit)
        .fetch_all(&store.pool)
        .await?;
    rows.into_iter().map(|row| Ok(ReportAck { command: id(&row.command)?, seq: from_sql(row.seq) })).collect()
}

/// Returns the total length of all messages.
///
/// # Errors
/// If the database fails.
pub async fn bytes(store: &Store) -> Result<u64, StoreError> {
    let bytes = sqlx::query_scalar!("SELECT coalesce(sum(length(payload)), 0) AS 'bytes!: i64' FROM outbox");
    Ok(from_sql(bytes.fetch_one(&store.pool).await?))
}

/// Returns one message, if it still waits.
///
/// # Errors
/// If the database fails.
pub async fn payload(store: &Store, key: ReportAck) -> Result<Option<Vec<u8>>, StoreError> {
    let (command, seq) = (key.command.to_string(), to_sql(key.seq));
    Ok(sqlx::query_scalar!("SELECT payload FROM outbox WHERE command = ? AND seq = ?", command, seq)
        .fetch_optional(&store.pool)
        .await?)
}

/// Removes messages that the console has stored, and stores the signed time of the acknowledgement.
///
/// # Errors
/// If the database fails.
pub async fn acknowledge(store: &Store, keys: &[ReportAck], signed_ms: Millis) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    for key in keys {
        let (command, seq) = (key.command.to_string(), to_sql(key.seq));
        sqlx::query!("DELETE FROM outbox WHERE command = ? AND seq = ?", command, seq).execute(&mut *tx).await?;
    }
    remember_signed_time(&mut tx, signed_ms).await?;
    super::commit(tx, "acknowledge").await
}

/// Parses a command's id.
pub(super) fn id(text: &str) -> Result<CommandId, StoreError> {
    text.parse().map_err(|error| StoreError::Sql(sqlx::Error::Decode(Box::new(error))))
}
