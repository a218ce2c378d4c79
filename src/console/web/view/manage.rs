//! Further actions on a unit: upgrade, labels, signal, removal.

use maud::{Markup, html};
use muster_api::{
    ChangeCost, Unit,
    upgrade::{Step, Upgrade},
};
use muster_topics::{desired::UnitOwner, name::NAME_MAX_BYTES, signal::Signal, unit::NOTE_MAX_CHARS};

use super::{
    deployment,
    frame::PageFrame,
    unit::{UnitView, url},
};

/// Describes newer content for a unit: a form carries this, so that what is ordered is what was shown.
pub(in crate::web) fn words(upgrade: &Upgrade) -> String {
    let steps = upgrade.artifact.iter().chain(&upgrade.configs).chain(&upgrade.secrets);
    steps.map(Step::to_string).collect::<Vec<_>>().join(", ")
}

/// Renders the section. What the unit's deployment would refuse is left out.
pub(super) fn section(view: &UnitView, frame: &PageFrame) -> Markup {
    let (unit, owner) = (&view.unit, view.owner());
    let url = url(unit.host, &unit.unit);
    html! {
        section {
            h2 { "Manage" }
            div.forms {
                @if owner.is_none() {
                    (newer(view.newer.as_ref(), frame, &url))
                    (labels(unit, frame, &url))
                }
                @if view.has("signal") { (signals(frame, &url)) }
                @match owner {
                    None => {
                        (ending(frame, &url))
                        (adoption(view, frame, &url))
                    }
                    Some(owner) => (owned(view, owner, frame, &url)),
                }
            }
        }
    }
}

/// Renders what a unit of a deployment has in place of the other forms.
fn owned(view: &UnitView, owner: &UnitOwner, frame: &PageFrame, url: &str) -> Markup {
    let deployment = deployment::url(&owner.deployment);
    let may_go = owner.orphan || view.claim.is_leaving;
    html! {
        fieldset {
            legend { "Deployment" }
            p.note {
                "Its version, labels and removal are up to the deployment " a href=(deployment) { (owner.deployment) }
                ": change its document and apply it. Changes here are refused."
            }
            @if may_go {
                p.note { @if owner.orphan { "As an orphan, it can be removed here." } @else { "Its deployment removes it; removing it here does not wait." } }
                (frame.form(&format!("{url}/remove"), html! { button type="submit" { "Remove" } }))
            }
            (frame.form(&format!("{url}/detach"), html! {
                button type="submit" { "Detach" }
                p.note { "A detached unit keeps running, and is changed only here and by verbs." }
            }))
        }
    }
}

/// Renders that a deployment has a unit of this name for the host.
fn adoption(view: &UnitView, frame: &PageFrame, url: &str) -> Markup {
    html! {
        @if let Some(deployment) = &view.claim.deployment {
            fieldset {
                legend { "Deployment" }
                p.note {
                    @if view.claim.is_detached { "It was taken out of the deployment " } @else { "A unit of this name is also in the deployment " }
                    a href=(deployment::url(deployment)) { (deployment) } "."
                }
                (frame.form(&format!("{url}/adopt"), html! {
                    button type="submit" { "Adopt" }
                    p.note { "It then becomes what the deployment defines. Its process keeps running if it does not differ." }
                }))
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
            @for (name, value) in &unit.desired.spec.common().labels {
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
