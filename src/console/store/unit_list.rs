//! Units of all hosts, page by page.
//!
//! Filters by deployment, version and phase are read from indexes, which have no reports. A selector may ask for anything, so that the
//! reports of all units are read for it, one at a time.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use muster_topics::{
    desired::DeploymentName,
    name::{HostId, UnitName},
    select::{Select, Unit},
    unit::{Content, Phase, Spec},
};
use serde::Deserialize;
use sqlx::SqlitePool;

use super::{
    columns::{from_word, json, parsed, signed, to_json, unsigned, word},
    error::StoreResult,
    host::HostUnitRow,
};

/// What units have to be.
#[derive(Clone, Debug, Default)]
pub struct UnitFilter {
    /// Of this deployment.
    pub deployment: Option<DeploymentName>,
    /// Of this version of a deployment.
    pub version: Option<u32>,
    /// In this phase.
    pub phase: Option<Phase>,
    /// Selected by this.
    pub select: Option<Select>,
}

/// A page of units.
#[derive(Clone, Debug, Default)]
pub struct UnitPage {
    /// The units of the page, by hostname and name.
    pub units: Vec<muster_api::Unit>,
    /// The number of units in each phase on all pages, whatever phase the filter asks for.
    pub phases: Vec<(Phase, u64)>,
}

impl UnitPage {
    /// Returns the number of units on all pages of a phase, or of all.
    #[must_use]
    pub fn found(&self, phase: Option<Phase>) -> u64 {
        self.phases.iter().filter(|(of, _)| phase.is_none_or(|phase| phase == *of)).map(|(_, count)| count).sum()
    }
}

/// Returns a page of the units that a filter lets through.
pub async fn page(db: &SqlitePool, filter: &UnitFilter, offset: u64, limit: u32) -> StoreResult<UnitPage> {
    match &filter.select {
        Some(select) => selected(db, filter, select, offset, limit).await,
        None => {
            let phases = phases(db, filter).await?;
            Ok(UnitPage { units: units(db, filter, offset, limit).await?, phases })
        }
    }
}

/// Counts units by phase.
pub async fn phases(db: &SqlitePool, filter: &UnitFilter) -> StoreResult<Vec<(Phase, u64)>> {
    let rows =
        match (&filter.deployment, filter.version) {
            (None, None) => {
                sqlx::query!(
                    r#"SELECT phase AS "phase!: String", count(*) AS "count!: i64" FROM unit INDEXED BY unit_by_phase
                   GROUP BY phase"#
                )
                .map(|row| (row.phase, row.count))
                .fetch_all(db)
                .await?
            }
            (deployment, version) => sqlx::query!(
                r#"SELECT phase AS "phase!: String", count(*) AS "count!: i64" FROM unit INDEXED BY unit_by_deployment
                   WHERE deployment IS NOT NULL AND ($1 IS NULL OR deployment = $1)
                     AND ($2 IS NULL OR deployment_version = $2)
                   GROUP BY phase"#,
                deployment.as_ref().map(DeploymentName::as_str),
                version.map(i64::from)
            )
            .map(|row| (row.phase, row.count))
            .fetch_all(db)
            .await?,
        };
    rows.into_iter().map(|(phase, count)| Ok((from_word("phase", &phase)?, unsigned("count", count)?))).collect()
}

