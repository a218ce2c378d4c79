//! Tests of units that want the same, of versions that go back together, and of what changes owe.

use muster_topics::{
    common::CommonSpec,
    files::ChangeAction,
    task::{OwedReport, TaskAction, TaskState},
    unit::Spec,
};

use super::{
    super::owed::{self, OwedWorker},
    *,
};
use crate::shim::Shims;

fn files(unit: &UnitName, path: &str, fields: serde_json::Value) -> Verb {
    let mut spec = serde_json::json!({"kind": "files", "files": {path: {"text": ""}}, "verify_after_ms": 1});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let spec = Box::new(serde_json::from_value(spec).unwrap());
    Verb::UnitApply { unit: unit.clone(), spec, run: Some(Run::Running) }
}

fn plain(unit: &UnitName, path: &str) -> Verb {
    files(unit, path, serde_json::json!({}))
}

async fn belongs_to_version(host: &Host, units: &[&UnitName], version: i64) {
    let mut tx = host.store.begin().await.unwrap();
    for unit in units {
        sqlx::query(
            "INSERT INTO unit_owner (unit, deployment, version, orphan) VALUES (?, 'default/x', ?, 0)
             ON CONFLICT (unit) DO UPDATE SET version = excluded.version",
        )
        .bind(unit.as_str())
        .bind(version)
        .execute(&mut *tx)
        .await
        .unwrap();
    }
    tx.commit().await.unwrap();
    host.units.desired_changed();
}

fn note(state: &UnitState) -> Option<(HoldReason, String)> {
    state.hold.as_ref().map(|hold| (hold.reason, hold.note.clone().unwrap_or_default()))
}

#[tokio::test]
async fn conflicting_unit_waits_until_the_other_is_gone() {
    let host = Host::start().await;
    let [one, other] = ["one", "other"].map(unit);
    host.verb(&plain(&one, "/a")).await.unwrap();
    host.until(&one, |state| state.observed.trial.verified().is_some()).await;
    host.verb(&plain(&other, "/a")).await.unwrap();
    let held = host.until(&other, |state| state.hold.is_some()).await;
    assert_eq!(note(&held), Some((HoldReason::Conflict, "default/one has path /a too".to_owned())));
    assert_ne!(held.observed.phase(), Phase::Running);
    assert_eq!(note(&host.units.states().borrow()[&one]), None);
    // One that has a revision before goes back to that.
    let third = unit("third");
    host.verb(&plain(&third, "/c")).await.unwrap();
    let before = host.until(&third, |state| state.observed.trial.verified().is_some()).await;
    host.verb(&plain(&third, "/a")).await.unwrap();
    let back = host.until(&third, |state| state.observed.rolled_back().is_some()).await;
    assert_eq!(back.observed.rolled_back().unwrap().error.cause, "conflict: default/one has path /a too");
    assert_eq!(back.observed.revision, before.observed.revision);
    // It goes on by itself.
    host.verb(&plain(&one, "/b")).await.unwrap();
    let state = host.until_phase(&other, Phase::Running).await;
    assert_eq!(note(&state), None);
}

