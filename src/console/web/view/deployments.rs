//! All deployments.

use maud::{Markup, html};
use muster_api::Deployment;

use super::{
    deployment::{states, url},
    elements::{ago, empty, grouped},
    frame::{PageFrame, PageView, PageWatch, Section},
    region::region,
};

/// The list.
#[derive(Clone, Debug)]
pub(in crate::web) struct DeploymentsView {
    /// By name.
    pub(in crate::web) deployments: Vec<Deployment>,
}

impl PageView for DeploymentsView {
    fn title(&self) -> String {
        "Deployments".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Deployments" }
            p { "A deployment says which units belong on which hosts. Each change of it is a version, which every host that its target \
                selects makes its own." }
            (region("/deployments", "deployments", &["host", "unit", "deployment"], self.table(frame)))
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        (name == "deployments").then(|| self.table(frame))
    }
}

impl DeploymentsView {
    fn table(&self, frame: &PageFrame) -> Markup {
        html! {
            @if self.deployments.is_empty() {
                (empty("There are no deployments.", "Write a document with a name, a target and units, and apply it:",
                       "muster deployment apply till.yaml"))
            } @else {
                table.cards {
                    caption.visually-hidden { "Deployments" }
                    thead { tr { th scope="col" { "Deployment" } th scope="col" { "Version" } th scope="col" { "Units" }
                        th scope="col" { "Hosts" } th scope="col" { "Changed" } } }
                    tbody { @for one in &self.deployments { (row(one, frame)) } }
                }
            }
        }
    }
}

fn row(one: &Deployment, frame: &PageFrame) -> Markup {
    let total = one.hosts_total();
    html! {
        tr {
            th scope="row" { a href=(url(&one.deployment)) { (one.deployment) } }
            td.number data-label="Version" { (one.version.number) }
            td.number data-label="Units" { (one.units) }
            td data-label="Hosts" {
                @if total == 0 { span.note { "none is selected" } } @else {
                    (grouped(total)) " " (states(&one.hosts))
                }
            }
            td data-label="Changed" { (ago(one.version.applied_ms, frame.now_ms)) " by " (one.version.operator) }
        }
    }
}
