//! The network between machines, console and broker: connections that wait, break, stall, and lose messages.

use muster_topics::{
    Millis,
    topic::{HostTopic, Topic},
};
use uuid::Uuid;

use super::{Event, Who, World};
use crate::{
    agent::{Happens, Link},
    chaos::Act,
    console::Console,
    random::{between, permille},
    wire::{Body, ConnId, Incoming, Message, Packet},
};

/// Nothing gets through to a party.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    since_ms: Millis,
    until_ms: Millis,
}

/// A party is not heard, since a stall began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    who: Who,
    since_ms: Millis,
}

/// One end-to-end connection through the network.
#[derive(Debug)]
pub(super) struct Line {
    who: Who,
    /// Nothing overtakes what was sent before it.
    up_ms: Millis,
    /// Nor on the presence topic of a host on its way to that host.
    down_ms: Millis,
}

impl World {
    fn stall_of(&self, who: Who) -> Option<Stall> {
        self.stalled.get(&who).copied().filter(|stall| self.now_ms < stall.until_ms)
    }

    pub(super) fn is_stalled(&self, who: Who) -> bool {
        self.stall_of(who).is_some()
    }

    /// Whether nothing has got through ever since.
    pub(super) fn lasts(&self, Silence { who, since_ms }: Silence) -> bool {
        self.stall_of(who).is_some_and(|stall| stall.since_ms == since_ms)
    }

    /// Puts off what would go over a network that lets nothing through. True if it does.
    fn waits(&mut self, conn: ConnId, event: impl FnOnce() -> Event) -> bool {
        let Some(line) = self.lines.get(&conn) else { return false };
        let Some(Stall { until_ms, .. }) = self.stall_of(line.who) else { return false };
        if let Some(line) = self.lines.get_mut(&conn) {
            line.up_ms = line.up_ms.max(until_ms + 1);
            line.down_ms = line.down_ms.max(until_ms + 1);
        }
        self.at(until_ms + 1, event());
        true
    }

    pub(super) fn send(&mut self, conn: ConnId, packet: Packet) {
        let wait_ms = self.weather.up_ms();
        let at_ms = self.now_ms + wait_ms;
        let Some(line) = self.lines.get_mut(&conn) else { return };
        line.up_ms = line.up_ms.max(at_ms);
        let at_ms = line.up_ms;
        self.at(at_ms, Event::AtBroker(conn, packet));
    }

    pub(super) fn connect(&mut self, who: Who, life: u32) {
        let is_now = match who {
            Who::Machine(machine) => self.agent(machine, life).is_some_and(|agent| agent.link == Link::Waiting),
            Who::Console => self.console.is_up && self.console.life == life && self.console.conn.is_none(),
        };
        if !is_now {
            return;
        }
        if !self.broker.is_up || self.is_stalled(who) {
            let wait_ms = self.pretend(who, |world| match who {
                Who::Machine(machine) => world.machines[machine].agent.as_mut().unwrap().retry_ms(),
                Who::Console => world.console.retry_ms(),
            });
            return self.after(wait_ms, Event::Connect(who, life));
        }
        self.conns += 1;
        let conn = self.conns;
        self.lines.insert(conn, Line { who, up_ms: 0, down_ms: 0 });
        let packet = self.pretend(who, |world| match who {
            Who::Machine(machine) => world.machines[machine].agent.as_mut().unwrap().connect(conn),
            Who::Console => {
                world.console.connecting = Some(conn);
                Packet::Connect { client: Uuid::nil(), will: None }
            }
        });
        self.send(conn, packet);
    }

    pub(super) fn at_broker(&mut self, conn: ConnId, packet: Packet) {
        if self.waits(conn, || Event::AtBroker(conn, packet.clone())) {
            return;
        }
        if !self.broker.is_up {
            return self.bring(conn, Incoming::Closed, 0);
        }
        match packet {
            Packet::Connect { client, will } => {
                if let Some(old) = self.broker.connect(conn, client, will) {
                    self.break_session(old);
                }
                self.bring(conn, Incoming::ConnAck, 0);
            }
            _ if !self.broker.sessions.contains_key(&conn) => {}
            Packet::Subscribe(filters) => {
                for message in self.broker.subscribe(conn, filters) {
                    self.deliver(conn, message);
                }
            }
            Packet::Publish { message, retain } => self.publish(&message, retain),
            Packet::Disconnect => {
                self.broker.sessions.remove(&conn);
                self.lines.remove(&conn);
            }
        }
    }

    pub(crate) fn publish(&mut self, message: &Message, retain: bool) {
        if let (Topic::Host(_, HostTopic::Presence), Body::Bytes(said)) = (&message.topic, &message.body) {
            self.watch.note(self.now_ms, || format!("said of presence: {}", String::from_utf8_lossy(said)));
        }
        for conn in self.broker.publish(message, retain) {
            self.deliver(conn, message.clone());
        }
    }

    /// A message on its way to a client, which a broker may drop, double, delay and reorder, but for a host's own presence.
    fn deliver(&mut self, conn: ConnId, message: Message) {
        let Some(line) = self.lines.get(&conn) else { return };
        let own = matches!((line.who, &message.topic), (Who::Machine(_), Topic::Host(_, HostTopic::Presence)));
        if own {
            return self.bring(conn, Incoming::Message(message), 0);
        }
        if permille(self.weather.drops) {
            return self.watch.note(self.now_ms, || format!("dropped: {} for {:?}", message.topic, line.who));
        }
        if permille(self.weather.doubles) {
            let wait_ms = self.weather.doubled_ms();
            self.after(wait_ms, Event::AtClient(conn, Incoming::Message(message.clone())));
        }
        let wait_ms = self.weather.down_ms();
        self.bring(conn, Incoming::Message(message), wait_ms);
    }

