//! Units of all hosts, by selector, deployment, version and phase.

use maud::{Markup, html};
use muster_api::{Problem, Unit, host_names::HostNames};
use muster_topics::{select::SELECT_MAX_BYTES, unit::Phase};

use super::{
    deployment,
    elements::{self, Tone, ago, empty, grouped, state},
    frame::{PageFrame, PageView, PageWatch, Section},
    problem::{self, notice},
    region::{encoded, region},
    unit,
};
use crate::store::unit_list::UnitPage;

/// The units of one page: a screen or two.
pub(in crate::web) const PAGE_UNITS: u32 = 100;

/// The phases, those that need somebody first.
const PHASES: [Phase; 9] = [
    Phase::Failed,
    Phase::Backoff,
    Phase::Installing,
    Phase::Starting,
    Phase::Stopping,
    Phase::Running,
    Phase::Playing,
    Phase::Stopped,
    Phase::Absent,
];

/// The filter of units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct ShownUnits {
    /// Units that this selects.
    pub(in crate::web) select: String,
    /// Units of this deployment.
    pub(in crate::web) deployment: String,
    /// Units of this version of a deployment.
    pub(in crate::web) version: Option<u32>,
    /// Units in this phase.
    pub(in crate::web) phase: Option<Phase>,
    /// The page, from 1.
    pub(in crate::web) page: u64,
}

impl ShownUnits {
    /// Whether it shows all units.
    fn is_all(&self) -> bool {
        self.select.is_empty() && self.deployment.is_empty() && self.version.is_none() && self.phase.is_none()
    }

    /// The URL of this list.
    pub(in crate::web) fn url(&self) -> String {
        let text = |name: &str, text: &str| (!text.is_empty()).then(|| format!("{name}={}", encoded(text)));
        let query: Vec<String> = [
            text("select", &self.select),
            text("deployment", &self.deployment),
            self.version.map(|number| format!("version={number}")),
            self.phase.map(|phase| format!("phase={}", word(phase))),
            (self.page > 1).then(|| format!("page={}", self.page)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if query.is_empty() { "/units".to_owned() } else { format!("/units?{}", query.join("&")) }
    }
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct UnitsView {
    /// The filter.
    pub(in crate::web) shown: ShownUnits,
    /// The units of this page, and how many there are.
    pub(in crate::web) found: UnitPage,
    /// Why the filter is none.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for UnitsView {
    fn title(&self) -> String {
        "Units".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Units)
    }

    fn watch(&self) -> Option<PageWatch> {
        self.problem.is_none().then(PageWatch::default)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Units" }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            (self.filter())
            @if self.problem.is_none() {
                (region(&self.shown.url(), "units", &["unit", "host"], self.list(frame)))
            }
        }
    }

    fn part(&self, frame: &PageFrame, name: &str) -> Option<Markup> {
        (name == "units" && self.problem.is_none()).then(|| self.list(frame))
    }
}

impl UnitsView {
    fn filter(&self) -> Markup {
        let ShownUnits { select, deployment, version, phase, .. } = &self.shown;
        html! {
            form method="get" action="/units" role="search" {
                div.options {
                    div.field {
                        label for="select" { "Selector" }
                        input #select type="text" name="select" value=(select) maxlength=(SELECT_MAX_BYTES)
                            placeholder="realm=shop and not phase=running" autocapitalize="none" spellcheck="false";
                    }
                    div.field {
                        label for="deployment" { "Deployment" }
                        input #deployment type="text" name="deployment" value=(deployment) placeholder="shop/till" autocapitalize="none" spellcheck="false";
                    }
                    div.field {
                        label for="version" { "Its version" }
                        input #version type="number" name="version" min="1" value=[*version] inputmode="numeric";
                    }
                    div.field {
                        label for="phase" { "Is" }
                        select #phase name="phase" {
                            option value="" { "any" }
                            @for one in PHASES { option value=(word(one)) selected[*phase == Some(one)] { (word(one)) } }
                        }
                    }
                    button type="submit" { "Show" }
                }
            }
        }
    }

