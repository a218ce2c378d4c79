//! Errors of a query.

use super::source::SourceError;

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The query is invalid, or uses something that does not exist.
    #[error("{0}")]
    Query(String),
    /// The query cannot be evaluated with these series.
    #[error("{0}")]
    Execution(String),
    /// The query exceeds a limit.
    #[error("{0}")]
    Limit(String),
    /// The caller has cancelled the query.
    #[error("the query took too long. hint: ask for a shorter range or fewer series")]
    Enough,
    /// The samples could not be read.
    #[error("the series cannot be read: {0}")]
    Source(SourceError),
}
