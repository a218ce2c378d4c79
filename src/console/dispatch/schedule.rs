//! When which command goes out to which host: a plain state machine, to which times come as
//! parameters.
//!
//! A command goes out at once to each host that is online, and again 5 s × 2ⁿ later, until it is
//! settled or expires. A broadcast goes out once for all, and then in the same way to each that has not settled it, for
//! the first time after 5 s or half of the time that it has. A host that is away gets it when it comes back; then, as on
//! each new connection to the broker, the count begins anew, for what was sent before may well be lost.
//!
//! **Invariant: a host that is not online is sent nothing.**
//!
//! **Invariant: nothing goes out after its expiry.** Some seconds later, for answers that are on the
//! way, hosts without a word are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use muster_topics::{
    Millis,
    name::{CommandId, HostId},
    topic::Topic,
};

use crate::{console::store::command::Open, fault::planted};

/// The first repetition comes after this; each later one after twice as long.
const RESEND_MS: Millis = 5_000;
/// How long after its expiry an answer is waited for: twice the longest throttle of an agent.
const ANSWER_MS: Millis = 10_000;
/// How soon a message that found no room on the link is tried again.
const NO_ROOM_MS: Millis = 250;

/// Something to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Publish once, for all that read there.
    Broadcast(CommandId, Topic),
    /// Publish to one host.
    Send(CommandId, HostId),
    /// Note that these hosts have said nothing.
    Miss(CommandId, Vec<HostId>),
}

/// One host's part in a command.
#[derive(Debug, Default)]
struct Attempt {
    /// How often it went out since the host came, or we did.
    sent: u32,
    /// When it goes out next, if it does.
    next_ms: Option<Millis>,
    /// Whether the host has said that it has it.
    answered: bool,
}

#[derive(Debug)]
struct Entry {
    expires_ms: Millis,
    hosts: HashMap<HostId, Attempt>,
}

/// All open commands, and who is online.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    commands: BTreeMap<CommandId, Entry>,
    online: HashSet<HostId>,
    /// What comes when: of a host, the next time that a command goes out; without one, the command's end.
    timers: BTreeSet<(Millis, CommandId, Option<HostId>)>,
    /// What the clock showed last.
    looked_ms: Millis,
}

/// How long after it went out for the `sent`th time, counted from 1, a command goes out again.
fn pause_ms(sent: u32) -> Millis {
    // A week has 17 doublings of 5 s; beyond 20 nothing changes.
    RESEND_MS << sent.saturating_sub(1).min(20)
}

impl Schedule {
    /// Begins with what the store holds: who is online, and which commands are open.
    pub(crate) fn load(online: Vec<HostId>, open: Vec<Open>, now: Millis) -> Self {
        let mut schedule = Self::default();
        for host in online {
            schedule.presence(host, true, now);
        }
        for open in open {
            // Each for itself: whether the broadcast went out before the last stop is not known.
            schedule.open(open, None, now);
        }
        schedule
    }

    /// How many commands are open.
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Takes a command in. A broadcast goes out in one message now, and counts as sent. It does so if none of its hosts
    /// is online, too: another may be that is meant by what it is now.
    pub(crate) fn open(&mut self, open: Open, broadcast: Option<Topic>, now: Millis) -> Option<Action> {
        let Open { id, expires_ms, hosts } = open;
        // One that was submitted while the open ones were being read from the store comes twice.
        if self.commands.contains_key(&id) {
            return None;
        }
        self.timers.insert((expires_ms.saturating_add(ANSWER_MS), id, None));
        let attempt = |answered| Attempt { sent: u32::from(broadcast.is_some()), answered, next_ms: None };
        let hosts: HashMap<_, _> = hosts.into_iter().map(|(host, answered)| (host, attempt(answered))).collect();
        let online: Vec<_> = hosts.keys().filter(|host| self.online.contains(host)).copied().collect();
        self.commands.insert(id, Entry { expires_ms, hosts });
        // To each alone while there is still time: one that is not meant any more answers that, and no broadcast.
        let alone_ms = now + pause_ms(1).min(expires_ms.saturating_sub(now) / 2);
        let first_ms = if broadcast.is_some() { alone_ms } else { now };
        for host in &online {
            self.plan(id, *host, first_ms);
        }
        broadcast.map(|topic| Action::Broadcast(id, topic))
    }

