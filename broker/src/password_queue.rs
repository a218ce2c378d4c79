//! Orders password checks.
//!
//! A check takes a fifth of a second of a core on purpose, and anybody who reaches the listener can ask for one. So few run
//! at a time, few wait, and those with the fewest recent failures go first: a guesser waits behind
//! everybody else, and among its own guesses the newest goes first, because nobody waits for the others any more.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_guard::Origin;
use tokio::sync::oneshot;

/// The key of a caller: its origin, and the hash of the name.
pub(crate) type CallerKey = (Origin, u64);

/// The most callers that wait with one key: a program that retries, and a few more.
const WAITING_PER_KEY_MAX: usize = 4;

/// The most callers that wait in all: a second or two of checks.
const WAITING_MAX: usize = 16;

/// How long a wrong password counts against its caller.
const FAILED_LATELY: Duration = Duration::from_secs(60);

/// The most callers for which that is remembered.
const FAILED_MAX: usize = 4_096;

/// The order of checks. Time is a parameter; nothing here waits.
#[derive(Debug)]
struct Turns {
    at_once: usize,
    next: u64,
    waiting: Vec<(u64, CallerKey)>,
    running: HashMap<u64, CallerKey>,
    failures: HashMap<CallerKey, (u32, Instant)>,
}

impl Turns {
    fn new(at_once: usize) -> Self {
        Self { at_once, next: 0, waiting: Vec::new(), running: HashMap::new(), failures: HashMap::new() }
    }

    /// Returns the recent failures of a caller.
    fn failed(&self, key: &CallerKey, now: Instant) -> u32 {
        let lately = |&&(_, at): &&(u32, Instant)| now.saturating_duration_since(at) < FAILED_LATELY;
        self.failures.get(key).filter(lately).map_or(0, |(count, _)| *count)
    }

    /// Adds a caller. Returns its number, and the number of a caller that has to give up for it.
    fn ask(&mut self, key: CallerKey, now: Instant) -> (u64, Option<u64>) {
        let number = self.next;
        self.next += 1;
        self.waiting.push((number, key));
        let own = self.waiting.iter().filter(|(_, other)| *other == key).count();
        let leaves = if own > WAITING_PER_KEY_MAX {
            self.waiting.iter().find(|(_, other)| *other == key).map(|(number, _)| *number)
        } else if self.waiting.len() > WAITING_MAX {
            // Of those with the most failures, the first.
            self.waiting.iter().rev().max_by_key(|(_, key)| self.failed(key, now)).map(|(number, _)| *number)
        } else {
            None
        };
        leaves.into_iter().for_each(|number| self.leave(number));
        (number, leaves)
    }

    /// Begins a check if one may begin.
    fn begin(&mut self, now: Instant) -> Option<u64> {
        if self.running.len() >= self.at_once {
            return None;
        }
        let (number, key) = self.waiting.iter().rev().min_by_key(|(_, key)| self.failed(key, now)).copied()?;
        self.waiting.retain(|(waiting, _)| *waiting != number);
        self.running.insert(number, key);
        Some(number)
    }

    /// Records the result of a check.
    fn found(&mut self, number: u64, is_right: bool, now: Instant) {
        let Some(key) = self.running.get(&number).copied() else { return };
        if is_right {
            self.failures.remove(&key);
            return;
        }
        if self.failures.len() >= FAILED_MAX {
            self.failures.retain(|_, (_, at)| now.saturating_duration_since(*at) < FAILED_LATELY);
        }
        let count = self.failed(&key, now) + 1;
        if self.failures.len() < FAILED_MAX || self.failures.contains_key(&key) {
            self.failures.insert(key, (count, now));
        }
    }

    /// Removes a caller whose check is over, or which has given up.
    fn leave(&mut self, number: u64) {
        if self.running.remove(&number).is_none() {
            self.waiting.retain(|(waiting, _)| *waiting != number);
        }
    }
}

/// The queue of checks.
#[derive(Clone, Debug)]
pub(crate) struct Checks(Arc<Mutex<QueueState>>);

#[derive(Debug)]
struct QueueState {
    turns: Turns,
    callers: HashMap<u64, oneshot::Sender<()>>,
}

impl QueueState {
    /// Starts the checks whose turn it is.
    fn call(&mut self) {
        while let Some(number) = self.turns.begin(Instant::now()) {
            let called = self.callers.remove(&number).is_some_and(|caller| caller.send(()).is_ok());
            if !called {
                self.turns.leave(number);
            }
        }
    }
}

