//! Publishes what the agent has to report, and tracks what was acknowledged.
//!
//! There is no queue of messages. Each kind knows which of its messages are due (a presence, a
//! heartbeat, unit topics that changed, alerts, rows of the outbox, metric batches), and [`Publisher::pump`] publishes as
//! many as the connection accepts. So a broken or slow connection costs only time, and nothing
//! piles up.
//!
//! **Invariant: rows of the outbox and batches are published until the console's signed `ack` names them**,
//! with growing pauses between, and at once after every connect; old batches follow [`muster_rules::backlog`].
//!
//! Unacknowledged messages are in a store: a host's own, or the one that simulated hosts share (see [`OutboxStore`]).

use std::collections::VecDeque;

use muster_base::{chance, clock};
use muster_fault::planted;
use muster_rules::{
    backlog::{self, OutboxBacklog},
    heartbeat::HeartbeatSchedule,
    outbox_retry::OutboxRetry,
    presence::{ClaimState, PresenceVerdict, StoreLife},
};
use muster_topics::{
    Millis,
    ack::{Ack, Numbered, ReportAck},
    outcome::Report,
    presence::{Presence, PresenceState},
    topic::{HostTopic, Topic},
};

use super::{
    alert_topics::AlertTopics,
    link::{AckToken, ClientIdentity, ConnectionHandle, InboundMessage},
    store::{Store, StoreError, metric, outbox},
    unit_topics::UnitTopics,
};

/// Unacknowledged outbox rows. Only their keys are kept here; 256 rows are 4 MiB of output.
const OUTBOX_MAX: usize = 256;
/// Unsent notes (`accepted`, `running`). They are not kept until acknowledged, and only the newest matter.
const NOTES_MAX: usize = 64;
/// The delay when the connection takes no more.
const BLOCKED_MS: Millis = 20;
/// The delay after the store failed.
const FAILED_MS: Millis = 1_000;
/// The least time between two publications of the own presence, so that two parties that overwrite each other do so
/// slowly; less than the shortest wait of a claim, two keep-alives.
const ASSERT_GAP_MS: Millis = 1_000;

/// The store of messages that wait for the console's acknowledgement.
#[expect(
    async_fn_in_trait,
    reason = "what implements it is driven on one thread, by this crate and the simulation alone"
)]
pub trait OutboxStore {
    /// Returns the first messages about commands, in the order of their commands.
    async fn first_reports(&self, limit: usize) -> Result<Vec<ReportAck>, StoreError>;
    /// Returns one message, if it still waits.
    async fn report(&self, key: ReportAck) -> Result<Option<Vec<u8>>, StoreError>;
    /// Returns the first batches of measurements.
    async fn first_batches(&self, limit: usize) -> Result<Vec<(Numbered, Vec<u8>)>, StoreError>;
}

impl OutboxStore for Store {
    async fn first_reports(&self, limit: usize) -> Result<Vec<ReportAck>, StoreError> {
        outbox::first(self, limit).await
    }

    async fn report(&self, key: ReportAck) -> Result<Option<Vec<u8>>, StoreError> {
        outbox::payload(self, key).await
    }

    async fn first_batches(&self, limit: usize) -> Result<Vec<(Numbered, Vec<u8>)>, StoreError> {
        metric::pending(self, limit).await
    }
}

/// The sending end of a connection. No method waits; each returns false, and does nothing, if there is no room.
pub trait PublishSink {
    /// The number of this connection in this run of the agent, from 1.
    fn session(&self) -> u64;
    /// When it began.
    fn since_ms(&self) -> Millis;
    /// Publishes at least once.
    fn publish(&self, topic: &Topic, retain: bool, payload: Vec<u8>) -> bool;
    /// Acknowledges a message to the broker.
    fn acknowledge(&self, receipt: &AckToken) -> bool;
    /// Ends the connection in order: the last will is not published.
    fn disconnect(&self) -> bool;
}

impl PublishSink for ConnectionHandle {
    fn session(&self) -> u64 {
        self.session
    }

