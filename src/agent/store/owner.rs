//! The deployments that units belong to.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    desired::{DeploymentName, UnitOwner},
    diagnostic::Diagnostic,
    name::UnitName,
};
use sqlx::SqliteConnection;

use super::{admission, columns::to_json, error::StoreError, removal};

/// A row of the table.
struct OwnerRecord {
    unit: String,
    deployment: String,
    version: i64,
    orphan: i64,
}

impl OwnerRecord {
    /// Reads it. A unit whose owner is unreadable counts as one that a verb made: no document changes it.
    fn read(self) -> Option<(String, UnitOwner)> {
        let deployment = self.deployment.parse::<DeploymentName>();
        let deployment =
            deployment.inspect_err(|error| tracing::error!(unit = self.unit, %error, "a unit's owner")).ok()?;
        let version = u32::try_from(self.version).unwrap_or_default();
        Some((self.unit, UnitOwner { deployment, version, orphan: self.orphan != 0 }))
    }
}

/// Returns the owners of all units that belong to a deployment, by the unit's name.
///
/// # Errors
/// If the database fails.
pub(crate) async fn all(connection: &mut SqliteConnection) -> Result<BTreeMap<String, UnitOwner>, StoreError> {
    let rows = sqlx::query_as!(OwnerRecord, r#"SELECT unit AS "unit!", deployment, version, orphan FROM unit_owner"#)
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().filter_map(OwnerRecord::read).collect())
}

/// Returns the owner of a unit.
///
/// # Errors
/// If the database fails.
pub(super) async fn find(connection: &mut SqliteConnection, unit: &UnitName) -> Result<Option<UnitOwner>, StoreError> {
    let name = unit.as_str();
    let row = sqlx::query_as!(
        OwnerRecord,
        r#"SELECT unit AS "unit!", deployment, version, orphan FROM unit_owner WHERE unit = ?"#,
        name
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.and_then(OwnerRecord::read).map(|(_, owner)| owner))
}

/// Sets the owner of a unit.
///
/// # Errors
/// If the database fails.
pub(super) async fn set(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    owner: &UnitOwner,
) -> Result<(), StoreError> {
    let (unit, deployment, version) = (unit.as_str(), owner.deployment.as_str(), i64::from(owner.version));
    let orphan = i64::from(owner.orphan);
    sqlx::query!(
        "INSERT INTO unit_owner (unit, deployment, version, orphan) VALUES (?, ?, ?, ?)
         ON CONFLICT (unit) DO UPDATE SET deployment = excluded.deployment, version = excluded.version,
             orphan = excluded.orphan
         WHERE deployment <> excluded.deployment OR version <> excluded.version OR orphan <> excluded.orphan",
        unit,
        deployment,
        version,
        orphan
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Marks these units as orphans, and no others.
///
/// # Errors
/// If the database fails.
pub(super) async fn set_orphans(
    connection: &mut SqliteConnection,
    orphans: &BTreeSet<UnitName>,
) -> Result<(), StoreError> {
    let orphans = to_json("units", orphans)?;
    sqlx::query!(
        "UPDATE unit_owner SET orphan = unit IN (SELECT value FROM json_each(?1))
         WHERE orphan <> (unit IN (SELECT value FROM json_each(?1)))",
        orphans
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Makes a unit one that verbs change. If the document lists it, its deployment takes no further version here until that
/// has changed.
///
/// # Errors
/// If the database fails.
pub(super) async fn detach(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    owner: &UnitOwner,
) -> Result<(), StoreError> {
    let is_listed = !owner.orphan && !removal::is_asked(connection, unit).await?;
    let name = unit.as_str();
    sqlx::query!("DELETE FROM unit_owner WHERE unit = ?", name).execute(&mut *connection).await?;
    sqlx::query!("DELETE FROM removal WHERE unit = ?", name).execute(&mut *connection).await?;
    if is_listed {
        let deployment = owner.deployment.as_str();
        let message = Diagnostic::new(format_args!("{unit} was detached on this host, and the document lists it"))
            .with_hint("exclude it, or adopt it");
        let message = to_json("reason", &message)?;
        sqlx::query!(
            "UPDATE deployment SET refused_version = version, refused_message = ?, may_pass = 1 WHERE name = ?",
            message,
            deployment
        )
        .execute(connection)
        .await?;
    }
    Ok(())
}

/// Makes all units ones that verbs change; returns how many were not.
///
/// # Errors
/// If the database fails.
pub(super) async fn detach_all(connection: &mut SqliteConnection) -> Result<u64, StoreError> {
    let done = sqlx::query!("DELETE FROM unit_owner").execute(&mut *connection).await?;
    sqlx::query!("DELETE FROM removal").execute(&mut *connection).await?;
    sqlx::query!("DELETE FROM deployment").execute(&mut *connection).await?;
    admission::clear(connection).await?;
    Ok(done.rows_affected())
}
