//! What can be done with a unit beyond starting and stopping it: newer content, labels, a signal, and its end.

use maud::{Markup, html};
use muster_topics::{
    name::NAME_MAX_BYTES,
    signal::Signal,
    unit::{HoldReason, NOTE_MAX_CHARS, Run},
};

use super::{Frame, unit::url};
use crate::{
    api::{Cost, Unit},
    rules::upgrade::{Step, Upgrade},
};

/// What newer content there is for a unit, in words: a form carries them, so that what is ordered is what was shown.
pub(in crate::console::web) fn words(upgrade: &Upgrade) -> String {
    let steps: Vec<String> = upgrade.artifact.iter().chain(&upgrade.configs).map(Step::to_string).collect();
    steps.join(", ")
}

/// The section.
pub(super) fn section(unit: &Unit, newer: Option<&Upgrade>, frame: &Frame) -> Markup {
    let url = url(unit.host, &unit.unit);
    html! {
        section {
            h2 { "Manage" }
            div.forms {
                (self::newer(newer, frame, &url))
                (labels(unit, frame, &url))
                (signals(unit, frame, &url))
                (ending(unit, frame, &url))
            }
        }
    }
}

fn newer(newer: Option<&Upgrade>, frame: &Frame, url: &str) -> Markup {
    html! {
        fieldset {
            legend { "Upgrade" }
            @match newer {
                None => p.note { "There is nothing newer than what it has." },
                Some(upgrade) => {
                    p { (words(upgrade)) }
                    (frame.form(&format!("{url}/upgrade"), html! {
                        input type="hidden" name="to" value=(words(upgrade));
                        button type="submit" { "Upgrade" @if upgrade.cost != Cost::InPlace { " (" (upgrade.cost.words()) ")" } }
                    }))
                }
            }
        }
    }
}

fn labels(unit: &Unit, frame: &Frame, url: &str) -> Markup {
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

fn signals(unit: &Unit, frame: &Frame, url: &str) -> Markup {
    html! {
        fieldset {
            legend { "Signal" }
            @if unit.observed.pid.is_none() {
                p.note { "It has no process that could get one." }
            } @else {
                (frame.form(&format!("{url}/signal"), html! {
                    div.row {
                        label for="signal" { "Send its main process" }
                        select #signal name="signal" {
                            @for signal in Signal::ALL {
                                option value=(signal.as_str()) selected[signal == Signal::Hup] { (signal) }
                            }
                        }
                        button type="submit" { "Send" }
                    }
                }))
                p.note { "Nothing that is desired changes by that: one that ends by it is started again." }
            }
        }
    }
}

/// To retire it, and once it is retired to have it forgotten.
fn ending(unit: &Unit, frame: &Frame, url: &str) -> Markup {
    let is_held = unit.hold.as_ref().is_some_and(|hold| hold.reason == HoldReason::Operator);
    let is_retired = is_held && unit.desired.run == Run::Stopped;
    html! {
        fieldset {
            legend { "Retire and remove" }
            @if is_retired {
                (frame.form(&format!("{url}/remove"), html! { button type="submit" { "Remove" } }))
                p.note { "Its host forgets it, its log included." }
            } @else {
                (frame.form(&format!("{url}/retire"), html! {
                    div.row {
                        label for="retire-note" { "Stop and hold it" }
                        input #retire-note type="text" name="note" maxlength=(NOTE_MAX_CHARS) placeholder="what for";
                        button type="submit" { "Retire" }
                    }
                }))
                p.note { "Once it is retired it can be removed." }
            }
        }
    }
}
