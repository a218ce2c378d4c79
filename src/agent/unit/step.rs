//! Runs the steps of a plan, each on a task of its own, and watches an instance while it lives.
//!
//! A task that starts or adopts an instance stays with it: it forwards its
//! events and takes the requests to end it. So there is one task per living unit, and none
//! for one at rest.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::{chance::random, clock::now_ms, crash};
use muster_rules::{
    CommandRefusal,
    plan::{Failure, FoundInstance, InstanceEnd, InstanceExit, PlayFailure, Slot, UnitEvent},
};
use muster_topics::{
    channel::Complaint,
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    outcome::RefusalCode,
    signal::Signal,
    unit::{Desired, Exit},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::super::store::deployment::RehearsedUnit;
use super::kind::{AdoptedUnit, Instance, InstanceEvent, InstanceRequest, StartError, StartOrder, UnitKind};

/// The deadline of a step. What takes longer is cancelled and tried again.
const ADOPT_MAX: Duration = Duration::from_secs(10);
const ASK_MAX: Duration = Duration::from_secs(5);
/// Some small files are read and written; a slow disk takes longer.
const RELOAD_MAX: Duration = Duration::from_secs(30);
/// A yuno may have to open a line or a device before it plays.
const PLAY_MAX: Duration = Duration::from_secs(30);

/// Delays between attempts to find an instance whose connection was lost.
const FIND_AGAIN: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// Prepares a unit of a version that is not desired yet.
pub(super) async fn prepare(kind: &dyn UnitKind, one: &RehearsedUnit) -> Result<(), Failure> {
    let limit = kind.deadlines().install;
    let prepared = timeout(limit, kind.prepare(&one.unit, &one.desired, one.verified.as_ref(), one.is_there)).await;
    prepared.unwrap_or_else(|_| Err(late("preparing took", limit)))
}

/// An event of a unit.
#[derive(Debug)]
pub(super) struct StepReport {
    pub(super) unit: UnitName,
    /// The slot of the instance that it concerns, if it concerns one.
    pub(super) slot: Slot,
    pub(super) seen: UnitEvent,
}

/// A request to an instance.
#[derive(Debug)]
pub(super) enum InstanceOrder {
    /// To end.
    Stop(StopOrder),
    /// To freeze (true), or to thaw.
    Freeze(bool),
    /// To send its process a signal.
    Signal(Signal, oneshot::Sender<Result<(), CommandRefusal>>),
}

/// A request to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopOrder {
    /// The signal; `None` for the instance's own.
    pub(super) signal: Option<Signal>,
    pub(super) grace_ms: u64,
}

/// What a step needs.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) unit: UnitName,
    /// The slot of the instance that it concerns, if it concerns one.
    pub(super) slot: Slot,
    pub(super) kind: Arc<dyn UnitKind>,
    pub(super) reports: mpsc::Sender<StepReport>,
}

impl Worker {
    pub(super) async fn report(&self, seen: UnitEvent) {
        // The receiver ends only with the agent.
        let _ = self.reports.send(StepReport { unit: self.unit.clone(), slot: self.slot, seen }).await;
    }

    /// Looks up the instance in its slot and, if `beside` has a task for it, in the other one. The second instance is
    /// reported first: only with it the state is complete.
    pub(super) async fn adopt(
        self,
        orders: mpsc::Receiver<InstanceOrder>,
        beside: Option<mpsc::Receiver<InstanceOrder>>,
    ) {
        let other = Self { slot: self.slot.other(), ..self.clone() };
        let looked_up = async {
            let found = self.look_up().await?;
            let found_second = if beside.is_some() { other.look_up().await? } else { AdoptedUnit::Nothing };
            Ok::<_, Failure>((found, found_second))
        };
        let (found, found_second) = match looked_up.await {
            Ok(found) => found,
            Err(failure) => return self.report(UnitEvent::NotLookedUp { error: failure.error }).await,
        };
        let found_second = match beside {
            Some(_) => other.tell_found(found_second).await,
            None => None,
        };
        let found = self.tell_found(found).await;
        let stay_second = async {
            if let (Some(instance), Some(orders)) = (found_second, beside) {
                other.stay_with(instance, orders).await;
            }
        };
        let stay = async {
            if let Some(instance) = found {
                self.stay_with(instance, orders).await;
            }
        };
        tokio::join!(stay_second, stay);
    }

