//! Places instances of units on hosts, as a plain function.
//!
//! A place that still holds is kept. A new instance goes to the least filled group of the label that instances are spread over,
//! there to the host with the fewest of them, and among equals in rendezvous order, which depends on the unit and the host alone:
//! a host that comes or goes moves no instance of another one.
//!
//! **Invariant: the result does not depend on the order of the hosts.**
//!
//! **Invariant: no host gets more instances than its memory, its processors or `max_per_host` allow.** What people place by
//! selecting hosts counts against new instances, and drives none away.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fmt,
    sync::Arc,
};

use muster_topics::{
    name::{HostId, UnitName},
    process::Limits,
    unit::UNITS_MAX,
};

use crate::capability::MissingCapability;

/// Memory and processor time: what a host has, or what an instance may use at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Processors, in thousandths.
    pub cpu_millis: u64,
}

impl Resources {
    /// Returns what a unit with these limits may use; what is not limited counts as nothing.
    #[must_use]
    pub fn of_limits(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes.unwrap_or(0),
            cpu_millis: limits.cpu.map_or(0, |cpu| u64::from(cpu.millis())),
        }
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
        }
    }
}

/// A host.
#[derive(Clone, Debug, Default)]
pub struct PlacementHost {
    /// Its id, as a number.
    pub id: u128,
    /// What it has.
    pub total: Resources,
    /// What units may use that are not placed.
    pub used: Resources,
    /// The number of these units.
    pub units: usize,
}

impl PlacementHost {
    /// Returns the number that stands for a host.
    #[must_use]
    pub fn number(host: HostId) -> u128 {
        host.0.as_u128()
    }
}

/// Whether a host may have instances of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostFit {
    /// It keeps those that it has, and gets new ones; the number of its group.
    Takes(u32),
    /// It keeps those that it has, and gets no new ones.
    Keeps(u32, PlacementObstacle),
    /// Those that it has move, if another host takes them.
    Leaves(u32, PlacementObstacle),
    /// It has none.
    Refuses(PlacementObstacle),
    /// It is none of the target's hosts.
    Outside,
}

/// Instances of a unit that are to be placed.
#[derive(Clone, Debug)]
pub struct WantedInstances<'a> {
    /// The unit.
    pub unit: &'a UnitName,
    /// How many, numbered from 1.
    pub count: u32,
    /// What each may use.
    pub needs: Resources,
    /// The most on one host.
    pub max_per_host: Option<u32>,
    /// Whether each host may have them, in the order of the hosts.
    pub fits: Vec<HostFit>,
    /// Where instances are: their numbers, and places in the list of hosts.
    pub present: Vec<(u32, usize)>,
}

/// Why a host gets no (further) instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlacementObstacle {
    /// An operator has cordoned it.
    Cordoned,
    /// An operator has drained it.
    Drained,
    /// It is away.
    Away,
    /// It lacks what the unit needs.
    Lacks(MissingCapability),
    /// It has not reported anything yet.
    Unheard,
    /// An operator has to confirm its document.
    Unconfirmed,
    /// It could not be read.
    Unreadable,
    /// The selector of the placement does not match it.
    NotSelected,
    /// This deployment has a unit of that name there.
    Taken(String),
    /// It has as many as one host may have.
    MaxPerHost(u32),
    /// It has too little memory for another one, which needs so many bytes.
    Memory(u64),
    /// It has too few processors for another one, which needs so many thousandths.
    Processors(u64),
    /// It has as many units as a host can have.
    Full,
}

impl fmt::Display for PlacementObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordoned => f.write_str("cordoned"),
            Self::Drained => f.write_str("drained"),
            Self::Away => f.write_str("away"),
            Self::Lacks(missing) => missing.fmt(f),
            Self::Unheard => f.write_str("not reported yet"),
            Self::Unconfirmed => f.write_str("the document waits for `muster deployment confirm`"),
            Self::Unreadable => f.write_str("the host's report cannot be read"),
            Self::NotSelected => f.write_str("not matched by `placement.select`"),
            Self::Taken(deployment) => write!(f, "deployment {deployment} has a unit of this name"),
            Self::MaxPerHost(max) => write!(f, "full by `max_per_host: {max}`"),
            Self::Memory(needs) => write!(f, "too little memory (needs {} MiB)", needs.div_ceil(1 << 20)),
            Self::Processors(needs) => write!(f, "too few processors (needs {})", *needs as f64 / 1_000.0),
            Self::Full => write!(f, "{UNITS_MAX} units, the maximum of a host"),
        }
    }
}

/// Where the instances of a unit are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacedInstances {
    /// The place of each in the list of hosts, by its number.
    pub places: BTreeMap<u32, usize>,
    /// Those for which there is no place.
    pub waiting: Vec<u32>,
    /// Of how many hosts each obstacle is the reason for that.
    pub obstacles: BTreeMap<PlacementObstacle, u64>,
}

