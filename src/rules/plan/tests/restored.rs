//! Cases of a restarted agent.

use super::*;

/// Another life of the agent, with what was kept.
#[track_caller]
fn check_restored(before: Bench, desired: Desired, found: FoundInstance, trail: &str, attempts: u32) {
    let mut after = Bench {
        unit: PlannedUnit::new(Some(before.unit.kept()), before.now_ms),
        now_ms: before.now_ms,
        pid: before.pid,
        trail: Vec::new(),
    };
    after.see(UnitEvent::Desired(Some(Box::new(desired)), before.unit.hold));
    after.trail.clear();
    after.see(UnitEvent::Found(found));
    after.check(trail);
    assert_eq!(after.unit.observed.attempts, attempts);
}

#[test]
fn restored_unit_continues_after_restart() {
    let wanted = |run| desired(1, spec("a", |_| ()), run);
    let revision = || wanted(Run::Running).revision;
    let process = Some(ProcessId { pid: 1, start_ticks: 1, started_ms: 0 });
    let told = |restarts, last| ShimReport { process, restarts, last, ..ShimReport::default() };

    let bench = Bench::running();
    check_restored(bench, wanted(Run::Running), FoundInstance::Alive(revision(), told(0, None)), "RUNNING", 0);
    // Its shim started it again meanwhile: once, and then the count is as before.
    let bench = Bench::running();
    let last = Some(bench.ended(Exit::Code(1), 0));
    check_restored(bench, wanted(Run::Running), FoundInstance::Alive(revision(), told(1, last)), "RUNNING", 1);
    let mut bench = Bench::running();
    let last = bench.ended(Exit::Code(1), 0);
    bench.told(2, Some(last.clone()));
    check_restored(bench, wanted(Run::Running), FoundInstance::Alive(revision(), told(2, Some(last))), "RUNNING", 2);

    // It ended meanwhile: started again at once. It had ended before: that is known.
    let bench = Bench::running();
    let ended = bench.ended(Exit::Unknown, 0);
    check_restored(
        bench,
        wanted(Run::Running),
        FoundInstance::Ended(InstanceEnd { restarts: 0, last: ended }),
        "start 0, STARTING",
        1,
    );
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
    bench.end(0);
    let ended = bench.ended(Exit::Code(0), 0);
    check_restored(
        bench,
        desired(2, spec("a", |_| ()), Run::Stopped),
        FoundInstance::Ended(InstanceEnd { restarts: 0, last: ended }),
        "STOPPED",
        0,
    );

    // It was about to be stopped: no crash.
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.install();
    let ended = bench.ended(Exit::Code(0), 0);
    check_restored(
        bench,
        desired(2, spec("b", |_| ()), Run::Running),
        FoundInstance::Ended(InstanceEnd { restarts: 0, last: ended }),
        "Install, INSTALLING",
        0,
    );

    // The host was restarted: that counts for nothing, and even one that is not started again comes back with it.
    let once = desired(1, spec("a", |spec| spec.program.restart = Restart::Never), Run::Running);
    for desired in [wanted(Run::Running), once] {
        let mut bench = Bench::running();
        bench.unit.observed.attempts = 2;
        let last = InstanceExit { with_host: true, ..bench.ended(Exit::Unknown, 0) };
        check_restored(bench, desired, FoundInstance::Ended(InstanceEnd { restarts: 0, last }), "start 2, STARTING", 2);
    }

    // One that is there for one run does not.
    let for_one_run = spec("a", |spec| (spec.program.restart, spec.transient) = (Restart::Never, true));
    let bench = Bench::running();
    let last = InstanceExit { with_host: true, ..bench.ended(Exit::Unknown, 0) };
    let found = FoundInstance::Ended(InstanceEnd { restarts: 0, last });
    check_restored(bench, desired(1, for_one_run, Run::Running), found, "FAILED", 0);

    // It waits, and goes on waiting.
    let mut bench = Bench::running();
    bench.unit.observed.attempts = 5;
    bench.end(1);
    let ended = bench.ended(Exit::Code(1), 0);
    check_restored(
        bench,
        wanted(Run::Running),
        FoundInstance::Ended(InstanceEnd { restarts: 0, last: ended }),
        "BACKOFF",
        5,
    );
}

#[test]
fn stored_state_parses_to_the_same() {
    let mut bench = Bench::running();
    let ended = bench.ended(Exit::Signal(9), 0);
    bench.told(2, Some(ended));
    let kept = bench.unit.kept();
    assert_eq!(kept.restarts, 2);
    // What is verified has a place of its own.
    let kept = RestoredUnit { verified: None, ..kept };
    assert_eq!(serde_json::from_str::<RestoredUnit>(&serde_json::to_string(&kept).unwrap()).unwrap(), kept);
}
