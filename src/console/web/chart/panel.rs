//! The charts that there are: which series each shows, how, and under which label. Pure.
//!
//! What a unit tells of itself has names that nobody here knows; each such series gets a chart of its own, whose kind its
//! name's ending tells ([`Panel::told`]).

use std::collections::BTreeMap;

use muster_topics::alert::Metric;
use serde::Serialize;

use super::{
    line::{Group, Line},
    range::Span,
};

/// The most lines of a chart: beyond it, those with the greatest values are shown, and it is said how many more there are.
const LINES_MAX: usize = 12;
/// The most rows of one that is drawn as cells: processors of a large machine.
const ROWS_MAX: usize = 256;

/// How values are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scale {
    Ratio,
    Bytes,
    BytesPerSecond,
    PerSecond,
    Seconds,
    Celsius,
    Number,
}

/// What becomes of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Its mean.
    Value,
    /// Its mean, with the least and greatest around it.
    Around,
    /// A counter's growth per second.
    Rate,
    /// Its share of the series of this name with the same labels.
    Of(&'static str),
}

/// What a line is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// So.
    Fixed(&'static str),
    /// What a label says, with a word behind it.
    By(&'static str, &'static str),
}

/// Series of one name in a chart.
#[derive(Clone, Copy, Debug)]
struct Part {
    name: &'static str,
    how: How,
    called: Called,
}

const fn part(name: &'static str, how: How, called: Called) -> Part {
    Part { name, how, called }
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Drawn {
    Lines,
    /// A row of cells for each line, the deeper the greater.
    Cells,
}

/// What a chart shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    /// Its name in documents.
    word: &'static str,
    /// Its name for people, and the heading that it stands under.
    title: &'static str,
    group: &'static str,
    scale: Scale,
    drawn: Drawn,
    parts: &'static [Part],
}

