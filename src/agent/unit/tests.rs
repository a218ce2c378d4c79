//! Tests of the units' task with a kind in memory, whose instances survive the task.

mod clock;
mod order;
mod together;

use muster_session::unit_state::UnitState;
use muster_topics::unit::Desired;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::clock::now_ms;
use muster_rules::plan::{Failure, InstanceEnd, InstanceExit, ProcessId, ShimReport};
use muster_topics::{
    command::{LogView, Verb},
    effective::Effective,
    name::{Digest, Name},
    unit::{Exit, HoldReason, Phase, Progress, Run},
};
use tokio::sync::{Notify, broadcast};

use super::{
    kind::{
        AdoptedUnit, FollowFrom, Instance, InstanceEvent, ProgressReporter, Signaller, StartError, StartOrder,
        UnitTrace,
    },
    owners::Owners,
    *,
};
use crate::store;

/// A host's instances, by unit, and how its steps go.
#[derive(Default)]
struct World {
    alive: BTreeMap<UnitName, (Digest, ShimReport)>,
    traces: Vec<UnitName>,
    last: BTreeMap<UnitName, InstanceEnd>,
    starts: u32,
    installs: Vec<UnitName>,
    /// The next installs fail like this.
    failures: Vec<Failure>,
    /// The next removals fail like this.
    stuck: Vec<Failure>,
    removed: Vec<UnitName>,
    signals: Vec<(UnitName, Signal)>,
}

struct Fake {
    world: Mutex<World>,
    news: broadcast::Sender<(UnitName, InstanceEvent)>,
    /// An install of a unit of this name waits.
    slow: Notify,
}

impl Fake {
    fn new() -> Arc<Self> {
        let (news, _) = broadcast::channel(64);
        Arc::new(Self { world: Mutex::default(), news, slow: Notify::new() })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// The unit's process ends by itself.
    fn end(&self, unit: &UnitName, exit: Exit) {
        let last = InstanceExit::new(exit, Some(now_ms()), now_ms());
        let over = InstanceEnd { restarts: 0, last };
        let mut world = self.world();
        if world.alive.remove(unit).is_some() {
            world.last.insert(unit.clone(), over.clone());
            let _ = self.news.send((unit.clone(), InstanceEvent::Ended(over)));
        }
    }
}

struct FakeInstance {
    unit: UnitName,
    first: Option<ShimReport>,
    fake: Arc<Fake>,
    news: broadcast::Receiver<(UnitName, InstanceEvent)>,
}

impl Instance for FakeInstance {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        async move {
            if let Some(told) = self.first.take() {
                return Some(InstanceEvent::Told(told));
            }
            loop {
                let (unit, news) = self.news.recv().await.ok()?;
                if unit == self.unit {
                    return Some(news);
                }
            }
        }
        .boxed()
    }

    fn stop(&mut self, _: Option<Signal>, _: u64) -> BoxFuture<'_, Result<(), Failure>> {
        self.fake.end(&self.unit, Exit::Signal(15));
        async { Ok(()) }.boxed()
    }

    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>> {
        let mut world = self.fake.world();
        if let Some((_, told)) = world.alive.get_mut(&self.unit) {
            told.frozen = frozen;
            let _ = self.fake.news.send((self.unit.clone(), InstanceEvent::Told(told.clone())));
        }
        async { Ok(()) }.boxed()
    }

    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        self.fake.world().signals.push((self.unit.clone(), signal));
        async { Ok(true) }.boxed()
    }
}

