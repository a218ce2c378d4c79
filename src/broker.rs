//! The broker's role: from its configuration to a running [`muster_broker::Broker`], and what follows its revocation
//! list while it runs.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use muster_broker::{Broker, Limits, Plain, Revocations, StartError, Tls, Users};
use muster_topics::topic::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;

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
    /// The authority's revocation list (PEM): whose certificate is on it is not let in. The console keeps one, `revoked.pem`
    /// in its data folder. A change of the file takes effect within seconds.
    pub revoked: Option<PathBuf>,
    /// Where clients connect with MQTT over WebSocket (and TLS), at the path /mqtt; nowhere unless it is set.
    pub websocket: Option<SocketAddr>,
    /// Where programs of this host connect without TLS, with a name and a password of `users`; nowhere unless it is set.
    /// A loopback address.
    pub plain: Option<SocketAddr>,
    /// Who may connect there: lines of `muster broker password NAME`.
    pub users: PathBuf,
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
            revoked: None,
            websocket: None,
            plain: None,
            users: folder.join("users"),
            prefix: Prefix::default(),
            limits: Limits::default(),
        }
    }
}

/// A broker, and what follows its revocation list.
#[derive(Debug)]
pub struct Running {
    broker: Broker,
    watch: Option<AbortOnDropHandle<()>>,
}

impl Running {
    /// The broker itself.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Stops it.
    pub async fn stop(self) {
        drop(self.watch);
        self.broker.stop().await;
    }
}

/// Starts a broker from its configuration.
///
/// # Errors
/// If a file cannot be read, or the broker does not start.
pub async fn start(config: Config) -> Result<Running, Failure> {
    let read = |path: &Path| {
        fs::read_to_string(path).trying(format_args!("the file {}", path.display())).map_err(|failure| {
            failure.hint("`muster console issue --role broker --name NAME --san ADDRESS --out DIR` writes these files")
        })
    };
    let tls =
        Tls { authority: read(&config.authority)?, certificate: read(&config.certificate)?, key: read(&config.key)? };
    let plain = match config.plain {
        Some(listen) => Some(Plain { listen, users: users(&config.users)? }),
        None => None,
    };
    let broker = muster_broker::Config {
        websocket: config.websocket,
        plain,
        prefix: config.prefix,
        limits: config.limits,
        ..muster_broker::Config::new(config.listen, tls)
    };
    let broker = Broker::start(broker).await.map_err(|error| failure(&error, "listen"))?;
    let watch = match config.revoked {
        None => None,
        Some(path) => match watch(path, broker.revocations()).await {
            Ok(task) => Some(task),
            Err(failure) => {
                broker.stop().await;
                return Err(failure);
            }
        },
    };
    Ok(Running { broker, watch })
}

fn users(path: &Path) -> Result<Users, Failure> {
    let hint = "`muster broker password NAME` prints a line for this file";
    let text = fs::read_to_string(path)
        .trying(format_args!("the users file {}", path.display()))
        .map_err(|failure| failure.hint(hint))?;
    Users::parse(&text).map_err(|error| Failure::new(Kind::Failed, format!("{}: {error}", path.display())).hint(hint))
}

/// A broker's refusal to start, in words; `setting` is what says where it listens.
#[must_use]
pub fn failure(error: &StartError, setting: &str) -> Failure {
    let failure = Failure::new(Kind::Failed, format!("the broker: {}", with_causes(error)));
    match error {
        StartError::Bind { .. } => {
            failure.hint(format!("choose another address or port with {setting}; port 0 takes a free one"))
        }
        StartError::NotLoopback(_) => {
            failure.hint("set `plain` to an address such as 127.0.0.1:1883; others connect with TLS")
        }
        _ => failure,
    }
}

/// How often the revocation list's file is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// A revocation list that is larger is somebody's mistake: this is half a million certificates.
const LIST_MAX_BYTES: u64 = 32 * 1024 * 1024;

/// Puts the list in force, and each that replaces it.
async fn watch(path: PathBuf, revocations: Revocations) -> Result<AbortOnDropHandle<()>, Failure> {
    let mut list = List { path, revocations, seen: None };
    list.look().await.map_err(|why| {
        Failure::new(Kind::Failed, format!("the revocation list {}: {why}", list.path.display())).hint(HINT)
    })?;
    let hang_up = signal(SignalKind::hangup()).trying("to hear of SIGHUP")?;
    Ok(AbortOnDropHandle::new(tokio::spawn(list.follow(hang_up))))
}

const HINT: &str = "the console keeps its authority's list as revoked.pem in its data folder; copy it from there whole";

/// A revocation list's file.
struct List {
    path: PathBuf,
    revocations: Revocations,
    /// What was in it last, or why it could not be read.
    seen: Option<Result<Vec<u8>, String>>,
}

impl List {
    /// Looks at the file now and then, and on SIGHUP. It ends with its task.
    async fn follow(mut self, mut hang_up: Signal) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Both lose nothing when the other comes first.
            tokio::select! {
                _ = looks.tick() => (),
                Some(()) = hang_up.recv() => (),
            }
            if let Err(why) = self.look().await {
                let path = self.path.display();
                tracing::warn!(%path, "the revocation list is not taken, the one before stays in force: {why}; hint: {HINT}");
            }
        }
    }

    /// Takes the list if the file has changed. Tells of each mistake once.
    async fn look(&mut self) -> Result<(), String> {
        let content = read_list(&self.path).await;
        if self.seen.as_ref() == Some(&content) {
            return Ok(());
        }
        let taken = match &content {
            Err(why) => Err(why.clone()),
            Ok(bytes) => match std::str::from_utf8(bytes) {
                Err(_) => Err("it is not text".to_owned()),
                Ok(text) => self.revocations.replace(text).map(drop).map_err(|error| with_causes(&error)),
            },
        };
        self.seen = Some(content);
        taken
    }
}

async fn read_list(path: &Path) -> Result<Vec<u8>, String> {
    let length = tokio::fs::metadata(path).await.map_err(|error| error.to_string())?.len();
    if length > LIST_MAX_BYTES {
        return Err(format!("it has {length} bytes, and may have {LIST_MAX_BYTES}"));
    }
    tokio::fs::read(path).await.map_err(|error| error.to_string())
}
