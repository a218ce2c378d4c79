//! What stands between a browser and the pages: headers of every answer, sessions, and the checks of
//! a form's request.
//!
//! A request that changes something has to come from a page of this very origin (the browser says
//! so, in `Sec-Fetch-Site` or `Origin`), from a browser that holds the session's cookie
//! (`SameSite=Strict`), and has to carry a token that only a page of that session contains. Each of
//! the three would do; browsers that are old, or misled, fail one at a time.

use std::time::Duration;

use axum::{
    body::to_bytes,
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use muster_topics::name::{Name, hex};
use ring::hmac;
use tokio::time::timeout;

use super::{Web, answer, view::Frame};
use crate::{
    clock::now_ms,
    console::{Error, server::Caller},
};

/// Everything a page loads comes from here, nothing is inline, and nobody frames it. (Pages may set
/// single properties of an element's style by script, which this does not concern; uPlot does.)
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The largest form that is taken: a command of 64 KiB with every byte percent-encoded fits.
const FORM_MAX_BYTES: usize = 256 * 1024;
/// How long a form may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(30);
/// The field, and the header, that carry the token.
const TOKEN_FIELD: &str = "csrf";
const TOKEN_HEADER: &str = "x-csrf-token";
/// How long a browser keeps the cookie: as long as a session lasts.
const COOKIE_S: u64 = 7 * 24 * 3600;

/// Where a proxy tells that it has cut off the beginning of a path.
const PREFIX_HEADER: &str = "x-forwarded-prefix";

/// Refuses pages below a path: their links and their cookie are those of a whole host name.
fn below_path(headers: &HeaderMap) -> Option<Error> {
    let prefix = headers.get(PREFIX_HEADER)?.to_str().unwrap_or_default().trim_matches('/').to_owned();
    if prefix.is_empty() {
        return None;
    }
    let prefix: String = prefix.chars().take(100).collect();
    let message = format!("these pages cannot be below a path, and a proxy has put them below /{prefix}");
    Some(Error::invalid("below_path", message).hint("give them a host name, or a port, of their own"))
}

/// Sets the headers of every answer, whatever it is.
pub(super) async fn headers(request: Request, next: Next) -> Response {
    let mut response = match below_path(request.headers()) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Pages are about now, and about a secret session; assets say otherwise themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The session's cookie: its name and attributes. Browsers tell cookies of different ports of one host
/// apart by nothing but the name, so the port is part of it.
#[derive(Debug)]
pub(super) struct Cookie {
    name: String,
    secure: bool,
}

impl Cookie {
    /// The cookie of the pages at `web_url`.
    pub(super) fn of(web_url: &str) -> Self {
        let uri: Option<Uri> = web_url.parse().ok();
        let secure = uri.as_ref().is_none_or(|uri| uri.scheme_str() != Some("http"));
        let port = uri.as_ref().and_then(Uri::port_u16).unwrap_or(if secure { 443 } else { 80 });
        // A browser takes a `__Host-` cookie only over HTTPS, from this host, for all paths.
        let prefix = if secure { "__Host-" } else { "" };
        Self { name: format!("{prefix}muster-session-{port}"), secure }
    }

    /// `Set-Cookie` that begins a session.
    pub(super) fn begin(&self, secret: &str) -> String {
        self.header(secret, COOKIE_S)
    }

    /// `Set-Cookie` that ends it.
    pub(super) fn end(&self) -> String {
        self.header("", 0)
    }

    fn header(&self, value: &str, age_s: u64) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        format!("{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}", self.name)
    }

    /// The secret that a request carries.
    fn secret<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        cookies
            .flat_map(|line| line.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='))
            .find(|(name, _)| *name == self.name)
            .map(|(_, value)| value)
    }
}

/// Who asks: left for handlers by [`signed_in`].
#[derive(Clone)]
pub(super) struct Session {
    /// The operator.
    pub(super) operator: Name,
    /// The cookie's content.
    secret: String,
    /// How many alerts held when it asked.
    alerts: u64,
    /// What was wrong with the console then.
    notices: Vec<String>,
}

impl Session {
    /// What has to be known to look the session up again, or to end it.
    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    /// What a form of this session has to carry. It follows from the cookie, and not the other way round.
    pub(super) fn token(&self) -> String {
        hex(hmac::sign(&self.key(), FORM_MESSAGE).as_ref())
    }

    /// Whether `token` is that, found out in a time that tells nothing.
    fn accepts(&self, token: &str) -> bool {
        let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let tag: Option<Vec<u8>> = token.as_bytes().chunks(2).map(byte).collect();
        tag.is_some_and(|tag| hmac::verify(&self.key(), FORM_MESSAGE, &tag).is_ok())
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes())
    }

    /// What every page of this session has around it.
    pub(super) fn frame(&self) -> Frame {
        let (token, alerts, notices) = (self.token(), self.alerts, self.notices.clone());
        Frame { operator: Some(self.operator.clone()), token, alerts, notices, now_ms: now_ms() }
    }
}

