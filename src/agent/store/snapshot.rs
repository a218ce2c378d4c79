//! Snapshots: the desired state of the units at one time, under a name.
//!
//! A snapshot holds whole specs, so that activating it needs nothing else. Activation changes desired state by the
//! same [`unit::edit`] as any verb, all in one transaction; the planner does the rest.
//!
//! **Invariant: at most one snapshot is active**, and a unit that it changed remembers its state before the first
//! activation.
//!
//! **Invariant: deactivation never undoes an edit made after the activation.** The generation tells them apart.

use std::collections::BTreeMap;

use muster_rules::{
    CommandRefusal,
    snapshot::{SnapshotUnit, diff, difference},
};
use muster_topics::{
    Millis,
    command::Verb,
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::RefusalCode,
    snapshot::{Difference, Snapshot, SnapshotDiff, Snapshots, UnitDiff},
    unit::{Desired, Run, Spec},
};
use serde::de::DeserializeOwned;
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
    unit::{self, ChangeContext},
};

/// The most snapshots of a host. With the maximum of units, at a kilobyte each, they take eight megabytes.
pub const SNAPSHOTS_MAX: usize = 32;

/// A value, a refusal, or an error.
type SnapshotResult<T> = Result<Result<T, CommandRefusal>, StoreError>;

/// A snapshot's record of one unit.
struct SnapshotRow {
    unit: UnitName,
    then: SnapshotUnit,
    /// While the snapshot is active and has changed the unit: the state before, and the generation of the change.
    before: Option<(SnapshotUnit, u64)>,
}

impl Store {
    /// Returns the specs of all snapshots, for the clean-up of artifacts.
    ///
    /// # Errors
    /// If the database fails, or a spec is unreadable: then it is unknown what is needed.
    pub async fn snapshot_specs(&self) -> Result<Vec<Spec>, StoreError> {
        let mut tx = self.begin().await?;
        Ok(specs(&mut tx).await?.into_values().flatten().collect())
    }
}

/// Returns the specs of all snapshots by unit.
///
/// # Errors
/// If the database fails, or a spec is unreadable: then it is unknown what is needed.
pub(super) async fn specs(connection: &mut SqliteConnection) -> Result<BTreeMap<UnitName, Vec<Spec>>, StoreError> {
    let rows = sqlx::query!("SELECT unit, spec, before_spec FROM snapshot_unit ORDER BY snapshot DESC")
        .fetch_all(connection)
        .await?;
    let mut units: BTreeMap<UnitName, Vec<Spec>> = BTreeMap::new();
    for row in &rows {
        let kept = units.entry(quoted("unit's name", &row.unit)?).or_default();
        for spec in [Some(&row.spec), row.before_spec.as_ref()].into_iter().flatten() {
            kept.push(parsed("unit's spec", spec)?);
        }
    }
    Ok(units)
}

