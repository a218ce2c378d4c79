//! From a TCP connection to a client: accept, TLS, CONNECT, and the answer to it.
//!
//! Each connection has a task from its first byte on, so that one that says nothing keeps nobody waiting. Those that are
//! not clients yet are limited in number and time; more of them wait in the kernel's backlog.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use muster_topics::role::Identity;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::task::TaskTracker;

use crate::{
    Shared,
    access::{Access, Refusal, owns},
    codec::{self, Answer, Connect, Malformed, Version, Welcome},
    connection::{Admitted, Connection},
    registry::Full,
    router::ROUTER_TIMEOUT,
    stats::{Beginning, Refused},
    tls::{self, NobodyError},
};

/// Connections that the kernel holds for us: a fleet that comes back at once fits in. (The kernel cuts it to
/// `net.core.somaxconn`, 4096 by default.)
const BACKLOG: u32 = 4096;

/// The pause after an accept that failed, mostly for want of open files, which a client's end gives back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a refused client may take to read why.
const LINGER: Duration = Duration::from_secs(2);

pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A broker that is started again need not wait for the last one's connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until the broker stops.
pub(crate) async fn run(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>, tasks: TaskTracker) {
    let strangers = Arc::new(Semaphore::new(shared.limits.handshakes_max));
    let stop = shared.stop.clone();
    let accept = async {
        loop {
            let Ok(place) = Arc::clone(&strangers).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((socket, peer)) => {
                    let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
                    tasks.spawn(serve(socket, peer, acceptor, shared, place));
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

/// Why a connection does not become a client.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the TLS handshake took too long")]
    TlsTimeout,
    #[error("no CONNECT came in time")]
    ConnectTimeout,
    #[error("the connection ended before a CONNECT")]
    Ended,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Nobody(#[from] NobodyError),
    #[error(
        "client id {client_id:?} is not one of {identity}; hint: a host's is <host>-<instance>, any other's begins with the common name"
    )]
    ClientId { identity: Identity, client_id: String },
    #[error("{identity} cannot have a last will on {topic:?}: {refusal}")]
    Will { identity: Identity, topic: String, refusal: Refusal },
    #[error("{identity} finds no place: {full}")]
    Full { identity: Identity, full: Full },
    #[error("the router is being replaced")]
    NoRouter,
    #[error("the earlier session of {client_id:?} does not end")]
    Predecessor { client_id: String },
    #[error("a newer connection of {client_id:?} has come meanwhile")]
    TakenOver { client_id: String },
    #[error("the broker stops")]
    Stopping,
}

impl Turned {
    /// As which it is counted.
    fn beginning(&self) -> Beginning {
        match self {
            Self::Socket(_) | Self::Ended => Beginning::Closed,
            Self::Tls(_) => Beginning::Tls,
            Self::TlsTimeout | Self::ConnectTimeout => Beginning::Timeout,
            Self::Malformed(_) => Beginning::Malformed,
            Self::Nobody(_) => Beginning::Identity,
            Self::ClientId { .. } => Beginning::ClientId,
            Self::Will { .. } => Beginning::Will,
            Self::Full { .. } => Beginning::Full,
            Self::NoRouter | Self::Predecessor { .. } | Self::TakenOver { .. } => Beginning::Overtaken,
            Self::Stopping => Beginning::Stopping,
        }
    }

    /// The CONNACK that says so, if a client is there to read it.
    fn welcome(&self) -> Option<Welcome> {
        match self {
            Self::Nobody(_) | Self::Will { .. } => Some(Welcome::NotAuthorized),
            Self::ClientId { .. } => Some(Welcome::ClientIdRefused),
            Self::Full { .. } | Self::NoRouter | Self::Predecessor { .. } => Some(Welcome::Unavailable),
            _ => None,
        }
    }
}

/// One connection, from its first byte to its last.
async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    place: OwnedSemaphorePermit,
) {
    let greeting = greet(socket, acceptor, &shared);
    let greeted = match shared.stop.run_until_cancelled(greeting).await {
        Some(greeted) => greeted,
        None => Err(Turned::Stopping),
    };
    match greeted {
        Ok(connection) => {
            drop(place);
            connection.run(peer).await;
        }
        Err(turned) => {
            shared.counters.begun.count(turned.beginning());
            tracing::info!(%peer, "refused a connection: {turned}");
        }
    }
}

async fn greet(socket: TcpStream, acceptor: TlsAcceptor, shared: &Arc<Shared>) -> Result<Connection, Turned> {
    let limits = &shared.limits;
    // Acknowledgements are small and somebody waits for each: 44 ms instead of 0.07 ms for a round trip otherwise.
    socket.set_nodelay(true)?;
    let mut stream = timeout(limits.handshake_timeout(), acceptor.accept(socket))
        .await
        .map_err(|_| Turned::TlsTimeout)?
        .map_err(Turned::Tls)?;
    let mut input = BytesMut::new();
    let reading = read_connect(&mut stream, &mut input, limits.packet_max_bytes);
    let length = timeout(limits.connect_timeout(), reading).await.map_err(|_| Turned::ConnectTimeout)??;
    let packet = input.split_to(length);
    let connect = match parse_connect(&packet, limits.packet_max_bytes) {
        Ok(connect) => connect,
        Err(malformed) => {
            if let Malformed::Level(level) = malformed {
                let mut out = BytesMut::new();
                codec::refuse_level(level, &mut out);
                say_goodbye(stream, &out).await;
            }
            return Err(malformed.into());
        }
    };
    match admit(&stream, &connect, shared).await {
        Ok(admitted) => Ok(Connection::new(stream, input, admitted, Arc::clone(shared))),
        Err(turned) => {
            if let Some(welcome) = turned.welcome() {
                refuse(stream, connect.version, welcome).await;
            }
            Err(turned)
        }
    }
}

/// Reads until a whole packet is there, and gives its length.
async fn read_connect(
    stream: &mut TlsStream<TcpStream>,
    input: &mut BytesMut,
    max_bytes: usize,
) -> Result<usize, Turned> {
    loop {
        if let Some((_, length)) = codec::frame(input, max_bytes)? {
            return Ok(length);
        }
        input.reserve(codec::missing(input).clamp(1024, max_bytes));
        if stream.read_buf(input).await? == 0 {
            return Err(Turned::Ended);
        }
    }
}

fn parse_connect(packet: &[u8], max_bytes: usize) -> Result<Connect<'_>, Malformed> {
    let (frame, _) = codec::frame(packet, max_bytes)?.ok_or(Malformed::Short)?;
    codec::connect(&frame)
}

