//! Hosts: members, their certificates, and what they report.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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
use sqlx::{AssertSqlSafe, FromRow, SqliteConnection, SqlitePool, sqlite::SqliteRow};

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
    pub sealing_key: Option<SealingKey>,
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
    sqlx::query(
        "INSERT INTO host (id, hostname, facts, joined_ms, sealing_key, sealing_key_ms)
         VALUES ($1, $2, $3, $4, $5, CASE WHEN $5 IS NULL THEN NULL ELSE $4 END)
         ON CONFLICT (id) DO UPDATE SET hostname = excluded.hostname, facts = excluded.facts, joined_ms = excluded.joined_ms,
           sealing_key = excluded.sealing_key, sealing_key_ms = excluded.sealing_key_ms",
    )
    .bind(&id)
    .bind(&host.hostname)
    .bind(to_json("facts", &host.facts)?)
    .bind(now)
    // Without a sealing key there is none: a host with another key may be another machine.
    .bind(host.sealing_key.as_ref().map(SealingKey::to_string))
    .execute(&mut *db)
    .await?;
    let replaced = sqlx::query(
        "UPDATE certificate SET revoked_ms = $2 WHERE host = $1 AND key_sha256 <> $3 AND revoked_ms IS NULL",
    )
    .bind(&id)
    .bind(now)
    .bind(certificate.key.as_str())
    .execute(&mut *db)
    .await?
    .rows_affected();
    if replaced > 0 {
        for forget in [
            "DELETE FROM presence WHERE host = $1",
            "DELETE FROM heartbeat WHERE host = $1",
            "DELETE FROM unit WHERE host = $1",
        ] {
            sqlx::query(forget).bind(&id).execute(&mut *db).await?;
        }
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
    let had: Option<(Option<String>,)> =
        sqlx::query_as("SELECT sealing_key FROM host WHERE id = $1").bind(&id).fetch_optional(&mut *db).await?;
    let (had, key) = (had.and_then(|(had,)| had), key.to_string());
    if had.as_deref() != Some(key.as_str()) {
        sqlx::query("UPDATE host SET sealing_key = $2, sealing_key_ms = $3 WHERE id = $1")
            .bind(&id)
            .bind(&key)
            .bind(now)
            .execute(db)
            .await?;
    }
    Ok(had.is_some_and(|had| had != key))
}

/// Returns the sealing keys of hosts; older agents have none.
pub async fn sealing_keys(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<HashMap<HostId, SealingKey>> {
    let mut keys = HashMap::new();
    for piece in pieces(hosts) {
        let sql = format!(
            "SELECT id, sealing_key FROM host WHERE sealing_key IS NOT NULL AND id IN {}",
            parameters(1, piece.len())
        );
        let mut query = sqlx::query_as::<_, (String, String)>(AssertSqlSafe(sql));
        for host in piece {
            query = query.bind(host.to_string());
        }
        for (host, key) in query.fetch_all(db).await? {
            keys.insert(parsed("host id", &host)?, parsed("sealing key", &key)?);
        }
    }
    Ok(keys)
}

/// Stores a certificate that a host is given.
pub async fn add_certificate(
    db: &mut SqliteConnection,
    host: HostId,
    certificate: &IssuedPem,
    now: Millis,
) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO certificate (serial, host, key_sha256, issued_ms, expires_ms) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(&certificate.serial)
    .bind(host.to_string())
    .bind(certificate.key.as_str())
    .bind(now)
    .bind(certificate.expires_ms)
    .execute(db)
    .await?;
    Ok(())
}

/// The condition that a row of `host` is a member. This is the one definition: a host without a certificate that is not
/// revoked is sent nothing and not listened to.
macro_rules! is_member {
    () => {
        "EXISTS (SELECT 1 FROM certificate WHERE certificate.host = host.id AND certificate.revoked_ms IS NULL)"
    };
}
pub(super) use is_member;

