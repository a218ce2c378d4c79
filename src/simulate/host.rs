//! One life of a simulated host: the loop of an agent, with an agent's own link, voice, signature check and rules, over a
//! store that it shares with others. What it is told to run it pretends to.
//!
//! **Invariant: record, then act**, as an agent has it: a command is in the journal before the broker hears that it
//! arrived and before it takes effect; its answer is stored before it is said.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_topics::{
    Millis, V1,
    ack::Ack,
    command::{Command, LIFETIME_MAX_MS, Refresh, Verb},
    envelope::{self, Kind, Verified},
    name::{CommandId, Digest, Name},
    outcome::{Content, Outcome, Output, RefusalCode, Report, Status},
    presence::{Presence, PresenceState},
    topic::{HostTopic, Topic},
    unit::Exit,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    store::{Answer, Entry, Journal, Number, Outbox, Unfinished, key},
    tally::Tally,
};
use crate::{
    agent::{
        join::Identity,
        link::{Connection, Link, LinkEvent, Me, Message},
        voice::Voice,
    },
    chance, clock,
    rules::{
        Refusal,
        authorise::{self, Channel, Head, Judge, Policy, Verdict as Judgement},
        backoff,
        presence::Verdict,
        time::KnownTime,
    },
};

/// As an agent: messages that are held back while it is not clear whether this host may work.
const HELD_MAX: usize = 64;
/// As an agent: the longest time that a refresh may be put off.
const REFRESH_WITHIN_MAX_MS: u64 = 10 * 60_000;
/// As an agent: `running` is told only of a command that takes longer than this.
const QUIET_MS: Millis = 1_000;
/// As an agent: how long a goodbye may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// How hosts pretend.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    /// How long a program takes.
    pub(super) takes_ms: Millis,
    /// The share of commands that fail, in `0..=1`.
    pub(super) fail: f64,
    /// What all hosts carry, and forbid, and run as.
    pub(super) realms: BTreeSet<Name>,
    pub(super) policy: Policy,
    pub(super) user: String,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// With a goodbye, as an agent that is stopped.
    InOrder,
    /// Without a word, as one whose power fails: its last will is spoken.
    Broken,
}

/// What a host is made of.
pub(super) struct Parts {
    pub(super) n: Number,
    pub(super) me: Me,
    pub(super) former: Vec<Uuid>,
    pub(super) identity: Arc<Identity>,
    pub(super) created_ms: Millis,
    pub(super) time: KnownTime,
    pub(super) voice: Voice<Outbox>,
    pub(super) outbox: Outbox,
    pub(super) journal: Journal,
    pub(super) manner: Arc<Manner>,
    pub(super) tally: Arc<Tally>,
}

/// A command that takes its time.
#[derive(Clone, Copy, Debug)]
struct Running {
    since_ms: Millis,
    end_ms: Millis,
    received_ms: Millis,
    /// After how long it is ended, by its own time limit.
    late_ms: Millis,
    told: bool,
}

/// See the module.
pub(super) struct Host {
    parts: Parts,
    running: BTreeMap<CommandId, Running>,
    refreshed_ms: Millis,
    refresh_due_ms: Option<Millis>,
    held: VecDeque<Message>,
    sole: bool,
    began: Instant,
}

/// The writer has ended: so does everything.
#[derive(Debug)]
struct Ended;

type Done = Result<(), Ended>;

