//! Cases of the planner: each a script of observations, with the expected step and
//! phase.

mod clock;
mod contained;
mod content;
mod gated;
mod held;
mod probed;
mod restored;
mod rollback;
mod second_instance;
mod wired;

use muster_topics::{
    channel::Ability,
    probe::Which,
    signal::Signal,
    unit::{Channel, Exit, HoldReason, Restart, Rollback, Run, Spec, YunoSpec},
};

use super::*;
use crate::{
    backoff::{GOOD_AFTER_MS, RESTARTS_MAX},
    probe::ProbeVerdict,
};

const SECOND: Millis = 1_000;

fn spec(artifact: &str, change: impl FnOnce(&mut YunoSpec)) -> Spec {
    let sha256 = Digest::of(artifact.as_bytes());
    let text = format!(r#"{{"artifact":{{"sha256":"{sha256}","size_bytes":1,"role":"a","version":"1"}}}}"#);
    let mut spec: YunoSpec = serde_json::from_str(&text).unwrap();
    // What is not about that does not wait for it.
    (spec.common.rollback, spec.common.verify_after_ms) = (Rollback::Never, Some(0));
    change(&mut spec);
    Spec::Yuno(spec)
}

fn desired(generation: u64, spec: Spec, run: Run) -> Desired {
    Desired { generation, revision: spec.revision().unwrap(), spec: spec.into(), run, frozen: false }
}

/// What asks to end; `own` is what the program says itself.
fn by(signal: Option<Signal>) -> String {
    signal.map_or_else(|| "own".to_owned(), |signal| format!("{signal:?}"))
}

fn wants(desired: Desired) -> UnitEvent {
    UnitEvent::Desired(Some(Box::new(desired)), None)
}

/// A unit on a host where everything works at once, unless a test says otherwise.
struct Bench {
    unit: PlannedUnit,
    now_ms: Millis,
    pid: i32,
    trail: Vec<String>,
}

impl Bench {
    fn new(desired: Desired) -> Self {
        let mut bench = Self { unit: PlannedUnit::new(None, 0), now_ms: 0, pid: 0, trail: Vec::new() };
        bench.see(wants(desired));
        bench.see(UnitEvent::Found(FoundInstance::Nothing));
        bench
    }

    fn running() -> Self {
        let mut bench = Self::new(desired(1, spec("a", |_| ()), Run::Running));
        bench.install();
        bench.start();
        bench.pass(SECOND);
        bench.trail.clear();
        bench
    }

    fn see(&mut self, seen: UnitEvent) {
        self.unit.observe(seen, self.now_ms);
        while let Some(step) = self.unit.plan(self.now_ms) {
            if matches!(step, PlanStep::WaitUntil(_)) {
                break;
            }
            self.unit.observe(UnitEvent::Began(step), self.now_ms);
            self.trail.push(match step {
                PlanStep::Stop { signal, grace_ms } => format!("stop {} {grace_ms}", by(signal)),
                PlanStep::StopSecond { signal, grace_ms } => format!("stop beside {} {grace_ms}", by(signal)),
                PlanStep::StartSecond => "start beside".to_owned(),
                PlanStep::Start { attempts } => format!("start {attempts}"),
                other => format!("{other:?}"),
            });
        }
        let phase = format!("{:?}", self.unit.observed.phase()).to_uppercase();
        if self.trail.last() != Some(&phase) {
            self.trail.push(phase);
        }
    }

    fn install(&mut self) {
        let revision = self.unit.desired.as_ref().unwrap().revision.clone();
        self.see(UnitEvent::Installed(revision));
    }

    fn fail_install(&mut self, may_heal: bool) {
        let revision = self.unit.desired.as_ref().unwrap().revision.clone();
        let failure = Failure { error: "no".into(), may_heal };
        self.see(UnitEvent::NotInstalled { revision, failure, random: 1.0 });
    }

    fn told(&mut self, restarts: u32, last: Option<InstanceExit>) {
        self.pid += 1;
        let process = Some(ProcessId { pid: self.pid, start_ticks: 1, started_ms: self.now_ms });
        self.see(UnitEvent::Told(ShimReport { process, restarts, last, ..ShimReport::default() }));
    }

    fn start(&mut self) {
        self.see(UnitEvent::Started);
        self.told(0, None);
    }

    fn ended(&self, exit: Exit, up_ms: Millis) -> InstanceExit {
        InstanceExit::new(exit, Some(self.now_ms - up_ms), self.now_ms)
    }

    fn end(&mut self, code: i32) {
        let last = self.ended(Exit::Code(code), 0);
        let restarts = self.unit.kept().restarts;
        self.see(UnitEvent::Ended(InstanceEnd { restarts, last }));
    }

    fn pass(&mut self, ms: Millis) {
        self.now_ms += ms;
        self.see(UnitEvent::Tick);
    }

    #[track_caller]
    fn check(&mut self, trail: &str) {
        assert_eq!(std::mem::take(&mut self.trail).join(", "), trail);
    }

    fn reached(&self) -> u64 {
        self.unit.observed.generation
    }
}

#[test]
fn new_unit_is_installed_started_and_runs() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.check("Adopt, ABSENT, Install, INSTALLING");
    bench.install();
    bench.check("start 0, STARTING");
    bench.start();
    assert_eq!(bench.unit.plan(bench.now_ms), Some(PlanStep::WaitUntil(SECOND)));
    assert_eq!(bench.reached(), 0);
    bench.pass(SECOND);
    bench.check("STARTING, RUNNING");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (1, None));
}

