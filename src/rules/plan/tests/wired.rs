//! What a unit waits for, and what it is wired to.

use muster_topics::endpoint::Connector;

use super::*;

fn to_db(port: u16) -> Wiring {
    let connector = Connector {
        name: "db".parse().unwrap(),
        address: "127.0.0.1".parse().unwrap(),
        port,
        protocol: Default::default(),
        unit: "default/db".parse().unwrap(),
    };
    Wiring { endpoints: Vec::new(), connectors: vec![connector] }
}

fn lacks(what: &str) -> Seen {
    Seen::Wired(Wiring::default(), Some(what.to_owned()))
}

fn wired(port: u16) -> Seen {
    Seen::Wired(to_db(port), None)
}

/// It runs, and was started with this.
fn runs_with(bench: &mut Bench, with: Wiring) {
    bench.see(Seen::Started);
    bench.pid += 1;
    let process = Some(Process { pid: bench.pid, start_ticks: 1, started_ms: bench.now_ms });
    bench.see(Seen::Told(Told { process, wiring: with, ..Told::default() }));
    bench.pass(SECOND);
}

#[test]
fn what_lacks_something_is_installed_and_not_started() {
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
fn what_runs_goes_on_while_it_lacks_something() {
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
fn what_is_wired_anew_is_started_anew_once() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.see(wired(1));
    bench.install();
    runs_with(&mut bench, to_db(1));
    bench.trail.clear();
    bench.see(wired(2));
    bench.see(wired(2));
    bench.check("stop Term 30000, STOPPING");
    let last = bench.ended(Exit::Signal(15), SECOND);
    bench.see(Seen::Ended(Over { restarts: 0, last }));
    bench.check("start 0, STARTING");
    runs_with(&mut bench, to_db(2));
    bench.check("STARTING, RUNNING");
    bench.pass(SECOND);
    bench.see(wired(2));
    bench.check("RUNNING");
    assert_eq!(bench.unit.plan(bench.now_ms), None);
}

#[test]
fn what_runs_is_not_started_anew_before_it_is_known_what_it_has() {
    let mut bench = Bench::running();
    bench.unit.runs_with = None;
    bench.see(wired(1));
    bench.check("RUNNING");
}
