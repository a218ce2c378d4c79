//! Errors of a query.

use super::source::SourceError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no query, or asks for what there is not.
    #[error("{0}")]
    Query(String),
    /// The query cannot be answered over these series.
    #[error("{0}")]
    Execution(String),
    /// The query asks for too much.
    #[error("{0}")]
    Limit(String),
    /// The caller has had enough.
    #[error("the query took too long. hint: ask for a shorter range or fewer series")]
    Enough,
    /// The samples could not be had.
    #[error("the series cannot be read: {0}")]
    Source(SourceError),
}
