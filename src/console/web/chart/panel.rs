//! Assembles series into the charts that [`table`](super::chart_list) lists. Pure.
//!
//! Metrics that a unit reports itself have unknown names; each gets a chart of its own, whose kind follows from
//! the name's suffix. So does a metric of the catalogue that no panel names.

use std::collections::BTreeMap;

use muster_topics::{
    alert::Metric,
    catalogue::{self, FieldKind},
};
use serde::Serialize;

use super::{
    chart_list::{
        AGENT, ChartPanel, ChartPart, DrawStyle,
        LineName::{By, Fixed},
        NOT_CHARTED, OF_FLEET, OF_HOST, OF_UNIT, Scale,
        SeriesUse::{Around, Newest, Of, Rate, Value},
        TOLD, panel,
    },
    line::{ChartLine, StepRange},
    range::ChartSpan,
};

/// The most lines of a chart: beyond it, those with the greatest values are shown, with the number of the others.
const LINES_MAX: usize = 12;
/// The most rows of a chart of cells: processors of a large machine.
const ROWS_MAX: usize = 256;

/// What the charts are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChartScope {
    Host,
    Unit,
    Fleet,
}

/// One chart, as a script draws it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Chart {
    pub(super) word: String,
    pub(super) title: String,
    pub(super) group: &'static str,
    pub(super) scale: Scale,
    pub(super) drawn: DrawStyle,
    pub(super) lines: Vec<ChartLine>,
    /// The number of lines that are not shown.
    pub(super) more: usize,
}

/// A series, with its values in each step.
pub(super) struct Grouped {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) groups: Vec<StepRange>,
}

impl ChartScope {
    fn panels(self) -> &'static [ChartPanel] {
        match self {
            Self::Host => OF_HOST,
            Self::Unit => OF_UNIT,
            Self::Fleet => OF_FLEET,
        }
    }

    /// Returns the prefixes of all names that are shown, for a selector.
    pub(super) fn names(self) -> &'static str {
        match self {
            Self::Host => "muster_(host|agent)_.+",
            Self::Unit => "muster_(unit|yuno)_.+",
            Self::Fleet => "muster_fleet_.+",
        }
    }

    /// Returns the charts of series; charts without series are left out.
    pub(super) fn charts(self, span: &ChartSpan, series: &[Grouped]) -> Vec<Chart> {
        let mut by_name: BTreeMap<&str, Vec<&Grouped>> = BTreeMap::new();
        for one in series {
            by_name.entry(&one.name).or_default().push(one);
        }
        let mut charts: Vec<Chart> = self.panels().iter().filter_map(|panel| panel.chart(span, &by_name)).collect();
        let rest = by_name.iter().filter(|(name, _)| !self.panels().iter().any(|panel| panel.has(name)));
        charts.extend(rest.filter_map(|(name, series)| self.own_chart(span, name, series)));
        charts
    }

    /// Returns the chart of a series that no panel names; `None` if it is not to be shown.
    fn own_chart(self, span: &ChartSpan, name: &str, series: &[&Grouped]) -> Option<Chart> {
        let group = if self == Self::Host { AGENT } else { "" };
        match catalogue::series(name) {
            Some(_) if NOT_CHARTED.contains(&name) => None,
            Some((_, field)) => {
                let title = field.about.trim_end_matches('.').to_owned();
                Some(own_chart(span, (group, name, title), series))
            }
            None if self == Self::Unit => {
                let of = name.trim_end_matches("_total");
                let title = of.trim_start_matches("muster_yuno_").trim_start_matches("muster_unit_").replace('_', " ");
                Some(own_chart(span, (TOLD, name, title), series))
            }
            None => None,
        }
    }
}

/// Returns the chart that shows an alert's metric: the one of the series that it is made from.
pub(super) fn about(metric: Metric) -> Option<&'static str> {
    match metric {
        Metric::ClockOff => return Some("clock"),
        Metric::UnitRestarts | Metric::UnitBroken | Metric::UnitFailed => return Some("unit-restarts"),
        _ => {}
    }
    let (of, _) = metric.row().source.fields()?;
    let name = format!("{}_{}", of.measurement, of.field);
    OF_HOST.iter().chain(OF_UNIT).find(|panel| panel.parts.iter().any(|part| part.name == name)).map(|panel| panel.word)
}

