//! Labels that operators have given hosts.

use std::collections::{BTreeMap, HashMap};

use muster_topics::{
    Millis,
    canonical::{INTEGER_MAX, signable},
    name::{HostId, LabelValue, Name},
};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    alert::Generations,
    columns::{parsed, signed, to_json, unsigned},
    error::StoreResult,
};

/// A label that an operator has given a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLabelRow {
    /// Its value.
    pub value: LabelValue,
    /// The operator.
    pub operator: Name,
    /// When it was set.
    pub set_ms: Millis,
}

/// The labels of one host that operators have given it.
pub type OperatorLabels = BTreeMap<Name, HostLabelRow>;

/// Returns the values alone, as they are sent to hosts.
#[must_use]
pub fn values(given: &OperatorLabels) -> BTreeMap<Name, LabelValue> {
    given.iter().map(|(name, given)| (name.clone(), given.value.clone())).collect()
}

struct LabelRow {
    host: String,
    name: String,
    value: String,
    operator: String,
    set_ms: i64,
}

/// Selects [`LabelRow`]s; a condition follows.
macro_rules! select_labels {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            LabelRow,
            "SELECT host, name, value, operator, set_ms FROM host_label" + $condition
            $(, $argument)*
        )
    };
}

/// Returns the labels of hosts that have any: of `only`, or of all.
pub async fn given(db: &SqlitePool, only: Option<&[HostId]>) -> StoreResult<HashMap<HostId, OperatorLabels>> {
    let rows = match only {
        None => select_labels!("").fetch_all(db).await?,
        Some(hosts) => {
            let hosts = to_json("hosts", &hosts)?;
            select_labels!(" WHERE host IN (SELECT value FROM json_each($1))", hosts).fetch_all(db).await?
        }
    };
    let mut given: HashMap<HostId, OperatorLabels> = HashMap::new();
    for LabelRow { host, name, value, operator, set_ms } in rows {
        let label =
            HostLabelRow { value: parsed("label's value", &value)?, operator: parsed("operator", &operator)?, set_ms };
        given.entry(parsed("host id", &host)?).or_default().insert(parsed("label", &name)?, label);
    }
    Ok(given)
}

/// Sets a host's label, replacing one of the same name.
pub async fn set(db: &mut SqliteConnection, host: HostId, name: &Name, given: &HostLabelRow) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO host_label (host, name, value, operator, set_ms) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (host, name) DO UPDATE SET value = excluded.value, operator = excluded.operator,
             set_ms = excluded.set_ms",
        host.to_string(),
        name.as_str(),
        given.value.as_str(),
        given.operator.as_str(),
        given.set_ms
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes a label.
pub async fn remove(db: &mut SqliteConnection, host: HostId, name: &Name) -> StoreResult<()> {
    sqlx::query!("DELETE FROM host_label WHERE host = $1 AND name = $2", host.to_string(), name.as_str())
        .execute(db)
        .await?;
    Ok(())
}

/// Returns which generation each host should have, for hosts that were ever sent any.
pub async fn generations(db: &SqlitePool) -> StoreResult<Generations> {
    let rows = sqlx::query!("SELECT host, generation FROM host_label_generation")
        .map(|row| (row.host, row.generation))
        .fetch_all(db)
        .await?;
    let part = |(host, generation): (String, i64)| Ok((parsed("host id", &host)?, unsigned("generation", generation)?));
    Ok(Generations { all: 0, hosts: rows.into_iter().map(part).collect::<StoreResult<_>>()? })
}

/// Replaces the labels of a host.
pub async fn replace(db: &mut SqliteConnection, host: HostId, labels: &OperatorLabels) -> StoreResult<()> {
    sqlx::query!("DELETE FROM host_label WHERE host = $1", host.to_string()).execute(&mut *db).await?;
    for (name, given) in labels {
        set(db, host, name, given).await?;
    }
    Ok(())
}

/// Returns which generation each host reported last, for hosts that have labels of a console.
pub async fn heard(db: &SqlitePool) -> StoreResult<HashMap<HostId, u64>> {
    let rows = sqlx::query!(
        r#"SELECT host, json_extract(state, '$.numbers.host_labels') AS "generation!: i64" FROM heartbeat
           WHERE typeof(json_extract(state, '$.numbers.host_labels')) = 'integer'"#
    )
    .map(|row| (row.host, row.generation))
    .fetch_all(db)
    .await?;
    let has = |(host, has): (String, i64)| Ok((parsed("host id", &host)?, unsigned("generation", has)?));
    rows.into_iter().map(has).collect()
}

/// Advances the generation of a host's labels to `least` or more, and returns it. It is at least the current time, so
/// that a recreated store has newer generations than a lost one.
pub async fn next_generation(db: &mut SqliteConnection, host: HostId, least: u64, now: Millis) -> StoreResult<u64> {
    let least = signable(least.max(u64::try_from(now).unwrap_or_default()));
    let generation = sqlx::query_scalar!(
        "INSERT INTO host_label_generation (host, generation) VALUES ($1, $2)
         ON CONFLICT (host) DO UPDATE SET generation = 1 + min(max(generation, excluded.generation - 1), $3)
         RETURNING generation",
        host.to_string(),
        signed(least),
        // A host may claim the largest generation.
        INTEGER_MAX - 1
    )
    .fetch_one(db)
    .await?;
    unsigned("generation", generation)
}
