//! What is to be done now: who may begin, what time has brought, what comes next, and when to look again.
//!
//! A decision is carried out ([`RolloutState::carry_out`]), stored, and only then told. Then it is made again: at once if it
//! has brought outcomes or a step, and at the latest at [`Decision::again_ms`].
//!
//! Order of hosts that ask: those that are unavailable already, then by when they first asked, then by id.

mod admit;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::tz::TimeZoneDatabase;
use muster_fault::planted;
use muster_topics::count::counted;
use muster_topics::{Millis, ack::Numbered, name::HostId};

use super::{
    policy::{OnFailure, RolloutPolicy, Share},
    state::{CheckStatus, HostOutcome, HostProgress, Question, RolloutPhase, RolloutState},
    wait::WaitReason,
    window::{self, WindowState},
};

/// How long a console that has started waits for words that came while it was away, before it gives up hosts for lost.
const START_GRACE_MS: Millis = 5 * 60_000;
/// How long after a check without a result it is made again.
const CHECK_AGAIN_MS: Millis = 60_000;
/// How long a check may have no result before an operator has to look.
const CHECK_PATIENCE_MS: Millis = 10 * 60_000;

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Who may begin.
    pub grants: Vec<Grant>,
    /// Outcomes that time has brought.
    pub outcomes: Vec<TimedOutcome>,
    /// What becomes of the rollout.
    pub step: Option<RolloutStep>,
    /// Hosts that the authority is to be asked for.
    pub ask_authority: Vec<HostId>,
    /// Whether the check is to be made.
    pub ask_check: bool,
    /// Why hosts that ask have to wait.
    pub waits: Vec<(HostId, WaitReason)>,
    /// When to decide again, if nothing happens before.
    pub again_ms: Option<Millis>,
}

/// A permit for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The host.
    pub host: HostId,
    /// The version that it may begin with: the one that it has asked for.
    pub version: u32,
    /// The number of the permit.
    pub permit: u64,
    /// The question that it answers.
    pub to: Numbered,
    /// The version that this ends on the host with the outcome `superseded`, if it was granted an earlier one.
    pub replaces: Option<u32>,
}

/// An outcome that time has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOutcome {
    /// The host.
    pub host: HostId,
    /// The version.
    pub version: u32,
    /// The outcome.
    pub outcome: HostOutcome,
}

/// What becomes of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStep {
    /// All hosts of the wave have ended, and well. The next one does not begin before this time.
    EndWave {
        /// The time.
        until_ms: Millis,
    },
    /// The next wave waits for an operator.
    AwaitApproval,
    /// The next wave begins.
    BeginWave,
    /// No further host begins.
    Pause {
        /// Why, for people.
        reason: String,
    },
    /// A new version with the content of an earlier one is to go to all hosts.
    RollBack {
        /// Why, for people.
        reason: String,
    },
    /// Every host has an outcome.
    Complete,
    /// Every host has an outcome, and none is verified.
    Fail {
        /// Why, for people.
        reason: String,
    },
}

/// Decides.
#[must_use]
pub fn decide(policy: &RolloutPolicy, state: &RolloutState, zones: &TimeZoneDatabase, now_ms: Millis) -> Decision {
    let mut decider = Decider::new(policy, state, zones, now_ms);
    decider.run();
    decider.decision
}

