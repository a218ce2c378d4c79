//! When the ends of tasks are published: a few at a time, and each until the console has acknowledged it.
//!
//! What has ended is in the store. Messages have a pause between them, in which further ends gather, so that a
//! host that changes much says it in few messages.

use muster_rules::outbox_retry::REPEAT;
use muster_topics::Millis;

/// How long further ends are waited for.
const GATHER_MS: Millis = 1_000;

/// The least time between two messages.
const PAUSE_MS: Millis = 5_000;

/// When ends of tasks are published.
#[derive(Debug, Default)]
pub struct TaskEndSchedule {
    /// When the store is read next; `None` if nothing waits there.
    due_ms: Option<Millis>,
    /// When a message was sent last.
    sent_ms: Option<Millis>,
    /// How often it was sent without an acknowledgement.
    attempts: u32,
}

impl TaskEndSchedule {
    /// Handles a new end in the store.
    pub fn stored(&mut self, now_ms: Millis) {
        // While an acknowledgement is waited for, this one comes with what follows.
        if self.attempts == 0 {
            let due_ms = self.after_pause(now_ms + GATHER_MS);
            self.due_ms = Some(self.due_ms.map_or(due_ms, |before_ms| before_ms.min(due_ms)));
        }
    }

    /// Handles a new connection: what was not acknowledged is sent at once.
    pub(crate) fn connected(&mut self, now_ms: Millis) {
        if self.due_ms.is_some() {
            (self.attempts, self.due_ms) = (0, Some(now_ms));
        }
    }

    /// When it is due.
    pub(crate) fn next_ms(&self) -> Option<Millis> {
        self.due_ms
    }

    /// Handles what the store has: whether there is a message to send now.
    pub(crate) fn read(&mut self, is_empty: bool, now_ms: Millis, random: f64) {
        if is_empty {
            (self.attempts, self.due_ms) = (0, None);
            return;
        }
        self.sent_ms = Some(now_ms);
        self.due_ms = Some(now_ms + REPEAT.jittered_ms(self.attempts, random).max(PAUSE_MS));
        self.attempts = self.attempts.saturating_add(1);
    }

    /// Handles an acknowledgement: what else there is follows after the pause.
    pub(crate) fn acknowledged(&mut self) {
        self.attempts = 0;
        self.due_ms = Some(self.after_pause(0));
    }

    fn after_pause(&self, at_ms: Millis) -> Millis {
        self.sent_ms.map_or(at_ms, |sent_ms| at_ms.max(sent_ms + PAUSE_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_gather_and_are_sent_with_a_pause() {
        let mut ends = TaskEndSchedule::default();
        ends.connected(0);
        assert_eq!(ends.next_ms(), None);
        for at_ms in [100, 200, 900] {
            ends.stored(at_ms);
        }
        assert_eq!(ends.next_ms(), Some(100 + GATHER_MS));
        ends.read(false, 1_100, 0.5);
        // Further ends do not hasten it, and follow the acknowledgement after the pause.
        ends.stored(1_200);
        assert!(ends.next_ms() >= Some(1_100 + PAUSE_MS));
        ends.acknowledged();
        assert_eq!(ends.next_ms(), Some(1_100 + PAUSE_MS));
        ends.read(true, 6_100, 0.5);
        assert_eq!(ends.next_ms(), None);
        ends.stored(6_200);
        assert_eq!(ends.next_ms(), Some(6_200 + GATHER_MS));
    }

    #[test]
    fn unacknowledged_ends_are_repeated_with_growing_delays_and_at_once_on_a_connection() {
        let mut ends = TaskEndSchedule::default();
        ends.stored(0);
        let (mut now_ms, mut waits) = (0, Vec::new());
        for _ in 0..5 {
            now_ms = ends.next_ms().unwrap();
            ends.read(false, now_ms, 0.5);
            waits.push(ends.next_ms().unwrap() - now_ms);
        }
        assert!(waits[0] >= PAUSE_MS && waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
        ends.connected(now_ms + 1);
        assert_eq!(ends.next_ms(), Some(now_ms + 1));
    }
}
