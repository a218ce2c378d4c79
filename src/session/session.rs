//! The session of an agent with its console, as a state machine.
//!
//! [`Session::handle`] takes one [`Input`] and returns [`Effect`]s, which its driver performs in order. There are three
//! drivers: the agent, `muster simulate`, and the simulation under `tests/sim`. An effect [`Effect::Store`] is the last
//! of its batch: the driver performs it and hands the answer back as [`Input::Stored`]. Inputs that come before that
//! answer wait.
//!
//! **Invariant: record, then act.** A command is journalled before it is acknowledged to the broker and before it
//! begins, and its outcome is stored before it is published.
//!
//! **Invariant: only the sole agent of a host takes commands.** Until the claim of a connection is settled, messages are
//! held back, a limited number of them.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::Debug,
};

use muster_rules::{
    authorise::{self, Authorised, CommandSource, CommandVerdict, JudgeContext, LocalPolicy},
    backoff::{self, jittered},
    heartbeat::HeartbeatSchedule,
    presence::{ClaimState, PresenceVerdict, StoreLife},
    receive::{self, AckEffect, RefreshHistory},
    time::{KnownTime, SLACK_MS},
};
use muster_topics::{
    Millis, V1,
    ack::{Ack, ReportAck},
    alert::AlertRules,
    command::{Command, Refresh, Verb},
    label::{HOST_LABELS_MAX, HostLabels},
    name::{CommandId, Name},
    outcome::{Content, Report, Status},
    presence::{Presence, PresenceState},
    select,
    topic::{HostTopic, Topic},
};

use super::{
    identity::{ClientIdentity, json},
    publisher::{Publication, Publisher, PublisherStep},
    running::{CommandStage, RunningCommands},
    signed::SignedMessage,
    store::{Acknowledgement, CommandTaken, OutboxRead, RepeatedCommand, StoreReply, StoreRequest, TimeBack},
};

/// How long a driver waits after [`Input::Stop`] for [`Effect::Stopped`].
pub const FAREWELL_MS: Millis = 2_000;
/// The most messages that are held back while it is undecided whether this agent may work, or while the store fails.
/// The console sends dropped ones again.
const HELD_MAX: usize = 64;
/// How often old commands are removed from the journal, and how soon after a start at first.
const PRUNE_MS: Millis = 3_600_000;
const FIRST_PRUNE_MS: Millis = 60_000;
/// The delay before failed writes are tried again.
const STORE_RETRY_MS: Millis = 2_000;
/// The delay before publishing after the store could not be read.
const READ_RETRY_MS: Millis = 1_000;
/// The delay when the connection takes no more.
const BLOCKED_MS: Millis = 20;
/// The least time between two publications of the own presence, so that two parties that overwrite each other do so
/// slowly; less than the shortest wait of a claim, two keep-alives.
const ASSERT_GAP_MS: Millis = 1_000;

/// The present: both clocks of the driver, and its source of randomness.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds since the agent started, by a clock that is never set.
    pub life_ms: Millis,
    /// The wall clock.
    pub clock_ms: Millis,
    /// Returns a random number in `0..1`, for jitter.
    pub random: fn() -> f64,
}

