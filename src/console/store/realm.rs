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

/// Returns all defined realms.
pub async fn all(db: impl sqlx::SqliteExecutor<'_>) -> StoreResult<Realms> {
    let rows = sqlx::query_scalar!("SELECT definition FROM realm ORDER BY name").fetch_all(db).await?;
    rows.iter().map(|definition| json("realm", definition)).collect()
}

/// Stores the definition of a realm. Its generation is the current time, so that a recreated realm, even in a recreated
/// store, is newer than before; two of one millisecond still differ.
pub async fn set(db: &mut SqliteConnection, realm: &mut Realm, now: Millis) -> StoreResult<()> {
    realm.generation = realm.generation.saturating_add(1).max(u64::try_from(now).unwrap_or_default());
    sqlx::query!(
        "INSERT INTO realm (name, generation, definition) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, definition = excluded.definition",
        realm.name.as_str(),
        signed(realm.generation),
        to_json("realm", realm)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes a realm. Returns whether there was one.
pub async fn remove(db: &mut SqliteConnection, name: &Name) -> StoreResult<bool> {
    let gone = sqlx::query!("DELETE FROM realm WHERE name = $1", name.as_str()).execute(db).await?;
    Ok(gone.rows_affected() > 0)
}

/// Counts the reported units of each realm.
pub async fn unit_counts(db: &SqlitePool) -> StoreResult<BTreeMap<Name, u64>> {
    let rows = sqlx::query!(r#"SELECT unit, count(*) AS "count!: i64" FROM unit GROUP BY unit"#)
        .map(|row| (row.unit, row.count))
        .fetch_all(db)
        .await?;
    let mut counts = BTreeMap::new();
    for (unit, count) in rows {
        let unit: UnitName = parsed("unit's name", &unit)?;
        *counts.entry(unit.realm()).or_default() += unsigned("count of units", count)?;
    }
    Ok(counts)
}
