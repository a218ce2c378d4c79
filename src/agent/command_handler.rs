//! Performs what the session asks of the store, and begins commands.
//!
//! **Invariant: record, then act.** A command is in the journal before it has any effect; its outcome is stored before it
//! is published.
//!
//! **Invariant: an edit of desired state, its journal row, its outcome and its outbox row are one
//! transaction.** So an edit is never half done.
//!
//! Work that ends elsewhere (a program, a question to a unit) returns as a [`PendingWrite`].

use std::time::Duration;

use muster_base::clock;
use muster_rules::{
    CommandRefusal,
    authorise::Authorised,
    edit,
    receive::{self, ResumedCommand},
};
use muster_session::{
    interface::Input,
    store::{Acknowledgement, CommandTaken, OutboxRead, StoreReply, StoreRequest},
};
use muster_topics::{
    Millis,
    ack::ReportAck,
    command::{Command, FOLLOW_MAX_MS, FORWARD_TIMEOUT_MAX_MS, Forward, LOG_LINES_MAX, LogView, Verb},
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::{CommandId, Digest, UnitName},
    outcome::{RefusalCode, Status},
    verb_table::VerbClass,
};

use super::{
    admission::Examination,
    daemon::UnitDraft,
    execute::{AdmittedCommand, QueueResult},
    log_follower::FollowRequest,
    main_loop::AgentLoop,
    numbered::NumberedError,
    pending_writes::PendingWrite,
    program_queue::{ProgramRequest, QueuedProgram},
    render::{RenderRequest, wiring_of},
    store::{
        self, StoreError, alert,
        journal::{self, Entry},
        metric, outbox, realm, unit,
    },
    unit::kind::{FollowFrom, InstanceRequest},
};

/// A command that is journalled and not started.
#[derive(Debug)]
pub(super) struct EnteredCommand {
    /// Its verb, with sealed values opened.
    pub(super) verb: Verb,
    /// The place of its program, if it runs one.
    pub(super) admitted: Option<AdmittedCommand>,
}

/// What became of a command in its transaction.
#[expect(clippy::large_enum_variant, reason = "one exists at a time")]
pub(super) enum TakenInTransaction {
    /// It is journalled and goes on.
    Entered(EnteredCommand),
    /// It has its outcome.
    Answered { keys: Vec<ReportAck>, is_change: bool },
    /// It was in the journal already.
    Repeated,
    /// There is no place for it, and nothing of it was kept.
    Busy,
}

impl TakenInTransaction {
    /// An outcome without a change.
    pub(super) fn answered(keys: impl IntoIterator<Item = ReportAck>) -> Self {
        Self::Answered { keys: keys.into_iter().collect(), is_change: false }
    }
}

/// The result of a task of the agent.
#[derive(Debug)]
pub(super) enum TaskResult {
    /// The unit of a daemon is prepared, or refused.
    Daemon(CommandId, Result<Box<UnitDraft>, CommandRefusal>),
    /// A program's wait in the queue ended.
    Turn(QueuedProgram, QueueResult),
    /// A program was started, or refused.
    Begun(CommandId, Result<(), CommandRefusal>),
    /// A unit's log was read, or units have answered; with text for standard error.
    Read(CommandId, Result<(Vec<u8>, Vec<u8>), CommandRefusal>),
    /// A signal was sent, or refused.
    Signalled(CommandId, Result<(), CommandRefusal>),
    /// A document's body was fetched, or could not be.
    DesiredFetched(Digest, Option<Vec<u8>>),
    /// The document was handed in, or could not be.
    DocumentHandedIn,
    /// A version of a deployment that waits to be begun was examined.
    Examined(DeploymentName, u64, Examination),
    /// A task without a result.
    Done,
}

