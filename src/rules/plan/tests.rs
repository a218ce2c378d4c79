//! What is planned, and what others see, in cases: each a script of what is seen, with the step that it
//! leads to and the phase that it makes.

mod beside;
mod contained;
mod gated;
mod held;
mod probed;
mod restored;
mod rollback;
mod wired;

use muster_topics::{
    probe::Which,
    signal::Signal,
    unit::{Channel, Exit, HoldReason, Restart, Rollback, Run, Spec, YunoSpec},
};

use super::*;
use crate::rules::{
    backoff::{GOOD_AFTER_MS, RESTARTS_MAX},
    probe::Verdict,
};

const SECOND: Millis = 1_000;

fn spec(artifact: &str, change: impl FnOnce(&mut YunoSpec)) -> Spec {
    let sha256 = Digest::of(artifact.as_bytes());
    let text = format!(r#"{{"artifact":{{"sha256":"{sha256}","size_bytes":1,"role":"a","version":"1"}}}}"#);
    let mut spec: YunoSpec = serde_json::from_str(&text).unwrap();
    // What is not about that does not wait for it.
    (spec.rollback, spec.verify_after_ms) = (Rollback::Never, 0);
    change(&mut spec);
    Spec::Yuno(spec)
}

fn desired(generation: u64, spec: Spec, run: Run) -> Desired {
    Desired { generation, revision: spec.revision().unwrap(), spec, run, frozen: false }
}

/// What asks to end; `own` is what the program says itself.
fn by(signal: Option<Signal>) -> String {
    signal.map_or_else(|| "own".to_owned(), |signal| format!("{signal:?}"))
}

fn wants(desired: Desired) -> Seen {
    Seen::Desired(Some(Box::new(desired)), None)
}

/// A unit on a host where everything works at once, unless a test says otherwise.
struct Bench {
    unit: Unit,
    now_ms: Millis,
    pid: i32,
    trail: Vec<String>,
}

impl Bench {
    fn new(desired: Desired) -> Self {
        let mut bench = Self { unit: Unit::new(None, 0), now_ms: 0, pid: 0, trail: Vec::new() };
        bench.see(wants(desired));
        bench.see(Seen::Found(Found::Nothing));
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

    fn see(&mut self, seen: Seen) {
        self.unit.observe(seen, self.now_ms);
        while let Some(step) = self.unit.plan(self.now_ms) {
            if matches!(step, Step::WaitUntil(_)) {
                break;
            }
            self.unit.observe(Seen::Began(step), self.now_ms);
            self.trail.push(match step {
                Step::Stop { signal, grace_ms } => format!("stop {} {grace_ms}", by(signal)),
                Step::StopBeside { signal, grace_ms } => format!("stop beside {} {grace_ms}", by(signal)),
                Step::StartBeside => "start beside".to_owned(),
                Step::Start { attempts } => format!("start {attempts}"),
                other => format!("{other:?}"),
            });
        }
        let phase = format!("{:?}", self.unit.observed.phase).to_uppercase();
        if self.trail.last() != Some(&phase) {
            self.trail.push(phase);
        }
    }

    fn install(&mut self) {
        let revision = self.unit.desired.as_ref().unwrap().revision.clone();
        self.see(Seen::Installed(revision));
    }

    fn fail_install(&mut self, may_heal: bool) {
        let revision = self.unit.desired.as_ref().unwrap().revision.clone();
        let failure = Failure { error: "no".to_owned(), may_heal };
        self.see(Seen::NotInstalled { revision, failure, random: 1.0 });
    }

    fn told(&mut self, restarts: u32, last: Option<Ended>) {
        self.pid += 1;
        let process = Some(Process { pid: self.pid, start_ticks: 1, started_ms: self.now_ms });
        self.see(Seen::Told(Told { process, restarts, last, ..Told::default() }));
    }

    fn start(&mut self) {
        self.see(Seen::Started);
        self.told(0, None);
    }

    fn ended(&self, exit: Exit, up_ms: Millis) -> Ended {
        Ended::new(exit, Some(self.now_ms - up_ms), self.now_ms)
    }

    fn end(&mut self, code: i32) {
        let last = self.ended(Exit::Code(code), 0);
        let restarts = self.unit.kept().restarts;
        self.see(Seen::Ended(Over { restarts, last }));
    }

    fn pass(&mut self, ms: Millis) {
        self.now_ms += ms;
        self.see(Seen::Tick);
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
fn from_nothing_to_running() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.check("Adopt, ABSENT, Install, INSTALLING");
    bench.install();
    bench.check("start 0, STARTING");
    bench.start();
    assert_eq!(bench.unit.plan(bench.now_ms), Some(Step::WaitUntil(SECOND)));
    assert_eq!(bench.reached(), 0);
    bench.pass(SECOND);
    bench.check("STARTING, RUNNING");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (1, None));
}

#[test]
fn one_that_says_when_it_is_up_is_running_from_then_on() {
    let speaks = |spec: &mut muster_topics::unit::YunoSpec| spec.channel = Channel::Notify;
    let mut bench = Bench::new(desired(1, spec("a", speaks), Run::Running));
    bench.install();
    bench.start();
    // However long that takes: who keeps it ends it when its time is over.
    bench.pass(1_000 * SECOND);
    bench.check("Adopt, ABSENT, Install, INSTALLING, start 0, STARTING");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (0, None));
    let told = |bench: &Bench, ready| {
        let process = Some(Process { pid: 7, start_ticks: 1, started_ms: bench.now_ms });
        Seen::Told(Told { process, ready, status: Some("at work".to_owned()), ..Told::default() })
    };
    let seen = told(&bench, true);
    bench.see(seen);
    bench.check("RUNNING");
    assert_eq!((bench.reached(), bench.unit.observed.status.as_deref()), (1, Some("at work")));
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
    assert_eq!(bench.unit.observed.status, None);
}

#[test]
fn program_that_went_to_the_background_is_told_how_to_be_kept() {
    for restart in [Restart::Always, Restart::Never] {
        let mut bench = Bench::new(desired(1, spec("a", |spec| spec.restart = restart), Run::Running));
        bench.install();
        bench.start();
        bench.pass(SECOND);
        let last = Ended { left_some: true, ..bench.ended(Exit::Code(0), 0) };
        bench.see(Seen::Ended(Over { restarts: 3, last }));
        let observed = &bench.unit.observed;
        let phase = if restart == Restart::Always { Phase::Backoff } else { Phase::Stopped };
        assert_eq!((observed.phase, observed.exit), (phase, Some(Exit::Code(0))));
        assert!(observed.error.as_ref().unwrap().contains("hint: have it stay in the foreground"), "{observed:?}");
    }
}

#[test]
fn program_that_goes_to_the_background_runs_once_it_has_done_so() {
    let forking = |spec: &mut YunoSpec| spec.process.forking = Some(<_>::default());
    let mut bench = Bench::new(desired(1, spec("a", forking), Run::Running));
    bench.install();
    bench.start();
    bench.pass(10 * SECOND);
    assert_eq!(bench.unit.observed.phase, Phase::Starting, "its first process is still there");
    let process = Some(Process { pid: 8, start_ticks: 1, started_ms: bench.now_ms });
    bench.see(Seen::Told(Told { process, ready: true, ..Told::default() }));
    assert_eq!(bench.unit.observed.phase, Phase::Running);
}

#[test]
fn what_was_known_of_an_end_is_told_for_as_long_as_it_matters() {
    let mut bench = Bench::running();
    let last =
        Ended { oom_killed: true, last_lines: Some("no more memory".to_owned()), ..bench.ended(Exit::Signal(9), 0) };
    bench.see(Seen::Ended(Over { restarts: 3, last }));
    bench.check("BACKOFF");
    let observed = bench.unit.observed.clone();
    assert!(observed.oom_killed && !observed.core_dumped);
    assert_eq!(observed.last_lines.as_deref(), Some("no more memory"));
    assert_eq!(observed.error.as_deref(), Some("ended by itself: signal 9 (SIGKILL), out of memory"));
    bench.pass(30 * SECOND);
    bench.start();
    assert!(bench.unit.observed.last_lines.is_some(), "it is not up yet");
    bench.pass(SECOND);
    bench.check("start 3, STARTING, RUNNING");
    assert_eq!(bench.unit.observed.last_lines, None);
}

#[test]
fn one_that_shall_not_run_is_installed_all_the_same() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Stopped));
    bench.install();
    bench.check("Adopt, ABSENT, Install, INSTALLING, STOPPED");
    assert_eq!((bench.reached(), bench.unit.plan(bench.now_ms)), (1, None));
}

