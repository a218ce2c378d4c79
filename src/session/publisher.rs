//! What the agent has to report, and what of it was acknowledged.
//!
//! There is no queue of messages. Each kind knows which of its messages are due (a heartbeat, unit topics that changed, alerts,
//! rows of the outbox, ends of tasks, batches of measurements), and the session publishes as many as the connection takes. So a broken
//! or slow connection costs only time, and nothing piles up.
//!
//! **Invariant: rows of the outbox and batches are published until the console's signed `ack` names them**,
//! with growing pauses between, and at once after every connect; old batches follow [`muster_rules::backlog`].

use std::collections::VecDeque;

use muster_fault::planted;
use muster_rules::{backlog::OutboxBacklog, heartbeat::HeartbeatSchedule, outbox_retry::OutboxRetry};
use muster_topics::{
    Millis, V1,
    ack::{Ack, Numbered, ReportAck},
    event::{EVENT_TASKS_MAX, HostEvent},
    outcome::Report,
    task::TaskRecord,
    topic::HostTopic,
};

use super::{
    alert_topics::AlertTopics, identity::json, interface::Moment, store::OutboxRead, task_ends::TaskEndSchedule,
    unit_topics::UnitTopics,
};

/// Unacknowledged outbox rows. Only their keys are kept here; 256 rows are 4 MiB of output.
const OUTBOX_MAX: usize = 256;
/// Unsent notes (`accepted`, `running`). They are not kept until acknowledged, and only the newest matter.
const NOTES_MAX: usize = 64;

/// A message to publish on one of the host's topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Where.
    pub topic: HostTopic,
    /// Whether the broker shall retain it.
    pub retain: bool,
    /// The payload; empty to clear a retained topic.
    pub payload: Vec<u8>,
}

impl Publication {
    pub(crate) fn new(topic: HostTopic, payload: Vec<u8>) -> Self {
        Self { retain: topic.kind().row().retained, topic, payload }
    }
}

/// The next step of a publisher.
#[derive(Debug)]
pub(crate) enum PublisherStep {
    /// Publish this; it counts as sent.
    Publish(Publication),
    /// Read this from the store first.
    Read(OutboxRead),
    /// Nothing is due.
    Idle,
}

/// What the agent has to report; see the module.
#[derive(Debug)]
pub struct Publisher {
    /// Heartbeats.
    pub beats: HeartbeatSchedule,
    /// The topics of units.
    pub units: UnitTopics,
    /// The topics of alerts.
    pub alerts: AlertTopics,
    notes: VecDeque<Report>,
    outbox: OutboxRetry<ReportAck>,
    /// Whether the store may hold rows that are not in `outbox`.
    outbox_behind: bool,
    metrics: OutboxBacklog,
    /// The ends of tasks.
    pub task_ends: TaskEndSchedule,
    /// Whether batches were read in this round.
    has_read_batches: bool,
}

impl Publisher {
    pub(crate) fn new(epoch: u64, beats: HeartbeatSchedule, backlog_gap_ms: Millis) -> Self {
        Self {
            beats,
            units: UnitTopics::new(epoch),
            alerts: AlertTopics::new(epoch),
            notes: VecDeque::new(),
            outbox: OutboxRetry::new(OUTBOX_MAX),
            outbox_behind: !planted!(ForgetOutbox),
            metrics: OutboxBacklog::new(backlog_gap_ms),
            task_ends: TaskEndSchedule::default(),
            has_read_batches: false,
        }
    }

    /// Starts to work on a connection: everything is published again.
    pub(crate) fn connected(&mut self, now_ms: Millis) {
        self.beats.connected(now_ms);
        self.repeat_all(now_ms);
        self.metrics.connected();
    }

    /// Handles the end of the connection.
    pub(crate) fn disconnected(&mut self) {
        self.beats.disconnected();
    }

    /// Publishes everything again on request, within the limits.
    pub(crate) fn refresh(&mut self, now_ms: Millis) {
        self.beats.refresh(now_ms);
        self.repeat_all(now_ms);
    }

    /// Publishes a full heartbeat on request, within the limits.
    pub fn request_heartbeat(&mut self, now_ms: Millis) {
        self.beats.refresh(now_ms);
    }

    fn repeat_all(&mut self, now_ms: Millis) {
        self.units.all();
        self.alerts.all(now_ms);
        self.outbox.reset(now_ms);
        self.metrics.repeat();
        self.task_ends.connected(now_ms);
    }

    /// Queues a message of the outbox to be sent now.
    pub(crate) fn queue(&mut self, key: ReportAck, now_ms: Millis) {
        if !self.outbox.hasten(key, now_ms) {
            self.outbox_behind = true;
        }
    }

    /// Handles new batches in the store.
    pub fn metrics_stored(&mut self) {
        self.metrics.stored();
    }

