//! The loads: what the clients of a swarm say to one another while a row is measured.

use std::time::{Duration, Instant};

use crate::{swarm::Load, wire};

/// Without any message for this long, missing messages count as lost.
const QUIET: Duration = Duration::from_secs(2);

/// The same for a fleet that reconnects, when the broker has other work.
const QUIET_AFTER_STORM: Duration = Duration::from_secs(20);

/// One message to all subscribers, which counts arrivals.
pub(crate) struct FanOut {
    pub(crate) left: usize,
    pub(crate) acknowledged: bool,
}

impl Load for FanOut {
    fn packet(&mut self, _who: usize, first: u8, body: &[u8], out: &mut Vec<u8>) {
        match first >> 4 {
            3 => {
                self.left = self.left.saturating_sub(1);
                if let Some((_, Some(packet_id), _)) = wire::read_publish(first, body) {
                    out.extend_from_slice(&wire::puback(packet_id));
                }
            }
            4 => self.acknowledged = true,
            _ => {}
        }
    }

    fn done(&self) -> bool {
        self.left == 0 && self.acknowledged
    }
}

/// Publishers that send as fast as allowed, and one subscriber, client 0.
pub(crate) struct Stream {
    publishers: Vec<Publisher>,
    until: Instant,
    started: Instant,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    acknowledged: u64,
    last: Instant,
}

struct Publisher {
    /// One packet for QoS 1; for QoS 0, as many as one turn sends.
    packets: Vec<u8>,
    messages: u64,
    /// Position of the packet id, and the largest number of unacknowledged packets.
    qos1: Option<(usize, u64)>,
    next_id: u16,
    under_way: u64,
}

impl Publisher {
    fn new(topic: &str, window: Option<u64>, payload: &[u8]) -> Self {
        // Sending many packets at once costs the client almost nothing, and a broker reads in such pieces anyway.
        const PIECE_BYTES: usize = 64 * 1024;
        let packet = wire::publish(topic, window.map(|_| 1), false, payload);
        let messages = if window.is_some() { 1 } else { (PIECE_BYTES / packet.len()).max(1) };
        let qos1 = window.map(|window| (packet.len() - payload.len() - 2, window));
        Self { packets: packet.repeat(messages), messages: messages as u64, qos1, next_id: 1, under_way: 0 }
    }

    /// Appends what may be sent now; returns the number of messages.
    fn fill(&mut self, out: &mut Vec<u8>) -> u64 {
        let Some((offset, window)) = self.qos1 else {
            out.extend_from_slice(&self.packets);
            return self.messages;
        };
        let more = window - self.under_way;
        for _ in 0..more {
            self.packets[offset..offset + 2].copy_from_slice(&self.next_id.to_be_bytes());
            self.next_id = if self.next_id == 60_000 { 1 } else { self.next_id + 1 };
            out.extend_from_slice(&self.packets);
        }
        self.under_way = window;
        more
    }
}

impl Stream {
    /// A stream of a given duration; `window` is the largest number of unacknowledged packets with QoS 1.
    pub(crate) fn new(topics: &[String], window: Option<u64>, payload: &[u8], lasts: Duration) -> Self {
        let publishers = topics.iter().map(|topic| Publisher::new(topic, window, payload)).collect();
        let now = Instant::now();
        Self { publishers, until: now + lasts, started: now, sent: 0, received: 0, acknowledged: 0, last: now }
    }

    /// Received messages per second.
    pub(crate) fn rate(&self) -> f64 {
        self.received as f64 / (self.last - self.started).as_secs_f64()
    }

    fn fill(&mut self, who: usize, out: &mut Vec<u8>) {
        if Instant::now() < self.until {
            self.sent += self.publishers[who - 1].fill(out);
        }
    }
}

impl Load for Stream {
    fn packet(&mut self, who: usize, first: u8, body: &[u8], out: &mut Vec<u8>) {
        match first >> 4 {
            3 => {
                self.received += 1;
                if let Some((_, Some(packet_id), _)) = wire::read_publish(first, body) {
                    out.extend_from_slice(&wire::puback(packet_id));
                }
                // The clock is not read for each message.
                if self.received.is_multiple_of(64) || self.received == self.sent {
                    self.last = Instant::now();
                }
            }
            4 => {
                self.acknowledged += 1;
                let publisher = &mut self.publishers[who - 1];
                publisher.under_way = publisher.under_way.saturating_sub(1);
            }
            _ => {}
        }
    }

    fn room(&mut self, who: usize, out: &mut Vec<u8>) {
        if who > 0 {
            self.fill(who, out);
        }
    }

    fn done(&self) -> bool {
        let now = Instant::now();
        let all = self.received == self.sent && (self.publishers[0].qos1.is_none() || self.acknowledged == self.sent);
        now >= self.until && (all || now - self.last.max(self.until) > QUIET)
    }
}

/// One message with QoS 1, from client 1 to client 0.
pub(crate) struct Single {
    pub(crate) arrived: Option<Instant>,
    acknowledged: bool,
}

impl Single {
    pub(crate) fn new() -> Self {
        Self { arrived: None, acknowledged: false }
    }
}

impl Load for Single {
    fn packet(&mut self, _who: usize, first: u8, body: &[u8], out: &mut Vec<u8>) {
        match (first >> 4, wire::read_publish(first, body)) {
            (3, Some((_, packet_id, _))) => {
                self.arrived = Some(Instant::now());
                out.extend(packet_id.iter().flat_map(|packet_id| wire::puback(*packet_id)));
            }
            (4, _) => self.acknowledged = true,
            _ => {}
        }
    }

    fn done(&self) -> bool {
        self.arrived.is_some() && self.acknowledged
    }
}

/// Hosts that reconnect: each connects, subscribes, and publishes its presence. If client 0 subscribes, it must receive
/// them all.
pub(crate) struct Return {
    /// What each sends after its connection was accepted, starting with the client of this number.
    pub(crate) says: Vec<Vec<u8>>,
    pub(crate) first: usize,
    /// Number of received acknowledgements, of which each host expects two.
    pub(crate) answers: usize,
    /// Number of presences that client 0 has not received.
    pub(crate) unseen: usize,
    pub(crate) accepted: usize,
    pub(crate) refused: Option<Vec<u8>>,
    /// The time of the last message.
    pub(crate) last: Instant,
}

impl Return {
    /// Number of missing acknowledgements and presences.
    pub(crate) fn missing(&self) -> usize {
        2 * self.says.len() - self.answers + self.unseen
    }
}

impl Load for Return {
    fn packet(&mut self, who: usize, first: u8, body: &[u8], out: &mut Vec<u8>) {
        self.last = Instant::now();
        match first >> 4 {
            2 if body == [0, 0] => {
                self.accepted += 1;
                out.extend_from_slice(&self.says[who - self.first]);
            }
            2 => self.refused = Some(body.to_vec()),
            3 => {
                self.unseen = self.unseen.saturating_sub(1);
                if let Some((_, Some(packet_id), _)) = wire::read_publish(first, body) {
                    out.extend_from_slice(&wire::puback(packet_id));
                }
            }
            4 | 9 => self.answers += 1,
            _ => {}
        }
    }

    fn through(&self) -> usize {
        self.accepted
    }

    fn done(&self) -> bool {
        let is_all_over = || self.accepted == self.says.len() && self.last.elapsed() > QUIET_AFTER_STORM;
        self.refused.is_some() || self.missing() == 0 || is_all_over()
    }
}
