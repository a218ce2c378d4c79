//! The store of all simulated hosts: one SQLite file, one writer, and commits that many hosts share.
//!
//! Each host makes the requests that an agent makes to its own store, and waits until they are committed (`synchronous=FULL`): see
//! [`writer`], which puts queued requests of all hosts into one transaction. The rest is here.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use muster_agent::{
    join::MemberIdentity,
    store::{StoreError, journal::KEPT_AFTER_EXPIRY_MS},
};
use muster_base::form::OtherForm;
use muster_rules::presence::FORMER_MAX;
use muster_session::store::{OutboxRead, StoreReply};
use muster_sqlite::{form, index_file, one_writer, rows::ROWS_AHEAD, schema};
use muster_topics::{
    Millis,
    ack::{Numbered, ReportAck},
    command::{Command, Verb},
    join::Membership,
    name::{CommandId, HostId},
    revision::RevisionKey,
};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{
    measure::PackedBatch,
    writer::{self, JournalWriter},
};

/// Number of batches of one host that wait for the console: ten minutes. They are in memory; 10,000 hosts with twenty
/// series each use about 100 MB.
const BATCHES_MAX: usize = 20;

/// The number of a host in this simulation, from 0.
pub(super) type Number = u32;

/// A stored host.
#[derive(Clone, Debug)]
pub(super) struct SimulatedHostRow {
    pub(super) n: Number,
    pub(super) id: HostId,
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) created_ms: Millis,
    pub(super) life: HostLife,
}

impl SimulatedHostRow {
    /// Its identity in the fleet that all hosts belong to.
    pub(super) fn identity(&self, fleet: &Membership) -> MemberIdentity {
        let (host, certificate) = (self.id, self.certificate.clone());
        let membership = Membership { host, certificate, ..common(fleet) };
        MemberIdentity { membership, key: self.key.clone() }
    }
}

/// What all hosts have in common of a membership. Keys of revisions differ: simulated hosts make no revisions.
fn common(membership: &Membership) -> Membership {
    Membership { revision_key: RevisionKey::from_bytes([0; 32]), addresses: None, ..membership.clone() }
}

/// One life of a host.
#[derive(Clone, Debug)]
pub(super) struct HostLife {
    pub(super) epoch: u64,
    /// The instance of this life, and then former ones, newest first.
    pub(super) instances: Vec<Uuid>,
}

impl HostLife {
    /// The next life.
    pub(super) fn next(&self) -> Self {
        let instances = std::iter::once(Uuid::new_v4()).chain(self.instances.iter().copied()).take(FORMER_MAX);
        Self { epoch: self.epoch + 1, instances: instances.collect() }
    }

