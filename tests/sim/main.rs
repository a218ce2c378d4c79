//! The fleet in virtual time: the decisions of agent and console, and a model of a broker, under a scheduler that follows from
//! a seed and lets go wrong whatever can.
//!
//! What is the product's own: the agent's session ([`muster_session`]: presence, heartbeats, outbox, unit topics, what becomes of a
//! command), all of the rules that it uses; the console's ingest (`store_batch`, `decide`, effects, acknowledgements),
//! schedule and roll call; in every tenth seed the signatures; in every fiftieth the SQL of journal, outbox and ledger,
//! which have to answer what the tables here do.
//!
//! What is not: sockets and TLS, rumqttc, the loops that wait for events (here `agent.rs`, `console.rs` take their place), programs and
//! shims (a table of what runs, which outlives the agent), the queue of programs, output, measurements, units' own life (they
//! come to what is desired of them after a while), and the console's half of documents ([`documents`]).
//!
//! Modules, in reading order: [`watch`] (the promises, as invariants), [`world`] (virtual time, and in its `network` what lies
//! between the parties), [`wire`], [`broker`], [`machine`] and [`disk`] (what outlives an agent), [`agent`] (in its `effects` what
//! the session asks for), [`ledger`] and [`console`], [`documents`], [`rollouts`], [`chaos`] (what goes wrong), [`verdict`] (what has to be so once all is quiet),
//! [`shadow`] and [`console_shadow`] (the SQL beside the tables).
//!
//! A seed that fails is printed with the last steps of its trace; `MUSTER_SIM_SEED=N cargo test -p muster --test sim` does it
//! again, step by step the same, and prints the whole trace. Put it into `tests/sim/regressions`, which is tried first. `TESTS_LONG=1` tries a hundred thousand
//! in a release build, `MUSTER_SIM_SEEDS=FROM..TO` those of a range; both say on standard error how far they are.
//!
//! **Invariant: a seed is all that a run depends on**: no clock, no randomness, no order of a hash.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "what a test prints is shown if it fails")]

mod agent;
mod broker;
mod chaos;
mod console;
mod console_shadow;
mod disk;
mod documents;
mod ledger;
mod machine;
mod random;
mod rollouts;
mod shadow;
mod verdict;
mod watch;
mod wire;
mod world;

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use muster_base::{chance, clock};
use muster_fault::Fault;
use muster_rules::time::BUILD_MS;
use muster_topics::{Millis, name::HostId};

use self::{
    chaos::{Climate, Weather},
    disk::Disk,
    machine::Machine,
    random::{between, permille},
    watch::{Broken, Promise},
    wire::Seal,
    world::{Event, World},
};

/// Seeds that are tried always; and with `TESTS_LONG=1`, in a build that is optimised: that takes minutes, and any other hours.
const SEEDS: u64 = 500;
const SEEDS_LONG: u64 = 100_000;
/// One of so many has to find each planted fault.
const SEEDS_PLANTED: u64 = 3_000;
/// Once all is well, everything comes right within this: a digest each ten minutes and a quarter finds what differs.
const CONVERGED_MS: Millis = 15 * 60_000;
/// So much of a trace is shown.
const TRACE: usize = 150;
/// So many seeds that fail are enough for a day.
const FAILING_MAX: usize = 20;
/// How often it is said how far the seeds have come: so that a run of the usual ones says it once or twice.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Seeds that once failed.
const REGRESSIONS: &str = include_str!("regressions");

/// One run; with what was broken, and its trace if that is wanted.
fn run(seed: u64, trace: bool) -> (Option<Broken>, Vec<String>) {
    chance::pretended::set(Some(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6d75_7374_6572));
    let mut world = build(seed);
    world.watch.trace = trace.then(Vec::new);
    live(&mut world);
    clock::pretended::set(None);
    chance::pretended::set(None);
    (world.watch.broken.take(), world.watch.trace.take().unwrap_or_default())
}

fn build(seed: u64) -> World {
    let seal = if seed % 10 == 3 { Seal::real() } else { Seal::default() };
    let mut world = World::new(BUILD_MS + 300 * 86_400_000, Weather::any(), seal);
    let shadowed = seed % 50 == 7;
    for index in 0..usize::try_from(between(1, 3)).unwrap() {
        let host = HostId(random::uuid());
        let disk = if shadowed { Disk::shadowed() } else { Disk::default() };
        world.hosts.push(host);
        world.machines.push(Machine::new(index, host, disk));
        world.console.ledger.members.insert(host);
        world.after(between(0, 2_000), Event::Starts(index));
    }
    if shadowed {
        world.console.ledger.shadow = Some(console_shadow::ConsoleShadow::new(world.hosts.iter().copied()));
    }
    world.after(between(0, 2_000), Event::ConsoleStarts);
    world
}

