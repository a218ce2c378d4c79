//! Agent, console and broker are killed at random, for as long as is asked, while commands and versions follow each other. In the end
//! every command that was taken has one outcome and was done as it says, and the last version runs, each having been started once at
//! most.
//!
//! `TESTS_SWEEP_SECONDS` chooses how long, `TESTS_SEED` who is killed and when. What there was of what is printed.

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    desired,
    stage::{Orders, Party, Stage, shell},
};
use crate::stores::Random;

const SEED: u64 = 47;
/// Between two commands.
const PACE: Duration = Duration::from_millis(30);
/// The most commands that wait for their outcome: as many as are done soon by a host without optimisation.
const OPEN_MAX: usize = 200;
/// The first version here: others were before.
const FIRST_VERSION: u32 = 1_000;

/// The commands that were ordered, by number.
#[derive(Default)]
struct Ordered {
    /// Those that the console has taken, with their ids.
    taken: BTreeMap<usize, String>,
    /// Those of which it is not known.
    unknown: Vec<usize>,
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
}

/// Orders commands until it is told to end.
fn order(orders: &Orders, line: impl Fn(usize) -> String, ends: &AtomicBool) -> Ordered {
    let (mut ordered, mut open) = (Ordered::default(), VecDeque::<String>::new());
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        thread::sleep(PACE);
        while open.front().is_some_and(|id| orders.is_done(id)) {
            open.pop_front();
        }
        if open.len() >= OPEN_MAX {
            continue;
        }
        match orders.order(&shell(&line(number)), 600_000) {
            Ok(id) => {
                open.push_back(id.clone());
                ordered.taken.insert(number, id);
            }
            Err(_) => ordered.unknown.push(number),
        }
        number += 1;
    }
    ordered
}

/// Kills until the time is over, and has versions follow each other. Returns the last version, and how often who was killed.
fn kill_and_apply(stage: &mut Stage, random: &mut Random, lasts: Duration) -> (u32, BTreeMap<String, usize>) {
    let (began, mut version, mut kills) = (Instant::now(), FIRST_VERSION, BTreeMap::new());
    while began.elapsed() < lasts {
        let victims: &[Party] = match random.below(8) {
            0..=2 => &[Party::Agent],
            3 | 4 => &[Party::Console],
            5 => &[Party::Broker],
            6 => &[Party::Console, Party::Agent],
            _ => &[Party::Broker, Party::Agent],
        };
        // A version that the console did not take is none.
        version += u32::from(random.below(2) == 0 && desired::try_apply(stage, version + 1).is_ok());
        pause(random, 1_000);
        for victim in victims {
            stage.kill(*victim);
            *kills.entry(format!("{victim:?}")).or_default() += 1;
        }
        pause(random, 300);
        victims.iter().for_each(|victim| stage.start_party(*victim));
        pause(random, 1_500);
    }
    (version, kills)
}

fn pause(random: &mut Random, most_ms: usize) {
    thread::sleep(Duration::from_millis(random.below(most_ms) as u64));
}

/// How often each command was done.
fn done(stage: &Stage) -> BTreeMap<usize, usize> {
    let mut done = BTreeMap::new();
    for line in fs::read_to_string(stage.home.path().join("sweep")).unwrap_or_default().lines() {
        *done.entry(line.parse().unwrap()).or_default() += 1;
    }
    done
}

/// Looks whether a command was done as its outcome says.
fn check(number: usize, outcome: &Value, done: usize) -> Result<&'static str, String> {
    match (outcome["status"].as_str(), done) {
        (Some("exited"), 1) if outcome["exit"]["code"] == 0 => Ok("exited"),
        // It is not known whether it was begun, and so it is not begun again.
        (Some("lost"), 0 | 1) => Ok("lost"),
        _ => Err(format!("command {number} was done {done} times: {outcome}")),
    }
}

#[test]
fn commands_and_versions_survive_kills_at_random() {
    let is_long = env::var_os("TESTS_LONG").is_some();
    let lasts = Duration::from_secs(number("TESTS_SWEEP_SECONDS").unwrap_or(if is_long { 600 } else { 20 }));
    let mut random = Random(number("TESTS_SEED").unwrap_or(SEED));
    let mut stage = Stage::start(super::Kind::Own);
    desired::add_program(&stage);
    let ends = Arc::new(AtomicBool::new(false));
    let (orders, sweep) = (stage.orders(), stage.home.path().join("sweep"));
    let orderer = thread::spawn({
        let ends = Arc::clone(&ends);
        move || order(&orders, |number| format!("echo {number} >> {}", sweep.display()), &ends)
    });
    let (version, kills) = kill_and_apply(&mut stage, &mut random, lasts);
    ends.store(true, Ordering::Relaxed);
    let ordered = orderer.join().unwrap();
    desired::apply(&stage, version + 1);
    desired::verified(&stage, version + 1);

    let outcomes: BTreeMap<usize, Value> =
        ordered.taken.iter().map(|(number, id)| (*number, stage.outcome(id))).collect();
    let done = done(&stage);
    let times = |number: &usize| done.get(number).copied().unwrap_or_default();
    let (mut ended, mut faults) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for (number, outcome) in &outcomes {
        match check(*number, outcome, times(number)) {
            Ok(how) => *ended.entry(how).or_default() += 1,
            Err(fault) => faults.push(fault),
        }
    }
    let twice = ordered.unknown.iter().filter(|number| times(number) > 1);
    faults.extend(twice.map(|number| format!("command {number}, whose answer was lost, was done more than once")));
    let starts = desired::starts(&stage);
    let mut once = starts.clone();
    once.dedup();
    if once != starts {
        faults.push(format!("a version was started more than once: {starts:?}"));
    }
    let numbers: Vec<u32> = starts.iter().map(|start| start.parse().unwrap()).collect();
    if !numbers.is_sorted() || numbers.last() != Some(&(version + 1)) {
        faults.push(format!("versions were started in another order, or the last one was not: {starts:?}"));
    }
    eprintln!(
        "in {} s: {} commands taken ({ended:?}), {} without an answer, {} versions, {} started; killed: {kills:?}",
        lasts.as_secs(),
        ordered.taken.len(),
        ordered.unknown.len(),
        version + 1 - FIRST_VERSION,
        starts.len(),
    );
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(ended.get("exited") > ended.get("lost") && !kills.is_empty(), "{ended:?}, {kills:?}");
}