impl ChartPanel {
    /// Whether it draws the series of a name, or what they are a share of.
    fn has(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name || matches!(part.how, Of(whole) if whole == name))
    }

    /// Returns the chart, or `None` if it has no series.
    fn chart(&self, span: &ChartSpan, by_name: &BTreeMap<&str, Vec<&Grouped>>) -> Option<Chart> {
        let mut lines = Vec::new();
        let mut found = false;
        for part in self.parts {
            for series in by_name.get(part.name).into_iter().flatten() {
                found = true;
                lines.extend(part.line(span, series, by_name));
            }
        }
        // A machine without swap, for example, has no chart of it.
        let nothing = lines.iter().all(|line| line.peak().is_none_or(|peak| peak == 0.0)) && self.word == "swap";
        let (lines, more) = self.fitting(lines);
        (found && !nothing).then(|| Chart {
            word: self.word.to_owned(),
            title: self.title.to_owned(),
            group: self.group,
            scale: self.scale,
            drawn: self.drawn,
            lines,
            more,
        })
    }

    /// Limits the number of lines.
    fn fitting(&self, mut lines: Vec<ChartLine>) -> (Vec<ChartLine>, usize) {
        if self.drawn == DrawStyle::Cells {
            // In numerical order: the tenth core after the second.
            lines.sort_by(|a, b| (a.label.len(), &a.label).cmp(&(b.label.len(), &b.label)));
            let more = lines.len().saturating_sub(ROWS_MAX);
            lines.truncate(ROWS_MAX);
            return (lines, more);
        }
        let more = lines.len().saturating_sub(LINES_MAX);
        if more > 0 {
            lines.sort_by(|a, b| b.peak().unwrap_or(0.0).total_cmp(&a.peak().unwrap_or(0.0)));
            lines.truncate(LINES_MAX);
        }
        (lines, more)
    }
}

impl ChartPart {
    fn line(&self, span: &ChartSpan, series: &Grouped, by_name: &BTreeMap<&str, Vec<&Grouped>>) -> Option<ChartLine> {
        let label = match self.called {
            Fixed(label) => label.to_owned(),
            By(label, word) => match series.labels.get(label) {
                Some(value) => format!("{value}{word}"),
                None if word.is_empty() => "warmest".to_owned(),
                None => word.trim().to_owned(),
            },
        };
        match self.how {
            Value => Some(ChartLine::means(span, label, &series.groups, false)),
            Around => Some(ChartLine::means(span, label, &series.groups, true)),
            Newest => Some(ChartLine::newest(span, label, &series.groups)),
            Rate => Some(ChartLine::rate(span, label, &series.groups)),
            Of(whole) => {
                let whole = by_name.get(whole)?.iter().find(|whole| whole.labels == series.labels)?;
                ChartLine::share(span, label, &series.groups, &whole.groups)
            }
        }
    }
}

