//! Signing in. The page of a sign-in link has one button, so that programs that open links before
//! people do (previews, scanners) do not use it up.

use maud::{Markup, html};
use muster_api::Problem;

use super::{
    elements,
    frame::{PageFrame, PageView},
    problem::notice,
};

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct SignInView {
    /// The code of the link.
    pub(in crate::web) code: Option<String>,
    /// Why the previous code was not accepted.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for SignInView {
    fn title(&self) -> String {
        "Sign in".to_owned()
    }

    fn body(&self, _: &PageFrame) -> Markup {
        html! {
            section.narrow {
                h1 { "Sign in" }
                @if let Some(problem) = &self.problem { (notice(problem)) }
                @if let Some(code) = &self.code { (with_code(code)) } @else { (without_code()) }
            }
        }
    }
}

fn with_code(code: &str) -> Markup {
    html! {
        p { "This link signs in one browser, once." }
        form method="post" action="/sign-in" {
            input type="hidden" name="code" value=(code);
            button.primary type="submit" autofocus { "Sign in" }
        }
    }
}

fn without_code() -> Markup {
    html! {
        p { "You are not signed in. On the console's machine, this prints a new sign-in link:" }
        (elements::cli("muster login --new-link"))
        form method="post" action="/sign-in" {
            label for="code" { "Sign-in link, or its code" }
            input #code name="code" type="text" required autocomplete="off" spellcheck="false" autocapitalize="none";
            button.primary type="submit" { "Sign in" }
        }
        p.note { "Signed in already, and came by a link from another site? " a href="/" { "Open muster" } }
    }
}
