//! Every wait of a unit × a clock that is set, by an hour, a month and a year, ahead and back; while the agent runs, and across a
//! start of it: nothing ends, is given up or is put off because of that.

use super::*;

const MINUTE: Millis = 60 * SECOND;
const DAY: Millis = 24 * 60 * MINUTE;

const SET_BY: [Millis; 6] = [-400 * DAY, -31 * DAY, -60 * MINUTE, 60 * MINUTE, 31 * DAY, 400 * DAY];

/// By when each unit has done what it waits for: the longest wait of all.
const WATCHED: Millis = 40 * MINUTE;

/// When the tests begin: a clock that is set back shows a time that has been.
const START: Millis = 1_000 * DAY;

/// A unit that waits for something, and what it waits for.
type Waiting = (&'static str, fn() -> Bench);

fn at_start(unit: Desired) -> Bench {
    let mut bench = Bench { unit: PlannedUnit::new(None, START), now_ms: START, pid: 0, trail: Vec::new() };
    bench.see(wants(unit));
    bench
}

fn idle(change: impl FnOnce(&mut YunoSpec)) -> Bench {
    let mut bench = at_start(desired(1, spec("a", change), Run::Running));
    bench.see(UnitEvent::Found(FoundInstance::Nothing));
    bench
}

fn running(change: impl FnOnce(&mut YunoSpec)) -> Bench {
    let mut bench = idle(change);
    bench.install();
    bench.start();
    bench.pass(SECOND);
    bench
}

/// A second revision, which can be rolled back to the verified first.
fn on_trial(change: fn(&mut YunoSpec)) -> Bench {
    let may_go_back =
        |spec: &mut YunoSpec| (spec.common.rollback, spec.common.verify_after_ms) = (Rollback::Auto, Some(10_000));
    let mut bench = running(may_go_back);
    bench.pass(11 * SECOND);
    assert!(bench.unit.verified().is_some());
    let next = |spec: &mut YunoSpec| {
        may_go_back(spec);
        spec.program.healthy_within_ms = Some(20_000);
        change(spec);
    };
    bench.see(wants(desired(2, spec("b", next), Run::Running)));
    bench.install();
    bench
}

const WAITING: [Waiting; 9] = [
    ("a look-up that failed", || {
        let mut bench = at_start(desired(1, spec("a", |_| ()), Run::Running));
        bench.see(UnitEvent::NotLookedUp { error: "no".into() });
        bench
    }),
    ("an installation that failed", || {
        let mut bench = idle(|_| ());
        for _ in 0..12 {
            bench.fail_install(true);
            bench.pass(5 * MINUTE);
        }
        bench.fail_install(true);
        bench
    }),
    ("a program that ends keeps changing it", || {
        let mut bench = running(|_| ());
        for _ in 0..8 {
            bench.end(1);
            bench.pass(16 * MINUTE);
            bench.start();
        }
        bench.end(1);
        bench
    }),
    ("a start", || {
        let mut bench = idle(|spec| spec.program.started_after_ms = 60_000);
        bench.install();
        bench.start();
        bench
    }),
    ("a stop that is not heeded", || {
        let mut bench = running(|_| ());
        bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
        bench
    }),
    ("a freeze that is not heeded", || {
        let mut bench = running(|_| ());
        bench.see(wants(Desired { frozen: true, ..desired(2, spec("a", |_| ()), Run::Running) }));
        bench
    }),
    ("a revision that comes up", || {
        let mut bench = on_trial(|spec| spec.channel = Channel::Notify);
        bench.end(0);
        bench.start();
        bench
    }),
    ("a revision that is verified", || {
        let mut bench = on_trial(|_| ());
        bench.end(0);
        bench.start();
        bench.pass(SECOND);
        bench
    }),
    ("a revision beside", || {
        let mut bench = on_trial(|spec| {
            spec.replace = muster_topics::unit::Replace::StartFirst;
            spec.channel = Channel::Notify;
        });
        let second = bench.unit.slot().other();
        let seen = bench.unit.seen_in(second, UnitEvent::Started);
        bench.see(seen);
        let process = Some(ProcessId { pid: 90, start_ticks: 9, started_ms: bench.now_ms });
        let seen = bench.unit.seen_in(second, UnitEvent::Told(ShimReport { process, ..ShimReport::default() }));
        bench.see(seen);
        bench
    }),
];

/// What the unit does, each with how many seconds have passed.
fn watch(bench: &mut Bench) -> Vec<(Millis, String)> {
    let mut seen = Vec::new();
    for second in 0..WATCHED / SECOND {
        bench.trail.clear();
        bench.pass(SECOND);
        let phase = format!("{:?}", bench.unit.observed.phase()).to_uppercase();
        let steps = bench.trail.iter().filter(|step| **step != phase).cloned();
        seen.extend(steps.map(|step| (second, step)));
    }
    // What became of it for good.
    let observed = &bench.unit.observed;
    seen.push((0, format!("{:?} {:?} {:?}", observed.phase(), observed.rolled_back().is_some(), bench.unit.hold)));
    seen
}

#[test]
fn clock_that_is_set_changes_nothing_of_what_a_unit_waits_for() {
    for (what, waiting) in WAITING {
        let usual = watch(&mut waiting());
        for by_ms in SET_BY {
            let mut bench = waiting();
            bench.now_ms += by_ms;
            bench.see(UnitEvent::ClockSet(by_ms));
            let seen = watch(&mut bench);
            // A process that began before its clock was set back counts as up at once, ahead as well.
            if what == "a start" {
                assert_eq!(seen.last(), usual.last(), "{what}, set by {by_ms}");
            } else {
                assert_eq!(seen, usual, "{what}, set by {by_ms}");
            }
        }
    }
}

#[test]
fn clock_that_is_set_while_the_agent_is_away_gives_nothing_up() {
    for (what, waiting) in WAITING {
        for by_ms in SET_BY {
            let before = waiting();
            let wanted = before.unit.asked().cloned().unwrap();
            let now_ms = before.now_ms + by_ms;
            let unit = PlannedUnit::new(Some(before.unit.kept()), now_ms);
            let mut after = Bench { unit, now_ms, pid: before.pid, trail: Vec::new() };
            after.see(UnitEvent::Desired(Some(Box::new(wanted)), before.unit.hold.clone()));
            let is_back = |bench: &Bench| bench.unit.observed.rolled_back().is_some() || bench.unit.hold.is_some();
            assert!(!is_back(&after), "{what}, set by {by_ms}");
            match before.unit.process() {
                Some(process) => {
                    let told = ShimReport { process: Some(process), ..ShimReport::default() };
                    after.see(UnitEvent::Found(FoundInstance::Alive(
                        before.unit.observed.revision.clone().unwrap(),
                        told,
                    )));
                    after.pass(SECOND);
                    assert!(!is_back(&after), "{what}, set by {by_ms}");
                }
                None => {
                    after.see(UnitEvent::Found(FoundInstance::Nothing));
                    let at_once = std::mem::take(&mut after.trail);
                    let later = watch(&mut after).into_iter().map(|(_, step)| step);
                    let is_try = |step: &String| step == "Install" || step.starts_with("start ");
                    let steps: Vec<String> = at_once.into_iter().chain(later).collect();
                    assert!(steps.iter().any(is_try), "{what}, set by {by_ms}: {steps:?}");
                }
            }
        }
    }
}
