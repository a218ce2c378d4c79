//! Where instances of units are placed: what `rules::placement` is given, and what becomes of its result.
//!
//! A place is a part of the assignment of a host. It is decided anew, for all hosts together, when a version is applied, when
//! labels or cordons change, and every 30 seconds; in between each host keeps its own.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use muster_api::{InstancePlace, NamedHost, PlacementObstacleCount, UnitPlacement};
use muster_rules::{
    capability,
    deployment::is_instance,
    placement::{
        GroupNumbers, HostFit, PlacedInstances, PlacementHost, PlacementObstacle, Resources, WantedInstances, place,
    },
};
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentUnit, Instances, Placement},
    heartbeat::Facts,
    name::{HostId, UnitName},
    presence::Capability,
    unit::Spec,
};

use super::{
    plan::HostLook,
    table::{DeploymentEntry, DesiredTable, HostEntry, assignment},
};
use crate::store::deployment::{AssignmentRow, TargetHost};

/// The most waiting instances that are named.
const WAITING_NAMED_MAX: usize = 20;

/// Whether a host may have instances of a unit: the value of the label that they are spread over; `None` if it may not.
pub(super) type UnitFit = Option<Option<Arc<str>>>;

/// Where instances are, and which have no place.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    by_host: HashMap<HostId, BTreeMap<DeploymentName, Instances>>,
    /// By the deployments and their units; only those with instances that wait.
    pub(super) waiting: BTreeMap<DeploymentName, BTreeMap<UnitName, WaitingInstances>>,
}

/// Instances without a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingInstances {
    obstacles: Vec<PlacementObstacleCount>,
}

/// Returns the names of instances.
pub(super) fn names_of(instances: &Instances) -> impl Iterator<Item = UnitName> {
    instances.iter().flat_map(|(unit, numbers)| numbers.iter().map(|number| unit.instance(*number)))
}

impl Places {
    /// Returns the instances of a deployment on a host.
    pub(super) fn on(&self, host: HostId, name: &DeploymentName) -> Option<&Instances> {
        self.by_host.get(&host)?.get(name)
    }

    /// Returns where the instances of a deployment are.
    pub(super) fn of<'a>(&'a self, name: &'a DeploymentName) -> impl Iterator<Item = (HostId, &'a Instances)> {
        self.by_host.iter().filter_map(move |(host, all)| Some((*host, all.get(name)?)))
    }
}

impl DeploymentEntry {
    /// The units that the console places.
    pub(super) fn placed(&self) -> impl Iterator<Item = (&DeploymentUnit, &Placement)> {
        let units = self.row.content.units.iter().filter(|_| self.has_placed);
        units.filter_map(|unit| Some((unit, unit.placement.as_ref()?)))
    }

    /// The names of the units that a host has of it.
    pub(super) fn units_with<'a>(&'a self, instances: &Instances) -> Cow<'a, [UnitName]> {
        match instances.is_empty() {
            true => Cow::Borrowed(&self.plain),
            false => self.plain.iter().cloned().chain(names_of(instances)).collect(),
        }
    }

    /// Whether it has all these instances.
    pub(super) fn covers(&self, instances: &Instances) -> bool {
        instances.iter().all(|(unit, numbers)| {
            let placement = self.placed().find(|(one, _)| one.unit == *unit);
            placement.is_some_and(|(_, placement)| numbers.last().is_none_or(|last| *last <= placement.count))
        })
    }

    /// Whether a unit of this name is an instance of it.
    pub(super) fn has_instance(&self, name: &UnitName) -> bool {
        self.placed().any(|(unit, placement)| is_instance(name, &unit.unit, placement.count))
    }

    /// Says for each of its placed units whether a host may have instances.
    pub(super) fn fits(&self, seen: &TargetHost<'_>) -> Vec<UnitFit> {
        let fit = |(_, placement): (&DeploymentUnit, &Placement)| {
            let of_target = if self.has_secrets() { &seen.earned } else { &seen.whole };
            let is_selected = placement.select.as_ref().is_none_or(|select| select.picks(of_target));
            let value = placement.spread.as_ref().and_then(|label| seen.whole.labels.get(label));
            is_selected.then(|| value.map(|value| value.as_str().into()))
        };
        self.placed().map(fit).collect()
    }
}