    fn text(&self) -> String {
        self.instances.iter().map(Uuid::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// A command that an earlier life did not finish.
#[derive(Clone, Debug)]
pub(super) struct InterruptedCommand {
    pub(super) id: CommandId,
    pub(super) received_ms: Millis,
    /// Its time limit.
    pub(super) late_ms: Millis,
}

impl InterruptedCommand {
    /// Reads it from the journal.
    fn read(id: CommandId, received_ms: Millis, body: &str) -> Self {
        let late_ms = match serde_json::from_str::<Command>(body).map(|command| command.verb) {
            Ok(Verb::Exec(exec)) => Millis::try_from(exec.timeout_ms).unwrap_or(Millis::MAX),
            _ => Millis::MAX,
        };
        Self { id, received_ms, late_ms }
    }
}

/// What an earlier run has left.
#[derive(Debug, Default)]
pub(super) struct LeftMessages {
    pub(super) unfinished: BTreeMap<Number, Vec<InterruptedCommand>>,
    pub(super) outboxes: BTreeMap<Number, Outbox>,
    /// The latest signed time that any host has seen. Each host's own is at least that of its last command, and all
    /// receive from the same console.
    pub(super) signed_ms: Millis,
}

impl LeftMessages {
    /// Number of answers that the console does not have.
    pub(super) fn count(&self) -> u64 {
        self.outboxes.values().map(|outbox| outbox.map(|all| all.answers.len() as u64)).sum()
    }
}

/// An answer that is ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) at_ms: Millis,
    pub(super) payload: Vec<u8>,
}

/// Messages that the console has not stored yet. They outlive a host's life. Answers are in the store as well; this
/// index finds them without a query. Batches are only in memory: simulated measurements that are lost with the process
/// have no value.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Mutex<UnsentMessages>>);

#[derive(Debug, Default)]
struct UnsentMessages {
    answers: BTreeMap<ReportAck, Vec<u8>>,
    batches: BTreeMap<Numbered, PackedBatch>,
}

impl Outbox {
    /// Adds an answer that was committed.
    pub(super) fn put(&self, key: ReportAck, payload: Vec<u8>) {
        self.map(|all| drop(all.answers.insert(key, payload)));
    }

    /// Removes answers that the console has stored.
    pub(super) fn remove(&self, keys: &[ReportAck]) {
        self.map(|all| keys.iter().for_each(|key| drop(all.answers.remove(key))));
    }

    /// Adds a batch of measurements; returns the number of values in the oldest one if that was dropped.
    pub(super) fn put_batch(&self, id: Numbered, batch: PackedBatch) -> Option<u64> {
        self.map(|all| {
            all.batches.insert(id, batch);
            let surplus = all.batches.len() > BATCHES_MAX;
            surplus.then(|| all.batches.pop_first()).flatten().map(|(_, oldest)| oldest.values)
        })
    }

    /// Removes batches that the console has stored; returns their number, and that of their values.
    pub(super) fn remove_batches(&self, ids: &[Numbered]) -> (u64, u64) {
        let found = self.map(|all| ids.iter().filter_map(|id| all.batches.remove(id)).collect::<Vec<_>>());
        (found.len() as u64, found.iter().map(|batch| batch.values).sum())
    }

    fn map<T>(&self, of: impl FnOnce(&mut UnsentMessages) -> T) -> T {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Outbox {
    /// Reads what is published next.
    pub(super) fn read<W>(&self, read: OutboxRead) -> StoreReply<W> {
        self.map(|all| match read {
            OutboxRead::FirstReports(limit) => StoreReply::Reports(all.answers.keys().take(limit).copied().collect()),
            OutboxRead::Report(key) => StoreReply::Report(all.answers.get(&key).cloned()),
            OutboxRead::FirstBatches(limit) => {
                let newest = all.batches.iter().rev().take(limit);
                StoreReply::Batches(newest.map(|(id, batch)| (*id, batch.payload.clone())).collect())
            }
            // Simulated units have no tasks.
            OutboxRead::TaskEnds(_) => StoreReply::TaskEnds(Vec::new()),
        })
    }
}

/// The error of a store that another build has written.
fn other_form(path: &Path) -> OtherForm {
    OtherForm::in_folder(path, path.parent().unwrap_or(Path::new(".")), "start again")
}

/// Checks that no other build has written a store, and changes nothing.
pub(super) fn check_form(path: &Path) -> Result<(), OtherForm> {
    muster_base::form::check_store(path, other_form)
}

/// The store of simulated hosts.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens the store in `path`; creates it if there is none.
    pub(super) async fn open(path: &Path) -> Result<Self, StoreError> {
        form::prepare(path, SqliteAutoVacuum::None, other_form).await?;
        let _index = index_file::prepare(path).await.map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // Ten thousand answers of a command, with the texts around them.
            .pragma("cache_size", "-32768")
            // Otherwise the pages that a statement changes are copied to a temporary file, for a rollback.
            .pragma("temp_store", "MEMORY")
            .row_buffer_size(ROWS_AHEAD);
        let pool = one_writer::pool().connect_with(options).await?;
        schema::migrate(&sqlx::migrate!("./migrations"), &mut *pool.acquire().await?).await?;
        Ok(Self { pool })
    }

    /// What all hosts share, if there are any.
    pub(super) async fn membership(&self) -> Result<Option<Membership>, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT membership FROM fleet").fetch_optional(&self.pool).await?;
        row.map(|(text,)| serde_json::from_str(&text))
            .transpose()
            .map_err(|source| StoreError::Content { what: "membership", source })
    }

    /// Stores what all hosts share.
    pub(super) async fn set_membership(&self, membership: &Membership) -> Result<(), StoreError> {
        let text = serde_json::to_string(&common(membership))
            .map_err(|source| StoreError::Content { what: "membership", source })?;
        sqlx::query(
            "INSERT INTO fleet (only, membership) VALUES (1, $1) ON CONFLICT (only) DO UPDATE SET membership = $1",
        )
        .bind(text)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Stores hosts that have joined, or joined again.
    pub(super) async fn put_hosts(&self, hosts: &[SimulatedHostRow]) -> Result<(), StoreError> {
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
    pub(super) async fn hosts(&self, count: Number) -> Result<Vec<SimulatedHostRow>, StoreError> {
        type Columns = (i64, Vec<u8>, String, String, i64, i64, String);
        let rows: Vec<Columns> = sqlx::query_as(
            "SELECT n, id, certificate, key, created_ms, epoch, instances FROM host WHERE n < $1 ORDER BY n",
        )
        .bind(i64::from(count))
        .fetch_all(&self.pool)
        .await?;
        let row = |(n, id, certificate, key, created_ms, epoch, instances): Columns| {
            Ok(SimulatedHostRow {
                n: number(n),
                id: HostId(uuid(&id)?),
                certificate,
                key,
                created_ms,
                life: HostLife {
                    epoch: u64::try_from(epoch).unwrap_or_default(),
                    instances: instances.split(' ').filter_map(|text| text.parse().ok()).collect(),
                },
            })
        };
        rows.into_iter().map(row).collect()
    }

    /// What an earlier run has left, without commands that expired long ago.
    pub(super) async fn left(&self) -> Result<LeftMessages, StoreError> {
        type Columns = (i64, Vec<u8>, i64, Option<Vec<u8>>, Option<String>);
        let (signed_ms,): (Option<i64>,) =
            sqlx::query_as("SELECT max(acknowledged_ms) FROM journal").fetch_one(&self.pool).await?;
        let mut left = LeftMessages { signed_ms: signed_ms.unwrap_or(0), ..LeftMessages::default() };
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
                    let one = InterruptedCommand::read(id, received_ms, &body.unwrap_or_default());
                    left.unfinished.entry(host).or_default().push(one);
                }
            }
        }
        self.prune(left.signed_ms).await?;
        Ok(left)
    }

    /// Deletes commands that expired long before `signed_ms` and whose answers the console has.
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

    /// Number of commands that took effect on a host more than once: if there is one, a promise is broken.
    pub(super) async fn twice(&self) -> Result<u64, StoreError> {
        let (count,): (i64,) =
            sqlx::query_as("SELECT count(*) FROM journal WHERE effects > 1").fetch_one(&self.pool).await?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// Starts new lives of all these hosts.
    pub(super) async fn begin_lives(&self, hosts: &mut [SimulatedHostRow]) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        for host in hosts {
            host.life = host.life.next();
            live(&mut transaction, host.n, &host.life).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Starts the writer, which ends when the last [`JournalWriter`] is dropped.
    pub(super) fn start_writer(&self) -> (JournalWriter, JoinHandle<()>) {
        writer::start(self.pool.clone())
    }

    /// Closes the store: the write-ahead log is merged into the file.
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// The number of a terminal answer: without output there is no other.
pub(super) fn key(command: CommandId) -> ReportAck {
    ReportAck { command, seq: 1 }
}

pub(super) async fn live(db: &mut SqliteConnection, host: Number, life: &HostLife) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE host SET epoch = $2, instances = $3 WHERE n = $1")
        .bind(i64::from(host))
        .bind(to_sql(life.epoch))
        .bind(life.text())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) fn blob(id: CommandId) -> Vec<u8> {
    id.0.as_bytes().to_vec()
}

pub(super) fn uuid(bytes: &[u8]) -> Result<Uuid, sqlx::Error> {
    Uuid::from_slice(bytes).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

pub(super) fn number(n: i64) -> Number {
    Number::try_from(n).unwrap_or(Number::MAX)
}

/// SQLite's integers are signed; these values are far from the limit.
fn to_sql(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
