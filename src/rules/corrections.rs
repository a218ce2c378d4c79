//! Counts corrections of drift, so that two programs that want different things do not go on for ever.

use std::collections::VecDeque;

use muster_topics::Millis;

/// The latest corrections of a unit.
#[derive(Clone, Debug)]
pub struct Corrections {
    at_ms: VecDeque<Millis>,
    max: usize,
    within_ms: Millis,
}

impl Corrections {
    /// Allows at most `max` corrections within `within_ms`.
    #[must_use]
    pub fn new(max: usize, within_ms: Millis) -> Self {
        Self { at_ms: VecDeque::new(), max, within_ms }
    }

    /// Whether none may be made now.
    pub fn is_spent(&mut self, now_ms: Millis) -> bool {
        // After a clock was set back, earlier ones do not count.
        self.at_ms.retain(|at_ms| (0..self.within_ms).contains(&now_ms.saturating_sub(*at_ms)));
        self.at_ms.len() >= self.max
    }

    /// Whether one more may be made now; it is counted.
    pub fn may_correct(&mut self, now_ms: Millis) -> bool {
        if self.is_spent(now_ms) {
            return false;
        }
        self.at_ms.push_back(now_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fight_ends_and_rare_corrections_do_not() {
        const CORRECTIONS_MAX: usize = 5;
        const WITHIN_MS: Millis = 60_000;
        let mut corrections = Corrections::new(CORRECTIONS_MAX, WITHIN_MS);
        let made = (0..20).filter(|turn| corrections.may_correct(turn * 1_000)).count();
        assert_eq!(made, CORRECTIONS_MAX);
        assert!(corrections.may_correct(WITHIN_MS), "the first one is a minute ago");
        let mut rare = Corrections::new(CORRECTIONS_MAX, WITHIN_MS);
        assert!((0..100).all(|turn| rare.may_correct(turn * WITHIN_MS / 4)));
        assert!(rare.may_correct(0), "a clock that was set back blocks nothing");
    }
}
