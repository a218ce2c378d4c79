//! A unit in the units' task: its state, and the tasks that work for it.

use muster_session::unit_state::{UnitState, UnitStates};
use std::{collections::BTreeMap, sync::Arc};

use muster_base::clock::now_ms;
use muster_rules::{
    plan::{EffectiveInstance, PlanStep, PlannedUnit, RestoredUnit, Slot, UnitEvent},
    port_lease::PortLease,
};
use muster_topics::{
    Millis,
    desired::UnitOwner,
    name::UnitName,
    snapshot::Pins,
    task::OwedReport,
    unit::{Desired, Hold, Observed, Run},
};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
};

use super::{
    health::ProbeTasks,
    kind::{StartOrder, UnitKind},
    start_order,
    step::{InstanceOrder, StepReport, StopOrder, Worker},
    task_log::OwedReports,
};

/// Requests that wait for one instance. The planner asks for an end once per grace period, and to freeze every few
/// seconds; the rest is for signals of operators and for reloads.
const ORDERS_MAX: usize = 8;

/// More steps than any plan has in a row; a planner that does not come to rest must not block the loop.
const STEPS_MAX: usize = 8;

/// All units of the task. Each has a place of its own: a map keeps room for twice as many as it has.
pub(super) type Entries = BTreeMap<UnitName, Box<UnitEntry>>;

/// A unit, and the tasks that work for it.
pub(super) struct UnitEntry {
    pub(super) unit: PlannedUnit,
    pub(super) kind: Arc<dyn UnitKind>,
    /// The tasks of its instances.
    orders: BTreeMap<Slot, mpsc::Sender<InstanceOrder>>,
    /// The download, which may be cancelled.
    install: Option<AbortHandle>,
    /// The state that is stored.
    pub(super) kept: Option<(RestoredUnit, Option<Hold>)>,
    /// The deployment that it belongs to.
    pub(super) owner: Option<UnitOwner>,
    /// Its ports.
    pub(super) leases: Vec<PortLease>,
    /// What snapshots need of it beyond its desired state.
    pub(super) pins: Pins,
    /// Its probes.
    pub(super) watchers: ProbeTasks,
    /// When to plan again.
    pub(super) wake_ms: Option<Millis>,
    /// Its place in the start order.
    pub(super) stand: Option<start_order::OrderState>,
}

impl UnitEntry {
    pub(super) fn new(kept: Option<(RestoredUnit, Option<Hold>)>, kind: Arc<dyn UnitKind>) -> Self {
        let unit = PlannedUnit::new(kept.clone().map(|(kept, _)| kept), now_ms());
        Self {
            unit,
            kind,
            orders: BTreeMap::new(),
            install: None,
            kept,
            owner: None,
            leases: Vec::new(),
            pins: Pins::default(),
            watchers: ProbeTasks::default(),
            wake_ms: None,
            stand: None,
        }
    }

    /// Returns the steps to begin now, each with the slot of the main instance. The planner already counts them as
    /// begun.
    pub(super) fn plan(&mut self, name: &UnitName, now_ms: Millis) -> Vec<(Slot, PlanStep)> {
        let mut steps = Vec::new();
        self.wake_ms = None;
        while let Some(step) = self.unit.plan(now_ms) {
            if let PlanStep::WaitUntil(at_ms) = step {
                self.wake_ms = Some(at_ms);
                break;
            }
            if steps.len() == STEPS_MAX {
                tracing::error!(unit = %name, ?steps, "the planner finds no rest");
                break;
            }
            steps.push((self.unit.slot(), step));
            self.unit.observe(UnitEvent::Began(step), now_ms);
        }
        steps
    }

