//! Whether this agent is the only one of its host, judged by the host's own presence topic, which
//! the agent reads as well as writes.
//!
//! Two things go wrong there. An old last will overwrites a new session's presence: the agent
//! publishes its own again. And a cloned disk starts a twin, with the same certificate and the same
//! id: the newcomer claims the host, waits one keep-alive and a half, and begins to work only if
//! nobody objects; an agent that works objects to every claim.
//!
//! Earlier lives of the same store are no twins: the store's lock says that they are over. That is
//! why their instances are remembered, and why a start after a crash need not wait. A clone brings the
//! instances of its original along, and those are not over: so each is remembered with its place. If one of them speaks up
//! all the same, the store is the copy of one that lives on, and its agent leaves the host to that.

use muster_topics::{
    Millis,
    presence::{Presence, PresenceState},
};
use uuid::Uuid;

use crate::fault::planted;

/// The instances of earlier lives in this `place`, newest first, from the lines that they left: `<instance> <place>`.
/// One without a place, or of another one, may live still.
#[must_use]
pub fn former(lines: &str, place: &str) -> Vec<Uuid> {
    let ours =
        |line: &str| line.split_once(' ').filter(|(_, of)| *of == place || planted!(FormerAnywhere))?.0.parse().ok();
    lines.lines().filter_map(ours).collect()
}

/// What to do about what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Ignore,
    /// Publish the own presence again.
    Assert,
    /// This agent is the only one: begin to work.
    Settled,
    /// Another one works: leave it alone.
    Withdraw,
}

/// One connection's standing.
#[derive(Clone, Debug)]
pub struct Standing {
    instance: Uuid,
    session: u64,
    former: Vec<Uuid>,
    wait_ms: Millis,
    stage: Stage,
    /// An earlier life has spoken up.
    doubt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Subscribed and published; what was retained comes before what was published.
    Asking { other: bool },
    /// Somebody was there; an objection may still come.
    Claiming { until_ms: Millis },
    /// Working.
    Sole,
}

impl Standing {
    /// A connection begins, in which `instance` has published its presence. `former` are the
    /// instances of earlier lives, `wait_ms` how long to wait for an objection.
    #[must_use]
    pub fn new(instance: Uuid, session: u64, former: Vec<Uuid>, wait_ms: Millis) -> Self {
        Self { instance, session, former, wait_ms, stage: Stage::Asking { other: false }, doubt: false }
    }

