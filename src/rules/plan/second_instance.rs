//! The second instance: the process of a new revision beside the one that it replaces, for a replacement
//! without a break.
//!
//! It begins as a *candidate*: started in the desired revision, while the present instance goes on. Once it
//! is up it *takes over*: it becomes the unit's instance, and the old one is the second, which is *leaving*.
//! A candidate that fails, or is no longer desired, leaves without having taken over.
//!
//! - It is up as any instance is: by its own word, by its probes, or because it has stayed up for a while.
//! - It fails when it could not be started, has ended for good, was silent for too long, has a failing probe, or is
//!   not up within [`YunoSpec::healthy_within`]. Then the unit is rolled back (`rollback`), which needs no start,
//!   because the old instance still runs. Without a verified revision the unit fails, and the old instance goes on all the same.
//! - If the old instance ends meanwhile, the candidate takes over as it is.
//!
//! Each has files in a [`Slot`]; the one that takes over keeps its own.
//!
//! **Invariant: there are at most two instances, and never two of one revision.** A revision that is still leaving is not started.
//!
//! **Invariant: a unit at rest has at most one**: while there is a second, there is always a step to take, or to wait for.
//!
//! [`YunoSpec::healthy_within`]: muster_topics::unit::YunoSpec::healthy_within

use muster_topics::{Millis, name::Digest, probe::Which, signal::Signal, unit};
use serde::{Deserialize, Serialize};

use super::{
    EffectiveInstance, FoundInstance, InstanceEnd, LiveInstance, PlanStep, PlannedUnit, ProcessId, STOP_SLACK_MS,
    ShimReport, StopReason, UnitEvent, UnitPolicy, health::Health, observe::by_itself, step::due, to_millis,
};
use crate::probe::ProbeVerdict;

/// Where an instance has what is its own: its files, its cgroup, its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// Where every unit's first instance has it.
    #[default]
    First,
    /// Where the one has it that was started beside that.
    Second,
}

impl Slot {
    /// Both.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    /// The one beside.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Whether it is the first.
    #[must_use]
    pub fn is_first(&self) -> bool {
        *self == Self::First
    }
}

/// The second instance.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SecondInstance {
    pub(super) revision: Digest,
    /// Since when it is there.
    since_ms: Millis,
    /// It is to end, and will be nothing else any more.
    leaving: bool,
    /// Nothing while it is being started.
    alive: Option<LiveInstance>,
    health: Health,
    /// What was told of it last.
    told: ShimReport,
}

/// What is kept of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSecondInstance {
    /// What it was started as.
    revision: Digest,
    /// Since when it is there.
    since_ms: Millis,
    /// It is to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    leaving: bool,
}

/// What is known of it after a start of the agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FoundSecondInstance {
    /// No more than this.
    Kept(Option<KeptSecondInstance>),
    /// All: it was looked up.
    All,
}

impl SecondInstance {
    /// A candidate that is being started.
    fn candidate(revision: Digest, now_ms: Millis) -> Self {
        Self {
            revision,
            since_ms: now_ms,
            leaving: false,
            alive: None,
            health: Health::default(),
            told: ShimReport::default(),
        }
    }

    /// What there was of an instance that another has replaced.
    fn replaced(alive: LiveInstance, since_ms: Millis) -> Self {
        Self { leaving: true, alive: Some(alive.clone()), ..Self::candidate(alive.revision, since_ms) }
    }

    /// Its process.
    fn process(&self) -> Option<ProcessId> {
        self.alive.as_ref()?.process
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

    /// Whether it is up, as one that is treated like this.
    fn is_up(&self, policy: &UnitPolicy, now_ms: Millis) -> bool {
        let Some((alive, process)) = self.alive.as_ref().and_then(|alive| Some((alive, alive.process?))) else {
            return false;
        };
        let waits = policy.says_ready && !alive.ready || self.health.awaits(policy.probes);
        let is_said = alive.ready || policy.probes.tells_up();
        !waits && (is_said || now_ms >= process.started_ms.saturating_add(policy.started_after_ms))
    }
}

impl PlannedUnit {
    /// Where what is its own has the instance that it is known by.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether it is known what there is beside that.
    #[must_use]
    pub fn knows_beside(&self) -> bool {
        self.known == FoundSecondInstance::All
    }

