//! What follows a clock that was set: every time that a unit waits for, or counts from, is shifted with it.
//!
//! **Invariant: no setting of the clock makes a wait longer or shorter**, so none has a trial fail, or a retry come never. A
//! machine that slept looks the same as a clock that was set: what was waited for goes on afterwards.
//!
//! Times of processes are their shims' and are not shifted: one that began in the future has been up for long enough. Times
//! that are only shown stay as they were.

use muster_topics::Millis;

use super::{EffectiveInstance, LiveInstance, PlannedUnit};

/// Shifts a time.
pub(super) fn shift(at_ms: &mut Millis, by_ms: Millis) {
    *at_ms = at_ms.saturating_add(by_ms);
}

impl PlannedUnit {
    pub(super) fn shift(&mut self, by_ms: Millis) {
        self.installation.shift(by_ms);
        self.next_start.shift(by_ms);
        self.play.shift(by_ms);
        self.trial.shift(by_ms);
        match &mut self.instance {
            EffectiveInstance::Unknown(lookup) => lookup.shift(by_ms),
            EffectiveInstance::Alive(alive) => alive.shift(by_ms),
            EffectiveInstance::None | EffectiveInstance::Launching(_) => {}
        }
        if let Some(beside) = &mut self.beside {
            beside.shift(by_ms);
        }
    }
}

impl LiveInstance {
    pub(super) fn shift(&mut self, by_ms: Millis) {
        self.ends_by_ms.iter_mut().for_each(|at_ms| shift(at_ms, by_ms));
        self.freezes_by_ms.iter_mut().for_each(|(_, at_ms)| shift(at_ms, by_ms));
        self.health.shift(by_ms);
    }
}
