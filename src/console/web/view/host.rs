//! One host: facts, measurements, units, recent commands.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_api::{Alert, Cordon, Host, HostConnection, HostLabel, LabelOrigin, Rollout, Unit};
use muster_topics::{
    admission::{AdmissionWait, AdmissionWaitKind},
    desired::{DeploymentName, DeploymentReport, RemovalTime},
    name::{NAME_MAX_BYTES, UnitName},
};

use super::super::chart::{latest::Latest, range::TimeRange};
use super::{
    alerts, commands, deployment,
    elements::{self, Tone, ago, bytes, empty, presence_since, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    region::region,
    rollout, unit,
};
use crate::web::ledger::ListedCommand;

pub(in crate::web) use super::measurements::{charts, latest};

/// How many commands a host's page lists.
pub(in crate::web) const RECENT: u32 = 10;

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct HostView {
    /// The host.
    pub(in crate::web) host: Host,
    /// Its active alerts.
    pub(in crate::web) alerts: Vec<Alert>,
    /// Its units.
    pub(in crate::web) units: Vec<Unit>,
    /// Its newest commands.
    pub(in crate::web) commands: Vec<ListedCommand>,
    /// Its latest measurements.
    pub(in crate::web) latest: Vec<Latest>,
    /// The last rollouts of its deployments.
    pub(in crate::web) rollouts: Vec<Rollout>,
    /// The range of its charts.
    pub(in crate::web) range: TimeRange,
}

impl PageView for HostView {
    fn title(&self) -> String {
        self.host.hostname.clone()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Hosts)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch { host: Some(self.host.id), command: None })
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let url = elements::host_url(self.host.id);
        html! {
            div.head {
                h1 { (self.host.hostname) }
                a.button href={ "/run?host=" (self.host.id) } { "Run a command" }
            }
            (region(&url, "facts", &["host"], self.facts(frame)))
            (self.labels(frame))
            (region(&url, "alerts", &["alert"], self.alerts(frame)))
            section {
                h2 { "Units" }
                (region(&url, "units", &["unit"], self.units(frame)))
            }
            (region(&url, "desired", &["host"], self.desired(frame)))
            (self.gate(frame))
            (region(&url, "containers", &["host"], self.containers()))
            section {
                div.head {
                    h2 { "Measurements" }
                    (self.range.links(&url))
                }
                (charts(&format!("{url}/charts"), self.range))
                (region(&url, "latest", &["metrics"], latest(&self.latest, frame)))
            }
            section {
                h2 { "Recent commands" }
                (region(&url, "recent", &["command"], self.recent(frame)))
            }
            (self.removal(frame))
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        match name {
            "facts" => Some(self.facts(frame)),
            "alerts" => Some(self.alerts(frame)),
            "units" => Some(self.units(frame)),
            "desired" => Some(self.desired(frame)),
            "containers" => Some(self.containers()),
            "latest" => Some(latest(&self.latest, frame)),
            "recent" => Some(self.recent(frame)),
            _ => None,
        }
    }
}

impl HostView {
    fn facts(&self, frame: &PageFrame) -> Markup {
        let (host, now_ms) = (&self.host, frame.now_ms);
        html! {
            dl.facts {
                div { dt { "State" } dd { (presence_since(host.presence.as_ref(), now_ms)) } }
                @if let Some(said) = &host.state {
                    @let (facts, at_ms) = (&said.value.facts, said.at_ms);
                    div { dt { "Last report" } dd { (ago(at_ms, now_ms)) } }
                    div { dt { "Booted" } dd { (ago(facts.boot_ms, now_ms)) } }
                    div { dt { "System" } dd { (facts.os) ", kernel " (facts.kernel) ", " (facts.arch) } }
                    div { dt { "Machine" } dd { (facts.cpus) " × " (facts.cpu_model) ", " (bytes(facts.memory_bytes)) " memory" } }
                    div { dt { "Network" } dd { (interfaces(&said.value.interfaces)) } }
                    div { dt { "Realms" } dd { @for realm in &said.value.realms { (realm) " " } } }
                }
                @if !host.labels.is_empty() {
                    div { dt { "Labels" } dd { ul.plain { @for one in &host.labels { li { (label(one)) } } } } }
                }
                @if let Some(cordon) = &host.cordon { div { dt { "Deployments" } dd { (elements::cordon(cordon)) " by " (cordon.operator) " " (ago(cordon.set_ms, now_ms)) } } }
                @if let Some(presence) = &host.presence {
                    div { dt { "Agent" } dd { "muster " (presence.agent_version) } }
                    div { dt { "Can do" } dd { (presence.abilities()) } }
                }
                div { dt { "Joined" } dd { (ago(host.joined_ms, now_ms)) } }
                div { dt { "Certificate" } dd { (certificate(host.certificate_expires_ms, now_ms)) } }
                div { dt { "Id" } dd { code { (host.id) } } }
            }
            @if host.presence.is_none() {
                p.note { "The host has joined, but its agent has never connected to the broker. The agent's log on the host says why." }
            }
        }
    }

