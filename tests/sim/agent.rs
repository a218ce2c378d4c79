//! One life of an agent: the product's session ([`muster_session`]), driven in virtual time. What the agent's loop
//! (`src/agent/main_loop.rs`), its store and its link do with sockets, tasks and files is replaced here and in [`effects`].

mod effects;

use std::collections::{BTreeMap, VecDeque};

use muster_agent::{config::Config, store::journal::KEPT_AFTER_EXPIRY_MS};
use muster_base::{chance, clock};
use muster_rules::{
    authorise::LocalPolicy,
    backlog,
    heartbeat::HeartbeatSchedule,
    presence::{self, StoreLife},
    time::{AHEAD_MAX_MS, BUILD_MS, KnownTime},
};
use muster_session::{
    identity::ClientIdentity,
    interface::{HostView, Input, Moment, SessionParts, command_source},
    machine::Session,
    reconnect::{ConnectionEnd, ReconnectSchedule},
    signed::{SignedMessage, SignedText},
};
use muster_topics::{
    Millis,
    command::Command,
    name::{CommandId, Digest, HostId},
    outcome::Status,
    presence::Capability,
    select,
    topic::{HostTopic, Topic},
    unit::{Phase, Run},
    verb_table::VerbName,
};
use serde::Deserialize;

use super::{
    disk::Crash,
    machine::Machine,
    watch::KnownThen,
    wire::{Body, ConnId, Message, Order, Packet, ROOM},
    world::{Around, Event, Who},
};

/// How long two may work that could not hear one another when they began: as long as a connection may be silent.
const TWINS_MAX_MS: Millis = 60_000;
/// The verb that every simulated host forbids.
const FORBIDDEN: VerbName = VerbName::UnitFreeze;

/// A command that has ended, and how.
type Write = (CommandId, Status);

/// Where its link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Waiting,
    Connecting(ConnId),
    Up(ConnId),
}

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) session: Session<(), Write>,
    life: u32,
    born_ms: Millis,
    /// The latest signed time that came and was handled, as the watch sees it.
    heard_ms: Millis,
    /// The same with messages that are held back.
    pending_ms: Millis,
    created_ms: Millis,
    former: Vec<StoreLife>,
    /// What the watch has to know of commands that came.
    heard: BTreeMap<CommandId, HeardCommand>,
    connections: u64,
    schedule: ReconnectSchedule,
    up_ms: Millis,
    pub(super) link: Link,
    queue: Vec<Packet>,
    pub(super) sole_since_ms: Option<Millis>,
    beat_ms: Option<Millis>,
    /// The next heartbeat may come at once.
    exempt: bool,
    pub(super) timer_ms: Option<Millis>,
}

/// What the watch has to know of a command that came.
#[derive(Clone, Copy, Debug)]
struct HeardCommand {
    genuine: bool,
    /// The latest signed time that came before it.
    before_ms: Millis,
}

/// The host, for selectors.
struct SimulatedView(HostId);

