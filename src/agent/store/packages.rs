//! What units have done to the packages of their host: each run of the package manager with its changes, and what else they have left.
//!
//! **Invariant: a change is in the store before it is made.** So an interrupted one can be undone, and nothing of a unit stays
//! when it is removed.

use std::collections::BTreeSet;

use muster_rules::packages::change::PackageChange;
use muster_topics::{
    Millis,
    files::ChangeAction,
    name::{Digest, UnitName},
    packages::PackagesSpec,
};

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
    owed,
};

/// What a unit has done in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRun {
    /// Its number, which grows.
    pub number: u64,
    /// The revision.
    pub revision: Digest,
    /// Its spec.
    pub spec: PackagesSpec,
    /// The changes.
    pub changes: Vec<PackageChange>,
    /// Whether everything was as the spec says at its end.
    pub is_done: bool,
}

impl PackageRun {
    /// What its changes want to be done.
    #[must_use]
    pub fn owes(&self) -> Vec<ChangeAction> {
        let is_changed = |name: &String| self.changes.iter().any(|change| change.name == *name);
        let notices = self.spec.on_change.iter().filter(|notice| {
            if notice.of.is_empty() { !self.changes.is_empty() } else { notice.of.iter().any(is_changed) }
        });
        notices.map(|notice| notice.action.clone()).collect()
    }
}

/// What a unit has left on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackageTrace {
    /// A hold of this package.
    Hold(String),
    /// A file, with the hash of its content.
    File(String, Digest),
}

impl PackageTrace {
    fn columns(&self) -> (&str, Option<&str>) {
        match self {
            Self::Hold(name) => (name, None),
            Self::File(path, digest) => (path, Some(digest.as_str())),
        }
    }
}

impl PackageTrace {
    /// Returns the path, if it is a file.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        if let Self::File(path, _) = self { Some(path) } else { None }
    }
}

