//! Properties of the planner, tested against a small model of a host: any sequence of verbs, ends,
//! failures, ticks and restarts of the agent keeps the invariants, and converges once the faults stop.

mod check;
mod course;
mod host;

use std::collections::BTreeMap;

use muster_topics::{
    channel::Ability,
    command::Verb,
    endpoint::{Endpoint, Protocol},
    name::UnitName,
    probe::Which,
    unit::{Exit, Run, Spec},
};
use proptest::prelude::*;

use super::*;
use crate::probe::ProbeVerdict;

/// What may happen at any time.
#[derive(Clone, Debug)]
enum Event {
    Apply {
        artifact: u8,
        grace_ms: u64,
        /// Which probes it has, as [`probes`] takes it.
        probes: u8,
        run: Option<Run>,
        /// Another revision is started beside what runs.
        first: bool,
    },
    Run,
    Stop,
    Restart,
    Hold,
    Unhold,
    Retire,
    Freeze,
    Thaw,
    Rm,
    /// Others keep it from being started, or not any more.
    Gate(StartGate),
    InstallEnds(Fate),
    LaunchEnds(Fate),
    /// The process ends, and nothing but the agent starts it again.
    Exit(i32),
    /// The process ends, and its shim starts it again.
    Again(i32),
    Wait(Millis),
    /// It is wired to another port, and may lack something.
    Wire(u16, bool),
    /// The agent is killed, and started again.
    AgentRestart,
    Play {
        run: bool,
    },
    Pause,
    /// One that speaks connects (again), and so is up.
    Connect,
    Disconnect,
    /// It answers to whether it plays; with `Unknown` it does as it was asked, and its answer is lost.
    PlayEnds(Fate),
    /// One of the probes that are tried comes to something.
    Probed(u8, bool),
    /// One that was tried for a process that has gone.
    ProbedBefore(u8),
    /// What happens to an instance happens to the one beside.
    Second(Box<Event>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Good,
    Heals,
    Fatal,
    Unknown,
}

/// One host with one unit: what really runs, and what is under way.
struct World {
    now_ms: Millis,
    generation: u64,
    row: Option<(Desired, Option<Hold>)>,
    unit: PlannedUnit,
    /// What there is in each slot.
    sides: BTreeMap<Slot, Side>,
    /// What it is wired to, and whether it lacks something.
    wired: (u16, bool),
    pids: i32,
    adopting: bool,
    installing: Option<Digest>,
    reloading: Option<Digest>,
    removing: bool,
    /// The question that is under way, and to whom.
    asked: Option<(Slot, u32, bool)>,
    /// The unit was removed, and the shell knows it no more.
    gone: bool,
    /// Whether what runs as a revision speaks.
    speaking: BTreeMap<Digest, bool>,
    /// A revision that does not work, and how.
    bad: Option<(Digest, Bad)>,
}

/// What really runs in one slot.
#[derive(Default)]
struct Side {
    process: Option<(Digest, ProcessId)>,
    /// What its process was started with.
    with: u16,
    restarts: u32,
    last: Option<InstanceExit>,
    launching: Option<Digest>,
    stopping: bool,
    /// The agent hears what becomes of it.
    attended: bool,
    /// What runs is suspended, and what it was asked last.
    frozen: bool,
    freezing: Option<bool>,
    /// What the process does, whatever the agent knows of it.
    plays: bool,
    /// Which connection of the process there is, and how many there were.
    connection: Option<PlayConnection>,
    connections: u64,
    /// What the next welcome says.
    wish: bool,
    ready: bool,
    /// What the process has passed of start and ready probe, and whether the agent has ever seen it up.
    passed: [bool; 2],
    was_up: bool,
}

/// What is wrong with a revision.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    /// It cannot be installed.
    Install,
    /// It cannot be started.
    Start,
    /// It ends at once, for good.
    Ends,
    /// It ends at once, and its shim starts it again as often as it may.
    EndsAgain,
    /// It never says that it is up.
    Silent,
    /// Its probes never find that it is up.
    NotReady,
    /// It comes up, and hangs.
    Hangs,
}

fn name() -> UnitName {
    "default/hello".parse().unwrap()
}

