//! The agent's main loop: one task owns all state and handles one [`LoopEvent`] at a time.
//!
//! Slow work runs elsewhere and returns as an event: programs run under their shims, units
//! in their own task, the connection in the link's. Handlers await the store only.

use std::{
    collections::{BTreeSet, VecDeque},
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_base::{chance, clock};
use muster_bus::sealing::HostKey;
use muster_rules::{backoff::jittered, render::RenderValues};
use muster_session::{
    interface::{Effect, FAREWELL_MS, HostView, Input, Moment, Notice},
    machine::Session,
};
use muster_topics::{
    Millis, V1,
    command_keys::CommandKeys,
    metric::Point,
    name::{HostId, Name},
    numbered::NumberedKind,
    select,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    admission::AdmissionProgress,
    alert::AlertEvaluator,
    command_handler::{EnteredCommand, TaskResult},
    document::DesiredProgress,
    execute::{Executor, event::ExecEvent},
    host_snapshot::HostSnapshot,
    identity_keeper::IdentityKeeper,
    instance_history::InstanceHistory,
    join::{JoinError, MemberIdentity},
    link::{
        AckToken, LinkEvent, LinkTask,
        outgoing::{OutgoingMessage, OutgoingQueue, RETRY_MS},
    },
    local::{AgentStatus, LoopQuestion},
    metric::QueueLengths,
    pending_writes::PendingWrite,
    store::{Store, StoreError, journal},
    store_limits::StoreBounds,
    unit::Units,
};
use muster_session::unit_state::UnitStates;

/// The most events of programs that are stored in one transaction.
const EVENTS_MAX: usize = 32;
/// How often the host is examined again (interfaces come and go).
const LOOK_MS: Millis = 5 * 60_000;
/// After how many heartbeats without an answer the console is asked by HTTPS whether it knows this host: a minute or two.
const UNANSWERED_MIN: usize = 6;
/// The least time between two log lines about rejected messages.
const COMPLAIN_MS: Millis = 10_000;

/// The session of this agent.
pub(super) type AgentSession = Session<AckToken, PendingWrite>;
/// An event for the session.
pub(super) type AgentInput = Input<AckToken, PendingWrite>;
type AgentEffect = Effect<AckToken, PendingWrite>;

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
    /// A task of a unit has ended.
    TaskEnded,
    /// A sample was taken.
    Sampled,
    /// The host's identity has changed.
    Identity,
    /// A request on the local interface.
    Asked(LoopQuestion),
    /// Something is due.
    Time,
    /// The agent is to end.
    Stop,
}

/// The agent's loop: drives the session, and performs its effects.
pub(super) struct AgentLoop {
    pub(super) host: HostId,
    pub(super) session: AgentSession,
    pub(super) store: Store,
    pub(super) identity: IdentityKeeper,
    /// Notified when a message is signed with an unknown key: the host's keys may be stale.
    stale_keys: Arc<Notify>,
    /// Opens what is sealed to this host.
    pub(super) sealing: HostKey,
    /// The realms of the configuration.
    pub(super) own_realms: BTreeSet<Name>,
    /// Held while a plan is made.
    pub(super) planning: Arc<tokio::sync::Mutex<()>>,
    pub(super) executor: Executor,
    pub(super) units: Units,
    pub(super) work: JoinSet<TaskResult>,
    pub(super) bounds: StoreBounds,
    pub(super) inputs: Inputs,
    pub(super) lookout: AlertEvaluator,
    pub(super) lives: InstanceHistory,
    pub(super) host_snapshot: HostSnapshot,
    pub(super) desired: DesiredProgress,
    pub(super) admission: AdmissionProgress,
    /// The names of its labels, each of which is a group of hosts; the link subscribes to them.
    pub(super) groups: watch::Sender<Vec<Name>>,
    /// The command that was journalled last, until the session has it started.
    pub(super) entered: Option<EnteredCommand>,
    /// Events that the session has not handled yet.
    events: VecDeque<AgentInput>,
    outgoing: OutgoingQueue,
    rejected: RejectedMessages,
    queues: Arc<QueueLengths>,
    began: Instant,
    look_ms: Millis,
    /// The values of the host that templates of units were filled in with last.
    pub(super) followed: Option<RenderValues>,
    ready: watch::Sender<bool>,
    /// Whether the console answers nothing, though there is a connection to the broker.
    unanswered: watch::Sender<bool>,
}