/// The kind itself: a handle to the world, for instances need one too.
struct FakeKind(Arc<Fake>, &'static str);

impl FakeKind {
    fn instance(&self, unit: &UnitName, first: Option<ShimReport>) -> Box<dyn Instance> {
        let news = self.0.news.subscribe();
        Box::new(FakeInstance { unit: unit.clone(), first, fake: self.0.clone(), news })
    }
}

impl UnitKind for FakeKind {
    fn name(&self) -> &'static str {
        self.1
    }

    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        let traces = self.0.world().traces.clone();
        Ok(traces.into_iter().map(|unit| UnitTrace { unit, at_ms: now_ms() }).collect())
    }

    fn kept_secrets(&self, _: &UnitName) -> Vec<String> {
        Vec::new()
    }

    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>> {
        async move {
            let (alive, last) = {
                let world = self.0.world();
                // Nothing is ever started beside another here.
                let there = Some(unit).filter(|_| slot == Slot::First);
                (
                    there.and_then(|unit| world.alive.get(unit).cloned()),
                    there.and_then(|unit| world.last.get(unit).cloned()),
                )
            };
            Ok(match (alive, last) {
                (Some((revision, told)), _) => {
                    AdoptedUnit::Alive { revision, told, instance: self.instance(unit, None) }
                }
                (None, Some(over)) => AdoptedUnit::Ended(over),
                (None, None) => AdoptedUnit::Nothing,
            })
        }
        .boxed()
    }

    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        _: &'a Desired,
        _: Option<&'a Digest>,
        tell: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let failure = {
                let mut world = self.0.world();
                world.installs.push(unit.clone());
                world.failures.pop()
            };
            if unit.name().as_str() == "slow" {
                tell(Progress { done_bytes: 1, total_bytes: 2 });
                self.0.slow.notified().await;
            }
            failure.map_or(Ok(()), Err)
        }
        .boxed()
    }

    fn prepare<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        _: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.install(unit, desired, keep, &|_| ()).await }.boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        async move {
            let StartOrder { desired, wiring, .. } = start;
            let mut world = self.0.world();
            assert!(!world.alive.contains_key(unit), "a second copy of {unit}");
            world.starts += 1;
            let pid = 1_000 + i32::try_from(world.starts).unwrap();
            let process = Some(ProcessId { pid, start_ticks: 1, started_ms: now_ms() });
            let told = ShimReport { process, wiring: wiring.clone(), ..ShimReport::default() };
            world.alive.insert(unit.clone(), (desired.revision.clone(), told.clone()));
            Ok(self.instance(unit, Some(told)))
        }
        .boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let mut world = self.0.world();
            assert!(!world.alive.contains_key(unit), "{unit} is removed while it runs");
            if let Some(failure) = world.stuck.pop() {
                return Err(failure);
            }
            world.last.remove(unit);
            world.removed.push(unit.clone());
            Ok(())
        }
        .boxed()
    }

    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Slot,
        desired: &'a Desired,
        _: Option<&'a Digest>,
        _: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        let mut world = self.0.world();
        if let Some((revision, _)) = world.alive.get_mut(unit) {
            *revision = desired.revision.clone();
        }
        async { Ok(true) }.boxed()
    }

    fn log<'a>(&'a self, _: &'a UnitName, from: FollowFrom, _: LogView) -> BoxFuture<'a, io::Result<log::LogPart>> {
        let text = match from {
            FollowFrom::Last(lines) => format!("{lines} lines").into_bytes(),
            FollowFrom::Place(_) => Vec::new(),
        };
        async move { Ok(log::LogPart { text, ..log::LogPart::default() }) }.boxed()
    }

    fn effective<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Slot,
        revision: &'a Digest,
    ) -> BoxFuture<'a, io::Result<Effective>> {
        let effective = Effective {
            unit: unit.clone(),
            revision: revision.clone(),
            path: String::new(),
            configs: Vec::new(),
            changed: Vec::new(),
            config: None,
        };
        async move { Ok(effective) }.boxed()
    }

    fn sweep(&self, _: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        async { Ok(()) }.boxed()
    }
}

/// A host: its store and world outlive the agent.
struct Host {
    fake: Arc<Fake>,
    store: Store,
    units: Units,
    shutdown: CancellationToken,
    folder: tempfile::TempDir,
}