fn live(world: &mut World) {
    let climate = Climate::any();
    let storm_ms = between(60_000, 600_000);
    world.brew(climate, storm_ms);
    let storm_ends_ms = world.now_ms + storm_ms;
    world.run(storm_ends_ms);
    if let Some((machine, back_ms)) = world.back {
        world.run(back_ms.max(world.now_ms));
        world.machines.iter_mut().for_each(|machine| machine.is_gone = false);
        world.start_agent(machine);
    }
    world.clear_up();
    let quiet_ms = world.now_ms;
    world.run(quiet_ms + 120_000);
    // What is ordered now is done, by a host that is taken for away as well: once it is seen to be there.
    let target = world.target();
    world.submit(target, 3_600_000, false);
    world.run(quiet_ms + CONVERGED_MS);
    if world.watch.broken.is_none() {
        world.judge(quiet_ms);
    }
    if world.watch.broken.is_none() && permille(250) {
        (world.watch.beats, world.watch.refreshes) = (0, 0);
        let watched_ms = world.now_ms + 800_000;
        world.run(watched_ms);
        let (beats, refreshes) = (world.watch.beats, world.watch.refreshes);
        world.watch.check(Promise::Silence, (beats, refreshes) == (0, 0), || {
            format!("{beats} heartbeats and {refreshes} refreshes though nothing happened")
        });
    }
}

/// Tells what is broken, with so many of the last steps before.
fn fail(seed: u64, steps: usize) -> ! {
    let (broken, trace) = run(seed, true);
    for line in &trace[trace.len().saturating_sub(steps)..] {
        println!("{line}");
    }
    let Some(Broken { promise, what }) = broken else { panic!("seed {seed} fails, and does not when it is traced") };
    panic!("seed {seed} breaks the promise {promise:?}: {what}\nhint: MUSTER_SIM_SEED={seed} does it again");
}

/// How far the seeds have come, said now and then.
struct Progress {
    began: Instant,
    said: Mutex<Instant>,
    done: AtomicUsize,
    all: usize,
}

impl Progress {
    fn new(all: usize) -> Self {
        let now = Instant::now();
        Self { began: now, said: Mutex::new(now), done: AtomicUsize::new(0), all }
    }

    /// One more is done.
    fn count(&self, failed: usize) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let Ok(mut said) = self.said.try_lock() else { return };
        if said.elapsed() < TELL_EVERY && done < self.all {
            return;
        }
        *said = Instant::now();
        let took_s = self.began.elapsed().as_secs_f64();
        let rate = done as f64 / took_s.max(0.001);
        // Past the test's own capture: whoever waits for hours sees that it goes on.
        let _ = writeln!(
            std::io::stderr(),
            "simulation: {done} of {} seeds in {took_s:.0} s, {rate:.1} a second, {failed} failed",
            self.all
        );
    }
}

/// Tries seeds on all processors; gives those that fail, the least first. Once so many have been found it stops.
fn failing(seeds: Vec<u64>) -> Vec<u64> {
    let progress = Progress::new(seeds.len());
    let seeds = Mutex::new(seeds.into_iter());
    let failing = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().unwrap().next() else { break };
                    let broken = run(seed, false).0;
                    let mut failing = failing.lock().unwrap();
                    if let Some(Broken { promise, what }) = broken {
                        let _ = writeln!(std::io::stderr(), "simulation: seed {seed} breaks {promise:?}: {what}");
                        failing.push(seed);
                    }
                    progress.count(failing.len());
                    if failing.len() >= FAILING_MAX {
                        break;
                    }
                }
            });
        }
    });
    let mut failing = failing.into_inner().unwrap();
    failing.sort_unstable();
    failing
}

