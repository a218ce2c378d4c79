//! Cases of a change of revision that fails, and of one that does not.

use super::*;

/// A spec that is verified after ten seconds, and goes back.
fn good(artifact: &str) -> Spec {
    spec(artifact, |spec| (spec.rollback, spec.verify_after_ms) = (Rollback::Auto, 10_000))
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
    assert_eq!(bench.unit.plan(bench.now_ms), Some(Step::WaitUntil(11 * SECOND)));
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
    bench.see(Seen::Wired(Wiring::default(), None));
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
    assert_eq!((observed.phase, observed.generation, &observed.error), (Phase::Running, 2, &None));
    assert_eq!(observed.revision, Some(revision(&good("a"))));
    let rolled_back = observed.rolled_back.as_ref().unwrap();
    assert_eq!((rolled_back.generation, &rolled_back.to), (2, &revision(&good("a"))));
    assert!(rolled_back.error.contains(why), "{rolled_back}");
    assert!(!observed.on_trial);
    assert_eq!(bench.unit.asked().map(|asked| asked.generation), Some(2));
    assert_eq!(&rolled_back.revision, &bench.unit.asked().unwrap().revision);
    bench.pass(3_600 * SECOND);
    assert_eq!(bench.unit.plan(bench.now_ms), None, "it is not tried again by itself");
}

#[test]
fn what_crashes_has_its_immediate_restarts_and_then_goes_back() {
    let mut bench = changed_to(good("b"));
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
        assert!(bench.unit.observed.on_trial && bench.unit.observed.rolled_back.is_none());
    }
    bench.check("STARTING");
    bench.end(1);
    bench.check("Install, INSTALLING");
    check_back(&mut bench, "ended by itself: exit code 1");
}

#[test]
fn what_crashes_after_it_was_up_and_before_it_is_verified_goes_back() {
    let mut bench = changed_to(good("b"));
    for restarts in 1..=3 {
        bench.pass(5 * SECOND);
        assert_eq!(bench.unit.observed.phase, Phase::Running);
        let last = bench.ended(Exit::Code(1), 5 * SECOND);
        bench.told(restarts, Some(last));
    }
    bench.pass(5 * SECOND);
    bench.end(1);
    check_back(&mut bench, "exit code 1");
}

#[test]
fn what_is_verified_does_not_go_back() {
    let mut bench = changed_to(good("b"));
    bench.pass(SECOND);
    assert_eq!((bench.reached(), bench.unit.observed.on_trial), (2, true));
    bench.pass(10 * SECOND);
    assert_eq!((bench.reached(), bench.unit.observed.on_trial), (2, false));
    assert_eq!(bench.unit.verified().map(|verified| &verified.revision), Some(&revision(&good("b"))));
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
    }
    bench.end(1);
    assert_eq!((bench.unit.observed.phase, &bench.unit.observed.rolled_back), (Phase::Backoff, &None));
}

#[test]
fn what_is_never_up_goes_back_when_its_time_is_over() {
    let slow = with("b", |spec| (spec.channel, spec.healthy_within_ms) = (Channel::Notify, Some(20_000)));
    let mut bench = changed_to(slow);
    let started_ms = bench.now_ms;
    assert_eq!(bench.unit.plan(bench.now_ms), Some(Step::WaitUntil(started_ms + 20 * SECOND)));
    bench.pass(19 * SECOND);
    assert_eq!(bench.unit.observed.rolled_back, None);
    bench.pass(SECOND);
    // It goes on until what replaces it is there; it is not taken for something that is up.
    bench.check("STARTING, Install, STARTING");
    bench.install();
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    check_back(&mut bench, "was not up within 20 s");
}

#[test]
fn what_was_silent_for_too_long_goes_back_at_once() {
    let mut bench = changed_to(with("b", |spec| spec.channel = Channel::Notify));
    let last = Ended { silent: true, ..bench.ended(Exit::Signal(9), 0) };
    bench.told(1, Some(last));
    bench.check("Install, STARTING");
    bench.install();
    bench.end(0);
    check_back(&mut bench, "silent for too long");
}