/// Returns all snapshots by name.
///
/// # Errors
/// If the database fails.
pub async fn list(connection: &mut SqliteConnection) -> Result<Snapshots, StoreError> {
    let rows = sqlx::query!(r#"SELECT name AS "name!", taken_by, taken_ms, active_ms FROM snapshot ORDER BY name"#)
        .fetch_all(&mut *connection)
        .await?;
    let mut snapshots = Vec::new();
    for row in rows {
        let name = row.name.as_str();
        let units = sqlx::query_scalar!("SELECT unit FROM snapshot_unit WHERE snapshot = ? ORDER BY unit", name)
            .fetch_all(&mut *connection)
            .await?;
        snapshots.push(Snapshot {
            name: quoted("snapshot's name", &row.name)?,
            by: quoted("operator's name", &row.taken_by)?,
            created_ms: row.taken_ms,
            active_ms: row.active_ms,
            units: units.iter().map(|unit| quoted("unit's name", unit)).collect::<Result<_, _>>()?,
        });
    }
    Ok(Snapshots { snapshots })
}

/// Saves the desired state of every unit, except in realms that the local policy denies.
///
/// # Errors
/// If the database fails; a refusal is the inner error.
pub async fn create(
    connection: &mut SqliteConnection,
    name: &Name,
    is_denied: impl Fn(&UnitName) -> bool,
    asker: ChangeContext<'_>,
) -> SnapshotResult<()> {
    let units = match now(connection).await? {
        Ok(units) => units,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let units: BTreeMap<_, _> = units.into_iter().filter(|(unit, _)| !is_denied(unit)).collect();
    let there = list(connection).await?.snapshots;
    if there.iter().any(|one| one.name == *name) {
        let then: BTreeMap<_, _> = rows(connection, name).await?.into_iter().map(|row| (row.unit, row.then)).collect();
        let same = then == units.iter().map(|(unit, desired)| (unit.clone(), pin(desired))).collect();
        let message = Diagnostic::new(format_args!("snapshot {name} exists with other units"))
            .with_hint(format_args!("choose another name, or `muster snapshot rm {name}`"));
        return Ok(if same { Ok(()) } else { conflict(message) });
    }
    if units.is_empty() {
        return Ok(conflict("this host has no units for a snapshot".to_owned()));
    }
    if there.len() >= SNAPSHOTS_MAX {
        return Ok(conflict(
            Diagnostic::new(format_args!("this host has {SNAPSHOTS_MAX} snapshots, the maximum"))
                .with_hint("remove one first"),
        ));
    }
    let (snapshot, by) = (name.as_str(), asker.operator.as_str());
    sqlx::query!("INSERT INTO snapshot (name, taken_by, taken_ms) VALUES (?, ?, ?)", snapshot, by, asker.now_ms)
        .execute(&mut *connection)
        .await?;
    for (unit, desired) in &units {
        let (unit, spec, run) = (unit.as_str(), to_json("unit's spec", &desired.spec)?, word(desired.run));
        sqlx::query!(
            "INSERT INTO snapshot_unit (snapshot, unit, spec, run) VALUES (?, ?, ?, ?)",
            snapshot,
            unit,
            spec,
            run
        )
        .execute(&mut *connection)
        .await?;
    }
    Ok(Ok(()))
}

/// Returns how each unit differs from a snapshot.
///
/// # Errors
/// If the database fails; a refusal is the inner error.
pub async fn compare(connection: &mut SqliteConnection, name: &Name) -> SnapshotResult<SnapshotDiff> {
    if active_ms(connection, name).await?.is_none() {
        return Ok(Err(unknown(name)));
    }
    let units = match now(connection).await? {
        Ok(units) => units,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let now = units.iter().map(|(unit, desired)| (unit.clone(), pin(desired))).collect();
    let then = rows(connection, name).await?.into_iter().map(|row| (row.unit, row.then)).collect();
    Ok(Ok(SnapshotDiff { snapshot: name.clone(), units: diff(&then, &now) }))
}

/// Restores each unit of a snapshot, unless `may_be` objects.
///
/// # Errors
/// If the database fails; a refusal is the inner error, and the caller must then roll back.
pub async fn activate(
    connection: &mut SqliteConnection,
    name: &Name,
    may_be: impl Fn(&UnitName, &Spec) -> Result<(), CommandRefusal>,
    asker: ChangeContext<'_>,
) -> SnapshotResult<SnapshotDiff> {
    let mut compared = match compare(connection, name).await? {
        Ok(compared) => compared,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(other) = list(connection).await?.snapshots.iter().find(|other| other.active_ms.is_some())
        && other.name != *name
    {
        let other = &other.name;
        return Ok(conflict(
            Diagnostic::new(format_args!("the snapshot {other} is active"))
                .with_hint(format_args!("`muster snapshot deactivate {other}` first")),
        ));
    }
    let snapshot = name.as_str();
    sqlx::query!("UPDATE snapshot SET active_ms = coalesce(active_ms, ?) WHERE name = ?", asker.now_ms, snapshot)
        .execute(&mut *connection)
        .await?;
    for row in rows(connection, name).await? {
        let Some(told) = compared.units.iter_mut().find(|told| told.unit == row.unit) else { continue };
        if told.difference == Difference::Same {
            continue;
        }
        if let Err(refusal) = may_be(&row.unit, &row.then.spec) {
            return Ok(Err(refusal));
        }
        let before = unit::find(connection, &row.unit).await?.map(|row| row.desired);
        let goal = row.then.after(before.as_ref().map(|before| &*before.spec));
        let generation = match set(connection, &row.unit, goal, asker).await? {
            Ok(generation) => generation,
            Err(refusal) => return Ok(Err(refusal)),
        };
        told.generation = Some(generation);
        if let Some(before) = before {
            remember(connection, name, &row.unit, &before, generation).await?;
        }
    }
    Ok(Ok(compared))
}

/// Stores a unit's state before an activation, unless an earlier activation did.
async fn remember(
    connection: &mut SqliteConnection,
    snapshot: &Name,
    unit: &UnitName,
    before: &Desired,
    generation: u64,
) -> Result<(), StoreError> {
    let (snapshot, unit, generation) = (snapshot.as_str(), unit.as_str(), to_sql(generation));
    let (spec, run) = (to_json("unit's spec", &before.spec)?, word(before.run));
    sqlx::query!(
        "UPDATE snapshot_unit SET before_spec = coalesce(before_spec, ?), before_run = coalesce(before_run, ?),
             generation = ? WHERE snapshot = ? AND unit = ?",
        spec,
        run,
        generation,
        snapshot,
        unit
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Restores each unit that an activation has changed to its earlier state, unless it was changed since.
///
/// # Errors
/// As [`activate`].
pub async fn deactivate(
    connection: &mut SqliteConnection,
    name: &Name,
    may_be: impl Fn(&UnitName, &Spec) -> Result<(), CommandRefusal>,
    asker: ChangeContext<'_>,
) -> SnapshotResult<SnapshotDiff> {
    let mut told = SnapshotDiff { snapshot: name.clone(), units: Vec::new() };
    match active_ms(connection, name).await? {
        None => return Ok(Err(unknown(name))),
        Some(None) => return Ok(Ok(told)),
        Some(Some(_)) => {}
    }
    for SnapshotRow { unit, before, .. } in rows(connection, name).await? {
        let Some((before, generation)) = before else { continue };
        let mut undone = UnitDiff { unit: unit.clone(), difference: Difference::Later, generation: None };
        match unit::find(connection, &unit).await? {
            Some(row) if row.desired.generation == generation => {
                undone.difference = difference(&before, &pin(&row.desired));
                if let Err(refusal) = may_be(&unit, &before.spec) {
                    return Ok(Err(refusal));
                }
                match set(connection, &unit, before.after(Some(&row.desired.spec)), asker).await? {
                    Ok(generation) => undone.generation = Some(generation),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            Some(_) => {}
            None => undone.difference = Difference::Missing,
        }
        told.units.push(undone);
    }
    let snapshot = name.as_str();
    sqlx::query!("UPDATE snapshot SET active_ms = NULL WHERE name = ?", snapshot).execute(&mut *connection).await?;
    sqlx::query!(
        "UPDATE snapshot_unit SET before_spec = NULL, before_run = NULL, generation = NULL WHERE snapshot = ?",
        snapshot
    )
    .execute(connection)
    .await?;
    Ok(Ok(told))
}

/// Removes a snapshot.
///
/// # Errors
/// If the database fails; a refusal is the inner error.
pub async fn remove(connection: &mut SqliteConnection, name: &Name) -> SnapshotResult<()> {
    match active_ms(connection, name).await? {
        None => return Ok(Err(unknown(name))),
        Some(Some(_)) => {
            let hint = format!("`muster snapshot deactivate {name}` first");
            return Ok(conflict(Diagnostic::new(format_args!("the snapshot {name} is active")).with_hint(hint)));
        }
        Some(None) => {}
    }
    let snapshot = name.as_str();
    sqlx::query!("DELETE FROM snapshot WHERE name = ?", snapshot).execute(connection).await?;
    Ok(Ok(()))
}

/// Returns the refusal to remove a unit that a snapshot needs.
///
/// # Errors
/// If the database fails.
pub async fn needs(connection: &mut SqliteConnection, unit: &UnitName) -> Result<Option<CommandRefusal>, StoreError> {
    let name = unit.as_str();
    let snapshots = sqlx::query_scalar!("SELECT snapshot FROM snapshot_unit WHERE unit = ? ORDER BY snapshot", name)
        .fetch_all(connection)
        .await?;
    let Some(first) = snapshots.first() else { return Ok(None) };
    let (what, verb) = if snapshots.len() == 1 { ("the snapshot", "needs") } else { ("the snapshots", "need") };
    let message = Diagnostic::new(format_args!("{what} {} {verb} {unit}", snapshots.join(", ")))
        .with_hint(format_args!("`muster snapshot rm {first}`"));
    Ok(Some(CommandRefusal::new(RefusalCode::Conflict, message)))
}

fn conflict<T>(message: impl Into<Diagnostic>) -> Result<T, CommandRefusal> {
    Err(CommandRefusal::new(RefusalCode::Conflict, message))
}

fn unknown(name: &Name) -> CommandRefusal {
    let message = Diagnostic::new(format_args!("there is no snapshot {name} on this host"))
        .with_hint("`muster snapshot ls` lists the snapshots");
    CommandRefusal::new(RefusalCode::NotFound, message)
}

/// Returns since when a snapshot is active; `None` if there is no such snapshot.
async fn active_ms(connection: &mut SqliteConnection, name: &Name) -> Result<Option<Option<Millis>>, StoreError> {
    let name = name.as_str();
    Ok(sqlx::query_scalar!("SELECT active_ms FROM snapshot WHERE name = ?", name).fetch_optional(connection).await?)
}

/// Returns the desired state of all units. An unreadable one is a refusal.
async fn now(connection: &mut SqliteConnection) -> SnapshotResult<BTreeMap<UnitName, Desired>> {
    let unit::StoredUnits { units, unreadable, .. } = unit::all(connection).await?;
    if !unreadable.is_empty() {
        let names = unreadable.join(", ");
        return Ok(conflict(format!("this version of the agent cannot read the desired state of {names}")));
    }
    Ok(Ok(units.into_iter().map(|row| (row.name, row.desired)).collect()))
}

fn pin(desired: &Desired) -> SnapshotUnit {
    SnapshotUnit { spec: Spec::clone(&desired.spec), run: desired.run }
}

async fn rows(connection: &mut SqliteConnection, name: &Name) -> Result<Vec<SnapshotRow>, StoreError> {
    let name = name.as_str();
    let rows = sqlx::query!(
        "SELECT unit, spec, run, before_spec, before_run, generation FROM snapshot_unit WHERE snapshot = ? ORDER BY unit",
        name
    )
    .fetch_all(connection)
    .await?;
    let pinned = |spec: &str, run: &str| -> Result<SnapshotUnit, StoreError> {
        Ok(SnapshotUnit { spec: parsed("unit's spec", spec)?, run: quoted("wish to run", run)? })
    };
    rows.iter()
        .map(|row| {
            let before = match (&row.before_spec, &row.before_run, row.generation) {
                (Some(spec), Some(run), Some(generation)) => Some((pinned(spec, run)?, from_sql(generation))),
                _ => None,
            };
            Ok(SnapshotRow { unit: quoted("unit's name", &row.unit)?, then: pinned(&row.spec, &row.run)?, before })
        })
        .collect::<Result<_, StoreError>>()
}

/// Restores a unit, and returns the new generation.
async fn set(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    goal: SnapshotUnit,
    asker: ChangeContext<'_>,
) -> SnapshotResult<u64> {
    let verb = Verb::UnitApply { unit: unit.clone(), spec: Box::new(goal.spec), run: Some(goal.run) };
    let mut edited = unit::edit(connection, unit, &verb, asker).await?;
    if goal.run == Run::Running && edited.is_ok() {
        // For a unit that plays, a request to run changes nothing, so `pause` is needed.
        edited = unit::edit(connection, unit, &Verb::UnitPause { unit: unit.clone() }, asker).await?;
    }
    Ok(edited.map(|applied| applied.map_or(0, |applied| applied.generation)))
}

fn word(run: Run) -> &'static str {
    match run {
        Run::Stopped => "stopped",
        Run::Running => "running",
        Run::Playing => "playing",
    }
}

fn parsed<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Content { what, source })
}

fn quoted<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_value(text.into()).map_err(|source| StoreError::Content { what, source })
}

#[cfg(test)]
mod tests;
