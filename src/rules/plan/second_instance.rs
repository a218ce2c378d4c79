//! The second instance: the process of a new revision beside the one that it replaces, for a replacement
//! without a break.
//!
//! It begins as a *candidate*: started in the desired revision, while the present instance goes on. Once it
//! is up it *takes over*: it becomes the unit's instance, and the old one is the second, which is *leaving*.
//! A candidate that fails, or is no longer desired, leaves without having taken over.
//!
//! - It is up as any instance is: by its own word, by its probes, or because it has stayed up for a while.
//! - It fails when it could not be started, has ended for good, was silent for too long, has a failing probe, or is
//!   not up within [`Spec::healthy_within`]. Then the unit is rolled back (`rollback`), which needs no start,
//!   because the old instance still runs. Without a verified revision the unit fails, and the old instance goes on all the same.
//! - If the old instance ends meanwhile, the candidate takes over as it is.
//!
//! Each has files in a [`Slot`]; the one that takes over keeps its own.
//!
//! **Invariant: there are at most two instances, and never two of one revision.** A revision that is still leaving is not started.
//!
//! **Invariant: a unit at rest has at most one**: while there is a second, there is always a step to take, or to wait for.
//!
//! [`Spec::healthy_within`]: muster_topics::unit::Spec::healthy_within

use muster_topics::{Millis, diagnostic::Diagnostic, name::Digest, probe::Which, signal::Signal, unit};
use serde::{Deserialize, Serialize};

use super::{
    EffectiveInstance, FoundInstance, InstanceEnd, LiveInstance, NextStart, PlanStep, PlannedUnit, ProcessId,
    STOP_SLACK_MS, ShimReport, UnitEvent, UnitPolicy, clock_shift::shift, health::Health, instance::KeptInstances,
    rollback::late, step::due, to_millis,
};
use crate::probe::ProbeVerdict;

/// Where an instance has its files, its cgroup and its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// The place of every unit's first instance.
    #[default]
    First,
    /// The place of the instance that is started beside it.
    Second,
}

impl Slot {
    /// Both slots.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    /// Returns the other slot.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Whether it is the first slot.
    #[must_use]
    pub fn is_first(&self) -> bool {
        *self == Self::First
    }
}

/// The second instance of a unit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SecondInstance {
    pub(super) revision: Digest,
    /// When it appeared.
    since_ms: Millis,
    /// Whether it is to end.
    leaving: bool,
    /// The instance; `None` while it is being started.
    alive: Option<LiveSecond>,
}

/// A live second instance.
#[derive(Clone, Debug, PartialEq)]
struct LiveSecond {
    instance: Box<LiveInstance>,
    /// Its last report.
    told: ShimReport,
}

impl LiveSecond {
    /// Creates one that has not reported yet.
    fn new(instance: Box<LiveInstance>) -> Self {
        Self { instance, told: ShimReport::default() }
    }
}

/// The stored state of a second instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSecondInstance {
    /// The revision that it was started as.
    revision: Digest,
    /// When it appeared.
    since_ms: Millis,
    /// Whether it is to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    leaving: bool,
}

impl SecondInstance {
    /// Creates a candidate that is being started.
    fn candidate(revision: Digest, now_ms: Millis) -> Self {
        Self { revision, since_ms: now_ms, leaving: false, alive: None }
    }

    /// Creates it from an instance that was replaced.
    fn replaced(instance: Box<LiveInstance>, since_ms: Millis) -> Self {
        let revision = instance.revision.clone();
        Self { revision, since_ms, leaving: true, alive: Some(LiveSecond::new(instance)) }
    }

    /// The instance, once it has been started.
    fn instance(&self) -> Option<&LiveInstance> {
        self.alive.as_ref().map(|alive| &*alive.instance)
    }

    /// The same, to change it.
    fn instance_mut(&mut self) -> Option<&mut LiveInstance> {
        self.alive.as_mut().map(|alive| &mut *alive.instance)
    }