    /// Whether this agent works.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.stage == Stage::Sole
    }

    /// Whether this agent works, and this is the presence of another one that would: a twin of it.
    #[must_use]
    pub fn is_twin(&self, presence: &Presence) -> bool {
        self.is_sole() && presence.state == PresenceState::Online && presence.instance != self.instance
    }

    /// When to call [`Standing::tick`].
    #[must_use]
    pub fn next_ms(&self) -> Option<Millis> {
        match self.stage {
            Stage::Claiming { until_ms } => Some(until_ms),
            Stage::Asking { .. } | Stage::Sole => None,
        }
    }

    /// Something came on the presence topic; nothing inside if it could not be read, or was empty.
    pub fn heard(&mut self, presence: Option<&Presence>, now_ms: Millis) -> Verdict {
        let mine = presence.is_some_and(|presence| {
            presence.instance == self.instance
                && presence.session == self.session
                && presence.state == PresenceState::Online
        });
        let other = presence.is_some_and(|presence| {
            presence.state == PresenceState::Online
                && presence.instance != self.instance
                && !self.former.contains(&presence.instance)
        });
        // An earlier life of this store says nothing more, but for what was still under way. One that objects again was never
        // over: this one is the copy of it.
        let original = presence.is_some_and(|presence| {
            presence.state == PresenceState::Online && self.former.contains(&presence.instance)
        });
        match self.stage {
            Stage::Claiming { .. } | Stage::Sole if original && self.doubt => Verdict::Withdraw,
            Stage::Claiming { .. } | Stage::Sole if original => {
                self.doubt = true;
                Verdict::Assert
            }
            Stage::Asking { other: true } if mine && !planted!(ClaimAtOnce) => {
                self.stage = Stage::Claiming { until_ms: now_ms + self.wait_ms };
                Verdict::Ignore
            }
            Stage::Asking { .. } if mine => {
                self.stage = Stage::Sole;
                Verdict::Settled
            }
            Stage::Asking { other: before } => {
                // Later news supersedes: what was online may have gone offline before we spoke.
                self.stage = Stage::Asking { other: if presence.is_some() { other } else { before } };
                Verdict::Ignore
            }
            Stage::Claiming { .. } if other => Verdict::Withdraw,
            Stage::Sole if other && planted!(YieldToTwin) => Verdict::Withdraw,
            Stage::Sole if other && planted!(NeverObject) => Verdict::Ignore,
            Stage::Sole if !other && !mine && planted!(LeaveOldWill) => Verdict::Ignore,
            Stage::Claiming { .. } | Stage::Sole if mine => Verdict::Ignore,
            Stage::Claiming { .. } | Stage::Sole => Verdict::Assert,
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: Millis) -> Verdict {
        match self.stage {
            Stage::Claiming { until_ms } if now_ms >= until_ms => {
                self.stage = Stage::Sole;
                Verdict::Settled
            }
            _ => Verdict::Ignore,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::V1;

    use super::*;
    use PresenceState::{Offline, Online, Stopped};

    const ME: Uuid = Uuid::from_u128(1);
    const FORMER: Uuid = Uuid::from_u128(2);
    const TWIN: Uuid = Uuid::from_u128(3);

    fn presence(instance: Uuid, session: u64, state: PresenceState) -> Presence {
        Presence {
            v: V1,
            state,
            instance,
            epoch: 7,
            session,
            agent_version: String::new(),
            capabilities: vec![],
            since_ms: 0,
        }
    }

    fn standing() -> Standing {
        Standing::new(ME, 2, vec![FORMER], 45_000)
    }

    /// What is heard, in order, and what each leads to; then the own presence, and what that leads to.
    #[track_caller]
    fn check(before: &[(Uuid, u64, PresenceState)], sole: bool) -> Standing {
        let mut standing = standing();
        for (instance, session, state) in before {
            assert_eq!(standing.heard(Some(&presence(*instance, *session, *state)), 0), Verdict::Ignore);
        }
        let verdict = standing.heard(Some(&presence(ME, 2, Online)), 0);
        assert_eq!((verdict == Verdict::Settled, standing.is_sole()), (sole, sole), "after {before:?}");
        standing
    }

    #[test]
    fn only_lives_of_this_place_are_over() {
        let lines = format!("{ME} here\n{TWIN} there\nnonsense here\n{FORMER}\n{FORMER} here\n");
        assert_eq!(former(&lines, "here"), [ME, FORMER]);
        assert!(former("", "here").is_empty());
    }

    #[test]
    fn a_host_without_a_twin_begins_at_once() {
        check(&[], true);
        check(&[(ME, 1, Offline)], true);
        check(&[(ME, 1, Online)], true);
        check(&[(FORMER, 1, Online)], true);
        check(&[(TWIN, 1, Stopped)], true);
        check(&[(TWIN, 1, Online), (TWIN, 1, Offline)], true);
    }

    #[test]
    fn a_newcomer_waits_for_objections() {
        let mut claiming = check(&[(TWIN, 1, Online)], false);
        assert_eq!((claiming.tick(44_999), claiming.next_ms()), (Verdict::Ignore, Some(45_000)));
        assert_eq!((claiming.tick(45_000), claiming.is_sole()), (Verdict::Settled, true));
        let mut claiming = check(&[(TWIN, 1, Online)], false);
        assert_eq!(claiming.heard(Some(&presence(TWIN, 1, Offline)), 5), Verdict::Assert);
        assert_eq!(claiming.heard(Some(&presence(TWIN, 1, Online)), 6), Verdict::Withdraw);
    }

    #[test]
    fn a_copy_that_remembers_its_original_withdraws() {
        let mut copy = check(&[(FORMER, 1, Online)], true);
        // The first time it may be what was still under way.
        for wanted in [Verdict::Assert, Verdict::Withdraw] {
            assert_eq!(copy.heard(Some(&presence(FORMER, 1, Online)), 0), wanted);
        }
        assert_eq!(check(&[], true).heard(Some(&presence(FORMER, 1, Offline)), 0), Verdict::Assert);
        // The original does not know it, and stays.
        let mut original = Standing::new(FORMER, 1, vec![], 45_000);
        assert_eq!(original.heard(Some(&presence(FORMER, 1, Online)), 0), Verdict::Settled);
        let (twin, own) = (presence(ME, 2, Online), presence(FORMER, 1, Online));
        assert_eq!((original.is_twin(&twin), original.is_twin(&own)), (true, false));
        assert_eq!(original.heard(Some(&twin), 0), Verdict::Assert);
    }

    #[test]
    fn one_that_works_objects_and_overwrites_stale_wills() {
        for (instance, session, state) in
            [(TWIN, 9, Online), (TWIN, 9, Stopped), (ME, 1, Offline), (ME, 2, Offline), (FORMER, 1, Offline)]
        {
            let mut sole = check(&[], true);
            assert_eq!(sole.heard(Some(&presence(instance, session, state)), 0), Verdict::Assert, "{state:?}");
            assert_eq!(sole.heard(Some(&presence(ME, 2, Online)), 0), Verdict::Ignore);
        }
        assert_eq!(check(&[], true).heard(None, 0), Verdict::Assert);
    }

    /// Two agents on one topic, whose messages both hear in one order.
    #[test]
    fn of_two_that_start_together_at_most_one_works() {
        let mut agents = [(ME, standing()), (TWIN, Standing::new(TWIN, 2, vec![FORMER], 45_000))];
        let mut topic: std::collections::VecDeque<_> = [ME, TWIN].into();
        let mut withdrawn = vec![];
        while let Some(speaker) = topic.pop_front() {
            for (agent, standing) in &mut agents {
                match standing.heard(Some(&presence(speaker, 2, Online)), 0) {
                    Verdict::Assert => topic.push_back(*agent),
                    Verdict::Withdraw => withdrawn.push(*agent),
                    Verdict::Ignore | Verdict::Settled => {}
                }
            }
        }
        assert_eq!((agents[0].1.is_sole(), withdrawn), (true, vec![TWIN]));
    }
}
