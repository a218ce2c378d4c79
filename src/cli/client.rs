//! The client of the console's REST API.

use std::{
    marker::PhantomData,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use muster_api::{
    NOTICE_HEADER, Problem,
    problem_codes::{self, ProblemKind},
};
use muster_base::failure::{Failure, FailureKind, with_causes};
use muster_net::{
    http::{self, Proxy},
    pki,
};
use muster_topics::diagnostic::Diagnostic;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{context::ConsoleContext, print};

/// Longest time to connect; a console that is running answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest line of an event stream: a message of the bus, encoded once more.
const EVENT_MAX_BYTES: usize = 1024 * 1024;

/// A client of a console's API.
#[derive(Clone, Debug)]
pub struct ConsoleClient {
    http: reqwest::Client,
    base: String,
    token: String,
    /// Whether a problem of the console itself was already reported.
    noticed: Arc<AtomicBool>,
}

impl ConsoleClient {
    /// A client for the console of a context.
    ///
    /// # Errors
    /// If the context's authority cannot be used.
    pub fn new(context: &ConsoleContext) -> Result<Self, Failure> {
        let unusable = |error: &(dyn std::error::Error + 'static)| {
            Failure::new(FailureKind::Failed, format!("the context's authority: {}", with_causes(error)))
        };
        let roots = match &context.authority {
            Some(authority) => pki::roots(authority).map_err(|error| unusable(&error))?,
            None => rustls::RootCertStore::empty(),
        };
        let tls = rustls::ClientConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let base = context.url.trim_end_matches('/').to_owned();
        let usage =
            |error: &dyn std::fmt::Display, hint: &str| Failure::new(FailureKind::Usage, error.to_string()).hint(hint);
        let target: Url = base.parse().map_err(|error| {
            let message = format!("the context's address {base:?} is not a URL: {}", http::url_fault(&error));
            usage(&message, "sign in again with `muster login LINK`")
        })?;
        let proxy = Proxy::of(context.proxy.as_deref()).map_err(|error| Failure::of(FailureKind::Usage, &error))?;
        let http = http::client(tls, &target, proxy.as_ref())
            .and_then(|client| client.connect_timeout(CONNECT_TIMEOUT).build())
            .map_err(|error| unusable(&error))?;
        Ok(Self { http, base, token: context.token.clone(), noticed: Arc::default() })
    }

    /// The same, which does not report problems of the console itself.
    ///
    /// # Errors
    /// As [`ConsoleClient::new`].
    pub fn quiet(context: &ConsoleContext) -> Result<Self, Failure> {
        let client = Self::new(context)?;
        client.noticed.store(true, Ordering::Relaxed);
        Ok(client)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}/api/v1/{path}", self.base)).bearer_auth(&self.token)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.tell_notice(&response);
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
    }

    /// Reports a problem of the console itself, once.
    fn tell_notice(&self, response: &Response) {
        let notice = response.headers().get(NOTICE_HEADER).and_then(|text| text.to_str().ok());
        if let Some(notice) = notice
            && !self.noticed.swap(true, Ordering::Relaxed)
        {
            print::say(format_args!("console: {notice}"));
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let reason = http::cause(error);
        let hint = match (pki::clock_hint(&reason), pki::is_of_unknown_root(&reason)) {
            (Some(hint), _) => hint,
            (None, true) => {
                "the console's certificate is not under the root certificate that this context knows. If that was replaced (`muster \
                 authority rotate root`), sign in again: `muster login LINK --authority FILE`, with authority.pem of the console"
            }
            (None, false) => "check that `muster up` is running; `--context NAME` chooses another console",
        };
        let message = format!("cannot reach the console at {}: {reason}", self.base);
        Failure::new(FailureKind::Unreachable, message).hint(hint)
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        response.json().await.map_err(|error| {
            Failure::new(FailureKind::Failed, format!("the console's answer is not valid: {}", http::cause(&error)))
                .hint("command line and console may be of different versions")
        })
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// If the console cannot be reached, or refuses the request.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, Failure> {
        let response = self.send(self.request(Method::GET, path).query(query)).await?;
        self.read(response).await
    }

    /// Calls the console's Prometheus API; returns the data of the response. Lists are requested without a form.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn prometheus<T: DeserializeOwned>(&self, path: &str, form: &[(&str, String)]) -> Result<T, Failure> {
        #[derive(Deserialize)]
        struct PrometheusAnswer<T> {
            data: T,
        }
        let url = format!("{}/prometheus/api/v1/{path}", self.base);
        let request = if form.is_empty() { self.http.get(url) } else { self.http.post(url).form(form) };
        let response = request.bearer_auth(&self.token).send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(self.read::<PrometheusAnswer<T>>(response).await?.data)
        } else {
            Err(unanswered(response).await)
        }
    }

    /// Creates a resource.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, Failure> {
        let response = self.send(self.request(Method::POST, path).json(body)).await?;
        self.read(response).await
    }

    /// Requests an operation that returns nothing.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn order(&self, method: Method, path: &str) -> Result<(), Failure> {
        self.send(self.request(method, path)).await.map(drop)
    }

    /// As [`order`](Self::order), with a query.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn order_with(&self, method: Method, path: &str, query: &[(&str, String)]) -> Result<(), Failure> {
        self.send(self.request(method, path).query(query)).await.map(drop)
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, Failure> {
        let response = self.send(self.request(Method::DELETE, path).query(query)).await?;
        self.read(response).await
    }

    /// Uploads a file.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        size_bytes: u64,
        body: reqwest::Body,
    ) -> Result<T, Failure> {
        let request = self.request(Method::POST, path).query(query).header("content-length", size_bytes).body(body);
        let response = self.send(request).await?;
        self.read(response).await
    }

    /// Reads a long response: each piece is passed on as it arrives.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`]; also if the console ends early, and if `take` fails.
    pub async fn stream(
        &self,
        path: &str,
        query: &[(&str, String)],
        take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let response = self.download(path, query).await?;
        self.take(response, take).await
    }

    /// Begins to read a long response, whose headers say what it is.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn download(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        self.send(self.request(Method::GET, path).query(query)).await
    }

    /// Reads the rest of a long response.
    ///
    /// # Errors
    /// If the console ends early, and if `take` fails.
    pub async fn take(
        &self,
        response: Response,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                Failure::new(FailureKind::Failed, format!("the console's answer broke off: {}", http::cause(&error)))
                    .hint("if the console failed, its log shows why")
            })?;
            take(&piece)?;
        }
        Ok(())
    }

    /// The events of a command or a deployment, from the beginning to the end.
    ///
    /// # Errors
    /// As [`ConsoleClient::get`].
    pub async fn events<T: DeserializeOwned>(&self, path: &str) -> Result<EventStream<T>, Failure> {
        let request = self.request(Method::GET, path).header("accept", "text/event-stream");
        let response = self.send(request).await?;
        Ok(EventStream {
            bytes: Box::pin(response.bytes_stream().map(|piece| piece.map(Vec::from))),
            buffer: Vec::new(),
            event: PhantomData,
        })
    }
}

