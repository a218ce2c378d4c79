//! muster's embedded MQTT broker: a front of its own around rumqttd's `Router`.
//!
//! Any MQTT broker can serve a fleet; this one is there so that none has to be installed. The router fans messages out.
//! Everything that decides who may do what, and everything that a client could use against the broker, is the front's:
//! TLS and identity, validation, permissions, sessions and takeover, last wills, retained messages, quality of service,
//! limits. rumqttd's own listener is never started: as released, ordinary clients stop it.
//!
//! Tasks and threads, and what flows between them:
//!
//! ```text
//! accept ─ admit ─ one task per connection ── publishes ──▶ hub ──▶ router (a thread: one log) ──▶ exchange (one task)
//!                        ▲                                                                            │      │
//!                        └── messages, at the pace at which the client takes them ── mailbox ◀────────┘      ▼
//!                                                                                                        retained
//! ```
//!
//! Modules, in reading order:
//!
//! - [`limits`](Limits): a limit on everything, each with its reason
//! - `text`, `codec`, `message`: what is well formed; bytes to packets and back; a message that was let in
//! - `accept`: from a TCP connection to a guest, of whom it is known how to tell who it is; `muster_guard` has the places
//! - `stream`, `tls`, `websocket`, `scratch`: the transports, which hold no buffers for idle clients
//! - `who`, `revoked`, `users`, `turns`: whom a certificate is for; which are good no more; names and passwords; whose is
//!   checked next
//! - `admit`, `access`: from a guest to a client; what it may do
//! - `registry`, `pace`: who is connected, and whose session waits; takeover; how fast one may send
//! - `session`, `mailbox`: a client's state, without IO; what waits for it, and what happens if that is too much
//! - `connection`: a client's task; what remains of it when it ends
//! - `router`: rumqttd's router, and its replacement when it dies
//! - `exchange`, `tree`, `retained`: who gets what; subscriptions by topic; messages that stay
//! - `stats`, `system`, `monitor`: what is counted, and where it can be read: in MQTT, by Prometheus
//! - [`render`]: the same rules for other brokers
//!
//! **Invariant: no byte from outside panics.** The codec reads checked; clippy denies `unwrap` and friends.
//!
//! **Invariant: a broker with nothing to do does next to nothing.** No task polls but the router's canary, every five
//! seconds; each connection has one timer, for the nearest of its deadlines.
//!
//! **Invariant: a line about a peer passes `Lines`**, which says once in a while what was said again and again.
//!
//! **Invariant: nothing is lost silently.** A client that does not keep up is disconnected; what was refused is refused
//! in the protocol's words where it has any, and otherwise ends the connection.

mod accept;
mod access;
mod admit;
mod clock;
mod codec;
mod connection;
mod exchange;
mod limits;
mod mailbox;
mod message;
mod monitor;
mod pace;
mod registry;
pub mod render;
mod retained;
mod revoked;
mod router;
mod scratch;
mod session;
mod stats;
mod stream;
mod system;
mod text;
mod tls;
mod tree;
mod turns;
mod users;
mod websocket;
mod who;

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use muster_guard::{Guard, Lines, RecentLogins};
use muster_topics::topic::Prefix;
use tokio::{net::TcpListener, time::interval};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use self::codec::fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use self::websocket::fuzzing as fuzzing_websocket;
use self::{
    accept::Door,
    access::Rules,
    clock::unix_ms,
    exchange::Exchange,
    mailbox::Pool,
    registry::{Registry, RevokedClients},
    retained::Retained,
    revoked::Revoked,
    router::Hub,
    stats::Counters,
    tls::Current,
};
pub use self::{
    limits::Limits,
    revoked::RevocationError,
    stats::{Beginning, Counts, Journal, Kind, Refused, Stats},
    tls::Tls,
    users::{Users, UsersError, password_line},
};

/// Retained messages that are taken away at a time.
const REMOVALS_AT_A_TIME: usize = 256;

