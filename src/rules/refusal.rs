//! Reasons for which a command is refused.

use muster_topics::{
    diagnostic::Diagnostic,
    outcome::{RefusalCode, Status},
};

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRefusal {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people.
    pub diagnostic: Diagnostic,
}

impl CommandRefusal {
    /// Creates a refusal.
    #[must_use]
    pub fn new(code: RefusalCode, diagnostic: impl Into<Diagnostic>) -> Self {
        Self { code, diagnostic: diagnostic.into() }
    }
}

impl From<CommandRefusal> for Status {
    fn from(refusal: CommandRefusal) -> Self {
        Self::Refused { code: refusal.code, diagnostic: refusal.diagnostic }
    }
}