/// Returns why each host waits that has no outcome yet, or not the last word of one; for people.
#[must_use]
pub fn waits(
    policy: &RolloutPolicy,
    state: &RolloutState,
    zones: &TimeZoneDatabase,
    now_ms: Millis,
) -> BTreeMap<HostId, WaitReason> {
    let decision = decide(policy, state, zones, now_ms);
    let mut found: BTreeMap<HostId, WaitReason> = decision.waits.into_iter().collect();
    for (host, progress) in &state.hosts {
        if found.contains_key(host) || progress.terminal().is_some_and(|outcome| outcome != HostOutcome::Cannot) {
            continue;
        }
        let reason = match (progress.outcome(), progress.permit, progress.retry_ms()) {
            (Some(HostOutcome::Cannot), ..) => WaitReason::Cannot,
            (_, Some(permit), _) if permit.has_begun => WaitReason::Changing,
            (_, Some(_), _) => WaitReason::Granted,
            (_, _, Some(at_ms)) if at_ms > now_ms => WaitReason::Retry { at_ms },
            _ if !progress.is_online => WaitReason::Away,
            _ => WaitReason::Preparing,
        };
        found.insert(*host, reason);
    }
    found
}

/// How far the hosts are.
#[derive(Debug, Default)]
struct Tally<'a> {
    /// Hosts that can ask.
    able: usize,
    /// Hosts in the middle of a change.
    in_flight: usize,
    /// Hosts in the middle of a change to this version, that have not ended for good.
    unsettled: usize,
    /// Hosts that have failed, and will ask to try again or may not yet.
    retrying: usize,
    /// Hosts that have failed, and ask to try again now.
    stalled: usize,
    /// Hosts of the present wave.
    wave: WaveTally,
    /// Hosts that have refused without a permit.
    refused: usize,
    /// Hosts that are verified.
    verified: usize,
    /// Connected hosts that can be admitted.
    left_online: usize,
    /// Hosts that can be admitted when they are back.
    left_away: usize,
    /// Hosts that came late, and are to have the version before until the last wave.
    late: usize,
    /// Connected hosts that are unavailable and have not asked yet.
    repairs: usize,
    /// Sizes of groups, and how many hosts of each are unavailable.
    groups: HashMap<Option<&'a str>, GroupTally>,
    /// Hosts that ask.
    asking: Vec<(HostId, &'a HostProgress, Question)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct WaveTally {
    admitted: usize,
    ended: usize,
    verified: usize,
    failed: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct GroupTally {
    hosts: usize,
    unavailable: usize,
}

struct Decider<'a> {
    policy: &'a RolloutPolicy,
    state: &'a RolloutState,
    now_ms: Millis,
    window: WindowState,
    tally: Tally<'a>,
    decision: Decision,
}

impl<'a> Decider<'a> {
    fn new(policy: &'a RolloutPolicy, state: &'a RolloutState, zones: &TimeZoneDatabase, now_ms: Millis) -> Self {
        let window = match state.is_rollback {
            true => WindowState::Open { until_ms: None },
            false => window::state(&policy.windows, now_ms, zones),
        };
        Self { policy, state, now_ms, window, tally: Tally::default(), decision: Decision::default() }
    }

    fn run(&mut self) {
        self.time_outcomes();
        if !self.decision.outcomes.is_empty() {
            // They count in the next decision.
            self.decision.again_ms = Some(self.now_ms);
            return;
        }
        self.count();
        match &self.state.phase {
            RolloutPhase::Running | RolloutPhase::Soaking { .. } | RolloutPhase::Approval => self.go_on(),
            RolloutPhase::Paused { reason, .. } => {
                let reason: Arc<str> = reason.as_str().into();
                self.hold(|_| WaitReason::Paused { reason: reason.clone() });
            }
            RolloutPhase::Completed | RolloutPhase::Failed { .. } => self.admit_late(),
            RolloutPhase::Cancelled => self.grant(Some(&WaitReason::Cancelled)),
            RolloutPhase::RolledBack { by } | RolloutPhase::Superseded { by } => {
                let by = *by;
                self.hold(|_| WaitReason::Superseded { by });
            }
        }
        if self.decision.step.is_some() {
            self.decision.again_ms = Some(self.now_ms);
        }
    }

    fn look_again(&mut self, at_ms: Millis) {
        let at_ms = at_ms.max(self.now_ms);
        self.decision.again_ms = Some(self.decision.again_ms.map_or(at_ms, |again_ms| again_ms.min(at_ms)));
    }