/// Reads the units of a page: first their rows, so that no more reports are read than are shown.
macro_rules! page_of_units {
    ($db:expr, $from:literal, ($limit:expr, $offset:expr) $(, $argument:expr)*) => {
        sqlx::query_as!(
            HostUnitRow,
            "SELECT unit.host, host.hostname, unit.report, unit.at_ms FROM unit JOIN host ON host.id = unit.host
             WHERE unit.rowid IN (SELECT unit.rowid FROM "
                + $from
                + " ORDER BY host.hostname, host.id, unit.unit LIMIT $1 OFFSET $2)
             ORDER BY host.hostname, unit.host, unit.unit",
            $limit,
            $offset
            $(, $argument)*
        )
        .fetch_all($db)
        .await?
    };
}

async fn units(db: &SqlitePool, filter: &UnitFilter, offset: u64, limit: u32) -> StoreResult<Vec<muster_api::Unit>> {
    let page = (i64::from(limit), signed(offset));
    let phase = filter.phase.map(|phase| word("phase", &phase)).transpose()?;
    let rows = match (&filter.deployment, filter.version, phase) {
        (None, None, None) => {
            page_of_units!(db, "host CROSS JOIN unit ON unit.host = host.id", (page.0, page.1))
        }
        (None, None, Some(phase)) => page_of_units!(
            db,
            "unit INDEXED BY unit_by_phase JOIN host ON host.id = unit.host WHERE unit.phase = $3",
            (page.0, page.1),
            phase
        ),
        (deployment, version, phase) => page_of_units!(
            db,
            "unit INDEXED BY unit_by_deployment JOIN host ON host.id = unit.host
             WHERE unit.deployment IS NOT NULL AND ($3 IS NULL OR unit.deployment = $3)
               AND ($4 IS NULL OR unit.deployment_version = $4) AND ($5 IS NULL OR unit.phase = $5)",
            (page.0, page.1),
            deployment.as_ref().map(DeploymentName::as_str),
            version.map(i64::from),
            phase
        ),
    };
    rows.into_iter().map(HostUnitRow::unit).collect()
}

/// What selectors see of a report.
#[derive(Deserialize)]
struct SelectableReport {
    unit: UnitName,
    desired: SelectableDesired,
    observed: SelectableObserved,
}

#[derive(Deserialize)]
struct SelectableDesired {
    spec: Spec,
}

#[derive(Deserialize)]
struct SelectableObserved {
    phase: Phase,
    #[serde(default)]
    content: Option<Content>,
}

async fn selected(
    db: &SqlitePool,
    filter: &UnitFilter,
    select: &Select,
    offset: u64,
    limit: u32,
) -> StoreResult<UnitPage> {
    let hosts = sqlx::query!("SELECT id, hostname FROM host ORDER BY hostname, id").fetch_all(db).await?;
    let places: HashMap<&str, usize> = hosts.iter().enumerate().map(|(place, row)| (row.id.as_str(), place)).collect();
    let ids = hosts.iter().map(|row| parsed("host id", &row.id)).collect::<StoreResult<Vec<HostId>>>()?;
    let mut rows = sqlx::query!(
        r#"SELECT rowid AS "row!: i64", host, report FROM unit
           WHERE ($1 IS NULL OR deployment = $1) AND ($2 IS NULL OR deployment_version = $2)"#,
        filter.deployment.as_ref().map(DeploymentName::as_str),
        filter.version.map(i64::from)
    )
    .fetch(db);
    let mut phases: Vec<(Phase, u64)> = Vec::new();
    let mut found: Vec<(usize, UnitName, i64)> = Vec::new();
    while let Some(row) = rows.try_next().await? {
        let report: SelectableReport = json("unit", &row.report)?;
        let place = places.get(row.host.as_str()).copied();
        let host = place.and_then(|place| Some((place, ids.get(place)?, hosts.get(place)?)));
        // A host may have joined since.
        let Some((place, host, named)) = host else { continue };
        let SelectableReport { unit, desired, observed } = report;
        let seen = Unit {
            host: *host,
            hostname: &named.hostname,
            name: &unit,
            spec: &desired.spec,
            phase: observed.phase,
            content: observed.content.as_ref(),
        };
        if !select.picks_unit(&seen) {
            continue;
        }
        match phases.iter_mut().find(|(phase, _)| *phase == observed.phase) {
            Some((_, count)) => *count += 1,
            None => phases.push((observed.phase, 1)),
        }
        if filter.phase.is_none_or(|phase| phase == observed.phase) {
            found.push((place, unit, row.row));
        }
    }
    drop(rows);
    found.sort_unstable();
    let first = usize::try_from(offset).unwrap_or(usize::MAX).min(found.len());
    let shown: Vec<i64> = found.iter().skip(first).take(limit as usize).map(|(_, _, row)| *row).collect();
    let rows = sqlx::query_as!(
        HostUnitRow,
        "SELECT unit.host, host.hostname, unit.report, unit.at_ms FROM unit JOIN host ON host.id = unit.host
         WHERE unit.rowid IN (SELECT value FROM json_each($1)) ORDER BY host.hostname, unit.host, unit.unit",
        to_json("units", &shown)?
    )
    .fetch_all(db)
    .await?;
    Ok(UnitPage { units: rows.into_iter().map(HostUnitRow::unit).collect::<StoreResult<_>>()?, phases })
}
