//! Cases of changes of revision that fail, and of those that succeed.

use super::*;

/// A spec that is verified after ten seconds, and goes back.
fn good(artifact: &str) -> Spec {
    spec(artifact, |spec| (spec.common.rollback, spec.common.verify_after_ms) = (Rollback::Auto, Some(10_000)))
}

fn with(artifact: &str, change: impl FnOnce(&mut YunoSpec)) -> Spec {
    let Spec::Yuno(mut spec) = good(artifact) else { panic!("a yuno") };
    change(&mut spec);
    Spec::Yuno(spec)
}

fn revision(spec: &Spec) -> Digest {
    spec.revision().unwrap()
}

/// A unit that runs as `a`, which is verified.
fn verified() -> Bench {
    let mut bench = Bench::new(desired(1, good("a"), Run::Running));
    bench.install();
    bench.start();
    bench.pass(SECOND);
    assert_eq!(bench.unit.verified(), None);
    assert_eq!(bench.unit.plan(bench.now_ms), Some(PlanStep::WaitUntil(11 * SECOND)));
    bench.pass(10 * SECOND);
    assert_eq!(bench.unit.verified().map(|verified| &verified.revision), Some(&revision(&good("a"))));
    assert_eq!(bench.unit.plan(bench.now_ms), None, "it rests");
    bench.trail.clear();
    bench
}

/// The same, after another spec was put into effect in its place.
fn changed_to(spec: Spec) -> Bench {
    let mut bench = verified();
    let Spec::Yuno(yuno) = &spec else { panic!("a yuno") };
    let signal = yuno.stop_signal();
    bench.see(wants(desired(2, spec, Run::Running)));
    bench.install();
    bench.check(&format!("Install, RUNNING, stop {signal:?} 30000, STOPPING"));
    bench.end(0);
    bench.start();
    bench.check("start 0, STARTING");
    bench
}

fn wired(bench: &mut Bench) {
    assert!(bench.unit.needs_wiring());
    bench.see(UnitEvent::Wired(EndpointWiring::default(), None));
}

/// It went back from what is desired, and runs as `a` again.
#[track_caller]
fn check_back(bench: &mut Bench, why: &str) {
    bench.install();
    wired(bench);
    bench.trail.clear();
    bench.start();
    bench.pass(SECOND);
    let observed = &bench.unit.observed;
    assert_eq!((observed.phase(), observed.generation, &observed.error), (Phase::Running, 2, &None));
    assert_eq!(observed.revision, Some(revision(&good("a"))));
    let rolled_back = observed.rolled_back().unwrap();
    assert_eq!((rolled_back.generation, &rolled_back.to), (2, &revision(&good("a"))));
    assert!(rolled_back.error.cause.contains(why), "{rolled_back:?}");
    assert!(!observed.trial.is_on());
    assert_eq!(bench.unit.asked().map(|asked| asked.generation), Some(2));
    assert_eq!(&rolled_back.revision, &bench.unit.asked().unwrap().revision);
    bench.pass(3_600 * SECOND);
    assert_eq!(bench.unit.plan(bench.now_ms), None, "it is not tried again by itself");
}

#[test]
fn crashing_trial_rolls_back_after_immediate_restarts() {
    let mut bench = changed_to(good("b"));
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
        assert!(bench.unit.observed.trial.is_on() && bench.unit.observed.rolled_back().is_none());
    }
    bench.check("STARTING");
    bench.end(1);
    bench.check("Install, INSTALLING");
    check_back(&mut bench, "ended unexpectedly: exit code 1");
}

#[test]
fn crash_before_verification_rolls_back() {
    let mut bench = changed_to(good("b"));
    for restarts in 1..=3 {
        bench.pass(5 * SECOND);
        assert_eq!(bench.unit.observed.phase(), Phase::Running);
        let last = bench.ended(Exit::Code(1), 5 * SECOND);
        bench.told(restarts, Some(last));
    }
    bench.pass(5 * SECOND);
    bench.end(1);
    check_back(&mut bench, "exit code 1");
}

#[test]
fn verification_that_was_due_before_the_plan_is_not_missed() {
    let mut bench = changed_to(good("b"));
    bench.pass(SECOND);
    let due_ms = bench.now_ms + 10 * SECOND;
    for late_ms in [-1, 0, 1, SECOND] {
        assert_eq!(bench.unit.plan(due_ms + late_ms), Some(PlanStep::WaitUntil(due_ms)), "{late_ms}");
    }
    bench.pass(10 * SECOND);
    assert!(!bench.unit.observed.trial.is_on());
    assert_eq!(bench.unit.plan(bench.now_ms + SECOND), None, "it rests");
}