    /// Whether there is another instance of it.
    #[must_use]
    pub fn has_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// What was seen of the instance in a slot, as [`PlannedUnit::observe`] takes it.
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

    /// What is to be kept of it.
    pub(super) fn kept_beside(&self) -> Option<KeptSecondInstance> {
        match &self.known {
            FoundSecondInstance::Kept(kept) => kept.clone(),
            FoundSecondInstance::All => self.beside.as_ref().map(SecondInstance::kept),
        }
    }

    /// Whether it is another that takes the place of what runs, or may.
    pub(super) fn candidate(&self) -> Option<&SecondInstance> {
        self.beside.as_ref().filter(|beside| !beside.leaving)
    }

    /// The candidate as far as it can be probed: where it is, its process, what it was started with, what is known of it.
    pub(super) fn probed_beside(&self) -> Option<(Slot, ProcessId, &ShimReport, &Health)> {
        let candidate = self.candidate()?;
        Some((self.slot.other(), candidate.process()?, &candidate.told, &candidate.health))
    }

    /// Whether a revision is that of the second instance, so that it must not be started again.
    pub(super) fn is_beside(&self, revision: &Digest) -> bool {
        self.beside.as_ref().is_some_and(|beside| beside.revision == *revision)
    }

    /// Whether what runs goes on while another is started in its place. What is not up, or is suspended, has nothing to
    /// go on with; and what has failed is not to be trusted with it.
    pub(super) fn starts_first(&self, alive: &LiveInstance) -> bool {
        use unit::Phase::{Playing, Running};
        let is_up = matches!(self.observed.phase, Running | Playing) && alive.process.is_some();
        let is_frozen = self.observed.frozen || self.desired.as_ref().is_some_and(|desired| desired.frozen);
        self.policy.starts_first && is_up && !is_frozen && !self.is_leaving(alive)
    }

    /// A step has begun that is about it.
    pub(super) fn begin_beside(&mut self, step: PlanStep, now_ms: Millis) {
        match (step, &mut self.beside, &self.desired) {
            (PlanStep::StartSecond, beside, Some(desired)) => {
                *beside = Some(SecondInstance::candidate(desired.revision.clone(), now_ms));
                self.begin_trial(false, now_ms);
            }
            (PlanStep::StopSecond { grace_ms, .. }, Some(SecondInstance { alive: Some(alive), .. }), _) => {
                alive.ends_by_ms = Some(now_ms.saturating_add(to_millis(grace_ms)).saturating_add(STOP_SLACK_MS));
            }
            _ => {}
        }
    }

    /// What to do about it now.
    pub(super) fn plan_beside(&self, now_ms: Millis) -> Option<PlanStep> {
        let beside = self.beside.as_ref().filter(|_| self.knows_beside())?;
        if !beside.leaving {
            return self.candidate_again_ms(beside, now_ms).map(PlanStep::WaitUntil);
        }
        let alive = beside.alive.as_ref()?;
        let (signal, grace_ms) = self.way_to_end(&beside.revision);
        Some(match alive.ends_by_ms {
            None => PlanStep::StopSecond { signal, grace_ms },
            by_ms => due(by_ms, now_ms).unwrap_or(PlanStep::StopSecond { signal: Some(Signal::Kill), grace_ms: 0 }),
        })
    }

    /// How what runs in a revision is asked to end, and how long it may take: as its own spec says, if that is still known.
    fn way_to_end(&self, revision: &Digest) -> (Option<Signal>, u64) {
        let policy = self.spec_of(revision).map_or(self.policy, UnitPolicy::of);
        (policy.stop_signal, policy.grace_ms)
    }

