//! Builds the host snapshot that heartbeats carry: facts, and a summary of every unit.

use muster_session::unit_state::{UnitState, UnitStates};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_topics::{
    PAYLOAD_MAX_BYTES,
    alert::AlertSummary,
    command_keys::KnownKeys,
    desired::DesiredReport,
    heartbeat::{Facts, HostState, Interface, UnitSummary},
    label,
    name::{HostId, Name, UnitName},
    numbered::{NumberedKind, Numbers},
    select,
    unit::Hold,
};
use tokio::sync::watch;

use super::{facts, store::label::ConsoleLabels, unit::UnitContainers};

/// The largest state: a message, less the rest of a heartbeat.
const STATE_MAX_BYTES: usize = PAYLOAD_MAX_BYTES - 1024;

/// The length of a reason where there is no room for more.
const SHORT_BYTES: usize = 64;

/// The part of a host's state that does not come from units.
#[derive(Clone, Debug)]
pub(super) struct HostSnapshot {
    pub(super) hostname: String,
    /// The same, for those who follow it.
    renames: watch::Sender<String>,
    pub(super) facts: Facts,
    interfaces: BTreeMap<String, Interface>,
    /// The labels of the host's own configuration.
    own_labels: BTreeMap<Name, String>,
    /// The labels that the console gives it, which win.
    given_labels: ConsoleLabels,
    /// Which of the console's numbered documents the host has.
    numbers: Numbers,
    /// Both combined.
    labels: BTreeMap<Name, String>,
    realms: Vec<Name>,
    alerts: BTreeMap<Name, AlertSummary>,
    desired: DesiredReport,
    containers: watch::Receiver<UnitContainers>,
    /// The keys that the console's signatures are verified with.
    command_keys: KnownKeys,
}

impl HostSnapshot {
    pub(super) fn new(own_labels: BTreeMap<Name, String>, realms: &BTreeSet<Name>) -> Self {
        Self {
            renames: watch::Sender::new(facts::hostname()),
            hostname: facts::hostname(),
            facts: facts::facts(),
            interfaces: facts::interfaces(),
            labels: own_labels.clone(),
            own_labels,
            given_labels: ConsoleLabels::default(),
            numbers: Numbers::new(),
            realms: realms.iter().cloned().collect(),
            alerts: BTreeMap::new(),
            desired: DesiredReport::default(),
            containers: watch::channel(UnitContainers::default()).1,
            command_keys: KnownKeys::default(),
        }
    }

    /// Starts to report the host's containers.
    pub(super) fn contain(&mut self, containers: watch::Receiver<UnitContainers>) {
        self.containers = containers;
    }

    /// Sets the active alerts.
    pub(super) fn set_alerts(&mut self, alerts: BTreeMap<Name, AlertSummary>) {
        self.alerts = alerts;
    }

    /// Sets what became of the host's document.
    pub(super) fn set_desired(&mut self, desired: DesiredReport) {
        self.desired = desired;
    }

    /// Sets the host's realms.
    pub(super) fn set_realms(&mut self, realms: &BTreeSet<Name>) {
        self.realms = realms.iter().cloned().collect();
    }

    /// Sets the keys that the console's signatures are verified with.
    pub(super) fn set_command_keys(&mut self, keys: KnownKeys) {
        self.command_keys = keys;
    }

    /// Sets the console's labels.
    pub(super) fn give_labels(&mut self, given: ConsoleLabels) {
        self.labels = label::merge(&self.own_labels, &given.labels);
        self.set_number(NumberedKind::HostLabels, given.generation);
        self.given_labels = given;
    }

    /// Sets the number that the host has of a kind of document; 0 if it has none.
    pub(super) fn set_number(&mut self, kind: NumberedKind, number: u64) {
        match number {
            0 => drop(self.numbers.remove(&kind)),
            number => drop(self.numbers.insert(kind, number)),
        }
    }

    /// Which of the console's numbered documents the host has.
    pub(super) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Examines the host again. Its boot was when it was: what the kernel says of that moves with the clock.
    pub(super) fn refresh(&mut self) {
        let Facts { boot_id, boot_ms, .. } = std::mem::take(&mut self.facts);
        self.facts = Facts { boot_id, boot_ms, ..facts::facts() };
        self.rename(facts::hostname());
        self.interfaces = facts::interfaces();
    }