/// Some of the three probes, by the bits of a number.
fn probes(which: u8) -> String {
    let names = ["start", "ready", "live"].iter().enumerate().filter(|(bit, _)| which & (1 << bit) != 0);
    let probes: Vec<String> = names.map(|(_, name)| format!(r#""{name}":{{"exec":["a"]}}"#)).collect();
    format!("{{{}}}", probes.join(","))
}

fn apply(artifact: u8, grace_ms: u64, which: u8, run: Option<Run>, first: bool) -> Verb {
    let probes = probes(which);
    let sha256 = Digest::of(&[artifact]);
    // Every third artifact is a task rather than a service.
    let restart = if artifact % 3 == 2 { "on_failure" } else { "always" };
    let channel = if speaks(&sha256) { "lines" } else { "none" };
    let replace = if first { "start_first" } else { "stop_first" };
    let rollback = if artifact == 3 { "never" } else { "auto" };
    let spec = format!(
        r#"{{"kind":"yuno","artifact":{{"sha256":"{sha256}","size_bytes":1,"role":"a","version":"1"}},"grace_ms":{grace_ms},"restart":"{restart}","reload":"signal","channel":"{channel}","rollback":"{rollback}","replace":"{replace}","probes":{probes},"start_timeout_ms":60000}}"#
    );
    Verb::UnitApply { unit: name(), spec: Box::new(serde_json::from_str(&spec).unwrap()), run }
}

/// Whether an artifact is of a program that speaks on a channel; the one that is in the middle.
fn speaks(artifact: &Digest) -> bool {
    *artifact == Digest::of(&[1])
}

/// Wired to nothing but a port.
fn wiring(port: u16) -> EndpointWiring {
    let (name, address) = ("http".parse().unwrap(), "127.0.0.1".parse().unwrap());
    EndpointWiring {
        endpoints: vec![Endpoint { name, address, port, protocol: Protocol::Tcp }],
        connectors: Vec::new(),
    }
}

fn event() -> impl Strategy<Value = Event> {
    let run = prop_oneof![Just(None), Just(Some(Run::Running)), Just(Some(Run::Playing)), Just(Some(Run::Stopped))];
    let fate =
        || prop_oneof![6 => Just(Fate::Good), 2 => Just(Fate::Heals), 1 => Just(Fate::Fatal), 1 => Just(Fate::Unknown)];
    prop_oneof![
        3 => (0u8..4, 1u64..3, 0u8..8, run, any::<bool>()).prop_map(|(artifact, grace_ms, probes, run, first)| {
            Event::Apply { artifact, grace_ms, probes, run, first }
        }),
        2 => Just(Event::Run),
        1 => Just(Event::Stop),
        1 => Just(Event::Restart),
        1 => prop_oneof![Just(Event::Hold), Just(Event::Unhold)],
        1 => prop_oneof![Just(Event::Retire), Just(Event::Unhold)],
        1 => prop_oneof![Just(Event::Freeze), Just(Event::Thaw)],
        1 => Just(Event::Rm),
        1 => prop_oneof![
            Just(StartGate::Open),
            Just(StartGate::Open),
            Just(StartGate::Turn),
            Just(StartGate::Wait("w".to_owned())),
            Just(StartGate::Blocked("b".to_owned())),
        ]
        .prop_map(Event::Gate),
        4 => fate().prop_map(Event::InstallEnds),
        4 => fate().prop_map(Event::LaunchEnds),
        2 => (0..3).prop_map(Event::Exit),
        2 => (0..3).prop_map(Event::Again),
        4 => prop_oneof![0i64..2_000, 0i64..1_000_000].prop_map(Event::Wait),
        2 => (1u16..3, prop::bool::ANY).prop_map(|(port, lacks)| Event::Wire(port, lacks)),
        1 => Just(Event::AgentRestart),
        2 => any::<bool>().prop_map(|run| Event::Play { run }),
        1 => Just(Event::Pause),
        4 => Just(Event::Connect),
        1 => Just(Event::Disconnect),
        4 => fate().prop_map(Event::PlayEnds),
        6 => (0u8..2, prop::bool::weighted(0.7)).prop_map(|(place, good)| Event::Probed(place, good)),
        1 => (0u8..3).prop_map(Event::ProbedBefore),
        8 => prop_oneof![
            4 => fate().prop_map(Event::LaunchEnds),
            2 => (0..3).prop_map(Event::Exit),
            1 => (0..3).prop_map(Event::Again),
            3 => Just(Event::Connect),
            1 => Just(Event::Disconnect),
        ]
        .prop_map(|event| Event::Second(Box::new(event))),
    ]
}

fn bad() -> impl Strategy<Value = Bad> {
    prop_oneof![
        Just(Bad::Install),
        Just(Bad::Start),
        Just(Bad::Ends),
        Just(Bad::EndsAgain),
        Just(Bad::Silent),
        Just(Bad::NotReady),
        Just(Bad::Hangs)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_does_not_work_goes_back_to_what_does(
        bad in bad(),
        first in any::<bool>(),
        events in prop::collection::vec(event(), 0..20),
        meanwhile in prop::collection::vec(prop_oneof![Just(Event::AgentRestart), Just(Event::Wait(900))], 0..10),
    ) {
        let mut world = World::new();
        world.desire();
        for event in events {
            world.happen(event);
        }
        world.settle();
        // One that speaks can be silent; and to run as something that was never tried is no new try of another.
        let (good, other) = (apply(0, 7, 7, Some(Run::Running), first), apply(1, 7, 7, Some(Run::Running), first));
        world.verb(&Verb::UnitUnhold { unit: name() });
        world.verb(&Verb::UnitThaw { unit: name() });
        world.verb(&Verb::UnitPause { unit: name() });
        world.verb(&good);
        world.settle();
        let process = |world: &World| world.own().process.clone();
        let running = |world: &World| process(world).map(|(revision, _)| revision);
        let (verified, before) = (running(&world), process(&world));
        prop_assert_eq!(&world.unit.verified().map(|verified| verified.revision.clone()), &verified);
        let Verb::UnitApply { spec, .. } = &other else { unreachable!() };
        let Spec::Yuno(mut yuno) = (**spec).clone() else { panic!("a yuno") };
        let Spec::Yuno(now) = &*world.row.as_ref().unwrap().0.spec else { panic!("a yuno") };
        yuno.common.restart_epoch = now.common.restart_epoch;
        world.bad = Some((Spec::Yuno(yuno).revision().unwrap(), bad));
        world.verb(&other);
        for event in meanwhile {
            world.behave();
            world.happen(event);
        }
        world.settle();
        world.check_converged();
        prop_assert_eq!(running(&world), verified);
        // Only what has come up has taken over.
        if first && bad != Bad::Hangs {
            prop_assert_eq!(process(&world), before);
        }
        prop_assert!(world.unit.observed.rolled_back().is_some());
        prop_assert_eq!(world.unit.observed.phase(), Phase::Running);
        // What works after all is what it is then.
        world.bad = None;
        world.verb(&Verb::UnitRun { unit: name() });
        world.settle();
        world.check_converged();
        prop_assert_eq!(running(&world), world.row.as_ref().map(|(desired, _)| desired.revision.clone()), "{:?}", world.unit);
        prop_assert_eq!(world.unit.observed.rolled_back(), None);
    }

    #[test]
    fn whatever_happens_there_are_two_revisions_at_most_and_it_converges_to_one(events in prop::collection::vec(event(), 0..60)) {
        let mut world = World::new();
        world.desire();
        for event in events {
            world.happen(event);
        }
        world.settle();
        world.check_converged();
    }

    #[test]
    fn to_run_heals_whatever_has_failed(events in prop::collection::vec(event(), 0..40)) {
        let mut world = World::new();
        world.verb(&apply(0, 1, 7, None, true));
        for event in events {
            world.happen(event);
        }
        world.settle();
        world.verb(&Verb::UnitUnhold { unit: name() });
        world.verb(&apply(0, 1, 7, Some(Run::Running), true));
        world.settle();
        world.check_converged();
        prop_assert_eq!(world.unit.observed.phase(), Phase::Running);
        prop_assert_eq!(&world.unit.hold, &None);
    }
}
