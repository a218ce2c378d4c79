//! A connection's deadlines. Time comes in; nothing here waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::{limits::Limits, router::ROUTER_TIMEOUT};

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Overdue {
    #[error("the client was silent for longer than its keep-alive")]
    Silence,
    #[error("the client took nothing of what waits for it")]
    Output,
    #[error("the client acknowledged nothing")]
    Acknowledgement,
    #[error("the router took too long over a batch")]
    Router,
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The client is read, so that it could be heard.
    pub(super) listens: bool,
    /// Output waits for the client to take it.
    pub(super) has_output: bool,
    /// The client owes acknowledgements.
    pub(super) is_owed: bool,
    /// When a batch went to the router that is not answered.
    pub(super) submitted: Option<Instant>,
}

/// The moments from which the deadlines count.
#[derive(Debug)]
pub(super) struct Clock {
    silence: Duration,
    write_timeout: Duration,
    ack_timeout: Duration,
    /// When the client was last heard, or last not listened to: who is not listened to is not silent.
    heard: Instant,
    listens: bool,
    /// Since when output waits without a byte being taken.
    stuck: Option<Instant>,
    /// Since when the client owes acknowledgements and gives none.
    owing: Option<Instant>,
    submitted: Option<Instant>,
}

impl Clock {
    pub(super) fn new(now: Instant, silence: Duration, limits: &Limits) -> Self {
        Self {
            silence,
            write_timeout: limits.write_timeout(),
            ack_timeout: limits.ack_timeout(),
            heard: now,
            listens: true,
            stuck: None,
            owing: None,
            submitted: None,
        }
    }

    /// The client sent something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The client took some output.
    pub(super) fn taken(&mut self) {
        self.stuck = None;
    }

    /// The client acknowledged a message.
    pub(super) fn acknowledged(&mut self) {
        self.owing = None;
    }

    /// Starts what has begun to wait, and stops what no longer does.
    pub(super) fn update(&mut self, now: Instant, state: State) {
        if !(self.listens && state.listens) {
            self.heard = now;
        }
        self.listens = state.listens;
        self.stuck = state.has_output.then(|| self.stuck.unwrap_or(now));
        self.owing = state.is_owed.then(|| self.owing.unwrap_or(now));
        self.submitted = state.submitted;
    }

    /// The nearest deadline, and what it is for.
    pub(super) fn deadline(&self) -> (Instant, Overdue) {
        let heard = self.listens.then_some(self.heard);
        [
            (heard, self.silence, Overdue::Silence),
            (self.stuck, self.write_timeout, Overdue::Output),
            (self.owing, self.ack_timeout, Overdue::Acknowledgement),
            (self.submitted, ROUTER_TIMEOUT, Overdue::Router),
        ]
        .into_iter()
        .filter_map(|(since, limit, overdue)| Some((since? + limit, overdue)))
        .min_by_key(|(deadline, _)| *deadline)
        // A client is not listened to only while one of the others runs.
        .unwrap_or((self.heard + self.silence, Overdue::Silence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: State = State { listens: true, has_output: false, is_owed: false, submitted: None };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn clock(start: Instant) -> Clock {
        let limits = Limits { write_timeout_ms: 10_000, ack_timeout_ms: 20_000, ..Limits::default() };
        Clock::new(start, seconds(90), &limits)
    }

    #[track_caller]
    fn check(clock: &Clock, start: Instant, after_s: u64, overdue: Overdue) {
        let (deadline, found) = clock.deadline();
        assert_eq!((deadline - start, found), (seconds(after_s), overdue));
    }

    #[test]
    fn silence_counts_from_the_last_byte() {
        let start = Instant::now();
        let mut clock = clock(start);
        check(&clock, start, 90, Overdue::Silence);
        clock.heard(start + seconds(7));
        clock.update(start + seconds(8), QUIET);
        check(&clock, start, 97, Overdue::Silence);
    }

    #[test]
    fn who_is_not_listened_to_is_not_silent() {
        let start = Instant::now();
        let mut clock = clock(start);
        let submitted = Some(start + seconds(80));
        clock.update(start + seconds(80), State { listens: false, submitted, ..QUIET });
        check(&clock, start, 100, Overdue::Router);
        // Not even if the router takes longer than the keep-alive has left.
        clock.update(start + seconds(99), QUIET);
        check(&clock, start, 189, Overdue::Silence);
        clock.update(start + seconds(120), QUIET);
        check(&clock, start, 189, Overdue::Silence);
    }

    #[test]
    fn output_counts_from_the_last_byte_taken() {
        let start = Instant::now();
        let mut clock = clock(start);
        let full = State { has_output: true, ..QUIET };
        clock.update(start + seconds(1), full);
        clock.update(start + seconds(5), full);
        check(&clock, start, 11, Overdue::Output);
        clock.taken();
        clock.update(start + seconds(6), full);
        check(&clock, start, 16, Overdue::Output);
        clock.update(start + seconds(7), QUIET);
        check(&clock, start, 90, Overdue::Silence);
    }

    #[test]
    fn acknowledgements_count_from_the_last_one() {
        let start = Instant::now();
        let mut clock = clock(start);
        let owed = State { is_owed: true, ..QUIET };
        clock.update(start + seconds(1), owed);
        check(&clock, start, 21, Overdue::Acknowledgement);
        clock.acknowledged();
        clock.update(start + seconds(3), owed);
        check(&clock, start, 23, Overdue::Acknowledgement);
    }
}