/// `FROM..TO`.
fn range_of(text: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

fn regressions() -> impl Iterator<Item = u64> {
    let seeds = REGRESSIONS.lines().filter_map(|line| line.split('#').next());
    seeds.map(str::trim).filter(|text| !text.is_empty()).map(|text| text.parse().unwrap())
}

#[test]
fn promises_hold_whatever_goes_wrong() {
    if let Ok(seed) = std::env::var("MUSTER_SIM_SEED") {
        let seed = seed.parse().unwrap();
        if run(seed, false).0.is_some() {
            fail(seed, usize::MAX);
        }
        return;
    }
    let is_long = std::env::var_os("TESTS_LONG").is_some() && !cfg!(debug_assertions);
    let count = if is_long { SEEDS_LONG } else { SEEDS };
    let seeds = match std::env::var("MUSTER_SIM_SEEDS") {
        Ok(range) => range_of(&range).unwrap().collect(),
        Err(_) => regressions().chain(0..count).collect(),
    };
    let failing = failing(seeds);
    if let Some(seed) = failing.first() {
        println!("these seeds fail: {failing:?}");
        fail(*seed, TRACE);
    }
}

#[test]
fn same_seed_gives_same_run() {
    for seed in [1, 2, 3, 7] {
        assert_eq!(run(seed, true).1, run(seed, true).1);
    }
}

/// A planted fault, and the promises of which one has to be found broken.
type Planted = (Fault, &'static [Promise]);

/// Every fault, by the promise that it breaks.
const FAULTS: &[(&str, &[Planted])] = &[
    (
        "a command takes effect at most once, and has exactly one terminal outcome",
        &[
            (Fault::EnterTwice, &[Promise::AtMostOnce]),
            (Fault::PruneEarly, &[Promise::AtMostOnce]),
            (Fault::RunLostAgain, &[Promise::AtMostOnce]),
            (Fault::ObeyExpired, &[Promise::NotExpired]),
            (Fault::TrustClock, &[Promise::NotExpired]),
            (Fault::ForgetSignedTime, &[Promise::NotExpired]),
            (Fault::ObeyBeforeStore, &[Promise::NotBeforeStore]),
            (Fault::GiveUpUnfinished, &[Promise::LostIsUnknown]),
            (Fault::RefuseInSilence, &[Promise::Answered]),
        ],
    ),
    (
        "no outcome is lost",
        &[
            (Fault::AckUnstored, &[Promise::NoOutcomeLost]),
            (Fault::SayOnce, &[Promise::Answered]),
            (Fault::ForgetOutbox, &[Promise::Answered]),
        ],
    ),
    (
        "a delta is only applied to its base",
        &[(Fault::ApplyAnyway, &[Promise::DeltaToBase]), (Fault::WrongBase, &[Promise::DeltaToBase])],
    ),
    (
        "an old last will cannot kill a new session",
        &[(Fault::BelieveOldWill, &[Promise::OldWill]), (Fault::LeaveOldWill, &[Promise::OldWill])],
    ),
    (
        "nor a twin a host",
        &[
            (Fault::FormerAnywhere, &[Promise::Twin]),
            (Fault::ClaimAtOnce, &[Promise::Twin]),
            (Fault::NeverObject, &[Promise::Twin]),
            (Fault::YieldToTwin, &[Promise::Twin]),
        ],
    ),
    (
        "anti-entropy: the console answers a mismatch, and only that",
        &[
            (Fault::NoDigest, &[Promise::Shown]),
            (Fault::AnyDigest, &[Promise::Shown]),
            (Fault::DoubtDigest, &[Promise::Silence]),
        ],
    ),
    (
        "commands wait for hosts that are away, and not beyond their expiry",
        &[
            (Fault::SendExpired, &[Promise::SentInTime]),
            (Fault::SendOnce, &[Promise::Answered]),
            (Fault::ForgetReturned, &[Promise::Answered]),
        ],
    ),
    (
        "heartbeats only of what has changed, not too often, and none is missed",
        &[
            (Fault::BeatAnyway, &[Promise::Silence]),
            (Fault::NoThrottle, &[Promise::Throttle]),
            (Fault::NoTrailing, &[Promise::Shown]),
            (Fault::BeatOnce, &[Promise::Shown]),
            (Fault::KeepUnits, &[Promise::Shown]),
        ],
    ),
    (
        "a host has the latest document that was made for it, and removes what that names",
        &[
            (Fault::TakeOlderDocument, &[Promise::LatestDocument]),
            (Fault::ForgetDocument, &[Promise::Desired]),
            (Fault::RemoveByAbsence, &[Promise::NamedRemoval]),
        ],
    ),
    (
        "no more hosts change, or are unavailable, than a rollout's policy says, and it ends",
        &[
            (Fault::NoFlight, &[Promise::InFlight]),
            (Fault::TakeLateGrant, &[Promise::OnePermit, Promise::InFlight, Promise::Budget]),
            (Fault::BudgetByReports, &[Promise::Budget]),
            (Fault::FreeLostHost, &[Promise::Budget]),
            (Fault::ForgetEarlierVersion, &[Promise::InFlight, Promise::Budget]),
            (Fault::GrantTwice, &[Promise::OnePermit]),
            (Fault::CloseWaveEarly, &[Promise::WaveOfSuccess]),
            (Fault::EndWithoutOutcomes, &[Promise::RolloutEnds, Promise::WaveOfSuccess]),
        ],
    ),
    (
        "a console that starts asks for everything, once, and learns who is gone",
        &[
            (Fault::RefreshAgain, &[Promise::RefreshOnce]),
            (Fault::RefreshByLatest, &[Promise::Shown]),
            (Fault::NoRollCall, &[Promise::Shown]),
        ],
    ),
];

#[test]
fn every_planted_fault_is_found() {
    for (promise, faults) in FAULTS {
        assert!(faults.len() >= 2, "{promise}: broken on purpose in one way only");
    }
    let faults = Mutex::new(FAULTS.iter().flat_map(|(_, faults)| *faults));
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((fault, promises)) = faults.lock().unwrap().next() else { break };
                    muster_fault::plant(Some(*fault));
                    let broken = (0..SEEDS_PLANTED).find_map(|seed| {
                        let broken = run(seed, false).0?;
                        promises.contains(&broken.promise).then_some((seed, broken.promise))
                    });
                    muster_fault::plant(None);
                    println!("{fault:?}: {broken:?}");
                    found.lock().unwrap().insert(*fault, broken);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let missed: Vec<_> = found.iter().filter(|(_, broken)| broken.is_none()).map(|(fault, _)| fault).collect();
    assert!(missed.is_empty(), "no seed below {SEEDS_PLANTED} finds {missed:?}");
}
