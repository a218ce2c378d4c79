//! What addresses say, read so that each fault is a page with its reason.

use axum::{
    extract::{FromRequestParts, Path, Query},
    http::request::Parts,
    response::Response,
};
use serde::de::DeserializeOwned;

use super::{answer, guard::Session, view::Frame};
use crate::{clock::now_ms, console::Error};

fn refused(parts: &Parts, error: &Error) -> Response {
    let frame = parts.extensions.get().map_or_else(|| Frame::stranger(now_ms()), Session::frame);
    answer::problem(&frame, error)
}

/// What stands behind the question mark.
pub(super) struct Params<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(refused(parts, &Error::invalid("bad_query", error.body_text()))),
        }
    }
}

/// What stands in the path. What cannot be an id or a name is not there.
pub(super) struct Segments<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(segments)) => Ok(Self(segments)),
            Err(error) => Err(refused(parts, &Error::not_found("bad_path", error.body_text()))),
        }
    }
}
