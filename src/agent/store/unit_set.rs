//! Applies sets of units: all of them or none.
//!
//! Each unit is edited as if it were alone ([`super::unit::edit`]), in one transaction that the caller ends:
//! a refused set is rolled back. Ports that units of the set release are free for its other units.

use muster_rules::CommandRefusal;
use muster_topics::{
    Millis,
    command::{SET_PARTS_MAX, SetPart, UnitWish, Verb},
    diagnostic::Diagnostic,
    name::UnitName,
    outcome::{AppliedUnit, RefusalCode},
    unit::Hold,
};
use sqlx::SqliteConnection;

use super::{
    columns::to_json,
    error::StoreError,
    port_lease,
    unit::{AppliedChange, ChangeContext, edit, find},
};

/// The most refused units that are named, each with its reason: further ones appear once these are fixed.
const REFUSED_MAX: usize = 20;

/// Stores a part of a set. Returns the whole set once it is complete; its parts are removed then.
///
/// # Errors
/// If the database fails; an invalid part is the inner error.
pub async fn gather(
    connection: &mut SqliteConnection,
    part: SetPart,
    units: &[UnitWish],
    expires_ms: Millis,
) -> Result<Result<Option<Vec<UnitWish>>, CommandRefusal>, StoreError> {
    let SetPart { set, number, of } = part;
    if !(1..=SET_PARTS_MAX).contains(&of) || !(1..=of).contains(&number) {
        let message = format!("the set has part {number} of {of}, and a set has from 1 to {SET_PARTS_MAX}");
        return Ok(Err(CommandRefusal::new(RefusalCode::Invalid, message)));
    }
    let (set, number) = (set.to_string(), i64::from(number));
    let text = to_json("set of units", &units)?;
    sqlx::query!(
        "INSERT INTO unit_set_part (set_id, number, units, expires_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        set,
        number,
        text,
        expires_ms
    )
    .execute(&mut *connection)
    .await?;
    let parts = sqlx::query_scalar!("SELECT units FROM unit_set_part WHERE set_id = ? ORDER BY number", set)
        .fetch_all(&mut *connection)
        .await?;
    if parts.len() < of as usize {
        return Ok(Ok(None));
    }
    sqlx::query!("DELETE FROM unit_set_part WHERE set_id = ?", set).execute(connection).await?;
    let mut all = Vec::new();
    for part in parts {
        let read = serde_json::from_str::<Vec<UnitWish>>(&part);
        all.extend(read.map_err(|source| StoreError::Content { what: "set of units", source })?);
    }
    Ok(Ok(Some(all)))
}

/// Removes the parts of a finished set, and of sets that expired before they were complete.
///
/// # Errors
/// If the database fails.
pub async fn forget(
    connection: &mut SqliteConnection,
    part: Option<SetPart>,
    now_ms: Millis,
) -> Result<(), StoreError> {
    let set = part.map(|part| part.set.to_string()).unwrap_or_default();
    sqlx::query!("DELETE FROM unit_set_part WHERE set_id = ? OR expires_ms < ?", set, now_ms)
        .execute(connection)
        .await?;
    Ok(())
}

/// Applies the desired state of several units.
///
/// # Errors
/// If the database fails. If units are refused, the inner error names them.
pub async fn apply(
    connection: &mut SqliteConnection,
    units: &[UnitWish],
    asker: ChangeContext<'_>,
) -> Result<Result<Vec<AppliedUnit>, CommandRefusal>, StoreError> {
    let mut refused: Vec<(&UnitName, CommandRefusal)> = Vec::new();
    for wish in units {
        let there = match find(connection, &wish.unit).await {
            // The edit reports it.
            Err(StoreError::Content { .. }) => continue,
            other => other?,
        };
        match there {
            Some(_) if wish.new => refused.push((&wish.unit, exists(&wish.unit))),
            Some(_) => port_lease::give_up(connection, &wish.unit, wish.spec.provides()).await?,
            None => {}
        }
    }
    let mut applied: Vec<AppliedUnit> = Vec::new();
    for wish in units.iter().filter(|wish| refused.iter().all(|(unit, _)| **unit != wish.unit)).collect::<Vec<_>>() {
        let UnitWish { unit, spec, run, .. } = wish;
        let verb = Verb::UnitApply { unit: unit.clone(), spec: spec.clone(), run: *run };
        match edit(connection, unit, &verb, asker).await? {
            Ok(Some(AppliedChange { generation, hold, .. })) => applied.push(AppliedUnit {
                unit: unit.clone(),
                generation,
                hold: hold.as_ref().map(Hold::in_short).map(Box::new),
            }),
            Ok(None) => {}
            Err(refusal) => refused.push((unit, refusal)),
        }
    }
    Ok(match &refused[..] {
        [] => Ok(applied),
        [(_, first), ..] => Err(CommandRefusal::new(first.code, told(&refused))),
    })
}