/// Decides whether a CONNECT makes a client, and ends the session that its client id had.
async fn admit(stream: &TlsStream<TcpStream>, connect: &Connect<'_>, shared: &Shared) -> Result<Admitted, Turned> {
    let identity = tls::identity(stream.get_ref().1.peer_certificates())?;
    // A client may leave it to the broker to name it, if it wants no session kept. A host's instance means something.
    let unnamed = connect.client_id.is_empty() && connect.clean && !matches!(identity, Identity::Host(_));
    if !unnamed && !owns(&identity, connect.client_id) {
        return Err(Turned::ClientId { identity, client_id: connect.client_id.chars().take(200).collect() });
    }
    let access = Access::new(identity.clone(), shared.prefix.clone());
    let will = match &connect.will {
        None => None,
        Some(will) => match access.publish(will) {
            Ok(message) => Some(message),
            Err(refusal) => {
                shared.counters.refusals.count(Refused::Publish);
                return Err(Turned::Will { identity, topic: will.topic.chars().take(200).collect(), refusal });
            }
        },
    };
    if !shared.hub.is_ready() {
        return Err(Turned::NoRouter);
    }
    let ticket =
        shared.registry.enter(identity.clone(), connect.client_id).map_err(|full| Turned::Full { identity, full })?;
    if ticket.replaces() {
        shared.counters.takeovers.add(1);
        // A chain of takeovers moves one session at a time, each of which may have a will for the router.
        if timeout(2 * ROUTER_TIMEOUT, ticket.turn()).await.is_err() {
            return Err(Turned::Predecessor { client_id: ticket.client_id().to_owned() });
        }
        if ticket.ended().is_cancelled() {
            return Err(Turned::TakenOver { client_id: ticket.client_id().to_owned() });
        }
    }
    let silence = shared.limits.silence(connect.keep_alive_s);
    Ok(Admitted { version: connect.version, access, ticket, will, silence })
}

async fn refuse(stream: TlsStream<TcpStream>, version: Version, welcome: Welcome) {
    let mut out = BytesMut::new();
    version.encode(&Answer::ConnAck(welcome), &mut out);
    say_goodbye(stream, &out).await;
}

/// Sends `last` and ends the connection, but not before the other side had time to read it: a socket that is closed with
/// unread data in it takes back what it sent.
async fn say_goodbye(mut stream: TlsStream<TcpStream>, last: &[u8]) {
    let goodbye = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut ignored = [0; 512];
        while stream.read(&mut ignored).await? != 0 {}
        io::Result::Ok(())
    };
    // Who does not stay for the reason has none.
    let _ = timeout(LINGER, goodbye).await;
}
