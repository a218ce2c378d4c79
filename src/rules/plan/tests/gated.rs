//! Cases of units that wait for others.

use super::*;

fn gate(gate: StartGate) -> UnitEvent {
    UnitEvent::Gate(gate)
}

fn db() -> String {
    "default/db is not running".to_owned()
}

#[test]
fn waiting_unit_is_installed_and_not_started() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.see(gate(StartGate::Wait(db())));
    bench.install();
    bench.check("Adopt, ABSENT, Install, INSTALLING, STOPPED");
    let hold = bench.unit.visible_hold().unwrap().clone();
    assert_eq!((hold.reason, hold.note), (HoldReason::Dependency, Some(db())));
    assert_eq!((bench.reached(), bench.unit.way()), (0, Expectation::Coming));
    bench.pass(SECOND);
    // What will not come by itself is something to be told about.
    bench.see(gate(StartGate::Blocked(db())));
    assert_eq!((bench.reached(), bench.unit.way()), (1, Expectation::Down));
    assert_eq!(bench.unit.visible_hold().unwrap().since_ms, 0);
    bench.see(gate(StartGate::Open));
    bench.check("STOPPED, start 0, STARTING");
    assert_eq!(bench.unit.visible_hold(), None);
}

#[test]
fn unit_waiting_for_its_turn_reports_no_hold() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.see(gate(StartGate::Turn));
    bench.install();
    assert_eq!((bench.unit.visible_hold(), bench.reached()), (None, 0));
    assert!(bench.unit.would_start(bench.now_ms));
    bench.trail.clear();
    bench.see(gate(StartGate::Open));
    bench.check("start 0, STARTING");
    assert!(bench.unit.is_launching() && !bench.unit.would_start(bench.now_ms));
}

#[test]
fn running_unit_continues_without_its_dependency() {
    let mut bench = Bench::running();
    bench.see(gate(StartGate::Blocked(db())));
    bench.check("RUNNING");
    assert_eq!((bench.unit.visible_hold(), bench.unit.way()), (None, Expectation::Running));
    // Once it has ended it waits, first as long as it has to and then for the other.
    bench.unit.observed.attempts = 3;
    bench.end(1);
    bench.check("BACKOFF");
    bench.pass(30 * SECOND);
    bench.check("STOPPED");
    assert_eq!(
        bench.unit.observed.error.as_ref().map(|error| error.cause.as_str()),
        Some("ended unexpectedly: exit code 1")
    );
    bench.see(gate(StartGate::Open));
    bench.check("start 3, STARTING");
}

#[test]
fn operators_hold_is_reported_first() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Stopped));
    bench.install();
    bench.see(gate(StartGate::Blocked(db())));
    assert_eq!(bench.unit.visible_hold(), None);
    let wanted = desired(2, spec("a", |_| ()), Run::Running);
    bench.see(UnitEvent::Desired(Some(Box::new(wanted)), Some(Hold::new(HoldReason::Operator, 0))));
    assert_eq!(bench.unit.visible_hold().unwrap().reason, HoldReason::Operator);
}
