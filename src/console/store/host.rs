//! Hosts: members, their certificates, and what they report.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use muster_api::HostSort;
use muster_base::clock::now_ms;
use muster_rules::{id, presence};
use muster_sqlite::rows::{parameters, pieces};
use muster_topics::{
    Millis,
    heartbeat::{Facts, HostState},
    name::{CommandId, HostId, Name, UnitName},
    presence::{Capability, Presence, PresenceState},
    sealed::SealingKey,
    unit::UnitReport,
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use super::{
    columns::{from_word, json, parsed, signed, to_json, unsigned, word},
    error::{StoreError, StoreResult},
};
use crate::authority::IssuedPem;

/// A host that joins.
#[derive(Clone, Debug)]
pub struct JoiningHost {
    /// Its id.
    pub host: HostId,
    /// Its hostname.
    pub hostname: String,
    /// Its facts.
    pub facts: Facts,
    /// Its public key for sealed content.
    pub sealing_key: SealingKey,
}

/// Stores a host, or one that joins again. With a new key it may be a new machine (a new disk, a restored image), so
/// its older certificates are revoked, and its reports are deleted: its epochs may begin at 1 again.
pub async fn join(
    db: &mut SqliteConnection,
    host: &JoiningHost,
    certificate: &IssuedPem,
    now: Millis,
) -> StoreResult<()> {
    let id = host.host.to_string();
    sqlx::query!(
        "INSERT INTO host (id, hostname, facts, joined_ms, sealing_key, sealing_key_ms)
         VALUES ($1, $2, $3, $4, $5, $4)
         ON CONFLICT (id) DO UPDATE SET hostname = excluded.hostname, facts = excluded.facts,
           joined_ms = excluded.joined_ms,
           sealing_key = excluded.sealing_key, sealing_key_ms = excluded.sealing_key_ms",
        &id,
        &host.hostname,
        to_json("facts", &host.facts)?,
        now,
        host.sealing_key.to_string()
    )
    .execute(&mut *db)
    .await?;
    let replaced = sqlx::query!(
        "UPDATE certificate SET revoked_ms = $2 WHERE host = $1 AND key_sha256 <> $3 AND revoked_ms IS NULL",
        &id,
        now,
        certificate.key.as_str()
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    if replaced > 0 {
        sqlx::query!("DELETE FROM presence WHERE host = $1", id).execute(&mut *db).await?;
        sqlx::query!("DELETE FROM heartbeat WHERE host = $1", id).execute(&mut *db).await?;
        sqlx::query!("DELETE FROM unit WHERE host = $1", id).execute(&mut *db).await?;
        super::alert::forget(db, host.host, now).await?;
    }
    add_certificate(db, host.host, certificate, now).await
}

/// Stores a host's sealing key. Returns whether it had another one before.
pub async fn set_sealing_key(
    db: &mut SqliteConnection,
    host: HostId,
    key: &SealingKey,
    now: Millis,
) -> StoreResult<bool> {
    let id = host.to_string();
    let had = sqlx::query_scalar!("SELECT sealing_key FROM host WHERE id = $1", &id).fetch_optional(&mut *db).await?;
    let (had, key) = (had.flatten(), key.to_string());
    if had.as_deref() != Some(key.as_str()) {
        sqlx::query!("UPDATE host SET sealing_key = $2, sealing_key_ms = $3 WHERE id = $1", &id, &key, now)
            .execute(db)
            .await?;
    }
    Ok(had.is_some_and(|had| had != key))
}

/// Returns the sealing keys of hosts; one that came back by its certificate has none until it has handed it over.
pub async fn sealing_keys(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<HashMap<HostId, SealingKey>> {
    let rows = sqlx::query!(
        r#"SELECT id, sealing_key AS "sealing_key!" FROM host
           WHERE sealing_key IS NOT NULL AND id IN (SELECT value FROM json_each($1))"#,
        to_json("hosts", &hosts)?
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| Ok((parsed("host id", &row.id)?, parsed("sealing key", &row.sealing_key)?))).collect()
}

/// Stores a certificate that a host is given, unless it has it already.
pub async fn add_certificate(
    db: &mut SqliteConnection,
    host: HostId,
    certificate: &IssuedPem,
    now: Millis,
) -> StoreResult<()> {
    let host = host.to_string();
    let added = sqlx::query!(
        "INSERT INTO certificate (serial, host, key_sha256, issued_ms, expires_ms, pem) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (serial) DO NOTHING",
        &certificate.serial,
        &host,
        certificate.key.as_str(),
        now,
        certificate.expires_ms,
        &certificate.pem
    )
    .execute(&mut *db)
    .await?;
    if added.rows_affected() > 0 {
        sqlx::query!("UPDATE certificate SET pem = NULL WHERE host = $1 AND serial <> $2", host, &certificate.serial)
            .execute(db)
            .await?;
    }
    Ok(())
}

/// What a host has of certificates that are neither expired nor revoked.
#[derive(Clone, Debug, Default)]
pub struct HeldCertificates {
    /// Their number.
    pub count: u64,
    /// The newest, if it is kept, and when it was issued.
    pub newest: Option<(IssuedPem, Millis)>,
}

/// Returns what a host has of certificates.
pub async fn certificates(db: &mut SqliteConnection, host: HostId, now: Millis) -> StoreResult<HeldCertificates> {
    let host = host.to_string();
    let count = sqlx::query_scalar!(
        "SELECT count(*) FROM certificate WHERE host = $1 AND revoked_ms IS NULL AND expires_ms > $2",
        &host,
        now
    )
    .fetch_one(&mut *db)
    .await?;
    let newest = sqlx::query!(
        r#"SELECT serial, key_sha256, issued_ms, expires_ms, pem AS "pem!: String" FROM certificate
           WHERE host = $1 AND revoked_ms IS NULL AND expires_ms > $2 AND pem IS NOT NULL"#,
        host,
        now
    )
    .fetch_optional(db)
    .await?;
    let newest = newest.map(|row| {
        let key = parsed("key", &row.key_sha256)?;
        let certificate = IssuedPem { pem: row.pem, serial: row.serial, key, expires_ms: row.expires_ms };
        Ok::<_, StoreError>((certificate, row.issued_ms))
    });
    Ok(HeldCertificates { count: unsigned("count", count)?, newest: newest.transpose()? })
}

/// One of sqlx's macros on two parts of a statement, with the condition that a row of `host` is a member between them.
/// This is the one definition: a host without a certificate that is not revoked is sent nothing and not listened to.
macro_rules! with_is_member {
    ($query:ident, $before:literal, $after:literal $(, $argument:expr)*) => {
        sqlx::$query!(
            $before
                + "EXISTS (SELECT 1 FROM certificate
                           WHERE certificate.host = host.id AND certificate.revoked_ms IS NULL)"
                + $after
            $(, $argument)*
        )
    };
}
pub(super) use with_is_member;

/// Revokes every certificate of a host, and in the same transaction marks it as offline, clears its alerts and ends its
/// commands. Returns those commands; `None` if it had no valid certificate.
pub async fn revoke(db: &mut SqliteConnection, host: HostId, now: Millis) -> StoreResult<Option<Vec<CommandId>>> {
    let id = host.to_string();
    let revoked =
        sqlx::query!("UPDATE certificate SET revoked_ms = $2 WHERE host = $1 AND revoked_ms IS NULL", &id, now)
            .execute(&mut *db)
            .await?;
    if revoked.rows_affected() == 0 {
        return Ok(None);
    }
    sqlx::query!("UPDATE presence SET state = 'offline', since_ms = $2 WHERE host = $1 AND state = 'online'", &id, now)
        .execute(&mut *db)
        .await?;
    super::alert::forget(db, host, now).await?;
    super::command::revoke(db, host, now).await.map(Some)
}

/// Returns hosts that have joined and are not members any more.
pub async fn revoked(db: &SqlitePool) -> StoreResult<HashSet<HostId>> {
    let rows = with_is_member!(query_scalar, "SELECT id FROM host WHERE NOT ", "").fetch_all(db).await?;
    rows.iter().map(|id| parsed("host id", id)).collect()
}

/// Whether there is a valid certificate of a revoked or removed host, whose holder still receives broadcasts from a
/// broker that does not know of the revocation.
pub async fn may_listen(db: &SqlitePool) -> StoreResult<bool> {
    Ok(with_is_member!(
        query_scalar,
        "SELECT EXISTS (SELECT 1 FROM removed) OR EXISTS (SELECT 1 FROM host WHERE NOT ",
        r#") AS "any!: bool""#
    )
    .fetch_one(db)
    .await?)
}

/// Whether a host is a member, with this certificate.
pub async fn holds_certificate(db: &SqlitePool, host: HostId, serial: &str) -> StoreResult<bool> {
    let found = sqlx::query_scalar!(
        "SELECT 1 FROM certificate WHERE serial = $1 AND host = $2 AND revoked_ms IS NULL",
        serial,
        host.to_string()
    )
    .fetch_optional(db)
    .await?;
    Ok(found.is_some())
}

/// The relation of a key to the host that it is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStanding {
    /// There is no host of this id yet.
    NewHost,
    /// A valid certificate of the host is for this key.
    Held,
    /// The host had certificates for it, and all are revoked.
    Revoked,
    /// The host never had it.
    Foreign,
}

/// Returns the relation of a key to a host.
pub async fn key_standing(db: &mut SqliteConnection, host: HostId, key_sha256: &str) -> StoreResult<KeyStanding> {
    let (is_there, is_known, is_good) = sqlx::query!(
        r#"SELECT EXISTS (SELECT 1 FROM host WHERE id = $1) AS "is_there!: bool",
                  EXISTS (SELECT 1 FROM certificate WHERE host = $1 AND key_sha256 = $2) AS "is_known!: bool",
                  EXISTS (SELECT 1 FROM certificate WHERE host = $1 AND key_sha256 = $2 AND revoked_ms IS NULL)
                    AS "is_good!: bool""#,
        host.to_string(),
        key_sha256
    )
    .map(|row| (row.is_there, row.is_known, row.is_good))
    .fetch_one(db)
    .await?;
    Ok(match (is_there, is_known, is_good) {
        (false, ..) => KeyStanding::NewHost,
        (true, _, true) => KeyStanding::Held,
        (true, true, false) => KeyStanding::Revoked,
        (true, false, false) => KeyStanding::Foreign,
    })
}

/// Returns ids and names of all members, unordered: sorting ten thousand takes twice as long as reading them.
pub async fn names(db: &SqlitePool) -> StoreResult<Vec<(HostId, String)>> {
    let rows = with_is_member!(query, "SELECT id, hostname FROM host WHERE ", "").fetch_all(db).await?;
    rows.into_iter().map(|row| Ok((parsed("host id", &row.id)?, row.hostname))).collect()
}

/// Returns ids and names of the hosts that `text` may mean: by hostname, id or the beginning of an id.
pub async fn named(db: &SqlitePool, text: &str) -> StoreResult<Vec<(HostId, String)>> {
    // The characters of an id are all before `~`.
    let beginning = id::may_begin(text).then(|| text.to_ascii_lowercase());
    let rows = sqlx::query!(
        "SELECT id, hostname FROM host WHERE hostname = $1 OR (id >= $2 AND id < $2 || '~') ORDER BY id LIMIT $3",
        text,
        beginning,
        NAMED_MAX
    )
    .map(|row| (row.id, row.hostname))
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|(id, hostname)| Ok((parsed("host id", &id)?, hostname))).collect()
}

