//! Pages, parts of pages and problems as HTTP answers.

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
};
use maud::Markup;
use muster_base::clock::now_ms;

use super::{
    session::WebSession,
    view::{PageFrame, PageView, problem::ProblemView, sign_in::SignInView},
};
use crate::error::Error;

/// What to do where there is nothing.
const MENU: &str = "the menu above leads to all there are";

/// Markup as an answer.
pub(super) fn html(status: StatusCode, markup: Markup) -> Response {
    (status, Html(markup.into_string())).into_response()
}

/// A page, or the part of it that was asked for.
pub(super) fn page(session: &WebSession, view: &impl PageView, part: Option<&str>) -> Response {
    let frame = session.frame();
    match part {
        None => html(StatusCode::OK, frame.page(view)),
        Some(part) => match view.part(&frame, part) {
            Some(markup) => html(StatusCode::OK, markup),
            None => problem(&frame, &Error::not_found("unknown_part", "this page has no such part")),
        },
    }
}

/// On to another page, which the browser gets with GET.
pub(super) fn see(path: &str) -> Response {
    Redirect::to(path).into_response()
}

/// A request that was not granted, as a page.
pub(super) fn problem(frame: &PageFrame, error: &Error) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut problem = error.problem.clone();
    // Whoever reads a page has its menu at hand, and perhaps no command line.
    if problem.hint.as_ref().is_some_and(|hint| hint.contains("`muster ")) {
        problem.hint = (status == StatusCode::NOT_FOUND).then(|| MENU.to_owned());
    }
    html(status, frame.page(&ProblemView { status: error.status, problem }))
}

/// The answer to whoever has no session. A region of a page that asks (the session has ended) makes
/// the whole page load again, so that it can say so.
pub(super) fn sign_in_first() -> Response {
    let view = SignInView { code: None, problem: None };
    let mut response = html(StatusCode::UNAUTHORIZED, PageFrame::stranger(now_ms()).page(&view));
    response.headers_mut().insert(HeaderName::from_static("hx-refresh"), HeaderValue::from_static("true"));
    response
}

/// Sends a cookie along.
pub(super) fn with_cookie(mut response: Response, cookie: &str) -> Response {
    match HeaderValue::from_str(cookie) {
        Ok(value) => response.headers_mut().insert(header::SET_COOKIE, value),
        Err(error) => return problem(&PageFrame::stranger(now_ms()), &Error::internal("making a cookie", &error)),
    };
    response
}

/// What a handler gives: an answer, or a problem that is drawn in the frame of the session.
pub(super) fn or_problem(session: &WebSession, answer: Result<Response, Error>) -> Response {
    answer.unwrap_or_else(|error| problem(&session.frame(), &error))
}

/// 404.
pub(super) async fn no_such_page(session: WebSession) -> Response {
    let error = Error::not_found("unknown_page", "there is no such page").hint(MENU);
    problem(&session.frame(), &error)
}

/// 405.
pub(super) async fn wrong_method(session: WebSession) -> Response {
    let error = Error::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "this page cannot be asked for in this way")
        .hint("a form was perhaps sent to the wrong place; the menu above leads to all pages");
    problem(&session.frame(), &error)
}
