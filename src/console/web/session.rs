//! The session of a browser: its cookie, who is signed in, and the token that its forms carry.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, Uri, header, request::Parts},
    response::Response,
};
use muster_base::clock::now_ms;
use muster_topics::name::{Name, hex};
use ring::hmac;

use super::{answer, view::PageFrame};

pub(super) const TOKEN_HEADER: &str = "x-csrf-token";

/// How long a browser keeps the cookie: as long as a session lasts.
pub(super) const COOKIE_S: u64 = 7 * 24 * 3600;

/// The message of which the token of a session's forms is made.
const FORM_MESSAGE: &[u8] = b"muster: forms of this session";

/// The session's cookie: its name and attributes. Browsers distinguish cookies of different ports of one host only by
/// name, so the port is part of it.
#[derive(Debug)]
pub(super) struct Cookie {
    pub(super) name: String,
    pub(super) secure: bool,
}

impl Cookie {
    /// Returns the cookie of the pages at `web_url`.
    pub(super) fn of(web_url: &str) -> Self {
        let uri: Option<Uri> = web_url.parse().ok();
        let secure = uri.as_ref().is_none_or(|uri| uri.scheme_str() != Some("http"));
        let port = uri.as_ref().and_then(Uri::port_u16).unwrap_or(if secure { 443 } else { 80 });
        // A browser accepts a `__Host-` cookie only over HTTPS, from this host, for all paths.
        let prefix = if secure { "__Host-" } else { "" };
        Self { name: format!("{prefix}muster-session-{port}"), secure }
    }

    /// Returns the `Set-Cookie` that begins a session.
    pub(super) fn begin(&self, secret: &str) -> String {
        self.header(secret, COOKIE_S)
    }

    /// Returns the `Set-Cookie` that ends it.
    pub(super) fn end(&self) -> String {
        self.header("", 0)
    }

    pub(super) fn header(&self, value: &str, age_s: u64) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        format!("{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}", self.name)
    }

    /// Returns the secret of a request.
    pub(super) fn secret<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        cookies
            .flat_map(|line| line.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='))
            .find(|(name, _)| *name == self.name)
            .map(|(_, value)| value)
    }
}

/// The session of a request, set by [`super::guard::signed_in`].
#[derive(Clone)]
pub(super) struct WebSession {
    /// The operator.
    pub(super) operator: Name,
    /// The cookie's value.
    pub(super) secret: String,
    /// The number of active alerts at the time of the request.
    pub(super) alerts: u64,
    /// The problems of the console at that time.
    pub(super) notices: Vec<String>,
}

impl WebSession {
    /// The secret, to look the session up again, or to end it.
    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns the token of this session's forms. It is derived from the cookie, and does not reveal it.
    pub(super) fn token(&self) -> String {
        hex(hmac::sign(&self.key(), FORM_MESSAGE).as_ref())
    }

    /// Whether `token` is that, compared in constant time.
    pub(super) fn accepts(&self, token: &str) -> bool {
        let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let tag: Option<Vec<u8>> = token.as_bytes().chunks(2).map(byte).collect();
        tag.is_some_and(|tag| hmac::verify(&self.key(), FORM_MESSAGE, &tag).is_ok())
    }

    pub(super) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes())
    }

    /// Returns the frame of every page of this session.
    pub(super) fn frame(&self) -> PageFrame {
        let (token, alerts, notices) = (self.token(), self.alerts, self.notices.clone());
        PageFrame { operator: Some(self.operator.clone()), token, alerts, notices, now_ms: now_ms() }
    }
}

impl<S: Sync> FromRequestParts<S> for WebSession {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get().cloned().ok_or_else(answer::sign_in_first)
    }
}
