//! Measurements: as charts, which a script draws from JSON, and as a table of the newest values, which
//! needs none.
//!
//! What a chart shows is decided here and not in the script: which series, under which label, whether
//! a counter becomes a rate, and where a line is interrupted because its host was silent.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use muster_topics::{
    Millis,
    name::{HostId, Name, UnitName},
};
use serde::{Deserialize, Serialize};

use super::{
    extract::{Params, Segments},
    view::bits::{self, bytes, percent},
};
use crate::{
    api::Series,
    clock::now_ms,
    console::{Console, Error},
};

/// Points of a line: about one for two columns of a wide screen's chart.
const POINTS_MAX: usize = 360;
/// A line is interrupted where nothing came for so many of its usual steps, and for longer than a
/// minute and a half (hosts send every 30 s).
const GAP_STEPS: Millis = 6;
const GAP_MIN_MS: Millis = 90_000;
/// What rates of the newest values are computed over: a few samples.
const RATE_MS: Millis = 120_000;

/// What a chart shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Panel {
    Cpu,
    Memory,
    Load,
    Disk,
    Network,
    UnitCpu,
    UnitMemory,
}

/// How values are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Scale {
    Ratio,
    Bytes,
    BytesPerSecond,
    Number,
}

impl Panel {
    /// The charts of a host.
    pub(super) const OF_HOST: [Self; 5] = [Self::Cpu, Self::Memory, Self::Load, Self::Disk, Self::Network];
    /// The charts of a unit.
    pub(super) const OF_UNIT: [Self; 2] = [Self::UnitCpu, Self::UnitMemory];

    /// Its name in addresses.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Load => "load",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::UnitCpu => "unit-cpu",
            Self::UnitMemory => "unit-memory",
        }
    }

    /// Its name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Cpu => "Processor",
            Self::Memory => "Memory",
            Self::Load => "Load",
            Self::Disk => "Disks, used",
            Self::Network => "Network",
            Self::UnitCpu => "Processor, share of the whole host",
            Self::UnitMemory => "Memory, resident",
        }
    }

    fn scale(self) -> Scale {
        match self {
            Self::Cpu | Self::Disk | Self::UnitCpu => Scale::Ratio,
            Self::Memory | Self::UnitMemory => Scale::Bytes,
            Self::Load => Scale::Number,
            Self::Network => Scale::BytesPerSecond,
        }
    }

    /// The names of the series that it is made of.
    fn names(self) -> &'static str {
        match self {
            Self::Cpu => "muster_host_cpu_busy_ratio",
            Self::Memory => "muster_host_memory_(used|total)_bytes",
            Self::Load => "muster_host_load_(1|5|15)m",
            Self::Disk => "muster_host_disk_(used|total)_bytes",
            Self::Network => "muster_host_network_(receive|transmit)_bytes_total",
            Self::UnitCpu => "muster_unit_cpu_busy_ratio",
            Self::UnitMemory => "muster_unit_memory_resident_bytes",
        }
    }

    /// Series become lines.
    fn lines(self, series: &[Series]) -> Vec<Line> {
        let each = |label: &dyn Fn(&Series) -> String| {
            series.iter().map(|one| Line::new(label(one), one.points.clone())).collect::<Vec<_>>()
        };
        let mut lines = match self {
            Self::Cpu | Self::UnitCpu => each(&|_| "busy".to_owned()),
            Self::UnitMemory => each(&|_| "resident".to_owned()),
            Self::Memory => each(&|one| if one.name.contains("_used_") { "used" } else { "total" }.to_owned()),
            Self::Load => each(&|one| one.name.rsplit('_').next().unwrap_or_default().to_owned()),
            Self::Disk => disks(series),
            Self::Network => series.iter().map(|one| Line::new(interface(one), rates(&one.points))).collect(),
        };
        if self == Self::Load {
            // 1m, 5m, 15m: as everybody writes them.
            lines.sort_by_key(|line| line.label.trim_end_matches('m').parse::<u32>().unwrap_or(0));
        }
        lines
    }
}

/// How far back charts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum Range {
    #[serde(rename = "15m")]
    QuarterHour,
    #[default]
    #[serde(rename = "1h")]
    Hour,
    #[serde(rename = "6h")]
    SixHours,
    #[serde(rename = "24h")]
    Day,
    #[serde(rename = "7d")]
    Week,
}

impl Range {
    const ALL: [Self; 5] = [Self::QuarterHour, Self::Hour, Self::SixHours, Self::Day, Self::Week];