#[test]
fn verified_revision_is_not_rolled_back() {
    let mut bench = changed_to(good("b"));
    bench.pass(SECOND);
    assert_eq!((bench.reached(), bench.unit.observed.trial.is_on()), (2, true));
    bench.pass(10 * SECOND);
    assert_eq!((bench.reached(), bench.unit.observed.trial.is_on()), (2, false));
    assert_eq!(bench.unit.verified().map(|verified| &verified.revision), Some(&revision(&good("b"))));
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
    }
    bench.end(1);
    assert_eq!((bench.unit.observed.phase(), bench.unit.observed.rolled_back()), (Phase::Backoff, None));
}

#[test]
fn start_timeout_rolls_back() {
    let slow = with("b", |spec| (spec.channel, spec.program.healthy_within_ms) = (Channel::Notify, Some(20_000)));
    let mut bench = changed_to(slow);
    let started_ms = bench.now_ms;
    assert_eq!(bench.unit.plan(bench.now_ms), Some(PlanStep::WaitUntil(started_ms + 20 * SECOND)));
    bench.pass(19 * SECOND);
    assert_eq!(bench.unit.observed.rolled_back(), None);
    bench.pass(SECOND);
    // It goes on until what replaces it is there; it is not taken for something that is up.
    bench.check("STARTING, Install, STARTING");
    bench.install();
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    check_back(&mut bench, "did not come up within 20 s");
}

#[test]
fn watchdog_timeout_rolls_back() {
    let mut bench = changed_to(with("b", |spec| spec.channel = Channel::Notify));
    let last = InstanceExit { silent: true, ..bench.ended(Exit::Signal(9), 0) };
    bench.told(1, Some(last));
    bench.check("Install, STARTING");
    bench.install();
    bench.end(0);
    check_back(&mut bench, "watchdog was not answered");
}

#[test]
fn failed_install_or_start_rolls_back() {
    let mut bench = verified();
    bench.see(wants(desired(2, good("b"), Run::Running)));
    bench.fail_install(true);
    assert_eq!(bench.unit.observed.rolled_back(), None, "it may come yet, and nothing is lost meanwhile");
    bench.fail_install(false);
    assert_eq!((bench.unit.observed.phase(), bench.reached()), (Phase::Running, 2));
    bench.see(UnitEvent::Wired(EndpointWiring::default(), None));
    assert_eq!(bench.unit.observed.rolled_back().map(|back| back.error.cause.as_str()), Some("no"));
    assert_eq!(bench.unit.plan(bench.now_ms), None, "what ran goes on");

    for may_heal in [true, false] {
        let mut bench = changed_to(good("b"));
        bench.end(0);
        let failure = Failure { error: "no such user".into(), may_heal };
        bench.see(UnitEvent::NotStarted(failure));
        check_back(&mut bench, "no such user");
    }
}

#[test]
fn without_verified_revision_nothing_is_rolled_back() {
    let mut bench = Bench::new(desired(1, good("a"), Run::Running));
    bench.install();
    bench.start();
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
    }
    bench.end(1);
    assert_eq!((bench.unit.observed.phase(), bench.unit.observed.rolled_back()), (Phase::Backoff, None));

    let mut bench = changed_to(with("b", |spec| spec.common.rollback = Rollback::Never));
    assert!(!bench.unit.observed.trial.is_on());
    bench.end(1);
    bench.pass(3_600 * SECOND);
    assert_eq!(bench.unit.observed.rolled_back(), None);
}

#[test]
fn next_generation_is_tried_again() {
    let mut bench = changed_to(with("b", |spec| spec.program.restart = Restart::Never));
    bench.end(1);
    check_back(&mut bench, "exit code 1");
    // The same again, by `run`.
    bench.see(wants(desired(3, with("b", |spec| spec.program.restart = Restart::Never), Run::Running)));
    assert_eq!((bench.unit.observed.rolled_back(), bench.unit.asked()), (None, bench.unit.desired.as_ref()));
    bench.install();
    bench.end(0);
    bench.start();
    bench.pass(SECOND);
    bench.pass(10 * SECOND);
    assert_eq!((bench.unit.observed.phase(), bench.reached()), (Phase::Running, 3));
    assert_eq!(
        bench.unit.verified().map(|verified| &verified.revision),
        bench.unit.asked().map(|asked| &asked.revision)
    );
}

