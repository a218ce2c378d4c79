//! Which of the hosts that ask may begin now.

use std::sync::Arc;

use muster_fault::planted;
use muster_topics::Millis;

use super::{Decider, Grant};
use crate::rollout::{
    state::{AuthorityWord, HostOutcome, HostProgress, Question, RolloutPhase},
    wait::WaitReason,
    window::{self, WindowState},
};

/// How long hosts that an earlier version has broken may prepare before others take their places in the first wave.
const REPAIR_MS: Millis = 60_000;
/// How long an authority's word counts: a host that is admitted by it and waits for a place longer is asked for again.
const AUTHORITY_VALID_MS: Millis = 5 * 60_000;
/// How long after an authority's no it is asked again.
const AUTHORITY_AGAIN_MS: Millis = 60_000;
/// How long after its timeout an authority's answer is taken for lost.
const AUTHORITY_GRACE_MS: Millis = 10_000;

struct Places {
    flight: usize,
    flight_limit: usize,
    wave: usize,
    repairs: usize,
}

enum Admittance {
    Granted,
    AskAuthority,
    Waits(WaitReason),
}

enum AuthorityNeed {
    None,
    Ask,
    Wait,
}

impl<'a> Decider<'a> {
    /// Says of every host that asks whether it may begin. `refusal` is why none may with this version; the version before
    /// is still for hosts that came late.
    pub(super) fn grant(&mut self, refusal: Option<&WaitReason>) {
        let mut asking = std::mem::take(&mut self.tally.asking);
        let limit = self.in_flight_limit();
        if self.tally.in_flight < limit || asking.iter().any(|(_, progress, _)| progress.is_in_flight()) {
            asking.sort_unstable_by_key(|(host, progress, asks)| (!progress.is_unavailable, asks.since_ms, *host));
        }
        let mut places = Places {
            flight: limit.saturating_sub(self.tally.in_flight),
            flight_limit: limit,
            wave: match self.is_last() || self.state.phase.is_end() {
                true => usize::MAX,
                false => self.wave_size().saturating_sub(self.tally.wave.admitted),
            },
            repairs: self.reserved_places(),
        };
        for (host, progress, asks) in asking {
            match self.admit(&mut places, progress, asks, refusal) {
                Admittance::Granted => self.decision.grants.push(Grant {
                    host,
                    version: asks.version,
                    permit: progress.permits + 1,
                    to: asks.number,
                    replaces: progress.permit.filter(|permit| !permit.is_lost).map(|permit| permit.version),
                }),
                Admittance::AskAuthority => {
                    self.decision.ask_authority.push(host);
                    self.decision.waits.push((host, WaitReason::Authority { reason: None }));
                }
                Admittance::Waits(reason) => self.decision.waits.push((host, reason)),
            }
        }
        match self.window {
            WindowState::Open { until_ms: Some(at_ms) } | WindowState::Closed { opens_ms: Some(at_ms) } => {
                self.look_again(at_ms);
            }
            _ => {}
        }
    }

    fn in_flight_limit(&self) -> usize {
        match self.state.phase {
            // The first that is verified makes it a rollout that has not failed.
            RolloutPhase::Failed { .. } if self.tally.verified == 0 => 1,
            _ => self.policy.max_in_flight.at_least_one_of(self.tally.able),
        }
    }

    /// Places of the first wave that are kept for hosts that an earlier version has broken, while they prepare.
    fn reserved_places(&mut self) -> usize {
        let until_ms = self.state.wave_began_ms + REPAIR_MS;
        if self.tally.repairs == 0 || self.state.wave > 1 || until_ms <= self.now_ms || self.state.phase.is_end() {
            return 0;
        }
        self.look_again(until_ms);
        self.tally.repairs
    }

