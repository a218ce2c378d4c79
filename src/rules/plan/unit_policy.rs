//! The part of a spec that the planner needs.

use muster_topics::{
    Millis,
    common::{PROGRAM_VERIFY_AFTER_MS, grace_ms, start_timeout_ms, started_after_ms},
    signal::Signal,
    unit::{Channel, Restart, Spec},
};

use super::{health::ProbeSet, to_millis};
use crate::backoff::RestartPatience;

/// What the planner needs to know of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitPolicy {
    /// How often it is restarted, and with which delays.
    pub(super) patience: RestartPatience,
    pub(super) restart: Restart,
    /// Whether it consists of processes.
    pub(super) has_processes: bool,
    /// Whether it is for one run.
    pub(super) transient: bool,
    pub(super) started_after_ms: Millis,
    /// Whether it reports itself when it is up, on its channel or by going to the background.
    pub(super) says_ready: bool,
    /// Whether a change of only its configs can be applied to the running instance. (Limits always can.)
    pub(super) reloads: bool,
    /// Whether it has a channel.
    pub(super) speaks: bool,
    pub(super) probes: ProbeSet,
    /// How long it may take to come up.
    pub(super) start_timeout_ms: Millis,
    /// The signal that asks it to end; `None` for the one that it was started with.
    pub(super) stop_signal: Option<Signal>,
    pub(super) grace_ms: u64,
    /// Whether another revision is started before the running instance is stopped.
    pub(super) starts_first: bool,
    /// Whether it is rolled back automatically.
    pub(super) rolls_back: bool,
    pub(super) verify_after_ms: Millis,
    pub(super) healthy_within_ms: Millis,
}

impl UnitPolicy {
    pub(super) fn of(spec: &Spec) -> Self {
        let common = Self {
            rolls_back: spec.common().rollback.is_auto(),
            verify_after_ms: to_millis(spec.verify_after_ms()),
            healthy_within_ms: to_millis(spec.healthy_within()),
            ..Self::default()
        };
        let Some(program) = spec.program() else {
            return Self {
                patience: RestartPatience::Convergence,
                has_processes: false,
                // It is in effect at once when it was started.
                started_after_ms: 0,
                grace_ms: 0,
                healthy_within_ms: Millis::MAX,
                ..common
            };
        };
        let common = Self {
            restart: program.restart,
            started_after_ms: to_millis(program.started_after_ms),
            probes: ProbeSet::of(&program.probes),
            start_timeout_ms: to_millis(program.start_timeout_ms),
            stop_signal: program.stop_signal,
            grace_ms: program.grace_ms,
            ..common
        };
        match spec {
            Spec::Yuno(yuno) => Self {
                transient: yuno.transient,
                says_ready: !yuno.channel.is_none() || yuno.process.forking.is_some(),
                speaks: yuno.channel == Channel::Lines,
                reloads: !yuno.reload.is_restart(),
                stop_signal: Some(yuno.stop_signal()),
                starts_first: !yuno.replace.is_stop_first(),
                ..common
            },
            // Its limits can be changed while it runs.
            Spec::Container(_) => Self { patience: RestartPatience::Container, reloads: true, ..common },
            Spec::Files(_) | Spec::Packages(_) => common,
        }
    }
}

impl Default for UnitPolicy {
    /// The policy of an instance that was found without a spec.
    fn default() -> Self {
        Self {
            restart: Restart::default(),
            has_processes: true,
            transient: false,
            started_after_ms: to_millis(started_after_ms()),
            says_ready: false,
            reloads: false,
            speaks: false,
            probes: ProbeSet::default(),
            start_timeout_ms: to_millis(start_timeout_ms()),
            stop_signal: None,
            grace_ms: grace_ms(),
            starts_first: false,
            rolls_back: false,
            verify_after_ms: to_millis(PROGRAM_VERIFY_AFTER_MS),
            healthy_within_ms: Millis::MAX,
            patience: RestartPatience::Process,
        }
    }
}
