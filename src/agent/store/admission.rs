//! What became of versions of deployments that the host asks for.
//!
//! **Invariant: that a version is begun, and what it changes, are one transaction**; so is an end with its outcome. A row stays
//! until the console has stored the end and the host's document has another version, so no permit and no outcome is lost.

use std::collections::BTreeMap;

use muster_rules::desired::change::ChangedUnits;
use muster_session::interface::{AdmissionStatement, AdmissionStatements};
use muster_topics::{
    ack::Numbered,
    admission::{AdmissionStage, ChangeOutcome},
    desired::{DeploymentName, DeploymentVersion},
    diagnostic::Diagnostic,
    name::Digest,
};
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
};

/// A version that was begun, has ended, or is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRow {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version.
    pub version: u32,
    /// Its digest.
    pub digest: Digest,
    /// Its units, each with whether it was changed.
    pub units: ChangedUnits,
    /// How far it is.
    pub stage: AdmissionRowStage,
}

/// How far a version is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionRowStage {
    /// It has begun with this permit.
    Begun {
        /// The permit.
        permit: u64,
    },
    /// It has ended.
    Ended {
        /// The permit with which it began, if it needed one.
        permit: Option<u64>,
        /// How it ended.
        outcome: ChangeOutcome,
        /// Whether anything is different from before.
        changed: bool,
        /// Why.
        reason: Option<Diagnostic>,
        /// The message with which the console has heard it.
        noted: Option<Numbered>,
    },
    /// The console has said to try it again.
    Again,
}

impl AdmissionRow {
    /// What the host says of it.
    fn statement(&self) -> Option<AdmissionStatement> {
        let (stage, noted) = match self.stage.clone() {
            AdmissionRowStage::Begun { permit } => (AdmissionStage::Begun { permit }, None),
            AdmissionRowStage::Ended { permit, outcome, changed, reason, noted } => {
                (AdmissionStage::Ended { permit, outcome, changed, diagnostic: reason }, noted)
            }
            AdmissionRowStage::Again => return None,
        };
        Some(AdmissionStatement { version: self.version, digest: self.digest.clone(), stage, noted })
    }

    fn is_ended(&self, is_noted: bool) -> bool {
        matches!(&self.stage, AdmissionRowStage::Ended { noted, .. } if noted.is_some() == is_noted)
    }
}

/// Returns what the host says of all deployments. An end that the console has not stored goes first, then a question, then
/// what has begun.
#[must_use]
pub fn statements(rows: &[AdmissionRow], asks: &AdmissionStatements) -> AdmissionStatements {
    let mut said = AdmissionStatements::new();
    let of = |wanted: fn(&AdmissionRow) -> bool| rows.iter().filter(move |row| wanted(row));
    let open = of(|row| row.is_ended(false));
    let begun = of(|row| matches!(row.stage, AdmissionRowStage::Begun { .. }));
    let noted = of(|row| row.is_ended(true));
    let named = |row: &AdmissionRow| Some((row.deployment.clone(), row.statement()?));
    let asks = asks.iter().map(|(deployment, statement)| (deployment.clone(), statement.clone()));
    let all = open.filter_map(named).chain(asks).chain(begun.filter_map(named)).chain(noted.filter_map(named));
    for (deployment, statement) in all {
        said.entry(deployment).or_insert(statement);
    }
    said
}

/// Returns what the host says of all deployments before it has found out what waits.
///
/// # Errors
/// If the database fails.
pub async fn said(store: &Store) -> Result<AdmissionStatements, StoreError> {
    let mut tx = store.begin().await?;
    Ok(statements(&all(&mut tx).await?, &AdmissionStatements::new()))
}

/// Returns all rows, by deployment and version. One that is unreadable is passed over.
///
/// # Errors
/// If the database fails.
pub async fn all(connection: &mut SqliteConnection) -> Result<Vec<AdmissionRow>, StoreError> {
    let rows = sqlx::query!(
        "SELECT deployment, version, digest, stage, permit, units, outcome, changed, message, noted
         FROM admission ORDER BY deployment, version"
    )
    .fetch_all(connection)
    .await?;
    let quoted = |text: String| serde_json::Value::String(text);
    let mut all = Vec::with_capacity(rows.len());
    for row in rows {
        let read = || {
            let permit = row.permit.map(from_sql);
            let outcome = row.outcome.clone().and_then(|outcome| serde_json::from_value(quoted(outcome)).ok());
            let stage = match (row.stage.as_str(), permit, outcome) {
                ("begun", Some(permit), _) => AdmissionRowStage::Begun { permit },
                ("ended", permit, Some(outcome)) => AdmissionRowStage::Ended {
                    permit,
                    outcome,
                    changed: row.changed != 0,
                    reason: row.message.as_deref().and_then(|reason| serde_json::from_str(reason).ok()),
                    noted: row.noted.as_deref().and_then(|noted| serde_json::from_str(noted).ok()),
                },
                ("again", ..) => AdmissionRowStage::Again,
                _ => return None,
            };
            Some(AdmissionRow {
                deployment: row.deployment.parse().ok()?,
                version: u32::try_from(row.version).ok()?,
                digest: row.digest.parse().ok()?,
                units: serde_json::from_str(&row.units).ok()?,
                stage,
            })
        };
        match read() {
            Some(read) => all.push(read),
            None => tracing::error!(
                deployment = row.deployment,
                version = row.version,
                "the outcome of a version cannot be read"
            ),
        }
    }
    Ok(all)
}

