//! Reasons for which a command is refused.

use muster_topics::outcome::{RefusalCode, Status};

/// Why something is not even begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandRefusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people.
    pub message: String,
}

impl CommandRefusal {
    /// A refusal for a reason.
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
