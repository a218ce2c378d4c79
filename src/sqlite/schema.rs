//! Brings the tables of a store up to date, and tells a store that is damaged from one of another version.
//!
//! sqlx records in a table of the store which migrations it has. Damage of that record alone loses nothing: if the tables are those that
//! the migrations make, it is written anew. A table, a column or an index that is missing is damage as any other.
//!
//! **Invariant: no migration runs on a store that has it already**, as far as any later one is recorded.

use std::collections::BTreeSet;

use sqlx::{
    Connection, SqliteConnection,
    migrate::{MigrateError, Migrator},
    sqlite::SqliteConnectOptions,
};

use crate::form;

/// Why the tables of a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// A statement failed, or the store is of a newer version.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// Something of the store is gone, or is not as it was made.
    #[error("{0}")]
    Damaged(String),
}

impl From<sqlx::Error> for SchemaError {
    fn from(error: sqlx::Error) -> Self {
        Self::Migrate(error.into())
    }
}

/// Whether SQLite reports that the file is damaged, so that no retry can help. Stored JSON that it cannot read is
/// damaged: roles write no other, nor pass any as a parameter.
#[must_use]
pub fn is_damage(error: &sqlx::Error) -> bool {
    // SQLITE_CORRUPT and SQLITE_NOTADB.
    matches!(code(error), Some(11 | 26))
        || error.as_database_error().is_some_and(|error| error.message() == "malformed JSON")
}

/// Whether SQLite reports that a file cannot be opened or read: CANTOPEN, and IOERR of READ and SHORT_READ.
#[must_use]
pub fn is_unreadable(error: &sqlx::Error) -> bool {
    code(error) == Some(14) || matches!(extended_code(error), Some(266 | 522))
}

/// As [`is_damage`], of an error of a migration.
#[must_use]
pub fn is_damage_to_migrate(error: &MigrateError) -> bool {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => is_damage(error),
        _ => false,
    }
}

/// The low byte of SQLite's extended code.
fn code(error: &sqlx::Error) -> Option<u32> {
    Some(extended_code(error)? & 0xff)
}

fn extended_code(error: &sqlx::Error) -> Option<u32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// A migration as a store records it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordedMigration {
    version: i64,
    is_done: bool,
    checksum: Vec<u8>,
}

/// What the record of a store says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Record {
    /// It has the first migrations, or all, or those of a newer version, too.
    Right,
    /// No version of this program writes that.
    Wrong(String),
}

/// Compares the record with the migrations of this version, given by number and checksum.
fn judge(record: &[RecordedMigration], migrations: &[(i64, &[u8])]) -> Record {
    let find = |version: i64| record.iter().find(|recorded| recorded.version == version);
    let is_known = |version: i64| migrations.iter().any(|(known, _)| *known == version);
    let mut missing = None;
    for (version, checksum) in migrations {
        match find(*version) {
            None => missing = missing.or(Some(*version)),
            Some(_) if missing.is_some() => break,
            Some(recorded) if !recorded.is_done || recorded.checksum != *checksum => {
                return Record::Wrong(format!("migration {version} is recorded as another one"));
            }
            Some(_) => {}
        }
    }
    // A newer version has all of these, and more.
    let has_others = |missing: i64| record.iter().any(|one| one.version > missing || !is_known(one.version));
    match missing.filter(|missing| has_others(*missing)) {
        Some(missing) => Record::Wrong(format!("migration {missing} is not recorded, and later ones are")),
        None => Record::Right,
    }
}

/// Runs the migrations that a store lacks, and checks that it has all that they make.
///
/// # Errors
/// If a statement fails, if the store is of a newer version, or if it is damaged.
pub async fn migrate(migrator: &Migrator, connection: &mut SqliteConnection) -> Result<(), SchemaError> {
    let migrations: Vec<(i64, &[u8])> = migrator.iter().map(|one| (one.version, &*one.checksum)).collect();
    let wrong = match judge(&record(connection).await?, &migrations) {
        Record::Wrong(why) => Some(why),
        Record::Right => match migrator.run_direct(None, connection, false).await {
            Ok(()) => None,
            Err(error) if contradicts(&error) => Some(error.to_string()),
            Err(error) => return Err(error.into()),
        },
    };
    let (made, present) = (parts_made(migrator).await?, parts(connection).await?);
    // A table that is missing says all of its parts.
    let missing: Vec<&str> = made.difference(&present).map(String::as_str).collect();
    let missing =
        missing.iter().find(|part| part.starts_with("table ")).or(missing.first()).map(|part| (*part).to_owned());
    if missing.is_none() {
        form::mend(connection).await?;
    }
    match (missing, wrong) {
        (None, None) => Ok(()),
        (None, Some(why)) => {
            rewrite_record(migrator, connection).await?;
            tracing::error!(
                consequence = "the record is written again, and nothing is lost",
                hint = "check this machine's disk",
                "a store's record of its migrations is damaged: {why}",
            );
            Ok(())
        }
        (Some(missing), None) => Err(SchemaError::Damaged(format!("the {missing} is missing"))),
        (Some(missing), Some(why)) => Err(SchemaError::Damaged(format!("the {missing} is missing; {why}"))),
    }
}