/// Revokes every certificate of a host, and in the same transaction marks it as offline, clears its alerts and ends its
/// commands. Returns those commands; `None` if it had no valid certificate.
pub async fn revoke(db: &mut SqliteConnection, host: HostId, now: Millis) -> StoreResult<Option<Vec<CommandId>>> {
    let id = host.to_string();
    let revoked = sqlx::query("UPDATE certificate SET revoked_ms = $2 WHERE host = $1 AND revoked_ms IS NULL")
        .bind(&id)
        .bind(now)
        .execute(&mut *db)
        .await?;
    if revoked.rows_affected() == 0 {
        return Ok(None);
    }
    sqlx::query("UPDATE presence SET state = 'offline', since_ms = $2 WHERE host = $1 AND state = 'online'")
        .bind(&id)
        .bind(now)
        .execute(&mut *db)
        .await?;
    super::alert::forget(db, host, now).await?;
    super::command::revoke(db, host, now).await.map(Some)
}

/// Returns hosts that have joined and are not members any more.
pub async fn revoked(db: &SqlitePool) -> StoreResult<HashSet<HostId>> {
    let sql = concat!("SELECT id FROM host WHERE NOT ", is_member!());
    let rows: Vec<(String,)> = sqlx::query_as(sql).fetch_all(db).await?;
    rows.iter().map(|(id,)| parsed("host id", id)).collect()
}

/// Whether there is a valid certificate of a revoked or removed host, whose holder still receives broadcasts from a
/// broker that does not know of the revocation.
pub async fn may_listen(db: &SqlitePool) -> StoreResult<bool> {
    let sql =
        concat!("SELECT EXISTS (SELECT 1 FROM removed) OR EXISTS (SELECT 1 FROM host WHERE NOT ", is_member!(), ")");
    let (any,): (bool,) = sqlx::query_as(sql).fetch_one(db).await?;
    Ok(any)
}

/// Whether a host is a member, with this certificate.
pub async fn holds_certificate(db: &SqlitePool, host: HostId, serial: &str) -> StoreResult<bool> {
    let found: Option<(i64,)> =
        sqlx::query_as("SELECT 1 FROM certificate WHERE serial = $1 AND host = $2 AND revoked_ms IS NULL")
            .bind(serial)
            .bind(host.to_string())
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
    let (is_there, is_known, is_good): (bool, bool, bool) = sqlx::query_as(
        "SELECT EXISTS (SELECT 1 FROM host WHERE id = $1),
                EXISTS (SELECT 1 FROM certificate WHERE host = $1 AND key_sha256 = $2),
                EXISTS (SELECT 1 FROM certificate WHERE host = $1 AND key_sha256 = $2 AND revoked_ms IS NULL)",
    )
    .bind(host.to_string())
    .bind(key_sha256)
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
    let sql = concat!("SELECT id, hostname FROM host WHERE ", is_member!());
    let rows: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(db).await?;
    rows.into_iter().map(|(id, hostname)| Ok((parsed("host id", &id)?, hostname))).collect()
}

/// Returns ids and names of the hosts that `text` may mean: by hostname, id or the beginning of an id.
pub async fn named(db: &SqlitePool, text: &str) -> StoreResult<Vec<(HostId, String)>> {
    // The characters of an id are all before `~`.
    let beginning = id::may_begin(text).then(|| text.to_ascii_lowercase());
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT id, hostname FROM host WHERE hostname = $1 OR (id >= $2 AND id < $2 || '~') ORDER BY id LIMIT $3",
    )
    .bind(text)
    .bind(beginning)
    .bind(NAMED_MAX)
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|(id, hostname)| Ok((parsed("host id", &id)?, hostname))).collect()
}

/// The most hosts that are looked up for a word: it means one, or the candidates are listed.
const NAMED_MAX: u32 = 100;

