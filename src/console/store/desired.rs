//! Documents of hosts: heads by host, bodies by digest.

use std::collections::HashMap;

use muster_sqlite::rows::{parameters, pieces};
use muster_topics::{
    Millis,
    desired::{DesiredMark, DesiredReport},
    name::{Digest, HostId},
};
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use super::{
    columns::{json, parsed, signed, to_json, unsigned},
    error::StoreResult,
};

/// How many documents of a host are remembered: a host that has an earlier one was away for longer than anybody asks.
const ISSUED_KEPT: i64 = 20;

/// The present document of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentRow {
    /// Which one it is.
    pub mark: DesiredMark,
    /// The digest of its body.
    pub digest: Digest,
    /// The length of its body.
    pub size_bytes: u64,
    /// Whether the body must not be on the broker.
    pub is_secret: bool,
    /// When it was made.
    pub made_ms: Millis,
    /// Whether its head was sent.
    pub is_sent: bool,
}

/// Returns the present document of each host.
pub async fn documents(db: &SqlitePool) -> StoreResult<HashMap<HostId, DocumentRow>> {
    let rows = sqlx::query!(
        r#"SELECT host, epoch, generation, host_document.digest, made_ms, is_sent AS "is_sent: bool",
                  is_secret AS "is_secret: bool", length(CAST(content AS BLOB)) AS "size_bytes!: i64"
           FROM host_document JOIN desired_body ON desired_body.digest = host_document.digest"#
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            let document = DocumentRow {
                mark: mark(row.epoch, row.generation)?,
                digest: parsed("digest", &row.digest)?,
                size_bytes: unsigned("size", row.size_bytes)?,
                is_secret: row.is_secret,
                made_ms: row.made_ms,
                is_sent: row.is_sent,
            };
            Ok((parsed("host id", &row.host)?, document))
        })
        .collect()
}

fn mark(epoch: i64, generation: i64) -> StoreResult<DesiredMark> {
    Ok(DesiredMark { epoch: unsigned("epoch", epoch)?, generation: unsigned("generation", generation)? })
}