#[test]
fn a_new_revision_is_there_before_the_old_one_goes() {
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
fn a_new_revision_that_cannot_be_had_leaves_the_old_one_running() {
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.fail_install(false);
    bench.check("Install, RUNNING, FAILED");
    assert_eq!((bench.reached(), bench.unit.observed.pid), (2, Some(1)));
    assert!(bench.unit.observed.error.as_ref().unwrap().contains("goes on running"));
    bench.see(wants(desired(3, spec("a", |_| ()), Run::Running)));
    bench.check("RUNNING");
    assert_eq!((bench.reached(), &bench.unit.observed.error), (3, &None));
}

#[test]
fn what_applies_in_place_touches_no_process() {
    let mut bench = Bench::running();
    bench.see(wants(desired(2, spec("a", |spec| spec.grace_ms = 5), Run::Running)));
    bench.check("RUNNING");
    assert_eq!(bench.reached(), 2);
    bench.see(wants(desired(3, spec("a", |spec| spec.grace_ms = 5), Run::Stopped)));
    bench.check("stop Term 5, STOPPING");
}

#[test]
fn what_does_not_end_is_asked_again_without_grace() {
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
fn crashes_are_counted_mended_and_forgiven() {
    let mut bench = Bench::running();
    // The shim starts it again by itself.
    let ended = bench.ended(Exit::Signal(11), SECOND);
    bench.told(1, Some(ended));
    bench.check("STARTING");
    assert_eq!((bench.unit.observed.attempts, bench.unit.observed.exit), (1, Some(Exit::Signal(11))));
    bench.pass(SECOND);
    bench.check("RUNNING");
    assert_eq!(bench.unit.plan(bench.now_ms), Some(Step::WaitUntil(bench.now_ms - SECOND + GOOD_AFTER_MS)));
    bench.pass(GOOD_AFTER_MS);
    assert_eq!((bench.unit.observed.attempts, bench.unit.plan(bench.now_ms)), (0, None));
}

#[test]
fn one_that_always_crashes_waits_ever_longer_and_is_held_at_last() {
    let mut bench = Bench::running();
    for restarts in 1..=3 {
        let ended = bench.ended(Exit::Code(3), 0);
        bench.told(restarts, Some(ended));
    }
    bench.trail.clear();
    bench.end(3);
    bench.check("BACKOFF");
    let observed = &bench.unit.observed;
    assert_eq!((observed.attempts, observed.retry_ms), (3, Some(bench.now_ms + 30 * SECOND)));
    assert_eq!(observed.error.as_deref(), Some("ended by itself: exit code 3"));
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
    assert_eq!((bench.unit.observed.phase, bench.unit.plan(bench.now_ms)), (Phase::Failed, None));
    assert!(bench.unit.observed.error.as_ref().unwrap().contains("hint:"));
    // To run it makes a new generation, without the hold.
    bench.trail.clear();
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Running)));
    bench.check("start 0, STARTING");
}

