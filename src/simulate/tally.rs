//! Statistics of a simulated fleet: a line now and then, and a summary at the end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_agent::link::TrafficMeter;
use serde::Serialize;

/// Counters. All of them only grow, except for the number of online hosts.
#[derive(Debug, Default)]
pub(super) struct FleetCounters {
    /// Hosts that are connected, not in conflict, and accept commands.
    pub(super) online: AtomicI64,
    /// Lives that ended on purpose.
    pub(super) left: AtomicU64,
    /// New commands.
    pub(super) commands: AtomicU64,
    /// Repeated commands.
    pub(super) repeated: AtomicU64,
    /// Refused commands.
    pub(super) refused: AtomicU64,
    /// Messages without a valid signature.
    pub(super) rejected: AtomicU64,
    /// Answers that were created.
    pub(super) outcomes: AtomicU64,
    /// Answers that the console has stored.
    pub(super) acknowledged: AtomicU64,
    /// Answers of an earlier run that the console did not have.
    pub(super) inherited: AtomicU64,
    /// Batches of measurements that were created.
    pub(super) batches: AtomicU64,
    /// Batches that the console has stored.
    pub(super) batches_acknowledged: AtomicU64,
    /// Batches that were dropped because the console accepted none for a long time.
    pub(super) batches_given_up: AtomicU64,
    /// Values in batches that were created.
    pub(super) values: AtomicU64,
    /// Values in batches that the console has stored.
    pub(super) values_acknowledged: AtomicU64,
    /// Values in dropped batches.
    pub(super) values_given_up: AtomicU64,
    /// Traffic of the connections.
    pub(super) meter: Arc<TrafficMeter>,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FleetSummary {
    /// Number of hosts.
    pub(super) hosts: u64,
    /// Time since the start.
    pub(super) elapsed_ms: u64,
    /// Time until all hosts were online; `None` if they never were.
    pub(super) all_online_ms: Option<u64>,
    /// Hosts that are online.
    pub(super) online: u64,
    /// Connections that were established.
    pub(super) connects: u64,
    /// How often a host left on purpose.
    pub(super) left: u64,
    /// New commands.
    pub(super) commands: u64,
    /// Repeated commands.
    pub(super) repeated: u64,
    /// Refused commands.
    pub(super) refused: u64,
    /// Messages without a valid signature.
    pub(super) rejected: u64,
    /// Answers that were created.
    pub(super) outcomes: u64,
    /// Answers that the console has stored.
    pub(super) acknowledged: u64,
    /// Answers that wait for the console.
    pub(super) waiting: u64,
    /// Batches of measurements that were created.
    pub(super) batches: u64,
    /// Batches that the console has stored.
    pub(super) batches_acknowledged: u64,
    /// Batches that wait for the console.
    pub(super) batches_waiting: u64,
    /// Values in batches that were created.
    pub(super) values: u64,
    /// Values in batches that the console has stored.
    pub(super) values_acknowledged: u64,
    /// Values in batches that were dropped because the console accepted none for a long time.
    pub(super) values_given_up: u64,
    /// Commands that took effect on a host more than once: if there is one, a promise is broken.
    pub(super) twice: u64,
    /// Received bytes of MQTT, without TLS and TCP.
    pub(super) in_bytes: u64,
    /// Sent bytes of MQTT.
    pub(super) out_bytes: u64,
}

impl FleetCounters {
    /// The current summary.
    pub(super) fn summary(&self, hosts: u64, began: Instant, all_online: Option<Duration>) -> FleetSummary {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (outcomes, acknowledged) = (get(&self.outcomes), get(&self.acknowledged));
        let (batches, batches_acknowledged) = (get(&self.batches), get(&self.batches_acknowledged));
        FleetSummary {
            hosts,
            elapsed_ms: millis(began.elapsed()),
            all_online_ms: all_online.map(millis),
            online: self.online(),
            connects: get(&self.meter.connects),
            left: get(&self.left),
            commands: get(&self.commands),
            repeated: get(&self.repeated),
            refused: get(&self.refused),
            rejected: get(&self.rejected),
            outcomes,
            acknowledged,
            waiting: (outcomes + get(&self.inherited)).saturating_sub(acknowledged),
            batches,
            batches_acknowledged,
            batches_waiting: batches.saturating_sub(batches_acknowledged + get(&self.batches_given_up)),
            values: get(&self.values),
            values_acknowledged: get(&self.values_acknowledged),
            values_given_up: get(&self.values_given_up),
            twice: 0,
            in_bytes: get(&self.meter.in_bytes),
            out_bytes: get(&self.meter.out_bytes),
        }
    }

