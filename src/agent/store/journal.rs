//! The journal: every command that reached this host, by id, and its outcome.
//!
//! **Invariant: a command is inserted once.** If [`insert`] finds it, it is a repetition.
//!
//! **Invariant: an outcome and its outbox row are one transaction**, and a command has one outcome.
//!
//! A row is deleted only when a *signed* time says that the command has long expired: the host's clock
//! may be wrong today and right tomorrow, and deleting too early would let a command in twice.

use muster_fault::planted;
use muster_session::store::RepeatedCommand;
use muster_topics::{
    Millis, V1,
    ack::ReportAck,
    command::Command,
    name::CommandId,
    outcome::{CHUNK_MAX_BYTES, Content, Data, Outcome, Output, Report, Status, Stream},
};
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_sql, to_sql},
    error::StoreError,
    outbox, remember_signed_time, step,
};

/// How long a row is kept after the expiry of its command, so that a repetition is recognised: longer than any message is in
/// transit, and as long as a clock may be ahead. An agent that forgot commands sooner might repeat one after the time was set back.
pub const KEPT_AFTER_EXPIRY_MS: Millis = 24 * 3_600_000;

/// A command for the journal.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its id.
    pub id: CommandId,
    /// The command as JSON, to resume it after a crash.
    pub body: &'a str,
    /// Its expiry.
    pub expires_ms: Millis,
    /// When it was issued; `None` for a command that is only answered.
    pub issued_ms: Option<Millis>,
}

/// A command that an earlier run of the agent did not finish.
#[derive(Debug)]
pub struct UnfinishedCommand {
    /// Its id.
    pub id: CommandId,
    /// The command; `None` if it is unreadable.
    pub command: Option<Command>,
    /// How much of its standard output is in the outbox, or was.
    pub stdout_bytes: u64,
    /// The same for standard error.
    pub stderr_bytes: u64,
    /// Whether it waited in the queue, and had not begun.
    pub queued: bool,
}

/// The end of a command.
#[derive(Clone, Debug)]
pub struct CommandEnd {
    /// The status.
    pub status: Status,
    /// When its execution began, if it did.
    pub started_ms: Option<Millis>,
    /// The rest of stdout and stderr, each at most [`CHUNK_MAX_BYTES`].
    pub rest: (Vec<u8>, Vec<u8>),
    /// The bytes dropped of each.
    pub dropped_bytes: (u64, u64),
}

impl From<Status> for CommandEnd {
    fn from(status: Status) -> Self {
        Self { status, started_ms: None, rest: Default::default(), dropped_bytes: (0, 0) }
    }
}

/// Inserts a command, and stores the signed time that came with it. Returns false if it is there already.
///
/// # Errors
/// If the database fails.
pub async fn insert(
    tx: &mut SqliteConnection,
    entry: Entry<'_>,
    signed_ms: Millis,
    now_ms: Millis,
) -> Result<bool, StoreError> {
    let id = entry.id.to_string();
    let done = sqlx::query!(
        "INSERT INTO journal (id, body, received_ms, expires_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        id,
        entry.body,
        now_ms,
        entry.expires_ms
    )
    .execute(&mut *tx)
    .await?;
    remember_signed_time(tx, signed_ms).await?;
    let is_new = is_new(done.rows_affected());
    if let Some(issued_ms) = entry.issued_ms.filter(|_| is_new) {
        step(tx, issued_ms).await?;
    }
    Ok(is_new)
}

/// Whether inserting a command added this many rows because it was new.
pub fn is_new(rows: u64) -> bool {
    rows == 1 || planted!(EnterTwice)
}

/// Sets whether a command waits in the queue. Leaving the queue counts as a step, because its execution is about to
/// begin.
///
/// # Errors
/// If the database fails.
pub async fn set_queued(tx: &mut SqliteConnection, command: CommandId, queued: bool) -> Result<(), StoreError> {
    let id = command.to_string();
    sqlx::query!("UPDATE journal SET queued = ? WHERE id = ?", queued, id).execute(&mut *tx).await?;
    if queued { Ok(()) } else { step(tx, 0).await }
}

