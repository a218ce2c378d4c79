//! One life of a simulated host: an agent's link and its session with the console ([`muster_session`]), over a store that
//! it shares with others. It pretends to run programs ([`super::command_handler`]).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use muster_agent::{
    document,
    join::MemberIdentity,
    link::{
        AckToken, LinkEvent, LinkTask,
        outgoing::{OutgoingMessage, OutgoingQueue, RETRY_MS},
    },
};
use muster_base::{chance, clock};
use muster_rules::authorise::LocalPolicy;
use muster_session::{
    interface::{Effect, FAREWELL_MS, HostView, Input, Moment, Notice},
    machine::Session,
};
use muster_topics::{
    Millis,
    ack::Numbered,
    heartbeat::HostState,
    name::{CommandId, Digest, HostId, Name},
    outcome::Status,
    select,
};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    admission::{KeptDesired, PretendedChanges},
    command_handler::EndedCommand,
    fleet_keys::FleetKeys,
    measure::{HostMetrics, PackedBatch},
    store::{InterruptedCommand, Number, Outbox},
    tally::FleetCounters,
    writer::JournalWriter,
};

/// An event for the session.
pub(super) type HostInput = Input<AckToken, EndedCommand>;

/// The behaviour of simulated hosts.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    /// How long a program takes.
    pub(super) takes_ms: Millis,
    /// The share of commands that fail, in `0..=1`.
    pub(super) fail: f64,
    /// How long a version of a deployment takes that is rolled out.
    pub(super) change_takes_ms: Millis,
    /// The share of hosts on which one fails, in `0..=1`.
    pub(super) change_fail: f64,
    /// Number of series that each host measures.
    pub(super) series: u32,
    /// The realms of all hosts.
    pub(super) realms: BTreeSet<Name>,
    pub(super) policy: LocalPolicy,
    pub(super) user: String,
    /// The state that each host reports, except its name.
    pub(super) state: HostState,
}

impl Behaviour {
    /// Whether what this text names is within a share. The same text has the same lot in each run.
    pub(super) fn is_in_share(&self, text: &str, share: f64) -> bool {
        let lot = Digest::of(text.as_bytes());
        let lot = u32::from_str_radix(&lot.as_str()[..8], 16).unwrap_or(u32::MAX);
        f64::from(lot) < share * f64::from(u32::MAX)
    }
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeEnd {
    /// With a goodbye, as when an agent is stopped.
    InOrder,
    /// Without one, as in a power failure: the last will is published.
    Broken,
}

/// The parts of a host.
pub(super) struct HostParts {
    pub(super) n: Number,
    pub(super) session: Session<AckToken, EndedCommand>,
    pub(super) identity: Arc<MemberIdentity>,
    pub(super) keys: Arc<FleetKeys>,
    pub(super) outbox: Outbox,
    pub(super) journal: JournalWriter,
    pub(super) manner: Arc<Behaviour>,
    pub(super) tally: Arc<FleetCounters>,
    /// `None` if it measures nothing.
    pub(super) measures: Option<HostMetrics>,
    /// The state that it reports in this life.
    pub(super) state: HostState,
    /// What it keeps of its document, from one life to the next.
    pub(super) document: KeptDocument,
    /// The names of its labels, to which the link subscribes.
    pub(super) groups: watch::Sender<Vec<Name>>,
}

/// What a host keeps of its document.
pub(super) type KeptDocument = Arc<Mutex<KeptDesired>>;

/// A command that takes some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PretendedCommand {
    pub(super) end_ms: Millis,
    pub(super) received_ms: Millis,
    /// When it is ended by its own time limit.
    pub(super) late_ms: Millis,
}

/// A simulated host; see the module.
pub(super) struct SimulatedHost {
    pub(super) parts: HostParts,
    pub(super) running: BTreeMap<CommandId, PretendedCommand>,
    pub(super) changes: PretendedChanges,
    /// Events that the session has not handled yet.
    events: VecDeque<HostInput>,
    outgoing: OutgoingQueue,
    /// The body of a document that is being fetched.
    fetches: JoinSet<(Digest, Option<Vec<u8>>)>,
    sole: bool,
    began: Instant,
}

/// The host, for selectors.
struct SimulatedView<'a> {
    host: HostId,
    state: &'a HostState,
}

impl HostView for SimulatedView<'_> {
    fn see<T>(&self, look: impl FnOnce(&select::Host<'_>) -> T) -> T {
        look(&select::Host::of(self.host, self.state, &[]))
    }
}

