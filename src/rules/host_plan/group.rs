//! Groups the plans of many hosts: those that are alike are one group, with one plan and the list of its hosts.

use std::collections::{BTreeMap, HashMap};

use muster_topics::name::{Digest, HostId};

use super::{DeploymentPlan, UnitAction};

/// Plans of hosts, grouped.
#[derive(Clone, Debug, Default)]
pub struct PlanGroups {
    groups: HashMap<Digest, PlanGroup>,
}

/// Hosts with the same plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanGroup {
    /// The plan of one of them: a brief one, until [`PlanGroups::complete`] has another.
    pub plan: DeploymentPlan,
    /// The hosts, in order.
    pub hosts: Vec<HostId>,
}

impl PlanGroups {
    /// Adds the plan of a host.
    pub fn add(&mut self, host: HostId, plan: DeploymentPlan) {
        match self.groups.get_mut(&plan.whole) {
            Some(group) => group.hosts.push(host),
            None => drop(self.groups.insert(plan.whole.clone(), PlanGroup { plan, hosts: vec![host] })),
        }
    }

    /// Puts a whole plan in place of the brief one of its group; false if there is no such group (any more).
    pub fn complete(&mut self, plan: DeploymentPlan) -> bool {
        match self.groups.get_mut(&plan.whole) {
            Some(group) => {
                group.plan = plan;
                true
            }
            None => false,
        }
    }

    /// Returns the first host of each of the largest groups, with its plan.
    #[must_use]
    pub fn first_hosts(&self, max: usize) -> Vec<(HostId, &DeploymentPlan)> {
        let mut groups: Vec<&PlanGroup> = self.groups.values().collect();
        groups.sort_by(|one, other| {
            let order = other.hosts.len().cmp(&one.hosts.len());
            order.then_with(|| one.plan.whole.as_str().cmp(other.plan.whole.as_str()))
        });
        let first = |group: &PlanGroup| group.hosts.iter().min().copied();
        groups.into_iter().take(max).filter_map(|group| Some((first(group)?, &group.plan))).collect()
    }

    /// Returns the groups: the largest first, then those that change more, then by digest.
    #[must_use]
    pub fn sorted(self) -> Vec<PlanGroup> {
        let mut groups: Vec<PlanGroup> = self.groups.into_values().collect();
        groups.iter_mut().for_each(|group| group.hosts.sort_unstable());
        let weight = |group: &PlanGroup| -> u32 {
            let changes = |(action, count): (&UnitAction, &u32)| if action.is_change() { *count } else { 0 };
            group.plan.counts.iter().map(changes).sum()
        };
        groups.sort_by(|one, other| {
            let order = other.hosts.len().cmp(&one.hosts.len()).then(weight(other).cmp(&weight(one)));
            order.then_with(|| one.plan.whole.as_str().cmp(other.plan.whole.as_str()))
        });
        groups
    }

    /// Returns the digest that each host has to find again.
    #[must_use]
    pub fn digests(&self) -> BTreeMap<HostId, Digest> {
        let of =
            |group: &PlanGroup| group.hosts.iter().map(|host| (*host, group.plan.digest.clone())).collect::<Vec<_>>();
        self.groups.values().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::host_plan::UnitPlan;

    fn plan(action: UnitAction) -> DeploymentPlan {
        DeploymentPlan::of("d/x".parse().unwrap(), vec![UnitPlan::new("d/a".parse().unwrap(), action)])
    }

    #[test]
    fn hosts_that_remove_another_unit_are_another_group() {
        let with = |removals: &[&str]| {
            let removal = |name: &&str| UnitPlan::new(name.parse().unwrap(), UnitAction::Remove);
            let created = UnitPlan::new("d/a".parse().unwrap(), UnitAction::Create);
            let units = removals.iter().map(removal).chain([created]).collect();
            DeploymentPlan::of("d/x".parse().unwrap(), units)
        };
        let mut groups = PlanGroups::default();
        for (n, plan) in [(1, with(&[])), (2, with(&["d/b"])), (3, with(&["d/b"]))] {
            groups.add(HostId(Uuid::from_u128(n)), plan);
        }
        let digests = groups.digests();
        assert!(digests.values().all(|digest| *digest == with(&[]).digest), "what goes is not compared");
        assert_eq!(groups.sorted().iter().map(|group| group.hosts.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn equal_plans_are_one_group_and_the_largest_is_first() {
        let host = |n| HostId(Uuid::from_u128(n));
        let mut groups = PlanGroups::default();
        for (n, action) in [
            (5, UnitAction::Restart),
            (1, UnitAction::Unchanged),
            (4, UnitAction::Restart),
            (3, UnitAction::Create),
            (2, UnitAction::Restart),
        ] {
            groups.add(host(n), plan(action).brief());
        }
        assert!(groups.complete(plan(UnitAction::Create)));
        assert!(!groups.complete(plan(UnitAction::Stop)), "no host has such a plan");
        assert_eq!(groups.digests()[&host(4)], plan(UnitAction::Restart).digest);
        let found: Vec<(usize, Vec<HostId>)> =
            groups.sorted().into_iter().map(|group| (group.plan.units.len(), group.hosts)).collect();
        assert_eq!(found, [(0, vec![host(2), host(4), host(5)]), (1, vec![host(3)]), (0, vec![host(1)])]);
    }
}
