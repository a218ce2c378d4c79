//! Hosts whose documents the console did not make, and what a confirmation would do.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_api::{ConfirmAction, ConfirmedDocuments, UnconfirmedDeployment, UnconfirmedLabels};
use muster_topics::name::{Digest, LabelValue, Name};

use super::{
    deployment::{first_hosts, url},
    elements::{Tone, count, state},
    frame::{PageFrame, PageView, Section},
};

/// The most hosts that are named for one answer.
const NAMED_MAX: usize = 10;

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct ConfirmView {
    /// What would change.
    pub(in crate::web) planned: ConfirmedDocuments,
    /// Whether hosts would take what the console has.
    pub(in crate::web) replace: bool,
    /// What a confirmation has to find again.
    pub(in crate::web) digest: Digest,
}

impl PageView for ConfirmView {
    fn title(&self) -> String {
        "Confirm documents".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let hosts = count(self.planned.hosts.len() as u64, "host", "hosts");
        html! {
            h1 { "Confirm documents of hosts" }
            p { "These hosts have a document that this console did not make, because its store was lost or restored from a backup. They keep \
                running unchanged, and are sent nothing until they are confirmed." }
            @if self.planned.hosts.is_empty() && self.planned.waiting.is_empty() {
                div.empty { p { strong { "No host waits for confirmation." } " " a href="/deployments" { "All deployments" } } }
            } @else {
                (self.choice())
                (self.table())
                (first_hosts("Not sent yet, and so not confirmed", &self.planned.waiting, NAMED_MAX))
                @if self.has_conflict() {
                    p.note { "A version with two contents cannot be confirmed this way. Give hosts what the console has, or correct the hosts." }
                } @else if !self.planned.hosts.is_empty() {
                    (frame.form("/deployments/confirm", html! {
                        input type="hidden" name="replace" value=(if self.replace { "yes" } else { "" });
                        input type="hidden" name="shown" value=(self.digest);
                        button.danger type="submit" { "Confirm " (hosts) }
                    }))
                }
            }
        }
    }
}

impl ConfirmView {
    fn has_conflict(&self) -> bool {
        let mut all = self.planned.hosts.iter().flat_map(|host| &host.deployments);
        all.any(|one| one.action == ConfirmAction::Conflict)
    }

    fn choice(&self) -> Markup {
        let ways =
            [(false, "", "Take from hosts what the console lacks"), (true, "yes", "Give hosts what the console has")];
        html! {
            form.row method="get" action="/deployments/confirm" {
                label for="replace" { "What holds" }
                select #replace name="replace" {
                    @for (replace, value, words) in ways { option value=(value) selected[replace == self.replace] { (words) } }
                }
                button type="submit" { "Show" }
            }
        }
    }

    /// Renders what becomes of labels and of each deployment: one row for all hosts with the same answer.
    fn table(&self) -> Markup {
        let mut rows: BTreeMap<(String, String, String), (ConfirmRow<'_>, Vec<muster_api::NamedHost>)> =
            BTreeMap::new();
        for host in &self.planned.hosts {
            let labels = host.labels.iter().map(ConfirmRow::Labels);
            for row in labels.chain(host.deployments.iter().map(ConfirmRow::Deployment)) {
                let named = muster_api::NamedHost { host: host.host, hostname: host.hostname.clone() };
                rows.entry(row.key()).or_insert_with(|| (row, Vec::new())).1.push(named);
            }
        }
        let alone = self.planned.hosts.iter().filter(|host| host.deployments.is_empty()).count() as u64;
        html! {
            @if !rows.is_empty() {
                table.cards {
                    caption.visually-hidden { "What becomes of deployments and labels" }
                    thead { tr { th scope="col" { "What" } th scope="col" { "Hosts have" } th scope="col" { "Console has" } th scope="col" { "Then" }
                        th scope="col" { "Hosts" } } }
                    tbody {
                        @for (row, hosts) in rows.values() {
                            tr {
                                th scope="row" { (row.what()) }
                                td data-label="Hosts have" { (row.on_hosts()) }
                                td data-label="Console has" { (row.on_console()) }
                                td data-label="Then" { (action(row.action())) }
                                td data-label="Hosts" { (count(hosts.len() as u64, "host", "hosts")) (first_hosts("", hosts, NAMED_MAX)) }
                            }
                        }
                    }
                }
            }
            @if alone > 0 { p.note { (count(alone, "host has", "hosts have")) " no deployment, and would carry none." } }
        }
    }
}

/// What is confirmed of a host.
#[derive(Clone, Copy)]
enum ConfirmRow<'a> {
    Labels(&'a UnconfirmedLabels),
    Deployment(&'a UnconfirmedDeployment),
}

impl ConfirmRow<'_> {
    /// Rows with the same key say the same; labels come first.
    fn key(&self) -> (String, String, String) {
        let name = match self {
            Self::Labels(_) => String::new(),
            Self::Deployment(one) => one.deployment.to_string(),
        };
        (name, format!("{} {}", self.on_hosts().0, self.on_console().0), format!("{:?}", self.action()))
    }

    fn what(&self) -> Markup {
        html! {
            @match self {
                Self::Labels(_) => { "labels" }
                Self::Deployment(one) if one.console_version.is_some() => { a href=(url(&one.deployment)) { (one.deployment) } }
                Self::Deployment(one) => { (one.deployment) }
            }
        }
    }

    fn on_hosts(&self) -> Markup {
        match self {
            Self::Labels(one) => one.host.as_ref().map_or_else(|| html! { "not sent" }, labels),
            Self::Deployment(one) => version(one.host_version),
        }
    }

    fn on_console(&self) -> Markup {
        match self {
            Self::Labels(one) => labels(&one.console),
            Self::Deployment(one) => version(one.console_version),
        }
    }

    fn action(&self) -> ConfirmAction {
        match self {
            Self::Labels(one) => one.action,
            Self::Deployment(one) => one.action,
        }
    }
}

fn labels(labels: &BTreeMap<Name, LabelValue>) -> Markup {
    html! { @if labels.is_empty() { "none" } @else { ul.plain { @for (name, value) in labels { li { (name) "=" (value) } } } } }
}

fn version(number: Option<u32>) -> Markup {
    html! { @if let Some(number) = number { "version " (number) } @else { "none" } }
}

fn action(action: ConfirmAction) -> Markup {
    let (tone, words) = match action {
        ConfirmAction::Same => (Tone::Good, "it is the same"),
        ConfirmAction::Rebuild => (Tone::Busy, "the console takes what the hosts have"),
        ConfirmAction::Replace => (Tone::Busy, "the hosts get what the console has"),
        ConfirmAction::Add => (Tone::Busy, "the hosts get it"),
        ConfirmAction::Orphan => (Tone::Idle, "its units keep running as orphans"),
        ConfirmAction::Conflict => (Tone::Bad, "conflict: one version, two contents"),
        ConfirmAction::Remove => (Tone::Bad, "the hosts remove it"),
    };
    state(tone, words)
}
