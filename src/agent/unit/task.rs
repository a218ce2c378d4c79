//! The task that keeps all units: a loop that observes, plans, stores, publishes and begins steps.

use muster_session::unit_state::UnitStates;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_base::{chance::random, clock::now_ms, clock_steps::ClockSteps, crash};
use muster_rules::{
    CommandRefusal,
    conflict::ConflictVerdict,
    desired::together::MemberStep,
    edit,
    plan::{Slot, UnitEvent},
    port_lease::{self, EndpointWiring, PortLease, PortProvision, SpecEndpoints},
    realm::Realms,
};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    outcome::RefusalCode,
    signal::Signal,
    snapshot::Pins,
    unit::{Desired, Run, Spec},
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    entry::{Entries, UnitEntry, publish, unpublish},
    kind::UnitTrace,
    kinds::Kinds,
    start_order::{self, UnconfirmedPlaces},
    step::{InstanceOrder, StepReport, Worker, no_process},
    task_log::OwedReports,
    together,
};
use crate::{
    metric::reconcile_time::ReconcileTime,
    store::{
        Store, StoreError,
        desired_copy::IntentCopy,
        document,
        unit::{StoredUnit, StoredUnits},
    },
};

/// How often everything is examined, changed or not. A tenth of it is random, so that hosts that were switched on
/// together drift apart.
const TICK: Duration = Duration::from_secs(30);

/// After this many ticks, about an hour, what no unit needs any more is removed.
const SWEEP_TICKS: u32 = 120;

/// Reports that wait for the loop. When the queue is full, senders wait and lose nothing: the state of a process is in
/// its shim's files.
const REPORTS_MAX: usize = 64;

/// Requests of operators that wait for the loop; each is answered at once.
pub(super) const REQUESTS_MAX: usize = 16;

/// An event of the loop.
enum UnitsEvent {
    /// The desired state in the store has changed.
    Changed,
    /// A report about a unit.
    Reported(Box<StepReport>),
    /// What changes of units owe has changed.
    Owed,
    /// An operator's request that does not change the desired state.
    Asked(SignalRequest),
    /// Time has passed.
    Tick,
}

/// A signal for a unit's process.
#[derive(Debug)]
pub(super) struct SignalRequest {
    pub(super) unit: UnitName,
    pub(super) signal: Signal,
    pub(super) answer: oneshot::Sender<Result<(), CommandRefusal>>,
}

pub(super) struct UnitsTask {
    store: Store,
    kinds: Kinds,
    entries: Entries,
    changed: Arc<Notify>,
    /// Notified when all units are to be examined now.
    look: Arc<Notify>,
    publish: watch::Sender<UnitStates>,
    reports: mpsc::Sender<StepReport>,
    reported: mpsc::Receiver<StepReport>,
    requests: mpsc::Receiver<SignalRequest>,
    owed: watch::Receiver<OwedReports>,
    work: JoinSet<()>,
    next_tick: Instant,
    ticks: u32,
    /// The number of commits to the store when all units were last read from it; `None` if they are to be read again.
    read_at: Option<u64>,
    /// Units from the start that have not been looked up yet.
    to_look_up: BTreeSet<UnitName>,
    looked_up: watch::Sender<bool>,
    /// When all units were last reconciled.
    reconciled: watch::Sender<Option<ReconcileTime>>,
    /// Whether another unit's expectation has changed, so that the start order has to be checked.
    ways_changed: bool,
    /// Units of deployments whose failure was seen.
    failed: BTreeSet<UnitName>,
    /// Whether a unit was rolled back to another spec, so that ports and connections have to be computed again.
    wires_changed: bool,
    /// Instances that may have moved to another host.
    unconfirmed: watch::Sender<UnconfirmedPlaces>,
    /// By how much the clock was set.
    clock: ClockSteps,
}

