//! Readings of one process or cgroup, whichever kind of unit it belongs to.

use muster_topics::metric::Point;

use super::{
    point_writer::bytes,
    procfs::{CpuTicks, ProcReader, ProcessStat},
    unit::{process, tick_us},
};

/// `/proc/<pid>/cgroup` has a path for each of at most 14 hierarchies.
pub(super) const CGROUP_MAX_BYTES: usize = 16 * 1024;

/// The time of all processors, of which units' usage is a share.
#[derive(Debug)]
pub(super) struct HostTime {
    pub(super) tick_us: u64,
    pub(super) last: Option<CpuTicks>,
}

impl HostTime {
    pub(super) fn new() -> Self {
        Self { tick_us: tick_us(), last: None }
    }

    /// Returns the time since the last call, in microseconds; `None` the first time. `now` is the total so far.
    pub(super) fn passed_us(&mut self, now: Option<CpuTicks>) -> Option<u64> {
        let last = std::mem::replace(&mut self.last, now);
        let ticks = now.zip(last).map(|(now, last)| now.since(last).total()).filter(|ticks| *ticks > 0)?;
        Some(ticks.saturating_mul(self.tick_us))
    }
}

/// Adds bytes received and sent by a network.
pub(super) fn network_point(point: Point, [received, sent]: [u64; 2]) -> Point {
    bytes(point, &[("receive_bytes_total", received), ("transmit_bytes_total", sent)])
}

/// Reads a process, if its number still belongs to it.
pub(super) fn same_process(reader: &mut ProcReader, (pid, start_ticks): (i32, u64)) -> Option<ProcessStat> {
    process(reader, &pid.to_string()).filter(|process| process.start_ticks == start_ticks)
}