    /// Permits that have run out, and retries that did not come.
    fn time_outcomes(&mut self) {
        let (now_ms, version) = (self.now_ms, self.state.version);
        let floor_ms = self.state.watched_since_ms + self.policy.lost_after_ms.min(START_GRACE_MS);
        for (host, progress) in &self.state.hosts {
            if progress.outcome() == Some(HostOutcome::Removed) {
                continue;
            }
            if let Some(permit) = progress.permit.filter(|permit| !permit.is_lost) {
                let lost_ms = (permit.granted_ms + self.policy.lost_after_ms).max(floor_ms);
                if lost_ms <= now_ms {
                    let lost = TimedOutcome { host: *host, version: permit.version, outcome: HostOutcome::Lost };
                    self.decision.outcomes.push(lost);
                } else {
                    self.look_again(lost_ms);
                }
            } else if let (Some(outcome), Some(retry_ms)) = (progress.outcome(), progress.retry_ms()) {
                let patience_ms = if outcome == HostOutcome::Refused { 0 } else { self.policy.lost_after_ms };
                let given_up_ms = (retry_ms + patience_ms).max(floor_ms);
                // After the end, nobody promises that it is admitted again.
                match progress.asks.filter(|_| !self.state.phase.is_end()) {
                    Some(_) if retry_ms <= now_ms => {}
                    Some(_) => self.look_again(retry_ms),
                    None if given_up_ms <= now_ms => {
                        self.decision.outcomes.push(TimedOutcome { host: *host, version, outcome });
                    }
                    None => self.look_again(given_up_ms),
                }
            }
        }
    }

    fn count(&mut self) {
        let (state, version) = (self.state, self.state.version);
        let has_budget = self.policy.budget.is_some();
        let tally = &mut self.tally;
        for (host, progress) in &state.hosts {
            if !progress.counts() {
                continue;
            }
            tally.able += 1;
            tally.in_flight += usize::from(progress.is_in_flight() && !planted!(NoFlight));
            if has_budget {
                let group = tally.groups.entry(progress.group.as_deref()).or_default();
                group.hosts += 1;
                group.unavailable += usize::from(is_unavailable(progress));
            }
            let is_own = state.version_for(progress) == version;
            let terminal = progress.terminal();
            let holds_own = progress.permit.is_some_and(|permit| permit.version == version && !permit.is_lost);
            match asks_to_retry(progress, self.now_ms) {
                true => tally.stalled += 1,
                false => tally.retrying += usize::from(progress.outcome().is_some() && terminal.is_none()),
            }
            if progress.wave == Some(state.wave) {
                tally.wave.admitted += 1;
                tally.wave.ended += usize::from(terminal.is_some());
                tally.wave.verified += usize::from(terminal == Some(HostOutcome::Verified));
                tally.wave.failed += usize::from(terminal.is_some_and(HostOutcome::is_failure));
            }
            if terminal.is_none() && (holds_own || progress.wave.is_some()) {
                tally.unsettled += 1;
            } else if terminal.is_none() && is_own {
                match progress.is_online {
                    true => tally.left_online += 1,
                    false => tally.left_away += 1,
                }
                let asks = progress.asks.is_some_and(|asks| asks.version == version);
                tally.repairs += usize::from(progress.is_unavailable && progress.is_online && !asks);
            }
            tally.late += usize::from(terminal.is_none() && !is_own);
            tally.verified += usize::from(terminal == Some(HostOutcome::Verified));
            tally.refused += usize::from(terminal == Some(HostOutcome::Refused) && progress.wave.is_none());
            if let Some(asks) = progress.asks.filter(|_| progress.is_online) {
                tally.asking.push((*host, progress, asks));
            }
        }
    }

