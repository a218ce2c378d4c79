//! The writer: commits requests of many hosts in one transaction.
//!
//! **Invariant: a write is reported only after its commit.** A failed write is retried
//! until it succeeds, so that a full disk delays an outcome and loses none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_sqlite::rows::{parameters, pieces};
use muster_topics::{Millis, ack::ReportAck, name::CommandId};
use sqlx::{AssertSqlSafe, Row, Sqlite, SqliteConnection, SqlitePool, sqlite::SqliteArguments};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::store::{Answer, HostLife, Number, blob, live, number, uuid};

/// Largest number of requests in one transaction. A row takes about 5 µs and a sync some milliseconds, so more gain
/// nothing, and the first would wait for the last.
const GROUP_MAX: usize = 2_048;
/// Length of the queue: hosts wait for their answers, so there is at most one request of each.
const WRITES: usize = 4_096;
/// The wait before a failed transaction is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// A request, and who waits for it.
enum QueuedWrite {
    /// A command has arrived; with an answer if it is refused. `true`: it is new.
    Enter { host: Number, entry: Entry, answer: Option<Answer>, done: oneshot::Sender<bool> },
    /// A command takes effect and is answered.
    Finish { host: Number, id: CommandId, answer: Answer, done: oneshot::Sender<()> },
    /// A command has arrived again: its answer goes into the outbox again, if it has one.
    Again { host: Number, id: CommandId, done: oneshot::Sender<Option<Vec<u8>>> },
    /// The console has stored these answers.
    Acknowledge { host: Number, keys: Vec<ReportAck>, signed_ms: Millis, done: oneshot::Sender<()> },
    /// A host starts a new life.
    Live { host: Number, life: HostLife, done: oneshot::Sender<()> },
}

impl QueuedWrite {
    /// The host of the request.
    fn host(&self) -> Number {
        match self {
            Self::Enter { host, .. }
            | Self::Finish { host, .. }
            | Self::Again { host, .. }
            | Self::Acknowledge { host, .. }
            | Self::Live { host, .. } => *host,
        }
    }
}

/// A new entry of the journal.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) id: CommandId,
    pub(super) body: Arc<str>,
    pub(super) expires_ms: Millis,
    pub(super) received_ms: Millis,
    /// Whether it takes effect in the same transaction: then it comes with its answer.
    pub(super) is_done: bool,
}

/// A handle of the writer, which can be cloned. Its methods return `None` after the writer has ended, which only
/// happens at the end.
#[derive(Clone, Debug)]
pub(super) struct JournalWriter {
    writes: mpsc::Sender<QueuedWrite>,
}

impl std::fmt::Debug for QueuedWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Write")
    }
}

impl JournalWriter {
    async fn ask<T>(&self, write: impl FnOnce(oneshot::Sender<T>) -> QueuedWrite) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.writes.send(write(done)).await.ok()?;
        answer.await.ok()
    }

    /// Enters a command, with its answer if there is one already. `true`: it is new.
    pub(super) async fn enter(&self, host: Number, entry: Entry, answer: Option<Answer>) -> Option<bool> {
        self.ask(|done| QueuedWrite::Enter { host, entry, answer, done }).await
    }

    /// Records that a command takes effect, and its answer.
    pub(super) async fn finish(&self, host: Number, id: CommandId, answer: Answer) -> Option<()> {
        self.ask(|done| QueuedWrite::Finish { host, id, answer, done }).await
    }

    /// The answer of a command that arrived again, which waits for the console again; the inner `None`: it has no
    /// answer yet.
    pub(super) async fn again(&self, host: Number, id: CommandId) -> Option<Option<Vec<u8>>> {
        self.ask(|done| QueuedWrite::Again { host, id, done }).await
    }

    /// Records that the console has stored these answers.
    pub(super) async fn acknowledge(&self, host: Number, keys: Vec<ReportAck>, signed_ms: Millis) -> Option<()> {
        self.ask(|done| QueuedWrite::Acknowledge { host, keys, signed_ms, done }).await
    }

    /// Records a host's new life.
    pub(super) async fn live(&self, host: Number, life: HostLife) -> Option<()> {
        self.ask(|done| QueuedWrite::Live { host, life, done }).await
    }
}

/// Starts the writer, which ends when the last [`JournalWriter`] is dropped.
pub(super) fn start(pool: SqlitePool) -> (JournalWriter, JoinHandle<()>) {
    let (writes, queue) = mpsc::channel(WRITES);
    (JournalWriter { writes }, tokio::spawn(write_all(pool, queue)))
}

