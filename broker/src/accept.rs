//! From a TCP connection to a [`Guest`]: accept, TLS, and what the client's certificate says.
//!
//! Each connection has a task from its first byte on, so that one that says nothing keeps nobody waiting. Those that are
//! not clients yet are limited in number and time; more of them wait in the kernel's backlog.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use muster_topics::role::Identity;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    Shared, admit,
    stats::Beginning,
    stream::Stream,
    tls::{self, NobodyError, TlsStream},
};

/// Connections that the kernel holds for us: a fleet that comes back at once fits in. (The kernel cuts it to
/// `net.core.somaxconn`, 4096 by default.)
const BACKLOG: u32 = 4096;

/// The pause after an accept that failed, mostly for want of open files, which a client's end gives back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection whose transport is ready, before its CONNECT.
pub(crate) struct Guest {
    pub(crate) stream: Stream,
    pub(crate) peer: SocketAddr,
    pub(crate) proof: Proof,
}

/// What its transport has shown of who a guest is.
pub(crate) enum Proof {
    /// A certificate of the fleet's authority.
    Certificate { identity: Identity },
    /// One that says nothing: its CONNECT is only there to be refused.
    Nobody(NobodyError),
}

pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A broker that is started again need not wait for the last one's connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until the broker stops.
pub(crate) async fn run(listener: TcpListener, server: Arc<ServerConfig>, shared: Arc<Shared>, tasks: TaskTracker) {
    let strangers = Arc::new(Semaphore::new(shared.limits.handshakes_max));
    let stop = shared.stop.clone();
    let accept = async {
        loop {
            let Ok(place) = Arc::clone(&strangers).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((socket, peer)) => {
                    let (server, shared) = (Arc::clone(&server), Arc::clone(&shared));
                    tasks.spawn(serve(socket, peer, server, shared, place));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accept).await;
}

/// Why a connection does not become a guest.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the TLS handshake took too long")]
    TlsTimeout,
    #[error("the broker stops")]
    Stopping,
}

impl Turned {
    /// As which it is counted.
    fn beginning(&self) -> Beginning {
        match self {
            Self::Socket(_) => Beginning::Closed,
            Self::Tls(_) => Beginning::Tls,
            Self::TlsTimeout => Beginning::Timeout,
            Self::Stopping => Beginning::Stopping,
        }
    }
}

/// One connection, from its first byte to its last.
async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    server: Arc<ServerConfig>,
    shared: Arc<Shared>,
    place: OwnedSemaphorePermit,
) {
    // In memory of its own, which a session does not need.
    let opening = Box::pin(open(socket, peer, server, &shared));
    let opened = match shared.stop.run_until_cancelled(opening).await {
        Some(opened) => opened,
        None => Err(Turned::Stopping),
    };
    match opened {
        Ok(guest) => admit::serve(guest, shared, place).await,
        Err(turned) => {
            shared.counters.begun.count(turned.beginning());
            tracing::info!(%peer, "refused a connection: {turned}");
        }
    }
}

async fn open(
    socket: TcpStream,
    peer: SocketAddr,
    server: Arc<ServerConfig>,
    shared: &Shared,
) -> Result<Guest, Turned> {
    // Acknowledgements are small and somebody waits for each: 44 ms instead of 0.07 ms for a round trip otherwise.
    socket.set_nodelay(true)?;
    let stream = timeout(shared.limits.handshake_timeout(), TlsStream::accept(socket, server))
        .await
        .map_err(|_| Turned::TlsTimeout)?
        .map_err(Turned::Tls)?;
    let proof = match tls::identity(stream.peer_certificates()) {
        Ok(identity) => Proof::Certificate { identity },
        Err(nobody) => Proof::Nobody(nobody),
    };
    Ok(Guest { stream: Stream::Tls(stream), peer, proof })
}
