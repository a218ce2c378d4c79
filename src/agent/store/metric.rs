//! (being written)

use muster_topics::ack::Numbered;

use super::{Store, StoreError};

/// Stub.
pub async fn pending(_store: &Store, _limit: usize) -> Result<Vec<(Numbered, Vec<u8>)>, StoreError> {
    Ok(vec![])
}

/// Stub.
pub async fn delete(_store: &Store, _ids: &[Numbered]) -> Result<(), StoreError> {
    Ok(())
}
