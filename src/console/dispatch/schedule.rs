//! Decides when a command is sent to which host: a plain state machine that gets the time as a
//! parameter.
//!
//! A command is sent at once to each online host that has room for it, and again after 5 s × 2ⁿ, until it is
//! settled or expires. A broadcast is sent once for all, and then in the same way to each host that has not settled it, for
//! the first time after 5 s or half of the time that is left. An offline host gets its open commands when it
//! returns; then, as on each new connection to the broker, the back-off begins anew, because earlier messages may be lost.
//!
//! Each host has a window: a limited number of commands, and of bytes, may be unanswered, and a limited number of
//! programs may be without an outcome. The rest waits in the order in which it was issued. Cancellations
//! go first, and commands that are no programs overtake programs that wait. A host that still
//! answers "busy" is asked again later.
//!
//! An intent for a unit that has not been sent is superseded by a later one
//! ([`muster_rules::intent`]), and a command that is cancelled before it was sent ends here.
//!
//! **Invariant: a command that ends here was never sent to any host, nor was its cancellation.** Its bytes are the same for all of its hosts, so whoever owns
//! the broker could deliver them to a host that they were not sent to.
//!
//! **Invariant: an offline host is sent nothing**, and no host waits for another.
//!
//! **Invariant: nothing is sent after its expiry.** A few seconds later, to allow for answers on their
//! way, hosts without an answer are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_fault::planted;
use muster_rules::intent::CommandClass;
use muster_topics::{
    Millis,
    command::BUSY_FINAL_MS,
    name::{CommandId, HostId, UnitName},
    topic::Broadcast,
};

use crate::store::command::{CommandReach, OpenCommand};

/// The delay of the first repetition; each later one doubles it.
const RESEND_MS: Millis = 5_000;
/// How long after its expiry an answer is awaited: twice the longest throttle of an agent.
const ANSWER_MS: Millis = 10_000;
/// How soon a message that had no room on the link is tried again.
const NO_ROOM_MS: Millis = 250;
/// Unanswered commands to a host: a quarter of what an agent holds back while its store fails (64), and fewer than the
/// 20 that Mosquitto by default sends a client without an acknowledgement.
const WINDOW: usize = 16;
/// Their bytes: four of the longest. Brokers keep as much for one client without dropping any.
const WINDOW_BYTES: usize = 256 * 1024;
/// Unfinished programs on a host: half of what an agent by default runs (16) and queues (64).
const PROGRAMS: usize = 40;
/// How many times as many programs as allowed have to end before one more is allowed: too many cost a pause, so this is
/// tried only now and then.
const GROWTH: usize = 8;
/// A command that was sent this often without an answer does not count as under way any more, after two and a half
/// minutes. A host that answers everything else must not be blocked by it.
const SILENT_AFTER: u32 = 5;
/// The time left for the last attempt of a command that a host was too busy for: so short that the host's answer is
/// final.
const LAST_TRY_MS: Millis = BUSY_FINAL_MS / 2;
/// The longest pause before a busy host is asked again.
const BUSY_MAX_MS: Millis = 60_000;

/// An action to perform now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleAction {
    /// Publish once for each slot, to all readers of the topic.
    Broadcast(CommandId, Broadcast),
    /// Publish to one host.
    Send(CommandId, HostId),
    /// Record that these hosts have not answered.
    Miss(CommandId, Vec<HostId>),
    /// Record how a command ended that its host never got.
    Close(CommandId, HostId, UndeliveredEnd),
}

/// How a command ends that its host never got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndeliveredEnd {
    /// A later command for the same unit replaced it.
    Superseded(CommandId),
    /// It was cancelled.
    Cancelled,
    /// It cancelled another command that had not been sent, or was over.
    Completed,
}

/// The stage of a command on its way to one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CommandStage {
    /// Not sent to this host: it is offline, or the command was broadcast.
    #[default]
    Here,
    /// Waiting for room.
    Queued,
    /// Sent, without an answer so far.
    Out,
    /// Sent so long ago that it does not take room any more.
    Silent,
    /// Confirmed by the host.
    Taken,
}

/// One host's part of a command.
#[derive(Debug, Default)]
struct Attempt {
    /// How often it was sent since the host, or the console, connected.
    sent: u32,
    /// When it is sent next, if it is.
    next_ms: Option<Millis>,
    /// Whether the host has confirmed it.
    answered: bool,
    /// How often the host was too busy for it.
    refused: u32,
    place: CommandStage,
}

#[derive(Debug)]
struct ScheduledCommand {
    /// Its number in the order of issue.
    number: u64,
    expires_ms: Millis,
    bytes: usize,
    kind: CommandClass,
    /// Whether it, or its cancellation, was sent to any host, as far as known.
    went_out: bool,
    /// Whether it is for one host only.
    is_single: bool,
    hosts: HashMap<HostId, Attempt>,
}

/// Commands in the order of issue.
type HostQueue = BTreeSet<(u64, CommandId)>;

/// The schedule of one host.
#[derive(Debug)]
struct HostSchedule {
    online: bool,
    /// All its unfinished commands.
    open: HostQueue,
    /// Of these, the intents of each unit.
    intents: BTreeMap<UnitName, HostQueue>,
    /// Commands that wait for room: programs, cancellations, and the rest.
    programs: HostQueue,
    cancels: HostQueue,
    others: HostQueue,
    /// Commands under way to it, and their bytes.
    out: usize,
    out_bytes: usize,
    /// Programs under way or running, the most allowed, and how many have ended since that was changed.
    running: usize,
    running_max: usize,
    ended: usize,
    /// Whether commands, or programs, wait for a timer.
    no_room: bool,
    busy: bool,
    /// The last command that changes several units of the host together: intents before it are not made void by intents
    /// after it. It may be a set itself.
    barrier: u64,
}

impl Default for HostSchedule {
    fn default() -> Self {
        Self {
            online: false,
            open: HostQueue::new(),
            intents: BTreeMap::new(),
            programs: HostQueue::new(),
            cancels: HostQueue::new(),
            others: HostQueue::new(),
            out: 0,
            out_bytes: 0,
            running: 0,
            running_max: PROGRAMS,
            ended: 0,
            no_room: false,
            busy: false,
            barrier: 0,
        }
    }
}

