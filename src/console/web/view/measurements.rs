//! Charts and the newest values of a host or a unit.

use maud::{Markup, html};

use super::super::chart::{latest::Latest, range::TimeRange};
use super::{
    elements::{self, ago},
    frame::PageFrame,
};

/// Renders a place for charts, which a script fills; without it the table below shows the latest values.
pub(in crate::web) fn charts(url: &str, range: TimeRange) -> Markup {
    html! {
        div.charts.small[url == "/charts"] data-charts=(url) data-range=(range.word()) role="group" aria-label={ "Charts, last " (range.word()) } {}
    }
}

/// Renders the latest measurements as a table.
pub(in crate::web) fn latest(latest: &[Latest], frame: &PageFrame) -> Markup {
    html! {
        @if latest.is_empty() {
            p.note { "No measurements within the last five minutes. An agent sends them every 30 s." }
        } @else {
            table.latest {
                caption.visually-hidden { "Newest measurements" }
                thead.visually-hidden { tr { th scope="col" { "What" } th scope="col" { "Value" } th scope="col" { "Share" } th scope="col" { "Age" } } }
                tbody {
                    @for one in latest {
                        tr {
                            th scope="row" { (one.label) }
                            td.number { (one.value) }
                            td { @if let Some(share) = one.share {
                                meter min="0" max="1" high="0.9" low="0.9" optimum="0" value=(format!("{share:.3}"))
                                    aria-label=(one.label) { (elements::percent(share)) }
                            } }
                            td { (ago(one.at_ms, frame.now_ms)) }
                        }
                    }
                }
            }
        }
    }
}
