//! Orders the starts of this host's units: applies the rules ([`muster_rules::start_order`]) to the task's entries.

use std::collections::BTreeSet;

use muster_rules::{
    plan::PlannedUnit,
    start_order::{self, Expectation, OrderNode, OrderNodes, StartGate},
};
use muster_topics::{Millis, name::UnitName};

use super::entry::{Entries, UnitEntry};

/// What other units need to know of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderState {
    way: Expectation,
    launching: bool,
    starts: bool,
    /// Whether what it goes back from is still in effect.
    ends: bool,
}

impl OrderState {
    pub(super) fn of(unit: &PlannedUnit, now_ms: Millis) -> Self {
        Self {
            way: unit.way(),
            launching: unit.is_launching(),
            starts: unit.would_start(now_ms),
            ends: unit.has_failed_instance(),
        }
    }
}

fn nodes(entries: &Entries, now_ms: Millis) -> OrderNodes<'_> {
    entries.iter().filter_map(|(name, entry)| Some((name, node(&entry.unit, now_ms)?))).collect()
}

fn node(unit: &PlannedUnit, now_ms: Millis) -> Option<OrderNode<'_>> {
    let OrderState { way, launching, starts, .. } = OrderState::of(unit, now_ms);
    Some(OrderNode { spec: &unit.desired.as_ref()?.spec, way, launching, starts })
}

/// Instances that may have moved to another host while this one was without the console: they do not start before it has
/// confirmed that they are still placed here.
pub(super) type UnconfirmedPlaces = BTreeSet<UnitName>;

/// What such an instance waits for.
pub(super) const UNCONFIRMED: &str = "the console confirms that this instance is still placed on this host";

/// Returns whether other units allow a unit to start.
pub(super) fn gate(name: &UnitName, entries: &Entries, unconfirmed: &UnconfirmedPlaces, now_ms: Millis) -> StartGate {
    // Most units depend on none; running ones do not wait, and the check is expensive.
    let is_idle = entries.get(name).is_some_and(|entry| entry.unit.process().is_none() && !entry.unit.is_launching());
    if is_idle { gate_of(name, entries, unconfirmed, &nodes(entries, now_ms)) } else { StartGate::Open }
}

/// Returns the same for a unit that does not run.
fn gate_of(name: &UnitName, entries: &Entries, unconfirmed: &UnconfirmedPlaces, nodes: &OrderNodes<'_>) -> StartGate {
    if unconfirmed.contains(name) {
        return StartGate::Wait(UNCONFIRMED.to_owned());
    }
    match start_order::gate(name, nodes) {
        StartGate::Open => still_ends(name, entries).map_or(StartGate::Open, StartGate::Wait),
        closed => closed,
    }
}

/// Returns why a unit that goes back with others waits: what depends on it ends first.
fn still_ends(name: &UnitName, entries: &Entries) -> Option<String> {
    let entry = entries.get(name).filter(|entry| entry.unit.has_gone_back())?;
    let depends = |other: &UnitEntry| {
        let specs = other.unit.desired.iter().chain(other.unit.asked()).map(|desired| &desired.spec);
        let is_of_version = entry.owner.is_some() && other.owner == entry.owner;
        is_of_version
            && specs
                .flat_map(|spec| spec.common().requires.iter().chain(&spec.common().after))
                .any(|needed| needed == name)
    };
    let ends = |other: &UnitEntry| other.unit.has_failed_instance() && depends(other);
    entries.iter().find(|(_, other)| ends(other)).map(|(other, _)| format!("{other} ends first"))
}

/// Returns units whose gate differs from what they know.
pub(super) fn stale(entries: &Entries, unconfirmed: &UnconfirmedPlaces, now_ms: Millis) -> Vec<UnitName> {
    let nodes = nodes(entries, now_ms);
    let is_idle = |unit: &PlannedUnit| unit.process().is_none() && !unit.is_launching();
    let is_stale = |name: &UnitName, entry: &UnitEntry| {
        is_idle(&entry.unit) && *entry.unit.gate() != gate_of(name, entries, unconfirmed, &nodes)
    };
    entries.iter().filter(|(name, entry)| is_stale(name, entry)).map(|(name, _)| name.clone()).collect()
}
