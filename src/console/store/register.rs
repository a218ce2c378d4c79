//! The part of the store that no one else could restore: members and their certificates.

use std::time::Duration;

use muster_topics::{Millis, heartbeat::Facts, name::HostId};
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{parsed, signed, to_json, unsigned},
    error::StoreResult,
};

/// The content of the register: everybody who was given a certificate that is still kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The number of writes: it grows by one each time, here and in the store.
    pub seq: u64,
    /// Hosts that have joined.
    pub hosts: Vec<RegisteredHost>,
    /// Certificates of hosts.
    pub certificates: Vec<RegisteredCertificate>,
    /// Certificates that were issued by hand.
    pub issued: Vec<RegisteredIssue>,
    /// Certificates of removed hosts.
    pub removed: Vec<RemovedHost>,
    /// SHA-256 of secrets that were ended before their expiry: used or revoked join tokens, and ended sign-ins.
    pub ended: Vec<String>,
}

impl Register {
    /// Whether it has any entry.
    #[must_use]
    pub fn knows_somebody(&self) -> bool {
        !(self.hosts.is_empty() && self.certificates.is_empty() && self.issued.is_empty() && self.removed.is_empty())
    }
}

/// A host as it joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct RegisteredHost {
    pub id: String,
    pub hostname: String,
    pub facts: String,
    pub joined_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing_key_ms: Option<i64>,
}

/// A host's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct RegisteredCertificate {
    pub serial: String,
    pub host: String,
    pub key_sha256: String,
    pub issued_ms: i64,
    pub expires_ms: i64,
    pub revoked_ms: Option<i64>,
}

/// A certificate that was issued by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct RegisteredIssue {
    pub serial: String,
    pub role: String,
    pub name: String,
    pub issued_ms: i64,
    pub expires_ms: i64,
    pub revoked_ms: Option<i64>,
}

/// A certificate of a removed host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct RemovedHost {
    pub serial: String,
    pub expires_ms: i64,
    pub revoked_ms: i64,
}

/// Numbers of which at least one changes whenever the register does: reading them costs a hundredth of reading the
/// register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    hosts: i64,
    joined_ms: i64,
    sealing_keys: i64,
    sealing_key_ms: i64,
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
    used: i64,
    ended: i64,
}

impl Marks {
    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts == 0 && self.certificates == 0 && self.issued == 0 && self.removed == 0
    }

    /// Whether there is a revocation that was not there before.
    #[must_use]
    pub fn revokes_more_than(&self, then: &Self) -> bool {
        let by_hand = |marks: &Self| (marks.by_hand_revoked, marks.by_hand_revoked_ms);
        let of = |marks: &Self| (marks.revoked, marks.revoked_ms, marks.removed, marks.removed_ms, marks.ended);
        (of(self), by_hand(self)) != (of(then), by_hand(then))
    }

    /// Returns this much time for each host.
    #[must_use]
    pub fn pause(&self, for_each: Duration) -> Duration {
        for_each.saturating_mul(u32::try_from(self.hosts).unwrap_or(u32::MAX))
    }
}

/// Reads the marks.
pub async fn marks(db: &SqlitePool) -> StoreResult<Marks> {
    let marks = sqlx::query_as!(
        Marks,
        r#"SELECT
           (SELECT count(*) FROM host) AS "hosts!: i64",
           (SELECT coalesce(max(joined_ms), 0) FROM host) AS "joined_ms!: i64",
           (SELECT count(sealing_key) FROM host) AS "sealing_keys!: i64",
           (SELECT coalesce(max(sealing_key_ms), 0) FROM host) AS "sealing_key_ms!: i64",
           (SELECT count(*) FROM certificate) AS "certificates!: i64",
           (SELECT coalesce(max(issued_ms), 0) FROM certificate) AS "given_ms!: i64",
           (SELECT count(*) FROM certificate WHERE revoked_ms IS NOT NULL) AS "revoked!: i64",
           (SELECT coalesce(max(revoked_ms), 0) FROM certificate) AS "revoked_ms!: i64",
           (SELECT count(*) FROM issued) AS "issued!: i64",
           (SELECT coalesce(max(issued_ms), 0) FROM issued) AS "issued_ms!: i64",
           (SELECT count(*) FROM issued WHERE revoked_ms IS NOT NULL) AS "by_hand_revoked!: i64",
           (SELECT coalesce(max(revoked_ms), 0) FROM issued) AS "by_hand_revoked_ms!: i64",
           (SELECT count(*) FROM removed) AS "removed!: i64",
           (SELECT coalesce(max(revoked_ms), 0) FROM removed) AS "removed_ms!: i64",
           (SELECT count(*) FROM token WHERE used_ms IS NOT NULL) AS "used!: i64",
           (SELECT count(*) FROM token WHERE revoked_ms IS NOT NULL)
             + (SELECT count(*) FROM credential WHERE revoked_ms IS NOT NULL) AS "ended!: i64""#
    )
    .fetch_one(db)
    .await?;
    Ok(marks)
}

