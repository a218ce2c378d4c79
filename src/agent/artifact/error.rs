//! Errors of downloads.
//!
//! All of them may pass: what the console lacks can be created there, and what is damaged there can be created again.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use muster_topics::{diagnostic::Diagnostic, name::Digest};
use reqwest::StatusCode;

/// Why something could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The connection failed, or the server sent less than it should.
    #[error("cannot fetch {what} from the console: {source}")]
    Transport {
        /// What was to be fetched.
        what: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server had another answer than the content.
    #[error("cannot fetch {what}: the console answers {status}{}", Reason(said.as_ref()))]
    Status {
        /// What was to be fetched.
        what: String,
        /// The answer.
        status: StatusCode,
        /// The reason that came with it.
        said: Option<Diagnostic>,
    },
    /// What came has not the SHA-256 that it should have.
    #[error("{what} has the wrong SHA-256 {found} and was not installed")]
    WrongHash {
        /// What was to be fetched.
        what: String,
        /// What came.
        found: Digest,
    },
    /// What came is longer than it should be.
    #[error("{what} is longer than its {size_bytes} bytes and was not installed")]
    TooLong {
        /// What was to be fetched.
        what: String,
        /// How long it should be.
        size_bytes: u64,
    },
    /// It could not be written down.
    #[error("cannot write {what} to {path}: {source}")]
    Write {
        /// What was fetched.
        what: String,
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The agent's own certificate or the console's address cannot be used.
    #[error("cannot connect to the console: {0}")]
    Client(Box<dyn std::error::Error + Send + Sync>),
}

impl miette::Diagnostic for ArtifactError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let hint = match self {
            Self::Status { said: Some(Diagnostic { hint: Some(hint), .. }), .. } => hint,
            Self::Status { status: StatusCode::NOT_FOUND, .. } => {
                "the console does not have it; create it on the console"
            }
            Self::Status { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, .. } => {
                "is this host still a member of the fleet?"
            }
            Self::WrongHash { .. } | Self::TooLong { .. } => "create it on the console again",
            Self::Write { source, .. } if is_full(source) => "free space on this host's disk",
            Self::Transport { .. } | Self::Status { .. } | Self::Write { .. } | Self::Client(_) => return None,
        };
        Some(Box::new(hint))
    }
}

/// What follows a status in a message: nothing, or a colon and the cause.
struct Reason<'a>(Option<&'a Diagnostic>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |said| write!(f, ": {}", said.cause))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(super) fn transport(what: &str) -> impl Fn(reqwest::Error) -> ArtifactError {
    let what = what.to_owned();
    move |error| ArtifactError::Transport { what: what.clone(), source: muster_net::http::cause(&error).into() }
}

pub(super) fn write_error(what: &str, path: &Path) -> impl Fn(io::Error) -> ArtifactError {
    let (what, path) = (what.to_owned(), path.to_owned());
    move |source| ArtifactError::Write { what: what.clone(), path: path.clone(), source }
}
