//! One life of an agent: the product's voice, rules and decisions, around which this does what the loop
//! (`src/agent/core.rs`), the road (`road.rs`, `turn.rs`) and the link (`link.rs`) do with sockets, tasks and files.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

use futures_util::FutureExt;
use muster_topics::{
    Millis, V1,
    ack::{Ack, ReportAck},
    command::{Command, Refresh, Verb},
    name::{CommandId, Digest, UnitName},
    outcome::{Content, RefusalCode, Report, Status},
    presence::PresenceState,
    select,
    topic::{HostTopic, Topic},
    unit::{Exit, Phase, Run},
};
use serde::Deserialize;

use super::{
    disk::{Crash, Disk},
    machine::{Machine, Program},
    random::{between, permille},
    watch::KnownThen,
    wire::{Body, ConnId, Message, Order, Packet, Signed, SimWire},
    world::{Around, Event, Who},
};
use crate::{
    agent::{link::Me, store::journal::Known, voice::Voice},
    chance, clock,
    rules::{
        Refusal,
        authorise::{Channel, Judge, Policy, VerbName, Verdict as Judgement},
        backoff::{self, Growth, RECONNECT, jittered},
        heartbeat::{Beats, Periods},
        presence::{self, Life, Verdict},
        receive::{self, Acknowledged, Resumed},
        time::{AHEAD_MAX_MS, BUILD_MS, KnownTime},
    },
};

