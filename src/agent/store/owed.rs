//! Actions that are owed after a change of a unit.
//!
//! **Invariant: an action is owed from the transaction that has made its change**, and is no more once it was done or the change was
//! rolled back. It may be done twice, if the agent ends in between.

use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    files::ChangeAction,
    name::{Digest, UnitName},
};
use sqlx::SqliteConnection;
use tokio::sync::watch;

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
};

/// The most actions that changes of a unit owe: those of its last four changes at least. A unit that never comes up owes no more.
const OWED_MAX: i64 = 64;

/// An action that is owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedAction {
    /// Its number: they are done in this order.
    pub number: u64,
    /// The unit whose change wants it.
    pub unit: UnitName,
    /// The revision of that change.
    pub revision: Digest,
    /// What is to be done.
    pub action: ChangeAction,
    /// Since when.
    pub since_ms: Millis,
    /// How often it has failed.
    pub attempts: u32,
    /// When it is tried next.
    pub due_ms: Millis,
    /// Why it could not be done the last time.
    pub error: Option<Diagnostic>,
    /// When it was given up.
    pub failed_ms: Option<Millis>,
}

impl OwedAction {
    /// Whether it is still to be done.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.failed_ms.is_none()
    }
}

/// Stores that a change owes these actions, in the transaction of the change; [`Store::announce_owed`] comes after it. One that was owed already, or was given up, is owed
/// anew.
///
/// # Errors
/// If the database fails.
pub(crate) async fn add(
    tx: &mut SqliteConnection,
    unit: &UnitName,
    revision: &Digest,
    actions: &[ChangeAction],
    now_ms: Millis,
) -> Result<(), StoreError> {
    let (unit, revision) = (unit.as_str(), revision.as_str());
    // What was given up after an earlier change is not shown for ever.
    sqlx::query!("DELETE FROM owed WHERE unit = ? AND revision <> ? AND failed_ms IS NOT NULL", unit, revision)
        .execute(&mut *tx)
        .await?;
    for action in actions {
        let action = to_json("action", action)?;
        sqlx::query!(
            "INSERT INTO owed (unit, revision, action, since_ms, due_ms) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (unit, revision, action) DO UPDATE SET since_ms = excluded.since_ms, attempts = 0,
                 due_ms = excluded.due_ms, error = NULL, failed_ms = NULL",
            unit,
            revision,
            action,
            now_ms,
            now_ms
        )
        .execute(&mut *tx)
        .await?;
    }
    sqlx::query!(
        "DELETE FROM owed WHERE unit = ?1 AND number IN
             (SELECT number FROM owed WHERE unit = ?1 ORDER BY number DESC LIMIT -1 OFFSET ?2)",
        unit,
        OWED_MAX
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Removes what the change to a revision owes, because it was rolled back.
///
/// # Errors
/// If the database fails.
pub(crate) async fn drop_of(tx: &mut SqliteConnection, unit: &UnitName, revision: &Digest) -> Result<(), StoreError> {
    let (unit, revision) = (unit.as_str(), revision.as_str());
    sqlx::query!("DELETE FROM owed WHERE unit = ? AND revision = ?", unit, revision).execute(tx).await?;
    Ok(())
}

/// Returns all actions that are owed, and those that were given up, in order. An unreadable one is logged and left out.
///
/// # Errors
/// If the database fails.
pub async fn all(connection: &mut SqliteConnection) -> Result<Vec<OwedAction>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT number AS "number!", unit, revision, action, since_ms, attempts, due_ms, error, failed_ms
           FROM owed ORDER BY number"#
    )
    .fetch_all(connection)
    .await?;
    let quoted = serde_json::Value::String;
    let mut owed = Vec::new();
    for row in rows {
        let read = || -> Result<_, serde_json::Error> {
            let (unit, revision) = (quoted(row.unit.clone()), quoted(row.revision.clone()));
            let action = serde_json::from_str(&row.action)?;
            let error: Option<Diagnostic> = row.error.as_deref().map(serde_json::from_str).transpose()?;
            Ok((serde_json::from_value(unit)?, serde_json::from_value(revision)?, action, error))
        };
        match read() {
            Ok((unit, revision, action, error)) => owed.push(OwedAction {
                number: from_sql(row.number),
                unit,
                revision,
                action,
                since_ms: row.since_ms,
                attempts: row.attempts.try_into().unwrap_or(u32::MAX),
                due_ms: row.due_ms,
                error,
                failed_ms: row.failed_ms,
            }),
            Err(error) => tracing::error!(unit = row.unit, %error, "an action after a change cannot be read"),
        }
    }
    Ok(owed)
}

/// Removes actions that were done.
///
/// # Errors
/// If the database fails.
pub async fn remove(connection: &mut SqliteConnection, numbers: &[u64]) -> Result<(), StoreError> {
    for number in numbers {
        let number = to_sql(*number);
        sqlx::query!("DELETE FROM owed WHERE number = ?", number).execute(&mut *connection).await?;
    }
    Ok(())
}

impl Store {
    /// Notified after more was owed.
    pub(crate) fn owed_added(&self) -> watch::Receiver<()> {
        self.owed_added.subscribe()
    }

    /// Has what is owed looked at, after the transaction of [`add`] was committed.
    pub(crate) fn announce_owed(&self) {
        self.owed_added.send_replace(());
    }

    /// Returns all actions that are owed, in order.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn owed(&self) -> Result<Vec<OwedAction>, StoreError> {
        let mut tx = self.begin().await?;
        all(&mut tx).await
    }

    /// Removes actions that were done.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn owed_done(&self, numbers: &[u64]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        remove(&mut tx, numbers).await?;
        super::commit(tx, "owed done").await
    }

    /// Stores that actions could not be done, and when they are tried again; or that they are given up.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn owed_not_done(
        &self,
        numbers: &[u64],
        error: &Diagnostic,
        due_ms: Option<Millis>,
        now_ms: Millis,
    ) -> Result<(), StoreError> {
        let failed_ms = due_ms.is_none().then_some(now_ms);
        let due_ms = due_ms.unwrap_or(now_ms);
        let error = to_json("error", error)?;
        let mut tx = self.begin().await?;
        for number in numbers {
            let number = to_sql(*number);
            sqlx::query!(
                "UPDATE owed SET attempts = attempts + 1, error = ?, due_ms = ?, failed_ms = ? WHERE number = ?",
                error,
                due_ms,
                failed_ms,
                number
            )
            .execute(&mut *tx)
            .await?;
        }
        super::commit(tx, "owed not done").await
    }
}
