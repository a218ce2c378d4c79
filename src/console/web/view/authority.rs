//! The authority's keys and root certificate, and how far their rotation is: sections of the page for joining.

use maud::{Markup, html};
use muster_api::{
    authority::{AuthorityStatus, LackingHost, PastRotation, RootStage, RotatedKey, RotationStatus, SigningKeyPlace},
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
    let is_of = |what: RotatedKey| {
        let of_last = status.last_rotation.as_ref().filter(|last| last.what == what);
        (status.rotation.as_ref().filter(|rotation| rotation.what == what), of_last)
    };
    html! {
        section {
            h2 { "Signing key" }
            p { "Commands are signed with the key " code { (status.signing_key) } ", in " (place(&status.signing_key_place))
                ". Hosts accept commands only with this signature." }
            (progress(is_of(RotatedKey::Signing), status.rotation.is_none(), "muster authority rotate signing", frame))
        }
        section {
            h2 { "Root certificate" }
            p { "Hosts trust the root certificate with the SHA-256 " code { (status.fingerprint) }
                ". All other certificates of the fleet are under it." }
            (progress(is_of(RotatedKey::Root), status.rotation.is_none(), "muster authority rotate root", frame))
        }
    }
}

/// Renders how far a rotation is, or the last one was, or how one begins.
fn progress(
    (rotation, last): (Option<&RotationStatus>, Option<&PastRotation>),
    can_begin: bool,
    begin: &str,
    frame: &PageFrame,
) -> Markup {
    html! {
        @match (rotation, last) {
            (Some(rotation), _) => {
                p {
                    (state(Tone::Busy, "rotating")) " to " code { (rotation.new_key) } " since "
                    (ago(rotation.begun_ms, frame.now_ms)) ", by " (rotation.operator) ": "
                    (rotation.having) " of " (rotation.having + rotation.lacking.len() as u64) " hosts " (have(rotation)) "."
                }
                (lacking(&rotation.lacking, frame))
                @if let Some(broker) = &rotation.broker {
                    p { "The broker at " code { (broker) } " runs by itself and needs new files from "
                        code { "muster console issue --role broker" } " before the rotation continues." }
                }
                @if !rotation.by_hand.is_empty() {
                    p { "Made by hand under the old root, and invalid after the rotation: "
                        @for (at, owner) in rotation.by_hand.iter().enumerate() {
                            @if at > 0 { ", " }
                            code { (owner) }
                        }
                        "." }
                }
                @if rotation.ready { (elements::cli("muster authority finish")) }
            }
            (None, Some(last)) => {
                p {
                    "It replaced " code { (last.old_key) } " " (ago(last.finished_ms, frame.now_ms)) ", by " (last.operator)
                    ": " (last.having) " of " (last.having + last.lacking.len() as u64) " hosts "
                    @match last.what { RotatedKey::Signing => "accept", RotatedKey::Root => "trust" }
                    " it alone."
                }
                (lacking(&last.lacking, frame))
            }
            (None, None) => { @if can_begin { (elements::cli(begin)) } }
        }
    }
}

/// What hosts do that keep a rotation from going on no more.
fn have(rotation: &RotationStatus) -> &'static str {
    match rotation.stage {
        None => "have it",
        Some(RootStage::Trust) => "trust it",
        Some(RootStage::Certificates) => "have a certificate under it",
    }
}

fn place(place: &SigningKeyPlace) -> Markup {
    html! {
        @match place {
            SigningKeyPlace::File => "a file of the console",
            SigningKeyPlace::Credential(path) => { "the credential " code { (path) } }
            SigningKeyPlace::Signer(address) => { "the signer at " code { (address) } }
            SigningKeyPlace::Absent => "an unknown place",
        }
    }
}

fn lacking(hosts: &[LackingHost], frame: &PageFrame) -> Markup {
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    html! {
        @if !hosts.is_empty() {
            table.cards {
                caption.visually-hidden { "Hosts that lack it" }
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