async fn write_all(pool: SqlitePool, mut queue: mpsc::Receiver<QueuedWrite>) {
    let mut waiting = Vec::with_capacity(GROUP_MAX);
    while queue.recv_many(&mut waiting, GROUP_MAX).await > 0 {
        let group = WriteGroup::new(std::mem::take(&mut waiting));
        let written = loop {
            match group.commit(&pool).await {
                Ok(written) => break written,
                Err(error) => {
                    tracing::error!(
                        %error,
                        consequence = "retrying",
                        hint = "check whether the disk is full",
                        "the simulation's store is not writable",
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        group.tell(written);
    }
}

/// The contents of one transaction.
#[derive(Default)]
struct WriteGroup {
    enters: Vec<(Number, Entry, Option<Answer>)>,
    finishes: Vec<(Number, CommandId, Answer)>,
    agains: Vec<(Number, CommandId)>,
    acknowledged: Vec<(Number, CommandId, Millis)>,
    lives: Vec<(Number, HostLife)>,
    // The senders that wait for these, in the same order.
    entered: Vec<oneshot::Sender<bool>>,
    answered: Vec<oneshot::Sender<Option<Vec<u8>>>>,
    done: Vec<oneshot::Sender<()>>,
}

/// The results of a group.
struct WriteResults {
    new: BTreeSet<(CommandId, Number)>,
    answers: Vec<Option<Vec<u8>>>,
}

impl WriteGroup {
    fn new(mut writes: Vec<QueuedWrite>) -> Self {
        let mut group = Self::default();
        // In the order of hosts, which is that of the table for one command: each page is changed only once.
        writes.sort_by_key(QueuedWrite::host);
        for write in writes {
            match write {
                QueuedWrite::Enter { host, entry, answer, done } => {
                    group.enters.push((host, entry, answer));
                    group.entered.push(done);
                }
                QueuedWrite::Finish { host, id, answer, done } => {
                    group.finishes.push((host, id, answer));
                    group.done.push(done);
                }
                QueuedWrite::Again { host, id, done } => {
                    group.agains.push((host, id));
                    group.answered.push(done);
                }
                QueuedWrite::Acknowledge { host, keys, signed_ms, done } => {
                    group.acknowledged.extend(keys.into_iter().map(|key| (host, key.command, signed_ms)));
                    group.done.push(done);
                }
                QueuedWrite::Live { host, life, done } => {
                    group.lives.push((host, life));
                    group.done.push(done);
                }
            }
        }
        group
    }

    /// Commits a group. A host waits for each answer before its next request, so the order of kinds does not matter.
    async fn commit(&self, pool: &SqlitePool) -> Result<WriteResults, sqlx::Error> {
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
        let new = self.enter(&mut transaction).await?;
        self.finish(&mut transaction).await?;
        self.acknowledge(&mut transaction).await?;
        let mut answers = Vec::with_capacity(self.agains.len());
        for (host, id) in &self.agains {
            answers.push(again(&mut transaction, *host, *id).await?);
        }
        for (host, life) in &self.lives {
            live(&mut transaction, *host, life).await?;
        }
        transaction.commit().await?;
        Ok(WriteResults { new, answers })
    }

    async fn enter(&self, db: &mut SqliteConnection) -> Result<BTreeSet<(CommandId, Number)>, sqlx::Error> {
        let texts: BTreeMap<(CommandId, &str), Millis> =
            self.enters.iter().map(|(_, entry, _)| ((entry.id, &*entry.body), entry.expires_ms)).collect();
        for ((id, body), expires_ms) in texts {
            // A host may run what another host has refused, without the text.
            sqlx::query(
                "INSERT INTO command (id, body, expires_ms) VALUES ($1, $2, $3)
                 ON CONFLICT (id) DO UPDATE SET body = excluded.body WHERE command.body = '{}'",
            )
            .bind(blob(id))
            .bind(body)
            .bind(expires_ms)
            .execute(&mut *db)
            .await?;
        }
        let mut new = BTreeSet::new();
        for piece in pieces(&self.enters) {
            // Almost always all of them are new; asking for each row would take as long as writing it. If one is not,
            // only this statement is undone.
            match insert(piece, "").execute(&mut *db).await {
                Ok(_) => new.extend(piece.iter().map(|(host, entry, _)| (entry.id, *host))),
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                    let rows =
                        insert(piece, "ON CONFLICT DO NOTHING RETURNING command, host").fetch_all(&mut *db).await?;
                    for row in rows {
                        let (id, host): (Vec<u8>, i64) = (row.try_get(0)?, row.try_get(1)?);
                        new.insert((CommandId(uuid(&id)?), number(host)));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(new)
    }

    // `+` keeps the database from scanning the whole journal and looking up each of its rows among the new ones.
    async fn finish(&self, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        for piece in pieces(&self.finishes) {
            let sql = format!(
                "WITH came (command, host, at_ms, answer) AS (VALUES {})
                 UPDATE journal SET effects = effects + 1, finished_ms = coalesce(finished_ms, came.at_ms),
                     answer = coalesce(journal.answer, came.answer)
                 FROM came WHERE journal.command = +came.command AND journal.host = +came.host",
                parameters(piece.len(), 4)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for (host, id, answer) in piece {
                query = query.bind(blob(*id)).bind(i64::from(*host)).bind(answer.at_ms).bind(answer.payload.as_slice());
            }
            query.execute(&mut *db).await?;
        }
        Ok(())
    }

    async fn acknowledge(&self, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        for piece in pieces(&self.acknowledged) {
            let sql = format!(
                "WITH came (command, host, at_ms) AS (VALUES {})
                 UPDATE journal SET acknowledged_ms = came.at_ms
                 FROM came WHERE journal.command = +came.command AND journal.host = +came.host AND answer IS NOT NULL",
                parameters(piece.len(), 3)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for (host, id, signed_ms) in piece {
                query = query.bind(blob(*id)).bind(i64::from(*host)).bind(*signed_ms);
            }
            query.execute(&mut *db).await?;
        }
        Ok(())
    }

    /// Answers all senders. Some may have given up.
    fn tell(self, written: WriteResults) {
        for ((host, entry, _), done) in self.enters.iter().zip(self.entered) {
            let _ = done.send(written.new.contains(&(entry.id, *host)));
        }
        for (answer, done) in written.answers.into_iter().zip(self.answered) {
            let _ = done.send(answer);
        }
        for done in self.done {
            let _ = done.send(());
        }
    }
}

/// The statement that enters these; its second part says what happens to existing rows.
fn insert<'q>(
    enters: &[(Number, Entry, Option<Answer>)],
    on_conflict: &str,
) -> sqlx::query::Query<'q, Sqlite, SqliteArguments> {
    let sql = format!(
        "INSERT INTO journal (command, host, received_ms, effects, finished_ms, answer) VALUES {} {on_conflict}",
        parameters(enters.len(), 6)
    );
    enters.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, (host, entry, answer)| {
        query
            .bind(blob(entry.id))
            .bind(i64::from(*host))
            .bind(entry.received_ms)
            .bind(i64::from(entry.is_done))
            .bind(answer.as_ref().map(|answer| answer.at_ms))
            .bind(answer.as_ref().map(|answer| answer.payload.clone()))
    })
}

async fn again(db: &mut SqliteConnection, host: Number, id: CommandId) -> Result<Option<Vec<u8>>, sqlx::Error> {
    let row: Option<(Option<Vec<u8>>,)> =
        sqlx::query_as("UPDATE journal SET acknowledged_ms = NULL WHERE command = $1 AND host = $2 RETURNING answer")
            .bind(blob(id))
            .bind(i64::from(host))
            .fetch_optional(db)
            .await?;
    Ok(row.and_then(|(answer,)| answer))
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::store::Store;

    #[tokio::test]
    async fn a_command_that_came_before_is_told_from_the_new_ones_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("simulation.db")).await.unwrap();
        let (journal, writer) = store.start_writer();
        let entry = Entry { id: CommandId::new(), body: "{}".into(), expires_ms: 10, received_ms: 1, is_done: false };
        let enter = async |hosts: Vec<Number>| {
            let answer = Some(Answer { at_ms: 2, payload: b"answer".to_vec() });
            join_all(hosts.into_iter().rev().map(|host| journal.enter(host, entry.clone(), answer.clone()))).await
        };
        let new = |count| vec![Some(true); count];
        assert_eq!(enter((0..600).filter(|host| host % 3 == 0).collect()).await, new(200));
        let all: Vec<_> = (0..600).rev().map(|host| Some(host % 3 != 0)).collect();
        assert_eq!(enter((0..600).collect()).await, all);
        assert_eq!(enter((0..700).collect()).await[..100], new(100));
        assert_eq!(journal.again(5, entry.id).await, Some(Some(b"answer".to_vec())));
        drop(journal);
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn a_command_that_some_hosts_refuse_keeps_its_text_for_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("simulation.db")).await.unwrap();
        let (journal, writer) = store.start_writer();
        let id = CommandId::new();
        let command = serde_json::json!({
            "v": 1, "id": id, "target": "all", "issued_ms": 0, "expires_ms": 10, "asked_by": {"operator": "admin", "role": "admin"},
            "verb": {"exec": {"argv": ["true"], "timeout_ms": 7_000}},
        });
        let doing = Entry { id, body: command.to_string().into(), expires_ms: 10, received_ms: 1, is_done: false };
        let refusing = Entry { body: "{}".into(), ..doing.clone() };
        let answer = Some(Answer { at_ms: 2, payload: b"refused".to_vec() });
        let refuse = |host| journal.enter(host, refusing.clone(), answer.clone());
        assert_eq!(refuse(1).await, Some(true));
        assert_eq!(join_all([journal.enter(2, doing.clone(), None), refuse(3)]).await, [Some(true); 2]);
        assert_eq!(refuse(4).await, Some(true));
        drop(journal);
        writer.await.unwrap();
        let left = store.left().await.unwrap();
        assert_eq!(left.unfinished[&2].iter().map(|one| (one.id, one.late_ms)).collect::<Vec<_>>(), [(id, 7_000)]);
    }
}