    fn list(&self, frame: &PageFrame) -> Markup {
        html! {
            (self.tiles())
            @if self.found.units.is_empty() { (self.nothing()) } @else {
                (self.table(frame))
                (self.pages())
            }
        }
    }

    /// Renders the number of units in each phase; each shows those alone.
    fn tiles(&self) -> Markup {
        let to = |phase| ShownUnits { phase, page: 1, ..self.shown.clone() }.url();
        let counts: Vec<(Phase, u64)> = PHASES
            .into_iter()
            .map(|phase| (phase, self.found.found(Some(phase))))
            .filter(|(_, count)| *count > 0)
            .collect();
        html! {
            @if !counts.is_empty() {
                ul.tiles aria-label="Units by phase" {
                    @for (phase, count) in counts {
                        li { a href=(to(Some(phase))) aria-current=[(self.shown.phase == Some(phase)).then_some("true")] {
                            span.number { (grouped(count)) } " " (elements::phase(phase))
                        } }
                    }
                    @if self.shown.phase.is_some() { li { a href=(to(None)) { "Show all" } } }
                }
            }
        }
    }

    fn nothing(&self) -> Markup {
        html! {
            @if self.shown.is_all() {
                (empty("There are no units.", "Give a host a program to keep running, or write a deployment:",
                       "muster unit create yuno --help\nmuster deployment apply --help"))
            } @else if self.shown.page > 1 {
                div.empty { p { strong { "There are no more units." } " "
                    a href=(ShownUnits { page: 1, ..self.shown.clone() }.url()) { "Show the first ones" } } }
            } @else {
                div.empty { p { strong { "No unit matches." } " " a href="/units" { "Show all units" } } }
            }
        }
    }

    fn table(&self, frame: &PageFrame) -> Markup {
        let names = HostNames::new(self.found.units.iter().map(|unit| (unit.host, unit.hostname.as_str())));
        html! {
            table.cards {
                caption.visually-hidden { "Units" }
                thead {
                    tr { th scope="col" { "Unit" } th scope="col" { "Host" } th scope="col" { "Deployment" } th scope="col" { "Is" }
                         th scope="col" { "What" } }
                }
                tbody { @for unit in &self.found.units { (row(unit, &names, frame)) } }
            }
        }
    }

    fn pages(&self) -> Markup {
        let page = self.shown.page.max(1);
        let first = (page - 1).saturating_mul(u64::from(PAGE_UNITS));
        let last = first.saturating_add(self.found.units.len() as u64);
        let found = self.found.found(self.shown.phase);
        let to = |page| ShownUnits { page, ..self.shown.clone() }.url();
        html! {
            nav.pages aria-label="Pages of units" {
                @if page > 1 { a href=(to(page - 1)) rel="prev" { "← previous" } } " "
                span { (grouped(first.saturating_add(1))) "–" (grouped(last)) " of " (grouped(found)) }
                " " @if last < found { a href=(to(page + 1)) rel="next" { "next →" } }
            }
        }
    }
}

/// The word of a phase in a URL.
fn word(phase: Phase) -> String {
    let json = serde_json::to_value(phase).unwrap_or_default();
    json.as_str().unwrap_or_default().to_owned()
}

fn row(unit: &Unit, names: &HostNames<'_>, frame: &PageFrame) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(unit::url(unit.host, &unit.unit)) { (unit.unit) } }
            td data-label="Host" { a href=(elements::host_url(unit.host)) { (names.show(unit.host, &unit.hostname)) } }
            td data-label="Deployment" { @if let Some(owner) = &unit.owner { (deployment::owner(owner)) } @else { "–" } }
            td data-label="Is" {
                (elements::unit_phase(unit)) " " (ago(unit.observed.since_ms, frame.now_ms))
                @if unit.observed.rolled_back().is_some() { " " (state(Tone::Bad, "rolled back")) }
                @if unit.hold.is_some() { " " (elements::unit_held(unit, frame.now_ms)) }
                @if let (None, Some(error)) = (unit.retired(), &unit.observed.error) { (problem::why(error)) }
            }
            td data-label="What" {
                (unit.content().unwrap_or_else(|| unit.wanted()).artifact)
                @if let Some(deviation) = unit.deviation() { p.why { (deviation) } }
            }
        }
    }
}
