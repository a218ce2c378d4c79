//! The broker's role: from its configuration to a running [`muster_broker::Broker`].

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use muster_broker::{Broker, Limits, StartError, Tls};
use muster_topics::topic::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Kind, with_causes};

/// Configuration of `muster broker`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where clients connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The broker's certificate (PEM), as `muster console issue --role broker` writes it.
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// The authority's certificate (PEM): who shows a certificate of this authority is let in.
    pub authority: PathBuf,
    /// Folder of what outlives the broker: retained messages. Only its owner may read it.
    pub data_dir: PathBuf,
    /// Where Prometheus finds the broker's metrics (`GET /metrics`, plain HTTP, no password); not at all if it is not
    /// given. Port 0 takes a free one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor: Option<SocketAddr>,
    /// The first levels of all topics.
    pub prefix: Prefix,
    /// Limits, each with its reason.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        let folder = Path::new("/etc/muster/broker");
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8883),
            certificate: folder.join("certificate.pem"),
            key: folder.join("key.pem"),
            authority: folder.join("authority.pem"),
            data_dir: PathBuf::from("/var/lib/muster/broker"),
            monitor: None,
            prefix: Prefix::default(),
            limits: Limits::default(),
        }
    }
}

/// Starts a broker from its configuration.
///
/// # Errors
/// If a file cannot be read, or the broker does not start.
pub async fn start(config: Config) -> Result<Broker, Failure> {
    let read = |path: &Path| {
        fs::read_to_string(path).trying(format_args!("the file {}", path.display())).map_err(|failure| {
            failure.hint("`muster console issue --role broker --name NAME --san ADDRESS --out DIR` writes these files")
        })
    };
    let tls =
        Tls { authority: read(&config.authority)?, certificate: read(&config.certificate)?, key: read(&config.key)? };
    let config = muster_broker::Config {
        listen: config.listen,
        tls,
        store: Some(config.data_dir),
        monitor: config.monitor,
        prefix: config.prefix,
        limits: config.limits,
    };
    Broker::start(config).await.map_err(|error| failure(&error, "listen"))
}

/// A broker's refusal to start, in words; `setting` is what says where it listens.
#[must_use]
pub fn failure(error: &StartError, setting: &str) -> Failure {
    let failure = Failure::new(Kind::Failed, format!("the broker: {}", with_causes(error)));
    match error {
        StartError::Bind { .. } => {
            failure.hint(format!("choose another address or port with {setting}; port 0 takes a free one"))
        }
        StartError::BindMonitor { .. } => {
            failure.hint("choose another address or port with monitor; port 0 takes a free one")
        }
        StartError::Store { .. } => failure.hint("choose a folder that this user may write with data_dir"),
        StartError::StoreHeld { .. } => failure.hint("stop the other one, or give each a data_dir of its own"),
        StartError::StoreVersion { .. } => failure.hint(
            "another version of muster wrote it: start that one, or move the file away (every party publishes what is its \
             own again)",
        ),
        _ => failure,
    }
}
