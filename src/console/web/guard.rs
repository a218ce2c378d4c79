//! Protects the pages: headers of every answer, sessions, and the checks of
//! a form's request.
//!
//! A request that changes something has to come from a page of this very origin (the browser says
//! so, in `Sec-Fetch-Site` or `Origin`), from a browser that holds the session's cookie
//! (`SameSite=Strict`), and has to carry a token that only a page of that session contains. Each of
//! the three would suffice; old or misled browsers fail one at a time.

use std::time::Duration;

use axum::{
    body::to_bytes,
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use muster_base::clock::now_ms;
use tokio::time::timeout;

use super::{answer, state::Web, view::PageFrame};
use crate::{error::Error, server::CallerConnection};

use super::session::TOKEN_HEADER;
pub(super) use super::session::WebSession;

/// Everything a page loads comes from here, nothing is inline, and it must not be framed. (Scripts may set single
/// properties of an element's style, which this does not restrict; uPlot does.)
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The largest form that is accepted: a command of 64 KiB with every byte percent-encoded fits.
const FORM_MAX_BYTES: usize = 256 * 1024;
/// How long a form may take to arrive.
const COMES_WITHIN: Duration = Duration::from_secs(30);
/// The field, and the header, that carry the token.
const TOKEN_FIELD: &str = "csrf";

/// The header by which a proxy reports that it has removed a prefix of the path.
const PREFIX_HEADER: &str = "x-forwarded-prefix";

/// Refuses pages below a path: their links and their cookie belong to a whole host name.
fn below_path(headers: &HeaderMap) -> Option<Error> {
    let prefix = headers.get(PREFIX_HEADER)?.to_str().unwrap_or_default().trim_matches('/').to_owned();
    if prefix.is_empty() {
        return None;
    }
    let prefix: String = prefix.chars().take(100).collect();
    let message = format!("a proxy serves these pages below /{prefix}; they must be served from the root of a host");
    Some(Error::invalid("below_path", message).hint("give the console its own host name or port in the proxy"))
}

/// Sets the headers of every response.
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
    // Pages are of the present, and of a secret session; assets set their own header.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Passes only requests with a session.
pub(super) async fn signed_in(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let Some(secret) = web.cookie.secret(request.headers()).map(str::to_owned) else {
        return answer::sign_in_first();
    };
    match web.console.session(&secret).await {
        Ok(Some(operator)) => {
            CallerConnection::has_logged_in(request.extensions());
            // The page is shown even if the count fails.
            let alerts = web.console.alert_count(None).await.unwrap_or_default();
            request.extensions_mut().insert(WebSession { operator, secret, alerts, notices: web.console.notices() });
            next.run(request).await
        }
        Ok(None) => answer::sign_in_first(),
        Err(error) => answer::problem(&PageFrame::stranger(now_ms()), &error),
    }
}

/// The fields of a form, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Returns a field's value, trimmed; empty if there is none.
    pub(super) fn one(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// Returns a field's value unchanged.
    pub(super) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Returns all values of a repeated field.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl<S: Sync> FromRequestParts<S> for FormFields {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let missing = || Error::invalid("no_form", "this address accepts a form only").into_response();
        parts.extensions.get().cloned().ok_or_else(missing)
    }
}

/// Passes a changing request only if it is a form of a page of its session.
pub(super) async fn checked_form(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let Some(session) = parts.extensions.get::<WebSession>().cloned() else {
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
    Error::new(StatusCode::FORBIDDEN, "bad_form", "this form does not belong to your session")
        .hint("reload the page, then send the form again")
}

/// Refuses requests of pages of another origin, by what the browser reports. A program that reports nothing is not a
/// browser that could be misled.
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
        .hint("open the page here, then send the form from it"))
}

/// Reads the fields of a form.
pub(super) async fn fields(headers: &HeaderMap, body: axum::body::Body) -> Result<FormFields, Error> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/x-www-form-urlencoded") {
        let message = "this address accepts a form (application/x-www-form-urlencoded) only";
        return Err(Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "no_form", message)
            .hint("programs use the API, which GET /api/openapi.json describes"));
    }
    let bytes = match timeout(COMES_WITHIN, to_bytes(body, FORM_MAX_BYTES)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let message = format!("the form is incomplete or larger than {} KiB", FORM_MAX_BYTES / 1024);
            return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        Err(_) => return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "incomplete", "the form did not arrive in time")),
    };
    let request = Request::post("/").header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request =
        request.body(axum::body::Body::from(bytes)).map_err(|error| Error::internal("reading a form", &error))?;
    let form = <axum::Form<Vec<(String, String)>> as axum::extract::FromRequest<()>>::from_request(request, &()).await;
    form.map(|axum::Form(fields)| FormFields(fields)).map_err(|error| Error::invalid("bad_form", error.body_text()))
}