/// The most hosts that are looked up for a word: it means one, or the candidates are listed.
const NAMED_MAX: u32 = 100;

/// Counts all hosts, and those online.
pub async fn count(db: &SqlitePool) -> StoreResult<(u64, u64)> {
    let (all, online) = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM host) AS "all!: i64",
                  (SELECT count(*) FROM presence WHERE state = 'online') AS "online!: i64""#
    )
    .map(|row| (row.all, row.online))
    .fetch_one(db)
    .await?;
    Ok((unsigned("count", all)?, unsigned("count", online)?))
}

/// The number of hosts in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presences {
    /// Online.
    pub online: u64,
    /// Offline, without an orderly exit.
    pub offline: u64,
    /// Stopped in order.
    pub stopped: u64,
    /// Joined, but never online.
    pub never: u64,
    /// Unknown, because the console has no connection to the broker.
    pub unknown: u64,
}

impl Presences {
    /// From the number of all hosts, and of those that have a presence.
    fn counted(all: i64, online: i64, offline: i64, stopped: i64) -> StoreResult<Self> {
        let count = |number| unsigned("count", number);
        Ok(Self {
            online: count(online)?,
            offline: count(offline)?,
            stopped: count(stopped)?,
            never: count(all - online - offline - stopped)?,
            unknown: 0,
        })
    }

