//! Faults of a host's message.

use muster_topics::{PAYLOAD_MAX_BYTES, PROTOCOL};

use super::super::store::StoreError;

/// A message that cannot be used, for a reason that is not the store's.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum FaultyMessage {
    /// It is longer than a payload may be.
    #[error("it has {0} bytes; at most {PAYLOAD_MAX_BYTES} are allowed")]
    TooLong(usize),
    /// Its host is not a member.
    #[error("its host has not joined, or was revoked")]
    NoMember,
    /// Its topic is not a host's.
    #[error("a console does not read this topic")]
    Topic,
    /// It is not the JSON of its topic.
    #[error("{0}")]
    Payload(#[from] serde_json::Error),
    /// Its host speaks a later protocol than this console.
    #[error("its host uses protocol {0} and this console {PROTOCOL}; its messages are dropped")]
    #[diagnostic(help("upgrade the console before its hosts"))]
    Protocol(u32),
    /// Its content is impossible.
    #[error("{0}")]
    Content(&'static str),
}

/// Why a message was not applied.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ApplyError {
    /// The message is faulty.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Faulty(#[from] FaultyMessage),
    /// The store failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
}
