//! Handles a command step by step: decode, check the signature, check permission
//! ([`receive`]), write to the journal, do the work, answer.
//!
//! **Invariant: record, then act.** A command is in the journal before it is acknowledged to the broker
//! and before it has any effect; its outcome is stored before it is published.
//!
//! **Invariant: an edit of desired state, its journal row, its outcome and its outbox row are one
//! transaction.** So an edit is never half done.
//!
//! Work that ends elsewhere (a program, a question to a unit) returns as a [`PendingWrite`].

use std::{collections::BTreeMap, time::Duration};

use muster_base::{chance, clock};
use muster_rules::{
    CommandRefusal,
    authorise::{self, Authorised, CommandHead, CommandSource, CommandVerdict, JudgeContext},
    backoff,
    receive::{self, AckEffect, ResumedCommand},
    time::SLACK_MS,
};
use muster_topics::{
    Millis, V1,
    ack::{Ack, ReportAck},
    alert::AlertRules,
    command::{Command, FOLLOW_MAX_MS, FORWARD_TIMEOUT_MAX_MS, Forward, LOG_LINES_MAX, LogView, Refresh, Verb},
    envelope::{self, Kind, Verified},
    label::HostLabels,
    name::{CommandId, UnitName},
    outcome::{Content, RefusalCode, Report, Status},
};

use super::{
    daemon::UnitDraft,
    execute::QueueResult,
    link::InboundMessage,
    log_follower::FollowRequest,
    main_loop::AgentLoop,
    pending_writes::PendingWrite,
    program_queue::{ProgramRequest, QueuedProgram},
    store::{
        self, StoreError, alert,
        journal::{self, Entry, RepeatedCommand},
        metric, outbox, realm, unit,
    },
    unit::kind::{FollowFrom, InstanceRequest},
};

/// The statuses `accepted` and `running` are reported only for a command that takes longer than this.
const QUIET_MS: Millis = 1_000;

/// A command that is being executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningCommand {
    since_ms: Millis,
    begun: bool,
    told: ReportedProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReportedProgress {
    Nothing,
    Accepted,
    Running,
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
    /// A task without a result.
    Done,
}

impl AgentLoop {
    /// Handles a message on a topic of signed messages. If it moved the time ahead of the clock, the console is asked
    /// for the time.
    pub(super) async fn signed(&mut self, message: &InboundMessage, channel: CommandSource) -> Result<(), StoreError> {
        let done = self.take_signed(message, channel).await;
        let life_ms = self.now_ms();
        self.time = self.time.at(life_ms);
        if self.time.ask(clock::now_ms()) {
            self.publisher.request_heartbeat(life_ms);
        }
        done
    }

    async fn take_signed(&mut self, message: &InboundMessage, channel: CommandSource) -> Result<(), StoreError> {
        let opened = {
            let identity = self.identity.borrow();
            envelope::open(message.payload(), &identity.membership.command_keys)
        };
        let verified = match opened {
            Ok(verified) => verified,
            Err(error) => {
                self.reject(&message.topic.to_string(), &error.to_string());
                return Ok(());
            }
        };
        match verified.kind() {
            Kind::Command => return self.command(&verified, channel).await,
            Kind::Ack => match verified.body::<Ack>() {
                Ok(ack) => return self.ack(ack).await,
                Err(error) => self.reject("ack", &error.to_string()),
            },
            Kind::Refresh => match verified.body::<Refresh>() {
                Ok(refresh) => self.refresh(&refresh),
                Err(error) => self.reject("refresh", &error.to_string()),
            },
            Kind::AlertRules => match verified.body::<AlertRules>() {
                Ok(rules) => return self.alert_rules(rules).await,
                Err(error) => self.reject("alert_rules", &error.to_string()),
            },
            Kind::HostLabels => match verified.body::<HostLabels>() {
                Ok(labels) => return self.host_labels(labels).await,
                Err(error) => self.reject("host_labels", &error.to_string()),
            },
        }
        Ok(())
    }

