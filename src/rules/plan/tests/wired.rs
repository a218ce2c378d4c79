//! Cases of endpoints and connectors.

use muster_topics::endpoint::Connector;

use super::*;

fn to_db(port: u16) -> EndpointWiring {
    let connector = Connector {
        name: "db".parse().unwrap(),
        address: "127.0.0.1".parse().unwrap(),
        port,
        protocol: Default::default(),
        unit: "default/db".parse().unwrap(),
    };
    EndpointWiring { endpoints: Vec::new(), connectors: vec![connector] }
}

fn lacks(what: &str) -> UnitEvent {
    UnitEvent::Wired(EndpointWiring::default(), Some(what.to_owned()))
}

fn wired(port: u16) -> UnitEvent {
    UnitEvent::Wired(to_db(port), None)
}

/// It runs, and was started with this.
fn runs_with(bench: &mut Bench, with: EndpointWiring) {
    bench.see(UnitEvent::Started);
    bench.pid += 1;
    let process = Some(ProcessId { pid: bench.pid, start_ticks: 1, started_ms: bench.now_ms });
    bench.see(UnitEvent::Told(ShimReport { process, wiring: with, ..ShimReport::default() }));
    bench.pass(SECOND);
}

#[test]
fn unit_without_endpoint_is_not_started() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Stopped));
    bench.see(lacks("no db"));
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Running)));
    bench.trail.clear();
    bench.install();
    bench.check("STOPPED");
    assert_eq!(bench.reached(), 2);
    let hold = bench.unit.visible_hold().unwrap().clone();
    assert_eq!((hold.reason, hold.note.as_deref()), (HoldReason::Dependency, Some("no db")));
    // The same again is no news, not even of its time.
    bench.pass(SECOND);
    bench.see(lacks("no db"));
    assert_eq!(bench.unit.visible_hold(), Some(&hold));
    bench.trail.clear();
    // It ends by itself.
    bench.see(wired(1));
    bench.check("start 0, STARTING");
    assert_eq!((bench.unit.visible_hold(), bench.unit.observed.connectors.len()), (None, 1));
}

#[test]
fn running_unit_continues_without_endpoint() {
    let mut bench = Bench::running();
    bench.see(lacks("no db"));
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.pass(SECOND);
    bench.check("RUNNING");
    assert_eq!(bench.reached(), 2, "it is where it can be");
    // Only a stop stops it.
    bench.see(wants(desired(3, spec("b", |_| ()), Run::Stopped)));
    bench.check("stop Term 30000, STOPPING");
}

#[test]
fn changed_wiring_restarts_once() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.see(wired(1));
    bench.install();
    runs_with(&mut bench, to_db(1));
    bench.trail.clear();
    bench.see(wired(2));
    bench.see(wired(2));
    bench.check("stop Term 30000, STOPPING");
    let last = bench.ended(Exit::Signal(15), SECOND);
    bench.see(UnitEvent::Ended(InstanceEnd { restarts: 0, last }));
    bench.check("start 0, STARTING");
    runs_with(&mut bench, to_db(2));
    bench.check("STARTING, RUNNING");
    bench.pass(SECOND);
    bench.see(wired(2));
    bench.check("RUNNING");
    assert_eq!(bench.unit.plan(bench.now_ms), None);
}

#[test]
fn unknown_wiring_restarts_nothing() {
    let mut bench = Bench::running();
    let EffectiveInstance::Alive(alive) = &mut bench.unit.instance else { panic!("it runs") };
    alive.runs_with = None;
    bench.see(wired(1));
    bench.check("RUNNING");
}
