//! Random faults and random orders.

use std::rc::Rc;

use muster_base::clock;
use muster_rules::time::BUILD_MS;
use muster_topics::{
    Millis, V1,
    asker::Asker,
    command::{Command, Exec, Forward, Refresh, Target, Verb},
    name::{CommandId, HostId, Name, UnitName},
    topic::{HostTopic, Topic},
};

use super::{
    disk::Disk,
    machine::Machine,
    random::{below, between, permille, pick, uuid},
    wire::{Body, ConnId, Message, Order},
    world::{Event, Who, World, keep_alive_ms},
};

/// How bad a seed's network is, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) drops: u64,
    pub(super) doubles: u64,
    pub(super) delays: u64,
    pub(super) keeps_from_wildcards: bool,
}

/// What may happen in a seed, beside the weather.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Climate {
    /// Clocks are wrong. Not together with a store that is lost, for its host then has no witness of the time at all; nor
    /// with a clone, for which of two lives is the later one is told by the times at which they began.
    pub(super) clocks: bool,
    pub(super) twin: bool,
    /// A store is lost with its disk.
    pub(super) wipe: bool,
    /// A host is away for days.
    pub(super) week: bool,
    /// One host never comes back.
    pub(super) death: bool,
}

/// One thing that goes wrong, or that somebody wants.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Order,
    /// What is desired of a host changes.
    Deploy,
    /// A version is rolled out, or a rollout is paused or cancelled.
    Steer,
    AgentCrash,
    /// At one of its next commits.
    AgentFuse,
    PowerCut,
    AgentRestart,
    Cut,
    Stall,
    BrokerCrash,
    ConsoleCrash,
    /// After its next commit.
    ConsoleFuse,
    ClockJump,
    Clone,
    Wipe,
    Replay,
    Forge,
    Change,
    Away,
    Dies,
    SessionEnds(ConnId),
}

impl Weather {
    pub(super) fn any() -> Self {
        Self {
            drops: pick(&[0, 0, 20, 100, 300]),
            doubles: pick(&[0, 30, 200]),
            delays: pick(&[0, 50, 200]),
            keeps_from_wildcards: permille(300),
        }
    }

    pub(super) fn up_ms(&self) -> Millis {
        between(1, 15) + if permille(self.delays) { between(0, 1_500) } else { 0 }
    }

    pub(super) fn down_ms(&self) -> Millis {
        if permille(self.delays) { between(1, 6_000) } else { 0 }
    }

    pub(super) fn doubled_ms(&self) -> Millis {
        if permille(300) { between(1_000, 120_000) } else { between(1, 3_000) }
    }

    pub(super) fn restart_ms(&self) -> Millis {
        if permille(200) { between(20_000, 90_000) } else { between(50, 5_000) }
    }
}

impl Climate {
    pub(super) fn any() -> Self {
        let twin = permille(150);
        let wipe = !twin && permille(150);
        let week = !twin && !wipe && permille(50);
        Self { clocks: !wipe && !twin && permille(400), twin, wipe, week, death: permille(150) }
    }
}

/// So often, of what can happen at any time.
const OFTEN: [(u64, Act); 15] = [
    (30, Act::Order),
    (10, Act::Deploy),
    (14, Act::Change),
    (6, Act::AgentCrash),
    (6, Act::AgentFuse),
    (3, Act::PowerCut),
    (3, Act::AgentRestart),
    (5, Act::Cut),
    (5, Act::Stall),
    (2, Act::BrokerCrash),
    (4, Act::ConsoleCrash),
    (3, Act::ConsoleFuse),
    (3, Act::ClockJump),
    (9, Act::Replay),
    (5, Act::Forge),
];

impl World {
    /// What goes wrong in the next `storm_ms`.
    pub(super) fn brew(&mut self, climate: Climate, storm_ms: Millis) {
        let whole: u64 = OFTEN.iter().map(|(weight, _)| weight).sum();
        for _ in 0..between(25, 60) {
            let mut lot = below(whole);
            let drawn = OFTEN.iter().find(|(weight, _)| {
                let is_this = lot < *weight;
                lot = lot.wrapping_sub(*weight);
                is_this
            });
            let act = drawn.map_or(Act::Order, |(_, act)| *act);
            if matches!(act, Act::ClockJump) && !climate.clocks {
                continue;
            }
            self.after(between(0, storm_ms), Event::Act(act));
        }
        if permille(500) {
            for _ in 0..between(1, 6) {
                self.after(between(0, storm_ms), Event::Act(Act::Steer));
            }
        }
        let once = [
            (climate.twin, Act::Clone),
            (climate.wipe, Act::Wipe),
            (climate.week, Act::Away),
            (climate.death, Act::Dies),
        ];
        for (_, act) in once.into_iter().filter(|(happens, _)| *happens) {
            self.after(between(storm_ms / 4, storm_ms * 3 / 4), Event::Act(act));
        }
    }