/// Adds a piece of a command's output to the outbox. Returns `None` if the command has its outcome, or the piece is
/// there already (a resuming executor may be a step behind).
///
/// # Errors
/// If the database fails.
pub async fn add_output(
    tx: &mut SqliteConnection,
    command: CommandId,
    stream: Stream,
    offset_bytes: u64,
    bytes: &[u8],
    now_ms: Millis,
) -> Result<Option<ReportAck>, StoreError> {
    let Some(at) = position(tx, command).await? else { return Ok(None) };
    let sent_bytes = if stream == Stream::Stdout { at.stdout_bytes } else { at.stderr_bytes };
    let known = usize::try_from(sent_bytes.saturating_sub(offset_bytes)).unwrap_or(usize::MAX);
    let Some(fresh) = bytes.get(known..).filter(|fresh| !fresh.is_empty()) else { return Ok(None) };
    let offset_bytes = offset_bytes + known as u64;
    let content = Content::Output { stream, offset_bytes, data: Data::new(fresh) };
    let key = ReportAck { command, seq: at.next_seq };
    outbox::insert(tx, key, &message(key, content, now_ms)?).await?;

    let id = command.to_string();
    let end = to_sql(offset_bytes + fresh.len() as u64);
    let (stdout, stderr) = match stream {
        Stream::Stdout => (end, to_sql(at.stderr_bytes)),
        Stream::Stderr => (to_sql(at.stdout_bytes), end),
    };
    sqlx::query!(
        "UPDATE journal SET next_seq = next_seq + 1, stdout_bytes = ?, stderr_bytes = ? WHERE id = ?",
        stdout,
        stderr,
        id
    )
    .execute(tx)
    .await?;
    Ok(Some(key))
}

/// Stores the outcome of a command. Returns `None` if it has one already.
///
/// # Errors
/// If the database fails.
pub async fn finish(
    tx: &mut SqliteConnection,
    command: CommandId,
    ending: CommandEnd,
    now_ms: Millis,
) -> Result<Option<ReportAck>, StoreError> {
    let Some(at) = position(tx, command).await? else { return Ok(None) };
    let key = ReportAck { command, seq: at.next_seq };
    let output = |sent_bytes, rest: Vec<u8>, dropped_bytes| {
        debug_assert!(rest.len() <= CHUNK_MAX_BYTES);
        Output { sent_bytes, rest: (!rest.is_empty()).then(|| Data::new(&rest)), dropped_bytes }
    };
    let outcome = Outcome {
        status: ending.status,
        started_ms: ending.started_ms,
        finished_ms: now_ms,
        stdout: output(at.stdout_bytes, ending.rest.0, ending.dropped_bytes.0),
        stderr: output(at.stderr_bytes, ending.rest.1, ending.dropped_bytes.1),
    };
    let answer = message(key, Content::Done { outcome }, now_ms)?;
    let (id, seq) = (command.to_string(), to_sql(key.seq));
    sqlx::query!(
        "UPDATE journal SET finished_ms = ?, answer_seq = ?, answer = ?, next_seq = next_seq + 1 WHERE id = ?",
        now_ms,
        seq,
        answer,
        id
    )
    .execute(&mut *tx)
    .await?;
    outbox::insert(tx, key, &answer).await?;
    Ok(Some(key))
}

/// Answers a repetition: if the command has its outcome, that is put into the outbox again, even if it was acknowledged
/// before. Returns `None` if there is no such command.
///
/// # Errors
/// If the database fails.
pub async fn answer_again(
    tx: &mut SqliteConnection,
    command: CommandId,
) -> Result<Option<RepeatedCommand>, StoreError> {
    let id = command.to_string();
    let row = sqlx::query!("SELECT answer_seq, answer FROM journal WHERE id = ?", id).fetch_optional(&mut *tx).await?;
    let Some(row) = row else { return Ok(None) };
    let (Some(seq), Some(answer)) = (row.answer_seq, row.answer) else { return Ok(Some(RepeatedCommand::Unfinished)) };
    let key = ReportAck { command, seq: from_sql(seq) };
    outbox::insert(tx, key, &answer).await?;
    Ok(Some(RepeatedCommand::Answered(key)))
}

