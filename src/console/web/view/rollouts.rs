//! The last rollout of each deployment.

use maud::{Markup, html};
use muster_api::Rollout;

use super::{
    deployment,
    elements::{ago, empty, grouped},
    frame::{PageFrame, PageView, PageWatch, Section},
    region::region,
    rollout::{EVENTS, bar, outcomes, phase, phase_words, url},
};

/// The list.
#[derive(Clone, Debug)]
pub(in crate::web) struct RolloutsView {
    /// By deployment.
    pub(in crate::web) rollouts: Vec<Rollout>,
}

impl PageView for RolloutsView {
    fn title(&self) -> String {
        "Rollouts".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Rollouts)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Rollouts" }
            p { "A rollout brings a version of a deployment to its hosts, wave by wave: each host asks before it begins. This is the last one \
                of each deployment." }
            (region("/rollouts", "rollouts", &EVENTS, self.table(frame)))
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        (name == "rollouts").then(|| self.table(frame))
    }
}

impl RolloutsView {
    fn table(&self, frame: &PageFrame) -> Markup {
        // Those that go on stand first.
        let mut shown: Vec<&Rollout> = self.rollouts.iter().collect();
        shown.sort_by(|a, b| (a.phase.is_end(), &a.deployment).cmp(&(b.phase.is_end(), &b.deployment)));
        html! {
            @if shown.is_empty() {
                (empty("There are no rollouts.", "A deployment whose document has a policy below `rollout` has one for each version:",
                       "muster deployment apply till.yaml"))
            } @else {
                table.cards.rollouts {
                    caption.visually-hidden { "Rollouts" }
                    thead { tr { th scope="col" { "Deployment" } th scope="col" { "Version" } th scope="col" { "Phase" }
                        th scope="col" { "Hosts" } th scope="col" { "Began" } } }
                    tbody { @for one in &shown { (row(one, frame)) } }
                }
            }
        }
    }
}

fn row(one: &Rollout, frame: &PageFrame) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(url(&one.deployment)) { (one.deployment) } }
            td.number data-label="Version" {
                a href=(deployment::version_url(&one.deployment, one.version)) { (one.version) }
            }
            td data-label="Phase" { (phase(one)) " " span.note { (phase_words(one, frame)) } }
            td data-label="Hosts" {
                (bar(one))
                (grouped(one.ended())) " of " (grouped(one.hosts)) " have ended "
                (outcomes(&one.outcomes))
            }
            td data-label="Began" { (ago(one.begun_ms, frame.now_ms)) }
        }
    }
}
