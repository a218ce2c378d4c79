//! Realms, as they are sent to hosts.

use std::collections::BTreeMap;

use muster_rules::realm::Realms;
use muster_topics::{
    Millis,
    name::{Name, UnitName},
    realm::Realm,
};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, parsed, signed, to_json, unsigned},
    error::StoreResult,
};

/// All realms of which something was said.
pub async fn all(db: impl sqlx::SqliteExecutor<'_>) -> StoreResult<Realms> {
    let rows: Vec<(String,)> = sqlx::query_as("SELECT definition FROM realm ORDER BY name").fetch_all(db).await?;
    rows.iter().map(|(definition,)| json("realm", definition)).collect()
}

/// Writes down what a realm is from now on. Its generation is the time, so that one that was made anew, be it in a
/// store that was lost, is newer than all of before; two of one millisecond have different ones all the same.
pub async fn set(db: &mut SqliteConnection, realm: &mut Realm, now: Millis) -> StoreResult<()> {
    realm.generation = realm.generation.saturating_add(1).max(u64::try_from(now).unwrap_or_default());
    sqlx::query(
        "INSERT INTO realm (name, generation, definition) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, definition = excluded.definition",
    )
    .bind(realm.name.as_str())
    .bind(signed(realm.generation))
    .bind(to_json("realm", realm)?)
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets a realm. Says whether there was one.
pub async fn remove(db: &mut SqliteConnection, name: &Name) -> StoreResult<bool> {
    let gone = sqlx::query("DELETE FROM realm WHERE name = $1").bind(name.as_str()).execute(db).await?;
    Ok(gone.rows_affected() > 0)
}

/// How many units each realm has, as far as hosts have told.
pub async fn unit_counts(db: &SqlitePool) -> StoreResult<BTreeMap<Name, u64>> {
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT unit, count(*) FROM unit GROUP BY unit").fetch_all(db).await?;
    let mut counts = BTreeMap::new();
    for (unit, count) in rows {
        let unit: UnitName = parsed("unit's name", &unit)?;
        *counts.entry(unit.realm()).or_default() += unsigned("count of units", count)?;
    }
    Ok(counts)
}
