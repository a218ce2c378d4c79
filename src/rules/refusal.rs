//! Reasons for which a command is refused.

use muster_topics::outcome::{RefusalCode, Status};

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandRefusal {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people.
    pub message: String,
}

impl CommandRefusal {
    /// Creates a refusal.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<CommandRefusal> for Status {
    fn from(refusal: CommandRefusal) -> Self {
        Self::Refused { code: refusal.code, message: refusal.message }
    }
}
