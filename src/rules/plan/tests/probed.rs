//! Cases of probe results.

use super::*;

const LIMIT: Millis = 90 * SECOND;

/// A unit with these probes, by their first letters.
fn probed(which: &str, restart: Restart) -> Spec {
    let probe = serde_json::json!({"tcp": {"port": 1}});
    let mut probes = serde_json::json!({});
    for (letter, name) in [('s', "start"), ('r', "ready"), ('l', "live")] {
        if which.contains(letter) {
            probes[name] = probe.clone();
        }
    }
    let probes = serde_json::from_value(probes).unwrap();
    spec("a", |spec| (spec.program.probes, spec.program.restart) = (probes, restart))
}

impl Bench {
    fn started(which: &str, restart: Restart) -> Self {
        let mut bench = Self::new(desired(1, probed(which, restart), Run::Running));
        bench.install();
        bench.start();
        bench.trail.clear();
        bench
    }

    /// One that has come up.
    fn up(which: &str) -> Self {
        let mut bench = Self::started(which, Restart::Always);
        bench.pass_probe("s");
        bench.pass_probe("r");
        bench.pass(SECOND);
        bench.trail.clear();
        bench
    }

    fn probe(&mut self, which: &str, verdict: ProbeVerdict) {
        let which = *Which::ALL.iter().find(|name| name.as_str().starts_with(which)).unwrap();
        let process = self.unit.process().unwrap();
        self.see(UnitEvent::Probed { process, which, verdict });
    }

    fn pass_probe(&mut self, which: &str) {
        self.probe(which, ProbeVerdict::Passed);
    }

    fn fail_probe(&mut self, which: &str) {
        self.probe(which, ProbeVerdict::Failed("no answer".into()));
    }

    fn tried(&self) -> String {
        self.unit.probing().iter().map(|probing| &probing.which.as_str()[..1]).collect()
    }

    fn unready(&self) -> Option<&str> {
        self.unit.observed.instance().unready.as_ref().map(|why| why.cause.as_str())
    }

    fn error(&self) -> &str {
        self.unit.observed.error.as_ref().map(|error| error.cause.as_str()).unwrap_or_default()
    }
}

#[test]
fn start_probe_runs_first_and_ready_probe_decides_running() {
    let mut bench = Bench::started("srl", Restart::Always);
    // To have stayed up for a while is not enough.
    bench.pass(5 * SECOND);
    assert_eq!(bench.tried(), "s");
    bench.probe("s", ProbeVerdict::Pending("refused".into()));
    assert_eq!(
        (bench.unready(), bench.unit.plan(bench.now_ms)),
        (Some("start probe: refused"), Some(PlanStep::WaitUntil(LIMIT)))
    );
    bench.pass_probe("s");
    assert_eq!((bench.tried().as_str(), bench.unready()), ("r", None));
    bench.pass_probe("r");
    bench.check("STARTING, RUNNING");
    assert_eq!((bench.tried().as_str(), bench.reached()), ("rl", 1));
    assert_eq!(bench.unit.way(), Expectation::Running);
}

#[test]
fn unit_needs_notify_and_probe_to_be_up() {
    for first in ["word", "probe"] {
        let mut spec = probed("r", Restart::Always);
        let Spec::Yuno(yuno) = &mut spec else { panic!("a yuno") };
        yuno.channel = Channel::Notify;
        let mut bench = Bench::new(desired(1, spec, Run::Running));
        bench.install();
        bench.start();
        let process = bench.unit.process();
        let word = UnitEvent::Told(ShimReport { process, ready: true, ..ShimReport::default() });
        bench.trail.clear();
        if first == "word" {
            bench.see(word.clone());
        } else {
            bench.pass_probe("r");
        }
        bench.pass(5 * SECOND);
        bench.check("STARTING");
        if first == "word" {
            bench.pass_probe("r");
        } else {
            bench.see(word);
        }
        bench.check("RUNNING");
    }
}

#[test]
fn start_timeout_ends_unit_and_backs_off() {
    for (which, words) in [("s", "start probe: refused"), ("r", "ready probe: refused")] {
        let mut bench = Bench::started(which, Restart::Always);
        bench.probe(which, ProbeVerdict::Pending("refused".into()));
        bench.pass(LIMIT - 1);
        bench.check("STARTING");
        bench.pass(1);
        bench.check("stop Term 30000, STOPPING");
        assert_eq!(bench.error(), format!("did not come up within 90 s: {words}"));
        assert_eq!(bench.tried(), "", "what ends is not asked");
        bench.end(0);
        bench.check("start 0, STARTING");
        assert!(bench.error().ends_with("refused; ended for that: exit code 0"), "{}", bench.error());
    }
}