/// Counts all hosts, and those online.
pub async fn count(db: &SqlitePool) -> StoreResult<(u64, u64)> {
    let (all, online): (i64, i64) =
        sqlx::query_as("SELECT (SELECT count(*) FROM host), (SELECT count(*) FROM presence WHERE state = 'online')")
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
    let (all, online, offline, stopped): (i64, i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM host), count(CASE WHEN state = 'online' THEN 1 END),
                count(CASE WHEN state = 'offline' THEN 1 END), count(CASE WHEN state = 'stopped' THEN 1 END)
         FROM presence",
    )
    .fetch_one(db)
    .await?;
    let count = |number| unsigned("count", number);
    let never = all - online - offline - stopped;
    Ok(Presences {
        online: count(online)?,
        offline: count(offline)?,
        stopped: count(stopped)?,
        never: count(never)?,
        unknown: 0,
    })
}

/// Returns hosts that are online.
pub async fn online(db: &SqlitePool) -> StoreResult<Vec<HostId>> {
    let rows: Vec<(String,)> = sqlx::query_as("SELECT host FROM presence WHERE state = 'online'").fetch_all(db).await?;
    rows.iter().map(|(id,)| parsed("host id", id)).collect()
}

/// Whether any of these hosts is online.
pub async fn is_any_online(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<bool> {
    has_presence(db, hosts, "state = 'online'").await
}

/// Whether the presence of any of these hosts meets a condition.
async fn has_presence(db: &SqlitePool, hosts: &[HostId], condition: &'static str) -> StoreResult<bool> {
    for piece in pieces(hosts) {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM presence WHERE {condition} AND host IN {})",
            parameters(1, piece.len())
        );
        let query = sqlx::query_as(AssertSqlSafe(sql));
        let (is_any,): (bool,) =
            piece.iter().fold(query, |query, host| query.bind(host.to_string())).fetch_one(db).await?;
        if is_any {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns since when hosts have been away, beyond a short reconnect: those of `only`, or all. A host that never
/// connected is away since it joined.
pub async fn away(db: &SqlitePool, only: Option<&[HostId]>) -> StoreResult<HashMap<HostId, Millis>> {
    const AWAY: &str = "SELECT host.id, host.joined_ms, presence.state, presence.since_ms
        FROM host LEFT JOIN presence ON presence.host = host.id WHERE COALESCE(presence.state, 'offline') <> 'online'";
    let mut rows: Vec<(String, i64, Option<String>, Option<i64>)> = Vec::new();
    match only {
        None => rows = sqlx::query_as(AWAY).fetch_all(db).await?,
        Some(hosts) => {
            for piece in pieces(hosts) {
                let sql = format!("{AWAY} AND host.id IN {}", parameters(1, piece.len()));
                let query = sqlx::query_as(AssertSqlSafe(sql));
                let query = piece.iter().fold(query, |query, host| query.bind(host.to_string()));
                rows.extend(query.fetch_all(db).await?);
            }
        }
    }
    let (now, mut away) = (now_ms(), HashMap::new());
    for (host, joined_ms, state, since_ms) in rows {
        let presence = match state.zip(since_ms) {
            Some((word, since_ms)) => Some((from_word("presence", &word)?, since_ms)),
            None => None,
        };
        if let Some(since_ms) = presence::away_since_ms(presence, joined_ms, now) {
            away.insert(parsed("host id", &host)?, since_ms);
        }
    }
    Ok(away)
}

/// Returns the names of these hosts.
pub async fn names_of(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<HashMap<HostId, String>> {
    let mut names = HashMap::new();
    for piece in pieces(hosts) {
        let sql = format!("SELECT id, hostname FROM host WHERE id IN {}", parameters(1, piece.len()));
        let query = sqlx::query_as(AssertSqlSafe(sql));
        let query = piece.iter().fold(query, |query, host| query.bind(host.to_string()));
        let rows: Vec<(String, String)> = query.fetch_all(db).await?;
        for (host, hostname) in rows {
            names.insert(parsed("host id", &host)?, hostname);
        }
    }
    Ok(names)
}

/// Returns names of hosts, and the labels of their own configurations as last reported.
pub async fn own_labels(
    db: &SqlitePool,
    hosts: &[HostId],
) -> StoreResult<HashMap<HostId, (String, BTreeMap<Name, String>)>> {
    let mut labels = HashMap::new();
    for piece in pieces(hosts) {
        let sql = format!(
            "SELECT host.id, host.hostname,
                    COALESCE(json_extract(heartbeat.state, '$.own_labels'), json_extract(heartbeat.state, '$.labels'), '{{}}')
             FROM host LEFT JOIN heartbeat ON heartbeat.host = host.id WHERE host.id IN {}",
            parameters(1, piece.len())
        );
        let query = sqlx::query_as(AssertSqlSafe(sql));
        let query = piece.iter().fold(query, |query, host| query.bind(host.to_string()));
        let rows: Vec<(String, String, String)> = query.fetch_all(db).await?;
        for (host, hostname, own) in rows {
            labels.insert(parsed("host id", &host)?, (hostname, json("labels", &own)?));
        }
    }
    Ok(labels)
}

/// Returns the names of all hosts, and whether each is online.
pub async fn standing(db: &SqlitePool) -> StoreResult<BTreeMap<HostId, (String, bool)>> {
    let rows: Vec<(String, String, bool)> = sqlx::query_as(
        "SELECT host.id, host.hostname, COALESCE(presence.state = 'online', FALSE)
         FROM host LEFT JOIN presence ON presence.host = host.id",
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|(id, hostname, online)| Ok((parsed("host id", &id)?, (hostname, online)))).collect()
}

#[derive(FromRow)]
struct HostRow {
    id: String,
    hostname: String,
    joined_ms: i64,
    certificate_expires_ms: i64,
    presence: Option<String>,
    epoch: Option<i64>,
    since_ms: Option<i64>,
    agent_version: Option<String>,
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
        })
    }
}

