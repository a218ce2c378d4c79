//! What heartbeats say of the host: facts, and every unit in short.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    heartbeat::{Facts, HostState, Interface, UnitSummary},
    name::Name,
};

use super::{facts, unit::UnitStates};

/// The most units that a heartbeat lists. A name and its summary take at most 220 bytes, so these
/// leave a third of a message for everything else; a host with more has them on their own topics alone.
const UNITS_MAX: usize = 200;

/// The part of a host's state that does not come from units.
#[derive(Clone, Debug)]
pub(super) struct Portrait {
    pub(super) hostname: String,
    pub(super) facts: Facts,
    interfaces: BTreeMap<String, Interface>,
    labels: BTreeMap<Name, String>,
    realms: Vec<Name>,
}

impl Portrait {
    pub(super) fn new(labels: BTreeMap<Name, String>, realms: &BTreeSet<Name>) -> Self {
        Self {
            hostname: facts::hostname(),
            facts: facts::facts(),
            interfaces: facts::interfaces(),
            labels,
            realms: realms.iter().cloned().collect(),
        }
    }

    /// Looks again at what may have changed.
    pub(super) fn look(&mut self) {
        self.hostname = facts::hostname();
        self.interfaces = facts::interfaces();
    }

    /// The whole state.
    pub(super) fn with(&self, units: &UnitStates) -> HostState {
        let summary = |state: &super::unit::UnitState| UnitSummary {
            generation: state.observed.generation,
            run: state.desired.run,
            phase: state.observed.phase,
            hold: state.hold.clone(),
        };
        HostState {
            hostname: self.hostname.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            facts: self.facts.clone(),
            interfaces: self.interfaces.clone(),
            labels: self.labels.clone(),
            realms: self.realms.clone(),
            units: units.iter().take(UNITS_MAX).map(|(name, state)| (name.clone(), summary(state))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::PAYLOAD_MAX_BYTES;
    use serde_json::json;

    use super::*;
    use crate::agent::config::{LABEL_MAX_BYTES, LABELS_MAX};

    /// Everything that has a limit, at its limit.
    #[test]
    fn the_largest_state_fits_into_one_message() {
        let name = |index: usize| format!("{index:0>63}").parse::<Name>().unwrap();
        let labels = (0..LABELS_MAX).map(|index| (name(index), "x".repeat(LABEL_MAX_BYTES))).collect();
        let mut portrait = Portrait::new(labels, &[name(1), name(2)].into());
        let interface = || Interface {
            mac: "00:11:22:33:44:55".to_owned(),
            addresses: vec!["2001:db8:1111:2222:3333:4444:5555:6666/128".to_owned(); 2],
        };
        portrait.interfaces = (0..32).map(|index| (format!("interface-{index:0>5}"), interface())).collect();
        let mut state = portrait.with(&UnitStates::default());
        let summary: UnitSummary = serde_json::from_value(json!({
            "generation": u64::MAX, "run": "running", "phase": "installing",
            "hold": {"reason": "broken", "since_ms": i64::MAX},
        }))
        .unwrap();
        state.units = (0..UNITS_MAX)
            .map(|index| (format!("{index:0>20}/{index:0>40}").parse().unwrap(), summary.clone()))
            .collect();
        let bytes = serde_json::to_vec(&state).unwrap().len();
        assert!(bytes < PAYLOAD_MAX_BYTES - 1_000, "{bytes}");
    }
}
