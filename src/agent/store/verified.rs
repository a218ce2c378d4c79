//! The last verified revision of each unit, and its ports.
//!
//! It is written in the transaction that writes the observed state; so at no moment a unit
//! is rolled back without a record of the revision.
//!
//! **Invariant: the ports of a revision that can be rolled back to stay leased to its unit**, until another is
//! verified.

use std::{collections::BTreeMap, sync::Arc};

use muster_rules::{
    CommandRefusal,
    plan::{RestoredUnit, VerifiedRevision},
    port_lease::PortLease,
};
use muster_topics::{
    endpoint::Provided,
    name::UnitName,
    unit::{Observed, Spec},
};
use sqlx::SqliteConnection;

use super::{columns::to_json, error::StoreError, port_lease};

/// Returns the verified revisions of all units, by name. An unreadable one is treated as missing: then there is nothing
/// to roll back to.
///
/// # Errors
/// If the database fails.
pub(super) async fn all(
    connection: &mut SqliteConnection,
) -> Result<BTreeMap<String, Arc<VerifiedRevision>>, StoreError> {
    let rows =
        sqlx::query!(r#"SELECT unit AS "unit!", revision, spec, since_ms FROM verified"#).fetch_all(connection).await?;
    let read = |(revision, spec, since_ms): (String, &str, i64)| -> Result<_, serde_json::Error> {
        let revision = serde_json::from_value(serde_json::Value::String(revision))?;
        Ok(Arc::new(VerifiedRevision { revision, spec: serde_json::from_str(spec)?, since_ms }))
    };
    let verified = rows.into_iter().filter_map(|row| match read((row.revision, &row.spec, row.since_ms)) {
        Ok(verified) => Some((row.unit, verified)),
        Err(error) => {
            tracing::error!(unit = row.unit, %error, "its verified revision cannot be read, so it cannot be rolled back");
            None
        }
    });
    Ok(verified.collect())
}

/// Stores a unit's verified revision, and updates its ports. Does nothing if the unit was removed.
///
/// # Errors
/// If the database fails.
pub(super) async fn keep(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    kept: &RestoredUnit,
) -> Result<(), StoreError> {
    let name = unit.as_str();
    let Some(verified) = &kept.verified else {
        sqlx::query!("DELETE FROM verified WHERE unit = ?", name).execute(connection).await?;
        return Ok(());
    };
    let (revision, spec) = (verified.revision.as_str(), to_json("verified spec", &verified.spec)?);
    let written = sqlx::query!(
        "INSERT INTO verified (unit, revision, spec, since_ms) SELECT name, ?, ?, ? FROM unit WHERE name = ?
         ON CONFLICT (unit) DO UPDATE SET revision = excluded.revision, spec = excluded.spec, since_ms = excluded.since_ms
         WHERE revision != excluded.revision OR spec != excluded.spec",
        revision,
        spec,
        verified.since_ms,
        name
    )
    .execute(&mut *connection)
    .await?;
    if written.rows_affected() > 0 {
        give_back_ports(connection, unit, &verified.spec).await?;
    }
    take_back_ports(connection, unit, verified, &kept.observed).await
}

/// Removes leases that neither the verified nor the desired revision needs.
async fn give_back_ports(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    verified: &Spec,
) -> Result<(), StoreError> {
    let name = unit.as_str();
    let spec = sqlx::query_scalar!("SELECT spec FROM unit WHERE name = ?", name).fetch_one(&mut *connection).await?;
    // An unreadable spec may need any of them.
    let Ok(desired) = serde_json::from_str::<Spec>(&spec) else { return Ok(()) };
    let is_needed = |lease: &PortLease| {
        let mut provided = desired.provides().iter().chain(verified.provides());
        provided.any(|provided| provided.name == lease.name)
    };
    for lease in port_lease::all(connection).await?.iter().filter(|lease| lease.unit == *unit && !is_needed(lease)) {
        let endpoint = lease.name.as_str();
        sqlx::query!("DELETE FROM lease WHERE unit = ? AND name = ?", name, endpoint).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Restores the ports of a unit that was rolled back: an endpoint of the same name may have another port since.
async fn take_back_ports(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    verified: &VerifiedRevision,
    observed: &Observed,
) -> Result<(), StoreError> {
    let provides = verified.spec.provides();
    if observed.rolled_back().is_none() || provides.is_empty() {
        return Ok(());
    }
    let leases = port_lease::all(connection).await?;
    let has = |provided: &Provided| leases.iter().any(|lease| lease.unit == *unit && lease.is_for(provided));
    if provides.iter().all(has) {
        return Ok(());
    }
    match port_lease::find(connection, unit, provides).await? {
        Ok(leases) => port_lease::set(connection, unit, &leases).await,
        // It continues with the ports that it has, and reports itself what it cannot bind.
        Err(CommandRefusal { diagnostic, .. }) => {
            tracing::error!(%unit, reason = diagnostic.cause, hint = diagnostic.hint, "it was rolled back, and its port was leased to another unit since");
            Ok(())
        }
    }
}

/// Returns what a unit needs leases for: its endpoints, and those of the revision that it may be rolled back to.
pub(super) fn ports(desired: &Spec, verified: Option<&VerifiedRevision>) -> Vec<Provided> {
    let mut provides = desired.provides().to_vec();
    if let Some(verified) = verified {
        let is_other = |provided: &&Provided| {
            let clashes = |other: &Provided| {
                let same_port = provided.port.is_some() && provided.port == other.port;
                other.name == provided.name || same_port && provided.protocol == other.protocol
            };
            !desired.provides().iter().any(clashes)
        };
        provides.extend(verified.spec.provides().iter().filter(is_other).cloned());
    }
    provides
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        command::Verb,
        name::Digest,
        unit::{RolledBack, Run, TrialReport},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::store::{
        Store,
        unit::{ChangeContext, edit},
    };

    fn name() -> UnitName {
        "default/till".parse().unwrap()
    }

    fn spec(artifact: &str, provides: Value) -> Spec {
        let sha256 = Digest::of(artifact.as_bytes());
        let artifact = json!({"sha256": sha256, "size_bytes": 1, "role": "a", "version": "1"});
        serde_json::from_value(json!({"kind": "yuno", "artifact": artifact, "provides": provides})).unwrap()
    }

    struct Bench {
        _folder: tempfile::TempDir,
        store: Store,
        generation: u64,
    }

    impl Bench {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
            Self { _folder: folder, store, generation: 0 }
        }

        async fn apply(&mut self, spec: &Spec) {
            let verb = Verb::UnitApply { unit: name(), spec: Box::new(spec.clone()), run: Some(Run::Running) };
            self.done(&verb).await;
        }

        async fn done(&mut self, verb: &Verb) {
            let mut tx = self.store.begin().await.unwrap();
            let operator = "anna".parse().unwrap();
            let applied = edit(
                &mut tx,
                &name(),
                verb,
                ChangeContext { operator: &operator, now_ms: 1, key: None, is_document: false, values: None },
            )
            .await
            .unwrap()
            .unwrap();
            tx.commit().await.unwrap();
            self.generation = applied.map_or(0, |applied| applied.generation);
        }

        /// Stores a verified revision, and whether the unit was rolled back to it.
        async fn keep(&self, spec: &Spec, is_back: bool) {
            let revision = spec.revision().unwrap();
            let back = RolledBack {
                generation: self.generation,
                revision: Digest::of(b"bad"),
                to: revision.clone(),
                error: "exit code 1".into(),
                at_ms: 5,
                last_lines: None,
            };
            let trial = if is_back { TrialReport::RolledBack(back) } else { TrialReport::Verified(back.to) };
            let verified = Some(Arc::new(VerifiedRevision { revision, spec: spec.clone().into(), since_ms: 5 }));
            let kept = RestoredUnit { verified, ..RestoredUnit::new(Observed { trial, ..Observed::absent(5) }) };
            self.store.keep_unit(&name(), self.generation, &kept, None).await.unwrap();
            let found = self.store.units().await.unwrap().units.into_iter().find(|row| row.name == name());
            if let Some(row) = found {
                assert_eq!(row.kept, kept);
            }
        }

        /// Returns the names and ports of its leases.
        async fn ports(&self) -> Vec<(String, u16)> {
            let leases = self.store.units().await.unwrap().leases;
            let mut ports: Vec<_> = leases.into_iter().map(|lease| (lease.name.to_string(), lease.port)).collect();
            ports.sort();
            ports
        }
    }

    #[tokio::test]
    async fn verified_revision_is_stored_until_unit_is_removed() {
        let mut bench = Bench::new().await;
        let (good, patient) = (spec("a", json!([])), spec("b", json!([])));
        // Nothing is stored for a removed unit.
        bench.keep(&good, false).await;
        bench.apply(&good).await;
        assert_eq!(bench.store.units().await.unwrap().units[0].kept.verified, None);
        bench.keep(&good, false).await;
        bench.keep(&patient, true).await;
        bench.done(&Verb::UnitRetire { unit: name(), note: None }).await;
        bench.done(&Verb::UnitRm { unit: name() }).await;
        bench.apply(&good).await;
        assert_eq!(bench.store.units().await.unwrap().units[0].kept.verified, None);
    }

    #[tokio::test]
    async fn verified_revision_keeps_its_ports() {
        let mut bench = Bench::new().await;
        let (good, bad) = (spec("a", json!([{"name": "http"}])), spec("b", json!([{"name": "other"}])));
        bench.apply(&good).await;
        bench.keep(&good, false).await;
        let http = bench.ports().await;
        bench.apply(&bad).await;
        let both = bench.ports().await;
        assert_eq!((both.len(), &both[..1]), (2, &http[..]));
        bench.keep(&good, true).await;
        assert_eq!(bench.ports().await, both);
        // A verified desired revision needs only its own ports.
        bench.apply(&bad).await;
        bench.keep(&bad, false).await;
        assert_eq!(bench.ports().await, both[1..]);
    }

    #[tokio::test]
    async fn earlier_port_is_leased_again() {
        let mut bench = Bench::new().await;
        let with = |artifact: &str, port: u16| spec(artifact, json!([{"name": "http", "port": port}]));
        let is = |port: u16| vec![("http".to_owned(), port)];
        bench.apply(&with("a", 20_001)).await;
        bench.keep(&with("a", 20_001), false).await;
        bench.apply(&with("b", 20_002)).await;
        assert_eq!(bench.ports().await, is(20_002));
        bench.keep(&with("a", 20_001), true).await;
        assert_eq!(bench.ports().await, is(20_001));
        // Another attempt of the same revision.
        bench.done(&Verb::UnitRun { unit: name() }).await;
        assert_eq!(bench.ports().await, is(20_002));
    }
}
