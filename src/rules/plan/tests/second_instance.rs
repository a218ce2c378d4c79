//! Cases of replacements without a break.

use muster_topics::unit::{Replace, Run};

use super::*;

/// It starts first, goes back by itself, and its revisions are verified after five seconds.
fn first(artifact: &str) -> Spec {
    spec(artifact, |spec| {
        (spec.replace, spec.common.rollback) = (Replace::StartFirst, Rollback::Auto);
        (spec.common.verify_after_ms, spec.program.healthy_within_ms, spec.program.grace_ms) =
            (Some(5_000), Some(20_000), 7_000);
    })
}

/// One that runs, and is verified.
fn running(run: Run) -> Bench {
    running_as(first("a"), run)
}

fn running_as(spec: Spec, run: Run) -> Bench {
    let mut bench = Bench::new(desired(1, spec, run));
    bench.install();
    bench.start();
    bench.pass(SECOND);
    bench.pass(5 * SECOND);
    assert!(bench.unit.verified().is_some());
    bench.trail.clear();
    bench
}

impl Bench {
    fn beside(&mut self, seen: UnitEvent) {
        self.see(UnitEvent::Second(Box::new(seen)));
    }

    fn second_reports(&mut self, pid: i32, restarts: u32, ready: bool) {
        let process = Some(ProcessId { pid, start_ticks: 1, started_ms: self.now_ms });
        self.beside(UnitEvent::Told(ShimReport { process, restarts, ready, ..ShimReport::default() }));
    }

    /// Another revision is desired, installed, and started beside.
    fn replace(&mut self, spec: Spec, run: Run) {
        self.see(wants(desired(2, spec, run)));
        self.install();
        self.beside(UnitEvent::Started);
        self.second_reports(99, 0, false);
    }

    fn second_ends(&mut self, code: i32) {
        let last = self.ended(Exit::Code(code), 0);
        self.beside(UnitEvent::Ended(InstanceEnd { restarts: 3, last }));
    }

    fn shown(&self) -> Option<(Option<i32>, bool)> {
        self.unit.observed.beside.as_ref().map(|beside| (beside.pid, beside.leaving))
    }

    fn runs(&self) -> (Option<i32>, Option<&Digest>) {
        (self.unit.observed.instance().pid, self.unit.observed.revision.as_ref())
    }

    fn again(&mut self) {
        let (row, kept) = (self.unit.asked().cloned().unwrap(), self.unit.kept());
        let kept = serde_json::from_str::<RestoredUnit>(&serde_json::to_string(&kept).unwrap()).unwrap();
        let verified = self.unit.trial.verified.clone();
        self.unit = PlannedUnit::new(Some(RestoredUnit { verified, ..kept }), self.now_ms);
        self.trail.clear();
        self.see(wants(row));
    }
}

fn revision(artifact: &str) -> Digest {
    first(artifact).revision().unwrap()
}

/// Something of a process with this number.
fn alive(pid: i32, started_ms: Millis) -> ShimReport {
    ShimReport { process: Some(ProcessId { pid, start_ticks: 1, started_ms }), ..ShimReport::default() }
}

#[test]
fn old_instance_ends_once_new_one_is_up() {
    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    bench.check("Install, RUNNING, start beside, RUNNING");
    assert_eq!((bench.shown(), bench.runs()), (Some((Some(99), false)), (Some(1), Some(&revision("a")))));
    assert_eq!((bench.reached(), bench.unit.observed.trial.is_on()), (1, true));
    assert_eq!(bench.unit.plan(bench.now_ms), Some(PlanStep::WaitUntil(bench.now_ms + SECOND)));
    bench.pass(SECOND);
    bench.check("stop beside Term 7000, RUNNING");
    assert_eq!((bench.shown(), bench.runs()), (Some((Some(1), true)), (Some(99), Some(&revision("b")))));
    assert_eq!((bench.unit.slot(), bench.reached()), (Slot::Second, 1));
    // What ignored its first end is asked again, without any grace.
    bench.pass(7_000 + STOP_SLACK_MS);
    bench.check("stop beside Kill 0, RUNNING");
    bench.second_ends(0);
    assert_eq!((bench.shown(), bench.reached(), bench.unit.observed.exit()), (None, 2, None));
    assert_eq!(bench.unit.verified().map(|verified| verified.revision.clone()), Some(revision("b")));
    assert_eq!(bench.unit.plan(bench.now_ms), None);
}

