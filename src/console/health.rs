//! Liveness and readiness for monitoring: without a token, and without any other information.

use std::time::Duration;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::time::timeout;

use super::state::Console;

/// The timeout of the store: load balancers wait for some seconds.
const STORE: Duration = Duration::from_secs(2);

/// Returns the routes `/healthz` (it answers) and `/readyz` (it can work).
pub(super) fn router(console: Console) -> Router {
    Router::new()
        .route("/healthz", get(async || answer(StatusCode::OK, "ok")))
        .route("/readyz", get(ready))
        .with_state(console)
}

async fn ready(State(console): State<Console>) -> Response {
    let shared = &console.shared;
    let store = matches!(timeout(STORE, shared.store.signed_ms()).await, Ok(Ok(_)));
    match (store, shared.hosts.link.is_connected()) {
        (true, true) => answer(StatusCode::OK, "ready"),
        (false, _) => answer(StatusCode::SERVICE_UNAVAILABLE, "not ready: the store does not answer"),
        (true, false) => answer(StatusCode::SERVICE_UNAVAILABLE, "not ready: no connection to the broker"),
    }
}

fn answer(status: StatusCode, words: &str) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, format!("{words}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use crate::testing::Fixture;

    #[tokio::test]
    async fn console_without_broker_is_alive_and_not_ready() {
        let fixture = Fixture::new().await;
        let web = fixture.running.web_url();
        for (url, status, words) in [
            (format!("{web}/healthz"), 200, "ok\n"),
            (format!("{web}/readyz"), 503, "not ready: no connection to the broker\n"),
            (fixture.hosts_url("/healthz"), 200, "ok\n"),
            (fixture.hosts_url("/readyz"), 503, "not ready: no connection to the broker\n"),
        ] {
            let answer = fixture.client(None).get(&url).send().await.unwrap();
            assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (status, words), "{url}");
        }
        fixture.shared().store.close().await;
        let answer = fixture.client(None).get(format!("{web}/readyz")).send().await.unwrap();
        assert!(answer.text().await.unwrap().contains("the store does not answer"));
    }
}
