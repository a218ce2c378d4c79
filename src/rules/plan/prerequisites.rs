//! What a unit needs of its host and of other units before it starts. The shell computes it; it is not stored.

use muster_topics::{
    Millis,
    unit::{Hold, HoldReason},
};

use crate::{port_lease::EndpointWiring, start_order::StartGate};

/// What a unit needs before it starts, and which of that it lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Prerequisites {
    /// The ports and connections that it would be started with now.
    wiring: EndpointWiring,
    /// Whether they were computed for another spec, so that it cannot start with them.
    is_outdated: bool,
    /// Which resource of its host it lacks, such as an endpoint that it requires.
    lack: Option<Hold>,
    /// Which other unit has what it wants.
    conflict: Option<Hold>,
    /// Whether other units allow it to start.
    gate: StartGate,
    /// Which other unit it waits for, while that alone prevents its start.
    wait: Option<Hold>,
}

impl Prerequisites {
    /// The ports and connections that it is started with.
    pub(super) fn wiring(&self) -> &EndpointWiring {
        &self.wiring
    }

    /// Whether ports and connections have to be computed before it can start.
    pub(super) fn needs_wiring(&self) -> bool {
        self.is_outdated
    }

    /// Sets whether ports and connections have to be computed again.
    pub(super) fn set_needs_wiring(&mut self, needs_wiring: bool) {
        self.is_outdated = needs_wiring;
    }

    /// Sets the ports and connections, and which resource it lacks.
    pub(super) fn wire(&mut self, wiring: EndpointWiring, lack: Option<String>, now_ms: Millis) {
        self.wiring = wiring;
        self.is_outdated = false;
        if self.lack() != lack.as_deref() {
            self.lack = lack.map(|lack| dependency(lack, now_ms));
        }
    }

    /// Whether it lacks a resource, or another unit has it.
    pub(super) fn lacks_any(&self) -> bool {
        self.lack.is_some() || self.conflict.is_some()
    }

    /// Sets which other unit has what it wants.
    pub(super) fn set_conflict(&mut self, conflict: Option<String>, now_ms: Millis) {
        if self.conflict() != conflict.as_deref() {
            let hold = |note| Hold { note: Some(note), ..Hold::new(HoldReason::Conflict, now_ms) };
            self.conflict = conflict.map(hold);
        }
    }

    /// Which other unit has what it wants.
    pub(super) fn conflict(&self) -> Option<&str> {
        self.conflict.as_ref()?.note.as_deref()
    }

    /// The resource that it lacks.
    pub(super) fn lack(&self) -> Option<&str> {
        self.lack.as_ref()?.note.as_deref()
    }

    /// Whether other units allow it to start.
    pub(super) fn gate(&self) -> &StartGate {
        &self.gate
    }

    /// Sets whether other units allow it to start.
    pub(super) fn set_gate(&mut self, gate: StartGate) {
        self.gate = gate;
    }

    /// Whether a unit that it requires will not start by itself.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.gate, StartGate::Blocked(_))
    }

    /// Whether it waits for another unit, and that alone prevents its start.
    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Updates which other unit it waits for; `is_ready` says that nothing else prevents its start.
    pub(super) fn update_wait(&mut self, is_ready: bool, now_ms: Millis) {
        self.wait = match &self.gate {
            StartGate::Wait(what) | StartGate::Blocked(what) if is_ready => {
                let since_ms = self.wait.as_ref().map_or(now_ms, |wait| wait.since_ms);
                Some(dependency(what.clone(), since_ms))
            }
            _ => None,
        };
    }

    /// What it lacks or waits for, in the form that is reported.
    pub(super) fn hold(&self) -> Option<&Hold> {
        self.conflict.as_ref().or(self.lack.as_ref()).or(self.wait.as_ref())
    }
}

fn dependency(note: String, since_ms: Millis) -> Hold {
    Hold { note: Some(note), ..Hold::new(HoldReason::Dependency, since_ms) }
}