impl HostView for SimulatedView {
    fn see<T>(&self, look: impl FnOnce(&select::Host<'_>) -> T) -> T {
        let labels = BTreeMap::new();
        let (hostname, agent_version) = ("", "");
        look(&select::Host {
            host: self.0,
            hostname,
            agent_version,
            facts: None,
            labels: &labels,
            realms: &[],
            units: &[],
        })
    }
}

/// The part of a heartbeat that the watch reads.
#[derive(Deserialize)]
struct BeatHead {
    epoch: u64,
    seq: u64,
    kind: String,
    #[serde(rename = "final")]
    is_final: bool,
}

/// What happens to it.
#[derive(Debug)]
pub(super) enum Happens {
    ConnAck(ConnId),
    Message(Message),
    Closed,
    Time,
    Ended(CommandId, Status),
    Fetched(Digest, Option<Vec<u8>>),
    Observed,
    /// A change with this permit.
    ChangeEnds(u64),
}

impl Agent {
    /// Starts, as `muster_agent::start` does.
    pub(super) fn start(machine: &mut Machine, around: &mut Around<'_>) -> Result<Self, Crash> {
        machine.life += 1;
        let now_ms = KnownTime::new(0).now_ms(clock::now_ms());
        let life = machine.disk.write(|tx| tx.begin_life(now_ms))?;
        let instance = super::random::uuid();
        let place = machine.place();
        let former = machine.disk.write(|tx| {
            let former = presence::former(&tx.tables.instances, &place);
            let own = StoreLife { instance, is_newcomer: true };
            tx.tables.instances = presence::lines(std::iter::once(&own).chain(&former), &place);
            former
        })?;
        // The defaults of agents.
        let config = Config::default();
        let me = ClientIdentity {
            host: machine.host,
            instance,
            epoch: life.epoch,
            keep_alive_s: config.keep_alive_s(),
            capabilities: vec![Capability::Exec, Capability::Yuno],
        };
        let units = machine.units();
        let parts = SessionParts {
            me,
            former: former.clone(),
            time: KnownTime::new(life.signed_ms),
            created_ms: life.created_ms,
            lost_ms: life.lost_ms,
            last_epoch: life.last_epoch,
            lives: machine.disk.read(|tables| tables.lives.clone()),
            console_epoch: life.console_epoch,
            kept_ms: KEPT_AFTER_EXPIRY_MS,
            policy: LocalPolicy { deny_verbs: [FORBIDDEN].into(), ..LocalPolicy::default() },
            user: "root".to_owned(),
            realms: ["default".parse().unwrap()].into(),
            beats: HeartbeatSchedule::new(life.epoch, config.heartbeat_periods(), machine.state(&units)),
            backlog_gap_ms: backlog::GAP_MS,
            numbers: Default::default(),
            document: machine.disk.read(|tables| tables.document.known()),
            admissions: machine.disk.read(|tables| tables.admission.statements()),
        };
        let mut agent = Self {
            session: Session::new(parts, chance::random),
            life: machine.life,
            born_ms: around.now_ms,
            heard_ms: life.signed_ms,
            pending_ms: life.signed_ms,
            created_ms: life.created_ms,
            former,
            heard: BTreeMap::new(),
            connections: 0,
            schedule: ReconnectSchedule::default(),
            up_ms: 0,
            link: Link::Waiting,
            queue: Vec::new(),
            sole_since_ms: None,
            beat_ms: None,
            exempt: false,
            timer_ms: None,
        };
        agent.session.publisher.units.observe(&units);
        around.note(|| format!("machine {} starts, epoch {}, {instance}", machine.index, life.epoch));
        around.after(0, Event::Connect(Who::Machine(machine.index), machine.life));
        machine.go_on(around);
        agent.resume(machine, around)?;
        Ok(agent)
    }

    /// Milliseconds of this life.
    fn now_ms(&self, around: &Around<'_>) -> Millis {
        around.now_ms - self.born_ms
    }

    pub(super) fn is_sole(&self) -> bool {
        self.session.is_sole()
    }

    /// What waits to go out on its connection.
    pub(super) fn take_packets(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.queue)
    }

    /// What it registers when it connects.
    pub(super) fn connect(&mut self, conn: ConnId) -> Packet {
        self.connections += 1;
        self.link = Link::Connecting(conn);
        let me = self.session.me();
        let will = Body::bytes(me.last_will(self.connections, clock::now_ms()));
        let will = Message::new(me.topic(HostTopic::Presence), will);
        Packet::Connect { client: me.instance, will: Some(will) }
    }

    /// When it connects again after an attempt that failed.
    pub(super) fn retry_ms(&mut self) -> Millis {
        self.schedule.wait_ms(ConnectionEnd::Broken, None, chance::random())
    }