/// Returns the chart of series for which no panel is listed: its group, its name and its title are these.
fn own_chart(span: &ChartSpan, (group, name, title): (&'static str, &str, String), series: &[&Grouped]) -> Chart {
    const OWN: [&str; 6] = ["host", "hostname", "instance", "realm", "unit", "kind"];
    let (kind, unit) = catalogue::kind_and_unit(name);
    let line = |series: &&Grouped| {
        let labels = series.labels.iter().filter(|(label, _)| !OWN.contains(&label.as_str()));
        let label = labels.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
        let label = if label.is_empty() { "value".to_owned() } else { label };
        if kind == FieldKind::Counter {
            ChartLine::rate(span, label, &series.groups)
        } else {
            ChartLine::means(span, label, &series.groups, true)
        }
    };
    let all = panel((group, "", ""), Scale::of(kind, unit), &[]);
    let (lines, more) = all.fitting(series.iter().map(line).collect());
    Chart { word: name.to_owned(), title, group, scale: all.scale, drawn: all.drawn, lines, more }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::web::chart::line::fold;

    const SPAN: ChartSpan = ChartSpan { start_ms: 0, end_ms: 100_000, step_ms: 10_000 };

    fn series(name: &str, labels: &[(&str, &str)], values: &[f64]) -> Grouped {
        let points: Vec<_> = (0..).map(|n| n * 10_000).zip(values.iter().copied()).collect();
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Grouped { name: name.to_owned(), labels, groups: fold(&SPAN, &[], &points) }
    }

    #[test]
    fn panel_words_and_series_are_unique() {
        let all: Vec<&ChartPanel> = [OF_HOST, OF_UNIT, OF_FLEET].into_iter().flatten().collect();
        let words: BTreeSet<&str> = all.iter().map(|panel| panel.word).collect();
        assert_eq!(words.len(), all.len());
        let names: Vec<&str> = all.iter().flat_map(|panel| panel.parts).map(|part| part.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for metric in Metric::ALL {
            assert!(about(metric).is_none_or(|word| words.contains(word)), "{metric:?}");
        }
    }

    #[test]
    fn panels_fit_the_catalogue() {
        let all = || [OF_HOST, OF_UNIT, OF_FLEET].into_iter().flatten();
        for panel in all() {
            for part in panel.parts {
                let (measurement, field) = catalogue::series(part.name).unwrap_or_else(|| panic!("{}", part.name));
                let scale = match part.how {
                    Of(whole) => {
                        assert_eq!(catalogue::series(whole).unwrap().1.unit, field.unit, "{whole}");
                        Scale::Ratio
                    }
                    // Only for connections the number itself is shown.
                    Value if part.name == "muster_agent_link_reconnects_total" => Scale::Number,
                    how => {
                        assert_eq!(how == Rate, field.kind == FieldKind::Counter, "{}", part.name);
                        Scale::of(field.kind, field.unit)
                    }
                };
                assert_eq!(panel.scale, scale, "{}", part.name);
                // No sensor is named: only the warmest is measured.
                if let By(label, _) = part.called
                    && label != "sensor"
                {
                    assert!(measurement.labels.contains(&label), "{}: {label}", part.name);
                }
            }
        }
        for name in NOT_CHARTED {
            assert!(catalogue::series(name).is_some() && !all().any(|panel| panel.has(name)), "{name}");
        }
    }

    #[test]
    fn listed_series_without_panel_has_its_own_chart() {
        let name = "muster_fleet_cpu_busy_ratio";
        let chart = |scope: ChartScope| scope.own_chart(&SPAN, name, &[&series(name, &[], &[0.1])]);
        let (host, unit) = (chart(ChartScope::Host).unwrap(), chart(ChartScope::Unit).unwrap());
        assert_eq!((host.group, unit.group, host.scale), (AGENT, "", Scale::Ratio));
        assert_eq!(host.title, "The mean share of processor time that hosts use");
        assert_eq!(host.lines[0].label, "value");
        assert!(ChartScope::Host.charts(&SPAN, &[series("muster_host_online", &[], &[1.0])]).is_empty());
        assert!(ChartScope::Host.charts(&SPAN, &[series("muster_host_unknown", &[], &[1.0])]).is_empty());
    }

    #[test]
    fn only_existing_series_have_charts() {
        let (root, data) = ([("mount", "/")], [("mount", "/data")]);
        let eth = [("interface", "eth0")];
        let charts = ChartScope::Host.charts(
            &SPAN,
            &[
                series("muster_host_cpu_busy_ratio", &[], &[0.1, 0.2]),
                series("muster_host_cpu_core_busy_ratio", &[("core", "10")], &[0.1]),
                series("muster_host_cpu_core_busy_ratio", &[("core", "2")], &[0.2]),
                series("muster_host_disk_used_bytes", &root, &[50.0]),
                series("muster_host_disk_used_bytes", &data, &[1.0]),
                series("muster_host_disk_used_bytes", &[("mount", "/gone")], &[1.0]),
                series("muster_host_disk_total_bytes", &root, &[100.0]),
                series("muster_host_disk_total_bytes", &data, &[10.0]),
                series("muster_host_network_receive_bytes_total", &eth, &[0.0, 10_240.0]),
                series("muster_host_network_transmit_bytes_total", &eth, &[0.0, 0.0]),
                series("muster_host_swap_used_bytes", &[], &[0.0]),
                series("muster_host_swap_total_bytes", &[], &[0.0]),
                series("muster_host_uptime_seconds", &[], &[5.0]),
            ],
        );
        let found: Vec<_> = charts
            .iter()
            .map(|chart| {
                let lines = chart.lines.iter().map(|line| format!("{} {:?}", line.label, line.peak().unwrap_or(-1.0)));
                (chart.word.as_str(), lines.collect::<Vec<_>>().join(", "))
            })
            .collect();
        let wanted = [
            ("cpu", "busy 0.2"),
            ("cores", "2 0.2, 10 0.1"),
            ("disk", "/ 0.5, /data 0.1"),
            ("network", "eth0 in 1024.0, eth0 out 0.0"),
        ];
        assert_eq!(found, wanted.map(|(word, lines)| (word, lines.to_owned())));
    }

    #[test]
    fn reported_stats_are_charted_by_suffix() {
        let of = |name: &str| {
            let charts =
                ChartScope::Unit.charts(&SPAN, &[series(name, &[("unit", "till"), ("lane", "3")], &[1.0, 11.0])]);
            let [chart] = charts.as_slice() else { panic!("{name}: {charts:?}") };
            assert_eq!((chart.lines[0].label.as_str(), chart.group), ("3", TOLD));
            (chart.title.clone(), chart.scale, chart.lines[0].peak().unwrap())
        };
        assert_eq!(of("muster_yuno_requests_total"), ("requests".to_owned(), Scale::PerSecond, 1.0));
        assert_eq!(of("muster_yuno_cache_bytes"), ("cache bytes".to_owned(), Scale::Bytes, 11.0));
        assert_eq!(of("muster_yuno_sent_bytes_total").1, Scale::BytesPerSecond);
        assert_eq!(of("muster_yuno_hit_ratio").1, Scale::Ratio);
        assert_eq!(of("muster_yuno_queue"), ("queue".to_owned(), Scale::Number, 11.0));
    }

    #[test]
    fn lines_beyond_the_limit_are_counted() {
        let many: Vec<Grouped> = (0..40)
            .map(|n| series("muster_host_temperature_celsius", &[("sensor", &n.to_string())], &[f64::from(n)]))
            .collect();
        let charts = ChartScope::Host.charts(&SPAN, &many);
        assert_eq!((charts[0].lines.len(), charts[0].more), (LINES_MAX, 40 - LINES_MAX));
        assert_eq!(charts[0].lines[0].label, "39", "the greatest stay");
    }
}
