//! Counts corrections of drift, so that two programs that want different things do not go on for ever.

use std::collections::VecDeque;

use muster_topics::Millis;

/// The corrections within [`WITHIN_MS`] after which a unit gives up for a while: one by hand and its repetition are no fight.
pub const CORRECTIONS_MAX: usize = 5;

/// The time in which corrections count together.
pub const WITHIN_MS: Millis = 60_000;

/// The latest corrections of a unit.
#[derive(Clone, Debug, Default)]
pub struct Corrections {
    at_ms: VecDeque<Millis>,
}

impl Corrections {
    /// Whether one more may be made now; it is counted.
    pub fn may_correct(&mut self, now_ms: Millis) -> bool {
        // After a clock was set back, earlier ones do not count.
        self.at_ms.retain(|at_ms| (0..WITHIN_MS).contains(&now_ms.saturating_sub(*at_ms)));
        if self.at_ms.len() >= CORRECTIONS_MAX {
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
        let mut corrections = Corrections::default();
        let made = (0..20).filter(|turn| corrections.may_correct(turn * 1_000)).count();
        assert_eq!(made, CORRECTIONS_MAX);
        assert!(corrections.may_correct(WITHIN_MS), "the first one is a minute ago");
        let mut rare = Corrections::default();
        assert!((0..100).all(|turn| rare.may_correct(turn * WITHIN_MS / 4)));
        assert!(rare.may_correct(0), "a clock that was set back blocks nothing");
    }
}
