//! What replacing the signing key needs of the store: which keys members have, and the commands that are to be signed again.

use muster_rules::rotation::MemberKeys;
use muster_topics::name::CommandId;
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, parsed, unsigned},
    error::StoreResult,
};

/// Returns what is known of each member's keys, with its hostname, sorted by that.
pub async fn members(db: &SqlitePool) -> StoreResult<Vec<(String, MemberKeys)>> {
    let rows = sqlx::query!(
        r#"SELECT host.id AS "id!", host.hostname AS "hostname!", json_extract(heartbeat.state, '$.command_keys') AS "keys?: String",
                  json_extract(heartbeat.state, '$.numbers.command_keys') AS "number?: i64",
                  max(certificate.expires_ms) AS "expires_ms!: i64"
           FROM host JOIN certificate ON certificate.host = host.id AND certificate.revoked_ms IS NULL
           LEFT JOIN heartbeat ON heartbeat.host = host.id
           GROUP BY host.id ORDER BY host.hostname, host.id"#
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            let member = MemberKeys {
                host: parsed("host id", &row.id)?,
                keys: row.keys.map(|keys| json("command keys", &keys)).transpose()?,
                number: row.number.map_or(Ok(0), |number| unsigned("number", number))?,
                certificate_expires_ms: row.expires_ms,
            };
            Ok((row.hostname, member))
        })
        .collect()
}

/// Returns the signed bytes of all commands that some host has not ended yet.
pub async fn open_signed(db: &mut SqliteConnection) -> StoreResult<Vec<(CommandId, Vec<u8>)>> {
    let rows = sqlx::query!(
        "SELECT id, signed FROM command WHERE length(signed) > 0 AND EXISTS (
             SELECT 1 FROM command_host
             WHERE command_host.command = command.id AND state IN ('waiting', 'accepted', 'running'))"
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| Ok((parsed("command id", &row.id)?, row.signed))).collect()
}

/// Replaces the signed bytes of a command by the same body with another signature.
pub async fn set_signed(db: &mut SqliteConnection, command: CommandId, signed: &[u8]) -> StoreResult<()> {
    sqlx::query!("UPDATE command SET signed = $2 WHERE id = $1", command.to_string(), signed).execute(db).await?;
    Ok(())
}
