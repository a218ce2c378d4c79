//! HTTP requests over the Unix socket, with the HTTP client that the agent has anyway.

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

/// What is looked up or noted down takes milliseconds; a disk that sleeps takes its time.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(10);

/// A message of an interface that is not what its documents say.
fn strange(what: &str, error: impl std::fmt::Display) -> Failure {
    may_heal(format!("Podman's or Docker's answer is not understood: {what}: {error}"))
}

/// The longest answer that is read: what is longer than the longest log is none that was asked for.
const ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;

/// The longest that it is waited for a connection, which is to this host.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a connection is kept: what is done to one container comes in a row.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// A client of one socket.
pub(super) struct SocketClient {
    client: Client,
    socket: PathBuf,
}

/// An answer, whole.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl SocketClient {
    pub(super) fn new(socket: &Path) -> io::Result<Self> {
        // It never speaks TLS, but wants to know how.
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

    /// Where it is.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks for something, and waits for all of the answer for at most `limit`.
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

    /// Sends a body of any length, and waits for the answer for as long as its caller does.
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
                may_heal(format!("what keeps containers does not answer at {socket} within {} s", limit.as_secs()))
            }
            _ => may_heal(format!(
                "what keeps containers cannot be reached at {socket}: {}. hint: does Podman's service run (`podman system \
                 service`), or Docker? `containers.podman_socket` in the agent's configuration says where",
                cause(error)
            )),
        }
    }
}

/// The host in it means nothing on a socket. No version in it: each speaks its newest then.
fn url(path: &str) -> String {
    format!("http://localhost{path}")
}

/// The innermost reason, which is the one that helps.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl HttpAnswer {
    /// Itself, if what was asked for was done.
    pub(super) fn accepted(self, what: &str, name: &str) -> Result<Self, Failure> {
        if self.status.is_success() {
            return Ok(self);
        }
        let error = format!("it could not {what} {name}: {} ({})", self.message(), self.status.as_u16());
        // What it does not want as it is, it will not want later. It says 500 of nearly everything.
        let is_final = matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::FORBIDDEN);
        Err(if is_final { never(error) } else { may_heal(error) })
    }

    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| strange("its JSON", error))
    }

    /// Why it was refused, in the words of whoever refused it.
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
