//! Extracts parameters of addresses; each fault becomes a page with its reason.

use axum::{
    extract::{FromRequestParts, Path, Query},
    http::request::Parts,
    response::Response,
};
use muster_base::clock::now_ms;
use serde::de::DeserializeOwned;

use super::{answer, session::WebSession, view::PageFrame};
use crate::error::Error;

fn refused(parts: &Parts, error: &Error) -> Response {
    let frame = parts.extensions.get().map_or_else(|| PageFrame::stranger(now_ms()), WebSession::frame);
    answer::problem(&frame, error)
}

/// The query parameters.
pub(super) struct PageParams<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for PageParams<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(refused(parts, &Error::invalid("bad_query", error.body_text()))),
        }
    }
}

/// The path parameters. An invalid id or name counts as missing.
pub(super) struct PageSegments<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PageSegments<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(segments)) => Ok(Self(segments)),
            Err(error) => Err(refused(parts, &Error::not_found("bad_path", error.body_text()))),
        }
    }
}
