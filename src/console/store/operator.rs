//! Operators and their secrets. A secret is looked up by its SHA-256, so the store contains nothing that
//! could be used to sign in, and the time of a look-up reveals nothing about a secret.

use muster_topics::{
    Millis,
    name::{Digest, Name},
};
use sqlx::{SqliteConnection, SqlitePool};

use super::{columns::parsed, error::StoreResult};

/// The purpose of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretPurpose {
    /// A code to be exchanged, once, for one of the others.
    SignIn,
    /// A browser's session.
    Session,
    /// A program's token.
    Api,
}

impl SecretPurpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::SignIn => "sign_in",
            Self::Session => "session",
            Self::Api => "api",
        }
    }
}

/// Adds an operator, unless it exists.
pub async fn ensure(db: &SqlitePool, name: &Name, now: Millis) -> StoreResult<()> {
    // Read first: on a full disk nothing can be written, and usually nothing has to be.
    if exists(db, name).await? {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO operator (name, created_ms) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
        name.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Whether an operator exists.
pub async fn exists(db: &SqlitePool, name: &Name) -> StoreResult<bool> {
    let found = sqlx::query_scalar!("SELECT 1 FROM operator WHERE name = $1", name.as_str()).fetch_optional(db).await?;
    Ok(found.is_some())
}

/// Stores a secret of an operator.
pub async fn add_secret(
    db: &mut SqliteConnection,
    kind: SecretPurpose,
    secret: &Digest,
    operator: &Name,
    now: Millis,
    expires_ms: Millis,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO credential (secret_sha256, kind, operator, created_ms, expires_ms, id)
         VALUES ($1, $2, $3, $4, $5, $6)",
        secret.as_str(),
        kind.as_str(),
        operator.as_str(),
        now,
        expires_ms,
        // Its id in lists: too little of the hash to reveal anything about the secret.
        secret.as_str().get(..10)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the operator of a valid secret of this kind, and whether its use was recorded within the last hour.
pub async fn find(
    db: &SqlitePool,
    kind: SecretPurpose,
    secret: &Digest,
    now: Millis,
) -> StoreResult<Option<(Name, bool)>> {
    let row = sqlx::query!(
        r#"SELECT operator, coalesce(used_ms, 0) >= $3 - 3600000 AS "is_noted!: bool" FROM credential
           WHERE secret_sha256 = $1 AND kind = $2 AND revoked_ms IS NULL
           AND (expires_ms IS NULL OR expires_ms > $3)"#,
        secret.as_str(),
        kind.as_str(),
        now
    )
    .map(|row| (row.operator, row.is_noted))
    .fetch_optional(db)
    .await?;
    row.map(|(name, is_noted)| Ok((parsed("operator", &name)?, is_noted))).transpose()
}

/// Removes a secret, and returns its operator if it was valid. It is one statement, so that two requests with the same
/// code cannot both get it.
pub async fn take(
    db: &mut SqliteConnection,
    kind: SecretPurpose,
    secret: &Digest,
    now: Millis,
) -> StoreResult<Option<Name>> {
    let row = sqlx::query!(
        "DELETE FROM credential WHERE secret_sha256 = $1 AND kind = $2 AND revoked_ms IS NULL
         RETURNING operator, expires_ms",
        secret.as_str(),
        kind.as_str()
    )
    .map(|row| (row.operator, row.expires_ms))
    .fetch_optional(db)
    .await?;
    match row {
        Some((name, expires_ms)) if expires_ms.is_none_or(|at| at > now) => parsed("operator", &name).map(Some),
        _ => Ok(None),
    }
}

/// Records the use of a secret, unless it was recorded within the last hour: one write an hour for each session.
pub async fn note_use(db: &SqlitePool, secret: &Digest, now: Millis) -> StoreResult<()> {
    sqlx::query!(
        "UPDATE credential SET used_ms = $2 WHERE secret_sha256 = $1 AND coalesce(used_ms, 0) < $2 - 3600000",
        secret.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

struct CredentialRow {
    id: String,
    kind: String,
    operator: String,
    created_ms: i64,
    expires_ms: i64,
    used_ms: Option<i64>,
}

/// Returns valid sessions and programs' tokens, newest first.
pub async fn list(db: &SqlitePool, now: Millis) -> StoreResult<Vec<muster_api::SignIn>> {
    let rows = sqlx::query_as!(
        CredentialRow,
        r#"SELECT id AS "id!", kind, operator, created_ms, expires_ms AS "expires_ms!", used_ms FROM credential
           WHERE kind IN ('session', 'api') AND revoked_ms IS NULL AND id IS NOT NULL AND expires_ms > $1
           ORDER BY created_ms DESC, id"#,
        now
    )
    .fetch_all(db)
    .await?;
    let sign_in = |row: CredentialRow| {
        Ok(muster_api::SignIn {
            id: parsed("id", &row.id)?,
            kind: if row.kind == "session" { muster_api::SignInKind::Browser } else { muster_api::SignInKind::Program },
            operator: parsed("operator", &row.operator)?,
            created_ms: row.created_ms,
            expires_ms: row.expires_ms,
            used_ms: row.used_ms,
        })
    };
    rows.into_iter().map(sign_in).collect()
}

/// Ends one of those that [`list`] returns. Returns whether there is one.
pub async fn end_by_id(db: &SqlitePool, id: &Name, now: Millis) -> StoreResult<bool> {
    let ended = sqlx::query!(
        "UPDATE credential SET revoked_ms = $2
         WHERE id = $1 AND kind IN ('session', 'api') AND revoked_ms IS NULL AND expires_ms > $2",
        id.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Ends a secret before its expiry. It is remembered until then, so that a restored copy of the store does not make it
/// valid again.
pub async fn end(db: &SqlitePool, kind: SecretPurpose, secret: &Digest, now: Millis) -> StoreResult<bool> {
    let ended = sqlx::query!(
        "UPDATE credential SET revoked_ms = $3 WHERE secret_sha256 = $1 AND kind = $2 AND revoked_ms IS NULL",
        secret.as_str(),
        kind.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Removes expired secrets.
pub async fn sweep(db: &SqlitePool, now: Millis) -> StoreResult<u64> {
    let gone = sqlx::query!("DELETE FROM credential WHERE expires_ms <= $1", now).execute(db).await?;
    Ok(gone.rows_affected())
}
