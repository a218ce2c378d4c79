//! The time that has certainly come ([`muster_rules::certain_time`]), counted by what the machine counts whatever its wall clock
//! shows.
//!
//! It goes on across a restart of the process, by how long the machine has run since it was stored; after a start of the machine
//! nobody knows how much has passed, so it goes on where it was.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_rules::certain_time::CertainTime;
use muster_topics::Millis;

use crate::clock::{Uptime, now_ms};

/// How often it is to be stored: so much is lost of it when the machine is started anew.
const STORE: Duration = Duration::from_secs(15 * 60);

/// A time that had certainly come, and how long the machine had run then, if that is known.
pub type StoredTime = (Millis, Option<Uptime>);

/// The time that has certainly come, in a running process.
#[derive(Debug)]
pub struct CertainClock(Mutex<Counter>);

#[derive(Clone, Copy, Debug)]
struct Counter {
    time: CertainTime,
    /// When `time` was, by two counters: one stands still while the machine sleeps, the other cannot always be read.
    at: Instant,
    uptime: Option<Uptime>,
    /// When it was last stored; `None` if it has to be now.
    stored: Option<Instant>,
}

impl Counter {
    fn now(self) -> CertainTime {
        self.time.after(to_ms(self.at.elapsed()))
    }

    /// Goes on to now, also by the time for which the machine slept.
    fn tick(&mut self) {
        let uptime = Uptime::now();
        let slept_ms = uptime.zip(self.uptime).and_then(|(now, before)| now.since(before)).unwrap_or(0);
        let passed_ms = to_ms(self.at.elapsed()).max(slept_ms);
        *self = Self { time: self.time.after(passed_ms), at: Instant::now(), uptime, ..*self };
    }
}

impl CertainClock {
    /// Continues with what was stored. Without that it believes `otherwise_ms`: the clock, for a store that is new.
    #[must_use]
    pub fn continued(stored: Option<StoredTime>, otherwise_ms: Millis) -> Self {
        let uptime = Uptime::now();
        let time = match stored {
            Some((certain_ms, at)) => {
                let passed_ms = uptime.zip(at).and_then(|(now, before)| now.since(before)).unwrap_or(0);
                CertainTime::confirmed(certain_ms).after(passed_ms)
            }
            None => CertainTime::confirmed(otherwise_ms),
        };
        Self(Mutex::new(Counter { time, at: Instant::now(), uptime, stored: None }))
    }

    /// The time that has certainly come.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.at(now_ms())
    }

    /// Returns the same, given the clock.
    #[must_use]
    pub fn at(&self, clock_ms: Millis) -> Millis {
        self.locked().now().at(clock_ms)
    }

    /// Returns the time that has come if the last confirmed one was right, whatever the clock shows.
    #[must_use]
    pub fn known_ms(&self) -> Millis {
        self.locked().now().known_ms()
    }

    /// By how much the clock is ahead of what has certainly come; 0 if the clock can be right.
    #[must_use]
    pub fn ahead_ms(&self, clock_ms: Millis) -> Millis {
        self.locked().now().ahead_ms(clock_ms)
    }

    /// Records that this is the time.
    pub fn confirm(&self, ms: Millis) {
        let mut counter = self.locked();
        let is_jump = counter.now().ahead_ms(ms) > 0;
        counter.tick();
        counter.time = CertainTime::confirmed(ms);
        if is_jump {
            counter.stored = None;
        }
    }

    /// Goes on. Returns what is to be stored, if it is time for that; it counts as stored then.
    #[must_use]
    pub fn take_due(&self) -> Option<StoredTime> {
        let mut counter = self.locked();
        counter.tick();
        if counter.stored.is_some_and(|stored| stored.elapsed() < STORE) {
            return None;
        }
        counter.stored = Some(Instant::now());
        Some((counter.time.known_ms(), counter.uptime))
    }

    /// Records that it could not be stored.
    pub fn not_stored(&self) {
        self.locked().stored = None;
    }

    fn locked(&self) -> MutexGuard<'_, Counter> {
        // No panic is possible while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_ms(time: Duration) -> Millis {
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod tests {
    use muster_rules::time::SLACK_MS;

    use super::*;

    const DAY: Millis = 86_400_000;

    #[test]
    fn certain_time_goes_on_across_a_restart_of_the_process_alone() {
        let (now, uptime) = (now_ms(), Uptime::now().unwrap());
        let ago = |ms| Uptime { ms: uptime.ms - ms, ..uptime };
        // The process was away for a second, and the clock was set ahead meanwhile.
        let process = CertainClock::continued(Some((now - 1_000, Some(ago(1_000)))), 0);
        assert!((now - 10..now + SLACK_MS).contains(&process.known_ms()));
        for ahead_ms in [3_600_000, 31 * DAY, 400 * DAY] {
            assert!(process.at(now + ahead_ms) <= now + 2 * SLACK_MS);
        }
        let machine =
            CertainClock::continued(Some((now - 5 * DAY, Some(Uptime { boot: uptime.boot ^ 1, ..uptime }))), 0);
        assert!(machine.at(now) < now - 4 * DAY && machine.ahead_ms(now) > 4 * DAY);
        machine.confirm(now);
        assert_eq!((machine.at(now), machine.ahead_ms(now)), (now, 0));
        assert_eq!(CertainClock::continued(None, now).ahead_ms(now), 0, "a new store believes the clock");
    }

    #[test]
    fn it_is_stored_now_and_then_and_after_a_jump() {
        let now = now_ms();
        let clock = CertainClock::continued(Some((now - 5 * DAY, None)), 0);
        assert!(clock.take_due().is_some() && clock.take_due().is_none());
        clock.confirm(now - 5 * DAY + 1_000);
        assert!(clock.take_due().is_none());
        clock.confirm(now);
        assert!(clock.take_due().is_some_and(|(certain_ms, _)| certain_ms >= now));
        clock.not_stored();
        assert!(clock.take_due().is_some());
    }
}