/// The host as selectors see it.
pub trait HostView {
    /// Calls `look` with the host as it is now.
    fn see<T>(&self, look: impl FnOnce(&select::Host<'_>) -> T) -> T;
}

/// An event for the session. `R` is the token with which a message is acknowledged to the broker, `W` a write of the
/// driver, such as the output of a program.
#[derive(Debug)]
pub enum Input<R, W> {
    /// A connection is up, and its greeting is sent (see [`ClientIdentity::greeting`]).
    Connected {
        /// The number of the connection in this run of the agent, from 1.
        session: u64,
        /// When it began, by the wall clock.
        since_ms: Millis,
    },
    /// The connection has ended.
    Disconnected,
    /// A message on the host's presence topic; nothing if it cannot be parsed.
    Presence(Option<Presence>, Option<R>),
    /// A message on a topic of signed messages.
    Message(CommandSource, SignedMessage, Option<R>),
    /// The answer to [`Effect::Store`].
    Stored(StoreReply<W>),
    /// The store has room again: what failed is tried at once.
    StoreRetry,
    /// Writes of the driver, which wait for the store.
    Writes(Vec<W>),
    /// A command has come to this stage.
    Progress(CommandId, CommandStage),
    /// Something may be due, or there is something new to publish.
    Time,
    /// The agent is to end: it says goodbye.
    Stop,
}

/// What the driver has to do. See [`Input`] for the parameters.
#[derive(Debug)]
pub enum Effect<R, W> {
    /// Publish a message on one of the host's topics.
    Publish(Publication),
    /// Acknowledge a message to the broker.
    Acknowledge(R),
    /// Ask the store; the answer is an input.
    Store(StoreRequest<W>),
    /// Begin a command, which is journalled.
    Start(Authorised<Command>),
    /// Cancel a command, if it is under way.
    Cancel(CommandId),
    /// End the connection in order, and stay away for a while: another agent of this host works.
    Withdraw,
    /// End the connection in order.
    Disconnect,
    /// The goodbye is over.
    Stopped,
    /// Another agent with this host's identity was heard.
    TwinSeen,
    /// A new signed message was issued at this time, by the console's clock.
    ConsoleTime(Millis),
    /// Something to log or count.
    Notice(Notice),
}

/// Something to log or count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another presence of this host was seen; the own one is published again.
    Asserting,
    /// Another agent of this host is online, or was lately; this one works if it does not object.
    Claiming,
    /// Another agent of this host works; this one withdraws.
    Withdrawn,
    /// This agent works.
    Working,
    /// A message gets no answer: what it is, and why.
    Rejected(String, String),
    /// A command was refused.
    Refused(CommandId, String),
    /// A command was answered before.
    Repeated(CommandId),
    /// A command is left unanswered until the console has said what time it is.
    Later(CommandId),
    /// There is no place for a command.
    Busy(CommandId),
    /// An instance of this host with this epoch is unknown here: the disk is an older copy, or was cloned.
    OlderDisk(u64),
    /// The console has confirmed an earlier time.
    WentBack(TimeBack),
    /// A request for a full report, issued at this time, is accepted.
    Refresh(Millis),
}

/// What a session begins with.
#[derive(Debug)]
pub struct SessionParts {
    /// The agent.
    pub me: ClientIdentity,
    /// Earlier instances of the agent in this place, newest first.
    pub former: Vec<StoreLife>,
    /// The time as far as it is known.
    pub time: KnownTime,
    /// When the store was created.
    pub created_ms: Millis,
    /// Until when commands may be missing from the journal.
    pub lost_ms: Option<Millis>,
    /// The epoch of the last known instance of this host's agent.
    pub last_epoch: u64,
    /// How long a command is remembered after its expiry.
    pub kept_ms: Millis,
    /// What may be done here.
    pub policy: LocalPolicy,
    /// The user that the agent runs as.
    pub user: String,
    /// The realms of the host.
    pub realms: BTreeSet<Name>,
    /// Heartbeats.
    pub beats: HeartbeatSchedule,
    /// The time between two batches of measurements that have waited.
    pub backlog_gap_ms: Millis,
    /// The generation of the console's rules for alerts; 0 if there are none.
    pub rules_generation: u64,
    /// The generation of the console's labels; 0 if there are none.
    pub labels_generation: u64,
}

/// The session of an agent with its console; see the module.
#[derive(Debug)]
pub struct Session<R, W> {
    /// What the agent has to report.
    pub publisher: Publisher,
    parts: LocalState,
    has_worked: bool,
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
    kept_ms: Millis,
    /// The stored signed time.
    kept_signed_ms: Millis,
    policy: LocalPolicy,
    user: String,
    realms: BTreeSet<Name>,
    rules_generation: u64,
    labels_generation: u64,
}

/// A connection, and the state of this agent's claim.
#[derive(Debug)]
struct Connection {
    session: u64,
    since_ms: Millis,
    claim: ClaimState,
    asserted_ms: Millis,
    assert_ms: Option<Millis>,
}

impl Connection {
    /// Schedules another publication of the own presence.
    fn assert(&mut self, now_ms: Millis) {
        self.assert_ms = Some(now_ms.max(self.asserted_ms + ASSERT_GAP_MS));
    }
}

/// What is held back.
#[derive(Debug)]
enum HeldWork<R, W> {
    Message(CommandSource, SignedMessage, Option<R>),
    Request(StoreRequest<W>, Waiting<R>),
}

/// What the session waits for.
#[derive(Debug)]
enum Waiting<R> {
    /// What became of a command. After a cancellation, `cancelled` ends.
    Command { source: CommandSource, receipt: Option<R>, cancelled: Option<CommandId> },
    /// An acknowledgement is stored.
    Acknowledged(Option<R>),
    /// Rules of this generation are stored.
    AlertRules(u64, Option<R>),
    /// Labels of this generation are stored.
    HostLabels(u64, Option<R>),
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
        let SessionParts { me, former, time, created_ms, lost_ms, last_epoch, kept_ms, policy, user, realms, .. } =
            parts;
        Self {
            publisher: Publisher::new(me.epoch, parts.beats, parts.backlog_gap_ms),
            parts: LocalState {
                me,
                former,
                time,
                created_ms,
                lost_ms,
                last_epoch,
                kept_ms,
                kept_signed_ms: time.signed_ms(),
                policy,
                user,
                realms,
                rules_generation: parts.rules_generation,
                labels_generation: parts.labels_generation,
            },
            has_worked: false,
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
        &self.parts.me
    }

