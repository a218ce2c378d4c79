//! Faults of a host's message.

use muster_topics::PAYLOAD_MAX_BYTES;

use super::super::store::StoreError;

/// A message that cannot be used, and why. It is no fault of the store's.
#[derive(Debug, thiserror::Error)]
pub enum FaultyMessage {
    /// More bytes than a payload may have.
    #[error("it has {0} bytes, and {PAYLOAD_MAX_BYTES} are allowed")]
    TooLong(usize),
    /// From a host that is no member.
    #[error("its host has not joined, or was revoked")]
    NoMember,
    /// On a topic that is not one of hosts.
    #[error("nobody publishes on this topic to a console")]
    Topic,
    /// Not the JSON of its topic.
    #[error("{0}")]
    Payload(#[from] serde_json::Error),
    /// What it says cannot be.
    #[error("{0}")]
    Content(&'static str),
}

/// What stops a message from being applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The message is at fault.
    #[error(transparent)]
    Faulty(#[from] FaultyMessage),
    /// The store is.
    #[error(transparent)]
    Store(#[from] StoreError),
}
