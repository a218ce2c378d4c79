//! Alerts that hosts report, the rules for hosts, and silences.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_api::AlertSilence;
use muster_topics::{
    Millis,
    alert::{ALERTS_MAX, Alert, AlertState, AlertSummary, Rule, Severity},
    canonical::signable,
    name::{HostId, Name},
};
use sqlx::{AssertSqlSafe, FromRow, SqliteConnection, SqlitePool};

use super::{
    columns::{from_word, json, parsed, signed, to_json, unsigned},
    error::StoreResult,
};

/// The most cleared alerts of one host that are kept; beyond it the oldest are removed. One that flaps every ten
/// minutes keeps its last week.
const OVER_MAX: i64 = 1_000;

/// The epoch of the console's own alerts: later than any agent's, so that no agent ends them.
const OWN_EPOCH: u64 = i64::MAX.unsigned_abs();

/// The scope of rules for all hosts.
const ALL: &str = "";

/// The effect of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEffect {
    /// It is new.
    New,
    /// It is known.
    Known,
    /// The host has reached its limit of alerts.
    TooMany,
}

/// Stores a host's report of an alert.
pub async fn put(db: &mut SqliteConnection, host: HostId, alert: &Alert, now: Millis) -> StoreResult<MessageEffect> {
    let id = host.to_string();
    let held = sqlx::query!(
        "SELECT state, epoch, seq FROM alert WHERE host = $1 AND id = $2 AND since_ms = $3",
        &id,
        alert.id.as_str(),
        alert.since_ms
    )
    .map(|row| (row.state, row.epoch, row.seq))
    .fetch_optional(&mut *db)
    .await?;
    let is_over = alert.state == AlertState::Cleared;
    if let Some((state, epoch, seq)) = &held {
        let newer = (signed(alert.epoch), signed(alert.seq)) > (*epoch, *seq);
        // A cleared alert stays cleared, whatever arrives late.
        if state == "cleared" || (!is_over && !newer) {
            return Ok(MessageEffect::Known);
        }
    }
    if !is_over && held.is_none() {
        // One alert of an id is active at a time: the end of an earlier one was never reported.
        sqlx::query!(
            "UPDATE alert SET state = 'gone', ended_ms = $3
             WHERE host = $1 AND id = $2 AND state = 'raised' AND (epoch, seq) < ($4, $5)",
            &id,
            alert.id.as_str(),
            alert.since_ms,
            signed(alert.epoch),
            signed(alert.seq)
        )
        .execute(&mut *db)
        .await?;
        let raised = sqlx::query_scalar!("SELECT count(*) FROM alert WHERE host = $1 AND state = 'raised'", &id)
            .fetch_one(&mut *db)
            .await?;
        // What a host reports leaves room for what the console says of it.
        if unsigned("count", raised)? >= ALERTS_MAX as u64 && alert.epoch != OWN_EPOCH {
            return Ok(MessageEffect::TooMany);
        }
    }
    sqlx::query!(
        "INSERT INTO alert (host, id, since_ms, state, rule, epoch, seq, at_ms, ended_ms, body, received_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
         ON CONFLICT (host, id, since_ms) DO UPDATE SET state = excluded.state, rule = excluded.rule,
             epoch = excluded.epoch, seq = excluded.seq, at_ms = excluded.at_ms, ended_ms = excluded.ended_ms,
             body = excluded.body",
        &id,
        alert.id.as_str(),
        alert.since_ms,
        if is_over { "cleared" } else { "raised" },
        alert.rule.as_str(),
        signed(alert.epoch),
        signed(alert.seq),
        alert.at_ms,
        is_over.then_some(alert.at_ms),
        to_json("alert", alert)?,
        now
    )
    .execute(&mut *db)
    .await?;
    if held.is_none() {
        trim(db, &id).await?;
    }
    Ok(MessageEffect::New)
}