/// The columns of [`HostRow`]; conditions, order and limits follow.
macro_rules! select_hosts {
    ($rest:literal) => {
        concat!(
            "SELECT host.id, host.hostname, host.joined_ms,
                    COALESCE((SELECT max(expires_ms) FROM certificate
                              WHERE certificate.host = host.id AND revoked_ms IS NULL), 0) AS certificate_expires_ms,
                    presence.state AS presence, presence.epoch, presence.since_ms, presence.agent_version,
                    heartbeat.state, heartbeat.at_ms AS state_ms
             FROM host
             LEFT JOIN presence ON presence.host = host.id
             LEFT JOIN heartbeat ON heartbeat.host = host.id ",
            $rest
        )
    };
}

/// Checks that stored facts of hosts are readable.
pub(super) async fn check_facts(db: &SqlitePool) -> StoreResult<()> {
    let wrong: Option<(String,)> =
        sqlx::query_as("SELECT id FROM host WHERE NOT json_valid(facts) LIMIT 1").fetch_optional(db).await?;
    match wrong {
        Some((id,)) => Err(StoreError::Damaged(format!("the facts of host {id} cannot be read"))),
        None => Ok(()),
    }
}

/// Returns all hosts, or one, sorted by hostname.
pub async fn list(db: &SqlitePool, only: Option<HostId>) -> StoreResult<Vec<muster_api::Host>> {
    let sql = match only {
        Some(_) => select_hosts!("WHERE host.id = $1"),
        None => select_hosts!("WHERE $1 IS NULL ORDER BY host.hostname, host.id"),
    };
    let rows: Vec<HostRow> = sqlx::query_as(sql).bind(only.map(|id| id.to_string())).fetch_all(db).await?;
    rows.into_iter().map(HostRow::host).collect()
}