const FORM_MESSAGE: &[u8] = b"muster: forms of this session";

impl<S: Sync> FromRequestParts<S> for Session {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get().cloned().ok_or_else(answer::sign_in_first)
    }
}

/// Lets only those through who have a session.
pub(super) async fn signed_in(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let Some(secret) = web.cookie.secret(request.headers()).map(str::to_owned) else {
        return answer::sign_in_first();
    };
    match web.console.session(&secret).await {
        Ok(Some(operator)) => {
            Caller::has_logged_in(request.extensions());
            // A page is worth more than its count.
            let alerts = web.console.alert_count(None).await.unwrap_or_default();
            request.extensions_mut().insert(Session { operator, secret, alerts, notices: web.console.notices() });
            next.run(request).await
        }
        Ok(None) => answer::sign_in_first(),
        Err(error) => answer::problem(&Frame::stranger(now_ms()), &error),
    }
}

/// The fields of a form, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// A field's value, without blanks around it; empty if there is none.
    pub(super) fn one(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// A field's value as it is.
    pub(super) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// All values of a field that may come several times.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl<S: Sync> FromRequestParts<S> for Fields {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let missing = || Error::invalid("no_form", "a form is wanted").into_response();
        parts.extensions.get().cloned().ok_or_else(missing)
    }
}

/// Lets a request that is to change something through only if it is a form of a page of its session.
pub(super) async fn checked_form(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let Some(session) = parts.extensions.get::<Session>().cloned() else {
        return answer::sign_in_first();
    };
    let checked = async {
        same_origin(&parts.headers)?;
        let fields = fields(&parts.headers, body).await?;
        let header = parts.headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok());
        if session.accepts(header.unwrap_or(fields.one(TOKEN_FIELD))) { Ok(fields) } else { Err(stale_form()) }
    };
    match checked.await {
        Ok(fields) => {
            parts.extensions.insert(fields);
            next.run(Request::from_parts(parts, axum::body::Body::empty())).await
        }
        Err(error) => answer::problem(&session.frame(), &error),
    }
}

fn stale_form() -> Error {
    Error::new(StatusCode::FORBIDDEN, "bad_form", "this form is not from a page of your session")
        .hint("load the page again, and send the form from there")
}

/// Refuses what a page of another origin sent, by what the browser says of it. A program that says
/// neither is no browser that could be misled.
pub(super) fn same_origin(headers: &HeaderMap) -> Result<(), Error> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let same = match (text(HeaderName::from_static("sec-fetch-site")), text(header::ORIGIN)) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some() && authority == text(header::HOST)
        }
        (None, None) => true,
    };
    if same {
        return Ok(());
    }
    Err(Error::new(StatusCode::FORBIDDEN, "foreign_origin", "this form was sent by a page of another site")
        .hint("open the page here, and send the form from there"))
}

/// Reads the fields of a form.
pub(super) async fn fields(headers: &HeaderMap, body: axum::body::Body) -> Result<Fields, Error> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/x-www-form-urlencoded") {
        let message = "a form (application/x-www-form-urlencoded) is wanted";
        return Err(Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "no_form", message)
            .hint("programs use the API, which GET /api/openapi.json describes"));
    }
    let bytes = match timeout(COMES_WITHIN, to_bytes(body, FORM_MAX_BYTES)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let message = format!("the form did not come whole, or has more than {} KiB", FORM_MAX_BYTES / 1024);
            return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        Err(_) => return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "incomplete", "the form did not come in time")),
    };
    let request = Request::post("/").header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request =
        request.body(axum::body::Body::from(bytes)).map_err(|error| Error::internal("reading a form", &error))?;
    let form = <axum::Form<Vec<(String, String)>> as axum::extract::FromRequest<()>>::from_request(request, &()).await;
    form.map(|axum::Form(fields)| Fields(fields)).map_err(|error| Error::invalid("bad_form", error.body_text()))
}
