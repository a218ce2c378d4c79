//! Upkeep of the console: watches the room on its disk, its own clock, and the external signer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_base::clock::now_ms;
use muster_rules::clock::{self, ClockEvidence, ClockFinding};
use muster_sqlite::room;
use muster_topics::{Millis, diagnostic::Diagnostic};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    dispatch, notice::NoticeKind, page_change::PageChange, signing_time::ClockSteps, state::ConsoleState, store,
};

pub(super) use super::host_clocks::HostClocks;

/// How often: a disk that was full is used again within this time.
const PERIOD: Duration = Duration::from_secs(5);

/// Checks regularly until the console stops.
pub(super) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let mut watch = ClockWatch::new(now_ms());
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                look_at_disk(&shared);
                watch.check(&shared).await;
            }
            () = shutdown.cancelled() => return,
        }
    }
}

/// Watches the external signer, if there is one, until the console stops.
pub(super) async fn watch_signer(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let Some(signer) = shared.authority.key_ring().external() else { return };
    let all = async {
        loop {
            // While it signs, nobody asks it for more.
            let failed = match signer.has_failed() {
                true => signer.keys().await.err(),
                false => None,
            };
            let changed = match &failed {
                Some(error) => {
                    let consequence = "no command is given, and hosts repeat what they say";
                    let message = Diagnostic::parse(&error.to_string()).with_consequence(consequence);
                    shared.notices.raise(NoticeKind::SignerAway, format!("{message:#}"), now_ms())
                }
                None => shared.notices.clear(NoticeKind::SignerAway),
            };
            if changed {
                match failed {
                    Some(error) => tracing::error!("{error}"),
                    None => {
                        tracing::info!("the signer at {} signs again", signer.address());
                        let _ = shared.commands.dispatch.send(dispatch::DispatchEvent::SignerBack).await;
                    }
                }
                shared.changed(PageChange::Alert(None));
            }
            tokio::time::sleep(PERIOD).await;
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

/// Watches the console's own clock.
#[derive(Debug)]
struct ClockWatch {
    steps: ClockSteps,
    /// By how much it was set since hosts last agreed with it.
    set_by_ms: Millis,
    /// When it was set last, or the console was started: hosts have not reported since.
    set: Option<Instant>,
}

/// How long hosts have to report their clocks, after the console's was set.
const ANSWER: Duration = Duration::from_secs(60);

impl ClockWatch {
    fn new(now: Millis) -> Self {
        Self { steps: ClockSteps::new(now), set_by_ms: 0, set: Some(Instant::now()) }
    }

    async fn check(&mut self, shared: &ConsoleState) {
        let now = now_ms();
        let by_ms = self.steps.take(now);
        if by_ms != 0 {
            tracing::warn!(
                by_s = by_ms / 1000,
                "the console's clock was set, or this machine slept; hosts are asked what theirs show"
            );
            self.set_by_ms += by_ms;
            self.set = Some(Instant::now());
            // Earlier reports were compared with another clock.
            shared.hosts.clocks.clear();
            shared.hosts.signing_time.correct_by(0, false);
            let _ = shared.commands.dispatch.send(dispatch::DispatchEvent::ClockSet).await;
        }
        let signed_ahead_ms = shared.hosts.signing_time.ahead_ms(now);
        let bound = match signed_ahead_ms {
            0 => Ok(0),
            _ => store::host::bound_count(shared.store.read()).await,
        };
        let Ok(bound) = bound.inspect_err(|error| tracing::error!(%error, "agents of before cannot be counted")) else {
            return;
        };
        let evidence = ClockEvidence {
            now_ms: now,
            consensus: shared.hosts.clocks.consensus(),
            set_by_ms: self.set_by_ms,
            signed_ahead_ms,
            bound,
            is_refused: shared.hosts.link.is_refused_for_time(),
        };
        let found = clock::judge(&evidence);
        shared.hosts.signing_time.correct_by(found.correction_ms(), found.is_confirmed());
        match found {
            ClockFinding::Right => {
                shared.hosts.signing_time.settle();
                (self.set_by_ms, self.set) = (0, None);
            }
            ClockFinding::Bound { .. } => (self.set_by_ms, self.set) = (0, None),
            _ => (),
        }
        // Until hosts have had time to answer, frequent messages keep the time of before.
        let is_open = evidence.consensus.is_none() && found != ClockFinding::Refused;
        let waits = is_open && self.set.is_some_and(|set| set.elapsed() < ANSWER);
        if !waits {
            shared.hosts.signing_time.trust(now);
        }
        let changed = match found.message().filter(|_| !waits) {
            Some(message) => shared.notices.raise(NoticeKind::Clock, message, now),
            None => shared.notices.clear(NoticeKind::Clock),
        };
        if changed {
            if let Some(message) = found.message() {
                tracing::error!("{message}");
            }
            shared.changed(PageChange::Alert(None));
        }
    }
}

fn look_at_disk(shared: &ConsoleState) {
    let Some(reserve) = shared.store.reserve() else { return };
    reserve.refill();
    let changed = match reserve.is_short() {
        true => shared.notices.raise(
            NoticeKind::DiskFull,
            format!(
                "the disk of the console's folder {} is full: commands and the register are kept from what was held in \
                 reserve; measurements, artifacts and configs are not taken in. hint: {}",
                reserve.folder().display(),
                room::HINT
            ),
            now_ms(),
        ),
        false => shared.notices.clear(NoticeKind::DiskFull),
    };
    if changed {
        shared.changed(PageChange::Alert(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_rules::{clock::ClockConsensus, time::BUILD_MS};
    use muster_topics::name::HostId;

    #[test]
    fn unset_host_clocks_are_ignored() {
        let clocks = HostClocks::default();
        let (one, other, now) = (HostId::random(), HostId::random(), BUILD_MS + 1_000_000);
        assert_eq!(clocks.consensus(), None);
        clocks.note(one, now - 100, now);
        // The report was delayed.
        clocks.note(one, now - 90_000, now);
        clocks.note(other, 5_000, now);
        assert_eq!(clocks.consensus(), Some(ClockConsensus { ahead_ms: 100, agree: 1, of: 1 }));
        clocks.clear();
        assert_eq!(clocks.consensus(), None);
    }
}