impl AgentLoop {
    /// Performs a request of the session; if that fails, it comes back.
    pub(super) async fn perform_store(&mut self, request: StoreRequest<PendingWrite>) -> StoreReply<PendingWrite> {
        let done = match &request {
            StoreRequest::Document(_) | StoreRequest::Admission(_) if self.store.unwritable().is_some() => {
                return StoreReply::Deferred;
            }
            StoreRequest::Take { command, signed_ms } => match self.take(command.get(), *signed_ms).await {
                // The command goes on with its authorisation.
                Ok(None) => {
                    let StoreRequest::Take { command, .. } = request else { return StoreReply::Done };
                    return StoreReply::Command(CommandTaken::Entered(command));
                }
                taken => taken.map(|taken| StoreReply::Command(taken.unwrap_or(CommandTaken::NoRoom))),
            },
            StoreRequest::Answer { id, expires_ms, status, signed_ms } => {
                self.answer(*id, *expires_ms, status, *signed_ms).await.map(StoreReply::Command)
            }
            StoreRequest::Cancel { command, which, which_expires_ms, signed_ms } => {
                self.cancel(command.get(), (*which, *which_expires_ms), *signed_ms).await.map(StoreReply::Command)
            }
            StoreRequest::Acknowledge(ack) => match self.acknowledge(ack).await {
                Ok(()) => {
                    let StoreRequest::Acknowledge(ack) = request else { return StoreReply::Done };
                    return StoreReply::Acknowledged(ack);
                }
                Err(error) => Err(error),
            },
            StoreRequest::Record(writes) => match self.record(writes).await {
                Ok(keys) => {
                    let StoreRequest::Record(writes) = request else { return StoreReply::Done };
                    return StoreReply::Recorded { keys, ended: self.act_on(writes) };
                }
                Err(error) => Err(error),
            },
            StoreRequest::Numbered(document, signed) => match self.set_numbered(document, signed).await {
                Ok(()) => return StoreReply::Done,
                Err(NumberedError::Store(error)) => Err(error),
                Err(NumberedError::Identity(error)) => {
                    tracing::error!(
                        %error,
                        consequence = "the host keeps what it has, and tries again",
                        hint = "check the free space on the disk of the agent's folder",
                        "cannot store new {} of the console",
                        document.content.kind().as_str(),
                    );
                    return StoreReply::Failed(request);
                }
            },
            StoreRequest::Document(document) => self.set_document(document).await.map(|()| StoreReply::Done),
            StoreRequest::DocumentRefused(refusal, digest) => {
                self.refuse_document(refusal, digest).await.map(|()| StoreReply::Done)
            }
            StoreRequest::ConsoleEpoch(epoch) => self.store.set_console_epoch(*epoch).await.map(|()| StoreReply::Done),
            StoreRequest::Works { is_first } => {
                self.observe_units();
                if *is_first {
                    self.lives.works();
                }
                Ok(StoreReply::Done)
            }
            StoreRequest::NoteOlderDisk { epoch, lost_ms, clock_ms } => {
                self.store.note_older_disk(*epoch, *lost_ms, *clock_ms).await.map(|()| StoreReply::Done)
            }
            StoreRequest::Prune { signed_ms } => self.prune(*signed_ms).await.map(|()| StoreReply::Done),
            StoreRequest::Admission(change) => self.admission_answered(change).await.map(StoreReply::Admission),
            StoreRequest::Read(read) => self.read(*read).await,
        };
        done.unwrap_or_else(|error| {
            self.store_failed(&error);
            StoreReply::Failed(request)
        })
    }

    async fn read(&self, read: OutboxRead) -> Result<StoreReply<PendingWrite>, StoreError> {
        Ok(match read {
            OutboxRead::FirstReports(limit) => StoreReply::Reports(outbox::first(&self.store, limit).await?),
            OutboxRead::Report(key) => StoreReply::Report(outbox::payload(&self.store, key).await?),
            OutboxRead::TaskEnds(limit) => StoreReply::TaskEnds(self.store.task_ends(limit).await?),
            OutboxRead::FirstBatches(limit) => StoreReply::Batches(metric::pending(&self.store, limit).await?),
        })
    }

    async fn prune(&self, signed_ms: Millis) -> Result<(), StoreError> {
        let forgotten = journal::prune(&self.store, signed_ms, journal::KEPT_AFTER_EXPIRY_MS).await?;
        tracing::debug!(forgotten, "records of commands that expired long ago were deleted");
        self.store.keep_time().await?;
        self.forget_daemons(self.store.certain_ms()).await
    }

    async fn acknowledge(&mut self, acknowledgement: &Acknowledgement) -> Result<(), StoreError> {
        let Acknowledgement { ack, signed_ms, time_back } = acknowledgement;
        if let Some(time_back) = time_back {
            self.store.put_time_back(time_back.signed_ms, time_back.created_ms).await?;
        }
        if let Some(signed_ms) = signed_ms {
            outbox::acknowledge(&self.store, &ack.reports, *signed_ms).await?;
        }
        if !ack.reports.is_empty() {
            self.weigh_output().await?;
        }
        if !ack.metrics.is_empty() {
            metric::delete(&self.store, &ack.metrics).await?;
        }
        if !ack.alerts.is_empty() {
            alert::acknowledge(&self.store, &ack.alerts).await?;
        }
        if !ack.tasks.is_empty() {
            self.store.acknowledge_task_ends(&ack.tasks).await?;
        }
        Ok(())
    }

