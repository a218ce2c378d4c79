//! Chooses the next step of a unit.

use muster_topics::{
    Millis,
    signal::Signal,
    unit::{Desired, Phase, Run},
};

use super::{EffectiveInstance, LiveInstance, PlanStep, PlannedUnit};
use crate::{backoff::GOOD_AFTER_MS, start_order::StartGate};

impl PlannedUnit {
    /// Returns the next step; `None` or a wait for a unit that is as desired, or has a step under way.
    #[must_use]
    pub fn plan(&self, now_ms: Millis) -> Option<PlanStep> {
        let step = sooner(self.plan_second(now_ms), self.plan_step(now_ms));
        match (step, self.judged_again_ms(now_ms)) {
            (None, Some(at_ms)) => Some(PlanStep::WaitUntil(at_ms)),
            (Some(PlanStep::WaitUntil(step_ms)), Some(at_ms)) => Some(PlanStep::WaitUntil(step_ms.min(at_ms))),
            (step, _) => step,
        }
    }

    fn plan_step(&self, now_ms: Millis) -> Option<PlanStep> {
        if self.installation.is_removing() {
            return None;
        }
        match &self.instance {
            EffectiveInstance::Launching(_) => None,
            EffectiveInstance::Unknown(lookup) => lookup.plan(now_ms),
            EffectiveInstance::Alive(alive) if alive.reloading.is_some() => None,
            EffectiveInstance::Alive(alive) => match alive.ends_by_ms {
                // It ignored the first stop, so it is stopped again without grace, and the shell reports it.
                Some(by_ms) => {
                    Some(due(Some(by_ms), now_ms).unwrap_or(PlanStep::Stop { signal: Some(Signal::Kill), grace_ms: 0 }))
                }
                None => self.plan_alive(alive, now_ms),
            },
            EffectiveInstance::None => self.plan_idle(self.gate(), now_ms),
        }
    }

    /// Returns the next step of a unit with a live instance.
    fn plan_alive(&self, alive: &LiveInstance, now_ms: Millis) -> Option<PlanStep> {
        let stop = PlanStep::Stop { signal: self.policy.stop_signal, grace_ms: self.policy.grace_ms };
        let Some(desired) = &self.desired else { return Some(stop) };
        if desired.run == Run::Stopped {
            return Some(stop);
        }
        if alive.health.condemned().is_some() {
            return Some(stop);
        }
        if alive.report.frozen && !desired.frozen {
            return Some(self.plan_freeze(alive, false, now_ms));
        }
        if alive.revision != desired.revision && !self.is_held() {
            // Its successor comes up beside it, or has failed to; it is not stopped for that.
            if self.is_second_revision(&desired.revision) || self.next_start.is_never() {
                return None;
            }
            // It continues to run until its successor is installed.
            if !self.installation.has(&desired.revision) {
                return self.plan_install(desired, now_ms);
            }
            // There are two instances at most.
            if self.beside.is_some() {
                return None;
            }
            let reloads = self.policy.reloads || self.has_same_frame(alive, desired);
            let is_refused = alive.not_reloaded.as_ref() == Some(&desired.revision);
            let reload = reloads && !is_refused && alive.process.is_some();
            return Some(match (reload, self.starts_first(alive)) {
                (true, _) => PlanStep::Reload,
                (false, true) => PlanStep::StartSecond,
                (false, false) => stop,
            });
        }
        if alive.outdated && self.hold.is_none() {
            return Some(stop);
        }
        if self.is_rewired(alive) {
            return Some(stop);
        }
        let process = alive.process.filter(|_| !self.is_leaving(alive))?;
        if let Some(step) = self.plan_play(desired, now_ms) {
            return Some(step);
        }
        match self.observed.phase() {
            // Its shim stops it if it does not report in time that it is up.
            Phase::Starting if self.awaits_readiness(alive) => None,
            // A held or frozen unit has no deadline.
            Phase::Starting if self.awaits_probes(alive) && (self.is_held() || alive.report.frozen) => None,
            Phase::Starting if self.awaits_probes(alive) => {
                Some(PlanStep::WaitUntil(alive.health.up_by_ms(self.policy.start_timeout_ms)))
            }
            Phase::Starting => {
                Some(PlanStep::WaitUntil(process.started_ms.saturating_add(self.policy.started_after_ms)))
            }
            _ if desired.frozen && !alive.report.frozen => Some(self.plan_freeze(alive, true, now_ms)),
            _ if self.observed.attempts > 0 => {
                Some(PlanStep::WaitUntil(process.started_ms.saturating_add(GOOD_AFTER_MS)))
            }
            _ => None,
        }
    }

