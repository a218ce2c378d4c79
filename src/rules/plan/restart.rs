//! What follows the end of an instance: a restart after a wait, a rollback, or rest.

use std::time::Duration;

use muster_topics::count::counted;
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::Digest,
    unit::{Hold, HoldReason, ProcessEnd, Restart},
};

use super::{
    EffectiveInstance, Failure, InstanceEnd, InstanceExit, PlannedUnit, clock_shift::shift, observe::shortened,
};
use crate::backoff::{GOOD_AFTER_MS, RETRY_MAX_MS};

/// When the desired generation may be started next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStart {
    /// As soon as nothing else prevents it.
    Now,
    /// At this time, because it ended unexpectedly.
    At(Millis),
    /// Never, because it cannot work; the reported error has the reason.
    Failed,
    /// Never, because it ended and its spec wants no further run.
    Finished,
}

impl NextStart {
    /// Restores it from the stored state: whether the unit has finished, or else until when it waits. By a clock that was set
    /// back meanwhile it waits no longer than any retry.
    pub(super) fn restore(has_finished: bool, retry_ms: Option<Millis>, now_ms: Millis) -> Self {
        match retry_ms {
            _ if has_finished => Self::Finished,
            Some(at_ms) => Self::At(at_ms.min(now_ms.saturating_add(RETRY_MAX_MS))),
            None => Self::Now,
        }
    }

    /// Whether nothing more is tried.
    pub(super) fn is_never(self) -> bool {
        matches!(self, Self::Failed | Self::Finished)
    }

    /// Until when it waits.
    pub(super) fn wait_ms(self) -> Option<Millis> {
        if let Self::At(at_ms) = self { Some(at_ms) } else { None }
    }

    /// Sets until when it waits, if anything more is tried.
    fn wait_until(&mut self, at_ms: Millis) {
        if !self.is_never() {
            *self = Self::At(at_ms);
        }
    }

    /// Ends the wait; returns whether there was one.
    pub(super) fn forget_wait(&mut self) -> bool {
        let waits = self.wait_ms().is_some();
        if waits {
            *self = Self::Now;
        }
        waits
    }

    /// Shifts its time by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        if let Self::At(at_ms) = self {
            shift(at_ms, by_ms);
        }
    }

    /// Returns when another generation may be started, in which more is tried; a wait goes on.
    pub(super) fn of_another_generation(self) -> Self {
        if self.is_never() { Self::Now } else { self }
    }
}

impl PlannedUnit {
    pub(super) fn ended(&mut self, over: InstanceEnd, now_ms: Millis) {
        let EffectiveInstance::Alive(alive) = &self.instance else { return };
        let (asked, revision) = (alive.ends_by_ms.is_some(), alive.revision.clone());
        let more = over.restarts.saturating_sub(alive.restarts);
        self.count(more, &over.last);
        self.take_end(&over.last, asked, Some(&revision), now_ms);
    }

    /// Handles the end of the instance: because it was `asked` to end, or by itself.
    pub(super) fn take_end(&mut self, ended: &InstanceExit, asked: bool, revision: Option<&Digest>, now_ms: Millis) {
        let condemned = self.instance.kept().condemned;
        self.instance = EffectiveInstance::None;
        self.note_end(ended);
        let is_desired = revision.is_some_and(|revision| self.desires(revision));
        // It was replaced, stopped or removed, as wanted.
        if asked && condemned.is_none() || !is_desired || !self.wants_running() {
            return;
        }
        // It ended with its host and did not fail: it is started again, whatever its restart policy.
        if ended.with_host && !self.policy.transient {
            return;
        }
        if was_good(ended) {
            self.observed.attempts = 0;
        }
        self.observed.last_lines = ended.last_lines.clone();
        let again = match self.policy.restart {
            Restart::Always => true,
            Restart::OnFailure => condemned.is_some() || !ended.exit.is_success(),
            Restart::Never => false,
        };
        let attempts = self.observed.attempts;
        if !again && condemned.is_none() && ended.exit.is_success() {
            self.next_start = NextStart::Finished;
            self.forget_verified();
            self.observed.error = ended.left_some.then(|| shortened(ended.by_itself()));
            return;
        }
        let goes_on = again && attempts < self.policy.patience.immediate() && !ended.silent && condemned.is_none();
        let how =
            condemned.map_or_else(|| ended.by_itself(), |why| why.and(ended.diagnostic().within("ended for that")));
        if !goes_on && self.go_back(how.clone(), now_ms) {
            return;
        }
        if again {
            self.fail(how);
            self.restart_later(attempts, ended.at_ms, now_ms);
        } else {
            self.next_start = NextStart::Failed;
            self.fail(how.and("its spec does not restart it"));
        }
    }

    /// Schedules the next restart, or holds the unit as broken if `attempts` has reached the limit.
    fn restart_later(&mut self, attempts: u32, since_ms: Millis, now_ms: Millis) {
        match self.policy.patience.delay(attempts) {
            // After a clock was set back, the delay must not be longer.
            Some(delay) => self.next_start.wait_until(after(since_ms.min(now_ms), delay)),
            // It is held by an operator, and starts only on request.
            None if self.hold.is_some() => {}
            None => {
                self.hold = Some(Hold::new(HoldReason::Broken, now_ms));
                let last = self.observed.error.take().unwrap_or_default();
                let end =
                    Diagnostic::new(format_args!("restarted {} in a row, the maximum", counted(attempts, "time")));
                self.fail(last.and(end.with_hint("running it is a new attempt")));
            }
        }
    }

    pub(super) fn not_started(&mut self, failure: &Failure, now_ms: Millis) {
        let EffectiveInstance::Launching(revision) = std::mem::replace(&mut self.instance, EffectiveInstance::None)
        else {
            return;
        };
        if !self.desires(&revision) || self.go_back(failure.error.clone(), now_ms) {
            return;
        }
        self.fail(failure.error.clone());
        if failure.may_heal {
            // What the system refuses now it would refuse again at once, so there is no immediate restart.
            self.restart_later(self.observed.attempts.max(self.policy.patience.immediate()), now_ms, now_ms);
        } else {
            self.next_start = NextStart::Failed;
        }
    }

    pub(super) fn note_end(&mut self, ended: &InstanceExit) {
        let InstanceExit { exit, oom_killed, core_dumped, .. } = *ended;
        self.observed.last_end = Some(ProcessEnd { exit, oom_killed, core_dumped });
    }

    /// Counts restarts that the shim made; `last` is the newest end, or the one before.
    pub(super) fn count(&mut self, more: u32, last: &InstanceExit) {
        if more > 0 && was_good(last) {
            self.observed.attempts = 0;
        }
        self.observed.attempts = self.observed.attempts.saturating_add(more);
    }
}

/// Whether a process was up for long enough that earlier restarts do not count.
fn was_good(ended: &InstanceExit) -> bool {
    ended.started_ms.is_some_and(|started_ms| ended.at_ms.saturating_sub(started_ms) >= GOOD_AFTER_MS)
}

fn after(ms: Millis, delay: Duration) -> Millis {
    ms.saturating_add(Millis::try_from(delay.as_millis()).unwrap_or(Millis::MAX))
}