    /// One turn of the loop.
    pub(super) fn handle(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        what: Happens,
    ) -> Result<(), Crash> {
        let input = match what {
            Happens::ConnAck(conn) => self.up(conn, around),
            Happens::Closed => {
                let up_ms = matches!(self.link, Link::Up(_)).then_some(around.now_ms - self.up_ms);
                let wait_ms = self.schedule.wait_ms(ConnectionEnd::Broken, up_ms, chance::random());
                around.after(wait_ms, Event::Connect(Who::Machine(machine.index), self.life));
                self.down();
                Input::Disconnected
            }
            Happens::Message(message) => match self.opened(around, &message) {
                Some(input) => input,
                None => return Ok(()),
            },
            Happens::Time => Input::Time,
            Happens::Fetched(digest, bytes) => Input::DesiredFetched(digest, bytes),
            Happens::Ended(id, status) => Input::Writes(vec![(id, status)]),
            Happens::ChangeEnds(permit) => {
                machine.end_change(permit, around)?;
                let statements = machine.disk.read(|tables| tables.admission.statements());
                self.session.set_admissions(statements, self.now_ms(around));
                Input::Time
            }
            Happens::Observed => {
                self.observe(machine);
                Input::Time
            }
        };
        let done = self.run(machine, around, input);
        if self.session.is_sole() && !self.session.holds_messages() {
            self.heard_ms = self.pending_ms;
        }
        self.look_at_beats(machine, around);
        done
    }

