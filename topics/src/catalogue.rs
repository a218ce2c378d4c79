//! The catalogue of metrics: all measurements that agents and consoles write, with their labels and fields, and what
//! each means.
//!
//! A series' name joins its measurement and its field: `muster_host_cpu_busy_ratio` is the field `busy_ratio` of
//! `muster_host_cpu`. Dashboards, charts, alerts, `muster top` and the documentation are made from this list or checked
//! against it, so that a metric is added here and where it is measured.
//!
//! **Invariant: nothing is written that is not listed here**, and everything that is listed is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::Point;

/// Fields that are written together.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Its name.
    pub name: &'static str,
    /// Labels that distinguish its series.
    pub labels: &'static [&'static str],
    /// Its fields.
    pub fields: &'static [Field],
    /// When fields are written that programs name themselves; `None` if it has none of these.
    pub others: Option<Writing>,
}

/// A row of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// How its values change.
    pub kind: FieldKind,
    /// The unit of its values.
    pub unit: Measure,
    /// When it is written.
    pub writing: Writing,
    /// What it is, in one sentence.
    pub about: &'static str,
}

/// How the values of a field change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// They can rise and fall.
    Gauge,
    /// They only rise, until the program that counts restarts.
    Counter,
    /// They can rise and fall, and are per second.
    Rate,
}

/// The unit of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Ratios.
    Ratio,
    /// Degrees Celsius.
    Celsius,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Counts.
    Number,
    /// 1 for yes, and 0 for no.
    Flag,
}

/// When a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// By an agent, with each sample of its group.
    Sampled(MetricGroup),
    /// By an agent, if a sample of its group differs from what was written last, and every [`REPEAT_S`].
    Changed(MetricGroup),
    /// By an agent, with samples of its group, but at most every [`SLOW_S`].
    Slow(MetricGroup),
    /// By the console, every [`CONSOLE_S`].
    Console,
    /// By the console, on change and every [`STATE_S`].
    State,
}

/// How often agents sample by default, in seconds.
pub const SAMPLE_S: u32 = 10;
/// How long an unchanged value is not repeated. Queries for a moment use the last value of the five minutes before
/// (Prometheus, and the console's own); the wait for the batch is additional.
pub const REPEAT_S: u32 = 240;
/// How often slowly changing values are written: averages over 5 or 15 minutes hardly change in between, and available
/// is what is not used.
pub const SLOW_S: u32 = 60;
/// How often the console writes its own values and the fleet's totals: as often as hosts send theirs.
pub const CONSOLE_S: u32 = 30;
/// How often the console repeats states of hosts and alerts: a query for a moment looks back five minutes.
pub const STATE_S: u32 = 120;

/// A group of metrics that an agent measures together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricGroup {
    /// All processors together, by mode.
    Cpu,
    /// Each processor.
    Cores,
    /// The load.
    Load,
    /// How long tasks waited for processors, memory or disks.
    Pressure,
    /// Memory and swap.
    Memory,
    /// File systems: bytes and inodes.
    Disks,
    /// Reads and writes of disks.
    DiskIo,
    /// Bytes that interfaces received and sent.
    Network,
    /// Packets, errors and drops of interfaces.
    Packets,
    /// The warmest sensor.
    Temperature,
    /// The time since boot.
    Uptime,
    /// The clock's offset.
    Clock,
    /// Open files, processes, local ports and tracked connections, with their limits.
    Resources,
    /// Processor time and memory of units, and of other containers.
    Units,
    /// Limits, disks, processes and waits of units.
    UnitDetails,
    /// Statistics that yunos report.
    Stats,
    /// The agent itself.
    Agent,
}

impl MetricGroup {
    /// All groups.
    pub const ALL: [Self; 17] = [
        Self::Cpu,
        Self::Cores,
        Self::Load,
        Self::Pressure,
        Self::Memory,
        Self::Disks,
        Self::DiskIo,
        Self::Network,
        Self::Packets,
        Self::Temperature,
        Self::Uptime,
        Self::Clock,
        Self::Resources,
        Self::Units,
        Self::UnitDetails,
        Self::Stats,
        Self::Agent,
    ];

