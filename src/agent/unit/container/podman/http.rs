//! HTTP requests over the Unix socket, with the HTTP client that the agent has anyway.

use muster_topics::diagnostic::Diagnostic;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_net::{http, pki};
use muster_rules::plan::Failure;
use reqwest::{Body, Client, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::unit::failure::{may_heal, never};

/// The timeout of lookups and small changes, which take milliseconds unless the disk is slow.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(10);

/// The failure for an answer that is not as documented.
fn strange(what: &str, error: impl std::fmt::Display) -> Failure {
    may_heal(format!("Podman's or Docker's answer is not valid: {what}: {error}"))
}

/// The longest answer that is read, longer than the longest log.
const ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;

/// The timeout of connecting, on this host.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long an idle connection is kept: requests come in a row.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// A client of one socket.
pub(super) struct SocketClient {
    client: Client,
    socket: PathBuf,
}

/// A complete answer.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl SocketClient {
    pub(super) fn new(socket: &Path) -> io::Result<Self> {
        // It never uses TLS, but the library requires a configuration.
        let tls = rustls::ClientConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let client = http::direct(tls)
            .unix_socket(socket)
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .build()
            .map_err(io::Error::other)?;
        Ok(Self { client, socket: socket.to_owned() })
    }

    /// The path of the socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request, and waits for the complete answer for at most `limit`.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<HttpAnswer, Failure> {
        let mut request = self.client.request(method, url(path)).query(query).timeout(limit);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.send(request, Some(limit)).await
    }

    /// Sends a body of any length, and waits for the answer without a limit.
    pub(super) async fn post(&self, path: &str, query: &[(&str, &str)], body: Body) -> Result<HttpAnswer, Failure> {
        let request = self.client.request(Method::POST, url(path)).query(query);
        self.send(request.header("content-type", "application/x-tar").body(body), None).await
    }

    async fn send(&self, request: reqwest::RequestBuilder, limit: Option<Duration>) -> Result<HttpAnswer, Failure> {
        let mut response = request.send().await.map_err(|error| self.failure(&error, limit))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(&error, limit))? {
            if body.len() + chunk.len() > ANSWER_MAX_BYTES {
                return Err(may_heal(format!("an answer at {} has no end", self.socket.display())));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(HttpAnswer { status, body })
    }

    fn failure(&self, error: &reqwest::Error, limit: Option<Duration>) -> Failure {
        let socket = self.socket.display();
        match limit {
            Some(limit) if error.is_timeout() && !error.is_connect() => {
                may_heal(format!("the container runtime did not answer at {socket} within {} s", limit.as_secs()))
            }
            _ if !error.is_connect() => may_heal(
                Diagnostic::new(format_args!(
                    "the container runtime closed the connection at {socket} before it answered: {}",
                    http::cause(error)
                ))
                .with_hint("if it has crashed, its log shows why"),
            ),
            _ => may_heal(
                Diagnostic::new(format_args!("cannot reach the container runtime at {socket}: {}", http::cause(error)))
                    .with_hint(
                        "start Podman's service (`podman system service`) or \
                 Docker; `containers.podman_socket` in the agent's configuration sets the socket",
                    ),
            ),
        }
    }
}

/// Builds the URL; the host is ignored on a socket. Without a version in the path, the newest is used.
fn url(path: &str) -> String {
    format!("http://localhost{path}")
}

impl HttpAnswer {
    /// Returns the answer if its status is a success.
    pub(super) fn accepted(self, what: &str, name: &str) -> Result<Self, Failure> {
        if self.status.is_success() {
            return Ok(self);
        }
        let error = format!("it could not {what} {name}: {} ({})", self.message(), self.status.as_u16());
        // A rejected request will be rejected again. Status 500 is used for nearly everything.
        let is_final = matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::FORBIDDEN);
        Err(if is_final { never(error) } else { may_heal(error) })
    }

    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| strange("its JSON", error))
    }

    /// Why it was refused, in the runtime's words.
    pub(super) fn message(&self) -> String {
        #[derive(serde::Deserialize)]
        struct RuntimeErrorBody {
            message: String,
        }
        let said = serde_json::from_slice(&self.body).map(|RuntimeErrorBody { message }| message);
        let text = said.unwrap_or_else(|_| String::from_utf8_lossy(&self.body).into_owned());
        text.trim().chars().take(500).collect()
    }
}
