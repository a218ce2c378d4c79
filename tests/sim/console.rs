//! Successive lives of a console: the product's ingest, schedule and acknowledgements, with replacements for their
//! tasks (`src/console/ingest/mod.rs`, `dispatch/mod.rs`, `link.rs`). Its clock is the one that it plans by.

use std::collections::{BTreeSet, VecDeque};

use futures_util::FutureExt;
use muster_api::CommandState;
use muster_base::{chance, clock};
use muster_console::{
    dispatch::{
        self, RollCall,
        schedule::{Schedule, ScheduleAction},
    },
    host_share::UNIT_SHARES,
    ingest::{
        ApplyError,
        acks::{GATHER, OwedAcks, messages},
        effects::RefreshRequests,
        store_batch::IngestBatch,
    },
    store::command::{CommandReach, OpenCommand},
};
use muster_rules::{backoff::ExponentialGrowth, intent::CommandClass};
use muster_topics::{
    Millis, V1,
    command::{Command, Refresh},
    name::{CommandId, HostId},
    slot::Slot,
    topic::{Filter, HostTopic, Topic},
};

use super::{
    documents::Documents,
    ledger::{CommandRow, Ledger, SIGNED_BYTES},
    random::between,
    rollouts::Rollouts,
    watch::Promise,
    wire::{Body, ConnId, Message, Order, Packet},
    world::{Around, Event, Who},
};

/// `BACKOFF` of the console's link.
const BACKOFF: ExponentialGrowth = ExponentialGrowth { first_ms: 500, max_ms: 15_000 };
/// `SLEEP_MAX` of dispatch.
const SLEEP_MAX_MS: Millis = 60_000;

#[derive(Debug, Default)]
pub(super) struct Console {
    /// What is committed.
    pub(super) ledger: Ledger,
    pub(super) documents: Documents,
    pub(super) rollouts: Rollouts,
    pub(super) is_up: bool,
    pub(super) life: u32,
    pub(super) clock_off_ms: Millis,
    pub(super) conn: Option<ConnId>,
    pub(super) connecting: Option<ConnId>,
    pub(super) attempts: u32,
    /// It is killed after the next commit, before anybody hears of it.
    pub(super) fuse: bool,
    pub(super) schedule: Schedule,
    owed: OwedAcks,
    refreshes: RefreshRequests,
    inbox: Vec<Message>,
    events: VecDeque<dispatch::DispatchEvent>,
    roll_call: Option<RollCall>,
    wakes_ms: Option<Millis>,
    gathers: bool,
}

impl Console {
    /// Starts with what the store holds.
    pub(super) fn start(&mut self, around: &mut Around<'_>) {
        let (ledger, life) = (std::mem::take(&mut self.ledger), self.life + 1);
        let documents = std::mem::take(&mut self.documents);
        let rollouts = std::mem::take(&mut self.rollouts).restored(clock::now_ms());
        let clock_off_ms = self.clock_off_ms;
        *self = Self { ledger, documents, rollouts, life, clock_off_ms, is_up: true, ..Self::default() };
        let mut open = self.ledger.open();
        open.iter_mut().for_each(|open| self.mark_unneeded(open));
        let (schedule, actions) = Schedule::load(self.ledger.online(), open, clock::now_ms());
        self.schedule = schedule;
        self.perform(actions, around);
        around.note(|| format!("the console starts, life {life}, {} open", self.schedule.open_commands()));
        around.after(0, Event::Connect(Who::Console, life));
        around.after(0, Event::Dispatch(life));
        around.after(between(0, 30_000), Event::Sync(life));
        around.after(between(0, 5_000), Event::Rollout(life));
    }

    pub(super) fn retry_ms(&mut self) -> Millis {
        self.attempts += 1;
        BACKOFF.full_jitter_ms(self.attempts, chance::random())
    }

    pub(super) fn up(&mut self, conn: ConnId, around: &mut Around<'_>) {
        self.attempts = 0;
        (self.conn, self.connecting) = (Some(conn), None);
        around.note(|| "the console is connected".to_owned());
        around.send.push((conn, Packet::Subscribe(Filter::of_console())));
        self.publish_documents(around);
        self.tell(dispatch::DispatchEvent::Connected, around);
    }

    pub(super) fn closed(&mut self, around: &mut Around<'_>) {
        (self.conn, self.connecting) = (None, None);
        let wait_ms = self.retry_ms();
        around.after(wait_ms, Event::Connect(Who::Console, self.life));
    }

    pub(super) fn message(&mut self, message: Message, around: &mut Around<'_>) {
        if self.inbox.is_empty() {
            around.after(between(0, 30), Event::Ingest(self.life));
        }
        self.inbox.push(message);
    }

    fn tell(&mut self, event: dispatch::DispatchEvent, around: &mut Around<'_>) {
        self.events.push_back(event);
        around.after(between(0, 5), Event::Dispatch(self.life));
    }

