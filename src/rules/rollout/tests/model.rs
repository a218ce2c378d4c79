//! Hosts, a network and a console with its store, around the decision: what is true of hosts is known here, whatever the
//! console has heard of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZoneDatabase;
use muster_topics::{Millis, ack::Numbered, admission::ChangeOutcome, name::HostId};
use uuid::Uuid;

use crate::rollout::{
    decide::{Decision, Grant, RolloutStep, decide, waits},
    policy::RolloutPolicy,
    state::{CheckStatus, HostOutcome, HostProgress, RolloutPhase, RolloutState},
    transition::{HostEnd, Reception, Reply, TargetHost},
};

/// How long a grant may be used.
const BEGIN_WITHIN_MS: Millis = 30_000;

/// What a message of a host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostStage {
    Asks,
    Begun { permit: u64 },
    Ended { permit: Option<u64>, outcome: ChangeOutcome },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    host: usize,
    number: Numbered,
    version: u32,
    said: HostStage,
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Granted { permit: u64 },
    Noted,
    Retry,
}

#[derive(Clone, Copy, Debug)]
struct ConsoleAnswer {
    host: usize,
    to: Numbered,
    version: u32,
    issued_ms: Millis,
    /// After how many events the host has its place.
    issued_at: u64,
    verdict: Verdict,
}

/// What a host is in the middle of.
#[derive(Clone, Copy, Debug)]
struct Change {
    version: u32,
    permit: u64,
    granted_ms: Millis,
}

/// A host, as it really is.
#[derive(Clone, Debug)]
struct Host {
    id: HostId,
    site: &'static str,
    is_selected: bool,
    is_online: bool,
    /// The version of its document.
    document: Option<u32>,
    /// The versions that it has ended, and needs not ask for.
    done: BTreeSet<u32>,
    number: u64,
    /// Its last message, until that is answered for good.
    last: Option<Message>,
    change: Option<Change>,
    /// Whether it was changed and is not verified since.
    is_broken: bool,
    /// The same, before the change that it is in the middle of, or was last.
    was_broken: bool,
    is_released: bool,
    /// Whether it was unavailable when it was removed: it has its place if it is selected again, although it has nothing of
    /// the deployment meanwhile.
    has_left_broken: bool,
    /// After how many events it was selected again.
    rejoined_at: Option<u64>,
}

/// The things that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Time goes by.
    Sleep(u16),
    /// The console decides.
    Decide,
    /// A host hears of its document.
    Sync(usize),
    /// A host asks, or repeats what it has said last.
    Speak(usize),
    /// A host ends what it is in the middle of.
    End(usize, ChangeOutcome),
    /// A host ends a version without a permit.
    EndFree(usize, bool),
    /// A message or an answer arrives, of those that are under way.
    Arrive(usize),
    /// One arrives and arrives again later.
    Repeat(usize),
    /// One is lost.
    Lose(usize),
    Offline(usize),
    Online(usize),
    Remove(usize),
    Select(usize),
    Crash,
    NextVersion,
    Cancel,
    Pause,
    Resume,
    Promote,
    Retry,
    Release(usize),
    Authority(bool),
    Check(u8),
}

pub(super) struct World {
    pub(super) policy: RolloutPolicy,
    zones: TimeZoneDatabase,
    now_ms: Millis,
    /// How many events there were.
    events: u64,
    state: RolloutState,
    /// What a console that starts finds.
    stored: RolloutState,
    hosts: Vec<Host>,
    messages: Vec<Message>,
    answers: Vec<ConsoleAnswer>,
    /// Outcomes that are stored, by version and host.
    outcomes: BTreeMap<(u32, HostId), HostOutcome>,
    completed: Option<u32>,
    granted: BTreeSet<(HostId, Numbered)>,
    lost: BTreeSet<(HostId, u64)>,
    /// After how many events hosts were granted the places that they have.
    placed_at: BTreeMap<HostId, u64>,
    /// The last words of hosts on a version.
    terminals: Vec<Option<(u32, HostOutcome)>>,
    pub(super) violations: Vec<String>,
}

