//! Why something is not even begun.

use muster_topics::outcome::{RefusalCode, Status};

/// Why something is not even begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people.
    pub message: String,
}

impl Refusal {
    /// A refusal for a reason.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { code: refusal.code, message: refusal.message }
    }
}
