//! The list of dashboards, a module for each.

mod agents;
mod alerts;
mod console;
mod filters;
mod fleet;
mod host;
mod unit;

use crate::panel::Dashboard;

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