    /// Counts a message that gets no answer; the count is logged now and then.
    pub(super) fn reject(&mut self, what: &str, reason: &str) {
        if let Some(rejected) = self.rejected.count(self.now_ms()) {
            tracing::warn!(what, reason, rejected, "messages were rejected");
        }
    }

    async fn ack(&mut self, ack: Ack) -> Result<(), StoreError> {
        let (before_ms, clock_ms, life_ms) = (self.time.signed_ms(), clock::now_ms(), self.now_ms());
        let taken = receive::ack(&ack, self.me.host, &mut self.time, self.kept_signed_ms, clock_ms);
        let AckEffect::Forget { store } = taken else {
            self.reject("ack", "it is for another host");
            return Ok(());
        };
        let is_fresh = ack.heartbeat.is_some_and(|heartbeat| self.publisher.beats.is_fresh(heartbeat, life_ms));
        if ack.issued_ms > before_ms || is_fresh {
            self.lookout.observe_issue_time(ack.issued_ms, clock_ms);
        }
        if is_fresh {
            self.handle_fresh_time(ack.issued_ms, clock_ms).await?;
        }
        let signed_ms = self.time.signed_ms();
        if store {
            outbox::acknowledge(&self.store, &ack.reports, signed_ms).await?;
            self.kept_signed_ms = signed_ms;
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
        self.publisher.acknowledged(&ack);
        Ok(())
    }

    /// Handles a confirmation of the console's time.
    async fn handle_fresh_time(&mut self, issued_ms: Millis, clock_ms: Millis) -> Result<(), StoreError> {
        let life_ms = self.now_ms();
        self.time = self.time.at(life_ms);
        let ahead_ms = self.time.observe_fresh(issued_ms, clock_ms, self.bounds.kept_ms());
        // A store cannot have been created after its agent was started.
        let is_made_ahead = self.created_ms > issued_ms.saturating_add(SLACK_MS);
        let created_ms = if is_made_ahead { issued_ms - life_ms } else { self.created_ms };
        if ahead_ms.is_none() && !is_made_ahead {
            return Ok(());
        }
        let signed_ms = self.time.signed_ms();
        self.store.put_time_back(signed_ms, created_ms).await?;
        (self.kept_signed_ms, self.created_ms) = (signed_ms, created_ms);
        tracing::warn!(
            ahead_s = ahead_ms.unwrap_or_default() / 1000,
            "the console has signed times that had not come yet, or this agent's store was made at one; the time is what the console \
             says now"
        );
        Ok(())
    }

    fn refresh(&mut self, refresh: &Refresh) {
        let taken = receive::refresh(refresh, &mut self.refreshes, &mut self.time, clock::now_ms());
        let Some(within_ms) = taken else { return };
        let due_ms = self.now_ms() + backoff::share(within_ms, chance::random());
        self.refresh_due_ms = Some(self.refresh_due_ms.map_or(due_ms, |already_ms| already_ms.min(due_ms)));
    }

    async fn command(&mut self, verified: &Verified, channel: CommandSource) -> Result<(), StoreError> {
        let mut command = match verified.body::<Command>() {
            Ok(command) => command,
            Err(error) => return self.not_understood(verified, channel, &error.to_string()).await,
        };
        if let Some(sealed) = &mut command.sealed {
            // The key goes into the journal, too, so that it can be opened again after a restart.
            sealed.key = verified.key().map(str::to_owned);
        }
        if !self.has_room_for(command.id).await? {
            self.reject("command", "the journal has no room (`journal.commands_max`); it is taken in once it has");
            return Ok(());
        }
        let clock_ms = clock::now_ms();
        let mut time = self.time;
        let judged_by = time.at(self.now_ms());
        let verdict = self.seen(|host| {
            let judge = JudgeContext {
                host,
                realms: &self.realms,
                policy: &self.policy,
                user: &self.user,
                created_ms: self.created_ms,
                lost_ms: self.lost_ms,
                time: judged_by,
                clock_ms,
            };
            receive::command(command, channel, &judge, &mut time)
        });
        self.time = time;
        match verdict {
            CommandVerdict::NotMine => Ok(()),
            CommandVerdict::Later(command) => {
                tracing::info!(
                    command.id = %command.id, verb = command.verb.name(),
                    "left unanswered until the console has said what time it is: what it has signed so far lies ahead of this host's clock"
                );
                Ok(())
            }
            CommandVerdict::Refused(command, refusal) => {
                tracing::info!(command.id = %command.id, verb = command.verb.name(), reason = refusal.message, "refused");
                self.answer_now(command.id, command.expires_ms, refusal.into()).await
            }
            CommandVerdict::Granted(command) => self.granted(command).await,
        }
    }

    /// Handles a command that is not understood, perhaps of a newer console: its sender gets a refusal, if it is for
    /// this host.
    async fn not_understood(
        &mut self,
        verified: &Verified,
        channel: CommandSource,
        reason: &str,
    ) -> Result<(), StoreError> {
        let Ok(head) = verified.body::<CommandHead>() else {
            self.reject("command", reason);
            return Ok(());
        };
        match self.seen(|host| authorise::not_understood(&head, channel, host, reason)) {
            Some(refusal) => self.answer_now(head.id, head.expires_ms, refusal.into()).await,
            None => Ok(()),
        }
    }

    async fn granted(&mut self, command: Authorised<Command>) -> Result<(), StoreError> {
        let id = command.get().id;
        // The journal keeps it sealed.
        let verb = match self.sealing.open(command.get(), self.me.host) {
            Ok(verb) => verb,
            Err(error) => {
                tracing::warn!(command.id = %id, reason = %error, "refused");
                let refusal = CommandRefusal::new(RefusalCode::Invalid, error.to_string());
                return self.answer_now(id, command.get().expires_ms, refusal.into()).await;
            }
        };
        tracing::info!(command.id = %id, operator = %command.get().operator, verb = verb.name(), "command");
        match &verb {
            Verb::Cancel { command: which } => self.cancel(command.get(), *which).await,
            Verb::Exec(_) | Verb::Batch(_) => self.order_program(command, verb).await,
            Verb::UnitLogs { .. }
            | Verb::UnitFollow { .. }
            | Verb::UnitConfig { .. }
            | Verb::UnitSignal { .. }
            | Verb::UnitCommand(_)
            | Verb::UnitStats { .. } => {
                let mut tx = self.store.begin().await?;
                let new = self.enter(&mut tx, command.get()).await?;
                store::commit(tx, "enter command").await?;
                if !new {
                    return self.repeated(id).await;
                }
                self.launch(id, verb);
                Ok(())
            }
            Verb::UnitsApply(set) => self.apply_set(command.get(), set).await,
            Verb::UnitApply { unit, .. }
            | Verb::UnitRun { unit }
            | Verb::UnitStop { unit }
            | Verb::UnitRestart { unit }
            | Verb::UnitHold { unit, .. }
            | Verb::UnitUnhold { unit }
            | Verb::UnitRetire { unit, .. }
            | Verb::UnitLabel { unit, .. }
            | Verb::UnitUpgrade { unit, .. }
            | Verb::UnitFreeze { unit }
            | Verb::UnitThaw { unit }
            | Verb::UnitPlay { unit, .. }
            | Verb::UnitPause { unit }
            | Verb::UnitRm { unit } => self.edit(command.get(), unit, &verb).await,
            Verb::RealmSet { .. }
            | Verb::RealmRm { .. }
            | Verb::SnapshotTake { .. }
            | Verb::SnapshotLs
            | Verb::SnapshotDiff { .. }
            | Verb::SnapshotActivate { .. }
            | Verb::SnapshotDeactivate { .. }
            | Verb::SnapshotRm { .. } => self.order_realm_command(command.get(), &verb).await,
        }
    }

    pub(super) async fn enter(&self, tx: &mut sqlx::SqliteConnection, command: &Command) -> Result<bool, StoreError> {
        let body = serde_json::to_string(command).map_err(|source| StoreError::Content { what: "command", source })?;
        let entry =
            Entry { id: command.id, body: &body, expires_ms: command.expires_ms, issued_ms: Some(command.issued_ms) };
        journal::insert(tx, entry, self.time.signed_ms(), clock::now_ms()).await
    }

    /// Cancels another command. One that has not arrived yet is refused when it does.
    async fn cancel(&mut self, command: &Command, which: CommandId) -> Result<(), StoreError> {
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command).await? {
            tx.rollback().await?;
            return self.repeated(command.id).await;
        }
        let expires_ms = receive::cancelled_expires_ms(command.issued_ms);
        let entry = Entry { id: which, body: "{}", expires_ms, issued_ms: None };
        let refused = if journal::insert(&mut tx, entry, self.time.signed_ms(), now_ms).await? {
            let refusal = CommandRefusal::new(RefusalCode::Conflict, "it was cancelled before it could be begun");
            journal::finish(&mut tx, which, Status::from(refusal).into(), now_ms).await?
        } else {
            None
        };
        let key = journal::finish(&mut tx, command.id, Status::Completed.into(), now_ms).await?;
        store::commit(tx, "cancel").await?;
        self.executor.cancel(which);
        self.queue(refused);
        self.queue(key);
        Ok(())
    }

