//! The list of panels, a module for each dashboard.

mod agents;
mod alerts;
mod console;
mod fleet;
mod host;
mod unit;

use crate::{
    panel::{Dashboard, Variable},
    query::Only,
};

/// All dashboards.
#[must_use]
pub fn dashboards() -> Vec<Dashboard> {
    vec![
        fleet::dashboard(),
        host::dashboard(),
        unit::dashboard(),
        alerts::dashboard(),
        agents::dashboard(),
        console::dashboard(),
    ]
}

/// The labels by which people know a host.
const HOSTNAME: &[&str] = &["hostname"];
/// Those by which they know a unit.
const UNIT_OF_HOST: &[&str] = &["hostname", "realm", "unit"];

/// Series of the host that is chosen.
const ONE_HOST: Only = Only::Variable { label: "hostname", name: "host", many: false };
/// Of the hosts, realms and units that are chosen.
const HOSTS: Only = Only::Variable { label: "hostname", name: "host", many: true };
const REALMS: Only = Only::Variable { label: "realm", name: "realm", many: true };
const UNITS: Only = Only::Variable { label: "unit", name: "unit", many: true };

/// Which hosts.
const fn host_variable(many: bool) -> Variable {
    let of = ("muster_host_uptime", "seconds");
    Variable { name: "host", label: "Host", of, value: "hostname", within: &[], many }
}

/// Every unit has this series, whether it runs or not.
const EVERY_UNIT: (&str, &str) = ("muster_unit_restart", "attempts");
