//! The one connection that writes to a store.

use sqlx::{Connection, sqlite::SqlitePoolOptions};

/// A pool with one connection, which is replaced if it becomes unusable.
#[must_use]
pub fn pool() -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        // After SQLite itself rolled a transaction back (disk full), the connection still counts that transaction as
        // open, and new ones inside it would not be committed.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
}