    fn rename(&mut self, hostname: String) {
        if self.hostname != hostname {
            tracing::info!(before = self.hostname, hostname, "the host's name has changed");
            self.renames.send_replace(hostname.clone());
            self.hostname = hostname;
        }
    }

    /// The host's name, and each later one.
    pub(super) fn renames(&self) -> watch::Receiver<String> {
        self.renames.subscribe()
    }

    /// Its labels.
    pub(super) fn labels(&self) -> &BTreeMap<Name, String> {
        &self.labels
    }

    /// The names of its labels, each of which is a group of hosts.
    pub(super) fn groups(&self) -> Vec<Name> {
        self.labels.keys().cloned().collect()
    }

    /// The host's units, as selectors see them.
    pub(super) fn units<'a>(&'a self, host: HostId, units: &'a UnitStates) -> Vec<select::Unit<'a>> {
        let unit = |(name, state): (&'a UnitName, &'a Arc<UnitState>)| select::Unit {
            host,
            hostname: &self.hostname,
            name,
            spec: &state.desired.spec,
            phase: state.observed.phase(),
            content: state.observed.content.as_ref(),
        };
        units.iter().map(unit).collect()
    }

    /// The host, as selectors see it.
    pub(super) fn seen<'a>(&'a self, host: HostId, units: &'a [select::Unit<'a>]) -> select::Host<'a> {
        select::Host {
            host,
            hostname: &self.hostname,
            agent_version: env!("CARGO_PKG_VERSION"),
            facts: Some(&self.facts),
            labels: &self.labels,
            realms: &self.realms,
            units,
        }
    }

    /// Returns the whole state.
    pub(super) fn with(&self, units: &UnitStates) -> HostState {
        let summary = |state: &UnitState| UnitSummary {
            generation: state.observed.generation,
            run: state.desired.run,
            phase: state.observed.phase(),
            hold: state.hold.as_ref().map(Hold::in_short),
            rolled_back: state.observed.rolled_back().is_some(),
        };
        fitted(HostState {
            hostname: self.hostname.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            facts: self.facts.clone(),
            interfaces: self.interfaces.clone(),
            labels: self.labels.clone(),
            realms: self.realms.clone(),
            alerts: self.alerts.clone(),
            numbers: self.numbers.clone(),
            own_labels: (!self.given_labels.labels.is_empty()).then(|| self.own_labels.clone()),
            command_keys: self.command_keys.clone(),
            desired: self.desired.clone(),
            containers: self.containers.borrow().as_ref().clone(),
            units: units.iter().map(|(name, state)| (name.clone(), summary(state))).collect(),
        })
    }
}