    /// Has every host that asks wait for one reason.
    fn hold(&mut self, reason: impl Fn(&HostProgress) -> WaitReason) {
        if planted!(GrantWhilePaused) {
            return self.grant(None);
        }
        let waits = self.tally.asking.iter().map(|(host, progress, _)| (*host, reason(progress)));
        self.decision.waits = waits.collect();
    }

    fn is_last(&self) -> bool {
        self.state.is_last_wave()
    }

    /// The size of the present wave, with a host more for each failure that an operator has accepted.
    fn wave_size(&self) -> usize {
        let left = self.tally.left_online + self.tally.left_away + self.tally.wave.admitted;
        match self.state.waves.get(self.state.wave as usize - 1) {
            Some(size) => size.at_least_one_of(self.tally.able) + self.state.accepted.wave as usize,
            None => left,
        }
    }

    fn go_on(&mut self) {
        let wave = self.tally.wave;
        if let Some(reason) = self.too_many_failures(wave.failed, self.wave_size()) {
            return self.trip(reason);
        }
        if self.state.wave_ended_ms.is_some() {
            return self.after_wave();
        }
        if self.wave_is_over() {
            return self.end_wave();
        }
        self.grant(None);
        self.wait_until_deadline();
    }

    /// Whether more hosts have failed than may, of a wave of this size.
    fn too_many_failures(&self, failed: usize, size: usize) -> Option<String> {
        let Tally { refused, able, .. } = self.tally;
        let (wave, share) = (self.state.wave, self.policy.max_failures);
        if failed > share.of(size) && failed > self.state.accepted.wave as usize {
            return Some(format!(
                "{failed} of {} of wave {wave} failed; at most {} may fail",
                counted(size, "host"),
                limit_words(share, size)
            ));
        }
        if refused > share.of(able) && refused > self.state.accepted.refusals as usize {
            return Some(format!(
                "{refused} of {} refused it; at most {} may refuse",
                counted(able, "host"),
                limit_words(share, able)
            ));
        }
        None
    }

    /// Does what the policy says of failures.
    fn trip(&mut self, reason: String) {
        let waits: Arc<str> = reason.as_str().into();
        self.hold(|_| WaitReason::Paused { reason: waits.clone() });
        self.decision.step = Some(match self.policy.on_failure {
            OnFailure::Rollback if !self.state.is_rollback => RolloutStep::RollBack { reason },
            OnFailure::Rollback | OnFailure::Pause => RolloutStep::Pause { reason },
        });
    }

    /// Whether the wave has all its hosts, and all of them have ended.
    fn wave_is_over(&self) -> bool {
        let Tally { wave, left_online, left_away, unsettled, .. } = self.tally;
        if planted!(CloseWaveEarly) && wave.admitted >= self.wave_size() {
            return true;
        }
        let nobody_left = (left_online + left_away == 0 && unsettled == 0) || planted!(EndWithoutOutcomes);
        if wave.ended < wave.admitted || unsettled > 0 {
            return false;
        }
        if nobody_left {
            return true;
        }
        let has_all = wave.admitted >= self.wave_size() || left_online == 0 || self.is_past_deadline();
        !self.is_last() && has_all && wave.verified > 0 || !self.is_last() && wave.admitted >= self.wave_size()
    }

    fn is_past_deadline(&self) -> bool {
        self.state.wave_began_ms + self.policy.deadline_ms <= self.now_ms
    }

    fn end_wave(&mut self) {
        let wave = self.tally.wave;
        if let Some(reason) = self.too_many_failures(wave.failed, wave.ended) {
            return self.trip(reason);
        }
        if wave.admitted > 0
            && wave.verified == 0
            && wave.failed > self.state.accepted.wave as usize
            && !planted!(CloseWaveEarly)
        {
            let reason = format!("no host of wave {} is verified", self.state.wave);
            return self.trip(reason);
        }
        let has_next = self.has_next();
        let soaks = !self.state.is_rollback && (has_next || (self.policy.check.is_some() && wave.verified > 0));
        if !soaks && !has_next {
            return self.complete();
        }
        let until_ms = self.now_ms + if soaks { self.policy.soak_ms } else { 0 };
        self.decision.step = Some(RolloutStep::EndWave { until_ms });
        self.hold(|_| WaitReason::Soak { until_ms });
    }

