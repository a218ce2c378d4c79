//! The agent's main loop: one task owns all state and handles one [`LoopEvent`] at a time.
//!
//! Slow work runs elsewhere and returns as an event: programs run under their shims, units
//! in their own task, the connection in the link's. Handlers await the store only.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_base::{chance, clock};
use muster_bus::sealing::HostKey;
use muster_rules::{
    authorise::{CommandSource, LocalPolicy},
    backoff::jittered,
    presence::PresenceVerdict,
    receive::RefreshHistory,
    time::KnownTime,
};
use muster_topics::{
    Millis, V1,
    metric::Point,
    name::{CommandId, Name},
    presence::{Presence, PresenceState},
    select,
    topic::{HostTopic, Topic},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    alert::AlertEvaluator,
    command_handler::{RunningCommand, TaskResult},
    execute::{Executor, event::ExecEvent},
    host_snapshot::HostSnapshot,
    instance_history::InstanceHistory,
    join::MemberIdentity,
    link::{ClientIdentity, ConnectionHandle, InboundMessage, LinkEvent, LinkTask},
    local::{AgentStatus, LoopQuestion},
    metric::QueueLengths,
    pending_writes::PendingWrite,
    publisher::Publisher,
    store::{Store, StoreError, journal},
    store_limits::StoreBounds,
    unit::{Units, state::UnitStates},
};

/// The most pending writes that are stored in one transaction.
const FACTS_MAX: usize = 32;
/// The most messages that are held back while it is undecided whether this agent may work, or while the store fails.
/// The console sends dropped ones again.
const HELD_MAX: usize = 64;
/// How often the host is examined again (interfaces come and go).
const LOOK_MS: Millis = 5 * 60_000;
/// How often old commands are removed from the journal.
const PRUNE_MS: Millis = 3_600_000;
/// The delay before failed writes are tried again.
const STORE_RETRY_MS: Millis = 2_000;
/// How long the orderly exit may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// The least time between two log lines about rejected messages.
const COMPLAIN_MS: Millis = 10_000;

/// An event of the agent's loop.
enum LoopEvent {
    /// An event of the connection.
    Link(LinkEvent),
    /// Events of programs; none may be lost.
    Exec(Vec<ExecEvent>),
    /// The result of a task.
    Work(TaskResult),
    /// Units have changed: the newest state counts.
    Units,
    /// Batches of measurements were stored.
    Metrics,
    /// A sample was taken.
    Sampled,
    /// A request on the local interface.
    Asked(LoopQuestion),
    /// Something is due.
    Time,
    /// The agent is to end.
    Stop,
}

/// The agent's loop, which owns all its state.
pub(super) struct AgentLoop {
    pub(super) me: ClientIdentity,
    pub(super) store: Store,
    pub(super) identity: watch::Receiver<Arc<MemberIdentity>>,
    /// Opens what is sealed to this host.
    pub(super) sealing: HostKey,
    /// The realms of the host.
    pub(super) realms: BTreeSet<Name>,
    /// Those of them that its configuration has.
    pub(super) own_realms: BTreeSet<Name>,
    pub(super) policy: LocalPolicy,
    pub(super) user: String,
    pub(super) created_ms: Millis,
    pub(super) lost_ms: Option<Millis>,
    /// The epoch of the last known instance of this host's agent.
    pub(super) last_epoch: u64,
    pub(super) time: KnownTime,
    pub(super) executor: Executor,
    pub(super) units: Units,
    pub(super) publisher: Publisher,
    pub(super) rejected: RejectedMessages,
    /// Commands that are being executed.
    pub(super) running: BTreeMap<CommandId, RunningCommand>,
    pub(super) work: JoinSet<TaskResult>,
    pub(super) bounds: StoreBounds,
    /// Writes that wait for the store. While there are any, no more commands are accepted.
    pub(super) facts: VecDeque<PendingWrite>,
    /// The stored signed time.
    pub(super) kept_signed_ms: Millis,
    /// Accepted refresh requests.
    pub(super) refreshes: RefreshHistory,
    pub(super) refresh_due_ms: Option<Millis>,
    pub(super) inputs: Inputs,
    pub(super) lookout: AlertEvaluator,
    queues: Arc<QueueLengths>,
    lives: InstanceHistory,
    pub(super) host_snapshot: HostSnapshot,
    /// The names of its labels, each of which is a group of hosts; the link subscribes to them.
    pub(super) groups: watch::Sender<Vec<Name>>,
    held: VecDeque<InboundMessage>,
    /// When messages that the store did not take are tried again.
    held_ms: Option<Millis>,
    began: Instant,
    look_ms: Millis,
    prune_ms: Millis,
    facts_ms: Option<Millis>,
    ready: watch::Sender<bool>,
}

