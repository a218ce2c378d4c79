//! Performs what the session asks of the store, and pretends to run commands.

use std::sync::{PoisonError, atomic::Ordering};

use muster_agent::join::derived_sealing_key;
use muster_base::clock;
use muster_rules::{
    CommandRefusal,
    authorise::Authorised,
    host_plan::{DeploymentPlan, HostPlan, UnitAction, UnitPlan},
};
use muster_session::{
    interface::Input,
    running::CommandStage,
    store::{CommandTaken, NewDocument, RepeatedCommand, StoreReply, StoreRequest},
};
use muster_topics::{
    Millis, V1,
    command::{Command, Verb},
    desired::{DesiredDeployment, DesiredReport, PlanQuestion, PlanRequest},
    diagnostic::Diagnostic,
    label,
    name::CommandId,
    numbered::{NumberedContent, NumberedDocument},
    outcome::{Content, Data, Outcome, Output, RefusalCode, Report, Status},
    unit::Exit,
};

use super::{
    admission::KeptDesired,
    host::{PretendedCommand, SimulatedHost, WriteResult, WriterEnded},
    store::{Answer, InterruptedCommand, key},
    writer::Entry,
};

/// A command that has ended.
#[derive(Clone, Debug)]
pub(super) struct EndedCommand {
    pub(super) id: CommandId,
    pub(super) status: Status,
    pub(super) started_ms: Option<Millis>,
}

impl SimulatedHost {
    /// Performs a request of the session. The writer tries until it succeeds.
    pub(super) async fn perform_store(
        &mut self,
        request: StoreRequest<EndedCommand>,
    ) -> WriteResult<StoreReply<EndedCommand>> {
        Ok(match request {
            StoreRequest::Take { command, .. } => StoreReply::Command(self.take(command).await?),
            StoreRequest::Answer { id, expires_ms, status, .. } => {
                StoreReply::Command(self.answer(id, expires_ms, status).await?)
            }
            StoreRequest::Cancel { command, which, which_expires_ms, .. } => {
                StoreReply::Command(self.cancel(command.get(), which, which_expires_ms).await?)
            }
            StoreRequest::Acknowledge(acknowledgement) => {
                let ack = &acknowledgement.ack;
                // The signed time is only stored together with answers, because these lives are short.
                if !ack.reports.is_empty() {
                    let signed_ms = self.parts.session.time().signed_ms();
                    let (journal, keys) = (&self.parts.journal, ack.reports.clone());
                    journal.acknowledge(self.parts.n, keys, signed_ms).await.ok_or(WriterEnded)?;
                    self.parts.outbox.remove(&ack.reports);
                    self.parts.tally.acknowledged.fetch_add(ack.reports.len() as u64, Ordering::Relaxed);
                }
                let (batches, values) = self.parts.outbox.remove_batches(&ack.metrics);
                self.parts.tally.batches_acknowledged.fetch_add(batches, Ordering::Relaxed);
                self.parts.tally.values_acknowledged.fetch_add(values, Ordering::Relaxed);
                StoreReply::Acknowledged(acknowledgement)
            }
            StoreRequest::Record(ended) => {
                let mut keys = Vec::with_capacity(ended.len());
                for EndedCommand { id, status, started_ms } in &ended {
                    let answer = answer(*id, status.clone(), *started_ms);
                    self.parts.journal.finish(self.parts.n, *id, answer.clone()).await.ok_or(WriterEnded)?;
                    keys.push(self.put(*id, answer));
                }
                StoreReply::Recorded { keys, ended: ended.into_iter().map(|one| one.id).collect() }
            }
            StoreRequest::Numbered(document, signed) => {
                if let NumberedContent::CommandKeys(keys) = &document.content
                    && let Err(error) = self.parts.keys.set(document.number, keys).await
                {
                    tracing::error!(%error, "the console's new keys cannot be stored");
                    return Ok(StoreReply::Failed(StoreRequest::Numbered(document, signed)));
                }
                self.numbered(document);
                StoreReply::Done
            }
            // It pretends that all units run as they should.
            StoreRequest::Document(document) => {
                let NewDocument { head, body, .. } = *document;
                let report = DesiredReport { mark: head.mark, digest: Some(head.digest), ..DesiredReport::default() };
                self.change_desired(|kept| kept.take(report, body.body.deployments));
                self.begin_changes();
                let said = self.kept(|kept| kept.said.clone());
                self.parts.session.set_admissions(said, self.now_ms());
                StoreReply::Done
            }
            StoreRequest::DocumentRefused(refusal, _) => {
                self.change_desired(|kept| kept.report.refused = Some(refusal));
                StoreReply::Done
            }
            StoreRequest::Admission(change) => StoreReply::Admission(self.admission_answered(&change)),
            StoreRequest::Read(read) => self.parts.outbox.read(read),
            // Instances are stored with each life, and the journal is pruned when the simulation starts.
            // Their console is in one epoch while they run.
            StoreRequest::ConsoleEpoch(_) => StoreReply::Done,
            StoreRequest::Works { .. } | StoreRequest::NoteOlderDisk { .. } | StoreRequest::Prune { .. } => {
                StoreReply::Done
            }
        })
    }

