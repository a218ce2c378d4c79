//! The trait of an external store's client, and the meaning of its answers.

use std::{fmt, path::Path, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use muster_base::files;
use muster_net::http::Proxy;
use muster_topics::diagnostic::Diagnostic;

use super::error::ExternalError;
use crate::config::MetricStoreConfig;

/// The timeout of a request: a busy server takes some seconds for a full body.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// The most characters that are kept of a server's message.
pub(super) const TEXT_MAX_CHARS: usize = 500;

/// An external time-series store.
pub(super) trait Remote: fmt::Debug + Send + Sync {
    /// Checks whether it is available.
    fn probe(&self) -> BoxFuture<'_, Result<(), SendError>>;

    /// Stores lines, whose times are in milliseconds.
    fn write(&self, lines: Bytes) -> BoxFuture<'_, Result<(), SendError>>;
}

/// Why a server has not stored something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendError {
    /// There was no response.
    #[error("cannot reach it: {0}")]
    Unreachable(String),
    /// It refused.
    #[error("it answers {status}: {text}")]
    Answer {
        /// The HTTP status.
        status: u16,
        /// The message, shortened.
        text: String,
    },
}

/// What to do with lines that were not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendFate {
    /// Send them again later.
    Again,
    /// Set them aside: they would be refused forever.
    Aside,
}

impl SendError {
    pub(super) fn answer(status: u16, text: &str) -> Self {
        Self::Answer { status, text: text.trim().chars().take(TEXT_MAX_CHARS).collect() }
    }

    /// Returns what to do with the lines. A redirect is not the lines' fault, and following one would lose them: some
    /// turn a `POST` into a `GET`.
    pub(super) fn fate(&self) -> SendFate {
        match self {
            Self::Unreachable(_) => SendFate::Again,
            Self::Answer { status: 408 | 429, .. } => SendFate::Again,
            Self::Answer { status: 400..=499, .. } => SendFate::Aside,
            Self::Answer { .. } => SendFate::Again,
        }
    }
}

/// Returns the configured proxy.
pub(super) fn proxy(config: &MetricStoreConfig) -> Result<Option<Proxy>, ExternalError> {
    Proxy::of(config.proxy.as_deref()).map_err(|error| {
        let Diagnostic { cause, hint, .. } = Diagnostic::of(&error);
        ExternalError::new(config, "proxy", cause, &hint.unwrap_or_default())
    })
}

/// Reads a file with a secret; `None` if none is configured.
pub(super) fn secret(
    config: &MetricStoreConfig,
    key: &'static str,
    path: Option<&Path>,
) -> Result<Option<String>, ExternalError> {
    let Some(path) = path else { return Ok(None) };
    let text = files::read_text(path).map_err(|error| {
        ExternalError::new(config, key, format!("{}: {error}", path.display()), "use a file that this user may read")
    })?;
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| c.is_control()) {
        let reason = format!("{} is empty", path.display());
        return Err(ExternalError::new(config, key, reason, "one line: the token or the password, and nothing else"));
    }
    Ok(Some(text.to_owned()))
}
