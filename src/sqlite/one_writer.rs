//! The one connection that writes to a store.

use sqlx::{Connection, sqlite::SqlitePoolOptions};

/// A pool of one connection, which is made anew where it would be no good any more.
#[must_use]
pub fn pool() -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        // A transaction that SQLite itself has rolled back (a full disk) leaves a connection that counts it for ever.
        // What is begun in such a one would not last.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
}