/// The host for the session, with the newest states of its units.
struct SelectedHost<'a> {
    host: HostId,
    snapshot: &'a HostSnapshot,
    units: UnitStates,
}

impl HostView for SelectedHost<'_> {
    fn see<T>(&self, look: impl FnOnce(&select::Host<'_>) -> T) -> T {
        let units = self.snapshot.units(self.host, &self.units);
        look(&self.snapshot.seen(self.host, &units))
    }
}

/// The sources of events.
pub(super) struct Inputs {
    pub(super) link: LinkTask,
    pub(super) exec: mpsc::Receiver<ExecEvent>,
    pub(super) units: watch::Receiver<UnitStates>,
    pub(super) metrics: watch::Receiver<u64>,
    pub(super) task_ends: watch::Receiver<()>,
    pub(super) samples: watch::Receiver<Arc<[Point]>>,
    pub(super) identity: watch::Receiver<Arc<MemberIdentity>>,
    pub(super) asked: mpsc::Receiver<LoopQuestion>,
    pub(super) stop: CancellationToken,
}

/// The parts that the loop is made from.
pub(super) struct AgentParts {
    pub(super) session: AgentSession,
    pub(super) store: Store,
    pub(super) identity: IdentityKeeper,
    pub(super) stale_keys: Arc<Notify>,
    pub(super) sealing: HostKey,
    pub(super) own_realms: BTreeSet<Name>,
    pub(super) executor: Executor,
    pub(super) units: Units,
    pub(super) host_snapshot: HostSnapshot,
    pub(super) desired: DesiredProgress,
    pub(super) admission: AdmissionProgress,
    pub(super) groups: watch::Sender<Vec<Name>>,
    pub(super) bounds: StoreBounds,
    pub(super) lookout: AlertEvaluator,
    pub(super) queues: Arc<QueueLengths>,
    pub(super) lives: InstanceHistory,
    pub(super) ready: watch::Sender<bool>,
    pub(super) unanswered: watch::Sender<bool>,
    pub(super) inputs: Inputs,
}

impl AgentLoop {
    pub(super) fn new(parts: AgentParts) -> Self {
        let host = parts.session.me().host;
        let mut agent = Self {
            host,
            session: parts.session,
            store: parts.store,
            identity: parts.identity,
            stale_keys: parts.stale_keys,
            sealing: parts.sealing,
            own_realms: parts.own_realms,
            planning: Arc::default(),
            executor: parts.executor,
            units: parts.units,
            work: JoinSet::new(),
            bounds: parts.bounds,
            inputs: parts.inputs,
            lookout: parts.lookout,
            lives: parts.lives,
            host_snapshot: parts.host_snapshot,
            desired: parts.desired,
            admission: parts.admission,
            groups: parts.groups,
            entered: None,
            events: VecDeque::new(),
            outgoing: OutgoingQueue::new(host),
            rejected: RejectedMessages::default(),
            queues: parts.queues,
            began: Instant::now(),
            look_ms: jittered(LOOK_MS, chance::random()),
            followed: None,
            ready: parts.ready,
            unanswered: parts.unanswered,
        };
        agent.observe_units();
        agent
    }