    /// Its name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::QuarterHour => "15m",
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    fn length_ms(self) -> Millis {
        const MINUTE_MS: Millis = 60_000;
        match self {
            Self::QuarterHour => 15 * MINUTE_MS,
            Self::Hour => 60 * MINUTE_MS,
            Self::SixHours => 6 * 60 * MINUTE_MS,
            Self::Day => 24 * 60 * MINUTE_MS,
            Self::Week => 7 * 24 * 60 * MINUTE_MS,
        }
    }

    /// Links to the same page with each range.
    pub(super) fn links(self, url: &str) -> Markup {
        html! {
            nav.ranges aria-label="Range of the charts" {
                @for range in Self::ALL {
                    a href={ (url) "?range=" (range.word()) } aria-current=[(range == self).then_some("true")] { (range.word()) }
                }
            }
        }
    }
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    label: String,
    /// Seconds since the Unix epoch.
    times: Vec<f64>,
    /// Nothing where the line is interrupted.
    values: Vec<Option<f64>>,
}

impl Line {
    fn new(label: String, points: Vec<(Millis, f64)>) -> Self {
        let gap_ms = gap_ms(&points);
        let mut line = Self { label, times: Vec::new(), values: Vec::new() };
        let mut before = None;
        for (at_ms, value) in points.into_iter().filter(|(_, value)| value.is_finite()) {
            if let Some(before) = before.filter(|before| at_ms - before > gap_ms) {
                line.push(before + gap_ms / 2, None);
            }
            line.push(at_ms, Some(value));
            before = Some(at_ms);
        }
        line
    }

    fn push(&mut self, at_ms: Millis, value: Option<f64>) {
        self.times.push(at_ms as f64 / 1000.0);
        self.values.push(value);
    }
}

/// From which length on a pause is a gap, and not just the usual step.
fn gap_ms(points: &[(Millis, f64)]) -> Millis {
    let mut steps: Vec<Millis> = points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    steps.sort_unstable();
    let usual = steps.get(steps.len() / 2).copied().unwrap_or(0);
    GAP_MIN_MS.max(usual.saturating_mul(GAP_STEPS))
}

/// A counter's growth per second. Where it fell it was reset, and nothing can be said.
fn rates(points: &[(Millis, f64)]) -> Vec<(Millis, f64)> {
    let rate = |pair: &[(Millis, f64)]| {
        let ((from_ms, from), (to_ms, to)) = (pair[0], pair[1]);
        (to >= from && to_ms > from_ms).then(|| (to_ms, (to - from) * 1000.0 / (to_ms - from_ms) as f64))
    };
    points.windows(2).filter_map(rate).collect()
}

fn interface(series: &Series) -> String {
    let name = series.labels.get("interface").map_or("", String::as_str);
    if series.name.contains("_receive_") { format!("{name} in") } else { format!("{name} out") }
}

fn mount(series: &Series) -> String {
    series.labels.get("mount").cloned().unwrap_or_default()
}

/// Of each mount, the used share of its size at that time (or of its last known size).
fn disks(series: &[Series]) -> Vec<Line> {
    let (used, total): (Vec<&Series>, Vec<&Series>) = series.iter().partition(|one| one.name.contains("_used_"));
    let share = |used: &Series| {
        let total = total.iter().find(|total| total.labels == used.labels)?;
        let at: BTreeMap<Millis, f64> = total.points.iter().copied().collect();
        let last = total.points.last()?.1;
        let ratio = |(at_ms, used): &(Millis, f64)| (*at_ms, used / at.get(at_ms).copied().unwrap_or(last));
        Some(Line::new(mount(used), used.points.iter().map(ratio).collect()))
    };
    used.into_iter().filter_map(share).collect()
}

/// What a script draws.
#[derive(Debug, Serialize)]
struct Chart {
    scale: Scale,
    /// Seconds since the Unix epoch: the time that is shown, whether or not there are points.
    from: f64,
    to: f64,
    lines: Vec<Line>,
}

/// Which chart.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    metric: Panel,
    #[serde(default)]
    range: Range,
}

/// Which series: all of a host, or those of a unit on it. The parts are ids and names, in which nothing
/// has to be escaped.
fn selector(names: &str, host: HostId, unit: Option<&UnitName>) -> String {
    let unit = unit.map(|unit| format!(",realm=\"{}\",unit=\"{}\"", unit.realm(), unit.name())).unwrap_or_default();
    format!("{{__name__=~\"{names}\",host=\"{host}\"{unit}}}")
}