/// Returns unfinished commands of earlier runs of the agent, oldest first.
///
/// # Errors
/// If the database fails.
pub async fn unfinished(store: &Store) -> Result<Vec<UnfinishedCommand>, StoreError> {
    let rows = sqlx::query!(
        "SELECT id, body, stdout_bytes, stderr_bytes, queued FROM journal
         WHERE finished_ms IS NULL ORDER BY received_ms, id"
    )
    .fetch_all(&store.pool)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(UnfinishedCommand {
                id: outbox::id(&row.id)?,
                command: serde_json::from_str(&row.body).ok(),
                stdout_bytes: from_sql(row.stdout_bytes),
                stderr_bytes: from_sql(row.stderr_bytes),
                queued: row.queued != 0,
            })
        })
        .collect()
}

/// Returns the number of commands.
///
/// # Errors
/// If the database fails.
pub async fn count(store: &Store) -> Result<u64, StoreError> {
    Ok(from_sql(sqlx::query_scalar!("SELECT count(*) FROM journal").fetch_one(&store.pool).await?))
}

/// Whether a command is in the journal.
///
/// # Errors
/// If the database fails.
pub async fn knows(store: &Store, command: CommandId) -> Result<bool, StoreError> {
    let id = command.to_string();
    let found = sqlx::query_scalar!("SELECT count(*) FROM journal WHERE id = ?", id).fetch_one(&store.pool).await?;
    Ok(found > 0)
}

/// Returns the stored JSON of a command, if it is there.
///
/// # Errors
/// If the database fails.
pub async fn body(store: &Store, command: CommandId) -> Result<Option<String>, StoreError> {
    let id = command.to_string();
    Ok(sqlx::query_scalar!("SELECT body FROM journal WHERE id = ?", id).fetch_optional(&store.pool).await?)
}

/// The result of restoring a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredOutbox {
    /// The command was lost, and is stored again, without an outcome.
    Lost,
    /// It is there, without an outcome.
    Unfinished,
    /// It is there with its outcome.
    Answered,
}

/// Restores a command that a store may have lost, and whose program was started: its shim knows its state.
///
/// # Errors
/// If the database fails.
pub async fn restore(
    store: &Store,
    command: &Command,
    body: &str,
    now_ms: Millis,
) -> Result<RestoredOutbox, StoreError> {
    let id = command.id.to_string();
    let mut tx = store.begin().await?;
    // This step was made before the loss.
    let entry = Entry { id: command.id, body, expires_ms: command.expires_ms, issued_ms: None };
    if insert(&mut tx, entry, 0, now_ms).await? {
        super::commit(tx, "put command back").await?;
        return Ok(RestoredOutbox::Lost);
    }
    let finished_ms =
        sqlx::query_scalar!("SELECT finished_ms FROM journal WHERE id = ?", id).fetch_one(&mut *tx).await?;
    Ok(if finished_ms.is_some() { RestoredOutbox::Answered } else { RestoredOutbox::Unfinished })
}

/// Returns the time before which expired commands are removed.
pub fn kept_from_ms(signed_ms: Millis, kept_ms: Millis) -> Millis {
    if planted!(PruneEarly) {
        return Millis::MAX;
    }
    signed_ms.saturating_sub(kept_ms)
}

/// Removes commands that expired `kept_ms` before `signed_ms` and whose messages the console has.
///
/// # Errors
/// If the database fails.
pub async fn prune(store: &Store, signed_ms: Millis, kept_ms: Millis) -> Result<u64, StoreError> {
    let before_ms = kept_from_ms(signed_ms, kept_ms);
    let mut tx = store.begin().await?;
    let done = sqlx::query!(
        "DELETE FROM journal WHERE finished_ms IS NOT NULL AND expires_ms < ?
         AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.command = journal.id)",
        before_ms
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "prune").await?;
    Ok(done.rows_affected())
}

struct OutputPosition {
    next_seq: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

/// Returns the position of an unfinished command's messages.
async fn position(tx: &mut SqliteConnection, command: CommandId) -> Result<Option<OutputPosition>, StoreError> {
    let id = command.to_string();
    let row = sqlx::query!(
        "SELECT next_seq, stdout_bytes, stderr_bytes FROM journal WHERE id = ? AND finished_ms IS NULL",
        id
    )
    .fetch_optional(tx)
    .await?;
    Ok(row.map(|row| OutputPosition {
        next_seq: from_sql(row.next_seq),
        stdout_bytes: from_sql(row.stdout_bytes),
        stderr_bytes: from_sql(row.stderr_bytes),
    }))
}

fn message(key: ReportAck, content: Content, at_ms: Millis) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(&Report { v: V1, command: key.command, seq: key.seq, at_ms, content })
        .map_err(|source| StoreError::Content { what: "report", source })
}