    /// Renders the form for operators' labels. It is not a region: what an operator is typing stays.
    fn labels(&self, frame: &PageFrame) -> Markup {
        let url = format!("{}/label", elements::host_url(self.host.id));
        let given = self.host.labels.iter().filter(|label| label.origin == LabelOrigin::Console);
        html! {
            details {
                summary { "Change labels" }
                p.note { "Selectors and groups find hosts by their labels. A label that is set here replaces one of the same \
                    name in the agent's own configuration, which applies again when this one is removed. An offline host is told when it is online again." }
                (frame.form(&url, html! {
                    div.field {
                        label for="label-name" { "Label" }
                        input id="label-name" type="text" name="name" placeholder="canary" required autocapitalize="none" spellcheck="false" maxlength=(NAME_MAX_BYTES);
                    }
                    div.field {
                        label for="label-value" { "Value" }
                        input id="label-value" type="text" name="value" placeholder="yes" required autocapitalize="none" spellcheck="false" maxlength=(NAME_MAX_BYTES);
                    }
                    label { input type="checkbox" name="replace" value="yes"; " Replace an existing value" }
                    button type="submit" { "Set label" }
                }))
                @for label in given {
                    (frame.form(&url, html! {
                        input type="hidden" name="remove" value=(label.name);
                        button type="submit" { "Remove " (label.name) "=" (label.value) }
                    }))
                }
            }
        }
    }

    fn alerts(&self, frame: &PageFrame) -> Markup {
        html! {
            @if !self.alerts.is_empty() {
                section {
                    h2 { (elements::count(self.alerts.len() as u64, "alert", "alerts")) }
                    (alerts::table(&self.alerts, frame))
                }
            }
        }
    }

    fn units(&self, frame: &PageFrame) -> Markup {
        html! {
            @if self.units.is_empty() {
                (empty("No units here.", "Give it a program to keep running:", &format!(
                    "muster artifact create ./server --role server --version 1\nmuster unit create yuno {}:default/server --artifact server@1 --run", self.host.hostname)))
            } @else {
                (unit::table(&self.units, frame))
            }
        }
    }

    /// Renders what the host says of its document: deployments, what it has refused, and what is to go; and the rollouts that
    /// it is one of, of which it may know nothing yet.
    fn desired(&self, frame: &PageFrame) -> Markup {
        let report = self.host.state.as_ref().map(|said| &said.value.desired);
        let report = report.filter(|report| report.mark.generation > 0 || report.refused.is_some());
        let carried = report.map(|report| &report.deployments).into_iter().flatten();
        let mut deployments: BTreeMap<&DeploymentName, Option<&DeploymentReport>> =
            carried.map(|(name, one)| (name, Some(one))).collect();
        for rollout in &self.rollouts {
            deployments.entry(&rollout.deployment).or_default();
        }
        html! {
            @if report.is_some() || !deployments.is_empty() {
                section {
                    h2 { "Deployments" }
                    @if let Some((report, refused)) = report.and_then(|report| Some((report, report.refused.as_ref()?))) {
                        div.notice.bad {
                            p { "The host has refused document " (refused.mark) ": " (format!("{:#}", refused.diagnostic)) }
                            p.note { "It keeps document " (report.mark) "." }
                        }
                    }
                    @if deployments.is_empty() { p.note { "This host carries no deployment." } } @else {
                        table.cards {
                            caption.visually-hidden { "Deployments of this host" }
                            thead { tr { th scope="col" { "Deployment" } th scope="col" { "Version" } th scope="col" { "Rollout" } } }
                            tbody { @for (name, one) in deployments { (self.carried(name, one, frame)) } }
                        }
                    }
                    @if let Some(report) = report { (removals(&report.removals, frame)) }
                }
            }
        }
    }

