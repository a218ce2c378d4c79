//! The store of all simulated hosts: one SQLite file, one writer, and commits that many hosts share.
//!
//! Each host asks for what an agent asks of its own store, and waits until it is committed (`synchronous=FULL`). The
//! writer takes all that waits, from whichever hosts, into one transaction.
//!
//! **Invariant: nobody hears that something was written before it was committed.** What the store does not take is tried
//! again until it does, so that a full disk delays an answer and loses none.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_topics::{
    Millis,
    ack::{Numbered, ReportAck},
    command::{Command, Verb},
    join::Membership,
    name::{CommandId, HostId},
};
use sqlx::{
    AssertSqlSafe, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::{
    agent::{
        store::{StoreError, journal::KEPT_AFTER_EXPIRY_MS},
        voice::Kept,
    },
    files,
    rows::{parameters, pieces},
};

/// The most that one transaction takes in. A row is some 5 µs and a sync of the disk some milliseconds, so larger ones
/// gain nothing, and the first in them would wait for the last.
const GROUP_MAX: usize = 2_048;
/// What waits for the writer: hosts wait for their answers, so there is at most one of each.
const WRITES: usize = 4_096;
/// How long to wait before what the store did not take is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Earlier lives that a host remembers, as an agent does.
const FORMER_MAX: usize = 16;

/// A host's own number in this simulation, from 0.
pub(super) type Number = u32;

/// A host as it is kept.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) n: Number,
    pub(super) id: HostId,
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) created_ms: Millis,
    pub(super) life: Life,
}

/// One life of a host.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) epoch: u64,
    /// What this life is known by, and then earlier ones, newest first.
    pub(super) instances: Vec<Uuid>,
}

impl Life {
    /// The one that comes after this.
    pub(super) fn next(&self) -> Self {
        let instances = std::iter::once(Uuid::new_v4()).chain(self.instances.iter().copied()).take(FORMER_MAX);
        Self { epoch: self.epoch + 1, instances: instances.collect() }
    }

    fn text(&self) -> String {
        self.instances.iter().map(Uuid::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// A command that an earlier life of a host did not bring to an end.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    pub(super) id: CommandId,
    pub(super) received_ms: Millis,
    /// Its own time limit.
    pub(super) late_ms: Millis,
}

impl Unfinished {
    /// As it stands in the journal.
    fn read(id: CommandId, received_ms: Millis, body: &str) -> Self {
        let late_ms = match serde_json::from_str::<Command>(body).map(|command| command.verb) {
            Ok(Verb::Exec(exec)) => Millis::try_from(exec.timeout_ms).unwrap_or(Millis::MAX),
            _ => Millis::MAX,
        };
        Self { id, received_ms, late_ms }
    }
}

/// What was left when the last run ended.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) unfinished: BTreeMap<Number, Vec<Unfinished>>,
    pub(super) outboxes: BTreeMap<Number, Outbox>,
    /// The latest signed time that any host has seen. Each host's own is no earlier than that of its last command, and
    /// all hear from the same console.
    pub(super) signed_ms: Millis,
}

impl Left {
    /// Answers that the console does not have.
    pub(super) fn count(&self) -> u64 {
        self.outboxes.values().map(|outbox| outbox.map(|all| all.len() as u64)).sum()
    }
}

/// An answer, ready to be said.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) at_ms: Millis,
    pub(super) payload: Vec<u8>,
}

/// What is to be written, and who waits for it.
enum Write {
    /// A command arrives; with an answer if it is refused. True: it is new.
    Enter { host: Number, entry: Entry, answer: Option<Answer>, done: oneshot::Sender<bool> },
    /// A command takes effect and is answered.
    Finish { host: Number, id: CommandId, answer: Answer, done: oneshot::Sender<()> },
    /// A command came again: its answer goes into the outbox again, if it has one.
    Again { host: Number, id: CommandId, done: oneshot::Sender<Option<Vec<u8>>> },
    /// The console has stored these.
    Acknowledge { host: Number, keys: Vec<ReportAck>, signed_ms: Millis, done: oneshot::Sender<()> },
    /// A host begins a new life.
    Live { host: Number, life: Life, done: oneshot::Sender<()> },
}

/// A command on its way into the journal.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) id: CommandId,
    pub(super) body: Arc<str>,
    pub(super) expires_ms: Millis,
    pub(super) received_ms: Millis,
}

/// What hosts write with; can be cloned. Its methods give nothing once the writer has ended, which it does last.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    writes: mpsc::Sender<Write>,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Write")
    }
}

