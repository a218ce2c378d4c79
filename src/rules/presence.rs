//! Decides whether this agent is the only one of its host, by the host's own presence topic, which
//! the agent reads and writes.
//!
//! Two things go wrong there. An old last will overwrites a new session's presence: the agent
//! publishes its own again. And a cloned disk starts a twin, with the same certificate and the same
//! id: the newcomer claims the host, waits two keep-alives, and begins to work only if
//! nobody objects; a working agent objects to every claim.
//!
//! Earlier starts on the same store are no twins: the store's lock proves that they are over. That is
//! why their instances are remembered, and why a start after a crash need not wait. A clone brings the
//! instances of its original along, and those are not over: so each is remembered with its place. If one of them is still
//! alive, the store is a copy, and its agent leaves the host to the original.
//!
//! A leftover on the topic may hide the presence of a working agent: the last will of an earlier start that never got
//! past its claim, of an earlier connection of a newcomer, or of an unknown instance (a third copy, or an earlier instance of
//! the original). An agent that finds one claims the host like any newcomer. The last instance before a reboot is known by
//! its epoch, so that a start after a power failure need not wait.
//!
//! If two work all the same, each objects to the other. Then the one that started later leaves.

use muster_fault::planted;
use muster_topics::{
    Millis,
    ack::LIVES_MAX,
    presence::{Presence, PresenceState},
};
use uuid::Uuid;

/// The largest step from the last epoch to the next, where the clock is behind the last one.
const EPOCH_STEP_MAX: f64 = 1_000.0;

/// Returns the epoch of an agent that starts now. `last` is the epoch before it; `share` is random, from 0 to 1.
///
/// It is the wall-clock time in milliseconds, so that it exceeds every epoch of a store that was lost, and differs from
/// that of a clone, which continues from the same number. Where the clock is behind (as on machines without a real-time
/// clock) a random step keeps copies of one store apart.
#[must_use]
pub fn epoch(now_ms: Millis, last: Option<Millis>, share: f64) -> Millis {
    // Between 1 and 1,000.
    let step = 1 + (share * (EPOCH_STEP_MAX - 1.0)) as Millis;
    last.map_or(now_ms, |last| now_ms.max(last.saturating_add(step))).max(0)
}

/// Returns the epoch of the last life of a host that the console has `heard` of and the disk does not know: then the disk is
/// a copy that is older than that life, or was cloned. `known` are the epochs of the last lives that it knows; the console
/// may remember some of before them.
#[must_use]
pub fn unknown_life(heard: &[u64], known: &[u64]) -> Option<u64> {
    let first = known.iter().min()?;
    heard.iter().filter(|epoch| *epoch > first && !known.contains(epoch)).max().copied()
}

/// Returns the epochs of the last lives of a host, with one more, the last one first.
#[must_use]
pub fn with_life(lives: &[u64], epoch: u64) -> Vec<u64> {
    let before = lives.iter().copied().filter(|life| *life != epoch);
    std::iter::once(epoch).chain(before).take(LIVES_MAX).collect()
}

/// How long a host whose connection broke counts as one that reconnects shortly: a service manager restarts a killed
/// agent within seconds, and a broken connection recovers as fast.
pub const AWAY_AFTER_MS: Millis = 10_000;

/// Returns since when a host is away, or `None` if it is connected or may reconnect shortly. `presence` is its last
/// state with its time; `None` for a host that has not connected since it joined. A host that disconnected in an
/// orderly way is away at once.
#[must_use]
pub fn away_since_ms(presence: Option<(PresenceState, Millis)>, joined_ms: Millis, now_ms: Millis) -> Option<Millis> {
    match presence {
        Some((PresenceState::Online, _)) => None,
        // A time in the future was recorded before the clock was set back.
        Some((PresenceState::Offline, since_ms)) => {
            (!(0..AWAY_AFTER_MS).contains(&now_ms.saturating_sub(since_ms))).then_some(since_ms)
        }
        Some((PresenceState::Stopped, since_ms)) => Some(since_ms),
        None => Some(joined_ms),
    }
}