/// Whether a migration failed because of what is there, or is not there.
fn contradicts(error: &MigrateError) -> bool {
    // SQLITE_ERROR, such as for a table that exists, and SQLITE_CONSTRAINT.
    matches!(error, MigrateError::ExecuteMigration(error, _) if matches!(code(error), Some(1 | 19)))
}

/// Reads the record; a store without one has an empty one.
async fn record(connection: &mut SqliteConnection) -> Result<Vec<RecordedMigration>, sqlx::Error> {
    let is_there = "SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'";
    let count: i64 = sqlx::query_scalar(is_there).fetch_one(&mut *connection).await?;
    if count == 0 {
        return Ok(Vec::new());
    }
    // A flipped bit may have made another type of a value.
    let rows: Vec<(i64, bool, Vec<u8>)> = sqlx::query_as(
        "SELECT CAST(version AS INTEGER), success IS 1, CAST(checksum AS BLOB) FROM _sqlx_migrations ORDER BY 1",
    )
    .fetch_all(connection)
    .await?;
    let recorded = |(version, is_done, checksum)| RecordedMigration { version, is_done, checksum };
    Ok(rows.into_iter().map(recorded).collect())
}

/// Writes the record of a store that has all migrations.
async fn rewrite_record(migrator: &Migrator, connection: &mut SqliteConnection) -> Result<(), SchemaError> {
    let mut transaction = connection.begin().await?;
    sqlx::query("DROP TABLE IF EXISTS _sqlx_migrations").execute(&mut *transaction).await?;
    migrator.run_direct(None, &mut *transaction, true).await?;
    Ok(transaction.commit().await?)
}

/// What the migrations make in an empty store.
async fn parts_made(migrator: &Migrator) -> Result<BTreeSet<String>, SchemaError> {
    let mut connection = SqliteConnection::connect_with(&SqliteConnectOptions::new().in_memory(true)).await?;
    migrator.run_direct(None, &mut connection, false).await?;
    let parts = parts(&mut connection).await?;
    connection.close().await?;
    Ok(parts)
}

/// The tables, columns, indexes and triggers of a store. Their text is not compared: another version of SQLite may have written it.
async fn parts(connection: &mut SqliteConnection) -> Result<BTreeSet<String>, sqlx::Error> {
    let parts: Vec<(String,)> = sqlx::query_as(
        "SELECT type || ' ' || name FROM sqlite_schema WHERE name NOT LIKE 'sqlite#_%' ESCAPE '#' AND name <> '_sqlx_migrations'
         UNION ALL
         SELECT 'column ' || of.name || '.' || has.name || ' ' || has.type FROM sqlite_schema AS of, pragma_table_xinfo(of.name) AS has
         WHERE of.type = 'table' AND of.name NOT LIKE 'sqlite#_%' ESCAPE '#' AND of.name <> '_sqlx_migrations'",
    )
    .fetch_all(connection)
    .await?;
    Ok(parts.into_iter().map(|(part,)| part).collect())
}

#[cfg(test)]
mod tests {
    use sqlx::migrate::{Migration, MigrationType};

    use super::*;

