//! The two listeners: HTTP/1.1 over TCP, or over TLS, with limits on every resource that a stranger can
//! occupy.
//!
//! **Invariant: no connection delays another**: handshake and request head have
//! time limits, and both run in the connection's own task; and when a listener is full, idle connections
//! give way (see [`muster_guard`]).

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::Request};
use bytes::Bytes;
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use muster_guard::{ConnectionActivity, ConnectionPlace, Guard, PlaceLimits, RecentLogins, TimedWriter};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::authority::PeerCertificate;

/// The most connections of all listeners.
pub(super) const CONNECTIONS_MAX: usize = 2 * PLACES.places;
/// The most connections of one listener. A browser opens six, an agent one for a moment; the process has 20,000 files
/// on the smallest known machine. One with TLS takes some 40 KB, so that all take 80 MB.
///
/// One address has at most half of them, so that one stolen certificate does not block downloads of others; and an
/// address without a recent login keeps 256 idle ones: enough browsers for an office, and 10 MB.
const PLACES: PlaceLimits = PlaceLimits { places: 2_048, share: 256, origin_max: 1_024, grace: Duration::from_secs(3) };
/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The timeout of a request's head, and of an idle connection.
const HEAD: Duration = Duration::from_secs(30);
/// How long a client may read nothing of a response.
const WRITE: Duration = Duration::from_secs(60);
/// How long requests under way may take once the console stops.
const GRACE: Duration = Duration::from_secs(5);
/// The delay after a failed accept (no free file descriptors), which would spin otherwise.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The client's certificate, if it presented one: an extension of each request.
#[derive(Clone, Debug)]
pub(super) struct ClientCertificate(pub(super) Option<PeerCertificate>);

/// The connection of a request: an extension of each request, for authentication.
#[derive(Clone, Debug)]
pub(super) struct CallerConnection(Arc<ConnectionPlace>);

impl CallerConnection {
    /// Records that a member of the fleet has authenticated: connections from its address are preferred to those of
    /// strangers.
    pub(super) fn has_logged_in(extensions: &axum::http::Extensions) {
        if let Some(Self(place)) = extensions.get() {
            place.record_login();
        }
    }
}

/// A listener and what it serves.
pub(super) struct HttpServer {
    /// Its name for the log.
    pub(super) name: &'static str,
    /// The bound listener.
    pub(super) listener: TcpListener,
    /// HTTPS with the present configuration at each connection; HTTP without.
    pub(super) tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// The routes.
    pub(super) router: Router,
}

impl HttpServer {
    /// Serves until `shutdown`, and then lets requests finish for a moment. `logins` is shared by the listeners.
    pub(super) async fn run(self, logins: Arc<Mutex<RecentLogins>>, shutdown: CancellationToken) {
        let connections = TaskTracker::new();
        let guard = Guard::new(PLACES, &logins);
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = accept(&self.listener, &guard) => accepted,
            };
            let (stream, address, place) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let acceptor = self.tls.as_ref().map(|tls| TlsAcceptor::from(Arc::clone(&tls.borrow())));
            let (router, shutdown) = (self.router.clone(), shutdown.clone());
            let name = self.name;
            connections.spawn(async move {
                let eviction = place.eviction();
                let connection = connection(stream, acceptor, router, Arc::new(place), shutdown);
                match eviction.run_until_cancelled(connection).await {
                    Some(Ok(())) => (),
                    Some(Err(error)) => {
                        tracing::debug!(listener = name, peer.address = %address, %error, "connection ended");
                    }
                    None => tracing::debug!(listener = name, peer.address = %address, "a connection was closed for another one"),
                }
            });
        }
        connections.close();
        if timeout(GRACE, connections.wait()).await.is_err() {
            tracing::info!(listener = self.name, left = connections.len(), "connections are cut off");
        }
    }
}

type AcceptedConnection = (TcpStream, SocketAddr, ConnectionPlace);

/// Waits for a connection, and then for a place for it; `None` if it gets none.
async fn accept(listener: &TcpListener, guard: &Guard) -> io::Result<Option<AcceptedConnection>> {
    let (stream, address) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(guard.admit(&stream, address).await.map(|place| (stream, address, place)))
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    place: Arc<ConnectionPlace>,
    shutdown: CancellationToken,
) -> Result<(), ConnectionError> {
    // A silent client takes no memory. Browsers open connections before they need them.
    tokio::select! {
        readable = timeout(HEAD, place.hear(&stream)) => readable??,
        () = shutdown.cancelled() => return Ok(()),
    }
    let stream = TimedWriter::new(stream, WRITE);
    let Some(acceptor) = acceptor else {
        return serve(stream, ClientCertificate(None), router, place, shutdown).await;
    };
    let stream = tokio::select! {
        stream = timeout(HANDSHAKE, place.expect(acceptor.accept(stream))) => stream??,
        () = shutdown.cancelled() => return Ok(()),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let peer = ClientCertificate(shown.and_then(PeerCertificate::of));
    serve(stream, peer, router, place, shutdown).await
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: ClientCertificate,
    router: Router,
    place: Arc<ConnectionPlace>,
    shutdown: CancellationToken,
) -> Result<(), ConnectionError> {
    let inner = TowerToHyperService::new(router);
    // Browsers open connections before they need them. An unused one has nothing to finish, which hyper cannot tell.
    let used = AtomicBool::new(false);
    // Until the head of a request has arrived the connection counts as idle.
    place.set(ConnectionActivity::Idle);
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        used.store(true, Ordering::Relaxed);
        let busy = BusyConnection::new(&place);
        let mut request =
            request.map(|body| Body::new(RequestBody { body, began: Instant::now(), place: Arc::clone(&place) }));
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(CallerConnection(Arc::clone(&place)));
        let answer = hyper::service::Service::call(&inner, request);
        async move { answer.await.map(|answer| answer.map(|body| ResponseBody { body, busy })) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    if !used.load(Ordering::Relaxed) {
        return Ok(());
    }
    Ok(timeout(GRACE, connection).await??)
}

/// A request being answered: its connection is not closed for others.
struct BusyConnection(Arc<ConnectionPlace>);

impl BusyConnection {
    fn new(place: &Arc<ConnectionPlace>) -> Self {
        place.set(ConnectionActivity::Working);
        Self(Arc::clone(place))
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.0.set(ConnectionActivity::Idle);
    }
}

/// The body of a response, during which its connection is busy.
struct ResponseBody {
    body: Body,
    #[expect(dead_code, reason = "its end is what matters")]
    busy: BusyConnection,
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request. While more of it is awaited its connection may be closed for others, as during a head.
struct RequestBody {
    body: Incoming,
    /// Since when it is awaited: all of it, for strangers' short bodies; the next piece, where a member sends an
    /// artifact.
    began: Instant,
    place: Arc<ConnectionPlace>,
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_pending() {
            self.place.set_since(ConnectionActivity::Opening, self.began);
        } else {
            if self.place.has_logged_in() {
                self.began = Instant::now();
            }
            self.place.set(ConnectionActivity::Working);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
