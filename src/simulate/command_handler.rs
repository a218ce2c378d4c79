//! Handles a message as the agent ([`muster_agent`]) does: signature, permission, journal, a pretended result, the outcome.

use std::sync::atomic::Ordering;

use muster_agent::{join::derived_sealing_key, link::InboundMessage, store::journal::KEPT_AFTER_EXPIRY_MS};
use muster_base::{chance, clock};
use muster_rules::{
    CommandRefusal,
    authorise::{self, CommandHead, CommandSource, CommandVerdict as Judgement, JudgeContext},
    backoff,
    receive::{self, AckEffect},
};
use muster_topics::{
    Millis, V1,
    ack::Ack,
    alert::AlertRules,
    command::{Command, Refresh, Verb},
    envelope::{self, Kind, Verified},
    label::{self, HostLabels},
    name::{CommandId, Digest},
    outcome::{Content, Outcome, Output, RefusalCode, Report, Status},
    topic::Topic,
    unit::Exit,
};

use super::{
    host::{HostParts, PretendedCommand, SimulatedHost, WriteResult, WriterEnded},
    store::{Answer, InterruptedCommand, key},
    writer::Entry,
};

impl SimulatedHost {
    /// Handles a message of a signed topic.
    pub(super) async fn order(&mut self, message: InboundMessage) -> WriteResult {
        let channel = match &message.topic {
            Topic::CommandAll | Topic::CommandGroup(_) => CommandSource::Broadcast,
            _ => CommandSource::Own,
        };
        match envelope::open(message.payload(), &self.parts.identity.membership.command_keys) {
            Ok(verified) => self.signed(&verified, channel, message).await,
            Err(error) => {
                tracing::debug!(%error, "a message is rejected");
                self.parts.tally.rejected.fetch_add(1, Ordering::Relaxed);
                self.parts.publisher.done(message);
                Ok(())
            }
        }
    }