pub(super) const KEEP_ALIVE_S: u16 = 30;
/// As an agent's configuration has them.
const PERIODS: Periods = Periods { period_ms: 30_000, gap_ms: 5_000, digest_ms: 600_000 };
/// `HELD_MAX`, `PRUNE_MS`, `QUIET_MS` and `AWAY` of the agent.
const HELD_MAX: usize = 64;
const PRUNE_MS: Millis = 3_600_000;
const QUIET_MS: Millis = 1_000;
const AWAY: Growth = Growth { first_ms: 300_000, max_ms: 300_000 };
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
    pub(super) me: Me,
    life: u32,
    born_ms: Millis,
    voice: Voice<Disk, SimWire>,
    time: KnownTime,
    /// The same, as the watch sees it: the latest signed time that came.
    heard_ms: Millis,
    created_ms: Millis,
    kept_signed_ms: Millis,
    refreshes: receive::Refreshes,
    refresh_due_ms: Option<Millis>,
    running: BTreeMap<CommandId, Running>,
    held: VecDeque<Message>,
    prune_ms: Millis,
    former: Vec<Life>,
    policy: Policy,
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
            let own = Life { instance, is_newcomer: true };
            tx.tables.instances = presence::lines(std::iter::once(&own).chain(&former), &place);
            former
        })?;
        let me = Me { host: machine.host, instance, epoch: life.epoch, keep_alive_s: KEEP_ALIVE_S };
        let units = machine.units();
        let beats = Beats::new(life.epoch, PERIODS, machine.state(&units));
        let mut voice = Voice::new(me.clone(), machine.disk.clone(), beats);
        voice.units.observe(&units);
        let time = KnownTime::new(life.signed_ms);
        let mut agent = Self {
            me,
            life: machine.life,
            born_ms: around.now_ms,
            voice,
            time,
            heard_ms: life.signed_ms,
            created_ms: life.created_ms,
            kept_signed_ms: life.signed_ms,
            refreshes: receive::Refreshes::default(),
            refresh_due_ms: None,
            running: BTreeMap::new(),
            held: VecDeque::new(),
            prune_ms: jittered(60_000, chance::random()),
            former,
            policy: Policy { deny_verbs: [FORBIDDEN].into(), ..Policy::default() },
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
        self.voice.is_sole()
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
        self.voice.pump(now_ms).now_or_never().unwrap().unwrap();
        self.look_at_beats(machine, around);
        Ok(())
    }

    /// When it wants to be woken.
    pub(super) fn next_ms(&self, around: &Around<'_>) -> Millis {
        let slow = self.running.values().filter(|one| !one.told).map(|one| one.since_ms + QUIET_MS).min();
        let due = [Some(self.prune_ms), self.refresh_due_ms, slow, self.voice.next_ms(self.now_ms(around))];
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
        self.voice.up(wire, self.former.clone(), now_ms);
    }

    fn down(&mut self) {
        self.link = Link::Waiting;
        self.voice.down();
        self.held.clear();
        self.queue.borrow_mut().clear();
        self.sole_since_ms = None;
    }

    fn message(&mut self, machine: &mut Machine, around: &mut Around<'_>, message: Message) -> Result<(), Crash> {
        if let (Topic::Host(_, HostTopic::Presence), Body::Bytes(payload)) = (&message.topic, &message.body) {
            let now_ms = self.now_ms(around);
            let verdict = self.voice.heard_presence(payload, now_ms);
            return self.stand(machine, around, verdict);
        }
        if !self.voice.is_sole() || !self.held.is_empty() {
            if self.held.len() < HELD_MAX {
                self.held.push_back(message);
            }
            return Ok(());
        }
        self.order(machine, around, &message)
    }

    fn stand(&mut self, machine: &mut Machine, around: &mut Around<'_>, verdict: Verdict) -> Result<(), Crash> {
        match verdict {
            Verdict::Ignore | Verdict::Assert | Verdict::Claim => {}
            Verdict::Withdraw => {
                around.note(|| format!("machine {} withdraws", machine.index));
                // Of two that begin while they cannot hear one another, one leaves soon.
                let worked_ms = self.sole_since_ms.map_or(0, |since_ms| around.now_ms - since_ms);
                around.watch.check(super::watch::Promise::Twin, worked_ms < TWINS_MAX_MS, || {
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
            Verdict::Settled => {
                around.note(|| format!("machine {} works", machine.index));
                self.sole_since_ms = Some(around.now_ms);
                self.exempt = true;
                self.observe(machine);
                let now_ms = self.now_ms(around);
                let own = Life { instance: self.me.instance, is_newcomer: false };
                let lives = presence::lines(std::iter::once(&own).chain(&self.former), &machine.place());
                machine.disk.write(|tx| tx.tables.instances = lives)?;
                self.voice.begin(now_ms);
                while let Some(message) = self.held.pop_front() {
                    self.order(machine, around, &message)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn observe(&mut self, machine: &Machine) {
        let units = machine.units();
        self.voice.units.observe(&units);
        self.voice.beats.observe(machine.state(&units));
    }

    /// A message on a topic of signed ones.
    fn order(&mut self, machine: &mut Machine, around: &mut Around<'_>, message: &Message) -> Result<(), Crash> {
        let Body::Signed(signed) = &message.body else { return Ok(()) };
        let channel = match &message.topic {
            Topic::CommandAll | Topic::CommandGroup(_) => Channel::Broadcast,
            _ => Channel::Own,
        };
        let Some(order) = around.seal.open(signed) else { return Ok(()) };
        let heard_ms = self.heard_ms;
        match order {
            Order::Command(command) => {
                self.hears(command.issued_ms);
                self.command(machine, around, command, channel, (heard_ms, signed))?;
            }
            Order::Ack(ack) => {
                if ack.host == self.me.host {
                    self.hears(ack.issued_ms);
                }
                self.ack(machine, around, &ack)?;
            }
            Order::Refresh(refresh) => self.refresh(around, machine.index, &refresh),
        }
        Ok(())
    }

    /// The watch's own idea of what time it is.
    fn hears(&mut self, issued_ms: Millis) {
        let clock_ms = clock::now_ms();
        if clock_ms < BUILD_MS || issued_ms <= clock_ms.max(self.heard_ms).max(BUILD_MS) + AHEAD_MAX_MS {
            self.heard_ms = self.heard_ms.max(issued_ms);
        }
    }

    fn ack(&mut self, machine: &mut Machine, around: &mut Around<'_>, ack: &Ack) -> Result<(), Crash> {
        let taken = receive::ack(ack, self.me.host, &mut self.time, self.kept_signed_ms, clock::now_ms());
        let Acknowledged::Forget { store } = taken else { return Ok(()) };
        let signed_ms = self.time.signed_ms();
        if store {
            for key in &ack.reports {
                if machine.disk.read(|tables| tables.outbox.contains_key(key)) {
                    let ordered = around.ordered.contains(&(key.command, machine.host));
                    around.watch.forgets(key.command, machine.host, ordered);
                }
            }
            machine.disk.write(|tx| tx.acknowledge(&ack.reports, signed_ms))?;
            self.kept_signed_ms = signed_ms;
        }
        self.voice.acknowledged(ack);
        Ok(())
    }

    fn refresh(&mut self, around: &mut Around<'_>, machine: usize, refresh: &Refresh) {
        let taken = receive::refresh(refresh, &mut self.refreshes, &mut self.time, clock::now_ms());
        self.heard_ms = self.heard_ms.max(self.time.signed_ms());
        let Some(within_ms) = taken else { return };
        around.watch.refreshes(machine, self.life, refresh.issued_ms);
        let due_ms = self.now_ms(around) + backoff::share(within_ms, chance::random());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    fn command(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: Command,
        channel: Channel,
        (heard_ms, signed): (Millis, &Signed),
    ) -> Result<(), Crash> {
        let realms = BTreeSet::from(["default".parse().unwrap()]);
        let clock_ms = clock::now_ms();
        let (facts, labels) = (None, BTreeMap::new());
        let (hostname, agent_version) = ("", "");
        let seen = select::Host {
            host: self.me.host,
            hostname,
            agent_version,
            facts,
            labels: &labels,
            realms: &[],
            units: &[],
        };
        let judge = Judge {
            host: &seen,
            realms: &realms,
            policy: &self.policy,
            user: "root",
            created_ms: self.created_ms,
            time: self.time,
            clock_ms,
        };
        let known = KnownThen { now_ms: clock_ms.max(heard_ms).max(BUILD_MS), created_ms: self.created_ms };
        match receive::command(command, channel, &judge, &mut self.time) {
            Judgement::NotMine => Ok(()),
            Judgement::Refused(command, refusal) => {
                around.note(|| format!("machine {} refuses {}: {}", machine.index, command.id, refusal.message));
                self.answer_now(machine, around, command.id, command.expires_ms, refusal.into())
            }
            Judgement::Granted(command) => {
                let doing = Doing { genuine: !signed.forged, known };
                self.granted(machine, around, command.into_inner(), doing)
            }
        }
    }

    fn granted(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: Command,
        doing: Doing,
    ) -> Result<(), Crash> {
        let (id, signed_ms) = (command.id, self.time.signed_ms());
        match command.verb.clone() {
            Verb::Cancel { command: which } => self.cancel(machine, around, &command, which),
            Verb::UnitRun { unit } => self.edit(machine, around, &command, doing, (unit, Some(Run::Running))),
            Verb::UnitStop { unit } => self.edit(machine, around, &command, doing, (unit, Some(Run::Stopped))),
            Verb::UnitRm { unit } => self.edit(machine, around, &command, doing, (unit, None)),
            Verb::Exec(_) | Verb::UnitCommand(_) => {
                let kept = Rc::new(command.clone());
                let new = machine.disk.write(|tx| tx.insert(id, Some(kept), command.expires_ms, signed_ms))?;
                if !new {
                    return self.repeated(machine, around, id);
                }
                self.begin(machine, around, &command, Some(doing));
                Ok(())
            }
            _ => {
                let refusal = Refusal::new(RefusalCode::Unsupported, "no simulated host does this");
                self.answer_now(machine, around, id, command.expires_ms, refusal.into())
            }
        }
    }

    /// A program, or a unit's own command, begins.
    fn begin(&mut self, machine: &mut Machine, around: &mut Around<'_>, command: &Command, doing: Option<Doing>) {
        let known = KnownThen { now_ms: Millis::MIN, created_ms: self.created_ms };
        let Doing { genuine, known } = doing.unwrap_or(Doing { genuine: true, known });
        around.watch.effect(machine.index, command, genuine, known);
        let lasts_ms = if permille(700) { between(1, 900) } else { between(1_000, 90_000) };
        around.note(|| format!("machine {} begins {} for {lasts_ms} ms", machine.index, command.id));
        self.running.insert(command.id, Running { since_ms: self.now_ms(around), told: false });
        match &command.verb {
            Verb::Exec(_) => {
                let ends_ms = around.now_ms + lasts_ms;
                machine.programs.insert(command.id, Program { ends_ms, over: None });
                around.after(lasts_ms, Event::ProgramEnds(machine.index, command.id));
            }
            // What a unit was asked it forgets with the agent that asked.
            _ => around.after(lasts_ms, Event::Answered(machine.index, self.life, command.id)),
        }
    }

    fn cancel(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: &Command,
        which: CommandId,
    ) -> Result<(), Crash> {
        let (id, signed_ms, now_ms) = (command.id, self.time.signed_ms(), clock::now_ms());
        let expires_ms = receive::cancelled_expires_ms(command.issued_ms);
        let done = machine.disk.write(|tx| {
            if !tx.insert(id, Some(Rc::new(command.clone())), command.expires_ms, signed_ms) {
                return None;
            }
            let refusal = Refusal::new(RefusalCode::Conflict, "it was cancelled before it could be begun");
            let refused =
                tx.insert(which, None, expires_ms, signed_ms).then(|| tx.finish(which, refusal.into(), now_ms));
            Some((refused.flatten(), tx.finish(id, Status::Completed, now_ms)))
        })?;
        let Some((refused, key)) = done else { return self.repeated(machine, around, id) };
        if let Some(program) = machine.programs.get_mut(&which).filter(|program| program.over.is_none()) {
            // It ends a moment later.
            program.ends_ms = around.now_ms;
            program.over = Some(Status::Cancelled);
            around.after(20, Event::ProgramEnds(machine.index, which));
        }
        self.queue_up(around, refused);
        self.queue_up(around, key);
        Ok(())
    }

    /// Desired state is edited: the effect and the answer are one transaction.
    fn edit(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        command: &Command,
        doing: Doing,
        (unit, run): (UnitName, Option<Run>),
    ) -> Result<(), Crash> {
        let (id, signed_ms, now_ms) = (command.id, self.time.signed_ms(), clock::now_ms());
        let kept = Rc::new(command.clone());
        let done = machine.disk.write(|tx| {
            if !tx.insert(id, Some(kept), command.expires_ms, signed_ms) {
                return None;
            }
            tx.tables.edits.push(id);
            let generation = tx.tables.units.get(&unit).map_or(0, |(generation, _)| *generation) + 1;
            let status = match run {
                Some(run) => {
                    tx.tables.units.insert(unit.clone(), (generation, run));
                    Status::Applied { generation, revision: Digest::of(b""), hold: None }
                }
                None => {
                    tx.tables.units.remove(&unit);
                    Status::Completed
                }
            };
            Some(tx.finish(id, status, now_ms))
        });
        // It has taken effect whether or not the agent lives to see it.
        let effects = machine.disk.read(|tables| tables.edits.iter().filter(|edit| **edit == id).count());
        around.watch.check(super::watch::Promise::AtMostOnce, effects <= 1, || format!("{id} edited {effects} times"));
        let Some(key) = done? else { return self.repeated(machine, around, id) };
        around.watch.effect(machine.index, command, doing.genuine, doing.known);
        around.note(|| format!("machine {} edits {unit} by {id}", machine.index));
        around.after(between(1, 3_000), Event::Reconciled(machine.index, unit));
        self.voice.beats.hasten();
        self.observe(machine);
        self.queue_up(around, key);
        Ok(())
    }

    fn answer_now(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        id: CommandId,
        expires_ms: Millis,
        status: Status,
    ) -> Result<(), Crash> {
        let (signed_ms, now_ms) = (self.time.signed_ms(), clock::now_ms());
        let done = machine
            .disk
            .write(|tx| tx.insert(id, None, expires_ms, signed_ms).then(|| tx.finish(id, status, now_ms)))?;
        let Some(key) = done else { return self.repeated(machine, around, id) };
        self.queue_up(around, key);
        Ok(())
    }

    fn repeated(&mut self, machine: &mut Machine, around: &mut Around<'_>, id: CommandId) -> Result<(), Crash> {
        match machine.disk.write(|tx| tx.answer_again(id, clock::now_ms()))? {
            Some(Known::Answered(key)) => self.queue_up(around, Some(key)),
            Some(Known::Unfinished) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.told = false;
                }
            }
            None => {}
        }
        Ok(())
    }

    fn queue_up(&mut self, around: &Around<'_>, key: Option<ReportAck>) {
        let now_ms = self.now_ms(around);
        if let Some(key) = key {
            self.voice.queue(key, now_ms);
        }
    }

    /// What an earlier life left unfinished.
    fn resume(&mut self, machine: &mut Machine, around: &mut Around<'_>) -> Result<(), Crash> {
        let unfinished = |tables: &super::disk::Tables| {
            let open = tables.journal.iter().filter(|(_, row)| row.answer.is_none());
            open.map(|(id, row)| (*id, row.command.clone())).collect::<Vec<_>>()
        };
        for (id, command) in machine.disk.read(unfinished) {
            match (receive::resume(command.as_ref().map(|command| &command.verb), false), command) {
                (Resumed::Anew, Some(command)) => self.begin(machine, around, &command, None),
                (Resumed::LookedUp, _) => {
                    self.running.insert(id, Running { since_ms: self.now_ms(around), told: false });
                    match machine.programs.get(&id).map(|program| program.over.clone()) {
                        Some(Some(status)) => self.ended(machine, around, id, status)?,
                        // Its shim will tell.
                        Some(None) => {}
                        None => self.ended(machine, around, id, Status::Lost)?,
                    }
                }
                _ => self.ended(machine, around, id, Status::Lost)?,
            }
        }
        Ok(())
    }

    /// A command has come to its end.
    fn ended(
        &mut self,
        machine: &mut Machine,
        around: &mut Around<'_>,
        id: CommandId,
        status: Status,
    ) -> Result<(), Crash> {
        let exit = Status::Exited { exit: Exit::Code(0) };
        let known = machine.programs.get(&id).map(|program| program.over.clone().unwrap_or(exit));
        around.watch.ends(id, &status, known.as_ref());
        let key = machine.disk.write(|tx| tx.finish(id, status, clock::now_ms()))?;
        self.queue_up(around, key);
        self.running.remove(&id);
        machine.programs.remove(&id);
        Ok(())
    }

    fn on_time(&mut self, machine: &mut Machine, around: &mut Around<'_>) -> Result<(), Crash> {
        let now_ms = self.now_ms(around);
        if self.refresh_due_ms.is_some_and(|due_ms| now_ms >= due_ms) {
            self.refresh_due_ms = None;
            self.voice.refresh(now_ms);
        }
        for (id, running) in &mut self.running {
            if !running.told && now_ms >= running.since_ms + QUIET_MS {
                running.told = true;
                let at_ms = clock::now_ms();
                self.voice.note(Report { v: V1, command: *id, seq: 0, at_ms, content: Content::Running });
            }
        }
        let verdict = self.voice.tick(now_ms);
        self.stand(machine, around, verdict)?;
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
        if let Some(wire) = self.voice.farewell() {
            let _ = crate::agent::voice::Wire::disconnect(&wire);
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

/// What the watch has to know of a command that is done.
#[derive(Clone, Copy, Debug)]
struct Doing {
    genuine: bool,
    known: KnownThen,
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
