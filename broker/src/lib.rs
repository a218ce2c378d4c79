//! muster's embedded MQTT broker: a front of its own around rumqttd's `Router`.
//!
//! Any MQTT broker can serve a fleet; this one exists so that none has to be installed. Nearly all of a broker is the
//! front's work: TLS and identity, validation, permissions, sessions and takeover, subscriptions and distribution, last
//! wills, retained messages, quality of service, limits. Of rumqttd only the router is used, and of the router only its log,
//! as the one ordered queue between publishers and distribution (see `router`, also for what that costs). rumqttd's own
//! listener is never started, because ordinary clients stop it.
//!
//! Tasks and threads, and the flow between them:
//!
//! ```text
//! accept ─ admit ─ one task per connection ── publishes ──▶ hub ──▶ router (a thread: one log) ──▶ exchange (one task)
//!                        ▲                                                                            │      │
//!                        └── messages, at the pace at which the client reads them ── mailbox ◀────────┘      ▼
//!                                                                                                        retained
//! ```
//!
//! Modules, in reading order:
//!
//! - [`sizes`](BrokerSizes), [`limits`](BrokerLimits): what an operator sets, and the limits on everything that follow from it
//! - `topic_text`, `codec`, `message`: validation of topics; bytes to packets and back; a message that was accepted
//! - `accept`: from a TCP connection to a `pending` client; `muster_guard` limits the places
//! - `stream`, `tls`, `websocket`, `scratch`: the transports, without buffers for idle clients
//! - `identity`, `revoked`, `users`, `password_queue`: the identity of a certificate; revoked ones; names and passwords; the order of
//!   password checks
//! - `admit`, `access`: from a pending client to a client; its permissions
//! - `registry`, `rate_limit`: connected clients and waiting sessions; takeover; rate limits
//! - `session`, `mailbox`: a client's state, without IO; its bounded queue
//! - `connection`: a client's task, and its end; `state`: what all connections share
//! - `router`: rumqttd's router, and its replacement when it dies
//! - `exchange`, `subscription_tree`, `retained`: distribution; subscriptions by topic; retained messages
//! - `stats`, `sys_topics`, `monitor`: counters, and where they can be read: in MQTT, by Prometheus
//! - [`render`]: the same permissions for other brokers
//!
//! **Invariant: no byte from outside causes a panic.** The codec reads checked; clippy denies `unwrap` and friends.
//!
//! **Invariant: an idle broker does next to nothing.** Only the router's canary polls, every five
//! seconds; each connection has one timer, for the nearest of its deadlines.
//!
//! **Invariant: log lines about peers pass [`muster_guard::LineLimiter`]**, which counts repetitions instead of logging them.
//!
//! **Invariant: no loss is silent.** A client that does not keep up is disconnected; a refusal is expressed
//! in the protocol where it has a way, and otherwise ends the connection.

mod accept;
mod access;
mod admit;
mod clock;
mod codec;
mod connection;
mod error;
mod exchange;
mod identity;
mod limits;
mod mailbox;
mod message;
mod monitor;
mod password_queue;
mod pending;
mod rate_limit;
mod registry;
pub mod render;
mod retained;
mod revoked;
mod router;
mod scratch;
mod session;
mod sizes;
mod state;
mod stats;
mod stream;
mod subscription_tree;
mod sys_topics;
mod tls;
mod topic_text;
mod users;
mod websocket;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use muster_guard::{Guard, LineLimiter, RecentLogins};
use muster_topics::topic::Prefix;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use self::codec::fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use self::websocket::fuzzing as fuzzing_websocket;
use self::{
    accept::Transport, access::AccessRules, clock::unix_ms, exchange::Exchange, mailbox::MessagePool,
    registry::Registry, retained::RetainedStore, revoked::RevokedSerials, router::RouterHandle, stats::Counters,
    tls::CurrentTls,
};
pub use self::{
    limits::BrokerLimits,
    revoked::{AcceptedList, RevocationError},
    sizes::{BrokerSizes, SizeError},
    stats::{Beginning, BrokerStats, CountedKind, JournalStats, KindCounts, Refused},
    tls::Tls,
    users::{Users, UsersError, password_line},
};

/// How many retained messages are cleared at a time.
const REMOVALS_AT_A_TIME: usize = 256;

