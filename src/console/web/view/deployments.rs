//! All deployments.

use maud::{Markup, html};
use muster_api::{Deployment, HostCordon, host_names::HostNames};

use super::{
    deployment::{states, url},
    elements::{self, Tone, ago, count, empty, grouped, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    region::region,
};

/// The list.
#[derive(Clone, Debug)]
pub(in crate::web) struct DeploymentsView {
    /// By name.
    pub(in crate::web) deployments: Vec<Deployment>,
    /// The number of hosts with a document that the console did not make.
    pub(in crate::web) unconfirmed: u64,
    /// Hosts that get no new deployments, or none.
    pub(in crate::web) cordoned: Vec<HostCordon>,
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
            div.head {
                h1 { "Deployments" }
                a href="/deployments/changes" { "Changes" }
            }
            p { "A deployment says which units belong on which hosts. Each change of it is a version, which every host that \
                its target selects takes over." }
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
            @if self.unconfirmed > 0 {
                div.notice.bad {
                    p { (count(self.unconfirmed, "host has", "hosts have")) " a document that this console did not make, and " (if self.unconfirmed == 1 { "is" } else { "are" })
                        " sent nothing until confirmed. " a href="/deployments/confirm" { "Show what that would change" } }
                }
            }
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
            (self.cordons(frame))
        }
    }

    fn cordons(&self, frame: &PageFrame) -> Markup {
        let names = HostNames::new(self.cordoned.iter().map(|host| (host.host, host.hostname.as_str())));
        html! {
            @if !self.cordoned.is_empty() {
                section {
                    h2 { "Hosts that get no new deployments" }
                    ul.plain {
                        @for host in self.cordoned.iter().take(CORDONED_MAX) {
                            li {
                                a href=(elements::host_url(host.host)) { (names.show(host.host, &host.hostname)) } " "
                                (state(Tone::Busy, &host.cordon.words(host.leaving.len() as u64)))
                                @if let Some(set_ms) = host.set_ms { " " (ago(set_ms, frame.now_ms)) }
                                @if let Some(operator) = &host.operator { " by " (operator) }
                            }
                        }
                    }
                    @if self.cordoned.len() > CORDONED_MAX { p.note { "and " (grouped((self.cordoned.len() - CORDONED_MAX) as u64)) " more" } }
                }
            }
        }
    }
}

/// The most cordoned hosts that are listed.
const CORDONED_MAX: usize = 50;

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
