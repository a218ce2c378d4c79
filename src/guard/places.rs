//! The places of a listener, and which connection gives way when they are full. Time is a parameter; nothing here waits.
//!
//! A connection has a place as long as it can be asked to give way: in a broker until its client has authenticated, in
//! an HTTP server until it ends. A connection that we wait for can be asked, the longer the sooner; one that waits for us cannot, so
//! that of many honest clients that come at once none loses its progress. The others wait for a place instead, which is
//! short: every connection with a place is soon done, or waited for.

use std::{
    cmp::Reverse,
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::origin::Origin;

/// The limits of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceLimits {
    /// The total number.
    pub places: usize,
    /// The share of one origin, above which its own connections replace each other although there are free places; with
    /// a recent login only when there are none. It limits the memory that one stranger takes.
    pub share: usize,
    /// The most places of one origin, whatever its connections do; `usize::MAX` where they are soon released anyway.
    pub origin_max: usize,
    /// How long a connection that has begun to send is protected from being closed for another.
    pub grace: Duration,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionActivity {
    /// It has sent nothing.
    Silent,
    /// It has received all its answers.
    Idle,
    /// It has begun to send: a handshake, the head of a request, a packet.
    Opening,
    /// It waits for us.
    Working,
}

/// The decision about an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It gets the place of this number.
    Admit(u64),
    /// The same, and the connection of the place `evicted` has to end.
    Evict {
        /// The number of its place.
        admitted: u64,
        /// The number of the lost place.
        evicted: u64,
    },
    /// It has to end at once: there are too many of its origin.
    Refuse,
    /// All are working. It is to be offered again when a place is released, and at this time at the latest.
    Wait(Instant),
}

/// How long until waiting connections are checked again, if no time is known.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
struct TakenPlace {
    origin: Origin,
    activity: ConnectionActivity,
    /// Since when it does that.
    since: Instant,
}

/// The table of places.
#[derive(Debug)]
pub struct ConnectionPlaces {
    limits: PlaceLimits,
    next: u64,
    taken: HashMap<u64, TakenPlace>,
    per_origin: HashMap<Origin, usize>,
}

impl ConnectionPlaces {
    /// Creates it with all places free.
    #[must_use]
    pub fn new(limits: PlaceLimits) -> Self {
        Self { limits, next: 0, taken: HashMap::new(), per_origin: HashMap::new() }
    }