/// The sources of events.
pub(super) struct Inputs {
    pub(super) link: LinkTask,
    pub(super) exec: mpsc::Receiver<ExecEvent>,
    pub(super) units: watch::Receiver<UnitStates>,
    pub(super) metrics: watch::Receiver<u64>,
    pub(super) samples: watch::Receiver<Arc<[Point]>>,
    pub(super) asked: mpsc::Receiver<LoopQuestion>,
    pub(super) stop: CancellationToken,
}

/// The parts that the loop is made from.
pub(super) struct AgentParts {
    pub(super) me: ClientIdentity,
    pub(super) store: Store,
    pub(super) identity: watch::Receiver<Arc<MemberIdentity>>,
    pub(super) sealing: HostKey,
    pub(super) realms: BTreeSet<Name>,
    pub(super) policy: LocalPolicy,
    pub(super) user: String,
    pub(super) created_ms: Millis,
    pub(super) lost_ms: Option<Millis>,
    /// The epoch of the last known instance of this host's agent.
    pub(super) last_epoch: u64,
    pub(super) time: KnownTime,
    pub(super) executor: Executor,
    pub(super) units: Units,
    pub(super) publisher: Publisher,
    pub(super) host_snapshot: HostSnapshot,
    pub(super) groups: watch::Sender<Vec<Name>>,
    pub(super) bounds: StoreBounds,
    pub(super) lookout: AlertEvaluator,
    pub(super) queues: Arc<QueueLengths>,
    pub(super) lives: InstanceHistory,
    pub(super) ready: watch::Sender<bool>,
    pub(super) inputs: Inputs,
}

impl AgentLoop {
    pub(super) fn new(parts: AgentParts) -> Self {
        let AgentParts {
            me, store, identity, realms, policy, user, created_ms, time, executor, units, publisher, ..
        } = parts;
        let (lost_ms, last_epoch) = (parts.lost_ms, parts.last_epoch);
        let mut agent = Self {
            me,
            store,
            identity,
            sealing: parts.sealing,
            own_realms: realms.clone(),
            realms,
            policy,
            user,
            created_ms,
            lost_ms,
            last_epoch,
            time,
            executor,
            units,
            publisher,
            rejected: RejectedMessages::default(),
            running: BTreeMap::new(),
            work: JoinSet::new(),
            bounds: parts.bounds,
            facts: VecDeque::new(),
            kept_signed_ms: time.signed_ms(),
            refreshes: RefreshHistory::default(),
            refresh_due_ms: None,
            inputs: parts.inputs,
            lookout: parts.lookout,
            queues: parts.queues,
            lives: parts.lives,
            host_snapshot: parts.host_snapshot,
            groups: parts.groups,
            held: VecDeque::new(),
            held_ms: None,
            began: Instant::now(),
            look_ms: jittered(LOOK_MS, chance::random()),
            prune_ms: jittered(60_000, chance::random()),
            facts_ms: None,
            ready: parts.ready,
        };
        agent.observe_units();
        agent
    }