/// Reads the whole content.
pub async fn read(db: &SqlitePool) -> StoreResult<Register> {
    let hosts = sqlx::query_as!(
        RegisteredHost,
        "SELECT id, hostname, facts, joined_ms, sealing_key, sealing_key_ms FROM host ORDER BY id"
    )
    .fetch_all(db)
    .await?;
    let certificates = sqlx::query_as!(
        RegisteredCertificate,
        "SELECT serial, host, key_sha256, issued_ms, expires_ms, revoked_ms FROM certificate ORDER BY serial"
    )
    .fetch_all(db)
    .await?;
    let issued = sqlx::query_as!(
        RegisteredIssue,
        "SELECT serial, role, name, issued_ms, expires_ms, revoked_ms FROM issued ORDER BY serial"
    )
    .fetch_all(db)
    .await?;
    let removed = sqlx::query_as!(RemovedHost, "SELECT serial, expires_ms, revoked_ms FROM removed ORDER BY serial")
        .fetch_all(db)
        .await?;
    let ended = sqlx::query_scalar!(
        "SELECT secret_sha256 FROM token WHERE used_ms IS NOT NULL OR revoked_ms IS NOT NULL
         UNION SELECT secret_sha256 FROM credential WHERE revoked_ms IS NOT NULL ORDER BY secret_sha256"
    )
    .fetch_all(db)
    .await?;
    let seq =
        sqlx::query_scalar!("SELECT coalesce(max(value), 0) FROM meta WHERE key = 'register'").fetch_one(db).await?;
    Ok(Register { seq: unsigned("register", seq)?, hosts, certificates, issued, removed, ended })
}

/// Increments the number of writes, and returns it.
pub async fn next_seq(db: &SqlitePool) -> StoreResult<u64> {
    let seq = sqlx::query_scalar!(
        "INSERT INTO meta (key, value) VALUES ('register', 1)
         ON CONFLICT (key) DO UPDATE SET value = meta.value + 1 RETURNING value"
    )
    .fetch_one(db)
    .await?;
    unsigned("register", seq)
}

/// A store's monotonic numbers: the console's epoch, writes of the register, and the latest signed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreMark {
    /// The console's epoch.
    pub epoch: u64,
    /// Writes of the register.
    pub seq: u64,
    /// The latest signed time.
    pub signed_ms: i64,
}

impl StoreMark {
    /// Whether a store with this mark is older than one with the other.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.epoch < other.epoch || self.seq < other.seq || self.signed_ms < other.signed_ms
    }
}

/// Reads a store's mark.
pub async fn mark(db: &SqlitePool) -> StoreResult<StoreMark> {
    let rows = sqlx::query!("SELECT key, value FROM meta WHERE key IN ('epoch', 'register', 'signed_ms')")
        .map(|row| (row.key, row.value))
        .fetch_all(db)
        .await?;
    let of = |key: &str| rows.iter().find(|(name, _)| name == key).map_or(0, |(_, value)| *value);
    Ok(StoreMark {
        epoch: unsigned("epoch", of("epoch"))?,
        seq: unsigned("register", of("register"))?,
        signed_ms: of("signed_ms"),
    })
}

