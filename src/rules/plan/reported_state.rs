//! Derives the state that is reported of a unit (phase, attempts, hold) from what is known of it; it is never set directly.

use muster_topics::{
    Millis,
    name::Digest,
    unit::{Content, Desired, HoldReason, InstanceReport, ObservedState, Phase, Run},
};

use super::{EffectiveInstance, LiveInstance, NextStart, PlannedUnit, ProcessId, observe::shortened};
use crate::{backoff::GOOD_AFTER_MS, start_order::StartGate};

impl PlannedUnit {
    /// Computes the reported state.
    pub(super) fn update_report(&mut self, now_ms: Millis) {
        if !matches!(self.instance, EffectiveInstance::Unknown(_)) {
            self.decide_second(now_ms);
        }
        let process = self.process();
        if process.is_some_and(|process| now_ms.saturating_sub(process.started_ms) >= GOOD_AFTER_MS) {
            self.observed.attempts = 0;
        }
        if matches!(self.instance, EffectiveInstance::Unknown(_)) {
            // Until the instance is looked up, the last report holds.
            return;
        }
        let mut phase = self.phase(process, now_ms);
        if self.judge(phase, now_ms) {
            phase = self.phase(process, now_ms);
        }
        self.report_trial();
        self.report_second();
        if phase != self.observed.phase() {
            self.observed.since_ms = now_ms;
        }
        self.update_health(phase, now_ms);
        if phase == Phase::Running
            && self.desired.as_ref().is_some_and(|desired| desired.run == Run::Playing)
            && let Some(why) = self.play.cannot(self.policy.speaks)
        {
            self.fail(why);
        }
        self.observed.endpoints.clone_from(&self.needs.wiring().endpoints);
        self.observed.connectors.clone_from(&self.needs.wiring().connectors);
        let is_ready =
            phase == Phase::Stopped && self.wants_running() && self.hold.is_none() && !self.next_start.is_never();
        self.needs.update_wait(is_ready, now_ms);
        self.observed.state = self.reported_state(phase);
        if matches!(phase, Phase::Running | Phase::Playing | Phase::Stopped) {
            self.observed.last_lines = None;
        }
        if !self.installation.is_installing() {
            self.observed.progress = None;
        }
        let revision = match &self.instance {
            EffectiveInstance::Alive(alive) => Some(alive.revision.clone()),
            EffectiveInstance::Launching(revision) => Some(revision.clone()),
            EffectiveInstance::Unknown(_) | EffectiveInstance::None => self.installation.revision.clone(),
        };
        self.report_revision(revision);
        if let Some(desired) = &self.desired
            && self.is_reached(desired)
        {
            // A unit that ended while it was held keeps the reason.
            let rests_held = phase == Phase::Stopped && self.visible_hold().is_some() && self.wants_running();
            let is_well = matches!(phase, Phase::Running | Phase::Playing | Phase::Stopped);
            // So does a finished one: whether processes were left behind.
            let has_finished = phase == Phase::Stopped && self.next_start == NextStart::Finished;
            if is_well && !self.play.is_refused() && !rests_held && !has_finished {
                self.observed.error = None;
            }
            self.observed.generation = desired.generation;
        }
        self.report_stay();
    }

    /// Returns what it is doing, in this phase.
    fn reported_state(&self, phase: Phase) -> ObservedState {
        let mut state = ObservedState::from(phase);
        if let ObservedState::Backoff { retry_ms } = &mut state {
            *retry_ms = self.next_start.wait_ms().or(self.installation.retry_ms()).unwrap_or_default();
        }
        if let (Some(report), EffectiveInstance::Alive(alive)) = (state.instance_mut(), &self.instance) {
            let pid = alive.process.map(|process| process.pid);
            let unready = alive.health.unready().map(shortened);
            *report = InstanceReport { pid, unready, ..alive.report.clone() };
        }
        state
    }

    /// Reports a revision. If it is neither desired nor verified any more, the details stay as they were reported
    /// before.
    fn report_revision(&mut self, revision: Option<Digest>) {
        let content = revision.as_ref().and_then(|revision| self.spec_of(revision)).map(Content::of);
        if content.is_some() || self.observed.revision != revision {
            self.observed.content = content;
        }
        self.observed.revision = revision;
    }

    /// Updates whether it has come up, has to be stopped, or is unready.
    fn update_health(&mut self, phase: Phase, now_ms: Millis) {
        let (wants_running, is_held) = (self.wants_running(), self.is_held());
        let EffectiveInstance::Alive(alive) = &mut self.instance else { return };
        // The probes belong to the desired revision.
        let is_desired = self.desired.as_ref().is_some_and(|desired| desired.revision == alive.revision);
        let is_probed = wants_running && is_desired && alive.ends_by_ms.is_none();
        if matches!(phase, Phase::Running | Phase::Playing) {
            alive.health.came_up();
        }
        if is_held || alive.report.frozen || !is_probed {
            alive.health.excuse(now_ms);
        } else {
            alive.health.judge(self.policy.probes, self.policy.start_timeout_ms, now_ms);
        }
        if let Some(why) = alive.health.condemned() {
            self.observed.error = Some(shortened(why.clone()));
        }
    }