    /// Reports what was found in its slot, and returns the instance.
    async fn tell_found(&self, adopted: AdoptedUnit) -> Option<Box<dyn Instance>> {
        let (found, instance) = match adopted {
            AdoptedUnit::Nothing => (FoundInstance::Nothing, None),
            AdoptedUnit::Ended(over) => (FoundInstance::Ended(over), None),
            AdoptedUnit::Alive { revision, told, instance } => (FoundInstance::Alive(revision, told), Some(instance)),
        };
        self.report(UnitEvent::Found(found)).await;
        instance
    }

    pub(super) async fn install(self, desired: Desired, keep: Option<Digest>) {
        // A receiver that is too busy gets the next report.
        let tell = |progress| {
            let seen = UnitEvent::Progress(desired.revision.clone(), progress);
            let _ = self.reports.try_send(StepReport { unit: self.unit.clone(), slot: self.slot, seen });
        };
        let limit = self.kind.deadlines().install;
        let outcome = timeout(limit, self.kind.install(&self.unit, &desired, keep.as_ref(), &tell)).await;
        let revision = desired.revision.clone();
        self.report(match outcome.unwrap_or_else(|_| Err(late("installing took", limit))) {
            Ok(()) => UnitEvent::Installed(revision),
            Err(failure) => UnitEvent::NotInstalled { revision, failure, random: random() },
        })
        .await;
    }

    pub(super) async fn start(self, what: StartOrder, orders: mpsc::Receiver<InstanceOrder>) {
        match timeout(self.kind.deadlines().start, self.kind.start(&self.unit, &what)).await {
            Ok(Ok(instance)) => {
                crash::point("start", "before it is seen");
                self.report(UnitEvent::Started).await;
                self.stay_with(instance, orders).await;
            }
            Ok(Err(StartError::Failed(failure))) => self.report(UnitEvent::NotStarted(failure)).await,
            Ok(Err(StartError::Unknown)) | Err(_) => self.report(UnitEvent::StartUnknown).await,
        }
    }

    /// The same for one that is started beside another: its result is found out here, because no other step waits for
    /// it.
    pub(super) async fn start_second(self, what: StartOrder, orders: mpsc::Receiver<InstanceOrder>) {
        let limit = self.kind.deadlines().start;
        let started = timeout(limit, self.kind.start(&self.unit, &what)).await;
        let failure = match started.unwrap_or(Err(StartError::Unknown)) {
            Ok(instance) => {
                crash::point("start beside", "before it is seen");
                self.report(UnitEvent::Started).await;
                return self.stay_with(instance, orders).await;
            }
            Err(StartError::Failed(failure)) => failure,
            Err(StartError::Unknown) => match self.look_up_again().await {
                found @ AdoptedUnit::Alive { .. } => {
                    if let Some(instance) = self.tell_found(found).await {
                        self.stay_with(instance, orders).await;
                    }
                    return;
                }
                AdoptedUnit::Nothing | AdoptedUnit::Ended(_) => late("to start it took", limit),
            },
        };
        self.report(UnitEvent::NotStarted(failure)).await;
    }

    pub(super) async fn play(self, playing: bool, ask: u32) {
        let wanted = if playing { InstanceRequest::Play } else { InstanceRequest::Pause };
        let answer = match self.kind.ask(&self.unit, self.slot, wanted, PLAY_MAX).await {
            Ok(_) => Ok(()),
            Err(Complaint { code, diagnostic })
                if ["unit_unreachable", "deadline", "busy"].contains(&code.as_str()) =>
            {
                Err(PlayFailure::Unanswered(diagnostic))
            }
            Err(Complaint { code, diagnostic }) => Err(PlayFailure::Refused(diagnostic.within(code))),
        };
        self.report(UnitEvent::Played { ask, answer }).await;
    }

