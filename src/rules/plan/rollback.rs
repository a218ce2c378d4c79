//! Verified revisions, and rolling a unit back to one.
//!
//! A revision is *verified* once the unit has been up in it, and ready, for a while without a break
//! ([`CommonSpec::verify_after_ms`]).
//! A later revision is *on trial* until it is verified itself. Its trial fails
//!
//! - when it cannot be installed or started, and a retry would not help;
//! - when it would have to wait before its next start. So a process that ends by itself gets its immediate restarts, because it
//!   may have lost a race with its predecessor for a port or a lock, and no more;
//! - when its spec does not restart it after a failure;
//! - when it was ended because it was silent for too long, or its probes found that it hangs;
//! - when it is not up within its time ([`Spec::healthy_within`]), probes included.
//!
//! The unit is then *rolled back*: from there on it is kept as the verified spec says, as a whole, under the desired
//! generation. So everything that follows (order, endpoints, restarts with their waits) sees one spec.
//!
//! **Invariant: a generation is rolled back once, and never retried by itself**: also after a restart of the agent or
//! the host, the unit continues with the verified revision. The next generation is a new attempt, whatever has changed.
//!
//! **Invariant: only a revision that was up is verified**: one that is held, suspended or starting proves nothing. A finished task
//! is no state to go back to.
//!
//! [`CommonSpec::verify_after_ms`]: muster_topics::common::CommonSpec::verify_after_ms
//! [`Spec::healthy_within`]: muster_topics::unit::Spec::healthy_within

use std::sync::Arc;

use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::Digest,
    unit::{Desired, Phase, RolledBack, Spec, TrialReport},
};

use crate::conflict::ConflictVerdict;

use super::{EffectiveInstance, LiveInstance, NextStart, PlannedUnit, clock_shift::shift, observe::shortened};

/// A revision that a unit can be rolled back to.
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRevision {
    /// Its id.
    pub revision: Digest,
    /// Its complete spec.
    pub spec: Arc<Spec>,
    /// When it was verified.
    pub since_ms: Millis,
}

/// The verified revision, and the trial of the requested one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RevisionTrial {
    /// The last verified revision.
    pub(super) verified: Option<Arc<VerifiedRevision>>,
    /// How the trial of the requested revision stands.
    state: TrialState,
    /// Whether it was begun in an earlier run of the agent, and was not judged in this one.
    is_restored: bool,
    /// The process that is up without interruption, and since when.
    up: Option<(RevisionProcess, Millis)>,
    /// Whether other units of the deployment's version have to be up, too, before this one is verified.
    group_waits: bool,
    /// Why it stays, though the version that has brought it has gone back.
    group_stays: Option<Diagnostic>,
}

/// How the trial of the requested revision stands.
#[derive(Clone, Debug, Default, PartialEq)]
enum TrialState {
    /// It is not on trial: it is verified, has not been started, or there is nothing to roll back to.
    #[default]
    Idle,
    /// It is on trial.
    Begun {
        /// Since when.
        since_ms: Millis,
    },
    /// It has failed, and the unit is rolled back from this requested state.
    Failed(Box<Desired>),
}

/// A process of a certain revision, by its id and start time; `None` for an instance without processes.
#[derive(Clone, Debug, PartialEq)]
struct RevisionProcess {
    revision: Digest,
    process: Option<(i32, u64)>,
}

impl RevisionTrial {
    /// Restores it from the store.
    pub(super) fn restore(verified: Option<Arc<VerifiedRevision>>, since_ms: Option<Millis>) -> Self {
        let state = since_ms.map_or(TrialState::Idle, |since_ms| TrialState::Begun { since_ms });
        Self { verified, state, is_restored: since_ms.is_some(), ..Self::default() }
    }

    /// When the trial began, if it goes on.
    pub(super) fn since_ms(&self) -> Option<Millis> {
        if let TrialState::Begun { since_ms } = self.state { Some(since_ms) } else { None }
    }

