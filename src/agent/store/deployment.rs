//! What became of the document's deployments: applied, or refused.
//!
//! Each deployment's units are one savepoint of the document's transaction: one that is refused leaves the others.

use std::collections::{BTreeMap, BTreeSet};

use muster_rules::{
    authorise::LocalPolicy,
    deployment_state::{DeploymentState, HostUnit, unit_state},
    desired::{
        body::{self, DeploymentObstacle, HeldBack, HostRules, PresentUnit, PresentUnits, shortened},
        host_body::HostBody,
    },
    render::RenderValues,
};
use muster_topics::{
    Millis,
    admission::ChangeOutcome,
    command::UnitWish,
    desired::{Admission, DeploymentName, DeploymentVersion, DesiredDeployment, DesiredHead, UnitOwner},
    name::{Digest, Name, UnitName},
    outcome::AppliedUnit,
    realm::Realm,
    revision::RevisionKey,
    unit::Desired,
};
use sqlx::{Connection, SqliteConnection};

use super::{
    admission::{self, AdmissionRow, AdmissionRowStage},
    columns::to_json,
    document,
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
    /// The host's key for revisions.
    pub key: &'a RevisionKey,
    /// The time.
    pub now_ms: Millis,
    /// The values of the host, without its variables.
    pub values: &'a RenderValues,
}

/// Which deployments of a body are applied.
#[derive(Clone, Copy, Debug)]
pub enum ApplyScope<'a> {
    /// All, with what is to go.
    All,
    /// Those of these names, which were refused.
    Passing(&'a [String]),
    /// This one, which begins with this permit, with what is to go.
    Begin(&'a DeploymentName, u64),
}

impl ApplyScope<'_> {
    fn covers(self, name: &DeploymentName) -> bool {
        match self {
            Self::All => true,
            Self::Passing(names) => names.iter().any(|passing| passing == name.as_str()),
            Self::Begin(begins, _) => begins == name,
        }
    }
}

/// Whether the templates of a version get the values of now, or keep those that they have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueChange {
    Follow,
    Keep,
}

/// A version of a deployment, and the units that the host is to have of it.
struct VersionUnits<'a> {
    version: &'a DeploymentVersion,
    deployment: &'a DesiredDeployment,
    wishes: Vec<UnitWish>,
}

/// Applies the deployments of a body, in the caller's transaction. One that is held back is not, unless it changes nothing.
///
/// # Errors
/// If the database fails.
pub async fn apply(
    connection: &mut SqliteConnection,
    host_body: &HostBody,
    scope: ApplyScope<'_>,
    host: DocumentHost<'_>,
) -> Result<(), StoreError> {
    let body = &host_body.body;
    take_realms(connection, &body.realms).await?;
    let (stored, told) = (unit::all(connection).await?, realm::all(connection).await?);
    let realms: BTreeSet<Name> =
        host.realms.iter().cloned().chain(told.iter().map(|realm| realm.name.clone())).collect();
    let mut held_back = held_back(connection, host_body).await?;
    if let ApplyScope::Begin(name, _) = scope {
        held_back.remove(name);
    }
    let present = present(connection, &stored).await?;
    let rules = HostRules { policy: host.policy, realms: &realms, user: host.user };
    let plan = body::plan(host_body, &present, &held_back, rules);
    for (deployment, wishes) in plan.deployments {
        let version = &deployment.version;
        if !scope.covers(&version.deployment) {
            continue;
        }
        let is_held_back = held_back.contains(&version.deployment);
        let of = wishes.map(|wishes| VersionUnits { version, deployment, wishes });
        let applied = match (of, scope) {
            (Ok(of), ApplyScope::Begin(_, permit)) => begin(connection, of, permit, &stored, host).await?,
            (Ok(of), _) if is_held_back => apply_if_nothing_changes(connection, &of, &stored, host).await?,
            // What a host asks for is rendered with the values of when it was begun.
            (Ok(of), _) if deployment.admission == Admission::Ask => {
                apply_version(connection, &of, host, ValueChange::Keep).await?.map(drop)
            }
            (Ok(of), _) => apply_version(connection, &of, host, ValueChange::Follow).await?.map(drop),
            (Err(obstacle), _) => Err(obstacle),
        };
        if let Err(obstacle) = applied {
            let permit = if let ApplyScope::Begin(_, permit) = scope { Some(permit) } else { None };
            let asks = is_held_back || permit.is_some();
            refuse(connection, version, obstacle, asks.then_some(permit)).await?;
        }
    }
    for one in host_body.unreadable.iter().filter(|one| scope.covers(&one.deployment)) {
        let (name, reason) = (&one.deployment, one.reason.as_str());
        tracing::error!(deployment = %name, version = one.number, reason, "a deployment cannot be read");
        set_refused(connection, name, one.number, one.obstacle()).await?;
    }
    if !matches!(scope, ApplyScope::Passing(_)) {
        let unreadable = host_body.unreadable.iter().map(|one| (&one.deployment, one.number));
        let listed: BTreeMap<&DeploymentName, u32> = body.deployments.iter().map(numbered).chain(unreadable).collect();
        keep_only(connection, &listed).await?;
        admission::keep_only(connection, &listed).await?;
    }
    // What a deployment gives up goes once it is applied.
    let held_back = self::held_back(connection, host_body).await?;
    let stored = unit::all(connection).await?;
    let present = self::present(connection, &stored).await?;
    let plan = body::plan(host_body, &present, &held_back, rules);
    owner::set_orphans(connection, &plan.orphans).await?;
    removal::set(connection, &plan.removals, &plan.orphans, host.now_ms).await?;
    Ok(())
}

