//! Admits the programs of commands: gives each a place to run, or queues it, and starts it.
//!
//! **Invariant: a program that the journal has as waiting was not started**, because the journal is updated before the start. So after
//! a restart of the agent it waits again; any other has to be looked up.

use std::time::Duration;

use muster_base::clock;
use muster_rules::CommandRefusal;
use muster_session::{interface::Input, running::CommandStage};
use muster_topics::{
    Millis,
    command::{BUSY_FINAL_MS, Batch, Command, Exec, Verb},
    diagnostic::Diagnostic,
    name::CommandId,
    outcome::{RefusalCode, Status},
};

use super::{
    command_handler::{EnteredCommand, TakenInTransaction, TaskResult},
    execute::{AdmittedCommand, QueuePermit, QueueResult, RunningPermit, event::SentBytes},
    main_loop::AgentLoop,
    pending_writes::PendingWrite,
    store::{
        self, StoreError,
        journal::{self, UnfinishedCommand},
    },
};

/// A program that waits, or is about to be started.
#[derive(Debug)]
pub(super) struct QueuedProgram {
    pub(super) id: CommandId,
    pub(super) what: ProgramRequest,
    pub(super) expires_ms: Millis,
}

/// What to run.
#[derive(Debug)]
pub(super) enum ProgramRequest {
    One(Box<Exec>),
    Several(Batch),
}

impl ProgramRequest {
    fn of(verb: Verb) -> Option<Self> {
        match verb {
            Verb::Exec(exec) => Some(Self::One(Box::new(exec))),
            Verb::Batch(batch) => Some(Self::Several(batch)),
            _ => None,
        }
    }
}

impl AgentLoop {
    /// Journals a program, with or without a place. `verb` is the command's, with sealed values opened.
    pub(super) async fn enter_program(
        &mut self,
        command: &Command,
        verb: Verb,
        signed_ms: Millis,
    ) -> Result<TakenInTransaction, StoreError> {
        let id = command.id;
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command, signed_ms).await? {
            tx.rollback().await?;
            return Ok(TakenInTransaction::Repeated);
        }
        if let Verb::Exec(Exec { daemon: true, .. }) = &verb {
            store::commit(tx, "enter command").await?;
            return Ok(TakenInTransaction::Entered(EnteredCommand { verb, admitted: None }));
        }
        // If it cannot be stored the place is released, and the console sends the command again.
        let admitted = self.executor.admit(id);
        let left_ms = command.expires_ms.saturating_sub(self.session.time().now_ms(clock::now_ms()));
        if admitted.is_err() && left_ms > BUSY_FINAL_MS {
            // Nothing of it has begun and nothing is kept: the console sends it again.
            tx.rollback().await?;
            return Ok(TakenInTransaction::Busy);
        }
        let key = match &admitted {
            Ok(AdmittedCommand::Now(_)) => None,
            Ok(AdmittedCommand::Later(_)) => {
                journal::set_queued(&mut tx, id, true).await?;
                None
            }
            Err(refusal) => journal::finish(&mut tx, id, Status::from(refusal.clone()).into(), clock::now_ms()).await?,
        };
        store::commit(tx, "enter command").await?;
        Ok(match admitted {
            Ok(admitted) => TakenInTransaction::Entered(EnteredCommand { verb, admitted: Some(admitted) }),
            Err(refusal) => {
                tracing::info!(command.id = %id, reason = refusal.diagnostic.cause, hint = refusal.diagnostic.hint, "refused");
                TakenInTransaction::answered(key)
            }
        })
    }

    /// Begins a program that is journalled.
    pub(super) fn begin_program(&mut self, id: CommandId, expires_ms: Millis, verb: Verb, admitted: AdmittedCommand) {
        let Some(what) = ProgramRequest::of(verb) else { return };
        let program = QueuedProgram { id, what, expires_ms };
        match admitted {
            AdmittedCommand::Now(place) => self.start_program(program, place),
            AdmittedCommand::Later(queued) => self.await_turn(program, queued),
        }
    }

    /// Starts a program that has a place, and is not marked as waiting in the journal.
    pub(super) fn start_program(&mut self, QueuedProgram { id, what, .. }: QueuedProgram, place: RunningPermit) {
        let (executor, store) = (self.executor.clone(), self.store.clone());
        self.work.spawn(async move {
            if let Ok(Some(body)) = journal::body(&store, id).await {
                executor.note(id, body).await;
            }
            let begun = match what {
                ProgramRequest::One(exec) => executor.run(id, &exec, place).await,
                ProgramRequest::Several(batch) => {
                    executor.run_batch(id, batch, place);
                    Ok(())
                }
            };
            if begun.is_err() {
                executor.unnote(id).await;
            }
            TaskResult::Begun(id, begun)
        });
    }

    fn await_turn(&mut self, program: QueuedProgram, queued: QueuePermit) {
        tracing::info!(command.id = %program.id, "the command waits in the queue");
        let executor = self.executor.clone();
        let left_ms = program.expires_ms.saturating_sub(self.session.time().now_ms(clock::now_ms()));
        let limit = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        self.work.spawn(async move { TaskResult::Turn(program, executor.wait(queued, limit).await) });
    }

    /// Handles the end of a program's wait.
    pub(super) fn finish_wait(&mut self, program: QueuedProgram, turn: QueueResult) {
        let QueuedProgram { id, expires_ms, .. } = program;
        // The time during which the machine slept was not counted.
        let is_late = self.session.time().now_ms(clock::now_ms()) > expires_ms;
        let write = match turn {
            QueueResult::Cancelled => PendingWrite::Ended(id, Status::Cancelled),
            QueueResult::Come(place) if !is_late => PendingWrite::Turn(program, place),
            QueueResult::Come(_) | QueueResult::Expired => {
                let message = Diagnostic::new("the command expired while it waited in the queue")
                    .with_hint("the maximum number of commands is running");
                PendingWrite::Ended(id, CommandRefusal::new(RefusalCode::Expired, message).into())
            }
        };
        self.write(write);
    }

    /// Resumes a program that an earlier run of the agent left running, or waiting. Running ones come first, so that
    /// they have their places.
    pub(super) fn resume_program(&mut self, unfinished: UnfinishedCommand, expires_ms: Millis, what: ProgramRequest) {
        let UnfinishedCommand { id, queued, stdout_bytes, stderr_bytes, .. } = unfinished;
        if queued {
            self.tell(Input::Resumed(id, CommandStage::Accepted));
            let place = self.executor.admit_again(id);
            self.await_turn(QueuedProgram { id, what, expires_ms }, place);
            return;
        }
        self.tell(Input::Resumed(id, CommandStage::Running));
        let (executor, sent) = (self.executor.clone(), SentBytes { stdout_bytes, stderr_bytes });
        self.work.spawn(async move {
            match what {
                ProgramRequest::One(exec) => executor.resume(id, &exec, sent).await,
                ProgramRequest::Several(batch) => executor.resume_batch(id, batch, sent),
            }
            TaskResult::Done
        });
    }
}
