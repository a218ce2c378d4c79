//! Deadlines of a connection. Time is a parameter; nothing here waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::BrokerLimits;

/// The slowest accepted rate of a packet that takes longer than a keep-alive, in bytes a second: modems were faster.
const SLOWEST: u32 = 1024;

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Overdue {
    #[error("no packet arrived within the client's keep-alive")]
    Silence,
    #[error("the client does not read what is sent to it")]
    Output,
    #[error("the client acknowledged nothing")]
    Acknowledgement,
}

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadlineKind {
    /// The connection ends.
    End(Overdue),
    /// The client may send again.
    Resume,
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// Whether the client is read, so that it can be heard.
    pub(super) listens: bool,
    /// Whether output waits for the client to read it.
    pub(super) has_output: bool,
    /// Whether the client owes acknowledgements.
    pub(super) is_owed: bool,
}

/// The moments from which deadlines are computed.
#[derive(Debug)]
pub(super) struct DeadlineClock {
    silence: Duration,
    write_timeout: Duration,
    ack_timeout: Duration,
    /// When a complete packet last arrived, or the client was last not read: a client that is not read is not silent.
    heard: Instant,
    /// How much longer a packet that has begun may take.
    longer: Duration,
    listens: bool,
    /// Since when output waits without a byte being written.
    stuck: Option<Instant>,
    /// Since when the client owes acknowledgements without sending any.
    owing: Option<Instant>,
    /// Until when the client is not read, because it sent too fast.
    paused: Option<Instant>,
}

impl DeadlineClock {
    pub(super) fn new(now: Instant, silence: Duration, limits: &BrokerLimits) -> Self {
        Self {
            silence,
            write_timeout: limits.write_timeout(),
            ack_timeout: limits.ack_timeout(),
            heard: now,
            longer: Duration::ZERO,
            listens: true,
            stuck: None,
            owing: None,
            paused: None,
        }
    }

    /// Handles received bytes; the client is not read for `pause` if it was too fast. Only a complete packet counts as
    /// a sign of life.
    pub(super) fn received(&mut self, now: Instant, pause: Option<Duration>) {
        self.paused = self.paused.max(pause.map(|pause| now + pause));
    }

    /// Stops reading the client until then.
    pub(super) fn pause(&mut self, until: Instant) {
        self.paused = self.paused.max(Some(until));
    }