    pub(super) fn act(&mut self, act: Act) {
        let machine = usize::try_from(below(self.machines.len() as u64)).unwrap_or_default();
        let who = if permille(300) { Who::Console } else { Who::Machine(machine) };
        match act {
            Act::Order => self.order(),
            Act::Deploy => {
                let (life, host) = (self.console.life, pick(&self.hosts));
                self.with_console(life, |console, around| console.deploy(host, around));
            }
            Act::Steer => {
                let (life, hosts) = (self.console.life, self.hosts.clone());
                self.with_console(life, |console, around| console.steer(&hosts, around));
            }
            Act::AgentCrash => self.agent_crashes(machine, permille(300)),
            Act::AgentFuse => self.machines[machine].disk.set_fuse(Some((below(4), permille(500)))),
            Act::PowerCut => {
                self.machines[machine].loses_power();
                self.agent_crashes(machine, true);
            }
            Act::AgentRestart => {
                self.agent_stops(machine);
                self.after(between(50, 5_000), Event::Starts(machine));
            }
            Act::Cut => self.cut(who),
            Act::Stall => self.stall(who, if permille(300) { between(40_000, 120_000) } else { between(500, 20_000) }),
            Act::BrokerCrash if self.broker.is_up => self.broker_crashes(permille(500), between(200, 20_000)),
            Act::BrokerCrash => {}
            Act::ConsoleCrash => self.console_crashes(),
            Act::ConsoleFuse => self.console.fuse = true,
            Act::ClockJump => self.clock_jumps(who),
            Act::Clone => self.clone_host(machine),
            Act::Wipe => self.wipe(machine),
            Act::Replay => self.replay(),
            Act::Forge => self.forge(machine),
            Act::Change => self.changes(machine),
            Act::Away => self.away(machine),
            Act::Dies => {
                self.machines[machine].is_gone = true;
                self.agent_crashes(machine, permille(500));
            }
            Act::SessionEnds(conn) => self.break_session(conn),
        }
    }

    fn console_crashes(&mut self) {
        if !self.console.is_up {
            return;
        }
        self.watch.note(self.now_ms, || "the console is killed".to_owned());
        self.console.is_up = false;
        self.vanishes(Who::Console, false);
        let wait_ms = self.weather.restart_ms();
        self.after(wait_ms, Event::ConsoleStarts);
    }

    fn clock_jumps(&mut self, who: Who) {
        let far = if permille(200) { 40 * 3_600_000 } else { 2 * 3_600_000 };
        match who {
            Who::Machine(machine) => {
                // A machine without a battery stands at the beginning of time.
                let off_ms = if permille(100) { BUILD_MS / 2 - self.now_ms } else { between(-far, far) };
                self.machines[machine].clock_off_ms = off_ms;
            }
            // What a console does whose clock is wrong by days nobody can mend but its operator.
            Who::Console => {
                self.console.clock_off_ms = between(-3_600_000, 3_600_000);
                self.console_ahead_ms = self.console_ahead_ms.max(self.console.clock_off_ms);
            }
        }
        self.watch.note(self.now_ms, || format!("the clock of {who:?} jumps"));
    }

    /// Block by block, while it runs or not; the copy is started somewhere else.
    fn clone_host(&mut self, machine: usize) {
        let index = self.machines.len();
        let of = &self.machines[machine];
        let (host, disk) = (of.host, of.disk.cloned());
        let mut twin = Machine::new(index, host, disk);
        (twin.observed, twin.label) = (of.observed.clone(), of.label + 1_000);
        self.watch.note(self.now_ms, || format!("machine {index} is a clone of {machine}"));
        self.machines.push(twin);
        self.twins = true;
        self.after(between(100, 60_000), Event::Starts(index));
    }

