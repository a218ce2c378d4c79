//! The page for joining.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{CreatedToken, NewToken};
use muster_topics::name::Name;

use crate::{
    error::Error,
    state::Console,
    web::{answer, extract::PageSegments, guard::FormFields, session::WebSession, view::join::JoinView},
};

async fn view(console: &Console, created: Option<CreatedToken>) -> Result<JoinView, Error> {
    let tokens = console.tokens().await?;
    let hosts = tokens.iter().flat_map(|token| token.used.map(|(_, host)| host).into_iter().chain(token.replaces));
    let names = console.hostnames(&hosts.collect::<Vec<_>>()).await?;
    let authority = console.authority_glance().await?;
    Ok(JoinView { tokens, names, created, problem: None, authority })
}

/// The page.
pub(in crate::web) async fn show(State(console): State<Console>, session: WebSession) -> Response {
    let view = view(&console, None).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// Creates a token. Only this response shows it.
pub(in crate::web) async fn create(
    State(console): State<Console>,
    session: WebSession,
    fields: FormFields,
) -> Response {
    let answer = async {
        let typed = fields.one("for_s");
        let for_s = typed
            .parse()
            .map_err(|_| Error::invalid("bad_lifetime", format!("{typed:?} is not a number of seconds")))?;
        let created = console.create_token(&session.operator, NewToken { for_s: Some(for_s), replace: None }).await?;
        let view = view(&console, Some(created)).await?;
        Ok(answer::html(StatusCode::OK, session.frame().page(&view)))
    };
    answer::or_problem(&session, answer.await)
}

/// Revokes a token.
pub(in crate::web) async fn revoke(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(id): PageSegments<Name>,
) -> Response {
    let answer = async {
        console.revoke_token(id.as_str()).await?;
        Ok(answer::see("/join"))
    };
    answer::or_problem(&session, answer.await)
}