#[cfg(test)]
mod tests {
    use muster_topics::unit::Exit;

    use super::*;

    const EXPIRES: Millis = 1_000_000;

    struct Bench {
        _folder: tempfile::TempDir,
        path: std::path::PathBuf,
        store: Store,
    }

    impl Bench {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("agent.db");
            let store = Store::open(&path).await.unwrap();
            Self { _folder: folder, path, store }
        }

        /// Reopens the store as after a crash: it was not closed.
        async fn reopened(self) -> Self {
            let Self { _folder, path, store } = self;
            drop(store);
            let store = Store::open(&path).await.unwrap();
            Self { _folder, path, store }
        }

        async fn insert(&self, id: CommandId) -> bool {
            let mut tx = self.store.begin().await.unwrap();
            let new =
                insert(&mut tx, Entry { id, body: "{}", expires_ms: EXPIRES, issued_ms: Some(5) }, 5, 5).await.unwrap();
            tx.commit().await.unwrap();
            new
        }

        async fn output(&self, id: CommandId, offset_bytes: u64, bytes: &[u8]) -> Option<u64> {
            let mut tx = self.store.begin().await.unwrap();
            let key = add_output(&mut tx, id, Stream::Stdout, offset_bytes, bytes, 6).await.unwrap();
            tx.commit().await.unwrap();
            key.map(|key| key.seq)
        }

        async fn finish(&self, id: CommandId, code: i32) -> Option<ReportAck> {
            let mut tx = self.store.begin().await.unwrap();
            let ending = CommandEnd {
                rest: (b"end".to_vec(), vec![]),
                dropped_bytes: (0, 9),
                ..Status::exited(Exit::Code(code)).into()
            };
            let key = finish(&mut tx, id, ending, 7).await.unwrap();
            tx.commit().await.unwrap();
            key
        }

        async fn again(&self, id: CommandId) -> Option<RepeatedCommand> {
            let mut tx = self.store.begin().await.unwrap();
            let known = answer_again(&mut tx, id).await.unwrap();
            tx.commit().await.unwrap();
            known
        }

        async fn waiting(&self) -> Vec<ReportAck> {
            outbox::first(&self.store, 100).await.unwrap()
        }