#[test]
fn what_cannot_be_installed_or_started_goes_back() {
    let mut bench = verified();
    bench.see(wants(desired(2, good("b"), Run::Running)));
    bench.fail_install(true);
    assert_eq!(bench.unit.observed.rolled_back, None, "it may come yet, and nothing is lost meanwhile");
    bench.fail_install(false);
    assert_eq!((bench.unit.observed.phase, bench.reached()), (Phase::Running, 2));
    bench.see(Seen::Wired(Wiring::default(), None));
    assert_eq!(bench.unit.observed.rolled_back.as_ref().map(|back| back.error.as_str()), Some("no"));
    assert_eq!(bench.unit.plan(bench.now_ms), None, "what ran goes on");

    for may_heal in [true, false] {
        let mut bench = changed_to(good("b"));
        bench.end(0);
        let failure = Failure { error: "no such user".to_owned(), may_heal };
        bench.see(Seen::NotStarted(failure));
        check_back(&mut bench, "no such user");
    }
}

#[test]
fn what_has_nothing_to_go_back_to_is_as_it_was() {
    let mut bench = Bench::new(desired(1, good("a"), Run::Running));
    bench.install();
    bench.start();
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
    }
    bench.end(1);
    assert_eq!((bench.unit.observed.phase, &bench.unit.observed.rolled_back), (Phase::Backoff, &None));

    let mut bench = changed_to(with("b", |spec| spec.rollback = Rollback::Never));
    assert!(!bench.unit.observed.on_trial);
    bench.end(1);
    bench.pass(3_600 * SECOND);
    assert_eq!(bench.unit.observed.rolled_back, None);
}

#[test]
fn the_next_generation_is_a_new_try() {
    let mut bench = changed_to(with("b", |spec| spec.restart = Restart::Never));
    bench.end(1);
    check_back(&mut bench, "exit code 1");
    // The same again, by `run`.
    bench.see(wants(desired(3, with("b", |spec| spec.restart = Restart::Never), Run::Running)));
    assert_eq!((bench.unit.observed.rolled_back.as_ref(), bench.unit.asked()), (None, bench.unit.desired.as_ref()));
    bench.install();
    bench.end(0);
    bench.start();
    bench.pass(SECOND);
    bench.pass(10 * SECOND);
    assert_eq!((bench.unit.observed.phase, bench.reached()), (Phase::Running, 3));
    assert_eq!(
        bench.unit.verified().map(|verified| &verified.revision),
        bench.unit.asked().map(|asked| &asked.revision)
    );
}

#[test]
fn an_agent_that_was_killed_in_the_middle_goes_on_with_what_is_verified() {
    let mut bench = changed_to(with("b", |spec| spec.restart = Restart::Never));
    bench.end(1);
    // Before anything of the verified one runs: the generation is not reached.
    let kept = bench.unit.kept();
    assert_eq!(kept.observed.generation, 1);
    let mut after =
        Bench { unit: Unit::new(Some(kept), bench.now_ms), now_ms: bench.now_ms, pid: 9, trail: Vec::new() };
    let bad = with("b", |spec| spec.restart = Restart::Never);
    after.see(wants(desired(2, bad.clone(), Run::Running)));
    assert_eq!(after.unit.desired.as_ref().map(|desired| &desired.revision), Some(&revision(&good("a"))));
    let ended = Ended { exit: Exit::Code(1), ..after.ended(Exit::Code(1), 0) };
    after.see(Seen::Found(Found::Ended(Over { restarts: 0, last: ended })));
    after.install();
    after.start();
    after.pass(SECOND);
    assert_eq!((after.unit.observed.phase, after.reached()), (Phase::Running, 2));
    assert_eq!(after.unit.observed.revision, Some(revision(&good("a"))));
    assert_eq!(after.unit.observed.rolled_back.as_ref().map(|back| &back.revision), Some(&revision(&bad)));
}