async fn chart(console: &Console, asked: &Asked, host: HostId, unit: Option<&UnitName>) -> Result<Chart, Error> {
    let now = now_ms();
    let start = now - asked.range.length_ms();
    let selector = selector(asked.metric.names(), host, unit);
    let series = console.series(&selector, Some((start, now)), POINTS_MAX).await?.series;
    let seconds = |ms: Millis| ms as f64 / 1000.0;
    let lines = asked.metric.lines(&series);
    Ok(Chart { scale: asked.metric.scale(), from: seconds(start), to: seconds(now), lines })
}

fn answered(chart: Result<Chart, Error>) -> Response {
    // For a script, a problem is a JSON document too.
    chart.map_or_else(IntoResponse::into_response, |chart| Json(chart).into_response())
}

/// A chart of a host.
pub(super) async fn host(
    State(console): State<Console>,
    Segments(host): Segments<HostId>,
    Params(asked): Params<Asked>,
) -> Response {
    answered(chart(&console, &asked, host, None).await)
}

/// A chart of a unit.
pub(super) async fn unit(
    State(console): State<Console>,
    Segments((host, realm, name)): Segments<(HostId, Name, Name)>,
    Params(asked): Params<Asked>,
) -> Response {
    answered(chart(&console, &asked, host, Some(&UnitName::new(&realm, &name))).await)
}

/// The newest value of something.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Latest {
    /// What.
    pub(super) label: String,
    /// For people.
    pub(super) value: String,
    /// Of a whole, if it is part of one.
    pub(super) share: Option<f64>,
    /// When it was measured, by the host's clock.
    pub(super) at_ms: Millis,
}

/// The newest values of a host, or of a unit on it.
pub(super) async fn latest(console: &Console, host: HostId, unit: Option<&UnitName>) -> Result<Vec<Latest>, Error> {
    let panels: &[Panel] = if unit.is_some() { &Panel::OF_UNIT } else { &Panel::OF_HOST };
    let mut latest = Vec::new();
    for panel in panels {
        let selector = selector(panel.names(), host, unit);
        let now = now_ms();
        let range = (*panel == Panel::Network).then_some((now - RATE_MS, now));
        latest.extend(newest(*panel, &console.series(&selector, range, POINTS_MAX).await?.series));
    }
    Ok(latest)
}

/// The newest values, of series that hold them.
fn newest(panel: Panel, series: &[Series]) -> Vec<Latest> {
    let last = |line: &Line| {
        let value = line.values.last().copied().flatten()?;
        Some((line.label.clone(), value, (*line.times.last()? * 1000.0) as Millis))
    };
    let lines: Vec<_> = panel.lines(series).iter().filter_map(last).collect();
    let one = |label: String, value: String, share: Option<f64>, at_ms: Millis| Latest { label, value, share, at_ms };
    let title = panel.title();
    match panel {
        Panel::Cpu | Panel::UnitCpu => lines
            .into_iter()
            .map(|(_, value, at)| one("Processor".to_owned(), percent(value), Some(value), at))
            .collect(),
        Panel::Disk => lines
            .into_iter()
            .map(|(label, share, at)| one(format!("Disk {label}"), percent(share), Some(share), at))
            .collect(),
        Panel::UnitMemory => {
            lines.into_iter().map(|(_, value, at)| one("Memory".to_owned(), bytes(value as u64), None, at)).collect()
        }
        Panel::Network => lines
            .into_iter()
            .map(|(label, value, at)| one(format!("{title} {label}"), format!("{}/s", bytes(value as u64)), None, at))
            .collect(),
        Panel::Load => {
            let Some(at_ms) = lines.first().map(|(.., at)| *at) else { return Vec::new() };
            let values: Vec<String> = lines.iter().map(|(_, value, _)| format!("{value:.2}")).collect();
            vec![one("Load, 1, 5, 15 min".to_owned(), values.join(" "), None, at_ms)]
        }
        Panel::Memory => memory(&lines).into_iter().collect(),
    }
}

