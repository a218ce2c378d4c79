//! Errors that keep the broker from starting.

use std::{io, net::SocketAddr, path::PathBuf};

/// Why a broker does not start.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
pub enum BrokerError {
    /// The address is in use, not this machine's, or not permitted.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The same, for the metrics.
    #[error("cannot listen on {address} for the metrics")]
    BindMonitor {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The address for connections without TLS is not loopback.
    #[error("without TLS the broker does not listen on {0}, which others can reach")]
    NotLoopback(SocketAddr),
    /// A certificate or key is unusable.
    #[error("{what} cannot be used for TLS")]
    Tls {
        /// Which one.
        what: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The folder of retained messages cannot be used.
    #[error("cannot {trying} the folder {folder}", folder = folder.display())]
    Store {
        /// The folder.
        folder: PathBuf,
        /// What was tried.
        trying: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Another broker uses it.
    #[error("another broker uses the folder {folder}", folder = folder.display())]
    StoreHeld {
        /// The folder.
        folder: PathBuf,
    },
    /// The journal has another version.
    #[error(
        "{} was written by a build of muster from before its first release, or by a newer one (version {version}), and is not \
         read",
        path.display()
    )]
    #[diagnostic(help(
        "another version of muster wrote it: start that one, or move the file away (every client publishes its own \
         messages again)"
    ))]
    StoreVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The router's threads do not start.
    #[error("the message router cannot start")]
    Router,
}
