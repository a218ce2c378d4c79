//! Operators and their secrets. A secret is looked up by its SHA-256, so the store contains nothing that
//! could be used to sign in, and the time of a look-up reveals nothing about a secret.

use muster_topics::{
    Millis,
    name::{Digest, Name},
};
use sqlx::{FromRow, SqliteConnection, SqlitePool};

use super::{columns::parsed, error::StoreResult};

/// What a secret is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretPurpose {
    /// To be exchanged, once, for one of the others.
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

/// Makes an operator, if there is none of this name.
pub async fn ensure(db: &SqlitePool, name: &Name, now: Millis) -> StoreResult<()> {
    // Read first: on a disk without room nothing can be written, and mostly nothing has to.
    if exists(db, name).await? {
        return Ok(());
    }
    sqlx::query("INSERT INTO operator (name, created_ms) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
        .bind(name.as_str())
        .bind(now)
        .execute(db)
        .await?;
    Ok(())
}

/// Whether there is such an operator.
pub async fn exists(db: &SqlitePool, name: &Name) -> StoreResult<bool> {
    let found: Option<(i64,)> =
        sqlx::query_as("SELECT 1 FROM operator WHERE name = $1").bind(name.as_str()).fetch_optional(db).await?;
    Ok(found.is_some())
}

/// Enters a secret of an operator.
pub async fn add_secret(
    db: &mut SqliteConnection,
    kind: SecretPurpose,
    secret: &Digest,
    operator: &Name,
    now: Millis,
    expires_ms: Millis,
) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO credential (secret_sha256, kind, operator, created_ms, expires_ms, id) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(secret.as_str())
    .bind(kind.as_str())
    .bind(operator.as_str())
    .bind(now)
    .bind(expires_ms)
    // What it is called in listings: too little of its hash to say anything of the secret.
    .bind(secret.as_str().get(..10))
    .execute(db)
    .await?;
    Ok(())
}

/// Whose secret this is, if it is one of the kind, and its time is not over.
/// Says too whether its use was noted within the last hour.
pub async fn find(
    db: &SqlitePool,
    kind: SecretPurpose,
    secret: &Digest,
    now: Millis,
) -> StoreResult<Option<(Name, bool)>> {
    let row: Option<(String, bool)> = sqlx::query_as(
        "SELECT operator, coalesce(used_ms, 0) >= $3 - 3600000 FROM credential
         WHERE secret_sha256 = $1 AND kind = $2 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $3)",
    )
    .bind(secret.as_str())
    .bind(kind.as_str())
    .bind(now)
    .fetch_optional(db)
    .await?;
    row.map(|(name, is_noted)| Ok((parsed("operator", &name)?, is_noted))).transpose()
}

/// Takes a secret away, and says whose it was if its time was not over. The statement is one, so two
/// that come with the same code cannot both have it.
pub async fn take(
    db: &mut SqliteConnection,
    kind: SecretPurpose,
    secret: &Digest,
    now: Millis,
) -> StoreResult<Option<Name>> {
    let row: Option<(String, Option<i64>)> = sqlx::query_as(
        "DELETE FROM credential WHERE secret_sha256 = $1 AND kind = $2 AND revoked_ms IS NULL RETURNING operator, expires_ms",
    )
    .bind(secret.as_str())
    .bind(kind.as_str())
    .fetch_optional(db)
    .await?;
    match row {
        Some((name, expires_ms)) if expires_ms.is_none_or(|at| at > now) => parsed("operator", &name).map(Some),
        _ => Ok(None),
    }
}

/// Notes that a secret was used, if that was not noted within the last hour: one write an hour for each who is signed in.
pub async fn note_use(db: &SqlitePool, secret: &Digest, now: Millis) -> StoreResult<()> {
    sqlx::query("UPDATE credential SET used_ms = $2 WHERE secret_sha256 = $1 AND coalesce(used_ms, 0) < $2 - 3600000")
        .bind(secret.as_str())
        .bind(now)
        .execute(db)
        .await?;
    Ok(())
}

#[derive(FromRow)]
struct CredentialRow {
    id: String,
    kind: String,
    operator: String,
    created_ms: i64,
    expires_ms: i64,
    used_ms: Option<i64>,
}

/// Sessions and programs' tokens that are good, newest first.
pub async fn list(db: &SqlitePool, now: Millis) -> StoreResult<Vec<muster_api::SignIn>> {
    let rows: Vec<CredentialRow> = sqlx::query_as(
        "SELECT id, kind, operator, created_ms, expires_ms, used_ms FROM credential
         WHERE kind IN ('session', 'api') AND revoked_ms IS NULL AND id IS NOT NULL AND expires_ms > $1
         ORDER BY created_ms DESC, id",
    )
    .bind(now)
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

/// Ends one of those that [`list`] shows. Says whether there is one.
pub async fn end_by_id(db: &SqlitePool, id: &Name, now: Millis) -> StoreResult<bool> {
    let ended = sqlx::query(
        "UPDATE credential SET revoked_ms = $2
         WHERE id = $1 AND kind IN ('session', 'api') AND revoked_ms IS NULL AND expires_ms > $2",
    )
    .bind(id.as_str())
    .bind(now)
    .execute(db)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Ends a secret before its time. It is remembered until then, so that a copy of the store that is put back does not make it good again.
pub async fn end(db: &SqlitePool, kind: SecretPurpose, secret: &Digest, now: Millis) -> StoreResult<bool> {
    let ended = sqlx::query(
        "UPDATE credential SET revoked_ms = $3 WHERE secret_sha256 = $1 AND kind = $2 AND revoked_ms IS NULL",
    )
    .bind(secret.as_str())
    .bind(kind.as_str())
    .bind(now)
    .execute(db)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Forgets secrets whose time is over.
pub async fn sweep(db: &SqlitePool, now: Millis) -> StoreResult<u64> {
    let gone = sqlx::query("DELETE FROM credential WHERE expires_ms <= $1").bind(now).execute(db).await?;
    Ok(gone.rows_affected())
}
