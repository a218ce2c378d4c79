//! The last plan of a deployment.

use maud::{Markup, html};
use muster_api::{DeploymentPlan, NamedHost, Plan, PlanGroup, PlannedDeployment, UnitAction, UnitPlan};

use super::{
    elements::{Tone, ago, grouped, host_url, state},
    frame::PageFrame,
};

/// The hosts of a group that are named.
const NAMED_MAX: usize = 20;

/// Renders the plan of one deployment.
pub(super) fn plan(plan: &Plan, one: &PlannedDeployment, frame: &PageFrame) -> Markup {
    html! {
        p {
            "Made " (ago(plan.made_ms, frame.now_ms)) " by " (plan.operator) ", of version " (one.change.version) ". "
            @if let Some(digest) = &plan.digest { "Its digest is " code { (digest) } "." }
        }
        @for of in &one.groups { (group(of, "alike")) }
        @for of in &one.away { (group(of, "offline: an estimate from their last reports")) }
        @if !one.unheard.is_empty() {
            h3 { (count(one.unheard.len())) " not asked: no report yet" }
            p { (hosts(&one.unheard)) }
        }
        @if !one.failed.is_empty() {
            h3 { (count(one.failed.len())) " without a plan" }
            ul { @for failure in &one.failed { li { a href=(host_url(failure.host.host)) { (failure.host.hostname) } ": " (format!("{:#}", failure.diagnostic)) } } }
        }
    }
}

fn count(hosts: usize) -> String {
    if hosts == 1 { "1 host".to_owned() } else { format!("{} hosts", grouped(hosts as u64)) }
}

fn group(group: &PlanGroup, word: &str) -> Markup {
    html! {
        h3 { (count(group.hosts.len())) " " (word) }
        p { (hosts(&group.hosts)) }
        (units(&group.plan))
    }
}

fn hosts(hosts: &[NamedHost]) -> Markup {
    html! {
        @for host in hosts.iter().take(NAMED_MAX) { a href=(host_url(host.host)) { (host.hostname) } " " }
        @if hosts.len() > NAMED_MAX { "and " (grouped((hosts.len() - NAMED_MAX) as u64)) " more" }
    }
}

fn units(plan: &DeploymentPlan) -> Markup {
    html! {
        @if let Some(why) = &plan.refused {
            p { (state(Tone::Bad, "refused")) " " (format!("{why:#}")) }
        } @else if !plan.is_change() {
            p { (state(Tone::Good, "nothing changes")) }
        } @else if plan.units.is_empty() {
            p { @for (action, number) in &plan.counts { (grouped(u64::from(*number))) " " (state(tone(*action), action.words())) " " } }
        } @else {
            table.cards {
                caption.visually-hidden { "Units that change" }
                thead { tr { th scope="col" { "Unit" } th scope="col" { "Action" } th scope="col" { "What changes" } } }
                tbody { @for unit in plan.units.iter().filter(|unit| unit.action.is_change()) { (row(unit)) } }
            }
            @if plan.is_cut { p.note { "The text is long; a part of it is left out." } }
        }
    }
}

fn row(unit: &UnitPlan) -> Markup {
    html! {
        tr {
            th scope="row" { (unit.unit) }
            td data-label="Action" { (state(tone(unit.action), unit.action.words())) @if let Some(why) = &unit.reason { " " (format!("{why:#}")) } }
            td data-label="What changes" {
                @for field in &unit.fields { div { (field) } }
                @for package in &unit.packages { div { (package) } }
                @for file in &unit.files {
                    div { code { (file.path) } ": " (file.sentence()) }
                    @if let Some(diff) = &file.diff {
                        pre.terminal role="region" tabindex="0" aria-label={ "Difference of " (file.path) } { (diff) }
                    }
                }
            }
        }
    }
}

fn tone(action: UnitAction) -> Tone {
    match action {
        UnitAction::Refuse | UnitAction::Conflict => Tone::Bad,
        UnitAction::Remove | UnitAction::Restart | UnitAction::Stop => Tone::Busy,
        UnitAction::Unchanged => Tone::Good,
        UnitAction::Replace
        | UnitAction::Create
        | UnitAction::Start
        | UnitAction::Change
        | UnitAction::Reload
        | UnitAction::InPlace => Tone::Idle,
    }
}
