//! All hosts: the first page, which answers "is all well, and if not, where?"

use maud::{Markup, html};
use muster_api::{Host, Status, Unit, host_names::HostNames};
use muster_topics::unit::Phase;

use super::{
    elements::{self, Tone, ago, count, empty, grouped, presence_since, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    glance::FleetGlance,
    problem,
    region::{encoded, region, region_every},
};

/// The hosts of one page: a screen or two, and what stays fast on a telephone.
pub(in crate::web) const PAGE_HOSTS: u32 = 100;

/// The filter of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct ShownHosts {
    /// The search text.
    pub(in crate::web) text: String,
    /// Only online hosts, or only others.
    pub(in crate::web) online: Option<bool>,
    /// The page, from 1.
    pub(in crate::web) page: u64,
}

impl ShownHosts {
    /// The URL of this list.
    pub(in crate::web) fn url(&self) -> String {
        let text = (!self.text.is_empty()).then(|| format!("q={}", encoded(&self.text)));
        let online = self.online.map(|online| format!("show={}", if online { "online" } else { "away" }));
        let page = (self.page > 1).then(|| format!("page={}", self.page));
        let query: Vec<_> = [text, online, page].into_iter().flatten().collect();
        if query.is_empty() { "/".to_owned() } else { format!("/?{}", query.join("&")) }
    }

    fn all(&self) -> bool {
        self.text.is_empty() && self.online.is_none()
    }
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct HostsView {
    /// The installation.
    pub(in crate::web) status: Status,
    /// The filter.
    pub(in crate::web) shown: ShownHosts,
    /// The hosts of this page.
    pub(in crate::web) hosts: Vec<Host>,
    /// The number of hosts on all pages.
    pub(in crate::web) found: u64,
    /// The first units that need attention.
    pub(in crate::web) troubled: Vec<Unit>,
    /// The number of units that need attention.
    pub(in crate::web) troubled_count: u64,
    /// The fleet at a glance.
    pub(in crate::web) glance: FleetGlance,
}

impl PageView for HostsView {
    fn title(&self) -> String {
        "Hosts".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Hosts)
    }

    fn watch(&self) -> Option<PageWatch> {
        Some(PageWatch::default())
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            div.head {
                h1 { "Hosts" }
                (self.search())
            }
            (region_every(15, &self.shown.url(), "glance", &["host", "unit", "alert"], self.glance()))
            @if self.whole() && self.status.hosts > 0 { (self.glance.charts()) }
            (region(&self.shown.url(), "fleet", &["host", "unit"], self.fleet(frame)))
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        match name {
            "glance" => Some(self.glance()),
            "fleet" => Some(self.fleet(frame)),
            _ => None,
        }
    }
}

impl HostsView {
    /// Whether this is the first page of all hosts, without a search.
    fn whole(&self) -> bool {
        self.shown.all() && self.shown.page <= 1
    }

    fn glance(&self) -> Markup {
        html! {
            (self.glance.tiles(&self.status, self.troubled_count))
            @if self.whole() { (self.glance.lists()) }
        }
    }