    /// Returns how often it is measured by default, in seconds; 0 is with each sample.
    ///
    /// Values that people watch live are measured with each sample. Values that matter over hours are measured once a
    /// minute, because each name in a batch costs more bytes than its value; disks and units' details twice a minute,
    /// so that a rate over a minute has two points.
    #[must_use]
    pub const fn period_s(self) -> u32 {
        match self {
            Self::Cpu | Self::Load | Self::Memory | Self::Network | Self::Units => 0,
            Self::DiskIo | Self::UnitDetails | Self::Stats => 30,
            Self::Cores
            | Self::Pressure
            | Self::Disks
            | Self::Packets
            | Self::Temperature
            | Self::Uptime
            | Self::Resources
            | Self::Agent => 60,
            Self::Clock => 240,
        }
    }
}

impl Writing {
    /// Returns the longest time between two values by default, in seconds.
    #[must_use]
    pub fn every_s(self) -> u32 {
        match self {
            Self::Sampled(group) => group.period_s().max(SAMPLE_S),
            Self::Changed(_) => REPEAT_S,
            Self::Slow(_) => SLOW_S,
            Self::Console => CONSOLE_S,
            Self::State => STATE_S,
        }
    }

    /// Returns the group of an agent's field.
    #[must_use]
    pub fn group(self) -> Option<MetricGroup> {
        match self {
            Self::Sampled(group) | Self::Changed(group) | Self::Slow(group) => Some(group),
            Self::Console | Self::State => None,
        }
    }
}

impl Measurement {
    /// Returns a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns when a field is written; `None` if it has none of this name.
    #[must_use]
    pub fn writing(&self, field: &str) -> Option<Writing> {
        self.field(field).map(|field| field.writing).or(self.others)
    }
}

/// Returns the measurement of this name.
#[must_use]
pub fn measurement(name: &str) -> Option<&'static Measurement> {
    MEASUREMENTS.iter().find(|one| one.name == name)
}

/// Returns the field whose series have this name.
#[must_use]
pub fn series(name: &str) -> Option<(&'static Measurement, &'static Field)> {
    MEASUREMENTS.iter().find_map(|one| {
        let field = name.strip_prefix(one.name)?.strip_prefix('_')?;
        Some((one, one.field(field)?))
    })
}

/// Returns what is not listed of a point, for tests: its measurement, a field or a label.
#[must_use]
pub fn unlisted(point: &Point) -> Option<String> {
    let Some(found) = measurement(&point.measurement) else { return Some(point.measurement.clone()) };
    let field = point.fields.iter().map(|(name, _)| name).find(|name| found.writing(name).is_none());
    let label = point.tags.iter().map(|(name, _)| name).find(|name| !found.labels.contains(&name.as_str()));
    field.or(label).map(|name| format!("{name} of {}", point.measurement))
}

/// Returns the kind and the unit that a series' name says: names follow Prometheus's conventions.
#[must_use]
pub fn kind_and_unit(name: &str) -> (FieldKind, Measure) {
    let (of, kind) = match name.strip_suffix("_total") {
        Some(of) => (of, FieldKind::Counter),
        None => (name, FieldKind::Gauge),
    };
    let unit = match of.rsplit('_').next().unwrap_or_default() {
        "bytes" => Measure::Bytes,
        "celsius" => Measure::Celsius,
        "ratio" => Measure::Ratio,
        "seconds" => Measure::Seconds,
        _ => Measure::Number,
    };
    (kind, unit)
}

const HOST: &[&str] = &["host", "hostname"];
const UNIT: &[&str] = &["host", "hostname", "realm", "unit", "kind"];
const CONTAINER: &[&str] = &["host", "hostname", "container", "runtime"];
const CONSOLE: &[&str] = &["instance"];

