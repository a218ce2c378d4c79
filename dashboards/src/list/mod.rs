//! The list of dashboards, a module for each.

mod agents;
mod alerts;
mod console;
mod filters;
mod fleet;
mod host;
mod undrawn;
mod unit;

use muster_topics::catalogue;

use crate::panel::Dashboard;

/// All dashboards.
#[must_use]
pub fn dashboards() -> Vec<Dashboard> {
    let mut all = drawn_dashboards();
    undrawn::add(&mut all, catalogue::MEASUREMENTS);
    all
}

/// The dashboards with the panels that the modules list.
fn drawn_dashboards() -> Vec<Dashboard> {
    vec![
        fleet::dashboard(),
        host::dashboard(),
        unit::dashboard(),
        alerts::dashboard(),
        agents::dashboard(),
        console::dashboard(),
    ]
}