impl HostSchedule {
    fn line(&mut self, kind: &CommandClass) -> &mut HostQueue {
        match kind {
            CommandClass::Program => &mut self.programs,
            CommandClass::Cancel(_) => &mut self.cancels,
            CommandClass::Intent(_) | CommandClass::Set(_) | CommandClass::Together | CommandClass::Other => {
                &mut self.others
            }
        }
    }

    /// Updates the counts when a command changes its stage.
    fn moves(&mut self, (id, entry): (CommandId, &CommandCost<'_>), from: CommandStage, to: CommandStage) {
        let is_program = *entry.kind == CommandClass::Program;
        match from {
            CommandStage::Queued => drop(self.line(entry.kind).remove(&(entry.number, id))),
            CommandStage::Out => (self.out, self.out_bytes) = (self.out - 1, self.out_bytes - entry.bytes),
            CommandStage::Here | CommandStage::Silent | CommandStage::Taken => (),
        }
        match to {
            CommandStage::Queued => drop(self.line(entry.kind).insert((entry.number, id))),
            CommandStage::Out => (self.out, self.out_bytes) = (self.out + 1, self.out_bytes + entry.bytes),
            CommandStage::Here | CommandStage::Silent | CommandStage::Taken => (),
        }
        let runs = |place| is_program && matches!(place, CommandStage::Out | CommandStage::Taken);
        self.running = self.running + usize::from(runs(to)) - usize::from(runs(from));
    }

    /// Returns the next command to send, if there is room for one.
    fn next(&self, commands: &BTreeMap<CommandId, ScheduledCommand>) -> Option<CommandId> {
        // It is short, and may end what takes the room.
        if let Some((_, cancel)) = self.cancels.first()
            && self.out < 2 * WINDOW
            && !self.no_room
        {
            return Some(*cancel);
        }
        if self.no_room || self.out >= WINDOW {
            return None;
        }
        let program = self.programs.first().filter(|_| !self.busy && self.running < self.running_max);
        let (_, next) = program.into_iter().chain(self.others.first()).min()?;
        let bytes = commands.get(next).map_or(0, |entry| entry.bytes);
        (self.out == 0 || self.out_bytes + bytes <= WINDOW_BYTES).then_some(*next)
    }

    /// Handles the end of a program: there is room for another, and sometimes for one more than before.
    fn program_ended(&mut self) {
        self.busy = false;
        self.ended += 1;
        if self.ended >= GROWTH * self.running_max {
            (self.ended, self.running_max) = (0, (self.running_max + 1).min(PROGRAMS));
        }
    }

    fn is_idle(&self) -> bool {
        !self.online && self.open.is_empty()
    }
}

/// The parts of an entry that a host counts.
struct CommandCost<'a> {
    number: u64,
    bytes: usize,
    kind: &'a CommandClass,
}

/// All open commands, and which hosts are online.
#[derive(Debug, Default)]
pub struct Schedule {
    commands: BTreeMap<CommandId, ScheduledCommand>,
    hosts: HashMap<HostId, HostSchedule>,
    /// All timers: for a host, the next time that a command is sent; without a host, the command's end. Those of the
    /// same time are in the order of issue.
    timers: BTreeSet<(Millis, u64, CommandId, Option<HostId>)>,
    /// How many commands were added.
    numbers: u64,
    /// The clock at the last check.
    looked_ms: Millis,
}

/// The pause after a command was sent for the `sent`th time, counted from 1.
fn pause_ms(sent: u32) -> Millis {
    // A week has 17 doublings of 5 s; beyond 20 nothing changes.
    RESEND_MS << sent.saturating_sub(1).min(20)
}

impl Schedule {
    /// Creates it from the store: which hosts are online, and which commands are open.
    pub fn load(online: Vec<HostId>, open: Vec<OpenCommand>, now: Millis) -> (Self, Vec<ScheduleAction>) {
        let mut schedule = Self::default();
        for host in online {
            schedule.presence(host, true, now);
        }
        let mut actions = Vec::new();
        for open in open {
            // To each host alone: whether the broadcast was sent before the stop is unknown.
            actions.extend(schedule.open(open, None, now));
        }
        (schedule, actions)
    }

    /// Returns the command that this one cancels, if it cancels one.
    pub fn cancelled_by(&self, command: CommandId) -> Option<CommandId> {
        match self.commands.get(&command)?.kind {
            CommandClass::Cancel(which) => Some(which),
            _ => None,
        }
    }

    /// The number of open commands.
    pub fn open_commands(&self) -> usize {
        self.commands.len()
    }

    /// Adds a command. A broadcast is sent in one message now, and counts as sent, even if none of its hosts is online:
    /// others may match by now.
    pub fn open(&mut self, open: OpenCommand, broadcast: Option<Broadcast>, now: Millis) -> Vec<ScheduleAction> {
        let OpenCommand { id, expires_ms, bytes, kind, hosts } = open;
        // A command that was submitted while open ones were read from the store comes twice.
        if self.commands.contains_key(&id) {
            return Vec::new();
        }
        if let CommandClass::Cancel(which) = &kind {
            if let Some(actions) = self.cancel_here((id, *which), &hosts, broadcast.is_some(), now) {
                return actions;
            }
            // A host that gets the cancellation answers for both, also if it never got the other.
            if let Some(cancelled) = self.commands.get_mut(which) {
                cancelled.went_out = true;
            }
        }
        self.numbers += 1;
        let number = self.numbers;
        self.timers.insert((expires_ms.saturating_add(ANSWER_MS), number, id, None));
        let attempt = |reached| Attempt {
            sent: u32::from(broadcast.is_some()),
            answered: reached == CommandReach::Answered,
            ..Attempt::default()
        };
        let went_out = broadcast.is_some()
            || hosts.iter().any(|(_, reached)| matches!(reached, CommandReach::Maybe | CommandReach::Answered));
        let of: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
        let hosts = hosts.into_iter().map(|(host, reached)| (host, attempt(reached))).collect();
        let is_single = of.len() == 1;
        self.commands
            .insert(id, ScheduledCommand { number, expires_ms, bytes, kind: kind.clone(), went_out, is_single, hosts });
        // To each host alone while there is time: unlike after a broadcast, a host that does not match any more
        // answers.
        let alone_ms = now + pause_ms(1).min(expires_ms.saturating_sub(now) / 2);
        let mut actions = Vec::new();
        for host in of {
            self.enter(id, host, (number, &kind));
            actions.extend(self.supersede(id, host, now));
            self.bar(host, (number, &kind));
            if !self.is_online(host) {
                continue;
            }
            match broadcast {
                Some(_) => self.plan(id, host, alone_ms),
                None => self.begin_anew(id, host, now),
            }
        }
        actions.extend(broadcast.map(|readers| ScheduleAction::Broadcast(id, readers)));
        actions
    }