#[test]
fn the_time_of_a_trial_goes_on_across_a_restart_of_the_agent() {
    let slow = with("b", |spec| (spec.channel, spec.healthy_within_ms) = (Channel::Notify, Some(20_000)));
    let bench = changed_to(slow.clone());
    let (kept, process) = (bench.unit.kept(), bench.unit.process());
    let now_ms = bench.now_ms + 15 * SECOND;
    let mut after = Bench { unit: Unit::new(Some(kept), now_ms), now_ms, pid: 9, trail: Vec::new() };
    after.see(wants(desired(2, slow.clone(), Run::Running)));
    after.see(Seen::Found(Found::Alive(revision(&slow), Told { process, ..Told::default() })));
    assert_eq!(after.unit.plan(now_ms), Some(Step::WaitUntil(now_ms + 5 * SECOND)));
    after.pass(5 * SECOND);
    assert!(after.unit.observed.rolled_back.is_some());
}

#[test]
fn what_can_be_changed_while_it_runs_is_part_of_what_is_gone_back_to() {
    let mut bench = verified();
    let patient = with("a", |spec| spec.grace_ms = 7);
    bench.see(wants(desired(2, patient.clone(), Run::Running)));
    assert_eq!(bench.unit.verified().map(|verified| &verified.spec), Some(&patient));
    bench.see(wants(desired(3, with("b", |spec| spec.restart = Restart::Never), Run::Running)));
    bench.install();
    bench.end(0);
    bench.start();
    bench.end(1);
    assert_eq!(bench.unit.desired.as_ref().map(|desired| &desired.spec), Some(&patient));
}

#[test]
fn a_reload_that_fails_goes_back_with_a_new_process() {
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
    bench.see(Seen::Reloaded(revision(&bad)));
    assert!(bench.unit.observed.on_trial);
    for restarts in 1..=3 {
        let last = bench.ended(Exit::Code(1), 0);
        bench.told(restarts, Some(last));
    }
    bench.trail.clear();
    bench.end(1);
    bench.install();
    wired(&mut bench);
    bench.check("Install, INSTALLING, STOPPED, start 0, STARTING");
    assert_eq!(bench.unit.observed.rolled_back.as_ref().map(|back| &back.revision), Some(&revision(&bad)));
}

#[test]
fn what_is_held_proves_nothing_and_stays_what_it_is() {
    let slow = with("b", |spec| (spec.channel, spec.healthy_within_ms) = (Channel::Notify, Some(20_000)));
    let mut bench = changed_to(slow.clone());
    let hold = Hold::new(HoldReason::Operator, 0);
    bench.see(Seen::Desired(Some(Box::new(desired(3, slow, Run::Running))), Some(hold)));
    bench.pass(3_600 * SECOND);
    assert_eq!(bench.unit.observed.rolled_back, None);
}

#[test]
fn a_task_that_is_done_is_not_done_again() {
    let task = |spec: &mut YunoSpec| spec.restart = Restart::OnFailure;
    let mut bench = Bench::new(desired(1, with("a", task), Run::Running));
    bench.install();
    bench.start();
    bench.pass(SECOND);
    bench.pass(10 * SECOND);
    assert!(bench.unit.verified().is_some());
    bench.end(0);
    assert_eq!((bench.unit.observed.phase, bench.unit.verified()), (Phase::Stopped, None));
}

#[test]
fn a_reboot_in_the_middle_of_a_trial_is_nobodys_fault() {
    let mut bench = changed_to(good("b"));
    let last = Ended { with_host: true, ..bench.ended(Exit::Unknown, 0) };
    bench.see(Seen::Ended(Over { restarts: 0, last }));
    assert_eq!(bench.unit.observed.rolled_back, None);
    bench.check("start 0, STARTING");
}