    pub(super) async fn remove(self) {
        let limit = self.kind.deadlines().remove;
        let outcome = timeout(limit, self.kind.remove(&self.unit)).await;
        self.report(match outcome.unwrap_or_else(|_| Err(late("removing took", limit))) {
            Ok(()) => UnitEvent::Removed,
            Err(failure) => UnitEvent::NotRemoved { error: failure.error },
        })
        .await;
    }

    async fn look_up(&self) -> Result<AdoptedUnit, Failure> {
        let outcome = timeout(ADOPT_MAX, self.kind.adopt(&self.unit, self.slot)).await;
        outcome.unwrap_or_else(|_| Err(late("to look up what runs took", ADOPT_MAX)))
    }

    /// Forwards events of an instance, until it has ended.
    async fn stay_with(self, mut instance: Box<dyn Instance>, mut orders: mpsc::Receiver<InstanceOrder>) {
        let mut asked = None;
        loop {
            tokio::select! {
                // Cancel-safe by its contract.
                news = instance.next() => match news {
                    Some(InstanceEvent::Told(told)) => self.report(UnitEvent::Told(told)).await,
                    Some(InstanceEvent::Ended(over)) => return self.report(UnitEvent::Ended(over)).await,
                    None => match self.find_again().await {
                        Ok((told, again)) => {
                            instance = again;
                            self.report(told).await;
                            // Whether it received the request is unknown.
                            if let Some(stop) = asked {
                                self.stop(&mut *instance, stop).await;
                            }
                        }
                        Err(over) => return self.report(UnitEvent::Ended(over)).await,
                    },
                },
                // A channel's receive is cancel-safe.
                Some(order) = orders.recv() => match order {
                    InstanceOrder::Stop(stop) => {
                        asked = Some(stop);
                        self.stop(&mut *instance, stop).await;
                    }
                    InstanceOrder::Freeze(frozen) => {
                        // If nothing happens, the planner asks again.
                        let outcome = timeout(ASK_MAX, instance.freeze(frozen)).await;
                        let outcome = outcome.unwrap_or_else(|_| Err(late("to ask it to freeze took", ASK_MAX)));
                        self.complain(outcome).await;
                    }
                    // The requester may have ended meanwhile.
                    InstanceOrder::Signal(signal, answer) => drop(answer.send(self.signal(&mut *instance, signal).await)),
                },
            }
        }
    }

    async fn stop(&self, instance: &mut dyn Instance, stop: StopOrder) {
        let outcome = timeout(ASK_MAX, instance.stop(stop.signal, stop.grace_ms)).await;
        // If it has ended, an event follows; otherwise the planner asks again when the time is over.
        self.complain(outcome.unwrap_or_else(|_| Err(late("to ask it to end took", ASK_MAX)))).await;
    }

    async fn complain(&self, outcome: Result<(), Failure>) {
        if let Err(Failure { error, .. }) = outcome {
            tracing::warn!(unit = %self.unit, error = error.cause, hint = error.hint, "a command could not be sent to a unit");
            self.report(UnitEvent::Unheard { error }).await;
        }
    }

    async fn signal(&self, instance: &mut dyn Instance, signal: Signal) -> Result<(), CommandRefusal> {
        let sent = timeout(ASK_MAX, instance.signal(signal)).await;
        match sent.unwrap_or_else(|_| Err(late("to send the signal took", ASK_MAX))) {
            Ok(true) => Ok(()),
            Ok(false) => Err(no_process(&self.unit)),
            Err(failure) => {
                let place = format!("{signal} may not have reached {}", self.unit);
                let message = failure.error.within(place);
                Err(CommandRefusal::new(RefusalCode::Conflict, message))
            }
        }
    }