fn exists(unit: &UnitName) -> CommandRefusal {
    let message = Diagnostic::new(format_args!("unit {unit} already exists on this host"))
        .with_hint("choose another name; `--replace`, or `muster unit apply`, changes the existing one");
    CommandRefusal::new(RefusalCode::Conflict, message)
}

/// Formats all refusals, each with its unit.
fn told(refused: &[(&UnitName, CommandRefusal)]) -> Diagnostic {
    let line = |(unit, refusal): &(&UnitName, CommandRefusal)| match refusal.diagnostic.cause.contains(unit.as_str()) {
        true => refusal.diagnostic.clone(),
        false => refusal.diagnostic.clone().within(unit),
    };
    if let [one] = refused {
        return line(one);
    }
    let mut lines: Vec<Diagnostic> = refused.iter().take(REFUSED_MAX).map(line).collect();
    if let Some(more) = refused.len().checked_sub(REFUSED_MAX).filter(|more| *more > 0) {
        lines.push(format!("and {more} more").into());
    }
    Diagnostic::all(lines).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        common::ProgramSpec,
        name::{CommandId, Name},
        unit::{ArtifactRef, Run, Spec, UNITS_MAX, YunoSpec},
    };

    use super::*;
    use crate::store::{Store, unit::StoredUnit};

    struct Bench {
        _folder: tempfile::TempDir,
        store: Store,
        operator: Name,
    }

    impl Bench {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
            Self { _folder: folder, store, operator: "anna".parse().unwrap() }
        }

        /// Applies a set as the agent does: a refusal is rolled back.
        async fn apply(&self, units: &[UnitWish]) -> Result<Vec<AppliedUnit>, CommandRefusal> {
            let mut tx = self.store.begin().await.unwrap();
            let asker =
                ChangeContext { operator: &self.operator, now_ms: 1, key: None, is_document: false, values: None };
            let applied = apply(&mut tx, units, asker).await.unwrap();
            match applied {
                Ok(_) => tx.commit().await.unwrap(),
                Err(_) => tx.rollback().await.unwrap(),
            }
            applied
        }

        async fn units(&self) -> Vec<StoredUnit> {
            self.store.units().await.unwrap().units
        }

        async fn gather(&self, part: SetPart, units: &[UnitWish]) -> Result<Option<Vec<UnitWish>>, CommandRefusal> {
            let mut tx = self.store.begin().await.unwrap();
            let gathered = gather(&mut tx, part, units, 100).await.unwrap();
            tx.commit().await.unwrap();
            gathered
        }
    }

    /// A unit that provides an endpoint, at this port if given.
    fn wish(name: &str, port: Option<u16>) -> UnitWish {
        let artifact = ArtifactRef {
            sha256: muster_topics::name::Digest::of(b"a"),
            size_bytes: 1,
            role: "a".parse().unwrap(),
            version: "1".parse().unwrap(),
            manifest: None,
        };
        let provides = port.map(|port| serde_json::json!([{"name": "http", "port": port}])).unwrap_or_default();
        let provides = serde_json::from_value(provides).unwrap_or_default();
        let spec = Spec::Yuno(YunoSpec {
            program: ProgramSpec { provides, ..ProgramSpec::default() },
            ..YunoSpec::new(artifact)
        });
        UnitWish { unit: name.parse().unwrap(), spec: Box::new(spec), run: Some(Run::Running), new: false }
    }

    #[tokio::test]
    async fn set_with_one_refusal_changes_nothing() {
        let bench = Bench::new().await;
        bench.apply(&[wish("d/old", Some(19_001))]).await.unwrap();
        let units = [
            wish("d/a", Some(19_002)),
            wish("d/b", Some(19_002)),
            wish("d/c", Some(19_001)),
            wish("d/d", None),
            UnitWish { new: true, ..wish("d/old", None) },
        ];
        let refusal = bench.apply(&units).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Conflict);
        for words in [
            "d/b: tcp port 19002 is leased to d/a",
            "d/c: tcp port 19001 is leased to d/old",
            "unit d/old already exists on this host",
        ] {
            assert!(refusal.diagnostic.cause.contains(words), "{}", refusal.diagnostic);
        }
        let left: Vec<String> = bench.units().await.iter().map(|unit| unit.name.to_string()).collect();
        assert_eq!(left, ["d/old"]);
        assert_eq!(bench.store.units().await.unwrap().leases.len(), 1);
    }

    #[tokio::test]
    async fn set_beyond_the_unit_limit_is_refused() {
        let bench = Bench::new().await;
        let units = |count: usize| (0..count).map(|number| wish(&format!("d/u{number}"), None)).collect::<Vec<_>>();
        let refusal = bench.apply(&units(UNITS_MAX + 4)).await.unwrap_err();
        assert!(refusal.diagnostic.cause.contains("256 units, the maximum"), "{}", refusal.diagnostic);
        assert_eq!(bench.units().await.len(), 0);
        assert_eq!(bench.apply(&units(UNITS_MAX)).await.unwrap().len(), UNITS_MAX);
        assert_eq!(bench.units().await.len(), UNITS_MAX);
    }

    #[tokio::test]
    async fn units_of_a_set_can_swap_ports() {
        let bench = Bench::new().await;
        bench.apply(&[wish("d/a", Some(19_011)), wish("d/b", Some(19_012))]).await.unwrap();
        bench.apply(&[wish("d/a", Some(19_012)), wish("d/b", Some(19_011))]).await.unwrap();
        let mut leases = bench.store.units().await.unwrap().leases;
        leases.sort_by_key(|lease| lease.port);
        let found: Vec<(&str, u16)> = leases.iter().map(|lease| (lease.unit.as_str(), lease.port)).collect();
        assert_eq!(found, [("d/b", 19_011), ("d/a", 19_012)]);
        // Applied alone, it must not take another unit's port.
        assert!(bench.apply(&[wish("d/a", Some(19_011))]).await.is_err());
    }

    #[tokio::test]
    async fn parts_of_a_set_arrive_in_any_order() {
        let bench = Bench::new().await;
        let (set, other) = (CommandId::new(), CommandId::new());
        let part = |set, number| SetPart { set, number, of: 3 };
        let wishes: Vec<UnitWish> = ["d/a", "d/b", "d/c"].map(|name| wish(name, None)).into();
        for (set, number) in [(set, 3), (set, 3), (other, 1), (set, 1)] {
            let kept = bench.gather(part(set, number), &wishes[number as usize - 1..number as usize]).await;
            assert_eq!(kept.unwrap(), None);
        }
        assert_eq!(bench.gather(part(set, 2), &wishes[1..2]).await.unwrap().unwrap(), wishes);
        for (number, of) in [(0, 3), (4, 3), (1, SET_PARTS_MAX + 1)] {
            assert!(bench.gather(SetPart { set, number, of }, &wishes).await.is_err());
        }
        // Another set waits until it expires.
        let mut tx = bench.store.begin().await.unwrap();
        let kept = async |tx: &mut SqliteConnection| {
            sqlx::query_scalar::<_, i64>("SELECT count(*) FROM unit_set_part").fetch_one(tx).await.unwrap()
        };
        forget(&mut tx, None, 100).await.unwrap();
        assert_eq!(kept(&mut tx).await, 1);
        forget(&mut tx, None, 101).await.unwrap();
        assert_eq!(kept(&mut tx).await, 0);
    }
}
