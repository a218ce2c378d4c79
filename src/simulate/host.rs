//! One life of a simulated host: an agent's loop, with an agent's own link, publisher, signature check and rules, over a
//! store that it shares with others. It pretends to run programs.
//!
//! **Invariant: record, then act**, as in an agent: a command is in the journal before it is acknowledged to the broker
//! and before it has any effect; its outcome is stored before it is published. ([`super::command_handler`] does that.)

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_agent::{
    join::MemberIdentity,
    link::{ClientIdentity, ConnectionHandle, InboundMessage, LinkEvent, LinkTask},
    publisher::Publisher,
};
use muster_base::clock;
use muster_rules::{
    authorise::LocalPolicy,
    presence::{PresenceVerdict, StoreLife},
    receive::RefreshHistory,
    time::KnownTime,
};
use muster_topics::{
    Millis, V1,
    ack::Numbered,
    heartbeat::HostState,
    name::{CommandId, Name},
    outcome::{Content, Report, Status},
    presence::{Presence, PresenceState},
    select,
    topic::{HostTopic, Topic},
};
use tokio::{sync::watch, time::Instant};
use uuid::Uuid;

use super::{
    measure::{HostMetrics, PackedBatch},
    store::{InterruptedCommand, Number, Outbox},
    tally::FleetCounters,
    writer::JournalWriter,
};

/// As in an agent: number of messages that are held back while it is not known whether this host may work.
const HELD_MAX: usize = 64;
/// As in an agent: `running` is only reported for commands that take longer than this.
const QUIET_MS: Millis = 1_000;
/// As in an agent: longest time for a goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// The behaviour of simulated hosts.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    /// How long a program takes.
    pub(super) takes_ms: Millis,
    /// The share of commands that fail, in `0..=1`.
    pub(super) fail: f64,
    /// Number of series that each host measures.
    pub(super) series: u32,
    /// The realms of all hosts.
    pub(super) realms: BTreeSet<Name>,
    pub(super) policy: LocalPolicy,
    pub(super) user: String,
    /// The state that each host reports, except its name.
    pub(super) state: HostState,
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
    pub(super) me: ClientIdentity,
    pub(super) former: Vec<StoreLife>,
    pub(super) identity: Arc<MemberIdentity>,
    pub(super) created_ms: Millis,
    pub(super) time: KnownTime,
    pub(super) publisher: Publisher<Outbox>,
    pub(super) outbox: Outbox,
    pub(super) journal: JournalWriter,
    pub(super) manner: Arc<Behaviour>,
    pub(super) tally: Arc<FleetCounters>,
    /// `None` if it measures nothing.
    pub(super) measures: Option<HostMetrics>,
    /// The state that it reports in this life.
    pub(super) state: HostState,
    /// The names of its labels, to which the link subscribes.
    pub(super) groups: watch::Sender<Vec<Name>>,
}

/// A command that takes some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PretendedCommand {
    pub(super) since_ms: Millis,
    pub(super) end_ms: Millis,
    pub(super) received_ms: Millis,
    /// When it is ended by its own time limit.
    pub(super) late_ms: Millis,
    pub(super) told: bool,
}

/// A simulated host; see the module.
pub(super) struct SimulatedHost {
    pub(super) parts: HostParts,
    pub(super) running: BTreeMap<CommandId, PretendedCommand>,
    pub(super) refreshes: RefreshHistory,
    pub(super) refresh_due_ms: Option<Millis>,
    held: VecDeque<InboundMessage>,
    sole: bool,
    began: Instant,
}

/// The writer has ended, so the host must end, too.
#[derive(Debug)]
pub(super) struct WriterEnded;

pub(super) type WriteResult = Result<(), WriterEnded>;

impl SimulatedHost {
    pub(super) fn new(parts: HostParts) -> Self {
        Self {
            parts,
            running: BTreeMap::new(),
            refreshes: RefreshHistory::default(),
            refresh_due_ms: None,
            held: VecDeque::new(),
            sole: false,
            began: Instant::now(),
        }
    }

