//! What the deadline ends.

use jiff::tz::TimeZoneDatabase;
use muster_topics::{Millis, ack::Numbered, admission::ChangeOutcome, name::HostId};
use uuid::Uuid;

use crate::rollout::{
    decide::{Decision, decide},
    policy::{Budget, Retries, RolloutPolicy, Share},
    state::{HostOutcome, RolloutPhase, RolloutState},
    transition::{HostEnd, Reply, TargetHost},
    wait::WaitReason,
};

const DEADLINE_MS: Millis = 900_000;
const AFTER_MS: Millis = 60_000;

/// A rollout, whose hosts ask and end.
struct AskingHosts {
    policy: RolloutPolicy,
    state: RolloutState,
    seq: u64,
}

impl AskingHosts {
    fn number(&mut self) -> Numbered {
        self.seq += 1;
        Numbered { epoch: 1, seq: self.seq }
    }

    fn decide(&mut self, now_ms: Millis) -> Decision {
        let decision = decide(&self.policy, &self.state, &TimeZoneDatabase::none(), now_ms);
        self.state.carry_out(&decision, now_ms);
        decision
    }

    fn ask(&mut self, host: HostId, now_ms: Millis) {
        let number = self.number();
        self.state.asked(host, number, 1, now_ms);
    }

    /// A host that asks is granted a permit, and ends with it.
    fn end(&mut self, host: HostId, outcome: ChangeOutcome, now_ms: Millis) -> Option<Reply> {
        let grants = self.decide(now_ms).grants;
        let permit = grants.iter().find(|grant| grant.host == host).map(|grant| grant.permit);
        assert!(permit.is_some(), "{host} is not granted a permit");
        let number = self.number();
        self.state.ended(host, number, HostEnd { version: 1, permit, outcome }, &self.policy, now_ms).reply
    }
}

#[test]
fn host_without_a_place_for_its_second_try_is_not_waited_for_longer() {
    let [first, second] = [1, 2].map(|id| HostId(Uuid::from_u128(id)));
    let one = Share::Count(1);
    let policy = RolloutPolicy {
        waves: Some(Vec::new()),
        max_in_flight: Share::Count(2),
        budget: Some(Budget { group_by: "site".parse().unwrap(), max_unavailable: one }),
        max_failures: Share::Percent(100.0),
        deadline_ms: DEADLINE_MS,
        retries: Retries { attempts: 1, after_ms: AFTER_MS },
        ..RolloutPolicy::default()
    };
    let target = |host| TargetHost { host, group: None, is_online: true, can_take: true };
    let state = RolloutState::begin(&policy, 1, None, false, [first, second].map(target), 0);
    let mut told = AskingHosts { policy, state, seq: 0 };

    told.ask(first, 0);
    assert_eq!(told.end(first, ChangeOutcome::RolledBack, 0), Some(Reply::Retry));
    told.ask(second, 0);
    assert_eq!(told.end(second, ChangeOutcome::Failed, 0), Some(Reply::Retry));
    told.ask(first, 0);
    told.ask(second, 0);
    assert_eq!(told.end(second, ChangeOutcome::Failed, AFTER_MS), Some(Reply::Noted), "it is broken");

    let decision = told.decide(DEADLINE_MS - 1);
    assert!(matches!(decision.waits[..], [(host, WaitReason::Budget { .. })] if host == first), "{decision:?}");
    assert_eq!(decision.again_ms, Some(DEADLINE_MS));
    let decision = told.decide(DEADLINE_MS);
    assert_eq!(decision.outcomes.len(), 1, "{decision:?}");
    assert_eq!(told.state.hosts[&first].terminal(), Some(HostOutcome::RolledBack));
    told.decide(DEADLINE_MS);
    assert!(matches!(told.state.phase, RolloutPhase::Paused { .. }), "{:?}", told.state.phase);
}

#[test]
fn failed_rollout_is_completed_once_nobody_changes_any_more() {
    let [first, second] = [1, 2].map(|id| HostId(Uuid::from_u128(id)));
    let policy = RolloutPolicy {
        waves: Some(Vec::new()),
        max_in_flight: Share::Count(2),
        max_failures: Share::Percent(100.0),
        deadline_ms: DEADLINE_MS,
        ..RolloutPolicy::default()
    };
    let target = |host| TargetHost { host, group: None, is_online: true, can_take: true };
    let state = RolloutState::begin(&policy, 1, None, false, [first, second].map(target), 0);
    let mut told = AskingHosts { policy, state, seq: 0 };
    let permit_of = |decision: Decision, host| decision.grants.iter().find(|grant| grant.host == host).unwrap().permit;
    // Nobody asks until the deadline.
    for _ in 0..3 {
        told.decide(DEADLINE_MS);
    }
    assert!(matches!(told.state.phase, RolloutPhase::Failed { .. }), "{:?}", told.state.phase);

    // The first begins, and is silent for so long that it is lost, so that the second may begin.
    told.ask(first, DEADLINE_MS);
    let of_first = permit_of(told.decide(DEADLINE_MS), first);
    let late_ms = DEADLINE_MS + told.policy.lost_after_ms;
    told.decide(late_ms);
    told.ask(second, late_ms);
    let of_second = permit_of(told.decide(late_ms), second);
    for (host, permit, outcome) in
        [(first, of_first, ChangeOutcome::Verified), (second, of_second, ChangeOutcome::Failed)]
    {
        assert!(matches!(told.state.phase, RolloutPhase::Failed { .. }), "before {host} ends: {:?}", told.state.phase);
        let (number, end) = (told.number(), HostEnd { version: 1, permit: Some(permit), outcome });
        told.state.ended(host, number, end, &told.policy, late_ms);
        told.decide(late_ms);
    }
    assert_eq!(told.state.phase, RolloutPhase::Completed);
}