impl Journal {
    async fn ask<T>(&self, write: impl FnOnce(oneshot::Sender<T>) -> Write) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.writes.send(write(done)).await.ok()?;
        answer.await.ok()
    }

    /// Enters a command, and its answer if there is one already. True if it is new.
    pub(super) async fn enter(&self, host: Number, entry: Entry, answer: Option<Answer>) -> Option<bool> {
        self.ask(|done| Write::Enter { host, entry, answer, done }).await
    }

    /// A command takes effect, and is answered.
    pub(super) async fn finish(&self, host: Number, id: CommandId, answer: Answer) -> Option<()> {
        self.ask(|done| Write::Finish { host, id, answer, done }).await
    }

    /// The answer of a command that is here already, which waits for the console again. Nothing inside if it has none yet.
    pub(super) async fn again(&self, host: Number, id: CommandId) -> Option<Option<Vec<u8>>> {
        self.ask(|done| Write::Again { host, id, done }).await
    }

    /// The console has these.
    pub(super) async fn acknowledge(&self, host: Number, keys: Vec<ReportAck>, signed_ms: Millis) -> Option<()> {
        self.ask(|done| Write::Acknowledge { host, keys, signed_ms, done }).await
    }

    /// A host begins a new life.
    pub(super) async fn live(&self, host: Number, life: Life) -> Option<()> {
        self.ask(|done| Write::Live { host, life, done }).await
    }
}

/// A host's answers that the console does not have yet. They are in the store as well; this is how they are found
/// without asking it, and it outlives the lives of its host.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Mutex<BTreeMap<ReportAck, Vec<u8>>>>);

impl Outbox {
    /// Puts in what was committed.
    pub(super) fn put(&self, key: ReportAck, payload: Vec<u8>) {
        self.map(|all| drop(all.insert(key, payload)));
    }

    /// Takes out what the console has.
    pub(super) fn remove(&self, keys: &[ReportAck]) {
        self.map(|all| keys.iter().for_each(|key| drop(all.remove(key))));
    }

    fn map<T>(&self, of: impl FnOnce(&mut BTreeMap<ReportAck, Vec<u8>>) -> T) -> T {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Kept for Outbox {
    async fn first_reports(&self, limit: usize) -> Result<Vec<ReportAck>, StoreError> {
        Ok(self.map(|all| all.keys().take(limit).copied().collect()))
    }

    async fn report(&self, key: ReportAck) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map(|all| all.get(&key).cloned()))
    }

    async fn first_batches(&self, _limit: usize) -> Result<Vec<(Numbered, Vec<u8>)>, StoreError> {
        // Simulated hosts measure nothing.
        Ok(Vec::new())
    }
}

