//! The queries to the console, the rows made from their results, and their order. Pure.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use clap::ValueEnum;
use muster_api::{Host, HostConnection, Series, Unit};
use muster_topics::Millis;
use serde::Serialize;

use super::super::top_subject::TopSubject;

/// Who comes first.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopSort {
    /// Who uses most of its processors
    Cpu,
    /// Who uses most memory
    Memory,
    /// Who reads and writes most
    Disk,
    /// Who sends and receives most
    Network,
    /// By name
    Name,
}

impl TopSort {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::Name => "name",
        }
    }
}

/// One value of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopQuery {
    pub(super) name: &'static str,
    pub(super) expression: &'static str,
}

const fn query(name: &'static str, expression: &'static str) -> TopQuery {
    TopQuery { name, expression }
}

/// The queries for hosts. Rates are over six samples, or four if the agent takes one every thirty seconds.
pub(super) const HOSTS: &[TopQuery] = &[
    query("cpu_ratio", "muster_host_cpu_busy_ratio"),
    query("memory_ratio", "muster_host_memory_used_bytes / muster_host_memory_total_bytes"),
    query("memory_bytes", "muster_host_memory_used_bytes"),
    query("load", "muster_host_load_1m"),
    query("disk_ratio", "max by (host) (muster_host_disk_used_bytes / muster_host_disk_total_bytes)"),
    query(
        "disk_bytes_per_second",
        "sum by (host) (rate(muster_host_disk_io_read_bytes_total[2m]) + rate(muster_host_disk_io_written_bytes_total[2m]))",
    ),
    query("receive_bytes_per_second", "sum by (host) (rate(muster_host_network_receive_bytes_total[1m]))"),
    query("transmit_bytes_per_second", "sum by (host) (rate(muster_host_network_transmit_bytes_total[1m]))"),
];

/// The queries for units.
pub(super) const UNITS: &[TopQuery] = &[
    query("cpu_ratio", "muster_unit_cpu_busy_ratio"),
    query("memory_bytes", "muster_unit_memory_resident_bytes"),
    query("memory_ratio", "muster_unit_memory_resident_bytes / muster_unit_memory_limit_bytes"),
    query(
        "disk_bytes_per_second",
        "rate(muster_unit_io_read_bytes_total[2m]) + rate(muster_unit_io_written_bytes_total[2m])",
    ),
    query("processes", "muster_unit_processes_count"),
    query("restarts", "muster_unit_restart_attempts"),
];

/// What a value belongs to: a host, and for units the realm and the name.
type RowOwner = (String, String, String);

/// The result of one query.
pub(super) type QueryValues = BTreeMap<RowOwner, f64>;

/// Reads a result.
pub(super) fn values(series: Vec<Series>) -> QueryValues {
    let owner = |series: &Series| {
        let label = |name: &str| series.labels.get(name).cloned().unwrap_or_default();
        (label("host"), label("realm"), label("unit"))
    };
    series.iter().filter_map(|series| Some((owner(series), series.points.last()?.1))).collect()
}

/// A host or a unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TopRow {
    /// The host's id.
    pub(super) host: String,
    pub(super) hostname: String,
    /// The unit, in a row of a unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unit: Option<String>,
    /// The presence of the host, or the phase of the unit.
    pub(super) state: String,
    /// Measured values; unknown ones are missing.
    #[serde(flatten)]
    pub(super) values: BTreeMap<&'static str, f64>,
}

impl TopRow {
    pub(super) fn value(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// The value to sort by; `None` if it is not known, or when sorting by name.
    fn weight(&self, sort: TopSort) -> Option<f64> {
        let sum = |names: &[&str]| names.iter().filter_map(|name| self.value(name)).reduce(|a, b| a + b);
        match sort {
            TopSort::Cpu => self.value("cpu_ratio"),
            // For units the number of bytes, because few have a limit.
            TopSort::Memory if self.unit.is_some() => self.value("memory_bytes"),
            TopSort::Memory => self.value("memory_ratio"),
            TopSort::Disk => self.value("disk_bytes_per_second"),
            TopSort::Network => sum(&["receive_bytes_per_second", "transmit_bytes_per_second"]),
            TopSort::Name => None,
        }
    }
}

/// Whether the host is online.
pub(super) fn is_online(host: &Host) -> bool {
    host.presence.as_ref().is_some_and(|presence| presence.state == HostConnection::Online)
}

fn measured(queries: &[TopQuery], answers: &[QueryValues], owner: &RowOwner) -> BTreeMap<&'static str, f64> {
    let value = |(query, values): (&TopQuery, &QueryValues)| Some((query.name, *values.get(owner)?));
    queries.iter().zip(answers).filter_map(value).filter(|(_, value)| value.is_finite()).collect()
}

/// The row of a host, from the results of [`HOSTS`].
pub(super) fn host(host: &Host, answers: &[QueryValues]) -> TopRow {
    let id = host.id.to_string();
    let state = match &host.presence {
        Some(presence) => presence.state.word().to_owned(),
        None => "never".to_owned(),
    };
    let values = match is_online(host) {
        true => measured(HOSTS, answers, &(id.clone(), String::new(), String::new())),
        // Values of an offline host are no longer current.
        false => BTreeMap::new(),
    };
    TopRow { host: id, hostname: host.hostname.clone(), unit: None, state, values }
}