/// Returns the first of some hosts, or of all, in this order.
pub async fn first(
    db: &SqlitePool,
    only: Option<&[HostId]>,
    sort: muster_api::HostSort,
    limit: Option<u32>,
) -> StoreResult<Vec<muster_api::Host>> {
    let order = match sort {
        muster_api::HostSort::Hostname => "",
        muster_api::HostSort::Presence => {
            "COALESCE(presence.state, '') = 'online', COALESCE(presence.since_ms, 0) DESC,"
        }
        muster_api::HostSort::Heard => "COALESCE(heartbeat.at_ms, 0) DESC,",
        muster_api::HostSort::Units => "(SELECT count(*) FROM unit WHERE unit.host = host.id) DESC,",
        muster_api::HostSort::Joined => "host.joined_ms DESC,",
    };
    let sql = format!(
        select_hosts!(
            "WHERE $1 IS NULL OR host.id IN (SELECT value FROM json_each($1))
             ORDER BY {} host.hostname, host.id LIMIT $2"
        ),
        order
    );
    let only = only.map(|hosts| to_json("hosts", &hosts)).transpose()?;
    let rows: Vec<HostRow> =
        sqlx::query_as(AssertSqlSafe(sql)).bind(only).bind(limit.map_or(-1, i64::from)).fetch_all(db).await?;
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

    /// Returns tables and conditions, with `$1` and `$2` for [`Self::patterns`]. Unused conditions are left out.
    fn from(&self) -> String {
        let text = match self.text.is_empty() {
            true => "$1 IS NULL AND $2 IS NULL",
            false => "(lower(host.hostname) LIKE $1 ESCAPE '!' OR host.id LIKE $2 ESCAPE '!')",
        };
        match self.online {
            None => format!("host WHERE {text}"),
            Some(online) => format!(
                "host LEFT JOIN presence ON presence.host = host.id
                 WHERE {text} AND COALESCE(presence.state, '') {} 'online'",
                if online { "=" } else { "<>" }
            ),
        }
    }
}

/// Returns a page of matching hosts, sorted by hostname, and their total number.
pub async fn page(
    db: &SqlitePool,
    search: &Search,
    offset: u64,
    limit: u32,
) -> StoreResult<(Vec<muster_api::Host>, u64)> {
    let ((hostname, id), from) = (search.patterns(), search.from());
    let (count,): (i64,) = sqlx::query_as(AssertSqlSafe(format!("SELECT count(*) FROM {from}")))
        .bind(&hostname)
        .bind(&id)
        .fetch_one(db)
        .await?;
    // The page's ids come first, so that states are joined only for these.
    let sql = format!(
        select_hosts!(
            "WHERE host.id IN (SELECT host.id FROM {} ORDER BY host.hostname, host.id LIMIT $3 OFFSET $4)
             ORDER BY host.hostname, host.id"
        ),
        from
    );
    let rows: Vec<HostRow> = sqlx::query_as(AssertSqlSafe(sql))
        .bind(&hostname)
        .bind(&id)
        .bind(i64::from(limit))
        .bind(signed(offset))
        .fetch_all(db)
        .await?;
    Ok((rows.into_iter().map(HostRow::host).collect::<StoreResult<_>>()?, unsigned("count", count)?))
}

/// Returns the stored presence's place in the order of [`Presence::order`].
pub async fn presence_order(db: &mut SqliteConnection, host: HostId) -> StoreResult<Option<(u64, u64, bool)>> {
    let row: Option<(i64, i64, String)> = sqlx::query_as("SELECT epoch, session, state FROM presence WHERE host = $1")
        .bind(host.to_string())
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
            "INSERT INTO presence (host, state, epoch, session, agent_version, since_ms, fresh_time) VALUES {}
             ON CONFLICT (host) DO UPDATE SET state = excluded.state, epoch = excluded.epoch,
                 session = excluded.session, agent_version = excluded.agent_version, since_ms = excluded.since_ms,
                 -- One that was made of a heartbeat says nothing of what its agent can do.
                 fresh_time = CASE WHEN excluded.session = 0 THEN presence.fresh_time ELSE excluded.fresh_time END",
            parameters(piece.len(), 7)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (host, presence) in piece {
            query = query
                .bind(host.to_string())
                .bind(word("presence", &presence.state)?)
                .bind(signed(presence.epoch))
                .bind(signed(presence.session))
                .bind(&presence.agent_version)
                .bind(now)
                .bind(i64::from(presence.capabilities.contains(&Capability::FreshTime)));
        }
        query.execute(&mut *db).await?;
    }
    Ok(())
}