/// Stores a row in place of the one of its version.
///
/// # Errors
/// If the database fails.
pub async fn set(connection: &mut SqliteConnection, row: &AdmissionRow) -> Result<(), StoreError> {
    let (name, version, digest) = (row.deployment.as_str(), i64::from(row.version), row.digest.as_str());
    let units = to_json("units of a version", &row.units)?;
    let (stage, permit, outcome, changed, reason, noted) = match &row.stage {
        AdmissionRowStage::Begun { permit } => ("begun", Some(*permit), None, false, None, None),
        AdmissionRowStage::Ended { permit, outcome, changed, reason, noted } => {
            ("ended", *permit, Some(*outcome), *changed, reason.as_ref(), noted.as_ref())
        }
        AdmissionRowStage::Again => ("again", None, None, false, None, None),
    };
    let outcome = outcome.map(word);
    let (permit, changed) = (permit.map(to_sql), i64::from(changed));
    let message = reason.map(|reason| to_json("reason", reason)).transpose()?;
    let noted = noted.map(|noted| to_json("message's number", noted)).transpose()?;
    sqlx::query!(
        "INSERT INTO admission (deployment, version, digest, stage, permit, units, outcome, changed, message, noted)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (deployment, version) DO UPDATE SET digest = excluded.digest, stage = excluded.stage,
             permit = excluded.permit, units = excluded.units, outcome = excluded.outcome, changed = excluded.changed,
             message = excluded.message, noted = excluded.noted",
        name,
        version,
        digest,
        stage,
        permit,
        units,
        outcome,
        changed,
        message,
        noted
    )
    .execute(connection)
    .await?;
    Ok(())
}

fn word(outcome: ChangeOutcome) -> &'static str {
    match outcome {
        ChangeOutcome::Verified => "verified",
        ChangeOutcome::RolledBack => "rolled_back",
        ChangeOutcome::Failed => "failed",
        ChangeOutcome::Refused => "refused",
    }
}

/// Stores that a version has begun. What was stored of other versions is over with that.
///
/// # Errors
/// If the database fails.
pub(super) async fn begin(
    connection: &mut SqliteConnection,
    version: &DeploymentVersion,
    permit: u64,
    units: ChangedUnits,
) -> Result<(), StoreError> {
    let name = version.deployment.as_str();
    sqlx::query!("DELETE FROM admission WHERE deployment = ?", name).execute(&mut *connection).await?;
    set(connection, &row(version, units, AdmissionRowStage::Begun { permit })?).await
}

/// Stores that a version has ended without having begun, or that it was refused. An end that says the same stays, with whether
/// the console has stored it.
///
/// # Errors
/// If the database fails.
pub(super) async fn end(
    connection: &mut SqliteConnection,
    version: &DeploymentVersion,
    (permit, outcome): (Option<u64>, ChangeOutcome),
    reason: Option<Diagnostic>,
) -> Result<(), StoreError> {
    let is_same = |row: &AdmissionRow| {
        let AdmissionRowStage::Ended { permit: before, outcome: ended, reason: why, .. } = &row.stage else {
            return false;
        };
        row.deployment == version.deployment
            && row.version == version.number
            && (*before, *ended, why) == (permit, outcome, &reason)
    };
    if all(connection).await?.iter().any(is_same) {
        return Ok(());
    }
    let stage = AdmissionRowStage::Ended { permit, outcome, changed: false, reason, noted: None };
    set(connection, &row(version, ChangedUnits::new(), stage)?).await
}

fn row(version: &DeploymentVersion, units: ChangedUnits, stage: AdmissionRowStage) -> Result<AdmissionRow, StoreError> {
    let (deployment, number) = (version.deployment.clone(), version.number);
    Ok(AdmissionRow { deployment, version: number, digest: digest(version), units, stage })
}

/// Returns the digest of a version. One that came in a document has one.
#[must_use]
pub fn digest(version: &DeploymentVersion) -> Digest {
    version.digest().unwrap_or_else(|_| Digest::of(b""))
}

/// Removes what became of a version.
///
/// # Errors
/// If the database fails.
pub async fn remove(
    connection: &mut SqliteConnection,
    deployment: &DeploymentName,
    version: u32,
) -> Result<(), StoreError> {
    let (name, version) = (deployment.as_str(), i64::from(version));
    sqlx::query!("DELETE FROM admission WHERE deployment = ? AND version = ?", name, version)
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes refusals without a permit, which hold no more.
///
/// # Errors
/// If the database fails.
pub(super) async fn remove_refusals(
    connection: &mut SqliteConnection,
    deployment: &DeploymentName,
) -> Result<(), StoreError> {
    let name = deployment.as_str();
    sqlx::query!("DELETE FROM admission WHERE deployment = ? AND outcome = 'refused' AND permit IS NULL", name)
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes what became of deployments that the document has no more; and of versions that it has no more, but for what the
/// console has to hear of a permit.
///
/// # Errors
/// If the database fails.
pub(super) async fn keep_only(
    connection: &mut SqliteConnection,
    listed: &BTreeMap<&DeploymentName, u32>,
) -> Result<(), StoreError> {
    let listed = to_json("deployments", &listed)?;
    sqlx::query!(
        "DELETE FROM admission WHERE deployment NOT IN (SELECT key FROM json_each(?1))
             OR ((noted IS NOT NULL OR permit IS NULL)
                 AND version <> (SELECT value FROM json_each(?1) WHERE key = deployment))",
        listed
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Removes all rows.
///
/// # Errors
/// If the database fails.
pub(super) async fn clear(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM admission").execute(connection).await?;
    Ok(())
}
