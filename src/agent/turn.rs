//! The road of a program: its place, the wait for its turn if there is none, and its start.
//!
//! **Invariant: what the journal has as waiting was not begun**, for it says otherwise before anything of it is. So after
//! a restart of the agent it waits again; of all else nobody can know without looking.

use std::time::Duration;

use muster_topics::{
    Millis, V1,
    command::{BUSY_FINAL_MS, Batch, Command, Exec, Verb},
    name::CommandId,
    outcome::{Content, RefusalCode, Report, Status},
};

use super::{
    core::Agent,
    execute::{Admitted, Place, Queued, Sent, Turn},
    fact::Fact,
    road::{Running, Work},
    store::{
        self, StoreError,
        journal::{self, Unfinished},
    },
};
use crate::{
    clock,
    rules::{Refusal, authorise::Authorised},
};

/// A program that waits, or is about to be started.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) id: CommandId,
    pub(super) what: What,
    pub(super) expires_ms: Millis,
}

/// What is to be run.
#[derive(Debug)]
pub(super) enum What {
    One(Box<Exec>),
    Several(Batch),
}

impl What {
    fn of(verb: Verb) -> Option<Self> {
        match verb {
            Verb::Exec(exec) => Some(Self::One(Box::new(exec))),
            Verb::Batch(batch) => Some(Self::Several(batch)),
            _ => None,
        }
    }
}

impl Agent {
    /// Enters a program that is to be run, with its place. `verb` is the command's with all that only this host may read.
    pub(super) async fn order_program(&mut self, command: Authorised<Command>, verb: Verb) -> Result<(), StoreError> {
        let id = command.get().id;
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command.get()).await? {
            tx.rollback().await?;
            return self.repeated(id).await;
        }
        if let Verb::Exec(Exec { daemon: true, .. }) = &verb {
            store::commit(tx, "enter command").await?;
            self.running.insert(id, Running::since(self.now_ms()));
            let Verb::Exec(exec) = verb else { return Ok(()) };
            self.prepare_daemon(id, command.into_inner().operator, exec);
            return Ok(());
        }
        // If it cannot be stored the place is free again, and the command comes again.
        let admitted = self.executor.admit(id);
        let clock_ms = clock::now_ms();
        let left_ms = command.get().expires_ms.saturating_sub(self.time.now_ms(clock_ms));
        if let (Err(refusal), true) = (&admitted, left_ms > BUSY_FINAL_MS) {
            // Nothing of it was begun, and nothing of it is kept: the console has it wait, and sends it again.
            tx.rollback().await?;
            tracing::info!(command.id = %id, reason = refusal.message, "no room for a command");
            self.voice.note(Report { v: V1, command: id, seq: 0, at_ms: clock_ms, content: Content::Busy });
            return Ok(());
        }
        let key = match &admitted {
            Ok(Admitted::Now(_)) => None,
            Ok(Admitted::Later(_)) => {
                journal::set_queued(&mut tx, id, true).await?;
                None
            }
            Err(refusal) => journal::finish(&mut tx, id, Status::from(refusal.clone()).into(), clock::now_ms()).await?,
        };
        store::commit(tx, "enter command").await?;
        self.queue(key);
        let expires_ms = command.get().expires_ms;
        let Some(what) = What::of(verb) else { return Ok(()) };
        let program = Program { id, what, expires_ms };
        match admitted {
            Ok(Admitted::Now(place)) => self.start_program(program, place),
            Ok(Admitted::Later(queued)) => self.await_turn(program, queued),
            Err(refusal) => tracing::info!(command.id = %id, reason = refusal.message, "refused"),
        }
        Ok(())
    }

    /// Starts a program that has its place, and of which the journal does not say that it waits.
    pub(super) fn start_program(&mut self, Program { id, what, .. }: Program, place: Place) {
        let since_ms = self.now_ms();
        self.running.entry(id).or_insert_with(|| Running::since(since_ms));
        let (executor, store) = (self.executor.clone(), self.store.clone());
        self.work.spawn(async move {
            if let Ok(Some(body)) = journal::body(&store, id).await {
                executor.note(id, body).await;
            }
            let begun = match what {
                What::One(exec) => executor.run(id, &exec, place).await,
                What::Several(batch) => {
                    executor.run_batch(id, batch, place);
                    Ok(())
                }
            };
            if begun.is_err() {
                executor.unnote(id).await;
            }
            Work::Begun(id, begun)
        });
    }

    fn await_turn(&mut self, program: Program, queued: Queued) {
        tracing::info!(command.id = %program.id, "the command waits for its turn");
        self.running.insert(program.id, Running::since(self.now_ms()));
        let executor = self.executor.clone();
        let left_ms = program.expires_ms.saturating_sub(self.time.now_ms(clock::now_ms()));
        let limit = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        self.work.spawn(async move { Work::Turn(program, executor.wait(queued, limit).await) });
    }

    /// The wait of a program is over.
    pub(super) fn turn_came(&mut self, program: Program, turn: Turn) {
        let Program { id, expires_ms, .. } = program;
        // A machine that slept did not count the time.
        let is_late = self.time.now_ms(clock::now_ms()) > expires_ms;
        let fact = match turn {
            Turn::Cancelled => Fact::Ended(id, Status::Cancelled),
            Turn::Come(place) if !is_late => Fact::Turn(program, place),
            Turn::Come(_) | Turn::Expired => {
                let message = "the command expired while it waited for its turn. hint: as many run as may at once";
                Fact::Ended(id, Refusal::new(RefusalCode::Expired, message).into())
            }
        };
        self.facts.push_back(fact);
    }

    /// Takes up a program that an earlier life of the agent left running, or waiting. Those that run come first, so
    /// that they have their places.
    pub(super) fn resume_program(&mut self, unfinished: Unfinished, expires_ms: Millis, what: What) {
        let Unfinished { id, queued, stdout_bytes, stderr_bytes, .. } = unfinished;
        if queued {
            let place = self.executor.admit_again(id);
            self.await_turn(Program { id, what, expires_ms }, place);
            return;
        }
        self.running.insert(id, Running::begun_since(self.now_ms()));
        let (executor, sent) = (self.executor.clone(), Sent { stdout_bytes, stderr_bytes });
        self.work.spawn(async move {
            match what {
                What::One(exec) => executor.resume(id, &exec, sent).await,
                What::Several(batch) => executor.resume_batch(id, batch, sent),
            }
            Work::Done
        });
    }
}