fn numbered(deployment: &DesiredDeployment) -> (&DeploymentName, u32) {
    (&deployment.version.deployment, deployment.version.number)
}

/// Returns the deployments of a body that wait to be begun.
///
/// # Errors
/// If the database fails.
pub async fn held_back(connection: &mut SqliteConnection, host_body: &HostBody) -> Result<HeldBack, StoreError> {
    let rows = sqlx::query!(r#"SELECT name AS "name!", version FROM deployment"#).fetch_all(connection).await?;
    let applied: BTreeMap<&str, i64> = rows.iter().map(|row| (row.name.as_str(), row.version)).collect();
    let asks =
        host_body.body.deployments.iter().filter(|deployment| deployment.admission == Admission::Ask).map(numbered);
    let held_back = asks.filter(|(name, number)| applied.get(name.as_str()) != Some(&i64::from(*number)));
    Ok(held_back.map(|(name, _)| name.clone()).collect())
}

/// Applies the units of a deployment, or none of them; returns which of them have changed.
async fn apply_version(
    connection: &mut SqliteConnection,
    of: &VersionUnits<'_>,
    host: DocumentHost<'_>,
    change: ValueChange,
) -> Result<Result<Vec<AppliedUnit>, DeploymentObstacle>, StoreError> {
    let operator = actor();
    let values = host.values.clone().with_deployment(of.version.deployment.as_str(), of.version.number);
    let follow = ChangeContext {
        operator: &operator,
        now_ms: host.now_ms,
        key: Some(host.key),
        is_document: true,
        values: Some(&values),
    };
    let mut savepoint = connection.begin().await?;
    let (mut kept, mut new) = (Vec::new(), of.wishes.clone());
    if change == ValueChange::Keep {
        for wish in std::mem::take(&mut new) {
            // An instance that is placed here later has no values to keep.
            let is_there = unit::find(&mut savepoint, &wish.unit).await?.is_some();
            if is_there { kept.push(wish) } else { new.push(wish) }
        }
    }
    let mut applied = Vec::new();
    for (wishes, asker) in [(kept, ChangeContext { values: None, ..follow }), (new, follow)] {
        match unit_set::apply(&mut savepoint, &wishes, asker).await? {
            Ok(more) => applied.extend(more),
            Err(refusal) => {
                savepoint.rollback().await?;
                return Ok(Err(refusal.into()));
            }
        }
    }
    let (deployment, version) = (&of.version.deployment, of.version.number);
    for wish in &of.wishes {
        let owner = UnitOwner { deployment: deployment.clone(), version, orphan: false };
        owner::set(&mut savepoint, &wish.unit, &owner).await?;
    }
    set_applied(&mut savepoint, deployment, version).await?;
    release(savepoint).await?;
    Ok(Ok(applied))
}

/// Whether a unit that was applied is another than before.
fn has_changed(applied: &AppliedUnit, stored: &StoredUnits) -> bool {
    let before = stored.units.iter().find(|row| row.name == applied.unit);
    before.is_none_or(|row| row.desired.generation != applied.generation)
}

/// Begins a version with a permit: each of its units is tried anew, also one that has failed.
async fn begin(
    connection: &mut SqliteConnection,
    mut of: VersionUnits<'_>,
    permit: u64,
    stored: &StoredUnits,
    host: DocumentHost<'_>,
) -> Result<Result<(), DeploymentObstacle>, StoreError> {
    for wish in &mut of.wishes {
        wish.run = of.deployment.units().find(|(unit, _)| *unit == wish.unit).map(|(_, listed)| listed.run);
    }
    let applied = match apply_version(connection, &of, host, ValueChange::Follow).await? {
        Ok(applied) => applied,
        Err(obstacle) => return Ok(Err(obstacle)),
    };
    let changed = applied.iter().map(|unit| (unit.unit.clone(), has_changed(unit, stored))).collect();
    admission::begin(connection, of.version, permit, changed).await?;
    Ok(Ok(()))
}

/// Applies a version that is held back, if that changes nothing and all its units are verified: then there is nothing to ask.
async fn apply_if_nothing_changes(
    connection: &mut SqliteConnection,
    of: &VersionUnits<'_>,
    stored: &StoredUnits,
    host: DocumentHost<'_>,
) -> Result<Result<(), DeploymentObstacle>, StoreError> {
    let name = &of.version.deployment;
    let mut savepoint = connection.begin().await?;
    let applied = match apply_version(&mut savepoint, of, host, ValueChange::Follow).await? {
        Ok(applied) => applied,
        Err(obstacle) => {
            savepoint.rollback().await?;
            return Ok(Err(obstacle));
        }
    };
    let is_listed = |row: &StoredUnit| of.wishes.iter().any(|wish| wish.unit == row.name);
    let is_owned = |row: &StoredUnit| row.owner.as_ref().is_some_and(|owner| owner.deployment == *name);
    let is_same = |row: &StoredUnit| !is_listed(row) && !is_owned(row) || is_listed(row) && is_verified(row);
    if applied.iter().any(|unit| has_changed(unit, stored)) || !stored.units.iter().all(is_same) {
        savepoint.rollback().await?;
        wait(connection, of.version).await?;
        return Ok(Ok(()));
    }
    admission::end(&mut savepoint, of.version, (None, ChangeOutcome::Verified), None).await?;
    release(savepoint).await?;
    Ok(Ok(()))
}

/// Whether a unit is as it should be, as far as is stored.
fn is_verified(row: &StoredUnit) -> bool {
    let StoredUnit { name, desired, hold, owner, kept } = row;
    let unit = HostUnit { unit: name, desired, observed: &kept.observed, hold: hold.as_ref(), owner: owner.as_ref() };
    unit_state(&unit).0 == DeploymentState::Verified
}

/// What a version would make of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsedUnit {
    /// The unit.
    pub unit: UnitName,
    /// Its desired state.
    pub desired: Desired,
    /// The verified revision that it may be rolled back to.
    pub verified: Option<Digest>,
    /// Whether the host has it already.
    pub is_there: bool,
}