/// Counts members whose agents never go back to an earlier time, and may have seen a later one.
pub async fn bound_count(db: &SqlitePool) -> StoreResult<u64> {
    let sql = concat!(
        "SELECT count(*) FROM presence JOIN host ON host.id = presence.host WHERE fresh_time = 0 AND ",
        is_member!()
    );
    let (count,): (i64,) = sqlx::query_as(sql).fetch_one(db).await?;
    unsigned("count", count)
}

/// Whether any of these hosts is such a one.
pub async fn is_any_bound(db: &SqlitePool, hosts: &[HostId]) -> StoreResult<bool> {
    has_presence(db, hosts, "fresh_time = 0").await
}

/// How long a host that has just come online is not marked as offline: the caller may not know of it yet.
pub const JUST_COME_MS: Millis = 5_000;

/// Marks those of these hosts that are online as offline, except those that have just come online; returns them. Each
/// gets a place before its session: a presence or last will of that session counts as later. A time later than `now`
/// was recorded by a clock that was set back since, and is no evidence.
pub async fn take_offline(db: &SqlitePool, hosts: &[HostId], now: Millis) -> StoreResult<Vec<HostId>> {
    let mut taken = Vec::new();
    for piece in pieces(hosts) {
        let sql = format!(
            "UPDATE presence SET state = 'offline', session = CASE WHEN session > 0 THEN session - 1 ELSE 0 END, since_ms = ?
             WHERE state = 'online' AND since_ms NOT BETWEEN ? AND ? AND host IN {} RETURNING host",
            parameters(1, piece.len())
        );
        let mut query = sqlx::query_as(AssertSqlSafe(sql)).bind(now).bind(now - JUST_COME_MS).bind(now);
        for host in piece {
            query = query.bind(host.to_string());
        }
        let rows: Vec<(String,)> = query.fetch_all(db).await?;
        for (id,) in rows {
            taken.push(parsed("host id", &id)?);
        }
    }
    Ok(taken)
}

/// A host's state as of one heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredState {
    /// The epoch of the agent.
    pub epoch: u64,
    /// The number of the newest heartbeat.
    pub seq: u64,
    /// The state.
    pub state: Value,
    /// The heartbeat that the newest delta was based on, and its state.
    pub base: Option<(u64, Value)>,
}

type HeldRow = (i64, i64, String, Option<i64>, Option<String>);

fn read_held((epoch, seq, state, base_seq, base_state): HeldRow) -> StoreResult<StoredState> {
    let base = match (base_seq, base_state) {
        (Some(seq), Some(state)) => Some((unsigned("seq", seq)?, json("state", &state)?)),
        _ => None,
    };
    Ok(StoredState {
        epoch: unsigned("epoch", epoch)?,
        seq: unsigned("seq", seq)?,
        state: json("state", &state)?,
        base,
    })
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
            "INSERT INTO heartbeat (host, epoch, seq, state, base_seq, base_state, at_ms) VALUES {}
             ON CONFLICT (host) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, state = excluded.state,
                 base_seq = excluded.base_seq, base_state = excluded.base_state, at_ms = excluded.at_ms",
            parameters(piece.len(), 7)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for NewState { host, held, .. } in piece {
            let base = held.base.as_ref();
            query = query
                .bind(host.to_string())
                .bind(signed(held.epoch))
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
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for NewState { host, hostname, .. } in piece {
            query = query.bind(host.to_string()).bind(hostname);
        }
        query.execute(&mut *db).await?;
    }
    Ok(())
}

