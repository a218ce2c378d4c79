//! A refused request.

use maud::{Markup, html};
use muster_api::Problem;

use super::frame::{PageFrame, PageView};

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct ProblemView {
    /// HTTP status code.
    pub(in crate::web) status: u16,
    /// The reason.
    pub(in crate::web) problem: Problem,
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

impl PageView for ProblemView {
    fn title(&self) -> String {
        self.words().to_owned()
    }

    fn body(&self, _: &PageFrame) -> Markup {
        html! {
            h1 { (self.words()) }
            (notice(&self.problem))
            p { a href="/" { "All hosts" } }
        }
    }
}

/// Renders a problem within a page.
pub(in crate::web) fn notice(problem: &Problem) -> Markup {
    html! {
        div.notice.bad role="alert" {
            p { strong { (problem.message) } }
            @if let Some(hint) = &problem.hint { p { "Hint: " (hint) } }
        }
    }
}
