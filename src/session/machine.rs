//! The session of an agent with its console, as a state machine.
//!
//! [`Session::handle`] takes one [`Input`] and returns [`Effect`]s, which its driver performs in order. There are three
//! drivers: the agent, `muster simulate`, and the simulation under `tests/sim`. An effect [`Effect::Store`] is the last
//! of its batch: the driver performs it and hands the answer back as [`Input::Stored`]. Inputs that come before that
//! answer wait.
//!
//! **Invariant: record, then act.** A command is journalled before it is acknowledged to the broker and before it
//! begins, and its outcome is stored before it is published. (A message that is held back during a claim is acknowledged
//! to the broker before: the console repeats it.)
//!
//! **Invariant: only the sole agent of a host takes commands, and only if its disk knows what was done.** Until the claim of
//! a connection is settled, messages are held back, a limited number of them; and commands until the console has said in
//! this life of which lives of the host it has heard.

mod admission;
mod claim;
mod desired;
mod received;
mod stored;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::Debug,
};

use muster_rules::{
    authorise::{CommandSource, LocalPolicy},
    backoff::jittered,
    desired::head::KnownDocument,
    presence::StoreLife,
    receive::RefreshHistory,
    time::KnownTime,
};
use muster_topics::{
    Millis,
    admission::AdmissionAnswer,
    desired::DesiredMark,
    name::{CommandId, Digest, Name},
    numbered::{NumberedKind, Numbers},
    presence::PresenceState,
    topic::HostTopic,
};

use self::{admission::AdmissionOutbox, claim::Connection, desired::DesiredInbox};
use super::{
    identity::{ClientIdentity, json},
    interface::{AdmissionStatements, Effect, HostView, Input, Moment, Notice, SessionParts},
    publisher::{Publication, Publisher, PublisherStep},
    running::RunningCommands,
    signed::{IncomingMessage, SignedMessage},
    store::{OutboxRead, StoreRequest},
};

/// How often old commands are removed from the journal, and how soon after a start at first.
const PRUNE_MS: Millis = 3_600_000;
const FIRST_PRUNE_MS: Millis = 60_000;
/// The delay when the connection takes no more.
const BLOCKED_MS: Millis = 20;

/// The session of an agent with its console; see the module.
#[derive(Debug)]
pub struct Session<R, W> {
    /// What the agent has to report.
    pub publisher: Publisher,
    local: LocalState,
    has_worked: bool,
    /// Whether the console has said of which lives of this host it has heard.
    is_told: bool,
    /// The protocol of the console, if it is later than this build's.
    later_protocol: Option<u32>,
    desired: DesiredInbox,
    admission: AdmissionOutbox,
    connection: Option<Connection>,
    running: RunningCommands,
    refreshes: RefreshHistory,
    refresh_due_ms: Option<Millis>,
    held: VecDeque<HeldWork<R, W>>,
    /// When what the store did not take is tried again.
    held_ms: Option<Millis>,
    writes: VecDeque<W>,
    writes_ms: Option<Millis>,
    prune_ms: Millis,
    blocked_until_ms: Option<Millis>,
    stopping: bool,
    /// How many messages the connection takes.
    room: usize,
    inputs: VecDeque<Input<R, W>>,
    requests: VecDeque<(StoreRequest<W>, Waiting<R>)>,
    waiting: Option<Waiting<R>>,
    effects: Vec<Effect<R, W>>,
}

/// What the session knows of its host.
#[derive(Debug)]
struct LocalState {
    me: ClientIdentity,
    former: Vec<StoreLife>,
    time: KnownTime,
    created_ms: Millis,
    lost_ms: Option<Millis>,
    last_epoch: u64,
    lives: Vec<u64>,
    /// The latest epoch of the console that was accepted.
    console_epoch: u64,
    kept_ms: Millis,
    /// The stored signed time.
    kept_signed_ms: Millis,
    policy: LocalPolicy,
    user: String,
    realms: BTreeSet<Name>,
    numbers: Numbers,
    document: KnownDocument,
}

