//! The host's document of desired state, and what became of it.
//!
//! **Invariant: a document, and all that follows from it, are one transaction.** So what the host reports of a document is so.

use std::collections::BTreeSet;

use muster_rules::desired::{head::KnownDocument, host_body};
use muster_topics::{
    desired::{DeploymentRefusal, DeploymentReport, DeploymentUnit, DesiredHead, DesiredReport, DocumentRefusal},
    name::{Digest, UnitName},
};
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_json, to_json},
    error::StoreError,
    owner,
};

/// The stored document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentText {
    /// Its head, as it was signed.
    pub signed: String,
    /// Its body.
    pub body: String,
}

/// Returns the stored document.
///
/// # Errors
/// If the database fails.
pub async fn text(connection: &mut SqliteConnection) -> Result<Option<DocumentText>, StoreError> {
    let row = sqlx::query!("SELECT signed, body FROM document WHERE one = 1").fetch_optional(connection).await?;
    Ok(row.map(|row| DocumentText { signed: row.signed, body: row.body }))
}

/// Returns the instances of the stored document that move to another host while this one is away.
///
/// # Errors
/// If the database fails.
pub async fn reschedulable(store: &Store) -> Result<BTreeSet<UnitName>, StoreError> {
    let mut tx = store.begin().await?;
    let body = text(&mut tx).await?.and_then(|text| host_body::read(text.body.as_bytes()).ok()).unwrap_or_default();
    let moves =
        |unit: &DeploymentUnit| unit.placement.as_ref().is_some_and(|placement| placement.reschedule_ms.is_some());
    let units = body.body.deployments.iter().flat_map(|deployment| deployment.units());
    Ok(units.filter(|(_, unit)| moves(unit)).map(|(name, _)| name).collect())
}

/// Returns the variables that the stored document has.
///
/// # Errors
/// If the database fails.
pub async fn vars(connection: &mut SqliteConnection) -> Result<Vec<(String, serde_json::Value)>, StoreError> {
    let body = text(connection).await?.and_then(|text| host_body::read(text.body.as_bytes()).ok()).unwrap_or_default();
    Ok(body.body.vars.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

/// Returns what is known of the document. If it is unreadable, none is: the console sends it again.
///
/// # Errors
/// If the database fails.
pub async fn known(store: &Store) -> Result<KnownDocument, StoreError> {
    let mut tx = store.begin().await?;
    let head = sqlx::query_scalar!("SELECT head FROM document WHERE one = 1").fetch_optional(&mut *tx).await?;
    let mut known = KnownDocument::default();
    match head.map(|head| serde_json::from_str::<DesiredHead>(&head)) {
        Some(Ok(head)) => (known.mark, known.digest) = (head.mark, Some(head.digest)),
        Some(Err(error)) => tracing::error!(%error, "this host's document cannot be read; it is requested again"),
        None => {}
    }
    known.refused = refusal(&mut tx).await?.map(|(refusal, digest)| (refusal.mark, digest));
    Ok(known)
}

async fn refusal(connection: &mut SqliteConnection) -> Result<Option<(DocumentRefusal, Digest)>, StoreError> {
    let row =
        sqlx::query!("SELECT refusal, digest FROM document_refusal WHERE one = 1").fetch_optional(connection).await?;
    // One that is unreadable is judged again.
    Ok(row.and_then(|row| Some((serde_json::from_str(&row.refusal).ok()?, row.digest.parse().ok()?))))
}

/// Stores a document in place of the one before it.
///
/// # Errors
/// If the database fails.
pub async fn set(connection: &mut SqliteConnection, head: &DesiredHead, text: &DocumentText) -> Result<(), StoreError> {
    let (head, DocumentText { signed, body }) = (to_json("document's head", head)?, text);
    sqlx::query!(
        "INSERT INTO document (one, head, signed, body) VALUES (1, ?, ?, ?)
         ON CONFLICT (one) DO UPDATE SET head = excluded.head, signed = excluded.signed, body = excluded.body",
        head,
        signed,
        body
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!("DELETE FROM document_refusal").execute(connection).await?;
    Ok(())
}

/// Stores that a document was refused.
///
/// # Errors
/// If the database fails.
pub async fn refuse(store: &Store, refusal: &DocumentRefusal, digest: &Digest) -> Result<(), StoreError> {
    let (refusal, digest) = (to_json("refusal", refusal)?, digest.as_str());
    let mut tx = store.begin().await?;
    sqlx::query!(
        "INSERT INTO document_refusal (one, refusal, digest) VALUES (1, ?, ?)
         ON CONFLICT (one) DO UPDATE SET refusal = excluded.refusal, digest = excluded.digest",
        refusal,
        digest
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "refuse document").await
}

/// Returns what the host reports, but for the removals.
///
/// # Errors
/// If the database fails.
pub async fn report(store: &Store) -> Result<DesiredReport, StoreError> {
    let known = known(store).await?;
    let mut tx = store.begin().await?;
    let rows = sqlx::query!(
        r#"SELECT name AS "name!", version, refused_version, refused_message FROM deployment ORDER BY name"#
    )
    .fetch_all(&mut *tx)
    .await?;
    let number = |number: i64| u32::try_from(number).unwrap_or_default();
    let mut report = DesiredReport { mark: known.mark, digest: known.digest, ..DesiredReport::default() };
    report.refused = refusal(&mut tx).await?.map(|(refusal, _)| refusal);
    for row in rows {
        let Ok(name) = row.name.parse() else { continue };
        let refused = row.refused_version.zip(row.refused_message);
        let refused = refused.map(|(version, message)| {
            Ok::<_, StoreError>(DeploymentRefusal {
                version: number(version),
                diagnostic: from_json("reason", &message)?,
            })
        });
        let refused = refused.transpose()?;
        report.deployments.insert(name, DeploymentReport { version: number(row.version), refused, waits: None });
    }
    Ok(report)
}

/// Makes all units of deployments ones that verbs change, as if a verb had made them; returns how many there were.
///
/// # Errors
/// If the database fails.
pub async fn detach_all(store: &Store) -> Result<u64, StoreError> {
    let mut tx = store.begin().await?;
    let count = owner::detach_all(&mut tx).await?;
    super::commit(tx, "detach units").await?;
    Ok(count)
}
