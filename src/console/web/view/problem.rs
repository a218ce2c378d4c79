//! A refused request.

use maud::{Markup, html};
use muster_api::Problem;
use muster_topics::diagnostic::Diagnostic;

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
    html! { div.notice.bad role="alert" { (parts(&problem.diagnostic)) } }
}

/// Renders what went wrong, each part as a paragraph.
pub(in crate::web) fn parts(diagnostic: &Diagnostic) -> Markup {
    html! {
        p { strong { (diagnostic.cause) } }
        @if let Some(consequence) = &diagnostic.consequence { p { "Consequence: " (consequence) } }
        @if let Some(hint) = &diagnostic.hint { p { "Hint: " (hint) } }
    }
}

/// Renders what an outcome or a unit's error tells in a list: its cause, and below it what else it has.
pub(in crate::web) fn why(told: &Diagnostic) -> Markup {
    let Diagnostic { cause, consequence, hint } = told;
    html! {
        p.why { (cause) }
        @if let Some(consequence) = consequence { p.note { "Consequence: " (consequence) } }
        @if let Some(hint) = hint { p.note { "Hint: " (hint) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_in_a_list_stands_apart() {
        assert_eq!(
            why(&Diagnostic::new("no <room>").with_hint("free space")).into_string(),
            "<p class=\"why\">no &lt;room&gt;</p><p class=\"note\">Hint: free space</p>"
        );
        assert_eq!(why(&Diagnostic::new("no room")).into_string(), "<p class=\"why\">no room</p>");
    }

    #[test]
    fn each_part_is_a_paragraph() {
        let whole = Diagnostic::new("no <room>").with_consequence("nothing was stored").with_hint("free space");
        assert_eq!(
            parts(&whole).into_string(),
            "<p><strong>no &lt;room&gt;</strong></p><p>Consequence: nothing was stored</p><p>Hint: free space</p>"
        );
        assert_eq!(parts(&Diagnostic::new("no room")).into_string(), "<p><strong>no room</strong></p>");
    }
}
