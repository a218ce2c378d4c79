//! The failure of a verb: a message, a hint, and its kind. Only `main`
//! turns the kind into an exit code.

use std::fmt;

/// Kinds of failure, each with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The work failed: 1.
    Failed,
    /// It was asked for in a way that makes no sense: 2.
    Usage,
    /// Whoever was asked refused: 3.
    Refused,
    /// Whoever should be asked cannot be reached: 4.
    Unreachable,
    /// A program ran elsewhere, and its exit code is to be passed through.
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

/// A failure as people see it.
#[derive(Debug)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// What failed; nothing if everything has been said already.
    pub message: Option<String>,
    /// What to do next.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of a kind.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self { kind, message: Some(message.to_string()), hint: None }
    }

    /// A failure from an error's text, which may end with `hint: …`.
    #[must_use]
    pub fn told(kind: FailureKind, text: String) -> Self {
        match text.split_once("hint:") {
            Some((message, hint)) => {
                Self::new(kind, message.trim_end().trim_end_matches(['.', ';', '\n'])).hint(hint.trim())
            }
            None => Self::new(kind, text),
        }
    }

    /// A failure of which everything has been said already.
    #[must_use]
    pub fn silent(kind: FailureKind) -> Self {
        Self { kind, message: None, hint: None }
    }

    /// The same, with what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl From<anyhow::Error> for Failure {
    /// The work failed; the message has all causes.
    fn from(error: anyhow::Error) -> Self {
        Self::new(FailureKind::Failed, format!("{error:#}"))
    }
}

/// What was being tried, added to an error on its way out.
pub trait FailureContext<T> {
    /// Makes a [`FailureKind::Failed`] that says what was being tried, and why that failed.
    ///
    /// # Errors
    /// If `self` is one.
    fn trying(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: std::error::Error> FailureContext<T> for Result<T, E> {
    fn trying(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(FailureKind::Failed, format!("{what}: {}", with_causes(&error))))
    }
}

/// An error and its causes in one line; a cause that the error itself has said is not said again.
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
