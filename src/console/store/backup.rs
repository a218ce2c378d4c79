//! Backups that were made.

use muster_api::{Backup, BackupKind};
use muster_topics::Millis;
use sqlx::SqlitePool;

use super::{
    columns::{from_word, json, parsed, signed, to_json, unsigned, word},
    error::StoreResult,
};

/// Adds a backup that is complete.
pub async fn add(db: &SqlitePool, backup: &Backup) -> StoreResult<()> {
    let (kind, parts) = (word("kind of a backup", &backup.kind)?, to_json("parts of a backup", &backup.parts)?);
    let operator = backup.operator.as_ref().map(|operator| operator.as_str().to_owned());
    let (bytes, hosts) = (signed(backup.bytes), signed(backup.hosts));
    sqlx::query!(
        "INSERT INTO backup (id, kind, name, operator, taken_ms, finished_ms, bytes, hosts, parts)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        backup.id.as_str(),
        kind,
        &backup.name,
        operator,
        backup.taken_ms,
        backup.finished_ms,
        bytes,
        hosts,
        parts
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the last backups, newest first.
pub async fn list(db: &SqlitePool, limit: u32) -> StoreResult<Vec<Backup>> {
    let rows = sqlx::query!(
        "SELECT id, kind, name, operator, taken_ms, finished_ms, bytes, hosts, parts
         FROM backup ORDER BY number DESC LIMIT $1",
        limit
    )
    .fetch_all(db)
    .await?;
    let backups = rows.into_iter().map(|row| {
        Ok(Backup {
            id: parsed("id of a backup", &row.id)?,
            kind: from_word("kind of a backup", &row.kind)?,
            name: row.name,
            path: None,
            operator: row.operator.map(|operator| parsed("operator", &operator)).transpose()?,
            taken_ms: row.taken_ms,
            finished_ms: row.finished_ms,
            bytes: unsigned("bytes of a backup", row.bytes)?,
            hosts: unsigned("hosts of a backup", row.hosts)?,
            parts: json("parts of a backup", &row.parts)?,
        })
    });
    backups.collect()
}

/// Returns when the last backup was taken: any, and of this kind. One that was taken while the clock was ahead says nothing of
/// its age but that it is younger than those before it: the last of these counts.
pub async fn last_taken_ms(
    db: &SqlitePool,
    kind: BackupKind,
    now: Millis,
) -> StoreResult<(Option<Millis>, Option<Millis>)> {
    let kind = word("kind of a backup", &kind)?;
    let row = sqlx::query!(
        r#"SELECT (SELECT taken_ms FROM backup WHERE taken_ms <= $2 ORDER BY number DESC LIMIT 1) AS "any: i64",
                  (SELECT taken_ms FROM backup WHERE kind = $1 AND taken_ms <= $2
                   ORDER BY number DESC LIMIT 1) AS "of_kind: i64""#,
        kind,
        now
    )
    .fetch_one(db)
    .await?;
    Ok((row.any, row.of_kind))
}

/// Returns the names of the backups of a kind, in the order in which they were made.
pub async fn names(db: &SqlitePool, kind: BackupKind) -> StoreResult<Vec<String>> {
    let kind = word("kind of a backup", &kind)?;
    Ok(sqlx::query_scalar!("SELECT name FROM backup WHERE kind = $1 ORDER BY number", kind).fetch_all(db).await?)
}

/// Removes records of backups, except for the newest.
pub async fn sweep(db: &SqlitePool, keep: u32) -> StoreResult<u64> {
    let gone =
        sqlx::query!("DELETE FROM backup WHERE id NOT IN (SELECT id FROM backup ORDER BY number DESC LIMIT $1)", keep)
            .execute(db)
            .await?;
    Ok(gone.rows_affected())
}