    fn since_ms(&self) -> Millis {
        self.since_ms
    }

    fn publish(&self, topic: &Topic, retain: bool, payload: Vec<u8>) -> bool {
        Self::publish(self, topic, retain, payload)
    }

    fn acknowledge(&self, receipt: &AckToken) -> bool {
        Self::acknowledge(self, receipt)
    }

    fn disconnect(&self) -> bool {
        Self::disconnect(self)
    }
}

/// Publishes what is due, and repeats what is not acknowledged; see the module.
#[derive(Debug)]
pub struct Publisher<K = Store, W = ConnectionHandle> {
    me: ClientIdentity,
    kept: K,
    line: Option<PublishedConnection<W>>,
    has_worked: bool,
    /// Heartbeats.
    pub beats: HeartbeatSchedule,
    /// The topics of units.
    pub units: UnitTopics,
    pub(super) alerts: AlertTopics,
    /// A heartbeat that the connection did not take yet.
    beat: Option<Vec<u8>>,
    notes: VecDeque<Report>,
    outbox: OutboxRetry<ReportAck>,
    /// Whether the store may hold rows that are not in `outbox`.
    outbox_behind: bool,
    metrics: OutboxBacklog,
    blocked_until_ms: Option<Millis>,
}

/// A connection, and the state of this agent's claim.
#[derive(Debug)]
struct PublishedConnection<W> {
    connection: W,
    standing: ClaimState,
    asserted_ms: Millis,
    assert_ms: Option<Millis>,
    /// Acknowledgements that the connection did not take yet.
    acks: VecDeque<AckToken>,
}

impl<W> PublishedConnection<W> {
    /// Schedules another publication of the own presence.
    fn assert(&mut self, now_ms: Millis) {
        self.assert_ms = Some(now_ms.max(self.asserted_ms + ASSERT_GAP_MS));
    }
}

impl<K: OutboxStore, W: PublishSink> Publisher<K, W> {
    /// Creates it without a connection.
    #[must_use]
    pub fn new(me: ClientIdentity, kept: K, beats: HeartbeatSchedule) -> Self {
        let (units, alerts) = (UnitTopics::new(me.epoch), AlertTopics::new(me.epoch));
        Self {
            me,
            kept,
            line: None,
            has_worked: false,
            beats,
            units,
            alerts,
            beat: None,
            notes: VecDeque::new(),
            outbox: OutboxRetry::new(OUTBOX_MAX),
            outbox_behind: !planted!(ForgetOutbox),
            metrics: OutboxBacklog::new(backlog::GAP_MS),
            blocked_until_ms: None,
        }
    }

    /// Sets the time between two batches of measurements that have waited.
    #[must_use]
    pub(super) fn with_backlog(self, gap_ms: Millis) -> Self {
        Self { metrics: OutboxBacklog::new(gap_ms), ..self }
    }

    /// Handles a new connection; whether this agent may work shows when its own presence comes back.
    pub fn up(&mut self, connection: W, former: Vec<StoreLife>, now_ms: Millis) {
        // A broker drops a working agent that is silent for one and a half keep-alives; the agent notices by then.
        let wait_ms = Millis::from(self.me.keep_alive_s) * 2000;
        let own = StoreLife { instance: self.me.instance, is_newcomer: !self.has_worked };
        let standing = ClaimState::new(own, (self.me.epoch, connection.session()), former, wait_ms);
        self.blocked_until_ms = None;
        self.line = Some(PublishedConnection {
            connection,
            standing,
            asserted_ms: now_ms - ASSERT_GAP_MS,
            assert_ms: None,
            acks: VecDeque::new(),
        });
    }

    /// Handles the end of the connection.
    pub fn down(&mut self) {
        self.line = None;
        self.beat = None;
        self.beats.disconnected();
    }

    /// Whether this agent was the only one of its host at some time in this run.
    pub(super) fn has_worked(&self) -> bool {
        self.has_worked
    }