/// How long connections may take to end when the broker stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The configuration of a broker.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect. Port 0 lets the system choose; [`Broker::local_addr`] returns it.
    pub listen: SocketAddr,
    /// The broker's certificate, and the authority of clients.
    pub tls: Tls,
    /// Where clients connect with MQTT over WebSocket (and TLS), if anywhere.
    pub websocket: Option<SocketAddr>,
    /// Where clients connect without TLS, if anywhere.
    pub plain: Option<PlainListener>,
    /// The folder in which retained messages are stored; `None` keeps them in memory only.
    pub store: Option<PathBuf>,
    /// Where Prometheus finds the metrics: `GET /metrics`, plain HTTP.
    pub monitor: Option<SocketAddr>,
    /// The prefix of every topic. Other topics are denied.
    pub prefix: Prefix,
    /// Its limits.
    pub limits: BrokerLimits,
}

impl Config {
    /// Creates one with a single listener, the default prefix and limits, and no store.
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
            limits: BrokerLimits::default(),
        }
    }
}

/// A listener without TLS, for programs on the same host: traffic cannot be observed there, and a password
/// authenticates.
#[derive(Clone, Debug)]
pub struct PlainListener {
    /// The address; only loopback is accepted.
    pub listen: SocketAddr,
    /// The users.
    pub users: Users,
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    websocket: Option<SocketAddr>,
    plain: Option<SocketAddr>,
    monitor: Option<SocketAddr>,
    shared: Arc<BrokerState>,
    tasks: TaskTracker,
}

/// A handle to replace a running broker's revocation list.
#[derive(Clone, Debug)]
pub struct Revocations(Arc<BrokerState>);

impl Revocations {
    /// Replaces the list (X.509, in PEM), and ends the connections of revoked clients. Their retained messages are cleared soon
    /// after. An invalid list changes nothing.
    ///
    /// It must be called within a tokio runtime.
    ///
    /// # Errors
    /// If it cannot be parsed, is not the authority's, is incomplete, or is outdated while another one that is as new is in force.
    pub fn replace(&self, list: &str) -> Result<AcceptedList, RevocationError> {
        let shared = &self.0;
        let accepted = shared.revoked.replace(list)?;
        let clients = shared.registry.end_revoked(|serial| shared.revoked.contains(serial));
        tracing::info!(revoked = accepted.count, ended = clients.ending.len(), "a revocation list is in force");
        if let Some(since) = &accepted.overdue_since {
            tracing::warn!(
                consequence = "clients that were revoked after it was made are admitted",
                hint =
                    "start the console, which writes a new one; if it is on another machine, copy its revoked.pem here",
                "the revocation list is out of date: the next one was due {since}",
            );
        }
        tokio::spawn(Arc::clone(shared).forget_revoked(clients));
        Ok(accepted)
    }
}

/// A handle to replace a running broker's certificate and users.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<BrokerState>);

impl Credentials {
    /// Uses this for all later handshakes. Connected clients stay, unless an authority is not trusted any more: then all
    /// clients with certificates have to connect anew.
    ///
    /// # Errors
    /// If it cannot be used; nothing changes then.
    pub fn replace_tls(&self, tls: &Tls) -> Result<(), BrokerError> {
        let before = self.0.revoked.authorities();
        self.0.handshakes.replace(tls.server(&self.0.revoked)?);
        let now = self.0.revoked.authorities();
        if before.iter().any(|authority| !now.contains(authority)) {
            tracing::warn!("an authority is no longer trusted: clients must connect again");
            self.0.registry.end_certified();
        }
        Ok(())
    }

    /// Replaces the users; connected clients of removed ones are disconnected. Does nothing if the broker has no
    /// listener for users.
    pub fn replace_users(&self, users: Users) {
        let Some(current) = &self.0.users else { return };
        *current.write().unwrap_or_else(PoisonError::into_inner) = users.clone();
        self.0.registry.end_removed_users(|identity| users.contains(identity));
    }
}