    async fn signed(&mut self, verified: &Verified, channel: CommandSource, message: InboundMessage) -> WriteResult {
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
            Kind::AlertRules => {
                if let Ok(told) = verified.body::<AlertRules>() {
                    self.alert_rules(&told);
                }
            }
            Kind::HostLabels => {
                if let Ok(told) = verified.body::<HostLabels>() {
                    self.host_labels(told);
                }
            }
        }
        self.parts.publisher.done(message);
        Ok(())
    }

    async fn ack(&mut self, ack: Ack) -> WriteResult {
        // The signed time is only stored together with answers, because these lives are short.
        let taken = receive::ack(&ack, self.parts.me.host, &mut self.parts.time, Millis::MAX, clock::now_ms());
        if taken == AckEffect::NotMine {
            return Ok(());
        }
        let life_ms = self.now_ms();
        if ack.heartbeat.is_some_and(|heartbeat| self.parts.publisher.beats.is_fresh(heartbeat, life_ms)) {
            self.parts.time = self.parts.time.at(life_ms);
            let _ = self.parts.time.observe_fresh(ack.issued_ms, clock::now_ms(), KEPT_AFTER_EXPIRY_MS);
        }
        if !ack.reports.is_empty() {
            let signed_ms = self.parts.time.signed_ms();
            self.parts.journal.acknowledge(self.parts.n, ack.reports.clone(), signed_ms).await.ok_or(WriterEnded)?;
            self.parts.outbox.remove(&ack.reports);
            self.parts.tally.acknowledged.fetch_add(ack.reports.len() as u64, Ordering::Relaxed);
        }
        if !ack.metrics.is_empty() {
            let (batches, values) = self.parts.outbox.remove_batches(&ack.metrics);
            self.parts.tally.batches_acknowledged.fetch_add(batches, Ordering::Relaxed);
            self.parts.tally.values_acknowledged.fetch_add(values, Ordering::Relaxed);
        }
        self.parts.publisher.acknowledged(&ack);
        Ok(())
    }

    /// A simulated host raises no alerts. It acknowledges the rules, as any host, so that the console does not repeat
    /// them.
    fn alert_rules(&mut self, told: &AlertRules) {
        let HostParts { me, state, time, .. } = &mut self.parts;
        if told.host != me.host || state.alert_rules.is_some_and(|rules| told.generation <= rules) {
            return;
        }
        time.observe(told.issued_ms, clock::now_ms());
        state.alert_rules = Some(told.generation);
        self.state_changed();
    }

    /// Takes the console's labels, as an agent does, but only for this life.
    fn host_labels(&mut self, told: HostLabels) {
        let HostParts { me, state, time, groups, .. } = &mut self.parts;
        if told.host != me.host || state.label_generation.is_some_and(|labels| told.generation <= labels) {
            return;
        }
        time.observe(told.issued_ms, clock::now_ms());
        let own = state.own_labels().clone();
        state.labels = label::merge(&own, &told.labels);
        state.own_labels = (!told.labels.is_empty()).then_some(own);
        state.label_generation = Some(told.generation);
        groups.send_replace(state.labels.keys().cloned().collect());
        self.state_changed();
    }

    fn state_changed(&mut self) {
        let HostParts { state, publisher, .. } = &mut self.parts;
        publisher.beats.observe(state.clone());
        publisher.beats.hasten();
    }

    fn refresh(&mut self, refresh: &Refresh) {
        let taken = receive::refresh(refresh, &mut self.refreshes, &mut self.parts.time, clock::now_ms());
        let Some(within_ms) = taken else { return };
        let due_ms = self.now_ms() + backoff::share(within_ms, chance::random());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    async fn command(&mut self, verified: &Verified, channel: CommandSource, message: InboundMessage) -> WriteResult {
        let clock_ms = clock::now_ms();
        let host = self.seen();
        let mut command = match verified.body::<Command>() {
            Ok(command) => command,
            Err(error) => {
                if let Ok(head) = verified.body::<CommandHead>()
                    && let Some(refusal) = authorise::not_understood(&head, channel, &host, &error.to_string())
                {
                    self.refuse(head.id, head.expires_ms, refusal).await?;
                }
                self.parts.publisher.done(message);
                return Ok(());
            }
        };
        if let Some(sealed) = &mut command.sealed {
            sealed.key = verified.key().map(str::to_owned);
        }
        let judge = JudgeContext {
            host: &host,
            realms: &self.parts.manner.realms,
            policy: &self.parts.manner.policy,
            user: &self.parts.manner.user,
            created_ms: self.parts.created_ms,
            lost_ms: None,
            time: self.parts.time.at(self.now_ms()),
            clock_ms,
        };
        let mut time = self.parts.time;
        let verdict = receive::command(command, channel, &judge, &mut time);
        self.parts.time = time;
        match verdict {
            Judgement::NotMine | Judgement::Later(_) => {}
            Judgement::Refused(command, refusal) => self.refuse(command.id, command.expires_ms, refusal).await?,
            Judgement::Granted(command) => return self.granted(command.into_inner(), message).await,
        }
        self.parts.publisher.done(message);
        Ok(())
    }

    async fn granted(&mut self, command: Command, message: InboundMessage) -> WriteResult {
        let id = command.id;
        if command.sealed.is_some()
            && let Err(error) = derived_sealing_key(&self.parts.identity.key).open(&command, self.parts.me.host)
        {
            self.refuse(id, command.expires_ms, CommandRefusal::new(RefusalCode::Invalid, error.to_string())).await?;
            self.parts.publisher.done(message);
            return Ok(());
        }
        match &command.verb {
            Verb::Exec(exec) if exec.container.is_none() => {
                let late_ms = Millis::try_from(exec.timeout_ms).unwrap_or(Millis::MAX);
                if self.parts.manner.takes_ms == 0 {
                    self.do_at_once(&command).await?;
                    self.parts.publisher.done(message);
                    return Ok(());
                }
                if !self.enter(&command).await? {
                    self.repeated(id).await?;
                    self.parts.publisher.done(message);
                    return Ok(());
                }
                // It is recorded: now the broker may forget it, and it may take effect.
                self.parts.publisher.done(message);
                self.launch(id, clock::now_ms(), late_ms);
                return Ok(());
            }
            Verb::Cancel { command: which } => self.cancel(&command, *which).await?,
            other => {
                let text = format!(
                    "a simulated host does not do {}: it has no units. hint: exec and cancel work",
                    other.name()
                );
                self.refuse(id, command.expires_ms, CommandRefusal::new(RefusalCode::Unsupported, text)).await?;
            }
        }
        self.parts.publisher.done(message);
        Ok(())
    }

    fn entry(command: &Command, is_done: bool) -> Entry {
        // It consists of texts and numbers, and was serialised when it was signed.
        let body = serde_json::to_string(command).unwrap_or_default().into();
        Entry { id: command.id, body, expires_ms: command.expires_ms, received_ms: clock::now_ms(), is_done }
    }

    async fn enter(&self, command: &Command) -> Result<bool, WriterEnded> {
        let entry = Self::entry(command, false);
        let new = self.parts.journal.enter(self.parts.n, entry, None).await.ok_or(WriterEnded)?;
        if new {
            self.parts.tally.commands.fetch_add(1, Ordering::Relaxed);
        }
        Ok(new)
    }

    /// Runs a program that takes no time: it begins and ends in one transaction, like a change of desired state.
    async fn do_at_once(&mut self, command: &Command) -> WriteResult {
        let (id, entry) = (command.id, Self::entry(command, true));
        let answer = answer(id, Status::exited(self.exit(id)), Some(entry.received_ms));
        if !self.parts.journal.enter(self.parts.n, entry, Some(answer.clone())).await.ok_or(WriterEnded)? {
            return self.repeated(id).await;
        }
        self.parts.tally.commands.fetch_add(1, Ordering::Relaxed);
        self.say(id, answer.payload);
        Ok(())
    }

    /// Pretends to run a program for a while.
    fn launch(&mut self, id: CommandId, received_ms: Millis, late_ms: Millis) {
        let since_ms = self.now_ms();
        let end_ms = since_ms.saturating_add(self.parts.manner.takes_ms.min(late_ms));
        self.running.insert(id, PretendedCommand { since_ms, end_ms, received_ms, late_ms, told: false });
    }

    /// Resumes programs of an earlier life: they continued without it, as under an agent's shim.
    pub(super) fn resume(&mut self, unfinished: Vec<InterruptedCommand>) {
        let (now_ms, clock_ms) = (self.now_ms(), clock::now_ms());
        for InterruptedCommand { id, received_ms, late_ms } in unfinished {
            let gone_ms = clock_ms.saturating_sub(received_ms).max(0);
            let end_ms = now_ms + self.parts.manner.takes_ms.min(late_ms).saturating_sub(gone_ms).max(0);
            self.running.insert(id, PretendedCommand { since_ms: now_ms, end_ms, received_ms, late_ms, told: false });
        }
    }

    /// How a program ends: random, but always the same for one command.
    pub(super) fn exit(&self, id: CommandId) -> Exit {
        let lot = Digest::of(format!("{} {id}", self.parts.me.host).as_bytes());
        let lot = u32::from_str_radix(&lot.as_str()[..8], 16).unwrap_or(u32::MAX);
        Exit::Code(i32::from(f64::from(lot) < self.parts.manner.fail * f64::from(u32::MAX)))
    }

    /// A command takes effect, in the transaction that also stores its answer.
    pub(super) async fn finish(&mut self, id: CommandId, status: Status, started_ms: Option<Millis>) -> WriteResult {
        let answer = answer(id, status, started_ms);
        self.parts.journal.finish(self.parts.n, id, answer.clone()).await.ok_or(WriterEnded)?;
        self.say(id, answer.payload);
        Ok(())
    }

    /// Puts a committed answer into the outbox.
    fn say(&mut self, id: CommandId, payload: Vec<u8>) {
        let now_ms = self.now_ms();
        self.parts.outbox.put(key(id), payload);
        self.parts.tally.outcomes.fetch_add(1, Ordering::Relaxed);
        self.parts.publisher.queue(key(id), now_ms);
    }

    /// Answers a command that is refused.
    async fn refuse(&mut self, id: CommandId, expires_ms: Millis, refusal: CommandRefusal) -> WriteResult {
        self.parts.tally.refused.fetch_add(1, Ordering::Relaxed);
        self.answer_now(id, expires_ms, refusal.into()).await
    }

    async fn answer_now(&mut self, id: CommandId, expires_ms: Millis, status: Status) -> WriteResult {
        let answer = answer(id, status, None);
        // A refused command is never resumed, so its text is not needed.
        let entry = Entry { id, body: "{}".into(), expires_ms, received_ms: clock::now_ms(), is_done: false };
        let new = self.parts.journal.enter(self.parts.n, entry, Some(answer.clone())).await.ok_or(WriterEnded)?;
        if !new {
            return self.repeated(id).await;
        }
        self.say(id, answer.payload);
        Ok(())
    }

    /// Handles a command that is in the journal already: if it has an answer, that is sent again.
    async fn repeated(&mut self, id: CommandId) -> WriteResult {
        self.parts.tally.repeated.fetch_add(1, Ordering::Relaxed);
        if let Some(payload) = self.parts.journal.again(self.parts.n, id).await.ok_or(WriterEnded)? {
            let now_ms = self.now_ms();
            self.parts.outbox.put(key(id), payload);
            self.parts.publisher.queue(key(id), now_ms);
        } else if let Some(one) = self.running.get_mut(&id) {
            one.told = false;
        }
        Ok(())
    }

    /// Cancels another command. If that one has not arrived yet, it is refused when it arrives.
    async fn cancel(&mut self, command: &Command, which: CommandId) -> WriteResult {
        if let Some(one) = self.running.remove(&which) {
            let ended = Status::exited(Exit::Signal(nix::sys::signal::Signal::SIGTERM as i32));
            self.finish(which, ended, Some(one.received_ms)).await?;
        } else {
            let expires_ms = receive::cancelled_expires_ms(command.issued_ms);
            let refusal = CommandRefusal::new(RefusalCode::Conflict, "it was cancelled before it could be begun");
            self.answer_now(which, expires_ms, refusal.into()).await?;
        }
        self.answer_now(command.id, command.expires_ms, Status::Completed).await
    }
}

/// Creates an answer.
fn answer(id: CommandId, status: Status, started_ms: Option<Millis>) -> Answer {
    let at_ms = clock::now_ms();
    let (stdout, stderr) = (Output::default(), Output::default());
    let outcome = Outcome { status, started_ms, finished_ms: at_ms, stdout, stderr };
    let key = key(id);
    let report = Report { v: V1, command: id, seq: key.seq, at_ms, content: Content::Done { outcome } };
    // It consists of texts and numbers, so serialising cannot fail.
    Answer { at_ms, payload: serde_json::to_vec(&report).unwrap_or_default() }
}
