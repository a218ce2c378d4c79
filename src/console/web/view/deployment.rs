//! One deployment: its hosts with their states, its units, its versions; one version; and what a rollback or a removal would do.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_api::{
    AppliedDeployment, DeploymentDetail, DeploymentDifferences, DeploymentHost, DeploymentState, DeploymentUnitChange,
    DeploymentVersionDetail, DeploymentVersionInfo, FieldDifference, NamedHost, Plan, RemovedDeployment, Rollout,
    UnitChange, UnitPlacement, host_names::HostNames,
};
use muster_topics::{
    desired::{DeploymentName, DeploymentUnit, UnitOwner},
    select::SELECT_MAX_BYTES,
    unit::Content,
};
use serde_json::Value;

use super::{
    elements::{self, Tone, ago, cli, count, grouped, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    plan,
    region::{encoded, region},
    rollout,
};

/// The hosts of one page: a screen or two.
pub(in crate::web) const PAGE_HOSTS: usize = 100;

/// The path of a deployment's page.
pub(in crate::web) fn url(deployment: &DeploymentName) -> String {
    format!("/deployment/{deployment}")
}

/// The path of a version's page.
pub(super) fn version_url(deployment: &DeploymentName, number: u32) -> String {
    format!("{}/version/{number}", url(deployment))
}

/// The colour of a state.
pub(in crate::web) fn tone(state: DeploymentState) -> Tone {
    match state {
        DeploymentState::Failed | DeploymentState::Refused | DeploymentState::Conflict | DeploymentState::Cannot => {
            Tone::Bad
        }
        DeploymentState::Unconfirmed
        | DeploymentState::Held
        | DeploymentState::Away
        | DeploymentState::Pending
        | DeploymentState::Waiting
        | DeploymentState::Changing
        | DeploymentState::Removing => Tone::Busy,
        DeploymentState::Orphan => Tone::Idle,
        DeploymentState::Verified => Tone::Good,
    }
}

/// Renders the number of hosts in each state.
pub(super) fn states(counts: &BTreeMap<DeploymentState, u64>) -> Markup {
    html! {
        span.summary {
            @for (of, number) in counts { (state(tone(*of), &format!("{} {}", grouped(*number), of.word()))) " " }
        }
    }
}

/// Renders the deployment that a unit belongs to.
pub(super) fn owner(owner: &UnitOwner) -> Markup {
    html! {
        a href=(url(&owner.deployment)) { (owner.deployment) } ", version " (owner.version)
        @if owner.orphan { " " (state(Tone::Busy, "orphan")) }
    }
}

/// The hosts that are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct ShownDeploymentHosts {
    /// Those in this state alone.
    pub(in crate::web) state: Option<DeploymentState>,
    /// The page, from 1.
    pub(in crate::web) page: usize,
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct DeploymentView {
    /// The deployment; of its hosts all.
    pub(in crate::web) detail: DeploymentDetail,
    /// Its versions, the newest first.
    pub(in crate::web) versions: Vec<DeploymentVersionInfo>,
    /// Its last rollout, if it has one.
    pub(in crate::web) rollout: Option<Rollout>,
    /// Its last plan, if that is still kept.
    pub(in crate::web) plan: Option<Plan>,
    /// The hosts that are shown.
    pub(in crate::web) shown: ShownDeploymentHosts,
}

impl PageView for DeploymentView {
    fn title(&self) -> String {
        format!("Deployment {}", self.name())
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let of = &self.detail.deployment;
        html! {
            div.head {
                h1 { (of.deployment) }
                div.actions {
                    @if self.versions.len() > 1 { a.button href={ (url(&of.deployment)) "/rollback" } { "Roll back…" } " " }
                    a.button href={ (url(&of.deployment)) "/removal" } { "Remove…" }
                }
            }
            dl.facts {
                div { dt { "Version" } dd { (version(of.deployment.clone(), &of.version, frame)) } }
                div { dt { "Target" } dd { code { (of.select) } } }
            }
            section {
                h2 { "Hosts" }
                (region(&self.shown_url(&self.shown), "hosts", &["host", "unit", "deployment"], self.hosts(frame)))
            }
            @if !self.detail.placement.is_empty() {
                section {
                    h2 { "Placement" }
                    (placement(&self.detail.placement))
                }
            }
            section {
                h2 { "Units" }
                (content(&self.detail.content))
                p { a href={ "/units?deployment=" (encoded(of.deployment.as_str())) } { "Show them on all hosts" } }
                (self.attaching(frame))
            }
            @if let Some((plan, one)) = self.plan.as_ref().and_then(|plan| Some((plan, plan.deployment(self.name())?))) {
                section {
                    h2 { "Last plan" }
                    (plan::plan(plan, one, frame))
                }
            }
            section {
                h2 { "Versions" }
                (self.history(frame))
            }
            section {
                h2 { "Document" }
                p.note { "Change it, and apply it with " code { "muster deployment apply FILE" } "." }
                (json("Document", &self.detail.document))
            }
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        (name == "hosts").then(|| self.hosts(frame))
    }
}

impl DeploymentView {
    fn name(&self) -> &DeploymentName {
        &self.detail.deployment.deployment
    }

    fn shown_url(&self, shown: &ShownDeploymentHosts) -> String {
        let state = shown.state.map(|state| format!("state={}", state.word()));
        let page = (shown.page > 1).then(|| format!("page={}", shown.page));
        let query: Vec<String> = state.into_iter().chain(page).collect();
        let url = url(self.name());
        if query.is_empty() { url } else { format!("{url}?{}", query.join("&")) }
    }

    fn hosts(&self, frame: &PageFrame) -> Markup {
        let all = &self.detail.on_hosts;
        let mut found: Vec<&DeploymentHost> =
            all.iter().filter(|host| self.shown.state.is_none_or(|state| host.state == state)).collect();
        // Those that need somebody stand first.
        found.sort_by(|a, b| (a.state, &a.hostname, a.host).cmp(&(b.state, &b.hostname, b.host)));
        let first = (self.shown.page.max(1) - 1).saturating_mul(PAGE_HOSTS).min(found.len());
        let names = HostNames::new(all.iter().map(|host| (host.host, host.hostname.as_str())));
        let page: Vec<&DeploymentHost> = found[first..].iter().take(PAGE_HOSTS).copied().collect();
        html! {
            @if let Some(rollout) = &self.rollout { (rollout::line(rollout, frame)) }
            (self.tiles())
            @if all.is_empty() {
                div.empty { p { strong { "No host is selected by the target." } " Set labels on a host's page, or with:" }
                    (cli("muster host label till-7 role=till")) }
            } @else if page.is_empty() {
                p { "No host is in this state. " a href=(url(self.name())) { "Show all" } }
            } @else {
                table.cards {
                    caption.visually-hidden { "Hosts of the deployment" }
                    thead { tr { th scope="col" { "Host" } th scope="col" { "State" } th scope="col" { "Why" } th scope="col" { "Has version" }
                        th scope="col" { "Should have" } } }
                    tbody { @for host in &page { (row(host, &names, frame)) } }
                }
                (self.pages(first, page.len(), found.len()))
            }
        }
    }

    /// Renders the number of hosts in each state; each shows those alone.
    fn tiles(&self) -> Markup {
        let counts = &self.detail.deployment.hosts;
        let to = |state| self.shown_url(&ShownDeploymentHosts { state, page: 1 });
        html! {
            ul.tiles aria-label="Hosts by state" {
                @for (of, number) in counts {
                    li { a href=(to(Some(*of))) aria-current=[(self.shown.state == Some(*of)).then_some("true")] {
                        span.number { (grouped(*number)) } " " (state(tone(*of), of.word()))
                    } }
                }
                @if self.shown.state.is_some() { li { a href=(to(None)) { "Show all" } } }
            }
        }
    }

    fn pages(&self, first: usize, shown: usize, found: usize) -> Markup {
        let page = self.shown.page.max(1);
        let to = |page| self.shown_url(&ShownDeploymentHosts { page, ..self.shown.clone() });
        html! {
            @if found > shown {
                nav.pages aria-label="Pages of hosts" {
                    @if page > 1 { a href=(to(page - 1)) rel="prev" { "← previous" } } " "
                    span { (grouped(first as u64 + 1)) "–" (grouped((first + shown) as u64)) " of " (grouped(found as u64)) }
                    " " @if first + shown < found { a href=(to(page + 1)) rel="next" { "next →" } }
                }
            }
        }
    }

    /// Renders the form that adopts or detaches a unit on some hosts. It is not a region.
    fn attaching(&self, frame: &PageFrame) -> Markup {
        html! {
            details {
                summary { "Adopt or detach a unit on some hosts" }
                p.note { "Adopting takes over a unit of this name that a verb has created, or one that was detached. A detached unit keeps \
                    running, and only verbs change it." }
                (frame.form(&format!("{}/unit", url(self.name())), html! {
                    div.options {
                        div.field {
                            label for="unit" { "Unit" }
                            select #unit name="unit" {
                                @for unit in &self.detail.content { option value=(unit.unit) { (unit.unit) } }
                            }
                        }
                        div.field {
                            label for="on-hosts" { "Hosts, by name or id" }
                            input #on-hosts type="text" name="hosts" autocapitalize="none" spellcheck="false" placeholder="till-7 till-8";
                        }
                        div.field {
                            label for="select" { "or all that this selects" }
                            input #select type="text" name="select" maxlength=(SELECT_MAX_BYTES) autocapitalize="none" spellcheck="false" placeholder="label.site=north";
                        }
                        div.actions {
                            button type="submit" name="do" value="adopt" { "Adopt" }
                            button type="submit" name="do" value="detach" { "Detach" }
                        }
                    }
                }))
            }
        }
    }

    fn history(&self, frame: &PageFrame) -> Markup {
        let present = self.detail.deployment.version.number;
        html! {
            table.cards {
                caption.visually-hidden { "Versions" }
                thead { tr { th scope="col" { "Version" } th scope="col" { "Applied" } th scope="col" { "Content" } th scope="col" { "Digest" } } }
                tbody {
                    @for one in &self.versions {
                        tr {
                            th scope="row" { a href=(version_url(self.name(), one.number)) { (one.number) } }
                            td data-label="Applied" { (ago(one.applied_ms, frame.now_ms)) " by " (one.operator) }
                            td data-label="Content" {
                                @if one.number == present { (state(Tone::Good, "present")) " " }
                                @if let Some(number) = one.repeats { "as version " (number) }
                            }
                            td data-label="Digest" { code { (one.digest.short()) } }
                        }
                    }
                }
            }
        }
    }
}

fn row(host: &DeploymentHost, names: &HostNames<'_>, frame: &PageFrame) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(elements::host_url(host.host)) { (names.show(host.host, &host.hostname)) } }
            td data-label="State" {
                (state(tone(host.state), host.state.word()))
                @if let Some(at_ms) = host.away_since_ms { " offline since " (ago(at_ms, frame.now_ms)) }
            }
            td data-label="Why" {
                @if let Some(reason) = &host.reason { (format!("{reason:#}")) } @else { "–" }
                @if !host.instances.is_empty() { br; @for name in &host.instances { code { (name) } " " } }
            }
            td.number data-label="Has version" { @if host.version > 0 { (host.version) } @else { "none" } }
            td.number data-label="Should have" { @if let Some(wanted) = host.wanted { (wanted) } @else { "none" } }
        }
    }
}