#[test]
fn unit_with_notify_runs_once_ready() {
    let speaks = |spec: &mut muster_topics::unit::YunoSpec| spec.channel = Channel::Notify;
    let mut bench = Bench::new(desired(1, spec("a", speaks), Run::Running));
    bench.install();
    bench.start();
    // However long that takes: who keeps it ends it when its time is over.
    bench.pass(1_000 * SECOND);
    bench.check("Adopt, ABSENT, Install, INSTALLING, start 0, STARTING");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (0, None));
    let told = |bench: &Bench, ready| {
        let process = Some(ProcessId { pid: 7, start_ticks: 1, started_ms: bench.now_ms });
        UnitEvent::Told(ShimReport { process, ready, status: Some("at work".to_owned()), ..ShimReport::default() })
    };
    let seen = told(&bench, true);
    bench.see(seen);
    bench.check("RUNNING");
    assert_eq!((bench.reached(), bench.unit.observed.instance().status.as_deref()), (1, Some("at work")));
    // Started again by itself, it has to say so again.
    let seen = told(&bench, false);
    bench.see(seen);
    bench.check("STARTING");
    let seen = told(&bench, true);
    bench.see(seen);
    bench.check("RUNNING");
    // One that runs since before it was asked to is what it was until it is replaced.
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("a", speaks), Run::Running)));
    bench.check("Install, RUNNING");
    bench.install();
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("start 0, STARTING");
    assert_eq!(bench.unit.observed.instance().status, None);
}

#[test]
fn daemonised_program_fails_with_hint() {
    for restart in [Restart::Always, Restart::Never] {
        let mut bench = Bench::new(desired(1, spec("a", |spec| spec.program.restart = restart), Run::Running));
        bench.install();
        bench.start();
        bench.pass(SECOND);
        let last = InstanceExit { left_some: true, ..bench.ended(Exit::Code(0), 0) };
        bench.see(UnitEvent::Ended(InstanceEnd { restarts: 3, last }));
        let observed = &bench.unit.observed;
        let phase = if restart == Restart::Always { Phase::Backoff } else { Phase::Stopped };
        assert_eq!((observed.phase(), observed.exit()), (phase, Some(Exit::Code(0))));
        let hint = observed.error.as_ref().unwrap().hint.as_deref().unwrap();
        assert!(hint.starts_with("run it in the foreground"), "{observed:?}");
    }
}

#[test]
fn forking_program_runs_after_fork() {
    let forking = |spec: &mut YunoSpec| spec.process.forking = Some(<_>::default());
    let mut bench = Bench::new(desired(1, spec("a", forking), Run::Running));
    bench.install();
    bench.start();
    bench.pass(10 * SECOND);
    assert_eq!(bench.unit.observed.phase(), Phase::Starting, "its first process is still there");
    let process = Some(ProcessId { pid: 8, start_ticks: 1, started_ms: bench.now_ms });
    bench.see(UnitEvent::Told(ShimReport { process, ready: true, ..ShimReport::default() }));
    assert_eq!(bench.unit.observed.phase(), Phase::Running);
}