    fn search(&self) -> Markup {
        let options = [("all", None), ("online", Some(true)), ("away", Some(false))];
        html! {
            form.search method="get" action="/" role="search" {
                label.visually-hidden for="q" { "Part of a hostname, or the start of an id" }
                input #q type="search" name="q" value=(self.shown.text) placeholder="hostname or id" autocapitalize="none" spellcheck="false";
                label.visually-hidden for="show" { "Which hosts" }
                select #show name="show" {
                    @for (word, online) in options {
                        option value=(word) selected[online == self.shown.online] { (word) }
                    }
                }
                button type="submit" { "Find" }
            }
        }
    }

    fn fleet(&self, frame: &PageFrame) -> Markup {
        html! {
            (self.trouble(frame))
            @if self.hosts.is_empty() { (self.nothing()) } @else {
                (self.table(frame))
                (self.pages())
            }
        }
    }

    fn trouble(&self, frame: &PageFrame) -> Markup {
        let names = HostNames::new(self.troubled.iter().map(|unit| (unit.host, unit.hostname.as_str())));
        html! {
            @if !self.troubled.is_empty() {
                section {
                    h2 { "Units with problems" }
                    ul.plain {
                        @for unit in &self.troubled {
                            li {
                                a href=(super::unit::url(unit.host, &unit.unit)) { (unit.unit) } " on "
                                a href=(elements::host_url(unit.host)) { (names.show(unit.host, &unit.hostname)) } " "
                                (elements::unit_phase(unit)) " " (ago(unit.observed.since_ms, frame.now_ms))
                                @if unit.observed.rolled_back().is_some() { " " (state(Tone::Bad, "rolled back")) }
                                @if unit.hold.is_some() { " " (elements::unit_held(unit, frame.now_ms)) }
                                @if let Some(deviation) = unit.deviation() { p.why { (deviation) } }
                                @if let Some(error) = &unit.observed.error { (problem::why(error)) }
                            }
                        }
                    }
                    @if self.troubled_count > self.troubled.len() as u64 {
                        p.note { "and " (count(self.troubled_count - self.troubled.len() as u64, "more", "more")) }
                    }
                }
            }
        }
    }

    fn nothing(&self) -> Markup {
        html! {
            @if self.whole() {
                (empty("No host has joined yet.", "Make a one-time token, and start an agent with it on the new host:",
                       "muster token create"))
                p { a.button href="/join" { "Join a host" } }
            } @else {
                div.empty {
                    p { strong { "No host matches." } " " a href="/" { "Show all hosts" } }
                }
            }
        }
    }

    fn table(&self, frame: &PageFrame) -> Markup {
        let names = HostNames::new(self.hosts.iter().map(|host| (host.id, host.hostname.as_str())));
        html! {
            table.cards {
                caption.visually-hidden { "Hosts" }
                thead {
                    tr { th scope="col" { "Host" } th scope="col" { "State" } th scope="col" { "Units" } th scope="col" { "System" }
                         th scope="col" { "Agent" } th scope="col" { "Last report" } }
                }
                tbody { @for host in &self.hosts { (row(host, &names, frame)) } }
            }
        }
    }

    fn pages(&self) -> Markup {
        let per_page = u64::from(PAGE_HOSTS);
        let page = self.shown.page.max(1);
        let first = (page - 1) * per_page + 1;
        let last = first + (self.hosts.len() as u64).saturating_sub(1);
        let to = |page: u64| ShownHosts { page, ..self.shown.clone() }.url();
        html! {
            nav.pages aria-label="Pages of hosts" {
                @if page > 1 { a href=(to(page - 1)) rel="prev" { "← previous" } } " "
                span { (grouped(first)) "–" (grouped(last)) " of " (grouped(self.found)) }
                " " @if last < self.found { a href=(to(page + 1)) rel="next" { "next →" } }
            }
        }
    }
}

fn row(host: &Host, names: &HostNames<'_>, frame: &PageFrame) -> Markup {
    let state = host.state.as_ref();
    html! {
        tr {
            th scope="row" { a href=(elements::host_url(host.id)) { (names.show(host.id, &host.hostname)) } }
            td data-label="State" {
                (presence_since(host.presence.as_ref(), frame.now_ms))
                @if let Some(cordon) = &host.cordon { " " (elements::cordon(cordon)) }
            }
            td data-label="Units" { @if let Some(state) = state { (units(&state.value.units)) } @else { "–" } }
            td data-label="System" {
                @if let Some(state) = state { (state.value.facts.os) ", " (state.value.facts.arch) } @else { "–" }
            }
            td data-label="Agent" { @if let Some(presence) = &host.presence { (presence.agent_version) } @else { "–" } }
            td data-label="Last report" {
                @if let Some(state) = state { (ago(state.at_ms, frame.now_ms)) }
                @else { "joined " (ago(host.joined_ms, frame.now_ms)) }
            }
        }
    }
}

fn units<K>(units: &std::collections::BTreeMap<K, muster_topics::heartbeat::UnitSummary>) -> Markup {
    let troubled = units.values().filter(|unit| unit.is_troubled()).count();
    let running = units.values().filter(|unit| matches!(unit.phase, Phase::Running | Phase::Playing)).count();
    html! {
        @if units.is_empty() { "none" } @else { (running) " of " (units.len()) " running" }
        @if troubled > 0 { " " (state(Tone::Bad, &format!("{troubled} with problems"))) }
    }
}