    /// Journals a command, with its outcome if it has one now. Nothing: it goes on.
    async fn take(&mut self, command: &Command, signed_ms: Millis) -> Result<Option<CommandTaken>, StoreError> {
        if !self.has_room_for(command.id, signed_ms).await? {
            return Ok(Some(CommandTaken::NoRoom));
        }
        // The journal keeps it sealed.
        let verb = match self.sealing.open(command, self.host) {
            Ok(verb) => verb,
            Err(error) => {
                let told = Diagnostic::of(&error);
                tracing::warn!(command.id = %command.id, reason = told.cause, hint = told.hint, "refused");
                let status = CommandRefusal::new(RefusalCode::Invalid, told).into();
                return self.answer_with_room(command.id, command.expires_ms, &status, signed_ms).await.map(Some);
            }
        };
        if let Some(reason) = self.store.unwritable()
            && !matches!(verb.class(), VerbClass::Question | VerbClass::HostQuestion)
        {
            tracing::info!(command.id = %command.id, verb = verb.name(), "refused: the agent cannot write to its disk");
            let status = CommandRefusal::new(RefusalCode::Unwritable, reason.clone()).into();
            return self.answer_with_room(command.id, command.expires_ms, &status, signed_ms).await.map(Some);
        }
        tracing::info!(command.id = %command.id, operator = %command.asked_by.operator, verb = verb.name(), "command");
        let taken = match verb.class() {
            VerbClass::Program => self.enter_program(command, verb, signed_ms).await?,
            VerbClass::Question | VerbClass::Action => self.enter_question(command, verb, signed_ms).await?,
            VerbClass::Unit => self.edit(command, &verb, signed_ms).await?,
            VerbClass::UnitSet => self.apply_set(command, &verb, signed_ms).await?,
            VerbClass::Host | VerbClass::HostQuestion => self.take_realm_command(command, &verb, signed_ms).await?,
            // The session asks for cancellations in another way.
            VerbClass::Cancel => TakenInTransaction::Repeated,
        };
        Ok(match taken {
            TakenInTransaction::Entered(entered) => {
                self.entered = Some(entered);
                None
            }
            TakenInTransaction::Answered { keys, is_change } => Some(CommandTaken::Answered { keys, is_change }),
            TakenInTransaction::Repeated => Some(self.repeated(command.id).await?),
            TakenInTransaction::Busy => Some(CommandTaken::Busy(command.id)),
        })
    }

    async fn enter_question(
        &self,
        command: &Command,
        verb: Verb,
        signed_ms: Millis,
    ) -> Result<TakenInTransaction, StoreError> {
        let mut tx = self.store.begin().await?;
        let is_new = self.enter(&mut tx, command, signed_ms).await?;
        store::commit(tx, "enter command").await?;
        let entered = EnteredCommand { verb, admitted: None };
        Ok(if is_new { TakenInTransaction::Entered(entered) } else { TakenInTransaction::Repeated })
    }

    /// Journals a command; returns whether it is new.
    pub(super) async fn enter(
        &self,
        tx: &mut sqlx::SqliteConnection,
        command: &Command,
        signed_ms: Millis,
    ) -> Result<bool, StoreError> {
        let body = serde_json::to_string(command).map_err(|source| StoreError::Content { what: "command", source })?;
        let entry =
            Entry { id: command.id, body: &body, expires_ms: command.expires_ms, issued_ms: Some(command.issued_ms) };
        journal::insert(tx, entry, signed_ms, clock::now_ms()).await
    }

