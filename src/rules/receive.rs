//! Checks a message from the console on a host, once its signature is verified.
//!
//! Every signed date moves the host's time ahead ([`KnownTime::saw`]), that of a command only after it was checked: otherwise a date
//! far ahead would vouch for itself.

use std::collections::BTreeSet;

use muster_fault::planted;
use muster_topics::{
    Millis,
    ack::Ack,
    command::{Command, LIFETIME_MAX_MS, Refresh, Verb},
    name::HostId,
    verb_table::AfterRestart,
};

use super::{
    authorise::{self, CommandSource, CommandVerdict, JudgeContext},
    time::KnownTime,
};

/// The longest time by which a refresh may be delayed.
const REFRESH_WITHIN_MAX_MS: u64 = 10 * 60_000;

/// How far the stored signed time may lag behind the latest one. A quiet host receives an acknowledgement every half
/// minute, and should not write for each; an hour is far less than the journal keeps commands beyond their expiry
/// (`KEPT_AFTER_EXPIRY_MS`).
const KEEP_SIGNED_MS: Millis = 3_600_000;

/// Checks a command. `judge.time` is `time` before this command.
#[must_use]
pub fn command(
    command: Command,
    channel: CommandSource,
    judge: &JudgeContext<'_>,
    time: &mut KnownTime,
) -> CommandVerdict {
    let issued_ms = command.issued_ms;
    let verdict = authorise::check(command, channel, judge);
    if !planted!(ForgetSignedTime) {
        time.observe(issued_ms, judge.clock_ms);
    }
    match verdict {
        CommandVerdict::Refused(..) if planted!(RefuseInSilence) => CommandVerdict::NotMine,
        verdict => verdict,
    }
}

/// What an acknowledgement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckEffect {
    /// Nothing: it is for another host.
    NotMine,
    /// Its messages leave the outbox.
    Forget {
        /// Whether to store that: it names messages about commands, or the signed time has advanced enough.
        store: bool,
    },
}

/// Handles an acknowledgement. `kept_ms` is the stored signed time.
pub fn ack(ack: &Ack, me: HostId, time: &mut KnownTime, kept_ms: Millis, clock_ms: Millis) -> AckEffect {
    if ack.host != me {
        return AckEffect::NotMine;
    }
    if !planted!(ForgetSignedTime) {
        time.observe(ack.issued_ms, clock_ms);
    }
    let store = !ack.reports.is_empty() || time.signed_ms() - kept_ms > KEEP_SIGNED_MS;
    AckEffect::Forget { store }
}

/// How many requests are remembered: those of days, for a host whose console has nothing to repair.
const REFRESHES_MAX: usize = 64;

/// The issue times of accepted refresh requests. A hostile broker can repeat an old request; each is accepted once. The
/// latest time alone would suffice only if no console's clock was ever set back.
#[derive(Clone, Debug, Default)]
pub struct RefreshHistory(BTreeSet<Millis>);

impl RefreshHistory {
    /// Records a request; returns whether it is new.
    fn is_new(&mut self, issued_ms: Millis) -> bool {
        let forgotten = self.0.len() >= REFRESHES_MAX && self.0.first().is_some_and(|oldest_ms| issued_ms < *oldest_ms);
        let old = self.0.last().is_some_and(|latest_ms| issued_ms < *latest_ms) && planted!(RefreshByLatest);
        if forgotten || old || !self.0.insert(issued_ms) {
            return planted!(RefreshAgain);
        }
        if self.0.len() > REFRESHES_MAX {
            self.0.pop_first();
        }
        true
    }
}

/// Handles a request for a full report: returns within how long, or `None` if it is a repetition.
pub fn refresh(
    refresh: &Refresh,
    taken: &mut RefreshHistory,
    time: &mut KnownTime,
    clock_ms: Millis,
) -> Option<Millis> {
    if !taken.is_new(refresh.issued_ms) {
        return None;
    }
    time.observe(refresh.issued_ms, clock_ms);
    Some(Millis::try_from(refresh.within_ms.min(REFRESH_WITHIN_MAX_MS)).unwrap_or_default())
}

/// What to do with a command that an earlier run of the agent left unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedCommand {
    /// Run it: nothing of it had begun.
    Anew,
    /// Look up its program, which may still run: its shim knows; without a shim, it is lost.
    LookedUp,
    /// Ask again: a question changes nothing.
    AskedAgain,
    /// End it: its sender waited for output of that time.
    Over,
    /// Report it as lost: whether it was done cannot be known.
    Lost,
}

/// Returns what to do with an unfinished command; `verb` is `None` if it cannot be parsed any more.
#[must_use]
pub fn resume(verb: Option<&Verb>, queued: bool) -> ResumedCommand {
    let Some(verb) = verb else { return ResumedCommand::Lost };
    match verb.row().after_restart {
        // Nothing of it begins before its outcome is stored.
        _ if matches!(verb, Verb::Exec(exec) if exec.daemon) => ResumedCommand::Anew,
        AfterRestart::LookedUp if queued || planted!(RunLostAgain) => ResumedCommand::Anew,
        AfterRestart::LookedUp if planted!(GiveUpUnfinished) => ResumedCommand::Lost,
        AfterRestart::LookedUp => ResumedCommand::LookedUp,
        AfterRestart::AskedAgain => ResumedCommand::AskedAgain,
        AfterRestart::Over => ResumedCommand::Over,
        AfterRestart::Lost => ResumedCommand::Lost,
    }
}

/// The expiry to record for a command that was cancelled before it arrived: it cannot have been issued later than the
/// cancellation, and no command lives longer.
#[must_use]
pub fn cancelled_expires_ms(issued_ms: Millis) -> Millis {
    issued_ms.saturating_add(LIFETIME_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refresh_is_accepted_once() {
        let mut taken = RefreshHistory::default();
        let times = [1_000, 1_000, 2_000, 1_500, 1_500, 1_000];
        assert_eq!(times.map(|at| taken.is_new(at)), [true, false, true, true, false, false]);
        let many = 10_000..10_000 + 2 * REFRESHES_MAX as Millis;
        assert!(many.clone().all(|at| taken.is_new(at)));
        assert!(many.chain([1_000, 1_500, 2_000, 9_000]).all(|at| !taken.is_new(at)), "one that was forgotten is old");
    }
}
