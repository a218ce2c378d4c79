//! Units: desired state, holds, and the last observed state.
//!
//! There are two writers. Verbs change desired state, through [`edit`], in the transaction that also
//! journals their outcome. The units' task writes observed state, and holds, through
//! [`Store::keep_unit`]; it never changes desired state.
//!
//! **Invariant: generations only grow**, also when a unit is removed and another gets its name:
//! they come from one counter for all units of the host, in `meta`. So any two of them can be
//! ordered. A store that was lost begins at 1 again, in a later epoch, which every report carries.
//!
//! **Invariant: a hold made by the agent belongs to a generation.** If a verb has made the next generation before it is written,
//! it is dropped. An operator's hold is desired state: only verbs write it.

use std::{collections::BTreeMap, sync::Arc};

use muster_rules::{
    CommandRefusal,
    desired::ownership::{self, OwnedVerdict},
    edit::{CurrentUnit, HoldChange, UnitEdit},
    plan::RestoredUnit,
    port_lease::PortLease,
    realm::Realms,
    render::{self, RenderValues},
    start_order,
};
use muster_topics::{
    Millis,
    command::Verb,
    desired::UnitOwner,
    diagnostic::Diagnostic,
    name::{Digest, Name, UnitName},
    outcome::RefusalCode,
    revision::RevisionKey,
    unit::{Desired, Hold, HoldReason, Observed, Run, Spec, UNITS_MAX},
};
use sqlx::SqliteConnection;

use super::columns::to_json;
use super::{
    Store,
    columns::{from_sql, to_sql},
    desired_copy::IntentCopy,
    document,
    error::StoreError,
    owed, owner, port_lease, realm, removal, snapshot, verified,
};

/// A stored unit.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredUnit {
    /// Its name.
    pub name: UnitName,
    /// Its desired state.
    pub desired: Desired,
    /// Why it does not converge, on purpose.
    pub hold: Option<Hold>,
    /// The deployment that it belongs to, if a verb has not made it.
    pub owner: Option<UnitOwner>,
    /// Its last observed state.
    pub kept: RestoredUnit,
}

/// All stored units.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredUnits {
    /// Readable ones, by name.
    pub units: Vec<StoredUnit>,
    /// The names of unreadable ones, for example after a downgrade. They exist, and so must not be treated as removed.
    pub unreadable: Vec<String>,
    /// All leases.
    pub leases: Vec<PortLease>,
    /// The realms.
    pub realms: Realms,
    /// The specs in snapshots; `None` if they are unreadable.
    pub snapshots: Option<BTreeMap<UnitName, Vec<Spec>>>,
}

/// The result of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChange {
    /// The present generation.
    pub generation: u64,
    /// Its revision.
    pub revision: Digest,
    /// Why the unit will not converge for now.
    pub hold: Option<Hold>,
}

/// Who makes a change, when, and the key for revisions.
#[derive(Clone, Copy, Debug)]
pub struct ChangeContext<'a> {
    /// The operator.
    pub operator: &'a Name,
    /// The time.
    pub now_ms: Millis,
    /// The host's key for revisions; a change that brings no spec needs none.
    pub key: Option<&'a RevisionKey>,
    /// Whether the host's document makes the change: verbs change no unit of a deployment.
    pub is_document: bool,
    /// The values of the host, without its variables, for the templates of units; `None` if those that a unit has stay.
    pub values: Option<&'a RenderValues>,
}

/// A row of the table.
struct UnitRecord {
    name: String,
    generation: i64,
    revision: String,
    spec: String,
    run: String,
    frozen: i64,
    held_by: Option<String>,
    held_since_ms: Option<i64>,
    held_note: Option<String>,
    playing: i64,
    hold_reason: Option<String>,
    hold_since_ms: Option<i64>,
    observed: String,
}

impl UnitRecord {
    fn read(self) -> Result<StoredUnit, StoreError> {
        let what = |what| move |source| StoreError::Content { what, source };
        let quoted = |text: String| serde_json::Value::String(text);
        let hold = match (self.held_by, self.held_since_ms, self.hold_reason, self.hold_since_ms) {
            (Some(by), Some(since_ms), ..) => {
                let by = serde_json::from_value(quoted(by)).map_err(what("operator's name"))?;
                Some(Hold { reason: HoldReason::Operator, since_ms, by: Some(by), note: self.held_note })
            }
            (.., Some(reason), Some(since_ms)) => {
                Some(Hold::new(serde_json::from_value(quoted(reason)).map_err(what("hold"))?, since_ms))
            }
            _ => None,
        };
        Ok(StoredUnit {
            name: serde_json::from_value(quoted(self.name)).map_err(what("unit's name"))?,
            desired: Desired {
                generation: from_sql(self.generation),
                revision: serde_json::from_value(quoted(self.revision)).map_err(what("revision"))?,
                spec: serde_json::from_str(&self.spec).map_err(what("unit's spec"))?,
                run: match serde_json::from_value(quoted(self.run)).map_err(what("wish to run"))? {
                    Run::Running if self.playing != 0 => Run::Playing,
                    run => run,
                },
                frozen: self.frozen != 0,
            },
            hold,
            owner: None,
            kept: serde_json::from_str(&self.observed).map_err(what("observed state"))?,
        })
    }
}

