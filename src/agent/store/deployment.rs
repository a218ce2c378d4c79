//! What became of the document's deployments: applied, or refused.
//!
//! Each deployment's units are one savepoint of the document's transaction: one that is refused leaves the others.

use std::collections::BTreeSet;

use muster_rules::{
    authorise::LocalPolicy,
    desired::body::{self, DeploymentObstacle, HostRules, PresentUnit, PresentUnits, shortened},
};
use muster_topics::{
    Millis,
    command::UnitWish,
    desired::{DeploymentName, DeploymentVersion, DesiredBody, UnitOwner},
    name::Name,
    realm::Realm,
    revision::RevisionKey,
};
use sqlx::{Connection, SqliteConnection};

use super::{
    columns::to_json,
    error::StoreError,
    owner, realm, release, removal,
    unit::{self, ChangeContext, StoredUnit, StoredUnits},
    unit_set,
};

/// The host that a document is applied on.
#[derive(Clone, Copy, Debug)]
pub struct DocumentHost<'a> {
    /// The host's local policy.
    pub policy: &'a LocalPolicy,
    /// The realms of its own configuration.
    pub realms: &'a BTreeSet<Name>,
    /// The user that the agent runs as.
    pub user: &'a str,
    /// The host's key for revisions, if the console has given one.
    pub key: Option<&'a RevisionKey>,
    /// The time.
    pub now_ms: Millis,
}

/// Applies the deployments of a body, in the caller's transaction: those of these names, or all, with its removals.
///
/// # Errors
/// If the database fails.
pub async fn apply(
    connection: &mut SqliteConnection,
    body: &DesiredBody,
    only: Option<&[String]>,
    host: DocumentHost<'_>,
) -> Result<(), StoreError> {
    take_realms(connection, &body.realms).await?;
    let (stored, told) = (unit::all(connection).await?, realm::all(connection).await?);
    let realms: BTreeSet<Name> =
        host.realms.iter().cloned().chain(told.iter().map(|realm| realm.name.clone())).collect();
    let present = present(&stored);
    let plan = body::plan(body, &present, HostRules { policy: host.policy, realms: &realms, user: host.user });
    for (deployment, wishes) in plan.deployments {
        let version = &deployment.version;
        let name = &version.deployment;
        if only.is_some_and(|only| !only.iter().any(|only| only == name.as_str())) {
            continue;
        }
        let applied = match wishes {
            Ok(wishes) => apply_version(connection, version, &wishes, host).await?,
            Err(obstacle) => Err(obstacle),
        };
        match applied {
            Ok(()) => set_applied(connection, name, version.number).await?,
            Err(obstacle) => {
                let reason = obstacle.refusal.message.as_str();
                tracing::warn!(deployment = %name, version = version.number, reason, "a deployment is refused");
                set_refused(connection, name, version.number, obstacle).await?;
            }
        }
    }
    if only.is_none() {
        let listed: Vec<_> = body.deployments.iter().map(|deployment| &deployment.version.deployment).collect();
        keep_only(connection, &listed).await?;
        owner::set_orphans(connection, &plan.orphans).await?;
        removal::set(connection, &plan.removals, &plan.orphans, host.now_ms).await?;
    }
    Ok(())
}

/// Applies the units of a deployment, or none of them.
async fn apply_version(
    connection: &mut SqliteConnection,
    version: &DeploymentVersion,
    wishes: &[UnitWish],
    host: DocumentHost<'_>,
) -> Result<Result<(), DeploymentObstacle>, StoreError> {
    let operator = actor();
    let asker = ChangeContext { operator: &operator, now_ms: host.now_ms, key: host.key, is_document: true };
    let mut savepoint = connection.begin().await?;
    if let Err(refusal) = unit_set::apply(&mut savepoint, wishes, asker).await? {
        savepoint.rollback().await?;
        return Ok(Err(refusal.into()));
    }
    for wish in wishes {
        let owner = UnitOwner { deployment: version.deployment.clone(), version: version.number, orphan: false };
        owner::set(&mut savepoint, &wish.unit, &owner).await?;
    }
    release(savepoint).await?;
    Ok(Ok(()))
}

/// Who changes units for a document, where an operator's name is asked for.
#[must_use]
pub fn actor() -> Name {
    "agent".parse().unwrap_or_else(|_| Name::default_realm())
}

/// Takes the realms of a document. If they do not fit with those that are there, the host keeps those.
async fn take_realms(connection: &mut SqliteConnection, realms: &[Realm]) -> Result<(), StoreError> {
    let mut savepoint = connection.begin().await?;
    match realm::take_in(&mut savepoint, realms).await? {
        Ok(()) => release(savepoint).await?,
        Err(refusal) => {
            tracing::warn!(reason = refusal.message, "the realms of a document cannot be taken");
            savepoint.rollback().await?;
        }
    }
    Ok(())
}

/// Returns the units that the host has, as a document sees them.
fn present(stored: &StoredUnits) -> PresentUnits {
    let unit = |row: &StoredUnit| PresentUnit {
        deployment: row.owner.as_ref().map(|owner| owner.deployment.clone()),
        run: row.desired.run,
    };
    stored.units.iter().map(|row| (row.name.clone(), unit(row))).collect()
}

/// Stores that a deployment is applied in this version.
///
/// # Errors
/// If the database fails.
async fn set_applied(
    connection: &mut SqliteConnection,
    deployment: &DeploymentName,
    version: u32,
) -> Result<(), StoreError> {
    let (name, version) = (deployment.as_str(), i64::from(version));
    sqlx::query!(
        "INSERT INTO deployment (name, version) VALUES (?, ?)
         ON CONFLICT (name) DO UPDATE SET version = excluded.version, refused_version = NULL, refused_message = NULL,
             may_pass = 0
         WHERE version <> excluded.version OR refused_version IS NOT NULL",
        name,
        version
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Stores that a version of a deployment is refused.
///
/// # Errors
/// If the database fails.
async fn set_refused(
    connection: &mut SqliteConnection,
    deployment: &DeploymentName,
    version: u32,
    obstacle: DeploymentObstacle,
) -> Result<(), StoreError> {
    let (name, version, may_pass) = (deployment.as_str(), i64::from(version), i64::from(obstacle.may_pass));
    let message = shortened(obstacle.refusal.message);
    sqlx::query!(
        "INSERT INTO deployment (name, version, refused_version, refused_message, may_pass) VALUES (?, 0, ?, ?, ?)
         ON CONFLICT (name) DO UPDATE SET refused_version = excluded.refused_version,
             refused_message = excluded.refused_message, may_pass = excluded.may_pass",
        name,
        version,
        message,
        may_pass
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Removes what became of all other deployments.
///
/// # Errors
/// If the database fails.
async fn keep_only(connection: &mut SqliteConnection, listed: &[&DeploymentName]) -> Result<(), StoreError> {
    let listed = to_json("deployments", &listed)?;
    sqlx::query!("DELETE FROM deployment WHERE name NOT IN (SELECT value FROM json_each(?))", listed)
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns the deployments whose refusal may pass.
///
/// # Errors
/// If the database fails.
pub async fn passing(connection: &mut SqliteConnection) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(r#"SELECT name AS "name!" FROM deployment WHERE may_pass = 1"#)
        .fetch_all(connection)
        .await?)
}

#[cfg(test)]
mod tests;
