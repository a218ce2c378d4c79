//! Which deployments a host carries.
//!
//! A host carries those that select it, unless two have a unit of the same name: then the one that it carries already keeps its place,
//! or else the one that was made first. A cordoned host gets no further ones, a drained one has none.

use std::collections::BTreeMap;

use muster_topics::{
    desired::{DEPLOYMENTS_MAX, DeploymentName},
    name::UnitName,
    unit::UNITS_MAX,
};

/// Whether a host carries deployments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostGate {
    /// It carries those that select it.
    #[default]
    Open,
    /// It keeps those that it has, and gets no new ones.
    Cordoned,
    /// It carries none.
    Drained,
}

/// A deployment that a host might carry.
#[derive(Clone, Copy, Debug)]
pub struct AssignmentCandidate<'a> {
    /// Its name.
    pub deployment: &'a DeploymentName,
    /// Its units.
    pub units: &'a [UnitName],
    /// Whether it selects the host.
    pub selects: bool,
    /// Whether the host carries it so far.
    pub has: bool,
}

/// Why a host does not carry a deployment that selects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignmentConflict {
    /// Another deployment has a unit of the same name there.
    Unit {
        /// The unit.
        unit: UnitName,
        /// The deployment that keeps it.
        with: DeploymentName,
    },
    /// The host would have more units, or deployments, than it can.
    Full,
    /// The host is cordoned or drained.
    Cordoned,
}

impl std::fmt::Display for AssignmentConflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unit { unit, with } => write!(f, "unit {unit} belongs to deployment {with}"),
            Self::Full => {
                write!(f, "the host would have more than {UNITS_MAX} units or {DEPLOYMENTS_MAX} deployments")
            }
            Self::Cordoned => f.write_str("the host is cordoned"),
        }
    }
}

/// Which of the candidates a host carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAssignment {
    /// Those that it carries, by their places in the list of candidates.
    pub carries: Vec<usize>,
    /// Those that select it, and that it does not carry.
    pub conflicts: Vec<(usize, AssignmentConflict)>,
}

/// Decides which deployments a host carries; `candidates` are in the order in which they were made.
#[must_use]
pub fn assign(candidates: &[AssignmentCandidate<'_>], gate: HostGate) -> HostAssignment {
    let mut assignment = HostAssignment::default();
    let mut taken: BTreeMap<&UnitName, &DeploymentName> = BTreeMap::new();
    let selected = || candidates.iter().enumerate().filter(|(_, one)| one.selects);
    let in_order = selected().filter(|(_, one)| one.has).chain(selected().filter(|(_, one)| !one.has));
    for (place, one) in in_order {
        let conflict = conflict(one, &assignment, &taken, gate);
        match conflict {
            Some(conflict) => assignment.conflicts.push((place, conflict)),
            None => {
                assignment.carries.push(place);
                taken.extend(one.units.iter().map(|unit| (unit, one.deployment)));
            }
        }
    }
    assignment.carries.sort_unstable();
    assignment
}

fn conflict(
    one: &AssignmentCandidate<'_>,
    so_far: &HostAssignment,
    taken: &BTreeMap<&UnitName, &DeploymentName>,
    gate: HostGate,
) -> Option<AssignmentConflict> {
    match gate {
        HostGate::Drained => return Some(AssignmentConflict::Cordoned),
        HostGate::Cordoned if !one.has => return Some(AssignmentConflict::Cordoned),
        HostGate::Cordoned | HostGate::Open => {}
    }
    let held = one.units.iter().find_map(|unit| Some((unit, taken.get(unit)?)));
    if let Some((unit, with)) = held {
        return Some(AssignmentConflict::Unit { unit: unit.clone(), with: (*with).clone() });
    }
    let is_full = so_far.carries.len() >= DEPLOYMENTS_MAX || taken.len() + one.units.len() > UNITS_MAX;
    is_full.then_some(AssignmentConflict::Full)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    type Made = (DeploymentName, Vec<UnitName>, bool, bool);

    fn made(names: &[(&str, bool, bool)]) -> Vec<Made> {
        let one = |(index, (units, selects, has)): (usize, &(&str, bool, bool))| {
            let units = units.chars().map(|unit| format!("a/{unit}").parse().unwrap()).collect();
            (format!("a/d{index}").parse().unwrap(), units, *selects, *has)
        };
        names.iter().enumerate().map(one).collect()
    }

    fn candidates(made: &[Made]) -> Vec<AssignmentCandidate<'_>> {
        made.iter()
            .map(|(deployment, units, selects, has)| AssignmentCandidate {
                deployment,
                units,
                selects: *selects,
                has: *has,
            })
            .collect()
    }

    #[test]
    fn first_keeps_a_unit() {
        let check = |names: &[(&str, bool, bool)], gate, carries: &[usize], conflicts: &[usize]| {
            let made = made(names);
            let found = assign(&candidates(&made), gate);
            assert_eq!(found.carries, carries, "{names:?}");
            assert_eq!(found.conflicts.iter().map(|(place, _)| *place).collect::<Vec<_>>(), conflicts, "{names:?}");
        };
        use HostGate::{Cordoned, Drained, Open};
        check(&[("xy", true, false), ("yz", true, false), ("z", true, false)], Open, &[0, 2], &[1]);
        check(&[("xy", true, false), ("yz", true, true), ("x", true, false)], Open, &[1, 2], &[0]);
        check(&[("x", false, true), ("x", true, false)], Open, &[1], &[]);
        check(&[("x", true, true), ("y", true, false)], Cordoned, &[0], &[1]);
        check(&[("x", true, true), ("y", false, true)], Drained, &[], &[0]);
    }

    proptest! {
        #[test]
        fn no_unit_is_carried_twice_and_a_second_look_changes_nothing(
            names in prop::collection::vec(("[a-e]{1,3}", any::<bool>(), any::<bool>()), 0..8),
        ) {
            let names: Vec<(&str, bool, bool)> = names.iter().map(|(units, s, h)| (units.as_str(), *s, *h)).collect();
            let mut made = made(&names);
            for one in &mut made {
                one.1.sort();
                one.1.dedup();
            }
            let found = assign(&candidates(&made), HostGate::Open);
            let mut taken = BTreeSet::new();
            for place in &found.carries {
                prop_assert!(made[*place].2);
                for unit in &made[*place].1 {
                    prop_assert!(taken.insert(unit.clone()), "{} twice", unit);
                }
            }
            // Each that selects the host is carried, or there is a reason that holds.
            for (place, conflict) in &found.conflicts {
                let AssignmentConflict::Unit { unit, with } = conflict else { panic!("{conflict:?}") };
                prop_assert!(made[*place].1.contains(unit));
                prop_assert!(found.carries.iter().any(|kept| made[*kept].0 == *with && made[*kept].1.contains(unit)));
            }
            prop_assert_eq!(found.carries.len() + found.conflicts.len(), made.iter().filter(|one| one.2).count());
            for (place, one) in made.iter_mut().enumerate() {
                one.3 = found.carries.contains(&place);
            }
            prop_assert_eq!(assign(&candidates(&made), HostGate::Open).carries, found.carries);
        }
    }
}
