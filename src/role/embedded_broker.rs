//! Starts a [`muster_broker::Broker`] from its configuration.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use muster_base::{
    failure::{Failure, FailureContext, FailureKind},
    files,
    reload::other_changes,
};
use muster_broker::{Broker, BrokerError, BrokerLimits, PlainListener, Tls, Users};
use muster_topics::{diagnostic::Diagnostic, topic::Prefix};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::revoked;

/// Configuration of `muster broker`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Where clients connect. Port 0 takes a free one.
    pub(crate) listen: SocketAddr,
    /// The broker's certificate (PEM), as `muster console issue --role broker` writes it.
    pub(crate) certificate: PathBuf,
    /// Its key (PEM).
    pub(crate) key: PathBuf,
    /// The authority's certificate (PEM): who shows a certificate of this authority is let in.
    pub(crate) authority: PathBuf,
    /// The authority's revocation list (PEM): whose certificate is on it is not let in. The console keeps one, `revoked.pem`
    /// in its data folder. A change of the file takes effect within seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<PathBuf>,
    /// Where clients connect with MQTT over WebSocket (and TLS), at the path /mqtt; nowhere unless it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) websocket: Option<SocketAddr>,
    /// Where programs of this host connect without TLS, with a name and a password of `users`; nowhere unless it is set.
    /// A loopback address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plain: Option<SocketAddr>,
    /// Who may connect there: lines of `muster broker password NAME`.
    pub(crate) users: PathBuf,
    /// Folder of what outlives the broker: retained messages. Only its owner may read it.
    pub(crate) data_dir: PathBuf,
    /// Where Prometheus finds the broker's metrics (`GET /metrics`, plain HTTP, no password); not at all if it is not
    /// given. Port 0 takes a free one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) monitor: Option<SocketAddr>,
    /// The first levels of all topics.
    pub(crate) prefix: Prefix,
    /// Limits, each with its reason.
    pub(crate) limits: BrokerLimits,
}

impl Default for Config {
    fn default() -> Self {
        let folder = Path::new("/etc/muster/broker");
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8883),
            certificate: folder.join("certificate.pem"),
            key: folder.join("key.pem"),
            authority: folder.join("authority.pem"),
            revoked: None,
            websocket: None,
            plain: None,
            users: folder.join("users"),
            data_dir: PathBuf::from("/var/lib/muster/broker"),
            monitor: None,
            prefix: Prefix::default(),
            limits: BrokerLimits::default(),
        }
    }
}

/// A broker, and the task that watches its revocation list.
#[derive(Debug)]
pub(crate) struct RunningBroker {
    /// Its current configuration.
    config: Config,
    broker: Broker,
    watch: Option<AbortOnDropHandle<()>>,
}

impl RunningBroker {
    /// The broker itself.
    #[must_use]
    pub(crate) fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Reloads certificate, key, authority and users from the files that `config` names. Returns the keys of other
    /// changed settings, which need a restart.
    ///
    /// # Errors
    /// If a file cannot be read or used; nothing changes then.
    pub(crate) fn reload(&mut self, config: Config) -> Result<Vec<String>, Failure> {
        let tls = tls(&config)?;
        let users = config.plain.map(|_| users(&config.users)).transpose()?;
        let credentials = self.broker.credentials();
        credentials.replace_tls(&tls).map_err(|error| failure_of(&error, &config))?;
        if let Some(users) = users {
            credentials.replace_users(users);
        }
        let taken = ["certificate", "key", "authority", "users"];
        let others = other_changes(&self.config, &config, &taken);
        self.config = Config {
            certificate: config.certificate,
            key: config.key,
            authority: config.authority,
            users: config.users,
            ..self.config.clone()
        };
        Ok(others)
    }

    /// Stops it.
    pub(crate) async fn stop(self) {
        drop(self.watch);
        self.broker.stop().await;
    }
}

/// Starts a broker with its configuration.
///
/// # Errors
/// If a file cannot be read, or the broker does not start.
pub(crate) async fn start(config: Config) -> Result<RunningBroker, Failure> {
    let (tls, started_with) = (tls(&config)?, config.clone());
    let plain = match config.plain {
        Some(listen) => Some(PlainListener { listen, users: users(&config.users)? }),
        None => None,
    };
    let broker = muster_broker::Config {
        websocket: config.websocket,
        plain,
        store: Some(config.data_dir),
        monitor: config.monitor,
        prefix: config.prefix,
        limits: config.limits,
        ..muster_broker::Config::new(config.listen, tls)
    };
    let broker = Broker::start(broker).await.map_err(|error| failure_of(&error, &started_with))?;
    let watch = match config.revoked {
        None => None,
        Some(path) => match revoked::watch(path, broker.revocations()).await {
            Ok(task) => Some(task),
            Err(failure) => {
                broker.stop().await;
                return Err(failure);
            }
        },
    };
    Ok(RunningBroker { config: started_with, broker, watch })
}

/// Explains why a broker does not start with this configuration.
fn failure_of(error: &BrokerError, config: &Config) -> Failure {
    let failure = failure(error, "listen");
    if !matches!(error, BrokerError::Tls { .. }) {
        return failure;
    }
    let Config { certificate, key, authority, .. } = config;
    failure.hint(format!(
        "{}, {} and {} say who the broker is and whom it trusts; bring them back from a backup, or have them made anew with \
         `muster console issue --role broker --name NAME --san ADDRESS --out DIR`",
        certificate.display(),
        key.display(),
        authority.display()
    ))
}

fn tls(config: &Config) -> Result<Tls, Failure> {
    let read = |path: &Path| {
        files::read_text(path).trying(format_args!("the file {}", path.display())).map_err(|failure| {
            failure.hint("`muster console issue --role broker --name NAME --san ADDRESS --out DIR` writes these files")
        })
    };
    Ok(Tls { authority: read(&config.authority)?, certificate: read(&config.certificate)?, key: read(&config.key)? })
}

fn users(path: &Path) -> Result<Users, Failure> {
    let hint = "`muster broker password NAME` prints a line for this file";
    let text = files::read_text(path)
        .trying(format_args!("the users file {}", path.display()))
        .map_err(|failure| failure.hint(hint))?;
    Users::parse(&text)
        .map_err(|error| Failure::new(FailureKind::Failed, format!("{}: {error}", path.display())).hint(hint))
}

/// The message of a broker that does not start; `setting` names the setting of its address.
#[must_use]
pub(crate) fn failure(error: &BrokerError, setting: &str) -> Failure {
    let failure = Failure::told(FailureKind::Failed, Diagnostic::of(error).within("the broker"));
    match error {
        BrokerError::Bind { .. } => {
            failure.hint(format!("choose another address or port with {setting}; port 0 takes a free one"))
        }
        BrokerError::NotLoopback(_) => {
            failure.hint("set `plain` to an address such as 127.0.0.1:1883; others connect with TLS")
        }
        BrokerError::BindMonitor { .. } => {
            failure.hint("choose another address or port with monitor; port 0 takes a free one")
        }
        BrokerError::Store { .. } => failure.hint("choose a folder that this user may write with data_dir"),
        BrokerError::StoreHeld { .. } => failure.hint("stop the other one, or give each a data_dir of its own"),
        _ => failure,
    }
}
