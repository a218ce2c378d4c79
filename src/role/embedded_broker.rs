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
use muster_broker::{Broker, BrokerError, BrokerSizes, PlainListener, Tls, Users};
use muster_doctor::config_files::{FileUse, NamedFile};
use muster_topics::{diagnostic::Diagnostic, topic::Prefix};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::{check_config::RoleRules, revoked};

/// Configuration of `muster broker`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Where clients connect. Port 0 takes a free one.
    pub(crate) listen: SocketAddr,
    /// The broker's certificate (PEM), as `muster console issue --role broker` writes it.
    pub(crate) certificate_file: PathBuf,
    /// Its key (PEM).
    pub(crate) key_file: PathBuf,
    /// The authority's certificate (PEM): who shows a certificate of this authority is let in.
    pub(crate) authority_file: PathBuf,
    /// The authority's revocation list (PEM): whose certificate is on it is not let in. The console keeps one, `revoked.pem`
    /// in its data folder. A change of the file takes effect within seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revoked_file: Option<PathBuf>,
    /// Where clients connect with MQTT over WebSocket (and TLS), at the path /mqtt; nowhere unless it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) websocket_listen: Option<SocketAddr>,
    /// Where programs of this host connect without TLS, with a name and a password of `users_file`; nowhere unless it is set.
    /// A loopback address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plain_listen: Option<SocketAddr>,
    /// Who may connect there: lines of `muster broker password NAME`.
    pub(crate) users_file: PathBuf,
    /// Folder of what outlives the broker: retained messages. Only its owner may read it.
    pub(crate) data_dir: PathBuf,
    /// Where Prometheus finds the broker's metrics (`GET /metrics`, plain HTTP, no password); not at all if it is not
    /// given. Port 0 takes a free one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) monitor_listen: Option<SocketAddr>,
    /// The first levels of all topics.
    pub(crate) prefix: Prefix,
    /// How many clients may be connected. A process may usually open 20,000 files; beyond ten thousand hosts a cluster is
    /// needed, not a higher number here. It decides, too, how many messages may be retained: ten for each.
    pub(crate) clients_max: usize,
    /// How many of them may have the same certificate, or the same user name. An agent and a console have one connection, and
    /// for a moment two; one user name for fifty sensors needs fifty. It decides, too, how much they may send in a second:
    /// 2 MiB for each.
    pub(crate) identity_clients_max: usize,
    /// How many bytes clients may make the broker hold, at least 64 MiB, and 16 KiB for each of `clients_max`. A half of it may
    /// wait for clients, an eighth may be retained, and each session and host has its share of that.
    pub(crate) memory_max_bytes: usize,
    /// How many seconds a client may take for its TLS handshake, and then again for its CONNECT: three round trips over a
    /// satellite link, with room for a busy processor.
    pub(crate) connect_timeout_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        let (folder, sizes) = (Path::new("/etc/muster/broker"), BrokerSizes::default());
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8883),
            certificate_file: folder.join("certificate.pem"),
            key_file: folder.join("key.pem"),
            authority_file: folder.join("authority.pem"),
            revoked_file: None,
            websocket_listen: None,
            plain_listen: None,
            users_file: folder.join("users"),
            data_dir: PathBuf::from("/var/lib/muster/broker"),
            monitor_listen: None,
            prefix: Prefix::default(),
            clients_max: sizes.clients_max,
            identity_clients_max: sizes.identity_clients_max,
            memory_max_bytes: sizes.memory_max_bytes,
            connect_timeout_s: sizes.connect_timeout_s,
        }
    }
}