/// How long connections may take to end when the broker stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What a broker needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect. Port 0 lets the system choose; [`Broker::local_addr`] tells.
    pub listen: SocketAddr,
    /// Its certificate, and whom it lets in.
    pub tls: Tls,
    /// Where they connect with MQTT over WebSocket (and TLS). None: nowhere.
    pub websocket: Option<SocketAddr>,
    /// Where they connect without TLS. None: nowhere.
    pub plain: Option<Plain>,
    /// The folder in which retained messages outlive the broker. None: they do not.
    pub store: Option<PathBuf>,
    /// Where Prometheus finds the metrics: `GET /metrics`, plain HTTP. None: nowhere.
    pub monitor: Option<SocketAddr>,
    /// The first levels of every topic. What is outside is denied.
    pub prefix: Prefix,
    /// Its limits.
    pub limits: Limits,
}

impl Config {
    /// A broker with one listener, the default prefix and limits, and nothing that outlives it.
    #[must_use]
    pub fn new(listen: SocketAddr, tls: Tls) -> Self {
        Self {
            listen,
            tls,
            websocket: None,
            plain: None,
            store: None,
            monitor: None,
            prefix: Prefix::default(),
            limits: Limits::default(),
        }
    }
}

/// A way in without TLS, for programs on the same host: nobody can listen there, and a password shows who it is.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Where. An address that others can reach is refused.
    pub listen: SocketAddr,
    /// Who may come in.
    pub users: Users,
}

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
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

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    websocket: Option<SocketAddr>,
    plain: Option<SocketAddr>,
    monitor: Option<SocketAddr>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What takes a running broker's revocation list.
#[derive(Clone, Debug)]
pub struct Revocations(Arc<Shared>);

impl Revocations {
    /// Puts another list (X.509, in PEM) in force, and ends the connections of those who are on it. Tells how many
    /// certificates are revoked. What they have retained is taken away soon after. A list that is not taken changes nothing.
    ///
    /// To be called within a tokio runtime.
    ///
    /// # Errors
    /// If it cannot be read, is not the authority's, is out of date or only part of one.
    pub fn replace(&self, list: &str) -> Result<usize, RevocationError> {
        let shared = &self.0;
        let count = shared.revoked.replace(list)?;
        let clients = shared.registry.end_revoked(|serial| shared.revoked.contains(serial));
        tracing::info!(revoked = count, ended = clients.ending.len(), "a revocation list is in force");
        tokio::spawn(Arc::clone(shared).forget_revoked(clients));
        Ok(count)
    }
}

/// What takes a running broker's certificate and users anew.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Shared>);

impl Credentials {
    /// Has all handshakes from now on made with this. Clients that are connected stay.
    ///
    /// # Errors
    /// If it cannot be used; what was there before stays then.
    pub fn replace_tls(&self, tls: &Tls) -> Result<(), StartError> {
        self.0.handshakes.replace(tls.server(&self.0.revoked)?);
        Ok(())
    }

    /// Has these be the users from now on; clients that are connected as somebody who is none any more are disconnected. Nothing, if the
    /// broker has no listener for users.
    pub fn replace_users(&self, users: Users) {
        let Some(current) = &self.0.users else { return };
        *current.write().unwrap_or_else(PoisonError::into_inner) = users.clone();
        self.0.registry.end_removed_users(|identity| users.contains(identity));
    }
}

/// What all connections share.
struct Shared {
    rules: Arc<Rules>,
    limits: Limits,
    started: Instant,
    started_ms: u64,
    counters: Arc<Counters>,
    /// With which certificate, and whom it lets in.
    handshakes: Current,
    revoked: Arc<Revoked>,
    /// Who may come in with a password, if that is possible at all.
    users: Option<RwLock<Users>>,
    registry: Arc<Registry>,
    hub: Arc<Hub>,
    exchange: Arc<Exchange>,
    /// What waits for all sessions together.
    pool: Arc<Pool>,
    stop: CancellationToken,
}

impl Shared {
    /// Tells everything that runs to end.
    fn end(&self) {
        self.stop.cancel();
        self.registry.end_all();
    }

