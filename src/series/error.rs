//! Errors of the store.

use std::{io, path::PathBuf, time::Duration};

use muster_sqlite::{
    form::{FormError, OtherForm},
    schema::SchemaError,
};
use muster_topics::Millis;

use super::selector::SelectorError;

/// An error of the time-series store.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SeriesError {
    /// The selector is invalid.
    #[error("selector: {0}")]
    Selector(#[from] SelectorError),
    /// The range ends before it starts.
    #[error("the range ends before it starts")]
    Range {
        /// Start.
        start_ms: Millis,
        /// End.
        end_ms: Millis,
    },
    /// The selector matches too many series.
    #[error("the selector selects more than {series_max} series")]
    #[diagnostic(help("name a host, as in {{hostname=\"…\"}}"))]
    TooMany {
        /// The limit.
        series_max: usize,
    },
    /// The query took too long.
    #[error("no answer within {0:?}")]
    #[diagnostic(help("ask for a shorter range or fewer series"))]
    Deadline(Duration),
    /// A statement failed.
    #[error("the time-series store: {0}")]
    Sql(#[from] sqlx::Error),
    /// A migration failed.
    #[error("the time-series store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Another build has written it.
    #[error(transparent)]
    #[diagnostic(transparent)]
    OtherForm(#[from] OtherForm),
    /// SQLite reports that the file is damaged.
    #[error("the time-series store is damaged: {0}")]
    Damaged(String),
    /// A damaged store could not be renamed.
    #[error("the damaged time-series store {path} cannot be set aside: {source}")]
    SetAside {
        /// The store's file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The store has been stopped.
    #[error("the time-series store has been stopped")]
    Stopped,
    /// The store could not be opened at the start.
    #[error("the time-series store is left out: {reason}")]
    LeftOut {
        /// Why.
        reason: String,
        /// What to do about it.
        #[help]
        hint: Option<String>,
    },
}

impl From<FormError> for SeriesError {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Other(other) => Self::OtherForm(other),
            FormError::Sql(error) => Self::Sql(error),
        }
    }
}

impl From<SchemaError> for SeriesError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Migrate(error) => Self::Migrate(error),
            SchemaError::Damaged(why) => Self::Damaged(why),
        }
    }
}