    /// This host, for selectors.
    pub(super) fn seen(&self) -> select::Host<'_> {
        select::Host::of(self.parts.me.host, &self.parts.state, &[])
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
        let how = loop {
            let deadline = self.deadline();
            // Each arm is safe to cancel: the channel keeps messages that are not received, and the sleep is created
            // again.
            let done = tokio::select! {
                how = &mut leave => break how,
                event = link.events.recv() => match event {
                    Some(event) => self.link_event(event, &link).await,
                    None => break LifeEnd::Broken,
                },
                () = until(deadline) => self.on_time(&link).await,
            };
            let now_ms = self.now_ms();
            // An outbox in memory cannot fail.
            if done.is_err() || self.parts.publisher.pump(now_ms).await.is_err() {
                break LifeEnd::Broken;
            }
        };
        if self.sole {
            self.parts.tally.online.fetch_sub(1, Ordering::Relaxed);
        }
        if how == LifeEnd::InOrder {
            let last = self.parts.measures.as_mut().and_then(HostMetrics::flush);
            self.measured(last);
            self.farewell(&mut link).await;
        }
        let left = |(id, one): (CommandId, PretendedCommand)| InterruptedCommand {
            id,
            received_ms: one.received_ms,
            late_ms: one.late_ms,
        };
        self.running.into_iter().map(left).collect()
    }

    fn deadline(&self) -> Option<Instant> {
        let running = self
            .running
            .values()
            .map(|one| if one.told { one.end_ms } else { one.end_ms.min(one.since_ms + QUIET_MS) });
        let measures = self.parts.measures.as_ref().map(HostMetrics::next_ms);
        let due = [self.refresh_due_ms, self.parts.publisher.next_ms(self.now_ms()), running.min(), measures];
        let due_ms = due.into_iter().flatten().min()?;
        // Timers have a resolution of a millisecond: a little later is never too early.
        Some(self.began + Duration::from_millis(due_ms.max(0).unsigned_abs()) + Duration::from_millis(1))
    }

    async fn link_event(&mut self, event: LinkEvent, link: &LinkTask) -> WriteResult {
        match event {
            LinkEvent::Up(connection) => {
                let now_ms = self.now_ms();
                self.parts.publisher.up(connection, self.parts.former.clone(), now_ms);
                Ok(())
            }
            LinkEvent::Down => {
                self.down();
                Ok(())
            }
            LinkEvent::Message(message) => self.message(message, link).await,
        }
    }

    fn down(&mut self) {
        self.parts.publisher.down();
        self.held.clear();
        if std::mem::take(&mut self.sole) {
            self.parts.tally.online.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn message(&mut self, mut message: InboundMessage, link: &LinkTask) -> WriteResult {
        if matches!(&message.topic, Topic::Host(_, HostTopic::Presence)) {
            let now_ms = self.now_ms();
            let verdict = self.parts.publisher.handle_presence(message.payload(), now_ms);
            self.parts.publisher.done(message);
            return self.apply_verdict(verdict, link).await;
        }
        if !self.parts.publisher.is_sole() || !self.held.is_empty() {
            if self.held.len() < HELD_MAX {
                self.parts.publisher.held(&mut message);
                self.held.push_back(message);
            }
            return Ok(());
        }
        self.order(message).await
    }

    async fn apply_verdict(&mut self, verdict: PresenceVerdict, link: &LinkTask) -> WriteResult {
        match verdict {
            PresenceVerdict::Ignore | PresenceVerdict::Assert => {}
            PresenceVerdict::Claim => self.held.iter_mut().for_each(|message| self.parts.publisher.held(message)),
            PresenceVerdict::Withdraw => {
                tracing::error!(host.id = %self.parts.me.host, "duplicate: another simulation has this host");
                link.withdraw();
                self.down();
            }
            PresenceVerdict::Settled => {
                let now_ms = self.now_ms();
                self.parts.publisher.begin(now_ms);
                self.sole = true;
                self.parts.tally.online.fetch_add(1, Ordering::Relaxed);
                while let Some(message) = self.held.pop_front() {
                    self.order(message).await?;
                }
            }
        }
        Ok(())
    }

    async fn on_time(&mut self, link: &LinkTask) -> WriteResult {
        let now_ms = self.now_ms();
        if self.refresh_due_ms.is_some_and(|due_ms| now_ms >= due_ms) {
            self.refresh_due_ms = None;
            self.parts.publisher.refresh(now_ms);
        }
        self.report_slow_commands(now_ms);
        let batch = self.parts.measures.as_mut().and_then(|measures| measures.on_time(now_ms, clock::now_ms()));
        self.measured(batch);
        while let Some(id) = self.running.iter().find(|(_, one)| one.end_ms <= now_ms).map(|(id, _)| *id) {
            let Some(one) = self.running.remove(&id) else { break };
            let is_late = self.parts.manner.takes_ms > one.late_ms;
            let status = if is_late { Status::TimedOut } else { Status::exited(self.exit(id)) };
            self.finish(id, status, Some(one.received_ms)).await?;
        }
        let verdict = self.parts.publisher.tick(now_ms);
        self.apply_verdict(verdict, link).await
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
        self.parts.publisher.metrics_stored();
    }

    fn report_slow_commands(&mut self, now_ms: Millis) {
        for (id, one) in &mut self.running {
            if !one.told && now_ms >= one.since_ms + QUIET_MS {
                one.told = true;
                let at_ms = clock::now_ms();
                self.parts.publisher.note(Report { v: V1, command: *id, seq: 0, at_ms, content: Content::Running });
            }
        }
    }

    /// Says goodbye and waits for a short time until the broker has received it.
    async fn farewell(&mut self, link: &mut LinkTask) {
        let Some(connection) = self.parts.publisher.farewell() else { return };
        let heard = async {
            while let Some(event) = link.events.recv().await {
                match event {
                    LinkEvent::Message(message) if is_echo(&message, self.parts.me.instance) => break,
                    LinkEvent::Down => return,
                    LinkEvent::Up(_) | LinkEvent::Message(_) => {}
                }
            }
            disconnect(&connection);
            while !matches!(link.events.recv().await, Some(LinkEvent::Down) | None) {}
        };
        let _ = tokio::time::timeout(FAREWELL, heard).await;
    }
}

fn disconnect(connection: &ConnectionHandle) {
    // If the queue is full or closed, the last will says the same.
    let _ = connection.disconnect();
}

/// Whether this is a host's own last message.
fn is_echo(message: &InboundMessage, instance: Uuid) -> bool {
    matches!(&message.topic, Topic::Host(_, HostTopic::Presence))
        && serde_json::from_slice::<Presence>(message.payload())
            .is_ok_and(|presence| presence.instance == instance && presence.state == PresenceState::Stopped)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}