fn memory(lines: &[(String, f64, Millis)]) -> Option<Latest> {
    let find = |wanted: &str| lines.iter().find(|(label, ..)| label == wanted);
    let (&(_, used, at_ms), total) = (find("used")?, find("total").map(|(_, total, _)| *total));
    let share = total.filter(|total| *total > 0.0).map(|total| used / total);
    let value = match total {
        Some(total) => format!("{} of {}", bytes(used as u64), bits::bytes(total as u64)),
        None => bytes(used as u64),
    };
    Some(Latest { label: "Memory".to_owned(), value, share, at_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, labels: &[(&str, &str)], points: &[(Millis, f64)]) -> Series {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Series { name: name.to_owned(), labels, points: points.to_vec() }
    }

    #[test]
    fn a_counter_becomes_a_rate_and_its_reset_a_pause() {
        let points = [(0, 100.0), (10_000, 1_100.0), (20_000, 50.0), (30_000, 550.0), (30_000, 600.0)];
        assert_eq!(rates(&points), [(10_000, 100.0), (30_000, 50.0)]);
        assert_eq!(rates(&points[..1]), []);
    }

    #[test]
    fn a_line_is_interrupted_where_its_host_was_silent() {
        let steady: Vec<_> = (0..10).map(|n| (n * 10_000, 1.0)).collect();
        assert!(Line::new(String::new(), steady.clone()).values.iter().all(Option::is_some));
        let mut silent = steady;
        silent.push((1_000_000, 2.0));
        let line = Line::new(String::new(), silent);
        assert_eq!(line.values.len(), 12);
        assert_eq!(line.values[10], None);
        assert!(line.times.is_sorted());
        // Of a week, the usual step is long.
        let week: Vec<_> = (0..10).map(|n| (n * 3_000_000, 1.0)).collect();
        assert!(Line::new(String::new(), week).values.iter().all(Option::is_some));
        let odd = Line::new(String::new(), vec![(0, f64::NAN), (1, f64::INFINITY), (2, 1.0)]);
        assert_eq!(odd.values, [Some(1.0)], "what JSON cannot say is left out");
    }

    #[test]
    fn disks_are_shares_of_their_own_size() {
        let (root, data) = ([("mount", "/")], [("mount", "/data")]);
        let lines = disks(&[
            series("muster_host_disk_total_bytes", &root, &[(0, 100.0), (1, 200.0)]),
            series("muster_host_disk_total_bytes", &data, &[(0, 10.0)]),
            series("muster_host_disk_used_bytes", &root, &[(0, 50.0), (1, 50.0)]),
            series("muster_host_disk_used_bytes", &data, &[(0, 1.0), (1, 2.0)]),
            series("muster_host_disk_used_bytes", &[("mount", "/gone")], &[(0, 1.0)]),
        ]);
        let values: Vec<_> = lines.iter().map(|line| (line.label.as_str(), line.values.clone())).collect();
        assert_eq!(values, [("/", vec![Some(0.5), Some(0.25)]), ("/data", vec![Some(0.1), Some(0.2)])]);
    }

    #[test]
    fn newest_values_are_for_people() {
        let check = |panel, series: &[Series], wanted: &[(&str, &str)]| {
            let found = newest(panel, series);
            let found: Vec<_> = found.iter().map(|one| (one.label.as_str(), one.value.as_str())).collect();
            assert_eq!(found, wanted);
        };
        check(Panel::Cpu, &[series("muster_host_cpu_busy_ratio", &[], &[(5, 0.0312)])], &[("Processor", "3.1 %")]);
        let gib = f64::from(1 << 30);
        let (used, total) = ("muster_host_memory_used_bytes", "muster_host_memory_total_bytes");
        let both = [series(total, &[], &[(5, 4.0 * gib)]), series(used, &[], &[(5, gib)])];
        check(Panel::Memory, &both, &[("Memory", "1.0 GiB of 4.0 GiB")]);
        assert_eq!(newest(Panel::Memory, &both)[0].share, Some(0.25));
        check(Panel::Memory, &both[1..], &[("Memory", "1.0 GiB")]);
        let load = |minutes: &str, value| series(&format!("muster_host_load_{minutes}"), &[], &[(5, value)]);
        let loads = [load("15m", 0.3), load("1m", 0.1), load("5m", 0.2)];
        check(Panel::Load, &loads, &[("Load, 1, 5, 15 min", "0.10 0.20 0.30")]);
        let eth = [("interface", "eth0")];
        let net = [series("muster_host_network_receive_bytes_total", &eth, &[(0, 0.0), (1000, 2048.0)])];
        check(Panel::Network, &net, &[("Network eth0 in", "2.0 KiB/s")]);
        check(Panel::Load, &[], &[]);
    }

    #[test]
    fn words_are_what_addresses_say() {
        for panel in Panel::OF_HOST.into_iter().chain(Panel::OF_UNIT) {
            let word = serde_json::Value::from(panel.word());
            assert_eq!(serde_json::from_value::<Panel>(word).unwrap(), panel);
        }
        for range in Range::ALL {
            assert_eq!(serde_json::from_value::<Range>(range.word().into()).unwrap(), range);
        }
    }
}