    fn migrator(scripts: &[&'static str]) -> Migrator {
        let migrations = scripts.iter().zip(1..).map(|(script, version)| {
            let (about, kind) = (format!("number {version}").into(), MigrationType::Simple);
            Migration::new(version, about, kind, sqlx::SqlSafeStr::into_sql_str(*script), false)
        });
        Migrator::with_migrations(migrations.collect())
    }

    const SCRIPTS: [&str; 3] = [
        "CREATE TABLE one (a INTEGER NOT NULL) STRICT; CREATE INDEX one_a ON one (a);",
        "CREATE TABLE two (b TEXT NOT NULL) STRICT;",
        "ALTER TABLE two ADD COLUMN c INTEGER;",
    ];

    async fn execute(connection: &mut SqliteConnection, statement: &'static str) {
        sqlx::query(statement).execute(connection).await.unwrap();
    }

    async fn store() -> SqliteConnection {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        migrate(&migrator(&SCRIPTS), &mut connection).await.unwrap();
        execute(&mut connection, "INSERT INTO one VALUES (7)").await;
        connection
    }

    #[tokio::test]
    async fn damaged_record_is_written_anew_and_loses_nothing() {
        for damage in [
            "UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 2",
            "UPDATE _sqlx_migrations SET checksum = 'text' WHERE version = 1",
            "UPDATE _sqlx_migrations SET success = 0 WHERE version = 3",
            "UPDATE _sqlx_migrations SET success = 'x' WHERE version = 3",
            "UPDATE _sqlx_migrations SET version = 4098 WHERE version = 2",
            "UPDATE _sqlx_migrations SET version = 4099 WHERE version = 3",
            "DELETE FROM _sqlx_migrations WHERE version = 1",
            "DELETE FROM _sqlx_migrations WHERE version = 2",
            "DELETE FROM _sqlx_migrations WHERE version = 3",
            "DELETE FROM _sqlx_migrations",
            "DROP TABLE _sqlx_migrations",
        ] {
            let mut store = store().await;
            let before = record(&mut store).await.unwrap();
            execute(&mut store, damage).await;
            migrate(&migrator(&SCRIPTS), &mut store).await.unwrap_or_else(|error| panic!("{damage}: {error}"));
            assert_eq!(record(&mut store).await.unwrap(), before, "{damage}");
            let kept: i64 = sqlx::query_scalar("SELECT a FROM one").fetch_one(&mut store).await.unwrap();
            assert_eq!(kept, 7, "{damage}");
        }
    }

    #[tokio::test]
    async fn missing_part_is_damage() {
        for (damage, missing) in [
            ("DROP TABLE one", "table one"),
            ("DROP INDEX one_a", "index one_a"),
            ("ALTER TABLE two DROP COLUMN c", "column two.c INTEGER"),
        ] {
            for record in [None, Some("DELETE FROM _sqlx_migrations WHERE version = 1")] {
                let mut store = store().await;
                execute(&mut store, damage).await;
                if let Some(statement) = record {
                    execute(&mut store, statement).await;
                }
                let error = migrate(&migrator(&SCRIPTS), &mut store).await.unwrap_err();
                let SchemaError::Damaged(why) = &error else { panic!("{damage}: {error}") };
                assert!(why.contains(missing), "{damage}: {why}");
            }
        }
    }

    #[tokio::test]
    async fn store_of_another_version_is_no_damage() {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut older = SqliteConnection::connect_with(&options).await.unwrap();
        migrate(&migrator(&SCRIPTS[..1]), &mut older).await.unwrap();
        migrate(&migrator(&SCRIPTS), &mut older).await.unwrap();
        let error = migrate(&migrator(&SCRIPTS[..2]), &mut older).await.unwrap_err();
        assert!(
            matches!(error, SchemaError::Migrate(MigrateError::VersionMissing(3) | MigrateError::VersionTooNew(..))),
            "{error}"
        );
    }

    #[test]
    fn record_of_a_prefix_or_of_more_is_right() {
        let migrations: [(i64, &[u8]); 3] = [(1, b"a"), (2, b"b"), (5, b"c")];
        let record = |rows: &[(i64, &str)]| -> Vec<RecordedMigration> {
            let row = |(version, text): &(i64, &str)| RecordedMigration {
                version: *version,
                is_done: true,
                checksum: text.as_bytes().to_vec(),
            };
            rows.iter().map(row).collect()
        };
        let all = [(1, "a"), (2, "b"), (5, "c"), (6, "d")];
        for count in 0..=all.len() {
            assert_eq!(judge(&record(&all[..count]), &migrations), Record::Right, "{count}");
        }
        for wrong in [
            &[(2, "b")][..],
            &[(1, "a"), (5, "c")],
            &[(1, "b")],
            &[(1, "a"), (2, "b"), (7, "c")],
            &[(3, "a")],
            &[(0, "a"), (2, "b"), (5, "c")],
        ] {
            assert!(matches!(judge(&record(wrong), &migrations), Record::Wrong(_)), "{wrong:?}");
        }
    }
}