    /// Returns what is known while the console has no connection to the broker: nothing about hosts that were ever
    /// online.
    #[must_use]
    pub fn known(self, lost_ms: Option<Millis>) -> Self {
        let Self { online, offline, stopped, never, unknown } = self;
        match lost_ms {
            Some(_) => Self { never, unknown: online + offline + stopped + unknown, ..Self::default() },
            None => self,
        }
    }
}

/// Counts the hosts in each state of presence.
pub async fn presences(db: &SqlitePool) -> StoreResult<Presences> {
    // A host with a presence is a member, so no check is needed.
    let (all, online, offline, stopped) = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM host) AS "all!: i64",
                  count(CASE WHEN state = 'online' THEN 1 END) AS "online!: i64",
                  count(CASE WHEN state = 'offline' THEN 1 END) AS "offline!: i64",
                  count(CASE WHEN state = 'stopped' THEN 1 END) AS "stopped!: i64"
           FROM presence"#
    )
    .map(|row| (row.all, row.online, row.offline, row.stopped))
    .fetch_one(db)
    .await?;
    Presences::counted(all, online, offline, stopped)
}

/// Counts the revoked hosts in each state of presence.
pub async fn revoked_presences(db: &SqlitePool) -> StoreResult<Presences> {
    let (all, online, offline, stopped) = sqlx::query!(
        r#"SELECT count(*) AS "all!: i64",
                  count(CASE WHEN presence.state = 'online' THEN 1 END) AS "online!: i64",
                  count(CASE WHEN presence.state = 'offline' THEN 1 END) AS "offline!: i64",
                  count(CASE WHEN presence.state = 'stopped' THEN 1 END) AS "stopped!: i64"
           FROM host LEFT JOIN presence ON presence.host = host.id
           WHERE NOT EXISTS (SELECT 1 FROM certificate WHERE certificate.host = host.id AND revoked_ms IS NULL)"#
    )
    .map(|row| (row.all, row.online, row.offline, row.stopped))
    .fetch_one(db)
    .await?;
    Presences::counted(all, online, offline, stopped)
}

/// Returns hosts that are online.
pub async fn online(db: &SqlitePool) -> StoreResult<Vec<HostId>> {
    let rows = sqlx::query_scalar!("SELECT host FROM presence WHERE state = 'online'").fetch_all(db).await?;
    rows.iter().map(|id| parsed("host id", id)).collect()
}

/// Whether any of these hosts is online.
pub async fn is_any_online(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<bool> {
    Ok(sqlx::query_scalar!(
        r#"SELECT EXISTS (
             SELECT 1 FROM presence WHERE state = 'online' AND host IN (SELECT value FROM json_each($1))
           ) AS "is_any!: bool""#,
        to_json("hosts", &hosts)?
    )
    .fetch_one(db)
    .await?)
}

struct AwayRow {
    id: String,
    joined_ms: i64,
    state: Option<String>,
    since_ms: Option<i64>,
}

/// Selects [`AwayRow`]s; another condition follows.
macro_rules! select_away {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            AwayRow,
            r#"SELECT host.id, host.joined_ms, presence.state AS "state?", presence.since_ms AS "since_ms?"
               FROM host LEFT JOIN presence ON presence.host = host.id
               WHERE COALESCE(presence.state, 'offline') <> 'online'"#
                + $condition
            $(, $argument)*
        )
    };
}

/// Returns since when hosts have been away, beyond a short reconnect: those of `only`, or all. A host that never
/// connected is away since it joined.
pub async fn away(db: &SqlitePool, only: Option<&[HostId]>) -> StoreResult<HashMap<HostId, Millis>> {
    let rows = match only {
        None => select_away!("").fetch_all(db).await?,
        Some(hosts) => {
            let hosts = to_json("hosts", &hosts)?;
            select_away!(" AND host.id IN (SELECT value FROM json_each($1))", hosts).fetch_all(db).await?
        }
    };
    let (now, mut away) = (now_ms(), HashMap::new());
    for AwayRow { id, joined_ms, state, since_ms } in rows {
        let presence = match state.zip(since_ms) {
            Some((word, since_ms)) => Some((from_word("presence", &word)?, since_ms)),
            None => None,
        };
        if let Some(since_ms) = presence::away_since_ms(presence, joined_ms, now) {
            away.insert(parsed("host id", &id)?, since_ms);
        }
    }
    Ok(away)
}