impl Store {
    /// Returns all units. Unreadable ones are logged, so that they do not affect others; their rows stay unchanged.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn units(&self) -> Result<StoredUnits, StoreError> {
        let mut tx = self.begin().await?;
        all(&mut tx).await
    }

    /// Stores a unit's observed state under `generation`, and its hold if that is still the desired generation. Does
    /// nothing if the unit was removed.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn keep_unit(
        &self,
        unit: &UnitName,
        generation: u64,
        kept: &RestoredUnit,
        hold: Option<&Hold>,
    ) -> Result<(), StoreError> {
        let (name, generation) = (unit.as_str(), to_sql(generation));
        let observed = to_json("observed state", kept)?;
        let (reason, since_ms) = match hold {
            Some(Hold { reason: HoldReason::Broken, since_ms, .. }) => (Some("broken"), Some(*since_ms)),
            // An operator's hold belongs to the desired state; a missing resource and a dependency are observed
            // again.
            Some(Hold { reason: HoldReason::Operator | HoldReason::Dependency | HoldReason::Conflict, .. }) | None => {
                (None, None)
            }
        };
        let mut tx = self.begin().await?;
        sqlx::query!("UPDATE unit SET observed = ? WHERE name = ?", observed, name).execute(&mut *tx).await?;
        sqlx::query!(
            "UPDATE unit SET hold_reason = ?, hold_since_ms = ? WHERE name = ? AND generation = ?",
            reason,
            since_ms,
            name,
            generation
        )
        .execute(&mut *tx)
        .await?;
        verified::keep(&mut tx, unit, kept).await?;
        // What the change wants falls away with it, whatever becomes of the unit next.
        if let Some(back) = kept.observed.rolled_back() {
            owed::drop_of(&mut tx, unit, &back.revision).await?;
        }
        super::commit(tx, "keep unit").await
    }
}

/// See [`Store::units`].
///
/// # Errors
/// If the database fails.
pub async fn all(connection: &mut SqliteConnection) -> Result<StoredUnits, StoreError> {
    let rows = sqlx::query_as!(
        UnitRecord,
        r#"SELECT name AS "name!", generation, revision, spec, run, playing, frozen, held_by, held_since_ms, held_note,
                  hold_reason, hold_since_ms, observed
           FROM unit ORDER BY name"#
    )
    .fetch_all(&mut *connection)
    .await?;
    let (leases, realms) = (port_lease::all(connection).await?, realm::all(connection).await?);
    let snapshots = match snapshot::specs(connection).await {
        Ok(snapshots) => Some(snapshots),
        Err(StoreError::Content { what, source }) => {
            tracing::error!(what, %source, "the snapshots' artifacts cannot be read");
            None
        }
        Err(error) => return Err(error),
    };
    let (mut verified, mut owners) = (verified::all(connection).await?, owner::all(connection).await?);
    let mut stored = StoredUnits { leases, realms, snapshots, ..StoredUnits::default() };
    for raw in rows {
        let name = raw.name.clone();
        match raw.read() {
            Ok(mut unit) => {
                unit.kept.verified = verified.remove(&name);
                if let Some(verified) = &mut unit.kept.verified
                    && verified.spec == unit.desired.spec
                {
                    // One and the same in memory, too.
                    Arc::make_mut(verified).spec = unit.desired.spec.clone();
                }
                unit.owner = owners.remove(&name);
                stored.units.push(unit);
            }
            Err(error) => {
                tracing::error!(unit = %name, %error, hint = Diagnostic::of(&error).hint, "a unit cannot be read and is left unchanged");
                stored.unreadable.push(name);
            }
        }
    }
    Ok(stored)
}

