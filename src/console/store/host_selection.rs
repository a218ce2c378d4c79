//! Finds the hosts that a select expression matches, by what the store holds of hosts and their units.

use std::collections::{BTreeMap, HashMap};

use futures_util::TryStreamExt;
use muster_topics::{heartbeat::HostState, label::merge, name::HostId, select, unit::UnitReport};
use sqlx::SqlitePool;

use super::{
    columns::{json, parsed},
    error::StoreResult,
    host::with_is_member,
    label,
};

/// Which hosts are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPick {
    /// Members, which are given commands.
    Members,
    /// Revoked ones, too.
    All,
}

/// Returns ids and names of the hosts that `picks` accepts, by their last reports; for a host without a report its
/// name, facts and operators' labels are known. Units are read only on request.
pub async fn hosts(
    db: &SqlitePool,
    among: HostPick,
    with_units: bool,
    picks: &(dyn Fn(&select::Host<'_>) -> bool + Sync),
) -> StoreResult<Vec<(HostId, String)>> {
    let units = if with_units { reports(db).await? } else { HashMap::new() };
    let mut rows = with_is_member!(
        query,
        r#"SELECT host.id, host.hostname, host.facts, heartbeat.state AS "state?"
           FROM host LEFT JOIN heartbeat ON heartbeat.host = host.id WHERE $1 OR "#,
        " ORDER BY host.id",
        among == HostPick::All
    )
    .fetch(db);
    let given = label::given(db, None).await?;
    let no_labels = BTreeMap::new();
    let mut found = Vec::new();
    // Row by row: the states of ten thousand hosts are some 20 MB of text.
    while let Some(row) = rows.try_next().await? {
        let (id, hostname): (HostId, String) = (parsed("host id", &row.id)?, row.hostname);
        let reports: &[UnitReport] = units.get(&id).map_or(&[], Vec::as_slice);
        let unit = |report| looked_at(id, &hostname, report);
        let units: Vec<select::Unit<'_>> = reports.iter().map(unit).collect();
        // Operators' labels count as soon as they are set, confirmed or not.
        let labels = |own: &BTreeMap<_, _>| merge(own, &given.get(&id).map(label::values).unwrap_or_default());
        let is_picked = match row.state.map(|state| json::<HostState>("state", &state)).transpose()? {
            Some(state) => picks(&select::Host {
                hostname: &hostname,
                labels: &labels(state.own_labels()),
                ..select::Host::of(id, &state, &units)
            }),
            None => picks(&select::Host {
                host: id,
                hostname: &hostname,
                agent_version: "",
                facts: Some(&json("facts", &row.facts)?),
                labels: &labels(&no_labels),
                realms: &[],
                units: &units,
            }),
        };
        if is_picked {
            found.push((id, hostname));
        }
    }
    Ok(found)
}

fn looked_at<'a>(host: HostId, hostname: &'a str, report: &'a UnitReport) -> select::Unit<'a> {
    let UnitReport { unit, desired, observed, .. } = report;
    select::Unit {
        host,
        hostname,
        name: unit,
        spec: &desired.spec,
        phase: observed.phase(),
        content: observed.content.as_ref(),
    }
}

/// Returns the report of every unit, by host.
async fn reports(db: &SqlitePool) -> StoreResult<HashMap<HostId, Vec<UnitReport>>> {
    let mut rows =
        sqlx::query!("SELECT host, report FROM unit ORDER BY host").map(|row| (row.host, row.report)).fetch(db);
    let mut reports: HashMap<HostId, Vec<UnitReport>> = HashMap::new();
    while let Some((host, report)) = rows.try_next().await? {
        reports.entry(parsed("host id", &host)?).or_default().push(json("unit", &report)?);
    }
    Ok(reports)
}
