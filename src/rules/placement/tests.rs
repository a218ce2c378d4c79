use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

#[derive(Clone, Debug)]
struct Case {
    hosts: Vec<PlacementHost>,
    groups: Vec<u32>,
    count: u32,
    max_per_host: Option<u32>,
    needs: u64,
}

fn unit() -> UnitName {
    "shop/web".parse().unwrap()
}

fn host(id: u128, gib: u64) -> PlacementHost {
    PlacementHost { id, total: Resources { memory_bytes: gib * GIB, cpu_millis: 4_000 }, ..PlacementHost::default() }
}

fn cases() -> impl Strategy<Value = Case> {
    let hosts = prop::collection::btree_map(any::<u128>(), (0u64..6, 0u32..3), 1..30);
    (hosts, 0u32..60, prop::option::of(1u32..4), 0u64..3).prop_map(|(hosts, count, max_per_host, needs)| Case {
        groups: hosts.values().map(|(_, group)| *group).collect(),
        hosts: hosts.into_iter().map(|(id, (gib, _))| host(id, gib)).collect(),
        count,
        max_per_host,
        needs,
    })
}

impl Case {
    fn place(&self, present: &BTreeMap<u32, u128>) -> (BTreeMap<u32, u128>, PlacedInstances) {
        let unit = unit();
        let at = |id: &u128| self.hosts.iter().position(|host| host.id == *id);
        let wanted = WantedInstances {
            unit: &unit,
            count: self.count,
            needs: Resources { memory_bytes: self.needs * GIB, cpu_millis: 0 },
            max_per_host: self.max_per_host,
            fits: self.groups.iter().map(|group| HostFit::Takes(*group)).collect(),
            present: present.iter().filter_map(|(number, id)| Some((*number, at(id)?))).collect(),
        };
        let placed = place(&self.hosts, &[wanted]).remove(0);
        (placed.places.iter().map(|(number, host)| (*number, self.hosts[*host].id)).collect(), placed)
    }

    fn on(&self, placed: &PlacedInstances, host: usize) -> u64 {
        placed.places.values().filter(|at| **at == host).count() as u64
    }

    fn room(&self, host: usize) -> u64 {
        let memory = self.hosts[host].total.memory_bytes.checked_div(self.needs * GIB).unwrap_or(u64::MAX);
        memory.min(self.max_per_host.map_or(u64::MAX, u64::from))
    }
}

