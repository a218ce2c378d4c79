//! Prometheus's HTTP API over the embedded time-series store, so that Grafana and other clients of Prometheus can use
//! the console: `/prometheus/api/v1/{query,query_range,series,labels,label/NAME/values,metadata,status/buildinfo}`.
//!
//! Requests come as GET or as forms in a POST. An operator's token authenticates them: as a bearer token, or as the password
//! of basic authentication with any user name (Grafana supports both).
//!
//! Modules, in reading order:
//!
//! - [`answer`]: answers and errors
//! - [`params`]: the parameters of a request
//! - [`query`]: `query` and `query_range`
//! - [`names`]: `series`, `labels`, `label/NAME/values`, `metadata`, `status/buildinfo`
//! - [`source`]: the store as a source of the query language
//!
//! **Invariant: a request is authenticated before anything else of it is read.**
//!
//! **Invariant: a query costs a bounded amount** of time, of samples, and of memory, because only few run at once.

mod answer;
mod names;
mod params;
mod query;
mod source;
mod state;

pub(crate) use source::StoreSource;
use state::{AT_ONCE, PrometheusState};

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::sync::Semaphore;

use self::answer::{ErrorKind, QueryRefusal};
use super::{server::CallerConnection, state::Console};

/// Returns the routes below `/prometheus`.
pub(super) fn router(console: Console) -> Router {
    let state = PrometheusState { console, places: Arc::new(Semaphore::new(AT_ONCE)) };
    let router = Router::new()
        .route("/api/v1/query", get(query::instant).post(query::instant))
        .route("/api/v1/query_range", get(query::range).post(query::range))
        .route("/api/v1/series", get(names::series).post(names::series))
        .route("/api/v1/labels", get(names::labels).post(names::labels))
        .route("/api/v1/label/{name}/values", get(names::values))
        .route("/api/v1/metadata", get(names::metadata))
        .route("/api/v1/status/buildinfo", get(names::build))
        .fallback(unknown_path)
        .method_not_allowed_fallback(async || {
            QueryRefusal::new(ErrorKind::BadData, "this path does not support the method")
        })
        .layer(middleware::from_fn_with_state(state.clone(), authenticate))
        .with_state(state);
    // Nesting does not cover this one path.
    Router::new().nest("/prometheus", router).route("/prometheus/", any(unknown_path))
}

async fn unknown_path() -> QueryRefusal {
    QueryRefusal::new(ErrorKind::NotFound, "no such path").hint(
        "there are query, query_range, series, labels, label/NAME/values, metadata and status/buildinfo below \
         /prometheus/api/v1",
    )
}

/// Authenticates an operator. The token is looked up by its hash, so timing reveals nothing.
async fn authenticate(State(state): State<PrometheusState>, request: Request, next: Next) -> Response {
    let refusal = match token(request.headers()) {
        None => QueryRefusal::new(ErrorKind::Unauthorised, "an operator's token is required").hint(
            "give it as `Authorization: Bearer …`, or as the password of basic authentication; `muster login` gets one",
        ),
        Some(token) => match state.console.bearer(&token).await {
            Ok(Some(_)) => {
                CallerConnection::has_logged_in(request.extensions());
                let mut response = next.run(request).await;
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                return response;
            }
            Ok(None) => {
                QueryRefusal::new(ErrorKind::Unauthorised, "the token is unknown").hint("`muster login` gets a new one")
            }
            Err(error) => QueryRefusal::new(ErrorKind::Internal, error.problem.diagnostic.cause),
        },
    };
    refusal.into_response()
}

/// Returns the token of a request.
fn token(headers: &HeaderMap) -> Option<String> {
    let (scheme, given) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let given = given.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(given.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(given).ok()?).ok()?;
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_and_basic_tokens_are_read() {
        let found = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            token(&headers)
        };
        assert_eq!(found("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(found(&format!("basic {}", BASE64_STANDARD.encode("any:a:b"))).as_deref(), Some("a:b"));
        for bad in ["", "Bearer", "Basic !", "Digest abc", &format!("Basic {}", BASE64_STANDARD.encode("none"))] {
            assert_eq!(found(bad), None, "{bad}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