#[test]
fn end_by_probe_counts_as_failure() {
    for (restart, trail) in
        [(Restart::Always, "start 0, STARTING"), (Restart::OnFailure, "start 0, STARTING"), (Restart::Never, "FAILED")]
    {
        let mut bench = Bench::started("l", restart);
        bench.pass(SECOND);
        bench.fail_probe("l");
        bench.end(0);
        bench.check(&format!("RUNNING, stop Term 30000, STOPPING, {trail}"));
        assert!(
            bench.error().starts_with("hangs: live probe: no answer; ended for that: exit code 0"),
            "{}",
            bench.error()
        );
    }
    // One in a row after another ends as any other.
    let mut bench = Bench::started("l", Restart::Always);
    for _ in 0..=RESTARTS_MAX {
        bench.pass(SECOND);
        bench.fail_probe("l");
        bench.end(0);
        if bench.unit.process().is_none() && bench.unit.observed.phase() != Phase::Starting {
            let Some(at_ms) = bench.unit.observed.retry_ms() else { break };
            bench.pass(at_ms - bench.now_ms);
        }
        bench.start();
    }
    assert_eq!(bench.unit.hold.as_ref().map(|hold| hold.reason), Some(HoldReason::Broken));
}

#[test]
fn unready_unit_runs_and_blocks_dependents() {
    let mut bench = Bench::up("rl");
    bench.fail_probe("r");
    assert_eq!((bench.unready(), bench.unit.way()), (Some("ready probe: no answer"), Expectation::Unready));
    bench.pass_probe("r");
    assert_eq!((bench.unready(), bench.unit.way()), (None, Expectation::Running));
    bench.check("RUNNING");
}

#[test]
fn held_unit_is_probed_and_not_ended() {
    for seen in ["held", "lacks"] {
        let mut bench = Bench::up("l");
        match seen {
            "held" => {
                let hold = Hold::new(HoldReason::Operator, 0);
                let again = desired(2, probed("l", Restart::Always), Run::Running);
                bench.see(UnitEvent::Desired(Some(Box::new(again)), Some(hold)));
            }
            _ => bench.see(UnitEvent::Wired(EndpointWiring::default(), Some("no db".to_owned()))),
        }
        assert_eq!(bench.tried(), "l");
        bench.fail_probe("l");
        bench.check("RUNNING");
        assert_eq!(bench.unready(), Some("live probe: no answer"));
        // It ends as soon as nothing keeps it, unless it is well again by then.
        let mut other = Bench { unit: bench.unit.clone(), now_ms: bench.now_ms, pid: bench.pid, trail: Vec::new() };
        other.pass_probe("l");
        for (bench, is_ended) in [(&mut bench, true), (&mut other, false)] {
            bench.see(wants(desired(3, probed("l", Restart::Always), Run::Running)));
            bench.see(UnitEvent::Wired(EndpointWiring::default(), None));
            assert_eq!(bench.trail.iter().any(|step| step == "stop Term 30000"), is_ended, "{seen}");
        }
    }
    // Nor does one have to come up that is held.
    let mut bench = Bench::started("s", Restart::Always);
    let again = desired(2, probed("s", Restart::Always), Run::Running);
    bench.see(UnitEvent::Desired(Some(Box::new(again.clone())), Some(Hold::new(HoldReason::Operator, 0))));
    bench.pass(2 * LIMIT);
    bench.check("STARTING");
    bench.see(wants(Desired { generation: 3, ..again }));
    bench.pass(LIMIT - 1);
    bench.check("STARTING");
    bench.pass(1);
    bench.check("stop Term 30000, STOPPING");
}

#[test]
fn suspended_unit_is_not_probed() {
    let mut bench = Bench::up("rl");
    let frozen = Desired { frozen: true, ..desired(2, probed("rl", Restart::Always), Run::Running) };
    bench.see(wants(frozen));
    let (process, frozen) = (bench.unit.process(), true);
    bench.see(UnitEvent::Told(ShimReport { process, frozen, ..ShimReport::default() }));
    assert_eq!((bench.tried().as_str(), bench.unit.observed.phase()), ("", Phase::Running));
    bench.see(UnitEvent::Told(ShimReport { process, ..ShimReport::default() }));
    assert_eq!(bench.tried(), "rl");
}

#[test]
fn new_process_starts_with_start_probe() {
    let mut bench = Bench::up("srl");
    let before = bench.unit.process().unwrap();
    bench.fail_probe("r");
    let last = bench.ended(Exit::Code(1), 0);
    bench.told(1, Some(last));
    bench.check("RUNNING, STARTING");
    assert_eq!((bench.tried().as_str(), bench.unready()), ("s", None));
    // What was found of the one before says nothing of this one.
    bench.see(UnitEvent::Probed { process: before, which: Which::Start, verdict: ProbeVerdict::Passed });
    assert_eq!(bench.tried(), "s");
    bench.pass(LIMIT);
    bench.check("STARTING, stop Term 30000, STOPPING");
}

#[test]
fn changed_probes_keep_unit_running() {
    let mut bench = Bench::up("");
    bench.pass(SECOND);
    bench.see(wants(desired(2, probed("srl", Restart::Always), Run::Running)));
    assert_eq!((bench.tried().as_str(), bench.reached()), ("rl", 2));
    bench.fail_probe("r");
    bench.see(wants(desired(3, probed("l", Restart::Always), Run::Running)));
    assert_eq!((bench.tried().as_str(), bench.unready()), ("l", None));
    bench.check("RUNNING");
}

