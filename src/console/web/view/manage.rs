//! Further actions on a unit: upgrade, labels, signal, removal.

use maud::{Markup, html};
use muster_api::{
    ChangeCost, Unit,
    upgrade::{Step, Upgrade},
};
use muster_topics::{name::NAME_MAX_BYTES, signal::Signal, unit::NOTE_MAX_CHARS};

use super::{deployment, frame::PageFrame, unit::url};

/// Describes newer content for a unit: a form carries this, so that what is ordered is what was shown.
pub(in crate::web) fn words(upgrade: &Upgrade) -> String {
    let steps = upgrade.artifact.iter().chain(&upgrade.configs).chain(&upgrade.secrets);
    steps.map(Step::to_string).collect::<Vec<_>>().join(", ")
}

/// Renders the section.
pub(super) fn section(unit: &Unit, newer: Option<&Upgrade>, frame: &PageFrame) -> Markup {
    let url = url(unit.host, &unit.unit);
    let owner = unit.owner.as_ref();
    html! {
        section {
            h2 { "Manage" }
            @if let Some(owner) = owner {
                p.note { "What it is and whether it runs is said by the deployment " a href=(deployment::url(&owner.deployment)) { (owner.deployment) }
                    ". Holding, restarting and signals work here; upgrades, labels and removal are refused." }
            }
            div.forms {
                (self::newer(newer, frame, &url))
                (labels(unit, frame, &url))
                (signals(frame, &url))
                (ending(frame, &url))
            }
        }
    }
}

fn newer(newer: Option<&Upgrade>, frame: &PageFrame, url: &str) -> Markup {
    html! {
        fieldset {
            legend { "Upgrade" }
            @match newer {
                None => p.note { "No newer version is available." },
                Some(upgrade) => {
                    p { (words(upgrade)) }
                    (frame.form(&format!("{url}/upgrade"), html! {
                        input type="hidden" name="to" value=(words(upgrade));
                        button type="submit" { "Upgrade" @if upgrade.cost != ChangeCost::InPlace { " (" (upgrade.cost.words()) ")" } }
                    }))
                }
            }
        }
    }
}

fn labels(unit: &Unit, frame: &PageFrame, url: &str) -> Markup {
    html! {
        fieldset {
            legend { "Labels" }
            @for (name, value) in unit.desired.spec.labels() {
                (frame.form(&format!("{url}/unlabel"), html! {
                    div.row {
                        code { (name) "=" (value) }
                        input type="hidden" name="name" value=(name);
                        button.quiet type="submit" aria-label={ "Remove the label " (name) } { "Remove" }
                    }
                }))
            }
            (frame.form(&format!("{url}/label"), html! {
                div.row {
                    div.field {
                        label for="label-name" { "Name" }
                        input #label-name type="text" name="name" maxlength=(NAME_MAX_BYTES) required autocapitalize="none" spellcheck="false";
                    }
                    div.field {
                        label for="label-value" { "Value" }
                        input #label-value type="text" name="value" required autocapitalize="none" spellcheck="false";
                    }
                    button type="submit" { "Set" }
                }
            }))
        }
    }
}

fn signals(frame: &PageFrame, url: &str) -> Markup {
    html! {
        fieldset {
            legend { "Signal" }
            (frame.form(&format!("{url}/signal"), html! {
                div.row {
                    label for="signal" { "Send its main process" }
                    select #signal name="signal" {
                        @for signal in Signal::all() {
                            option value=(signal.name()) selected[signal == Signal::Hup] { (signal) }
                        }
                    }
                    button type="submit" { "Send" }
                }
            }))
            p.note { "The desired state does not change: if the process ends, it is started again." }
        }
    }
}

/// Renders retirement, and removal of a retired unit.
fn ending(frame: &PageFrame, url: &str) -> Markup {
    html! {
        fieldset {
            legend { "Retire and remove" }
            (frame.form(&format!("{url}/retire"), html! {
                div.row {
                    label for="retire-note" { "Stop and hold it" }
                    input #retire-note type="text" name="note" maxlength=(NOTE_MAX_CHARS) placeholder="what for";
                    button type="submit" { "Retire" }
                }
            }))
            (frame.form(&format!("{url}/remove"), html! { button type="submit" { "Remove" } }))
            p.note { "A retired unit can be removed: its host deletes it, with its log." }
        }
    }
}
