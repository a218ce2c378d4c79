//! The agent's local HTTP interface, for people and programs on the host, without broker and console.
//! It is on a Unix socket that only the agent's user and root can open, and optionally on loopback.
//!
//! | request | answer |
//! |---|---|
//! | `GET /ping` | the agent's status, answered by its loop: [`AgentStatus`] |
//! | `GET /heartbeat` | the host's state, as a full heartbeat has it: a `HostState` |
//! | `POST /heartbeat` | publishes a full heartbeat as soon as the shortest period allows it (202) |
//! | `POST /trigger` | looks at all units now, and repeats what the console has not acknowledged (202) |
//!
//! **Invariant: no request changes desired state, and requests, however many, cost the fleet no more than
//! its own limits allow.** So the port on loopback needs no secret. Requests that a browser could be tricked into are refused
//! all the same: a POST from a web page, and a host name that is not loopback's.

use std::{
    convert::Infallible,
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue, ORIGIN},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_base::files;
use muster_topics::{Millis, V1, heartbeat::HostState, name::HostId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// The most concurrent connections: a person, a monitoring program, and some that hang.
const CONNECTIONS_MAX: usize = 16;
/// How long the head of a request may take, and how long an idle connection stays open.
const HEAD: Duration = Duration::from_secs(10);
/// How long the loop has to answer. It waits for the store alone, whose writes take milliseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// The delay after a failed accept (no free file descriptors), which would spin otherwise.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket's name in the agent's folder.
pub const SOCKET: &str = "agent.sock";

/// A request to the agent's loop, which answers at once.
#[derive(Debug)]
pub(super) enum LoopQuestion {
    /// Whether the loop runs, and the agent's status.
    Standing(oneshot::Sender<AgentStatus>),
    /// The host's state.
    State(oneshot::Sender<Box<HostState>>),
    /// Publish a full heartbeat. The answer is whether there is a connection.
    Beat(oneshot::Sender<bool>),
    /// Examine the host now. The answer is whether there is a connection.
    Trigger(oneshot::Sender<bool>),
}

/// The agent's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Version of this answer.
    pub v: V1,
    /// The host.
    pub host: HostId,
    /// The agent's version.
    pub agent_version: String,
    /// The epoch of this run of the agent.
    pub epoch: u64,
    /// How long the agent has been running.
    pub up_for_ms: Millis,
    /// Whether it is connected to the broker, as the only agent of its host.
    pub connected: bool,
    /// The protocol of the console, if it is later than the agent's: nothing of it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later_protocol: Option<u32>,
    /// The number of commands being executed.
    pub commands: usize,
    /// The number of units.
    pub units: usize,
}

/// Sends requests to the loop.
#[derive(Clone, Debug)]
pub(super) struct LoopHandle(mpsc::Sender<LoopQuestion>);

impl LoopHandle {
    /// Creates it with the loop's receiving end. One request is answered before the next is sent.
    pub(super) fn new() -> (Self, mpsc::Receiver<LoopQuestion>) {
        let (sender, questions) = mpsc::channel(1);
        (Self(sender), questions)
    }

    /// Sends a request; `None` if the loop has ended.
    pub(super) async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> LoopQuestion) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.0.send(question(answer)).await.ok()?;
        answered.await.ok()
    }
}

/// The listening sockets.
#[derive(Debug)]
pub(super) struct LocalServer {
    unix: SocketFile,
    tcp: Option<TcpListener>,
}

/// A socket in the file system, which is removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    listener: UnixListener,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A remaining file is replaced by the agent's next run.
        let _ = fs::remove_file(&self.path);
    }
}

impl LocalServer {
    /// Listens on the socket in the agent's folder, which no other agent has, and on `address` if given.
    ///
    /// # Errors
    /// With the place that failed.
    pub(super) async fn listen(folder: &Path, address: Option<SocketAddr>) -> Result<Self, (String, io::Error)> {
        let path = folder.join(SOCKET);
        let named = |error| (path.display().to_string(), error);
        let unix = bind(&path).map_err(named)?;
        let tcp = match address {
            Some(address) => Some(TcpListener::bind(address).await.map_err(|error| (address.to_string(), error))?),
            None => None,
        };
        if let Some(address) = tcp.as_ref().and_then(|listener| listener.local_addr().ok()) {
            tracing::info!(%address, "the agent's local interface listens");
        }
        Ok(Self { unix, tcp })
    }

