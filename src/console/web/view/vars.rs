//! Variables of hosts, in layers.

use maud::{Markup, html};
use muster_api::{Problem, Var, VarLayer, host_names::HostNames};
use muster_topics::name::{HostId, NAME_MAX_BYTES};
use serde_json::Value;

use super::{
    elements::{self, ago, empty, grouped},
    frame::{PageFrame, PageView, Section},
    problem::notice,
    region::encoded,
};

/// The variables of one page.
pub(in crate::web) const PAGE_VARS: usize = 100;

/// The variables that are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct ShownVars {
    /// Those with this in their name, their layer or the name of its host.
    pub(in crate::web) text: String,
    /// The page, from 1.
    pub(in crate::web) page: usize,
}

impl ShownVars {
    fn url(&self) -> String {
        let text = (!self.text.is_empty()).then(|| format!("q={}", encoded(&self.text)));
        let page = (self.page > 1).then(|| format!("page={}", self.page));
        let query: Vec<String> = text.into_iter().chain(page).collect();
        if query.is_empty() { "/vars".to_owned() } else { format!("/vars?{}", query.join("&")) }
    }
}

/// A kind of layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::web) enum LayerKind {
    #[default]
    Fleet,
    Realm,
    Label,
    Host,
}

impl LayerKind {
    pub(in crate::web) const ALL: [Self; 4] = [Self::Fleet, Self::Realm, Self::Label, Self::Host];

    pub(in crate::web) fn word(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Realm => "realm",
            Self::Label => "label",
            Self::Host => "host",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Fleet => "all hosts",
            Self::Realm => "hosts with the realm",
            Self::Label => "hosts with the label",
            Self::Host => "the host",
        }
    }
}

/// The form, as it was filled in.
#[derive(Clone, Debug, Default)]
pub(in crate::web) struct VarForm {
    pub(in crate::web) name: String,
    pub(in crate::web) value: String,
    pub(in crate::web) is_json: bool,
    pub(in crate::web) kind: LayerKind,
    /// The realm, label or host.
    pub(in crate::web) of: String,
}

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct VarsView {
    /// The filter.
    pub(in crate::web) shown: ShownVars,
    /// The variables of this page, by layer and name.
    pub(in crate::web) vars: Vec<Var>,
    /// The number of variables on all pages.
    pub(in crate::web) found: usize,
    /// The form.
    pub(in crate::web) form: VarForm,
    /// Why nothing was changed.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for VarsView {
    fn title(&self) -> String {
        "Variables".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Vars)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            div.head {
                h1 { "Variables" }
                (self.search())
            }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            p { "Variables are values for hosts. Of variables with one name, one of a host wins over one of a label, that over one of a \
                realm, and that over one of all hosts. Everybody who may use this console sees them." }
            @if self.vars.is_empty() { (self.nothing()) } @else {
                (self.table(frame))
                (self.pages())
            }
            section {
                h2 { "Set a variable" }
                (self.form(frame))
            }
        }
    }
}

impl VarsView {
    fn search(&self) -> Markup {
        html! {
            form.search method="get" action="/vars" role="search" {
                label.visually-hidden for="q" { "Part of a name or layer" }
                input #q type="search" name="q" value=(self.shown.text) placeholder="name or layer" autocapitalize="none" spellcheck="false";
                button type="submit" { "Find" }
            }
        }
    }

    fn nothing(&self) -> Markup {
        html! {
            @if self.shown == ShownVars::default() || self.shown.text.is_empty() && self.shown.page <= 1 {
                (empty("There are no variables.", "Set one below, or on the command line:", "muster var set NAME VALUE"))
            } @else {
                div.empty { p { strong { "No variable matches." } " " a href="/vars" { "Show all variables" } } }
            }
        }
    }

    fn table(&self, frame: &PageFrame) -> Markup {
        let hosts: Vec<(HostId, &str)> = self.vars.iter().filter_map(host).collect();
        let names = HostNames::new(hosts);
        html! {
            table.cards {
                caption.visually-hidden { "Variables" }
                thead { tr { th scope="col" { "Variable" } th scope="col" { "For" } th scope="col" { "Value" } th scope="col" { "Set" } th scope="col" { "Change" } } }
                tbody {
                    @for var in &self.vars {
                        tr {
                            th scope="row" { (var.name) }
                            td data-label="For" { (layer(var, &names)) }
                            td data-label="Value" { code { (text(&var.value)) } }
                            td data-label="Set" { (ago(var.set_ms, frame.now_ms)) " by " (var.operator) }
                            td data-label="Change" {
                                (frame.form("/vars/remove", html! {
                                    input type="hidden" name="layer" value=(var.layer);
                                    input type="hidden" name="name" value=(var.name);
                                    button.quiet type="submit" aria-label={ "Remove " (var.name) " of " (var.layer) } { "Remove" }
                                }))
                            }
                        }
                    }
                }
            }
        }
    }

    fn pages(&self) -> Markup {
        let page = self.shown.page.max(1);
        let first = (page - 1).saturating_mul(PAGE_VARS);
        let last = first.saturating_add(self.vars.len());
        let to = |page| ShownVars { page, ..self.shown.clone() }.url();
        html! {
            @if self.found > self.vars.len() {
                nav.pages aria-label="Pages of variables" {
                    @if page > 1 { a href=(to(page - 1)) rel="prev" { "← previous" } } " "
                    span { (grouped(first as u64 + 1)) "–" (grouped(last as u64)) " of " (grouped(self.found as u64)) }
                    " " @if last < self.found { a href=(to(page + 1)) rel="next" { "next →" } }
                }
            }
        }
    }

    fn form(&self, frame: &PageFrame) -> Markup {
        let form = &self.form;
        frame.form("/vars", html! {
            div.options {
                div.field {
                    label for="name" { "Name" }
                    input #name type="text" name="name" value=(form.name) maxlength=(NAME_MAX_BYTES) required autocapitalize="none" spellcheck="false";
                }
                div.field {
                    label for="kind" { "For" }
                    select #kind name="kind" {
                        @for kind in LayerKind::ALL { option value=(kind.word()) selected[kind == form.kind] { (kind.words()) } }
                    }
                }
                div.field {
                    label for="of" { "Realm, label or host" }
                    input #of type="text" name="of" value=(form.of) placeholder="site=north" autocapitalize="none" spellcheck="false";
                }
            }
            div.field {
                label for="value" { "Value" }
                textarea #value name="value" rows="2" autocapitalize="none" spellcheck="false" { (form.value) }
            }
            div.row {
                label.choice { input type="checkbox" name="json" value="yes" checked[form.is_json]; " It is JSON: a number, true, a list, an object" }
                button.primary type="submit" { "Set" }
            }
            p.note { "A variable of this name and layer gets the new value." }
        })
    }
}

fn host(var: &Var) -> Option<(HostId, &str)> {
    match &var.layer {
        VarLayer::Host(id) => Some((id.parse().ok()?, var.hostname.as_deref()?)),
        _ => None,
    }
}

fn layer(var: &Var, names: &HostNames<'_>) -> Markup {
    html! {
        @match (&var.layer, host(var)) {
            (_, Some((host, hostname))) => { "host " a href=(elements::host_url(host)) { (names.show(host, hostname)) } }
            (VarLayer::Fleet, _) => { "all hosts" }
            (VarLayer::Realm(realm), _) => { "realm " (realm) }
            (VarLayer::Label(name, value), _) => { "label " code { (name) "=" (value) } }
            (VarLayer::Host(host), _) => { "host " code { (host) } }
        }
    }
}

/// Returns a value as it is shown.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