    /// Milliseconds since the agent started, by a monotonic clock.
    pub(super) fn now_ms(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// Runs until it is stopped.
    pub(super) async fn run(mut self, unfinished: Vec<journal::UnfinishedCommand>) {
        self.resume(unfinished);
        self.update_realms().await;
        // Facts may have changed since an earlier run.
        self.follow_values().await;
        loop {
            match self.next().await {
                LoopEvent::Stop => break,
                event => self.handle(event).await,
            }
            self.events.push_back(Input::Time);
            self.run_session().await;
            let is_ready = self.session.is_sole();
            self.ready.send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
            let is_unanswered = self.session.publisher.beats.unanswered() >= UNANSWERED_MIN;
            self.unanswered.send_if_modified(|before| std::mem::replace(before, is_unanswered) != is_unanswered);
        }
        self.farewell().await;
    }

    /// Adds an event for the session.
    pub(super) fn tell(&mut self, input: AgentInput) {
        self.events.push_back(input);
    }

    /// Has the session handle all events, and performs its effects.
    async fn run_session(&mut self) {
        while let Some(input) = self.events.pop_front() {
            let room = self.outgoing.room();
            let now = Moment { life_ms: self.now_ms(), clock_ms: clock::now_ms(), random: chance::random };
            let units = self.inputs.units.borrow().clone();
            let view = SelectedHost { host: self.host, snapshot: &self.host_snapshot, units };
            for effect in self.session.handle(now, room, &view, input) {
                self.perform(effect).await;
            }
        }
        self.outgoing.send();
    }

    async fn perform(&mut self, effect: AgentEffect) {
        match effect {
            Effect::Publish(publication) => self.outgoing.push(OutgoingMessage::Publish(publication)),
            Effect::Acknowledge(receipt) => self.outgoing.push(OutgoingMessage::Acknowledge(receipt)),
            Effect::Disconnect => self.outgoing.disconnect(),
            Effect::Store(request) => {
                let reply = self.perform_store(request).await;
                // The session waits for it, so it comes before other events.
                self.events.push_front(Input::Stored(reply));
            }
            Effect::Start(command) => self.start(command),
            Effect::Cancel(which) => self.executor.cancel(which),
            Effect::FetchDesired(digest) => self.fetch_desired(digest),
            Effect::HandInDocument => self.hand_in_document().await,
            Effect::AdmissionWaits(deployment, version, reason) => {
                self.admission_waits(&deployment, version, reason).await;
            }
            Effect::Withdraw => {
                self.inputs.link.withdraw();
                self.outgoing.disconnected();
            }
            Effect::TwinSeen => {
                let seen = self.record_duplicate().await;
                self.check(seen);
            }
            Effect::ConsoleTime { issued_ms, is_fresh } => {
                let clock_ms = clock::now_ms();
                self.lookout.observe_issue_time(issued_ms, clock_ms);
                if is_fresh {
                    self.store.console_time(issued_ms, clock_ms);
                }
            }
            Effect::Notice(Notice::ConsoleProtocol(later)) => {
                let seen = self.record_protocol(later).await;
                self.check(seen);
            }
            Effect::Notice(notice) => self.log(&notice),
            Effect::Stopped => self.outgoing.disconnected(),
        }
    }

    /// Logs an error of the store. After one for lack of room, failed writes are tried again at once if the reserve has
    /// room: a quota, for example, does not show earlier.
    pub(super) fn store_failed(&mut self, error: &StoreError) {
        if error.is_full() && self.store.release_reserve() {
            self.tell(Input::StoreRetry);
        }
        tracing::error!(
            %error,
            consequence = "what was not stored is repeated",
            hint = "check the free space on the disk of the agent's folder",
            "the agent's store failed",
        );
    }

    pub(super) fn check(&mut self, stored: Result<(), StoreError>) {
        if let Err(error) = stored {
            self.store_failed(&error);
        }
    }

    fn log(&mut self, notice: &Notice) {
        match notice {
            Notice::Asserting => {
                tracing::debug!("another agent published a presence of this host; this agent publishes its own again");
            }
            Notice::Claiming => {
                tracing::info!(
                    "another agent of this host is or was recently online; this one continues unless the other one objects"
                );
            }
            Notice::Withdrawn => tracing::error!(
                host.id = %self.host,
                consequence = "this agent stops working and checks again in some minutes",
                hint = "if the disk was cloned, remove the agent's folder on the copy and join it with a new token",
                "duplicate: another agent is active for this host, with the same key",
            ),
            Notice::Rejected(what, reason) => {
                if let Some(rejected) = self.rejected.count(self.now_ms()) {
                    tracing::warn!(what, reason, rejected, "messages were refused");
                }
            }
            Notice::Refused(id, reason) => {
                tracing::info!(command.id = %id, reason = reason.cause, hint = reason.hint, "refused");
            }
            Notice::Unheard(id) => tracing::info!(
                command.id = %id,
                "not handled until the console has answered the first heartbeat with the agent instances that it knows"
            ),
            Notice::Later(id) => tracing::info!(
                command.id = %id,
                "not handled until the console has sent its time: its messages so far are dated ahead of this host's clock"
            ),
            // The renewal task decides when it asks the console.
            Notice::UnknownKey => self.stale_keys.notify_one(),
            Notice::ConsoleEpoch(epoch) => {
                tracing::info!(epoch, "the console signs in a later epoch; messages of earlier epochs are now refused");
            }
            Notice::OlderDocument(mark) => {
                tracing::info!(%mark, "a document older than the stored one is ignored");
            }
            Notice::DocumentRefused(refusal) => tracing::error!(
                mark = %refusal.mark,
                reason = refusal.diagnostic.cause, hint = refusal.diagnostic.hint,
                consequence = "the document before it stays in force",
                "the document of this host is refused"
            ),
            Notice::Busy(id) => tracing::info!(command.id = %id, "the journal has no room for a command"),
            Notice::OlderDisk(epoch) => {
                self.lookout.record_loss_alert();
                tracing::error!(
                    host.id = %self.host, epoch,
                    consequence = "commands issued before now that are not in the journal are refused",
                    hint = "check the host's units, and apply them again",
                    "this host has run since its disk was written: the disk is an older \
                        copy, or a clone of it was started",
                );
            }
            Notice::WentBack(time_back) => tracing::warn!(
                ahead_s = time_back.ahead_ms.unwrap_or_default() / 1000,
                "the console has signed times in the future, or this agent's store was made in the future; the console's \
                 present time is now used"
            ),
            Notice::Working | Notice::Repeated(_) | Notice::Refresh(_) | Notice::ConsoleProtocol(_) => {}
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
        let free = self.session.has_no_writes();
        let inputs = &mut self.inputs;
        tokio::select! {
            () = inputs.stop.cancelled() => LoopEvent::Stop,
            events = some(&mut inputs.exec), if free && self.bounds.has_output_room => LoopEvent::Exec(events),
            Some(Ok(work)) = self.work.join_next(), if free && !self.work.is_empty() => LoopEvent::Work(work),
            event = inputs.link.events.recv() => event.map_or(LoopEvent::Stop, LoopEvent::Link),
            () = changed(&mut inputs.units) => LoopEvent::Units,
            () = changed(&mut inputs.metrics) => LoopEvent::Metrics,
            () = changed(&mut inputs.task_ends) => LoopEvent::TaskEnded,
            () = changed(&mut inputs.samples) => LoopEvent::Sampled,
            () = changed(&mut inputs.identity) => LoopEvent::Identity,
            Some(question) = inputs.asked.recv() => LoopEvent::Asked(question),
            () = until(deadline) => LoopEvent::Time,
        }
    }

    /// When something is due.
    fn next_ms(&self) -> Option<Millis> {
        let now_ms = self.now_ms();
        let due = [
            Some(self.look_ms),
            self.desired.next_ms(),
            self.admission.next_ms(),
            self.outgoing.next_ms(now_ms),
            self.session.next_ms(now_ms),
        ];
        due.into_iter().flatten().min()
    }

    async fn handle(&mut self, event: LoopEvent) {
        match event {
            LoopEvent::Link(event) => self.link_event(event),
            LoopEvent::Exec(events) => self.tell(Input::Writes(events.into_iter().map(PendingWrite::Exec).collect())),
            LoopEvent::Work(work) => self.worked(work).await,
            LoopEvent::Units => {
                self.observe_units();
                if self.desired.is_stopping() {
                    self.desired_changed().await;
                }
                let judged = self.judge_changes().await;
                self.check(judged);
                let checked = self.check_unit_alerts().await;
                self.check(checked);
            }
            LoopEvent::Sampled => {
                self.report_queue_lengths();
                let checked = self.sampled().await;
                self.check(checked);
            }
            LoopEvent::Metrics => {
                self.session.publisher.metrics_stored();
                // Published as often as measurements are, however often a unit reports.
                self.session.publisher.units.observe_stats(self.units.stats());
            }
            LoopEvent::TaskEnded => {
                let now_ms = self.now_ms();
                self.session.publisher.task_ends.stored(now_ms);
            }
            LoopEvent::Identity => self.observe_identity(),
            LoopEvent::Asked(question) => self.asked(question),
            LoopEvent::Time => {
                self.on_time().await;
                let driven = self.drive_desired().await;
                self.check(driven);
                let driven = self.drive_admissions().await;
                self.check(driven);
            }
            LoopEvent::Stop => {}
        }
    }

    /// Reports the lengths of queues, for the next sample.
    fn report_queue_lengths(&self) {
        let tell = |counter: &AtomicU64, count: usize| counter.store(count as u64, Ordering::Relaxed);
        tell(&self.queues.commands, self.session.running());
        tell(&self.queues.alerts, self.session.publisher.alerts.waiting());
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
                self.session.publisher.request_heartbeat(now_ms);
                let _ = answer.send(self.session.is_sole());
            }
            LoopQuestion::Trigger(answer) => {
                self.look();
                // What templates name of the host is followed at once, too.
                self.look_ms = now_ms;
                self.units.look();
                self.session.refresh(now_ms);
                let _ = answer.send(self.session.is_sole());
            }
        }
    }

