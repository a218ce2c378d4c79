//! The failure of a verb: what went wrong, and its kind. Only `main` turns the kind into an exit code.

use std::{fmt, io, path::Path};

use muster_topics::diagnostic::Diagnostic;

/// Kinds of failure, each with an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The operation failed: 1.
    Failed,
    /// The request makes no sense: 2.
    Usage,
    /// The other side refused: 3.
    Refused,
    /// The other side does not have what was named: 3, as any other refusal.
    NotFound,
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
            Self::Refused | Self::NotFound => 3,
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
    /// What failed, what follows and what to do; `None` if it has already been printed.
    pub diagnostic: Option<Diagnostic>,
}

impl Failure {
    /// A failure of the given kind, from a message or an error without a hint.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self::told(kind, Diagnostic::new(message))
    }

    /// A failure of the given kind, from what is told already.
    #[must_use]
    pub fn told(kind: FailureKind, diagnostic: Diagnostic) -> Self {
        Self { kind, diagnostic: Some(diagnostic) }
    }

    /// A failure of the given kind, from an error with its causes and its hint.
    #[must_use]
    pub fn of(kind: FailureKind, error: &dyn miette::Diagnostic) -> Self {
        Self::told(kind, Diagnostic::of(error))
    }

    /// Makes a failure of an error, with what was being tried, its causes and its hint.
    pub fn trying<E: miette::Diagnostic>(what: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |error| Self::told(FailureKind::Failed, Diagnostic::of(&error).within(what))
    }

    /// The failure of a lookup: the other side does not have what was named.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::NotFound, message)
    }

    /// The failure to read or write a file or folder that an argument names: the argument is wrong.
    #[must_use]
    pub fn of_file(path: &Path, error: &io::Error) -> Self {
        let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let diagnostic = Diagnostic::of_error(error).within(name);
        let hint = match error.kind() {
            io::ErrorKind::NotFound => Some("check the path; a relative one begins in the present folder"),
            io::ErrorKind::PermissionDenied => Some("run this command as a user with permission for it"),
            _ => None,
        };
        Self::told(FailureKind::Usage, diagnostic.or_hint(hint))
    }

    /// A failure that has already been printed.
    #[must_use]
    pub fn silent(kind: FailureKind) -> Self {
        Self { kind, diagnostic: None }
    }

    /// Adds what follows from it.
    #[must_use]
    pub fn consequence(mut self, consequence: impl fmt::Display) -> Self {
        self.diagnostic = self.diagnostic.map(|diagnostic| diagnostic.with_consequence(consequence));
        self
    }

    /// Adds a hint: what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.diagnostic = self.diagnostic.map(|diagnostic| diagnostic.with_hint(hint));
        self
    }

    /// What failed, unless it has already been printed.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.diagnostic.as_ref().map(|diagnostic| diagnostic.cause.as_str())
    }

    /// The hint, if there is one.
    #[must_use]
    pub fn given_hint(&self) -> Option<&str> {
        self.diagnostic.as_ref().and_then(|diagnostic| diagnostic.hint.as_deref())
    }

    /// The lines that a terminal shows: `error: CAUSE`, and below it the consequence and the hint. Nothing if they have
    /// already been printed.
    #[must_use]
    pub fn lines(&self) -> String {
        self.diagnostic.as_ref().map(|diagnostic| format!("error: {diagnostic}\n")).unwrap_or_default()
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

impl<T, E: std::error::Error + 'static> FailureContext<T> for Result<T, E> {
    fn trying(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::told(FailureKind::Failed, Diagnostic::of_error(&error).within(what)))
    }
}

/// An error without a hint, and its causes, on one line; a cause that the text before already contains is not repeated.
#[must_use]
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    Diagnostic::of_error(error).cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_printed_on_lines_of_their_own() {
        let failure = Failure::new(FailureKind::Failed, "no room").consequence("nothing was stored").hint("free space");
        assert_eq!(failure.lines(), "error: no room\nconsequence: nothing was stored\nhint: free space\n");
        assert_eq!(Failure::new(FailureKind::Failed, "no room").lines(), "error: no room\n");
        assert_eq!(Failure::silent(FailureKind::Failed).hint("free space").lines(), "");
    }

    #[test]
    fn failure_of_a_file_is_one_of_usage_and_names_the_file() {
        let missing = Failure::of_file(Path::new("a/b"), &io::ErrorKind::NotFound.into());
        assert_eq!(missing.kind.code(), 2);
        assert!(missing.cause().unwrap().starts_with("a/b: ") && missing.given_hint().is_some(), "{missing:?}");
        let damaged = Failure::of_file(Path::new("-"), &io::Error::other("damaged"));
        assert_eq!(damaged.lines(), "error: standard input: damaged\n");
    }

    #[test]
    fn hint_within_an_error_goes_with_what_was_tried() {
        let full = || Diagnostic::new("no room").with_hint("make some").into_error();
        let wanted = "error: the disk: no room\nhint: make some\n";
        assert_eq!(Failure::trying("the disk")(full()).lines(), wanted);
        assert_eq!(Err::<(), _>(std::io::Error::other(full())).trying("the disk").unwrap_err().lines(), wanted);
    }
}
