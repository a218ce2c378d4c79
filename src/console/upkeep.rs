//! The console looks after itself: the room on its disk, and its own clock.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use muster_topics::Millis;

use super::{Change, Shared, notice::Trouble};
use crate::{clock::now_ms, room, rules::time::AHEAD_MAX_MS};

/// How often: a disk that was full is used again within this time.
const PERIOD: Duration = Duration::from_secs(5);

/// Looks until the console stops.
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                look_at_disk(&shared);
                look_at_clock(&shared, now_ms());
            }
            () = shutdown.cancelled() => return,
        }
    }
}

/// How far the dates of what was signed may be ahead of the clock before that is said: clocks are set by seconds now and then.
const AHEAD_MS: Millis = 60_000;

/// Whether what was signed lies ahead of the clock by so much that somebody should know: the clock was ahead then, or is behind now.
fn dates_are_ahead(signed_ms: Millis, now: Millis) -> Option<Millis> {
    // What lies ahead by more than a day no agent has believed, and nothing is dated after it.
    let ahead_ms = signed_ms.saturating_sub(now);
    (AHEAD_MS..=AHEAD_MAX_MS).contains(&ahead_ms).then_some(ahead_ms)
}

fn look_at_clock(shared: &Shared, now: Millis) {
    let changed = match dates_are_ahead(shared.dated.latest_ms(), now) {
        Some(ahead_ms) => shared.notices.raise(
            Trouble::Clock,
            format!(
                "the console has signed what is dated {} min ahead of its clock, and dates all that follows no earlier, until its clock is \
                 there: commands expire later than they say. hint: its clock was ahead, or is behind now; compare it with that of hosts \
                 (`date -u`), and keep it set",
                ahead_ms / 60_000
            ),
            now,
        ),
        None => shared.notices.clear(Trouble::Clock),
    };
    if changed {
        shared.changed(Change::Alert(None));
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
    fn dates_that_are_ahead_of_the_clock_are_said_as_far_as_agents_believe_them() {
        let now = 1_800_000_000_000;
        for (ahead_ms, wanted) in [
            (-5, None),
            (AHEAD_MS - 1, None),
            (AHEAD_MS, Some(AHEAD_MS)),
            (AHEAD_MAX_MS, Some(AHEAD_MAX_MS)),
            (AHEAD_MAX_MS + 1, None),
        ] {
            assert_eq!(dates_are_ahead(now + ahead_ms, now), wanted, "{ahead_ms}");
        }
    }
}
