//! One-time passwords for joining.

use muster_topics::{
    Millis,
    name::{Digest, HostId, Name},
};
use sqlx::{SqliteConnection, SqlitePool};

use super::{columns::parsed, error::StoreResult};

/// Adds a new token; only the hash of its secret is stored.
pub async fn add(
    db: &mut SqliteConnection,
    id: &Name,
    secret: &Digest,
    operator: &Name,
    (now, expires_ms): (Millis, Millis),
    replaces: Option<HostId>,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO token (id, secret_sha256, operator, created_ms, expires_ms, replaces)
         VALUES ($1, $2, $3, $4, $5, $6)",
        id.as_str(),
        secret.as_str(),
        operator.as_str(),
        now,
        expires_ms,
        replaces.map(|host| host.to_string())
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the host that a token lets join with another key, if any.
pub async fn replaces(db: &mut SqliteConnection, secret: &Digest) -> StoreResult<Option<HostId>> {
    let row = sqlx::query_scalar!("SELECT replaces FROM token WHERE secret_sha256 = $1", secret.as_str())
        .fetch_optional(db)
        .await?;
    row.flatten().map(|host| parsed("host id", &host)).transpose()
}

/// Uses a token. Only this statement marks one as used, so two hosts with the same token cannot both get it.
pub async fn consume(db: &mut SqliteConnection, secret: &Digest, host: HostId, now: Millis) -> StoreResult<bool> {
    let consumed = sqlx::query!(
        "UPDATE token SET used_ms = $2, used_by = $3
         WHERE secret_sha256 = $1 AND used_ms IS NULL AND revoked_ms IS NULL AND expires_ms > $2
           AND (replaces IS NULL OR replaces = $3)",
        secret.as_str(),
        now,
        host.to_string()
    )
    .execute(db)
    .await?;
    Ok(consumed.rows_affected() == 1)
}

/// Why a token could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    /// There is none with this secret.
    Unknown,
    /// A host has used it.
    UsedBy(HostId),
    /// An operator has revoked it.
    Revoked,
    /// It has expired.
    Expired,
    /// It is for another host.
    For(HostId),
}

/// Returns why [`consume`] did not accept a token.
pub async fn why_not(db: &mut SqliteConnection, secret: &Digest, now: Millis) -> StoreResult<TokenRefusal> {
    let row = sqlx::query!(
        "SELECT used_by, revoked_ms, expires_ms, replaces FROM token WHERE secret_sha256 = $1",
        secret.as_str()
    )
    .map(|row| (row.used_by, row.revoked_ms, row.expires_ms, row.replaces))
    .fetch_optional(db)
    .await?;
    Ok(match row {
        None => TokenRefusal::Unknown,
        Some((Some(host), ..)) => TokenRefusal::UsedBy(parsed("host id", &host)?),
        Some((None, Some(_), ..)) => TokenRefusal::Revoked,
        Some((None, None, expires_ms, Some(host))) if expires_ms > now => TokenRefusal::For(parsed("host id", &host)?),
        Some((None, None, ..)) => TokenRefusal::Expired,
    })
}

/// Revokes an unused token. Returns whether there is one of this id at all.
pub async fn revoke(db: &SqlitePool, id: &Name, now: Millis) -> StoreResult<bool> {
    let found = sqlx::query!("UPDATE token SET revoked_ms = COALESCE(revoked_ms, $2) WHERE id = $1", id.as_str(), now)
        .execute(db)
        .await?;
    Ok(found.rows_affected() > 0)
}

struct TokenRow {
    id: String,
    operator: String,
    created_ms: i64,
    expires_ms: i64,
    used_ms: Option<i64>,
    used_by: Option<String>,
    replaces: Option<String>,
}

/// Returns tokens that were not revoked, newest first.
pub async fn list(db: &SqlitePool) -> StoreResult<Vec<muster_api::Token>> {
    let rows = sqlx::query_as!(
        TokenRow,
        "SELECT id, operator, created_ms, expires_ms, used_ms, used_by, replaces FROM token
         WHERE revoked_ms IS NULL ORDER BY created_ms DESC, id"
    )
    .fetch_all(db)
    .await?;
    let token = |row: TokenRow| {
        let used_by = row.used_by.map(|host| parsed("host id", &host)).transpose()?;
        Ok(muster_api::Token {
            id: parsed("token id", &row.id)?,
            operator: parsed("operator", &row.operator)?,
            created_ms: row.created_ms,
            expires_ms: row.expires_ms,
            used: row.used_ms.zip(used_by),
            replaces: row.replaces.map(|host| parsed("host id", &host)).transpose()?,
        })
    };
    rows.into_iter().map(token).collect()
}

/// Removes tokens that expired before `before`.
pub async fn sweep(db: &SqlitePool, before: Millis) -> StoreResult<u64> {
    let gone = sqlx::query!("DELETE FROM token WHERE expires_ms < $1", before).execute(db).await?;
    Ok(gone.rows_affected())
}
