//! Rollouts, their hosts, and what has happened to them. What the rules know of them is kept as JSON.

use muster_api::{HostOutcome, ROLLOUT_STEPS_MAX, RolloutStep};
use muster_sqlite::rows::{parameters, pieces};
use muster_topics::{
    Millis,
    desired::DeploymentName,
    name::{HostId, Name},
};
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use super::{
    columns::{from_word, parsed, unsigned, word},
    error::{StoreError, StoreResult},
};

/// How many rollouts of a deployment keep their hosts; of earlier ones, only how they went is known.
const HOSTS_KEPT: i64 = 20;

/// The most steps of a rollout that are kept.
const STEPS_KEPT: i64 = 1_000;

/// A rollout without its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutRow {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version.
    pub version: u32,
    /// When it began.
    pub begun_ms: Millis,
    /// When it ended.
    pub ended_ms: Option<Millis>,
    /// How it goes, as JSON.
    pub state: String,
}

/// A host of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutHostRow {
    /// The host.
    pub host: HostId,
    /// Its name when it was stored last.
    pub hostname: String,
    /// Its outcome.
    pub outcome: Option<HostOutcome>,
    /// How far it is, as JSON.
    pub progress: String,
}

struct RolloutColumns {
    deployment: String,
    version: i64,
    begun_ms: Millis,
    ended_ms: Option<Millis>,
    state: String,
}

impl RolloutColumns {
    fn row(self) -> StoreResult<RolloutRow> {
        let wrong = |error: std::num::TryFromIntError| StoreError::Row { what: "version", problem: error.to_string() };
        Ok(RolloutRow {
            deployment: parsed("deployment", &self.deployment)?,
            version: u32::try_from(unsigned("version", self.version)?).map_err(wrong)?,
            begun_ms: self.begun_ms,
            ended_ms: self.ended_ms,
            state: self.state,
        })
    }
}

/// Returns all rollouts of deployments that there are; or all of one, removed or not, the newest first.
pub async fn all(db: &SqlitePool, of: Option<&DeploymentName>) -> StoreResult<Vec<RolloutRow>> {
    let rows = sqlx::query_as!(
        RolloutColumns,
        "SELECT deployment, rollout.version, begun_ms, ended_ms, state
         FROM rollout JOIN deployment ON deployment.name = rollout.deployment
         WHERE CASE WHEN $1 IS NULL THEN removed_ms IS NULL ELSE deployment = $1 END
         ORDER BY deployment, rollout.version DESC",
        of.map(DeploymentName::as_str)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(RolloutColumns::row).collect()
}

/// Returns the hosts of a rollout.
pub async fn hosts(db: &SqlitePool, deployment: &DeploymentName, version: u32) -> StoreResult<Vec<RolloutHostRow>> {
    let rows = sqlx::query!(
        "SELECT host, hostname, outcome, progress FROM rollout_host WHERE deployment = $1 AND version = $2",
        deployment.as_str(),
        i64::from(version)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(RolloutHostRow {
                host: parsed("host id", &row.host)?,
                hostname: row.hostname,
                outcome: row.outcome.map(|outcome| from_word("outcome", &outcome)).transpose()?,
                progress: row.progress,
            })
        })
        .collect()
}

/// Hosts of a rollout that have the same outcome, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeCount {
    /// The outcome.
    pub outcome: Option<HostOutcome>,
    /// How many they are.
    pub hosts: u64,
    /// How many of them were unavailable.
    pub unavailable: u64,
}

/// Counts the hosts of a rollout by outcome.
pub async fn counts(db: &SqlitePool, deployment: &DeploymentName, version: u32) -> StoreResult<Vec<OutcomeCount>> {
    let rows = sqlx::query!(
        "SELECT outcome, count(*) AS hosts, count(*) FILTER (WHERE progress ->> '$.is_unavailable') AS unavailable
         FROM rollout_host WHERE deployment = $1 AND version = $2 GROUP BY outcome",
        deployment.as_str(),
        i64::from(version)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(OutcomeCount {
                outcome: row.outcome.map(|outcome| from_word("outcome", &outcome)).transpose()?,
                hosts: unsigned("count", row.hosts)?,
                unavailable: unsigned("count", row.unavailable)?,
            })
        })
        .collect()
}