impl Host {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        let fake = Fake::new();
        let (units, shutdown) = Self::agent(&store, &fake).await;
        Self { fake, store, units, shutdown, folder }
    }

    async fn agent(store: &Store, fake: &Arc<Fake>) -> (Units, CancellationToken) {
        let shutdown = CancellationToken::new();
        let tasks = TaskLog::open(store.clone()).await.unwrap();
        let kind = |name| Arc::new(FakeKind(fake.clone(), name)) as Arc<dyn UnitKind>;
        let all = Arc::new([kind("yuno"), kind("files")]);
        let kinds = Kinds { all, containers: None, tasks, owners: Owners::default() };
        (Units::keep(store.clone(), kinds, shutdown.clone()).await.unwrap(), shutdown)
    }

    /// As a crash: no goodbye, and what runs goes on.
    async fn stop(&mut self) {
        self.shutdown.cancel();
        let mut states = self.units.states();
        // The sender goes with the task.
        while states.changed().await.is_ok() {}
    }

    async fn restart(&mut self) {
        self.stop().await;
        (self.units, self.shutdown) = Self::agent(&self.store, &self.fake).await;
    }

    async fn verb(&self, verb: &Verb) -> Result<Option<store::unit::AppliedChange>, CommandRefusal> {
        let result = self.edit(verb).await;
        self.units.desired_changed();
        result
    }

    /// Changes the store, and tells nobody.
    async fn edit(&self, verb: &Verb) -> Result<Option<store::unit::AppliedChange>, CommandRefusal> {
        let operator: Name = "anna".parse().unwrap();
        let asker = store::unit::ChangeContext {
            operator: &operator,
            now_ms: now_ms(),
            key: None,
            is_document: false,
            values: None,
        };
        let mut tx = self.store.begin().await.unwrap();
        let result = store::unit::edit(&mut tx, verb.units()[0], verb, asker).await.unwrap();
        tx.commit().await.unwrap();
        result
    }

    /// Has all units looked at, and waits until they are.
    async fn tick(&self) {
        let mut reconciled = self.units.reconciled();
        reconciled.mark_unchanged();
        self.units.look();
        reconciled.changed().await.unwrap();
    }

    /// Waits until a unit is like this.
    async fn until(&self, unit: &UnitName, what: impl Fn(&UnitState) -> bool) -> UnitState {
        let mut states = self.units.states();
        let found = states.wait_for(|states| states.get(unit).is_some_and(|state| what(state)));
        match tokio::time::timeout(Duration::from_secs(60), found).await {
            Ok(states) => states.unwrap()[unit].as_ref().clone(),
            Err(_) => panic!("{unit} is not as it should be: {:#?}", self.units.states().borrow().get(unit)),
        }
    }

    async fn until_gone(&self, unit: &UnitName) {
        let mut states = self.units.states();
        states.wait_for(|states| !states.contains_key(unit)).await.unwrap();
    }

    /// Waits until a unit has come to this, as it is desired now.
    async fn until_phase(&self, unit: &UnitName, phase: Phase) -> UnitState {
        let rows = self.store.units().await.unwrap().units;
        let generation = rows.iter().find(|row| row.name == *unit).unwrap().desired.generation;
        self.until(unit, |state| state.observed.phase() == phase && state.observed.generation == generation).await
    }
}

pub(super) fn unit(name: &str) -> UnitName {
    format!("default/{name}").parse().unwrap()
}

fn apply(unit: &UnitName, artifact: &str, run: Run) -> Verb {
    let sha256 = Digest::of(artifact.as_bytes());
    let spec = serde_json::json!({
        "kind": "yuno",
        "artifact": {"sha256": sha256, "size_bytes": 1, "role": "a", "version": "1"},
        "started_after_ms": 1,
    });
    Verb::UnitApply { unit: unit.clone(), spec: Box::new(serde_json::from_value(spec).unwrap()), run: Some(run) }
}