const fn panel(
    (group, word, title): (&'static str, &'static str, &'static str),
    scale: Scale,
    parts: &'static [Part],
) -> Panel {
    Panel { word, title, group, scale, drawn: Drawn::Lines, parts }
}

use Called::{By, Fixed};
use How::{Around, Of, Rate, Value};

const CPU: &str = "Processor and memory";
const DISKS: &str = "Disks";
const NETWORK: &str = "Network";
const AGENT: &str = "Agent and machine";
const TOLD: &str = "Told by the unit itself";

/// The charts of a host.
const OF_HOST: &[Panel] = &[
    panel(
        (CPU, "cpu", "Processor, all cores"),
        Scale::Ratio,
        &[
            part("muster_host_cpu_busy_ratio", Around, Fixed("busy")),
            part("muster_host_cpu_user_ratio", Value, Fixed("user")),
            part("muster_host_cpu_system_ratio", Value, Fixed("system")),
            part("muster_host_cpu_iowait_ratio", Value, Fixed("waits for disks")),
            part("muster_host_cpu_steal_ratio", Value, Fixed("stolen")),
        ],
    ),
    Panel {
        drawn: Drawn::Cells,
        ..panel(
            (CPU, "cores", "Each core"),
            Scale::Ratio,
            &[part("muster_host_cpu_core_busy_ratio", Value, By("core", ""))],
        )
    },
    panel(
        (CPU, "load", "Load"),
        Scale::Number,
        &[
            part("muster_host_load_1m", Around, Fixed("1 min")),
            part("muster_host_load_5m", Value, Fixed("5 min")),
            part("muster_host_load_15m", Value, Fixed("15 min")),
        ],
    ),
    panel(
        (CPU, "pressure", "Pressure: time that something waited"),
        Scale::Ratio,
        &[part("muster_host_pressure_some_seconds_total", Rate, By("resource", ""))],
    ),
    panel(
        (CPU, "pressure-full", "Pressure: time that everything waited"),
        Scale::Ratio,
        &[part("muster_host_pressure_full_seconds_total", Rate, By("resource", ""))],
    ),
    panel(
        (CPU, "memory", "Memory"),
        Scale::Bytes,
        &[
            part("muster_host_memory_used_bytes", Around, Fixed("used")),
            part("muster_host_memory_total_bytes", Value, Fixed("total")),
        ],
    ),
    panel(
        (CPU, "swap", "Swap"),
        Scale::Bytes,
        &[
            part("muster_host_swap_used_bytes", Around, Fixed("used")),
            part("muster_host_swap_total_bytes", Value, Fixed("total")),
        ],
    ),
    panel(
        (DISKS, "disk", "Space, used"),
        Scale::Ratio,
        &[part("muster_host_disk_used_bytes", Of("muster_host_disk_total_bytes"), By("mount", ""))],
    ),
    panel(
        (DISKS, "inodes", "Inodes, used"),
        Scale::Ratio,
        &[part("muster_host_disk_used_inodes", Of("muster_host_disk_inodes"), By("mount", ""))],
    ),
    panel(
        (DISKS, "disk-io", "Read and written"),
        Scale::BytesPerSecond,
        &[
            part("muster_host_disk_io_read_bytes_total", Rate, By("device", " read")),
            part("muster_host_disk_io_written_bytes_total", Rate, By("device", " written")),
        ],
    ),
    panel(
        (DISKS, "disk-operations", "Operations"),
        Scale::PerSecond,
        &[
            part("muster_host_disk_io_reads_total", Rate, By("device", " reads")),
            part("muster_host_disk_io_writes_total", Rate, By("device", " writes")),
        ],
    ),
    panel(
        (DISKS, "disk-busy", "Time that disks were busy"),
        Scale::Ratio,
        &[part("muster_host_disk_io_busy_seconds_total", Rate, By("device", ""))],
    ),
    panel(
        (NETWORK, "network", "Traffic"),
        Scale::BytesPerSecond,
        &[
            part("muster_host_network_receive_bytes_total", Rate, By("interface", " in")),
            part("muster_host_network_transmit_bytes_total", Rate, By("interface", " out")),
        ],
    ),
    panel(
        (NETWORK, "packets", "Packets"),
        Scale::PerSecond,
        &[
            part("muster_host_network_receive_packets_total", Rate, By("interface", " in")),
            part("muster_host_network_transmit_packets_total", Rate, By("interface", " out")),
        ],
    ),
    panel(
        (NETWORK, "network-errors", "Errors and drops"),
        Scale::PerSecond,
        &[
            part("muster_host_network_receive_errors_total", Rate, By("interface", " errors in")),
            part("muster_host_network_transmit_errors_total", Rate, By("interface", " errors out")),
            part("muster_host_network_receive_drops_total", Rate, By("interface", " drops in")),
            part("muster_host_network_transmit_drops_total", Rate, By("interface", " drops out")),
        ],
    ),
    panel(
        (AGENT, "temperature", "Temperature"),
        Scale::Celsius,
        &[part("muster_host_temperature_celsius", Around, By("sensor", ""))],
    ),
    panel(
        (AGENT, "clock", "Clock, ahead of the console's"),
        Scale::Seconds,
        &[part("muster_host_clock_offset_seconds", Around, Fixed("offset"))],
    ),
    panel(
        (AGENT, "agent-cpu", "The agent's processor time"),
        Scale::Ratio,
        &[part("muster_agent_cpu_busy_ratio", Around, Fixed("busy"))],
    ),
    panel(
        (AGENT, "agent-memory", "The agent's memory and store"),
        Scale::Bytes,
        &[
            part("muster_agent_memory_resident_bytes", Around, Fixed("memory")),
            part("muster_agent_store_size_bytes", Value, Fixed("store")),
        ],
    ),
    panel(
        (AGENT, "agent-queues", "What the agent has waiting"),
        Scale::Number,
        &[part("muster_agent_queue_length", Around, By("queue", ""))],
    ),
    panel(
        (AGENT, "agent-reconcile", "The agent's reconciling"),
        Scale::Seconds,
        &[
            part("muster_agent_reconcile_age_seconds", Value, Fixed("age")),
            part("muster_agent_reconcile_duration_seconds", Around, Fixed("duration")),
        ],
    ),
    panel(
        (AGENT, "agent-link", "Connections to the broker, made anew"),
        Scale::PerSecond,
        &[part("muster_agent_link_reconnects_total", Rate, Fixed("reconnects"))],
    ),
];

/// The charts of a unit.
const OF_UNIT: &[Panel] = &[
    panel(
        ("", "unit-cpu", "Processor, share of the whole host"),
        Scale::Ratio,
        &[part("muster_unit_cpu_busy_ratio", Around, Fixed("busy"))],
    ),
    panel(
        ("", "unit-throttled", "Time that it was throttled"),
        Scale::Ratio,
        &[part("muster_unit_cpu_throttled_seconds_total", Rate, Fixed("throttled"))],
    ),
    panel(
        ("", "unit-memory", "Memory, resident"),
        Scale::Bytes,
        &[
            part("muster_unit_memory_resident_bytes", Around, Fixed("resident")),
            part("muster_unit_memory_limit_bytes", Value, Fixed("limit")),
        ],
    ),
    panel(
        ("", "unit-io", "Read and written"),
        Scale::BytesPerSecond,
        &[
            part("muster_unit_io_read_bytes_total", Rate, Fixed("read")),
            part("muster_unit_io_written_bytes_total", Rate, Fixed("written")),
        ],
    ),
    panel(
        ("", "unit-processes", "Processes"),
        Scale::Number,
        &[part("muster_unit_processes_count", Around, Fixed("processes"))],
    ),
    panel(
        ("", "unit-restarts", "Started again by itself, without five good minutes between"),
        Scale::Number,
        &[part("muster_unit_restart_attempts", Around, Fixed("times"))],
    ),
];

/// The charts of the fleet, which the console records.
const OF_FLEET: &[Panel] = &[
    panel(
        ("", "fleet-cpu", "Processors"),
        Scale::Ratio,
        &[
            part("muster_fleet_cpu_busiest_ratio", Value, Fixed("busiest host")),
            part("muster_fleet_cpu_busy_ratio", Value, Fixed("mean")),
        ],
    ),
    panel(
        ("", "fleet-memory", "Memory"),
        Scale::Bytes,
        &[
            part("muster_fleet_memory_used_bytes", Value, Fixed("used")),
            part("muster_fleet_memory_total_bytes", Value, Fixed("total")),
        ],
    ),
    panel(
        ("", "fleet-network", "Traffic"),
        Scale::BytesPerSecond,
        &[
            part("muster_fleet_network_receive_rate", Value, Fixed("in")),
            part("muster_fleet_network_transmit_rate", Value, Fixed("out")),
        ],
    ),
    panel(
        ("", "fleet-hosts", "Hosts that measure"),
        Scale::Number,
        &[part("muster_fleet_hosts_measuring", Around, Fixed("hosts"))],
    ),
];

/// Whose charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
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
    pub(super) drawn: Drawn,
    pub(super) lines: Vec<Line>,
    /// Lines that there is no room for.
    pub(super) more: usize,
}

