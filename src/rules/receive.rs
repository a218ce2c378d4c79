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
};

use super::{
    authorise::{self, CommandSource, CommandVerdict, JudgeContext},
    time::KnownTime,
};

/// The longest time that a refresh may be put off.
const REFRESH_WITHIN_MAX_MS: u64 = 10 * 60_000;

/// How far the signed time that is stored may lag behind the one that was seen. A quiet host hears
/// an acknowledgement every half minute, and should not write for each; what it forgets of a day is
/// far less than what the journal keeps beyond expiry (`KEPT_AFTER_EXPIRY_MS`).
const KEEP_SIGNED_MS: Millis = 3_600_000;

/// Judges a command. `judge.time` is `time` as it was before.
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
        time.saw(issued_ms, judge.clock_ms);
    }
    match verdict {
        CommandVerdict::Refused(..) if planted!(RefuseInSilence) => CommandVerdict::NotMine,
        verdict => verdict,
    }
}

/// What an acknowledgement comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckEffect {
    /// It is for another host.
    NotMine,
    /// What it names is forgotten.
    Forget {
        /// Whether that is to be stored: there are messages about commands, or the signed time has moved on for long.
        store: bool,
    },
}

/// Takes an acknowledgement. `kept_ms` is the signed time that is stored.
pub fn ack(ack: &Ack, me: HostId, time: &mut KnownTime, kept_ms: Millis, clock_ms: Millis) -> AckEffect {
    if ack.host != me {
        return AckEffect::NotMine;
    }
    if !planted!(ForgetSignedTime) {
        time.saw(ack.issued_ms, clock_ms);
    }
    let store = !ack.reports.is_empty() || time.signed_ms() - kept_ms > KEEP_SIGNED_MS;
    AckEffect::Forget { store }
}

/// Requests that are remembered: those of days, for a host whose console has nothing to mend.
const REFRESHES_MAX: usize = 64;

/// The times at which the requests were issued that were taken. Whoever owns the broker can repeat an old one for ever;
/// each is good once. The latest alone would do, if no console's clock was ever set back: what it asked for then would
/// be taken for old until its clock is where it was.
#[derive(Clone, Debug, Default)]
pub struct RefreshHistory(BTreeSet<Millis>);

impl RefreshHistory {
    /// Whether a request is a new one; if so, it counts as taken.
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

/// Takes a request to tell everything anew: within how long, or nothing if it is a repetition.
pub fn refresh(
    refresh: &Refresh,
    taken: &mut RefreshHistory,
    time: &mut KnownTime,
    clock_ms: Millis,
) -> Option<Millis> {
    if !taken.is_new(refresh.issued_ms) {
        return None;
    }
    time.saw(refresh.issued_ms, clock_ms);
    Some(Millis::try_from(refresh.within_ms.min(REFRESH_WITHIN_MAX_MS)).unwrap_or_default())
}

/// What becomes of a command that an earlier life of the agent left unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedCommand {
    /// Nothing of it was begun: it is, or waits again.
    Anew,
    /// A program, which may run still: its shim knows, and what no shim knows of is lost.
    LookedUp,
    /// A question, which changes nothing: it is asked again.
    AskedAgain,
    /// Somebody waited for what came meanwhile: it is over.
    Over,
    /// Whether it was done nobody can know.
    Lost,
}

/// What becomes of an unfinished command; `verb` is nothing if it cannot be read any more.
#[must_use]
pub fn resume(verb: Option<&Verb>, queued: bool) -> ResumedCommand {
    match verb {
        // Nothing of it was begun before its answer was stored.
        Some(Verb::Exec(exec)) if exec.daemon => ResumedCommand::Anew,
        Some(Verb::Exec(_) | Verb::Batch(_)) if queued || planted!(RunLostAgain) => ResumedCommand::Anew,
        Some(Verb::Exec(_) | Verb::Batch(_)) if planted!(GiveUpUnfinished) => ResumedCommand::Lost,
        Some(Verb::Exec(_) | Verb::Batch(_)) => ResumedCommand::LookedUp,
        Some(Verb::UnitLogs { .. } | Verb::UnitConfig { .. } | Verb::UnitStats { .. }) => ResumedCommand::AskedAgain,
        Some(Verb::UnitFollow { .. }) => ResumedCommand::Over,
        // What a yuno's own command does nobody knows here, and so not whether it may be done twice.
        Some(_) | None => ResumedCommand::Lost,
    }
}

/// The expiry under which a command is noted that was cancelled before it came: it cannot have been issued later than
/// the one that cancels it, and no command lives longer.
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