impl UnitsTask {
    pub(super) fn new(
        store: Store,
        kinds: Kinds,
        [changed, look]: [Arc<Notify>; 2],
        requests: mpsc::Receiver<SignalRequest>,
        publish: watch::Sender<UnitStates>,
    ) -> Self {
        let (reports, reported) = mpsc::channel(REPORTS_MAX);
        let (entries, work) = (BTreeMap::new(), JoinSet::new());
        let (to_look_up, looked_up) = (BTreeSet::new(), watch::Sender::new(false));
        let (next_tick, ticks) = (next_tick(), 0);
        let owed = kinds.tasks.reported_owed();
        Self {
            store,
            kinds,
            entries,
            changed,
            look,
            publish,
            reports,
            reported,
            requests,
            owed,
            work,
            next_tick,
            ticks,
            read_at: None,
            to_look_up,
            looked_up,
            reconciled: watch::Sender::new(None),
            ways_changed: false,
            failed: BTreeSet::new(),
            wires_changed: false,
            unconfirmed: watch::Sender::default(),
            clock: ClockSteps::new(now_ms()),
        }
    }

    /// Instances that wait until the console has confirmed that they are still placed here.
    pub(super) fn unconfirmed(&self) -> watch::Sender<UnconfirmedPlaces> {
        self.unconfirmed.clone()
    }

    /// Where reports about units go.
    pub(super) fn reports(&self) -> mpsc::Sender<StepReport> {
        self.reports.clone()
    }

    /// Whether all units from the start have been looked up.
    pub(super) fn looked_up(&self) -> watch::Receiver<bool> {
        self.looked_up.subscribe()
    }

    /// When all units were last reconciled, and how long that took.
    pub(super) fn reconciled(&self) -> watch::Receiver<Option<ReconcileTime>> {
        self.reconciled.subscribe()
    }

    /// Reads all units, and starts to look up their instances, and those of other units that left traces.
    pub(super) async fn load(&mut self) -> Result<(), StoreError> {
        let stored = self.store.units().await?;
        // Clocks are not to be relied on after a boot, so that it does not count how long this host was away.
        self.unconfirmed.send_replace(document::reschedulable(&self.store).await?);
        let complete_ms = self.store.complete_since_ms().await?;
        let known: BTreeSet<&str> = stored.units.iter().map(|row| row.name.as_str()).collect();
        let unreadable: BTreeSet<&str> = stored.unreadable.iter().map(String::as_str).collect();
        for kind in self.kinds.iter() {
            let traces = kind.traces().unwrap_or_else(|error| {
                tracing::error!(kind = kind.name(), %error, "leftovers of earlier agent runs cannot be listed");
                Vec::new()
            });
            for UnitTrace { unit: name, at_ms } in traces {
                if known.contains(name.as_str()) || unreadable.contains(name.as_str()) {
                    continue;
                }
                if at_ms < complete_ms {
                    tracing::warn!(
                        unit = %name,
                        consequence = "they are left unchanged",
                        hint = "apply the unit again: its running process is kept",
                        "a unit has traces from before the agent's \
                            store was made or lost data",
                    );
                } else {
                    tracing::info!(unit = %name, "an unknown unit has traces, which are removed");
                    self.entries.insert(name, Box::new(UnitEntry::new(None, kind.clone())));
                }
            }
        }
        self.take_in(stored).await;
        self.to_look_up = self.entries.keys().cloned().collect();
        self.looked_up.send_replace(self.to_look_up.is_empty());
        self.drive_all().await;
        self.settle().await;
        Ok(())
    }

