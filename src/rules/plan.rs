//! What to do next about one unit: a plain function of what it should be, what it is, and the time.
//!
//! A [`Unit`] is everything that is known of one unit. The shell tells it what it has seen
//! ([`Unit::observe`]), asks it what to do ([`Unit::plan`]), tells it that this has begun, and does it.
//! Whatever a step comes to is seen again. So there is one place where decisions are made, and they can
//! be tested without a process, a file or a clock.
//!
//! The words are those of any kind of unit. It is *installed* (all that it needs is on this host, and
//! nothing of it in effect), *started* (an [`Instance`] of it is in effect, such as a process), *stopped*,
//! and *removed*. A new revision is installed while the one before it still runs, which is then stopped
//! before the new one is started; or, if its spec wants that, once the new one is up beside it.
//!
//! Submodules, in reading order: `seen` (what the shell tells), `policy` (what of a spec matters), `observe` and `follow`
//! (how a unit changes with that, and what others see of it then), `step` (what to do next), `play` (whether it plays),
//! `health` (what its probes find), `verify` (which revision is good, and going back to it), `beside` (a second instance,
//! while one revision takes the place of another), `tests` and `model` (cases and properties).
//!
//! **Invariant: `plan` does no IO**, and plans nothing for a unit that is as it should be.
//!
//! **Invariant: nothing is started unless it is known that nothing runs.** After a start of the agent, and
//! after a start whose end was not seen, that is [`Instance::Unknown`] until it has been looked up.
//!
//! **Invariant: the phase is never set, it follows** from what is known ([`Unit::observe`] ends with that),
//! so there is no phase that contradicts the process.
//!
//! **Invariant: a generation is reached once, and for good or ill**: when the unit runs (or rests) as its
//! spec wants it, or when it cannot, has to wait before it is tried again, or is held.
//!
//! **Invariant: what is held is left as it is**: what runs goes on, in whatever revision, and what does not is not
//! started. Only a stop still stops it. (A shim starts its process again by itself, as often as it was allowed to
//! when that began: such an instance goes on.)

mod beside;
mod follow;
mod health;
mod observe;
mod play;
mod policy;
mod seen;
mod step;
mod verify;

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

use beside::{Beside, Known};
pub use beside::{KeptBeside, Slot};
use health::Health;
pub use health::Probing;
use play::Play;
pub use play::{Connection, NotPlayed};
use policy::Policy;
pub use seen::{Ended, Failure, Found, Over, Seen, Told};
use verify::Trial;
pub use verify::Verified;

use super::{
    lease::Wiring,
    order::{Gate, Way},
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
pub struct Unit {
    /// What it should be; nothing for a unit that should not be at all. While it has gone back it is the verified spec
    /// under the generation of what is [asked](Unit::asked).
    pub desired: Option<Desired>,
    /// Why it is, on purpose, not converging.
    pub hold: Option<Hold>,
    /// What it lacks of what its host has to give, such as an endpoint that it needs. Worked out by whoever knows of
    /// that, and kept nowhere.
    lacks: Option<Hold>,
    /// What it needs of others and does not have, while that keeps it from being started.
    waits: Option<Hold>,
    /// What keeps it from being started, as far as others are concerned.
    gate: Gate,
    /// Where it is to listen, and how it reaches what it needs, if it is started now.
    wiring: Wiring,
    /// What its instance was started with, as far as that is known.
    runs_with: Option<Wiring>,
    /// What it is, in the form that others see.
    pub observed: Observed,
    /// What of it is in effect.
    pub instance: Instance,
    /// Where that has what is its own.
    slot: Slot,
    /// What is in effect beside it, for a while.
    beside: Option<Beside>,
    /// What is known of that.
    known: Known,
    /// The slow step that is under way.
    pub work: Option<Work>,
    /// The revision of which all is on this host.
    pub installed: Option<Digest>,
    /// Why nothing more is tried for this generation.
    rest: Option<Rest>,
    /// When it is started again, after it ended by itself.
    restart_ms: Option<Millis>,
    /// When it is installed (or removed) again, after that has failed.
    install_ms: Option<Millis>,
    /// How often in a row installing has failed.
    install_failures: u32,
    /// When it is looked up again, after that has failed.
    adopt_ms: Option<Millis>,
    /// [`Kept::restarts`], for when it is looked up.
    kept_restarts: u32,
    /// The revision to which what runs could not be brought without a new process.
    not_reloaded: Option<Digest>,
    /// What runs is to be ended and started anew, though nothing else is desired: it read something that has changed.
    outdated: bool,
    /// [`Kept::finished`], for when it is desired again.
    kept_finished: bool,
    /// Whether its instance plays.
    play: Play,
    /// What the probes of its instance have found.
    health: Health,
    /// Which revision is verified, and how the one that is desired does.
    trial: Trial,
    /// How to treat its instance, by the newest spec that there was.
    policy: Policy,
}

/// What a unit is restored from when the agent starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// What it was last seen to be.
    #[serde(flatten)]
    pub observed: Observed,
    /// How often the instance had been started again by itself; see [`Told::restarts`].
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
    pub second: Option<KeptBeside>,
    /// The last verified revision. It has a place of its own in the store.
    #[serde(skip)]
    pub verified: Option<Arc<Verified>>,
}

