//! Transactions of the one connection that writes.
//!
//! SQLite itself ends a transaction when the disk is full. A library that counts transactions, as `sqlx` does, then
//! believes that one is still open, and begins no other until the connection is reopened. So they are begun and ended
//! by explicit statements here, and what a failed one left is always rolled back.

use sqlx::SqliteConnection;

/// Begins a transaction.
pub(crate) async fn begin(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("BEGIN IMMEDIATE").execute(connection).await.map(drop)
}

/// Commits a transaction, or rolls it back if the work failed.
pub(crate) async fn end<T>(
    connection: &mut SqliteConnection,
    mut done: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    if done.is_ok()
        && let Err(error) = sqlx::query("COMMIT").execute(&mut *connection).await
    {
        done = Err(error);
    }
    if done.is_err() {
        // This fails if SQLite has rolled back already.
        let _ = sqlx::query("ROLLBACK").execute(connection).await;
    }
    done
}