/// Since when hosts have been away, as far as it counts.
#[derive(Debug, Default)]
pub(super) struct AwayHosts {
    pub(super) since_ms: HashMap<HostId, Millis>,
    /// Since when this console hears of hosts; `None` while it does not.
    pub(super) heard_since_ms: Option<Millis>,
    pub(super) now: Millis,
}

impl AwayHosts {
    /// How long a host has been away while this console could have heard of it.
    fn for_ms(&self, host: HostId) -> Millis {
        let since_ms = self.since_ms.get(&host).copied().unwrap_or(self.now);
        self.heard_since_ms.map_or(0, |heard_ms| self.now.saturating_sub(since_ms.max(heard_ms)))
    }
}

/// Decides where all instances are. `looks` are of all hosts.
pub(super) fn places(
    table: &DesiredTable,
    deployments: &[Arc<DeploymentEntry>],
    looks: &HashMap<HostId, HostLook>,
    away: &AwayHosts,
) -> Places {
    let none = (HostEntry::default(), HostLook::default());
    let has_any = |entry: &HostEntry| entry.assigned.iter().any(|row| !row.instances.is_empty());
    let unread = table.hosts.iter().filter(|(host, entry)| !looks.contains_key(host) && has_any(entry));
    let ids: Vec<HostId> = looks.keys().copied().chain(unread.map(|(host, _)| *host)).collect();
    let known: Vec<(HostId, &HostEntry, Option<&HostLook>)> =
        ids.iter().map(|host| (*host, table.hosts.get(host).unwrap_or(&none.0), looks.get(host))).collect();
    let hosts: Vec<PlacementHost> =
        known.iter().map(|(host, _, look)| placement_host(*host, deployments, look.unwrap_or(&none.1))).collect();
    let (mut wanted, mut of) = (Vec::new(), Vec::new());
    for (index, entry) in deployments.iter().enumerate().filter(|(_, entry)| entry.has_placed) {
        for (place, (unit, placement)) in entry.placed().enumerate() {
            let rivals = rivals(deployments, index, &unit.unit, placement.count);
            let capabilities = BTreeSet::from([capability::needed_by(&unit.spec)]);
            let mut groups = GroupNumbers::default();
            let fits = known.iter().map(|(host, entry, look)| {
                let group = look.and_then(|look| look.fits.get(index)?.get(place)?.as_ref());
                let group_number = groups.of(group.and_then(Option::as_ref));
                let of_unit = (placement, &capabilities, &rivals[..]);
                fit((*host, entry, *look), (index, group.is_some(), group_number), of_unit, away)
            });
            let fits = fits.collect();
            let mut present = Vec::new();
            for (at, (_, on, _)) in known.iter().enumerate() {
                let row = assignment(&on.assigned, entry.name());
                let numbers = row.and_then(|row| row.instances.get(&unit.unit));
                present.extend(numbers.into_iter().flatten().map(|number| (*number, at)));
            }
            of.push((entry.name(), &unit.unit));
            wanted.push(WantedInstances {
                unit: &unit.unit,
                count: placement.count,
                needs: needs(&unit.spec),
                max_per_host: placement.max_per_host,
                fits,
                present,
            });
        }
    }
    let mut found = Places::default();
    for ((name, unit), PlacedInstances { places, waiting, obstacles }) in of.into_iter().zip(place(&hosts, &wanted)) {
        for (number, at) in places {
            let Some(host) = ids.get(at) else { continue };
            let on = found.by_host.entry(*host).or_default().entry(name.clone()).or_default();
            on.entry(unit.clone()).or_default().insert(number);
        }
        if !waiting.is_empty() {
            let counted =
                |(why, hosts): (PlacementObstacle, u64)| PlacementObstacleCount { hosts, why: why.to_string() };
            let waiting = WaitingInstances { obstacles: obstacles.into_iter().map(counted).collect() };
            found.waiting.entry(name.clone()).or_default().insert(unit.clone(), waiting);
        }
    }
    found
}