/// The known state of the hosts of a batch of messages.
#[derive(Debug, Default)]
pub struct Known {
    /// Those that have joined.
    pub members: HashSet<HostId>,
    /// Their presences' places in the order of [`Presence::order`], where requested.
    pub presences: HashMap<HostId, (u64, u64, bool)>,
    /// The epochs of their heartbeats, for those with a presence.
    pub lives: HashMap<HostId, u64>,
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
    type Presences = Vec<(String, i64, i64, String, Option<i64>)>;
    type States = Vec<(String, i64, i64, String, Option<i64>, Option<String>)>;
    let mut known = Known { members: members(db, &asked.hosts).await?, ..Known::default() };
    for piece in pieces(&asked.showing) {
        let rows: Presences = of_hosts(
            "SELECT presence.host, presence.epoch, session, presence.state, heartbeat.epoch
             FROM presence LEFT JOIN heartbeat ON heartbeat.host = presence.host WHERE presence.host IN ",
            piece,
            db,
        )
        .await?;
        for (id, epoch, session, state, life) in rows {
            let id = parsed("host id", &id)?;
            let order = (unsigned("epoch", epoch)?, unsigned("session", session)?, state != "online");
            known.presences.insert(id, order);
            if let Some(life) = life {
                known.lives.insert(id, unsigned("epoch", life)?);
            }
        }
    }
    if !asked.beating.is_empty() {
        known.alerted = super::alert::alerted(db).await?;
    }
    for piece in pieces(&asked.beating) {
        let rows: States =
            of_hosts("SELECT host, epoch, seq, state, base_seq, base_state FROM heartbeat WHERE host IN ", piece, db)
                .await?;
        for (id, epoch, seq, state, base_seq, base_state) in rows {
            known.held.insert(parsed("host id", &id)?, read_held((epoch, seq, state, base_seq, base_state))?);
        }
        let ids: Vec<(String,)> = of_hosts("SELECT DISTINCT host FROM unit WHERE host IN ", piece, db).await?;
        for (id,) in ids {
            known.with_units.insert(parsed("host id", &id)?);
        }
    }
    Ok(known)
}

/// Returns those hosts that are members.
pub async fn members(db: &mut SqliteConnection, hosts: &[HostId]) -> StoreResult<HashSet<HostId>> {
    let mut members = HashSet::with_capacity(hosts.len());
    for piece in pieces(hosts) {
        // Nearly always all of them; returning each would take twice as long.
        let count: Vec<(u32,)> =
            of_hosts(concat!("SELECT count(*) FROM host WHERE ", is_member!(), " AND id IN "), piece, db).await?;
        if matches!(count[..], [(count,)] if count as usize == piece.len()) {
            members.extend(piece);
            continue;
        }
        let ids: Vec<(String,)> =
            of_hosts(concat!("SELECT id FROM host WHERE ", is_member!(), " AND id IN "), piece, db).await?;
        for (id,) in ids {
            members.insert(parsed("host id", &id)?);
        }
    }
    Ok(members)
}