/// The failure of a Prometheus API call. Its errors contain their hints.
async fn unanswered(response: Response) -> Failure {
    #[derive(Deserialize)]
    struct ConsoleErrorBody {
        error: String,
    }
    let status = response.status();
    let said = match response.json::<ConsoleErrorBody>().await {
        Ok(refusal) => refusal.error,
        Err(_) => format!("the console answered {status}"),
    };
    let kind = match status {
        StatusCode::BAD_REQUEST => FailureKind::Usage,
        StatusCode::UNAUTHORIZED => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    Failure::new(kind, said)
}

async fn refusal(response: Response) -> Failure {
    let status = response.status();
    if status.is_redirection() {
        let message = format!("the console answered {status}; the token is not sent to another address");
        let to = response.headers().get("location").and_then(|to| to.to_str().ok()).unwrap_or("another address");
        return Failure::new(FailureKind::Failed, message)
            .hint(format!("it redirects to {to}; sign in there with `muster login LINK`"));
    }
    let problem = response
        .json::<Problem>()
        .await
        .unwrap_or_else(|_| Problem::new("unknown", format_args!("the console answered {status}")));
    let kind = failure_kind(&problem.code, status);
    let hint = (status == StatusCode::UNAUTHORIZED).then(|| "sign in with `muster login LINK`".to_owned());
    let Diagnostic { cause, consequence, hint: given } = problem.diagnostic;
    Failure { kind, diagnostic: Some(Diagnostic { cause, consequence, hint: given.or(hint) }) }
}

/// The kind of a refusal: that of its code, or of its status if a newer console has made it.
fn failure_kind(code: &str, status: StatusCode) -> FailureKind {
    let of_status = || match status {
        StatusCode::BAD_REQUEST => ProblemKind::Usage,
        StatusCode::NOT_FOUND => ProblemKind::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::CONFLICT => ProblemKind::Refused,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            ProblemKind::Unreachable
        }
        _ => ProblemKind::Failed,
    };
    failure_kind_of(problem_codes::kind_of(code).unwrap_or_else(of_status))
}

/// The kind of failure that a problem of the API is.
#[must_use]
pub fn failure_kind_of(problem: ProblemKind) -> FailureKind {
    match problem {
        ProblemKind::Usage => FailureKind::Usage,
        ProblemKind::Refused => FailureKind::Refused,
        ProblemKind::NotFound => FailureKind::NotFound,
        ProblemKind::Unreachable => FailureKind::Unreachable,
        ProblemKind::Failed => FailureKind::Failed,
    }
}

/// The server-sent events of a command or a deployment.
pub struct EventStream<T> {
    bytes: Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>> + Send>>,
    buffer: Vec<u8>,
    event: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> EventStream<T> {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// If the connection breaks, or if an event cannot be parsed.
    pub async fn next(&mut self) -> Result<Option<T>, Failure> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if let Some(event) = event(&line)? {
                    return Ok(Some(event));
                }
            }
            match self.bytes.next().await {
                None => return Ok(None),
                Some(Ok(bytes)) if self.buffer.len() + bytes.len() <= EVENT_MAX_BYTES => {
                    self.buffer.extend_from_slice(&bytes);
                }
                Some(Ok(_)) => return Err(Failure::new(FailureKind::Failed, "an event from the console is too long")),
                Some(Err(error)) => {
                    let message = format!("the connection to the console broke: {}", http::cause(&error));
                    return Err(Failure::new(FailureKind::Unreachable, message));
                }
            }
        }
    }
}

/// The event of a `data:` line. Other lines (comments, event names, empty lines) are not needed.
fn event<T: DeserializeOwned>(line: &[u8]) -> Result<Option<T>, Failure> {
    let Some(data) = line.strip_prefix(b"data:") else { return Ok(None) };
    serde_json::from_slice(data.trim_ascii())
        .map(Some)
        .map_err(|error| Failure::new(FailureKind::Failed, format!("an event from the console is not valid: {error}")))
}
