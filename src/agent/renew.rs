//! Renews the certificate after two thirds of its life, with jitter, and retries until it
//! succeeds. The link and the units follow a watch with the new identity.
//!
//! The console's answer has the keys that it signs with, too. So a host that was away while they were replaced gets them
//! with a renewal: it renews soon after a message that is signed with a key that it does not know, and after it met a broker
//! with a certificate under a root that it does not know.
//!
//! A certificate that is not under the first of the console's roots is renewed soon, too: that root will be dropped.

use std::{sync::Arc, time::Duration};

use muster_base::{chance, clock};
use muster_rules::backoff::{ExponentialGrowth, jittered, share};
use muster_topics::{Millis, diagnostic::Diagnostic};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    identity_keeper::IdentityKeeper,
    join::{self, EXPIRED_HINT, JoinError, MemberIdentity},
};

/// Delays between failed attempts. A third of the lifetime is left when they begin, so an hour is often enough.
const RETRY: ExponentialGrowth = ExponentialGrowth { first_ms: 60_000, max_ms: 3_600_000 };

/// The longest sleep: the wall clock may be set meanwhile, or the host be suspended.
const NAP_MS: Millis = 3_600_000;

/// The time over which hosts spread a renewal under another root: ten thousand hosts are some 300 in a second, and each
/// connects anew with its new certificate.
const ROOT_MS: Millis = 30_000;

/// The time over which hosts spread the first renewal for the console's keys: many may come back at once.
const KEYS_FIRST_MS: Millis = 10_000;
/// The least time between a renewal and another one for the console's keys, and how it grows. Whoever owns the broker can
/// send messages with unknown keys, and must not have hosts renew all the time.
const KEYS_AGAIN: ExponentialGrowth = ExponentialGrowth { first_ms: 60_000, max_ms: 3_600_000 };

/// How long after a renewal an unknown key means nothing: the message may have been on its way before. If it means
/// something, more will come, for whatever is not acknowledged is repeated.
const KEYS_SETTLE_MS: Millis = 10_000;

/// When the certificate may be renewed for the console's keys.
#[derive(Debug, Default)]
struct KeyRenewals {
    /// How many there were in a row.
    count: u32,
    /// The earliest time of the next one.
    not_before_ms: Millis,
    /// When the last one was.
    renewed_ms: Option<Millis>,
}

impl KeyRenewals {
    /// Returns when to renew, after a message with an unknown key; `None` if that means nothing.
    fn due_ms(&self, now_ms: Millis, random: f64) -> Option<Millis> {
        if self.renewed_ms.is_some_and(|renewed_ms| (0..KEYS_SETTLE_MS).contains(&(now_ms - renewed_ms))) {
            return None;
        }
        let soon_ms = now_ms.saturating_add(share(KEYS_FIRST_MS, random));
        // After a clock was set back, a renewal must not be blocked for that long.
        let wait_ms = (self.not_before_ms - now_ms).clamp(0, KEYS_AGAIN.max_ms);
        Some(soon_ms.max(now_ms + wait_ms))
    }

    /// Records a renewal, for the keys or not.
    fn renewed(&mut self, was_for_keys: bool, now_ms: Millis, random: f64) {
        self.renewed_ms = Some(now_ms);
        self.count = if was_for_keys { self.count.saturating_add(1) } else { 0 };
        self.not_before_ms = now_ms + KEYS_AGAIN.jittered_ms(self.count, random);
    }
}

/// Which roots the certificate was last renewed for: a console that does not issue under the first of its roots is not asked
/// again and again.
#[derive(Debug, Default)]
struct RootRenewals(Option<String>);

impl RootRenewals {
    /// Returns when the certificate is due that is otherwise due at `due_ms`.
    fn due_ms(&self, present: &MemberIdentity, due_ms: Millis, now_ms: Millis, random: f64) -> Millis {
        let is_tried = self.0.as_ref() == Some(&present.membership.authority);
        match !is_tried && present.is_under_former_root() {
            true => due_ms.min(now_ms.saturating_add(share(ROOT_MS, random))),
            false => due_ms,
        }
    }

    /// Records a renewal.
    fn renewed(&mut self, new: &MemberIdentity) {
        self.0 = Some(new.membership.authority.clone());
    }
}