/// Returns the hosts that reported this start of a machine: they run on that one.
pub async fn on_machine(db: &SqlitePool, boot_id: &str) -> StoreResult<HashSet<HostId>> {
    let rows =
        sqlx::query_scalar!(r#"SELECT host FROM heartbeat WHERE json_extract(state, '$.facts.boot_id') = $1"#, boot_id)
            .fetch_all(db)
            .await?;
    rows.iter().map(|host| parsed("host id", host)).collect()
}

/// Returns the names of these hosts.
pub async fn names_of(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<HashMap<HostId, String>> {
    let rows = sqlx::query!(
        "SELECT id, hostname FROM host WHERE id IN (SELECT value FROM json_each($1))",
        to_json("hosts", &hosts)?
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| Ok((parsed("host id", &row.id)?, row.hostname))).collect()
}

/// Returns names of hosts, and the labels of their own configurations as last reported.
pub async fn own_labels(
    db: &SqlitePool,
    hosts: &[HostId],
) -> StoreResult<HashMap<HostId, (String, BTreeMap<Name, String>)>> {
    let rows = sqlx::query!(
        r#"SELECT host.id, host.hostname,
                  COALESCE(json_extract(heartbeat.state, '$.own_labels'),
                           json_extract(heartbeat.state, '$.labels'), '{}') AS "own!: String"
           FROM host LEFT JOIN heartbeat ON heartbeat.host = host.id
           WHERE host.id IN (SELECT value FROM json_each($1))"#,
        to_json("hosts", &hosts)?
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| Ok((parsed("host id", &row.id)?, (row.hostname, json("labels", &row.own)?)))).collect()
}

/// Returns the names of hosts, of all if none are given, and whether each is online.
pub async fn standing(db: &SqlitePool, hosts: Option<&[HostId]>) -> StoreResult<BTreeMap<HostId, (String, bool)>> {
    let rows = sqlx::query!(
        r#"SELECT host.id, host.hostname, COALESCE(presence.state = 'online', FALSE) AS "is_online!: bool"
           FROM host LEFT JOIN presence ON presence.host = host.id
           WHERE $1 IS NULL OR host.id IN (SELECT value FROM json_each($1))"#,
        hosts.map(|hosts| to_json("hosts", &hosts)).transpose()?
    )
    .map(|row| (row.id, row.hostname, row.is_online))
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|(id, hostname, online)| Ok((parsed("host id", &id)?, (hostname, online)))).collect()
}

struct HostRow {
    id: String,
    hostname: String,
    joined_ms: i64,
    certificate_expires_ms: i64,
    presence: Option<String>,
    epoch: Option<i64>,
    since_ms: Option<i64>,
    agent_version: Option<String>,
    capabilities: Option<String>,
    state: Option<String>,
    state_ms: Option<i64>,
}

impl HostRow {
    fn host(self) -> StoreResult<muster_api::Host> {
        let presence = match (self.presence, self.epoch, self.since_ms, self.agent_version) {
            (Some(state), Some(epoch), Some(since_ms), Some(agent_version)) => Some(muster_api::HostPresence {
                state: from_word::<PresenceState>("presence", &state)?.into(),
                epoch: unsigned("epoch", epoch)?,
                since_ms,
                agent_version,
                capabilities: self.capabilities.map(|listed| json("capabilities", &listed)).transpose()?,
            }),
            _ => None,
        };
        let state = match (self.state, self.state_ms) {
            (Some(state), Some(at_ms)) => {
                Some(muster_api::Received { at_ms, value: json::<HostState>("state", &state)? })
            }
            _ => None,
        };
        Ok(muster_api::Host {
            id: parsed("host id", &self.id)?,
            hostname: self.hostname,
            presence,
            state,
            joined_ms: self.joined_ms,
            certificate_expires_ms: self.certificate_expires_ms,
            labels: Vec::new(),
            cordon: None,
        })
    }
}

/// Selects [`HostRow`]s; conditions, order and limits follow.
macro_rules! select_hosts {
    ($rest:literal $(+ $more:literal)* $(, $argument:expr)*) => {
        sqlx::query_as!(
            HostRow,
            r#"SELECT host.id, host.hostname, host.joined_ms,
                      COALESCE((SELECT max(expires_ms) FROM certificate
                                WHERE certificate.host = host.id AND revoked_ms IS NULL), 0)
                        AS "certificate_expires_ms!: i64",
                      presence.state AS "presence?", presence.epoch AS "epoch?", presence.since_ms AS "since_ms?",
                      presence.agent_version AS "agent_version?", presence.capabilities AS "capabilities?",
                      heartbeat.state AS "state?", heartbeat.at_ms AS "state_ms?"
               FROM host
               LEFT JOIN presence ON presence.host = host.id
               LEFT JOIN heartbeat ON heartbeat.host = host.id "#
                + $rest $(+ $more)*
            $(, $argument)*
        )
    };
}

/// Checks that stored facts of hosts are readable.
pub(super) async fn check_facts(db: &SqlitePool) -> StoreResult<()> {
    let wrong =
        sqlx::query_scalar!("SELECT id FROM host WHERE NOT json_valid(facts) LIMIT 1").fetch_optional(db).await?;
    match wrong {
        Some(id) => Err(StoreError::Damaged(format!("the facts of host {id} cannot be read"))),
        None => Ok(()),
    }
}

/// Returns all hosts, or one, sorted by hostname.
pub async fn list(db: &SqlitePool, only: Option<HostId>) -> StoreResult<Vec<muster_api::Host>> {
    let rows = match only {
        Some(id) => select_hosts!("WHERE host.id = $1", id.to_string()).fetch_all(db).await?,
        None => select_hosts!("ORDER BY host.hostname, host.id").fetch_all(db).await?,
    };
    rows.into_iter().map(HostRow::host).collect()
}

/// Reads those of some hosts, or of all, that come first in an order.
macro_rules! first_hosts {
    ($db:expr, $only:expr, $limit:expr, $order:literal) => {
        select_hosts!(
            "WHERE $1 IS NULL OR host.id IN (SELECT value FROM json_each($1)) ORDER BY "
                + $order
                + " host.hostname, host.id LIMIT $2",
            $only,
            $limit
        )
        .fetch_all($db)
        .await?
    };
}

/// Returns the first of some hosts, or of all, in this order.
pub async fn first(
    db: &SqlitePool,
    only: Option<&[HostId]>,
    sort: HostSort,
    limit: Option<u32>,
) -> StoreResult<Vec<muster_api::Host>> {
    let (only, limit) = (only.map(|hosts| to_json("hosts", &hosts)).transpose()?, limit.map_or(-1, i64::from));
    let rows = match sort {
        HostSort::Hostname => first_hosts!(db, only, limit, ""),
        HostSort::Presence => {
            first_hosts!(
                db,
                only,
                limit,
                "COALESCE(presence.state, '') = 'online', COALESCE(presence.since_ms, 0) DESC,"
            )
        }
        HostSort::Heard => first_hosts!(db, only, limit, "COALESCE(heartbeat.at_ms, 0) DESC,"),
        HostSort::Units => {
            first_hosts!(db, only, limit, "(SELECT count(*) FROM unit WHERE unit.host = host.id) DESC,")
        }
        HostSort::Joined => first_hosts!(db, only, limit, "host.joined_ms DESC,"),
    };
    rows.into_iter().map(HostRow::host).collect()
}

/// A search for hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// A part of the hostname, or the beginning of the id, ignoring case.
    pub text: String,
    /// Only online hosts, or only others.
    pub online: Option<bool>,
}

