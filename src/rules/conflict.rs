//! Conflicts: units of a host that want the same resource, and which of them gives way.
//!
//! What a unit wants is an index over its spec ([`index`]): packages, repositories, paths, ports, containers. If units conflict, the one with the most
//! conflicts among those that *change* goes back to the revision before, again and again until none is left; among equals the
//! one of lower priority (the higher number), then the newest, then by name. A unit without a revision before is held. If none of
//! the units in a conflict changes, nothing is touched: all of them are held, and say so.
//!
//! **Invariant: there are at most as many rounds as units that change**: each round takes one of them back.
//!
//! **Invariant: the worst case is the state before**: what does not change never gives way to what does.

pub mod index;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use muster_topics::{name::UnitName, unit::Spec};

use self::index::{Clash, clashes};

/// A unit that wants resources.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// The unit.
    pub unit: &'a UnitName,
    /// What it is to be.
    pub spec: &'a Spec,
    /// The generation of that.
    pub generation: u64,
    /// What it was before, if it can go back to that, or goes on as that while it is held.
    pub earlier: Option<&'a Spec>,
    /// Whether what it is to be is not in effect yet.
    pub changes: bool,
}

/// What becomes of a unit that conflicts with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictVerdict {
    /// It goes back to the revision before; with the reason.
    GoBack(String),
    /// It is held as it is; with the reason.
    Hold(String),
}

/// Which spec of a claimant counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Earlier,
    Nothing,
}

/// Returns what becomes of the units that conflict with others; units that do not are not listed.
#[must_use]
pub fn resolve<'a>(units: &[Claimant<'a>]) -> BTreeMap<&'a UnitName, ConflictVerdict> {
    let clashes = clashes(units);
    let mut stages = vec![Stage::Asked; units.len()];
    let mut verdicts = BTreeMap::new();
    if clashes.is_empty() {
        return verdicts;
    }
    loop {
        let counts = count(&clashes, &stages);
        let gives_way = |at: &usize| units[*at].changes && stages[*at] == Stage::Asked;
        let rank = |at: &usize| {
            let Claimant { unit, spec, generation, .. } = units[*at];
            (counts[at].0, spec.common().priority, generation, unit)
        };
        let Some(loser) = counts.keys().copied().filter(gives_way).max_by_key(rank) else {
            for (at, (_, clash)) in &counts {
                let why = clash.told(*at, units);
                verdicts.entry(units[*at].unit).or_insert(ConflictVerdict::Hold(why));
            }
            return verdicts;
        };
        let why = counts[&loser].1.told(loser, units);
        let verdict;
        (stages[loser], verdict) = match units[loser].earlier {
            Some(_) => (Stage::Earlier, ConflictVerdict::GoBack(why)),
            None => (Stage::Nothing, ConflictVerdict::Hold(why)),
        };
        verdicts.insert(units[loser].unit, verdict);
    }
}

/// Counts the conflicts of each claimant, and returns the first of each.
fn count<'c>(clashes: &'c [Clash], stages: &[Stage]) -> BTreeMap<usize, (usize, &'c Clash)> {
    let counts_now = |(at, is_earlier): (usize, bool)| match stages[at] {
        Stage::Asked => !is_earlier,
        Stage::Earlier => is_earlier,
        Stage::Nothing => false,
    };
    let mut counts: BTreeMap<usize, (usize, &Clash)> = BTreeMap::new();
    for clash in clashes.iter().filter(|clash| clash.sides.into_iter().all(counts_now)) {
        for (at, _) in clash.sides {
            counts.entry(at).or_insert((0, clash)).0 += 1;
        }
    }
    counts
}

impl Clash {
    /// Says what a claimant and the other one want.
    fn told(&self, at: usize, units: &[Claimant<'_>]) -> String {
        let (other, own, others) = match self.sides[0].0 == at {
            true => (self.sides[1].0, &self.wants[0], &self.wants[1]),
            false => (self.sides[0].0, &self.wants[1], &self.wants[0]),
        };
        let other = units[other].unit;
        match own == others {
            true => format!("{other} has {own} too"),
            false => format!("{own}, and {other} has {others}"),
        }
    }
}