    /// Supervises all units as long as it is polled. Dropping it is safe: everything that counts is in the store, in
    /// files, or in a shim.
    pub(super) async fn run(mut self) {
        loop {
            let event = self.next().await;
            self.follow_clock();
            match event {
                UnitsEvent::Changed => self.sync().await,
                UnitsEvent::Reported(report) => {
                    let StepReport { unit, slot, seen } = *report;
                    self.handle_event(unit, slot, seen).await;
                }
                UnitsEvent::Owed => self.publish_owed(),
                UnitsEvent::Asked(request) => self.signal(request),
                UnitsEvent::Tick => self.tick().await,
            }
            self.settle().await;
            // Removes finished tasks from the set.
            while let Some(ended) = self.work.try_join_next() {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    tracing::error!(%error, "a step of a unit failed unexpectedly");
                }
            }
        }
    }

    async fn next(&mut self) -> UnitsEvent {
        let now = now_ms();
        let wakes = self.entries.values().filter_map(|entry| entry.wake_ms);
        let wake_in = wakes.min().map(|at_ms| Duration::from_millis(at_ms.saturating_sub(now).max(0).unsigned_abs()));
        let wake = wake_in.map_or(self.next_tick, |wait| self.next_tick.min(Instant::now() + wait.min(TICK)));
        tokio::select! {
            // A permit is kept until it is taken: cancel-safe.
            () = self.changed.notified() => UnitsEvent::Changed,
            () = self.look.notified() => {
                self.next_tick = Instant::now();
                UnitsEvent::Tick
            }
            // A channel's receive is cancel-safe; this one never ends, because the loop holds a sender itself.
            Some(report) = self.reported.recv() => UnitsEvent::Reported(Box::new(report)),
            // As above; it ends with the last handle, after which there are no requests.
            Some(request) = self.requests.recv() => UnitsEvent::Asked(request),
            // Cancel-safe; the sender lives as long as the kinds of units.
            Ok(()) = self.owed.changed() => UnitsEvent::Owed,
            () = tokio::time::sleep_until(wake) => UnitsEvent::Tick,
        }
    }

    /// Has all units wait as long as they would have if the clock was set.
    fn follow_clock(&mut self) {
        let now = now_ms();
        match self.clock.take(now) {
            0 => {}
            by_ms => {
                tracing::warn!(
                    by_ms,
                    "the clock was set, or the host was suspended; waiting times of units are unchanged"
                );
                for entry in self.entries.values_mut() {
                    entry.unit.observe(UnitEvent::ClockSet(by_ms), now);
                }
            }
        }
    }

    /// Publishes units whose changes owe something else now.
    fn publish_owed(&mut self) {
        let owed = self.owed.borrow_and_update().clone();
        for (name, entry) in &self.entries {
            publish(&self.publish, name, entry, &owed);
        }
    }

    /// Reads the desired state.
    async fn sync(&mut self) {
        let commits = self.store.commits();
        match self.store.units().await {
            Ok(stored) => {
                self.read_at = Some(commits);
                self.take_in(stored).await;
            }
            // The next tick tries again; instances continue.
            Err(error) => {
                self.read_at = None;
                tracing::error!(%error, hint = Diagnostic::of(&error).hint, "the units' desired state cannot be read");
            }
        }
    }

    async fn take_in(&mut self, stored: StoredUnits) {
        let mut changed = BTreeSet::new();
        let StoredUnits { units, unreadable, leases, realms, snapshots } = stored;
        let known: BTreeSet<UnitName> = units.iter().map(|row| row.name.clone()).collect();
        for row in units {
            let name = row.name.clone();
            if self.take_in_row(row) {
                changed.insert(name);
            }
        }
        if let Err(error) = self.store.intent().keep_realms(&realms).await {
            self.read_at = None;
            tracing::error!(%error, "the second copy of the realms cannot be written");
        }
        for (name, entry) in &mut self.entries {
            entry.leases = leases.iter().filter(|lease| lease.unit == *name).cloned().collect();
            let is_forgotten = !known.contains(name) && !unreadable.iter().any(|other| other == name.as_str());
            if is_forgotten && entry.unit.desired.is_some() {
                self.store.intent().forget(name);
                entry.unit.observe(UnitEvent::Desired(None, None), now_ms());
                changed.insert(name.clone());
            }
        }
        for (name, entry) in &mut self.entries {
            let pins = pins(snapshots.as_ref(), name, entry.unit.asked());
            if entry.pins != pins {
                entry.pins = pins;
                changed.insert(name.clone());
            }
        }
        for (name, (wiring, lack)) in wire_all(&self.entries, &leases, &realms) {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            let is_new = *entry.unit.wiring() != wiring || entry.unit.lack() != lack.as_deref();
            if is_new || entry.unit.needs_wiring() {
                entry.unit.observe(UnitEvent::Wired(wiring, lack), now_ms());
                changed.insert(name);
            }
        }
        changed.extend(self.settle_conflicts());
        for name in changed {
            self.drive(&name).await;
        }
    }

    /// Decides which units give way to others that want the same; returns those for which that has changed.
    fn settle_conflicts(&mut self) -> Vec<UnitName> {
        let mut verdicts = together::conflicts(&self.entries);
        let mut changed = Vec::new();
        for (name, entry) in &mut self.entries {
            let verdict = verdicts.remove(name);
            let is_known = match &verdict {
                Some(ConflictVerdict::Hold(why)) => entry.unit.conflict() == Some(why),
                Some(ConflictVerdict::GoBack(_)) => false,
                None => entry.unit.conflict().is_none(),
            };
            if is_known {
                continue;
            }
            match &verdict {
                Some(ConflictVerdict::GoBack(why) | ConflictVerdict::Hold(why)) => {
                    tracing::warn!(unit = %name, why, hint = "`muster unit show` shows more", "a unit conflicts with another");
                }
                None => tracing::info!(unit = %name, "a unit no longer conflicts with another"),
            }
            entry.unit.observe(UnitEvent::Conflict(verdict), now_ms());
            self.wires_changed |= entry.unit.needs_wiring();
            changed.push(name.clone());
        }
        self.kinds.owners.set(together::owners(&self.entries));
        changed
    }

    /// Has units of one version of a deployment go back together, and be verified together.
    async fn settle_versions(&mut self) {
        // A unit goes back once; then nothing is left to do.
        for _ in 0..=self.entries.len() {
            let steps = together::steps(&self.entries, &mut self.failed, now_ms());
            if steps.is_empty() {
                return;
            }
            for (name, MemberStep { back, waits, stays }) in steps {
                let Some(entry) = self.entries.get_mut(&name) else { continue };
                // First, because a revision that waits no more may be verified at once.
                if let Some(why) = back {
                    tracing::warn!(unit = %name, why = why.cause, hint = why.hint, "a unit is rolled back with another one of its deployment");
                    entry.unit.observe(UnitEvent::GroupFailed(why), now_ms());
                }
                entry.unit.observe(UnitEvent::GroupWaits(waits), now_ms());
                entry.unit.observe(UnitEvent::GroupStays(stays), now_ms());
                self.drive(&name).await;
            }
        }
    }

    /// Takes a unit's row over; returns whether it changed.
    fn take_in_row(&mut self, row: StoredUnit) -> bool {
        let StoredUnit { name, desired, hold, owner, kept } = row;
        let Some(kind) = self.kinds.of(&desired.spec) else {
            tracing::error!(unit = %name, kind = desired.spec.kind(), "this agent cannot keep units of this kind");
            return false;
        };
        let entry = self
            .entries
            .entry(name)
            .or_insert_with(|| Box::new(UnitEntry::new(Some((kept, hold.clone())), kind.clone())));
        // It was removed and created again as another kind: first its remains have to be removed.
        let desired = (entry.kind.name() == desired.spec.kind()).then_some(desired);
        let generation = |desired: &Option<Desired>| desired.as_ref().map(|desired| desired.generation);
        let is_other_owner = std::mem::replace(&mut entry.owner, owner.clone()) != owner;
        if entry.unit.asked().map(|asked| asked.generation) == generation(&desired) {
            return is_other_owner;
        }
        entry.unit.observe(UnitEvent::Desired(desired.map(Box::new), hold), now_ms());
        true
    }

    async fn handle_event(&mut self, name: UnitName, slot: Slot, seen: UnitEvent) {
        let Some(entry) = self.entries.get(&name) else { return };
        let seen = entry.unit.seen_in(slot, seen);
        if matches!(seen, UnitEvent::Found(_) | UnitEvent::NotLookedUp { .. })
            && self.to_look_up.remove(&name)
            && self.to_look_up.is_empty()
        {
            self.looked_up.send_replace(true);
        }
        let Some(entry) = self.entries.get_mut(&name) else { return };
        let is_gone = seen == UnitEvent::Removed && entry.unit.desired.is_none();
        if is_gone {
            self.entries.remove(&name);
            unpublish(&self.publish, &name);
            self.ways_changed = true;
            // There may be a new unit of its name meanwhile.
            return self.sync().await;
        }
        tracing::debug!(unit = %name, ?seen);
        entry.unit.observe(seen, now_ms());
        self.drive(&name).await;
    }

    /// Forwards a signal to the task of the unit's instance, which answers.
    fn signal(&self, SignalRequest { unit, signal, answer }: SignalRequest) {
        let orders = match self.entries.get(&unit).filter(|entry| entry.unit.desired.is_some()) {
            None => Err(edit::unknown(&unit)),
            Some(entry) if entry.unit.process().is_none() => Err(no_process(&unit)),
            Some(entry) => entry.to_instance().ok_or_else(|| no_process(&unit)),
        };
        // The requester may have ended meanwhile.
        match orders.map(|orders| orders.try_reserve()) {
            Ok(Ok(place)) => place.send(InstanceOrder::Signal(signal, answer)),
            Ok(Err(_)) => {
                let message = format!("{unit} still handles earlier signals");
                drop(answer.send(Err(CommandRefusal::new(RefusalCode::Busy, message))));
            }
            Err(refusal) => drop(answer.send(Err(refusal))),
        }
    }

    async fn tick(&mut self) {
        let began = Instant::now();
        let is_for_all = began >= self.next_tick;
        if is_for_all {
            self.next_tick = next_tick();
            self.ticks = self.ticks.wrapping_add(1);
            if self.ticks.is_multiple_of(SWEEP_TICKS) {
                self.sweep().await;
            }
            if self.read_at != Some(self.store.commits()) {
                self.sync().await;
            } else {
                for name in self.settle_conflicts() {
                    self.drive(&name).await;
                }
            }
            for (name, entry) in &self.entries {
                entry.check_watched_files(name, &self.reports, &mut self.work);
            }
        }
        self.drive_all().await;
        if is_for_all {
            let at = Instant::now();
            self.reconciled.send_replace(Some(ReconcileTime { at, took: at - began }));
        }
    }

    async fn drive_all(&mut self) {
        let names: Vec<UnitName> = self.entries.keys().cloned().collect();
        for name in names {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.unit.observe(UnitEvent::Tick, now_ms());
                self.drive(&name).await;
            }
        }
    }

    /// Plans units that wait for others, as long as the others' expectations change.
    async fn settle(&mut self) {
        self.settle_versions().await;
        // A unit is rolled back once; if its ports cannot be computed now, the next tick does it.
        if std::mem::take(&mut self.wires_changed) {
            self.sync().await;
        }
        // Each round starts at least one unit, or is the last.
        for _ in 0..=self.entries.len() {
            if !std::mem::take(&mut self.ways_changed) {
                return;
            }
            let stale = start_order::stale(&self.entries, &self.unconfirmed.borrow(), now_ms());
            for name in stale {
                self.drive(&name).await;
            }
        }
    }

    /// Plans a unit until it rests or waits; stores and publishes its state, and begins its steps.
    async fn drive(&mut self, name: &UnitName) {
        let gate = start_order::gate(name, &self.entries, &self.unconfirmed.borrow(), now_ms());
        let Some(entry) = self.entries.get_mut(name) else { return };
        if *entry.unit.gate() != gate {
            entry.unit.observe(UnitEvent::Gate(gate), now_ms());
        }
        let steps = entry.plan(name, now_ms());
        self.wires_changed |= entry.unit.needs_wiring();
        let stand = start_order::OrderState::of(&entry.unit, now_ms());
        self.ways_changed |= entry.stand.replace(stand) != Some(stand);
        if let Some(desired) = &entry.unit.desired {
            let (generation, now) = (desired.generation, (entry.unit.kept(), entry.unit.hold.clone()));
            if entry.kept.as_ref() != Some(&now) {
                match self.store.keep_unit(name, generation, &now.0, now.1.as_ref()).await {
                    Ok(()) => entry.kept = Some(now),
                    // A full disk must not stop supervision; the next change or tick tries again.
                    Err(error) => {
                        tracing::error!(unit = %name, %error, hint = Diagnostic::of(&error).hint, "a unit's observed state cannot be stored");
                    }
                }
            }
        }
        if let Some(asked) = entry.unit.asked() {
            let copy = IntentCopy::new(
                name,
                asked,
                (entry.unit.hold.as_ref(), entry.owner.as_ref()),
                &entry.unit.kept(),
                &entry.leases,
            );
            if let Err(error) = self.store.intent().keep(&copy).await {
                tracing::error!(unit = %name, %error, "the second copy of a unit's desired state cannot be written");
            }
        }
        let owed = self.owed.borrow().clone();
        publish(&self.publish, name, entry, &owed);
        crash::point("steps", "before they begin");
        let kind = entry.kind.clone();
        let worker = |slot| Worker { unit: name.clone(), slot, kind: kind.clone(), reports: self.reports.clone() };
        for (slot, step) in steps {
            entry.begin(step, worker(slot), &mut self.work);
        }
        let slot = entry.unit.slot();
        entry.watchers.keep(entry.unit.probing(), || worker(slot), &mut self.work);
    }

    async fn sweep(&self) {
        // Without them it is unknown what is needed.
        let snapshots = match self.store.snapshot_specs().await {
            Ok(specs) => specs,
            Err(error) => {
                return tracing::error!(%error, hint = Diagnostic::of(&error).hint, "nothing is freed: the snapshots' artifacts cannot be read");
            }
        };
        let units = || self.entries.values();
        for kind in self.kinds.iter() {
            let desired = units().filter(|entry| entry.kind.name() == kind.name());
            let desired = desired.filter_map(|entry| entry.unit.asked().cloned());
            // A verified revision is needed as much as the desired one.
            let verified = units().filter_map(|entry| entry.unit.verified()).map(|verified| &*verified.spec);
            let kept = snapshots.iter().chain(verified).filter(|spec| spec.kind() == kind.name()).map(pinned);
            let desired = desired.chain(kept).collect();
            if let Err(error) = kind.sweep(desired).await {
                tracing::warn!(kind = kind.name(), %error, "unused content cannot be removed");
            }
        }
    }
}