impl Search {
    /// Returns patterns for hostname and id, with `!` before characters that are special to `LIKE`.
    fn patterns(&self) -> (Option<String>, Option<String>) {
        if self.text.is_empty() {
            return (None, None);
        }
        let mut escaped = String::with_capacity(self.text.len());
        for c in self.text.to_lowercase().chars() {
            escaped.extend(matches!(c, '%' | '_' | '!').then_some('!').into_iter().chain([c]));
        }
        (Some(format!("%{escaped}%")), Some(format!("{escaped}%")))
    }
}

/// Counts the hosts of `$from` that match the patterns `$1` and `$2`, and reads a page of them.
macro_rules! page_of_hosts {
    ($db:expr, $from:literal, ($hostname:expr, $id:expr, $online:expr), ($limit:expr, $offset:expr)) => {{
        let count = sqlx::query_scalar!(
            "SELECT count(*) FROM "
                + $from
                + " AND ($1 IS NULL OR lower(host.hostname) LIKE $1 ESCAPE '!' OR host.id LIKE $2 ESCAPE '!')",
            $hostname,
            $id,
            $online
        )
        .fetch_one($db)
        .await?;
        // The page's ids come first, so that states are joined only for these.
        let rows = select_hosts!(
            "WHERE host.id IN (SELECT host.id FROM "
                + $from
                + " AND ($1 IS NULL OR lower(host.hostname) LIKE $1 ESCAPE '!' OR host.id LIKE $2 ESCAPE '!')
                    ORDER BY host.hostname, host.id LIMIT $4 OFFSET $5)
                ORDER BY host.hostname, host.id",
            $hostname,
            $id,
            $online,
            $limit,
            $offset
        )
        .fetch_all($db)
        .await?;
        (rows, count)
    }};
}

/// Returns a page of matching hosts, sorted by hostname, and their total number.
pub async fn page(
    db: &SqlitePool,
    search: &Search,
    offset: u64,
    limit: u32,
) -> StoreResult<(Vec<muster_api::Host>, u64)> {
    let ((hostname, id), page) = (search.patterns(), (i64::from(limit), signed(offset)));
    let (rows, count) = match search.online {
        // Presences are joined only if they matter.
        None => page_of_hosts!(db, "host WHERE $3 IS NULL", (hostname, id, None::<bool>), (page.0, page.1)),
        Some(is_online) => page_of_hosts!(
            db,
            "host LEFT JOIN presence ON presence.host = host.id WHERE (COALESCE(presence.state, '') = 'online') = $3",
            (hostname, id, is_online),
            (page.0, page.1)
        ),
    };
    Ok((rows.into_iter().map(HostRow::host).collect::<StoreResult<_>>()?, unsigned("count", count)?))
}

/// Returns the stored presence's place in the order of [`Presence::order`].
pub async fn presence_order(db: &mut SqliteConnection, host: HostId) -> StoreResult<Option<(u64, u64, bool)>> {
    let row = sqlx::query!("SELECT epoch, session, state FROM presence WHERE host = $1", host.to_string())
        .map(|row| (row.epoch, row.session, row.state))
        .fetch_optional(db)
        .await?;
    row.map(|(epoch, session, state)| Ok((unsigned("epoch", epoch)?, unsigned("session", session)?, state != "online")))
        .transpose()
}

/// Stores presences, replacing earlier ones: each host's latest.
pub async fn set_presences(
    db: &mut SqliteConnection,
    presences: &[(HostId, Presence)],
    now: Millis,
) -> StoreResult<()> {
    for piece in pieces(presences) {
        let sql = format!(
            "INSERT INTO presence (host, state, epoch, session, agent_version, since_ms, capabilities) VALUES {}
             ON CONFLICT (host) DO UPDATE SET state = excluded.state, epoch = excluded.epoch,
                 session = excluded.session, agent_version = excluded.agent_version, since_ms = excluded.since_ms,
                 -- One that was made of a heartbeat says nothing of what its agent can do.
                 capabilities = coalesce(excluded.capabilities, presence.capabilities)",
            parameters(piece.len(), 7)
        );
        // Unchecked: many rows of several columns, of which `parameters` writes the question marks.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (host, presence) in piece {
            query = query
                .bind(host.to_string())
                .bind(word("presence", &presence.state)?)
                .bind(signed(presence.epoch))
                .bind(signed(presence.session))
                .bind(&presence.agent_version)
                .bind(now)
                .bind((presence.session > 0).then(|| to_json("capabilities", &presence.capabilities)).transpose()?);
        }
        query.execute(&mut *db).await?;
    }
    Ok(())
}