impl LocalState {
    /// The number that the host has of a kind of document; 0 if it has none.
    fn number(&self, kind: NumberedKind) -> u64 {
        self.numbers.get(&kind).copied().unwrap_or_default()
    }
}

/// What is held back.
#[derive(Debug)]
enum HeldWork<R, W> {
    Message(CommandSource, IncomingMessage, Option<R>),
    Request(StoreRequest<W>, Waiting<R>),
}

/// What the session waits for.
#[derive(Debug)]
enum Waiting<R> {
    /// What became of a command. After a cancellation, `cancelled` ends.
    Command { source: CommandSource, receipt: Option<R>, cancelled: Option<CommandId> },
    /// An acknowledgement is stored.
    Acknowledged(Option<R>),
    /// A numbered document of this kind is stored.
    Numbered(NumberedKind, u64, Option<R>),
    /// A later epoch of the console is stored; then its first message is handled.
    ConsoleEpoch(u64, CommandSource, Box<SignedMessage>, Option<R>),
    /// A document is stored.
    Document(DesiredMark, Digest, Option<R>),
    /// The refusal of a document is stored.
    DocumentRefused(DesiredMark, Digest, Option<R>),
    /// What follows from an answer about a deployment is stored.
    Admission(Box<AdmissionAnswer>, Option<R>),
    /// Writes are stored.
    Recorded,
    /// It is stored that this agent works.
    Works,
    /// Something is stored on which nothing depends.
    Nothing,
    /// Something to publish is read.
    Read(OutboxRead),
}

impl<R: Debug, W: Debug> Session<R, W> {
    /// Creates it without a connection.
    #[must_use]
    pub fn new(parts: SessionParts, random: fn() -> f64) -> Self {
        let SessionParts { me, former, time, created_ms, lost_ms, last_epoch, lives, .. } = parts;
        let SessionParts { kept_ms, policy, user, realms, .. } = parts;
        Self {
            admission: AdmissionOutbox::new(me.epoch, parts.admissions),
            publisher: Publisher::new(me.epoch, parts.beats, parts.backlog_gap_ms),
            local: LocalState {
                me,
                former,
                time,
                created_ms,
                lost_ms,
                last_epoch,
                lives,
                console_epoch: parts.console_epoch,
                kept_ms,
                kept_signed_ms: time.signed_ms(),
                policy,
                user,
                realms,
                numbers: parts.numbers,
                document: parts.document,
            },
            has_worked: false,
            is_told: false,
            later_protocol: None,
            desired: DesiredInbox::default(),
            connection: None,
            running: RunningCommands::default(),
            refreshes: RefreshHistory::default(),
            refresh_due_ms: None,
            held: VecDeque::new(),
            held_ms: None,
            writes: VecDeque::new(),
            writes_ms: None,
            prune_ms: jittered(FIRST_PRUNE_MS, random()),
            blocked_until_ms: None,
            stopping: false,
            room: 0,
            inputs: VecDeque::new(),
            requests: VecDeque::new(),
            waiting: None,
            effects: Vec::new(),
        }
    }

    /// Who this agent is.
    #[must_use]
    pub fn me(&self) -> &ClientIdentity {
        &self.local.me
    }

    /// The time as far as it is known.
    #[must_use]
    pub fn time(&self) -> KnownTime {
        self.local.time
    }

    /// What may be done here.
    #[must_use]
    pub fn policy(&self) -> &LocalPolicy {
        &self.local.policy
    }

