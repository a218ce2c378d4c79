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
//! Submodules, in reading order: `seen` (observations), `policy` (the relevant part of a spec), `observe` and `reported_state`
//! (how an observation changes a unit, and the state that is reported), `step` (the next step), `play` (playing and pausing),
//! `health` (probe results), `rollback` (verified revisions, and rolling back), `second_instance` (beside the first,
//! while one revision replaces another), `tests` and `model` (cases and properties).
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

mod health;
mod observe;
mod play;
mod policy;
mod reported_state;
mod rollback;
mod second_instance;
mod seen;
mod step;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use muster_topics::{
    Millis,
    name::Digest,
    signal::Signal,
    unit::{Desired, Hold, Observed, Phase},
};
use serde::{Deserialize, Serialize};

use health::Health;
pub use health::ProbeRequest;
use play::PlayState;
pub use play::{PlayConnection, PlayFailure};
use policy::UnitPolicy;
use rollback::RevisionTrial;
pub use rollback::VerifiedRevision;
use second_instance::{FoundSecondInstance, SecondInstance};
pub use second_instance::{KeptSecondInstance, Slot};
pub use seen::{Failure, FoundInstance, InstanceEnd, InstanceExit, ShimReport, UnitEvent};

use super::{
    order::{Expectation, StartGate},
    port_lease::EndpointWiring,
};

/// How much longer than its grace a unit may take to end before it is asked again, without any grace.
/// What ends it should have killed it by then.
const STOP_SLACK_MS: Millis = 30_000;

/// When to look again for what could not be looked up.
const ADOPT_AGAIN_MS: Millis = 5_000;

/// When to ask again for what was to be suspended, or to go on, and did not say that it is. It takes its keeper
/// milliseconds; one that cannot do it must not be asked all the time.
const FREEZE_AGAIN_MS: Millis = 10_000;

/// What one unit should be, what it is, and what is being done about that.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedUnit {
    /// What it should be; nothing for a unit that should not be at all. While it has gone back it is the verified spec
    /// under the generation of what is [asked](PlannedUnit::asked).
    pub desired: Option<Desired>,
    /// Why it is, on purpose, not converging.
    pub hold: Option<Hold>,
    /// What it lacks of what its host has to give, such as an endpoint that it needs. Worked out by whoever knows of
    /// that, and kept nowhere.
    lacks: Option<Hold>,
    /// What it needs of others and does not have, while that keeps it from being started.
    waits: Option<Hold>,
    /// What keeps it from being started, as far as others are concerned.
    gate: StartGate,
    /// Where it is to listen, and how it reaches what it needs, if it is started now.
    wiring: EndpointWiring,
    /// What its instance was started with, as far as that is known.
    runs_with: Option<EndpointWiring>,
    /// What it is, in the form that others see.
    pub observed: Observed,
    /// What of it is in effect.
    pub instance: EffectiveInstance,
    /// Where that has what is its own.
    slot: Slot,
    /// What is in effect beside it, for a while.
    beside: Option<SecondInstance>,
    /// What is known of that.
    known: FoundSecondInstance,
    /// The slow step that is under way.
    pub work: Option<StepUnderWay>,
    /// The revision of which all is on this host.
    pub installed: Option<Digest>,
    /// Why nothing more is tried for this generation.
    rest: Option<StopReason>,
    /// When it is started again, after it ended by itself.
    restart_ms: Option<Millis>,
    /// When it is installed (or removed) again, after that has failed.
    install_ms: Option<Millis>,
    /// How often in a row installing has failed.
    install_failures: u32,
    /// When it is looked up again, after that has failed.
    adopt_ms: Option<Millis>,
    /// [`RestoredUnit::restarts`], for when it is looked up.
    kept_restarts: u32,
    /// The revision to which what runs could not be brought without a new process.
    not_reloaded: Option<Digest>,
    /// What runs is to be ended and started anew, though nothing else is desired: it read something that has changed.
    outdated: bool,
    /// [`RestoredUnit::finished`], for when it is desired again.
    kept_finished: bool,
    /// Whether its instance plays.
    play: PlayState,
    /// What the probes of its instance have found.
    health: Health,
    /// Which revision is verified, and how the one that is desired does.
    trial: RevisionTrial,
    /// How to treat its instance, by the newest spec that there was.
    policy: UnitPolicy,
}

/// What a unit is restored from when the agent starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredUnit {
    /// What it was last seen to be.
    #[serde(flatten)]
    pub observed: Observed,
    /// How often the instance had been started again by itself; see [`ShimReport::restarts`].
    #[serde(default)]
    pub restarts: u32,
    /// It ended, and its spec says that this is all.
    #[serde(default)]
    pub finished: bool,
    /// Why what runs is being ended as one that is not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condemned: Option<String>,
    /// What runs was up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub up: bool,
    /// Since when the revision that is desired has had its chance, if there is one to go back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_ms: Option<Millis>,
    /// Where its instance has what is its own.
    #[serde(default, skip_serializing_if = "Slot::is_first")]
    pub slot: Slot,
    /// What there is beside it, for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<KeptSecondInstance>,
    /// The last verified revision. It has a place of its own in the store.
    #[serde(skip)]
    pub verified: Option<Arc<VerifiedRevision>>,
}

