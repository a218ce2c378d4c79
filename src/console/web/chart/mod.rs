//! Measurements as charts, which a script draws from JSON, and as a table of the newest values, which
//! needs none.
//!
//! The content of charts is decided here and not in the script: which series, under which label, in which steps, whether a
//! counter becomes a rate, where a line is interrupted because its host was silent, and which alerts were active.
//!
//! Modules, in reading order:
//!
//! - [`range`]: the time shown, and its steps
//! - [`chart_list`]: the list of charts; [`mod@line`]: from measurements to lines; [`panel`]: from lines to charts; all pure
//! - [`mark`]: alerts on the time axis; [`mod@latest`]: the table
//!
//! **Invariant: charts of a year cost about as much as those of a day**: long steps are answered from the store's summaries.

mod chart_list;
pub(super) mod latest;
mod line;
mod mark;
mod panel;
pub(super) mod range;
mod time_query;

pub(super) use time_query::TimeQuery;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use muster_series::{ChosenSeries, Resolution, SeriesSelector, SeriesStore};
use muster_topics::{
    Millis,
    name::{HostId, Name, UnitName},
};
use serde::Serialize;

use self::{latest::Latest, range::seconds};
use muster_base::clock::now_ms;

use self::{
    latest::Recent,
    line::fold,
    mark::AlertMark,
    panel::{Chart, ChartScope, Grouped},
    range::ChartSpan,
};
use super::extract::{PageParams, PageSegments};
use crate::{error::Error, state::Console};

/// The most series of one page: more than a host has with all its disks, interfaces and cores.
const SERIES_MAX: usize = 2_000;
/// The largest age of a latest value, and the window of its rate.
const LATEST_MS: Millis = 300_000;
/// Where there are no points any more, steps are no shorter than the finest summaries.
const SUMMARY_MS: Millis = 300_000;

/// The data that a script draws.
#[derive(Debug, Serialize)]
struct Charts {
    /// Seconds since the Unix epoch: the span, with or without values.
    from: f64,
    to: f64,
    /// The middle of each step.
    times: Vec<f64>,
    step: f64,
    charts: Vec<Chart>,
    marks: Vec<AlertMark>,
}

/// Returns the selector of series. Its parts are ids and names, which need no escaping.
fn selector(whose: ChartScope, host: Option<HostId>, unit: Option<&UnitName>) -> String {
    // The console's own series have a label to select by; a pattern of names would read every series.
    let host = host.map_or_else(|| ",instance=\"console\"".to_owned(), |host| format!(",host=\"{host}\""));
    let unit = unit.map(|unit| format!(",realm=\"{}\",unit=\"{}\"", unit.realm(), unit.name())).unwrap_or_default();
    format!("{{__name__=~\"{}\"{host}{unit}}}", whose.names())
}

async fn chosen(store: &SeriesStore, selector: &str) -> Result<Vec<ChosenSeries>, Error> {
    let selector = SeriesSelector::parse(selector).map_err(muster_series::SeriesError::from)?;
    Ok(store.select(selector, SERIES_MAX).await?)
}

/// Returns the values of series in the steps of a span: from points where steps are short and there are points, else
/// from summaries.
async fn grouped(
    store: &SeriesStore,
    chosen: Vec<ChosenSeries>,
    span: ChartSpan,
) -> Result<(ChartSpan, Vec<Grouped>), Error> {
    let kept_from = store.points_from().await?.unwrap_or(Millis::MIN);
    let span = if span.start_ms < kept_from { span.no_finer_than(SUMMARY_MS) } else { span };
    let resolution = Resolution::for_step(span.step_ms);
    // Rates need the value before the first step.
    let start_ms = span.start_ms - span.step_ms;
    let points_from = if resolution == Resolution::Raw { start_ms } else { Millis::MAX };
    let ids: Vec<_> = chosen.iter().map(|one| one.id).collect();
    let mut buckets = vec![Vec::new(); ids.len()];
    let mut points = buckets.iter().map(|_| Vec::new()).collect::<Vec<_>>();
    if points_from > start_ms {
        buckets = store.buckets(&ids, (start_ms, span.end_ms), resolution).await?;
    } else {
        points = store.points(&ids, (start_ms, span.end_ms)).await?;
    }
    let each = chosen.into_iter().zip(buckets.iter().zip(&points));
    let each = each.map(|(ChosenSeries { name, labels, .. }, (buckets, points))| Grouped {
        name,
        labels,
        groups: fold(&span, buckets, points),
    });
    Ok((span, each.collect()))
}

async fn charts(
    console: &Console,
    asked: &TimeQuery,
    whose: ChartScope,
    host: Option<HostId>,
    unit: Option<&UnitName>,
) -> Result<Charts, Error> {
    let store = &console.shared.measurements.series;
    let chosen = chosen(store, &selector(whose, host, unit)).await?;
    let (span, series) = grouped(store, chosen, asked.span()).await?;
    let marks = match host {
        Some(host) => mark::of(console, host, unit, &span).await?,
        None => Vec::new(),
    };
    let (first, count) = span.steps();
    let middle = |step: usize| seconds((first + step as Millis) * span.step_ms + span.step_ms / 2);
    Ok(Charts {
        from: seconds(span.start_ms),
        to: seconds(span.end_ms),
        times: (0..count).map(middle).collect(),
        step: seconds(span.step_ms),
        charts: whose.charts(&span, &series),
        marks,
    })
}

fn answered(charts: Result<Charts, Error>) -> Response {
    // For a script, a problem is a JSON document, too.
    charts.map_or_else(IntoResponse::into_response, |charts| Json(charts).into_response())
}

/// Returns the charts of a host.
pub(super) async fn host(
    State(console): State<Console>,
    PageSegments(host): PageSegments<HostId>,
    PageParams(asked): PageParams<TimeQuery>,
) -> Response {
    answered(charts(&console, &asked, ChartScope::Host, Some(host), None).await)
}

/// Returns the charts of a unit.
pub(super) async fn unit(
    State(console): State<Console>,
    PageSegments((host, realm, name)): PageSegments<(HostId, Name, Name)>,
    PageParams(asked): PageParams<TimeQuery>,
) -> Response {
    let unit = UnitName::new(&realm, &name);
    answered(charts(&console, &asked, ChartScope::Unit, Some(host), Some(&unit)).await)
}

/// Returns the charts of the whole fleet.
pub(super) async fn fleet(State(console): State<Console>, PageParams(asked): PageParams<TimeQuery>) -> Response {
    answered(charts(&console, &asked, ChartScope::Fleet, None, None).await)
}

/// Returns the latest values of a host, or of a unit on it.
pub(super) async fn latest(console: &Console, host: HostId, unit: Option<&UnitName>) -> Result<Vec<Latest>, Error> {
    let store = &console.shared.measurements.series;
    let whose = if unit.is_some() { ChartScope::Unit } else { ChartScope::Host };
    let chosen = chosen(store, &selector(whose, Some(host), unit)).await?;
    let ids: Vec<_> = chosen.iter().map(|one| one.id).collect();
    let now = now_ms();
    // Clocks of hosts may be ahead.
    let points = store.points(&ids, (now - LATEST_MS, now + LATEST_MS)).await?;
    let recent = chosen.into_iter().zip(points);
    let recent = recent.map(|(one, points)| Recent { name: one.name, labels: one.labels, points });
    Ok(latest::newest(&recent.collect::<Vec<_>>()))
}