fn version(deployment: DeploymentName, version: &DeploymentVersionInfo, frame: &PageFrame) -> Markup {
    html! {
        a href=(version_url(&deployment, version.number)) { (version.number) }
        ", applied " (ago(version.applied_ms, frame.now_ms)) " by " (version.operator)
        @if let Some(number) = version.repeats { ", as version " (number) }
    }
}

fn placement(units: &[UnitPlacement]) -> Markup {
    html! {
        table.cards {
            caption.visually-hidden { "Instances that the console places" }
            thead { tr { th scope="col" { "Unit" } th scope="col" { "Placed" } th scope="col" { "Waiting" } th scope="col" { "Why" } } }
            tbody {
                @for unit in units {
                    tr {
                        th scope="row" { (unit.unit) }
                        td.number data-label="Placed" { (unit.placed) " of " (unit.count) }
                        td data-label="Waiting" { @for name in &unit.waiting { (name) " " } }
                        td data-label="Why" { @if unit.has_waiting() { (unit.why()) } @else { "–" } }
                    }
                }
            }
        }
    }
}

fn content(units: &[DeploymentUnit]) -> Markup {
    html! {
        table.cards {
            caption.visually-hidden { "Units of the deployment" }
            thead { tr { th scope="col" { "Unit" } th scope="col" { "What" } th scope="col" { "Should be" } } }
            tbody {
                @for unit in units {
                    @let content = Content::of(&unit.spec);
                    tr {
                        th scope="row" { (unit.unit) }
                        td data-label="What" { (content.artifact) @for config in &content.configs { " " code { (config) } } }
                        td data-label="Should be" { (elements::wanted(unit.run)) }
                    }
                }
            }
        }
    }
}