    fn admit(
        &mut self,
        places: &mut Places,
        progress: &'a HostProgress,
        asks: Question,
        refusal: Option<&WaitReason>,
    ) -> Admittance {
        let waits = Admittance::Waits;
        let is_own = asks.version == self.state.version;
        if let Some(refusal) = refusal.filter(|_| is_own) {
            return waits(refusal.clone());
        }
        match (progress.outcome(), progress.retry_ms()) {
            (Some(HostOutcome::Failed | HostOutcome::RolledBack), None) if is_own => return waits(WaitReason::Failed),
            (_, Some(at_ms)) if is_own && at_ms > self.now_ms => {
                self.look_again(at_ms);
                return waits(WaitReason::Retry { at_ms });
            }
            _ => {}
        }
        if let WindowState::Closed { opens_ms } = self.window
            && !planted!(IgnoreWindow)
        {
            return waits(WaitReason::Window { opens_ms });
        }
        if self.policy.has_host_windows() && asks.heard_ms + window::QUESTION_VALID_MS <= self.now_ms {
            return waits(WaitReason::Window { opens_ms: None });
        }
        // One that tries again has its place already.
        let takes_wave = is_own && progress.wave.is_none();
        if takes_wave && places.wave == 0 {
            return waits(WaitReason::WaveFull { wave: self.state.wave });
        }
        if is_own
            && !progress.is_unavailable
            && (places.wave <= places.repairs || places.flight <= places.repairs)
            && places.repairs > 0
        {
            return waits(WaitReason::Repairs);
        }
        // One in the middle of an earlier change keeps its place, unless it was lost and others have its place by now.
        let takes_flight = !progress.is_in_flight();
        let is_over = self.tally.in_flight > places.flight_limit;
        if is_over || takes_flight && places.flight == 0 {
            return waits(WaitReason::InFlight { limit: u32::try_from(places.flight_limit).unwrap_or(u32::MAX) });
        }
        let takes_budget = !progress.is_unavailable;
        if takes_budget && let Some(limit) = self.budget_is_used(progress) {
            return waits(WaitReason::Budget { group: progress.group.clone(), limit });
        }
        let word = match self.authority(progress) {
            Ok(word) => word,
            Err(reason) => return waits(WaitReason::Authority { reason: Some(reason) }),
        };
        // A place is kept for one that the authority is asked for, so that it is asked for no more than have places.
        if takes_flight {
            places.flight -= 1;
        }
        if takes_wave {
            places.wave = places.wave.saturating_sub(1);
        }
        if takes_budget && let Some(group) = self.tally.groups.get_mut(&progress.group.as_deref()) {
            group.unavailable += 1;
        }
        match word {
            AuthorityNeed::None => Admittance::Granted,
            AuthorityNeed::Ask => Admittance::AskAuthority,
            AuthorityNeed::Wait => waits(WaitReason::Authority { reason: None }),
        }
    }

    /// The limit of a host's group, if the group has reached it.
    fn budget_is_used(&self, progress: &HostProgress) -> Option<u32> {
        let budget = self.policy.budget.as_ref()?;
        let group = self.tally.groups.get(&progress.group.as_deref()).copied().unwrap_or_default();
        let limit = budget.max_unavailable.at_least_one_of(group.hosts);
        (group.unavailable >= limit).then(|| u32::try_from(limit).unwrap_or(u32::MAX))
    }

    fn authority_lost_ms(&self) -> Millis {
        self.policy.authority.as_ref().map_or(0, |authority| authority.timeout_ms) + AUTHORITY_GRACE_MS
    }

    /// What is needed of the authority; its reason, if it has refused the host.
    fn authority(&mut self, progress: &HostProgress) -> Result<AuthorityNeed, Arc<str>> {
        if self.policy.authority.is_none() {
            return Ok(AuthorityNeed::None);
        }
        match &progress.authority {
            AuthorityWord::Admits { at_ms } if self.now_ms < at_ms + AUTHORITY_VALID_MS => Ok(AuthorityNeed::None),
            AuthorityWord::Asked { at_ms } if self.now_ms < at_ms + self.authority_lost_ms() => {
                self.look_again(at_ms + self.authority_lost_ms());
                Ok(AuthorityNeed::Wait)
            }
            AuthorityWord::Refuses { at_ms, reason } if self.now_ms < at_ms + AUTHORITY_AGAIN_MS => {
                self.look_again(at_ms + AUTHORITY_AGAIN_MS);
                Err(reason.clone())
            }
            _ => Ok(AuthorityNeed::Ask),
        }
    }

    pub(super) fn authority_is_open(&self) -> bool {
        let is_open = |progress: &HostProgress| match progress.authority {
            AuthorityWord::Asked { at_ms } => self.now_ms < at_ms + self.authority_lost_ms(),
            _ => false,
        };
        self.tally.asking.iter().any(|(_, progress, _)| is_open(progress))
    }
}
