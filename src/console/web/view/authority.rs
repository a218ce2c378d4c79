//! The authority's keys, and how far their rotation is: a section of the page for joining.

use maud::{Markup, html};
use muster_api::{
    authority::{AuthorityStatus, LackingHost, SigningKeyPlace},
    host_names::HostNames,
};

use super::{
    elements::{self, Tone, ago, state},
    frame::PageFrame,
};

/// The most hosts that are listed.
const LISTED_MAX: usize = 50;

/// Renders the section.
pub(super) fn section(status: &AuthorityStatus, frame: &PageFrame) -> Markup {
    html! {
        section {
            h2 { "Signing key" }
            p { "Commands are signed with the key " code { (status.signing_key) } ", in " (place(&status.signing_key_place))
                ". Hosts obey nobody who does not have it." }
            @match (&status.rotation, &status.last_rotation) {
                (Some(rotation), _) => {
                    p {
                        (state(Tone::Busy, "rotating")) " to the key " code { (rotation.new_key) } " since "
                        (ago(rotation.begun_ms, frame.now_ms)) ", by " (rotation.operator) ": "
                        (rotation.having) " of " (rotation.having + rotation.lacking.len() as u64) " hosts have it."
                    }
                    (lacking(&rotation.lacking, frame))
                    @if rotation.ready { (elements::cli("muster authority rotate --finish")) }
                }
                (None, Some(last)) => {
                    p {
                        "It replaced the key " code { (last.old_key) } " " (ago(last.finished_ms, frame.now_ms)) ", by " (last.operator)
                        ": " (last.having) " of " (last.having + last.lacking.len() as u64) " hosts accept it alone."
                    }
                    (lacking(&last.lacking, frame))
                }
                (None, None) => { (elements::cli("muster authority rotate signing")) }
            }
        }
    }
}

fn place(place: &SigningKeyPlace) -> Markup {
    html! {
        @match place {
            SigningKeyPlace::File => "a file of the console",
            SigningKeyPlace::Credential(path) => { "the credential " code { (path) } }
            SigningKeyPlace::Signer(address) => { "the signer at " code { (address) } }
            SigningKeyPlace::Absent => "no place that the console knows",
        }
    }
}

fn lacking(hosts: &[LackingHost], frame: &PageFrame) -> Markup {
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    html! {
        @if !hosts.is_empty() {
            table.cards {
                caption.visually-hidden { "Hosts without the key" }
                thead { tr { th scope="col" { "Host" } th scope="col" { "Why" } th scope="col" { "Away" } } }
                tbody {
                    @for host in hosts.iter().take(LISTED_MAX) {
                        tr {
                            th scope="row" { a href=(elements::host_url(host.host)) { (names.show(host.host, &host.hostname)) } }
                            td data-label="Why" { (host.why.words()) }
                            td data-label="Away" {
                                @match host.away_since_ms { Some(since_ms) => (ago(since_ms, frame.now_ms)), None => "–" }
                            }
                        }
                    }
                }
            }
            @if hosts.len() > LISTED_MAX { p.note { (hosts.len() - LISTED_MAX) " more are not listed." } }
        }
    }
}