    /// Follows a numbered document as far as others see it, and reports its number, as any host, so that the console does
    /// not repeat it.
    fn numbered(&mut self, document: NumberedDocument) {
        let state = &mut self.parts.state;
        state.numbers.insert(document.content.kind(), document.number);
        match document.content {
            NumberedContent::HostLabels(labels) => {
                let own = state.own_labels().clone();
                state.labels = label::merge(&own, &labels);
                state.own_labels = (!labels.is_empty()).then_some(own);
                self.parts.groups.send_replace(state.labels.keys().cloned().collect());
            }
            NumberedContent::CommandKeys(_) => state.command_keys = self.parts.keys.known_by(&self.parts.identity),
            NumberedContent::AlertRules(_) | NumberedContent::HostAddresses(_) => {}
        }
        self.state_changed();
    }

    /// Reads what it keeps of its document.
    pub(super) fn kept<T>(&self, read: impl FnOnce(&KeptDesired) -> T) -> T {
        read(&self.parts.document.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what it keeps of its document, and reports it if that is different.
    pub(super) fn change_desired<T>(&mut self, change: impl FnOnce(&mut KeptDesired) -> T) -> T {
        let mut kept = self.parts.document.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut kept);
        if self.parts.state.desired != kept.report {
            self.parts.state.desired = kept.report.clone();
            drop(kept);
            self.state_changed();
        }
        changed
    }

    fn state_changed(&mut self) {
        self.parts.session.publisher.beats.observe(self.parts.state.clone());
    }

    async fn take(&mut self, authorised: Authorised<Command>) -> WriteResult<CommandTaken> {
        let command = authorised.get();
        let (id, expires_ms) = (command.id, command.expires_ms);
        let refusal = |code, message: Diagnostic| Status::from(CommandRefusal::new(code, message));
        if command.sealed.is_some()
            && let Err(error) = derived_sealing_key(&self.parts.identity.key).open(command, self.host())
        {
            self.parts.tally.refused.fetch_add(1, Ordering::Relaxed);
            return self.answer(id, expires_ms, refusal(RefusalCode::Invalid, Diagnostic::of(&error))).await;
        }
        match &command.verb {
            Verb::Exec(exec) if exec.container.is_none() => {
                if self.parts.manner.takes_ms == 0 {
                    return self.do_at_once(command).await;
                }
                if !self.enter(command).await? {
                    return self.repeated(id).await;
                }
                Ok(CommandTaken::Entered(authorised))
            }
            Verb::Plan(PlanQuestion::Request(request)) => self.plan(command, request).await,
            other => {
                self.parts.tally.refused.fetch_add(1, Ordering::Relaxed);
                let text = format!("a simulated host does not support {}: it has no units", other.name());
                let text = Diagnostic::new(text).with_hint("exec and cancel are supported");
                self.answer(id, expires_ms, refusal(RefusalCode::Unsupported, text)).await
            }
        }
    }

    /// Answers what a document would change, as if the host had nothing but the units of its deployments.
    async fn plan(&self, command: &Command, request: &PlanRequest) -> WriteResult<CommandTaken> {
        let carried = self.kept(|kept| kept.report.deployments.clone());
        let plan = |one: &DesiredDeployment| {
            let name = &one.version.deployment;
            let is_there = carried.get(name).is_some_and(|report| report.version > 0);
            let action = if is_there { UnitAction::Restart } else { UnitAction::Create };
            let units = one.units().map(|(unit, _)| UnitPlan::new(unit, action)).collect();
            let plan = DeploymentPlan::of(name.clone(), units);
            if request.brief { plan.brief() } else { plan }
        };
        let plan = HostPlan { deployments: request.deployments.iter().map(plan).collect() };
        let (id, entry) = (command.id, Self::entry(command, true));
        let stdout =
            Output { rest: serde_json::to_vec(&plan).ok().map(|bytes| Data::new(&bytes)), ..Output::default() };
        let answer = answer_with(id, Status::Completed, Some(entry.received_ms), stdout);
        if !self.parts.journal.enter(self.parts.n, entry, Some(answer.clone())).await.ok_or(WriterEnded)? {
            return self.repeated(id).await;
        }
        self.parts.tally.commands.fetch_add(1, Ordering::Relaxed);
        Ok(CommandTaken::Answered { keys: vec![self.put(id, answer)], is_change: false })
    }

    fn entry(command: &Command, is_done: bool) -> Entry {
        // It consists of texts and numbers, and was serialised when it was signed.
        let body = serde_json::to_string(command).unwrap_or_default().into();
        Entry { id: command.id, body, expires_ms: command.expires_ms, received_ms: clock::now_ms(), is_done }
    }

    async fn enter(&self, command: &Command) -> WriteResult<bool> {
        let entry = Self::entry(command, false);
        let new = self.parts.journal.enter(self.parts.n, entry, None).await.ok_or(WriterEnded)?;
        if new {
            self.parts.tally.commands.fetch_add(1, Ordering::Relaxed);
        }
        Ok(new)
    }

    /// Runs a program that takes no time: it begins and ends in one transaction, like a change of desired state.
    async fn do_at_once(&mut self, command: &Command) -> WriteResult<CommandTaken> {
        let (id, entry) = (command.id, Self::entry(command, true));
        let answer = answer(id, Status::exited(self.exit(id)), Some(entry.received_ms));
        if !self.parts.journal.enter(self.parts.n, entry, Some(answer.clone())).await.ok_or(WriterEnded)? {
            return self.repeated(id).await;
        }
        self.parts.tally.commands.fetch_add(1, Ordering::Relaxed);
        Ok(CommandTaken::Answered { keys: vec![self.put(id, answer)], is_change: false })
    }

    /// Pretends to run a program for a while.
    pub(super) fn start(&mut self, command: &Command) {
        let late_ms = match &command.verb {
            Verb::Exec(exec) => Millis::try_from(exec.timeout_ms).unwrap_or(Millis::MAX),
            _ => Millis::MAX,
        };
        let (id, now_ms) = (command.id, self.now_ms());
        let end_ms = now_ms.saturating_add(self.parts.manner.takes_ms.min(late_ms));
        self.running.insert(id, PretendedCommand { end_ms, received_ms: clock::now_ms(), late_ms });
        self.tell(Input::Begun(id));
    }

    /// Resumes programs of an earlier life: they continued without it, as under an agent's shim.
    pub(super) fn resume(&mut self, unfinished: Vec<InterruptedCommand>) {
        let (now_ms, clock_ms) = (self.now_ms(), clock::now_ms());
        for InterruptedCommand { id, received_ms, late_ms } in unfinished {
            let gone_ms = clock_ms.saturating_sub(received_ms).max(0);
            let end_ms = now_ms + self.parts.manner.takes_ms.min(late_ms).saturating_sub(gone_ms).max(0);
            self.running.insert(id, PretendedCommand { end_ms, received_ms, late_ms });
            self.tell(Input::Resumed(id, CommandStage::Running));
        }
    }

    /// How a program ends: random, but always the same for one command.
    pub(super) fn exit(&self, id: CommandId) -> Exit {
        let manner = &self.parts.manner;
        Exit::Code(i32::from(manner.is_in_share(&format!("{} {id}", self.host()), manner.fail)))
    }

    /// Puts a committed answer into the outbox; returns its key.
    fn put(&self, id: CommandId, answer: Answer) -> muster_topics::ack::ReportAck {
        self.parts.outbox.put(key(id), answer.payload);
        self.parts.tally.outcomes.fetch_add(1, Ordering::Relaxed);
        key(id)
    }

    async fn answer(&mut self, id: CommandId, expires_ms: Millis, status: Status) -> WriteResult<CommandTaken> {
        let answer = answer(id, status, None);
        // A refused command is never resumed, so its text is not needed.
        let entry = Entry { id, body: "{}".into(), expires_ms, received_ms: clock::now_ms(), is_done: false };
        let new = self.parts.journal.enter(self.parts.n, entry, Some(answer.clone())).await.ok_or(WriterEnded)?;
        if !new {
            return self.repeated(id).await;
        }
        Ok(CommandTaken::Answered { keys: vec![self.put(id, answer)], is_change: false })
    }

    /// Handles a command that is in the journal already: if it has an answer, that is sent again.
    async fn repeated(&self, id: CommandId) -> WriteResult<CommandTaken> {
        let known = match self.parts.journal.again(self.parts.n, id).await.ok_or(WriterEnded)? {
            Some(payload) => {
                self.parts.outbox.put(key(id), payload);
                RepeatedCommand::Answered(key(id))
            }
            None => RepeatedCommand::Unfinished,
        };
        Ok(CommandTaken::Repeated(id, Some(known)))
    }

    /// Journals a cancellation. A command that has not arrived yet is refused when it arrives.
    async fn cancel(
        &mut self,
        command: &Command,
        which: CommandId,
        which_expires_ms: Millis,
    ) -> WriteResult<CommandTaken> {
        let mut keys = Vec::new();
        if !self.running.contains_key(&which) {
            let refusal = CommandRefusal::new(RefusalCode::Conflict, "it was cancelled before it began");
            if let CommandTaken::Answered { keys: refused, .. } =
                self.answer(which, which_expires_ms, refusal.into()).await?
            {
                keys.extend(refused);
            }
        }
        match self.answer(command.id, command.expires_ms, Status::Completed).await? {
            CommandTaken::Answered { keys: own, .. } => {
                keys.extend(own);
                Ok(CommandTaken::Answered { keys, is_change: false })
            }
            repeated => Ok(repeated),
        }
    }

    /// Ends a command that is under way, because it was cancelled.
    pub(super) fn cancelled(&mut self, which: CommandId) {
        let Some(one) = self.running.remove(&which) else { return };
        let status = Status::exited(Exit::Signal(nix::sys::signal::Signal::SIGTERM as i32));
        self.tell(Input::Writes(vec![EndedCommand { id: which, status, started_ms: Some(one.received_ms) }]));
    }
}

/// Creates an answer.
fn answer(id: CommandId, status: Status, started_ms: Option<Millis>) -> Answer {
    answer_with(id, status, started_ms, Output::default())
}

/// Creates an answer with output.
fn answer_with(id: CommandId, status: Status, started_ms: Option<Millis>, stdout: Output) -> Answer {
    let (at_ms, stderr) = (clock::now_ms(), Output::default());
    let outcome = Outcome { status, started_ms, finished_ms: at_ms, stdout, stderr };
    let key = key(id);
    let report = Report { v: V1, command: id, seq: key.seq, at_ms, content: Content::Done { outcome } };
    // It consists of texts and numbers, so serialising cannot fail.
    Answer { at_ms, payload: serde_json::to_vec(&report).unwrap_or_default() }
}