    /// When to look at a candidate again.
    fn candidate_again_ms(&self, candidate: &SecondInstance, now_ms: Millis) -> Option<Millis> {
        let policy = &self.policy;
        let process = candidate.process();
        let stays = process.map(|process| process.started_ms.saturating_add(policy.started_after_ms));
        let awaits = process.filter(|_| candidate.health.awaits(policy.probes));
        let probed = awaits.map(|_| candidate.health.up_by_ms(policy.start_timeout_ms));
        let times = [self.candidate_by_ms(candidate), stays, probed];
        times.into_iter().flatten().filter(|at_ms| *at_ms > now_ms).min()
    }

    /// Until when a candidate may take to be up. What is being started has a deadline of its own.
    fn candidate_by_ms(&self, candidate: &SecondInstance) -> Option<Millis> {
        candidate.alive.as_ref().map(|_| candidate.since_ms.saturating_add(self.policy.healthy_within_ms))
    }

    /// Takes in what was seen of it.
    pub(super) fn beside_seen(&mut self, seen: UnitEvent, now_ms: Millis) {
        match (seen, &mut self.beside) {
            (UnitEvent::Found(found), _) => self.found_beside(found, now_ms),
            (UnitEvent::Started, Some(beside)) if beside.alive.is_none() => {
                beside.health.begin();
                beside.alive = Some(LiveInstance::new(beside.revision.clone(), 0));
            }
            (UnitEvent::NotStarted(failure), Some(beside)) if beside.alive.is_none() => {
                self.beside_is_gone(&failure.error, now_ms);
            }
            (UnitEvent::Told(told), Some(_)) => self.told_of_beside(told, now_ms),
            (UnitEvent::Ended(over), Some(beside)) if beside.alive.is_some() => self.beside_ended(&over, now_ms),
            _ => {}
        }
    }

    /// It was looked up, after a start of the agent or one that nobody saw the end of.
    fn found_beside(&mut self, found: FoundInstance, now_ms: Millis) {
        let kept = self.kept_beside();
        match found {
            FoundInstance::Alive(revision, told) => {
                let kept = kept.filter(|kept| kept.revision == revision);
                let since_ms = kept.as_ref().map_or(now_ms, |kept| kept.since_ms.min(now_ms));
                // What nobody knows of is a candidate if it is what is desired.
                let leaving = kept.map_or_else(|| !self.desires(&revision), |kept| kept.leaving);
                let alive = Some(LiveInstance::new(revision.clone(), told.restarts));
                self.beside = Some(SecondInstance { leaving, alive, ..SecondInstance::candidate(revision, since_ms) });
                self.told_of_beside(told, now_ms);
            }
            // If it was a candidate it is tried once more: what runs goes on meanwhile.
            FoundInstance::Ended(_) | FoundInstance::Nothing => self.beside = None,
        }
    }

    /// It is known now what there is beside.
    pub(super) fn beside_is_known(&mut self) {
        self.known = FoundSecondInstance::All;
    }

    fn told_of_beside(&mut self, told: ShimReport, now_ms: Millis) {
        let Some(SecondInstance { alive: Some(alive), health, told: known, leaving, .. }) = &mut self.beside else {
            return;
        };
        let more = told.restarts.saturating_sub(alive.restarts);
        (alive.process, alive.ready, alive.restarts) = (told.process, told.ready, told.restarts);
        health.heard(told.process, now_ms);
        *known = told;
        let silent = known.last.as_ref().filter(|last| more > 0 && last.silent && !*leaving).cloned();
        if let Some(last) = silent {
            self.observed.last_lines.clone_from(&last.last_lines);
            self.candidate_failed(&by_itself(&last), now_ms);
        }
    }

    fn beside_ended(&mut self, over: &InstanceEnd, now_ms: Millis) {
        if self.candidate().is_some() {
            self.observed.last_lines.clone_from(&over.last.last_lines);
        }
        self.beside_is_gone(&by_itself(&over.last), now_ms);
    }

