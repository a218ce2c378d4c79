//! The console looks after itself: the room on its disk, and its own clock.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use muster_topics::{Millis, name::HostId};

use super::{Change, Shared, dated::Steps, dispatch, notice::Trouble, store};
use crate::{
    clock::now_ms,
    room,
    rules::{
        clock::{self, Consensus, Evidence, Finding},
        time::BUILD_MS,
    },
};

/// How often: a disk that was full is used again within this time.
const PERIOD: Duration = Duration::from_secs(5);

/// Looks until the console stops.
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut watch = Watch::new(now_ms());
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                look_at_disk(&shared);
                watch.look(&shared).await;
            }
            () = shutdown.cancelled() => return,
        }
    }
}

/// How long what a host's clock showed counts: agents tell their digest at least as often as that.
const HEARD: Duration = Duration::from_secs(15 * 60);
/// How long the earliest of what a host's clock shows counts, for what comes later may only have been under way for longer.
const EARLIEST: Duration = Duration::from_secs(120);

/// By how much the console's clock is ahead of each host's, as their heartbeats say.
#[derive(Debug, Default)]
pub(super) struct HostClocks(Mutex<HashMap<HostId, (Millis, Instant)>>);

impl HostClocks {
    /// A host has made a heartbeat when its clock showed this.
    pub(super) fn note(&self, host: HostId, at_ms: Millis, now: Millis) {
        // Such a clock was never set.
        if at_ms < BUILD_MS {
            return;
        }
        let ahead_ms = now.saturating_sub(at_ms);
        let mut clocks = self.locked();
        let known = clocks.get(&host).filter(|(_, heard)| heard.elapsed() < EARLIEST);
        if known.is_none_or(|(known_ms, _)| ahead_ms < *known_ms) {
            clocks.insert(host, (ahead_ms, Instant::now()));
        }
    }

    /// What hosts agree on.
    fn consensus(&self) -> Option<Consensus> {
        let mut clocks = self.locked();
        clocks.retain(|_, (_, heard)| heard.elapsed() < HEARD);
        clock::consensus(&mut clocks.values().map(|(ahead_ms, _)| *ahead_ms).collect::<Vec<_>>())
    }

    fn clear(&self) {
        self.locked().clear();
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<HostId, (Millis, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches the console's own clock.
#[derive(Debug)]
struct Watch {
    steps: Steps,
    /// By how much it was set since hosts last agreed with it.
    set_by_ms: Millis,
    /// When it was set last, or the console was started: hosts have not said anything since.
    set: Option<Instant>,
}

/// How long hosts have to say what their clocks show, after the console's was set.
const ANSWER: Duration = Duration::from_secs(60);

impl Watch {
    fn new(now: Millis) -> Self {
        Self { steps: Steps::new(now), set_by_ms: 0, set: Some(Instant::now()) }
    }

    async fn look(&mut self, shared: &Shared) {
        let now = now_ms();
        let by_ms = self.steps.take(now);
        if by_ms != 0 {
            tracing::warn!(
                by_s = by_ms / 1000,
                "the console's clock was set, or this machine slept; hosts are asked what theirs show"
            );
            self.set_by_ms += by_ms;
            self.set = Some(Instant::now());
            // What they showed before was compared with another clock.
            shared.host_clocks.clear();
            shared.dated.correct_by(0, false);
            let _ = shared.dispatch.send(dispatch::Event::ClockSet).await;
        }
        let signed_ahead_ms = shared.dated.ahead_ms(now);
        let bound = match signed_ahead_ms {
            0 => Ok(0),
            _ => store::host::bound_count(shared.store.read()).await,
        };
        let Ok(bound) = bound.inspect_err(|error| tracing::error!(%error, "agents of before cannot be counted")) else {
            return;
        };
        let evidence = Evidence {
            now_ms: now,
            consensus: shared.host_clocks.consensus(),
            set_by_ms: self.set_by_ms,
            signed_ahead_ms,
            bound,
            is_refused: shared.link.is_refused_for_time(),
        };
        let found = clock::judge(&evidence);
        shared.dated.correct_by(found.correction_ms(), found.is_confirmed());
        match found {
            Finding::Right => {
                shared.dated.settle();
                (self.set_by_ms, self.set) = (0, None);
            }
            Finding::Bound { .. } => (self.set_by_ms, self.set) = (0, None),
            _ => (),
        }
        // Until hosts have had time to answer, what changes each few seconds stays with the clock as it was.
        let is_open = evidence.consensus.is_none() && found != Finding::Refused;
        let waits = is_open && self.set.is_some_and(|set| set.elapsed() < ANSWER);
        if !waits {
            shared.dated.trust(now);
        }
        let changed = match found.message().filter(|_| !waits) {
            Some(message) => shared.notices.raise(Trouble::Clock, message, now),
            None => shared.notices.clear(Trouble::Clock),
        };
        if changed {
            if let Some(message) = found.message() {
                tracing::error!("{message}");
            }
            shared.changed(Change::Alert(None));
        }
    }
}

fn look_at_disk(shared: &Shared) {
    let Some(reserve) = shared.store.reserve() else { return };
    reserve.refill();
    let changed = match reserve.is_short() {
        true => shared.notices.raise(
            Trouble::DiskFull,
            format!(
                "the disk of the console's folder {} is full: commands and the register are kept from what was held in \
                 reserve; measurements, artifacts and configs are not taken in. hint: {}",
                reserve.folder().display(),
                room::HINT
            ),
            now_ms(),
        ),
        false => shared.notices.clear(Trouble::DiskFull),
    };
    if changed {
        shared.changed(Change::Alert(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_heartbeat_of_a_host_counts_and_a_clock_that_was_never_set_does_not() {
        let clocks = HostClocks::default();
        let (one, other, now) = (HostId::random(), HostId::random(), BUILD_MS + 1_000_000);
        assert_eq!(clocks.consensus(), None);
        clocks.note(one, now - 100, now);
        // It was under way for long.
        clocks.note(one, now - 90_000, now);
        clocks.note(other, 5_000, now);
        assert_eq!(clocks.consensus(), Some(Consensus { ahead_ms: 100, agree: 1, of: 1 }));
        clocks.clear();
        assert_eq!(clocks.consensus(), None);
    }
}