impl RestoredUnit {
    /// Of a unit that was never kept.
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

/// What of a unit is in effect. For a yuno: its process, or its shim that is about to start one again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectiveInstance {
    /// Not known, so nothing may be started.
    Unknown,
    /// Nothing.
    None,
    /// Something of this revision is being started.
    Launching(Digest),
    /// Something is.
    Alive(LiveInstance),
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveInstance {
    /// What it was started as.
    pub revision: Digest,
    /// The frame of that ([`muster_topics::unit::Spec::frame`]), as far as it is known.
    pub frame: Option<Digest>,
    /// Its process, unless it is just being started again.
    pub process: Option<ProcessId>,
    /// See [`ShimReport::ready`].
    pub ready: bool,
    /// See [`ShimReport::restarts`].
    pub restarts: u32,
    /// It was asked to end; after this time it is asked again.
    pub ends_by_ms: Option<Millis>,
    /// It was asked to be suspended (true) or to go on; after this time it is asked again.
    pub freezes_by_ms: Option<(bool, Millis)>,
}

impl LiveInstance {
    /// Something of which no more is known than that it is in effect.
    fn new(revision: Digest, restarts: u32) -> Self {
        Self { revision, frame: None, process: None, ready: false, restarts, ends_by_ms: None, freezes_by_ms: None }
    }
}

/// A process, by everything that tells it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// When it was started.
    pub started_ms: Millis,
}

/// A slow step that is under way. There is one at a time, and it always reports back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepUnderWay {
    /// Looking up what runs.
    Adopting,
    /// Getting everything for this revision.
    Installing(Digest),
    /// Bringing what runs to this revision without a new process.
    Reloading(Digest),
    /// Removing everything.
    Removing,
}

/// Why nothing more is tried for a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// It cannot work; `error` says why.
    Failed,
    /// It ended, and its spec says that this is all.
    Finished,
}

/// Something to do. Each is begun at once, and what it comes to is [`UnitEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// Look up whether something runs that an earlier life of the agent started.
    Adopt,
    /// Get everything that the desired revision needs, without touching what runs. An earlier
    /// `Install` that is still under way is given up.
    Install,
    /// Put the desired revision into effect.
    Start {
        /// How often it has been started again by itself already.
        attempts: u32,
    },
    /// Ask what runs to end, and end it when its grace is over.
    Stop {
        /// The signal that asks; the one that it says itself if there is none.
        signal: Option<Signal>,
        /// How long it may take.
        grace_ms: u64,
    },
    /// Put the desired revision into effect beside what runs, in the other slot. It is not told to play.
    StartSecond,
    /// Ask what runs beside to end, and end it when its grace is over.
    StopSecond {
        /// The signal that asks; the one that it says itself if there is none.
        signal: Option<Signal>,
        /// How long it may take.
        grace_ms: u64,
    },
    /// Bring what runs to the desired revision without a new process, if nothing but limits differs, or configs that it
    /// reloads.
    Reload,
    /// Suspend what runs.
    Freeze,
    /// Let what runs go on.
    Thaw,
    /// Ask what runs to play, or to play no more.
    Play {
        /// Whether it shall.
        playing: bool,
        /// Names the question in its answer.
        ask: u32,
    },
    /// Remove everything, for there shall be no such unit. An `Install` that is still under way is given up.
    Remove,
    /// Nothing until then.
    WaitUntil(Millis),
}

impl PlannedUnit {
    /// A unit as it was kept; nothing is kept of one that is new.
    #[must_use]
    pub fn new(kept: Option<RestoredUnit>, now_ms: Millis) -> Self {
        let kept = kept.unwrap_or_else(|| RestoredUnit::new(Observed::absent(now_ms)));
        let RestoredUnit { observed, condemned, up, trial_ms, slot, second, verified, .. } = kept;
        Self {
            desired: None,
            hold: None,
            waits: None,
            lacks: None,
            gate: StartGate::Open,
            wiring: EndpointWiring::default(),
            runs_with: None,
            installed: observed.revision.clone(),
            restart_ms: observed.retry_ms,
            observed,
            instance: EffectiveInstance::Unknown,
            slot,
            beside: None,
            known: FoundSecondInstance::Kept(second),
            work: None,
            rest: None,
            install_ms: None,
            install_failures: 0,
            adopt_ms: None,
            kept_restarts: kept.restarts,
            not_reloaded: None,
            outdated: false,
            kept_finished: kept.finished,
            play: PlayState::default(),
            health: Health::restore(up, condemned),
            trial: RevisionTrial::restore(verified, trial_ms),
            policy: UnitPolicy::default(),
        }
    }