/// Returns what a version that is held back, or tried again, would make of its units; the inner error is why it could not be
/// begun. Nothing is changed.
///
/// # Errors
/// If the database fails.
pub async fn rehearse(
    connection: &mut SqliteConnection,
    host_body: &HostBody,
    name: &DeploymentName,
    host: DocumentHost<'_>,
) -> Result<Result<Vec<RehearsedUnit>, DeploymentObstacle>, StoreError> {
    let (stored, told) = (unit::all(connection).await?, realm::all(connection).await?);
    let realms = host.realms.iter().cloned().chain(told.iter().map(|realm| realm.name.clone())).collect();
    let rules = HostRules { policy: host.policy, realms: &realms, user: host.user };
    let mut held_back = held_back(connection, host_body).await?;
    held_back.remove(name);
    let present = present(connection, &stored).await?;
    let plan = body::plan(host_body, &present, &held_back, rules);
    let found = plan.deployments.into_iter().find(|(deployment, _)| deployment.version.deployment == *name);
    let wishes = match found {
        Some((deployment, Ok(wishes))) => VersionUnits { version: &deployment.version, deployment, wishes },
        Some((_, Err(obstacle))) => return Ok(Err(obstacle)),
        None => {
            let unreadable = host_body.unreadable.iter().find(|one| one.deployment == *name);
            return Ok(unreadable.map_or(Ok(Vec::new()), |one| Err(one.obstacle())));
        }
    };
    let mut savepoint = connection.begin().await?;
    let applied = apply_version(&mut savepoint, &wishes, host, ValueChange::Follow).await?;
    let mut units = Vec::new();
    for wish in &wishes.wishes {
        let Some(StoredUnit { desired, kept, .. }) = unit::find(&mut savepoint, &wish.unit).await? else { continue };
        let verified = kept.verified.as_ref().map(|verified| verified.revision.clone());
        let is_there = stored.units.iter().any(|row| row.name == wish.unit);
        units.push(RehearsedUnit { unit: wish.unit.clone(), desired, verified, is_there });
    }
    savepoint.rollback().await?;
    Ok(applied.map(|_| units))
}