/// A series, and what it has in each step.
pub(super) struct Grouped {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) groups: Vec<Group>,
}

impl Whose {
    fn panels(self) -> &'static [Panel] {
        match self {
            Self::Host => OF_HOST,
            Self::Unit => OF_UNIT,
            Self::Fleet => OF_FLEET,
        }
    }

    /// Beginnings of the names of all series that are shown, for a selector.
    pub(super) fn names(self) -> &'static str {
        match self {
            Self::Host => "muster_(host|agent)_.+",
            Self::Unit => "muster_(unit|yuno)_.+",
            Self::Fleet => "muster_fleet_.+",
        }
    }

    /// The charts of some series. Those without any series are left out.
    pub(super) fn charts(self, span: &Span, series: &[Grouped]) -> Vec<Chart> {
        let mut by_name: BTreeMap<&str, Vec<&Grouped>> = BTreeMap::new();
        for one in series {
            by_name.entry(&one.name).or_default().push(one);
        }
        let mut charts: Vec<Chart> = self.panels().iter().filter_map(|panel| panel.chart(span, &by_name)).collect();
        if self == Self::Unit {
            let known = |name: &str| OF_UNIT.iter().flat_map(|panel| panel.parts).any(|part| part.name == name);
            charts
                .extend(by_name.iter().filter(|(name, _)| !known(name)).map(|(name, series)| told(span, name, series)));
        }
        charts
    }
}

/// Which chart shows what an alert is about.
pub(super) fn about(metric: Metric) -> Option<&'static str> {
    Some(match metric {
        Metric::CpuBusy => "cpu",
        Metric::MemoryUsed => "memory",
        Metric::DiskUsed => "disk",
        Metric::LoadPerCore => "load",
        Metric::Temperature => "temperature",
        Metric::ClockOff => "clock",
        Metric::UnitCpuBusy => "unit-cpu",
        Metric::UnitMemory => "unit-memory",
        Metric::UnitRestarts | Metric::UnitBroken => "unit-restarts",
        _ => return None,
    })
}

