//! The fleet at a glance: online hosts, problems, the busiest and fullest hosts, and their history.

use maud::{Markup, html};
use muster_api::{Status, host_names::HostNames};

use super::super::chart::range::TimeRange;
use super::{
    elements::{self, Tone, grouped, percent, state},
    measurements::charts,
};
use crate::{
    latest_measurements::{ListedHost, Overview},
    store::host::Presences,
};

/// Active, unsilenced alerts by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::web) struct Severities {
    pub(in crate::web) critical: u64,
    pub(in crate::web) warning: u64,
    pub(in crate::web) info: u64,
    /// Whether there are more than were counted.
    pub(in crate::web) more: bool,
}

/// The fleet at a glance.
#[derive(Clone, Debug, Default)]
pub(in crate::web) struct FleetGlance {
    /// Hosts by presence.
    pub(in crate::web) presences: Presences,
    /// Active alerts.
    pub(in crate::web) alerts: Severities,
    /// The latest measurements.
    pub(in crate::web) overview: Overview,
    /// The range of the charts.
    pub(in crate::web) range: TimeRange,
}

impl FleetGlance {
    /// Renders numbers, each with its word.
    pub(in crate::web) fn tiles(&self, status: &Status, troubled: u64) -> Markup {
        let Presences { online, offline, stopped, never, unknown } = self.presences;
        let Severities { critical, warning, info, more } = self.alerts;
        let tone = |count: u64, tone: Tone| if count > 0 { tone } else { Tone::Idle };
        let more = if more { "+" } else { "" };
        html! {
            ul.tiles {
                @if unknown > 0 {
                    li { a href="/" { span.number { (grouped(unknown)) } " " (state(Tone::Busy, "unknown: the console is not connected to the broker")) } }
                }
                li { a href="/?show=online" { span.number { (grouped(online)) } " " (state(Tone::Good, "online")) } }
                li { a href="/?show=away" { span.number { (grouped(offline)) } " " (state(tone(offline, Tone::Bad), "offline")) } }
                @if stopped > 0 {
                    li { a href="/?show=away" { span.number { (grouped(stopped)) } " " (state(Tone::Idle, "stopped")) } }
                }
                @if never > 0 {
                    li { a href="/?show=away" { span.number { (grouped(never)) } " " (state(Tone::Busy, "never connected")) } }
                }
                li { a href="/alerts" {
                    span.number { (grouped(critical)) (more) } " " (state(tone(critical, Tone::Bad), "critical")) " "
                    span.number { (grouped(warning)) (more) } " " (state(tone(warning, Tone::Busy), "warnings")) " "
                    @if info > 0 { span.number { (grouped(info)) (more) } " " (state(Tone::Idle, "info")) }
                } }
                li {
                    span.number { (grouped(troubled)) } " " (state(tone(troubled, Tone::Bad), "units with problems"))
                }
                li {
                    "broker "
                    @if status.broker_connected { (state(Tone::Good, "connected")) } @else { (state(Tone::Bad, "not connected")) }
                }
            }
        }
    }

    /// Renders the latest measurements: totals, and hosts that stand out.
    pub(in crate::web) fn lists(&self) -> Markup {
        let Overview { measured, cpu, memory, traffic, busiest, crammed, fullest } = &self.overview;
        let rate = |bytes: f64| format!("{}/s", elements::bytes(bytes.max(0.0) as u64));
        html! {
            @if *measured > 0 {
                p.note {
                    "In total: "
                    @if let Some(cpu) = cpu { "processors " strong { (percent(*cpu)) } ", " }
                    @if let Some((used, total)) = memory {
                        "memory " strong { (elements::bytes(*used as u64)) } " of " (elements::bytes(*total as u64)) ", "
                    }
                    @if let Some((received, sent)) = traffic { strong { (rate(*received)) } " in, " strong { (rate(*sent)) } " out, " }
                    "of " (elements::count(*measured as u64, "host", "hosts")) " that measured within five minutes."
                }
                div.lists {
                    (list("Busiest processors", busiest))
                    (list("Fullest memory", crammed))
                    (list("Fullest disks", fullest))
                }
            }
        }
    }

    /// Renders the charts.
    pub(in crate::web) fn charts(&self) -> Markup {
        html! {
            section.fleet-charts {
                div.head {
                    h2 { "The whole fleet" }
                    (self.range.links("/"))
                }
                (charts("/charts", self.range))
            }
        }
    }
}

fn list(title: &str, listed: &[ListedHost]) -> Markup {
    let names = HostNames::new(listed.iter().map(|one| (one.host, one.hostname.as_str())));
    html! {
        @if !listed.is_empty() {
            section {
                h2 { (title) }
                ol.plain.top-list {
                    @for one in listed {
                        li {
                            span { a href=(elements::host_url(one.host)) { (names.show(one.host, &one.hostname)) } @if let Some(mount) = &one.mount { " " code { (mount) } } }
                            meter min="0" max="1" high="0.9" low="0.9" optimum="0" value=(format!("{:.3}", one.share))
                                aria-label={ (title) ": " (one.hostname) } { (percent(one.share)) }
                            span.number { (percent(one.share)) }
                        }
                    }
                }
            }
        }
    }
}
