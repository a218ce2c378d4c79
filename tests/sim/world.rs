//! Virtual time, and who is where: one queue of events, taken in the order of their times. [`network`] is what lies between them.

mod network;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use muster_topics::{
    Millis,
    name::{CommandId, Digest, HostId, UnitName},
    outcome::Status,
    unit::{Exit, Phase},
};

pub(super) use self::network::keep_alive_ms;
use muster_base::clock;

use self::network::{Line, Silence, Stall};
use super::{
    agent::{Agent, Happens, Link, reached},
    broker::Broker,
    chaos::{Act, Weather},
    console::Console,
    machine::Machine,
    random::{below, permille},
    watch::{Promise, Watch},
    wire::{ConnId, Incoming, Message, Packet, Seal},
};

/// Who has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Machine(usize),
    Console,
}

/// What happens at some time. Those of a life are void in a later one.
#[derive(Debug)]
pub(super) enum Event {
    AtBroker(ConnId, Packet),
    AtClient(ConnId, Incoming),
    Connect(Who, u32),
    /// The broker, or the client, gives up a connection that has been silent since then.
    BrokerGivesUp(ConnId, Silence),
    ClientGivesUp(ConnId, Silence),
    BrokerStarts,
    Timer(usize, u32, Millis),
    Starts(usize),
    ProgramEnds(usize, CommandId),
    Answered(usize, u32, CommandId),
    Reconciled(usize, UnitName),
    ConsoleStarts,
    Ingest(u32),
    Acks(u32),
    Dispatch(u32),
    /// The console compares what hosts report of their documents.
    Sync(u32),
    /// The console looks at its rollout.
    Rollout(u32),
    /// A change of a host, with a permit, comes to its end.
    ChangeEnds(usize, u64),
    /// A host has asked the console for a body.
    Fetch(usize, u32, Digest),
    Act(Act),
}

/// What a party sees of the world.
pub(super) struct Around<'a> {
    pub(super) now_ms: Millis,
    pub(super) seal: &'a Seal,
    pub(super) watch: &'a mut Watch,
    /// What the console has sent, for whoever repeats it.
    pub(super) recorded: &'a mut Vec<Message>,
    /// Which host was to do which command.
    pub(super) ordered: &'a mut BTreeSet<(CommandId, HostId)>,
    pub(super) twins: bool,
    pub(super) send: Vec<(ConnId, Packet)>,
    later: Vec<(Millis, Event)>,
}

impl Around<'_> {
    pub(super) fn after(&mut self, wait_ms: Millis, event: Event) {
        self.later.push((self.now_ms + wait_ms, event));
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        self.watch.note(self.now_ms, what);
    }
}

struct Due {
    at_ms: Millis,
    serial: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ms, self.serial) == (other.at_ms, other.serial)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ms, self.serial).cmp(&(other.at_ms, other.serial))
    }
}

pub(super) struct World {
    pub(super) now_ms: Millis,
    serial: u64,
    queue: BinaryHeap<Reverse<Due>>,
    pub(super) hosts: Vec<HostId>,
    pub(super) machines: Vec<Machine>,
    pub(super) console: Console,
    pub(super) broker: Broker,
    lines: BTreeMap<ConnId, Line>,
    conns: ConnId,
    /// Until when nothing gets through to whom, or from them.
    pub(super) stalled: BTreeMap<Who, Stall>,
    pub(super) weather: Weather,
    pub(super) seal: Seal,
    pub(super) watch: Watch,
    pub(super) recorded: Vec<Message>,
    pub(super) ordered: BTreeSet<(CommandId, HostId)>,
    pub(super) twins: bool,
    /// How far the console's clock was ahead at most.
    pub(super) console_ahead_ms: Millis,
    /// Hosts whose disk was lost, and when.
    pub(super) wiped: BTreeMap<HostId, Millis>,
    /// Who comes back after days, and when.
    pub(super) back: Option<(usize, Millis)>,
    /// What was ordered.
    pub(super) issued: Vec<CommandId>,
}

impl World {
    pub(super) fn new(now_ms: Millis, weather: Weather, seal: Seal) -> Self {
        Self {
            now_ms,
            serial: 0,
            queue: BinaryHeap::new(),
            hosts: Vec::new(),
            machines: Vec::new(),
            console: Console::default(),
            broker: Broker { is_up: true, keeps_from_wildcards: weather.keeps_from_wildcards, ..Broker::default() },
            lines: BTreeMap::new(),
            conns: 0,
            stalled: BTreeMap::new(),
            weather,
            seal,
            watch: Watch::default(),
            recorded: Vec::new(),
            ordered: BTreeSet::new(),
            twins: false,
            console_ahead_ms: 0,
            wiped: BTreeMap::new(),
            back: None,
            issued: Vec::new(),
        }
    }

