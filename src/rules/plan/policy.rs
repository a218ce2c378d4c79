//! The part of a spec that the planner needs.

use muster_topics::{
    Millis,
    signal::Signal,
    unit::{Channel, Restart, Spec, grace_ms, start_timeout_ms, started_after_ms, verify_after_ms},
};

use super::{health::ProbeSet, to_millis};
use crate::backoff::RestartPatience;

/// What the planner has to know of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitPolicy {
    /// How long to wait before it is started again, and how often.
    pub(super) patience: RestartPatience,
    pub(super) restart: Restart,
    /// It is there for one run.
    pub(super) transient: bool,
    pub(super) started_after_ms: Millis,
    /// It says itself when it is up, on its channel or by going to the background.
    pub(super) says_ready: bool,
    /// A change of nothing but configs may reach what runs. (One of limits may in any case.)
    pub(super) reloads: bool,
    /// It can be asked things.
    pub(super) speaks: bool,
    pub(super) probes: ProbeSet,
    /// How long it may take to come up.
    pub(super) start_timeout_ms: Millis,
    /// What asks it to end; what it says itself if there is none.
    pub(super) stop_signal: Option<Signal>,
    pub(super) grace_ms: u64,
    /// Another revision is started before what runs is ended.
    pub(super) starts_first: bool,
    /// It goes back by itself.
    pub(super) rolls_back: bool,
    pub(super) verify_after_ms: Millis,
    pub(super) healthy_within_ms: Millis,
}

impl UnitPolicy {
    pub(super) fn of(spec: &Spec) -> Self {
        match spec {
            Spec::Yuno(spec) => Self {
                restart: spec.restart,
                transient: spec.transient,
                started_after_ms: to_millis(spec.started_after_ms),
                says_ready: !spec.channel.is_none() || spec.process.forking.is_some(),
                speaks: spec.channel == Channel::Lines,
                probes: ProbeSet::of(&spec.probes),
                start_timeout_ms: to_millis(spec.start_timeout_ms),
                reloads: !spec.reload.is_restart(),
                stop_signal: Some(spec.stop_signal()),
                grace_ms: spec.grace_ms,
                starts_first: !spec.replace.is_stop_first(),
                rolls_back: spec.rollback.is_auto(),
                verify_after_ms: to_millis(spec.verify_after_ms),
                healthy_within_ms: to_millis(spec.healthy_within()),
                patience: RestartPatience::Process,
            },
            Spec::Container(spec) => Self {
                patience: RestartPatience::Container,
                restart: spec.restart,
                started_after_ms: to_millis(spec.started_after_ms),
                probes: ProbeSet::of(&spec.probes),
                start_timeout_ms: to_millis(spec.start_timeout_ms),
                // Its limits can change while it runs.
                reloads: true,
                stop_signal: spec.stop_signal,
                grace_ms: spec.grace_ms,
                rolls_back: spec.rollback.is_auto(),
                verify_after_ms: to_millis(spec.verify_after_ms),
                healthy_within_ms: to_millis(spec.healthy_within()),
                ..Self::default()
            },
        }
    }
}

impl Default for UnitPolicy {
    /// For what is found without a spec: nobody knows any more how it wants to be treated.
    fn default() -> Self {
        Self {
            restart: Restart::default(),
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
            verify_after_ms: to_millis(verify_after_ms()),
            healthy_within_ms: Millis::MAX,
            patience: RestartPatience::Process,
        }
    }
}