/// What a document would make of the units of this host.
#[derive(Clone, Debug)]
pub struct DocumentRehearsal {
    /// The units as they are.
    pub stored: StoredUnits,
    /// What becomes of the units of the deployments that were asked about; the inner error is why one would be refused.
    pub deployments: Vec<(DeploymentName, Result<Vec<RehearsedUnit>, DeploymentObstacle>)>,
    /// Units that would be named to go, with the deployments that they belong to.
    pub removals: Vec<(DeploymentName, UnitName)>,
}

/// Returns what a document with this body would make of the units of some deployments, as if none of them had to wait. What is
/// changed for that is undone.
///
/// # Errors
/// If the database fails.
pub async fn rehearse_document(
    connection: &mut SqliteConnection,
    (host_body, head): (&HostBody, &DesiredHead),
    names: &[DeploymentName],
    host: DocumentHost<'_>,
) -> Result<DocumentRehearsal, StoreError> {
    let body = &host_body.body;
    let stored = unit::all(connection).await?;
    let mut savepoint = connection.begin().await?;
    let text = document::DocumentText { signed: String::new(), body: to_json("document", body)? };
    document::set(&mut savepoint, head, &text).await?;
    take_realms(&mut savepoint, &body.realms).await?;
    let mut deployments = Vec::new();
    for name in names {
        let unreadable = host_body.unreadable.iter().map(|one| &one.deployment);
        if body.deployments.iter().map(|one| &one.version.deployment).chain(unreadable).any(|one| one == name) {
            deployments.push((name.clone(), rehearse(&mut savepoint, host_body, name, host).await?));
        }
    }
    let told = realm::all(&mut savepoint).await?;
    let realms = host.realms.iter().cloned().chain(told.iter().map(|realm| realm.name.clone())).collect();
    let rules = HostRules { policy: host.policy, realms: &realms, user: host.user };
    let present = present(&mut savepoint, &stored).await?;
    let mut held_back = held_back(&mut savepoint, host_body).await?;
    held_back.retain(|name| !names.contains(name));
    let removals = body::plan(host_body, &present, &held_back, rules).removals;
    savepoint.rollback().await?;
    let removals = removals.into_iter().map(|removal| (removal.deployment, removal.unit));
    Ok(DocumentRehearsal { stored, deployments, removals: removals.filter(|(of, _)| names.contains(of)).collect() })
}

