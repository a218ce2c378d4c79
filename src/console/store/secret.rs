//! Secrets that units use by name, as rows: encrypted values.

use std::collections::BTreeSet;

use muster_topics::{Millis, name::Name, secret::SecretRef};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{parsed, to_json, unsigned},
    error::{StoreError, StoreResult},
};

/// An encrypted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptedValue {
    /// The number of the key.
    pub key_id: u32,
    /// Nonce and ciphertext.
    pub bytes: Vec<u8>,
}

/// One version of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    /// The realm.
    pub realm: Name,
    /// Name and version.
    pub secret: SecretRef,
    /// The value, unless it was erased.
    pub value: Option<EncryptedValue>,
    /// Who set it.
    pub operator: Name,
    /// When it was set.
    pub set_ms: Millis,
}

struct Columns {
    realm: String,
    name: String,
    version: i64,
    key_id: Option<i64>,
    value: Option<Vec<u8>>,
    operator: String,
    set_ms: Millis,
}

impl Columns {
    fn row(self) -> StoreResult<SecretRow> {
        let version = number("version", self.version)?;
        let key_id = self.key_id.map(|id| number("key", id)).transpose()?;
        Ok(SecretRow {
            realm: parsed("realm", &self.realm)?,
            secret: SecretRef { name: parsed("secret", &self.name)?, version },
            value: key_id.zip(self.value).map(|(key_id, bytes)| EncryptedValue { key_id, bytes }),
            operator: parsed("operator", &self.operator)?,
            set_ms: self.set_ms,
        })
    }
}

fn number(what: &'static str, value: i64) -> StoreResult<u32> {
    u32::try_from(unsigned(what, value)?).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// Returns the newest version of each secret that has a value, by realm and name.
pub async fn newest(db: &SqlitePool) -> StoreResult<Vec<SecretRow>> {
    let rows = sqlx::query_as!(
        Columns,
        "SELECT realm, name, version, key_id, value, operator, set_ms FROM secret AS one
         WHERE value IS NOT NULL
           AND version = (SELECT max(version) FROM secret AS other WHERE other.realm = one.realm AND other.name = one.name)
         ORDER BY realm, name"
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Columns::row).collect()
}

/// Returns all versions of a secret, the newest first.
pub async fn versions(db: &SqlitePool, realm: &Name, name: &Name) -> StoreResult<Vec<SecretRow>> {
    let rows = sqlx::query_as!(
        Columns,
        "SELECT realm, name, version, key_id, value, operator, set_ms FROM secret
         WHERE realm = $1 AND name = $2 ORDER BY version DESC",
        realm.as_str(),
        name.as_str()
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Columns::row).collect()
}

/// Returns one version of a secret.
pub async fn version(db: &SqlitePool, realm: &Name, secret: &SecretRef) -> StoreResult<Option<SecretRow>> {
    let row = sqlx::query_as!(
        Columns,
        "SELECT realm, name, version, key_id, value, operator, set_ms FROM secret
         WHERE realm = $1 AND name = $2 AND version = $3",
        realm.as_str(),
        secret.name.as_str(),
        i64::from(secret.version)
    )
    .fetch_optional(db)
    .await?;
    row.map(Columns::row).transpose()
}

/// Returns the newest version of each of these secrets that has a value.
pub async fn newest_of(db: &SqlitePool, realm: &Name, names: &BTreeSet<Name>) -> StoreResult<Vec<SecretRow>> {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    let rows = sqlx::query_as!(
        Columns,
        "SELECT realm, name, version, key_id, value, operator, set_ms FROM secret AS one
         WHERE realm = $1 AND name IN (SELECT value FROM json_each($2)) AND value IS NOT NULL
           AND version = (SELECT max(version) FROM secret AS other WHERE other.realm = one.realm AND other.name = one.name)",
        realm.as_str(),
        to_json("secrets", &names)?
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Columns::row).collect()
}

/// Returns the newest version of each secret that has a value, each with its realm, and without its value.
pub async fn newest_versions(db: &SqlitePool) -> StoreResult<Vec<(Name, SecretRef)>> {
    let rows = sqlx::query!(
        r#"SELECT realm AS "realm!", name AS "name!", max(version) AS "version!: i64" FROM secret
           WHERE value IS NOT NULL GROUP BY realm, name"#
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            let secret = SecretRef { name: parsed("secret", &row.name)?, version: number("version", row.version)? };
            Ok((parsed("realm", &row.realm)?, secret))
        })
        .collect()
}

/// Stores a version.
pub async fn add(db: &SqlitePool, row: &SecretRow) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO secret (realm, name, version, key_id, value, operator, set_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        row.realm.as_str(),
        row.secret.name.as_str(),
        i64::from(row.secret.version),
        row.value.as_ref().map(|value| i64::from(value.key_id)),
        row.value.as_ref().map(|value| &value.bytes[..]),
        row.operator.as_str(),
        row.set_ms
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Erases the values of versions of a secret.
pub async fn erase(db: &mut SqliteConnection, realm: &Name, name: &Name, versions: &[u32]) -> StoreResult<()> {
    let versions = to_json("versions", &versions)?;
    sqlx::query!(
        "UPDATE secret SET key_id = NULL, value = NULL
         WHERE realm = $1 AND name = $2 AND version IN (SELECT value FROM json_each($3))",
        realm.as_str(),
        name.as_str(),
        versions
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns up to `limit` versions whose value is encrypted with another key than this, after a place in their order.
pub async fn not_encrypted_with(
    db: &SqlitePool,
    key_id: u32,
    after: Option<&SecretRow>,
    limit: u32,
) -> StoreResult<Vec<SecretRow>> {
    let (realm, name, version) = match after {
        Some(row) => (row.realm.as_str(), row.secret.name.as_str(), row.secret.version),
        None => ("", "", 0),
    };
    let rows = sqlx::query_as!(
        Columns,
        "SELECT realm, name, version, key_id, value, operator, set_ms FROM secret
         WHERE key_id <> $1 AND (realm, name, version) > ($2, $3, $4)
         ORDER BY realm, name, version LIMIT $5",
        i64::from(key_id),
        realm,
        name,
        i64::from(version),
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Columns::row).collect()
}

/// Puts the same values in other encryption in the place of versions that still have one.
pub async fn encrypt_again(db: &mut SqliteConnection, rows: &[(SecretRow, EncryptedValue)]) -> StoreResult<()> {
    for (row, value) in rows {
        sqlx::query!(
            "UPDATE secret SET key_id = $1, value = $2
             WHERE realm = $3 AND name = $4 AND version = $5 AND value IS NOT NULL",
            i64::from(value.key_id),
            &value.bytes[..],
            row.realm.as_str(),
            row.secret.name.as_str(),
            i64::from(row.secret.version)
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Returns the highest number of a key that a value is encrypted with.
pub async fn last_key(db: &SqlitePool) -> StoreResult<Option<u32>> {
    let last = sqlx::query_scalar!("SELECT max(key_id) FROM secret").fetch_one(db).await?;
    last.map(|id| number("key", id)).transpose()
}