#[test]
fn restarts_that_were_never_told_count_as_well() {
    let mut bench = Bench::running();
    let last = bench.ended(Exit::Code(3), 0);
    bench.see(Seen::Ended(Over { restarts: 3, last }));
    bench.check("BACKOFF");
    assert_eq!(bench.unit.observed.attempts, 3);
}

#[test]
fn how_it_ended_decides_whether_it_is_started_again() {
    for (restart, code, trail) in [
        (Restart::Always, 0, "BACKOFF"),
        (Restart::OnFailure, 0, "STOPPED"),
        (Restart::OnFailure, 1, "BACKOFF"),
        (Restart::Never, 0, "STOPPED"),
        (Restart::Never, 1, "FAILED"),
    ] {
        let mut bench = Bench::new(desired(1, spec("a", |spec| spec.restart = restart), Run::Running));
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
fn installing_heals_with_growing_waits_or_fails() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.trail.clear();
    for seconds in [1, 2, 4, 8] {
        bench.fail_install(true);
        assert_eq!(bench.unit.observed.retry_ms, Some(bench.now_ms + seconds * SECOND));
        bench.check("BACKOFF");
        bench.pass(seconds * SECOND);
        bench.check("Install, INSTALLING");
    }
    bench.fail_install(false);
    bench.check("FAILED");
    assert_eq!(bench.unit.observed.error.as_deref(), Some("no"));
    bench.pass(SECOND);
    bench.check("FAILED");
}

#[test]
fn a_start_that_fails() {
    for (may_heal, trail) in [(true, "BACKOFF"), (false, "FAILED")] {
        let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
        bench.install();
        bench.trail.clear();
        bench.see(Seen::NotStarted(Failure { error: "not executable".to_owned(), may_heal }));
        bench.check(trail);
        assert_eq!(bench.unit.observed.error.as_deref(), Some("not executable"));
        // Stopped, it is what it is: there, and not running.
        bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
        bench.check("STOPPED");
    }
}

#[test]
fn what_failed_under_an_older_revision_does_not_count() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.install();
    bench.see(wants(desired(2, spec("b", |_| ()), Run::Running)));
    bench.trail.clear();
    bench.see(Seen::NotStarted(Failure { error: "not executable".to_owned(), may_heal: false }));
    bench.check("Install, INSTALLING");
    assert_eq!(bench.unit.observed.error, None);
    // Nor does the late report of a download that was given up.
    let revision = spec("a", |_| ()).revision().unwrap();
    let failure = Failure { error: "gone".to_owned(), may_heal: false };
    bench.see(Seen::NotInstalled { revision, failure, random: 0.0 });
    bench.check("INSTALLING");
}