    /// One batch of messages, as `ingest::run`. False if the console is killed meanwhile.
    pub(super) fn ingest(&mut self, around: &mut Around<'_>) -> bool {
        let batch = std::mem::take(&mut self.inbox);
        let effects = self.store(&batch).now_or_never().unwrap();
        for (id, host, outcome) in std::mem::take(&mut self.ledger.fresh) {
            around.note(|| format!("the console has the outcome of {id} from {host}: {:?}", outcome.status));
            around.watch.outcome(id, host, outcome);
        }
        for state in std::mem::take(&mut self.ledger.stored) {
            around.watch.holds(state.host, state.held.epoch, state.held.seq, &state.held.state);
        }
        for host in std::mem::take(&mut self.ledger.old_wills) {
            // A clone's life is later than its original's, which counts again once it has objected.
            let fits = around.twins;
            around.watch.check(Promise::OldWill, fits, || format!("an old last will of {host} counts"));
        }
        if std::mem::take(&mut self.fuse) {
            return false;
        }
        let mut effects = effects;
        let admissions = std::mem::take(&mut effects.admissions);
        let events: Vec<_> = effects.take_events().collect();
        self.owed.add(effects.acks);
        if !std::mem::replace(&mut self.gathers, true) {
            around.after(GATHER.as_millis() as Millis, Event::Acks(self.life));
        }
        let now = clock::now_ms();
        for host in effects.refresh {
            if self.refreshes.may_ask(host, now) {
                around.note(|| format!("the console asks {host} for its whole state"));
                let refresh = Order::Refresh(Refresh { v: V1, issued_ms: now, within_ms: 0 });
                self.publish(Topic::Host(host, HostTopic::Command), around.seal.sign(refresh, false), around);
            }
        }
        for event in events {
            self.tell(event, around);
        }
        if !admissions.is_empty() {
            self.round(admissions, around);
        }
        true
    }

    async fn store(&mut self, batch: &[Message]) -> muster_console::ingest::effects::Effects {
        let topics = batch.iter().map(|message| &message.topic);
        let mut together = IngestBatch::begin(&mut self.ledger, topics, UNIT_SHARES, clock::now_ms()).await.unwrap();
        for message in batch {
            let Body::Bytes(payload) = &message.body else { continue };
            match together.apply(&mut self.ledger, &message.topic, payload, message.retained).await {
                Ok(()) | Err(ApplyError::Faulty(_)) => (),
                Err(ApplyError::Store(error)) => panic!("{error}"),
            }
        }
        together.finish(&mut self.ledger).await.unwrap()
    }

    /// Says what is owed, as `acks::say`.
    pub(super) fn acknowledge(&mut self, around: &mut Around<'_>) {
        self.gathers = false;
        for (host, acks) in self.owed.take() {
            for ack in messages(host, acks, clock::now_ms()) {
                let body = around.seal.sign(Order::Ack(ack), false);
                self.publish(Topic::Host(host, HostTopic::Ack), body, around);
            }
        }
    }

    /// A turn of `dispatch::run`.
    pub(super) fn dispatch(&mut self, around: &mut Around<'_>) {
        let mut actions = Vec::new();
        let now = clock::now_ms();
        for event in std::mem::take(&mut self.events) {
            match &event {
                dispatch::DispatchEvent::Connected => self.call(now, around),
                dispatch::DispatchEvent::Shown(hosts) => {
                    self.roll_call.iter_mut().for_each(|called| called.answered(hosts));
                }
                _ => (),
            }
            actions.extend(dispatch::take(&mut self.schedule, event, now));
        }
        if self.roll_call.as_ref().is_some_and(|called| called.is_void(now)) {
            self.call(now, around);
        }
        if let Some(called) = self.roll_call.take_if(|called| called.is_over(now))
            && self.conn.is_some()
        {
            let missing = called.missing(self.ledger.online());
            for host in self.ledger.take_offline(&missing, now) {
                around.note(|| format!("{host} does not answer the roll: it is offline"));
                self.schedule.presence(host, false, now);
            }
        }
        actions.extend(self.schedule.due(now));
        self.perform(actions, around);
        self.sleep(around);
    }

    /// As `refresh_all`.
    fn call(&mut self, now: Millis, around: &mut Around<'_>) {
        let (called, refresh) = RollCall::new(self.ledger.members.len() as u64, now);
        let body = around.seal.sign(Order::Refresh(refresh), false);
        let is_sent = self.slots().into_iter().all(|slot| self.publish(Topic::CommandAll(slot), body.clone(), around));
        self.roll_call = is_sent.then_some(called);
    }

    /// As `member_slots`.
    fn slots(&self) -> BTreeSet<Slot> {
        self.ledger.members.iter().map(|host| host.slot()).collect()
    }