    /// Number of online hosts.
    pub(super) fn online(&self) -> u64 {
        u64::try_from(self.online.load(Ordering::Relaxed)).unwrap_or_default()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl FleetSummary {
    /// One line of progress, with the traffic since `before`.
    pub(super) fn line(&self, before: Option<&Self>) -> String {
        let (in_bytes, out_bytes) = before.map_or((0, 0), |before| (before.in_bytes, before.out_bytes));
        let measured = match self.batches {
            0 => String::new(),
            batches => format!("  batches {batches}, {} waiting", self.batches_waiting),
        };
        format!(
            "{:>6} s  online {}/{}  commands {}  outcomes {}  waiting {}  in {}  out {}  connects {}{measured}",
            self.elapsed_ms / 1000,
            self.online,
            self.hosts,
            self.commands,
            self.outcomes,
            self.waiting,
            muster_topics::size::print(self.in_bytes.saturating_sub(in_bytes)),
            muster_topics::size::print(self.out_bytes.saturating_sub(out_bytes)),
            self.connects,
        )
    }

    /// The complete summary, for people.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let all = match self.all_online_ms {
            Some(ms) => format!("{}, all of them online after {:.1} s", self.hosts, ms as f64 / 1000.0),
            None => format!("{}, of which {} were online at the end", self.hosts, self.online),
        };
        let mut lines = vec![
            ("hosts", all),
            ("time", format!("{} s", self.elapsed_ms / 1000)),
            ("connections", format!("{}, and hosts left {} times", self.connects, self.left)),
            (
                "commands",
                format!(
                    "{}, of which {} were refused; {} came again",
                    self.commands + self.refused,
                    self.refused,
                    self.repeated
                ),
            ),
            (
                "outcomes",
                format!("{} made, {} known to the console, {} waiting", self.outcomes, self.acknowledged, self.waiting),
            ),
            ("rejected", format!("{} messages without a good signature", self.rejected)),
            ("done twice", self.twice.to_string()),
            ("MQTT in", muster_topics::size::print(self.in_bytes)),
            ("MQTT out", muster_topics::size::print(self.out_bytes)),
        ];
        if self.batches > 0 {
            let known = format!("{} known to the console", self.values_acknowledged);
            let given_up = match self.values_given_up {
                0 => String::new(),
                values => format!("; {values} values were dropped"),
            };
            let (batches, waiting) = (self.batches, self.batches_waiting);
            let text =
                format!("{} values in {batches} batches, {known}, {waiting} batches waiting{given_up}", self.values);
            lines.push(("measured", text));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_what_was_made_and_left_and_is_not_known() {
        let tally = FleetCounters::default();
        tally.outcomes.store(5, Ordering::Relaxed);
        tally.inherited.store(2, Ordering::Relaxed);
        tally.acknowledged.store(6, Ordering::Relaxed);
        // A goodbye may be counted before the hello, by another thread.
        tally.online.store(-1, Ordering::Relaxed);
        let summary = tally.summary(10, Instant::now(), None);
        assert_eq!((summary.waiting, summary.online), (1, 0));
        // An acknowledgement may arrive twice.
        tally.acknowledged.store(9, Ordering::Relaxed);
        assert_eq!(tally.summary(10, Instant::now(), None).waiting, 0);
    }

    #[test]
    fn a_line_tells_what_came_since_the_last() {
        let tally = FleetCounters::default();
        let first = tally.summary(10, Instant::now(), None);
        tally.meter.in_bytes.store(123_456, Ordering::Relaxed);
        let second = tally.summary(10, Instant::now(), Some(Duration::from_millis(1_500)));
        assert!(second.line(Some(&first)).contains("in 121 KiB  out 0 B"), "{}", second.line(Some(&first)));
        assert!(second.line(Some(&second)).contains("in 0 B"));
        assert!(second.lines()[0].1.contains("after 1.5 s"));
    }
}