/// The desired state that a snapshot pins, as far as the clean-up needs it.
fn pinned(spec: &Spec) -> Desired {
    let revision = spec.revision().unwrap_or_else(|_| Digest::of(b""));
    Desired { generation: 0, revision, spec: spec.clone().into(), run: Run::Stopped, frozen: false }
}

/// Returns what snapshots need of a unit beyond its desired state. Unreadable ones may need anything.
fn pins(snapshots: Option<&BTreeMap<UnitName, Vec<Spec>>>, unit: &UnitName, desired: Option<&Desired>) -> Pins {
    match (snapshots, desired) {
        (None, _) => Pins { and_more: true, ..Pins::default() },
        (Some(snapshots), Some(desired)) => Pins::of(snapshots.get(unit).into_iter().flatten(), &desired.spec),
        (Some(_), None) => Pins::default(),
    }
}

/// Computes the ports and connections of each unit.
fn wire_all(
    entries: &Entries,
    leases: &[PortLease],
    realms: &Realms,
) -> Vec<(UnitName, (EndpointWiring, Option<String>))> {
    // A rolled-back unit provides and requires what the verified revision does.
    let specs = || {
        entries.iter().filter_map(move |(name, entry)| {
            let desired = entry.unit.desired.as_ref()?;
            Some((name, SpecEndpoints::from(&*desired.spec)))
        })
    };
    let provision = PortProvision::new(specs(), leases);
    specs().map(|(name, spec)| (name.clone(), port_lease::wire(name, spec, &provision, realms))).collect()
}

fn next_tick() -> Instant {
    Instant::now() + TICK.mul_f64(0.95 + 0.1 * random())
}