    fn carried(&self, name: &DeploymentName, report: Option<&DeploymentReport>, frame: &PageFrame) -> Markup {
        let rollout = self.rollouts.iter().find(|rollout| rollout.deployment == *name);
        html! {
            tr {
                th scope="row" { a href=(deployment::url(name)) { (name) } }
                td data-label="Version" {
                    @match report {
                        Some(one) if one.version > 0 => (one.version),
                        _ => "none",
                    }
                    @if let Some(refused) = report.and_then(|one| one.refused.as_ref()) {
                        " " (state(Tone::Bad, &format!("version {} refused", refused.version)))
                        p.why { (format!("{:#}", refused.diagnostic)) }
                    }
                    @if let Some(wait) = report.and_then(|one| one.waits.as_ref()) { (waits(wait, frame)) }
                }
                td data-label="Rollout" {
                    @if let Some(of) = rollout { a href=(rollout::url(name)) { "version " (of.version) } " " (rollout::phase(of)) }
                    @else { "–" }
                }
            }
        }
    }

    /// Renders the forms that keep deployments from the host. They are not a region: they stay as the page was made.
    fn gate(&self, frame: &PageFrame) -> Markup {
        let url = elements::host_url(self.host.id);
        let now = self.host.cordon.as_ref().map_or(Cordon::Open, |cordon| cordon.cordon);
        let set = |to: Cordon, what: &str| {
            frame.form(
                &format!("{url}/cordon"),
                html! {
                    input type="hidden" name="cordon" value=(to.word());
                    button type="submit" { (what) }
                },
            )
        };
        html! {
            details {
                summary { "Keep deployments away" }
                p.note { "A cordoned host keeps the deployments that it has, with their new versions, and gets no others. A drained one \
                    removes their units, too." }
                div.actions {
                    @if now != Cordon::Cordoned { (set(Cordon::Cordoned, "Cordon")) }
                    @if now != Cordon::Open { (set(Cordon::Open, "Uncordon")) }
                    @if now != Cordon::Drained { a.button href={ (url) "/drain" } { "Drain…" } }
                }
            }
        }
    }