    /// A host has said that it has a command. It still owes the outcome.
    pub(crate) fn answered(&mut self, command: CommandId, host: HostId) {
        let entry = self.commands.get_mut(&command);
        if let Some(attempt) = entry.and_then(|entry| entry.hosts.get_mut(&host)) {
            attempt.answered = true;
        }
    }

    /// A host is done with a command.
    pub(crate) fn settled(&mut self, command: CommandId, host: HostId) {
        let Some(entry) = self.commands.get_mut(&command) else { return };
        if let Some(next_ms) = entry.hosts.remove(&host).and_then(|attempt| attempt.next_ms) {
            self.timers.remove(&(next_ms, command, Some(host)));
        }
        if entry.hosts.is_empty() {
            let end = entry.expires_ms.saturating_add(ANSWER_MS);
            self.timers.remove(&(end, command, None));
            self.commands.remove(&command);
        }
    }

    /// A host is a member no more: it is sent nothing, and owes nothing.
    pub(crate) fn leave(&mut self, host: HostId) {
        self.online.remove(&host);
        let theirs = self.commands.iter().filter(|(_, entry)| entry.hosts.contains_key(&host));
        for command in theirs.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.settled(command, host);
        }
    }

    /// A host came or went.
    pub(crate) fn presence(&mut self, host: HostId, online: bool, now: Millis) {
        if online {
            self.online.insert(host);
        } else {
            self.online.remove(&host);
        }
        let theirs = self.commands.iter().filter(|(_, entry)| entry.hosts.contains_key(&host));
        for command in theirs.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.unplan(command, host);
            if online && !planted!(ForgetReturned) {
                self.begin_anew(command, host, now);
            }
        }
    }

    /// There is a new connection to the broker: what is open goes out again.
    pub(crate) fn connected(&mut self, now: Millis) {
        for host in self.online.clone() {
            self.presence(host, true, now);
        }
    }

    /// The link had no room for a message of [`Action::Send`].
    pub(crate) fn no_room(&mut self, command: CommandId, host: HostId, now: Millis) {
        let attempt = self.commands.get_mut(&command).and_then(|entry| entry.hosts.get_mut(&host));
        if let Some(attempt) = attempt {
            attempt.sent = attempt.sent.saturating_sub(1);
            self.unplan(command, host);
            self.plan(command, host, now + NO_ROOM_MS);
        }
    }

    /// When there is something to be done next.
    pub(crate) fn next_ms(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _, _)| *at)
    }

    /// Everything that is to be done by now. It counts as done.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<Action> {
        // The clock was set back: what was planned by it would come too late. (A clock that only drifts is let be.)
        if now + RESEND_MS < self.looked_ms {
            self.connected(now);
        }
        self.looked_ms = now;
        let mut actions = Vec::new();
        while let Some((at, command, host)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, command, host));
            match host {
                Some(host) => actions.extend(self.send(command, host, now)),
                None => actions.extend(self.end(command)),
            }
        }
        actions
    }

    fn send(&mut self, command: CommandId, host: HostId, now: Millis) -> Option<Action> {
        let entry = self.commands.get_mut(&command)?;
        let attempt = entry.hosts.get_mut(&host)?;
        attempt.next_ms = None;
        if now > entry.expires_ms && !planted!(SendExpired) {
            return None;
        }
        attempt.sent = attempt.sent.saturating_add(1);
        let again_ms = now + pause_ms(attempt.sent);
        if !planted!(SendOnce) {
            self.plan(command, host, again_ms);
        }
        Some(Action::Send(command, host))
    }

    fn end(&mut self, command: CommandId) -> Option<Action> {
        let entry = self.commands.remove(&command)?;
        for (host, attempt) in &entry.hosts {
            if let Some(next_ms) = attempt.next_ms {
                self.timers.remove(&(next_ms, command, Some(*host)));
            }
        }
        let mut silent: Vec<_> =
            entry.hosts.into_iter().filter(|(_, attempt)| !attempt.answered).map(|(host, _)| host).collect();
        silent.sort();
        (!silent.is_empty()).then_some(Action::Miss(command, silent))
    }

    fn begin_anew(&mut self, command: CommandId, host: HostId, now: Millis) {
        let attempt = self.commands.get_mut(&command).and_then(|entry| entry.hosts.get_mut(&host));
        if let Some(attempt) = attempt {
            attempt.sent = 0;
            self.plan(command, host, now);
        }
    }

    /// Sets a host's timer, unless that would be after the end.
    fn plan(&mut self, command: CommandId, host: HostId, at: Millis) {
        let Some(entry) = self.commands.get_mut(&command) else { return };
        let end = entry.expires_ms;
        let Some(attempt) = entry.hosts.get_mut(&host).filter(|_| at <= end || planted!(SendExpired)) else { return };
        attempt.next_ms = Some(at);
        self.timers.insert((at, command, Some(host)));
    }

    fn unplan(&mut self, command: CommandId, host: HostId) {
        let attempt = self.commands.get_mut(&command).and_then(|entry| entry.hosts.get_mut(&host));
        if let Some(at) = attempt.and_then(|attempt| attempt.next_ms.take()) {
            self.timers.remove(&(at, command, Some(host)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Millis = 60_000;

    struct Fixture {
        schedule: Schedule,
        command: CommandId,
        hosts: Vec<HostId>,
    }

    impl Fixture {
        /// One command for `count` hosts, issued at 0, which expires in ten minutes. None is online.
        fn new(count: usize, broadcast: bool, online: &[usize]) -> (Self, Option<Action>) {
            let hosts: Vec<_> = (0..count).map(|_| HostId::random()).collect();
            let mut schedule = Schedule::default();
            for index in online {
                schedule.presence(hosts[*index], true, 0);
            }
            let command = CommandId::new();
            let wanted = hosts.iter().map(|host| (*host, false)).collect();
            let topic = broadcast.then_some(Topic::CommandAll);
            let action = schedule.open(Open { id: command, expires_ms: 10 * MINUTE, hosts: wanted }, topic, 0);
            (Self { schedule, command, hosts }, action)
        }

        /// When the first host is sent the command, until `until`.
        fn times(&mut self, until: Millis) -> Vec<Millis> {
            let mut times = Vec::new();
            while let Some(at) = self.schedule.next_ms().filter(|at| *at <= until) {
                let sends = self.schedule.due(at).into_iter().filter(|action| matches!(action, Action::Send(..)));
                times.extend(sends.map(|_| at));
            }
            times
        }
    }

    #[test]
    fn it_goes_out_again_at_doubling_times_until_it_expires() {
        let (mut one, action) = Fixture::new(1, false, &[0]);
        assert_eq!(action, None);
        assert_eq!(one.times(20 * MINUTE), [0, 5_000, 15_000, 35_000, 75_000, 155_000, 315_000]);
        assert_eq!((one.schedule.len(), one.schedule.next_ms()), (0, None));
    }

    #[test]
    fn a_host_that_is_a_member_no_more_is_sent_nothing_and_not_waited_for() {
        let (mut two, _) = Fixture::new(2, false, &[0, 1]);
        two.schedule.leave(two.hosts[0]);
        assert_eq!(two.schedule.due(0), [Action::Send(two.command, two.hosts[1])]);
        two.schedule.leave(two.hosts[1]);
        assert_eq!((two.schedule.len(), two.schedule.next_ms()), (0, None));
    }

    #[test]
    fn the_silent_are_missing_some_time_after_the_expiry() {
        let (mut one, _) = Fixture::new(2, false, &[0]);
        one.schedule.answered(one.command, one.hosts[1]);
        one.schedule.due(10 * MINUTE);
        assert_eq!(one.schedule.due(10 * MINUTE + ANSWER_MS - 1), []);
        let missing = Action::Miss(one.command, vec![one.hosts[0]]);
        assert_eq!(one.schedule.due(10 * MINUTE + ANSWER_MS), [missing]);
        assert_eq!(one.schedule.next_ms(), None);
    }

    #[test]
    fn who_is_away_gets_it_when_it_comes() {
        let (mut one, _) = Fixture::new(1, false, &[]);
        assert!(one.times(MINUTE).is_empty());
        one.schedule.presence(one.hosts[0], true, 70_000);
        assert_eq!(one.times(80_000), [70_000, 75_000]);
        one.schedule.presence(one.hosts[0], false, 80_000);
        assert!(one.times(3 * MINUTE).is_empty());
        one.schedule.presence(one.hosts[0], true, 3 * MINUTE);
        assert_eq!(one.times(3 * MINUTE + 5_000), [3 * MINUTE, 3 * MINUTE + 5_000]);
    }

    #[test]
    fn a_new_connection_begins_anew() {
        let (mut one, _) = Fixture::new(1, false, &[0]);
        assert_eq!(one.times(20_000), [0, 5_000, 15_000]);
        one.schedule.connected(21_000);
        assert_eq!(one.times(30_000), [21_000, 26_000]);
    }

    #[test]
    fn a_clock_that_is_set_back_delays_nothing() {
        let (mut one, _) = Fixture::new(1, false, &[0]);
        assert_eq!(one.times(5_000), [0, 5_000]);
        let sent = Action::Send(one.command, one.hosts[0]);
        assert_eq!(one.schedule.due(-3_600_000), [sent]);
        assert_eq!(one.schedule.next_ms(), Some(-3_595_000));
    }

    #[test]
    fn what_is_settled_is_over() {
        let (mut one, _) = Fixture::new(2, false, &[0, 1]);
        one.schedule.due(0);
        one.schedule.settled(one.command, one.hosts[0]);
        one.schedule.settled(one.command, one.hosts[0]);
        assert_eq!(one.schedule.due(5_000), [Action::Send(one.command, one.hosts[1])]);
        one.schedule.settled(one.command, one.hosts[1]);
        assert_eq!((one.schedule.len(), one.schedule.next_ms()), (0, None));
    }

    #[test]
    fn a_broadcast_is_one_message_and_then_each_for_itself() {
        let (mut one, action) = Fixture::new(3, true, &[0, 1]);
        assert_eq!(action, Some(Action::Broadcast(one.command, Topic::CommandAll)));
        assert_eq!(one.schedule.due(4_999), []);
        one.schedule.settled(one.command, one.hosts[1]);
        assert_eq!(one.schedule.due(5_000), [Action::Send(one.command, one.hosts[0])]);
        one.schedule.presence(one.hosts[2], true, 6_000);
        assert_eq!(one.schedule.due(6_000), [Action::Send(one.command, one.hosts[2])]);
        // Nobody is known to be there: who is meant all the same hears it, and the others get it when they come.
        let (mut none_online, action) = Fixture::new(3, true, &[]);
        assert_eq!(action, Some(Action::Broadcast(none_online.command, Topic::CommandAll)));
        assert!(none_online.times(MINUTE).is_empty());
    }

    #[test]
    fn a_broadcast_goes_to_each_alone_before_it_expires() {
        let (mut schedule, host, id) = (Schedule::default(), HostId::random(), CommandId::new());
        schedule.presence(host, true, 0);
        let open = Open { id, expires_ms: 1_000, hosts: vec![(host, false)] };
        schedule.open(open, Some(Topic::CommandAll), 0);
        assert_eq!((schedule.due(499), schedule.due(500)), (vec![], vec![Action::Send(id, host)]));
    }

    #[test]
    fn no_room_is_tried_again_soon_and_does_not_count() {
        let (mut one, _) = Fixture::new(1, false, &[0]);
        one.schedule.due(0);
        one.schedule.no_room(one.command, one.hosts[0], 0);
        assert_eq!(one.times(6_000), [NO_ROOM_MS, NO_ROOM_MS + 5_000]);
    }

    proptest! {
        /// Whatever happens in whatever order, nothing is sent to who is away, or is done, or too late,
        /// and in the end nothing is left.
        #[test]
        fn invariants(steps in proptest::collection::vec((0..4u8, 0..3usize, 0..40_000i64), 0..60)) {
            let (mut one, _) = Fixture::new(3, false, &[]);
            let (mut online, mut done, mut now) = ([false; 3], [false; 3], 0);
            for (what, host, pause) in steps {
                now += pause;
                for action in one.schedule.due(now) {
                    match action {
                        Action::Send(_, id) => {
                            let index = one.hosts.iter().position(|host| *host == id).unwrap();
                            prop_assert!(online[index] && !done[index] && now <= 10 * MINUTE);
                        }
                        Action::Miss(_, silent) => {
                            prop_assert!(now > 10 * MINUTE);
                            prop_assert!(silent.iter().all(|id| !done[one.hosts.iter().position(|host| host == id).unwrap()]));
                        }
                        Action::Broadcast(..) => prop_assert!(false),
                    }
                }
                match what {
                    0 => { online[host] = true; one.schedule.presence(one.hosts[host], true, now) }
                    1 => { online[host] = false; one.schedule.presence(one.hosts[host], false, now) }
                    2 => { done[host] = true; one.schedule.settled(one.command, one.hosts[host]) }
                    _ => one.schedule.connected(now),
                }
            }
            one.schedule.due(11 * MINUTE + now);
            prop_assert_eq!((one.schedule.len(), one.schedule.next_ms()), (0, None));
        }
    }
}
