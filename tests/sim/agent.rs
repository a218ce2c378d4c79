//! One life of an agent: the product's publisher, rules and decisions, with replacements for what the loop
//! (`src/agent/main_loop.rs`), the command handler (`command_handler.rs`, `program_queue.rs`: here [`orders`]) and the link (`link.rs`) do with sockets, tasks and
//! files.

mod orders;

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use futures_util::FutureExt;
use muster_agent::{link::ClientIdentity, publisher::Publisher};
use muster_base::{chance, clock};
use muster_rules::{
    authorise::{LocalPolicy, VerbName},
    backoff::{ExponentialGrowth, RECONNECT, jittered},
    heartbeat::{HeartbeatPeriods, HeartbeatSchedule},
    presence::{self, PresenceVerdict, StoreLife},
    receive,
    time::KnownTime,
};
use muster_topics::{
    Millis, V1,
    name::CommandId,
    outcome::{Content, Report, Status},
    presence::PresenceState,
    topic::{HostTopic, Topic},
    unit::{Phase, Run},
};
use serde::Deserialize;

use super::{
    disk::{Crash, Disk},
    machine::Machine,
    watch::Promise,
    wire::{Body, ConnId, Message, Packet, SimWire},
    world::{Around, Event, Who},
};

pub(super) const KEEP_ALIVE_S: u16 = 30;
/// As an agent's configuration has them.
const PERIODS: HeartbeatPeriods = HeartbeatPeriods { period_ms: 30_000, gap_ms: 5_000, digest_ms: 600_000 };
/// `HELD_MAX`, `PRUNE_MS`, `QUIET_MS` and `AWAY` of the agent.
const HELD_MAX: usize = 64;
const PRUNE_MS: Millis = 3_600_000;
const QUIET_MS: Millis = 1_000;
const AWAY: ExponentialGrowth = ExponentialGrowth { first_ms: 300_000, max_ms: 300_000 };
/// `FORMER_MAX` of the agent's lives.
const FORMER_MAX: usize = 16;
/// How long two may work that could not hear one another when they began: as long as a connection may be silent.
const TWINS_MAX_MS: Millis = 60_000;
/// A connection that lasted this long was a good one (`GOOD` of the link).
const GOOD_MS: Millis = 30_000;
/// The verb that every simulated host forbids.
const FORBIDDEN: VerbName = VerbName::UnitFreeze;

/// Where its link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Waiting,
    Connecting(ConnId),
    Up(ConnId),
}

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) me: ClientIdentity,
    life: u32,
    born_ms: Millis,
    publisher: Publisher<Disk, SimWire>,
    time: KnownTime,
    /// The same, as the watch sees it: the latest signed time that came.
    heard_ms: Millis,
    created_ms: Millis,
    kept_signed_ms: Millis,
    refreshes: receive::RefreshHistory,
    refresh_due_ms: Option<Millis>,
    running: BTreeMap<CommandId, Running>,
    held: VecDeque<Message>,
    prune_ms: Millis,
    former: Vec<StoreLife>,
    policy: LocalPolicy,
    session: u64,
    attempts: u32,
    up_ms: Millis,
    pub(super) link: Link,
    queue: Rc<RefCell<Vec<Packet>>>,
    pub(super) sole_since_ms: Option<Millis>,
    beat_ms: Option<Millis>,
    /// The next heartbeat may come at once.
    exempt: bool,
    pub(super) timer_ms: Option<Millis>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since_ms: Millis,
    told: bool,
}

/// The part of a heartbeat that the watch reads.
#[derive(Deserialize)]
struct BeatHead {
    epoch: u64,
    seq: u64,
    kind: String,
    #[serde(default, rename = "final")]
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
    Observed,
}

