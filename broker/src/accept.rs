//! From a TCP connection to a [`Guest`]: accept, TLS, WebSocket, and what the client's certificate says.
//!
//! There is a listener for each way in, with a guard of its own: those that are not clients yet are limited in number and
//! time, and when their places run out those who say nothing give way (see [`muster_guard`]).
//!
//! Each connection has a task from its first byte on, so that one that says nothing keeps nobody waiting.
//!
//! The task that accepts a connection becomes that connection's own, and a new one accepts the next. A worker of tokio
//! goes on with a task that it has just spawned, and wakes another worker when there are two: one task that accepted them
//! all would wake one for each, and a storm of CONNECTs is mostly less than a single worker can do.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use muster_guard::{Guard, Kind, Place, RecentLogins, listen, log_peer};
use muster_topics::role::Identity;
use rustls::{CertificateError, ServerConfig};
use tokio::{
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    Limits, Shared, StartError, admit,
    connection::Connection,
    stats::Beginning,
    stream::Stream,
    tls::{Current, TlsStream},
    websocket::{WebSocket, WebSocketError},
    who::{self, NobodyError, Serial},
};

/// The pause after an accept that failed, mostly for want of open files, which a client's end gives back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that did not become a client's, by where it came from.
pub(crate) const TURNED_AWAY: Kind = Kind::new("refused connections", 60).burst(3);

/// A connection whose transport is ready, before its CONNECT.
pub(crate) struct Guest {
    pub(crate) stream: Stream,
    pub(crate) peer: SocketAddr,
    pub(crate) proof: Proof,
}

/// What its transport has shown of who a guest is.
pub(crate) enum Proof {
    /// A certificate of the fleet's authority.
    Certificate { identity: Identity, serial: Serial },
    /// Nothing: its CONNECT has to bring a user name and a password.
    Password,
    /// One that says nothing: its CONNECT is only there to be refused.
    Nobody(NobodyError),
}

/// A way in.
#[derive(Clone)]
pub(crate) enum Door {
    Tls(Current),
    WebSocket(Current),
    Plain,
}

/// A way in that is open.
pub(crate) struct Open {
    pub(crate) door: Door,
    /// With the real port.
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

impl Door {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Tls(_) => "TLS",
            Self::WebSocket(_) => "WebSocket over TLS",
            Self::Plain => "TCP with passwords",
        }
    }

    /// Listens at `address`. Passwords go nowhere but through this host.
    pub(crate) fn open(self, address: SocketAddr) -> Result<Open, StartError> {
        if matches!(self, Self::Plain) && !address.ip().to_canonical().is_loopback() {
            return Err(StartError::NotLoopback(address));
        }
        let bind = |source| StartError::Bind { address, source };
        let listener = listen(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Open { door: self, address, listener })
    }
}

impl Open {
    /// Of the listener.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts connections until the broker stops. `logins` is what all ways in have in common.
    pub(crate) fn run(self, logins: &Arc<Mutex<RecentLogins>>, shared: Arc<Shared>, tasks: TaskTracker) {
        let guard = Guard::new(shared.limits.strangers(), logins);
        Arc::new(Entrance { open: self, guard, shared, tasks }).take_next();
    }
}

/// A way in, and what those need who come through it.
struct Entrance {
    open: Open,
    guard: Guard,
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

impl Entrance {
    /// Takes the next connection, and those after it.
    fn take_next(self: Arc<Self>) {
        let tasks = self.tasks.clone();
        tasks.spawn(async move {
            let Some((socket, peer, place)) = self.accept().await else { return };
            let (door, shared) = (self.open.door.clone(), Arc::clone(&self.shared));
            self.take_next();
            serve(socket, peer, door, shared, place).await;
        });
    }

    /// Nothing, once the broker stops.
    async fn accept(&self) -> Option<(TcpStream, SocketAddr, Place)> {
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

/// Why a connection does not become a guest.
#[derive(Debug, thiserror::Error)]
enum Turned {
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
    #[error("it said nothing in time")]
    Silent,
    #[error("others came while all places for those who are no clients yet were taken, and it was waited for longest")]
    GaveWay,
    #[error("the broker stops")]
    Stopping,
}

impl Turned {
    fn tls(error: io::Error) -> Self {
        let told = error.get_ref().and_then(|error| error.downcast_ref());
        match told {
            Some(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => Self::Revoked,
            _ => Self::Tls(error),
        }
    }

    /// As which it is counted.
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

/// One connection, from its first byte to its last.
async fn serve(socket: TcpStream, peer: SocketAddr, door: Door, shared: Arc<Shared>, place: Place) {
    let (origin, eviction) = (place.origin(), place.eviction());
    // The way in is longer than what a client's task has to remember, so it has memory of its own.
    let mut way_in = Box::pin(come_in(socket, peer, door, &shared, place));
    // Nobody is told to give way who has shown who they are, so nothing of it is known anywhere yet.
    let came_in = eviction.run_until_cancelled(&mut way_in).await.unwrap_or(Err(Turned::GaveWay));
    drop(way_in);
    match came_in {
        Ok(Some(connection)) => connection.run(peer).await,
        Ok(None) => (),
        Err(turned) => {
            shared.counters.begun.count(turned.beginning());
            log_peer!(INFO, origin, TURNED_AWAY, %peer, "refused a connection: {turned}");
        }
    }
}

async fn come_in(
    socket: TcpStream,
    peer: SocketAddr,
    door: Door,
    shared: &Arc<Shared>,
    place: Place,
) -> Result<Option<Box<Connection>>, Turned> {
    let guest = {
        let entering = pin!(enter(socket, peer, door, &shared.limits, &place));
        shared.stop.run_until_cancelled(entering).await.unwrap_or(Err(Turned::Stopping))?
    };
    Ok(admit::admit(guest, shared, place).await)
}

async fn enter(
    socket: TcpStream,
    peer: SocketAddr,
    door: Door,
    limits: &Limits,
    place: &Place,
) -> Result<Guest, Turned> {
    let patience = limits.handshake_timeout();
    // Who says nothing takes no memory of a handshake.
    timeout(patience, place.hear(&socket)).await.map_err(|_| Turned::Silent)??;
    let transport = async {
        Ok::<_, Turned>(match door {
            Door::Plain => (Stream::Plain(socket), Proof::Password),
            Door::Tls(server) => {
                let stream = shake_hands(socket, server.get(), patience).await?;
                let proof = proof(&stream);
                (Stream::Tls(stream), proof)
            }
            Door::WebSocket(server) => {
                let stream = shake_hands(socket, server.get(), patience).await?;
                let proof = proof(&stream);
                let stream = WebSocket::accept(stream, limits.packet_max_bytes, patience).await?;
                (Stream::WebSocket(stream), proof)
            }
        })
    };
    let (stream, proof) = place.expect(transport).await?;
    Ok(Guest { stream, peer, proof })
}

async fn shake_hands(
    socket: TcpStream,
    server: Arc<ServerConfig>,
    patience: Duration,
) -> Result<Box<TlsStream<TcpStream>>, Turned> {
    // It computes for long, and whoever comes next waits behind this task if it goes on now.
    yield_now().await;
    timeout(patience, TlsStream::accept(socket, server)).await.map_err(|_| Turned::TlsTimeout)?.map_err(Turned::tls)
}

fn proof(stream: &TlsStream<TcpStream>) -> Proof {
    match who::identify(stream.peer_certificates()) {
        Ok((identity, serial)) => Proof::Certificate { identity, serial },
        Err(nobody) => Proof::Nobody(nobody),
    }
}