/// An instance of this store's agent: an earlier one, or this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLife {
    /// Its id.
    pub instance: Uuid,
    /// Whether it has not worked yet.
    pub is_newcomer: bool,
}

/// Earlier instances that are remembered. Of more than these, one would have to be the last that a broker heard of.
pub const FORMER_MAX: usize = 16;

/// The suffix for a newcomer's line.
const NEWCOMER: &str = " newcomer";

/// Parses the earlier instances at this `place`, newest first and at most [`FORMER_MAX`], from what [`lines`] wrote. An instance without a place,
/// or of another one, may still be alive.
#[must_use]
pub fn former(lines: &str, place: &str) -> Vec<StoreLife> {
    let ours = |line: &str| {
        let (instance, of) = line.split_once(' ')?;
        let newcomer = of.strip_suffix(NEWCOMER);
        let is_here = newcomer.unwrap_or(of) == place || planted!(FormerAnywhere);
        is_here.then_some(StoreLife { instance: instance.parse().ok()?, is_newcomer: newcomer.is_some() })
    };
    lines.lines().filter_map(ours).take(FORMER_MAX).collect()
}

/// Formats instances at this `place`: `<instance> <place>`, and whether it is a newcomer.
#[must_use]
pub fn lines<'a>(lives: impl IntoIterator<Item = &'a StoreLife>, place: &str) -> String {
    let line = |life: &StoreLife| {
        let newcomer = if life.is_newcomer { NEWCOMER } else { "" };
        format!("{} {place}{newcomer}\n", life.instance)
    };
    lives.into_iter().map(line).collect()
}

/// What to do about a received presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresenceVerdict {
    /// Nothing.
    Ignore,
    /// Publish this agent's presence again.
    Assert,
    /// There is, or may be, another agent: wait for its objection.
    Claim,
    /// This agent is the only one: start to work.
    Settled,
    /// Another agent works: disconnect.
    Withdraw,
}

/// How often another agent may publish its presence after objections of this one before it counts as one that works
/// too. A claimant withdraws at the first objection; one more message may be in transit.
const OBJECTIONS_MAX: u32 = 3;

/// The state of the claim of one connection.
#[derive(Clone, Debug)]
pub struct ClaimState {
    own: StoreLife,
    epoch: u64,
    session: u64,
    former: Vec<StoreLife>,
    wait_ms: Millis,
    stage: ClaimStage,
    /// Whether an earlier instance published its presence.
    doubt: bool,
    rival: Option<RivalAgent>,
}

/// Another agent that appears while this one works.
#[derive(Clone, Copy, Debug)]
struct RivalAgent {
    instance: Uuid,
    session: u64,
    /// How often it published its presence after an objection.
    spoken: u32,
    /// Whether this agent's objection has come back since.
    answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimStage {
    /// Subscribed and published; retained messages arrive before published ones.
    Asking { other: bool },
    /// Another agent was seen; it may still object.
    Claiming { until_ms: Millis },
    /// No objection has come; but an agent that receives nothing receives no objection either. Messages published
    /// before its own presence arrive before that.
    Confirming,
    /// Working.
    Sole,
}

impl ClaimState {
    /// Creates it for a new connection, on which `own` has published its presence. `former` are earlier instances,
    /// `wait_ms` is how long to wait for an objection.
    #[must_use]
    pub fn new(own: StoreLife, (epoch, session): (u64, u64), former: Vec<StoreLife>, wait_ms: Millis) -> Self {
        let stage = ClaimStage::Asking { other: false };
        Self { own, epoch, session, former, wait_ms, stage, doubt: false, rival: None }
    }

    /// Whether this agent works.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.stage == ClaimStage::Sole
    }