    /// Changes the desired state of a unit, and answers.
    async fn edit(&mut self, command: &Command, unit: &UnitName, verb: &Verb) -> Result<(), StoreError> {
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command).await? {
            tx.rollback().await?;
            return self.repeated(command.id).await;
        }
        let identity = self.identity.borrow().clone();
        let key = identity.membership.revision_key.as_ref();
        let asker = unit::ChangeContext { operator: &command.operator, now_ms, key };
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
        let changed = status.is_success();
        let key = journal::finish(&mut tx, command.id, status.into(), now_ms).await?;
        store::commit(tx, "edit unit").await?;
        if !command.realms.is_empty() {
            self.update_realms().await;
        }
        if changed {
            self.units.desired_changed();
            self.publisher.beats.hasten();
        }
        self.queue(key);
        Ok(())
    }

    /// Answers a command that needs no execution.
    async fn answer_now(&mut self, id: CommandId, expires_ms: Millis, status: Status) -> Result<(), StoreError> {
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        // A refused command is never resumed, so its text is not needed.
        let entry = Entry { id, body: "{}", expires_ms, issued_ms: None };
        let key = if journal::insert(&mut tx, entry, self.time.signed_ms(), now_ms).await? {
            journal::finish(&mut tx, id, status.into(), now_ms).await?
        } else {
            tx.rollback().await?;
            return self.repeated(id).await;
        };
        store::commit(tx, "answer").await?;
        self.queue(key);
        Ok(())
    }

    /// Handles a command that is in the journal already.
    pub(super) async fn repeated(&mut self, id: CommandId) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        let known = journal::answer_again(&mut tx, id, clock::now_ms()).await?;
        store::commit(tx, "answer again").await?;
        match known {
            Some(RepeatedCommand::Answered(key)) => self.queue(Some(key)),
            // Its sender gets the present status.
            Some(RepeatedCommand::Unfinished) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.told = ReportedProgress::Nothing;
                }
            }
            None => {}
        }
        Ok(())
    }

    pub(super) fn queue(&mut self, key: Option<ReportAck>) {
        let now_ms = self.now_ms();
        if let Some(key) = key {
            self.publisher.queue(key, now_ms);
        }
    }

    /// Starts the execution of a command.
    fn launch(&mut self, id: CommandId, verb: Verb) {
        self.running.insert(id, RunningCommand::since(self.now_ms()));
        match verb {
            Verb::UnitLogs { unit, lines, view } => self.read_log(id, unit, lines, view),
            Verb::UnitConfig { unit } => self.read_config(id, unit),
            Verb::UnitFollow { unit, lines, view, for_ms } => {
                let (units, executor) = (self.units.clone(), self.executor.clone());
                let wanted = FollowRequest { id, unit, lines, view, for_ms: for_ms.min(FOLLOW_MAX_MS) };
                // It begins at once, and its end is an event.
                self.running.insert(id, RunningCommand::begun_since(self.now_ms()));
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

    /// Sends a request to units, and answers when all have answered.
    fn forward(&mut self, id: CommandId, units: Vec<UnitName>, ask: InstanceRequest, timeout_ms: u64) {
        if let Some(running) = self.running.get_mut(&id) {
            running.begun = true;
        }
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
            tracing::info!(command.id = %id, "an earlier life of the agent left a command unfinished");
            let command = unfinished.command.take();
            let expires_ms = command.as_ref().map_or(Millis::MIN, |command| command.expires_ms);
            let operator = command.as_ref().map(|command| command.operator.clone());
            // One that cannot be opened any more counts as one that cannot be parsed.
            let verb = command.and_then(|command| self.sealing.open(&command, self.me.host).ok());
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
                (ResumedCommand::AskedAgain, Some(Verb::UnitStats { units, timeout_ms }), _) => {
                    self.forward(id, units, InstanceRequest::Stats, timeout_ms);
                }
                (ResumedCommand::Over, ..) => {
                    let message = "the agent was restarted meanwhile. hint: ask again".to_owned();
                    self.facts.push_back(PendingWrite::Ended(id, Status::Failed { message }));
                }
                _ => self.facts.push_back(PendingWrite::Ended(id, Status::Lost)),
            }
        }
    }

    /// Handles the result of a task.
    pub(super) fn worked(&mut self, work: TaskResult) {
        match work {
            TaskResult::Daemon(id, prepared) => self.daemon_prepared(id, prepared),
            TaskResult::Turn(program, turn) => self.finish_wait(program, turn),
            TaskResult::Begun(id, Ok(())) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.begun = true;
                }
            }
            TaskResult::Begun(id, Err(refusal)) => {
                tracing::info!(command.id = %id, reason = refusal.message, "not begun");
                self.facts.push_back(PendingWrite::Ended(id, refusal.into()));
            }
            TaskResult::Signalled(id, Ok(())) => self.facts.push_back(PendingWrite::Ended(id, Status::Completed)),
            TaskResult::Signalled(id, Err(refusal)) => self.facts.push_back(PendingWrite::Ended(id, refusal.into())),
            TaskResult::Read(id, Ok(log)) => self.facts.push_back(PendingWrite::Read(id, log)),
            TaskResult::Read(id, Err(refusal)) => self.facts.push_back(PendingWrite::Ended(id, refusal.into())),
            TaskResult::Done => {}
        }
    }

    /// Reports commands that take long.
    pub(super) fn report_slow_commands(&mut self) {
        let (now_ms, at_ms) = (self.now_ms(), clock::now_ms());
        for (id, running) in &mut self.running {
            let Some(told) = running.untold(now_ms) else { continue };
            running.told = told;
            let content = if told == ReportedProgress::Running { Content::Running } else { Content::Accepted };
            self.publisher.note(Report { v: V1, command: *id, seq: 0, at_ms, content });
        }
    }

    /// When the next command counts as slow.
    pub(super) fn slow_ms(&self) -> Option<Millis> {
        next_slow_ms(&self.running)
    }
}

fn next_slow_ms(running: &BTreeMap<CommandId, RunningCommand>) -> Option<Millis> {
    running.values().filter(|running| running.told < running.stage()).map(|running| running.since_ms + QUIET_MS).min()
}

impl RunningCommand {
    /// Creates one that waits, or is being started.
    pub(super) fn since(since_ms: Millis) -> Self {
        Self { since_ms, begun: false, told: ReportedProgress::Nothing }
    }

    /// Creates one that runs.
    pub(super) fn begun_since(since_ms: Millis) -> Self {
        Self { begun: true, ..Self::since(since_ms) }
    }

    fn stage(self) -> ReportedProgress {
        if self.begun { ReportedProgress::Running } else { ReportedProgress::Accepted }
    }

    fn untold(self, now_ms: Millis) -> Option<ReportedProgress> {
        (now_ms >= self.since_ms + QUIET_MS && self.told < self.stage()).then(|| self.stage())
    }
}
