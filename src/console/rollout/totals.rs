//! What the console measures of rollouts: of all present ones together, so that the number of series is bounded.

use std::collections::BTreeMap;

use muster_rules::rollout::state::{HostOutcome, RolloutPhase, RolloutState};
use muster_topics::desired::DeploymentName;

use super::Rollouts;

/// The words for phases, in the order in which they come.
const PHASES: [&str; 9] =
    ["running", "soaking", "approval", "paused", "completed", "cancelled", "rolled_back", "superseded", "failed"];

/// The word for hosts without an outcome.
const OPEN: &str = "none";

/// Counts over the present rollout of each deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolloutTotals {
    /// Rollouts in each phase; zeros, too.
    pub(crate) phases: BTreeMap<&'static str, u64>,
    /// Hosts with each outcome, and those without one; zeros, too.
    pub(crate) outcomes: BTreeMap<&'static str, u64>,
    /// Hosts that change now.
    pub(crate) in_flight: u64,
    /// Hosts that were changed, and are not verified since.
    pub(crate) unavailable: u64,
}

impl Default for RolloutTotals {
    fn default() -> Self {
        let outcomes = HostOutcome::ALL.into_iter().map(HostOutcome::word).chain([OPEN]);
        Self {
            phases: PHASES.into_iter().map(|word| (word, 0)).collect(),
            outcomes: outcomes.map(|word| (word, 0)).collect(),
            in_flight: 0,
            unavailable: 0,
        }
    }
}

impl RolloutTotals {
    fn add(&mut self, state: &RolloutState) {
        *self.phases.entry(state.phase.word()).or_default() += 1;
        for progress in state.hosts.values() {
            let outcome = progress.terminal();
            *self.outcomes.entry(outcome.map_or(OPEN, HostOutcome::word)).or_default() += 1;
            self.in_flight += u64::from(outcome.is_none() && progress.is_in_flight());
            self.unavailable += u64::from(progress.is_unavailable);
        }
    }
}

/// A rollout that waits for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldRollout {
    pub(crate) deployment: DeploymentName,
    pub(crate) version: u32,
    pub(crate) why: HeldWhy,
}

/// Why it waits for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeldWhy {
    /// It is paused.
    Paused { reason: String },
    /// The next wave has to be approved.
    Approval { wave: u32 },
}

impl Rollouts {
    /// Counts what the present rollouts are doing.
    pub(crate) fn totals(&self) -> RolloutTotals {
        let mut totals = RolloutTotals::default();
        self.table().rollouts.values().for_each(|entry| totals.add(&entry.state));
        totals
    }

    /// Returns the rollouts that wait for an operator; `None` before the stored ones were read.
    pub(crate) fn held(&self) -> Option<Vec<HeldRollout>> {
        let table = self.table();
        let held = |(name, entry): (&DeploymentName, &super::table::RolloutEntry)| {
            let why = match &entry.state.phase {
                RolloutPhase::Paused { reason, .. } => HeldWhy::Paused { reason: reason.clone() },
                RolloutPhase::Approval => HeldWhy::Approval { wave: entry.state.wave + 1 },
                _ => return None,
            };
            Some(HeldRollout { deployment: name.clone(), version: entry.state.version, why })
        };
        table.is_ready.then(|| table.rollouts.iter().filter_map(held).collect())
    }
}

#[cfg(test)]
mod tests {
    use muster_rules::rollout::{policy::RolloutPolicy, transition::TargetHost};
    use muster_topics::name::HostId;

    use super::*;

    #[test]
    fn each_phase_and_outcome_has_a_word() {
        let phases = [
            RolloutPhase::Running,
            RolloutPhase::Soaking { until_ms: 1 },
            RolloutPhase::Approval,
            RolloutPhase::Paused { since_ms: 1, reason: String::new() },
            RolloutPhase::Completed,
            RolloutPhase::Cancelled,
            RolloutPhase::RolledBack { by: 1 },
            RolloutPhase::Superseded { by: 1 },
            RolloutPhase::Failed { reason: String::new() },
        ];
        assert_eq!(phases.map(|phase| phase.word()), PHASES);
        let mut totals = RolloutTotals::default();
        let host = |can_take| TargetHost { host: HostId::random(), group: None, is_online: true, can_take };
        let hosts = [host(true), host(true), host(false)].into_iter();
        totals.add(&RolloutState::begin(&RolloutPolicy::default(), 3, Some(2), false, hosts, 5));
        assert_eq!((totals.phases["running"], totals.phases["paused"]), (1, 0));
        let outcomes = ["none", "cannot", "verified"].map(|word| totals.outcomes[word]);
        assert_eq!((outcomes, totals.outcomes.len()), ([2, 1, 0], HostOutcome::ALL.len() + 1));
    }
}