    /// Whether the agent is connected, and the only one of its host.
    pub fn is_sole(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.standing.is_sole())
    }

    /// Handles a message on the host's presence topic.
    pub fn handle_presence(&mut self, payload: &[u8], now_ms: Millis) -> PresenceVerdict {
        let Some(line) = &mut self.line else { return PresenceVerdict::Ignore };
        let presence: Option<Presence> = serde_json::from_slice(payload).ok();
        let verdict = line.standing.observe(presence.as_ref(), now_ms);
        if verdict == PresenceVerdict::Assert {
            line.assert(now_ms);
        }
        verdict
    }

    /// Whether the message is of a twin that works.
    pub(super) fn is_twin(&self, payload: &[u8]) -> bool {
        let presence: Option<Presence> = serde_json::from_slice(payload).ok();
        self.line.as_ref().zip(presence).is_some_and(|(line, presence)| line.standing.is_twin(&presence))
    }

    /// Returns the epoch of a later instance of this host that is unknown to an agent whose last epoch was `last`.
    pub(super) fn unknown_later_life(&self, payload: &[u8], last: u64) -> Option<u64> {
        let presence: Presence = serde_json::from_slice(payload).ok()?;
        let standing = &self.line.as_ref()?.standing;
        standing.is_unknown_later_life(&presence, last).then_some(presence.epoch)
    }

    /// Handles the passing of time for a claim.
    pub fn tick(&mut self, now_ms: Millis) -> PresenceVerdict {
        let Some(line) = &mut self.line else { return PresenceVerdict::Ignore };
        let verdict = line.standing.tick(now_ms);
        if verdict == PresenceVerdict::Assert {
            line.assert(now_ms);
        }
        verdict
    }

    /// Starts to work: everything is published again.
    pub fn begin(&mut self, now_ms: Millis) {
        self.has_worked = true;
        self.beats.connected(now_ms);
        self.repeat_all(now_ms);
        self.metrics.connected();
    }

    /// Publishes everything again on request, within the limits.
    pub fn refresh(&mut self, now_ms: Millis) {
        self.beats.refresh(now_ms);
        self.repeat_all(now_ms);
        if let Some(line) = &mut self.line {
            line.assert(now_ms);
        }
    }

    /// Publishes a full heartbeat on request, within the limits.
    pub(super) fn request_heartbeat(&mut self, now_ms: Millis) {
        self.beat = None;
        self.beats.refresh(now_ms);
    }

    fn repeat_all(&mut self, now_ms: Millis) {
        self.beat = None;
        self.units.all();
        self.alerts.all(now_ms);
        self.outbox.reset(now_ms);
        self.metrics.repeat();
    }

    /// Queues a message of the outbox to be sent now.
    pub fn queue(&mut self, key: ReportAck, now_ms: Millis) {
        if !self.outbox.hasten(key, now_ms) {
            self.outbox_behind = true;
        }
    }

    /// Handles new batches in the store.
    pub fn metrics_stored(&mut self) {
        self.metrics.stored();
    }

    /// Queues a message that is not kept until acknowledged.
    pub fn note(&mut self, note: Report) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
    }

    /// Acknowledges a message that was handled.
    pub fn done(&mut self, mut message: InboundMessage) {
        self.acknowledge(&mut message);
    }

    /// Acknowledges a message that is held back. While this agent claims its host, which takes as long as a broker may
    /// wait for an acknowledgement before it disconnects the client, the broker may forget it: the connection has to
    /// last, and the sender repeats the message until it is answered.
    pub fn held(&mut self, message: &mut InboundMessage) {
        if self.line.as_ref().is_some_and(|line| line.standing.is_claiming()) {
            self.acknowledge(message);
        }
    }

    fn acknowledge(&mut self, message: &mut InboundMessage) {
        if let (Some(line), Some(receipt)) = (&mut self.line, message.receipt())
            && (!line.acks.is_empty() || !line.connection.acknowledge(&receipt))
        {
            line.acks.push_back(receipt);
        }
    }

    /// Handles an acknowledgement of the console; the store has removed the rows already.
    pub fn acknowledged(&mut self, ack: &Ack) {
        for key in &ack.reports {
            self.outbox.remove(key);
        }
        for id in &ack.metrics {
            self.metrics.acknowledged(id);
        }
        for key in &ack.alerts {
            self.alerts.acknowledged(key);
        }
        if let Some(heartbeat) = ack.heartbeat {
            self.beats.acknowledge(heartbeat);
        }
    }

    /// When to call [`Self::pump`] next.
    pub fn next_ms(&self, now_ms: Millis) -> Option<Millis> {
        let line = self.line.as_ref()?;
        let standing = line.standing.next_ms();
        let due = [
            line.assert_ms,
            (!line.acks.is_empty()).then_some(now_ms),
            self.when_sole(|publisher| {
                [
                    publisher.beats.next_ms(),
                    publisher.outbox.next_ms(),
                    publisher.metrics.next_ms(),
                    publisher.alerts.next_ms(now_ms),
                ]
                .into_iter()
                .flatten()
                .min()
            }),
            self.when_sole(|publisher| {
                let more = publisher.beat.is_some() || !publisher.notes.is_empty() || publisher.units.is_due();
                more.then_some(now_ms)
            }),
        ];
        let due = due.into_iter().flatten().min().map(|due| due.max(self.blocked_until_ms.unwrap_or(due)));
        [standing, due].into_iter().flatten().min()
    }

    fn when_sole(&self, of: impl Fn(&Self) -> Option<Millis>) -> Option<Millis> {
        self.is_sole().then(|| of(self)).flatten()
    }

    /// Publishes what is due, as far as the connection takes it.
    ///
    /// # Errors
    /// If the store fails; it is tried again later.
    pub async fn pump(&mut self, now_ms: Millis) -> Result<(), StoreError> {
        if self.blocked_until_ms.is_some_and(|until_ms| now_ms < until_ms) {
            return Ok(());
        }
        let said = self.say(now_ms).await;
        self.blocked_until_ms = match said {
            Ok(true) => None,
            Ok(false) => Some(now_ms + BLOCKED_MS),
            Err(_) => Some(now_ms + FAILED_MS),
        };
        said.map(|_| ())
    }

    /// Publishes what is due; returns false if the connection takes no more.
    async fn say(&mut self, now_ms: Millis) -> Result<bool, StoreError> {
        if !self.publish_presence(now_ms) {
            return Ok(false);
        }
        if !self.is_sole() {
            return Ok(true);
        }
        Ok(self.publish_heartbeat(now_ms)
            && self.publish_notes()
            && self.publish_alerts(now_ms)
            && self.publish_outbox(now_ms).await?
            && self.publish_units()
            && self.publish_metrics(now_ms).await?)
    }

    fn publish_presence(&mut self, now_ms: Millis) -> bool {
        let Some(line) = &mut self.line else { return true };
        while let Some(receipt) = line.acks.front() {
            if !line.connection.acknowledge(receipt) {
                return false;
            }
            line.acks.pop_front();
        }
        if line.assert_ms.is_none_or(|assert_ms| now_ms < assert_ms) {
            return true;
        }
        let connection = &line.connection;
        let presence = self.me.presence(connection.session(), PresenceState::Online, connection.since_ms());
        let said = connection.publish(&self.me.topic(HostTopic::Presence), true, json(&presence));
        if said {
            (line.assert_ms, line.asserted_ms) = (None, now_ms);
        }
        said
    }

    fn publish(&self, topic: HostTopic, retain: bool, payload: Vec<u8>) -> bool {
        self.line.as_ref().is_some_and(|line| line.connection.publish(&self.me.topic(topic), retain, payload))
    }

    fn publish_heartbeat(&mut self, now_ms: Millis) -> bool {
        loop {
            if let Some(beat) = &self.beat {
                if !self.publish(HostTopic::Heartbeat, false, beat.clone()) {
                    return false;
                }
                self.beat = None;
            }
            let (at_ms, random) = (clock::now_ms(), chance::random());
            let beat = self.beats.take(now_ms, at_ms, random);
            let Some(beat) = beat.or_else(|| self.beats.take_digest(now_ms, at_ms, random, self.units.told())) else {
                return true;
            };
            self.beat = Some(json(&beat));
        }
    }

    fn publish_notes(&mut self) -> bool {
        while let Some(note) = self.notes.front() {
            if !self.publish(HostTopic::Outcome, false, json(note)) {
                return false;
            }
            self.notes.pop_front();
        }
        true
    }

    fn publish_alerts(&mut self, now_ms: Millis) -> bool {
        while let Some(mut saying) = self.alerts.next(now_ms) {
            let payload = std::mem::take(&mut saying.payload);
            if !self.publish(HostTopic::Alert(saying.id.clone()), saying.retain, payload) {
                return false;
            }
            self.alerts.record_sent(&saying, now_ms, chance::random());
        }
        true
    }

    fn publish_units(&mut self) -> bool {
        while let Some((unit, payload)) = self.units.next(clock::now_ms()) {
            if !self.publish(HostTopic::Unit(unit.clone()), true, payload) {
                return false;
            }
            self.units.record_sent(&unit);
        }
        true
    }

    async fn publish_outbox(&mut self, now_ms: Millis) -> Result<bool, StoreError> {
        if self.outbox_behind && self.outbox.has_room() {
            let rows = self.kept.first_reports(self.outbox.capacity() + 1).await?;
            self.outbox_behind = !rows.into_iter().all(|key| self.outbox.add(key, now_ms));
        }
        for key in self.outbox.due(now_ms) {
            let Some(payload) = self.kept.report(key).await? else {
                self.outbox.remove(&key);
                continue;
            };
            if !self.publish(HostTopic::Outcome, false, payload) {
                return Ok(false);
            }
            self.outbox.record_sent(&key, now_ms, chance::random());
        }
        Ok(true)
    }

    async fn publish_metrics(&mut self, now_ms: Millis) -> Result<bool, StoreError> {
        if !self.metrics.wants(now_ms) {
            return Ok(true);
        }
        let rows = self.kept.first_batches(self.metrics.limit()).await?;
        let waiting: Vec<Numbered> = rows.iter().map(|(id, _)| *id).collect();
        let due = self.metrics.choose(&waiting, now_ms);
        // Both are ordered newest first.
        for (id, payload) in rows.into_iter().filter(|(id, _)| due.contains(id)) {
            if !self.publish(HostTopic::Metric, false, payload) {
                return Ok(false);
            }
            self.metrics.record_sent(&id, now_ms, chance::random());
        }
        Ok(true)
    }

    /// Publishes the last messages. When their presence comes back, the broker has received all of them.
    ///
    /// An agent that is still claiming its host does so, too, because it was visible as online; an agent that works
    /// will publish its presence again.
    pub fn farewell(&mut self) -> Option<W> {
        let sole = self.is_sole();
        let line = self.line.take()?;
        if !sole && !line.standing.is_claiming() {
            let _ = line.connection.disconnect();
            return None;
        }
        let now_ms = clock::now_ms();
        let stopped = self.me.presence(line.connection.session(), PresenceState::Stopped, now_ms);
        let say = |topic, retain, payload| line.connection.publish(&self.me.topic(topic), retain, payload);
        let said = (!sole || say(HostTopic::Heartbeat, false, json(&self.beats.last(now_ms))))
            && say(HostTopic::Presence, true, json(&stopped));
        if said {
            return Some(line.connection);
        }
        let _ = line.connection.disconnect();
        None
    }
}

/// Serialises a payload. It consists of strings and numbers with string keys, so this cannot fail.
fn json<T: serde::Serialize>(payload: &T) -> Vec<u8> {
    serde_json::to_vec(payload).unwrap_or_default()
}
