//! When units that are to go may go.
//!
//! A mistake in one document could remove all units of a fleet within seconds. So each host lets its units go slowly, by its own
//! policy, unless an operator removes one by name. The policy is for what is gone from the documents without being asked for:
//! an instance that was moved, a lowered count and a drained host go at once.

use std::collections::BTreeMap;

use muster_topics::{
    Millis,
    desired::RemovalTime,
    name::UnitName,
    unit::{Observed, Phase},
};

/// The time for which [`RemovalPolicy::day_share`] counts.
pub const DAY_MS: Millis = 24 * 3_600_000;

/// How a host lets units go that its document removes. What an operator removes by name goes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovalPolicy {
    /// How many units are stopped and removed at once; 0 removes none without an operator.
    pub parallel_max: u32,
    /// The share of the host's units that may go within 24 hours, from 0 to 1; at least one may, unless this is 0. The
    /// others wait until then, or until an operator removes them.
    pub day_share: f64,
}

impl Default for RemovalPolicy {
    fn default() -> Self {
        Self::of_share(0.25)
    }
}

impl RemovalPolicy {
    /// The policy by which this share of a host's units, from 0 to 1, may go in a day: whoever lets more of them go lets more of
    /// them go at once, one for each quarter.
    #[must_use]
    pub fn of_share(day_share: f64) -> Self {
        Self { parallel_max: (4.0 * day_share).ceil() as u32, day_share }
    }
}

/// A unit that is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingUnit {
    /// The unit.
    pub unit: UnitName,
    /// Since when it is to go.
    pub asked_ms: Millis,
    /// When its removal began, if it has.
    pub begun_ms: Option<Millis>,
    /// Whether an operator has removed it.
    pub is_approved: bool,
    /// Whether its document says that it goes at once.
    pub is_at_once: bool,
    /// Whether something keeps it from going without an operator: a hold, or a snapshot.
    pub is_kept: bool,
}

impl LeavingUnit {
    /// Whether it goes by the host's policy, which counts it.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !self.is_approved && !self.is_at_once
    }
}

/// A removal that the policy counts: one that began lately, and that it has let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastRemoval {
    /// When it began.
    pub at_ms: Millis,
    /// Whether the unit is still there.
    pub is_there: bool,
}

/// When a unit may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalTurn {
    /// Its removal has begun.
    Begun(Millis),
    /// Now; the policy lets it go since then.
    Now(Millis),
    /// At this time, or after others.
    From(Millis),
    /// When an operator removes it.
    Operator,
}

impl RemovalTurn {
    /// When the unit may go, for the host's report.
    #[must_use]
    pub fn time(self) -> RemovalTime {
        let from_ms = match self {
            Self::Begun(at_ms) | Self::Now(at_ms) | Self::From(at_ms) => Some(at_ms),
            Self::Operator => None,
        };
        RemovalTime { from_ms }
    }
}

/// Returns for each unit that is to go when it may. The host has `units` units now; `past` are removals of the last
/// [`DAY_MS`].
#[must_use]
pub fn turns(
    leaving: &[LeavingUnit],
    units: usize,
    past: &[PastRemoval],
    policy: &RemovalPolicy,
    now_ms: Millis,
) -> BTreeMap<UnitName, RemovalTurn> {
    // A clock that was set back must not stop removals for longer than a day.
    let recent = || past.iter().filter(|past| now_ms.saturating_sub(past.at_ms) < DAY_MS);
    let mut starts_ms: Vec<Millis> = recent().map(|past| past.at_ms.min(now_ms)).collect();
    starts_ms.sort_unstable();
    let gone = recent().filter(|past| !past.is_there).count();
    let quota = quota(units.saturating_add(gone), policy);
    let mut running = leaving.iter().filter(|leaving| leaving.begun_ms.is_some() && leaving.is_counted()).count();
    let mut waiting: Vec<&LeavingUnit> = leaving.iter().collect();
    waiting.sort_by_key(|leaving| (leaving.asked_ms, &leaving.unit));
    let mut turns = BTreeMap::new();
    for leaving in waiting {
        let turn = match leaving {
            LeavingUnit { begun_ms: Some(begun_ms), .. } => RemovalTurn::Begun(*begun_ms),
            LeavingUnit { is_approved: true, asked_ms, .. } => RemovalTurn::Now(*asked_ms),
            LeavingUnit { is_kept: true, .. } => RemovalTurn::Operator,
            LeavingUnit { is_at_once: true, asked_ms, .. } => RemovalTurn::Now(*asked_ms),
            LeavingUnit { asked_ms, .. } => match place_ms(&starts_ms, quota) {
                None => RemovalTurn::Operator,
                Some(place_ms) => {
                    let from_ms = place_ms.max(*asked_ms);
                    let is_now = from_ms <= now_ms && running < policy.parallel_max as usize;
                    // One that may go and waits for others begins now at the earliest. A whole hour, so that what is
                    // reported of those after it does not change all the time.
                    let start_ms = if is_now { now_ms } else { from_ms.max(whole_hour(now_ms)) };
                    starts_ms.push(start_ms);
                    running += usize::from(is_now);
                    if is_now { RemovalTurn::Now(from_ms) } else { RemovalTurn::From(from_ms) }
                }
            },
        };
        turns.insert(leaving.unit.clone(), turn);
    }
    turns
}

