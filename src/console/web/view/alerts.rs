//! Alerts: active ones, silences, ended ones, and the console's rules.

use std::collections::HashMap;

use maud::{Markup, html};
use muster_api::{Alert, AlertRule, AlertSilence, AlertStanding, Problem, host_names::HostNames};
use muster_topics::{
    alert::{AlertState, Severity},
    name::HostId,
};

use super::{
    elements::{self, Tone, ago, count, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    problem::notice,
    region::{encoded, region},
    rule,
};
use crate::{desired, store::alert::CONSOLE};

/// The choices of a silence's duration, in seconds.
pub(in crate::web) const TIMES: [(u64, &str); 5] =
    [(1_800, "30 minutes"), (7_200, "2 hours"), (28_800, "8 hours"), (86_400, "1 day"), (604_800, "7 days")];

/// The values of the form for silences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct SilenceForm {
    /// A host, by id or name.
    pub(in crate::web) host: String,
    /// A rule.
    pub(in crate::web) rule: String,
    /// Why.
    pub(in crate::web) reason: String,
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct AlertsView {
    /// Active alerts.
    pub(in crate::web) raised: Vec<Alert>,
    /// Alerts that were cleared last.
    pub(in crate::web) over: Vec<Alert>,
    /// Present and future silences.
    pub(in crate::web) silences: Vec<AlertSilence>,
    /// The console's rules.
    pub(in crate::web) rules: Vec<AlertRule>,
    /// Names of the hosts of silences and rules.
    pub(in crate::web) names: HashMap<HostId, String>,
    /// The values of the form.
    pub(in crate::web) form: SilenceForm,
    /// The problem of a refused request.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for AlertsView {
    fn title(&self) -> String {
        "Alerts".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Alerts)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Alerts" }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            (region("/alerts", "raised", &["alert"], self.raised(frame)))
            section #silence {
                h2 { "Silences" }
                p { "A silenced alert is still recorded and shown here, but nobody is notified. Leave a field empty to match everything." }
                (self.silence_form(frame))
                @if !self.silences.is_empty() { (self.silences(frame)) }
            }
            section {
                h2 { "Over" }
                (region("/alerts", "over", &["alert"], self.over(frame)))
            }
            section #rules {
                div.head {
                    h2 { "Rules" }
                    a.button href="/alerts/rule" { "Create a rule" }
                }
                (self.rules())
            }
            p { a href="/backups" { "Backups of the console" } }
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        match name {
            "raised" => Some(self.raised(frame)),
            "over" => Some(self.over(frame)),
            _ => None,
        }
    }
}

impl AlertsView {
    fn raised(&self, frame: &PageFrame) -> Markup {
        html! {
            @if self.raised.is_empty() {
                div.empty { p { strong { "No alerts are active." } } }
            } @else { (table(&self.raised, frame)) }
        }
    }

    fn over(&self, frame: &PageFrame) -> Markup {
        html! {
            @if self.over.is_empty() { p.note { "No alert has been cleared within the last three months." } }
            @else { (table(&self.over, frame)) }
        }
    }

