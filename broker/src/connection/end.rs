//! How connections end.

use std::io;

use super::clock::Overdue;
use crate::{access::Refusal, codec::Malformed, router::Gone, session::Gap};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the client disconnected")]
    Disconnect,
    #[error("the client closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error(transparent)]
    Overdue(#[from] Overdue),
    #[error("the client fell behind: {0}")]
    Behind(#[from] Gap),
    #[error("the client sent {0}")]
    Malformed(#[from] Malformed),
    #[error("the client sent too many subscribes at once")]
    Subscribing,
    #[error("a publish to {topic:?} is refused: {refusal}")]
    Publish { topic: String, refusal: Refusal },
    #[error("a newer connection has the same client id")]
    TakenOver,
    #[error("the broker stops")]
    Stopping,
    #[error(transparent)]
    Router(#[from] Gone),
}

impl End {
    /// Whether the client did not keep up.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::Overdue(Overdue::Output | Overdue::Acknowledgement) | Self::Behind(_))
    }

    /// Whether it is of the kind that happens every day.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self, Self::Disconnect | Self::Closed | Self::Broken(_) | Self::TakenOver | Self::Stopping)
    }

    /// Whether the last will is published.
    pub(super) fn leaves_will(&self) -> bool {
        !matches!(self, Self::Disconnect | Self::Stopping)
    }
}
