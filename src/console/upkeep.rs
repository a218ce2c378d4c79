//! Upkeep of the console: watches the room on its disk, its own clock, and the external signer.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_base::clock::{boot_id, now_ms};
use muster_rules::{
    clock::{self, ClockEvidence, ClockFinding},
    time::SLACK_MS,
};
use muster_sqlite::room;
use muster_topics::{Millis, diagnostic::Diagnostic};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    certain_time, dispatch,
    notice::NoticeKind,
    page_change::PageChange,
    signing_time::ClockSteps,
    state::ConsoleState,
    store::{self, StoreResult},
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
        let confirmed = confirm_time(shared, found, now).await;
        let kept = match confirmed {
            Ok(()) => certain_time::keep(&shared.time, &shared.store).await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            tracing::error!(%error, "the time that has certainly come cannot be confirmed, or stored");
        }
        shared.measurements.series.set_time_max(shared.time.now());
        let message = found.message().or_else(|| certain_time::message(shared.time.ahead_ms(now)));
        let changed = match message.as_ref().filter(|_| !waits) {
            Some(message) => shared.notices.raise(NoticeKind::Clock, message.clone(), now),
            None => shared.notices.clear(NoticeKind::Clock),
        };
        if changed {
            if let Some(message) = message {
                tracing::error!("{message}");
            }
            shared.changed(PageChange::Alert(None));
        }
    }
}

/// Confirms the time if hosts agree with it. Those on this machine have the same clock: they do not confirm that it was set ahead.
async fn confirm_time(shared: &ConsoleState, found: ClockFinding, now: Millis) -> StoreResult<()> {
    if !found.is_confirmed() {
        return Ok(());
    }
    let right_ms = now.saturating_add(found.correction_ms());
    if shared.time.ahead_ms(right_ms) > 0 {
        let here = match boot_id() {
            Some(boot) => store::host::on_machine(shared.store.read(), &boot).await?,
            None => HashSet::new(),
        };
        let others = shared.hosts.clocks.consensus_without(&here);
        let is_agreed =
            others.is_some_and(|others| others.ahead_ms.abs_diff(now - right_ms) <= SLACK_MS.unsigned_abs());
        if !is_agreed {
            return Ok(());
        }
        tracing::info!(ahead_ms = shared.time.ahead_ms(right_ms), "hosts confirm how much time has passed");
        shared.time.confirm(right_ms);
        // What has waited for that ends.
        let _ = shared.commands.dispatch.send(dispatch::DispatchEvent::ClockSet).await;
        return Ok(());
    }
    shared.time.confirm(right_ms);
    Ok(())
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

    #[tokio::test]
    async fn hosts_on_other_machines_confirm_the_clock() {
        const DAY: Millis = 86_400_000;
        let fixture = crate::testing::Fixture::new().await;
        let (shared, boot) = (fixture.shared(), boot_id().unwrap());
        let (here, other) = (fixture.member("here").await, fixture.member("other").await);
        let state = serde_json::json!({"facts": {"boot_id": boot}}).to_string();
        sqlx::query("INSERT INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 1)")
            .bind(here.id.to_string())
            .bind(state)
            .execute(shared.store.write())
            .await
            .unwrap();
        muster_base::clock::pretended::set_ahead(31 * DAY);
        let look = async |clocks: &[(HostId, Millis)]| {
            shared.hosts.clocks.clear();
            for (host, ahead_ms) in clocks {
                shared.hosts.clocks.note(*host, now_ms() - ahead_ms, now_ms());
            }
            ClockWatch::new(now_ms()).check(shared).await;
            shared.time.ahead_ms(now_ms()) / DAY
        };
        assert_eq!(look(&[]).await, 30, "nobody says so");
        assert_eq!(look(&[(other.id, 31 * DAY)]).await, 30, "a host contradicts it");
        assert_eq!(look(&[(here.id, 0)]).await, 30, "it is the same clock");
        assert_eq!(look(&[(here.id, 0), (other.id, 31 * DAY)]).await, 30, "one contradicts it");
        assert_eq!(look(&[(here.id, 0), (other.id, 0)]).await, 0, "one agrees");
        // What they say once it was put right goes.
        muster_base::clock::pretended::set_ahead(0);
        assert_eq!(look(&[(here.id, 0)]).await, 0);
        assert!(shared.time.known_ms() < now_ms() + DAY);
        fixture.running.stop().await;
    }

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