    /// Why it is, on purpose, not converging, in the form that others see.
    #[must_use]
    pub fn visible_hold(&self) -> Option<&Hold> {
        self.hold.as_ref().or(self.lacks.as_ref()).or(self.waits.as_ref())
    }

    /// What keeps it from being started, as it knows.
    #[must_use]
    pub fn gate(&self) -> &StartGate {
        &self.gate
    }

    /// What other units can expect of it.
    #[must_use]
    pub fn way(&self) -> Expectation {
        let tries = self.wants_running() && !self.is_held() && self.rest.is_none();
        match self.observed.phase {
            Phase::Running | Phase::Playing if self.wants_running() => match self.observed.unready {
                Some(_) => Expectation::Unready,
                None => Expectation::Running,
            },
            Phase::Backoff | Phase::Failed => Expectation::Down,
            _ if tries && !matches!(self.gate, StartGate::Blocked(_)) => Expectation::Coming,
            _ => Expectation::Down,
        }
    }

    /// Whether it is being started, or it is being found out whether it has to be.
    #[must_use]
    pub fn is_launching(&self) -> bool {
        match self.instance {
            EffectiveInstance::Launching(_) => true,
            // One that cannot be looked up must not keep others.
            EffectiveInstance::Unknown => self.wants_running() && !self.is_held() && self.adopt_ms.is_none(),
            EffectiveInstance::None | EffectiveInstance::Alive(_) => false,
        }
    }

    /// Whether it would be started now if others did not keep it.
    #[must_use]
    pub fn would_start(&self, now_ms: Millis) -> bool {
        let is_idle = self.work.is_none() && self.instance == EffectiveInstance::None;
        is_idle && matches!(self.plan_idle(&StartGate::Open, now_ms), Some(PlanStep::Start { .. }))
    }

    /// Whether what runs was started with other endpoints than those that there are now. While something is lacking it
    /// is left as it is.
    fn is_rewired(&self) -> bool {
        !self.is_held() && !self.needs_wiring() && self.runs_with.as_ref().is_some_and(|with| *with != self.wiring)
    }

    /// What it is started with.
    #[must_use]
    pub fn wiring(&self) -> &EndpointWiring {
        &self.wiring
    }

    /// Whether it is left as it is.
    fn is_held(&self) -> bool {
        self.hold.is_some() || self.lacks.is_some()
    }

    /// What it lacks.
    #[must_use]
    pub fn lack(&self) -> Option<&str> {
        self.lacks.as_ref()?.note.as_deref()
    }

    /// What to keep of it, to restore it from.
    #[must_use]
    pub fn kept(&self) -> RestoredUnit {
        let restarts = match &self.instance {
            EffectiveInstance::Alive(alive) => alive.restarts,
            EffectiveInstance::Unknown => self.kept_restarts,
            EffectiveInstance::None | EffectiveInstance::Launching(_) => 0,
        };
        // How far a download is would be written down each time, and tells a later life nothing.
        let finished = match self.desired {
            Some(_) => self.rest == Some(StopReason::Finished),
            None => self.kept_finished,
        };
        let condemned = self.health.condemned().cloned();
        let up = match &self.instance {
            EffectiveInstance::Unknown => self.health.was_up(),
            _ => self.health.is_up(),
        };
        let (trial_ms, verified) = (self.trial.since_ms, self.trial.verified.clone());
        let (slot, second) = (self.slot, self.kept_beside());
        let observed = Observed { progress: None, ..self.observed.clone() };
        RestoredUnit { observed, restarts, finished, condemned, up, trial_ms, slot, second, verified }
    }

    /// What to find out now by its probes. Of one that is suspended, is to end, or is being replaced that is nothing.
    #[must_use]
    pub fn probing(&self) -> Vec<ProbeRequest> {
        let Some(desired) = &self.desired else { return Vec::new() };
        let of_beside = self.probed_beside().map(|(slot, process, told, health)| (slot, process, &told.wiring, health));
        let Some((slot, process, wiring, health)) = of_beside.or_else(|| self.probed(desired)) else {
            return Vec::new();
        };
        let probing = |which| {
            let (probe, wiring) = (desired.spec.probes().get(which)?.clone(), wiring.clone());
            let (desired, coming) = (desired.clone(), !health.is_up());
            Some(ProbeRequest { which, probe, slot, process, wiring, desired, coming })
        };
        health.due(self.policy.probes).into_iter().filter_map(probing).collect()
    }

    /// What it is known by, as far as that can be probed.
    fn probed(&self, desired: &Desired) -> Option<(Slot, ProcessId, &EndpointWiring, &Health)> {
        let EffectiveInstance::Alive(alive) = &self.instance else { return None };
        let ends = alive.ends_by_ms.is_some() || self.health.condemned().is_some() || !desired.run.is_running();
        let is_it = !ends && !self.observed.frozen && alive.revision == desired.revision;
        Some((self.slot, alive.process.filter(|_| is_it)?, self.runs_with.as_ref()?, &self.health))
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
