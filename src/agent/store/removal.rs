//! Units that are to go, and removals that the host's policy counts.

use std::collections::BTreeSet;

use muster_rules::desired::removal::{DAY_MS, LeavingUnit, PastRemoval};
use muster_topics::{Millis, desired::UnitRemoval, name::UnitName};
use sqlx::SqliteConnection;

use super::{columns::to_json, error::StoreError, snapshot};

/// Whether a unit is to go.
///
/// # Errors
/// If the database fails.
pub(super) async fn is_asked(connection: &mut SqliteConnection, unit: &UnitName) -> Result<bool, StoreError> {
    let name = unit.as_str();
    Ok(sqlx::query_scalar!("SELECT count(*) FROM removal WHERE unit = ?", name).fetch_one(connection).await? > 0)
}

/// Returns the names of all units that are to go.
///
/// # Errors
/// If the database fails.
pub(super) async fn asked(connection: &mut SqliteConnection) -> Result<BTreeSet<String>, StoreError> {
    let rows = sqlx::query_scalar!(r#"SELECT unit AS "unit!" FROM removal"#).fetch_all(connection).await?;
    Ok(rows.into_iter().collect())
}

/// Whether the data of a unit that is to go goes with it.
///
/// # Errors
/// If the database fails.
pub async fn is_purge(connection: &mut SqliteConnection, unit: &UnitName) -> Result<bool, StoreError> {
    let name = unit.as_str();
    let purge =
        sqlx::query_scalar!("SELECT purge FROM removal WHERE unit = ?", name).fetch_optional(connection).await?;
    Ok(purge.is_some_and(|purge| purge != 0))
}

/// Sets which units a document removes. What an operator has removed stays so, if the document does not list it.
///
/// # Errors
/// If the database fails.
pub async fn set(
    connection: &mut SqliteConnection,
    removals: &[UnitRemoval],
    orphans: &BTreeSet<UnitName>,
    now_ms: Millis,
) -> Result<(), StoreError> {
    let named: Vec<&UnitName> = removals.iter().map(|removal| &removal.unit).collect();
    let (named, orphans) = (to_json("units", &named)?, to_json("units", orphans)?);
    sqlx::query!(
        "DELETE FROM removal WHERE unit NOT IN (SELECT value FROM json_each(?))
             AND NOT (approved = 1 AND unit IN (SELECT value FROM json_each(?)))",
        named,
        orphans
    )
    .execute(&mut *connection)
    .await?;
    for removal in removals {
        let unit = removal.unit.as_str();
        let (purge, at_once) = (i64::from(removal.purge), i64::from(removal.at_once));
        sqlx::query!(
            "INSERT INTO removal (unit, purge, at_once, asked_ms) VALUES (?, ?, ?, ?)
             ON CONFLICT (unit) DO UPDATE SET purge = excluded.purge, at_once = excluded.at_once
             WHERE purge <> excluded.purge OR at_once <> excluded.at_once",
            unit,
            purge,
            at_once,
            now_ms
        )
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Stores that an operator has removed a unit.
///
/// # Errors
/// If the database fails.
pub(super) async fn approve(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    now_ms: Millis,
) -> Result<(), StoreError> {
    let name = unit.as_str();
    sqlx::query!(
        "INSERT INTO removal (unit, purge, asked_ms, approved) VALUES (?, 0, ?, 1)
         ON CONFLICT (unit) DO UPDATE SET approved = 1 WHERE approved = 0",
        name,
        now_ms
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Returns the units that are to go.
///
/// # Errors
/// If the database fails.
pub async fn leaving(connection: &mut SqliteConnection) -> Result<Vec<LeavingUnit>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT removal.unit AS "unit!", asked_ms, approved, at_once, begun_ms, unit.held_by
           FROM removal JOIN unit ON unit.name = removal.unit ORDER BY removal.unit"#
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut leaving = Vec::new();
    for row in rows {
        let Ok(unit) = row.unit.parse::<UnitName>() else { continue };
        let is_kept = row.held_by.is_some() || snapshot::needs(connection, &unit).await?.is_some();
        leaving.push(LeavingUnit {
            unit,
            asked_ms: row.asked_ms,
            begun_ms: row.begun_ms,
            is_approved: row.approved != 0,
            is_at_once: row.at_once != 0,
            is_kept,
        });
    }
    Ok(leaving)
}

/// Returns the removals of the last day that the policy counts.
///
/// # Errors
/// If the database fails.
pub async fn past(connection: &mut SqliteConnection, now_ms: Millis) -> Result<Vec<PastRemoval>, StoreError> {
    let day_ago_ms = now_ms.saturating_sub(DAY_MS);
    let rows = sqlx::query!(
        r#"SELECT at_ms, EXISTS (SELECT 1 FROM unit WHERE unit.name = past_removal.unit) AS "is_there: bool"
           FROM past_removal WHERE at_ms > ?"#,
        day_ago_ms
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| PastRemoval { at_ms: row.at_ms, is_there: row.is_there }).collect())
}

/// Stores that a removal begins.
///
/// # Errors
/// If the database fails.
pub async fn begin(connection: &mut SqliteConnection, leaving: &LeavingUnit, now_ms: Millis) -> Result<(), StoreError> {
    let (unit, day_ago_ms) = (leaving.unit.as_str(), now_ms.saturating_sub(DAY_MS));
    sqlx::query!("UPDATE removal SET begun_ms = ? WHERE unit = ?", now_ms, unit).execute(&mut *connection).await?;
    sqlx::query!("DELETE FROM past_removal WHERE at_ms <= ?", day_ago_ms).execute(&mut *connection).await?;
    if leaving.is_counted() {
        sqlx::query!("INSERT INTO past_removal (unit, at_ms) VALUES (?, ?) ON CONFLICT DO NOTHING", unit, now_ms)
            .execute(connection)
            .await?;
    }
    Ok(())
}
