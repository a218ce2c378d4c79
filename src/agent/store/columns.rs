//! Values as SQLite keeps them, and back.

use super::error::StoreError;

pub(super) fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Content { what, source })
}

/// SQLite's integers are signed; the numbers kept there count things and do not come near the edge.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// See [`to_sql`].
pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
