//! What went wrong, for people: a cause, a consequence, and a hint. Refusals of the API, failures of the command line and
//! pages print it from here.

use std::{error::Error, fmt, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What stands before a consequence in text.
const CONSEQUENCE: &str = "consequence: ";
/// What stands before a hint in text.
const HINT: &str = "hint: ";

/// What went wrong, for people.
///
/// As text it has each part on a line of its own; the alternate form (`{:#}`) has all in one line, for logs, tables and the
/// texts of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// What failed, and why.
    #[serde(rename = "message")]
    pub cause: String,
    /// What follows from it, if that is not plain: what was not done, what goes on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequence: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Creates a diagnostic with a cause alone.
    #[must_use]
    pub fn new(cause: impl fmt::Display) -> Self {
        Self { cause: cause.to_string(), consequence: None, hint: None }
    }

    /// Tells an error: its text and those of its causes as the cause, and the hint of the first of them that has one. A
    /// cause that the text before already contains is not repeated.
    #[must_use]
    pub fn of(error: &dyn miette::Diagnostic) -> Self {
        Self { cause: with_causes(error), consequence: None, hint: hint_of(error) }
    }

    /// Tells an error of a type that has no hints of its own, as [`Diagnostic::of`] does: a hint is only found where a
    /// [`DiagnosticError`] is among its causes.
    #[must_use]
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        Self { cause: with_causes(error), consequence: None, hint: hint_within(error) }
    }

    /// Makes an error of it, which [`Diagnostic::of`] and [`Diagnostic::of_error`] read again.
    #[must_use]
    pub fn into_error(self) -> DiagnosticError {
        DiagnosticError(self)
    }

    /// Adds what follows from it.
    #[must_use]
    pub fn with_consequence(mut self, consequence: impl fmt::Display) -> Self {
        self.consequence = Some(consequence.to_string());
        self
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Adds what the reader can do about it, if that is known and it has none itself.
    #[must_use]
    pub fn or_hint(self, hint: Option<impl Into<String>>) -> Self {
        Self { hint: self.hint.or_else(|| hint.map(Into::into)), ..self }
    }

    /// Tells where it is: puts the place before the cause.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.cause = format!("{place}: {}", self.cause);
        self
    }

    /// Adds another one: both causes stand in one line, and so do their consequences and hints.
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        let join = |one: Option<String>, two: Option<String>| match (one, two) {
            (Some(one), Some(two)) if one != two => Some(format!("{one}; {two}")),
            (one, two) => one.or(two),
        };
        Self {
            cause: format!("{}; {}", self.cause, other.cause),
            consequence: join(self.consequence, other.consequence),
            hint: join(self.hint, other.hint),
        }
    }

    /// Makes one of all, if there is any ([`Diagnostic::and`]).
    #[must_use]
    pub fn all(each: impl IntoIterator<Item = Self>) -> Option<Self> {
        each.into_iter().reduce(Self::and)
    }

    /// Makes one of all, if there is any: each cause on a line of its own below `title`, after a `-`; the hints stand apart.
    #[must_use]
    pub fn listed(title: impl fmt::Display, each: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut hints: Vec<String> = Vec::new();
        let mut lines = String::new();
        for one in each {
            lines.push_str("\n- ");
            lines.push_str(&one.cause);
            lines.extend(one.consequence.iter().flat_map(|consequence| ["; ", consequence]));
            hints.extend(one.hint.filter(|hint| !hints.contains(hint)));
        }
        (!lines.is_empty()).then(|| Self {
            cause: format!("{title}:{lines}"),
            consequence: None,
            hint: Some(hints.join("; ")).filter(|hints| !hints.is_empty()),
        })
    }

    /// Returns its texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [Some(&self.cause), self.consequence.as_ref(), self.hint.as_ref()].into_iter().flatten().map(String::as_str)
    }

    /// Changes each of its texts.
    #[must_use]
    pub fn map(self, change: impl Fn(String) -> String) -> Self {
        Self { cause: change(self.cause), consequence: self.consequence.map(&change), hint: self.hint.map(&change) }
    }
}