    /// The disk is lost; the host has joined anew, with its id.
    fn wipe(&mut self, machine: usize) {
        self.machines[machine].loses_power();
        self.agent_crashes(machine, permille(500));
        self.watch.note(self.now_ms, || format!("the disk of machine {machine} is lost"));
        let machine = &mut self.machines[machine];
        machine.disk = Disk::default();
        machine.programs.clear();
        machine.observed.clear();
        self.wiped.insert(machine.host, self.now_ms);
        self.watch.rollout.forget(machine.host);
    }

    /// Off for days. Nobody else is there meanwhile: the others would only tell the time.
    fn away(&mut self, machine: usize) {
        for other in 0..self.machines.len() {
            self.agent_crashes(other, permille(500));
            if other != machine {
                self.machines[other].is_gone = true;
            }
        }
        let away_ms = between(2, 8) * 86_400_000 + between(0, 3_600_000);
        self.machines[machine].is_gone = true;
        self.back = Some((machine, self.now_ms + away_ms));
    }

    /// Somebody who owns the broker says again what the console once said, wherever he likes; what he has kept back until it
    /// expired does most harm.
    fn replay(&mut self) {
        let kept_back = |message: &&Message| match &message.body {
            Body::Signed(signed) => match &signed.order {
                Order::Command(command) => command.expires_ms < self.now_ms && !self.watch.took_effect(command.id),
                _ => false,
            },
            Body::Bytes(_) => false,
        };
        let expired: Vec<&Message> = self.recorded.iter().filter(kept_back).collect();
        let among = if permille(500) && !expired.is_empty() { expired } else { self.recorded.iter().collect() };
        let Some(message) = among.get(usize::try_from(below(among.len() as u64)).unwrap_or_default()) else { return };
        let message = (*message).clone();
        let host = pick(&self.hosts);
        let topic = match (&message.topic, below(4)) {
            (_, 0) => Topic::CommandAll(host.slot()),
            (Topic::Host(_, HostTopic::Ack), 1) => Topic::Host(host, HostTopic::Ack),
            (_, 1) => Topic::Host(host, HostTopic::Command),
            (topic, _) => topic.clone(),
        };
        self.watch.note(self.now_ms, || format!("replayed on {topic}: {}", short(&message.body)));
        self.publish(&Message::new(topic, message.body), false);
    }

    /// Somebody without the console's key makes something up.
    fn forge(&mut self, machine: usize) {
        let host = self.machines[machine].host;
        let order = match below(4) {
            0 => {
                let keys = self.machines[machine].disk.read(|tables| tables.outbox.keys().copied().collect());
                Order::Ack(muster_topics::ack::Ack {
                    v: V1,
                    host,
                    issued_ms: self.now_ms + 1_000,
                    reports: keys,
                    heartbeat: None,
                    metrics: Vec::new(),
                    alerts: Vec::new(),
                    tasks: Vec::new(),
                    lives: None,
                })
            }
            2 => Order::Head(muster_topics::desired::DesiredHead {
                v: V1,
                host,
                mark: muster_topics::desired::DesiredMark { epoch: 9, generation: 9 },
                issued_ms: self.now_ms,
                digest: muster_topics::name::Digest::of(b"{\"v\":1}"),
                size_bytes: 7,
            }),
            1 => Order::Refresh(Refresh { v: V1, issued_ms: self.now_ms + 1, within_ms: 0 }),
            _ => Order::Command(self.command(Target::All, self.now_ms, 600_000)),
        };
        let topic = if permille(500) { HostTopic::Command } else { HostTopic::Ack };
        let body = self.seal.sign(order, true);
        self.publish(&Message::new(Topic::Host(host, topic), body), false);
    }

    /// An operator wants something.
    fn order(&mut self) {
        let target = self.target();
        let lifetime_ms = pick(&[3_000, 20_000, 60_000, 600_000, 600_000, 3_600_000, 2 * 86_400_000]);
        self.submit(target, lifetime_ms, permille(30));
    }

    pub(super) fn target(&self) -> Target {
        match below(4) {
            0 => Target::All,
            1 => Target::Hosts(self.hosts.clone()),
            _ => Target::Hosts(vec![pick(&self.hosts)]),
        }
    }