    /// Handles complete packets.
    pub(super) fn record_activity(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Sets the length of the packet that has begun; 0 if none has.
    pub(super) fn expect(&mut self, bytes: usize) {
        self.longer = Duration::from_secs(bytes as u64) / SLOWEST;
    }

    /// Lets the client send again.
    pub(super) fn resume(&mut self) {
        self.paused = None;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Handles that the client read some output.
    pub(super) fn taken(&mut self) {
        self.stuck = None;
    }

    /// Handles that the client acknowledged a message.
    pub(super) fn acknowledged(&mut self) {
        self.owing = None;
    }

    /// Starts and stops the clocks of what waits.
    pub(super) fn update(&mut self, now: Instant, state: Deadlines) {
        if !(self.listens && state.listens) {
            self.heard = now;
        }
        self.listens = state.listens;
        self.stuck = state.has_output.then(|| self.stuck.unwrap_or(now));
        self.owing = state.is_owed.then(|| self.owing.unwrap_or(now));
    }

    /// Returns the nearest deadline, with its purpose.
    pub(super) fn deadline(&self) -> (Instant, DeadlineKind) {
        let heard = self.listens.then_some(self.heard);
        let overdue = [
            (heard, self.silence + self.longer, Overdue::Silence),
            (self.stuck, self.write_timeout, Overdue::Output),
            (self.owing, self.ack_timeout, Overdue::Acknowledgement),
        ];
        overdue
            .into_iter()
            .filter_map(|(since, limit, overdue)| Some((since? + limit, DeadlineKind::End(overdue))))
            .chain(self.paused.map(|until| (until, DeadlineKind::Resume)))
            .min_by_key(|(deadline, _)| *deadline)
            // A client is not read only while its batch is being distributed, which waits for no client.
            .unwrap_or((self.heard + self.silence + self.longer, DeadlineKind::End(Overdue::Silence)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Deadlines = Deadlines { listens: true, has_output: false, is_owed: false };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn clock(start: Instant) -> DeadlineClock {
        let limits = BrokerLimits { write_timeout_ms: 10_000, ack_timeout_ms: 20_000, ..BrokerLimits::default() };
        DeadlineClock::new(start, seconds(90), &limits)
    }

    #[track_caller]
    fn check(clock: &DeadlineClock, start: Instant, after_s: u64, due: DeadlineKind) {
        let (deadline, found) = clock.deadline();
        assert_eq!((deadline - start, found), (seconds(after_s), due));
    }

    #[test]
    fn silence_counts_from_the_last_whole_packet() {
        let start = Instant::now();
        let mut clock = clock(start);
        check(&clock, start, 90, DeadlineKind::End(Overdue::Silence));
        clock.record_activity(start + seconds(7));
        clock.update(start + seconds(8), QUIET);
        check(&clock, start, 97, DeadlineKind::End(Overdue::Silence));
        for second in 9..90 {
            clock.received(start + seconds(second), None);
            clock.expect(100);
            clock.update(start + seconds(second), QUIET);
        }
        assert!(clock.deadline().0 < start + seconds(98));
    }

    #[test]
    fn long_packet_may_take_longer_than_a_keep_alive() {
        let start = Instant::now();
        let mut clock = clock(start);
        clock.expect(60 * 1024);
        check(&clock, start, 150, DeadlineKind::End(Overdue::Silence));
        clock.record_activity(start + seconds(100));
        clock.expect(0);
        check(&clock, start, 190, DeadlineKind::End(Overdue::Silence));
    }

    #[test]
    fn paused_reading_does_not_count_as_silence() {
        let start = Instant::now();
        let mut clock = clock(start);
        clock.update(start + seconds(80), Deadlines { listens: false, ..QUIET });
        clock.update(start + seconds(99), QUIET);
        check(&clock, start, 189, DeadlineKind::End(Overdue::Silence));
        clock.update(start + seconds(120), QUIET);
        check(&clock, start, 189, DeadlineKind::End(Overdue::Silence));
    }

    #[test]
    fn rate_limited_client_is_read_again_after_a_pause() {
        let start = Instant::now();
        let mut clock = clock(start);
        clock.received(start + seconds(1), Some(seconds(3)));
        clock.update(start + seconds(1), Deadlines { listens: false, ..QUIET });
        assert!(clock.is_paused());
        check(&clock, start, 4, DeadlineKind::Resume);
        clock.resume();
        clock.update(start + seconds(4), QUIET);
        check(&clock, start, 94, DeadlineKind::End(Overdue::Silence));
    }

    #[test]
    fn output_counts_from_the_last_byte_taken() {
        let start = Instant::now();
        let mut clock = clock(start);
        let full = Deadlines { has_output: true, ..QUIET };
        clock.update(start + seconds(1), full);
        clock.update(start + seconds(5), full);
        check(&clock, start, 11, DeadlineKind::End(Overdue::Output));
        clock.taken();
        clock.update(start + seconds(6), full);
        check(&clock, start, 16, DeadlineKind::End(Overdue::Output));
        clock.update(start + seconds(7), QUIET);
        check(&clock, start, 90, DeadlineKind::End(Overdue::Silence));
    }

    #[test]
    fn acknowledgements_count_from_the_last_one() {
        let start = Instant::now();
        let mut clock = clock(start);
        let owed = Deadlines { is_owed: true, ..QUIET };
        clock.update(start + seconds(1), owed);
        check(&clock, start, 21, DeadlineKind::End(Overdue::Acknowledgement));
        clock.acknowledged();
        clock.update(start + seconds(3), owed);
        check(&clock, start, 23, DeadlineKind::End(Overdue::Acknowledgement));
    }
}
