//! Ends of connections, and their causes.

use std::io;

use super::clock::Overdue;
use crate::{
    access::AccessRefusal,
    codec::{Malformed, Reason},
    registry::EndCause,
};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionEnd {
    #[error("the client disconnected")]
    Disconnect {
        /// Whether the client wants its last will published all the same.
        keep_will: bool,
    },
    #[error("the client closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error(transparent)]
    Overdue(#[from] Overdue),
    #[error("the client reads too slowly: its queue is full")]
    Behind,
    #[error("the client sent {0}")]
    Malformed(#[from] Malformed),
    #[error("a publish to {topic:?} is refused: {refusal}")]
    Publish { topic: String, refusal: AccessRefusal },
    #[error("the client used topic alias {0}, which is not defined")]
    Alias(u16),
    #[error("DISCONNECT sets a session expiry, and CONNECT had none")]
    SessionExpiry,
    #[error("a newer connection has the same client id")]
    TakenOver,
    #[error("its certificate was revoked, or its user removed")]
    Revoked,
    #[error("an authority is no longer trusted: the client must connect again")]
    Untrusted,
    #[error("the broker is stopping")]
    Stopping,
}

impl From<EndCause> for ConnectionEnd {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::TakenOver => Self::TakenOver,
            EndCause::Stopping => Self::Stopping,
            EndCause::Revoked => Self::Revoked,
            EndCause::Untrusted => Self::Untrusted,
        }
    }
}

impl ConnectionEnd {
    /// Whether the client did not keep up.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::Overdue(Overdue::Output | Overdue::Acknowledgement) | Self::Behind)
    }

    /// Whether it is of an ordinary kind.
    pub(super) fn is_expected(&self) -> bool {
        matches!(
            self,
            Self::Disconnect { .. }
                | Self::Closed
                | Self::Broken(_)
                | Self::TakenOver
                | Self::Stopping
                | Self::Untrusted
                // It is logged as a refusal.
                | Self::Publish { .. }
        )
    }

    /// Whether the last will is published.
    pub(super) fn leaves_will(&self) -> bool {
        !matches!(self, Self::Disconnect { keep_will: false } | Self::Stopping)
    }

    /// Whether the session may outlive the connection. One that has lost a message of QoS 1 may not, because the client
    /// would not notice; nor may that of a client that is not admitted any more.
    pub(super) fn keeps_session(&self) -> bool {
        !matches!(self, Self::Behind | Self::Revoked | Self::Stopping)
    }

    /// Returns the reason for the client; `None` if it disconnected itself.
    pub(super) fn reason(&self) -> Option<Reason> {
        match self {
            Self::Disconnect { .. } | Self::Closed | Self::Broken(_) => None,
            Self::Overdue(Overdue::Silence) => Some(Reason::KeepAliveTimeout),
            Self::Overdue(Overdue::Output | Overdue::Acknowledgement) | Self::Behind => Some(Reason::QuotaExceeded),
            Self::Malformed(malformed) => Some(malformed.reason()),
            Self::Publish { refusal, .. } => Some(refusal.reason()),
            Self::Alias(_) => Some(Reason::TopicAliasInvalid),
            Self::SessionExpiry => Some(Reason::ProtocolError),
            Self::TakenOver => Some(Reason::SessionTakenOver),
            Self::Revoked | Self::Untrusted => Some(Reason::NotAuthorized),
            Self::Stopping => Some(Reason::ServerShuttingDown),
        }
    }
}
