//! The available series: measurements as agents and the console write them, with their tags and fields.
//!
//! In PromQL the name of a series joins its measurement and its field (`muster_host_cpu_busy_ratio`); in
//! InfluxQL they are separate.
//!
//! **Invariant: panels draw only series that are listed here**, and the tests fill each database with just these.

/// The kind of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// They can rise and fall.
    Gauge,
    /// They only rise, until the program that counts restarts.
    Counter,
    /// They are 0 or 1.
    Flag,
}

/// Fields that are written together.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Its name.
    pub name: &'static str,
    /// Labels that distinguish its series.
    pub tags: &'static [&'static str],
    /// Its fields.
    pub fields: &'static [(&'static str, FieldKind)],
}

impl Measurement {
    /// The kind of a field.
    #[must_use]
    pub fn kind(&self, field: &str) -> Option<FieldKind> {
        self.fields.iter().find(|(name, _)| *name == field).map(|(_, kind)| *kind)
    }
}

/// Default interval at which a field is written, in seconds. Fields that change rarely are written when they change,
/// and every four minutes.
#[must_use]
pub fn every_s(measurement: &str, field: &str) -> u32 {
    match (measurement, field) {
        ("muster_host" | "muster_alert", _) => 120,
        ("muster_yuno", _)
        | ("muster_host_swap" | "muster_agent_store", _)
        | (
            _,
            "total_bytes" | "unresponsive" | "inodes" | "limit" | "limit_bytes" | "steal_ratio" | "attempts" | "length"
            | "reconnects_total",
        ) => SELDOM_S,
        ("muster_host_clock", _) => SELDOM_S,
        ("muster_host_load", "1m") => 10,
        ("muster_host_load", _)
        | ("muster_host_memory", "available_bytes")
        | (
            "muster_host_cpu_core"
            | "muster_host_pressure"
            | "muster_host_resource"
            | "muster_host_disk"
            | "muster_host_temperature",
            _,
        )
        | ("muster_host_uptime" | "muster_agent_cpu" | "muster_agent_memory" | "muster_agent_reconcile", _) => 60,
        ("muster_host_network", "receive_bytes_total" | "transmit_bytes_total") => 10,
        ("muster_host_network", _) => 60,
        (
            "muster_host_disk_io"
            | "muster_unit_disk"
            | "muster_unit_io"
            | "muster_unit_network"
            | "muster_unit_processes"
            | "muster_container_disk"
            | "muster_container_network",
            _,
        )
        | (_, "throttled_seconds_total") => 30,
        _ if measurement.starts_with("muster_console_") => 30,
        _ => 10,
    }
}

/// Interval at which unchanged values are written again.
pub const SELDOM_S: u32 = 240;

/// The measurement with this name.
#[must_use]
pub fn measurement(name: &str) -> Option<&'static Measurement> {
    MEASUREMENTS.iter().find(|one| one.name == name)
}

const HOST: &[&str] = &["host", "hostname"];
const UNIT: &[&str] = &["host", "hostname", "realm", "unit", "kind"];
const CONTAINER: &[&str] = &["host", "hostname", "container", "runtime"];
const CONSOLE: &[&str] = &["instance"];

