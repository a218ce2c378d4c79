//! Errors of a query.

use super::source::SourceError;

/// Why a query has no result.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum Error {
    /// The query is invalid, or uses something that does not exist.
    #[error("{problem}")]
    Query {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        #[help]
        hint: Option<String>,
    },
    /// The query cannot be evaluated with these series.
    #[error("{problem}")]
    Execution {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        #[help]
        hint: Option<String>,
    },
    /// The query exceeds a limit.
    #[error("{problem}")]
    Limit {
        /// Which limit is exceeded.
        problem: String,
        /// What to do about it.
        #[help]
        hint: Option<String>,
    },
    /// The caller has cancelled the query.
    #[error("the query took too long")]
    #[diagnostic(help("ask for a shorter range or fewer series"))]
    Enough,
    /// The samples could not be read.
    #[error("the series cannot be read: {0}")]
    Source(SourceError),
}

impl Error {
    /// An error of the query itself.
    pub fn query(problem: impl Into<String>) -> Self {
        Self::Query { problem: problem.into(), hint: None }
    }

    /// An error with these series.
    pub fn execution(problem: impl Into<String>) -> Self {
        Self::Execution { problem: problem.into(), hint: None }
    }

    /// A limit that is exceeded.
    pub fn limit(problem: impl Into<String>) -> Self {
        Self::Limit { problem: problem.into(), hint: None }
    }

    /// Adds what to do about it. The other errors have their own hints.
    #[must_use]
    pub fn with_hint(mut self, advice: impl Into<String>) -> Self {
        match &mut self {
            Self::Query { hint, .. } | Self::Execution { hint, .. } | Self::Limit { hint, .. } => {
                *hint = Some(advice.into());
            }
            Self::Enough | Self::Source(_) => {}
        }
        self
    }
}