/// Advances a store to a mark, where it is behind. What is so already is not written: a full disk has no room for it.
pub async fn set_mark(db: &mut SqliteConnection, mark: StoreMark) -> StoreResult<()> {
    let numbers = [("epoch", signed(mark.epoch)), ("register", signed(mark.seq)), ("signed_ms", mark.signed_ms)];
    for (key, value) in numbers.into_iter().filter(|(_, value)| *value > 0) {
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ($1, $2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE excluded.value > meta.value",
            key,
            value
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Stores that the console was restored: the time of the backup, and when.
pub async fn set_restored(db: &mut SqliteConnection, taken_ms: Millis, restored_ms: Millis) -> StoreResult<()> {
    for (key, value) in [("restored_from_ms", taken_ms), ("restored_ms", restored_ms)] {
        sqlx::query!(
            "INSERT INTO meta (key, value) VALUES ($1, $2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            key,
            value
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Returns the time of the backup that the console was last restored from, and when that was.
pub async fn restored(db: &SqlitePool) -> StoreResult<Option<(Millis, Millis)>> {
    let row = sqlx::query!(
        r#"SELECT (SELECT value FROM meta WHERE key = 'restored_from_ms') AS "taken_ms: i64",
                  (SELECT value FROM meta WHERE key = 'restored_ms') AS "restored_ms: i64""#
    )
    .fetch_one(db)
    .await?;
    Ok(row.taken_ms.zip(row.restored_ms))
}

/// What is known of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateStanding {
    /// It is in no table, and its host is a member, or unknown.
    Unknown,
    /// It is in no table, and its host is not a member any more.
    OfRevokedHost,
    /// It is in a table.
    Known,
}

/// Returns what is known of a host's certificate that was presented.
pub async fn certificate_standing(
    db: &mut SqliteConnection,
    host: HostId,
    serial: &str,
) -> StoreResult<CertificateStanding> {
    let host = host.to_string();
    let row = sqlx::query!(
        r#"SELECT EXISTS (SELECT 1 FROM certificate WHERE serial = $1)
                    OR EXISTS (SELECT 1 FROM removed WHERE serial = $1) AS "is_known!: bool",
                  EXISTS (SELECT 1 FROM host WHERE id = $2) AS "is_joined!: bool",
                  EXISTS (SELECT 1 FROM certificate WHERE host = $2 AND revoked_ms IS NULL) AS "is_member!: bool""#,
        serial,
        host
    )
    .fetch_one(db)
    .await?;
    Ok(match (row.is_known, row.is_joined, row.is_member) {
        (true, _, _) => CertificateStanding::Known,
        (false, true, false) => CertificateStanding::OfRevokedHost,
        (false, _, _) => CertificateStanding::Unknown,
    })
}

/// Adds a certificate that its host has presented, with the host if it is not known. Returns whether it was not.
pub async fn add_presented(
    db: &mut SqliteConnection,
    host: HostId,
    certificate: &RegisteredCertificate,
) -> StoreResult<bool> {
    let (id, joined_ms) = (host.to_string(), certificate.issued_ms);
    // Its heartbeats bring its name and its facts.
    let facts = to_json("facts", &Facts::default())?;
    let added = sqlx::query!(
        "INSERT INTO host (id, hostname, facts, joined_ms) VALUES ($1, $1, $2, $3) ON CONFLICT (id) DO NOTHING",
        &id,
        facts,
        joined_ms
    )
    .execute(&mut *db)
    .await?;
    let is_new = added.rows_affected() > 0;
    add_certificate(db, &id, certificate).await?;
    Ok(is_new)
}

async fn add_certificate(
    db: &mut SqliteConnection,
    host: &str,
    certificate: &RegisteredCertificate,
) -> StoreResult<()> {
    let RegisteredCertificate { serial, key_sha256, issued_ms, expires_ms, revoked_ms, .. } = certificate;
    sqlx::query!(
        "INSERT INTO certificate (serial, host, key_sha256, issued_ms, expires_ms, revoked_ms)
         VALUES ($1, $2, $3, $4, $5, $6)",
        serial,
        host,
        key_sha256,
        issued_ms,
        expires_ms,
        revoked_ms
    )
    .execute(db)
    .await?;
    Ok(())
}

/// What a register has changed in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeResult {
    /// Certificates that were revoked.
    pub revoked: u64,
    /// Hosts that have joined since the copy of the store was made.
    pub joined: u64,
    /// Hosts that were removed since.
    pub removed: u64,
    /// Tokens and sign-ins that were ended since.
    pub ended: u64,
}

/// Makes a store revoke whatever the register says is revoked; in a store that is older than the register, it also adds
/// what was issued since, and removes hosts that were removed since. Nothing that the store has revoked becomes valid
/// again.
pub async fn merge(
    db: &mut SqliteConnection,
    register: &Register,
    is_older: bool,
    now: Millis,
) -> StoreResult<MergeResult> {
    let mut merged = MergeResult::default();
    if is_older {
        merged.joined = add_missing(db, register, now).await?;
    }
    for certificate in &register.certificates {
        merged.revoked += revoke(db, CertificateTable::Hosts, &certificate.serial, certificate.revoked_ms).await?;
    }
    for issued in &register.issued {
        merged.revoked += revoke(db, CertificateTable::ByHand, &issued.serial, issued.revoked_ms).await?;
    }
    for RemovedHost { serial, expires_ms, revoked_ms } in register.removed.iter().filter(|one| one.expires_ms > now) {
        let host = sqlx::query_scalar!("SELECT host FROM certificate WHERE serial = $1", serial)
            .fetch_optional(&mut *db)
            .await?;
        if let Some(host) = host {
            super::removed::remove(db, parsed("host id", &host)?, now).await?;
            merged.removed += 1;
        }
        sqlx::query!(
            "INSERT INTO removed (serial, expires_ms, revoked_ms) VALUES ($1, $2, $3) ON CONFLICT (serial) DO NOTHING",
            serial,
            expires_ms,
            revoked_ms
        )
        .execute(&mut *db)
        .await?;
    }
    for secret in &register.ended {
        let used = sqlx::query!(
            "UPDATE token SET revoked_ms = $2 WHERE secret_sha256 = $1 AND used_ms IS NULL AND revoked_ms IS NULL",
            secret,
            now
        );
        merged.ended += used.execute(&mut *db).await?.rows_affected();
        let ended = sqlx::query!(
            "UPDATE credential SET revoked_ms = $2 WHERE secret_sha256 = $1 AND revoked_ms IS NULL",
            secret,
            now
        );
        merged.ended += ended.execute(&mut *db).await?.rows_affected();
    }
    Ok(merged)
}

/// Where certificates are kept.
#[derive(Clone, Copy, Debug)]
enum CertificateTable {
    /// Those of hosts.
    Hosts,
    /// Those that were issued by hand.
    ByHand,
}

/// Revokes a certificate, if the register has a time for it.
async fn revoke(
    db: &mut SqliteConnection,
    table: CertificateTable,
    serial: &str,
    revoked_ms: Option<i64>,
) -> StoreResult<u64> {
    let Some(revoked_ms) = revoked_ms else { return Ok(0) };
    let revoked = match table {
        CertificateTable::ByHand => sqlx::query!(
            "UPDATE issued SET revoked_ms = $2 WHERE serial = $1 AND revoked_ms IS NULL",
            serial,
            revoked_ms
        ),
        CertificateTable::Hosts => sqlx::query!(
            "UPDATE certificate SET revoked_ms = $2 WHERE serial = $1 AND revoked_ms IS NULL",
            serial,
            revoked_ms
        ),
    };
    Ok(revoked.execute(db).await?.rows_affected())
}

/// Adds hosts and certificates that a store lacks. Returns the number of hosts.
async fn add_missing(db: &mut SqliteConnection, register: &Register, now: Millis) -> StoreResult<u64> {
    let mut joined = 0;
    let mut missing = Register::default();
    for host in &register.hosts {
        let found = sqlx::query_scalar!("SELECT 1 FROM host WHERE id = $1", &host.id).fetch_optional(&mut *db).await?;
        if found.is_none() {
            missing.hosts.push(host.clone());
            joined += 1;
        }
    }
    for certificate in register.certificates.iter().filter(|one| one.expires_ms > now) {
        if !is_there(db, CertificateTable::Hosts, &certificate.serial).await? {
            missing.certificates.push(certificate.clone());
        }
    }
    for issued in register.issued.iter().filter(|one| one.expires_ms > now) {
        if !is_there(db, CertificateTable::ByHand, &issued.serial).await? {
            missing.issued.push(issued.clone());
        }
    }
    fill(db, &missing).await?;
    Ok(joined)
}

async fn is_there(db: &mut SqliteConnection, table: CertificateTable, serial: &str) -> StoreResult<bool> {
    let is_there = match table {
        CertificateTable::ByHand => {
            sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT 1 FROM issued WHERE serial = $1) AS "is_there!: bool""#,
                serial
            )
            .fetch_one(db)
            .await?
        }
        CertificateTable::Hosts => {
            sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT 1 FROM certificate WHERE serial = $1) AS "is_there!: bool""#,
                serial
            )
            .fetch_one(db)
            .await?
        }
    };
    Ok(is_there)
}