/// Returns what hosts can do, of those that have said so.
pub async fn capabilities(db: &SqlitePool) -> StoreResult<HashMap<HostId, Vec<Capability>>> {
    let rows =
        sqlx::query!(r#"SELECT host, capabilities AS "capabilities!" FROM presence WHERE capabilities IS NOT NULL"#)
            .fetch_all(db)
            .await?;
    rows.iter().map(|row| Ok((parsed("host id", &row.host)?, json("capabilities", &row.capabilities)?))).collect()
}

/// Counts members that have not said that they go back to an earlier time ([`Capability::FreshTime`]), and may have seen a
/// later one.
pub async fn bound_count(db: &SqlitePool) -> StoreResult<u64> {
    let count = with_is_member!(
        query_scalar,
        "SELECT count(*) FROM presence JOIN host ON host.id = presence.host
         WHERE instr(coalesce(capabilities, ''), '\"fresh_time\"') = 0 AND ",
        ""
    )
    .fetch_one(db)
    .await?;
    unsigned("count", count)
}

/// Whether any of these hosts is such a one.
pub async fn is_any_bound(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<bool> {
    Ok(sqlx::query_scalar!(
        r#"SELECT EXISTS (
             SELECT 1 FROM presence
             WHERE instr(coalesce(capabilities, ''), '"fresh_time"') = 0 AND host IN (SELECT value FROM json_each($1))
           ) AS "is_any!: bool""#,
        to_json("hosts", &hosts)?
    )
    .fetch_one(db)
    .await?)
}

/// How long a host that has just come online is not marked as offline: the caller may not know of it yet.
pub const JUST_COME_MS: Millis = 5_000;

/// Marks those of these hosts that are online as offline, except those that have just come online; returns them. Each
/// gets a place before its session: a presence or last will of that session counts as later. A time later than `now`
/// was recorded by a clock that was set back since, and is no evidence.
pub async fn take_offline(db: &SqlitePool, hosts: &[HostId], now: Millis) -> StoreResult<Vec<HostId>> {
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    let taken = sqlx::query_scalar!(
        "UPDATE presence SET state = 'offline', session = CASE WHEN session > 0 THEN session - 1 ELSE 0 END,
         since_ms = $1
         WHERE state = 'online' AND since_ms NOT BETWEEN $2 AND $1 AND host IN (SELECT value FROM json_each($3))
         RETURNING host",
        now,
        now - JUST_COME_MS,
        to_json("hosts", &hosts)?
    )
    .fetch_all(db)
    .await?;
    taken.iter().map(|id| parsed("host id", id)).collect()
}

/// A host's state as of one heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredState {
    /// The epoch of the agent.
    pub epoch: u64,
    /// The epochs of the last agents of this host of which a heartbeat was stored, this one first.
    pub lives: Vec<u64>,
    /// The number of the newest heartbeat.
    pub seq: u64,
    /// The state.
    pub state: Value,
    /// The heartbeat that the newest delta was based on, and its state.
    pub base: Option<(u64, Value)>,
}

struct HeldRow {
    host: String,
    epoch: i64,
    lives: String,
    seq: i64,
    state: String,
    base_seq: Option<i64>,
    base_state: Option<String>,
}

impl HeldRow {
    fn held(self) -> StoreResult<StoredState> {
        let base = match (self.base_seq, self.base_state) {
            (Some(seq), Some(state)) => Some((unsigned("seq", seq)?, json("state", &state)?)),
            _ => None,
        };
        Ok(StoredState {
            epoch: unsigned("epoch", self.epoch)?,
            lives: json("lives", &self.lives)?,
            seq: unsigned("seq", self.seq)?,
            state: json("state", &self.state)?,
            base,
        })
    }
}

/// A state to store, with the hostname in it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewState {
    /// The host.
    pub host: HostId,
    /// The state.
    pub held: StoredState,
    /// The hostname.
    pub hostname: String,
}

/// Stores hosts' states, replacing earlier ones: each host's latest.
pub async fn set_held(db: &mut SqliteConnection, states: &[NewState], now: Millis) -> StoreResult<()> {
    for piece in pieces(states) {
        let sql = format!(
            "INSERT INTO heartbeat (host, epoch, lives, seq, state, base_seq, base_state, at_ms) VALUES {}
             ON CONFLICT (host) DO UPDATE SET epoch = excluded.epoch, lives = excluded.lives, seq = excluded.seq,
                 state = excluded.state, base_seq = excluded.base_seq, base_state = excluded.base_state,
                 at_ms = excluded.at_ms",
            parameters(piece.len(), 8)
        );
        // Unchecked: many rows of several columns, of which `parameters` writes the question marks.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for NewState { host, held, .. } in piece {
            let base = held.base.as_ref();
            query = query
                .bind(host.to_string())
                .bind(signed(held.epoch))
                .bind(to_json("lives", &held.lives)?)
                .bind(signed(held.seq))
                .bind(to_json("state", &held.state)?)
                .bind(base.map(|(seq, _)| signed(*seq)))
                .bind(base.map(|(_, state)| to_json("state", state)).transpose()?)
                .bind(now);
        }
        query.execute(&mut *db).await?;
        let sql = format!(
            "WITH came (id, hostname) AS (VALUES {})
             UPDATE host SET hostname = came.hostname FROM came
             WHERE host.id = came.id AND host.hostname <> came.hostname",
            parameters(piece.len(), 2)
        );
        // Unchecked: many rows of several columns, of which `parameters` writes the question marks.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for NewState { host, hostname, .. } in piece {
            query = query.bind(host.to_string()).bind(hostname);
        }
        query.execute(&mut *db).await?;
    }
    Ok(())
}

/// What the last stored heartbeat of a host says about its presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastHeartbeat {
    /// The instance that sent it.
    pub epoch: u64,
    /// Whether it was stored after the presence.
    pub follows_presence: bool,
}

/// The known state of the hosts of a batch of messages.
#[derive(Debug, Default)]
pub struct Known {
    /// Those that have joined.
    pub members: HashSet<HostId>,
    /// Their presences' places in the order of [`Presence::order`], where requested.
    pub presences: HashMap<HostId, (u64, u64, bool)>,
    /// Their last heartbeats, for those with a presence.
    pub last_heartbeats: HashMap<HostId, LastHeartbeat>,
    /// Their states, where requested.
    pub held: HashMap<HostId, StoredState>,
    /// Those of them that have units.
    pub with_units: HashSet<HostId>,
    /// Hosts with active alerts, if any state was requested.
    pub alerted: BTreeSet<HostId>,
}