    fn stats(&self) -> Stats {
        let exchange = self.exchange.figures();
        let (retained, retained_bytes) = exchange.retained;
        Stats {
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            connections: self.registry.connections() as u64,
            connections_v5: self.counters.connections_v5.get(),
            sessions_asleep: self.registry.asleep() as u64,
            subscriptions: exchange.subscriptions as u64,
            mailbox_bytes: self.pool.used() as u64,
            mailbox_most_bytes: self.registry.most_queued() as u64,
            retained: retained as u64,
            retained_bytes: retained_bytes as u64,
            retained_most_bytes: exchange.retained_most as u64,
            retained_expired_total: exchange.expired,
            journal: exchange.journal.map(Into::into),
            ..self.counters.stats()
        }
    }

    /// Publishes what the broker tells of itself while somebody reads it.
    async fn tell(self: Arc<Self>) {
        let mut every = interval(system::EVERY);
        let tell = async {
            loop {
                every.tick().await;
                if self.exchange.is_watched() {
                    system::messages(&self.stats()).iter().for_each(|message| self.exchange.deal_system(message));
                }
            }
        };
        self.stop.run_until_cancelled(tell).await;
    }

    /// Takes away what is retained of those whose certificates are revoked, once their last wills are out. Subscribers are
    /// told, by an empty message for each.
    async fn forget_revoked(self: Arc<Self>, clients: RevokedClients) {
        let forget = async {
            for former in clients.asleep {
                connection::let_go(&self, former).await;
            }
            for gone in clients.ending {
                gone.cancelled().await;
            }
            // Who has another certificate meanwhile says itself what is so.
            let removals = self
                .exchange
                .removals(|identity, serial| self.revoked.contains(serial) && !self.registry.is_connected(identity));
            self.counters.retained_revoked.add(removals.len() as u64);
            for removals in removals.chunks(REMOVALS_AT_A_TIME) {
                // An error means that the broker stops; the list is put in force again when it starts.
                let _ = self.hub.publish(removals.to_vec()).await.await;
            }
        };
        self.stop.run_until_cancelled(forget).await;
    }