    fn phase(&self, process: Option<ProcessId>, now_ms: Millis) -> Phase {
        let up = |process: ProcessId| process.has_run_for(self.policy.started_after_ms, now_ms);
        match &self.instance {
            EffectiveInstance::Unknown(_) => self.observed.phase(),
            EffectiveInstance::Launching(_) => Phase::Starting,
            EffectiveInstance::Alive(alive) if alive.ends_by_ms.is_some() => Phase::Stopping,
            EffectiveInstance::Alive(alive) if self.is_leaving(alive) => Phase::Starting,
            EffectiveInstance::Alive(_) if self.next_start == NextStart::Failed => Phase::Failed,
            EffectiveInstance::Alive(alive) if self.awaits_readiness(alive) || self.awaits_probes(alive) => {
                Phase::Starting
            }
            EffectiveInstance::Alive(alive) if alive.ready || self.is_probed_up(alive) || process.is_some_and(up) => {
                let plays = self.play.is_playing(self.observed.phase() == Phase::Playing);
                if plays { Phase::Playing } else { Phase::Running }
            }
            EffectiveInstance::Alive(_) => Phase::Starting,
            // The instance that has to end before the next step still runs.
            EffectiveInstance::None if self.must_wait_for_second() => Phase::Stopping,
            EffectiveInstance::None if self.next_start == NextStart::Failed || self.is_broken() => Phase::Failed,
            EffectiveInstance::None if self.installation.is_installing() => Phase::Installing,
            EffectiveInstance::None if self.is_about_to_try(now_ms) => Phase::Backoff,
            EffectiveInstance::None => match &self.desired {
                Some(desired) if self.installation.has(&desired.revision) => Phase::Stopped,
                _ => Phase::Absent,
            },
        }
    }

    /// Whether it has to wait for the end of the second instance.
    fn must_wait_for_second(&self) -> bool {
        let wanted = self.desired.as_ref().filter(|desired| desired.run.is_running());
        wanted.map_or(self.beside.is_some(), |desired| self.is_second_revision(&desired.revision))
    }

    pub(super) fn is_broken(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.reason == HoldReason::Broken)
    }

    /// Whether it waits for another attempt. (One that is due may still wait for other units.)
    fn is_about_to_try(&self, now_ms: Millis) -> bool {
        let installs = self.installation.retry_ms().is_some() && self.desired.is_some();
        let restarts = self.next_start.wait_ms().is_some_and(|at_ms| at_ms > now_ms || *self.gate() == StartGate::Open);
        self.hold.is_none() && (installs || restarts && self.wants_running())
    }

    /// Whether the instance reports by itself when it is up, and has not yet. (An instance of a revision that is being
    /// replaced may not do so.)
    pub(super) fn awaits_readiness(&self, alive: &LiveInstance) -> bool {
        self.policy.says_ready && !alive.ready && self.desires(&alive.revision)
    }

    /// Whether the instance has to pass a probe before it is up.
    pub(super) fn awaits_probes(&self, alive: &LiveInstance) -> bool {
        alive.health.awaits(self.policy.probes) && self.desires(&alive.revision)
    }

    /// Whether its probes, or an earlier observation, show that it is up, so that no other sign is needed.
    fn is_probed_up(&self, alive: &LiveInstance) -> bool {
        let is_said = self.policy.probes.tells_up() && self.desires(&alive.revision);
        alive.process.is_some() && (is_said || alive.health.is_up())
    }

    /// Whether the unit has reached `desired`, or a state that it cannot leave by itself.
    fn is_reached(&self, desired: &Desired) -> bool {
        // A unit waits for dependencies that are on their way; others may never come.
        let blocked = self.needs.is_waiting() && self.needs.is_blocked();
        let held = self.is_held() || blocked;
        match (self.observed.phase(), &self.instance) {
            (Phase::Failed | Phase::Backoff, _) => true,
            // One of the two instances has to end first.
            (Phase::Running | Phase::Playing, _) if self.beside.is_some() => false,
            (Phase::Running | Phase::Playing, EffectiveInstance::Alive(alive)) => {
                let plays = match desired.run {
                    Run::Stopped => return false,
                    // A held unit need not converge, and a frozen one cannot answer.
                    _ if held || alive.report.frozen => true,
                    Run::Running => self.observed.phase() == Phase::Running,
                    Run::Playing => self.play.is_known(true),
                };
                let is_right = held || alive.revision == desired.revision && !self.is_rewired(alive);
                is_right && alive.report.frozen == desired.frozen && (plays || self.play.is_refused())
            }
            (Phase::Stopped, _) => held || desired.run == Run::Stopped || self.next_start == NextStart::Finished,
            (Phase::Absent, EffectiveInstance::None) => held,
            _ => false,
        }
    }
}