impl Agent {
    /// Starts, as `start` and `Agent::run` do.
    pub(super) fn start(machine: &mut Machine, around: &mut Around<'_>) -> Result<Self, Crash> {
        machine.life += 1;
        let now_ms = KnownTime::new(0).now_ms(clock::now_ms());
        let life = machine.disk.write(|tx| tx.begin_life(now_ms))?;
        let instance = super::random::uuid();
        let place = machine.place();
        let former = machine.disk.write(|tx| {
            let mut former = presence::former(&tx.tables.instances, &place);
            former.truncate(FORMER_MAX);
            let own = StoreLife { instance, is_newcomer: true };
            tx.tables.instances = presence::lines(std::iter::once(&own).chain(&former), &place);
            former
        })?;
        let me = ClientIdentity {
            host: machine.host,
            instance,
            epoch: life.epoch,
            keep_alive_s: KEEP_ALIVE_S,
            goes_back: false,
        };
        let units = machine.units();
        let beats = HeartbeatSchedule::new(life.epoch, PERIODS, machine.state(&units));
        let mut publisher = Publisher::new(me.clone(), machine.disk.clone(), beats);
        publisher.units.observe(&units);
        let time = KnownTime::new(life.signed_ms);
        let mut agent = Self {
            me,
            life: machine.life,
            born_ms: around.now_ms,
            publisher,
            time,
            heard_ms: life.signed_ms,
            created_ms: life.created_ms,
            kept_signed_ms: life.signed_ms,
            refreshes: receive::RefreshHistory::default(),
            refresh_due_ms: None,
            running: BTreeMap::new(),
            held: VecDeque::new(),
            prune_ms: jittered(60_000, chance::random()),
            former,
            policy: LocalPolicy { deny_verbs: [FORBIDDEN].into(), ..LocalPolicy::default() },
            session: 0,
            attempts: 0,
            up_ms: 0,
            link: Link::Waiting,
            queue: Rc::default(),
            sole_since_ms: None,
            beat_ms: None,
            exempt: false,
            timer_ms: None,
        };
        around.note(|| format!("machine {} starts, epoch {}, {instance}", machine.index, life.epoch));
        around.after(0, Event::Connect(Who::Machine(machine.index), machine.life));
        agent.resume(machine, around)?;
        Ok(agent)
    }

    /// Milliseconds of this life.
    fn now_ms(&self, around: &Around<'_>) -> Millis {
        around.now_ms - self.born_ms
    }

    pub(super) fn is_sole(&self) -> bool {
        self.publisher.is_sole()
    }

    /// What waits to go out on its connection.
    pub(super) fn take_packets(&mut self) -> Vec<Packet> {
        std::mem::take(&mut *self.queue.borrow_mut())
    }

    /// What it registers when it connects.
    pub(super) fn connect(&mut self, conn: ConnId) -> Packet {
        self.session += 1;
        self.link = Link::Connecting(conn);
        let will = self.me.presence(self.session, PresenceState::Offline, clock::now_ms());
        let will = Message::new(self.me.topic(HostTopic::Presence), json(&will));
        Packet::Connect { client: self.me.instance, will: Some(will) }
    }

    /// When it connects again.
    pub(super) fn retry_ms(&mut self) -> Millis {
        let wait_ms = RECONNECT.full_jitter_ms(self.attempts, chance::random());
        self.attempts += 1;
        wait_ms
    }

    /// One turn of the loop.
    pub(super) fn handle(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        what: Happens,
    ) -> Result<(), Crash> {
        match what {
            Happens::ConnAck(conn) => self.up(conn, around),
            Happens::Closed => {
                if around.now_ms - self.up_ms >= GOOD_MS && matches!(self.link, Link::Up(_)) {
                    self.attempts = 0;
                }
                self.down();
                let wait_ms = self.retry_ms();
                around.after(wait_ms, Event::Connect(Who::Machine(machine.index), self.life));
            }
            Happens::Message(message) => self.message(machine, around, message)?,
            Happens::Time => self.on_time(machine, around)?,
            Happens::Ended(id, status) => self.ended(machine, around, id, status)?,
            Happens::Observed => self.observe(machine),
        }
        let now_ms = self.now_ms(around);
        // What it is kept in has its answer at once.
        self.publisher.pump(now_ms).now_or_never().unwrap().unwrap();
        self.look_at_beats(machine, around);
        Ok(())
    }

    /// When it wants to be woken.
    pub(super) fn next_ms(&self, around: &Around<'_>) -> Millis {
        let slow = self.running.values().filter(|one| !one.told).map(|one| one.since_ms + QUIET_MS).min();
        let due = [Some(self.prune_ms), self.refresh_due_ms, slow, self.publisher.next_ms(self.now_ms(around))];
        let due_ms = due.into_iter().flatten().min().unwrap_or(self.prune_ms);
        self.born_ms + due_ms.max(0) + 1
    }

    fn up(&mut self, conn: ConnId, around: &Around<'_>) {
        self.link = Link::Up(conn);
        self.up_ms = around.now_ms;
        let wire = SimWire { session: self.session, since_ms: clock::now_ms(), queue: Rc::clone(&self.queue) };
        self.queue.borrow_mut().clear();
        // As `Task::greet`: in this order.
        let filters = muster_topics::topic::Filter::of_agent(self.me.host, []);
        self.queue.borrow_mut().push(Packet::Subscribe(filters));
        let presence = self.me.presence(self.session, PresenceState::Online, wire.since_ms);
        let message = Message::new(self.me.topic(HostTopic::Presence), json(&presence));
        self.queue.borrow_mut().push(Packet::Publish { message, retain: true });
        let now_ms = self.now_ms(around);
        self.publisher.up(wire, self.former.clone(), now_ms);
    }