    pub(super) fn begin(&mut self, step: PlanStep, worker: Worker, work: &mut JoinSet<()>) {
        tracing::debug!(unit = %worker.unit, ?step);
        let keep = self.unit.verified().map(|verified| verified.revision.clone());
        match (step, self.unit.desired.clone()) {
            (PlanStep::Adopt, _) => {
                let orders = self.orders(worker.slot);
                let beside = (!self.unit.knows_second()).then(|| self.orders(worker.slot.other()));
                work.spawn(worker.adopt(orders, beside));
            }
            (PlanStep::Install, Some(desired)) => {
                self.give_up_install();
                self.install = Some(work.spawn(worker.install(desired, keep)));
            }
            (PlanStep::Start { attempts }, Some(desired)) => {
                let orders = self.orders(worker.slot);
                let wiring = self.unit.wiring().clone();
                // The instance that it replaced may play until it has ended.
                let desired = if self.unit.has_second() { unplayed(desired) } else { desired };
                let start = StartOrder { slot: worker.slot, desired, keep, wiring, attempts, beside: false };
                work.spawn(worker.start(start, orders));
            }
            (PlanStep::StartSecond, Some(desired)) => {
                let worker = Worker { slot: worker.slot.other(), ..worker };
                let orders = self.orders(worker.slot);
                // The instance that it will replace plays until it has ended.
                let (desired, wiring) = (unplayed(desired), self.unit.wiring().clone());
                let start = StartOrder { slot: worker.slot, desired, keep, wiring, attempts: 0, beside: true };
                work.spawn(worker.start_second(start, orders));
            }
            (PlanStep::Reload, Some(desired)) => {
                match self.orders.get(&worker.slot).cloned() {
                    Some(orders) => drop(work.spawn(worker.reload(desired, keep, orders))),
                    // There is no instance that would answer.
                    None => self.unit.observe(UnitEvent::NotReloaded(desired.revision), now_ms()),
                }
            }
            // Full or closed: it was asked, or has ended; the planner asks again if needed.
            (PlanStep::Stop { signal, grace_ms }, _) => {
                _ = self.order(worker.slot, InstanceOrder::Stop(StopOrder { signal, grace_ms }));
            }
            (PlanStep::StopSecond { signal, grace_ms }, _) => {
                _ = self.order(worker.slot.other(), InstanceOrder::Stop(StopOrder { signal, grace_ms }));
            }
            (PlanStep::Freeze, _) => _ = self.order(worker.slot, InstanceOrder::Freeze(true)),
            (PlanStep::Thaw, _) => _ = self.order(worker.slot, InstanceOrder::Freeze(false)),
            (PlanStep::Play { playing, ask }, _) => {
                work.spawn(worker.play(playing, ask));
            }
            (PlanStep::Remove, _) => {
                self.give_up_install();
                work.spawn(worker.remove());
            }
            // Only a desired revision is installed and started; a wait is not begun.
            (PlanStep::Install | PlanStep::Start { .. } | PlanStep::StartSecond | PlanStep::Reload, None)
            | (PlanStep::WaitUntil(_), _) => {}
        }
    }

    fn orders(&mut self, slot: Slot) -> mpsc::Receiver<InstanceOrder> {
        let (sender, receiver) = mpsc::channel(ORDERS_MAX);
        self.orders.insert(slot, sender);
        receiver
    }

    /// The task of the main instance.
    pub(super) fn to_instance(&self) -> Option<&mpsc::Sender<InstanceOrder>> {
        self.orders.get(&self.unit.slot())
    }

    /// Sends a request to an instance; returns whether it will be received.
    fn order(&self, slot: Slot, order: InstanceOrder) -> bool {
        self.orders.get(&slot).is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Checks watched files, if the running instance has any.
    pub(super) fn check_watched_files(
        &self,
        name: &UnitName,
        reports: &mpsc::Sender<StepReport>,
        work: &mut JoinSet<()>,
    ) {
        if let (Some(desired), EffectiveInstance::Alive(_), Some(orders)) =
            (&self.unit.desired, &self.unit.instance, self.to_instance())
            && self.kind.has_watched_files(desired)
        {
            let (unit, slot, kind) = (name.clone(), self.unit.slot(), self.kind.clone());
            let worker = Worker { unit, slot, kind, reports: reports.clone() };
            work.spawn(worker.look(desired.clone(), orders.clone()));
        }
    }

    fn give_up_install(&mut self) {
        if let Some(install) = self.install.take() {
            install.abort();
        }
    }
}

/// Returns the same, to be started without being asked to play.
fn unplayed(desired: Desired) -> Desired {
    Desired { run: Run::Running, ..desired }
}

/// Publishes a unit's state, if it changed.
pub(super) fn publish(states: &watch::Sender<UnitStates>, name: &UnitName, entry: &UnitEntry, owed: &OwedReports) {
    states.send_if_modified(|states| {
        let before = states.get(name);
        let owed = owed.get(name).cloned().unwrap_or_default();
        let before = before.map(Arc::as_ref);
        let Some(state) = state(entry, before, owed).filter(|state| before != Some(state)) else { return false };
        Arc::make_mut(states).insert(name.clone(), Arc::new(state));
        true
    });
}

/// Returns a unit's state. A unit that is being removed keeps the desired state it had `before`, until nothing remains
/// of it, so that callers who wait for the removal see its progress. A unit that was removed in an earlier run of the
/// agent is not listed.
fn state(
    UnitEntry { unit, pins, owner, .. }: &UnitEntry,
    before: Option<&UnitState>,
    owed: Vec<OwedReport>,
) -> Option<UnitState> {
    let (observed, slot) = (Observed { owed, ..unit.observed.clone() }, unit.slot());
    let process = unit.process().map(|process| (process.pid, process.start_ticks));
    let Some(desired) = unit.asked().cloned() else {
        return Some(UnitState { observed, slot, process, ..before?.clone() });
    };
    let other = unit.desired.as_ref().filter(|is| is.revision != desired.revision);
    let spec = other.map(|is| is.spec.clone());
    Some(UnitState {
        desired,
        spec,
        observed,
        hold: unit.visible_hold().cloned(),
        owner: owner.clone(),
        pins: pins.clone(),
        slot,
        process,
    })
}

/// Removes a unit's state, once nothing remains of it.
pub(super) fn unpublish(states: &watch::Sender<UnitStates>, name: &UnitName) {
    states.send_if_modified(|states| states.contains_key(name) && Arc::make_mut(states).remove(name).is_some());
}