/// The writer has ended, so the host must end, too.
#[derive(Debug)]
pub(super) struct WriterEnded;

pub(super) type WriteResult<T = ()> = Result<T, WriterEnded>;

impl SimulatedHost {
    pub(super) fn new(parts: HostParts) -> Self {
        let outgoing = OutgoingQueue::new(parts.session.me().host);
        Self {
            parts,
            running: BTreeMap::new(),
            changes: PretendedChanges::new(),
            events: VecDeque::new(),
            outgoing,
            fetches: JoinSet::new(),
            sole: false,
            began: Instant::now(),
        }
    }

    /// The host.
    pub(super) fn host(&self) -> HostId {
        self.parts.session.me().host
    }

    /// Adds an event for the session.
    pub(super) fn tell(&mut self, input: HostInput) {
        self.events.push_back(input);
    }

    /// Milliseconds since the start of this life, by a monotonic clock.
    pub(super) fn now_ms(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// Runs until `leave` says how to end. `unfinished` is what an earlier life has left; returns what this one leaves.
    pub(super) async fn run(
        mut self,
        mut link: LinkTask,
        unfinished: Vec<InterruptedCommand>,
        leave: impl Future<Output = LifeEnd>,
    ) -> Vec<InterruptedCommand> {
        tokio::pin!(leave);
        self.resume(unfinished);
        self.begin_changes();
        let how = loop {
            let deadline = self.deadline();
            // Each arm is safe to cancel: channel and set keep what is not received, and the sleep is created again.
            tokio::select! {
                how = &mut leave => break how,
                Some(Ok((digest, bytes))) = self.fetches.join_next(), if !self.fetches.is_empty() => {
                    self.tell(Input::DesiredFetched(digest, bytes));
                }
                event = link.events.recv() => match event {
                    Some(event) => self.link_event(event),
                    None => break LifeEnd::Broken,
                },
                () = until(deadline) => self.on_time(),
            };
            self.tell(Input::Time);
            if self.run_session(&link).await.is_err() {
                break LifeEnd::Broken;
            }
            self.count_online(self.parts.session.is_sole());
        };
        self.count_online(false);
        if how == LifeEnd::InOrder {
            let last = self.parts.measures.as_mut().and_then(HostMetrics::flush);
            self.measured(last);
            let limit = Duration::from_millis(FAREWELL_MS.unsigned_abs());
            let _ = tokio::time::timeout(limit, self.farewell(&mut link)).await;
        }
        let left = |(id, one): (CommandId, PretendedCommand)| InterruptedCommand {
            id,
            received_ms: one.received_ms,
            late_ms: one.late_ms,
        };
        self.running.into_iter().map(left).collect()
    }

    fn count_online(&mut self, sole: bool) {
        match (std::mem::replace(&mut self.sole, sole), sole) {
            (false, true) => drop(self.parts.tally.online.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.parts.tally.online.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let now_ms = self.now_ms();
        let ends = self.running.values().map(|one| one.end_ms).min();
        let measures = self.parts.measures.as_ref().map(HostMetrics::next_ms);
        let changes = self.changes.values().copied().min();
        let due = [self.parts.session.next_ms(now_ms), ends, changes, measures, self.outgoing.next_ms(now_ms)];
        let due_ms = due.into_iter().flatten().min()?;
        // Timers have a resolution of a millisecond: a little later is never too early.
        Some(self.began + Duration::from_millis(due_ms.max(0).unsigned_abs()) + Duration::from_millis(1))
    }

    fn link_event(&mut self, event: LinkEvent) {
        let input = self.outgoing.observe(event, &self.parts.keys.membership().command_keys);
        self.tell(input);
    }

    /// Has the session handle all events, and performs its effects.
    async fn run_session(&mut self, link: &LinkTask) -> WriteResult {
        while let Some(input) = self.events.pop_front() {
            let room = self.outgoing.room();
            let now = Moment { life_ms: self.now_ms(), clock_ms: clock::now_ms(), random: chance::random };
            let view = SimulatedView { host: self.host(), state: &self.parts.state };
            for effect in self.parts.session.handle(now, room, &view, input) {
                self.perform(effect, link).await?;
            }
        }
        self.outgoing.send();
        Ok(())
    }

    async fn perform(&mut self, effect: Effect<AckToken, EndedCommand>, link: &LinkTask) -> WriteResult {
        match effect {
            Effect::Publish(publication) => self.outgoing.push(OutgoingMessage::Publish(publication)),
            Effect::Acknowledge(receipt) => self.outgoing.push(OutgoingMessage::Acknowledge(receipt)),
            Effect::Disconnect => self.outgoing.disconnect(),
            Effect::Store(request) => {
                let reply = self.perform_store(request).await?;
                // The session waits for it, so it comes before other events.
                self.events.push_front(Input::Stored(reply));
            }
            Effect::Start(command) => self.start(command.get()),
            Effect::Cancel(which) => self.cancelled(which),
            Effect::Withdraw => {
                link.withdraw();
                self.outgoing.disconnected();
            }
            Effect::FetchDesired(digest) => self.fetch_desired(digest),
            // It keeps no body.
            Effect::HandInDocument => self.tell(Input::DocumentHandedIn),
            Effect::Stopped => self.outgoing.disconnected(),
            Effect::Notice(notice) => self.count(&notice),
            // A simulated host raises no alerts.
            Effect::AdmissionWaits(name, version, reason) => self.admission_waits(&name, version, reason),
            Effect::TwinSeen | Effect::ConsoleTime { .. } => {}
        }
        Ok(())
    }

    /// Fetches the body of a document; the result is an event.
    fn fetch_desired(&mut self, digest: Digest) {
        let identity = Arc::clone(&self.parts.identity);
        self.fetches.spawn(async move {
            let fetched = document::fetch(&identity, &digest).await;
            if let Err(error) = &fetched {
                tracing::debug!(%error, "a document cannot be fetched");
            }
            (digest, fetched.ok())
        });
    }

    fn count(&self, notice: &Notice) {
        let tally = &self.parts.tally;
        match notice {
            // It is well signed: under load a question is repeated before it is answered.
            Notice::Rejected(what, reason) if what == "admission_answer" => {
                tracing::debug!(reason, "an answer about a rollout does not count");
            }
            Notice::Rejected(what, reason) => {
                tracing::debug!(what, reason, "a message is rejected");
                tally.rejected.fetch_add(1, Ordering::Relaxed);
            }
            Notice::Refused(..) => drop(tally.refused.fetch_add(1, Ordering::Relaxed)),
            Notice::Repeated(_) => drop(tally.repeated.fetch_add(1, Ordering::Relaxed)),
            Notice::Withdrawn => {
                tracing::error!(host.id = %self.host(), "duplicate: another simulation has this host");
            }
            _ => {}
        }
    }

    fn on_time(&mut self) {
        let now_ms = self.now_ms();
        self.end_changes();
        let batch = self.parts.measures.as_mut().and_then(|measures| measures.on_time(now_ms, clock::now_ms()));
        self.measured(batch);
        let over = self.running.iter().filter(|(_, one)| one.end_ms <= now_ms);
        let ended = over.map(|(id, one)| {
            let is_late = self.parts.manner.takes_ms > one.late_ms;
            let status = if is_late { Status::TimedOut } else { Status::exited(self.exit(*id)) };
            EndedCommand { id: *id, status, started_ms: Some(one.received_ms) }
        });
        let ended: Vec<_> = ended.collect();
        if !ended.is_empty() {
            self.running.retain(|id, _| ended.iter().all(|one| one.id != *id));
            self.tell(Input::Writes(ended));
        }
    }

    /// Puts a batch into the outbox.
    fn measured(&mut self, batch: Option<(Numbered, PackedBatch)>) {
        let Some((id, batch)) = batch else { return };
        let tally = &self.parts.tally;
        tally.batches.fetch_add(1, Ordering::Relaxed);
        tally.values.fetch_add(batch.values, Ordering::Relaxed);
        if let Some(values) = self.parts.outbox.put_batch(id, batch) {
            tally.batches_given_up.fetch_add(1, Ordering::Relaxed);
            tally.values_given_up.fetch_add(values, Ordering::Relaxed);
        }
        self.parts.session.publisher.metrics_stored();
    }

    /// Says goodbye, until the broker has received it.
    async fn farewell(&mut self, link: &mut LinkTask) {
        self.tell(Input::Stop);
        while self.run_session(link).await.is_ok() && self.outgoing.is_connected() {
            let retry = Duration::from_millis(RETRY_MS.unsigned_abs());
            match tokio::time::timeout(retry, link.events.recv()).await {
                Ok(Some(event)) => self.link_event(event),
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}