/// All measurements.
pub const MEASUREMENTS: &[Measurement] = &[
    of("muster_host_cpu", HOST, &CPU),
    of("muster_host_cpu_core", &["host", "hostname", "core"], &[("busy_ratio", FieldKind::Gauge)]),
    of("muster_host_load", HOST, &[("1m", FieldKind::Gauge), ("5m", FieldKind::Gauge), ("15m", FieldKind::Gauge)]),
    of("muster_host_pressure", &["host", "hostname", "resource"], &PRESSURE),
    of("muster_host_memory", HOST, &MEMORY),
    of("muster_host_swap", HOST, &[("total_bytes", FieldKind::Gauge), ("used_bytes", FieldKind::Gauge)]),
    of("muster_host_disk", &["host", "hostname", "mount"], &DISK),
    of("muster_host_disk_io", &["host", "hostname", "device"], &DISK_IO),
    of("muster_host_network", &["host", "hostname", "interface"], &NETWORK),
    of(
        "muster_host_resource",
        &["host", "hostname", "resource"],
        &[("used", FieldKind::Gauge), ("limit", FieldKind::Gauge)],
    ),
    of("muster_host_temperature", HOST, &[("celsius", FieldKind::Gauge)]),
    of("muster_host_uptime", HOST, &[("seconds", FieldKind::Gauge)]),
    of("muster_host_clock", HOST, &[("offset_seconds", FieldKind::Gauge)]),
    of("muster_host", HOST, &[("online", FieldKind::Flag)]),
    of("muster_unit_cpu", UNIT, &[("busy_ratio", FieldKind::Gauge), ("throttled_seconds_total", FieldKind::Counter)]),
    of("muster_unit_memory", UNIT, &[("resident_bytes", FieldKind::Gauge), ("limit_bytes", FieldKind::Gauge)]),
    of("muster_unit_disk", UNIT, &[("total_bytes", FieldKind::Gauge), ("used_bytes", FieldKind::Gauge)]),
    of(
        "muster_unit_io",
        UNIT,
        &[("read_bytes_total", FieldKind::Counter), ("written_bytes_total", FieldKind::Counter)],
    ),
    of("muster_unit_network", UNIT, &CARRIED),
    of("muster_unit_processes", UNIT, &[("count", FieldKind::Gauge)]),
    of("muster_container_cpu", CONTAINER, &[("busy_ratio", FieldKind::Gauge)]),
    of("muster_container_memory", CONTAINER, &[("resident_bytes", FieldKind::Gauge)]),
    of("muster_container_processes", CONTAINER, &[("count", FieldKind::Gauge)]),
    of("muster_container_network", CONTAINER, &CARRIED),
    of("muster_container_disk", CONTAINER, &[("used_bytes", FieldKind::Gauge)]),
    of("muster_unit_restart", UNIT, &[("attempts", FieldKind::Gauge)]),
    // Statistics of yunos, with their own names.
    of("muster_yuno", UNIT, &[]),
    of("muster_agent_cpu", HOST, &[("busy_ratio", FieldKind::Gauge)]),
    of("muster_agent_memory", HOST, &[("resident_bytes", FieldKind::Gauge)]),
    of("muster_agent_store", HOST, &[("size_bytes", FieldKind::Gauge)]),
    of("muster_agent_queue", &["host", "hostname", "queue"], &[("length", FieldKind::Gauge)]),
    of("muster_agent_link", HOST, &[("reconnects_total", FieldKind::Counter)]),
    of("muster_agent_reconcile", HOST, &[("age_seconds", FieldKind::Gauge), ("duration_seconds", FieldKind::Gauge)]),
    of("muster_alert", &["host", "hostname", "rule", "severity", "subject"], &[("active", FieldKind::Flag)]),
    of("muster_console_hosts", &["instance", "state"], &[("count", FieldKind::Gauge)]),
    of("muster_console_commands", CONSOLE, &[("open", FieldKind::Gauge)]),
    of("muster_console_store", CONSOLE, &[("bytes", FieldKind::Gauge)]),
    of("muster_console_series", CONSOLE, &[("count", FieldKind::Gauge)]),
    of("muster_console_points", CONSOLE, &[("received_total", FieldKind::Counter)]),
    of("muster_console_alerts", &["instance", "severity"], &[("active", FieldKind::Gauge)]),
    of("muster_console_memory", CONSOLE, &[("resident_bytes", FieldKind::Gauge)]),
    of("muster_console_cpu", CONSOLE, &[("busy_ratio", FieldKind::Gauge)]),
    of("muster_console_external", &["instance", "store"], &EXTERNAL),
];

const CARRIED: [(&str, FieldKind); 2] =
    [("receive_bytes_total", FieldKind::Counter), ("transmit_bytes_total", FieldKind::Counter)];
const CPU: [(&str, FieldKind); 5] = [
    ("busy_ratio", FieldKind::Gauge),
    ("user_ratio", FieldKind::Gauge),
    ("system_ratio", FieldKind::Gauge),
    ("iowait_ratio", FieldKind::Gauge),
    ("steal_ratio", FieldKind::Gauge),
];
const PRESSURE: [(&str, FieldKind); 2] =
    [("some_seconds_total", FieldKind::Counter), ("full_seconds_total", FieldKind::Counter)];
const MEMORY: [(&str, FieldKind); 3] =
    [("total_bytes", FieldKind::Gauge), ("used_bytes", FieldKind::Gauge), ("available_bytes", FieldKind::Gauge)];
const DISK: [(&str, FieldKind); 5] = [
    ("total_bytes", FieldKind::Gauge),
    ("used_bytes", FieldKind::Gauge),
    ("inodes", FieldKind::Gauge),
    ("used_inodes", FieldKind::Gauge),
    ("unresponsive", FieldKind::Flag),
];
const DISK_IO: [(&str, FieldKind); 5] = [
    ("read_bytes_total", FieldKind::Counter),
    ("written_bytes_total", FieldKind::Counter),
    ("reads_total", FieldKind::Counter),
    ("writes_total", FieldKind::Counter),
    ("busy_seconds_total", FieldKind::Counter),
];
const NETWORK: [(&str, FieldKind); 8] = [
    ("receive_bytes_total", FieldKind::Counter),
    ("transmit_bytes_total", FieldKind::Counter),
    ("receive_packets_total", FieldKind::Counter),
    ("transmit_packets_total", FieldKind::Counter),
    ("receive_errors_total", FieldKind::Counter),
    ("transmit_errors_total", FieldKind::Counter),
    ("receive_drops_total", FieldKind::Counter),
    ("transmit_drops_total", FieldKind::Counter),
];
const EXTERNAL: [(&str, FieldKind); 6] = [
    ("waiting_bytes", FieldKind::Gauge),
    ("waiting", FieldKind::Gauge),
    ("sent_total", FieldKind::Counter),
    ("retried_total", FieldKind::Counter),
    ("quarantined_total", FieldKind::Counter),
    ("dropped_total", FieldKind::Counter),
];

const fn of(
    name: &'static str,
    tags: &'static [&'static str],
    fields: &'static [(&'static str, FieldKind)],
) -> Measurement {
    Measurement { name, tags, fields }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_such_and_nothing_twice() {
        let mut names = Vec::new();
        for one in MEASUREMENTS {
            for (field, kind) in one.fields {
                assert_eq!(field.ends_with("_total"), *kind == FieldKind::Counter, "{} {field}", one.name);
                names.push(format!("{}_{field}", one.name));
            }
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
