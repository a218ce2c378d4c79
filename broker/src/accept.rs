//! From a TCP connection to a [`Guest`]: accept, TLS, WebSocket, and what the client's certificate says.
//!
//! There is a listener for each way in. All share the places for strangers.
//!
//! Each connection has a task from its first byte on, so that one that says nothing keeps nobody waiting. Those that are
//! not clients yet are limited in number and time; more of them wait in the kernel's backlog.
//!
//! The task that accepts a connection becomes that connection's own, and a new one accepts the next. A worker of tokio
//! goes on with a task that it has just spawned, and wakes another worker when there are two: one task that accepted them
//! all would wake one for each, and a storm of CONNECTs is mostly less than a single worker can do.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use muster_topics::role::Identity;
#[cfg(target_os = "linux")]
use nix::{libc, setsockopt_impl, sockopt_impl, sys::socket::setsockopt};
use rustls::{CertificateError, ServerConfig};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    Limits, Shared, StartError, admit,
    connection::Connection,
    stats::Beginning,
    stream::Stream,
    tls::TlsStream,
    websocket::{WebSocket, WebSocketError},
    who::{self, NobodyError, Serial},
};

/// Connections that the kernel holds for us: a fleet that comes back at once fits in. (The kernel cuts it to
/// `net.core.somaxconn`, 4096 by default.)
const BACKLOG: u32 = 4096;

/// The pause after an accept that failed, mostly for want of open files, which a client's end gives back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// For how many seconds the kernel keeps a connection that says nothing to itself, tcp(7). In MQTT, TLS and HTTP the client speaks
    /// first, so we are woken when there is something to read rather than twice: a tenth of the time that 9,500 of them take to connect.
    DeferAccept,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_DEFER_ACCEPT,
    u32
);

/// The least: who says nothing is ours after a second, and then has the time of [`Limits`].
#[cfg(target_os = "linux")]
const SILENT_S: u32 = 1;

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
    Tls(Arc<ServerConfig>),
    WebSocket(Arc<ServerConfig>),
    Plain,
}

/// A way in that is open.
pub(crate) struct Open {
    pub(crate) door: Door,
    /// With the real port.
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

/// The places of those who are not clients yet.
#[derive(Clone)]
pub(crate) struct Strangers(Arc<Semaphore>);

impl Strangers {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self(Arc::new(Semaphore::new(limits.handshakes_max)))
    }
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

/// Listens, with room for many who come at once.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A broker that is started again need not wait for the last one's connections to be forgotten.
    socket.set_reuseaddr(true)?;
    // Each connection has it from its listener. Acknowledgements are small and somebody waits for each: 44 ms instead of
    // 0.07 ms for a round trip otherwise.
    socket.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    setsockopt(&socket, DeferAccept, &SILENT_S)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Open {
    /// Of the listener.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts connections until the broker stops.
    pub(crate) fn run(self, strangers: Strangers, shared: Arc<Shared>, tasks: TaskTracker) {
        Arc::new(Entrance { open: self, strangers, shared, tasks }).take_next();
    }
}

/// A way in, and what those need who come through it.
struct Entrance {
    open: Open,
    strangers: Strangers,
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
    async fn accept(&self) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let accept = async {
            loop {
                match self.open.listener.accept().await {
                    Ok((socket, peer)) => {
                        // Only then, or a listener where nobody comes would keep a place from the others.
                        let place = Arc::clone(&self.strangers.0).acquire_owned().await.ok()?;
                        return Some((socket, peer, place));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        self.shared.stop.run_until_cancelled(accept).await?
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
            Self::TlsTimeout => Beginning::Timeout,
            Self::WebSocket(_) => Beginning::WebSocket,
            Self::Stopping => Beginning::Stopping,
        }
    }
}

/// One connection, from its first byte to its last.
async fn serve(socket: TcpStream, peer: SocketAddr, door: Door, shared: Arc<Shared>, place: OwnedSemaphorePermit) {
    // The way in is longer than what a client's task has to remember, so it has memory of its own.
    let way_in = Box::pin(come_in(socket, peer, door, &shared, place));
    if let Some(connection) = way_in.await {
        connection.run(peer).await;
    }
}

async fn come_in(
    socket: TcpStream,
    peer: SocketAddr,
    door: Door,
    shared: &Arc<Shared>,
    place: OwnedSemaphorePermit,
) -> Option<Box<Connection>> {
    let entering = pin!(enter(socket, peer, door, &shared.limits));
    let entered = match shared.stop.run_until_cancelled(entering).await {
        Some(entered) => entered,
        None => Err(Turned::Stopping),
    };
    match entered {
        Ok(guest) => admit::admit(guest, shared, place).await,
        Err(turned) => {
            shared.counters.begun.count(turned.beginning());
            tracing::info!(%peer, "refused a connection: {turned}");
            None
        }
    }
}

async fn enter(socket: TcpStream, peer: SocketAddr, door: Door, limits: &Limits) -> Result<Guest, Turned> {
    let patience = limits.handshake_timeout();
    let (stream, proof) = match door {
        Door::Plain => (Stream::Plain(socket), Proof::Password),
        Door::Tls(server) => {
            let stream = shake_hands(socket, server, patience).await?;
            let proof = proof(&stream);
            (Stream::Tls(stream), proof)
        }
        Door::WebSocket(server) => {
            let stream = shake_hands(socket, server, patience).await?;
            let proof = proof(&stream);
            let stream = WebSocket::accept(stream, limits.packet_max_bytes, patience).await?;
            (Stream::WebSocket(stream), proof)
        }
    };
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

#[cfg(test)]
mod tests {
    use std::{io::Write, net::Ipv4Addr, time::Instant};

    use super::*;

    #[tokio::test]
    async fn who_says_nothing_is_accepted_too_and_small_packets_do_not_wait() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let connect = || std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let began = Instant::now();
        let (silent, mut speaks) = (connect(), connect());
        speaks.write_all(b"a").unwrap();
        let in_time = began.elapsed() < Duration::from_millis(500);
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (socket, peer) = listener.accept().await.unwrap();
            assert!(socket.nodelay().unwrap());
            peers.push(peer);
        }
        if cfg!(target_os = "linux") && in_time {
            // The silent one was the first, and the kernel kept it for a second.
            assert_eq!(peers, [speaks.local_addr().unwrap(), silent.local_addr().unwrap()]);
        }
    }
}
