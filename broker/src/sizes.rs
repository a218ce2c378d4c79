//! How large a broker is: the few numbers that an operator sets. All limits follow from them, by [`BrokerSizes::limits`].
//!
//! **Invariant: a larger size lowers no limit.**

use crate::limits::BrokerLimits;

/// 1 MiB, in bytes.
const MIB: usize = 1024 * 1024;
/// Subscriptions of one session. An agent has eight, a console five.
const SUBSCRIPTIONS_MAX: usize = 64;

/// How large a broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerSizes {
    /// Connected clients.
    pub clients_max: usize,
    /// Connected clients of one identity.
    pub identity_clients_max: usize,
    /// What clients may make the broker hold, in bytes.
    pub memory_max_bytes: usize,
    /// How long a client may take for its TLS handshake, and then again for its CONNECT, in seconds.
    pub connect_timeout_s: u32,
}

impl Default for BrokerSizes {
    /// They suit a fleet of up to some thousand hosts on two cores.
    fn default() -> Self {
        Self {
            clients_max: 10_000,
            identity_clients_max: 8,
            memory_max_bytes: 512 * MIB,
            // Three round trips over a satellite link, with room for a busy processor.
            connect_timeout_s: 10,
        }
    }
}

/// A size that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("`{name}` must be {rule}")]
pub struct SizeError {
    /// Its name.
    pub name: &'static str,
    /// The rule for it.
    pub rule: String,
}

impl BrokerSizes {
    /// The least memory, in bytes: a host's queue then still takes a packet of the largest size.
    pub const MEMORY_MIN_BYTES: usize = 64 * MIB;
    /// The most memory, in bytes: more than machines have, and far from where sums of it overflow.
    pub const MEMORY_MAX_BYTES: usize = 1024 * 1024 * MIB;
    /// The most clients: more than one process can have.
    pub const CLIENTS_MAX: usize = 1_000_000;
    /// The memory that there must be for each client, in bytes: 10 KB of a connection with TLS, and a little that waits for it.
    pub const CLIENT_BYTES: usize = 16 * 1024;
    /// The longest time to connect, in seconds.
    pub const CONNECT_MAX_S: u32 = 3_600;

    /// Returns every size that cannot work.
    #[must_use]
    pub fn problems(&self) -> Vec<SizeError> {
        let &Self { clients_max, identity_clients_max, memory_max_bytes, connect_timeout_s } = self;
        let (clients, least, most) = (Self::CLIENTS_MAX, Self::MEMORY_MIN_BYTES, Self::MEMORY_MAX_BYTES);
        let rows = [
            ("clients_max", (1..=clients).contains(&clients_max), format!("from 1 to {clients}")),
            ("identity_clients_max", (1..=clients).contains(&identity_clients_max), format!("from 1 to {clients}")),
            ("memory_max_bytes", (least..=most).contains(&memory_max_bytes), format!("from {least} to {most}")),
            (
                "connect_timeout_s",
                (1..=Self::CONNECT_MAX_S).contains(&connect_timeout_s),
                format!("from 1 to {}", Self::CONNECT_MAX_S),
            ),
        ];
        let wrong = rows.into_iter().filter(|(_, is_possible, _)| !is_possible);
        let mut problems: Vec<_> = wrong.map(|(name, _, rule)| SizeError { name, rule }).collect();
        if problems.is_empty() && memory_max_bytes / Self::CLIENT_BYTES < clients_max {
            let rule = format!("at least {} for each of the {clients_max} of `clients_max`", Self::CLIENT_BYTES);
            problems.push(SizeError { name: "memory_max_bytes", rule });
        }
        problems
    }

