//! Limits log lines about peers.
//!
//! Everybody who reaches a listener can cause log lines, and so can a host that has gone wild. Each line about a
//! peer passes here: of one subject and kind a few, then one from time to time with the number of those left out; and of
//! all together no more than fills a disk in a month.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The most subjects and kinds that are remembered. Beyond it nothing new is logged until some are removed.
const REMEMBERED_MAX: usize = 10_000;

/// The most lines in a second, of all peers together: with [`LineLimiter::TEXT_MAX_BYTES`] of a peer's text in each,
/// some 8 KB.
const LINES_PER_SECOND: u32 = 15;

/// The most at once: what a reader of the log can read.
const BURST: u32 = 120;

/// How often omissions are logged.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineKind {
    name: &'static str,
    burst: u32,
    every: Duration,
}

impl LineKind {
    /// Creates a kind that is logged once for each subject, and then at most once in `every_s` seconds.
    #[must_use]
    pub const fn new(name: &'static str, every_s: u64) -> Self {
        Self { name, burst: 1, every: Duration::from_secs(every_s) }
    }

    /// Allows several for a subject in that time.
    #[must_use]
    pub const fn burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: u32,
    since: Instant,
}

impl TokenBucket {
    fn full(burst: u32, now: Instant) -> Self {
        Self { tokens: burst, since: now }
    }

    /// Takes a token, if there is one; another is added after each `every`.
    fn take(&mut self, burst: u32, every: Duration, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_nanos() / every.as_nanos().max(1);
        let back = u32::try_from(passed).unwrap_or(u32::MAX);
        if self.tokens.saturating_add(back) >= burst {
            (self.tokens, self.since) = (burst, now);
        } else {
            self.tokens += back;
            self.since += every * back;
        }
        let has_one = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        has_one
    }
}

/// Limits log lines about peers.
#[derive(Debug)]
pub struct LineLimiter {
    /// Nobody outside can choose subjects that collide.
    hasher: RandomState,
    state: Mutex<LimiterState>,
}

#[derive(Debug)]
struct LimiterState {
    seen: HashMap<(u64, LineKind), PeerLines>,
    all: TokenBucket,
    /// Omitted lines by kind; a program has some twenty.
    left_out: HashMap<&'static str, u64>,
}

#[derive(Debug)]
struct PeerLines {
    bucket: TokenBucket,
    latest: Instant,
    left_out: u64,
}

impl Default for LineLimiter {
    fn default() -> Self {
        let all = TokenBucket::full(BURST, Instant::now());
        Self {
            hasher: RandomState::new(),
            state: Mutex::new(LimiterState { seen: HashMap::new(), all, left_out: HashMap::new() }),
        }
    }
}

impl LineLimiter {
    /// The longest text of a peer in a line, escapes included.
    pub const TEXT_MAX_BYTES: usize = 240;

    /// Shortens a peer's text for a line.
    #[must_use]
    pub fn shorten(text: &str) -> &str {
        let mut bytes = 0;
        for (index, char) in text.char_indices() {
            bytes += char.escape_debug().map(char::len_utf8).sum::<usize>();
            if bytes > Self::TEXT_MAX_BYTES {
                return text.get(..index).unwrap_or_default();
            }
        }
        text
    }

    /// Returns the limiter of this process, because its log is one.
    pub fn of_process() -> &'static Self {
        static LINES: LazyLock<LineLimiter> = LazyLock::new(LineLimiter::default);
        &LINES
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a line about `subject`. If it is to be logged, returns how many similar ones were omitted since the last
    /// one.
    pub fn note(&self, subject: impl Hash, kind: LineKind, now: Instant) -> Option<u64> {
        let key = (self.hasher.hash_one(subject), kind);
        let LimiterState { seen, all, left_out } = &mut *self.state();
        if !seen.contains_key(&key) && seen.len() >= REMEMBERED_MAX {
            sweep(seen, left_out, now);
            if seen.len() >= REMEMBERED_MAX {
                *left_out.entry(kind.name).or_default() += 1;
                return None;
            }
        }
        let fresh = || PeerLines { bucket: TokenBucket::full(kind.burst, now), latest: now, left_out: 0 };
        let one = seen.entry(key).or_insert_with(fresh);
        one.latest = now;
        if !one.bucket.take(kind.burst, kind.every, now) {
            one.left_out += 1;
            return None;
        }
        if !all.take(BURST, Duration::from_secs(1) / LINES_PER_SECOND, now) {
            *left_out.entry(kind.name).or_default() += 1;
            return None;
        }
        Some(std::mem::take(&mut one.left_out))
    }

    /// Returns omitted lines that will not be reported with another line, by kind. Each is reported once.
    pub fn left_out(&self, now: Instant) -> Vec<(&'static str, u64)> {
        let LimiterState { seen, left_out, .. } = &mut *self.state();
        sweep(seen, left_out, now);
        let mut told: Vec<_> = left_out.drain().collect();
        told.sort_unstable();
        told
    }

