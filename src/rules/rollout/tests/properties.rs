//! What holds of rollouts, whatever happens.

use muster_fault::{Fault, plant};
use muster_topics::admission::ChangeOutcome;
use proptest::{
    prelude::*,
    test_runner::{Config, RngSeed, TestRunner},
};

use super::model::{Event, World};
use crate::rollout::policy::{Approve, Authority, Budget, Check, OnFailure, Retries, RolloutPolicy, Share};

fn events() -> impl Strategy<Value = Event> {
    let host = 0usize..8;
    let outcome = prop::sample::select(vec![
        ChangeOutcome::Verified,
        ChangeOutcome::Verified,
        ChangeOutcome::RolledBack,
        ChangeOutcome::Failed,
    ]);
    prop_oneof![
        8 => (0u16..20).prop_map(Event::Sleep),
        1 => (0u16..2_000).prop_map(Event::Sleep),
        16 => Just(Event::Decide),
        12 => host.clone().prop_map(Event::Sync),
        20 => host.clone().prop_map(Event::Speak),
        10 => (host.clone(), outcome).prop_map(|(host, outcome)| Event::End(host, outcome)),
        2 => (host.clone(), any::<bool>()).prop_map(|(host, is_verified)| Event::EndFree(host, is_verified)),
        40 => any::<usize>().prop_map(Event::Arrive),
        6 => any::<usize>().prop_map(Event::Repeat),
        4 => any::<usize>().prop_map(Event::Lose),
        2 => host.clone().prop_map(Event::Offline),
        4 => host.clone().prop_map(Event::Online),
        1 => host.clone().prop_map(Event::Remove),
        2 => host.clone().prop_map(Event::Select),
        2 => Just(Event::Crash),
        2 => Just(Event::NextVersion),
        1 => Just(Event::Cancel),
        1 => Just(Event::Pause),
        3 => Just(Event::Resume),
        3 => Just(Event::Promote),
        1 => Just(Event::Retry),
        1 => host.prop_map(Event::Release),
        4 => any::<bool>().prop_map(Event::Authority),
        3 => any::<u8>().prop_map(Event::Check),
    ]
}

fn counts(counts: Vec<u32>) -> impl Strategy<Value = Share> {
    prop::sample::select(counts).prop_map(Share::Count)
}

prop_compose! {
    fn policies()(
        waves in prop::option::of(prop::collection::vec(1u32..3, 0..3)),
        max_in_flight in counts(vec![1, 2, 4]),
        max_unavailable in prop::option::of(counts(vec![1, 2])),
        max_failures in prop_oneof![counts(vec![0, 1, 2]), Just(Share::Percent(100.0))],
        on_failure in prop::sample::select(vec![OnFailure::Pause, OnFailure::Rollback]),
        approve in prop::sample::select(vec![Approve::None, Approve::First, Approve::Each]),
        soak_ms in prop::sample::select(vec![0, 30_000]),
        has_windows in prop::bool::weighted(0.2),
        attempts in 0u32..2,
        (has_check, has_authority) in (prop::bool::weighted(0.2), prop::bool::weighted(0.2)),
    ) -> RolloutPolicy {
        let windows: Vec<String> = (0..24).map(|hour| format!("{hour:02}:00-{hour:02}:30 UTC")).collect();
        let windows = windows.iter().filter(|_| has_windows).map(|window| window.parse().unwrap());
        RolloutPolicy {
            waves: waves.map(|waves| waves.into_iter().map(Share::Count).collect()),
            max_in_flight,
            budget: max_unavailable.map(|max_unavailable| Budget { group_by: "site".parse().unwrap(), max_unavailable }),
            max_failures,
            on_failure,
            approve,
            soak_ms,
            windows: windows.collect(),
            deadline_ms: 900_000,
            lost_after_ms: 120_000,
            retries: Retries { attempts, after_ms: 60_000 },
            check: has_check.then(|| Check { query: "up{$hosts}".to_owned(), worse_than_rest_by: 0.0 }),
            authority: has_authority.then(|| Authority { url: "https://a.example".to_owned(), timeout_ms: 10_000 }),
        }
    }
}

