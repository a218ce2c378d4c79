//! Orders the starts of this host's units: applies the rules ([`muster_rules::start_order`]) to the task's entries.

use std::collections::BTreeMap;

use muster_rules::{
    plan::PlannedUnit,
    start_order::{self, Expectation, OrderNode, OrderNodes, StartGate},
};
use muster_topics::{Millis, name::UnitName};

use super::entry::UnitEntry;

/// What other units need to know of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderState {
    way: Expectation,
    launching: bool,
    starts: bool,
}

impl OrderState {
    pub(super) fn of(unit: &PlannedUnit, now_ms: Millis) -> Self {
        Self { way: unit.way(), launching: unit.is_launching(), starts: unit.would_start(now_ms) }
    }
}

fn nodes(entries: &BTreeMap<UnitName, UnitEntry>, now_ms: Millis) -> OrderNodes<'_> {
    entries.iter().filter_map(|(name, entry)| Some((name, node(&entry.unit, now_ms)?))).collect()
}

fn node(unit: &PlannedUnit, now_ms: Millis) -> Option<OrderNode<'_>> {
    let OrderState { way, launching, starts } = OrderState::of(unit, now_ms);
    Some(OrderNode { spec: &unit.desired.as_ref()?.spec, way, launching, starts })
}

/// Returns whether other units allow a unit to start.
pub(super) fn gate(name: &UnitName, entries: &BTreeMap<UnitName, UnitEntry>, now_ms: Millis) -> StartGate {
    // Most units depend on none; running ones do not wait, and the check is expensive.
    let is_idle = entries.get(name).is_some_and(|entry| entry.unit.process().is_none() && !entry.unit.is_launching());
    if is_idle { start_order::gate(name, &nodes(entries, now_ms)) } else { StartGate::Open }
}

/// Returns units whose gate differs from what they know.
pub(super) fn stale(entries: &BTreeMap<UnitName, UnitEntry>, now_ms: Millis) -> Vec<UnitName> {
    let nodes = nodes(entries, now_ms);
    let is_idle = |unit: &PlannedUnit| unit.process().is_none() && !unit.is_launching();
    let is_stale = |(name, entry): &(&UnitName, &UnitEntry)| {
        is_idle(&entry.unit) && *entry.unit.gate() != start_order::gate(name, &nodes)
    };
    entries.iter().filter(is_stale).map(|(name, _)| name.clone()).collect()
}
