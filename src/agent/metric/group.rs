//! Groups of metrics, and which of them a sample takes. Pure.

use std::time::Duration;

use muster_topics::catalogue::MetricGroup;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often groups are measured, in seconds; 0 is with each sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GroupPeriods {
    /// All processors together, by mode.
    pub cpu: u32,
    /// Each processor.
    pub cores: u32,
    /// The load.
    pub load: u32,
    /// How long tasks waited for processors, memory or disks.
    pub pressure: u32,
    /// Memory and swap.
    pub memory: u32,
    /// File systems: bytes and inodes.
    pub disks: u32,
    /// Reads and writes of disks.
    pub disk_io: u32,
    /// Bytes that interfaces received and sent.
    pub network: u32,
    /// Packets, errors and drops of interfaces.
    pub packets: u32,
    /// The warmest sensor.
    pub temperature: u32,
    /// The time since boot.
    pub uptime: u32,
    /// The clock's offset.
    pub clock: u32,
    /// Open files, processes, local ports and tracked connections, with their limits.
    pub resources: u32,
    /// Processor time and memory of units, and of other containers.
    pub units: u32,
    /// Limits, disks, processes and waits of units.
    pub unit_details: u32,
    /// Statistics that yunos report.
    pub stats: u32,
    /// The agent itself.
    pub agent: u32,
}

impl Default for GroupPeriods {
    /// As [the catalogue](MetricGroup::period_s) says.
    fn default() -> Self {
        Self {
            cpu: MetricGroup::Cpu.period_s(),
            cores: MetricGroup::Cores.period_s(),
            load: MetricGroup::Load.period_s(),
            pressure: MetricGroup::Pressure.period_s(),
            memory: MetricGroup::Memory.period_s(),
            disks: MetricGroup::Disks.period_s(),
            disk_io: MetricGroup::DiskIo.period_s(),
            network: MetricGroup::Network.period_s(),
            packets: MetricGroup::Packets.period_s(),
            temperature: MetricGroup::Temperature.period_s(),
            uptime: MetricGroup::Uptime.period_s(),
            clock: MetricGroup::Clock.period_s(),
            resources: MetricGroup::Resources.period_s(),
            units: MetricGroup::Units.period_s(),
            unit_details: MetricGroup::UnitDetails.period_s(),
            stats: MetricGroup::Stats.period_s(),
            agent: MetricGroup::Agent.period_s(),
        }
    }
}

impl GroupPeriods {
    fn of(&self, group: MetricGroup) -> Duration {
        let seconds = match group {
            MetricGroup::Cpu => self.cpu,
            MetricGroup::Cores => self.cores,
            MetricGroup::Load => self.load,
            MetricGroup::Pressure => self.pressure,
            MetricGroup::Memory => self.memory,
            MetricGroup::Disks => self.disks,
            MetricGroup::DiskIo => self.disk_io,
            MetricGroup::Network => self.network,
            MetricGroup::Packets => self.packets,
            MetricGroup::Temperature => self.temperature,
            MetricGroup::Uptime => self.uptime,
            MetricGroup::Clock => self.clock,
            MetricGroup::Resources => self.resources,
            MetricGroup::Units => self.units,
            MetricGroup::UnitDetails => self.unit_details,
            MetricGroup::Stats => self.stats,
            MetricGroup::Agent => self.agent,
        };
        Duration::from_secs(seconds.into())
    }
}

/// Which groups are measured, and how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChoice {
    /// How often.
    pub periods: GroupPeriods,
    /// Groups that are not measured.
    pub off: Vec<MetricGroup>,
}

/// The groups of one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DueGroups([bool; MetricGroup::ALL.len()]);

impl DueGroups {
    /// All groups.
    #[cfg(test)]
    pub(super) const ALL: Self = Self([true; MetricGroup::ALL.len()]);

    pub(super) fn has(self, group: MetricGroup) -> bool {
        self.0[group as usize]
    }

    #[cfg(test)]
    pub(super) fn only(groups: &[MetricGroup]) -> Self {
        Self(MetricGroup::ALL.map(|group| groups.contains(&group)))
    }
}

/// The schedule of groups.
#[derive(Debug)]
pub(super) struct GroupSchedule {
    choice: GroupChoice,
    sample: Duration,
    /// When each was measured last.
    last: [Option<Duration>; MetricGroup::ALL.len()],
}

impl GroupSchedule {
    pub(super) fn new(choice: GroupChoice, sample: Duration) -> Self {
        Self { choice, sample, last: [None; MetricGroup::ALL.len()] }
    }

    /// Returns the groups to measure now, and marks them as measured. `now` is relative to any fixed time.
    pub(super) fn take(&mut self, now: Duration) -> DueGroups {
        // A sample comes a little early or late: half of the sampling period decides.
        let grain = self.sample / 2;
        let Self { choice, last, .. } = self;
        DueGroups(MetricGroup::ALL.map(|group| {
            let period = choice.periods.of(group);
            let is_due = last[group as usize].is_none_or(|last| now.saturating_sub(last) + grain >= period);
            let is_due = is_due && !choice.off.contains(&group);
            if is_due {
                last[group as usize] = Some(now);
            }
            is_due
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_own_periods() {
        let choice = GroupChoice { off: vec![MetricGroup::Temperature], ..GroupChoice::default() };
        let mut schedule = GroupSchedule::new(choice, Duration::from_secs(10));
        let mut counts = [0; MetricGroup::ALL.len()];
        // Ten minutes of samples that are up to a second early or late; the second one comes soon.
        for sample in 0..60u64 {
            let at_ms = if sample == 1 { 2_000 } else { sample * 10_000 + 1_000 * (sample % 3) };
            let due = schedule.take(Duration::from_millis(at_ms));
            if sample == 0 {
                let missing: Vec<_> = MetricGroup::ALL.into_iter().filter(|group| !due.has(*group)).collect();
                assert_eq!(missing, [MetricGroup::Temperature], "everything else is known at once");
            }
            for group in MetricGroup::ALL {
                counts[group as usize] += u32::from(due.has(group));
            }
        }
        let of = |group| counts[group as usize];
        assert_eq!((of(MetricGroup::Cpu), of(MetricGroup::Cores), of(MetricGroup::Temperature)), (60, 10, 0));
        assert_eq!((of(MetricGroup::DiskIo), of(MetricGroup::Clock)), (20, 3));
    }

    #[test]
    fn all_are_listed_in_their_order() {
        for (index, group) in MetricGroup::ALL.into_iter().enumerate() {
            assert_eq!(group as usize, index, "{group:?}");
        }
    }
}