#[tokio::test]
async fn tick_reads_units_after_a_commit_that_nobody_told_of() {
    let host = Host::start().await;
    let unit = unit("hello");
    host.edit(&apply(&unit, "a", Run::Stopped)).await.unwrap();
    host.tick().await;
    host.until_phase(&unit, Phase::Stopped).await;
    // What the task itself has stored was read again, and now there is nothing new.
    host.tick().await;

    // A change that no commit of the agent has made shows that nothing is read.
    let other = sqlx::SqlitePool::connect(host.folder.path().join("agent.db").to_str().unwrap()).await.unwrap();
    let change = "UPDATE unit SET run = 'running', generation = generation + 1";
    sqlx::query(change).execute(&other).await.unwrap();
    let generation = |host: &Host| host.units.states().borrow()[&unit].desired.generation;
    let before = generation(&host);
    host.tick().await;
    assert_eq!(generation(&host), before);

    host.store.begin().await.unwrap().commit().await.unwrap();
    host.tick().await;
    host.until_phase(&unit, Phase::Running).await;
    assert_eq!(generation(&host), before + 1);
}

#[tokio::test]
async fn unit_is_installed_started_stopped_and_removed() {
    let host = Host::start().await;
    let unit = unit("hello");
    host.verb(&apply(&unit, "a", Run::Stopped)).await.unwrap();
    let state = host.until_phase(&unit, Phase::Stopped).await;
    assert_eq!(state.observed.revision.as_ref(), Some(&state.desired.revision));

    host.verb(&Verb::UnitRun { unit: unit.clone() }).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert_eq!((state.observed.instance().pid, state.process), (Some(1_001), Some((1_001, 1))));
    let last = FollowFrom::Last(7);
    assert_eq!(host.units.log(&unit, last, LogView::default()).await.unwrap().text, b"7 lines");
    assert_eq!(host.verb(&Verb::UnitRm { unit: unit.clone() }).await.unwrap_err().code, RefusalCode::Conflict);

    host.fake.end(&unit, Exit::Signal(11));
    let state = host.until(&unit, |state| state.observed.instance().pid == Some(1_002)).await;
    assert_eq!((state.observed.exit(), state.observed.attempts), (Some(Exit::Signal(11)), 1));

    host.verb(&Verb::UnitRestart { unit: unit.clone() }).await.unwrap();
    let restarted = host.until(&unit, |state| state.observed.instance().pid == Some(1_003)).await;
    assert_ne!(restarted.desired.revision, state.desired.revision);
    host.until_phase(&unit, Phase::Running).await;

    host.verb(&Verb::UnitStop { unit: unit.clone() }).await.unwrap();
    let state = host.until_phase(&unit, Phase::Stopped).await;
    assert_eq!((state.observed.exit(), state.observed.instance().pid), (Some(Exit::Signal(15)), None));
    assert_eq!(host.verb(&Verb::UnitRm { unit: unit.clone() }).await.unwrap_err().code, RefusalCode::Conflict);
    host.verb(&Verb::UnitRetire { unit: unit.clone(), note: None }).await.unwrap();
    assert_eq!(host.verb(&Verb::UnitRm { unit: unit.clone() }).await, Ok(None));
    host.until_gone(&unit).await;
    let gone = host.units.log(&unit, last, LogView::default()).await.unwrap_err();
    assert_eq!(gone.code, RefusalCode::NotFound);
    // One of the same name is another one.
    host.verb(&apply(&unit, "a", Run::Running)).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    assert_eq!(host.fake.world().removed, [unit]);
}

#[tokio::test]
async fn removed_unit_is_listed_until_gone() {
    let host = Host::start().await;
    let unit = unit("hello");
    host.verb(&apply(&unit, "a", Run::Stopped)).await.unwrap();
    host.until_phase(&unit, Phase::Stopped).await;
    host.verb(&Verb::UnitRetire { unit: unit.clone(), note: None }).await.unwrap();
    let before = host.until_phase(&unit, Phase::Stopped).await;
    host.fake.world().stuck = vec![Failure { error: "it is in use".into(), may_heal: true }];
    host.verb(&Verb::UnitRm { unit: unit.clone() }).await.unwrap();
    let state = host
        .until(&unit, |state| state.observed.error.as_ref().map(|error| error.cause.as_str()) == Some("it is in use"))
        .await;
    assert_eq!((&state.desired, &state.hold), (&before.desired, &before.hold));
    assert_eq!((state.observed.phase(), host.store.units().await.unwrap().units.len()), (Phase::Absent, 0));
    host.until_gone(&unit).await;
    assert_eq!(host.fake.world().removed, [unit]);
}

