//! The list of charts, and how it is interpreted. Pure.

use muster_topics::catalogue::{FieldKind, Measure};
use serde::Serialize;

/// The scale of values.
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

impl Scale {
    /// Returns the scale of a field's values; for a counter, of its rate.
    pub(super) fn of(kind: FieldKind, unit: Measure) -> Self {
        match (kind, unit) {
            (FieldKind::Counter | FieldKind::Rate, Measure::Bytes) => Self::BytesPerSecond,
            (FieldKind::Counter | FieldKind::Rate, Measure::Number | Measure::Flag) => Self::PerSecond,
            (FieldKind::Counter | FieldKind::Rate, Measure::Seconds) | (_, Measure::Ratio) => Self::Ratio,
            (_, Measure::Celsius) => Self::Celsius,
            (FieldKind::Gauge, Measure::Bytes) => Self::Bytes,
            (FieldKind::Gauge, Measure::Seconds) => Self::Seconds,
            (FieldKind::Gauge, Measure::Number | Measure::Flag) => Self::Number,
        }
    }
}

/// What becomes of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeriesUse {
    /// By its mean.
    Value,
    /// By its mean, with minimum and maximum around it.
    Around,
    /// By its last value: for counts and sums a mean would be a value that never was.
    Newest,
    /// By a counter's rate per second.
    Rate,
    /// By its ratio to the series of this name with the same labels.
    Of(&'static str),
}

/// The name of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineName {
    /// This name.
    Fixed(&'static str),
    /// The value of a label, with a word after it.
    By(&'static str, &'static str),
}

/// Series of one name in a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChartPart {
    pub(super) name: &'static str,
    pub(super) how: SeriesUse,
    pub(super) called: LineName,
}

const fn part(name: &'static str, how: SeriesUse, called: LineName) -> ChartPart {
    ChartPart { name, how, called }
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DrawStyle {
    Lines,
    /// A row of cells for each line, darker for greater values.
    Cells,
}

/// A chart's definition.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChartPanel {
    /// Its name in documents.
    pub(super) word: &'static str,
    /// Its title, and the heading above it.
    pub(super) title: &'static str,
    pub(super) group: &'static str,
    pub(super) scale: Scale,
    pub(super) drawn: DrawStyle,
    pub(super) parts: &'static [ChartPart],
}

pub(super) const fn panel(
    (group, word, title): (&'static str, &'static str, &'static str),
    scale: Scale,
    parts: &'static [ChartPart],
) -> ChartPanel {
    ChartPanel { word, title, group, scale, drawn: DrawStyle::Lines, parts }
}

use LineName::{By, Fixed};
use SeriesUse::{Around, Newest, Of, Rate, Value};

const CPU: &str = "Processor and memory";
const DISKS: &str = "Disks";
const NETWORK: &str = "Network";
pub(super) const AGENT: &str = "Agent and machine";
pub(super) const TOLD: &str = "Told by the unit itself";

/// Series of the catalogue that have no chart: they are shown in words, or are what another one leaves. Others that no
/// panel names get a chart of their own.
pub(super) const NOT_CHARTED: [&str; 4] = [
    "muster_host_online",
    "muster_host_uptime_seconds",
    "muster_host_disk_unresponsive",
    "muster_host_memory_available_bytes",
];

/// The charts of a host.
pub(super) const OF_HOST: &[ChartPanel] = &[
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
    ChartPanel {
        drawn: DrawStyle::Cells,
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
        (CPU, "resources", "Open files, processes, ports, tracked connections: share of the limit"),
        Scale::Ratio,
        &[part("muster_host_resource_used", Of("muster_host_resource_limit"), By("resource", ""))],
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
        // The number itself: a rate of something so rare would be unreadable.
        (AGENT, "agent-link", "Reconnections to the broker since the agent started"),
        Scale::Number,
        &[part("muster_agent_link_reconnects_total", Value, Fixed("reconnects"))],
    ),
];

/// The charts of a unit.
pub(super) const OF_UNIT: &[ChartPanel] = &[
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
        ("", "unit-disk", "Disk, written of what it may"),
        Scale::Bytes,
        &[
            part("muster_unit_disk_used_bytes", Around, Fixed("written")),
            part("muster_unit_disk_total_bytes", Value, Fixed("limit")),
        ],
    ),
    panel(
        ("", "unit-network", "Network, received and sent"),
        Scale::BytesPerSecond,
        &[
            part("muster_unit_network_receive_bytes_total", Rate, Fixed("received")),
            part("muster_unit_network_transmit_bytes_total", Rate, Fixed("sent")),
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
        &[part("muster_unit_restart_attempts", Newest, Fixed("times"))],
    ),
];

/// The charts of the fleet, which the console records.
pub(super) const OF_FLEET: &[ChartPanel] = &[
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
            part("muster_fleet_memory_used_bytes", Newest, Fixed("used")),
            part("muster_fleet_memory_total_bytes", Newest, Fixed("total")),
        ],
    ),
    panel(
        ("", "fleet-network", "Traffic"),
        Scale::BytesPerSecond,
        &[
            part("muster_fleet_network_receive_rate", Newest, Fixed("in")),
            part("muster_fleet_network_transmit_rate", Newest, Fixed("out")),
        ],
    ),
    panel(
        ("", "fleet-hosts", "Hosts that measure"),
        Scale::Number,
        &[part("muster_fleet_hosts_measuring", Newest, Fixed("hosts"))],
    ),
];