    /// The requested desired state, while the unit is rolled back from it.
    fn refused(&self) -> Option<&Desired> {
        if let TrialState::Failed(refused) = &self.state { Some(refused) } else { None }
    }

    /// Shifts its times by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        if let TrialState::Begun { since_ms } = &mut self.state {
            shift(since_ms, by_ms);
        }
        self.up.iter_mut().for_each(|(_, since_ms)| shift(since_ms, by_ms));
    }

    /// Ends the trial, if it goes on.
    fn end(&mut self) {
        if self.since_ms().is_some() {
            self.state = TrialState::Idle;
        }
    }
}

impl PlannedUnit {
    /// The desired state that operators requested; [`PlannedUnit::desired`] differs from it while the unit is rolled
    /// back.
    #[must_use]
    pub fn asked(&self) -> Option<&Desired> {
        self.trial.refused().or(self.desired.as_ref())
    }

    /// The verified revision.
    #[must_use]
    pub fn verified(&self) -> Option<&VerifiedRevision> {
        self.trial.verified.as_deref()
    }

    /// Returns the spec of a revision, if it is still known.
    pub(super) fn spec_of(&self, revision: &Digest) -> Option<&Spec> {
        let asked = self.asked().filter(|asked| asked.revision == *revision).map(|asked| &*asked.spec);
        let verified = self.verified().filter(|verified| verified.revision == *revision);
        asked.or(verified.map(|verified| &*verified.spec))
    }

    /// Whether its ports and connections have to be computed before it can start.
    #[must_use]
    pub fn needs_wiring(&self) -> bool {
        self.needs.needs_wiring()
    }

    /// Sets the desired state, after `before`: the requested one, unless an earlier run of the agent rolled back from
    /// exactly that.
    pub(super) fn set_desired(&mut self, before: Option<&Desired>, desired: Option<Desired>) {
        let has_failed = |desired: &Desired| {
            let rolled_back = self.observed.rolled_back();
            rolled_back.is_some_and(|rolled_back| rolled_back.generation == desired.generation)
        };
        let stays_back = before.is_none() && self.trial.verified.is_some() && desired.as_ref().is_some_and(has_failed);
        let revision = |desired: Option<&Desired>| desired.map(|desired| desired.revision.clone());
        let is_other = before.is_some() && revision(before) != revision(desired.as_ref());
        if is_other || self.is_back() {
            self.trial.state = TrialState::Idle;
        }
        self.needs.set_needs_wiring(false);
        self.desired = desired;
        if stays_back {
            self.set_verified_as_desired();
            return;
        }
        if let Some(back) = self.observed.rolled_back() {
            self.observed.trial = TrialReport::Verified(back.to.clone());
        }
        if self.desired.is_none() {
            // Another unit of the same name inherits nothing.
            self.trial = RevisionTrial::default();
        }
        if let (Some(desired), Some(verified)) = (&self.desired, &mut self.trial.verified)
            && verified.revision == desired.revision
            && verified.spec != desired.spec
        {
            // Changes that need no restart do not affect what was verified.
            *verified = Arc::new(VerifiedRevision { spec: desired.spec.clone(), ..VerifiedRevision::clone(verified) });
        }
    }

    /// Sets the verified spec as the desired one, under the requested generation.
    fn set_verified_as_desired(&mut self) {
        let (Some(verified), Some(asked)) = (&self.trial.verified, self.desired.take()) else { return };
        let (revision, spec) = (verified.revision.clone(), verified.spec.clone());
        self.desired = Some(Desired { revision, spec, ..asked });
        self.trial.state = TrialState::Failed(Box::new(asked));
    }

    /// Takes over what becomes of it because of other units that want the same.
    pub(super) fn take_verdict(&mut self, verdict: Option<ConflictVerdict>, now_ms: Millis) {
        let hold = match verdict {
            Some(ConflictVerdict::GoBack(why)) if self.go_back(format!("conflict: {why}").into(), now_ms) => None,
            Some(ConflictVerdict::GoBack(why) | ConflictVerdict::Hold(why)) => Some(why),
            None => None,
        };
        self.needs.set_conflict(hold, now_ms);
    }