/// The hosts of a batch of messages, by what is needed of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostKeys {
    /// All of them: whether they are members.
    pub hosts: Vec<HostId>,
    /// Those with a presence or heartbeat: their presences.
    pub showing: Vec<HostId>,
    /// Those with heartbeats: their states.
    pub beating: Vec<HostId>,
}

/// Reads the known state of hosts. A burst of answers needs membership only; presences double the cost.
pub async fn known(db: &mut SqliteConnection, asked: &HostKeys) -> StoreResult<Known> {
    let mut known = Known { members: members(db, &asked.hosts).await?, ..Known::default() };
    if !asked.showing.is_empty() {
        add_presences(db, &asked.showing, &mut known).await?;
    }
    if !asked.beating.is_empty() {
        add_states(db, &asked.beating, &mut known).await?;
    }
    Ok(known)
}

async fn add_presences(db: &mut SqliteConnection, hosts: &[HostId], known: &mut Known) -> StoreResult<()> {
    let rows = sqlx::query!(
        r#"SELECT presence.host, presence.epoch, session, presence.state,
                  heartbeat.epoch AS "heartbeat_epoch?", heartbeat.at_ms > presence.since_ms AS "follows?: bool"
           FROM presence LEFT JOIN heartbeat ON heartbeat.host = presence.host
           WHERE presence.host IN (SELECT value FROM json_each($1))"#,
        to_json("hosts", &hosts)?
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let id = parsed("host id", &row.host)?;
        let order = (unsigned("epoch", row.epoch)?, unsigned("session", row.session)?, row.state != "online");
        known.presences.insert(id, order);
        if let Some(epoch) = row.heartbeat_epoch {
            let last =
                LastHeartbeat { epoch: unsigned("epoch", epoch)?, follows_presence: row.follows.unwrap_or_default() };
            known.last_heartbeats.insert(id, last);
        }
    }
    Ok(())
}

async fn add_states(db: &mut SqliteConnection, hosts: &[HostId], known: &mut Known) -> StoreResult<()> {
    known.alerted = super::alert::alerted(db).await?;
    let hosts = to_json("hosts", &hosts)?;
    let rows = sqlx::query_as!(
        HeldRow,
        "SELECT host, epoch, lives, seq, state, base_seq, base_state FROM heartbeat
         WHERE host IN (SELECT value FROM json_each($1))",
        hosts
    )
    .fetch_all(&mut *db)
    .await?;
    for row in rows {
        known.held.insert(parsed("host id", &row.host)?, row.held()?);
    }
    let ids =
        sqlx::query_scalar!("SELECT DISTINCT host FROM unit WHERE host IN (SELECT value FROM json_each($1))", hosts)
            .fetch_all(db)
            .await?;
    for id in ids {
        known.with_units.insert(parsed("host id", &id)?);
    }
    Ok(())
}

/// Returns those hosts that are members.
pub async fn members(db: &mut SqliteConnection, hosts: &[HostId]) -> StoreResult<HashSet<HostId>> {
    let ids = to_json("hosts", &hosts)?;
    // Nearly always all of them; returning each would take twice as long.
    let count = with_is_member!(
        query_scalar,
        "SELECT count(*) FROM host WHERE ",
        " AND id IN (SELECT value FROM json_each($1))",
        ids
    )
    .fetch_one(&mut *db)
    .await?;
    if usize::try_from(count) == Ok(hosts.len()) {
        return Ok(hosts.iter().copied().collect());
    }
    let members = with_is_member!(
        query_scalar,
        "SELECT id FROM host WHERE ",
        " AND id IN (SELECT value FROM json_each($1))",
        ids
    )
    .fetch_all(db)
    .await?;
    members.iter().map(|id| parsed("host id", id)).collect()
}

pub(super) struct HostUnitRow {
    pub(super) host: String,
    pub(super) hostname: String,
    pub(super) report: String,
    pub(super) at_ms: i64,
}

impl HostUnitRow {
    pub(super) fn unit(self) -> StoreResult<muster_api::Unit> {
        let report: UnitReport = json("unit", &self.report)?;
        Ok(muster_api::Unit {
            host: parsed("host id", &self.host)?,
            hostname: self.hostname,
            unit: report.unit,
            desired: report.desired,
            observed: report.observed,
            hold: report.hold,
            owner: report.owner,
            pins: report.pins,
            stats: report.stats,
            at_ms: self.at_ms,
        })
    }
}

/// Selects [`HostUnitRow`]s.
macro_rules! select_units {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            HostUnitRow,
            "SELECT unit.host, host.hostname, unit.report, unit.at_ms
             FROM unit JOIN host ON host.id = unit.host WHERE "
                + $condition
                + " ORDER BY host.hostname, unit.host, unit.unit"
            $(, $argument)*
        )
    };
}

/// Hosts whose units are read at once, when those of all are: however much each reports, some megabytes.
const HOSTS_AT_ONCE: i64 = 32;

/// Returns units of one host or of all, or one unit; sorted by hostname and name.
pub async fn units(
    db: &SqlitePool,
    host: Option<HostId>,
    unit: Option<&UnitName>,
) -> StoreResult<Vec<muster_api::Unit>> {
    let mut units = Vec::new();
    for_each_unit(db, host, unit, &mut |unit| units.push(unit)).await?;
    Ok(units)
}

/// Gives units of one host or of all, or one unit, to a function; in the order of hostname and name.
pub async fn for_each_unit(
    db: &SqlitePool,
    host: Option<HostId>,
    unit: Option<&UnitName>,
    take: &mut (dyn FnMut(muster_api::Unit) + Send),
) -> StoreResult<()> {
    let (id, name) = (host.map(|id| id.to_string()), unit.map(UnitName::as_str));
    // An optional condition on the host would prevent the use of an index.
    let rows = match (host, unit) {
        (None, _) => return of_all_hosts(db, name, take).await,
        (Some(_), None) => select_units!("unit.host = $1", id).fetch_all(db).await?,
        (Some(_), Some(_)) => select_units!("unit.host = $1 AND unit.unit = $2", id, name).fetch_all(db).await?,
    };
    rows.into_iter().map(HostUnitRow::unit).try_for_each(|unit| unit.map(&mut *take))
}

