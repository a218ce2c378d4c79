//! What happens to a rollout: messages of hosts, words of operators, and decisions that are carried out.
//!
//! **Invariant: each may be repeated, come late, or be missing.** A message of a host counts only if its number is greater
//! than that of the last one that counted, or if it names the permit that the host has.

use std::sync::Arc;

use muster_fault::planted;
use muster_topics::{Millis, ack::Numbered, name::HostId};

use super::{
    decide::{Decision, RolloutStep},
    policy::RolloutPolicy,
    state::{
        AcceptedFailures, AuthorityWord, CheckStatus, HostOutcome, HostProgress, HostVerdict, Permit, Question,
        ReplacedPermit, RolloutPhase, RolloutState,
    },
};

pub use super::state::HostEnd;

/// A host of the target when a rollout begins, or that comes later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHost {
    /// The host.
    pub host: HostId,
    /// The value of its label that the budget groups by.
    pub group: Option<Arc<str>>,
    /// Whether it is connected.
    pub is_online: bool,
    /// Whether it has what the version needs, and a document of this console.
    pub can_take: bool,
}

/// How a message of a host was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reception {
    /// What is answered at once. A question is answered by the next decision.
    pub reply: Option<Reply>,
    /// Whether something that is stored has changed.
    pub is_changed: bool,
    /// The outcome of a version on the host, to be stored. If it is of an earlier version than the rollout's, it
    /// replaces only outcomes that a later one replaces.
    pub outcome: Option<(u32, HostOutcome)>,
}

/// An answer to a message that is no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is stored.
    Noted,
    /// It is stored, and the host tries again.
    Retry,
}

/// Beginnings and ends of whole rollouts.
impl RolloutState {
    /// Begins the rollout of a version. `fallback` is the last version before it whose rollout completed.
    #[must_use]
    pub fn begin(
        policy: &RolloutPolicy,
        version: u32,
        fallback: Option<u32>,
        is_rollback: bool,
        hosts: impl IntoIterator<Item = TargetHost>,
        now_ms: Millis,
    ) -> Self {
        let hosts = hosts.into_iter().map(|host| (host.host, HostProgress::new(host, false)));
        let mut state = Self {
            version,
            fallback,
            is_rollback,
            phase: RolloutPhase::Running,
            waves: Vec::new(),
            wave: 1,
            wave_began_ms: now_ms,
            wave_ended_ms: None,
            approved: 0,
            accepted: AcceptedFailures::default(),
            check: CheckStatus::Open,
            watched_since_ms: now_ms,
            hosts: hosts.collect(),
        };
        if !is_rollback {
            state.waves = policy.waves_for(state.hosts.values().filter(|host| host.counts()).count());
        }
        state
    }

    /// Begins the rollout of a later version: what hosts have of the one before goes on to count. That one's state is
    /// [superseded](Self::supersede).
    #[must_use]
    pub fn succeed(
        &self,
        policy: &RolloutPolicy,
        version: u32,
        fallback: Option<u32>,
        is_rollback: bool,
        hosts: impl IntoIterator<Item = TargetHost>,
        now_ms: Millis,
    ) -> Self {
        let mut next = Self::begin(policy, version, fallback, is_rollback, hosts, now_ms);
        next.watched_since_ms = self.watched_since_ms;
        if planted!(ForgetEarlierVersion) {
            return next;
        }
        for (host, progress) in &mut next.hosts {
            let Some(before) = self.hosts.get(host) else { continue };
            progress.heard = before.heard;
            progress.permit = before.permit;
            progress.permits = before.permits;
            progress.ended = before.ended;
            progress.is_unavailable = before.is_unavailable;
        }
        // What others are in the middle of, or have failed with, counts again if they are selected again before they have
        // heard that they were not.
        for (host, before) in self.hosts.iter().filter(|(_, before)| before.is_unavailable) {
            next.hosts.entry(*host).or_insert_with(|| before.removed());
        }
        next
    }