    /// There is none any more; if it was a candidate it has failed.
    fn beside_is_gone(&mut self, why: &str, now_ms: Millis) {
        let was_candidate = self.candidate().is_some() && self.wants_candidate();
        self.beside = None;
        if was_candidate {
            self.candidate_failed(why, now_ms);
        }
    }

    /// Works out what becomes of it. What the unit is known by is known.
    pub(super) fn follow_beside(&mut self, now_ms: Millis) {
        let is_wanted = self.wants_candidate();
        let (policy, is_alone) = (self.policy, self.instance == EffectiveInstance::None);
        let is_late =
            self.candidate().and_then(|beside| self.candidate_by_ms(beside)).is_some_and(|by_ms| by_ms <= now_ms);
        let Some(beside) = self.beside.as_mut().filter(|beside| !beside.leaving) else { return };
        // A clock that was set back must not give it more time than it has.
        beside.since_ms = beside.since_ms.min(now_ms);
        beside.health.judge(policy.probes, policy.start_timeout_ms, now_ms);
        if !is_wanted {
            beside.leaving = true;
        } else if is_alone || beside.is_up(&policy, now_ms) {
            self.take_over(now_ms);
        } else if let Some(why) = beside.health.condemned().cloned() {
            self.candidate_failed(&why, now_ms);
        } else if is_late {
            let probed = beside.health.unready().map(|why| format!(": {why}")).unwrap_or_default();
            let within_s = policy.healthy_within_ms / 1_000;
            self.candidate_failed(&format!("it was not up within {within_s} s{probed}"), now_ms);
        }
    }

    /// Whether a candidate is still what is to replace what runs. What is held is left as it was before.
    fn wants_candidate(&self) -> bool {
        let Some(beside) = &self.beside else { return false };
        let runs_already =
            matches!(&self.instance, EffectiveInstance::Alive(alive) if alive.revision == beside.revision);
        let may = self.wants_running() && !self.is_held() && self.rest.is_none();
        may && self.desires(&beside.revision) && !runs_already
    }

    /// The candidate is the unit's instance from now on, and the one of before is leaving.
    fn take_over(&mut self, now_ms: Millis) {
        let Some(SecondInstance { revision, alive, health, told, .. }) = self.beside.take() else { return };
        let before = std::mem::replace(&mut self.instance, EffectiveInstance::Launching(revision));
        self.slot = self.slot.other();
        if let EffectiveInstance::Alive(before) = before {
            self.beside = Some(SecondInstance::replaced(before, now_ms));
        }
        (self.outdated, self.not_reloaded, self.health) = (false, None, health);
        self.kept_restarts = 0;
        self.restart_ms = None;
        self.observed.error = None;
        if let Some(alive) = alive {
            // What is told counts what is new.
            self.observed.attempts = alive.restarts;
            self.instance = EffectiveInstance::Alive(alive);
            self.play.begin(false);
            self.told(told, now_ms);
        }
    }

    /// The candidate cannot take over. What runs goes on.
    fn candidate_failed(&mut self, why: &str, now_ms: Millis) {
        if let Some(beside) = &mut self.beside {
            beside.leaving = true;
        }
        if self.go_back(why, now_ms) {
            return;
        }
        self.rest = Some(StopReason::Failed);
        let still = match &self.instance {
            EffectiveInstance::Alive(alive) => format!("; revision {} goes on running", alive.revision.short()),
            _ => String::new(),
        };
        self.fail(&format!("{why}{still}"));
    }

    /// What others see of it.
    pub(super) fn tell_beside(&mut self) {
        let shown = self.beside.as_ref().map(SecondInstance::shown);
        if self.observed.beside != shown {
            self.observed.beside = shown;
        }
    }

    /// What a probe has found of a process, whichever of the two has it.
    pub(super) fn probed_by(&mut self, process: ProcessId, which: Which, verdict: ProbeVerdict) {
        if let Some(beside) = &mut self.beside {
            beside.health.probed(process, which, verdict.clone());
        }
        self.health.probed(process, which, verdict);
    }
}