    /// Queues a message that is not kept until acknowledged.
    pub(crate) fn note(&mut self, note: Report) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
    }

    /// Handles an acknowledgement of the console; the store has removed the rows already.
    pub(crate) fn acknowledged(&mut self, ack: &Ack) {
        for key in &ack.reports {
            self.outbox.remove(key);
        }
        for id in &ack.metrics {
            self.metrics.acknowledged(id);
        }
        for key in &ack.alerts {
            self.alerts.acknowledged(key);
        }
        if !ack.tasks.is_empty() {
            self.task_ends.acknowledged();
        }
        if let Some(heartbeat) = ack.heartbeat {
            self.beats.acknowledge(heartbeat);
        }
    }

    /// When the next message is due; `now_ms` if one is.
    pub(crate) fn next_ms(&self, now_ms: Millis) -> Option<Millis> {
        let is_due = !self.notes.is_empty() || self.units.is_due();
        [
            self.beats.next_ms(),
            self.outbox.next_ms(),
            self.metrics.next_ms(),
            self.alerts.next_ms(now_ms),
            self.task_ends.next_ms(),
            is_due.then_some(now_ms),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Starts a round, in which [`Self::next`] is called until nothing is due.
    pub(crate) fn begin_round(&mut self) {
        self.has_read_batches = false;
    }

    /// Returns the next step. A message that it returns counts as sent.
    pub(crate) fn next(&mut self, now: Moment) -> PublisherStep {
        let publish = |topic, payload| PublisherStep::Publish(Publication::new(topic, payload));
        let Moment { life_ms, clock_ms, random } = now;
        let beat = self.beats.take(life_ms, clock_ms, random());
        if let Some(beat) = beat.or_else(|| self.beats.take_digest(life_ms, clock_ms, random(), self.units.told())) {
            return publish(HostTopic::Heartbeat, json(&beat));
        }
        if let Some(note) = self.notes.pop_front() {
            return publish(HostTopic::Outcome, json(&note));
        }
        if let Some(mut alert) = self.alerts.next(life_ms) {
            let payload = std::mem::take(&mut alert.payload);
            self.alerts.record_sent(&alert, life_ms, random());
            let topic = HostTopic::Alert(alert.id);
            return PublisherStep::Publish(Publication { topic, retain: alert.retain, payload });
        }
        if self.outbox_behind && self.outbox.has_room() {
            return PublisherStep::Read(OutboxRead::FirstReports(self.outbox.capacity() + 1));
        }
        if let Some(key) = self.outbox.next_due(life_ms) {
            return PublisherStep::Read(OutboxRead::Report(key));
        }
        if let Some((unit, payload)) = self.units.next(clock_ms) {
            self.units.record_sent(&unit);
            return publish(HostTopic::Unit(unit), payload);
        }
        if self.task_ends.next_ms().is_some_and(|due_ms| due_ms <= life_ms) {
            return PublisherStep::Read(OutboxRead::TaskEnds(EVENT_TASKS_MAX));
        }
        if !self.has_read_batches && self.metrics.wants(life_ms) {
            self.has_read_batches = true;
            return PublisherStep::Read(OutboxRead::FirstBatches(self.metrics.limit()));
        }
        PublisherStep::Idle
    }

    /// Handles the keys of the first rows of the outbox.
    pub(crate) fn reports_read(&mut self, keys: Vec<ReportAck>, now_ms: Millis) {
        self.outbox_behind = !keys.into_iter().all(|key| self.outbox.add(key, now_ms));
    }

    /// Handles a row of the outbox: returns the message to publish, if the row still waits.
    pub(crate) fn report_read(&mut self, key: ReportAck, payload: Option<Vec<u8>>, now: Moment) -> Option<Publication> {
        let Some(payload) = payload else {
            self.outbox.remove(&key);
            return None;
        };
        self.outbox.record_sent(&key, now.life_ms, (now.random)());
        Some(Publication::new(HostTopic::Outcome, payload))
    }

    /// Handles the first ends of tasks: returns the message to publish, if there are any.
    pub(crate) fn task_ends_read(&mut self, tasks: Vec<TaskRecord>, now: Moment) -> Option<Publication> {
        self.task_ends.read(tasks.is_empty(), now.life_ms, (now.random)());
        if tasks.is_empty() {
            return None;
        }
        let tasks = tasks.into_iter().map(TaskRecord::in_short).collect();
        Some(Publication::new(HostTopic::Event, json(&HostEvent { v: V1, at_ms: now.clock_ms, tasks })))
    }

    /// Handles the first batches of measurements, newest first: returns the messages to publish, at most `room`.
    pub(crate) fn batches_read(
        &mut self,
        rows: Vec<(Numbered, Vec<u8>)>,
        room: usize,
        now: Moment,
    ) -> Vec<Publication> {
        let waiting: Vec<Numbered> = rows.iter().map(|(id, _)| *id).collect();
        let due = self.metrics.choose(&waiting, now.life_ms);
        let mut publications = Vec::new();
        for (id, payload) in rows.into_iter().filter(|(id, _)| due.contains(id)).take(room) {
            self.metrics.record_sent(&id, now.life_ms, (now.random)());
            publications.push(Publication::new(HostTopic::Metric, payload));
        }
        publications
    }
}