    /// Shifts its times by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        shift(&mut self.since_ms, by_ms);
        if let Some(instance) = self.instance_mut() {
            instance.shift(by_ms);
        }
    }

    /// Its process.
    fn process(&self) -> Option<ProcessId> {
        self.instance()?.process
    }

    /// The results of its probes.
    fn health(&self) -> Option<&Health> {
        self.instance().map(|instance| &instance.health)
    }

    fn kept(&self) -> KeptSecondInstance {
        KeptSecondInstance { revision: self.revision.clone(), since_ms: self.since_ms, leaving: self.leaving }
    }

    fn shown(&self) -> unit::Beside {
        unit::Beside {
            revision: self.revision.clone(),
            pid: self.process().map(|process| process.pid),
            leaving: self.leaving,
            since_ms: self.since_ms,
        }
    }

    /// Whether it is up under this policy.
    fn is_up(&self, policy: &UnitPolicy, now_ms: Millis) -> bool {
        let Some((alive, process)) = self.instance().and_then(|alive| Some((alive, alive.process?))) else {
            return false;
        };
        let waits = policy.says_ready && !alive.ready || alive.health.awaits(policy.probes);
        let is_said = alive.ready || policy.probes.tells_up();
        !waits && (is_said || process.has_run_for(policy.started_after_ms, now_ms))
    }
}

impl PlannedUnit {
    /// The slot of the unit's main instance.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether the second instance was looked up.
    #[must_use]
    pub fn knows_second(&self) -> bool {
        self.stored().is_none()
    }

    /// Whether there is a second instance.
    #[must_use]
    pub fn has_second(&self) -> bool {
        self.beside.is_some()
    }

    /// Wraps an event of the instance in `slot` for [`PlannedUnit::observe`].
    #[must_use]
    pub fn seen_in(&self, slot: Slot, seen: UnitEvent) -> UnitEvent {
        match seen {
            UnitEvent::Started
            | UnitEvent::NotStarted(_)
            | UnitEvent::StartUnknown
            | UnitEvent::Told(_)
            | UnitEvent::Ended(_)
            | UnitEvent::Found(_)
                if slot != self.slot =>
            {
                UnitEvent::Second(Box::new(seen))
            }
            other => other,
        }
    }

    /// Returns the state to store.
    pub(super) fn kept_second(&self) -> Option<KeptSecondInstance> {
        match self.stored() {
            Some(stored) => stored.second.clone(),
            None => self.beside.as_ref().map(SecondInstance::kept),
        }
    }

    /// What an earlier run of the agent stored, until the instances have been looked up.
    fn stored(&self) -> Option<&KeptInstances> {
        if let EffectiveInstance::Unknown(lookup) = &self.instance { lookup.kept.as_ref() } else { None }
    }

    /// The second instance, if it is a candidate that may replace the main one.
    pub(super) fn candidate(&self) -> Option<&SecondInstance> {
        self.beside.as_ref().filter(|beside| !beside.leaving)
    }

    /// The candidate as far as it can be probed: slot, process, report and health.
    pub(super) fn probed_second(&self) -> Option<(Slot, ProcessId, &ShimReport, &Health)> {
        let candidate = self.candidate()?;
        let LiveSecond { instance, told } = candidate.alive.as_ref()?;
        Some((self.slot.other(), instance.process?, told, &instance.health))
    }

    /// Whether the second instance has this revision, so that it must not be started again.
    pub(super) fn is_second_revision(&self, revision: &Digest) -> bool {
        self.beside.as_ref().is_some_and(|beside| beside.revision == *revision)
    }

    /// Whether the main instance continues until its successor is up. It is stopped first if it is not up or frozen;
    /// and a failed revision must not continue.
    pub(super) fn starts_first(&self, alive: &LiveInstance) -> bool {
        use unit::Phase::{Playing, Running};
        let is_up = matches!(self.observed.phase(), Running | Playing) && alive.process.is_some();
        let is_frozen = alive.report.frozen || self.desired.as_ref().is_some_and(|desired| desired.frozen);
        self.policy.starts_first && is_up && !is_frozen && !self.is_leaving(alive)
    }

    /// Handles that a step for the second instance has begun.
    pub(super) fn begin_second(&mut self, step: PlanStep, now_ms: Millis) {
        match (step, &mut self.beside, &self.desired) {
            (PlanStep::StartSecond, beside, Some(desired)) => {
                *beside = Some(SecondInstance::candidate(desired.revision.clone(), now_ms));
                self.begin_trial(false, now_ms);
            }
            (PlanStep::StopSecond { grace_ms, .. }, Some(SecondInstance { alive: Some(alive), .. }), _) => {
                alive.instance.ends_by_ms =
                    Some(now_ms.saturating_add(to_millis(grace_ms)).saturating_add(STOP_SLACK_MS));
            }
            _ => {}
        }
    }

