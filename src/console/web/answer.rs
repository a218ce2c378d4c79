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

/// The hint on an unknown page.
const MENU: &str = "the menu above leads to all pages";

/// Returns markup as a response.
pub(super) fn html(status: StatusCode, markup: Markup) -> Response {
    (status, Html(markup.into_string())).into_response()
}

/// Returns a page, or the requested part of it.
pub(super) fn page(session: &WebSession, view: &impl PageView, part: Option<&str>) -> Response {
    let frame = session.frame();
    match part {
        None => html(StatusCode::OK, frame.page(view)),
        Some(part) => match view.part(&frame, part) {
            Some(markup) => html(StatusCode::OK, markup),
            None => problem(&frame, &Error::not_found("unknown_part", "this page has no such section")),
        },
    }
}

/// Redirects to another page, which the browser gets with GET.
pub(super) fn see(path: &str) -> Response {
    Redirect::to(path).into_response()
}

/// Returns a refused request as a page.
pub(super) fn problem(frame: &PageFrame, error: &Error) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut problem = error.problem.clone();
    // A reader of a page has the menu, and perhaps no command line.
    if problem.diagnostic.hint.as_ref().is_some_and(|hint| hint.contains("`muster ")) {
        problem.diagnostic.hint = (status == StatusCode::NOT_FOUND).then(|| MENU.to_owned());
    }
    html(status, frame.page(&ProblemView { status: error.status, problem }))
}

/// Returns the response without a session. A region's request makes the whole page load again, which then asks to sign
/// in.
pub(super) fn sign_in_first() -> Response {
    let view = SignInView { code: None, problem: None };
    let mut response = html(StatusCode::UNAUTHORIZED, PageFrame::stranger(now_ms()).page(&view));
    response.headers_mut().insert(HeaderName::from_static("hx-refresh"), HeaderValue::from_static("true"));
    response
}

/// Adds a cookie to a response.
pub(super) fn with_cookie(mut response: Response, cookie: &str) -> Response {
    match HeaderValue::from_str(cookie) {
        Ok(value) => response.headers_mut().insert(header::SET_COOKIE, value),
        Err(error) => return problem(&PageFrame::stranger(now_ms()), &Error::internal("making a cookie", &error)),
    };
    response
}

/// Returns the response of a handler, or its problem in the frame of the session.
pub(super) fn or_problem(session: &WebSession, answer: Result<Response, Error>) -> Response {
    answer.unwrap_or_else(|error| problem(&session.frame(), &error))
}

/// 404.
pub(super) async fn no_such_page(session: WebSession) -> Response {
    let error = Error::not_found("unknown_page", "unknown page").hint(MENU);
    problem(&session.frame(), &error)
}

/// 405.
pub(super) async fn wrong_method(session: WebSession) -> Response {
    let error =
        Error::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "this page does not accept this request method")
            .hint("a form may have been sent to the wrong address; the menu above leads to all pages");
    problem(&session.frame(), &error)
}
