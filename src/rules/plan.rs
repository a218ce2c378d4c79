//! The planner: decides the next step of one unit, as a plain function of desired state, observed state, and time.
//!
//! A [`PlannedUnit`] is everything that is known of one unit. The shell reports what it has observed
//! ([`PlannedUnit::observe`]), asks for the next step ([`PlannedUnit::plan`]), reports that it has begun, and performs it.
//! The result is observed again. So decisions are made in one place, and can
//! be tested without a process, a file or a clock.
//!
//! The words are those of any kind of unit. It is *installed* (everything it needs is on this host, and
//! nothing of it in effect), *started* (an [`EffectiveInstance`] of it is in effect, such as a process), *stopped*,
//! and *removed*. A new revision is installed while the one before it still runs, which is then stopped
//! before the new one is started; or, if its spec says so, once the new one is up beside it.
//!
//! What a unit is doing is one [`EffectiveInstance`] beside one `Installation`, because a new revision is installed while
//! the one before it runs. Each of their states has the data that only it can have: what is stored of an instance while it is
//! looked up, the results of probes while it lives, the next attempt after a failed installation.
//!
//! Submodules, in reading order: `event` (observations), `unit_policy` (the relevant part of a spec), `prerequisites`
//! (what a unit needs of its host and of other units), `instance` and `installation` (the states of what runs, and of what is
//! installed), `observe` and `reported_state` (how an observation changes a unit, and the state that is reported), `step` (the
//! next step), `play` (playing and pausing), `clock_shift` (what follows a clock that was set), `health` (probe results), `restart` (what follows the end of an instance),
//! `rollback` (verified revisions, and rolling back), `second_instance` (beside the first, while one revision replaces another),
//! `tests` and `model` (cases and properties).
//!
//! **Invariant: `plan` does no IO**, and plans nothing for a unit in its desired state.
//!
//! **Invariant: nothing is started unless it is known that nothing runs.** After a start of the agent, and
//! after a start whose end was not observed, the instance is [`EffectiveInstance::Unknown`] until it has been looked up.
//!
//! **Invariant: the phase is never set, it is derived** from what is known (at the end of [`PlannedUnit::observe`]),
//! so no phase contradicts the process.
//!
//! **Invariant: a generation is reached once**: when the unit runs (or rests) as its
//! spec says, or when it cannot, has to wait before a retry, or is held.
//!
//! **Invariant: a held unit is left as it is**: a running one goes on, in whatever revision, and one that does not run is not
//! started. Only a stop still stops it. (A shim restarts its process by itself, as often as it was allowed to
//! when the hold began: such an instance goes on.)

mod clock_shift;
mod event;
mod health;
mod installation;
mod instance;
mod observe;
mod play;
mod prerequisites;
mod reported_state;
mod restart;
mod rollback;
mod second_instance;
mod step;
mod unit_policy;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::sync::Arc;

#[cfg(test)]
use muster_topics::name::Digest;
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    signal::Signal,
    unit::{Desired, Hold, Observed, Phase},
};
use serde::{Deserialize, Serialize};

pub use event::{Failure, FoundInstance, InstanceEnd, InstanceExit, ShimReport, UnitEvent};
use health::Health;
pub use health::ProbeRequest;
use installation::Installation;
pub use instance::{EffectiveInstance, LiveInstance, LookUp, ProcessId};
use instance::{KeptInstance, KeptInstances};
use play::PlayState;
pub use play::{PlayConnection, PlayFailure};
use prerequisites::Prerequisites;
use restart::NextStart;
use rollback::RevisionTrial;
pub use rollback::VerifiedRevision;
use second_instance::SecondInstance;
pub use second_instance::{KeptSecondInstance, Slot};
use unit_policy::UnitPolicy;

use super::{
    port_lease::EndpointWiring,
    start_order::{Expectation, StartGate},
};

/// How much longer than its grace a unit may take to end before it is stopped again, without grace. Whatever stops it
/// should have killed it by then.
const STOP_SLACK_MS: Millis = 30_000;

/// When to look up an instance again after the lookup failed.
const ADOPT_AGAIN_MS: Millis = 5_000;

/// When to repeat a freeze or thaw that was not confirmed. It takes the supervisor milliseconds; one that cannot do it
/// must not be asked continuously.
const FREEZE_AGAIN_MS: Millis = 10_000;

