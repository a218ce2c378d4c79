//! The journal of units of files.
//!
//! **Invariant: what a unit is about to make of a path is committed before the path is changed**, with what was there before.

use std::collections::{BTreeMap, BTreeSet};

use muster_rules::files::plan::JournalEntry;
use muster_topics::{
    Millis,
    files::ChangeAction,
    name::{Digest, UnitName},
};
use serde_json::json;

use super::{Store, columns::to_json, commit, error::StoreError, owed};

/// What was applied of a unit of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppliedFiles {
    /// The revision.
    pub(crate) revision: Digest,
    /// Whether it is kept so; false once the unit was stopped.
    pub(crate) is_kept: bool,
}

/// The journal of a unit, by path.
pub(crate) type FilesJournal = BTreeMap<String, JournalEntry>;

/// Returns what was applied of a unit; `None` if its application has not ended.
///
/// # Errors
/// If the database fails.
pub(crate) async fn applied(store: &Store, unit: &UnitName) -> Result<Option<AppliedFiles>, StoreError> {
    let mut tx = store.begin().await?;
    let name = unit.as_str();
    let row =
        sqlx::query!("SELECT revision, is_kept FROM files_unit WHERE unit = ?", name).fetch_optional(&mut *tx).await?;
    // A row that is unreadable has no checksum that fits, and is set aside when the store is opened.
    Ok(row.and_then(|row| Some(AppliedFiles { revision: row.revision.parse().ok()?, is_kept: row.is_kept != 0 })))
}

/// Returns the journal of a unit.
///
/// # Errors
/// If the database fails, or a row is unreadable.
pub(crate) async fn journal(store: &Store, unit: &UnitName) -> Result<FilesJournal, StoreError> {
    let mut tx = store.begin().await?;
    let name = unit.as_str();
    let rows =
        sqlx::query!("SELECT path, original, made, next, is_purged, is_secret FROM files_path WHERE unit = ?", name)
            .fetch_all(&mut *tx)
            .await?;
    let read = |what, text: &str| serde_json::from_str(text).map_err(|source| StoreError::Content { what, source });
    rows.into_iter()
        .map(|row| {
            let entry = JournalEntry {
                original: read("record of the files before the change", &row.original)?,
                made: row.made.map(|made| read("record of the files that were made", &made)).transpose()?,
                next: row.next.map(|next| read("record of the files to make", &next)).transpose()?,
                is_purged: row.is_purged != 0,
                is_secret: row.is_secret != 0,
            };
            Ok((row.path, entry))
        })
        .collect()
}

/// Stores what a unit is about to make of paths.
///
/// # Errors
/// If the database fails.
pub(crate) async fn intend(store: &Store, unit: &UnitName, intents: &FilesJournal) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    let name = unit.as_str();
    // Until it has ended, no revision is applied.
    sqlx::query!("DELETE FROM files_unit WHERE unit = ?", name).execute(&mut *tx).await?;
    put(&mut tx, unit, intents).await?;
    commit(tx, "intend files").await
}

async fn put(tx: &mut sqlx::SqliteConnection, unit: &UnitName, entries: &FilesJournal) -> Result<(), StoreError> {
    let rows: Vec<_> = entries
        .iter()
        .map(|(path, entry)| {
            let text = |state| serde_json::to_string(state).unwrap_or_default();
            json!({
                "path": path,
                "original": text(&entry.original),
                "made": entry.made.as_ref().map(text),
                "next": entry.next.as_ref().map(text),
                "is_purged": i64::from(entry.is_purged),
                "is_secret": i64::from(entry.is_secret),
            })
        })
        .collect();
    let (name, rows) = (unit.as_str(), to_json("journal of files", &rows)?);
    sqlx::query!(
        "INSERT INTO files_path (unit, path, original, made, next, is_purged, is_secret)
         SELECT ?, value ->> 'path', value ->> 'original', value ->> 'made', value ->> 'next', value ->> 'is_purged',
                value ->> 'is_secret'
         FROM json_each(?) WHERE true
         ON CONFLICT (unit, path) DO UPDATE
         SET original = excluded.original, made = excluded.made, next = excluded.next, is_purged = excluded.is_purged,
             is_secret = excluded.is_secret",
        name,
        rows
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Stores that a unit's files are as its revision says: what it has made, which paths it has given back, and what the change
/// owes.
///
/// # Errors
/// If the database fails.
pub(crate) async fn note(
    store: &Store,
    unit: &UnitName,
    applied: &Digest,
    (made, released): (&FilesJournal, &BTreeSet<String>),
    (owed, now_ms): (&[ChangeAction], Millis),
) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    put(&mut tx, unit, made).await?;
    let (name, released) = (unit.as_str(), to_json("paths", released)?);
    sqlx::query!("DELETE FROM files_path WHERE unit = ? AND path IN (SELECT value FROM json_each(?))", name, released)
        .execute(&mut *tx)
        .await?;
    let revision = applied.as_str();
    sqlx::query!(
        "INSERT INTO files_unit (unit, revision, is_kept) VALUES (?, ?, 1)
         ON CONFLICT (unit) DO UPDATE SET revision = excluded.revision, is_kept = 1",
        name,
        revision
    )
    .execute(&mut *tx)
    .await?;
    owed::add(&mut tx, unit, applied, owed, now_ms).await?;
    commit(tx, "note files").await?;
    store.announce_owed();
    Ok(())
}

/// Stores that a unit's files are not kept any more.
///
/// # Errors
/// If the database fails.
pub(crate) async fn stop(store: &Store, unit: &UnitName) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    let name = unit.as_str();
    sqlx::query!("UPDATE files_unit SET is_kept = 0 WHERE unit = ?", name).execute(&mut *tx).await?;
    commit(tx, "stop files").await
}

/// Forgets a unit, whose paths are as they were before.
///
/// # Errors
/// If the database fails.
pub(crate) async fn forget(store: &Store, unit: &UnitName) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    let name = unit.as_str();
    sqlx::query!("DELETE FROM files_path WHERE unit = ?", name).execute(&mut *tx).await?;
    sqlx::query!("DELETE FROM files_unit WHERE unit = ?", name).execute(&mut *tx).await?;
    commit(tx, "forget files").await
}

/// Returns the paths at which any unit has put a secret, or was about to.
///
/// # Errors
/// If the database fails.
pub(crate) async fn secret_paths(store: &Store) -> Result<BTreeSet<String>, StoreError> {
    let mut tx = store.begin().await?;
    let paths = sqlx::query_scalar!("SELECT path FROM files_path WHERE is_secret = 1").fetch_all(&mut *tx).await?;
    Ok(paths.into_iter().collect())
}

/// Returns the contents that journals of all units name, as JSON texts.
///
/// # Errors
/// If the database fails.
pub(crate) async fn originals(store: &Store) -> Result<Vec<String>, StoreError> {
    let mut tx = store.begin().await?;
    Ok(sqlx::query_scalar!("SELECT original FROM files_path").fetch_all(&mut *tx).await?)
}
