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
//! accept ── one task per connection ──┬─ publishes ──▶ intake ──▶ router (a thread) ──▶ link per subscriber ─┐
//!              ▲                      └─ retained store, in the same order                                   │
//!              └──────────────────────── messages, at the pace at which the client takes them ───────────────┘
//! ```
//!
//! Modules, in reading order:
//!
//! - [`limits`](Limits): a limit on everything, each with its reason
//! - `text`, `codec`, `message`: what is well formed; bytes to packets and back; a message that was let in
//! - `accept`: from a TCP connection to a guest, of whom it is known how to tell who it is
//! - `stream`, `scratch`, `tls`, `websocket`: the transports, which hold nothing for idle clients
//! - `who`, `revoked`, `users`: whom a certificate is for; which are good no more; names and passwords
//! - `admit`, `access`: from a guest to a client; what it may do
//! - `registry`: who is connected; takeover
//! - `session`, `connection`: a client's state, without IO; its task
//! - `retained`, `router`: messages that stay; rumqttd's router, and its replacement when it dies
//!
//! **Invariant: no byte from outside panics.** The codec reads checked; clippy denies `unwrap` and friends.
//!
//! **Invariant: a broker with nothing to do does nothing.** No task polls; each connection has one timer, for the nearest
//! of its deadlines.
//!
//! **Invariant: nothing is lost silently.** A client that does not keep up is disconnected; what was refused is refused
//! in the protocol's words where it has any, and otherwise ends the connection.

mod accept;
mod access;
mod admit;
mod codec;
mod connection;
mod limits;
mod message;
mod registry;
mod retained;
mod revoked;
mod router;
mod scratch;
mod session;
mod stats;
mod stream;
mod text;
mod tls;
mod users;
mod websocket;
mod who;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use muster_topics::topic::Prefix;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{accept::Door, registry::Registry, revoked::Revoked, router::Hub, stats::Counters};
pub use self::{
    limits::Limits,
    revoked::RevocationError,
    stats::Stats,
    tls::Tls,
    users::{Users, UsersError, password_line},
};

/// How long connections may take to end when the broker stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What a broker needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect. Port 0 lets the system choose; [`Broker::local_addr`] tells.
    pub listen: SocketAddr,
    /// Its certificate, and whom it lets in.
    pub tls: Tls,
    /// Where they connect with MQTT over WebSocket (and TLS), if anywhere.
    pub websocket: Option<SocketAddr>,
    /// Where they connect without TLS, if anywhere.
    pub plain: Option<Plain>,
    /// The first levels of every topic. What is outside is denied.
    pub prefix: Prefix,
    /// Its limits.
    pub limits: Limits,
}

impl Config {
    /// A broker that only speaks MQTT over TLS, with the usual prefix and limits.
    #[must_use]
    pub fn new(listen: SocketAddr, tls: Tls) -> Self {
        Self { listen, tls, websocket: None, plain: None, prefix: Prefix::default(), limits: Limits::default() }
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
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What takes a running broker's revocation list.
#[derive(Clone, Debug)]
pub struct Revocations(Arc<Shared>);

impl Revocations {
    /// Puts another list (X.509, in PEM) in force, and ends the connections of those who are on it. Tells how many
    /// certificates are revoked. A list that is not taken changes nothing.
    ///
    /// # Errors
    /// If it cannot be read, is not the authority's, is out of date or only part of one.
    pub fn replace(&self, list: &str) -> Result<usize, RevocationError> {
        let shared = &self.0;
        let count = shared.revoked.replace(list)?;
        let ended = shared.registry.end_revoked(|serial| shared.revoked.contains(serial));
        tracing::info!(revoked = count, ended, "a revocation list is in force");
        Ok(count)
    }
}

/// What all connections share.
struct Shared {
    prefix: Prefix,
    limits: Limits,
    counters: Arc<Counters>,
    revoked: Arc<Revoked>,
    /// Who may come in with a password.
    users: Option<Users>,
    registry: Arc<Registry>,
    hub: Arc<Hub>,
    stop: CancellationToken,
}

impl Shared {
    /// Tells everything that runs to end.
    fn end(&self) {
        self.stop.cancel();
        self.registry.end_all();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("prefix", &self.prefix).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Broker {
    /// Starts a broker; it takes connections when this returns. To be called within a tokio runtime.
    ///
    /// # Errors
    /// If the TLS material is unusable, a limit makes no sense, or the address cannot be had.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let Config { listen, tls, websocket, plain, prefix, limits } = config;
        limits.check()?;
        let (server, revoked) = tls.server()?;
        let tls = Door::Tls(Arc::clone(&server)).open(listen)?;
        let websocket = websocket.map(|address| Door::WebSocket(server).open(address)).transpose()?;
        let (plain, users) = plain.map(|plain| (plain.listen, plain.users)).unzip();
        let plain = plain.map(|address| Door::Plain.open(address)).transpose()?;
        let counters = Arc::new(Counters::default());
        let hub = Hub::start(&limits, &prefix, Arc::clone(&counters)).await.map_err(|_| StartError::Router)?;
        let registry = Registry::new(&limits);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared { prefix, limits, counters, revoked, users, registry, hub, stop });
        let tasks = TaskTracker::new();
        let broker = Self {
            address: tls.address,
            websocket: websocket.as_ref().map(|open| open.address),
            plain: plain.as_ref().map(|open| open.address),
            shared,
            tasks,
        };
        let strangers = accept::Strangers::new(&broker.shared.limits);
        for open in [Some(tls), websocket, plain].into_iter().flatten() {
            tracing::info!(address = %open.address, transport = open.door.name(), "the broker takes connections");
            broker.tasks.spawn(open.run(strangers.clone(), Arc::clone(&broker.shared), broker.tasks.clone()));
        }
        Ok(broker)
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where it takes MQTT over WebSocket, if it does.
    #[must_use]
    pub fn websocket_addr(&self) -> Option<SocketAddr> {
        self.websocket
    }

    /// Where it takes connections without TLS, if it does.
    #[must_use]
    pub fn plain_addr(&self) -> Option<SocketAddr> {
        self.plain
    }

    /// What takes its revocation list.
    #[must_use]
    pub fn revocations(&self) -> Revocations {
        Revocations(Arc::clone(&self.shared))
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.shared.counters;
        let (retained, retained_bytes) = self.shared.hub.retained_size();
        Stats {
            connections: self.shared.registry.connections() as u64,
            connected_total: counters.connected.get(),
            refused_total: counters.refused.get(),
            takeovers_total: counters.takeovers.get(),
            received_total: counters.received.get(),
            sent_total: counters.sent.get(),
            denied_total: counters.denied.get(),
            slow_total: counters.slow.get(),
            retained: retained as u64,
            retained_bytes: retained_bytes as u64,
            retained_refused_total: counters.retained_refused.get(),
            router_deaths_total: counters.router_deaths.get(),
        }
    }

    /// Stops taking connections and ends those that there are, without their last wills: nobody is left to read them.
    pub async fn stop(self) {
        self.shared.end();
        self.tasks.close();
        if tokio::time::timeout(STOP_GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "some connections did not end in time");
        }
        self.shared.hub.stop();
        tracing::info!(address = %self.address, "the broker has stopped");
    }
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