    pub(super) fn submit(&mut self, target: Target, lifetime_ms: Millis, is_killed: bool) -> Option<CommandId> {
        if !self.console.is_up {
            return None;
        }
        let issued_ms = self.now_ms + self.console.clock_off_ms;
        clock::pretended::set(Some(issued_ms));
        let command = self.command(target, issued_ms, lifetime_ms);
        let (id, life) = (command.id, self.console.life);
        let hosts: Vec<HostId> = match &command.target {
            Target::Hosts(hosts) => hosts.clone(),
            _ => self.hosts.clone(),
        };
        self.issued.push(id);
        self.with_console(life, |console, around| console.submit(command, &hosts, is_killed, around));
        if is_killed {
            self.console_crashes();
        }
        Some(id)
    }

    fn command(&self, target: Target, issued_ms: Millis, lifetime_ms: Millis) -> Command {
        let unit = || -> UnitName { pick(&["default/a", "default/b", "default/c"]).parse().unwrap() };
        let verb = match below(12) {
            0..5 => Verb::Exec(Exec::new(vec!["true".to_owned()], 600_000)),
            5..7 => Verb::UnitRun { unit: unit() },
            7 => Verb::UnitStop { unit: unit() },
            8 => Verb::UnitRm { unit: unit() },
            // Every simulated host forbids it.
            9 => Verb::UnitFreeze { unit: unit() },
            10 => Verb::UnitCommand(Forward {
                units: vec![unit()],
                name: "level".to_owned(),
                args: Default::default(),
                timeout_ms: 60_000,
            }),
            _ => match self.issued.last() {
                Some(last) => Verb::Cancel { command: *last },
                None => Verb::Exec(Exec::new(vec!["true".to_owned()], 600_000)),
            },
        };
        let (id, asked_by) = (CommandId(uuid()), Asker::admin(Name::admin()));
        let expires_ms = issued_ms + lifetime_ms;
        Command { v: V1, id, target, issued_ms, expires_ms, asked_by, realms: Vec::new(), verb, sealed: None }
    }

    /// All is well from now on, but for who is dead.
    pub(super) fn clear_up(&mut self) {
        self.watch.note(self.now_ms, || "from here on all is well".to_owned());
        self.weather = Weather { keeps_from_wildcards: self.weather.keeps_from_wildcards, ..Weather::default() };
        self.console.clock_off_ms = 0;
        self.console.fuse = false;
        for who in std::mem::take(&mut self.stalled).into_keys() {
            // Its network heals, and what was said through it is lost.
            self.cut(who);
        }
        if self.machines.iter().any(|machine| machine.is_gone) {
            // A last will that a broker did not bring is found out when the roll is called.
            self.cut(Who::Console);
        }
        self.remove_twins();
        for index in 0..self.machines.len() {
            self.machines[index].clock_off_ms = 0;
            self.machines[index].disk.set_fuse(None);
            self.after(between(0, 1_000), Event::Starts(index));
        }
        self.after(between(0, 1_000), Event::ConsoleStarts);
        if !self.broker.is_up {
            self.after(0, Event::BrokerStarts);
        }
    }

    /// Somebody has read the log, and takes all but one of a host's machines away. If the others have worked meanwhile, the
    /// one that stays begins a new life, for theirs was a later one.
    fn remove_twins(&mut self) {
        if !self.twins {
            return;
        }
        for host in self.hosts.clone() {
            let of_host = |machine: &&Machine| machine.host == host;
            let mut indices: Vec<usize> = self.machines.iter().filter(of_host).map(|machine| machine.index).collect();
            if indices.len() < 2 {
                continue;
            }
            let stays = indices.remove(usize::try_from(below(indices.len() as u64)).unwrap_or_default());
            for index in indices {
                self.machines[index].is_gone = true;
                self.agent_stops(index);
            }
            self.after(keep_alive_ms(), Event::Act(Act::Change));
            self.agent_stops(stays);
        }
    }
}

fn short(body: &Body) -> String {
    match body {
        Body::Signed(signed) => match &signed.order {
            Order::Command(command) => format!("{}", command.id),
            Order::Ack(ack) => format!("{ack:?}"),
            Order::Refresh(refresh) => format!("{refresh:?}"),
            Order::Head(head) => format!("the head of document {}", head.mark),
            Order::Answer(answer) => format!("{:?}", answer.verdict),
        },
        Body::Bytes(bytes) => format!("{} bytes", Rc::as_ref(bytes).len()),
    }
}
