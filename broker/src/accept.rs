//! Accepts connections: TCP, TLS, WebSocket, and the client's certificate, up to a [`PendingClient`].
//!
//! Each transport has a listener with a guard of its own: connections that are not clients yet are limited in number and
//! time, and when the places are full, silent ones give way (see [`muster_guard`]).
//!
//! Each connection has a task from its first byte on, so that a silent one delays nobody.
//!
//! The task that accepts a connection becomes that connection's own, and a new one accepts the next. A worker of tokio
//! continues with a task that it has just spawned, and wakes another worker when there are two: one task that accepted all
//! connections would wake a worker for each, and a storm of CONNECTs is mostly less than a single worker can do.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use muster_guard::{ConnectionPlace, Guard, RecentLogins, listen, log_peer};
use rustls::{CertificateError, ServerConfig};
use tokio::{
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

use super::limits::BrokerLimits;
use crate::{
    admit,
    connection::ClientConnection,
    error::BrokerError,
    identity::{self},
    state::BrokerState,
    stats::Beginning,
    stream::ClientStream,
    tls::{CurrentTls, TlsStream},
    websocket::{WebSocketError, WebSocketStream},
};

pub(crate) use super::pending::{PendingClient, TURNED_AWAY, TransportProof};

/// The pause after a failed accept, usually for lack of open files, which the end of a client releases.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The transport of a listener.
#[derive(Clone)]
pub(crate) enum Transport {
    Tls(CurrentTls),
    WebSocket(CurrentTls),
    Plain,
}

/// An open listener.
pub(crate) struct OpenListener {
    pub(crate) door: Transport,
    /// With the actual port.
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

impl Transport {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Tls(_) => "TLS",
            Self::WebSocket(_) => "WebSocket over TLS",
            Self::Plain => "TCP with passwords",
        }
    }

    /// Listens at `address`. Passwords are accepted on loopback only.
    pub(crate) fn open(self, address: SocketAddr) -> Result<OpenListener, BrokerError> {
        if matches!(self, Self::Plain) && !address.ip().to_canonical().is_loopback() {
            return Err(BrokerError::NotLoopback(address));
        }
        let bind = |source| BrokerError::Bind { address, source };
        let listener = listen(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(OpenListener { door: self, address, listener })
    }
}

impl OpenListener {
    /// Returns the listener's descriptor.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts connections until the broker stops. `logins` is shared by all listeners.
    pub(crate) fn run(self, logins: &Arc<Mutex<RecentLogins>>, shared: Arc<BrokerState>, tasks: TaskTracker) {
        let guard = Guard::new(shared.limits.strangers(), logins);
        Arc::new(ListenerContext { open: self, guard, shared, tasks }).take_next();
    }
}

/// A listener, with what its connections need.
struct ListenerContext {
    open: OpenListener,
    guard: Guard,
    shared: Arc<BrokerState>,
    tasks: TaskTracker,
}

impl ListenerContext {
    /// Accepts the next connection, and later ones.
    fn take_next(self: Arc<Self>) {
        let tasks = self.tasks.clone();
        tasks.spawn(async move {
            let Some((socket, peer, place)) = self.accept().await else { return };
            let (door, shared) = (self.open.door.clone(), Arc::clone(&self.shared));
            self.take_next();
            serve(socket, peer, door, shared, place).await;
        });
    }

    /// Returns `None` once the broker stops.
    async fn accept(&self) -> Option<(TcpStream, SocketAddr, ConnectionPlace)> {
        let accept = async {
            loop {
                match self.open.listener.accept().await {
                    Ok((socket, peer)) => {
                        if let Some(place) = self.guard.admit(&socket, peer).await {
                            return (socket, peer, place);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        self.shared.stop.run_until_cancelled(accept).await
    }
}

/// Why a connection does not get to its CONNECT.
#[derive(Debug, thiserror::Error)]
enum GuestRefusal {
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the client's certificate is revoked")]
    Revoked,
    #[error("the TLS handshake took too long")]
    TlsTimeout,
    #[error("no WebSocket: {0}")]
    WebSocket(#[from] WebSocketError),
    #[error("the client sent nothing in time")]
    Silent,
    #[error("too many connections have not sent CONNECT yet, and this one has waited longest")]
    GaveWay,
    #[error("the broker is stopping")]
    Stopping,
}

impl GuestRefusal {
    fn tls(error: io::Error) -> Self {
        let told = error.get_ref().and_then(|error| error.downcast_ref());
        match told {
            Some(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => Self::Revoked,
            _ => Self::Tls(error),
        }
    }

    /// Returns the kind that it is counted as.
    fn beginning(&self) -> Beginning {
        match self {
            Self::Socket(_) => Beginning::Closed,
            Self::Tls(_) => Beginning::Tls,
            Self::Revoked => Beginning::Revoked,
            Self::TlsTimeout | Self::Silent => Beginning::Timeout,
            Self::GaveWay => Beginning::GaveWay,
            Self::WebSocket(_) => Beginning::WebSocket,
            Self::Stopping => Beginning::Stopping,
        }
    }
}

/// Serves one connection, from its first byte to its last.
async fn serve(socket: TcpStream, peer: SocketAddr, door: Transport, shared: Arc<BrokerState>, place: ConnectionPlace) {
    let (origin, eviction) = (place.origin(), place.eviction());
    // The future of the handshake is larger than that of a client's task, so it has memory of its own.
    let mut way_in = Box::pin(set_up_connection(socket, peer, door, &shared, place));
    // Only unauthenticated connections are evicted, so nothing of it is registered anywhere yet.
    let came_in = eviction.run_until_cancelled(&mut way_in).await.unwrap_or(Err(GuestRefusal::GaveWay));
    drop(way_in);
    match came_in {
        Ok(Some(connection)) => connection.run(peer).await,
        Ok(None) => (),
        Err(turned) => {
            shared.counters.begun.count(turned.beginning());
            log_peer!(INFO, origin, TURNED_AWAY, %peer, "a connection is refused: {turned}");
        }
    }
}

async fn set_up_connection(
    socket: TcpStream,
    peer: SocketAddr,
    door: Transport,
    shared: &Arc<BrokerState>,
    place: ConnectionPlace,
) -> Result<Option<Box<ClientConnection>>, GuestRefusal> {
    let guest = {
        let entering = pin!(enter(socket, peer, door, &shared.limits, &place));
        shared.stop.run_until_cancelled(entering).await.unwrap_or(Err(GuestRefusal::Stopping))?
    };
    Ok(admit::admit(guest, shared, place).await)
}

async fn enter(
    socket: TcpStream,
    peer: SocketAddr,
    door: Transport,
    limits: &BrokerLimits,
    place: &ConnectionPlace,
) -> Result<PendingClient, GuestRefusal> {
    let patience = limits.handshake_timeout();
    // A silent connection takes no memory for a handshake.
    timeout(patience, place.hear(&socket)).await.map_err(|_| GuestRefusal::Silent)??;
    let transport = async {
        Ok::<_, GuestRefusal>(match door {
            Transport::Plain => (ClientStream::Plain(socket), TransportProof::Password),
            Transport::Tls(server) => {
                let stream = perform_handshake(socket, server.get(), patience).await?;
                let proof = proof(&stream);
                (ClientStream::Tls(stream), proof)
            }
            Transport::WebSocket(server) => {
                let stream = perform_handshake(socket, server.get(), patience).await?;
                let proof = proof(&stream);
                let stream = WebSocketStream::accept(stream, limits.packet_max_bytes, patience).await?;
                (ClientStream::WebSocket(stream), proof)
            }
        })
    };
    let (stream, proof) = place.expect(transport).await?;
    Ok(PendingClient { stream, peer, proof })
}

async fn perform_handshake(
    socket: TcpStream,
    server: Arc<ServerConfig>,
    patience: Duration,
) -> Result<Box<TlsStream<TcpStream>>, GuestRefusal> {
    // The handshake takes long to compute, and later connections would wait for this task otherwise.
    yield_now().await;
    timeout(patience, TlsStream::accept(socket, server))
        .await
        .map_err(|_| GuestRefusal::TlsTimeout)?
        .map_err(GuestRefusal::tls)
}

fn proof(stream: &TlsStream<TcpStream>) -> TransportProof {
    match identity::identify(stream.peer_certificates()) {
        Ok((identity, serial)) => TransportProof::Certificate { identity, serial },
        Err(nobody) => TransportProof::Nobody(nobody),
    }
}
