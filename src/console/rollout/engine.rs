//! When rounds are made: when something has happened, and when a decision says to look again.

use std::{sync::Arc, time::Duration};

use muster_topics::Millis;
use tokio_util::sync::CancellationToken;

use super::{answer, authority, check, round::RoundOutcome};
use crate::state::Console;

/// The least time between two rounds: what happens meanwhile is decided, stored and synced to the disk together.
const PACE: Duration = Duration::from_millis(50);
/// How long to wait after a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest sleep: a clock that is set shows within this time.
const SLEEP_MAX_MS: Millis = 60_000;

/// Makes rounds until the console stops.
pub(crate) async fn run(console: Console, shutdown: CancellationToken) {
    let all = async {
        loop {
            if !console.shared.hosts.rollouts.is_ready()
                && let Err(error) = console.open_rollout_hosts().await
            {
                tracing::error!(%error, "hosts of rollouts cannot be read; retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let again_ms = match console.rollout_round().await {
                Ok(outcome) => perform(&console, outcome, &shutdown).await,
                Err(error) => {
                    tracing::error!(%error, "rollouts cannot be decided; retrying");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            tokio::time::sleep(PACE).await;
            let sleep_ms = again_ms.map_or(SLEEP_MAX_MS, |again_ms| again_ms.saturating_sub(console.shared.time.now()));
            let sleep_ms = u64::try_from(sleep_ms.clamp(0, SLEEP_MAX_MS)).unwrap_or(0);
            tokio::select! {
                () = console.shared.hosts.rollouts.news.notified() => (),
                () = tokio::time::sleep(Duration::from_millis(sleep_ms)) => (),
            }
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

/// Does what a round has brought beside the store. Returns when the next one is to be.
async fn perform(console: &Console, outcome: RoundOutcome, shutdown: &CancellationToken) -> Option<Millis> {
    if let Err(error) = answer::send(&console.shared, outcome.answers).await {
        tracing::error!(%error, "hosts cannot be answered about rollouts; they will ask again");
    }
    for (deployment, version, reason) in outcome.rollbacks {
        if let Err(error) = console.roll_back_by_itself(&deployment, version, &reason).await {
            tracing::error!(%deployment, version, %error, "a version cannot be rolled back; retrying");
        }
    }
    for request in outcome.authorities {
        let (console, shutdown) = (console.clone(), shutdown.clone());
        tokio::spawn(async move { shutdown.run_until_cancelled(authority::ask(console, request)).await });
    }
    for request in outcome.checks {
        let (shared, shutdown) = (Arc::clone(&console.shared), shutdown.clone());
        tokio::spawn(async move { shutdown.run_until_cancelled(check::make(shared, request)).await });
    }
    outcome.again_ms
}