impl Kept {
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
pub enum Instance {
    /// Not known, so nothing may be started.
    Unknown,
    /// Nothing.
    None,
    /// Something of this revision is being started.
    Launching(Digest),
    /// Something is.
    Alive(Alive),
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// What it was started as.
    pub revision: Digest,
    /// The frame of that ([`muster_topics::unit::Spec::frame`]), as far as it is known.
    pub frame: Option<Digest>,
    /// Its process, unless it is just being started again.
    pub process: Option<Process>,
    /// See [`Told::ready`].
    pub ready: bool,
    /// See [`Told::restarts`].
    pub restarts: u32,
    /// It was asked to end; after this time it is asked again.
    pub ends_by_ms: Option<Millis>,
    /// It was asked to be suspended (true) or to go on; after this time it is asked again.
    pub freezes_by_ms: Option<(bool, Millis)>,
}

impl Alive {
    /// Something of which no more is known than that it is in effect.
    fn new(revision: Digest, restarts: u32) -> Self {
        Self { revision, frame: None, process: None, ready: false, restarts, ends_by_ms: None, freezes_by_ms: None }
    }
}

/// A process, by everything that tells it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// When it was started.
    pub started_ms: Millis,
}

/// A slow step that is under way. There is one at a time, and it always reports back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
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
enum Rest {
    /// It cannot work; `error` says why.
    Failed,
    /// It ended, and its spec says that this is all.
    Finished,
}