pub(super) fn json(label: &str, document: &Value) -> Markup {
    let text = serde_json::to_string_pretty(document).unwrap_or_default();
    html! { pre.terminal role="region" tabindex="0" aria-label=(label) { (text) } }
}

/// One version.
#[derive(Clone, Debug)]
pub(in crate::web) struct VersionView {
    /// The deployment.
    pub(in crate::web) deployment: DeploymentName,
    /// The version.
    pub(in crate::web) version: DeploymentVersionDetail,
    /// How it differs from the one before it.
    pub(in crate::web) differences: DeploymentDifferences,
    /// The number of the present version.
    pub(in crate::web) present: u32,
}

impl PageView for VersionView {
    fn title(&self) -> String {
        format!("Version {} of {}", self.version.version.number, self.deployment)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let info = &self.version.version;
        let url = url(&self.deployment);
        html! {
            div.head {
                h1 { "Version " (info.number) " of " a href=(url) { (self.deployment) } }
                @if info.number != self.present {
                    a.button href={ (url) "/rollback?to=" (info.number) } { "Roll back to it…" }
                }
            }
            dl.facts {
                div { dt { "Applied" } dd { (ago(info.applied_ms, frame.now_ms)) " by " (info.operator) } }
                div { dt { "Target" } dd { code { (self.version.select) } } }
                @if info.number == self.present { div { dt { "State" } dd { (state(Tone::Good, "present")) } } }
                @if let Some(number) = info.repeats {
                    div { dt { "Content" } dd { "as " a href=(version_url(&self.deployment, number)) { "version " (number) } } }
                }
                div { dt { "Digest" } dd { code { (info.digest) } } }
            }
            section {
                h2 {
                    @if self.differences.from == 0 { "The first version" } @else { "Differences to version " (self.differences.from) }
                }
                (changes(self.differences.select.as_ref(), &self.differences.units))
            }
            section {
                h2 { "Units" }
                (content(&self.version.content))
            }
            section {
                h2 { "Document" }
                (json("Document", &self.version.document))
            }
        }
    }
}