    /// Ends it, since a later version takes its place. Returns the outcomes that this brings. A host in mid-change has its
    /// outcome later: its own word, or `superseded` when it is granted the later version ([`Grant::replaces`]).
    ///
    /// [`Grant::replaces`]: super::decide::Grant::replaces
    pub fn supersede(&mut self, by: u32, is_rollback: bool) -> Vec<(HostId, HostOutcome)> {
        if !self.phase.is_end() {
            self.phase = if is_rollback { RolloutPhase::RolledBack { by } } else { RolloutPhase::Superseded { by } };
        }
        self.close(HostOutcome::Superseded)
    }

    /// Ends it as it is: no further host is admitted, and hosts in mid-change go on. Returns the outcomes that this brings.
    /// It needs no host's consent.
    pub fn cancel(&mut self) -> Vec<(HostId, HostOutcome)> {
        if self.phase.is_end() {
            return Vec::new();
        }
        self.phase = RolloutPhase::Cancelled;
        self.close(HostOutcome::Skipped)
    }

    /// Gives every host an outcome that has neither one nor a permit of this version.
    fn close(&mut self, outcome: HostOutcome) -> Vec<(HostId, HostOutcome)> {
        let version = self.version;
        let open = |progress: &HostProgress| {
            progress.terminal().is_none() && progress.permit.is_none_or(|permit| permit.version != version)
        };
        let closed = self.hosts.iter_mut().filter(|(_, progress)| open(progress)).map(|(host, progress)| {
            let outcome = progress.outcome().unwrap_or(outcome);
            progress.verdict = Some(HostVerdict::Final(outcome));
            (*host, outcome)
        });
        closed.collect()
    }
}

/// Words of operators.
impl RolloutState {
    /// Lets no further host begin. Returns whether that changes anything.
    pub fn pause(&mut self, reason: String, now_ms: Millis) -> bool {
        if self.phase.is_end() || matches!(self.phase, RolloutPhase::Paused { .. }) {
            return false;
        }
        self.phase = RolloutPhase::Paused { since_ms: now_ms, reason };
        true
    }

    /// Goes on after a pause, in spite of the failures until now; of one that has completed, admits hosts again that come
    /// late. Returns whether that changes anything.
    pub fn resume(&mut self, now_ms: Millis) -> bool {
        let accepted = self.failures();
        match self.phase {
            RolloutPhase::Paused { since_ms, .. } => {
                let paused_ms = (now_ms - since_ms).max(0);
                self.wave_began_ms += paused_ms;
                self.wave_ended_ms = self.wave_ended_ms.map(|ended_ms| ended_ms + paused_ms);
                self.phase = RolloutPhase::Running;
                if !matches!(self.check, CheckStatus::Open | CheckStatus::Asked { .. }) {
                    self.check = CheckStatus::Passed;
                }
            }
            RolloutPhase::Completed | RolloutPhase::Failed { .. } if accepted != self.accepted => {}
            _ => return false,
        }
        self.accepted = accepted;
        true
    }

    /// The failures that count at present.
    #[must_use]
    pub fn failures(&self) -> AcceptedFailures {
        let mut found = AcceptedFailures::default();
        for progress in self.hosts.values().filter(|progress| progress.terminal().is_some_and(HostOutcome::is_failure))
        {
            match progress.wave {
                None if progress.outcome() == Some(HostOutcome::Refused) => found.refusals += 1,
                Some(wave) if wave == self.wave => found.wave += 1,
                None | Some(_) => {}
            }
        }
        found
    }

    /// Approves the next wave. Returns whether that changes anything.
    pub fn promote(&mut self) -> bool {
        let next = self.wave + 1;
        let is_wanted = !self.phase.is_end() && self.approved < next && self.wave as usize <= self.waves.len();
        if is_wanted {
            self.approved = next;
        }
        is_wanted
    }