    /// Which other unit has what it wants, while it is held for that.
    #[must_use]
    pub fn conflict(&self) -> Option<&str> {
        self.needs.conflict()
    }

    /// The spec that it is rolled back to, or goes on as, if the desired one gives way.
    #[must_use]
    pub fn earlier(&self) -> Option<&Arc<Spec>> {
        let desired = self.desired.as_ref().filter(|_| !self.is_back())?;
        let verified = self.trial.verified.as_ref().filter(|verified| verified.revision != desired.revision)?;
        Some(&verified.spec)
    }

    /// Whether its desired revision would be another state of the host than the present one: it is not in effect, nor one
    /// that was verified and is restarted.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        let Some(desired) = self.desired.as_ref().filter(|_| !self.is_back()) else { return false };
        let rests = matches!(self.observed.phase(), Phase::Stopped | Phase::Absent | Phase::Installing);
        let is_verified = self.verified().is_some_and(|verified| verified.revision == desired.revision);
        !self.is_in_effect(&desired.revision) && (rests || !is_verified)
    }

    fn is_in_effect(&self, revision: &Digest) -> bool {
        match &self.instance {
            EffectiveInstance::Alive(alive) => alive.revision == *revision,
            EffectiveInstance::Launching(launching) => launching == revision,
            EffectiveInstance::Unknown(_) => {
                let was_up = matches!(self.observed.phase(), Phase::Starting | Phase::Running | Phase::Playing);
                was_up && self.observed.revision.as_ref() == Some(revision)
            }
            EffectiveInstance::None => false,
        }
    }

    /// Whether it wants the resources of its spec: it should run, or something of it does.
    #[must_use]
    pub fn is_claiming(&self) -> bool {
        self.wants_running() || !matches!(self.instance, EffectiveInstance::None | EffectiveInstance::Unknown(_))
    }

    /// Whether it is a part of a change that goes back together.
    #[must_use]
    pub fn goes_back_together(&self) -> bool {
        self.policy.rolls_back
    }

    /// Whether it was rolled back from its desired revision.
    #[must_use]
    pub fn has_gone_back(&self) -> bool {
        self.is_back()
    }

    /// Whether its desired revision is up, and would be verified if no other unit had to be.
    #[must_use]
    pub fn is_proven(&self, now_ms: Millis) -> bool {
        self.verified_at_ms().map_or(self.trial.up.is_some(), |at_ms| at_ms <= now_ms)
    }

    /// Whether it can go back from its desired revision: that is not verified, and another one was.
    #[must_use]
    pub fn can_go_back(&self) -> bool {
        self.fallback().is_some()
    }

    /// Since when its desired revision is on trial.
    #[must_use]
    pub fn trial_since_ms(&self) -> Option<Millis> {
        self.trial.since_ms()
    }

    /// Whether the instance of the revision that it is rolled back from still is in effect.
    #[must_use]
    pub fn has_failed_instance(&self) -> bool {
        matches!(&self.instance, EffectiveInstance::Alive(alive) if self.is_leaving(alive))
    }

    pub(super) fn set_group_waits(&mut self, waits: bool) {
        self.trial.group_waits = waits;
    }

    /// Whether other units have to be up before it is verified.
    #[must_use]
    pub fn group_waits(&self) -> bool {
        self.trial.group_waits
    }

    pub(super) fn set_group_stays(&mut self, why: Option<Diagnostic>) {
        self.trial.group_stays = why;
    }

    /// Why it stays, though the version that has brought it has gone back.
    #[must_use]
    pub fn group_stays(&self) -> Option<&Diagnostic> {
        self.trial.group_stays.as_ref()
    }

    /// Adds to the report that it stays, and why.
    pub(super) fn report_stay(&mut self) {
        let Some(why) = self.trial.group_stays.clone() else { return };
        let error = match self.observed.error.take() {
            None => why,
            Some(error) if error.cause.contains(&why.cause) => error,
            Some(error) => error.and(why),
        };
        self.observed.error = Some(shortened(error));
    }

    /// Whether it is rolled back.
    pub(super) fn is_back(&self) -> bool {
        self.trial.refused().is_some()
    }

    /// The revision to roll back to if the desired one fails.
    fn fallback(&self) -> Option<&Arc<VerifiedRevision>> {
        let desired = self.desired.as_ref()?;
        let verified = self.trial.verified.as_ref().filter(|verified| verified.revision != desired.revision)?;
        let may = self.policy.rolls_back && !self.is_back() && desired.run.is_running() && self.hold.is_none();
        may.then_some(verified)
    }

    /// Whether it would be rolled back if the desired revision failed.
    pub(super) fn is_on_trial(&self) -> bool {
        self.trial.since_ms().is_some() && self.fallback().is_some()
    }

    /// Updates the report of the trial.
    pub(super) fn report_trial(&mut self) {
        if self.observed.rolled_back().is_some() {
            return;
        }
        let verified = self.trial.verified.as_ref().map(|verified| verified.revision.clone());
        self.observed.trial = match verified {
            None => TrialReport::Unverified,
            Some(verified) if self.is_on_trial() => TrialReport::OnTrial { verified },
            Some(verified) => TrialReport::Verified(verified),
        };
    }

    /// Starts the trial of the desired revision. A retry does not restart it.
    pub(super) fn begin_trial(&mut self, is_retry: bool, now_ms: Millis) {
        if self.is_back() || is_retry && self.trial.since_ms().is_some() {
            return;
        }
        self.trial.state = match self.fallback() {
            Some(_) => TrialState::Begun { since_ms: now_ms },
            None => TrialState::Idle,
        };
    }

    /// Handles a failure of the desired revision: rolls back. Returns false if there is nothing to roll back to, so
    /// that the failure is handled as usual.
    pub(super) fn go_back(&mut self, why: Diagnostic, now_ms: Millis) -> bool {
        let (Some(verified), Some(desired)) = (self.fallback().cloned(), &self.desired) else { return false };
        self.observed.trial = TrialReport::RolledBack(RolledBack {
            generation: desired.generation,
            revision: desired.revision.clone(),
            to: verified.revision.clone(),
            error: shortened(why),
            at_ms: now_ms,
            last_lines: self.observed.last_lines.take(),
        });
        self.set_verified_as_desired();
        self.take_policy();
        self.trial.up = None;
        self.needs.set_needs_wiring(true);
        self.next_start = NextStart::Now;
        self.forget_failures();
        // The failed process is restarted rather than reloaded.
        if let EffectiveInstance::Alive(alive) = &mut self.instance {
            alive.not_reloaded = Some(verified.revision.clone());
        }
        true
    }

    /// Whether an instance is of the revision that failed.
    pub(super) fn is_leaving(&self, alive: &LiveInstance) -> bool {
        self.trial.refused().is_some_and(|refused| refused.revision == alive.revision) && !self.desires(&alive.revision)
    }

    /// Forgets the verified revision, for a task that has finished.
    pub(super) fn forget_verified(&mut self) {
        if !self.is_back() {
            (self.trial.verified, self.trial.state) = (None, TrialState::Idle);
        }
    }

    /// The process that is up, if it counts for the desired revision.
    fn up(&self, phase: Phase) -> Option<RevisionProcess> {
        let EffectiveInstance::Alive(alive) = &self.instance else { return None };
        let is_well = alive.health.unready().is_none() && !alive.report.frozen;
        let is_up = matches!(phase, Phase::Running | Phase::Playing) && is_well;
        let process = alive.process.map(|process| (process.pid, process.start_ticks));
        let counts = is_up && self.desires(&alive.revision) && (process.is_some() || !self.policy.has_processes);
        counts.then(|| RevisionProcess { revision: alive.revision.clone(), process })
    }

    /// Until when the desired revision may take to come up.
    fn healthy_by_ms(&self) -> Option<Millis> {
        let EffectiveInstance::Alive(alive) = &self.instance else { return None };
        let counts = alive.ends_by_ms.is_none() && self.desires(&alive.revision) && !alive.report.frozen;
        let since_ms = self.trial.since_ms().filter(|_| counts && self.is_on_trial() && !self.is_held())?;
        Some(since_ms.saturating_add(self.policy.healthy_within_ms))
    }

    /// When the process that is up will count as verified, if it does not yet.
    fn verified_at_ms(&self) -> Option<Millis> {
        let (up, since_ms) = self.trial.up.as_ref()?;
        let is_new = self.trial.verified.as_ref().is_none_or(|verified| verified.revision != up.revision);
        is_new.then(|| since_ms.saturating_add(self.policy.verify_after_ms))
    }

    /// Checks whether the desired revision is verified by now, or has failed; returns whether the unit is rolled back.
    pub(super) fn judge(&mut self, phase: Phase, now_ms: Millis) -> bool {
        // After a clock was set back, the waits must not be longer.
        if let TrialState::Begun { since_ms } = &mut self.trial.state {
            *since_ms = (*since_ms).min(now_ms);
        }
        self.trial.up = match (self.up(phase), self.trial.up.take()) {
            (Some(up), Some((known, since_ms))) if known == up => Some((up, since_ms.min(now_ms))),
            (Some(up), _) => Some((up, now_ms)),
            (None, _) => None,
        };
        self.judge_restored(now_ms);
        let is_due = |at_ms: Option<Millis>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        if is_due(self.verified_at_ms()) && !self.trial.group_waits {
            let verified = self.desired.as_ref().map(|desired| VerifiedRevision {
                revision: desired.revision.clone(),
                spec: desired.spec.clone(),
                since_ms: now_ms,
            });
            self.trial.verified = verified.map(Arc::new);
            self.trial.end();
        }
        if self.trial.up.is_some() || !is_due(self.healthy_by_ms()) {
            return false;
        }
        let EffectiveInstance::Alive(alive) = &self.instance else { return false };
        let within_s = self.policy.healthy_within_ms / 1_000;
        let probed = alive.health.unready();
        self.go_back(late(within_s, probed), now_ms)
    }

    /// Has a trial of an earlier run of the agent begin anew if its time is over: the clock may have been set meanwhile, and a
    /// rollback is not taken back when it is right again.
    fn judge_restored(&mut self, now_ms: Millis) {
        let Some(by_ms) = self.healthy_by_ms().filter(|_| self.trial.is_restored) else { return };
        self.trial.is_restored = false;
        if let TrialState::Begun { since_ms } = &mut self.trial.state
            && by_ms <= now_ms
        {
            *since_ms = now_ms;
        }
    }

    /// When to check again. A plan is made a moment after the last check: a verification that became due in between is due
    /// still, and the next check ends it.
    pub(super) fn judged_again_ms(&self, now_ms: Millis) -> Option<Millis> {
        match (&self.trial.up, &self.instance) {
            (Some(_), EffectiveInstance::Alive(_)) if self.trial.group_waits => {
                self.verified_at_ms().filter(|at_ms| *at_ms > now_ms)
            }
            (Some(_), EffectiveInstance::Alive(_)) => self.verified_at_ms(),
            (Some(_), _) => self.verified_at_ms().filter(|at_ms| *at_ms > now_ms),
            (None, _) => self.healthy_by_ms().filter(|at_ms| *at_ms > now_ms),
        }
    }
}

/// Says that an instance did not come up in time, and what its probes say.
pub(super) fn late(within_s: i64, probed: Option<Diagnostic>) -> Diagnostic {
    let what = format!("it did not come up within {within_s} s");
    match probed {
        Some(why) => why.within(what),
        None => what.into(),
    }
}
