//! The newest values as a table, which needs no script. Pure except for reading the store.

use std::collections::BTreeMap;

use muster_topics::Millis;

use crate::web::view::elements::{bytes, percent};

/// The latest value of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) struct Latest {
    /// Its name.
    pub(in crate::web) label: String,
    /// The formatted value.
    pub(in crate::web) value: String,
    /// The share of a total, if it is part of one.
    pub(in crate::web) share: Option<f64>,
    /// When it was measured, by the host's clock.
    pub(in crate::web) at_ms: Millis,
}

/// A series with its points of the last minutes.
pub(super) struct Recent {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) points: Vec<(Millis, f64)>,
}

/// How a row shows its value.
#[derive(Clone, Copy, Debug)]
enum RowLabel {
    Percent,
    Bytes,
    /// With the total, and the share of it.
    BytesOf(&'static str),
    /// The share alone.
    ShareOf(&'static str),
    BytesPerSecond,
    Count,
    Celsius,
    Seconds,
    /// Together with these two.
    With(&'static str, &'static str),
}

/// A row for each series of a name: its title, with the value of a label after it, and a word after that.
type LatestRow = (&'static str, (&'static str, &'static str, &'static str), RowLabel);

const ROWS: &[LatestRow] = &[
    ("muster_host_cpu_busy_ratio", ("Processor", "", ""), RowLabel::Percent),
    ("muster_host_memory_used_bytes", ("Memory", "", ""), RowLabel::BytesOf("muster_host_memory_total_bytes")),
    ("muster_host_swap_used_bytes", ("Swap", "", ""), RowLabel::BytesOf("muster_host_swap_total_bytes")),
    (
        "muster_host_load_1m",
        ("Load, 1, 5, 15 min", "", ""),
        RowLabel::With("muster_host_load_5m", "muster_host_load_15m"),
    ),
    ("muster_host_disk_used_bytes", ("Disk", "mount", ""), RowLabel::ShareOf("muster_host_disk_total_bytes")),
    ("muster_host_disk_used_inodes", ("Inodes", "mount", ""), RowLabel::ShareOf("muster_host_disk_inodes")),
    ("muster_host_resource_used", ("In use", "resource", ""), RowLabel::ShareOf("muster_host_resource_limit")),
    ("muster_host_disk_io_read_bytes_total", ("Disk", "device", " read"), RowLabel::BytesPerSecond),
    ("muster_host_disk_io_written_bytes_total", ("Disk", "device", " written"), RowLabel::BytesPerSecond),
    ("muster_host_network_receive_bytes_total", ("Network", "interface", " in"), RowLabel::BytesPerSecond),
    ("muster_host_network_transmit_bytes_total", ("Network", "interface", " out"), RowLabel::BytesPerSecond),
    ("muster_host_temperature_celsius", ("Temperature", "sensor", ""), RowLabel::Celsius),
    ("muster_host_clock_offset_seconds", ("Clock, ahead of the console's", "", ""), RowLabel::Seconds),
    ("muster_unit_cpu_busy_ratio", ("Processor", "", ""), RowLabel::Percent),
    ("muster_unit_memory_resident_bytes", ("Memory", "", ""), RowLabel::BytesOf("muster_unit_memory_limit_bytes")),
    ("muster_unit_disk_used_bytes", ("Disk", "", ""), RowLabel::BytesOf("muster_unit_disk_total_bytes")),
    ("muster_unit_network_receive_bytes_total", ("Network", "", " in"), RowLabel::BytesPerSecond),
    ("muster_unit_network_transmit_bytes_total", ("Network", "", " out"), RowLabel::BytesPerSecond),
    ("muster_unit_io_read_bytes_total", ("Read", "", ""), RowLabel::BytesPerSecond),
    ("muster_unit_io_written_bytes_total", ("Written", "", ""), RowLabel::BytesPerSecond),
    ("muster_unit_processes_count", ("Processes", "", ""), RowLabel::Count),
    ("muster_agent_memory_resident_bytes", ("The agent's memory", "", ""), RowLabel::Bytes),
];

/// Returns the latest values.
pub(super) fn newest(series: &[Recent]) -> Vec<Latest> {
    let of = |name: &str| series.iter().filter(|one| one.name == name).collect::<Vec<_>>();
    let beside = |name: &str, one: &Recent| {
        of(name).into_iter().find(|other| other.labels == one.labels).and_then(|other| Some(other.points.last()?.1))
    };
    let row = |(name, (title, label, word), shown): &LatestRow| {
        let one = |one: &Recent| {
            let (at_ms, value) = *one.points.last()?;
            let (value, share) = shown.of(value, &one.points, &|name| beside(name, one))?;
            let label = match one.labels.get(*label) {
                Some(of) => format!("{title} {of}{word}"),
                None => format!("{title}{word}"),
            };
            Some(Latest { label, value, share, at_ms })
        };
        of(name).into_iter().filter_map(one).collect::<Vec<_>>()
    };
    ROWS.iter().flat_map(row).collect()
}

impl RowLabel {
    /// Formats a value, with its share of a total.
    fn of(
        self,
        value: f64,
        points: &[(Millis, f64)],
        beside: &dyn Fn(&str) -> Option<f64>,
    ) -> Option<(String, Option<f64>)> {
        let whole = |value: f64| value.max(0.0) as u64;
        Some(match self {
            Self::Percent => (percent(value), Some(value)),
            Self::Bytes => (bytes(whole(value)), None),
            Self::BytesOf(total) => match beside(total) {
                // A total of zero is not worth a row.
                Some(total) if total <= 0.0 => return None,
                Some(total) => (format!("{} of {}", bytes(whole(value)), bytes(whole(total))), Some(value / total)),
                None => (bytes(whole(value)), None),
            },
            Self::ShareOf(total) => {
                let share = value / beside(total).filter(|total| *total > 0.0)?;
                (percent(share), Some(share))
            }
            Self::BytesPerSecond => {
                let [.., (before_ms, before), (at_ms, _)] = points else { return None };
                // A counter that fell was reset: a single sample gives no rate.
                let grown = Some(value - before).filter(|grown| *grown >= 0.0 && at_ms > before_ms)?;
                (format!("{}/s", bytes(whole(grown * 1000.0 / (at_ms - before_ms) as f64))), None)
            }
            Self::Count => (format!("{value:.0}"), None),
            Self::Celsius => (format!("{value:.0} °C"), None),
            Self::Seconds => (format!("{value:.3} s"), None),
            Self::With(one, other) => {
                let values: Vec<String> = [Some(value), beside(one), beside(other)]
                    .into_iter()
                    .flatten()
                    .map(|v| format!("{v:.2}"))
                    .collect();
                (values.join(" "), None)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::catalogue::{self, FieldKind, Measure};

    use super::*;

    fn series(name: &str, labels: &[(&str, &str)], points: &[(Millis, f64)]) -> Recent {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Recent { name: name.to_owned(), labels, points: points.to_vec() }
    }

    #[test]
    fn rows_fit_the_catalogue() {
        let of = |name: &str| catalogue::series(name).map(|(_, field)| (field.kind, field.unit));
        for (name, (_, label, _), shown) in ROWS {
            let (kind, unit) = of(name).unwrap_or_else(|| panic!("{name}"));
            let fits = match shown {
                RowLabel::Percent => unit == Measure::Ratio,
                RowLabel::Bytes => unit == Measure::Bytes,
                RowLabel::BytesOf(total) => unit == Measure::Bytes && of(total) == of(name),
                RowLabel::ShareOf(total) => of(total) == of(name),
                RowLabel::BytesPerSecond => unit == Measure::Bytes,
                RowLabel::Count => unit == Measure::Number,
                RowLabel::Celsius => unit == Measure::Celsius,
                RowLabel::Seconds => unit == Measure::Seconds,
                RowLabel::With(one, other) => of(one) == of(name) && of(other) == of(name),
            };
            let is_rate = matches!(shown, RowLabel::BytesPerSecond);
            assert!(fits && is_rate == (kind == FieldKind::Counter), "{name}");
            // No sensor is named: only the warmest is measured.
            let labels = catalogue::series(name).map(|(measurement, _)| measurement.labels).unwrap_or_default();
            assert!(["", "sensor"].contains(label) || labels.contains(label), "{name}: {label}");
        }
    }

    #[test]
    fn latest_values_are_formatted() {
        let check = |series: &[Recent], wanted: &[(&str, &str)]| {
            let found = newest(series);
            let found: Vec<_> = found.iter().map(|one| (one.label.as_str(), one.value.as_str())).collect();
            assert_eq!(found, wanted);
        };
        check(&[series("muster_host_cpu_busy_ratio", &[], &[(0, 0.9), (5, 0.0312)])], &[("Processor", "3.1 %")]);
        let gib = f64::from(1 << 30);
        let (used, total) = ("muster_host_memory_used_bytes", "muster_host_memory_total_bytes");
        let both = [series(total, &[], &[(5, 4.0 * gib)]), series(used, &[], &[(5, gib)])];
        check(&both, &[("Memory", "1.0 GiB of 4.0 GiB")]);
        assert_eq!(newest(&both)[0].share, Some(0.25));
        check(&both[1..], &[("Memory", "1.0 GiB")]);
        let load = |minutes: &str, value| series(&format!("muster_host_load_{minutes}"), &[], &[(5, value)]);
        check(&[load("15m", 0.3), load("1m", 0.1), load("5m", 0.2)], &[("Load, 1, 5, 15 min", "0.10 0.20 0.30")]);
        let eth = [("interface", "eth0")];
        let net = |points: &[(Millis, f64)]| [series("muster_host_network_receive_bytes_total", &eth, points)];
        check(&net(&[(0, 0.0), (1000, 2048.0)]), &[("Network eth0 in", "2.0 KiB/s")]);
        check(&net(&[(0, 4096.0), (1000, 2048.0)]), &[]);
        check(&net(&[(0, 4096.0)]), &[]);
        let (root, gone) = ([("mount", "/")], [("mount", "/gone")]);
        let disks = [
            series("muster_host_disk_used_bytes", &root, &[(0, 50.0)]),
            series("muster_host_disk_total_bytes", &root, &[(0, 200.0)]),
            series("muster_host_disk_used_bytes", &gone, &[(0, 50.0)]),
        ];
        check(&disks, &[("Disk /", "25 %")]);
        let swap = [("muster_host_swap_used_bytes", 0.0), ("muster_host_swap_total_bytes", 0.0)];
        check(&swap.map(|(name, value)| series(name, &[], &[(0, value)])), &[]);
        check(&[series("muster_host_temperature_celsius", &[], &[(0, 41.6)])], &[("Temperature", "42 °C")]);
        check(&[], &[]);
    }
}
