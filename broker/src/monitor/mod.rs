//! Metrics for Prometheus: `GET /metrics` over HTTP, on a listener of its own.
//!
//! A small server of one page: it reads a request's head, answers it, and closes. It has neither
//! TLS nor a password: nothing on the page is secret, but it should listen on an address that only the collector reaches.
//!
//! **Invariant: the monitor takes nothing from clients.** Few requests are answered at a time, in little memory and time.

mod text;

use std::{io, sync::Arc, time::Duration};

use muster_guard::{ConnectionPlace, Guard, PlaceLimits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::stats::BrokerStats;

/// Concurrent requests: a few collectors, and a person with curl. When more arrive, silent ones are closed, and then
/// those whose head is incomplete after a moment: a collector sends it in one piece. Whoever comes after thousands that drip
/// waits for their moments one after another, as many at a time as there are places. Each takes a few kilobytes.
pub(crate) const PLACES: PlaceLimits =
    PlaceLimits { places: 256, share: 64, origin_max: usize::MAX, grace: Duration::from_millis(100) };

/// The longest head of a request. Prometheus sends some 300 bytes.
const HEAD_MAX_BYTES: usize = 4 * 1024;

/// How long a request and its answer may take. Prometheus waits for 10 s by default.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for the other side to close.
const LINGER: Duration = Duration::from_secs(1);

/// The pause after a failed accept, usually for lack of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until it is dropped; `stats` is called for each. It is to be spawned on `tasks`, as its requests
/// are.
pub(crate) async fn run(
    listener: TcpListener,
    guard: Guard,
    stats: impl Fn() -> BrokerStats + Send + Sync + 'static,
    tasks: TaskTracker,
) {
    let stats = Arc::new(stats);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = guard.admit(&stream, peer).await else { continue };
                let stats = Arc::clone(&stats);
                tasks.spawn(async move {
                    let eviction = place.eviction();
                    if let Some(Err(error)) = eviction.run_until_cancelled(serve(stream, &place, &*stats)).await {
                        tracing::debug!(%peer, %error, "a request for the metrics ended early");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request for the metrics");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    place: &ConnectionPlace,
    stats: &(impl Fn() -> BrokerStats + Send + Sync),
) -> io::Result<()> {
    let answer = async {
        place.hear(&stream).await?;
        let mut head = Vec::with_capacity(512);
        let answer = match place.expect(read_head(&mut stream, &mut head)).await? {
            RequestHead::Whole => answer(&head, stats),
            RequestHead::TooLong => HttpResponse::short(431, "the request is too long").render(false),
            RequestHead::Nothing => return Ok(()),
        };
        place.expect(stream.write_all(answer.as_bytes())).await?;
        stream.shutdown().await
    };
    match timeout(TIMEOUT, answer).await {
        Ok(done) => done?,
        Err(_) => {
            let late = HttpResponse::short(408, "the request did not come in time").render(false);
            // A client that does not read gets nothing.
            let _ = timeout(LINGER, stream.write_all(late.as_bytes())).await;
            let _ = timeout(LINGER, stream.shutdown()).await;
        }
    }
    // It has its answer.
    place.set(muster_guard::ConnectionActivity::Idle);
    // Closing a socket with unread data sends a reset, which may overtake the answer.
    let drain = async {
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    let _ = timeout(LINGER, drain).await;
    Ok(())
}

enum RequestHead {
    Whole,
    TooLong,
    /// The connection was closed before.
    Nothing,
}

async fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>) -> io::Result<RequestHead> {
    loop {
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(RequestHead::Whole);
        }
        if head.len() >= HEAD_MAX_BYTES {
            return Ok(RequestHead::TooLong);
        }
        let mut some = [0; 512];
        match stream.read(&mut some).await? {
            0 => return Ok(RequestHead::Nothing),
            count => head.extend(some.iter().take(count)),
        }
    }
}

struct HttpResponse {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl HttpResponse {
    fn short(status: u16, text: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }

    fn render(&self, is_head: bool) -> String {
        let Self { status, content_type, body } = self;
        let reason = match status {
            200 => "OK",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            505 => "HTTP Version Not Supported",
            _ => "Bad Request",
        };
        let allow = if *status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let length = body.len();
        let body = if is_head { "" } else { body };
        format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
             {allow}Connection: close\r\n\r\n{body}"
        )
    }
}

/// Returns the answer to a request. Only its first line matters.
fn answer(head: &[u8], stats: &impl Fn() -> BrokerStats) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return HttpResponse::short(400, "this is not an HTTP/1.1 request").render(false);
    };
    let is_head = method == "HEAD";
    let answer = match (method, target.split('?').next().unwrap_or_default(), version) {
        (_, _, "HTTP/1.1" | "HTTP/1.0") if method.is_empty() || !target.starts_with('/') => {
            HttpResponse::short(400, "this is not an HTTP/1.1 request")
        }
        ("GET" | "HEAD", "/metrics", "HTTP/1.1" | "HTTP/1.0") => {
            HttpResponse { status: 200, content_type: text::CONTENT_TYPE, body: text::page(&stats()) }
        }
        (_, "/metrics", "HTTP/1.1" | "HTTP/1.0") => HttpResponse::short(405, "the only method is GET: GET /metrics"),
        (_, _, "HTTP/1.1" | "HTTP/1.0") => HttpResponse::short(404, "the only path is /metrics"),
        _ if version.starts_with("HTTP/") => HttpResponse::short(505, "use HTTP/1.1"),
        _ => HttpResponse::short(400, "this is not an HTTP/1.1 request"),
    };
    answer.render(is_head)
}

#[cfg(test)]
mod tests;