/// Renders what changes between two versions.
fn changes(select: Option<&FieldDifference>, units: &[DeploymentUnitChange]) -> Markup {
    let changed: Vec<&DeploymentUnitChange> =
        units.iter().filter(|unit| unit.change != UnitChange::Unchanged).collect();
    let unchanged = (units.len() - changed.len()) as u64;
    html! {
        @if let Some(select) = select { p { "The target changes: " (difference(select)) } }
        @if changed.is_empty() {
            @if select.is_none() { p.note { "Nothing differs." } }
        } @else {
            table.cards {
                caption.visually-hidden { "Changed units" }
                thead { tr { th scope="col" { "Unit" } th scope="col" { "Change" } th scope="col" { "Fields" } } }
                tbody {
                    @for unit in changed {
                        tr {
                            th scope="row" { (unit.unit) }
                            td data-label="Change" {
                                (change(unit.change))
                                @if let (UnitChange::Change, Some(cost)) = (unit.change, unit.cost) { " " span.note { (cost.words()) } }
                            }
                            td data-label="Fields" {
                                ul.plain { @for field in &unit.differences { li { (difference(field)) } } }
                            }
                        }
                    }
                }
            }
        }
        @if unchanged > 0 { p.note { (count(unchanged, "unit stays", "units stay")) " as " @if unchanged == 1 { "it is." } @else { "they are." } } }
    }
}