    fn sleep(&mut self, around: &mut Around<'_>) {
        let now = clock::now_ms();
        let next = [self.schedule.next_ms(), self.roll_call.as_ref().map(|called| called.until_ms)]
            .into_iter()
            .flatten()
            .min();
        let wait_ms = next.map_or(SLEEP_MAX_MS, |at| (at - now).clamp(1, SLEEP_MAX_MS));
        let at_ms = around.now_ms + wait_ms;
        if self.wakes_ms.is_none_or(|wakes_ms| wakes_ms <= around.now_ms || at_ms < wakes_ms) {
            self.wakes_ms = Some(at_ms);
            around.after(wait_ms, Event::Dispatch(self.life));
        }
    }

    fn perform(&mut self, actions: Vec<ScheduleAction>, around: &mut Around<'_>) {
        for action in actions {
            let (command, topics) = match action {
                ScheduleAction::Miss(command, hosts) => {
                    around.note(|| format!("the console misses {} hosts of {command}", hosts.len()));
                    self.ledger.miss(command, &hosts);
                    continue;
                }
                ScheduleAction::Close(command, host, ended) => {
                    let outcome = ended.outcome(clock::now_ms());
                    around.note(|| format!("{command} ends without {host}: {:?}", outcome.status));
                    self.ledger.close(command, host, outcome, clock::now_ms());
                    continue;
                }
                ScheduleAction::Broadcast(command, readers) => {
                    (command, self.slots().into_iter().map(|slot| readers.topic(slot)).collect())
                }
                ScheduleAction::Send(command, host) => (command, vec![Topic::Host(host, HostTopic::Command)]),
            };
            // As `dispatch::record_first_sends`.
            [Some(command), self.schedule.cancelled_by(command)]
                .into_iter()
                .flatten()
                .for_each(|one| self.ledger.go_out(one));
            let Some(row) = self.ledger.commands.get(&command) else { continue };
            let (body, late_ms) = (row.signed.clone(), clock::now_ms() - row.expires_ms);
            around.watch.check(Promise::SentInTime, late_ms <= 0, || format!("{command} was sent {late_ms} ms late"));
            for topic in topics {
                around.note(|| format!("the console sends {command} to {topic}"));
                self.publish(topic, body.clone(), around);
            }
        }
    }

    fn publish(&mut self, topic: Topic, body: Body, around: &mut Around<'_>) -> bool {
        self.publish_as(topic, body, false, around)
    }

    pub(super) fn publish_as(&mut self, topic: Topic, body: Body, retain: bool, around: &mut Around<'_>) -> bool {
        let Some(conn) = self.conn else { return false };
        let message = Message::new(topic, body);
        if around.recorded.len() < 200 {
            around.recorded.push(message.clone());
        }
        around.send.push((conn, Packet::Publish { message, retain }));
        true
    }

    /// An operator wants something, as `dispatch::issue`.
    pub(super) fn submit(&mut self, command: Command, hosts: &[HostId], is_killed: bool, around: &mut Around<'_>) {
        let (id, expires_ms, verb) = (command.id, command.expires_ms, command.verb.clone());
        let issued_ms = command.issued_ms;
        around.note(|| format!("{id} is submitted for {} hosts: {}", hosts.len(), command.verb.name()));
        let broadcast = command.target.broadcast();
        let body = around.seal.sign(Order::Command(command), false);
        around.ordered.extend(hosts.iter().map(|host| (id, *host)));
        let rows = hosts.iter().map(|host| (*host, (CommandState::Waiting, None))).collect();
        let kind = CommandClass::of(&verb);
        let hosts = hosts.iter().map(|host| (*host, CommandReach::No)).collect();
        let mut open = OpenCommand { id, expires_ms, bytes: SIGNED_BYTES, kind, hosts };
        self.mark_unneeded(&mut open);
        // A cancellation that no host needs is recorded as not sent.
        let went_out = open.hosts.iter().any(|(_, reached)| *reached != CommandReach::Unneeded);
        let broadcasts = broadcast.is_some();
        let row =
            CommandRow { issued_ms, expires_ms, verb, broadcast: broadcasts, went_out, signed: body, hosts: rows };
        self.ledger.add(id, row);
        if is_killed {
            return;
        }
        self.tell(dispatch::DispatchEvent::Submitted { open, broadcast }, around);
    }

    /// As `dispatch::mark_unneeded` and `store::command::done_with`.
    fn mark_unneeded(&self, open: &mut OpenCommand) {
        let CommandClass::Cancel(which) = open.kind else { return };
        let Some(row) = self.ledger.commands.get(&which) else { return };
        let is_over = |host| row.hosts.get(host).map_or(!row.broadcast, |(state, _)| *state == CommandState::Done);
        for (host, reached) in &mut open.hosts {
            if is_over(host) && *reached == CommandReach::No {
                *reached = CommandReach::Unneeded;
            }
        }
    }

    /// How a command stands with a host.
    pub(super) fn stands(&self, id: CommandId, host: HostId) -> Option<CommandState> {
        self.ledger.commands.get(&id)?.hosts.get(&host).map(|(state, _)| *state)
    }
}