/// The store.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens the store in `path`, and makes it if there is none.
    pub(super) async fn open(path: &Path) -> Result<Self, StoreError> {
        files::make_private(path).map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // Ten thousand answers of a command and the texts around them, with room to spare.
            .pragma("cache_size", "-32768");
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        sqlx::migrate!("src/simulate/migrations").run(&pool).await?;
        Ok(Self { pool })
    }

    /// What hosts have in common, if there are any.
    pub(super) async fn membership(&self) -> Result<Option<Membership>, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT membership FROM fleet").fetch_optional(&self.pool).await?;
        row.map(|(text,)| serde_json::from_str(&text))
            .transpose()
            .map_err(|source| StoreError::Content { what: "membership", source })
    }

    /// Keeps what hosts have in common.
    pub(super) async fn set_membership(&self, membership: &Membership) -> Result<(), StoreError> {
        let text =
            serde_json::to_string(membership).map_err(|source| StoreError::Content { what: "membership", source })?;
        sqlx::query(
            "INSERT INTO fleet (only, membership) VALUES (1, $1) ON CONFLICT (only) DO UPDATE SET membership = $1",
        )
        .bind(text)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Keeps hosts that have joined, or joined anew.
    pub(super) async fn put_hosts(&self, hosts: &[Row]) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        for row in hosts {
            sqlx::query(
                "INSERT INTO host (n, id, certificate, key, created_ms, epoch) VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (n) DO UPDATE SET certificate = $3, key = $4",
            )
            .bind(i64::from(row.n))
            .bind(row.id.0.as_bytes().to_vec())
            .bind(&row.certificate)
            .bind(&row.key)
            .bind(row.created_ms)
            .bind(to_sql(row.life.epoch))
            .execute(&mut *transaction)
            .await?;
        }
        Ok(transaction.commit().await?)
    }

    /// The first hosts.
    pub(super) async fn hosts(&self, count: Number) -> Result<Vec<Row>, StoreError> {
        type Columns = (i64, Vec<u8>, String, String, i64, i64, String);
        let rows: Vec<Columns> = sqlx::query_as(
            "SELECT n, id, certificate, key, created_ms, epoch, instances FROM host WHERE n < $1 ORDER BY n",
        )
        .bind(i64::from(count))
        .fetch_all(&self.pool)
        .await?;
        let row = |(n, id, certificate, key, created_ms, epoch, instances): Columns| {
            Ok(Row {
                n: number(n),
                id: HostId(uuid(&id)?),
                certificate,
                key,
                created_ms,
                life: Life {
                    epoch: u64::try_from(epoch).unwrap_or_default(),
                    instances: instances.split(' ').filter_map(|text| text.parse().ok()).collect(),
                },
            })
        };
        rows.into_iter().map(row).collect()
    }

    /// What is left of an earlier run, once what expired long ago is forgotten.
    pub(super) async fn left(&self) -> Result<Left, StoreError> {
        type Columns = (i64, Vec<u8>, i64, Option<Vec<u8>>, Option<String>);
        let (signed_ms,): (Option<i64>,) =
            sqlx::query_as("SELECT max(acknowledged_ms) FROM journal").fetch_one(&self.pool).await?;
        let mut left = Left { signed_ms: signed_ms.unwrap_or(0), ..Left::default() };
        let rows: Vec<Columns> = sqlx::query_as(
            "SELECT journal.host, journal.command, journal.received_ms, journal.answer, command.body
             FROM journal LEFT JOIN command ON command.id = journal.command WHERE journal.acknowledged_ms IS NULL",
        )
        .fetch_all(&self.pool)
        .await?;
        for (host, id, received_ms, answer, body) in rows {
            let (host, id) = (number(host), CommandId(uuid(&id)?));
            match answer {
                Some(payload) => left.outboxes.entry(host).or_default().put(key(id), payload),
                None => {
                    let one = Unfinished::read(id, received_ms, &body.unwrap_or_default());
                    left.unfinished.entry(host).or_default().push(one);
                }
            }
        }
        self.prune(left.signed_ms).await?;
        Ok(left)
    }

    /// Forgets commands that expired long before `signed_ms` and whose answers the console has.
    async fn prune(&self, signed_ms: Millis) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "DELETE FROM journal WHERE acknowledged_ms IS NOT NULL
             AND command IN (SELECT id FROM command WHERE expires_ms < $1)",
        )
        .bind(signed_ms.saturating_sub(KEPT_AFTER_EXPIRY_MS))
        .execute(&mut *transaction)
        .await?;
        sqlx::query("DELETE FROM command WHERE NOT EXISTS (SELECT 1 FROM journal WHERE journal.command = command.id)")
            .execute(&mut *transaction)
            .await?;
        Ok(transaction.commit().await?)
    }

    /// How many commands have taken effect on a host more than once: a promise is broken if there is one.
    pub(super) async fn twice(&self) -> Result<u64, StoreError> {
        let (count,): (i64,) =
            sqlx::query_as("SELECT count(*) FROM journal WHERE effects > 1").fetch_one(&self.pool).await?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// Begins new lives of all these hosts.
    pub(super) async fn begin_lives(&self, hosts: &mut [Row]) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        for host in hosts {
            host.life = host.life.next();
            live(&mut transaction, host.n, &host.life).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Starts the writer; it ends when the last [`Journal`] is gone.
    pub(super) fn start_writer(&self) -> (Journal, tokio::task::JoinHandle<()>) {
        let (writes, queue) = mpsc::channel(WRITES);
        (Journal { writes }, tokio::spawn(write_all(self.pool.clone(), queue)))
    }

    /// Closes the store: the write-ahead log goes into the file.
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// The number of a terminal answer: hosts that put out nothing have no other.
pub(super) fn key(command: CommandId) -> ReportAck {
    ReportAck { command, seq: 1 }
}

async fn write_all(pool: SqlitePool, mut queue: mpsc::Receiver<Write>) {
    let mut waiting = Vec::with_capacity(GROUP_MAX);
    while queue.recv_many(&mut waiting, GROUP_MAX).await > 0 {
        let group = Group::new(std::mem::take(&mut waiting));
        let written = loop {
            match group.commit(&pool).await {
                Ok(written) => break written,
                Err(error) => {
                    tracing::error!(%error, "the simulation's store takes nothing; trying again. hint: is the disk full?");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        group.tell(written);
    }
}

/// What one transaction writes.
#[derive(Default)]
struct Group {
    enters: Vec<(Number, Entry, Option<Answer>)>,
    finishes: Vec<(Number, CommandId, Answer)>,
    agains: Vec<(Number, CommandId)>,
    acknowledged: Vec<(Number, CommandId, Millis)>,
    lives: Vec<(Number, Life)>,
    // Who waits for them, in the same order.
    entered: Vec<oneshot::Sender<bool>>,
    answered: Vec<oneshot::Sender<Option<Vec<u8>>>>,
    done: Vec<oneshot::Sender<()>>,
}

/// What came of a group.
struct Written {
    new: BTreeSet<(CommandId, Number)>,
    answers: Vec<Option<Vec<u8>>>,
}

impl Group {
    fn new(writes: Vec<Write>) -> Self {
        let mut group = Self::default();
        for write in writes {
            match write {
                Write::Enter { host, entry, answer, done } => {
                    group.enters.push((host, entry, answer));
                    group.entered.push(done);
                }
                Write::Finish { host, id, answer, done } => {
                    group.finishes.push((host, id, answer));
                    group.done.push(done);
                }
                Write::Again { host, id, done } => {
                    group.agains.push((host, id));
                    group.answered.push(done);
                }
                Write::Acknowledge { host, keys, signed_ms, done } => {
                    group.acknowledged.extend(keys.into_iter().map(|key| (host, key.command, signed_ms)));
                    group.done.push(done);
                }
                Write::Live { host, life, done } => {
                    group.lives.push((host, life));
                    group.done.push(done);
                }
            }
        }
        group
    }

    /// A host waits for each answer before it asks for the next, so their order among kinds does not matter.
    async fn commit(&self, pool: &SqlitePool) -> Result<Written, sqlx::Error> {
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
        Ok(Written { new, answers })
    }

    async fn enter(&self, db: &mut SqliteConnection) -> Result<BTreeSet<(CommandId, Number)>, sqlx::Error> {
        let texts: BTreeMap<CommandId, &Entry> = self.enters.iter().map(|(_, entry, _)| (entry.id, entry)).collect();
        for (id, entry) in texts {
            sqlx::query("INSERT INTO command (id, body, expires_ms) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
                .bind(blob(id))
                .bind(&*entry.body)
                .bind(entry.expires_ms)
                .execute(&mut *db)
                .await?;
        }
        let mut new = BTreeSet::new();
        for piece in pieces(&self.enters) {
            let sql = format!(
                "INSERT INTO journal (command, host, received_ms, finished_ms, answer) VALUES {}
                 ON CONFLICT DO NOTHING RETURNING command, host",
                parameters(piece.len(), 5)
            );
            let mut query = sqlx::query_as(AssertSqlSafe(sql));
            for (host, entry, answer) in piece {
                query = query
                    .bind(blob(entry.id))
                    .bind(i64::from(*host))
                    .bind(entry.received_ms)
                    .bind(answer.as_ref().map(|answer| answer.at_ms))
                    .bind(answer.as_ref().map(|answer| answer.payload.clone()));
            }
            let rows: Vec<(Vec<u8>, i64)> = query.fetch_all(&mut *db).await?;
            for (id, host) in rows {
                new.insert((CommandId(uuid(&id)?), number(host)));
            }
        }
        Ok(new)
    }

    async fn finish(&self, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        for piece in pieces(&self.finishes) {
            let sql = format!(
                "WITH came (command, host, at_ms, answer) AS (VALUES {})
                 UPDATE journal SET effects = effects + 1, finished_ms = coalesce(finished_ms, came.at_ms),
                     answer = coalesce(journal.answer, came.answer)
                 FROM came WHERE journal.command = came.command AND journal.host = came.host",
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
                 FROM came WHERE journal.command = came.command AND journal.host = came.host AND answer IS NOT NULL",
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

    /// Tells everybody. Who is gone meanwhile does not need it.
    fn tell(self, written: Written) {
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

async fn again(db: &mut SqliteConnection, host: Number, id: CommandId) -> Result<Option<Vec<u8>>, sqlx::Error> {
    let row: Option<(Option<Vec<u8>>,)> =
        sqlx::query_as("UPDATE journal SET acknowledged_ms = NULL WHERE command = $1 AND host = $2 RETURNING answer")
            .bind(blob(id))
            .bind(i64::from(host))
            .fetch_optional(db)
            .await?;
    Ok(row.and_then(|(answer,)| answer))
}

async fn live(db: &mut SqliteConnection, host: Number, life: &Life) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE host SET epoch = $2, instances = $3 WHERE n = $1")
        .bind(i64::from(host))
        .bind(to_sql(life.epoch))
        .bind(life.text())
        .execute(db)
        .await?;
    Ok(())
}

fn blob(id: CommandId) -> Vec<u8> {
    id.0.as_bytes().to_vec()
}

fn uuid(bytes: &[u8]) -> Result<Uuid, sqlx::Error> {
    Uuid::from_slice(bytes).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn number(n: i64) -> Number {
    Number::try_from(n).unwrap_or(Number::MAX)
}

/// SQLite's integers are signed; what is kept there does not come near the edge.
fn to_sql(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
