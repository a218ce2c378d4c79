//! In which order the units of this host start: what the rules ([`order`]) say of the entries of the task.

use std::collections::BTreeMap;

use muster_topics::{Millis, name::UnitName};

use super::entry::Entry;
use crate::rules::{
    order::{self, Gate, Node, Nodes, Way},
    plan::Unit,
};

/// Where a unit stands among the others: what counts for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    way: Way,
    launching: bool,
    starts: bool,
}

impl Stand {
    pub(super) fn of(unit: &Unit, now_ms: Millis) -> Self {
        Self { way: unit.way(), launching: unit.is_launching(), starts: unit.would_start(now_ms) }
    }
}

fn nodes(entries: &BTreeMap<UnitName, Entry>, now_ms: Millis) -> Nodes<'_> {
    entries.iter().filter_map(|(name, entry)| Some((name, node(&entry.unit, now_ms)?))).collect()
}

fn node(unit: &Unit, now_ms: Millis) -> Option<Node<'_>> {
    let Stand { way, launching, starts } = Stand::of(unit, now_ms);
    Some(Node { spec: &unit.desired.as_ref()?.spec, way, launching, starts })
}

/// What keeps a unit from being started.
pub(super) fn gate(name: &UnitName, entries: &BTreeMap<UnitName, Entry>, now_ms: Millis) -> Gate {
    // Most have nobody to wait for; what runs waits for nobody, and it costs something to ask around.
    let is_idle = entries.get(name).is_some_and(|entry| entry.unit.process().is_none() && !entry.unit.is_launching());
    if is_idle { order::gate(name, &nodes(entries, now_ms)) } else { Gate::Open }
}

/// Units whose gate is not what they know of it.
pub(super) fn stale(entries: &BTreeMap<UnitName, Entry>, now_ms: Millis) -> Vec<UnitName> {
    let nodes = nodes(entries, now_ms);
    let is_idle = |unit: &Unit| unit.process().is_none() && !unit.is_launching();
    let is_stale =
        |(name, entry): &(&UnitName, &Entry)| is_idle(&entry.unit) && *entry.unit.gate() != order::gate(name, &nodes);
    entries.iter().filter(is_stale).map(|(name, _)| name.clone()).collect()
}