/// Leaves out what does not fit into one message: first the units, which have topics of their own (there is room for
/// about 300), then the containers, then the interfaces, then what became of deployments, but for the document. Labels,
/// realms and alerts always fit.
fn fitted(mut state: HostState) -> HostState {
    let fits = |state: &HostState| serde_json::to_vec(state).is_ok_and(|json| json.len() <= STATE_MAX_BYTES);
    if !fits(&state) {
        state.units.clear();
    }
    if !fits(&state) {
        state.containers.clear();
    }
    if !fits(&state) {
        state.interfaces.clear();
    }
    let steps: [fn(&mut DesiredReport); 3] = [
        // Why some are refused is worth more than that others are not.
        |desired| {
            desired.deployments.retain(|_, report| report.refused.is_some());
            let refusals = desired.deployments.values_mut().filter_map(|report| report.refused.as_mut());
            let cut = |mut text: String| {
                text.truncate(text.floor_char_boundary(SHORT_BYTES));
                text
            };
            refusals.for_each(|refused| refused.diagnostic = std::mem::take(&mut refused.diagnostic).map(cut));
        },
        |desired| desired.removals.clear(),
        |desired| desired.deployments.clear(),
    ];
    for step in steps {
        if !fits(&state) {
            step(&mut state.desired);
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        desired::{DeploymentRefusal, DeploymentReport, DesiredMark, RemovalTime},
        label::HOST_LABELS_MAX,
    };
    use serde_json::json;

    use super::*;
    use crate::config::{LABEL_MAX_BYTES, LABELS_MAX, REALMS_MAX};

    fn name(index: usize) -> Name {
        format!("{index:0>63}").parse().unwrap()
    }

    fn state(units: usize, interfaces: usize) -> HostState {
        let labels = (0..LABELS_MAX).map(|index| (name(index), "x".repeat(LABEL_MAX_BYTES))).collect();
        let mut host_snapshot = HostSnapshot::new(labels, &(0..REALMS_MAX).map(name).collect());
        let given = (0..HOST_LABELS_MAX).map(|index| (name(1_000 + index), "x".repeat(63).parse().unwrap())).collect();
        host_snapshot.give_labels(ConsoleLabels { generation: u64::MAX, labels: given });
        let mut state = host_snapshot.with(&UnitStates::default());
        let interface = Interface {
            mac: "00:11:22:33:44:55".to_owned(),
            addresses: vec!["2001:db8:1111:2222:3333:4444:5555:6666/128".to_owned(); 16],
        };
        state.interfaces = (0..interfaces).map(|index| (format!("interface-{index:0>5}"), interface.clone())).collect();
        let summary: UnitSummary = serde_json::from_value(json!({
            "generation": u64::MAX, "run": "running", "phase": "installing",
            "hold": {"reason": "broken", "since_ms": i64::MAX},
        }))
        .unwrap();
        let unit = |index: usize| format!("{index:0>20}/{index:0>40}").parse().unwrap();
        state.units = (0..units).map(|index| (unit(index), summary.clone())).collect();
        state
    }

    #[track_caller]
    fn check(units: usize, interfaces: usize, left: (usize, usize)) {
        let state = fitted(state(units, interfaces));
        assert_eq!((state.units.len(), state.interfaces.len()), left);
        assert!(serde_json::to_vec(&state).unwrap().len() <= STATE_MAX_BYTES);
    }

    #[test]
    fn snapshot_fits_into_one_message() {
        check(100, 2, (100, 2));
        check(1_000, 2, (0, 2));
        check(0, 64, (0, 0));
        check(1_000, 64, (0, 0));
    }

    #[test]
    fn document_is_reported_however_much_became_of_it() {
        let unit = |index: usize| format!("{index:0>63}/{index:0>63}");
        for (count, left) in [(20, (20, 20)), (100, (0, 100)), (256, (0, 0))] {
            let mut state = state(100, 2);
            let refused = DeploymentRefusal { version: u32::MAX, diagnostic: "é".repeat(256).into() };
            let report = DeploymentReport { version: u32::MAX, refused: Some(refused), waits: None };
            let desired = DesiredReport {
                mark: DesiredMark { epoch: 1, generation: 7 },
                deployments: (0..count).map(|index| (unit(index).parse().unwrap(), report.clone())).collect(),
                removals: (0..count)
                    .map(|index| (unit(index).parse().unwrap(), RemovalTime { from_ms: Some(i64::MAX) }))
                    .collect(),
                ..DesiredReport::default()
            };
            state.desired = desired;
            let state = fitted(state);
            assert!(serde_json::to_vec(&state).unwrap().len() <= STATE_MAX_BYTES);
            let desired = state.desired;
            assert_eq!((desired.mark.generation, (desired.removals.len(), desired.deployments.len())), (7, left));
        }
    }

    #[test]
    fn console_label_overrides_own_until_removed() {
        let own: BTreeMap<Name, String> = [("site".parse().unwrap(), "north".to_owned())].into();
        let mut host_snapshot = HostSnapshot::new(own.clone(), &BTreeSet::new());
        let shown = |host_snapshot: &HostSnapshot| {
            let state = host_snapshot.with(&UnitStates::default());
            let labels: Vec<String> = state.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(state.own_labels(), &own);
            (labels.join(" "), host_snapshot.groups().len(), state.numbers.get(&NumberedKind::HostLabels).copied())
        };
        let mut give = |generation, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            host_snapshot.give_labels(ConsoleLabels { generation, labels });
            shown(&host_snapshot)
        };
        assert_eq!(give(0, &[]), ("site=north".to_owned(), 1, None));
        assert_eq!(give(1, &[("site", "south"), ("canary", "yes")]), ("canary=yes site=south".to_owned(), 2, Some(1)));
        assert_eq!(give(2, &[]), ("site=north".to_owned(), 1, Some(2)));
    }
}
