//! Rollouts as they are stored: JSON documents of their own, so that what the rules keep in memory may change. Leases and ends are
//! those of the rules.

use muster_api::{HostOutcome, RolloutPhase};
use muster_rules::rollout::{
    policy::Share,
    state::{AcceptedFailures, CheckStatus, HostEnd, HostProgress, HostVerdict, Permit, RolloutState},
};
use muster_topics::{Millis, ack::Numbered, diagnostic::Diagnostic};
use serde::{Deserialize, Serialize};

use crate::store::StoreError;

/// A rollout without its hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredRollout {
    pub(super) fallback: Option<u32>,
    pub(super) is_rollback: bool,
    pub(super) phase: RolloutPhase,
    waves: Vec<String>,
    pub(super) wave: u32,
    wave_began_ms: Millis,
    wave_ended_ms: Option<Millis>,
    approved: u32,
    accepted: AcceptedFailures,
    has_passed: bool,
}

impl StoredRollout {
    pub(super) fn of(state: &RolloutState) -> Self {
        Self {
            fallback: state.fallback,
            is_rollback: state.is_rollback,
            phase: state.phase.clone(),
            waves: state.waves.iter().map(Share::to_string).collect(),
            wave: state.wave,
            wave_began_ms: state.wave_began_ms,
            wave_ended_ms: state.wave_ended_ms,
            approved: state.approved,
            accepted: state.accepted,
            has_passed: state.check == CheckStatus::Passed,
        }
    }

    /// Restores a rollout without hosts. A console that has just read it watches from now on.
    pub(super) fn restore(&self, version: u32, watched_since_ms: Millis) -> Result<RolloutState, StoreError> {
        let share = |text: &String| {
            let problem = format!("{text:?} is not a size of a wave");
            text.parse::<Share>().map_err(|()| StoreError::Row { what: "rollout", problem })
        };
        Ok(RolloutState {
            version,
            fallback: self.fallback,
            is_rollback: self.is_rollback,
            phase: self.phase.clone(),
            waves: self.waves.iter().map(share).collect::<Result<_, _>>()?,
            wave: self.wave.max(1),
            wave_began_ms: self.wave_began_ms,
            wave_ended_ms: self.wave_ended_ms,
            approved: self.approved,
            accepted: self.accepted,
            check: if self.has_passed { CheckStatus::Passed } else { CheckStatus::Open },
            watched_since_ms,
            hosts: Default::default(),
        })
    }
}

/// What is stored of how far a host is. What it asks, and whether it is connected, is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredHost {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_late: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    heard: Option<Numbered>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_ms: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<Permit>,
    permits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wave: Option<u32>,
    pub(super) failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<HostEnd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<HostOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_unavailable: bool,
}

impl StoredHost {
    pub(super) fn of(progress: &HostProgress) -> Self {
        Self {
            is_late: progress.is_late,
            heard: progress.heard,
            asked_ms: progress.asked_ms,
            permit: progress.permit,
            permits: progress.permits,
            wave: progress.wave,
            failures: progress.failures,
            ended: progress.ended,
            outcome: progress.outcome(),
            retry_ms: progress.retry_ms(),
            is_unavailable: progress.is_unavailable,
        }
    }

    pub(super) fn restore(self) -> HostProgress {
        HostProgress {
            is_late: self.is_late,
            heard: self.heard,
            asked_ms: self.asked_ms,
            permit: self.permit,
            permits: self.permits,
            wave: self.wave,
            failures: self.failures,
            ended: self.ended,
            verdict: self.outcome.map(|outcome| HostVerdict::new(outcome, self.retry_ms)),
            is_unavailable: self.is_unavailable,
            ..HostProgress::default()
        }
    }
}

/// What there is to say of a host beside that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostNote {
    /// Whether anything on it is different from before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changed: Option<bool>,
    /// What it has said of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<Diagnostic>,
    /// When it was admitted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) admitted_ms: Option<Millis>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended_ms: Option<Millis>,
}

/// The JSON of a host's row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredHostRow {
    #[serde(flatten)]
    pub(super) host: StoredHost,
    pub(super) note: HostNote,
}

#[cfg(test)]
mod tests {
    use muster_rules::rollout::{policy::RolloutPolicy, transition::TargetHost};
    use muster_topics::name::HostId;

    use super::*;

    #[test]
    fn what_is_stored_of_a_rollout_is_restored() {
        let hosts: Vec<HostId> = (0..12).map(|_| HostId::random()).collect();
        let target = hosts.iter().map(|host| TargetHost { host: *host, group: None, is_online: true, can_take: true });
        let mut state = RolloutState::begin(&RolloutPolicy::default(), 3, Some(2), false, target, 5);
        state.asked(hosts[0], Numbered { epoch: 1, seq: 1 }, 3, 6);
        state.begun(hosts[1], Numbered { epoch: 1, seq: 4 }, 3, 9, 7);
        let text = serde_json::to_string(&StoredRollout::of(&state)).unwrap();
        let mut read = serde_json::from_str::<StoredRollout>(&text).unwrap().restore(3, 5).unwrap();
        for (host, progress) in &state.hosts {
            let row = StoredHostRow { host: StoredHost::of(progress), note: HostNote::default() };
            let text = serde_json::to_string(&row).unwrap();
            let row: StoredHostRow = serde_json::from_str(&text).unwrap();
            read.hosts.insert(*host, HostProgress { is_online: true, ..row.host.restore() });
        }
        // A question is repeated.
        state.hosts.get_mut(&hosts[0]).unwrap().asks = None;
        assert_eq!(read, state);
    }
}