        async fn report(&self, key: ReportAck) -> Report {
            serde_json::from_slice(&outbox::payload(&self.store, key).await.unwrap().unwrap()).unwrap()
        }
    }

    #[tokio::test]
    async fn command_is_inserted_once_with_one_outcome() {
        let bench = Bench::new().await;
        let id = CommandId::new();
        assert!(bench.insert(id).await);
        assert!(!bench.insert(id).await);
        assert_eq!(bench.again(id).await, Some(RepeatedCommand::Unfinished));
        let bench = bench.reopened().await;
        assert!(!bench.insert(id).await, "it is known after a crash");
        let key = bench.finish(id, 0).await.unwrap();
        assert_eq!(bench.finish(id, 1).await, None, "the first answer stands");
        assert_eq!(bench.output(id, 0, b"late").await, None, "nothing comes after it");
        assert_eq!(bench.again(id).await, Some(RepeatedCommand::Answered(key)));
        assert_eq!(bench.again(CommandId::new()).await, None);
        assert_eq!(bench.waiting().await, [key]);
    }

    #[tokio::test]
    async fn outcome_is_kept_until_acknowledged() {
        let bench = Bench::new().await;
        let id = CommandId::new();
        bench.insert(id).await;
        let key = bench.finish(id, 3).await.unwrap();
        let report = bench.report(key).await;
        let bench = bench.reopened().await;
        assert_eq!(bench.waiting().await, [key]);
        outbox::acknowledge(&bench.store, &[ReportAck { seq: key.seq + 1, ..key }], 9).await.unwrap();
        assert_eq!(bench.waiting().await, [key], "another number was acknowledged");
        outbox::acknowledge(&bench.store, &[key], 9).await.unwrap();
        assert_eq!(bench.waiting().await, []);
        assert_eq!(bench.again(id).await, Some(RepeatedCommand::Answered(key)));
        assert_eq!(bench.report(key).await, report, "the same answer, under the same number");
    }

    #[tokio::test]
    async fn output_is_numbered_and_stored_once() {
        let bench = Bench::new().await;
        let id = CommandId::new();
        bench.insert(id).await;
        assert_eq!(bench.output(id, 0, b"abc").await, Some(1));
        let bench = bench.reopened().await;
        // A resuming executor is a step behind.
        assert_eq!(bench.output(id, 0, b"abc").await, None);
        assert_eq!(bench.output(id, 1, b"bcdef").await, Some(2));
        let unfinished = unfinished(&bench.store).await.unwrap();
        assert_eq!(unfinished.len(), 1);
        assert_eq!((unfinished[0].id, unfinished[0].stdout_bytes, unfinished[0].stderr_bytes), (id, 6, 0));
        let key = bench.finish(id, 0).await.unwrap();
        assert_eq!(key.seq, 3);
        let Content::Output { offset_bytes, data, .. } = bench.report(ReportAck { seq: 2, ..key }).await.content else {
            panic!("output")
        };
        assert_eq!((offset_bytes, data.to_bytes().unwrap()), (3, b"def".to_vec()));
        let Content::Done { outcome } = bench.report(key).await.content else { panic!("an outcome") };
        assert_eq!((outcome.stdout.sent_bytes, outcome.stderr.dropped_bytes), (6, 9));
        assert_eq!(outcome.stdout.rest.unwrap().to_bytes().unwrap(), b"end");
        assert_eq!(super::unfinished(&bench.store).await.unwrap().len(), 0);
    }

    #[tokio::test]
    async fn waiting_state_survives_a_crash() {
        let bench = Bench::new().await;
        let (waits, began) = (CommandId::new(), CommandId::new());
        for id in [waits, began] {
            bench.insert(id).await;
            let mut tx = bench.store.begin().await.unwrap();
            set_queued(&mut tx, id, true).await.unwrap();
            if id == began {
                set_queued(&mut tx, id, false).await.unwrap();
            }
            tx.commit().await.unwrap();
        }
        let bench = bench.reopened().await;
        let mut queued: Vec<_> =
            super::unfinished(&bench.store).await.unwrap().iter().map(|row| (row.id, row.queued)).collect();
        queued.sort_by_key(|(_, queued)| *queued);
        assert_eq!(queued, [(began, false), (waits, true)]);
    }

    #[tokio::test]
    async fn command_is_deleted_long_after_expiry() {
        let bench = Bench::new().await;
        let (answered, waiting, unfinished) = (CommandId::new(), CommandId::new(), CommandId::new());
        for id in [answered, waiting, unfinished] {
            bench.insert(id).await;
        }
        let key = bench.finish(answered, 0).await.unwrap();
        bench.finish(waiting, 0).await.unwrap();
        outbox::acknowledge(&bench.store, &[key], 9).await.unwrap();
        let kept_ms = KEPT_AFTER_EXPIRY_MS;
        let late_ms = EXPIRES + kept_ms;
        assert_eq!(count(&bench.store).await.unwrap(), 3);
        assert_eq!(prune(&bench.store, late_ms, kept_ms).await.unwrap(), 0);
        assert_eq!(prune(&bench.store, late_ms + 1, kept_ms).await.unwrap(), 1);
        assert_eq!(count(&bench.store).await.unwrap(), 2);
        assert!(!knows(&bench.store, answered).await.unwrap() && knows(&bench.store, waiting).await.unwrap());
        assert!(outbox::bytes(&bench.store).await.unwrap() > 50);
        assert_eq!(bench.again(answered).await, None);
        assert!(bench.again(waiting).await.is_some() && bench.again(unfinished).await.is_some());
    }

    #[tokio::test]
    async fn uncommitted_command_is_gone() {
        let bench = Bench::new().await;
        let id = CommandId::new();
        let mut tx = bench.store.begin().await.unwrap();
        insert(&mut tx, Entry { id, body: "{}", expires_ms: EXPIRES, issued_ms: Some(5) }, 5, 5).await.unwrap();
        finish(&mut tx, id, Status::Completed.into(), 7).await.unwrap();
        drop(tx);
        let bench = bench.reopened().await;
        assert_eq!((bench.again(id).await, bench.waiting().await), (None, vec![]));
        assert!(bench.insert(id).await);
    }
}