/// The next whole hour.
fn whole_hour(at_ms: Millis) -> Millis {
    const HOUR_MS: Millis = 3_600_000;
    at_ms.saturating_add(HOUR_MS - 1) / HOUR_MS * HOUR_MS
}

/// How many may go within a day.
fn quota(units: usize, policy: &RemovalPolicy) -> usize {
    if policy.day_share <= 0.0 || policy.parallel_max == 0 {
        return 0;
    }
    // A host has some hundred units.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the number of units")]
    let share = (units as f64 * policy.day_share.min(1.0)) as usize;
    share.max(1)
}

/// Returns from when another may begin after those of `starts_ms`, in their order; `None` if never.
fn place_ms(starts_ms: &[Millis], quota: usize) -> Option<Millis> {
    if quota == 0 {
        return None;
    }
    Some(match starts_ms.len().checked_sub(quota) {
        None => Millis::MIN,
        Some(before) => starts_ms.get(before).map_or(Millis::MAX, |at_ms| at_ms.saturating_add(DAY_MS)),
    })
}

/// Whether nothing of a stopped unit runs any more, so that it can go.
#[must_use]
pub fn has_stopped(observed: &Observed) -> bool {
    let ends = matches!(observed.phase(), Phase::Starting | Phase::Running | Phase::Playing | Phase::Stopping);
    !ends && observed.instance().pid.is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn leaving(n: usize) -> LeavingUnit {
        LeavingUnit {
            unit: format!("d/u{n:03}").parse().unwrap(),
            asked_ms: 1_000,
            begun_ms: None,
            is_approved: false,
            is_at_once: false,
            is_kept: false,
        }
    }

    fn in_order(leaving: &[LeavingUnit], units: usize, past: &[PastRemoval], now_ms: Millis) -> Vec<RemovalTurn> {
        turns(leaving, units, past, &RemovalPolicy::default(), now_ms).into_values().collect()
    }

    #[test]
    fn one_goes_at_once_and_a_quarter_in_a_day() {
        use RemovalTurn::{Begun, From, Now};
        let now_ms = 10 * DAY_MS;
        let mut all: Vec<LeavingUnit> = (0..4).map(leaving).collect();
        assert_eq!(
            in_order(&all, 8, &[], now_ms),
            [Now(1_000), From(1_000), From(now_ms + DAY_MS), From(now_ms + DAY_MS)]
        );
        all[0].begun_ms = Some(now_ms);
        let past = [PastRemoval { at_ms: now_ms, is_there: true }];
        assert_eq!(
            in_order(&all, 8, &past, now_ms + 5),
            [Begun(now_ms), From(1_000), From(now_ms + DAY_MS), From(whole_hour(now_ms + 5) + DAY_MS)]
        );
        // It has gone: the next one may, and the quarter is still that of eight.
        let gone = [PastRemoval { at_ms: now_ms, is_there: false }];
        assert_eq!(in_order(&all[1..], 7, &gone, now_ms + 5)[0], Now(1_000));
        let two = [gone[0], PastRemoval { at_ms: now_ms + 5, is_there: false }];
        assert_eq!(in_order(&all[2..], 6, &two, now_ms + 9)[0], From(now_ms + DAY_MS));
        assert_eq!(in_order(&all[2..], 8, &two, now_ms + DAY_MS)[0], Now(1_000));
        // The clock was ahead then.
        let ahead = [PastRemoval { at_ms: now_ms + 90 * DAY_MS, is_there: false }];
        assert_eq!(in_order(&all[1..2], 1, &ahead, now_ms)[0], From(now_ms + DAY_MS));
    }

    #[test]
    fn small_host_lets_one_go_a_day() {
        assert_eq!(in_order(&[leaving(0)], 1, &[], 5_000), [RemovalTurn::Now(1_000)]);
    }

    #[test]
    fn operator_goes_before_the_policy() {
        let policy = RemovalPolicy { day_share: 0.0, ..RemovalPolicy::default() };
        let mut all: Vec<LeavingUnit> = (0..3).map(leaving).collect();
        (all[1].is_approved, all[1].is_kept) = (true, true);
        let of = |policy: &RemovalPolicy| turns(&all, 3, &[], policy, 5_000).into_values().collect::<Vec<_>>();
        assert_eq!(of(&policy), [RemovalTurn::Operator, RemovalTurn::Now(1_000), RemovalTurn::Operator]);
        let none = RemovalPolicy { parallel_max: 0, ..RemovalPolicy::default() };
        assert_eq!(of(&none), [RemovalTurn::Operator, RemovalTurn::Now(1_000), RemovalTurn::Operator]);
        assert_eq!(RemovalTurn::Operator.time(), RemovalTime::default());
    }

    #[test]
    fn kept_unit_holds_no_other_back() {
        let mut all: Vec<LeavingUnit> = (0..2).map(leaving).collect();
        all[0].is_kept = true;
        assert_eq!(in_order(&all, 2, &[], 5_000), [RemovalTurn::Operator, RemovalTurn::Now(1_000)]);
    }

    #[test]
    fn what_is_asked_for_goes_at_once_and_counts_for_nothing() {
        use RemovalTurn::{Begun, Now, Operator};
        let policy = RemovalPolicy { day_share: 0.0, parallel_max: 0 };
        let mut all: Vec<LeavingUnit> = (0..4).map(leaving).collect();
        all[..3].iter_mut().for_each(|leaving| leaving.is_at_once = true);
        all[1].is_kept = true;
        // Neither the policy nor its number holds it back; what keeps a unit does.
        let turned: Vec<RemovalTurn> = turns(&all, 4, &[], &policy, 5_000).into_values().collect();
        assert_eq!(turned, [Now(1_000), Operator, Now(1_000), Operator]);
        // One of them is stopping: the one that the policy lets go does not wait for it.
        all[0].begun_ms = Some(4_000);
        assert_eq!(in_order(&all, 4, &[], 5_000), [Begun(4_000), Operator, Now(1_000), Now(1_000)]);
    }

    proptest! {
        /// A host that follows the turns never has more than its policy allows, in any 24 hours.
        #[test]
        fn pace_is_kept(count in 1..40usize, parallel_max in 1..4u32, share in 0.01..1.0f64, step_h in 1..30i64) {
            let policy = RemovalPolicy { parallel_max, day_share: share };
            let mut left: Vec<LeavingUnit> = (0..count).map(leaving).collect();
            let (mut past, mut now_ms, mut starts) = (Vec::<PastRemoval>::new(), 1_000, Vec::new());
            for _ in 0..3_000 {
                past.retain(|past| now_ms - past.at_ms < DAY_MS);
                let turns = turns(&left, left.len(), &past, &policy, now_ms);
                let begin: Vec<UnitName> = turns
                    .into_iter()
                    .filter(|(_, turn)| matches!(turn, RemovalTurn::Now(_)))
                    .map(|(unit, _)| unit)
                    .collect();
                prop_assert!(begin.len() <= parallel_max as usize);
                starts.extend(begin.iter().map(|_| now_ms));
                left.retain(|leaving| !begin.contains(&leaving.unit));
                past.extend(begin.iter().map(|_| PastRemoval { at_ms: now_ms, is_there: false }));
                now_ms += step_h * 3_600_000;
            }
            prop_assert!(left.is_empty(), "all go in the end");
            let max = quota(count, &policy);
            for (index, start) in starts.iter().enumerate() {
                let within = starts[index..].iter().filter(|other| *other - start < DAY_MS).count();
                prop_assert!(within <= max, "{within} of {max}");
            }
        }
    }
}
