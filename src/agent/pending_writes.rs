//! Writes about commands (admission, start, output, outcome) that wait until the store has taken them. A full disk delays an
//! outcome and loses none.

use muster_base::clock;
use muster_topics::{
    Millis,
    ack::ReportAck,
    diagnostic::Diagnostic,
    name::CommandId,
    outcome::{CHUNK_MAX_BYTES, Status, Stream},
};

use super::{
    command_handler::TaskResult,
    daemon::{self, UnitDraft},
    execute::{RunningPermit, event::ExecEvent},
    main_loop::AgentLoop,
    program_queue::QueuedProgram,
    store::{
        self, StoreError,
        journal::{self, CommandEnd},
    },
};

/// The largest part of a unit's log in one answer.
const LOG_MAX_BYTES: usize = 1024 * 1024;

/// A write that waits for the store.
#[derive(Debug)]
pub(super) enum PendingWrite {
    /// A program's output, or its end.
    Exec(ExecEvent),
    /// The end of a command without a program.
    Ended(CommandId, Status),
    /// A program that waited is about to be started.
    Turn(QueuedProgram, RunningPermit),
    /// A daemon's unit is to be created.
    Daemon(Box<UnitDraft>),
    /// The answer to a question, such as a log, with text for standard error.
    Read(CommandId, (Vec<u8>, Vec<u8>)),
}

impl AgentLoop {
    /// Stores writes in one transaction; returns the rows that are in the outbox now.
    pub(super) async fn record(&mut self, writes: &[PendingWrite]) -> Result<Vec<ReportAck>, StoreError> {
        let now_ms = clock::now_ms();
        let mut keys = Vec::new();
        let mut tx = self.store.begin().await?;
        for write in writes {
            enter_pending_write(&mut tx, write, now_ms, &mut keys).await?;
        }
        store::commit(tx, "record facts").await?;
        if !keys.is_empty()
            && let Err(error) = self.weigh_output().await
        {
            // They are stored. How much waits is weighed again with the next.
            tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "the amount of waiting output cannot be read");
        }
        Ok(keys)
    }

    /// Does what follows from stored writes; returns the commands that have ended.
    pub(super) fn act_on(&mut self, writes: Vec<PendingWrite>) -> Vec<CommandId> {
        let mut ended = Vec::new();
        for write in writes {
            match write {
                PendingWrite::Exec(ExecEvent::Output { .. }) => {}
                PendingWrite::Turn(program, place) => self.start_program(program, place),
                PendingWrite::Exec(ExecEvent::Ended { id, .. }) => {
                    let executor = self.executor.clone();
                    self.work.spawn(async move {
                        executor.forget(id).await;
                        TaskResult::Done
                    });
                    ended.push(id);
                }
                PendingWrite::Daemon(daemon) => {
                    self.units.desired_changed();
                    self.session.publisher.beats.hasten();
                    ended.push(daemon.id);
                }
                PendingWrite::Ended(id, _) | PendingWrite::Read(id, _) => ended.push(id),
            }
        }
        ended
    }
}

async fn enter_pending_write(
    tx: &mut sqlx::SqliteConnection,
    fact: &PendingWrite,
    now_ms: Millis,
    keys: &mut Vec<ReportAck>,
) -> Result<(), StoreError> {
    match fact {
        PendingWrite::Exec(ExecEvent::Output { id, stream, offset_bytes, bytes }) => {
            keys.extend(journal::add_output(tx, *id, *stream, *offset_bytes, bytes, now_ms).await?);
        }
        PendingWrite::Exec(ExecEvent::Ended { id, status, started_ms, rest, dropped_bytes }) => {
            let ending = CommandEnd {
                status: status.clone(),
                started_ms: *started_ms,
                rest: rest.clone(),
                dropped_bytes: *dropped_bytes,
            };
            keys.extend(journal::finish(tx, *id, ending, now_ms).await?);
        }
        PendingWrite::Ended(id, status) => keys.extend(journal::finish(tx, *id, status.clone().into(), now_ms).await?),
        PendingWrite::Daemon(daemon) => {
            let status = daemon::apply(tx, daemon, now_ms).await?;
            keys.extend(journal::finish(tx, daemon.id, status.into(), now_ms).await?);
        }
        PendingWrite::Turn(program, _) => journal::set_queued(tx, program.id, false).await?,
        PendingWrite::Read(id, (answer, words)) => answer_with(tx, *id, (answer, words), now_ms, keys).await?,
    }
    Ok(())
}

/// Stores the answer to a question, in as many messages as needed, with text for standard error.
pub(super) async fn answer_with(
    tx: &mut sqlx::SqliteConnection,
    id: CommandId,
    (output, words): (&[u8], &[u8]),
    now_ms: Millis,
    keys: &mut Vec<ReportAck>,
) -> Result<(), StoreError> {
    let (pieces, rest, dropped_bytes) = pieces(output);
    for (index, piece) in pieces.enumerate() {
        let offset_bytes = (index * CHUNK_MAX_BYTES) as u64;
        keys.extend(journal::add_output(tx, id, Stream::Stdout, offset_bytes, piece, now_ms).await?);
    }
    let ending = CommandEnd {
        status: Status::Completed,
        started_ms: None,
        rest: (rest.to_vec(), words.to_vec()),
        dropped_bytes: (dropped_bytes, 0),
    };
    keys.extend(journal::finish(tx, id, ending, now_ms).await?);
    Ok(())
}

/// Splits the end of a log into pieces; returns also the rest and how much was left out.
fn pieces(log: &[u8]) -> (std::slice::ChunksExact<'_, u8>, &[u8], u64) {
    let dropped = log.len().saturating_sub(LOG_MAX_BYTES);
    let pieces = log[dropped..].chunks_exact(CHUNK_MAX_BYTES);
    let rest = pieces.remainder();
    (pieces, rest, dropped as u64)
}