/// Returns all rows of a statement that ends with `IN`, for these hosts.
async fn of_hosts<R>(select: &'static str, hosts: &[HostId], db: &mut SqliteConnection) -> StoreResult<Vec<R>>
where
    R: for<'r> FromRow<'r, SqliteRow> + Send + Unpin,
{
    let mut query = sqlx::query_as(AssertSqlSafe(format!("{select}{}", parameters(1, hosts.len()))));
    for host in hosts {
        query = query.bind(host.to_string());
    }
    Ok(query.fetch_all(db).await?)
}

#[derive(FromRow)]
struct HostUnitRow {
    host: String,
    hostname: String,
    report: String,
    at_ms: i64,
}

impl HostUnitRow {
    fn unit(self) -> StoreResult<muster_api::Unit> {
        let report: UnitReport = json("unit", &self.report)?;
        Ok(muster_api::Unit {
            host: parsed("host id", &self.host)?,
            hostname: self.hostname,
            unit: report.unit,
            desired: report.desired,
            observed: report.observed,
            hold: report.hold,
            pins: report.pins,
            stats: report.stats,
            at_ms: self.at_ms,
        })
    }
}

/// Returns units of one host or of all, or one unit; sorted by hostname and name.
pub async fn units(
    db: &SqlitePool,
    host: Option<HostId>,
    unit: Option<&UnitName>,
) -> StoreResult<Vec<muster_api::Unit>> {
    // An optional condition would prevent the use of an index.
    let sql = format!(
        "SELECT unit.host, host.hostname, unit.report, unit.at_ms
         FROM unit JOIN host ON host.id = unit.host WHERE {} AND {}
         ORDER BY host.hostname, unit.host, unit.unit",
        host.map_or("$1 IS NULL", |_| "unit.host = $1"),
        unit.map_or("$2 IS NULL", |_| "unit.unit = $2"),
    );
    let rows: Vec<HostUnitRow> = sqlx::query_as(AssertSqlSafe(sql))
        .bind(host.map(|id| id.to_string()))
        .bind(unit.map(UnitName::as_str))
        .fetch_all(db)
        .await?;
    rows.into_iter().map(HostUnitRow::unit).collect()
}

/// Returns the first units that need attention
/// ([`UnitSummary::is_troubled`](muster_topics::heartbeat::UnitSummary::is_troubled)), and their number.
pub async fn troubled_units(db: &SqlitePool, limit: u32) -> StoreResult<(Vec<muster_api::Unit>, u64)> {
    let (count,): (i64,) = sqlx::query_as("SELECT count(*) FROM unit WHERE troubled").fetch_one(db).await?;
    let rows: Vec<HostUnitRow> = sqlx::query_as(
        "SELECT unit.host, host.hostname, unit.report, unit.at_ms
         FROM unit JOIN host ON host.id = unit.host
         WHERE unit.troubled ORDER BY host.hostname, unit.host, unit.unit LIMIT $1",
    )
    .bind(i64::from(limit))
    .fetch_all(db)
    .await?;
    Ok((rows.into_iter().map(HostUnitRow::unit).collect::<StoreResult<_>>()?, unsigned("count", count)?))
}

/// Stores a unit's report, unless a later one is stored. Returns whether it did.
pub async fn set_unit(db: &mut SqliteConnection, host: HostId, report: &UnitReport, now: Millis) -> StoreResult<bool> {
    let stored = sqlx::query(
        "INSERT INTO unit (host, unit, epoch, seq, made_ms, report, at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (host, unit) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq,
             made_ms = excluded.made_ms, report = excluded.report, at_ms = excluded.at_ms
         WHERE unit.epoch < excluded.epoch OR (unit.epoch = excluded.epoch AND unit.seq < excluded.seq)",
    )
    .bind(host.to_string())
    .bind(report.unit.as_str())
    .bind(signed(report.epoch))
    .bind(signed(report.seq))
    .bind(report.at_ms)
    .bind(to_json("unit", report)?)
    .bind(now)
    .execute(db)
    .await?;
    Ok(stored.rows_affected() > 0)
}

/// Removes a unit. Returns whether it existed.
pub async fn remove_unit(db: &mut SqliteConnection, host: HostId, unit: &UnitName) -> StoreResult<bool> {
    let gone = sqlx::query("DELETE FROM unit WHERE host = $1 AND unit = $2")
        .bind(host.to_string())
        .bind(unit.as_str())
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
    let rows: Vec<(String, i64, i64)> = sqlx::query_as("SELECT unit, epoch, seq FROM unit WHERE host = $1")
        .bind(host.to_string())
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
    let rows: Vec<(String,)> =
        sqlx::query_as("SELECT unit FROM unit WHERE host = $1 AND (epoch < $2 OR (epoch = $2 AND made_ms < $3))")
            .bind(host.to_string())
            .bind(signed(epoch))
            .bind(made_ms)
            .fetch_all(db)
            .await?;
    rows.iter().map(|(unit,)| parsed("unit", unit)).collect()
}
