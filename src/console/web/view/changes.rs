//! What operators have changed of deployments, cordons and variables.

use maud::{Markup, html};
use muster_api::Change;

use super::{
    elements::{ago, empty},
    frame::{PageFrame, PageView, Section},
};

/// How many changes are listed.
pub(in crate::web) const CHANGES: u32 = 200;

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct ChangesView {
    /// The newest first.
    pub(in crate::web) changes: Vec<Change>,
}

impl PageView for ChangesView {
    fn title(&self) -> String {
        "Changes".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Changes" }
            p { "What operators have changed of deployments, cordons and variables. Commands to hosts are listed under " a href="/commands" { "commands" } "." }
            @if self.changes.is_empty() {
                (empty("There are no changes yet.", "Write a deployment, and apply it:", "muster deployment apply till.yaml"))
            } @else {
                table.cards {
                    caption.visually-hidden { "Changes" }
                    thead { tr { th scope="col" { "Change" } th scope="col" { "Of" } th scope="col" { "Detail" } th scope="col" { "When" } } }
                    tbody {
                        @for one in &self.changes {
                            tr {
                                th scope="row" { (one.kind.words()) }
                                td data-label="Of" { (one.subject) }
                                td data-label="Detail" { @if one.detail.is_empty() { "–" } @else { (one.detail) } }
                                td data-label="When" { (ago(one.at_ms, frame.now_ms)) " by " (one.operator) }
                            }
                        }
                    }
                }
                @if self.changes.len() >= CHANGES as usize { p.note { "These are the newest " (CHANGES) "." } }
            }
        }
    }
}