    /// The user that the agent runs as.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.local.user
    }

    /// The realms of the host.
    #[must_use]
    pub fn realms(&self) -> &BTreeSet<Name> {
        &self.local.realms
    }

    /// Sets the realms of the host.
    pub fn set_realms(&mut self, realms: BTreeSet<Name>) {
        self.local.realms = realms;
    }

    /// Sets the number of the keys that the console may sign with, which came another way than from the console's
    /// document. The console is told at once.
    pub fn set_keys_number(&mut self, number: u64) {
        if self.local.number(NumberedKind::CommandKeys) != number {
            self.local.numbers.insert(NumberedKind::CommandKeys, number);
            self.publisher.beats.hasten();
        }
    }

    /// Whether the agent is connected, and the only one of its host.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.claim.is_sole())
    }

    /// Whether messages are held back, which are lost if the connection ends.
    #[must_use]
    pub fn holds_messages(&self) -> bool {
        !self.held.is_empty()
    }

    /// Sets what the host says of deployments; differences are due.
    pub fn set_admissions(&mut self, statements: AdmissionStatements, now_ms: Millis) {
        self.admission.set_all(statements, now_ms);
    }

    /// How many commands are under way.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether no write waits for the store. While one does, a driver adds no more.
    #[must_use]
    pub fn has_no_writes(&self) -> bool {
        self.writes.is_empty()
    }

    /// Publishes everything again on request, within the limits.
    pub fn refresh(&mut self, now_ms: Millis) {
        self.publisher.refresh(now_ms);
        if let Some(connection) = &mut self.connection {
            connection.assert(now_ms);
        }
    }

    /// When [`Input::Time`] is due.
    #[must_use]
    pub fn next_ms(&self, now_ms: Millis) -> Option<Millis> {
        let held = self.held_ms.filter(|_| self.is_sole() && !self.held.is_empty());
        let claim = self.connection.as_ref().and_then(|connection| connection.claim.next_ms());
        let publish = self.next_publish_ms(now_ms);
        let writes = self.writes_ms.filter(|_| !self.writes.is_empty());
        let next = [
            Some(self.prune_ms),
            self.refresh_due_ms,
            self.running.next_ms(),
            self.desired.fetch_ms().filter(|_| self.is_sole()),
            held,
            claim,
            publish.map(|due_ms| due_ms.max(self.blocked_until_ms.unwrap_or(due_ms))),
            writes,
        ];
        next.into_iter().flatten().min()
    }

    fn next_publish_ms(&self, now_ms: Millis) -> Option<Millis> {
        let connection = self.connection.as_ref()?;
        let is_sole = connection.claim.is_sole();
        let reports = is_sole.then(|| self.publisher.next_ms(now_ms)).flatten();
        let admission = is_sole.then(|| self.admission.next_ms()).flatten();
        [connection.assert_ms, reports, admission].into_iter().flatten().min()
    }

    /// Handles an input. The connection takes `room` messages; what does not fit is published later.
    pub fn handle(&mut self, now: Moment, room: usize, host: &impl HostView, input: Input<R, W>) -> Vec<Effect<R, W>> {
        self.room = room;
        self.publisher.begin_round();
        match input {
            Input::Stored(reply) => self.stored(reply, now),
            input => self.inputs.push_back(input),
        }
        while self.waiting.is_none() {
            if let Some((request, waiting)) = self.requests.pop_front() {
                self.ask(request, waiting);
            } else if let Some(input) = self.inputs.pop_front() {
                self.take(input, now, host);
            } else if self.stopping {
                break;
            } else if self.may_take_held(now) {
                self.take_held(now, host);
            } else if self.may_record(now) {
                let writes = self.writes.drain(..).collect();
                self.ask(StoreRequest::Record(writes), Waiting::Recorded);
            } else if !self.publish_next(now) {
                break;
            }
        }
        std::mem::take(&mut self.effects)
    }

    fn ask(&mut self, request: StoreRequest<W>, waiting: Waiting<R>) {
        self.waiting = Some(waiting);
        self.effects.push(Effect::Store(request));
    }

    fn notice(&mut self, notice: Notice) {
        self.effects.push(Effect::Notice(notice));
    }

    fn reject(&mut self, what: &str, why: impl Into<String>) {
        self.notice(Notice::Rejected(what.to_owned(), why.into()));
    }

    fn take(&mut self, input: Input<R, W>, now: Moment, host: &impl HostView) {
        if self.stopping {
            return self.take_farewell(&input);
        }
        match input {
            Input::Connected { session, since_ms } => self.connected(session, since_ms, now),
            Input::Disconnected => self.disconnected(),
            Input::Presence(presence, receipt) => self.presence(presence.as_ref(), receipt, now),
            Input::Message(source, message, receipt) => {
                // Earlier messages that still wait go first, unless they wait for what this one says.
                if self.is_sole() && self.may_take(&message.message) && (self.held.is_empty() || !self.is_told) {
                    self.take_message(source, message, receipt, now, host);
                } else {
                    let unheard = message.message.command().filter(|_| self.is_sole() && !self.is_told);
                    self.effects.extend(unheard.map(|id| Effect::Notice(Notice::Unheard(id))));
                    self.hold(source, message, receipt);
                }
            }
            Input::DesiredBody(bytes, receipt) => self.take_body(bytes, receipt, now),
            Input::DesiredFetched(digest, bytes) => self.body_fetched(&digest, bytes, now),
            Input::DocumentHandedIn => self.desired.is_handing_in = false,
            Input::StoreRetry => {
                self.writes_ms = None;
                self.held_ms = self.held_ms.map(|_| now.life_ms);
            }
            Input::Writes(writes) => self.writes.extend(writes),
            Input::Begun(id) => self.running.begun(id),
            Input::Resumed(id, stage) => self.running.add(id, stage, now.life_ms),
            Input::Time => self.on_time(now),
            Input::Stop => self.farewell(now),
            Input::Stored(_) => {}
        }
    }

    fn acknowledge(&mut self, receipt: Option<R>) {
        if self.connection.is_some() {
            self.effects.extend(receipt.map(Effect::Acknowledge));
        }
    }

    fn on_time(&mut self, now: Moment) {
        if self.refresh_due_ms.is_some_and(|due_ms| now.life_ms >= due_ms) {
            self.refresh_due_ms = None;
            self.refresh(now.life_ms);
        }
        for report in self.running.take_reports(now.life_ms, now.clock_ms) {
            self.publisher.note(report);
        }
        if let Some(connection) = &mut self.connection {
            let verdict = connection.claim.tick(now.life_ms);
            self.apply_verdict(verdict, now);
        }
        self.fetch_if_due(now);
        if now.life_ms >= self.prune_ms {
            self.prune_ms = now.life_ms + jittered(PRUNE_MS, (now.random)());
            let signed_ms = self.local.time.signed_ms();
            self.requests.push_back((StoreRequest::Prune { signed_ms }, Waiting::Nothing));
        }
    }

    fn may_record(&self, now: Moment) -> bool {
        !self.writes.is_empty() && self.writes_ms.is_none_or(|writes_ms| now.life_ms >= writes_ms)
    }

    fn publish(&mut self, publication: Publication) {
        self.room = self.room.saturating_sub(1);
        self.effects.push(Effect::Publish(publication));
    }

    /// Publishes the next message, or reads it; returns false if nothing is due, or the connection takes no more.
    fn publish_next(&mut self, now: Moment) -> bool {
        if self.blocked_until_ms.is_some_and(|until_ms| now.life_ms < until_ms) {
            return false;
        }
        self.blocked_until_ms = None;
        if self.room == 0 {
            if self.next_publish_ms(now.life_ms).is_some_and(|due_ms| due_ms <= now.life_ms) {
                self.blocked_until_ms = Some(now.life_ms + BLOCKED_MS);
            }
            return false;
        }
        let Some(connection) = &mut self.connection else { return false };
        if connection.assert_ms.is_some_and(|assert_ms| now.life_ms >= assert_ms) {
            (connection.assert_ms, connection.asserted_ms) = (None, now.life_ms);
            let presence = self.local.me.presence(connection.session, PresenceState::Online, connection.since_ms);
            self.publish(Publication::new(HostTopic::Presence, json(&presence)));
            return true;
        }
        if !connection.claim.is_sole() {
            return false;
        }
        if let Some(publication) = self.admission.next(now) {
            self.publish(publication);
            return true;
        }
        match self.publisher.next(now) {
            PublisherStep::Publish(publication) => self.publish(publication),
            PublisherStep::Read(read) => self.ask(StoreRequest::Read(read), Waiting::Read(read)),
            PublisherStep::Idle => return false,
        }
        true
    }
}