fn change(change: UnitChange) -> Markup {
    let tone = match change {
        UnitChange::Create => Tone::Good,
        UnitChange::Change => Tone::Busy,
        UnitChange::Remove => Tone::Bad,
        UnitChange::Unchanged => Tone::Idle,
    };
    state(tone, change.word())
}

fn difference(difference: &FieldDifference) -> Markup {
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    html! {
        (difference.field) ": "
        @if let Some(from) = &difference.from { code { (shown(from)) } " → " }
        @if let Some(to) = &difference.to { code { (shown(to)) } } @else { "nothing" }
    }
}

/// What a rollback would do, and the button for it.
#[derive(Clone, Debug)]
pub(in crate::web) struct RollbackView {
    /// The deployment.
    pub(in crate::web) deployment: DeploymentName,
    /// Its versions, the newest first.
    pub(in crate::web) versions: Vec<DeploymentVersionInfo>,
    /// The version to go back to.
    pub(in crate::web) to: u32,
    /// What would change.
    pub(in crate::web) planned: AppliedDeployment,
}

impl PageView for RollbackView {
    fn title(&self) -> String {
        format!("Roll back {}", self.deployment)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let url = url(&self.deployment);
        let earlier = self.versions.iter().skip(1);
        html! {
            h1 { "Roll back " a href=(url) { (self.deployment) } }
            form.row method="get" action={ (url) "/rollback" } {
                label for="to" { "To version" }
                select #to name="to" {
                    @for one in earlier { option value=(one.number) selected[one.number == self.to] { (one.number) } }
                }
                button type="submit" { "Show" }
            }
            p { "This makes version " (self.planned.version) ", with the content of version " (self.to) ", on "
                (count(self.planned.hosts, "host", "hosts")) "." }
            @for note in &self.planned.notes { p.note { (note) } }
            (changes(self.planned.select.as_ref(), &self.planned.units))
            (some_hosts("New hosts", &self.planned.gains))
            (some_hosts("Hosts that lose it", &self.planned.loses))
            (frame.form(&format!("{url}/rollback"), html! {
                input type="hidden" name="to" value=(self.to);
                input type="hidden" name="version" value=(self.planned.version);
                button.primary type="submit" { "Roll back to version " (self.to) }
            }))
        }
    }
}

/// What a removal would do, and the button for it.
#[derive(Clone, Debug)]
pub(in crate::web) struct RemovalView {
    /// What would be removed.
    pub(in crate::web) planned: RemovedDeployment,
}

impl PageView for RemovalView {
    fn title(&self) -> String {
        format!("Remove {}", self.planned.deployment)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Deployments)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let RemovedDeployment { deployment, units, hosts } = &self.planned;
        let url = url(deployment);
        html! {
            h1 { "Remove " a href=(url) { (deployment) } }
            p { (count(units.len() as u64, "unit", "units")) " on " (count(hosts.len() as u64, "host", "hosts"))
                ": " @for unit in units { code { (unit) } " " } }
            (some_hosts("Hosts", hosts))
            (frame.form(&format!("{url}/removal"), html! {
                fieldset {
                    legend { "Units" }
                    label.choice { input type="radio" name="units" value="remove" checked; " Stop and remove them; their data stays" }
                    label.choice { input type="radio" name="units" value="purge"; " Stop and remove them, with their data" }
                    label.choice { input type="radio" name="units" value="keep"; " Keep them running, without an owner" }
                }
                p.note { "Each host removes units one after the other, as its policy allows. Its page shows which wait." }
                button.danger type="submit" { "Remove " (deployment) }
            }))
        }
    }
}

/// The most hosts that are named one by one.
const NAMED_MAX: usize = 50;

fn some_hosts(what: &str, hosts: &[NamedHost]) -> Markup {
    first_hosts(what, hosts, NAMED_MAX)
}

/// Renders the first hosts, and how many more there are.
pub(super) fn first_hosts(what: &str, hosts: &[NamedHost], most: usize) -> Markup {
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    html! {
        @if !hosts.is_empty() {
            p {
                @if !what.is_empty() { (what) ": " }
                @for host in hosts.iter().take(most) {
                    a href=(elements::host_url(host.host)) { (names.show(host.host, &host.hostname)) } " "
                }
                @if hosts.len() > most { "and " (grouped((hosts.len() - most) as u64)) " more" }
            }
        }
    }
}
