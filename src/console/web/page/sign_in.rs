//! Signing in and out.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use muster_base::clock::now_ms;
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::PageParams,
        guard,
        session::WebSession,
        state::Web,
        view::{PageFrame, sign_in::SignInView},
    },
};

/// The query of a sign-in link.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct SignInQuery {
    code: Option<String>,
}

/// Shows the button; opening the page does not use the code.
pub(in crate::web) async fn show(PageParams(link): PageParams<SignInQuery>) -> Response {
    let view = SignInView { code: link.code.filter(|code| !code.is_empty()), problem: None };
    answer::html(StatusCode::OK, PageFrame::stranger(now_ms()).page(&view))
}

/// Uses the code. There is no session yet, so no token either: the code is the secret.
pub(in crate::web) async fn sign_in(State(web): State<Web>, request: Request) -> Response {
    match new_session(&web.console, request).await {
        Ok(secret) => answer::with_cookie(answer::see("/"), &web.cookie.begin(&secret)),
        Err(error) => {
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let view = SignInView { code: None, problem: Some(error.problem) };
            answer::html(status, PageFrame::stranger(now_ms()).page(&view))
        }
    }
}

async fn new_session(console: &Console, request: Request) -> Result<String, Error> {
    let (parts, body) = request.into_parts();
    guard::same_origin(&parts.headers)?;
    let fields = guard::fields(&parts.headers, body).await?;
    let given = fields.one("code");
    // People paste the whole link as well as its code.
    let code = given.rsplit_once("code=").map_or(given, |(_, code)| code);
    console.sign_in(code).await
}

/// Ends the session.
pub(in crate::web) async fn sign_out(State(web): State<Web>, session: WebSession) -> Response {
    match web.console.sign_out(session.secret()).await {
        Ok(()) => answer::with_cookie(answer::see("/sign-in"), &web.cookie.end()),
        Err(error) => answer::problem(&session.frame(), &error),
    }
}