    /// The time as far as it is known.
    #[must_use]
    pub fn time(&self) -> KnownTime {
        self.parts.time
    }

    /// What may be done here.
    #[must_use]
    pub fn policy(&self) -> &LocalPolicy {
        &self.parts.policy
    }

    /// The user that the agent runs as.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.parts.user
    }

    /// The realms of the host.
    #[must_use]
    pub fn realms(&self) -> &BTreeSet<Name> {
        &self.parts.realms
    }

    /// Sets the realms of the host.
    pub fn set_realms(&mut self, realms: BTreeSet<Name>) {
        self.parts.realms = realms;
    }

    /// Whether the agent is connected, and the only one of its host.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.claim.is_sole())
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
            held,
            claim,
            publish.map(|due_ms| due_ms.max(self.blocked_until_ms.unwrap_or(due_ms))),
            writes,
        ];
        next.into_iter().flatten().min()
    }

    fn next_publish_ms(&self, now_ms: Millis) -> Option<Millis> {
        let connection = self.connection.as_ref()?;
        let reports = connection.claim.is_sole().then(|| self.publisher.next_ms(now_ms)).flatten();
        [connection.assert_ms, reports].into_iter().flatten().min()
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
                // Earlier messages that still wait go first.
                if self.is_sole() && self.held.is_empty() {
                    self.take_message(source, message, receipt, now, host);
                } else {
                    self.hold(source, message, receipt);
                }
            }
            Input::StoreRetry => {
                self.writes_ms = None;
                self.held_ms = self.held_ms.map(|_| now.life_ms);
            }
            Input::Writes(writes) => self.writes.extend(writes),
            Input::Progress(id, stage) => {
                self.running.add(id, stage, now.life_ms);
                if stage == CommandStage::Running {
                    self.running.begun(id);
                }
            }
            Input::Time => self.on_time(now),
            Input::Stop => self.farewell(now),
            Input::Stored(_) => {}
        }
    }

    fn connected(&mut self, session: u64, since_ms: Millis, now: Moment) {
        let me = &self.parts.me;
        // A broker drops a working agent that is silent for one and a half keep-alives; the agent notices by then.
        let wait_ms = Millis::from(me.keep_alive_s) * 2_000;
        let own = StoreLife { instance: me.instance, is_newcomer: !self.has_worked };
        let claim = ClaimState::new(own, (me.epoch, session), self.parts.former.clone(), wait_ms);
        self.blocked_until_ms = None;
        self.connection =
            Some(Connection { session, since_ms, claim, asserted_ms: now.life_ms - ASSERT_GAP_MS, assert_ms: None });
    }

    fn disconnected(&mut self) {
        self.connection = None;
        self.publisher.disconnected();
        // Messages were not answered, so the console sends them again.
        self.held.clear();
        self.held_ms = None;
    }

    fn acknowledge(&mut self, receipt: Option<R>) {
        if self.connection.is_some() {
            self.effects.extend(receipt.map(Effect::Acknowledge));
        }
    }

    fn presence(&mut self, presence: Option<&Presence>, receipt: Option<R>, now: Moment) {
        self.acknowledge(receipt);
        let Some(connection) = &mut self.connection else { return };
        let is_twin = presence.is_some_and(|presence| connection.claim.is_twin(presence));
        let last_epoch = self.parts.last_epoch;
        let later = presence.filter(|presence| connection.claim.is_unknown_later_life(presence, last_epoch));
        let verdict = connection.claim.observe(presence, now.life_ms);
        if let Some(later) = later {
            self.note_older_disk(later.epoch, now);
        }
        if is_twin {
            self.effects.push(Effect::TwinSeen);
        }
        self.apply_verdict(verdict, now);
    }

    /// Handles evidence of a later instance of this host that its own disk does not know: the whole disk was restored
    /// from a copy, mark included.
    fn note_older_disk(&mut self, epoch: u64, now: Moment) {
        let lost_ms = self.parts.time.now_ms(now.clock_ms);
        self.parts.last_epoch = epoch;
        self.parts.lost_ms = self.parts.lost_ms.max(Some(lost_ms));
        self.notice(Notice::OlderDisk(epoch));
        self.requests.push_back((StoreRequest::NoteOlderDisk { lost_ms, clock_ms: now.clock_ms }, Waiting::Nothing));
    }

    fn apply_verdict(&mut self, verdict: PresenceVerdict, now: Moment) {
        match verdict {
            PresenceVerdict::Ignore => {}
            PresenceVerdict::Assert => {
                if let Some(connection) = &mut self.connection {
                    connection.assert(now.life_ms);
                }
                self.notice(Notice::Asserting);
            }
            PresenceVerdict::Claim => {
                self.notice(Notice::Claiming);
                let receipts = self.held.iter_mut().filter_map(|held| match held {
                    HeldWork::Message(_, _, receipt) => receipt.take(),
                    HeldWork::Request(..) => None,
                });
                self.effects.extend(receipts.map(Effect::Acknowledge));
            }
            PresenceVerdict::Withdraw => {
                self.notice(Notice::Withdrawn);
                self.effects.push(Effect::Withdraw);
                self.disconnected();
            }
            PresenceVerdict::Settled => {
                self.notice(Notice::Working);
                let works = StoreRequest::Works { is_first: !self.has_worked };
                self.requests.push_back((works, Waiting::Works));
            }
        }
    }

    /// Holds a message back. While this agent claims its host, which takes as long as a broker may wait for an
    /// acknowledgement before it disconnects the client, the broker may forget it: the connection has to last, and the
    /// sender repeats the message until it is answered.
    fn hold(&mut self, source: CommandSource, message: SignedMessage, mut receipt: Option<R>) {
        if self.held.len() >= HELD_MAX {
            return;
        }
        if self.connection.as_ref().is_some_and(|connection| connection.claim.is_claiming()) {
            self.acknowledge(receipt.take());
        }
        self.held.push_back(HeldWork::Message(source, message, receipt));
    }

    fn may_take_held(&self, now: Moment) -> bool {
        self.is_sole() && !self.held.is_empty() && self.held_ms.is_none_or(|held_ms| now.life_ms >= held_ms)
    }

    fn take_held(&mut self, now: Moment, host: &impl HostView) {
        self.held_ms = None;
        match self.held.pop_front() {
            Some(HeldWork::Message(source, message, receipt)) => {
                self.take_message(source, message, receipt, now, host);
            }
            Some(HeldWork::Request(request, waiting)) => self.ask(request, waiting),
            None => {}
        }
    }

    /// Handles a message on a topic of signed messages. If the store fails it is held and tried again: if it were
    /// dropped, it would never be acknowledged, and brokers stop sending to clients with too many unacknowledged
    /// messages.
    fn take_message(
        &mut self,
        source: CommandSource,
        message: SignedMessage,
        receipt: Option<R>,
        now: Moment,
        host: &impl HostView,
    ) {
        match message {
            SignedMessage::Command(command) => return self.take_command(source, command, receipt, now, host),
            SignedMessage::UnknownCommand(head, reason) => {
                let refusal = host.see(|host| authorise::not_understood(&head, source, host, &reason));
                if let Some(refusal) = refusal {
                    self.notice(Notice::Refused(head.id, refusal.message.clone()));
                    return self.answer(source, (head.id, head.expires_ms), refusal.into(), receipt);
                }
            }
            SignedMessage::Ack(ack) => return self.take_ack(ack, receipt, now),
            SignedMessage::Refresh(refresh) => self.take_refresh(&refresh, now),
            SignedMessage::AlertRules(rules) => return self.take_rules(rules, receipt, now),
            SignedMessage::HostLabels(labels) => return self.take_labels(labels, receipt, now),
            SignedMessage::Rejected(what, why) => self.reject(what, why),
        }
        self.finish(receipt, now);
    }

    /// Ends the handling of a message. If it moved the time ahead of the clock, the console is asked for the time.
    fn finish(&mut self, receipt: Option<R>, now: Moment) {
        self.acknowledge(receipt);
        self.parts.time = self.parts.time.at(now.life_ms);
        if self.parts.time.ask(now.clock_ms) {
            self.publisher.request_heartbeat(now.life_ms);
        }
    }

    fn take_command(
        &mut self,
        source: CommandSource,
        command: Command,
        receipt: Option<R>,
        now: Moment,
        host: &impl HostView,
    ) {
        let LocalState { policy, user, realms, created_ms, lost_ms, .. } = &self.parts;
        let mut time = self.parts.time;
        let verdict = host.see(|host| {
            let judge = JudgeContext {
                host,
                realms,
                policy,
                user,
                created_ms: *created_ms,
                lost_ms: *lost_ms,
                time: time.at(now.life_ms),
                clock_ms: now.clock_ms,
            };
            receive::command(command, source, &judge, &mut time)
        });
        self.parts.time = time;
        let signed_ms = time.signed_ms();
        match verdict {
            CommandVerdict::NotMine => self.finish(receipt, now),
            CommandVerdict::Later(command) => {
                self.notice(Notice::Later(command.id));
                self.finish(receipt, now);
            }
            CommandVerdict::Refused(command, refusal) => {
                self.notice(Notice::Refused(command.id, refusal.message.clone()));
                self.answer(source, (command.id, command.expires_ms), refusal.into(), receipt);
            }
            CommandVerdict::Granted(command) => {
                let (request, cancelled) = match command.get().verb {
                    Verb::Cancel { command: which } => {
                        let which_expires_ms = receive::cancelled_expires_ms(command.get().issued_ms);
                        (StoreRequest::Cancel { command, which, which_expires_ms, signed_ms }, Some(which))
                    }
                    _ => (StoreRequest::Take { command, signed_ms }, None),
                };
                self.ask(request, Waiting::Command { source, receipt, cancelled });
            }
        }
    }

    /// Answers a command that is not executed.
    fn answer(
        &mut self,
        source: CommandSource,
        (id, expires_ms): (CommandId, Millis),
        status: Status,
        receipt: Option<R>,
    ) {
        let signed_ms = self.parts.time.signed_ms();
        let request = StoreRequest::Answer { id, expires_ms, status, signed_ms };
        self.ask(request, Waiting::Command { source, receipt, cancelled: None });
    }

    fn take_ack(&mut self, ack: Ack, receipt: Option<R>, now: Moment) {
        let before_ms = self.parts.time.signed_ms();
        let LocalState { me, time, kept_signed_ms, .. } = &mut self.parts;
        let AckEffect::Forget { store } = receive::ack(&ack, me.host, time, *kept_signed_ms, now.clock_ms) else {
            self.reject("ack", "it is for another host");
            return self.finish(receipt, now);
        };
        let is_fresh = ack.heartbeat.is_some_and(|heartbeat| self.publisher.beats.is_fresh(heartbeat, now.life_ms));
        if ack.issued_ms > before_ms || is_fresh {
            self.effects.push(Effect::ConsoleTime(ack.issued_ms));
        }
        let time_back = is_fresh.then(|| self.fresh_time(ack.issued_ms, now)).flatten();
        let signed_ms = store.then(|| self.parts.time.signed_ms());
        if store || time_back.is_some() || !ack.metrics.is_empty() || !ack.alerts.is_empty() {
            let request = StoreRequest::Acknowledge(Acknowledgement { ack, signed_ms, time_back });
            return self.ask(request, Waiting::Acknowledged(receipt));
        }
        self.publisher.acknowledged(&ack);
        self.finish(receipt, now);
    }

    /// Handles a confirmation of the console's time: returns the earlier time to go back to.
    fn fresh_time(&mut self, issued_ms: Millis, now: Moment) -> Option<TimeBack> {
        let LocalState { time, created_ms, kept_ms, .. } = &mut self.parts;
        *time = time.at(now.life_ms);
        let ahead_ms = time.observe_fresh(issued_ms, now.clock_ms, *kept_ms);
        // A store cannot have been created after its agent was started.
        let is_made_ahead = *created_ms > issued_ms.saturating_add(SLACK_MS);
        let created_ms = if is_made_ahead { issued_ms - now.life_ms } else { *created_ms };
        let differs = ahead_ms.is_some() || is_made_ahead;
        differs.then(|| TimeBack { signed_ms: time.signed_ms(), created_ms, ahead_ms })
    }

    fn take_refresh(&mut self, refresh: &Refresh, now: Moment) {
        let taken = receive::refresh(refresh, &mut self.refreshes, &mut self.parts.time, now.clock_ms);
        let Some(within_ms) = taken else { return };
        self.notice(Notice::Refresh(refresh.issued_ms));
        let due_ms = now.life_ms + backoff::share(within_ms, (now.random)());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    /// Handles the console's rules for alerts. Rules that are not newer than the present ones change nothing, however
    /// often they are repeated.
    fn take_rules(&mut self, rules: AlertRules, receipt: Option<R>, now: Moment) {
        if rules.host != self.parts.me.host {
            self.reject("alert_rules", "they are for another host");
        } else if rules.generation > self.parts.rules_generation {
            self.parts.time.observe(rules.issued_ms, now.clock_ms);
            let waiting = Waiting::AlertRules(rules.generation, receipt);
            return self.ask(StoreRequest::AlertRules(rules), waiting);
        }
        self.finish(receipt, now);
    }

    /// Handles the console's labels. Labels that are not newer than the present ones change nothing, however often they
    /// are repeated.
    fn take_labels(&mut self, labels: HostLabels, receipt: Option<R>, now: Moment) {
        if labels.host != self.parts.me.host {
            self.reject("host_labels", "they are for another host");
        } else if labels.labels.len() > HOST_LABELS_MAX {
            self.reject("host_labels", "they are more than a host may have");
        } else if labels.generation > self.parts.labels_generation {
            self.parts.time.observe(labels.issued_ms, now.clock_ms);
            let waiting = Waiting::HostLabels(labels.generation, receipt);
            return self.ask(StoreRequest::HostLabels(labels), waiting);
        }
        self.finish(receipt, now);
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
        if now.life_ms >= self.prune_ms {
            self.prune_ms = now.life_ms + jittered(PRUNE_MS, (now.random)());
            let signed_ms = self.parts.time.signed_ms();
            self.requests.push_back((StoreRequest::Prune { signed_ms }, Waiting::Nothing));
        }
    }

    fn may_record(&self, now: Moment) -> bool {
        !self.writes.is_empty() && self.writes_ms.is_none_or(|writes_ms| now.life_ms >= writes_ms)
    }

    /// Handles the store's answer.
    fn stored(&mut self, reply: StoreReply<W>, now: Moment) {
        let Some(waiting) = self.waiting.take() else { return };
        match (reply, waiting) {
            (StoreReply::Failed(request), waiting) => self.store_failed(request, waiting, now),
            (StoreReply::Command(taken), Waiting::Command { receipt, cancelled, .. }) => {
                self.command_taken(taken, cancelled, now);
                self.finish(receipt, now);
            }
            (
                StoreReply::Acknowledged(Acknowledgement { ack, signed_ms, time_back }),
                Waiting::Acknowledged(receipt),
            ) => {
                if let Some(time_back) = time_back {
                    self.parts.kept_signed_ms = time_back.signed_ms;
                    self.parts.created_ms = time_back.created_ms;
                    self.notice(Notice::WentBack(time_back));
                }
                if let Some(signed_ms) = signed_ms {
                    self.parts.kept_signed_ms = signed_ms;
                }
                self.publisher.acknowledged(&ack);
                self.finish(receipt, now);
            }
            (StoreReply::Done, Waiting::AlertRules(generation, receipt)) => {
                self.parts.rules_generation = generation;
                self.publisher.beats.hasten();
                self.finish(receipt, now);
            }
            (StoreReply::Done, Waiting::HostLabels(generation, receipt)) => {
                self.parts.labels_generation = generation;
                self.publisher.beats.hasten();
                self.finish(receipt, now);
            }
            (StoreReply::Recorded { keys, ended }, Waiting::Recorded) => {
                self.writes_ms = None;
                for key in keys {
                    self.publisher.queue(key, now.life_ms);
                }
                ended.into_iter().for_each(|id| self.running.remove(id));
            }
            (StoreReply::Done, Waiting::Works) => {
                self.has_worked = true;
                self.publisher.connected(now.life_ms);
            }
            (StoreReply::Reports(keys), Waiting::Read(_)) => self.publisher.reports_read(keys, now.life_ms),
            (StoreReply::Report(payload), Waiting::Read(OutboxRead::Report(key))) => {
                if let Some(publication) = self.publisher.report_read(key, payload, now) {
                    self.publish(publication);
                }
            }
            (StoreReply::Batches(rows), Waiting::Read(_)) => {
                for publication in self.publisher.batches_read(rows, self.room, now) {
                    self.publish(publication);
                }
            }
            // Nothing depends on it, or the driver answers another question.
            (_, _) => {}
        }
    }

    fn command_taken(&mut self, taken: CommandTaken, cancelled: Option<CommandId>, now: Moment) {
        match taken {
            CommandTaken::Entered(command) => {
                self.running.add(command.get().id, CommandStage::Accepted, now.life_ms);
                self.effects.push(Effect::Start(command));
            }
            CommandTaken::Answered { keys, is_change } => {
                self.effects.extend(cancelled.map(Effect::Cancel));
                keys.into_iter().for_each(|key| self.queue(key, now));
                if is_change {
                    self.publisher.beats.hasten();
                }
            }
            CommandTaken::Repeated(id, known) => {
                self.notice(Notice::Repeated(id));
                match known {
                    Some(RepeatedCommand::Answered(key)) => self.queue(key, now),
                    // Its sender gets the present status.
                    Some(RepeatedCommand::Unfinished) => self.running.report_again(id),
                    None => {}
                }
            }
            CommandTaken::Busy(id) => {
                self.notice(Notice::Busy(id));
                let report = Report { v: V1, command: id, seq: 0, at_ms: now.clock_ms, content: Content::Busy };
                self.publisher.note(report);
            }
            CommandTaken::NoRoom => {
                self.reject("command", "the journal has no room (`journal.commands_max`); it is taken in once it has");
            }
        }
    }

    fn queue(&mut self, key: ReportAck, now: Moment) {
        self.publisher.queue(key, now.life_ms);
    }

    fn store_failed(&mut self, request: StoreRequest<W>, waiting: Waiting<R>, now: Moment) {
        match (request, waiting) {
            (StoreRequest::Record(writes), _) => {
                // They come before later ones.
                let later = std::mem::replace(&mut self.writes, writes.into());
                self.writes.extend(later);
                self.writes_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
            (StoreRequest::Read(_), _) => self.blocked_until_ms = Some(now.life_ms + READ_RETRY_MS),
            (
                StoreRequest::Take { command, .. } | StoreRequest::Cancel { command, .. },
                Waiting::Command { source, receipt, .. },
            ) => {
                // It is judged again: it may expire meanwhile.
                let message = SignedMessage::Command(command.into_inner());
                self.held.push_front(HeldWork::Message(source, message, receipt));
                self.held_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
            (request, waiting) => {
                self.held.push_front(HeldWork::Request(request, waiting));
                self.held_ms = Some(now.life_ms + STORE_RETRY_MS);
            }
        }
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
            let presence = self.parts.me.presence(connection.session, PresenceState::Online, connection.since_ms);
            self.publish(Publication::new(HostTopic::Presence, true, json(&presence)));
            return true;
        }
        if !connection.claim.is_sole() {
            return false;
        }
        match self.publisher.next(now) {
            PublisherStep::Publish(publication) => self.publish(publication),
            PublisherStep::Read(read) => self.ask(StoreRequest::Read(read), Waiting::Read(read)),
            PublisherStep::Idle => return false,
        }
        true
    }

    /// Publishes the last messages. When their presence comes back, the broker has received all of them.
    ///
    /// An agent that is still claiming its host does so, too, because it was visible as online; an agent that works
    /// will publish its presence again.
    fn farewell(&mut self, now: Moment) {
        self.stopping = true;
        let Some(connection) = &self.connection else { return self.effects.push(Effect::Stopped) };
        let is_sole = connection.claim.is_sole();
        if !is_sole && !connection.claim.is_claiming() {
            return self.effects.extend([Effect::Disconnect, Effect::Stopped]);
        }
        let stopped = self.parts.me.presence(connection.session, PresenceState::Stopped, now.clock_ms);
        if is_sole {
            let last = self.publisher.beats.last(now.clock_ms);
            self.publish(Publication::new(HostTopic::Heartbeat, false, json(&last)));
        }
        self.publish(Publication::new(HostTopic::Presence, true, json(&stopped)));
    }

    fn take_farewell(&mut self, input: &Input<R, W>) {
        match input {
            // The last message has come back.
            Input::Presence(Some(presence), _)
                if presence.instance == self.parts.me.instance && presence.state == PresenceState::Stopped =>
            {
                self.effects.push(Effect::Disconnect);
            }
            Input::Disconnected => {
                self.connection = None;
                self.effects.push(Effect::Stopped);
            }
            _ => {}
        }
    }
}

/// The source of a message on this topic, as far as signed messages come on it.
#[must_use]
pub fn command_source(topic: &Topic) -> CommandSource {
    match topic {
        Topic::CommandAll | Topic::CommandGroup(_) => CommandSource::Broadcast,
        _ => CommandSource::Own,
    }
}