    /// Whether this presence is of an instance that came after the last one that this agent's disk knows, which had the
    /// epoch `last`: then the disk was restored from a copy that is older than that instance. A clone that worked
    /// meanwhile looks the same, and has done work that this disk does not know of, too.
    ///
    /// This agent's own epoch is no evidence: where the clock is behind, it may be lower than that of an earlier
    /// instance. So a twin that started later and has not worked is also taken for a later instance, if this agent does
    /// not work either.
    #[must_use]
    pub fn is_unknown_later_life(&self, presence: &Presence, last: u64) -> bool {
        let is_known = presence.instance == self.own.instance || self.former_life(presence).is_some();
        !self.is_sole() && !is_known && presence.epoch > last
    }

    /// Whether this agent waits for objections.
    #[must_use]
    pub fn is_claiming(&self) -> bool {
        matches!(self.stage, ClaimStage::Claiming { .. } | ClaimStage::Confirming)
    }

    /// Whether this agent works and the presence is of a twin that would.
    #[must_use]
    pub fn is_twin(&self, presence: &Presence) -> bool {
        self.is_sole() && presence.state == PresenceState::Online && presence.instance != self.own.instance
    }

    /// When to call [`ClaimState::tick`].
    #[must_use]
    pub fn next_ms(&self) -> Option<Millis> {
        match self.stage {
            ClaimStage::Claiming { until_ms } => Some(until_ms),
            ClaimStage::Asking { .. } | ClaimStage::Confirming | ClaimStage::Sole => None,
        }
    }

    /// Handles a message on the presence topic; `None` if it was empty or could not be parsed. `last_epoch` is that of the
    /// last instance that this agent's disk knows.
    pub fn observe(&mut self, presence: Option<&Presence>, last_epoch: u64, now_ms: Millis) -> PresenceVerdict {
        let mine = presence.is_some_and(|presence| {
            presence.instance == self.own.instance
                && presence.session == self.session
                && presence.state == PresenceState::Online
        });
        let other = presence.is_some_and(|presence| {
            presence.state == PresenceState::Online
                && presence.instance != self.own.instance
                && self.former_life(presence).is_none()
        });
        let hides = presence.is_some_and(|presence| self.may_hide_another(presence, last_epoch));
        // An earlier instance of this store publishes nothing more, except what was in transit. If it objects again,
        // it is alive, and this one is its copy.
        let original = presence
            .is_some_and(|presence| presence.state == PresenceState::Online && self.former_life(presence).is_some());
        if mine && let Some(rival) = &mut self.rival {
            rival.answered = true;
        }
        let yields = self.is_sole() && other && presence.is_some_and(|presence| self.yields_to(presence));
        match self.stage {
            ClaimStage::Sole if yields => PresenceVerdict::Withdraw,
            ClaimStage::Claiming { .. } | ClaimStage::Confirming | ClaimStage::Sole if original && self.doubt => {
                PresenceVerdict::Withdraw
            }
            ClaimStage::Claiming { .. } | ClaimStage::Confirming | ClaimStage::Sole if original => {
                self.doubt = true;
                PresenceVerdict::Assert
            }
            ClaimStage::Asking { other: true } if mine && !planted!(ClaimAtOnce) => {
                self.stage = ClaimStage::Claiming { until_ms: now_ms + self.wait_ms };
                PresenceVerdict::Claim
            }
            ClaimStage::Asking { .. } | ClaimStage::Confirming if mine => {
                self.stage = ClaimStage::Sole;
                PresenceVerdict::Settled
            }
            ClaimStage::Asking { other: before } => {
                // Later messages replace earlier ones: an instance may have gone offline before this one published.
                self.stage = ClaimStage::Asking { other: if presence.is_some() { other || hides } else { before } };
                PresenceVerdict::Ignore
            }
            ClaimStage::Claiming { .. } | ClaimStage::Confirming if other => PresenceVerdict::Withdraw,
            ClaimStage::Sole if other && planted!(YieldToTwin) => PresenceVerdict::Withdraw,
            ClaimStage::Sole if other && planted!(NeverObject) => PresenceVerdict::Ignore,
            ClaimStage::Sole if !other && !mine && planted!(LeaveOldWill) => PresenceVerdict::Ignore,
            ClaimStage::Claiming { .. } | ClaimStage::Sole if mine => PresenceVerdict::Ignore,
            ClaimStage::Claiming { .. } | ClaimStage::Confirming | ClaimStage::Sole => PresenceVerdict::Assert,
        }
    }