    /// Sees to the disk of the retained messages.
    async fn tend(self: Arc<Self>) {
        let alarm = self.exchange.alarm();
        while self.stop.run_until_cancelled(alarm.notified()).await.is_some() {
            self.exchange.tend();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("rules", &self.rules).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Broker {
    /// Starts a broker; it takes connections when this returns. To be called within a tokio runtime.
    ///
    /// # Errors
    /// If the TLS material is unusable, a limit makes no sense, or the address cannot be had.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let Config { listen, tls, websocket, plain, store, monitor, prefix, limits } = config;
        limits.check()?;
        let revoked = Arc::<Revoked>::default();
        let handshakes = Current::new(tls.server(&revoked)?);
        let tls = Door::Tls(handshakes.clone()).open(listen)?;
        let websocket = websocket.map(|address| Door::WebSocket(handshakes.clone()).open(address)).transpose()?;
        let (plain, users) = plain.map(|plain| (plain.listen, plain.users)).unzip();
        let plain = plain.map(|address| Door::Plain.open(address)).transpose()?;
        let metrics = monitor.map(bind_monitor).transpose()?;
        muster_guard::make_room(limits.connections_max, tls.descriptor());
        let counters = Arc::new(Counters::default());
        let retained = open_retained(store, prefix.clone(), limits.clone()).await?;
        let hub = Hub::new(&limits, Arc::clone(&counters));
        let outlet = hub.start().await.map_err(|_| StartError::Router)?;
        let pool = Pool::new(limits.queues_max_bytes);
        let shared = Arc::new(Shared {
            rules: Rules::new(prefix, &limits),
            started: Instant::now(),
            started_ms: unix_ms(),
            registry: Registry::new(&limits, Arc::clone(&pool)),
            exchange: Exchange::new(retained, Arc::clone(&pool), Arc::clone(&counters)),
            pool,
            stop: CancellationToken::new(),
            limits,
            counters,
            handshakes,
            revoked,
            users: users.map(RwLock::new),
            hub,
        });
        let exchange = Arc::clone(&shared.exchange);
        tokio::spawn(Arc::clone(&shared.hub).run(outlet, move |messages| exchange.deal(messages)));
        let tasks = TaskTracker::new();
        tasks.spawn(Arc::clone(&shared).tell());
        tasks.spawn(Arc::clone(&shared).tend());
        let stop = shared.stop.clone();
        tasks.spawn(async move { stop.run_until_cancelled(Lines::of_process().run()).await });
        let logins = Arc::<Mutex<RecentLogins>>::default();
        let monitor = metrics.as_ref().map(|(_, address)| *address);
        if let Some((listener, address)) = metrics {
            let (told, stop) = (Arc::clone(&shared), shared.stop.clone());
            let guard = Guard::new(monitor::PLACES, &logins);
            let serve = monitor::run(listener, guard, move || told.stats(), tasks.clone());
            tasks.spawn(async move { stop.run_until_cancelled(serve).await });
            tracing::info!(%address, "the broker's metrics can be read");
        }
        let address_of = |open: &accept::Open| open.address;
        let (address, ws, tcp) = (tls.address, websocket.as_ref().map(address_of), plain.as_ref().map(address_of));
        for open in [Some(tls), websocket, plain].into_iter().flatten() {
            tracing::info!(address = %open.address, transport = open.door.name(), "the broker takes connections");
            open.run(&logins, Arc::clone(&shared), tasks.clone());
        }
        Ok(Self { address, websocket: ws, plain: tcp, monitor, shared, tasks })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where it takes MQTT over WebSocket, with the real port.
    #[must_use]
    pub fn websocket_addr(&self) -> Option<SocketAddr> {
        self.websocket
    }

    /// Where it takes connections without TLS, with the real port.
    #[must_use]
    pub fn plain_addr(&self) -> Option<SocketAddr> {
        self.plain
    }

    /// What takes its revocation list.
    #[must_use]
    pub fn revocations(&self) -> Revocations {
        Revocations(Arc::clone(&self.shared))
    }

    /// What takes its certificate and users anew.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials(Arc::clone(&self.shared))
    }

    /// Where the metrics are, with the real port.
    #[must_use]
    pub fn monitor_addr(&self) -> Option<SocketAddr> {
        self.monitor
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Stops taking connections and ends those that there are, without their last wills: nobody is left to read them.
    pub async fn stop(self) {
        self.shared.end();
        self.tasks.close();
        if tokio::time::timeout(STOP_GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "some connections did not end in time");
        }
        self.shared.hub.stop();
        let exchange = Arc::clone(&self.shared.exchange);
        if tokio::task::spawn_blocking(move || exchange.close()).await.is_err() {
            tracing::error!("the retained messages could not be closed");
        }
        tracing::info!(address = %self.address, "the broker has stopped");
    }
}

fn bind_monitor(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bind = |source| StartError::BindMonitor { address, source };
    let listener = muster_guard::listen(address).map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    Ok((listener, address))
}

/// Reads the retained messages on a thread that may wait for the disk.
async fn open_retained(store: Option<PathBuf>, prefix: Prefix, limits: Limits) -> Result<Retained, StartError> {
    let opening = tokio::task::spawn_blocking(move || Retained::open(store.as_deref(), prefix, &limits, unix_ms()));
    opening.await.unwrap_or(Err(StartError::Router))
}

impl Drop for Broker {
    /// A broker that is dropped without [`Broker::stop`] ends as well, in its own time.
    fn drop(&mut self) {
        self.shared.end();
        self.tasks.close();
        self.shared.hub.stop();
    }
}

#[cfg(test)]
extern crate self as muster_broker;

#[cfg(test)]
#[path = "../tests/broker/fixture.rs"]
#[expect(dead_code, reason = "most of it is for the tests outside")]
mod fixture;

#[cfg(test)]
mod choppy;

#[cfg(test)]
mod tests;
