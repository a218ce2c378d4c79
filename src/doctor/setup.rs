//! What is installed on this host, by the configurations of its roles.

use std::{net::SocketAddr, path::PathBuf};

use muster_topics::{diagnostic::Diagnostic, name::HostId, topic::Prefix};
use serde::Serialize;

/// A part of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The machine itself.
    Host,
    /// The agent.
    Agent,
    /// The console.
    Console,
    /// The embedded broker.
    Broker,
    /// The command line of this user.
    Cli,
}

impl Part {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Agent => "agent",
            Self::Console => "console",
            Self::Broker => "broker",
            Self::Cli => "cli",
        }
    }
}

/// One role that is installed here, or the command line.
#[derive(Clone, Debug, Default)]
pub struct PartSetup {
    /// The file of its configuration.
    pub config: Option<PathBuf>,
    /// Why its configuration or its identity cannot be used.
    pub trouble: Option<Diagnostic>,
    /// What has to be done before it can work, such as joining.
    pub missing: Option<Diagnostic>,
    /// The file that a running one keeps locked.
    pub lock: Option<PathBuf>,
    /// How it is started.
    pub start: String,
    /// Its service of systemd, whose log is in the bundle.
    pub service: Option<&'static str>,
    /// Its folders.
    pub folders: Vec<PathBuf>,
    /// Its SQLite stores.
    pub stores: Vec<PathBuf>,
    /// Where it listens.
    pub listeners: Vec<ListenerSetup>,
    /// Servers that it connects to.
    pub servers: Vec<ServerSetup>,
    /// Its certificates.
    pub certificates: Vec<CertificateSetup>,
    /// The revocation list that it reads.
    pub revoked: Option<PathBuf>,
    /// Files with secrets, which only their owner may read.
    pub private: Vec<PathBuf>,
    /// Its membership, if it is an agent that has joined.
    pub member: Option<MemberSetup>,
    /// The Unix socket on which an agent answers.
    pub agent_socket: Option<PathBuf>,
    /// The socket of Podman or Docker that an agent uses.
    pub podman_socket: Option<PathBuf>,
    /// How many open files it needs, and why.
    pub open_files: Option<(u64, &'static str)>,
}

/// An address on which a role listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSetup {
    /// The key of the configuration that sets it.
    pub key: &'static str,
    /// The address.
    pub address: SocketAddr,
}

/// A server that a role connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSetup {
    /// What it is: `console` or `broker`.
    pub what: &'static str,
    /// Its URL.
    pub url: String,
    /// The authority that its certificate must be of (PEM); none without TLS.
    pub authority: Option<String>,
    /// What helps if nothing answers there.
    pub remedy: String,
}

/// A certificate of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSetup {
    /// What it is.
    pub what: &'static str,
    /// Where it is from: a file with PEM, or the text itself.
    pub source: CertificateSource,
    /// What makes a new one.
    pub remedy: String,
}

/// Where a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// A file with PEM.
    File(PathBuf),
    /// PEM.
    Text(String),
}

/// The membership of a host.
#[derive(Clone, PartialEq, Eq)]
pub struct MemberSetup {
    /// The host.
    pub host: HostId,
    /// The prefix of all topics.
    pub prefix: Prefix,
    /// The broker's URL.
    pub broker_url: String,
    /// The authority's certificate (PEM).
    pub authority: String,
    /// The host's certificate (PEM).
    pub certificate: String,
    /// The host's key (PEM).
    pub key: String,
}

impl std::fmt::Debug for MemberSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberSetup").field("host", &self.host).finish_non_exhaustive()
    }
}
