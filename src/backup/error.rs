//! Why a backup cannot be written, read or restored.

use std::{io, path::PathBuf};

use muster_topics::diagnostic::Diagnostic;

/// An error with a backup.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum BackupError {
    /// The file is something else.
    #[error("this is not a backup of muster: {0}")]
    #[diagnostic(help(
        "use a file that `muster backup create` or the console's schedule wrote; \
         its name ends with .tar.age"
    ))]
    NotABackup(&'static str),
    /// The file was made by a newer version.
    #[error("the backup has format {found}, and this program reads up to {known}; it was made by muster {muster}")]
    #[diagnostic(help("use that version, or a newer one"))]
    Newer {
        /// The format of the file.
        found: u64,
        /// The newest format that this program knows.
        known: u64,
        /// The version that made it.
        muster: String,
    },
    /// Another build has made it.
    #[error(
        "the backup was made by a build of muster from before its first release ({muster}), whose backups \
         are no longer supported"
    )]
    #[diagnostic(help("restore it with the build that made it"))]
    OtherForm {
        /// The version that it names.
        muster: String,
    },
    /// No key was given.
    #[error("the private key is missing")]
    #[diagnostic(help("pass its file with --identity FILE"))]
    NoKey,
    /// None of the keys opens it.
    #[error("the private key does not open this backup; number of keys that do: {0}")]
    #[diagnostic(help(
        "use the private key of one of the `recipients` in the console's configuration at the time of the backup"
    ))]
    WrongKey(usize),
    /// A text is not a key.
    #[error("{what} is not valid: {problem}")]
    #[diagnostic(help("`muster backup create-key` creates a pair of keys"))]
    Key {
        /// Which key.
        what: &'static str,
        /// The problem.
        problem: String,
    },
    /// There is nobody to encrypt to.
    #[error("no public key for backups is configured")]
    #[diagnostic(help(
        "`muster backup create-key` creates one; put its public part under [backup] as recipients in the console's \
         configuration"
    ))]
    NoRecipient,
    /// The end is missing.
    #[error("the backup is cut off: its end is missing")]
    #[diagnostic(help("copy the file again from where it was made, or use an older backup"))]
    Truncated,
    /// The content was changed.
    #[error("the backup is damaged: {0}")]
    #[diagnostic(help("copy the file again from where it was made, or use an older backup"))]
    Damaged(String),
    /// The file of the backup cannot be read or written.
    #[error("the backup cannot be read: {0}")]
    Read(io::Error),
    /// The backup cannot be written.
    #[error("the backup cannot be written: {0}")]
    Write(io::Error),
    /// A file of the folder cannot be read or written.
    #[error("{path} cannot be used: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
        /// What to do about it.
        #[help]
        hint: Option<&'static str>,
    },
    /// A file has changed while it was read.
    #[error("{path} was truncated while it was backed up")]
    #[diagnostic(help("try again"))]
    Changed {
        /// The file.
        path: String,
    },
    /// The system provides no randomness.
    #[error("cannot create a key: the system provides no randomness")]
    Randomness,
    /// A console uses the folder.
    #[error("a console uses {path}")]
    #[diagnostic(help("stop the console first, and start it again afterwards"))]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Another restore works on the folder.
    #[error("another restore into {path} is running")]
    #[diagnostic(help("wait until it has finished"))]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has data.
    #[error("the folder {path} is not empty")]
    #[diagnostic(help(
        "choose a new folder, or pass --replace: the present content is kept beside it under another name, \
         and revocations in it stay in force"
    ))]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has the authority of another fleet.
    #[error(
        "the backup is of another fleet than the folder {path}: its root certificate has the SHA-256 {backup}, and \
         the one there {found}"
    )]
    #[diagnostic(help("choose another folder, or move its content away first"))]
    OtherFleet {
        /// The folder.
        path: PathBuf,
        /// The fleet of the backup.
        backup: String,
        /// The fleet of the folder.
        found: String,
    },
    /// The folder cannot be replaced by renaming.
    #[error("the folder {path} cannot be replaced as a whole: it is a mount of its own")]
    #[diagnostic(help(
        "restore into a folder below it, and set data_dir of the console's configuration to that folder"
    ))]
    Mount {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is named in a way that it cannot be replaced.
    #[error("{path} cannot be restored into: {problem}")]
    #[diagnostic(help("name the console's data folder, such as /var/lib/muster/console"))]
    Target {
        /// The folder.
        path: PathBuf,
        /// The problem.
        problem: &'static str,
    },
}

fn advice(source: &io::Error) -> Option<&'static str> {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free space on that disk (`df -h` shows how full it is), and try again")
        }
        io::ErrorKind::PermissionDenied => Some("run this command as the console's user or as root"),
        _ => None,
    }
}

impl BackupError {
    /// What went wrong, for people.
    #[must_use]
    pub fn diagnostic(&self) -> Diagnostic {
        let consequence = match self {
            Self::OtherForm { .. } | Self::Truncated | Self::Damaged(_) => "nothing was restored from it",
            Self::InUse { .. } | Self::NotEmpty { .. } | Self::OtherFleet { .. } => "nothing was changed",
            _ => return Diagnostic::of(self),
        };
        Diagnostic::of(self).with_consequence(consequence)
    }

    /// An error about the file at `path`.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match Self::inside(source) {
            Ok(inner) => inner,
            Err(source) => Self::File { path, hint: advice(&source), source },
        }
    }

    /// An error of reading a backup: what the layers below have found, or an error of the file.
    pub(crate) fn reading(error: io::Error) -> Self {
        Self::inside(error).unwrap_or_else(Self::Read)
    }

    /// An error of writing a backup.
    pub(crate) fn writing(error: io::Error) -> Self {
        Self::inside(error).unwrap_or_else(Self::Write)
    }

    fn inside(error: io::Error) -> Result<Self, io::Error> {
        error.downcast::<Self>()
    }
}

impl From<BackupError> for io::Error {
    fn from(error: BackupError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
