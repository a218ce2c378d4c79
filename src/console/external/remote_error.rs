//! The trait of an external store's client, and the meaning of its answers.

use std::{fmt, path::Path, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use muster_base::files;
use muster_net::http::Proxy;

use super::error::ExternalError;
use crate::config::MetricStoreConfig;

/// How long a server may take to answer: a full body takes one that is busy some seconds.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// As much as is kept of what a server says.
pub(super) const TEXT_MAX_CHARS: usize = 500;

/// A time-series store elsewhere.
pub(super) trait Remote: fmt::Debug + Send + Sync {
    /// Whether it is there.
    fn probe(&self) -> BoxFuture<'_, Result<(), SendError>>;

    /// Has it store lines, whose times are in milliseconds.
    fn write(&self, lines: Bytes) -> BoxFuture<'_, Result<(), SendError>>;
}

/// Why a server has not stored something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendError {
    /// There was no answer.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It said no.
    #[error("it answers {status}: {text}")]
    Answer {
        /// The HTTP status.
        status: u16,
        /// What it said, as much as is worth keeping.
        text: String,
    },
}

/// What is to be done with what a server has not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendFate {
    /// It is sent again, later.
    Again,
    /// It would be refused for ever, and is set aside.
    Aside,
}

impl SendError {
    pub(super) fn answer(status: u16, text: &str) -> Self {
        Self::Answer { status, text: text.trim().chars().take(TEXT_MAX_CHARS).collect() }
    }

    /// What is to be done. A redirect is no fault of the lines, and following one would lose them: some turn a `POST` into a `GET`.
    pub(super) fn fate(&self) -> SendFate {
        match self {
            Self::Unreachable(_) => SendFate::Again,
            Self::Answer { status: 408 | 429, .. } => SendFate::Again,
            Self::Answer { status: 400..=499, .. } => SendFate::Aside,
            Self::Answer { .. } => SendFate::Again,
        }
    }
}

/// The proxy that its configuration names.
pub(super) fn proxy(config: &MetricStoreConfig) -> Result<Option<Proxy>, ExternalError> {
    Proxy::of(config.proxy.as_deref()).map_err(|error| {
        let text = error.to_string();
        let (reason, hint) = text.split_once(". hint: ").unwrap_or((&text, ""));
        ExternalError::new(config, "proxy", reason.to_owned(), hint)
    })
}

/// What a file for secrets has in it; nothing if none is named.
pub(super) fn secret(
    config: &MetricStoreConfig,
    key: &'static str,
    path: Option<&Path>,
) -> Result<Option<String>, ExternalError> {
    let Some(path) = path else { return Ok(None) };
    let text = files::read_text(path).map_err(|error| {
        ExternalError::new(config, key, format!("{}: {error}", path.display()), "a file that this user may read")
    })?;
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| c.is_control()) {
        let reason = format!("{} has no secret in it", path.display());
        return Err(ExternalError::new(config, key, reason, "one line: the token or the password, and nothing else"));
    }
    Ok(Some(text.to_owned()))
}