    /// Milliseconds since the agent started, by a monotonic clock.
    pub(super) fn now_ms(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// Calls `look` with this host as selectors see it, with the newest states of its units.
    pub(super) fn seen<R>(&self, look: impl FnOnce(&select::Host<'_>) -> R) -> R {
        let states = self.inputs.units.borrow().clone();
        let units = self.host_snapshot.units(self.me.host, &states);
        look(&self.host_snapshot.seen(self.me.host, &units))
    }

    /// Runs until it is stopped.
    pub(super) async fn run(mut self, unfinished: Vec<journal::UnfinishedCommand>) {
        self.resume(unfinished);
        self.update_realms().await;
        loop {
            let handled = match self.next().await {
                LoopEvent::Stop => break,
                event => self.handle(event).await,
            };
            let handled = handled.and(self.take_facts_in().await);
            let now_ms = self.now_ms();
            let handled = handled.and(self.publisher.pump(now_ms).await);
            if let Err(error) = handled {
                self.draw_on_reserve(&error);
                tracing::error!(
                    %error,
                    "hint: is there room on the disk of the agent's folder? What was not stored is done again"
                );
            }
        }
        self.farewell().await;
    }

    /// Handles a full disk: a failed write is tried again at once if the reserve has room. A quota, for example, does
    /// not show earlier.
    fn draw_on_reserve(&mut self, error: &StoreError) {
        if error.is_full() && self.store.release_reserve() {
            self.facts_ms = None;
            let now_ms = self.now_ms();
            self.held_ms = self.held_ms.map(|_| now_ms);
        }
    }

    /// Waits for the next event. Each arm is cancel-safe: channels and watches keep what is not taken, as does a
    /// `JoinSet`, and the sleep is recreated.
    async fn next(&mut self) -> LoopEvent {
        let deadline = self.next_ms().map(|due_ms| {
            let due = Duration::from_millis(due_ms.max(0).unsigned_abs());
            // A timer's resolution is a millisecond: a little later is never too early.
            self.began + due + Duration::from_millis(1)
        });
        let free = self.facts.is_empty();
        let inputs = &mut self.inputs;
        tokio::select! {
            () = inputs.stop.cancelled() => LoopEvent::Stop,
            events = some(&mut inputs.exec), if free && self.bounds.has_output_room => LoopEvent::Exec(events),
            Some(Ok(work)) = self.work.join_next(), if free && !self.work.is_empty() => LoopEvent::Work(work),
            event = inputs.link.events.recv() => event.map_or(LoopEvent::Stop, LoopEvent::Link),
            () = changed(&mut inputs.units) => LoopEvent::Units,
            () = changed(&mut inputs.metrics) => LoopEvent::Metrics,
            () = changed(&mut inputs.samples) => LoopEvent::Sampled,
            Some(question) = inputs.asked.recv() => LoopEvent::Asked(question),
            () = until(deadline) => LoopEvent::Time,
        }
    }

    /// When something is due.
    fn next_ms(&self) -> Option<Millis> {
        [
            Some(self.look_ms),
            Some(self.prune_ms),
            self.facts_ms,
            self.held_ms,
            self.refresh_due_ms,
            self.slow_ms(),
            self.publisher.next_ms(self.now_ms()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    async fn handle(&mut self, event: LoopEvent) -> Result<(), StoreError> {
        match event {
            LoopEvent::Link(LinkEvent::Up(connection)) => self.up(connection),
            LoopEvent::Link(LinkEvent::Down) => self.down(),
            LoopEvent::Link(LinkEvent::Message(message)) => return self.message(message).await,
            LoopEvent::Exec(events) => self.facts.extend(events.into_iter().map(PendingWrite::Exec)),
            LoopEvent::Work(work) => self.worked(work),
            LoopEvent::Units => {
                self.observe_units();
                return self.check_unit_alerts().await;
            }
            LoopEvent::Sampled => {
                self.report_queue_lengths();
                return self.sampled().await;
            }
            LoopEvent::Metrics => {
                self.publisher.metrics_stored();
                // Published as often as measurements are, however often a unit reports.
                self.publisher.units.observe_stats(self.units.stats());
            }
            LoopEvent::Asked(question) => self.asked(question),
            LoopEvent::Time => return self.on_time().await,
            LoopEvent::Stop => {}
        }
        Ok(())
    }

    /// Reports the lengths of queues, for the next sample.
    fn report_queue_lengths(&self) {
        let tell = |counter: &AtomicU64, count: usize| counter.store(count as u64, Ordering::Relaxed);
        tell(&self.queues.commands, self.running.len());
        tell(&self.queues.alerts, self.publisher.alerts.waiting());
    }

    /// Answers a request on the local interface. A caller that does not wait needs no answer.
    fn asked(&mut self, question: LoopQuestion) {
        let now_ms = self.now_ms();
        match question {
            LoopQuestion::Standing(answer) => drop(answer.send(self.status())),
            LoopQuestion::State(answer) => {
                self.host_snapshot.refresh();
                let state = self.host_snapshot.with(&self.inputs.units.borrow());
                drop(answer.send(Box::new(state)));
            }
            LoopQuestion::Beat(answer) => {
                self.look();
                self.publisher.request_heartbeat(now_ms);
                let _ = answer.send(self.publisher.is_sole());
            }
            LoopQuestion::Trigger(answer) => {
                self.look();
                self.units.look();
                self.publisher.refresh(now_ms);
                let _ = answer.send(self.publisher.is_sole());
            }
        }
    }

    fn status(&self) -> AgentStatus {
        AgentStatus {
            v: V1,
            host: self.me.host,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: self.me.epoch,
            up_for_ms: self.now_ms(),
            connected: self.publisher.is_sole(),
            commands: self.running.len(),
            units: self.inputs.units.borrow().len(),
        }
    }

    /// Stores the pending writes; if that fails, again after a delay.
    async fn take_facts_in(&mut self) -> Result<(), StoreError> {
        if self.facts_ms.is_some_and(|facts_ms| self.now_ms() < facts_ms) {
            return Ok(());
        }
        let recorded = self.record().await;
        self.facts_ms = recorded.is_err().then(|| self.now_ms() + STORE_RETRY_MS);
        recorded
    }

    fn up(&mut self, connection: ConnectionHandle) {
        tracing::info!(session = connection.session, "connected to the broker");
        let now_ms = self.now_ms();
        self.host_snapshot.refresh();
        self.publisher.up(connection, self.lives.former().to_vec(), now_ms);
    }

    fn down(&mut self) {
        self.publisher.down();
        // They were not answered, so the console sends them again.
        self.held.clear();
        self.held_ms = None;
        self.ready.send_replace(false);
    }

    async fn message(&mut self, message: InboundMessage) -> Result<(), StoreError> {
        if matches!(&message.topic, Topic::Host(_, HostTopic::Presence)) {
            let now_ms = self.now_ms();
            let twin = self.publisher.is_twin(message.payload());
            if let Some(epoch) = self.publisher.unknown_later_life(message.payload(), self.last_epoch) {
                self.disk_went_back(epoch).await?;
            }
            let verdict = self.publisher.handle_presence(message.payload(), now_ms);
            self.publisher.done(message);
            let seen = if twin { self.record_duplicate().await } else { Ok(()) };
            return self.apply_verdict(verdict).await.and(seen);
        }
        // Earlier messages that still wait go first.
        if !self.publisher.is_sole() || !self.held.is_empty() {
            self.hold(message);
            return Ok(());
        }
        self.order(message).await
    }

    /// Handles a message on a topic of signed messages. If the store fails it is kept and tried again: if it were
    /// dropped, it would never be acknowledged, and brokers stop sending to clients with too many unacknowledged
    /// messages.
    async fn order(&mut self, message: InboundMessage) -> Result<(), StoreError> {
        let channel = match &message.topic {
            Topic::CommandAll | Topic::CommandGroup(_) => CommandSource::Broadcast,
            _ => CommandSource::Own,
        };
        let done = self.signed(&message, channel).await;
        match &done {
            Ok(()) => self.publisher.done(message),
            Err(_) => {
                self.hold(message);
                self.held_ms = Some(self.now_ms() + STORE_RETRY_MS);
            }
        }
        done
    }

    fn hold(&mut self, mut message: InboundMessage) {
        if self.held.len() < HELD_MAX {
            self.publisher.held(&mut message);
            self.held.push_back(message);
        }
    }

    /// Handles held messages in their order, as far as the store takes them.
    async fn take_held_up(&mut self) -> Result<(), StoreError> {
        self.held_ms = None;
        let mut rest = std::mem::take(&mut self.held);
        let mut done = Ok(());
        while let (Ok(()), Some(message)) = (&done, rest.pop_front()) {
            done = self.order(message).await;
        }
        // Only the one that failed is held now, and it goes first.
        self.held.append(&mut rest);
        done
    }

    /// Handles evidence of a later instance of this host that its own disk does not know: the whole disk was restored
    /// from a copy, mark included.
    async fn disk_went_back(&mut self, epoch: u64) -> Result<(), StoreError> {
        let clock_ms = clock::now_ms();
        let now_ms = self.time.now_ms(clock_ms);
        self.store.note_older_disk(now_ms, clock_ms).await?;
        self.last_epoch = epoch;
        self.lost_ms = self.lost_ms.max(Some(now_ms));
        self.lookout.record_loss_alert();
        tracing::error!(
            host.id = %self.me.host, epoch,
            "this host has lived since its disk was written: the disk is an older copy, or a clone of it was started. Commands \
             issued before now that are not in the journal are refused. hint: look at the host's units, and apply them again"
        );
        Ok(())
    }

    /// Acts on a decision about presence.
    async fn apply_verdict(&mut self, verdict: PresenceVerdict) -> Result<(), StoreError> {
        match verdict {
            PresenceVerdict::Ignore => {}
            PresenceVerdict::Assert => {
                tracing::debug!("another presence of this host was seen; the own one is published again");
            }
            PresenceVerdict::Claim => {
                tracing::info!(
                    "another agent of this host is online, or was lately; this one works if it does not object"
                );
                self.held.iter_mut().for_each(|message| self.publisher.held(message));
            }
            PresenceVerdict::Withdraw => {
                tracing::error!(
                    host.id = %self.me.host,
                    "duplicate: another agent works for this host, with the same key; this one withdraws and looks again \
                     in some minutes. hint: was the disk cloned? Remove the agent's folder on the copy and join with a new token"
                );
                self.inputs.link.withdraw();
                self.down();
            }
            PresenceVerdict::Settled => {
                let now_ms = self.now_ms();
                self.observe_units();
                if !self.publisher.has_worked() {
                    self.lives.works();
                }
                self.publisher.begin(now_ms);
                self.ready.send_replace(true);
                return self.take_held_up().await;
            }
        }
        Ok(())
    }

    /// Examines the host and its units again.
    fn look(&mut self) {
        self.host_snapshot.refresh();
        self.observe_units();
    }

    pub(super) fn observe_units(&mut self) {
        let states = self.inputs.units.borrow_and_update().clone();
        self.publisher.units.observe(&states);
        self.host_snapshot.warn(self.publisher.alerts.active(), self.lookout.generation());
        self.publisher.beats.observe(self.host_snapshot.with(&states));
    }

    async fn on_time(&mut self) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        if now_ms >= self.look_ms {
            self.look_ms = now_ms + jittered(LOOK_MS, chance::random());
            self.look();
        }
        if self.refresh_due_ms.is_some_and(|due_ms| now_ms >= due_ms) {
            self.refresh_due_ms = None;
            self.publisher.refresh(now_ms);
        }
        self.report_slow_commands();
        let verdict = self.publisher.tick(now_ms);
        self.apply_verdict(verdict).await?;
        if self.publisher.is_sole() && self.held_ms.is_some_and(|held_ms| now_ms >= held_ms) {
            self.take_held_up().await?;
        }
        if now_ms >= self.prune_ms {
            self.prune_ms = now_ms + jittered(PRUNE_MS, chance::random());
            let forgotten = journal::prune(&self.store, self.time.signed_ms(), self.bounds.kept_ms()).await?;
            tracing::debug!(forgotten, "commands that expired long ago were forgotten");
            self.forget_daemons(clock::now_ms()).await?;
        }
        Ok(())
    }

    /// Publishes the last messages and waits a little until the broker has received them.
    async fn farewell(mut self) {
        self.observe_units();
        let Some(connection) = self.publisher.farewell() else { return };
        let heard = async {
            while let Some(event) = self.inputs.link.events.recv().await {
                match event {
                    LinkEvent::Message(message) if is_echo(&message, &self.me) => break,
                    LinkEvent::Down => return,
                    LinkEvent::Up(_) | LinkEvent::Message(_) => {}
                }
            }
            let _ = connection.disconnect();
            while !matches!(self.inputs.link.events.recv().await, Some(LinkEvent::Down) | None) {}
        };
        if tokio::time::timeout(FAREWELL, heard).await.is_err() {
            tracing::debug!("the broker did not answer the goodbye");
        }
    }
}

/// Whether a message is the last presence that [`Publisher::farewell`] published.
fn is_echo(message: &InboundMessage, me: &ClientIdentity) -> bool {
    matches!(&message.topic, Topic::Host(_, HostTopic::Presence))
        && serde_json::from_slice::<Presence>(message.payload())
            .is_ok_and(|presence| presence.instance == me.instance && presence.state == PresenceState::Stopped)
}

/// Waits for at least one event, and returns all that are ready.
async fn some(events: &mut mpsc::Receiver<ExecEvent>) -> Vec<ExecEvent> {
    let mut some = Vec::new();
    if events.recv_many(&mut some, FACTS_MAX).await == 0 {
        // The executor ends only when the agent does.
        pending::<()>().await;
    }
    some
}

async fn changed<T>(watch: &mut watch::Receiver<T>) {
    if watch.changed().await.is_err() {
        // The sender has ended: no more events will come.
        pending::<()>().await;
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Counts rejected messages, and decides when to log the count.
#[derive(Debug, Default)]
pub(super) struct RejectedMessages {
    count: u64,
    quiet_until_ms: Millis,
}

impl RejectedMessages {
    /// Counts one more. Returns the count since the last log line, unless that was just now.
    pub(super) fn count(&mut self, now_ms: Millis) -> Option<u64> {
        self.count += 1;
        if now_ms < self.quiet_until_ms {
            return None;
        }
        self.quiet_until_ms = now_ms + COMPLAIN_MS;
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_bad_messages_is_logged_rarely() {
        let mut rejected = RejectedMessages::default();
        assert_eq!(rejected.count(0), Some(1));
        assert_eq!((rejected.count(1), rejected.count(COMPLAIN_MS - 1)), (None, None));
        assert_eq!(rejected.count(COMPLAIN_MS), Some(3));
    }
}
