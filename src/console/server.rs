//! The two listeners: HTTP/1.1 over TCP, or over TLS, with limits on everything that a stranger can
//! hold on to.
//!
//! **Invariant: what one connection does or leaves undone never keeps another waiting**, below the
//! cap on connections: handshake and request head have time limits, and both happen in the
//! connection's own task.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::authority::Peer;

/// The most connections of one listener at a time. A browser takes six, an agent one for a moment;
/// the process has 20,000 files on the smallest machine that we know.
const CONNECTIONS_MAX: usize = 2_048;
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long the head of a request may take, and how long a connection may stay open between two.
const HEAD: Duration = Duration::from_secs(30);
/// How long requests that are under way may take once the console stops.
const GRACE: Duration = Duration::from_secs(5);
/// What waits after the system refused to accept (out of files): trying on at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The certificate that a client showed, if it showed one: an extension of each request.
#[derive(Clone, Debug)]
pub(super) struct ClientCertificate(pub(super) Option<Peer>);

/// A listener and what it serves.
pub(super) struct Server {
    /// For the log.
    pub(super) name: &'static str,
    /// Bound already.
    pub(super) listener: TcpListener,
    /// HTTPS with this, HTTP without.
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// What answers.
    pub(super) router: Router,
}

impl Server {
    /// Serves until `shutdown`, and then lets requests finish for a moment.
    pub(super) async fn run(self, shutdown: CancellationToken) {
        let connections = TaskTracker::new();
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let acceptor = self.tls.map(TlsAcceptor::from);
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = accept(&self.listener, &places) => accepted,
            };
            let (stream, address, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (router, acceptor, shutdown) = (self.router.clone(), acceptor.clone(), shutdown.clone());
            let name = self.name;
            connections.spawn(async move {
                if let Err(error) = connection(stream, acceptor, router, shutdown).await {
                    tracing::debug!(listener = name, peer.address = %address, %error, "connection ended");
                }
                drop(place);
            });
        }
        connections.close();
        if timeout(GRACE, connections.wait()).await.is_err() {
            tracing::info!(listener = self.name, left = connections.len(), "connections are cut off");
        }
    }
}

type Accepted = (TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

/// Waits for a place, then for a connection: beyond the cap, strangers wait in the kernel's backlog.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<Accepted> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, address, place))
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    shutdown: CancellationToken,
) -> Result<(), ConnectionError> {
    let Some(acceptor) = acceptor else {
        return serve(stream, ClientCertificate(None), router, shutdown).await;
    };
    let stream = tokio::select! {
        stream = timeout(HANDSHAKE, acceptor.accept(stream)) => stream??,
        () = shutdown.cancelled() => return Ok(()),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let peer = ClientCertificate(shown.and_then(Peer::of));
    serve(stream, peer, router, shutdown).await
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: ClientCertificate,
    router: Router,
    shutdown: CancellationToken,
) -> Result<(), ConnectionError> {
    let inner = TowerToHyperService::new(router);
    // Browsers open connections before they need them. One that was never used has nothing to finish,
    // which hyper alone cannot tell.
    let used = AtomicBool::new(false);
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        used.store(true, Ordering::Relaxed);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        hyper::service::Service::call(&inner, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    if !used.load(Ordering::Relaxed) {
        return Ok(());
    }
    Ok(timeout(GRACE, connection).await??)
}