#[test]
fn a_start_that_nobody_saw_the_end_of_is_looked_up() {
    let mut bench = Bench::new(desired(1, spec("a", |_| ()), Run::Running));
    bench.install();
    bench.trail.clear();
    bench.see(Seen::StartUnknown);
    bench.check("Adopt, STARTING");
    let revision = bench.unit.desired.as_ref().unwrap().revision.clone();
    let process = Some(Process { pid: 9, start_ticks: 1, started_ms: 0 });
    bench.now_ms = 5 * SECOND;
    bench.see(Seen::Found(Found::Alive(revision, Told { process, ..Told::default() })));
    bench.check("RUNNING");
    assert_eq!(bench.unit.observed.pid, Some(9));
}

#[test]
fn what_cannot_be_looked_up_is_not_started() {
    let mut bench = Bench { unit: Unit::new(None, 0), now_ms: 0, pid: 0, trail: Vec::new() };
    bench.see(wants(desired(1, spec("a", |_| ()), Run::Running)));
    for _ in 0..3 {
        bench.see(Seen::NotLookedUp { error: "no".to_owned() });
        bench.pass(ADOPT_AGAIN_MS);
    }
    bench.check("Adopt, ABSENT, Adopt, ABSENT, Adopt, ABSENT, Adopt, ABSENT");
}

#[test]
fn what_is_forgotten_is_stopped_and_removed() {
    let mut bench = Bench::running();
    bench.see(Seen::Desired(None, None));
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("Remove, ABSENT");
    bench.see(Seen::NotRemoved { error: "busy".to_owned() });
    bench.check("ABSENT");
    bench.pass(ADOPT_AGAIN_MS);
    bench.check("Remove, ABSENT");
}

#[test]
fn a_change_of_configs_alone_is_brought_to_what_runs() {
    let reloads = |spec: &mut muster_topics::unit::YunoSpec| spec.reload = muster_topics::reload::Reload::Signal;
    let next = |epoch: u64| {
        spec("a", move |spec| {
            reloads(spec);
            spec.restart_epoch = epoch;
        })
    };
    let mut bench = Bench::running();
    let change = desired(2, next(1), Run::Running);
    let revision = change.revision.clone();
    bench.see(wants(change));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    assert_eq!(bench.reached(), 1, "it is not there yet");
    bench.see(Seen::Reloaded(revision.clone()));
    assert_eq!((bench.reached(), bench.unit.observed.revision.as_ref()), (2, Some(&revision)));
    bench.trail.clear();
    // More than configs: it needs a new process after all.
    let other = desired(3, next(2), Run::Running);
    let revision = other.revision.clone();
    bench.see(wants(other));
    bench.install();
    bench.see(Seen::NotReloaded(revision));
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
fn other_limits_are_brought_to_a_yuno_that_runs() {
    let limited = |pids: u32| spec("a", move |spec| spec.limits.pids = Some(pids));
    let mut bench = Bench::running();
    let change = desired(2, limited(5), Run::Running);
    let revision = change.revision.clone();
    bench.see(wants(change));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    bench.see(Seen::Reloaded(revision));
    assert_eq!((bench.reached(), bench.unit.observed.pid), (2, Some(1)));
    bench.trail.clear();
    // Its host has no cgroups for it.
    let change = desired(3, limited(6), Run::Running);
    let revision = change.revision.clone();
    bench.see(wants(change));
    bench.install();
    bench.see(Seen::NotReloaded(revision));
    bench.check("Install, RUNNING, Reload, RUNNING, stop Term 30000, STOPPING");
    bench.end(0);
    bench.check("start 0, STARTING");
    bench.start();
    bench.pass(SECOND);
    bench.trail.clear();
    // What differs in more is not tried.
    bench.see(wants(desired(4, spec("a", |spec| spec.args.push("x".to_owned())), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, stop Term 30000, STOPPING");
}

#[test]
fn one_that_read_something_that_has_changed_is_started_anew() {
    let mut bench = Bench::running();
    bench.see(Seen::Outdated);
    bench.check("stop Term 30000, STOPPING");
    bench.end(0);
    bench.start();
    bench.pass(SECOND);
    bench.check("start 0, STARTING, RUNNING");
    assert_eq!((bench.unit.observed.attempts, bench.unit.plan(bench.now_ms)), (0, None));
    bench.see(wants(desired(2, spec("a", |_| ()), Run::Stopped)));
    bench.end(0);
    bench.trail.clear();
    bench.see(Seen::Outdated);
    bench.check("STOPPED");
}
