//! Errors of the store.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use muster_topics::Millis;

use super::selector::SelectorError;

/// Something went wrong with the time-series store.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The selector is not one.
    #[error("selector: {0}")]
    Selector(#[from] SelectorError),
    /// The range ends before it starts.
    #[error("the range ends at {end_ms}, before it starts at {start_ms}")]
    Range {
        /// Start.
        start_ms: Millis,
        /// End.
        end_ms: Millis,
    },
    /// The selector chooses too much.
    #[error("the selector chooses more than {series_max} series. hint: name a host, as in {{hostname=\"…\"}}")]
    TooMany {
        /// The limit.
        series_max: usize,
    },
    /// The answer took too long.
    #[error("no answer within {0:?}. hint: ask for a shorter range or fewer series")]
    Deadline(Duration),
    /// A statement failed.
    #[error("the time-series store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the time-series store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// SQLite found the file itself to be wrong.
    #[error("the time-series store is damaged: {0}")]
    Damaged(String),
    /// A damaged store could not be moved out of the way.
    #[error("the damaged time-series store {path} cannot be set aside: {source}")]
    SetAside {
        /// The store's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The store has been stopped.
    #[error("the time-series store has been stopped")]
    Stopped,
    /// The store could not be opened when its owner started.
    #[error("the time-series store is left out: {0}")]
    LeftOut(Arc<str>),
}