    /// Has hosts try again that have failed: those named, or all. Returns them; each is told [`Reply::Retry`] as the answer
    /// to [`HostProgress::heard`].
    pub fn retry(&mut self, named: Option<&[HostId]>, now_ms: Millis) -> Vec<HostId> {
        if matches!(
            self.phase,
            RolloutPhase::Cancelled | RolloutPhase::RolledBack { .. } | RolloutPhase::Superseded { .. }
        ) {
            return Vec::new();
        }
        let has_failed = |progress: &HostProgress| {
            let failed = [HostOutcome::Failed, HostOutcome::RolledBack, HostOutcome::Refused];
            progress.permit.is_none() && progress.outcome().is_some_and(|outcome| failed.contains(&outcome))
        };
        let tried = self
            .hosts
            .iter_mut()
            .filter(|(host, progress)| named.is_none_or(|named| named.contains(host)) && has_failed(progress));
        let tried = tried.map(|(host, progress)| {
            progress.failures = 0;
            progress.verdict = progress.outcome().map(|outcome| HostVerdict::Retry { outcome, at_ms: now_ms });
            *host
        });
        tried.collect()
    }

    /// Counts a host as available that has failed or was lost. Returns whether that changes anything; a host in mid-change
    /// is not released.
    pub fn release(&mut self, host: HostId) -> bool {
        let Some(progress) = self.hosts.get_mut(&host) else { return false };
        if !progress.is_unavailable || progress.is_in_flight() {
            return false;
        }
        progress.is_unavailable = false;
        progress.permit = None;
        true
    }
}

/// Hosts that come and go.
impl RolloutState {
    /// The deployment selects a host, or a host's group, connection or capability may have changed. Returns whether
    /// something that is stored has changed; that may be its outcome.
    pub fn join(&mut self, host: TargetHost) -> bool {
        // One that comes after the end is not waited for.
        let open = match self.phase {
            RolloutPhase::Completed | RolloutPhase::Failed { .. } => Some(HostOutcome::Missing),
            _ => self.phase.is_end().then_some(HostOutcome::Skipped),
        };
        let (open, cannot) = (open.map(HostVerdict::Final), Some(HostVerdict::Final(HostOutcome::Cannot)));
        let Some(progress) = self.hosts.get_mut(&host.host) else {
            let mut progress = HostProgress::new(host.clone(), true);
            progress.verdict = progress.verdict.or(open);
            self.hosts.insert(host.host, progress);
            return true;
        };
        let before = (progress.group.clone(), progress.outcome());
        progress.group = host.group;
        progress.is_online = host.is_online;
        match (progress.outcome(), host.can_take) {
            (Some(HostOutcome::Removed), can_take) => {
                progress.is_late = true;
                // It was given up before: it asks, or tells what became of it.
                progress.permit = progress.permit.filter(|permit| !permit.is_lost);
                progress.verdict = if can_take { open } else { cannot };
            }
            (Some(HostOutcome::Cannot), true) => progress.verdict = open,
            (None, false) if progress.permit.is_none() => progress.verdict = cannot,
            _ => {}
        }
        before != (progress.group.clone(), progress.outcome())
    }

    /// A host is gone, or is no longer selected. Returns the outcomes that this brings, with their versions.
    pub fn remove(&mut self, host: HostId) -> Vec<(u32, HostOutcome)> {
        let version = self.version;
        let Some(progress) = self.hosts.get_mut(&host).filter(|one| one.outcome() != Some(HostOutcome::Removed)) else {
            return Vec::new();
        };
        let earlier = progress.permit.filter(|permit| permit.version != version && !permit.is_lost);
        *progress = progress.removed();
        let earlier = earlier.map(|permit| (permit.version, HostOutcome::Removed));
        earlier.into_iter().chain([(version, HostOutcome::Removed)]).collect()
    }