    /// Whether there is another wave, and somebody for it.
    fn has_next(&self) -> bool {
        !self.is_last() && self.tally.left_online + self.tally.left_away + self.tally.late > 0
    }

    fn complete(&mut self) {
        self.hold(|_| WaitReason::Preparing);
        // A target that selects nobody is one that all have reached.
        self.decision.step = Some(match self.tally.verified > 0 || self.tally.able == 0 {
            true => RolloutStep::Complete,
            false => RolloutStep::Fail { reason: "no host is verified".to_owned() },
        });
    }

    /// Between two waves: the soak, the check, the approval.
    fn after_wave(&mut self) {
        let soak_ms = if self.state.is_rollback { 0 } else { self.policy.soak_ms };
        let until_ms = self.state.wave_ended_ms.unwrap_or(self.now_ms) + soak_ms;
        if self.now_ms < until_ms {
            self.look_again(until_ms);
            return self.hold(|_| WaitReason::Soak { until_ms });
        }
        if self.policy.check.is_some() && !self.state.is_rollback && !self.passes_check() {
            return;
        }
        if !self.has_next() {
            return match self.state.wave_ended_ms.is_some() && self.tally.unsettled == 0 && self.nobody_left() {
                true => self.complete(),
                // Somebody has come while the last wave soaked.
                false => self.grant_again(),
            };
        }
        let next = self.state.wave + 1;
        if self.policy.approve.wants(next) && self.state.approved < next && !self.state.is_rollback {
            return self.await_approval(next);
        }
        self.decision.step = Some(RolloutStep::BeginWave);
        self.hold(|_| WaitReason::WaveFull { wave: next - 1 });
    }

    fn nobody_left(&self) -> bool {
        self.tally.left_online + self.tally.left_away == 0
    }

    fn grant_again(&mut self) {
        self.grant(None);
        self.wait_until_deadline();
    }

    fn await_approval(&mut self, next: u32) {
        if self.state.phase != RolloutPhase::Approval {
            self.decision.step = Some(RolloutStep::AwaitApproval);
        }
        self.hold(|_| WaitReason::Approval { wave: next });
        // Nobody is there for whom to approve it.
        if self.tally.left_online == 0 {
            self.close_at(self.state.wave_ended_ms.unwrap_or(self.now_ms) + self.policy.deadline_ms);
        }
    }

    fn passes_check(&mut self) -> bool {
        match &self.state.check {
            CheckStatus::Passed => return true,
            CheckStatus::Worse { message } => {
                let reason = format!("hosts that have changed are worse than the rest: {message}");
                self.trip(reason);
                return false;
            }
            CheckStatus::Unknown { at_ms, first_ms, message } => {
                if self.now_ms - first_ms >= CHECK_PATIENCE_MS {
                    let reason = format!("the check of wave {} has no result: {message}", self.state.wave);
                    let waits: Arc<str> = reason.as_str().into();
                    self.hold(|_| WaitReason::Paused { reason: waits.clone() });
                    self.decision.step = Some(RolloutStep::Pause { reason });
                    return false;
                }
                let again_ms = at_ms + CHECK_AGAIN_MS;
                self.decision.ask_check = again_ms <= self.now_ms;
                let message: Arc<str> = message.as_str().into();
                self.look_again(again_ms);
                self.hold(|_| WaitReason::Check { message: Some(message.clone()) });
                return false;
            }
            CheckStatus::Open => self.decision.ask_check = true,
            CheckStatus::Asked { at_ms, .. } => {
                // The query was lost, as with a console that was restarted.
                let again_ms = at_ms + CHECK_AGAIN_MS;
                self.decision.ask_check = again_ms <= self.now_ms;
                self.look_again(again_ms);
            }
        }
        self.hold(|_| WaitReason::Check { message: None });
        false
    }