#[tokio::test]
async fn slow_unit_does_not_block_others() {
    let host = Host::start().await;
    let (slow, quick) = (unit("slow"), unit("quick"));
    host.verb(&apply(&slow, "a", Run::Running)).await.unwrap();
    host.until(&slow, |state| state.observed.phase() == Phase::Installing).await;
    host.verb(&apply(&quick, "a", Run::Running)).await.unwrap();
    host.until_phase(&quick, Phase::Running).await;
    let half = Progress { done_bytes: 1, total_bytes: 2 };
    let state = host.until(&slow, |state| state.observed.progress == Some(half)).await;
    assert_eq!(state.observed.phase(), Phase::Installing);
    assert_eq!(host.store.units().await.unwrap().units[1].kept.observed.progress, None);
    host.fake.slow.notify_one();
    assert_eq!(host.until_phase(&slow, Phase::Running).await.observed.progress, None);
}

#[tokio::test]
async fn unwanted_install_is_cancelled() {
    let host = Host::start().await;
    let slow = unit("slow");
    host.verb(&apply(&slow, "a", Run::Stopped)).await.unwrap();
    host.until(&slow, |state| state.observed.phase() == Phase::Installing).await;
    host.verb(&Verb::UnitRetire { unit: slow.clone(), note: None }).await.unwrap();
    host.verb(&Verb::UnitRm { unit: slow.clone() }).await.unwrap();
    host.until_gone(&slow).await;
    host.verb(&apply(&slow, "b", Run::Running)).await.unwrap();
    host.until(&slow, |state| state.observed.phase() == Phase::Installing).await;
    host.fake.slow.notify_one();
    host.until_phase(&slow, Phase::Running).await;
    assert_eq!(host.fake.world().removed, [slow]);
}

#[tokio::test]
async fn running_unit_is_adopted_after_restart() {
    let mut host = Host::start().await;
    let (one, two, three) = (unit("one"), unit("two"), unit("three"));
    for unit in [&one, &two, &three] {
        host.verb(&apply(unit, "a", Run::Running)).await.unwrap();
    }
    for unit in [&one, &two, &three] {
        host.until_phase(unit, Phase::Running).await;
    }
    let before = host.units.states().borrow().clone();
    host.stop().await;
    // While the agent is away one goes on, one ends, and one shall stop.
    host.fake.end(&two, Exit::Code(3));
    host.verb(&Verb::UnitStop { unit: three.clone() }).await.unwrap();
    host.restart().await;
    assert_eq!(host.until(&one, |state| state.process.is_some()).await, *before[&one]);
    let state = host.until(&two, |state| state.observed.instance().pid != before[&two].observed.instance().pid).await;
    assert_eq!((state.observed.exit(), state.observed.attempts), (Some(Exit::Code(3)), 1));
    host.until_phase(&three, Phase::Stopped).await;
    assert_eq!(host.fake.world().starts, 4);

    // And an end that is known is not news once more.
    host.until_phase(&two, Phase::Running).await;
    let before = host.units.states().borrow().clone();
    host.restart().await;
    for unit in [&one, &two, &three] {
        assert_eq!(host.until(unit, |state| state.process == before[unit].process).await, *before[unit]);
    }
    assert_eq!(host.fake.world().starts, 4);
}

