//! What phases and outcomes are called.

use std::collections::BTreeMap;

use muster_api::{HostOutcome, RolloutPhase};
use muster_topics::Millis;

use crate::print;

/// All outcomes, in the order in which they are shown.
pub(super) const OUTCOMES: [HostOutcome; 10] = [
    HostOutcome::Verified,
    HostOutcome::RolledBack,
    HostOutcome::Failed,
    HostOutcome::Lost,
    HostOutcome::Refused,
    HostOutcome::Cannot,
    HostOutcome::Missing,
    HostOutcome::Skipped,
    HostOutcome::Superseded,
    HostOutcome::Removed,
];

/// The word for an outcome, which is also that of the API.
pub(super) fn outcome_word(outcome: HostOutcome) -> &'static str {
    match outcome {
        HostOutcome::Verified => "verified",
        HostOutcome::RolledBack => "rolled_back",
        HostOutcome::Failed => "failed",
        HostOutcome::Lost => "lost",
        HostOutcome::Refused => "refused",
        HostOutcome::Cannot => "cannot",
        HostOutcome::Missing => "missing",
        HostOutcome::Skipped => "skipped",
        HostOutcome::Superseded => "superseded",
        HostOutcome::Removed => "removed",
    }
}

/// `12 verified, 1 failed`.
pub(super) fn outcomes(counts: &BTreeMap<HostOutcome, u64>) -> String {
    let words: Vec<String> =
        counts.iter().map(|(outcome, count)| format!("{count} {}", outcome_word(*outcome))).collect();
    words.join(", ")
}

/// How a rollout goes.
pub(crate) fn phase(phase: &RolloutPhase, now_ms: Millis) -> String {
    match phase {
        RolloutPhase::Running => "running".to_owned(),
        // A second is what ages are told in.
        RolloutPhase::Soaking { until_ms } if *until_ms < now_ms + 1_000 => "soaking".to_owned(),
        RolloutPhase::Soaking { until_ms } => {
            format!("soaking: the next wave begins {}", print::age(*until_ms, now_ms))
        }
        RolloutPhase::Approval => "waits for approval".to_owned(),
        RolloutPhase::Paused { reason, .. } => format!("paused: {reason}"),
        RolloutPhase::Completed => "completed".to_owned(),
        RolloutPhase::Cancelled => "cancelled".to_owned(),
        RolloutPhase::RolledBack { by } => format!("rolled back by version {by}"),
        RolloutPhase::Superseded { by } => format!("superseded by version {by}"),
        RolloutPhase::Failed { reason } => format!("failed: {reason}"),
    }
}