#[test]
fn candidate_with_notify_is_up_once_ready() {
    let notify = |artifact: &str| {
        let Spec::Yuno(mut spec) = first(artifact) else { panic!("a yuno") };
        spec.channel = Channel::Notify;
        Spec::Yuno(spec)
    };
    let mut bench = running_as(first("a"), Run::Running);
    bench.replace(notify("b"), Run::Running);
    bench.trail.clear();
    bench.pass(10 * SECOND);
    bench.check("RUNNING");
    bench.second_reports(99, 0, true);
    bench.check("stop beside Term 7000, RUNNING");
}

/// Why one fails, and how that comes about.
type Case = (&'static str, fn(&mut Bench));

#[test]
fn failed_candidate_leaves_old_instance_running() {
    // It ends for good, is not up in time, cannot be started.
    let cases: [Case; 4] = [
        ("ended unexpectedly: exit code 3", |bench| bench.second_ends(3)),
        ("it did not come up within 20 s", |bench| {
            // It begins anew again and again.
            for count in 1..=21 {
                bench.pass(SECOND - 1);
                bench.second_reports(99 + count, 1, false);
            }
        }),
        ("ended unexpectedly: exit code 3, because its watchdog was not answered", |bench| {
            let last = Some(InstanceExit { silent: true, ..bench.ended(Exit::Code(3), 0) });
            bench.beside(UnitEvent::Told(ShimReport { restarts: 1, last, ..alive(100, bench.now_ms) }));
        }),
        ("no", |bench| {
            *bench = running(Run::Running);
            bench.see(wants(desired(2, first("b"), Run::Running)));
            bench.install();
            bench.trail.clear();
            bench.beside(UnitEvent::NotStarted(Failure { error: "no".into(), may_heal: true }));
        }),
    ];
    for (why, fail) in cases {
        let mut bench = running(Run::Running);
        bench.replace(first("b"), Run::Running);
        bench.trail.clear();
        fail(&mut bench);
        let back = bench.unit.observed.rolled_back().cloned().unwrap_or_else(|| panic!("{why}: {:?}", bench.unit));
        assert_eq!((back.error.cause.as_str(), &back.revision, &back.to), (why, &revision("b"), &revision("a")));
        assert_eq!(bench.runs(), (Some(1), Some(&revision("a"))));
        assert_eq!(bench.unit.observed.phase(), Phase::Running);
        if bench.shown().is_some() {
            assert_eq!(bench.trail.iter().filter(|step| *step == "stop beside Term 7000").count(), 1, "{why}");
            bench.second_ends(0);
        }
        bench.see(UnitEvent::Wired(EndpointWiring::default(), None));
        assert_eq!((bench.reached(), bench.shown()), (2, None));
        let touched = |step: &String| step.starts_with("start") || step.starts_with("stop Term");
        assert!(!bench.trail.iter().any(touched), "{why}: {:?}", bench.trail);
    }
}

#[test]
fn failed_candidate_without_verified_revision_fails_unit() {
    let never = |artifact: &str| {
        let Spec::Yuno(mut spec) = first(artifact) else { panic!("a yuno") };
        spec.common.rollback = Rollback::Never;
        Spec::Yuno(spec)
    };
    let mut bench = running_as(never("a"), Run::Running);
    bench.replace(never("b"), Run::Running);
    bench.trail.clear();
    bench.second_ends(3);
    bench.check("FAILED");
    assert_eq!((bench.runs(), bench.reached()), ((Some(1), Some(&revision("a"))), 2));
    let error = bench.unit.observed.error.clone().unwrap();
    assert!(
        error.cause.starts_with("ended unexpectedly: exit code 3; revision") && error.cause.ends_with("keeps running"),
        "{error}"
    );
    assert_eq!(bench.unit.plan(bench.now_ms), None);
    // Also after a start of the agent.
    bench.again();
    bench.beside(UnitEvent::Found(FoundInstance::Nothing));
    bench.see(UnitEvent::Found(FoundInstance::Alive(revision("a"), alive(1, 0))));
    bench.check("Adopt, FAILED");
    // The next wish is a new try.
    bench.see(wants(desired(3, never("b"), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, start beside, RUNNING");
}

#[test]
fn replaced_instance_ends_by_its_own_spec() {
    let mut bench = running(Run::Running);
    let Spec::Yuno(mut other) = first("b") else { panic!("a yuno") };
    (other.program.grace_ms, other.program.stop_signal) = (1, Some(Signal::Int));
    bench.replace(Spec::Yuno(other), Run::Running);
    bench.trail.clear();
    bench.pass(SECOND);
    bench.check("stop beside Term 7000, RUNNING");
}

#[test]
fn candidate_takes_over_if_old_instance_ends() {
    let mut bench = running(Run::Running);
    bench.see(wants(desired(2, first("b"), Run::Running)));
    bench.install();
    bench.trail.clear();
    // While it is being started, even.
    bench.end(1);
    bench.check("STARTING");
    assert_eq!((bench.unit.slot(), bench.shown()), (Slot::Second, None));
    bench.start();
    bench.pass(SECOND);
    bench.check("STARTING, RUNNING");
    assert_eq!(bench.reached(), 2);
}

#[test]
fn stopped_or_held_unit_has_no_candidate() {
    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    bench.trail.clear();
    bench.see(wants(desired(3, first("b"), Run::Stopped)));
    bench.check("stop beside Term 7000, stop Term 7000, STOPPING");
    bench.end(0);
    bench.check("STOPPING");
    assert_eq!(bench.reached(), 1);
    bench.second_ends(0);
    bench.check("STOPPED");
    assert_eq!(bench.reached(), 3);

    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    bench.trail.clear();
    let hold = Some(Hold::new(HoldReason::Operator, 0));
    bench.see(UnitEvent::Desired(Some(Box::new(desired(3, first("b"), Run::Running))), hold));
    bench.check("stop beside Term 7000, RUNNING");
    bench.second_ends(0);
    assert_eq!((bench.runs(), bench.reached()), ((Some(1), Some(&revision("a"))), 3));
}

#[test]
fn new_generation_ends_candidate_first() {
    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    bench.trail.clear();
    bench.see(wants(desired(3, first("c"), Run::Running)));
    bench.install();
    bench.check("stop beside Term 7000, Install, RUNNING");
    bench.second_ends(0);
    bench.check("start beside, RUNNING");
    // Back to what runs.
    bench.see(wants(desired(4, first("a"), Run::Running)));
    bench.check("RUNNING");
    bench.beside(UnitEvent::Started);
    bench.check("stop beside Term 7000, RUNNING");
    bench.second_ends(0);
    assert_eq!((bench.runs(), bench.reached()), ((Some(1), Some(&revision("a"))), 4));
}

#[test]
fn only_one_instance_plays() {
    let speaks = |artifact: &str| {
        let Spec::Yuno(mut spec) = first(artifact) else { panic!("a yuno") };
        (spec.channel, spec.program.stop_signal) = (Channel::Lines, Some(Signal::Term));
        Spec::Yuno(spec)
    };
    let connection = || PlayConnection { number: 1, playing: false, can: vec![muster_topics::channel::Ability::Play] };
    let told = |pid| ShimReport { ready: true, connection: Some(connection()), ..alive(pid, 0) };
    let mut bench = Bench::new(desired(1, speaks("a"), Run::Playing));
    bench.install();
    bench.see(UnitEvent::Started);
    bench.see(UnitEvent::Told(told(1)));
    bench.see(UnitEvent::Played { ask: 0, answer: Ok(()) });
    bench.pass(6 * SECOND);
    assert_eq!(bench.unit.observed.phase(), Phase::Playing);
    bench.see(wants(desired(2, speaks("b"), Run::Playing)));
    bench.install();
    bench.trail.clear();
    bench.beside(UnitEvent::Started);
    bench.check("PLAYING");
    bench.beside(UnitEvent::Told(told(99)));
    bench.check("stop beside Term 7000, RUNNING");
    bench.second_ends(0);
    bench.check("Play { playing: true, ask: 1 }, RUNNING");
    bench.see(UnitEvent::Played { ask: 1, answer: Ok(()) });
    bench.check("PLAYING");
    assert_eq!(bench.reached(), 2);
}

#[test]
fn instance_not_up_is_ended_before_replacement() {
    let mut bench = Bench::new(desired(1, first("a"), Run::Running));
    bench.install();
    bench.start();
    bench.trail.clear();
    bench.see(wants(desired(2, first("b"), Run::Running)));
    bench.install();
    bench.check("Install, STARTING, stop Term 7000, STOPPING");

    let mut bench = running(Run::Running);
    bench.see(wants(Desired { frozen: true, ..desired(2, first("b"), Run::Running) }));
    bench.install();
    bench.check("Install, RUNNING, stop Term 7000, STOPPING");
}

#[test]
fn restored_unit_finds_both_instances() {
    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    let started_ms = bench.now_ms;
    bench.again();
    bench.beside(UnitEvent::Found(FoundInstance::Alive(revision("b"), alive(99, started_ms))));
    bench.check("Adopt, RUNNING");
    bench.see(UnitEvent::Found(FoundInstance::Alive(revision("a"), alive(1, 0))));
    assert_eq!((bench.shown(), bench.runs().0), (Some((Some(99), false)), Some(1)));
    bench.pass(SECOND);
    bench.check("RUNNING, stop beside Term 7000, RUNNING");
    // The old one goes on to end, also if nobody knows whether it was asked to.
    bench.again();
    bench.beside(UnitEvent::Found(FoundInstance::Alive(revision("a"), alive(1, 0))));
    bench.see(UnitEvent::Found(FoundInstance::Alive(revision("b"), alive(99, started_ms))));
    bench.check("Adopt, RUNNING, stop beside Term 7000, RUNNING");
    assert_eq!(bench.unit.slot(), Slot::Second);
}

#[test]
fn rebooted_host_has_no_instances() {
    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    bench.again();
    let ended = |bench: &Bench| InstanceExit { with_host: true, ..bench.ended(Exit::Unknown, 0) };
    let over = InstanceEnd { restarts: 0, last: ended(&bench) };
    bench.beside(UnitEvent::Found(FoundInstance::Ended(over.clone())));
    bench.see(UnitEvent::Found(FoundInstance::Ended(over)));
    bench.install();
    bench.check("Adopt, RUNNING, Install, INSTALLING, start 0, STARTING");
    assert_eq!((bench.shown(), bench.unit.observed.revision.as_ref()), (None, Some(&revision("b"))));
}

#[test]
fn lost_candidate_is_started_again() {
    let mut bench = running(Run::Running);
    bench.see(wants(desired(2, first("b"), Run::Running)));
    bench.install();
    bench.again();
    bench.beside(UnitEvent::Found(FoundInstance::Nothing));
    bench.see(UnitEvent::Found(FoundInstance::Alive(revision("a"), alive(1, 0))));
    bench.install();
    bench.check("Adopt, RUNNING, Install, RUNNING, start beside, RUNNING");
}

#[test]
fn unknown_second_instance_is_ended() {
    for (found, takes_over) in [("b", true), ("c", false)] {
        let mut bench = Bench { unit: PlannedUnit::new(None, 0), now_ms: 0, pid: 0, trail: Vec::new() };
        bench.see(wants(desired(2, first("b"), Run::Running)));
        bench.beside(UnitEvent::Found(FoundInstance::Alive(revision(found), alive(99, 0))));
        bench.see(UnitEvent::Found(FoundInstance::Nothing));
        assert_eq!(bench.runs().0, takes_over.then_some(99), "{found}");
        assert_eq!(bench.shown(), (!takes_over).then_some((Some(99), true)), "{found}");
    }
}

#[test]
fn leaving_revision_is_not_started_again() {
    let mut bench = running(Run::Running);
    bench.replace(first("b"), Run::Running);
    bench.pass(SECOND);
    bench.trail.clear();
    // The new one fails for good, while the old one takes its time.
    let last = bench.ended(Exit::Code(3), 0);
    bench.see(UnitEvent::Ended(InstanceEnd { restarts: 3, last }));
    bench.see(UnitEvent::Wired(EndpointWiring::default(), None));
    bench.install();
    bench.check("Install, STOPPING");
    assert_eq!(bench.unit.desired.as_ref().map(|desired| &desired.revision), Some(&revision("a")));
    bench.second_ends(0);
    bench.check("start 0, STARTING");
}
