//! The instance of a unit that is in effect: each state has the data that only it can have.

use muster_topics::{Millis, diagnostic::Diagnostic, name::Digest, unit::InstanceReport};

use super::{ADOPT_AGAIN_MS, KeptSecondInstance, PlanStep, clock_shift::shift, health::Health, step::due};
use crate::port_lease::EndpointWiring;

/// The instance of a unit that is in effect. For a yuno: its process, or its shim that is about to restart it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectiveInstance {
    /// Unknown until it has been looked up, so nothing may be started.
    Unknown(LookUp),
    /// There is none.
    None,
    /// An instance of this revision is being started.
    Launching(Digest),
    /// There is one.
    Alive(Box<LiveInstance>),
}

/// The lookup of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookUp {
    state: LookUpState,
    /// What an earlier run of the agent stored; `None` if this run has started the instance.
    pub(super) kept: Option<KeptInstances>,
}

/// How far a lookup has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LookUpState {
    /// It has to begin.
    #[default]
    Due,
    /// It is under way.
    UnderWay {
        /// Whether the one before failed.
        is_repeated: bool,
    },
    /// It failed, and is repeated at this time.
    Failed { again_ms: Millis },
}

/// What an earlier run of the agent stored of a unit's instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptInstances {
    pub(super) first: KeptInstance,
    /// See [`RestoredUnit::second`](super::RestoredUnit::second).
    pub(super) second: Option<KeptSecondInstance>,
}

/// The stored state of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptInstance {
    /// See [`RestoredUnit::restarts`](super::RestoredUnit::restarts).
    pub(super) restarts: u32,
    /// See [`RestoredUnit::up`](super::RestoredUnit::up).
    pub(super) up: bool,
    /// See [`RestoredUnit::condemned`](super::RestoredUnit::condemned).
    pub(super) condemned: Option<Diagnostic>,
}

impl LookUp {
    /// Creates the first lookup of a run of the agent.
    pub(super) fn restore(kept: KeptInstances) -> Self {
        Self { kept: Some(kept), ..Self::default() }
    }

    /// Returns the next step.
    pub(super) fn plan(&self, now_ms: Millis) -> Option<PlanStep> {
        match self.state {
            LookUpState::Due => Some(PlanStep::Adopt),
            LookUpState::UnderWay { .. } => None,
            LookUpState::Failed { again_ms } => Some(due(Some(again_ms), now_ms).unwrap_or(PlanStep::Adopt)),
        }
    }

    /// Handles that it has begun.
    pub(super) fn begin(&mut self) {
        self.state = LookUpState::UnderWay { is_repeated: self.has_failed() };
    }

    /// Handles that it failed.
    pub(super) fn failed(&mut self, now_ms: Millis) {
        self.state = LookUpState::Failed { again_ms: now_ms.saturating_add(ADOPT_AGAIN_MS) };
    }

    /// Shifts its time by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        if let LookUpState::Failed { again_ms } = &mut self.state {
            shift(again_ms, by_ms);
        }
    }

    /// Whether it failed when it was last tried.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state, LookUpState::UnderWay { is_repeated: true } | LookUpState::Failed { .. })
    }
}

impl EffectiveInstance {
    /// Returns the state to store. An instance that has not been looked up keeps what is stored of it.
    pub(super) fn kept(&self) -> KeptInstance {
        match self {
            Self::Unknown(lookup) => lookup.kept.as_ref().map(|kept| kept.first.clone()).unwrap_or_default(),
            Self::None | Self::Launching(_) => KeptInstance::default(),
            Self::Alive(alive) => KeptInstance {
                restarts: alive.restarts,
                up: alive.health.is_up(),
                condemned: alive.health.condemned().cloned(),
            },
        }
    }
}

/// A live instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveInstance {
    /// The revision that it was started as.
    pub revision: Digest,
    /// The frame of that revision ([`muster_topics::unit::Spec::frame`]), as far as known.
    pub frame: Option<Digest>,
    /// Its process; `None` while it is being restarted.
    pub process: Option<ProcessId>,
    /// See [`ShimReport::ready`](super::ShimReport::ready).
    pub ready: bool,
    /// See [`ShimReport::restarts`](super::ShimReport::restarts).
    pub restarts: u32,
    /// When to stop it again, if a stop is under way.
    pub ends_by_ms: Option<Millis>,
    /// Whether a freeze (true) or a thaw is under way, and when to repeat it.
    pub freezes_by_ms: Option<(bool, Millis)>,
    /// The revision that it is being changed to without a restart.
    pub(super) reloading: Option<Digest>,
    /// The revision that it could not be changed to without a restart.
    pub(super) not_reloaded: Option<Digest>,
    /// Whether it must be restarted although the desired state is the same, because something that it has read changed.
    pub(super) outdated: bool,
    /// The ports and connections that it was started with, as far as known.
    pub(super) runs_with: Option<EndpointWiring>,
    /// The results of its probes.
    pub(super) health: Health,
    /// What is reported of it, besides its process and why it is unready.
    pub(super) report: InstanceReport,
}

impl LiveInstance {
    /// Creates one of which only the revision is known.
    pub(super) fn new(revision: Digest, restarts: u32) -> Box<Self> {
        Box::new(Self {
            revision,
            frame: None,
            process: None,
            ready: false,
            restarts,
            ends_by_ms: None,
            freezes_by_ms: None,
            reloading: None,
            not_reloaded: None,
            outdated: false,
            runs_with: None,
            health: Health::default(),
            report: InstanceReport::default(),
        })
    }
}

/// A process, identified so that a later one with the same number is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// When it was started.
    pub started_ms: Millis,
}

impl ProcessId {
    /// Whether it has run for so long by now. One that began in the future did so before the clock was set back: nobody knows for
    /// how long it has run, and it would take as long to find out.
    pub(super) fn has_run_for(&self, ms: Millis, now_ms: Millis) -> bool {
        now_ms < self.started_ms || now_ms.saturating_sub(self.started_ms) >= ms
    }
}