    /// Logs regularly how much was omitted. It ends only with its task.
    pub async fn run(&self) {
        let mut every = tokio::time::interval(TELL_EVERY);
        loop {
            every.tick().await;
            for (kind, lines) in self.left_out(Instant::now()) {
                tracing::warn!(kind, not_logged = lines, "log lines about peers were dropped");
            }
        }
    }
}

/// Removes subjects that have been quiet for long enough.
fn sweep(seen: &mut HashMap<(u64, LineKind), PeerLines>, left_out: &mut HashMap<&'static str, u64>, now: Instant) {
    seen.retain(|(_, kind), one| {
        let is_over = now.saturating_duration_since(one.latest) >= kind.every;
        if is_over && one.left_out > 0 {
            *left_out.entry(kind.name).or_default() += one.left_out;
        }
        !is_over
    });
}

/// Logs a line about a peer, if [`LineLimiter`] allows it: `log_peer!(WARN, subject, KIND, field = value, "words")`.
#[macro_export]
macro_rules! log_peer {
    ($level:ident, $subject:expr, $kind:expr, $($line:tt)+) => {
        // Lines below the log level take no room from others.
        if $crate::tracing::enabled!($crate::tracing::Level::$level)
            && let Some(left_out) =
                $crate::LineLimiter::of_process().note($subject, $kind, ::std::time::Instant::now())
        {
            let not_logged = Some(left_out).filter(|count| *count > 0);
            $crate::tracing::event!($crate::tracing::Level::$level, not_logged, $($line)+);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: LineKind = LineKind::new("refused", 600);
    const CONNECTED: LineKind = LineKind::new("connected", 60).burst(3);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn one_line_per_subject_and_kind_in_a_while() {
        let (lines, start) = (LineLimiter::default(), Instant::now());
        for (subject, kind, after_s, expected) in [
            ("anna", REFUSED, 0, Some(0)),
            ("anna", REFUSED, 1, None),
            ("anna", CONNECTED, 1, Some(0)),
            ("berta", REFUSED, 1, Some(0)),
            ("anna", REFUSED, 599, None),
            ("anna", REFUSED, 600, Some(2)),
            ("anna", REFUSED, 601, None),
        ] {
            let found = lines.note(subject, kind, start + seconds(after_s));
            assert_eq!(found, expected, "{subject} {kind:?} after {after_s} s");
        }
    }

    #[test]
    fn burst_passes_and_then_one_in_a_while() {
        let (lines, start) = (LineLimiter::default(), Instant::now());
        for (after_s, expected) in [
            (0, Some(0)),
            (0, Some(0)),
            (1, Some(0)),
            (2, None),
            (59, None),
            (60, Some(2)),
            (61, None),
            (119, None),
            (120, Some(2)),
            (600, Some(0)),
            (600, Some(0)),
        ] {
            assert_eq!(lines.note("anna", CONNECTED, start + seconds(after_s)), expected, "after {after_s} s");
        }
    }

    #[test]
    fn all_together_are_bounded_and_what_is_left_out_is_told_once() {
        let (lines, start) = (LineLimiter::default(), Instant::now());
        let mut logged = 0;
        for number in 0..9_000_u64 {
            let now = start + Duration::from_millis(number);
            logged += u32::from(lines.note(number, REFUSED, now).is_some());
        }
        assert!((BURST..=BURST + 9 * LINES_PER_SECOND + 1).contains(&logged), "{logged} lines in 9 s");
        assert_eq!(lines.left_out(start + seconds(9)), [("refused", u64::from(9_000 - logged))]);
        assert_eq!(lines.left_out(start + seconds(10)), []);
    }

    #[test]
    fn count_of_a_flood_that_has_ended_is_told() {
        let (lines, start) = (LineLimiter::default(), Instant::now());
        for _ in 0..100 {
            lines.note("anna", REFUSED, start);
        }
        assert_eq!(lines.left_out(start + seconds(599)), []);
        assert_eq!(lines.left_out(start + seconds(600)), [("refused", 99)]);
        assert_eq!(lines.note("anna", REFUSED, start + seconds(601)), Some(0));
    }

    #[test]
    fn subjects_that_are_remembered_are_bounded() {
        let (lines, start) = (LineLimiter::default(), Instant::now());
        for number in 0..2 * REMEMBERED_MAX {
            lines.note(number, REFUSED, start);
        }
        assert_eq!(lines.state().seen.len(), REMEMBERED_MAX);
        assert_eq!(lines.note("new", REFUSED, start + seconds(600)), Some(0));
        assert_eq!(lines.state().seen.len(), 1);
    }

    #[test]
    fn text_of_a_peer_is_cut_by_what_it_takes_in_the_log() {
        assert_eq!(LineLimiter::shorten("muster/s/x"), "muster/s/x");
        for long in ["a".repeat(500), "\u{1b}[2J".repeat(200), "\u{10ffff}".repeat(500), "\u{fc}".repeat(300)] {
            let short = LineLimiter::shorten(&long);
            assert!(long.starts_with(short) && !short.is_empty());
            assert!(format!("{short:?}").len() <= LineLimiter::TEXT_MAX_BYTES + 2, "{short:?}");
        }
    }
}
