//! Errors that keep an agent from starting.

use std::{io, path::PathBuf};

use muster_base::form::OtherForm;
use muster_sqlite::room;

use super::{config::AgentConfigError, join::JoinError, store::StoreError, unit::UnitsError};

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum AgentError {
    /// Its configuration cannot work.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] AgentConfigError),
    /// Its folder cannot be used.
    #[error("the agent's folder {path}: {source}")]
    #[diagnostic(help("{}", folder_hint(source)))]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its local interface cannot listen.
    #[error("the agent's local interface cannot listen on {place}: {source}")]
    #[diagnostic(help("{}", local_hint(source)))]
    Local {
        /// The socket, or the address.
        place: String,
        /// The cause.
        source: io::Error,
    },
    /// Another agent uses the folder.
    #[error("another agent runs with the folder {path}")]
    #[diagnostic(help("stop that one, or give this one a folder of its own (`data_dir`)"))]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// Another build has written what is in its folder.
    #[error(transparent)]
    #[diagnostic(transparent)]
    OtherForm(#[from] OtherForm),
    /// It has not joined a fleet, and has no token.
    #[error("this host has not joined a fleet")]
    #[diagnostic(help("make a token with `muster token create` on the console's side, and give it as `join`"))]
    NotJoined,
    /// It could not join.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Join(#[from] JoinError),
    /// Its store cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// Its units cannot be restored.
    #[error("cannot load the host's units: {0}")]
    Units(
        #[source]
        #[diagnostic_source]
        UnitsError,
    ),
}

impl AgentError {
    /// Why nothing could be written in its folder, if that is the reason.
    pub(super) fn disk_fault(&self) -> Option<io::ErrorKind> {
        let of_file = |error: &io::Error| room::is_missing_for(error).then(|| error.kind());
        let of_store = |error: &StoreError| error.is_full().then_some(io::ErrorKind::StorageFull);
        match self {
            Self::Folder { source, .. } | Self::Local { source, .. } | Self::Join(JoinError::Io { source, .. }) => {
                of_file(source)
            }
            Self::Store(error) => of_store(error),
            Self::Units(UnitsError::Store(error)) => of_store(error),
            Self::Units(UnitsError::Folder { source, .. }) => of_file(source),
            _ => None,
        }
    }
}

pub(super) fn folder_hint(error: &io::Error) -> String {
    room::hint_or(error, "the agent's user must be able to write there (`data_dir`)")
}

pub(super) fn local_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there; choose another port (`local_listen`)",
        // A socket's path has at most 107 bytes.
        io::ErrorKind::InvalidInput => "choose a folder with a shorter path (`data_dir`)",
        _ => "`data_dir` and `local_listen` set where it listens",
    }
}
