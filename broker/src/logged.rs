//! Refusals in the log: the first one, then how many there were.
//!
//! A host that publishes where it may not does so every few seconds for as long as nobody mends it. Each refusal is
//! counted; the log gets one line per identity and kind in [`QUIET`], which says how many there were since the last.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_topics::role::Identity;

use crate::access::Refusal;

/// How long an identity's refusals of one kind stay quiet after one was logged.
const QUIET: Duration = Duration::from_secs(600);

/// Identities and kinds that are remembered. Beyond it nothing new is logged until some are forgotten.
const SEEN_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Logged {
    seen: Mutex<HashMap<(Identity, Refusal), Seen>>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    quiet: u64,
}

impl Logged {
    /// Takes note of a refusal. If it is to be logged, says how many were not since the last one that was.
    pub(crate) fn note(&self, identity: &Identity, refusal: Refusal, now: Instant) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (identity.clone(), refusal);
        if let Some(known) = seen.get_mut(&key) {
            if now.saturating_duration_since(known.since) < QUIET {
                known.quiet += 1;
                return None;
            }
            let quiet = std::mem::take(&mut known.quiet);
            known.since = now;
            return Some(quiet);
        }
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, known| now.saturating_duration_since(known.since) < QUIET);
        }
        if seen.len() >= SEEN_MAX {
            return None;
        }
        seen.insert(key, Seen { since: now, quiet: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_identity_and_kind_in_a_while() {
        let logged = Logged::default();
        let start = Instant::now();
        let [anna, berta] = ["operator-anna", "operator-berta"].map(|name| name.parse::<Identity>().unwrap());
        for (identity, refusal, after_s, expected) in [
            (&anna, Refusal::Denied, 0, Some(0)),
            (&anna, Refusal::Denied, 1, None),
            (&anna, Refusal::Topic, 1, Some(0)),
            (&berta, Refusal::Denied, 1, Some(0)),
            (&anna, Refusal::Denied, 599, None),
            (&anna, Refusal::Denied, 600, Some(2)),
            (&anna, Refusal::Denied, 601, None),
        ] {
            let found = logged.note(identity, refusal, start + Duration::from_secs(after_s));
            assert_eq!(found, expected, "{identity} {refusal} after {after_s} s");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let logged = Logged::default();
        let start = Instant::now();
        let identity = |number: usize| format!("operator-{number}").parse::<Identity>().unwrap();
        for number in 0..SEEN_MAX {
            assert_eq!(logged.note(&identity(number), Refusal::Denied, start), Some(0));
        }
        assert_eq!(logged.note(&identity(SEEN_MAX), Refusal::Denied, start), None);
        assert_eq!(logged.note(&identity(SEEN_MAX), Refusal::Denied, start + QUIET), Some(0));
    }
}
