//! Limits on everything that a client could make the broker hold or wait for, as they follow from its sizes.

use std::time::Duration;

use muster_guard::PlaceLimits as Places;
use serde::{Deserialize, Serialize};

use crate::sizes::BrokerSizes;

/// How long a handshake or a CONNECT may take when another connection needs its place: three round trips over a
/// satellite link. At a hundred new ones a second, three hundred places fill.
const GRACE: Duration = Duration::from_secs(3);

/// All limits of the broker. They follow from [`BrokerSizes`], and each says why it is what it is at the usual sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerLimits {
    /// Connected clients. A process may usually open 20,000 files, and a connection with TLS takes some 10 KB; beyond
    /// ten thousand hosts a cluster is needed, not a higher number here.
    pub connections_max: usize,
    /// Connections of one identity. An agent and a console have one, and for a moment two while they reconnect; an
    /// operator may have a few tools open. A stolen certificate cannot take all of `connections_max`.
    pub connections_per_identity_max: usize,
    /// Unauthenticated connections of each listener. When more arrive, the one that has been silent for longest is
    /// closed, then one whose handshake has taken longer than three seconds. While all are busy more wait in the
    /// kernel's backlog, so that ten thousand hosts that come back at once are served in turn. A handshake takes some
    /// 20 KB, so strangers cannot take more than 10 MB of each listener.
    pub handshakes_max: usize,
    /// How long a TLS handshake may take: three round trips over a satellite link, with room for a busy processor.
    pub handshake_timeout_ms: u64,
    /// How long a client may take from the end of the handshake to its CONNECT, which it can send at once.
    pub connect_timeout_ms: u64,
    /// The longest keep-alive. A longer one, or 0 ("never check"), counts as this, so that a connection whose other end
    /// has vanished is noticed in time.
    pub keep_alive_max_s: u16,
    /// How long a client may read no byte of its pending output before it is disconnected.
    pub write_timeout_ms: u64,
    /// How long a client may acknowledge no message before it is disconnected: it would keep its window full, and fall
    /// behind, forever.
    pub ack_timeout_ms: u64,
    /// The largest packet that is accepted from a client. Parties of the contract send at most 64 KiB of payload; four
    /// times that leaves room for others.
    pub packet_max_bytes: usize,
    /// Bytes that the clients of one identity may send in a second; a second's worth may come at once. 0 is no limit.
    /// It keeps a faulty host from using the whole broker, which distributes some 100 MB/s.
    pub bytes_per_second_per_identity: u64,
    /// The longest topic or filter, in bytes. The contract's longest has 200.
    pub topic_max_bytes: usize,
    /// Levels of a topic or filter. The contract has at most six, and a prefix of a few.
    pub topic_levels_max: usize,
    /// Topic aliases of an MQTT 5 client, which the broker remembers.
    pub topic_aliases_max: u16,
    /// Unacknowledged messages to a client. With a round trip of 50 ms it allows 10,000 messages a second.
    pub inflight_max: u16,
    /// Subscriptions of one session, and so the filters of one SUBSCRIBE that are processed. An agent has eight, a
    /// console five.
    pub subscriptions_max: usize,
    /// Subscriptions of all sessions of one identity: four sessions with the maximum each.
    pub subscriptions_per_identity_max: usize,
    /// What may wait for a host's session, in bytes: a few dozen commands of the largest size. A client that falls
    /// further behind loses messages of QoS 0, or is disconnected.
    pub queue_host_max_bytes: usize,
    /// What may wait for any other session. A console reads from every host at once: this is some 30,000 metric
    /// batches, ten seconds of a fleet that comes back.
    pub queue_max_bytes: usize,
    /// What may wait for all sessions of one host, including what its connections have taken and not sent. Above it
    /// each may have 32 KiB. While a host reconnects it has two sessions, each of which may fill its queue.
    pub queues_host_max_bytes: usize,
    /// The same for any other identity: a queue, and as much again taken by its connection.
    pub queues_identity_max_bytes: usize,
    /// What may wait for all sessions together, each message counted once. Above it each may have 32 KiB, which ten
    /// thousand hosts can have. It is the maximum of eight identities.
    pub queues_max_bytes: usize,
    /// Messages between their publishers and their subscribers' queues, in bytes. Further publishers wait; the router
    /// keeps a log of four times as much.
    pub intake_max_bytes: usize,
    /// Stored sessions of disconnected clients. Agents and consoles have none, so this is for other tools.
    pub sessions_asleep_max: usize,
    /// How long the session of a disconnected client is kept at most. It is in memory, so a day is long.
    pub session_expiry_max_s: u32,
    /// Retained messages: presence, desired state and eight units of each of ten thousand hosts. Beyond it, and beyond
    /// each of the following limits, a message is refused, and the earlier one stays. In any case a host may have 32
    /// messages and 16 KiB.
    pub retained_max: usize,
    /// Bytes of retained messages, topics and payloads: about 600 bytes for each of `retained_max`.
    pub retained_max_bytes: usize,
    /// Retained messages of one host: an agent has at most its presence, 256 units and 64 alerts; this is half as many
    /// again.
    pub retained_host_max: usize,
    /// Their bytes: 4 KiB for each of `retained_host_max`. It takes 32 hosts to fill `retained_max_bytes`.
    pub retained_host_max_bytes: usize,
    /// Retained messages that consoles may publish, desired state above all: half, so that the other half is for hosts.
    pub retained_console_max: usize,
    /// Their bytes, likewise.
    pub retained_console_max_bytes: usize,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        BrokerSizes::default().possible_limits()
    }
}

impl BrokerLimits {
    /// Returns the places of a listener for unauthenticated connections. A quarter of them is one address's share.
    pub(crate) fn strangers(&self) -> Places {
        Places {
            places: self.handshakes_max,
            share: (self.handshakes_max / 4).max(1),
            // A fleet may come from one address, and each handshake takes seconds at most.
            origin_max: usize::MAX,
            grace: GRACE,
        }
    }

    pub(crate) fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.handshake_timeout_ms)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.write_timeout_ms)
    }

    pub(crate) fn ack_timeout(&self) -> Duration {
        Duration::from_millis(self.ack_timeout_ms)
    }

    /// Returns how long a client with this keep-alive may be silent: one and a half times that, by the standard.
    pub(crate) fn silence(&self, keep_alive_s: u16) -> Duration {
        let asked = if keep_alive_s == 0 { self.keep_alive_max_s } else { keep_alive_s.min(self.keep_alive_max_s) };
        Duration::from_millis(u64::from(asked) * 1_500)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keep_alive_is_stretched_and_bounded() {
        let limits = BrokerLimits { keep_alive_max_s: 100, ..BrokerLimits::default() };
        for (asked, silence_ms) in [(1, 1_500), (60, 90_000), (100, 150_000), (101, 150_000), (0, 150_000)] {
            assert_eq!(limits.silence(asked), Duration::from_millis(silence_ms), "{asked}");
        }
    }
}