    /// Has the session handle an input, and performs its effects.
    fn run(&mut self, machine: &mut Machine, around: &mut Around<'_>, input: Input<(), Write>) -> Result<(), Crash> {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = Moment { life_ms: self.now_ms(around), clock_ms: clock::now_ms(), random: chance::random };
            let room = ROOM.saturating_sub(self.queue.len());
            for effect in self.session.handle(now, room, &SimulatedView(machine.host), input) {
                inputs.extend(self.perform(machine, around, effect)?);
            }
        }
        Ok(())
    }

    /// When it wants to be woken.
    pub(super) fn next_ms(&self, around: &Around<'_>) -> Millis {
        let due_ms = self.session.next_ms(self.now_ms(around)).unwrap_or(Millis::MAX / 2);
        self.born_ms + due_ms.max(0) + 1
    }

    fn up(&mut self, conn: ConnId, around: &Around<'_>) -> Input<(), Write> {
        self.link = Link::Up(conn);
        self.up_ms = around.now_ms;
        let (me, since_ms) = (self.session.me(), clock::now_ms());
        let (filters, presence) = me.greeting(self.connections, since_ms, &[]);
        let message = Message::new(me.topic(HostTopic::Presence), Body::bytes(presence));
        self.queue = vec![Packet::Subscribe(filters), Packet::Publish { message, retain: true }];
        Input::Connected { session: self.connections, since_ms }
    }

    fn down(&mut self) {
        self.link = Link::Waiting;
        self.queue.clear();
        self.heard.clear();
        self.pending_ms = self.heard_ms;
        self.sole_since_ms = None;
    }

    /// What a message is for the session; nothing if nobody could have signed it.
    fn opened(&mut self, around: &Around<'_>, message: &Message) -> Option<Input<(), Write>> {
        let signed = match &message.body {
            Body::Bytes(payload) => {
                return Some(match &message.topic {
                    Topic::Host(_, HostTopic::Presence) => {
                        Input::Presence(serde_json::from_slice(payload).ok(), Some(()))
                    }
                    Topic::Host(_, HostTopic::Desired) => Input::DesiredBody(payload.to_vec(), Some(())),
                    topic => {
                        let rejected = SignedMessage::Rejected("message", "it is not signed".to_owned());
                        Input::Message(command_source(topic), rejected.into(), Some(()))
                    }
                });
            }
            Body::Signed(signed) => signed,
        };
        let before_ms = self.pending_ms;
        let opened = match around.seal.open(signed)? {
            Order::Command(command) => {
                self.hears(command.issued_ms);
                // Of copies that are held back together the first counts.
                self.heard.entry(command.id).or_insert(HeardCommand { genuine: !signed.forged, before_ms });
                SignedMessage::Command(command)
            }
            Order::Ack(ack) => {
                if ack.host == self.session.me().host {
                    self.hears(ack.issued_ms);
                }
                SignedMessage::Ack(ack)
            }
            Order::Refresh(refresh) => SignedMessage::Refresh(refresh),
            Order::Answer(answer) => {
                if answer.host == self.session.me().host {
                    self.hears(answer.issued_ms);
                }
                SignedMessage::AdmissionAnswer(answer)
            }
            Order::Head(head) => SignedMessage::DesiredHead(head, SignedText(String::new())),
        };
        Some(Input::Message(command_source(&message.topic), opened.into(), Some(())))
    }

    /// The watch's own idea of what time it is.
    fn hears(&mut self, issued_ms: Millis) {
        let clock_ms = clock::now_ms();
        if clock_ms < BUILD_MS || issued_ms <= clock_ms.max(self.pending_ms).max(BUILD_MS) + AHEAD_MAX_MS {
            self.pending_ms = self.pending_ms.max(issued_ms);
        }
    }

    /// The console's confirmed time is earlier than what was signed before: what waited is judged by that.
    fn puts_back(&mut self, signed_ms: Millis) {
        for known_ms in [&mut self.heard_ms, &mut self.pending_ms] {
            *known_ms = signed_ms.min(*known_ms);
        }
        for heard in self.heard.values_mut() {
            heard.before_ms = signed_ms.min(heard.before_ms);
        }
    }

    /// What the agent could know when this command takes effect, which is now; and whether the console has signed it.
    fn known(&self, command: &Command) -> (bool, KnownThen) {
        let heard = self.heard.get(&command.id);
        // One that is resumed was judged by an earlier life.
        let now_ms = heard.map_or(Millis::MIN, |heard| clock::now_ms().max(heard.before_ms).max(BUILD_MS));
        (heard.is_none_or(|heard| heard.genuine), KnownThen { now_ms, created_ms: self.created_ms })
    }

    pub(super) fn observe(&mut self, machine: &Machine) {
        let units = machine.units();
        self.session.publisher.units.observe(&units);
        self.session.publisher.beats.observe(machine.state(&units));
    }

    /// Ends in order: a last heartbeat, and the presence `stopped`.
    pub(super) fn farewell(&mut self, machine: &mut Machine, around: &mut Around<'_>) {
        self.observe(machine);
        // It writes nothing any more.
        self.run(machine, around, Input::Stop).unwrap();
        self.queue.push(Packet::Disconnect);
        self.look_at_beats(machine, around);
    }

    /// The watch reads along what goes out.
    fn look_at_beats(&mut self, machine: &Machine, around: &mut Around<'_>) {
        for packet in &self.queue {
            let Packet::Publish { message: Message { topic: Topic::Host(_, HostTopic::Heartbeat), body, .. }, .. } =
                packet
            else {
                continue;
            };
            let Body::Bytes(bytes) = body else { continue };
            let head: BeatHead = serde_json::from_slice(bytes).unwrap();
            if head.kind == "digest" {
                continue;
            }
            around.note(|| format!("machine {} beats {}.{} {}", machine.index, head.epoch, head.seq, head.kind));
            if !around.watch.has_told(machine.host, head.epoch, head.seq) || around.twins {
                let state = serde_json::to_value(machine.state(&machine.units())).unwrap();
                around.watch.tells(machine.host, head.epoch, head.seq, state);
            }
            if head.is_final || std::mem::take(&mut self.exempt) {
                self.beat_ms = Some(around.now_ms);
                continue;
            }
            let after_ms = self.beat_ms.map(|beat_ms| around.now_ms - beat_ms);
            around.watch.beat(machine.index, after_ms);
            self.beat_ms = Some(around.now_ms);
        }
    }
}

/// How a unit is once it has come to what is desired of it.
pub(super) fn reached(run: Run) -> Phase {
    match run {
        Run::Stopped => Phase::Stopped,
        Run::Running => Phase::Running,
        Run::Playing => Phase::Playing,
    }
}