    /// Returns the next step for the second instance.
    pub(super) fn plan_second(&self, now_ms: Millis) -> Option<PlanStep> {
        let beside = self.beside.as_ref().filter(|_| self.knows_second())?;
        if !beside.leaving {
            return self.candidate_again_ms(beside, now_ms).map(PlanStep::WaitUntil);
        }
        let alive = beside.instance()?;
        let (signal, grace_ms) = self.way_to_end(&beside.revision);
        Some(match alive.ends_by_ms {
            None => PlanStep::StopSecond { signal, grace_ms },
            by_ms => due(by_ms, now_ms).unwrap_or(PlanStep::StopSecond { signal: Some(Signal::Kill), grace_ms: 0 }),
        })
    }

    /// The stop signal and grace period for an instance of this revision, by its own spec if that is still known.
    fn way_to_end(&self, revision: &Digest) -> (Option<Signal>, u64) {
        let policy = self.spec_of(revision).map_or(self.policy, UnitPolicy::of);
        (policy.stop_signal, policy.grace_ms)
    }

    /// When to check the candidate again.
    fn candidate_again_ms(&self, candidate: &SecondInstance, now_ms: Millis) -> Option<Millis> {
        let policy = &self.policy;
        let process = candidate.process();
        let stays = process.map(|process| process.started_ms.saturating_add(policy.started_after_ms));
        let awaits = candidate.health().filter(|health| process.is_some() && health.awaits(policy.probes));
        let probed = awaits.map(|health| health.up_by_ms(policy.start_timeout_ms));
        let times = [self.candidate_by_ms(candidate), stays, probed];
        times.into_iter().flatten().filter(|at_ms| *at_ms > now_ms).min()
    }

    /// Until when the candidate may take to come up. A start has a deadline of its own.
    fn candidate_by_ms(&self, candidate: &SecondInstance) -> Option<Millis> {
        candidate.alive.as_ref().map(|_| candidate.since_ms.saturating_add(self.policy.healthy_within_ms))
    }

    /// Handles an event of the second instance.
    pub(super) fn handle_second_event(&mut self, seen: UnitEvent, now_ms: Millis) {
        match (seen, &mut self.beside) {
            (UnitEvent::Found(found), _) => self.handle_second_found(found, now_ms),
            (UnitEvent::Started, Some(beside)) if beside.alive.is_none() => {
                beside.alive = Some(LiveSecond::new(LiveInstance::new(beside.revision.clone(), 0)));
            }
            (UnitEvent::NotStarted(failure), Some(beside)) if beside.alive.is_none() => {
                self.handle_second_end(failure.error, now_ms);
            }
            (UnitEvent::Told(told), Some(_)) => self.handle_second_report(told, now_ms),
            (UnitEvent::Ended(over), Some(beside)) if beside.alive.is_some() => self.handle_second_exit(&over, now_ms),
            _ => {}
        }
    }

    /// Handles the result of its lookup.
    fn handle_second_found(&mut self, found: FoundInstance, now_ms: Millis) {
        let kept = self.kept_second();
        match found {
            FoundInstance::Alive(revision, told) => {
                let kept = kept.filter(|kept| kept.revision == revision);
                // One whose time is over has it anew: the clock may have been set meanwhile.
                let is_within = |since_ms: &Millis| now_ms.saturating_sub(*since_ms) < self.policy.healthy_within_ms;
                let since_ms = kept.as_ref().map(|kept| kept.since_ms.min(now_ms)).filter(is_within).unwrap_or(now_ms);
                // An instance without a stored state is a candidate if it has the desired revision.
                let leaving = kept.map_or_else(|| !self.desires(&revision), |kept| kept.leaving);
                let alive = Some(LiveSecond::new(LiveInstance::new(revision.clone(), told.restarts)));
                self.beside = Some(SecondInstance { revision, since_ms, leaving, alive });
                self.handle_second_report(told, now_ms);
            }
            // A candidate that ended is tried once more; the main instance continues meanwhile.
            FoundInstance::Ended(_) | FoundInstance::Nothing => self.beside = None,
        }
    }

    fn handle_second_report(&mut self, told: ShimReport, now_ms: Millis) {
        let Some(SecondInstance { alive: Some(second), leaving, .. }) = &mut self.beside else { return };
        let LiveSecond { instance: alive, told: known } = second;
        let more = told.restarts.saturating_sub(alive.restarts);
        (alive.process, alive.ready, alive.restarts) = (told.process, told.ready, told.restarts);
        alive.health.observe(told.process, now_ms);
        *known = told;
        let silent = known.last.as_ref().filter(|last| more > 0 && last.silent && !*leaving).cloned();
        if let Some(last) = silent {
            self.observed.last_lines.clone_from(&last.last_lines);
            self.candidate_failed(last.by_itself(), now_ms);
        }
    }