    /// Changes the running instance to another revision. It belongs to another task meanwhile, which `orders` leads to.
    pub(super) async fn reload(self, desired: Desired, keep: Option<Digest>, orders: mpsc::Sender<InstanceOrder>) {
        let signal = signaller(&orders);
        let reload = self.kind.reload(&self.unit, self.slot, &desired, keep.as_ref(), &signal);
        let outcome = timeout(RELOAD_MAX, reload).await;
        let is_done = outcome.unwrap_or_else(|_| Err(late("reloading took", RELOAD_MAX))).unwrap_or_else(|failure| {
            tracing::warn!(unit = %self.unit, error = failure.error.cause, hint = failure.error.hint, "a unit could not be reloaded and is restarted");
            false
        });
        let revision = desired.revision;
        self.report(if is_done { UnitEvent::Reloaded(revision) } else { UnitEvent::NotReloaded(revision) }).await;
    }

    /// Checks whether a watched file has changed since the instance read it.
    pub(super) async fn look(self, desired: Desired, orders: mpsc::Sender<InstanceOrder>) {
        let signal = signaller(&orders);
        let outcome =
            timeout(RELOAD_MAX, self.kind.check_watched_files(&self.unit, self.slot, &desired, &signal)).await;
        match outcome.unwrap_or_else(|_| Err(late("checking files outside took", RELOAD_MAX))) {
            Ok(true) => {}
            Ok(false) => self.report(UnitEvent::Outdated).await,
            // The next check is soon.
            Err(failure) => {
                tracing::warn!(unit = %self.unit, error = failure.error.cause, hint = failure.error.hint, "files outside cannot be watched");
            }
        }
    }

    /// Finds an instance whose connection was lost. It is not given up while it may be alive: that would start a second
    /// one.
    async fn find_again(&self) -> Result<(UnitEvent, Box<dyn Instance>), InstanceEnd> {
        match self.look_up_again().await {
            AdoptedUnit::Alive { told, instance, .. } => Ok((UnitEvent::Told(told), instance)),
            AdoptedUnit::Ended(over) => Err(over),
            AdoptedUnit::Nothing => {
                let last = InstanceExit::new(Exit::Unknown, None, now_ms());
                Err(InstanceEnd { restarts: 0, last })
            }
        }
    }

    /// Looks up its slot, until the result is known.
    async fn look_up_again(&self) -> AdoptedUnit {
        let mut waits = FIND_AGAIN.into_iter();
        let mut wait = FIND_AGAIN[0];
        loop {
            match self.look_up().await {
                Ok(adopted) => return adopted,
                Err(failure) => {
                    tracing::warn!(unit = %self.unit, error = failure.error.cause, hint = failure.error.hint, "a running unit cannot be found yet");
                    wait = waits.next().unwrap_or(wait);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

/// Returns a callback by which the task of an instance sends signals.
fn signaller(
    orders: &mpsc::Sender<InstanceOrder>,
) -> impl Fn(Signal) -> BoxFuture<'static, Result<(), Failure>> + use<> {
    let orders = orders.clone();
    move |signal| {
        let orders = orders.clone();
        async move {
            let gone = || Failure { error: "it has ended".into(), may_heal: true };
            let (reply, answer) = oneshot::channel();
            orders.send(InstanceOrder::Signal(signal, reply)).await.map_err(|_| gone())?;
            let sent = answer.await.map_err(|_| gone())?;
            sent.map_err(|refusal| Failure { error: refusal.diagnostic, may_heal: true })
        }
        .boxed()
    }
}

/// The refusal if there is no process for a signal.
pub(super) fn no_process(unit: &UnitName) -> CommandRefusal {
    let message = Diagnostic::new(format_args!("{unit} has no process"))
        .with_hint(format_args!("`muster unit show {unit}` shows its state"));
    CommandRefusal::new(RefusalCode::Conflict, message)
}

fn late(what: &str, limit: Duration) -> Failure {
    Failure { error: format!("{what} longer than {} s", limit.as_secs()).into(), may_heal: true }
}
