//! Errors of the store.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

use muster_base::{files, form::OtherForm};
use muster_sqlite::{
    form::FormError,
    room,
    schema::{self, SchemaError},
};
use muster_topics::{diagnostic::Diagnostic, name::Digest};

/// A statement or a migration failed, or a row is invalid.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A statement failed.
    #[error("the console's store: {0}")]
    Sql(#[from] sqlx::Error),
    /// The schema could not be migrated.
    #[error("the console's store cannot be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The store cannot be opened, for a known reason.
    #[error("the console's store {path} {meaning}: {source}")]
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
    /// The file is damaged, according to SQLite.
    #[error("the console's store is damaged: {0}")]
    Damaged(String),
    /// Content is not what its hash says.
    #[error("the console's store has a {what} whose content does not match its hash {sha256}")]
    Altered {
        /// Its kind and name.
        what: String,
        /// Its hash.
        sha256: Digest,
    },
    /// A stored value is invalid.
    #[error("the console's store has a {what} that cannot be read: {problem}")]
    Row {
        /// What it belongs to.
        what: &'static str,
        /// The problem.
        problem: String,
    },
}

impl miette::Diagnostic for StoreError {
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        match self {
            Self::Sql(error) => room::hint_of_store(error).map(|hint| Box::new(hint) as Box<dyn Display>),
            Self::Unusable { hint, .. } => Some(Box::new(hint)),
            Self::OtherForm(other) => other.help(),
            Self::Migrate(_) | Self::Damaged(_) | Self::Altered { .. } | Self::Row { .. } => None,
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
            Self::Unusable { .. } | Self::OtherForm(_) | Self::Damaged(_) | Self::Altered { .. } | Self::Row { .. } => {
                false
            }
        }
    }

    /// Whether the file itself is damaged, so that no retry can help.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            Self::Sql(error) => schema::is_damage(error),
            Self::Migrate(error) => schema::is_damage_to_migrate(error),
            Self::Unusable { .. } | Self::OtherForm(_) | Self::Altered { .. } | Self::Row { .. } => false,
        }
    }

    /// Whether a single row cannot be read.
    pub(super) fn is_of_row(&self) -> bool {
        matches!(
            self,
            Self::Row { .. }
                | Self::Altered { .. }
                | Self::Sql(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_))
        )
    }

    /// Whether the file cannot be opened or read, as on a bad disk.
    fn is_unreadable(&self) -> bool {
        match self {
            Self::Sql(sqlx::Error::Io(error)) => files::is_unreadable(error),
            Self::Sql(error) => schema::is_unreadable(error),
            _ => false,
        }
    }

    /// What to do about it, for a log.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Diagnostic::of(self).hint
    }

    /// Adds the meaning and a hint to an error of opening a store, as far as known.
    pub(super) fn of_store(self, path: &Path) -> Self {
        use sqlx::migrate::MigrateError::{VersionMissing, VersionTooNew};
        let (meaning, hint) = match &self {
            _ if path.is_dir() => ("is a folder", "move that folder away, or choose another data_dir"),
            Self::Migrate(VersionMissing(_) | VersionTooNew(..)) => (
                "was written by a newer version of muster",
                "start that version again, or restore an earlier copy of the whole folder",
            ),
            error if error.is_damage() => (
                "is damaged",
                "restore it from a backup. Without one, move it away with its -wal and -shm, and start again: members and revoked \
                 certificates come back from the authority's register, the state of hosts from the hosts; commands, tokens, configs and labels of \
                 artifacts are lost. `sqlite3 console.db .recover` may read more of it. Check this machine's disk",
            ),
            error if error.is_unreadable() => (
                "cannot be opened or read, or its console.db-wal cannot",
                "check this machine's disk (`dmesg`), and start again. If that does not help, restore the store from a backup; without \
                 one, move it away with its -wal and -shm, as one that is damaged: members and revoked certificates come back from the \
                 authority's register",
            ),
            _ => return self,
        };
        Self::Unusable { path: path.to_owned(), meaning, hint, source: Box::new(self) }
    }

    /// Whether the same statement may succeed later (a full disk, a busy file), unlike one that violates a constraint.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        use sqlx::{Error, error::ErrorKind};
        match self {
            Self::Sql(Error::Database(error)) => matches!(error.kind(), ErrorKind::Other),
            Self::Sql(Error::Io(_) | Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed) => true,
            Self::Sql(_)
            | Self::Migrate(_)
            | Self::Unusable { .. }
            | Self::OtherForm(_)
            | Self::Damaged(_)
            | Self::Altered { .. }
            | Self::Row { .. } => false,
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

/// The result type of this module.
pub type StoreResult<T> = std::result::Result<T, StoreError>;
