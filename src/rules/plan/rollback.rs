//! Verified revisions, and rolling a unit back to one.
//!
//! A revision is *verified* once the unit has been up in it, and ready, for a while without a break
//! ([`YunoSpec::verify_after_ms`]).
//! A later revision is *on trial* until it is verified itself. Its trial fails
//!
//! - when it cannot be installed or started, and a retry would not help;
//! - when it would have to wait before its next start. So a process that ends by itself gets its immediate restarts, because it
//!   may have lost a race with its predecessor for a port or a lock, and no more;
//! - when its spec does not restart it after a failure;
//! - when it was ended because it was silent for too long, or its probes found that it hangs;
//! - when it is not up within its time ([`YunoSpec::healthy_within`]), probes included.
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
//! [`YunoSpec::verify_after_ms`]: muster_topics::unit::YunoSpec::verify_after_ms
//! [`YunoSpec::healthy_within`]: muster_topics::unit::YunoSpec::healthy_within

use std::sync::Arc;

use muster_topics::{
    Millis,
    name::Digest,
    unit::{Desired, Phase, RolledBack, Spec},
};

use super::{EffectiveInstance, LiveInstance, PlannedUnit, observe::shortened};

/// A revision that can be gone back to.
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRevision {
    /// Which.
    pub revision: Digest,
    /// All of its spec.
    pub spec: Spec,
    /// Since when that is so.
    pub since_ms: Millis,
}

/// What is known of revisions beside the one that the unit is to be in.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RevisionTrial {
    /// The last verified one.
    pub(super) verified: Option<Arc<VerifiedRevision>>,
    /// What is desired, while the unit has gone back from it.
    refused: Option<Box<Desired>>,
    /// Since when the revision that it is to be in has had its chance.
    pub(super) since_ms: Option<Millis>,
    /// What is up without a break, and since when it is.
    up: Option<(RevisionProcess, Millis)>,
    /// It went back, and where it listens and what it connects to is still that of what it went back from.
    unwired: bool,
}

/// A process, in a revision.
#[derive(Clone, Debug, PartialEq)]
struct RevisionProcess {
    revision: Digest,
    pid: i32,
    start_ticks: u64,
}

impl RevisionTrial {
    /// As it was kept.
    pub(super) fn restore(verified: Option<Arc<VerifiedRevision>>, since_ms: Option<Millis>) -> Self {
        Self { verified, since_ms, ..Self::default() }
    }
}

impl PlannedUnit {
    /// What operators want it to be; [`PlannedUnit::desired`] is another spec while it has gone back from that.
    #[must_use]
    pub fn asked(&self) -> Option<&Desired> {
        self.trial.refused.as_deref().or(self.desired.as_ref())
    }

    /// The revision that it goes back to, or has gone back to.
    #[must_use]
    pub fn verified(&self) -> Option<&VerifiedRevision> {
        self.trial.verified.as_deref()
    }

    /// All of a revision's spec, if it is still known.
    pub(super) fn spec_of(&self, revision: &Digest) -> Option<&Spec> {
        let asked = self.asked().filter(|asked| asked.revision == *revision).map(|asked| &asked.spec);
        let verified = self.verified().filter(|verified| verified.revision == *revision);
        asked.or(verified.map(|verified| &verified.spec))
    }

    /// Whether it has to be told what it is wired to before it can be started.
    #[must_use]
    pub fn needs_wiring(&self) -> bool {
        self.trial.unwired
    }

    /// It was told so.
    pub(super) fn is_wired(&mut self) {
        self.trial.unwired = false;
    }

    /// Something is desired from now on, after what was desired `before`: that is what it is to be, unless an earlier life of the
    /// agent has gone back from just that.
    pub(super) fn aim(&mut self, before: Option<&Desired>, desired: Option<Desired>) {
        let has_failed = |desired: &Desired| {
            let rolled_back = self.observed.rolled_back.as_ref();
            rolled_back.is_some_and(|rolled_back| rolled_back.generation == desired.generation)
        };
        let stays_back = before.is_none() && self.trial.verified.is_some() && desired.as_ref().is_some_and(has_failed);
        let revision = |desired: Option<&Desired>| desired.map(|desired| desired.revision.clone());
        if before.is_some() && revision(before) != revision(desired.as_ref()) {
            self.trial.since_ms = None;
        }
        self.trial.refused = None;
        self.trial.unwired = false;
        self.desired = desired;
        if stays_back {
            self.aim_back();
            return;
        }
        self.observed.rolled_back = None;
        if self.desired.is_none() {
            // Another unit of this name is another unit.
            self.trial = RevisionTrial::default();
        }
        if let (Some(desired), Some(verified)) = (&self.desired, &mut self.trial.verified)
            && verified.revision == desired.revision
            && verified.spec != desired.spec
        {
            // What can be changed while it runs is no part of what was verified.
            *verified = Arc::new(VerifiedRevision { spec: desired.spec.clone(), ..VerifiedRevision::clone(verified) });
        }
    }

    /// From now on it is to be what is verified, under the generation of what is desired.
    fn aim_back(&mut self) {
        let (Some(verified), Some(asked)) = (&self.trial.verified, self.desired.take()) else { return };
        let (revision, spec) = (verified.revision.clone(), verified.spec.clone());
        self.desired = Some(Desired { revision, spec, ..asked });
        self.trial.refused = Some(Box::new(asked));
        self.trial.since_ms = None;
    }

    /// Whether it has gone back.
    pub(super) fn is_back(&self) -> bool {
        self.trial.refused.is_some()
    }