#[test]
fn leaving_instance_is_not_probed() {
    let mut bench = Bench::up("rl");
    let mut next = probed("rl", Restart::Always);
    let Spec::Yuno(yuno) = &mut next else { panic!("a yuno") };
    yuno.program.args.push("x".to_owned());
    bench.see(wants(desired(2, next, Run::Running)));
    assert_eq!((bench.tried().as_str(), bench.unit.observed.phase()), ("", Phase::Running));
}

/// The agent is started again, and finds the process that there was.
fn adopted(bench: &Bench, found: FoundInstance) -> Bench {
    let desired = bench.unit.desired.clone().unwrap();
    let unit = PlannedUnit::new(Some(bench.unit.kept()), bench.now_ms);
    let mut next = Bench { unit, now_ms: bench.now_ms, pid: bench.pid, trail: Vec::new() };
    next.see(wants(desired));
    next.trail.clear();
    next.see(UnitEvent::Found(found));
    next
}

fn alive(bench: &Bench) -> FoundInstance {
    let told = ShimReport { process: bench.unit.process(), ..ShimReport::default() };
    FoundInstance::Alive(bench.unit.observed.revision.clone().unwrap(), told)
}

#[test]
fn restart_of_agent_keeps_unit_running() {
    let mut bench = Bench::up("srl");
    bench.fail_probe("r");
    let mut next = adopted(&bench, alive(&bench));
    next.check("RUNNING");
    assert_eq!((next.tried().as_str(), next.unready()), ("rl", Some("ready probe: no answer")));
    next.pass_probe("r");
    assert_eq!(next.unready(), None);
    // One that had not come up has its time again: nobody has asked it meanwhile.
    let mut bench = Bench::started("s", Restart::Always);
    bench.now_ms += 10 * LIMIT;
    let mut next = adopted(&bench, alive(&bench));
    next.check("STARTING");
    assert_eq!(next.tried(), "s");
    next.pass(LIMIT);
    next.check("stop Term 30000, STOPPING");
}

#[test]
fn end_by_probe_counts_while_agent_was_away() {
    let mut bench = Bench::up("l");
    bench.fail_probe("l");
    bench.check("stop Term 30000, STOPPING");
    // It may not have heard that it has to end.
    adopted(&bench, alive(&bench)).check("stop Term 30000, STOPPING");
    let over = InstanceEnd { restarts: 0, last: bench.ended(Exit::Code(0), 0) };
    let mut next = adopted(&bench, FoundInstance::Ended(over));
    next.check("start 0, STARTING");
    assert!(next.error().starts_with("hangs: live probe: no answer; ended"), "{}", next.error());
}

#[test]
fn container_probes_count_as_yuno_probes() {
    let spec = |probes: serde_json::Value| -> Spec {
        let spec = serde_json::json!({
            "kind": "container", "image": {"name": "a"}, "rollback": "never", "start_timeout_ms": 7_000, "probes": probes,
        });
        serde_json::from_value(spec).unwrap()
    };
    let probe = serde_json::json!({"exec": ["true"]});
    let all = spec(serde_json::json!({"start": probe, "ready": probe, "live": probe}));
    let mut bench = Bench::new(desired(1, all.clone(), Run::Running));
    bench.install();
    bench.start();
    bench.pass(5 * SECOND);
    bench.trail.clear();
    assert_eq!((bench.tried().as_str(), bench.unit.plan(bench.now_ms)), ("s", Some(PlanStep::WaitUntil(7 * SECOND))));
    bench.pass_probe("s");
    bench.pass_probe("r");
    bench.check("STARTING, RUNNING");
    assert_eq!((bench.tried().as_str(), bench.reached()), ("rl", 1));
    bench.fail_probe("r");
    bench.check("RUNNING");
    assert_eq!(bench.unready(), Some("ready probe: no answer"));
    // Another probe takes no other container.
    let live = spec(serde_json::json!({"live": probe}));
    bench.see(wants(desired(2, live, Run::Running)));
    bench.pass(SECOND);
    assert_eq!((bench.tried().as_str(), bench.unready(), bench.unit.observed.instance().pid), ("l", None, Some(1)));
    bench.trail.clear();
    bench.fail_probe("l");
    bench.check("stop own 30000, STOPPING");
    bench.end(0);
    // As after any other end it waits five seconds, and it is counted.
    bench.check("BACKOFF");
    assert_eq!(bench.unit.observed.retry_ms(), Some(bench.now_ms + 5 * SECOND));
    assert!(bench.error().starts_with("hangs: live probe: no answer; ended for that"), "{}", bench.error());
    // What does not come up within its time is ended as well.
    let mut bench = Bench::new(desired(1, all, Run::Running));
    bench.install();
    bench.start();
    bench.trail.clear();
    bench.pass(7 * SECOND);
    bench.check("stop own 30000, STOPPING");
    assert_eq!(bench.error(), "did not come up within 7 s: start probe: it was not answered");
}