    fn enter(&mut self, id: CommandId, host: HostId, (number, kind): (u64, &CommandClass)) {
        let there = self.hosts.entry(host).or_default();
        there.open.insert((number, id));
        for intent in kind.intents() {
            there.intents.entry(intent.unit().clone()).or_default().insert((number, id));
        }
        let attempt = self.commands.get(&id).and_then(|entry| entry.hosts.get(&host));
        if attempt.is_some_and(|attempt| attempt.answered) {
            self.put(id, host, CommandStage::Taken);
        }
    }

    /// Updates the barrier with a command that changes several units together.
    fn bar(&mut self, host: HostId, (number, kind): (u64, &CommandClass)) {
        if matches!(kind, CommandClass::Set(_) | CommandClass::Together)
            && let Some(there) = self.hosts.get_mut(&host)
        {
            there.barrier = number;
        }
    }

    /// Finds earlier unsent intents for the same units that the new one makes void.
    fn supersede(&mut self, id: CommandId, host: HostId, now: Millis) -> Vec<ScheduleAction> {
        let void = self.void_before(id, host);
        void.iter().for_each(|command| self.settled(*command, host, now));
        void.into_iter().map(|command| ScheduleAction::Close(command, host, UndeliveredEnd::Superseded(id))).collect()
    }

    /// Returns the earlier commands of a host that this one makes void, the latest first.
    fn void_before(&self, id: CommandId, host: HostId) -> Vec<CommandId> {
        let Some((entry, there)) = self.commands.get(&id).zip(self.hosts.get(&host)) else { return Vec::new() };
        let earlier = |unit: &UnitName| {
            let line = there.intents.get(unit).into_iter().flatten();
            line.rev().filter(|(before, _)| *before < entry.number).copied()
        };
        let may_be_void = |(before, command): &(u64, CommandId)| {
            let old = self.commands.get(command);
            *before >= there.barrier
                && old.is_some_and(|old| old.is_single && !old.went_out && entry.kind.covers(&old.kind))
        };
        let intents = entry.kind.intents();
        let mut void: HostQueue =
            intents.iter().flat_map(|intent| earlier(intent.unit())).filter(may_be_void).collect();
        // No other intent for any of its units may come between: each that stays keeps those before it.
        loop {
            let mut kept = HostQueue::new();
            for intent in intents {
                let mut is_free = true;
                for one in earlier(intent.unit()) {
                    is_free &= void.contains(&one);
                    if !is_free && void.contains(&one) {
                        kept.insert(one);
                    }
                }
            }
            if kept.is_empty() {
                return void.into_iter().rev().map(|(_, command)| command).collect();
            }
            void.retain(|one| !kept.contains(one));
        }
    }

    /// Cancels a command here, if it was never sent or is over, and no host needs to know; returns nothing otherwise.
    fn cancel_here(
        &mut self,
        (id, which): (CommandId, CommandId),
        of: &[(HostId, CommandReach)],
        is_broadcast: bool,
        now: Millis,
    ) -> Option<Vec<ScheduleAction>> {
        let entry = self.commands.get(&which);
        let mut open: Vec<HostId> = entry.map(|entry| entry.hosts.keys().copied().collect()).unwrap_or_default();
        open.sort();
        let needs_none =
            |(host, reached): &(HostId, CommandReach)| *reached == CommandReach::Unneeded || open.contains(host);
        if of.iter().any(|(_, reached)| *reached != CommandReach::Unneeded) {
            let all = open.iter().all(|host| of.iter().any(|(one, _)| one == host));
            if is_broadcast || entry.is_none_or(|entry| entry.went_out) || !all || !of.iter().all(needs_none) {
                return None;
            }
        } else {
            open.clear();
        }
        open.iter().for_each(|host| self.settled(which, *host, now));
        let cancelled = open.into_iter().map(|host| ScheduleAction::Close(which, host, UndeliveredEnd::Cancelled));
        Some(
            cancelled
                .chain(of.iter().map(|(host, _)| ScheduleAction::Close(id, *host, UndeliveredEnd::Completed)))
                .collect(),
        )
    }

    /// Handles a host's confirmation. The outcome is still due.
    pub fn answered(&mut self, command: CommandId, host: HostId, now: Millis) {
        let Some(attempt) = self.attempt(command, host) else { return };
        attempt.answered = true;
        self.put(command, host, CommandStage::Taken);
        self.pull(host, now);
    }

    /// Handles that a host is too busy: the command waits its turn again.
    pub fn busy(&mut self, command: CommandId, host: HostId, now: Millis) {
        let Some(entry) = self.commands.get_mut(&command) else { return };
        let last_ms = entry.expires_ms - LAST_TRY_MS;
        let Some(attempt) = entry.hosts.get_mut(&host) else { return };
        attempt.answered = false;
        attempt.refused = attempt.refused.saturating_add(1);
        let again_ms = (now + pause_ms(attempt.refused).min(BUSY_MAX_MS)).min(last_ms).max(now);
        self.unplan(command, host);
        if !self.is_online(host) {
            return self.put(command, host, CommandStage::Here);
        }
        self.put(command, host, CommandStage::Queued);
        let there = self.hosts.entry(host).or_default();
        // What it has now is the most that it takes.
        (there.busy, there.running_max, there.ended) = (true, there.running.max(1), 0);
        self.plan(command, host, again_ms);
        self.pull(host, now);
    }

    /// Handles that a host has finished a command.
    pub fn settled(&mut self, command: CommandId, host: HostId, now: Millis) {
        self.unplan(command, host);
        self.put(command, host, CommandStage::Here);
        let Some(entry) = self.commands.get_mut(&command) else { return };
        if entry.hosts.remove(&host).is_none() {
            return;
        }
        let (number, kind, is_over) = (entry.number, entry.kind.clone(), entry.hosts.is_empty());
        let end_ms = entry.expires_ms.saturating_add(ANSWER_MS);
        self.forget(host, command, number, &kind);
        if is_over {
            self.timers.remove(&(end_ms, number, command, None));
            self.commands.remove(&command);
        }
        self.pull(host, now);
    }