const fn of(name: &'static str, labels: &'static [&'static str], fields: &'static [Field]) -> Measurement {
    Measurement { name, labels, fields, others: None }
}

const fn field(name: &'static str, kind: FieldKind, unit: Measure, writing: Writing, about: &'static str) -> Field {
    Field { name, kind, unit, writing, about }
}

/// The catalogue.
pub const MEASUREMENTS: &[Measurement] = {
    use FieldKind::{Counter, Gauge, Rate};
    use Measure::{Bytes, Celsius, Flag, Number, Ratio, Seconds};
    use MetricGroup as Group;
    use Writing::{Changed, Console, Sampled, Slow, State};
    &[
        of(
            "muster_host_cpu",
            HOST,
            &[
                field(
                    "busy_ratio",
                    Gauge,
                    Ratio,
                    Sampled(Group::Cpu),
                    "The share of all processors' time that is used.",
                ),
                field("user_ratio", Gauge, Ratio, Sampled(Group::Cpu), "The share that programs use."),
                field("system_ratio", Gauge, Ratio, Sampled(Group::Cpu), "The share that the kernel uses."),
                field(
                    "iowait_ratio",
                    Gauge,
                    Ratio,
                    Sampled(Group::Cpu),
                    "The share that is idle while a disk is waited for.",
                ),
                field("steal_ratio", Gauge, Ratio, Changed(Group::Cpu), "The share that a hypervisor gives to others."),
            ],
        ),
        of(
            "muster_host_cpu_core",
            &["host", "hostname", "core"],
            &[field(
                "busy_ratio",
                Gauge,
                Ratio,
                Sampled(Group::Cores),
                "The share of a logical processor's time that is used.",
            )],
        ),
        of(
            "muster_host_load",
            HOST,
            &[
                field("1m", Gauge, Number, Sampled(Group::Load), "The tasks that run or wait, over one minute."),
                field("5m", Gauge, Number, Slow(Group::Load), "The tasks that run or wait, over five minutes."),
                field("15m", Gauge, Number, Slow(Group::Load), "The tasks that run or wait, over fifteen minutes."),
            ],
        ),
        of(
            "muster_host_pressure",
            &["host", "hostname", "resource"],
            &[
                field(
                    "some_seconds_total",
                    Counter,
                    Seconds,
                    Sampled(Group::Pressure),
                    "The time in which some task waited for the resource.",
                ),
                field(
                    "full_seconds_total",
                    Counter,
                    Seconds,
                    Sampled(Group::Pressure),
                    "The time in which all tasks waited for the resource.",
                ),
            ],
        ),
        of(
            "muster_host_memory",
            HOST,
            &[
                field("total_bytes", Gauge, Bytes, Changed(Group::Memory), "The memory of the host."),
                field(
                    "used_bytes",
                    Gauge,
                    Bytes,
                    Sampled(Group::Memory),
                    "The memory that cannot be given to programs.",
                ),
                field(
                    "available_bytes",
                    Gauge,
                    Bytes,
                    Slow(Group::Memory),
                    "The memory that can be given to programs, caches included.",
                ),
            ],
        ),
        of(
            "muster_host_swap",
            HOST,
            &[
                field("total_bytes", Gauge, Bytes, Changed(Group::Memory), "The room for memory on disk."),
                field("used_bytes", Gauge, Bytes, Changed(Group::Memory), "The memory on disk (swap)."),
            ],
        ),
        of(
            "muster_host_disk",
            &["host", "hostname", "mount"],
            &[
                field("total_bytes", Gauge, Bytes, Changed(Group::Disks), "The size of a file system."),
                field("used_bytes", Gauge, Bytes, Sampled(Group::Disks), "The bytes of a file system that are used."),
                field("inodes", Gauge, Number, Changed(Group::Disks), "The inodes of a file system."),
                field(
                    "used_inodes",
                    Gauge,
                    Number,
                    Sampled(Group::Disks),
                    "The inodes of a file system that are used.",
                ),
                field("unresponsive", Gauge, Flag, Changed(Group::Disks), "Whether a file system does not respond."),
            ],
        ),
        of(
            "muster_host_disk_io",
            &["host", "hostname", "device"],
            &[
                field(
                    "read_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::DiskIo),
                    "The bytes that were read from a disk.",
                ),
                field(
                    "written_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::DiskIo),
                    "The bytes that were written to a disk.",
                ),
                field("reads_total", Counter, Number, Sampled(Group::DiskIo), "The reads of a disk."),
                field("writes_total", Counter, Number, Sampled(Group::DiskIo), "The writes of a disk."),
                field(
                    "busy_seconds_total",
                    Counter,
                    Seconds,
                    Sampled(Group::DiskIo),
                    "The time in which a disk was busy.",
                ),
            ],
        ),
        of(
            "muster_host_network",
            &["host", "hostname", "interface"],
            &[
                field(
                    "receive_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::Network),
                    "The bytes that an interface received.",
                ),
                field(
                    "transmit_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::Network),
                    "The bytes that an interface sent.",
                ),
                field(
                    "receive_packets_total",
                    Counter,
                    Number,
                    Sampled(Group::Packets),
                    "The packets that an interface received.",
                ),
                field(
                    "transmit_packets_total",
                    Counter,
                    Number,
                    Sampled(Group::Packets),
                    "The packets that an interface sent.",
                ),
                field(
                    "receive_errors_total",
                    Counter,
                    Number,
                    Sampled(Group::Packets),
                    "The packets that an interface received with errors.",
                ),
                field(
                    "transmit_errors_total",
                    Counter,
                    Number,
                    Sampled(Group::Packets),
                    "The packets that an interface could not send because of errors.",
                ),
                field(
                    "receive_drops_total",
                    Counter,
                    Number,
                    Sampled(Group::Packets),
                    "The packets that an interface received and dropped.",
                ),
                field(
                    "transmit_drops_total",
                    Counter,
                    Number,
                    Sampled(Group::Packets),
                    "The packets that an interface dropped instead of sending.",
                ),
            ],
        ),
        of(
            "muster_host_resource",
            &["host", "hostname", "resource"],
            &[
                field(
                    "used",
                    Gauge,
                    Number,
                    Sampled(Group::Resources),
                    "The open files, processes, local ports or tracked connections.",
                ),
                field("limit", Gauge, Number, Changed(Group::Resources), "The limit on them."),
            ],
        ),
        of(
            "muster_host_temperature",
            HOST,
            &[field("celsius", Gauge, Celsius, Sampled(Group::Temperature), "The temperature of the warmest sensor.")],
        ),
        of(
            "muster_host_uptime",
            HOST,
            &[field("seconds", Gauge, Seconds, Sampled(Group::Uptime), "The time since boot.")],
        ),
        of(
            "muster_host_clock",
            HOST,
            &[field(
                "offset_seconds",
                Gauge,
                Seconds,
                Sampled(Group::Clock),
                "The correction that the host's clock still needs, by its time service.",
            )],
        ),
        of(
            "muster_host",
            HOST,
            &[field("online", Gauge, Flag, State, "Whether the host is connected, as the console sees it.")],
        ),
        of(
            "muster_unit_cpu",
            UNIT,
            &[
                field(
                    "busy_ratio",
                    Gauge,
                    Ratio,
                    Sampled(Group::Units),
                    "The share of all processors' time that a unit uses.",
                ),
                field(
                    "throttled_seconds_total",
                    Counter,
                    Seconds,
                    Sampled(Group::UnitDetails),
                    "The time in which a unit's limit kept it from running.",
                ),
            ],
        ),
        of(
            "muster_unit_memory",
            UNIT,
            &[
                field("resident_bytes", Gauge, Bytes, Sampled(Group::Units), "The memory that a unit uses."),
                field("limit_bytes", Gauge, Bytes, Changed(Group::UnitDetails), "The most memory that a unit may use."),
            ],
        ),
        of(
            "muster_unit_disk",
            UNIT,
            &[
                field(
                    "total_bytes",
                    Gauge,
                    Bytes,
                    Changed(Group::UnitDetails),
                    "The most that a container may write beside its image.",
                ),
                field(
                    "used_bytes",
                    Gauge,
                    Bytes,
                    Sampled(Group::UnitDetails),
                    "What a container has written beside its image.",
                ),
            ],
        ),
        of(
            "muster_unit_io",
            UNIT,
            &[
                field(
                    "read_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::UnitDetails),
                    "The bytes that a unit read from disks.",
                ),
                field(
                    "written_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::UnitDetails),
                    "The bytes that a unit wrote to disks.",
                ),
            ],
        ),
        of(
            "muster_unit_network",
            UNIT,
            &[
                field(
                    "receive_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::UnitDetails),
                    "The bytes that a container received.",
                ),
                field(
                    "transmit_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::UnitDetails),
                    "The bytes that a container sent.",
                ),
            ],
        ),
        of(
            "muster_unit_processes",
            UNIT,
            &[field("count", Gauge, Number, Sampled(Group::UnitDetails), "The processes and threads of a unit.")],
        ),
        of(
            "muster_container_cpu",
            CONTAINER,
            &[field(
                "busy_ratio",
                Gauge,
                Ratio,
                Sampled(Group::Units),
                "The share of all processors' time that an unmanaged container uses.",
            )],
        ),
        of(
            "muster_container_memory",
            CONTAINER,
            &[field("resident_bytes", Gauge, Bytes, Sampled(Group::Units), "The memory that it uses.")],
        ),
        of(
            "muster_container_processes",
            CONTAINER,
            &[field("count", Gauge, Number, Sampled(Group::Units), "Its processes and threads.")],
        ),
        of(
            "muster_container_network",
            CONTAINER,
            &[
                field(
                    "receive_bytes_total",
                    Counter,
                    Bytes,
                    Sampled(Group::UnitDetails),
                    "The bytes that it received.",
                ),
                field("transmit_bytes_total", Counter, Bytes, Sampled(Group::UnitDetails), "The bytes that it sent."),
            ],
        ),
        of(
            "muster_container_disk",
            CONTAINER,
            &[field("used_bytes", Gauge, Bytes, Sampled(Group::UnitDetails), "What it has written beside its image.")],
        ),
        of(
            "muster_unit_restart",
            UNIT,
            &[field(
                "attempts",
                Gauge,
                Number,
                Changed(Group::Units),
                "How often a unit was restarted since it last was up for five minutes.",
            )],
        ),
        Measurement { others: Some(Changed(Group::Stats)), ..of("muster_yuno", UNIT, &[]) },
        of(
            "muster_agent_cpu",
            HOST,
            &[field(
                "busy_ratio",
                Gauge,
                Ratio,
                Sampled(Group::Agent),
                "The share of all processors' time that the agent uses.",
            )],
        ),
        of(
            "muster_agent_memory",
            HOST,
            &[field("resident_bytes", Gauge, Bytes, Sampled(Group::Agent), "The memory that the agent uses.")],
        ),
        of(
            "muster_agent_store",
            HOST,
            &[field("size_bytes", Gauge, Bytes, Changed(Group::Agent), "The size of the agent's store.")],
        ),
        of(
            "muster_agent_queue",
            &["host", "hostname", "queue"],
            &[field("length", Gauge, Number, Changed(Group::Agent), "What waits in a queue of the agent.")],
        ),
        of(
            "muster_agent_link",
            HOST,
            &[field(
                "reconnects_total",
                Counter,
                Number,
                Changed(Group::Agent),
                "The connections to the broker after the first one.",
            )],
        ),
        of(
            "muster_agent_reconcile",
            HOST,
            &[
                field(
                    "age_seconds",
                    Gauge,
                    Seconds,
                    Sampled(Group::Agent),
                    "The time since the agent last compared units with their desired state.",
                ),
                field("duration_seconds", Gauge, Seconds, Sampled(Group::Agent), "How long that took."),
            ],
        ),
        of(
            "muster_alert",
            &["host", "hostname", "rule", "severity", "subject"],
            &[field("active", Gauge, Flag, State, "Whether an alert is active.")],
        ),
        of(
            "muster_console_hosts",
            &["instance", "state"],
            &[field("count", Gauge, Number, Console, "The hosts in a state of presence.")],
        ),
        of(
            "muster_console_commands",
            CONSOLE,
            &[field("open", Gauge, Number, Console, "The commands without an outcome.")],
        ),
        of("muster_console_deployments", CONSOLE, &[field("count", Gauge, Number, Console, "The deployments.")]),
        of(
            "muster_console_documents",
            &["instance", "state"],
            &[field(
                "count",
                Gauge,
                Number,
                Console,
                "The hosts whose document is stored, behind, refused or unconfirmed there.",
            )],
        ),
        of(
            "muster_console_rollouts",
            &["instance", "phase"],
            &[field("count", Gauge, Number, Console, "The deployments whose last rollout is in a phase.")],
        ),
        of(
            "muster_console_rollout_hosts",
            &["instance", "outcome"],
            &[field(
                "count",
                Gauge,
                Number,
                Console,
                "The hosts with an outcome, over the last rollouts of all deployments; `none` has not ended yet.",
            )],
        ),
        of(
            "muster_console_rollout",
            CONSOLE,
            &[
                field("in_flight", Gauge, Number, Console, "The hosts that change now, over all rollouts."),
                field(
                    "unavailable",
                    Gauge,
                    Number,
                    Console,
                    "The hosts that a rollout has changed, and that are not verified since, over all rollouts.",
                ),
                field("admitted_total", Counter, Number, Console, "The times that a host was told to begin."),
            ],
        ),
        of(
            "muster_console_store",
            CONSOLE,
            &[field("bytes", Gauge, Bytes, Console, "The size of the console's databases.")],
        ),
        of(
            "muster_console_backup",
            CONSOLE,
            &[field("age_seconds", Gauge, Seconds, Console, "The time since the last good backup was taken.")],
        ),
        of("muster_console_series", CONSOLE, &[field("count", Gauge, Number, Console, "The series that are stored.")]),
        of(
            "muster_console_batches",
            CONSOLE,
            &[field(
                "dropped_total",
                Counter,
                Number,
                Console,
                "The batches of measurements for which the console had no room; their hosts send them again.",
            )],
        ),
        of(
            "muster_console_points",
            CONSOLE,
            &[field("received_total", Counter, Number, Console, "The values that hosts sent.")],
        ),
        of(
            "muster_console_host_shares",
            &["instance", "kind"],
            &[field(
                "exceeded_total",
                Counter,
                Number,
                Console,
                "The times that a host wanted more of something than one host may have, which was left out.",
            )],
        ),
        of(
            "muster_console_alerts",
            &["instance", "severity"],
            &[field("active", Gauge, Number, Console, "The active alerts of a severity that are not silenced.")],
        ),
        of(
            "muster_console_memory",
            CONSOLE,
            &[field("resident_bytes", Gauge, Bytes, Console, "The memory that the console uses.")],
        ),
        of(
            "muster_console_cpu",
            CONSOLE,
            &[field("busy_ratio", Gauge, Ratio, Console, "The share of all processors' time that the console uses.")],
        ),
        of(
            "muster_console_external",
            &["instance", "store"],
            &[
                field("waiting_bytes", Gauge, Bytes, Console, "The bytes that wait for another store."),
                field("waiting", Gauge, Number, Console, "The values that wait for another store."),
                field("sent_total", Counter, Number, Console, "The values that it took."),
                field("retried_total", Counter, Number, Console, "The attempts that were repeated."),
                field(
                    "quarantined_total",
                    Counter,
                    Number,
                    Console,
                    "The values that it refused, which are set aside.",
                ),
                field("dropped_total", Counter, Number, Console, "The values for which there was no room to wait."),
            ],
        ),
        of(
            "muster_fleet_cpu",
            CONSOLE,
            &[
                field("busy_ratio", Gauge, Ratio, Console, "The mean share of processor time that hosts use."),
                field("busiest_ratio", Gauge, Ratio, Console, "The share that the busiest host uses."),
            ],
        ),
        of(
            "muster_fleet_memory",
            CONSOLE,
            &[
                field("used_bytes", Gauge, Bytes, Console, "The memory that all hosts use."),
                field("total_bytes", Gauge, Bytes, Console, "The memory of all hosts."),
            ],
        ),
        of(
            "muster_fleet_network",
            CONSOLE,
            &[
                field("receive_rate", Rate, Bytes, Console, "The bytes that all hosts receive per second."),
                field("transmit_rate", Rate, Bytes, Console, "The bytes that all hosts send per second."),
            ],
        ),
        of(
            "muster_fleet_hosts",
            CONSOLE,
            &[field("measuring", Gauge, Number, Console, "The hosts whose measurements arrive.")],
        ),
    ]
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rows() -> impl Iterator<Item = (String, &'static Field)> {
        MEASUREMENTS
            .iter()
            .flat_map(|one| one.fields.iter().map(|field| (format!("{}_{}", one.name, field.name), field)))
    }

    #[test]
    fn series_names_are_unique_and_found() {
        let names: BTreeSet<String> = rows().map(|(name, _)| name).collect();
        assert_eq!(names.len(), rows().count());
        for (name, field) in rows() {
            assert_eq!(series(&name).map(|(_, found)| found), Some(field), "{name}");
        }
        assert!(series("muster_host_cpu_idle_ratio").is_none() && series("muster_host_cpu").is_none());
        let measurements: BTreeSet<&str> = MEASUREMENTS.iter().map(|one| one.name).collect();
        assert_eq!(measurements.len(), MEASUREMENTS.len());
    }

    #[test]
    fn names_say_kind_and_unit() {
        for (name, field) in rows() {
            let kind = if field.kind == FieldKind::Counter { FieldKind::Counter } else { FieldKind::Gauge };
            let unit = match (field.kind, field.unit) {
                (FieldKind::Rate, _) | (_, Measure::Flag) => Measure::Number,
                (_, unit) => unit,
            };
            assert_eq!(kind_and_unit(&name), (kind, unit), "{name}");
            assert_eq!(name.ends_with("_rate"), field.kind == FieldKind::Rate, "{name}");
        }
        assert_eq!(kind_and_unit("muster_yuno_requests_total"), (FieldKind::Counter, Measure::Number));
    }

    #[test]
    fn sentences_end_with_a_full_stop() {
        for (name, field) in rows() {
            let about = field.about;
            assert!(about.starts_with(char::is_uppercase) && about.ends_with('.') && !about.contains('|'), "{name}");
        }
    }

    #[test]
    fn unlisted_parts_of_points_are_found() {
        let point = |measurement: &str, tag: &str| Point::new(measurement, &[(tag, "x")], 1);
        for (point, expected) in [
            (point("muster_host_disk", "mount").field("used_bytes", 1.0), None),
            (point("muster_host_disk", "mount").field("bytes", 1.0), Some("bytes of muster_host_disk")),
            (point("muster_host_disk", "device").field("inodes", 1.0), Some("device of muster_host_disk")),
            (point("muster_host_dsk", "mount").field("used_bytes", 1.0), Some("muster_host_dsk")),
            (point("muster_yuno", "unit").field("whatever", 1.0), None),
        ] {
            assert_eq!(unlisted(&point).as_deref(), expected);
        }
    }
}