proptest! {
    #[test]
    fn no_host_gets_too_many_and_nobody_waits_without_need(case in cases()) {
        let (places, placed) = case.place(&BTreeMap::new());
        for host in 0..case.hosts.len() {
            prop_assert!(case.on(&placed, host) <= case.room(host), "{placed:?}");
        }
        prop_assert_eq!(places.len() + placed.waiting.len(), case.count as usize);
        let left = (0..case.hosts.len()).any(|host| case.on(&placed, host) < case.room(host));
        prop_assert!(placed.waiting.is_empty() || !left, "{placed:?}");
        prop_assert_eq!(placed.waiting.is_empty(), placed.obstacles.is_empty());
        if !placed.waiting.is_empty() {
            prop_assert_eq!(placed.obstacles.values().sum::<u64>(), case.hosts.len() as u64);
        }
    }

    #[test]
    fn groups_are_filled_evenly(case in cases()) {
        let case = Case { needs: 0, max_per_host: None, ..case };
        let (_, placed) = case.place(&BTreeMap::new());
        let mut counts: BTreeMap<u32, u64> = case.groups.iter().map(|group| (*group, 0)).collect();
        placed.places.values().for_each(|host| *counts.get_mut(&case.groups[*host]).unwrap() += 1);
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        prop_assert!(most - least <= 1, "{counts:?}");
        for group in counts.keys() {
            let of = || (0..case.hosts.len()).filter(|host| case.groups[*host] == *group);
            let counts: Vec<u64> = of().map(|host| case.on(&placed, host)).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }

    #[test]
    fn order_of_hosts_and_a_repetition_change_nothing(case in cases(), turn in any::<prop::sample::Index>()) {
        let (places, placed) = case.place(&BTreeMap::new());
        let mut other = case.clone();
        let turn = turn.index(case.hosts.len());
        other.hosts.rotate_left(turn);
        other.groups.rotate_left(turn);
        // The numbers of groups are arbitrary as well.
        other.groups.iter_mut().for_each(|group| *group = 7 - *group);
        prop_assert_eq!(&other.place(&BTreeMap::new()).0, &places);
        let (again, placed_again) = other.place(&places);
        prop_assert_eq!((again, placed_again.waiting), (places, placed.waiting));
    }

    #[test]
    fn host_that_leaves_moves_only_its_own(case in cases(), gone in any::<prop::sample::Index>()) {
        let (places, _) = case.place(&BTreeMap::new());
        let gone = gone.index(case.hosts.len());
        let id = case.hosts[gone].id;
        let mut other = case;
        other.hosts.remove(gone);
        other.groups.remove(gone);
        let (after, _) = other.place(&places);
        for (number, at) in places.iter().filter(|(_, at)| **at != id) {
            prop_assert_eq!(after.get(number), Some(at));
        }
    }

    #[test]
    fn scaling_moves_nobody(case in cases(), count in 0u32..60) {
        let (places, _) = case.place(&BTreeMap::new());
        let other = Case { count, ..case };
        let (after, _) = other.place(&places);
        for (number, at) in places.iter().filter(|(number, _)| **number <= count) {
            prop_assert_eq!(after.get(number), Some(at));
        }
        prop_assert!(after.keys().all(|number| *number <= count));
    }
}

#[track_caller]
fn check(fits: Vec<HostFit>, count: u32, present: &[(u32, usize)], places: &[(u32, usize)], obstacles: &[&str]) {
    let hosts: Vec<PlacementHost> = (0..fits.len()).map(|number| host(number as u128, 4)).collect();
    let unit = unit();
    let needs = Resources { memory_bytes: 3 * GIB, cpu_millis: 0 };
    let wanted = WantedInstances { unit: &unit, count, needs, max_per_host: None, fits, present: present.to_vec() };
    let placed = place(&hosts, &[wanted]).remove(0);
    assert_eq!(placed.places, places.iter().copied().collect());
    let said: Vec<String> = placed.obstacles.iter().map(|(why, hosts)| format!("{hosts}: {why}")).collect();
    assert_eq!(said, obstacles);
}

#[test]
fn gates_of_hosts_are_kept() {
    use PlacementObstacle::{Away, Cordoned, Drained};
    let away = || HostFit::Leaves(0, Away);
    let cordoned = || HostFit::Keeps(0, Cordoned);
    check(
        vec![HostFit::Takes(0), cordoned()],
        2,
        &[],
        &[(1, 0)],
        &["1: cordoned", "1: too little memory (needs 3072 MiB)"],
    );
    check(vec![HostFit::Takes(0), cordoned()], 2, &[(1, 1)], &[(1, 1), (2, 0)], &[]);
    check(vec![HostFit::Refuses(Drained), HostFit::Outside], 1, &[(1, 0)], &[], &["1: drained"]);
    // Rescheduled: it moves if another host takes it, and stays otherwise.
    check(vec![away(), HostFit::Takes(0)], 1, &[(1, 0)], &[(1, 1)], &[]);
    check(vec![away(), cordoned()], 1, &[(1, 0)], &[(1, 0)], &[]);
    // After a loss two hosts have the same instance.
    check(vec![HostFit::Takes(0), HostFit::Takes(0)], 1, &[(1, 0), (1, 1)], &[(1, 0)], &[]);
}

#[test]
fn units_share_hosts() {
    let hosts = [host(1, 4), PlacementHost { used: Resources { memory_bytes: 2 * GIB, cpu_millis: 0 }, ..host(2, 4) }];
    let (web, job): (UnitName, UnitName) = ("shop/web".parse().unwrap(), "shop/job".parse().unwrap());
    let wanted = |unit, present: &[(u32, usize)]| WantedInstances {
        unit,
        count: 2,
        needs: Resources { memory_bytes: 2 * GIB, cpu_millis: 0 },
        max_per_host: None,
        fits: vec![HostFit::Takes(0), HostFit::Takes(0)],
        present: present.to_vec(),
    };
    // The second one's places hold before the first one gets any; a place beside plain units is kept as well.
    let placed = place(&hosts, &[wanted(&web, &[]), wanted(&job, &[(1, 0), (2, 1)])]);
    assert_eq!(placed[1].places, [(1, 0), (2, 1)].into());
    assert_eq!((placed[0].places.get(&1), placed[0].waiting.len()), (Some(&0), 1));
}