impl Panel {
    /// Nothing if none of its series is there.
    fn chart(&self, span: &Span, by_name: &BTreeMap<&str, Vec<&Grouped>>) -> Option<Chart> {
        let mut lines = Vec::new();
        let mut found = false;
        for part in self.parts {
            for series in by_name.get(part.name).into_iter().flatten() {
                found = true;
                lines.extend(part.line(span, series, by_name));
            }
        }
        // What a machine has none of (swap) is no chart.
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

    /// As many lines as can be told apart.
    fn fitting(&self, mut lines: Vec<Line>) -> (Vec<Line>, usize) {
        if self.drawn == Drawn::Cells {
            // By number: the tenth core comes behind the second.
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

impl Part {
    fn line(&self, span: &Span, series: &Grouped, by_name: &BTreeMap<&str, Vec<&Grouped>>) -> Option<Line> {
        let label = match self.called {
            Fixed(label) => label.to_owned(),
            By(label, word) => match series.labels.get(label) {
                Some(value) => format!("{value}{word}"),
                None if word.is_empty() => "warmest".to_owned(),
                None => word.trim().to_owned(),
            },
        };
        match self.how {
            Value => Some(Line::means(span, label, &series.groups, false)),
            Around => Some(Line::means(span, label, &series.groups, true)),
            Rate => Some(Line::rate(span, label, &series.groups)),
            Of(whole) => {
                let whole = by_name.get(whole)?.iter().find(|whole| whole.labels == series.labels)?;
                Line::share(span, label, &series.groups, &whole.groups)
            }
        }
    }
}

/// The chart of series that are known by their name alone.
fn told(span: &Span, name: &str, series: &[&Grouped]) -> Chart {
    const OWN: [&str; 6] = ["host", "hostname", "instance", "realm", "unit", "kind"];
    let counter = name.ends_with("_total");
    let of = name.trim_end_matches("_total");
    let scale = match (of.rsplit('_').next(), counter) {
        (Some("bytes"), false) => Scale::Bytes,
        (Some("bytes"), true) => Scale::BytesPerSecond,
        (Some("ratio"), _) | (Some("seconds"), true) => Scale::Ratio,
        (Some("seconds"), false) => Scale::Seconds,
        (Some("celsius"), _) => Scale::Celsius,
        (_, true) => Scale::PerSecond,
        (_, false) => Scale::Number,
    };
    let line = |series: &&Grouped| {
        let labels = series.labels.iter().filter(|(label, _)| !OWN.contains(&label.as_str()));
        let label = labels.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
        let label = if label.is_empty() { "value".to_owned() } else { label };
        if counter { Line::rate(span, label, &series.groups) } else { Line::means(span, label, &series.groups, true) }
    };
    let title = of.trim_start_matches("muster_yuno_").trim_start_matches("muster_unit_").replace('_', " ");
    let all = panel((TOLD, "told", ""), scale, &[]);
    let (lines, more) = all.fitting(series.iter().map(line).collect());
    Chart { word: name.to_owned(), title, group: TOLD, scale, drawn: Drawn::Lines, lines, more }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::console::web::chart::line::fold;

    const SPAN: Span = Span { start_ms: 0, end_ms: 100_000, step_ms: 10_000 };

    fn series(name: &str, labels: &[(&str, &str)], values: &[f64]) -> Grouped {
        let points: Vec<_> = (0..).map(|n| n * 10_000).zip(values.iter().copied()).collect();
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Grouped { name: name.to_owned(), labels, groups: fold(&SPAN, &[], &points) }
    }

    #[test]
    fn words_and_series_are_there_once() {
        let all: Vec<&Panel> = [OF_HOST, OF_UNIT, OF_FLEET].into_iter().flatten().collect();
        let words: BTreeSet<&str> = all.iter().map(|panel| panel.word).collect();
        assert_eq!(words.len(), all.len());
        let names: Vec<&str> = all.iter().flat_map(|panel| panel.parts).map(|part| part.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for metric in Metric::ALL {
            assert!(about(metric).is_none_or(|word| words.contains(word)), "{metric:?}");
        }
        // What a name's ending says of it is what is made of it.
        for part in all.iter().flat_map(|panel| panel.parts) {
            assert_eq!(part.how == Rate, part.name.ends_with("_total"), "{}", part.name);
        }
    }

    #[test]
    fn charts_are_of_what_is_there() {
        let (root, data) = ([("mount", "/")], [("mount", "/data")]);
        let eth = [("interface", "eth0")];
        let charts = Whose::Host.charts(
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
    fn what_units_tell_is_shown_as_its_name_says() {
        let of = |name: &str| {
            let charts = Whose::Unit.charts(&SPAN, &[series(name, &[("unit", "till"), ("lane", "3")], &[1.0, 11.0])]);
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
    fn too_many_lines_are_cut_and_counted() {
        let many: Vec<Grouped> = (0..40)
            .map(|n| series("muster_host_temperature_celsius", &[("sensor", &n.to_string())], &[f64::from(n)]))
            .collect();
        let charts = Whose::Host.charts(&SPAN, &many);
        assert_eq!((charts[0].lines.len(), charts[0].more), (LINES_MAX, 40 - LINES_MAX));
        assert_eq!(charts[0].lines[0].label, "39", "the greatest stay");
    }
}
