//! (being written)

use muster_topics::{
    Millis,
    command::Verb,
    name::{Digest, UnitName},
    outcome::RefusalCode,
};
use sqlx::SqliteConnection;

use super::StoreError;
use crate::rules::Refusal;

/// Stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Stub.
    pub generation: u64,
    /// Stub.
    pub revision: Digest,
}

/// Stub.
pub async fn edit(
    _connection: &mut SqliteConnection,
    _unit: &UnitName,
    _verb: &Verb,
    _now_ms: Millis,
) -> Result<Result<Option<Applied>, Refusal>, StoreError> {
    Ok(Err(Refusal::new(RefusalCode::NotFound, "no unit")))
}