    /// A host has left the fleet, and does not come back: later versions need to know nothing of it.
    pub fn forget(&mut self, host: HostId) {
        if let Some(progress) = self.hosts.get_mut(&host) {
            (progress.permit, progress.is_unavailable) = (None, false);
        }
    }

    /// A host is connected. It repeats its question by itself.
    pub fn online(&mut self, host: HostId) {
        if let Some(progress) = self.hosts.get_mut(&host) {
            progress.is_online = true;
        }
    }

    /// A host is away. Its question is void: it asks again when it is back.
    pub fn offline(&mut self, host: HostId) {
        if let Some(progress) = self.hosts.get_mut(&host) {
            progress.is_online = false;
            progress.asks = None;
        }
    }

    /// The version that a host's document may name; `None` if it is not of the deployment.
    #[must_use]
    pub fn version_of(&self, host: HostId) -> Option<u32> {
        let progress = self.hosts.get(&host).filter(|progress| progress.outcome() != Some(HostOutcome::Removed))?;
        Some(self.version_for(progress))
    }

    /// The version that a host may have: one that came late gets the one before until the last wave has begun.
    pub(super) fn version_for(&self, progress: &HostProgress) -> u32 {
        let is_open = match self.phase {
            RolloutPhase::Completed | RolloutPhase::Failed { .. } => true,
            RolloutPhase::Cancelled | RolloutPhase::RolledBack { .. } | RolloutPhase::Superseded { .. } => false,
            _ => self.is_last_wave(),
        };
        self.fallback.filter(|_| progress.is_late && !is_open).unwrap_or(self.version)
    }

    /// Whether the present wave is the last one.
    #[must_use]
    pub fn is_last_wave(&self) -> bool {
        self.wave as usize > self.waves.len()
    }
}

/// Messages of hosts.
impl RolloutState {
    /// A host asks. That also says that it has not begun, and never will, with a permit for an earlier question.
    pub fn asked(&mut self, host: HostId, number: Numbered, version: u32, now_ms: Millis) -> Reception {
        let Some(progress) = self.hosts.get(&host).filter(|progress| progress.outcome() != Some(HostOutcome::Removed))
        else {
            return Reception::default();
        };
        let wanted = self.version_for(progress);
        let (current, is_over) = (self.version, self.phase.is_end());
        let Some(progress) = self.hosts.get_mut(&host) else { return Reception::default() };
        if progress.heard.is_some_and(|heard| number <= heard) && !planted!(HearStaleQuestion) {
            return Reception::default();
        }
        progress.heard = Some(number);
        let (mut is_changed, mut outcome) = (progress.ended.take().is_some(), None);
        if let Some(permit) = progress.permit.filter(|permit| permit.version == version) {
            // It is in the middle of what the unused permit would have replaced.
            progress.permit = permit.replaces.filter(|_| !permit.has_begun).map(|replaced| Permit {
                number: replaced.number,
                version: replaced.version,
                has_begun: true,
                was_unavailable: replaced.was_unavailable,
                replaces: None,
                ..permit
            });
            progress.is_unavailable = permit.was_unavailable || permit.has_begun;
            is_changed = true;
            if version == current {
                progress.wave = None;
                progress.verdict = is_over.then_some(HostVerdict::Final(HostOutcome::Skipped));
                outcome = progress.outcome().map(|outcome| (version, outcome));
            } else if version != wanted {
                outcome = Some((version, HostOutcome::Superseded));
            }
        }
        if version != wanted {
            return Reception { is_changed, outcome, ..Reception::default() };
        }
        if version == current && progress.asked_ms.is_none() {
            progress.asked_ms = Some(now_ms);
            is_changed = true;
        }
        if progress.outcome() == Some(HostOutcome::Cannot) {
            progress.verdict = is_over.then_some(HostVerdict::Final(HostOutcome::Skipped));
            outcome = progress.outcome().map(|outcome| (current, outcome));
            is_changed = true;
        }
        progress.is_online = true;
        let asked_before_ms = progress.asks.filter(|asks| asks.version == version).map(|asks| asks.since_ms);
        let asked_ms = if version == current { progress.asked_ms } else { asked_before_ms };
        progress.asks = Some(Question { number, version, since_ms: asked_ms.unwrap_or(now_ms), heard_ms: now_ms });
        Reception { is_changed, outcome, ..Reception::default() }
    }