    fn handle_second_exit(&mut self, over: &InstanceEnd, now_ms: Millis) {
        if self.candidate().is_some() {
            self.observed.last_lines.clone_from(&over.last.last_lines);
        }
        self.handle_second_end(over.last.by_itself(), now_ms);
    }

    /// Handles its end; a candidate has failed then.
    fn handle_second_end(&mut self, why: Diagnostic, now_ms: Millis) {
        let was_candidate = self.candidate().is_some() && self.wants_candidate();
        self.beside = None;
        if was_candidate {
            self.candidate_failed(why, now_ms);
        }
    }

    /// Decides what becomes of it, once the main instance is looked up.
    pub(super) fn decide_second(&mut self, now_ms: Millis) {
        let is_wanted = self.wants_candidate();
        let (policy, is_alone) = (self.policy, self.instance == EffectiveInstance::None);
        let is_late =
            self.candidate().and_then(|beside| self.candidate_by_ms(beside)).is_some_and(|by_ms| by_ms <= now_ms);
        let Some(beside) = self.beside.as_mut().filter(|beside| !beside.leaving) else { return };
        // After a clock was set back, it must not get more time.
        beside.since_ms = beside.since_ms.min(now_ms);
        if let Some(alive) = beside.instance_mut() {
            alive.health.judge(policy.probes, policy.start_timeout_ms, now_ms);
        }
        if !is_wanted {
            beside.leaving = true;
        } else if is_alone || beside.is_up(&policy, now_ms) {
            self.take_over(now_ms);
        } else if let Some(why) = beside.health().and_then(Health::condemned).cloned() {
            self.candidate_failed(why, now_ms);
        } else if is_late {
            let probed = beside.health().and_then(Health::unready);
            let within_s = policy.healthy_within_ms / 1_000;
            self.candidate_failed(late(within_s, probed), now_ms);
        }
    }

    /// Whether the candidate may still replace the main instance. A held unit is left as it was.
    fn wants_candidate(&self) -> bool {
        let Some(beside) = &self.beside else { return false };
        let runs_already =
            matches!(&self.instance, EffectiveInstance::Alive(alive) if alive.revision == beside.revision);
        let may = self.wants_running() && !self.is_held() && !self.next_start.is_never();
        may && self.desires(&beside.revision) && !runs_already
    }

    /// Makes the candidate the main instance; the previous one is to end.
    fn take_over(&mut self, now_ms: Millis) {
        let Some(SecondInstance { revision, alive, .. }) = self.beside.take() else { return };
        let before = std::mem::replace(&mut self.instance, EffectiveInstance::Launching(revision));
        self.slot = self.slot.other();
        if let EffectiveInstance::Alive(before) = before {
            self.beside = Some(SecondInstance::replaced(before, now_ms));
        }
        self.next_start.forget_wait();
        self.observed.error = None;
        if let Some(LiveSecond { instance: alive, told }) = alive {
            // Only its own restarts count from now on.
            self.observed.attempts = alive.restarts;
            self.instance = EffectiveInstance::Alive(alive);
            self.play.begin(false);
            self.handle_report(told, now_ms);
        }
    }

    /// Handles a failed candidate. The main instance continues.
    fn candidate_failed(&mut self, why: Diagnostic, now_ms: Millis) {
        if let Some(beside) = &mut self.beside {
            beside.leaving = true;
        }
        if self.go_back(why.clone(), now_ms) {
            return;
        }
        self.next_start = NextStart::Failed;
        self.fail_beside_instance(why);
    }

    /// Updates the report of the second instance.
    pub(super) fn report_second(&mut self) {
        let shown = self.beside.as_ref().map(SecondInstance::shown);
        if self.observed.beside != shown {
            self.observed.beside = shown;
        }
    }

    /// Handles a result of a probe, of either instance.
    pub(super) fn probed_by(&mut self, process: ProcessId, which: Which, verdict: ProbeVerdict) {
        if let Some(alive) = self.beside.as_mut().and_then(SecondInstance::instance_mut) {
            alive.health.probed(process, which, verdict.clone());
        }
        if let EffectiveInstance::Alive(alive) = &mut self.instance {
            alive.health.probed(process, which, verdict);
        }
    }
}
