//! Errors that keep the broker from starting.

use std::{io, net::SocketAddr, path::PathBuf};

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The address is taken, not this machine's, or not permitted.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The same, for the metrics.
    #[error("cannot listen on {address} for the metrics")]
    BindMonitor {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The address for connections without TLS is not this host's alone.
    #[error("without TLS the broker does not listen on {0}, which others can reach")]
    NotLoopback(SocketAddr),
    /// A certificate or key is unusable.
    #[error("{what} cannot be used for TLS")]
    Tls {
        /// Which.
        what: &'static str,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A limit makes no sense.
    #[error("{name} must {rule}")]
    Limit {
        /// Which limit, or which two.
        name: &'static str,
        /// What holds for it.
        rule: &'static str,
    },
    /// The folder of retained messages cannot be used.
    #[error("cannot {trying} the folder {folder}", folder = folder.display())]
    Store {
        /// The folder.
        folder: PathBuf,
        /// What was tried with it.
        trying: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another broker has it.
    #[error("another broker uses the folder {folder}", folder = folder.display())]
    StoreHeld {
        /// The folder.
        folder: PathBuf,
    },
    /// The journal is of another version.
    #[error("the journal {path} is of version {version}, which this program does not know", path = path.display())]
    StoreVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The router's threads do not start.
    #[error("the message router does not start")]
    Router,
}