/// What is placed on the hosts so far.
struct Filling<'a> {
    hosts: &'a [PlacementHost],
    used: Vec<Resources>,
    units: Vec<u32>,
}

/// Places the instances of some units; the result is in their order. Present places come first, of all units.
#[must_use]
pub fn place(hosts: &[PlacementHost], wanted: &[WantedInstances<'_>]) -> Vec<PlacedInstances> {
    let mut filling = Filling { hosts, used: vec![Resources::default(); hosts.len()], units: vec![0; hosts.len()] };
    let kept: Vec<UnitFilling<'_>> = wanted.iter().map(|one| filling.keep(one)).collect();
    kept.into_iter().map(|unit| filling.add(unit)).collect()
}

/// What is placed of one unit.
struct UnitFilling<'a> {
    wanted: &'a WantedInstances<'a>,
    seed: u64,
    /// The number on each host.
    own: Vec<u32>,
    places: BTreeMap<u32, usize>,
    /// Instances that move, if another host takes them, with their places.
    leaving: BTreeMap<u32, usize>,
}

/// A host in its group: its instances of the unit, all its instances, its place in rendezvous order, its place in the list.
type Candidate = (u32, u32, u64, usize);

/// A group with the hosts that may get more, the best one first.
type Group = (u32, BinaryHeap<Reverse<Candidate>>);

/// Groups that may get more, the one with the fewest instances first, among equals the one with the best host.
type GroupOrder = BinaryHeap<Reverse<(u32, Candidate, u32)>>;