/// Returns what a unit may use.
pub(super) fn needs(spec: &Spec) -> Resources {
    Resources::of_limits(&spec.limits())
}

/// Returns what a host has.
pub(super) fn total(seen: &TargetHost<'_>) -> Resources {
    let of = |facts: &Facts| Resources { memory_bytes: facts.memory_bytes, cpu_millis: u64::from(facts.cpus) * 1_000 };
    seen.whole.facts.map(of).unwrap_or_default()
}

/// A host with what its units use that are not placed.
fn placement_host(host: HostId, deployments: &[Arc<DeploymentEntry>], look: &HostLook) -> PlacementHost {
    let mut of = PlacementHost { id: PlacementHost::number(host), total: look.total, ..PlacementHost::default() };
    for (entry, _) in deployments.iter().zip(&look.selected).filter(|(_, is_selected)| **is_selected) {
        of.used = of.used.plus(entry.plain_needs);
        of.units += entry.plain.len();
    }
    of
}

/// Returns which deployments have a unit of its own name for one of these instances.
fn rivals<'a>(
    deployments: &'a [Arc<DeploymentEntry>],
    index: usize,
    unit: &UnitName,
    count: u32,
) -> Vec<(usize, &'a DeploymentName)> {
    let others = deployments.iter().enumerate().filter(|(other, _)| *other != index);
    let is_rival = |entry: &DeploymentEntry| entry.plain.iter().any(|name| is_instance(name, unit, count));
    others.filter(|(_, entry)| is_rival(entry)).map(|(other, entry)| (other, entry.name())).collect()
}

fn fit(
    (host, entry, look): (HostId, &HostEntry, Option<&HostLook>),
    (index, is_selected, group): (usize, bool, u32),
    (placement, needs, rivals): (&Placement, &BTreeSet<Capability>, &[(usize, &DeploymentName)]),
    away: &AwayHosts,
) -> HostFit {
    use PlacementObstacle as Why;
    let Some(look) = look else { return HostFit::Keeps(group, Why::Unreadable) };
    let selects = |index: usize| look.selected.get(index).copied().unwrap_or(false);
    if entry.is_open() {
        return HostFit::Keeps(group, Why::Unconfirmed);
    }
    if !selects(index) {
        return HostFit::Outside;
    }
    if !is_selected {
        return HostFit::Refuses(Why::NotSelected);
    }
    if let Some((_, rival)) = rivals.iter().find(|(other, _)| selects(*other)) {
        return HostFit::Refuses(Why::Taken(rival.to_string()));
    }
    match &entry.cordon {
        Some(cordon) if cordon.is_drained => return HostFit::Refuses(Why::Drained),
        _ => {}
    }
    if away.since_ms.contains_key(&host) {
        let is_over = placement.reschedule_ms.is_some_and(|limit_ms| away.for_ms(host) >= limit_ms);
        return if is_over { HostFit::Leaves(group, Why::Away) } else { HostFit::Keeps(group, Why::Away) };
    }
    match &entry.report {
        _ if entry.cordon.is_some() => HostFit::Keeps(group, Why::Cordoned),
        None => HostFit::Keeps(group, Why::Unheard),
        Some(_) => match entry.lacks(needs) {
            Some(missing) => HostFit::Keeps(group, Why::Lacks(missing)),
            None => HostFit::Takes(group),
        },
    }
}

impl DesiredTable {
    /// Whether the console places anything.
    pub(super) fn has_placed(&self) -> bool {
        self.deployments.iter().any(|entry| entry.has_placed)
    }

    /// Returns the deployments with instances that have no place; `None` before instances were placed for the first time.
    pub(super) fn unplaced(&self) -> Option<Vec<DeploymentName>> {
        match &self.waiting {
            _ if !self.has_placed() => Some(Vec::new()),
            Some(waiting) => Some(waiting.keys().cloned().collect()),
            None => None,
        }
    }

