//! What of the store nobody else could tell again: who is a member, with which certificates.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{FromRow, SqliteConnection, SqlitePool};

use super::Result;

/// Everybody who was ever given a certificate that has not been forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Hosts that have joined.
    pub hosts: Vec<Host>,
    /// Certificates of hosts.
    pub certificates: Vec<Certificate>,
    /// Certificates that were made by hand.
    pub issued: Vec<Issued>,
    /// Certificates of hosts that were removed.
    #[serde(default)]
    pub removed: Vec<Removed>,
}

/// A host as it joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, FromRow)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct Host {
    pub id: String,
    pub hostname: String,
    pub facts: String,
    pub joined_ms: i64,
}

/// A host's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, FromRow)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct Certificate {
    pub serial: String,
    pub host: String,
    pub key_sha256: String,
    pub issued_ms: i64,
    pub expires_ms: i64,
    pub revoked_ms: Option<i64>,
}

/// A certificate that was made by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, FromRow)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct Issued {
    pub serial: String,
    pub role: String,
    pub name: String,
    pub issued_ms: i64,
    pub expires_ms: i64,
    pub revoked_ms: Option<i64>,
}

/// A certificate of a host that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, FromRow)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct Removed {
    pub serial: String,
    pub expires_ms: i64,
    pub revoked_ms: i64,
}

/// Numbers of which at least one changes whenever the register does: a look at them costs a hundredth of a look at it.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Marks {
    hosts: i64,
    joined_ms: i64,
    certificates: i64,
    given_ms: i64,
    revoked: i64,
    revoked_ms: i64,
    issued: i64,
    issued_ms: i64,
    by_hand_revoked: i64,
    by_hand_revoked_ms: i64,
    removed: i64,
    removed_ms: i64,
}

impl Marks {
    /// Whether nobody is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts == 0 && self.certificates == 0 && self.issued == 0 && self.removed == 0
    }

    /// Whether somebody is revoked that was not then.
    #[must_use]
    pub fn revokes_more_than(&self, then: &Self) -> bool {
        let by_hand = |marks: &Self| (marks.by_hand_revoked, marks.by_hand_revoked_ms);
        let of = |marks: &Self| (marks.revoked, marks.revoked_ms, marks.removed, marks.removed_ms);
        (of(self), by_hand(self)) != (of(then), by_hand(then))
    }

    /// So much time for each host.
    #[must_use]
    pub fn pause(&self, for_each: Duration) -> Duration {
        for_each.saturating_mul(u32::try_from(self.hosts).unwrap_or(u32::MAX))
    }
}

/// Reads the marks.
pub async fn marks(db: &SqlitePool) -> Result<Marks> {
    let marks = sqlx::query_as(
        "SELECT
           (SELECT count(*) FROM host) AS hosts,
           (SELECT coalesce(max(joined_ms), 0) FROM host) AS joined_ms,
           (SELECT count(*) FROM certificate) AS certificates,
           (SELECT coalesce(max(issued_ms), 0) FROM certificate) AS given_ms,
           (SELECT count(*) FROM certificate WHERE revoked_ms IS NOT NULL) AS revoked,
           (SELECT coalesce(max(revoked_ms), 0) FROM certificate) AS revoked_ms,
           (SELECT count(*) FROM issued) AS issued,
           (SELECT coalesce(max(issued_ms), 0) FROM issued) AS issued_ms,
           (SELECT count(*) FROM issued WHERE revoked_ms IS NOT NULL) AS by_hand_revoked,
           (SELECT coalesce(max(revoked_ms), 0) FROM issued) AS by_hand_revoked_ms,
           (SELECT count(*) FROM removed) AS removed,
           (SELECT coalesce(max(revoked_ms), 0) FROM removed) AS removed_ms",
    )
    .fetch_one(db)
    .await?;
    Ok(marks)
}

/// Reads it all.
pub async fn read(db: &SqlitePool) -> Result<Register> {
    let hosts = sqlx::query_as("SELECT id, hostname, facts, joined_ms FROM host ORDER BY id").fetch_all(db).await?;
    let certificates = sqlx::query_as(
        "SELECT serial, host, key_sha256, issued_ms, expires_ms, revoked_ms FROM certificate ORDER BY serial",
    )
    .fetch_all(db)
    .await?;
    let issued =
        sqlx::query_as("SELECT serial, role, name, issued_ms, expires_ms, revoked_ms FROM issued ORDER BY serial")
            .fetch_all(db)
            .await?;
    let removed =
        sqlx::query_as("SELECT serial, expires_ms, revoked_ms FROM removed ORDER BY serial").fetch_all(db).await?;
    Ok(Register { hosts, certificates, issued, removed })
}

/// Writes it all into a store that has nothing of it.
pub async fn fill(db: &mut SqliteConnection, register: &Register) -> Result<()> {
    for Host { id, hostname, facts, joined_ms } in &register.hosts {
        sqlx::query("INSERT INTO host (id, hostname, facts, joined_ms) VALUES ($1, $2, $3, $4)")
            .bind(id)
            .bind(hostname)
            .bind(facts)
            .bind(joined_ms)
            .execute(&mut *db)
            .await?;
    }
    for Certificate { serial, host, key_sha256, issued_ms, expires_ms, revoked_ms } in &register.certificates {
        sqlx::query(
            "INSERT INTO certificate (serial, host, key_sha256, issued_ms, expires_ms, revoked_ms)
             VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(serial)
        .bind(host)
        .bind(key_sha256)
        .bind(issued_ms)
        .bind(expires_ms)
        .bind(revoked_ms)
        .execute(&mut *db)
        .await?;
    }
    for Issued { serial, role, name, issued_ms, expires_ms, revoked_ms } in &register.issued {
        sqlx::query(
            "INSERT INTO issued (serial, role, name, issued_ms, expires_ms, revoked_ms) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(serial)
        .bind(role)
        .bind(name)
        .bind(issued_ms)
        .bind(expires_ms)
        .bind(revoked_ms)
        .execute(&mut *db)
        .await?;
    }
    for Removed { serial, expires_ms, revoked_ms } in &register.removed {
        sqlx::query("INSERT INTO removed (serial, expires_ms, revoked_ms) VALUES ($1, $2, $3)")
            .bind(serial)
            .bind(expires_ms)
            .bind(revoked_ms)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}