impl Filling<'_> {
    /// Keeps the places that still hold, the lowest numbers first.
    fn keep<'a>(&mut self, wanted: &'a WantedInstances<'a>) -> UnitFilling<'a> {
        let seed = seed(wanted.unit);
        let own = vec![0; self.hosts.len()];
        let mut unit = UnitFilling { wanted, seed, own, places: BTreeMap::new(), leaving: BTreeMap::new() };
        let id = |host: usize| self.hosts.get(host).map_or(0, |one| one.id);
        let mut present: Vec<(u32, usize)> =
            wanted.present.iter().filter(|(number, _)| (1..=wanted.count).contains(number)).copied().collect();
        // One that two hosts have, after a store was lost, stays with one of them.
        present.sort_by_key(|(number, host)| (*number, id(*host)));
        for (number, host) in present {
            if unit.places.contains_key(&number) || unit.leaving.contains_key(&number) {
                continue;
            }
            match wanted.fits.get(host) {
                Some(HostFit::Takes(_) | HostFit::Keeps(..)) if self.obstacle(&unit, host, false).is_none() => {
                    self.put(&mut unit, number, host);
                }
                Some(HostFit::Leaves(..)) if self.obstacle(&unit, host, false).is_none() => {
                    // Its room stays its own until it has left.
                    self.put(&mut unit, number, host);
                    unit.places.remove(&number);
                    unit.leaving.insert(number, host);
                }
                _ => {}
            }
        }
        unit
    }

    /// Finds places for the instances that have none.
    fn add(&mut self, mut unit: UnitFilling<'_>) -> PlacedInstances {
        let missing: Vec<u32> = (1..=unit.wanted.count).filter(|number| !unit.places.contains_key(number)).collect();
        let mut result = PlacedInstances::default();
        if !missing.is_empty() {
            let mut groups = self.groups(&unit);
            let mut order = GroupOrder::new();
            for (group, (count, heap)) in &groups {
                order.extend(heap.peek().map(|best| Reverse((*count, best.0, *group))));
            }
            for number in missing {
                match self.next(&mut unit, &mut order, &mut groups) {
                    Some(host) => {
                        if let Some(left) = unit.leaving.remove(&number) {
                            self.take(&mut unit, left);
                        }
                        unit.places.insert(number, host);
                    }
                    None => match unit.leaving.remove(&number) {
                        Some(host) => drop(unit.places.insert(number, host)),
                        None => result.waiting.push(number),
                    },
                }
            }
        }
        if !result.waiting.is_empty() {
            result.obstacles = self.obstacles(&unit);
        }
        result.places = unit.places;
        result
    }

    /// Takes the host that the next instance goes to, which is counted there.
    fn next(
        &mut self,
        unit: &mut UnitFilling<'_>,
        order: &mut GroupOrder,
        groups: &mut BTreeMap<u32, Group>,
    ) -> Option<usize> {
        while let Some(Reverse((_, _, group))) = order.pop() {
            let Some((count, heap)) = groups.get_mut(&group) else { continue };
            let mut found = None;
            while let Some(Reverse((own, all, score, host))) = heap.pop() {
                // What does not fit now will not fit later.
                if self.obstacle(unit, host, true).is_none() {
                    heap.push(Reverse((own + 1, all + 1, score, host)));
                    found = Some(host);
                    break;
                }
            }
            if let Some(host) = found {
                *count += 1;
                order.extend(heap.peek().map(|best| Reverse((*count, best.0, group))));
                self.fill(unit, host);
                return Some(host);
            }
        }
        None
    }

    /// Returns the hosts that may get instances by their groups, each group with the number of instances in it.
    fn groups(&self, unit: &UnitFilling<'_>) -> BTreeMap<u32, Group> {
        let mut groups: BTreeMap<u32, (u32, Vec<Reverse<Candidate>>)> = BTreeMap::new();
        for (host, fit) in unit.wanted.fits.iter().enumerate() {
            let (Some(of), Some(own), Some(all)) = (self.hosts.get(host), unit.own.get(host), self.units.get(host))
            else {
                continue;
            };
            match fit {
                HostFit::Takes(group) => {
                    let (count, list) = groups.entry(*group).or_default();
                    *count += own;
                    list.push(Reverse((*own, *all, score(unit.seed, of.id), host)));
                }
                HostFit::Keeps(group, _) => groups.entry(*group).or_default().0 += own,
                _ => {}
            }
        }
        groups.into_iter().map(|(group, (count, list))| (group, (count, BinaryHeap::from(list)))).collect()
    }

    /// Returns why a host cannot have another instance; what is not placed there counts against new ones alone.
    fn obstacle(&self, unit: &UnitFilling<'_>, host: usize, is_new: bool) -> Option<PlacementObstacle> {
        let wanted = unit.wanted;
        let (of, used) = (self.hosts.get(host)?, self.used.get(host)?);
        let own = unit.own.get(host)?;
        if let Some(max) = wanted.max_per_host.filter(|max| own >= max) {
            return Some(PlacementObstacle::MaxPerHost(max));
        }
        let base = if is_new { of.used } else { Resources::default() };
        let after = base.plus(*used).plus(wanted.needs);
        if wanted.needs.memory_bytes > 0 && after.memory_bytes > of.total.memory_bytes {
            return Some(PlacementObstacle::Memory(wanted.needs.memory_bytes));
        }
        if wanted.needs.cpu_millis > 0 && after.cpu_millis > of.total.cpu_millis {
            return Some(PlacementObstacle::Processors(wanted.needs.cpu_millis));
        }
        let units = of.units + *self.units.get(host)? as usize;
        (is_new && units >= UNITS_MAX).then_some(PlacementObstacle::Full)
    }

    /// Returns the obstacles of all hosts of the target.
    fn obstacles(&self, unit: &UnitFilling<'_>) -> BTreeMap<PlacementObstacle, u64> {
        let mut found = BTreeMap::new();
        for (host, fit) in unit.wanted.fits.iter().enumerate() {
            let obstacle = match fit {
                HostFit::Outside => None,
                HostFit::Takes(_) => self.obstacle(unit, host, true),
                HostFit::Keeps(_, why) | HostFit::Leaves(_, why) | HostFit::Refuses(why) => Some(why.clone()),
            };
            if let Some(obstacle) = obstacle {
                *found.entry(obstacle).or_default() += 1;
            }
        }
        found
    }

    fn put(&mut self, unit: &mut UnitFilling<'_>, number: u32, host: usize) {
        unit.places.insert(number, host);
        self.fill(unit, host);
    }

    fn fill(&mut self, unit: &mut UnitFilling<'_>, host: usize) {
        if let (Some(used), Some(units), Some(own)) =
            (self.used.get_mut(host), self.units.get_mut(host), unit.own.get_mut(host))
        {
            *used = used.plus(unit.wanted.needs);
            *units += 1;
            *own += 1;
        }
    }

    /// Gives up the room of an instance that has left.
    fn take(&mut self, unit: &mut UnitFilling<'_>, host: usize) {
        if let (Some(used), Some(units), Some(own)) =
            (self.used.get_mut(host), self.units.get_mut(host), unit.own.get_mut(host))
        {
            used.memory_bytes = used.memory_bytes.saturating_sub(unit.wanted.needs.memory_bytes);
            used.cpu_millis = used.cpu_millis.saturating_sub(unit.wanted.needs.cpu_millis);
            *units = units.saturating_sub(1);
            *own = own.saturating_sub(1);
        }
    }
}

/// Returns a number for a unit: FNV-1a over its name.
fn seed(unit: &UnitName) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    unit.as_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the place of a host in the rendezvous order of a unit.
fn score(seed: u64, host: u128) -> u64 {
    mix(mix(seed ^ host as u64) ^ (host >> 64) as u64)
}

/// The finaliser of SplitMix64: each bit of the result depends on each bit of the number.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The values of a label, each with a number.
#[derive(Debug, Default)]
pub struct GroupNumbers(BTreeMap<Option<Arc<str>>, u32>);

impl GroupNumbers {
    /// Returns the number of a value; hosts without the label are one group.
    pub fn of(&mut self, value: Option<&Arc<str>>) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry(value.cloned()).or_insert(next)
    }
}

#[cfg(test)]
mod tests;
