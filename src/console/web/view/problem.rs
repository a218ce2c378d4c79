//! A request that was not granted.

use maud::{Markup, html};

use super::{Frame, View};
use crate::api::Problem;

/// The page.
#[derive(Clone, Debug)]
pub(in crate::console::web) struct ProblemView {
    /// HTTP status code.
    pub(in crate::console::web) status: u16,
    /// Why.
    pub(in crate::console::web) problem: Problem,
}

impl ProblemView {
    fn words(&self) -> &'static str {
        match self.status {
            404 => "Not found",
            403 => "Not allowed",
            409 => "Not possible now",
            400..500 => "Not understood",
            _ => "Something went wrong here",
        }
    }
}

impl View for ProblemView {
    fn title(&self) -> String {
        self.words().to_owned()
    }

    fn body(&self, _: &Frame) -> Markup {
        html! {
            h1 { (self.words()) }
            (notice(&self.problem))
            p { a href="/" { "All hosts" } }
        }
    }
}

/// A problem, within a page.
pub(in crate::console::web) fn notice(problem: &Problem) -> Markup {
    html! {
        div.notice.bad role="alert" {
            p { strong { (problem.message) } }
            @if let Some(hint) = &problem.hint { p { "Hint: " (hint) } }
        }
    }
}