/// A unit's desired state, its observed state, and what is being done about the difference.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedUnit {
    /// The desired state; `None` for a unit that should not exist. While the unit is rolled back, this is the verified
    /// spec under the generation of the [requested](PlannedUnit::asked) one.
    pub desired: Option<Desired>,
    /// Why it does not converge, on purpose.
    pub hold: Option<Hold>,
    /// What it needs of its host and of other units.
    needs: Prerequisites,
    /// The observed state, as it is reported.
    pub observed: Observed,
    /// The instance that is in effect.
    pub instance: EffectiveInstance,
    /// The slot of that instance.
    slot: Slot,
    /// The second instance, while there is one.
    beside: Option<SecondInstance>,
    /// What is installed on this host, and the step that changes this.
    installation: Installation,
    /// When it may be started next.
    next_start: NextStart,
    /// Whether its instance plays.
    play: PlayState,
    /// The verified revision, and the trial of the desired one.
    trial: RevisionTrial,
    /// How its instance is handled, by its newest spec.
    policy: UnitPolicy,
}

/// The stored state from which a unit is restored when the agent starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredUnit {
    /// Its last observed state.
    #[serde(flatten)]
    pub observed: Observed,
    /// How often the instance had restarted by itself; see [`ShimReport::restarts`].
    #[serde(default)]
    pub restarts: u32,
    /// Whether it ended and its spec wants no further run.
    #[serde(default)]
    pub finished: bool,
    /// Why the running instance is being stopped as unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condemned: Option<Diagnostic>,
    /// Whether the running instance was up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub up: bool,
    /// When the trial of the desired revision began, if there is one to roll back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_ms: Option<Millis>,
    /// The slot of its instance.
    #[serde(default, skip_serializing_if = "Slot::is_first")]
    pub slot: Slot,
    /// The stored second instance, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<KeptSecondInstance>,
    /// The last verified revision. It has a table of its own in the store.
    #[serde(skip)]
    pub verified: Option<Arc<VerifiedRevision>>,
}

impl RestoredUnit {
    /// Creates it for a unit of which nothing else is stored.
    #[must_use]
    pub fn new(observed: Observed) -> Self {
        Self {
            observed,
            restarts: 0,
            finished: false,
            condemned: None,
            up: false,
            trial_ms: None,
            slot: Slot::First,
            second: None,
            verified: None,
        }
    }
}

/// A step for the shell to begin at once. Its result comes back as a [`UnitEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// Look up whether an instance of an earlier run of the agent exists.
    Adopt,
    /// Install everything for the desired revision, without touching the running instance. An earlier `Install` that is
    /// under way is cancelled.
    Install,
    /// Start the desired revision.
    Start {
        /// How often it has been restarted already.
        attempts: u32,
    },
    /// Ask the instance to end, and kill it after its grace period.
    Stop {
        /// The signal to send; `None` for the one that the instance was started with.
        signal: Option<Signal>,
        /// The grace period.
        grace_ms: u64,
    },
    /// Start the desired revision in the other slot, beside the running instance. It is not asked to play.
    StartSecond,
    /// Ask the second instance to end, and kill it after its grace period.
    StopSecond {
        /// The signal to send; `None` for the one that the instance was started with.
        signal: Option<Signal>,
        /// The grace period.
        grace_ms: u64,
    },
    /// Change the running instance to the desired revision without a restart, if they differ only in limits, or in
    /// configs that it reloads.
    Reload,
    /// Freeze the instance.
    Freeze,
    /// Thaw the instance.
    Thaw,
    /// Ask the instance to play, or to stop playing.
    Play {
        /// Whether it should play.
        playing: bool,
        /// The number of the request, which its answer repeats.
        ask: u32,
    },
    /// Remove everything, because the unit should not exist. An `Install` that is under way is cancelled.
    Remove,
    /// Do nothing until this time.
    WaitUntil(Millis),
}

impl PlannedUnit {
    /// Restores a unit from its stored state, if there is any.
    #[must_use]
    pub fn new(kept: Option<RestoredUnit>, now_ms: Millis) -> Self {
        let kept = kept.unwrap_or_else(|| RestoredUnit::new(Observed::absent(now_ms)));
        let RestoredUnit { observed, restarts, finished, condemned, up, trial_ms, slot, second, verified } = kept;
        let lookup = LookUp::restore(KeptInstances { first: KeptInstance { restarts, up, condemned }, second });
        Self {
            desired: None,
            hold: None,
            needs: Prerequisites::default(),
            installation: Installation::restore(observed.revision.clone()),
            next_start: NextStart::restore(finished, observed.retry_ms(), now_ms),
            observed,
            instance: EffectiveInstance::Unknown(lookup),
            slot,
            beside: None,
            play: PlayState::default(),
            trial: RevisionTrial::restore(verified, trial_ms),
            policy: UnitPolicy::default(),
        }
    }

    /// Why it does not converge on purpose, in the form that is reported.
    #[must_use]
    pub fn visible_hold(&self) -> Option<&Hold> {
        self.hold.as_ref().or(self.needs.hold())
    }