    fn status(&self) -> AgentStatus {
        AgentStatus {
            v: V1,
            host: self.host,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: self.session.me().epoch,
            up_for_ms: self.now_ms(),
            connected: self.session.is_sole(),
            later_protocol: self.lookout.later_protocol(),
            commands: self.session.running(),
            units: self.inputs.units.borrow().len(),
        }
    }

    fn link_event(&mut self, event: LinkEvent) {
        if let LinkEvent::Up(connection) = &event {
            tracing::info!(session = connection.session, "connected to the broker");
            self.host_snapshot.refresh();
            // Only now: before it, the console counts this host as away.
            self.confirm_places();
        }
        let input = self.outgoing.observe(event, &self.identity.present().membership.command_keys);
        self.tell(input);
    }

    /// Stores the keys that the console may sign with, and verifies with them from now on.
    pub(super) fn set_command_keys(&mut self, number: u64, told: &CommandKeys) -> Result<(), JoinError> {
        // On a full disk, too: the session waits for this.
        self.store.make_room();
        self.identity.set_keys(number, told)?;
        tracing::info!(number, keys = told.keys.len(), "new keys from the console");
        self.observe_identity();
        Ok(())
    }

    /// Reports the keys that the host verifies with.
    fn observe_identity(&mut self) {
        let identity = self.identity.present();
        let number = identity.membership.number(NumberedKind::CommandKeys);
        self.session.set_keys_number(number);
        self.host_snapshot.set_number(NumberedKind::CommandKeys, number);
        self.host_snapshot.set_command_keys(identity.known_keys());
        self.observe_units();
    }