impl From<String> for Diagnostic {
    fn from(cause: String) -> Self {
        Self { cause, consequence: None, hint: None }
    }
}

impl From<&String> for Diagnostic {
    fn from(cause: &String) -> Self {
        cause.as_str().into()
    }
}

impl From<&str> for Diagnostic {
    fn from(cause: &str) -> Self {
        cause.to_owned().into()
    }
}

/// A diagnostic where an error is wanted, such as within an [`std::io::Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.cause)]
pub struct DiagnosticError(Diagnostic);

impl miette::Diagnostic for DiagnosticError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.hint.as_ref().map(|hint| Box::new(hint) as Box<dyn fmt::Display>)
    }
}

/// An error and its causes on one line.
fn with_causes(error: &dyn Error) -> String {
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

/// The hint of an error, or of the first of its causes that tells one.
fn hint_of(error: &dyn miette::Diagnostic) -> Option<String> {
    let own = error.help().map(|hint| hint.to_string());
    own.or_else(|| error.diagnostic_source().and_then(hint_of)).or_else(|| error.source().and_then(hint_within))
}

/// The hint of the first [`DiagnosticError`] that an error is, has within, or has as a cause.
fn hint_within(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(DiagnosticError(told)) = error.downcast_ref() {
        return told.hint.clone();
    }
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    within.and_then(|within| hint_within(within)).or_else(|| error.source().and_then(hint_within))
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if f.alternate() { ". " } else { "\n" };
        f.write_str(&self.cause)?;
        for (mark, part) in [(CONSEQUENCE, &self.consequence), (HINT, &self.hint)] {
            part.iter().try_for_each(|part| write!(f, "{between}{mark}{part}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Diagnostic {
        Diagnostic::new("the disk is full").with_consequence("nothing was stored").with_hint("free space (`df -h`)")
    }

    #[test]
    fn parts_stand_on_lines_of_their_own_or_in_one() {
        assert_eq!(full().to_string(), "the disk is full\nconsequence: nothing was stored\nhint: free space (`df -h`)");
        assert_eq!(
            format!("{:#}", full()),
            "the disk is full. consequence: nothing was stored. hint: free space (`df -h`)"
        );
        assert_eq!(Diagnostic::new("no").to_string(), "no");
    }

    #[derive(Debug, thiserror::Error, miette::Diagnostic)]
    enum Problem {
        #[error("{0} is not there")]
        #[diagnostic(help("make {0}"))]
        Missing(&'static str),
        #[error("the disk: {0}")]
        Disk(#[source] std::io::Error),
    }

    #[derive(Debug, thiserror::Error, miette::Diagnostic)]
    #[error("the step failed")]
    struct StepError(
        #[from]
        #[diagnostic_source]
        Problem,
    );

    #[test]
    fn error_is_told_with_its_causes_and_their_first_hint() {
        let step = StepError(Problem::Missing("a"));
        assert_eq!(Diagnostic::of(&step), Diagnostic::new("the step failed: a is not there").with_hint("make a"));
        let disk = Problem::Disk(std::io::Error::other("full"));
        assert_eq!(Diagnostic::of(&disk), Diagnostic::new("the disk: full"));
    }

    #[test]
    fn hint_within_an_io_error_is_found() {
        let inner = Diagnostic::new("full").with_hint("free space");
        let disk = || io::Error::other(inner.clone().into_error());
        assert_eq!(Diagnostic::of_error(&disk()), inner);
        let told = Diagnostic::of(&Problem::Disk(disk()));
        assert_eq!(told, Diagnostic::new("the disk: full").with_hint("free space"));
    }

    #[test]
    fn json_has_the_three_fields() {
        assert_eq!(
            serde_json::to_value(full()).unwrap(),
            serde_json::json!({
                "message": "the disk is full", "consequence": "nothing was stored", "hint": "free space (`df -h`)",
            })
        );
        assert_eq!(serde_json::to_value(Diagnostic::new("no")).unwrap(), serde_json::json!({"message": "no"}));
    }
}