    /// Gives hosts an outcome that were waited for until the deadline.
    fn wait_until_deadline(&mut self) {
        if self.nobody_left() && self.tally.stalled == 0 {
            return;
        }
        let deadline_ms = self.state.wave_began_ms + self.policy.deadline_ms;
        let is_busy = self.tally.in_flight > 0
            || self.tally.retrying > 0
            || !self.decision.grants.is_empty()
            || !self.decision.ask_authority.is_empty()
            || self.authority_is_open()
            || matches!(self.window, WindowState::Closed { .. });
        match deadline_ms > self.now_ms {
            true => self.look_again(deadline_ms),
            false if is_busy => {}
            // Their failures count before others are given up.
            false if self.tally.stalled > 0 => self.give_retries_up(),
            false => self.close_at(deadline_ms),
        }
    }

    /// Makes the failure of each host the last word that asks to try again and is not admitted.
    fn give_retries_up(&mut self) {
        let (version, now_ms) = (self.state.version, self.now_ms);
        let stalled = self.state.hosts.iter().filter(|(_, progress)| asks_to_retry(progress, now_ms));
        let outcomes = stalled.filter_map(|(host, progress)| {
            progress.outcome().map(|outcome| TimedOutcome { host: *host, version, outcome })
        });
        self.decision.outcomes.extend(outcomes);
        self.decision.again_ms = Some(now_ms);
    }

    fn close_at(&mut self, deadline_ms: Millis) {
        if self.now_ms < deadline_ms {
            return self.look_again(deadline_ms);
        }
        let (state, version) = (self.state, self.state.version);
        let open = |progress: &HostProgress| {
            progress.counts()
                && progress.outcome().is_none()
                && progress.permit.is_none_or(|permit| permit.version != version)
        };
        for (host, progress) in state.hosts.iter().filter(|(_, progress)| open(progress)) {
            let has_asked = progress.asked_ms.is_some();
            let outcome = if has_asked { HostOutcome::Skipped } else { HostOutcome::Missing };
            self.decision.outcomes.push(TimedOutcome { host: *host, version, outcome });
        }
        if !self.decision.outcomes.is_empty() {
            self.decision.again_ms = Some(self.now_ms);
        }
    }

    /// Hosts that come after the end, or that were told to try again.
    fn admit_late(&mut self) {
        let wave = self.tally.wave;
        // A host in the middle of a change has yet to say how that ends.
        let is_settled = self.tally.unsettled == 0;
        if matches!(self.state.phase, RolloutPhase::Failed { .. }) && self.tally.verified > 0 && is_settled {
            self.decision.step = Some(RolloutStep::Complete);
        }
        match self.too_many_failures(wave.failed, wave.ended) {
            // Once it has failed, a host that comes late is the first to tell.
            Some(_) if self.tally.verified > 0 || wave.failed > 0 => self.grant(Some(&WaitReason::Failures)),
            _ => self.grant(None),
        }
    }
}

/// Whether a host has failed, and asks to try again, which it may by now.
fn asks_to_retry(progress: &HostProgress, now_ms: Millis) -> bool {
    let is_due = progress.retry_ms().is_some_and(|retry_ms| retry_ms <= now_ms);
    is_due && progress.asks.is_some() && progress.outcome().is_some() && progress.counts()
}

fn is_unavailable(progress: &HostProgress) -> bool {
    if planted!(BudgetByReports) {
        return progress.permit.is_some_and(|permit| permit.has_begun);
    }
    progress.is_unavailable
}

fn limit_words(share: Share, hosts: usize) -> String {
    match share {
        Share::Count(count) => count.to_string(),
        Share::Percent(_) => format!("{} ({share})", share.of(hosts)),
    }
}