    /// A host has begun.
    pub fn begun(&mut self, host: HostId, number: Numbered, version: u32, permit: u64, now_ms: Millis) -> Reception {
        let noted = Reception { reply: Some(Reply::Noted), ..Reception::default() };
        let current = self.version;
        let Some(progress) = self.hosts.get_mut(&host) else { return noted };
        let is_newer = progress.heard.is_none_or(|heard| number > heard);
        let known = progress.permit.filter(|held| held.number == permit && held.version == version);
        if known.is_none() && !is_newer {
            return noted;
        }
        let held = known.unwrap_or(Permit {
            // A console that has forgotten permits believes the host.
            number: permit,
            version,
            to: number,
            granted_ms: now_ms,
            has_begun: false,
            is_lost: false,
            was_unavailable: progress.is_unavailable,
            replaces: None,
        });
        let granted_ms = if held.is_lost { now_ms } else { held.granted_ms };
        let permit = Permit { granted_ms, has_begun: true, is_lost: false, ..held };
        let stored = |one: &HostProgress| (one.permit, one.permits, one.wave, one.verdict, one.is_unavailable);
        let before = stored(progress);
        progress.hear(number);
        progress.permit = Some(permit);
        progress.permits = progress.permits.max(permit.number);
        progress.is_unavailable = true;
        if is_newer {
            progress.asks = None;
        }
        if version == current && progress.outcome() != Some(HostOutcome::Removed) {
            progress.verdict = None;
            progress.wave.get_or_insert(self.wave);
        }
        Reception { is_changed: before != stored(progress), ..noted }
    }

    /// A version has ended on a host.
    pub fn ended(
        &mut self,
        host: HostId,
        number: Numbered,
        end: HostEnd,
        policy: &RolloutPolicy,
        now_ms: Millis,
    ) -> Reception {
        let noted = Reception { reply: Some(Reply::Noted), ..Reception::default() };
        let (current, wave, phase_ends) = (self.version, self.wave, self.phase.is_end());
        let Some(progress) = self.hosts.get_mut(&host) else { return noted };
        let is_newer = progress.heard.is_none_or(|heard| number > heard);
        let held = progress.permit.filter(|held| Some(held.number) == end.permit && held.version == end.version);
        if held.is_none() && (!is_newer || progress.ended == Some(end)) {
            // It is repeated, with a number of its own, until the answer arrives.
            progress.hear(number);
            let is_last = progress.heard == Some(number) && progress.ended == Some(end);
            let tries_again = progress.retry_ms().is_some() && progress.outcome() != Some(HostOutcome::Refused);
            return match is_last && tries_again {
                true => Reception { reply: Some(Reply::Retry), ..noted },
                false => noted,
            };
        }
        progress.hear(number);
        progress.ended = Some(end);
        if is_newer {
            progress.asks = None;
        }
        let outcome = HostOutcome::from(end.outcome);
        let is_removed = progress.outcome() == Some(HostOutcome::Removed);
        // Without a permit, what is the last word stays: only a host that is well after all is news.
        let is_settled = held.is_none()
            && end.version == current
            && progress.terminal().is_some_and(|before| !before.is_replaced_by(outcome));
        let brought = Some((end.version, outcome)).filter(|_| !is_removed && !is_settled);
        let reception = Reception { is_changed: true, outcome: brought, ..noted };
        let holds_other = held.is_none() && progress.permit.is_some_and(|permit| permit.version > end.version);
        if holds_other {
            // It has been granted a later version since, which it will ask for again, or begin.
            return Reception { outcome: None, ..reception };
        }
        // With a permit that the host has not used, it is as it was; the end of one that it has used says how it is.
        let unused =
            progress.permit.filter(|permit| held.is_none() && permit.version == end.version && !permit.has_begun);
        let is_other = held.is_none() && progress.permit.is_some_and(|permit| permit.version != end.version);
        if !(is_other && outcome == HostOutcome::Refused) {
            progress.permit = None;
        }
        if let Some(unused) = unused {
            progress.is_unavailable = unused.was_unavailable;
        }
        match outcome {
            HostOutcome::Verified => progress.is_unavailable = false,
            HostOutcome::RolledBack | HostOutcome::Refused if held.is_some() => {
                progress.is_unavailable = held.is_some_and(|held| held.was_unavailable);
            }
            HostOutcome::Failed => progress.is_unavailable = true,
            _ => {}
        }
        if end.version != current || is_removed || is_settled {
            return reception;
        }
        progress.verdict = Some(HostVerdict::Final(outcome));
        if end.permit.is_none() {
            progress.wave = None;
        } else {
            progress.wave.get_or_insert(wave);
        }
        if !outcome.is_failure() {
            return reception;
        }
        progress.failures += 1;
        let is_over = phase_ends && !matches!(self.phase, RolloutPhase::Completed | RolloutPhase::Failed { .. });
        if progress.failures > policy.retries.attempts || is_over {
            return reception;
        }
        progress.verdict = Some(HostVerdict::Retry { outcome, at_ms: now_ms + policy.retries.after_ms });
        match outcome {
            // The host tries again by itself.
            HostOutcome::Refused => reception,
            _ => Reception { reply: Some(Reply::Retry), ..reception },
        }
    }
}