    fn silence_form(&self, frame: &PageFrame) -> Markup {
        let SilenceForm { host, rule, reason } = &self.form;
        frame.form("/alerts/silence", html! {
            div.row {
                label for="host" { "Host" }
                input #host name="host" value=(host) placeholder="all hosts" autocapitalize="none" spellcheck="false";
                label for="rule" { "Rule" }
                input #rule name="rule" value=(rule) placeholder="all rules" autocapitalize="none" spellcheck="false";
                label for="for" { "For" }
                select #for name="for_s" {
                    @for (seconds, words) in TIMES { option value=(seconds) selected[seconds == 7_200] { (words) } }
                }
                label for="reason" { "Reason" }
                input #reason name="reason" value=(reason) required maxlength="1000";
                button.primary type="submit" { "Create" }
            }
        })
    }

    fn silences(&self, frame: &PageFrame) -> Markup {
        html! {
            table.cards {
                caption.visually-hidden { "Silences" }
                thead {
                    tr { th scope="col" { "Of" } th scope="col" { "Ends" } th scope="col" { "Reason" } th scope="col" { "By" } th scope="col" { "Remove" } }
                }
                tbody {
                    @for silence in &self.silences {
                        tr {
                            th scope="row" {
                                @match &silence.rule { Some(rule) => { (rule) } None => { "all rules" } }
                                " on "
                                @match silence.host {
                                    Some(host) => { a href=(elements::host_url(host)) { (self.hostname(host)) } }
                                    None => { "all hosts" }
                                }
                            }
                            td data-label="Ends" { (elements::due(silence.until_ms, frame.now_ms)) }
                            td data-label="Reason" { (silence.reason) }
                            td data-label="By" { (silence.operator) " " (ago(silence.created_ms, frame.now_ms)) }
                            td data-label="Remove" {
                                (frame.form(&format!("/alerts/silence/{}/remove", silence.id), html! {
                                    button type="submit" aria-label={ "Remove silence " (silence.id) } { "Remove" }
                                }))
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns a host's name; the id of a former member.
    fn hostname(&self, host: HostId) -> String {
        let names = HostNames::new(self.names.iter().map(|(host, name)| (*host, name.as_str())));
        self.names.get(&host).map_or_else(|| host.to_string(), |name| names.show(host, name))
    }

    fn rules(&self) -> Markup {
        html! {
            p { "A rule set here overrides the agents' built-in rule of the same name. A rule for one host overrides a rule for all hosts." }
            (rule::listing(&self.rules, &|host| self.hostname(host)))
        }
    }
}

pub(super) fn severity(severity: Severity, quiet: bool) -> Markup {
    let tone = match severity {
        _ if quiet => Tone::Idle,
        Severity::Critical => Tone::Bad,
        Severity::Warning => Tone::Busy,
        Severity::Info => Tone::Idle,
    };
    state(tone, severity.as_str())
}

/// Renders alerts, with possible actions.
pub(in crate::web) fn table(alerts: &[Alert], frame: &PageFrame) -> Markup {
    let is_raised = |alert: &Alert| alert.standing == AlertStanding::Raised;
    let names = HostNames::new(alerts.iter().map(|one| (one.host, one.hostname.as_str())));
    html! {
        table.cards {
            caption.visually-hidden { (count(alerts.len() as u64, "alert", "alerts")) }
            thead {
                tr { th scope="col" { "Severity" } th scope="col" { "What" } th scope="col" { "Where" } th scope="col" { "Since" }
                     th scope="col" { "State" } }
            }
            tbody {
                @for one in alerts {
                    tr id={ "alert-" (one.host) "-" (one.alert.id) "-" (one.alert.since_ms) } {
                        td data-label="Severity" { (severity(one.alert.severity, !is_raised(one) || one.silence.is_some())) }
                        th scope="row" { (format!("{:#}", one.alert.diagnostic)) " " span.note { (one.alert.rule) } }
                        td data-label="Where" {
                            @if let Some(page) = desired::alerts::page(&one.alert.rule) { a href=(page) { (one.hostname) } } @else if one.host == CONSOLE { (one.hostname) } @else { a href=(elements::host_url(one.host)) { (names.show(one.host, &one.hostname)) } }
                            @if let Some(unit) = &one.alert.unit { " " a href=(super::unit::url(one.host, unit)) { (unit) } }
                        }
                        td data-label="Since" { (ago(one.begun_ms(), frame.now_ms)) }
                        td data-label="State" { (standing(one, frame)) }
                    }
                }
            }
        }
    }
}

fn standing(one: &Alert, frame: &PageFrame) -> Markup {
    html! {
        @match (one.standing, &one.silence) {
            (AlertStanding::Raised, Some(silence)) => {
                (state(Tone::Idle, "silenced")) " ends " (elements::due(silence.until_ms, frame.now_ms)) ": " (silence.reason)
            }
            (AlertStanding::Raised, None) => {
                (state(Tone::Bad, "active")) " "
                a href={ "/alerts?host=" (one.host) "&rule=" (encoded(one.alert.rule.as_str())) "#silence" } { "silence" }
            }
            (AlertStanding::Cleared, _) => { (state(Tone::Good, "cleared")) " " (ended(one, frame)) }
            (AlertStanding::Gone, _) => { (state(Tone::Idle, "over")) " " (ended(one, frame)) }
        }
    }
}

fn ended(one: &Alert, frame: &PageFrame) -> Markup {
    let took_ms = one.ended_ms.map(|ended_ms| ended_ms.saturating_sub(one.begun_ms()));
    html! {
        @if let Some(ended_ms) = one.ended_ms { (ago(ended_ms, frame.now_ms)) }
        @if let Some(took_ms) = took_ms.filter(|_| one.alert.state == AlertState::Cleared) { ", after " (elements::span(took_ms.unsigned_abs())) }
    }
}