    /// Removes a command from a host.
    fn forget(&mut self, host: HostId, command: CommandId, number: u64, kind: &CommandClass) {
        let Some(there) = self.hosts.get_mut(&host) else { return };
        there.open.remove(&(number, command));
        // The command whose turn it was to find room may be the one that leaves.
        there.no_room = false;
        match kind {
            CommandClass::Program => there.program_ended(),
            _ => {
                for intent in kind.intents() {
                    if let Some(line) = there.intents.get_mut(intent.unit()) {
                        line.remove(&(number, command));
                        if line.is_empty() {
                            there.intents.remove(intent.unit());
                        }
                    }
                }
            }
        }
        if there.is_idle() {
            self.hosts.remove(&host);
        }
    }

    /// Handles that a host was removed or revoked: it is sent nothing, and owes nothing.
    pub fn leave(&mut self, host: HostId, now: Millis) {
        let Some(there) = self.hosts.get_mut(&host) else { return };
        there.online = false;
        for (_, command) in there.open.clone() {
            self.settled(command, host, now);
        }
        self.hosts.remove(&host);
    }

    /// Handles that a host came online or went offline.
    pub fn presence(&mut self, host: HostId, online: bool, now: Millis) {
        let there = self.hosts.entry(host).or_default();
        there.online = online;
        // It may be another agent, or one with higher limits.
        (there.no_room, there.busy, there.running_max, there.ended) = (false, false, PROGRAMS, 0);
        for (_, command) in there.open.clone() {
            self.unplan(command, host);
            if !self.is_taken(command, host) {
                self.put(command, host, CommandStage::Here);
            }
        }
        if online && !planted!(ForgetReturned) {
            let open = self.hosts.get(&host).map(|there| there.open.clone()).unwrap_or_default();
            open.into_iter().for_each(|(_, command)| self.begin_anew(command, host, now));
        }
        if self.hosts.get(&host).is_some_and(HostSchedule::is_idle) {
            self.hosts.remove(&host);
        }
    }

    /// Handles a new connection to the broker: open commands are sent again.
    pub fn connected(&mut self, now: Millis) {
        let online: Vec<_> = self.hosts.iter().filter(|(_, there)| there.online).map(|(host, _)| *host).collect();
        for host in online {
            self.presence(host, true, now);
        }
    }

    /// Handles that the link had no room for a message of [`ScheduleAction::Send`]. Later messages wait, too.
    pub fn no_room(&mut self, command: CommandId, host: HostId, now: Millis) {
        let Some(attempt) = self.attempt(command, host) else { return };
        attempt.sent = attempt.sent.saturating_sub(1);
        let was_out = attempt.place == CommandStage::Out;
        self.unplan(command, host);
        if was_out {
            self.put(command, host, CommandStage::Queued);
            self.hosts.entry(host).or_default().no_room = true;
        }
        self.plan(command, host, now + NO_ROOM_MS);
    }

    /// When something is due next.
    pub fn next_ms(&self) -> Option<Millis> {
        self.timers.first().map(|(at, ..)| *at)
    }