impl Host {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            parts,
            running: BTreeMap::new(),
            refreshed_ms: Millis::MIN,
            refresh_due_ms: None,
            held: VecDeque::new(),
            sole: false,
            began: Instant::now(),
        }
    }

    /// Milliseconds of this life, by a clock that only goes forward.
    fn now_ms(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// Lives until `leave` says how to end. `unfinished` is what an earlier life left; gives what this one leaves.
    pub(super) async fn run(
        mut self,
        mut link: Link,
        unfinished: Vec<Unfinished>,
        leave: impl Future<Output = Leave>,
    ) -> Vec<Unfinished> {
        tokio::pin!(leave);
        self.resume(unfinished);
        let how = loop {
            let deadline = self.deadline();
            // Each arm is cancel-safe: the channel keeps what is not taken, and the sleep is made anew.
            let done = tokio::select! {
                how = &mut leave => break how,
                event = link.events.recv() => match event {
                    Some(event) => self.link_event(event, &link).await,
                    None => break Leave::Broken,
                },
                () = until(deadline) => self.on_time(&link).await,
            };
            let now_ms = self.now_ms();
            // An outbox in memory has no errors.
            if done.is_err() || self.parts.voice.pump(now_ms).await.is_err() {
                break Leave::Broken;
            }
        };
        if self.sole {
            self.parts.tally.online.fetch_sub(1, Ordering::Relaxed);
        }
        if how == Leave::InOrder {
            self.farewell(&mut link).await;
        }
        let left =
            |(id, one): (CommandId, Running)| Unfinished { id, received_ms: one.received_ms, late_ms: one.late_ms };
        self.running.into_iter().map(left).collect()
    }

    fn deadline(&self) -> Option<Instant> {
        let running = self
            .running
            .values()
            .map(|one| if one.told { one.end_ms } else { one.end_ms.min(one.since_ms + QUIET_MS) });
        let due = [self.refresh_due_ms, self.parts.voice.next_ms(self.now_ms()), running.min()];
        let due_ms = due.into_iter().flatten().min()?;
        // A timer's grain is a millisecond: a little later is never too early.
        Some(self.began + Duration::from_millis(due_ms.max(0).unsigned_abs()) + Duration::from_millis(1))
    }

    async fn link_event(&mut self, event: LinkEvent, link: &Link) -> Done {
        match event {
            LinkEvent::Up(connection) => {
                let now_ms = self.now_ms();
                self.parts.voice.up(connection, self.parts.former.clone(), now_ms);
                Ok(())
            }
            LinkEvent::Down => {
                self.down();
                Ok(())
            }
            LinkEvent::Message(message) => self.message(message, link).await,
        }
    }

    fn down(&mut self) {
        self.parts.voice.down();
        self.held.clear();
        if std::mem::take(&mut self.sole) {
            self.parts.tally.online.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn message(&mut self, message: Message, link: &Link) -> Done {
        if matches!(&message.topic, Topic::Host(_, HostTopic::Presence)) {
            let now_ms = self.now_ms();
            let verdict = self.parts.voice.heard_presence(message.payload(), now_ms);
            self.parts.voice.done(message);
            return self.stand(verdict, link).await;
        }
        if !self.parts.voice.is_sole() || !self.held.is_empty() {
            if self.held.len() < HELD_MAX {
                self.held.push_back(message);
            }
            return Ok(());
        }
        self.order(message).await
    }

    async fn stand(&mut self, verdict: Verdict, link: &Link) -> Done {
        match verdict {
            Verdict::Ignore | Verdict::Assert => {}
            Verdict::Withdraw => {
                tracing::error!(host.id = %self.parts.me.host, "duplicate: another simulation has this host");
                link.withdraw();
                self.down();
            }
            Verdict::Settled => {
                let now_ms = self.now_ms();
                self.parts.voice.begin(now_ms);
                self.sole = true;
                self.parts.tally.online.fetch_add(1, Ordering::Relaxed);
                while let Some(message) = self.held.pop_front() {
                    self.order(message).await?;
                }
            }
        }
        Ok(())
    }

    async fn on_time(&mut self, link: &Link) -> Done {
        let now_ms = self.now_ms();
        if self.refresh_due_ms.is_some_and(|due_ms| now_ms >= due_ms) {
            self.refresh_due_ms = None;
            self.parts.voice.refresh(now_ms);
        }
        self.tell_slow(now_ms);
        while let Some(id) = self.running.iter().find(|(_, one)| one.end_ms <= now_ms).map(|(id, _)| *id) {
            let Some(one) = self.running.remove(&id) else { break };
            let is_late = self.parts.manner.takes_ms > one.late_ms;
            let status = if is_late { Status::TimedOut } else { Status::Exited { exit: self.exit(id) } };
            self.finish(id, status, Some(one.received_ms)).await?;
        }
        let verdict = self.parts.voice.tick(now_ms);
        self.stand(verdict, link).await
    }

    fn tell_slow(&mut self, now_ms: Millis) {
        for (id, one) in &mut self.running {
            if !one.told && now_ms >= one.since_ms + QUIET_MS {
                one.told = true;
                let at_ms = clock::now_ms();
                self.parts.voice.note(Report { v: V1, command: *id, seq: 0, at_ms, content: Content::Running });
            }
        }
    }

    /// A message on a topic of signed ones.
    async fn order(&mut self, message: Message) -> Done {
        let channel = match &message.topic {
            Topic::CommandAll | Topic::CommandGroup(_) => Channel::Broadcast,
            _ => Channel::Own,
        };
        match envelope::open(message.payload(), &self.parts.identity.membership.command_keys) {
            Ok(verified) => self.signed(&verified, channel, message).await,
            Err(error) => {
                tracing::debug!(%error, "a message is rejected");
                self.parts.tally.rejected.fetch_add(1, Ordering::Relaxed);
                self.parts.voice.done(message);
                Ok(())
            }
        }
    }

    async fn signed(&mut self, verified: &Verified, channel: Channel, message: Message) -> Done {
        match verified.kind() {
            Kind::Command => return self.command(verified, channel, message).await,
            Kind::Ack => {
                if let Ok(ack) = verified.body::<Ack>() {
                    self.ack(ack).await?;
                }
            }
            Kind::Refresh => {
                if let Ok(refresh) = verified.body::<Refresh>() {
                    self.refresh(&refresh);
                }
            }
        }
        self.parts.voice.done(message);
        Ok(())
    }

    async fn ack(&mut self, ack: Ack) -> Done {
        if ack.host != self.parts.me.host {
            return Ok(());
        }
        self.parts.time.saw(ack.issued_ms, clock::now_ms());
        if !ack.reports.is_empty() {
            let signed_ms = self.parts.time.signed_ms();
            self.parts.journal.acknowledge(self.parts.n, ack.reports.clone(), signed_ms).await.ok_or(Ended)?;
            self.parts.outbox.remove(&ack.reports);
            self.parts.tally.acknowledged.fetch_add(ack.reports.len() as u64, Ordering::Relaxed);
        }
        self.parts.voice.acknowledged(&ack);
        Ok(())
    }

    fn refresh(&mut self, refresh: &Refresh) {
        // Each is good once, as with an agent.
        if refresh.issued_ms <= self.refreshed_ms {
            return;
        }
        self.refreshed_ms = refresh.issued_ms;
        self.parts.time.saw(refresh.issued_ms, clock::now_ms());
        let within_ms = Millis::try_from(refresh.within_ms.min(REFRESH_WITHIN_MAX_MS)).unwrap_or_default();
        let due_ms = self.now_ms() + backoff::share(within_ms, chance::random());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    async fn command(&mut self, verified: &Verified, channel: Channel, message: Message) -> Done {
        let clock_ms = clock::now_ms();
        let command = match verified.body::<Command>() {
            Ok(command) => command,
            Err(error) => {
                if let Ok(head) = verified.body::<Head>()
                    && head.target.includes(self.parts.me.host)
                {
                    let text = format!("this host does not understand the command: {error}");
                    self.refuse(head.id, head.expires_ms, Refusal::new(RefusalCode::Invalid, text)).await?;
                }
                self.parts.voice.done(message);
                return Ok(());
            }
        };
        let judge = Judge {
            host: self.parts.me.host,
            realms: &self.parts.manner.realms,
            policy: &self.parts.manner.policy,
            user: &self.parts.manner.user,
            created_ms: self.parts.created_ms,
            time: self.parts.time,
            clock_ms,
        };
        let issued_ms = command.issued_ms;
        let verdict = authorise::check(command, channel, &judge);
        self.parts.time.saw(issued_ms, clock_ms);
        match verdict {
            Judgement::NotMine => {}
            Judgement::Refused(command, refusal) => self.refuse(command.id, command.expires_ms, refusal).await?,
            Judgement::Granted(command) => return self.granted(command.into_inner(), message).await,
        }
        self.parts.voice.done(message);
        Ok(())
    }

    async fn granted(&mut self, command: Command, message: Message) -> Done {
        let id = command.id;
        match &command.verb {
            Verb::Exec(exec) => {
                let late_ms = Millis::try_from(exec.timeout_ms).unwrap_or(Millis::MAX);
                if !self.enter(&command).await? {
                    self.repeated(id).await?;
                    self.parts.voice.done(message);
                    return Ok(());
                }
                // It is recorded: now the broker may forget it, and it may be acted on.
                self.parts.voice.done(message);
                return self.launch(id, clock::now_ms(), late_ms).await;
            }
            Verb::Cancel { command: which } => self.cancel(&command, *which).await?,
            other => {
                let text = format!(
                    "a simulated host does not do {}: it has no units. hint: exec and cancel work",
                    other.name()
                );
                self.refuse(id, command.expires_ms, Refusal::new(RefusalCode::Unsupported, text)).await?;
            }
        }
        self.parts.voice.done(message);
        Ok(())
    }

    async fn enter(&self, command: &Command) -> Result<bool, Ended> {
        // Made of texts and numbers, it serialises, as it did when it was signed.
        let body = serde_json::to_string(command).unwrap_or_default().into();
        let entry = Entry { id: command.id, body, expires_ms: command.expires_ms, received_ms: clock::now_ms() };
        let new = self.parts.journal.enter(self.parts.n, entry, None).await.ok_or(Ended)?;
        if new {
            self.parts.tally.commands.fetch_add(1, Ordering::Relaxed);
        }
        Ok(new)
    }

    /// Pretends to run a program.
    async fn launch(&mut self, id: CommandId, received_ms: Millis, late_ms: Millis) -> Done {
        let takes_ms = self.parts.manner.takes_ms;
        if takes_ms == 0 {
            return self.finish(id, Status::Exited { exit: self.exit(id) }, Some(received_ms)).await;
        }
        let since_ms = self.now_ms();
        let end_ms = since_ms.saturating_add(takes_ms.min(late_ms));
        self.running.insert(id, Running { since_ms, end_ms, received_ms, late_ms, told: false });
        Ok(())
    }

    /// Takes up what an earlier life left: these programs went on without it, as under an agent's shim.
    fn resume(&mut self, unfinished: Vec<Unfinished>) {
        let (now_ms, clock_ms) = (self.now_ms(), clock::now_ms());
        for Unfinished { id, received_ms, late_ms } in unfinished {
            let gone_ms = clock_ms.saturating_sub(received_ms).max(0);
            let end_ms = now_ms + self.parts.manner.takes_ms.min(late_ms).saturating_sub(gone_ms).max(0);
            self.running.insert(id, Running { since_ms: now_ms, end_ms, received_ms, late_ms, told: false });
        }
    }

    /// How a program ends: by lot, the same however often it is asked.
    fn exit(&self, id: CommandId) -> Exit {
        let lot = Digest::of(format!("{} {id}", self.parts.me.host).as_bytes());
        let lot = u32::from_str_radix(&lot.as_str()[..8], 16).unwrap_or(u32::MAX);
        Exit::Code(i32::from(f64::from(lot) < self.parts.manner.fail * f64::from(u32::MAX)))
    }

    /// A command takes effect: in the one transaction in which it is answered.
    async fn finish(&mut self, id: CommandId, status: Status, started_ms: Option<Millis>) -> Done {
        let answer = answer(id, status, started_ms);
        self.parts.journal.finish(self.parts.n, id, answer.clone()).await.ok_or(Ended)?;
        self.say(id, answer.payload);
        Ok(())
    }

    /// Puts what was committed where the voice finds it.
    fn say(&mut self, id: CommandId, payload: Vec<u8>) {
        let now_ms = self.now_ms();
        self.parts.outbox.put(key(id), payload);
        self.parts.tally.outcomes.fetch_add(1, Ordering::Relaxed);
        self.parts.voice.queue(key(id), now_ms);
    }

    /// Answers a command about which nothing is done.
    async fn refuse(&mut self, id: CommandId, expires_ms: Millis, refusal: Refusal) -> Done {
        self.parts.tally.refused.fetch_add(1, Ordering::Relaxed);
        self.answer_now(id, expires_ms, refusal.into()).await
    }

    async fn answer_now(&mut self, id: CommandId, expires_ms: Millis, status: Status) -> Done {
        let answer = answer(id, status, None);
        // What is refused is never taken up again, so its text is of no use.
        let entry = Entry { id, body: "{}".into(), expires_ms, received_ms: clock::now_ms() };
        let new = self.parts.journal.enter(self.parts.n, entry, Some(answer.clone())).await.ok_or(Ended)?;
        if !new {
            return self.repeated(id).await;
        }
        self.say(id, answer.payload);
        Ok(())
    }

    /// A command that the journal has already: if it has its answer, that is said again.
    async fn repeated(&mut self, id: CommandId) -> Done {
        self.parts.tally.repeated.fetch_add(1, Ordering::Relaxed);
        if let Some(payload) = self.parts.journal.again(self.parts.n, id).await.ok_or(Ended)? {
            let now_ms = self.now_ms();
            self.parts.outbox.put(key(id), payload);
            self.parts.voice.queue(key(id), now_ms);
        } else if let Some(one) = self.running.get_mut(&id) {
            one.told = false;
        }
        Ok(())
    }

    /// Ends another command. One that has not come yet is refused when it does.
    async fn cancel(&mut self, command: &Command, which: CommandId) -> Done {
        if let Some(one) = self.running.remove(&which) {
            let ended = Status::Exited { exit: Exit::Signal(nix::sys::signal::Signal::SIGTERM as i32) };
            self.finish(which, ended, Some(one.received_ms)).await?;
        } else {
            // It cannot have been issued later than this one, and no command lives longer.
            let expires_ms = command.issued_ms.saturating_add(LIFETIME_MAX_MS);
            let refusal = Refusal::new(RefusalCode::Conflict, "it was cancelled before it could be begun");
            self.answer_now(which, expires_ms, refusal.into()).await?;
        }
        self.answer_now(command.id, command.expires_ms, Status::Completed).await
    }

    /// Says goodbye and waits, a little, until the broker has heard it.
    async fn farewell(&mut self, link: &mut Link) {
        let Some(connection) = self.parts.voice.farewell() else { return };
        let heard = async {
            while let Some(event) = link.events.recv().await {
                match event {
                    LinkEvent::Message(message) if is_echo(&message, self.parts.me.instance) => break,
                    LinkEvent::Down => return,
                    LinkEvent::Up(_) | LinkEvent::Message(_) => {}
                }
            }
            disconnect(&connection);
            while !matches!(link.events.recv().await, Some(LinkEvent::Down) | None) {}
        };
        let _ = tokio::time::timeout(FAREWELL, heard).await;
    }
}

fn disconnect(connection: &Connection) {
    // Full or gone: then the last will says what was said already.
    let _ = connection.disconnect();
}

/// Whether this is the last word of a host.
fn is_echo(message: &Message, instance: Uuid) -> bool {
    matches!(&message.topic, Topic::Host(_, HostTopic::Presence))
        && serde_json::from_slice::<Presence>(message.payload())
            .is_ok_and(|presence| presence.instance == instance && presence.state == PresenceState::Stopped)
}

/// An answer as it is said, and kept.
fn answer(id: CommandId, status: Status, started_ms: Option<Millis>) -> Answer {
    let at_ms = clock::now_ms();
    let (stdout, stderr) = (Output::default(), Output::default());
    let outcome = Outcome { status, started_ms, finished_ms: at_ms, stdout, stderr };
    let key = key(id);
    let report = Report { v: V1, command: id, seq: key.seq, at_ms, content: Content::Done { outcome } };
    // Made of texts and numbers, it serialises.
    Answer { at_ms, payload: serde_json::to_vec(&report).unwrap_or_default() }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}