/// Stores rollouts.
pub async fn put(db: &mut SqliteConnection, rows: &[RolloutRow]) -> StoreResult<()> {
    for row in rows {
        sqlx::query!(
            "INSERT INTO rollout (deployment, version, begun_ms, ended_ms, state) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (deployment, version) DO UPDATE SET ended_ms = excluded.ended_ms, state = excluded.state",
            row.deployment.as_str(),
            i64::from(row.version),
            row.begun_ms,
            row.ended_ms,
            &row.state
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Stores hosts of a rollout.
pub async fn put_hosts(
    db: &mut SqliteConnection,
    (deployment, version): (&DeploymentName, u32),
    rows: &[RolloutHostRow],
) -> StoreResult<()> {
    for piece in pieces(rows) {
        let sql = format!(
            "INSERT INTO rollout_host (deployment, version, host, hostname, outcome, progress) VALUES {}
             ON CONFLICT (deployment, version, host) DO UPDATE SET hostname = excluded.hostname,
                 outcome = excluded.outcome, progress = excluded.progress",
            parameters(piece.len(), 6)
        );
        // Unchecked: many rows of several columns, of which `parameters` writes the question marks.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for row in piece {
            query = query
                .bind(deployment.as_str())
                .bind(i64::from(version))
                .bind(row.host.to_string())
                .bind(row.hostname.clone())
                .bind(row.outcome.map(|outcome| word("outcome", &outcome)).transpose()?)
                .bind(row.progress.clone());
        }
        query.execute(&mut *db).await?;
    }
    Ok(())
}

/// Stores the outcome of an earlier version on a host, unless it has one that a later one does not replace.
pub async fn set_outcome(
    db: &mut SqliteConnection,
    (deployment, version): (&DeploymentName, u32),
    host: HostId,
    outcome: HostOutcome,
) -> StoreResult<()> {
    sqlx::query!(
        "UPDATE rollout_host SET outcome = $4 WHERE deployment = $1 AND version = $2 AND host = $3
           AND (outcome IS NULL OR outcome IN ('missing', 'skipped', 'lost', 'refused'))",
        deployment.as_str(),
        i64::from(version),
        host.to_string(),
        word("outcome", &outcome)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets the hosts of rollouts that were long ago.
pub async fn trim_hosts(db: &mut SqliteConnection, deployment: &DeploymentName) -> StoreResult<()> {
    sqlx::query!(
        "DELETE FROM rollout_host WHERE deployment = $1
           AND version < (SELECT version FROM rollout WHERE deployment = $1 ORDER BY version DESC LIMIT 1 OFFSET $2)",
        deployment.as_str(),
        HOSTS_KEPT - 1
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records what has happened to a rollout.
pub async fn add_step(
    db: &mut SqliteConnection,
    (deployment, version): (&DeploymentName, u32),
    step: &RolloutStep,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO rollout_step (deployment, version, at_ms, operator, text) VALUES ($1, $2, $3, $4, $5)",
        deployment.as_str(),
        i64::from(version),
        step.at_ms,
        step.operator.as_ref().map(Name::as_str),
        &step.text
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "DELETE FROM rollout_step WHERE deployment = $1 AND version = $2
           AND id <= (SELECT id FROM rollout_step WHERE deployment = $1 AND version = $2
                      ORDER BY id DESC LIMIT 1 OFFSET $3)",
        deployment.as_str(),
        i64::from(version),
        STEPS_KEPT
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns what has happened to a rollout last, newest first.
pub async fn steps(db: &SqlitePool, deployment: &DeploymentName, version: u32) -> StoreResult<Vec<RolloutStep>> {
    let rows = sqlx::query!(
        "SELECT at_ms, operator, text FROM rollout_step WHERE deployment = $1 AND version = $2
         ORDER BY id DESC LIMIT $3",
        deployment.as_str(),
        i64::from(version),
        i64::try_from(ROLLOUT_STEPS_MAX).unwrap_or(i64::MAX)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            let operator = row.operator.map(|operator| parsed("operator", &operator)).transpose()?;
            Ok(RolloutStep { at_ms: row.at_ms, operator, text: row.text })
        })
        .collect()
}