    /// Whether the instance can be changed to the desired revision. If the spec that it was started with is unknown,
    /// the shell decides.
    fn has_same_frame(&self, alive: &LiveInstance, desired: &Desired) -> bool {
        let known = alive.frame.clone().or_else(|| self.spec_of(&alive.revision)?.frame().ok());
        known.is_none_or(|known| Some(known) == desired.spec.frame().ok())
    }

    fn plan_freeze(&self, alive: &LiveInstance, frozen: bool, now_ms: Millis) -> PlanStep {
        match alive.freezes_by_ms {
            Some((asked, by_ms)) if asked == frozen && by_ms > now_ms => PlanStep::WaitUntil(by_ms),
            _ if frozen => PlanStep::Freeze,
            _ => PlanStep::Thaw,
        }
    }

    /// Returns the request to play, or to stop playing, for a unit that is up.
    fn plan_play(&self, desired: &Desired, now_ms: Millis) -> Option<PlanStep> {
        let is_up = matches!(self.observed.phase(), Phase::Running | Phase::Playing);
        if !is_up || self.observed.instance().frozen || desired.frozen || self.hold.is_some() {
            return None;
        }
        // The instance that it replaced plays until it has ended, and two must not play.
        if desired.run == Run::Playing && self.beside.is_some() {
            return None;
        }
        self.play.step(desired.run == Run::Playing, now_ms)
    }

    /// Returns the next step of a unit without an instance.
    pub(super) fn plan_idle(&self, gate: &StartGate, now_ms: Millis) -> Option<PlanStep> {
        let Some(desired) = &self.desired else {
            let goes = self.beside.is_none();
            return goes.then(|| self.installation.plan(PlanStep::Remove, now_ms));
        };
        if !self.installation.has(&desired.revision) {
            return self.plan_install(desired, now_ms);
        }
        if desired.run == Run::Stopped
            || self.is_held()
            || self.next_start.is_never()
            || self.is_second_revision(&desired.revision)
        {
            return None;
        }
        if let Some(wait) = due(self.next_start.wait_ms(), now_ms) {
            return Some(wait);
        }
        (*gate == StartGate::Open && !self.needs_wiring())
            .then_some(PlanStep::Start { attempts: self.observed.attempts })
    }

    fn plan_install(&self, desired: &Desired, now_ms: Millis) -> Option<PlanStep> {
        let is_under_way = self.installation.installs(&desired.revision);
        if is_under_way || self.next_start.is_never() || self.hold.is_some() {
            return None;
        }
        Some(self.installation.plan(PlanStep::Install, now_ms))
    }
}

/// Returns the earlier of two steps.
fn sooner(one: Option<PlanStep>, other: Option<PlanStep>) -> Option<PlanStep> {
    match (one, other) {
        (Some(PlanStep::WaitUntil(one_ms)), Some(PlanStep::WaitUntil(other_ms))) => {
            Some(PlanStep::WaitUntil(one_ms.min(other_ms)))
        }
        (Some(PlanStep::WaitUntil(_)), Some(step)) => Some(step),
        (one, other) => one.or(other),
    }
}

/// Returns a wait until `at_ms`, unless that has passed.
pub(super) fn due(at_ms: Option<Millis>, now_ms: Millis) -> Option<PlanStep> {
    at_ms.filter(|at_ms| *at_ms > now_ms).map(PlanStep::WaitUntil)
}
