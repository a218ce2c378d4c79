//! Cases of holds and frozen units.

use super::*;

fn held(desired: Desired, reason: HoldReason) -> UnitEvent {
    UnitEvent::Desired(Some(Box::new(desired)), Some(Hold::new(reason, 0)))
}

fn by_operator(desired: Desired) -> UnitEvent {
    held(desired, HoldReason::Operator)
}

fn a(generation: u64, run: Run) -> Desired {
    desired(generation, spec("a", |_| ()), run)
}

#[test]
fn held_stopped_unit_is_not_started() {
    let mut bench = Bench::new(a(1, Run::Stopped));
    bench.install();
    bench.trail.clear();
    bench.see(by_operator(a(2, Run::Stopped)));
    bench.see(by_operator(a(3, Run::Running)));
    bench.check("STOPPED");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (3, None));
    bench.see(wants(a(4, Run::Running)));
    bench.check("start 0, STARTING");
}

#[test]
fn held_running_unit_is_not_replaced() {
    let mut bench = Bench::running();
    bench.see(by_operator(a(2, Run::Running)));
    bench.see(by_operator(desired(3, spec("b", |_| ()), Run::Running)));
    bench.check("RUNNING");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (3, None));
    // Once it has ended it stays down, and says why.
    bench.end(3);
    bench.check("ABSENT");
    assert_eq!(bench.unit.observed.exit(), Some(Exit::Code(3)));
    bench.pass(1_000 * SECOND);
    bench.check("ABSENT");
    bench.see(wants(desired(4, spec("b", |_| ()), Run::Running)));
    bench.check("Install, INSTALLING");
}

#[test]
fn unit_ended_while_held_is_not_restarted() {
    let mut bench = Bench::running();
    bench.see(by_operator(a(2, Run::Running)));
    bench.end(3);
    bench.pass(SECOND);
    bench.check("RUNNING, STOPPED");
    let observed = &bench.unit.observed;
    assert_eq!(
        (observed.retry_ms(), observed.error.as_ref().map(|error| error.cause.as_str())),
        (None, Some("ended unexpectedly: exit code 3"))
    );
    bench.see(wants(a(3, Run::Running)));
    bench.check("start 0, STARTING");
    assert_eq!((bench.unit.observed.attempts, &bench.unit.observed.error), (0, &None));
}

#[test]
fn held_unit_can_be_stopped() {
    let mut bench = Bench::running();
    bench.see(by_operator(a(2, Run::Running)));
    bench.see(by_operator(a(3, Run::Stopped)));
    bench.check("RUNNING, stop Term 30000, STOPPING");
    assert_eq!(bench.reached(), 2);
    bench.end(0);
    bench.check("STOPPED");
    assert_eq!((bench.reached(), &bench.unit.observed.error), (3, &None));
}

#[test]
fn operators_hold_survives_restart() {
    for (phase, run, found, trail) in [
        (Phase::Stopped, Run::Running, FoundInstance::Nothing, "STOPPED"),
        (Phase::Failed, Run::Running, FoundInstance::Nothing, "FAILED"),
    ] {
        let mut bench = Bench::new(a(1, Run::Stopped));
        bench.install();
        bench.see(by_operator(a(2, run)));
        bench.unit.observed.state = phase.into();
        let hold = Hold::new(HoldReason::Operator, 0);
        bench.unit.hold = Some(hold.clone());
        let kept = bench.unit.kept();
        let mut after = Bench { unit: PlannedUnit::new(Some(kept), 0), now_ms: 0, pid: 0, trail: Vec::new() };
        after.see(by_operator(a(2, run)));
        after.trail.clear();
        after.see(UnitEvent::Found(found));
        after.check(trail);
        assert_eq!(after.unit.hold, Some(hold));
        // A task that was held is not one that has finished.
        after.see(wants(a(3, Run::Running)));
        after.check("start 0, STARTING");
    }
}

#[test]
fn finished_task_is_not_started_again() {
    let task = |grace_ms| {
        let change = move |spec: &mut muster_topics::unit::YunoSpec| {
            (spec.program.restart, spec.program.grace_ms) = (Restart::OnFailure, grace_ms);
        };
        spec("a", change)
    };
    let mut bench = Bench::new(desired(1, task(1), Run::Running));
    bench.install();
    bench.start();
    bench.end(0);
    bench.trail.clear();
    bench.see(by_operator(desired(2, task(1), Run::Running)));
    bench.see(wants(desired(3, task(1), Run::Running)));
    bench.see(wants(desired(4, task(2), Run::Running)));
    bench.check("STOPPED");
    assert_eq!(bench.reached(), 4);
    let mut after = Bench { unit: PlannedUnit::new(Some(bench.unit.kept()), 0), now_ms: 0, pid: 0, trail: Vec::new() };
    after.see(wants(desired(4, task(2), Run::Running)));
    after.see(UnitEvent::Found(FoundInstance::Nothing));
    after.check("Adopt, STOPPED");
    // To stop it and run it is another matter.
    after.see(wants(desired(5, task(2), Run::Stopped)));
    after.see(wants(desired(6, task(2), Run::Running)));
    after.check("STOPPED, start 0, STARTING");
}

fn frozen(generation: u64, frozen: bool) -> UnitEvent {
    wants(Desired { frozen, ..a(generation, Run::Running) })
}

fn told(bench: &Bench, frozen: bool) -> UnitEvent {
    let process = bench.unit.process();
    UnitEvent::Told(ShimReport { process, frozen, ..ShimReport::default() })
}

#[test]
fn freeze_is_repeated_until_confirmed() {
    let mut bench = Bench::running();
    bench.see(frozen(2, true));
    bench.check("Freeze, RUNNING");
    assert_eq!(
        (bench.reached(), bench.unit.plan(bench.now_ms)),
        (1, Some(PlanStep::WaitUntil(SECOND + FREEZE_AGAIN_MS)))
    );
    bench.pass(FREEZE_AGAIN_MS);
    bench.check("Freeze, RUNNING");
    let seen = told(&bench, true);
    bench.see(seen);
    bench.check("RUNNING");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (2, None));
    bench.see(frozen(3, false));
    bench.check("Thaw, RUNNING");
    let seen = told(&bench, false);
    bench.see(seen);
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (3, None));
}

#[test]
fn frozen_unit_stops_and_started_unit_is_frozen_once_up() {
    let mut bench = Bench::running();
    bench.see(frozen(2, true));
    let seen = told(&bench, true);
    bench.see(seen);
    bench.trail.clear();
    bench.see(wants(a(3, Run::Stopped)));
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("STOPPED");
    assert!(!bench.unit.observed.instance().frozen);
    bench.see(frozen(4, true));
    bench.start();
    bench.check("start 0, STARTING");
    bench.pass(SECOND);
    bench.check("Freeze, RUNNING");
    // Its shim has started it again.
    bench.told(1, None);
    bench.check("STARTING");
    bench.pass(FREEZE_AGAIN_MS);
    bench.check("Freeze, RUNNING");
}