/// Writes the whole content into an empty store.
pub async fn fill(db: &mut SqliteConnection, register: &Register) -> StoreResult<()> {
    for RegisteredHost { id, hostname, facts, joined_ms, sealing_key, sealing_key_ms } in &register.hosts {
        sqlx::query!(
            "INSERT INTO host (id, hostname, facts, joined_ms, sealing_key, sealing_key_ms)
             VALUES ($1, $2, $3, $4, $5, $6)",
            id,
            hostname,
            facts,
            joined_ms,
            sealing_key,
            sealing_key_ms
        )
        .execute(&mut *db)
        .await?;
    }
    for certificate in &register.certificates {
        add_certificate(db, &certificate.host, certificate).await?;
    }
    for RegisteredIssue { serial, role, name, issued_ms, expires_ms, revoked_ms } in &register.issued {
        sqlx::query!(
            "INSERT INTO issued (serial, role, name, issued_ms, expires_ms, revoked_ms)
             VALUES ($1, $2, $3, $4, $5, $6)",
            serial,
            role,
            name,
            issued_ms,
            expires_ms,
            revoked_ms
        )
        .execute(&mut *db)
        .await?;
    }
    for RemovedHost { serial, expires_ms, revoked_ms } in &register.removed {
        sqlx::query!(
            "INSERT INTO removed (serial, expires_ms, revoked_ms) VALUES ($1, $2, $3)",
            serial,
            expires_ms,
            revoked_ms
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}