    /// In order, unless it is delayed by so much more.
    fn bring(&mut self, conn: ConnId, incoming: Incoming, more_ms: Millis) {
        let wait_ms = between(1, 15) + more_ms;
        let at_ms = self.now_ms + wait_ms;
        let Some(line) = self.lines.get_mut(&conn) else { return };
        let at_ms = at_ms.max(line.down_ms);
        if more_ms == 0 {
            line.down_ms = at_ms;
        }
        self.at(at_ms, Event::AtClient(conn, incoming));
    }

    pub(super) fn at_client(&mut self, conn: ConnId, incoming: Incoming) {
        let Some(who) = self.lines.get(&conn).map(|line| line.who) else { return };
        if self.waits(conn, || Event::AtClient(conn, incoming.clone())) {
            return;
        }
        match (incoming, who) {
            (Incoming::Closed, _) => self.client_closed(conn),
            (Incoming::ConnAck, Who::Machine(machine)) => {
                if self.link_is(machine, Link::Connecting(conn)) {
                    self.tell_agent(machine, Happens::ConnAck(conn));
                }
            }
            (Incoming::Message(message), Who::Machine(machine)) => {
                if self.link_is(machine, Link::Up(conn)) {
                    self.tell_agent(machine, Happens::Message(message));
                }
            }
            (Incoming::ConnAck, Who::Console) => {
                if self.console.connecting == Some(conn) {
                    let life = self.console.life;
                    self.with_console(life, |console, around| console.up(conn, around));
                }
            }
            (Incoming::Message(message), Who::Console) => {
                if self.console.conn == Some(conn) {
                    let life = self.console.life;
                    self.with_console(life, |console, around| console.message(message, around));
                }
            }
        }
    }

    /// The broker ends a session that did not end in order: its last will is spoken.
    pub(crate) fn break_session(&mut self, conn: ConnId) {
        if let Some(session) = self.broker.sessions.remove(&conn) {
            if let Some(will) = session.will {
                self.publish(&will, true);
            }
            self.bring(conn, Incoming::Closed, 0);
        }
    }

    pub(super) fn client_closed(&mut self, conn: ConnId) {
        let Some(line) = self.lines.remove(&conn) else { return };
        match line.who {
            Who::Machine(machine) => {
                if self.link_is(machine, Link::Up(conn)) || self.link_is(machine, Link::Connecting(conn)) {
                    self.tell_agent(machine, Happens::Closed);
                }
            }
            Who::Console => {
                if self.console.conn == Some(conn) || self.console.connecting == Some(conn) {
                    let life = self.console.life;
                    self.with_console(life, Console::closed);
                }
            }
        }
    }

    /// Both ends see that a connection is gone.
    pub(crate) fn cut(&mut self, who: Who) {
        let conns: Vec<_> = self.lines.iter().filter(|(_, line)| line.who == who).map(|(conn, _)| *conn).collect();
        for conn in conns {
            self.break_session(conn);
            self.client_closed(conn);
        }
    }

    /// A party is there no more; its broker hears of it now, or finds out by its silence.
    pub(crate) fn vanishes(&mut self, who: Who, in_silence: bool) {
        let conns: Vec<_> = self.lines.iter().filter(|(_, line)| line.who == who).map(|(conn, _)| *conn).collect();
        for conn in conns {
            if in_silence {
                let wait_ms = keep_alive_ms() * 3 / 2;
                self.after(wait_ms, Event::Act(Act::SessionEnds(conn)));
            } else {
                self.break_session(conn);
            }
            self.lines.remove(&conn);
        }
    }

    /// For so long nothing gets through, and nobody is told.
    pub(crate) fn stall(&mut self, who: Who, for_ms: Millis) {
        self.watch.note(self.now_ms, || format!("{who:?} is parted from the broker for {for_ms} ms"));
        let now = Stall { since_ms: self.now_ms, until_ms: self.now_ms + for_ms };
        if let Some(before) = self.stall_of(who) {
            let until_ms = before.until_ms.max(now.until_ms);
            self.stalled.insert(who, Stall { until_ms, ..before });
            return;
        }
        self.stalled.insert(who, now);
        let silence = Silence { who, since_ms: now.since_ms };
        let conns: Vec<_> = self.lines.iter().filter(|(_, line)| line.who == who).map(|(conn, _)| *conn).collect();
        for conn in conns {
            self.after(keep_alive_ms() * 3 / 2, Event::BrokerGivesUp(conn, silence));
            self.after(keep_alive_ms() * 2, Event::ClientGivesUp(conn, silence));
        }
    }

    pub(crate) fn broker_crashes(&mut self, forgets: bool, down_ms: Millis) {
        self.watch.note(self.now_ms, || format!("the broker has ended for {down_ms} ms; it forgets: {forgets}"));
        for conn in self.broker.crash(forgets) {
            self.bring(conn, Incoming::Closed, 0);
        }
        self.after(down_ms, Event::BrokerStarts);
    }
}

pub(crate) fn keep_alive_ms() -> Millis {
    Millis::from(muster_agent::config::Config::default().keep_alive_s()) * 1000
}