type Play = (RolloutPolicy, usize, Vec<Event>);

fn plays(length: usize) -> impl Strategy<Value = Play> {
    (policies(), 1usize..8, prop::collection::vec(events(), 0..length))
}

/// Plays what happens; returns what is wrong.
fn play((policy, hosts, events): &Play, settles: bool) -> Vec<String> {
    let mut world = World::new(policy.clone(), *hosts);
    for event in events {
        world.happen(*event);
        world.check_outcomes();
        if !world.violations.is_empty() {
            return world.violations;
        }
    }
    if settles && !world.settle() {
        world.violations.push(format!("the rollout does not end: {}", world.describe()));
    }
    world.violations
}

/// The plays that are tried: the same each time, as in the simulation; `TESTS_LONG=1` tries many others.
fn config() -> Config {
    let (cases, rng_seed) = match std::env::var_os("TESTS_LONG") {
        None => (300, RngSeed::Fixed(1)),
        Some(_) => (20_000, RngSeed::Random),
    };
    Config { cases, rng_seed, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn promises_hold_whatever_happens(told in plays(400)) {
        let wrong = play(&told, true);
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// A host that has failed and was not selected for a while is still unavailable when it is selected again, also if a later
/// version began meanwhile.
#[test]
fn failed_host_that_is_selected_again_still_counts() {
    use Event::{Arrive, Decide, End, NextVersion, Offline, Online, Remove, Select, Speak, Sync};
    let mut policy = RolloutPolicy::default();
    (policy.waves, policy.max_in_flight, policy.retries.attempts) = (None, Share::Count(1), 0);
    let max_unavailable = Share::Count(1);
    policy.budget = Some(Budget { group_by: "site".parse().unwrap(), max_unavailable });
    let begins =
        vec![Sync(1), Speak(1), Arrive(0), Decide, Arrive(0), End(1, ChangeOutcome::Failed), Arrive(0), Arrive(0)];
    let leaves = vec![Remove(1), NextVersion, Offline(1), Online(3), Select(1)];
    let wrong = play(&(policy, 4, [begins, leaves].concat()), true);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A host that was given up for lost, and is selected again while it is away, does not keep the rollout from ending.
#[test]
fn lost_host_that_is_selected_again_gets_an_outcome() {
    use Event::{Arrive, Decide, Offline, Remove, Select, Sleep, Speak, Sync};
    let mut policy = RolloutPolicy::default();
    (policy.waves, policy.lost_after_ms, policy.deadline_ms) = (None, 120_000, 900_000);
    let is_lost = [Sync(1), Speak(1), Arrive(0), Decide, Offline(1), Sleep(120), Decide];
    let returns = [Remove(1), Select(1)];
    let wrong = play(&(policy, 2, [&is_lost[..], &returns].concat()), true);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Whether a planted fault is found.
fn finds(fault: Fault) -> bool {
    let mut runner = TestRunner::new(Config { cases: 3_000, max_shrink_iters: 0, ..config() });
    plant(Some(fault));
    let found = runner.run(&plays(400), |told| match play(&told, false).is_empty() {
        true => Ok(()),
        false => Err(TestCaseError::fail("found")),
    });
    plant(None);
    found.is_err()
}

#[test]
fn planted_faults_are_found() {
    let faults = [
        Fault::HearStaleQuestion,
        Fault::ForgetEarlierVersion,
        Fault::NoFlight,
        Fault::GrantWhilePaused,
        Fault::CloseWaveEarly,
        Fault::BudgetByReports,
        Fault::IgnoreWindow,
        Fault::GrantTwice,
        Fault::FreeLostHost,
        Fault::EndWithoutOutcomes,
    ];
    // A fault is planted in a thread.
    let missed: Vec<Fault> = std::thread::scope(|scope| {
        let found = faults.map(|fault| (fault, scope.spawn(move || finds(fault))));
        found.into_iter().filter_map(|(fault, found)| (!found.join().unwrap()).then_some(fault)).collect()
    });
    assert_eq!(missed, []);
}