/// The row of a unit, from the results of [`UNITS`].
pub(super) fn unit(unit: &Unit, answers: &[QueryValues]) -> TopRow {
    let owner = (unit.host.to_string(), unit.unit.realm().to_string(), unit.unit.name().to_string());
    TopRow {
        hostname: unit.hostname.clone(),
        unit: Some(unit.unit.to_string()),
        state: format!("{:?}", unit.observed.phase()).to_lowercase(),
        values: measured(UNITS, answers, &owner),
        host: owner.0,
    }
}

/// The whole table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TopTable {
    pub(super) what: TopSubject,
    pub(super) rows: Vec<TopRow>,
    /// Number of hosts, and of online hosts.
    pub(super) hosts: usize,
    pub(super) online: usize,
    pub(super) at_ms: Millis,
    /// Why it could not be updated.
    pub(super) trouble: Option<String>,
}

impl TopTable {
    /// Hostnames that several hosts have.
    pub(super) fn twins(&self) -> BTreeSet<&str> {
        let mut first: BTreeMap<&str, &str> = BTreeMap::new();
        let mut twins = BTreeSet::new();
        for row in &self.rows {
            if *first.entry(&row.hostname).or_insert(&row.host) != row.host {
                twins.insert(row.hostname.as_str());
            }
        }
        twins
    }

    /// Sorts by value, largest first, unknown values last; equal values by name.
    pub(super) fn sort(&mut self, sort: TopSort) {
        self.rows.sort_by(|a, b| {
            let by_weight = match (a.weight(sort), b.weight(sort)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            let name = |row: &TopRow| (row.hostname.clone(), row.unit.clone(), row.host.clone());
            by_weight.then_with(|| name(a).cmp(&name(b)))
        });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn row(hostname: &str, unit: Option<&str>, values: &[(&'static str, f64)]) -> TopRow {
        TopRow {
            host: format!("id-{hostname}"),
            hostname: hostname.to_owned(),
            unit: unit.map(str::to_owned),
            state: if unit.is_some() { "running" } else { "online" }.to_owned(),
            values: values.iter().copied().collect(),
        }
    }

    pub(in super::super) fn table(what: TopSubject, rows: Vec<TopRow>) -> TopTable {
        TopTable { what, hosts: rows.len(), online: rows.len(), rows, at_ms: 1_795_228_867_671, trouble: None }
    }

    #[test]
    fn rows_sort_by_value_with_unknown_last() {
        let mut table = table(
            TopSubject::Hosts,
            vec![
                row("d", None, &[]),
                row("a", None, &[("cpu_ratio", 0.1), ("memory_ratio", 0.9), ("transmit_bytes_per_second", 7.0)]),
                row("c", None, &[("cpu_ratio", 0.5), ("memory_ratio", 0.2)]),
                row("b", None, &[("cpu_ratio", 0.5), ("memory_ratio", 0.3), ("disk_bytes_per_second", 1.0)]),
            ],
        );
        for (sort, wanted) in [
            (TopSort::Cpu, "bcad"),
            (TopSort::Memory, "abcd"),
            (TopSort::Disk, "bacd"),
            (TopSort::Network, "abcd"),
            (TopSort::Name, "abcd"),
        ] {
            table.sort(sort);
            let order: String = table.rows.iter().map(|row| row.hostname.as_str()).collect();
            assert_eq!(order, wanted, "{sort:?}");
        }
        let mut units = [
            row("a", Some("default/x"), &[("memory_bytes", 5.0)]),
            row("b", Some("default/y"), &[("memory_bytes", 9.0)]),
        ];
        units.sort_by(|a, b| b.weight(TopSort::Memory).partial_cmp(&a.weight(TopSort::Memory)).unwrap());
        assert_eq!(units[0].hostname, "b", "units by bytes, for few have a limit");
    }

    #[test]
    fn query_results_are_joined_to_rows() {
        let series = |host: &str, unit: &str, value: f64| Series {
            name: String::new(),
            labels: [("host", host), ("realm", "default"), ("unit", unit)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            points: vec![(1, value)],
        };
        let answers =
            [values(vec![series("h", "x", 0.5), series("h", "y", f64::NAN)]), values(vec![series("h", "x", 7.0)])];
        let of = |unit: &str| measured(UNITS, &answers, &("h".into(), "default".into(), unit.into()));
        assert_eq!(of("x"), [("cpu_ratio", 0.5), ("memory_bytes", 7.0)].into());
        assert_eq!((of("y"), of("z")), (BTreeMap::new(), BTreeMap::new()));
    }

    #[test]
    fn reported_stats_are_named_by_unit() {
        let json = serde_json::to_value(row("a", None, &[("cpu_ratio", 0.25)])).unwrap();
        assert_eq!(json, serde_json::json!({"host": "id-a", "hostname": "a", "state": "online", "cpu_ratio": 0.25}));
    }
}