impl Checks {
    /// Creates a queue with this many concurrent checks.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(Arc::new(Mutex::new(QueueState { turns: Turns::new(at_once), callers: HashMap::new() })))
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn; `None` if too many wait.
    pub(crate) async fn turn(&self, key: CallerKey) -> Option<CheckTurn> {
        let (caller, called) = oneshot::channel();
        let turn = {
            let mut state = self.state();
            let (number, leaves) = state.turns.ask(key, Instant::now());
            state.callers.insert(number, caller);
            // Dropping the sender tells a caller that it has to give up.
            leaves.into_iter().for_each(|number| drop(state.callers.remove(&number)));
            state.call();
            CheckTurn { checks: self.clone(), number }
        };
        called.await.ok().map(|()| turn)
    }
}

/// A turn, or the wait for it; it ends on drop.
#[derive(Debug)]
pub(crate) struct CheckTurn {
    checks: Checks,
    number: u64,
}

impl CheckTurn {
    /// Ends the turn with the result of the check.
    pub(crate) fn found(self, is_right: bool) {
        self.checks.state().turns.found(self.number, is_right, Instant::now());
    }
}

impl Drop for CheckTurn {
    fn drop(&mut self) {
        let mut state = self.checks.state();
        state.turns.leave(self.number);
        state.callers.remove(&self.number);
        state.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: u64) -> CallerKey {
        (Origin::of([127, 0, 0, 1].into()), name)
    }

    /// Returns the number of a check that begins and ends at once.
    fn check(turns: &mut Turns, is_right: bool, now: Instant) -> Option<u64> {
        let number = turns.begin(now)?;
        turns.found(number, is_right, now);
        turns.leave(number);
        Some(number)
    }

    #[test]
    fn good_login_is_next_after_many_guesses() {
        let (mut turns, now) = (Turns::new(1), Instant::now());
        // They guess under this name, and under many others.
        let under_way = turns.ask(key(1), now).0;
        assert_eq!(turns.begin(now), Some(under_way));
        for guess in 0..700 {
            turns.ask(key(1), now);
            turns.ask(key(guess), now);
        }
        assert!(turns.waiting.len() <= WAITING_MAX);
        let (good, _) = turns.ask(key(1), now);
        turns.found(under_way, false, now);
        turns.leave(under_way);
        // These have no failures yet, so they go first; there are no more than may wait.
        let mut before = 0;
        while check(&mut turns, false, now) != Some(good) {
            before += 1;
        }
        assert!(before < WAITING_MAX, "{before}");
        let (good, _) = turns.ask(key(5_000), now);
        assert_eq!(turns.begin(now), Some(good));
    }

    #[test]
    fn fewest_failures_go_first() {
        let (mut turns, now) = (Turns::new(1), Instant::now());
        for name in [1, 1, 2] {
            let (number, _) = turns.ask(key(name), now);
            assert_eq!(check(&mut turns, false, now), Some(number));
        }
        let [one, two, three] = [1, 2, 3].map(|name| turns.ask(key(name), now).0);
        let order: Vec<_> = std::iter::from_fn(|| check(&mut turns, true, now)).collect();
        assert_eq!(order, [three, two, one]);
        // A right password cancels earlier failures, and so does time.
        assert_eq!(turns.failed(&key(1), now), 0);
        let (number, _) = turns.ask(key(1), now);
        assert_eq!(check(&mut turns, false, now), Some(number));
        assert_eq!((turns.failed(&key(1), now), turns.failed(&key(1), now + FAILED_LATELY)), (1, 0));
    }

    #[test]
    fn newest_guess_of_one_name_goes_first_and_oldest_gives_up() {
        let (mut turns, now) = (Turns::new(1), Instant::now());
        let asked: Vec<_> = (0..WAITING_PER_KEY_MAX as u64 + 2).map(|_| turns.ask(key(1), now)).collect();
        let gave_up: Vec<_> = asked.iter().filter_map(|(_, leaves)| *leaves).collect();
        assert_eq!(gave_up, [asked[0].0, asked[1].0]);
        assert_eq!(turns.begin(now), asked.last().map(|(number, _)| *number));
    }

    #[tokio::test]
    async fn abandoned_turn_goes_to_the_next() {
        let checks = Checks::new(1);
        let first = checks.turn(key(1)).await.unwrap();
        {
            let waiting = checks.turn(key(2));
            tokio::pin!(waiting);
            assert!(tokio::time::timeout(Duration::from_millis(10), &mut waiting).await.is_err());
        }
        let (third, ()) = tokio::join!(checks.turn(key(3)), async { first.found(true) });
        assert!(third.is_some());
        drop(third);
        assert!(checks.turn(key(4)).await.is_some());
    }
}
