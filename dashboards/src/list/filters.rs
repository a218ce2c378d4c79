//! The labels, filters and variables that the dashboards share.

use crate::{panel::Variable, query::SeriesFilter};

/// The labels by which people know a host.
pub(super) const HOSTNAME: &[&str] = &["hostname"];

/// Those by which they know a unit.
pub(super) const UNIT_OF_HOST: &[&str] = &["hostname", "realm", "unit"];

/// Series of the host that is chosen.
pub(super) const ONE_HOST: SeriesFilter = SeriesFilter::Variable { label: "hostname", name: "host", many: false };

/// Of the hosts, realms and units that are chosen.
pub(super) const HOSTS: SeriesFilter = SeriesFilter::Variable { label: "hostname", name: "host", many: true };

pub(super) const REALMS: SeriesFilter = SeriesFilter::Variable { label: "realm", name: "realm", many: true };

pub(super) const UNITS: SeriesFilter = SeriesFilter::Variable { label: "unit", name: "unit", many: true };

/// Which hosts.
pub(super) const fn host_variable(many: bool) -> Variable {
    let of = ("muster_host_uptime", "seconds");
    Variable { name: "host", label: "Host", of, value: "hostname", within: &[], many }
}

/// Every unit has this series, whether it runs or not.
pub(super) const EVERY_UNIT: (&str, &str) = ("muster_unit_restart", "attempts");