#[tokio::test]
async fn unknown_unit_is_stopped_and_removed() {
    let mut host = Host::start().await;
    let (known, forgotten, unreadable) = (unit("known"), unit("forgotten"), unit("unreadable"));
    for unit in [&known, &forgotten, &unreadable] {
        host.verb(&apply(unit, "a", Run::Running)).await.unwrap();
        host.until_phase(unit, Phase::Running).await;
    }
    host.stop().await;
    let mut tx = host.store.begin().await.unwrap();
    sqlx::query("DELETE FROM unit WHERE name = 'default/forgotten'").execute(&mut *tx).await.unwrap();
    sqlx::query("UPDATE unit SET spec = '{}' WHERE name = 'default/unreadable'").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    host.fake.world().traces = vec![known.clone(), forgotten.clone(), unreadable.clone()];
    host.restart().await;
    host.until_phase(&known, Phase::Running).await;
    eventually(|| host.fake.world().removed == [forgotten.clone()]).await;
    let alive: Vec<UnitName> = host.fake.world().alive.keys().cloned().collect();
    assert_eq!(alive, [known, unreadable]);
}

#[tokio::test]
async fn permanent_failure_waits_and_temporary_one_is_retried() {
    let mut host = Host::start().await;
    let unit = unit("hello");
    let failure = |may_heal| Failure { error: "it cannot be had".into(), may_heal };
    host.fake.world().failures = vec![failure(false), failure(true)];
    host.verb(&apply(&unit, "a", Run::Running)).await.unwrap();
    let state = host.until_phase(&unit, Phase::Failed).await;
    assert_eq!(state.observed.error.as_ref().map(|error| error.cause.as_str()), Some("it cannot be had"));
    assert_eq!(host.fake.world().installs.len(), 2);
    // Nor does another life of the agent make it better.
    host.restart().await;
    assert_eq!(host.until_phase(&unit, Phase::Failed).await, state);
    host.verb(&Verb::UnitRun { unit: unit.clone() }).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert_eq!((state.observed.error, host.fake.world().installs.len()), (None, 3));
}

#[tokio::test]
async fn hold_survives_restart_and_keeps_unit_running() {
    let mut host = Host::start().await;
    let unit = unit("hello");
    host.verb(&apply(&unit, "a", Run::Running)).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    host.verb(&Verb::UnitHold { unit: unit.clone(), note: Some("audit".to_owned()) }).await.unwrap();
    let before = host.until_phase(&unit, Phase::Running).await;
    let hold = before.hold.clone().unwrap();
    assert_eq!((hold.reason, hold.note.as_deref()), (HoldReason::Operator, Some("audit")));
    host.verb(&apply(&unit, "b", Run::Running)).await.unwrap();
    assert_eq!(host.until_phase(&unit, Phase::Running).await.process, before.process);
    host.restart().await;
    assert_eq!(host.until(&unit, |state| state.process.is_some()).await.process, before.process);
    host.fake.end(&unit, Exit::Code(1));
    let state = host.until(&unit, |state| state.process.is_none()).await;
    assert_eq!((state.hold, host.fake.world().starts), (Some(hold), 1));
    host.verb(&Verb::UnitUnhold { unit: unit.clone() }).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert_eq!((state.observed.revision, state.hold), (Some(state.desired.revision), None));
}

#[tokio::test]
async fn frozen_and_signalled() {
    let host = Host::start().await;
    let unit = unit("hello");
    assert_eq!(host.units.signal(&unit, Signal::Hup).await.unwrap_err().code, RefusalCode::NotFound);
    host.verb(&apply(&unit, "a", Run::Stopped)).await.unwrap();
    host.until_phase(&unit, Phase::Stopped).await;
    assert_eq!(host.units.signal(&unit, Signal::Hup).await.unwrap_err().code, RefusalCode::Conflict);
    host.verb(&Verb::UnitRun { unit: unit.clone() }).await.unwrap();
    let running = host.until_phase(&unit, Phase::Running).await;
    host.units.signal(&unit, Signal::Usr1).await.unwrap();
    assert_eq!(host.fake.world().signals, [(unit.clone(), Signal::Usr1)]);
    host.verb(&Verb::UnitFreeze { unit: unit.clone() }).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert!(state.observed.instance().frozen && state.process == running.process);
    host.verb(&Verb::UnitThaw { unit: unit.clone() }).await.unwrap();
    assert!(!host.until_phase(&unit, Phase::Running).await.observed.instance().frozen);
}

async fn eventually(what: impl Fn() -> bool) {
    let waited = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("should come about");
}
