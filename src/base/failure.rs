//! The failure of a verb: a message, a hint, and its kind. Only `main`
//! turns the kind into an exit code.

use std::fmt;

/// Kinds of failure, each with an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The operation failed: 1.
    Failed,
    /// The request makes no sense: 2.
    Usage,
    /// The other side refused: 3.
    Refused,
    /// The other side cannot be reached: 4.
    Unreachable,
    /// A program ran elsewhere; its exit code is passed through.
    Code(u8),
}

impl FailureKind {
    /// The exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Unreachable => 4,
            Self::Code(code) => code,
        }
    }
}

/// A failure as it is shown to people.
#[derive(Debug)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// What failed; `None` if it has already been printed.
    pub message: Option<String>,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of the given kind.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self { kind, message: Some(message.to_string()), hint: None }
    }

    /// A failure from the text of an error, which may end with `hint: …`.
    #[must_use]
    pub fn told(kind: FailureKind, text: String) -> Self {
        match text.split_once("hint:") {
            Some((message, hint)) => {
                Self::new(kind, message.trim_end().trim_end_matches(['.', ';', '\n'])).hint(hint.trim())
            }
            None => Self::new(kind, text),
        }
    }

    /// A failure that has already been printed.
    #[must_use]
    pub fn silent(kind: FailureKind) -> Self {
        Self { kind, message: None, hint: None }
    }

    /// Adds a hint: what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl From<anyhow::Error> for Failure {
    /// A failure of kind [`FailureKind::Failed`], with all causes in the message.
    fn from(error: anyhow::Error) -> Self {
        Self::new(FailureKind::Failed, format!("{error:#}"))
    }
}

/// Adds to an error what was being tried.
pub trait FailureContext<T> {
    /// Converts the error to [`FailureKind::Failed`], with what was being tried and why it failed.
    ///
    /// # Errors
    /// If `self` is an error.
    fn trying(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: std::error::Error> FailureContext<T> for Result<T, E> {
    fn trying(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(FailureKind::Failed, format!("{what}: {}", with_causes(&error))))
    }
}

/// An error and its causes on one line; a cause that the error's own text already contains is not repeated.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}
