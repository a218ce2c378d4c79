//! Removed hosts. Their commands and their revoked certificates are kept.

use muster_topics::{
    Millis,
    name::{CommandId, HostId},
};
use sqlx::{SqliteConnection, SqlitePool};

use super::{columns::parsed, error::StoreResult};

/// Removes a host with its reports and what was sent to it alone. Returns its open commands, which end.
pub async fn remove(db: &mut SqliteConnection, host: HostId, now: Millis) -> StoreResult<Vec<CommandId>> {
    let id = host.to_string();
    sqlx::query!(
        "INSERT INTO removed (serial, expires_ms, revoked_ms)
         SELECT serial, expires_ms, COALESCE(revoked_ms, $2) FROM certificate
         WHERE host = $1 AND expires_ms > $2",
        &id,
        now
    )
    .execute(&mut *db)
    .await?;
    let owed = sqlx::query_scalar!(
        "UPDATE command_host SET state = 'missing'
         WHERE host = $1 AND state IN ('waiting', 'accepted', 'running') RETURNING command",
        &id
    )
    .fetch_all(&mut *db)
    .await?;
    // Rows that refer to it are deleted with it; these are not, because they may concern all hosts.
    sqlx::query!("DELETE FROM alert WHERE host = $1", id).execute(&mut *db).await?;
    sqlx::query!("DELETE FROM alert_rule WHERE host = $1", id).execute(&mut *db).await?;
    sqlx::query!("DELETE FROM alert_generation WHERE host = $1", id).execute(&mut *db).await?;
    sqlx::query!("DELETE FROM alert_silence WHERE host = $1", id).execute(&mut *db).await?;
    sqlx::query!("DELETE FROM host WHERE id = $1", id).execute(&mut *db).await?;
    owed.iter().map(|command| parsed("command id", command)).collect()
}

/// Removes certificates that expired before `before`.
pub async fn sweep(db: &SqlitePool, before: Millis) -> StoreResult<u64> {
    let gone = sqlx::query!("DELETE FROM removed WHERE expires_ms < $1", before).execute(db).await?;
    Ok(gone.rows_affected())
}