    /// Whether other units allow it to start.
    #[must_use]
    pub fn gate(&self) -> &StartGate {
        self.needs.gate()
    }

    /// What other units can expect of it.
    #[must_use]
    pub fn way(&self) -> Expectation {
        let tries = self.wants_running() && !self.is_held() && !self.next_start.is_never();
        match self.observed.phase() {
            Phase::Running | Phase::Playing if self.wants_running() => match self.observed.instance().unready {
                Some(_) => Expectation::Unready,
                None => Expectation::Running,
            },
            Phase::Backoff | Phase::Failed => Expectation::Down,
            _ if tries && !self.needs.is_blocked() => Expectation::Coming,
            _ => Expectation::Down,
        }
    }

    /// Whether it is being started, or looked up in order to decide that.
    #[must_use]
    pub fn is_launching(&self) -> bool {
        match &self.instance {
            EffectiveInstance::Launching(_) => true,
            // A unit that cannot be looked up must not block others.
            EffectiveInstance::Unknown(lookup) => self.wants_running() && !self.is_held() && !lookup.has_failed(),
            EffectiveInstance::None | EffectiveInstance::Alive(_) => false,
        }
    }

    /// Whether it would start now if no other unit prevented it.
    #[must_use]
    pub fn would_start(&self, now_ms: Millis) -> bool {
        let is_idle = self.installation.is_idle() && self.instance == EffectiveInstance::None;
        is_idle && matches!(self.plan_idle(&StartGate::Open, now_ms), Some(PlanStep::Start { .. }))
    }

    /// Whether the instance was started with other ports or connections than the present ones. While a connection is
    /// missing, it is left running.
    fn is_rewired(&self, alive: &LiveInstance) -> bool {
        !self.is_held()
            && !self.needs_wiring()
            && alive.runs_with.as_ref().is_some_and(|with| with != self.needs.wiring())
    }

    /// The ports and connections that it is started with.
    #[must_use]
    pub fn wiring(&self) -> &EndpointWiring {
        self.needs.wiring()
    }

    /// Whether it is held.
    fn is_held(&self) -> bool {
        self.hold.is_some() || self.needs.lacks_any()
    }

    /// The resource that it lacks.
    #[must_use]
    pub fn lack(&self) -> Option<&str> {
        self.needs.lack()
    }

    /// Returns the state to store.
    #[must_use]
    pub fn kept(&self) -> RestoredUnit {
        let KeptInstance { restarts, up, condemned } = self.instance.kept();
        // The progress of a download changes often, and is useless after a restart.
        let finished = self.next_start == NextStart::Finished;
        let (trial_ms, verified) = (self.trial.since_ms(), self.trial.verified.clone());
        let (slot, second) = (self.slot, self.kept_second());
        let observed = Observed { progress: None, ..self.observed.clone() };
        RestoredUnit { observed, restarts, finished, condemned, up, trial_ms, slot, second, verified }
    }

    /// Returns the probes to run now. There are none for an instance that is frozen, ending or being replaced.
    #[must_use]
    pub fn probing(&self) -> Vec<ProbeRequest> {
        let Some(desired) = &self.desired else { return Vec::new() };
        let of_second = self.probed_second().map(|(slot, process, told, health)| (slot, process, &told.wiring, health));
        let Some((slot, process, wiring, health)) = of_second.or_else(|| self.probed(desired)) else {
            return Vec::new();
        };
        let probing = |which| {
            let (probe, wiring) = (desired.spec.probes().get(which)?.clone(), wiring.clone());
            let (desired, coming) = (desired.clone(), !health.is_up());
            Some(ProbeRequest { which, probe, slot, process, wiring, desired, coming })
        };
        health.due(self.policy.probes).into_iter().filter_map(probing).collect()
    }

    /// The instance that represents the unit, as far as it can be probed.
    fn probed(&self, desired: &Desired) -> Option<(Slot, ProcessId, &EndpointWiring, &Health)> {
        let EffectiveInstance::Alive(alive) = &self.instance else { return None };
        let ends = alive.ends_by_ms.is_some() || alive.health.condemned().is_some() || !desired.run.is_running();
        let is_it = !ends && !alive.report.frozen && alive.revision == desired.revision;
        Some((self.slot, alive.process.filter(|_| is_it)?, alive.runs_with.as_ref()?, &alive.health))
    }

    /// The process that runs now.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        if let EffectiveInstance::Alive(alive) = &self.instance { alive.process } else { None }
    }
}

fn to_millis(ms: u64) -> Millis {
    Millis::try_from(ms).unwrap_or(Millis::MAX)
}