/// Applies a verb to a unit's desired state, in the caller's transaction. Returns the new desired state, or `None` if
/// the unit was removed.
///
/// # Errors
/// If the database fails; a refusal of the verb is the inner error.
pub async fn edit(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    verb: &Verb,
    asker: ChangeContext<'_>,
) -> Result<Result<Option<AppliedChange>, CommandRefusal>, StoreError> {
    let row = match find(connection, unit).await {
        Err(StoreError::Content { what, source }) => {
            let message = format!("the {what} of {unit} cannot be read by this version of the agent: {source}");
            return Ok(Err(CommandRefusal::new(RefusalCode::Conflict, message)));
        }
        other => other?,
    };
    if let Some(StoredUnit { owner: Some(owner), desired, hold, .. }) = row.as_ref().filter(|_| !asker.is_document) {
        let is_leaving = removal::is_asked(connection, unit).await?;
        match ownership::verdict(unit, owner, is_leaving, verb) {
            OwnedVerdict::Allowed => {}
            OwnedVerdict::Refused(refusal) => return Ok(Err(refusal)),
            OwnedVerdict::Removed => {
                if let Some(refusal) = snapshot::needs(connection, unit).await? {
                    return Ok(Err(refusal));
                }
                removal::approve(connection, unit, asker.now_ms).await?;
                return Ok(Ok(None));
            }
            OwnedVerdict::Detached => {
                owner::detach(connection, unit, owner).await?;
                let Desired { generation, revision, .. } = desired.clone();
                return Ok(Ok(Some(AppliedChange { generation, revision, hold: hold.clone() })));
            }
        }
    }
    let filled = match fill(connection, unit, verb, row.as_ref().map(|row| &*row.desired.spec), asker).await? {
        Ok(filled) => filled,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let verb = filled.as_ref().unwrap_or(verb);
    let current = row.as_ref().map(|row| CurrentUnit {
        desired: &row.desired,
        hold: row.hold.as_ref(),
        observed: &row.kept.observed,
    });
    let desired = current.map(|current| current.desired);
    let edited = muster_rules::edit::edit(unit, current, verb);
    let edit = match edited.and_then(|edit| edit.told_by(unit, desired, asker.key)) {
        Ok(edit) => edit,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let name = unit.as_str();
    match (edit, row) {
        (UnitEdit::Keep, row) => {
            let applied = |StoredUnit { desired: Desired { generation, revision, .. }, hold, .. }| AppliedChange {
                generation,
                revision,
                hold,
            };
            Ok(Ok(row.map(applied)))
        }
        (UnitEdit::Forget, _) => Ok(remove(connection, unit).await?.map(|()| None)),
        (UnitEdit::Set { spec, revision, run, frozen, holding }, row) => {
            if row.is_none() && is_full(connection).await? {
                let message = Diagnostic::new(format_args!("this host has {UNITS_MAX} units, the maximum"))
                    .with_hint("remove one first");
                return Ok(Err(CommandRefusal::new(RefusalCode::Conflict, message)));
            }
            if let Some(circle) = circle(connection, unit, &spec).await? {
                let names: Vec<String> = circle.iter().map(ToString::to_string).collect();
                let message = Diagnostic::new(format_args!("{unit} would wait for itself: {}", names.join(" → ")))
                    .with_hint("remove one from `after` or `requires`");
                return Ok(Err(CommandRefusal::new(RefusalCode::Conflict, message)));
            }
            let leases = match new_leases(connection, unit, row.as_ref(), &spec).await? {
                Ok(leases) => leases,
                // Nothing may prevent a stop.
                Err(_) if run == Run::Stopped && row.as_ref().is_some_and(|row| row.desired.spec == spec) => None,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let hold = held(holding, row.and_then(|row| row.hold), asker);
            let wish = DesiredUnit { spec, revision: &revision, run, frozen, hold: hold.as_ref() };
            let generation = set(connection, name, wish, asker.now_ms).await?;
            if let Some(leases) = leases {
                port_lease::set(connection, unit, &leases).await?;
            }
            Ok(Ok(Some(AppliedChange { generation, revision, hold })))
        }
    }
}

/// Returns a verb with the values that the templates of its spec name; `None` for one that has no templates.
async fn fill(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    verb: &Verb,
    before: Option<&Spec>,
    asker: ChangeContext<'_>,
) -> Result<Result<Option<Verb>, CommandRefusal>, StoreError> {
    let mut spec = match (verb, before) {
        (Verb::UnitApply { spec, .. }, _) => spec.clone(),
        // Other configs have other templates.
        (Verb::UnitUpgrade { config_templates: Some(_), .. }, Some(before)) => {
            match muster_rules::edit::upgraded(unit, before, verb) {
                Ok(spec) => Box::new(spec),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        _ => return Ok(Ok(None)),
    };
    if !render::unit::has_templates(&spec) && !spec.has_values() {
        return Ok(Ok(None));
    }
    if let Err(refusal) = muster_rules::edit::keep_secrets(before, &mut spec) {
        return Ok(Err(refusal));
    }
    match (asker.values, before) {
        (None, Some(before)) => spec.keep_values(before),
        (values, _) => {
            let host = values.cloned().unwrap_or_default();
            let of_unit = host.with_vars(document::vars(connection).await?).with_unit(unit);
            if let Err(fault) = render::unit::fill(&mut spec, before, &of_unit) {
                return Ok(Err(CommandRefusal::new(RefusalCode::Invalid, Diagnostic::of(&fault))));
            }
        }
    }
    let mut filled = verb.clone();
    match (&mut filled, *spec) {
        (Verb::UnitApply { spec: place, .. }, spec) => **place = spec,
        (Verb::UnitUpgrade { config_templates, .. }, Spec::Yuno(spec)) => {
            *config_templates = Some(spec.config_templates);
        }
        _ => {}
    }
    Ok(Ok(Some(filled)))
}

/// Finds the values of units with templates anew, of which `is_followed` says that they follow them. Returns whether one has
/// changed.
///
/// # Errors
/// If the database fails.
pub async fn refresh_values(
    connection: &mut SqliteConnection,
    asker: ChangeContext<'_>,
    is_followed: impl Fn(&StoredUnit) -> bool,
) -> Result<bool, StoreError> {
    let mut is_changed = false;
    for row in all(connection).await?.units {
        if !render::unit::has_templates(&row.desired.spec) || !is_followed(&row) {
            continue;
        }
        let with_deployment = row
            .owner
            .as_ref()
            .zip(asker.values)
            .map(|(owner, values)| values.clone().with_deployment(owner.deployment.as_str(), owner.version));
        let asker = ChangeContext { values: with_deployment.as_ref().or(asker.values), ..asker };
        let verb =
            Verb::UnitApply { unit: row.name.clone(), spec: Box::new(Spec::clone(&row.desired.spec)), run: None };
        match edit(connection, &row.name, &verb, asker).await? {
            Ok(Some(applied)) => is_changed |= applied.generation != row.desired.generation,
            Ok(None) => {}
            // It goes on as it is.
            Err(refusal) => {
                tracing::warn!(unit = %row.name, reason = refusal.diagnostic.cause, hint = refusal.diagnostic.hint, "a variable of a unit keeps its value");
            }
        }
    }
    Ok(is_changed)
}

/// Removes a unit's desired state, and with it its leases, its owner, and that it was to go. What is left of it on the host
/// is removed then.
///
/// # Errors
/// If the database fails; the inner error is that a snapshot needs the unit.
pub async fn remove(
    connection: &mut SqliteConnection,
    unit: &UnitName,
) -> Result<Result<(), CommandRefusal>, StoreError> {
    if let Some(refusal) = snapshot::needs(connection, unit).await? {
        return Ok(Err(refusal));
    }
    let name = unit.as_str();
    sqlx::query!("DELETE FROM unit WHERE name = ?", name).execute(connection).await?;
    Ok(Ok(()))
}

/// Removes a transient unit that has ended, unless another desired state was set or a snapshot needs it. Returns
/// whether it was removed.
///
/// # Errors
/// If the database fails.
pub async fn forget_transient(store: &Store, unit: &UnitName, generation: u64) -> Result<bool, StoreError> {
    let mut tx = store.begin().await?;
    if snapshot::needs(&mut tx, unit).await?.is_some() {
        return Ok(false);
    }
    let (name, generation) = (unit.as_str(), to_sql(generation));
    let done =
        sqlx::query!("DELETE FROM unit WHERE name = ? AND generation = ?", name, generation).execute(&mut *tx).await?;
    super::commit(tx, "forget transient").await?;
    Ok(done.rows_affected() == 1)
}

/// Returns the unit's new leases; `None` if they stay as they are.
async fn new_leases(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    row: Option<&StoredUnit>,
    after: &Spec,
) -> Result<Result<Option<Vec<PortLease>>, CommandRefusal>, StoreError> {
    let same = match row {
        // A unit that was rolled back has the ports of the verified revision.
        Some(row) if row.kept.observed.rolled_back().is_some() => false,
        Some(row) => row.desired.spec.provides() == after.provides(),
        None => after.provides().is_empty(),
    };
    if same {
        return Ok(Ok(None));
    }
    let provides = verified::ports(after, row.and_then(|row| row.kept.verified.as_deref()));
    Ok(port_lease::find(connection, unit, &provides).await?.map(Some))
}

/// Returns the operator's hold after a change.
fn held(holding: HoldChange, before: Option<Hold>, asker: ChangeContext<'_>) -> Option<Hold> {
    match holding {
        HoldChange::Keep => before.filter(|hold| hold.reason == HoldReason::Operator),
        HoldChange::End => None,
        HoldChange::Begin { note } => {
            Some(Hold { reason: HoldReason::Operator, since_ms: asker.now_ms, by: Some(asker.operator.clone()), note })
        }
    }
}

/// The desired state to store.
struct DesiredUnit<'a> {
    spec: Arc<Spec>,
    revision: &'a Digest,
    run: Run,
    frozen: bool,
    hold: Option<&'a Hold>,
}

/// Stores a desired state under the next generation.
async fn set(
    connection: &mut SqliteConnection,
    name: &str,
    wish: DesiredUnit<'_>,
    now_ms: Millis,
) -> Result<u64, StoreError> {
    let generation = next_generation(connection).await?;
    let kept = RestoredUnit::new(Observed::absent(now_ms));
    let (spec, observed) = (to_json("unit's spec", &wish.spec)?, to_json("observed state", &kept)?);
    let (run, playing) = columns(wish.run);
    let (digest, frozen) = (wish.revision.as_str(), i64::from(wish.frozen));
    let by = wish.hold.and_then(|hold| hold.by.as_ref()).map(Name::as_str);
    let since_ms = wish.hold.map(|hold| hold.since_ms);
    let note = wish.hold.and_then(|hold| hold.note.as_deref());
    sqlx::query!(
        "INSERT INTO unit (name, generation, revision, spec, run, playing, frozen, held_by, held_since_ms, held_note,
                           observed)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, revision = excluded.revision,
             spec = excluded.spec, run = excluded.run, playing = excluded.playing, frozen = excluded.frozen, held_by = excluded.held_by,
             held_since_ms = excluded.held_since_ms, held_note = excluded.held_note,
             hold_reason = NULL, hold_since_ms = NULL",
        name,
        generation,
        digest,
        spec,
        run,
        playing,
        frozen,
        by,
        since_ms,
        note,
        observed
    )
    .execute(connection)
    .await?;
    Ok(from_sql(generation))
}

/// Returns the columns for `run`.
fn columns(run: Run) -> (&'static str, i64) {
    match run {
        Run::Stopped => ("stopped", 0),
        Run::Running => ("running", 0),
        Run::Playing => ("running", 1),
    }
}

pub(super) async fn find(connection: &mut SqliteConnection, unit: &UnitName) -> Result<Option<StoredUnit>, StoreError> {
    let name = unit.as_str();
    let raw = sqlx::query_as!(
        UnitRecord,
        r#"SELECT name AS "name!", generation, revision, spec, run, playing, frozen, held_by, held_since_ms, held_note,
                  hold_reason, hold_since_ms, observed
           FROM unit WHERE name = ?"#,
        name
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(mut row) = raw.map(UnitRecord::read).transpose()? else { return Ok(None) };
    row.kept.verified = verified::all(connection).await?.remove(name);
    row.owner = owner::find(connection, unit).await?;
    Ok(Some(row))
}

/// Returns the circle of dependencies that would arise if this unit had `spec`.
async fn circle(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    spec: &Spec,
) -> Result<Option<Vec<UnitName>>, StoreError> {
    if spec.common().after.is_empty() && spec.common().requires.is_empty() {
        return Ok(None);
    }
    let rows = sqlx::query!(r#"SELECT name AS "name!", spec FROM unit"#).fetch_all(connection).await?;
    // Unreadable units are not started either.
    let read = |name: &str, spec: &str| Some((name.parse().ok()?, serde_json::from_str(spec).ok()?));
    let units: BTreeMap<UnitName, Spec> = rows.iter().filter_map(|row| read(&row.name, &row.spec)).collect();
    Ok(start_order::cycle(unit, spec, &units.iter().collect()))
}

async fn is_full(connection: &mut SqliteConnection) -> Result<bool, StoreError> {
    Ok(count(connection).await? >= UNITS_MAX)
}

/// Returns how many units there are.
///
/// # Errors
/// If the database fails.
pub async fn count(connection: &mut SqliteConnection) -> Result<usize, StoreError> {
    let count = sqlx::query_scalar!("SELECT count(*) FROM unit").fetch_one(connection).await?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Restores a unit from its second copy.
///
/// # Errors
/// If the database fails.
pub(super) async fn restore(
    connection: &mut SqliteConnection,
    copy: &IntentCopy,
    kept: &RestoredUnit,
) -> Result<(), StoreError> {
    let Desired { generation, revision, spec, run, frozen } = &copy.desired;
    let (name, generation, digest) = (copy.unit.as_str(), to_sql(*generation), revision.as_str());
    let (spec, observed) = (to_json("unit's spec", spec)?, to_json("observed state", kept)?);
    let ((run, playing), frozen) = (columns(*run), i64::from(*frozen));
    let broken = copy.hold.as_ref().filter(|hold| hold.reason == HoldReason::Broken);
    let (reason, broken_ms) = (broken.map(|_| "broken"), broken.map(|hold| hold.since_ms));
    sqlx::query!(
        "INSERT INTO unit (name, generation, revision, spec, run, playing, frozen, hold_reason, hold_since_ms, observed)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, revision = excluded.revision,
             spec = excluded.spec, run = excluded.run, playing = excluded.playing, frozen = excluded.frozen,
             held_by = NULL, held_since_ms = NULL, held_note = NULL, hold_reason = excluded.hold_reason,
             hold_since_ms = excluded.hold_since_ms, observed = excluded.observed",
        name,
        generation,
        digest,
        spec,
        run,
        playing,
        frozen,
        reason,
        broken_ms,
        observed
    )
    .execute(&mut *connection)
    .await?;
    if let Some(of) = &copy.owner {
        owner::set(connection, &copy.unit, of).await?;
    }
    match &copy.hold {
        Some(held) if held.reason == HoldReason::Operator => hold(connection, &copy.unit, held).await,
        _ => Ok(()),
    }
}

/// Holds a unit as if an operator did.
///
/// # Errors
/// If the database fails.
pub(super) async fn hold(connection: &mut SqliteConnection, unit: &UnitName, hold: &Hold) -> Result<(), StoreError> {
    let (name, by, note) = (unit.as_str(), hold.by.as_ref().map(Name::as_str), hold.note.as_deref());
    sqlx::query!(
        "UPDATE unit SET held_by = ?, held_since_ms = ?, held_note = ?, hold_reason = NULL, hold_since_ms = NULL
         WHERE name = ?",
        by,
        hold.since_ms,
        note,
        name
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Makes the next generation higher than each unit's, whatever the store has lost.
///
/// # Errors
/// If the database fails.
pub(super) async fn raise_generation(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO meta (key, value) SELECT 'generation', max(generation) FROM unit HAVING count(*) > 0
         ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)"
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn next_generation(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar!(
        "INSERT INTO meta (key, value) VALUES ('generation', 1)
         ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value"
    )
    .fetch_one(connection)
    .await?)
}

#[cfg(test)]
mod tests {
    use muster_topics::unit::{Exit, Phase, RolledBack, TrialReport};

    use super::*;

    fn name() -> UnitName {
        "default/hello".parse().unwrap()
    }

    fn apply(unit: &UnitName, artifact: &str, run: Option<Run>) -> Verb {
        let sha256 = Digest::of(artifact.as_bytes());
        let spec =
            format!(r#"{{"kind":"yuno","artifact":{{"sha256":"{sha256}","size_bytes":1,"role":"a","version":"1"}}}}"#);
        let spec: Spec = serde_json::from_str(&spec).unwrap();
        Verb::UnitApply { unit: unit.clone(), spec: Box::new(spec), run }
    }

    fn operator() -> Name {
        "anna".parse().unwrap()
    }

    fn asker(operator: &Name) -> ChangeContext<'_> {
        ChangeContext { operator, now_ms: 1_000, key: None, is_document: false, values: None }
    }

    async fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        (folder, store)
    }

    async fn done(store: &Store, unit: &UnitName, verb: &Verb) -> Result<Option<AppliedChange>, CommandRefusal> {
        done_with(store, unit, verb, None).await
    }

    async fn done_with(
        store: &Store,
        unit: &UnitName,
        verb: &Verb,
        key: Option<&RevisionKey>,
    ) -> Result<Option<AppliedChange>, CommandRefusal> {
        let mut tx = store.begin().await.unwrap();
        let result = edit(&mut tx, unit, verb, ChangeContext { key, ..asker(&operator()) }).await.unwrap();
        tx.commit().await.unwrap();
        result
    }

    fn generation(result: Result<Option<AppliedChange>, CommandRefusal>) -> u64 {
        result.unwrap().unwrap().generation
    }

    #[tokio::test]
    async fn verbs_edit_and_generations_grow_across_removal() {
        let (_folder, store) = store().await;
        let (unit, other) = (name(), "default/other".parse().unwrap());
        let rm = Verb::UnitRm { unit: unit.clone() };
        let retire = Verb::UnitRetire { unit: unit.clone(), note: None };
        assert_eq!(done(&store, &unit, &rm).await.unwrap_err().code, RefusalCode::NotFound);
        assert_eq!(generation(done(&store, &unit, &apply(&unit, "a", None)).await), 1);
        assert_eq!(generation(done(&store, &unit, &apply(&unit, "a", None)).await), 1);
        assert_eq!(generation(done(&store, &other, &apply(&other, "a", Some(Run::Running))).await), 2);
        assert_eq!(generation(done(&store, &unit, &apply(&unit, "b", None)).await), 3);
        assert_eq!(generation(done(&store, &unit, &retire).await), 4);
        assert_eq!(done(&store, &unit, &rm).await, Ok(None));
        assert_eq!(generation(done(&store, &unit, &apply(&unit, "a", None)).await), 5);

        let StoredUnits { units, .. } = store.units().await.unwrap();
        let seen: Vec<_> =
            units.iter().map(|row| (row.name.as_str(), row.desired.generation, row.desired.run)).collect();
        assert_eq!(seen, [("default/hello", 5, Run::Stopped), ("default/other", 2, Run::Running)]);
        assert_eq!(units[0].desired.revision, units[0].desired.spec.revision().unwrap());
        assert_eq!(units[0].kept.observed, Observed::absent(1_000));
    }

    /// Returns a verb that applies a spec with a secret, and its bare revision.
    fn with_pin(unit: &UnitName, pin: &str, change: impl FnOnce(&mut Spec)) -> (Verb, Digest) {
        let Verb::UnitApply { mut spec, .. } = apply(unit, "a", None) else { panic!("an apply") };
        spec.program_mut().unwrap().env.insert("PIN".to_owned(), pin.to_owned());
        change(&mut spec);
        let bare = spec.revision().unwrap();
        (Verb::UnitApply { unit: unit.clone(), spec, run: None }, bare)
    }

    #[tokio::test]
    async fn revisions_with_secrets_differ_by_host() {
        let unit = name();
        let (verb, bare) = with_pin(&unit, "4711", |_| ());
        let mut told = Vec::new();
        for byte in [1, 2] {
            let (_folder, store) = store().await;
            let key = RevisionKey::from_bytes([byte; 32]);
            let one = done_with(&store, &unit, &verb, Some(&key)).await.unwrap().unwrap();
            let again = done_with(&store, &unit, &verb, Some(&key)).await.unwrap().unwrap();
            assert_eq!(one, again, "nothing has changed");
            told.push(one.revision.clone());
            // A restart request changes the keyed revision, others do not.
            let run = Verb::UnitRun { unit: unit.clone() };
            let restart = Verb::UnitRestart { unit: unit.clone() };
            assert_eq!(done_with(&store, &unit, &run, Some(&key)).await.unwrap().unwrap().revision, one.revision);
            told.push(done_with(&store, &unit, &restart, Some(&key)).await.unwrap().unwrap().revision);
            let stored = store.units().await.unwrap().units.remove(0).desired;
            assert_eq!((Some(&stored.revision), key.is_of(&unit, &stored.spec, &stored.revision)), (told.last(), true));
            assert_ne!(stored.revision, stored.spec.revision().unwrap());
        }
        told.push(bare);
        let different: std::collections::BTreeSet<&Digest> = told.iter().collect();
        assert_eq!(different.len(), told.len(), "{told:?}");
    }

    #[tokio::test]
    async fn unkeyed_revision_is_kept_until_the_unit_changes() {
        let (_folder, store) = store().await;
        let (unit, key) = (name(), RevisionKey::from_bytes([1; 32]));
        let (verb, bare) = with_pin(&unit, "4711", |_| ());
        let before = done_with(&store, &unit, &verb, None).await.unwrap().unwrap();
        assert_eq!(before.revision, bare);
        assert_eq!(done_with(&store, &unit, &verb, Some(&key)).await.unwrap().unwrap(), before);
        // A label does not change the revision, keyed or not.
        let labelled = with_pin(&unit, "4711", |spec| {
            spec.common_mut().labels.insert("tier".parse().unwrap(), "gold".parse().unwrap());
        });
        let after = done_with(&store, &unit, &labelled.0, Some(&key)).await.unwrap().unwrap();
        assert_eq!((after.generation, after.revision), (before.generation + 1, bare));
        // Another value does.
        let (verb, bare) = with_pin(&unit, "4712", |_| ());
        let keyed = done_with(&store, &unit, &verb, Some(&key)).await.unwrap().unwrap();
        assert_ne!(keyed.revision, bare);
        // A host that got another key does not restart it for that.
        for key in [None, Some(&RevisionKey::from_bytes([2; 32]))] {
            let labelled = with_pin(&unit, "4712", |spec| {
                let tier = if key.is_some() { "tin" } else { "iron" };
                spec.common_mut().labels.insert("tier".parse().unwrap(), tier.parse().unwrap());
            });
            let after = done_with(&store, &unit, &labelled.0, key).await.unwrap().unwrap();
            assert_eq!(after.revision, keyed.revision);
        }
        // Without a secret there is nothing to key.
        let Verb::UnitApply { spec, .. } = apply(&unit, "a", None) else { panic!("an apply") };
        let plain = done_with(&store, &unit, &apply(&unit, "a", None), Some(&key)).await.unwrap().unwrap();
        assert_eq!(plain.revision, spec.revision().unwrap());
    }

    #[tokio::test]
    async fn desired_play_state_is_stored() {
        let (_folder, store) = store().await;
        let unit = name();
        let Verb::UnitApply { spec, .. } = apply(&unit, "a", None) else { panic!("an apply") };
        let Spec::Yuno(mut spec) = *spec else { panic!("a yuno") };
        spec.channel = muster_topics::unit::Channel::Lines;
        for run in [Run::Playing, Run::Stopped, Run::Playing] {
            let spec = Box::new(Spec::Yuno(spec.clone()));
            let verb = Verb::UnitApply { unit: unit.clone(), spec, run: Some(run) };
            done(&store, &unit, &verb).await.unwrap();
            assert_eq!(store.units().await.unwrap().units[0].desired.run, run);
        }
        done(&store, &unit, &Verb::UnitPause { unit: unit.clone() }).await.unwrap();
        assert_eq!(store.units().await.unwrap().units[0].desired.run, Run::Running);
    }

    #[tokio::test]
    async fn what_a_change_owes_goes_with_its_rollback() {
        let (_folder, store) = store().await;
        let unit = name();
        let revisions = ["before", "after"].map(|text| Digest::of(text.as_bytes()));
        let mut tx = store.begin().await.unwrap();
        for revision in &revisions {
            let restart = muster_topics::files::ChangeAction::Restart("default/other".parse().unwrap());
            owed::add(&mut tx, &unit, revision, &[restart], 1).await.unwrap();
        }
        tx.commit().await.unwrap();
        let mut kept = RestoredUnit::new(Observed::absent(5));
        store.keep_unit(&unit, 1, &kept, None).await.unwrap();
        assert_eq!(store.owed().await.unwrap().len(), 2);
        let [to, revision] = revisions.clone();
        kept.observed.trial = TrialReport::RolledBack(RolledBack {
            generation: 1,
            revision,
            to,
            error: "exit code 1".into(),
            at_ms: 6,
            last_lines: None,
        });
        store.keep_unit(&unit, 1, &kept, None).await.unwrap();
        let left: Vec<Digest> = store.owed().await.unwrap().into_iter().map(|one| one.revision).collect();
        assert_eq!(left, revisions[..1]);
    }

    #[tokio::test]
    async fn observed_state_is_kept_and_late_hold_dropped() {
        let (_folder, store) = store().await;
        let unit = name();
        done(&store, &unit, &apply(&unit, "a", Some(Run::Running))).await.unwrap();
        let observed = Observed {
            last_end: Some(Exit::Signal(11).into()),
            attempts: 9,
            state: Phase::Failed.into(),
            ..Observed::absent(5)
        };
        let kept = RestoredUnit { restarts: 3, ..RestoredUnit::new(observed) };
        let hold = Hold::new(HoldReason::Broken, 7);
        store.keep_unit(&unit, 1, &kept, Some(&hold)).await.unwrap();
        let row = store.units().await.unwrap().units.remove(0);
        assert_eq!((&row.kept, row.hold.as_ref()), (&kept, Some(&hold)));

        // `run` is a new attempt, without the hold; the observed state stays.
        let run = Verb::UnitRun { unit: unit.clone() };
        assert_eq!(generation(done(&store, &unit, &run).await), 2);
        store.keep_unit(&unit, 1, &kept, Some(&hold)).await.unwrap();
        let row = store.units().await.unwrap().units.remove(0);
        assert_eq!((&row.kept, row.hold), (&kept, None));

        // Observing a removed unit does not create one.
        store.keep_unit(&"default/gone".parse().unwrap(), 1, &kept, None).await.unwrap();
        assert_eq!(store.units().await.unwrap().units.len(), 1);
    }

    #[tokio::test]
    async fn operators_hold_is_kept_until_unhold() {
        let (_folder, store) = store().await;
        let unit = name();
        done(&store, &unit, &apply(&unit, "a", Some(Run::Running))).await.unwrap();
        let kept = RestoredUnit::new(Observed::absent(5));
        let broken = Hold::new(HoldReason::Broken, 7);
        store.keep_unit(&unit, 1, &kept, Some(&broken)).await.unwrap();
        let hold = Verb::UnitHold { unit: unit.clone(), note: Some("audit".to_owned()) };
        let applied = done(&store, &unit, &hold).await.unwrap().unwrap();
        let held = Hold {
            reason: HoldReason::Operator,
            since_ms: 1_000,
            by: Some(operator()),
            note: Some("audit".to_owned()),
        };
        assert_eq!((applied.generation, applied.hold.as_ref()), (2, Some(&held)));
        // Whatever is desired, and whatever is observed.
        store.keep_unit(&unit, 2, &kept, Some(&held)).await.unwrap();
        let applied = done(&store, &unit, &apply(&unit, "b", None)).await.unwrap().unwrap();
        assert_eq!((applied.generation, applied.hold.as_ref()), (3, Some(&held)));
        store.keep_unit(&unit, 3, &kept, Some(&broken)).await.unwrap();
        let hold_now = || async { store.units().await.unwrap().units.remove(0).hold };
        assert_eq!(hold_now().await.as_ref(), Some(&held));
        let freeze = Verb::UnitFreeze { unit: unit.clone() };
        done(&store, &unit, &freeze).await.unwrap();
        let row = store.units().await.unwrap().units.remove(0);
        assert_eq!((row.desired.frozen, row.hold.as_ref()), (true, Some(&held)));
        // A unit that is as requested keeps its generation, and reports its hold.
        let applied = done(&store, &unit, &freeze).await.unwrap().unwrap();
        assert_eq!((applied.generation, applied.hold), (4, Some(held)));

        let unhold = Verb::UnitUnhold { unit: unit.clone() };
        let applied = done(&store, &unit, &unhold).await.unwrap().unwrap();
        assert_eq!((applied.generation, applied.hold, hold_now().await), (5, None, None));
        assert_eq!(generation(done(&store, &unit, &unhold).await), 5);
    }

    #[tokio::test]
    async fn dependency_cycle_is_refused_with_names() {
        let (_folder, store) = store().await;
        let requires = |unit: &str, needed: &str| {
            let Verb::UnitApply { mut spec, .. } = apply(&name(), "a", None) else { unreachable!() };
            let Spec::Yuno(yuno) = &mut *spec else { panic!("a yuno") };
            yuno.common.requires = vec![needed.parse().unwrap()];
            Verb::UnitApply { unit: unit.parse().unwrap(), spec, run: None }
        };
        for (unit, needed) in [("default/a", "default/b"), ("default/b", "default/c")] {
            done(&store, &unit.parse().unwrap(), &requires(unit, needed)).await.unwrap();
        }
        let refused =
            done(&store, &"default/c".parse().unwrap(), &requires("default/c", "default/a")).await.unwrap_err();
        assert_eq!(refused.code, RefusalCode::Conflict);
        assert!(refused.diagnostic.cause.contains("default/c → default/a → default/b → default/c"), "{refused:?}");
        assert_eq!(store.units().await.unwrap().units.len(), 2);
    }

    #[tokio::test]
    async fn rolled_back_edit_leaves_nothing() {
        let (_folder, store) = store().await;
        let unit = name();
        let mut tx = store.begin().await.unwrap();
        edit(&mut tx, &unit, &apply(&unit, "a", None), asker(&operator())).await.unwrap().unwrap();
        drop(tx);
        assert_eq!(store.units().await.unwrap().units, []);
        assert_eq!(generation(done(&store, &unit, &apply(&unit, "a", None)).await), 1);
    }

    #[tokio::test]
    async fn too_many_units_are_refused() {
        let (_folder, store) = store().await;
        let mut tx = store.begin().await.unwrap();
        for number in 0..UNITS_MAX {
            let unit = format!("default/u{number}").parse().unwrap();
            edit(&mut tx, &unit, &apply(&unit, "a", None), asker(&operator())).await.unwrap().unwrap();
        }
        let one_more = "default/more".parse().unwrap();
        let refused =
            edit(&mut tx, &one_more, &apply(&one_more, "a", None), asker(&operator())).await.unwrap().unwrap_err();
        assert_eq!(refused.code, RefusalCode::Conflict);
        let known = "default/u7".parse().unwrap();
        edit(&mut tx, &known, &apply(&known, "b", None), asker(&operator())).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn unreadable_unit_does_not_hide_others() {
        let (_folder, store) = store().await;
        let (good, bad) = (name(), "default/bad".parse().unwrap());
        done(&store, &good, &apply(&good, "a", None)).await.unwrap();
        done(&store, &bad, &apply(&bad, "a", None)).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        sqlx::query("UPDATE unit SET spec = '{\"kind\":\"unheard\"}' WHERE name = 'default/bad'")
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let StoredUnits { units, unreadable, .. } = store.units().await.unwrap();
        assert_eq!(units.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["default/hello"]);
        assert_eq!(unreadable, ["default/bad"]);
        let rm = Verb::UnitRm { unit: bad.clone() };
        assert_eq!(done(&store, &bad, &rm).await.unwrap_err().code, RefusalCode::Conflict);
    }
}
