//! Extracts the parts of a request; each fault becomes a problem response with its reason.

use std::time::Duration;

use axum::{
    body::to_bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{StatusCode, header, request::Parts},
};
use muster_topics::canonical;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::error::Error;

/// The largest JSON document that is accepted: a config of 512 KiB, quoted, fits.
const DOCUMENT_MAX_BYTES: usize = 2 * 1024 * 1024;
/// How long a document may take to arrive.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// A JSON document in the body, whatever its declared type.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self, Error> {
        let too_large = || {
            let message = format!("the request's body has more than {DOCUMENT_MAX_BYTES} bytes");
            Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        };
        let announced =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > DOCUMENT_MAX_BYTES) {
            return Err(too_large());
        }
        let body = match timeout(COMES_WITHIN, to_bytes(request.into_body(), DOCUMENT_MAX_BYTES)).await {
            Ok(Ok(body)) => body,
            // The types of the two errors, incomplete and too large, are the same.
            Ok(Err(error)) if error.to_string().contains("limit") => return Err(too_large()),
            Ok(Err(error)) => {
                return Err(Error::invalid("incomplete", format!("the request is incomplete: {error}")));
            }
            Err(_) => {
                let message = format!("the request's body did not arrive within {} s", COMES_WITHIN.as_secs());
                return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "incomplete", message));
            }
        };
        let bad = |error: &dyn std::fmt::Display| Error::invalid("bad_json", error.to_string());
        // Hosts read strictly what becomes of it: a number that they refuse, or a key that is there twice, ends here.
        canonical::parse(&body).map_err(|error| bad(&error))?;
        serde_json::from_slice(&body).map(Self).map_err(|error| bad(&error))
    }
}

/// The query parameters.
pub(super) struct QueryParams<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(params)| Self(params)).map_err(|error| Error::invalid("bad_query", error.body_text()))
    }
}

/// The path parameters.
pub(crate) struct PathSegments<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathSegments<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(segments)| Self(segments)).map_err(|error| Error::invalid("bad_path", error.body_text()))
    }
}
