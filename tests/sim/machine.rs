//! A machine: what exists whether or not its agent runs.

use std::{collections::BTreeMap, sync::Arc};

use muster_rules::plan::Slot;
use muster_session::unit_state::{UnitState, UnitStates};
use muster_topics::{
    Millis,
    desired::UnitOwner,
    heartbeat::{HostState, UnitSummary},
    name::{CommandId, Digest, HostId, UnitName},
    outcome::Status,
    snapshot::Pins,
    unit::{Desired, Observed, Phase, Spec},
};
use serde_json::json;

use super::{agent::Agent, disk::Disk};

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) index: usize,
    pub(super) host: HostId,
    pub(super) disk: Disk,
    /// Programs under their shims, which outlive the agent.
    pub(super) programs: BTreeMap<CommandId, Program>,
    /// How far units have come.
    pub(super) observed: BTreeMap<UnitName, (u64, Phase)>,
    /// Something else about the host that changes.
    pub(super) label: u64,
    /// How wrong its clock is.
    pub(super) clock_off_ms: Millis,
    pub(super) agent: Option<Agent>,
    /// Which life of its agent this is: events of an earlier one are void.
    pub(super) life: u32,
    /// How often it was started.
    pub(super) boots: u32,
    /// It is not to be started again.
    pub(super) is_gone: bool,
    template: HostState,
    spec: Spec,
}

/// A program under its shim.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) ends_ms: Millis,
    /// How it ended; its shim keeps that.
    pub(super) over: Option<Status>,
}

impl Machine {
    pub(super) fn new(index: usize, host: HostId, disk: Disk) -> Self {
        let template = json!({
            "hostname": "h", "agent_version": "1", "labels": {}, "realms": ["default"], "units": {}, "interfaces": {},
            "facts": {"os": "", "kernel": "", "arch": "", "cpus": 1, "cpu_model": "", "memory_bytes": 1, "boot_id": "", "boot_ms": 0},
            "command_keys": {"ids": [], "authorities": []}, "desired": {"mark": {"epoch": 0, "generation": 0}},
        });
        let digest = Digest::of(b"");
        let spec =
            json!({"kind": "yuno", "artifact": {"sha256": digest, "size_bytes": 7, "role": "hello", "version": "1"}});
        Self {
            index,
            host,
            disk,
            programs: BTreeMap::new(),
            observed: BTreeMap::new(),
            label: 0,
            clock_off_ms: 0,
            agent: None,
            life: 0,
            boots: 0,
            is_gone: false,
            template: serde_json::from_value(template).unwrap(),
            spec: serde_json::from_value(spec).unwrap(),
        }
    }

    /// As `place` of the agent.
    pub(super) fn place(&self) -> String {
        format!("boot {} of machine {}", self.boots, self.index)
    }

    /// The power fails: what ran has ended, and nobody saw how.
    pub(super) fn loses_power(&mut self) {
        self.boots += 1;
        self.programs.retain(|_, program| program.over.is_some());
    }

    /// Its units, as the agent's task of units would tell.
    pub(super) fn units(&self) -> UnitStates {
        let owners = self.disk.read(|tables| tables.owners.clone());
        let owner = |unit: &UnitName| {
            let deployment = owners.get(unit).cloned();
            deployment.map(|deployment| UnitOwner { deployment, version: 0, orphan: false })
        };
        let unit = |(name, (generation, run)): (&UnitName, &(u64, _))| {
            let desired = Desired {
                generation: *generation,
                revision: Digest::of(b""),
                spec: self.spec.clone().into(),
                run: *run,
                frozen: false,
            };
            let (reached, phase) = self.observed.get(name).copied().unwrap_or((0, Phase::Absent));
            let observed = Observed { generation: reached, state: phase.into(), ..Observed::absent(0) };
            let state = UnitState {
                desired,
                spec: None,
                observed,
                hold: None,
                owner: owner(name),
                pins: Pins::default(),
                slot: Slot::First,
                process: None,
            };
            (name.clone(), Arc::new(state))
        };
        Arc::new(self.disk.read(|tables| tables.units.iter().map(unit).collect()))
    }

    /// Its state, as the agent's host_snapshot would tell.
    pub(super) fn state(&self, units: &UnitStates) -> HostState {
        let summary = |state: &UnitState| UnitSummary {
            generation: state.observed.generation,
            run: state.desired.run,
            phase: state.observed.phase(),
            hold: None,
            rolled_back: false,
        };
        HostState {
            labels: [("n".parse().unwrap(), self.label.to_string())].into(),
            units: units.iter().map(|(name, state)| (name.clone(), summary(state))).collect(),
            desired: self.disk.read(|tables| tables.document.report()),
            ..self.template.clone()
        }
    }
}