    fn down(&mut self) {
        self.link = Link::Waiting;
        self.publisher.down();
        self.held.clear();
        self.queue.borrow_mut().clear();
        self.sole_since_ms = None;
    }

    fn message(&mut self, machine: &mut Machine, around: &mut Around<'_>, message: Message) -> Result<(), Crash> {
        if let (Topic::Host(_, HostTopic::Presence), Body::Bytes(payload)) = (&message.topic, &message.body) {
            let now_ms = self.now_ms(around);
            let verdict = self.publisher.handle_presence(payload, now_ms);
            return self.apply_verdict(machine, around, verdict);
        }
        if !self.publisher.is_sole() || !self.held.is_empty() {
            if self.held.len() < HELD_MAX {
                self.held.push_back(message);
            }
            return Ok(());
        }
        self.order(machine, around, &message)
    }

    fn apply_verdict(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        verdict: PresenceVerdict,
    ) -> Result<(), Crash> {
        match verdict {
            PresenceVerdict::Ignore | PresenceVerdict::Assert | PresenceVerdict::Claim => {}
            PresenceVerdict::Withdraw => {
                around.note(|| format!("machine {} withdraws", machine.index));
                // Of two that begin while they cannot hear one another, one leaves soon.
                let worked_ms = self.sole_since_ms.map_or(0, |since_ms| around.now_ms - since_ms);
                around.watch.check(Promise::Twin, worked_ms < TWINS_MAX_MS, || {
                    format!("machine {} worked for {worked_ms} ms and withdrew", machine.index)
                });
                self.queue.borrow_mut().push(Packet::Disconnect);
                let packets = self.take_packets();
                if let Link::Up(conn) = self.link {
                    around.send.extend(packets.into_iter().map(|packet| (conn, packet)));
                }
                self.down();
                let wait_ms = AWAY.jittered_ms(0, chance::random());
                around.after(wait_ms, Event::Connect(Who::Machine(machine.index), self.life));
            }
            PresenceVerdict::Settled => {
                around.note(|| format!("machine {} works", machine.index));
                self.sole_since_ms = Some(around.now_ms);
                self.exempt = true;
                self.observe(machine);
                let now_ms = self.now_ms(around);
                let own = StoreLife { instance: self.me.instance, is_newcomer: false };
                let lives = presence::lines(std::iter::once(&own).chain(&self.former), &machine.place());
                machine.disk.write(|tx| tx.tables.instances = lives)?;
                self.publisher.begin(now_ms);
                while let Some(message) = self.held.pop_front() {
                    self.order(machine, around, &message)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn observe(&mut self, machine: &Machine) {
        let units = machine.units();
        self.publisher.units.observe(&units);
        self.publisher.beats.observe(machine.state(&units));
    }

    fn on_time(&mut self, machine: &mut Machine, around: &mut Around<'_>) -> Result<(), Crash> {
        let now_ms = self.now_ms(around);
        if self.refresh_due_ms.is_some_and(|due_ms| now_ms >= due_ms) {
            self.refresh_due_ms = None;
            self.publisher.refresh(now_ms);
        }
        for (id, running) in &mut self.running {
            if !running.told && now_ms >= running.since_ms + QUIET_MS {
                running.told = true;
                let at_ms = clock::now_ms();
                self.publisher.note(Report { v: V1, command: *id, seq: 0, at_ms, content: Content::Running });
            }
        }
        let verdict = self.publisher.tick(now_ms);
        self.apply_verdict(machine, around, verdict)?;
        if now_ms >= self.prune_ms {
            self.prune_ms = now_ms + jittered(PRUNE_MS, chance::random());
            let signed_ms = self.time.signed_ms();
            machine.disk.write(|tx| tx.prune(signed_ms))?;
        }
        Ok(())
    }

    /// Ends in order: a last heartbeat, and the presence `stopped`.
    pub(super) fn farewell(&mut self, machine: &Machine, around: &mut Around<'_>) {
        self.observe(machine);
        if let Some(wire) = self.publisher.farewell() {
            let _ = muster_agent::publisher::PublishSink::disconnect(&wire);
        }
        self.look_at_beats(machine, around);
    }

    /// The watch reads along what goes out.
    fn look_at_beats(&mut self, machine: &Machine, around: &mut Around<'_>) {
        let queue = self.queue.borrow();
        for packet in queue.iter() {
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

fn json<T: serde::Serialize>(payload: &T) -> Body {
    Body::bytes(serde_json::to_vec(payload).unwrap())
}
