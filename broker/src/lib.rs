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
//! - `tls`, `access`: who a client is; what it may do
//! - `accept`: from a TCP connection to a client
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
#[cfg_attr(
    not(any(test, feature = "fuzzing")),
    expect(dead_code, reason = "MQTT 5 and what else is new is taken up by the connection next")
)]
mod codec;
mod connection;
mod limits;
mod message;
mod registry;
mod retained;
mod router;
mod session;
mod stats;
mod text;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use muster_topics::topic::Prefix;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use self::codec::fuzzing;
pub use self::{limits::Limits, stats::Stats, tls::Tls};
use self::{registry::Registry, router::Hub, stats::Counters};

/// How long connections may take to end when the broker stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What a broker needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect. Port 0 lets the system choose; [`Broker::local_addr`] tells.
    pub listen: SocketAddr,
    /// Its certificate, and whom it lets in.
    pub tls: Tls,
    /// The first levels of every topic. What is outside is denied.
    pub prefix: Prefix,
    /// Its limits.
    pub limits: Limits,
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
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What all connections share.
struct Shared {
    prefix: Prefix,
    limits: Limits,
    counters: Arc<Counters>,
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
        let Config { listen, tls, prefix, limits } = config;
        limits.check()?;
        let acceptor = tls.acceptor()?;
        let bind = |source| StartError::Bind { address: listen, source };
        let listener = accept::bind(listen).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let counters = Arc::new(Counters::default());
        let hub = Hub::start(&limits, &prefix, Arc::clone(&counters)).await.map_err(|_| StartError::Router)?;
        let registry = Registry::new(&limits);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared { prefix, limits, counters, registry, hub, stop });
        let tasks = TaskTracker::new();
        tasks.spawn(accept::run(listener, acceptor, Arc::clone(&shared), tasks.clone()));
        tracing::info!(%address, "the broker takes connections");
        Ok(Self { address, shared, tasks })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
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
mod tests;
