//! Chooses the next step of a unit.

use muster_topics::{
    Millis,
    signal::Signal,
    unit::{Desired, Phase, Run},
};

use super::{EffectiveInstance, LiveInstance, PlanStep, PlannedUnit, StepUnderWay};
use crate::{backoff::GOOD_AFTER_MS, order::StartGate};

impl PlannedUnit {
    /// What to do now. Nothing (or only to wait) for a unit that is as it should be, or under way.
    #[must_use]
    pub fn plan(&self, now_ms: Millis) -> Option<PlanStep> {
        let step = sooner(self.plan_beside(now_ms), self.plan_step(now_ms));
        match (step, self.judged_again_ms(now_ms)) {
            (None, Some(at_ms)) => Some(PlanStep::WaitUntil(at_ms)),
            (Some(PlanStep::WaitUntil(step_ms)), Some(at_ms)) => Some(PlanStep::WaitUntil(step_ms.min(at_ms))),
            (step, _) => step,
        }
    }

    fn plan_step(&self, now_ms: Millis) -> Option<PlanStep> {
        match (&self.work, &self.instance) {
            (Some(StepUnderWay::Adopting | StepUnderWay::Removing | StepUnderWay::Reloading(_)), _)
            | (_, EffectiveInstance::Launching(_)) => None,
            (_, EffectiveInstance::Unknown) => Some(due(self.adopt_ms, now_ms).unwrap_or(PlanStep::Adopt)),
            (_, EffectiveInstance::Alive(alive)) => match alive.ends_by_ms {
                // What ignored its first end is asked again with no grace, and the shell says so.
                Some(by_ms) => {
                    Some(due(Some(by_ms), now_ms).unwrap_or(PlanStep::Stop { signal: Some(Signal::Kill), grace_ms: 0 }))
                }
                None => self.plan_alive(alive, now_ms),
            },
            (_, EffectiveInstance::None) => self.plan_idle(&self.gate, now_ms),
        }
    }

    /// Something runs: is it the right thing?
    fn plan_alive(&self, alive: &LiveInstance, now_ms: Millis) -> Option<PlanStep> {
        let stop = PlanStep::Stop { signal: self.policy.stop_signal, grace_ms: self.policy.grace_ms };
        let Some(desired) = &self.desired else { return Some(stop) };
        if desired.run == Run::Stopped {
            return Some(stop);
        }
        if self.health.condemned().is_some() {
            return Some(stop);
        }
        if self.observed.frozen && !desired.frozen {
            return Some(self.plan_freeze(alive, false, now_ms));
        }
        if alive.revision != desired.revision && !self.is_held() {
            // What takes its place comes up beside it, or has failed to, which is no reason to end it.
            if self.is_beside(&desired.revision) || self.rest.is_some() {
                return None;
            }
            // It goes on running until what replaces it is there.
            if self.installed.as_ref() != Some(&desired.revision) {
                return self.plan_install(desired, now_ms);
            }
            // There are two at most.
            if self.beside.is_some() {
                return None;
            }
            let reloads = self.policy.reloads || self.has_same_frame(alive, desired);
            let is_refused = self.not_reloaded.as_ref() == Some(&desired.revision);
            let reload = reloads && !is_refused && alive.process.is_some();
            return Some(match (reload, self.starts_first(alive)) {
                (true, _) => PlanStep::Reload,
                (false, true) => PlanStep::StartSecond,
                (false, false) => stop,
            });
        }
        if self.outdated && self.hold.is_none() {
            return Some(stop);
        }
        if self.is_rewired() {
            return Some(stop);
        }
        let process = alive.process.filter(|_| !self.is_leaving(alive))?;
        if let Some(step) = self.plan_play(desired, now_ms) {
            return Some(step);
        }
        match self.observed.phase {
            // What keeps it ends it if it takes too long to say so.
            Phase::Starting if self.awaits_word(alive) => None,
            // What is left as it is has no deadline, nor what is suspended.
            Phase::Starting if self.awaits_probes(alive) && (self.is_held() || self.observed.frozen) => None,
            Phase::Starting if self.awaits_probes(alive) => {
                Some(PlanStep::WaitUntil(self.health.up_by_ms(self.policy.start_timeout_ms)))
            }
            Phase::Starting => {
                Some(PlanStep::WaitUntil(process.started_ms.saturating_add(self.policy.started_after_ms)))
            }
            _ if desired.frozen && !self.observed.frozen => Some(self.plan_freeze(alive, true, now_ms)),
            _ if self.observed.attempts > 0 => {
                Some(PlanStep::WaitUntil(process.started_ms.saturating_add(GOOD_AFTER_MS)))
            }
            _ => None,
        }
    }

    /// Whether what runs may become what is desired. If nobody knows any more what it was started as, whoever keeps it does.
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

    /// It is up: does it play, or not, as it should?
    fn plan_play(&self, desired: &Desired, now_ms: Millis) -> Option<PlanStep> {
        let is_up = matches!(self.observed.phase, Phase::Running | Phase::Playing);
        if !is_up || self.observed.frozen || desired.frozen || self.hold.is_some() {
            return None;
        }
        // What it has replaced plays until it has ended, and two must not.
        if desired.run == Run::Playing && self.beside.is_some() {
            return None;
        }
        self.play.step(desired.run == Run::Playing, now_ms)
    }

    /// Nothing runs: should something?
    pub(super) fn plan_idle(&self, gate: &StartGate, now_ms: Millis) -> Option<PlanStep> {
        let Some(desired) = &self.desired else {
            let goes = self.beside.is_none();
            return goes.then(|| due(self.install_ms, now_ms).unwrap_or(PlanStep::Remove));
        };
        if self.installed.as_ref() != Some(&desired.revision) {
            return self.plan_install(desired, now_ms);
        }
        if desired.run == Run::Stopped || self.is_held() || self.rest.is_some() || self.is_beside(&desired.revision) {
            return None;
        }
        if let Some(wait) = due(self.restart_ms, now_ms) {
            return Some(wait);
        }
        (*gate == StartGate::Open && !self.needs_wiring())
            .then_some(PlanStep::Start { attempts: self.observed.attempts })
    }

    fn plan_install(&self, desired: &Desired, now_ms: Millis) -> Option<PlanStep> {
        let under_way = matches!(&self.work, Some(StepUnderWay::Installing(revision)) if *revision == desired.revision);
        if under_way || self.rest.is_some() || self.hold.is_some() {
            return None;
        }
        Some(due(self.install_ms, now_ms).unwrap_or(PlanStep::Install))
    }
}

/// What is to be done of two things: first what is to be done now.
fn sooner(one: Option<PlanStep>, other: Option<PlanStep>) -> Option<PlanStep> {
    match (one, other) {
        (Some(PlanStep::WaitUntil(one_ms)), Some(PlanStep::WaitUntil(other_ms))) => {
            Some(PlanStep::WaitUntil(one_ms.min(other_ms)))
        }
        (Some(PlanStep::WaitUntil(_)), Some(step)) => Some(step),
        (one, other) => one.or(other),
    }
}

/// A wait, unless it is over.
pub(super) fn due(at_ms: Option<Millis>, now_ms: Millis) -> Option<PlanStep> {
    at_ms.filter(|at_ms| *at_ms > now_ms).map(PlanStep::WaitUntil)
}
