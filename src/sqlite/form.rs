//! The form of a store's file: see [`muster_base::form`].
//!
//! The numbers are in the file before its first table, and before its log: no log has to be read to know them.

use std::path::Path;

use muster_base::{
    files,
    form::{self, APPLICATION_ID, StoreForm, USER_VERSION},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, SqliteConnection,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions},
};

pub use muster_base::form::OtherForm;

/// Why a store cannot be prepared.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum FormError {
    /// It was written by another build.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Other(#[from] OtherForm),
    /// It cannot be read or written.
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

/// Refuses a store of another form, before anything is changed; a new one is made, for its owner alone, with the numbers of this
/// build's, and says whether it can shrink.
///
/// # Errors
/// If it is of another form, or cannot be read or written. `refusal` makes the error of its path.
pub async fn prepare(
    path: &Path,
    auto_vacuum: SqliteAutoVacuum,
    refusal: impl FnOnce(&Path) -> OtherForm,
) -> Result<(), FormError> {
    let found = form::of_store(path).map_err(sqlx::Error::Io)?;
    if found == StoreForm::Other {
        return Err(refusal(path).into());
    }
    files::make_private(path).map_err(sqlx::Error::Io)?;
    if found == StoreForm::New {
        let options = SqliteConnectOptions::new().filename(path).auto_vacuum(auto_vacuum);
        let mut connection = options.connect().await?;
        let written = write(&mut connection).await;
        connection.close().await?;
        written?;
    }
    Ok(())
}

/// Writes the numbers of a store anew whose header is damaged.
pub(crate) async fn mend(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let found: (i64, i64) = sqlx::query_as(
        "SELECT id.application_id, version.user_version
         FROM pragma_application_id AS id, pragma_user_version AS version",
    )
    .fetch_one(&mut *connection)
    .await?;
    if found == (APPLICATION_ID.into(), USER_VERSION.into()) {
        return Ok(());
    }
    // A store in memory has none yet.
    if found != (0, 0) {
        tracing::error!(
            consequence = "they are written again, and nothing is lost",
            hint = "check this machine's disk",
            "the numbers of a store's form are damaged",
        );
    }
    write(connection).await
}

/// Writes both numbers at once.
async fn write(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let statements =
        format!("BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {USER_VERSION}; COMMIT;");
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    fn refusal(path: &Path) -> OtherForm {
        OtherForm::in_folder(path, Path::new("/folder"), "start again")
    }

    async fn connect(path: &Path) -> SqliteConnection {
        SqliteConnectOptions::new().filename(path).connect().await.unwrap()
    }

    fn names(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[tokio::test]
    async fn new_store_has_its_numbers_before_its_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        prepare(&path, SqliteAutoVacuum::Incremental, refusal).await.unwrap();
        assert_eq!(form::of_store(&path).unwrap(), StoreForm::Present);
        let mut connection = connect(&path).await;
        let made = "PRAGMA journal_mode = WAL; CREATE TABLE a (b INTEGER) STRICT;";
        sqlx::raw_sql(made).execute(&mut connection).await.unwrap();
        let mode: i64 = sqlx::query_scalar("PRAGMA auto_vacuum").fetch_one(&mut connection).await.unwrap();
        assert_eq!((mode, form::of_store(&path).unwrap()), (2, StoreForm::Present));
        prepare(&path, SqliteAutoVacuum::Incremental, refusal).await.unwrap();
    }

    #[tokio::test]
    async fn store_of_another_form_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        fs::write(&path, "").unwrap();
        let mut connection = connect(&path).await;
        sqlx::raw_sql("CREATE TABLE a (b INTEGER) STRICT;").execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let before = fs::read(&path).unwrap();
        let error = prepare(&path, SqliteAutoVacuum::None, refusal).await.unwrap_err();
        assert!(matches!(&error, FormError::Other(found) if found.path == path), "{error}");
        assert!(fs::read(&path).unwrap() == before && names(folder.path()) == [path]);
    }

    #[tokio::test]
    async fn damaged_number_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        fs::write(&path, "").unwrap();
        prepare(&path, SqliteAutoVacuum::None, refusal).await.unwrap();
        let whole = fs::read(&path).unwrap();
        for at in [60, 63, 68, 71] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, bytes).unwrap();
            prepare(&path, SqliteAutoVacuum::None, refusal).await.unwrap();
            let mut connection = connect(&path).await;
            mend(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            assert_eq!(form::of_store(&path).unwrap(), StoreForm::Present, "{at}");
            assert_eq!(fs::read(&path).unwrap()[68..72], whole[68..72], "{at}");
        }
    }
}
