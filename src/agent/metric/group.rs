//! Groups of metrics, and which of them a sample takes. Pure.

use std::{collections::BTreeMap, time::Duration};

use muster_topics::catalogue::MetricGroup;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often a group of metrics is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number of seconds, or \"off\"")]
pub enum GroupPeriod {
    /// After so many seconds; 0 is with each sample.
    Seconds(u32),
    /// Never.
    Word(PeriodWord),
}

/// A period that is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeriodWord {
    /// Never.
    Off,
}

/// Which groups are measured, and how often. Those that are not named keep the period of
/// [the catalogue](MetricGroup::period_s).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChoice(BTreeMap<MetricGroup, GroupPeriod>);

impl GroupChoice {
    /// The catalogue's, with these in their place.
    #[must_use]
    pub fn new(chosen: BTreeMap<MetricGroup, GroupPeriod>) -> Self {
        Self(chosen)
    }

    /// The time between two measurements of a group; nothing if it is not measured.
    fn period(&self, group: MetricGroup) -> Option<Duration> {
        let seconds = match self.0.get(&group) {
            None => group.period_s(),
            Some(GroupPeriod::Seconds(seconds)) => *seconds,
            Some(GroupPeriod::Word(PeriodWord::Off)) => return None,
        };
        Some(Duration::from_secs(seconds.into()))
    }
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
            let has_passed =
                |period| last[group as usize].is_none_or(|last| now.saturating_sub(last) + grain >= period);
            let is_due = choice.period(group).is_some_and(has_passed);
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
        let off = GroupPeriod::Word(PeriodWord::Off);
        let choice = GroupChoice::new(BTreeMap::from([(MetricGroup::Temperature, off)]));
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