impl Broker {
    /// Starts a broker, which accepts connections when this returns. It must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the TLS material is unusable, or an address cannot be bound.
    pub async fn start(config: Config) -> Result<Self, BrokerError> {
        let Config { listen, tls, websocket, plain, store, monitor, prefix, limits } = config;
        let revoked = Arc::<RevokedSerials>::default();
        let handshakes = CurrentTls::new(tls.server(&revoked)?);
        let tls = Transport::Tls(handshakes.clone()).open(listen)?;
        let websocket = websocket.map(|address| Transport::WebSocket(handshakes.clone()).open(address)).transpose()?;
        let (plain, users) = plain.map(|plain| (plain.listen, plain.users)).unzip();
        let plain = plain.map(|address| Transport::Plain.open(address)).transpose()?;
        let metrics = monitor.map(bind_monitor).transpose()?;
        muster_guard::make_room(limits.connections_max, tls.descriptor());
        let counters = Arc::new(Counters::default());
        let retained = open_retained(store, prefix.clone(), limits.clone()).await?;
        let hub = RouterHandle::new(&limits, Arc::clone(&counters));
        let outlet = hub.start().await.map_err(|_| BrokerError::Router)?;
        let pool = MessagePool::new(limits.queues_max_bytes);
        let shared = Arc::new(BrokerState {
            rules: AccessRules::new(prefix, &limits),
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
        tokio::spawn(Arc::clone(&shared.hub).run(outlet, move |messages| exchange.distribute(messages)));
        let tasks = TaskTracker::new();
        tasks.spawn(Arc::clone(&shared).tell());
        tasks.spawn(Arc::clone(&shared).tend());
        let stop = shared.stop.clone();
        tasks.spawn(async move { stop.run_until_cancelled(LineLimiter::of_process().run()).await });
        let logins = Arc::<Mutex<RecentLogins>>::default();
        let monitor = metrics.as_ref().map(|(_, address)| *address);
        if let Some((listener, address)) = metrics {
            let (told, stop) = (Arc::clone(&shared), shared.stop.clone());
            let guard = Guard::new(monitor::PLACES, &logins);
            let serve = monitor::run(listener, guard, move || told.stats(), tasks.clone());
            tasks.spawn(async move { stop.run_until_cancelled(serve).await });
            tracing::info!(%address, "the broker serves its metrics");
        }
        let address_of = |open: &accept::OpenListener| open.address;
        let (address, ws, tcp) = (tls.address, websocket.as_ref().map(address_of), plain.as_ref().map(address_of));
        for open in [Some(tls), websocket, plain].into_iter().flatten() {
            tracing::info!(address = %open.address, transport = open.door.name(), "the broker accepts connections");
            open.run(&logins, Arc::clone(&shared), tasks.clone());
        }
        Ok(Self { address, websocket: ws, plain: tcp, monitor, shared, tasks })
    }

    /// The address that it listens on, with the actual port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The address of MQTT over WebSocket, with the actual port.
    #[must_use]
    pub fn websocket_addr(&self) -> Option<SocketAddr> {
        self.websocket
    }

    /// The address without TLS, with the actual port.
    #[must_use]
    pub fn plain_addr(&self) -> Option<SocketAddr> {
        self.plain
    }

    /// The handle to replace its revocation list.
    #[must_use]
    pub fn revocations(&self) -> Revocations {
        Revocations(Arc::clone(&self.shared))
    }

    /// The handle to replace its certificate and users.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials(Arc::clone(&self.shared))
    }

    /// The address of the metrics, with the actual port.
    #[must_use]
    pub fn monitor_addr(&self) -> Option<SocketAddr> {
        self.monitor
    }

    /// Returns its counters.
    #[must_use]
    pub fn stats(&self) -> BrokerStats {
        self.shared.stats()
    }

    /// Stops accepting connections and ends existing ones, without their last wills: there are no readers left.
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

fn bind_monitor(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BrokerError> {
    let bind = |source| BrokerError::BindMonitor { address, source };
    let listener = muster_guard::listen(address).map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    Ok((listener, address))
}

/// Opens the retained messages on a blocking thread.
async fn open_retained(
    store: Option<PathBuf>,
    prefix: Prefix,
    limits: BrokerLimits,
) -> Result<RetainedStore, BrokerError> {
    let opening =
        tokio::task::spawn_blocking(move || RetainedStore::open(store.as_deref(), prefix, &limits, unix_ms()));
    opening.await.unwrap_or(Err(BrokerError::Router))
}

impl Drop for Broker {
    /// A broker that is dropped without [`Broker::stop`] ends as well, in the background.
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

use state::BrokerState;

pub use error::BrokerError;