#[test]
fn last_end_is_reported_while_it_matters() {
    let mut bench = Bench::running();
    let last = InstanceExit {
        oom_killed: true,
        last_lines: Some("no more memory".to_owned()),
        ..bench.ended(Exit::Signal(9), 0)
    };
    bench.see(UnitEvent::Ended(InstanceEnd { restarts: 3, last }));
    bench.check("BACKOFF");
    let observed = bench.unit.observed.clone();
    let end = observed.last_end.unwrap();
    assert!(end.oom_killed && !end.core_dumped);
    assert_eq!(observed.last_lines.as_deref(), Some("no more memory"));
    assert_eq!(
        observed.error.as_ref().map(|error| error.cause.as_str()),
        Some("ended unexpectedly: signal 9 (SIGKILL), out of memory")
    );
    bench.pass(30 * SECOND);
    bench.start();
    assert!(bench.unit.observed.last_lines.is_some(), "it is not up yet");
    bench.pass(SECOND);
    bench.check("start 3, STARTING, RUNNING");
    assert_eq!(bench.unit.observed.last_lines, None);
}

#[test]
fn stopped_unit_is_installed() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Stopped));
    bench.install();
    bench.check("Adopt, ABSENT, Install, INSTALLING, STOPPED");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (1, None));
}

#[test]
fn new_revision_is_installed_before_old_one_stops() {
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.check("Install, RUNNING");
    assert_eq!(bench.reached(), 1, "what runs is still the old one");
    bench.install();
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("start 0, STARTING");
    bench.start();
    bench.pass(SECOND);
    bench.check("STARTING, RUNNING");
    assert_eq!((bench.reached(), bench.unit.observed.attempts), (2, 0));
}

#[test]
fn failed_install_leaves_old_revision_running() {
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.fail_install(false);
    bench.check("Install, RUNNING, FAILED");
    assert_eq!((bench.reached(), bench.unit.observed.instance().pid), (2, Some(1)));
    assert!(bench.unit.observed.error.as_ref().unwrap().cause.contains("keeps running"));
    bench.see(wants(desired(3, spec("a", |_| ()), Run::Running)));
    bench.check("RUNNING");
    assert_eq!((bench.reached(), &bench.unit.observed.error), (3, &None));
}

#[test]
fn in_place_change_keeps_the_process() {
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("a", |spec| spec.program.grace_ms = 5), Run::Running)));
    bench.check("RUNNING");
    assert_eq!(bench.reached(), 2);
    bench.see(wants(desired(3, spec("a", |spec| spec.program.grace_ms = 5), Run::Stopped)));
    bench.check("stop Term 5, STOPPING");
}

#[test]
fn unit_that_does_not_end_is_killed() {
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
    bench.check("stop Term 30000, STOPPING");
    bench.pass(59 * SECOND);
    bench.check("STOPPING");
    bench.pass(2 * SECOND);
    bench.check("stop Kill 0, STOPPING");
    bench.end(0);
    bench.check("STOPPED");
}

#[test]
fn crashes_are_counted_and_reset_after_stable_run() {
    let mut bench = Bench::running();
    // The shim starts it again by itself.
    let ended = bench.ended(Exit::Signal(11), SECOND);
    bench.told(1, Some(ended));
    bench.check("STARTING");
    assert_eq!((bench.unit.observed.attempts, bench.unit.observed.exit()), (1, Some(Exit::Signal(11))));
    bench.pass(SECOND);
    bench.check("RUNNING");
    assert_eq!(bench.unit.plan(bench.now_ms), Some(PlanStep::WaitUntil(bench.now_ms - SECOND + GOOD_AFTER_MS)));
    bench.pass(GOOD_AFTER_MS);
    assert_eq!((bench.unit.observed.attempts, bench.unit.plan(bench.now_ms)), (0, None));
}

#[test]
fn crash_loop_backs_off_and_is_held() {
    let mut bench = Bench::running();
    for restarts in 1..=3 {
        let ended = bench.ended(Exit::Code(3), 0);
        bench.told(restarts, Some(ended));
    }
    bench.trail.clear();
    bench.end(3);
    bench.check("BACKOFF");
    let observed = &bench.unit.observed;
    assert_eq!((observed.attempts, observed.retry_ms()), (3, Some(bench.now_ms + 30 * SECOND)));
    assert_eq!(observed.error.as_ref().map(|error| error.cause.as_str()), Some("ended unexpectedly: exit code 3"));
    bench.pass(30 * SECOND);
    bench.check("start 3, STARTING");
    while bench.unit.hold.is_none() {
        bench.start();
        bench.end(3);
        bench.pass(16 * 60 * SECOND);
        assert!(bench.unit.observed.attempts <= RESTARTS_MAX);
    }
    assert_eq!(bench.unit.hold.as_ref().unwrap().reason, HoldReason::Broken);
    assert_eq!(bench.unit.observed.attempts, RESTARTS_MAX);
    assert_eq!((bench.unit.observed.phase(), bench.unit.plan(bench.now_ms)), (Phase::Failed, None));
    assert!(bench.unit.observed.error.as_ref().unwrap().hint.is_some());
    // To run it makes a new generation, without the hold.
    bench.trail.clear();
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Running)));
    bench.check("start 0, STARTING");
}