    /// Returns the limits that follow.
    ///
    /// # Errors
    /// With the first size that cannot work.
    pub fn limits(&self) -> Result<BrokerLimits, SizeError> {
        match self.problems().into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(self.possible_limits()),
        }
    }

    /// The limits of sizes that can work.
    pub(crate) fn possible_limits(&self) -> BrokerLimits {
        let &Self { clients_max, identity_clients_max, memory_max_bytes, connect_timeout_s } = self;
        // A half waits for clients, an eighth is retained; the rest is for connections, handshakes and the router.
        let queues_max_bytes = memory_max_bytes / 2;
        let queue_host_max_bytes = queues_max_bytes / 128;
        let (retained_max, retained_max_bytes) = (10 * clients_max, memory_max_bytes / 8);
        let connect_timeout_ms = u64::from(connect_timeout_s) * 1_000;
        BrokerLimits {
            connections_max: clients_max,
            connections_per_identity_max: identity_clients_max,
            handshakes_max: clients_max.clamp(32, 512),
            handshake_timeout_ms: connect_timeout_ms,
            connect_timeout_ms,
            keep_alive_max_s: 3_600,
            write_timeout_ms: 30_000,
            ack_timeout_ms: 60_000,
            packet_max_bytes: 256 * 1024,
            bytes_per_second_per_identity: (2 * MIB * identity_clients_max) as u64,
            topic_max_bytes: 1024,
            topic_levels_max: 32,
            topic_aliases_max: 16,
            inflight_max: 512,
            subscriptions_max: SUBSCRIPTIONS_MAX,
            subscriptions_per_identity_max: (32 * identity_clients_max).max(SUBSCRIPTIONS_MAX),
            queue_host_max_bytes,
            queue_max_bytes: queues_max_bytes / 16,
            queues_host_max_bytes: 2 * queue_host_max_bytes,
            queues_identity_max_bytes: queues_max_bytes / 8,
            queues_max_bytes,
            intake_max_bytes: MIB,
            sessions_asleep_max: clients_max,
            session_expiry_max_s: 24 * 60 * 60,
            retained_max,
            retained_max_bytes,
            retained_host_max: 512,
            retained_host_max_bytes: retained_max_bytes / 32,
            retained_console_max: retained_max / 2,
            retained_console_max_bytes: retained_max_bytes / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that follow from sizes, by name.
    fn numbers(sizes: BrokerSizes) -> Vec<(&'static str, u64)> {
        let limits = sizes.limits().unwrap();
        let of = |number: usize| number as u64;
        vec![
            ("clients", of(limits.connections_max)),
            ("clients of an identity", of(limits.connections_per_identity_max)),
            ("handshakes", of(limits.handshakes_max)),
            ("time of a handshake", limits.handshake_timeout_ms),
            ("time to connect", limits.connect_timeout_ms),
            ("bytes a second", limits.bytes_per_second_per_identity),
            ("subscriptions of an identity", of(limits.subscriptions_per_identity_max)),
            ("queue of a host's session", of(limits.queue_host_max_bytes)),
            ("queue of another session", of(limits.queue_max_bytes)),
            ("queues of a host", of(limits.queues_host_max_bytes)),
            ("queues of another identity", of(limits.queues_identity_max_bytes)),
            ("queues", of(limits.queues_max_bytes)),
            ("sessions asleep", of(limits.sessions_asleep_max)),
            ("retained", of(limits.retained_max)),
            ("retained bytes", of(limits.retained_max_bytes)),
            ("retained bytes of a host", of(limits.retained_host_max_bytes)),
            ("retained of consoles", of(limits.retained_console_max)),
            ("retained bytes of consoles", of(limits.retained_console_max_bytes)),
        ]
    }

    #[test]
    fn usual_sizes_give_the_usual_limits() {
        let wanted = [
            10_000,
            8,
            512,
            10_000,
            10_000,
            16 << 20,
            256,
            2 << 20,
            16 << 20,
            4 << 20,
            32 << 20,
            256 << 20,
            10_000,
            100_000,
            64 << 20,
            2 << 20,
            50_000,
            32 << 20,
        ];
        let numbers = numbers(BrokerSizes::default());
        assert_eq!(numbers.iter().map(|(_, number)| *number).collect::<Vec<_>>(), wanted, "{numbers:?}");
    }

    #[test]
    fn larger_sizes_lower_no_limit() {
        let least = BrokerSizes {
            clients_max: 1,
            identity_clients_max: 1,
            memory_max_bytes: BrokerSizes::MEMORY_MIN_BYTES,
            connect_timeout_s: 1,
        };
        for step in 0..=14 {
            let below = BrokerSizes {
                clients_max: 1 << step.min(12),
                identity_clients_max: 1 << step,
                memory_max_bytes: BrokerSizes::MEMORY_MIN_BYTES << step,
                connect_timeout_s: 1 << step.min(11),
            };
            for above in [
                BrokerSizes { clients_max: below.clients_max.saturating_sub(1).max(1), ..below },
                BrokerSizes { identity_clients_max: (below.identity_clients_max / 2).max(1), ..below },
                BrokerSizes { connect_timeout_s: (below.connect_timeout_s / 2).max(1), ..below },
                least,
            ] {
                for ((name, smaller), (_, larger)) in numbers(above).into_iter().zip(numbers(below)) {
                    assert!(smaller <= larger, "{name}: {smaller} of {above:?}, {larger} of {below:?}");
                }
            }
        }
    }

    #[test]
    fn least_memory_takes_every_packet() {
        let limits =
            BrokerSizes { memory_max_bytes: BrokerSizes::MEMORY_MIN_BYTES, clients_max: 100, ..Default::default() }
                .limits()
                .unwrap();
        assert!(limits.queue_host_max_bytes >= limits.packet_max_bytes, "{limits:?}");
        assert!(limits.retained_host_max_bytes >= limits.packet_max_bytes, "{limits:?}");
        assert!(limits.subscriptions_per_identity_max >= limits.subscriptions_max, "{limits:?}");
    }

    #[test]
    fn most_of_everything_does_not_overflow() {
        let limits = BrokerSizes {
            clients_max: BrokerSizes::CLIENTS_MAX,
            identity_clients_max: BrokerSizes::CLIENTS_MAX,
            memory_max_bytes: BrokerSizes::MEMORY_MAX_BYTES,
            connect_timeout_s: BrokerSizes::CONNECT_MAX_S,
        }
        .limits()
        .unwrap();
        assert_eq!(limits.retained_max, 10_000_000);
        assert_eq!(limits.handshakes_max, 512);
    }

    #[test]
    fn sizes_that_cannot_work_are_named() {
        let usual = BrokerSizes::default();
        for (sizes, names) in [
            (usual, &[][..]),
            (BrokerSizes { clients_max: 0, ..usual }, &["clients_max"]),
            (BrokerSizes { clients_max: 1_000_001, ..usual }, &["clients_max"]),
            (BrokerSizes { clients_max: 40_000, ..usual }, &["memory_max_bytes"]),
            (
                BrokerSizes { identity_clients_max: 0, connect_timeout_s: 0, ..usual },
                &["identity_clients_max", "connect_timeout_s"],
            ),
            (BrokerSizes { memory_max_bytes: 1 << 20, ..usual }, &["memory_max_bytes"]),
            (BrokerSizes { memory_max_bytes: usize::MAX, ..usual }, &["memory_max_bytes"]),
        ] {
            let found: Vec<_> = sizes.problems().iter().map(|problem| problem.name).collect();
            assert_eq!(found, names, "{sizes:?}");
            assert_eq!(sizes.limits().is_ok(), names.is_empty());
        }
    }
}