    /// Returns everything that is due by now, and marks it as done.
    pub fn due(&mut self, now: Millis) -> Vec<ScheduleAction> {
        // The clock was set back: earlier plans would be late. (Slow drift is ignored.)
        if now + RESEND_MS < self.looked_ms {
            self.connected(now);
        }
        self.looked_ms = now;
        let mut actions = Vec::new();
        while let Some((at, number, command, host)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, number, command, host));
            match host {
                Some(host) => actions.extend(self.send(command, host, now)),
                None => actions.extend(self.end(command, now)),
            }
        }
        actions
    }

    fn send(&mut self, command: CommandId, host: HostId, now: Millis) -> Option<ScheduleAction> {
        let expires_ms = self.commands.get(&command)?.expires_ms;
        let attempt = self.attempt(command, host)?;
        attempt.next_ms = None;
        if now > expires_ms && !planted!(SendExpired) {
            return None;
        }
        if matches!(attempt.place, CommandStage::Here | CommandStage::Queued) {
            // It has waited for long enough, or was broadcast and has to be sent to this host alone now.
            self.put(command, host, CommandStage::Queued);
            let there = self.hosts.entry(host).or_default();
            (there.no_room, there.busy) = (false, false);
            self.pull(host, now);
            return None;
        }
        attempt.sent = attempt.sent.saturating_add(1);
        let (again_ms, is_silent) = (now + pause_ms(attempt.sent), attempt.sent > SILENT_AFTER);
        self.commands.get_mut(&command)?.went_out = true;
        if !planted!(SendOnce) {
            self.plan(command, host, again_ms);
        }
        if is_silent && !self.is_taken(command, host) {
            self.put(command, host, CommandStage::Silent);
            self.pull(host, now);
        }
        Some(ScheduleAction::Send(command, host))
    }

    fn end(&mut self, command: CommandId, now: Millis) -> Option<ScheduleAction> {
        let entry = self.commands.get(&command)?;
        let hosts: Vec<(HostId, bool)> = entry.hosts.iter().map(|(host, attempt)| (*host, attempt.answered)).collect();
        // The last host removes the entry.
        hosts.iter().for_each(|(host, _)| self.settled(command, *host, now));
        self.commands.remove(&command);
        let mut silent: Vec<_> = hosts.into_iter().filter(|(_, answered)| !answered).map(|(host, _)| host).collect();
        silent.sort();
        (!silent.is_empty()).then_some(ScheduleAction::Miss(command, silent))
    }

    /// Starts to send a command to an online host: in its turn, or at once if the host has it already.
    fn begin_anew(&mut self, command: CommandId, host: HostId, now: Millis) {
        let Some(attempt) = self.attempt(command, host) else { return };
        attempt.sent = 0;
        if attempt.place == CommandStage::Taken {
            return self.plan(command, host, now);
        }
        self.put(command, host, CommandStage::Queued);
        self.pull(host, now);
    }

    /// Sends waiting commands of a host, as far as there is room.
    fn pull(&mut self, host: HostId, now: Millis) {
        while let Some(there) = self.hosts.get(&host).filter(|there| there.online) {
            let Some(command) = there.next(&self.commands) else { return };
            self.unplan(command, host);
            let is_over = self.commands.get(&command).is_none_or(|entry| now > entry.expires_ms);
            if is_over && !planted!(SendExpired) {
                self.put(command, host, CommandStage::Here);
            } else {
                self.put(command, host, CommandStage::Out);
                self.plan(command, host, now);
            }
        }
    }

    fn is_online(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|there| there.online)
    }

    fn is_taken(&self, command: CommandId, host: HostId) -> bool {
        let attempt = self.commands.get(&command).and_then(|entry| entry.hosts.get(&host));
        attempt.is_some_and(|attempt| attempt.place == CommandStage::Taken)
    }

    fn attempt(&mut self, command: CommandId, host: HostId) -> Option<&mut Attempt> {
        self.commands.get_mut(&command)?.hosts.get_mut(&host)
    }

    /// Records the stage of a command.
    fn put(&mut self, command: CommandId, host: HostId, to: CommandStage) {
        let Some(entry) = self.commands.get_mut(&command) else { return };
        let facts = CommandCost { number: entry.number, bytes: entry.bytes, kind: &entry.kind };
        let Some(attempt) = entry.hosts.get_mut(&host) else { return };
        let from = std::mem::replace(&mut attempt.place, to);
        if from != to {
            self.hosts.entry(host).or_default().moves((command, &facts), from, to);
        }
    }

    /// Sets a host's timer, unless that would be after the end.
    fn plan(&mut self, command: CommandId, host: HostId, at: Millis) {
        let Some(entry) = self.commands.get_mut(&command) else { return };
        let (end, number) = (entry.expires_ms, entry.number);
        let Some(attempt) = entry.hosts.get_mut(&host).filter(|_| at <= end || planted!(SendExpired)) else { return };
        attempt.next_ms = Some(at);
        self.timers.insert((at, number, command, Some(host)));
    }

    fn unplan(&mut self, command: CommandId, host: HostId) {
        let Some(entry) = self.commands.get_mut(&command) else { return };
        let number = entry.number;
        if let Some(at) = entry.hosts.get_mut(&host).and_then(|attempt| attempt.next_ms.take()) {
            self.timers.remove(&(at, number, command, Some(host)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Millis = 60_000;

    /// A command of a hundred bytes that expires in ten minutes.
    fn opened(id: CommandId, kind: CommandClass, hosts: &[HostId]) -> OpenCommand {
        let hosts = hosts.iter().map(|host| (*host, CommandReach::No)).collect();
        OpenCommand { id, expires_ms: 10 * MINUTE, bytes: 100, kind, hosts }
    }

    struct Fixture {
        schedule: Schedule,
        command: CommandId,
        hosts: Vec<HostId>,
    }

    impl Fixture {
        /// One command for `count` hosts, issued at 0, which expires in ten minutes. None is online.
        fn new(count: usize, broadcast: bool, online: &[usize]) -> (Self, Option<ScheduleAction>) {
            let hosts: Vec<_> = (0..count).map(|_| HostId::random()).collect();
            let mut schedule = Schedule::default();
            for index in online {
                schedule.presence(hosts[*index], true, 0);
            }
            let command = CommandId::new();
            let readers = broadcast.then_some(Broadcast::All);
            let action = schedule.open(opened(command, CommandClass::Program, &hosts), readers, 0).pop();
            (Self { schedule, command, hosts }, action)
        }

        /// Returns when the first host is sent the command, until `until`.
        fn times(&mut self, until: Millis) -> Vec<Millis> {
            let mut times = Vec::new();
            while let Some(at) = self.schedule.next_ms().filter(|at| *at <= until) {
                let sends =
                    self.schedule.due(at).into_iter().filter(|action| matches!(action, ScheduleAction::Send(..)));
                times.extend(sends.map(|_| at));
            }
            times
        }
    }

    #[test]
    fn command_is_repeated_with_doubling_gaps_until_expiry() {
        let (mut one, action) = Fixture::new(1, false, &[0]);
        assert_eq!(action, None);
        assert_eq!(one.times(20 * MINUTE), [0, 5_000, 15_000, 35_000, 75_000, 155_000, 315_000]);
        assert_eq!((one.schedule.open_commands(), one.schedule.next_ms()), (0, None));
    }

    #[test]
    fn removed_host_is_not_sent_to_or_waited_for() {
        let (mut two, _) = Fixture::new(2, false, &[0, 1]);
        two.schedule.leave(two.hosts[0], 0);
        assert_eq!(two.schedule.due(0), [ScheduleAction::Send(two.command, two.hosts[1])]);
        two.schedule.leave(two.hosts[1], 0);
        assert_eq!((two.schedule.open_commands(), two.schedule.next_ms()), (0, None));
    }

    #[test]
    fn silent_hosts_are_missing_after_expiry() {
        let (mut one, _) = Fixture::new(2, false, &[0]);
        one.schedule.answered(one.command, one.hosts[1], 0);
        one.schedule.due(10 * MINUTE);
        assert_eq!(one.schedule.due(10 * MINUTE + ANSWER_MS - 1), []);
        let missing = ScheduleAction::Miss(one.command, vec![one.hosts[0]]);
        assert_eq!(one.schedule.due(10 * MINUTE + ANSWER_MS), [missing]);
        assert_eq!(one.schedule.next_ms(), None);
    }

    #[test]
    fn offline_host_gets_command_on_return() {
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
    fn new_connection_resets_backoff() {
        let (mut one, _) = Fixture::new(1, false, &[0]);
        assert_eq!(one.times(20_000), [0, 5_000, 15_000]);
        one.schedule.connected(21_000);
        assert_eq!(one.times(30_000), [21_000, 26_000]);
    }

    #[test]
    fn clock_set_back_delays_nothing() {
        let (mut one, _) = Fixture::new(1, false, &[0]);
        assert_eq!(one.times(5_000), [0, 5_000]);
        let sent = ScheduleAction::Send(one.command, one.hosts[0]);
        assert_eq!(one.schedule.due(-3_600_000), [sent]);
        assert_eq!(one.schedule.next_ms(), Some(-3_595_000));
    }

    #[test]
    fn settled_command_is_not_sent() {
        let (mut one, _) = Fixture::new(2, false, &[0, 1]);
        one.schedule.due(0);
        one.schedule.settled(one.command, one.hosts[0], 0);
        one.schedule.settled(one.command, one.hosts[0], 0);
        assert_eq!(one.schedule.due(5_000), [ScheduleAction::Send(one.command, one.hosts[1])]);
        one.schedule.settled(one.command, one.hosts[1], 0);
        assert_eq!((one.schedule.open_commands(), one.schedule.next_ms()), (0, None));
    }

    #[test]
    fn broadcast_is_sent_once_then_to_each_host() {
        let (mut one, action) = Fixture::new(3, true, &[0, 1]);
        assert_eq!(action, Some(ScheduleAction::Broadcast(one.command, Broadcast::All)));
        assert_eq!(one.schedule.due(4_999), []);
        one.schedule.settled(one.command, one.hosts[1], 0);
        assert_eq!(one.schedule.due(5_000), [ScheduleAction::Send(one.command, one.hosts[0])]);
        one.schedule.presence(one.hosts[2], true, 6_000);
        assert_eq!(one.schedule.due(6_000), [ScheduleAction::Send(one.command, one.hosts[2])]);
        // No host is known to be online: matching ones get the broadcast, and the others when they come online.
        let (mut none_online, action) = Fixture::new(3, true, &[]);
        assert_eq!(action, Some(ScheduleAction::Broadcast(none_online.command, Broadcast::All)));
        assert!(none_online.times(MINUTE).is_empty());
    }

    #[test]
    fn broadcast_is_repeated_to_each_before_expiry() {
        let (mut schedule, host, id) = (Schedule::default(), HostId::random(), CommandId::new());
        schedule.presence(host, true, 0);
        let open = OpenCommand { expires_ms: 1_000, ..opened(id, CommandClass::Program, &[host]) };
        schedule.open(open, Some(Broadcast::All), 0);
        assert_eq!((schedule.due(499), schedule.due(500)), (vec![], vec![ScheduleAction::Send(id, host)]));
    }

    #[test]
    fn full_link_is_retried_without_counting() {
        let (mut one, _) = Fixture::new(1, false, &[0]);
        one.schedule.due(0);
        one.schedule.no_room(one.command, one.hosts[0], 0);
        assert_eq!(one.times(6_000), [NO_ROOM_MS, NO_ROOM_MS + 5_000]);
    }

    /// One offline host, and the schedule.
    fn away() -> (Schedule, HostId) {
        (Schedule::default(), HostId::random())
    }

    fn ids(count: usize) -> Vec<CommandId> {
        (0..count).map(|_| CommandId::new()).collect()
    }

    fn intent(verb: &str) -> CommandClass {
        let verb = serde_json::json!({ verb: {"unit": "default/shop"} });
        CommandClass::of(&serde_json::from_value(verb).unwrap())
    }

    fn sent(actions: Vec<ScheduleAction>) -> Vec<CommandId> {
        let sent = |action| if let ScheduleAction::Send(command, _) = action { Some(command) } else { None };
        actions.into_iter().filter_map(sent).collect()
    }

    /// Returns what a host is sent that always answers its oldest command, and the most that it had at once.
    fn drained(schedule: &mut Schedule, host: HostId, now: Millis) -> (Vec<CommandId>, usize) {
        let (mut order, mut has, mut most) = (Vec::new(), std::collections::VecDeque::new(), 0);
        loop {
            let came = sent(schedule.due(now));
            order.extend(&came);
            has.extend(came);
            most = most.max(has.len());
            let Some(oldest) = has.pop_front() else { return (order, most) };
            schedule.settled(oldest, host, now);
        }
    }

    #[test]
    fn five_thousand_commands_for_a_host_respect_its_window() {
        let ((mut schedule, host), ids) = (away(), ids(5_000));
        for id in &ids {
            assert_eq!(schedule.open(opened(*id, CommandClass::Program, &[host]), None, 0), []);
        }
        schedule.presence(host, true, 1_000);
        let (order, most) = drained(&mut schedule, host, 1_000);
        assert_eq!((order == ids, most), (true, WINDOW));
        assert_eq!((schedule.open_commands(), schedule.next_ms()), (0, None));
    }

    #[test]
    fn window_limits_bytes() {
        let ((mut schedule, host), ids) = (away(), ids(50));
        for id in &ids {
            schedule.open(OpenCommand { bytes: 60_000, ..opened(*id, CommandClass::Other, &[host]) }, None, 0);
        }
        let larger = OpenCommand { bytes: WINDOW_BYTES + 1, ..opened(CommandId::new(), CommandClass::Other, &[host]) };
        schedule.open(larger, None, 0);
        schedule.presence(host, true, 0);
        let (order, most) = drained(&mut schedule, host, 0);
        assert_eq!((order.len(), most), (51, WINDOW_BYTES / 60_000));
    }

    #[test]
    fn running_programs_delay_only_programs() {
        let ((mut schedule, host), ids) = (away(), ids(PROGRAMS + 1));
        schedule.presence(host, true, 0);
        for id in &ids {
            schedule.open(opened(*id, CommandClass::Program, &[host]), None, 0);
            for began in sent(schedule.due(0)) {
                schedule.answered(began, host, 0);
            }
        }
        let (stop, cancel) = (CommandId::new(), CommandId::new());
        schedule.open(opened(stop, intent("unit_stop"), &[host]), None, 0);
        schedule.open(opened(cancel, CommandClass::Cancel(ids[0]), &[host]), None, 0);
        assert_eq!(sent(schedule.due(0)), [stop, cancel], "all but the last program have gone out before");
        schedule.settled(ids[0], host, 0);
        assert_eq!(sent(schedule.due(0)), [ids[PROGRAMS]]);
    }

    #[test]
    fn cancellation_overtakes_waiting_commands() {
        let ((mut schedule, host), ids) = (away(), ids(WINDOW + 1));
        schedule.presence(host, true, 0);
        for id in &ids {
            schedule.open(opened(*id, CommandClass::Program, &[host]), None, 0);
        }
        assert_eq!(sent(schedule.due(0)), ids[..WINDOW]);
        let cancel = CommandId::new();
        assert_eq!(schedule.open(opened(cancel, CommandClass::Cancel(ids[0]), &[host]), None, 0), []);
        assert_eq!(sent(schedule.due(0)), [cancel]);
        // The unsent one ends here.
        let other = CommandId::new();
        let closed = [
            ScheduleAction::Close(ids[WINDOW], host, UndeliveredEnd::Cancelled),
            ScheduleAction::Close(other, host, UndeliveredEnd::Completed),
        ];
        assert_eq!(schedule.open(opened(other, CommandClass::Cancel(ids[WINDOW]), &[host]), None, 0), closed);
        assert_eq!(sent(schedule.due(0)), []);
    }

    #[test]
    fn busy_host_is_retried_after_an_end_or_later() {
        let ((mut schedule, host), ids) = (away(), ids(3));
        schedule.presence(host, true, 0);
        ids.iter().for_each(|id| drop(schedule.open(opened(*id, CommandClass::Program, &[host]), None, 0)));
        assert_eq!(sent(schedule.due(0)), ids);
        schedule.answered(ids[0], host, 0);
        schedule.busy(ids[1], host, 0);
        schedule.busy(ids[2], host, 0);
        assert_eq!(sent(schedule.due(RESEND_MS - 1)), []);
        schedule.settled(ids[0], host, RESEND_MS - 1);
        assert_eq!(sent(schedule.due(RESEND_MS - 1)), [ids[1]], "one at a time, as many as it took");
        schedule.busy(ids[1], host, RESEND_MS);
        // No program ends: other programs take the places.
        assert_eq!(sent(schedule.due(RESEND_MS + 2 * RESEND_MS)), [ids[1]]);
        schedule.settled(ids[1], host, 20_000);
        assert_eq!(sent(schedule.due(20_000)), [ids[2]]);
    }

    #[test]
    fn busy_host_is_asked_again_before_expiry() {
        let ((mut schedule, host), id) = (away(), CommandId::new());
        schedule.presence(host, true, 0);
        schedule.open(opened(id, CommandClass::Program, &[host]), None, 0);
        assert_eq!(sent(schedule.due(0)), [id]);
        let mut tries = Vec::new();
        let mut now = 0;
        while now < 10 * MINUTE - BUSY_FINAL_MS {
            schedule.busy(id, host, now);
            now = schedule.next_ms().unwrap();
            assert_eq!(sent(schedule.due(now)), [id]);
            tries.push(now);
        }
        assert_eq!(tries.last(), Some(&(10 * MINUTE - LAST_TRY_MS)), "its answer is the last word");
    }

    #[test]
    fn later_intent_supersedes_unsent_ones() {
        let ((mut schedule, host), ids) = (away(), ids(5));
        let mut open = |id, verb| schedule.open(opened(id, intent(verb), &[host]), None, 0);
        assert_eq!(open(ids[0], "unit_hold"), []);
        assert_eq!(open(ids[1], "unit_run"), []);
        assert_eq!(
            open(ids[2], "unit_stop"),
            [ScheduleAction::Close(ids[1], host, UndeliveredEnd::Superseded(ids[2]))]
        );
        assert_eq!(open(ids[3], "unit_run"), [ScheduleAction::Close(ids[2], host, UndeliveredEnd::Superseded(ids[3]))]);
        schedule.presence(host, true, 0);
        assert_eq!(sent(schedule.due(0)), [ids[0], ids[3]]);
        // A command that was sent stays: the host may have done it.
        schedule.presence(host, false, 0);
        assert_eq!(schedule.open(opened(ids[4], intent("unit_stop"), &[host]), None, 0), []);
        schedule.presence(host, true, 0);
        assert_eq!(sent(schedule.due(0)), [ids[0], ids[3], ids[4]]);
    }

    #[test]
    fn intent_with_cancellation_under_way_is_not_superseded() {
        let ((mut schedule, host), ids) = (away(), ids(3));
        assert_eq!(schedule.open(opened(ids[0], intent("unit_run"), &[host]), None, 0), []);
        let cancel = opened(ids[1], CommandClass::Cancel(ids[0]), &[host]);
        let all = Broadcast::All;
        assert_eq!(schedule.open(cancel, Some(all.clone()), 0), [ScheduleAction::Broadcast(ids[1], all)]);
        assert_eq!((schedule.cancelled_by(ids[1]), schedule.cancelled_by(ids[0])), (Some(ids[0]), None));
        // The host may have refused it by now, as cancelled.
        assert_eq!(schedule.open(opened(ids[2], intent("unit_stop"), &[host]), None, 0), []);
        schedule.presence(host, true, 0);
        assert_eq!(sent(schedule.due(0)), ids);
    }

    #[test]
    fn later_set_supersedes_what_it_covers() {
        let set = |units: &[&str]| {
            let artifact = serde_json::json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "a", "version": "1"});
            let wish = |unit: &&str| serde_json::json!({"unit": format!("default/{unit}"), "spec": {"kind": "yuno", "artifact": artifact}, "run": "running"});
            let units: Vec<_> = units.iter().map(wish).collect();
            CommandClass::of(&serde_json::from_value(serde_json::json!({"units_apply": {"units": units}})).unwrap())
        };
        let ((mut schedule, host), ids) = (away(), ids(8));
        let mut open = |at: usize, kind| schedule.open(opened(ids[at], kind, &[host]), None, 0);
        let void = |old: usize, new: usize| ScheduleAction::Close(ids[old], host, UndeliveredEnd::Superseded(ids[new]));
        assert_eq!(open(0, set(&["shop", "till"])), []);
        assert_eq!(open(1, set(&["shop", "till"])), [void(0, 1)]);
        // One of two units is not all of the set.
        assert_eq!(open(2, set(&["shop"])), []);
        assert_eq!(open(3, intent("unit_stop")), []);
        // The set of both comes after one that stays, which separates earlier and later intents.
        assert_eq!(open(4, set(&["shop", "till"])), [void(3, 4), void(2, 4)]);
        assert_eq!(open(5, set(&["shop", "till", "cart"])), [void(4, 5)]);
        assert_eq!(open(6, intent("unit_hold")), []);
        assert_eq!(open(7, set(&["shop", "till", "cart"])), [], "the hold is between the two");
    }

    #[test]
    fn intent_before_a_snapshot_or_already_sent_is_kept() {
        let ((mut schedule, one), two, ids) = (away(), HostId::random(), ids(6));
        schedule.presence(two, true, 0);
        schedule.open(opened(ids[0], intent("unit_run"), &[one, two]), None, 0);
        assert_eq!(schedule.due(0), [ScheduleAction::Send(ids[0], two)]);
        assert_eq!(schedule.open(opened(ids[1], intent("unit_stop"), &[one]), None, 0), []);
        schedule.open(opened(ids[2], CommandClass::Together, &[one]), None, 0);
        assert_eq!(schedule.open(opened(ids[3], intent("unit_run"), &[one]), None, 0), []);
        // It is not cancelled here: it was sent.
        assert_eq!(schedule.open(opened(ids[4], CommandClass::Cancel(ids[0]), &[one, two]), None, 0), []);
        // A command that is over cannot be cancelled.
        let unneeded = OpenCommand {
            hosts: vec![(one, CommandReach::Unneeded)],
            ..opened(ids[5], CommandClass::Cancel(CommandId::new()), &[])
        };
        assert_eq!(schedule.open(unneeded, None, 0), [ScheduleAction::Close(ids[5], one, UndeliveredEnd::Completed)]);
    }

    #[test]
    fn offline_or_silent_host_delays_no_other() {
        let ((mut schedule, gone), silent, there) = (away(), HostId::random(), HostId::random());
        schedule.presence(silent, true, 0);
        schedule.presence(there, true, 0);
        for _ in 0..WINDOW {
            schedule.open(opened(CommandId::new(), CommandClass::Program, &[gone, silent]), None, 0);
        }
        assert_eq!(sent(schedule.due(0)).len(), WINDOW);
        let id = CommandId::new();
        schedule.open(opened(id, CommandClass::Program, &[gone, silent, there]), None, 0);
        assert_eq!(schedule.due(0), [ScheduleAction::Send(id, there)]);
        // An unanswered command takes room for a few minutes only.
        let mut times = Vec::new();
        while let Some(at) = schedule.next_ms().filter(|at| *at < 5 * MINUTE) {
            times.extend(schedule.due(at).into_iter().filter(|action| *action == ScheduleAction::Send(id, silent)));
        }
        assert!(!times.is_empty());
    }

    #[test]
    fn command_without_room_keeps_its_place() {
        let ((mut schedule, host), ids) = (away(), ids(3));
        schedule.presence(host, true, 0);
        ids[..2].iter().for_each(|id| drop(schedule.open(opened(*id, CommandClass::Other, &[host]), None, 0)));
        assert_eq!(sent(schedule.due(0)), ids[..2]);
        schedule.no_room(ids[0], host, 0);
        schedule.no_room(ids[1], host, 0);
        schedule.open(opened(ids[2], CommandClass::Other, &[host]), None, 10);
        assert_eq!(sent(schedule.due(10)), []);
        assert_eq!(sent(schedule.due(NO_ROOM_MS)), ids);
    }

    proptest! {
        /// Whatever hosts answer, each gets its commands in the order in which they were issued.
        #[test]
        fn order_of_one_hosts_commands_is_kept(steps in proptest::collection::vec((0..5u8, 0..40_000i64), 0..80)) {
            let (mut schedule, host) = away();
            let (mut issued, mut firsts, mut has, mut now) = (Vec::new(), Vec::new(), Vec::new(), 0);
            for (what, pause) in steps {
                now += pause;
                match what {
                    0 => schedule.presence(host, true, now),
                    1 => schedule.presence(host, false, now),
                    2 => has.pop().into_iter().for_each(|id| schedule.answered(id, host, now)),
                    3 => std::mem::take(&mut has).into_iter().for_each(|id| schedule.settled(id, host, now)),
                    _ => for id in ids(7) {
                        issued.push(id);
                        let open = OpenCommand { expires_ms: Millis::MAX, ..opened(id, CommandClass::Other, &[host]) };
                        schedule.open(open, None, now);
                    },
                }
                for id in sent(schedule.due(now)) {
                    if !firsts.contains(&id) { firsts.push(id) }
                    if !has.contains(&id) { has.push(id) }
                }
            }
            schedule.presence(host, true, now);
            loop {
                let came = sent(schedule.due(now));
                if came.is_empty() { break }
                firsts.extend(came.iter().filter(|id| !firsts.contains(id)).collect::<Vec<_>>());
                came.into_iter().for_each(|id| schedule.settled(id, host, now));
            }
            prop_assert_eq!(firsts, issued);
            prop_assert_eq!(schedule.open_commands(), 0);
        }
    }

    proptest! {
        /// In any order of events, nothing is sent to hosts that are offline or done, or too late, and in the end
        /// nothing is left.
        #[test]
        fn schedule_invariants_hold(steps in proptest::collection::vec((0..4u8, 0..3usize, 0..40_000i64), 0..60)) {
            let (mut one, _) = Fixture::new(3, false, &[]);
            let (mut online, mut done, mut now) = ([false; 3], [false; 3], 0);
            for (what, host, pause) in steps {
                now += pause;
                for action in one.schedule.due(now) {
                    match action {
                        ScheduleAction::Send(_, id) => {
                            let index = one.hosts.iter().position(|host| *host == id).unwrap();
                            prop_assert!(online[index] && !done[index] && now <= 10 * MINUTE);
                        }
                        ScheduleAction::Miss(_, silent) => {
                            prop_assert!(now > 10 * MINUTE);
                            prop_assert!(silent.iter().all(|id| !done[one.hosts.iter().position(|host| host == id).unwrap()]));
                        }
                        ScheduleAction::Broadcast(..) | ScheduleAction::Close(..) => prop_assert!(false),
                    }
                }
                match what {
                    0 => { online[host] = true; one.schedule.presence(one.hosts[host], true, now) }
                    1 => { online[host] = false; one.schedule.presence(one.hosts[host], false, now) }
                    2 => { done[host] = true; one.schedule.settled(one.command, one.hosts[host], now) }
                    _ => one.schedule.connected(now),
                }
            }
            one.schedule.due(11 * MINUTE + now);
            prop_assert_eq!((one.schedule.open_commands(), one.schedule.next_ms()), (0, None));
        }
    }
}
