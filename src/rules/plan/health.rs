//! Results of a unit's probes: whether it has come up, is ready, or has to be ended.
//!
//! **Invariant: an instance that has been up stays up**, until it is another process: a probe that is added or changed, or a
//! restart of the agent, does not reset it.

use std::collections::BTreeMap;

use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    probe::{Probe, Probes, Which},
    unit::Desired,
};

use super::{EndpointWiring, ProcessId, Slot, clock_shift};
use crate::probe::ProbeVerdict;

/// Which probes a unit has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeSet {
    start: bool,
    ready: bool,
    live: bool,
}

impl ProbeSet {
    pub(super) fn of(probes: &Probes) -> Self {
        Self { start: probes.start.is_some(), ready: probes.ready.is_some(), live: probes.live.is_some() }
    }

    /// Whether the unit counts as up only once a probe passes.
    pub(super) fn tells_up(self) -> bool {
        self.start || self.ready
    }
}

/// A probe to run now, of a certain process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeRequest {
    /// Which of the unit's probes it is.
    pub which: Which,
    /// The probe.
    pub probe: Probe,
    /// The slot of the instance.
    pub slot: Slot,
    /// The process.
    pub process: ProcessId,
    /// The ports on which it listens.
    pub wiring: EndpointWiring,
    /// The desired state that the instance has.
    pub desired: Desired,
    /// Whether the instance has not come up yet.
    pub coming: bool,
}

impl ProbeRequest {
    /// Whether both are the same probe of the same process; one that came up meanwhile continues to be probed.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.which, it.process, it.desired.revision.clone());
        key(self) == key(other) && self.probe == other.probe && self.wiring == other.wiring
    }
}

/// The health of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    /// The process that was up when an earlier run of the agent last saw it, and what was wrong with it.
    adopted: Option<(i32, Option<Diagnostic>)>,
    /// The latter, until a probe has answered.
    inherited: Option<Diagnostic>,
    /// The process that this is about.
    process: Option<ProcessId>,
    /// Since when it has time to come up.
    since_ms: Millis,
    /// Whether it has been up.
    up: bool,
    /// Which of the probes passed that have to pass before it is up.
    passed: [bool; 2],
    /// What each failed probe reports.
    wrong: BTreeMap<Which, Diagnostic>,
    /// Why it is being stopped as unhealthy, although it should run.
    condemned: Option<Diagnostic>,
}

impl Health {
    /// Restores it for an instance of an earlier run of the agent: the process that was up, if any, what was wrong with
    /// it, and why it was being stopped.
    pub(super) fn restore(was_up: Option<i32>, unready: Option<Diagnostic>, condemned: Option<Diagnostic>) -> Self {
        let adopted = was_up.map(|pid| (pid, unready));
        Self { adopted, condemned, ..Self::default() }
    }

    /// Updates the process.
    pub(super) fn observe(&mut self, process: Option<ProcessId>, now_ms: Millis) {
        if process == self.process {
            return;
        }
        let condemned = self.condemned.take();
        let adopted = self.adopted.take().filter(|(pid, _)| process.is_some_and(|process| process.pid == *pid));
        let (up, inherited) = (adopted.is_some(), adopted.and_then(|(_, unready)| unready));
        // A condemned instance is already being stopped, whichever process it has now.
        *self = Self { process, since_ms: now_ms, up, inherited, condemned, ..Self::default() };
    }

    /// Handles a result of a probe.
    pub(super) fn probed(&mut self, process: ProcessId, which: Which, verdict: ProbeVerdict) {
        if self.process != Some(process) {
            return;
        }
        self.inherited = None;
        match verdict {
            ProbeVerdict::Passed => {
                self.wrong.remove(&which);
                match which {
                    Which::Start => self.passed[0] = true,
                    Which::Ready => self.passed[1] = true,
                    Which::Live => {}
                }
            }
            ProbeVerdict::Pending(why) | ProbeVerdict::Failed(why) => drop(self.wrong.insert(which, why)),
        }
    }

    /// Handles changed probes: results of those that changed are dropped.
    pub(super) fn change(&mut self, before: &Probes, after: &Probes) {
        if before.ready != after.ready && after.ready.is_none() {
            self.inherited = None;
        }
        for which in Which::ALL {
            let (before, after) = (before.get(which), after.get(which));
            // Until the changed ready probe has answered, the old result holds.
            if before != after && (which != Which::Ready || after.is_none()) {
                self.wrong.remove(&which);
            }
        }
    }

    /// Whether it has to pass a probe before it is up.
    pub(super) fn awaits(&self, has: ProbeSet) -> bool {
        let [started, ready] = self.passed;
        !self.up && (has.start && !started || has.ready && !ready)
    }

    /// Marks it as up.
    pub(super) fn came_up(&mut self) {
        self.up = true;
        self.wrong.remove(&Which::Start);
    }

    /// Returns the probes to run now.
    pub(super) fn due(&self, has: ProbeSet) -> Vec<Which> {
        match (self.up, has.start && !self.passed[0]) {
            (false, true) => vec![Which::Start],
            (false, false) => Vec::from_iter(has.ready.then_some(Which::Ready)),
            (true, _) => has.ready.then_some(Which::Ready).into_iter().chain(has.live.then_some(Which::Live)).collect(),
        }
    }

    /// Whether it has been up.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// Restarts its time to come up, because it could not do so before, or was not expected to.
    pub(super) fn excuse(&mut self, now_ms: Millis) {
        self.since_ms = now_ms;
    }

    /// Shifts its time by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        clock_shift::shift(&mut self.since_ms, by_ms);
    }

    /// Returns when it has to be up.
    pub(super) fn up_by_ms(&self, limit_ms: Millis) -> Millis {
        self.since_ms.saturating_add(limit_ms)
    }

    /// Condemns it if it has to be stopped.
    pub(super) fn judge(&mut self, has: ProbeSet, limit_ms: Millis, now_ms: Millis) {
        // After a clock was set back, it must not get more time.
        self.since_ms = self.since_ms.min(now_ms);
        if self.condemned.is_some() || self.process.is_none() {
            return;
        }
        if self.awaits(has) && now_ms >= self.up_by_ms(limit_ms) {
            let which = self.due(has).first().copied().unwrap_or(Which::Start);
            let why = self.wrong.get(&which).cloned().unwrap_or_else(|| "it was not answered".into());
            let limit_s = std::time::Duration::from_millis(limit_ms.unsigned_abs()).as_secs_f64();
            self.condemned = Some(why.within(format_args!("did not come up within {limit_s} s: {which} probe")));
        } else if self.up
            && let Some(why) = self.wrong.get(&Which::Live)
        {
            self.condemned = Some(why.clone().within("hangs: live probe"));
        }
    }

    /// Why it is stopped, or has to be, as unhealthy.
    pub(super) fn condemned(&self) -> Option<&Diagnostic> {
        self.condemned.as_ref()
    }

    /// What is wrong with it, for the report.
    pub(super) fn unready(&self) -> Option<Diagnostic> {
        let told = |(which, why): (&Which, &Diagnostic)| why.clone().within(format_args!("{which} probe"));
        match self.wrong.is_empty() {
            true => self.inherited.clone(),
            false => Diagnostic::all(self.wrong.iter().map(told)),
        }
    }
}