#[test]
fn unreported_restarts_are_counted() {
    let mut bench = Bench::running();
    let last = bench.ended(Exit::Code(3), 0);
    bench.see(UnitEvent::Ended(InstanceEnd { restarts: 3, last }));
    bench.check("BACKOFF");
    assert_eq!(bench.unit.observed.attempts, 3);
}

#[test]
fn exit_status_decides_restart() {
    for (restart, code, trail) in [
        (Restart::Always, 0, "BACKOFF"),
        (Restart::OnFailure, 0, "STOPPED"),
        (Restart::OnFailure, 1, "BACKOFF"),
        (Restart::Never, 0, "STOPPED"),
        (Restart::Never, 1, "FAILED"),
    ] {
        let mut bench = Bench::new(desired(1, spec("a", |spec| spec.program.restart = restart), Run::Running));
        bench.install();
        bench.start();
        bench.unit.observed.attempts = 3;
        bench.trail.clear();
        bench.end(code);
        bench.check(trail);
        assert_eq!(bench.reached(), 1);
    }
}

#[test]
fn failed_install_is_retried_with_backoff() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.trail.clear();
    for seconds in [1, 2, 4, 8] {
        bench.fail_install(true);
        assert_eq!(bench.unit.observed.retry_ms(), Some(bench.now_ms + seconds * SECOND));
        bench.check("BACKOFF");
        bench.pass(seconds * SECOND);
        bench.check("Install, INSTALLING");
    }
    bench.fail_install(false);
    bench.check("FAILED");
    assert_eq!(bench.unit.observed.error.as_ref().map(|error| error.cause.as_str()), Some("no"));
    bench.pass(SECOND);
    bench.check("FAILED");
}

#[test]
fn failed_start_is_retried_or_fails() {
    for (may_heal, trail) in [(true, "BACKOFF"), (false, "FAILED")] {
        let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
        bench.install();
        bench.trail.clear();
        bench.see(UnitEvent::NotStarted(Failure { error: "not executable".into(), may_heal }));
        bench.check(trail);
        assert_eq!(bench.unit.observed.error.as_ref().map(|error| error.cause.as_str()), Some("not executable"));
        // Stopped, it is what it is: there, and not running.
        bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
        bench.check("STOPPED");
    }
}

#[test]
fn failures_of_older_revision_are_ignored() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.install();
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.trail.clear();
    bench.see(UnitEvent::NotStarted(Failure { error: "not executable".into(), may_heal: false }));
    bench.check("Install, INSTALLING");
    assert_eq!(bench.unit.observed.error, None);
    // Nor does the late report of a download that was given up.
    let revision = spec("a", |_| ()).revision().unwrap();
    let failure = Failure { error: "gone".into(), may_heal: false };
    bench.see(UnitEvent::NotInstalled { revision, failure, random: 0.0 });
    bench.check("INSTALLING");
}

#[test]
fn interrupted_start_is_looked_up() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.install();
    bench.trail.clear();
    bench.see(UnitEvent::StartUnknown);
    bench.check("Adopt, STARTING");
    let revision = bench.unit.desired.as_ref().unwrap().revision.clone();
    let process = Some(ProcessId { pid: 9, start_ticks: 1, started_ms: 0 });
    bench.now_ms = 5 * SECOND;
    bench.see(UnitEvent::Found(FoundInstance::Alive(revision, ShimReport { process, ..ShimReport::default() })));
    bench.check("RUNNING");
    assert_eq!(bench.unit.observed.instance().pid, Some(9));
}

#[test]
fn failed_look_up_starts_nothing() {
    let mut bench = Bench { unit: PlannedUnit::new(None, 0), now_ms: 0, pid: 0, trail: Vec::new() };
    bench.see(wants(desired(1, spec("a", |_| ()), Run::Running)));
    for _ in 0..3 {
        bench.see(UnitEvent::NotLookedUp { error: "no".into() });
        bench.pass(ADOPT_AGAIN_MS);
    }
    bench.check("Adopt, ABSENT, Adopt, ABSENT, Adopt, ABSENT, Adopt, ABSENT");
}

