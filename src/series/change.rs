//! Transactions of the one connection that writes.
//!
//! SQLite itself ends a transaction in which the disk turned out to be full. Who counts transactions, as `sqlx` does, then
//! believes that one is open still, and begins no other until the connection is made anew. So they are begun and ended
//! in so many words here, and what a failed one left is always swept away.

use sqlx::SqliteConnection;

/// Begins one.
pub(crate) async fn begin(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("BEGIN IMMEDIATE").execute(connection).await.map(drop)
}

/// Commits what was done, or takes it back if that has failed.
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
        // This fails where SQLite has done so already.
        let _ = sqlx::query("ROLLBACK").execute(connection).await;
    }
    done
}