    /// Returns how the units of a deployment are placed that the console places.
    pub(super) fn placements(&self, entry: &DeploymentEntry) -> Vec<UnitPlacement> {
        let mut on: BTreeMap<&UnitName, BTreeSet<u32>> = BTreeMap::new();
        for row in self.hosts.values().filter_map(|host| assignment(&host.assigned, entry.name())) {
            for (unit, numbers) in &row.instances {
                on.entry(unit).or_default().extend(numbers);
            }
        }
        let waiting = self.waiting.as_ref().and_then(|waiting| waiting.get(entry.name()));
        let shown = |(unit, placement): (&DeploymentUnit, &Placement)| {
            let none = BTreeSet::new();
            let placed = on.get(&unit.unit).unwrap_or(&none);
            shown((unit, placement), placed, waiting.and_then(|waiting| waiting.get(&unit.unit)), Vec::new())
        };
        entry.placed().map(shown).collect()
    }
}

/// Returns how the units of a version would be placed, with the hosts of new and moved instances.
pub(super) fn planned(
    table: &DesiredTable,
    entry: &DeploymentEntry,
    places: Option<&Places>,
    looks: &HashMap<HostId, HostLook>,
) -> Vec<UnitPlacement> {
    let Some(places) = places else { return Vec::new() };
    let named = |host: HostId| NamedHost {
        host,
        hostname: looks.get(&host).map_or_else(|| host.to_string(), |look| look.hostname.clone()),
    };
    let mut before: HashMap<(&UnitName, u32), HostId> = HashMap::new();
    for (host, on) in &table.hosts {
        let instances = assignment(&on.assigned, entry.name()).into_iter().flat_map(|row| &row.instances);
        before.extend(instances.flat_map(|(unit, numbers)| numbers.iter().map(move |number| ((unit, *number), *host))));
    }
    let waiting = places.waiting.get(entry.name());
    let shown = |(unit, placement): (&DeploymentUnit, &Placement)| {
        let mut new = BTreeMap::new();
        let mut placed = BTreeSet::new();
        for (host, instances) in places.of(entry.name()) {
            for number in instances.get(&unit.unit).into_iter().flatten() {
                placed.insert(*number);
                let from = before.get(&(&unit.unit, *number)).copied();
                if from != Some(host) {
                    let instance = unit.unit.instance(*number);
                    new.insert(*number, InstancePlace { instance, to: named(host), from: from.map(named) });
                }
            }
        }
        let new = new.into_values().collect();
        shown((unit, placement), &placed, waiting.and_then(|waiting| waiting.get(&unit.unit)), new)
    };
    entry.placed().map(shown).collect()
}

fn shown(
    (unit, placement): (&DeploymentUnit, &Placement),
    placed: &BTreeSet<u32>,
    waiting: Option<&WaitingInstances>,
    new: Vec<InstancePlace>,
) -> UnitPlacement {
    let placed = |number: &u32| placed.contains(number);
    let missing = || (1..=placement.count).filter(|number| !placed(number));
    UnitPlacement {
        unit: unit.unit.clone(),
        count: placement.count,
        placed: placement.count - u32::try_from(missing().count()).unwrap_or(placement.count),
        waiting: missing().take(WAITING_NAMED_MAX).map(|number| unit.unit.instance(number)).collect(),
        obstacles: waiting.map(|waiting| waiting.obstacles.clone()).unwrap_or_default(),
        new,
    }
}

/// The instances of a row that a version still has.
pub(super) fn kept(row: Option<&AssignmentRow>, entry: &DeploymentEntry) -> Instances {
    let mut kept = row.map(|row| row.instances.clone()).unwrap_or_default();
    kept.retain(|unit, numbers| {
        let count = entry.placed().find(|(one, _)| one.unit == *unit).map_or(0, |(_, placement)| placement.count);
        numbers.retain(|number| *number <= count);
        !numbers.is_empty()
    });
    kept
}