/// Words of the authority and of the check.
impl RolloutState {
    /// The authority is asked for these hosts.
    pub fn authority_asked(&mut self, hosts: &[HostId], now_ms: Millis) {
        for host in hosts {
            self.set_authority(*host, AuthorityWord::Asked { at_ms: now_ms });
        }
    }

    /// The authority has answered for a host, or has failed to.
    pub fn authority_answered(&mut self, host: HostId, refusal: Option<Arc<str>>, now_ms: Millis) {
        let word = match refusal {
            None => AuthorityWord::Admits { at_ms: now_ms },
            Some(reason) => AuthorityWord::Refuses { at_ms: now_ms, reason },
        };
        let is_asked = |progress: &HostProgress| matches!(progress.authority, AuthorityWord::Asked { .. });
        if self.hosts.get(&host).is_some_and(is_asked) {
            self.set_authority(host, word);
        }
    }

    fn set_authority(&mut self, host: HostId, word: AuthorityWord) {
        if let Some(progress) = self.hosts.get_mut(&host) {
            progress.authority = word;
        }
    }

    /// The check is made.
    pub fn check_asked(&mut self, now_ms: Millis) {
        self.check = CheckStatus::Asked { at_ms: now_ms, first_ms: self.check.first_ms().unwrap_or(now_ms) };
    }

    /// The check has a result: `Ok(None)` if the changed hosts are not worse, else by how much they are; or it has none, and
    /// why.
    pub fn check_answered(&mut self, result: Result<Option<String>, String>, now_ms: Millis) {
        let CheckStatus::Asked { first_ms, .. } = self.check else { return };
        self.check = match result {
            Ok(None) => CheckStatus::Passed,
            Ok(Some(message)) => CheckStatus::Worse { message },
            Err(message) => CheckStatus::Unknown { at_ms: now_ms, first_ms, message },
        };
    }
}