#[test]
fn removed_unit_is_stopped_and_removed() {
    let mut bench = Bench::running();
    bench.see(UnitEvent::Desired(None, None));
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("Remove, ABSENT");
    bench.see(UnitEvent::NotRemoved { error: "busy".into() });
    bench.check("ABSENT");
    bench.pass(ADOPT_AGAIN_MS);
    bench.check("Remove, ABSENT");
}

#[test]
fn config_change_reloads_running_unit() {
    let reloads = |spec: &mut muster_topics::unit::YunoSpec| spec.reload = muster_topics::reload::Reload::Signal;
    let next = |epoch: u64| {
        spec("a", move |spec| {
            reloads(spec);
            spec.common.restart_epoch = epoch;
        })
    };
    let mut bench = Bench::running();
    let change = desired(2, next(1), Run::Running);
    let revision = change.revision.clone();
    bench.see(wants(change));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    assert_eq!(bench.reached(), 1, "it does not exist yet");
    bench.see(UnitEvent::Reloaded(revision.clone()));
    assert_eq!((bench.reached(), bench.unit.observed.revision.as_ref()), (2, Some(&revision)));
    bench.trail.clear();
    // More than configs: it needs a new process after all.
    let other = desired(3, next(2), Run::Running);
    let revision = other.revision.clone();
    bench.see(wants(other));
    bench.install();
    bench.see(UnitEvent::NotReloaded(revision));
    bench.check("Install, RUNNING, Reload, RUNNING, stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("start 0, STARTING");
    bench.start();
    bench.pass(SECOND);
    bench.trail.clear();
    // It ends in the middle: what comes next is the new revision anyway.
    bench.see(wants(desired(4, next(3), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    bench.end(0);
    bench.check("start 0, STARTING");
}

#[test]
fn changed_limits_reach_running_yuno() {
    let limited = |pids: u32| spec("a", move |spec| spec.program.limits.pids = Some(pids));
    let mut bench = Bench::running();
    let change = desired(2, limited(5), Run::Running);
    let revision = change.revision.clone();
    bench.see(wants(change));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    bench.see(UnitEvent::Reloaded(revision));
    assert_eq!((bench.reached(), bench.unit.observed.instance().pid), (2, Some(1)));
    bench.trail.clear();
    // Its host has no cgroups for it.
    let change = desired(3, limited(6), Run::Running);
    let revision = change.revision.clone();
    bench.see(wants(change));
    bench.install();
    bench.see(UnitEvent::NotReloaded(revision));
    bench.check("Install, RUNNING, Reload, RUNNING, stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("start 0, STARTING");
    bench.start();
    bench.pass(SECOND);
    bench.trail.clear();
    // What differs in more is not tried.
    bench.see(wants(desired(4, spec("a", |spec| spec.program.args.push("x".to_owned())), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, stop Term 30000, STOPPING");
}

#[test]
fn changed_watched_file_restarts_unit() {
    let mut bench = Bench::running();
    bench.see(UnitEvent::Outdated);
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.start();
    bench.pass(SECOND);
    bench.check("start 0, STARTING, RUNNING");
    assert_eq!((bench.unit.observed.attempts, bench.unit.plan(bench.now_ms)), (0, None));
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
    bench.end(0);
    bench.trail.clear();
    bench.see(UnitEvent::Outdated);
    bench.check("STOPPED");
}

#[test]
fn refusal_to_play_of_stopping_unit_is_ignored() {
    let lines = |spec: &mut YunoSpec| spec.channel = Channel::Lines;
    let mut bench = Bench::new(desired(1, spec("a", lines), Run::Playing));
    bench.install();
    bench.see(UnitEvent::Started);
    let process = Some(ProcessId { pid: 7, start_ticks: 1, started_ms: 0 });
    let connection = Some(PlayConnection { number: 1, playing: false, can: vec![Ability::Play] });
    bench.see(UnitEvent::Told(ShimReport { process, connection, ready: true, ..ShimReport::default() }));
    bench.check("Adopt, ABSENT, Install, INSTALLING, start 0, STARTING, Play { playing: true, ask: 0 }, RUNNING");
    // Its answer comes after it has been asked to stop.
    bench.see(wants(desired(2, spec("a", lines), Run::Stopped)));
    bench.see(UnitEvent::Played { ask: 0, answer: Err(PlayFailure::Refused("busy".into())) });
    bench.end(0);
    bench.check("stop Quit 30000, STOPPING, STOPPED");
    assert_eq!((bench.reached(), &bench.unit.observed.error), (2, &None));
}