    /// Returns how many are taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether all are free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn of(&self, origin: Origin) -> usize {
        self.per_origin.get(&origin).copied().unwrap_or_default()
    }

    /// Decides about an accepted connection. `is_preferred` is whether an origin had a recent login.
    pub fn offer(
        &mut self,
        now: Instant,
        origin: Origin,
        activity: ConnectionActivity,
        is_preferred: impl Fn(Origin) -> bool,
    ) -> Admission {
        let limits = self.limits;
        let own = self.of(origin);
        let is_full = self.taken.len() >= limits.places;
        // Above its share an origin gets a place of its own connections.
        let among_own = own >= limits.origin_max || (own >= limits.share && !is_full && !is_preferred(origin));
        if is_full || among_own {
            if let Some(evicted) = self.victim(now, among_own.then_some(origin), &is_preferred) {
                self.leave(evicted);
                return Admission::Evict { admitted: self.take(now, origin, activity), evicted };
            }
            if own >= limits.origin_max {
                return Admission::Refuse;
            }
            if is_full {
                return Admission::Wait(self.next_ripe(now));
            }
        }
        Admission::Admit(self.take(now, origin, activity))
    }

    fn take(&mut self, now: Instant, origin: Origin, activity: ConnectionActivity) -> u64 {
        let number = self.next;
        self.next += 1;
        self.taken.insert(number, TakenPlace { origin, activity, since: now });
        *self.per_origin.entry(origin).or_default() += 1;
        number
    }

    /// Returns when the place's connection may be closed for another; never while it waits for us.
    fn ripe_at(&self, taken: &TakenPlace) -> Option<Instant> {
        match taken.activity {
            ConnectionActivity::Silent | ConnectionActivity::Idle => Some(taken.since),
            ConnectionActivity::Opening => Some(taken.since + self.limits.grace),
            ConnectionActivity::Working => None,
        }
    }

    /// Chooses the connection to close: silent ones before others; then those without a recent login or with many
    /// connections; then the origin with the most; then the oldest.
    fn victim(&self, now: Instant, among: Option<Origin>, is_preferred: impl Fn(Origin) -> bool) -> Option<u64> {
        let ripe = self.taken.iter().filter(|(_, taken)| {
            among.is_none_or(|origin| origin == taken.origin) && self.ripe_at(taken).is_some_and(|at| at <= now)
        });
        let order = |number: u64, taken: &TakenPlace| {
            let count = self.of(taken.origin);
            let is_favoured = count <= self.limits.share && is_preferred(taken.origin);
            (taken.activity, is_favoured, Reverse(count), number)
        };
        ripe.min_by_key(|(number, taken)| order(**number, taken)).map(|(number, _)| *number)
    }

    fn next_ripe(&self, now: Instant) -> Instant {
        let next = self.taken.values().filter_map(|taken| self.ripe_at(taken)).min();
        // Some time passes in any case, so that there is no busy loop.
        next.unwrap_or(now + LOOK_AGAIN).clamp(now + Duration::from_millis(1), now + LOOK_AGAIN)
    }

    /// Sets what a connection does. A released place is ignored.
    pub fn set(&mut self, number: u64, activity: ConnectionActivity, since: Instant) {
        if let Some(taken) = self.taken.get_mut(&number) {
            (taken.activity, taken.since) = (activity, since);
        }
    }

    /// Releases a place.
    pub fn leave(&mut self, number: u64) {
        let Some(taken) = self.taken.remove(&number) else { return };
        if let Some(count) = self.per_origin.get_mut(&taken.origin) {
            *count -= 1;
            if *count == 0 {
                self.per_origin.remove(&taken.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: PlaceLimits =
        PlaceLimits { places: 6, share: 3, origin_max: usize::MAX, grace: Duration::from_secs(3) };

    fn origin(last: u8) -> Origin {
        Origin::of([192, 0, 2, last].into())
    }

    /// Places, with a time that advances by a second with each offer.
    struct Case {
        places: ConnectionPlaces,
        now: Instant,
        preferred: Vec<u8>,
    }

    impl Case {
        fn new(limits: PlaceLimits) -> Self {
            Self { places: ConnectionPlaces::new(limits), now: Instant::now(), preferred: Vec::new() }
        }

        fn offer(&mut self, from: u8, activity: ConnectionActivity) -> Admission {
            self.now += Duration::from_secs(1);
            let preferred = &self.preferred;
            self.places.offer(self.now, origin(from), activity, |one| preferred.iter().any(|last| origin(*last) == one))
        }

        #[track_caller]
        fn admit(&mut self, from: u8, activity: ConnectionActivity) -> u64 {
            match self.offer(from, activity) {
                Admission::Admit(number) => number,
                other => panic!("{other:?}"),
            }
        }

        #[track_caller]
        fn evicts(&mut self, from: u8, activity: ConnectionActivity, expected: u64) -> u64 {
            match self.offer(from, activity) {
                Admission::Evict { admitted, evicted } if evicted == expected => admitted,
                other => panic!("{other:?} instead of {expected}"),
            }
        }
    }

    use ConnectionActivity::{Idle, Opening, Silent, Working};

    #[test]
    fn oldest_silent_connection_gives_way_when_places_run_out() {
        let mut case = Case::new(LIMITS);
        let speaking = case.admit(1, Opening);
        let silent: Vec<_> = (2..7).map(|from| case.admit(from, Silent)).collect();
        case.evicts(9, Opening, silent[0]);
        case.evicts(9, Opening, silent[1]);
        for one in &silent[2..] {
            case.places.set(*one, Working, case.now);
        }
        case.evicts(8, Opening, speaking);
    }

    #[test]
    fn silent_goes_before_idle_and_idle_before_opening() {
        let mut case = Case::new(LIMITS);
        let (opening, idle, silent) = (case.admit(1, Opening), case.admit(2, Idle), case.admit(3, Silent));
        for from in 4..7 {
            case.admit(from, Working);
        }
        case.evicts(7, Working, silent);
        case.evicts(8, Working, idle);
        case.evicts(9, Working, opening);
        assert!(matches!(case.offer(10, Opening), Admission::Wait(_)));
    }

    #[test]
    fn connection_that_waits_for_us_never_gives_way() {
        let mut case = Case::new(LIMITS);
        let numbers: Vec<_> = (1..7).map(|from| case.admit(from, Working)).collect();
        let Admission::Wait(until) = case.offer(9, Opening) else { panic!() };
        assert!(until > case.now && until <= case.now + LOOK_AGAIN);
        case.places.leave(numbers[3]);
        case.admit(9, Opening);
    }

    #[test]
    fn connection_that_speaks_has_its_grace() {
        let mut case = Case::new(LIMITS);
        for from in 1..6 {
            case.admit(from, Working);
        }
        let opening = case.admit(6, Opening);
        assert!(matches!(case.offer(7, Opening), Admission::Wait(_)), "after 1 s");
        case.now += Duration::from_secs(1);
        case.evicts(7, Opening, opening);
    }

    #[test]
    fn origin_above_its_share_gives_way_to_itself() {
        let mut case = Case::new(LIMITS);
        let first = case.admit(1, Silent);
        case.admit(1, Silent);
        case.admit(1, Silent);
        case.evicts(1, Silent, first);
        // An origin with a recent login may have many.
        case.preferred.push(2);
        for _ in 0..3 {
            case.admit(2, Silent);
        }
        assert_eq!(case.places.len(), 6);
    }

    #[test]
    fn honest_crowd_of_one_address_has_all_places() {
        let mut case = Case::new(LIMITS);
        for _ in 0..6 {
            case.admit(1, Working);
        }
        assert!(matches!(case.offer(1, Working), Admission::Wait(_)));
    }

    #[test]
    fn recent_login_protects_few_connections_and_not_many() {
        let mut case = Case::new(LIMITS);
        case.preferred.extend([1, 2]);
        let few = case.admit(1, Opening);
        let many: Vec<_> = (0..4).map(|_| case.admit(2, Opening)).collect();
        let stranger = case.admit(3, Opening);
        case.now += LIMITS.grace;
        // 2 has more than its share, and the most.
        case.evicts(4, Opening, many[0]);
        case.places.leave(many[1]);
        case.admit(5, Opening);
        case.now += LIMITS.grace;
        case.evicts(4, Working, stranger);
        assert!(case.places.taken.contains_key(&few));
    }

    #[test]
    fn origin_has_no_more_than_its_most() {
        let mut case = Case::new(PlaceLimits { origin_max: 4, ..LIMITS });
        case.preferred.push(1);
        for _ in 0..4 {
            case.admit(1, Working);
        }
        assert_eq!(case.offer(1, Opening), Admission::Refuse);
        let other = case.admit(2, Working);
        case.places.leave(other);
        case.places.set(2, Idle, case.now);
        case.evicts(1, Opening, 2);
    }

    proptest! {
        /// In any sequence the bounds hold, counts are exact, and connections that wait for us stay.
        #[test]
        fn bounds_hold(steps in prop::collection::vec((0_u8..8, 0_u8..4, 0_u8..4), 1..300)) {
            let limits = PlaceLimits { places: 6, share: 2, origin_max: 5, grace: Duration::from_secs(3) };
            let mut case = Case::new(limits);
            case.preferred.extend([0, 1]);
            let activities = [Silent, Idle, Opening, Working];
            for (step, from, activity) in steps {
                let activity = activities[usize::from(activity)];
                let working: Vec<_> =
                    case.places.taken.iter().filter(|(_, one)| one.activity == Working).map(|(number, _)| *number).collect();
                match step {
                    0..=4 => {
                        case.offer(from, activity);
                        prop_assert!(working.iter().all(|number| case.places.taken.contains_key(number)));
                    }
                    5 => {
                        let one = case.places.taken.keys().min().copied();
                        one.into_iter().for_each(|number| case.places.set(number, activity, case.now));
                    }
                    _ => {
                        let one = case.places.taken.keys().max().copied();
                        one.into_iter().for_each(|number| case.places.leave(number));
                    }
                }
                prop_assert!(case.places.len() <= limits.places);
                prop_assert_eq!(case.places.per_origin.values().sum::<usize>(), case.places.len());
                prop_assert!(case.places.per_origin.values().all(|count| (1..=limits.origin_max).contains(count)));
            }
        }
    }
}