impl Config {
    /// What is known of it beside its type.
    pub(crate) fn rules(&self) -> RoleRules {
        let issue = "`muster console issue --role broker --name NAME --san ADDRESS --out DIR` on the console's machine writes it";
        let file = NamedFile::new;
        let mut files = vec![
            file("data_dir", &self.data_dir, FileUse::OwnFolder, ""),
            file("certificate_file", &self.certificate_file, FileUse::Certificate, issue),
            file("key_file", &self.key_file, FileUse::Key, issue),
            file("authority_file", &self.authority_file, FileUse::Certificate, issue),
        ];
        let from_console = "the console keeps it in its data folder; if it is on another machine, copy it from there";
        files.extend(
            self.revoked_file.iter().map(|path| file("revoked_file", path, FileUse::RevocationList, from_console)),
        );
        let mut problems: Vec<Diagnostic> =
            self.sizes().problems().iter().map(|problem| Diagnostic::of(problem)).collect();
        if let Some(address) = self.plain_listen {
            let usual = "`muster broker password NAME` prints a line for this file";
            files.push(file("users_file", &self.users_file, FileUse::Secret, usual));
            if self.users_file.exists() {
                problems.extend(users(&self.users_file).err().and_then(|failure| failure.diagnostic));
            }
            if !address.ip().is_loopback() {
                problems.extend(failure(&BrokerError::NotLoopback(address), "plain_listen").diagnostic);
            }
        }
        let listeners = [
            ("listen", Some(self.listen)),
            ("websocket_listen", self.websocket_listen),
            ("plain_listen", self.plain_listen),
            ("monitor_listen", self.monitor_listen),
        ];
        let listeners = listeners.into_iter().filter_map(|(key, address)| Some((key, address?))).collect();
        RoleRules { problems, files, listeners }
    }

    /// How large the broker is.
    pub(crate) fn sizes(&self) -> BrokerSizes {
        let &Self { clients_max, identity_clients_max, memory_max_bytes, connect_timeout_s, .. } = self;
        BrokerSizes { clients_max, identity_clients_max, memory_max_bytes, connect_timeout_s }
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
        let users = config.plain_listen.map(|_| users(&config.users_file)).transpose()?;
        let credentials = self.broker.credentials();
        credentials.replace_tls(&tls).map_err(|error| failure_of(&error, &config))?;
        if let Some(users) = users {
            credentials.replace_users(users);
        }
        let taken = ["certificate_file", "key_file", "authority_file", "users_file"];
        let others = other_changes(&self.config, &config, &taken);
        self.config = Config {
            certificate_file: config.certificate_file,
            key_file: config.key_file,
            authority_file: config.authority_file,
            users_file: config.users_file,
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
    let limits = config.sizes().limits().map_err(|error| {
        Failure::told(FailureKind::Usage, Diagnostic::of(&error).within("the broker's configuration"))
    })?;
    let (tls, started_with) = (tls(&config)?, config.clone());
    let plain = match config.plain_listen {
        Some(listen) => Some(PlainListener { listen, users: users(&config.users_file)? }),
        None => None,
    };
    let broker = muster_broker::Config {
        websocket: config.websocket_listen,
        plain,
        store: Some(config.data_dir),
        monitor: config.monitor_listen,
        prefix: config.prefix,
        limits,
        ..muster_broker::Config::new(config.listen, tls)
    };
    let broker = Broker::start(broker).await.map_err(|error| failure_of(&error, &started_with))?;
    let watch = match config.revoked_file {
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
    let Config { certificate_file, key_file, authority_file, .. } = config;
    failure.hint(format!(
        "{}, {} and {} are the broker's certificate, its key and its authority; restore them from a backup, or make new ones with \
         `muster console issue --role broker --name NAME --san ADDRESS --out DIR`",
        certificate_file.display(),
        key_file.display(),
        authority_file.display()
    ))
}

fn tls(config: &Config) -> Result<Tls, Failure> {
    let read = |path: &Path| {
        files::read_text(path).trying(format_args!("the file {}", path.display())).map_err(|failure| {
            failure.hint("`muster console issue --role broker --name NAME --san ADDRESS --out DIR` writes these files")
        })
    };
    Ok(Tls {
        authority: read(&config.authority_file)?,
        certificate: read(&config.certificate_file)?,
        key: read(&config.key_file)?,
    })
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
            failure.hint("set `plain_listen` to an address such as 127.0.0.1:1883; others connect with TLS")
        }
        BrokerError::BindMonitor { .. } => {
            failure.hint("choose another address or port with `monitor_listen`; port 0 takes a free one")
        }
        BrokerError::Store { .. } => failure.hint("choose a folder that this user may write with data_dir"),
        BrokerError::StoreHeld { .. } => failure.hint("stop the other one, or give each a data_dir of its own"),
        _ => failure,
    }
}