    /// Examines the host and its units again.
    fn look(&mut self) {
        self.host_snapshot.refresh();
        self.observe_units();
    }

    pub(super) fn observe_units(&mut self) {
        let states = self.inputs.units.borrow_and_update().clone();
        let publisher = &mut self.session.publisher;
        publisher.units.observe(&states);
        self.host_snapshot.set_alerts(publisher.alerts.active());
        self.host_snapshot.set_number(NumberedKind::AlertRules, self.lookout.number());
        publisher.beats.observe(self.host_snapshot.with(&states));
    }

    async fn on_time(&mut self) {
        let now_ms = self.now_ms();
        if now_ms >= self.look_ms {
            self.look_ms = now_ms + jittered(LOOK_MS, chance::random());
            self.look();
            self.follow_host().await;
        }
    }

    /// Publishes the last messages and waits a little until the broker has received them.
    async fn farewell(mut self) {
        self.observe_units();
        self.tell(Input::Stop);
        let [limit, retry] = [FAREWELL_MS, RETRY_MS].map(|time_ms| Duration::from_millis(time_ms.unsigned_abs()));
        let said = async {
            self.run_session().await;
            while self.outgoing.is_connected() {
                match tokio::time::timeout(retry, self.inputs.link.events.recv()).await {
                    Ok(Some(event)) => self.handle(LoopEvent::Link(event)).await,
                    Ok(None) => return,
                    Err(_) => {}
                }
                self.run_session().await;
            }
        };
        if tokio::time::timeout(limit, said).await.is_err() {
            tracing::debug!("the broker did not acknowledge the last message");
        }
    }
}

/// Waits for at least one event, and returns all that are ready.
async fn some(events: &mut mpsc::Receiver<ExecEvent>) -> Vec<ExecEvent> {
    let mut some = Vec::new();
    if events.recv_many(&mut some, EVENTS_MAX).await == 0 {
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