/// Reads the units of all hosts, of some hosts at a time.
async fn of_all_hosts(
    db: &SqlitePool,
    unit: Option<&str>,
    take: &mut (dyn FnMut(muster_api::Unit) + Send),
) -> StoreResult<()> {
    let mut after = (String::new(), String::new());
    loop {
        let hosts = sqlx::query!(
            "SELECT hostname, id FROM host WHERE (hostname, id) > ($1, $2) ORDER BY hostname, id LIMIT $3",
            &after.0,
            &after.1,
            HOSTS_AT_ONCE
        )
        .map(|row| (row.hostname, row.id))
        .fetch_all(db)
        .await?;
        let Some(last) = hosts.last() else { return Ok(()) };
        let ids: Vec<&str> = hosts.iter().map(|(_, id)| &**id).collect();
        let rows = select_units!(
            "unit.host IN (SELECT value FROM json_each($1)) AND ($2 IS NULL OR unit.unit = $2)",
            to_json("hosts", &ids)?,
            unit
        );
        let rows = rows.fetch_all(db).await?;
        after = last.clone();
        rows.into_iter().map(HostUnitRow::unit).try_for_each(|unit| unit.map(&mut *take))?;
    }
}

/// Returns the first units that need attention
/// ([`UnitSummary::is_troubled`](muster_topics::heartbeat::UnitSummary::is_troubled)), and their number.
pub async fn troubled_units(db: &SqlitePool, limit: u32) -> StoreResult<(Vec<muster_api::Unit>, u64)> {
    let count = sqlx::query_scalar!("SELECT count(*) FROM unit WHERE troubled").fetch_one(db).await?;
    let rows = sqlx::query_as!(
        HostUnitRow,
        "SELECT unit.host, host.hostname, unit.report, unit.at_ms
         FROM unit JOIN host ON host.id = unit.host
         WHERE unit.troubled ORDER BY host.hostname, unit.host, unit.unit LIMIT $1",
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    Ok((rows.into_iter().map(HostUnitRow::unit).collect::<StoreResult<_>>()?, unsigned("count", count)?))
}

/// What is stored of the units of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitShare {
    /// The number of units.
    pub units: u64,
    /// The size of their reports.
    pub bytes: u64,
}

/// Returns what is stored of the other units of a host.
pub async fn unit_share(db: &mut SqliteConnection, host: HostId, without: &UnitName) -> StoreResult<UnitShare> {
    let row = sqlx::query!(
        r#"SELECT count(*) AS "units!: i64", coalesce(sum(octet_length(report)), 0) AS "bytes!: i64"
           FROM unit WHERE host = $1 AND unit <> $2"#,
        host.to_string(),
        without.as_str()
    )
    .fetch_one(db)
    .await?;
    Ok(UnitShare { units: unsigned("units", row.units)?, bytes: unsigned("bytes", row.bytes)? })
}

/// Stores a unit's report, unless a later one is stored. Returns whether it did.
pub async fn set_unit(db: &mut SqliteConnection, host: HostId, report: &UnitReport, now: Millis) -> StoreResult<bool> {
    let stored = sqlx::query!(
        "INSERT INTO unit (host, unit, epoch, seq, made_ms, report, at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (host, unit) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq,
             made_ms = excluded.made_ms, report = excluded.report, at_ms = excluded.at_ms
         WHERE unit.epoch < excluded.epoch OR (unit.epoch = excluded.epoch AND unit.seq < excluded.seq)",
        host.to_string(),
        report.unit.as_str(),
        signed(report.epoch),
        signed(report.seq),
        report.at_ms,
        to_json("unit", report)?,
        now
    )
    .execute(db)
    .await?;
    Ok(stored.rows_affected() > 0)
}

/// Removes a unit. Returns whether it existed.
pub async fn remove_unit(db: &mut SqliteConnection, host: HostId, unit: &UnitName) -> StoreResult<bool> {
    let gone = sqlx::query!("DELETE FROM unit WHERE host = $1 AND unit = $2", host.to_string(), unit.as_str())
        .execute(db)
        .await?;
    Ok(gone.rows_affected() > 0)
}

/// Returns the number of the last report of each unit of a host; `None` if one of them is not of this epoch.
pub async fn last_reports(
    db: &mut SqliteConnection,
    host: HostId,
    epoch: u64,
) -> StoreResult<Option<BTreeMap<UnitName, u64>>> {
    let rows = sqlx::query!("SELECT unit, epoch, seq FROM unit WHERE host = $1", host.to_string())
        .map(|row| (row.unit, row.epoch, row.seq))
        .fetch_all(db)
        .await?;
    if rows.iter().any(|(_, of, _)| *of != signed(epoch)) {
        return Ok(None);
    }
    let seq = |(unit, _, seq): &(String, i64, i64)| Ok((parsed("unit", unit)?, unsigned("seq", *seq)?));
    rows.iter().map(seq).collect::<StoreResult<_>>().map(Some)
}

/// Returns units that were reported before a heartbeat of `epoch` was made, at `made_ms` by the host's clock; one that
/// the heartbeat does not list was removed.
pub async fn units_before(
    db: &mut SqliteConnection,
    host: HostId,
    epoch: u64,
    made_ms: Millis,
) -> StoreResult<Vec<UnitName>> {
    let rows = sqlx::query_scalar!(
        "SELECT unit FROM unit WHERE host = $1 AND (epoch < $2 OR (epoch = $2 AND made_ms < $3))",
        host.to_string(),
        signed(epoch),
        made_ms
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|unit| parsed("unit", unit)).collect()
}