    /// What it goes back to if the revision fails that it is to be in.
    fn fallback(&self) -> Option<&Arc<VerifiedRevision>> {
        let desired = self.desired.as_ref()?;
        let verified = self.trial.verified.as_ref().filter(|verified| verified.revision != desired.revision)?;
        let may = self.policy.rolls_back && !self.is_back() && desired.run.is_running() && self.hold.is_none();
        may.then_some(verified)
    }

    /// Whether it goes back if the revision fails that it is in.
    pub(super) fn is_on_trial(&self) -> bool {
        self.trial.since_ms.is_some() && self.fallback().is_some()
    }

    /// What others see of that.
    pub(super) fn tell_trial(&mut self) {
        self.observed.on_trial = self.is_on_trial();
        let verified = self.trial.verified.as_ref().map(|verified| &verified.revision);
        if self.observed.verified.as_ref() != verified {
            self.observed.verified = verified.cloned();
        }
    }

    /// The revision that it is to be in has its chance from now on. To try it once more is no other chance.
    pub(super) fn begin_trial(&mut self, is_retry: bool, now_ms: Millis) {
        if !is_retry || self.trial.since_ms.is_none() {
            self.trial.since_ms = self.fallback().map(|_| now_ms);
        }
    }

    /// The revision that it is to be in has failed. False if there is nothing to go back to: then what has happened
    /// is to be dealt with as ever.
    pub(super) fn go_back(&mut self, why: &str, now_ms: Millis) -> bool {
        let (Some(verified), Some(desired)) = (self.fallback().cloned(), &self.desired) else { return false };
        self.observed.rolled_back = Some(RolledBack {
            generation: desired.generation,
            revision: desired.revision.clone(),
            to: verified.revision.clone(),
            error: shortened(why),
            at_ms: now_ms,
            last_lines: self.observed.last_lines.take(),
        });
        self.aim_back();
        self.take_policy();
        (self.trial.up, self.trial.unwired) = (None, true);
        self.rest = None;
        self.try_afresh();
        // What has failed is not to be trusted with other files: a process of its own.
        self.not_reloaded = Some(verified.revision.clone());
        true
    }

    /// Whether an instance is one that it goes back from.
    pub(super) fn is_leaving(&self, alive: &LiveInstance) -> bool {
        self.trial.refused.as_ref().is_some_and(|refused| refused.revision == alive.revision)
            && !self.desires(&alive.revision)
    }

    /// A task has done its work.
    pub(super) fn forget_verified(&mut self) {
        if !self.is_back() {
            (self.trial.verified, self.trial.since_ms) = (None, None);
        }
    }

    /// What is up, if it counts for the revision that it is to be in.
    fn up(&self, phase: Phase) -> Option<RevisionProcess> {
        let is_well = self.health.unready().is_none() && !self.observed.frozen;
        let is_up = matches!(phase, Phase::Running | Phase::Playing) && is_well;
        let EffectiveInstance::Alive(alive) = &self.instance else { return None };
        let process = alive.process.filter(|_| is_up && self.desires(&alive.revision))?;
        Some(RevisionProcess { revision: alive.revision.clone(), pid: process.pid, start_ticks: process.start_ticks })
    }

    /// Until when it may take to be up.
    fn healthy_by_ms(&self) -> Option<Millis> {
        let EffectiveInstance::Alive(alive) = &self.instance else { return None };
        let counts = alive.ends_by_ms.is_none() && self.desires(&alive.revision) && !self.observed.frozen;
        let since_ms = self.trial.since_ms.filter(|_| counts && self.is_on_trial() && !self.is_held())?;
        Some(since_ms.saturating_add(self.policy.healthy_within_ms))
    }

    /// When what is up is verified, if it is not yet.
    fn verified_at_ms(&self) -> Option<Millis> {
        let (up, since_ms) = self.trial.up.as_ref()?;
        let is_new = self.trial.verified.as_ref().is_none_or(|verified| verified.revision != up.revision);
        is_new.then(|| since_ms.saturating_add(self.policy.verify_after_ms))
    }

    /// Finds out whether it is verified by now, or has failed. Whether it goes back.
    pub(super) fn judge(&mut self, phase: Phase, now_ms: Millis) -> bool {
        // A clock that was set back must not make a wait longer than it is.
        self.trial.since_ms = self.trial.since_ms.map(|since_ms| since_ms.min(now_ms));
        self.trial.up = match (self.up(phase), self.trial.up.take()) {
            (Some(up), Some((known, since_ms))) if known == up => Some((up, since_ms.min(now_ms))),
            (Some(up), _) => Some((up, now_ms)),
            (None, _) => None,
        };
        let is_due = |at_ms: Option<Millis>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        if is_due(self.verified_at_ms()) {
            let verified = self.desired.as_ref().map(|desired| VerifiedRevision {
                revision: desired.revision.clone(),
                spec: desired.spec.clone(),
                since_ms: now_ms,
            });
            self.trial.verified = verified.map(Arc::new);
            self.trial.since_ms = None;
        }
        if self.trial.up.is_some() || !is_due(self.healthy_by_ms()) {
            return false;
        }
        let within_s = self.policy.healthy_within_ms / 1_000;
        let probed = self.health.unready().map(|why| format!(": {why}")).unwrap_or_default();
        self.go_back(&format!("it was not up within {within_s} s{probed}"), now_ms)
    }

    /// When to look again, for what is said here.
    pub(super) fn judged_again_ms(&self, now_ms: Millis) -> Option<Millis> {
        let at_ms = if self.trial.up.is_some() { self.verified_at_ms() } else { self.healthy_by_ms() };
        at_ms.filter(|at_ms| *at_ms > now_ms)
    }
}