    /// Whether this was published on a topic that may have held another agent's presence before: by a newcomer of this
    /// store, or by an instance that is neither of this store nor the last one that its disk knows, as after a reboot.
    fn may_hide_another(&self, presence: &Presence, last_epoch: u64) -> bool {
        let is_its = |life: &&StoreLife| life.instance == presence.instance;
        match self.former.iter().chain([&self.own]).find(is_its) {
            Some(life) => life.is_newcomer,
            None => presence.epoch != last_epoch,
        }
    }

    fn former_life(&self, presence: &Presence) -> Option<&StoreLife> {
        self.former.iter().find(|life| life.instance == presence.instance)
    }

    /// Handles a presence of another agent while this one works; returns whether the other works too and has the older
    /// right.
    fn yields_to(&mut self, other: &Presence) -> bool {
        let (instance, session) = (other.instance, other.session);
        let is_same = |rival: &RivalAgent| (rival.instance, rival.session) == (instance, session);
        let spoken = match self.rival.filter(is_same) {
            Some(rival) => rival.spoken + u32::from(rival.answered),
            None => 0,
        };
        self.rival = Some(RivalAgent { instance, session, spoken, answered: false });
        spoken >= OBJECTIONS_MAX && (other.epoch, instance) < (self.epoch, self.own.instance)
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now_ms: Millis) -> PresenceVerdict {
        match self.stage {
            ClaimStage::Claiming { until_ms } if now_ms >= until_ms => {
                self.stage = ClaimStage::Confirming;
                PresenceVerdict::Assert
            }
            _ => PresenceVerdict::Ignore,
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
    const NEWCOMER_LIFE: Uuid = Uuid::from_u128(4);

    /// That of [`presence`], so none of these is later.
    const LAST_EPOCH: u64 = 7;

    fn life(instance: Uuid) -> StoreLife {
        StoreLife { instance, is_newcomer: instance == NEWCOMER_LIFE }
    }

    fn presence(instance: Uuid, session: u64, state: PresenceState) -> Presence {
        Presence {
            v: V1,
            state,
            instance,
            epoch: 7,
            session,
            protocol: muster_topics::PROTOCOL,
            agent_version: String::new(),
            capabilities: vec![],
            since_ms: 0,
        }
    }

    fn standing() -> ClaimState {
        ClaimState::new(life(ME), (7, 2), vec![life(FORMER)], 45_000)
    }

    /// Handles presences in order, then the agent's own; returns the state.
    #[track_caller]
    fn check(before: &[(Uuid, u64, PresenceState)], sole: bool) -> ClaimState {
        check_of(standing(), before, sole)
    }

    #[track_caller]
    fn check_of(mut standing: ClaimState, before: &[(Uuid, u64, PresenceState)], sole: bool) -> ClaimState {
        for (instance, session, state) in before {
            assert_eq!(
                standing.observe(Some(&presence(*instance, *session, *state)), LAST_EPOCH, 0),
                PresenceVerdict::Ignore
            );
        }
        let verdict = standing.observe(Some(&presence(ME, 2, Online)), LAST_EPOCH, 0);
        let wanted = if sole { PresenceVerdict::Settled } else { PresenceVerdict::Claim };
        assert_eq!((verdict, standing.is_sole()), (wanted, sole), "after {before:?}");
        standing
    }

    #[test]
    fn host_counts_as_offline_after_ten_seconds_or_goodbye() {
        use PresenceState::{Offline, Online, Stopped};
        const SINCE: Millis = 1_000_000;
        for (state, after_ms, is_away) in [
            (Online, 0, false),
            (Online, 3_600_000, false),
            (Offline, 0, false),
            (Offline, AWAY_AFTER_MS - 1, false),
            (Offline, AWAY_AFTER_MS, true),
            // The clock was set back.
            (Offline, -1, true),
            (Stopped, 0, true),
        ] {
            let since_ms = away_since_ms(Some((state, SINCE)), 5, SINCE + after_ms);
            assert_eq!(since_ms, is_away.then_some(SINCE), "{state:?} {after_ms}");
        }
        assert_eq!(away_since_ms(None, 5, 6), Some(5), "it never connected");
    }

    #[test]
    fn epochs_grow_and_differ_between_copies() {
        assert_eq!([epoch(5_000, None, 0.5), epoch(5_000, Some(4_999), 0.0), epoch(-1, None, 0.0)], [5_000, 5_000, 0]);
        let (one, other) = (epoch(1_000, Some(5_000), 0.25), epoch(1_000, Some(5_000), 0.75));
        assert!((5_001..=6_000).contains(&one) && (5_001..=6_000).contains(&other) && one != other, "{one} {other}");
        assert_eq!([epoch(0, Some(7), 0.0), epoch(0, Some(7), 1.0)], [8, 1_007]);
    }

    #[test]
    fn unknown_later_life_is_noticed() {
        for (instance, epoch, wanted) in [
            (TWIN, 6, true),
            // The last instance that this disk knows, from before a reboot.
            (TWIN, 5, false),
            (TWIN, 4, false),
            // With a clock that is behind, this epoch, 7, is one step after 5, and the unknown instance's step was
            // longer.
            (TWIN, 8, true),
            (FORMER, 6, false),
            (ME, 6, false),
        ] {
            let presence = Presence { epoch, ..presence(instance, 1, Offline) };
            assert_eq!(standing().is_unknown_later_life(&presence, 5), wanted, "{presence:?}");
        }
    }

    #[test]
    fn life_that_the_disk_does_not_know_is_told_from_an_old_one() {
        for (heard, known, wanted) in [
            // A first start, and others in their order.
            (&[5][..], &[5][..], None),
            (&[9, 7, 5], &[9, 7, 5], None),
            // One whose heartbeats were all lost.
            (&[9, 5], &[9, 7, 5], None),
            // The console remembers more than the disk, and a store that was lost begins anew.
            (&[9, 7, 5, 3], &[9, 7, 5], None),
            (&[9, 7], &[9], None),
            // Its disk was put back to that of 5; also if it has begun again since, and if it began with an earlier clock.
            (&[9, 7, 5], &[9, 5], Some(7)),
            (&[7, 5], &[10, 9, 5], Some(7)),
            (&[7, 5], &[6, 5], Some(7)),
            (&[12, 7, 5], &[9, 5], Some(12)),
        ] {
            assert_eq!(unknown_life(heard, known), wanted, "{heard:?} {known:?}");
        }
        assert_eq!(unknown_life(&[9], &[]), None);
    }

    #[test]
    fn last_lives_are_remembered() {
        let lives = (1..=LIVES_MAX as u64 + 3).fold(Vec::new(), |lives, epoch| with_life(&lives, epoch));
        assert_eq!((lives.len(), lives[0], lives.last()), (LIVES_MAX, 19, Some(&4)));
        assert_eq!(with_life(&lives, 19), lives);
        assert_eq!(with_life(&lives, 17)[..3], [17, 19, 18]);
    }

    #[test]
    fn only_instances_of_this_place_are_over() {
        let here = "boot 1:2";
        let text = format!(
            "{ME} {here}\n{TWIN} boot 1:3\nnonsense {here}\n{FORMER}\n{NEWCOMER_LIFE} {here} newcomer\n{FORMER} {here}\n"
        );
        let lives = [ME, NEWCOMER_LIFE, FORMER].map(life);
        assert_eq!(former(&text, here), lives);
        assert_eq!(former(&lines(&lives, here), here), lives);
        assert!(former("", here).is_empty());
    }

    #[test]
    fn host_without_twin_works_at_once() {
        check(&[], true);
        check(&[(ME, 1, Offline)], true);
        check(&[(ME, 1, Online)], true);
        check(&[(FORMER, 1, Online)], true);
        check(&[(TWIN, 1, Stopped)], true);
        check(&[(TWIN, 1, Online), (TWIN, 1, Offline)], true);
    }

    #[test]
    fn leftover_of_unknown_instance_causes_claim() {
        for (state, epoch, wanted) in [
            (Offline, LAST_EPOCH + 1, PresenceVerdict::Claim),
            (Stopped, LAST_EPOCH + 1, PresenceVerdict::Claim),
            (Offline, LAST_EPOCH - 1, PresenceVerdict::Claim),
            // The last instance before a reboot is over.
            (Offline, LAST_EPOCH, PresenceVerdict::Settled),
        ] {
            let mut standing = standing();
            let leftover = Presence { epoch, ..presence(TWIN, 1, state) };
            assert_eq!(standing.observe(Some(&leftover), LAST_EPOCH, 0), PresenceVerdict::Ignore);
            assert_eq!(standing.observe(Some(&presence(ME, 2, Online)), LAST_EPOCH, 0), wanted, "{leftover:?}");
        }
    }

    #[test]
    fn newcomer_waits_for_objections() {
        let mut claiming = check(&[(TWIN, 1, Online)], false);
        assert_eq!((claiming.tick(44_999), claiming.next_ms()), (PresenceVerdict::Ignore, Some(45_000)));
        assert_eq!(
            (claiming.tick(45_000), claiming.is_sole(), claiming.next_ms()),
            (PresenceVerdict::Assert, false, None)
        );
        let mut deaf = claiming.clone();
        assert_eq!(claiming.observe(Some(&presence(ME, 2, Online)), LAST_EPOCH, 45_001), PresenceVerdict::Settled);
        assert!(claiming.is_sole());
        // A message that arrived before its own presence was only late.
        assert_eq!(deaf.observe(Some(&presence(TWIN, 1, Online)), LAST_EPOCH, 90_000), PresenceVerdict::Withdraw);
        let mut claiming = check(&[(TWIN, 1, Online)], false);
        assert_eq!(claiming.observe(Some(&presence(TWIN, 1, Offline)), LAST_EPOCH, 5), PresenceVerdict::Assert);
        assert_eq!(claiming.observe(Some(&presence(TWIN, 1, Online)), LAST_EPOCH, 6), PresenceVerdict::Withdraw);
    }

    #[test]
    fn copy_withdraws_before_its_original() {
        let mut copy = check(&[(FORMER, 1, Online)], true);
        // The first message may have been in transit.
        for wanted in [PresenceVerdict::Assert, PresenceVerdict::Withdraw] {
            assert_eq!(copy.observe(Some(&presence(FORMER, 1, Online)), LAST_EPOCH, 0), wanted);
        }
        assert_eq!(
            check(&[], true).observe(Some(&presence(FORMER, 1, Offline)), LAST_EPOCH, 0),
            PresenceVerdict::Assert
        );
        // The original does not know it, and stays.
        let mut original = ClaimState::new(life(FORMER), (7, 1), vec![], 45_000);
        assert_eq!(original.observe(Some(&presence(FORMER, 1, Online)), LAST_EPOCH, 0), PresenceVerdict::Settled);
        let (twin, own) = (presence(ME, 2, Online), presence(FORMER, 1, Online));
        assert_eq!((original.is_twin(&twin), original.is_twin(&own)), (true, false));
        assert_eq!(original.observe(Some(&twin), LAST_EPOCH, 0), PresenceVerdict::Assert);
    }

    #[test]
    fn leftover_of_newcomer_causes_claim() {
        for state in [Online, Offline, Stopped] {
            let after = || ClaimState::new(life(ME), (7, 2), vec![life(NEWCOMER_LIFE), life(FORMER)], 45_000);
            check_of(after(), &[(NEWCOMER_LIFE, 1, state)], false);
            check_of(after(), &[(FORMER, 1, state)], true);
            check_of(after(), &[(ME, 1, state)], true);
        }
        // The same of this instance, before it worked.
        let heard = |is_newcomer| {
            let mut standing = ClaimState::new(StoreLife { instance: ME, is_newcomer }, (7, 2), vec![], 45_000);
            assert_eq!(standing.observe(Some(&presence(ME, 1, Offline)), LAST_EPOCH, 0), PresenceVerdict::Ignore);
            standing.observe(Some(&presence(ME, 2, Online)), LAST_EPOCH, 0)
        };
        assert_eq!([heard(false), heard(true)], [PresenceVerdict::Settled, PresenceVerdict::Claim]);
    }

    /// Two working agents; both receive all messages in one order.
    #[test]
    fn later_of_two_twins_leaves() {
        let of = |instance, epoch| Presence { epoch, ..presence(instance, 2, Online) };
        let sole = |instance, epoch| {
            let mut standing = ClaimState::new(life(instance), (epoch, 2), vec![], 45_000);
            assert_eq!(standing.observe(Some(&of(instance, epoch)), LAST_EPOCH, 0), PresenceVerdict::Settled);
            standing
        };
        for epochs in [[5, 6], [6, 5], [5, 5]] {
            let lives = [(ME, epochs[0]), (TWIN, epochs[1])];
            let mut both = lives.map(|(instance, epoch)| sole(instance, epoch));
            let mut withdrawn = vec![];
            for turn in 0..10 {
                let speaker = turn % 2;
                for (index, standing) in both.iter_mut().enumerate() {
                    let verdict = standing.observe(Some(&of(lives[speaker].0, lives[speaker].1)), LAST_EPOCH, 0);
                    assert_eq!(verdict == PresenceVerdict::Ignore, index == speaker);
                    if verdict == PresenceVerdict::Withdraw {
                        withdrawn.push((lives[index].0, turn));
                    }
                }
                if !withdrawn.is_empty() {
                    break;
                }
            }
            let later = if epochs[0] > epochs[1] { ME } else { TWIN };
            assert!(matches!(withdrawn[..], [(who, 5..=8)] if who == later), "{withdrawn:?}");
        }
        // An agent that connects repeatedly withdraws each time, and never counts as one that works.
        let mut standing = sole(TWIN, 9);
        for session in 1..20 {
            assert_eq!(standing.observe(Some(&presence(ME, session, Online)), LAST_EPOCH, 0), PresenceVerdict::Assert);
            assert_eq!(standing.observe(Some(&of(TWIN, 9)), LAST_EPOCH, 0), PresenceVerdict::Ignore);
        }
    }

    #[test]
    fn working_agent_objects_and_overwrites_stale_wills() {
        for (instance, session, state) in
            [(TWIN, 9, Online), (TWIN, 9, Stopped), (ME, 1, Offline), (ME, 2, Offline), (FORMER, 1, Offline)]
        {
            let mut sole = check(&[], true);
            assert_eq!(
                sole.observe(Some(&presence(instance, session, state)), LAST_EPOCH, 0),
                PresenceVerdict::Assert,
                "{state:?}"
            );
            assert_eq!(sole.observe(Some(&presence(ME, 2, Online)), LAST_EPOCH, 0), PresenceVerdict::Ignore);
        }
        assert_eq!(check(&[], true).observe(None, LAST_EPOCH, 0), PresenceVerdict::Assert);
    }

    /// Two agents on one topic; both receive all messages in one order.
    #[test]
    fn at_most_one_of_two_newcomers_works() {
        let mut agents = [(ME, standing()), (TWIN, ClaimState::new(life(TWIN), (7, 2), vec![life(FORMER)], 45_000))];
        let mut topic: std::collections::VecDeque<_> = [ME, TWIN].into();
        let mut withdrawn = vec![];
        while let Some(speaker) = topic.pop_front() {
            for (agent, standing) in &mut agents {
                match standing.observe(Some(&presence(speaker, 2, Online)), LAST_EPOCH, 0) {
                    PresenceVerdict::Assert => topic.push_back(*agent),
                    PresenceVerdict::Withdraw => withdrawn.push(*agent),
                    PresenceVerdict::Ignore | PresenceVerdict::Settled | PresenceVerdict::Claim => {}
                }
            }
        }
        assert_eq!((agents[0].1.is_sole(), withdrawn), (true, vec![TWIN]));
    }
}