/// The host id of the console's own alerts: no host has it.
pub const CONSOLE: HostId = HostId(uuid::Uuid::nil());

/// Raises an alert of the console's own, about a host or itself: heartbeats do not end it. While one of the same rule
/// is active, its time is updated.
pub async fn put_own(
    db: &mut SqliteConnection,
    host: HostId,
    mut alert: Alert,
    now: Millis,
) -> StoreResult<MessageEffect> {
    let since = sqlx::query_scalar!(
        "SELECT since_ms FROM alert WHERE host = $1 AND id = $2 AND state = 'raised' AND epoch = $3",
        host.to_string(),
        alert.id.as_str(),
        signed(OWN_EPOCH)
    )
    .fetch_optional(&mut *db)
    .await?;
    alert.epoch = OWN_EPOCH;
    alert.since_ms = since.unwrap_or(now);
    put(db, host, &alert, now).await
}

/// Returns the console's own alerts about a host, or itself, that are active.
pub async fn raised_own(db: &SqlitePool, host: HostId) -> StoreResult<Vec<Alert>> {
    let rows = sqlx::query_scalar!(
        "SELECT body FROM alert WHERE host = $1 AND state = 'raised' AND epoch = $2",
        host.to_string(),
        signed(OWN_EPOCH)
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|body| json("alert", body)).collect()
}