/// Something to do. Each is begun at once, and what it comes to is [`Seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
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
    StartBeside,
    /// Ask what runs beside to end, and end it when its grace is over.
    StopBeside {
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

impl Unit {
    /// A unit as it was kept; nothing is kept of one that is new.
    #[must_use]
    pub fn new(kept: Option<Kept>, now_ms: Millis) -> Self {
        let kept = kept.unwrap_or_else(|| Kept::new(Observed::absent(now_ms)));
        let Kept { observed, condemned, up, trial_ms, slot, second, verified, .. } = kept;
        Self {
            desired: None,
            hold: None,
            waits: None,
            lacks: None,
            gate: Gate::Open,
            wiring: Wiring::default(),
            runs_with: None,
            installed: observed.revision.clone(),
            restart_ms: observed.retry_ms,
            observed,
            instance: Instance::Unknown,
            slot,
            beside: None,
            known: Known::Kept(second),
            work: None,
            rest: None,
            install_ms: None,
            install_failures: 0,
            adopt_ms: None,
            kept_restarts: kept.restarts,
            not_reloaded: None,
            outdated: false,
            kept_finished: kept.finished,
            play: Play::default(),
            health: Health::restore(up, condemned),
            trial: Trial::restore(verified, trial_ms),
            policy: Policy::default(),
        }
    }

    /// Why it is, on purpose, not converging, in the form that others see.
    #[must_use]
    pub fn visible_hold(&self) -> Option<&Hold> {
        self.hold.as_ref().or(self.lacks.as_ref()).or(self.waits.as_ref())
    }

    /// What keeps it from being started, as it knows.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// What other units can expect of it.
    #[must_use]
    pub fn way(&self) -> Way {
        let tries = self.wants_running() && !self.is_held() && self.rest.is_none();
        match self.observed.phase {
            Phase::Running | Phase::Playing if self.wants_running() => match self.observed.unready {
                Some(_) => Way::Unready,
                None => Way::Running,
            },
            Phase::Backoff | Phase::Failed => Way::Down,
            _ if tries && !matches!(self.gate, Gate::Blocked(_)) => Way::Coming,
            _ => Way::Down,
        }
    }

    /// Whether it is being started, or it is being found out whether it has to be.
    #[must_use]
    pub fn is_launching(&self) -> bool {
        match self.instance {
            Instance::Launching(_) => true,
            // One that cannot be looked up must not keep others.
            Instance::Unknown => self.wants_running() && !self.is_held() && self.adopt_ms.is_none(),
            Instance::None | Instance::Alive(_) => false,
        }
    }

    /// Whether it would be started now if others did not keep it.
    #[must_use]
    pub fn would_start(&self, now_ms: Millis) -> bool {
        let is_idle = self.work.is_none() && self.instance == Instance::None;
        is_idle && matches!(self.plan_idle(&Gate::Open, now_ms), Some(Step::Start { .. }))
    }

    /// Whether what runs was started with other endpoints than those that there are now. While something is lacking it
    /// is left as it is.
    fn is_rewired(&self) -> bool {
        !self.is_held() && !self.needs_wiring() && self.runs_with.as_ref().is_some_and(|with| *with != self.wiring)
    }

    /// What it is started with.
    #[must_use]
    pub fn wiring(&self) -> &Wiring {
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
    pub fn kept(&self) -> Kept {
        let restarts = match &self.instance {
            Instance::Alive(alive) => alive.restarts,
            Instance::Unknown => self.kept_restarts,
            Instance::None | Instance::Launching(_) => 0,
        };
        // How far a download is would be written down each time, and tells a later life nothing.
        let finished = match self.desired {
            Some(_) => self.rest == Some(Rest::Finished),
            None => self.kept_finished,
        };
        let condemned = self.health.condemned().cloned();
        let up = match &self.instance {
            Instance::Unknown => self.health.was_up(),
            _ => self.health.is_up(),
        };
        let (trial_ms, verified) = (self.trial.since_ms, self.trial.verified.clone());
        let (slot, second) = (self.slot, self.kept_beside());
        let observed = Observed { progress: None, ..self.observed.clone() };
        Kept { observed, restarts, finished, condemned, up, trial_ms, slot, second, verified }
    }

    /// What to find out now by its probes. Of one that is suspended, is to end, or is being replaced that is nothing.
    #[must_use]
    pub fn probing(&self) -> Vec<Probing> {
        let Some(desired) = &self.desired else { return Vec::new() };
        let of_beside = self.probed_beside().map(|(slot, process, told, health)| (slot, process, &told.wiring, health));
        let Some((slot, process, wiring, health)) = of_beside.or_else(|| self.probed(desired)) else {
            return Vec::new();
        };
        let probing = |which| {
            let (probe, wiring) = (desired.spec.probes().get(which)?.clone(), wiring.clone());
            let (desired, coming) = (desired.clone(), !health.is_up());
            Some(Probing { which, probe, slot, process, wiring, desired, coming })
        };
        health.due(self.policy.probes).into_iter().filter_map(probing).collect()
    }

    /// What it is known by, as far as that can be probed.
    fn probed(&self, desired: &Desired) -> Option<(Slot, Process, &Wiring, &Health)> {
        let Instance::Alive(alive) = &self.instance else { return None };
        let ends = alive.ends_by_ms.is_some() || self.health.condemned().is_some() || !desired.run.is_running();
        let is_it = !ends && !self.observed.frozen && alive.revision == desired.revision;
        Some((self.slot, alive.process.filter(|_| is_it)?, self.runs_with.as_ref()?, &self.health))
    }

    /// The process that runs now.
    #[must_use]
    pub fn process(&self) -> Option<Process> {
        if let Instance::Alive(alive) = &self.instance { alive.process } else { None }
    }
}

fn to_millis(ms: u64) -> Millis {
    Millis::try_from(ms).unwrap_or(Millis::MAX)
}
