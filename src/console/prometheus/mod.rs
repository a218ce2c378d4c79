//! Prometheus's HTTP API over the embedded time-series store, so that Grafana and whatever else asks Prometheus can ask
//! the console: `/prometheus/api/v1/{query,query_range,series,labels,label/NAME/values,metadata,status/buildinfo}`.
//!
//! Requests come as GET or as forms in a POST. Who asks is an operator, told by a token: as a bearer's, or as the password
//! of basic authentication, whatever the user's name is (Grafana knows both).
//!
//! Modules, in reading order:
//!
//! - [`answer`]: what goes out, an answer or why there is none
//! - [`params`]: what comes in
//! - [`query`]: `query` and `query_range`
//! - [`names`]: `series`, `labels`, `label/NAME/values`, `metadata`, `status/buildinfo`
//! - [`source`]: the store as the query language sees it
//!
//! **Invariant: who asks is known before anything else of a request is looked at.**
//!
//! **Invariant: a query costs a bounded amount**: of time, of samples, and of memory, for few are answered at once.

mod answer;
mod names;
mod params;
mod query;
mod source;

use std::{sync::Arc, time::Duration};

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

use self::answer::{Kind, Refusal};
use super::{Console, server::Caller};

/// How long an answer may take, its waiting included; who waits longer has gone, or has asked for too much.
const DEADLINE: Duration = Duration::from_secs(30);
/// How many queries are answered at once: more than the smallest machine has processors, and few enough that their
/// memory is bounded. A dashboard's others wait.
const AT_ONCE: usize = 4;

/// What the handlers share.
#[derive(Clone, Debug)]
struct Prometheus {
    console: Console,
    places: Arc<Semaphore>,
}

/// Everything below `/prometheus`.
pub(super) fn router(console: Console) -> Router {
    let state = Prometheus { console, places: Arc::new(Semaphore::new(AT_ONCE)) };
    let router = Router::new()
        .route("/api/v1/query", get(query::instant).post(query::instant))
        .route("/api/v1/query_range", get(query::range).post(query::range))
        .route("/api/v1/series", get(names::series).post(names::series))
        .route("/api/v1/labels", get(names::labels).post(names::labels))
        .route("/api/v1/label/{name}/values", get(names::values))
        .route("/api/v1/metadata", get(names::metadata))
        .route("/api/v1/status/buildinfo", get(names::build))
        .fallback(unknown_path)
        .method_not_allowed_fallback(async || Refusal::new(Kind::BadData, "this path has no such method"))
        .layer(middleware::from_fn_with_state(state.clone(), authenticate))
        .with_state(state);
    // Nesting leaves this one path out.
    Router::new().nest("/prometheus", router).route("/prometheus/", any(unknown_path))
}

async fn unknown_path() -> Refusal {
    Refusal::new(
        Kind::NotFound,
        "no such path. hint: there are query, query_range, series, labels, label/NAME/values, metadata and \
         status/buildinfo below /prometheus/api/v1",
    )
}

/// Finds out whether an operator asks. The token is looked up by its hash, so the time that takes tells nothing.
async fn authenticate(State(state): State<Prometheus>, request: Request, next: Next) -> Response {
    let refusal = match token(request.headers()) {
        None => Refusal::new(
            Kind::Unauthorised,
            "this needs an operator's token. hint: give it as `Authorization: Bearer …`, or as the password of basic \
             authentication; `muster login` gets one",
        ),
        Some(token) => match state.console.bearer(&token).await {
            Ok(Some(_)) => {
                Caller::has_logged_in(request.extensions());
                let mut response = next.run(request).await;
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                return response;
            }
            Ok(None) => {
                Refusal::new(Kind::Unauthorised, "this token is not known here. hint: `muster login` gets a new one")
            }
            Err(error) => Refusal::new(Kind::Internal, error.problem.message),
        },
    };
    refusal.into_response()
}

/// The token that a request shows.
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
    fn tokens_are_found() {
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