/// What the decision says, once it is stored.
impl RolloutState {
    /// Carries a decision out. What it says to hosts may be sent once the state is stored. A rollback is the caller's: it
    /// makes the later version, or [pauses](Self::pause) if there is none to go back to.
    pub fn carry_out(&mut self, decision: &Decision, now_ms: Millis) {
        for timed in &decision.outcomes {
            let Some(progress) = self.hosts.get_mut(&timed.host) else { continue };
            if timed.outcome == HostOutcome::Lost
                && let Some(permit) = &mut progress.permit
            {
                permit.is_lost = true;
                progress.is_unavailable &= !planted!(FreeLostHost);
            }
            if timed.version == self.version {
                progress.verdict = Some(HostVerdict::Final(timed.outcome));
            }
        }
        for grant in &decision.grants {
            let Some(progress) = self.hosts.get_mut(&grant.host) else { continue };
            let before = progress.permit.filter(|before| before.version != grant.version);
            let replaces = before.map(|before| ReplacedPermit {
                number: before.number,
                version: before.version,
                was_unavailable: before.was_unavailable,
            });
            progress.permit = Some(Permit {
                number: grant.permit,
                version: grant.version,
                to: grant.to,
                granted_ms: now_ms,
                has_begun: false,
                is_lost: false,
                was_unavailable: progress.is_unavailable,
                replaces,
            });
            progress.permits = grant.permit;
            progress.is_unavailable = true;
            progress.asks = progress.asks.filter(|_| planted!(GrantTwice));
            if grant.version == self.version {
                progress.wave.get_or_insert(self.wave);
                progress.verdict = None;
            } else if grant.replaces == Some(self.version) {
                // It came late, and gets the version before since this one was cancelled.
                progress.wave = None;
                progress.verdict = Some(HostVerdict::Final(HostOutcome::Superseded));
            }
        }
        if let Some(step) = &decision.step {
            self.step(step, now_ms);
        }
    }

    fn step(&mut self, step: &RolloutStep, now_ms: Millis) {
        match step {
            RolloutStep::EndWave { until_ms } => {
                self.wave_ended_ms = Some(now_ms);
                self.phase = RolloutPhase::Soaking { until_ms: *until_ms };
            }
            RolloutStep::AwaitApproval => self.phase = RolloutPhase::Approval,
            RolloutStep::BeginWave => {
                self.phase = RolloutPhase::Running;
                self.wave += 1;
                self.wave_began_ms = now_ms;
                self.wave_ended_ms = None;
                self.accepted.wave = 0;
                self.check = CheckStatus::Open;
            }
            RolloutStep::Pause { reason } => {
                self.pause(reason.clone(), now_ms);
            }
            RolloutStep::RollBack { .. } => {}
            RolloutStep::Complete => self.phase = RolloutPhase::Completed,
            RolloutStep::Fail { reason } => self.phase = RolloutPhase::Failed { reason: reason.clone() },
        }
    }
}

impl CheckStatus {
    fn first_ms(&self) -> Option<Millis> {
        match self {
            Self::Asked { first_ms, .. } | Self::Unknown { first_ms, .. } => Some(*first_ms),
            Self::Open | Self::Passed | Self::Worse { .. } => None,
        }
    }
}

impl HostProgress {
    fn new(host: TargetHost, is_late: bool) -> Self {
        let verdict = (!host.can_take).then_some(HostVerdict::Final(HostOutcome::Cannot));
        Self { group: host.group, is_online: host.is_online, is_late, verdict, ..Self::default() }
    }

    /// What is kept of a host that is not of the deployment any more: what it may be in the middle of counts again if it is
    /// selected again.
    fn removed(&self) -> Self {
        let Self { heard, permit, permits, ended, is_unavailable, .. } = *self;
        let verdict = Some(HostVerdict::Final(HostOutcome::Removed));
        Self { heard, permit, permits, ended, is_unavailable, verdict, ..Self::default() }
    }

    /// Whether it is one of the hosts that a share is of: it is of the deployment, and can take the version.
    pub(super) fn counts(&self) -> bool {
        !matches!(self.outcome(), Some(HostOutcome::Cannot | HostOutcome::Removed))
    }

    fn hear(&mut self, number: Numbered) {
        self.heard = self.heard.max(Some(number));
    }
}