#[test]
fn interrupted_rollback_continues_after_restart() {
    let mut bench = changed_to(with("b", |spec| spec.program.restart = Restart::Never));
    bench.end(1);
    // Before anything of the verified one runs: the generation is not reached.
    let kept = bench.unit.kept();
    assert_eq!(kept.observed.generation, 1);
    let mut after =
        Bench { unit: PlannedUnit::new(Some(kept), bench.now_ms), now_ms: bench.now_ms, pid: 9, trail: Vec::new() };
    let bad = with("b", |spec| spec.program.restart = Restart::Never);
    after.see(wants(desired(2, bad.clone(), Run::Running)));
    assert_eq!(after.unit.desired.as_ref().map(|desired| &desired.revision), Some(&revision(&good("a"))));
    let ended = InstanceExit { exit: Exit::Code(1), ..after.ended(Exit::Code(1), 0) };
    after.see(UnitEvent::Found(FoundInstance::Ended(InstanceEnd { restarts: 0, last: ended })));
    after.install();
    after.start();
    after.pass(SECOND);
    assert_eq!((after.unit.observed.phase(), after.reached()), (Phase::Running, 2));
    assert_eq!(after.unit.observed.revision, Some(revision(&good("a"))));
    assert_eq!(after.unit.observed.rolled_back().map(|back| &back.revision), Some(&revision(&bad)));
}

#[test]
fn trial_time_continues_after_restart() {
    let slow = with("b", |spec| (spec.channel, spec.program.healthy_within_ms) = (Channel::Notify, Some(20_000)));
    let bench = changed_to(slow.clone());
    let (kept, process) = (bench.unit.kept(), bench.unit.process());
    let now_ms = bench.now_ms + 15 * SECOND;
    let mut after = Bench { unit: PlannedUnit::new(Some(kept), now_ms), now_ms, pid: 9, trail: Vec::new() };
    after.see(wants(desired(2, slow.clone(), Run::Running)));
    after.see(UnitEvent::Found(FoundInstance::Alive(revision(&slow), ShimReport { process, ..ShimReport::default() })));
    assert_eq!(after.unit.plan(now_ms), Some(PlanStep::WaitUntil(now_ms + 5 * SECOND)));
    after.pass(5 * SECOND);
    assert!(after.unit.observed.rolled_back().is_some());
}

#[test]
fn rollback_restores_in_place_settings() {
    let mut bench = verified();
    let patient = with("a", |spec| spec.program.grace_ms = 7);
    bench.see(wants(desired(2, patient.clone(), Run::Running)));
    assert_eq!(bench.unit.verified().map(|verified| &*verified.spec), Some(&patient));
    bench.see(wants(desired(3, with("b", |spec| spec.program.restart = Restart::Never), Run::Running)));
    bench.install();
    bench.end(0);
    bench.start();
    bench.end(1);
    assert_eq!(bench.unit.desired.as_ref().map(|desired| &*desired.spec), Some(&patient));
}

#[test]
fn failed_reload_rolls_back_with_new_process() {
    let reloads = |spec: &mut YunoSpec| spec.reload = muster_topics::reload::Reload::Signal;
    let mut bench = Bench::new(desired(1, with("a", reloads), Run::Running));
    bench.install();
    bench.start();
    bench.pass(SECOND);
    bench.pass(10 * SECOND);
    bench.trail.clear();
    let bad = with("b", reloads);
    bench.see(wants(desired(2, bad.clone(), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    bench.see(UnitEvent::Reloaded(revision(&bad)));
    assert!(bench.unit.observed.trial.is_on());
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
    }
    bench.trail.clear();
    bench.end(1);
    bench.install();
    wired(&mut bench);
    bench.check("Install, INSTALLING, STOPPED, start 0, STARTING");
    assert_eq!(bench.unit.observed.rolled_back().map(|back| &back.revision), Some(&revision(&bad)));
}

#[test]
fn held_unit_is_not_verified() {
    let slow = with("b", |spec| (spec.channel, spec.program.healthy_within_ms) = (Channel::Notify, Some(20_000)));
    let mut bench = changed_to(slow.clone());
    let hold = Hold::new(HoldReason::Operator, 0);
    bench.see(UnitEvent::Desired(Some(Box::new(desired(3, slow, Run::Running))), Some(hold)));
    bench.pass(3_600 * SECOND);
    assert_eq!(bench.unit.observed.rolled_back(), None);
}

#[test]
fn rolled_back_task_is_not_run_again() {
    let task = |spec: &mut YunoSpec| spec.program.restart = Restart::OnFailure;
    let mut bench = Bench::new(desired(1, with("a", task), Run::Running));
    bench.install();
    bench.start();
    bench.pass(SECOND);
    bench.pass(10 * SECOND);
    assert!(bench.unit.verified().is_some());
    bench.end(0);
    assert_eq!((bench.unit.observed.phase(), bench.unit.verified()), (Phase::Stopped, None));
}

#[test]
fn reboot_during_trial_is_no_failure() {
    let mut bench = changed_to(good("b"));
    let last = InstanceExit { with_host: true, ..bench.ended(Exit::Unknown, 0) };
    bench.see(UnitEvent::Ended(InstanceEnd { restarts: 0, last }));
    assert_eq!(bench.unit.observed.rolled_back(), None);
    bench.check("start 0, STARTING");
}