    pub(super) fn at(&mut self, at_ms: Millis, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse(Due { at_ms, serial: self.serial, event }));
    }

    pub(super) fn after(&mut self, wait_ms: Millis, event: Event) {
        self.at(self.now_ms + wait_ms, event);
    }

    /// Lets time pass until `until_ms`, or until a promise is broken.
    pub(super) fn run(&mut self, until_ms: Millis) {
        while self.watch.broken.is_none() {
            match self.queue.peek() {
                Some(Reverse(due)) if due.at_ms <= until_ms => {}
                _ => break,
            }
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now_ms = self.now_ms.max(due.at_ms);
            self.step(due.event);
        }
        self.now_ms = self.now_ms.max(until_ms);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::AtBroker(conn, packet) => self.at_broker(conn, packet),
            Event::AtClient(conn, incoming) => self.at_client(conn, incoming),
            Event::Connect(who, life) => self.connect(who, life),
            Event::BrokerGivesUp(conn, silence) => {
                if self.lasts(silence) {
                    self.break_session(conn);
                }
            }
            Event::ClientGivesUp(conn, silence) => {
                if self.lasts(silence) {
                    self.client_closed(conn);
                }
            }
            Event::BrokerStarts => self.broker.is_up = true,
            Event::Timer(machine, life, at_ms) => {
                if self.agent(machine, life).is_some_and(|agent| agent.timer_ms == Some(at_ms)) {
                    self.tell_agent(machine, Happens::Time);
                }
            }
            Event::Starts(machine) => self.start_agent(machine),
            Event::ProgramEnds(machine, id) => self.program_ends(machine, id),
            Event::Answered(machine, life, id) => {
                if self.agent(machine, life).is_some() {
                    self.tell_agent(machine, Happens::Ended(id, Status::Completed));
                }
            }
            Event::Reconciled(machine, unit) => self.reconciled(machine, unit),
            Event::ConsoleStarts => self.start_console(),
            Event::Ingest(life) => self.with_console(life, |console, around| {
                if !console.ingest(around) {
                    around.after(0, Event::Act(Act::ConsoleCrash));
                }
            }),
            Event::Acks(life) => self.with_console(life, Console::acknowledge),
            Event::Dispatch(life) => self.with_console(life, Console::dispatch),
            Event::Sync(life) => self.with_console(life, Console::sync),
            Event::Rollout(life) => self.with_console(life, Console::look_at_rollout),
            Event::ChangeEnds(machine, permit) => {
                if self.machines[machine].agent.is_some() {
                    self.tell_agent(machine, Happens::ChangeEnds(permit));
                }
            }
            Event::Fetch(machine, life, digest) => self.fetch(machine, life, digest),
            Event::Act(act) => self.act(act),
        }
    }

    /// Answers a host that fetches a body, if the console is there and the network lets it.
    fn fetch(&mut self, machine: usize, life: u32, digest: Digest) {
        if self.agent(machine, life).is_none() {
            return;
        }
        let is_answered =
            self.console.is_up && !permille(self.weather.drops) && !self.is_stalled(Who::Machine(machine));
        let bytes = self.console.documents.body(&digest).filter(|_| is_answered);
        self.tell_agent(machine, Happens::Fetched(digest, bytes));
    }

    fn agent(&self, machine: usize, life: u32) -> Option<&Agent> {
        let machine = &self.machines[machine];
        machine.agent.as_ref().filter(|_| machine.life == life)
    }

    fn link_is(&self, machine: usize, link: Link) -> bool {
        self.machines[machine].agent.as_ref().is_some_and(|agent| agent.link == link)
    }

    /// Does something as a party whose clock may be wrong.
    fn pretend<T>(&mut self, who: Who, what: impl FnOnce(&mut Self) -> T) -> T {
        let off_ms = match who {
            Who::Machine(machine) => self.machines[machine].clock_off_ms,
            Who::Console => self.console.clock_off_ms,
        };
        clock::pretended::set(Some((self.now_ms + off_ms).max(0)));
        what(self)
    }

    fn around(&mut self) -> (&mut Vec<Machine>, &mut Console, Around<'_>) {
        let Self { machines, console, now_ms, seal, watch, recorded, ordered, twins, .. } = self;
        let (send, later) = (Vec::new(), Vec::new());
        let around = Around { now_ms: *now_ms, seal, watch, recorded, ordered, twins: *twins, send, later };
        (machines, console, around)
    }

    fn finish(&mut self, send: Vec<(ConnId, Packet)>, later: Vec<(Millis, Event)>) {
        for (at_ms, event) in later {
            self.at(at_ms, event);
        }
        for (conn, packet) in send {
            self.send(conn, packet);
        }
    }

    pub(super) fn with_console(&mut self, life: u32, what: impl FnOnce(&mut Console, &mut Around<'_>)) {
        if !self.console.is_up || self.console.life != life {
            return;
        }
        self.pretend(Who::Console, |world| {
            let (_, console, mut around) = world.around();
            what(console, &mut around);
            let Around { send, later, .. } = around;
            world.finish(send, later);
        });
    }

    pub(super) fn start_console(&mut self) {
        if self.console.is_up {
            return;
        }
        self.pretend(Who::Console, |world| {
            let (_, console, mut around) = world.around();
            console.start(&mut around);
            let Around { send, later, .. } = around;
            world.finish(send, later);
        });
    }

    pub(super) fn start_agent(&mut self, index: usize) {
        if self.machines[index].agent.is_some() || self.machines[index].is_gone {
            return;
        }
        self.pretend(Who::Machine(index), |world| {
            let (machines, _, mut around) = world.around();
            let machine = &mut machines[index];
            machine.disk.set_fuse(None);
            machine.agent = Agent::start(machine, &mut around).ok();
            let Around { send, later, .. } = around;
            world.finish(send, later);
            world.set_timer(index);
        });
    }

    /// One turn of an agent's loop, and what it has to say.
    pub(super) fn tell_agent(&mut self, index: usize, what: Happens) {
        let crashed = self.pretend(Who::Machine(index), |world| {
            let (machines, _, mut around) = world.around();
            let machine = &mut machines[index];
            let Some(mut agent) = machine.agent.take() else { return false };
            let done = agent.handle(machine, &mut around, what);
            let packets = agent.take_packets();
            if let Link::Up(conn) = agent.link {
                around.send.extend(packets.into_iter().map(|packet| (conn, packet)));
            }
            machine.agent = Some(agent);
            let Around { send, later, .. } = around;
            world.finish(send, later);
            done.is_err()
        });
        if crashed {
            self.agent_crashes(index, false);
        } else {
            self.set_timer(index);
            self.look_at(index);
        }
    }

    fn set_timer(&mut self, index: usize) {
        let (machines, _, around) = self.around();
        let Some(agent) = machines[index].agent.as_mut() else { return };
        let at_ms = agent.next_ms(&around).max(around.now_ms + 1);
        if agent.timer_ms == Some(at_ms) {
            return;
        }
        agent.timer_ms = Some(at_ms);
        let life = machines[index].life;
        self.at(at_ms, Event::Timer(index, life, at_ms));
    }

    /// The agent is killed. Its programs go on, for they have shims.
    pub(super) fn agent_crashes(&mut self, index: usize, in_silence: bool) {
        if self.machines[index].agent.take().is_none() {
            return;
        }
        self.watch.note(self.now_ms, || format!("machine {index} is killed"));
        self.machines[index].disk.set_fuse(None);
        self.vanishes(Who::Machine(index), in_silence);
        let wait_ms = self.weather.restart_ms();
        self.after(wait_ms, Event::Starts(index));
    }

    /// The agent ends in order.
    pub(super) fn agent_stops(&mut self, index: usize) {
        self.watch.note(self.now_ms, || format!("machine {index} stops"));
        self.pretend(Who::Machine(index), |world| {
            let (machines, _, mut around) = world.around();
            let Some(mut agent) = machines[index].agent.take() else { return };
            agent.farewell(&mut machines[index], &mut around);
            let packets = agent.take_packets();
            if let Link::Up(conn) = agent.link {
                packets.into_iter().for_each(|packet| world.send(conn, packet));
            }
        });
    }

    fn program_ends(&mut self, index: usize, id: CommandId) {
        let now_ms = self.now_ms;
        let Some(program) = self.machines[index].programs.get_mut(&id) else { return };
        if program.ends_ms > now_ms {
            return;
        }
        let status = program.over.get_or_insert(Status::exited(Exit::Code(0))).clone();
        if self.machines[index].agent.is_some() {
            self.tell_agent(index, Happens::Ended(id, status));
        }
    }

    fn reconciled(&mut self, index: usize, unit: UnitName) {
        let machine = &mut self.machines[index];
        let Some((generation, run)) = machine.disk.read(|tables| tables.units.get(&unit).copied()) else {
            machine.observed.remove(&unit);
            return;
        };
        machine.observed.insert(unit, (generation, reached(run)));
        self.observed(index);
    }

    /// Something about a host is not as it was.
    pub(super) fn observed(&mut self, index: usize) {
        if self.machines[index].agent.is_some() {
            self.tell_agent(index, Happens::Observed);
        }
    }

    /// A unit has trouble, or a label is another.
    pub(super) fn changes(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        let count = machine.observed.len() as u64;
        match machine.observed.values_mut().nth(usize::try_from(below(count + 1)).unwrap_or_default()) {
            Some((_, phase)) => *phase = if *phase == Phase::Running { Phase::Backoff } else { Phase::Running },
            None => machine.label += 1,
        }
        self.observed(index);
    }

    /// Whether who works is alone, and shown so.
    fn look_at(&mut self, index: usize) {
        let Some(since_ms) = self.machines[index].agent.as_ref().and_then(|agent| agent.sole_since_ms) else { return };
        if since_ms != self.now_ms {
            return;
        }
        let works = |world: &Self, index: usize| {
            let agent = world.machines[index].agent.as_ref()?;
            let Link::Up(conn) = agent.link else { return None };
            let reaches = world.broker.sessions.contains_key(&conn) && !world.is_stalled(Who::Machine(index));
            (agent.is_sole() && reaches).then_some(())
        };
        for other in 0..self.machines.len() {
            let twin = other != index && self.machines[other].host == self.machines[index].host;
            if twin && works(self, other).is_some() && works(self, index).is_some() {
                self.watch
                    .check(Promise::Twin, false, || format!("machines {index} and {other} work, and are one host"));
            }
        }
    }
}
