//! What operators have changed of deployments, cordons and variables.

use muster_api::{Change, ChangeKind};
use muster_topics::{Millis, name::Name};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{from_word, parsed, word},
    error::StoreResult,
};

/// The most changes that are kept: years of them, in some megabytes.
const CHANGES_MAX: i64 = 10_000;

/// A change, as it is noted.
#[derive(Clone, Debug)]
pub struct NewChange<'a> {
    /// Who made it.
    pub operator: &'a Name,
    /// What it is.
    pub kind: ChangeKind,
    /// What it is about.
    pub subject: String,
    /// More of it, for people.
    pub detail: String,
}

/// Notes a change, and removes the oldest of too many.
pub async fn note(db: &mut SqliteConnection, change: &NewChange<'_>, now: Millis) -> StoreResult<()> {
    let n = sqlx::query!(
        "INSERT INTO change (at_ms, operator, kind, subject, detail) VALUES ($1, $2, $3, $4, $5)",
        now,
        change.operator.as_str(),
        word("kind", &change.kind)?,
        &change.subject,
        &change.detail
    )
    .execute(&mut *db)
    .await?
    .last_insert_rowid();
    sqlx::query!("DELETE FROM change WHERE n <= $1", n.saturating_sub(CHANGES_MAX)).execute(db).await?;
    Ok(())
}

/// Returns the newest changes, of one subject or of all.
pub async fn newest(db: &SqlitePool, subject: Option<&str>, limit: u32) -> StoreResult<Vec<Change>> {
    let rows = sqlx::query!(
        "SELECT at_ms, operator, kind, subject, detail FROM change WHERE $1 IS NULL OR subject = $1
         ORDER BY n DESC LIMIT $2",
        subject,
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Change {
                at_ms: row.at_ms,
                operator: parsed("operator", &row.operator)?,
                kind: from_word("kind", &row.kind)?,
                subject: row.subject,
                detail: row.detail,
            })
        })
        .collect()
}
