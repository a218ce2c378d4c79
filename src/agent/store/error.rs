//! Errors of the store.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use muster_base::form::OtherForm;
use muster_sqlite::{
    form::FormError,
    room,
    schema::{self, SchemaError},
};

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A statement failed.
    #[error("the agent's store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The schema could not be migrated.
    #[error("the agent's store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The store cannot be opened, for a known reason.
    #[error("the agent's store {path} {meaning}: {source}")]
    Unusable {
        /// Its file.
        path: PathBuf,
        /// What that means.
        meaning: &'static str,
        /// What an operator can do.
        hint: &'static str,
        /// The cause.
        source: Box<StoreError>,
    },
    /// Another build has written it.
    #[error(transparent)]
    OtherForm(#[from] OtherForm),
    /// Stored content is unreadable.
    #[error("the agent's store holds a {what} that cannot be read: {source}")]
    Content {
        /// The kind of content.
        what: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file is damaged, according to SQLite.
    #[error("the agent's store is damaged: {0}")]
    Damaged(String),
    /// The mark beside it cannot be used.
    #[error("the mark of the agent's store, {path}: {source}")]
    Mark {
        /// The store's file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A damaged store could not be moved aside.
    #[error("the damaged store {path} cannot be set aside: {source}")]
    SetAside {
        /// The store's file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl miette::Diagnostic for StoreError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self {
            Self::Sql(error) => room::hint_of_store(error).map(|hint| Box::new(hint) as Box<dyn fmt::Display>),
            Self::Unusable { hint, .. } => Some(Box::new(hint)),
            Self::OtherForm(other) => other.help(),
            Self::Mark { .. } => {
                Some(Box::new("the agent's user must be able to read and write it, and the disk needs free space"))
            }
            Self::Migrate(_) | Self::Content { .. } | Self::Damaged(_) | Self::SetAside { .. } => None,
        }
    }
}

impl StoreError {
    /// Whether the disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Sql(error) => room::is_missing(error),
            Self::Migrate(error) => room::is_missing_to_migrate(error),
            Self::Mark { source, .. } => room::is_missing_for(source),
            _ => false,
        }
    }

    /// Adds the meaning and a hint to an error of opening a store, as far as known.
    pub(super) fn of_store(self, path: &Path) -> Self {
        use sqlx::migrate::MigrateError::{VersionMissing, VersionTooNew};
        let (meaning, hint) = match &self {
            _ if path.is_dir() => ("is a folder", "move that folder away, or choose another data_dir"),
            Self::Migrate(VersionMissing(_) | VersionTooNew(..)) => (
                "was written by a newer version of muster",
                "start that version again. Without it, move the file away with its -wal and -shm, and start this one: the desired state of \
                 units is restored from `intent`, the outcomes of commands from their shims, and commands that were issued before are refused",
            ),
            _ => return self,
        };
        Self::Unusable { path: path.to_owned(), meaning, hint, source: Box::new(self) }
    }

    /// Whether the file itself is damaged, so that no retry can help.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            Self::Sql(error) => schema::is_damage(error),
            Self::Migrate(error) => schema::is_damage_to_migrate(error),
            _ => false,
        }
    }
}

impl From<FormError> for StoreError {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Other(other) => Self::OtherForm(other),
            FormError::Sql(error) => Self::Sql(error),
        }
    }
}

impl From<SchemaError> for StoreError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Migrate(error) => Self::Migrate(error),
            SchemaError::Damaged(why) => Self::Damaged(why),
        }
    }
}