impl World {
    pub(super) fn new(policy: RolloutPolicy, hosts: usize) -> Self {
        let host = |index: usize| Host {
            id: HostId(Uuid::from_u128(index as u128 + 1)),
            site: ["north", "south"][index % 2],
            is_selected: true,
            is_online: index % 4 != 3,
            document: None,
            done: BTreeSet::new(),
            number: 0,
            last: None,
            change: None,
            is_broken: false,
            was_broken: false,
            is_released: false,
            has_left_broken: false,
            rejoined_at: None,
        };
        let hosts: Vec<Host> = (0..hosts).map(host).collect();
        let state = RolloutState::begin(&policy, 1, None, false, hosts.iter().map(Host::target), 0);
        let terminals = vec![None; hosts.len()];
        Self {
            policy,
            terminals,
            zones: TimeZoneDatabase::bundled(),
            now_ms: 0,
            events: 0,
            stored: state.clone(),
            state,
            hosts,
            messages: Vec::new(),
            answers: Vec::new(),
            outcomes: BTreeMap::new(),
            completed: None,
            granted: BTreeSet::new(),
            lost: BTreeSet::new(),
            placed_at: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    pub(super) fn happen(&mut self, event: Event) {
        let count = self.hosts.len();
        self.events += 1;
        match event {
            Event::Sleep(seconds) => self.now_ms += Millis::from(seconds) * 1_000,
            Event::Decide => self.decide(),
            Event::Sync(host) => self.sync(host % count),
            Event::Speak(host) => self.speak(host % count),
            Event::End(host, outcome) => self.end(host % count, outcome),
            Event::EndFree(host, is_verified) => self.end_free(host % count, is_verified),
            Event::Arrive(index) => self.arrive(index, false),
            Event::Repeat(index) => self.arrive(index, true),
            Event::Lose(index) => self.lose(index),
            Event::Offline(host) => self.set_online(host % count, false),
            Event::Online(host) => self.set_online(host % count, true),
            Event::Remove(host) => self.remove(host % count),
            Event::Select(host) => self.select(host % count),
            Event::Crash => self.crash(),
            Event::NextVersion => self.next_version(false),
            Event::Cancel => {
                let brought = self.state.cancel();
                self.record_own(brought);
                self.store();
                self.check(self.state.phase.is_end(), "a cancellation ends at once");
            }
            Event::Pause => {
                self.state.pause("an operator".to_owned(), self.now_ms);
                self.store();
            }
            Event::Resume => {
                self.state.resume(self.now_ms);
                self.store();
            }
            Event::Promote => {
                self.state.promote();
                self.store();
            }
            Event::Retry => self.retry(),
            Event::Release(host) => {
                let host = &mut self.hosts[host % count];
                if self.state.release(host.id) {
                    host.is_released = true;
                    self.store();
                }
            }
            Event::Authority(admits) => self.authority(admits),
            Event::Check(result) => {
                let result = match result % 3 {
                    0 => Ok(None),
                    1 => Ok(Some("by half".to_owned())),
                    _ => Err("no data".to_owned()),
                };
                self.state.check_answered(result, self.now_ms);
                self.store();
            }
        }
    }

    fn check(&mut self, holds: bool, what: &str) {
        if !holds {
            self.violations.push(format!("at {}: {what}", self.now_ms));
        }
    }

    /// Keeps what a console stores of it.
    fn store(&mut self) {
        self.stored = self.state.clone();
    }

    /// Keeps what a console stores of one host, if it was told that there is something to store.
    fn store_host(&mut self, host: HostId, reception: Reception) {
        if reception.is_changed {
            let progress = self.state.hosts[&host].clone();
            self.stored.hosts.insert(host, progress);
        }
        if let Some((version, outcome)) = reception.outcome {
            self.record(version, host, outcome);
        }
    }

    /// A console starts again from its store: what is said of hosts that are connected comes again, as in the shell.
    fn crash(&mut self) {
        self.state = self.stored.clone();
        self.state.watched_since_ms = self.now_ms;
        if self.state.check != CheckStatus::Passed {
            self.state.check = CheckStatus::Open;
        }
        for (host, progress) in &mut self.state.hosts {
            let is_online = self.hosts.iter().any(|one| one.id == *host && one.is_online);
            *progress = HostProgress { is_online, asks: None, authority: Default::default(), ..progress.clone() };
        }
        self.store();
    }

    fn decide(&mut self) {
        let decision = decide(&self.policy, &self.state, &self.zones, self.now_ms);
        self.check_decision(&decision);
        let explained = waits(&self.policy, &self.state, &self.zones, self.now_ms);
        for (host, reason) in &decision.waits {
            self.check(explained.get(host) == Some(reason) && !reason.to_string().is_empty(), "a host has two reasons");
        }
        for timed in &decision.outcomes {
            if timed.outcome == HostOutcome::Lost {
                let permit = self.state.hosts[&timed.host].permit.unwrap();
                self.lost.insert((timed.host, permit.number));
            }
            self.record(timed.version, timed.host, timed.outcome);
        }
        self.state.carry_out(&decision, self.now_ms);
        if !decision.ask_authority.is_empty() {
            self.state.authority_asked(&decision.ask_authority, self.now_ms);
        }
        if decision.ask_check {
            self.state.check_asked(self.now_ms);
        }
        for grant in &decision.grants {
            let is_new = self.granted.insert((grant.host, grant.to));
            self.check(is_new, "a question is answered by two permits");
            if let Some(replaced) = grant.replaces.filter(|replaced| *replaced != grant.version) {
                self.record(replaced, grant.host, HostOutcome::Superseded);
            }
            let host = self.hosts.iter().position(|host| host.id == grant.host).unwrap();
            // It may have begun with what this replaces, and so has had its place since then.
            let issued_at = grant.replaces.and(self.placed_at.get(&grant.host).copied()).unwrap_or(self.events);
            self.placed_at.insert(grant.host, issued_at);
            let (to, version, issued_ms) = (grant.to, grant.version, self.now_ms);
            let verdict = Verdict::Granted { permit: grant.permit };
            self.answers.push(ConsoleAnswer { host, to, version, issued_ms, issued_at, verdict });
        }
        match &decision.step {
            Some(RolloutStep::RollBack { .. }) => match self.completed {
                Some(_) => self.next_version(true),
                None => {
                    self.state.pause("there is no version before".to_owned(), self.now_ms);
                }
            },
            Some(RolloutStep::Complete) => self.completed = Some(self.state.version),
            _ => {}
        }
        self.store();
    }

    fn check_decision(&mut self, decision: &Decision) {
        let version = self.state.version;
        let own = decision.grants.iter().filter(|grant| grant.version == version).count();
        let admits = match self.state.phase {
            RolloutPhase::Running | RolloutPhase::Completed | RolloutPhase::Failed { .. } => true,
            // The last wave, when somebody has come while it soaked.
            RolloutPhase::Soaking { until_ms } => until_ms <= self.now_ms && self.state.is_last_wave(),
            _ => false,
        };
        self.check(own == 0 || admits, "a host is admitted in a phase in which none may be");
        let is_paused = matches!(self.state.phase, RolloutPhase::Paused { .. });
        self.check(decision.grants.is_empty() || !is_paused, "a host is admitted while the rollout is paused");
        // 1 January 1970 was a Thursday; the windows of these tests are of UTC, in the first half of each hour.
        let is_open = self.policy.windows.is_empty() || self.state.is_rollback || self.now_ms / 1_800_000 % 2 == 0;
        self.check(decision.grants.is_empty() || is_open, "a host is admitted outside the windows");
        let admitted = |host: HostId| decision.grants.iter().any(|grant| grant.host == host);
        // One that tries again has its place in the wave already.
        let takes_place = |grant: &Grant| {
            let progress = &self.state.hosts[&grant.host];
            grant.version == version && !progress.is_unavailable && progress.wave.is_none()
        };
        let has_available = decision.grants.iter().any(takes_place);
        let waits_broken = decision.waits.iter().any(|(host, reason)| {
            self.state.hosts[host].is_unavailable
                && !admitted(*host)
                && !["failed", "retry", "authority", "window"].contains(&reason.word())
                && self.state.hosts[host].asks.is_some_and(|asks| asks.version == version)
        });
        self.check(!has_available || !waits_broken, "a host that works goes before one that is broken");
        // Its hosts may be removed while it soaks.
        if matches!(decision.step, Some(RolloutStep::EndWave { .. })) {
            let wave = self.state.wave;
            let members = self.state.hosts.iter().filter(|(_, progress)| progress.wave == Some(wave));
            let outcomes: Vec<_> = members.map(|(host, _)| self.outcomes.get(&(version, *host)).copied()).collect();
            self.check(outcomes.iter().all(Option::is_some), "a wave has ended while its hosts change");
            let nobody_is_left = self.state.hosts.values().all(|one| one.is_late || one.terminal().is_some());
            // An operator may have accepted that all have failed.
            let is_accepted = outcomes.is_empty() || self.state.accepted.wave > 0;
            let is_well = outcomes.contains(&Some(HostOutcome::Verified)) || (is_accepted && nobody_is_left);
            self.check(is_well, "a wave without success has succeeded");
        }
        if matches!(decision.step, Some(RolloutStep::Complete | RolloutStep::Fail { .. })) {
            let open = self.state.hosts.keys().filter(|host| self.outcome(version, **host).is_none()).count();
            self.check(open == 0, "a rollout has ended, and a host has no outcome");
        }
    }

    fn outcome(&self, version: u32, host: HostId) -> Option<HostOutcome> {
        let planned = || match self.state.hosts.get(&host)?.outcome() {
            Some(outcome @ (HostOutcome::Cannot | HostOutcome::Removed)) if version == self.state.version => {
                Some(outcome)
            }
            _ => None,
        };
        self.outcomes.get(&(version, host)).copied().or_else(planned)
    }

    fn record_own(&mut self, outcomes: Vec<(HostId, HostOutcome)>) {
        let version = self.state.version;
        outcomes.into_iter().for_each(|(host, outcome)| self.record(version, host, outcome));
    }

    /// Stores an outcome.
    fn record(&mut self, version: u32, host: HostId, outcome: HostOutcome) {
        let before = self.outcomes.get(&(version, host)).copied();
        if version == self.state.version || before.is_none_or(|before| before.is_replaced_by(outcome)) {
            self.outcomes.insert((version, host), outcome);
        }
    }

    /// Checks that no host has had two last words on one version, and that none in the middle of a change counts as available.
    pub(super) fn check_outcomes(&mut self) {
        let version = self.state.version;
        for host in &self.hosts {
            let Some(progress) = self.state.hosts.get(&host.id) else { continue };
            if progress.is_in_flight() && !progress.is_unavailable {
                self.violations
                    .push(format!("at {}: a host in the middle of a change counts as available", self.now_ms));
            }
            let now = progress.terminal();
            let before = std::mem::replace(&mut self.terminals[usize_of(host.id)], now.map(|now| (version, now)));
            let (Some((of, before)), Some(now)) = (before, now) else { continue };
            if of == version && before != now && !before.is_replaced_by(now) && now != HostOutcome::Removed {
                self.violations.push(format!("at {}: {before:?} of a host becomes {now:?}", self.now_ms));
            }
            let stored = self.outcomes.get(&(version, host.id)).copied();
            if stored != Some(now) && ![HostOutcome::Cannot, HostOutcome::Removed].contains(&now) {
                self.violations.push(format!("at {}: {now:?} of a host is stored as {stored:?}", self.now_ms));
            }
        }
    }

    fn targets(&self) -> Vec<TargetHost> {
        self.hosts.iter().filter(|host| host.is_selected).map(Host::target).collect()
    }

    fn next_version(&mut self, is_rollback: bool) {
        let version = self.state.version + 1;
        let brought = self.state.supersede(version, is_rollback);
        self.record_own(brought);
        let targets = self.targets();
        self.state = self.state.succeed(&self.policy, version, self.completed, is_rollback, targets, self.now_ms);
        self.store();
    }

    fn retry(&mut self) {
        let tried = self.state.retry(None, self.now_ms);
        for id in tried {
            let (Some(to), version) = (self.state.hosts[&id].heard, self.state.version) else { continue };
            let verdict = Verdict::Retry;
            self.answers.push(ConsoleAnswer {
                host: usize_of(id),
                to,
                version,
                issued_ms: self.now_ms,
                issued_at: self.events,
                verdict,
            });
        }
        self.store();
    }

    fn authority(&mut self, admits: bool) {
        let hosts: Vec<HostId> = self.state.hosts.keys().copied().collect();
        for host in hosts {
            let refusal = (!admits).then(|| "not today".into());
            self.state.authority_answered(host, refusal, self.now_ms);
        }
    }

    fn set_online(&mut self, index: usize, is_online: bool) {
        let host = &mut self.hosts[index];
        host.is_online = is_online;
        match is_online {
            true => self.state.online(host.id),
            false => self.state.offline(host.id),
        }
    }

    fn remove(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.is_selected = false;
        host.has_left_broken |= host.is_broken && !host.is_released;
        let id = host.id;
        for (version, outcome) in self.state.remove(id) {
            self.record(version, id, outcome);
        }
        self.store();
    }

    fn select(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if !host.is_selected {
            host.rejoined_at = Some(self.events);
        }
        host.is_selected = true;
        let target = self.hosts[index].target();
        let id = target.host;
        if self.state.join(target) {
            if let Some(outcome) = self.state.hosts[&id].outcome() {
                self.record(self.state.version, id, outcome);
            }
            self.store();
        }
    }

    /// A host hears which version its document names.
    fn sync(&mut self, index: usize) {
        let version = self.state.version_of(self.hosts[index].id);
        let host = &mut self.hosts[index];
        if !host.is_online {
            return;
        }
        host.document = version;
        if version.is_none() {
            // It stops, and has nothing of the deployment any more.
            host.change = None;
            host.is_broken = false;
            host.last = None;
        }
    }

    /// A host says what it has to say: an end that is not answered, or that it has begun, or a question.
    fn speak(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let (Some(document), true) = (host.document, host.is_online) else { return };
        let said = match (host.last, host.change) {
            (Some(last), _) if matches!(last.said, HostStage::Ended { .. }) => (last.version, last.said),
            (_, Some(change)) if change.version >= document => {
                (change.version, HostStage::Begun { permit: change.permit })
            }
            _ if host.done.contains(&document) => return,
            _ => (document, HostStage::Asks),
        };
        host.number += 1;
        let message = Message { host: index, number: numbered(host.number), version: said.0, said: said.1 };
        host.last = Some(message);
        self.messages.push(message);
    }

    fn end(&mut self, index: usize, outcome: ChangeOutcome) {
        let host = &mut self.hosts[index];
        let Some(change) = host.change.take() else { return };
        host.is_broken = match outcome {
            ChangeOutcome::Verified => false,
            ChangeOutcome::Failed => true,
            // It is back at what it was.
            ChangeOutcome::RolledBack | ChangeOutcome::Refused => host.was_broken,
        };
        host.has_left_broken = false;
        host.done.insert(change.version);
        host.number += 1;
        let said = HostStage::Ended { permit: Some(change.permit), outcome };
        let message = Message { host: index, number: numbered(host.number), version: change.version, said };
        host.last = Some(message);
        if host.is_online {
            self.messages.push(message);
        }
    }

    fn end_free(&mut self, index: usize, is_verified: bool) {
        let host = &mut self.hosts[index];
        let Some(version) = host.document.filter(|version| !host.done.contains(version)) else { return };
        if host.change.is_some() || matches!(host.last, Some(Message { said: HostStage::Ended { .. }, .. })) {
            return;
        }
        let outcome = if is_verified { ChangeOutcome::Verified } else { ChangeOutcome::Refused };
        host.is_broken &= !is_verified;
        host.done.insert(version);
        host.number += 1;
        let said = HostStage::Ended { permit: None, outcome };
        let message = Message { host: index, number: numbered(host.number), version, said };
        host.last = Some(message);
        if host.is_online {
            self.messages.push(message);
        }
    }

    fn under_way(&self, index: usize) -> Option<(bool, usize)> {
        let (messages, answers) = (self.messages.len(), self.answers.len());
        let index = index.checked_rem(messages + answers)?;
        Some(if index < messages { (true, index) } else { (false, index - messages) })
    }

    fn lose(&mut self, index: usize) {
        match self.under_way(index) {
            Some((true, index)) => drop(self.messages.swap_remove(index)),
            Some((false, index)) => drop(self.answers.swap_remove(index)),
            None => {}
        }
    }

    fn arrive(&mut self, index: usize, stays: bool) {
        match self.under_way(index) {
            Some((true, index)) => {
                let message = self.messages[index];
                if !stays {
                    self.messages.swap_remove(index);
                }
                self.hear(message);
            }
            Some((false, index)) => {
                let answer = self.answers[index];
                if !stays {
                    self.answers.swap_remove(index);
                }
                self.obey(answer);
            }
            None => {}
        }
    }

    /// The console hears a message.
    fn hear(&mut self, message: Message) {
        let Message { host: index, number, version, said } = message;
        let (host, now_ms) = (self.hosts[index].id, self.now_ms);
        let before = self.state.hosts.get(&host).map(kept);
        let reception = match said {
            HostStage::Asks => self.state.asked(host, number, version, now_ms),
            HostStage::Begun { permit } => self.state.begun(host, number, version, permit, now_ms),
            HostStage::Ended { permit, outcome } => {
                let end = HostEnd { version, permit, outcome };
                self.state.ended(host, number, end, &self.policy, now_ms)
            }
        };
        let is_same = before == self.state.hosts.get(&host).map(kept);
        self.check(reception.is_changed || is_same, "a change is not stored");
        // One that was released says that it has begun, or failed, after all.
        let is_unavailable = self.state.hosts.get(&host).is_some_and(|progress| progress.is_unavailable);
        if is_unavailable && self.hosts[index].is_released {
            self.hosts[index].is_released = false;
            self.hosts[index].rejoined_at = Some(self.events);
        }
        self.store_host(host, reception);
        if let Some(reply) = reception.reply {
            let verdict = match reply {
                Reply::Noted => Verdict::Noted,
                Reply::Retry => Verdict::Retry,
            };
            self.answers.push(ConsoleAnswer {
                host: index,
                to: number,
                version,
                issued_ms: now_ms,
                issued_at: self.events,
                verdict,
            });
        }
    }

    /// A host takes an answer, if that is to its last message.
    fn obey(&mut self, answer: ConsoleAnswer) {
        let host = &mut self.hosts[answer.host];
        let Some(last) = host.last.filter(|last| last.number == answer.to && host.is_online) else { return };
        match (answer.verdict, last.said) {
            (Verdict::Granted { permit }, HostStage::Asks)
                if host.document == Some(answer.version)
                    && last.version == answer.version
                    && self.now_ms <= answer.issued_ms + BEGIN_WITHIN_MS =>
            {
                let change = Change { version: answer.version, permit, granted_ms: answer.issued_ms };
                self.begin(answer.host, change, answer.issued_at);
            }
            (Verdict::Noted, HostStage::Begun { .. } | HostStage::Ended { .. }) => host.last = None,
            (Verdict::Retry, HostStage::Ended { .. }) => {
                host.done.remove(&last.version);
                host.last = None;
            }
            _ => {}
        }
    }

    fn begin(&mut self, index: usize, change: Change, granted_at: u64) {
        let host = &mut self.hosts[index];
        let was_changing = host.change.is_some();
        // One that an operator has released goes back to what counts as available.
        host.was_broken = host.is_broken && !host.is_released;
        let was_unavailable = host.was_broken || host.has_left_broken;
        // Others were given the place of one that was released in the middle of a change, and has gone on.
        if was_changing && host.is_released {
            host.rejoined_at = Some(self.events);
        }
        host.change = Some(change);
        host.is_broken = true;
        host.is_released = false;
        host.number += 1;
        let said = HostStage::Begun { permit: change.permit };
        let message = Message { host: index, number: numbered(host.number), version: change.version, said };
        host.last = Some(message);
        self.messages.push(message);
        self.check_limits(index, was_changing, was_unavailable, granted_at);
    }

    /// What may not be exceeded when a host begins, counted by what is true of hosts. A host that begins with a later version
    /// takes no more than it had. A host that was selected again after the grant was not to be counted then, and is not to be
    /// judged by it.
    fn check_limits(&mut self, index: usize, was_changing: bool, was_unavailable: bool, granted_at: u64) {
        let has_rejoined = |host: &Host| host.rejoined_at.is_some_and(|rejoined_at| rejoined_at > granted_at);
        let counts = |host: &&Host| host.is_selected && !host.is_released && !has_rejoined(host);
        if has_rejoined(&self.hosts[index]) {
            return;
        }
        let site = self.hosts[index].site;
        if let Some(budget) = &self.policy.budget {
            let of_site = self.hosts.iter().filter(|host| host.site == site).count();
            let broken = self.hosts.iter().filter(counts).filter(|host| host.site == site && host.is_broken).count();
            let limit = budget.max_unavailable.at_least_one_of(of_site);
            self.check(broken <= limit || was_unavailable, "more hosts of a group are unavailable than may be");
        }
        // One that is given up for lost is not counted, nor one that was removed and would have been given up since.
        let is_given_up = |host: &Host, change: Change| {
            let is_lost = self.lost.iter().any(|(id, permit)| *id == host.id && *permit >= change.permit);
            is_lost || self.now_ms - change.granted_ms >= self.policy.lost_after_ms
        };
        let changes = |host: &&Host| host.change.is_some_and(|change| !is_given_up(host, change));
        let changing = self.hosts.iter().filter(counts).filter(changes);
        let changing = changing.count();
        let limit = self.policy.max_in_flight.at_least_one_of(self.hosts.len());
        self.check(changing <= limit || was_changing, "more hosts are in the middle of a change than may be");
    }

    /// Whether all is said and done.
    pub(super) fn is_over(&self) -> bool {
        let phase_ends = self.state.phase.is_end();
        phase_ends
            && self.hosts.iter().all(|host| {
                !host.is_selected
                    || self.state.hosts.get(&host.id).is_some_and(|progress| progress.terminal().is_some())
            })
    }

    /// Lets everybody do what is theirs, over a network that loses nothing: hosts that are away stay away.
    pub(super) fn settle(&mut self) -> bool {
        self.messages.clear();
        self.answers.clear();
        for round in 0..400 {
            for host in 0..self.hosts.len() {
                self.sync(host);
                self.speak(host);
            }
            self.deliver();
            for _ in 0..3 {
                self.decide();
                self.deliver();
            }
            for host in 0..self.hosts.len() {
                // Some are never well.
                let outcome = if host % 3 == 2 { ChangeOutcome::RolledBack } else { ChangeOutcome::Verified };
                if self.hosts[host].is_online {
                    self.end(host, outcome);
                }
            }
            self.deliver();
            self.authority(true);
            self.happen(Event::Check(0));
            self.happen(Event::Promote);
            if matches!(self.state.phase, RolloutPhase::Paused { .. }) {
                self.happen(Event::Resume);
            }
            self.decide();
            self.deliver();
            self.check_outcomes();
            if self.is_over() {
                return true;
            }
            self.now_ms += if round < 60 { 10_000 } else { 600_000 };
        }
        false
    }

    fn deliver(&mut self) {
        while !(self.messages.is_empty() && self.answers.is_empty()) {
            self.arrive(0, false);
        }
    }

    pub(super) fn describe(&self) -> String {
        format!("{:#?}", self.state)
    }
}

/// What is stored of a host.
fn kept(progress: &HostProgress) -> HostProgress {
    HostProgress { is_online: false, asks: None, heard: None, authority: Default::default(), ..progress.clone() }
}

fn numbered(seq: u64) -> Numbered {
    Numbered { epoch: 1, seq }
}

fn usize_of(host: HostId) -> usize {
    host.0.as_u128() as usize - 1
}

impl Host {
    fn target(&self) -> TargetHost {
        TargetHost { host: self.id, group: Some(self.site.into()), is_online: self.is_online, can_take: true }
    }
}