/// Returns what each host reported of its document last, and when.
pub async fn reports(db: &SqlitePool) -> StoreResult<HashMap<HostId, (DesiredReport, Millis)>> {
    let rows =
        sqlx::query!(r#"SELECT host, at_ms, json_extract(state, '$.desired') AS "desired!: String" FROM heartbeat"#)
            .map(|row| (row.host, row.at_ms, row.desired))
            .fetch_all(db)
            .await?;
    rows.into_iter()
        .map(|(host, at_ms, desired)| Ok((parsed("host id", &host)?, (json("report of a document", &desired)?, at_ms))))
        .collect()
}

/// Stores a body, unless it is there.
pub async fn put_body(db: &mut SqliteConnection, digest: &Digest, content: &str, is_secret: bool) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO desired_body (digest, content, is_secret) VALUES ($1, $2, $3)
         ON CONFLICT (digest) DO UPDATE SET content = excluded.content WHERE content <> excluded.content",
        digest.as_str(),
        content,
        i64::from(is_secret)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Leaves out a body that is not what was stored: nobody is sent it.
fn whole(body: Option<String>, digest: &Digest) -> Option<String> {
    let is_damaged = body.as_ref().is_some_and(|body| Digest::of(body.as_bytes()) != *digest);
    if is_damaged {
        let hint = "check the disk of the console";
        tracing::error!(digest = digest.short(), hint, "a stored document is damaged, and left out");
    }
    body.filter(|_| !is_damaged)
}

/// Returns a body.
pub async fn body(db: &SqlitePool, digest: &Digest) -> StoreResult<Option<String>> {
    let body = sqlx::query_scalar!("SELECT content FROM desired_body WHERE digest = $1", digest.as_str());
    Ok(whole(body.fetch_optional(db).await?, digest))
}

/// Returns the body of a host's present document, if it has this digest.
pub async fn body_for(db: &SqlitePool, host: HostId, digest: &Digest) -> StoreResult<Option<String>> {
    let body = sqlx::query_scalar!(
        "SELECT content FROM desired_body JOIN host_document ON host_document.digest = desired_body.digest
         WHERE host = $1 AND desired_body.digest = $2",
        host.to_string(),
        digest.as_str()
    );
    Ok(whole(body.fetch_optional(db).await?, digest))
}

/// Stores new documents of hosts, which are to be sent. Their bodies are there already.
pub async fn set_documents(db: &mut SqliteConnection, documents: &[(HostId, DocumentRow)]) -> StoreResult<()> {
    for piece in pieces(documents) {
        let sql = format!(
            "INSERT INTO host_document (host, epoch, generation, digest, made_ms, is_sent) VALUES {}
             ON CONFLICT (host) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation,
                 digest = excluded.digest, made_ms = excluded.made_ms, is_sent = excluded.is_sent",
            parameters(piece.len(), 6)
        );
        // Unchecked: many rows of several columns, of which `parameters` writes the question marks.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (host, document) in piece {
            query = query
                .bind(host.to_string())
                .bind(signed(document.mark.epoch))
                .bind(signed(document.mark.generation))
                .bind(document.digest.as_str())
                .bind(document.made_ms)
                .bind(i64::from(document.is_sent));
        }
        query.execute(&mut *db).await?;
    }
    let hosts: Vec<HostId> = documents.iter().map(|(host, _)| *host).collect();
    let hosts = to_json("hosts", &hosts)?;
    sqlx::query!(
        "INSERT INTO issued_document (host, epoch, generation, digest)
         SELECT host, epoch, generation, digest FROM host_document WHERE host IN (SELECT value FROM json_each($1))
         ON CONFLICT (host, epoch, generation) DO UPDATE SET digest = excluded.digest",
        &hosts
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "DELETE FROM issued_document WHERE host IN (SELECT value FROM json_each($1))
           AND generation <= (SELECT host_document.generation - $2 FROM host_document
                              WHERE host_document.host = issued_document.host)",
        hosts,
        ISSUED_KEPT
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records that a document counts as one of this console.
pub async fn note_issued(
    db: &mut SqliteConnection,
    host: HostId,
    mark: DesiredMark,
    digest: &Digest,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO issued_document (host, epoch, generation, digest) VALUES ($1, $2, $3, $4)
         ON CONFLICT (host, epoch, generation) DO UPDATE SET digest = excluded.digest",
        host.to_string(),
        signed(mark.epoch),
        signed(mark.generation),
        digest.as_str()
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Whether the console made this document of a host, as far as it remembers: one that is earlier than all that it
/// remembers counts as its own.
pub async fn is_issued(db: &SqlitePool, host: HostId, mark: DesiredMark, digest: &Digest) -> StoreResult<bool> {
    let host = host.to_string();
    let found = sqlx::query!(
        r#"SELECT EXISTS (SELECT 1 FROM issued_document
                          WHERE host = $1 AND epoch = $2 AND generation = $3 AND digest = $4) AS "is_issued!: bool",
                  NOT EXISTS (SELECT 1 FROM issued_document
                              WHERE host = $1 AND (epoch, generation) <= ($2, $3)) AS "is_before!: bool",
                  (SELECT count(*) FROM issued_document WHERE host = $1) AS "count!: i64""#,
        host,
        signed(mark.epoch),
        signed(mark.generation),
        digest.as_str()
    )
    .fetch_one(db)
    .await?;
    Ok(found.is_issued || found.is_before && found.count >= ISSUED_KEPT)
}

/// Whether a document is later than all that the console remembers to have made for the host.
pub async fn is_later(db: &mut SqliteConnection, host: HostId, mark: DesiredMark) -> StoreResult<bool> {
    let found = sqlx::query_scalar!(
        "SELECT 1 FROM issued_document WHERE host = $1 AND (epoch, generation) >= ($2, $3) LIMIT 1",
        host.to_string(),
        signed(mark.epoch),
        signed(mark.generation)
    )
    .fetch_optional(db)
    .await?;
    Ok(found.is_none())
}

/// Records that these documents were sent.
pub async fn set_sent(db: &SqlitePool, hosts: &[(HostId, u64)]) -> StoreResult<()> {
    let list: Vec<(String, i64)> = hosts.iter().map(|(host, number)| (host.to_string(), signed(*number))).collect();
    sqlx::query!(
        "UPDATE host_document SET is_sent = 1
         WHERE (host, generation) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each($1))",
        to_json("hosts", &list)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes bodies that no document has.
pub async fn sweep_bodies(db: &SqlitePool) -> StoreResult<()> {
    sqlx::query!("DELETE FROM desired_body WHERE digest NOT IN (SELECT digest FROM host_document)").execute(db).await?;
    sqlx::query!("DELETE FROM handed_in_body WHERE digest NOT IN (SELECT digest FROM handed_in_document)")
        .execute(db)
        .await?;
    Ok(())
}

/// A document that a host has handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedInRow {
    /// Which one it is.
    pub mark: DesiredMark,
    /// The digest of its body.
    pub digest: Digest,
}

/// Stores what a host has handed in.
pub async fn hand_in(
    db: &mut SqliteConnection,
    host: HostId,
    document: &HandedInRow,
    body: &str,
    now: Millis,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO handed_in_body (digest, content) VALUES ($1, $2) ON CONFLICT (digest) DO NOTHING",
        document.digest.as_str(),
        body
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "INSERT INTO handed_in_document (host, epoch, generation, digest, at_ms) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (host) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation,
           digest = excluded.digest, at_ms = excluded.at_ms",
        host.to_string(),
        signed(document.mark.epoch),
        signed(document.mark.generation),
        document.digest.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns what hosts have handed in.
pub async fn handed_in(db: &SqlitePool) -> StoreResult<HashMap<HostId, HandedInRow>> {
    let rows = sqlx::query!("SELECT host, epoch, generation, digest FROM handed_in_document").fetch_all(db).await?;
    rows.into_iter()
        .map(|row| {
            let document =
                HandedInRow { mark: mark(row.epoch, row.generation)?, digest: parsed("digest", &row.digest)? };
            Ok((parsed("host id", &row.host)?, document))
        })
        .collect()
}

/// Returns a body that hosts have handed in.
pub async fn handed_in_body(db: &SqlitePool, digest: &Digest) -> StoreResult<Option<String>> {
    let body = sqlx::query_scalar!("SELECT content FROM handed_in_body WHERE digest = $1", digest.as_str());
    Ok(whole(body.fetch_optional(db).await?, digest))
}

/// Forgets what hosts have handed in.
pub async fn forget_handed_in(db: &mut SqliteConnection, hosts: &[HostId]) -> StoreResult<()> {
    sqlx::query!(
        "DELETE FROM handed_in_document WHERE host IN (SELECT value FROM json_each($1))",
        to_json("hosts", &hosts)?
    )
    .execute(db)
    .await?;
    Ok(())
}