/// Stores that a version is refused; `asks` if the host asks for it, with the permit with which it would have begun.
async fn refuse(
    connection: &mut SqliteConnection,
    version: &DeploymentVersion,
    obstacle: DeploymentObstacle,
    asks: Option<Option<u64>>,
) -> Result<(), StoreError> {
    let (name, reason) = (&version.deployment, &obstacle.refusal.diagnostic);
    tracing::warn!(
        deployment = %name, version = version.number, reason = reason.cause, hint = reason.hint, "a deployment is refused"
    );
    if let Some(permit) = asks {
        let reason = Some(shortened(reason.clone()));
        admission::end(connection, version, (permit, ChangeOutcome::Refused), reason).await?;
    }
    set_refused(connection, name, version.number, obstacle).await
}

/// Stores that a version that the host asks for is refused, with what the host has found when it prepared it.
///
/// # Errors
/// If the database fails.
pub async fn refuse_prepared(
    connection: &mut SqliteConnection,
    version: &DeploymentVersion,
    obstacle: DeploymentObstacle,
) -> Result<(), StoreError> {
    refuse(connection, version, obstacle, Some(None)).await
}

/// Stores that a version waits, and is refused no more.
async fn wait(connection: &mut SqliteConnection, version: &DeploymentVersion) -> Result<(), StoreError> {
    let name = version.deployment.as_str();
    sqlx::query!(
        "UPDATE deployment SET refused_version = NULL, refused_message = NULL, may_pass = 0
         WHERE name = ? AND refused_version IS NOT NULL",
        name
    )
    .execute(&mut *connection)
    .await?;
    admission::remove_refusals(connection, &version.deployment).await
}

/// Stores that a version is tried again, also if it was refused.
///
/// # Errors
/// If the database fails.
pub async fn try_again(connection: &mut SqliteConnection, row: AdmissionRow) -> Result<(), StoreError> {
    let name = row.deployment.as_str();
    sqlx::query!(
        "UPDATE deployment SET refused_version = NULL, refused_message = NULL, may_pass = 0
         WHERE name = ? AND refused_version IS NOT NULL",
        name
    )
    .execute(&mut *connection)
    .await?;
    admission::set(connection, &AdmissionRow { stage: AdmissionRowStage::Again, ..row }).await
}

/// Returns the versions of the deployments that are refused, by name.
///
/// # Errors
/// If the database fails.
pub async fn refused(connection: &mut SqliteConnection) -> Result<BTreeMap<String, u32>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT name AS "name!", refused_version AS "version!" FROM deployment WHERE refused_version IS NOT NULL"#
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.name, u32::try_from(row.version).unwrap_or_default())).collect())
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
            tracing::warn!(
                reason = refusal.diagnostic.cause,
                hint = refusal.diagnostic.hint,
                "the realms of a document cannot be taken"
            );
            savepoint.rollback().await?;
        }
    }
    Ok(())
}

/// Returns the units that the host has, as a document sees them.
async fn present(connection: &mut SqliteConnection, stored: &StoredUnits) -> Result<PresentUnits, StoreError> {
    let leaving = removal::asked(connection).await?;
    let unit = |row: &StoredUnit| PresentUnit {
        deployment: row.owner.as_ref().map(|owner| owner.deployment.clone()),
        run: row.desired.run,
        is_orphan: row.owner.as_ref().is_some_and(|owner| owner.orphan),
        is_leaving: leaving.contains(row.name.as_str()),
    };
    Ok(stored.units.iter().map(|row| (row.name.clone(), unit(row))).collect())
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
    let message = to_json("reason", &shortened(obstacle.refusal.diagnostic))?;
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
async fn keep_only(
    connection: &mut SqliteConnection,
    listed: &BTreeMap<&DeploymentName, u32>,
) -> Result<(), StoreError> {
    let listed = to_json("deployments", listed)?;
    sqlx::query!("DELETE FROM deployment WHERE name NOT IN (SELECT key FROM json_each(?))", listed)
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