/// Ends an alert of the console's own.
pub async fn clear_own(db: &mut SqliteConnection, host: HostId, id: &Name, now: Millis) -> StoreResult<()> {
    sqlx::query!(
        "UPDATE alert SET state = 'cleared', ended_ms = $3
         WHERE host = $1 AND id = $2 AND state = 'raised' AND epoch = $4",
        host.to_string(),
        id.as_str(),
        now,
        signed(OWN_EPOCH)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends the console's own alerts that were last updated before then.
pub async fn end_own(db: &SqlitePool, before: Millis, now: Millis) -> StoreResult<u64> {
    let ended = sqlx::query!(
        "UPDATE alert SET state = 'cleared', ended_ms = $2 WHERE state = 'raised' AND epoch = $3 AND at_ms < $1",
        before,
        now,
        signed(OWN_EPOCH)
    )
    .execute(db)
    .await?;
    Ok(ended.rows_affected())
}

/// Removes the oldest cleared alerts of a host beyond the limit.
async fn trim(db: &mut SqliteConnection, host: &str) -> StoreResult<()> {
    sqlx::query!(
        "DELETE FROM alert WHERE host = $1 AND state <> 'raised' AND since_ms < (
             SELECT since_ms FROM alert WHERE host = $1 AND state <> 'raised'
             ORDER BY since_ms DESC LIMIT 1 OFFSET $2
         )",
        host,
        OVER_MAX - 1
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns hosts with active alerts.
pub async fn alerted(db: &mut SqliteConnection) -> StoreResult<BTreeSet<HostId>> {
    let rows = sqlx::query_scalar!("SELECT DISTINCT host FROM alert WHERE state = 'raised'").fetch_all(db).await?;
    rows.iter().map(|id| parsed("host id", id)).collect()
}

/// Applies the list of active alerts of a heartbeat, made at `made_ms` by the host's clock. Earlier alerts that it does
/// not list are over; listed ones are active again. Returns whether anything changed.
pub async fn reconcile(
    db: &mut SqliteConnection,
    host: HostId,
    (epoch, made_ms): (u64, Millis),
    holding: &BTreeMap<Name, AlertSummary>,
) -> StoreResult<bool> {
    let id = host.to_string();
    let raised = sqlx::query!(
        "SELECT id, since_ms FROM alert
         WHERE host = $1 AND state = 'raised' AND (epoch < $2 OR (epoch = $2 AND at_ms <= $3))",
        &id,
        signed(epoch),
        made_ms
    )
    .map(|row| (row.id, row.since_ms))
    .fetch_all(&mut *db)
    .await?;
    let mut changed = 0;
    let holds = |alert: &str, since_ms: Millis| {
        holding.iter().any(|(held, summary)| held.as_str() == alert && summary.since_ms == since_ms)
    };
    for (alert, since_ms) in raised.iter().filter(|(alert, since_ms)| !holds(alert, *since_ms)) {
        changed += sqlx::query!(
            "UPDATE alert SET state = 'gone', ended_ms = $4 WHERE host = $1 AND id = $2 AND since_ms = $3",
            &id,
            alert,
            since_ms,
            made_ms
        )
        .execute(&mut *db)
        .await?
        .rows_affected();
    }
    for (alert, summary) in holding {
        changed += sqlx::query!(
            "UPDATE alert SET state = 'raised', ended_ms = NULL
             WHERE host = $1 AND id = $2 AND since_ms = $3 AND state = 'gone'",
            &id,
            alert.as_str(),
            summary.since_ms
        )
        .execute(&mut *db)
        .await?
        .rows_affected();
    }
    Ok(changed > 0)
}

/// Ends the active alerts of a host: its new instance reports them again if they persist.
pub async fn forget(db: &mut SqliteConnection, host: HostId, now: Millis) -> StoreResult<()> {
    sqlx::query!(
        "UPDATE alert SET state = 'gone', ended_ms = $2 WHERE host = $1 AND state = 'raised'",
        host.to_string(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A filter of alerts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Which<'a> {
    /// All that are kept, rather than only active ones.
    pub history: bool,
    /// Of this host.
    pub host: Option<HostId>,
    /// Of one of these hosts.
    pub hosts: Option<&'a [HostId]>,
    /// Of this rule.
    pub rule: Option<&'a Name>,
    /// The order.
    pub sort: muster_api::AlertSort,
    /// The most alerts.
    pub limit: u32,
}

#[derive(FromRow)]
struct AlertRow {
    host: String,
    hostname: String,
    state: String,
    ended_ms: Option<i64>,
    body: String,
    received_ms: i64,
}

/// Returns alerts in the requested order.
pub async fn list(db: &SqlitePool, which: Which<'_>, now: Millis) -> StoreResult<Vec<muster_api::Alert>> {
    // An optional condition would prevent the use of an index: there are a thousand times as many kept as active
    // ones.
    let (which_of_them, state) = match which.history {
        true => ("", "TRUE"),
        false => ("INDEXED BY alert_raised", "alert.state = 'raised'"),
    };
    let host = which.host.map_or("$1 IS NULL", |_| "alert.host = $1");
    let rule = which.rule.map_or("$2 IS NULL", |_| "alert.rule = $2");
    let hosts = which.hosts.map_or("$4 IS NULL", |_| "alert.host IN (SELECT value FROM json_each($4))");
    let order = match which.sort {
        muster_api::AlertSort::Since => "",
        muster_api::AlertSort::Severity => {
            "CASE json_extract(alert.body, '$.severity') WHEN 'critical' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END,"
        }
        muster_api::AlertSort::Host => "hostname,",
    };
    let sql = format!(
        "SELECT alert.host, COALESCE(host.hostname, 'console') AS hostname, alert.state, alert.ended_ms, alert.body, alert.received_ms
         FROM alert {which_of_them} LEFT JOIN host ON host.id = alert.host
         WHERE {state} AND {host} AND {rule} AND {hosts}
         ORDER BY {order} alert.since_ms DESC, alert.host, alert.id LIMIT $3"
    );
    // Unchecked: which alerts, three conditions and three orders make 48 texts, all of them of the words above.
    let rows: Vec<AlertRow> = sqlx::query_as(AssertSqlSafe(sql))
        .bind(which.host.map(|host| host.to_string()))
        .bind(which.rule.map(Name::as_str))
        .bind(i64::from(which.limit))
        .bind(which.hosts.map(|hosts| to_json("hosts", &hosts)).transpose()?)
        .fetch_all(db)
        .await?;
    read(db, rows, now).await
}

async fn read(db: &SqlitePool, rows: Vec<AlertRow>, now: Millis) -> StoreResult<Vec<muster_api::Alert>> {
    let silences = silences(db, now).await?;
    let read = |row: AlertRow| {
        let (host, alert): (HostId, Alert) = (parsed("host id", &row.host)?, json("alert", &row.body)?);
        let standing: muster_api::AlertStanding = from_word("alert's state", &row.state)?;
        let silence = silences.iter().find(|silence| silence.covers(host, &alert.rule)).cloned();
        Ok(muster_api::Alert {
            host,
            hostname: row.hostname,
            silence: silence.filter(|_| standing == muster_api::AlertStanding::Raised),
            standing,
            ended_ms: row.ended_ms,
            received_ms: row.received_ms,
            alert,
        })
    };
    rows.into_iter().map(read).collect()
}

/// An occurrence of an alert: host, id, and since when.
pub type OccurrenceKey = (HostId, Name, Millis);

/// An alert with its duration.
#[derive(Clone, Debug)]
pub struct PastAlert {
    /// Its host's name.
    pub hostname: String,
    /// When it ended, if it has.
    pub ended_ms: Option<Millis>,
    /// When it was first received.
    pub received_ms: Millis,
    /// Its content.
    pub alert: Alert,
}

struct PastAlertRow {
    host: String,
    hostname: String,
    ended_ms: Option<i64>,
    received_ms: i64,
    body: String,
}

impl PastAlertRow {
    fn stood(self) -> StoreResult<(OccurrenceKey, PastAlert)> {
        let (host, alert): (HostId, Alert) = (parsed("host id", &self.host)?, json("alert", &self.body)?);
        let Self { hostname, ended_ms, received_ms, .. } = self;
        Ok(((host, alert.id.clone(), alert.since_ms), PastAlert { hostname, ended_ms, received_ms, alert }))
    }
}

/// Returns active alerts up to the limit, latest beginning first.
pub async fn standing(db: &SqlitePool, limit: u32) -> StoreResult<BTreeMap<OccurrenceKey, PastAlert>> {
    let rows = sqlx::query_as!(
        PastAlertRow,
        r#"SELECT alert.host, COALESCE(host.hostname, 'console') AS "hostname!: String", alert.ended_ms,
                  alert.received_ms, alert.body
           FROM alert LEFT JOIN host ON host.id = alert.host
           WHERE alert.state = 'raised' ORDER BY alert.since_ms DESC LIMIT $1"#,
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(PastAlertRow::stood).collect()
}

/// Returns alerts of a host that were first received since then, active or not.
pub async fn heard_of(
    db: &SqlitePool,
    host: HostId,
    since_ms: Millis,
) -> StoreResult<BTreeMap<OccurrenceKey, PastAlert>> {
    let rows = sqlx::query_as!(
        PastAlertRow,
        r#"SELECT alert.host, COALESCE(host.hostname, 'console') AS "hostname!: String", alert.ended_ms,
                  alert.received_ms, alert.body
           FROM alert LEFT JOIN host ON host.id = alert.host
           WHERE alert.host = $1 AND alert.received_ms >= $2"#,
        host.to_string(),
        since_ms
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(PastAlertRow::stood).collect()
}

/// Returns when an alert ended; `None` if it has not, or is not kept any more.
pub async fn ended(db: &SqlitePool, (host, id, since_ms): &OccurrenceKey) -> StoreResult<Option<Millis>> {
    let found = sqlx::query_scalar!(
        "SELECT ended_ms FROM alert WHERE host = $1 AND id = $2 AND since_ms = $3",
        host.to_string(),
        id.as_str(),
        since_ms
    )
    .fetch_optional(db)
    .await?;
    Ok(found.flatten())
}

/// Returns active, unsilenced alerts that an outlet was not sent; oldest first.
pub async fn untold(db: &SqlitePool, outlet: &str, now: Millis, limit: u32) -> StoreResult<Vec<muster_api::Alert>> {
    let rows = sqlx::query_as!(
        AlertRow,
        r#"SELECT alert.host, COALESCE(host.hostname, 'console') AS "hostname!: String", alert.state,
                  alert.ended_ms, alert.body, alert.received_ms
           FROM alert LEFT JOIN host ON host.id = alert.host
           WHERE alert.state = 'raised'
             AND NOT EXISTS (
               SELECT 1 FROM alert_told AS told WHERE told.outlet = $1 AND told.host = alert.host
                 AND told.id = alert.id AND told.since_ms = alert.since_ms)
             AND NOT EXISTS (
               SELECT 1 FROM alert_silence AS silence
               WHERE silence.until_ms > $2 AND (silence.host IS NULL OR silence.host = alert.host)
                 AND (silence.rule IS NULL OR silence.rule = alert.rule))
           ORDER BY alert.since_ms, alert.host, alert.id LIMIT $3"#,
        outlet,
        now,
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    read(db, rows, now).await
}

/// Returns alerts that an outlet was sent and that are over (or silenced, if those count as well); oldest first.
pub async fn told_and_over(
    db: &SqlitePool,
    outlet: &str,
    with_silenced: bool,
    now: Millis,
    limit: u32,
) -> StoreResult<Vec<muster_api::Alert>> {
    let rows = sqlx::query_as!(
        AlertRow,
        r#"SELECT alert.host, COALESCE(host.hostname, 'console') AS "hostname!: String", alert.state,
                  alert.ended_ms, alert.body, alert.received_ms
           FROM alert_told AS told
           JOIN alert ON alert.host = told.host AND alert.id = told.id AND alert.since_ms = told.since_ms
           LEFT JOIN host ON host.id = alert.host
           WHERE told.outlet = $1 AND (alert.state <> 'raised' OR ($2 AND EXISTS (
               SELECT 1 FROM alert_silence AS silence
               WHERE silence.until_ms > $3 AND (silence.host IS NULL OR silence.host = alert.host)
                 AND (silence.rule IS NULL OR silence.rule = alert.rule))))
           ORDER BY alert.since_ms, alert.host, alert.id LIMIT $4"#,
        outlet,
        with_silenced,
        now,
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    read(db, rows, now).await
}

/// Records that an outlet was sent an alert, or its end.
pub async fn note_told(db: &SqlitePool, outlet: &str, one: &muster_api::Alert, holds: bool) -> StoreResult<()> {
    let (host, id, since_ms) = (one.host.to_string(), one.alert.id.as_str(), one.alert.since_ms);
    let change = if holds {
        sqlx::query!(
            "INSERT INTO alert_told (outlet, host, id, since_ms)
             SELECT $1, host, id, since_ms FROM alert WHERE host = $2 AND id = $3 AND since_ms = $4
             ON CONFLICT DO NOTHING",
            outlet,
            host,
            id,
            since_ms
        )
    } else {
        sqlx::query!(
            "DELETE FROM alert_told WHERE outlet = $1 AND host = $2 AND id = $3 AND since_ms = $4",
            outlet,
            host,
            id,
            since_ms
        )
    };
    change.execute(db).await?;
    Ok(())
}

/// Counts active, unsilenced alerts, of one host or of all.
pub async fn count(db: &SqlitePool, host: Option<HostId>, now: Millis) -> StoreResult<u64> {
    let count = sqlx::query_scalar!(
        "SELECT count(*) FROM alert
         WHERE state = 'raised' AND ($1 IS NULL OR host = $1) AND NOT EXISTS (
             SELECT 1 FROM alert_silence AS silence
             WHERE silence.until_ms > $2 AND (silence.host IS NULL OR silence.host = alert.host)
               AND (silence.rule IS NULL OR silence.rule = alert.rule))",
        host.map(|host| host.to_string()),
        now
    )
    .fetch_one(db)
    .await?;
    unsigned("count", count)
}

/// Counts active, unsilenced alerts by severity.
pub async fn severities(db: &SqlitePool, now: Millis) -> StoreResult<Vec<(Severity, u64)>> {
    let rows = sqlx::query!(
        r#"SELECT json_extract(body, '$.severity') AS "severity!: String", count(*) AS "count!: i64"
           FROM alert INDEXED BY alert_raised
           WHERE state = 'raised' AND NOT EXISTS (
               SELECT 1 FROM alert_silence AS silence
               WHERE silence.until_ms > $1 AND (silence.host IS NULL OR silence.host = alert.host)
                 AND (silence.rule IS NULL OR silence.rule = alert.rule))
           GROUP BY 1"#,
        now
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| Ok((from_word("alert's severity", &row.severity)?, unsigned("count", row.count)?)))
        .collect()
}

/// Removes alerts that ended before `before`.
pub async fn sweep(db: &SqlitePool, before: Millis) -> StoreResult<u64> {
    let alerts = sqlx::query!("DELETE FROM alert WHERE ended_ms < $1", before).execute(db).await?;
    let silences = sqlx::query!("DELETE FROM alert_silence WHERE until_ms < $1", before).execute(db).await?;
    Ok(alerts.rows_affected() + silences.rows_affected())
}

fn scope(host: Option<HostId>) -> String {
    host.map_or_else(|| ALL.to_owned(), |host| host.to_string())
}

/// Returns all rules of the console, those for all hosts first.
pub async fn rules(db: impl sqlx::SqliteExecutor<'_>) -> StoreResult<Vec<muster_api::AlertRule>> {
    let rows = sqlx::query!("SELECT host, name, rule FROM alert_rule ORDER BY host, name")
        .map(|row| (row.host, row.name, row.rule))
        .fetch_all(db)
        .await?;
    let read = |(host, name, rule): (String, String, String)| {
        let host = if host == ALL { None } else { Some(parsed("host id", &host)?) };
        Ok(muster_api::AlertRule { name: parsed("name", &name)?, host, rule: json("rule", &rule)? })
    };
    rows.into_iter().map(read).collect()
}

/// Returns the rules for one host: those for all, replaced by its own of the same name.
pub async fn rules_for(db: &SqlitePool, host: HostId) -> StoreResult<BTreeMap<Name, Rule>> {
    let rows =
        sqlx::query!("SELECT name, rule FROM alert_rule WHERE host IN ('', $1) ORDER BY host, name", host.to_string())
            .map(|row| (row.name, row.rule))
            .fetch_all(db)
            .await?;
    rows.into_iter().map(|(name, rule)| Ok((parsed("name", &name)?, json::<Rule>("rule", &rule)?))).collect()
}

/// Sets a rule, for one host or for all.
pub async fn set_rule(db: &mut SqliteConnection, host: Option<HostId>, name: &Name, rule: &Rule) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO alert_rule (host, name, rule) VALUES ($1, $2, $3)
         ON CONFLICT (host, name) DO UPDATE SET rule = excluded.rule",
        scope(host),
        name.as_str(),
        to_json("rule", rule)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes a rule. Returns whether there was one.
pub async fn remove_rule(db: &mut SqliteConnection, host: Option<HostId>, name: &Name) -> StoreResult<bool> {
    let gone = sqlx::query!("DELETE FROM alert_rule WHERE host = $1 AND name = $2", scope(host), name.as_str())
        .execute(db)
        .await?;
    Ok(gone.rows_affected() > 0)
}

/// Generations of what is sent to hosts: one part for all, and one for each host. A host's generation is the sum, so
/// that a change of either makes it newer, and no host can affect what is sent to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generations {
    /// The part of all hosts.
    pub all: u64,
    /// The parts of single hosts.
    pub hosts: HashMap<HostId, u64>,
}

impl Generations {
    /// Returns the generation that a host should have.
    #[must_use]
    pub fn of(&self, host: HostId) -> u64 {
        self.hosts.get(&host).copied().unwrap_or_default().saturating_add(self.all)
    }
}

/// Returns all generations.
pub async fn generations(db: impl sqlx::SqliteExecutor<'_>) -> StoreResult<Generations> {
    let rows = sqlx::query!("SELECT host, generation FROM alert_generation")
        .map(|row| (row.host, row.generation))
        .fetch_all(db)
        .await?;
    let mut generations = Generations::default();
    for (host, generation) in rows {
        let generation = unsigned("generation", generation)?;
        if host == ALL {
            generations.all = generation;
        } else {
            generations.hosts.insert(parsed("host id", &host)?, generation);
        }
    }
    Ok(generations)
}

/// Advances the generation of a host, or of all, so that a host's becomes `least` or more; returns the changed part. It
/// is at least the current time, so that a recreated store has newer generations than a lost one.
pub async fn next_generation(
    db: &mut SqliteConnection,
    host: Option<HostId>,
    least: u64,
    now: Millis,
) -> StoreResult<u64> {
    let before = generations(&mut *db).await?;
    let now = u64::try_from(now).unwrap_or_default();
    let part = match host {
        None => before.all.saturating_add(1).max(now),
        Some(host) => {
            let own = before.hosts.get(&host).copied().unwrap_or_default();
            let most = signable(u64::MAX).saturating_sub(before.all);
            own.saturating_add(1).max(now.max(least).saturating_sub(before.all)).min(most)
        }
    };
    let part = signed(part);
    sqlx::query!(
        "INSERT INTO alert_generation (host, generation) VALUES ($1, $2)
         ON CONFLICT (host) DO UPDATE SET generation = excluded.generation",
        scope(host),
        part
    )
    .execute(db)
    .await?;
    unsigned("generation", part)
}

/// Adds a silence.
pub async fn add_silence(db: &SqlitePool, silence: &AlertSilence) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO alert_silence (id, host, rule, reason, operator, created_ms, until_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        silence.id.as_str(),
        silence.host.map(|host| host.to_string()),
        silence.rule.as_ref().map(Name::as_str),
        &silence.reason,
        silence.operator.as_str(),
        silence.created_ms,
        silence.until_ms
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends a silence. Returns whether there was one.
pub async fn end_silence(db: &SqlitePool, id: &Name, now: Millis) -> StoreResult<bool> {
    let ended =
        sqlx::query!("UPDATE alert_silence SET until_ms = $2 WHERE id = $1 AND until_ms > $2", id.as_str(), now)
            .execute(db)
            .await?;
    Ok(ended.rows_affected() > 0)
}

/// Returns silences that are not over, by their end.
pub async fn silences(db: impl sqlx::SqliteExecutor<'_>, now: Millis) -> StoreResult<Vec<AlertSilence>> {
    type Row = (String, Option<String>, Option<String>, String, String, i64, i64);
    let rows = sqlx::query!(
        "SELECT id, host, rule, reason, operator, created_ms, until_ms FROM alert_silence
         WHERE until_ms > $1 ORDER BY until_ms, id",
        now
    )
    .map(|row| (row.id, row.host, row.rule, row.reason, row.operator, row.created_ms, row.until_ms))
    .fetch_all(db)
    .await?;
    let read = |(id, host, rule, reason, operator, created_ms, until_ms): Row| {
        Ok(AlertSilence {
            id: parsed("id", &id)?,
            host: host.map(|host| parsed("host id", &host)).transpose()?,
            rule: rule.map(|rule| parsed("name", &rule)).transpose()?,
            reason,
            operator: parsed("operator", &operator)?,
            created_ms,
            until_ms,
        })
    };
    rows.into_iter().map(read).collect()
}