    /// Journals a cancellation. A command that has not arrived yet is refused when it does.
    async fn cancel(
        &mut self,
        command: &Command,
        (which, which_expires_ms): (CommandId, Millis),
        signed_ms: Millis,
    ) -> Result<CommandTaken, StoreError> {
        if !self.has_room_for(command.id, signed_ms).await? {
            return Ok(CommandTaken::NoRoom);
        }
        tracing::info!(command.id = %command.id, operator = %command.asked_by.operator, cancels = %which, "command");
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command, signed_ms).await? {
            tx.rollback().await?;
            return self.repeated(command.id).await;
        }
        let entry = Entry { id: which, body: "{}", expires_ms: which_expires_ms, issued_ms: None };
        let refused = if journal::insert(&mut tx, entry, signed_ms, now_ms).await? {
            let refusal = CommandRefusal::new(RefusalCode::Conflict, "it was cancelled before it began");
            journal::finish(&mut tx, which, Status::from(refusal).into(), now_ms).await?
        } else {
            None
        };
        let key = journal::finish(&mut tx, command.id, Status::Completed.into(), now_ms).await?;
        store::commit(tx, "cancel").await?;
        Ok(CommandTaken::Answered { keys: refused.into_iter().chain(key).collect(), is_change: false })
    }

    /// Changes the desired state of a unit, and answers.
    async fn edit(
        &mut self,
        command: &Command,
        verb: &Verb,
        signed_ms: Millis,
    ) -> Result<TakenInTransaction, StoreError> {
        let [unit] = verb.units()[..] else { return Ok(TakenInTransaction::Repeated) };
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command, signed_ms).await? {
            tx.rollback().await?;
            return Ok(TakenInTransaction::Repeated);
        }
        let identity = self.identity.present();
        let key = Some(&identity.membership.revision_key);
        let values = self.render_values();
        let (operator, values) = (&command.asked_by.operator, Some(&values));
        let asker = unit::ChangeContext { operator, now_ms, key, is_document: false, values };
        let edited = match realm::take_in(&mut tx, &command.realms).await? {
            Ok(()) => unit::edit(&mut tx, unit, verb, asker).await?,
            Err(refusal) => Err(refusal),
        };
        let status = match edited {
            Ok(Some(unit::AppliedChange { generation, revision, hold })) => {
                Status::Applied { generation, revision, hold: hold.map(Box::new) }
            }
            Ok(None) => Status::Completed,
            Err(refusal) => refusal.into(),
        };
        let is_change = status.is_success();
        let key = journal::finish(&mut tx, command.id, status.into(), now_ms).await?;
        store::commit(tx, "edit unit").await?;
        if !command.realms.is_empty() {
            self.update_realms().await;
        }
        if is_change {
            self.units.desired_changed();
        }
        if is_change && matches!(verb, Verb::UnitDetach { .. } | Verb::UnitRm { .. }) {
            self.desired_changed().await;
        }
        Ok(TakenInTransaction::Answered { keys: key.into_iter().collect(), is_change })
    }

    /// Journals the end of a command that needs no execution.
    async fn answer(
        &mut self,
        id: CommandId,
        expires_ms: Millis,
        status: &Status,
        signed_ms: Millis,
    ) -> Result<CommandTaken, StoreError> {
        if !self.has_room_for(id, signed_ms).await? {
            return Ok(CommandTaken::NoRoom);
        }
        self.answer_with_room(id, expires_ms, status, signed_ms).await
    }

    async fn answer_with_room(
        &mut self,
        id: CommandId,
        expires_ms: Millis,
        status: &Status,
        signed_ms: Millis,
    ) -> Result<CommandTaken, StoreError> {
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        // A refused command is never resumed, so its text is not needed.
        let entry = Entry { id, body: "{}", expires_ms, issued_ms: None };
        if !journal::insert(&mut tx, entry, signed_ms, now_ms).await? {
            tx.rollback().await?;
            return self.repeated(id).await;
        }
        let key = journal::finish(&mut tx, id, status.clone().into(), now_ms).await?;
        store::commit(tx, "answer").await?;
        Ok(CommandTaken::Answered { keys: key.into_iter().collect(), is_change: false })
    }

    /// Handles a command that is in the journal already.
    async fn repeated(&self, id: CommandId) -> Result<CommandTaken, StoreError> {
        let mut tx = self.store.begin().await?;
        let known = journal::answer_again(&mut tx, id).await?;
        store::commit(tx, "answer again").await?;
        Ok(CommandTaken::Repeated(id, known))
    }

    /// Begins a command, which is journalled.
    pub(super) fn start(&mut self, command: Authorised<Command>) {
        let Some(EnteredCommand { verb, admitted }) = self.entered.take() else { return };
        let command = command.into_inner();
        match (verb, admitted) {
            (Verb::Exec(exec), None) => self.prepare_daemon(command.id, command.asked_by.operator, exec),
            (verb, Some(admitted)) => self.begin_program(command.id, command.expires_ms, verb, admitted),
            (verb, None) => self.launch(command.id, verb),
        }
    }

    /// Starts the execution of a command.
    fn launch(&mut self, id: CommandId, verb: Verb) {
        if let Err(refusal) = self.check_kind(&verb) {
            let is_signal = matches!(verb, Verb::UnitSignal { .. });
            self.work.spawn(async move {
                if is_signal { TaskResult::Signalled(id, Err(refusal)) } else { TaskResult::Read(id, Err(refusal)) }
            });
            return;
        }
        match verb {
            Verb::UnitLogs { unit, lines, view } => self.read_log(id, unit, lines, view),
            Verb::UnitConfig { unit } => self.read_config(id, unit),
            Verb::UnitTasks { unit, log, from } => self.read_tasks(id, unit, log, from),
            Verb::Render { unit, deployment, templates } => {
                let (store, values) = (self.store.clone(), self.render_values());
                let state = unit.as_ref().and_then(|unit| self.inputs.units.borrow().get(unit).cloned());
                let (wiring, runs_as) = state.map(|state| (wiring_of(&state), state.spec().clone())).unzip();
                let wiring = wiring.unwrap_or_default();
                let request = RenderRequest { unit, deployment, templates, wiring, runs_as };
                self.work.spawn(async move { TaskResult::Read(id, request.answer(&store, values).await) });
            }
            Verb::Plan(question) => {
                let (planner, identity) = (self.planner(), self.identity.present());
                self.tell(Input::Begun(id));
                self.work.spawn(async move { TaskResult::Read(id, planner.answer(question, &identity).await) });
            }
            Verb::UnitFollow { unit, lines, view, for_ms } => {
                let (units, executor) = (self.units.clone(), self.executor.clone());
                let wanted = FollowRequest { id, unit, lines, view, for_ms: for_ms.min(FOLLOW_MAX_MS) };
                // It begins at once, and its end is an event.
                self.tell(Input::Begun(id));
                self.work.spawn(async move {
                    match executor.follow_log(wanted, units).await {
                        Ok(()) => TaskResult::Done,
                        Err(refusal) => TaskResult::Begun(id, Err(refusal)),
                    }
                });
            }
            Verb::UnitSignal { unit, signal } => {
                let units = self.units.clone();
                self.work.spawn(async move { TaskResult::Signalled(id, units.signal(&unit, signal).await) });
            }
            Verb::UnitCommand(Forward { units, name, args, timeout_ms }) => {
                self.forward(id, units, InstanceRequest::Command { name, args }, timeout_ms);
            }
            Verb::UnitStats { units, timeout_ms } => self.forward(id, units, InstanceRequest::Stats, timeout_ms),
            // These are complete once they are journalled.
            _ => {}
        }
    }

    /// Refuses a question or a signal that units of the unit's kind do not have. Of a unit that is gone, its tasks are there.
    fn check_kind(&self, verb: &Verb) -> Result<(), CommandRefusal> {
        let (Verb::UnitLogs { unit, .. }
        | Verb::UnitFollow { unit, .. }
        | Verb::UnitConfig { unit }
        | Verb::UnitTasks { unit, .. }
        | Verb::UnitSignal { unit, .. }) = verb
        else {
            return Ok(());
        };
        let units = self.inputs.units.borrow();
        units.get(unit).map_or(Ok(()), |state| edit::check_kind(unit, state.spec(), verb))
    }

    fn read_log(&mut self, id: CommandId, unit: UnitName, lines: u32, view: LogView) {
        let units = self.units.clone();
        self.work.spawn(async move {
            let read = units.log(&unit, FollowFrom::Last(lines.min(LOG_LINES_MAX)), view).await;
            TaskResult::Read(
                id,
                read.map(|part| {
                    let words = part.words();
                    (part.text, words)
                }),
            )
        });
    }

    fn read_config(&mut self, id: CommandId, unit: UnitName) {
        let units = self.units.clone();
        self.work.spawn(async move {
            TaskResult::Read(id, units.effective(&unit).await.map(|config| (config, Vec::new())))
        });
    }

    fn read_tasks(&mut self, id: CommandId, unit: UnitName, log: Option<u64>, from: u64) {
        let units = self.units.clone();
        self.work.spawn(async move {
            TaskResult::Read(id, units.tasks(&unit, log, from).await.map(|tasks| (tasks, Vec::new())))
        });
    }

    /// Sends a request to units, and answers when all have answered.
    fn forward(&mut self, id: CommandId, units: Vec<UnitName>, ask: InstanceRequest, timeout_ms: u64) {
        self.tell(Input::Begun(id));
        let (keeper, limit) = (self.units.clone(), Duration::from_millis(timeout_ms.min(FORWARD_TIMEOUT_MAX_MS)));
        self.work.spawn(async move {
            TaskResult::Read(id, keeper.ask(&units, &ask, limit).await.map(|answers| (answers, Vec::new())))
        });
    }

    /// Resumes commands that an earlier run of the agent left unfinished.
    pub(super) fn resume(&mut self, unfinished: Vec<journal::UnfinishedCommand>) {
        let (waiting, begun): (Vec<_>, Vec<_>) = unfinished.into_iter().partition(|one| one.queued);
        for mut unfinished in begun.into_iter().chain(waiting) {
            let id = unfinished.id;
            tracing::info!(command.id = %id, "a command was unfinished when the agent restarted");
            let command = unfinished.command.take();
            let expires_ms = command.as_ref().map_or(Millis::MIN, |command| command.expires_ms);
            let operator = command.as_ref().map(|command| command.asked_by.operator.clone());
            // One that cannot be opened any more counts as one that cannot be parsed.
            let verb = command.and_then(|command| self.sealing.open(&command, self.host).ok());
            match (receive::resume(verb.as_ref(), unfinished.queued), verb, operator) {
                (ResumedCommand::Anew, Some(Verb::Exec(exec)), Some(operator)) if exec.daemon => {
                    self.prepare_daemon(id, operator, exec);
                }
                (ResumedCommand::Anew | ResumedCommand::LookedUp, Some(Verb::Exec(exec)), _) => {
                    self.resume_program(unfinished, expires_ms, ProgramRequest::One(Box::new(exec)));
                }
                (ResumedCommand::Anew | ResumedCommand::LookedUp, Some(Verb::Batch(batch)), _) => {
                    self.resume_program(unfinished, expires_ms, ProgramRequest::Several(batch));
                }
                (ResumedCommand::AskedAgain, Some(Verb::UnitLogs { unit, lines, view }), _) => {
                    self.read_log(id, unit, lines, view);
                }
                (ResumedCommand::AskedAgain, Some(Verb::UnitConfig { unit }), _) => self.read_config(id, unit),
                (ResumedCommand::AskedAgain, Some(Verb::UnitTasks { unit, log, from }), _) => {
                    self.read_tasks(id, unit, log, from);
                }
                (ResumedCommand::AskedAgain, Some(Verb::UnitStats { units, timeout_ms }), _) => {
                    self.forward(id, units, InstanceRequest::Stats, timeout_ms);
                }
                (ResumedCommand::Over, ..) => {
                    let reason = Diagnostic::new("the agent restarted in the meantime").with_hint("ask again");
                    self.write(PendingWrite::Ended(id, Status::Failed(reason)));
                }
                _ => self.write(PendingWrite::Ended(id, Status::Lost)),
            }
        }
    }

    /// Hands a write to the session, which waits for the store.
    pub(super) fn write(&mut self, write: PendingWrite) {
        self.tell(Input::Writes(vec![write]));
    }

    /// Handles the result of a task.
    pub(super) async fn worked(&mut self, work: TaskResult) {
        match work {
            TaskResult::Daemon(id, prepared) => self.daemon_prepared(id, prepared),
            TaskResult::Turn(program, turn) => self.finish_wait(program, turn),
            TaskResult::Begun(id, Ok(())) => self.tell(Input::Begun(id)),
            TaskResult::Begun(id, Err(refusal)) => {
                tracing::info!(command.id = %id, reason = refusal.diagnostic.cause, hint = refusal.diagnostic.hint, "not begun");
                self.write(PendingWrite::Ended(id, refusal.into()));
            }
            TaskResult::Signalled(id, Ok(())) => self.write(PendingWrite::Ended(id, Status::Completed)),
            TaskResult::Signalled(id, Err(refusal)) => self.write(PendingWrite::Ended(id, refusal.into())),
            TaskResult::Read(id, Ok(log)) => self.write(PendingWrite::Read(id, log)),
            TaskResult::Read(id, Err(refusal)) => self.write(PendingWrite::Ended(id, refusal.into())),
            TaskResult::DesiredFetched(digest, bytes) => self.tell(Input::DesiredFetched(digest, bytes)),
            TaskResult::DocumentHandedIn => self.tell(Input::DocumentHandedIn),
            TaskResult::Examined(deployment, number, examination) => {
                let examined = self.examined(&deployment, number, examination).await;
                self.check(examined);
            }
            TaskResult::Done => {}
        }
    }
}
