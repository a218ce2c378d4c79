//! Tracks the retained topics of units: which of them are out of date.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_topics::{
    Millis, V1,
    channel::ToldStats,
    name::UnitName,
    unit::{Desired, UnitReport},
};

use super::unit_state::UnitStates;

/// Removed units whose topics are cleared again on each connect, since retained topics are not acknowledged. A host
/// that has lost more units has bigger problems.
const GONE_MAX: usize = 1_000;

/// What to publish of units.
#[derive(Debug)]
pub struct UnitTopics {
    epoch: u64,
    seq: u64,
    states: UnitStates,
    stats: BTreeMap<UnitName, ToldStats>,
    gone: BTreeSet<UnitName>,
    due: BTreeSet<UnitName>,
    /// The number of the last report of each unit.
    told: BTreeMap<UnitName, u64>,
}

impl UnitTopics {
    pub(crate) fn new(epoch: u64) -> Self {
        let (states, stats) = (Arc::new(BTreeMap::new()), BTreeMap::new());
        Self { epoch, seq: 0, states, stats, gone: BTreeSet::new(), due: BTreeSet::new(), told: BTreeMap::new() }
    }

    /// Sets the units' states; differences are due.
    pub fn observe(&mut self, states: &UnitStates) {
        for (unit, state) in states.iter() {
            let same = self.states.get(unit).is_some_and(|told| {
                let told = (&told.desired, &told.observed, &told.hold, &told.owner, &told.pins);
                told == (&state.desired, &state.observed, &state.hold, &state.owner, &state.pins)
            });
            if !same {
                self.gone.remove(unit);
                self.due.insert(unit.clone());
            }
        }
        for unit in self.states.keys().filter(|unit| !states.contains_key(*unit)) {
            if self.gone.len() < GONE_MAX {
                self.gone.insert(unit.clone());
            }
            self.due.insert(unit.clone());
        }
        self.states = states.clone();
    }

    /// Sets the units' statistics; differences are due.
    pub fn observe_stats(&mut self, stats: BTreeMap<UnitName, ToldStats>) {
        let differs = |unit: &&UnitName| self.stats.get(*unit) != stats.get(*unit);
        self.due.extend(self.states.keys().filter(differs).cloned());
        self.stats = stats;
    }

    /// Makes everything due again, because the broker may have lost it.
    pub(crate) fn all(&mut self) {
        self.due = self.states.keys().chain(&self.gone).cloned().collect();
    }

    /// Whether something is due.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The number of the last report of each unit; `None` while something is due.
    pub(crate) fn told(&self) -> Option<&BTreeMap<UnitName, u64>> {
        (!self.is_due()).then_some(&self.told)
    }

    /// Returns the next topic to publish, with its payload: empty for a removed unit.
    pub(crate) fn next(&self, at_ms: Millis) -> Option<(UnitName, Vec<u8>)> {
        let unit = self.due.first()?;
        let report = self.states.get(unit).map(|state| UnitReport {
            v: V1,
            epoch: self.epoch,
            seq: self.seq + 1,
            at_ms,
            unit: unit.clone(),
            desired: Desired { spec: state.desired.spec.masked().into(), ..state.desired.clone() },
            observed: state.observed.clone(),
            hold: state.hold.clone(),
            owner: state.owner.clone(),
            pins: state.pins.clone(),
            stats: self.stats.get(unit).cloned(),
        });
        // A report consists of strings and numbers: it always serialises.
        Some((unit.clone(), report.and_then(|report| serde_json::to_vec(&report).ok()).unwrap_or_default()))
    }

    /// Handles that a report was published.
    pub(crate) fn record_sent(&mut self, unit: &UnitName) {
        self.seq += 1;
        self.due.remove(unit);
        match self.states.contains_key(unit) {
            true => self.told.insert(unit.clone(), self.seq),
            false => self.told.remove(unit),
        };
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        name::Digest,
        unit::{Desired, Observed, Phase, Run},
    };

    use super::*;
    use crate::unit_state::UnitState;

    fn state(phase: Phase) -> UnitState {
        let spec = format!(
            r#"{{"kind":"yuno","artifact":{{"sha256":"{}","size_bytes":7,"role":"hello","version":"1"}}}}"#,
            Digest::of(b"")
        );
        let spec = serde_json::from_str(&spec).unwrap();
        UnitState {
            desired: Desired { generation: 1, revision: Digest::of(b""), spec, run: Run::Running, frozen: false },
            observed: Observed { state: phase.into(), ..Observed::absent(0) },
            hold: None,
            owner: None,
            pins: muster_topics::snapshot::Pins::default(),
            slot: muster_rules::plan::Slot::First,
            process: None,
            spec: None,
        }
    }

    fn states(units: &[(&str, Phase)]) -> UnitStates {
        Arc::new(units.iter().map(|(name, phase)| (name.parse().unwrap(), Arc::new(state(*phase)))).collect())
    }

    /// Publishes all that is due: names, and phases of existing units.
    fn drain(topics: &mut UnitTopics) -> Vec<(String, u64, Option<Phase>)> {
        let mut said = vec![];
        while let Some((unit, payload)) = topics.next(0) {
            let report: Option<UnitReport> = (!payload.is_empty()).then(|| serde_json::from_slice(&payload).unwrap());
            topics.record_sent(&unit);
            let seq = report.as_ref().map_or(0, |report| report.seq);
            said.push((unit.to_string(), seq, report.map(|report| report.observed.phase())));
        }
        said
    }

    #[test]
    fn changed_units_are_due_and_all_on_connect() {
        let mut topics = UnitTopics::new(1);
        topics.observe(&states(&[("d/a", Phase::Absent), ("d/b", Phase::Running)]));
        let (a, b) = ("d/a".to_owned(), "d/b".to_owned());
        assert_eq!(drain(&mut topics), [(a.clone(), 1, Some(Phase::Absent)), (b.clone(), 2, Some(Phase::Running))]);
        topics.observe(&states(&[("d/a", Phase::Starting), ("d/b", Phase::Running)]));
        topics.observe(&states(&[("d/a", Phase::Running), ("d/b", Phase::Running)]));
        assert_eq!(drain(&mut topics), [(a.clone(), 3, Some(Phase::Running))]);
        topics.observe(&states(&[("d/a", Phase::Running)]));
        assert_eq!(drain(&mut topics), [(b.clone(), 0, None)]);
        topics.all();
        assert_eq!(drain(&mut topics), [(a, 5, Some(Phase::Running)), (b.clone(), 0, None)]);
        let told = |number: u64| -> BTreeMap<UnitName, ToldStats> {
            ["d/a", "d/x"]
                .map(|unit| (unit.parse().unwrap(), ToldStats::new(1, [("n".to_owned(), number.into())].into())))
                .into()
        };
        for (number, is_due) in [(1, true), (1, false), (2, true)] {
            topics.observe_stats(told(number));
            assert_eq!(topics.is_due(), is_due);
            if is_due {
                let report: UnitReport = serde_json::from_slice(&topics.next(0).unwrap().1).unwrap();
                assert_eq!(report.stats.unwrap().values["n"], number);
                topics.record_sent(&report.unit);
            }
        }
        // It exists again, so its topic is not cleared any more.
        topics.observe(&states(&[("d/b", Phase::Running)]));
        topics.all();
        assert!(drain(&mut topics).contains(&(b, 10, Some(Phase::Running))));
    }
}
