//! Renews the certificate after two thirds of its life, with jitter, and retries until it
//! succeeds. The link and the units follow a watch with the new identity.

use std::{path::PathBuf, sync::Arc, time::Duration};

use muster_base::{chance, clock};
use muster_rules::backoff::{ExponentialGrowth, jittered};
use muster_topics::Millis;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::join::{self, JoinError, MemberIdentity};

/// Delays between failed attempts. A third of the lifetime is left when they begin, so an hour is often enough.
const RETRY: ExponentialGrowth = ExponentialGrowth { first_ms: 60_000, max_ms: 3_600_000 };

/// The longest sleep: the wall clock may be set meanwhile, or the host be suspended.
const NAP_MS: Millis = 3_600_000;

/// The time over which hosts spread a first renewal: agents that are all upgraded at once do not renew at once.
const SOON_MS: Millis = 3_600_000;

/// Renews the certificate until `shutdown`.
pub(super) async fn keep_fresh(
    identity: watch::Sender<Arc<MemberIdentity>>,
    folder: PathBuf,
    shutdown: CancellationToken,
) {
    let mut attempts = 0;
    let mut due_ms = {
        let present = identity.borrow();
        let has_key = present.membership.revision_key.is_some();
        first_ms(plan(&present), has_key, clock::now_ms(), chance::random())
    };
    loop {
        let wait_ms = (due_ms - clock::now_ms()).clamp(0, NAP_MS);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())) => {}
            () = shutdown.cancelled() => return,
        }
        if clock::now_ms() < due_ms {
            continue;
        }
        let present = identity.borrow().clone();
        let renewed = tokio::select! {
            renewed = join::renew(&present) => renewed.and_then(|new| join::save(&folder, &new).map(|()| new)),
            () = shutdown.cancelled() => return,
        };
        match renewed {
            Ok(new) => {
                due_ms = plan(&new);
                attempts = 0;
                tracing::info!(renew_at_ms = due_ms, "the host's certificate was renewed");
                identity.send_replace(Arc::new(new));
            }
            Err(error) => {
                let wait_ms = RETRY.jittered_ms(attempts, chance::random());
                complain(&present, &error, wait_ms);
                due_ms = clock::now_ms() + wait_ms;
                attempts += 1;
            }
        }
    }
}

/// Returns when to renew first: soon for a host without a key for its revisions, which agents of earlier releases did
/// not store. An older console has none to give, and is not asked again before the certificate is due.
fn first_ms(due_ms: Millis, has_key: bool, now_ms: Millis, random: f64) -> Millis {
    if has_key { due_ms } else { due_ms.min(now_ms.saturating_add(jittered(SOON_MS, random))) }
}

/// Returns when to renew: after two thirds of the certificate's lifetime, plus or minus a twelfth.
fn plan(identity: &MemberIdentity) -> Millis {
    renewal_ms(identity.validity_ms().unwrap_or_default(), chance::random())
}

fn renewal_ms((begins_ms, ends_ms): (Millis, Millis), random: f64) -> Millis {
    let life_ms = ends_ms.saturating_sub(begins_ms);
    begins_ms + life_ms / 2 + jittered(life_ms / 6, random)
}

fn complain(identity: &MemberIdentity, error: &JoinError, retry_ms: Millis) {
    let left_ms = identity.validity_ms().map_or(0, |(_, ends_ms)| ends_ms - clock::now_ms());
    if left_ms <= 0 {
        tracing::error!(
            %error, retry_ms,
            consequence = "neither broker nor console let it in; its units go on",
            hint = "make a token with `muster token create` and start the agent with it; the host keeps its id. \
                If the clock is wrong, set it",
            "the host's certificate has expired",
        );
    } else {
        tracing::warn!(%error, retry_ms, left_s = left_ms / 1000, "the host's certificate could not be renewed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_revision_key_renews_early() {
        let day = 24 * 3_600_000;
        assert_eq!(first_ms(5 * day, true, day, 0.5), 5 * day);
        assert_eq!(first_ms(5 * day, false, day, 0.5), day + SOON_MS);
        assert_eq!(first_ms(day + 1, false, day, 0.5), day + 1);
    }

    #[test]
    fn renewal_is_due_at_two_thirds_with_jitter() {
        let day = 24 * 3_600_000;
        assert_eq!(renewal_ms((day, 4 * day), 0.5), 3 * day);
        let (early, late) = (renewal_ms((0, day), 0.0), renewal_ms((0, day), 1.0));
        assert!(early > day * 3 / 5 && late < day * 3 / 4 && early < late, "{early} {late}");
    }
}