impl Store {
    /// Returns the paths of files that other units have left.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn package_files_of_others(&self, unit: &UnitName) -> Result<BTreeSet<String>, StoreError> {
        let unit = unit.as_str();
        let rows = sqlx::query_scalar!("SELECT name FROM package_trace WHERE unit <> ? AND digest IS NOT NULL", unit);
        Ok(rows.fetch_all(&self.pool).await?.into_iter().collect())
    }

    /// Returns the runs of a unit, the oldest first. An unreadable one is logged and left out.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn package_runs(&self, unit: &UnitName) -> Result<Vec<PackageRun>, StoreError> {
        let name = unit.as_str();
        let rows = sqlx::query!(
            r#"SELECT number AS "number!", revision, spec, changes, state FROM package_run WHERE unit = ? ORDER BY number"#,
            name
        )
        .fetch_all(&self.pool)
        .await?;
        let read = |number: i64, revision: String, spec: &str, changes: &str, state: &str| {
            Ok::<_, serde_json::Error>(PackageRun {
                number: from_sql(number),
                revision: serde_json::from_value(serde_json::Value::String(revision))?,
                spec: serde_json::from_str(spec)?,
                changes: serde_json::from_str(changes)?,
                is_done: state == "done",
            })
        };
        let runs = rows.into_iter().filter_map(|row| {
            match read(row.number, row.revision, &row.spec, &row.changes, &row.state) {
                Ok(run) => Some(run),
                Err(error) => {
                    tracing::error!(%unit, %error, consequence = "its changes are not undone with the unit",
                        "the record of a unit's package changes cannot be read");
                    None
                }
            }
        });
        Ok(runs.collect())
    }

    /// Stores that a run begins, and returns its number.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn begin_package_run(
        &self,
        unit: &UnitName,
        revision: &Digest,
        spec: &PackagesSpec,
        changes: &[PackageChange],
    ) -> Result<u64, StoreError> {
        let (unit, revision) = (unit.as_str(), revision.as_str());
        let (spec, changes) = (to_json("spec", spec)?, to_json("changes", &changes)?);
        let mut tx = self.begin().await?;
        let number = sqlx::query!(
            "INSERT INTO package_run (unit, revision, spec, changes, state) VALUES (?, ?, ?, ?, 'begun')",
            unit,
            revision,
            spec,
            changes
        )
        .execute(&mut *tx)
        .await?
        .last_insert_rowid();
        super::commit(tx, "begin package run").await?;
        Ok(from_sql(number))
    }

    /// Stores that everything is as the spec of a run says, and what is owed after its changes. Runs that it has undone go, and owe
    /// nothing any more.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn end_package_run(
        &self,
        unit: &UnitName,
        run: &PackageRun,
        (undone, owed): (&[PackageRun], &[ChangeAction]),
        now_ms: Millis,
    ) -> Result<(), StoreError> {
        let (number, changes) = (to_sql(run.number), to_json("changes", &run.changes)?);
        let mut tx = self.begin().await?;
        sqlx::query!("UPDATE package_run SET state = 'done', changes = ? WHERE number = ?", changes, number)
            .execute(&mut *tx)
            .await?;
        for undone in undone {
            let number = to_sql(undone.number);
            sqlx::query!("DELETE FROM package_run WHERE number = ?", number).execute(&mut *tx).await?;
            owed::drop_of(&mut tx, unit, &undone.revision).await?;
        }
        owed::add(&mut tx, unit, &run.revision, owed, now_ms).await?;
        super::commit(tx, "end package run").await?;
        self.announce_owed();
        Ok(())
    }

    /// Stores runs of a unit as one: the last of them with the changes of all.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn fold_package_runs(
        &self,
        last: u64,
        before: &[u64],
        changes: &[PackageChange],
    ) -> Result<(), StoreError> {
        let (last, changes) = (to_sql(last), to_json("changes", &changes)?);
        let mut tx = self.begin().await?;
        sqlx::query!("UPDATE package_run SET changes = ? WHERE number = ?", changes, last).execute(&mut *tx).await?;
        for number in before {
            let number = to_sql(*number);
            sqlx::query!("DELETE FROM package_run WHERE number = ?", number).execute(&mut *tx).await?;
        }
        super::commit(tx, "fold package runs").await
    }

    /// Returns what a unit has left beside packages.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn package_traces(&self, unit: &UnitName) -> Result<Vec<PackageTrace>, StoreError> {
        let unit = unit.as_str();
        let rows =
            sqlx::query!("SELECT name, digest FROM package_trace WHERE unit = ?", unit).fetch_all(&self.pool).await?;
        let traces = rows.into_iter().filter_map(|row| match row.digest {
            None => Some(PackageTrace::Hold(row.name)),
            Some(digest) => {
                let digest = serde_json::from_value(serde_json::Value::String(digest)).ok()?;
                Some(PackageTrace::File(row.name, digest))
            }
        });
        Ok(traces.collect())
    }

    /// Stores what a unit is about to leave.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn add_package_trace(&self, unit: &UnitName, trace: &PackageTrace) -> Result<(), StoreError> {
        let (unit, (name, digest)) = (unit.as_str(), trace.columns());
        let mut tx = self.begin().await?;
        sqlx::query!(
            "INSERT INTO package_trace (unit, name, digest) VALUES (?, ?, ?)
             ON CONFLICT (unit, name) DO UPDATE SET digest = excluded.digest",
            unit,
            name,
            digest
        )
        .execute(&mut *tx)
        .await?;
        super::commit(tx, "add package trace").await
    }

    /// Stores that something is not there any more.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn remove_package_trace(&self, unit: &UnitName, trace: &PackageTrace) -> Result<(), StoreError> {
        let (unit, (name, _)) = (unit.as_str(), trace.columns());
        let mut tx = self.begin().await?;
        sqlx::query!("DELETE FROM package_trace WHERE unit = ? AND name = ?", unit, name).execute(&mut *tx).await?;
        super::commit(tx, "remove package trace").await
    }

    /// Forgets what a removed unit has done.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn forget_packages(&self, unit: &UnitName) -> Result<(), StoreError> {
        let unit = unit.as_str();
        let mut tx = self.begin().await?;
        sqlx::query!("DELETE FROM package_run WHERE unit = ?", unit).execute(&mut *tx).await?;
        sqlx::query!("DELETE FROM package_trace WHERE unit = ?", unit).execute(&mut *tx).await?;
        super::commit(tx, "forget packages").await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_and_traces_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        let (unit, other): (UnitName, UnitName) = ("default/a".parse().unwrap(), "default/b".parse().unwrap());
        let change = |name: &str| PackageChange { name: name.into(), before: None, after: Some("1".into()) };
        let (revision, spec) = (Digest::of(b"1"), PackagesSpec::new());
        let first = store.begin_package_run(&unit, &revision, &spec, &[change("a")]).await.unwrap();
        let second = store.begin_package_run(&unit, &revision, &spec, &[change("b")]).await.unwrap();
        store.begin_package_run(&other, &revision, &spec, &[]).await.unwrap();
        let runs = store.package_runs(&unit).await.unwrap();
        store.end_package_run(&unit, &runs[0], (&[], &[]), 1).await.unwrap();
        let runs = store.package_runs(&unit).await.unwrap();
        assert_eq!(
            runs.iter().map(|run| (run.number, run.is_done)).collect::<Vec<_>>(),
            [(first, true), (second, false)]
        );
        store.fold_package_runs(second, &[first], &[change("a"), change("b")]).await.unwrap();
        let runs = store.package_runs(&unit).await.unwrap();
        assert_eq!((runs.len(), runs[0].changes.len()), (1, 2));
        let (hold, file) = (PackageTrace::Hold("a".into()), PackageTrace::File("/x".into(), Digest::of(b"x")));
        store.add_package_trace(&unit, &hold).await.unwrap();
        store.add_package_trace(&unit, &file).await.unwrap();
        store.add_package_trace(&unit, &file).await.unwrap();
        store.remove_package_trace(&unit, &hold).await.unwrap();
        assert_eq!(store.package_traces(&unit).await.unwrap(), [file]);
        assert_eq!(store.package_files_of_others(&unit).await.unwrap(), BTreeSet::new());
        assert_eq!(store.package_files_of_others(&other).await.unwrap(), ["/x".to_owned()].into());
        store.forget_packages(&unit).await.unwrap();
        assert_eq!(store.package_traces(&unit).await.unwrap(), []);
        assert_eq!(store.package_runs(&unit).await.unwrap(), []);
        assert_eq!(store.package_runs(&other).await.unwrap().len(), 1);
    }
}
