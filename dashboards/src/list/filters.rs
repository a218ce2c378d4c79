//! The labels, filters and variables that the dashboards share.

use crate::{panel::Variable, query::SeriesFilter};

/// The labels by which people identify a host.
pub(super) const HOSTNAME: &[&str] = &["hostname"];

/// The labels by which people identify a unit.
pub(super) const UNIT_OF_HOST: &[&str] = &["hostname", "realm", "unit"];

/// The series of the selected host.
pub(super) const ONE_HOST: SeriesFilter = SeriesFilter::Variable { label: "hostname", name: "host", many: false };

/// The series of the selected hosts, realms and units.
pub(super) const HOSTS: SeriesFilter = SeriesFilter::Variable { label: "hostname", name: "host", many: true };

pub(super) const REALMS: SeriesFilter = SeriesFilter::Variable { label: "realm", name: "realm", many: true };

pub(super) const UNITS: SeriesFilter = SeriesFilter::Variable { label: "unit", name: "unit", many: true };

/// The variable that selects hosts.
pub(super) const fn host_variable(many: bool) -> Variable {
    let of = ("muster_host_uptime", "seconds");
    Variable { name: "host", label: "Host", of, value: "hostname", within: &[], many }
}

/// A series that every unit has, whether it runs or not.
pub(super) const EVERY_UNIT: (&str, &str) = ("muster_unit_restart", "attempts");