    /// Serves until it is dropped or `shutdown`.
    pub(super) async fn serve(self, asker: LoopHandle, shutdown: CancellationToken) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                accepted = self.accept(&places) => accepted,
            };
            match accepted {
                Ok((LocalStream::Unix(stream), place)) => {
                    tokio::spawn(connection(stream, false, asker.clone(), place, shutdown.clone()));
                }
                Ok((LocalStream::Tcp(stream), place)) => {
                    tokio::spawn(connection(stream, true, asker.clone(), place, shutdown.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "the agent's local interface cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for a free place and then for a connection; dropping this loses none.
    async fn accept(&self, places: &Arc<Semaphore>) -> io::Result<(LocalStream, OwnedSemaphorePermit)> {
        let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
        let tcp = async {
            match &self.tcp {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        let stream = tokio::select! {
            accepted = self.unix.listener.accept() => LocalStream::Unix(accepted?.0),
            accepted = tcp => LocalStream::Tcp(accepted?.0),
        };
        Ok((stream, place))
    }
}

enum LocalStream {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

/// Only the holder of the folder's lock binds, so an existing file is of an earlier run.
fn bind(path: &Path) -> io::Result<SocketFile> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = SocketFile { path: path.to_owned(), listener: UnixListener::bind(path)? };
    // Until here the process's umask applied. A client that connected meanwhile may request only what loopback
    // clients may.
    fs::set_permissions(path, fs::Permissions::from_mode(files::SECRET_MODE))?;
    Ok(socket)
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    guarded: bool,
    asker: LoopHandle,
    place: OwnedSemaphorePermit,
    shutdown: CancellationToken,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let asker = asker.clone();
        async move { Ok::<_, Infallible>(respond(&request, guarded, &asker).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "a connection to the local interface ended");
        },
        () = shutdown.cancelled() => {}
    }
    drop(place);
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalRequest {
    Ping,
    State,
    Beat,
    Trigger,
}

/// Why a request is refused: status and text.
type LocalRefusal = (StatusCode, String);

async fn respond<B>(request: &Request<B>, guarded: bool, asker: &LoopHandle) -> Response<String> {
    let wanted = match wanted(request.method(), request.uri().path(), request.headers(), guarded) {
        Ok(wanted) => wanted,
        Err((status, problem)) => return refusal(status, &problem, request.uri().path()),
    };
    let answered = timeout(ANSWER, async {
        let told = |heard: bool| (StatusCode::ACCEPTED, json!({ "v": 1, "connected": heard }));
        Some(match wanted {
            LocalRequest::Ping => {
                (StatusCode::OK, serde_json::to_value(asker.ask(LoopQuestion::Standing).await?).ok()?)
            }
            LocalRequest::State => (StatusCode::OK, serde_json::to_value(asker.ask(LoopQuestion::State).await?).ok()?),
            LocalRequest::Beat => told(asker.ask(LoopQuestion::Beat).await?),
            LocalRequest::Trigger => told(asker.ask(LoopQuestion::Trigger).await?),
        })
    });
    match answered.await {
        Ok(Some((status, body))) => response(status, &body),
        Ok(None) | Err(_) => {
            let problem = "the agent does not answer: it is stopping, or its disk does not respond".to_owned();
            refusal(StatusCode::SERVICE_UNAVAILABLE, &problem, request.uri().path())
        }
    }
}

/// Parses a request. `guarded`: any user of the host may have sent it, including a browser.
fn wanted(method: &Method, path: &str, headers: &HeaderMap, guarded: bool) -> Result<LocalRequest, LocalRefusal> {
    if guarded && !headers.get(HOST).is_some_and(is_loopback) {
        return Err((StatusCode::FORBIDDEN, "the Host header of the request is not a loopback address".to_owned()));
    }
    if guarded && headers.contains_key(ORIGIN) {
        return Err((StatusCode::FORBIDDEN, "requests of web pages are refused".to_owned()));
    }
    match (path, method) {
        ("/ping", &Method::GET) => Ok(LocalRequest::Ping),
        ("/heartbeat", &Method::GET) => Ok(LocalRequest::State),
        ("/heartbeat", &Method::POST) => Ok(LocalRequest::Beat),
        ("/trigger", &Method::POST) => Ok(LocalRequest::Trigger),
        _ => match allowed(path) {
            Some(methods) => Err((StatusCode::METHOD_NOT_ALLOWED, format!("{path} takes {methods}, not {method}"))),
            None => Err((
                StatusCode::NOT_FOUND,
                "the requests are GET /ping, GET and POST /heartbeat, and POST /trigger".to_owned(),
            )),
        },
    }
}

fn allowed(path: &str) -> Option<&'static str> {
    match path {
        "/ping" => Some("GET"),
        "/heartbeat" => Some("GET, POST"),
        "/trigger" => Some("POST"),
        _ => None,
    }
}

/// Whether a `Host` header names loopback by number or as `localhost`, with or without a port. Any other name may be a
/// DNS-rebinding attack.
fn is_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    let number = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || number.is_ok_and(|number| number.is_loopback())
}

fn refusal(status: StatusCode, problem: &str, path: &str) -> Response<String> {
    let mut response = response(status, &json!({ "error": problem }));
    if status == StatusCode::METHOD_NOT_ALLOWED
        && let Some(methods) = allowed(path)
    {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    }
    response
}

fn response(status: StatusCode, body: &serde_json::Value) -> Response<String> {
    let mut response = Response::new(format!("{body}\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(hyper::header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn known_and_unknown_routes_are_answered() {
        let none = HeaderMap::new();
        for (method, path, wants) in [
            (Method::GET, "/ping", LocalRequest::Ping),
            (Method::GET, "/heartbeat", LocalRequest::State),
            (Method::POST, "/heartbeat", LocalRequest::Beat),
            (Method::POST, "/trigger", LocalRequest::Trigger),
        ] {
            assert_eq!(wanted(&method, path, &none, false), Ok(wants), "{method} {path}");
        }
        for (method, path, status) in [
            (Method::POST, "/ping", StatusCode::METHOD_NOT_ALLOWED),
            (Method::DELETE, "/heartbeat", StatusCode::METHOD_NOT_ALLOWED),
            (Method::GET, "/trigger", StatusCode::METHOD_NOT_ALLOWED),
            (Method::GET, "/", StatusCode::NOT_FOUND),
            (Method::GET, "/ping/", StatusCode::NOT_FOUND),
            (Method::GET, "/../ping", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(wanted(&method, path, &none, false).unwrap_err().0, status, "{method} {path}");
        }
    }

    #[test]
    fn requests_from_browsers_are_refused() {
        for host in ["127.0.0.1", "127.0.0.1:7070", "localhost:1", "LOCALHOST", "[::1]:7070", "[::1]"] {
            let sent = headers(&[(HOST, host)]);
            assert_eq!(wanted(&Method::POST, "/trigger", &sent, true), Ok(LocalRequest::Trigger), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:7070", "127.0.0.1.evil.example", "192.0.2.1:7070", "[::2]:1", ":1"]
        {
            let sent = headers(&[(HOST, host)]);
            let refused = wanted(&Method::GET, "/ping", &sent, true).unwrap_err();
            assert_eq!(refused.0, StatusCode::FORBIDDEN, "{host}");
        }
        assert!(wanted(&Method::GET, "/ping", &HeaderMap::new(), true).is_err());
        let page = headers(&[(HOST, "localhost"), (ORIGIN, "https://evil.example")]);
        assert_eq!(wanted(&Method::POST, "/heartbeat", &page, true).unwrap_err().0, StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn stopped_loop_is_reported() {
        let (asker, questions) = LoopHandle::new();
        drop(questions);
        let request = Request::builder().uri("/ping").body(()).unwrap();
        let response = respond(&request, false, &asker).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.body().contains("does not answer"), "{}", response.body());
    }

    #[tokio::test]
    async fn socket_is_private_and_replaces_a_stale_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SOCKET);
        let first = LocalServer::listen(folder.path(), None).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::mem::forget(first);
        let second = LocalServer::listen(folder.path(), Some("127.0.0.1:0".parse().unwrap())).await.unwrap();
        drop(second);
        assert!(!path.exists());
        let (place, _) = LocalServer::listen(&folder.path().join("none"), None).await.unwrap_err();
        assert!(place.ends_with(SOCKET), "{place}");
    }
}