#[tokio::test]
async fn units_of_a_version_go_back_together_and_in_reverse_order() {
    let host = Host::start().await;
    let [config, program, apart] = ["config", "program", "apart"].map(unit);
    let all = [&config, &program, &apart];
    let needs = serde_json::json!({"requires": ["default/config"], "verify_after_ms": 1});
    host.verb(&plain(&config, "/a")).await.unwrap();
    host.verb(&files(&program, "/b", needs.clone())).await.unwrap();
    host.verb(&plain(&apart, "/c")).await.unwrap();
    belongs_to_version(&host, &all, 1).await;
    let mut before = Vec::new();
    for unit in all {
        before.push(host.until(unit, |state| state.observed.trial.verified().is_some()).await.observed.revision);
    }
    // Neither is verified before both have been up for long enough.
    let slow = serde_json::json!({"requires": ["default/config"], "verify_after_ms": 60_000});
    belongs_to_version(&host, &all, 2).await;
    let never = serde_json::json!({"rollback": "never"});
    let mut tx = host.store.begin().await.unwrap();
    for verb in [plain(&config, "/a2"), files(&program, "/b2", slow), files(&apart, "/c2", never)] {
        let operator = "agent".parse().unwrap();
        let asker = store::unit::ChangeContext {
            operator: &operator,
            now_ms: now_ms(),
            key: None,
            is_document: true,
            values: None,
        };
        store::unit::edit(&mut tx, verb.units()[0], &verb, asker).await.unwrap().unwrap();
    }
    tx.commit().await.unwrap();
    host.units.desired_changed();
    for unit in [&config, &program] {
        host.until(unit, |state| state.observed.trial.is_on() && state.observed.phase() == Phase::Running).await;
    }
    let apart_now = host.until_phase(&apart, Phase::Running).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(host.units.states().borrow()[&config].observed.trial.is_on());
    // It ends again and again.
    let fails = async {
        loop {
            host.fake.end(&program, Exit::Code(3));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let back = async {
        for unit in [&program, &config] {
            host.until(unit, |state| state.observed.rolled_back().is_some()).await;
        }
    };
    tokio::select! { () = fails => {}, () = back => {} }
    let why = host.units.states().borrow()[&config].observed.rolled_back().cloned().unwrap().error;
    assert!(why.cause.starts_with("it belongs together with default/program, which has failed: "), "{why}");
    for (unit, before) in all.into_iter().zip(before).take(2) {
        let state = host.until(unit, |state| state.observed.phase() == Phase::Running).await;
        assert_eq!(state.observed.revision, before);
    }
    assert_eq!(host.units.states().borrow()[&apart].observed.revision, apart_now.observed.revision);
}

struct OwedBench {
    host: Host,
    folder: tempfile::TempDir,
    files: UnitName,
    shutdown: CancellationToken,
}

impl OwedBench {
    async fn new() -> Self {
        let (host, folder, files) = (Host::start().await, tempfile::tempdir().unwrap(), unit("files"));
        host.verb(&plain(&files, "/a")).await.unwrap();
        host.until(&files, |state| state.observed.trial.verified().is_some()).await;
        let bench = Self { host, folder, files, shutdown: CancellationToken::new() };
        bench.work();
        bench
    }

    fn work(&self) {
        let worker = OwedWorker {
            store: self.host.store.clone(),
            units: self.host.units.clone(),
            tasks: self.host.units.kinds.tasks.clone(),
            shims: Shims::install(self.folder.path()).unwrap(),
            folder: self.folder.path().join("owed"),
        };
        tokio::spawn(self.shutdown.clone().run_until_cancelled_owned(owed::keep(worker)));
    }

    async fn owe(&self, revision: &Digest, actions: &[ChangeAction]) {
        let mut tx = self.host.store.begin().await.unwrap();
        store::owed::add(&mut tx, &self.files, revision, actions, now_ms()).await.unwrap();
        tx.commit().await.unwrap();
        self.host.store.announce_owed();
    }

    /// Waits until this many tasks have ended; returns them, the oldest first.
    async fn ended(&self, count: usize) -> Vec<(String, TaskState, Option<String>)> {
        for _ in 0..2_000 {
            let tasks = self.host.store.tasks(Some(&self.files)).await.unwrap();
            if tasks.iter().filter(|task| task.state != TaskState::Running).count() >= count {
                assert!(tasks.iter().all(|task| task.action == TaskAction::Notify));
                return tasks
                    .into_iter()
                    .rev()
                    .map(|task| (task.about, task.state, task.diagnostic.map(|told| told.cause)))
                    .collect();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("what is owed is not done: {:?}", self.host.store.owed().await.unwrap());
    }

    async fn until_nothing_is_owed(&self) {
        while !self.host.store.owed().await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn what_a_change_owes_is_done_once_and_in_order() {
    let bench = OwedBench::new().await;
    let program = unit("program");
    bench.host.verb(&apply(&program, "a", Run::Running)).await.unwrap();
    bench.host.until_phase(&program, Phase::Running).await;
    let marks = bench.folder.path().join("marks");
    let run = ["sh", "-c", &format!("echo hello; echo x >> {}", marks.display())].map(str::to_owned).to_vec();
    let restart = ChangeAction::Restart(program.clone());
    let starts = bench.host.fake.world().starts;
    bench.owe(&Digest::of(b"r"), &[ChangeAction::Run(run.clone()), restart.clone(), restart]).await;
    let done = bench.ended(2).await;
    assert_eq!(done[0].1, TaskState::Changed);
    assert!(done[0].0.starts_with("run sh -c") && done[1].0 == "restart default/program", "{done:?}");
    bench.until_nothing_is_owed().await;
    bench.host.until(&bench.files, |state| state.observed.owed.is_empty()).await;
    bench.host.until(&program, |state| state.observed.attempts == 0 && state.observed.phase() == Phase::Running).await;
    while bench.host.fake.world().starts == starts {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(bench.host.fake.world().starts, starts + 1);
    assert_eq!(std::fs::read_to_string(marks).unwrap(), "x\n");
    let number = bench.host.store.tasks(Some(&bench.files)).await.unwrap().last().unwrap().number;
    let log = bench.host.store.task_log(&bench.files, number).await.unwrap().unwrap();
    assert_eq!(log.text, "hello\n");
}

#[tokio::test]
async fn what_cannot_be_done_is_tried_again_and_visible() {
    let bench = OwedBench::new().await;
    let fails = ["sh", "-c", "echo no; exit 4"].map(str::to_owned).to_vec();
    bench.owe(&Digest::of(b"r"), &[ChangeAction::Run(fails), ChangeAction::Restart(unit("none"))]).await;
    let done = bench.ended(2).await;
    assert_eq!((done[0].1, done[0].2.as_deref()), (TaskState::Failed, Some("exit code 4")));
    assert_eq!(done[1].2.as_deref(), Some("there is no unit default/none on this host yet"));
    let owed = bench.host.store.owed().await.unwrap();
    assert!(
        owed.iter().all(|one| one.attempts == 1 && one.failed_ms.is_none() && one.due_ms > one.since_ms),
        "{owed:?}"
    );
    let named = |one: &OwedReport| (one.action.clone(), one.attempts, one.error.is_some(), one.failed_ms.is_some());
    let wanted =
        ["run sh -c echo no; exit 4", "restart default/none"].map(|action| (action.to_owned(), 1, true, false));
    bench.host.until(&bench.files, |state| state.observed.owed.iter().map(named).collect::<Vec<_>>() == wanted).await;
    // It appears.
    bench.host.verb(&apply(&unit("none"), "a", Run::Running)).await.unwrap();
    let done = bench.ended(4).await;
    assert!(done.iter().any(|(about, state, _)| about == "restart default/none" && *state == TaskState::Changed));
    let told = bench.host.units.tasks(&bench.files, None, 0).await.unwrap();
    let told: muster_topics::task::UnitTasks = serde_json::from_slice(&told).unwrap();
    assert!(told.owed.iter().any(|one| one.starts_with("run sh -c") && one.ends_with("exit code 4")), "{told:?}");
}

#[tokio::test]
async fn owed_restart_does_not_end_a_rollback() {
    let bench = OwedBench::new().await;
    let program = unit("program");
    let version = |artifact: &str| {
        let Verb::UnitApply { spec, run, .. } = apply(&program, artifact, Run::Running) else { panic!("an apply") };
        let Spec::Yuno(spec) = *spec else { panic!("a yuno") };
        let spec = Box::new(Spec::Yuno(muster_topics::unit::YunoSpec {
            common: CommonSpec { verify_after_ms: Some(1), ..spec.common },
            ..spec
        }));
        Verb::UnitApply { unit: program.clone(), spec, run }
    };
    bench.host.verb(&version("a")).await.unwrap();
    let verified = bench.host.until(&program, |state| state.observed.trial.verified().is_some()).await;
    let verified = verified.observed.trial.verified().cloned();
    let Verb::UnitApply { spec, .. } = version("b") else { panic!("an apply") };
    let Spec::Yuno(slow) = *spec else { panic!("a yuno") };
    let slow =
        muster_topics::unit::YunoSpec { common: CommonSpec { verify_after_ms: Some(60_000), ..slow.common }, ..slow };
    let apply_slow =
        Verb::UnitApply { unit: program.clone(), spec: Box::new(Spec::Yuno(slow)), run: Some(Run::Running) };
    bench.host.verb(&apply_slow).await.unwrap();
    bench.host.until(&program, |state| state.observed.trial.is_on() && state.observed.phase() == Phase::Running).await;
    let fails = async {
        loop {
            bench.host.fake.end(&program, Exit::Code(3));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let back = bench.host.until(&program, |state| state.observed.rolled_back().is_some());
    tokio::select! { () = fails => {}, _ = back => {} }
    let is_back = |state: &UnitState| {
        state.observed.rolled_back().is_some()
            && state.observed.phase() == Phase::Running
            && state.observed.revision == verified
    };
    let first = bench.host.until(&program, is_back).await.observed.instance().pid;
    // What was ended last may have been this one, and is not known yet: after another end that is known, nothing is.
    bench.host.fake.end(&program, Exit::Code(3));
    bench.host.until(&program, |state| is_back(state) && state.observed.instance().pid != first).await;
    bench.owe(&Digest::of(b"r"), &[ChangeAction::Restart(program.clone())]).await;
    let words = "would try its failed revision again";
    bench
        .host
        .until(&bench.files, |state| {
            state.observed.owed.iter().any(|one| one.error.as_ref().is_some_and(|why| why.cause.contains(words)))
        })
        .await;
    assert!(is_back(&bench.host.units.states().borrow()[&program]));
    // It is started anew for another reason, and has read everything.
    bench.host.fake.end(&program, Exit::Code(1));
    bench.until_nothing_is_owed().await;
    bench.host.until(&program, is_back).await;
    let last = bench.host.store.tasks(Some(&bench.files)).await.unwrap().remove(0);
    assert_eq!(last.state, TaskState::Unchanged);
}

#[tokio::test]
async fn what_a_change_owes_that_was_rolled_back_falls_away() {
    let bench = OwedBench::new().await;
    let one = unit("one");
    bench.host.verb(&plain(&one, "/x")).await.unwrap();
    bench.host.until_phase(&one, Phase::Running).await;
    bench.host.verb(&plain(&bench.files, "/x")).await.unwrap();
    let state = bench.host.until(&bench.files, |state| state.observed.rolled_back().is_some()).await;
    let failed = state.observed.rolled_back().unwrap().revision.clone();
    let marks = bench.folder.path().join("marks");
    bench.owe(&failed, &[ChangeAction::Run(vec!["touch".to_owned(), marks.display().to_string()])]).await;
    bench.until_nothing_is_owed().await;
    assert!(!marks.exists() && bench.host.store.tasks(Some(&bench.files)).await.unwrap().is_empty());
}

#[tokio::test]
async fn program_that_goes_on_without_the_agent_is_not_run_twice() {
    let bench = OwedBench::new().await;
    let marks = bench.folder.path().join("marks");
    let script = format!("echo x >> {0}; while [ ! -e {0}.go ]; do sleep 0.05; done; echo end", marks.display());
    bench.owe(&Digest::of(b"r"), &[ChangeAction::Run(["sh", "-c", &script].map(str::to_owned).to_vec())]).await;
    while !marks.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bench.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let bench = OwedBench { shutdown: CancellationToken::new(), ..bench };
    bench.work();
    tokio::time::sleep(Duration::from_millis(200)).await;
    std::fs::write(format!("{}.go", marks.display()), "").unwrap();
    bench.until_nothing_is_owed().await;
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "x\n");
    let states: Vec<_> = bench.ended(2).await.into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(states, [TaskState::Interrupted, TaskState::Changed]);
}
