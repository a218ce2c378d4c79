//! Offsets of the hosts' clocks from the console's.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_rules::{
    clock::{self, ClockConsensus},
    time::BUILD_MS,
};
use muster_topics::{Millis, name::HostId};
use std::time::Duration;

/// How long a host's reported clock counts: agents send their digest at least this often.
const HEARD: Duration = Duration::from_secs(15 * 60);

/// How long the earliest report of a host's clock counts; later ones may only have been delayed more.
const EARLIEST: Duration = Duration::from_secs(120);

/// By how much the console's clock is ahead of each host's, by their heartbeats.
#[derive(Debug, Default)]
pub(super) struct HostClocks(pub(super) Mutex<HashMap<HostId, (Millis, Instant)>>);

impl HostClocks {
    /// Records a host's clock from a heartbeat.
    pub(super) fn note(&self, host: HostId, at_ms: Millis, now: Millis) {
        // Such a clock was never set.
        if at_ms < BUILD_MS {
            return;
        }
        let ahead_ms = now.saturating_sub(at_ms);
        let mut clocks = self.locked();
        let known = clocks.get(&host).filter(|(_, heard)| heard.elapsed() < EARLIEST);
        if known.is_none_or(|(known_ms, _)| ahead_ms < *known_ms) {
            clocks.insert(host, (ahead_ms, Instant::now()));
        }
    }

    /// Returns the consensus of the hosts.
    pub(super) fn consensus(&self) -> Option<ClockConsensus> {
        self.consensus_without(&HashSet::new())
    }

    /// Returns the consensus of all hosts but these.
    pub(super) fn consensus_without(&self, left_out: &HashSet<HostId>) -> Option<ClockConsensus> {
        let mut clocks = self.locked();
        clocks.retain(|_, (_, heard)| heard.elapsed() < HEARD);
        let others = clocks.iter().filter(|(host, _)| !left_out.contains(host));
        clock::consensus(&mut others.map(|(_, (ahead_ms, _))| *ahead_ms).collect::<Vec<_>>())
    }

    pub(super) fn clear(&self) {
        self.locked().clear();
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, HashMap<HostId, (Millis, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