    /// Renders containers that are not units.
    fn containers(&self) -> Markup {
        let all = self.host.state.iter().flat_map(|said| &said.value.containers);
        let others: Vec<_> = all.filter(|(_, summary)| summary.unit.is_none()).collect();
        html! {
            @if !others.is_empty() {
                section {
                    h2 { "Other containers" }
                    p.note { "These containers are not managed by muster and are left alone. `muster container adopt` turns one into a unit." }
                    table.cards {
                        caption.visually-hidden { "Containers that belong to no unit" }
                        thead { tr { th scope="col" { "Container" } th scope="col" { "Is" } th scope="col" { "Runtime" } th scope="col" { "Image" } } }
                        tbody {
                            @for (name, summary) in others {
                                tr {
                                    th scope="row" { (name) }
                                    td data-label="Is" { (summary.state.as_str()) }
                                    td data-label="Runtime" { (summary.runtime) }
                                    td data-label="Image" { (summary.image) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Renders the removal of an offline host. It is not a region: what an operator has opened stays open.
    fn removal(&self, frame: &PageFrame) -> Markup {
        let is_there = self.host.presence.as_ref().is_some_and(|presence| presence.state == HostConnection::Online);
        html! {
            @if !is_there {
                details {
                    summary { "Remove this host" }
                    p.note { "For a host that is gone for good: its certificates are revoked, and its records \
                        are deleted. Its commands stay in the list, and its measurements for the usual retention." }
                    (frame.form(&format!("{}/remove", elements::host_url(self.host.id)), html! {
                        button type="submit" { "Remove " (self.host.hostname) }
                    }))
                }
            }
        }
    }

    fn recent(&self, frame: &PageFrame) -> Markup {
        html! {
            @if self.commands.is_empty() {
                (empty("No commands for this host yet.", "Run a program on it:",
                       &format!("muster exec --host {} -- uname -a", self.host.hostname)))
            } @else {
                (commands::table(&self.commands, frame))
            }
        }
    }
}

/// What draining a host would remove, and the button for it.
#[derive(Clone, Debug)]
pub(in crate::web) struct DrainView {
    /// The host.
    pub(in crate::web) host: Host,
    /// The deployments that it carries, with their units there.
    pub(in crate::web) carried: Vec<(DeploymentName, Vec<UnitName>)>,
}

impl PageView for DrainView {
    fn title(&self) -> String {
        format!("Drain {}", self.host.hostname)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Hosts)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let url = elements::host_url(self.host.id);
        html! {
            h1 { "Drain " a href=(url) { (self.host.hostname) } }
            @if self.carried.is_empty() { p { "It carries no deployment, and gets no new ones." } } @else {
                p { "It removes these units, and gets no more deployments:" }
                ul.plain {
                    @for (name, units) in &self.carried {
                        li { a href=(deployment::url(name)) { (name) } ": " @for unit in units { code { (unit) } " " } }
                    }
                }
                p.note { "The host removes them at once; their data stays. Units that verbs created stay, and so do units \
                    that a hold or a snapshot keeps." }
            }
            (frame.form(&format!("{url}/cordon"), html! {
                input type="hidden" name="cordon" value=(Cordon::Drained.word());
                button.danger type="submit" { "Drain " (self.host.hostname) }
            }))
        }
    }
}

/// Renders that a host has not begun with a version, and why.
fn waits(wait: &AdmissionWait, frame: &PageFrame) -> Markup {
    let (tone, what) = match wait.kind {
        AdmissionWaitKind::Preparing => (Tone::Busy, "prepares"),
        AdmissionWaitKind::Policy => (Tone::Idle, "its own policy delays"),
        AdmissionWaitKind::PlanChanged => (Tone::Bad, "its changes differ from the plan of"),
        AdmissionWaitKind::Admission => (Tone::Idle, "waits to begin with"),
    };
    html! {
        " " (state(tone, &format!("{what} version {}", wait.version))) " " (ago(wait.since_ms, frame.now_ms))
        @if let Some(told) = &wait.diagnostic { p.note { (format!("{told:#}")) } }
    }
}

/// Renders units that are to go, and what that waits for.
fn removals(removals: &BTreeMap<UnitName, RemovalTime>, frame: &PageFrame) -> Markup {
    html! {
        @if !removals.is_empty() {
            h3 { "To be removed" }
            ul.plain {
                @for (unit, time) in removals {
                    li {
                        code { (unit) } " "
                        @match time.from_ms {
                            Some(from_ms) if from_ms > frame.now_ms => {
                                (state(Tone::Busy, "waits")) " for the host's policy, which allows it " (elements::due(from_ms, frame.now_ms))
                            }
                            Some(_) => { (state(Tone::Busy, "removing")) }
                            None => { (state(Tone::Busy, "waits")) " for an operator: retire and remove it on its page" }
                        }
                    }
                }
            }
        }
    }
}

/// Renders a label, with its origin.
fn label(label: &HostLabel) -> Markup {
    html! {
        code { (label.name) "=" (label.value) }
        @if let Some(operator) = &label.operator { " set by " (operator) }
        @if let Some(hides) = &label.hides { " instead of the agent's own " code { (label.name) "=" (hides) } }
    }
}

/// Renders interfaces with addresses: machines have many without.
fn interfaces(interfaces: &std::collections::BTreeMap<String, muster_topics::heartbeat::Interface>) -> Markup {
    let reachable: Vec<_> = interfaces.iter().filter(|(_, interface)| !interface.addresses.is_empty()).collect();
    html! {
        @if reachable.is_empty() { "no addresses" } @else {
            ul.plain {
                @for (name, interface) in reachable { li { (name) " " (interface.addresses.join(", ")) } }
            }
        }
    }
}

fn certificate(expires_ms: i64, now_ms: i64) -> Markup {
    html! {
        @if expires_ms == 0 { (state(Tone::Bad, "revoked")) }
        @else if expires_ms <= now_ms { (state(Tone::Bad, "expired")) " " (elements::due(expires_ms, now_ms)) }
        @else { "expires " (elements::due(expires_ms, now_ms)) }
    }
}