/// Renews the certificate until `shutdown`; and soon, for the keys alone, after a notice that these may be stale.
pub(super) async fn keep_fresh(identity: IdentityKeeper, stale_keys: Arc<Notify>, shutdown: CancellationToken) {
    let mut attempts = 0;
    let (mut key_renewals, mut keys_due_ms) = (KeyRenewals::default(), None::<Millis>);
    let mut changes = identity.watch();
    let mut root_renewals = RootRenewals::default();
    let mut certificate_due_ms = {
        let present = changes.borrow_and_update().clone();
        root_renewals.due_ms(&present, plan(&present), clock::now_ms(), chance::random())
    };
    loop {
        let due_ms = keys_due_ms.map_or(certificate_due_ms, |keys_ms| keys_ms.min(certificate_due_ms));
        let wait_ms = (due_ms - clock::now_ms()).clamp(0, NAP_MS);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())) => {}
            () = stale_keys.notified(), if keys_due_ms.is_none() => {
                let now_ms = clock::now_ms();
                let Some(soon_ms) = key_renewals.due_ms(now_ms, chance::random()) else { continue };
                tracing::info!(
                    wait_ms = soon_ms - now_ms,
                    "a key or a root certificate of the fleet is unknown; this host requests them by renewing its certificate"
                );
                keys_due_ms = Some(soon_ms);
                continue;
            }
            Ok(()) = changes.changed() => {
                let present = changes.borrow_and_update().clone();
                let due_ms = root_renewals.due_ms(&present, certificate_due_ms, clock::now_ms(), chance::random());
                if due_ms < certificate_due_ms {
                    tracing::info!(renew_at_ms = due_ms, "the fleet's root certificate is being replaced; this host's certificate is renewed under the new one");
                    certificate_due_ms = due_ms;
                }
                continue;
            }
            () = shutdown.cancelled() => return,
        }
        let now_ms = clock::now_ms();
        if now_ms < due_ms {
            continue;
        }
        let is_for_keys = now_ms < certificate_due_ms;
        let present = identity.present();
        let renewed = tokio::select! {
            renewed = join::renew(&present) => renewed.and_then(|new| match is_for_keys {
                // The present certificate stays: another one would mean another connection.
                true => identity.take_keys(&new.membership).map(|()| certificate_due_ms),
                false => {
                    let plan_ms = plan(&new);
                    root_renewals.renewed(&new);
                    identity.renewed(new).map(|()| plan_ms)
                }
            }),
            () = shutdown.cancelled() => return,
        };
        match renewed {
            Ok(plan_ms) => {
                (certificate_due_ms, keys_due_ms, attempts) = (plan_ms, None, 0);
                key_renewals.renewed(is_for_keys, clock::now_ms(), chance::random());
                tracing::info!(renew_at_ms = plan_ms, is_for_keys, "the host's membership was renewed");
            }
            Err(error) => {
                let wait_ms = RETRY.jittered_ms(attempts, chance::random());
                complain(&present, &error, wait_ms);
                let again_ms = clock::now_ms() + wait_ms;
                if is_for_keys {
                    keys_due_ms = Some(again_ms);
                } else {
                    certificate_due_ms = again_ms;
                }
                attempts += 1;
            }
        }
    }
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
            consequence = "broker and console refuse this host; its units keep running",
            hint = EXPIRED_HINT,
            "the host's certificate has expired",
        );
    } else {
        tracing::warn!(%error, hint = Diagnostic::of(error).hint, retry_ms, left_s = left_ms / 1000, "the host's certificate could not be renewed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_have_a_host_renew_soon_and_then_ever_more_rarely() {
        let mut renewals = KeyRenewals::default();
        assert_eq!([0.0, 1.0].map(|random| renewals.due_ms(1_000, random)), [Some(1_000), Some(1_000 + KEYS_FIRST_MS)]);
        // What was on its way before the last renewal is no reason for the next.
        let later_ms = KEYS_SETTLE_MS + 5;
        let mut gaps = Vec::new();
        for _ in 0..9 {
            renewals.renewed(true, 5, 0.5);
            assert_eq!(renewals.due_ms(later_ms - 1, 0.0), None);
            gaps.push(renewals.due_ms(later_ms, 0.0).unwrap());
        }
        assert!(gaps.is_sorted() && gaps[0] >= KEYS_AGAIN.first_ms / 2, "{gaps:?}");
        assert!(gaps[8] <= KEYS_AGAIN.max_ms * 5 / 4, "{gaps:?}");
        assert_eq!(renewals.due_ms(KEYS_AGAIN.max_ms * 2, 0.0), Some(KEYS_AGAIN.max_ms * 2));
        // A clock that was set back blocks nothing for longer than that.
        assert!(renewals.due_ms(-KEYS_AGAIN.max_ms * 9, 0.0).unwrap() <= -KEYS_AGAIN.max_ms * 8);
        renewals.renewed(false, 5, 0.5);
        assert!(renewals.due_ms(later_ms, 0.0).unwrap() <= gaps[0]);
    }

    #[test]
    fn renewal_is_due_at_two_thirds_with_jitter() {
        let day = 24 * 3_600_000;
        assert_eq!(renewal_ms((day, 4 * day), 0.5), 3 * day);
        let (early, late) = (renewal_ms((0, day), 0.0), renewal_ms((0, day), 1.0));
        assert!(early > day * 3 / 5 && late < day * 3 / 4 && early < late, "{early} {late}");
    }
}
